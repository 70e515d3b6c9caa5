/* SPDX-License-Identifier: BSD-3-Clause
 *
 * recompute.c - activation checkpointing: the nodes of a function stay in the graph, with the edges and numbers of any
 * other, but keep no tensors. When backward comes to the first of them the function runs once more, in the precision
 * and with the random numbers of its first run, and what its ops would have saved is handed to the nodes there are. So
 * hooks, the order of additions and higher orders are those of the plain graph, bit for bit.
 */
#include "autocast/autocast.h"
#include "grad/grad.h"

#include <lockstep/context.h>

typedef struct again {
    lksi_recompute rc; /* first */
    lks_recompute_fn fn;
    void *user;
    int nin, nout;
    lks_tensor **in; /* shares */
    int64_t *version;
    lksi_autocast_state autocast;
    int64_t seed, attempt, call, row_first, row_count;
} again;

static void destroy(lksi_recompute *rc)
{
    again *a = (again *)rc;
    lksi_base *b = &rc->ctx->base;
    for (int i = 0; i < a->nin; i++) lks_release(a->in[i]);
    lksi_free(b, a->in);
    lksi_free(b, a->version);
    lksi_free(b, rc->node);
    lksi_free(b, a);
}

static void place_random(lks_context *ctx, const again *a)
{
    ctx->seed = a->seed;
    ctx->attempt = a->attempt;
    ctx->call = a->call;
    ctx->row_first = a->row_first;
    ctx->row_count = a->row_count;
}

static void read_random(const lks_context *ctx, again *a)
{
    a->seed = ctx->seed;
    a->attempt = ctx->attempt;
    a->call = ctx->call;
    a->row_first = ctx->row_first;
    a->row_count = ctx->row_count;
}

/* The device's copy, if it is of another step. */
static lks_status device_random(lks_context *ctx, const again *a, const again *b)
{
    lksi_rng rng = {a->seed, a->attempt};
    if (a->seed == b->seed && a->attempt == b->attempt) return LKS_OK;
    return lksi_device_write(ctx->dev, ctx->rng, &rng, sizeof rng);
}

static lks_status run(again *a)
{
    lks_context *ctx = a->rc.ctx;
    lks_tensor *few[16] = {NULL}, **out = few;
    if (a->nout > 16 && !(out = lksi_alloc(&ctx->base, a->nout * (int64_t)sizeof *out))) return LKS_ERR_MEMORY;
    lks_status s = lks_scope_begin(ctx);
    if (s == LKS_OK) {
        s = lksi_said(&ctx->base, a->fn(a->user, a->nin, a->in, a->nout, out), "lks_recompute", "the function");
        if (s == LKS_OK && lksi_any_null(a->nout, out)) s = ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
        lks_scope_end(ctx);
    }
    if (out != few) lksi_free(&ctx->base, out);
    return s;
}

static lks_status refill(lksi_recompute *rc)
{
    again *a = (again *)rc, now = {0};
    lks_context *ctx = rc->ctx;
    int no_grad = ctx->no_grad;
    lksi_recompute *outer = ctx->recompute;
    const char *visiting = ctx->visiting;
    lksi_autocast_replay replay;
    for (int i = 0; i < a->nin; i++)
        if (a->in[i] != lks_none && a->in[i]->st->version != a->version[i]) {
            char text[256];
            return lksi_fail(&ctx->base, LKS_ERR_MODIFIED, "lks_recompute",
                             "input %d, %s, was changed in place since the first run of the function", i,
                             lksi_tensor_text(a->in[i], text, sizeof text));
        }
    read_random(ctx, &now);
    TRY(device_random(ctx, a, &now));
    rc->refs++; /* a failing run may drop the last node */
    lks_status s = lksi_autocast_enter(ctx, &a->autocast, &replay);
    if (s == LKS_OK) {
        place_random(ctx, a);
        ctx->no_grad = 0;
        ctx->staged_off++;
        ctx->recompute = rc;
        ctx->visiting = NULL;
        rc->at = 0;
        s = run(a);
        if (s == LKS_OK && rc->at != rc->count)
            s = lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_recompute",
                          "the second run of the function made %lld of the %lld ops of the first", (long long)rc->at,
                          (long long)rc->count);
        rc->at = -1;
        rc->filled = s == LKS_OK;
        ctx->visiting = visiting;
        ctx->recompute = outer;
        ctx->staged_off--;
        ctx->no_grad = no_grad;
        place_random(ctx, &now);
        lksi_autocast_leave(ctx, &replay);
    }
    lks_status back = device_random(ctx, &now, a);
    lksi_recompute_drop(rc);
    return s == LKS_OK ? back : s;
}

lks_status lks_recompute(lks_context *ctx, lks_recompute_fn fn, void *user, int nin, lks_tensor *const *in, int nout,
                         lks_tensor **out)
{
    if (!ctx || !fn || nin < 0 || nout < 0 || (nin && !in) || (nout && !out)) return LKS_ERR_ARGUMENT;
    for (int i = 0; i < nout; i++) out[i] = NULL;
    if (lksi_any_null(nin, in)) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
    if (ctx->no_grad || ctx->recompute)
        return lksi_said(&ctx->base, fn(user, nin, in, nout, out), "lks_recompute", "the function");
    again *a = lksi_alloc(&ctx->base, sizeof *a);
    lks_tensor **kept = a ? lksi_alloc(&ctx->base, (nin + 1) * (int64_t)sizeof *kept) : NULL;
    int64_t *version = kept ? lksi_alloc(&ctx->base, (nin + 1) * (int64_t)sizeof *version) : NULL;
    if (!version) {
        lksi_free(&ctx->base, kept);
        lksi_free(&ctx->base, a);
        return LKS_ERR_MEMORY;
    }
    a->rc = (lksi_recompute){.refs = 1, .ctx = ctx, .at = -1, .refill = refill, .destroy = destroy};
    a->fn = fn;
    a->user = user;
    a->nin = nin;
    a->nout = nout;
    a->in = kept;
    a->version = version;
    for (int i = 0; i < nin; i++) {
        kept[i] = lks_keep(in[i]);
        version[i] = in[i] == lks_none ? 0 : in[i]->st->version;
    }
    a->autocast = lksi_autocast_now(ctx);
    read_random(ctx, a);
    lksi_autocast_replay replay;
    lks_status s = lks_scope_begin(ctx);
    if (s == LKS_OK) {
        s = lksi_autocast_enter(ctx, &a->autocast, &replay);
        if (s == LKS_OK) { /* what fn leaves open is closed, as in the second run */
            ctx->recompute = &a->rc;
            s = lksi_said(&ctx->base, fn(user, nin, in, nout, out), "lks_recompute", "the function");
            ctx->recompute = NULL;
            ctx->no_grad = 0;
            lksi_autocast_leave(ctx, &replay);
        }
        if (s == LKS_OK && lksi_any_null(nout, out)) s = ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
        for (int i = 0; i < nout; i++) lks_keep(out[i]);
        lks_scope_end(ctx);
        for (int i = 0; i < nout; i++) { /* to the caller's scope */
            lks_tensor *t = out[i];
            if (s == LKS_OK && (s = lks_scope_begin(ctx)) == LKS_OK && !lks_scope_leave(ctx, t)) s = LKS_ERR_MEMORY;
            lks_release(t);
        }
    }
    if (s != LKS_OK)
        for (int i = 0; i < nout; i++) out[i] = NULL;
    lksi_recompute_drop(&a->rc);
    return s;
}
