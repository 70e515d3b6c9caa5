/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dp.c - data parallel training on 1 to 4 ranks: means over true weights, ranks without samples, absent gradients,
 * overflow and failure on one rank, accumulation, frozen parameters, comparisons. tests/dp.test starts it with several
 * rank counts; argument: the device ("cpu", "far"). Losses are sums of parameter times constant, so that gradients are
 * numbers known by hand.
 */
#include "nn/params.h"
#include "tap_mpi.h"
#include <lockstep.h>

static const char *device = "cpu";

static lks_context *open_context(double deadline)
{
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    lks_config_set_device(config, device);
    lks_config_set_threads(config, 1);
    lks_config_set_deadline(config, deadline);
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
    return ctx;
}

#define PARAMS 4

typedef struct rig {
    lks_context *ctx;
    int n, me, count;
    lks_params *ps;
    lks_tensor *p[PARAMS];
    lks_dp *dp;
    lks_optim *opt;
    lks_scaler *s;
} rig;

/* `count` parameters of 5 elements, value 1 on rank 0 and 2 elsewhere, so that the broadcast shows. SGD, lr 1. */
static int rig_open(rig *r, int count, lks_dtype dtype, int64_t bucket_bytes, double nominal)
{
    *r = (rig){.ctx = open_context(20), .count = count};
    r->n = lks_size(r->ctx);
    r->me = lks_rank(r->ctx);
    int good = lks_params_create(r->ctx, &r->ps) == LKS_OK && lks_no_grad_begin(r->ctx) == LKS_OK;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        good = good && lks_params_add(r->ps, name, dtype, 1, (int64_t[]){5}, &r->p[i]) == LKS_OK &&
               lks_fill_(r->p[i], r->me ? 2 : 1) == LKS_OK;
    }
    good = good && lks_no_grad_end(r->ctx) == LKS_OK && lks_dp_create(r->ps, bucket_bytes, &r->dp) == LKS_OK &&
           lks_dp_set_nominal(r->dp, nominal) == LKS_OK && lks_optim_create(r->ps, LKS_SGD, &r->opt) == LKS_OK &&
           lks_optim_set_lr(r->opt, -1, 1) == LKS_OK;
    if (!good) bail("cannot set up: %s", lks_error(r->ctx));
    return good;
}

static void rig_close(rig *r)
{
    lks_optim_destroy(&r->opt);
    lks_scaler_destroy(&r->s);
    lks_dp_destroy(&r->dp);
    lks_params_destroy(&r->ps);
    int64_t live = lks_live_tensors(r->ctx), blocks = lksi_blocks_in_use(&r->ctx->base);
    (void)blocks;
    if (live) diag("%lld tensors are left", (long long)live);
    lks_context_destroy(&r->ctx);
}

/* Sum over k samples of sum_i g[i] * p[i] (g 0: parameter i is not used): gradient of every element of p[i] is k
 * g[i]. */
static lks_tensor *loss_of(rig *r, const double *g, double k)
{
    lks_tensor *loss = LKS_NONE;
    for (int i = 0; i < r->count; i++) {
        if (g[i] == 0) continue;
        lks_tensor *t = lks_sum(lks_mul_scalar(r->p[i], g[i] * k), 0, NULL, 0, LKS_DTYPE_NONE);
        loss = loss == LKS_NONE ? t : lks_add(loss, t);
    }
    return loss;
}

static lks_status backward(rig *r, const double *g, double k, int last)
{
    lks_scope_begin(r->ctx);
    lks_status st = lks_dp_backward(r->dp, r->s, k > 0 ? loss_of(r, g, k) : LKS_NONE, k, LKS_NONE, last);
    lks_scope_end(r->ctx);
    return st;
}

static lks_status step(rig *r)
{
    lks_status st = lks_optim_step(r->opt, r->s);
    if (st == LKS_OK && r->s) st = lks_scaler_update(r->s);
    lks_params_zero_grad(r->ps);
    return st;
}

/* Value of parameter i, NAN if its elements differ. */
static double value(rig *r, int i)
{
    double v[5];
    lks_scope_begin(r->ctx);
    lks_tensor *t = lks_to(r->p[i], LKS_F64);
    if (lks_to_host(t, v, sizeof v) != LKS_OK) v[0] = NAN;
    lks_scope_end(r->ctx);
    for (int k = 1; k < 5; k++)
        if (v[k] != v[0]) return NAN;
    return v[0];
}

static void means(lks_dtype dtype, double tolerance)
{
    rig r;
    ok(rig_open(&r, 2, dtype, 0, 8), "%s: create", lks_dtype_name(dtype));
    is_double(value(&r, 1), 1, 0, "parameters are those of rank 0");
    /* Rank r has r + 1 samples with gradients 1 + r and -2. */
    double total = 0, sum = 0;
    for (int s = 0; s < r.n; s++) {
        total += s + 1;
        sum += (s + 1.0) * (s + 1);
    }
    ok(backward(&r, (double[]){1 + r.me, -2}, 1 + r.me, 1) == LKS_OK && step(&r) == LKS_OK, "a step");
    is_double(value(&r, 0), 1 - sum / total, tolerance, "mean over the true number of samples, unequal over ranks");
    is_double(value(&r, 1), 3, tolerance, "and of a constant");
    ok(lks_dp_check(r.dp) == LKS_OK, "parameters have the same bits");
    rig_close(&r);
}

static void half_sums(void)
{
    rig r;
    ok(rig_open(&r, 1, LKS_F16, 0, 1), "float16 parameters");
    lks_optim_set_lr(r.opt, -1, 1e-4);
    ok(backward(&r, (double[]){10000}, 1, 1) == LKS_OK && step(&r) == LKS_OK,
       "a step with a gradient of 10000 on each rank");
    int outcome = 0;
    lks_optim_report(r.opt, 1, &outcome, NULL, NULL, NULL, NULL, NULL);
    if (r.n * 10000 < 65520) is_int(outcome, LKS_STEPPED, "B91: gradient sums that float16 holds go through");
    else is_int(outcome, LKS_SKIPPED_HERE, "a sum of scaled gradients beyond float16 is seen and the step skipped");
    rig_close(&r);
}

static void uneven(void)
{
    rig r;
    ok(rig_open(&r, 1, LKS_F32, 0, 4), "B85: create");
    /* 9 samples, global batch n, sample j on rank j % n with gradient j + 1. */
    double want = 1, sum = 0;
    int good = 1, inside = 0;
    for (int j = 0; j < 9; j++) {
        sum += j + 1;
        inside++;
        if (inside == r.n || j == 8) {
            int has = r.me < inside;
            good = good && backward(&r, (double[]){j - inside + 2 + r.me}, has, 1) == LKS_OK && step(&r) == LKS_OK;
            want -= sum / inside;
            sum = 0;
            inside = 0;
        }
    }
    ok(good, "B85: the last batch has fewer samples than ranks; no hang");
    is_double(value(&r, 0), want, 1e-4, "B85: and its mean is over the samples there are");
    rig_close(&r);

    ok(rig_open(&r, 1, LKS_F32, 0, r.n), "B83: create");
    ok(lks_scaler_create(r.ctx, 1, &r.s) == LKS_OK && lks_scaler_set_scale(r.s, 1024) == LKS_OK &&
           lks_scaler_set_growth_interval(r.s, 4) == LKS_OK,
       "B82: scale 1024, interval 4");
    good = 1;
    want = 1;
    for (int j = 0; j < 5 && good; j++) {
        good = backward(&r, (double[]){r.me ? 3 : 1}, r.me == 0 || j < 3, 1) == LKS_OK && step(&r) == LKS_OK;
        want -= j < 3 ? (1 + 3.0 * (r.n - 1)) / r.n : 1;
        good = good && fabs(value(&r, 0) - want) < 1e-5;
    }
    ok(good, "B83: rank 0 has 5 batches, others 3: means over those that have one, no hang");
    double scale = 0;
    int64_t tracker = -1;
    lks_scaler_get(r.s, &scale, &tracker);
    ok(scale == 2048 && tracker == 1, "B82: scale 2048, tracker 1 on every rank");
    ok(lks_dp_check(r.dp) == LKS_OK, "B83: parameters have the same bits");
    rig_close(&r);
}

/* Are the gradients of p[i] there (1) or not on every rank, of this value? */
static int gradients(rig *r, const int *there, const double *want)
{
    int good = 1;
    for (int i = 0; i < r->count; i++) {
        lks_tensor *g = lks_grad(r->p[i]);
        double v[5] = {0};
        lks_scope_begin(r->ctx);
        good = good && (g != NULL) == there[i];
        if (g && lks_to_host(lks_to(g, LKS_F64), v, sizeof v) != LKS_OK) good = 0;
        for (int k = 0; k < 5 && g && good; k++) good = fabs(v[k] - want[i]) < 1e-6;
        if (!good) diag("p%d: %s, %g", i, g ? "a gradient" : "no gradient", v[0]);
        lks_scope_end(r->ctx);
        if (!good) break;
    }
    return good;
}

/* After the reduction every rank has the same gradients, also one that contributed nothing. */
static void present(void)
{
    rig rigged, *r = &rigged;
    ok(rig_open(r, 3, LKS_F32, 16, 1), "B88: create");
    const int first_two[3] = {1, 1, 0}, middle[3] = {0, 1, 0}, all[3] = {1, 1, 1};
    double n = r->n;
    /* p1 on rank 0 alone, p2 nowhere. */
    ok(backward(r, (double[]){1, r->me ? 0 : 2, 0}, 1, 1) == LKS_OK && lks_optim_unscale(r->opt, r->s) == LKS_OK &&
           gradients(r, first_two, (double[]){1, 2 / n, 0}),
       "B88: a gradient of one rank is there on all, none where nobody has one (unscaled): %s", lks_error(r->ctx));
    ok(step(r) == LKS_OK && gradients(r, (int[]){0, 0, 0}, NULL), "B88: until lks_params_zero_grad");
    /* Without unscale the sum stays, until the step: rank n - 1 has no samples at all. */
    int last = r->n > 1 && r->me == r->n - 1;
    ok(backward(r, (double[]){0, 3, 0}, last ? 0 : 1, 1) == LKS_OK && lks_optim_step(r->opt, r->s) == LKS_OK &&
           gradients(r, middle, (double[]){0, 3 * (r->n > 1 ? n - 1 : 1), 0}),
       "B88: and on a rank without samples: %s", lks_error(r->ctx));
    /* Left where it is, it is the sum on every rank: an error on every rank alike. */
    lks_status st = backward(r, (double[]){0, 3, 0}, 1, 1);
    ok(st == LKS_ERR_STATE && strstr(lks_error(r->ctx), "p1"), "B88: left there it is refused on every rank: %s",
       lks_error(r->ctx));
    lks_error_clear(r->ctx);
    st = lks_optim_step(r->opt, r->s);
    lks_error_clear(r->ctx);
    ok(lks_params_zero_grad(r->ps) == LKS_OK, "cleared");
    /* Accumulated: p0 in the first part on even ranks, p1 in the second on odd ones, p2 in both. */
    int odd = r->me % 2, odds = r->n / 2, evens = r->n - odds;
    ok(backward(r, (double[]){odd ? 0 : 1, 0, 1}, 1, 0) == LKS_OK &&
           backward(r, (double[]){0, odd ? 1 : 0, 1}, 1, 1) == LKS_OK && lks_optim_unscale(r->opt, r->s) == LKS_OK &&
           gradients(r, r->n > 1 ? all : (int[]){1, 0, 1}, (double[]){evens / (2 * n), odds / (2 * n), 1}),
       "B88: over several parts: %s", lks_error(r->ctx));
    ok(step(r) == LKS_OK && lks_dp_check(r->dp) == LKS_OK, "B88: and the step is the same everywhere");
    rig_close(r);
}

static void absent(void)
{
    rig r;
    ok(rig_open(&r, 3, LKS_F32, 16, 1), "B88: create");
    int64_t before = lks_dp_collectives(r.dp);
    /* p1 is used on rank 0 only, p2 nowhere. */
    ok(backward(&r, (double[]){1, r.me ? 0 : 2, 0}, 1, 1) == LKS_OK && step(&r) == LKS_OK, "B88: a step");
    is_double(value(&r, 1), 1 - 2.0 / r.n, 1e-6, "B88: a gradient on some ranks only: absent counts as 0");
    is_double(value(&r, 2), 1, 0, "B88: a parameter used nowhere stays");
    is_int(lks_dp_collectives(r.dp) - before, lks_dp_bucket_count(r.dp),
           "B88: each bucket is reduced once on every rank");
    /* Other order of use on each rank, several buckets. */
    lks_scope_begin(r.ctx);
    lks_tensor *a = lks_sum(r.p[r.me % 3], 0, NULL, 0, LKS_DTYPE_NONE),
               *b = lks_sum(r.p[(r.me + 1) % 3], 0, NULL, 0, LKS_DTYPE_NONE),
               *c = lks_sum(r.p[(r.me + 2) % 3], 0, NULL, 0, LKS_DTYPE_NONE);
    ok(lks_dp_backward(r.dp, NULL, lks_add(lks_add(a, b), c), 1, LKS_NONE, 1) == LKS_OK,
       "gradients come in another order on each rank");
    lks_scope_end(r.ctx);
    ok(step(&r) == LKS_OK && fabs(value(&r, 2)) < 1e-6, "and are the same");
    rig_close(&r);
}

static void overflow(void)
{
    static const double bad[3] = {INFINITY, -INFINITY, NAN};
    rig r;
    ok(rig_open(&r, 2, LKS_F32, 16, 1) && lks_scaler_create(r.ctx, 1, &r.s) == LKS_OK, "B80: create");
    int good = 1;
    double scale = 65536;
    for (int j = 0; j < 4; j++) {
        int sick = (r.n - 1 + j) % r.n;
        double g = r.me == sick ? bad[j % 3] : 0.5;
        good = good && backward(&r, (double[]){g, 0.5}, 1, 1) == LKS_OK && step(&r) == LKS_OK;
        int outcome = 0;
        double s = 0;
        int64_t tracker = -1, bits = 0;
        lks_optim_report(r.opt, j + 1, &outcome, NULL, NULL, NULL, NULL, NULL);
        lks_scaler_get(r.s, &s, &tracker);
        scale /= 2;
        good = good && (outcome == LKS_SKIPPED_HERE || outcome == LKS_SKIPPED_ELSEWHERE) && s == scale &&
               tracker == 0 && value(&r, 0) == 1 && value(&r, 1) == 1;
        (void)bits;
    }
    ok(good, "B80: inf, -inf and NaN on one rank: every rank skips, halves its scale, keeps its bits");
    ok(backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == 0,
       "B80: the next step is taken");
    /* What was reduced may be dropped. */
    ok(backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && lks_params_zero_grad(r.ps) == LKS_OK &&
           backward(&r, (double[]){-1, -1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == 1 &&
           backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == 0,
       "zero_grad after the reduction begins anew");
    /* One rank fails in backward: its loss is not one element. */
    int last = r.n - 1;
    lks_scope_begin(r.ctx);
    lks_tensor *loss = r.me == last ? lks_mul_scalar(r.p[0], 1) : loss_of(&r, (double[]){1, 1}, 1);
    lks_status st = lks_dp_backward(r.dp, r.s, loss, 1, LKS_NONE, 1);
    lks_scope_end(r.ctx);
    ok(r.me == last ? st == LKS_ERR_SHAPE : st == LKS_OK, "a rank that fails in backward says so itself");
    lks_error_clear(r.ctx);
    int outcome = 0;
    st = step(&r);
    lks_optim_report(r.opt, 8, &outcome, NULL, NULL, NULL, NULL, NULL);
    ok(st == LKS_OK && outcome == (r.me == last ? LKS_SKIPPED_HERE : LKS_SKIPPED_ELSEWHERE) && value(&r, 0) == 0,
       "and every rank skips that step");
    /* A failed forward pass hands in NULL. */
    lks_scope_begin(r.ctx);
    loss = r.me == last ? lks_matmul(r.p[0], lks_ones(r.ctx, LKS_F32, 1, (int64_t[]){7}))
                        : loss_of(&r, (double[]){1, 1}, 1);
    st = lks_dp_backward(r.dp, r.s, loss, 1, LKS_NONE, 1);
    lks_scope_end(r.ctx);
    ok((r.me == last) == (st != LKS_OK) && step(&r) == LKS_OK && value(&r, 0) == 0,
       "the same after a failed forward pass");
    lks_error_clear(r.ctx);
    ok(backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == -1,
       "then training goes on");
    rig_close(&r);
}

static void accumulation(void)
{
    rig r, one;
    ok(rig_open(&r, 2, LKS_F32, 0, 4) && rig_open(&one, 2, LKS_F32, 0, 4), "B94: create");
    int64_t before = lks_dp_collectives(r.dp);
    int good = 1;
    for (int k = 0; k < 4; k++)
        good = good && backward(&r, (double[]){0.1 * (r.me + k), k == 1 ? 1 : 0}, 1, k == 3) == LKS_OK;
    is_int(lks_dp_collectives(r.dp) - before, 1, "B94: one reduction per window of 4");
    ok(good && step(&r) == LKS_OK, "B94: a step");
    lks_scope_begin(one.ctx);
    lks_tensor *loss = NULL;
    for (int k = 0; k < 4; k++) {
        lks_tensor *t = loss_of(&one, (double[]){0.1 * (one.me + k), k == 1 ? 1 : 0}, 1);
        loss = t == LKS_NONE ? loss : loss ? lks_add(loss, t) : t;
    }
    ok(lks_dp_backward(one.dp, NULL, loss, 4, LKS_NONE, 1) == LKS_OK, "B94: the same in one batch");
    lks_scope_end(one.ctx);
    ok(step(&one) == LKS_OK && fabs(value(&one, 0) - value(&r, 0)) <= 0x1p-23 &&
           fabs(value(&one, 1) - value(&r, 1)) <= 0x1p-23,
       "B94: equal to 1 ulp, also where only an earlier micro-batch had a gradient");
    rig_close(&one);

    ok(backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && backward(&r, (double[]){1, 1}, 1, 1) == LKS_ERR_STATE,
       "a second reduction before the step is an error");
    lks_error_clear(r.ctx);
    ok(step(&r) == LKS_OK, "the step is taken");
    ok(backward(&r, (double[]){1, 1}, 1, 0) == LKS_OK && lks_optim_step(r.opt, NULL) == LKS_ERR_STATE &&
           strstr(lks_error(r.ctx), "last = 1"),
       "a step without a reduction is an error that says what is missing");
    lks_error_clear(r.ctx);
    lks_params_zero_grad(r.ps);
    rig_close(&r);
}

typedef struct started {
    lks_dp *dp;
    int64_t before, at; /* reductions issued before, and when the leaf's gradient was complete */
} started;

static lks_status note_started(void *user, lks_tensor *leaf, lks_tensor *grad)
{
    (void)leaf;
    (void)grad;
    started *s = user;
    s->at = lks_dp_collectives(s->dp) - s->before;
    return LKS_OK;
}

/* Eight parameters of 400,000 bytes: three in the first bucket, started within backward, the others in the second. */
static void buckets(void)
{
    lks_context *ctx = open_context(20);
    lks_params *ps;
    lks_tensor *p[8], *loss = NULL;
    lks_dp *dp = NULL;
    started s[8];
    int64_t id;
    lks_params_create(ctx, &ps);
    for (int i = 0; i < 8; i++) {
        char name[3] = {'p', (char)('0' + i), 0};
        lks_params_add(ps, name, LKS_F32, 1, (int64_t[]){100000}, &p[i]);
    }
    ok(lks_dp_create(ps, 0, &dp) == LKS_OK && lks_dp_set_nominal(dp, 1) == LKS_OK, "buckets: create");
    ok(lks_dp_bucket_count(dp) == 2 && lks_dp_bucket_numel(dp, 0) == 300000 && lks_dp_bucket_numel(dp, 1) == 500000,
       "the first bucket is closed at 1 MiB, the next would be at 4");
    lks_scope_begin(ctx);
    for (int i = 0; i < 8; i++) {
        s[i] = (started){.dp = dp, .before = lks_dp_collectives(dp), .at = -1};
        lks_hook_add(p[i], note_started, &s[i], &id);
        lks_tensor *t = lks_sum(p[i], 0, NULL, 0, LKS_DTYPE_NONE);
        loss = loss ? lks_add(loss, t) : t;
    }
    ok(lks_dp_backward(dp, NULL, loss, 1, LKS_NONE, 1) == LKS_OK, "backward");
    lks_scope_end(ctx);
    ok(s[7].at == 0 && s[6].at == 0 && s[5].at == 1 && s[1].at == 1 && s[0].at == 2,
       "a bucket is started when its last gradient is complete, not later");
    lks_params_zero_grad(ps);
    lks_dp_destroy(&dp);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
}

/* What must not be summed: gradients of the step before, of one rank without the scale. */
static void contract(void)
{
    rig r;
    rig_open(&r, 1, LKS_F32, 0, 1);
    int n = r.n;
    lks_dp_set_nominal(r.dp, 2 * n);
    ok(backward(&r, (double[]){1}, 1, 1) == LKS_OK && lks_optim_unscale(r.opt, NULL) == LKS_OK &&
           lks_params_zero_grad(r.ps) == LKS_OK && backward(&r, (double[]){1}, 1, 1) == LKS_OK &&
           lks_optim_step(r.opt, NULL) == LKS_OK && value(&r, 0) == 0,
       "unscaled and dropped: the next gradients are reduced and divided as ever");
    ok(backward(&r, (double[]){1}, 1, 1) == LKS_ERR_STATE && strstr(lks_error(r.ctx), "p0") &&
           strstr(lks_error(r.ctx), "lks_params_zero_grad"),
       "on top of the sum of the last step no backward is taken");
    lks_error_clear(r.ctx);
    ok(lks_optim_step(r.opt, NULL) == LKS_OK || n == 1, "all ranks skip that step");
    lks_error_clear(r.ctx);
    lks_params_zero_grad(r.ps);
    ok(value(&r, 0) == 0 && backward(&r, (double[]){1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == -1,
       "with zero_grad it is");
    lks_scaler *s = NULL;
    ok(lks_scaler_create(r.ctx, 1, &s) == LKS_OK, "a scaler");
    int bad = r.me == n - 1;
    if (!bad) r.s = s;
    ok(backward(&r, (double[]){1}, 1, 1) == LKS_OK, "the last rank forgets it in backward");
    r.s = s;
    lks_status st = lks_optim_step(r.opt, s);
    ok(st == (bad ? LKS_ERR_STATE : LKS_OK) && value(&r, 0) == -1, "which is refused there, and skipped everywhere");
    lks_error_clear(r.ctx);
    ok(lks_scaler_update(s) == (n > 1 ? LKS_OK : LKS_ERR_STATE), "each rank updates");
    lks_error_clear(r.ctx);
    lks_params_zero_grad(r.ps);
    if (n == 1) lks_dp_destroy(&r.dp); /* its window was not stepped */
    if (n > 1)
        ok(backward(&r, (double[]){1}, 1, 1) == LKS_OK && step(&r) == LKS_OK && value(&r, 0) == -2 &&
               lks_dp_check(r.dp) == LKS_OK,
           "and the next step is taken by all");
    rig_close(&r);
}

typedef struct lonely {
    rig *r;
    int calls;
} lonely;

/* Without reductions; in its first call the last rank has no gradient, and the first an infinite one. */
static lks_status lonely_batch(void *user)
{
    lonely *l = user;
    rig *r = l->r;
    int first = l->calls++ == 0;
    lks_params_zero_grad(r->ps);
    if (first && r->me == r->n - 1) return LKS_OK;
    lks_scope_begin(r->ctx);
    lks_tensor *loss = lks_scaler_scale(r->s, loss_of(r, (double[]){first ? INFINITY : 1}, 1));
    lks_status st = lks_backward(loss, LKS_NONE, 0);
    lks_scope_end(r->ctx);
    return st;
}

static void retry_alone(void)
{
    rig r;
    rig_open(&r, 1, LKS_F32, 0, 1);
    lks_dp_destroy(&r.dp);
    lks_scaler_create(r.ctx, 1, &r.s);
    if (r.n > 1) {
        lonely l = {.r = &r};
        int outcome = 0;
        double scale = 0;
        ok(lks_optim_step_retry(r.opt, r.s, 2, lonely_batch, &l, &outcome) == LKS_OK && l.calls == 2 &&
               outcome == LKS_STEPPED && value(&r, 0) == 0,
           "a rank without gradients tries again with the others");
        ok(lks_error_code(r.ctx) == LKS_OK, "no error is left of the try that counts no more (%s)", lks_error(r.ctx));
        lks_error_clear(r.ctx);
        ok(lks_scaler_get(r.s, &scale, NULL) == LKS_OK && scale == 32768, "and holds their scale");
    }
    rig_close(&r);
}

static void weight_on_device(void)
{
    rig r;
    ok(rig_open(&r, 1, LKS_F32, 0, 16), "create");
    lks_scope_begin(r.ctx);
    lks_tensor *three = lks_full(r.ctx, LKS_F32, 0, NULL, 3), *five = lks_full(r.ctx, LKS_I64, 1, (int64_t[]){1}, 5);
    double g = 1;
    int good = lks_dp_backward(r.dp, NULL, loss_of(&r, &g, 3), 0, three, 0) == LKS_OK &&
               lks_dp_backward(r.dp, NULL, loss_of(&r, &g, 2), 2, LKS_NONE, 0) == LKS_OK &&
               lks_dp_backward(r.dp, NULL, loss_of(&r, &g, 5), 0, five, 1) == LKS_OK;
    lks_scope_end(r.ctx);
    ok(good && step(&r) == LKS_OK && fabs(value(&r, 0)) < 1e-6, "weights in device memory and on the host add up");
    ok(backward(&r, &g, 0, 1) == LKS_OK && step(&r) == LKS_OK && fabs(value(&r, 0)) < 1e-6,
       "no samples anywhere: nothing changes");
    rig_close(&r);
}

static void frozen(void)
{
    lks_context *ctx = open_context(20);
    int n = lks_size(ctx);
    lks_params *ps;
    lks_tensor *p[5];
    lks_dp *dp = NULL;
    lks_optim *opt = NULL;
    lks_params_create(ctx, &ps);
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        lks_params_add(ps, name, i == 3 ? LKS_F64 : LKS_F32, 1, (int64_t[]){6}, &p[i]);
    }
    lks_params_set_trainable(ps, 3, 0);
    lks_params_zero_grad(ps);
    ok(lks_dp_create(ps, 0, &dp) == LKS_OK && lks_dp_set_nominal(dp, 1) == LKS_OK &&
           lks_optim_create(ps, LKS_SGD, &opt) == LKS_OK,
       "B89: the last parameter is float64 and frozen");
    int64_t sum = 0;
    for (int i = 0; i < lks_dp_bucket_count(dp); i++) sum += lks_dp_bucket_numel(dp, i);
    is_int(sum, 18, "B89: it is in no bucket");
    lks_optim_set_lr(opt, -1, 1);
    double v = 0, w = 0;
    for (int round = 0; round < 3; round++) {
        lks_scope_begin(ctx);
        lks_tensor *loss =
            lks_add(lks_sum(p[0], 0, NULL, 0, LKS_DTYPE_NONE), lks_sum(p[1], 0, NULL, 0, LKS_DTYPE_NONE));
        if (round) loss = lks_add(loss, lks_to(lks_sum(p[3], 0, NULL, 0, LKS_DTYPE_NONE), LKS_F32));
        int good = lks_dp_backward(dp, NULL, loss, 1, LKS_NONE, 1) == LKS_OK && lks_optim_step(opt, NULL) == LKS_OK &&
                   lks_item(lks_narrow(p[0], 0, 0, 1), &v) == LKS_OK &&
                   lks_item(lks_narrow(p[3], 0, 5, 1), &w) == LKS_OK;
        lks_scope_end(ctx);
        static const double want0[3] = {-1, -2, -2}, want3[3] = {0, -1, -2};
        ok(good && v == want0[round] && w == want3[round], "B89: %s",
           round == 0   ? "reduction completes"
           : round == 1 ? "unfrozen: in a bucket, reduced, updated"
                        : "another is frozen");
        lks_params_set_trainable(ps, 3, 1);
        if (round == 1) lks_params_set_trainable(ps, 0, 0);
        lks_params_zero_grad(ps);
    }
    if (n > 1) {
        /* Flags that differ over ranks are named at the next reduction. */
        if (lks_rank(ctx) == 0) lks_params_set_trainable(ps, 1, 0);
        lks_params_set_trainable(ps, 0, 1);
        lks_params_zero_grad(ps);
        lks_scope_begin(ctx);
        lks_status st = lks_dp_backward(dp, NULL, lks_sum(p[2], 0, NULL, 0, LKS_DTYPE_NONE), 1, LKS_NONE, 1);
        lks_scope_end(ctx);
        ok(st == LKS_ERR_MISMATCH && strstr(lks_error(ctx), "\"p1\"") && strstr(lks_error(ctx), "frozen"),
           "B89: frozen on one rank only: an error on every rank that names it");
    } else {
        skip(1, "needs several ranks");
    }
    lks_optim_destroy(&opt);
    lks_dp_destroy(&dp);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
}

static void signatures(void)
{
    lks_context *ctx = open_context(20);
    int n = lks_size(ctx), me = lks_rank(ctx);
    if (n == 1) {
        skip(3, "needs several ranks");
        lks_context_destroy(&ctx);
        return;
    }
    for (int kind = 0; kind < 3; kind++) {
        lks_params *ps;
        lks_tensor *t;
        lks_dp *dp = NULL;
        int odd = me == n - 1;
        lks_params_create(ctx, &ps);
        lks_params_add(ps, "first", LKS_F32, 1, (int64_t[]){4}, &t);
        if (kind == 0) lks_params_add(ps, "wide", LKS_F32, 1, (int64_t[]){odd ? 200 : 100}, &t);
        if (kind == 1) lks_params_add(ps, odd ? "left" : "right", LKS_F32, 1, (int64_t[]){4}, &t);
        if (kind == 2 && odd) lks_params_add(ps, "extra", LKS_BF16, 1, (int64_t[]){4}, &t);
        lks_status st = lks_dp_create(ps, 0, &dp);
        const char *text = lks_error(ctx);
        static const char *const a[3] = {"float32[100]", "\"left\"", "\"extra\" bfloat16[4]"};
        static const char *const b[3] = {"float32[200]", "\"right\"", "nothing (it has 1)"};
        ok(st == LKS_ERR_MISMATCH && !dp && strstr(text, a[kind]) && strstr(text, b[kind]),
           "B109: %s differ: every rank names both sides", kind == 0 ? "shapes" : kind == 1 ? "names" : "numbers");
        lks_error_clear(ctx);
        lks_params_destroy(&ps);
    }
    lks_context_destroy(&ctx);
}

static void drift(void)
{
    rig r;
    ok(rig_open(&r, 3, LKS_F32, 0, 1) && lks_dp_check(r.dp) == LKS_OK, "B96: the same bits at first");
    float v[5] = {1, 1, nextafterf(1, 2), 1, 1};
    lks_no_grad_begin(r.ctx);
    if (r.me == r.n - 1) lks_set_from_host(r.p[1], v, sizeof v);
    lks_no_grad_end(r.ctx);
    lks_status st = lks_dp_check(r.dp);
    ok(r.n == 1 ? st == LKS_OK : st == LKS_ERR_DRIFT && strstr(lks_error(r.ctx), "\"p1\""),
       "B96: 1 ulp on one rank is found and the parameter named");
    rig_close(&r);
}

static void buffers(void)
{
    lks_context *ctx = open_context(20);
    int n = lks_size(ctx), me = lks_rank(ctx);
    lks_params *ps;
    lks_tensor *w, *mean;
    lks_dp *dp = NULL;
    lks_optim *opt = NULL;
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, 1, (int64_t[]){2}, &w);
    lks_params_add_buffer(ps, "mean", LKS_F32, 1, (int64_t[]){3}, &mean);
    int good = lks_fill_(mean, 10 + me) == LKS_OK && lks_dp_create(ps, 0, &dp) == LKS_OK &&
               lks_dp_set_nominal(dp, 1) == LKS_OK && lks_optim_create(ps, LKS_SGD, &opt) == LKS_OK;
    double v = 0;
    lks_scope_begin(ctx);
    good = good && lks_item(lks_narrow(mean, 0, 2, 1), &v) == LKS_OK;
    ok(good && v == 10, "buffers are those of rank 0");
    for (int round = 0; round < 3; round++) {
        /* 0: all ranks stage their number; 1: all but the last; 2: the step is skipped. */
        int stages = round != 1 || n == 1 || me < n - 1;
        lks_tensor *staged = stages ? lksi_params_staged(ps, 1) : NULL;
        if (stages) good = good && staged && lks_fill_(staged, round * 100 + me) == LKS_OK;
        lks_tensor *loss = lks_mul_scalar(lks_sum(w, 0, NULL, 0, LKS_DTYPE_NONE), round == 2 && me == 0 ? INFINITY : 1);
        good = good && lks_dp_backward(dp, NULL, loss, 1, LKS_NONE, 1) == LKS_OK &&
               lks_optim_step(opt, NULL) == LKS_OK && lks_item(lks_narrow(mean, 0, 0, 1), &v) == LKS_OK;
        lks_params_zero_grad(ps);
        int ranks = round && n > 1 ? n - 1 : n;
        double want = round == 0 ? (n - 1) / 2.0 : 100 + (ranks - 1) / 2.0;
        ok(good && fabs(v - want) < 1e-4, "%s", round == 0   ? "staged buffers are averaged over ranks at the step"
                                                 : round == 1 ? "over those that staged some"
                                                              : "and dropped with a skipped step");
    }
    lks_scope_end(ctx);
    ok(lks_dp_check(dp) == LKS_OK, "buffers have the same bits");
    lks_optim_destroy(&opt);
    lks_dp_destroy(&dp);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
}

/* The k-th allocation fails on one rank in the middle of a step: an error somewhere, a hang nowhere. */
static void out_of_memory(void)
{
    int good = 1, failures = 0, n = 1;
    for (int k = 1; k <= 61; k += 4) {
        rig r;
        rig_open(&r, 2, LKS_F32, 16, 1);
        n = r.n;
        good &= backward(&r, (double[]){1, 1}, 1, 1) == LKS_OK && step(&r) == LKS_OK;
        good &= lks_synchronize(r.ctx) == LKS_OK;
        if (r.me == r.n - 1) r.ctx->base.fail_at = k;
        lks_status st = backward(&r, (double[]){1, 1}, 1, 1), st2 = step(&r);
        r.ctx->base.fail_at = 0;
        failures += st != LKS_OK || st2 != LKS_OK;
        double v = value(&r, 0);
        if (v != 0 && v != -1) diag("allocation %d: value %g, %d, %d: %s", k, v, st, st2, lks_error(r.ctx));
        good &= v == 0 || v == -1;
        rig_close(&r);
    }
    ok(good && (failures > 0 || n > 1), "an allocation that fails on one rank: nobody hangs, the step is taken or not");
}

int main(int argc, char **argv)
{
    if (argc > 1) device = argv[1];
    MPI_Init(&argc, &argv);
    tap_mpi(MPI_COMM_WORLD);
    means(LKS_F32, 1e-6);
    means(LKS_F64, 1e-14);
    means(LKS_BF16, 0.02);
    half_sums();
    uneven();
    absent();
    present();
    overflow();
    accumulation();
    buckets();
    contract();
    retry_alone();
    weight_on_device();
    frozen();
    signatures();
    drift();
    buffers();
    out_of_memory();
    int status = done();
    MPI_Finalize();
    return status;
}
