/* SPDX-License-Identifier: BSD-3-Clause
 *
 * grad.h - what a gradient rule sees. A rule is one function per row, lksi_back_NAME: from the gradient of the outputs
 * it makes the gradients of the inputs by calling ops. It need not care for broadcasting and dtypes: the walk sums and
 * casts what a rule gives to the shape and dtype of where it goes.
 */
#ifndef LKSI_GRAD_H
#define LKSI_GRAD_H

#include "ops/ops.h"
#include "tape/tape.h"

typedef struct lksi_back {
    lks_context *ctx;
    lksi_node *node;
    const lksi_attr *attr;
    lks_tensor *g;     /* gradient of output 0 */
    lks_tensor **grad; /* to be set: nin entries, NULL = none */
    void *walk; /* backward.c's */
    int create_graph;
    int slots; /* gradients go to .grad: lksi_back_slot may be used */
} lksi_back;

typedef lks_status (*lksi_back_fn)(lksi_back *b);
extern const lksi_back_fn lksi_back_rules[LKSI_OP_COUNT]; /* NULL: not differentiable (again) */

/* lks_backward whose gradient is a plain number, not that of something which may have been scaled. */
lks_status lksi_backward_plain(lks_tensor *root, lks_tensor *gradient);

/* The rule of custom functions. */
lks_status lksi_custom_back(lksi_back *b);

/* 1 if input i wants a gradient. */
int lksi_back_needs(const lksi_back *b, int i);
/* Saved input i / output i; NULL was not saved. lks_none for an absent input. */
lks_tensor *lksi_back_in(const lksi_back *b, int i);
lks_tensor *lksi_back_out(const lksi_back *b, int i);
/* dtype and shape that the gradient of input i must end up with. */
lksi_meta lksi_back_meta(const lksi_back *b, int i);
/* The gradient slot of the sealed parameter that input i is, if a rule may write it directly (first contribution,
 * nothing recorded); else NULL. Give it as an op's output and set grad[i] to it. */
lks_tensor *lksi_back_slot(const lksi_back *b, int i);
/* For views of a part: the gradient under way of the whole that input i is a part of, zero-filled if new, ours to add
 * into; NULL when the part must be padded instead (leaf, recorded backward); *fail on error. */
lks_tensor *lksi_back_whole(const lksi_back *b, int i, int *fail);

/* For rules whose op can add what it makes to what is there: the gradient that has arrived where input i's goes, of
 * that dtype and dense, and in *into the same if it may be written in place; lks_none and NULL: there is none. */
lks_tensor *lksi_back_there(const lksi_back *b, int i, lks_tensor **into);
/* The 16-bit dtype, plus 1, in which that gradient will be wanted too; 0: in none. */
int lksi_back_low(const lksi_back *b, int i);
/* Hands over the gradient of input i with what was there in it, and a copy in the dtype of lksi_back_low (or NULL).
 * Instead of setting grad[i]. */
lks_status lksi_back_joined(lksi_back *b, int i, lks_tensor *sum, lks_tensor *low);

/* Inputs 0 .. n-1 are views that make up one tensor without overlap, and nothing has arrived for that yet: a gradient
 * of it with memory that is not written, and in out[] the same views of it, to be written by the rule and handed over
 * with lksi_back_parts_done. Returns lks_none where it is not so, NULL on error. */
lks_tensor *lksi_back_parts(lksi_back *b, int n, lks_tensor **out);
lks_status lksi_back_parts_done(lksi_back *b, lks_tensor *whole);

#endif
