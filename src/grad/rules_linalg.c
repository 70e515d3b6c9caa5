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

static lks_tensor *join(lks_tensor *x, lks_tensor *y, int dim)
{
    lks_tensor *part[2] = {x, y};
    return x && y ? lks_cat(2, part, dim) : NULL;
}

/* Unit lower [..., m, k] of the first k columns of x, m >= k. */
static lks_tensor *unit_lower(lks_tensor *x, int64_t k)
{
    if (!x) return NULL;
    int64_t m = x->v.shape[x->v.ndim - 2], below[2] = {m - k, k};
    lks_tensor *one = lks_diag(lks_ones(x->ctx, x->v.dtype, 1, &k), 0);
    if (m > k) one = join(one, lks_zeros(x->ctx, x->v.dtype, 2, below), 0);
    return lks_add(lks_tril(lks_slice(x, -1, 0, k, 1), -1), one);
}

/* The matrix with the diagonal d in place of its own. */
static lks_tensor *with_diagonal(lks_tensor *x, lks_tensor *d) { return lks_add(lks_triu(x, 1), diagonal_of(d)); }

/* x u^-T, u upper */
static lks_tensor *over_transposed(lks_tensor *x, lks_tensor *u) { return mT(solve_triangle(u, mT(x), 1, 0, 0)); }

/* Square: P L^-T (tril(L^T dL, -1) + triu(dU U^T)) U^-T. A wide matrix has more columns of U, a tall one more rows of
 * L, whose gradients pass through the square factor. */
RULE(linalg_lu_factor)
{
    lks_tensor *lu = lksi_back_out(b, 0), *g = out_grad(b, 0), *p;
    if (!g) return LKS_OK;
    if (!lu) return lksi_rule_failed(b);
    int last = lu->v.ndim - 1;
    int64_t m = lu->v.shape[last - 1], n = lu->v.shape[last], k = m < n ? m : n;
    if (m > n) {
        lks_tensor *square = lks_slice(lu, -2, 0, n, 1), *g1 = lks_slice(g, -2, 0, n, 1), *l = unit_lower(lu, k);
        lks_tensor *u = with_diagonal(square, lksi_lu_diagonal(square));
        p = lks_sub(lks_matmul(lks_triu(g1, 0), mT(u)), lks_matmul(mT(l), lks_tril(g, -1)));
        p = lks_add(solve_triangle(square, lks_triu(p, 0), 0, 1, 1), lks_tril(g1, -1));
        p = over_transposed(join(p, lks_slice(g, -2, n, m, 1), -2), u);
    } else {
        lks_tensor *square = m < n ? lks_slice(lu, -1, 0, m, 1) : lu, *g1 = m < n ? lks_slice(g, -1, 0, m, 1) : g;
        lks_tensor *l = unit_lower(square, k), *u1 = with_diagonal(square, lksi_lu_diagonal(square));
        if (m == n) {
            p = lks_triu(lks_matmul(lks_triu(g, 0), mT(u1)), 0);
            p = lks_add(lks_tril(lks_matmul(mT(l), lks_tril(g, -1)), -1), p);
            p = over_transposed(p, u1);
        } else {
            p = lks_sub(lks_matmul(mT(l), lks_tril(g1, -1)), lks_matmul(lks_triu(g, 0), mT(lks_triu(lu, 0))));
            p = lks_add(over_transposed(lks_tril(p, -1), u1), lks_triu(g1, 0));
            p = join(p, lks_slice(g, -1, m, n, 1), -1);
        }
        p = solve_triangle(square, p, 0, 1, 1);
    }
    /* Row i of P L U's order is row rows[i] of the input's. */
    lks_tensor *rows = lksi_lu_rows(lksi_back_out(b, 1), m);
    if (!rows) return lksi_rule_failed(b);
    lks_tensor *at = lks_expand(lks_unsqueeze(rows, -1), last + 1, lu->v.shape),
               *zero = lks_zeros(b->ctx, lu->v.dtype, last + 1, lu->v.shape);
    GIVE(0, lks_scatter(zero, last - 1, lks_contiguous(at), p));
    return LKS_OK;
}

/* The product of reflections is I - V T V^T: V unit lower, of a; T = (I + D S)^-1 D with D = diag(tau) and S the part
 * of V^T V above its diagonal (Schreiber & Van Loan 1989). Gradients of a and tau for y = (I - V T' V^T) c, T' = T or
 * its transpose. */
static lks_status reflections_back(lksi_back *b, lks_tensor *c, lks_tensor *g, int transposed)
{
    lks_tensor *a = lksi_back_in(b, 0), *tau = lksi_back_in(b, 1);
    if (!a || !tau || !c || !g) return lksi_rule_failed(b);
    int64_t k = tau->v.shape[tau->v.ndim - 1], n = a->v.shape[a->v.ndim - 1];
    lks_tensor *v = unit_lower(a, k), *vt = mT(v), *d = column(tau);
    lks_tensor *s = lks_triu(lks_matmul(vt, v), 1), *ds = lks_mul(d, s);
    lks_tensor *t = solve_triangle(ds, diagonal_of(tau), 1, 0, 1);
    lks_tensor *vc = lks_matmul(vt, c), *vg = lks_matmul(vt, g);
    lks_tensor *gt = lks_neg(transposed ? lks_matmul(vc, mT(vg)) : lks_matmul(vg, mT(vc)));
    lks_tensor *gd = solve_triangle(ds, gt, 1, 1, 1);     /* of D in M^-1 D, M = I + D S */
    lks_tensor *gm = lks_neg(lks_matmul(gd, mT(t)));
    if (lksi_back_needs(b, 0)) {
        lks_tensor *gs = lks_triu(lks_mul(d, gm), 1);
        lks_tensor *gv = lks_matmul(v, lks_add(gs, mT(gs)));
        gv = lks_sub(gv, lks_matmul(g, mT(lks_matmul(transposed ? mT(t) : t, vc))));
        gv = lks_tril(lks_sub(gv, lks_matmul(c, mT(lks_matmul(transposed ? t : mT(t), vg)))), -1);
        if (k < n && gv) { /* columns that are not read */
            int64_t shape[LKS_MAX_DIMS];
            for (int i = 0; i < a->v.ndim; i++) shape[i] = a->v.shape[i];
            shape[a->v.ndim - 1] = n - k;
            gv = join(gv, lks_zeros(b->ctx, a->v.dtype, a->v.ndim, shape), -1);
        }
        GIVE(0, gv);
    }
    gd = lks_add(gd, lks_matmul(gm, mT(s)));
    GIVE(1, lks_diagonal(gd, 0, -2, -1));
    return LKS_OK;
}

RULE(orgqr)
{
    lks_tensor *a = lksi_back_in(b, 0);
    if (!b->g) return LKS_OK;
    if (!a) return lksi_rule_failed(b);
    int64_t m = a->v.shape[a->v.ndim - 2], n = a->v.shape[a->v.ndim - 1], below[2] = {m - n, n};
    lks_tensor *c = lks_diag(lks_ones(b->ctx, a->v.dtype, 1, &n), 0);
    if (m > n) c = join(c, lks_zeros(b->ctx, a->v.dtype, 2, below), 0);
    return reflections_back(b, c ? lks_expand(c, a->v.ndim, a->v.shape) : NULL, b->g, 0);
}

RULE(ormqr)
{
    int left = b->attr->linalg.left, transposed = b->attr->linalg.transpose;
    if (!b->g) return LKS_OK;
    GIVE(2, lks_ormqr(lksi_back_in(b, 0), lksi_back_in(b, 1), b->g, left, !transposed));
    if (!lksi_back_needs(b, 0) && !lksi_back_needs(b, 1)) return LKS_OK;
    lks_tensor *c = lksi_back_in(b, 2);
    return left ? reflections_back(b, c, b->g, transposed) : reflections_back(b, mT(c), mT(b->g), !transposed);
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
