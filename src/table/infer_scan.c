/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_scan.c - shape rules of what runs along one dim.
 */
#include "table/table.h"

static lks_status like(lksi_args *a, const lksi_view *x, lks_dtype dtype)
{
    char s[200];
    int d = a->attr.scan.dim, ndim = x->ndim > 0 ? x->ndim : 1;
    if (d < 0) d += ndim;
    if (d < 0 || d >= ndim)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %s", a->attr.scan.dim, lksi_shape_text(x, s, sizeof s));
    a->attr.scan.dim = d;
    a->out[0].dtype = dtype;
    a->out[0].ndim = x->ndim;
    for (int i = 0; i < x->ndim; i++) a->out[0].shape[i] = x->shape[i];
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}

static lks_status along(lksi_args *a)
{
    lks_dtype t = a->attr.scan.dtype;
    if (t < LKS_DTYPE_NONE || t >= LKS_DTYPE_COUNT) return lksi_why(a, LKS_ERR_DTYPE, "%d is not a dtype", t);
    if (t == LKS_DTYPE_NONE) t = lks_dtype_is_float(a->in[0].dtype) ? a->in[0].dtype : LKS_I64;
    return like(a, &a->in[0], t);
}

lks_status lksi_infer_cumsum(lksi_args *a) { return along(a); }
lks_status lksi_infer_cumprod(lksi_args *a) { return along(a); }

static lks_status two_alike(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1];
    char s[200], t[200];
    int same = x->ndim == y->ndim;
    for (int d = 0; same && d < x->ndim; d++) same = x->shape[d] == y->shape[d];
    if (!same)
        return lksi_why(a, LKS_ERR_SHAPE, "shapes %s and %s differ", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    lks_dtype p = lksi_promote_views(x, y);
    if (!lks_dtype_is_float(p)) return lksi_why(a, LKS_ERR_DTYPE, "%s; floats are needed", lks_dtype_name(p));
    return like(a, x, p);
}

lks_status lksi_infer_recurrence(lksi_args *a) { return two_alike(a); }
lks_status lksi_infer_cumprod_backward(lksi_args *a) { return two_alike(a); }
