/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.c - grid_sampler in 2 and 3 dims and its gradients. A place of the grid becomes a list of taps: elements of x,
 * what each counts and how that changes with the place. Forward, dx and the gradient of the grid only read that list.
 * dx is added up plane by plane, the gradient of a place over its channels in order: same bits on any thread count.
 */
#include "cpu/gemm_io.h"

#include <math.h>

enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };
enum { TAPS = 16, CHANNELS = 16, WIDE = 16 }; /* channels of a unit of dx; room for a place, as vectors move it */

typedef struct sampling {
    lksi_cpu *cpu;
    lksi_view x, grid, y, dx, dgrid; /* five dims; grid [N, D, H, W, dims]. Backward: y is dy */
    int dims, mode, padding, align;
    int64_t in[3], out[3];
    int64_t bytes;
} sampling;

static lksi_view lift(const lksi_view *v, int at) /* a dim of size 1 in place `at` of a 4-D view */
{
    lksi_view y = *v;
    if (v->ndim == 5) return y;
    y.ndim = 5;
    for (int d = 4; d > at; d--) y.shape[d] = v->shape[d - 1], y.stride[d] = v->stride[d - 1];
    y.shape[at] = 1, y.stride[at] = 0;
    return y;
}

static inline int is_nan_f32(float x) { return lksi_is_nan_f32(x); }
static inline int is_nan_f64(double x) { return lksi_is_nan_f64(x); }

#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)

#define REAL float
#define REAL_DTYPE LKS_F32
#define SUFFIX f32
#include "cpu/sample_core.h"

#define REAL double
#define REAL_DTYPE LKS_F64
#define SUFFIX f64
#include "cpu/sample_core.h"

static sampling sampling_of(lksi_cpu *cpu, const lksi_args *a, const lksi_view *x, const lksi_view *grid,
                            const lksi_view *y)
{
    sampling s = {.cpu = cpu, .x = lift(x, 2), .grid = lift(grid, 1), .y = lift(y, 2), .dims = x->ndim - 2,
                  .mode = a->attr.grid.mode, .padding = a->attr.grid.padding, .align = a->attr.grid.align};
    for (int i = 0; i < 3; i++) s.in[i] = s.x.shape[2 + i], s.out[i] = s.y.shape[2 + i];
    return s;
}

static lks_status memory_for(sampling *s, const lksi_args *a, int64_t elements)
{
    s->bytes = elements * (s->x.dtype == LKS_F64 ? 8 : 4) + 64;
    for (int w = 0; w < lksi_cpu_workers(s->cpu); w++)
        if (!lksi_scratch(s->cpu, w, 0, s->bytes))
            return lksi_kernel_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of scratch", (long long)s->bytes);
    return LKS_OK;
}

static lks_status sample(lksi_cpu *cpu, const lksi_args *a)
{
    sampling s = sampling_of(cpu, a, &a->in[0], &a->in[1], &a->out[0]);
    int64_t channels = s.x.shape[1];
    if (lksi_numel(&s.y) == 0) return LKS_OK;
    TRY(memory_for(&s, a, 2 * channels));
    lksi_parallel(cpu, s.x.shape[0] * s.out[0] * s.out[1], 1 + 4096 / (s.out[2] * channels + 1),
                  s.x.dtype == LKS_F64 ? sample_part_f64 : sample_part_f32, &s);
    return LKS_OK;
}

LKSI_KERNEL(grid_sampler_2d) { return sample(cpu, a); }
LKSI_KERNEL(grid_sampler_3d) { return sample(cpu, a); }

LKSI_KERNEL(grid_sampler_backward)
{
    sampling s = sampling_of(cpu, a, &a->in[1], &a->in[2], &a->in[0]);
    int dbl = s.x.dtype == LKS_F64;
    int64_t channels = s.x.shape[1], plane = s.in[0] * s.in[1] * s.in[2];
    s.dx = lift(&a->out[0], 2);
    s.dgrid = lift(&a->out[1], 1);
    TRY(memory_for(&s, a, 2 * channels + (plane + 1) * CHANNELS));
    if (lksi_numel(&s.dx) > 0)
        lksi_parallel(cpu, s.x.shape[0] * ((channels + CHANNELS - 1) / CHANNELS), 1,
                      dbl ? back_part_f64 : back_part_f32, &s);
    if (lksi_numel(&s.dgrid) > 0)
        lksi_parallel(cpu, s.x.shape[0] * s.out[0] * s.out[1], 1 + 4096 / (s.out[2] * channels + 1),
                      dbl ? grid_part_f64 : grid_part_f32, &s);
    return LKS_OK;
}
