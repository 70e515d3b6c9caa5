/* SPDX-License-Identifier: BSD-3-Clause
 *
 * control.c - lks_control: one small agreement a step, consumed some steps later.
 */
#include "comm/comm.h"
#include "tensor/tensor.h"

#define RING 8

struct lksi_control {
    int64_t calls;
    int64_t value[RING];
    lksi_request *rq[RING];
};

lks_status lks_control(lks_context *ctx, int64_t mine, int lag, int64_t *all)
{
    *all = 0;
    if (lag < 0 || lag >= RING)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_control", "lag is %d; 0 to %d are allowed", lag, RING - 1);
    if (!ctx->control && !(ctx->control = lksi_alloc(&ctx->base, sizeof *ctx->control))) return LKS_ERR_MEMORY;
    struct lksi_control *c = ctx->control;
    int now = (int)(c->calls % RING);
    /* A place of the ring whose value nobody took (the lag was smaller) is finished before it is used again. */
    if (c->rq[now]) TRY(lksi_host_reduce_finish(ctx->comm, &c->rq[now]));
    c->value[now] = mine;
    TRY(lksi_host_reduce_start(ctx->comm, "control", &c->value[now], 1, LKS_MAX, &c->rq[now]));
    if (c->calls++ < lag) return LKS_OK;
    int then = (int)((c->calls - 1 - lag) % RING);
    if (c->rq[then]) TRY(lksi_host_reduce_finish(ctx->comm, &c->rq[then]));
    *all = c->value[then];
    return LKS_OK;
}

void lksi_control_close(lks_context *ctx)
{
    struct lksi_control *c = ctx->control;
    if (!c) return;
    ctx->control = NULL;
    for (int i = 0; i < RING; i++)
        if (c->rq[i]) lksi_host_reduce_finish(ctx->comm, &c->rq[i]);
    lksi_free(&ctx->base, c);
}
