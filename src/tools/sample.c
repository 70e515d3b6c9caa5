/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.c - lockstep sample: text from a trained language model, byte by byte; and where a checkpoint is found by the
 * name of a run.
 */
#include "tools/tools.h"

#include "tools/restore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int restore_path(job *j, const char *name, char *path, int bytes)
{
    struct stat st;
    int64_t step;
    char dir[4000];
    if (stat(name, &st)) return usage_error("%s: no such run or checkpoint", name);
    if (!S_ISDIR(st.st_mode)) {
        snprintf(path, (size_t)bytes, "%s", name);
        return 0;
    }
    snprintf(dir, sizeof dir, "%s/checkpoints", name);
    if (stat(dir, &st)) snprintf(dir, sizeof dir, "%s", name);
    if (lks_checkpoint_latest(j->ctx, dir, path, bytes, &step) != LKS_OK) return job_fail(j, name);
    return 0;
}

int restore_model(job *j, options *o, const char *name, int data)
{
    char path[4096];
    int code = restore_path(j, name, path, sizeof path);
    if (code) return code;
    if (lks_checkpoint_create(j->ctx, &j->ckpt) != LKS_OK) return job_fail(j, "reading the checkpoint");
    if (lks_checkpoint_peek(j->ckpt, path) != LKS_OK) return job_fail(j, "reading the checkpoint");
    if ((code = job_recall(j, o, j->ckpt))) return code;
    if (!data && j->task != LM) return usage_error("%s is no language model", name);
    if (j->no_targets && j->task != REGRESS) return usage_error("%s was not made by `train regress`", name);
    if (data && (code = job_data(j, opt_real(o, valid_fraction)))) return code;
    if ((code = job_model(j))) return code;
    if (lks_checkpoint_set_params(j->ckpt, j->ps) != LKS_OK || lks_checkpoint_load(j->ckpt, path, NULL, NULL) != LKS_OK)
        return job_fail(j, "reading the checkpoint");
    j->seq_len = opt_whole(o, seq_len);
    j->cast = !strcmp(opt_text(o, precision), "f16")    ? LKS_F16
              : !strcmp(opt_text(o, precision), "bf16") ? LKS_BF16
                                                        : LKS_DTYPE_NONE;
    return 0;
}

/* Index drawn from softmax(logits / temperature) with u in [0, 1). */
static int draw(const double *logits, double temperature, double u)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature <= 0) return best;
    double sum = 0, at = 0;
    for (int i = 0; i < 256; i++) sum += exp((logits[i] - logits[best]) / temperature);
    for (int i = 0; i < 256; i++)
        if ((at += exp((logits[i] - logits[best]) / temperature) / sum) > u) return i;
    return best;
}

static int generate(job *j, options *o)
{
    lks_context *ctx = j->ctx;
    int64_t n = (int64_t)strlen(opt_text(o, prompt)), more = opt_whole(o, tokens), one = 1;
    int64_t *text = malloc((size_t)(n + more + 1) * sizeof *text);
    if (!text) return usage_error("out of memory");
    if (!n) text[n++] = '\n';
    for (int64_t i = 0; i < (int64_t)strlen(opt_text(o, prompt)); i++) text[i] = (unsigned char)opt_text(o, prompt)[i];
    printf("%s", opt_text(o, prompt));
    lks_module_train(j->model, 0);
    lks_no_grad_begin(ctx);
    lks_status s = LKS_OK;
    for (int64_t k = 0; k < more && s == LKS_OK; k++) {
        int64_t shape[2] = {1, n < j->seq_len ? n : j->seq_len}, last = shape[1] - 1;
        double logits[256], u;
        lks_scope_begin(ctx);
        lks_tensor *x = lks_from_host(ctx, LKS_I64, 2, shape, text + n - shape[1]);
        lks_tensor *y = lks_module_forward(j->model, x);
        y = lks_to(lks_contiguous(lks_select(lks_select(y, 0, 0), 0, last)), LKS_F64);
        lks_tensor *r = lks_empty(ctx, LKS_F64, 1, &one);
        s = y && r ? lks_uniform_(r, 0, 1) : lks_error_code(ctx);
        if (s == LKS_OK) s = lks_item(r, &u);
        if (s == LKS_OK) s = lks_to_host(y, logits, sizeof logits);
        lks_scope_end(ctx);
        if (s != LKS_OK) break;
        text[n] = draw(logits, opt_real(o, temperature), u);
        putchar((int)text[n++]);
        fflush(stdout);
    }
    printf("\n");
    free(text);
    lks_no_grad_end(ctx);
    return s == LKS_OK ? 0 : job_fail(j, "sampling");
}

int cmd_sample(int argc, const char **argv)
{
    static options o;
    static job j;
    int code = options_parse(&o, SAMPLE, "lockstep sample RUN|CHECKPOINT [options]", argc, argv, 2);
    if (code) return code;
    if (o.operands != 1) return usage_error("sample needs one run folder or checkpoint file");
    if (!(code = job_open(&j, &o))) {
        code = restore_model(&j, &o, o.operand[0], 0);
        if (!code && lks_rank(j.ctx) == 0) code = generate(&j, &o);
    }
    job_close(&j);
    return code;
}
