/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention.c - attention of several heads: projections around the row that attends.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>

/* Rows [from, from + E) of w_in, or that part of b_in. */
static lks_tensor *part(lks_tensor *w, int k, int64_t E) { return w == lks_none ? w : lks_narrow(w, 0, k * E, E); }

/* [N, T, E] as [N, heads, T, E / heads]; views. */
static lks_tensor *split(lks_tensor *x, int64_t heads)
{
    if (!x) return NULL;
    int64_t shape[4] = {x->v.shape[0], x->v.shape[1], heads, x->v.shape[2] / heads};
    return lks_transpose(lks_reshape(x, 4, shape), 1, 2);
}

/* Probabilities, mean of the heads. */
static lks_tensor *probabilities(lks_tensor *q, lks_tensor *k, lks_tensor *mask, int causal)
{
    LKSI_GUARD;
    if (!q || !k) return NULL;
    int64_t T = q->v.shape[2], S = k->v.shape[2], D = q->v.shape[3], shape[2] = {T, S};
    lks_tensor *s = lks_mul_scalar(lks_matmul(q, lks_transpose(k, 2, 3)), 1 / sqrt((double)(D > 0 ? D : 1)));
    lks_tensor *seen = NULL;
    if (mask != lks_none && mask->v.dtype == LKS_BOOL) seen = mask;
    else if (mask != lks_none) s = lks_add(s, mask);
    if (causal) {
        lks_tensor *lower = lks_tril(lks_full(q->ctx, LKS_BOOL, 2, shape, 1), S - T);
        seen = seen ? lks_where_scalar(lower, seen, 0) : lower;
        if (!seen) return NULL;
    }
    /* Not -inf: a row that sees nothing shall be zeros, with a gradient of zeros. */
    if (seen) s = lks_where_scalar(seen, s, q->v.dtype == LKS_F16 ? -65504 : -1e30);
    lks_tensor *p = lks_softmax(s, -1);
    if (seen) p = lks_where_scalar(seen, p, 0);
    return lks_mean(p, 1, (int[]){1}, 0, LKS_DTYPE_NONE);
}

/* in: query, key, value, w_in, b_in, w_out, b_out, mask */
static lks_status attend(lks_tensor *const *in, int alike, int64_t heads, int causal, double p, int wanted,
                         lks_tensor **out)
{
    int64_t E = in[0]->v.shape[2];
    lks_tensor *x[3], *joint = alike ? lks_linear(in[0], in[3], in[4]) : NULL;
    for (int k = 0; k < 3; k++) {
        x[k] = alike ? lks_narrow(joint, 2, k * E, E) : lks_linear(in[k], part(in[3], k, E), part(in[4], k, E));
        x[k] = split(x[k], heads);
    }
    lks_tensor *y = lks_scaled_dot_product_attention(x[0], x[1], x[2], in[7], p, causal, 0);
    y = lks_reshape(lks_transpose(y, 1, 2), 3, in[0]->v.shape);
    out[0] = lks_linear(y, in[5], in[6]);
    if (wanted) out[1] = probabilities(x[0], x[1], in[7], causal);
    return out[0] && (out[1] || !wanted) ? LKS_OK : LKS_ERR_MEMORY;
}

lks_status lks_multi_head_attention(lks_tensor *query, lks_tensor *key, lks_tensor *value, int64_t heads,
                                    lks_tensor *w_in, lks_tensor *b_in, lks_tensor *w_out, lks_tensor *b_out,
                                    lks_tensor *mask, int causal, double dropout_p, lks_tensor **y,
                                    lks_tensor **weights)
{
    static const char where[] = "lks_multi_head_attention";
    lks_tensor *in[8] = {query, key, value, w_in, b_in, w_out, b_out, mask}, *work[8], *out[2] = {NULL, NULL};
    lks_context *ctx = lksi_ctx(8, in);
    char s[200], t[200];
    if (y) *y = NULL;
    if (weights) *weights = NULL;
    if (!ctx) return LKS_ERR_ARGUMENT;
    for (int k = 0; k < 3; k++)
        if (in[k] == lks_none || in[k]->v.ndim != 3 || in[k]->v.shape[2] != query->v.shape[2])
            return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "query %s and input %d must be [N,T,E] and [N,S,E]",
                             query == lks_none ? "LKS_NONE" : lksi_shape_text(&query->v, s, sizeof s), k);
    if (heads < 1 || query->v.shape[2] % heads)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%lld heads do not divide %lld", (long long)heads,
                         (long long)query->v.shape[2]);
    if (w_in == lks_none || w_in->v.ndim != 2 || w_in->v.shape[0] != 3 * query->v.shape[2])
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "w_in %s does not fit query %s: [3 E,E]",
                         w_in == lks_none ? "LKS_NONE" : lksi_shape_text(&w_in->v, s, sizeof s),
                         lksi_shape_text(&query->v, t, sizeof t));
    lks_status status = lks_scope_begin(ctx);
    if (status != LKS_OK) return status;
    if ((status = lksi_composite_begin(ctx, where, LKSI_OP_multi_head_attention, 8, in, work)) == LKS_OK) {
        int alike = query == key && query == value;
        status = attend(work, alike, heads, causal, dropout_p, weights != NULL, out);
        lksi_composite_end(ctx, LKSI_OP_multi_head_attention);
    }
    status = lksi_leave_all(ctx, 1 + (weights != NULL), out, status);
    if (y) *y = out[0];
    if (weights) *weights = out[1];
    return status;
}
