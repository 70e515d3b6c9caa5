/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rnn.c - recurrent layers and cells: layers, directions, dropout and lengths around the row that does the steps of one
 * direction (rnn_steps). The product of the input with its weight is one `linear` over all steps.
 */
#include "ops/ops.h"

#include "autocast/autocast.h"
#include "tape/tape.h"
#include <string.h>

lks_status lksi_leave_all(lks_context *ctx, int n, lks_tensor **t, lks_status s)
{
    if (s != LKS_OK && ctx->base.code) s = ctx->base.code;
    for (int i = 0; i < n; i++) {
        if (s == LKS_OK && !t[i]) s = ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
        lks_keep(t[i]);
    }
    lks_scope_end(ctx);
    for (int i = 0; i < n; i++) {
        if (s == LKS_OK && (s = lks_scope_begin(ctx)) == LKS_OK && !lks_scope_leave(ctx, t[i])) s = LKS_ERR_MEMORY;
        lks_release(t[i]);
        if (s != LKS_OK) t[i] = NULL;
    }
    if (s != LKS_OK) memset(t, 0, (size_t)n * sizeof *t);
    return s;
}

/* States of one direction: w is w_ih, w_hh, b_ih, b_hh; gates [T, N, G H]. */
static lks_tensor *steps(lks_context *ctx, const char *where, int kind, int reverse, lks_tensor *gates,
                         lks_tensor *const *w, lks_tensor *h0, lks_tensor *c0, lks_tensor *lengths)
{
    lks_tensor *in[6] = {gates, w[1], w[3], h0, c0, lengths}, *out[2] = {NULL, NULL};
    if (lksi_any_null(6, in)) return NULL;
    lksi_attr attr = {.rnn = {.kind = kind, .reverse = reverse, .save = lksi_tape_wants(ctx, 6, in)}};
    return lksi_call(ctx, where, LKSI_OP_rnn_steps, 6, in, &attr, 2, out) == LKS_OK ? out[0] : NULL;
}

/* --- layers --- */

typedef struct layers {
    lks_context *ctx;
    const char *where;
    int kind, directions, count, batch_first;
    double dropout;
    lks_tensor *x, *h0, *c0, *lengths, *const *weights;
    lks_tensor **last_h, **last_c; /* of each layer and direction */
} layers;

static lks_tensor *state_of(lks_tensor *s, int i) { return s == lks_none ? s : lks_select(s, 0, i); }

/* y [T, N, D H] of layer l for x, which is [N, T, I] if it is the first and the batch comes first. */
static lks_tensor *layer(const layers *a, int l, lks_tensor *x, lks_tensor *mask)
{
    lks_tensor *y[2];
    for (int d = 0; d < a->directions; d++) {
        int k = l * a->directions + d;
        lks_tensor *const *w = a->weights + 4 * k, *gates = lks_linear(x, w[0], w[2]);
        if (gates && l == 0 && a->batch_first) gates = lks_transpose(gates, 0, 1);
        lks_tensor *states = steps(a->ctx, a->where, a->kind, d, gates, w, state_of(a->h0, k), state_of(a->c0, k),
                                   a->lengths);
        if (!states) return NULL;
        int64_t T = states->v.shape[0] - 1 - (a->kind == LKSI_RNN_LSTM);
        a->last_h[k] = lks_select(states, 0, d ? 0 : T);
        a->last_c[k] = a->kind == LKSI_RNN_LSTM ? lks_select(states, 0, T + 1) : NULL;
        y[d] = lks_narrow(states, 0, d ? 0 : 1, T);
        if (mask) y[d] = lks_where_scalar(mask, y[d], 0);
        if (!y[d] || !a->last_h[k]) return NULL;
    }
    return a->directions == 1 ? y[0] : lks_cat(2, y, 2);
}

/* [T, N, 1]: true where a sequence goes on. */
static lks_tensor *mask_of(const layers *a, int64_t T)
{
    lks_tensor *t = lks_unsqueeze(lks_arange(a->ctx, LKS_I64, T), 1);
    return lks_unsqueeze(lks_lt(t, lks_unsqueeze(a->lengths, 0)), 2);
}

static lks_status run(layers *a, lks_tensor **out)
{
    lks_tensor *x = a->x, *mask = NULL;
    int flat = x->v.ndim == 2, ends = a->count * a->directions; /* [T, I]: one sequence */
    char s[200], t[200];
    if (flat) {
        x = lks_unsqueeze(x, a->batch_first ? 0 : 1);
        if (a->h0 != lks_none) a->h0 = lks_unsqueeze(a->h0, 1);
        if (a->c0 != lks_none) a->c0 = lks_unsqueeze(a->c0, 1);
        if (a->lengths != lks_none && a->lengths->v.ndim == 0) a->lengths = lks_unsqueeze(a->lengths, 0);
    }
    if (!x || !a->h0 || !a->c0 || !a->lengths) return LKS_ERR_MEMORY;
    for (int i = 0; i < 2; i++) {
        lks_tensor *state = i ? a->c0 : a->h0;
        if (state != lks_none && (state->v.ndim != 3 || state->v.shape[0] != ends))
            return lksi_fail(&a->ctx->base, LKS_ERR_SHAPE, a->where, "%s %s must be [%d,%sH]", i ? "c0" : "h0",
                             lksi_shape_text(&(i ? a->c0 : a->h0)->v, s, sizeof s), ends, flat ? "" : "N,");
    }
    if (x->v.ndim != 3)
        return lksi_fail(&a->ctx->base, LKS_ERR_SHAPE, a->where, "x %s must be %s, or [T,I]",
                         lksi_shape_text(&x->v, t, sizeof t), a->batch_first ? "[N,T,I]" : "[T,N,I]");
    if (a->lengths != lks_none && !(mask = mask_of(a, x->v.shape[a->batch_first ? 1 : 0]))) return LKS_ERR_MEMORY;
    /* What lies behind the end may be anything; W_ih's gradient multiplies it with 0. The row refuses other lengths. */
    if (mask && mask->v.shape[1] == x->v.shape[a->batch_first ? 0 : 1] &&
        !(x = lks_where_scalar(a->batch_first ? lks_transpose(mask, 0, 1) : mask, x, 0)))
        return LKS_ERR_MEMORY;
    for (int l = 0; l < a->count; l++) {
        if (!(x = layer(a, l, x, mask))) return LKS_ERR_MEMORY;
        if (a->dropout > 0 && l + 1 < a->count && !(x = lks_dropout(x, a->dropout))) return LKS_ERR_MEMORY;
    }
    out[0] = a->batch_first ? lks_transpose(x, 0, 1) : x;
    if (flat) out[0] = lks_squeeze(out[0], a->batch_first ? 0 : 1);
    for (int i = 0; i < 1 + (a->kind == LKSI_RNN_LSTM); i++) {
        lks_tensor **last = i ? a->last_c : a->last_h;
        out[1 + i] = ends == 1 ? lks_unsqueeze(last[0], 0) : lks_stack(ends, last, 0);
        if (flat) out[1 + i] = lks_squeeze(out[1 + i], 1);
    }
    return LKS_OK;
}

static lks_status recurrent(const char *where, int op, int kind, lks_tensor *x, lks_tensor *h0, lks_tensor *c0,
                            lks_tensor *lengths, int n, lks_tensor *const *weights, int bidirectional, int batch_first,
                            double dropout, lks_tensor **out)
{
    lks_tensor *first[4] = {x, h0, c0, lengths};
    lks_context *ctx = lksi_ctx(4, first);
    int D = 1 + (bidirectional != 0), nout = 2 + (kind == LKSI_RNN_LSTM), nin = n + 4;
    if (!ctx) return LKS_ERR_ARGUMENT;
    if (n < 1 || n % (4 * D))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where,
                         "%d weights: each layer and direction has w_ih, w_hh, b_ih, b_hh (LKS_NONE: no bias)", n);
    if (!(dropout >= 0 && dropout < 1))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "dropout is %g; it must be in [0, 1)", dropout);
    lks_tensor **in = lksi_alloc(&ctx->base, (2 * nin + n) * (int64_t)sizeof *in);
    if (!in) return LKS_ERR_MEMORY;
    lks_tensor **work = in + nin;
    memcpy(in, first, sizeof first);
    memcpy(in + 4, weights, (size_t)n * sizeof *in);
    lks_status s = lks_scope_begin(ctx);
    if (s == LKS_OK) {
        if ((s = lksi_composite_begin(ctx, where, op, nin, in, work)) == LKS_OK) {
            layers a = {ctx, where, kind, D, n / (4 * D), batch_first != 0, dropout, work[0], work[1], work[2], work[3],
                        work + 4, work + nin, work + nin + n / 4};
            s = run(&a, out);
            lksi_composite_end(ctx, op);
        }
        s = lksi_leave_all(ctx, nout, out, s);
    }
    lksi_free(&ctx->base, in);
    return s;
}

lks_status lks_rnn(lks_tensor *x, lks_tensor *h0, lks_tensor *lengths, int n, lks_tensor *const *weights, int relu,
                   int bidirectional, int batch_first, double dropout, lks_tensor **y, lks_tensor **hn)
{
    lks_tensor *out[2] = {NULL, NULL};
    lks_status s = recurrent("lks_rnn", LKSI_OP_rnn, relu ? LKSI_RNN_RELU : LKSI_RNN_TANH, x, h0, lks_none, lengths, n,
                             weights, bidirectional, batch_first, dropout, out);
    if (y) *y = out[0];
    if (hn) *hn = out[1];
    return s;
}

lks_status lks_gru(lks_tensor *x, lks_tensor *h0, lks_tensor *lengths, int n, lks_tensor *const *weights,
                   int bidirectional, int batch_first, double dropout, lks_tensor **y, lks_tensor **hn)
{
    lks_tensor *out[2] = {NULL, NULL};
    lks_status s = recurrent("lks_gru", LKSI_OP_gru, LKSI_RNN_GRU, x, h0, lks_none, lengths, n, weights, bidirectional,
                             batch_first, dropout, out);
    if (y) *y = out[0];
    if (hn) *hn = out[1];
    return s;
}

lks_status lks_lstm(lks_tensor *x, lks_tensor *h0, lks_tensor *c0, lks_tensor *lengths, int n,
                    lks_tensor *const *weights, int bidirectional, int batch_first, double dropout, lks_tensor **y,
                    lks_tensor **hn, lks_tensor **cn)
{
    lks_tensor *out[3] = {NULL, NULL, NULL};
    lks_status s = recurrent("lks_lstm", LKSI_OP_lstm, LKSI_RNN_LSTM, x, h0, c0, lengths, n, weights, bidirectional,
                             batch_first, dropout, out);
    if (y) *y = out[0];
    if (hn) *hn = out[1];
    if (cn) *cn = out[2];
    return s;
}

/* --- cells: one step --- */

static lks_status one_step(lks_context *ctx, const char *where, int kind, lks_tensor *const *in, lks_tensor **out)
{
    lks_tensor *x = in[0], *h = in[1], *c = in[2];
    int flat = x->v.ndim == 1; /* [I]: one sample */
    char s[200];
    if (x->v.ndim != 1 && x->v.ndim != 2)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "x %s must be [N,I] or [I]",
                         lksi_shape_text(&x->v, s, sizeof s));
    if (flat) {
        x = lks_unsqueeze(x, 0);
        if (h != lks_none) h = lks_unsqueeze(h, 0);
        if (c != lks_none) c = lks_unsqueeze(c, 0);
    }
    lks_tensor *gates = lks_unsqueeze(lks_linear(x, in[3], in[5]), 0);
    lks_tensor *states = steps(ctx, where, kind, 0, gates, in + 3, h, c, lks_none);
    for (int i = 0; i < 1 + (kind == LKSI_RNN_LSTM); i++) {
        out[i] = states ? lks_select(states, 0, 1 + i) : NULL;
        if (flat) out[i] = lks_squeeze(out[i], 0);
        if (!out[i]) return LKS_ERR_MEMORY;
    }
    return LKS_OK;
}

static lks_status cell(const char *where, int op, int kind, lks_tensor *const *in, lks_tensor **out)
{
    lks_tensor *work[7];
    lks_context *ctx = lksi_ctx(7, in);
    if (!ctx) return LKS_ERR_ARGUMENT;
    lks_status s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    if ((s = lksi_composite_begin(ctx, where, op, 7, in, work)) == LKS_OK) {
        /* Without a policy it runs in its inputs' dtype: the products inside do, too. */
        lksi_autocast_suspend(ctx);
        s = one_step(ctx, where, kind, work, out);
        lksi_autocast_resume(ctx);
        lksi_composite_end(ctx, op);
    }
    return lksi_leave_all(ctx, kind == LKSI_RNN_LSTM ? 2 : 1, out, s);
}

lks_tensor *lks_rnn_cell(lks_tensor *x, lks_tensor *h, lks_tensor *w_ih, lks_tensor *w_hh, lks_tensor *b_ih,
                         lks_tensor *b_hh, int relu)
{
    lks_tensor *in[7] = {x, h, lks_none, w_ih, w_hh, b_ih, b_hh}, *out = NULL;
    cell("lks_rnn_cell", LKSI_OP_rnn_cell, relu ? LKSI_RNN_RELU : LKSI_RNN_TANH, in, &out);
    return out;
}

lks_tensor *lks_gru_cell(lks_tensor *x, lks_tensor *h, lks_tensor *w_ih, lks_tensor *w_hh, lks_tensor *b_ih,
                         lks_tensor *b_hh)
{
    lks_tensor *in[7] = {x, h, lks_none, w_ih, w_hh, b_ih, b_hh}, *out = NULL;
    cell("lks_gru_cell", LKSI_OP_gru_cell, LKSI_RNN_GRU, in, &out);
    return out;
}

lks_status lks_lstm_cell(lks_tensor *x, lks_tensor *h, lks_tensor *c, lks_tensor *w_ih, lks_tensor *w_hh,
                         lks_tensor *b_ih, lks_tensor *b_hh, lks_tensor **h_next, lks_tensor **c_next)
{
    lks_tensor *in[7] = {x, h, c, w_ih, w_hh, b_ih, b_hh}, *out[2] = {NULL, NULL};
    lks_status s = cell("lks_lstm_cell", LKSI_OP_lstm_cell, LKSI_RNN_LSTM, in, out);
    if (h_next) *h_next = out[0];
    if (c_next) *c_next = out[1];
    return s;
}
