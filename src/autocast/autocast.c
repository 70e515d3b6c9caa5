/* SPDX-License-Identifier: BSD-3-Clause
 *
 * autocast.c - regions, policies, the cast cache. Sealed parameters need no cache: their twin is permanent.
 */
#include "autocast/autocast.h"

#include <string.h>

#define OP_POLICY_AGREES(a, b) _Static_assert((int)(a) == (int)(b), "table.c lists policies in this order")
OP_POLICY_AGREES(LKS_POLICY_NONE, 0);
OP_POLICY_AGREES(LKS_POLICY_LOWER, 1);
OP_POLICY_AGREES(LKS_POLICY_FP32, 2);
OP_POLICY_AGREES(LKS_POLICY_PROMOTE, 3);
OP_POLICY_AGREES(LKS_POLICY_ERROR, 4);

typedef struct region {
    lks_dtype dtype;
    int enabled, cache;
} region;

/* A cast is valid for the very contents (storage version) and grad mode it was made in. */
typedef struct entry {
    lks_tensor *source, *cast; /* shares */
    int64_t version;
    int grad_mode;
} entry;

struct lksi_autocast {
    region *stack;
    int depth, room;
    int suspended;
    int table;
    int64_t casts, hits;
    entry *cache; /* open addressing by source, a power of two; NULL until in use */
    int cached, slots;
};

struct lksi_autocast *lksi_autocast_create(lks_context *ctx)
{
    return lksi_alloc(&ctx->base, sizeof(struct lksi_autocast));
}

static void cache_clear(lks_context *ctx)
{
    struct lksi_autocast *ac = ctx->autocast;
    for (int i = 0; i < ac->slots; i++) {
        lks_release(ac->cache[i].cast);
        lks_release(ac->cache[i].source);
    }
    lksi_free(&ctx->base, ac->cache);
    ac->cache = NULL;
    ac->cached = ac->slots = 0;
}

void lksi_autocast_destroy(lks_context *ctx)
{
    if (!ctx->autocast) return;
    cache_clear(ctx);
    lksi_free(&ctx->base, ctx->autocast->stack);
    lksi_free(&ctx->base, ctx->autocast);
    ctx->autocast = NULL;
}

lks_status lks_autocast_begin(lks_context *ctx, lks_dtype dtype, int enabled, int cache)
{
    struct lksi_autocast *ac = ctx->autocast;
    if (dtype == LKS_DTYPE_NONE) dtype = LKS_BF16;
    if (dtype != LKS_BF16 && dtype != LKS_F16)
        return lksi_fail(&ctx->base, LKS_ERR_DTYPE, "lks_autocast_begin", "a region's dtype is bfloat16 or float16, not %s",
                         lks_dtype_name(dtype));
    if (ac->depth == ac->room) {
        int room = ac->room ? 2 * ac->room : 8;
        region *p = lksi_realloc(&ctx->base, ac->stack, ac->room * (int64_t)sizeof *p, room * (int64_t)sizeof *p);
        if (!p) return LKS_ERR_MEMORY;
        ac->stack = p;
        ac->room = room;
    }
    ac->stack[ac->depth++] = (region){dtype, enabled != 0, cache != 0};
    return LKS_OK;
}

lks_status lks_autocast_end(lks_context *ctx)
{
    struct lksi_autocast *ac = ctx->autocast;
    if (!ac->depth)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_autocast_end", "no region is open (lks_autocast_begin opens one)");
    if (--ac->depth == 0) cache_clear(ctx);
    return LKS_OK;
}

static const region *top(const lks_context *ctx)
{
    const struct lksi_autocast *ac = ctx->autocast;
    return ac->depth && !ac->suspended ? &ac->stack[ac->depth - 1] : NULL;
}

int lks_autocast_enabled(const lks_context *ctx)
{
    const region *r = top(ctx);
    return r && r->enabled;
}

lks_dtype lks_autocast_dtype(const lks_context *ctx)
{
    const region *r = top(ctx);
    return r ? r->dtype : LKS_BF16;
}

int lks_autocast_depth(const lks_context *ctx) { return ctx->autocast->depth; }
int lks_autocast_table(const lks_context *ctx) { return ctx->autocast->table; }
int64_t lks_autocast_casts(const lks_context *ctx) { return ctx->autocast->casts; }
int64_t lks_autocast_hits(const lks_context *ctx) { return ctx->autocast->hits; }

lks_status lks_autocast_set_table(lks_context *ctx, int table)
{
    if (table != LKS_TABLE_CPU && table != LKS_TABLE_CUDA)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_autocast_set_table", "table %d does not exist", table);
    ctx->autocast->table = table;
    return LKS_OK;
}

int lks_autocast_policy(const char *name, int table)
{
    int i = lksi_row_named(name);
    if (i < 0) return LKS_ERR_NOT_FOUND;
    return table == LKS_TABLE_CPU || table == LKS_TABLE_CUDA ? lksi_rows[i].policy[table] : LKS_ERR_ARGUMENT;
}

int lksi_autocast_eligible(const lks_tensor *t, lks_dtype to)
{
    return t != lks_none && lks_dtype_is_float(t->v.dtype) && t->v.dtype != LKS_F64 && t->v.dtype != to;
}

lks_status lksi_autocast_decide(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lksi_attr *attr, lks_dtype *to)
{
    *to = LKS_DTYPE_NONE;
    const region *r = top(ctx);
    if (!r || !r->enabled) return LKS_OK;
    switch (lksi_rows[op].policy[ctx->autocast->table]) {
    case LKS_POLICY_NONE: return LKS_OK;
    case LKS_POLICY_LOWER: *to = r->dtype; return LKS_OK;
    case LKS_POLICY_FP32:
        /* cross_entropy computes and returns float32 from reduced logits: a copy would change nothing. sum and mean take
         * the result's dtype, unless the caller gave one. */
        if (op == LKSI_OP_cross_entropy) return LKS_OK;
        if (op == LKSI_OP_sum || op == LKSI_OP_mean) {
            if (attr->reduce.dtype == LKS_DTYPE_NONE && lksi_autocast_eligible(in[0], LKS_F32))
                attr->reduce.dtype = LKS_F32;
            return LKS_OK;
        }
        *to = LKS_F32;
        return LKS_OK;
    case LKS_POLICY_PROMOTE: {
        lks_dtype widest = LKS_DTYPE_NONE;
        for (int i = 0; i < nin; i++) {
            if (in[i] == lks_none || !lks_dtype_is_float(in[i]->v.dtype)) continue;
            lks_dtype d = in[i]->v.dtype;
            if (d == LKS_F64) return LKS_OK;
            widest = widest == LKS_DTYPE_NONE || widest == d ? d : LKS_F32;
        }
        *to = widest;
        return LKS_OK;
    }
    default:
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, where,
                         "%s is refused inside an autocast region: its gradient does not fit reduced precision; use %s_with_logits, "
                         "or open a region with enabled = 0",
                         lksi_rows[op].name, lksi_rows[op].name);
    }
}

/* --- the cache --- */

static unsigned hash(const lks_tensor *t, lks_dtype to)
{
    uint64_t h = ((uint64_t)(uintptr_t)t >> 4) * 0x9E3779B97F4A7C15u + (uint64_t)to * 0xD1B54A32D192ED03u;
    return (unsigned)(h >> 32);
}

static entry *slot_of(struct lksi_autocast *ac, const lks_tensor *t, lks_dtype to)
{
    unsigned mask = (unsigned)ac->slots - 1;
    for (unsigned i = hash(t, to) & mask;; i = (i + 1) & mask) {
        entry *e = &ac->cache[i];
        if (!e->source || (e->source == t && e->cast->v.dtype == to)) return e;
    }
}

lks_status lksi_autocast_find(lks_context *ctx, lks_tensor *t, lks_dtype to, lks_tensor **found, lks_tensor **fill)
{
    struct lksi_autocast *ac = ctx->autocast;
    const region *r = top(ctx);
    *found = *fill = NULL;
    lksi_arena *a = t->st->arena;
    if (a && a->dtype == LKS_F32 && to != LKS_F32 && t == a->slice[t->st->slice].value) {
        int w;
        TRY(lksi_arena_twin(a, to, &w));
        lksi_slice *s = &a->slice[t->st->slice];
        /* The twin is a leaf's cast: its gradient goes to the parameter. Set here, as freezing may change it. */
        lks_tensor *twin = s->twin[w];
        if (!twin->leaf && t->requires_grad) twin->leaf = lks_keep(t);
        twin->requires_grad = t->requires_grad;
        *(s->twin_version[w] == t->st->version ? found : fill) = twin;
        return LKS_OK;
    }
    if (!ac->cache || !r || !r->cache) return LKS_OK;
    if (!t->requires_grad) return LKS_OK; /* frozen since: a kept cast would still lead to it */
    entry *e = slot_of(ac, t, to);
    if (e->source && e->version == t->st->version && e->grad_mode == (ctx->no_grad == 0)) *found = e->cast;
    return LKS_OK;
}

void lksi_autocast_filled(lks_context *ctx, lks_tensor *t, lks_tensor *twin)
{
    (void)ctx;
    lksi_slice *s = &t->st->arena->slice[t->st->slice];
    s->twin_version[twin->v.dtype == LKS_F16] = t->st->version;
}

void lksi_autocast_remember(lks_context *ctx, lks_tensor *t, lks_tensor *c)
{
    struct lksi_autocast *ac = ctx->autocast;
    const region *r = top(ctx);
    if (!r || !r->cache || t->node || t->leaf || !t->requires_grad || t->is_view || t->v.dtype != LKS_F32) return;
    if (2 * (ac->cached + 1) > ac->slots) {
        int old = ac->slots;
        entry *before = ac->cache;
        int slots = old ? 2 * old : 64;
        lks_status before_code = ctx->base.code;
        entry *fresh = lksi_alloc(&ctx->base, slots * (int64_t)sizeof *fresh);
        if (!fresh) { /* not keeping a cast is no failure */
            if (before_code == LKS_OK) lks_error_clear(ctx);
            return;
        }
        ac->cache = fresh;
        ac->slots = slots;
        for (int i = 0; i < old; i++)
            if (before[i].source) *slot_of(ac, before[i].source, before[i].cast->v.dtype) = before[i];
        lksi_free(&ctx->base, before);
    }
    entry *e = slot_of(ac, t, c->v.dtype);
    lks_tensor *old_cast = e->cast;
    if (!e->source) {
        e->source = lks_keep(t);
        ac->cached++;
    }
    e->cast = lks_keep(c);
    e->version = t->st->version;
    e->grad_mode = ctx->no_grad == 0;
    lks_release(old_cast);
}

void lksi_autocast_count(lks_context *ctx, int hit)
{
    if (hit) ctx->autocast->hits++;
    else ctx->autocast->casts++;
}

void lksi_autocast_suspend(lks_context *ctx) { ctx->autocast->suspended++; }
void lksi_autocast_resume(lks_context *ctx) { ctx->autocast->suspended--; }
