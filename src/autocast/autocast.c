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

/* A function of the program. */
typedef struct user_op {
    char name[64];
    int8_t policy[2];
} user_op;

struct lksi_autocast {
    region *stack;
    int depth, room;
    int suspended;
    int table;
    int64_t casts, hits, cast_bytes;
    int64_t limit, cache_bytes, refused; /* of the cache, in bytes (0: none); in it; casts that did not fit */
    int8_t override[LKSI_OP_COUNT];      /* policy + 1, 0: the table's */
    user_op *user;
    int users;
    int last_policy; /* of the last decision, for the observer */
    const char *last_why;
    entry *cache; /* open addressing by source, a power of two; NULL until in use */
    int cached, slots;
};

struct lksi_autocast *lksi_autocast_create(lks_context *ctx)
{
    return lksi_alloc(&ctx->base, sizeof(struct lksi_autocast));
}

void lksi_autocast_list(lks_context *ctx, lksi_moves *m)
{
    struct lksi_autocast *ac = ctx->autocast;
    lksi_fact(m, ac->depth);
    lksi_fact(m, ac->suspended);
    lksi_fact(m, ac->table);
    lksi_fact(m, ac->limit);
    for (int i = 0; i < ac->depth; i++) {
        const region *r = &ac->stack[i];
        lksi_fact(m, r->dtype << 2 | r->enabled << 1 | r->cache);
    }
    for (int i = 0; i < LKSI_OP_COUNT; i++)
        if (ac->override[i]) lksi_fact(m, i << 8 | ac->override[i]);
    for (int i = 0; i < ac->users; i++) lksi_fact(m, ac->user[i].policy[0] << 8 | ac->user[i].policy[1]);
    if (ac->cached) m->once = "casts are kept in a region that was begun before it (lks_autocast_begin)";
    lksi_counter(m, &ac->casts);
    lksi_counter(m, &ac->hits);
    lksi_counter(m, &ac->cast_bytes);
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
    ac->cache_bytes = 0;
}

void lksi_autocast_destroy(lks_context *ctx)
{
    if (!ctx->autocast) return;
    cache_clear(ctx);
    lksi_free(&ctx->base, ctx->autocast->stack);
    lksi_free(&ctx->base, ctx->autocast->user);
    lksi_free(&ctx->base, ctx->autocast);
    ctx->autocast = NULL;
}

lks_status lks_autocast_begin(lks_context *ctx, lks_dtype dtype, int enabled, int cache)
{
    struct lksi_autocast *ac = ctx->autocast;
    if (dtype == LKS_DTYPE_NONE) dtype = LKS_BF16;
    if (dtype != LKS_BF16 && dtype != LKS_F16)
        return lksi_fail(&ctx->base, LKS_ERR_DTYPE, "lks_autocast_begin",
                         "a region's dtype is bfloat16 or float16, not %s", lks_dtype_name(dtype));
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
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_autocast_end",
                         "no region is open (lks_autocast_begin opens one)");
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

/* --- policies --- */

static const struct { const char *name; int8_t policy[2]; } known[] = {
#define POLICY(name, cuda, cpu) {#name, {LKS_POLICY_##cpu, LKS_POLICY_##cuda}},
#include "autocast/policies.def"
#undef POLICY
};

int lks_autocast_policy(const char *name, int table)
{
    if (!name || (table != LKS_TABLE_CPU && table != LKS_TABLE_CUDA)) return LKS_ERR_ARGUMENT;
    int i = lksi_row_named(name);
    if (i >= 0) return lksi_rows[i].policy[table];
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(known[k].name, name)) return known[k].policy[table];
    return LKS_ERR_NOT_FOUND;
}

static user_op *user_named(const lks_context *ctx, const char *name)
{
    struct lksi_autocast *ac = ctx->autocast;
    for (int i = 0; i < ac->users; i++)
        if (!strcmp(ac->user[i].name, name)) return &ac->user[i];
    return NULL;
}

int lksi_autocast_policy(const lks_context *ctx, int op)
{
    const struct lksi_autocast *ac = ctx->autocast;
    return ac->override[op] ? ac->override[op] - 1 : lksi_rows[op].policy[ac->table];
}

int lks_autocast_policy_in_force(const lks_context *ctx, const char *name)
{
    if (!ctx || !name) return LKS_ERR_ARGUMENT;
    const user_op *u = user_named(ctx, name);
    if (u) return u->policy[ctx->autocast->table];
    int op = lksi_row_named(name);
    return op >= 0 ? lksi_autocast_policy(ctx, op) : lks_autocast_policy(name, ctx->autocast->table);
}

static int is_policy(int p)
{
    return p >= LKS_POLICY_NONE && p <= LKS_POLICY_ERROR;
}

lks_status lks_autocast_set_policy(lks_context *ctx, const char *name, int policy)
{
    static const char where[] = "lks_autocast_set_policy";
    if (!ctx || !name) return LKS_ERR_ARGUMENT;
    if (!is_policy(policy) && policy != LKS_POLICY_DEFAULT)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "policy %d is not one of enum lks_policy", policy);
    int op = lksi_row_named(name);
    if (op < 0)
        return lksi_fail(&ctx->base, LKS_ERR_NOT_FOUND, where,
                         "there is no op \"%s\" (lks_autocast_register is for functions of the program)", name);
    if (lksi_rows[op].kind == LKSI_KIND_VIEW || lksi_rows[op].kind == LKSI_KIND_INPLACE)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, where, "%s is %s, which is never cast", name,
                         lksi_rows[op].kind == LKSI_KIND_VIEW ? "a view" : "an op in place");
    ctx->autocast->override[op] = (int8_t)(policy == LKS_POLICY_DEFAULT ? 0 : policy + 1);
    return LKS_OK;
}

lks_status lks_autocast_register(lks_context *ctx, const char *name, int cpu, int cuda)
{
    static const char where[] = "lks_autocast_register";
    if (!ctx || !name) return LKS_ERR_ARGUMENT;
    struct lksi_autocast *ac = ctx->autocast;
    if (!is_policy(cpu) || !is_policy(cuda))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "policy %d is not one of enum lks_policy",
                         is_policy(cpu) ? cuda : cpu);
    if (!name[0] || strlen(name) >= sizeof ac->user->name)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "a name has 1 to %d bytes",
                         (int)sizeof ac->user->name - 1);
    if (lksi_row_named(name) >= 0)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%s is an op of Lockstep (lks_autocast_set_policy)",
                         name);
    user_op *u = user_named(ctx, name);
    if (!u) {
        user_op *more = lksi_realloc(&ctx->base, ac->user, ac->users * (int64_t)sizeof *more,
                                     (ac->users + 1) * (int64_t)sizeof *more);
        if (!more) return LKS_ERR_MEMORY;
        ac->user = more;
        u = &more[ac->users++];
        *u = (user_op){{0}, {0}};
        memcpy(u->name, name, strlen(name) + 1);
    }
    u->policy[LKS_TABLE_CPU] = (int8_t)cpu;
    u->policy[LKS_TABLE_CUDA] = (int8_t)cuda;
    return LKS_OK;
}

lks_status lks_autocast_set_cache_limit(lks_context *ctx, int64_t bytes)
{
    if (!ctx) return LKS_ERR_ARGUMENT;
    if (bytes < 0)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_autocast_set_cache_limit",
                         "the limit is %lld bytes; it must be >= 0 (0: none)", (long long)bytes);
    ctx->autocast->limit = bytes;
    return LKS_OK;
}

lks_status lks_autocast_statistics(const lks_context *ctx, int64_t *casts, int64_t *bytes, int64_t *hits,
                                   int64_t *cached, int64_t *cached_bytes, int64_t *refused)
{
    if (!ctx) return LKS_ERR_ARGUMENT;
    const struct lksi_autocast *ac = ctx->autocast;
    if (casts) *casts = ac->casts;
    if (bytes) *bytes = ac->cast_bytes;
    if (hits) *hits = ac->hits;
    if (cached) *cached = ac->cached;
    if (cached_bytes) *cached_bytes = ac->cache_bytes;
    if (refused) *refused = ac->refused;
    return LKS_OK;
}

/* --- the decision --- */

int lksi_autocast_eligible(const lks_tensor *t, lks_dtype to)
{
    return t != lks_none && lks_dtype_is_float(t->v.dtype) && t->v.dtype != LKS_F64 && t->v.dtype != to;
}

/* Lists and optionals included; integers do not count; a float64 among them: nothing is cast. */
static lks_dtype widest_of(int nin, lks_tensor *const *in)
{
    lks_dtype widest = LKS_DTYPE_NONE;
    for (int i = 0; i < nin; i++) {
        if (in[i] == lks_none || !lks_dtype_is_float(in[i]->v.dtype)) continue;
        lks_dtype d = in[i]->v.dtype;
        if (d == LKS_F64) return LKS_DTYPE_NONE;
        widest = widest == LKS_DTYPE_NONE || widest == d ? d : LKS_F32;
    }
    return widest;
}

lks_status lksi_autocast_decide_user(lks_context *ctx, const char *name, int nin, lks_tensor *const *in, lks_dtype *to,
                                     int *has_policy)
{
    const region *r = top(ctx);
    const user_op *u = user_named(ctx, name);
    int policy = u ? u->policy[ctx->autocast->table] : LKS_POLICY_NONE;
    *to = LKS_DTYPE_NONE;
    *has_policy = policy != LKS_POLICY_NONE;
    if (!r || !r->enabled) return LKS_OK;
    if (policy == LKS_POLICY_LOWER) *to = r->dtype;
    if (policy == LKS_POLICY_FP32) *to = LKS_F32;
    if (policy == LKS_POLICY_PROMOTE) *to = widest_of(nin, in);
    if (policy == LKS_POLICY_ERROR)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, name,
                         "it is registered as refused inside an autocast region: open one with enabled = 0 for it");
    return LKS_OK;
}

void lksi_autocast_last(const lks_context *ctx, int *policy, const char **why)
{
    *policy = ctx->autocast->last_policy;
    *why = ctx->autocast->last_why;
}

lksi_autocast_state lksi_autocast_now(const lks_context *ctx)
{
    const region *r = top(ctx);
    lksi_autocast_state s = {.dtype = LKS_BF16};
    if (r) s = (lksi_autocast_state){r->enabled, r->cache, r->dtype};
    return s;
}

lks_status lksi_autocast_enter(lks_context *ctx, const lksi_autocast_state *s, lksi_autocast_replay *before)
{
    before->suspended = ctx->autocast->suspended;
    before->depth = ctx->autocast->depth;
    TRY(lks_autocast_begin(ctx, s->dtype, s->enabled, s->cache));
    ctx->autocast->suspended = 0;
    return LKS_OK;
}

void lksi_autocast_leave(lks_context *ctx, const lksi_autocast_replay *before)
{
    while (ctx->autocast->depth > before->depth) lks_autocast_end(ctx);
    ctx->autocast->suspended = before->suspended;
}

/* Rows that take reduced inputs and give float32 by themselves, told by attr: a copy would change nothing. sum and mean
 * take the result's dtype, unless the caller gave one; cross_entropy always does. */
static int widens(int op, int nin, lks_tensor *const *in, lksi_attr *attr)
{
    switch (op) {
    case LKSI_OP_cross_entropy:
    case LKSI_OP_cross_entropy_soft: return 1;
    case LKSI_OP_cumsum:
    case LKSI_OP_cumprod:
        if (attr->scan.dtype == LKS_DTYPE_NONE && lksi_autocast_eligible(in[0], LKS_F32)) attr->scan.dtype = LKS_F32;
        return 1;
    case LKSI_OP_sum:
    case LKSI_OP_mean:
    case LKSI_OP_prod:
        if (attr->reduce.dtype == LKS_DTYPE_NONE && lksi_autocast_eligible(in[0], LKS_F32))
            attr->reduce.dtype = LKS_F32;
        return 1;
    case LKSI_OP_nll_loss:
    case LKSI_OP_mse_loss:
    case LKSI_OP_l1_loss:
    case LKSI_OP_smooth_l1_loss:
    case LKSI_OP_huber_loss:
    case LKSI_OP_binary_cross_entropy:
    case LKSI_OP_binary_cross_entropy_with_logits:
    case LKSI_OP_kl_div:
    case LKSI_OP_poisson_nll_loss:
    case LKSI_OP_hinge_embedding_loss:
    case LKSI_OP_margin_ranking_loss:
    case LKSI_OP_soft_margin_loss:
    case LKSI_OP_multi_margin_loss:
    case LKSI_OP_multilabel_margin_loss:
    case LKSI_OP_ctc_loss:
        for (int i = 0; i < nin; i++) attr->loss.wide |= lksi_autocast_eligible(in[i], LKS_F32);
        return 1;
    }
    return 0;
}

lks_status lksi_autocast_decide(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lksi_attr *attr, lks_dtype *to)
{
    struct lksi_autocast *ac = ctx->autocast;
    *to = LKS_DTYPE_NONE;
    const region *r = top(ctx);
    ac->last_policy = LKS_POLICY_NONE;
    ac->last_why = ac->suspended ? "inside a backward pass or another op"
                   : r           ? "the region is not enabled"
                                 : "no region is open";
    if (!r || !r->enabled) return LKS_OK;
    ac->last_policy = lksi_autocast_policy(ctx, op);
    ac->last_why = ac->override[op]  ? "set by lks_autocast_set_policy"
                   : ac->last_policy ? (ac->table == LKS_TABLE_CUDA ? "the cuda table" : "the cpu table")
                                     : "not in the table: the dtype of its inputs";
    switch (ac->last_policy) {
    case LKS_POLICY_NONE: return LKS_OK;
    case LKS_POLICY_LOWER: *to = r->dtype; return LKS_OK;
    case LKS_POLICY_FP32:
        if (!widens(op, nin, in, attr)) *to = LKS_F32;
        return LKS_OK;
    case LKS_POLICY_PROMOTE: *to = widest_of(nin, in); return LKS_OK;
    default:
        if (strcmp(lksi_rows[op].name, "binary_cross_entropy"))
            return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, where,
                             "%s is refused inside an autocast region: open one with enabled = 0 for it",
                             lksi_rows[op].name);
        return lksi_fail(
            &ctx->base, LKS_ERR_UNSUPPORTED, where,
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
    int64_t bytes = c->numel * lks_dtype_size(c->v.dtype);
    if (ac->limit && ac->cache_bytes + bytes > ac->limit) {
        ac->refused++;
        return;
    }
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
    ac->cache_bytes += bytes - (old_cast ? old_cast->numel * lks_dtype_size(old_cast->v.dtype) : 0);
    if (!e->source) {
        e->source = lks_keep(t);
        ac->cached++;
    }
    e->cast = lks_keep(c);
    e->version = t->st->version;
    e->grad_mode = ctx->no_grad == 0;
    lks_release(old_cast);
}

void lksi_autocast_count(lks_context *ctx, int hit, int64_t bytes)
{
    if (hit) ctx->autocast->hits++;
    else ctx->autocast->casts++;
    ctx->autocast->cast_bytes += hit ? 0 : bytes;
}

void lksi_autocast_suspend(lks_context *ctx) { ctx->autocast->suspended++; }
void lksi_autocast_resume(lks_context *ctx) { ctx->autocast->suspended--; }
