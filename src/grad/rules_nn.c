/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_nn.c - gradients of products, norms, softmax, indexing, attention. Where a sealed parameter is
 * the target its gradient is written straight into its slot (lksi_back_slot), in the parameter's own dtype.
 */
#include "grad/rules.h"
#include <lockstep/comm.h>

/* --- products --- */

/* [.., n] as [rows, n] */
static lks_tensor *rows_of(lks_tensor *x)
{
    int64_t shape[2] = {-1, x->v.shape[x->v.ndim - 1]};
    if (x->v.ndim == 2) return x;
    if (shape[1] == 0 || x->numel == 0) {
        shape[0] = 1;
        for (int d = 0; d < x->v.ndim - 1; d++) shape[0] *= x->v.shape[d];
    }
    return lks_reshape(x, 2, shape);
}

/* alpha x y */
static lks_tensor *scaled_product(lks_tensor *x, lks_tensor *y, double alpha, lks_tensor *into)
{
    if (alpha == 1) return lksi_matmul_into(x, y, into);
    lks_tensor *in[2] = {x, y};
    lks_context *ctx = lksi_ctx(2, in);
    lksi_attr attr = {.product = {.alpha = alpha}};
    return ctx && lksi_call(ctx, "addmm", LKSI_OP_addmm, 2, in, &attr, 1, &into) == LKS_OK ? into : NULL;
}

static lks_status product_back(lksi_back *b, double alpha)
{
    lks_tensor *x = lksi_back_in(b, 0), *y = lksi_back_in(b, 1), *g = b->g;
    int x1 = x->v.ndim == 1, y1 = y->v.ndim == 1;
    /* Give every operand its matrix dims; the walk removes what it summed. */
    if (x1) x = lks_unsqueeze(x, 0);
    if (y1) y = lks_unsqueeze(y, -1);
    if (y1) g = lks_unsqueeze(g, -1);
    if (x1) g = lks_unsqueeze(g, -2);
    if (lksi_back_needs(b, 0)) y = lksi_conj(y);
    if (lksi_back_needs(b, 1)) x = lksi_conj(x);
    if (!x || !y || !g) return lksi_rule_failed(b);
    if (lksi_back_needs(b, 0)) {
        lks_tensor *slot = !x1 && !y1 && x->v.ndim == 2 && y->v.ndim == 2 ? lksi_back_slot(b, 0) : NULL;
        lks_tensor *dx = scaled_product(g, lksi_mT(y), alpha, slot);
        GIVE(0, x1 ? lks_squeeze(dx, -2) : dx);
    }
    if (lksi_back_needs(b, 1)) {
        lks_tensor *dy, *slot = NULL;
        if (y->v.ndim == 2 && x->v.ndim > 2) { /* one product over all rows instead of a batch to be summed */
            slot = y1 ? NULL : lksi_back_slot(b, 1);
            lks_tensor *x2 = rows_of(x), *g2 = rows_of(g);
            if (!x2 || !g2) return lksi_rule_failed(b);
            dy = scaled_product(lksi_mT(x2), g2, alpha, slot);
        } else {
            if (x->v.ndim == 2 && y->v.ndim == 2 && !y1) slot = lksi_back_slot(b, 1);
            dy = scaled_product(lksi_mT(x), g, alpha, slot);
        }
        GIVE(1, y1 ? lks_squeeze(dy, -1) : dy);
    }
    return LKS_OK;
}

RULE(matmul) { return product_back(b, 1); }
RULE(mv) { return product_back(b, 1); }
RULE(dot) { return product_back(b, 1); }

RULE(addmm)
{
    double beta = b->attr->product.beta;
    if (lksi_back_needs(b, 0) || lksi_back_needs(b, 1)) TRY(product_back(b, b->attr->product.alpha));
    GIVE(2, beta == 1 ? b->g : lks_mul_scalar(b->g, beta));
    return LKS_OK;
}

RULE(addmv) { return lksi_back_addmm(b); }

RULE(linalg_vecdot)
{
    lks_tensor *g = lks_unsqueeze(b->g, b->attr->dim.dim);
    GIVE(0, lks_mul(g, lksi_back_in(b, 1)));
    GIVE(1, lks_mul(g, lksi_back_in(b, 0)));
    return LKS_OK;
}

/* y_o = x1 W_o x2: each gradient is a bilinear form too, with W's dims in another order; dW = (g x1)^T x2 over rows. */
RULE(bilinear)
{
    lks_tensor *x = lksi_back_in(b, 0), *y = lksi_back_in(b, 1), *w = lksi_back_in(b, 2), *g = b->g;
    GIVE(0, lks_bilinear(g, y, lks_permute(w, 3, (int[]){1, 0, 2}), lks_none));
    GIVE(1, lks_bilinear(g, x, lks_permute(w, 3, (int[]){2, 0, 1}), lks_none));
    if (lksi_back_needs(b, 2)) {
        int64_t shape[2] = {1, w->v.shape[0] * w->v.shape[1]};
        lks_tensor *g2 = rows_of(g), *x2 = rows_of(x), *y2 = rows_of(y);
        if (!g2 || !x2 || !y2) return lksi_rule_failed(b);
        shape[0] = g2->v.shape[0];
        lks_tensor *gx = lks_reshape(lks_mul(lks_unsqueeze(g2, 2), lks_unsqueeze(x2, 1)), 2, shape);
        GIVE(2, gx ? lksi_reshape_like(lksi_matmul_into(lksi_mT(gx), y2, NULL), 3, w->v.shape) : NULL);
    }
    GIVE(3, g);
    return LKS_OK;
}

/* y = x W^T + c, x [.., I], W [O, I], c [O]: dx = g W, dW = g^T x, dc = sum g */
RULE(linear)
{
    lks_tensor *x = lksi_back_in(b, 0), *w = lksi_back_in(b, 1), *g = rows_of(b->g);
    if (!g) return lksi_rule_failed(b);
    if (lksi_back_needs(b, 0)) {
        lksi_meta m = lksi_back_meta(b, 0);
        GIVE(0, lksi_reshape_like(lksi_matmul_into(g, w, NULL), m.ndim, m.shape));
    }
    if (lksi_back_needs(b, 1) && lksi_back_needs(b, 2) && !b->create_graph) { /* both in one pass over g */
        lks_tensor *in[2] = {g, rows_of(x)}, *out[2] = {lksi_back_slot(b, 1), lksi_back_slot(b, 2)};
        lksi_attr attr = {.cast = {.dtype = lksi_back_meta(b, 2).dtype}};
        if (lksi_call(b->ctx, "linear", LKSI_OP_linear_weight_backward, 2, in, &attr, 2, out))
            return lksi_rule_failed(b);
        b->grad[1] = out[0], b->grad[2] = out[1];
        return LKS_OK;
    }
    if (lksi_back_needs(b, 1)) {
        lks_tensor *x2 = rows_of(x);
        GIVE(1, x2 ? lksi_matmul_into(lksi_mT(g), x2, lksi_back_slot(b, 1)) : NULL);
    }
    if (lksi_back_needs(b, 2)) {
        lks_tensor *slot = lksi_back_slot(b, 2);
        lksi_attr attr = {.reduce = {.mask = 1, .dtype = lksi_back_meta(b, 2).dtype}};
        if (lksi_call(b->ctx, "linear", LKSI_OP_sum, 1, &g, &attr, 1, &slot)) return lksi_rule_failed(b);
        b->grad[2] = slot;
    }
    return LKS_OK;
}

/* --- normalisation --- */

/* dx, dweight, dbias of a norm in one call; the last two straight into slots where they are there. */
static lks_status norm_back(lksi_back *b, int op)
{
    lks_tensor *in[5] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_out(b, 1), lksi_back_out(b, 2)};
    lks_tensor *out[3] = {NULL, NULL, NULL};
    if (in[2] != lks_none) {
        out[1] = lksi_back_needs(b, 1) ? lksi_back_slot(b, 1) : NULL;
        out[2] = lksi_back_needs(b, 2) ? lksi_back_slot(b, 2) : NULL;
    }
    TRY(lksi_call(b->ctx, lksi_rows[op].name, op, 5, in, b->attr, 3, out));
    for (int i = 0; i < 3; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    return LKS_OK;
}

/* dx in the last but one place of `in` and the first of `out`, its copy in the last of `out`: added to what has arrived
 * at x, as a residual's gradient has, and written in 16 bits too where that will be wanted. */
static lks_status norm_sum(lksi_back *b, int op, int nin, lks_tensor **in, int nout, lks_tensor **out)
{
    lksi_attr attr = *b->attr;
    if (lksi_back_needs(b, 0) && lksi_back_meta(b, 0).dtype == in[1]->v.dtype) {
        in[nin - 1] = lksi_back_there(b, 0, &out[0]);
        attr.norm.low = lksi_back_low(b, 0);
    }
    TRY(lksi_call(b->ctx, lksi_rows[op].name, op, nin, in, &attr, nout, out));
    for (int i = 1; i < nout - 1; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    if (!lksi_back_needs(b, 0)) return LKS_OK;
    if (in[nin - 1] == lks_none && !attr.norm.low) {
        b->grad[0] = out[0];
        return LKS_OK;
    }
    return lksi_back_joined(b, 0, out[0], attr.norm.low ? out[nout - 1] : NULL);
}

RULE(layer_norm)
{
    if (b->create_graph) return lksi_again_layer_norm(b, 1);
    lks_tensor *in[6] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_out(b, 1), lksi_back_out(b, 2),
                         lks_none};
    lks_tensor *out[4] = {NULL, NULL, NULL, NULL};
    if (in[2] != lks_none) {
        out[1] = lksi_back_needs(b, 1) ? lksi_back_slot(b, 1) : NULL;
        out[2] = lksi_back_needs(b, 2) ? lksi_back_slot(b, 2) : NULL;
    }
    return norm_sum(b, LKSI_OP_layer_norm_backward, 6, in, 4, out);
}

RULE(group_norm) { return b->create_graph ? lksi_again_group_norm(b) : norm_back(b, LKSI_OP_group_norm_backward); }

RULE(rms_norm)
{
    if (b->create_graph) return lksi_again_layer_norm(b, 0);
    lks_tensor *in[5] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_out(b, 1), lks_none};
    lks_tensor *out[3] = {NULL, NULL, NULL};
    if (in[2] != lks_none && lksi_back_needs(b, 1)) out[1] = lksi_back_slot(b, 1);
    return norm_sum(b, LKSI_OP_rms_norm_backward, 5, in, 3, out);
}

/* Statistics of all ranks: so are the sums that dx is made of. Collective. */
static lks_status batch_norm_of_all(lksi_back *b, lks_tensor *measured)
{
    lks_tensor *x = lksi_back_in(b, 0), *mean = lksi_back_out(b, 1), *of[3] = {b->g, x, mean};
    lks_tensor *sums = lksi_call1(b->ctx, "batch_norm", LKSI_OP_batch_norm_sums, 3, of, NULL);
    lks_tensor *all = lks_clone(sums), *out[3] = {NULL, NULL, NULL};
    if (!all) return lksi_rule_failed(b);
    TRY(lks_all_reduce(all, LKS_SUM));
    lks_tensor *in[8] = {b->g, x, lksi_back_in(b, 1), mean, lksi_back_out(b, 2), sums, all, measured};
    if (in[2] != lks_none) {
        out[1] = lksi_back_needs(b, 1) ? lksi_back_slot(b, 1) : NULL;
        out[2] = lksi_back_needs(b, 2) ? lksi_back_slot(b, 2) : NULL;
    }
    TRY(lksi_call(b->ctx, "batch_norm", LKSI_OP_batch_norm_backward, 8, in, b->attr, 3, out));
    for (int i = 0; i < 3; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    return LKS_OK;
}

RULE(batch_norm)
{
    lks_tensor *measured = b->node->nin > 7 ? lksi_back_in(b, 7) : lks_none;
    if (measured != lks_none) return batch_norm_of_all(b, measured);
    return b->create_graph ? lksi_again_batch_norm(b) : norm_back(b, LKSI_OP_batch_norm_backward);
}

/* --- softmax --- */

RULE(softmax)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_softmax_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(softmax_backward) /* dx = y (dy - s), s = sum y dy */
{
    lks_tensor *dy = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    int dim = b->attr->dim.dim, n = dy->v.ndim ? 1 : 0;
    GIVE(0, lksi_rule2(b, LKSI_OP_softmax_backward, b->g, y));
    if (lksi_back_needs(b, 1)) {
        lks_tensor *s = lks_sum(lks_mul(y, dy), n, &dim, 1, LKS_DTYPE_NONE);
        lks_tensor *t = lks_sum(lks_mul(b->g, y), n, &dim, 1, LKS_DTYPE_NONE);
        GIVE(1, lks_sub(lks_mul(b->g, lks_sub(dy, s)), lks_mul(dy, t)));
    }
    return LKS_OK;
}

RULE(log_softmax)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_log_softmax_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(log_softmax_backward) /* dx = dy - e^y sum dy */
{
    lks_tensor *dy = lksi_back_in(b, 0), *p = lks_exp(lksi_back_in(b, 1));
    int dim = b->attr->dim.dim, n = dy->v.ndim ? 1 : 0;
    lks_tensor *gp = lks_mul(b->g, p);
    GIVE(0, lks_sub(b->g, lks_sum(gp, n, &dim, 1, LKS_DTYPE_NONE)));
    GIVE(1, lks_neg(lks_mul(gp, lks_sum(dy, n, &dim, 1, LKS_DTYPE_NONE))));
    return LKS_OK;
}

/* --- indexing, joining --- */

RULE(embedding)
{
    lks_tensor *in[2] = {b->g, lksi_back_in(b, 1)}, *out = lksi_back_slot(b, 0);
    if (lksi_call(b->ctx, "embedding", LKSI_OP_embedding_backward, 2, in, b->attr, 1, &out)) return lksi_rule_failed(b);
    b->grad[0] = out;
    return LKS_OK;
}

RULE(embedding_backward)
{
    GIVE(0, lks_embedding(b->g, lksi_back_in(b, 1)));
    return LKS_OK;
}

RULE(cat)
{
    int dim = b->attr->dim.dim;
    int64_t at = 0;
    for (int i = 0; i < b->node->nin; i++) {
        int64_t n = b->node->part[i];
        if (n < 0) continue; /* a legacy empty took no part */
        GIVE(i, lks_slice(b->g, dim, at, at + n, 1));
        at += n;
    }
    return LKS_OK;
}

/* --- attention --- */

RULE(attention)
{
    if (b->create_graph && b->attr->attention.p == 0) return lksi_again_attention(b);
    lks_tensor *in[7] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_in(b, 2), lksi_back_in(b, 3),
                         lksi_back_out(b, 0), lksi_back_out(b, 1)};
    lks_tensor *out[3] = {NULL, NULL, NULL}, *whole = lksi_back_parts(b, 3, out); /* q, k, v side by side */
    if (!whole) return lksi_rule_failed(b);
    TRY(lksi_call(b->ctx, "attention", LKSI_OP_attention_backward, 7, in, b->attr, 3, out));
    if (whole != lks_none) return lksi_back_parts_done(b, whole);
    for (int i = 0; i < 3; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    return LKS_OK;
}
