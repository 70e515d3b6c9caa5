/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention.c - the rows attention and attention_backward: scaled dot products, mask, causality, softmax, dropout and
 * the product with the values in one pass; for the gradient the probabilities are computed again from the log-sums (Dao
 * et al., 2022). Reduced dtypes are computed in float32. Sums go in an order that depends on sizes alone.
 */
#include "base/philox.h"
#include "cpu/gemm.h"
#include "cpu/gemm_io.h"
#include "table/math.h"
#include <math.h>

typedef struct head_job {
    lksi_cpu *cpu;
    lksi_view q, k, v, mask, y, lse, dy, dq, dk, dv; /* mask as [B, H, T, S], or absent */
    int64_t batch, heads, queries, keys, depth, value_depth;
    int64_t rows, blocks; /* queries in a block, blocks of a head */
    double scale, p;
    int causal;
    lksi_philox stream;
    int64_t offset;
    uint32_t limit; /* dropout keeps where the 24-bit number is not below */
    int64_t ld, at[15], bytes;
} head_job;

/* Keys that query t may see: a leading part of them. */
static inline int64_t seen_keys(const head_job *s, int64_t t)
{
    if (!s->causal) return s->keys;
    int64_t n = t + s->keys - s->queries + 1;
    return n < 0 ? 0 : n > s->keys ? s->keys : n;
}

static void put_lse(const lksi_view *lse, int64_t b, int64_t h, int64_t t, double x)
{
    int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
    if (lse->dtype == LKS_F64) ((double *)lse->data)[at] = x;
    else ((float *)lse->data)[at] = (float)x;
}

static double get_lse(const lksi_view *lse, int64_t b, int64_t h, int64_t t)
{
    int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
    return lse->dtype == LKS_F64 ? ((const double *)lse->data)[at] : (double)((const float *)lse->data)[at];
}

static lks_status no_memory(const lksi_args *a, const head_job *s)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of work space on each thread",
                    (long long)s->bytes);
}

/* exp(x) for x <= 0; 0 where it would be denormal, as all that a mask hides is: each of those would cost as much
 * as a hundred others. NaN stays. */
static inline float exp_f32(float x)
{
    int32_t k;
    float y = x < -87.0f ? -87.0f : x > 0 ? 0 : x;
    float p = (lksi_expm1_reduced(y, &k) + 1.0f) * lksi_exp2i(k);
    return x < -87.0f ? 0 : p;
}

#define transpose_f32 LKSI_LOCAL(transpose_f32)
#define transpose_f64 LKSI_LOCAL(transpose_f64)
#define tiles_f32 LKSI_LOCAL(tiles_f32)
#define tiles_f64 LKSI_LOCAL(tiles_f64)

#define REAL float
#define BITS int32_t
#define REAL_DTYPE LKS_F32
#define SUFFIX f32
#define EXP exp_f32
#define LOG log
#define LOWEST (-INFINITY)
#include "cpu/attention_core.h"

#define REAL double
#define BITS int64_t
#define REAL_DTYPE LKS_F64
#define SUFFIX f64
#define EXP exp
#define LOG log
#define LOWEST ((double)-INFINITY)
#include "cpu/attention_core.h"

/* What both directions need; inputs q, k, v, mask begin at in[first]. */
static head_job prepare(lksi_cpu *cpu, const lksi_args *a, int first)
{
    head_job s = {.cpu = cpu, .q = a->in[first], .k = a->in[first + 1], .v = a->in[first + 2], .mask = {.ndim = -1}};
    s.batch = s.q.shape[0], s.heads = s.q.shape[1], s.queries = s.q.shape[2], s.keys = s.k.shape[2];
    s.depth = s.q.shape[3], s.value_depth = s.v.shape[3];
    s.scale = a->attr.attention.scale, s.p = a->attr.attention.p, s.causal = a->attr.attention.causal;
    if (s.scale == 0) s.scale = 1 / sqrt((double)(s.depth > 0 ? s.depth : 1));
    if (a->nin > first + 3 && a->in[first + 3].ndim >= 0) {
        const lksi_view *m = &a->in[first + 3];
        s.mask = *m;
        s.mask.ndim = 4;
        for (int d = 0; d < 4; d++) {
            int from = d - (4 - m->ndim);
            s.mask.stride[d] = from < 0 || m->shape[from] == 1 ? 0 : m->stride[from];
        }
    }
    if (s.p > 0) {
        s.stream = lksi_philox_stream(a->rng->seed, a->rng->attempt, a->attr.attention.call);
        s.offset = a->attr.attention.offset;
        s.limit = (uint32_t)ceil(s.p * 0x1p24);
    }
    /* Few rows where the triangle above the diagonal is skipped, and where rows are long. */
    s.rows = s.causal ? 48 : 96;
    while (s.rows > 12 && s.rows * s.keys > 65536) s.rows -= 12;
    s.blocks = (s.queries + s.rows - 1) / s.rows;
    return s;
}

LKSI_KERNEL(attention)
{
    head_job s = prepare(cpu, a, 0);
    s.y = a->out[0], s.lse = a->out[1];
    if (s.q.dtype == LKS_F64) return forward_f64(cpu, a, &s);
    return forward_f32(cpu, a, &s);
}

LKSI_KERNEL(attention_backward)
{
    head_job s = prepare(cpu, a, 1);
    s.dy = a->in[0], s.lse = a->in[6];
    s.dq = a->out[0], s.dk = a->out[1], s.dv = a->out[2];
    if (s.q.dtype == LKS_F64) return backward_f64(cpu, a, &s);
    return backward_f32(cpu, a, &s);
}
