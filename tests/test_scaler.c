/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_scaler.c - the loss scaler: settings, schedule, order of calls, floor, save and load. The steps that feed it are
 * of an SGD optimizer with gradients written by hand; what optimizers compute is test_optim.c's.
 */
#include "grads.h"

#include "table/step.h"

static lks_context *ctx;

/* One set of n parameters of one element, plain SGD with lr, and a scaler. */
typedef struct bench {
    lks_params *ps;
    lks_optim *opt;
    lks_scaler *s;
    lks_tensor *w[4];
} bench;

static bench make(lks_dtype dtype, int n, double lr, double scale)
{
    bench b = {0};
    char name[8] = "w0";
    lks_params_create(ctx, &b.ps);
    for (int i = 0; i < n; i++, name[1]++) lks_params_add(b.ps, name, dtype, 0, NULL, &b.w[i]);
    if (!good(ctx, lks_optim_create(b.ps, LKS_SGD, &b.opt)) || !good(ctx, lks_scaler_create(ctx, 1, &b.s)))
        bail("no optimizer or scaler");
    lks_optim_set_lr(b.opt, -1, lr);
    if (scale > 0 && !good(ctx, lks_scaler_set_scale(b.s, scale))) bail("set_scale");
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

/* Step and update with gradient g everywhere; outcome. */
static int turn(bench *b, double g)
{
    int outcome = 0;
    for (int i = 0; b->w[i] && i < 4; i++) put_grad1(b->w[i], g);
    if (!good(ctx, lks_optim_step(b->opt, b->s)) || !good(ctx, lks_scaler_update(b->s))) return -1;
    good(ctx, lks_optim_report(b->opt, lks_optim_attempts(b->opt), &outcome, NULL, NULL, NULL, NULL, NULL));
    return outcome;
}

/* turn that leaves the tracker at n with n finite steps. */
static void track(bench *b, int n)
{
    for (int i = 0; i < n; i++) turn(b, 0);
}

static void settings(void)
{
    lks_scaler *s;
    ok(good(ctx, lks_scaler_create(ctx, 1, &s)), "create");
    ok(lks_scaler_enabled(s) && scale_of(s) == 65536 && lks_scaler_growth_factor(s) == 2 &&
           lks_scaler_backoff_factor(s) == 0.5 && lks_scaler_growth_interval(s) == 2000 && tracker_of(s) == 0,
       "defaults");
    const double bad_scale[] = {0, -1, INFINITY, NAN, 0x1p127, 1e-45, 1e300};
    for (int i = 0; i < 7; i++)
        ok(fails(ctx, lks_scaler_set_scale(s, bad_scale[i]), LKS_ERR_ARGUMENT, "scale", NULL), "scale %g is refused",
           bad_scale[i]);
    const double bad_growth[] = {1, 0.5, INFINITY, NAN}, bad_backoff[] = {0, 1, -0.5, NAN};
    for (int i = 0; i < 4; i++) {
        ok(fails(ctx, lks_scaler_set_growth_factor(s, bad_growth[i]), LKS_ERR_ARGUMENT, "growth", NULL),
           "growth %g is refused", bad_growth[i]);
        ok(fails(ctx, lks_scaler_set_backoff_factor(s, bad_backoff[i]), LKS_ERR_ARGUMENT, "backoff", NULL),
           "backoff %g is refused", bad_backoff[i]);
    }
    ok(fails(ctx, lks_scaler_set_growth_interval(s, 0), LKS_ERR_ARGUMENT, "interval", "0"), "interval 0 is refused");
    ok(fails(ctx, lks_scaler_set_bounds(s, 0, 1), LKS_ERR_ARGUMENT, "floor", NULL), "floor 0 is refused");
    ok(fails(ctx, lks_scaler_set_bounds(s, 2, 1), LKS_ERR_ARGUMENT, "[2, 1]", NULL), "floor above ceiling is refused");
    ok(fails(ctx, lks_scaler_set_bounds(s, NAN, 1), LKS_ERR_ARGUMENT, NULL, NULL), "a NaN bound is refused");
    ok(fails(ctx, lks_scaler_set_floor_limit(s, -1), LKS_ERR_ARGUMENT, "-1", NULL), "negative floor limit is refused");
    ok(scale_of(s) == 65536 && lks_scaler_growth_factor(s) == 2 && lks_scaler_growth_interval(s) == 2000,
       "refused values change nothing");
    ok(good(ctx, lks_scaler_set_scale(s, 1024)) && scale_of(s) == 1024, "set_scale");
    ok(good(ctx, lks_scaler_set_growth_interval(s, 3)) && lks_scaler_growth_interval(s) == 3, "set_growth_interval");
    lks_scaler_destroy(&s);
    ok(s == NULL, "destroy");

    ok(good(ctx, lks_scaler_create(ctx, 0, &s)), "create disabled");
    double scale = 0;
    int64_t tracker = -1, g = -1, b = -1;
    ok(lks_scaler_get(s, &scale, &tracker) == LKS_OK && scale == 1 && tracker == 0, "disabled: scale 1");
    ok(lks_scaler_counts(s, &g, &b) == LKS_OK && g == 0 && b == 0, "disabled: no counts");
    lks_tensor *loss = lks_full(ctx, LKS_F32, 0, NULL, 3);
    ok(lks_scaler_scale(s, loss) == loss, "disabled: the loss itself");
    ok(good(ctx, lks_scaler_update(s)), "disabled: update does nothing");
    lks_scaler_destroy(&s);
    lks_scaler_destroy(&s);
}

static void product(void)
{
    lks_scaler *s;
    lks_scaler_create(ctx, 1, &s);
    /* B17: the seed is made in float32 */
    static const int64_t one_two[] = {1, 2}, one[] = {1};
    lks_tensor *logits = lks_zeros(ctx, LKS_F16, 2, one_two), *target = lks_zeros(ctx, LKS_I64, 1, one);
    lks_set_requires_grad(logits, 1);
    lks_tensor *loss = lks_cross_entropy(logits, target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
    lks_tensor *y = lks_scaler_scale(s, loss);
    ok(y && lks_dtype_of(y) == LKS_F32 && good(ctx, lks_backward(y, LKS_NONE, 0)), "B17 backward of the scaled loss");
    double d[2] = {0};
    if (lks_grad(logits)) get(lks_grad(logits), d);
    ok(d[0] == -32768 && d[1] == 32768, "B17 d logits = [%g, %g]", d[0], d[1]);
    lks_error_clear(ctx);
    lks_scaler *t;
    lks_scaler_create(ctx, 1, &t);
    lks_scaler_set_scale(t, 0x1p17);
    y = lks_scaler_scale(t, lks_full(ctx, LKS_F16, 0, NULL, 0x1p-17));
    double x = 0;
    ok(y && lks_dtype_of(y) == LKS_F32 && lks_item(y, &x) == LKS_OK && x == 1, "B17 2^-17 in f16 times 2^17 is 1");
    /* a graph that holds the scale notices that it changed */
    lks_tensor *w = lks_full(ctx, LKS_F32, 0, NULL, 2);
    lks_set_requires_grad(w, 1);
    y = lks_scaler_scale(t, w);
    ok(fails(ctx, lks_scaler_set_scale(t, 4), LKS_ERR_STATE, "lks_scaler_scale", "lks_scaler_update"),
       "set_scale with scaled gradients pending");
    ok(good(ctx, lks_backward(y, LKS_NONE, 0)) && get1(lks_grad(w)) == 0x1p17, "the gradient carries the scale");
    static const int64_t n2[] = {2};
    ok(!lks_scaler_scale(t, lks_zeros(ctx, LKS_I64, 1, n2)) && lks_error_code(ctx) == LKS_ERR_DTYPE,
       "an integer loss is refused");
    lks_error_clear(ctx);
    ok(lks_scaler_scale(t, NULL) == NULL && lks_error_code(ctx) == LKS_OK, "NULL passes through");
    lks_scaler_destroy(&t);
    lks_scaler_destroy(&s);
}

static void schedule(void)
{
    /* B01 */
    bench b = make(LKS_F32, 1, 1, 0);
    lks_scaler_set_growth_interval(b.s, 1);
    int grew = 1;
    for (int i = 1; i <= 150; i++) {
        turn(&b, 0);
        if (i == 110) grew &= scale_of(b.s) == 0x1p126 && tracker_of(b.s) == 0;
        if (i == 111) grew &= scale_of(b.s) == 0x1p126 && tracker_of(b.s) == 0;
    }
    ok(grew, "B01 110 growths reach 2^126, the next is refused, the tracker goes back to 0");
    ok(scale_of(b.s) == 0x1p126 && (float)(1 / scale_of(b.s)) > 0, "B01 after 150 steps it is still 2^126");
    drop(&b);
    b = make(LKS_F32, 1, 1, 0);
    lks_scaler_set_growth_interval(b.s, 1);
    ok(good(ctx, lks_scaler_set_bounds(b.s, 0x1p-126, 1e300)), "B01 ceiling lifted");
    for (int i = 0; i < 150; i++) turn(&b, 0);
    ok(scale_of(b.s) == 0x1p127, "B01 2^127 is reached, infinity refused");
    drop(&b);

    /* B03 */
    b = make(LKS_F16, 1, 1, 4);
    lks_scaler_set_bounds(b.s, 0x1p-10, 0x1p126);
    int skips = 0, steps = 0;
    for (int i = 0; i < 5; i++) {
        int o = turn(&b, 131072 * scale_of(b.s));
        skips += o == LKS_SKIPPED_HERE;
        steps += o == LKS_STEPPED;
    }
    lksi_state_block m;
    float master = 0;
    lksi_optim_block(b.opt, 0, &m);
    lksi_device_read(ctx->dev, &master, m.data, sizeof master);
    ok(skips == 4 && steps == 1 && scale_of(b.s) == 0.25, "B03 four skips, then a step at 0.25");
    ok(!strcmp(m.name, "master") && master == -131072, "B03 the unscaled gradient is exactly 131072");
    drop(&b);

    /* B04: at the floor */
    b = make(LKS_F32, 1, 1, 1);
    put(b.w[0], (double[]){7});
    lks_scaler_set_bounds(b.s, 1, 0x1p126);
    lks_scaler_set_floor_limit(b.s, 50);
    int first = 0, count = 0;
    for (int i = 1; i <= 200; i++) {
        put_grad1(b.w[0], INFINITY);
        good(ctx, lks_optim_step(b.opt, b.s));
        good(ctx, lks_scaler_update(b.s));
        lks_status s = lks_optim_report(b.opt, i, NULL, NULL, NULL, NULL, NULL, NULL);
        if (s == LKS_ERR_FLOOR) {
            if (!count++) first = i;
            lks_error_clear(ctx);
        } else if (s != LKS_OK) good(ctx, s);
    }
    ok(first == 51 && count == 1, "B04 the floor is reported once, at call 51 (was %d, %d times)", first, count);
    ok(scale_of(b.s) == 1 && get1(b.w[0]) == 7, "B04 scale and parameter stay");
    turn(&b, 0);
    for (int i = 0; i < 50; i++) turn(&b, INFINITY);
    put_grad1(b.w[0], NAN);
    lks_optim_step(b.opt, b.s);
    lks_scaler_update(b.s);
    ok(fails(ctx, lks_optim_report(b.opt, lks_optim_attempts(b.opt), NULL, NULL, NULL, NULL, NULL, NULL), LKS_ERR_FLOOR,
             "floor", NULL),
       "B04 a clean step starts the count anew");
    drop(&b);

    /* B10: the outcome does not follow from the scale */
    b = make(LKS_F32, 1, 1, 1);
    lks_scaler_set_bounds(b.s, 1, 0x1p126);
    ok(turn(&b, INFINITY) == LKS_SKIPPED_HERE && scale_of(b.s) == 1, "B10 skipped, scale 1 -> 1");
    drop(&b);
    b = make(LKS_F32, 1, 1, 1024);
    lks_scaler_set_growth_interval(b.s, 1);
    ok(turn(&b, 1) == LKS_STEPPED && scale_of(b.s) == 2048, "B10 stepped, scale 1024 -> 2048");
    drop(&b);

    /* a gradient equal to the scale, in float16 */
    b = make(LKS_F16, 1, 1, 65536);
    lks_scaler_set_growth_interval(b.s, 3);
    static const int want[] = {0, 1, 1, 1, 0, 1, 1};
    static const double scale[] = {32768, 32768, 32768, 65536, 32768, 32768, 32768};
    int same = 1;
    for (int i = 0; i < 7; i++) {
        int o = turn(&b, scale_of(b.s));
        same &= (o == LKS_STEPPED) == want[i] && scale_of(b.s) == scale[i];
    }
    ok(same, "skips and scales of a gradient that is the scale");
    int64_t g, bad;
    ok(good(ctx, lks_scaler_counts(b.s, &g, &bad)) && g == 5 && bad == 2, "counts");
    drop(&b);

    /* an interval lowered below the tracker grows at the next good step */
    b = make(LKS_F32, 1, 1, 8);
    track(&b, 5);
    lks_scaler_set_growth_interval(b.s, 3);
    turn(&b, 0);
    ok(scale_of(b.s) == 16 && tracker_of(b.s) == 0, "an interval below the tracker is met");
    /* odd factors: double product, float32 store */
    lks_scaler_set_growth_interval(b.s, 1);
    lks_scaler_set_growth_factor(b.s, 1.001);
    lks_scaler_set_backoff_factor(b.s, 0.7);
    float want_scale = 16;
    for (int i = 0; i < 30; i++) {
        turn(&b, i % 3 ? 0 : NAN);
        want_scale = (float)((double)want_scale * (i % 3 ? 1.001 : 0.7));
    }
    ok(scale_of(b.s) == (double)want_scale, "arithmetic of the schedule with odd factors");
    drop(&b);
}

static void order(void)
{
    /* B07 */
    enum { UNSCALE, STEP, UPDATE };
    static const char *const name[] = {"unscale", "step", "update"};
    static const char *const call[] = {"lks_optim_unscale", "lks_optim_step", "lks_scaler_update"};
    static const int legal[3][3] = {{0, 1, 1}, {0, 0, 1}, {1, 1, 0}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            bench b = make(LKS_F32, 2, 0.5, 1024);
            track(&b, 3);
            put_grad1(b.w[0], 2048);
            put_grad1(b.w[1], 512);
            lks_status s = LKS_OK;
            if (i == UPDATE) s = lks_optim_step(b.opt, b.s); /* something to update from */
            for (int k = 0; k < 2 && s == LKS_OK; k++) {
                int what = k ? j : i;
                int64_t n, m, t0 = k ? tracker_of(b.s) : 0;
                double s0 = k ? scale_of(b.s) : 0;
                char *before = snapshot(b.ps, b.opt, 1, &n);
                s = what == UNSCALE ? lks_optim_unscale(b.opt, b.s)
                    : what == STEP  ? lks_optim_step(b.opt, b.s)
                                    : lks_scaler_update(b.s);
                if (k) {
                    char *after = snapshot(b.ps, b.opt, 1, &m);
                    if (legal[i][j]) ok(good(ctx, s), "B07 %s -> %s", name[i], name[j]);
                    else {
                        ok(s == LKS_ERR_STATE && strstr(lks_error(ctx), call[j]) &&
                               (i == j || strstr(lks_error(ctx), call[i])),
                           "B07 %s -> %s is refused: %s", name[i], name[j], lks_error(ctx));
                        ok(n == m && !memcmp(before, after, (size_t)n) && scale_of(b.s) == s0 && tracker_of(b.s) == t0,
                           "B07 and changes nothing");
                        lks_error_clear(ctx);
                    }
                    free(after);
                }
                free(before);
            }
            drop(&b);
        }
    bench b = make(LKS_F32, 1, 1, 0);
    ok(fails(ctx, lks_scaler_update(b.s), LKS_ERR_STATE, "lks_optim_step", NULL), "update before any step");
    /* a new scaler in the place of an old one is another one */
    put_grad1(b.w[0], 1);
    lks_optim_step(b.opt, b.s);
    lks_scaler_destroy(&b.s);
    lks_scaler_create(ctx, 1, &b.s);
    ok(good(ctx, lks_optim_step(b.opt, b.s)), "a step with another scaler");
    /* without a scaler, and with a disabled one, steps are free */
    lks_scaler *off;
    lks_scaler_create(ctx, 0, &off);
    ok(good(ctx, lks_optim_step(b.opt, NULL)) && good(ctx, lks_optim_step(b.opt, off)) &&
           good(ctx, lks_optim_step(b.opt, NULL)),
       "steps without a scaler need no update");
    ok(good(ctx, lks_optim_unscale(b.opt, NULL)), "unscale without a scaler");
    ok(fails(ctx, lks_optim_unscale(b.opt, off), LKS_ERR_STATE, "lks_optim_unscale", "lks_optim_step"), "but once");
    ok(good(ctx, lks_optim_step(b.opt, NULL)) && good(ctx, lks_optim_unscale(b.opt, NULL)), "until the step");
    lks_scaler_destroy(&off);
    drop(&b);
}

static void outcomes(void)
{
    /* B09: two optimizers, one scaler */
    bench a = make(LKS_F32, 1, 0.1, 1024), b = make(LKS_F32, 1, 0.1, 0);
    lks_scaler_destroy(&b.s);
    track(&a, 7);
    put(a.w[0], (double[]){1});
    put(b.w[0], (double[]){1});
    put_grad1(a.w[0], INFINITY);
    put_grad1(b.w[0], 1024);
    int oa = 0, ob = 0;
    ok(tracker_of(a.s) == 7 && good(ctx, lks_optim_step(a.opt, a.s)) && good(ctx, lks_optim_step(b.opt, a.s)) &&
           good(ctx, lks_scaler_update(a.s)),
       "B09 two steps, one update");
    lks_optim_report(a.opt, 8, &oa, NULL, NULL, NULL, NULL, NULL);
    lks_optim_report(b.opt, 1, &ob, NULL, NULL, NULL, NULL, NULL);
    ok(oa == LKS_SKIPPED_HERE && ob == LKS_STEPPED, "B09 A skipped, B done");
    ok(get1(a.w[0]) == 1 && get1(b.w[0]) == (double)(1 - 0.1f), "B09 A untouched, B at 0.9");
    ok(scale_of(a.s) == 512 && tracker_of(a.s) == 0, "B09 scale 512, tracker 0");
    put_grad1(a.w[0], 1);
    put_grad1(b.w[0], 1);
    lks_optim_step(a.opt, a.s);
    lks_optim_step(b.opt, a.s);
    lks_scaler_update(a.s);
    ok(tracker_of(a.s) == 1, "the tracker counts updates, not optimizers");
    drop(&a);
    lks_optim_destroy(&b.opt);
    lks_params_destroy(&b.ps);

    /* B13 */
    a = make(LKS_F32, 2, 1, 1024);
    put_grad1(a.w[0], 2048);
    put_grad1(a.w[1], INFINITY);
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    ok(get1(a.w[0]->grad) == 2048 && isinf(get1(a.w[1]->grad)), "B13 a skip leaves gradients as they were");
    put_grad1(a.w[1], 1024);
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    ok(get1(a.w[0]->grad) == 2048 && get1(a.w[0]) == -4, "B13 so does a step");
    put_grad1(a.w[1], 1024);
    ok(good(ctx, lks_optim_unscale(a.opt, a.s)) && get1(a.w[0]->grad) == 4 && get1(a.w[1]->grad) == 2,
       "B13 unscale divides them, once");
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    ok(get1(a.w[0]) == -8 && get1(a.w[0]->grad) == 4, "B13 and the step does not divide again");
    /* what the program made of them after unscale is tested again */
    put_grad1(a.w[0], 512);
    put_grad1(a.w[1], 512);
    lks_optim_unscale(a.opt, a.s);
    put_grad1(a.w[0], NAN);
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    int o = 0;
    lks_optim_report(a.opt, lks_optim_attempts(a.opt), &o, NULL, NULL, NULL, NULL, NULL);
    ok(o == LKS_SKIPPED_HERE && get1(a.w[0]) == -8, "a NaN made after unscale is seen");
    /* an infinity found by unscale counts, also when the program then clears it, and without a step */
    double before = scale_of(a.s);
    put_grad1(a.w[0], INFINITY);
    put_grad1(a.w[1], 1);
    lks_optim_unscale(a.opt, a.s);
    put_grad1(a.w[0], 0);
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    lks_optim_report(a.opt, lks_optim_attempts(a.opt), &o, NULL, NULL, NULL, NULL, NULL);
    ok(o == LKS_SKIPPED_HERE && scale_of(a.s) == before / 2, "what unscale found stands");
    put_grad1(a.w[0], NAN);
    put_grad1(a.w[1], 1);
    lks_optim_unscale(a.opt, a.s);
    ok(good(ctx, lks_scaler_update(a.s)) && scale_of(a.s) == before / 4, "unscale and update without a step");
    put_grad1(a.w[0], 0);
    put_grad1(a.w[1], 0);
    lks_optim_step(a.opt, a.s);
    lks_scaler_update(a.s);
    lks_optim_report(a.opt, lks_optim_attempts(a.opt), &o, NULL, NULL, NULL, NULL, NULL);
    ok(o == LKS_STEPPED, "and is forgotten after the update");
    drop(&a);

    /* the unscaled value counts, too: scale below 1 */
    a = make(LKS_F32, 1, 1, 0x1p-10);
    ok(turn(&a, 3e38) == LKS_SKIPPED_HERE, "a finite gradient whose unscaled value is not");
    drop(&a);

    /* B14 */
    a = make(LKS_F32, 1, 1, 65536);
    double sum = INFINITY;
    int skips = 0;
    for (int i = 0; i < 4; i++, sum += 1) skips += turn(&a, sum) == LKS_SKIPPED_HERE;
    ok(skips == 4 && scale_of(a.s) == 4096, "B14 without zero_grad the infinity survives");
    drop(&a);
    a = make(LKS_F32, 1, 1, 65536);
    skips = turn(&a, INFINITY) == LKS_SKIPPED_HERE;
    lks_params_zero_grad(a.ps);
    ok(skips && lks_grad(a.w[0]) == NULL && turn(&a, 1) == LKS_STEPPED && scale_of(a.s) == 32768,
       "B14 with zero_grad the next steps");
    drop(&a);
    /* by backward passes, as a program does it */
    a = make(LKS_F32, 1, 1, 65536);
    put(a.w[0], (double[]){1});
    lks_tensor *huge = lks_full(ctx, LKS_F32, 0, NULL, 3e38);
    lks_backward(lks_scaler_scale(a.s, lks_mul(a.w[0], huge)), LKS_NONE, 0);
    ok(good(ctx, lks_optim_step(a.opt, a.s)) && good(ctx, lks_scaler_update(a.s)) && scale_of(a.s) == 32768,
       "B14 a gradient overflows");
    lks_backward(lks_scaler_scale(a.s, lks_mul_scalar(a.w[0], 2)), LKS_NONE, 0);
    ok(fails(ctx, lks_optim_unscale(a.opt, a.s), LKS_ERR_STATE, "lks_params_zero_grad", "w0") &&
           fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "lks_params_zero_grad", "w0"),
       "B14 what is added to it is refused");
    lks_params_zero_grad(a.ps);
    for (int i = 0; i < 2; i++) { /* two in one iteration are one scale's */
        lks_backward(lks_scaler_scale(a.s, lks_mul_scalar(a.w[0], 1)), LKS_NONE, 0);
        ok(get1(lks_grad(a.w[0])) == 32768 * (i + 1), "B14 accumulation at one scale, %d", i);
    }
    ok(good(ctx, lks_optim_step(a.opt, a.s)) && good(ctx, lks_scaler_update(a.s)) && get1(a.w[0]) == -1,
       "B14 after lks_params_zero_grad it steps");
    drop(&a);
    /* every other way to take a gradient for one of another scale */
    a = make(LKS_F32, 1, 1, 1024);
    lks_scaler *other = NULL;
    lks_scaler_create(ctx, 1, &other);
    lks_tensor *w = a.w[0];
    for (int first = 0; first < 2; first++) {
        lks_backward(first ? lks_scaler_scale(a.s, w) : w, LKS_NONE, 0);
        lks_backward(first ? w : lks_scaler_scale(a.s, w), LKS_NONE, 0);
        ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "different scales", "w0") && get1(w) == 0,
           "scaled and plain losses in one sum, %d", first);
        lks_params_zero_grad(a.ps);
    }
    lks_backward(lks_scaler_scale(a.s, w), LKS_NONE, 0);
    ok(fails(ctx, lks_optim_step(a.opt, NULL), LKS_ERR_STATE, "not given", "w0"), "a step without the scaler");
    ok(fails(ctx, lks_optim_step(a.opt, other), LKS_ERR_STATE, "another scaler", "w0"), "a step with another scaler");
    lks_backward(lks_scaler_scale(other, w), LKS_NONE, 0);
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "two scalers", "w0"), "losses of two scalers");
    lks_params_zero_grad(a.ps);
    lks_backward(lks_scaler_scale(a.s, w), LKS_NONE, 0);
    ok(good(ctx, lks_optim_step(a.opt, a.s)) && good(ctx, lks_scaler_update(a.s)) && get1(w) == -1, "a step");
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "before the last lks_scaler_update", "w0"),
       "another step with the same gradients");
    lks_params_zero_grad(a.ps);
    lks_backward(lks_scaler_scale(a.s, w), LKS_NONE, 0);
    ok(good(ctx, lks_optim_unscale(a.opt, a.s)) && good(ctx, lks_scaler_update(a.s)), "unscale and update");
    ok(fails(ctx, lks_optim_step(a.opt, a.s), LKS_ERR_STATE, "divided by lks_optim_unscale", "w0") &&
           fails(ctx, lks_optim_step(a.opt, other), LKS_ERR_STATE, "divided by lks_optim_unscale", "w0") &&
           get1(w) == -1,
       "are not divided again");
    ok(good(ctx, lks_optim_step(a.opt, NULL)) && get1(w) == -2, "but good for a step without a scaler");
    lks_params_zero_grad(a.ps);
    lks_scaler_set_bounds(a.s, 1, 256);
    put_grad1(w, 1);
    ok(good(ctx, lks_optim_step(a.opt, a.s)) && good(ctx, lks_scaler_update(a.s)) && scale_of(a.s) == 256,
       "bounds hold from the next update on");
    lks_scaler_destroy(&other);
    drop(&a);
    /* with a fixed scale gradients of several updates are one sum */
    a = make(LKS_F32, 1, 1, 1024);
    lks_scaler_set_dynamic(a.s, 0);
    put(a.w[0], (double[]){0});
    for (int i = 0; i < 2; i++) {
        lks_backward(lks_scaler_scale(a.s, lks_mul_scalar(a.w[0], 1)), LKS_NONE, 0);
        lks_optim_step(a.opt, a.s);
        ok(good(ctx, lks_scaler_update(a.s)), "a fixed scale");
    }
    ok(get1(a.w[0]) == -3, "and gradients that were kept");
    drop(&a);

    /* B19: windows of 4 micro-batches, summed by hand */
    for (int variant = 0; variant < 2; variant++) {
        a = make(LKS_F32, 1, 1, 65536);
        track(&a, 5);
        put(a.w[0], (double[]){3});
        float window = 0;
        double seen = 0;
        for (int m = 0; m < 4; m++) {
            float g = m == 0 ? INFINITY : variant && m == 1 ? -INFINITY : 1;
            window += g;
            seen += scale_of(a.s) == 65536;
        }
        int outcome = turn(&a, (double)window);
        ok(outcome == LKS_SKIPPED_HERE && seen == 4 && scale_of(a.s) == 32768 && tracker_of(a.s) == 0 &&
               get1(a.w[0]) == 3,
           "B19 one skip for the window (%s)", variant ? "inf - inf" : "inf");
        turn(&a, 1);
        ok(tracker_of(a.s) == 1 && scale_of(a.s) == 32768, "B19 the tracker counts windows");
        drop(&a);
    }
}

static void state(void)
{
    char text[1024], again[1024];
    bench b = make(LKS_F32, 1, 1, 0);
    lks_scaler_set_growth_factor(b.s, 1.1);
    lks_scaler_set_backoff_factor(b.s, 0.3);
    lks_scaler_set_growth_interval(b.s, 4);
    turn(&b, NAN);
    turn(&b, 1);
    turn(&b, 1);
    ok(good(ctx, lks_scaler_save_text(b.s, text, sizeof text)) && strlen(text) < 1023 && !strchr(text, '.'),
       "save: %s", text);
    lks_scaler *s;
    lks_scaler_create(ctx, 1, &s);
    ok(fails(ctx, lks_scaler_load_text(s, text, LKS_STATE_REFUSE), LKS_ERR_MISMATCH, "1.1", "2"),
       "REFUSE names both growth factors");
    ok(scale_of(s) == 65536 && tracker_of(s) == 0, "and changes nothing");
    ok(good(ctx, lks_scaler_load_text(s, text, LKS_STATE_KEEP)) && scale_of(s) == scale_of(b.s) && tracker_of(s) == 2 &&
           lks_scaler_growth_factor(s) == 2,
       "KEEP takes scale and tracker, not the schedule");
    ok(good(ctx, lks_scaler_load_text(s, text, LKS_STATE_ADOPT)) && lks_scaler_growth_factor(s) == 1.1 &&
           lks_scaler_growth_interval(s) == 4,
       "ADOPT takes the schedule, too");
    ok(good(ctx, lks_scaler_load_text(s, text, LKS_STATE_REFUSE)), "now REFUSE has nothing to refuse");
    ok(good(ctx, lks_scaler_save_text(s, again, sizeof again)) && !strcmp(text, again),
       "saved again it is the same text");
    lks_scaler *old = b.s;
    for (int i = 0; i < 5; i++) turn(&b, 1);
    b.s = s;
    for (int i = 0; i < 5; i++) turn(&b, 1);
    ok(scale_of(old) == scale_of(s) && tracker_of(old) == tracker_of(s), "and goes on alike");
    put_grad1(b.w[0], 1);
    lks_optim_step(b.opt, b.s);
    ok(fails(ctx, lks_scaler_save_text(b.s, text, sizeof text), LKS_ERR_STATE, "lks_optim_step", "lks_scaler_update"),
       "no save between step and update");
    lks_scaler_update(b.s);
    ok(fails(ctx, lks_scaler_save_text(b.s, text, 100), LKS_ERR_ARGUMENT, "1024", NULL), "a short buffer");
    static const char *const damaged[] = {"", "scale=1", "lockstep-scaler-2 scale=0x1p4", "lockstep-scaler-3 disabled"};
    for (int i = 0; i < 4; i++)
        ok(fails(ctx, lks_scaler_load_text(b.s, damaged[i], LKS_STATE_ADOPT), LKS_ERR_CORRUPT, NULL, NULL),
           "damaged text %d", i);
    int refused = 1, count = 0;
    double scale = scale_of(b.s);
    for (size_t i = 0; i + 1 < strlen(again); i++) { /* cut anywhere */
        char cut[1024];
        snprintf(cut, sizeof cut, "%.*s", (int)i, again);
        lks_status code = lks_scaler_load_text(b.s, cut, LKS_STATE_REFUSE);
        refused &= code != LKS_OK;
        count++;
        lks_error_clear(ctx);
    }
    ok(refused && scale_of(b.s) == scale, "%d truncated texts are refused", count);
    lks_scaler_destroy(&old);

    /* B16 */
    lks_scaler *off;
    lks_scaler_create(ctx, 0, &off);
    lks_scaler *free = NULL, *like = NULL;
    ok(good(ctx, lks_scaler_create(ctx, 1, &free)) && good(ctx, lks_scaler_create(ctx, 1, &like)) &&
           good(ctx, lks_scaler_set_bounds(free, 0x1p-126, INFINITY)) &&
           good(ctx, lks_scaler_save_text(free, text, sizeof text)) &&
           good(ctx, lks_scaler_load_text(like, text, LKS_STATE_ADOPT)) && isinf(lks_scaler_ceiling(like)),
       "a ceiling that was lifted for good is kept: %s", text);
    lks_scaler_destroy(&free);
    lks_scaler_destroy(&like);
    ok(good(ctx, lks_scaler_save_text(off, text, sizeof text)), "B16 a disabled scaler saves");
    lks_scaler_create(ctx, 1, &s);
    ok(fails(ctx, lks_scaler_load_text(s, text, LKS_STATE_ADOPT), LKS_ERR_MISMATCH, "no scaler state", NULL) &&
           scale_of(s) == 65536,
       "B16 enabled does not take the state of a disabled one");
    ok(good(ctx, lks_scaler_load_text(off, again, LKS_STATE_REFUSE)) && scale_of(off) == 1,
       "B16 disabled takes any and keeps none");
    lksi_scaler_saved raw;
    ok(good(ctx, lksi_scaler_read(s, &raw)) && raw.enabled && raw.scale_bits == 0x47800000 && raw.interval == 2000,
       "raw state");
    raw.scale_bits = 0x7f800000;
    ok(fails(ctx, lksi_scaler_write(s, &raw, LKS_STATE_ADOPT), LKS_ERR_CORRUPT, NULL, NULL),
       "an infinite scale is refused");
    raw.scale_bits = 0x7f000000;
    ok(good(ctx, lksi_scaler_write(s, &raw, LKS_STATE_KEEP)) && scale_of(s) == 0x1p126,
       "KEEP: within the program's bounds");
    ok(fails(ctx, lksi_scaler_write(s, &raw, 7), LKS_ERR_ARGUMENT, "7", NULL), "unknown policy");
    lks_scaler_destroy(&s);
    lks_scaler_destroy(&off);
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
        settings();
        product();
        schedule();
        order();
        outcomes();
        state();
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
