/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c - the walk: nodes by falling number, each when all of its outputs' gradients are there. Order of additions
 * is the order of the walk, the same every time. Rules know the mathematics, this file does not.
 */
#include "autocast/autocast.h"
#include "grad/grad.h"

#include <string.h>

typedef struct walk {
    lks_context *ctx;
    const char *where;
    int64_t pass;
    int retain, create_graph;
    int64_t scale; /* tensor.grad_scale of what is delivered; BY_HAND is told at the leaves */
    int seeded;    /* the program gave the first gradient: what scaled that is not known */
    lks_tensor *visited, *low; /* gradient of the node being visited; the same in another dtype, or NULL */
    lksi_node **heap; /* nodes with gradients, highest number first */
    int64_t heap_count, heap_room;
    lksi_node **stack; /* discovery */
    int64_t stack_count, stack_room;
    lks_tensor **leaf; /* leaves met, shares */
    int64_t leaf_count, leaf_room;
    /* lks_gradients: what is asked for; lks_backward adds into .grad instead */
    int capturing, n;
    lks_tensor *const *inputs;
    lks_tensor **captured; /* shares */
} walk;

static lks_status grow(walk *w, void ***array, int64_t *room)
{
    int64_t more = *room ? 2 * *room : 64;
    void **q = lksi_realloc(&w->ctx->base, *array, *room * (int64_t)sizeof *q, more * (int64_t)sizeof *q);
    if (!q) return LKS_ERR_MEMORY;
    *array = q;
    *room = more;
    return LKS_OK;
}

static inline lks_status push(walk *w, void ***array, int64_t *count, int64_t *room, void *p)
{
    if (__builtin_expect(*count == *room, 0)) TRY(grow(w, array, room));
    (*array)[(*count)++] = p;
    return LKS_OK;
}

/* --- the heap --- */

static lks_status heap_push(walk *w, lksi_node *n)
{
    TRY(push(w, (void ***)&w->heap, &w->heap_count, &w->heap_room, n));
    n->own.refs++;
    int64_t i = w->heap_count - 1;
    while (i > 0 && w->heap[(i - 1) / 2]->number < n->number) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = n;
    return LKS_OK;
}

static lksi_node *heap_pop(walk *w)
{
    lksi_node *top = w->heap[0], *last = w->heap[--w->heap_count];
    int64_t i = 0;
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= w->heap_count) break;
        if (c + 1 < w->heap_count && w->heap[c + 1]->number > w->heap[c]->number) c++;
        if (w->heap[c]->number <= last->number) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    if (w->heap_count) w->heap[i] = last;
    return top;
}

/* --- discovery: how many contributions each leaf will get, so that hooks fire after the last --- */

static lks_status meet_leaf(walk *w, lks_tensor *leaf)
{
    if (leaf->pass != w->pass) {
        leaf->pass = w->pass;
        leaf->uses = 0;
        TRY(push(w, (void ***)&w->leaf, &w->leaf_count, &w->leaf_room, leaf));
        lks_keep(leaf);
    }
    leaf->uses++;
    return LKS_OK;
}

static lks_status discover(walk *w, lksi_node *root)
{
    root->pass = w->pass;
    TRY(push(w, (void ***)&w->stack, &w->stack_count, &w->stack_room, root));
    while (w->stack_count) {
        lksi_node *n = w->stack[--w->stack_count];
        if (n->freed)
            return lksi_fail(&w->ctx->base, LKS_ERR_MODIFIED, w->where,
                             "the graph of %s was freed by an earlier backward (pass retain = 1 there)",
                             lksi_node_name(n));
        for (int i = 0; i < n->nin; i++) {
            lksi_edge e = n->edge[i];
            if (e.leaf) TRY(meet_leaf(w, e.leaf));
            if (e.node && e.node->pass != w->pass) {
                e.node->pass = w->pass;
                TRY(push(w, (void ***)&w->stack, &w->stack_count, &w->stack_room, e.node));
            }
        }
    }
    return LKS_OK;
}

/* --- accumulation --- */

static int has_shape(const lks_tensor *t, int ndim, const int64_t *shape)
{
    return t->v.ndim == ndim && !memcmp(t->v.shape, shape, (size_t)ndim * sizeof *shape);
}

static lks_tensor *conform(const walk *w, lks_tensor *g, lks_dtype dtype, int ndim, const int64_t *shape)
{
    if (w->low && g == w->visited && w->low->v.dtype == dtype && has_shape(w->low, ndim, shape)) return w->low;
    if (g->v.dtype == dtype && has_shape(g, ndim, shape)) return g;
    return lks_to(lksi_sum_to(g, ndim, shape), dtype);
}

/* Nobody but its scope or node knows g, and each element has memory of its own: it may be added to in place once it is
 * handed on. */
static int unseen(const lks_tensor *g)
{
    for (int d = 0; d < g->v.ndim; d++)
        if (g->v.stride[d] == 0 && g->v.shape[d] > 1) return 0; /* an expanded view that outlived its base */
    return g->shares == 1 && g->st->refs == 1 && g->st->owned;
}

/* *sum += g where *sum is a share. own: *sum is nobody else's; fresh: g is handed to this place only. */
static lks_status add_in(walk *w, lks_tensor **sum, uint8_t *own, lks_tensor *g, int fresh)
{
    if (!*sum) {
        *own = fresh && unseen(g);
        *sum = lksi_keep(g);
        return LKS_OK;
    }
    if ((*own || unseen(*sum)) && !w->create_graph)
        return lksi_call(w->ctx, w->where, LKSI_OP_accumulate, 1, &g, NULL, 1, sum);
    lks_tensor *s = lks_add(*sum, g);
    if (!s) return w->ctx->base.code;
    lks_release(*sum);
    *sum = lks_keep(s);
    *own = 1;
    return LKS_OK;
}

static lks_status leaf_add(walk *w, lks_tensor *leaf, lks_tensor *g, int fresh)
{
    lks_context *ctx = w->ctx;
    if (g == leaf->grad_slot) { /* written in place by the rule */
        leaf->grad = lks_keep(g);
        return LKS_OK;
    }
    if (!leaf->grad) {
        if (leaf->grad_slot) {
            TRY(lksi_call(ctx, w->where, LKSI_OP_copy, 1, &g, NULL, 1, &leaf->grad_slot));
            leaf->grad = lks_keep(leaf->grad_slot);
            return LKS_OK;
        }
        /* Take g itself if nobody else can see its memory. */
        if (!fresh || !unseen(g) || !lksi_is_contiguous(&g->v)) g = lks_clone(g);
        if (!g) return ctx->base.code;
        leaf->grad = lks_keep(g);
        return LKS_OK;
    }
    lks_tensor *sum = leaf->grad;
    if (sum == leaf->grad_slot || (sum->shares == 1 && sum->st->refs == 1))
        return lksi_call(ctx, w->where, LKSI_OP_accumulate, 1, &g, NULL, 1, &sum);
    if (!(sum = lks_add(sum, g))) return ctx->base.code;
    lks_release(leaf->grad);
    leaf->grad = lks_keep(sum);
    return LKS_OK;
}

/* What the sum of gradients of scales a (there already) and b is. */
static int64_t joint_scale(int64_t a, int64_t b)
{
    if (a == b || a == LKSI_GRAD_BY_HAND) return b;
    if (b == LKSI_GRAD_BY_HAND) return a;
    return a == LKSI_GRAD_DIVIDED && b == LKSI_GRAD_PLAIN ? a : LKSI_GRAD_MIXED;
}

/* What leaves a node: a loss is scaled once, and its parts alike. */
static int64_t scale_behind(const lksi_node *n)
{
    if (!n->scale) return n->arrived;
    return n->arrived == LKSI_GRAD_PLAIN ? n->scale : LKSI_GRAD_MIXED;
}

/* What is delivered comes to others at n. */
static void joins(const walk *w, lksi_node *n)
{
    if (n->arrived != w->scale) n->arrived = LKSI_GRAD_MIXED;
}

static lks_status run_hooks(const walk *w, lks_tensor *leaf)
{
    leaf->uses = -1; /* done in this pass */
    if (!leaf->grad || !leaf->requires_grad) return LKS_OK;
    /* By rising id, looked up anew each time: a hook may remove itself or others. */
    for (int64_t last = 0;;) {
        lksi_hook *h = leaf->hooks;
        while (h && h->id <= last) h = h->next;
        if (!h || !leaf->grad) return LKS_OK;
        last = h->id;
        TRY(lksi_said(&w->ctx->base, h->fn(h->user, leaf, leaf->grad), w->where, "the hook of a leaf"));
    }
}

static lks_status capture(walk *w, lks_tensor *t, lks_tensor *g)
{
    for (int i = 0; i < w->n; i++)
        if (w->inputs[i] == t) {
            uint8_t own = 0;
            TRY(add_in(w, &w->captured[i], &own, g, 0));
        }
    return LKS_OK;
}

static lks_status deliver(walk *w, lksi_edge e, lks_tensor *g, int fresh)
{
    if (e.node) {
        const lksi_meta *m = &e.node->out[e.out];
        if (!(g = conform(w, g, m->dtype, m->ndim, m->shape))) return w->ctx->base.code;
        int first = 1;
        for (int i = 0; i < e.node->nout; i++) first &= !e.node->grad[i];
        lks_release(e.node->low);
        e.node->low = NULL;
        if (first) e.node->arrived = w->scale;
        else joins(w, e.node);
        TRY(add_in(w, &e.node->grad[e.out], &e.node->grad_own[e.out], g, fresh));
        lks_status s = first ? heap_push(w, e.node) : LKS_OK;
        if (s != LKS_OK) { /* out of the heap nobody would clear it, and the next pass would find it */
            lks_release(e.node->grad[e.out]);
            e.node->grad[e.out] = NULL;
        }
        return s;
    }
    lks_tensor *leaf = e.leaf;
    if (g != leaf->grad_slot && !(g = conform(w, g, leaf->v.dtype, leaf->v.ndim, leaf->v.shape)))
        return w->ctx->base.code;
    leaf->uses--;
    if (!leaf->requires_grad) return LKS_OK; /* frozen since the forward */
    if (w->capturing) return capture(w, leaf, g);
    int64_t scale = w->seeded && w->scale == LKSI_GRAD_PLAIN ? LKSI_GRAD_BY_HAND : w->scale;
    scale = joint_scale(lksi_grad_scale(leaf), scale);
    TRY(leaf_add(w, leaf, g, fresh));
    lksi_grad_set_scale(leaf, scale);
    return leaf->uses == 0 ? run_hooks(w, leaf) : LKS_OK;
}

/* --- what rules ask --- */

int lksi_back_needs(const lksi_back *b, int i)
{
    return i < b->node->nin && (b->node->edge[i].node || b->node->edge[i].leaf);
}

lks_tensor *lksi_back_in(const lksi_back *b, int i)
{
    if (i >= b->node->nin) return lks_none;
    lks_tensor *t = b->node->saved[i].t;
    return t ? t : lks_none;
}

lks_tensor *lksi_back_out(const lksi_back *b, int i)
{
    lks_tensor *t = b->node->saved[b->node->nin + i].t;
    int live = i == 0 || (b->node->op >= 0 && lksi_rows[b->node->op].save_out & LKSI_SAVE_LIVE);
    if (!b->create_graph || !t || !live || !lksi_has_gradient(t->v.dtype)) return t;
    /* Recorded backward: the saved output must lead back to this node. */
    lks_tensor *a = lksi_tensor_alias(t);
    if (!a) return NULL;
    a->requires_grad = 1;
    a->node = b->node;
    a->out = i;
    b->node->own.refs++;
    return a;
}

lksi_meta lksi_back_meta(const lksi_back *b, int i)
{
    lksi_edge e = b->node->edge[i];
    lksi_meta m = {0};
    if (e.node) return e.node->out[e.out];
    m.dtype = e.leaf->v.dtype;
    m.ndim = e.leaf->v.ndim;
    memcpy(m.shape, e.leaf->v.shape, sizeof m.shape);
    return m;
}

lks_tensor *lksi_back_slot(const lksi_back *b, int i)
{
    if (i >= b->node->nin) return NULL;
    lks_tensor *leaf = b->node->edge[i].leaf;
    if (!leaf || !b->slots || !leaf->grad_slot || leaf->grad) return NULL;
    for (int k = 0; k < b->node->nin; k++)
        if (k != i && b->node->edge[k].leaf == leaf) return NULL; /* W @ W: two contributions, one slot */
    return leaf->grad_slot;
}

lks_tensor *lksi_back_whole(const lksi_back *b, int i, int *fail)
{
    lksi_node *n = b->node->edge[i].node;
    int out = b->node->edge[i].out;
    *fail = 0;
    if (!n || b->create_graph) return NULL;
    if (n->grad[out]) joins(b->walk, n);
    if (n->grad[out] && (n->grad_own[out] || unseen(n->grad[out]))) return n->grad[out];
    lks_tensor *whole;
    int first = 1;
    for (int k = 0; k < n->nout; k++) first &= !n->grad[k];
    if (first || !n->grad[out]) return NULL; /* the walk must meet the node: give it a padded first part */
    whole = lks_clone(n->grad[out]);
    if (!whole) {
        *fail = 1;
        return NULL;
    }
    lks_release(n->grad[out]);
    n->grad[out] = lks_keep(whole);
    n->grad_own[out] = 1;
    return whole;
}

lks_tensor *lksi_back_there(const lksi_back *b, int i, lks_tensor **into)
{
    lksi_edge e = b->node->edge[i];
    *into = NULL;
    lks_tensor *there = e.node && !b->create_graph ? e.node->grad[e.out] : NULL;
    if (!there || !lksi_is_contiguous(&there->v)) return lks_none;
    if (e.node->grad_own[e.out] || unseen(there)) *into = there;
    return there;
}

/* Rows whose rule hands on what it gets: add. What it hands to an input of 16 bits will be cast. */
int lksi_back_low(const lksi_back *b, int i)
{
    const lksi_node *n = b->node->edge[i].node;
    if (!n || b->create_graph || n->op != LKSI_OP_add || n->out[0].dtype != LKS_F32) return 0;
    /* What lksi_back_there does not give is added later. */
    if (n->grad[0] && !lksi_is_contiguous(&n->grad[0]->v)) return 0;
    for (int k = 0; k < n->nin; k++) {
        const lksi_node *to = n->edge[k].node;
        const lksi_meta *m = to ? &to->out[n->edge[k].out] : NULL;
        if (m && (m->dtype == LKS_BF16 || m->dtype == LKS_F16) && m->ndim == n->out[0].ndim &&
            !memcmp(m->shape, n->out[0].shape, (size_t)m->ndim * sizeof *m->shape))
            return m->dtype + 1;
    }
    return 0;
}

lks_status lksi_back_joined(lksi_back *b, int i, lks_tensor *sum, lks_tensor *low)
{
    lksi_edge e = b->node->edge[i];
    lksi_node *n = e.node;
    if (!n || !n->grad[e.out]) {
        TRY(deliver(b->walk, e, sum, 1));
    } else {
        joins(b->walk, n);
        if (n->grad[e.out] != sum) {
            lks_release(n->grad[e.out]);
            n->grad[e.out] = lks_keep(sum);
            n->grad_own[e.out] = 1;
        }
    }
    if (!n) return LKS_OK;
    lks_release(n->low);
    n->low = low && e.out == 0 ? lks_keep(low) : NULL;
    return LKS_OK;
}

/* Input i as a view of a part: the nodes of the views, last first, the slice of the whole at the end. Their number; 0:
 * it is none. */
enum { CHAIN = 6 };
static int chain_of(const lksi_back *b, int i, const lksi_node *chain[CHAIN])
{
    const lksi_node *n = b->node->edge[i].node;
    for (int k = 0; n && k < CHAIN; k++) {
        chain[k] = n;
        if (n->op == LKSI_OP_slice) return n->attr.slice.step == 1 && n->edge[0].node ? k + 1 : 0;
        if (n->op != LKSI_OP_view && n->op != LKSI_OP_permute) return 0;
        n = n->edge[0].node;
    }
    return 0;
}

/* The same view of `whole`; 0: it cannot be had. */
static int follow(const lksi_node *const *chain, int length, const lksi_view *whole, lksi_view *v)
{
    char why[LKSI_WHY];
    *v = *whole;
    for (int k = length - 1; k >= 0; k--) {
        lksi_view out = *v;
        lksi_args a = {.op = chain[k]->op, .nin = 1, .nout = 1, .in = v, .out = &out, .why = why};
        a.attr = chain[k]->attr;
        if (lksi_rows[a.op].infer(&a) != LKS_OK) return 0;
        *v = out;
    }
    return 1;
}

enum { PARTS = 8 };
lks_tensor *lksi_back_parts(lksi_back *b, int n, lks_tensor **out)
{
    const lksi_node *chain[PARTS][CHAIN], *slice[PARTS];
    int length[PARTS];
    if (n < 1 || n > PARTS || b->create_graph || !b->slots) return lks_none;
    int64_t covered = 0;
    for (int i = 0; i < n; i++) {
        if (!(length[i] = chain_of(b, i, chain[i]))) return lks_none;
        slice[i] = chain[i][length[i] - 1];
        const lksi_edge *e = &slice[i]->edge[0], *e0 = &slice[0]->edge[0];
        if (e->node != e0->node || e->out != e0->out || slice[i]->attr.slice.dim != slice[0]->attr.slice.dim)
            return lks_none;
        for (int k = 0; k < i; k++)
            if (slice[i]->attr.slice.start < slice[k]->attr.slice.stop &&
                slice[k]->attr.slice.start < slice[i]->attr.slice.stop)
                return lks_none;
        covered += slice[i]->attr.slice.stop - slice[i]->attr.slice.start;
    }
    lksi_edge e = slice[0]->edge[0];
    const lksi_meta *m = &e.node->out[e.out];
    int dim = slice[0]->attr.slice.dim;
    if (e.node->grad[e.out] || dim < 0 || dim >= m->ndim || covered != m->shape[dim]) return lks_none;
    lksi_view v, part;
    lksi_view_init(&v, m->dtype, m->ndim, m->shape);
    v.data = NULL;
    for (int i = 0; i < n; i++)
        if (!follow(chain[i], length[i], &v, &part)) return lks_none;
    lks_tensor *whole = lksi_tensor_new(b->ctx, &v, lksi_rows[b->node->op].name);
    for (int i = 0; i < n && whole; i++) {
        follow(chain[i], length[i], &whole->v, &part);
        if (!(out[i] = lksi_tensor_on(whole->st, &part))) return NULL;
    }
    return whole;
}

lks_status lksi_back_parts_done(lksi_back *b, lks_tensor *whole)
{
    const lksi_node *chain[CHAIN];
    int length = chain_of(b, 0, chain);
    return deliver(b->walk, chain[length - 1]->edge[0], whole, 1);
}

/* --- the walk --- */

static lks_status visit(walk *w, lksi_node *n)
{
    lks_context *ctx = w->ctx;
    const char *name = lksi_node_name(n);
    if (n->freed)
        return lksi_fail(&ctx->base, LKS_ERR_MODIFIED, w->where, "the graph of %s was freed (pass retain = 1)", name);
    lksi_back_fn rule = n->op < 0 ? lksi_custom_back : lksi_back_rules[n->op];
    if (!rule)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, w->where, "%s is not differentiable%s", name,
                         lksi_rows[n->op].kind == LKSI_KIND_NOGRAD ? " twice" : "");
    if (n->recompute && !n->recompute->filled) TRY(n->recompute->refill(n->recompute));
    for (int i = 0; i < n->nin + n->nout; i++) {
        lksi_saved *s = &n->saved[i];
        if (s->t && s->t->st->version != s->version) {
            char text[256];
            return lksi_fail(
                &ctx->base, LKS_ERR_MODIFIED, w->where,
                "%s %d of %s, %s, was changed in place after it was saved for backward (version %lld, saved %lld)",
                i < n->nin ? "input" : "output", i < n->nin ? i : i - n->nin, name,
                lksi_tensor_text(s->t, text, sizeof text), (long long)s->t->st->version, (long long)s->version);
        }
    }
    lks_tensor *few[16], **grad = few;
    if (n->nin > 16 && !(grad = lksi_alloc(&ctx->base, n->nin * (int64_t)sizeof *grad))) return LKS_ERR_MEMORY;
    grad[0] = NULL;
    for (int i = 1; i < n->nin; i++) grad[i] = NULL;
    lks_status s = lks_scope_begin(ctx);
    w->scale = scale_behind(n);
    if (s == LKS_OK) {
        lksi_back b = {.ctx = ctx, .node = n, .attr = &n->attr, .g = n->grad[0], .grad = grad,
                       .walk = w, .create_graph = w->create_graph, .slots = !w->capturing};
        const char *before = ctx->visiting;
        ctx->visiting = name;
        w->visited = n->grad[0], w->low = n->low;
        s = rule(&b);
        for (int i = 0; i < n->nin && s == LKS_OK; i++) {
            if (!grad[i] || !lksi_back_needs(&b, i)) continue;
            int fresh = 1;
            for (int k = 0; k < n->nin && n->nin > 1; k++) fresh &= k == i || !grad[k] || grad[k]->st != grad[i]->st;
            s = deliver(w, n->edge[i], grad[i], fresh);
        }
        w->visited = w->low = NULL;
        ctx->visiting = before;
        lks_scope_end(ctx);
    }
    if (grad != few) lksi_free(&ctx->base, grad);
    return s;
}

/* Non-leaf inputs of lks_gradients: their gradient is complete when their node's turn comes. */
static lks_status capture_outputs(walk *w, lksi_node *n)
{
    for (int i = 0; i < w->n; i++) {
        lks_tensor *t = w->inputs[i];
        if (t->node == n && n->grad[t->out] && !w->captured[i]) w->captured[i] = lks_keep(n->grad[t->out]);
    }
    return LKS_OK;
}

static lks_status go(walk *w, lks_tensor *root, lks_tensor *seed)
{
    lksi_edge e = lksi_edge_of(root);
    if (e.node) TRY(discover(w, e.node));
    else TRY(meet_leaf(w, e.leaf));
    TRY(deliver(w, e, seed, 0));
    while (w->heap_count) {
        lksi_node *n = heap_pop(w);
        lks_status s = capture_outputs(w, n);
        if (s == LKS_OK) s = visit(w, n);
        for (int i = 0; i < n->nout; i++) {
            lksi_drop(n->grad[i]);
            n->grad[i] = NULL;
            n->grad_own[i] = 0;
        }
        lks_release(n->low);
        n->low = NULL;
        if (s == LKS_OK && !w->retain) lksi_node_free_saved(n);
        lksi_owned_drop(&n->own);
        TRY(s);
    }
    /* Leaves some of whose paths carried no gradient have not had their last contribution announced. */
    for (int64_t i = 0; i < w->leaf_count && !w->capturing; i++)
        if (w->leaf[i]->uses > 0) TRY(run_hooks(w, w->leaf[i]));
    return LKS_OK;
}

static lks_status walk_from(walk *w, lks_tensor *root, lks_tensor *gradient)
{
    lks_context *ctx = w->ctx;
    char text[256], other[256];
    if (!root->requires_grad)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, w->where, "%s does not depend on anything that requires a gradient",
                         lksi_tensor_text(root, text, sizeof text));
    if (gradient == lks_none && root->numel != 1)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, w->where,
                         "backward from %s, which is not one element, needs a gradient of that shape",
                         lksi_tensor_text(root, text, sizeof text));
    if (gradient != lks_none &&
        (gradient->v.ndim != root->v.ndim ||
         memcmp(gradient->v.shape, root->v.shape, (size_t)root->v.ndim * sizeof(int64_t))))
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, w->where, "the gradient is %s, the output %s",
                         lksi_tensor_text(gradient, text, sizeof text), lksi_tensor_text(root, other, sizeof other));
    if (gradient != lks_none && gradient->ctx != ctx)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, w->where,
                         "the gradient belongs to another context than the output");
    for (int i = 0; i < w->n; i++)
        if (w->inputs[i]->ctx != ctx)
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, w->where,
                             "input %d belongs to another context than the output", i);
    if (ctx->walking) /* the counts of leaves belong to one pass at a time */
        return lksi_fail(&ctx->base, LKS_ERR_STATE, w->where, "called from a hook: a backward pass is under way");
    ctx->walking = 1;
    w->pass = ++ctx->walk;
    w->scale = LKSI_GRAD_PLAIN;
    int no_grad = ctx->no_grad;
    lksi_autocast_suspend(ctx);
    lks_status s = lks_scope_begin(ctx);
    if (s == LKS_OK) {
        ctx->no_grad = w->create_graph ? 0 : 1;
        if (gradient == lks_none) gradient = lks_full(ctx, root->v.dtype, root->v.ndim, root->v.shape, 1);
        s = gradient ? go(w, root, gradient) : ctx->base.code;
        while (w->heap_count) { /* after a failure */
            lksi_node *n = heap_pop(w);
            for (int i = 0; i < n->nout; i++) {
                lks_release(n->grad[i]);
                n->grad[i] = NULL;
                n->grad_own[i] = 0;
            }
            lks_release(n->low);
            n->low = NULL;
            lksi_owned_drop(&n->own);
        }
        for (int64_t i = 0; i < w->leaf_count; i++) lks_release(w->leaf[i]);
        lks_scope_end(ctx);
    }
    ctx->no_grad = no_grad;
    ctx->walking = 0;
    lksi_autocast_resume(ctx);
    lksi_free(&ctx->base, w->heap);
    lksi_free(&ctx->base, w->stack);
    lksi_free(&ctx->base, w->leaf);
    return s;
}

lks_status lks_backward(lks_tensor *root, lks_tensor *gradient, int retain)
{
    if (!root || !gradient) return LKS_ERR_ARGUMENT;
    walk w = {.ctx = root->ctx, .where = "lks_backward", .retain = retain, .seeded = gradient != lks_none};
    return walk_from(&w, root, gradient);
}

lks_status lksi_backward_plain(lks_tensor *root, lks_tensor *gradient)
{
    walk w = {.ctx = root->ctx, .where = "lks_backward"};
    return walk_from(&w, root, gradient);
}

lks_status lks_gradients(lks_tensor *root, lks_tensor *gradient, int n, lks_tensor *const *inputs, int retain,
                         int create_graph, lks_tensor **grads)
{
    for (int i = 0; i < n; i++) grads[i] = NULL;
    if (!root || !gradient || lksi_any_null(n, inputs)) return LKS_ERR_ARGUMENT;
    lks_context *ctx = root->ctx;
    for (int i = 0; i < n; i++)
        if (!inputs[i]->requires_grad)
            return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_gradients", "input %d does not require a gradient", i);
    walk w = {.ctx = ctx, .where = "lks_gradients", .retain = retain || create_graph, .create_graph = create_graph,
              .capturing = 1, .n = n, .inputs = inputs};
    w.captured = lksi_alloc(&ctx->base, (n + 1) * (int64_t)sizeof *w.captured);
    if (!w.captured) return LKS_ERR_MEMORY;
    lks_status s = walk_from(&w, root, gradient);
    /* Captured gradients are shares of ours; give them to the caller's scope. */
    for (int i = 0; i < n; i++) {
        if (!w.captured[i]) continue;
        if (s == LKS_OK) s = lks_scope_begin(ctx);
        if (s == LKS_OK) {
            grads[i] = lks_scope_leave(ctx, w.captured[i]);
            if (!grads[i]) s = LKS_ERR_MEMORY;
        }
        lks_release(w.captured[i]);
    }
    if (s != LKS_OK)
        for (int i = 0; i < n; i++) grads[i] = NULL;
    lksi_free(&ctx->base, w.captured);
    return s;
}
