/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules.h - shorthand for gradient rules. GIVE sets the gradient of input i and fails the rule when the op failed.
 */
#ifndef LKSI_RULES_H
#define LKSI_RULES_H

#include "grad/grad.h"

#define RULE(name) lks_status lksi_back_##name(lksi_back *b)
#define GIVE(i, expression)                                                                                    \
    do {                                                                                                       \
        if (lksi_back_needs(b, i) && !(b->grad[i] = (expression))) return lksi_rule_failed(b);                 \
    } while (0)

static inline lks_status lksi_rule_failed(const lksi_back *b)
{
    return b->ctx->base.code ? b->ctx->base.code : LKS_ERR_MEMORY;
}

/* Row `op` on two tensors, with the node's attributes. */
static inline lks_tensor *lksi_rule2(lksi_back *b, int op, lks_tensor *x, lks_tensor *y)
{
    lks_tensor *in[2] = {x, y};
    return lksi_call1(b->ctx, lksi_rows[op].name, op, 2, in, b->attr);
}

/* rules_again.c: instead of fused rows while backward is recorded (b->create_graph). */
lks_status lksi_again_layer_norm(lksi_back *b, int centred); /* 0: rms_norm */
lks_status lksi_again_group_norm(lksi_back *b);
lks_status lksi_again_batch_norm(lksi_back *b);
lks_status lksi_again_cross_entropy(lksi_back *b);
lks_status lksi_again_cross_entropy_soft(lksi_back *b);
lks_status lksi_again_attention(lksi_back *b);

#endif
