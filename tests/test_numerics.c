/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_numerics.c - faults that other systems had with numbers, one by one, under the numbers of their reports (B44
 * ...): half-precision sums and means, masked softmax, conversions bit by bit, dropout's slices of one mask, the finite
 * test and the program's floating-point environment. Whole families are compared elsewhere (test_reduce, test_softmax,
 * ...).
 */
#define _GNU_SOURCE
#include "arrays.h"

#if defined __x86_64__
#include <fenv.h>
#endif

static lks_context *ctx;

static double value_of(lks_tensor *t)
{
    double v = -12345;
    if (!t || lks_to_host(lks_to(t, LKS_F64), &v, sizeof v) != LKS_OK) {
        diag("not read: %s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    return v;
}

static lks_tensor *filled(lks_dtype dtype, int64_t n, double v)
{
    return lks_full(ctx, dtype, 1, &n, v);
}

/* --- sums of half precision --- */

static void test_mean(const char *device)
{
    lks_scope_begin(ctx);
    lks_tensor *ones = filled(LKS_F16, 100000, 1), *high = filled(LKS_F16, 3, 40000);
    ok(value_of(lks_mean(ones, 0, NULL, 0, LKS_DTYPE_NONE)) == 1 &&
           value_of(lks_mean(high, 0, NULL, 0, LKS_DTYPE_NONE)) == 40000,
       "B44: %s: the mean of half-precision values whose sum overflows", device);
    ok(isinf(value_of(lks_sum(ones, 0, NULL, 0, LKS_DTYPE_NONE))), "B44: %s: a sum beyond 65504 is inf in f16", device);
    ok(value_of(lks_sum(ones, 0, NULL, 0, LKS_F32)) == 100000, "B44: %s: and right where float32 is asked for", device);
    lks_scope_end(ctx);
}

static void test_running_sum(const char *device)
{
    static const int64_t sizes[] = {2050, 5000, 10000};
    int good = 1, dots = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        lks_scope_begin(ctx);
        lks_tensor *ones = filled(LKS_F16, sizes[i], 1);
        good &= value_of(lks_sum(ones, 0, NULL, 0, LKS_DTYPE_NONE)) == (double)sizes[i];
        dots &= value_of(lks_matmul(ones, ones)) == (double)sizes[i];
        lks_scope_end(ctx);
    }
    ok(good, "B46: %s: a half-precision sum of ones counts beyond 2048", device);
    ok(dots, "B46: %s: so does a dot product", device);
}

/* --- softmax --- */

static void test_masked_rows(const char *device)
{
    static const int64_t shape[2] = {2, 2};
    static const double v[4] = {0, 1, -INFINITY, -INFINITY}, up[4] = {1, 0, 1, 0};
    static const lks_dtype types[2] = {LKS_F32, LKS_F64};
    for (int i = 0; i < 2; i++) {
        lks_scope_begin(ctx);
        lks_tensor *x = tensor_of(ctx, types[i], 2, shape, v), *dy = tensor_of(ctx, types[i], 2, shape, up);
        lks_set_requires_grad(x, 1);
        lks_tensor *y = lks_softmax(x, 1);
        double *a = values_of(ctx, y), *g = NULL;
        if (lks_backward(y, dy, 0) == LKS_OK) g = values_of(ctx, lks_grad(x));
        ok(a && fabs(a[0] - 0.26894142) < 1e-7 && fabs(a[1] - 0.73105858) < 1e-7 && a[2] == 0 && a[3] == 0,
           "B47: %s, %s: a row that is masked wholly gives zeros, the other row its softmax", device,
           lks_dtype_name(types[i]));
        ok(g && fabs(g[0] - 0.19661193) < 1e-7 && fabs(g[1] + 0.19661193) < 1e-7 && g[2] == 0 && g[3] == 0,
           "B47: %s, %s: and a zero gradient, no NaN", device, lks_dtype_name(types[i]));
        free(a);
        free(g);
        lks_scope_end(ctx);
    }
}

/* --- variance --- */

static int all_are(lks_tensor *t, double want)
{
    double *v = values_of(ctx, t);
    int yes = v && lks_numel(t) > 0;
    for (int64_t i = 0; yes && i < lks_numel(t); i++) yes = isnan(want) ? isnan(v[i]) : v[i] == want;
    free(v);
    return yes;
}

static void test_spread(const char *device)
{
    static const int64_t shape[2] = {16, 3}, one[4] = {1, 1, 1, 1}, first = 1;
    static const lks_dtype types[4] = {LKS_F64, LKS_F32, LKS_F16, LKS_BF16};
    static const int dim = 0;
    for (int i = 0; i < 4; i++) {
        const char *name = lks_dtype_name(types[i]);
        lks_scope_begin(ctx);
        lks_tensor *x = lks_full(ctx, types[i], 2, shape, 1);
        lks_set_requires_grad(x, 1);
        lks_tensor *y = lks_mean(lks_std(x, 1, &dim, 0, 1), 0, NULL, 0, LKS_DTYPE_NONE);
        ok(value_of(y) == 0 && lks_backward(y, LKS_NONE, 0) == LKS_OK && all_are(lks_grad(x), 0),
           "B40: %s, %s: the standard deviation of a constant is 0, and so is its gradient", device, name);
        lks_tensor *four = lks_full(ctx, types[i], 1, &first, 4);
        ok(value_of(lks_var(four, 0, NULL, 0, 0)) == 0 && value_of(lks_std(four, 0, NULL, 0, 0)) == 0,
           "B41: %s, %s: one element with correction 0", device, name);
        ok(isnan(value_of(lks_var(four, 0, NULL, 0, 1))) && isnan(value_of(lks_std(four, 0, NULL, 0, 1))),
           "B41: %s, %s: with correction 1 it is NaN", device, name);
        lks_tensor *column = lks_reshape(x, 2, (int64_t[]){48, 1}), *beta = lks_full(ctx, types[i], 1, &first, 0.25);
        lks_zero_grad(x);
        y = lks_layer_norm(column, 1, lks_full(ctx, types[i], 1, &first, 3), beta, 1e-5);
        ok(all_are(y, 0.25) && lks_backward(lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) == LKS_OK &&
               all_are(lks_grad(x), 0),
           "B41: %s, %s: layer norm of one feature is its bias, with gradient 0", device, name);
        lks_tensor *image = lks_full(ctx, types[i], 4, one, 7);
        lks_set_requires_grad(image, 1);
        y = lks_batch_norm(image, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5);
        if (y)
            ok(all_are(y, 0) && lks_backward(lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) == LKS_OK &&
                   all_are(lks_grad(image), 0),
               "B41: %s, %s: batch norm of one value is 0, with gradient 0", device, name);
        else
            ok(lks_error_code(ctx) == LKS_ERR_SHAPE, "B41: %s, %s: batch norm of one value is refused", device, name);
        lks_error_clear(ctx);
        lks_scope_end(ctx);
    }
}

/* --- conversions --- */

static void test_to_half(const char *device)
{
    static const float v[11] = {65504, 65519.99f, 65520, 2049, 2051, 0x1p-14f, 0x1p-24f, 0x1p-25f,
                                0x1p-25f * (1 + 0x1p-10f), -0.0f, NAN};
    static const uint16_t want[10] = {0x7bff, 0x7bff, 0x7c00, 0x6800, 0x6802, 0x0400, 0x0001, 0x0000, 0x0001, 0x8000};
    static const int64_t n = 11;
    uint16_t got[11] = {0};
    lks_scope_begin(ctx);
    lks_status s = lks_to_host(lks_to(lks_from_host(ctx, LKS_F32, 1, &n, v), LKS_F16), got, sizeof got);
    ok(s == LKS_OK && !memcmp(got, want, sizeof want), "B64: %s: float32 to f16: overflow, ties to even, subnormals",
       device);
    ok((got[10] & 0x7e00) == 0x7e00, "B64: %s: NaN becomes a quiet NaN", device);
    lks_scope_end(ctx);
}

static int bf16_trip(void)
{
    static const int64_t n = 65536;
    uint16_t *in = malloc((size_t)n * 2), *out = malloc((size_t)n * 2);
    uint32_t tiny = 0x007fffff;
    uint16_t rounded = 0;
    int bad = 0;
    for (int64_t i = 0; i < n; i++) in[i] = (uint16_t)i;
    lks_scope_begin(ctx);
    lks_tensor *t = lks_to(lks_to(lks_from_host(ctx, LKS_BF16, 1, &n, in), LKS_F32), LKS_BF16);
    bad += lks_to_host(t, out, n * 2) != LKS_OK;
    for (int64_t i = 0; i < n; i++) {
        int nan = (i & 0x7f80) == 0x7f80 && (i & 0x7f);
        bad += nan ? (out[i] & 0x7f80) != 0x7f80 || !(out[i] & 0x7f) : out[i] != in[i];
    }
    bad += lks_to_host(lks_to(lks_from_host(ctx, LKS_F32, 0, NULL, &tiny), LKS_BF16), &rounded, 2) != LKS_OK;
    bad += rounded != 0x0080;
    lks_scope_end(ctx);
    free(in);
    free(out);
    return bad;
}

static void test_bf16(const char *device)
{
    is_int(bf16_trip(), 0, "B66: %s: every bf16 goes to float32 and back bit by bit", device);
#if defined __x86_64__
    unsigned csr = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(csr | 0x8040);
    int bad = bf16_trip();
    __builtin_ia32_ldmxcsr(csr);
    is_int(bad, 0, "B66: %s: also when the program flushes denormal numbers", device);
#endif
}

/* --- dropout --- */

enum { SHARES = 4, SHARE = 4096 };

/* The mask of elements [first, first + n) as bytes. */
static int mask_of(int64_t first, int64_t n, uint8_t *mask)
{
    int64_t shape[2] = {n / 16, 16};
    if (lks_random_rows(ctx, first / 16, n / 16) != LKS_OK) return 1;
    double *v = values_of(ctx, lks_dropout(lks_ones(ctx, LKS_F32, 2, shape), 0.5));
    for (int64_t i = 0; v && i < n; i++) mask[i] = v[i] > 0;
    free(v);
    return !v;
}

static void test_dropout(const char *device)
{
    static uint8_t whole[SHARES * SHARE], part[SHARES][SHARE];
    int bad = 0, slices = 1, kept = 0, apart = 1;
    lks_scope_begin(ctx);
    /* The same call of the same step, as each of four ranks would make it. */
    for (int r = -1; r < SHARES; r++) {
        bad += lks_random_set(ctx, 7, 0) != LKS_OK;
        bad += mask_of(r < 0 ? 0 : r * SHARE, r < 0 ? SHARES * SHARE : SHARE, r < 0 ? whole : part[r]);
    }
    for (int r = 0; r < SHARES; r++) {
        slices &= !memcmp(whole + r * SHARE, part[r], SHARE);
        for (int i = 0; i < SHARE; i++) kept += part[r][i];
        for (int o = 0; o < r; o++) {
            int same = 0;
            for (int i = 0; i < SHARE; i++) same += part[r][i] == part[o][i];
            apart &= fabs(same / (double)SHARE - 0.5) < 0.04;
        }
    }
    lks_random_rows(ctx, 0, 0);
    ok(!bad && slices, "B138: %s: the masks of four ranks are slices of one mask over the global batch", device);
    ok(apart, "B138: %s: two ranks' masks agree in half of the places", device);
    ok(fabs(kept / (double)(SHARES * SHARE) - 0.5) < 0.03, "B138: %s: half is kept", device);
    lks_scope_end(ctx);
}

/* --- finite or not, and the program's floating-point environment --- */

/* One SGD step on a parameter of three elements, one of them with gradient v: its outcome, or a negative status. */
static int step_with(lks_dtype dtype, double v)
{
    static const int64_t n = 3;
    const double g[3] = {0, v, 0};
    lks_params *ps = NULL;
    lks_optim *opt = NULL;
    lks_tensor *w = NULL;
    int outcome = 0;
    lks_scope_begin(ctx);
    lks_status s = lks_params_create(ctx, &ps);
    if (s == LKS_OK) s = lks_params_add(ps, "w", dtype, 1, &n, &w);
    if (s == LKS_OK) s = lks_optim_create(ps, LKS_SGD, &opt);
    if (s == LKS_OK) s = lks_params_zero_grad(ps);
    if (s == LKS_OK) s = lks_backward(lks_affine(w, 1, 0), tensor_of(ctx, dtype, 1, &n, g), 0);
    if (s == LKS_OK) s = lks_optim_step(opt, NULL);
    if (s == LKS_OK) s = lks_optim_report(opt, 1, &outcome, NULL, NULL, NULL, NULL, NULL);
    if (s != LKS_OK) {
        diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    lks_optim_destroy(&opt);
    lks_params_destroy(&ps);
    lks_scope_end(ctx);
    return s == LKS_OK ? outcome : -1;
}

static void test_finite(const char *device)
{
    static const lks_dtype types[3] = {LKS_F32, LKS_F16, LKS_BF16};
    for (int k = 0; k < 3; k++)
        ok(step_with(types[k], NAN) == LKS_SKIPPED_HERE && step_with(types[k], INFINITY) == LKS_SKIPPED_HERE &&
               step_with(types[k], -INFINITY) == LKS_SKIPPED_HERE &&
               step_with(types[k], types[k] == LKS_F16 ? 65504 : 3.38e38) == LKS_STEPPED,
           "B141: %s, %s: NaN, inf and -inf in a gradient skip the step, the largest number does not", device,
           lks_dtype_name(types[k]));
}

static void test_traps(const char *device)
{
#if defined __x86_64__
    static const int64_t shape[2] = {2, 2}, none = 0;
    static const double v[4] = {0, 1, -INFINITY, -INFINITY};
    if (emulated()) {
        skip(2, "valgrind has no traps");
        return;
    }
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    lks_scope_begin(ctx);
    int outcome = step_with(LKS_F16, INFINITY);
    double *soft = values_of(ctx, lks_softmax(tensor_of(ctx, LKS_F32, 2, shape, v), 1));
    double *mean = values_of(ctx, lks_mean(lks_zeros(ctx, LKS_F32, 1, &none), 0, NULL, 0, LKS_DTYPE_NONE));
    lks_scope_end(ctx);
    int traps = fegetexcept(), flags = fetestexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    fedisableexcept(FE_ALL_EXCEPT);
    ok(outcome == LKS_SKIPPED_HERE && soft && soft[2] == 0 && mean && isnan(*mean),
       "B142: %s: a step with inf, a masked softmax and the mean of nothing raise no trap", device);
    ok(traps == (FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW) && !flags,
       "B142: %s: the program's traps are on again, its flags untouched", device);
    free(soft);
    free(mean);
#else
    skip(2, "written for x86-64");
#endif
}

#if defined __x86_64__
/* Numbers that are refused, and such that the host computes: how many calls did as they should. */
static int refusals(float *weights)
{
    static const int64_t shape[2] = {10, 9}, q[4] = {1, 1, 4, 4};
    lks_params *ps = NULL;
    lks_optim *opt = NULL;
    lks_scaler *s = NULL;
    lks_dp *dp = NULL;
    lks_config *config = lks_config_new();
    lks_module *m = NULL;
    lks_tensor *w = NULL, *x = lks_ones(ctx, LKS_F32, 2, shape), *image = lks_ones(ctx, LKS_F32, 4, q);
    char text[1024];
    const double nan = NAN;
    int n = 0;
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, 2, shape, &w);
    lks_optim_create(ps, LKS_ADAMW, &opt);
    lks_scaler_create(ctx, 1, &s);
    lks_dp_create(ps, 0, &dp);
    n += !lks_dropout(x, nan) + !lks_softplus(x, nan, nan) + !lks_renorm(x, nan, 0, 1) + !lks_renorm(x, 2, 0, nan);
    n += !lks_quantile(x, 1, &nan, 0, 0, 0) + !lks_triplet_margin_loss(x, x, x, 1, nan, 0, 0, LKS_REDUCTION_MEAN);
    n += !lks_scaled_dot_product_attention(image, image, image, LKS_NONE, nan, 0, 0) + !lks_clamp(x, nan, 1);
    n += lks_bernoulli_(x, nan) < 0;
    n += (lks_init_normal(w, nan) < 0) + (lks_dropout_create(ps, nan, &m) < 0) + (lks_dp_set_nominal(dp, nan) < 0);
    n += (lks_optim_set_lr(opt, -1, nan) < 0) + (lks_optim_set_weight_decay(opt, -1, nan) < 0);
    n += (lks_optim_set_betas(opt, -1, nan, nan) < 0) + (lks_optim_set_eps(opt, -1, nan) < 0);
    n += (lks_optim_set_clip_norm(opt, nan) < 0) + (lks_optim_set_clip_value(opt, nan) < 0);
    n += (lks_optim_set_ema(opt, nan, 0) < 0) + (lks_optim_set_schedule_table(opt, 1, &nan) < 0);
    n += (lks_optim_set_schedule(opt, LKS_SCHEDULE_COSINE, 0, 9, nan, 1, 1) < 0);
    n += (lks_scaler_set_scale(s, 1e300) < 0) + (lks_scaler_set_growth_factor(s, nan) < 0);
    n += (lks_scaler_set_backoff_factor(s, nan) < 0) + (lks_scaler_set_bounds(s, nan, nan) < 0);
    n += (lks_scaler_set_bounds(s, 1, INFINITY) == LKS_OK) + (lks_scaler_save_text(s, text, sizeof text) == LKS_OK);
    n += (lks_scaler_load_text(s, text, LKS_STATE_REFUSE) == LKS_OK) + (lks_config_set_deadline(config, nan) < 0);
    lks_random_set(ctx, 1, 1);
    n += lks_init_kaiming_uniform(w, 9) == LKS_OK && lks_to_host(w, weights, 360) == LKS_OK;
    n += lks_init_xavier_uniform(w, 9, 10) == LKS_OK && lks_to_host(w, weights + 90, 360) == LKS_OK;
    n += lks_init_kaiming_normal(w, 7) == LKS_OK && lks_to_host(w, weights + 180, 360) == LKS_OK;
    lks_config_free(config);
    lks_dp_destroy(&dp);
    lks_optim_destroy(&opt);
    lks_scaler_destroy(&s);
    lks_params_destroy(&ps);
    lks_error_clear(ctx);
    return n;
}
#endif

/* What public functions compute before and after the door. */
static void test_outside(const char *device)
{
#if defined __x86_64__
    static float plain[270], guest[270];
    if (emulated()) {
        skip(2, "valgrind has no traps");
        return;
    }
    lks_scope_begin(ctx);
    int n = refusals(plain);
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_UPWARD);
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    int again = refusals(guest);
    int traps = fegetexcept(), flags = fetestexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW), rounding = fegetround();
    fedisableexcept(FE_ALL_EXCEPT);
    fesetround(FE_TONEAREST);
    lks_scope_end(ctx);
    ok(n == 32 && again == n && !flags && traps == (FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW) && rounding == FE_UPWARD,
       "B142: %s: numbers that are refused raise no trap (%d and %d of 32)", device, n, again);
    ok(!memcmp(plain, guest, sizeof plain), "B142: %s: initial weights do not know the program's rounding", device);
#else
    skip(2, "written for x86-64");
#endif
}

int main(int argc, char **argv)
{
    static const char *const devices[] = {"cpu", "far"};
    MPI_Init(&argc, &argv);
    for (int d = 0; d < 2; d++) {
        ctx = context_on(devices[d], NULL, 2);
        if (!ctx) {
            ok(0, "a context on %s", devices[d]);
            continue;
        }
        test_mean(devices[d]);
        test_running_sum(devices[d]);
        test_masked_rows(devices[d]);
        test_spread(devices[d]);
        test_to_half(devices[d]);
        test_bf16(devices[d]);
        test_dropout(devices[d]);
        test_finite(devices[d]);
        test_traps(devices[d]);
        test_outside(devices[d]);
        ok(lks_context_destroy(&ctx) == LKS_OK, "%s: nothing is left", devices[d]);
    }
    MPI_Finalize();
    return done();
}
