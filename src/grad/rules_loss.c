/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_loss.c - gradients of losses. All pointwise ones share one rule and one row, loss_slope, which is its own
 * derivative with another order; those over classes have fused backward rows.
 */
#include "grad/rules.h"
#include "table/loss.h"

/* --- pointwise --- */

/* dy (derivative `order` of the formula), in the dtype that the gradient of input i needs. from: where input is among
 * the saved inputs. */
static lks_tensor *slope(lksi_back *b, lks_tensor *dy, int from, int order, int i)
{
    lks_tensor *in[5] = {dy};
    for (int k = 0; k < 4; k++) in[k + 1] = lksi_back_in(b, from + k);
    lksi_attr attr = *b->attr;
    attr.loss.order = order;
    attr.loss.dtype = lksi_back_meta(b, i).dtype;
    return lksi_call1(b->ctx, lksi_rows[b->node->op].name, LKSI_OP_loss_slope, 5, in, &attr);
}

static lks_status point(lksi_back *b)
{
    GIVE(0, slope(b, b->g, 0, LKSI_LOSS_X, 0));
    GIVE(1, slope(b, b->g, 0, LKSI_LOSS_T, 1));
    return LKS_OK;
}

#define X(name, flat)                                                                                          \
    RULE(name) { return point(b); }
LKSI_LOSS_LIST(X)
#undef X

RULE(loss_slope) /* linear in dy; another derivative in input and target */
{
    static const int flat[LKSI_LOSS_COUNT] = {
#define X(name, flat) flat,
        LKSI_LOSS_LIST(X)
#undef X
    };
    int kind = b->attr->loss.kind, order = b->attr->loss.order;
    GIVE(0, slope(b, b->g, 1, order, 0));
    for (int by = 0; by < 2; by++) {
        int next = lksi_loss_next(order, by);
        if (!lksi_back_needs(b, 1 + by)) continue;
        if (next < LKSI_LOSS_ORDERS) GIVE(1 + by, slope(b, lks_mul(b->g, lksi_back_in(b, 0)), 1, next, 1 + by));
        else if (!flat[kind])
            return lksi_fail(&b->ctx->base, LKS_ERR_UNSUPPORTED, lksi_rows[b->node->op].name,
                             "a pointwise loss of this kind is differentiable twice, not three times");
    }
    return LKS_OK;
}

/* --- over classes --- */

RULE(cross_entropy)
{
    if (b->create_graph) return lksi_again_cross_entropy(b);
    lks_tensor *in[6] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_out(b, 1), lksi_back_out(b, 2),
                         lksi_back_in(b, 2)};
    GIVE(0, lksi_call1(b->ctx, "cross_entropy", LKSI_OP_cross_entropy_backward, 6, in, b->attr));
    return LKS_OK;
}

RULE(cross_entropy_soft)
{
    if (b->create_graph) return lksi_again_cross_entropy_soft(b);
    lks_tensor *in[5] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_out(b, 1), lksi_back_in(b, 2)};
    lks_tensor *out[2] = {NULL, NULL};
    lksi_attr attr = *b->attr;
    attr.loss.flags = lksi_back_needs(b, 1);
    TRY(lksi_call(b->ctx, "cross_entropy", LKSI_OP_cross_entropy_soft_backward, 5, in, &attr, 2, out));
    for (int i = 0; i < 2; i++)
        if (lksi_back_needs(b, i)) b->grad[i] = out[i];
    return LKS_OK;
}

RULE(nll_loss)
{
    lks_tensor *in[4] = {b->g, lksi_back_in(b, 1), lksi_back_out(b, 1), lksi_back_in(b, 2)};
    lksi_attr attr = *b->attr;
    if (!lksi_back_needs(b, 0)) return LKS_OK;
    attr.loss.dtype = lksi_back_meta(b, 0).dtype;
    GIVE(0, lksi_call1(b->ctx, "nll_loss", LKSI_OP_nll_loss_backward, 4, in, &attr));
    return LKS_OK;
}

RULE(nll_loss_backward) /* the adjoint of a linear map: the map */
{
    lks_tensor *in[3] = {b->g, lksi_back_in(b, 1), lksi_back_in(b, 3)}, *out[2] = {NULL, NULL};
    if (!lksi_back_needs(b, 0)) return LKS_OK;
    TRY(lksi_call(b->ctx, "nll_loss", LKSI_OP_nll_loss, 3, in, b->attr, 2, out));
    b->grad[0] = out[0];
    return LKS_OK;
}

RULE(multi_margin_loss)
{
    lks_tensor *in[4] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_in(b, 2)};
    GIVE(0, lksi_call1(b->ctx, "multi_margin_loss", LKSI_OP_multi_margin_loss_backward, 4, in, b->attr));
    return LKS_OK;
}

RULE(multilabel_margin_loss)
{
    lks_tensor *in[3] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1)};
    GIVE(0, lksi_call1(b->ctx, "multilabel_margin_loss", LKSI_OP_multilabel_margin_loss_backward, 3, in, b->attr));
    return LKS_OK;
}

RULE(ctc_loss)
{
    lks_tensor *in[6] = {b->g, lksi_back_in(b, 0), lksi_back_in(b, 1), lksi_back_in(b, 2), lksi_back_in(b, 3),
                         lksi_back_out(b, 1)};
    GIVE(0, lksi_call1(b->ctx, "ctc_loss", LKSI_OP_ctc_loss_backward, 6, in, b->attr));
    return LKS_OK;
}
