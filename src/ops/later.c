/* SPDX-License-Identifier: BSD-3-Clause
 *
 * later.c - values that travel to the host while the device goes on: a ring of host doubles with an event each.
 */
#include "ops/ops.h"

#define RING 64

struct lksi_later {
    double *host; /* RING values, memory for fast copies */
    lksi_event *event[RING];
    int64_t next; /* next ticket */
};

static lks_status later_open(lks_context *ctx)
{
    const lksi_backend *be = ctx->dev->be;
    struct lksi_later *l = lksi_alloc(&ctx->base, sizeof *l);
    if (!l) return LKS_ERR_MEMORY;
    l->next = 1;
    ctx->later = l;
    void *p;
    TRY(be->host_alloc(ctx->dev->self, RING * (int64_t)sizeof(double), &p));
    l->host = p;
    for (int i = 0; i < RING; i++) TRY(be->event_create(ctx->dev->self, &l->event[i]));
    return LKS_OK;
}

void lksi_later_close(lks_context *ctx)
{
    struct lksi_later *l = ctx->later;
    if (!l) return;
    const lksi_backend *be = ctx->dev->be;
    lksi_device_synchronize(ctx->dev);
    for (int i = 0; i < RING; i++)
        if (l->event[i]) be->event_destroy(ctx->dev->self, l->event[i]);
    if (l->host) be->host_free(ctx->dev->self, l->host, RING * (int64_t)sizeof(double));
    lksi_free(&ctx->base, l);
    ctx->later = NULL;
}

int64_t lks_item_later(lks_tensor *t)
{
    if (!t) return LKS_ERR_ARGUMENT;
    lks_context *ctx = t->ctx;
    if (t->numel != 1)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_item_later", "the tensor has %lld elements, not 1",
                         (long long)t->numel);
    if (!ctx->later) {
        lks_status s = later_open(ctx);
        if (s != LKS_OK) {
            lksi_later_close(ctx);
            return s;
        }
    }
    struct lksi_later *l = ctx->later;
    lksi_trace_once(ctx->dev, "lks_item_later is called in it");
    int slot = (int)(l->next % RING);
    TRY(lks_scope_begin(ctx));
    ctx->no_grad++;
    lks_tensor *c = lks_to(t, LKS_F64);
    ctx->no_grad--;
    const lksi_backend *be = ctx->dev->be;
    lks_status s = c ? be->download(ctx->dev->self, LKSI_STREAM_COMPUTE, &l->host[slot], c->v.data, sizeof(double))
                     : ctx->base.code;
    if (s == LKS_OK) s = be->event_record(ctx->dev->self, l->event[slot], LKSI_STREAM_COMPUTE);
    lks_scope_end(ctx); /* the pool is ordered by the stream: c's memory is not reused before the copy */
    return s == LKS_OK ? l->next++ : s;
}

lks_status lks_item_take(lks_context *ctx, int64_t ticket, double *value)
{
    struct lksi_later *l = ctx->later;
    if (!l || ticket < 1 || ticket >= l->next || ticket < l->next - RING)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_item_take", "ticket %lld is not kept", (long long)ticket);
    TRY(lksi_device_event_wait(ctx->dev, l->event[ticket % RING]));
    *value = l->host[ticket % RING];
    return LKS_OK;
}
