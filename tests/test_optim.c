/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_optim.c - optimizers against a reference of their own here, in double, that follows PyTorch's formulas; known
 * cases; what a skip, an absent gradient and a frozen parameter leave alone; reports; state for checkpoints. Started on
 * several ranks (optim.test) it runs the cases that need them instead. Gradients are written by hand.
 */
#include "grads.h"
#include "tap_mpi.h"

#include "table/step.h"

static lks_context *ctx;
static const char *device;

/* --- reference --- */

typedef struct hyper {
    int kind;
    double lr, wd, momentum, dampening, beta1, beta2, eps;
    int nesterov;
} hyper;

typedef struct reference {
    hyper h;
    int64_t n, t;
    double *p, *a, *b; /* parameter, momentum or exp_avg, exp_avg_sq */
} reference;

static void reference_step(reference *r, const double *g, double lr_factor, double clip, double bound)
{
    const hyper *h = &r->h;
    double lr = h->lr * lr_factor;
    r->t++;
    for (int64_t i = 0; i < r->n; i++) {
        double d = g[i] * clip;
        if (bound > 0 && d > bound) d = bound;
        if (bound > 0 && d < -bound) d = -bound;
        if (h->kind == LKS_SGD) {
            d += h->wd * r->p[i];
            if (h->momentum != 0) {
                r->a[i] = r->t == 1 ? d : h->momentum * r->a[i] + (1 - h->dampening) * d;
                d = h->nesterov ? d + h->momentum * r->a[i] : r->a[i];
            }
            r->p[i] -= lr * d;
            continue;
        }
        if (h->kind == LKS_ADAMW) r->p[i] -= lr * h->wd * r->p[i];
        else d += h->wd * r->p[i];
        r->a[i] = h->beta1 * r->a[i] + (1 - h->beta1) * d;
        r->b[i] = h->beta2 * r->b[i] + (1 - h->beta2) * d * d;
        double m = r->a[i] / (1 - pow(h->beta1, (double)r->t)), v = r->b[i] / (1 - pow(h->beta2, (double)r->t));
        r->p[i] -= lr * m / (sqrt(v) + h->eps);
    }
}

static double reference_lr(int kind, int64_t warmup, int64_t total, double final, double gamma, int64_t period,
                           int64_t k)
{
    if (k < warmup) return (double)(k + 1) / (double)warmup;
    double t = fmin(1, (double)(k - warmup) / fmax(1, (double)(total - warmup)));
    switch (kind) {
    case LKS_SCHEDULE_LINEAR: return 1 - t * (1 - final);
    case LKS_SCHEDULE_COSINE: return final + (1 - final) * (1 + cos(acos(-1) * t)) / 2;
    case LKS_SCHEDULE_STEP: return pow(gamma, floor((double)(k - warmup) / (double)period));
    default: return 1;
    }
}

/* Reproducible numbers in [-1, 1). */
static double noise(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*s >> 11) / (double)(INT64_C(1) << 52) - 1;
}

/* --- help --- */

static void apply(lks_optim *opt, const hyper *h)
{
    lks_optim_set_lr(opt, -1, h->lr);
    lks_optim_set_weight_decay(opt, -1, h->wd);
    if (h->kind == LKS_SGD) lks_optim_set_momentum(opt, -1, h->momentum, h->dampening, h->nesterov);
    else {
        lks_optim_set_betas(opt, -1, h->beta1, h->beta2);
        lks_optim_set_eps(opt, -1, h->eps);
    }
}

/* A set of n parameters "p0".. of the given sizes (0: 0-dim) and one optimizer. */
static lks_params *make(int kind, int n, const lks_dtype *dtype, const int64_t *size, lks_tensor **w, lks_optim **opt)
{
    lks_params *ps;
    char name[16];
    lks_params_create(ctx, &ps);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "p%d", i);
        if (!good(ctx, lks_params_add(ps, name, dtype[i], size[i] > 0, &size[i], &w[i]))) bail("params_add");
    }
    if (!good(ctx, lks_optim_create(ps, kind, opt))) bail("optim_create");
    return ps;
}

static void drop(lks_params *ps, lks_optim *opt)
{
    lks_optim_destroy(&opt);
    lks_params_destroy(&ps);
}

static const int64_t scalar[4] = {0, 0, 0, 0};
static const lks_dtype f32x4[4] = {LKS_F32, LKS_F32, LKS_F32, LKS_F32};

typedef struct report {
    lks_status status;
    int outcome;
    double norm, scale, lr;
    int64_t applied, skipped;
} report;

static report last(lks_optim *opt)
{
    report r = {0};
    r.status =
        lks_optim_report(opt, lks_optim_attempts(opt), &r.outcome, &r.norm, &r.scale, &r.lr, &r.applied, &r.skipped);
    return r;
}

/* First element of a state block. */
static double state_of(lks_params *ps, lks_optim *opt, const char *name, int64_t at)
{
    (void)ps;
    for (int i = 0; i < lksi_optim_block_count(opt); i++) {
        lksi_state_block b;
        lksi_optim_block(opt, i, &b);
        if (strcmp(b.name, name)) continue;
        float f = NAN;
        double d = NAN;
        if (b.dtype == LKS_F64) lksi_device_read(ctx->dev, &d, b.data + at * 8, 8);
        else lksi_device_read(ctx->dev, &f, b.data + at * 4, 4);
        return b.dtype == LKS_F64 ? d : (double)f;
    }
    return NAN;
}

/* --- against the reference --- */

/* 25 steps of parameters whose sizes cross chunks and padding; returns the largest error relative to lr (an update is
 * of that order). */
static double compare(const hyper *h, lks_dtype dtype, double clip_norm, double clip_value, int schedule)
{
    enum { N = 5, STEPS = 25 };
    static const int64_t size[N] = {1, 63, LKSI_STEP_CHUNK + 5, 0, 40000};
    lks_dtype dt[N] = {dtype, dtype, dtype, dtype, dtype};
    lks_tensor *w[N];
    lks_optim *opt;
    lks_params *ps = make(h->kind, N, dt, size, w, &opt);
    reference r[N];
    double *g[N], *x = calloc(40000, sizeof *x), worst = 0;
    uint64_t seed = 7;
    apply(opt, h);
    lks_optim_set_clip_norm(opt, clip_norm);
    lks_optim_set_clip_value(opt, clip_value);
    if (schedule >= 0) lks_optim_set_schedule(opt, schedule, 4, 20, 0.1, 0.7, 3);
    for (int k = 0; k < N; k++) {
        int64_t n = size[k] ? size[k] : 1;
        r[k] = (reference){
            .h = *h, .n = n, .p = calloc((size_t)n, 8), .a = calloc((size_t)n, 8), .b = calloc((size_t)n, 8)};
        g[k] = calloc((size_t)n, 8);
        for (int64_t i = 0; i < n; i++) r[k].p[i] = noise(&seed);
        put(w[k], r[k].p);
        get(w[k], r[k].p); /* as rounded */
    }
    for (int s = 0; s < STEPS; s++) {
        double squares = 0;
        for (int k = 0; k < N; k++) {
            for (int64_t i = 0; i < r[k].n; i++) g[k][i] = noise(&seed) * (i % 7 ? 0.1 : 1);
            put_grad(w[k], g[k]);
            get(w[k]->grad, g[k]); /* as rounded */
            for (int64_t i = 0; i < r[k].n; i++) squares += g[k][i] * g[k][i];
        }
        double norm = sqrt(squares), clip = clip_norm > 0 ? fmin(1, clip_norm / (norm + 1e-6)) : 1;
        double factor = schedule < 0 ? 1 : reference_lr(schedule, 4, 20, 0.1, 0.7, 3, s);
        for (int k = 0; k < N; k++) reference_step(&r[k], g[k], factor, clip, clip_value);
        if (!good(ctx, lks_optim_step(opt, NULL))) break;
        report now = last(opt);
        worst = fmax(worst, fabs(now.norm - norm) / norm);
        worst = fmax(worst, fabs(now.lr - h->lr * factor) / h->lr);
        if (now.outcome != LKS_STEPPED || now.applied != s + 1) worst = 1e9;
    }
    int reduced = dtype == LKS_F16 || dtype == LKS_BF16;
    for (int k = 0; k < N; k++) {
        int64_t at = ps->arena[dtype]->slice[k].offset;
        get(w[k], x);
        for (int64_t i = 0; i < r[k].n; i++) {
            double got = x[i];
            if (reduced) { /* the master is the parameter; what is in the arena is its rounding */
                got = i < 20 || i > r[k].n - 20 ? state_of(ps, opt, "master", at + i) : r[k].p[i];
                float f = (float)got;
                double rounded = dtype == LKS_F16 ? (double)lksi_f16_to_f32(lksi_f32_to_f16(f))
                                                  : (double)lksi_bf16_to_f32(lksi_f32_to_bf16(f));
                if (rounded != x[i] && (i < 20 || i > r[k].n - 20)) worst = 1e9;
            }
            worst = fmax(worst, fabs(got - r[k].p[i]) / h->lr);
        }
        free(r[k].p);
        free(r[k].a);
        free(r[k].b);
        free(g[k]);
    }
    free(x);
    drop(ps, opt);
    return worst;
}

static void formulas(void)
{
    static const struct { const char *name; hyper h; } list[] = {
        {"sgd", {LKS_SGD, 0.1, 0, 0, 0, 0, 0, 0, 0}},
        {"sgd, weight decay", {LKS_SGD, 0.1, 0.05, 0, 0, 0, 0, 0, 0}},
        {"sgd, momentum", {LKS_SGD, 0.1, 0.01, 0.9, 0, 0, 0, 0, 0}},
        {"sgd, dampening", {LKS_SGD, 0.1, 0, 0.8, 0.3, 0, 0, 0, 0}},
        {"sgd, nesterov", {LKS_SGD, 0.1, 0.01, 0.9, 0, 0, 0, 0, 1}},
        {"adam", {LKS_ADAM, 1e-2, 0, 0, 0, 0.9, 0.999, 1e-8, 0}},
        {"adam, weight decay", {LKS_ADAM, 1e-2, 0.1, 0, 0, 0.8, 0.99, 1e-6, 0}},
        {"adamw", {LKS_ADAMW, 1e-2, 0.1, 0, 0, 0.9, 0.999, 1e-8, 0}},
        {"adamw, other betas", {LKS_ADAMW, 1e-2, 0.3, 0, 0, 0.5, 0.9, 1e-3, 0}},
    };
    static const struct { lks_dtype dtype; double tolerance; } dtype[] = {
        {LKS_F32, 5e-4}, {LKS_F64, 1e-11}, {LKS_F16, 5e-4}, {LKS_BF16, 5e-4}};
    for (int i = 0; i < 9; i++)
        for (int d = 0; d < 4; d++) {
            if (d > 1 && i % 3 != 1) continue;
            double e = compare(&list[i].h, dtype[d].dtype, 0, 0, -1);
            ok(e < dtype[d].tolerance, "%s in %s: error %g lr", list[i].name, lks_dtype_name(dtype[d].dtype), e);
        }
    double e = compare(&list[7].h, LKS_F32, 0.5, 0, -1);
    ok(e < 1e-3, "adamw, clip by norm: error %g lr", e);
    e = compare(&list[2].h, LKS_F32, 0, 0.01, -1);
    ok(e < 1e-3, "sgd, clip by value: error %g lr", e);
    e = compare(&list[2].h, LKS_F64, 2, 0.01, -1);
    ok(e < 1e-11, "sgd, norm before value: error %g lr", e);
    for (int s = 0; s < 4; s++) {
        e = compare(&list[7].h, LKS_F64, 0, 0, s);
        ok(e < 1e-11, "adamw under schedule %d: error %g lr", s, e);
    }
}

static void schedules(void)
{
    double worst = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int64_t warmup = 0; warmup <= 12; warmup += 4)
            for (int64_t total = 0; total <= 100; total += 10) {
                lksi_settings o = {.schedule = kind,
                                   .warmup = warmup,
                                   .total = total,
                                   .final_factor = 0.05,
                                   .gamma = 0.9,
                                   .period = 7};
                for (int64_t k = 0; k < 120; k++)
                    worst = fmax(
                        worst, fabs(lksi_lr_factor(&o, NULL, k) - reference_lr(kind, warmup, total, 0.05, 0.9, 7, k)));
            }
    ok(worst < 1e-15, "learning rates against libm: error %g", worst);
    lksi_settings o = {.schedule = LKS_SCHEDULE_COSINE, .total = 10};
    ok(lksi_lr_factor(&o, NULL, 0) == 1 && fabs(lksi_lr_factor(&o, NULL, 5) - 0.5) < 1e-16 &&
           lksi_lr_factor(&o, NULL, 10) == 0,
       "cosine: 1, 1/2, 0");
}

/* --- settings --- */

static void settings(void)
{
    lks_params *ps;
    lks_optim *opt = NULL;
    lks_tensor *w[4], *buffer;
    is_int(lks_optim_kind_from_name("sgd"), LKS_SGD, "sgd");
    is_int(lks_optim_kind_from_name("adam"), LKS_ADAM, "adam");
    is_int(lks_optim_kind_from_name("adamw"), LKS_ADAMW, "adamw");
    is_int(lks_optim_kind_from_name("adamax"), LKS_ERR_NOT_FOUND, "unknown kind");
    lks_params_create(ctx, &ps);
    ok(fails(ctx, lks_optim_create(ps, LKS_SGD, &opt), LKS_ERR_ARGUMENT, "no parameters", NULL) && !opt,
       "an empty set");
    lks_params_add(ps, "w", LKS_F32, 0, NULL, &w[0]);
    lks_params_add_buffer(ps, "b", LKS_F32, 0, NULL, &buffer);
    lks_params_add(ps, "v", LKS_F32, 0, NULL, &w[1]);
    ok(fails(ctx, lks_optim_create(ps, 7, &opt), LKS_ERR_ARGUMENT, "7", NULL), "an unknown kind");
    ok(good(ctx, lks_optim_create(ps, LKS_SGD, &opt)), "create");
    ok(fails(ctx, lks_params_add(ps, "x", LKS_F32, 0, NULL, &w[2]), LKS_ERR_STATE, NULL, NULL), "which seals");
    ok(fails(ctx, lks_optim_set_lr(opt, -1, -1), LKS_ERR_ARGUMENT, "lr", "-1"), "lr");
    ok(fails(ctx, lks_optim_set_lr(opt, -1, NAN), LKS_ERR_ARGUMENT, "lr", NULL), "lr NaN");
    ok(fails(ctx, lks_optim_set_lr(opt, 1, 1), LKS_ERR_ARGUMENT, "group 1", NULL), "group");
    ok(fails(ctx, lks_optim_set_weight_decay(opt, 0, -0.1), LKS_ERR_ARGUMENT, "weight decay", NULL), "weight decay");
    ok(fails(ctx, lks_optim_set_betas(opt, 0, 1, 0.5), LKS_ERR_ARGUMENT, "betas", NULL), "beta1");
    ok(fails(ctx, lks_optim_set_betas(opt, 0, 0.5, -0.5), LKS_ERR_ARGUMENT, "betas", NULL), "beta2");
    ok(fails(ctx, lks_optim_set_eps(opt, 0, -1e-8), LKS_ERR_ARGUMENT, "eps", NULL), "eps");
    ok(fails(ctx, lks_optim_set_momentum(opt, 0, -1, 0, 0), LKS_ERR_ARGUMENT, "momentum", NULL), "momentum");
    ok(fails(ctx, lks_optim_set_momentum(opt, 0, 0, 0, 1), LKS_ERR_ARGUMENT, "nesterov", NULL),
       "nesterov without momentum");
    ok(fails(ctx, lks_optim_set_momentum(opt, 0, 0.9, 0.1, 1), LKS_ERR_ARGUMENT, "nesterov", NULL),
       "nesterov with dampening");
    ok(fails(ctx, lks_optim_set_clip_norm(opt, -1), LKS_ERR_ARGUMENT, NULL, NULL), "clip norm");
    ok(fails(ctx, lks_optim_set_clip_value(opt, INFINITY), LKS_ERR_ARGUMENT, NULL, NULL), "clip value");
    ok(fails(ctx, lks_optim_set_schedule(opt, 9, 0, 0, 0, 1, 1), LKS_ERR_ARGUMENT, "9", NULL), "schedule");
    ok(fails(ctx, lks_optim_set_schedule(opt, LKS_SCHEDULE_STEP, 0, 0, 0, 0.1, 0), LKS_ERR_ARGUMENT, "period", NULL),
       "period");
    int one[] = {1}, twice[] = {2, 2}, out[] = {7}, vs[] = {2};
    ok(fails(ctx, lks_optim_add_group(opt, 1, one), LKS_ERR_ARGUMENT, "1", NULL), "a buffer in a group");
    ok(fails(ctx, lks_optim_add_group(opt, 2, twice), LKS_ERR_ARGUMENT, "twice", "\"v\""), "a parameter twice");
    ok(fails(ctx, lks_optim_add_group(opt, 1, out), LKS_ERR_ARGUMENT, "7", NULL), "an index out of range");
    char before[600];
    snprintf(before, sizeof before, "%s", lksi_optim_kind_name(opt));
    lks_optim_set_lr(opt, -1, 1);
    lks_optim_set_weight_decay(opt, -1, 1);
    is_str(lksi_optim_kind_name(opt), before, "lr and decay are no part of the description");
    is_int(lks_optim_add_group(opt, 1, vs), 1, "a new group");
    ok(strcmp(lksi_optim_kind_name(opt), before) != 0, "groups are: %s", lksi_optim_kind_name(opt));
    lks_optim_set_lr(opt, 1, 0.25);
    lks_optim_set_weight_decay(opt, -1, 0);
    put_grad1(w[0], 1);
    put_grad1(w[1], 1);
    ok(good(ctx, lks_optim_step(opt, NULL)) && get1(w[0]) == -1 && get1(w[1]) == -0.25,
       "each group by its own settings");
    ok(last(opt).lr == 1, "the lr of group 0 is reported");
    ok(fails(ctx, lks_optim_add_group(opt, 1, vs), LKS_ERR_STATE, "lks_optim_step", NULL),
       "no group after the first step");
    drop(ps, opt);
}

/* --- what is left alone --- */

static void presence(void)
{
    lks_tensor *w[4];
    lks_optim *opt;
    hyper h = {LKS_ADAMW, 0.1, 0.1, 0, 0, 0.9, 0.999, 1e-8, 0};
    lks_params *ps = make(LKS_ADAMW, 2, f32x4, scalar, w, &opt);
    apply(opt, &h);
    put(w[0], (double[]){1});
    put(w[1], (double[]){1});
    /* B75 */
    put_grad1(w[1], 0);
    double garbage = 5;
    put(w[0]->grad_slot, &garbage); /* memory of an absent gradient may hold anything */
    ok(good(ctx, lks_optim_step(opt, NULL)), "step");
    lksi_optim_saved s = {.param_applied = (int64_t[2]){-1, -1}};
    ok(good(ctx, lksi_optim_read(opt, &s)), "read");
    ok(get1(w[0]) == 1 && s.param_applied[0] == 0 && state_of(ps, opt, "exp_avg", 0) == 0,
       "B75 absent: no decay, no count");
    ok(get1(w[1]) == (double)0.99f && s.param_applied[1] == 1, "B75 present and zero: decay and count (%.9g)",
       get1(w[1]));
    ok(last(opt).norm == 0, "an absent gradient is in no norm");
    /* bias correction goes by each parameter's own count */
    put_grad1(w[0], 3);
    put_grad1(w[1], 3);
    double before = get1(w[0]);
    lks_optim_step(opt, NULL);
    is_double(get1(w[0]), before * 0.99 - 0.1, 1e-6, "the first update of a late parameter is lr");
    /* B05, one process */
    lks_params_zero_grad(ps);
    int64_t n, m;
    char *a = snapshot(ps, opt, 0, &n);
    ok(fails(ctx, lks_optim_step(opt, NULL), LKS_ERR_NO_GRADIENTS, "gradient", NULL), "B05 no gradients");
    char *b = snapshot(ps, opt, 0, &m);
    report r = last(opt);
    ok(!memcmp(a, b, (size_t)n) && r.outcome == LKS_NOTHING && r.applied == 2 && r.skipped == 0, "B05 nothing changes");
    free(a);
    free(b);
    lks_scaler *scaler;
    lks_scaler_create(ctx, 1, &scaler);
    lks_optim *other;
    lks_tensor *v[4];
    lks_params *qs = make(LKS_SGD, 1, f32x4, scalar, v, &other);
    put_grad1(v[0], 65536);
    ok(good(ctx, lks_optim_step(other, scaler)) &&
           fails(ctx, lks_optim_step(opt, scaler), LKS_ERR_NO_GRADIENTS, NULL, NULL) &&
           good(ctx, lks_scaler_update(scaler)),
       "B05 A steps, B has none, update");
    int64_t tracker = -1;
    lks_scaler_get(scaler, NULL, &tracker);
    ok(tracker == 1 && get1(v[0]) == (double)-0.01f, "B05 A counted");
    ok(fails(ctx, lks_optim_step(opt, scaler), LKS_ERR_NO_GRADIENTS, NULL, NULL) &&
           good(ctx, lks_scaler_update(scaler)) && lks_scaler_get(scaler, NULL, &tracker) == LKS_OK && tracker == 1,
       "B05 an update after nothing but nothing credits nothing");
    drop(qs, other);
    lks_scaler_destroy(&scaler);
    drop(ps, opt);

    /* B89: frozen parameters, here the only one of its dtype */
    lks_dtype dt[4] = {LKS_F32, LKS_F32, LKS_F32, LKS_F64};
    ps = make(LKS_ADAMW, 4, dt, scalar, w, &opt);
    apply(opt, &h);
    for (int i = 0; i < 4; i++) put(w[i], (double[]){2});
    lks_params_set_trainable(ps, 3, 0);
    lks_params_zero_grad(ps);
    for (int i = 0; i < 3; i++) put_grad1(w[i], 1);
    put(w[3]->grad_slot, (double[]){NAN});
    ok(good(ctx, lks_optim_step(opt, NULL)) && last(opt).outcome == LKS_STEPPED && get1(w[3]) == 2 && get1(w[0]) < 2,
       "B89 a frozen parameter is neither read nor updated");
    lks_params_set_trainable(ps, 3, 1);
    lks_params_set_trainable(ps, 0, 0);
    lks_params_zero_grad(ps);
    double first = get1(w[0]);
    for (int i = 1; i < 4; i++) put_grad1(w[i], 1);
    ok(good(ctx, lks_optim_step(opt, NULL)) && get1(w[3]) < 2 && get1(w[0]) == first,
       "B89 unfrozen and frozen the other way round");
    drop(ps, opt);
}

/* A skip leaves every bit; padding stays zero. */
static void skipping(void)
{
    static const int64_t size[4] = {5, 70, 20000, 1};
    static const lks_dtype dt[4] = {LKS_F32, LKS_BF16, LKS_F32, LKS_F64};
    static const double bad[] = {INFINITY, -INFINITY, NAN};
    for (int kind = LKS_SGD; kind <= LKS_ADAMW; kind++) {
        lks_tensor *w[4];
        lks_optim *opt;
        lks_params *ps = make(kind, 4, dt, size, w, &opt);
        double *g = calloc(20000, sizeof *g);
        uint64_t seed = 3;
        if (kind == LKS_SGD) lks_optim_set_momentum(opt, -1, 0.9, 0, 0);
        int same = 1, ran = 1;
        for (int s = 0; s < 9; s++) {
            for (int k = 0; k < 4; k++) {
                for (int64_t i = 0; i < size[k]; i++) g[i] = noise(&seed);
                if (s % 2 && k == s / 2) g[size[k] - 1] = bad[s % 3];
                put_grad(w[k], g);
            }
            int64_t n, m;
            char *a = snapshot(ps, opt, 1, &n);
            lks_optim_step(opt, NULL);
            char *b = snapshot(ps, opt, 1, &m);
            int equal = !memcmp(a, b, (size_t)n);
            same &= s % 2 == 0 || (equal && last(opt).outcome == LKS_SKIPPED_HERE && isinf(last(opt).norm));
            ran &= s % 2 == 1 || (!equal && last(opt).outcome == LKS_STEPPED);
            free(a);
            free(b);
        }
        lksi_optim_saved saved = {.param_applied = (int64_t[4]){0}};
        lksi_optim_read(opt, &saved);
        ok(same && ran && saved.applied == 5 && saved.skipped == 4 && saved.param_applied[2] == 5,
           "kind %d: skips keep every bit", kind);
        int clean = 1;
        for (int k = 0; k < 4; k++) {
            lksi_arena *a = ps->arena[k];
            if (!a) continue;
            int es = lks_dtype_size(k);
            char *v = calloc((size_t)a->count, (size_t)es);
            lksi_device_read(ctx->dev, v, a->value, a->count * es);
            for (int i = 0; i < a->slices; i++)
                memset(v + a->slice[i].offset * es, 0, (size_t)(a->slice[i].numel * es));
            for (int64_t i = 0; i < a->count * es; i++) clean &= v[i] == 0;
            free(v);
        }
        ok(clean, "kind %d: padding stays 0", kind);
        free(g);
        drop(ps, opt);
    }
    /* the check switched off */
    lks_tensor *w[4];
    lks_optim *opt;
    lks_params *ps = make(LKS_SGD, 2, f32x4, scalar, w, &opt);
    lks_optim_set_check_finite(opt, 0);
    put_grad1(w[0], INFINITY);
    put_grad1(w[1], 1);
    ok(good(ctx, lks_optim_step(opt, NULL)) && last(opt).outcome == LKS_STEPPED && isinf(get1(w[0])) && get1(w[1]) < 0,
       "check_finite 0 steps");
    lks_scaler *s;
    lks_scaler_create(ctx, 1, &s);
    lks_optim_step(opt, s);
    ok(last(opt).outcome == LKS_SKIPPED_HERE, "but not with a scaler");
    lks_scaler_destroy(&s);
    drop(ps, opt);
}

/* Twins: valid ones are rewritten by the step, stale ones stay stale, a skip leaves both alone. */
static void twins(void)
{
    static const int64_t size[4] = {100, 3, 0, 0};
    lks_tensor *w[4];
    lks_optim *opt;
    lks_params *ps = make(LKS_ADAM, 2, f32x4, size, w, &opt);
    lksi_arena *a = ps->arena[LKS_F32];
    int b, f;
    double g[100], x[100], y[100], z[100];
    lksi_arena_twin(a, LKS_BF16, &b);
    lksi_arena_twin(a, LKS_F16, &f);
    for (int i = 0; i < 100; i++) g[i] = i - 50;
    put_grad(w[0], g);
    put_grad(w[1], g);
    a->slice[0].twin_version[b] = a->slice[0].twin_version[f] = w[0]->st->version; /* as if filled: both are 0 */
    int64_t version = w[0]->st->version;
    ok(good(ctx, lks_optim_step(opt, NULL)), "step with twins");
    get(w[0], x);
    get(a->slice[0].twin[b], y);
    get(a->slice[0].twin[f], z);
    int same = 1;
    for (int i = 0; i < 100; i++)
        same &= y[i] == (double)lksi_bf16_to_f32(lksi_f32_to_bf16((float)x[i])) &&
                z[i] == (double)lksi_f16_to_f32(lksi_f32_to_f16((float)x[i])) && x[i] != 0;
    ok(same || x[50] == 0, "twins are rounded copies");
    ok(w[0]->st->version > version && a->slice[0].twin_version[b] == w[0]->st->version, "and valid");
    ok(a->slice[1].twin_version[b] != w[1]->st->version, "one that was stale stays stale");
    g[0] = NAN;
    put_grad(w[0], g);
    lks_optim_step(opt, NULL);
    double x2[100], y2[100];
    get(w[0], x2);
    get(a->slice[0].twin[b], y2);
    ok(!memcmp(x, x2, sizeof x) && !memcmp(y, y2, sizeof y) && a->slice[0].twin_version[b] == w[0]->st->version,
       "a skip leaves value and twin, which stays valid");
    drop(ps, opt);
}

/* --- known cases --- */

static void cases(void)
{
    lks_tensor *w[4];
    lks_optim *opt;
    lks_scaler *s;
    lks_params *ps;
    const lks_dtype f16x4[4] = {LKS_F16, LKS_F16, LKS_F16, LKS_F16},
                    bf16x4[4] = {LKS_BF16, LKS_BF16, LKS_BF16, LKS_BF16};

    /* B11 */
    ps = make(LKS_SGD, 1, f32x4, scalar, w, &opt);
    lks_scaler_create(ctx, 1, &s);
    lks_optim_set_lr(opt, -1, 1e-3);
    lks_optim_set_schedule(opt, LKS_SCHEDULE_CONSTANT, 10, 0, 0, 1, 1);
    for (int i = 0; i < 4; i++) {
        put_grad1(w[0], i < 3 ? INFINITY : 65536.0 / 8);
        lks_optim_step(opt, s);
        lks_scaler_update(s);
    }
    report r = last(opt);
    ok(r.lr == 1e-3 * (1.0 / 10) && r.applied == 1 && r.skipped == 3 && lks_optim_attempts(opt) == 4 &&
           r.scale == 8192 && get1(w[0]) == -(double)(float)1e-4,
       "B11 the first applied step uses lr 1e-4 (%g)", r.lr);
    int64_t applied = 0;
    ok(good(ctx, lks_optim_applied(opt, &applied)) && applied == 1, "B11 applied counter");
    lks_scaler_destroy(&s);
    drop(ps, opt);

    /* B67 */
    static const int64_t three[4] = {3, 0, 0, 0};
    double x[3] = {1, -2, 0.5}, zero[3] = {0}, y[3];
    ps = make(LKS_ADAM, 1, f16x4, three, w, &opt);
    put(w[0], x);
    for (int i = 0; i < 3; i++) {
        put_grad(w[0], zero);
        good(ctx, lks_optim_step(opt, NULL));
    }
    get(w[0], y);
    ok(!memcmp(x, y, sizeof x), "B67 zero gradients in float16 move nothing");
    drop(ps, opt);

    /* B69 */
    ps = make(LKS_ADAM, 1, f16x4, scalar, w, &opt);
    put_grad1(w[0], 1000);
    lks_optim_step(opt, NULL);
    is_double(state_of(ps, opt, "exp_avg_sq", 0), 1000, 1e-4, "B69 second moment of g = 1000");
    is_double(state_of(ps, opt, "master", 0), -1e-3, 1e-9, "B69 update is -lr");
    drop(ps, opt);

    /* B70 */
    ps = make(LKS_ADAM, 1, bf16x4, scalar, w, &opt);
    lks_optim_set_lr(opt, -1, 6e-4);
    put(w[0], (double[]){1});
    for (int i = 0; i < 100; i++) {
        put_grad1(w[0], 1);
        lks_optim_step(opt, NULL);
    }
    is_double(state_of(ps, opt, "master", 0), 0.94, 1e-5, "B70 master after 100 steps");
    is_double(get1(w[0]), 0.94140625, 0, "B70 bfloat16 copy");
    drop(ps, opt);

    /* B72 */
    for (int i = 0; i < 2; i++) {
        ps = make(LKS_ADAM, 1, bf16x4, scalar, w, &opt);
        lks_optim_set_betas(opt, -1, 0.9, i ? 0.9999 : 0.999);
        for (int k = 0; k < 10; k++) {
            put_grad1(w[0], 1);
            lks_optim_step(opt, NULL);
        }
        is_double(state_of(ps, opt, "exp_avg_sq", 0), i ? 0.00099955012 : 0.0099551198, i ? 2e-10 : 2e-9,
                  "B72 beta2 %s", i ? "0.9999" : "0.999");
        drop(ps, opt);
    }

    /* B73 */
    ps = make(LKS_ADAM, 1, bf16x4, scalar, w, &opt);
    lksi_state_block blk;
    float one = 1;
    lksi_optim_block(opt, 1, &blk);
    lksi_device_write(ctx->dev, blk.data, &one, sizeof one);
    for (int i = 0; i < 1000; i++) {
        put_grad1(w[0], 0);
        lks_optim_step(opt, NULL);
    }
    ok(!strcmp(blk.name, "exp_avg_sq"), "B73 block");
    is_double(state_of(ps, opt, "exp_avg_sq", 0), 0.36769542, 1e-4, "B73 the second moment decays");
    drop(ps, opt);

    /* B76 */
    static const int64_t two[4] = {2, 0, 0, 0};
    for (int i = 0; i < 2; i++) {
        ps = make(LKS_ADAM, 1, i ? bf16x4 : f32x4, two, w, &opt);
        put(w[0], (double[]){1, 2});
        put_grad(w[0], (double[]){1, 1});
        lks_optim_step(opt, NULL);
        put_grad(w[0], (double[]){1, INFINITY});
        int64_t n, m;
        char *a = snapshot(ps, opt, 1, &n);
        lks_optim_step(opt, NULL);
        char *b = snapshot(ps, opt, 1, &m);
        ok(!memcmp(a, b, (size_t)n) && last(opt).outcome == LKS_SKIPPED_HERE, "B76 without a scaler, %s",
           i ? "bfloat16" : "float32");
        free(a);
        free(b);
        drop(ps, opt);
    }

    /* B77 */
    for (int i = 0; i < 2; i++) {
        ps = make(LKS_SGD, 1, f32x4, two, w, &opt);
        lks_scaler_create(ctx, 1, &s);
        lks_scaler_set_scale(s, 1024);
        lks_optim_set_lr(opt, -1, 1);
        lks_optim_set_clip_norm(opt, 1);
        put_grad(w[0], (double[]){3072, 4096});
        if (i) lks_optim_unscale(opt, s);
        lks_optim_step(opt, s);
        get(w[0], y);
        ok(last(opt).norm == 5 && fabs(y[0] + 0.6) < 1e-6 && fabs(y[1] + 0.8) < 1e-6, "B77 clip after unscale%s: %g %g",
           i ? " (explicit)" : "", y[0], y[1]);
        lks_scaler_destroy(&s);
        drop(ps, opt);
    }

    /* B79 */
    ps = make(LKS_SGD, 1, f32x4, two, w, &opt);
    lks_optim_set_clip_norm(opt, 1);
    put(w[0], (double[]){5, 6});
    put_grad(w[0], (double[]){INFINITY, 1});
    lks_optim_step(opt, NULL);
    get(w[0], y);
    double g[2];
    get(w[0]->grad, g);
    ok(isinf(last(opt).norm) && last(opt).outcome == LKS_SKIPPED_HERE && y[0] == 5 && y[1] == 6 && isinf(g[0]) &&
           g[1] == 1,
       "B79 norm inf reported, gradients untouched, skipped");
    lks_optim_set_check_finite(opt, 0);
    lks_optim_set_lr(opt, -1, 1);
    lks_optim_step(opt, NULL);
    get(w[0], y);
    ok(isinf(y[0]) && y[1] == 5, "B79 without the check nothing is scaled by 1/inf");
    drop(ps, opt);

    /* squares beyond float32, and doubles whose squares overflow */
    ps = make(LKS_SGD, 1, f32x4, two, w, &opt);
    put_grad(w[0], (double[]){3e38, 1e-30});
    lks_optim_step(opt, NULL);
    ok(last(opt).outcome == LKS_STEPPED && fabs(last(opt).norm / (double)3e38f - 1) < 1e-12, "the norm of huge floats");
    drop(ps, opt);
    const lks_dtype f64x4[4] = {LKS_F64, LKS_F64, LKS_F64, LKS_F64};
    ps = make(LKS_SGD, 1, f64x4, two, w, &opt);
    put_grad(w[0], (double[]){1e200, 1});
    lks_optim_step(opt, NULL);
    ok(last(opt).outcome == LKS_STEPPED && isinf(last(opt).norm) && get1(w[0]) == -1e200 * 0.01,
       "finite doubles step, also when their squares overflow");
    drop(ps, opt);

    /* B122 */
    ps = make(LKS_SGD, 1, bf16x4, scalar, w, &opt);
    lks_optim_set_lr(opt, -1, 1e-4);
    float master = 1.0001f;
    uint32_t bits;
    put(w[0], (double[]){1}); /* a load: values, blocks, then the rest, in the documented order */
    lksi_optim_block(opt, 0, &blk);
    lksi_device_write(ctx->dev, blk.data, &master, sizeof master);
    lksi_optim_saved saved = {.attempts = 3, .applied = 3, .param_applied = (int64_t[1]){3}};
    ok(good(ctx, lksi_optim_write(opt, &saved)), "B122 load");
    memcpy(&bits, &master, sizeof bits);
    ok(bits == 0x3f800347 && state_of(ps, opt, "master", 0) == (double)master, "B122 master after the load");
    put_grad1(w[0], 1);
    lks_optim_step(opt, NULL);
    is_double(state_of(ps, opt, "master", 0), 1, 0, "B122 master after the step");
    /* but a value written by the program renews the master */
    put(w[0], (double[]){3});
    lks_optim_set_lr(opt, -1, 1);
    lks_optim_step(opt, NULL);
    is_double(state_of(ps, opt, "master", 0), 2, 0, "a value written from outside is followed");
    /* a skip keeps what the master knows and the value does not */
    lks_optim_set_lr(opt, -1, 0x1p-20);
    lks_optim_step(opt, NULL);
    put_grad1(w[0], NAN);
    lks_optim_step(opt, NULL);
    put_grad1(w[0], 1);
    lks_optim_step(opt, NULL);
    is_double(state_of(ps, opt, "master", 0), 2 - 0x1p-19, 0, "masters survive a skip");
    drop(ps, opt);
}

/* --- weights: what a reducer hands over --- */

typedef struct fake {
    lksi_reducer r;
    double *weight; /* device */
    double nominal;
    int failed, finished, stepped;
    lks_status finish;
} fake;

static lks_status fake_finish(void *self)
{
    fake *f = self;
    f->finished++;
    return f->finish == LKS_OK ? LKS_OK : lksi_fail(&ctx->base, f->finish, "fake", "told to fail");
}
static int fake_failed(void *self) { return ((fake *)self)->failed; }
static const double *fake_weight(void *self) { return ((fake *)self)->weight; }
static double fake_nominal(void *self) { return ((fake *)self)->nominal; }
static void fake_stepped(void *self) { ((fake *)self)->stepped++; }

static void weights(void)
{
    lks_tensor *w[4];
    lks_optim *opt;
    lks_scaler *s;
    lks_params *ps = make(LKS_SGD, 2, f32x4, scalar, w, &opt);
    lks_scaler_create(ctx, 1, &s);
    lks_scaler_set_scale(s, 1024);
    lks_optim_set_lr(opt, -1, 1);
    fake f = {.nominal = 4};
    f.r = (lksi_reducer){&f, fake_finish, fake_failed, fake_weight, fake_nominal, fake_stepped, NULL, NULL, NULL};
    void *p;
    lksi_device_alloc(ctx->dev, sizeof(double), &p);
    f.weight = p;
    ps->reducer = &f.r;
    double one = 1, four = 4, two = 2, none = 0, nan = NAN;
    put(w[1]->grad_slot, (double[]){0}); /* absent here, zero after the reduction */

    /* B20, B22: a window of 4 micro-batches whose seeds were scale / 4 each; the last window has only 2 */
    double want = 0;
    static const int batches[] = {4, 4, 2};
    for (int i = 0; i < 3; i++) {
        double g = 0;
        for (int k = 0; k < batches[i]; k++) g += 1024.0 / 4 * 1; /* mean gradient 1 */
        put_grad1(w[0], g);
        lksi_device_write(ctx->dev, f.weight, batches[i] == 4 ? &four : &two, sizeof(double));
        good(ctx, lks_optim_step(opt, s));
        lks_scaler_update(s);
        want -= 1;
    }
    ok(get1(w[0]) == want && f.finished == 3 && f.stepped == 3, "B20 three steps with averaged gradient 1: %g",
       get1(w[0]));
    put_grad1(w[0], 1024.0 / 4 * 8 * 4);
    lksi_device_write(ctx->dev, f.weight, &four, sizeof(double));
    lks_optim_step(opt, s);
    lks_scaler_update(s);
    ok(get1(w[0]) == want - 8 && last(opt).norm == 8, "B22 one owner of the division: 8");
    int64_t tracker = 0, t2;
    double scale = 0, s2;
    lks_scaler_get(s, &scale, &tracker);
    /* nothing in the whole window */
    lksi_device_write(ctx->dev, f.weight, &none, sizeof(double));
    put_grad1(w[0], NAN);
    double before = get1(w[0]);
    ok(good(ctx, lks_optim_step(opt, s)) && last(opt).outcome == LKS_NOTHING && good(ctx, lks_scaler_update(s)),
       "weight 0: nothing to do");
    lks_scaler_get(s, &s2, &t2);
    ok(s2 == scale && t2 == tracker && get1(w[0]) == before, "and no backoff");
    lksi_device_write(ctx->dev, f.weight, &nan, sizeof(double));
    put_grad1(w[0], 1);
    lks_optim_step(opt, s);
    lks_scaler_update(s);
    lks_scaler_get(s, &s2, &t2);
    ok(last(opt).outcome == LKS_SKIPPED_HERE && s2 == scale / 2 && get1(w[0]) == before,
       "a weight that is no number skips");
    /* this rank failed in backward: no overflow, no backoff */
    lksi_device_write(ctx->dev, f.weight, &one, sizeof(double));
    f.failed = 1;
    ok(good(ctx, lks_optim_step(opt, s)) && last(opt).outcome == LKS_SKIPPED_HERE && good(ctx, lks_scaler_update(s)),
       "a failed rank skips");
    scale = s2;
    lks_scaler_get(s, &s2, &t2);
    ok(s2 == scale && get1(w[0]) == before, "and the scale stays");
    f.failed = 0;
    f.finish = LKS_ERR_MEMORY;
    ok(fails(ctx, lks_optim_step(opt, s), LKS_ERR_MEMORY, "told to fail", NULL) &&
           last(opt).outcome == LKS_SKIPPED_HERE,
       "a reducer that fails: the step is skipped, the failure returned");
    f.finish = LKS_OK;
    lks_scaler_update(s);
    /* unscale divides by the weight, once; the step does not finish the reduction again */
    lksi_device_write(ctx->dev, f.weight, &two, sizeof(double));
    put_grad1(w[0], scale * 3);
    int finished = f.finished;
    ok(good(ctx, lks_optim_unscale(opt, s)) && get1(w[0]->grad) == 6 && good(ctx, lks_optim_step(opt, s)) &&
           get1(w[0]) == before - 6 && f.finished == finished + 1,
       "unscale takes the weight in");
    ps->reducer = NULL;
    lksi_device_free(ctx->dev, p);
    lks_scaler_destroy(&s);
    drop(ps, opt);
}

/* --- reports, waits --- */

static void reports(void)
{
    lks_tensor *w[4];
    lks_optim *opt;
    lks_scaler *s;
    lks_params *ps = make(LKS_SGD, 1, f32x4, scalar, w, &opt);
    lks_scaler_create(ctx, 1, &s);
    ok(fails(ctx, lks_optim_report(opt, 1, NULL, NULL, NULL, NULL, NULL, NULL), LKS_ERR_ARGUMENT, "1", NULL),
       "no step yet");
    put_grad1(w[0], 1);
    lks_synchronize(ctx);
    int64_t waits = ctx->dev->waits, attempt = lks_random_attempt(ctx);
    lksi_rng rng;
    for (int i = 0; i < 20; i++) {
        lks_optim_step(opt, s);
        lks_scaler_update(s);
    }
    is_int(ctx->dev->waits - waits, 0, "20 steps and updates without a wait of the host");
    is_int(lks_random_attempt(ctx) - attempt, 20, "each attempt moves the random numbers on");
    lksi_device_read(ctx->dev, &rng, ctx->rng, sizeof rng);
    is_int(rng.attempt, lks_random_attempt(ctx), "on the device, too");
    lks_synchronize(ctx);
    waits = ctx->dev->waits;
    int64_t applied;
    int good_ones = 1;
    for (int i = 13; i <= 20; i++)
        good_ones &= lks_optim_report(opt, i, NULL, NULL, NULL, NULL, &applied, NULL) == LKS_OK && applied == i;
    ok(good_ones, "the last 8 are kept");
    is_int(ctx->dev->waits - waits, 0, "and reading what is done waits for nothing");
    ok(fails(ctx, lks_optim_report(opt, 12, NULL, NULL, NULL, NULL, NULL, NULL), LKS_ERR_ARGUMENT, "13 to 20", NULL),
       "older ones are not");
    ok(fails(ctx, lks_optim_report(opt, 21, NULL, NULL, NULL, NULL, NULL, NULL), LKS_ERR_ARGUMENT, "21", NULL),
       "nor future ones");
    /* a step of one arena takes 4 launches, and no allocation that could fail */
    int64_t launches = ctx->dev->launches;
    lks_optim_step(opt, s);
    is_int(ctx->dev->launches - launches, 4, "launches of a step");
    lks_scaler_update(s);
    if (!strcmp(device, "cpu")) {
        ctx->base.fail_at = 1;
        ok(good(ctx, lks_optim_step(opt, s)) && good(ctx, lks_scaler_update(s)), "a step takes no memory");
        ctx->base.fail_at = 0;
    }
    lks_scaler_destroy(&s);
    drop(ps, opt);
}

/* --- state for checkpoints --- */

static void fill(lks_tensor **w, const int64_t *size, int n, uint64_t seed)
{
    double *g = calloc(20000, sizeof *g);
    for (int k = 0; k < n; k++) {
        for (int64_t i = 0; i < size[k]; i++) g[i] = noise(&seed) * 65536;
        put_grad(w[k], g);
    }
    free(g);
}

/* Copies everything that a checkpoint holds from one pair to another. */
static void carry(lks_params *from, lks_optim *fo, lks_params *to, lks_optim *too)
{
    for (int i = 0; i < lks_params_count(from); i++) {
        lks_tensor *a = lks_params_tensor(from, i), *b = lks_params_tensor(to, i);
        double *x = calloc((size_t)lks_numel(a), sizeof *x);
        get(a, x);
        put(b, x);
        free(x);
    }
    for (int i = 0; i < lksi_optim_block_count(fo); i++) {
        lksi_state_block a, b;
        lksi_optim_block(fo, i, &a);
        lksi_optim_block(too, i, &b);
        int64_t bytes = from->arena[a.arena]->count * lks_dtype_size(a.dtype);
        lksi_device_copy(ctx->dev, b.data, a.data, bytes);
    }
    int64_t n[8];
    lksi_optim_saved s = {.param_applied = n};
    ok(good(ctx, lksi_optim_read(fo, &s)) && good(ctx, lksi_optim_write(too, &s)), "read and write");
}

static void saving(void)
{
    static const int64_t size[4] = {5, 70, 20000, 1};
    static const lks_dtype dt[4] = {LKS_F32, LKS_BF16, LKS_F32, LKS_F64};
    for (int kind = LKS_SGD; kind <= LKS_LARS; kind++) {
        lks_tensor *w[4], *v[4];
        lks_optim *a, *b;
        lks_scaler *s, *t;
        char text[1024];
        lks_params *ps = make(kind, 4, dt, size, w, &a), *qs = make(kind, 4, dt, size, v, &b);
        lks_scaler_create(ctx, 1, &s);
        lks_scaler_create(ctx, 1, &t);
        for (int i = 0; i < 2; i++) {
            lks_optim *o = i ? b : a;
            if (kind == LKS_SGD || kind == LKS_LARS) lks_optim_set_momentum(o, -1, 0.9, 0.1, 0);
            if (kind == LKS_RMSPROP) {
                lks_optim_set_momentum(o, -1, 0.9, 0, 0);
                lks_optim_set_centered(o, 1);
            }
            if (kind == LKS_ADAM) lks_optim_set_amsgrad(o, 1);
            lks_optim_set_ema(o, 0.9, 1);
            lks_optim_set_schedule(o, LKS_SCHEDULE_COSINE, 3, 12, 0.1, 1, 1);
            lks_optim_set_clip_norm(o, 10);
        }
        for (int i = 0; i < 5; i++) {
            fill(w, size, 4, (uint64_t)i);
            if (i == 2) put_grad1(w[3], NAN);
            lks_optim_step(a, s);
            lks_scaler_update(s);
        }
        lks_scaler_save_text(s, text, sizeof text);
        lks_scaler_load_text(t, text, LKS_STATE_REFUSE);
        carry(ps, a, qs, b);
        is_int(lks_optim_attempts(b), 5, "attempts");
        ok(lks_optim_report(b, 5, NULL, NULL, NULL, NULL, NULL, NULL) == LKS_ERR_ARGUMENT, "no reports from before");
        lks_error_clear(ctx);
        int same = 1;
        for (int i = 5; i < 12; i++) {
            fill(w, size, 4, (uint64_t)i);
            fill(v, size, 4, (uint64_t)i);
            lks_optim_step(a, s);
            lks_optim_step(b, t);
            lks_scaler_update(s);
            lks_scaler_update(t);
            report x = last(a), y = last(b);
            same &= !memcmp(&x, &y, sizeof x);
        }
        int64_t n, m;
        char *x = snapshot(ps, a, 0, &n), *y = snapshot(qs, b, 0, &m);
        ok(same && n == m && !memcmp(x, y, (size_t)n), "kind %d: goes on bit for bit after a load", kind);
        is_str(lksi_optim_kind_name(a), lksi_optim_kind_name(b), "descriptions agree");
        free(x);
        free(y);
        lks_scaler_destroy(&s);
        lks_scaler_destroy(&t);
        drop(ps, a);
        drop(qs, b);
    }
}

static void memory(void)
{
    static const lks_dtype dt[4] = {LKS_F32, LKS_F16, LKS_F32, LKS_F64};
    int64_t blocks = ctx->base.live_blocks, tensors = lks_live_tensors(ctx), used = lks_memory_used(ctx);
    int tried = 0, clean = 1;
    for (int64_t n = 1; n < 300; n++) {
        lks_params *ps;
        lks_optim *opt = NULL;
        lks_tensor *t;
        lks_params_create(ctx, &ps);
        for (int i = 0; i < 4; i++) lks_params_add(ps, (char[]){(char)('a' + i), 0}, dt[i], 0, NULL, &t);
        lks_params_seal(ps);
        int second[] = {1};
        ctx->base.fail_at = n;
        lks_status s = lks_optim_create(ps, n % 2 ? LKS_SGD : LKS_ADAMW, &opt);
        if (s == LKS_OK && n % 2) s = lks_optim_set_momentum(opt, -1, 0.9, 0, 0);
        if (s == LKS_OK) {
            int g = lks_optim_add_group(opt, 1, second);
            s = g < 0 ? g : LKS_OK;
        }
        int failed = s != LKS_OK;
        ctx->base.fail_at = 0;
        clean &= !failed || lks_error_code(ctx) == LKS_ERR_MEMORY;
        lks_error_clear(ctx);
        drop(ps, opt);
        clean &= ctx->base.live_blocks == blocks && lks_live_tensors(ctx) == tensors && lks_memory_used(ctx) == used;
        tried += failed;
        if (!failed && n > 60) break;
    }
    ok(clean && tried > 20, "each of %d failed allocations is reported and leaves nothing behind", tried);
}

/* --- the same bits on any thread count and instruction set --- */

static char *bits_of_run(const char *isa, int threads, int64_t *bytes)
{
    static const int64_t size[4] = {1000, 70, 20000, 33};
    static const lks_dtype dt[4] = {LKS_F32, LKS_BF16, LKS_F16, LKS_F64};
    setenv("LKS_ISA", isa, 1);
    lks_config *c = lks_config_new();
    lks_context *outer = ctx;
    lks_config_set_threads(c, threads);
    ctx = NULL;
    char *all = NULL;
    if (lks_context_create(MPI_COMM_WORLD, c, &ctx) == LKS_OK) {
        lks_tensor *w[4];
        lks_optim *opt;
        lks_params *ps = make(LKS_ADAMW, 4, dt, size, w, &opt);
        lks_optim_set_clip_norm(opt, 1);
        for (int i = 0; i < 6; i++) {
            fill(w, size, 4, (uint64_t)i);
            good(ctx, lks_optim_step(opt, NULL));
        }
        all = snapshot(ps, opt, 0, bytes);
        all = realloc(all, (size_t)*bytes + 8);
        double norm = last(opt).norm;
        memcpy(all + *bytes, &norm, 8);
        *bytes += 8;
        drop(ps, opt);
        lks_context_destroy(&ctx);
    }
    lks_config_free(c);
    ctx = outer;
    return all;
}

static void reproducible(void)
{
    int64_t n, m;
    char *first = bits_of_run("base", 1, &n);
    static const char *const isa[] = {"base", "avx2", "avx512"};
    for (int i = 0; i < 3; i++)
        for (int threads = 1; threads <= 3; threads++) {
            char *x = bits_of_run(isa[i], threads, &m);
            if (!x) skip(1, "no %s here", isa[i]);
            else ok(n == m && !memcmp(first, x, (size_t)n), "%s with %d threads: the same bits", isa[i], threads);
            free(x);
        }
    unsetenv("LKS_ISA");
    free(first);
}

/* --- several ranks --- */

static void ranks(void)
{
    lks_tensor *w[4];
    lks_optim *opt;
    lks_scaler *s;
    int rank = lks_rank(ctx), size = lks_size(ctx);
    double scale;
    int64_t tracker;
    static const double bad[] = {INFINITY, NAN, -INFINITY};
    /* B80 */
    for (int place = 0; place < 2; place++) {
        lks_params *ps = make(LKS_ADAM, 2, f32x4, scalar, w, &opt);
        lks_scaler_create(ctx, 1, &s);
        int guilty = place ? size - 1 : size / 2, right = 1;
        double e = 1;
        for (int i = 0; i < 3; i++, e /= 2) {
            put_grad1(w[0], 1);
            put_grad1(w[1], rank == guilty ? bad[i] : 2);
            right &= good(ctx, lks_optim_step(opt, s)) && good(ctx, lks_scaler_update(s));
            report r = last(opt);
            right &= r.outcome == (rank == guilty ? LKS_SKIPPED_HERE : LKS_SKIPPED_ELSEWHERE) && r.scale == 65536 * e;
        }
        lks_scaler_get(s, &scale, &tracker);
        ok(right && scale == 8192 && tracker == 0 && get1(w[0]) == 0,
           "B80 every rank skips when rank %d has a bad gradient", guilty);
        put_grad1(w[1], 2);
        right =
            good(ctx, lks_optim_step(opt, s)) && good(ctx, lks_scaler_update(s)) && last(opt).outcome == LKS_STEPPED;
        ok(right && get1(w[0]) != 0, "B80 and all step again");
        /* explicit unscale: the flag is every rank's */
        put_grad1(w[1], rank == guilty ? NAN : 2);
        right = good(ctx, lks_optim_unscale(opt, s)) && good(ctx, lks_scaler_update(s));
        lks_scaler_get(s, &scale, &tracker);
        ok(right && scale == 4096, "B80 unscale on one rank's NaN backs off everywhere");
        lks_scaler_destroy(&s);
        drop(ps, opt);
    }
    /* B05, B88, B75: presence */
    lks_params *ps = make(LKS_SGD, 3, f32x4, scalar, w, &opt);
    lks_optim_set_lr(opt, -1, 1);
    lks_optim_set_weight_decay(opt, -1, 0.5);
    for (int i = 0; i < 3; i++) put(w[i], (double[]){8});
    if (rank == 0) put_grad1(w[0], 2);
    put(w[1]->grad_slot, (double[]){NAN}); /* absent everywhere */
    lks_status code = lks_optim_step(opt, NULL);
    ok(rank == 0 ? good(ctx, code) : fails(ctx, code, LKS_ERR_NO_GRADIENTS, NULL, NULL),
       "B05 ranks without gradients take part");
    report r = last(opt);
    double want = rank == 0 ? 8 - 2 - 4 : 8 - 0 - 4;
    ok(r.outcome == LKS_STEPPED && get1(w[0]) == want, "B88 absent here, present elsewhere: a zero gradient, decayed");
    lksi_optim_saved saved = {.param_applied = (int64_t[3]){0}};
    lksi_optim_read(opt, &saved);
    ok(get1(w[1]) == 8 && saved.param_applied[0] == 1 && saved.param_applied[1] == 0,
       "B75 absent everywhere: untouched");
    lks_params_zero_grad(ps);
    ok(fails(ctx, lks_optim_step(opt, NULL), LKS_ERR_NO_GRADIENTS, NULL, NULL) && last(opt).outcome == LKS_NOTHING,
       "B05 none anywhere: nothing");
    /* every rank goes by one norm */
    lks_optim_set_weight_decay(opt, -1, 0);
    lks_optim_set_clip_norm(opt, 1);
    put_grad1(w[0], rank + 1);
    lks_optim_step(opt, NULL);
    ok(last(opt).norm == size, "ranks with different gradients clip by the same norm");
    /* a rank that failed */
    fake f = {.failed = rank == size - 1};
    f.r = (lksi_reducer){&f, fake_finish, fake_failed, fake_weight, fake_nominal, fake_stepped, NULL, NULL, NULL};
    ps->reducer = &f.r;
    for (int i = 1; i < 3; i++) put(w[i]->grad_slot, (double[]){0}); /* as a reduction leaves them */
    double before = get1(w[0]);
    ok(good(ctx, lks_optim_step(opt, NULL)), "a step with a failed rank");
    ok(last(opt).outcome == (f.failed ? LKS_SKIPPED_HERE : LKS_SKIPPED_ELSEWHERE) && get1(w[0]) == before,
       "is skipped by all");
    ps->reducer = NULL;
    /* drift: one rank's tracker runs apart */
    lks_scaler_create(ctx, 1, &s);
    put_grad1(w[0], 1);
    lks_optim_step(opt, s);
    lks_scaler_update(s);
    ok(last(opt).status == LKS_OK, "no drift");
    if (rank == 1) {
        int64_t apart = 7;
        lksi_scaler_state *d = lksi_scaler_device(s);
        lksi_device_write(ctx->dev, &d->tracker, &apart, sizeof apart);
    }
    before = get1(w[0]);
    ok(good(ctx, lks_optim_step(opt, s)) && good(ctx, lks_scaler_update(s)), "a step with drift");
    ok(last(opt).status == LKS_ERR_DRIFT && get1(w[0]) == before && strstr(lks_error(ctx), "attempt"),
       "is skipped and reported on every rank");
    lks_error_clear(ctx);
    lks_scaler_get(s, &scale, &tracker);
    ok(scale == 65536 && tracker == (rank == 1 ? 7 : 1), "and the scaler is left for the program to see");
    lks_optim_step(opt, s);
    lks_scaler_update(s);
    ok(last(opt).status == LKS_ERR_DRIFT, "until the state is loaded anew");
    lks_error_clear(ctx);
    lksi_scaler_saved fresh;
    lksi_scaler_read(s, &fresh);
    fresh.tracker = 1;
    lksi_optim_read(opt, &saved);
    ok(good(ctx, lksi_scaler_write(s, &fresh, LKS_STATE_ADOPT)) && good(ctx, lksi_optim_write(opt, &saved)), "load");
    lks_optim_step(opt, s);
    lks_scaler_update(s);
    ok(last(opt).status == LKS_OK && last(opt).outcome == LKS_STEPPED, "then it goes on");
    lks_scaler_destroy(&s);
    drop(ps, opt);
}

int main(int argc, char **argv)
{
    static const char *const devices[] = {"cpu", "far"};
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1) tap_mpi(MPI_COMM_WORLD);
    for (int i = 0; i < 2; i++) {
        device = devices[i];
        ctx = context_on(device);
        diag("device %s", device);
        lks_scope_begin(ctx);
        lks_zeros(ctx, LKS_F32, 0, NULL);
        lks_scope_end(ctx);
        int64_t blocks = ctx->base.live_blocks, used = lks_memory_used(ctx);
        lks_scope_begin(ctx);
        if (size > 1) ranks();
        else {
            settings();
            presence();
            skipping();
            twins();
            cases();
            weights();
            reports();
            saving();
            memory();
            if (i == 0) {
                formulas();
                schedules();
                reproducible();
            }
        }
        lks_scope_end(ctx);
        is_int(lks_live_tensors(ctx), 0, "no tensor is left");
        is_int(lks_memory_used(ctx), used, "no device memory is left");
        if (size == 1)
            is_int(ctx->base.live_blocks, blocks, "no host memory is left"); /* else a transport keeps some */
        lks_context_destroy(&ctx);
    }
    int status = done();
    MPI_Finalize();
    return status;
}
