/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.c - pooling over 1 to 3 dims: largest and mean of windows of one size, adaptive or fractional ones, and the way
 * back; padding by what is inside, which is a window of one element. All are seen as 3-D images; where the windows lie
 * is the business of span_of and results_of. Padding is smaller than anything, NaN larger; the first of the largest
 * counts. Backward adds within one plane, in the order of the results, so nothing depends on the number of threads.
 *
 * Phase p of a row, of as many as the stride, is its elements p, p + stride, ...: element k of all windows lies side by
 * side in one of them, so that windows are taken all at once.
 */
#include "cpu/gemm.h"
#include "cpu/gemm_io.h"

#include <math.h>

enum {
    CHANNELS = 64, /* of a unit going back */
    LANES = 16,    /* results in a row are rounded up to these, in scratch memory */
    HANDS = 7,     /* rows that a worker has in hand */
    LOOK = 32      /* elements of a window, up to which going back looks for places */
};

typedef struct pooling {
    lksi_cpu *cpu;
    const lksi_args *a;
    lksi_view x, y, place; /* lifted to five dims */
    const lksi_view *samples;
    int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
    int how[3], mean, assign, reflect;
    int64_t channels; /* that a unit takes together */
    int64_t phase;    /* elements of a phase; 0: windows one by one */
    int in_place;     /* sums are made where they belong, with `step` between pixels */
    int64_t step, room, bytes;
} pooling;

/* Elements begin, begin + dilation, ... below end; full: how many with padding. */
typedef struct span { int64_t begin, end, full; } span;

static lksi_view lift(const lksi_view *v)
{
    lksi_view y = *v;
    int missing = 5 - v->ndim;
    y.ndim = 5;
    for (int d = 2; d < 5; d++) {
        int there = d >= 2 + missing;
        y.shape[d] = there ? v->shape[d - missing] : 1;
        y.stride[d] = there ? v->stride[d - missing] : 0;
    }
    return y;
}

/* Start of fractional window o of `out` (Graham, 2014), in the arithmetic of x. */
static int64_t fraction(int dbl, int64_t in, int64_t kernel, int64_t out, int64_t o, double u)
{
    if (o == out - 1) return in - kernel;
    int64_t at;
    if (dbl) {
        double alpha = (double)(in - kernel) / (double)(out - 1);
        at = (int64_t)(((double)o + u) * alpha) - (int64_t)(u * alpha);
    } else {
        float alpha = (float)(in - kernel) / (float)(out - 1), v = (float)u;
        at = (int64_t)(((float)o + v) * alpha) - (int64_t)(v * alpha);
    }
    return at < 0 ? 0 : at > in - kernel ? in - kernel : at;
}

static inline span span_of(const pooling *s, int i, int64_t o, const double *u)
{
    int64_t in = s->in[i], begin, end;
    if (s->how[i] == LKSI_POOL_WINDOW) {
        begin = o * s->stride[i] - s->padding[i];
        end = begin + (s->kernel[i] - 1) * s->dilation[i] + 1;
        int64_t full = (end < in + s->padding[i] ? end : in + s->padding[i]) - begin;
        if (begin < 0) begin += (-begin + s->dilation[i] - 1) / s->dilation[i] * s->dilation[i];
        return (span){begin, end < in ? end : in, full};
    }
    if (s->how[i] == LKSI_POOL_ADAPTIVE) { /* o in / out without overflow */
        int64_t out = s->out[i], whole = in / out, rest = in % out;
        begin = o * whole + (int64_t)((__int128)o * rest / out);
        end = (o + 1) * whole + (int64_t)(((__int128)(o + 1) * rest + out - 1) / out);
    } else {
        begin = fraction(s->x.dtype == LKS_F64, in, s->kernel[i], s->out[i], o, u[i]);
        end = begin + s->kernel[i];
    }
    return (span){begin, end, end - begin};
}

static inline void samples_of(const pooling *s, int64_t n, int64_t c, double *u)
{
    const lksi_view *v = s->samples;
    if (!v) return;
    int64_t dims = v->shape[2];
    for (int64_t k = 0; k < dims; k++) { /* two dims: the width comes first */
        double x;
        io_load_f64(&x, io_at(v->data, v->dtype, n * v->stride[0] + c * v->stride[1] + k * v->stride[2]), v->dtype, 1,
                    1);
        u[dims == 2 ? 2 - k : k] = x >= 0 && x < 1 ? x : 0;
    }
}

/* What a sum is divided by; dilation is 1 where means are taken. */
static inline double count_of(const pooling *s, span d, span h, span w)
{
    if (s->a->attr.pool.how == LKSI_POOL_WINDOW) {
        if (s->a->attr.pool.divisor) return (double)s->a->attr.pool.divisor;
        if (s->a->attr.pool.include_pad) return (double)d.full * (double)h.full * (double)w.full;
    }
    return (double)(d.end - d.begin) * (double)(h.end - h.begin) * (double)(w.end - w.begin);
}

/* The results whose windows hold element x, where windows are of one size: begin, begin + full, ... below end. */
static inline span results_of(const pooling *s, int i, int64_t x)
{
    int64_t at = x + s->padding[i], stride = s->stride[i], dilation = s->dilation[i], gap = 1;
    int64_t least = at - (s->kernel[i] - 1) * dilation, end = at / stride + 1;
    int64_t begin = least <= 0 ? 0 : (least + stride - 1) / stride;
    if (end > s->out[i]) end = s->out[i];
    if (dilation > 1) {
        while (begin < end && (at - begin * stride) % dilation) begin++;
        while (gap * stride % dilation) gap++;
    }
    return (span){begin, end, gap};
}

/* Where element k of the windows lies in the phases of a row. */
static inline int64_t phase_at(const pooling *s, int64_t k)
{
    int64_t at = k * s->dilation[2], stride = s->stride[2];
    return at % stride * s->phase + at / stride;
}

static void split_places(int32_t *restrict to, const int32_t *restrict row, int64_t n, int64_t stride)
{
    if (stride == 2)
        for (int64_t i = 0; i < n; i++) to[i] = row[2 * i], to[n + i] = row[2 * i + 1];
    else
        for (int64_t p = 0; p < stride; p++)
            for (int64_t i = 0; i < n; i++) to[p * n + i] = row[i * stride + p];
}

/* The element that padding shows in place o. */
static inline int64_t source_of(const pooling *s, int i, int64_t o)
{
    int64_t at = o - s->padding[i], last = s->in[i] - 1;
    if (s->reflect) return at < 0 ? -at : at > last ? 2 * last - at : at;
    return at < 0 ? 0 : at > last ? last : at;
}

static inline int64_t place_at(const lksi_view *p, int64_t i)
{
    return p->dtype == LKS_I64 ? ((const int64_t *)p->data)[i] : (int64_t)((const int32_t *)p->data)[i];
}

#define turn_f32 LKSI_LOCAL(transpose_f32)
#define turn_f64 LKSI_LOCAL(transpose_f64)

static inline int is_nan_f32(float x) { return lksi_is_nan_f32(x); }
static inline int is_nan_f64(double x) { return lksi_is_nan_f64(x); }

#define REAL float
#define REAL_DTYPE LKS_F32
#define SUFFIX f32
#include "cpu/pool_core.h"

#define REAL double
#define REAL_DTYPE LKS_F64
#define SUFFIX f64
#include "cpu/pool_core.h"

/* x: the side with the larger planes, y: that of the results. */
static pooling pooling_of(lksi_cpu *cpu, const lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    pooling s = {.cpu = cpu, .a = a, .x = lift(x), .y = lift(y)};
    for (int i = 0; i < 3; i++) {
        int there = i >= 5 - x->ndim;
        s.in[i] = s.x.shape[2 + i];
        s.out[i] = s.y.shape[2 + i];
        s.how[i] = there ? a->attr.pool.how : LKSI_POOL_WINDOW;
        int plain = there && s.how[i] == LKSI_POOL_WINDOW;
        s.kernel[i] = there ? a->attr.pool.kernel[i] : 1;
        s.stride[i] = plain ? a->attr.pool.stride[i] : 1;
        s.padding[i] = plain ? a->attr.pool.padding[i] : 0;
        s.dilation[i] = plain ? a->attr.pool.dilation[i] : 1;
    }
    return s;
}

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* How rows are worked on, once it is known how many channels a unit takes. */
static void plan(pooling *s)
{
    int64_t stride = s->stride[2], reach = (s->kernel[2] - 1) * s->dilation[2], out = s->out[2];
    int fits = stride > 0 && stride <= 4 && reach >= 0 && reach < s->in[2] + LANES && out > 1;
    if (fits && s->channels == 1 && s->how[2] == LKSI_POOL_WINDOW)
        s->phase = (out + reach / stride + LANES - 1) / LANES * LANES;
    int64_t row = larger(out, s->in[2] + (s->phase ? s->padding[2] : 0));
    s->room = (larger(s->channels, larger(row, stride * s->phase)) + 2 * LANES - 1) / LANES * LANES;
}

/* The same for the way back: if planes can be added up where they belong. */
static void plan_back(pooling *s)
{
    const lksi_view *x = &s->x;
    s->channels = x->shape[1] > 1 && x->stride[1] == 1 ? x->shape[1] : 1;
    if (s->channels > CHANNELS) s->channels = CHANNELS;
    plan(s);
    int64_t pixels = 1;
    s->step = s->channels == 1 ? 1 : x->shape[1];
    s->in_place = x->dtype == LKS_F32 || x->dtype == LKS_F64;
    for (int d = 4; d > 1; d--) {
        if (x->shape[d] > 1 && x->stride[d] != pixels * s->step) s->in_place = 0;
        pixels *= x->shape[d];
    }
}

static lks_status memory_for(pooling *s, int64_t elements)
{
    s->bytes = elements * (s->x.dtype == LKS_F64 ? 8 : 4) + 64;
    for (int w = 0; w < lksi_cpu_workers(s->cpu); w++)
        if (!lksi_scratch(s->cpu, w, 0, s->bytes))
            return lksi_why(s->a, LKS_ERR_MEMORY, "no memory for %lld bytes of scratch", (long long)s->bytes);
    return LKS_OK;
}

static lks_status pool(lksi_cpu *cpu, const lksi_args *a, int mean, const lksi_view *samples)
{
    pooling s = pooling_of(cpu, a, &a->in[0], &a->out[0]);
    s.mean = mean;
    s.samples = samples;
    s.place = mean ? s.y : lift(&a->out[1]);
    if (lksi_numel(&s.y) == 0) return LKS_OK;
    int inner = s.x.shape[1] > 1 && s.x.stride[1] == 1 && s.y.stride[1] == 1 && s.place.stride[1] == 1 && !samples;
    s.channels = inner ? s.x.shape[1] : 1;
    plan(&s);
    TRY(memory_for(&s, HANDS * s.room));
    int64_t window = 1, units = s.y.shape[0] * (s.y.shape[1] / s.channels) * s.out[0] * s.out[1];
    for (int i = 0; i < 3; i++)
        window *= s.how[i] == LKSI_POOL_ADAPTIVE ? s.in[i] / s.out[i] + 1 : s.kernel[i];
    int64_t cost = larger(1, s.out[2] * s.channels * window);
    lksi_parallel(cpu, units, 1 + 32768 / cost, s.x.dtype == LKS_F64 ? pool_part_f64 : pool_part_f32, &s);
    return LKS_OK;
}

LKSI_KERNEL(max_pool1d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(max_pool2d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(max_pool3d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(adaptive_max_pool1d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(adaptive_max_pool2d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(adaptive_max_pool3d) { return pool(cpu, a, 0, NULL); }
LKSI_KERNEL(fractional_max_pool2d) { return pool(cpu, a, 0, &a->in[1]); }
LKSI_KERNEL(fractional_max_pool3d) { return pool(cpu, a, 0, &a->in[1]); }
LKSI_KERNEL(avg_pool1d) { return pool(cpu, a, 1, NULL); }
LKSI_KERNEL(avg_pool2d) { return pool(cpu, a, 1, NULL); }
LKSI_KERNEL(avg_pool3d) { return pool(cpu, a, 1, NULL); }
LKSI_KERNEL(adaptive_avg_pool1d) { return pool(cpu, a, 1, NULL); }
LKSI_KERNEL(adaptive_avg_pool2d) { return pool(cpu, a, 1, NULL); }
LKSI_KERNEL(adaptive_avg_pool3d) { return pool(cpu, a, 1, NULL); }

/* From the results (in 0) back into planes (out 0). */
static lks_status back(lksi_cpu *cpu, const lksi_args *a, int mean, int assign)
{
    pooling s = pooling_of(cpu, a, &a->out[0], &a->in[0]);
    s.assign = assign, s.mean = mean;
    if (lksi_numel(&s.x) == 0) return LKS_OK;
    if (!mean) s.place = lift(&a->in[1]);
    plan_back(&s);
    int64_t plane = s.in_place ? 0 : s.in[0] * s.in[1] * s.in[2] * s.channels, elements = 1;
    int64_t units = s.x.shape[0] * ((s.x.shape[1] + s.channels - 1) / s.channels);
    int dbl = s.x.dtype == LKS_F64, look = !mean && a->attr.pool.inside && s.place.dtype == LKS_I32;
    for (int i = 0; i < 3 && look; i++) {
        look = s.how[i] == LKSI_POOL_WINDOW && s.kernel[i] > 0 && s.stride[i] > 0 && s.kernel[i] <= LOOK / elements;
        elements *= s.kernel[i];
    }
    if (look && (s.channels == 1 ? s.phase && s.place.stride[4] == 1 : s.place.stride[1] == 1)) {
        s.room = larger(s.room, larger(s.in[2], s.out[2]) * s.channels);
        TRY(memory_for(&s, 3 * s.room));
        int64_t grain = 1 + 16384 / (s.in[1] * s.in[2] * s.channels);
        lksi_parallel(cpu, units * s.in[0], grain, dbl ? look_part_f64 : look_part_f32, &s);
        return LKS_OK;
    }
    if (mean) s.room = larger(s.room, s.in[2] * s.channels);
    TRY(memory_for(&s, (mean ? HANDS : 1) * s.room + plane));
    int64_t grain = 1 + 4096 / (s.in[0] * s.in[1] * s.in[2] * s.channels);
    if (mean) lksi_parallel(cpu, units, grain, dbl ? share_part_f64 : share_part_f32, &s);
    else lksi_parallel(cpu, units, grain, dbl ? spread_part_f64 : spread_part_f32, &s);
    return LKS_OK;
}

LKSI_KERNEL(max_pool_backward) { return back(cpu, a, 0, 0); }
LKSI_KERNEL(avg_pool_backward) { return back(cpu, a, 1, 0); }

/* --- by places --- */

static int64_t offset_of(const lksi_view *v, int64_t i) /* of element i in row-major order of a lifted view */
{
    int64_t at = 0;
    for (int d = 4; d >= 0; d--) {
        at += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return at;
}

/* Later ones win where places coincide. */
static lks_status unpool(lksi_cpu *cpu, const lksi_args *a)
{
    lksi_view p = lift(&a->in[1]);
    int64_t plane = 1, n = lksi_numel(&p);
    for (int d = 2; d < a->out[0].ndim; d++) plane *= a->out[0].shape[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t at = place_at(&p, offset_of(&p, i));
        if (at < 0 || at >= plane)
            return lksi_why(a, LKS_ERR_ARGUMENT, "index %lld (element %lld) is not in a plane of %lld",
                            (long long)at, (long long)i, (long long)plane);
    }
    return back(cpu, a, 0, 1);
}

LKSI_KERNEL(max_unpool1d) { return unpool(cpu, a); }
LKSI_KERNEL(max_unpool2d) { return unpool(cpu, a); }
LKSI_KERNEL(max_unpool3d) { return unpool(cpu, a); }

typedef struct gathering { lksi_view x, p, y; int64_t plane; } gathering;

static void gather_part(void *arg, int64_t begin, int64_t end, int worker)
{
    const gathering *s = arg;
    const lksi_view *x = &s->x, *p = &s->p, *y = &s->y;
    int size = x->dtype == LKS_F64 ? 8 : x->dtype == LKS_F32 ? 4 : 2;
    int64_t h = x->shape[3], w = x->shape[4];
    (void)worker;
    for (int64_t u = begin; u < end; u++) { /* rows of y */
        int64_t row = offset_of(y, u * y->shape[4]), places = offset_of(p, u * y->shape[4]);
        int64_t nc = u / y->shape[3] / y->shape[2];
        int64_t base = nc / y->shape[1] * x->stride[0] + nc % y->shape[1] * x->stride[1];
        for (int64_t q = 0; q < y->shape[4]; q++) {
            int64_t at = place_at(p, places + q * p->stride[4]);
            char *to = (char *)y->data + (row + q * y->stride[4]) * size;
            if (at < 0 || at >= s->plane) {
                memset(to, 0, (size_t)size);
                continue;
            }
            int64_t from = base + at / w / h * x->stride[2] + at / w % h * x->stride[3] + at % w * x->stride[4];
            memcpy(to, (const char *)x->data + from * size, (size_t)size);
        }
    }
}

LKSI_KERNEL(max_pool_gather)
{
    gathering s = {.x = lift(&a->in[0]), .p = lift(&a->in[1]), .y = lift(&a->out[0])};
    if (lksi_numel(&s.y) == 0) return LKS_OK;
    s.plane = s.x.shape[2] * s.x.shape[3] * s.x.shape[4];
    lksi_parallel(cpu, lksi_numel(&s.y) / s.y.shape[4], 1 + 8192 / s.y.shape[4], gather_part, &s);
    return LKS_OK;
}

/* --- padding by what is inside --- */

static pooling padding_of(lksi_cpu *cpu, const lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    pooling s = {.cpu = cpu, .a = a, .x = lift(x), .y = lift(y), .reflect = a->attr.edge.reflect};
    for (int i = 0; i < 3; i++) {
        s.in[i] = s.x.shape[2 + i];
        s.out[i] = s.y.shape[2 + i];
        s.padding[i] = i >= 5 - x->ndim ? a->attr.edge.before[i] : 0;
    }
    return s;
}

/* Rows of the result, of all channels that lie side by side or of one. */
static void pad_part(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *x = &s->x, *y = &s->y;
    int size = x->dtype == LKS_F64 ? 8 : x->dtype == LKS_F32 ? 4 : 2;
    int64_t per = y->shape[1] / s->channels, last = s->in[2] - 1;
    size_t pixel = (size_t)(s->channels * size);
    (void)worker;
    for (int64_t u = begin; u < end; u++) {
        int64_t i = u % s->out[1], o = u / s->out[1] % s->out[0], rest = u / s->out[1] / s->out[0];
        int64_t c = rest % per, n = rest / per;
        const char *from = (const char *)x->data + (n * x->stride[0] + c * x->stride[1] +
                                                    source_of(s, 0, o) * x->stride[2] +
                                                    source_of(s, 1, i) * x->stride[3]) * size;
        char *to = (char *)y->data + (n * y->stride[0] + c * y->stride[1] + o * y->stride[2] + i * y->stride[3]) * size;
        int64_t xs = x->stride[4] * size, ys = y->stride[4] * size, q = 0;
        for (; q < s->padding[2]; q++) memcpy(to + q * ys, from + source_of(s, 2, q) * xs, pixel);
        if (xs == ys && xs == (int64_t)pixel) {
            memcpy(to + q * ys, from, pixel * (size_t)(last + 1));
            q += last + 1;
        }
        for (; q < s->out[2]; q++) memcpy(to + q * ys, from + source_of(s, 2, q) * xs, pixel);
    }
}

static lks_status pad(lksi_cpu *cpu, const lksi_args *a)
{
    pooling s = padding_of(cpu, a, &a->in[0], &a->out[0]);
    if (lksi_numel(&s.y) == 0) return LKS_OK;
    s.channels = s.x.shape[1] > 1 && s.x.stride[1] == 1 && s.y.stride[1] == 1 ? s.x.shape[1] : 1;
    int64_t rows = s.y.shape[0] * (s.y.shape[1] / s.channels) * s.out[0] * s.out[1];
    lksi_parallel(cpu, rows, 1 + 8192 / (s.out[2] * s.channels), pad_part, &s);
    return LKS_OK;
}

LKSI_KERNEL(reflection_pad1d) { return pad(cpu, a); }
LKSI_KERNEL(reflection_pad2d) { return pad(cpu, a); }
LKSI_KERNEL(reflection_pad3d) { return pad(cpu, a); }
LKSI_KERNEL(replication_pad1d) { return pad(cpu, a); }
LKSI_KERNEL(replication_pad2d) { return pad(cpu, a); }
LKSI_KERNEL(replication_pad3d) { return pad(cpu, a); }

LKSI_KERNEL(edge_pad_backward)
{
    pooling s = padding_of(cpu, a, &a->out[0], &a->in[0]);
    if (lksi_numel(&s.x) == 0) return LKS_OK;
    plan_back(&s);
    s.room = larger(s.room, s.in[2] * s.channels);
    int64_t plane = s.in[0] * s.in[1] * s.in[2] * s.channels;
    TRY(memory_for(&s, 2 * s.room + (s.in_place ? 0 : plane)));
    lksi_parallel(cpu, s.x.shape[0] * ((s.x.shape[1] + s.channels - 1) / s.channels), 1 + 4096 / plane,
                  s.x.dtype == LKS_F64 ? fold_part_f64 : fold_part_f32, &s);
    return LKS_OK;
}
