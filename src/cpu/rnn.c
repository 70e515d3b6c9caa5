/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rnn.c - the rows rnn_steps and rnn_steps_backward: the part of a recurrent layer that goes step by step, for one
 * direction. What can be done for all steps at once (the product with the input, gradients of weights) is not here:
 * those are rows of their own. Reduced dtypes are computed in float32 from step to step and rounded when they are
 * written. Each row of the batch is summed in an order that depends on sizes alone.
 */
#include "cpu/gemm.h"
#include "cpu/gemm_io.h"
#include "table/math.h"
#include <math.h>

enum { ROWS = 24, MOST_GATES = 4, MOST_KEPT = 5 }; /* rows of an item: whole tiles of every ISA */

typedef struct rnn_job {
    lksi_cpu *cpu;
    lksi_view x, w, h0, c0, states, dy, dx, dstate, dh0, dc0;
    int kind, reverse, backward;
    int64_t steps, batch, hidden, gates, keeps;
    int64_t blocks, row_blocks, rows; /* of UNITS hidden units; of rows of the batch; rows in one */
    int64_t t, first;                 /* this step; the first in the order of time */
    int last, side;                   /* last: no step came after */
    int64_t ld;                       /* of state */
    void *panels, *bias, *state[2], *cell, *pass, *kept;
    int64_t *length;
    int64_t stage_bytes;
} rnn_job;

#define transpose_f32 LKSI_LOCAL(transpose_f32)
#define transpose_f64 LKSI_LOCAL(transpose_f64)
#define tiles_f32 LKSI_LOCAL(tiles_f32)
#define tiles_f64 LKSI_LOCAL(tiles_f64)

#define REAL float
#define REAL_DTYPE LKS_F32
#define SUFFIX f32
#define SIGMOID lksi_sigmoidf
#define TANH lksi_tanhf
#include "cpu/rnn_core.h"

#define REAL double
#define REAL_DTYPE LKS_F64
#define SUFFIX f64
#define SIGMOID lksi_sigmoid
#define TANH tanh
#include "cpu/rnn_core.h"

static const lksi_view absent = {.ndim = -1};

static const lksi_view *input(const lksi_args *a, int i) { return i < a->nin ? &a->in[i] : &absent; }

/* Matrix v as [1, rows, columns]. */
static lksi_view as_step(const lksi_view *v)
{
    lksi_view r = *v;
    if (v->ndim != 2) return r;
    r.ndim = 3;
    r.shape[0] = 1, r.shape[1] = v->shape[0], r.shape[2] = v->shape[1];
    r.stride[0] = 0, r.stride[1] = v->stride[0], r.stride[2] = v->stride[1];
    return r;
}

static lks_status read_lengths(rnn_job *s, const lksi_args *a, const lksi_view *v)
{
    if (v->ndim < 0) return LKS_OK;
    s->length = lksi_scratch(s->cpu, -1, 5, s->batch * 8);
    if (!s->length) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    for (int64_t r = 0; r < s->batch; r++) {
        int64_t n = ((const int64_t *)v->data)[r * v->stride[0]];
        if (n < 0 || n > s->steps)
            return lksi_why(a, LKS_ERR_ARGUMENT, "length %lld of sequence %lld is outside [0, %lld]",
                            (long long)n, (long long)r, (long long)s->steps);
        s->length[r] = n;
    }
    return LKS_OK;
}

/* Memory and the packed weight; what the row is about is set. */
static lks_status prepare(rnn_job *s, const lksi_args *a, const lksi_view *lengths, const lksi_view *bias)
{
    int dbl = s->states.dtype == LKS_F64;
    int64_t size = dbl ? 8 : 4, units = LKSI_TILE_BYTES / size, H = s->hidden, across = s->gates * H;
    s->blocks = (H + units - 1) / units;
    s->row_blocks = (s->batch + ROWS - 1) / ROWS;
    s->rows = s->row_blocks ? (s->batch + s->row_blocks - 1) / s->row_blocks : 1;
    s->rows = (s->rows + LKSI_TILE_ROWS - 1) / LKSI_TILE_ROWS * LKSI_TILE_ROWS;
    s->ld = ((s->backward ? across : H) + 15) / 16 * 16;
    if (s->ld % 512 == 0) s->ld += 16; /* rows a power of two apart fight for cache sets */
    int64_t states = (s->batch + LKSI_TILE_ROWS) * s->ld, wide = s->blocks * units;
    s->panels = lksi_scratch(s->cpu, -1, 1, wide * across * size + 64);
    char *state = lksi_scratch(s->cpu, -1, 2, 2 * states * size + 64);
    char *rest = lksi_scratch(s->cpu, -1, 3, 2 * s->batch * H * size + 128);
    s->bias = lksi_scratch(s->cpu, -1, 4, s->gates * wide * size + 64);
    s->stage_bytes = (units * H + 64) * size;
    int good = s->panels && state && rest && s->bias;
    for (int w = 0; w < lksi_cpu_workers(s->cpu) && good; w++)
        good = lksi_scratch(s->cpu, w, 0, s->stage_bytes) != NULL;
    if (!good) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    TRY(read_lengths(s, a, lengths));
    memset(state, 0, (size_t)(2 * states * size));
    memset(rest, 0, (size_t)(2 * s->batch * H * size));
    memset(s->bias, 0, (size_t)(s->gates * wide * size));
    s->state[0] = state, s->state[1] = state + states * size;
    s->pass = rest;
    if (s->kind == LKSI_RNN_LSTM) s->cell = rest + s->batch * H * size;
    for (int64_t g = 0; g < s->gates && bias->ndim >= 0; g++) {
        void *to = (char *)s->bias + g * wide * size, *from = io_at(bias->data, bias->dtype, g * H * bias->stride[0]);
        if (dbl) io_load_f64(to, from, bias->dtype, bias->stride[0], H);
        else io_load_f32(to, from, bias->dtype, bias->stride[0], H);
    }
    int64_t items = s->backward ? across : s->blocks * s->gates, grain = 1 + (1 << 16) * items / (across * H + 1);
    lksi_parallel(s->cpu, items, grain, dbl ? pack_f64 : pack_f32, s);
    return LKS_OK;
}

static void step(rnn_job *s, int64_t t)
{
    int dbl = s->states.dtype == LKS_F64;
    double work = (double)s->batch * (double)s->hidden * (double)(s->gates * s->hidden + 64);
    lksi_range_fn fn = s->backward ? dbl ? backward_items_f64 : backward_items_f32
                                   : dbl ? forward_items_f64 : forward_items_f32;
    int64_t items = s->blocks * s->row_blocks;
    s->t = t;
    lksi_parallel(s->cpu, items, work < 2e5 ? items : 1, fn, s);
    s->side = !s->side;
    s->last = 0;
}

static rnn_job job_of(lksi_cpu *cpu, const lksi_args *a, const lksi_view *w, const lksi_view *states)
{
    rnn_job s = {.cpu = cpu, .kind = a->attr.rnn.kind, .reverse = a->attr.rnn.reverse, .w = *w, .states = *states};
    s.gates = s.kind == LKSI_RNN_LSTM ? 4 : s.kind == LKSI_RNN_GRU ? 3 : 1;
    s.keeps = s.kind == LKSI_RNN_LSTM ? 5 : s.kind == LKSI_RNN_GRU ? 4 : 0;
    s.steps = states->shape[0] - 1 - (s.kind == LKSI_RNN_LSTM);
    s.batch = states->shape[1], s.hidden = states->shape[2];
    s.first = s.reverse ? s.steps - 1 : 0;
    return s;
}

LKSI_KERNEL(rnn_steps)
{
    rnn_job s = job_of(cpu, a, &a->in[1], &a->out[0]);
    int dbl = s.states.dtype == LKS_F64;
    if (lksi_numel(&a->out[0]) == 0) return LKS_OK;
    s.x = a->in[0], s.h0 = *input(a, 3), s.c0 = *input(a, 4);
    s.kept = a->attr.rnn.save && s.keeps ? a->out[1].data : NULL;
    TRY(prepare(&s, a, input(a, 5), input(a, 2)));
    if (dbl) ends_f64(&s, 1);
    else ends_f32(&s, 1);
    for (int64_t k = 0; k < s.steps; k++) step(&s, s.reverse ? s.steps - 1 - k : k);
    if (!s.cell) return LKS_OK;
    if (dbl) ends_f64(&s, 0);
    else ends_f32(&s, 0);
    return LKS_OK;
}

LKSI_KERNEL(rnn_steps_backward)
{
    rnn_job s = job_of(cpu, a, &a->in[3], &a->in[1]);
    if (lksi_numel(&a->in[1]) == 0) return LKS_OK;
    s.backward = s.last = 1;
    s.dy = a->in[0], s.kept = a->in[2].data, s.c0 = as_step(input(a, 4));
    s.dx = a->out[0], s.dstate = a->out[1], s.dh0 = as_step(&a->out[2]), s.dc0 = as_step(&a->out[3]);
    TRY(prepare(&s, a, input(a, 5), &absent));
    for (int64_t r = 0; s.cell && r < s.batch; r++) /* the cells' own gradient is the last row's */
        for (int64_t j = 0; j < s.hidden; j++) {
            int64_t at = (s.steps + 1) * s.dy.stride[0] + r * s.dy.stride[1] + j * s.dy.stride[2];
            void *from = io_at(s.dy.data, s.dy.dtype, at);
            if (s.states.dtype == LKS_F64) io_load_f64((double *)s.cell + r * s.hidden + j, from, s.dy.dtype, 1, 1);
            else io_load_f32((float *)s.cell + r * s.hidden + j, from, s.dy.dtype, 1, 1);
        }
    for (int64_t k = 0; k < s.steps; k++) step(&s, s.reverse ? k : s.steps - 1 - k);
    step(&s, -1);
    return LKS_OK;
}
