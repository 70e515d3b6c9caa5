/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scalar.h - the formulas of scalar.def, for C and CUDA kernels. The float forms have no branch and no table, so that
 * loops over them are vectorised; where a polynomial in float would lose bits it is evaluated in double and rounded
 * once. They are right at zeros, infinities, NaN and denormals. The double forms are libm's.
 *
 * Polynomials are minimax fits (Remez exchange) or interpolations at Chebyshev points, made for these ranges.
 */
#ifndef LKSI_SCALAR_H
#define LKSI_SCALAR_H

#include "table/math.h"

/* a b + c in double: fused where that is one instruction. */
#if defined __CUDA_ARCH__
#define LKSI_FMAD(a, b, c) fma(a, b, c)
#elif defined __FMA__ || defined __aarch64__
#define LKSI_FMAD(a, b, c) __builtin_fma(a, b, c)
#else
#define LKSI_FMAD(a, b, c) ((a) * (b) + (c))
#endif

/* The device's own function in float where there is one: it has fast ones, and a vector unit is no concern there. */
#ifdef __CUDA_ARCH__
#define LKSI_PICK(device, host) (device)
#else
#define LKSI_PICK(device, host) (host)
#endif

LKSI_HD float lksi_infinity(void) { return lksi_float_f32(0x7f800000u); }
LKSI_HD float lksi_nan(void) { return lksi_float_f32(0x7fc00000u); }

/* --- in double, from float ---------------------------------------------------------------------------------------- */

/* log2(x), relative error 5e-12. */
LKSI_HD double lksi_log2_wide(float x)
{
    int tiny = x < 0x1p-126f;
    uint32_t u = lksi_bits_f32(tiny ? x * 0x1p23f : x) - 0x3f3504f3u; /* mantissa from sqrt(1/2) to sqrt(2) */
    float e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
    double m = (double)lksi_float_f32((u & 0x7fffffu) + 0x3f3504f3u);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0x1.e3b4031978354p-4;
    p = LKSI_FMAD(p, z, 0x1.24329fe26ab32p-3);
    p = LKSI_FMAD(p, z, 0x1.999a9d2594c57p-3);
    p = LKSI_FMAD(p, z, 0x1.555554da6270dp-2);
    p = LKSI_FMAD(p, z, 0x1.0000000004a80p+0);
    double r = LKSI_FMAD(s * 0x1.71547652b82fep+1, p, (double)e);
    r = x > 0.0f ? r : (double)lksi_nan();
    r = x == 0.0f ? -(double)lksi_infinity() : r;
    return x == lksi_infinity() ? (double)lksi_infinity() : r;
}

/* 2^v, relative error 4e-11; beyond 2^1000 and 2^-1000 it stays there. */
LKSI_HD double lksi_exp2_wide(double v)
{
    v = v > 1000.0 ? 1000.0 : v;
    v = v < -1000.0 ? -1000.0 : v;
    double t = v + 0x1.8p52, f = v - (t - 0x1.8p52); /* the sum's low bits are the nearest integer */
    double p = 0x1.00f7b46d380e7p-16;
    p = LKSI_FMAD(p, f, 0x1.446c7f37f2991p-13);
    p = LKSI_FMAD(p, f, 0x1.5d8715ad75344p-10);
    p = LKSI_FMAD(p, f, 0x1.3b29d8b3708b7p-7);
    p = LKSI_FMAD(p, f, 0x1.c6b08e06f71eap-5);
    p = LKSI_FMAD(p, f, 0x1.ebfbe0aa0e6edp-3);
    p = LKSI_FMAD(p, f, 0x1.62e42fef6cd14p-1);
    p = LKSI_FMAD(p, f, 1.0);
    return p * lksi_float_f64((lksi_bits_f64(t) << 52) + 0x3ff0000000000000u);
}

/* sin and cos of x, |x| <= 2^20, with the quarter turns taken out: returns their number. */
#define LKSI_TURN_LIMIT 0x1p20f
LKSI_HD uint64_t lksi_turn_wide(float x, double *sine, double *cosine)
{
    double w = (double)x, t = LKSI_FMAD(w, 0x1.45f306dc9c883p-1, 0x1.8p52), n = t - 0x1.8p52;
    double r = (w - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34, z = r * r; /* 33 bits times n: exact */
    double p = 0x1.6cb63c8fc0db8p-19;
    p = LKSI_FMAD(p, z, -0x1.a00ee38575a15p-13);
    p = LKSI_FMAD(p, z, 0x1.11110745b14bfp-7);
    p = LKSI_FMAD(p, z, -0x1.555555493fa75p-3);
    p = LKSI_FMAD(p, z, 0x1.fffffffff674dp-1);
    double q = -0x1.23c4dafb59553p-22;
    q = LKSI_FMAD(q, z, 0x1.a00e919de57a2p-16);
    q = LKSI_FMAD(q, z, -0x1.6c16b2cab2e09p-10);
    q = LKSI_FMAD(q, z, 0x1.5555554468806p-5);
    q = LKSI_FMAD(q, z, -0x1.ffffffffe35a6p-2);
    q = LKSI_FMAD(q, z, 1.0);
    *sine = r * p;
    *cosine = q;
    return lksi_bits_f64(t);
}

/* asin(x) for 0 <= x <= 1 with the complement's root where x > 1/2: *rest tells which. */
LKSI_HD double lksi_asin_wide(double a, int *rest)
{
    *rest = a > 0.5;
    double z = *rest ? (1.0 - a) * 0.5 : a * a, s = *rest ? sqrt(z) : a;
    double p = 0x1.1eb718a718373p-5;
    p = LKSI_FMAD(p, z, 0x1.d6abefd58ab7cp-8);
    p = LKSI_FMAD(p, z, 0x1.951c52dcb7103p-6);
    p = LKSI_FMAD(p, z, 0x1.ecfd8511015e5p-6);
    p = LKSI_FMAD(p, z, 0x1.6ddf880a3d81bp-5);
    p = LKSI_FMAD(p, z, 0x1.33328adfb6739p-4);
    p = LKSI_FMAD(p, z, 0x1.5555565da0a78p-3);
    p = LKSI_FMAD(p, z, 0x1.ffffffffde012p-1);
    return s * p;
}

/* --- unary -------------------------------------------------------------------------------------------------------- */

LKSI_HD float lksi_expm1f(float x)
{
    int32_t k;
    float c = x > 89.0f ? 89.0f : x;
    c = c < -20.0f ? -20.0f : c;
    float m = lksi_expm1_reduced(c, &k), half = lksi_exp2i(k - 1); /* halves: 2^128 has no float */
    float r = LKSI_FMA(half, m, half - 0.5f);
    r = r + r;
    return lksi_absf(x) < 0x1p-25f ? x : r;
}
LKSI_HD double lksi_expm1(double x) { return expm1(x); }

LKSI_HD float lksi_log1pf(float x)
{
    float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    float r = lksi_logf(u) + lost / u;
    r = x == -1.0f ? -lksi_infinity() : r;
    r = x == lksi_infinity() ? x : r;
    return x == 0.0f ? x : r;
}
LKSI_HD double lksi_log1p(double x) { return log1p(x); }

LKSI_HD float lksi_log2f(float x) { return LKSI_PICK(log2f(x), (float)lksi_log2_wide(x)); }
LKSI_HD double lksi_log2(double x) { return log2(x); }
LKSI_HD float lksi_log10f(float x)
{
    return LKSI_PICK(log10f(x), (float)(lksi_log2_wide(x) * 0x1.34413509f79ffp-2));
}
LKSI_HD double lksi_log10(double x) { return log10(x); }

LKSI_HD float lksi_rsqrtf(float x) { return 1.0f / sqrtf(x); }
LKSI_HD double lksi_rsqrt(double x) { return 1.0 / sqrt(x); }
LKSI_HD float lksi_reciprocalf(float x) { return 1.0f / x; }
LKSI_HD double lksi_reciprocal(double x) { return 1.0 / x; }

/* lksi_absf is in math.h */
LKSI_HD double lksi_abs(double x) { return fabs(x); }
LKSI_HD int64_t lksi_absi(int64_t x) { return x < 0 ? (int64_t)-(uint64_t)x : x; }
LKSI_HD float lksi_signf(float x) { return (float)(x > 0.0f) - (float)(x < 0.0f); }
LKSI_HD double lksi_sign(double x) { return (double)(x > 0.0) - (double)(x < 0.0); }
LKSI_HD int64_t lksi_signi(int64_t x) { return (int64_t)(x > 0) - (int64_t)(x < 0); }

/* sin, cos and tan on the host: only up to LKSI_TURN_LIMIT; kernels take the double form for larger arguments. */
LKSI_HD float lksi_sinf(float x)
{
    double s, c;
    uint64_t q = lksi_turn_wide(x, &s, &c);
    double v = q & 1 ? c : s;
    return LKSI_PICK(sinf(x), (float)(q & 2 ? -v : v));
}
LKSI_HD double lksi_sin(double x) { return sin(x); }
LKSI_HD float lksi_cosf(float x)
{
    double s, c;
    uint64_t q = lksi_turn_wide(x, &s, &c);
    double v = q & 1 ? s : c;
    return LKSI_PICK(cosf(x), (float)((q + 1) & 2 ? -v : v));
}
LKSI_HD double lksi_cos(double x) { return cos(x); }
LKSI_HD float lksi_tanf(float x)
{
    double s, c;
    uint64_t q = lksi_turn_wide(x, &s, &c);
    return LKSI_PICK(tanf(x), (float)(q & 1 ? -c / s : s / c));
}
LKSI_HD double lksi_tan(double x) { return tan(x); }

LKSI_HD float lksi_asinf(float x)
{
    int rest;
    double r = lksi_asin_wide((double)lksi_absf(x), &rest);
    r = rest ? 0x1.921fb54442d18p+0 - (r + r) : r;
    return LKSI_PICK(asinf(x), lksi_copysignf((float)r, x));
}
LKSI_HD double lksi_asin(double x) { return asin(x); }
LKSI_HD float lksi_acosf(float x)
{
    int rest;
    double r = lksi_asin_wide((double)lksi_absf(x), &rest);
    double near = x < 0.0f ? 0x1.921fb54442d18p+1 - (r + r) : r + r;
    double far = x < 0.0f ? 0x1.921fb54442d18p+0 + r : 0x1.921fb54442d18p+0 - r;
    return LKSI_PICK(acosf(x), (float)(rest ? near : far));
}
LKSI_HD double lksi_acos(double x) { return acos(x); }

LKSI_HD float lksi_coshf(float x)
{
    double e = lksi_exp2_wide((double)lksi_absf(x) * 0x1.71547652b82fep+0);
    return LKSI_PICK(coshf(x), (float)(0.5 * e + 0.5 / e));
}
LKSI_HD double lksi_cosh(double x) { return cosh(x); }
LKSI_HD float lksi_sinhf(float x)
{
    double a = (double)lksi_absf(x), z = a * a, e = lksi_exp2_wide(a * 0x1.71547652b82fep+0);
    double p = 0x1.b6bea418f688dp-26;
    p = LKSI_FMAD(p, z, 0x1.71cb6018af898p-19);
    p = LKSI_FMAD(p, z, 0x1.a01a28ca9fa14p-13);
    p = LKSI_FMAD(p, z, 0x1.111110ec4eec7p-7);
    p = LKSI_FMAD(p, z, 0x1.5555555587c9ap-3);
    p = LKSI_FMAD(p, z, 1.0);
    double r = a < 1.0 ? a * p : 0.5 * e - 0.5 / e;
    return LKSI_PICK(sinhf(x), lksi_copysignf((float)r, x));
}
LKSI_HD double lksi_sinh(double x) { return sinh(x); }

LKSI_HD float lksi_erff(float x)
{
    float a = lksi_absf(x), density, z = a > 1.0f ? 1.0f : a * a;
    float p = -0x1.44cfc6p-17f;
    p = LKSI_FMA(p, z, 0x1.d8b89p-14f);
    p = LKSI_FMA(p, z, -0x1.bcd7ep-11f);
    p = LKSI_FMA(p, z, 0x1.562b1ap-8f);
    p = LKSI_FMA(p, z, -0x1.b829d8p-6f);
    p = LKSI_FMA(p, z, 0x1.ce2f0ap-4f);
    p = LKSI_FMA(p, z, -0x1.812746p-2f);
    p = LKSI_FMA(p, z, 0x1.20dd76p+0f);
    float tail = 2.0f * lksi_phif(-0x1.6a09e6p+0f * a, &density);
    float r = a < 1.0f ? a * p : 1.0f - tail;
    r = lksi_is_nan_f32(x) ? x : r;
    return LKSI_PICK(erff(x), lksi_copysignf(r, x));
}
LKSI_HD double lksi_erf(double x) { return erf(x); }

/* x times a polynomial in w = -log(1 - x^2), or in its root where x is near 1 or -1. */
LKSI_HD float lksi_erfinvf(float x)
{
    double v = (double)x, w = -0x1.62e42fefa39efp-1 * lksi_log2_wide((float)((1.0 - v) * (1.0 + v)));
    double c = w - 2.5, t = sqrt(w < 0.0 ? 0.0 : w) - 3.1;
    double p = 0x1.00d8c1465c8c9p-31;
    p = LKSI_FMAD(p, c, -0x1.2c454191e5866p-27);
    p = LKSI_FMAD(p, c, 0x1.129b39aea49c6p-26);
    p = LKSI_FMAD(p, c, 0x1.f3bd013838985p-22);
    p = LKSI_FMAD(p, c, -0x1.cb7b99b16104ap-19);
    p = LKSI_FMAD(p, c, -0x1.4cd6dde52cad2p-18);
    p = LKSI_FMAD(p, c, 0x1.c9b839077b03cp-13);
    p = LKSI_FMAD(p, c, -0x1.486687622de77p-10);
    p = LKSI_FMAD(p, c, -0x1.11c3ccf4cccdap-8);
    p = LKSI_FMAD(p, c, 0x1.f91e8b47b9094p-3);
    p = LKSI_FMAD(p, c, 0x1.805c5cfceddd7p+0);
    double q = -0x1.11c3cff3024d0p-15;
    q = LKSI_FMAD(q, t, 0x1.1716b9f6dd5e4p-13);
    q = LKSI_FMAD(q, t, -0x1.253fdb2e2911ep-13);
    q = LKSI_FMAD(q, t, -0x1.3145b07f6badep-12);
    q = LKSI_FMAD(q, t, 0x1.5a6bbeb73ee68p-10);
    q = LKSI_FMAD(q, t, -0x1.6463c0f0516f1p-9);
    q = LKSI_FMAD(q, t, 0x1.0e11ca508eb7ep-8);
    q = LKSI_FMAD(q, t, -0x1.754794a38e213p-8);
    q = LKSI_FMAD(q, t, 0x1.e8e777ee05637p-8);
    q = LKSI_FMAD(q, t, 0x1.00dbf1c5f3efcp+0);
    q = LKSI_FMAD(q, t, 0x1.777422ad090b3p+1);
    double r = v * (w < 5.0 ? p : q);
    r = lksi_absf(x) == 1.0f ? v * (double)lksi_infinity() : r;
    return LKSI_PICK(erfinvf(x), lksi_absf(x) > 1.0f ? lksi_nan() : (float)r);
}
/* Halley's iteration from an estimate (Winitzki, 2008). */
LKSI_HD double lksi_erfinv(double x)
{
#ifdef __CUDA_ARCH__
    return erfinv(x);
#else
    double a = fabs(x), rest = 1.0 - a; /* exact where a > 1/2 */
    if (!(a < 1.0)) return a == 1.0 ? x * (double)lksi_infinity() : (double)lksi_nan();
    double l = log1p(-a) + log1p(a), u = 4.330746750799873 + 0.5 * l;
    double y = sqrt(sqrt(u * u - l / 0.147) - u);
    if (a < 1e-8) return x * 0.88622692545275801365;
    for (int i = 0; i < 3; i++) {
        double wrong = a > 0.5 ? rest - erfc(y) : erf(y) - a;
        double step = wrong * 0.88622692545275801365 * exp(y * y);
        y -= step / (1.0 + y * step);
    }
    return x < 0.0 ? -y : y;
#endif
}

LKSI_HD float lksi_siluf(float x) { return x * lksi_sigmoidf(x); }
LKSI_HD double lksi_silu(double x) { return x * lksi_sigmoid(x); }
LKSI_HD float lksi_silu_backwardf(float dy, float x)
{
    float s = lksi_sigmoidf(x), c = x < -200.0f ? -200.0f : x > 200.0f ? 200.0f : x; /* no infinity times 0 */
    return dy * (s * (1.0f + c * lksi_sigmoidf(-c)));
}
LKSI_HD double lksi_silu_backward(double dy, double x)
{
    double s = lksi_sigmoid(x), c = x < -1000.0 ? -1000.0 : x > 1000.0 ? 1000.0 : x;
    return dy * (s * (1.0 + c * lksi_sigmoid(-c)));
}

LKSI_HD float lksi_hardswishf(float x)
{
    float r = x * ((x + 3.0f) / 6.0f);
    return x <= -3.0f ? 0.0f : x >= 3.0f ? x : r;
}
LKSI_HD double lksi_hardswish(double x) { return x <= -3.0 ? 0.0 : x >= 3.0 ? x : x * ((x + 3.0) / 6.0); }
LKSI_HD float lksi_hardswish_backwardf(float dy, float x)
{
    float r = dy * (x / 3.0f + 0.5f);
    return x <= -3.0f ? 0.0f : x >= 3.0f ? dy : r;
}
LKSI_HD double lksi_hardswish_backward(double dy, double x)
{
    return x <= -3.0 ? 0.0 : x >= 3.0 ? dy : dy * (x / 3.0 + 0.5);
}

/* a: slope */
LKSI_HD float lksi_leaky_reluf(float x, float a, float b) { return (void)b, x > 0.0f ? x : x * a; }
LKSI_HD double lksi_leaky_relu(double x, double a, double b) { return (void)b, x > 0.0 ? x : x * a; }
LKSI_HD float lksi_leaky_relu_backwardf(float dy, float x, float a, float b)
{
    return (void)b, x > 0.0f ? dy : dy * a;
}
LKSI_HD double lksi_leaky_relu_backward(double dy, double x, double a, double b)
{
    return (void)b, x > 0.0 ? dy : dy * a;
}

/* a: alpha */
LKSI_HD float lksi_eluf(float x, float a, float b)
{
    float r = a * lksi_expm1f(x);
    return (void)b, x > 0.0f ? x : r;
}
LKSI_HD double lksi_elu(double x, double a, double b) { return (void)b, x > 0.0 ? x : a * expm1(x); }
LKSI_HD float lksi_elu_backwardf(float dy, float x, float a, float b)
{
    float r = dy * (a * lksi_exp_negative(x > 0.0f ? 0.0f : x));
    return (void)b, x > 0.0f ? dy : r;
}
LKSI_HD double lksi_elu_backward(double dy, double x, double a, double b)
{
    return (void)b, x > 0.0 ? dy : dy * (a * exp(x));
}

/* a: beta, b: threshold */
LKSI_HD float lksi_softplusf(float x, float a, float b)
{
    float v = a * x, r = ((v > 0.0f ? v : 0.0f) + lksi_log1pf(lksi_exp_negative(-lksi_absf(v)))) / a;
    return v > b ? x : r;
}
LKSI_HD double lksi_softplus(double x, double a, double b)
{
    double v = a * x;
    return v > b ? x : ((v > 0.0 ? v : 0.0) + log1p(exp(-fabs(v)))) / a;
}
LKSI_HD float lksi_softplus_backwardf(float dy, float x, float a, float b)
{
    float v = a * x, r = dy * lksi_sigmoidf(v);
    return v > b ? dy : r;
}
LKSI_HD double lksi_softplus_backward(double dy, double x, double a, double b)
{
    double v = a * x;
    return v > b ? dy : dy * lksi_sigmoid(v);
}

/* a: smallest, b: largest */
#define LKSI_CLAMP(T, NAME)                                                                                    \
    LKSI_HD T NAME(T x, T a, T b)                                                                              \
    {                                                                                                          \
        T y = x < a ? a : x;                                                                                   \
        return y > b ? b : y;                                                                                  \
    }
LKSI_CLAMP(float, lksi_clampf)
LKSI_CLAMP(double, lksi_clamp)
LKSI_CLAMP(int64_t, lksi_clampi)
LKSI_HD float lksi_clamp_backwardf(float dy, float x, float a, float b) { return x >= a && x <= b ? dy : 0.0f; }
LKSI_HD double lksi_clamp_backward(double dy, double x, double a, double b) { return x >= a && x <= b ? dy : 0.0; }

/* --- binary ------------------------------------------------------------------------------------------------------- */

/* x^y; vectorised where y is one number. */
LKSI_HD float lksi_power(float x, float y)
{
    float small = y > 0x1p24f ? 0x1p24f : y; /* beyond, whole and even */
    small = small < -0x1p24f ? -0x1p24f : small;
    int32_t k = (int32_t)small;
    /* A negative number stays one, and has no logarithm, if y is not whole. */
    float base = (float)k == small ? lksi_absf(x) : x;
    base = x == -lksi_infinity() ? lksi_infinity() : base;
    double l = lksi_log2_wide(base), v = (double)y * l;
    v = l == 0.0 ? 0.0 : v;
    v = y == 0.0f ? 0.0 : v;
    float m = (float)lksi_exp2_wide(v);
    uint32_t sign = lksi_bits_f32(x) & ((uint32_t)k << 31) & ((float)k == small ? 0x80000000u : 0u);
    return LKSI_PICK(powf(x, y), lksi_float_f32(lksi_bits_f32(m) ^ sign));
}
LKSI_HD float lksi_powf(float x, float y) { return powf(x, y); }
LKSI_HD double lksi_pow(double x, double y) { return pow(x, y); }
/* Wraps; to a negative power: the integer part. */
LKSI_HD int64_t lksi_powi(int64_t x, int64_t y)
{
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    uint64_t r = 1, base = (uint64_t)x;
    for (; y; y >>= 1, base *= base)
        if (y & 1) r *= base;
    return (int64_t)r;
}
/* a: the other number */
LKSI_HD float lksi_pow_scalarf(float x, float a, float b)
{
    if (a == 2.0f) return x * x;
    return (void)b, lksi_power(x, a);
}
LKSI_HD double lksi_pow_scalar(double x, double a, double b)
{
    if (a == 2.0) return x * x;
    return (void)b, pow(x, a);
}
LKSI_HD int64_t lksi_pow_scalari(int64_t x, int64_t a, int64_t b) { return (void)b, lksi_powi(x, a); }
LKSI_HD float lksi_rpowf(float x, float a, float b) { return (void)b, lksi_power(a, x); }
LKSI_HD double lksi_rpow(double x, double a, double b) { return (void)b, pow(a, x); }
LKSI_HD float lksi_rdivf(float x, float a, float b) { return (void)b, a / x; }
LKSI_HD double lksi_rdiv(double x, double a, double b) { return (void)b, a / x; }

/* NaN wins. */
LKSI_HD float lksi_maximumf(float x, float z)
{
    float m = x > z ? x : z;
    return lksi_is_nan_f32(x) ? x : m;
}
LKSI_HD double lksi_maximum(double x, double z) { return lksi_is_nan_f64(x) || x > z ? x : z; }
LKSI_HD int64_t lksi_maximumi(int64_t x, int64_t z) { return x > z ? x : z; }
LKSI_HD float lksi_minimumf(float x, float z)
{
    float m = x < z ? x : z;
    return lksi_is_nan_f32(x) ? x : m;
}
LKSI_HD double lksi_minimum(double x, double z) { return lksi_is_nan_f64(x) || x < z ? x : z; }
LKSI_HD int64_t lksi_minimumi(int64_t x, int64_t z) { return x < z ? x : z; }
/* Of dy what x gets as the larger one: half of it in a tie. */
LKSI_HD float lksi_larger_backwardf(float dy, float x, float z)
{
    float half = 0.5f * dy, r = x < z ? 0.0f : dy;
    return x == z ? half : r;
}
LKSI_HD double lksi_larger_backward(double dy, double x, double z)
{
    return x == z ? 0.5 * dy : x < z ? 0.0 : dy;
}

LKSI_HD float lksi_atan2f(float y, float x)
{
    float ax = lksi_absf(x), ay = lksi_absf(y), low = ax < ay ? ax : ay, high = ax < ay ? ay : ax;
    double t = (double)low / (double)high;
    t = low == high ? 1.0 : t;
    t = low == 0.0f ? 0.0 : t;
    double z = t * t;
    double p = -0x1.cbc8ba1d90393p-10;
    p = LKSI_FMAD(p, z, 0x1.5f807e30b8b13p-7);
    p = LKSI_FMAD(p, z, -0x1.f8b44d52620abp-6);
    p = LKSI_FMAD(p, z, 0x1.d777cef2cba6dp-5);
    p = LKSI_FMAD(p, z, -0x1.5722a2592e6c3p-4);
    p = LKSI_FMAD(p, z, 0x1.c02f8ee69fbcdp-4);
    p = LKSI_FMAD(p, z, -0x1.24159c2f3a0edp-3);
    p = LKSI_FMAD(p, z, 0x1.99908285343b7p-3);
    p = LKSI_FMAD(p, z, -0x1.555533fdb39dcp-2);
    p = LKSI_FMAD(p, z, 0x1.ffffffeba70d1p-1);
    double r = t * p;
    r = ay > ax ? 0x1.921fb54442d18p+0 - r : r;
    r = lksi_bits_f32(x) >> 31 ? 0x1.921fb54442d18p+1 - r : r;
    float m = lksi_copysignf((float)r, y);
    m = lksi_is_nan_f32(x) || lksi_is_nan_f32(y) ? lksi_nan() : m;
    return LKSI_PICK(atan2f(y, x), m);
}
LKSI_HD double lksi_atan2(double y, double x) { return atan2(y, x); }

LKSI_HD float lksi_preluf(float x, float w) { return x > 0.0f ? x : w * x; }
LKSI_HD double lksi_prelu(double x, double w) { return x > 0.0 ? x : w * x; }
LKSI_HD float lksi_prelu_backwardf(float dy, float x, float w) { return x > 0.0f ? dy : w * dy; }
LKSI_HD double lksi_prelu_backward(double dy, double x, double w) { return x > 0.0 ? dy : w * dy; }
LKSI_HD float lksi_prelu_weight_backwardf(float dy, float x) { return x > 0.0f ? 0.0f : x * dy; }
LKSI_HD double lksi_prelu_weight_backward(double dy, double x) { return x > 0.0 ? 0.0 : x * dy; }

/* a: factor */
LKSI_HD float lksi_addcmulf(float x, float y, float z, float a, float b) { return (void)b, x + a * y * z; }
LKSI_HD double lksi_addcmul(double x, double y, double z, double a, double b) { return (void)b, x + a * y * z; }
LKSI_HD int64_t lksi_addcmuli(int64_t x, int64_t y, int64_t z, int64_t a, int64_t b)
{
    return (void)b, (int64_t)((uint64_t)x + (uint64_t)a * (uint64_t)y * (uint64_t)z);
}
LKSI_HD float lksi_addcdivf(float x, float y, float z, float a, float b) { return (void)b, x + a * (y / z); }
LKSI_HD double lksi_addcdiv(double x, double y, double z, double a, double b) { return (void)b, x + a * (y / z); }

#endif
