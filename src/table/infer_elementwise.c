/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_elementwise.c - shape rules of elementwise rows: broadcasting, promotion, memory order of the result.
 */
#include "table/table.h"

static int same_shape(const lksi_view *a, const lksi_view *b)
{
    if (a->ndim != b->ndim) return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    return 1;
}

/* Strides of out 0: channels-last if every input of its shape is, and not row-major as well; else row-major. */
static void order_like_inputs(lksi_args *a)
{
    lksi_view *y = &a->out[0];
    int last = 0;
    if (y->ndim == 4 || y->ndim == 5) {
        for (int i = 0; i < a->nin; i++) {
            if (!same_shape(&a->in[i], y)) continue;
            if (!lksi_is_channels_last(&a->in[i])) {
                last = 0;
                break;
            }
            if (!lksi_is_contiguous(&a->in[i])) last = 1;
        }
    }
    if (y->ndim == 1)
        y->stride[0] = 1;
    else if (last)
        lksi_channels_last_strides(y);
    else
        lksi_contiguous_strides(y);
}

void lksi_order_like_inputs(lksi_args *a) { order_like_inputs(a); }

static lks_status do_not_broadcast(lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    char s[200], t[200];
    return lksi_why(a, LKS_ERR_SHAPE, "shapes %s and %s do not broadcast", lksi_shape_text(x, s, sizeof s),
                    lksi_shape_text(y, t, sizeof t));
}

static lks_status unary(lksi_args *a, lks_dtype dtype)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    y->dtype = dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    order_like_inputs(a);
    return LKS_OK;
}

static lks_status binary(lksi_args *a, lks_dtype dtype)
{
    if (same_shape(&a->in[0], &a->in[1])) return unary(a, dtype);
    if (!lksi_broadcast(&a->in[0], &a->in[1], &a->out[0])) return do_not_broadcast(a, &a->in[0], &a->in[1]);
    a->out[0].dtype = dtype;
    order_like_inputs(a);
    return LKS_OK;
}

static lks_dtype promoted(const lksi_args *a) { return lksi_promote_views(&a->in[0], &a->in[1]); }
static lks_dtype or_float(lks_dtype t) { return lks_dtype_is_float(t) || lks_dtype_is_complex(t) ? t : LKS_F32; }

lks_status lksi_infer_add(lksi_args *a) { return binary(a, promoted(a)); }
lks_status lksi_infer_mul(lksi_args *a) { return binary(a, promoted(a)); }
lks_status lksi_infer_div(lksi_args *a) { return binary(a, or_float(promoted(a))); }

lks_status lksi_infer_sub(lksi_args *a)
{
    if (promoted(a) == LKS_BOOL)
        return lksi_why(a, LKS_ERR_DTYPE, "bool - bool has no meaning; cast one of them first");
    return binary(a, promoted(a));
}

#define COMPARE(name)                                                                                          \
    lks_status lksi_infer_##name(lksi_args *a) { return binary(a, LKS_BOOL); }
COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)

lks_status lksi_infer_where(lksi_args *a)
{
    lksi_view both;
    if (a->in[0].dtype != LKS_BOOL)
        return lksi_why(a, LKS_ERR_DTYPE, "the condition is %s; it must be bool (a comparison gives one)",
                        lks_dtype_name(a->in[0].dtype));
    if (!lksi_broadcast(&a->in[1], &a->in[2], &both)) return do_not_broadcast(a, &a->in[1], &a->in[2]);
    if (!lksi_broadcast(&a->in[0], &both, &a->out[0])) return do_not_broadcast(a, &a->in[0], &both);
    a->out[0].dtype = lksi_promote_views(&a->in[1], &a->in[2]);
    order_like_inputs(a);
    return LKS_OK;
}

/* 1 if v is a whole number that int64 holds. */
static int integral(double v) { return v >= -0x1p63 && v < 0x1p63 && v == (double)(int64_t)v; }

lks_status lksi_infer_affine(lksi_args *a)
{
    lks_dtype t = a->in[0].dtype;
    double scale = a->attr.affine.scale, shift = a->attr.affine.shift;
    if (t == LKS_BOOL) return lksi_why(a, LKS_ERR_DTYPE, "arithmetic with numbers on bool; cast it first");
    if (!lks_dtype_is_float(t) && !lks_dtype_is_complex(t) && (!integral(scale) || !integral(shift)))
        return lksi_why(a, LKS_ERR_ARGUMENT, "%g x + %g on %s: integers need whole numbers; cast to a float first",
                        scale,
                        shift, lks_dtype_name(t));
    return unary(a, t);
}

#define UNARY(name)                                                                                            \
    lks_status lksi_infer_##name(lksi_args *a) { return unary(a, or_float(a->in[0].dtype)); }
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(gelu)
lks_status lksi_infer_relu(lksi_args *a) { return unary(a, a->in[0].dtype); }

#define BACKWARD(name)                                                                                         \
    lks_status lksi_infer_##name(lksi_args *a) { return binary(a, or_float(promoted(a))); }
BACKWARD(sqrt_backward)
BACKWARD(tanh_backward)
BACKWARD(sigmoid_backward)
BACKWARD(relu_backward)
BACKWARD(gelu_backward)

BACKWARD(fake_quantize_backward)

lks_status lksi_infer_fake_quantize_per_tensor_affine(lksi_args *a)
{
    double scale = a->attr.quantize.scale, zero = a->attr.quantize.zero;
    if (!(scale > 0 && scale - scale == 0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "scale is %g; it must be positive and finite", scale);
    if (!(a->attr.quantize.min <= zero && zero <= a->attr.quantize.max))
        return lksi_why(a, LKS_ERR_ARGUMENT, "zero point %g is outside [%g, %g]", zero, a->attr.quantize.min,
                        a->attr.quantize.max);
    if (!lks_dtype_is_float(a->in[0].dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s; a floating dtype is needed", lks_dtype_name(a->in[0].dtype));
    return unary(a, a->in[0].dtype);
}

/* --- complex --- */

static lks_dtype part_of(lks_dtype t) { return t == LKS_C128 ? LKS_F64 : t == LKS_C64 ? LKS_F32 : or_float(t); }
static lks_dtype pair_of(lks_dtype t) { return t == LKS_F64 ? LKS_C128 : LKS_C64; }

lks_status lksi_infer_conj(lksi_args *a) { return unary(a, a->in[0].dtype); }
lks_status lksi_infer_complex_abs(lksi_args *a) { return unary(a, part_of(a->in[0].dtype)); }
lks_status lksi_infer_angle(lksi_args *a) { return unary(a, part_of(a->in[0].dtype)); }
lks_status lksi_infer_complex(lksi_args *a) { return binary(a, pair_of(promoted(a))); }
lks_status lksi_infer_polar(lksi_args *a) { return binary(a, pair_of(promoted(a))); }

/* --- formulas of scalar.def --- */

UNARY(sin)
UNARY(cos)
UNARY(tan)

static lks_dtype promoted_of_three(const lksi_args *a)
{
    lksi_view both;
    both.dtype = promoted(a);
    both.ndim = a->in[0].ndim > a->in[1].ndim ? a->in[0].ndim : a->in[1].ndim;
    return lksi_promote_views(&both, &a->in[2]);
}

static lks_status ternary(lksi_args *a, lks_dtype dtype)
{
    lksi_view both;
    if (!lksi_broadcast(&a->in[0], &a->in[1], &both)) return do_not_broadcast(a, &a->in[0], &a->in[1]);
    if (!lksi_broadcast(&both, &a->in[2], &a->out[0])) return do_not_broadcast(a, &both, &a->in[2]);
    a->out[0].dtype = dtype;
    order_like_inputs(a);
    return LKS_OK;
}

/* Integers need whole numbers; infinities stand for the smallest and largest. */
static lks_status check_numbers(lksi_args *a, lks_dtype t)
{
    double v[2] = {a->attr.scalar.a, a->attr.scalar.b};
    for (int i = 0; i < 2 && !lks_dtype_is_float(t); i++)
        if (!integral(v[i]) && v[i] - v[i] == 0.0)
            return lksi_why(a, LKS_ERR_ARGUMENT, "%g with %s: integers need whole numbers; cast to a float first", v[i],
                            lks_dtype_name(t));
    if (a->op == LKSI_OP_pow_scalar && !lks_dtype_is_float(t) && !(v[0] >= 0.0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "%s to the power %g: cast to a float first", lks_dtype_name(t), v[0]);
    return LKS_OK;
}

static lks_status scalar(lksi_args *a, int inputs, int numbers, int integers)
{
    lks_dtype t = inputs == 1 ? a->in[0].dtype : inputs == 2 ? promoted(a) : promoted_of_three(a);
    if (!integers) t = or_float(t);
    if (integers && t == LKS_BOOL && a->op != LKSI_OP_maximum && a->op != LKSI_OP_minimum)
        return lksi_why(a, LKS_ERR_DTYPE, "arithmetic on bool; cast it first");
    if (numbers) {
        lks_status s = check_numbers(a, t);
        if (s) return s;
    }
    return inputs == 1 ? unary(a, t) : inputs == 2 ? binary(a, t) : ternary(a, t);
}

#define SCALAR(inputs, numbers, integers, name)                                                                \
    lks_status lksi_infer_##name(lksi_args *a) { return scalar(a, inputs, numbers, integers); }
#include "table/scalar.def"
