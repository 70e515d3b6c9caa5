/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_fft.c - shape rules of Fourier transforms.
 */
#include "table/table.h"

static lks_status check_dims(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    int seen = 0, n = a->attr.fft.n;
    char s[200];
    if (n < 1 || n > x->ndim)
        return lksi_why(a, LKS_ERR_SHAPE, "a transform over %d dims of %s", n, lksi_shape_text(x, s, sizeof s));
    for (int i = 0; i < n; i++) {
        int d = a->attr.fft.dims[i];
        if (d < 0 || d >= x->ndim || seen >> d & 1)
            return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %s, or it is named twice", d,
                            lksi_shape_text(x, s, sizeof s));
        seen |= 1 << d;
        if (x->shape[d] < 1)
            return lksi_why(a, LKS_ERR_SHAPE, "dim %d of %s has no points to transform", d,
                            lksi_shape_text(x, s, sizeof s));
        if (x->shape[d] > INT32_MAX)
            return lksi_why(a, LKS_ERR_UNSUPPORTED, "dim %d of %s has more than 2^31 points", d,
                            lksi_shape_text(x, s, sizeof s));
    }
    return LKS_OK;
}

static lks_status like(lksi_args *a, lks_dtype dtype, int64_t last)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    y->dtype = dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    if (last > 0) y->shape[a->attr.fft.dims[a->attr.fft.n - 1]] = last;
    lksi_contiguous_strides(y);
    return LKS_OK;
}

lks_status lksi_infer_fft_c2c(lksi_args *a)
{
    TRY(check_dims(a));
    if (!lks_dtype_is_complex(a->in[0].dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s; a complex dtype is needed", lks_dtype_name(a->in[0].dtype));
    return like(a, a->in[0].dtype, 0);
}

lks_status lksi_infer_fft_r2c(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    TRY(check_dims(a));
    if (x->dtype != LKS_F32 && x->dtype != LKS_F64)
        return lksi_why(a, LKS_ERR_DTYPE, "%s; float32 or float64 is needed", lks_dtype_name(x->dtype));
    return like(a, x->dtype == LKS_F32 ? LKS_C64 : LKS_C128, x->shape[a->attr.fft.dims[a->attr.fft.n - 1]] / 2 + 1);
}

lks_status lksi_infer_fft_c2r(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    char s[200];
    TRY(check_dims(a));
    if (!lks_dtype_is_complex(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s; a complex dtype is needed", lks_dtype_name(x->dtype));
    if (a->attr.fft.last < 1 || x->shape[a->attr.fft.dims[a->attr.fft.n - 1]] != a->attr.fft.last / 2 + 1)
        return lksi_why(a, LKS_ERR_SHAPE, "%s does not hold the half of %lld points along dim %d",
                        lksi_shape_text(x, s, sizeof s), (long long)a->attr.fft.last,
                        a->attr.fft.dims[a->attr.fft.n - 1]);
    return like(a, x->dtype == LKS_C64 ? LKS_F32 : LKS_F64, a->attr.fft.last);
}
