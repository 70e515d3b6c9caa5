/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_elementwise.c - gradients of views, copies, elementwise ops, reductions. g is the gradient of the output.
 */
#include "grad/rules.h"

/* --- views --- */

RULE(view)
{
    lksi_meta m = lksi_back_meta(b, 0);
    GIVE(0, lks_reshape(b->g, m.ndim, m.shape));
    return LKS_OK;
}

RULE(expand) /* the walk sums what was repeated */
{
    GIVE(0, b->g);
    return LKS_OK;
}

RULE(permute)
{
    int back[LKS_MAX_DIMS], n = b->attr->permute.ndim;
    for (int d = 0; d < n; d++) back[b->attr->permute.dims[d]] = d;
    GIVE(0, lks_permute(b->g, n, back));
    return LKS_OK;
}

/* Parts of one tensor add into one gradient instead of each making a padded one. */
RULE(slice)
{
    int fail;
    lks_tensor *whole = lksi_back_whole(b, 0, &fail);
    if (fail) return lksi_rule_failed(b);
    if (whole) {
        lks_tensor *part = lks_slice(whole, b->attr->slice.dim, b->attr->slice.start, b->attr->slice.stop,
                                     b->attr->slice.step);
        if (!part) return lksi_rule_failed(b);
        return lksi_call(b->ctx, "slice", LKSI_OP_accumulate, 1, &b->g, NULL, 1, &part);
    }
    GIVE(0, lksi_call1(b->ctx, "slice", LKSI_OP_slice_backward, 1, &b->g, b->attr));
    return LKS_OK;
}

RULE(slice_backward)
{
    GIVE(0, lks_slice(b->g, b->attr->slice.dim, b->attr->slice.start, b->attr->slice.stop, b->attr->slice.step));
    return LKS_OK;
}

RULE(clone)
{
    GIVE(0, b->g);
    return LKS_OK;
}

RULE(cast) /* the walk casts */
{
    GIVE(0, b->g);
    return LKS_OK;
}

/* --- binary --- */

RULE(add)
{
    GIVE(0, b->g);
    GIVE(1, b->g);
    return LKS_OK;
}

RULE(sub)
{
    GIVE(0, b->g);
    GIVE(1, lks_neg(b->g));
    return LKS_OK;
}

RULE(mul)
{
    GIVE(0, lks_mul(b->g, lksi_conj(lksi_back_in(b, 1))));
    GIVE(1, lks_mul(b->g, lksi_conj(lksi_back_in(b, 0))));
    return LKS_OK;
}

RULE(div)
{
    lks_tensor *x = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    GIVE(0, lks_div(b->g, lksi_conj(y)));
    GIVE(1, lks_neg(lks_mul(b->g, lksi_conj(lks_div(lks_div(x, y), y)))));
    return LKS_OK;
}

RULE(where)
{
    lks_tensor *c = lksi_back_in(b, 0), *zero = lks_zeros(b->ctx, b->g->v.dtype, 0, NULL);
    GIVE(1, lks_where(c, b->g, zero));
    GIVE(2, lks_where(c, zero, b->g));
    return LKS_OK;
}

/* --- unary --- */

RULE(affine)
{
    GIVE(0, lks_mul_scalar(b->g, b->attr->affine.scale));
    return LKS_OK;
}

RULE(exp)
{
    GIVE(0, lks_mul(b->g, lksi_conj(lksi_back_out(b, 0))));
    return LKS_OK;
}

RULE(log)
{
    GIVE(0, lks_div(b->g, lksi_back_in(b, 0)));
    return LKS_OK;
}

RULE(sqrt)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_sqrt_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(tanh)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_tanh_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(sigmoid)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_sigmoid_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(relu)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_relu_backward, b->g, lksi_back_out(b, 0)));
    return LKS_OK;
}

RULE(gelu)
{
    GIVE(0, lksi_rule2(b, LKSI_OP_gelu_backward, b->g, lksi_back_in(b, 0)));
    return LKS_OK;
}

RULE(dropout) /* the same numbers are drawn again */
{
    GIVE(0, lksi_call1(b->ctx, "dropout", LKSI_OP_dropout, 1, &b->g, b->attr));
    return LKS_OK;
}

/* Second derivatives: inputs are (dy, y) or (dy, x). */

RULE(sqrt_backward) /* dy / (2 y) */
{
    lks_tensor *dy = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    GIVE(0, lksi_rule2(b, LKSI_OP_sqrt_backward, b->g, y));
    GIVE(1, lks_mul_scalar(lks_div(lks_mul(b->g, dy), lks_mul(y, y)), -0.5));
    return LKS_OK;
}

RULE(tanh_backward) /* dy (1 - y^2) */
{
    lks_tensor *dy = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    GIVE(0, lksi_rule2(b, LKSI_OP_tanh_backward, b->g, y));
    GIVE(1, lks_mul_scalar(lks_mul(lks_mul(b->g, dy), y), -2));
    return LKS_OK;
}

RULE(sigmoid_backward) /* dy y (1 - y) */
{
    lks_tensor *dy = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    GIVE(0, lksi_rule2(b, LKSI_OP_sigmoid_backward, b->g, y));
    GIVE(1, lks_mul(lks_mul(b->g, dy), lks_affine(y, -2, 1)));
    return LKS_OK;
}

RULE(relu_backward) /* dy unless y <= 0 */
{
    GIVE(0, lksi_rule2(b, LKSI_OP_relu_backward, b->g, lksi_back_in(b, 1)));
    return LKS_OK;
}

/* gelu''(x). erf form: phi(x) (2 - x^2). tanh form, with u = k (x + c x^3), t = tanh u:
 * (1 - t^2) (u' + x (u'' / 2 - t u'^2)). */
static lks_tensor *gelu_second(lks_tensor *x, int tanh_form)
{
    lks_tensor *x2 = lks_mul(x, x);
    if (!tanh_form)
        return lks_mul(lks_mul_scalar(lks_exp(lks_mul_scalar(x2, -0.5)), 0.3989422804014327), lks_affine(x2, -1, 2));
    const double k = 0.7978845608028654, c = 0.044715;
    lks_tensor *t = lks_tanh(lks_mul(lks_mul_scalar(x, k), lks_affine(x2, c, 1)));
    lks_tensor *du = lks_affine(x2, 3 * c * k, k), *ddu = lks_mul_scalar(x, 6 * c * k);
    lks_tensor *inner = lks_sub(lks_mul_scalar(ddu, 0.5), lks_mul(t, lks_mul(du, du)));
    return lks_mul(lks_affine(lks_mul(t, t), -1, 1), lks_add(du, lks_mul(x, inner)));
}

RULE(gelu_backward) /* dy gelu'(x) */
{
    lks_tensor *dy = lksi_back_in(b, 0), *x = lksi_back_in(b, 1);
    GIVE(0, lksi_rule2(b, LKSI_OP_gelu_backward, b->g, x));
    GIVE(1, lks_mul(lks_mul(b->g, dy), gelu_second(x, b->attr->gelu.tanh_form)));
    return LKS_OK;
}

/* --- reductions --- */

/* g of a reduction, spread over the shape that was reduced. */
static lks_tensor *spread(lksi_back *b, lks_tensor *g, double factor)
{
    lksi_meta m = lksi_back_meta(b, 0);
    int64_t shape[LKS_MAX_DIMS];
    for (int d = 0; d < m.ndim; d++) shape[d] = b->attr->reduce.mask >> d & 1 ? 1 : m.shape[d];
    if (factor != 1) g = lks_mul_scalar(g, factor);
    if (!b->attr->reduce.keepdim) g = lksi_reshape_like(g, m.ndim, shape);
    return lks_expand(g, m.ndim, m.shape);
}

RULE(sum)
{
    GIVE(0, spread(b, b->g, 1));
    return LKS_OK;
}

RULE(mean)
{
    lksi_meta m = lksi_back_meta(b, 0);
    double n = 1;
    for (int d = 0; d < m.ndim; d++)
        if (b->attr->reduce.mask >> d & 1) n *= (double)m.shape[d];
    GIVE(0, spread(b, b->g, n > 0 ? 1 / n : 1));
    return LKS_OK;
}

static lks_tensor *to_index(lksi_back *b, lks_tensor *g, lks_tensor *index, int dim, int64_t size)
{
    lks_tensor *in[2] = {g, index};
    lksi_attr attr = {.slice = {.dim = dim, .size = size}};
    return lksi_call1(b->ctx, "max", LKSI_OP_index_fill_backward, 2, in, &attr);
}

static lks_status extreme(lksi_back *b)
{
    lksi_meta m = lksi_back_meta(b, 0);
    lks_tensor *g = b->g, *index = lksi_back_out(b, 1);
    int dim = b->attr->dim.dim;
    if (m.ndim == 0) {
        GIVE(0, g);
        return LKS_OK;
    }
    if (!b->attr->dim.keepdim) {
        g = lks_unsqueeze(g, dim);
        index = lks_unsqueeze(index, dim);
    }
    GIVE(0, to_index(b, g, index, dim, m.shape[dim]));
    return LKS_OK;
}

RULE(max) { return extreme(b); }
RULE(min) { return extreme(b); }

RULE(index_fill_backward) /* linear in dy: pick what was placed */
{
    lks_tensor *index = lksi_back_in(b, 1);
    int dim = b->attr->slice.dim;
    lks_tensor *one = lks_ones(b->ctx, b->g->v.dtype, index->v.ndim, index->v.shape);
    lks_tensor *mask = one ? to_index(b, one, index, dim, b->attr->slice.size) : NULL;
    GIVE(0, lks_sum(lks_mul(b->g, mask), 1, &dim, 1, LKS_DTYPE_NONE));
    return LKS_OK;
}
