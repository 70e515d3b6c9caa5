/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.h - pointwise losses: the list of them, and their formulas with first and second derivatives, shared by CPU and
 * CUDA kernels. A loss here is a formula of one element each of input, target and a third operand p (1 if absent);
 * weights, broadcasting, reduction and the gradient that is given are the kernels' business. The row of each has its
 * name; loss_slope is the derivative of any order of all of them.
 */
#ifndef LKSI_LOSS_H
#define LKSI_LOSS_H

#include "table/math.h"

/* X(name, flat): flat = 1: the third derivatives are 0. */
#define LKSI_LOSS_LIST(X)                                                                                      \
    X(mse_loss, 1)                                                                                             \
    X(l1_loss, 1)                                                                                              \
    X(smooth_l1_loss, 1)                                                                                       \
    X(huber_loss, 1)                                                                                           \
    X(binary_cross_entropy, 0)                                                                                 \
    X(binary_cross_entropy_with_logits, 0)                                                                     \
    X(kl_div, 0)                                                                                               \
    X(poisson_nll_loss, 0)                                                                                     \
    X(hinge_embedding_loss, 1)                                                                                 \
    X(margin_ranking_loss, 1)                                                                                  \
    X(soft_margin_loss, 0)                                                                                     \
    X(cosine_margin, 1)

enum {
#define X(name, flat) LKSI_LOSS_##name,
    LKSI_LOSS_LIST(X)
#undef X
    LKSI_LOSS_COUNT
};

/* What a formula gives. */
enum { LKSI_LOSS_VALUE, LKSI_LOSS_X, LKSI_LOSS_T, LKSI_LOSS_XX, LKSI_LOSS_XT, LKSI_LOSS_TT, LKSI_LOSS_ORDERS };

/* The derivative of `order` with respect to x (by 0) or t (1); LKSI_LOSS_ORDERS: a third one. */
LKSI_HD int lksi_loss_next(int order, int by)
{
    switch (order) {
    case LKSI_LOSS_VALUE: return by ? LKSI_LOSS_T : LKSI_LOSS_X;
    case LKSI_LOSS_X: return by ? LKSI_LOSS_XT : LKSI_LOSS_XX;
    case LKSI_LOSS_T: return by ? LKSI_LOSS_TT : LKSI_LOSS_XT;
    default: return LKSI_LOSS_ORDERS;
    }
}

/* Inlined always, so that `order` is known where a loop is written. */
#ifdef __CUDACC__
#define LKSI_FORMULA LKSI_HD
#else
#define LKSI_FORMULA static inline __attribute__((always_inline))
#endif

#define REAL float
#define F(name) name##_f
#define EXP lksi_expf
#define LOG lksi_logf
#include "table/loss_real.h"
#undef REAL
#undef F
#undef EXP
#undef LOG
#define REAL double
#define F(name) name##_d
#define EXP exp
#define LOG log
#include "table/loss_real.h"
#undef REAL
#undef F
#undef EXP
#undef LOG

#endif
