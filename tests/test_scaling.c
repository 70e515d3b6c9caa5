/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_scaling.c - what the loss scaler has beyond its schedule: windows, hysteresis, a static scale, new scales given,
 * the contract about accumulation, who was to blame, underflow, retries, 10,000 states as text; and the optimizers that
 * test_optim.c does not have, against formulas in double here. Gradients are written by hand.
 */
#include "grads.h"

#include "table/step.h"
#include <math.h>

static lks_context *ctx;


typedef struct bench {
    lks_params *ps;
    lks_optim *opt;
    lks_scaler *s;
    lks_tensor *w[4];
} bench;

/* n parameters of `size` elements (0: 0-dim). */
static bench make(int kind, lks_dtype dtype, int n, int64_t size)
{
    bench b = {0};
    char name[8] = "w0";
    lks_params_create(ctx, &b.ps);
    for (int i = 0; i < n; i++, name[1]++) lks_params_add(b.ps, name, dtype, size > 0, &size, &b.w[i]);
    if (!good(ctx, lks_optim_create(b.ps, kind, &b.opt)) || !good(ctx, lks_scaler_create(ctx, 1, &b.s)))
        bail("no optimizer or scaler");
    return b;
}

static void drop(bench *b)
{
    lks_scaler_destroy(&b->s);
    lks_optim_destroy(&b->opt);
    lks_params_destroy(&b->ps);
}

static double scale_of(lks_scaler *s)
{
    double x = -1;
    lks_scaler_get(s, &x, NULL);
    return x;
}

static int64_t tracker_of(lks_scaler *s)
{
    int64_t n = -1;
    lks_scaler_get(s, NULL, &n);
    return n;
}

static uint64_t seed_ = 1;
static double noise(void)
{
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(seed_ >> 11) / (double)(INT64_C(1) << 52) - 1;
}

static int below(int n)
{
    return (int)((noise() + 1) / 2 * n);
}

static int step_with(bench *b, double g)
{
    int outcome = 0;
    for (int i = 0; i < 4 && b->w[i]; i++) put_grad1(b->w[i], g);
    if (!good(ctx, lks_optim_step(b->opt, b->s))) return -1;
    lks_optim_report(b->opt, lks_optim_attempts(b->opt), &outcome, NULL, NULL, NULL, NULL, NULL);
    return outcome;
}

/* --- the schedule, in a form of its own --- */

typedef struct model {
    float scale;
    int64_t tracker, interval, hysteresis, strikes, in_window, good;
    int bad, fixed;
} model;

static void model_end(model *m, int finite, int64_t window)
{
    if (finite) m->good++;
    else m->bad = 1;
    if (++m->in_window < window) return;
    if (m->fixed) {
    } else if (m->bad) {
        m->tracker = 0;
        if (++m->strikes >= m->hysteresis) m->scale = (float)((double)m->scale * 0.5);
    } else {
        m->tracker += m->good;
        for (; m->tracker >= m->interval; m->tracker -= m->interval) {
            m->scale = (float)((double)m->scale * 2);
            m->strikes = 0;
        }
    }
    m->in_window = m->good = m->bad = 0;
}

static void windows(void)
{
    int same = 1, runs = 0;
    for (int64_t window = 1; window <= 7; window += 2)
        for (int64_t h = 1; h <= 3; h += 2)
            for (int fixed = 0; fixed < 2; fixed++, runs++) {
                bench b = make(LKS_SGD, LKS_F32, 1, 0);
                model m = {.scale = 1024, .interval = 3, .hysteresis = h, .fixed = fixed};
                same &= good(ctx, lks_scaler_set_scale(b.s, 1024)) &&
                        good(ctx, lks_scaler_set_growth_interval(b.s, 3)) &&
                        good(ctx, lks_scaler_set_hysteresis(b.s, h)) && good(ctx, lks_scaler_set_dynamic(b.s, !fixed));
                for (int k = 0; k < 63; k++) {
                    int finite = below(5) > 0;
                    int outcome = step_with(&b, finite ? 1 : INFINITY);
                    same &= outcome == (finite ? LKS_STEPPED : LKS_SKIPPED_HERE);
                    same &= good(ctx, lks_scaler_update_n(b.s, window));
                    model_end(&m, finite, window);
                    same &= scale_of(b.s) == (double)m.scale && tracker_of(b.s) == m.tracker;
                }
                int64_t g, bad;
                lks_scaler_counts(b.s, &g, &bad);
                same &= g + bad == 63;
                drop(&b);
            }
    ok(same, "windows, hysteresis and a static scale: %d runs of 63 steps as the model", runs);
    /* one long clean window: one growth for each full interval */
    bench b = make(LKS_SGD, LKS_F32, 1, 0);
    lks_scaler_set_scale(b.s, 1);
    lks_scaler_set_growth_interval(b.s, 3);
    for (int i = 0; i < 8; i++) {
        step_with(&b, 1);
        if (i == 4) {
            ok(fails(ctx, lks_scaler_update(b.s), LKS_ERR_STATE, "lks_scaler_update_n", "4 of 8"),
               "no plain update inside a window");
            ok(fails(ctx, lks_scaler_update_n(b.s, 5), LKS_ERR_STATE, "5", "8"), "nor another window");
        }
        lks_scaler_update_n(b.s, 8);
    }
    ok(scale_of(b.s) == 4 && tracker_of(b.s) == 2, "8 clean steps in one window of interval 3: two growths, 2 kept");
    ok(fails(ctx, lks_scaler_update_n(b.s, 1), LKS_ERR_STATE, "lks_optim_step", NULL), "a window with no step");
    ok(fails(ctx, lks_scaler_update_n(b.s, 0), LKS_ERR_ARGUMENT, "0", NULL), "a window of 0");
    /* the state in a window goes through the text */
    step_with(&b, INFINITY);
    lks_scaler_update_n(b.s, 2);
    char text[1024];
    lks_scaler *other;
    lks_scaler_create(ctx, 1, &other);
    ok(good(ctx, lks_scaler_save_text(b.s, text, sizeof text)) &&
           good(ctx, lks_scaler_load_text(other, text, LKS_STATE_ADOPT)),
       "a state inside a window is saved and loaded");
    lks_scaler *first = b.s;
    b.s = other;
    step_with(&b, 1);
    ok(good(ctx, lks_scaler_update_n(other, 2)) && scale_of(other) == 2, "and its sticky flag with it");
    lks_scaler_destroy(&first);
    drop(&b);
}

static void oracle(void)
{
    /* init 65536, interval 3, a float16 gradient equal to the scale */
    static const int stepped[] = {0, 1, 1, 1, 0, 1, 1};
    static const double after[] = {32768, 32768, 32768, 65536, 32768, 32768, 32768};
    bench b = make(LKS_SGD, LKS_F16, 1, 0);
    lks_scaler_set_growth_interval(b.s, 3);
    int same = 1;
    for (int i = 0; i < 7; i++) {
        double s = scale_of(b.s);
        same &= step_with(&b, s) == (stepped[i] ? LKS_STEPPED : LKS_SKIPPED_HERE);
        same &= good(ctx, lks_scaler_update_n(b.s, 1)) && scale_of(b.s) == after[i];
    }
    ok(same, "skip, step, step, step, skip, step, step with a float16 gradient equal to the scale");
    drop(&b);
}

static void settings(void)
{
    lks_scaler *s;
    lks_scaler_create(ctx, 1, &s);
    ok(lks_scaler_floor(s) == 0x1p-126 && lks_scaler_ceiling(s) == 0x1p126 && lks_scaler_floor_limit(s) == 50 &&
           lks_scaler_hysteresis(s) == 1 && lks_scaler_dynamic(s) == 1,
       "defaults of the other settings");
    ok(fails(ctx, lks_scaler_set_hysteresis(s, 0), LKS_ERR_ARGUMENT, "hysteresis", "0") &&
           lks_scaler_hysteresis(s) == 1,
       "hysteresis 0 is refused");
    ok(good(ctx, lks_scaler_set_bounds(s, 1, 65536)) && lks_scaler_floor(s) == 1 && lks_scaler_ceiling(s) == 65536 &&
           good(ctx, lks_scaler_set_floor_limit(s, 3)) && lks_scaler_floor_limit(s) == 3 &&
           good(ctx, lks_scaler_set_dynamic(s, 0)) && !lks_scaler_dynamic(s),
       "setters and getters agree");
    ok(fails(ctx, lks_scaler_update_to(s, 0.5), LKS_ERR_ARGUMENT, "0.5", "bounds"), "a new scale below the floor");
    lks_scaler_destroy(&s);
    lks_scaler_create(ctx, 0, &s);
    ok(fails(ctx, lks_scaler_set_growth_factor(s, 1), LKS_ERR_ARGUMENT, "growth", NULL),
       "a disabled scaler validates, too");
    ok(good(ctx, lks_scaler_update_to(s, 8)) && scale_of(s) == 1 && good(ctx, lks_scaler_update_n(s, 4)),
       "and its updates do nothing");
    lks_scaler_destroy(&s);
}

static void given(void)
{
    bench b = make(LKS_SGD, LKS_F32, 1, 0);
    step_with(&b, 1);
    lks_scaler_update(b.s);
    step_with(&b, INFINITY);
    ok(good(ctx, lks_scaler_update_to(b.s, 100)) && scale_of(b.s) == 100 && tracker_of(b.s) == 1,
       "update_to: the flag does not matter, the tracker stays");
    int64_t g, bad;
    ok(good(ctx, lks_scaler_counts(b.s, &g, &bad)) && g == 1 && bad == 1, "the iteration is counted");
    ok(step_with(&b, 1) == LKS_STEPPED && good(ctx, lks_scaler_update(b.s)) && tracker_of(b.s) == 2, "and it goes on");
    ok(good(ctx, lks_scaler_update_to(b.s, 7)) && scale_of(b.s) == 7, "without a step before it");
    static const double values[] = {0.1, 3e300, 0, NAN, -1, INFINITY};
    static const double want[] = {(double)0.1f, 0x1p126, 0x1p126, 0x1p126, 0x1p126, 0x1p126};
    int same = 1;
    for (int i = 0; i < 6; i++) {
        lks_tensor *t = lks_full(ctx, LKS_F64, 0, NULL, values[i]);
        same &= good(ctx, lks_scaler_update_from(b.s, t)) && scale_of(b.s) == want[i];
    }
    ok(same, "update_from takes what can be a scale, within the bounds");
    lks_tensor *t = lks_full(ctx, LKS_F32, 0, NULL, 64);
    ok(good(ctx, lks_scaler_update_from(b.s, t)) && scale_of(b.s) == 64, "from a float32");
    lks_set_requires_grad(t, 1);
    ok(fails(ctx, lks_scaler_update_from(b.s, t), LKS_ERR_ARGUMENT, "gradient", NULL) &&
           fails(ctx, lks_scaler_update_from(b.s, lks_zeros(ctx, LKS_I64, 0, NULL)), LKS_ERR_ARGUMENT, "int64", NULL),
       "not from one that requires a gradient, nor an integer");
    lks_tensor *loss[3], *scaled[3];
    for (int i = 0; i < 3; i++) loss[i] = lks_full(ctx, i == 1 ? LKS_BF16 : LKS_F32, 0, NULL, i + 1);
    double x[3];
    ok(good(ctx, lks_scaler_scale_n(b.s, 3, loss, scaled)) && lks_item(scaled[0], x) == LKS_OK &&
           lks_item(scaled[1], x + 1) == LKS_OK && lks_item(scaled[2], x + 2) == LKS_OK && x[0] == 64 && x[1] == 128 &&
           x[2] == 192,
       "several losses at once");
    loss[1] = lks_zeros(ctx, LKS_I64, 0, NULL);
    ok(fails(ctx, lks_scaler_scale_n(b.s, 3, loss, scaled), LKS_ERR_DTYPE, NULL, NULL) && scaled[0] && !scaled[1] &&
           !scaled[2],
       "up to the one that is bad");
    drop(&b);
}

static lks_tensor *loss_of(bench *b)
{
    return lks_scaler_scale(b->s, lks_sum(lks_mul(b->w[0], b->w[0]), 0, NULL, 0, LKS_DTYPE_NONE));
}

static void contract(void)
{
    bench b = make(LKS_SGD, LKS_F32, 1, 0);
    lks_scaler_set_scale(b.s, 4);
    put(b.w[0], (double[]){3});
    char text[1024];
    good(ctx, lks_scaler_save_text(b.s, text, sizeof text));
    for (int i = 0; i < 2; i++) good(ctx, lks_backward(loss_of(&b), LKS_NONE, 0));
    ok(get1(b.w[0]->grad) == 48, "two micro-batches at one scale");
    ok(fails(ctx, lks_scaler_set_scale(b.s, 8), LKS_ERR_STATE, "lks_scaler_scale", "lks_scaler_update") &&
           fails(ctx, lks_scaler_update_to(b.s, 8), LKS_ERR_STATE, "lks_scaler_scale", NULL) &&
           fails(ctx, lks_scaler_update(b.s), LKS_ERR_STATE, "lks_optim_step", NULL) &&
           fails(ctx, lks_scaler_load_text(b.s, text, LKS_STATE_ADOPT), LKS_ERR_STATE, "lks_scaler_scale", NULL) &&
           scale_of(b.s) == 4,
       "in between the scale cannot change");
    ok(good(ctx, lks_optim_unscale(b.opt, b.s)) && get1(b.w[0]->grad) == 12, "unscaled");
    good(ctx, lks_backward(loss_of(&b), LKS_NONE, 0));
    double before = get1(b.w[0]);
    ok(fails(ctx, lks_optim_step(b.opt, b.s), LKS_ERR_STATE, "lks_optim_unscale", "w0") && get1(b.w[0]) == before,
       "scaled gradients on top of unscaled ones are refused");
    lks_params_zero_grad(b.ps);
    ok(good(ctx, lks_scaler_update(b.s)), "begun anew");
    good(ctx, lks_backward(loss_of(&b), LKS_NONE, 0));
    ok(good(ctx, lks_optim_unscale(b.opt, b.s)) && good(ctx, lks_backward(lks_mul(b.w[0], b.w[0]), LKS_NONE, 0)) &&
           good(ctx, lks_optim_step(b.opt, b.s)) && good(ctx, lks_scaler_update(b.s)),
       "an unscaled backward after the unscale is the program's business");
    drop(&b);
}

static lks_tensor *times(lks_tensor *w, double k) { return lks_mul_scalar(w, k); }

/* Each gradient by the way it came: what is not once and wholly scaled is refused, what is takes its step. */
static void ways(void)
{
    bench a = make(LKS_SGD, LKS_F32, 2, 0), b = make(LKS_SGD, LKS_F32, 1, 0);
    lks_tensor *w = a.w[0], *v = b.w[0];
    lks_optim_set_lr(a.opt, -1, 1);
    lks_optim_set_lr(b.opt, -1, 1);
    lks_scaler_set_scale(a.s, 8);
    lks_scaler_set_scale(b.s, 16);
    good(ctx, lks_backward(times(w, 1), LKS_NONE, 0));
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "not scaled", "w0"), "a loss that nobody scaled");
    lks_params_zero_grad(a.ps);
    good(ctx, lks_backward(lks_add(lks_scaler_scale(a.s, times(w, 1)), times(w, 1)), LKS_NONE, 0));
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "different scales", "w0"), "a part that was not scaled");
    lks_params_zero_grad(a.ps);
    good(ctx, lks_backward(lks_scaler_scale(a.s, lks_scaler_scale(a.s, times(w, 1))), LKS_NONE, 0));
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "twice", "w0"), "a loss that was scaled twice");
    lks_params_zero_grad(a.ps);
    good(ctx, lks_backward(lks_add(lks_scaler_scale(a.s, times(w, 1)), times(a.w[1], 1)), LKS_NONE, 0));
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "not scaled", "w1"), "the parameter it came to is named");
    ok(get1(w) == 0 && get1(a.w[1]) == 0, "nothing was stepped");
    lks_params_zero_grad(a.ps);
    lks_tensor *both = lks_add(lks_scaler_scale(a.s, times(w, 1)), lks_scaler_scale(b.s, times(v, 1)));
    ok(good(ctx, lks_backward(both, LKS_NONE, 0)) && good(ctx, lks_optim_step(a.opt, a.s)) &&
           good(ctx, lks_optim_step(b.opt, b.s)) && get1(w) == -1 && get1(v) == -1,
       "two scalers in one pass, each with parameters of its own");
    good(ctx, lks_scaler_update(a.s));
    lks_params_zero_grad(a.ps);
    lks_tensor *y = times(w, 3), *z = lks_detach(y);
    lks_set_requires_grad(z, 1);
    ok(good(ctx, lks_backward(lks_scaler_scale(a.s, times(z, 2)), LKS_NONE, 0)) &&
           good(ctx, lks_backward(y, lks_grad(z), 0)) && good(ctx, lks_optim_step(a.opt, a.s)) && get1(w) == -7,
       "backward in two parts, the second from the gradient of the first");
    good(ctx, lks_scaler_update(a.s));
    for (int i = 0; i < 2; i++) {
        lks_params_zero_grad(a.ps);
        good(ctx, lks_backward(lks_scaler_scale(a.s, times(w, 1)), LKS_NONE, 0));
        ok(good(ctx, lks_optim_unscale(a.opt, a.s)), "unscaled, %s", i ? "and again what came after" : "then dropped");
    }
    ok(good(ctx, lks_optim_step(a.opt, a.s)) && get1(w) == -8, "is stepped once");
    drop(&a);
    drop(&b);
}

static void blame(void)
{
    bench b = make(LKS_SGD, LKS_F32, 3, 5);
    int param = 0, bucket = 0, rank = 0;
    int64_t infs = 0, nans = 0;
    double g[5] = {1, 1, 1, 1, 1}, bad[5] = {1, INFINITY, NAN, -INFINITY, INFINITY}, worse[5] = {NAN, NAN, 1, 1, 1};
    put_grad(b.w[0], g);
    put_grad(b.w[1], bad);
    put_grad(b.w[2], worse);
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_blame(b.opt, 1, &param, &bucket, &rank, &infs, &nans)) && param == 1 && bucket == -1 &&
           rank == 0 && infs == 3 && nans == 3,
       "the first parameter, rank 0, 3 infinities, 3 NaN (%d %d %d %d %d)", param, bucket, rank, (int)infs, (int)nans);
    put_grad(b.w[1], g);
    put_grad(b.w[2], g);
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_blame(b.opt, 2, &param, NULL, &rank, &infs, &nans)) && param == -1 && rank == -1 &&
           infs == 0 && nans == 0,
       "nobody after a clean step");
    put_grad(b.w[2], worse);
    good(ctx, lks_optim_unscale(b.opt, b.s));
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_blame(b.opt, 3, &param, NULL, NULL, &infs, &nans)) && param == 2 && infs == 0 && nans == 2,
       "also after an explicit unscale");
    lks_scaler_set_bounds(b.s, 0x1p-126, 0x1p126);
    lks_scaler_set_scale(b.s, 0x1p-100);
    lks_params_zero_grad(b.ps);
    put_grad(b.w[2], (double[]){0, 1e30, 0, 0, 0});
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_blame(b.opt, 4, &param, NULL, NULL, &infs, NULL)) && param == 2 && infs == 1,
       "a finite value that is not when unscaled counts as infinite");
    int64_t n[4];
    put_grad(b.w[2], g);
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    lks_params_zero_grad(b.ps);
    fails(ctx, lks_optim_step(b.opt, b.s), LKS_ERR_NO_GRADIENTS, NULL, NULL);
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_outcomes(b.opt, 6, n, n + 1, n + 2, n + 3)) && n[0] == 2 && n[1] == 3 && n[2] == 0 &&
           n[3] == 1,
       "outcomes: 2 stepped, 3 skipped here, 1 had nothing to do");
    ok(good(ctx, lks_optim_outcomes(b.opt, 2, n, n + 1, NULL, NULL)) && n[0] == 1 && n[1] == 1,
       "as of an earlier attempt");
    ok(fails(ctx, lks_optim_blame(b.opt, 7, NULL, NULL, NULL, NULL, NULL), LKS_ERR_ARGUMENT, "7", NULL),
       "an attempt to come");
    drop(&b);
    /* more elements than a chunk, the fault in the last */
    b = make(LKS_ADAM, LKS_BF16, 2, 40000);
    double *many = calloc(40000, sizeof *many);
    many[39999] = NAN;
    put_grad(b.w[1], many);
    good(ctx, lks_optim_step(b.opt, b.s));
    good(ctx, lks_scaler_update(b.s));
    ok(good(ctx, lks_optim_blame(b.opt, 1, &param, NULL, NULL, &infs, &nans)) && param == 1 && nans == 1 && infs == 0,
       "the last of 80000 bfloat16 values");
    free(many);
    drop(&b);
}

static void underflow(void)
{
    static const lks_dtype dtype[] = {LKS_F16, LKS_BF16, LKS_F32, LKS_F64};
    static const double values[8] = {0, 0x1p-14, 0x1p-15, -0x1p-24, 1, -1, 0x1p-126, 0x1p-130};
    static const int64_t zeros[] = {3, 1, 1, 0}, tiny[] = {2, 1, 4, 0}, seen[] = {8, 8, 8, 0};
    for (int i = 0; i < 4; i++) {
        bench b = make(LKS_SGD, dtype[i], 1, 8);
        int64_t z = -1, t = -1, n = -1;
        put_grad(b.w[0], values);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
        ok(good(ctx, lks_optim_underflow(b.opt, 1, &z, &t, &n)) && z == 0 && t == 0 && n == 0,
           "no report unless asked for");
        lks_optim_set_underflow_report(b.opt, 1);
        for (int explicit = 0; explicit < 2; explicit++) {
            put_grad(b.w[0], values);
            if (explicit) good(ctx, lks_optim_unscale(b.opt, b.s));
            good(ctx, lks_optim_step(b.opt, b.s));
            good(ctx, lks_scaler_update(b.s));
            ok(good(ctx, lks_optim_underflow(b.opt, 2 + explicit, &z, &t, &n)) && z == zeros[i] && t == tiny[i] &&
                   n == seen[i],
               "%s: %d zeros, %d tiny of %d", lks_dtype_name(dtype[i]), (int)z, (int)t, (int)n);
        }
        drop(&b);
    }
}

/* --- retry --- */

typedef struct batch {
    bench *b;
    int calls, random_same;
    double limit, first;
    lks_status give;
} batch;

/* A gradient that overflows when the scale is above the limit, and a random number. */
static lks_status run_batch(void *user)
{
    batch *t = user;
    double x;
    lks_params_zero_grad(t->b->ps);
    lks_random_rows(ctx, 0, 1);
    lks_tensor *one = lks_full(ctx, LKS_F32, 1, (int64_t[]){64}, 1), *sum;
    sum = lks_sum(lks_mul(lks_dropout(one, 0.5), lks_reshape(lks_arange(ctx, LKS_F32, 64), 1, (int64_t[]){64})), 0,
                  NULL, 0, LKS_DTYPE_NONE);
    if (!sum) return lks_error_code(ctx);
    lks_item(sum, &x);
    if (t->calls++ == 0) t->first = x;
    t->random_same &= x == t->first;
    put_grad1(t->b->w[0], scale_of(t->b->s) > t->limit ? INFINITY : scale_of(t->b->s));
    return t->give;
}

static void retries(void)
{
    bench b = make(LKS_SGD, LKS_F32, 1, 0);
    batch t = {.b = &b, .random_same = 1, .limit = 16384};
    lks_random_set(ctx, 0, 0);
    int outcome = 0;
    lks_optim_set_lr(b.opt, -1, 1);
    ok(good(ctx, lks_optim_step_retry(b.opt, b.s, 5, run_batch, &t, &outcome)) && outcome == LKS_STEPPED &&
           t.calls == 3 && scale_of(b.s) == 16384 && get1(b.w[0]) == -1 && t.random_same,
       "the batch is stepped at the third try, with the same random numbers");
    ok(lks_random_attempt(ctx) == 1, "which was one attempt of the random state (%d)", (int)lks_random_attempt(ctx));
    t = (batch){.b = &b, .random_same = 1, .limit = 1};
    ok(good(ctx, lks_optim_step_retry(b.opt, b.s, 2, run_batch, &t, &outcome)) && outcome == LKS_SKIPPED_HERE &&
           t.calls == 3,
       "after two retries it is given up");
    double held = get1(b.w[0]), scale = scale_of(b.s);
    t = (batch){.b = &b, .random_same = 1, .limit = 1e30, .give = LKS_ERR_INTERRUPTED};
    ok(fails(ctx, lks_optim_step_retry(b.opt, b.s, 2, run_batch, &t, &outcome), LKS_ERR_INTERRUPTED,
             "the function of the batch", "no text") &&
           t.calls == 1 && get1(b.w[0]) == held && scale_of(b.s) == scale,
       "a batch that fails makes no step, is tried once and leaves all as it was");
    t.give = LKS_OK;
    ok(good(ctx, lks_optim_step_retry(b.opt, b.s, 2, run_batch, &t, &outcome)) && outcome == LKS_STEPPED &&
           get1(b.w[0]) != held,
       "and the next one steps");
    ok(fails(ctx, lks_optim_step_retry(b.opt, b.s, -1, run_batch, &t, &outcome), LKS_ERR_ARGUMENT, "-1", NULL),
       "-1 retries");
    lks_random_set(ctx, 0, 0);
    drop(&b);
}

/* --- states as text --- */

static double random_bits(double low, double high)
{
    return exp2(low + (noise() + 1) / 2 * (high - low)) * (1 + noise() / 4);
}

static void texts(int n)
{
    lks_scaler *a, *b;
    char text[1024], again[1024];
    int same = 1, longest = 0;
    lks_scaler_create(ctx, 1, &a);
    lks_scaler_create(ctx, 1, &b);
    for (int i = 0; i < n && same; i++) {
        lksi_scaler_saved x = {.enabled = 1,
                               .scale_bits = lksi_bits_f32((float)random_bits(-120, 120)),
                               .growth = 1 + random_bits(-40, 8),
                               .backoff = random_bits(-40, -1.5),
                               .floor = 0x1p-126,
                               .ceiling = 0x1p126,
                               .interval = 1 + (int64_t)random_bits(0, 61),
                               .tracker = (int64_t)random_bits(0, 61),
                               .good = (int64_t)random_bits(0, 61),
                               .bad = (int64_t)random_bits(0, 61),
                               .floor_skips = below(100),
                               .floor_limit = below(1000),
                               .hysteresis = 1 + below(9),
                               .fixed = below(2),
                               .credit = below(50),
                               .sticky = below(2),
                               .strikes = below(50),
                               .window_at = below(50)},
                          back;
        same = good(ctx, lksi_scaler_write(a, &x, LKS_STATE_ADOPT)) &&
               good(ctx, lks_scaler_save_text(a, text, sizeof text)) &&
               good(ctx, lks_scaler_load_text(b, text, LKS_STATE_ADOPT)) &&
               good(ctx, lks_scaler_save_text(b, again, sizeof again)) && !strcmp(text, again) &&
               good(ctx, lksi_scaler_read(b, &back)) && back.scale_bits == x.scale_bits && back.tracker == x.tracker &&
               lksi_bits_f64(back.growth) == lksi_bits_f64(x.growth) &&
               lksi_bits_f64(back.backoff) == lksi_bits_f64(x.backoff) && back.interval == x.interval &&
               back.good == x.good && back.bad == x.bad && back.floor_skips == x.floor_skips &&
               back.floor_limit == x.floor_limit && back.hysteresis == x.hysteresis && back.fixed == x.fixed &&
               back.credit == x.credit && back.sticky == x.sticky && back.strikes == x.strikes &&
               back.window_at == x.window_at;
        if (!same) diag("state %d: %s", i, text);
        if ((int)strlen(text) > longest) longest = (int)strlen(text);
    }
    ok(same && longest < 1023, "%d random states there and back as text, %d bytes at most", n, longest);
    lks_scaler_destroy(&a);
    lks_scaler_destroy(&b);
}

/* --- other optimizers --- */

typedef struct rule {
    const char *name;
    int kind;
    double lr, wd, momentum, beta1, beta2, eps, lr_decay, initial, trust;
    int amsgrad, centered, decoupled, nesterov;
} rule;

/* One step of n elements in double, by the formulas of the papers and of PyTorch. */
static void reference(const rule *r, int64_t t, int64_t n, double *p, const double *g, double *a, double *b, double *c,
                      double ema_decay, double *ema)
{
    double d[64], w2 = 0, d2 = 0, ratio = 1;
    for (int64_t i = 0; i < n; i++)
        d[i] = g[i] + (r->decoupled || r->kind == LKS_LAMB || r->kind == LKS_LARS ? 0 : r->wd * p[i]);
    if (r->decoupled)
        for (int64_t i = 0; i < n; i++) p[i] -= r->lr * r->wd * p[i];
    switch (r->kind) {
    case LKS_LARS:
        for (int64_t i = 0; i < n; i++) {
            w2 += p[i] * p[i];
            d2 += d[i] * d[i];
        }
        if (w2 > 0 && d2 > 0) ratio = r->trust * sqrt(w2) / (sqrt(d2) + r->wd * sqrt(w2) + r->eps);
        for (int64_t i = 0; i < n; i++) d[i] = ratio * (d[i] + r->wd * p[i]); /* fall through */
    case LKS_SGD:
        for (int64_t i = 0; i < n; i++) {
            double u = d[i];
            if (r->momentum > 0) {
                a[i] = t == 1 ? d[i] : r->momentum * a[i] + d[i];
                u = r->nesterov ? d[i] + r->momentum * a[i] : a[i];
            }
            p[i] -= r->lr * u;
        }
        break;
    case LKS_RMSPROP:
        for (int64_t i = 0; i < n; i++) {
            a[i] = r->beta2 * a[i] + (1 - r->beta2) * d[i] * d[i];
            double v = a[i];
            if (r->centered) {
                c[i] = c[i] + (1 - r->beta2) * (d[i] - c[i]);
                v -= c[i] * c[i];
            }
            double u = d[i] / (sqrt(v) + r->eps);
            if (r->momentum > 0) u = b[i] = r->momentum * b[i] + u;
            p[i] -= r->lr * u;
        }
        break;
    case LKS_ADAGRAD:
        for (int64_t i = 0; i < n; i++) {
            if (t == 1) a[i] = r->initial;
            a[i] += d[i] * d[i];
            p[i] -= r->lr / (1 + (double)(t - 1) * r->lr_decay) * d[i] / (sqrt(a[i]) + r->eps);
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            a[i] = r->beta1 * a[i] + (1 - r->beta1) * d[i];
            b[i] = r->beta2 * b[i] + (1 - r->beta2) * d[i] * d[i];
            if (r->amsgrad && b[i] > c[i]) c[i] = b[i];
            double v = (r->amsgrad ? c[i] : b[i]) / (1 - pow(r->beta2, (double)t));
            d[i] = a[i] / (1 - pow(r->beta1, (double)t)) / (sqrt(v) + r->eps);
            if (r->kind == LKS_LAMB) d[i] += r->wd * p[i];
            w2 += p[i] * p[i];
            d2 += d[i] * d[i];
        }
        if (r->kind == LKS_LAMB && w2 > 0 && d2 > 0) ratio = sqrt(w2 / d2);
        for (int64_t i = 0; i < n; i++) p[i] -= r->lr * ratio * d[i];
    }
    for (int64_t i = 0; i < n; i++) ema[i] += (1 - ema_decay) * (p[i] - ema[i]);
}

static int apply(lks_optim *o, const rule *r)
{
    int yes = good(ctx, lks_optim_set_lr(o, -1, r->lr)) && good(ctx, lks_optim_set_weight_decay(o, -1, r->wd)) &&
              good(ctx, lks_optim_set_eps(o, -1, r->eps));
    if (r->momentum > 0) yes &= good(ctx, lks_optim_set_momentum(o, -1, r->momentum, 0, r->nesterov));
    if (r->decoupled) yes &= good(ctx, lks_optim_set_decoupled(o, -1, 1));
    if (r->kind == LKS_RMSPROP) yes &= good(ctx, lks_optim_set_alpha(o, -1, r->beta2));
    if (r->kind == LKS_ADAGRAD)
        yes &= good(ctx, lks_optim_set_lr_decay(o, -1, r->lr_decay)) &&
               good(ctx, lks_optim_set_initial_accumulator(o, r->initial));
    if (r->kind == LKS_LARS) yes &= good(ctx, lks_optim_set_trust(o, -1, r->trust));
    if (r->beta1 > 0) yes &= good(ctx, lks_optim_set_betas(o, -1, r->beta1, r->beta2));
    if (r->amsgrad) yes &= good(ctx, lks_optim_set_amsgrad(o, 1));
    if (r->centered) yes &= good(ctx, lks_optim_set_centered(o, 1));
    return yes;
}

static const rule rules[] = {
    {.name = "rmsprop", .kind = LKS_RMSPROP, .lr = 0.01, .beta2 = 0.99, .eps = 1e-8},
    {.name = "rmsprop, centered, momentum, decay",
     .kind = LKS_RMSPROP,
     .lr = 0.01,
     .beta2 = 0.9,
     .eps = 1e-8,
     .momentum = 0.8,
     .wd = 0.1,
     .centered = 1},
    {.name = "rmsprop, decoupled decay",
     .kind = LKS_RMSPROP,
     .lr = 0.01,
     .beta2 = 0.9,
     .eps = 1e-8,
     .wd = 0.1,
     .decoupled = 1},
    {.name = "adagrad", .kind = LKS_ADAGRAD, .lr = 0.1, .eps = 1e-10},
    {.name = "adagrad, lr decay, initial, decay",
     .kind = LKS_ADAGRAD,
     .lr = 0.1,
     .eps = 1e-10,
     .lr_decay = 0.1,
     .initial = 0.5,
     .wd = 0.01},
    {.name = "lamb", .kind = LKS_LAMB, .lr = 0.01, .wd = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6},
    {.name = "lamb, amsgrad", .kind = LKS_LAMB, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-6, .amsgrad = 1},
    {.name = "lars", .kind = LKS_LARS, .lr = 0.5, .wd = 0.01, .eps = 1e-8, .trust = 0.02},
    {.name = "lars, momentum, nesterov",
     .kind = LKS_LARS,
     .lr = 0.5,
     .wd = 0.01,
     .eps = 1e-8,
     .trust = 0.02,
     .momentum = 0.9,
     .nesterov = 1},
    {.name = "adam, amsgrad",
     .kind = LKS_ADAM,
     .lr = 0.01,
     .wd = 0.1,
     .beta1 = 0.9,
     .beta2 = 0.9,
     .eps = 1e-8,
     .amsgrad = 1},
    {.name = "adam, decoupled decay",
     .kind = LKS_ADAM,
     .lr = 0.01,
     .wd = 0.1,
     .beta1 = 0.9,
     .beta2 = 0.99,
     .eps = 1e-8,
     .decoupled = 1},
    {.name = "sgd, decoupled decay", .kind = LKS_SGD, .lr = 0.1, .wd = 0.1, .momentum = 0.9, .decoupled = 1},
};

static void optimizers(void)
{
    static const lks_dtype dtype[] = {LKS_F64, LKS_F32, LKS_BF16, LKS_F16};
    enum { N = 37, STEPS = 25 };
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++)
        for (int d = 0; d < 4; d++) {
            const rule *r = &rules[k];
            bench b = make(r->kind, dtype[d], 2, N);
            double p[2][N], a[2][N] = {{0}}, m[2][N] = {{0}}, c[2][N] = {{0}}, e[2][N], g[N], got[N], worst = 0,
                            avg = 0;
            int right = apply(b.opt, r);
            for (int w = 0; w < 2; w++) {
                for (int i = 0; i < N; i++) p[w][i] = noise() * (w ? 3 : 1);
                put(b.w[w], p[w]);
                get(b.w[w], p[w]); /* as rounded */
                memcpy(e[w], p[w], sizeof p[w]);
            }
            right &= good(ctx, lks_optim_set_ema(b.opt, 0.9, 0));
            for (int t = 1; t <= STEPS; t++) {
                for (int w = 0; w < 2; w++) {
                    for (int i = 0; i < N; i++) g[i] = noise() * 60000 / (w ? 1 : 100);
                    put_grad(b.w[w], g);
                    get(b.w[w]->grad, g);
                    for (int i = 0; i < N; i++) g[i] /= 65536;
                    reference(r, t, N, p[w], g, a[w], m[w], c[w], 0.9, e[w]);
                }
                right &= good(ctx, lks_optim_step(b.opt, b.s)) && good(ctx, lks_scaler_update(b.s));
                if (t % 9 == 4) { /* a skipped step is no step */
                    for (int i = 0; i < N; i++) g[i] = NAN;
                    put_grad(b.w[1], g);
                    right &= good(ctx, lks_optim_step(b.opt, b.s)) && good(ctx, lks_scaler_update_to(b.s, 65536));
                }
            }
            for (int w = 0; w < 2; w++) {
                lksi_state_block blk;
                for (int i = 0; i < lksi_optim_block_count(b.opt); i++) {
                    lksi_optim_block(b.opt, i, &blk);
                    int is_master = !strcmp(blk.name, "master"), is_average = !strcmp(blk.name, "average");
                    if (!is_master && !is_average) continue;
                    float f[N];
                    double x[N];
                    const char *at = blk.data + b.ps->arena[dtype[d]]->slice[w].offset * lks_dtype_size(blk.dtype);
                    lksi_device_read(ctx->dev, blk.dtype == LKS_F64 ? (void *)x : f, at, N * lks_dtype_size(blk.dtype));
                    for (int q = 0; q < N; q++) {
                        double v = blk.dtype == LKS_F64 ? x[q] : (double)f[q];
                        double *top = is_average ? &avg : &worst;
                        *top = fmax(*top, fabs(v - (is_average ? e[w][q] : p[w][q])));
                    }
                }
                if (d < 2) {
                    get(b.w[w], got);
                    for (int i = 0; i < N; i++) worst = fmax(worst, fabs(got[i] - p[w][i]));
                }
            }
            double most = d == 0 ? 1e-12 : 2e-5;
            ok(right && worst < most && avg < most, "%s, %s: %.1e, average %.1e from the formula after %d steps",
               r->name, lks_dtype_name(dtype[d]), worst, avg, STEPS);
            drop(&b);
        }
}

static void refusals(void)
{
    bench adam = make(LKS_ADAM, LKS_F32, 1, 0), sgd = make(LKS_SGD, LKS_F32, 1, 0),
          lamb = make(LKS_LAMB, LKS_F32, 1, 0), rms = make(LKS_RMSPROP, LKS_F32, 1, 0);
    ok(fails(ctx, lks_optim_set_alpha(adam.opt, -1, 0.5), LKS_ERR_ARGUMENT, "adam", "rmsprop") &&
           fails(ctx, lks_optim_set_lr_decay(adam.opt, -1, 0.5), LKS_ERR_ARGUMENT, "adagrad", NULL) &&
           fails(ctx, lks_optim_set_trust(adam.opt, -1, 0.5), LKS_ERR_ARGUMENT, "lars", NULL) &&
           fails(ctx, lks_optim_set_amsgrad(sgd.opt, 1), LKS_ERR_ARGUMENT, "sgd", NULL) &&
           fails(ctx, lks_optim_set_centered(sgd.opt, 1), LKS_ERR_ARGUMENT, "rmsprop", NULL) &&
           fails(ctx, lks_optim_set_initial_accumulator(sgd.opt, 1), LKS_ERR_ARGUMENT, "adagrad", NULL) &&
           fails(ctx, lks_optim_set_decoupled(lamb.opt, -1, 1), LKS_ERR_ARGUMENT, "lamb", NULL) &&
           fails(ctx, lks_optim_set_momentum(lamb.opt, -1, 0.9, 0, 0), LKS_ERR_ARGUMENT, "betas", NULL) &&
           fails(ctx, lks_optim_set_momentum(rms.opt, -1, 0.9, 0.5, 0), LKS_ERR_ARGUMENT, "dampening", NULL) &&
           fails(ctx, lks_optim_set_alpha(rms.opt, -1, 1), LKS_ERR_ARGUMENT, "alpha", "1"),
       "settings that an optimizer does not have are refused");
    step_with(&adam, 1);
    ok(fails(ctx, lks_optim_set_amsgrad(adam.opt, 1), LKS_ERR_STATE, "lks_optim_step", NULL), "new state after a step");
    ok(lks_optim_kind_from_name("lamb") == LKS_LAMB && lks_optim_kind_from_name("adagrad") == LKS_ADAGRAD &&
           lks_optim_kind_from_name("lion") == LKS_ERR_NOT_FOUND,
       "names");
    drop(&adam), drop(&sgd), drop(&lamb), drop(&rms);
    /* norms of 0: ratio 1 */
    bench b = make(LKS_LARS, LKS_F32, 2, 0);
    put(b.w[1], (double[]){2});
    lks_optim_set_lr(b.opt, -1, 1);
    put_grad1(b.w[0], 65536);
    put_grad1(b.w[1], 0);
    good(ctx, lks_optim_step(b.opt, b.s));
    ok(get1(b.w[0]) == -1 && get1(b.w[1]) == 2, "LARS: weight 0 or gradient 0 gives ratio 1");
    drop(&b);
}

static void averages(void)
{
    bench b = make(LKS_ADAMW, LKS_BF16, 1, 0);
    put(b.w[0], (double[]){1});
    ok(fails(ctx, lks_optim_ema_swap(b.opt, 1), LKS_ERR_STATE, "lks_optim_set_ema", NULL), "no averages yet");
    ok(good(ctx, lks_optim_set_ema(b.opt, 0.5, 0)), "set_ema");
    lks_optim_set_lr(b.opt, -1, 0.5);
    lks_optim_set_weight_decay(b.opt, -1, 0);
    for (int i = 0; i < 3; i++) {
        put_grad1(b.w[0], 65536);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
    }
    int64_t n;
    char *before = snapshot(b.ps, b.opt, 0, &n), *after;
    double w = get1(b.w[0]);
    ok(fabs(w + 0.5) < 1e-5, "three steps of 0.5 (%g)", w);
    ok(good(ctx, lks_optim_ema_swap(b.opt, 1)) && fabs(get1(b.w[0]) - (-0.0625)) < 1e-3, "the average is in place (%g)",
       get1(b.w[0]));
    put_grad1(b.w[0], 1);
    ok(fails(ctx, lks_optim_step(b.opt, b.s), LKS_ERR_STATE, "lks_optim_ema_swap", NULL) &&
           fails(ctx, lks_optim_ema_swap(b.opt, 1), LKS_ERR_STATE, NULL, NULL),
       "no step with it in place");
    lksi_optim_saved saved = {.param_applied = (int64_t[1]){0}};
    ok(fails(ctx, lksi_optim_read(b.opt, &saved), LKS_ERR_STATE, NULL, NULL), "no save either");
    ok(good(ctx, lks_optim_ema_swap(b.opt, 0)), "the weights back");
    after = snapshot(b.ps, b.opt, 0, &n);
    ok(!memcmp(before, after, (size_t)n), "bit for bit, masters too");
    put_grad1(b.w[0], 0);
    good(ctx, lks_optim_step(b.opt, b.s));
    ok(get1(b.w[0]) < w, "and training goes on from the master");
    free(before), free(after);
    drop(&b);
    /* warm-up: min(decay, (1 + k) / (10 + k)) */
    b = make(LKS_SGD, LKS_F64, 1, 0);
    lks_optim_set_ema(b.opt, 0.99, 1);
    lks_optim_set_lr(b.opt, -1, 1);
    double p = 0, e = 0, got = 0;
    for (int k = 0; k < 20; k++) {
        put_grad1(b.w[0], -65536);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
        p += 1;
        e += (1 - fmin(0.99, (1.0 + k) / (10.0 + k))) * (p - e);
    }
    good(ctx, lks_optim_ema_swap(b.opt, 1));
    got = get1(b.w[0]);
    ok(fabs(got - e) < 1e-12, "warm-up of the average: %.15g, want %.15g", got, e);
    good(ctx, lks_optim_ema_swap(b.opt, 0));
    drop(&b);
}

static void counters(void)
{
    /* float32 counters would stop at 2^24 */
    bench b = make(LKS_ADAM, LKS_F32, 1, 0);
    int64_t start = (INT64_C(1) << 24) + 3;
    lksi_optim_saved saved = {start, start - 1, 1, (int64_t[1]){start - 1}};
    ok(good(ctx, lksi_optim_write(b.opt, &saved)), "a long run is loaded");
    for (int i = 0; i < 5; i++) {
        put_grad1(b.w[0], 65536);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
    }
    int64_t applied = 0;
    lksi_optim_saved back = {.param_applied = (int64_t[1]){0}};
    ok(good(ctx, lks_optim_applied(b.opt, &applied)) && applied == start + 4 &&
           good(ctx, lksi_optim_read(b.opt, &back)) && back.param_applied[0] == start + 4 && back.attempts == start + 5,
       "counters beyond 2^24 count by one");
    drop(&b);
    /* warm-up, stable, decay; a table */
    b = make(LKS_SGD, LKS_F32, 1, 0);
    ok(good(ctx, lks_optim_set_schedule(b.opt, LKS_SCHEDULE_WSD, 4, 20, 0.25, 0, 8)), "warm-up, stable, decay");
    lks_optim_set_lr(b.opt, -1, 1);
    int right = 1;
    for (int k = 0; k < 24; k++) {
        double lr, want = k < 4 ? (k + 1) / 4.0 : k < 12 ? 1 : k < 20 ? 1 - 0.75 * (k - 12) / 8 : 0.25;
        put_grad1(b.w[0], 0);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
        lks_optim_report(b.opt, lks_optim_attempts(b.opt), NULL, NULL, NULL, &lr, NULL, NULL);
        right &= fabs(lr - want) < 1e-15;
    }
    ok(right, "follows it");
    ok(fails(ctx, lks_optim_set_schedule(b.opt, LKS_SCHEDULE_WSD, 15, 20, 0, 0, 8), LKS_ERR_ARGUMENT, "15", "8"),
       "no room for it");
    static const double factor[] = {3, 1, 4};
    ok(good(ctx, lks_optim_set_schedule_table(b.opt, 3, factor)), "a table");
    double lr;
    put_grad1(b.w[0], 0);
    good(ctx, lks_optim_step(b.opt, b.s));
    lks_optim_report(b.opt, lks_optim_attempts(b.opt), NULL, NULL, NULL, &lr, NULL, NULL);
    ok(lr == 4, "its last entry goes on (%g)", lr);
    ok(fails(ctx, lks_optim_set_schedule_table(b.opt, 2, (double[]){1, NAN}), LKS_ERR_ARGUMENT, "factor 1", NULL) &&
           fails(ctx, lks_optim_set_schedule_table(b.opt, 0, factor), LKS_ERR_ARGUMENT, "0", NULL) &&
           fails(ctx, lks_optim_set_schedule(b.opt, LKS_SCHEDULE_TABLE, 0, 0, 0, 0, 1), LKS_ERR_ARGUMENT, "table",
                 NULL),
       "tables that are refused");
    drop(&b);
}

int main(void)
{
    static const char *const device[] = {"cpu", "far"};

    for (int i = 0; i < 2; i++) {
        ctx = context_on(device[i]);
        diag("device %s", device[i]);
        lks_scope_begin(ctx);
        lks_zeros(ctx, LKS_F32, 0, NULL);
        lks_scope_end(ctx);
        int64_t blocks = ctx->base.live_blocks, used = lks_memory_used(ctx);
        lks_scope_begin(ctx);
        windows();
        oracle();
        settings();
        given();
        contract();
        ways();
        blame();
        underflow();
        retries();
        texts(i ? 100 : 10000);
        refusals();
        averages();
        counters();
        optimizers();
        lks_scope_end(ctx);
        is_int(lks_live_tensors(ctx), 0, "no tensor is left");
        is_int(lks_memory_used(ctx), used, "no device memory is left");
        is_int(ctx->base.live_blocks, blocks, "no host memory is left");
        lks_context_destroy(&ctx);
    }
    int status = done();
    lks_finalize();
    return status;
}
