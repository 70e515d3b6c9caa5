/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_loss.c - shape rules of losses: cross entropy, nll, the pointwise family, margins over classes, ctc.
 */
#include "table/loss.h"
#include "table/table.h"

static int same_shape(const lksi_view *a, const lksi_view *b)
{
    if (a->ndim != b->ndim) return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    return 1;
}

static void like(lksi_view *y, const lksi_view *x)
{
    y->dtype = x->dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    lksi_contiguous_strides(y);
}

static const lksi_view *given(const lksi_args *a, int i) { return i < a->nin && a->in[i].ndim >= 0 ? &a->in[i] : NULL; }

/* dtype of a loss of x: float32 where autocast or the row asks for no less. */
static lks_dtype result_of(lks_dtype x, int wide) { return wide && x != LKS_F64 ? LKS_F32 : x; }

static lks_status misfit(lksi_args *a, const char *what, const lksi_view *x, const char *other, const lksi_view *y)
{
    char s[200], t[200];
    return lksi_why(a, LKS_ERR_SHAPE, "%s %s does not fit %s %s", what, lksi_shape_text(x, s, sizeof s), other,
                    lksi_shape_text(y, t, sizeof t));
}

static lks_status need_float(lksi_args *a, const char *what, const lksi_view *x)
{
    if (lks_dtype_is_float(x->dtype)) return LKS_OK;
    return lksi_why(a, LKS_ERR_DTYPE, "%s %s, a floating dtype is needed", what, lks_dtype_name(x->dtype));
}

static lks_status need_index(lksi_args *a, const char *what, const lksi_view *x)
{
    if (x->dtype == LKS_I64 || x->dtype == LKS_I32) return LKS_OK;
    return lksi_why(a, LKS_ERR_DTYPE, "%s %s, int64 or int32 is needed", what, lks_dtype_name(x->dtype));
}

static lks_status need_reduction(lksi_args *a, int batchmean, int nan)
{
    int r = a->attr.loss.reduction;
    if ((r >= 0 && r <= 2) || (r == 3 && batchmean) || (r == 4 && nan)) return LKS_OK;
    return lksi_why(a, LKS_ERR_ARGUMENT, "reduction is %d, which %s does not have", r, lksi_rows[a->op].name);
}

/* weight: one float per class. */
static lks_status need_weight(lksi_args *a, const lksi_view *w, int64_t classes)
{
    char s[128];
    if (!w) return LKS_OK;
    TRY(need_float(a, "weight is", w));
    if (w->ndim != 1 || w->shape[0] != classes)
        return lksi_why(a, LKS_ERR_SHAPE, "weight %s must be [%lld], one entry per class",
                        lksi_shape_text(w, s, sizeof s), (long long)classes);
    return LKS_OK;
}

/* The shape of a loss: `each` for no reduction, else 0-dim. */
static void loss_like(lksi_args *a, const lksi_view *each, lks_dtype dtype)
{
    like(&a->out[0], each);
    if (a->attr.loss.reduction != 0) a->out[0].ndim = 0;
    a->out[0].dtype = dtype;
}

/* The gradient of such a loss. */
static lks_status need_dy(lksi_args *a, const lksi_view *each)
{
    const lksi_view *dy = &a->in[0];
    TRY(need_float(a, "dy is", dy));
    if (a->attr.loss.reduction != 0 ? dy->ndim != 0 : !same_shape(dy, each)) return misfit(a, "dy", dy, "target", each);
    return LKS_OK;
}

/* --- cross entropy, nll ------------------------------------------------------------------------------------------- */

/* target [N, d...] of x [N, C, d...], or [] of [C] where alone is allowed. */
static lks_status class_targets(lksi_args *a, const lksi_view *x, const lksi_view *target, const char *name, int alone)
{
    char s[128], t[128];
    TRY(need_index(a, "target is", target));
    int fits = x->ndim >= 2 && target->ndim == x->ndim - 1 && target->shape[0] == x->shape[0];
    for (int d = 2; fits && d < x->ndim; d++) fits = target->shape[d - 1] == x->shape[d];
    if (fits || (alone && x->ndim == 1 && target->ndim == 0)) return LKS_OK;
    return lksi_why(a, LKS_ERR_SHAPE, "target %s does not fit %s %s ([N, C, d...] takes [N, d...])",
                    lksi_shape_text(target, s, sizeof s), name, lksi_shape_text(x, t, sizeof t));
}

static lks_status entropy_check(lksi_args *a, const lksi_view *x, const lksi_view *target, const lksi_view *weight,
                                int soft)
{
    TRY(need_float(a, "logits are", x));
    if (soft) {
        TRY(need_float(a, "target is", target));
        if (x->ndim < 2 || !same_shape(x, target)) return misfit(a, "target", target, "logits", x);
    } else {
        TRY(class_targets(a, x, target, "logits", 0));
    }
    TRY(need_weight(a, weight, x->shape[1]));
    if (!(a->attr.loss.smoothing >= 0 && a->attr.loss.smoothing <= 1))
        return lksi_why(a, LKS_ERR_ARGUMENT, "label smoothing is %g, it must be in [0, 1]", a->attr.loss.smoothing);
    return need_reduction(a, 0, 1);
}

/* x without its dim of classes. */
static lksi_view rows_of(const lksi_view *x)
{
    lksi_view v = *x;
    if (x->ndim > 0) v.ndim = x->ndim - 1;
    for (int d = 2; d < x->ndim; d++) v.shape[d - 1] = x->shape[d];
    return v;
}

/* loss, lse [N, d...] and count [] are float32, float64 where logits are. */
static void entropy_outputs(lksi_args *a, const lksi_view *x)
{
    lksi_view each = rows_of(x);
    lks_dtype dtype = x->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    loss_like(a, &each, dtype);
    like(&a->out[1], &each);
    a->out[1].dtype = dtype;
    if (a->nout < 3) return;
    a->out[2].ndim = 0;
    a->out[2].dtype = dtype;
}

lks_status lksi_infer_cross_entropy(lksi_args *a)
{
    TRY(entropy_check(a, &a->in[0], &a->in[1], given(a, 2), 0));
    entropy_outputs(a, &a->in[0]);
    return LKS_OK;
}

lks_status lksi_infer_cross_entropy_soft(lksi_args *a)
{
    TRY(entropy_check(a, &a->in[0], &a->in[1], given(a, 2), 1));
    entropy_outputs(a, &a->in[0]);
    return LKS_OK;
}

lks_status lksi_infer_cross_entropy_backward(lksi_args *a)
{
    const lksi_view *x = &a->in[1], *target = &a->in[2], *lse = &a->in[3], *count = &a->in[4];
    TRY(entropy_check(a, x, target, given(a, 5), 0));
    TRY(need_dy(a, target));
    if (!same_shape(lse, target) || !lks_dtype_is_float(lse->dtype) || count->ndim != 0 ||
        !lks_dtype_is_float(count->dtype))
        return misfit(a, "lse or count", lse, "target", target);
    like(&a->out[0], x);
    return LKS_OK;
}

lks_status lksi_infer_cross_entropy_soft_backward(lksi_args *a)
{
    const lksi_view *x = &a->in[1], *target = &a->in[2], *lse = &a->in[3];
    TRY(entropy_check(a, x, target, given(a, 4), 1));
    lksi_view each = rows_of(x);
    TRY(need_dy(a, &each));
    if (!same_shape(lse, &each) || !lks_dtype_is_float(lse->dtype)) return misfit(a, "lse", lse, "logits", x);
    like(&a->out[0], x);
    like(&a->out[1], target);
    if (!(a->attr.loss.flags & 1)) {
        a->out[1].ndim = 1;
        a->out[1].shape[0] = 0;
        a->out[1].stride[0] = 1;
    }
    return LKS_OK;
}

lks_status lksi_infer_nll_loss(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *target = &a->in[1];
    TRY(need_float(a, "log-probabilities are", x));
    TRY(class_targets(a, x, target, "log-probabilities", 1));
    a->attr.loss.classes = x->shape[x->ndim > 1];
    TRY(need_weight(a, given(a, 2), a->attr.loss.classes));
    TRY(need_reduction(a, 0, 1));
    loss_like(a, target, result_of(x->dtype, a->attr.loss.wide));
    a->out[1].ndim = 0;
    a->out[1].dtype = x->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    return LKS_OK;
}

lks_status lksi_infer_nll_loss_backward(lksi_args *a)
{
    const lksi_view *target = &a->in[1], *count = &a->in[2];
    lksi_view *dx = &a->out[0];
    TRY(need_index(a, "target is", target));
    TRY(need_reduction(a, 0, 1));
    TRY(need_dy(a, target));
    TRY(need_weight(a, given(a, 3), a->attr.loss.classes));
    if (count->ndim != 0 || !lks_dtype_is_float(count->dtype)) return misfit(a, "count", count, "target", target);
    if (target->ndim >= LKS_MAX_DIMS || a->attr.loss.classes < 0) return misfit(a, "target", target, "dy", &a->in[0]);
    dx->ndim = target->ndim + 1;
    dx->dtype = lks_dtype_is_float(a->attr.loss.dtype) ? a->attr.loss.dtype : a->in[0].dtype;
    int at = target->ndim > 0;
    for (int d = 0; d < target->ndim; d++) dx->shape[d < at ? d : d + 1] = target->shape[d];
    dx->shape[at] = a->attr.loss.classes;
    lksi_contiguous_strides(dx);
    return LKS_OK;
}

/* --- pointwise ---------------------------------------------------------------------------------------------------- */

/* Result is promoted over floats; integers and bool do not widen, alone they give float32. */
static lks_dtype joined(lks_dtype t, const lksi_view *v)
{
    if (!v || !lks_dtype_is_float(v->dtype)) return t;
    return t == LKS_DTYPE_NONE ? v->dtype : lks_promote(t, v->dtype);
}

/* Shape of in[first] and in[first + 1] broadcast, and dtype; weight and p may not enlarge it. */
static lks_status point_space(lksi_args *a, int first, lksi_view *space)
{
    const lksi_view *x = &a->in[first], *t = &a->in[first + 1];
    if (!lksi_broadcast(x, t, space)) return misfit(a, "target", t, "input", x);
    for (int i = first + 2; i < first + 4; i++) {
        const lksi_view *v = given(a, i);
        lksi_view both;
        if (!v) continue;
        if (!lksi_broadcast(v, space, &both) || !same_shape(&both, space))
            return misfit(a, i == first + 2 ? "weight" : a->attr.loss.kind == LKSI_LOSS_margin_ranking_loss
                          ? "target" : "pos_weight", v, "input", x);
    }
    if (x->ndim == t->ndim) { /* 0-dim tensors do not widen */
        space->dtype = joined(joined(LKS_DTYPE_NONE, x), t);
    } else {
        lks_dtype both = lksi_promote_views(x, t);
        space->dtype = lks_dtype_is_float(both) ? both : LKS_DTYPE_NONE;
    }
    if (space->dtype == LKS_DTYPE_NONE) space->dtype = LKS_F32;
    return LKS_OK;
}

static lks_status point(lksi_args *a, int kind, int same)
{
    const lksi_view *x = &a->in[0], *t = &a->in[1];
    lksi_view *y = &a->out[0];
    lksi_view space;
    a->attr.loss.kind = kind;
    a->attr.loss.order = LKSI_LOSS_VALUE;
    TRY(need_reduction(a, kind == LKSI_LOSS_kl_div, 1));
    if (same && !same_shape(x, t)) return misfit(a, "target", t, "input", x);
    TRY(point_space(a, 0, &space));
    lks_dtype dtype = result_of(space.dtype, a->attr.loss.wide);
    like(y, &space);
    switch (a->attr.loss.reduction) {
    case 0: /* keeps the order of the inputs in memory */
        lksi_order_like_inputs(a);
        /* fall through */
    case 2: a->attr.loss.divisor = 1; break;
    case 3: a->attr.loss.divisor = x->ndim ? (double)x->shape[0] : 1; break;
    default: a->attr.loss.divisor = (double)lksi_numel(&space);
    }
    if (a->attr.loss.reduction != 0) y->ndim = 0;
    y->dtype = dtype;
    return LKS_OK;
}

lks_status lksi_infer_mse_loss(lksi_args *a) { return point(a, LKSI_LOSS_mse_loss, 0); }
lks_status lksi_infer_l1_loss(lksi_args *a) { return point(a, LKSI_LOSS_l1_loss, 0); }
lks_status lksi_infer_kl_div(lksi_args *a) { return point(a, LKSI_LOSS_kl_div, 0); }
lks_status lksi_infer_hinge_embedding_loss(lksi_args *a) { return point(a, LKSI_LOSS_hinge_embedding_loss, 0); }
lks_status lksi_infer_margin_ranking_loss(lksi_args *a) { return point(a, LKSI_LOSS_margin_ranking_loss, 0); }
lks_status lksi_infer_soft_margin_loss(lksi_args *a) { return point(a, LKSI_LOSS_soft_margin_loss, 0); }
lks_status lksi_infer_cosine_margin(lksi_args *a) { return point(a, LKSI_LOSS_cosine_margin, 0); }
lks_status lksi_infer_binary_cross_entropy(lksi_args *a) { return point(a, LKSI_LOSS_binary_cross_entropy, 1); }
lks_status lksi_infer_binary_cross_entropy_with_logits(lksi_args *a)
{
    return point(a, LKSI_LOSS_binary_cross_entropy_with_logits, 1);
}

lks_status lksi_infer_smooth_l1_loss(lksi_args *a)
{
    if (!(a->attr.loss.a >= 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "beta is %g, it must be >= 0", a->attr.loss.a);
    return point(a, LKSI_LOSS_smooth_l1_loss, 0);
}

lks_status lksi_infer_huber_loss(lksi_args *a)
{
    if (!(a->attr.loss.a > 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "delta is %g, it must be > 0", a->attr.loss.a);
    return point(a, LKSI_LOSS_huber_loss, 0);
}

lks_status lksi_infer_poisson_nll_loss(lksi_args *a)
{
    if (!(a->attr.loss.a >= 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "eps is %g, it must be >= 0", a->attr.loss.a);
    return point(a, LKSI_LOSS_poisson_nll_loss, 0);
}

lks_status lksi_infer_loss_slope(lksi_args *a)
{
    lksi_view space, both;
    int kind = a->attr.loss.kind, order = a->attr.loss.order;
    if (kind < 0 || kind >= LKSI_LOSS_COUNT || order < 0 || order >= LKSI_LOSS_ORDERS)
        return lksi_why(a, LKS_ERR_ARGUMENT, "there is no loss %d with derivative %d", kind, order);
    TRY(need_float(a, "dy is", &a->in[0]));
    TRY(point_space(a, 1, &space));
    if (!lksi_broadcast(&a->in[0], &space, &both) || !same_shape(&both, &space))
        return misfit(a, "dy", &a->in[0], "input", &a->in[1]);
    like(&a->out[0], &space);
    lksi_order_like_inputs(a);
    a->out[0].dtype = lks_dtype_is_float(a->attr.loss.dtype) ? a->attr.loss.dtype : space.dtype;
    return LKS_OK;
}

/* --- margins over classes ----------------------------------------------------------------------------------------- */

static lks_status margin_check(lksi_args *a, const lksi_view *x, const lksi_view *target, const lksi_view *weight)
{
    char s[128];
    TRY(need_float(a, "input is", x));
    if (x->ndim != 1 && x->ndim != 2)
        return lksi_why(a, LKS_ERR_SHAPE, "input %s must be [N, C] or [C]", lksi_shape_text(x, s, sizeof s));
    TRY(class_targets(a, x, target, "input", 1));
    if (a->attr.loss.p != 1 && a->attr.loss.p != 2)
        return lksi_why(a, LKS_ERR_ARGUMENT, "p is %d, it must be 1 or 2", a->attr.loss.p);
    a->attr.loss.classes = x->shape[x->ndim - 1];
    TRY(need_weight(a, weight, a->attr.loss.classes));
    return need_reduction(a, 0, 1);
}

lks_status lksi_infer_multi_margin_loss(lksi_args *a)
{
    TRY(margin_check(a, &a->in[0], &a->in[1], given(a, 2)));
    loss_like(a, &a->in[1], result_of(a->in[0].dtype, a->attr.loss.wide));
    return LKS_OK;
}

lks_status lksi_infer_multi_margin_loss_backward(lksi_args *a)
{
    TRY(margin_check(a, &a->in[1], &a->in[2], given(a, 3)));
    TRY(need_dy(a, &a->in[2]));
    like(&a->out[0], &a->in[1]);
    return LKS_OK;
}

static lks_status multilabel_check(lksi_args *a, const lksi_view *x, const lksi_view *target, lksi_view *each)
{
    char s[128];
    TRY(need_float(a, "input is", x));
    TRY(need_index(a, "target is", target));
    if (x->ndim != 1 && x->ndim != 2)
        return lksi_why(a, LKS_ERR_SHAPE, "input %s must be [N, C] or [C]", lksi_shape_text(x, s, sizeof s));
    if (!same_shape(x, target)) return misfit(a, "target", target, "input", x);
    *each = *x;
    each->ndim = x->ndim - 1;
    return need_reduction(a, 0, 1);
}

lks_status lksi_infer_multilabel_margin_loss(lksi_args *a)
{
    lksi_view each;
    TRY(multilabel_check(a, &a->in[0], &a->in[1], &each));
    loss_like(a, &each, result_of(a->in[0].dtype, a->attr.loss.wide));
    return LKS_OK;
}

lks_status lksi_infer_multilabel_margin_loss_backward(lksi_args *a)
{
    lksi_view each;
    TRY(multilabel_check(a, &a->in[1], &a->in[2], &each));
    TRY(need_dy(a, &each));
    like(&a->out[0], &a->in[1]);
    return LKS_OK;
}

/* --- ctc ---------------------------------------------------------------------------------------------------------- */

static lks_status ctc_check(lksi_args *a, int first)
{
    const lksi_view *x = &a->in[first], *targets = &a->in[first + 1];
    int64_t blank = a->attr.loss.ignore_index;
    char s[128];
    TRY(need_float(a, "log_probs are", x));
    TRY(need_index(a, "targets are", targets));
    if (x->ndim != 3)
        return lksi_why(a, LKS_ERR_SHAPE, "log_probs %s must be [T, N, C]", lksi_shape_text(x, s, sizeof s));
    if (targets->ndim != 2 || targets->shape[0] != x->shape[1]) return misfit(a, "targets", targets, "log_probs", x);
    for (int i = first + 2; i < first + 4; i++) {
        TRY(need_index(a, i == first + 2 ? "input_lengths are" : "target_lengths are", &a->in[i]));
        if (a->in[i].ndim != 1 || a->in[i].shape[0] != x->shape[1])
            return misfit(a, i == first + 2 ? "input_lengths" : "target_lengths", &a->in[i], "log_probs", x);
    }
    if (blank < 0 || blank >= x->shape[2])
        return lksi_why(a, LKS_ERR_ARGUMENT, "blank %lld is outside [0, %lld)", (long long)blank,
                        (long long)x->shape[2]);
    return need_reduction(a, 0, 1);
}

lks_status lksi_infer_ctc_loss(lksi_args *a)
{
    TRY(ctc_check(a, 0));
    loss_like(a, &a->in[2], result_of(a->in[0].dtype, a->attr.loss.wide));
    like(&a->out[1], &a->in[2]);
    a->out[1].dtype = a->in[0].dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    return LKS_OK;
}

lks_status lksi_infer_ctc_loss_backward(lksi_args *a)
{
    TRY(ctc_check(a, 1));
    TRY(need_dy(a, &a->in[3]));
    if (!same_shape(&a->in[5], &a->in[3]) || !lks_dtype_is_float(a->in[5].dtype))
        return misfit(a, "nll", &a->in[5], "lengths", &a->in[3]);
    like(&a->out[0], &a->in[1]);
    return LKS_OK;
}
