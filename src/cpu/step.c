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

/* 1 if a value of n elements from `at` is not finite. */
static int any_bad(const void *grad, int dtype, int64_t at, int64_t n)
{
    float buffer[BLOCK];
    int64_t bad = 0;
    if (dtype == LKS_F64) {
        squares_f64((const double *)grad + at, 1, n, &bad);
        return bad != 0;
    }
    for (int64_t i = 0, m; i < n && !bad; i += m) {
        m = n - i < BLOCK ? n - i : BLOCK;
        bad = !lksi_is_finite_f64(squares_f32(load(grad, dtype, at + i, m, buffer), 1, m));
    }
    return bad != 0;
}

typedef struct check_job {
    const void *grad;
    int dtype;
    int64_t count;
    int32_t *found;
} check_job;

static void check_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const check_job *j = arg;
    int64_t from = begin * LKSI_STEP_CHUNK, to = end * LKSI_STEP_CHUNK < j->count ? end * LKSI_STEP_CHUNK : j->count;
    (void)worker;
    if (any_bad(j->grad, j->dtype, from, to - from)) __atomic_store_n(j->found, 1, __ATOMIC_RELAXED);
}

LKSI_KERNEL(grad_check)
{
    check_job j = {a->in[0].data, a->in[0].dtype, a->in[0].shape[0], a->out[0].data};
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, check_chunks, &j);
    return LKS_OK;
}

typedef struct stats_job {
    char *grad;
    int dtype, write, underflow;
    int64_t first;
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
        int64_t bad = 0;
        part->squares += squares_f64(g, j->factor, n, &bad);
        part->bad |= bad != 0;
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

static double value_at(const stats_job *j, int64_t i)
{
    float x;
    if (j->dtype == LKS_F64) return ((const double *)(const void *)j->grad)[i];
    return (double)*load(j->grad, j->dtype, i, 1, &x);
}

static void count_underflow(const stats_job *j, int64_t at, int64_t n, lksi_part *part)
{
    double limit = lksi_underflow_limit(j->dtype);
    if (limit == 0) return;
    part->seen += n;
    for (int64_t i = at; i < at + n; i++) {
        double x = fabs(value_at(j, i));
        part->zeros += x == 0;
        part->tiny += x > 0 && x < limit;
    }
}

/* What was not finite; rarely called. */
static void count_bad(const stats_job *j, int64_t at, int64_t n, lksi_part *part)
{
    for (int64_t i = at; i < at + n; i++) {
        double x = value_at(j, i), f = j->write ? 1 : j->factor;
        lksi_part_note(part, j->dtype == LKS_F64 ? x * f : (double)((float)x * (float)f));
    }
}

static void stats_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const stats_job *j = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        lksi_part part = {0};
        for (int64_t s = segment_at(j->seg, j->segments, lo); s < j->segments && j->seg[s].offset < hi; s++) {
            const lksi_segment *g = &j->seg[s];
            int64_t from = g->offset > lo ? g->offset : lo;
            int64_t to = g->offset + g->numel < hi ? g->offset + g->numel : hi;
            if (!g->trainable || !(j->has[s] & LKSI_READ_GRAD) || to <= from) continue;
            int32_t before = part.bad;
            part.bad = 0;
            if (j->underflow) count_underflow(j, from, to - from, &part);
            stats_piece(j, from, to - from, &part);
            if (part.bad) {
                if (!before) part.first = (int32_t)(j->first + s);
                count_bad(j, from, to - from, &part);
            }
            part.bad |= before;
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
        .underflow = a->attr.raw.i[4] != 0,
        .first = a->attr.raw.i[3],
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
    lksi_part sum = {0};
    for (int64_t i = 0; i < a->attr.raw.i[1]; i++) lksi_part_add(&sum, &part[i]);
    lksi_step_begin(a->out[0].data, vec, data_of(&a->in[3]), data_of(&a->in[4]), &sum, data_of(&a->in[5]),
                    (int)a->attr.raw.i[2], (int)a->attr.raw.i[3], (int)a->attr.raw.i[4]);
    for (int64_t i = 0; i < a->attr.raw.i[0]; i++)
        vec[LKSI_VEC_PRESENT + i] = seg[i].trainable && (has[i] & LKSI_HAS_GRAD) ? LKSI_PRESENT : LKSI_ABSENT;
    for (int64_t i = 0; i < a->attr.raw.i[1]; i++)
        if (part[i].bad && vec[LKSI_VEC_PRESENT + part[i].first])
            vec[LKSI_VEC_PRESENT + part[i].first] = LKSI_PRESENT_BAD;
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
    int any = 0, first = -1;
    for (int64_t i = 0; i < n; i++) {
        any |= vec[LKSI_VEC_PRESENT + i] != LKSI_ABSENT;
        if (first < 0 && vec[LKSI_VEC_PRESENT + i] == LKSI_PRESENT_BAD) first = (int)i;
    }
    if (a->attr.raw.i[3]) {
        lksi_step_unscaled(st, vec, any, first, s, weight);
        return LKS_OK;
    }
    double lr = lksi_step_decide(st, vec, any, first, o, data_of(&a->in[6]), group[0].lr, s, weight,
                                 a->attr.raw.f[0], (int)a->attr.raw.i[2]);
    for (int64_t i = 0; i < n; i++)
        lksi_segment_decide(&x[i], st, &seg[i], vec[LKSI_VEC_PRESENT + i], has[i], &group[seg[i].group], o->kind, lr);
    if (rng) rng->attempt += 1;
    return LKS_OK;
}

LKSI_KERNEL(scaler_update)
{
    (void)cpu;
    double given = a->attr.raw.f[0];
    if (a->nin && a->in[0].dtype == LKS_F64) given = *(const double *)a->in[0].data;
    else if (a->nin) given = (double)*(const float *)a->in[0].data;
    lksi_scaler_advance(a->out[0].data, (int)a->attr.raw.i[0], given);
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

enum { SGD, ADAM, RMSPROP, ADAGRAD };

typedef struct update_job {
    int rule, dtype;
    int64_t count, segments;
    const lksi_segment *seg;
    const lksi_segment_step *x;
    const lksi_step *st;
    const char *grad;
    char *value, *block[3]; /* by row, see ops_step.def; NULL: none */
    float *master;          /* reduced dtypes */
    uint16_t *twin[2];      /* bf16, f16, or NULL */
} update_job;

#define UPDATE(REAL, NAME)                                                                                     \
    static void NAME##_all(int rule, REAL *p, const REAL *g, REAL *const *b, int64_t n, const lksi_segment_step *x, \
                           const lksi_step *st)                                                                \
    {                                                                                                          \
        switch (rule) {                                                                                        \
        case SGD: sgd_##NAME(p, g, b[0], n, x, st); break;                                                     \
        case ADAM: adam_##NAME(p, g, b[0], b[1], b[2], n, x, st); break;                                       \
        case RMSPROP: rmsprop_##NAME(p, g, b[0], b[1], b[2], n, x, st); break;                                 \
        default: adagrad_##NAME(p, g, b[0], n, x, st);                                                         \
        }                                                                                                      \
    }
UPDATE(float, f32)
UPDATE(double, f64)

static void update_piece(const update_job *j, const lksi_segment_step *x, int64_t at, int64_t n)
{
    static const double zeros[BLOCK]; /* also as floats */
    float buffer[BLOCK];
    for (int64_t end = at + n, m; at < end; at += m) {
        m = end - at < BLOCK ? end - at : BLOCK;
        if (j->dtype == LKS_F64) {
            double *b[3];
            for (int i = 0; i < 3; i++) b[i] = j->block[i] ? (double *)(void *)j->block[i] + at : NULL;
            f64_all(j->rule, (double *)(void *)j->value + at,
                    x->zero ? zeros : (const double *)(const void *)j->grad + at, b, m, x, j->st);
            continue;
        }
        const float *g = x->zero ? (const float *)(const void *)zeros : load(j->grad, j->dtype, at, m, buffer);
        float *p = j->dtype == LKS_F32 ? (float *)(void *)j->value + at : j->master + at, *b[3];
        for (int i = 0; i < 3; i++) b[i] = j->block[i] ? (float *)(void *)j->block[i] + at : NULL;
        f32_all(j->rule, p, g, b, m, x, j->st);
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

static lks_status update(lksi_cpu *cpu, const lksi_args *a, int rule)
{
    update_job j = {
        .rule = rule,
        .dtype = a->in[0].dtype,
        .count = a->in[0].shape[0],
        .segments = a->attr.raw.i[0],
        .seg = a->in[1].data,
        .x = a->in[2].data,
        .st = a->in[3].data,
        .grad = a->in[0].data,
        .value = a->out[0].data,
        .block = {data_of(&a->out[1]), data_of(&a->out[2]), data_of(&a->out[3])},
        .master = data_of(&a->out[4]),
        .twin = {data_of(&a->out[5]), data_of(&a->out[6])},
    };
    if (!j.st->ran) return LKS_OK;
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, update_chunks, &j);
    return LKS_OK;
}

LKSI_KERNEL(sgd_step)
{
    return update(cpu, a, SGD);
}

LKSI_KERNEL(adam_step)
{
    return update(cpu, a, ADAM);
}

LKSI_KERNEL(rmsprop_step)
{
    return update(cpu, a, RMSPROP);
}

LKSI_KERNEL(adagrad_step)
{
    return update(cpu, a, ADAGRAD);
}

/* --- ratios of LAMB and LARS --- */

typedef struct trust_job {
    int dtype, kind;
    int64_t count, segments;
    const lksi_segment *seg;
    const lksi_segment_step *x;
    const lksi_step *st;
    const char *grad, *value, *block[3];
    lksi_piece *piece;
} trust_job;

static void trust_piece(const trust_job *j, const lksi_segment_step *x, int64_t at, int64_t n, lksi_piece *sum)
{
    static const double zeros[BLOCK];
    float buffer[BLOCK];
    for (int64_t end = at + n, m; at < end; at += m) {
        m = end - at < BLOCK ? end - at : BLOCK;
        if (j->dtype == LKS_F64) {
            const double *b[3];
            for (int i = 0; i < 3; i++) b[i] = j->block[i] ? (const double *)(const void *)j->block[i] + at : NULL;
            trust_f64(j->kind, (const double *)(const void *)j->value + at,
                      x->zero ? zeros : (const double *)(const void *)j->grad + at, b, m, x, j->st, sum);
        } else {
            const float *b[3],
                *g = x->zero ? (const float *)(const void *)zeros : load(j->grad, j->dtype, at, m, buffer);
            for (int i = 0; i < 3; i++) b[i] = j->block[i] ? (const float *)(const void *)j->block[i] + at : NULL;
            trust_f32(j->kind, (const float *)(const void *)j->value + at, g, b, m, x, j->st, sum);
        }
    }
}

static void trust_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const trust_job *j = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        for (int64_t s = segment_at(j->seg, j->segments, lo); s < j->segments && j->seg[s].offset < hi; s++) {
            const lksi_segment *g = &j->seg[s];
            int64_t from = g->offset > lo ? g->offset : lo;
            int64_t to = g->offset + g->numel < hi ? g->offset + g->numel : hi;
            lksi_piece sum = {0, 0};
            if (j->x[s].act && to > from) trust_piece(j, &j->x[s], from, to - from, &sum);
            j->piece[c + s] = sum;
        }
    }
}

LKSI_KERNEL(trust_stats)
{
    trust_job j = {
        .dtype = a->in[0].dtype,
        .kind = (int)a->attr.raw.i[1],
        .count = a->in[0].shape[0],
        .segments = a->attr.raw.i[0],
        .seg = a->in[1].data,
        .x = a->in[2].data,
        .st = a->in[3].data,
        .grad = a->in[0].data,
        .value = a->in[4].data,
        .block = {data_of(&a->in[5]), data_of(&a->in[6]), data_of(&a->in[7])},
        .piece = (lksi_piece *)a->out[0].data + a->attr.raw.i[2],
    };
    if (!j.st->ran) return LKS_OK;
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, trust_chunks, &j);
    return LKS_OK;
}

LKSI_KERNEL(trust_decide)
{
    (void)cpu;
    const lksi_piece *piece = (const lksi_piece *)a->in[0].data + a->attr.raw.i[2];
    const lksi_segment *seg = a->in[1].data;
    const lksi_step *st = a->in[2].data;
    lksi_segment_step *x = a->out[0].data;
    if (!st->ran) return LKS_OK;
    for (int64_t s = 0; s < a->attr.raw.i[0]; s++) {
        if (!x[s].act || !seg[s].numel) continue;
        int64_t first = seg[s].offset / LKSI_STEP_CHUNK, last = (seg[s].offset + seg[s].numel - 1) / LKSI_STEP_CHUNK;
        double w = 0, d = 0;
        for (int64_t c = first; c <= last; c++) {
            w += piece[c + s].weight;
            d += piece[c + s].direction;
        }
        lksi_trust_decide(&x[s], w, d, (int)a->attr.raw.i[1]);
    }
    return LKS_OK;
}

/* --- the moving average of the weights --- */

typedef struct ema_job {
    int dtype;
    int64_t count;
    double add;
    const void *p;
    void *average;
} ema_job;

static void ema_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const ema_job *j = arg;
    int64_t from = begin * LKSI_STEP_CHUNK, to = end * LKSI_STEP_CHUNK < j->count ? end * LKSI_STEP_CHUNK : j->count;
    (void)worker;
    if (j->dtype == LKS_F64) {
        const double *p = j->p;
        double *e = j->average;
        for (int64_t i = from; i < to; i++) e[i] += j->add * (p[i] - e[i]);
    } else {
        const float *p = j->p, add = (float)j->add;
        float *e = j->average;
        for (int64_t i = from; i < to; i++) e[i] += add * (p[i] - e[i]);
    }
}

LKSI_KERNEL(ema_step)
{
    const lksi_step *st = a->in[0].data;
    ema_job j = {a->in[1].dtype, a->in[1].shape[0], st->ema_add, a->in[1].data, a->out[0].data};
    if (!st->ran) return LKS_OK;
    lksi_parallel(cpu, (j.count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK, 2, ema_chunks, &j);
    return LKS_OK;
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
