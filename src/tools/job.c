/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job.c - from options to a context, data, model (of regressions: regress.c), and what train and evaluate share: loss,
 * validation, what a checkpoint remembers of the options.
 */
#include "tools/tools.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void log_line(void *user, int level, const char *line)
{
    (void)user;
    if (level >= LKS_LOG_WARNING) fprintf(stderr, "lockstep: %s\n", line);
}

int job_fail(job *j, const char *doing)
{
    if (!j->ctx) return EXIT_FAILED;
    if (lks_error_code(j->ctx) != LKS_ERR_PEER_FAILED || lks_rank(j->ctx) == 0)
        fprintf(stderr, "lockstep: %s: %s\n", doing, lks_error(j->ctx)[0] ? lks_error(j->ctx) : "failed");
    return EXIT_FAILED;
}

int job_open(job *j, options *o)
{
    j->o = o;
    j->cast = LKS_DTYPE_NONE;
    lks_config *c = lks_config_new();
    if (!c) return usage_error("out of memory");
    if (opt_text(o, device)) lks_config_set_device(c, opt_text(o, device));
    if (opt_text(o, transport)) lks_config_set_transport(c, opt_text(o, transport));
    lks_config_set_threads(c, (int)opt_whole(o, threads));
    lks_config_set_seed(c, opt_whole(o, seed));
    if (opt_real(o, deadline) > 0) lks_config_set_deadline(c, opt_real(o, deadline));
    lks_config_set_log(c, log_line, NULL);
    lks_status s = lks_context_create(MPI_COMM_NULL, c, &j->ctx);
    if (s != LKS_OK && (s != LKS_ERR_PEER_FAILED || speaks()))
        fprintf(stderr, "lockstep: %s\n", lks_config_message(c)[0] ? lks_config_message(c) : lks_status_text(s));
    lks_config_free(c);
    return s == LKS_OK ? 0 : EXIT_FAILED;
}

const char *job_task_name(int task) { return task == LM ? "lm" : task == CLASSIFY ? "classify" : "regress"; }

int job_data(job *j, double valid_fraction)
{
    options *o = j->o;
    option_value *d = &o->v[OPT_data];
    if (!d->count) return usage_error("--data is needed (%s)", j->task == LM ? "text files" : "an HDF5 file");
    j->seq_len = opt_whole(o, seq_len);
    lks_status s = j->task == LM ? lks_loader_text(j->ctx, d->count, d->list, j->seq_len, valid_fraction, &j->loader)
                                 : lks_loader_hdf5(j->ctx, d->count, d->list, opt_text(o, inputs),
                                                   j->no_targets ? NULL : opt_text(o, targets),
                                                   j->no_targets ? 0 : valid_fraction, &j->loader);
    if (s != LKS_OK) return job_fail(j, "reading the data");
    lks_loader_set_prefetch(j->loader, 1);
    if (j->task == REGRESS) return regress_shapes(j);
    if (j->task != CLASSIFY) return 0;
    int n = lks_loader_target_ndim(j->loader);
    if (n > 1 || (n == 1 && lks_loader_target_dim(j->loader, 0) != 1))
        return usage_error("--targets %s has %lld%s numbers a sample; one class number is needed ([N] or [N, 1])",
                           opt_text(o, targets), (long long)lks_loader_target_dim(j->loader, 0),
                           n > 1 ? " and more" : "");
    if (!j->classes && (j->classes = lks_loader_classes(j->loader)) < 1 && lks_error_code(j->ctx))
        return job_fail(j, "reading the labels");
    if (j->classes < 1 || lks_loader_dtype(j->loader, 1) != LKS_I64)
        return usage_error("--targets %s holds no class numbers (integers are needed)", opt_text(o, targets));
    return 0;
}

/* Channels, height, width of an image; a matrix counts as one channel. */
static int image_shape(job *j, int64_t *chw)
{
    int n = lks_loader_input_ndim(j->loader);
    const int64_t *s = lks_loader_input_shape(j->loader);
    chw[0] = n == 3 ? s[0] : 1;
    chw[1] = n >= 2 ? s[n - 2] : n == 1 ? s[0] : 1;
    chw[2] = n >= 2 ? s[n - 1] : 1;
    return n <= 3 ? n : 0;
}

int job_model(job *j)
{
    options *o = j->o;
    double dropout = opt_real(o, dropout);
    int64_t dim = opt_whole(o, dim), layers = opt_whole(o, layers);
    if (lks_params_create(j->ctx, &j->ps) != LKS_OK) return job_fail(j, "building the model");
    if (j->task == REGRESS) return regress_model(j);
    lks_status s;
    if (j->task == LM) {
        if (dim % opt_whole(o, heads))
            return usage_error("--heads %lld does not divide --dim %lld", (long long)opt_whole(o, heads),
                               (long long)dim);
        s = lks_gpt_create(j->ps, "", 256, opt_whole(o, seq_len), layers, dim, opt_whole(o, heads), dropout, &j->model);
    } else {
        int64_t chw[3];
        int n = image_shape(j, chw);
        if (!strcmp(opt_text(o, model), "mlp")) {
            int64_t *sizes = malloc((size_t)(layers + 2) * sizeof *sizes);
            if (!sizes) return usage_error("out of memory");
            sizes[0] = 1;
            for (int d = 0; d < lks_loader_input_ndim(j->loader); d++) sizes[0] *= lks_loader_input_shape(j->loader)[d];
            for (int64_t i = 1; i <= layers; i++) sizes[i] = dim;
            sizes[layers + 1] = j->classes;
            s = lks_mlp_create(j->ps, "", (int)layers + 2, sizes, dropout, &j->model);
            free(sizes);
        } else {
            if (n < 2)
                return usage_error("--model cnn needs images [N, C, H, W] or [N, H, W]; --model mlp takes any shape");
            if (layers > 20 || (chw[1] >> layers) < 1 || (chw[2] >> layers) < 1)
                return usage_error("--layers %lld halves images of %lld x %lld below one pixel", (long long)layers,
                                   (long long)chw[1], (long long)chw[2]);
            s = lks_cnn_create(j->ps, "", chw[0], chw[1], chw[2], j->classes, dim, layers, 1, dropout, &j->model);
        }
    }
    return s == LKS_OK ? 0 : job_fail(j, "building the model");
}

void job_close(job *j)
{
    lks_checkpoint_destroy(&j->ckpt);
    lks_dp_destroy(&j->dp);
    lks_optim_destroy(&j->opt);
    lks_scaler_destroy(&j->scaler);
    lks_module_destroy(&j->model);
    lks_params_destroy(&j->ps);
    lks_loader_destroy(&j->loader);
    lks_context_destroy(&j->ctx);
    lks_finalize();
}

static lks_tensor *shaped_input(job *j, lks_tensor *input)
{
    if (j->task == LM) return input;
    int n = lks_ndim(input);
    if (!strcmp(opt_text(j->o, model), "mlp")) return n == 2 ? input : lks_flatten(input, 1, -1);
    return n == 4 ? input : lks_unsqueeze(input, 1);
}

lks_tensor *job_loss(job *j, lks_tensor *input, lks_tensor *target, lks_tensor **score)
{
    lks_context *ctx = j->ctx;
    if (j->task == REGRESS) return regress_loss(j, input, target, score);
    if (lks_scope_begin(ctx) != LKS_OK) return NULL;
    int cast = j->cast != LKS_DTYPE_NONE;
    if (cast && lks_autocast_begin(ctx, j->cast, 1, 1) != LKS_OK) return lks_scope_leave(ctx, NULL);
    lks_tensor *logits = lks_module_forward(j->model, shaped_input(j, input));
    if (logits && j->task == LM) { /* [B, T, V] -> [B T, V] */
        int64_t rows[2] = {-1, 256}, flat = -1;
        logits = lks_reshape(logits, 2, rows);
        target = lks_reshape(target, 1, &flat);
    } else if (lks_ndim(target) == 2) { /* labels [B, 1] */
        target = lks_flatten(target, 0, 1);
    }
    lks_tensor *loss = lks_cross_entropy(logits, target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_SUM);
    if (cast) lks_autocast_end(ctx);
    if (score) {
        lks_tensor *hits = logits && loss ? lks_eq(lks_argmax(logits, 1, 0), target) : NULL;
        int64_t pads[2] = {0, 1};
        hits = lks_unsqueeze(lks_sum(hits, 0, NULL, 0, LKS_F64), 0);
        *score = lks_keep(hits ? lks_pad(hits, 2, pads, 0) : NULL);
    }
    return lks_scope_leave(ctx, loss);
}

int job_validate(job *j, int64_t batch, double *loss, double *score, int *stop)
{
    lks_context *ctx = j->ctx;
    int64_t n = lks_loader_valid_count(j->loader);
    double sum[4] = {0, 0, 0, 0}; /* loss, score, weight */
    lks_status s = LKS_OK;
    lks_module_train(j->model, 0);
    lks_no_grad_begin(ctx);
    lks_random_rows(ctx, 0, 0);
    for (int64_t at = 0; at < n && !*stop; at += batch) {
        int64_t rows = 0, all = 0;
        lks_tensor *in, *target, *parts = NULL;
        lks_scope_begin(ctx);
        if (s == LKS_OK) s = lks_loader_valid(j->loader, at, batch, &in, &target, &rows);
        if (s == LKS_OK && rows) {
            double v = 0, part[2] = {0, 0};
            lks_tensor *l = job_loss(j, in, target, j->task == LM ? NULL : &parts);
            s = l ? lks_item(l, &v) : lks_error_code(ctx);
            if (s == LKS_OK && parts) s = lks_to_host(parts, part, sizeof part);
            sum[0] += v;
            sum[1] += part[0];
            sum[2] += part[1];
            sum[3] += (double)(j->task == LM ? rows * j->seq_len : rows);
        }
        lks_release(parts);
        lks_scope_end(ctx);
        if (lks_control(ctx, s != LKS_OK ? 2 : signals_stop(), 2, &all) != LKS_OK) break;
        if (all == 1) *stop = 1;
        if (all > 1) break;
    }
    lks_no_grad_end(ctx);
    lks_module_train(j->model, 1);
    s = lks_agree(ctx, s != LKS_OK ? s : lks_error_code(ctx));
    if (s == LKS_OK) s = lks_reduce_f64(ctx, sum, 4, LKS_SUM);
    if (s != LKS_OK) return job_fail(j, "validating");
    *loss = sum[3] > 0 ? sum[0] / sum[3] : 0;
    *score = sum[3] > 0 ? sum[1] / sum[3] : 0;
    if (j->task == REGRESS) *score = sqrt(sum[1] / sum[2]);
    return 0;
}

/* --- what a checkpoint remembers: the options that make the model and the mathematics, not paths or machines --- */

static int remembered(int id)
{
    switch (id) {
    case OPT_data: case OPT_out: case OPT_resume: case OPT_config: case OPT_device: case OPT_transport: case OPT_graph:
    case OPT_threads: case OPT_deadline:
    case OPT_eval_every: case OPT_log_every: case OPT_checkpoint_every: case OPT_keep: case OPT_prompt: case OPT_tokens:
    case OPT_temperature: case OPT_image: case OPT_ops: case OPT_output: case OPT_once: return 0;
    }
    return 1;
}

int job_remember(job *j)
{
    lks_status s = lks_checkpoint_set_text(j->ckpt, "task", job_task_name(j->task));
    for (int i = 0; i < OPT_COUNT && s == LKS_OK; i++) {
        char key[64], text[256];
        if (!remembered(i) || !option_applies(i, j->task)) continue;
        snprintf(key, sizeof key, "option.%s", option_name(i));
        s = lks_checkpoint_set_text(j->ckpt, key, option_text(j->o, i, text, sizeof text));
    }
    if (s == LKS_OK && j->task != REGRESS) s = lks_checkpoint_set_i64(j->ckpt, "classes", j->classes);
    if (s == LKS_OK && j->task == REGRESS && regress_remember(j)) return EXIT_FAILED;
    return s == LKS_OK ? 0 : job_fail(j, "describing the checkpoint");
}

int job_recall(job *j, options *o, lks_checkpoint *c)
{
    const char *text;
    if (lks_checkpoint_get_text(c, "task", &text) != LKS_OK) return job_fail(j, "reading the checkpoint's options");
    j->task = !strcmp(text, "lm") ? LM : !strcmp(text, "regress") ? REGRESS : CLASSIFY;
    for (int i = 0; i < OPT_COUNT; i++) {
        char key[64];
        if (!remembered(i) || !option_applies(i, j->task) || o->v[i].from > 0) continue;
        snprintf(key, sizeof key, "option.%s", option_name(i));
        if (lks_checkpoint_get_text(c, key, &text) != LKS_OK) {
            lks_error_clear(j->ctx);
            continue;
        }
        if (text[0] && options_set(o, i, text, 3)) return EXIT_FAILED;
    }
    if (j->task == REGRESS) return regress_recall(j, c);
    if (lks_checkpoint_get_i64(c, "classes", &j->classes) != LKS_OK)
        return job_fail(j, "reading the checkpoint's options");
    return 0;
}

/* --- signals --- */

static volatile sig_atomic_t stop_asked;

static void on_signal(int number)
{
    (void)number;
    stop_asked = 1;
}

void signals_install(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

int signals_stop(void) { return stop_asked ? 1 : 0; }
