/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compose.c - public functions made of a few rows: distances, normalisation to a norm, log-sum-exp. Those that have a
 * policy of their own stand in the table as composite rows.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>

static lks_tensor *rounded(lks_tensor *y, lks_dtype to) { return to == LKS_DTYPE_NONE ? y : lks_to(y, to); }

/* lksi_widen for two that are broadcast: one of no dims does not decide. */
static lks_dtype widen_two(lks_tensor **x)
{
    lks_dtype to = lksi_promote_views(&x[0]->v, &x[1]->v);
    lksi_widen(2, x);
    return lks_dtype_is_float(to) ? to : LKS_DTYPE_NONE;
}

lks_tensor *lks_dist(lks_tensor *a, lks_tensor *b, double p)
{
    lks_tensor *in[2] = {a, b}, *x[2];
    lks_context *ctx = lksi_ctx(2, in);
    if (lksi_composite_begin(ctx, "lks_dist", LKSI_OP_dist, 2, in, x)) return NULL;
    lks_dtype to = widen_two(x);
    lks_tensor *y = rounded(lks_norm(lks_sub(x[0], x[1]), p, 0, NULL, 0), to);
    lksi_composite_end(ctx, LKSI_OP_dist);
    return y;
}

lks_tensor *lks_normalize(lks_tensor *x, double p, int dim, double eps)
{
    lks_tensor *w;
    if (!x || lksi_composite_begin(x->ctx, "lks_normalize", LKSI_OP_normalize, 1, &x, &w)) return NULL;
    lks_dtype to = lksi_widen(1, &w);
    lks_tensor *y = rounded(lks_div(w, lks_clamp(lks_norm(w, p, x->v.ndim > 0, &dim, 1), eps, INFINITY)), to);
    lksi_composite_end(x->ctx, LKSI_OP_normalize);
    return y;
}

lks_tensor *lks_cosine_similarity(lks_tensor *a, lks_tensor *b, int dim, double eps)
{
    lks_tensor *in[2] = {a, b}, *x[2];
    lks_context *ctx = lksi_ctx(2, in);
    if (lksi_composite_begin(ctx, "lks_cosine_similarity", LKSI_OP_cosine_similarity, 2, in, x)) return NULL;
    lks_dtype to = widen_two(x);
    lks_tensor *product = lks_mul(x[0], x[1]), *y = NULL;
    if (product) { /* dims as of the broadcast shape */
        int n = product->v.ndim;
        const int64_t *shape = product->v.shape;
        lks_tensor *dot = lks_sum(product, n > 0, &dim, 0, LKS_DTYPE_NONE);
        lks_tensor *u = lks_norm(lks_expand(x[0], n, shape), 2, n > 0, &dim, 0);
        lks_tensor *v = lks_norm(lks_expand(x[1], n, shape), 2, n > 0, &dim, 0);
        y = rounded(lks_div(dot, lks_mul(lks_clamp(u, eps, INFINITY), lks_clamp(v, eps, INFINITY))), to);
    }
    lksi_composite_end(ctx, LKSI_OP_cosine_similarity);
    return y;
}

lks_tensor *lks_renorm(lks_tensor *x, double p, int dim, double max)
{
    LKSI_GUARD;
    lks_tensor *w;
    int others[LKS_MAX_DIMS], n = 0;
    if (!x) return NULL;
    if (x == lks_none || x->v.ndim < 2) {
        char s[200];
        lks_context *ctx = x->ctx;
        if (ctx)
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_renorm", "%s; at least 2 dims are needed",
                      lksi_shape_text(&x->v, s, sizeof s));
        return NULL;
    }
    if (lksi_dim(x->ctx, "lks_renorm", x->v.ndim, &dim)) return NULL;
    if (!(p > 0) || !(max >= 0)) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_renorm",
                  "p is %g, it must be positive; max is %g, not negative", p, max);
        return NULL;
    }
    for (int d = 0; d < x->v.ndim; d++)
        if (d != dim) others[n++] = d;
    if (lksi_composite_begin(x->ctx, "lks_renorm", LKSI_OP_renorm, 1, &x, &w)) return NULL;
    lks_dtype to = lksi_widen(1, &w);
    lks_tensor *norm = lks_norm(w, p, n, others, 1), *y = NULL;
    if (norm) {
        lks_tensor *one = lks_ones(x->ctx, norm->v.dtype, 0, NULL);
        lks_tensor *limit = lks_full(x->ctx, norm->v.dtype, 0, NULL, max);
        lks_tensor *factor = lks_where(lks_gt(norm, limit), lks_rdiv(lks_add_scalar(norm, 1e-7), max), one);
        y = rounded(lks_mul(w, factor), to);
    }
    lksi_composite_end(x->ctx, LKSI_OP_renorm);
    return y;
}

/* max + log sum exp(x - max), the gradient of max left out: it cancels. */
lks_tensor *lks_logsumexp(lks_tensor *x, int ndims, const int *dims, int keepdim)
{
    if (!x || x == lks_none) return NULL;
    lks_context *ctx = x->ctx;
    lks_dtype to = lksi_widen(1, &x);
    if (to == LKS_DTYPE_NONE) x = lks_to(x, to = LKS_F32);
    if (!x) return NULL;
    ctx->no_grad++;
    lks_tensor *zero = lks_zeros(ctx, x->v.dtype, 0, NULL), *max;
    if (x->numel == 0) max = lks_sum(x, ndims, dims, 1, LKS_DTYPE_NONE); /* the logarithm of 0 */
    else max = lks_amax(x, ndims, dims, 1);
    if (max && zero)
        max = lks_where(lks_eq(lks_sub(max, max), zero), max, zero); /* an infinite one is no help */
    ctx->no_grad--;
    lks_tensor *sum = lks_sum(lks_exp(lks_sub(x, max)), ndims, dims, 1, LKS_DTYPE_NONE);
    lks_tensor *none = sum ? lks_eq(sum, zero) : NULL, *one = lks_add_scalar(zero, 1);
    lks_tensor *y = lks_add(lks_where(none, lks_add_scalar(zero, -INFINITY), lks_log(lks_where(none, one, sum))), max);
    if (y) y = lks_to(y, to); /* a region may have made exp and log wider; this op is on no list */
    if (!y || keepdim) return y;
    int64_t shape[LKS_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->v.ndim; d++) {
        int reduced = !dims || ndims == 0;
        for (int i = 0; i < ndims && dims; i++) reduced |= dims[i] == d || dims[i] + x->v.ndim == d;
        if (!reduced) shape[n++] = x->v.shape[d];
    }
    return lks_reshape(y, n, shape);
}
