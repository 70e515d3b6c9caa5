/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.c - uniform and normal fills, dropout, bernoulli. Element i of a tensor in row-major order, whatever its
 * strides, takes the numbers of counter offset + i (base/philox.h), so splits, threads and memory order change nothing.
 * Dropout compares the 24-bit number in every dtype, so its mask is the same in every precision. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "table/math.h"

typedef struct draw {
    lksi_operand out, in;
    lksi_philox stream;
    uint64_t offset;
    double a, b;          /* as in the attributes */
    double low, high;     /* uniform: smallest and largest number of the dtype inside */
    uint32_t limit;       /* dropout: keep where the 24-bit number is not below */
    int bad;              /* bernoulli: set by any thread */
} draw;

enum { WORDS = LKSI_BLOCK + 8 };

/* Words of elements [first, first + n) of the stream, per of them for each; returns where they begin in buf. */
static const uint32_t *words(const draw *d, uint64_t first, int64_t n, int per, uint32_t *buf)
{
    uint64_t start = first * (uint64_t)per, block = start / 4;
    int64_t blocks = (int64_t)((start + (uint64_t)(n * per) + 3) / 4 - block);
    lksi_philox_fill(&d->stream, block, blocks, buf);
    return buf + start % 4;
}

static void begin_draw(draw *d, const lksi_args *a, const lksi_view *out, int cls)
{
    int order[LKS_MAX_DIMS];
    for (int i = 0; i < out->ndim; i++) order[i] = i; /* the shape's order, not memory's */
    lksi_operand_init(&d->out, out, out, order, cls);
    if (a->nin > 0) lksi_operand_init(&d->in, &a->in[0], out, order, cls);
    d->stream = lksi_philox_stream(a->rng->seed, a->rng->attempt, a->attr.random.call);
    d->offset = (uint64_t)a->attr.random.offset;
    d->a = a->attr.random.a;
    d->b = a->attr.random.b;
}

/* --- uniform ------------------------------------------------------------------------------------------------------ */

static void uniform_f32(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const draw *d = arg;
    lksi_block buf;
    _Alignas(64) uint32_t room[WORDS];
    float lo = (float)d->a, width = (float)(d->b - d->a), low = (float)d->low, high = (float)d->high;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        const uint32_t *w = words(d, d->offset + (uint64_t)at, n, 1, room);
        float *y = lksi_operand_direct(&d->out, at), *to = y ? y : (void *)buf.bytes;
        for (int64_t i = 0; i < n; i++) {
            float v = lo + width * lksi_uniform_f32(w[i]);
            v = v < low ? low : v;
            to[i] = v > high ? high : v;
        }
        if (!y) lksi_operand_store(&d->out, at, n, to);
    }
}

static void uniform_f64(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const draw *d = arg;
    lksi_block buf;
    _Alignas(64) uint32_t room[2 * WORDS];
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        const uint32_t *w = words(d, d->offset + (uint64_t)at, n, 2, room);
        double *y = lksi_operand_direct(&d->out, at), *to = y ? y : (void *)buf.bytes;
        for (int64_t i = 0; i < n; i++) {
            double v = d->a + (d->b - d->a) * lksi_uniform_f64(w[2 * i], w[2 * i + 1]);
            v = v < d->low ? d->low : v;
            to[i] = v > d->high ? d->high : v;
        }
        if (!y) lksi_operand_store(&d->out, at, n, to);
    }
}

LKSI_KERNEL(uniform)
{
    const lksi_view *y = &a->out[0];
    int64_t n = lksi_count(y);
    if (n == 0) return LKS_OK;
    draw d;
    begin_draw(&d, a, y, lksi_class_of[y->dtype]);
    lksi_uniform_bounds(y->dtype, d.a, d.b, &d.low, &d.high);
    lksi_parallel(cpu, n, LKSI_GRAIN / 4, y->dtype == LKS_F64 ? uniform_f64 : uniform_f32, &d);
    return LKS_OK;
}

/* --- normal ------------------------------------------------------------------------------------------------------- */

/* Pairs belong together: a block is widened to whole pairs of the stream. */
static void normal_f32(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const draw *d = arg;
    lksi_block buf;
    _Alignas(64) uint32_t room[WORDS];
    _Alignas(64) float z[LKSI_BLOCK + 2];
    float mean = (float)d->a, std = (float)d->b, *p = (void *)buf.bytes;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        uint64_t first = d->offset + (uint64_t)at;
        int64_t odd = (int64_t)(first & 1), pairs = (n + odd + 1) / 2;
        const uint32_t *w = words(d, first - (uint64_t)odd, 2 * pairs, 1, room);
        for (int64_t i = 0; i < pairs; i++) lksi_normal_f32(w[2 * i], w[2 * i + 1], &z[2 * i], &z[2 * i + 1]);
        for (int64_t i = 0; i < n; i++) p[i] = mean + std * z[i + odd];
        lksi_operand_store(&d->out, at, n, p);
    }
}

static void normal_f64(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const draw *d = arg;
    lksi_block buf;
    _Alignas(64) uint32_t room[2 * WORDS];
    double *p = (void *)buf.bytes;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        uint64_t first = d->offset + (uint64_t)at;
        int64_t odd = (int64_t)(first & 1), pairs = (n + odd + 1) / 2;
        const uint32_t *w = words(d, first - (uint64_t)odd, 2 * pairs, 2, room);
        for (int64_t i = 0; i < pairs; i++) {
            double z[2];
            lksi_normal_f64(w + 4 * i, z, z + 1);
            for (int j = 0; j < 2; j++) {
                int64_t to = 2 * i + j - odd;
                if (to >= 0 && to < n) p[to] = d->a + d->b * z[j];
            }
        }
        lksi_operand_store(&d->out, at, n, p);
    }
}

LKSI_KERNEL(normal)
{
    const lksi_view *y = &a->out[0];
    int64_t n = lksi_count(y);
    if (n == 0) return LKS_OK;
    draw d;
    begin_draw(&d, a, y, lksi_class_of[y->dtype]);
    lksi_parallel(cpu, n, LKSI_GRAIN / 8, y->dtype == LKS_F64 ? normal_f64 : normal_f32, &d);
    return LKS_OK;
}

/* --- dropout ------------------------------------------------------------------------------------------------------ */

#define DROPOUT(T, NAME)                                                                                       \
    static void NAME(void *arg, int64_t begin, int64_t end, int worker)                                        \
    {                                                                                                          \
        (void)worker;                                                                                          \
        const draw *d = arg;                                                                                   \
        lksi_block in, buf;                                                                                    \
        _Alignas(64) uint32_t room[WORDS];                                                                     \
        int32_t limit = (int32_t)d->limit;                                                                     \
        T scale = (T)(1.0 / (1.0 - d->a));                                                                     \
        for (int64_t at = begin; at < end; at += LKSI_BLOCK) {                                                 \
            int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;                                         \
            const uint32_t *w = words(d, d->offset + (uint64_t)at, n, 1, room);                                \
            const T *x = lksi_operand_load(&d->in, at, n, in.bytes);                                           \
            T *y = lksi_operand_direct(&d->out, at), *to = y ? y : (void *)buf.bytes;                          \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                T v = x[i] * scale;                                                                            \
                to[i] = (int32_t)(w[i] >> 8) >= limit ? v : (T)0;                                              \
            }                                                                                                  \
            if (!y) lksi_operand_store(&d->out, at, n, to);                                                    \
        }                                                                                                      \
    }
DROPOUT(float, dropout_f32)
DROPOUT(double, dropout_f64)

LKSI_KERNEL(dropout)
{
    const lksi_view *y = &a->out[0];
    int64_t n = lksi_count(y);
    if (n == 0) return LKS_OK;
    draw d;
    int cls = lksi_class_of[a->in[0].dtype] == LKSI_CLASS_F64 ? LKSI_CLASS_F64 : lksi_class_of[y->dtype];
    begin_draw(&d, a, y, cls);
    d.limit = (uint32_t)ceil(d.a * 0x1p24); /* u >= p: the least 24-bit number that is kept */
    lksi_parallel(cpu, n, LKSI_GRAIN / 4, cls == LKSI_CLASS_F64 ? dropout_f64 : dropout_f32, &d);
    return LKS_OK;
}

/* --- bernoulli ---------------------------------------------------------------------------------------------------- */

/* 1 where the 24-bit number is below p. */
#define BERNOULLI(T, NAME)                                                                                     \
    static void NAME(void *arg, int64_t begin, int64_t end, int worker)                                        \
    {                                                                                                          \
        (void)worker;                                                                                          \
        draw *d = arg;                                                                                         \
        lksi_block in, buf;                                                                                    \
        _Alignas(64) uint32_t room[WORDS];                                                                     \
        int bad = 0;                                                                                           \
        for (int64_t at = begin; at < end; at += LKSI_BLOCK) {                                                 \
            int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;                                         \
            const uint32_t *w = words(d, d->offset + (uint64_t)at, n, 1, room);                                \
            const T *p = lksi_operand_load(&d->in, at, n, in.bytes);                                           \
            T *y = lksi_operand_direct(&d->out, at), *to = y ? y : (void *)buf.bytes;                          \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                bad |= !(p[i] >= 0 && p[i] <= 1);                                                              \
                to[i] = (T)(int32_t)(w[i] >> 8) < p[i] * (T)0x1p24 ? 1 : 0;                                    \
            }                                                                                                  \
            if (!y) lksi_operand_store(&d->out, at, n, to);                                                    \
        }                                                                                                      \
        if (bad) __atomic_store_n(&d->bad, 1, __ATOMIC_RELAXED);                                               \
    }
BERNOULLI(float, bernoulli_f32)
BERNOULLI(double, bernoulli_f64)

LKSI_KERNEL(bernoulli)
{
    const lksi_view *y = &a->out[0];
    int64_t n = lksi_count(y);
    if (n == 0) return LKS_OK;
    draw d;
    int cls = lksi_class_of[y->dtype];
    begin_draw(&d, a, y, cls);
    d.bad = 0;
    lksi_parallel(cpu, n, LKSI_GRAIN / 4, cls == LKSI_CLASS_F64 ? bernoulli_f64 : bernoulli_f32, &d);
    if (d.bad) return lksi_why(a, LKS_ERR_ARGUMENT, "a probability is outside [0, 1], or NaN");
    return LKS_OK;
}
