/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_again.c - the gradients of fused rows (norms, cross entropy, attention) in ops that have gradients themselves:
 * what their rules do while backward is recorded, so that they can be differentiated any number of times. Slower and
 * with memory for every step between; the numbers are those of the fused rows to rounding.
 */
#include "grad/rules.h"

#include <float.h>
#include <math.h>

/* Reduced floats are computed in float32; the walk rounds what arrives. */
static lks_tensor *wide(lks_tensor *x)
{
    return x && x != lks_none && lks_dtype_size(x->v.dtype) == 2 ? lks_to(x, LKS_F32) : x;
}

/* Without its history: what has no gradient has none of a higher order. */
static lks_tensor *fixed(lks_tensor *x)
{
    return x == lks_none ? x : lks_detach(x);
}

static lks_tensor *over(lks_tensor *x, int n, const int *dims)
{
    return lks_sum(x, n, dims, 1, LKS_DTYPE_NONE);
}

/* --- norms --- */

/* The largest |x| of each slice, within [1, FLT_MAX]; a constant. */
static lks_tensor *beyond_one(lks_tensor *x, int n, const int *dims)
{
    return lks_clamp(lks_amax(lks_abs(lks_detach(x)), n, dims, 1), 1, FLT_MAX);
}

/* x - mean; twice, since the mean of large numbers is rounded coarsely, and what it left over is a mean, too. */
static lks_tensor *less_mean(lks_tensor *x, int n, const int *dims)
{
    for (int k = 0; k < 2; k++) x = lks_sub(x, lks_mean(x, n, dims, 1, LKS_DTYPE_NONE));
    return x;
}

/* xh = (x - mean) r, r = (variance + eps)^-1/2 over dims (mean 0 unless centred), and
 * dx = r (g - mean g - xh mean(g xh)), the mean of g likewise; g is times the weight already. */
static lks_tensor *standardised(lks_tensor *x, lks_tensor *g, int n, const int *dims, int centred, double eps,
                                lks_tensor **xh)
{
    lks_tensor *c = centred ? less_mean(x, n, dims) : x;
    lks_tensor *r, *m = NULL;
    int units = !centred && x->numel && x->v.dtype == LKS_F32;
    if (units) { /* in units of m: squares do not overflow */
        m = beyond_one(x, n, dims);
        c = lks_div(c, m);
        lks_tensor *e = lks_div(lks_div(lks_full(x->ctx, LKS_F32, 0, NULL, eps), m), m);
        r = lks_rsqrt(lks_add(lks_mean(lks_mul(c, c), n, dims, 1, LKS_DTYPE_NONE), e));
    } else {
        r = lks_rsqrt(lks_add_scalar(lks_mean(lks_mul(c, c), n, dims, 1, LKS_DTYPE_NONE), eps));
    }
    *xh = lks_mul(c, r);
    if (units) r = lks_div(r, m);
    lks_tensor *d = lks_sub(g, lks_mul(*xh, lks_mean(lks_mul(g, *xh), n, dims, 1, LKS_DTYPE_NONE)));
    if (centred) d = lks_sub(d, lks_mean(g, n, dims, 1, LKS_DTYPE_NONE));
    return lks_mul(d, r);
}

/* Gradients of weight and bias from those of w xh + c, where both have the shape `m` once the dims are summed. */
static lks_status affine(lksi_back *b, lks_tensor *g, lks_tensor *xh, int n, const int *dims)
{
    for (int i = 1; i < 3 && i < b->node->nin; i++) {
        if (!lksi_back_needs(b, i)) continue;
        lksi_meta m = lksi_back_meta(b, i);
        lks_tensor *d = i == 1 ? lks_mul(g, xh) : g;
        if (n) d = lks_sum(d, n, dims, 0, LKS_DTYPE_NONE); /* no dims would mean all */
        GIVE(i, d ? lksi_reshape_like(d, m.ndim, m.shape) : NULL);
    }
    return LKS_OK;
}

/* layer_norm and rms_norm: over the last dims, which are weight's. */
lks_status lksi_again_layer_norm(lksi_back *b, int centred)
{
    lks_tensor *x = wide(lksi_back_in(b, 0)), *w = lksi_back_in(b, 1), *g = wide(b->g), *xh;
    int last[LKS_MAX_DIMS], first[LKS_MAX_DIMS], n = b->attr->norm.ndims;
    if (!x || !g) return lksi_rule_failed(b);
    int rows = x->v.ndim - n;
    for (int d = 0; d < n; d++) last[d] = rows + d;
    for (int d = 0; d < rows; d++) first[d] = d;
    lks_tensor *dx = standardised(x, w == lks_none ? g : lks_mul(g, wide(w)), n, last, centred, b->attr->norm.eps, &xh);
    GIVE(0, dx);
    return affine(b, g, xh, rows, first);
}

/* Per channel (dim 1): a vector of C as [C, 1, ...], and the dims that are not the channel's. */
static lks_tensor *per_channel(lks_tensor *w, int ndim)
{
    int64_t shape[LKS_MAX_DIMS] = {w ? w->numel : 0};
    for (int d = 1; d < ndim - 1; d++) shape[d] = 1;
    return lks_reshape(w, ndim - 1, shape);
}

static int other_dims(int ndim, int *dims)
{
    int n = 0;
    for (int d = 0; d < ndim; d++)
        if (d != 1) dims[n++] = d;
    return n;
}

lks_status lksi_again_group_norm(lksi_back *b)
{
    lks_tensor *x = wide(lksi_back_in(b, 0)), *w = lksi_back_in(b, 1), *g = wide(b->g), *xh;
    int dims[LKS_MAX_DIMS], inner = 2;
    if (!x || !g) return lksi_rule_failed(b);
    int n = other_dims(x->v.ndim, dims);
    int64_t groups = b->attr->norm.groups, shape[3] = {x->v.shape[0], groups, 1};
    for (int d = 1; d < x->v.ndim; d++) shape[2] *= x->v.shape[d];
    shape[2] /= groups;
    lks_tensor *gw = w == lks_none ? g : lks_mul(g, per_channel(wide(w), x->v.ndim));
    lks_tensor *dx = standardised(lks_reshape(x, 3, shape), lks_reshape(gw, 3, shape), 1, &inner, 1, b->attr->norm.eps,
                                  &xh);
    if (!dx) return lksi_rule_failed(b);
    GIVE(0, lksi_reshape_like(dx, x->v.ndim, x->v.shape));
    return affine(b, g, lksi_reshape_like(xh, x->v.ndim, x->v.shape), n, dims);
}

/* Of this rank's statistics, or of the running ones, which are constants. */
lks_status lksi_again_batch_norm(lksi_back *b)
{
    lks_tensor *x = wide(lksi_back_in(b, 0)), *w = lksi_back_in(b, 1), *g = wide(b->g), *xh, *dx;
    int dims[LKS_MAX_DIMS];
    if (!x || !g) return lksi_rule_failed(b);
    int ndim = x->v.ndim, n = other_dims(ndim, dims);
    lks_tensor *gw = w == lks_none ? g : lks_mul(g, per_channel(wide(w), ndim));
    if (b->attr->batch_norm.training) {
        dx = standardised(x, gw, n, dims, 1, b->attr->batch_norm.eps, &xh);
    } else {
        lks_tensor *r = per_channel(lks_to(lksi_back_out(b, 2), x->v.dtype), ndim);
        xh = lks_mul(lks_sub(x, per_channel(lks_to(lksi_back_out(b, 1), x->v.dtype), ndim)), r);
        dx = lks_mul(gw, r);
    }
    GIVE(0, dx);
    return affine(b, g, xh, n, dims);
}

/* --- cross entropy --- */

/* w as [C, 1, ...] against [N, C, d...]; lks_none stays. */
static lks_tensor *class_weight(lks_tensor *w, const lks_tensor *x)
{
    return w == lks_none ? w : per_channel(lks_to(w, x->v.dtype), x->v.ndim);
}

static lks_tensor *times(lks_tensor *x, lks_tensor *w) { return w == lks_none ? x : lks_mul(x, w); }

/* log softmax(x) as the fused rows see it: a row where keep (or NULL) is 0 counts nothing, whatever it holds; one of
 * -infinity alone is not a number. */
static lks_tensor *log_probabilities(lks_tensor *x, lks_tensor *keep)
{
    int classes = 1;
    if (x && keep) x = lks_where(keep, x, lks_full(x->ctx, x->v.dtype, 0, NULL, 0));
    if (x && x->numel) x = lks_sub(x, lks_amax(lks_detach(x), 1, &classes, 1));
    return lks_log_softmax(x, 1);
}

static lks_tensor *through_log_softmax(lks_tensor *dlogp, lks_tensor *logp)
{
    lks_tensor *in[2] = {dlogp, logp};
    lks_context *ctx = lksi_ctx(2, in);
    lksi_attr attr = {.dim = {.dim = 1}};
    return ctx ? lksi_call1(ctx, "cross_entropy", LKSI_OP_log_softmax_backward, 2, in, &attr) : NULL;
}

/* Gradient of nll_loss with that weight: of each row, or of their sum. */
static lks_tensor *of_nll(lksi_back *b, lks_tensor *g, lks_tensor *weight, const lks_tensor *logp)
{
    lks_tensor *in[4] = {g, lksi_back_in(b, 1), lksi_back_out(b, 2), weight};
    int each = b->attr->loss.reduction == LKS_REDUCTION_NONE;
    lksi_attr attr = {.loss = {.ignore_index = b->attr->loss.ignore_index,
                               .reduction = each ? LKS_REDUCTION_NONE : LKS_REDUCTION_SUM,
                               .classes = logp->v.shape[1], .dtype = logp->v.dtype}};
    return lksi_call1(b->ctx, "cross_entropy", LKSI_OP_nll_loss_backward, 4, in, &attr);
}

/* By way of log_softmax: d log p = (1 - s) times nll's, and s / C times that of all classes where a row counts. */
lks_status lksi_again_cross_entropy(lksi_back *b)
{
    lks_tensor *target = lksi_back_in(b, 1), *weight = fixed(lksi_back_in(b, 2)), *g = b->g;
    lks_tensor *ignored = lks_full(b->ctx, target->v.dtype, 0, NULL, (double)b->attr->loss.ignore_index);
    lks_tensor *keep = lks_ne(lks_unsqueeze(target, 1), ignored);
    lks_tensor *logp = keep ? log_probabilities(wide(lksi_back_in(b, 0)), keep) : NULL;
    double s = b->attr->loss.smoothing;
    int classes = 1, how = b->attr->loss.reduction;
    if (!logp) return lksi_rule_failed(b);
    /* A mean is a sum over the count, a constant; where that is 0 it has no gradient, whatever the value is. */
    if (how == LKS_REDUCTION_MEAN || how == LKS_REDUCTION_MEAN_NAN) {
        lks_tensor *count = lks_to(lksi_back_out(b, 2), g->v.dtype);
        lks_tensor *one = lks_full(b->ctx, g->v.dtype, 0, NULL, 1), *none = lks_full(b->ctx, g->v.dtype, 0, NULL, 0);
        lks_tensor *empty = lks_eq(count, none);
        g = lks_where(empty, none, lks_div(g, lks_where(empty, one, count)));
    }
    lks_tensor *d = of_nll(b, s ? lks_mul_scalar(g, 1 - s) : g, weight, logp);
    if (s) {
        lks_tensor *rows = over(of_nll(b, g, lks_none, logp), 1, &classes);
        lks_tensor *each = lks_mul_scalar(rows, s / (double)(logp->v.shape[1] ? logp->v.shape[1] : 1));
        d = lks_add(d, times(each, class_weight(weight, logp)));
    }
    GIVE(0, through_log_softmax(d, logp));
    return LKS_OK;
}

/* loss = - sum of q w log p, q = (1 - s) target + s / C */
lks_status lksi_again_cross_entropy_soft(lksi_back *b)
{
    lks_tensor *x = wide(lksi_back_in(b, 0)), *target = lksi_back_in(b, 1), *weight = fixed(lksi_back_in(b, 2));
    lks_tensor *logp = log_probabilities(x, NULL), *g = b->g;
    double s = b->attr->loss.smoothing;
    if (!logp) return lksi_rule_failed(b);
    int64_t classes = x->v.shape[1], rows = classes ? x->numel / classes : 0;
    if (b->attr->loss.reduction == LKS_REDUCTION_NONE) g = lks_unsqueeze(g, 1);
    else if (b->attr->loss.reduction != LKS_REDUCTION_SUM) g = lks_mul_scalar(g, 1 / (double)(rows ? rows : 1));
    lks_tensor *q = lks_to(target, x->v.dtype), *w = class_weight(weight, x), *gw = times(lks_neg(g), w);
    if (s) q = lks_add_scalar(lks_mul_scalar(q, 1 - s), s / (double)(classes ? classes : 1));
    GIVE(0, through_log_softmax(lks_mul(q, gw), logp));
    GIVE(1, lks_mul(lks_mul_scalar(gw, 1 - s), logp));
    return LKS_OK;
}

/* --- attention, without dropout --- */

lks_status lksi_again_attention(lksi_back *b)
{
    lks_tensor *q = wide(lksi_back_in(b, 0)), *k = wide(lksi_back_in(b, 1)), *v = wide(lksi_back_in(b, 2));
    lks_tensor *mask = lksi_back_in(b, 3), *g = wide(b->g), *keep = lks_none;
    double scale = b->attr->attention.scale;
    int last = -1;
    if (!q || !k || !v || !g) return lksi_rule_failed(b);
    lks_tensor *zero = lks_full(b->ctx, q->v.dtype, 0, NULL, 0), *never = lks_full(b->ctx, q->v.dtype, 0, NULL, -1e30);
    lks_tensor *a = lks_mul_scalar(lks_matmul(q, lksi_mT(k)), scale);
    if (mask != lks_none && mask->v.dtype == LKS_BOOL) keep = mask;
    else if (mask != lks_none) {
        mask = lks_to(fixed(mask), q->v.dtype); /* no gradient, in no order */
        a = lks_add(a, mask);
        keep = lks_ne(mask, lks_full(b->ctx, q->v.dtype, 0, NULL, -INFINITY)); /* a NaN is seen */
    }
    if (b->attr->attention.causal) {
        int64_t shape[2] = {q->v.shape[2], k->v.shape[2]};
        lks_tensor *below = lks_gt(lks_tril(lks_ones(b->ctx, q->v.dtype, 2, shape), shape[1] - shape[0]), zero);
        keep = keep == lks_none ? below : lks_gt(lks_mul(lks_to(keep, q->v.dtype), lks_to(below, q->v.dtype)), zero);
    }
    /* Finite where nothing is seen, and put out after: a row that sees no key is 0, not NaN. */
    if (keep != lks_none) a = lks_where(keep, a, never);
    lks_tensor *p = lks_softmax(a, -1);
    if (keep != lks_none) p = lks_where(keep, p, zero);
    GIVE(2, lks_matmul(lksi_mT(p), g));
    lks_tensor *dp = lks_matmul(g, lksi_mT(v));
    if (keep != lks_none) dp = lks_where(keep, dp, zero);
    lks_tensor *da = lks_mul_scalar(lks_mul(p, lks_sub(dp, over(lks_mul(p, dp), 1, &last))), scale);
    GIVE(0, lks_matmul(da, k));
    GIVE(1, lks_matmul(lksi_mT(da), q));
    return LKS_OK;
}
