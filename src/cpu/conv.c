/* SPDX-License-Identifier: BSD-3-Clause
 *
 * conv.c - the rows conv2d, conv2d_backward_input and conv2d_backward_weight: any stride, padding, dilation, groups,
 * layout and float dtype. The work is in conv_core.h; sums go in an order that does not depend on threads.
 */
#include "cpu/gemm.h"
#include "cpu/gemm_io.h"

/* c, k: channels of a group. */
typedef struct geometry {
    int64_t n, c, h, w, k, r, s, p, q, groups, sh, sw, ph, pw, dh, dw;
    int pointwise; /* one pixel in, one out, in the same order */
} geometry;

typedef struct job {
    lksi_cpu *cpu;
    geometry v;
    const lksi_view *x, *y;
    lksi_gemm g;
    int64_t block, blocks, parts; /* pixels in a block, blocks of an image, parts of a sum */
    int direct;
    void *packed;
    int64_t packed_bytes, at[4], bytes;
} job;

static geometry geometry_of(const lksi_args *a, const lksi_view *x, const lksi_view *w, const lksi_view *y)
{
    geometry v = {.n = x->shape[0], .groups = a->attr.conv2d.groups, .h = x->shape[2], .w = x->shape[3],
                  .r = w->shape[2], .s = w->shape[3], .p = y->shape[2], .q = y->shape[3]};
    v.c = w->shape[1];
    v.k = w->shape[0] / v.groups;
    v.sh = a->attr.conv2d.stride[0], v.sw = a->attr.conv2d.stride[1];
    v.ph = a->attr.conv2d.padding[0], v.pw = a->attr.conv2d.padding[1];
    v.dh = a->attr.conv2d.dilation[0], v.dw = a->attr.conv2d.dilation[1];
    v.pointwise = v.r == 1 && v.s == 1 && v.sh == 1 && v.sw == 1 && v.ph == 0 && v.pw == 0;
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
    return lksi_kernel_why(a, LKS_ERR_MEMORY, "no memory for the work space of a convolution");
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

LKSI_KERNEL(conv2d)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1], *b = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    geometry v = geometry_of(a, x, w, &a->out[0]);
    if (x->dtype == LKS_F64) return forward_f64(cpu, a, &v, x, w, 0, b, &a->out[0]);
    return forward_f32(cpu, a, &v, x, w, 0, b, &a->out[0]);
}

LKSI_KERNEL(conv2d_backward_input)
{
    const lksi_view *dy = &a->in[0], *w = &a->in[1], *dx = &a->out[0];
    geometry v = geometry_of(a, dx, w, dy);
    if (dy->dtype == LKS_F64) return backward_input_f64(cpu, a, &v, dy, w, dx);
    return backward_input_f32(cpu, a, &v, dy, w, dx);
}

LKSI_KERNEL(conv2d_backward_weight)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *dw = &a->out[0];
    geometry v = geometry_of(a, x, dw, dy);
    if (dy->dtype == LKS_F64) return backward_weight_f64(cpu, a, &v, dy, x, dw);
    return backward_weight_f32(cpu, a, &v, dy, x, dw);
}
