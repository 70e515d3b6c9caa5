/* SPDX-License-Identifier: BSD-3-Clause
 *
 * conv.c - public functions of convolution, pooling, padding and sampling over 1 to 3 dims. Attributes have three
 * entries, the last for the last dim; what the caller leaves out gets its default here.
 */
#include "ops/ops.h"

/* Number of spatial dims; 2 where x does not fit, so that the shape rule says so. */
static int dims_of(const lks_tensor *x)
{
    return x != lks_none && x->v.ndim >= 3 && x->v.ndim <= 5 ? x->v.ndim - 2 : 2;
}

static void entries(int64_t *to, int dims, const int64_t *from, int64_t otherwise)
{
    for (int i = 0; i < 3; i++) to[i] = from && i >= 3 - dims ? from[i - 3 + dims] : otherwise;
}

/* Padding of `same`: dilation (kernel - 1) in all, the odd one behind. */
static lks_status same_padding(lks_context *ctx, const char *where, int dims, const lks_tensor *w, lksi_attr *attr)
{
    for (int i = 3 - dims; i < 3; i++) {
        int d = i - 1 + dims; /* of the weight */
        int64_t all;
        if (attr->conv.padding[i] != LKS_SAME) continue;
        if (attr->conv.stride[i] != 1)
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "LKS_SAME needs stride 1, not %lld",
                             (long long)attr->conv.stride[i]);
        attr->conv.padding[i] = 0;
        if (w == lks_none || w->v.ndim != dims + 2 || attr->conv.dilation[i] < 1) continue; /* the shape rule refuses */
        if (!lksi_mul_fits(attr->conv.dilation[i], w->v.shape[d] - 1, &all) || all < 0) continue;
        attr->conv.padding[i] = all / 2;
        attr->conv.extra[i] = all % 2;
    }
    return LKS_OK;
}

static lks_tensor *convolve(const char *where, int op, int dims, lks_tensor *x, lks_tensor *weight, lks_tensor *bias,
                            const int64_t *stride, const int64_t *padding, const int64_t *dilation, int64_t groups)
{
    lks_tensor *in[3] = {x, weight, bias};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.conv = {.groups = groups}};
    entries(attr.conv.stride, dims, stride, 1);
    entries(attr.conv.padding, dims, padding, 0);
    entries(attr.conv.dilation, dims, dilation, 1);
    if (same_padding(ctx, where, dims, weight, &attr) != LKS_OK) return NULL;
    return lksi_call1(ctx, where, op, 3, in, &attr);
}

#define CONVOLUTION(dims)                                                                                      \
    lks_tensor *lks_conv##dims##d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,  \
                                  const int64_t *padding, const int64_t *dilation, int64_t groups)             \
    {                                                                                                          \
        return convolve("lks_conv" #dims "d", LKSI_OP_conv##dims##d, dims, x, weight, bias, stride, padding,   \
                        dilation, groups);                                                                     \
    }
CONVOLUTION(1)
CONVOLUTION(2)
CONVOLUTION(3)

static lks_tensor *transposed(const char *where, int op, int dims, lks_tensor *x, lks_tensor *weight, lks_tensor *bias,
                              const int64_t *stride, const int64_t *padding, const int64_t *output_padding,
                              int64_t groups, const int64_t *dilation)
{
    lks_tensor *in[3] = {x, weight, bias};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.conv = {.groups = groups}};
    entries(attr.conv.stride, dims, stride, 1);
    entries(attr.conv.padding, dims, padding, 0);
    entries(attr.conv.dilation, dims, dilation, 1);
    entries(attr.conv.extra, dims, output_padding, 0);
    for (int i = 0; i < 3; i++) attr.conv.extra[i] = attr.conv.extra[i] > INT64_MIN ? -attr.conv.extra[i] : 1;
    return lksi_call1(ctx, where, op, 3, in, &attr);
}

#define TRANSPOSED(dims)                                                                                       \
    lks_tensor *lks_conv_transpose##dims##d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias,               \
                                            const int64_t *stride, const int64_t *padding,                     \
                                            const int64_t *output_padding, int64_t groups,                     \
                                            const int64_t *dilation)                                           \
    {                                                                                                          \
        return transposed("lks_conv_transpose" #dims "d", LKSI_OP_conv_transpose##dims##d, dims, x, weight,    \
                          bias, stride, padding, output_padding, groups, dilation);                            \
    }
TRANSPOSED(1)
TRANSPOSED(2)
TRANSPOSED(3)

lks_tensor *lks_conv_tbc(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, int64_t padding)
{
    lks_tensor *in[3] = {x, weight, bias};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.conv = {.stride = {1, 1, 1}, .padding = {0, 0, padding}, .dilation = {1, 1, 1}, .groups = 1}};
    return lksi_call1(ctx, "lks_conv_tbc", LKSI_OP_conv_tbc, 3, in, &attr);
}

/* --- pooling --- */

/* Values and places of a row of the largest; places as int64 where they are wanted. */
static lks_status largest(const char *where, int op, int nin, lks_tensor **in, const lksi_attr *attr, lks_tensor **y,
                          lks_tensor **indices)
{
    lks_tensor *out[2] = {NULL, NULL};
    lks_context *ctx = in[0]->ctx;
    TRY(lksi_call(ctx, where, op, nin, in, attr, 2, out));
    *y = out[0];
    if (indices && !(*indices = lks_to(out[1], LKS_I64))) return ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
    return LKS_OK;
}

static lksi_attr windows(int dims, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                         const int64_t *dilation, int ceil_mode)
{
    lksi_attr attr = {.pool = {.how = LKSI_POOL_WINDOW, .ceil = ceil_mode != 0}};
    entries(attr.pool.kernel, dims, kernel, 1);
    entries(attr.pool.stride, dims, stride ? stride : kernel, 1);
    entries(attr.pool.padding, dims, padding, 0);
    entries(attr.pool.dilation, dims, dilation, 1);
    return attr;
}

lks_status lks_max_pool(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                        const int64_t *dilation, int ceil_mode, lks_tensor **y, lks_tensor **indices)
{
    if (y) *y = NULL;
    if (indices) *indices = NULL;
    if (!x || !y || !kernel || x == lks_none) return LKS_ERR_ARGUMENT;
    lksi_attr attr = windows(dims_of(x), kernel, stride, padding, dilation, ceil_mode);
    return largest("lks_max_pool", LKSI_OP_max_pool1d - 1 + dims_of(x), 1, &x, &attr, y, indices);
}

lks_tensor *lks_max_pool2d(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding)
{
    if (!x || !kernel || x == lks_none) return NULL;
    lks_tensor *y = NULL;
    lksi_attr attr = windows(2, kernel, stride, padding, NULL, 0);
    return largest("lks_max_pool2d", LKSI_OP_max_pool2d, 1, &x, &attr, &y, NULL) == LKS_OK ? y : NULL;
}

lks_tensor *lks_avg_pool(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                         int ceil_mode, int count_include_pad, int64_t divisor_override)
{
    if (!x || !kernel || x == lks_none) return NULL;
    lksi_attr attr = windows(dims_of(x), kernel, stride, padding, NULL, ceil_mode);
    attr.pool.include_pad = count_include_pad != 0;
    attr.pool.divisor = divisor_override;
    return lksi_call1(x->ctx, "lks_avg_pool", LKSI_OP_avg_pool1d - 1 + dims_of(x), 1, &x, &attr);
}

/* An entry of -1 keeps the size of x. */
static lksi_attr sized(const lks_tensor *x, int how, const int64_t *kernel, const int64_t *size)
{
    int dims = dims_of(x);
    lksi_attr attr = {.pool = {.how = how}};
    entries(attr.pool.kernel, dims, kernel, 1);
    entries(attr.pool.stride, dims, size, 1);
    entries(attr.pool.dilation, 0, NULL, 1);
    for (int i = 3 - dims; i < 3 && x->v.ndim == dims + 2; i++)
        if (attr.pool.stride[i] == -1 && how == LKSI_POOL_ADAPTIVE) attr.pool.stride[i] = x->v.shape[i - 1 + dims];
    return attr;
}

lks_tensor *lks_adaptive_avg_pool(lks_tensor *x, const int64_t *size)
{
    if (!x || !size || x == lks_none) return NULL;
    lksi_attr attr = sized(x, LKSI_POOL_ADAPTIVE, NULL, size);
    return lksi_call1(x->ctx, "lks_adaptive_avg_pool", LKSI_OP_adaptive_avg_pool1d - 1 + dims_of(x), 1, &x, &attr);
}

lks_status lks_adaptive_max_pool(lks_tensor *x, const int64_t *size, lks_tensor **y, lks_tensor **indices)
{
    if (y) *y = NULL;
    if (indices) *indices = NULL;
    if (!x || !y || !size || x == lks_none) return LKS_ERR_ARGUMENT;
    lksi_attr attr = sized(x, LKSI_POOL_ADAPTIVE, NULL, size);
    return largest("lks_adaptive_max_pool", LKSI_OP_adaptive_max_pool1d - 1 + dims_of(x), 1, &x, &attr, y, indices);
}

lks_status lks_fractional_max_pool(lks_tensor *x, const int64_t *kernel, const int64_t *size, lks_tensor *samples,
                                   lks_tensor **y, lks_tensor **indices)
{
    if (y) *y = NULL;
    if (indices) *indices = NULL;
    if (!x || !y || !kernel || !size || !samples || x == lks_none) return LKS_ERR_ARGUMENT;
    int dims = dims_of(x) == 3 ? 3 : 2;
    lks_context *ctx = x->ctx;
    lksi_attr attr = {.pool = {.how = LKSI_POOL_FRACTIONAL}};
    entries(attr.pool.kernel, dims, kernel, 1);
    entries(attr.pool.stride, dims, size, 1);
    entries(attr.pool.dilation, 0, NULL, 1);
    if (samples == lks_none && x->v.ndim == dims + 2) {
        lks_dtype dtype = x->v.dtype == LKS_F64 ? LKS_F64 : LKS_F32;
        samples = lks_empty(ctx, dtype, 3, (int64_t[]){x->v.shape[0], x->v.shape[1], dims});
        if (!samples) return ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
        TRY(lks_uniform_(samples, 0, 1));
    }
    lks_tensor *in[2] = {x, samples == lks_none ? x : samples};
    return largest("lks_fractional_max_pool", dims == 3 ? LKSI_OP_fractional_max_pool3d : LKSI_OP_fractional_max_pool2d,
                   2, in, &attr, y, indices);
}

lks_tensor *lks_max_unpool(lks_tensor *x, lks_tensor *indices, const int64_t *size)
{
    lks_tensor *in[2] = {x, indices};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx || !size || x == lks_none) return NULL;
    int dims = dims_of(x);
    lksi_attr attr = {.pool = {.how = LKSI_POOL_WINDOW}};
    for (int d = 0; d < dims + 2; d++) attr.pool.size[d] = d < 2 ? x->v.shape[d < x->v.ndim ? d : 0] : size[d - 2];
    return lksi_call1(ctx, "lks_max_unpool", LKSI_OP_max_unpool1d - 1 + dims, 2, in, &attr);
}

/* --- padding by what is inside, sampling --- */

static lks_tensor *padded(const char *where, int first, int reflect, lks_tensor *x, const int64_t *before,
                          const int64_t *after)
{
    if (!x || x == lks_none) return NULL;
    int dims = dims_of(x);
    lksi_attr attr = {.edge = {.reflect = reflect}};
    entries(attr.edge.before, dims, before, 0);
    entries(attr.edge.after, dims, after, 0);
    return lksi_call1(x->ctx, where, first - 1 + dims, 1, &x, &attr);
}

lks_tensor *lks_reflection_pad(lks_tensor *x, const int64_t *before, const int64_t *after)
{
    return padded("lks_reflection_pad", LKSI_OP_reflection_pad1d, 1, x, before, after);
}

lks_tensor *lks_replication_pad(lks_tensor *x, const int64_t *before, const int64_t *after)
{
    return padded("lks_replication_pad", LKSI_OP_replication_pad1d, 0, x, before, after);
}

lks_tensor *lks_grid_sample(lks_tensor *x, lks_tensor *grid, int mode, int padding, int align_corners)
{
    lks_tensor *in[2] = {x, grid};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx || x == lks_none) return NULL;
    lksi_attr attr = {.grid = {.mode = mode, .padding = padding, .align = align_corners != 0}};
    int op = x->v.ndim == 5 ? LKSI_OP_grid_sampler_3d : LKSI_OP_grid_sampler_2d;
    return lksi_call1(ctx, "lks_grid_sample", op, 2, in, &attr);
}
