/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_reduce.c - gradients of var, std, prod, norm, amax, amin, min and of what runs along one dim. Where a graph is
 * asked for, products take the long way over rows that have a rule; else one fused row.
 */
#include "grad/rules.h"

#include <math.h>

/* g of a reduction with the reduced dims as 1: broadcasts against x. */
static lks_tensor *kept(lksi_back *b, lks_tensor *g)
{
    lksi_meta m = lksi_back_meta(b, 0);
    int64_t shape[LKS_MAX_DIMS];
    if (!g || b->attr->reduce.keepdim) return g;
    for (int d = 0; d < m.ndim; d++) shape[d] = b->attr->reduce.mask >> d & 1 ? 1 : m.shape[d];
    return lks_reshape(g, m.ndim, shape);
}

static int masked_dims(lksi_back *b, int *dims)
{
    int n = 0;
    for (int d = 0; d < lksi_back_meta(b, 0).ndim; d++)
        if (b->attr->reduce.mask >> d & 1) dims[n++] = d;
    return n;
}

static lks_tensor *number(lksi_back *b, const lks_tensor *like, double v)
{
    return like ? lks_full(b->ctx, like->v.dtype, 0, NULL, v) : NULL;
}

/* g 2 (x - mean) / (n - correction) */
static lks_tensor *var_gradient(lksi_back *b, lks_tensor *g)
{
    lks_tensor *x = lksi_back_in(b, 0);
    int dims[LKS_MAX_DIMS], k = masked_dims(b, dims);
    double n = 1;
    for (int i = 0; i < k; i++) n *= (double)x->v.shape[dims[i]];
    lks_tensor *mean = k ? lks_mean(x, k, dims, 1, LKS_DTYPE_NONE) : x;
    double d = n - b->attr->reduce.p;
    return lks_mul(lks_mul_scalar(kept(b, g), 2 / (d > 0 ? d : 0)), lks_sub(x, mean));
}

RULE(var)
{
    GIVE(0, var_gradient(b, b->g));
    return LKS_OK;
}

RULE(std) /* 0 where the deviation is 0 */
{
    lks_tensor *y = lksi_back_out(b, 0), *none = lks_eq(y, number(b, y, 0));
    lks_tensor *g = lks_div(lks_mul_scalar(b->g, 0.5), lks_where(none, number(b, y, 1), y));
    GIVE(0, var_gradient(b, lks_where(none, number(b, y, 0), g)));
    return LKS_OK;
}

static lks_tensor *scan_row(lksi_back *b, int op, int nin, lks_tensor *const *in, int dim, int reverse)
{
    lksi_attr attr = {.scan = {.dim = dim, .reverse = reverse, .dtype = LKS_DTYPE_NONE}};
    return lksi_call1(b->ctx, lksi_rows[op].name, op, nin, in, &attr);
}

/* x one place further along the scan (by = 1) or against it (-1), `fill` at the end that comes free. */
static lks_tensor *shifted(lksi_back *b, lks_tensor *x, int dim, int by, double fill)
{
    if (!x || x->v.ndim == 0) return x ? lks_full(b->ctx, x->v.dtype, 0, NULL, fill) : NULL;
    int64_t n = x->v.shape[dim], shape[LKS_MAX_DIMS];
    if (n == 0) return x;
    for (int d = 0; d < x->v.ndim; d++) shape[d] = d == dim ? 1 : x->v.shape[d];
    lks_tensor *end = lks_full(b->ctx, x->v.dtype, x->v.ndim, shape, fill);
    lks_tensor *rest = by > 0 ? lks_slice(x, dim, 0, n - 1, 1) : lks_slice(x, dim, 1, n, 1);
    lks_tensor *part[2] = {by > 0 ? end : rest, by > 0 ? rest : end};
    return n == 1 ? end : lks_cat(2, part, dim);
}

/* dx_k = (product before k) S_k, S_k = g_k + x_{k+1} S_{k+1} */
static lks_tensor *cumprod_gradient(lksi_back *b, lks_tensor *g, lks_tensor *x, int dim, int reverse)
{
    int ahead = reverse ? -1 : 1;
    lks_tensor *before = shifted(b, x, dim, ahead, 1);
    before = before ? scan_row(b, LKSI_OP_cumprod, 1, &before, dim, reverse) : NULL;
    lks_tensor *in[2] = {shifted(b, x, dim, -ahead, 0), g};
    return lks_mul(before, scan_row(b, LKSI_OP_recurrence, 2, in, dim, !reverse));
}

RULE(cumsum)
{
    GIVE(0, scan_row(b, LKSI_OP_cumsum, 1, &b->g, b->attr->scan.dim, !b->attr->scan.reverse));
    return LKS_OK;
}

RULE(cumprod)
{
    lks_tensor *x = lksi_back_in(b, 0), *in[2] = {b->g, x};
    int dim = b->attr->scan.dim, reverse = b->attr->scan.reverse;
    GIVE(0, b->create_graph ? cumprod_gradient(b, b->g, x, dim, reverse)
                            : scan_row(b, LKSI_OP_cumprod_backward, 2, in, dim, reverse));
    return LKS_OK;
}

/* y_k = b_k + a_k y_{k-1}: db_k = g_k + a_{k+1} db_{k+1}, da_k = db_k y_{k-1} */
RULE(recurrence)
{
    int dim = b->attr->scan.dim, reverse = b->attr->scan.reverse, ahead = reverse ? -1 : 1;
    lks_tensor *in[2] = {shifted(b, lksi_back_in(b, 0), dim, -ahead, 0), b->g};
    lks_tensor *db = scan_row(b, LKSI_OP_recurrence, 2, in, dim, !reverse);
    GIVE(0, lks_mul(db, shifted(b, lksi_back_out(b, 0), dim, ahead, 0)));
    GIVE(1, db);
    return LKS_OK;
}

/* The reduced dims behind the others and folded into one. */
static lks_tensor *prod_gradient(lksi_back *b)
{
    lks_tensor *x = lksi_back_in(b, 0);
    int order[LKS_MAX_DIMS], back[LKS_MAX_DIMS], n = 0, k;
    int64_t shape[LKS_MAX_DIMS], last = 1;
    for (int d = 0; d < x->v.ndim; d++)
        if (!(b->attr->reduce.mask >> d & 1)) order[n++] = d;
    k = n;
    for (int d = 0; d < x->v.ndim; d++)
        if (b->attr->reduce.mask >> d & 1) order[n++] = d;
    for (int i = 0; i < n; i++) {
        shape[i] = x->v.shape[order[i]];
        back[order[i]] = i;
        if (i >= k) last *= shape[i];
    }
    int64_t folded[LKS_MAX_DIMS + 1];
    for (int i = 0; i < k; i++) folded[i] = shape[i];
    folded[k] = last;
    lks_tensor *line = lks_reshape(lks_permute(x, n, order), k + 1, folded);
    lks_tensor *left = shifted(b, line, k, 1, 1), *right = shifted(b, line, k, -1, 1);
    if (!left || !right) return NULL;
    left = scan_row(b, LKSI_OP_cumprod, 1, &left, k, 0);
    right = scan_row(b, LKSI_OP_cumprod, 1, &right, k, 1);
    lks_tensor *others = lks_permute(lks_reshape(lks_mul(left, right), n, shape), n, back);
    return lks_mul(kept(b, b->g), others);
}

RULE(prod)
{
    lks_tensor *x = lksi_back_in(b, 0);
    if (x->v.ndim == 0 || b->attr->reduce.mask == 0) {
        GIVE(0, b->g);
        return LKS_OK;
    }
    GIVE(0, b->create_graph && x->v.ndim < LKS_MAX_DIMS ? prod_gradient(b)
                                                         : lksi_rule2(b, LKSI_OP_prod_backward, b->g, x));
    return LKS_OK;
}

/* Shared by the elements that are the result: equal parts. sign: of x, or NULL. */
static lks_tensor *to_equals(lksi_back *b, lks_tensor *x, lks_tensor *sign)
{
    lks_tensor *y = kept(b, lksi_back_out(b, 0));
    int dims[LKS_MAX_DIMS], k = masked_dims(b, dims);
    lks_tensor *same = lks_to(lks_eq(x, y), b->g->v.dtype);
    lks_tensor *count = k ? lks_sum(same, k, dims, 1, LKS_DTYPE_NONE) : same;
    lks_tensor *g = lks_mul(lks_div(kept(b, b->g), count), same);
    return sign ? lks_mul(g, sign) : g;
}

RULE(amax)
{
    GIVE(0, to_equals(b, lksi_back_in(b, 0), NULL));
    return LKS_OK;
}

RULE(amin)
{
    GIVE(0, to_equals(b, lksi_back_in(b, 0), NULL));
    return LKS_OK;
}

/* g sign(x) (|x| / y)^(p - 1); 0 where the norm is 0, and for p < 1 where x is. */
RULE(norm)
{
    double p = b->attr->reduce.p;
    lks_tensor *x = lksi_back_in(b, 0);
    lksi_meta m = lksi_back_meta(b, 0);
    if (p == 0) {
        GIVE(0, lks_zeros(b->ctx, m.dtype, m.ndim, m.shape));
    } else if (p == 1) {
        GIVE(0, lks_mul(kept(b, b->g), lks_sign(x)));
    } else if (p == HUGE_VAL || p == -HUGE_VAL) {
        GIVE(0, to_equals(b, lks_abs(x), lks_sign(x)));
    } else {
        lks_tensor *y = kept(b, lksi_back_out(b, 0)), *none = y ? lks_eq(y, number(b, y, 0)) : NULL;
        lks_tensor *ratio = lks_div(x, lks_where(none, number(b, y, 1), y));
        lks_tensor *g = kept(b, b->g);
        if (p != 2) {
            lks_tensor *size = lks_abs(ratio), *zero = lks_eq(size, number(b, x, 0));
            lks_tensor *power = lks_pow_scalar(lks_where(zero, number(b, x, 1), size), p - 1);
            ratio = lks_mul(lks_sign(x), power); /* 0 where x is */
        }
        GIVE(0, lks_mul(lks_where(none, number(b, g, 0), g), ratio));
    }
    return LKS_OK;
}
