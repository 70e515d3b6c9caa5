/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_real.h - the formulas of pointwise losses for one type of arithmetic; see loss.h, which includes this for float
 * and double with REAL, F(name), EXP and LOG defined. `order` says what is wanted: the loss, or a derivative with
 * respect to x (input) and t (target); it is a constant where loops are written, so only one branch is left.
 */

#define FORMULA(name)                                                                                          \
    LKSI_FORMULA REAL F(lksi_##name)(int order, REAL x, REAL t, REAL p, REAL a, REAL b, int flags)
#define UNUSED_PARTS (void)x, (void)t, (void)p, (void)a, (void)b, (void)flags

LKSI_HD REAL F(lksi_loss_abs)(REAL d) { return d < 0 ? -d : d; }
/* 0 of 0, NaN of NaN. */
LKSI_HD REAL F(lksi_loss_sign)(REAL d) { return d > 0 ? (REAL)1 : d < 0 ? (REAL)-1 : d; }
/* c v, and 0 where c is 0 whatever v. */
LKSI_HD REAL F(lksi_loss_part)(REAL c, REAL v) { return c == 0 ? (REAL)0 : c * v; }

/* log(1 + e) for 0 <= e: the rounding of 1 + e is put right. */
LKSI_HD REAL F(lksi_loss_log1p)(REAL e)
{
    REAL u = 1 + e, c = (e - (u - 1)) / u;
    return LOG(u) + (c == c ? c : 0);
}

/* log(1 - x) for x <= 1. */
LKSI_HD REAL F(lksi_loss_log1m)(REAL x)
{
    REAL u = 1 - x, c = ((1 - u) - x) / u;
    return LOG(u) + (u > 0 ? c : 0);
}

/* log(1 + e^x) and its mirror log(1 + e^-x); sigmoid of x and of -x. */
LKSI_HD REAL F(lksi_loss_softplus)(REAL x)
{
    return (x > 0 ? x : x == x ? (REAL)0 : x) + F(lksi_loss_log1p)(EXP(-F(lksi_loss_abs)(x)));
}
LKSI_HD REAL F(lksi_loss_sigmoid)(REAL x)
{
    REAL e = EXP(-F(lksi_loss_abs)(x)), d = 1 / (1 + e);
    return x < 0 ? e * d : d;
}

FORMULA(mse_loss)
{
    UNUSED_PARTS;
    switch (order) {
    case LKSI_LOSS_VALUE: return (x - t) * (x - t);
    case LKSI_LOSS_X: return 2 * (x - t);
    case LKSI_LOSS_T: return 2 * (t - x);
    case LKSI_LOSS_XT: return -2;
    default: return 2;
    }
}

FORMULA(l1_loss)
{
    UNUSED_PARTS;
    switch (order) {
    case LKSI_LOSS_VALUE: return F(lksi_loss_abs)(x - t);
    case LKSI_LOSS_X: return F(lksi_loss_sign)(x - t);
    case LKSI_LOSS_T: return F(lksi_loss_sign)(t - x);
    default: return 0;
    }
}

/* a: beta. |d| < beta: d^2 / (2 beta), else |d| - beta / 2. */
FORMULA(smooth_l1_loss)
{
    UNUSED_PARTS;
    REAL d = x - t, m = F(lksi_loss_abs)(d), s = F(lksi_loss_sign)(d);
    int near = m < a;
    switch (order) {
    case LKSI_LOSS_VALUE: return near ? (REAL)0.5 * m * (m / a) : m - (REAL)0.5 * a;
    case LKSI_LOSS_X: return near ? d / a : s;
    case LKSI_LOSS_T: return near ? -d / a : -s;
    case LKSI_LOSS_XT: return near ? -1 / a : 0;
    default: return near ? 1 / a : 0;
    }
}

/* a: delta. |d| < delta: d^2 / 2, else delta (|d| - delta / 2). */
FORMULA(huber_loss)
{
    UNUSED_PARTS;
    REAL d = x - t, m = F(lksi_loss_abs)(d), s = a * F(lksi_loss_sign)(d);
    int near = m < a;
    switch (order) {
    case LKSI_LOSS_VALUE: return near ? (REAL)0.5 * m * m : a * (m - (REAL)0.5 * a);
    case LKSI_LOSS_X: return near ? d : s;
    case LKSI_LOSS_T: return near ? -d : -s;
    case LKSI_LOSS_XT: return near ? -1 : 0;
    default: return near ? 1 : 0;
    }
}

/* Logarithms no lower than -100, x (1 - x) no lower than 1e-12. NaN for x outside [0, 1]. */
FORMULA(binary_cross_entropy)
{
    UNUSED_PARTS;
    REAL q = x * (1 - x), l0, l1;
    q = q < (REAL)1e-12 ? (REAL)1e-12 : q;
    switch (order) {
    case LKSI_LOSS_X: return x < 0 || x > 1 ? LOG((REAL)-1) : (x - t) / q;
    case LKSI_LOSS_XX: return (x * x - 2 * x * t + t) / q / q;
    case LKSI_LOSS_XT: return -1 / q;
    case LKSI_LOSS_TT: return 0;
    }
    l1 = LOG(x);
    l0 = F(lksi_loss_log1m)(x);
    l1 = l1 < -100 ? -100 : l1;
    l0 = l0 < -100 ? -100 : l0;
    return order == LKSI_LOSS_T ? l0 - l1 : (t - 1) * l0 - t * l1;
}

/* p: weight of positives. (1 - t) log(1 + e^x) + p t log(1 + e^-x): no cancellation, and 0 for an infinite logit of the
 * right sign. */
FORMULA(binary_cross_entropy_with_logits)
{
    UNUSED_PARTS;
    if (order == LKSI_LOSS_VALUE || order == LKSI_LOSS_T) {
        REAL l = F(lksi_loss_log1p)(EXP(-F(lksi_loss_abs)(x)));
        REAL above = (x > 0 ? x : 0) + l, below = (x < 0 ? -x : 0) + l; /* a NaN is in l */
        if (order == LKSI_LOSS_T) return p * below - above;
        return F(lksi_loss_part)(1 - t, above) + F(lksi_loss_part)(p * t, below);
    }
    REAL e = EXP(-F(lksi_loss_abs)(x)), d = 1 / (1 + e);
    REAL s = x < 0 ? e * d : d, r = x < 0 ? d : e * d;
    switch (order) {
    case LKSI_LOSS_X: return (1 - t) * s - p * t * r;
    case LKSI_LOSS_XX: return ((1 - t) + p * t) * (s * r);
    case LKSI_LOSS_XT: return -s - p * r;
    default: return 0;
    }
}

/* flags 1: t is a logarithm. t (log t - x), 0 where the probability is 0. */
FORMULA(kl_div)
{
    UNUSED_PARTS;
    if (flags & 1) {
        REAL e = EXP(t);
        switch (order) {
        case LKSI_LOSS_VALUE: return F(lksi_loss_part)(e, t - x);
        case LKSI_LOSS_T: return F(lksi_loss_part)(e, t - x + 1);
        case LKSI_LOSS_TT: return F(lksi_loss_part)(e, t - x + 2);
        case LKSI_LOSS_XX: return 0;
        default: return -e;
        }
    }
    switch (order) {
    case LKSI_LOSS_VALUE: return F(lksi_loss_part)(t, LOG(t) - x);
    case LKSI_LOSS_X: return -t;
    case LKSI_LOSS_T: return t == 0 ? (REAL)0 : LOG(t) + 1 - x;
    case LKSI_LOSS_XT: return -1;
    case LKSI_LOSS_TT: return t == 0 ? (REAL)0 : 1 / t;
    default: return 0;
    }
}

/* flags 1: x is a logarithm; 2: Stirling's term for t > 1. a: eps. */
FORMULA(poisson_nll_loss)
{
    UNUSED_PARTS;
    REAL y = x + a, full = 0;
    if (flags & 2) {
        REAL l = LOG(t);
        full = order == LKSI_LOSS_VALUE ? t * l - t + (REAL)0.5 * ((REAL)1.83787706640934548356 + l)
               : order == LKSI_LOSS_T   ? l + (REAL)0.5 / t
               : order == LKSI_LOSS_TT  ? 1 / t - (REAL)0.5 / (t * t)
                                        : (REAL)0;
        full = t > 1 ? full : 0;
    }
    if (flags & 1)
        switch (order) {
        case LKSI_LOSS_VALUE: return EXP(x) - F(lksi_loss_part)(t, x) + full;
        case LKSI_LOSS_X: return EXP(x) - t;
        case LKSI_LOSS_T: return full - x;
        case LKSI_LOSS_XX: return EXP(x);
        case LKSI_LOSS_XT: return -1;
        default: return full;
        }
    switch (order) {
    case LKSI_LOSS_VALUE: return x - F(lksi_loss_part)(t, LOG(y)) + full;
    case LKSI_LOSS_X: return 1 - t / y;
    case LKSI_LOSS_T: return full - LOG(y);
    case LKSI_LOSS_XX: return t / y / y;
    case LKSI_LOSS_XT: return -1 / y;
    default: return full;
    }
}

/* a: margin. t = 1: x; t = -1: max(0, margin - x); any other t: both. */
FORMULA(hinge_embedding_loss)
{
    UNUSED_PARTS;
    REAL m = a - x;
    switch (order) {
    case LKSI_LOSS_VALUE: return (t != 1 ? m < 0 ? (REAL)0 : m : (REAL)0) + (t != -1 ? x : (REAL)0);
    case LKSI_LOSS_X: return (t != 1 && !(m < 0) ? (REAL)-1 : (REAL)0) + (t != -1 ? (REAL)1 : (REAL)0);
    default: return 0;
    }
}

/* x, t: the two inputs; p: 1 if the first should be larger, -1; a: margin. max(0, margin - p (x - t)). */
FORMULA(margin_ranking_loss)
{
    UNUSED_PARTS;
    REAL m = a - p * (x - t);
    switch (order) {
    case LKSI_LOSS_VALUE: return m < 0 ? 0 : m;
    case LKSI_LOSS_X: return m < 0 ? 0 : -p;
    case LKSI_LOSS_T: return m < 0 ? 0 : p;
    default: return 0;
    }
}

/* log(1 + e^(-t x)) */
FORMULA(soft_margin_loss)
{
    UNUSED_PARTS;
    REAL z = t * x;
    if (order == LKSI_LOSS_VALUE) return F(lksi_loss_softplus)(-z);
    REAL s = F(lksi_loss_sigmoid)(z), r = F(lksi_loss_sigmoid)(-z);
    switch (order) {
    case LKSI_LOSS_X: return -t * r;
    case LKSI_LOSS_T: return -x * r;
    case LKSI_LOSS_XX: return t * t * (s * r);
    case LKSI_LOSS_XT: return z * (s * r) - r;
    default: return x * x * (s * r);
    }
}

/* x: a cosine; a: margin. t = 1: 1 - x; t = -1: max(0, x - margin); any other t: 0. */
FORMULA(cosine_margin)
{
    UNUSED_PARTS;
    REAL m = x - a;
    switch (order) {
    case LKSI_LOSS_VALUE: return t == 1 ? 1 - x : t == -1 && !(m < 0) ? m : 0;
    case LKSI_LOSS_X: return t == 1 ? -1 : t == -1 && !(m < 0) ? 1 : 0;
    default: return 0;
    }
}

#undef FORMULA
#undef UNUSED_PARTS
