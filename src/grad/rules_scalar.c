/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_scalar.c - gradients of the formulas of scalar.def (and sin, cos, tan). Activations have a fused backward row;
 * the others are a product or two.
 */
#include "grad/rules.h"

#include <math.h>

#define X lksi_back_in(b, 0)
#define Y lksi_back_out(b, 0)

/* g times an expression in x or y. */
#define TIMES(name, expression)                                                                                \
    RULE(name)                                                                                                 \
    {                                                                                                          \
        GIVE(0, lks_mul(b->g, expression));                                                                    \
        return LKS_OK;                                                                                         \
    }

static lks_tensor *square(lks_tensor *x) { return lks_mul(x, x); }
static lks_tensor *zero_like(const lks_tensor *t) { return lks_zeros(t->ctx, t->v.dtype, 0, NULL); }

TIMES(expm1, lks_add_scalar(Y, 1))
TIMES(rsqrt, lks_mul_scalar(lks_mul(square(Y), Y), -0.5))
TIMES(reciprocal, lks_neg(square(Y)))
TIMES(abs, lks_sign(X))
TIMES(sin, lks_cos(X))
TIMES(cos, lks_neg(lks_sin(X)))
TIMES(tan, lks_affine(square(Y), 1, 1))
TIMES(asin, lks_rsqrt(lks_affine(square(X), -1, 1)))
TIMES(acos, lks_neg(lks_rsqrt(lks_affine(square(X), -1, 1))))
TIMES(sinh, lks_cosh(X))
TIMES(cosh, lks_sinh(X))
TIMES(erf, lks_mul_scalar(lks_exp(lks_neg(square(X))), 1.1283791670955126))
TIMES(erfinv, lks_mul_scalar(lks_exp(square(Y)), 0.88622692545275801))
TIMES(rdiv, lks_rdiv(square(X), -b->attr->scalar.a))

RULE(log1p)
{
    GIVE(0, lks_div(b->g, lks_add_scalar(X, 1)));
    return LKS_OK;
}

RULE(log2)
{
    GIVE(0, lks_div(b->g, lks_mul_scalar(X, 0.69314718055994531)));
    return LKS_OK;
}

RULE(log10)
{
    GIVE(0, lks_div(b->g, lks_mul_scalar(X, 2.3025850929940457)));
    return LKS_OK;
}

RULE(sign)
{
    lksi_meta m = lksi_back_meta(b, 0);
    GIVE(0, lks_zeros(b->ctx, m.dtype, m.ndim, m.shape));
    return LKS_OK;
}

/* --- activations --- */

#define FUSED(name)                                                                                            \
    RULE(name)                                                                                                 \
    {                                                                                                          \
        GIVE(0, lksi_rule2(b, LKSI_OP_##name##_backward, b->g, X));                                            \
        return LKS_OK;                                                                                         \
    }
FUSED(silu)
FUSED(hardswish)
FUSED(leaky_relu)
FUSED(elu)
FUSED(softplus)
FUSED(clamp)

RULE(fake_quantize_per_tensor_affine)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_fake_quantize_backward, b->g, X));
    return LKS_OK;
}

RULE(fake_quantize_backward)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_fake_quantize_backward, b->g, lksi_back_in(b, 1)));
    return LKS_OK;
}

/* dy f'(x): again a row in dy; in x the second derivative, where there is one. */
#define FUSED_AGAIN(name, second)                                                                              \
    RULE(name##_backward)                                                                                      \
    {                                                                                                          \
        lks_tensor *dy = lksi_back_in(b, 0), *x = lksi_back_in(b, 1);                                          \
        (void)dy;                                                                                              \
        GIVE(0, lksi_rule2(b, LKSI_OP_##name##_backward, b->g, x));                                            \
        second;                                                                                                \
        return LKS_OK;                                                                                         \
    }

/* With s = sigmoid(x): s (1 - s) (2 + x (1 - 2 s)). */
static lks_tensor *silu_second(lks_tensor *x)
{
    lks_tensor *s = lks_sigmoid(x);
    lks_tensor *inner = lks_add_scalar(lks_mul(x, lks_affine(s, -2, 1)), 2);
    return lks_mul(lks_mul(s, lks_affine(s, -1, 1)), inner);
}

static lks_tensor *hardswish_second(lks_tensor *x)
{
    lks_tensor *zero = zero_like(x);
    return lks_where(lks_lt(lks_abs(x), lks_add_scalar(zero, 3)), lks_add_scalar(zero, 1.0 / 3), zero);
}

static lks_tensor *elu_second(lks_tensor *x, double alpha)
{
    lks_tensor *zero = zero_like(x);
    return lks_where(lks_gt(x, zero), zero, lks_mul_scalar(lks_exp(lks_minimum(x, zero)), alpha));
}

static lks_tensor *softplus_second(lks_tensor *x, double beta, double threshold)
{
    lks_tensor *s = lks_sigmoid(lks_mul_scalar(x, beta)), *limit = zero_like(x);
    limit = lks_add_scalar(limit, threshold);
    return lks_where(lks_gt(lks_mul_scalar(x, beta), limit), zero_like(x),
                     lks_mul_scalar(lks_mul(s, lks_affine(s, -1, 1)), beta));
}

FUSED_AGAIN(silu, GIVE(1, lks_mul(lks_mul(b->g, dy), silu_second(x))))
FUSED_AGAIN(hardswish, GIVE(1, lks_mul(lks_mul(b->g, dy), hardswish_second(x))))
FUSED_AGAIN(elu, GIVE(1, lks_mul(lks_mul(b->g, dy), elu_second(x, b->attr->scalar.a))))
FUSED_AGAIN(softplus,
            GIVE(1, lks_mul(lks_mul(b->g, dy), softplus_second(x, b->attr->scalar.a, b->attr->scalar.b))))
FUSED_AGAIN(leaky_relu, )
FUSED_AGAIN(clamp, )

static lks_tensor *row3(lksi_back *b, int op, lks_tensor *x, lks_tensor *y, lks_tensor *z)
{
    lks_tensor *in[3] = {x, y, z};
    return lksi_call1(b->ctx, lksi_rows[op].name, op, 3, in, b->attr);
}

RULE(prelu)
{
    lks_tensor *x = lksi_back_in(b, 0);
    GIVE(0, row3(b, LKSI_OP_prelu_backward, b->g, x, lksi_back_in(b, 1)));
    GIVE(1, lksi_rule2(b, LKSI_OP_prelu_weight_backward, b->g, x));
    return LKS_OK;
}

RULE(prelu_backward) /* x > 0 ? dy : weight dy */
{
    lks_tensor *dy = lksi_back_in(b, 0), *x = lksi_back_in(b, 1), *zero = zero_like(x);
    GIVE(0, row3(b, LKSI_OP_prelu_backward, b->g, x, lksi_back_in(b, 2)));
    GIVE(2, lks_where(lks_gt(x, zero), zero, lks_mul(b->g, dy)));
    return LKS_OK;
}

RULE(prelu_weight_backward) /* x > 0 ? 0 : x dy */
{
    lks_tensor *dy = lksi_back_in(b, 0), *x = lksi_back_in(b, 1), *zero = zero_like(x);
    GIVE(0, lksi_rule2(b, LKSI_OP_prelu_weight_backward, b->g, x));
    GIVE(1, lks_where(lks_gt(x, zero), zero, lks_mul(b->g, dy)));
    return LKS_OK;
}

/* --- powers --- */

RULE(pow_scalar)
{
    double e = b->attr->scalar.a;
    lksi_meta m = lksi_back_meta(b, 0);
    if (e == 0)
        GIVE(0, lks_zeros(b->ctx, m.dtype, m.ndim, m.shape));
    else
        GIVE(0, lks_mul(b->g, lks_mul_scalar(e == 2 ? X : lks_pow_scalar(X, e - 1), e)));
    return LKS_OK;
}

/* Where x^e is flat in e although log x is not finite: 0 to a power that is not negative. */
static lks_tensor *log_base(lks_tensor *x, lks_tensor *e)
{
    lks_tensor *zero = zero_like(x);
    lks_tensor *flat = lks_mul(lks_eq(x, zero), lks_ge(e, zero_like(e)));
    return lks_where(flat, zero, lks_log(lks_where(flat, lks_add_scalar(zero, 1), x)));
}

RULE(pow)
{
    lks_tensor *x = lksi_back_in(b, 0), *e = lks_to(lksi_back_in(b, 1), b->g->v.dtype); /* an unsigned 0 less 1 ... */
    if (!e) return lksi_rule_failed(b);
    if (lksi_back_needs(b, 0)) { /* e x^(e-1), 0 where both are 0 */
        lks_tensor *flat = lks_mul(lks_eq(e, zero_like(e)), lks_eq(x, zero_like(x)));
        lks_tensor *base = lks_where(flat, lks_add_scalar(zero_like(x), 1), x);
        GIVE(0, lks_mul(b->g, lks_mul(e, lks_pow(base, lks_add_scalar(e, -1)))));
    }
    GIVE(1, lks_mul(b->g, lks_mul(Y, log_base(x, e))));
    return LKS_OK;
}

RULE(rpow)
{
    double a = b->attr->scalar.a;
    if (a == 0) { /* 0^x: log 0 counts only for negative x */
        GIVE(0, lks_mul_scalar(lks_mul(b->g, Y), 0));
        return LKS_OK;
    }
    GIVE(0, lks_mul(b->g, lks_mul_scalar(Y, log(a))));
    return LKS_OK;
}

/* --- binary, ternary --- */

RULE(maximum)
{
    lks_tensor *x = lksi_back_in(b, 0), *z = lksi_back_in(b, 1);
    GIVE(0, row3(b, LKSI_OP_larger_backward, b->g, x, z));
    GIVE(1, row3(b, LKSI_OP_larger_backward, b->g, z, x));
    return LKS_OK;
}

RULE(minimum)
{
    lks_tensor *x = lksi_back_in(b, 0), *z = lksi_back_in(b, 1);
    GIVE(0, row3(b, LKSI_OP_larger_backward, b->g, z, x));
    GIVE(1, row3(b, LKSI_OP_larger_backward, b->g, x, z));
    return LKS_OK;
}

RULE(larger_backward) /* linear in dy */
{
    GIVE(0, row3(b, LKSI_OP_larger_backward, b->g, lksi_back_in(b, 1), lksi_back_in(b, 2)));
    return LKS_OK;
}

RULE(atan2) /* x / (x^2 + y^2), -y / (x^2 + y^2); 0 at the origin */
{
    lks_tensor *y = lksi_back_in(b, 0), *x = lksi_back_in(b, 1), *sum = lks_add(square(x), square(y));
    if (!sum) return lksi_rule_failed(b);
    lks_tensor *origin = lks_eq(sum, zero_like(sum)), *one = lks_add_scalar(zero_like(sum), 1);
    lks_tensor *share = lks_div(b->g, lks_where(origin, one, sum));
    GIVE(0, lks_mul(share, x));
    GIVE(1, lks_neg(lks_mul(share, y)));
    return LKS_OK;
}

RULE(addcmul)
{
    lks_tensor *g = b->attr->scalar.a == 1 ? b->g : lks_mul_scalar(b->g, b->attr->scalar.a);
    GIVE(0, b->g);
    GIVE(1, lks_mul(g, lksi_back_in(b, 2)));
    GIVE(2, lks_mul(g, lksi_back_in(b, 1)));
    return LKS_OK;
}

RULE(addcdiv)
{
    lks_tensor *y = lksi_back_in(b, 1), *z = lksi_back_in(b, 2);
    lks_tensor *g = b->attr->scalar.a == 1 ? b->g : lks_mul_scalar(b->g, b->attr->scalar.a);
    GIVE(0, b->g);
    GIVE(1, lks_div(g, z));
    GIVE(2, lks_neg(lks_mul(g, lks_div(lks_div(y, z), z))));
    return LKS_OK;
}
