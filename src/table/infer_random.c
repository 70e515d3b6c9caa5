/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_random.c - shape rules of random fills and dropout.
 */
#include "table/table.h"

static lks_status check_fill(lksi_args *a)
{
    const lksi_view *y = &a->out[0];
    char s[200];
    if (!lks_dtype_is_float(y->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s%s: only floating tensors can be filled with random numbers",
                        lks_dtype_name(y->dtype), lksi_shape_text(y, s, sizeof s));
    for (int d = 0; d < y->ndim; d++)
        if (y->stride[d] == 0 && y->shape[d] > 1 && !lksi_is_contiguous(y))
            return lksi_why(a, LKS_ERR_ARGUMENT,
                            "dim %d of %s repeats the same memory (an expanded view); write to a clone", d,
                            lksi_shape_text(y, s, sizeof s));
    return LKS_OK;
}

lks_status lksi_infer_uniform(lksi_args *a)
{
    double lo = a->attr.random.a, hi = a->attr.random.b;
    if (!(lo < hi) || !(hi - lo <= 1.7976931348623157e308))
        return lksi_why(a, LKS_ERR_ARGUMENT, "[%g, %g) is not an interval", lo, hi);
    return check_fill(a);
}

lks_status lksi_infer_normal(lksi_args *a)
{
    double mean = a->attr.random.a, std = a->attr.random.b;
    if (!(std >= 0.0 && std <= 1.7976931348623157e308) || !(mean - mean == 0.0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "mean %g, standard deviation %g", mean, std);
    return check_fill(a);
}

lks_status lksi_infer_dropout(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    double p = a->attr.random.a;
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "dropout of %s; it needs a floating dtype", lks_dtype_name(x->dtype));
    if (!(p >= 0.0 && p < 1.0)) return lksi_why(a, LKS_ERR_ARGUMENT, "p is %g; it must be in [0, 1)", p);
    y->dtype = x->dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    if (lksi_is_channels_last(x) && !lksi_is_contiguous(x))
        lksi_channels_last_strides(y);
    else
        lksi_contiguous_strides(y);
    return LKS_OK;
}

lks_status lksi_infer_bernoulli(lksi_args *a)
{
    const lksi_view *p = &a->in[0];
    if (!lks_dtype_is_float(p->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "probabilities of %s; they must be floating", lks_dtype_name(p->dtype));
    a->out[0].dtype = p->dtype;
    a->out[0].ndim = p->ndim;
    for (int d = 0; d < p->ndim; d++) a->out[0].shape[d] = p->shape[d];
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}
