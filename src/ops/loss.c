/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.c - public functions of losses: arguments to attributes, then the door; and the two that are composed.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>

static lks_tensor *loss(const char *where, int op, int nin, lks_tensor *const *in, const lksi_attr *attr)
{
    lks_tensor *out[3] = {NULL, NULL, NULL};
    lks_context *ctx = lksi_ctx(nin, in);
    if (!ctx) return NULL;
    return lksi_call(ctx, where, op, nin, in, attr, lksi_rows[op].nout, out) == LKS_OK ? out[0] : NULL;
}

/* --- over classes --- */

lks_tensor *lks_cross_entropy_weighted(lks_tensor *logits, lks_tensor *target, lks_tensor *weight, int64_t ignore_index,
                                       double label_smoothing, int reduction)
{
    lks_tensor *in[3] = {logits, target, weight};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.loss = {.ignore_index = ignore_index, .smoothing = label_smoothing, .reduction = reduction}};
    int soft = lks_dtype_is_float(target->v.dtype) && target->v.ndim == logits->v.ndim;
    int alone = logits->v.ndim == 1 && target != lks_none && target->v.ndim == soft; /* [C] is one row */
    if (alone) {
        in[0] = lks_unsqueeze(logits, 0);
        in[1] = lks_unsqueeze(target, 0);
    }
    lks_tensor *y = loss("lks_cross_entropy", soft ? LKSI_OP_cross_entropy_soft : LKSI_OP_cross_entropy, 3, in, &attr);
    return alone && reduction == LKS_REDUCTION_NONE ? lks_squeeze(y, 0) : y;
}

lks_tensor *lks_cross_entropy(lks_tensor *logits, lks_tensor *target, int64_t ignore_index, double label_smoothing,
                              int reduction)
{
    return lks_cross_entropy_weighted(logits, target, LKS_NONE, ignore_index, label_smoothing, reduction);
}

lks_tensor *lks_nll_loss(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int64_t ignore_index, int reduction)
{
    lks_tensor *in[3] = {x, target, weight};
    lksi_attr attr = {.loss = {.ignore_index = ignore_index, .reduction = reduction}};
    return loss("lks_nll_loss", LKSI_OP_nll_loss, 3, in, &attr);
}

lks_tensor *lks_multi_margin_loss(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int p, double margin,
                                  int reduction)
{
    lks_tensor *in[3] = {x, target, weight};
    lksi_attr attr = {.loss = {.p = p, .a = margin, .reduction = reduction}};
    return loss("lks_multi_margin_loss", LKSI_OP_multi_margin_loss, 3, in, &attr);
}

lks_tensor *lks_multilabel_margin_loss(lks_tensor *x, lks_tensor *target, int reduction)
{
    lks_tensor *in[2] = {x, target};
    lksi_attr attr = {.loss = {.reduction = reduction}};
    return loss("lks_multilabel_margin_loss", LKSI_OP_multilabel_margin_loss, 2, in, &attr);
}

lks_tensor *lks_ctc_loss(lks_tensor *log_probs, lks_tensor *targets, lks_tensor *input_lengths,
                         lks_tensor *target_lengths, int64_t blank, int zero_infinity, int reduction)
{
    lks_tensor *in[4] = {log_probs, targets, input_lengths, target_lengths};
    if (!lksi_ctx(4, in)) return NULL;
    int alone = log_probs->v.ndim == 2 && input_lengths != lks_none && target_lengths != lks_none &&
                targets->v.ndim == 1 && input_lengths->v.ndim == 0 && target_lengths->v.ndim == 0;
    if (alone) {
        in[0] = lks_unsqueeze(log_probs, 1);
        for (int i = 1; i < 4; i++) in[i] = lks_unsqueeze(in[i], 0);
    }
    lksi_attr attr = {.loss = {.ignore_index = blank, .flags = zero_infinity != 0, .reduction = reduction}};
    lks_tensor *y = loss("lks_ctc_loss", LKSI_OP_ctc_loss, 4, in, &attr);
    return alone && reduction == LKS_REDUCTION_NONE ? lks_squeeze(y, 0) : y;
}

/* --- pointwise --- */

static lks_tensor *point(const char *where, int op, lks_tensor *x, lks_tensor *t, double a, int flags, int reduction)
{
    lks_tensor *in[2] = {x, t};
    lksi_attr attr = {.loss = {.a = a, .flags = flags, .reduction = reduction}};
    return loss(where, op, 2, in, &attr);
}

lks_tensor *lks_mse_loss(lks_tensor *x, lks_tensor *target, int reduction)
{
    return point("lks_mse_loss", LKSI_OP_mse_loss, x, target, 0, 0, reduction);
}

lks_tensor *lks_l1_loss(lks_tensor *x, lks_tensor *target, int reduction)
{
    return point("lks_l1_loss", LKSI_OP_l1_loss, x, target, 0, 0, reduction);
}

lks_tensor *lks_smooth_l1_loss(lks_tensor *x, lks_tensor *target, double beta, int reduction)
{
    return point("lks_smooth_l1_loss", LKSI_OP_smooth_l1_loss, x, target, beta, 0, reduction);
}

lks_tensor *lks_huber_loss(lks_tensor *x, lks_tensor *target, double delta, int reduction)
{
    return point("lks_huber_loss", LKSI_OP_huber_loss, x, target, delta, 0, reduction);
}

lks_tensor *lks_kl_div(lks_tensor *x, lks_tensor *target, int log_target, int reduction)
{
    return point("lks_kl_div", LKSI_OP_kl_div, x, target, 0, log_target != 0, reduction);
}

lks_tensor *lks_poisson_nll_loss(lks_tensor *x, lks_tensor *target, int log_input, int full, double eps, int reduction)
{
    return point("lks_poisson_nll_loss", LKSI_OP_poisson_nll_loss, x, target, eps, (log_input != 0) | (full != 0) << 1,
                 reduction);
}

lks_tensor *lks_hinge_embedding_loss(lks_tensor *x, lks_tensor *target, double margin, int reduction)
{
    return point("lks_hinge_embedding_loss", LKSI_OP_hinge_embedding_loss, x, target, margin, 0, reduction);
}

lks_tensor *lks_soft_margin_loss(lks_tensor *x, lks_tensor *target, int reduction)
{
    return point("lks_soft_margin_loss", LKSI_OP_soft_margin_loss, x, target, 0, 0, reduction);
}

lks_tensor *lks_binary_cross_entropy(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int reduction)
{
    lks_tensor *in[3] = {x, target, weight};
    lksi_attr attr = {.loss = {.reduction = reduction}};
    return loss("lks_binary_cross_entropy", LKSI_OP_binary_cross_entropy, 3, in, &attr);
}

lks_tensor *lks_binary_cross_entropy_with_logits(lks_tensor *x, lks_tensor *target, lks_tensor *weight,
                                                 lks_tensor *pos_weight, int reduction)
{
    lks_tensor *in[4] = {x, target, weight, pos_weight};
    lksi_attr attr = {.loss = {.reduction = reduction}};
    return loss("lks_binary_cross_entropy_with_logits", LKSI_OP_binary_cross_entropy_with_logits, 4, in, &attr);
}

lks_tensor *lks_margin_ranking_loss(lks_tensor *x1, lks_tensor *x2, lks_tensor *target, double margin, int reduction)
{
    lks_tensor *in[4] = {x1, x2, LKS_NONE, target};
    lksi_attr attr = {.loss = {.a = margin, .reduction = reduction}};
    return loss("lks_margin_ranking_loss", LKSI_OP_margin_ranking_loss, 4, in, &attr);
}

/* --- composed --- */

lks_dtype lksi_widen(int n, lks_tensor **in)
{
    lks_dtype to = LKS_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        if (!in[i] || !lks_dtype_is_float(in[i]->v.dtype)) continue;
        to = to == LKS_DTYPE_NONE ? in[i]->v.dtype : lks_promote(to, in[i]->v.dtype);
        if (in[i]->v.dtype == LKS_F16 || in[i]->v.dtype == LKS_BF16) in[i] = lks_to(in[i], LKS_F32);
    }
    return to;
}

static lks_tensor *last_sum(lks_tensor *x) { return lks_sum(x, 1, (int[]){-1}, 0, LKS_DTYPE_NONE); }

/* One of the composed losses of three inputs. */
typedef struct composed {
    double margin, p, eps;
    int swap, reduction;
} composed;

static lks_tensor *composed_loss(const char *where, int op, lks_tensor **in, const composed *o,
                                 lks_tensor *(*body)(const char *where, lks_tensor **in, const composed *o))
{
    lks_context *ctx = lksi_ctx(3, in);
    lks_tensor *work[3], *y = NULL;
    if (!ctx || lks_scope_begin(ctx) != LKS_OK) return NULL;
    if (lksi_composite_begin(ctx, where, op, 3, in, work) == LKS_OK) {
        lks_dtype to = lksi_widen(3, work);
        y = lksi_any_null(3, work) ? NULL : body(where, work, o);
        if (to != LKS_DTYPE_NONE) y = lks_to(y, to);
        lksi_composite_end(ctx, op);
    }
    return lks_scope_leave(ctx, y);
}

#define COSINE_EPS 1e-12

static lks_tensor *cosine_body(const char *where, lks_tensor **in, const composed *o)
{
    lks_tensor *dot = last_sum(lks_mul(in[0], in[1]));
    lks_tensor *a = lks_add_scalar(last_sum(lks_mul(in[0], in[0])), COSINE_EPS);
    lks_tensor *b = lks_add_scalar(last_sum(lks_mul(in[1], in[1])), COSINE_EPS);
    /* Two roots: the product of the squares may overflow. */
    lks_tensor *cosine = lks_div(dot, lks_mul(lks_sqrt(a), lks_sqrt(b)));
    return point(where, LKSI_OP_cosine_margin, cosine, in[2], o->margin, 0, o->reduction);
}

lks_tensor *lks_cosine_embedding_loss(lks_tensor *x1, lks_tensor *x2, lks_tensor *target, double margin, int reduction)
{
    const char *where = "lks_cosine_embedding_loss";
    lks_tensor *in[3] = {x1, x2, target};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    int none = x1 == lks_none || x2 == lks_none || target == lks_none; /* refused further on */
    int n = x1->v.ndim, fits = n == x2->v.ndim && (n == 1 || n == 2) && target->v.ndim == n - 1;
    for (int d = 0; fits && d < n; d++) fits = x1->v.shape[d] == x2->v.shape[d];
    if (fits && n == 2) fits = target->v.shape[0] == x1->v.shape[0];
    if (!fits && !none) {
        char s[200], t[200], u[200];
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where,
                  "inputs %s and %s with target %s: need [N, D] twice and [N], or [D] twice and []",
                  lksi_shape_text(&x1->v, s, sizeof s), lksi_shape_text(&x2->v, t, sizeof t),
                  lksi_shape_text(&target->v, u, sizeof u));
        return NULL;
    }
    composed o = {.margin = margin, .reduction = reduction};
    return composed_loss(where, LKSI_OP_cosine_embedding_loss, in, &o, cosine_body);
}

/* (sum |a - b + eps|^p)^(1/p) over the last dim; its gradient at 0 is 0. */
static lks_tensor *pair_distance(lks_tensor *a, lks_tensor *b, const composed *o)
{
    return lks_norm(lks_add_scalar(lks_sub(a, b), o->eps), o->p, 1, (int[]){-1}, 0);
}

static lks_tensor *triplet_body(const char *where, lks_tensor **in, const composed *o)
{
    lks_tensor *near = pair_distance(in[0], in[1], o), *far = pair_distance(in[0], in[2], o);
    if (o->swap) {
        lks_tensor *other = pair_distance(in[1], in[2], o);
        far = lks_where(lks_lt(other, far), other, far);
    }
    return point(where, LKSI_OP_margin_ranking_loss, far, near, o->margin, 0, o->reduction);
}

lks_tensor *lks_triplet_margin_loss(lks_tensor *anchor, lks_tensor *positive, lks_tensor *negative, double margin,
                                    double p, double eps, int swap, int reduction)
{
    LKSI_GUARD;
    const char *where = "lks_triplet_margin_loss";
    lks_tensor *in[3] = {anchor, positive, negative};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    if (!(p > 0)) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "p is %g, it must be > 0", p);
        return NULL;
    }
    for (int i = 0; i < 3; i++)
        if (in[i] != lks_none && (in[i]->v.ndim == 0 || in[i]->v.ndim != anchor->v.ndim)) {
            char s[200], t[200];
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, where,
                      "input %d is %s, the anchor %s: all need the same number of dims, the last "
                      "being what distances are taken over",
                      i, lksi_shape_text(&in[i]->v, s, sizeof s), lksi_shape_text(&anchor->v, t, sizeof t));
            return NULL;
        }
    composed o = {.margin = margin, .p = p, .eps = eps, .swap = swap, .reduction = reduction};
    return composed_loss(where, LKSI_OP_triplet_margin_loss, in, &o, triplet_body);
}
