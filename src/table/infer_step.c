/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_step.c - shape rules of the optimizer's rows: every output is given, so these check that blocks are large
 * enough for what the attributes announce. A failure here is a fault of ours, not of the user.
 */
#include "table/step.h"
#include "table/table.h"

static int absent(const lksi_view *v)
{
    return v->ndim < 0;
}

/* 1 if v is a dense block of at least n structs of `size` bytes. */
static int holds(const lksi_view *v, int64_t n, int64_t size)
{
    return !absent(v) && lksi_is_contiguous(v) && lksi_numel(v) * lks_dtype_size(v->dtype) >= n * size;
}

static int optional(const lksi_view *v, int64_t size)
{
    return absent(v) || holds(v, 1, size);
}

static int flat_float(const lksi_view *v)
{
    return v->ndim == 1 && lks_dtype_is_float(v->dtype) && lksi_is_contiguous(v);
}

/* v is absent or has n elements of dtype. */
static int like(const lksi_view *v, lks_dtype dtype, int64_t n)
{
    return absent(v) || (v->ndim == 1 && v->dtype == dtype && v->shape[0] == n && lksi_is_contiguous(v));
}

static int64_t chunks(int64_t n)
{
    return (n + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK;
}

static lks_status misfit(lksi_args *a, const char *row, const char *what)
{
    return lksi_why(a, LKS_ERR_INTERNAL, "%s: %s does not fit", row, what);
}

lks_status lksi_infer_grad_check(lksi_args *a)
{
    if (!flat_float(&a->in[0])) return misfit(a, "grad_check", "the gradient block");
    return holds(&a->out[0], 1, sizeof(int32_t)) ? LKS_OK : misfit(a, "grad_check", "what it found");
}

lks_status lksi_infer_grad_stats(lksi_args *a)
{
    const lksi_view *g = &a->in[0];
    int64_t n = a->attr.raw.i[0];
    if (!flat_float(g)) return misfit(a, "grad_stats", "the gradient block");
    if (!holds(&a->in[1], n, sizeof(lksi_segment))) return misfit(a, "grad_stats", "the segment table");
    if (!holds(&a->in[2], n, sizeof(int32_t))) return misfit(a, "grad_stats", "presence");
    if (!optional(&a->in[3], sizeof(lksi_scaler_state))) return misfit(a, "grad_stats", "the scaler");
    if (!optional(&a->in[4], sizeof(double))) return misfit(a, "grad_stats", "the weight");
    if (!holds(&a->out[0], a->attr.raw.i[2] + chunks(g->shape[0]), sizeof(lksi_part)))
        return misfit(a, "grad_stats", "the block of parts");
    if (!like(&a->out[1], g->dtype, g->shape[0])) return misfit(a, "grad_stats", "the block to write");
    return LKS_OK;
}

lks_status lksi_infer_step_begin(lksi_args *a)
{
    int64_t n = a->attr.raw.i[0], parts = a->attr.raw.i[1];
    if (!holds(&a->in[0], parts, sizeof(lksi_part))) return misfit(a, "step_begin", "the block of parts");
    if (!holds(&a->in[1], n, sizeof(lksi_segment))) return misfit(a, "step_begin", "the segment table");
    if (!holds(&a->in[2], n, sizeof(int32_t))) return misfit(a, "step_begin", "presence");
    if (!optional(&a->in[3], sizeof(lksi_scaler_state))) return misfit(a, "step_begin", "the scaler");
    if (!optional(&a->in[4], sizeof(double))) return misfit(a, "step_begin", "the weight");
    if (!optional(&a->in[5], sizeof(int32_t))) return misfit(a, "step_begin", "the flag before the reduction");
    if (!holds(&a->out[0], 1, sizeof(lksi_step))) return misfit(a, "step_begin", "the step state");
    if (!holds(&a->out[1], LKSI_VEC_PRESENT + n, sizeof(int32_t))) return misfit(a, "step_begin", "the vector");
    return LKS_OK;
}

lks_status lksi_infer_step_decide(lksi_args *a)
{
    int64_t n = a->attr.raw.i[0], groups = a->attr.raw.i[1];
    if (!holds(&a->in[0], LKSI_VEC_PRESENT + n, sizeof(int32_t))) return misfit(a, "step_decide", "the vector");
    if (!holds(&a->in[1], 1, sizeof(lksi_settings))) return misfit(a, "step_decide", "the settings");
    if (!holds(&a->in[2], groups, sizeof(lksi_group))) return misfit(a, "step_decide", "the group table");
    if (!holds(&a->in[3], n, sizeof(lksi_segment))) return misfit(a, "step_decide", "the segment table");
    if (!holds(&a->in[4], n, sizeof(int32_t))) return misfit(a, "step_decide", "presence");
    if (!optional(&a->in[5], sizeof(double))) return misfit(a, "step_decide", "the weight");
    if (!optional(&a->in[6], sizeof(double))) return misfit(a, "step_decide", "the schedule's table");
    if (!holds(&a->out[0], 1, sizeof(lksi_step))) return misfit(a, "step_decide", "the step state");
    if (!holds(&a->out[1], n, sizeof(lksi_segment_step))) return misfit(a, "step_decide", "the state of segments");
    if (!optional(&a->out[2], sizeof(lksi_scaler_state))) return misfit(a, "step_decide", "the scaler");
    if (!optional(&a->out[3], sizeof(lksi_rng))) return misfit(a, "step_decide", "the random state");
    return LKS_OK;
}

/* needed: how many of the three state blocks must be given. */
static lks_status update(lksi_args *a, const char *row, int needed)
{
    const lksi_view *g = &a->in[0], *value = &a->out[0];
    int64_t n = a->attr.raw.i[0];
    if (!flat_float(g)) return misfit(a, row, "the gradient block");
    int64_t count = g->shape[0];
    lks_dtype state = g->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    int reduced = g->dtype == LKS_F16 || g->dtype == LKS_BF16;
    if (!holds(&a->in[1], n, sizeof(lksi_segment))) return misfit(a, row, "the segment table");
    if (!holds(&a->in[2], n, sizeof(lksi_segment_step))) return misfit(a, row, "the state of segments");
    if (!holds(&a->in[3], 1, sizeof(lksi_step))) return misfit(a, row, "the step state");
    if (absent(value) || !like(value, g->dtype, count)) return misfit(a, row, "the value block");
    for (int i = 0; i < 3; i++)
        if (!like(&a->out[1 + i], state, count) || (i < needed && absent(&a->out[1 + i])))
            return misfit(a, row, "a state block");
    const lksi_view *master = &a->out[4];
    if (!like(master, LKS_F32, count) || absent(master) == reduced) return misfit(a, row, "the master block");
    if (!like(master + 1, LKS_BF16, count) || !like(master + 2, LKS_F16, count)) return misfit(a, row, "a twin");
    return LKS_OK;
}

lks_status lksi_infer_sgd_step(lksi_args *a)
{
    return update(a, "sgd_step", 0);
}

lks_status lksi_infer_adam_step(lksi_args *a)
{
    return update(a, "adam_step", 2);
}

lks_status lksi_infer_rmsprop_step(lksi_args *a)
{
    return update(a, "rmsprop_step", 1);
}

lks_status lksi_infer_adagrad_step(lksi_args *a)
{
    return update(a, "adagrad_step", 1);
}

lks_status lksi_infer_trust_stats(lksi_args *a)
{
    const lksi_view *g = &a->in[0];
    int64_t n = a->attr.raw.i[0];
    if (!flat_float(g)) return misfit(a, "trust_stats", "the gradient block");
    lks_dtype state = g->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    if (!holds(&a->in[1], n, sizeof(lksi_segment))) return misfit(a, "trust_stats", "the segment table");
    if (!holds(&a->in[2], n, sizeof(lksi_segment_step))) return misfit(a, "trust_stats", "the state of segments");
    if (!holds(&a->in[3], 1, sizeof(lksi_step))) return misfit(a, "trust_stats", "the step state");
    if (absent(&a->in[4])) return misfit(a, "trust_stats", "the value block");
    for (int i = 4; i < 8; i++)
        if (!like(&a->in[i], state, g->shape[0])) return misfit(a, "trust_stats", "a state block");
    if (!holds(&a->out[0], a->attr.raw.i[2] + chunks(g->shape[0]) + n, sizeof(lksi_piece)))
        return misfit(a, "trust_stats", "the block of pieces");
    return LKS_OK;
}

lks_status lksi_infer_trust_decide(lksi_args *a)
{
    int64_t n = a->attr.raw.i[0];
    if (!holds(&a->in[0], a->attr.raw.i[2] + n, sizeof(lksi_piece)))
        return misfit(a, "trust_decide", "the block of pieces");
    if (!holds(&a->in[1], n, sizeof(lksi_segment))) return misfit(a, "trust_decide", "the segment table");
    if (!holds(&a->in[2], 1, sizeof(lksi_step))) return misfit(a, "trust_decide", "the step state");
    return holds(&a->out[0], n, sizeof(lksi_segment_step)) ? LKS_OK
                                                           : misfit(a, "trust_decide", "the state of segments");
}

lks_status lksi_infer_ema_step(lksi_args *a)
{
    const lksi_view *value = &a->in[1];
    if (!holds(&a->in[0], 1, sizeof(lksi_step))) return misfit(a, "ema_step", "the step state");
    if (!flat_float(value) || absent(&a->out[0]) || !like(&a->out[0], value->dtype, value->shape[0]))
        return misfit(a, "ema_step", "a block");
    return LKS_OK;
}

lks_status lksi_infer_buffers_commit(lksi_args *a)
{
    const lksi_view *running = &a->out[0], *staged = &a->out[1];
    if (!holds(&a->in[0], 1, sizeof(lksi_step))) return misfit(a, "buffers_commit", "the step state");
    if (absent(running) || absent(staged) || running->ndim != 1 || !like(running, LKS_F32, running->shape[0]) ||
        !like(staged, LKS_F32, running->shape[0]))
        return misfit(a, "buffers_commit", "a buffer block");
    return LKS_OK;
}

lks_status lksi_infer_scaler_update(lksi_args *a)
{
    return holds(&a->out[0], 1, sizeof(lksi_scaler_state)) ? LKS_OK : misfit(a, "scaler_update", "the state");
}
