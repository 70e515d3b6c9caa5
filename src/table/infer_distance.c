/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_distance.c - shape rules of cdist and pdist.
 */
#include "table/table.h"

static lks_status check(lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    if (!lks_dtype_is_float(x->dtype) || x->dtype != y->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "one floating dtype is needed, not %s and %s", lks_dtype_name(x->dtype),
                        lks_dtype_name(y->dtype));
    if (!(a->attr.distance.p >= 0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "p is %g; it must be 0 or more", a->attr.distance.p);
    return LKS_OK;
}

lks_status lksi_infer_cdist(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1];
    lksi_view *z = &a->out[0], xb = *x, yb = *y;
    char s[128], t[128];
    if (x->ndim < 2 || y->ndim < 2 || x->shape[x->ndim - 1] != y->shape[y->ndim - 1])
        return lksi_why(a, LKS_ERR_SHAPE, "[..., P, M] and [..., R, M] are needed, not %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(y, t, sizeof t));
    TRY(check(a, x, y));
    xb.ndim -= 2, yb.ndim -= 2;
    if (!lksi_broadcast(&xb, &yb, z))
        return lksi_why(a, LKS_ERR_SHAPE, "batch dimensions do not broadcast: %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(y, t, sizeof t));
    z->shape[z->ndim++] = x->shape[x->ndim - 2];
    z->shape[z->ndim++] = y->shape[y->ndim - 2];
    z->dtype = x->dtype;
    lksi_contiguous_strides(z);
    return LKS_OK;
}

/* da has the batch dims of dy: the walk sums what a lacks. */
lks_status lksi_infer_cdist_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1];
    lksi_view *dx = &a->out[0];
    TRY(check(a, x, &a->in[2]));
    *dx = *dy;
    dx->data = NULL;
    dx->dtype = x->dtype;
    dx->shape[dx->ndim - 1] = x->shape[x->ndim - 1];
    lksi_contiguous_strides(dx);
    return LKS_OK;
}

lks_status lksi_infer_pdist(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    char s[128];
    if (x->ndim != 2) return lksi_why(a, LKS_ERR_SHAPE, "x %s must be [N, M]", lksi_shape_text(x, s, sizeof s));
    TRY(check(a, x, x));
    int64_t n = x->shape[0], pairs;
    if (!lksi_mul_fits(n > 0 ? n : 1, n > 0 ? n - 1 : 0, &pairs))
        return lksi_why(a, LKS_ERR_SHAPE, "%s has too many pairs", lksi_shape_text(x, s, sizeof s));
    y->dtype = x->dtype;
    y->ndim = 1;
    y->shape[0] = pairs / 2;
    y->stride[0] = 1;
    return LKS_OK;
}

lks_status lksi_infer_pdist_backward(lksi_args *a)
{
    const lksi_view *x = &a->in[1];
    TRY(check(a, x, x));
    a->out[0] = *x;
    a->out[0].data = NULL;
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}
