/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.c - CPU kernels of the optimizer step: passes over arenas in chunks of fixed size, and the small rows that
 * decide. What they compute for one scalar or one segment is in table/step.h. Chunks cross segments; each finds its
 * first one by bisection. Elements outside trainable segments that act (padding, frozen, absent) are neither read nor
 * written.
 */
#include "table/step.h"

#include "base/half.h"
#include "cpu/cpu.h"

#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define BLOCK 1024 /* elements handled at once: what is converted stays in the first cache */
#define LANES 32   /* partial sums of squares, the same on every ISA */

static int absent(const lksi_view *v)
{
    return v->ndim < 0;
}

/* The data, or NULL for an absent view. */
static void *data_of(const lksi_view *v)
{
    return absent(v) ? NULL : v->data;
}

/* First segment that ends after `at`. */
static int64_t segment_at(const lksi_segment *seg, int64_t n, int64_t at)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (seg[mid].offset + seg[mid].numel <= at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* n elements of a float arena from `at` as float; f32 is used where it is. */
static const float *load(const void *arena, int dtype, int64_t at, int64_t n, float *buffer)
{
    switch (dtype) {
    case LKS_F16: lksi_f16_to_f32_n(buffer, (const uint16_t *)arena + at, n); return buffer;
    case LKS_BF16: lksi_bf16_to_f32_n(buffer, (const uint16_t *)arena + at, n); return buffer;
    default: return (const float *)arena + at;
    }
}

/* Rounds to a 16-bit arena. */
static void store(void *arena, int dtype, int64_t at, int64_t n, const float *x)
{
    if (dtype == LKS_F16) lksi_f32_to_f16_n((uint16_t *)arena + at, x, n);
    else lksi_f32_to_bf16_n((uint16_t *)arena + at, x, n);
}

/* --- pass 1 --- */

/* Four at a time on every ISA: what one conversion instruction makes. */
typedef double doubles __attribute__((vector_size(32)));
typedef float floats __attribute__((vector_size(16), aligned(4), may_alias));

static inline doubles widen(floats x)
{
#ifdef __AVX__
    return (doubles)_mm256_cvtps_pd((__m128)x); /* one instruction; the generic form takes four */
#else
    return __builtin_convertvector(x, doubles);
#endif
}

static double tree(const double *lane)
{
    double t[LANES];
    memcpy(t, lane, sizeof t);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) t[k] += t[k + half];
    return t[0];
}

/* Sum of (double)(x f)^2 over n floats. Not finite exactly when some x or some x f is not: a square of a float never
 * overflows a double, an infinity times f is one or a NaN. */
static double squares_f32(const float *x, float f, int64_t n)
{
    doubles acc[LANES / 4] = {{0}};
    floats factor = {f, f, f, f};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 8
        for (int k = 0; k < LANES / 4; k++) {
            doubles v = widen(*(const floats *)(x + i + k * 4) * factor);
            acc[k] += v * v;
        }
    double lane[LANES];
    memcpy(lane, acc, sizeof lane);
    for (int k = 0; i + k < n; k++) {
        double v = (double)(x[i + k] * f);
        lane[k] += v * v;
    }
    return tree(lane);
}

/* The same for doubles, whose squares may overflow: *bad by exponent bits. */
static double squares_f64(const double *x, double f, int64_t n, int64_t *bad)
{
    double lane[LANES] = {0};
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        int m = n - i < LANES ? (int)(n - i) : LANES;
        for (int k = 0; k < m; k++) {
            double v = x[i + k] * f;
            lane[k] += v * v;
            found |= !(lksi_is_finite_f64(x[i + k]) && lksi_is_finite_f64(v));
        }
    }
    *bad |= found;
    return tree(lane);
}

typedef struct stats_job {
    char *grad;
    int dtype, write;
    int64_t count, segments;
    const lksi_segment *seg;
    const int32_t *has;
    double factor;
    lksi_part *part;
} stats_job;

/* n elements from `at` of a piece of one segment. */
static void stats_piece(const stats_job *j, int64_t at, int64_t n, lksi_part *part)
{
    float f = (float)j->factor;
    if (j->dtype == LKS_F64) {
        double *g = (double *)(void *)j->grad + at;
        part->squares += squares_f64(g, j->factor, n, &part->bad);
        if (j->write)
            for (int64_t i = 0; i < n; i++) g[i] *= j->factor;
        return;
    }
    if (j->dtype == LKS_F32 && !j->write) {
        double s = squares_f32((const float *)(void *)j->grad + at, f, n);
        part->bad |= !lksi_is_finite_f64(s);
        part->squares += s;
        return;
    }
    float buffer[BLOCK];
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < BLOCK ? n - i : BLOCK;
        const float *g = load(j->grad, j->dtype, at + i, m, buffer);
        double s = squares_f32(g, f, m);
        if (j->write) {
            float *out = j->dtype == LKS_F32 ? (float *)(void *)j->grad + at + i : buffer;
            for (int64_t k = 0; k < m; k++) out[k] = g[k] * f;
            if (j->dtype != LKS_F32) { /* what was rounded is what counts */
                store(j->grad, j->dtype, at + i, m, buffer);
                part->bad |= !lksi_is_finite_f64(squares_f32(load(j->grad, j->dtype, at + i, m, buffer), 1, m));
            }
        }
        part->bad |= !lksi_is_finite_f64(s);
        part->squares += s;
    }
}

static void stats_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const stats_job *j = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        lksi_part part = {0, 0};
        for (int64_t s = segment_at(j->seg, j->segments, lo); s < j->segments && j->seg[s].offset < hi; s++) {
            const lksi_segment *g = &j->seg[s];
            int64_t from = g->offset > lo ? g->offset : lo;
            int64_t to = g->offset + g->numel < hi ? g->offset + g->numel : hi;
            if (g->trainable && (j->has[s] & LKSI_READ_GRAD) && to > from) stats_piece(j, from, to - from, &part);
        }
        j->part[c] = part;
    }
}

LKSI_KERNEL(grad_stats)
{
    stats_job j = {
        .grad = a->in[0].data,
        .dtype = a->in[0].dtype,
        .write = !absent(&a->out[1]),
        .count = a->in[0].shape[0],
        .segments = a->attr.raw.i[0],
        .seg = a->in[1].data,
        .has = a->in[2].data,
        .factor = lksi_grad_factor(data_of(&a->in[3]), data_of(&a->in[4]), a->attr.raw.f[0], (int)a->attr.raw.i[1]),
        .part = (lksi_part *)a->out[0].data + a->attr.raw.i[2],
    };
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, stats_chunks, &j);
    return LKS_OK;
}

/* --- the decision --- */

LKSI_KERNEL(step_begin)
{
    (void)cpu;
    const lksi_part *part = a->in[0].data;
    const lksi_segment *seg = a->in[1].data;
    const int32_t *has = a->in[2].data;
    int32_t *vec = a->out[1].data;
    double squares = 0;
    int64_t bad = 0;
    for (int64_t i = 0; i < a->attr.raw.i[1]; i++) {
        squares += part[i].squares;
        bad |= part[i].bad;
    }
    lksi_step_begin(a->out[0].data, vec, data_of(&a->in[3]), data_of(&a->in[4]), squares, bad != 0,
                    (int)a->attr.raw.i[2], (int)a->attr.raw.i[3]);
    for (int64_t i = 0; i < a->attr.raw.i[0]; i++)
        vec[LKSI_VEC_PRESENT + i] = seg[i].trainable && (has[i] & LKSI_HAS_GRAD);
    return LKS_OK;
}

LKSI_KERNEL(step_decide)
{
    (void)cpu;
    const int32_t *vec = a->in[0].data, *has = a->in[4].data;
    const lksi_settings *o = a->in[1].data;
    const lksi_group *group = a->in[2].data;
    const lksi_segment *seg = a->in[3].data;
    const double *weight = data_of(&a->in[5]);
    lksi_step *st = a->out[0].data;
    lksi_segment_step *x = a->out[1].data;
    lksi_scaler_state *s = data_of(&a->out[2]);
    lksi_rng *rng = data_of(&a->out[3]);
    int64_t n = a->attr.raw.i[0];
    int any = 0;
    for (int64_t i = 0; i < n; i++) any |= vec[LKSI_VEC_PRESENT + i];
    if (a->attr.raw.i[3]) {
        lksi_step_unscaled(st, vec, any, s, weight);
        return LKS_OK;
    }
    double lr = lksi_step_decide(st, vec, any, o, group[0].lr, s, weight, a->attr.raw.f[0], (int)a->attr.raw.i[2]);
    for (int64_t i = 0; i < n; i++)
        lksi_segment_decide(&x[i], st, &seg[i], vec[LKSI_VEC_PRESENT + i], has[i], &group[seg[i].group], o->kind, lr);
    if (rng) rng->attempt += 1;
    return LKS_OK;
}

LKSI_KERNEL(scaler_update)
{
    (void)cpu;
    lksi_scaler_advance(a->out[0].data);
    return LKS_OK;
}

/* --- pass 2 --- */

/* Updates n elements in place, p: value or master. g is as in memory; factor, clip and bound make it the gradient. */
#define REAL float
#define NAME(x) x##_f32
#define ROOT sqrtf
#include "cpu/step_core.h"
#undef REAL
#undef NAME
#undef ROOT
#define REAL double
#define NAME(x) x##_f64
#define ROOT sqrt
#include "cpu/step_core.h"
#undef REAL
#undef NAME
#undef ROOT

typedef struct update_job {
    int sgd, dtype;
    int64_t count, segments;
    const lksi_segment *seg;
    const lksi_segment_step *x;
    const lksi_step *st;
    const char *grad;
    char *value, *block[2]; /* momentum / exp_avg, exp_avg_sq; may be NULL for SGD */
    float *master;          /* reduced dtypes */
    uint16_t *twin[2];      /* bf16, f16, or NULL */
} update_job;

static void update_piece(const update_job *j, const lksi_segment_step *x, int64_t at, int64_t n)
{
    static const double zeros[BLOCK]; /* also as floats */
    float buffer[BLOCK];
    const lksi_step *st = j->st;
    for (int64_t end = at + n, m; at < end; at += m) {
        m = end - at < BLOCK ? end - at : BLOCK;
        if (j->dtype == LKS_F64) {
            const double *g = x->zero ? zeros : (const double *)(const void *)j->grad + at;
            double *p = (double *)(void *)j->value + at, *b0 = (double *)(void *)j->block[0],
                   *b1 = (double *)(void *)j->block[1];
            if (j->sgd) sgd_f64(p, g, b0 ? b0 + at : NULL, m, x, st);
            else adam_f64(p, g, b0 + at, b1 + at, m, x, st);
            continue;
        }
        const float *g = x->zero ? (const float *)(const void *)zeros : load(j->grad, j->dtype, at, m, buffer);
        float *p = j->dtype == LKS_F32 ? (float *)(void *)j->value + at : j->master + at;
        float *b0 = (float *)(void *)j->block[0], *b1 = (float *)(void *)j->block[1];
        if (j->sgd) sgd_f32(p, g, b0 ? b0 + at : NULL, m, x, st);
        else adam_f32(p, g, b0 + at, b1 + at, m, x, st);
        if (j->dtype != LKS_F32) store(j->value, j->dtype, at, m, p);
        if (j->twin[0]) lksi_f32_to_bf16_n(j->twin[0] + at, p, m);
        if (j->twin[1]) lksi_f32_to_f16_n(j->twin[1] + at, p, m);
    }
}

static void update_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const update_job *j = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        for (int64_t s = segment_at(j->seg, j->segments, lo); s < j->segments && j->seg[s].offset < hi; s++) {
            const lksi_segment *g = &j->seg[s];
            int64_t from = g->offset > lo ? g->offset : lo;
            int64_t to = g->offset + g->numel < hi ? g->offset + g->numel : hi;
            if (j->x[s].act && to > from) update_piece(j, &j->x[s], from, to - from);
        }
    }
}

static lks_status update(lksi_cpu *cpu, const lksi_args *a, int sgd)
{
    const lksi_view *out = a->out + (sgd ? 2 : 3); /* master, twins */
    update_job j = {
        .sgd = sgd,
        .dtype = a->in[0].dtype,
        .count = a->in[0].shape[0],
        .segments = a->attr.raw.i[0],
        .seg = a->in[1].data,
        .x = a->in[2].data,
        .st = a->in[3].data,
        .grad = a->in[0].data,
        .value = a->out[0].data,
        .block = {data_of(&a->out[1]), sgd ? NULL : data_of(&a->out[2])},
        .master = data_of(&out[0]),
        .twin = {data_of(&out[1]), data_of(&out[2])},
    };
    if (!j.st->ran) return LKS_OK;
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, update_chunks, &j);
    return LKS_OK;
}

LKSI_KERNEL(sgd_step)
{
    return update(cpu, a, 1);
}

LKSI_KERNEL(adam_step)
{
    return update(cpu, a, 0);
}

/* --- running statistics --- */

LKSI_KERNEL(buffers_commit)
{
    (void)cpu;
    const lksi_step *st = a->in[0].data;
    float *running = a->out[0].data, *staged = a->out[1].data;
    size_t bytes = (size_t)a->out[0].shape[0] * sizeof *running;
    if (st->ran) memcpy(running, staged, bytes);
    else memcpy(staged, running, bytes);
    return LKS_OK;
}
