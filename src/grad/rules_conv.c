/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_conv.c - gradients of convolution, pooling, padding and sampling over 1 to 3 dims. The rows of a kind for 1, 2
 * and 3 dims follow each other in the table. A weight's gradient is written straight into its slot.
 */
#include "grad/rules.h"

/* --- convolution: bilinear in (x, weight); with dy there are three ways to leave one of them out --- */

static lks_tensor *sized(lksi_back *b, int op, lks_tensor *x, lks_tensor *y, lksi_meta m, lks_tensor *into)
{
    lks_tensor *in[2] = {x, y};
    lksi_attr attr = *b->attr;
    for (int d = 0; d < m.ndim; d++) attr.conv.size[d] = m.shape[d];
    return lksi_call(b->ctx, lksi_rows[b->node->op].name, op, 2, in, &attr, 1, &into) == LKS_OK ? into : NULL;
}

/* y = x * w without bias, in as many dims as x has. */
static lks_tensor *again(lksi_back *b, lks_tensor *x, lks_tensor *w)
{
    lks_tensor *in[3] = {x, w, lks_none};
    if (!x) return NULL;
    return lksi_call1(b->ctx, "conv", LKSI_OP_conv1d - 3 + x->v.ndim, 3, in, b->attr);
}

static lks_status bias_gradient(lksi_back *b, int channel)
{
    if (!lksi_back_needs(b, 2)) return LKS_OK;
    lks_tensor *slot = lksi_back_slot(b, 2);
    int all = (1 << b->g->v.ndim) - 1;
    lksi_attr attr = {.reduce = {.mask = all & ~(1 << channel), .dtype = lksi_back_meta(b, 2).dtype}};
    TRY(lksi_call(b->ctx, lksi_rows[b->node->op].name, LKSI_OP_sum, 1, &b->g, &attr, 1, &slot));
    b->grad[2] = slot;
    return LKS_OK;
}

static lks_status convolution(lksi_back *b)
{
    lks_tensor *x = lksi_back_in(b, 0), *w = lksi_back_in(b, 1);
    GIVE(0, sized(b, LKSI_OP_conv_backward_input, b->g, w, lksi_back_meta(b, 0), NULL));
    GIVE(1, sized(b, LKSI_OP_conv_backward_weight, b->g, x, lksi_back_meta(b, 1), lksi_back_slot(b, 1)));
    return bias_gradient(b, 1);
}

RULE(conv1d) { return convolution(b); }
RULE(conv2d) { return convolution(b); }
RULE(conv3d) { return convolution(b); }

/* y is to x what the gradient of an image is to that of a result. */
static lks_status transposed(lksi_back *b)
{
    lks_tensor *x = lksi_back_in(b, 0), *w = lksi_back_in(b, 1);
    GIVE(0, again(b, b->g, w));
    GIVE(1, sized(b, LKSI_OP_conv_backward_weight, x, b->g, lksi_back_meta(b, 1), lksi_back_slot(b, 1)));
    return bias_gradient(b, 1);
}

RULE(conv_transpose1d) { return transposed(b); }
RULE(conv_transpose2d) { return transposed(b); }
RULE(conv_transpose3d) { return transposed(b); }

/* [T, B, C] as [B, C, T] and [R, C, K] as [K, C, R]: then as any other in one dim. */
RULE(conv_tbc)
{
    static const int image[3] = {1, 2, 0}, back[3] = {2, 0, 1}, weight[3] = {2, 1, 0};
    lks_tensor *x = lks_permute(lksi_back_in(b, 0), 3, image), *w = lks_permute(lksi_back_in(b, 1), 3, weight);
    lks_tensor *g = lks_permute(b->g, 3, image);
    if (!x || !w || !g) return lksi_rule_failed(b);
    lksi_meta xm = {.dtype = x->v.dtype, .ndim = 3}, wm = {.dtype = w->v.dtype, .ndim = 3};
    for (int d = 0; d < 3; d++) xm.shape[d] = x->v.shape[d], wm.shape[d] = w->v.shape[d];
    if (lksi_back_needs(b, 0)) {
        lks_tensor *dx = sized(b, LKSI_OP_conv_backward_input, g, w, xm, NULL);
        GIVE(0, dx ? lks_permute(dx, 3, back) : NULL);
    }
    if (lksi_back_needs(b, 1)) {
        lks_tensor *dw = sized(b, LKSI_OP_conv_backward_weight, g, x, wm, NULL);
        GIVE(1, dw ? lks_permute(dw, 3, weight) : NULL);
    }
    return bias_gradient(b, 2);
}

RULE(conv_backward_input) /* (dy, weight) -> dx */
{
    lks_tensor *dy = lksi_back_in(b, 0), *w = lksi_back_in(b, 1);
    GIVE(0, again(b, b->g, w));
    GIVE(1, sized(b, LKSI_OP_conv_backward_weight, dy, b->g, lksi_back_meta(b, 1), NULL));
    return LKS_OK;
}

RULE(conv_backward_weight) /* (dy, x) -> dw */
{
    lks_tensor *dy = lksi_back_in(b, 0), *x = lksi_back_in(b, 1);
    GIVE(0, again(b, x, b->g));
    GIVE(1, sized(b, LKSI_OP_conv_backward_input, dy, b->g, lksi_back_meta(b, 1), NULL));
    return LKS_OK;
}

/* --- pooling: linear once the places are known --- */

static lks_tensor *filled(lksi_back *b, int op, lks_tensor *g, lks_tensor *place, int inside)
{
    lks_tensor *in[2] = {g, place};
    lksi_attr attr = *b->attr;
    lksi_meta m = lksi_back_meta(b, 0);
    attr.pool.inside = inside;
    for (int d = 0; d < m.ndim; d++) attr.pool.size[d] = m.shape[d];
    return lksi_call1(b->ctx, lksi_rows[op].name, op, place ? 2 : 1, in, &attr);
}

static lks_status largest(lksi_back *b)
{
    GIVE(0, filled(b, LKSI_OP_max_pool_backward, b->g, lksi_back_out(b, 1), 1));
    return LKS_OK;
}

RULE(max_pool1d) { return largest(b); }
RULE(max_pool2d) { return largest(b); }
RULE(max_pool3d) { return largest(b); }
RULE(adaptive_max_pool1d) { return largest(b); }
RULE(adaptive_max_pool2d) { return largest(b); }
RULE(adaptive_max_pool3d) { return largest(b); }
RULE(fractional_max_pool2d) { return largest(b); }
RULE(fractional_max_pool3d) { return largest(b); }

static lks_status gathered(lksi_back *b)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_max_pool_gather, b->g, lksi_back_in(b, 1)));
    return LKS_OK;
}

RULE(max_pool_backward) { return gathered(b); }
RULE(max_unpool1d) { return gathered(b); }
RULE(max_unpool2d) { return gathered(b); }
RULE(max_unpool3d) { return gathered(b); }

RULE(max_pool_gather)
{
    GIVE(0, filled(b, LKSI_OP_max_pool_backward, b->g, lksi_back_in(b, 1), 0));
    return LKS_OK;
}

static lks_status mean(lksi_back *b)
{
    GIVE(0, filled(b, LKSI_OP_avg_pool_backward, b->g, NULL, 0));
    return LKS_OK;
}

RULE(avg_pool1d) { return mean(b); }
RULE(avg_pool2d) { return mean(b); }
RULE(avg_pool3d) { return mean(b); }
RULE(adaptive_avg_pool1d) { return mean(b); }
RULE(adaptive_avg_pool2d) { return mean(b); }
RULE(adaptive_avg_pool3d) { return mean(b); }

RULE(avg_pool_backward)
{
    int first = b->attr->pool.how == LKSI_POOL_ADAPTIVE ? LKSI_OP_adaptive_avg_pool1d : LKSI_OP_avg_pool1d;
    GIVE(0, lksi_call1(b->ctx, "avg_pool", first - 3 + b->g->v.ndim, 1, &b->g, b->attr));
    return LKS_OK;
}

/* --- padding by what is inside, sampling --- */

static lks_status folded(lksi_back *b)
{
    lksi_attr attr = *b->attr;
    lksi_meta m = lksi_back_meta(b, 0);
    for (int d = 0; d < m.ndim; d++) attr.edge.size[d] = m.shape[d];
    GIVE(0, lksi_call1(b->ctx, "pad", LKSI_OP_edge_pad_backward, 1, &b->g, &attr));
    return LKS_OK;
}

RULE(reflection_pad1d) { return folded(b); }
RULE(reflection_pad2d) { return folded(b); }
RULE(reflection_pad3d) { return folded(b); }
RULE(replication_pad1d) { return folded(b); }
RULE(replication_pad2d) { return folded(b); }
RULE(replication_pad3d) { return folded(b); }

RULE(edge_pad_backward)
{
    int first = b->attr->edge.reflect ? LKSI_OP_reflection_pad1d : LKSI_OP_replication_pad1d;
    GIVE(0, lksi_call1(b->ctx, "pad", first - 3 + b->g->v.ndim, 1, &b->g, b->attr));
    return LKS_OK;
}

static lks_status sampled(lksi_back *b)
{
    lks_tensor *in[3] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1)}, *out[2] = {NULL, NULL};
    TRY(lksi_call(b->ctx, "grid_sampler", LKSI_OP_grid_sampler_backward, 3, in, b->attr, 2, out));
    for (int i = 0; i < 2; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    return LKS_OK;
}

RULE(grid_sampler_2d) { return sampled(b); }
RULE(grid_sampler_3d) { return sampled(b); }
