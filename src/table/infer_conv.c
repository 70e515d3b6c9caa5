/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_conv.c - shape rules of convolution and pooling. Results are channels-last where the image they come from is.
 */
#include "base/base.h"
#include "table/table.h"

static void image(lksi_view *y, const lksi_view *like, lks_dtype dtype, const int64_t *shape)
{
    y->dtype = dtype;
    y->ndim = 4;
    for (int d = 0; d < 4; d++) y->shape[d] = shape[d];
    if (lksi_is_channels_last(like) && !lksi_is_contiguous(like)) lksi_channels_last_strides(y);
    else lksi_contiguous_strides(y);
}

/* The window attributes are sound and give [out] from [in]. */
static lks_status window(lksi_args *a, int d, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t dilation, int64_t *out)
{
    const char *side = d ? "width" : "height";
    int64_t reach, padded;
    if (stride < 1 || dilation < 1 || padding < 0 || kernel < 1)
        return lksi_why(a, LKS_ERR_ARGUMENT,
                        "%s: kernel %lld, stride %lld and dilation %lld must be at least 1, padding %lld at least 0",
                        side, (long long)kernel, (long long)stride, (long long)dilation, (long long)padding);
    if (!lksi_mul_fits(dilation, kernel - 1, &reach) || reach == INT64_MAX || padding > INT64_MAX / 4 ||
        !lksi_add_fits(in, 2 * padding, &padded))
        return lksi_why(a, LKS_ERR_SHAPE, "%s: window sizes overflow", side);
    if (padded < reach + 1)
        return lksi_why(a, LKS_ERR_SHAPE, "%s: a window of %lld does not fit into %lld + 2 x %lld (input + padding)",
                        side,
                        (long long)(reach + 1), (long long)in, (long long)padding);
    *out = (padded - reach - 1) / stride + 1;
    return LKS_OK;
}

static lks_status floats(lksi_args *a, const lksi_view *x, const lksi_view *w, const char *what, const char *and)
{
    if (x->dtype != w->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "products of unlike dtypes: %s is %s, %s is %s", what,
                        lks_dtype_name(x->dtype),
                        and, lks_dtype_name(w->dtype));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s is %s, a floating dtype is needed", what, lks_dtype_name(x->dtype));
    return LKS_OK;
}

/* x and weight fit; shape of the result in out. */
static lks_status convolution(lksi_args *a, const lksi_view *x, const lksi_view *w, int64_t *out)
{
    char s[128], t[128];
    int64_t g = a->attr.conv2d.groups;
    if (x->ndim != 4 || w->ndim != 4)
        return lksi_why(a, LKS_ERR_SHAPE, "x must be [N,C,H,W] and weight [K,C/groups,R,S], not %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    if (g < 1 || w->shape[0] % g || x->shape[1] % g || x->shape[1] / g != w->shape[1])
        return lksi_why(a, LKS_ERR_SHAPE, "channels of x %s do not fit weight %s in %lld groups",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t), (long long)g);
    out[0] = x->shape[0];
    out[1] = w->shape[0];
    for (int d = 0; d < 2; d++) {
        lks_status fit = window(a, d, x->shape[2 + d], w->shape[2 + d], a->attr.conv2d.stride[d],
                                a->attr.conv2d.padding[d], a->attr.conv2d.dilation[d], &out[2 + d]);
        if (fit != LKS_OK) return fit;
    }
    return LKS_OK;
}

static lks_status same_result(lksi_args *a, const lksi_view *dy, const int64_t *shape)
{
    char s[128];
    for (int d = 0; d < 4; d++)
        if (dy->ndim != 4 || dy->shape[d] != shape[d])
            return lksi_why(a, LKS_ERR_SHAPE, "dy is %s, the forward result was [%lld,%lld,%lld,%lld]",
                            lksi_shape_text(dy, s, sizeof s), (long long)shape[0], (long long)shape[1],
                            (long long)shape[2], (long long)shape[3]);
    return LKS_OK;
}

lks_status lksi_infer_conv2d(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1], *b = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    char s[128], t[128];
    int64_t shape[4];
    TRY(convolution(a, x, w, shape));
    TRY(floats(a, x, w, "x", "weight"));
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return lksi_why(a, LKS_ERR_SHAPE, "bias must be [%lld] for weight %s, not %s", (long long)w->shape[0],
                        lksi_shape_text(w, s, sizeof s), lksi_shape_text(b, t, sizeof t));
    if (b && !lks_dtype_is_float(b->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "bias is %s, a floating dtype is needed", lks_dtype_name(b->dtype));
    image(&a->out[0], x, x->dtype, shape);
    return LKS_OK;
}

lks_status lksi_infer_conv2d_backward_input(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *w = &a->in[1];
    int64_t shape[4];
    lksi_view x = {.ndim = 4, .dtype = dy->dtype};
    for (int d = 0; d < 4; d++) x.shape[d] = a->attr.conv2d.size[d];
    TRY(convolution(a, &x, w, shape));
    TRY(same_result(a, dy, shape));
    TRY(floats(a, dy, w, "dy", "weight"));
    image(&a->out[0], dy, dy->dtype, x.shape);
    return LKS_OK;
}

lks_status lksi_infer_conv2d_backward_weight(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1];
    int64_t shape[4];
    lksi_view w = {.ndim = 4, .dtype = dy->dtype};
    for (int d = 0; d < 4; d++) w.shape[d] = a->attr.conv2d.size[d];
    TRY(convolution(a, x, &w, shape));
    TRY(same_result(a, dy, shape));
    TRY(floats(a, dy, x, "dy", "x"));
    lksi_contiguous_strides(&w);
    a->out[0] = w;
    return LKS_OK;
}

static lks_status pooling(lksi_args *a, const lksi_view *x, int64_t *out)
{
    char s[128];
    if (x->ndim != 4) return lksi_why(a, LKS_ERR_SHAPE, "x must be [N,C,H,W], not %s", lksi_shape_text(x, s, sizeof s));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    out[0] = x->shape[0];
    out[1] = x->shape[1];
    for (int d = 0; d < 2; d++) {
        TRY(window(a, d, x->shape[2 + d], a->attr.pool.kernel[d], a->attr.pool.stride[d], a->attr.pool.padding[d], 1,
                   &out[2 + d]));
        if (a->attr.pool.padding[d] > a->attr.pool.kernel[d] / 2)
            return lksi_why(a, LKS_ERR_ARGUMENT, "padding %lld is more than half of kernel %lld",
                            (long long)a->attr.pool.padding[d], (long long)a->attr.pool.kernel[d]);
    }
    int64_t plane;
    if (!lksi_mul_fits(x->shape[2], x->shape[3], &plane) || plane > INT32_MAX)
        return lksi_why(a, LKS_ERR_SHAPE, "planes of %s have more than 2^31 places", lksi_shape_text(x, s, sizeof s));
    return LKS_OK;
}

lks_status lksi_infer_max_pool2d(lksi_args *a)
{
    int64_t shape[4];
    TRY(pooling(a, &a->in[0], shape));
    image(&a->out[0], &a->in[0], a->in[0].dtype, shape);
    image(&a->out[1], &a->in[0], LKS_I32, shape);
    return LKS_OK;
}

lks_status lksi_infer_max_pool2d_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *place = &a->in[1];
    char s[128], t[128];
    if (dy->ndim != 4 || place->ndim != 4 || place->dtype != LKS_I32)
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s and place %s must be [N,C,H,W], place int32",
                        lksi_shape_text(dy, s, sizeof s), lksi_shape_text(place, t, sizeof t));
    if (!lks_dtype_is_float(dy->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "dy is %s, a floating dtype is needed", lks_dtype_name(dy->dtype));
    for (int d = 0; d < 4; d++)
        if (dy->shape[d] != place->shape[d] || (d < 2 && dy->shape[d] != a->attr.pool.size[d]) ||
            a->attr.pool.size[d] < 0)
            return lksi_why(a, LKS_ERR_SHAPE, "dy %s, place %s and the size of x do not fit",
                            lksi_shape_text(dy, s, sizeof s), lksi_shape_text(place, t, sizeof t));
    image(&a->out[0], dy, dy->dtype, a->attr.pool.size);
    return LKS_OK;
}
