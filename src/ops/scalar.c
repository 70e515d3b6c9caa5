/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scalar.c - public functions of the formulas of scalar.def: arguments to attributes, then the door.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>

static lks_tensor *call(const char *where, int op, int nin, lks_tensor *const *in, double a, double b)
{
    lksi_attr attr = {.scalar = {.a = a, .b = b}};
    lks_context *ctx = lksi_ctx(nin, in);
    return ctx ? lksi_call1(ctx, where, op, nin, in, &attr) : NULL;
}

#define UNARY(name)                                                                                            \
    lks_tensor *lks_##name(lks_tensor *x) { return call("lks_" #name, LKSI_OP_##name, 1, &x, 0, 0); }
UNARY(expm1)
UNARY(log1p)
UNARY(log2)
UNARY(log10)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(sign)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(sinh)
UNARY(cosh)
UNARY(erf)
UNARY(erfinv)
UNARY(silu)
UNARY(hardswish)

#define WITH_NUMBER(name)                                                                                      \
    lks_tensor *lks_##name(lks_tensor *x, double v)                                                            \
    {                                                                                                          \
        return call("lks_" #name, LKSI_OP_##name, 1, &x, v, 0);                                                \
    }
WITH_NUMBER(leaky_relu)
WITH_NUMBER(elu)
WITH_NUMBER(pow_scalar)
WITH_NUMBER(rpow)
WITH_NUMBER(rdiv)

lks_tensor *lks_softplus(lks_tensor *x, double beta, double threshold)
{
    LKSI_GUARD;
    if (!x) return NULL;
    if (!(beta > 0)) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_softplus", "beta is %g; it must be positive", beta);
        return NULL;
    }
    return call("lks_softplus", LKSI_OP_softplus, 1, &x, beta, threshold);
}

lks_tensor *lks_clamp(lks_tensor *x, double min, double max)
{
    if (!x) return NULL;
    if (isnan(min) || isnan(max)) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_clamp", "NaN is no bound; infinities stand for none");
        return NULL;
    }
    return call("lks_clamp", LKSI_OP_clamp, 1, &x, min, max);
}

lks_tensor *lks_fake_quantize_per_tensor_affine(lks_tensor *x, double scale, int64_t zero_point, int64_t quant_min,
                                                int64_t quant_max)
{
    if (!x) return NULL;
    lksi_attr attr = {.quantize = {scale, (double)zero_point, (double)quant_min, (double)quant_max}};
    return lksi_call1(x->ctx, "lks_fake_quantize_per_tensor_affine", LKSI_OP_fake_quantize_per_tensor_affine, 1, &x,
                      &attr);
}

#define BINARY(name)                                                                                           \
    lks_tensor *lks_##name(lks_tensor *a, lks_tensor *b)                                                       \
    {                                                                                                          \
        lks_tensor *in[2] = {a, b};                                                                            \
        return call("lks_" #name, LKSI_OP_##name, 2, in, 0, 0);                                                \
    }
BINARY(pow)
BINARY(maximum)
BINARY(minimum)
BINARY(atan2)

lks_tensor *lks_addcmul(lks_tensor *x, lks_tensor *a, lks_tensor *b, double value)
{
    lks_tensor *in[3] = {x, a, b};
    return call("lks_addcmul", LKSI_OP_addcmul, 3, in, value, 0);
}

lks_tensor *lks_addcdiv(lks_tensor *x, lks_tensor *a, lks_tensor *b, double value)
{
    lks_tensor *in[3] = {x, a, b};
    return call("lks_addcdiv", LKSI_OP_addcdiv, 3, in, value, 0);
}

lks_tensor *lks_prelu(lks_tensor *x, lks_tensor *weight)
{
    if (!x || !weight) return NULL;
    if (x == lks_none || weight == lks_none)
        return call("lks_prelu", LKSI_OP_prelu, 2, (lks_tensor *[]){x, weight}, 0, 0);
    int64_t channels = x->v.ndim > 1 ? x->v.shape[1] : 1;
    char s[200], t[200];
    if (weight->v.ndim > 1 || (weight->numel != 1 && weight->numel != channels)) {
        lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_prelu", "weight %s fits neither 1 nor the channels of %s",
                  lksi_shape_text(&weight->v, s, sizeof s), lksi_shape_text(&x->v, t, sizeof t));
        return NULL;
    }
    int64_t shape[LKS_MAX_DIMS];
    int n = weight->numel == 1 ? 0 : x->v.ndim - 1;
    for (int d = 0; d < n; d++) shape[d] = d ? 1 : channels;
    lks_tensor *in[2] = {x, lks_reshape(weight, n, shape)};
    return call("lks_prelu", LKSI_OP_prelu, 2, in, 0, 0);
}
