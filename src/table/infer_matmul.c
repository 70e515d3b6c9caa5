/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_matmul.c - shape rules of matmul and linear. Operands must share one floating dtype; nothing is promoted.
 */
#include "table/table.h"
#include <stddef.h>

static lks_status same_float(lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    if (x->dtype != y->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "products of unlike dtypes: %s @ %s", lks_dtype_name(x->dtype),
                        lks_dtype_name(y->dtype));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "products need a floating dtype, these are %s", lks_dtype_name(x->dtype));
    return LKS_OK;
}

lks_status lksi_infer_matmul(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1];
    lksi_view *z = &a->out[0], xb, yb;
    char s[128], t[128];
    if (x->ndim < 1 || y->ndim < 1)
        return lksi_why(a, LKS_ERR_SHAPE, "both operands need at least 1 dimension: %s @ %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(y, t, sizeof t));
    lks_status fit = same_float(a, x, y);
    if (fit != LKS_OK) return fit;
    if (x->shape[x->ndim - 1] != y->shape[y->ndim == 1 ? 0 : y->ndim - 2])
        return lksi_why(a, LKS_ERR_SHAPE, "inner sizes differ: %s @ %s", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    xb = *x, yb = *y;
    xb.ndim = x->ndim > 2 ? x->ndim - 2 : 0;
    yb.ndim = y->ndim > 2 ? y->ndim - 2 : 0;
    if (!lksi_broadcast(&xb, &yb, z))
        return lksi_why(a, LKS_ERR_SHAPE, "batch dimensions do not broadcast: %s @ %s", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    if (x->ndim > 1) z->shape[z->ndim++] = x->shape[x->ndim - 2];
    if (y->ndim > 1) z->shape[z->ndim++] = y->shape[y->ndim - 1];
    z->dtype = x->dtype;
    lksi_contiguous_strides(z);
    return LKS_OK;
}

lks_status lksi_infer_linear(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1], *b = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    lksi_view *y = &a->out[0];
    char s[128], t[128];
    if (x->ndim < 1 || w->ndim != 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x must be [..., in] and weight [out, in], not %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    lks_status fit = same_float(a, x, w);
    if (fit != LKS_OK) return fit;
    if (x->shape[x->ndim - 1] != w->shape[1])
        return lksi_why(a, LKS_ERR_SHAPE, "inner sizes differ: x %s, weight %s [out, in]",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return lksi_why(a, LKS_ERR_SHAPE, "bias must be [%lld] for weight %s, not %s", (long long)w->shape[0],
                        lksi_shape_text(w, s, sizeof s), lksi_shape_text(b, t, sizeof t));
    if (b && !lks_dtype_is_float(b->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "bias is %s, a floating dtype is needed", lks_dtype_name(b->dtype));
    *y = *x;
    y->data = NULL;
    y->shape[y->ndim - 1] = w->shape[0];
    lksi_contiguous_strides(y);
    return LKS_OK;
}
