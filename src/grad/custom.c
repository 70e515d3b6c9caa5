/* SPDX-License-Identifier: BSD-3-Clause
 *
 * custom.c - functions of the program with a backward of their own. One call is one node; nothing inside its forward is
 * recorded. Precision follows the rules of custom_fwd and custom_bwd: see lks_custom_call in autograd.h.
 */
#include "autocast/autocast.h"
#include "grad/grad.h"

#include <string.h>

struct lks_custom {
    lksi_custom_head head; /* first */
    lks_context *ctx;
    lks_custom_forward_fn forward;
    lks_custom_backward_fn backward;
    void *user;
    lksi_autocast_state autocast; /* of the forward */
    int room, running;
    lksi_back *back; /* during backward */
};

static void call_free(lks_custom *c)
{
    lksi_base *b = &c->ctx->base;
    for (int i = 0; i < c->head.saved; i++) lks_release(c->head.tensor[i]);
    lksi_free(b, c->head.tensor);
    lksi_free(b, c->head.version);
    lksi_free(b, c->head.output);
    lksi_free(b, c);
}

lks_status lks_custom_save(lks_custom *c, lks_tensor *t)
{
    if (!c || !t) return LKS_ERR_ARGUMENT;
    lksi_base *b = &c->ctx->base;
    if (!c->running) return lksi_fail(b, LKS_ERR_STATE, "lks_custom_save", "%s: this is for its forward", c->head.name);
    if (!c->head.tensor) {
        c->head.tensor = lksi_alloc(b, LKSI_CUSTOM * (int64_t)sizeof *c->head.tensor);
        c->head.version = lksi_alloc(b, LKSI_CUSTOM * (int64_t)sizeof *c->head.version);
        c->head.output = lksi_alloc(b, LKSI_CUSTOM * (int64_t)sizeof *c->head.output);
        if (!c->head.tensor || !c->head.version || !c->head.output) return LKS_ERR_MEMORY;
    }
    if (c->head.saved == LKSI_CUSTOM)
        return lksi_fail(b, LKS_ERR_UNSUPPORTED, "lks_custom_save", "%s saves more than %d tensors", c->head.name,
                         LKSI_CUSTOM);
    int i = c->head.saved++;
    c->head.tensor[i] = lks_keep(t);
    c->head.version[i] = t == lks_none ? 0 : t->st->version;
    c->head.output[i] = -1;
    return LKS_OK;
}

lks_tensor *lks_custom_saved(lks_custom *c, int i)
{
    char text[256];
    if (!c) return NULL;
    lksi_base *b = &c->ctx->base;
    if (!c->back || i < 0 || i >= c->head.saved) {
        lksi_fail(b, LKS_ERR_ARGUMENT, "lks_custom_saved", "%s: there is no saved tensor %d (%d were saved)%s",
                  c->head.name, i, c->head.saved, c->back ? "" : "; this is for its backward");
        return NULL;
    }
    lks_tensor *t = c->head.tensor[i];
    if (t == lks_none) return t;
    if (t->st->version != c->head.version[i]) {
        lksi_fail(b, LKS_ERR_MODIFIED, "lks_custom_saved", "%s: saved tensor %d, %s, was changed in place",
                  c->head.name, i, lksi_tensor_text(t, text, sizeof text));
        return NULL;
    }
    if (c->head.output[i] < 0 || !c->back->create_graph) return t;
    lks_tensor *a = lksi_tensor_alias(t); /* an output leads back to this call */
    if (!a) return NULL;
    a->requires_grad = 1;
    a->node = c->back->node;
    a->out = c->head.output[i];
    c->back->node->own.refs++;
    return a;
}

int lks_custom_needs(const lks_custom *c, int i) { return c && c->back && i >= 0 && lksi_back_needs(c->back, i); }

lks_status lksi_custom_back(lksi_back *b)
{
    lksi_node *n = b->node;
    lks_custom *c = n->custom;
    lks_context *ctx = b->ctx;
    lks_tensor *dout[LKSI_CUSTOM] = {NULL}, *din[LKSI_CUSTOM] = {NULL};
    lksi_autocast_replay replay;
    if (!c->backward)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, c->head.name, "it was given no backward");
    for (int i = 0; i < n->nout; i++) {
        const lksi_meta *m = &n->out[i];
        if (!lksi_has_gradient(m->dtype)) dout[i] = lks_none;
        else if (n->grad[i]) dout[i] = n->grad[i];
        else if (!(dout[i] = lks_zeros(ctx, m->dtype, m->ndim, m->shape))) return ctx->base.code;
    }
    lksi_back *outer = c->back;
    TRY(lksi_autocast_enter(ctx, &c->autocast, &replay));
    c->back = b;
    lks_status s = lksi_said(&ctx->base, c->backward(c, c->user, n->nout, dout, n->nin, din), c->head.name,
                             "its backward");
    c->back = outer;
    lksi_autocast_leave(ctx, &replay);
    if (s != LKS_OK) return s;
    for (int i = 0; i < n->nin; i++) {
        char text[256], want[256];
        if (!din[i] || din[i] == lks_none || !lksi_back_needs(b, i)) continue;
        lksi_meta m = lksi_back_meta(b, i);
        lksi_view v;
        lksi_view_init(&v, m.dtype, m.ndim, m.shape);
        if (din[i]->v.ndim != m.ndim || memcmp(din[i]->v.shape, m.shape, (size_t)m.ndim * sizeof(int64_t)))
            return lksi_fail(&ctx->base, LKS_ERR_SHAPE, c->head.name,
                             "its backward gave %s as the gradient of input %d, which has shape %s",
                             lksi_tensor_text(din[i], text, sizeof text), i, lksi_shape_text(&v, want, sizeof want));
        b->grad[i] = din[i];
    }
    return LKS_OK;
}

/* The inputs as forward sees them; *off: it runs without autocast. */
static lks_status cast_inputs(lks_context *ctx, const char *name, lks_dtype cast, int nin, lks_tensor *const *in,
                              lks_tensor **use, int *off)
{
    lks_dtype to;
    int has_policy;
    TRY(lksi_autocast_decide_user(ctx, name, nin, in, &to, &has_policy));
    *off = 0;
    for (int i = 0; i < nin; i++) use[i] = in[i];
    if (!lks_autocast_enabled(ctx)) return LKS_OK;
    if (cast != LKS_DTYPE_NONE) to = cast;
    else if (!has_policy) return LKS_OK;
    *off = 1;
    for (int i = 0; i < nin && to != LKS_DTYPE_NONE; i++)
        if (!(use[i] = lksi_cast_for(ctx, name, in[i], to))) return ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
    return LKS_OK;
}

/* An output of the call's own: an input handed on, or something with a history, gets a header of its own. */
static lks_status own_outputs(lks_context *ctx, lks_custom *c, int nin, lks_tensor *const *in, int nout,
                              lks_tensor **out)
{
    for (int i = 0; i < nout; i++) {
        int shared = 0;
        if (!out[i] || out[i] == lks_none)
            return ctx->base.code
                       ? ctx->base.code
                       : lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, c->head.name, "its forward left output %d out", i);
        for (int k = 0; k < nin; k++) shared |= out[i] == in[k];
        for (int k = 0; k < i; k++) shared |= out[i] == out[k];
        if ((shared || out[i]->requires_grad) && !(out[i] = lksi_tensor_alias(out[i]))) return LKS_ERR_MEMORY;
    }
    for (int i = 0; i < c->head.saved; i++) /* saved outputs: without the share that would be a circle */
        for (int k = 0; k < nout; k++)
            if (c->head.tensor[i] == out[k]) {
                lks_tensor *a = lksi_tensor_unscoped(lksi_tensor_alias(out[k]));
                if (!a) return LKS_ERR_MEMORY;
                lks_release(c->head.tensor[i]);
                c->head.tensor[i] = a;
                c->head.output[i] = k;
            }
    return LKS_OK;
}

static lks_status call(lks_context *ctx, lks_custom *c, lks_dtype cast, int nin, lks_tensor *const *in, int nout,
                       lks_tensor **out, int *recorded)
{
    lks_tensor *use[LKSI_CUSTOM];
    lksi_autocast_replay replay;
    int off;
    TRY(cast_inputs(ctx, c->head.name, cast, nin, in, use, &off));
    c->autocast = lksi_autocast_now(ctx);
    if (off) c->autocast.enabled = 0;
    TRY(lksi_autocast_enter(ctx, &c->autocast, &replay)); /* and out again, whatever forward leaves open */
    lksi_recompute *rc = ctx->recompute;
    int no_grad = ctx->no_grad;
    ctx->recompute = NULL;
    ctx->no_grad++;
    c->running = 1;
    lks_status s = lksi_said(&ctx->base, c->forward(c, c->user, nin, use, nout, out), c->head.name, "its forward");
    c->running = 0;
    ctx->no_grad = no_grad;
    ctx->recompute = rc;
    lksi_autocast_leave(ctx, &replay);
    if (s == LKS_OK) s = own_outputs(ctx, c, nin, use, nout, out);
    if (s != LKS_OK || !lksi_tape_wants(ctx, nin, use)) return s;
    s = lksi_tape_record_custom(ctx, c, call_free, nin, use, nout, out);
    *recorded = s == LKS_OK;
    return s;
}

lks_status lks_custom_call(lks_context *ctx, const char *name, lks_custom_forward_fn forward,
                           lks_custom_backward_fn backward, void *user, lks_dtype cast, int nin, lks_tensor *const *in,
                           int nout, lks_tensor **out)
{
    if (!ctx || !name || !forward || !out) return LKS_ERR_ARGUMENT;
    for (int i = 0; i < nout; i++) out[i] = NULL;
    if (nin < 1 || nin > LKSI_CUSTOM || nout < 1 || nout > LKSI_CUSTOM || !in)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, name, "%d inputs and %d outputs; allowed are 1 to %d", nin, nout,
                         LKSI_CUSTOM);
    for (int i = 0; i < nin; i++) {
        if (!in[i]) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
        if (in[i] != lks_none && in[i]->ctx != ctx)
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, name, "input %d belongs to another context", i);
    }
    if (cast != LKS_DTYPE_NONE && cast != LKS_F16 && cast != LKS_BF16 && cast != LKS_F32)
        return lksi_fail(&ctx->base, LKS_ERR_DTYPE, name, "inputs are cast to float16, bfloat16 or float32, not %s",
                         lks_dtype_name(cast));
    lks_custom *c = lksi_alloc(&ctx->base, sizeof *c);
    if (!c) return LKS_ERR_MEMORY;
    for (size_t i = 0; i + 1 < sizeof c->head.name && name[i]; i++) c->head.name[i] = name[i];
    c->ctx = ctx;
    c->forward = forward;
    c->backward = backward;
    c->user = user;
    int recorded = 0;
    lks_status s = call(ctx, c, cast, nin, in, nout, out, &recorded);
    if (!recorded) call_free(c);
    if (s != LKS_OK)
        for (int i = 0; i < nout; i++) out[i] = NULL;
    return s;
}
