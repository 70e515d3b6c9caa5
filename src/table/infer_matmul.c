/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_matmul.c - shape rules of products. Operands must share one floating dtype; nothing is promoted.
 */
#include "table/table.h"
#include <stddef.h>

static lks_status same_float(lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    if (x->dtype != y->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "products of unlike dtypes: %s @ %s", lks_dtype_name(x->dtype),
                        lks_dtype_name(y->dtype));
    if (!lks_dtype_is_float(x->dtype) && !lks_dtype_is_complex(x->dtype))
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

lks_status lksi_infer_linear_weight_backward(lksi_args *a)
{
    const lksi_view *g = &a->in[0], *x = &a->in[1];
    lksi_view *dw = &a->out[0], *db = &a->out[1];
    char s[128], t[128];
    TRY(same_float(a, g, x));
    if (g->ndim != 2 || x->ndim != 2 || g->shape[0] != x->shape[0])
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s and x %s must have the same rows", lksi_shape_text(g, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    dw->dtype = x->dtype, db->dtype = a->attr.cast.dtype;
    dw->ndim = 2, db->ndim = 1;
    dw->shape[0] = db->shape[0] = g->shape[1];
    dw->shape[1] = x->shape[1];
    lksi_contiguous_strides(dw);
    lksi_contiguous_strides(db);
    return LKS_OK;
}

lks_status lksi_infer_mv(lksi_args *a) { return lksi_infer_matmul(a); }
lks_status lksi_infer_dot(lksi_args *a) { return lksi_infer_matmul(a); }

/* a and b as for matmul; c broadcasts to their product. */
lks_status lksi_infer_addmm(lksi_args *a)
{
    const lksi_view *c = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    lksi_view *y = &a->out[0], both;
    char s[128], t[128];
    TRY(lksi_infer_matmul(a));
    if (!c) return LKS_OK;
    if (!lks_dtype_is_float(c->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "what is added is %s, a floating dtype is needed", lks_dtype_name(c->dtype));
    int fits = lksi_broadcast(c, y, &both) && both.ndim == y->ndim;
    for (int d = 0; fits && d < y->ndim; d++) fits = both.shape[d] == y->shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "what is added, %s, does not broadcast to the product %s",
                        lksi_shape_text(c, s, sizeof s), lksi_shape_text(y, t, sizeof t));
    return LKS_OK;
}

lks_status lksi_infer_addmv(lksi_args *a) { return lksi_infer_addmm(a); }

lks_status lksi_infer_linalg_vecdot(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1];
    lksi_view *z = &a->out[0], both;
    char s[128], t[128];
    TRY(same_float(a, x, y));
    if (!lksi_broadcast(x, y, &both))
        return lksi_why(a, LKS_ERR_SHAPE, "shapes %s and %s do not broadcast", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    int dim = a->attr.dim.dim < 0 ? a->attr.dim.dim + both.ndim : a->attr.dim.dim;
    if (dim < 0 || dim >= both.ndim)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %s", a->attr.dim.dim, lksi_shape_text(&both, s, sizeof s));
    a->attr.dim.dim = dim;
    z->dtype = x->dtype;
    z->ndim = 0;
    for (int d = 0; d < both.ndim; d++)
        if (d != dim) z->shape[z->ndim++] = both.shape[d];
    lksi_contiguous_strides(z);
    return LKS_OK;
}

lks_status lksi_infer_bilinear(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1], *w = &a->in[2];
    const lksi_view *b = a->nin > 3 && a->in[3].ndim >= 0 ? &a->in[3] : NULL;
    lksi_view *z = &a->out[0];
    char s[128], t[128], u[128];
    int fits = x->ndim >= 1 && x->ndim == y->ndim && w->ndim == 3;
    for (int d = 0; fits && d < x->ndim - 1; d++) fits = x->shape[d] == y->shape[d];
    if (!fits || w->shape[1] != x->shape[x->ndim - 1] || w->shape[2] != y->shape[y->ndim - 1])
        return lksi_why(a, LKS_ERR_SHAPE, "x1 [..., I], x2 [..., J] and weight [O, I, J] are needed, not %s, %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(y, t, sizeof t),
                        lksi_shape_text(w, u, sizeof u));
    TRY(same_float(a, x, y));
    TRY(same_float(a, x, w));
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return lksi_why(a, LKS_ERR_SHAPE, "bias must be [%lld] for weight %s, not %s", (long long)w->shape[0],
                        lksi_shape_text(w, s, sizeof s), lksi_shape_text(b, t, sizeof t));
    if (b && !lks_dtype_is_float(b->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "bias is %s, a floating dtype is needed", lks_dtype_name(b->dtype));
    *z = *x;
    z->data = NULL;
    z->shape[z->ndim - 1] = w->shape[0];
    lksi_contiguous_strides(z);
    return LKS_OK;
}
