/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.c - grid_sampler in 2 and 3 dims and its gradients. A place of the grid becomes a list of taps: pixels of x,
 * what each counts and how that changes with the place; forward, dx and the gradient of the grid only read that list.
 * Pixels are put side by side in groups of channels first, so that a tap is a vector or a few. dx is added up for a
 * group at once, the gradient of a place over its channels in order: same bits on any thread count.
 */
#include "cpu/gemm_io.h"
#include "cpu/rows.h"

enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };
enum { TAPS = 16, CHANNELS = 16, PLACES = 32, PIECE = 1024, WIDE = 4 }; /* PIECE: pixels; WIDE: room for a place */
enum { ROUND = 1 << 25 }; /* bytes that all workers share: images are taken in rounds */

/* A view as rows of pixels: an image, or a grid, whose coordinates are its channels. */
typedef struct raster {
    char *data;
    int dtype, flat; /* flat: all pixels lie one stride apart */
    int64_t size[3], stride[3], of_n, of_c;
} raster;

typedef struct sampling {
    lksi_cpu *cpu;
    raster x, grid, y, dx, dgrid; /* backward: y is dy */
    int dims, mode, padding, align;
    const int64_t *in, *out; /* [3]: sizes of x, of the grid */
    int64_t n, channels, plane, places, groups, width; /* width: that a group of channels has, with zeros */
    int64_t first; /* image of this round */
    void *shared;
    int64_t bytes;
} sampling;

static raster raster_of(const lksi_view *v, int image)
{
    raster r = {.data = v->data, .dtype = v->dtype, .of_n = v->stride[0], .of_c = v->stride[image ? 1 : v->ndim - 1]};
    for (int i = 0, d = image + 1 + i - (5 - v->ndim); i < 3; i++, d++) {
        int there = i >= 5 - v->ndim;
        r.size[i] = there ? v->shape[d] : 1;
        r.stride[i] = there ? v->stride[d] : 0;
    }
    r.flat = (r.size[1] == 1 || r.stride[1] == r.size[2] * r.stride[2]) &&
             (r.size[0] == 1 || r.stride[0] == r.size[1] * r.size[2] * r.stride[2]);
    return r;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t channels_of(const sampling *s, int64_t group)
{
    return least(s->channels - group * CHANNELS, CHANNELS);
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

static int64_t product(const int64_t *size) { return size[0] * size[1] * size[2]; }

static void sampling_of(sampling *s, const lksi_args *a, const lksi_view *x, const lksi_view *grid, const lksi_view *y)
{
    int64_t lanes = LKSI_VECTOR / (x->dtype == LKS_F64 ? 8 : 4), most;
    s->x = raster_of(x, 1), s->grid = raster_of(grid, 0), s->y = raster_of(y, 1);
    s->dims = x->ndim - 2, s->mode = a->attr.grid.mode;
    s->padding = a->attr.grid.padding, s->align = a->attr.grid.align;
    s->in = s->x.size, s->out = s->y.size;
    s->n = x->shape[0], s->channels = x->shape[1], s->plane = product(s->in), s->places = product(s->out);
    s->groups = (s->channels + CHANNELS - 1) / CHANNELS;
    most = least(s->channels, CHANNELS);
    for (s->width = lanes; s->width < most;) s->width *= 2;
}

static lks_status memory_for(sampling *s, const lksi_args *a, int64_t elements, int64_t shared)
{
    int64_t size = a->in[0].dtype == LKS_F64 ? 8 : 4;
    s->bytes = elements * size;
    for (int w = 0; w < lksi_cpu_workers(s->cpu); w++)
        if (!lksi_scratch(s->cpu, w, 0, s->bytes))
            return lksi_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of scratch", (long long)s->bytes);
    s->shared = shared > 0 ? lksi_scratch(s->cpu, -1, 0, shared * size) : NULL;
    if (shared > 0 && !s->shared)
        return lksi_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of scratch", (long long)(shared * size));
    return LKS_OK;
}

/* Images that a round takes, of which each needs so many shared elements: at least one. */
static int64_t images_of(const sampling *s, int64_t each)
{
    int64_t fit = ROUND / (each * 8 + 1);
    return fit < 1 ? 1 : fit < s->n ? fit : s->n;
}

static lks_status sample(lksi_cpu *cpu, const lksi_args *a)
{
    sampling s = {.cpu = cpu};
    if (lksi_numel(&a->out[0]) == 0) return LKS_OK;
    sampling_of(&s, a, &a->in[0], &a->in[1], &a->out[0]);
    int dbl = a->in[0].dtype == LKS_F64;
    int64_t each = s.groups * s.plane * s.width, step, blocks = (s.places + PLACES - 1) / PLACES;
    /* Few places, or pixels that lie well already: x is read where it is. */
    if (s.places * TAPS < s.plane || (dbl ? (void *)there_f64(&s, 0, 0, &step) : (void *)there_f32(&s, 0, 0, &step)))
        each = 0;
    int64_t images = images_of(&s, each);
    TRY(memory_for(&s, a, PLACES * (TAPS + 1) * s.width, images * each));
    for (; s.first < s.n; s.first += images) {
        if (images > s.n - s.first) images = s.n - s.first;
        if (each)
            lksi_parallel(cpu, images * s.groups * ((s.plane + PIECE - 1) / PIECE), 1 + 16384 / (PIECE * s.width),
                          dbl ? gather_part_f64 : gather_part_f32, &s);
        lksi_parallel(cpu, images * blocks, 1 + 16384 / (PLACES * s.channels), dbl ? sample_part_f64 : sample_part_f32,
                      &s);
    }
    return LKS_OK;
}

LKSI_KERNEL(grid_sampler_2d) { return sample(cpu, a); }
LKSI_KERNEL(grid_sampler_3d) { return sample(cpu, a); }

LKSI_KERNEL(grid_sampler_backward)
{
    sampling s = {.cpu = cpu};
    sampling_of(&s, a, &a->in[1], &a->in[2], &a->in[0]);
    s.dx = raster_of(&a->out[0], 1);
    s.dgrid = raster_of(&a->out[1], 0);
    int dbl = a->in[0].dtype == LKS_F64, turned = s.mode != NEAREST; /* the nearest does not change with the place */
    int64_t each = turned ? s.groups * s.places * WIDE : 0, images = images_of(&s, each);
    int64_t blocks = (s.places + PLACES - 1) / PLACES;
    TRY(memory_for(&s, a, (PLACES + (1 + turned) * s.plane) * s.width, images * each));
    for (; s.first < s.n; s.first += images) {
        if (images > s.n - s.first) images = s.n - s.first;
        lksi_parallel(cpu, images * s.groups, 1, dbl ? back_part_f64 : back_part_f32, &s);
        lksi_parallel(cpu, images * blocks, 1 + 16384 / PLACES, dbl ? grid_part_f64 : grid_part_f32, &s);
    }
    return LKS_OK;
}
