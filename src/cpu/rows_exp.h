/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows_exp.h - what softmax and cross entropy share: exponentials of non-positive numbers and sums of them, dot
 * products, groups of slices. Follows rows.h; static.
 */
#ifndef LKSI_ROWS_EXP_H
#define LKSI_ROWS_EXP_H

#include "cpu/rows.h"
#include "table/math.h"

/* exp(x), x <= 0 (a NaN stays one). */
static inline LKSI_UNUSED float exp_below_f(float x) { return lksi_exp_negative(x); }
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
