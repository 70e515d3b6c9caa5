/* SPDX-License-Identifier: BSD-3-Clause
 *
 * graph.c - lks_graph: a step that is captured once and launched again without its calls. Here is decided whether it
 * may be; what a step asks of the device is followed in device (lksi_trace), its memory kept apart in the pool
 * (lksi_heap), what it moves on the host listed by the rooms (lksi_moves), its reductions told to other ranks in comm.
 *
 * Twice the step is only watched, then watched and captured. It is kept if the last two times it asked for the same,
 * and if it left the host's facts as it found them. Before each replay facts and places must again be those of the
 * capture; so whatever another call has changed, the step is made by its calls.
 */
#include "ctx/graph.h"

#include "autocast/autocast.h"
#include "comm/comm.h"

#include <stdio.h>

enum { EAGER, WATCH, CAPTURE, REPLAY }; /* ranks take the least */

struct lks_graph {
    lks_graph *next;
    lks_context *ctx;
    lksi_heap *heap;
    lksi_heads *heads;
    void *kept;         /* the backend's; NULL: none */
    int64_t key, other; /* other: of the last call that was not for key, */
    int others;         /* so many times in a row */
    int watched;        /* times that it was; hash is that of the last */
    uint64_t hash;
    lksi_moves before;  /* facts, places and numbers when the step began */
    lksi_moves moves;   /* when it ended, then by how much the numbers differ */
    int64_t drops, high;
    int64_t count[4];
    char why[256];
};

static const char name[] = "lks_graph_step";

/* --- what is on the host --- */

static void walk(lks_context *ctx, lksi_moves *m, int what)
{
    m->base = &ctx->base;
    m->what = what;
    m->facts = m->places = 1;
    m->n = m->failed = 0;
    m->once = NULL;
    lksi_fact(m, ctx->no_grad);
    lksi_fact(m, ctx->anomaly);
    lksi_fact(m, ctx->staged_off);
    lksi_fact(m, ctx->seed);
    lksi_fact(m, ctx->base.code);
    lksi_fact_at(m, ctx->recompute);
    if (ctx->observer) m->once = "an observer wants to see its ops (lks_observe)";
    lksi_counter(m, &ctx->attempt);
    lksi_counter(m, &ctx->scales);
    lksi_place(m, &ctx->call);
    lksi_place(m, &ctx->row_first);
    lksi_place(m, &ctx->row_count);
    lksi_autocast_list(ctx, m);
    for (lksi_mover *v = ctx->movers; v; v = v->next) {
        lksi_fact_at(m, v->self);
        v->list(v->self, m);
    }
}

static lks_status all(lks_context *ctx, int after)
{
    lks_status first = LKS_OK;
    for (lksi_mover *v = ctx->movers; v; v = v->next) {
        lks_status (*fn)(void *self) = after ? v->after : v->before;
        lks_status s = fn ? fn(v->self) : LKS_OK;
        if (first == LKS_OK) first = s;
    }
    return first;
}

/* --- life --- */

lks_status lks_graph_create(lks_context *ctx, lks_graph **out)
{
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    const lksi_backend *be = ctx->dev->be;
    if (!be->graph_keep)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, "lks_graph_create", "device %s has no graphs", be->name);
    lks_graph *g = lksi_alloc(&ctx->base, sizeof *g);
    if (!g) return LKS_ERR_MEMORY;
    g->ctx = ctx;
    g->heads = lksi_heads_new(&ctx->base);
    if (!g->heads) {
        lksi_free(&ctx->base, g);
        return LKS_ERR_MEMORY;
    }
    snprintf(g->why, sizeof g->why, "it was not made yet");
    g->next = ctx->graphs;
    ctx->graphs = g;
    *out = g;
    return LKS_OK;
}

static void drop(lks_graph *g)
{
    lksi_device *d = g->ctx->dev;
    if (g->kept) d->be->graph_drop(d->self, g->kept);
    g->kept = NULL;
}

void lks_graph_destroy(lks_graph **pg)
{
    if (!pg || !*pg) return;
    lks_graph *g = *pg;
    lks_context *ctx = g->ctx;
    *pg = NULL;
    for (lks_graph **at = &ctx->graphs; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    drop(g);
    lksi_heap_free(ctx->dev, g->heap);
    lksi_heads_free(&ctx->base, g->heads);
    lksi_free(&ctx->base, g->before.value);
    lksi_free(&ctx->base, g->moves.value);
    lksi_free(&ctx->base, g);
}

void lksi_graphs_close(lks_context *ctx)
{
    while (ctx->graphs) {
        lks_graph *g = ctx->graphs;
        lks_graph_destroy(&g);
    }
}

void lks_graph_counts(const lks_graph *g, int64_t *eager, int64_t *captured, int64_t *replayed)
{
    if (eager) *eager = g ? g->count[EAGER] + g->count[WATCH] : 0;
    if (captured) *captured = g ? g->count[CAPTURE] : 0;
    if (replayed) *replayed = g ? g->count[REPLAY] : 0;
}

const char *lks_graph_why(const lks_graph *g) { return g ? g->why : ""; }

/* --- the step --- */

static lks_status failed(lks_context *ctx, lks_status code)
{
    const char *text = ctx->dev->be->failure(ctx->dev->self);
    if (code == LKS_OK) return code;
    return lksi_fail(&ctx->base, code, name, "%s", text && *text ? text : lks_status_text(code));
}

/* Why what is on the host does not allow a replay; NULL: it does. */
static const char *changed(const lks_graph *g, const lksi_moves *now)
{
    if (now->once) return now->once;
    if (lksi_heap_lost(g->heap)) return "its memory was needed for something else";
    if (g->ctx->dev->drops != g->drops) return "something that it uses was freed";
    if (now->places != g->before.places) return "random numbers begin at another place (lks_random_rows)";
    if (now->facts != g->before.facts || now->n != g->before.n)
        return "something that it uses was changed: precision, gradients, what is trained, an optimizer or a scaler";
    return NULL;
}

static int choose(lks_graph *g, int64_t key)
{
    if (g->watched && key != g->key) {
        g->others = g->others && g->other == key ? g->others + 1 : 1;
        g->other = key;
        if (g->others < 2) return EAGER;
        drop(g); /* this is the step from now on */
        g->watched = 0;
    }
    g->others = 0;
    g->key = key;
    if (g->watched < 2) return WATCH; /* the first time is like no other: libraries, copies of weights */
    if (!g->kept) return CAPTURE;
    lksi_moves now = {0};
    walk(g->ctx, &now, LKSI_COMPARE);
    const char *why = changed(g, &now);
    if (why) snprintf(g->why, sizeof g->why, "%s", why);
    return why ? CAPTURE : REPLAY;
}

/* Why the step just captured cannot be kept; NULL: it can. */
static const char *unlike(const lks_graph *g, const lksi_trace *t)
{
    const lksi_moves *a = &g->before, *b = &g->moves;
    if (t->once) return t->once;
    if (a->once || b->once) return a->once ? a->once : b->once;
    if (a->failed || b->failed || lksi_heads_failed(g->heads)) return "host memory is short";
    if (t->hash != g->hash) return "it asked the device for something else than the time before";
    if (a->facts != b->facts || a->n != b->n)
        return "it left things in another state than it found them (lks_params_zero_grad and lks_scaler_update belong "
               "into it)";
    if (g->ctx->dev->drops != t->drops) return "something that it used from before was freed in it";
    return NULL;
}

/* Makes the step by its calls. */
static lks_status make(lks_graph *g, int capture, lks_step_fn step, void *user)
{
    lks_context *ctx = g->ctx;
    lksi_device *d = ctx->dev;
    lksi_trace t;
    lks_status code = LKS_OK, ended = LKS_OK;
    drop(g);
    if (g->heap && lksi_heap_lost(g->heap)) {
        lksi_heap_free(d, g->heap);
        g->heap = NULL;
    }
    if (!g->heap) code = lksi_heap_new(d, &g->heap);
    walk(ctx, &g->before, LKSI_LOOK);
    lksi_heads_clear(g->heads);
    int traced = code == LKS_OK && (code = lksi_trace_begin(d, &t, g->heap)) == LKS_OK;
    if (traced && capture) {
        code = failed(ctx, d->be->graph_begin(d->self));
        t.capturing = code == LKS_OK;
        ctx->comm->record = g->heads;
    }
    lks_status made = lksi_said(&ctx->base, step(user), name, "the function of the step"); /* others wait for it */
    if (code == LKS_OK) code = made;
    ctx->comm->record = NULL;
    walk(ctx, &g->moves, LKSI_LOOK);
    const char *why = !traced || code != LKS_OK ? "it failed" : capture ? unlike(g, &t) : "it was made twice only";
    if (capture) {
        int64_t good = why == NULL;
        if (lksi_host_reduce(ctx->comm, name, &good, 1, LKS_I64, LKS_MIN) != LKS_OK) good = 0;
        if (!good && !why) why = "another rank did not make it as the time before";
        ended = failed(ctx, good ? d->be->graph_keep(d->self, &g->kept) : d->be->graph_end(d->self));
        if (good && !g->kept) why = "it waits for work from before it, or memory was given back in it";
    }
    g->watched = traced && code == LKS_OK ? g->watched + 1 : 0;
    if (traced) {
        lksi_trace_end(d);
        g->hash = t.hash;
        g->high = t.high;
    }
    g->drops = d->drops;
    for (int64_t i = 0; g->kept && i < g->moves.n; i++) g->moves.value[i] -= g->before.value[i];
    if (why) snprintf(g->why, sizeof g->why, "%s", why);
    lks_status after = all(ctx, 1);
    return code != LKS_OK ? code : ended != LKS_OK ? ended : after;
}

static lks_status again(lks_graph *g)
{
    lks_context *ctx = g->ctx;
    lksi_device *d = ctx->dev;
    TRY(lksi_comm_again(ctx->comm, g->heads));
    lks_status code = failed(ctx, d->be->graph_again(d->self, g->kept));
    lks_status told = lksi_comm_launched(ctx->comm, g->heads);
    if (d->peak < d->used + g->high) d->peak = d->used + g->high;
    walk(ctx, &g->moves, LKSI_MOVE);
    ctx->comm->step = ctx->attempt;
    lks_status after = all(ctx, 1);
    lksi_comm_poll(ctx->comm);
    return code != LKS_OK ? code : told != LKS_OK ? told : after;
}

lks_status lks_graph_step(lks_graph *g, int64_t key, lks_step_fn step, void *user)
{
    if (!step) return LKS_ERR_ARGUMENT;
    if (!g) return step(user);
    lks_context *ctx = g->ctx;
    if (ctx->dev->trace) return lksi_fail(&ctx->base, LKS_ERR_STATE, name, "it is called inside the step of a graph");
    lks_status sent = all(ctx, 0);
    int64_t what = choose(g, key);
    TRY(lksi_host_reduce(ctx->comm, name, &what, 1, LKS_I64, LKS_MIN));
    g->count[what]++;
    if (what == REPLAY) return again(g);
    lks_status code = what == EAGER ? lksi_said(&ctx->base, step(user), name, "the function of the step")
                                    : make(g, what == CAPTURE, step, user);
    return sent != LKS_OK ? sent : code;
}
