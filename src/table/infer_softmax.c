/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_softmax.c - shape rules of softmax and log_softmax.
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
