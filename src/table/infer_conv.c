/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_conv.c - shape rules of convolution over 1 to 3 dims, plain and transposed. Results are channels-last where the
 * image they come from is. Names of sides in error texts are those of the last dims: depth, height, width.
 */
#include "base/base.h"
#include "table/infer.h"

/* What is left of a 3-D image whose channels lie side by side is kept so as well. */
void lksi_infer_image(lksi_view *y, const lksi_view *like, lks_dtype dtype, int ndim, const int64_t *shape)
{
    int last = lksi_is_channels_last(like) || (like->ndim == 3 && like->stride[1] == 1 && like->shape[1] > 1);
    y->dtype = dtype;
    y->ndim = ndim;
    for (int d = 0; d < ndim; d++) y->shape[d] = shape[d];
    if (last && !lksi_is_contiguous(like)) lksi_channels_last_strides(y);
    else lksi_contiguous_strides(y);
}

const char *lksi_infer_side(int i)
{
    static const char *const side[3] = {"depth", "height", "width"};
    return side[i];
}

/* The window attributes are sound; *reach = dilation (kernel - 1), *padded = in + both paddings. */
lks_status lksi_infer_window(lksi_args *a, int i, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                             int64_t dilation, int64_t *reach, int64_t *padded)
{
    const char *side = lksi_infer_side(i);
    if (stride < 1 || dilation < 1 || padding < 0 || kernel < 1)
        return lksi_why(a, LKS_ERR_ARGUMENT,
                        "%s: kernel %lld, stride %lld and dilation %lld must be at least 1, padding %lld at least 0",
                        side, (long long)kernel, (long long)stride, (long long)dilation, (long long)padding);
    if (!lksi_mul_fits(dilation, kernel - 1, reach) || *reach > INT64_MAX / 4 || padding > INT64_MAX / 8 ||
        stride > INT64_MAX / 4 || !lksi_add_fits(in, 2 * padding, padded))
        return lksi_why(a, LKS_ERR_SHAPE, "%s: window sizes overflow", side);
    return LKS_OK;
}

static lks_status floats(lksi_args *a, const lksi_view *x, const lksi_view *w, const char *what, const char *and)
{
    if (x->dtype != w->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "products of unlike dtypes: %s is %s, %s is %s", what,
                        lks_dtype_name(x->dtype), and, lks_dtype_name(w->dtype));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s is %s, a floating dtype is needed", what, lks_dtype_name(x->dtype));
    return LKS_OK;
}

static const char *image_text(int dims) { return dims == 1 ? "[N,C,L]" : dims == 2 ? "[N,C,H,W]" : "[N,C,D,H,W]"; }
static const char *weight_text(int dims)
{
    return dims == 1 ? "[K,C/groups,R]" : dims == 2 ? "[K,C/groups,R,S]" : "[K,C/groups,T,R,S]";
}

/* x and weight fit; shape of the result in out. */
static lks_status convolution(lksi_args *a, int dims, const lksi_view *x, const lksi_view *w, int64_t *out)
{
    char s[128], t[128];
    int64_t g = a->attr.conv.groups;
    if (x->ndim != dims + 2 || w->ndim != dims + 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x must be %s and weight %s, not %s and %s", image_text(dims),
                        weight_text(dims), lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    if (g < 1 || w->shape[0] % g || x->shape[1] % g || x->shape[1] / g != w->shape[1])
        return lksi_why(a, LKS_ERR_SHAPE, "channels of x %s do not fit weight %s in %lld groups",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t), (long long)g);
    out[0] = x->shape[0];
    out[1] = w->shape[0];
    for (int d = 0; d < dims; d++) {
        int i = 3 - dims + d;
        int64_t reach, padded, stride = a->attr.conv.stride[i], extra = a->attr.conv.extra[i];
        TRY(lksi_infer_window(a, i, x->shape[2 + d], w->shape[2 + d], stride, a->attr.conv.padding[i],
                              a->attr.conv.dilation[i], &reach, &padded));
        if (padded + extra < reach + 1)
            return lksi_why(a, LKS_ERR_SHAPE,
                            "%s: a window of %lld does not fit into %lld + 2 x %lld (input + padding)",
                            lksi_infer_side(i), (long long)(reach + 1), (long long)x->shape[2 + d],
                            (long long)a->attr.conv.padding[i]);
        out[2 + d] = (padded + extra - reach - 1) / stride + 1;
    }
    return LKS_OK;
}

static lks_status same_result(lksi_args *a, const lksi_view *dy, int ndim, const int64_t *shape)
{
    char s[128], t[128];
    lksi_view want = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) want.shape[d] = shape[d];
    for (int d = 0; d < ndim; d++)
        if (dy->ndim != ndim || dy->shape[d] != shape[d])
            return lksi_why(a, LKS_ERR_SHAPE, "dy is %s, the forward result was %s", lksi_shape_text(dy, s, sizeof s),
                            lksi_shape_text(&want, t, sizeof t));
    return LKS_OK;
}

static lks_status bias_fits(lksi_args *a, int64_t channels, const lksi_view *w)
{
    const lksi_view *b = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    char s[128], t[128];
    if (b && (b->ndim != 1 || b->shape[0] != channels))
        return lksi_why(a, LKS_ERR_SHAPE, "bias must be [%lld] for weight %s, not %s", (long long)channels,
                        lksi_shape_text(w, s, sizeof s), lksi_shape_text(b, t, sizeof t));
    if (b && !lks_dtype_is_float(b->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "bias is %s, a floating dtype is needed", lks_dtype_name(b->dtype));
    return LKS_OK;
}

static lks_status forward(lksi_args *a, int dims)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1];
    int64_t shape[5];
    TRY(convolution(a, dims, x, w, shape));
    TRY(floats(a, x, w, "x", "weight"));
    TRY(bias_fits(a, w->shape[0], w));
    lksi_infer_image(&a->out[0], x, x->dtype, dims + 2, shape);
    return LKS_OK;
}

lks_status lksi_infer_conv1d(lksi_args *a) { return forward(a, 1); }
lks_status lksi_infer_conv2d(lksi_args *a) { return forward(a, 2); }
lks_status lksi_infer_conv3d(lksi_args *a) { return forward(a, 3); }

/* x [N, K, ...], weight [K, C/groups, ...]: what the convolution of a result [N, C, ...] would have given. */
static lks_status transposed(lksi_args *a, int dims)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1];
    char s[128], t[128];
    int64_t g = a->attr.conv.groups, back[5];
    lksi_view y = {.ndim = dims + 2, .dtype = x->dtype};
    if (x->ndim != dims + 2 || w->ndim != dims + 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x must be %s and weight %s, not %s and %s", image_text(dims),
                        dims == 1   ? "[C,K/groups,R]"
                        : dims == 2 ? "[C,K/groups,R,S]"
                                    : "[C,K/groups,T,R,S]",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    if (g < 1 || w->shape[0] % g || x->shape[1] != w->shape[0] || !lksi_mul_fits(w->shape[1], g, &y.shape[1]))
        return lksi_why(a, LKS_ERR_SHAPE, "channels of x %s do not fit weight %s in %lld groups",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t), (long long)g);
    y.shape[0] = x->shape[0];
    for (int d = 0; d < dims; d++) {
        int i = 3 - dims + d;
        int64_t reach, padded, steps, stride = a->attr.conv.stride[i], dilation = a->attr.conv.dilation[i];
        int64_t behind = -a->attr.conv.extra[i], size;
        TRY(lksi_infer_window(a, i, 0, w->shape[2 + d], stride, a->attr.conv.padding[i], dilation, &reach, &padded));
        if (behind < 0 || (behind >= stride && behind >= dilation))
            return lksi_why(a, LKS_ERR_ARGUMENT,
                            "%s: output padding %lld must be at least 0 and smaller than stride %lld or dilation %lld",
                            lksi_infer_side(i), (long long)behind, (long long)stride, (long long)dilation);
        if (!lksi_mul_fits(x->shape[2 + d] > 0 ? x->shape[2 + d] - 1 : 0, stride, &steps) || steps > INT64_MAX / 4)
            return lksi_why(a, LKS_ERR_SHAPE, "%s: window sizes overflow", lksi_infer_side(i));
        size = x->shape[2 + d] > 0 ? steps + reach + behind + 1 - padded : 0;
        if (size < 1)
            return lksi_why(a, LKS_ERR_SHAPE, "%s: nothing is left of %lld with window %lld and padding %lld",
                            lksi_infer_side(i), (long long)x->shape[2 + d], (long long)(reach + 1),
                            (long long)a->attr.conv.padding[i]);
        y.shape[2 + d] = size;
    }
    TRY(convolution(a, dims, &y, w, back));
    TRY(same_result(a, x, dims + 2, back));
    TRY(floats(a, x, w, "x", "weight"));
    TRY(bias_fits(a, y.shape[1], w));
    lksi_infer_image(&a->out[0], x, x->dtype, dims + 2, y.shape);
    return LKS_OK;
}

lks_status lksi_infer_conv_transpose1d(lksi_args *a) { return transposed(a, 1); }
lks_status lksi_infer_conv_transpose2d(lksi_args *a) { return transposed(a, 2); }
lks_status lksi_infer_conv_transpose3d(lksi_args *a) { return transposed(a, 3); }

/* x [T, B, C], weight [R, C, K], bias [K] -> y [T', B, K] */
lks_status lksi_infer_conv_tbc(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1];
    char s[128], t[128];
    int64_t reach, padded;
    if (x->ndim != 3 || w->ndim != 3 || x->shape[2] != w->shape[1])
        return lksi_why(a, LKS_ERR_SHAPE, "x must be [T,B,C] and weight [R,C,K], not %s and %s",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t));
    TRY(lksi_infer_window(a, 2, x->shape[0], w->shape[0], 1, a->attr.conv.padding[2], 1, &reach, &padded));
    if (padded < reach + 1)
        return lksi_why(a, LKS_ERR_SHAPE, "a window of %lld does not fit into x %s with padding %lld",
                        (long long)(reach + 1), lksi_shape_text(x, s, sizeof s), (long long)a->attr.conv.padding[2]);
    TRY(floats(a, x, w, "x", "weight"));
    TRY(bias_fits(a, w->shape[2], w));
    lksi_view *y = &a->out[0];
    y->dtype = x->dtype;
    y->ndim = 3;
    y->shape[0] = padded - reach;
    y->shape[1] = x->shape[1];
    y->shape[2] = w->shape[2];
    lksi_contiguous_strides(y);
    return LKS_OK;
}

/* dims of a backward row: those of dy, for want of a name that says it */
static lks_status backward_dims(lksi_args *a, int *dims)
{
    char s[128];
    *dims = a->in[0].ndim - 2;
    if (*dims < 1 || *dims > 3)
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s must have 3 to 5 dims", lksi_shape_text(&a->in[0], s, sizeof s));
    return LKS_OK;
}

lks_status lksi_infer_conv_backward_input(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *w = &a->in[1];
    int64_t shape[5];
    int dims;
    TRY(backward_dims(a, &dims));
    lksi_view x = {.ndim = dims + 2, .dtype = dy->dtype};
    for (int d = 0; d < x.ndim; d++) x.shape[d] = a->attr.conv.size[d];
    TRY(convolution(a, dims, &x, w, shape));
    TRY(same_result(a, dy, dims + 2, shape));
    TRY(floats(a, dy, w, "dy", "weight"));
    lksi_infer_image(&a->out[0], dy, dy->dtype, x.ndim, x.shape);
    return LKS_OK;
}

lks_status lksi_infer_conv_backward_weight(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1];
    int64_t shape[5];
    int dims;
    TRY(backward_dims(a, &dims));
    lksi_view w = {.ndim = dims + 2, .dtype = dy->dtype};
    for (int d = 0; d < w.ndim; d++) w.shape[d] = a->attr.conv.size[d];
    TRY(convolution(a, dims, x, &w, shape));
    TRY(same_result(a, dy, dims + 2, shape));
    TRY(floats(a, dy, x, "dy", "x"));
    lksi_contiguous_strides(&w);
    a->out[0] = w;
    return LKS_OK;
}
