/* SPDX-License-Identifier: BSD-3-Clause
 *
 * collect.c - the public collectives on tensors and host memory.
 *
 * What all ranks must share (operation, dtype, count, root) is compared by the heads of the operation. A wrong argument
 * on one rank alone is that rank's error at once; the others find the next thing it calls, or its silence.
 */
#include "comm/comm.h"
#include "tensor/tensor.h"
#include <string.h>

/* A contiguous block holding t's elements: t's own memory, or a copy to be put back. */
static lks_status block_open(lks_tensor *t, int load, void **block)
{
    lks_context *ctx = t->ctx;
    if (lksi_is_contiguous(&t->v)) {
        *block = t->v.data;
        return LKS_OK;
    }
    TRY(lksi_device_alloc(ctx->dev, t->numel * lks_dtype_size(t->v.dtype), block));
    if (!load) return LKS_OK;
    lksi_view dense = t->v;
    lksi_contiguous_strides(&dense);
    dense.data = *block;
    lksi_args a = {.op = LKSI_OP_copy, .nin = 1, .nout = 1, .in = &t->v, .out = &dense, .rng = ctx->rng};
    char why[LKSI_WHY] = "";
    a.why = why;
    lks_status st = lksi_device_launch(ctx->dev, &a);
    if (st != LKS_OK) lksi_device_free(ctx->dev, *block);
    return st;
}

static lks_status block_close(lks_tensor *t, void *block, int store)
{
    lks_context *ctx = t->ctx;
    lks_status st = LKS_OK;
    if (block != t->v.data) {
        if (store) {
            lksi_view dense = t->v, to = t->v;
            lksi_contiguous_strides(&dense);
            dense.data = block;
            lksi_args a = {.op = LKSI_OP_copy, .nin = 1, .nout = 1, .in = &dense, .out = &to, .rng = ctx->rng};
            char why[LKSI_WHY] = "";
            a.why = why;
            st = lksi_device_launch(ctx->dev, &a);
        }
        lksi_device_free(ctx->dev, block);
    }
    if (store) t->st->version++;
    return st;
}

/* In-place results need every element to have its own place. */
static lks_status check_target(lks_tensor *t, const char *where)
{
    if (!t) return LKS_ERR_STATE;
    if (t == lks_none) return LKS_ERR_ARGUMENT;
    for (int d = 0; d < t->v.ndim; d++)
        if (t->v.shape[d] > 1 && t->v.stride[d] == 0)
            return lksi_fail(&t->ctx->base, LKS_ERR_ARGUMENT, where,
                             "dimension %d is expanded: its elements share memory, the result cannot be stored", d);
    return LKS_OK;
}

lks_status lks_all_reduce(lks_tensor *t, int op)
{
    TRY(check_target(t, "lks_all_reduce"));
    lksi_comm *c = t->ctx->comm;
    lksi_request *rq = NULL;
    void *block;
    TRY(block_open(t, 1, &block));
    c->careful++;
    lks_status st = lksi_comm_all_reduce(c, "lks_all_reduce", block, t->numel, t->v.dtype, op, &rq);
    c->careful--;
    if (st == LKS_OK) st = lksi_comm_wait(c, &rq);
    lks_status end = block_close(t, block, st == LKS_OK);
    return st != LKS_OK ? st : end;
}

lks_status lks_broadcast(lks_tensor *t, int root)
{
    TRY(check_target(t, "lks_broadcast"));
    lksi_comm *c = t->ctx->comm;
    lksi_request *rq = NULL;
    void *block;
    TRY(block_open(t, c->rank == root, &block));
    c->careful++;
    lks_status st = lksi_comm_broadcast(c, "lks_broadcast", block, t->numel * lks_dtype_size(t->v.dtype), root, &rq);
    c->careful--;
    if (st == LKS_OK) st = lksi_comm_wait(c, &rq);
    lks_status end = block_close(t, block, st == LKS_OK);
    return st != LKS_OK ? st : end;
}

typedef struct shape {
    int64_t dtype, ndim, size[LKS_MAX_DIMS];
} shape;

/* All ranks hold the same table, so all find the same fault. */
static lks_status check_shapes(lks_context *ctx, const shape *all, int n)
{
    char a[256], b[256];
    for (int s = 0; s < n; s++) {
        int fits = all[s].ndim == all[0].ndim && all[s].dtype == all[0].dtype && all[s].ndim > 0;
        for (int d = 1; fits && d < all[0].ndim; d++) fits = all[s].size[d] == all[0].size[d];
        if (fits) continue;
        lksi_view v = {.ndim = (int32_t)all[0].ndim}, w = {.ndim = (int32_t)all[s].ndim};
        memcpy(v.shape, all[0].size, sizeof v.shape);
        memcpy(w.shape, all[s].size, sizeof w.shape);
        if (all[s].ndim == 0)
            return lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_all_gather",
                             "rank %d has a 0-dim tensor: there is no dimension to join", s);
        return lksi_fail(&ctx->base, all[s].dtype != all[0].dtype ? LKS_ERR_DTYPE : LKS_ERR_SHAPE, "lks_all_gather",
                         "rank 0 has %s%s, rank %d %s%s: only dimension 0 may differ",
                         lks_dtype_name((int)all[0].dtype), lksi_shape_text(&v, a, sizeof a), s,
                         lks_dtype_name((int)all[s].dtype), lksi_shape_text(&w, b, sizeof b));
    }
    return LKS_OK;
}

static lks_tensor *gather_blocks(lks_tensor *t, const shape *all)
{
    lks_context *ctx = t->ctx;
    lksi_comm *c = ctx->comm;
    int n = c->size, even = 1;
    int64_t total = 0, most = 0, row = lks_dtype_size(t->v.dtype);
    for (int d = 1; d < t->v.ndim; d++) row *= t->v.shape[d];
    for (int s = 0; s < n; s++) {
        if (!lksi_add_fits(total, all[s].size[0], &total)) total = INT64_MAX;
        if (all[s].size[0] > most) most = all[s].size[0];
        even &= all[s].size[0] == all[0].size[0];
    }
    lksi_view v;
    int64_t size[LKS_MAX_DIMS], numel;
    memcpy(size, t->v.shape, sizeof size);
    size[0] = total;
    void *block = NULL, *in = NULL, *joined = NULL;
    lksi_request *rq = NULL;
    lks_tensor *y = NULL;
    /* What may fail on one rank alone comes first; then all agree. */
    lks_status st = lksi_check_shape(ctx, "lks_all_gather", t->v.dtype, t->v.ndim, size, &numel);
    if (st == LKS_OK) {
        lksi_view_init(&v, t->v.dtype, t->v.ndim, size);
        y = lksi_tensor_new(ctx, &v, "lks_all_gather");
        st = y ? LKS_OK : ctx->base.code;
    }
    if (st == LKS_OK) st = block_open(t, 1, &block);
    if (st == LKS_OK && !even) st = lksi_device_alloc(ctx->dev, most * row * (n + 1), &joined);
    if (st == LKS_OK && !even) {
        in = (char *)joined + (int64_t)n * most * row;
        st = lksi_device_copy(ctx->dev, in, block, t->v.shape[0] * row);
    }
    st = lksi_agree(c, "lks_all_gather", st);
    if (st == LKS_OK)
        st = lksi_comm_all_gather(c, "lks_all_gather", even ? block : in, even ? y->v.data : joined, most * row, &rq);
    if (st == LKS_OK) st = lksi_comm_wait(c, &rq);
    if (st == LKS_OK && !even) {
        int64_t at = 0;
        for (int s = 0; s < n && st == LKS_OK; s++) {
            int64_t bytes = all[s].size[0] * row;
            if (bytes) st = lksi_device_copy(ctx->dev, (char *)y->v.data + at, (char *)joined + s * most * row, bytes);
            at += bytes;
        }
    }
    if (block) (void)block_close(t, block, 0);
    if (joined) lksi_device_free(ctx->dev, joined);
    return st == LKS_OK ? y : NULL;
}

lks_tensor *lks_all_gather(lks_tensor *t)
{
    if (!t || t == lks_none) return NULL;
    lks_context *ctx = t->ctx;
    lksi_comm *c = ctx->comm;
    shape mine = {.dtype = t->v.dtype, .ndim = t->v.ndim};
    for (int d = 0; d < t->v.ndim; d++) mine.size[d] = t->v.shape[d];
    shape *all = lksi_alloc(&ctx->base, (int64_t)sizeof *all * c->size);
    lks_status st = lksi_agree(c, "lks_all_gather", all ? LKS_OK : LKS_ERR_MEMORY);
    if (st == LKS_OK) st = lksi_host_gather(c, "lks_all_gather", &mine, all, sizeof mine);
    if (st == LKS_OK) st = check_shapes(ctx, all, c->size);
    lks_tensor *y = st == LKS_OK ? gather_blocks(t, all) : NULL;
    lksi_free(&ctx->base, all);
    return y;
}

lks_status lks_barrier(lks_context *ctx)
{
    return lksi_host_barrier(ctx->comm, "lks_barrier");
}

static lks_status reduce(lks_context *ctx, const char *where, void *value, int n, lks_dtype dtype, int op)
{
    if (n < 0 || (n > 0 && !value))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%d values at %p", n, value);
    return lksi_host_reduce(ctx->comm, where, value, n, dtype, op);
}

lks_status lks_reduce_i64(lks_context *ctx, int64_t *value, int n, int op)
{
    return reduce(ctx, "lks_reduce_i64", value, n, LKS_I64, op);
}

lks_status lks_reduce_f64(lks_context *ctx, double *value, int n, int op)
{
    return reduce(ctx, "lks_reduce_f64", value, n, LKS_F64, op);
}

lks_status lks_broadcast_bytes(lks_context *ctx, void *data, int64_t bytes, int root)
{
    if (bytes < 0 || (bytes > 0 && !data))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_broadcast_bytes", "%lld bytes at %p", (long long)bytes,
                         data);
    return lksi_host_broadcast(ctx->comm, "lks_broadcast_bytes", data, bytes, root);
}

lks_status lks_agree(lks_context *ctx, lks_status mine)
{
    return lksi_agree(ctx->comm, "lks_agree", mine);
}

lks_status lks_rank_zero_call(lks_context *ctx, lks_rank_zero_fn fn, void *user)
{
    return lksi_rank_zero(ctx->comm, "lks_rank_zero_call", fn, user);
}
