/* SPDX-License-Identifier: BSD-3-Clause
 *
 * conv.c - the rows of convolution over 1 to 3 dims, plain and transposed, and their gradients: any stride, padding,
 * dilation, groups, layout and float dtype. All are seen as 3-D images with dims of size 1. The work is in conv_core.h;
 * sums go in an order that does not depend on threads.
 */
#include "cpu/gemm.h"
#include "cpu/gemm_io.h"

/* c, k: channels of a group. */
typedef struct geometry {
    int64_t n, c, d, h, w, k, t, r, s, o, p, q, groups, sd, sh, sw, pd, ph, pw, dd, dh, dw;
    int pointwise; /* one pixel in, one out, in the same order */
} geometry;

typedef struct job {
    lksi_cpu *cpu;
    geometry v;
    const lksi_view *x, *y, *bias; /* lifted */
    lksi_gemm g;
    int64_t block, blocks, parts; /* pixels in a block, blocks of a plane, parts of a sum */
    int direct;
    void *packed;
    int64_t packed_bytes, at[4], bytes;
} job;

/* [N, C, W], [N, C, H, W] or [N, C, D, H, W] as the last. A line lies along H, with pixels of one column. */
static lksi_view lift(const lksi_view *v)
{
    lksi_view y = *v;
    y.ndim = 5;
    if (v->ndim == 5) return y;
    y.shape[2] = 1, y.stride[2] = 0;
    y.shape[3] = v->shape[2], y.stride[3] = v->stride[2];
    y.shape[4] = v->ndim == 4 ? v->shape[3] : 1, y.stride[4] = v->stride[v->ndim == 4 ? 3 : 2];
    return y;
}

/* Plane d of a lifted view, as [N, C, H, W]. */
static inline lksi_view plane_of(const lksi_view *v, int64_t d)
{
    lksi_view y = *v;
    y.ndim = 4;
    if (d > 0) y.data = io_at(v->data, v->dtype, d * v->stride[2]);
    y.shape[2] = v->shape[3], y.stride[2] = v->stride[3];
    y.shape[3] = v->shape[4], y.stride[3] = v->stride[4];
    return y;
}

/* x, w, y as lifted; ndim: before. */
static geometry geometry_of(const lksi_args *a, int ndim, const lksi_view *x, const lksi_view *w, const lksi_view *y)
{
    int64_t stride[3] = {1, 1, 1}, padding[3] = {0, 0, 0}, dilation[3] = {1, 1, 1};
    int first = ndim == 5 ? 0 : ndim == 4 ? 1 : 2;
    for (int i = first; i < 3; i++) {
        int to = ndim == 3 ? 1 : i; /* a line is the H of the image */
        stride[to] = a->attr.conv.stride[i];
        padding[to] = a->attr.conv.padding[i];
        dilation[to] = a->attr.conv.dilation[i];
    }
    geometry v = {.n = x->shape[0], .groups = a->attr.conv.groups, .d = x->shape[2], .h = x->shape[3],
                  .w = x->shape[4], .t = w->shape[2], .r = w->shape[3], .s = w->shape[4], .o = y->shape[2],
                  .p = y->shape[3], .q = y->shape[4]};
    v.c = w->shape[1];
    v.k = w->shape[0] / v.groups;
    v.sd = stride[0], v.sh = stride[1], v.sw = stride[2];
    v.pd = padding[0], v.ph = padding[1], v.pw = padding[2];
    v.dd = dilation[0], v.dh = dilation[1], v.dw = dilation[2];
    v.pointwise = v.r == 1 && v.s == 1 && v.sh == 1 && v.sw == 1 && v.ph == 0 && v.pw == 0 && v.h == v.p && v.w == v.q;
    return v;
}

/* Pixels whose rows of `depth` numbers fill half of a second cache. A multiple of the rows of a register tile. */
static int64_t block_size(int64_t depth, int64_t pixels)
{
    int64_t block = 65536 / (depth ? depth : 1);
    if (block > 1020) block = 1020;
    if (block < 48) block = 48;
    if (block > pixels) block = pixels;
    return (block + 11) / 12 * 12;
}

static lks_status no_memory(const lksi_args *a)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for the work space of a convolution");
}

#define transpose_f32 LKSI_LOCAL(transpose_f32)
#define transpose_f64 LKSI_LOCAL(transpose_f64)

#define REAL float
#define REAL_DTYPE LKS_F32
#define SUFFIX f32
#include "cpu/conv_core.h"

#define REAL double
#define REAL_DTYPE LKS_F64
#define SUFFIX f64
#include "cpu/conv_core.h"

static const lksi_view *bias_of(const lksi_args *a)
{
    return a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
}

static lks_status convolve(lksi_cpu *cpu, const lksi_args *a, const lksi_view *x, const lksi_view *w,
                           const lksi_view *y)
{
    lksi_view x5 = lift(x), w5 = lift(w), y5 = lift(y);
    geometry v = geometry_of(a, x->ndim, &x5, &w5, &y5);
    if (x->dtype == LKS_F64) return forward_f64(cpu, a, &v, &x5, &w5, 0, bias_of(a), &y5);
    return forward_f32(cpu, a, &v, &x5, &w5, 0, bias_of(a), &y5);
}

/* The gradient of x; or, with x in the place of dy, a transposed convolution. */
static lks_status transpose(lksi_cpu *cpu, const lksi_args *a, const lksi_view *bias)
{
    const lksi_view *dy = &a->in[0];
    lksi_view dy5 = lift(dy), w5 = lift(&a->in[1]), dx5 = lift(&a->out[0]);
    geometry v = geometry_of(a, dy->ndim, &dx5, &w5, &dy5);
    if (dy->dtype == LKS_F64) return backward_input_f64(cpu, a, &v, &dy5, &w5, bias, &dx5);
    return backward_input_f32(cpu, a, &v, &dy5, &w5, bias, &dx5);
}

LKSI_KERNEL(conv1d) { return convolve(cpu, a, &a->in[0], &a->in[1], &a->out[0]); }
LKSI_KERNEL(conv2d) { return convolve(cpu, a, &a->in[0], &a->in[1], &a->out[0]); }
LKSI_KERNEL(conv3d) { return convolve(cpu, a, &a->in[0], &a->in[1], &a->out[0]); }
LKSI_KERNEL(conv_transpose1d) { return transpose(cpu, a, bias_of(a)); }
LKSI_KERNEL(conv_transpose2d) { return transpose(cpu, a, bias_of(a)); }
LKSI_KERNEL(conv_transpose3d) { return transpose(cpu, a, bias_of(a)); }
LKSI_KERNEL(conv_backward_input) { return transpose(cpu, a, NULL); }

/* The same numbers with dims in another order. */
static lksi_view turn(const lksi_view *v, int d0, int d1, int d2)
{
    const int from[3] = {d0, d1, d2};
    lksi_view y = *v;
    for (int d = 0; d < 3; d++) y.shape[d] = v->shape[from[d]], y.stride[d] = v->stride[from[d]];
    return y;
}

LKSI_KERNEL(conv_tbc)
{
    lksi_view x = turn(&a->in[0], 1, 2, 0), w = turn(&a->in[1], 2, 1, 0), y = turn(&a->out[0], 1, 2, 0);
    return convolve(cpu, a, &x, &w, &y);
}

LKSI_KERNEL(conv_backward_weight)
{
    const lksi_view *dy = &a->in[0];
    lksi_view dy5 = lift(dy), x5 = lift(&a->in[1]), dw5 = lift(&a->out[0]);
    geometry v = geometry_of(a, dy->ndim, &x5, &dw5, &dy5);
    if (dy->dtype == LKS_F64) return backward_weight_f64(cpu, a, &v, &dy5, &x5, &dw5);
    return backward_weight_f32(cpu, a, &v, &dy5, &x5, &dw5);
}
