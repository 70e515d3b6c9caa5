/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_softmax.c - shape rules of softmax, log_softmax and cross_entropy.
 */
#include "table/table.h"

static int same_shape(const lksi_view *a, const lksi_view *b)
{
    if (a->ndim != b->ndim) return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    return 1;
}

static void like(lksi_view *y, const lksi_view *x)
{
    y->dtype = x->dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    lksi_contiguous_strides(y);
}

/* A 0-dim x is one slice of one element, dim 0 or -1. */
static lks_status softmax_dim(lksi_args *a, const lksi_view *x)
{
    int dim = a->attr.dim.dim, n = x->ndim > 0 ? x->ndim : 1;
    char s[128];
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    if (dim < -n || dim >= n)
        return lksi_why(a, LKS_ERR_SHAPE, "dim %d of %s", dim, lksi_shape_text(x, s, sizeof s));
    a->attr.dim.dim = dim < 0 ? dim + n : dim;
    like(&a->out[0], x);
    return LKS_OK;
}

static lks_status softmax_pair(lksi_args *a)
{
    char s[128], t[128];
    TRY(softmax_dim(a, &a->in[1]));
    if (!lks_dtype_is_float(a->in[0].dtype) || !same_shape(&a->in[0], &a->in[1]))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit y %s", lksi_shape_text(&a->in[0], s, sizeof s),
                        lksi_shape_text(&a->in[1], t, sizeof t));
    return LKS_OK;
}

lks_status lksi_infer_softmax(lksi_args *a) { return softmax_dim(a, &a->in[0]); }
lks_status lksi_infer_log_softmax(lksi_args *a) { return softmax_dim(a, &a->in[0]); }
lks_status lksi_infer_softmax_backward(lksi_args *a) { return softmax_pair(a); }
lks_status lksi_infer_log_softmax_backward(lksi_args *a) { return softmax_pair(a); }

static lks_status loss_check(lksi_args *a, const lksi_view *x, const lksi_view *target)
{
    char s[128], t[128];
    int reduction = a->attr.loss.reduction;
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "logits are %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    if (target->dtype != LKS_I64 && target->dtype != LKS_I32)
        return lksi_why(a, LKS_ERR_DTYPE, "target is %s, int64 or int32 is needed", lks_dtype_name(target->dtype));
    int fits = x->ndim >= 2 && target->ndim == x->ndim - 1 && target->shape[0] == x->shape[0];
    for (int d = 2; fits && d < x->ndim; d++) fits = target->shape[d - 1] == x->shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "target %s does not fit logits %s ([N, C, d...] takes [N, d...])",
                        lksi_shape_text(target, s, sizeof s), lksi_shape_text(x, t, sizeof t));
    if (!(a->attr.loss.smoothing >= 0 && a->attr.loss.smoothing <= 1))
        return lksi_why(a, LKS_ERR_ARGUMENT, "label smoothing is %g, it must be in [0, 1]", a->attr.loss.smoothing);
    if (reduction < 0 || reduction > 2) return lksi_why(a, LKS_ERR_ARGUMENT, "reduction is %d", reduction);
    return LKS_OK;
}

/* loss, lse [N, d...] and count [] are float32, float64 where logits are. */
lks_status lksi_infer_cross_entropy(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *target = &a->in[1];
    TRY(loss_check(a, x, target));
    for (int i = 0; i < 3; i++) {
        like(&a->out[i], target);
        if (i == 2 || (i == 0 && a->attr.loss.reduction != 0)) a->out[i].ndim = 0;
        a->out[i].dtype = x->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    }
    return LKS_OK;
}

lks_status lksi_infer_cross_entropy_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *target = &a->in[2], *lse = &a->in[3], *count = &a->in[4];
    char s[128], t[128];
    TRY(loss_check(a, x, target));
    int scalar = a->attr.loss.reduction != 0;
    if (!lks_dtype_is_float(dy->dtype) || (scalar ? dy->ndim != 0 : !same_shape(dy, target)))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit target %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(target, t, sizeof t));
    if (!same_shape(lse, target) || !lks_dtype_is_float(lse->dtype) || count->ndim != 0 ||
        !lks_dtype_is_float(count->dtype))
        return lksi_why(a, LKS_ERR_SHAPE, "lse %s or count does not fit target %s", lksi_shape_text(lse, s, sizeof s),
                        lksi_shape_text(target, t, sizeof t));
    like(&a->out[0], x);
    return LKS_OK;
}
