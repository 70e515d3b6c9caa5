/* SPDX-License-Identifier: BSD-3-Clause
 *
 * complex.h - formulas of complex numbers that CPU and CUDA kernels share: parts in, parts out. Compile without
 * contraction, as math.h.
 */
#ifndef LKSI_TABLE_COMPLEX_H
#define LKSI_TABLE_COMPLEX_H

#include "table/math.h"

/* (a + bi) / (c + di) */
LKSI_HD void lksi_complex_divf(float a, float b, float c, float d, float *re, float *im)
{
    double p = a, q = b, x = c, y = d, m = x * x + y * y;
    *re = (float)((p * x + q * y) / m);
    *im = (float)((q * x - p * y) / m);
}

/* The divisor is scaled by its larger part: no overflow before the result's. */
LKSI_HD void lksi_complex_div(double a, double b, double c, double d, double *re, double *im)
{
    double s = fabs(c) < fabs(d) ? fabs(d) : fabs(c), r = s > 0 && s - s == 0 ? 1 / s : 1;
    c *= r, d *= r;
    double m = c * c + d * d;
    *re = (a * c + b * d) / m * r;
    *im = (b * c - a * d) / m * r;
}

/* exp(x + yi), in two steps where exp(x) alone would overflow; infinities and NaN as in C's annex G. */
LKSI_HD void lksi_complex_exp(double x, double y, double *re, double *im)
{
    double far = x > 700, e = exp(x - 700 * far), up = far > 0 ? 1.0142320547350045e304 : 1; /* exp(700) */
    int turns = y - y == 0, flat = x - x != 0 && x < 0;
    *re = turns ? e * cos(y) * up : flat ? 0 : x > 700 && x - x != 0 ? x : y - y;
    *im = y == 0 ? y : turns ? e * sin(y) * up : flat ? 0 : y - y;
}

#endif
