/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tape.c - recording. Does not know what any op does: which inputs and outputs are saved is a column of the table.
 */
#include "tape/tape.h"

#include <string.h>

int lksi_tape_wants(lks_context *ctx, int nin, lks_tensor *const *in)
{
    if (ctx->no_grad) return 0;
    for (int i = 0; i < nin; i++)
        if (in[i]->requires_grad) return 1;
    return 0;
}

static inline lksi_edge edge_of(lks_tensor *t)
{
    lksi_edge e = {NULL, NULL, 0};
    if (t == lks_none || !t->requires_grad) return e;
    if (t->node) {
        e.node = t->node;
        e.out = t->out;
    } else {
        e.leaf = t->leaf ? t->leaf : t;
    }
    return e;
}

lksi_edge lksi_edge_of(lks_tensor *t) { return edge_of(t); }

const char *lksi_node_name(const lksi_node *n)
{
    return n->op >= 0 ? lksi_rows[n->op].name : ((const lksi_custom_head *)(const void *)n->custom)->name;
}

void lksi_recompute_drop(lksi_recompute *rc)
{
    if (rc && --rc->refs == 0) rc->destroy(rc);
}

void lksi_node_free_saved(lksi_node *n)
{
    if (n->freed) return;
    n->freed = 1;
    for (int i = 0; i < n->nin + n->nout; i++) {
        lksi_drop(n->saved[i].t);
        n->saved[i].t = NULL;
    }
    lksi_custom_head *call = (lksi_custom_head *)(void *)n->custom;
    for (int i = 0; call && i < call->saved; i++) lks_release(call->tensor[i]);
    if (call) call->saved = 0;
    lksi_recompute *rc = n->recompute;
    n->recompute = NULL;
    if (rc) rc->node[n->place] = NULL;
    lksi_recompute_drop(rc);
    for (int i = 0; i < n->nin; i++) {
        lksi_edge e = n->edge[i];
        n->edge[i] = (lksi_edge){NULL, NULL, 0};
        if (e.node) lksi_owned_drop((lksi_owned *)e.node);
        lksi_drop(e.leaf);
    }
}

/* Dropping a node drops shares of earlier nodes: a list instead of recursion, so that depth costs no stack. */
static void node_destroy(lksi_owned *self)
{
    lksi_node *n = (lksi_node *)self;
    lks_context *ctx = n->ctx;
    n->next_dying = ctx->dying;
    ctx->dying = n;
    if (ctx->draining) return;
    ctx->draining = 1;
    while (ctx->dying) {
        lksi_node *d = ctx->dying;
        ctx->dying = d->next_dying;
        lksi_node_free_saved(d);
        if (d->custom) d->custom_free(d->custom);
        for (int i = 0; i < d->nout; i++) lksi_drop(d->grad[i]);
        lksi_drop(d->low);
        ctx->live_nodes--;
        lksi_cell_give(&ctx->base, d, d->bytes);
    }
    ctx->draining = 0;
}

static const lksi_attr no_attr;

/* What recording needs to know of an op. */
typedef struct shape_of_op {
    int op, nin, nout, save_in, save_out;
} shape_of_op;

static inline lksi_node *node_new(lks_context *ctx, const shape_of_op *o, lks_tensor *const *in, const lksi_attr *attr,
                           lks_tensor **out)
{
    int nin = o->nin, nout = o->nout;
    int64_t bytes = (int64_t)sizeof(lksi_node) + nin * (int64_t)sizeof(lksi_edge) +
                    (nin + nout) * (int64_t)sizeof(lksi_saved) +
                    nout * (int64_t)(sizeof(lksi_meta) + sizeof(lks_tensor *) + 1) +
                    (o->op == LKSI_OP_cat ? nin * (int64_t)sizeof(int64_t) : 0);
    char *p = lksi_cell_take(&ctx->base, bytes);
    if (!p) return NULL;
    lksi_node *n = (lksi_node *)p;
    n->custom = NULL;
    n->custom_free = NULL;
    n->recompute = NULL;
    n->place = 0;
    n->freed = 0;
    n->pass = n->scale = 0;
    n->next_dying = NULL;
    n->low = NULL;
    n->bytes = bytes;
    n->own.refs = 1; /* ours until the outputs hold it */
    n->own.destroy = node_destroy;
    n->ctx = ctx;
    n->number = ctx->next_node++;
    n->op = o->op;
    n->nin = nin;
    n->nout = nout;
    n->attr = *(attr ? attr : &no_attr);
    p += sizeof(lksi_node);
    n->edge = (lksi_edge *)p;
    p += nin * sizeof(lksi_edge);
    n->saved = (lksi_saved *)p;
    p += (nin + nout) * sizeof(lksi_saved);
    n->out = (lksi_meta *)p;
    p += nout * sizeof(lksi_meta);
    n->grad = (lks_tensor **)p;
    p += nout * sizeof(lks_tensor *);
    n->part = NULL;
    if (o->op == LKSI_OP_cat) {
        n->part = (int64_t *)p;
        p += nin * sizeof(int64_t);
        for (int i = 0; i < nin; i++)
            n->part[i] = attr->dim.dim < in[i]->v.ndim && !(in[i]->v.ndim == 1 && out[0]->v.ndim != 1)
                             ? in[i]->v.shape[attr->dim.dim]
                             : -1;
    }
    n->grad_own = (uint8_t *)p;
    ctx->live_nodes++;
    for (int i = 0; i < nin; i++) {
        lksi_edge e = edge_of(in[i]);
        if (e.node) e.node->own.refs++;
        if (e.leaf) lksi_keep(e.leaf);
        n->edge[i] = e;
        n->saved[i] = (lksi_saved){NULL, 0};
    }
    int i = 0;
    do { /* an op has an output */
        n->saved[nin + i] = (lksi_saved){NULL, 0};
        n->grad[i] = NULL;
        n->grad_own[i] = 0;
        n->out[i].dtype = out[i]->v.dtype;
        n->out[i].ndim = out[i]->v.ndim;
        memcpy(n->out[i].shape, out[i]->v.shape, sizeof out[i]->v.shape); /* what is behind ndim is not read */
    } while (++i < nout);
    return n;
}

/* Statistics (outputs after the first that backward reads) are no one else's: saved as they are. */
static inline int differentiable(const shape_of_op *o, int i, const lks_tensor *t)
{
    return lksi_has_gradient(t->v.dtype) && (i == 0 || !(o->save_out >> i & 1) || o->save_out & LKSI_SAVE_LIVE);
}

static int is_leaf(const lks_tensor *t)
{
    return t != lks_none && t->requires_grad && !t->node;
}

/* Saved tensors of n, from this run of the op. */
static inline lks_status save(lksi_node *n, const shape_of_op *o, lks_tensor *const *in, lks_tensor **out)
{
    for (int i = 0; i < o->nin && i < 31; i++)
        if (o->save_in >> i & 1 && in[i] != lks_none && !n->saved[i].t) {
            if (n->recompute && is_leaf(in[i]) && n->saved[i].version != in[i]->st->version) {
                char text[256];
                return lksi_fail(&n->ctx->base, LKS_ERR_MODIFIED, "lks_recompute",
                                 "input %d of %s, %s, was changed in place since the first run of the function", i,
                                 lksi_node_name(n), lksi_tensor_text(in[i], text, sizeof text));
            }
            n->saved[i].t = lksi_keep(in[i]);
            n->saved[i].version = in[i]->st->version;
        }
    for (int i = 0; i < o->nout; i++) {
        lks_tensor *t = out[i];
        if (!(o->save_out >> i & 1) || n->saved[o->nin + i].t) continue;
        lks_tensor *s = differentiable(o, i, t) ? lksi_tensor_saved(t) : lks_keep(t);
        if (!s) return LKS_ERR_MEMORY;
        n->saved[o->nin + i].t = s;
        n->saved[o->nin + i].version = t->st->version;
    }
    return LKS_OK;
}

static inline void adopt(lksi_node *n, const shape_of_op *o, lks_tensor **out)
{
    for (int i = 0; i < o->nout; i++) {
        if (!differentiable(o, i, out[i])) continue;
        out[i]->node = n;
        out[i]->out = i;
        out[i]->requires_grad = 1;
        n->own.refs++;
    }
}

/* Puts n at the end of the list; of what it would save only the versions of leaves are kept. */
static lks_status join(lksi_recompute *rc, lksi_node *n, const shape_of_op *o, lks_tensor *const *in)
{
    if (rc->count == rc->room) {
        int64_t room = rc->room ? 2 * rc->room : 16;
        lksi_node **p = lksi_realloc(&rc->ctx->base, rc->node, rc->room * (int64_t)sizeof *p,
                                     room * (int64_t)sizeof *p);
        if (!p) return LKS_ERR_MEMORY;
        rc->node = p;
        rc->room = room;
    }
    for (int i = 0; i < o->nin && i < 31; i++)
        if (o->save_in >> i & 1 && is_leaf(in[i])) n->saved[i].version = in[i]->st->version;
    n->recompute = rc;
    n->place = rc->count;
    rc->node[rc->count++] = n;
    rc->refs++;
    return LKS_OK;
}

/* The node that this op had in the first run, *n; NULL if it is gone: then the outputs only look as if they had one. */
static lks_status again(lks_context *ctx, const shape_of_op *o, const char *name, lks_tensor **out, lksi_node **n)
{
    lksi_recompute *rc = ctx->recompute;
    int same = rc->at < rc->count;
    *n = same ? rc->node[rc->at++] : NULL;
    if (*n) {
        same = (*n)->op == o->op && (*n)->nin == o->nin && (*n)->nout == o->nout;
        for (int i = 0; same && i < o->nout; i++) {
            const lksi_meta *m = &(*n)->out[i];
            same = m->dtype == out[i]->v.dtype && m->ndim == out[i]->v.ndim &&
                   !memcmp(m->shape, out[i]->v.shape, (size_t)m->ndim * sizeof(int64_t));
        }
    }
    if (!same)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_recompute",
                         "the second run of the function did something else than the first: %s where %s was", name,
                         *n ? lksi_node_name(*n) : "its end");
    for (int i = 0; !*n && i < o->nout; i++) out[i]->requires_grad = (uint8_t)differentiable(o, i, out[i]);
    return LKS_OK;
}

lks_status lksi_tape_record(lks_context *ctx, int op, int nin, lks_tensor *const *in, const lksi_attr *attr, int nout,
                            lks_tensor **out)
{
    const lksi_row *row = &lksi_rows[op];
    shape_of_op o = {op, nin, nout, row->save_in, row->save_out};
    lksi_recompute *rc = ctx->recompute;
    lksi_node *n;
    if (rc && rc->at >= 0) {
        TRY(again(ctx, &o, row->name, out, &n));
        if (!n) return LKS_OK;
        TRY(save(n, &o, in, out));
        adopt(n, &o, out);
        return LKS_OK;
    }
    if (!(n = node_new(ctx, &o, in, attr, out))) return LKS_ERR_MEMORY;
    lks_status s = rc ? join(rc, n, &o, in) : save(n, &o, in, out);
    if (s == LKS_OK) adopt(n, &o, out);
    if (--n->own.refs == 0) node_destroy(&n->own);
    return s;
}

lks_status lksi_tape_record_custom(lks_context *ctx, struct lks_custom *call, void (*custom_free)(struct lks_custom *),
                                   int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    shape_of_op o = {-1, nin, nout, 0, 0};
    lksi_recompute *rc = ctx->recompute;
    lksi_custom_head *head = (lksi_custom_head *)(void *)call;
    lksi_node *n;
    if (rc && rc->at >= 0) {
        TRY(again(ctx, &o, head->name, out, &n));
        if (n) {
            lksi_custom_head *first = (lksi_custom_head *)(void *)n->custom, keep = *first;
            first->saved = head->saved;
            first->tensor = head->tensor;
            first->version = head->version;
            first->output = head->output;
            head->saved = keep.saved;
            head->tensor = keep.tensor;
            head->version = keep.version;
            head->output = keep.output;
            adopt(n, &o, out);
        }
        custom_free(call);
        return LKS_OK;
    }
    if (!(n = node_new(ctx, &o, in, NULL, out))) return LKS_ERR_MEMORY;
    n->custom = call;
    n->custom_free = custom_free;
    lks_status s = rc ? join(rc, n, &o, in) : LKS_OK;
    if (s == LKS_OK) adopt(n, &o, out);
    else n->custom = NULL; /* the caller's still */
    if (rc && s == LKS_OK) {
        for (int i = 0; i < head->saved; i++) lks_release(head->tensor[i]);
        head->saved = 0;
    }
    lksi_owned_drop(&n->own);
    return s;
}

lks_status lks_no_grad_begin(lks_context *ctx)
{
    ctx->no_grad++;
    return LKS_OK;
}

lks_status lks_no_grad_end(lks_context *ctx)
{
    if (!ctx->no_grad)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_no_grad_end", "no such region is open (lks_no_grad_begin)");
    ctx->no_grad--;
    return LKS_OK;
}

int lks_grad_enabled(const lks_context *ctx) { return ctx->no_grad == 0; }
int lks_requires_grad(const lks_tensor *t) { return t->requires_grad; }
lks_tensor *lks_grad(const lks_tensor *t) { return t->grad; }

lks_status lks_set_requires_grad(lks_tensor *t, int on)
{
    if (!t || t == lks_none) return LKS_ERR_ARGUMENT;
    lksi_base *b = &t->ctx->base;
    char text[256];
    if (on && !lksi_has_gradient(t->v.dtype))
        return lksi_fail(b, LKS_ERR_DTYPE, "lks_set_requires_grad",
                         "%s: gradients are for floating and complex tensors", lksi_tensor_text(t, text, sizeof text));
    if (t->node)
        return lksi_fail(b, LKS_ERR_STATE, "lks_set_requires_grad",
                         "%s was made by %s and is not a leaf (lks_detach makes one)",
                         lksi_tensor_text(t, text, sizeof text), lksi_node_name(t->node));
    t->requires_grad = on != 0;
    return LKS_OK;
}

lks_status lks_zero_grad(lks_tensor *t)
{
    if (!t) return LKS_ERR_ARGUMENT;
    lks_release(t->grad);
    t->grad = NULL;
    return LKS_OK;
}

lks_status lks_hook_add(lks_tensor *leaf, lks_hook_fn fn, void *user, int64_t *id)
{
    if (!leaf || !fn) return LKS_ERR_ARGUMENT;
    if (leaf->node || !leaf->requires_grad)
        return lksi_fail(&leaf->ctx->base, LKS_ERR_STATE, "lks_hook_add",
                         "hooks are for leaves that require a gradient");
    lksi_hook *h = lksi_alloc(&leaf->ctx->base, sizeof *h);
    if (!h) return LKS_ERR_MEMORY;
    h->fn = fn;
    h->user = user;
    lksi_hook **at = &leaf->hooks;
    h->id = 1;
    for (; *at; at = &(*at)->next)
        if ((*at)->id >= h->id) h->id = (*at)->id + 1;
    *at = h;
    if (id) *id = h->id;
    return LKS_OK;
}

lks_status lks_hook_remove(lks_tensor *leaf, int64_t id)
{
    for (lksi_hook **at = &leaf->hooks; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            lksi_hook *h = *at;
            *at = h->next;
            lksi_free(&leaf->ctx->base, h);
            return LKS_OK;
        }
    return lksi_fail(&leaf->ctx->base, LKS_ERR_NOT_FOUND, "lks_hook_remove", "no hook %lld", (long long)id);
}
