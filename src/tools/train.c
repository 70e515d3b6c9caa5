/* SPDX-License-Identifier: BSD-3-Clause
 *
 * train.c - lockstep train lm|classify|regress: the training loop. What the host wants to know of step k it asks for at
 * step k + 2, so that no step waits for its own result; before a checkpoint, a validation and the end the rest is
 * fetched.
 */
#include "tools/restore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAG 2
#define PENDING 8
#define MICROS 64

/* A step whose outcome is not known yet. */
typedef struct pending {
    int64_t step, attempt, samples;
    int64_t ticket[MICROS]; /* loss sums of its micro-batches here; 0: none */
    int tickets;
    double weight, begun, ended;
    int wanted, valid; /* to be logged; valid_loss known */
    double valid_loss, valid_score;
} pending;

/* A micro-batch of a step that is launched as a graph: always in the same tensors. */
typedef struct staged {
    lks_tensor *in, *target, *loss; /* shares; loss: where each step leaves it */
    lks_tensor *use[2];             /* what this step reads: in and target, or the loader's */
    int64_t first, rows;
} staged;

typedef struct training {
    job j;
    lks_graph *graph; /* NULL: eager */
    staged part[MICROS];
    lks_status stepped; /* how the optimizer's step of the graph's calls ended */
    int64_t step, position, attempts0, steps, batch, accumulate, eval_every, log_every, checkpoint_every;
    pending queue[PENDING];
    int64_t head, tail; /* queue[head % PENDING] is the oldest */
    double started, window_begun;
    int64_t window_samples;
    char dir[3000], checkpoints[3072];
    int stop, failed, validated; /* validated: last_valid is of the step t->step */
    double last_valid, last_score;
} training;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- options: what "" stands for --- */

static int is_optimizer(const options *o, const char *name)
{
    return !strcmp(opt_text(o, optimizer), name);
}

static int with_momentum(const options *o)
{
    return is_optimizer(o, "sgd") || is_optimizer(o, "lars");
}

static int settle(options *o, int task)
{
    int lm = task == LM, mlp = !strcmp(opt_text(o, model) ? opt_text(o, model) : "", "mlp");
    struct { int id; const char *text;
    } preset[] = {
        {OPT_valid_fraction, lm ? "0.1" : "0.2"},
        {OPT_batch, lm ? "16" : task == CLASSIFY ? "64" : "32"},
        {OPT_inputs, task == CLASSIFY ? "images" : "inputs"},
        {OPT_targets, task == CLASSIFY ? "labels" : "targets"},
        {OPT_lr, with_momentum(o)                                           ? "0.1"
                 : is_optimizer(o, "rmsprop") || is_optimizer(o, "adagrad") ? "0.01"
                                                                            : "0.001"},
        {OPT_weight_decay, is_optimizer(o, "adamw") || is_optimizer(o, "lamb") ? "0.01" : "0"},
    };
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++)
        if (o->v[preset[i].id].from <= 0) options_set(o, preset[i].id, preset[i].text, 0);
    /* A regression's model hangs on its data: regress_shapes. */
    if (task == CLASSIFY && o->v[OPT_model].from <= 0) options_set(o, OPT_model, "cnn", 0);
    if (task != REGRESS && o->v[OPT_layers].from <= 0) options_set(o, OPT_layers, lm ? "4" : "2", 0);
    if (task != REGRESS && o->v[OPT_dim].from <= 0) options_set(o, OPT_dim, lm ? "128" : mlp ? "256" : "32", 0);
    if (task == CLASSIFY && !strcmp(opt_text(o, model), "unet"))
        return usage_error("--model unet goes with train regress; a classifier is cnn or mlp");
    /* The command line wins over the file here, too. */
    if (o->v[OPT_steps].from == 2 && o->v[OPT_epochs].from == 1) o->v[OPT_epochs].from = -1;
    if (o->v[OPT_epochs].from == 2 && o->v[OPT_steps].from == 1) o->v[OPT_steps].from = -1;
    if (opt_given(o, steps) && opt_given(o, epochs)) return usage_error("--steps and --epochs exclude each other");
    if (opt_real(o, scaler_growth) <= 1)
        return usage_error("--scaler-growth is %g; it must be above 1", opt_real(o, scaler_growth));
    if (opt_real(o, scaler_backoff) <= 0 || opt_real(o, scaler_backoff) >= 1)
        return usage_error("--scaler-backoff is %g; it must be between 0 and 1", opt_real(o, scaler_backoff));
    if (strcmp(opt_text(o, precision), "f16"))
        for (int id = OPT_scaler_init; id <= OPT_scaler_backoff; id++)
            if (o->v[id].from > 0) return usage_error("--%s goes with --precision f16 only", option_name(id));
    if (opt_given(o, momentum) && !with_momentum(o))
        return usage_error("--momentum goes with --optimizer sgd or lars only");
    if (opt_whole(o, accumulate) > opt_whole(o, batch))
        return usage_error("--accumulate %lld is more than --batch %lld samples", (long long)opt_whole(o, accumulate),
                           (long long)opt_whole(o, batch));
    return 0;
}

static void settle_steps(training *t)
{
    options *o = t->j.o;
    char text[32];
    int64_t per_epoch = (lks_loader_train_count(t->j.loader) + t->batch - 1) / t->batch;
    t->steps = opt_given(o, epochs)  ? opt_whole(o, epochs) * per_epoch
               : opt_given(o, steps) ? opt_whole(o, steps)
                                     : 1000;
    snprintf(text, sizeof text, "%lld", (long long)(t->steps / 20));
    if (!opt_given(o, warmup)) options_set(o, OPT_warmup, text, 0);
    t->eval_every = opt_given(o, eval_every) ? opt_whole(o, eval_every) : (t->steps + 9) / 10;
    t->checkpoint_every = opt_given(o, checkpoint_every) ? opt_whole(o, checkpoint_every) : (t->steps + 4) / 5;
    t->log_every = opt_whole(o, log_every);
}

/* --- optimizer, scaler --- */

static int optimizer(training *t)
{
    job *j = &t->j;
    options *o = j->o;
    static const char *const schedules[] = {"constant", "linear", "cosine", "step", "wsd"};
    int kind = lks_optim_kind_from_name(opt_text(o, optimizer)), schedule = 0, n = 0, group = -1;
    lks_status s = lks_optim_create(j->ps, kind, &j->opt);
    int *flat = malloc((size_t)lks_params_count(j->ps) * sizeof *flat + 1);
    if (!flat) return usage_error("out of memory");
    for (int i = 0; i < lks_params_count(j->ps); i++)
        if (!lks_params_is_buffer(j->ps, i) && lks_ndim(lks_params_tensor(j->ps, i)) < 2) flat[n++] = i;
    if (s == LKS_OK && n && (group = lks_optim_add_group(j->opt, n, flat)) < 0) s = group;
    free(flat);
    for (int i = 0; i < 5; i++)
        if (!strcmp(schedules[i], opt_text(o, schedule))) schedule = i;
    if (s == LKS_OK) s = lks_optim_set_lr(j->opt, -1, opt_real(o, lr));
    if (s == LKS_OK) s = lks_optim_set_weight_decay(j->opt, 0, opt_real(o, weight_decay));
    if (s == LKS_OK && group > 0) s = lks_optim_set_weight_decay(j->opt, group, 0);
    if (s == LKS_OK && with_momentum(o)) s = lks_optim_set_momentum(j->opt, -1, opt_real(o, momentum), 0, 0);
    if (s == LKS_OK) s = lks_optim_set_clip_norm(j->opt, opt_real(o, clip));
    if (s == LKS_OK)
        s = lks_optim_set_schedule(j->opt, schedule, opt_whole(o, warmup), t->steps,
                                   schedule == LKS_SCHEDULE_COSINE ? 0.1 : 0, 0.5,
                                   schedule == LKS_SCHEDULE_WSD ? (t->steps + 4) / 5 : t->steps / 4 + 1);
    lks_module_recompute(j->model, opt_whole(o, recompute) != 0);
    int f16 = !strcmp(opt_text(o, precision), "f16");
    if (s == LKS_OK && f16) s = lks_scaler_create(j->ctx, 1, &j->scaler);
    if (s == LKS_OK && f16) s = lks_scaler_set_scale(j->scaler, opt_real(o, scaler_init));
    if (s == LKS_OK && f16) s = lks_scaler_set_growth_interval(j->scaler, opt_whole(o, scaler_interval));
    if (s == LKS_OK && f16) s = lks_scaler_set_growth_factor(j->scaler, opt_real(o, scaler_growth));
    if (s == LKS_OK && f16) s = lks_scaler_set_backoff_factor(j->scaler, opt_real(o, scaler_backoff));
    j->cast = f16 ? LKS_F16 : !strcmp(opt_text(o, precision), "bf16") ? LKS_BF16 : LKS_DTYPE_NONE;
    if (s == LKS_OK && opt_given(o, autocast_policy))
        s = lks_autocast_set_table(j->ctx,
                                   !strcmp(opt_text(o, autocast_policy), "cuda") ? LKS_TABLE_CUDA : LKS_TABLE_CPU);
    if (s == LKS_OK) s = lks_dp_create(j->ps, 0, &j->dp);
    if (s == LKS_OK) s = lks_dp_set_nominal(j->dp, (double)t->batch * (double)(j->task == LM ? j->seq_len : 1));
    return s == LKS_OK ? 0 : job_fail(j, "setting up the optimizer");
}

/* --- checkpoints --- */

static int checkpoint_object(training *t)
{
    job *j = &t->j;
    lks_status s = lks_checkpoint_create(j->ctx, &j->ckpt);
    if (s == LKS_OK) s = lks_checkpoint_set_params(j->ckpt, j->ps);
    if (s == LKS_OK) s = lks_checkpoint_set_optim(j->ckpt, j->opt);
    if (s == LKS_OK && j->scaler) s = lks_checkpoint_set_scaler(j->ckpt, j->scaler, LKS_STATE_ADOPT);
    return s == LKS_OK ? 0 : job_fail(j, "setting up checkpoints");
}

static int save(training *t)
{
    job *j = &t->j;
    if (job_remember(j)) return EXIT_FAILED;
    lks_status s = lks_checkpoint_set_i64(j->ckpt, "step", t->step);
    if (s == LKS_OK) s = lks_checkpoint_set_i64(j->ckpt, "position", t->position);
    if (s == LKS_OK) s = lks_checkpoint_set_i64(j->ckpt, "data", lks_loader_fingerprint(j->loader));
    if (s == LKS_OK) s = lks_checkpoint_save_step(j->ckpt, t->checkpoints, t->step, (int)opt_whole(j->o, keep));
    return s == LKS_OK ? 0 : job_fail(j, "saving a checkpoint");
}

/* Options of the checkpoint against ours: shapes must agree, other changes are printed. */
static int compare_options(training *t)
{
    job *j = &t->j;
    const char *was;
    for (int i = 0; i < OPT_COUNT; i++) {
        char key[64], is[256];
        if (!option_applies(i, j->task)) continue;
        snprintf(key, sizeof key, "option.%s", option_name(i));
        if (lks_checkpoint_get_text(j->ckpt, key, &was) != LKS_OK) {
            lks_error_clear(j->ctx);
            continue;
        }
        option_text(j->o, i, is, sizeof is);
        if (!strcmp(was, is)) continue;
        if (option_is_shape(i))
            return usage_error("--%s is %s, but the checkpoint was made with %s: it must be the same on resume",
                               option_name(i), is, was);
        if (i == OPT_scaler_init) continue; /* the first scale is long past */
        if (i == OPT_seed) { /* order of data and split hang on it */
            if (lks_rank(j->ctx) == 0)
                printf("resuming with --seed %s, that of the checkpoint, instead of %s\n", was, is);
            int code = options_set(j->o, i, was, 3);
            if (code) return code;
            continue;
        }
        if (lks_rank(j->ctx) == 0)
            printf("resuming with --%s %s (was %s)\n", option_name(i), is, was[0] ? was : "default");
    }
    return 0;
}

static int resume(training *t, int *resumed)
{
    job *j = &t->j;
    const char *how = opt_text(j->o, resume);
    char path[4096];
    int64_t step, data, later = -1;
    *resumed = 0;
    if (!strcmp(how, "never")) return 0;
    if (!strcmp(how, "auto")) {
        int used = run_used(t->dir); /* rank 0's answer: it may make the folder before the others look */
        lks_status s = lks_broadcast_bytes(j->ctx, &used, sizeof used, 0);
        if (s == LKS_OK && !used) return 0;
        if (s == LKS_OK) s = lks_checkpoint_latest(j->ctx, t->checkpoints, path, sizeof path, &step);
        if (s == LKS_ERR_NOT_FOUND) { /* stopped before the first one */
            lks_error_clear(j->ctx);
            return 0;
        }
        if (s != LKS_OK) return job_fail(j, "looking for a checkpoint");
    } else {
        int code = restore_path(j, how, path, sizeof path);
        if (code) return code;
        /* Later checkpoints in DIR would be gone on from next time, though their metrics were cut. */
        char newest[4096];
        int used = run_used(t->dir);
        lks_status s = lks_broadcast_bytes(j->ctx, &used, sizeof used, 0);
        if (s != LKS_OK) return job_fail(j, "resuming");
        later = -1;
        if (used && lks_checkpoint_latest(j->ctx, t->checkpoints, newest, sizeof newest, &later) != LKS_OK)
            lks_error_clear(j->ctx);
    }
    if (lks_checkpoint_peek(j->ckpt, path) != LKS_OK) return job_fail(j, "resuming");
    const char *task;
    if (lks_checkpoint_get_text(j->ckpt, "task", &task) != LKS_OK || strcmp(task, job_task_name(j->task)))
        return usage_error("%s was not made by `train %s`", path, job_task_name(j->task));
    int code = compare_options(t);
    if (code) return code;
    if (lks_checkpoint_load(j->ckpt, path, NULL, NULL) != LKS_OK) return job_fail(j, "resuming");
    if (lks_checkpoint_get_i64(j->ckpt, "step", &t->step) ||
        lks_checkpoint_get_i64(j->ckpt, "position", &t->position) || lks_checkpoint_get_i64(j->ckpt, "data", &data))
        return job_fail(j, "resuming");
    if (later > t->step)
        return usage_error(
            "--resume %s is step %lld, but --out %s holds step %lld: remove what is later or take another --out", path,
            (long long)t->step, t->dir, (long long)later);
    if (j->scaler) { /* the state is the checkpoint's, the settings are ours */
        options *o = j->o;
        if (lks_scaler_set_growth_interval(j->scaler, opt_whole(o, scaler_interval)) ||
            lks_scaler_set_growth_factor(j->scaler, opt_real(o, scaler_growth)) ||
            lks_scaler_set_backoff_factor(j->scaler, opt_real(o, scaler_backoff)))
            return job_fail(j, "resuming");
    }
    if (data != lks_loader_fingerprint(j->loader) && lks_rank(j->ctx) == 0)
        printf("resuming on other data than before: names, sizes or shapes differ\n");
    if (lks_rank(j->ctx) == 0) printf("resumed from %s at step %lld\n", path, (long long)t->step);
    if (t->step >= t->steps && lks_rank(j->ctx) == 0)
        printf("nothing to train: %lld steps were asked for\n", (long long)t->steps);
    *resumed = 1;
    return 0;
}

/* --- outcomes --- */

static const char *score_name(const job *j)
{
    return j->task == LM ? NULL : j->task == CLASSIFY ? "valid_accuracy" : "valid_error";
}

/* Fetches the oldest outstanding step. Collective when it is logged. */
static int settle_oldest(training *t)
{
    job *j = &t->j;
    pending *p = &t->queue[t->head++ % PENDING];
    metrics m = {.step = p->step, .has_tokens = j->task == LM, .score = score_name(j), .has_valid = p->valid,
                 .valid_loss = p->valid_loss, .valid_score = p->valid_score};
    int outcome;
    lks_status s = lks_optim_report(j->opt, p->attempt, &outcome, &m.grad_norm, &m.scale, &m.lr, NULL, &m.skipped);
    if (s == LKS_ERR_FLOOR && lks_rank(j->ctx) == 0) fprintf(stderr, "lockstep: %s\n", lks_error(j->ctx));
    if (s == LKS_ERR_FLOOR) lks_error_clear(j->ctx);
    else if (s != LKS_OK) return job_fail(j, "training");
    double sum[2] = {0, p->weight};
    for (int i = 0; i < p->tickets; i++) {
        double v;
        if (lks_item_take(j->ctx, p->ticket[i], &v) != LKS_OK) return job_fail(j, "training");
        sum[0] += v;
    }
    if (!p->wanted) return 0;
    if (lks_reduce_f64(j->ctx, sum, 2, LKS_SUM) != LKS_OK) return job_fail(j, "training");
    m.loss = sum[1] > 0 ? sum[0] / sum[1] : NAN;
    m.seconds = p->ended - t->started;
    double span = p->ended - t->window_begun;
    m.samples_per_s = span > 0 ? (double)p->samples / span : 0;
    m.tokens_per_s = m.samples_per_s * (double)j->seq_len;
    t->window_begun = p->ended;
    if (lks_rank(j->ctx)) return 0;
    double each = m.seconds / (double)(p->attempt - t->attempts0);
    run_progress(&m, t->steps, each * (double)(t->steps - p->step), p->valid);
    return run_log(&m);
}

static int settle_all(training *t)
{
    int code = 0;
    while (t->head < t->tail && !code) code = settle_oldest(t);
    return code;
}

/* --- one step --- */

static double weight_of(const job *j, int64_t rows)
{
    return (double)rows * (double)(j->task == LM ? j->seq_len : 1);
}

static lks_status load(training *t, int64_t m, lks_tensor **in, lks_tensor **target, int64_t *rows, int64_t *total)
{
    int64_t all = 0;
    *in = *target = LKS_NONE;
    *rows = 0;
    lks_status s = lks_loader_train(t->j.loader, t->position, t->batch, (int)m, (int)t->accumulate, in, target, rows,
                                    &all);
    if (s == LKS_OK) *total = all;
    return s;
}

static void later(training *t, pending *p, lks_tensor *loss)
{
    p->ticket[p->tickets] = lks_item_later(loss);
    if (p->ticket[p->tickets] < 0) t->failed = 1;
    else p->tickets++;
}

/* Also after a failure: the others wait for this rank's part of the reductions. */
static void backward(training *t, int64_t m, lks_tensor *loss, int64_t rows)
{
    job *j = &t->j;
    lks_status s = lks_dp_backward(j->dp, j->scaler, loss, t->failed ? 0 : weight_of(j, rows), LKS_NONE,
                                   m == t->accumulate - 1);
    if (s != LKS_OK) t->failed = 1;
}

static lks_status update(training *t)
{
    job *j = &t->j;
    lks_status s = lks_optim_step(j->opt, j->scaler);
    if (s == LKS_ERR_NO_GRADIENTS) { /* no samples fell to this rank */
        if (!t->failed) lks_error_clear(j->ctx);
        s = LKS_OK;
    }
    return s == LKS_OK && j->scaler ? lks_scaler_update(j->scaler) : s;
}

static lks_status eager(training *t, pending *p, int64_t *total)
{
    job *j = &t->j;
    lks_params_zero_grad(j->ps);
    for (int64_t m = 0; m < t->accumulate; m++) {
        lks_tensor *in, *target, *loss = LKS_NONE;
        int64_t rows;
        lks_status here = load(t, m, &in, &target, &rows, total);
        if (here != LKS_OK) t->failed = 1;
        if (here == LKS_OK && rows) {
            loss = job_loss(j, in, target, NULL);
            if (loss) later(t, p, loss);
            else t->failed = 1;
            p->weight += weight_of(j, rows);
        }
        backward(t, m, loss, rows);
    }
    return update(t);
}

/* --- one step as a graph --- */

/* The same tensor each time, as long as shapes stay; a share of it. */
static lks_status put(lks_tensor **place, lks_tensor *t)
{
    int same = *place && t != LKS_NONE && lks_dtype_of(*place) == lks_dtype_of(t) && lks_ndim(*place) == lks_ndim(t);
    for (int d = 0; same && d < lks_ndim(t); d++) same = lks_dim(*place, d) == lks_dim(t, d);
    if (same) return lks_copy_(*place, t);
    if (*place && *place != LKS_NONE) lks_release(*place);
    *place = t == LKS_NONE ? t : lks_keep(t);
    return LKS_OK;
}

/* Micro-batches of the step. fixed: they go to the graph's tensors; else they are used as they come. */
static lks_status stage(training *t, int fixed, int64_t *total)
{
    for (int64_t m = 0; m < t->accumulate; m++) {
        staged *s = &t->part[m];
        lks_status st = load(t, m, &s->use[0], &s->use[1], &s->rows, total);
        lks_random_rows_now(t->j.ctx, &s->first, NULL);
        if (st == LKS_OK && fixed && s->rows) {
            st = put(&s->in, s->use[0]);
            if (st == LKS_OK) st = put(&s->target, s->use[1]);
            s->use[0] = s->in;
            s->use[1] = s->target;
        }
        if (st == LKS_OK) continue;
        for (; m < t->accumulate; m++) t->part[m].rows = 0;
        return st;
    }
    return LKS_OK;
}

static lks_status calls(void *user)
{
    training *t = user;
    job *j = &t->j;
    lks_status s = lks_scope_begin(j->ctx);
    if (s != LKS_OK) return s;
    lks_params_zero_grad(j->ps);
    for (int64_t m = 0; m < t->accumulate; m++) {
        staged *part = &t->part[m];
        lks_tensor *loss = LKS_NONE;
        lks_random_rows(j->ctx, part->first, part->rows);
        if (part->rows && !t->failed) {
            loss = job_loss(j, part->use[0], part->use[1], NULL);
            lks_release(part->loss);
            part->loss = loss ? lks_keep(lks_detach(loss)) : NULL;
            if (!part->loss) t->failed = 1;
        }
        backward(t, m, loss, part->rows);
    }
    t->stepped = update(t);
    lks_scope_end(j->ctx);
    return t->failed && t->stepped == LKS_OK ? lks_error_code(j->ctx) : t->stepped;
}

static lks_status as_graph(training *t, pending *p, int64_t *total)
{
    job *j = &t->j;
    int64_t n = lks_loader_train_count(j->loader), full = t->batch < n ? t->batch : n;
    int fixed = n - t->position % n >= full; /* the last batch of an epoch may be smaller */
    if (stage(t, fixed, total) != LKS_OK) t->failed = 1;
    t->stepped = LKS_OK;
    lks_status s = fixed ? lks_graph_step(t->graph, full, calls, t) : calls(t);
    if (s != LKS_OK && (t->failed || t->stepped != LKS_OK)) s = t->stepped;
    for (int64_t m = 0; m < t->accumulate && !t->failed && s == LKS_OK; m++) {
        if (!t->part[m].rows) continue;
        later(t, p, t->part[m].loss);
        p->weight += weight_of(j, t->part[m].rows);
    }
    return s;
}

static void end_graph(training *t)
{
    lks_graph_destroy(&t->graph);
    for (int m = 0; m < MICROS; m++) {
        staged *s = &t->part[m];
        lks_release(s->in);
        lks_release(s->target);
        lks_release(s->loss);
    }
}

static lks_status one_step(training *t, pending *p)
{
    lks_context *ctx = t->j.ctx;
    lks_status s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    int64_t total = 0;
    s = t->graph ? as_graph(t, p, &total) : eager(t, p, &total);
    t->position += total;
    p->attempt = lks_optim_attempts(t->j.opt);
    lks_scope_end(ctx);
    return s;
}

static int validation_due(const training *t)
{
    return t->step && lks_loader_valid_count(t->j.loader) &&
           ((t->eval_every && t->step % t->eval_every == 0) || t->step >= t->steps);
}

/* After a stop in the midst of a validation: made up for, and put into its line of metrics. At the end of a run that
 * was complete: what it says last. */
static int validate_late(training *t)
{
    job *j = &t->j;
    int64_t lacks = lks_rank(j->ctx) == 0 && run_lacks_valid(t->step);
    if (!validation_due(t)) return 0;
    if (lks_reduce_i64(j->ctx, &lacks, 1, LKS_MAX) != LKS_OK) return job_fail(j, "validating");
    if (!lacks && t->step < t->steps) return 0;
    int code = job_validate(j, t->batch, &t->last_valid, &t->last_score, &t->stop);
    if (code || t->stop) return code;
    t->validated = 1;
    int64_t bad = 0;
    if (lacks && lks_rank(j->ctx) == 0)
        bad = run_add_valid(t->dir, t->step, t->last_valid, t->last_score, score_name(j));
    if (lks_reduce_i64(j->ctx, &bad, 1, LKS_MAX) != LKS_OK) return job_fail(j, "validating");
    return bad ? EXIT_FAILED : 0;
}

static int loop(training *t)
{
    job *j = &t->j;
    int code = 0;
    int64_t samples_before = t->position;
    t->started = t->window_begun = now();
    t->attempts0 = lks_optim_attempts(j->opt);
    if (opt_whole(j->o, graph) && lks_graph_create(j->ctx, &t->graph) != LKS_OK) return job_fail(j, "training");
    while (t->step < t->steps && !t->stop) {
        int64_t all = 0;
        if (t->tail - t->head >= LAG && (code = settle_oldest(t))) return code;
        pending *p = &t->queue[t->tail++ % PENDING];
        *p = (pending){.step = t->step + 1};
        if (one_step(t, p) != LKS_OK) return job_fail(j, "training");
        t->step++;
        t->validated = 0;
        p->ended = now();
        p->wanted = t->step % t->log_every == 0 || t->step == t->steps || t->step == 1;
        p->samples = t->position - samples_before;
        if (lks_control(j->ctx, t->failed ? 2 : signals_stop(), LAG, &all) != LKS_OK) return job_fail(j, "training");
        if (all > 1) {
            lks_agree(j->ctx, t->failed ? lks_error_code(j->ctx) : LKS_OK);
            return job_fail(j, "training");
        }
        t->stop |= all == 1;
        int last = t->step == t->steps;
        if (validation_due(t) && !t->stop) {
            double loss, score;
            if ((code = job_validate(j, t->batch, &loss, &score, &t->stop))) return code;
            if (!t->stop) {
                p->wanted = p->valid = t->validated = 1;
                p->valid_loss = t->last_valid = loss;
                p->valid_score = t->last_score = score;
            }
            if ((code = settle_all(t))) return code;
            t->window_begun = now();
        }
        if (p->wanted) samples_before = t->position;
        if ((t->checkpoint_every && t->step % t->checkpoint_every == 0) || last || t->stop) {
            if ((code = settle_all(t)) || (code = save(t))) return code;
        }
    }
    return settle_all(t);
}

/* Stopped with something left to do: steps, or the last validation. */
static int stopped(const training *t)
{
    return t->stop && (t->step < t->steps || (validation_due(t) && !t->validated));
}

static int finish(training *t, int code)
{
    job *j = &t->j;
    if (lks_rank(j->ctx)) return code;
    run_close();
    run_ended(t->dir, code ? "failed" : stopped(t) ? "stopped" : "done");
    if (code) return code;
    const char *dir = t->dir;
    char image[4096];
    snprintf(image, sizeof image, "%s/loss.png", dir);
    int drawn = plot_runs(1, &dir, image) == 0;
    if (stopped(t)) {
        printf("stopped at step %lld; go on with the same command and --resume auto\n", (long long)t->step);
    } else {
        printf("done: %lld steps", (long long)t->step);
        if (t->validated) printf(", validation loss %.4f", t->last_valid);
        else printf(", no validation: no sample was set aside");
        if (t->validated && j->task != LM)
            printf(", %s %.2f %%", j->task == REGRESS ? "error" : "accuracy", 100 * t->last_score);
        printf("\n");
    }
    printf("checkpoints in %s%s%s\n", t->checkpoints, drawn ? ", plot in " : "", drawn ? image : "");
    return 0;
}

int cmd_train(int argc, const char **argv)
{
    static options o;
    static training t;
    const char *what = argc > 2 ? argv[2] : "";
    static const int tasks[] = {LM, CLASSIFY, REGRESS};
    int task = 0;
    for (int i = 0; i < 3; i++)
        if (!strcmp(what, job_task_name(tasks[i]))) task = tasks[i];
    if (!task) {
        if (!strcmp(what, "--help")) {
            printf("usage: lockstep train lm|classify|regress [options]\n\n"
                   "`lockstep train lm --help` lists the options.\n");
            return EXIT_DONE;
        }
        return usage_error("train what? lm, classify or regress, not \"%s\"", what);
    }
    char line[80];
    snprintf(line, sizeof line, "lockstep train %s --data FILE... [options]", what);
    int code = options_parse(&o, task, line, argc, argv, 3);
    if (code) return code;
    if (o.operands) return usage_error("unexpected word \"%s\" (files are given with --data)", o.operand[0]);
    if ((code = settle(&o, task))) return code;
    job *j = &t.j;
    j->o = &o;
    j->task = task;
    if (strlen(opt_text(&o, out)) >= sizeof t.dir) return usage_error("--out is too long");
    snprintf(t.dir, sizeof t.dir, "%s", opt_text(&o, out));
    snprintf(t.checkpoints, sizeof t.checkpoints, "%s/checkpoints", t.dir);
    if (!strcmp(opt_text(&o, resume), "never") && run_used(t.dir))
        return usage_error("--out %s holds a run already; --resume auto goes on with it, another --out starts anew",
                           t.dir);
    t.batch = opt_whole(&o, batch);
    t.accumulate = opt_whole(&o, accumulate);
    int resumed = 0;
    signals_install();
    if (!(code = job_open(j, &o)) && !(code = job_data(j, opt_real(&o, valid_fraction)))) {
        settle_steps(&t);
        if (!(code = job_model(j)) && !(code = optimizer(&t)) && !(code = checkpoint_object(&t)) &&
            !(code = resume(&t, &resumed)) &&
            (resumed || task != REGRESS || !(code = regress_normalize(j)))) {
            int64_t bad = lks_rank(j->ctx) == 0 ? run_open(j, t.dir, !resumed, t.step, t.steps) : 0;
            if (lks_reduce_i64(j->ctx, &bad, 1, LKS_MAX) != LKS_OK || bad) code = EXIT_FAILED;
            if (!code && lks_rank(j->ctx) == 0)
                printf("%lld parameters, %lld training samples, %d rank%s, %s\n", (long long)lks_params_numel(j->ps),
                       (long long)lks_loader_train_count(j->loader), lks_size(j->ctx), lks_size(j->ctx) > 1 ? "s" : "",
                       lks_device_description(j->ctx));
            if (!code && resumed) code = validate_late(&t);
            if (!code) code = loop(&t);
            code = finish(&t, code);
            end_graph(&t);
        }
    }
    int left = !code && stopped(&t);
    lks_status broken = j->ctx ? lks_error_code(j->ctx) : LKS_OK;
    if (code && (broken == LKS_ERR_TIMEOUT || broken == LKS_ERR_MPI))
        _Exit(code); /* the others are gone: no collective close */
    job_close(j);
    return code ? code : left ? EXIT_STOPPED : EXIT_DONE;
}
