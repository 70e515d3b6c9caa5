/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_linalg.c - gradients of factorisations and solvers, real but for solve and eig. Derivations: Giles, "Collected
 * matrix derivative results" (2008), and Walter & Lehmann (2013) for QR. Outputs without a gradient are NULL.
 */
#include "grad/rules.h"

static lks_tensor *mT(lks_tensor *x) { return lks_transpose(x, -2, -1); }
static lks_tensor *mH(lks_tensor *x) { return lks_conj(mT(x)); }
static lks_tensor *out_grad(const lksi_back *b, int i) { return b->node->grad[i]; }
/* a + b where one may be absent. */
static lks_tensor *plus(lks_tensor *a, lks_tensor *b) { return a && b ? lks_add(a, b) : a ? a : b; }
static lks_tensor *column(lks_tensor *s) { return lks_unsqueeze(s, -1); }
static lks_tensor *row(lks_tensor *s) { return lks_unsqueeze(s, -2); }
static lks_tensor *diagonal_of(lks_tensor *x) { return lks_diag_embed(x, 0, -2, -1); }

static lks_tensor *solve_triangle(lks_tensor *a, lks_tensor *b, int upper, int transposed, int unit)
{
    return lks_triangular_solve(b, a, upper, transposed, unit);
}

static lks_tensor *lower_half(lks_tensor *x) /* the lower triangle, half of the diagonal */
{
    return lks_mul_scalar(lks_add(lks_tril(x, 0), lks_tril(x, -1)), 0.5);
}

/* S = L^-T phi(L^T dL) L^-1, made symmetric */
RULE(linalg_cholesky_ex)
{
    lks_tensor *l = lksi_back_out(b, 0), *g = out_grad(b, 0);
    if (!g) return LKS_OK;
    lks_tensor *p = lower_half(lks_matmul(mT(l), lks_tril(g, 0)));
    p = solve_triangle(l, p, 0, 1, 0);             /* L^-T P */
    p = mT(solve_triangle(l, mT(p), 0, 1, 0));     /* ... L^-1 */
    GIVE(0, lks_mul_scalar(lks_add(p, mT(p)), 0.5));
    return LKS_OK;
}

RULE(triangular_solve)
{
    lks_tensor *a = lksi_back_in(b, 0), *x = lksi_back_out(b, 0);
    int upper = b->attr->linalg.upper, transposed = b->attr->linalg.transpose, unit = b->attr->linalg.unit;
    lks_tensor *gb = solve_triangle(a, b->g, upper, !transposed, unit);
    GIVE(1, gb);
    if (lksi_back_needs(b, 0)) {
        lks_tensor *ga = lks_neg(transposed ? lks_matmul(x, mT(gb)) : lks_matmul(gb, mT(x)));
        GIVE(0, upper ? lks_triu(ga, unit) : lks_tril(ga, -unit));
    }
    return LKS_OK;
}

RULE(linalg_solve)
{
    lks_tensor *a = lksi_back_in(b, 0), *x = lksi_back_out(b, 0);
    if (!b->g) return LKS_OK;
    lks_tensor *gb = lks_linalg_solve(mH(a), b->g);
    GIVE(1, gb);
    GIVE(0, lks_neg(lks_matmul(gb, mH(x))));
    return LKS_OK;
}

static lks_status refuse(lksi_back *b, const char *what)
{
    return lksi_fail(&b->ctx->base, LKS_ERR_UNSUPPORTED, "lks_backward", "%s", what);
}

/* P L^-T (tril(L^T dL, -1) + triu(dU U^T)) U^-T */
RULE(linalg_lu_factor)
{
    lks_tensor *lu = lksi_back_out(b, 0), *g = out_grad(b, 0);
    if (!g) return LKS_OK;
    if (!lu) return lksi_rule_failed(b);
    int n = lu->v.ndim;
    if (lu->v.shape[n - 1] != lu->v.shape[n - 2]) return refuse(b, "the gradient of lu_factor is for square matrices");
    lks_tensor *u = lks_triu(lu, 0), *one = lks_ones(b->ctx, lu->v.dtype, 1, &lu->v.shape[n - 1]);
    lks_tensor *l = lks_add(lks_tril(lu, -1), lks_diag(one, 0));
    lks_tensor *p =
        lks_add(lks_tril(lks_matmul(mT(l), lks_tril(g, -1)), -1), lks_triu(lks_matmul(lks_triu(g, 0), mT(u)), 0));
    p = solve_triangle(lu, p, 0, 1, 1);
    p = mT(solve_triangle(lu, mT(p), 1, 0, 0));
    /* Row i of P L U's order is row rows[i] of the input's. */
    lks_tensor *rows = lksi_lu_rows(lksi_back_out(b, 1), lu->v.shape[n - 2]);
    if (!rows) return lksi_rule_failed(b);
    lks_tensor *at = lks_expand(lks_unsqueeze(rows, -1), n, lu->v.shape),
               *zero = lks_zeros(b->ctx, lu->v.dtype, n, lu->v.shape);
    GIVE(0, lks_scatter(zero, n - 2, lks_contiguous(at), p));
    return LKS_OK;
}

/* m >= n: (dQ + Q copyltu(R dR^T - dQ^T Q)) R^-T */
static lks_tensor *qr_tall(lks_tensor *q, lks_tensor *r, lks_tensor *gq, lks_tensor *gr)
{
    lks_tensor *m = NULL;
    if (gr) m = lks_matmul(r, mT(gr));
    if (gq) m = m ? lks_sub(m, lks_matmul(mT(gq), q)) : lks_neg(lks_matmul(mT(gq), q));
    m = lks_add(lks_tril(m, 0), mT(lks_tril(m, -1)));
    return mT(solve_triangle(r, mT(plus(gq, lks_matmul(q, m))), 1, 0, 0));
}

RULE(linalg_qr)
{
    lks_tensor *q = lksi_back_out(b, 0), *r = lksi_back_out(b, 1), *gq = out_grad(b, 0), *gr = out_grad(b, 1);
    if (!gq && !gr) return LKS_OK;
    if (!q || !r) return lksi_rule_failed(b);
    if (b->attr->linalg.mode == LKS_QR_R) return refuse(b, "linalg_qr without Q has no gradient: use LKS_QR_REDUCED");
    int64_t k = r->v.shape[r->v.ndim - 2], n = r->v.shape[r->v.ndim - 1];
    if (k > n)
        return refuse(b, "linalg_qr with a complete Q has no gradient for more rows than columns: use LKS_QR_REDUCED");
    if (k == n) {
        GIVE(0, qr_tall(q, r, gq, gr));
        return LKS_OK;
    }
    /* R = [U V], A = [X Q V] */
    lks_tensor *u = lks_slice(r, -1, 0, k, 1), *v = lks_slice(r, -1, k, n, 1);
    lks_tensor *gu = gr ? lks_slice(gr, -1, 0, k, 1) : NULL, *gv = gr ? lks_slice(gr, -1, k, n, 1) : NULL;
    if (gv) gq = plus(gq, lks_matmul(lks_matmul(q, v), mT(gv)));
    lks_tensor *gx = qr_tall(q, u, gq, gu);
    lks_tensor *gy = gv ? lks_matmul(q, gv) : NULL;
    lks_tensor *part[2] = {gx, gy ? gy : lks_mul_scalar(v, 0)};
    GIVE(0, gx ? lks_cat(2, part, -1) : NULL);
    return LKS_OK;
}

/* x / e, 0 on the diagonal (where e is 0). */
static lks_tensor *over_gaps(lks_tensor *x, lks_tensor *e)
{
    if (!x || !e) return NULL;
    int64_t n = x->v.shape[x->v.ndim - 1];
    lks_context *ctx = x->ctx;
    ctx->no_grad++;
    lks_tensor *one = lks_diag(lks_ones(ctx, LKS_F32, 1, &n), 0);
    lks_tensor *on = one ? lks_gt(one, lks_zeros(ctx, LKS_F32, 0, NULL)) : NULL;
    ctx->no_grad--;
    lks_tensor *zero = lks_zeros(ctx, x->v.dtype, 0, NULL), *unit = lks_ones(ctx, e->v.dtype, 0, NULL);
    return lks_where(on, zero, lks_div(x, lks_where(on, unit, e)));
}

static lks_tensor *skew(lks_tensor *x) { return lks_sub(x, mT(x)); }

RULE(linalg_svd)
{
    lks_tensor *u = lksi_back_out(b, 0), *s = lksi_back_out(b, 1), *vh = lksi_back_out(b, 2);
    lks_tensor *gu = out_grad(b, 0), *gs = out_grad(b, 1), *gvh = out_grad(b, 2);
    if (!gu && !gs && !gvh) return LKS_OK;
    if (!u || !s || !vh) return lksi_rule_failed(b);
    if (!b->attr->linalg.vectors) return refuse(b, "linalg_svd was asked for no vectors, and its gradient needs them");
    int64_t k = s->v.shape[s->v.ndim - 1], m = u->v.shape[u->v.ndim - 2], n = vh->v.shape[vh->v.ndim - 1];
    if (b->attr->linalg.mode && m != n) {
        if (gu || gvh)
            return refuse(b, "linalg_svd with full vectors has a gradient of its vectors for square matrices only");
        u = lks_slice(u, -1, 0, k, 1);
        vh = lks_slice(vh, -2, 0, k, 1);
    }
    lks_tensor *inner = gs ? diagonal_of(gs) : NULL, *outer = NULL;
    if (gu || gvh) {
        lks_tensor *s2 = lks_mul(s, s), *e = lks_sub(row(s2), column(s2));
        if (gu) inner = plus(inner, lks_mul(over_gaps(skew(lks_matmul(mT(u), gu)), e), row(s)));
        if (gvh) inner = plus(inner, lks_mul(column(s), over_gaps(skew(lks_matmul(vh, mT(gvh))), e)));
    }
    outer = lks_matmul(lks_matmul(u, inner), vh);
    if (gu && m > k) { /* (1 - U U^T) dU / S Vh */
        lks_tensor *h = lks_div(gu, row(s));
        outer = lks_add(outer, lks_matmul(lks_sub(h, lks_matmul(u, lks_matmul(mT(u), h))), vh));
    }
    if (gvh && n > k) {
        lks_tensor *h = lks_div(gvh, column(s));
        outer = lks_add(outer, lks_matmul(u, lks_sub(h, lks_matmul(lks_matmul(h, mT(vh)), vh))));
    }
    GIVE(0, outer);
    return LKS_OK;
}

RULE(linalg_eigh)
{
    lks_tensor *w = lksi_back_out(b, 0), *v = lksi_back_out(b, 1), *gw = out_grad(b, 0), *gv = out_grad(b, 1);
    if (!gw && !gv) return LKS_OK;
    if (!b->attr->linalg.vectors) return refuse(b, "linalg_eigh was asked for no vectors, and its gradient needs them");
    lks_tensor *inner = gw ? diagonal_of(gw) : NULL;
    if (gv) inner = plus(inner, over_gaps(lks_matmul(mT(v), gv), lks_sub(row(w), column(w))));
    GIVE(0, lks_matmul(lks_matmul(v, inner), mT(v)));
    return LKS_OK;
}

RULE(linalg_eig)
{
    lks_tensor *w = lksi_back_out(b, 0), *v = lksi_back_out(b, 1), *gw = out_grad(b, 0), *gv = out_grad(b, 1);
    if (!gw && !gv) return LKS_OK;
    if (!b->attr->linalg.vectors) return refuse(b, "linalg_eig was asked for no vectors, and its gradient needs them");
    lks_tensor *inner = gw ? diagonal_of(gw) : NULL, *vh = mH(v);
    if (gv) { /* vectors have length 1: what changes only that is taken out */
        lks_tensor *p = lks_matmul(vh, gv), *d = lks_real(lks_diagonal(p, 0, -2, -1));
        p = lks_sub(p, lks_matmul(vh, lks_mul(v, row(d))));
        inner = plus(inner, over_gaps(p, lks_conj(lks_sub(row(w), column(w)))));
    }
    GIVE(0, lks_real(lks_linalg_solve(vh, lks_matmul(inner, vh))));
    return LKS_OK;
}

/* Of the pseudoinverse p of a, its gradient g: Golub & Pereyra (1973). */
static lks_tensor *pinv_back(lks_tensor *g, lks_tensor *p, lks_tensor *a)
{
    lks_tensor *gt = mT(g), *pt = mT(p);
    if (a->v.shape[a->v.ndim - 2] <= a->v.shape[a->v.ndim - 1]) {
        lks_tensor *k = lks_matmul(gt, p), *kp = lks_matmul(k, pt);
        lks_tensor *y = lks_sub(kp, mT(lks_matmul(p, k)));
        y = lks_sub(y, lks_matmul(lks_matmul(a, p), kp));
        return lks_add(y, lks_matmul(lks_matmul(pt, p), lks_sub(gt, lks_matmul(k, a))));
    }
    lks_tensor *k = lks_matmul(p, gt), *pk = lks_matmul(pt, k);
    lks_tensor *y = lks_sub(pk, mT(lks_matmul(k, p)));
    y = lks_add(y, lks_matmul(lks_matmul(lks_sub(gt, lks_matmul(a, k)), p), pt));
    return lks_sub(y, lks_matmul(lks_matmul(pk, p), a));
}

RULE(pinverse)
{
    GIVE(0, pinv_back(b->g, lksi_back_out(b, 0), lksi_back_in(b, 0)));
    return LKS_OK;
}

RULE(linalg_lstsq)
{
    lks_tensor *a = lksi_back_in(b, 0), *y = lksi_back_in(b, 1);
    if (!b->g) return LKS_OK;
    lks_tensor *p = lks_pinverse(a, b->attr->linalg.rcond);
    GIVE(1, lks_matmul(mT(p), b->g));
    GIVE(0, pinv_back(lks_matmul(b->g, mT(y)), p, a));
    return LKS_OK;
}
