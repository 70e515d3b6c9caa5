/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows_exp.h - what softmax and cross entropy share: exponentials of non-positive numbers and sums of them, dot
 * products, groups of slices. Follows rows.h; static.
 */
#ifndef LKSI_ROWS_EXP_H
#define LKSI_ROWS_EXP_H

#include "cpu/rows.h"
#include "table/math.h"

/* exp(x), x <= 0 or a little above (a NaN stays one): lksi_exp_negative, except that what is below 2^-126 is 0. Beside
 * the largest term of a softmax, 1, that is nothing, and it saves a quarter of the work. */
static inline LKSI_UNUSED float exp_below_f(float x)
{
    float c = x < -87.33654f ? -87.33654f : x;
    float t = LKSI_FMA(c, 0x1.715476p+0f, 0x1.8p23f); /* the sum's low bits are the nearest integer */
    float n = t - 0x1.8p23f;
    float r = LKSI_FMA(n, -0x1.62e4p-1f, c);
    r = LKSI_FMA(n, -0x1.7f7d1cp-20f, r);
    float p = LKSI_FMA(r, 0x1.6a23cfp-10f, 0x1.123a1fp-7f);
    p = LKSI_FMA(p, r, 0x1.5558f3p-5f);
    p = LKSI_FMA(p, r, 0x1.555491p-3f);
    p = LKSI_FMA(p, r, 0x1.fffffcp-2f);
    p = LKSI_FMA(r * r, p, r) + 1.0f;
    p *= lksi_float_f32((lksi_bits_f32(t) << 23) + 0x3f800000u);
    return x < -87.33654f ? 0.0f : p;
}
static inline LKSI_UNUSED double exp_below_d(double x) { return exp(x); }

/* Slices moved together: whole cache lines of any dtype if they are short, fewer if the buffers would leave the
 * cache. */
static LKSI_UNUSED int64_t lksi_rowset_group(int64_t n)
{
    int64_t g = 65536 / (n > 0 ? n : 1);
    return g < 1 ? 1 : g > 32 ? 32 : g;
}

#define REAL float
#define F(name) name##_f
#include "cpu/rows_exp_real.h"
#undef REAL
#undef F
#define REAL double
#define F(name) name##_d
#include "cpu/rows_exp_real.h"
#undef REAL
#undef F

#endif
