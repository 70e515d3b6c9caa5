/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_pool.c - shape rules of pooling over 1 to 3 dims: windows of one size, adaptive ones, fractional ones.
 */
#include "base/base.h"
#include "table/infer.h"

static const char *image_text(int dims) { return dims == 1 ? "[N,C,L]" : dims == 2 ? "[N,C,H,W]" : "[N,C,D,H,W]"; }

static lks_status is_image(lksi_args *a, int dims, const lksi_view *x, const char *name)
{
    char s[128];
    if (x->ndim != dims + 2)
        return lksi_why(a, LKS_ERR_SHAPE, "%s must be %s, not %s", name, image_text(dims),
                        lksi_shape_text(x, s, sizeof s));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s is %s, a floating dtype is needed", name, lks_dtype_name(x->dtype));
    return LKS_OK;
}

/* Places of a plane are int32. */
static lks_status plane_fits(lksi_args *a, int ndim, const int64_t *shape)
{
    int64_t plane = 1;
    for (int d = 2; d < ndim; d++)
        if (!lksi_mul_fits(plane, shape[d], &plane) || plane > INT32_MAX)
            return lksi_why(a, LKS_ERR_SHAPE, "planes of more than 2^31 places");
    return LKS_OK;
}

/* Windows laid over x of one size, with padding at both ends. In ceil mode the last one may reach over the end, but it
 * begins in x or in the padding before it. */
static lks_status plain(lksi_args *a, int i, int64_t in, int64_t *out)
{
    int64_t reach, padded, kernel = a->attr.pool.kernel[i], stride = a->attr.pool.stride[i];
    int64_t padding = a->attr.pool.padding[i];
    TRY(lksi_infer_window(a, i, in, kernel, stride, padding, a->attr.pool.dilation[i], &reach, &padded));
    if (padding > kernel / 2)
        return lksi_why(a, LKS_ERR_ARGUMENT, "padding %lld is more than half of kernel %lld", (long long)padding,
                        (long long)kernel);
    if (padded < reach + 1 && !(a->attr.pool.ceil && padded + stride > reach + 1))
        return lksi_why(a, LKS_ERR_SHAPE, "%s: a window of %lld does not fit into %lld + 2 x %lld (input + padding)",
                        lksi_infer_side(i), (long long)(reach + 1), (long long)in, (long long)padding);
    *out = (padded - reach - 1 + (a->attr.pool.ceil ? stride - 1 : 0)) / stride + 1;
    if (a->attr.pool.ceil && (*out - 1) * stride >= in + padding) --*out;
    if (*out < 1 || in < 1) return lksi_why(a, LKS_ERR_SHAPE, "%s: nothing to pool", lksi_infer_side(i));
    return LKS_OK;
}

static lks_status result(lksi_args *a, int dims, const lksi_view *x, int64_t *shape)
{
    TRY(is_image(a, dims, x, "x"));
    shape[0] = x->shape[0], shape[1] = x->shape[1];
    for (int d = 2; d < dims + 2; d++) {
        int i = 1 - dims + d;
        int64_t in = x->shape[d], out = a->attr.pool.stride[i], kernel = a->attr.pool.kernel[i];
        if (a->attr.pool.how == LKSI_POOL_WINDOW) {
            TRY(plain(a, i, in, &shape[d]));
            continue;
        }
        if (out < 1)
            return lksi_why(a, LKS_ERR_ARGUMENT, "%s: a result of size %lld", lksi_infer_side(i), (long long)out);
        if (in < 1) return lksi_why(a, LKS_ERR_SHAPE, "%s: nothing to pool", lksi_infer_side(i));
        if (a->attr.pool.how == LKSI_POOL_FRACTIONAL &&
            (kernel < 1 || out > INT64_MAX / 4 || kernel > in || out - 1 > in - kernel))
            return lksi_why(a, LKS_ERR_SHAPE, "%s: %lld windows of %lld do not fit into %lld", lksi_infer_side(i),
                            (long long)out, (long long)kernel, (long long)in);
        shape[d] = out;
    }
    return LKS_OK;
}

static lks_status largest(lksi_args *a, int dims)
{
    const lksi_view *x = &a->in[0];
    int64_t shape[5];
    TRY(result(a, dims, x, shape));
    TRY(plane_fits(a, x->ndim, x->shape));
    lksi_infer_image(&a->out[0], x, x->dtype, x->ndim, shape);
    lksi_infer_image(&a->out[1], x, LKS_I32, x->ndim, shape);
    return LKS_OK;
}

static lks_status fractional(lksi_args *a, int dims)
{
    const lksi_view *x = &a->in[0], *u = &a->in[1];
    char s[128], t[128];
    TRY(largest(a, dims));
    if (u->ndim != 3 || u->shape[0] != x->shape[0] || u->shape[1] != x->shape[1] || u->shape[2] != dims ||
        !lks_dtype_is_float(u->dtype))
        return lksi_why(a, LKS_ERR_SHAPE, "samples %s must be floating, [N,C,%d] for x %s",
                        lksi_shape_text(u, s, sizeof s), dims, lksi_shape_text(x, t, sizeof t));
    return LKS_OK;
}

static lks_status mean(lksi_args *a, int dims)
{
    const lksi_view *x = &a->in[0];
    int64_t shape[5];
    TRY(result(a, dims, x, shape));
    lksi_infer_image(&a->out[0], x, x->dtype, x->ndim, shape);
    return LKS_OK;
}

lks_status lksi_infer_max_pool1d(lksi_args *a) { return largest(a, 1); }
lks_status lksi_infer_max_pool2d(lksi_args *a) { return largest(a, 2); }
lks_status lksi_infer_max_pool3d(lksi_args *a) { return largest(a, 3); }
lks_status lksi_infer_adaptive_max_pool1d(lksi_args *a) { return largest(a, 1); }
lks_status lksi_infer_adaptive_max_pool2d(lksi_args *a) { return largest(a, 2); }
lks_status lksi_infer_adaptive_max_pool3d(lksi_args *a) { return largest(a, 3); }
lks_status lksi_infer_fractional_max_pool2d(lksi_args *a) { return fractional(a, 2); }
lks_status lksi_infer_fractional_max_pool3d(lksi_args *a) { return fractional(a, 3); }
lks_status lksi_infer_avg_pool1d(lksi_args *a) { return mean(a, 1); }
lks_status lksi_infer_avg_pool2d(lksi_args *a) { return mean(a, 2); }
lks_status lksi_infer_avg_pool3d(lksi_args *a) { return mean(a, 3); }
lks_status lksi_infer_adaptive_avg_pool1d(lksi_args *a) { return mean(a, 1); }
lks_status lksi_infer_adaptive_avg_pool2d(lksi_args *a) { return mean(a, 2); }
lks_status lksi_infer_adaptive_avg_pool3d(lksi_args *a) { return mean(a, 3); }

/* x [N, C, ...] and places of its shape; size: of what is filled, with N and C the same. It is laid out like `like`. */
static lks_status fills(lksi_args *a, const lksi_view *like, const int64_t *size)
{
    const lksi_view *x = &a->in[0], *place = &a->in[1];
    char s[128], t[128];
    int fits = x->ndim == place->ndim;
    TRY(is_image(a, x->ndim < 3 || x->ndim > 5 ? 2 : x->ndim - 2, x, "dy"));
    if (place->dtype != LKS_I32 && place->dtype != LKS_I64)
        return lksi_why(a, LKS_ERR_DTYPE, "places are %s, int32 or int64 is needed", lks_dtype_name(place->dtype));
    for (int d = 0; fits && d < x->ndim; d++)
        fits = x->shape[d] == place->shape[d] && size[d] >= 0 && (d > 1 || x->shape[d] == size[d]);
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "%s, places %s and the size to be filled do not fit",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(place, t, sizeof t));
    TRY(plane_fits(a, x->ndim, size));
    lksi_infer_image(&a->out[0], like, x->dtype, x->ndim, size);
    return LKS_OK;
}

/* Places lie as x did; a gradient may come from elsewhere, as that of a flattened image does. */
lks_status lksi_infer_max_pool_backward(lksi_args *a) { return fills(a, &a->in[1], a->attr.pool.size); }

static lks_status unpool(lksi_args *a, int dims)
{
    TRY(is_image(a, dims, &a->in[0], "x"));
    return fills(a, &a->in[0], a->attr.pool.size);
}

lks_status lksi_infer_max_unpool1d(lksi_args *a) { return unpool(a, 1); }
lks_status lksi_infer_max_unpool2d(lksi_args *a) { return unpool(a, 2); }
lks_status lksi_infer_max_unpool3d(lksi_args *a) { return unpool(a, 3); }

lks_status lksi_infer_max_pool_gather(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *place = &a->in[1];
    char s[128], t[128];
    TRY(is_image(a, x->ndim < 3 || x->ndim > 5 ? 2 : x->ndim - 2, x, "x"));
    if (place->ndim != x->ndim || place->shape[0] != x->shape[0] || place->shape[1] != x->shape[1] ||
        (place->dtype != LKS_I32 && place->dtype != LKS_I64))
        return lksi_why(a, LKS_ERR_SHAPE, "places %s do not fit x %s", lksi_shape_text(place, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    TRY(plane_fits(a, x->ndim, x->shape));
    lksi_infer_image(&a->out[0], x, x->dtype, x->ndim, place->shape);
    return LKS_OK;
}

lks_status lksi_infer_avg_pool_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0];
    lksi_view x = {.ndim = dy->ndim, .dtype = dy->dtype};
    char s[128], t[128];
    int64_t shape[5];
    TRY(is_image(a, dy->ndim < 3 || dy->ndim > 5 ? 2 : dy->ndim - 2, dy, "dy"));
    for (int d = 0; d < x.ndim; d++) x.shape[d] = a->attr.pool.size[d];
    TRY(result(a, x.ndim - 2, &x, shape));
    for (int d = 0; d < x.ndim; d++)
        if (dy->shape[d] != shape[d])
            return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                            lksi_shape_text(&x, t, sizeof t));
    lksi_infer_image(&a->out[0], dy, dy->dtype, x.ndim, x.shape);
    return LKS_OK;
}
