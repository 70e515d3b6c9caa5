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
 * One block gives four 32-bit words. 32-bit numbers: element i is word i % 4 of block i / 4. 64-bit numbers (uniform and
 * normal in float64): element i is words 2 (i % 2) and 2 (i % 2) + 1 of block i / 2. Normal numbers come in pairs: see
 * lksi_normal_* in table/math.h. Distinct seeds, and distinct attempts and calls below 2^32, never share a stream.
 */
#ifndef LKSI_PHILOX_H
#define LKSI_PHILOX_H

#include "base/half.h"

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
/* Words of the blocks [first, first + blocks), 4 each, in order. Vectorised over blocks. */
static inline void lksi_philox_fill(const lksi_philox *s, uint64_t first, int64_t blocks, uint32_t *restrict out)
{
    enum { W = 16 };
    uint32_t k0 = s->key[0], k1 = s->key[1], w2 = s->word2, w3 = s->word3;
    int64_t b = 0;
    for (; b + W <= blocks; b += W) {
        uint32_t c0[W], c1[W], c2[W], c3[W];
        for (int i = 0; i < W; i++) {
            uint64_t block = first + (uint64_t)(b + i);
            c0[i] = (uint32_t)block;
            c1[i] = (uint32_t)(block >> 32);
            c2[i] = w2;
            c3[i] = w3;
        }
        uint32_t a0 = k0, a1 = k1;
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < W; i++) {
                uint64_t p0 = (uint64_t)0xd2511f53u * c0[i], p1 = (uint64_t)0xcd9e8d57u * c2[i];
                uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ a0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ a1;
                c0[i] = n0;
                c1[i] = (uint32_t)p1;
                c2[i] = n2;
                c3[i] = (uint32_t)p0;
            }
            a0 += 0x9e3779b9u;
            a1 += 0xbb67ae85u;
        }
        for (int i = 0; i < W; i++) {
            out[4 * (b + i)] = c0[i];
            out[4 * (b + i) + 1] = c1[i];
            out[4 * (b + i) + 2] = c2[i];
            out[4 * (b + i) + 3] = c3[i];
        }
    }
    for (; b < blocks; b++) lksi_philox_block(s, first + (uint64_t)b, out + 4 * b);
}
#endif

#endif
