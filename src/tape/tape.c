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

lksi_edge lksi_edge_of(lks_tensor *t)
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

void lksi_node_free_saved(lksi_node *n)
{
    if (n->freed) return;
    n->freed = 1;
    for (int i = 0; i < n->nin + n->nout; i++) {
        lks_release(n->saved[i].t);
        n->saved[i].t = NULL;
    }
    for (int i = 0; i < n->nin; i++) {
        lksi_edge e = n->edge[i];
        n->edge[i] = (lksi_edge){NULL, NULL, 0};
        lksi_owned_drop((lksi_owned *)e.node);
        lks_release(e.leaf);
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
        for (int i = 0; i < d->nout; i++) lks_release(d->grad[i]);
        ctx->live_nodes--;
        lksi_free(&ctx->base, d);
    }
    ctx->draining = 0;
}

lks_status lksi_tape_record(lks_context *ctx, int op, int nin, lks_tensor *const *in, const lksi_attr *attr, int nout,
                            lks_tensor **out)
{
    const lksi_row *row = &lksi_rows[op];
    int64_t bytes = (int64_t)sizeof(lksi_node) + nin * (int64_t)sizeof(lksi_edge) +
                    (nin + nout) * (int64_t)sizeof(lksi_saved) +
                    nout * (int64_t)(sizeof(lksi_meta) + sizeof(lks_tensor *) + 1) +
                    (op == LKSI_OP_cat ? nin * (int64_t)sizeof(int64_t) : 0);
    char *p = lksi_alloc(&ctx->base, bytes);
    if (!p) return LKS_ERR_MEMORY;
    lksi_node *n = (lksi_node *)p;
    n->own.refs = 1; /* ours until the outputs hold it */
    n->own.destroy = node_destroy;
    n->ctx = ctx;
    n->number = ctx->next_node++;
    n->op = op;
    n->nin = nin;
    n->nout = nout;
    if (attr) n->attr = *attr;
    p += sizeof(lksi_node);
    n->edge = (lksi_edge *)p;
    p += nin * sizeof(lksi_edge);
    n->saved = (lksi_saved *)p;
    p += (nin + nout) * sizeof(lksi_saved);
    n->out = (lksi_meta *)p;
    p += nout * sizeof(lksi_meta);
    n->grad = (lks_tensor **)p;
    p += nout * sizeof(lks_tensor *);
    if (op == LKSI_OP_cat) {
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
        lksi_edge e = lksi_edge_of(in[i]);
        if (e.node) e.node->own.refs++;
        lks_keep(e.leaf);
        n->edge[i] = e;
        if (i < 31 && row->save_in >> i & 1 && in[i] != lks_none) {
            n->saved[i].t = lks_keep(in[i]);
            n->saved[i].version = in[i]->st->version;
        }
    }
    for (int i = 0; i < nout; i++) {
        lks_tensor *t = out[i];
        n->out[i].dtype = t->v.dtype;
        n->out[i].ndim = t->v.ndim;
        memcpy(n->out[i].shape, t->v.shape, (size_t)t->v.ndim * sizeof(int64_t));
        int saved = row->save_out >> i & 1;
        /* Statistics (outputs after the first that backward reads) are no one else's: saved as they are. */
        int differentiable = lks_dtype_is_float(t->v.dtype) && !(saved && i > 0);
        if (saved) {
            lks_tensor *s = differentiable ? lksi_tensor_unscoped(lksi_tensor_alias(t)) : lks_keep(t);
            if (!s) {
                for (int k = 0; k < i; k++)
                    if (out[k]->node == n) lksi_tensor_forget(out[k]);
                lksi_owned_drop(&n->own);
                return LKS_ERR_MEMORY;
            }
            n->saved[nin + i].t = s;
            n->saved[nin + i].version = t->st->version;
        }
        if (differentiable) {
            t->node = n;
            t->out = i;
            t->requires_grad = 1;
            n->own.refs++;
        }
    }
    lksi_owned_drop(&n->own);
    return LKS_OK;
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
    if (on && !lks_dtype_is_float(t->v.dtype))
        return lksi_fail(b, LKS_ERR_DTYPE, "lks_set_requires_grad", "%s: only floating tensors have gradients",
                         lksi_tensor_text(t, text, sizeof text));
    if (t->node)
        return lksi_fail(b, LKS_ERR_STATE, "lks_set_requires_grad",
                         "%s was made by %s and is not a leaf (lks_detach makes one)",
                         lksi_tensor_text(t, text, sizeof text), lksi_rows[t->node->op].name);
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
        return lksi_fail(&leaf->ctx->base, LKS_ERR_STATE, "lks_hook_add", "hooks are for leaves that require a gradient");
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
