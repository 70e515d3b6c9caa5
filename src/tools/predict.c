/* SPDX-License-Identifier: BSD-3-Clause
 *
 * predict.c - lockstep predict: what a trained regression says of the inputs of HDF5 files, as a new HDF5 file. Every
 * rank takes its share of each batch and writes its own rows.
 */
#include "tools/restore.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int predict(job *j, lks_output *out)
{
    lks_context *ctx = j->ctx;
    int64_t n = lks_loader_train_count(j->loader), batch = opt_whole(j->o, batch);
    lks_status s = LKS_OK;
    lks_module_train(j->model, 0);
    lks_no_grad_begin(ctx);
    lks_random_rows(ctx, 0, 0);
    for (int64_t at = 0; at < n; at += batch) {
        lks_tensor *in, *none;
        int64_t rows = 0, begin = 0, all = 0;
        lks_scope_begin(ctx);
        if (s == LKS_OK) s = lks_loader_rows(j->loader, at, batch, &in, &none, &rows, &begin);
        if (s == LKS_OK && rows) {
            lks_tensor *y = regress_predict(j, in);
            int64_t bytes = y ? lks_numel(y) * lks_dtype_size(lks_dtype_of(y)) : 0;
            void *v = malloc((size_t)bytes + 1);
            s = !y   ? lks_error_code(ctx)
                : !v ? lks_error_raise(ctx, LKS_ERR_MEMORY, "predict", "no memory for a batch; take a smaller --batch")
                     : lks_to_host(y, v, bytes);
            if (s == LKS_OK) s = lks_output_write(out, begin, rows, v);
            free(v);
        }
        lks_scope_end(ctx);
        if (lks_control(ctx, s != LKS_OK, 2, &all) != LKS_OK || all) break;
    }
    lks_no_grad_end(ctx);
    s = lks_agree(ctx, s != LKS_OK ? s : lks_error_code(ctx));
    return s == LKS_OK ? 0 : job_fail(j, "predicting");
}

static int write_all(job *j, const char *file, const char *from)
{
    fields *f = &j->f;
    lks_output *out = NULL;
    const char *slash = strrchr(from, '/'), *data = j->o->v[OPT_data].list[0];
    int64_t shape[LKS_MAX_DIMS] = {lks_loader_train_count(j->loader)};
    for (int d = 0; d < f->ndim[1]; d++) shape[d + 1] = f->shape[1][d];
    lks_status s =
        lks_output_create(j->ctx, file, opt_text(j->o, output), f->target_dtype, f->ndim[1] + 1, shape, &out);
    /* Of one name in both, the targets' attribute (units) is the right one. */
    if (s == LKS_OK) s = lks_output_copy_attributes(out, data, opt_text(j->o, inputs));
    if (s == LKS_OK) s = lks_output_copy_attributes(out, data, opt_text(j->o, targets));
    if (s == LKS_OK) s = lks_output_set_text(out, "lockstep_inputs", opt_text(j->o, inputs));
    if (s == LKS_OK) s = lks_output_set_text(out, "lockstep_checkpoint", slash ? slash + 1 : from);
    s = s == LKS_OK || out ? lks_agree(j->ctx, s) : s;
    int code = s == LKS_OK ? predict(j, out) : job_fail(j, file);
    if (!code && lks_output_finish(out) != LKS_OK) code = job_fail(j, file);
    if (!code && lks_rank(j->ctx) == 0) printf("%lld predictions in %s\n", (long long)shape[0], file);
    lks_output_destroy(&out);
    return code;
}

int cmd_predict(int argc, const char **argv)
{
    static options o;
    static job j;
    int code = options_parse(&o, PREDICT, "lockstep predict RUN|CHECKPOINT --data FILE... --out FILE [options]", argc,
                             argv, 2);
    if (code) return code;
    if (o.operands != 1) return usage_error("predict needs one run folder or checkpoint file");
    if (!opt_given(&o, out)) return usage_error("--out is needed (the HDF5 file to write)");
    struct stat in, to;
    for (int i = 0; i < o.v[OPT_data].count && !stat(opt_text(&o, out), &to); i++)
        if (!stat(o.v[OPT_data].list[i], &in) && in.st_ino == to.st_ino && in.st_dev == to.st_dev)
            return usage_error("--out %s is one of the files of --data", opt_text(&o, out));
    static char file[4096];
    snprintf(file, sizeof file, "%s", opt_text(&o, out));
    j.no_targets = 1;
    if (!(code = job_open(&j, &o)) && !(code = restore_model(&j, &o, o.operand[0], 1)))
        code = write_all(&j, file, o.operand[0]);
    job_close(&j);
    return code;
}
