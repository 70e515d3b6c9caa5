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
    int complex = lks_dtype_is_complex(x->dtype);
    if (dtype != LKS_DTYPE_NONE && complex != lks_dtype_is_complex(dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s as %s: convert it first (lks_to)", lks_dtype_name(x->dtype),
                        lks_dtype_name(dtype));
    a->out[0].dtype = dtype != LKS_DTYPE_NONE ? dtype : lks_dtype_is_float(x->dtype) || complex ? x->dtype : LKS_I64;
    reduced_shape(&a->out[0], x, a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

lks_status lksi_infer_mean(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lks_status s = check_reduce(a);
    if (s) return s;
    int dtype = a->attr.reduce.dtype != LKS_DTYPE_NONE ? a->attr.reduce.dtype : x->dtype;
    if (lks_dtype_is_complex(x->dtype) != lks_dtype_is_complex(dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s as %s: convert it first (lks_to)", lks_dtype_name(x->dtype),
                        lks_dtype_name(dtype));
    if (!lks_dtype_is_float(dtype) && !lks_dtype_is_complex(dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "mean of %s; give a floating dtype for the result", lks_dtype_name(dtype));
    a->out[0].dtype = dtype;
    reduced_shape(&a->out[0], x, a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

/* --- more than a sum --- */

static lks_status of_floats(lksi_args *a, const char *name)
{
    lks_status s = check_reduce(a);
    if (s) return s;
    if (!lks_dtype_is_float(a->in[0].dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s of %s; cast it to a float first", name, lks_dtype_name(a->in[0].dtype));
    a->out[0].dtype = a->in[0].dtype;
    reduced_shape(&a->out[0], &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

/* 1 if there are results, and nothing to make them of. */
static int of_nothing(const lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    int none = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 0 && !(a->attr.reduce.mask >> d & 1)) return 0;
        none |= x->shape[d] == 0;
    }
    return none;
}

lks_status lksi_infer_var(lksi_args *a) { return of_floats(a, "var"); }
lks_status lksi_infer_std(lksi_args *a) { return of_floats(a, "std"); }
lks_status lksi_infer_prod(lksi_args *a) { return lksi_infer_sum(a); }

lks_status lksi_infer_norm(lksi_args *a)
{
    double p = a->attr.reduce.p;
    char s[200];
    if (p != p) return lksi_why(a, LKS_ERR_ARGUMENT, "a norm of order NaN");
    if ((p < 0 || p - p != 0) && of_nothing(a))
        return lksi_why(a, LKS_ERR_SHAPE, "the norm of order %g of nothing, %s", p,
                        lksi_shape_text(&a->in[0], s, sizeof s));
    return of_floats(a, "norm");
}

static lks_status extreme(lksi_args *a, lks_dtype dtype)
{
    char s[200];
    lks_status st = check_reduce(a);
    if (st) return st;
    if (dtype != LKS_BOOL && of_nothing(a))
        return lksi_why(a, LKS_ERR_SHAPE, "%s has no largest and no smallest element along the dims given",
                        lksi_shape_text(&a->in[0], s, sizeof s));
    a->out[0].dtype = dtype;
    reduced_shape(&a->out[0], &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim);
    return LKS_OK;
}

lks_status lksi_infer_amax(lksi_args *a) { return extreme(a, a->in[0].dtype); }
lks_status lksi_infer_amin(lksi_args *a) { return extreme(a, a->in[0].dtype); }
lks_status lksi_infer_all(lksi_args *a) { return extreme(a, LKS_BOOL); }
lks_status lksi_infer_any(lksi_args *a) { return extreme(a, LKS_BOOL); }

/* dy: with the dims of mask removed, or of size 1. */
lks_status lksi_infer_prod_backward(lksi_args *a)
{
    const lksi_view *x = &a->in[1];
    lksi_view want = {0};
    char s[200], t[200];
    lks_status st = LKS_OK;
    int mask = a->attr.reduce.mask;
    if (mask < 0 || mask >> x->ndim != 0) st = LKS_ERR_ARGUMENT;
    reduced_shape(&want, x, mask, a->attr.reduce.keepdim);
    int same = st == LKS_OK && want.ndim == a->in[0].ndim;
    for (int d = 0; same && d < want.ndim; d++) same = want.shape[d] == a->in[0].shape[d];
    if (!same || !lks_dtype_is_float(x->dtype) || !lks_dtype_is_float(a->in[0].dtype))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s is no gradient of the products of %s",
                        lksi_shape_text(&a->in[0], s, sizeof s), lksi_shape_text(x, t, sizeof t));
    a->out[0].dtype = lksi_promote_views(&a->in[0], x);
    a->out[0].ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) a->out[0].shape[d] = x->shape[d];
    lksi_contiguous_strides(&a->out[0]);
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

lks_status lksi_infer_min(lksi_args *a) { return lksi_infer_max(a); }

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
