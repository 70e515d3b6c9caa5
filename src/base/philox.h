/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.h - counter-based random numbers: Philox4x32-10 (Salmon et al., 2011). For C and CUDA. Whatever the split of a
 * tensor over ranks, threads or kernels, element `index` of (seed, attempt, call) gets the same bits.
 *
 * Mapping:   key word 0   seed, low half
 *            key word 1   seed, high half ^ 0x85ebca6b attempt, high half ^ 0xc2b2ae35 call, high half
 *            counter 0,1  block number, low and high half
 *            counter 2    call, low half
 *            counter 3    attempt, low half
 * One block gives four 32-bit words. 32-bit numbers: element i is word i % 4 of block i / 4. 64-bit numbers (uniform
 * and normal in float64): element i is words 2 (i % 2) and 2 (i % 2) + 1 of block i / 2. Normal numbers come in pairs:
 * see lksi_normal_* in table/math.h. Distinct seeds, and distinct attempts and calls below 2^32, never share a stream.
 */
#ifndef LKSI_PHILOX_H
#define LKSI_PHILOX_H

#include "base/half.h"
#if (defined __SSE2__ || defined __AVX2__) && !defined __CUDACC__
#include <immintrin.h>
#endif

typedef struct lksi_philox { uint32_t key[2], word2, word3; } lksi_philox;

LKSI_HD lksi_philox lksi_philox_stream(int64_t seed, int64_t attempt, int64_t call)
{
    uint32_t attempt_high = (uint32_t)((uint64_t)attempt >> 32), call_high = (uint32_t)((uint64_t)call >> 32);
    lksi_philox s;
    s.key[0] = (uint32_t)(uint64_t)seed;
    s.key[1] = (uint32_t)((uint64_t)seed >> 32) ^ 0x85ebca6bu * attempt_high ^ 0xc2b2ae35u * call_high;
    s.word2 = (uint32_t)(uint64_t)call;
    s.word3 = (uint32_t)(uint64_t)attempt;
    return s;
}

/* The bare function: counter words c, key words k, result in r. */
LKSI_HD void lksi_philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1,
                             uint32_t *r0, uint32_t *r1, uint32_t *r2, uint32_t *r3)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    *r0 = c0;
    *r1 = c1;
    *r2 = c2;
    *r3 = c3;
}

/* The four words of block `block`. */
LKSI_HD void lksi_philox_block(const lksi_philox *s, uint64_t block, uint32_t out[4])
{
    lksi_philox4x32((uint32_t)block, (uint32_t)(block >> 32), s->word2, s->word3, s->key[0], s->key[1], out, out + 1,
                    out + 2, out + 3);
}

/* The word of element `index`, alone. */
LKSI_HD uint32_t lksi_philox_word(const lksi_philox *s, uint64_t index)
{
    uint32_t w[4];
    lksi_philox_block(s, index >> 2, w);
    return index & 2 ? (index & 1 ? w[3] : w[2]) : (index & 1 ? w[1] : w[0]);
}

/* Uniform on [0, 1): 24 bits of one word, 53 bits of two. Exact, so the same on every machine. */
LKSI_HD float lksi_uniform_f32(uint32_t word) { return (float)(int32_t)(word >> 8) * 0x1p-24f; }
LKSI_HD double lksi_uniform_f64(uint32_t first, uint32_t second)
{
    return (double)(int64_t)((uint64_t)first << 21 ^ second >> 11) * 0x1p-53;
}

#ifndef __CUDACC__
/* Words of the blocks [first, first + blocks), 4 each, in order. Vectors hold one counter word of several blocks, each
 * in the low half of 64 bits, where the widening multiplication wants it; upper halves are of no account. */
static inline void lksi_philox_fill(const lksi_philox *s, uint64_t first, int64_t blocks, uint32_t *restrict out)
{
    int64_t b = 0;
#if defined __AVX2__ || defined __SSE2__
#ifdef __AVX2__
    typedef __m256i vec;
    enum { PER = 4 };
#define LKSI_V(op) _mm256_##op
#define LKSI_LOGIC(op) _mm256_##op##_si256
#else
    typedef __m128i vec;
    enum { PER = 2 };
#define LKSI_V(op) _mm_##op
#define LKSI_LOGIC(op) _mm_##op##_si128
#endif
    enum { GROUPS = 4 }; /* independent chains hide the latency */
    const vec m0 = LKSI_V(set1_epi64x)(0xd2511f53), m1 = LKSI_V(set1_epi64x)(0xcd9e8d57);
    const vec low = LKSI_V(set1_epi64x)(0xffffffff);
    for (; b + GROUPS * PER <= blocks; b += GROUPS * PER) {
        vec c0[GROUPS], c1[GROUPS], c2[GROUPS], c3[GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) {
            int64_t at = (int64_t)(first + (uint64_t)(b + g * PER));
#ifdef __AVX2__
            c0[g] = _mm256_add_epi64(_mm256_set1_epi64x(at), _mm256_set_epi64x(3, 2, 1, 0));
#else
            c0[g] = _mm_add_epi64(_mm_set1_epi64x(at), _mm_set_epi64x(1, 0));
#endif
            c1[g] = LKSI_V(srli_epi64)(c0[g], 32);
            c2[g] = LKSI_V(set1_epi64x)(s->word2);
            c3[g] = LKSI_V(set1_epi64x)(s->word3);
        }
        uint32_t k0 = s->key[0], k1 = s->key[1];
        for (int round = 0; round < 10; round++) {
            vec a0 = LKSI_V(set1_epi64x)(k0), a1 = LKSI_V(set1_epi64x)(k1);
#pragma GCC unroll 4
            for (int g = 0; g < GROUPS; g++) {
                vec p0 = LKSI_V(mul_epu32)(c0[g], m0), p1 = LKSI_V(mul_epu32)(c2[g], m1);
                c0[g] = LKSI_LOGIC(xor)(LKSI_LOGIC(xor)(LKSI_V(srli_epi64)(p1, 32), c1[g]), a0);
                c2[g] = LKSI_LOGIC(xor)(LKSI_LOGIC(xor)(LKSI_V(srli_epi64)(p0, 32), c3[g]), a1);
                c1[g] = p1;
                c3[g] = p0;
            }
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) {
            vec front = LKSI_LOGIC(or)(LKSI_LOGIC(and)(c0[g], low), LKSI_V(slli_epi64)(c1[g], 32));
            vec back = LKSI_LOGIC(or)(LKSI_LOGIC(and)(c2[g], low), LKSI_V(slli_epi64)(c3[g], 32));
            vec even = LKSI_V(unpacklo_epi64)(front, back), odd = LKSI_V(unpackhi_epi64)(front, back);
            __m128i *to = (__m128i *)(void *)(out + 4 * (b + g * PER));
#ifdef __AVX2__
            _mm_storeu_si128(to, _mm256_castsi256_si128(even));
            _mm_storeu_si128(to + 1, _mm256_castsi256_si128(odd));
            _mm_storeu_si128(to + 2, _mm256_extracti128_si256(even, 1));
            _mm_storeu_si128(to + 3, _mm256_extracti128_si256(odd, 1));
#else
            _mm_storeu_si128(to, even);
            _mm_storeu_si128(to + 1, odd);
#endif
        }
    }
#undef LKSI_V
#undef LKSI_LOGIC
#endif
    for (; b < blocks; b++) lksi_philox_block(s, first + (uint64_t)b, out + 4 * b);
}
#endif

#endif
