/* SPDX-License-Identifier: BSD-3-Clause
 *
 * half.h - binary16 and bfloat16 as bits: conversions to and from float and double, finite tests by exponent bits. For
 * C and CUDA. Every function is right for all patterns: nearest, ties to even, one rounding; a NaN stays a NaN of the
 * same sign with the leading bits of its payload, made quiet; denormals are kept, whatever FTZ and DAZ say. The scalar
 * functions have no branch, so loops over them are vectorised; the array functions use F16C where the compiler has it
 * and give the same bits.
 */
#ifndef LKSI_HALF_H
#define LKSI_HALF_H

#include <stdint.h>
#include <string.h>
#if (defined __F16C__ || defined __AVX2__) && !defined __CUDACC__
#include <immintrin.h>
#endif

#ifndef LKSI_HD
#ifdef __CUDACC__
#define LKSI_HD static inline __host__ __device__
#else
#define LKSI_HD static inline
#endif
#endif

LKSI_HD uint32_t lksi_bits_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LKSI_HD float lksi_float_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

LKSI_HD uint64_t lksi_bits_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LKSI_HD double lksi_float_f64(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 1 unless infinite or NaN. */
LKSI_HD int lksi_is_finite_f32(float x) { return (lksi_bits_f32(x) & 0x7f800000u) != 0x7f800000u; }
LKSI_HD int lksi_is_finite_f64(double x) { return (lksi_bits_f64(x) >> 52 & 0x7ff) != 0x7ff; }
LKSI_HD int lksi_is_finite_f16(uint16_t h) { return (h & 0x7c00) != 0x7c00; }
LKSI_HD int lksi_is_finite_bf16(uint16_t h) { return (h & 0x7f80) != 0x7f80; }
LKSI_HD int lksi_is_nan_f32(float x) { return (int32_t)(lksi_bits_f32(x) & 0x7fffffffu) > 0x7f800000; }
LKSI_HD int lksi_is_nan_f64(double x)
{
    return (int64_t)(lksi_bits_f64(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000;
}

LKSI_HD float lksi_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    u |= (int32_t)(u & 0x7fffffffu) > 0x7f800000 ? 0x400000u : 0u; /* signed compares are one instruction */
    return lksi_float_f32(u);
}

LKSI_HD uint16_t lksi_f32_to_bf16(float x)
{
    uint32_t u = lksi_bits_f32(x);
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    uint32_t nan = u >> 16 | 0x40u;
    return (uint16_t)((int32_t)(u & 0x7fffffffu) > 0x7f800000 ? nan : rounded);
}

LKSI_HD float lksi_f16_to_f32(uint16_t h)
{
    uint32_t m = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (m << 13) + (112u << 23);
    /* A denormal is m 2^-24, which is a normal float; the int form of the conversion is the one that vectorises. */
    uint32_t denormal = lksi_bits_f32((float)(int32_t)m * 0x1p-24f);
    uint32_t special = m << 13 | (m > 0x7c00u ? 0x7fc00000u : 0x7f800000u);
    uint32_t u = m < 0x400u ? denormal : normal;
    u = m >= 0x7c00u ? special : u;
    return lksi_float_f32(u | sign);
}

LKSI_HD uint16_t lksi_f32_to_f16(float x)
{
    uint32_t u = lksi_bits_f32(x), m = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    /* 2^-14 and more: drop 13 bits; a carry out of the top finite number gives the bits of infinity. */
    uint32_t cut = (int32_t)m < 0x47800000 ? m : 0x47800000u;
    uint32_t normal = (cut - (112u << 23) + 0xfffu + (cut >> 13 & 1)) >> 13;
    /* Below: the unit of 0.5 + x is 2^-24, that of a denormal binary16. No denormal float takes part that matters. */
    uint32_t small = (int32_t)m < 0x38800000 ? m : 0u;
    uint32_t denormal = lksi_bits_f32(lksi_float_f32(small) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (m >> 13 & 0x3ffu);
    uint32_t h = (int32_t)m < 0x38800000 ? denormal : normal;
    h = (int32_t)m > 0x7f800000 ? nan : h;
    return (uint16_t)(h | sign);
}

/* double to float rounded to odd: a second rounding to at most 22 bits then gives what one rounding would. Integers
 * only. Overflow gives infinity. */
LKSI_HD float lksi_f64_to_f32_odd(double x)
{
    uint64_t u = lksi_bits_f64(x), m = u & 0x7fffffffffffffffu;
    uint32_t sign = (uint32_t)(u >> 32) & 0x80000000u;
    int32_t e = (int32_t)(m >> 52) - 1023;
    uint64_t full = (m & 0xfffffffffffffu) | (e > -1023 ? 1ull << 52 : 0ull);
    int32_t shift = e >= -126 ? 29 : 29 - 126 - e;
    shift = shift > 63 ? 63 : shift;
    uint32_t kept = (uint32_t)(full >> shift) | ((full & ((1ull << shift) - 1)) != 0);
    /* For normal numbers `kept` carries the leading one, worth one exponent step. */
    uint32_t r = e >= -126 ? kept + ((uint32_t)(e + 126) << 23) : kept;
    r = e >= 128 ? 0x7f800000u : r;
    r = m > 0x7ff0000000000000u ? 0x7fc00000u | ((uint32_t)(m >> 29) & 0x7fffffu) : r;
    return lksi_float_f32(r | sign);
}

LKSI_HD uint16_t lksi_f64_to_bf16(double x) { return lksi_f32_to_bf16(lksi_f64_to_f32_odd(x)); }
LKSI_HD uint16_t lksi_f64_to_f16(double x) { return lksi_f32_to_f16(lksi_f64_to_f32_odd(x)); }

/* int64 to double rounded to odd at 53 bits (exact below 2^53), for the same purpose. */
LKSI_HD double lksi_i64_to_f64_odd(int64_t x)
{
    uint64_t m = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    uint64_t odd = (m >> 11 | ((m & 0x7ff) != 0)) << 11;
    m = m < 1ull << 53 ? m : odd;
    return x < 0 ? -(double)m : (double)m;
}

LKSI_HD uint16_t lksi_i64_to_bf16(int64_t x) { return lksi_f64_to_bf16(lksi_i64_to_f64_odd(x)); }
LKSI_HD uint16_t lksi_i64_to_f16(int64_t x) { return lksi_f64_to_f16(lksi_i64_to_f64_odd(x)); }

/* Float to integer: toward zero, saturating, NaN gives 0. */
LKSI_HD int64_t lksi_f64_to_i64(double x)
{
    if (x >= 0x1p63) return INT64_MAX;
    if (x >= -0x1p63) return (int64_t)x;
    return x < -0x1p63 ? INT64_MIN : 0;
}

LKSI_HD int32_t lksi_f64_to_i32(double x)
{
    double y = x > 2147483647.0 ? 2147483647.0 : x;
    y = y < -2147483648.0 ? -2147483648.0 : y;
    return y >= -2147483648.0 ? (int32_t)y : 0;
}

LKSI_HD uint8_t lksi_f64_to_u8(double x)
{
    double y = x > 255.0 ? 255.0 : x;
    return (uint8_t)(y > 0.0 ? (int32_t)y : 0);
}

#ifndef __CUDACC__
/* n elements; arrays do not overlap. */
static inline void lksi_f16_to_f32_n(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
#endif
    for (; i < n; i++) y[i] = lksi_f16_to_f32(x[i]);
}

static inline void lksi_f32_to_f16_n(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) y[i] = lksi_f32_to_f16(x[i]);
}

static inline void lksi_bf16_to_f32_n(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = lksi_bf16_to_f32(x[i]);
}

#ifdef __AVX2__
/* lksi_f32_to_bf16 of 8 numbers, in 32 bits each. */
static inline __m256i lksi_f32_to_bf16_8(const float *x)
{
    __m256 v = _mm256_loadu_ps(x);
    __m256i u = _mm256_castps_si256(v), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}
#endif

static inline void lksi_f32_to_bf16_n(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
#ifdef __AVX2__
    for (; i + 16 <= n; i += 16) {
        __m256i h = _mm256_packus_epi32(lksi_f32_to_bf16_8(x + i), lksi_f32_to_bf16_8(x + i + 8));
        _mm256_storeu_si256((__m256i *)(void *)(y + i), _mm256_permute4x64_epi64(h, 0xd8));
    }
#endif
    for (; i < n; i++) y[i] = lksi_f32_to_bf16(x[i]);
}
#endif

#endif
