/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_rnn.c - gradient of a recurrent layer's steps: the walk back through time is one fused row; the recurrent
 * weight's gradient is one product over all steps.
 */
#include "grad/rules.h"

RULE(rnn_steps)
{
    int kind = b->attr->rnn.kind, batch_major = b->attr->rnn.batch_major;
    lks_tensor *states = lksi_back_out(b, 0), *w = lksi_back_in(b, 1);
    lks_tensor *in[6] = {b->g, states, lksi_back_out(b, 1), w, lksi_back_in(b, 4), lksi_back_in(b, 5)};
    lks_tensor *out[4] = {NULL, NULL, NULL, NULL};
    TRY(lksi_call(b->ctx, "rnn_steps", LKSI_OP_rnn_steps_backward, 6, in, b->attr, 4, out));
    lks_tensor *dstate = kind == LKSI_RNN_GRU ? out[1] : out[0];
    int64_t steps = dstate->v.shape[0], across = dstate->v.shape[2], rows = steps * dstate->v.shape[1];
    GIVE(0, out[0]);
    GIVE(3, out[2]);
    GIVE(4, out[3]);
    if (!lksi_back_needs(b, 1) && !lksi_back_needs(b, 2)) return LKS_OK;
    lks_tensor *flat = lks_reshape(batch_major ? lks_transpose(dstate, 0, 1) : dstate, 2, (int64_t[]){rows, across});
    if (!flat) return lksi_rule_failed(b);
    if (lksi_back_needs(b, 1)) {
        lks_tensor *before = lks_narrow(states, 0, b->attr->rnn.reverse ? 1 : 0, steps);
        before = lks_reshape(batch_major ? lks_transpose(before, 0, 1) : before, 2, (int64_t[]){rows, w->v.shape[1]});
        GIVE(1, lksi_matmul_into(lksi_mT(flat), before, lksi_back_slot(b, 1)));
    }
    if (lksi_back_needs(b, 2)) {
        lks_tensor *slot = lksi_back_slot(b, 2);
        lksi_attr attr = {.reduce = {.mask = 1, .dtype = lksi_back_meta(b, 2).dtype}};
        if (lksi_call(b->ctx, "rnn_steps", LKSI_OP_sum, 1, &flat, &attr, 1, &slot)) return lksi_rule_failed(b);
        b->grad[2] = slot;
    }
    return LKS_OK;
}
