/* SPDX-License-Identifier: BSD-3-Clause
 *
 * math.h - scalar functions that CPU and CUDA kernels share. The float forms have no branch and no table, so plain
 * loops over them are vectorised without -ffast-math; they are right at zeros, infinities, NaN and denormals. Errors,
 * in units in the last place: exp and log 1, tanh and sigmoid 2.6, gelu 7 (10 in the tail below -5; the tanh form 20,
 * and 200 below -4, where it is less than 1e-4). The double forms are libm's. Compile without contraction; fused
 * multiply-add is used where it is named, if the target has it. lksi_normal_* and what they stand on use none, so
 * random numbers in float32 have the same bits on every machine.
 *
 * Polynomials are minimax fits (Remez exchange) made for these forms and ranges.
 */
#ifndef LKSI_MATH_H
#define LKSI_MATH_H

#include "base/philox.h"
#include <lockstep/base.h>
#include <math.h>

/* a b + c: fused where that is one instruction. */
#if defined __CUDA_ARCH__
#define LKSI_FMA(a, b, c) fmaf(a, b, c)
#elif defined __FMA__ || defined __aarch64__
#define LKSI_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define LKSI_FMA(a, b, c) ((a) * (b) + (c))
#endif

/* a b + c with two roundings everywhere; nvcc would fuse the plain form. */
LKSI_HD float lksi_mul_add(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(__fmul_rn(a, b), c);
#else
    return a * b + c;
#endif
}

LKSI_HD float lksi_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

LKSI_HD float lksi_absf(float x) { return lksi_float_f32(lksi_bits_f32(x) & 0x7fffffffu); }
LKSI_HD float lksi_copysignf(float x, float sign)
{
    return lksi_float_f32((lksi_bits_f32(x) & 0x7fffffffu) | (lksi_bits_f32(sign) & 0x80000000u));
}

/* 2^k for -126 <= k <= 127; anything for other k. */
LKSI_HD float lksi_exp2i(int32_t k) { return lksi_float_f32(((uint32_t)k + 127u) << 23); }

/* x = k ln 2 + r, |r| <= 0.3467; returns exp(r) - 1. |x| < 200 or NaN (then k is anything). */
LKSI_HD float lksi_expm1_reduced(float x, int32_t *k)
{
    float t = LKSI_FMA(x, 0x1.715476p+0f, 0x1.8p23f); /* the sum's low bits are the nearest integer */
    float n = t - 0x1.8p23f;
    *k = (int32_t)(lksi_bits_f32(t) - 0x4b400000u);
    float r = LKSI_FMA(n, -0x1.62e4p-1f, x); /* 16 bits times n: exact */
    r = LKSI_FMA(n, -0x1.7f7d1cp-20f, r);
    float p = LKSI_FMA(r, 0x1.6a23dp-10f, 0x1.123a2p-7f);
    p = LKSI_FMA(p, r, 0x1.5558f4p-5f);
    p = LKSI_FMA(p, r, 0x1.55549p-3f);
    p = LKSI_FMA(p, r, 0x1.fffffcp-2f);
    return LKSI_FMA(r * r, p, r);
}

LKSI_HD float lksi_expf(float x)
{
    int32_t k;
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float p = lksi_expm1_reduced(x, &k) + 1.0f;
    int32_t half = k >> 1;
    /* Two factors: into the denormals, and up to infinity. */
    return p * lksi_exp2i(half) * lksi_exp2i((int32_t)((uint32_t)k - (uint32_t)half));
}

/* exp(x) for x <= 0: as above, one operation less for each end that cannot be met. */
LKSI_HD float lksi_exp_negative(float x)
{
    int32_t k;
    x = x < -104.0f ? -104.0f : x;
    float p = lksi_expm1_reduced(x, &k) + 1.0f;
    int32_t half = k >> 1;
    return p * lksi_exp2i(half) * lksi_exp2i((int32_t)((uint32_t)k - (uint32_t)half));
}

/* exp(x) for x <= 0, with 0 for what is below 1.6e-38: one factor less. */
LKSI_HD float lksi_exp_normal(float x)
{
    int32_t k;
    float p = (lksi_expm1_reduced(x, &k) + 1.0f) * lksi_exp2i(k);
    return x < -87.0f ? 0.0f : p;
}

LKSI_HD float lksi_logf(float x)
{
    float y = x < 0x1p-126f ? x * 0x1p23f : x;
    uint32_t u = lksi_bits_f32(y) - 0x3f3504f3u; /* mantissa from sqrt(1/2) to sqrt(2) */
    float e = (float)((int32_t)u >> 23) - (x < 0x1p-126f ? 23.0f : 0.0f);
    float f = lksi_float_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f * f;
    float q = LKSI_FMA(f, -0x1.41f1b8p-4f, 0x1.07e71p-3f);
    q = LKSI_FMA(q, f, -0x1.0ce96p-3f);
    q = LKSI_FMA(q, f, 0x1.226bb4p-3f);
    q = LKSI_FMA(q, f, -0x1.547778p-3f);
    q = LKSI_FMA(q, f, 0x1.99a5acp-3f);
    q = LKSI_FMA(q, f, -0x1.000224p-2f);
    q = LKSI_FMA(q, f, 0x1.55554ap-2f);
    float r = LKSI_FMA(f * s, q, -0.5f * s);
    r = LKSI_FMA(e, 0x1.7f7d1cp-20f, r) + f;
    r = LKSI_FMA(e, 0x1.62e4p-1f, r);
    float infinity = lksi_float_f32(0x7f800000u), nan = lksi_float_f32(0x7fc00000u);
    r = x > 0.0f ? r : nan;
    r = x == 0.0f ? -infinity : r;
    r = x == infinity ? infinity : r;
    return lksi_is_nan_f32(x) ? x : r;
}

LKSI_HD float lksi_tanhf(float x)
{
    int32_t k;
    float a = lksi_absf(x);
    a = a > 10.0f ? 10.0f : a;
    float m = lksi_expm1_reduced(a + a, &k), two = lksi_exp2i(k);
    float t = LKSI_FMA(two, m, two - 1.0f); /* exp(2 |x|) - 1 */
    return lksi_copysignf(t / (t + 2.0f), x);
}

LKSI_HD float lksi_sigmoidf(float x)
{
    float e = lksi_exp_negative(-lksi_absf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Standard normal distribution: returns Phi(x), *density gets exp(-x^2 / 2) / sqrt(2 pi). */
LKSI_HD float lksi_phif(float x, float *density)
{
    float a = lksi_absf(x);
    a = a > 16.0f ? 16.0f : a;
    /* a^2 in two parts: its rounding error would be multiplied by a^2 / 2. */
    float high = a * a;
#if defined __FMA__ || defined __CUDA_ARCH__ || defined __aarch64__
    float low = LKSI_FMA(a, a, -high);
#else
    float top = lksi_float_f32(lksi_bits_f32(a) & 0xfffff000u), rest = a - top;
    float low = (top * top - high) + (a + top) * rest;
#endif
    float e = lksi_exp_normal(-0.5f * high);
    e = LKSI_FMA(e, -0.5f * low, e);
    float u = 1.0f / LKSI_FMA(a, 0.3f, 1.0f);
    float w = u - 0.59375f; /* the middle of u's range */
    float p = LKSI_FMA(w, -0x1.51eb08p-6f, 0x1.243448p-9f);
    p = LKSI_FMA(p, w, 0x1.69642cp-5f);
    p = LKSI_FMA(p, w, -0x1.36d608p-7f);
    p = LKSI_FMA(p, w, -0x1.739d78p-4f);
    p = LKSI_FMA(p, w, -0x1.67c6bap-7f);
    p = LKSI_FMA(p, w, 0x1.ce29e8p-3f);
    p = LKSI_FMA(p, w, 0x1.a35844p-2f);
    p = LKSI_FMA(p, w, 0x1.999756p-2f);
    p = LKSI_FMA(p, w, 0x1.0633b8p-2f);
    float tail = p * u * e;
    *density = 0x1.988454p-2f * e;
    return x > 0.0f ? 1.0f - tail : tail;
}

/* x Phi(x), and its derivative Phi(x) + x phi(x). Minus infinity gives NaN as in the formula; results below 1e-37 are
 * 0. */
LKSI_HD float lksi_geluf(float x)
{
    float density;
    return x * lksi_phif(x, &density);
}

LKSI_HD float lksi_gelu_slopef(float x)
{
    float density, p = lksi_phif(x, &density);
    float c = x > 16.0f ? 16.0f : x;
    c = c < -16.0f ? -16.0f : c;
    return LKSI_FMA(c, density, p);
}

/* x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation. */
LKSI_HD float lksi_gelu_tanhf(float x)
{
    float c = x > 16.0f ? 16.0f : x; /* beyond, the sigmoid is 0 or 1 */
    c = c < -16.0f ? -16.0f : c;
    float inner = c * LKSI_FMA(c * c, 0x1.2444f2p-4f, 0x1.988454p+0f);
    float e = lksi_exp_normal(-lksi_absf(inner));
    return x * ((inner < 0.0f ? e : 1.0f) / (1.0f + e));
}

LKSI_HD float lksi_gelu_tanh_slopef(float x)
{
    float c = x > 16.0f ? 16.0f : x;
    c = c < -16.0f ? -16.0f : c;
    float s = c * c;
    float inner = c * LKSI_FMA(s, 0x1.2444f2p-4f, 0x1.988454p+0f);
    float slope = LKSI_FMA(s, 0x1.b6676cp-3f, 0x1.988454p+0f);
    float e = lksi_exp_normal(-lksi_absf(inner));
    float d = 1.0f / (1.0f + e);
    float sigmoid = inner < 0.0f ? e * d : d;
    return LKSI_FMA(c * slope, e * d * d, sigmoid);
}

LKSI_HD double lksi_sigmoid(double x)
{
    double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

LKSI_HD double lksi_phi(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
LKSI_HD double lksi_gelu(double x) { return x * lksi_phi(x); }
LKSI_HD double lksi_gelu_slope(double x)
{
    double c = x > 64.0 ? 64.0 : x < -64.0 ? -64.0 : x;
    return lksi_phi(x) + c * 0.39894228040143267794 * exp(-0.5 * c * c);
}

LKSI_HD double lksi_gelu_tanh(double x)
{
    double c = x > 64.0 ? 64.0 : x < -64.0 ? -64.0 : x;
    return x * lksi_sigmoid(1.59576912160573071176 * (c + 0.044715 * c * c * c));
}

LKSI_HD double lksi_gelu_tanh_slope(double x)
{
    double c = x > 64.0 ? 64.0 : x < -64.0 ? -64.0 : x;
    double inner = 1.59576912160573071176 * (c + 0.044715 * c * c * c);
    double e = exp(-fabs(inner)), d = 1.0 / (1.0 + e);
    return (inner < 0.0 ? e * d : d) + c * 1.59576912160573071176 * (1.0 + 0.134145 * c * c) * e * d * d;
}

/* log(u) for 2^-33 < u <= 1, without fused operations. */
LKSI_HD float lksi_log_strict(float u)
{
    uint32_t b = lksi_bits_f32(u) - 0x3f3504f3u;
    float e = (float)((int32_t)b >> 23);
    float f = lksi_float_f32((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float s = lksi_mul(f, f);
    float q = lksi_mul_add(f, -0x1.41f1b8p-4f, 0x1.07e71p-3f);
    q = lksi_mul_add(q, f, -0x1.0ce96p-3f);
    q = lksi_mul_add(q, f, 0x1.226bb4p-3f);
    q = lksi_mul_add(q, f, -0x1.547778p-3f);
    q = lksi_mul_add(q, f, 0x1.99a5acp-3f);
    q = lksi_mul_add(q, f, -0x1.000224p-2f);
    q = lksi_mul_add(q, f, 0x1.55554ap-2f);
    float r = lksi_mul_add(lksi_mul(f, s), q, lksi_mul(-0.5f, s));
    r = lksi_mul_add(e, 0x1.7f7d1cp-20f, r) + f;
    return lksi_mul_add(e, 0x1.62e4p-1f, r);
}

/* cos and sin of 2 pi times word / 2^24 (its upper 24 bits), without fused operations; exact reduction. */
LKSI_HD void lksi_turn_strict(uint32_t word, float *cosine, float *sine)
{
    int32_t w = (int32_t)(word >> 8);
    int32_t quarter = (w + 0x200000) >> 22;                      /* nearest multiple of a quarter turn */
    float t = (float)(w - (quarter << 22)) * 0x1p-22f;            /* quarter turns, |t| <= 1/2 */
    float s = lksi_mul(t, t);
    float a = lksi_mul_add(s, -0x1.2d9278p-8f, 0x1.465e9p-4f);
    a = lksi_mul_add(a, s, -0x1.4abbb8p-1f);
    a = lksi_mul(lksi_mul_add(a, s, 0x1.921fb4p+0f), t);
    float b = lksi_mul_add(s, 0x1.d99e78p-11f, -0x1.55c4e8p-6f);
    b = lksi_mul_add(b, s, 0x1.03c1dap-2f);
    b = lksi_mul_add(b, s, -0x1.3bd3ccp+0f);
    b = lksi_mul_add(b, s, 1.0f);
    float c = quarter & 1 ? a : b, d = quarter & 1 ? b : a;
    *cosine = lksi_float_f32(lksi_bits_f32(c) ^ ((quarter + 1) & 2 ? 0x80000000u : 0u));
    *sine = lksi_float_f32(lksi_bits_f32(d) ^ (quarter & 2 ? 0x80000000u : 0u));
}

/* Two standard normal numbers from two words (Box & Muller, 1958): elements i (even) and i + 1 from the words of those
 * elements. */
LKSI_HD void lksi_normal_f32(uint32_t first, uint32_t second, float *z0, float *z1)
{
    float u = lksi_mul_add((float)(int32_t)(first >> 1), 0x1p-31f, 0x1p-32f); /* (0, 1] */
    float l = lksi_mul(-2.0f, lksi_log_strict(u));
#ifdef __CUDA_ARCH__
    float r = __fsqrt_rn(l);
#else
    float r = __builtin_sqrtf(l);
#endif
    float c, s;
    lksi_turn_strict(second, &c, &s);
    *z0 = lksi_mul(r, c);
    *z1 = lksi_mul(r, s);
}

/* The same in double from the four words of a block: elements 2 b and 2 b + 1 of block b. */
LKSI_HD void lksi_normal_f64(const uint32_t w[4], double *z0, double *z1)
{
    double u = lksi_uniform_f64(w[0], w[1]) + 0x1p-54; /* (0, 1] */
    double r = sqrt(-2.0 * log(u)), turn = 6.28318530717958647693 * lksi_uniform_f64(w[2], w[3]);
    *z0 = r * cos(turn);
    *z1 = r * sin(turn);
}

/* The smallest and the largest number of a floating dtype inside [a, b); one that is outside where it has none. Host.
 */
static inline double lksi_round_to(int dtype, double v)
{
    return dtype == LKS_F64   ? v
           : dtype == LKS_F32 ? (float)v
           : dtype == LKS_F16 ? lksi_f16_to_f32(lksi_f64_to_f16(v))
                              : lksi_bf16_to_f32(lksi_f64_to_bf16(v));
}

/* The number of dtype next to v on the side of `up`. */
static inline double lksi_neighbour(int dtype, double v, int up)
{
    if (dtype == LKS_F64) return nextafter(v, up ? HUGE_VAL : -HUGE_VAL);
    if (dtype == LKS_F32) return nextafterf((float)v, up ? HUGE_VALF : -HUGE_VALF);
    uint16_t h = dtype == LKS_F16 ? lksi_f64_to_f16(v) : lksi_f64_to_bf16(v);
    if ((h & 0x7fff) == 0) h = up ? 0x0001 : 0x8001;
    else h = (uint16_t)(h + (((h & 0x8000) == 0) == up ? 1 : -1));
    return dtype == LKS_F16 ? lksi_f16_to_f32(h) : lksi_bf16_to_f32(h);
}

static inline void lksi_uniform_bounds(int dtype, double a, double b, double *low, double *high)
{
    *low = lksi_round_to(dtype, a);
    if (*low < a) *low = lksi_neighbour(dtype, *low, 1);
    *high = lksi_round_to(dtype, b);
    if (*high >= b) *high = lksi_neighbour(dtype, *high, 0);
    if (*high < *low) *high = *low;
}

#endif
