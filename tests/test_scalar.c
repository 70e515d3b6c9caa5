/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_scalar.c - formulas, reductions beyond sums, scans and what is made of them, by value: accuracy of every formula
 * in float32 against double arithmetic, edge values, integers, ties, zeros in products, large means, norms that would
 * overflow, random numbers, refusals. Gradients, layouts and dtypes are test_ops.c's.
 */
#include "arrays.h"
#include "kernels.h"

static kernels k;

/* --- formulas ----------------------------------------------------------------------------------------------------- */

typedef struct formula {
    const char *name;
    int op;
    double (*of)(double x, double z);
    double units, low, high; /* allowed error; range of x */
    double a, b;
} formula;

#define REF(name, expr) static double ref_##name(double x, double z) { (void)z; return expr; }
REF(expm1, expm1(x))
REF(log1p, log1p(x))
REF(log2, log2(x))
REF(log10, log10(x))
REF(rsqrt, 1 / sqrt(x))
REF(reciprocal, 1 / x)
REF(sin, sin(x))
REF(cos, cos(x))
REF(tan, tan(x))
REF(asin, asin(x))
REF(acos, acos(x))
REF(sinh, sinh(x))
REF(cosh, cosh(x))
REF(erf, erf(x))
REF(silu, x / (1 + exp(-x)))
REF(hardswish, x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6)
REF(elu, x > 0 ? x : 0.75 * expm1(x))
REF(leaky_relu, x > 0 ? x : 0.125 * x)
REF(softplus, 2 * x > 20 ? x : (x > 0 ? x : 0) + log1p(exp(-fabs(2 * x))) / 2)
REF(pow_cube, x * x * x)
REF(pow_third, pow(x, (double)0.3f))
REF(rpow, pow(1.75, x))
REF(pow, pow(x, z))
REF(atan2, atan2(x, z))
static double ref_erfinv(double x, double z)
{
    (void)z;
    double low = -7, high = 7; /* by halving */
    for (int i = 0; i < 200; i++) {
        double m = (low + high) / 2;
        int below = x > 0.5 ? erfc(m) > 1 - x : x > -0.5 ? erf(m) < x : erfc(-m) < 1 + x;
        if (below) low = m;
        else high = m;
    }
    return low;
}

static const formula formulas[] = {
    {"expm1", LKSI_OP_expm1, ref_expm1, 2, -100, 89, 0, 0},
    {"log1p", LKSI_OP_log1p, ref_log1p, 2, -0.99999, 1e30, 0, 0},
    {"log2", LKSI_OP_log2, ref_log2, 0.6, 0, 1e38, 0, 0},
    {"log10", LKSI_OP_log10, ref_log10, 0.6, 0, 1e38, 0, 0},
    {"rsqrt", LKSI_OP_rsqrt, ref_rsqrt, 1.6, 0, 1e38, 0, 0},
    {"reciprocal", LKSI_OP_reciprocal, ref_reciprocal, 0.5, -1e30, 1e30, 0, 0},
    {"sin", LKSI_OP_sin, ref_sin, 0.6, -1e5, 1e5, 0, 0},
    {"cos", LKSI_OP_cos, ref_cos, 0.6, -1e5, 1e5, 0, 0},
    {"tan", LKSI_OP_tan, ref_tan, 0.6, -1e5, 1e5, 0, 0},
    {"sin of large arguments", LKSI_OP_sin, ref_sin, 0.6, -1e30, 1e30, 0, 0},
    {"tan of large arguments", LKSI_OP_tan, ref_tan, 0.6, -1e30, 1e30, 0, 0},
    {"asin", LKSI_OP_asin, ref_asin, 0.6, -1, 1, 0, 0},
    {"acos", LKSI_OP_acos, ref_acos, 0.6, -1, 1, 0, 0},
    {"sinh", LKSI_OP_sinh, ref_sinh, 0.6, -89, 89, 0, 0},
    {"cosh", LKSI_OP_cosh, ref_cosh, 0.6, -89, 89, 0, 0},
    {"erf", LKSI_OP_erf, ref_erf, 2.6, -6, 6, 0, 0},
    {"erfinv", LKSI_OP_erfinv, ref_erfinv, 0.9, -0.9999999, 0.9999999, 0, 0},
    {"silu", LKSI_OP_silu, ref_silu, 4, -80, 80, 0, 0},
    {"hardswish", LKSI_OP_hardswish, ref_hardswish, 2, -5, 5, 0, 0},
    {"elu", LKSI_OP_elu, ref_elu, 3, -100, 100, 0.75, 0},
    {"leaky_relu", LKSI_OP_leaky_relu, ref_leaky_relu, 0.5, -1e10, 1e10, 0.125, 0},
    {"softplus", LKSI_OP_softplus, ref_softplus, 4, -40, 40, 2, 20},
    {"x^3", LKSI_OP_pow_scalar, ref_pow_cube, 0.6, -1e12, 1e12, 3, 0},
    {"x^0.3", LKSI_OP_pow_scalar, ref_pow_third, 0.6, 0, 1e38, (double)0.3f, 0},
    {"1.75^x", LKSI_OP_rpow, ref_rpow, 0.6, -100, 100, 1.75, 0},
    {"pow", LKSI_OP_pow, ref_pow, 1, 0, 100, 0, 0},
    {"atan2", LKSI_OP_atan2, ref_atan2, 0.6, -100, 100, 0, 0},
};

static void accuracy(const char *isa)
{
    enum { N = 40000 };
    static float x[N], z[N], y[N];
    int64_t shape[1] = {N};
    for (unsigned i = 0; i < sizeof formulas / sizeof *formulas; i++) {
        const formula *f = &formulas[i];
        double worst = 0, at = 0, with = 0;
        lksi_view in[2] = {view_of(x, LKS_F32, 1, shape), view_of(z, LKS_F32, 1, shape)};
        lksi_view out = view_of(y, LKS_F32, 1, shape);
        lksi_attr attr = {.scalar = {.a = f->a, .b = f->b}};
        for (int j = 0; j < N; j++) { /* evenly, and by orders of magnitude */
            double v = dice_real(f->low, f->high);
            if (j % 2) v *= ldexp(1, -(int)dice(j % 4 == 1 ? 12 : 60));
            x[j] = (float)v;
            if (x[j] < (float)f->low || x[j] > (float)f->high) x[j] = 0.5f;
            z[j] = (float)dice_real(-9, 9);
        }
        if (kernels_run(&k, f->op, lksi_rows[f->op].min_in, in, &attr, 1, &out) != LKS_OK) diag("%s", k.why);
        for (int j = 0; j < N; j++) {
            double want = f->of(x[j], z[j]);
            int e;
            if (y[j] == (float)want) continue;
            frexp(want, &e);
            double error = fabs(y[j] - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
            if (!(error <= worst)) worst = error, at = x[j], with = z[j];
        }
        ok(worst <= f->units, "%s: %s within %g units in the last place (%.2f at %a, %g)", isa, f->name, f->units,
           worst, at, with);
    }
}

static float value(int op, double a, double b, int n, float x, float z, float c)
{
    float y = 77;
    lksi_view in[3] = {view_of(&x, LKS_F32, 0, NULL), view_of(&z, LKS_F32, 0, NULL), view_of(&c, LKS_F32, 0, NULL)};
    lksi_view out = view_of(&y, LKS_F32, 0, NULL);
    lksi_attr attr = {.scalar = {.a = a, .b = b}};
    if (kernels_run(&k, op, n, in, &attr, 1, &out) != LKS_OK) diag("%s", k.why);
    return y;
}

static int alike(double got, double want)
{
    return isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want);
}

#define OF(name, x, want) is_bits(value(LKSI_OP_##name, 0, 0, 1, x, 0, 0), want, isa, #name " of " #x)
#define OF2(name, x, z, want) is_bits(value(LKSI_OP_##name, 0, 0, 2, x, z, 0), want, isa, #name " of " #x ", " #z)
static void is_bits(double got, double want, const char *isa, const char *what)
{
    ok(alike(got, want), "%s: %s is %g", isa, what, want);
    if (!alike(got, want)) diag("got %.9g", got);
}

static void edges(const char *isa)
{
    const float inf = INFINITY, nan = NAN, tiny = 0x1p-149f, half_pi = 0x1.921fb6p+0f, pi = 0x1.921fb6p+1f;
    OF(expm1, -0.0f, -0.0); OF(expm1, inf, inf); OF(expm1, -inf, -1); OF(expm1, nan, nan); OF(expm1, tiny, tiny);
    OF(expm1, 89, inf); OF(expm1, -30, -1);
    OF(log1p, -0.0f, -0.0); OF(log1p, inf, inf); OF(log1p, -1, -inf); OF(log1p, -2, nan); OF(log1p, nan, nan);
    OF(log1p, tiny, tiny);
    OF(log2, 0, -inf); OF(log2, 8, 3); OF(log2, tiny, -149); OF(log2, inf, inf); OF(log2, -1, nan); OF(log2, nan, nan);
    OF(log10, 1000, 3); OF(log10, 0, -inf); OF(log10, 1, 0); OF(log10, -inf, nan);
    OF(rsqrt, 0, inf); OF(rsqrt, -0.0f, -inf); OF(rsqrt, inf, 0); OF(rsqrt, -1, nan); OF(rsqrt, 4, 0.5);
    OF(reciprocal, -0.0f, -inf); OF(reciprocal, inf, 0); OF(reciprocal, nan, nan);
    OF(abs, -0.0f, 0); OF(abs, -inf, inf); OF(abs, nan, nan);
    OF(sign, -3, -1); OF(sign, 0, 0); OF(sign, inf, 1); OF(sign, nan, 0);
    OF(sin, -0.0f, -0.0); OF(sin, inf, nan); OF(sin, nan, nan); OF(sin, tiny, tiny);
    OF(cos, 0, 1); OF(cos, -inf, nan); OF(cos, nan, nan);
    OF(tan, -0.0f, -0.0); OF(tan, inf, nan);
    OF(asin, -0.0f, -0.0); OF(asin, 1, half_pi); OF(asin, -1, -half_pi); OF(asin, 1.5f, nan); OF(asin, nan, nan);
    OF(acos, 1, 0); OF(acos, -1, pi); OF(acos, -1.5f, nan); OF(acos, 0, half_pi); OF(acos, nan, nan);
    OF(sinh, -0.0f, -0.0); OF(sinh, inf, inf); OF(sinh, -inf, -inf); OF(sinh, nan, nan); OF(sinh, tiny, tiny);
    OF(cosh, 0, 1); OF(cosh, -inf, inf); OF(cosh, nan, nan);
    OF(erf, -0.0f, -0.0); OF(erf, inf, 1); OF(erf, -inf, -1); OF(erf, nan, nan); OF(erf, 20, 1);
    OF(erfinv, -0.0f, -0.0); OF(erfinv, 1, inf); OF(erfinv, -1, -inf); OF(erfinv, 1.5f, nan); OF(erfinv, nan, nan);
    OF(silu, inf, inf); OF(silu, nan, nan); OF(silu, -0.0f, -0.0); OF(silu, 1e30f, 1e30f);
    is_bits(value(LKSI_OP_silu_backward, 0, 0, 2, 1, 1e20f, 0), 1, isa, "the slope of silu far right");
    is_bits(value(LKSI_OP_silu_backward, 0, 0, 2, 1, inf, 0), 1, isa, "the slope of silu at infinity");
    OF(hardswish, -inf, 0); OF(hardswish, inf, inf); OF(hardswish, nan, nan); OF(hardswish, -3, 0); OF(hardswish, 3, 3);
    is_bits(value(LKSI_OP_hardswish_backward, 0, 0, 2, 5, -3, 0), 0, isa, "the slope of hardswish at -3");
    is_bits(value(LKSI_OP_hardswish_backward, 0, 0, 2, 5, 0, 0), 2.5, isa, "the slope of hardswish at 0");
    is_bits(value(LKSI_OP_hardswish_backward, 0, 0, 2, 5, 3, 0), 5, isa, "the slope of hardswish at 3");
    is_bits(value(LKSI_OP_hardswish_backward, 0, 0, 2, 5, nan, 0), nan, isa, "the slope of hardswish at NaN");
    is_bits(value(LKSI_OP_leaky_relu, 0.5, 0, 1, nan, 0, 0), nan, isa, "leaky_relu of NaN");
    is_bits(value(LKSI_OP_leaky_relu_backward, 0.5, 0, 2, 1, 0, 0), 0.5, isa, "the slope of leaky_relu at 0");
    is_bits(value(LKSI_OP_elu, 1, 0, 1, -inf, 0, 0), -1, isa, "elu of -inf");
    is_bits(value(LKSI_OP_elu, 1, 0, 1, nan, 0, 0), nan, isa, "elu of NaN");
    is_bits(value(LKSI_OP_elu_backward, 1, 0, 2, 1, inf, 0), 1, isa, "the slope of elu at infinity");
    is_bits(value(LKSI_OP_softplus, 1, 20, 1, 1000, 0, 0), 1000, isa, "softplus of 1000");
    is_bits(value(LKSI_OP_softplus, 1, 20, 1, -1000, 0, 0), 0, isa, "softplus of -1000");
    is_bits(value(LKSI_OP_softplus, 1, 20, 1, nan, 0, 0), nan, isa, "softplus of NaN");
    is_bits(value(LKSI_OP_softplus, 1, 20, 1, inf, 0, 0), inf, isa, "softplus of infinity");
    is_bits(value(LKSI_OP_clamp, -1, 2, 1, nan, 0, 0), nan, isa, "clamp passes NaN");
    is_bits(value(LKSI_OP_clamp, -1, 2, 1, inf, 0, 0), 2, isa, "clamp of infinity");
    is_bits(value(LKSI_OP_clamp, 3, 2, 1, 0, 0, 0), 2, isa, "clamp with min above max gives max");
    is_bits(value(LKSI_OP_clamp_backward, -1, 2, 2, 5, 2, 0), 5, isa, "clamp's gradient at the bound");
    is_bits(value(LKSI_OP_clamp_backward, -1, 2, 2, 5, nan, 0), 0, isa, "clamp's gradient at NaN");
    OF2(maximum, nan, 1, nan); OF2(maximum, 1, nan, nan); OF2(maximum, -inf, 3, 3);
    OF2(minimum, nan, 1, nan); OF2(minimum, 1, nan, nan); OF2(minimum, inf, 3, 3);
    is_bits(value(LKSI_OP_larger_backward, 0, 0, 3, 4, 2, 2), 2, isa, "a tie halves the gradient");
    is_bits(value(LKSI_OP_larger_backward, 0, 0, 3, 4, nan, 2), 4, isa, "NaN takes it");
    static const float nasty[] = {0, -0.0f, 1, -1, 0.5f, -0.5f, 2, -2, 3, -3, 2.5f, -2.5f, 1e30f, -1e30f, 0x1p-149f,
                                  -0x1p-149f, INFINITY, -INFINITY, NAN, 16777216, -16777215, 0x1.fffffep+127f};
    int wrong = 0, angle = 0, n = sizeof nasty / sizeof *nasty;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float want = powf(nasty[i], nasty[j]), got = value(LKSI_OP_pow, 0, 0, 2, nasty[i], nasty[j], 0);
            int bad = !alike(got, want) && !(fabsf(got - want) <= 1.2e-7f * fabsf(want));
            if (bad) diag("pow(%a, %a) is %g, not %g", nasty[i], nasty[j], got, want);
            wrong += bad;
            want = atan2f(nasty[i], nasty[j]), got = value(LKSI_OP_atan2, 0, 0, 2, nasty[i], nasty[j], 0);
            bad = !alike(got, want) && !(fabsf(got - want) <= 1.2e-7f * fabsf(want));
            if (bad) diag("atan2(%a, %a) is %g, not %g", nasty[i], nasty[j], got, want);
            angle += bad;
        }
    is_int(wrong, 0, "%s: pow of all pairs of awkward numbers, as C's", isa);
    is_int(angle, 0, "%s: atan2 of them", isa);
    double v = 0.999999999, w;
    lksi_view x = view_of(&v, LKS_F64, 0, NULL), y = view_of(&w, LKS_F64, 0, NULL);
    for (v = -0.999999999; v < 1; v += 0.0371) {
        kernels_run(&k, LKSI_OP_erfinv, 1, &x, NULL, 1, &y);
        if (!(fabs(w - ref_erfinv(v, 0)) <= 1e-14 * (1 + fabs(w)))) wrong++;
    }
    is_int(wrong, 0, "%s: erfinv in float64", isa);
}

static void integers(void)
{
    int64_t a[4] = {-3, 2, INT64_MIN, 7}, b[4] = {3, 10, 1, -1}, y[4], shape[1] = {4};
    lksi_view in[3] = {view_of(a, LKS_I64, 1, shape), view_of(b, LKS_I64, 1, shape), view_of(b, LKS_I64, 1, shape)};
    lksi_view out = view_of(y, LKS_I64, 1, shape), none = {0};
    kernels_run(&k, LKSI_OP_pow, 2, in, NULL, 1, &out);
    ok(y[0] == -27 && y[1] == 1024 && y[2] == INT64_MIN && y[3] == 0, "int64 to the int64");
    kernels_run(&k, LKSI_OP_pow_scalar, 1, in, &(lksi_attr){.scalar = {.a = 2}}, 1, &out);
    ok(y[0] == 9 && y[2] == 0 && y[3] == 49, "int64 squared wraps");
    kernels_run(&k, LKSI_OP_abs, 1, in, NULL, 1, &out);
    ok(y[0] == 3 && y[2] == INT64_MIN, "abs of int64");
    kernels_run(&k, LKSI_OP_sign, 1, in, NULL, 1, &out);
    ok(y[0] == -1 && y[1] == 1, "sign of int64");
    kernels_run(&k, LKSI_OP_maximum, 2, in, NULL, 1, &out);
    ok(y[0] == 3 && y[2] == 1 && y[3] == 7, "maximum of int64");
    kernels_run(&k, LKSI_OP_clamp, 1, in, &(lksi_attr){.scalar = {.a = -HUGE_VAL, .b = 2}}, 1, &out);
    ok(y[0] == -3 && y[2] == INT64_MIN && y[3] == 2, "clamp of int64 with one bound");
    kernels_run(&k, LKSI_OP_addcmul, 3, in, &(lksi_attr){.scalar = {.a = 2}}, 1, &out);
    ok(y[0] == 15 && y[1] == 202 && y[3] == 9, "addcmul of int64");
    is_int(kernels_run(&k, LKSI_OP_clamp, 1, in, &(lksi_attr){.scalar = {.a = 0.5}}, 1, &none), LKS_ERR_ARGUMENT,
           "half a bound for integers: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_pow_scalar, 1, in, &(lksi_attr){.scalar = {.a = -1}}, 1, &none), LKS_ERR_ARGUMENT,
           "a negative power of integers: %s", k.why);
    kernels_run(&k, LKSI_OP_log2, 1, &in[1], NULL, 1, &none);
    is_int(none.dtype, LKS_F32, "log2 of int64 is float32");
    free(none.data);
}

/* --- reductions --------------------------------------------------------------------------------------------------- */

static double reduced(int op, lksi_view *x, double p, int dtype)
{
    lksi_view y = {0};
    lksi_attr attr = {.reduce = {.mask = (1 << x->ndim) - 1, .dtype = dtype, .p = p}};
    if (kernels_run(&k, op, 1, x, &attr, 1, &y) != LKS_OK) {
        diag("%s", k.why);
        return 1e99;
    }
    double v = value_at(y.dtype, y.data, 0);
    free(y.data);
    return v;
}

static double wanted(int op, double p, const double *v, int64_t n)
{
    long double s = 0, mean = 0;
    double top = op == LKSI_OP_amin || p < 0 ? HUGE_VAL : op == LKSI_OP_amax ? -HUGE_VAL : 0;
    for (int64_t i = 0; i < n; i++) mean += v[i];
    mean /= n;
    switch (op) {
    case LKSI_OP_var:
    case LKSI_OP_std:
        for (int64_t i = 0; i < n; i++) s += (v[i] - mean) * (v[i] - mean);
        s /= n - p;
        return (double)(op == LKSI_OP_var ? s : sqrtl(s));
    case LKSI_OP_prod:
        s = 1;
        for (int64_t i = 0; i < n; i++) s *= v[i];
        return (double)s;
    case LKSI_OP_amax: for (int64_t i = 0; i < n; i++) top = fmax(top, v[i]); return top;
    case LKSI_OP_amin: for (int64_t i = 0; i < n; i++) top = fmin(top, v[i]); return top;
    default:
        if (isinf(p)) {
            for (int64_t i = 0; i < n; i++) top = p > 0 ? fmax(top, fabs(v[i])) : fmin(top, fabs(v[i]));
            return top;
        }
        for (int64_t i = 0; i < n; i++) s += p == 0 ? v[i] != 0 : powl(fabsl(v[i]), p);
        return (double)(p == 0 ? s : powl(s, 1 / p));
    }
}

/* Rows and columns of a matrix, in every float dtype, with one and with five threads. */
static void matrices(const char *isa, kernels *five)
{
    static const struct { int op; double p; } what[] = {
        {LKSI_OP_var, 1}, {LKSI_OP_std, 0}, {LKSI_OP_prod, 0}, {LKSI_OP_amax, 0}, {LKSI_OP_amin, 0}, {LKSI_OP_norm, 2},
        {LKSI_OP_norm, 1}, {LKSI_OP_norm, 0}, {LKSI_OP_norm, 3.5}, {LKSI_OP_norm, -1}, {LKSI_OP_norm, INFINITY},
        {LKSI_OP_norm, -INFINITY}};
    static const int64_t sizes[][2] = {{3, 5}, {40, 1100}, {1300, 70}, {2, 40000}, {9000, 3}, {1, 1}};
    for (unsigned w = 0; w < sizeof what / sizeof *what; w++) {
        int wrong = 0, bits = 0;
        for (unsigned z = 0; z < sizeof sizes / sizeof *sizes && wrong < 3; z++)
            for (int t = 0; t < 4; t++)
                for (int mask = 1; mask <= 3; mask++) {
                    const int64_t *shape = sizes[z];
                    int dtype = array_floats[t];
                    int64_t n = shape[0] * shape[1];
                    char *memory = malloc((size_t)n * 8 + 8);
                    double *v = malloc((size_t)n * sizeof *v);
                    for (int64_t i = 0; i < n; i++) {
                        double e = what[w].op == LKSI_OP_prod ? dice_real(0.98, 1.02) : dice_real(-3, 3) + 1;
                        if (what[w].op == LKSI_OP_norm && what[w].p == 0 && dice(4) == 0) e = 0;
                        set_value(dtype, memory, i, rounded_to(dtype, e));
                    }
                    lksi_view x = view_of(memory, dtype, 2, shape), y = {0}, u = {0};
                    lksi_attr attr = {.reduce = {.mask = mask, .dtype = LKS_DTYPE_NONE, .p = what[w].p}};
                    int bad = kernels_run(&k, what[w].op, 1, &x, &attr, 1, &y) != LKS_OK;
                    bad |= kernels_run(five, what[w].op, 1, &x, &attr, 1, &u) != LKS_OK;
                    int64_t outs = bad ? 0 : lksi_numel(&y);
                    bits += !bad && memcmp(y.data, u.data, (size_t)(outs * lks_dtype_size(dtype))) != 0;
                    for (int64_t o = 0; o < outs && !bad; o += outs / 16 + 1) {
                        int64_t m = 0;
                        for (int64_t i = 0; i < n; i++)
                            if ((mask & 1 || i / shape[1] == (mask == 2 ? o : 0)) && (mask & 2 || i % shape[1] == o))
                                v[m++] = value_at(dtype, memory, i);
                        double want = wanted(what[w].op, what[w].p, v, m), got = element(&y, &y, o);
                        double unit = dtype == LKS_F64 ? 1e-13 : dtype == LKS_F32 ? 0x1p-23 : dtype == LKS_F16 ? 0x1p-10
                                                                                                           : 0x1p-7;
                        if (isnan(want) || isinf(want)) bad = isnan(want) ? !isnan(got) : got != want;
                        else bad = rounded_to(dtype, want) != got && !(fabs(got - want) <= unit * fabs(want));
                        if (bad)
                            diag("%s, p %g, %s [%lld,%lld], mask %d: output %lld is %.9g, not %.9g",
                                 lksi_rows[what[w].op].name, what[w].p, lks_dtype_name(dtype), (long long)shape[0],
                                 (long long)shape[1], mask, (long long)o, got, want);
                    }
                    wrong += bad;
                    free(memory), free(v), free(y.data), free(u.data);
                }
        is_int(wrong, 0, "%s: %s, p %g, of rows, columns and all", isa, lksi_rows[what[w].op].name, what[w].p);
        is_int(bits, 0, "%s: the same bits with 5 threads", isa);
    }
}

static void reductions(const char *isa)
{
    enum { N = 5000 };
    static float f[N];
    static double d[N];
    int64_t shape[1] = {N}, one[1] = {1}, four[1] = {4}, none[1] = {0};
    for (int i = 0; i < N; i++) f[i] = 1e6f + (float)(i % 4), d[i] = 1e200 * (i % 3);
    lksi_view x = view_of(f, LKS_F32, 1, shape), z = view_of(d, LKS_F64, 1, shape), few = view_of(f, LKS_F32, 1, four);
    lksi_view single = view_of(f, LKS_F32, 1, one), nothing = view_of(f, LKS_F32, 1, none);
    is_double(reduced(LKSI_OP_var, &x, 0, -1), 1.25, 1e-7, "%s: the variance about a mean of a million", isa);
    is_double(reduced(LKSI_OP_norm, &z, 2, -1) / 1e200, sqrt(5 * 1666.0 + 1), 1e-9, "%s: a norm whose squares overflow",
              isa);
    for (int i = 0; i < N; i++) d[i] *= 1e-300, d[i] *= 1e-100;
    is_double(reduced(LKSI_OP_norm, &z, 2, -1) / 1e-200, sqrt(5 * 1666.0 + 1), 1e-9, "%s: and one whose squares vanish",
              isa);
    is_double(reduced(LKSI_OP_var, &single, 1, -1), NAN, 0, "%s: the sample variance of one", isa);
    is_double(reduced(LKSI_OP_var, &single, 0, -1), 0, 0, "%s: the variance of one", isa);
    is_double(reduced(LKSI_OP_var, &nothing, 0, -1), NAN, 0, "%s: of nothing", isa);
    is_double(reduced(LKSI_OP_std, &nothing, 1, -1), NAN, 0, "%s: the deviation of nothing", isa);
    is_double(reduced(LKSI_OP_prod, &nothing, 0, -1), 1, 0, "%s: the product of nothing", isa);
    is_double(reduced(LKSI_OP_norm, &nothing, 2, -1), 0, 0, "%s: the norm of nothing", isa);
    is_double(reduced(LKSI_OP_all, &nothing, 0, -1), 1, 0, "%s: all of nothing", isa);
    is_double(reduced(LKSI_OP_any, &nothing, 0, -1), 0, 0, "%s: any of nothing", isa);
    f[0] = 0, f[1] = -INFINITY, f[2] = 2, f[3] = 5;
    is_double(reduced(LKSI_OP_norm, &few, 2, -1), INFINITY, 0, "%s: a norm with an infinity", isa);
    is_double(reduced(LKSI_OP_norm, &few, INFINITY, -1), INFINITY, 0, "%s: the largest size", isa);
    is_double(reduced(LKSI_OP_norm, &few, -INFINITY, -1), 0, 0, "%s: the smallest size", isa);
    is_double(reduced(LKSI_OP_norm, &few, -1, -1), 0, 0, "%s: p < 0 with a zero", isa);
    is_double(reduced(LKSI_OP_norm, &few, 0, -1), 3, 0, "%s: how many are not 0", isa);
    is_double(reduced(LKSI_OP_amin, &few, 0, -1), -INFINITY, 0, "%s: the smallest", isa);
    is_double(reduced(LKSI_OP_var, &few, 1, -1), NAN, 0, "%s: the variance with an infinity", isa);
    is_double(reduced(LKSI_OP_all, &few, 0, -1), 0, 0, "%s: not all", isa);
    is_double(reduced(LKSI_OP_any, &few, 0, -1), 1, 0, "%s: but any", isa);
    f[0] = NAN;
    static const double orders[] = {2, 1, 3, INFINITY, -INFINITY};
    for (int i = 0; i < 5; i++)
        is_double(reduced(LKSI_OP_norm, &few, orders[i], -1), NAN, 0, "%s: NaN in a norm of order %g", isa, orders[i]);
    is_double(reduced(LKSI_OP_amax, &few, 0, -1), NAN, 0, "%s: NaN is the largest", isa);
    is_double(reduced(LKSI_OP_amin, &few, 0, -1), NAN, 0, "%s: and the smallest", isa);
    f[1] = 1;
    is_double(reduced(LKSI_OP_all, &few, 0, -1), 1, 0, "%s: NaN is true", isa);
    int64_t big[4] = {(1LL << 53) + 1, 1LL << 53, -7, 3};
    lksi_view w = view_of(big, LKS_I64, 1, four), y = {0}, index[2] = {{0}};
    kernels_run(&k, LKSI_OP_amax, 1, &w, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &y);
    ok(*(int64_t *)y.data == (1LL << 53) + 1, "%s: amax of int64 is exact", isa);
    free(y.data);
    kernels_run(&k, LKSI_OP_min, 1, &w, &(lksi_attr){.dim = {.dim = 0}}, 2, index);
    ok(*(int64_t *)index[0].data == -7 && *(int64_t *)index[1].data == 2, "%s: min of int64 and its place", isa);
    free(index[0].data), free(index[1].data);
    y = (lksi_view){0};
    w.shape[0] = 4, big[0] = 3, big[1] = 5;
    kernels_run(&k, LKSI_OP_prod, 1, &w, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &y);
    ok(y.dtype == LKS_I64 && *(int64_t *)y.data == -315, "%s: integers multiply to int64", isa);
    free(y.data);
    float ties[6] = {2, NAN, 2, 1, 1, 5};
    lksi_view m = view_of(ties, LKS_F32, 2, (int64_t[]){2, 3}), low[2] = {{0}};
    kernels_run(&k, LKSI_OP_min, 1, &m, &(lksi_attr){.dim = {.dim = 1}}, 2, low);
    ok(isnan(((float *)low[0].data)[0]) && ((int64_t *)low[1].data)[0] == 1 && ((float *)low[0].data)[1] == 1 &&
           ((int64_t *)low[1].data)[1] == 0, "%s: min: NaN wins, the first of ties", isa);
    free(low[0].data), free(low[1].data);
    y = (lksi_view){0};
    is_int(kernels_run(&k, LKSI_OP_norm, 1, &nothing, &(lksi_attr){.reduce = {.mask = 1, .p = INFINITY}}, 1, &y),
           LKS_ERR_SHAPE, "%s: the largest of nothing: %s", isa, k.why);
    is_int(kernels_run(&k, LKSI_OP_amax, 1, &nothing, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &y),
           LKS_ERR_SHAPE, "%s: amax of nothing: %s", isa, k.why);
    is_int(kernels_run(&k, LKSI_OP_var, 1, &w, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &y), LKS_ERR_DTYPE,
           "%s: the variance of integers: %s", isa, k.why);
}

/* --- scans -------------------------------------------------------------------------------------------------------- */

static void scans(const char *isa, kernels *five)
{
    static const int64_t shapes[][3] = {{2, 3, 4}, {1, 1, 2500}, {3, 900, 70}, {1, 200000, 1}, {2, 140000, 1},
                                         {5, 1, 3}};
    int wrong = 0, bits = 0;
    for (unsigned z = 0; z < sizeof shapes / sizeof *shapes; z++)
        for (int t = 0; t < 5; t++)
            for (int dim = 0; dim < 3; dim++)
                for (int c = 0; c < 6; c++) {
                    const int64_t *s = shapes[z];
                    int64_t n = s[0] * s[1] * s[2], inner = 1;
                    int dtype = t < 4 ? array_floats[t] : LKS_I32, reverse = c & 1, what = c / 2;
                    int op = what == 0 ? LKSI_OP_cumsum : what == 1 ? LKSI_OP_cumprod : LKSI_OP_recurrence;
                    if (what == 2 && dtype == LKS_I32) continue;
                    if (n > 100000 && (what != 0 || dtype != LKS_F32) && (what != 1 || dtype != LKS_I32)) continue;
                    char *x = malloc((size_t)n * 8), *b = malloc((size_t)n * 8);
                    for (int64_t i = 0; i < n; i++) {
                        double reach = what == 0 ? 4 : what == 1 ? 1.01 : 0.9, v = dice_real(-reach, reach);
                        set_value(dtype, x, i, dtype == LKS_I32 ? (double)dice(3) - 1 : rounded_to(dtype, v));
                        set_value(dtype, b, i, dtype == LKS_I32 ? 0 : rounded_to(dtype, dice_real(-1, 1)));
                    }
                    lksi_view in[2] = {view_of(x, dtype, 3, s), view_of(b, dtype, 3, s)}, y = {0}, u = {0};
                    lksi_attr attr = {.scan = {.dim = dim - 3, .reverse = reverse, .dtype = LKS_DTYPE_NONE}};
                    int bad = kernels_run(&k, op, 1 + (what == 2), in, &attr, 1, &y) != LKS_OK;
                    bad |= kernels_run(five, op, 1 + (what == 2), in, &attr, 1, &u) != LKS_OK;
                    bits += !bad && memcmp(y.data, u.data, (size_t)(n * lks_dtype_size(y.dtype))) != 0;
                    for (int d = dim + 1; d < 3; d++) inner *= s[d];
                    double unit = dtype == LKS_F64 ? 1e-12 : dtype == LKS_F32 ? 1e-6 : dtype == LKS_F16 ? 1e-3 : 8e-3;
                    for (int64_t line = 0; line < n / s[dim] && !bad; line++) {
                        long double sum = what == 1, size = 0;
                        int64_t base = line / inner * inner * s[dim] + line % inner;
                        for (int64_t i = 0; i < s[dim] && !bad; i++) {
                            int64_t at = base + (reverse ? s[dim] - 1 - i : i) * inner;
                            double v = value_at(dtype, x, at), w = value_at(dtype, b, at);
                            sum = what == 0 ? sum + v : what == 1 ? sum * v : w + v * sum;
                            size = fmaxl(size, fabsl(sum));
                            double got = value_at(y.dtype, y.data, at);
                            bad = !(fabsl(got - sum) <= unit * size + (unit > 1e-9 ? 1e-7 : 0));
                            if (bad)
                                diag("%s %s dim %d reverse %d: element %lld is %.9g, not %.9Lg", lksi_rows[op].name,
                                     lks_dtype_name(dtype), dim, reverse, (long long)at, got, sum);
                        }
                    }
                    wrong += bad;
                    free(x), free(b), free(y.data), free(u.data);
                }
    is_int(wrong, 0, "%s: cumsum, cumprod, recurrence along every dim, both ways", isa);
    is_int(bits, 0, "%s: the same bits with 5 threads", isa);
}

/* Products with zeros: each gradient is the product of the others. */
static void products(const char *isa)
{
    int wrong = 0;
    for (int j = 0; j < 60; j++) {
        int64_t n = 1 + (int64_t)dice(j % 6 == 0 ? 3000 : 6), shape[2] = {n, 2};
        int zeros = (int)dice(3);
        double *x = malloc((size_t)n * 2 * sizeof *x), dy[2] = {1.5, -2}, *g = malloc((size_t)n * 2 * sizeof *g);
        for (int64_t i = 0; i < 2 * n; i++) x[i] = dice_real(0.95, 1.05), g[i] = dice_real(-1, 1);
        for (int z = 0; z < zeros; z++) x[dice((uint64_t)(2 * n))] = 0;
        lksi_view in[2] = {view_of(dy, LKS_F64, 1, (int64_t[]){2}), view_of(x, LKS_F64, 2, shape)}, dx = {0};
        wrong += kernels_run(&k, LKSI_OP_prod_backward, 2, in, &(lksi_attr){.reduce = {.mask = 1}}, 1, &dx) != LKS_OK;
        for (int64_t i = 0; i < 2 * n; i += n > 100 ? 377 : 1) {
            double want = dy[i % 2];
            for (int64_t e = i % 2; e < 2 * n; e += 2)
                if (e != i) want *= x[e];
            wrong += !(fabs(((double *)dx.data)[i] - want) <= 1e-11 * fabs(want));
        }
        free(dx.data);
        dx = (lksi_view){0};
        in[0] = view_of(g, LKS_F64, 2, shape);
        wrong += kernels_run(&k, LKSI_OP_cumprod_backward, 2, in, &(lksi_attr){.scan = {.dim = 0}}, 1, &dx) != LKS_OK;
        for (int64_t i = 0; i < 2 * n; i += n > 100 ? 1377 : 1) {
            double want = 0, size = 0, product = 1;
            for (int64_t e = i % 2; e < 2 * n; e += 2) {
                if (e != i) product *= x[e];
                if (e >= i) want += product * g[e], size += fabs(product * g[e]);
            }
            wrong += !(fabs(((double *)dx.data)[i] - want) <= 1e-11 * size);
        }
        free(dx.data), free(x), free(g);
    }
    is_int(wrong, 0, "%s: gradients of products with zeros", isa);
}

/* --- public functions --------------------------------------------------------------------------------------------- */

static double *values(lks_tensor *t)
{
    t = lks_to(lks_contiguous(t), LKS_F64);
    double *v = calloc((size_t)(t ? lks_numel(t) : 0) + 1, sizeof *v);
    if (t) lks_to_host(t, v, lks_numel(t) * 8);
    return v;
}

static void composed(lks_context *ctx)
{
    lks_scope_begin(ctx);
    int64_t two_three[2] = {2, 3};
    double x[6] = {3, 4, 0, 0, 0, 0}, low[6] = {-INFINITY, -INFINITY, -INFINITY, 1000, 1000, -INFINITY};
    lks_tensor *t = tensor_of(ctx, LKS_F64, 2, two_three, x);
    double *v = values(lks_normalize(t, 2, 1, 1e-12));
    ok(v[0] == 0.6 && v[1] == 0.8 && v[3] == 0, "normalize; a zero row stays zero");
    free(v);
    v = values(lks_renorm(t, 2, 0, 1));
    ok(fabs(v[0] - 0.6) < 1e-7 && fabs(v[1] - 0.8) < 1e-7 && v[4] == 0, "renorm scales what is too long");
    free(v);
    v = values(lks_cosine_similarity(t, lks_mul_scalar(t, -2), 1, 1e-8));
    ok(fabs(v[0] + 1) < 1e-12 && v[1] == 0, "cosine_similarity, of zero vectors too");
    free(v);
    v = values(lks_dist(t, lks_zeros(ctx, LKS_F64, 0, NULL), 2));
    ok(v[0] == 5, "dist");
    free(v);
    lks_tensor *l = tensor_of(ctx, LKS_F64, 2, two_three, low);
    lks_set_requires_grad(l, 1);
    lks_tensor *y = lks_logsumexp(l, 1, (int[]){1}, 0);
    v = values(y);
    ok(v[0] == -INFINITY && fabs(v[1] - 1000 - log(2)) < 1e-12, "logsumexp of nothing but -inf, and of large numbers");
    free(v);
    lks_backward(lks_sum(lks_slice(y, 0, 0, 2, 1), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
    v = values(lks_grad(l));
    ok(v[0] == 0 && v[1] == 0 && fabs(v[3] - 0.5) < 1e-12 && v[5] == 0, "its gradient");
    free(v);
    /* The norm of a zero vector, the deviation of equal numbers: gradient 0. */
    for (int i = 0; i < 4; i++) {
        static const double p[] = {2, 3, 1.5, 0.5};
        lks_tensor *zero = lks_zeros(ctx, LKS_F32, 1, (int64_t[]){3});
        lks_set_requires_grad(zero, 1);
        lks_backward(lks_norm(zero, p[i], 0, NULL, 0), LKS_NONE, 0);
        v = values(lks_grad(zero));
        ok(v[0] == 0 && v[2] == 0, "the gradient of the norm of order %g at 0 is 0", p[i]);
        free(v);
    }
    lks_tensor *same = lks_ones(ctx, LKS_F32, 1, (int64_t[]){3});
    lks_set_requires_grad(same, 1);
    lks_backward(lks_std(same, 0, NULL, 0, 1), LKS_NONE, 0);
    v = values(lks_grad(same));
    ok(v[0] == 0 && v[1] == 0, "the gradient of a deviation of 0 is 0");
    free(v);
    /* Ties of amax. */
    double tie[4] = {1, 7, 7, 2};
    lks_tensor *a = tensor_of(ctx, LKS_F32, 1, (int64_t[]){4}, tie);
    lks_set_requires_grad(a, 1);
    lks_backward(lks_amax(a, 0, NULL, 0), LKS_NONE, 0);
    v = values(lks_grad(a));
    ok(v[0] == 0 && v[1] == 0.5 && v[2] == 0.5 && v[3] == 0, "ties of amax share the gradient");
    free(v);
    lks_tensor *i = lks_argmin(a, 0, 0);
    v = values(i);
    ok(lks_dtype_of(i) == LKS_I64 && v[0] == 0, "argmin");
    free(v);
    /* 0 to powers. */
    lks_tensor *base = lks_zeros(ctx, LKS_F64, 1, (int64_t[]){3});
    double powers[3] = {0, 1, 2};
    lks_tensor *e = tensor_of(ctx, LKS_F64, 1, (int64_t[]){3}, powers);
    lks_set_requires_grad(base, 1);
    lks_set_requires_grad(e, 1);
    lks_backward(lks_sum(lks_pow(base, e), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
    v = values(lks_grad(base));
    ok(v[0] == 0 && v[1] == 1 && v[2] == 0, "the gradients of 0^0, 0^1, 0^2 in the base");
    free(v);
    v = values(lks_grad(e));
    ok(v[0] == 0 && v[1] == 0 && v[2] == 0, "and in the exponent");
    free(v);
    /* An unsigned exponent of 0 has none below it. */
    double three[3] = {-1, 0, 2}, exponents[3] = {0, 0, 0};
    lks_tensor *flat = tensor_of(ctx, LKS_F32, 1, (int64_t[]){3}, three);
    lks_set_requires_grad(flat, 1);
    lks_tensor *power = lks_pow(flat, tensor_of(ctx, LKS_U8, 1, (int64_t[]){3}, exponents));
    lks_backward(lks_sum(power, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
    v = values(lks_grad(flat));
    ok(v[0] == 0 && v[1] == 0 && v[2] == 0, "the gradient of x^0 with a uint8 exponent is 0");
    free(v);
    /* The angle of the origin. */
    double up[3] = {0, 1, 0}, right[3] = {0, 0, 2};
    lks_tensor *p[2] = {tensor_of(ctx, LKS_F32, 1, (int64_t[]){3}, up),
                        tensor_of(ctx, LKS_F32, 1, (int64_t[]){3}, right)};
    for (int k = 0; k < 2; k++) lks_set_requires_grad(p[k], 1);
    lks_backward(lks_sum(lks_atan2(p[0], p[1]), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
    v = values(lks_grad(p[0]));
    double *w = values(lks_grad(p[1]));
    ok(v[0] == 0 && v[1] == 0 && v[2] == 0.5 && w[0] == 0 && w[1] == -1 && w[2] == 0, "atan2: none at the origin");
    free(v), free(w);
    lks_scope_end(ctx);
}

/* What is made of several rows is computed in float32 and rounded once: eps is not lost, nothing overflows. */
static void composed_reduced(lks_context *ctx)
{
    for (int t = 2; t < 4; t++) {
        lks_dtype dtype = array_floats[t];
        const char *name = lks_dtype_name(dtype);
        int64_t s[2] = {2, 400}, many[1] = {100000};
        int last[1] = {1};
        lks_scope_begin(ctx);
        lks_tensor *zero = lks_zeros(ctx, dtype, 2, s), *large = lks_full(ctx, dtype, 2, s, 200), *g;
        lks_set_requires_grad(zero, 1);
        double *a = values(lks_normalize(zero, 2, 1, 1e-12)), *b = values(lks_cosine_similarity(zero, large, 1, 1e-8)),
               *c = values(lks_cosine_similarity(large, lks_neg(large), 1, 1e-8)),
               *d = values(lks_normalize(large, 2, 1, 1e-12));
        lks_tensor *scaled = lks_renorm(zero, 1, 0, 0);
        double *f = values(scaled);
        ok(a[0] == 0 && b[0] == 0 && f[0] == 0, "%s: normalize, cosine_similarity, renorm of 0", name);
        ok(fabs(c[0] + 1) < 0.005 && fabs(d[0] - 0.05) < 0.0005, "%s: and of large numbers", name);
        is_int(lks_dtype_of(scaled), dtype, "%s: the result's dtype", name);
        free(a), free(b), free(c), free(d), free(f);
        ok(lks_gradients(lks_sum(lks_cosine_similarity(zero, large, 1, 1e-8), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 1,
                         &zero, 0, 0, &g) == LKS_OK, "%s: a gradient", name);
        a = values(g);
        ok(!isnan(a[0]), "%s: which is a number", name);
        free(a);
        a = values(lks_logsumexp(lks_zeros(ctx, dtype, 1, many), 0, NULL, 0));
        ok(fabs(a[0] - log(100000)) < 0.04, "%s: logsumexp of many (%g)", name, a[0]);
        free(a);
        a = values(lks_logsumexp(lks_zeros(ctx, dtype, 2, (int64_t[]){2, 0}), 1, last, 0));
        ok(a[0] == -INFINITY && a[1] == -INFINITY, "%s: logsumexp of nothing", name);
        free(a);
        lks_scope_end(ctx);
    }
    lks_scope_begin(ctx);
    lks_tensor *half = lks_ones(ctx, LKS_F16, 1, (int64_t[]){3}), *whole = lks_ones(ctx, LKS_I64, 1, (int64_t[]){3});
    is_int(lks_dtype_of(lks_dist(half, lks_ones(ctx, LKS_F32, 0, NULL), 2)), LKS_F16, "one of no dims does not decide");
    lks_tensor *y = lks_logsumexp(whole, 0, NULL, 0);
    double *v = values(y);
    ok(lks_dtype_of(y) == LKS_F32 && fabs(v[0] - 1 - log(3)) < 1e-6, "logsumexp of integers");
    free(v);
    lks_scope_end(ctx);
}

static void refused(lks_context *ctx)
{
    lks_scope_begin(ctx);
    lks_tensor *x = lks_ones(ctx, LKS_F32, 2, (int64_t[]){2, 3}), *n = lks_ones(ctx, LKS_I64, 1, (int64_t[]){3});
#define NO(call, code, text)                                                                                   \
    do {                                                                                                       \
        lks_error_clear(ctx);                                                                                  \
        int none = !(call);                                                                                    \
        ok(none && lks_error_code(ctx) == code && strstr(lks_error(ctx), text), "%s: %s", #call, lks_error(ctx)); \
    } while (0)
    NO(lks_clamp(x, NAN, 1), LKS_ERR_ARGUMENT, "NaN");
    NO(lks_softplus(x, 0, 20), LKS_ERR_ARGUMENT, "beta is 0");
    NO(lks_prelu(x, lks_ones(ctx, LKS_F32, 1, (int64_t[]){2})), LKS_ERR_SHAPE, "[2]");
    NO(lks_norm(x, NAN, 0, NULL, 0), LKS_ERR_ARGUMENT, "NaN");
    NO(lks_norm(n, 2, 0, NULL, 0), LKS_ERR_DTYPE, "int64");
    NO(lks_renorm(x, 0, 0, 1), LKS_ERR_ARGUMENT, "p is 0");
    NO(lks_renorm(n, 2, 0, 1), LKS_ERR_SHAPE, "[3]");
    NO(lks_cumsum(x, 2, LKS_DTYPE_NONE), LKS_ERR_ARGUMENT, "dim 2");
    NO(lks_recurrence(x, n, 0, 0), LKS_ERR_SHAPE, "[3]");
    NO(lks_addcmul(x, x, lks_ones(ctx, LKS_F32, 1, (int64_t[]){2}), 1), LKS_ERR_SHAPE, "[2]");
    NO(lks_bernoulli(n), LKS_ERR_DTYPE, "int64");
    NO(lks_bernoulli(lks_mul_scalar(x, 1.5)), LKS_ERR_ARGUMENT, "[0, 1]");
    NO(lks_bernoulli_(x, -1) == LKS_OK, LKS_ERR_ARGUMENT, "p is -1");
    NO(lks_min_all(NULL) || lks_pow(NULL, x) || lks_silu(NULL) || lks_dist(x, NULL, 2) ||
       lks_normalize(NULL, 2, 0, 1) || lks_prelu(NULL, x) ||
       lks_cumsum(NULL, 0, LKS_DTYPE_NONE) || lks_logsumexp(NULL, 0, NULL, 0), LKS_OK, "");
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

static void draws(lks_context *ctx)
{
    lks_scope_begin(ctx);
    int64_t n[1] = {40000};
    lks_tensor *x = lks_empty(ctx, LKS_U8, 1, n);
    lks_bernoulli_(x, 0.25);
    double *v = values(x), ones = 0, other = 0;
    for (int i = 0; i < 40000; i++) ones += v[i] == 1, other += v[i] != 0 && v[i] != 1;
    ok(other == 0 && fabs(ones / 40000 - 0.25) < 0.01, "bernoulli of 0.25 in uint8 (%.4f)", ones / 40000);
    free(v);
    for (int t = 0; t < 4; t++) {
        double ends[2] = {0, 1};
        lks_tensor *p = tensor_of(ctx, array_floats[t], 2, (int64_t[]){2, 1}, ends);
        lks_tensor *y = lks_bernoulli(lks_expand(p, 2, (int64_t[]){2, 3000}));
        v = values(y);
        int wrong = lks_dtype_of(y) != array_floats[t];
        for (int i = 0; i < 6000; i++) wrong += v[i] != i / 3000;
        is_int(wrong, 0, "%s: never for 0, always for 1", lks_dtype_name(array_floats[t]));
        free(v);
    }
    lks_scope_end(ctx);
}

/* Policies of composite rows and of rows with a dtype of their own. */
static void policies(lks_context *ctx)
{
    lks_scope_begin(ctx);
    lks_tensor *x = lks_ones(ctx, LKS_BF16, 2, (int64_t[]){2, 3});
    for (int table = 0; table < 2; table++) {
        lks_autocast_set_table(ctx, table);
        lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        lks_dtype want = table == LKS_TABLE_CUDA ? LKS_F32 : LKS_BF16;
        const char *name = table == LKS_TABLE_CUDA ? "cuda" : "cpu";
        is_int(lks_dtype_of(lks_normalize(x, 2, 1, 1e-12)), want, "%s: normalize", name);
        is_int(lks_dtype_of(lks_cosine_similarity(x, x, 1, 1e-8)), want, "%s: cosine_similarity", name);
        is_int(lks_dtype_of(lks_dist(x, x, 2)), want, "%s: dist", name);
        is_int(lks_dtype_of(lks_renorm(x, 2, 0, 1)), want, "%s: renorm", name);
        is_int(lks_dtype_of(lks_cumsum(x, 0, LKS_DTYPE_NONE)), want, "%s: cumsum", name);
        is_int(lks_dtype_of(lks_cumsum(x, 0, LKS_BF16)), LKS_BF16, "%s: cumsum with a dtype", name);
        is_int(lks_dtype_of(lks_prod(x, 0, NULL, 0, LKS_DTYPE_NONE)), LKS_F32, "%s: prod", name);
        is_int(lks_dtype_of(lks_silu(x)), LKS_BF16, "%s: silu has no policy", name);
        lks_autocast_end(ctx);
    }
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    ok(lks_op_lookup("__rpow__") == lks_op_lookup("rpow") && lks_op_lookup("__rpow__") >= 0 &&
           lks_autocast_policy("__rtruediv__", LKS_TABLE_CUDA) == LKS_POLICY_FP32, "aliases");
    lks_scope_end(ctx);
}

int main(void)
{
    static const char *const isas[] = {"base", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        kernels five;
        if (!kernels_open(&k, isas[i], 1)) {
            skip(1, "%s: not on this processor or not built", isas[i]);
            continue;
        }
        if (!kernels_open(&five, isas[i], 5)) bail("no backend with 5 threads");
        accuracy(isas[i]);
        edges(isas[i]);
        matrices(isas[i], &five);
        reductions(isas[i]);
        scans(isas[i], &five);
        products(isas[i]);
        kernels_close(&k);
        kernels_close(&five);
    }
    if (!kernels_open(&k, NULL, 1)) bail("no CPU backend");
    integers();
    kernels_close(&k);
    lks_context *ctx = context_on("cpu", NULL, 2);
    if (!ctx) bail("no context");
    composed(ctx);
    composed_reduced(ctx);
    refused(ctx);
    draws(ctx);
    policies(ctx);
    is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "nothing is left");
    is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed");
    lks_finalize();
    return done();
}
