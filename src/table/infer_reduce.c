/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_reduce.c - shape rules of reductions.
 */
#include "table/table.h"

/* Shape of x with the dims of mask removed, or kept as 1. */
static void reduced_shape(lksi_view *y, const lksi_view *x, int mask, int keepdim)
{
    y->ndim = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1))
            y->shape[y->ndim++] = x->shape[d];
        else if (keepdim)
            y->shape[y->ndim++] = 1;
    }
    lksi_contiguous_strides(y);
}

static lks_status check_reduce(lksi_args *a)
{
    int mask = a->attr.reduce.mask, dtype = a->attr.reduce.dtype;
    if (mask < 0 || mask >> a->in[0].ndim != 0)
        return lksi_why(a, LKS_ERR_ARGUMENT, "the dims to reduce (mask %#x) are not those of a %d-D tensor", mask,
                        a->in[0].ndim);
    if (dtype < LKS_DTYPE_NONE || dtype >= LKS_DTYPE_COUNT)
        return lksi_why(a, LKS_ERR_DTYPE, "%d is not a dtype", dtype);
    return LKS_OK;
}

lks_status lksi_infer_sum(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    int dtype = a->attr.reduce.dtype;
    lks_status s = check_reduce(a);
    if (s) return s;
    a->out[0].dtype = dtype != LKS_DTYPE_NONE ? dtype : lks_dtype_is_float(x->dtype) ? x->dtype : LKS_I64;
    reduced_shape(&a->out[0], x, a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

lks_status lksi_infer_mean(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lks_status s = check_reduce(a);
    if (s) return s;
    int dtype = a->attr.reduce.dtype != LKS_DTYPE_NONE ? a->attr.reduce.dtype : x->dtype;
    if (!lks_dtype_is_float(dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "mean of %s; give a floating dtype for the result", lks_dtype_name(dtype));
    a->out[0].dtype = dtype;
    reduced_shape(&a->out[0], x, a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

/* A 0-dim tensor has one element, number 0 along dim 0 or -1. */
static lks_status check_dim(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    char s[200];
    int d = a->attr.dim.dim, ndim = x->ndim > 0 ? x->ndim : 1;
    if (d < 0) d += ndim;
    if (d < 0 || d >= ndim)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %s", a->attr.dim.dim, lksi_shape_text(x, s, sizeof s));
    if (x->ndim > 0 && x->shape[d] == 0)
        return lksi_why(a, LKS_ERR_SHAPE, "dim %d of %s is empty and has no largest element", d,
                        lksi_shape_text(x, s, sizeof s));
    a->attr.dim.dim = d;
    return LKS_OK;
}

lks_status lksi_infer_max(lksi_args *a)
{
    lks_status s = check_dim(a);
    if (s) return s;
    for (int i = 0; i < 2; i++)
        reduced_shape(&a->out[i], &a->in[0], 1 << a->attr.dim.dim, a->attr.dim.keepdim);
    a->out[0].dtype = a->in[0].dtype;
    a->out[1].dtype = LKS_I64;
    return LKS_OK;
}

lks_status lksi_infer_argmax(lksi_args *a)
{
    lks_status s = check_dim(a);
    if (s) return s;
    reduced_shape(&a->out[0], &a->in[0], 1 << a->attr.dim.dim, a->attr.dim.keepdim);
    a->out[0].dtype = LKS_I64;
    return LKS_OK;
}

/* dy and indices have size 1 along dim. */
lks_status lksi_infer_index_fill_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *index = &a->in[1];
    lksi_view *dx = &a->out[0];
    char s[200], t[200];
    int d = a->attr.slice.dim < 0 ? a->attr.slice.dim + dy->ndim : a->attr.slice.dim;
    int same = dy->ndim == index->ndim && d >= 0 && d < dy->ndim && dy->shape[d] == 1;
    for (int i = 0; same && i < dy->ndim; i++) same = dy->shape[i] == index->shape[i];
    if (!same)
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s and indices %s must be alike, with size 1 in dim %d",
                        lksi_shape_text(dy, s, sizeof s), lksi_shape_text(index, t, sizeof t), a->attr.slice.dim);
    if (index->dtype != LKS_I64)
        return lksi_why(a, LKS_ERR_DTYPE, "indices are %s; they must be int64", lks_dtype_name(index->dtype));
    if (a->attr.slice.size < 1) return lksi_why(a, LKS_ERR_SHAPE, "size %lld", (long long)a->attr.slice.size);
    a->attr.slice.dim = d;
    dx->dtype = dy->dtype;
    dx->ndim = dy->ndim;
    for (int i = 0; i < dy->ndim; i++) dx->shape[i] = i == d ? a->attr.slice.size : dy->shape[i];
    lksi_contiguous_strides(dx);
    return LKS_OK;
}
