/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_index.c - gradients of what picks, places, cuts and sorts elements, and of distances. Where one place was
 * written several times only the last write has a gradient: it is found by placing the writes' numbers alike.
 */
#include "grad/rules.h"

#include <math.h>

static lks_tensor *zeros_like(lksi_back *b, int input)
{
    lksi_meta m = lksi_back_meta(b, input);
    return lks_zeros(b->ctx, b->g->v.dtype, m.ndim, m.shape);
}

static lks_tensor *row3(lksi_back *b, int op, lks_tensor *x, lks_tensor *y, lks_tensor *z)
{
    lks_tensor *in[3] = {x, y, z};
    return lksi_call1(b->ctx, lksi_rows[op].name, op, 3, in, b->attr);
}

/* --- along a dim --- */

RULE(gather)
{
    lks_tensor *zero = zeros_like(b, 0);
    GIVE(0, row3(b, LKSI_OP_scatter_add, zero, lksi_back_in(b, 1), b->g));
    return LKS_OK;
}

RULE(scatter_add)
{
    GIVE(0, b->g);
    GIVE(2, lksi_rule2(b, LKSI_OP_gather, b->g, lksi_back_in(b, 1)));
    return LKS_OK;
}

/* Numbers 0, 1, ... along dim, with index's shape. */
static lks_tensor *numbers(lksi_back *b, lks_tensor *index, int dim)
{
    int64_t shape[LKS_MAX_DIMS];
    int n = index->v.ndim;
    for (int d = 0; d < n; d++) shape[d] = d == dim ? index->v.shape[d] : 1;
    lks_tensor *t = lks_arange(b->ctx, LKS_I64, n ? index->v.shape[dim] : 1);
    return t ? lks_expand(lks_reshape(t, n, shape), n, index->v.shape) : NULL;
}

static lks_tensor *or_zero(lksi_back *b, lks_tensor *mask, lks_tensor *g)
{
    return lks_where(mask, g, lks_zeros(b->ctx, b->g->v.dtype, 0, NULL));
}

RULE(scatter)
{
    lks_tensor *index = lksi_back_in(b, 1);
    if (lksi_back_needs(b, 0)) {
        lks_tensor *zero = lks_zeros(b->ctx, b->g->v.dtype, 0, NULL);
        GIVE(0, row3(b, LKSI_OP_scatter, b->g, index, zero ? lks_expand(zero, index->v.ndim, index->v.shape) : NULL));
    }
    if (lksi_back_needs(b, 2)) {
        lks_tensor *number = numbers(b, index, b->attr->dim.dim);
        lks_tensor *wrote = lks_zeros(b->ctx, LKS_I64, b->g->v.ndim, b->g->v.shape);
        wrote = row3(b, LKSI_OP_scatter, wrote, index, number);
        lks_tensor *mask = lks_eq(lksi_rule2(b, LKSI_OP_gather, wrote, index), number);
        lks_tensor *g = or_zero(b, mask, lksi_rule2(b, LKSI_OP_gather, b->g, index));
        lksi_meta m = lksi_back_meta(b, 2);
        for (int d = 0; g && d < m.ndim && d < g->v.ndim; d++) /* src may be larger than index */
            if (g->v.shape[d] < m.shape[d]) {
                lksi_attr attr = {.slice = {.dim = d, .stop = g->v.shape[d], .step = 1, .size = m.shape[d]}};
                g = lksi_call1(b->ctx, "scatter", LKSI_OP_slice_backward, 1, &g, &attr);
            }
        GIVE(2, g);
    }
    return LKS_OK;
}

RULE(index_copy) { return lksi_back_scatter(b); }

/* --- by several indices --- */

/* x, (values,) and the node's indices, of which the first is input `first`. */
static lks_tensor *with_indices(lksi_back *b, int op, lks_tensor *x, lks_tensor *values, int first, int accumulate)
{
    lks_tensor *in[2 + LKS_MAX_DIMS] = {x, values};
    int n = values == lks_none ? 1 : 2;
    lksi_attr attr = *b->attr;
    attr.put.accumulate = accumulate;
    for (int i = 0; i < attr.put.n; i++) in[n++] = lksi_back_in(b, first + i);
    return lksi_call1(b->ctx, lksi_rows[op].name, op, n, in, &attr);
}

RULE(index)
{
    GIVE(0, with_indices(b, LKSI_OP_index_put, zeros_like(b, 0), b->g, 1, 1));
    return LKS_OK;
}

RULE(index_put)
{
    int n = b->attr->put.n, last = b->attr->put.accumulate == 0;
    lks_tensor *zero = lks_zeros(b->ctx, b->g->v.dtype, 0, NULL);
    GIVE(0, last ? with_indices(b, LKSI_OP_index_put, b->g, zero, 2, 0) : b->g);
    if (!lksi_back_needs(b, 1)) return LKS_OK;
    lks_tensor *g = with_indices(b, LKSI_OP_index, b->g, lks_none, 2, 0);
    if (last && g) {
        int nb = g->v.ndim - (b->g->v.ndim - n);
        int64_t shape[LKS_MAX_DIMS], count = 1;
        for (int d = 0; d < g->v.ndim; d++) shape[d] = d < nb ? g->v.shape[d] : 1;
        for (int d = 0; d < nb; d++) count *= shape[d];
        lks_tensor *number = lks_arange(b->ctx, LKS_I64, count);
        number = number ? lks_reshape(number, nb, shape) : NULL;
        lks_tensor *wrote = lks_zeros(b->ctx, LKS_I64, n, b->g->v.shape);
        wrote = with_indices(b, LKSI_OP_index_put, wrote, number, 2, 0);
        lks_tensor *mask = lks_eq(with_indices(b, LKSI_OP_index, wrote, lks_none, 2, 0), number);
        g = or_zero(b, mask ? lks_reshape(mask, g->v.ndim, shape) : NULL, g);
    }
    GIVE(1, g);
    return LKS_OK;
}

/* --- parts --- */

RULE(pad)
{
    lksi_attr attr = {.pad = {.value = 0}};
    for (int d = 0; d < LKS_MAX_DIMS; d++) {
        attr.pad.before[d] = -b->attr->pad.before[d];
        attr.pad.after[d] = -b->attr->pad.after[d];
    }
    GIVE(0, lksi_call1(b->ctx, "pad", LKSI_OP_pad, 1, &b->g, &attr));
    return LKS_OK;
}

RULE(triu)
{
    GIVE(0, lksi_call1(b->ctx, "triu", LKSI_OP_triu, 1, &b->g, b->attr));
    return LKS_OK;
}

RULE(flip)
{
    GIVE(0, lksi_call1(b->ctx, "flip", LKSI_OP_flip, 1, &b->g, b->attr));
    return LKS_OK;
}

RULE(diagonal)
{
    lksi_meta m = lksi_back_meta(b, 0);
    lksi_attr attr = *b->attr;
    attr.diagonal.rows = m.shape[attr.diagonal.d0];
    attr.diagonal.columns = m.shape[attr.diagonal.d1];
    GIVE(0, lksi_call1(b->ctx, "diagonal", LKSI_OP_diag_embed, 1, &b->g, &attr));
    return LKS_OK;
}

RULE(diag_embed)
{
    GIVE(0, lksi_call1(b->ctx, "diag_embed", LKSI_OP_diagonal, 1, &b->g, b->attr));
    return LKS_OK;
}

RULE(trace)
{
    lksi_meta m = lksi_back_meta(b, 0);
    lksi_attr attr = {.diagonal = {.d1 = 1, .rows = m.shape[0], .columns = m.shape[1]}};
    int64_t n = m.shape[0] < m.shape[1] ? m.shape[0] : m.shape[1];
    lks_tensor *line = lks_expand(b->g, 1, &n);
    GIVE(0, line ? lksi_call1(b->ctx, "trace", LKSI_OP_diag_embed, 1, &line, &attr) : NULL);
    return LKS_OK;
}

RULE(cross)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_cross, lksi_back_in(b, 1), b->g));
    GIVE(1, lksi_rule2(b, LKSI_OP_cross, b->g, lksi_back_in(b, 0)));
    return LKS_OK;
}

RULE(sort)
{
    lks_tensor *in[3] = {zeros_like(b, 0), lksi_back_out(b, 1), b->g};
    lksi_attr attr = {.dim = {.dim = b->attr->sort.dim}};
    GIVE(0, lksi_call1(b->ctx, "sort", LKSI_OP_scatter, 3, in, &attr));
    return LKS_OK;
}

/* --- distances --- */

/* The largest difference is looked for among all: a reduced dtype has rounded it. */
static int must_be_exact(const lksi_back *b, const lks_tensor *z)
{
    return z && isinf(b->attr->distance.p) && (z->v.dtype == LKS_F16 || z->v.dtype == LKS_BF16);
}

RULE(cdist)
{
    lks_tensor *x = lksi_back_in(b, 0), *y = lksi_back_in(b, 1), *z = lksi_back_out(b, 0);
    if (must_be_exact(b, z)) {
        x = lks_to(x, LKS_F32), y = lks_to(y, LKS_F32);
        z = lks_cdist(x, y, b->attr->distance.p);
        b->g = lks_to(b->g, LKS_F32);
    }
    lks_tensor *left[4] = {b->g, x, y, z}, *right[4] = {lksi_mT(b->g), y, x, lksi_mT(z)};
    if (!right[0] || !right[3]) return lksi_rule_failed(b);
    GIVE(0, lksi_call1(b->ctx, "cdist", LKSI_OP_cdist_backward, 4, left, b->attr));
    GIVE(1, lksi_call1(b->ctx, "cdist", LKSI_OP_cdist_backward, 4, right, b->attr));
    return LKS_OK;
}

RULE(pdist)
{
    lks_tensor *x = lksi_back_in(b, 0), *z = lksi_back_out(b, 0);
    if (must_be_exact(b, z)) {
        x = lks_to(x, LKS_F32);
        z = lks_pdist(x, b->attr->distance.p);
        b->g = lks_to(b->g, LKS_F32);
    }
    GIVE(0, row3(b, LKSI_OP_pdist_backward, b->g, x, z));
    return LKS_OK;
}
