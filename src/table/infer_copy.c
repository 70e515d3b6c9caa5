/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_copy.c - shape rules of copies, casts and fills.
 */
#include "table/table.h"

static void shape_of(lksi_view *y, const lksi_view *x)
{
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
}

lks_status lksi_infer_clone(lksi_args *a)
{
    a->out[0].dtype = a->in[0].dtype;
    shape_of(&a->out[0], &a->in[0]);
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}

/* Keeps channels-last. */
lks_status lksi_infer_cast(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int dtype = a->attr.cast.dtype;
    if (dtype < 0 || dtype >= LKS_DTYPE_COUNT) return lksi_why(a, LKS_ERR_DTYPE, "%d is not a dtype", dtype);
    y->dtype = dtype;
    shape_of(y, x);
    if (lksi_is_channels_last(x) && !lksi_is_contiguous(x))
        lksi_channels_last_strides(y);
    else
        lksi_contiguous_strides(y);
    return LKS_OK;
}

/* What is written in place must have an element of memory for each of its own. */
static lks_status check_writable(lksi_args *a)
{
    const lksi_view *y = &a->out[0];
    char s[200];
    for (int d = 0; d < y->ndim; d++)
        if (y->stride[d] == 0 && y->shape[d] > 1 && lksi_is_contiguous(y) == 0)
            return lksi_why(a, LKS_ERR_ARGUMENT,
                            "dim %d of %s repeats the same memory (an expanded view); write to a clone", d,
                            lksi_shape_text(y, s, sizeof s));
    return LKS_OK;
}

static lks_status check_source(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    char s[200], t[200];
    int skip = y->ndim - x->ndim, fits = skip >= 0;
    for (int d = 0; fits && d < x->ndim; d++) fits = x->shape[d] == 1 || x->shape[d] == y->shape[d + skip];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "source %s does not broadcast to %s", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    return check_writable(a);
}

lks_status lksi_infer_copy(lksi_args *a) { return check_source(a); }
lks_status lksi_infer_accumulate(lksi_args *a) { return check_source(a); }
lks_status lksi_infer_fill(lksi_args *a) { return check_writable(a); }
lks_status lksi_infer_arange(lksi_args *a) { return check_writable(a); }

lks_status lksi_infer_slice_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0];
    lksi_view *dx = &a->out[0];
    int d = a->attr.slice.dim < 0 ? a->attr.slice.dim + dy->ndim : a->attr.slice.dim;
    int64_t size = a->attr.slice.size, start = a->attr.slice.start, step = a->attr.slice.step;
    if (d < 0 || d >= dy->ndim) return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %d", a->attr.slice.dim, dy->ndim);
    int64_t n = dy->shape[d];
    if (size < 0 || step < 1 || start < 0 || n > size ||
        (n > 0 && (start >= size || (size - 1 - start) / step < n - 1)))
        return lksi_why(a, LKS_ERR_SHAPE, "%lld elements from %lld by %lld do not fit into %lld", (long long)n,
                        (long long)start, (long long)step, (long long)size);
    a->attr.slice.dim = d;
    dx->dtype = dy->dtype;
    shape_of(dx, dy);
    dx->shape[d] = size;
    lksi_contiguous_strides(dx);
    return LKS_OK;
}
