/* SPDX-License-Identifier: BSD-3-Clause
 *
 * linalg.c - public functions of dense matrices: broadcasting of batches, the forms that are made of others. What is
 * made of several rows is under the policy of the first of them; all rows of this family have the same.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <float.h>
#include <math.h>
#include <string.h>

static int is_matrix(const char *where, lks_tensor *x)
{
    char s[200];
    if (!x || x == lks_none) return 0;
    if (x->v.ndim >= 2) return 1;
    lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, where, "%s is no matrix", lksi_shape_text(&x->v, s, sizeof s));
    return 0;
}

static lks_tensor *mT(lks_tensor *x) { return lks_transpose(x, -2, -1); }

static int keeps_graph(const lks_tensor *x) { return x && x != lks_none && x->requires_grad && !x->ctx->no_grad; }

/* Results to the caller's places; NULL: not wanted. */
static lks_status hand_out(lks_status s, int n, lks_tensor *const *out, lks_tensor **const *to)
{
    for (int i = 0; i < n; i++)
        if (to[i]) *to[i] = s == LKS_OK ? out[i] : NULL;
    return s;
}

static lks_status call(const char *where, int op, int nin, lks_tensor *const *in, lksi_attr attr, int nout,
                       lks_tensor **out)
{
    lks_context *ctx = lksi_ctx(nin, in);
    for (int i = 0; i < nout; i++) out[i] = NULL;
    return ctx ? lksi_call(ctx, where, op, nin, in, &attr, nout, out) : LKS_ERR_ARGUMENT;
}

/* a [..., n, n] and b [..., n, k] of one batch. vector: b was [..., n] and has got a last dim of 1. */
static int same_batch(const char *where, lks_tensor **a, lks_tensor **b)
{
    lksi_view x = (*a)->v, y = (*b)->v, both;
    char s[200], t[200];
    x.ndim -= 2, y.ndim -= 2;
    if (!lksi_broadcast(&x, &y, &both)) {
        lksi_fail(&(*a)->ctx->base, LKS_ERR_SHAPE, where, "batches of %s and %s do not broadcast",
                  lksi_shape_text(&(*a)->v, s, sizeof s), lksi_shape_text(&(*b)->v, t, sizeof t));
        return 0;
    }
    lks_tensor **each[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        const lksi_view *v = &(*each[i])->v;
        both.shape[both.ndim] = v->shape[v->ndim - 2];
        both.shape[both.ndim + 1] = v->shape[v->ndim - 1];
        if (v->ndim != both.ndim + 2 || memcmp(v->shape, both.shape, (size_t)v->ndim * sizeof(int64_t)))
            *each[i] = lks_expand(*each[i], both.ndim + 2, both.shape);
        if (!*each[i]) return 0;
    }
    return 1;
}

/* b as [..., n, k]; *vector: it was one vector a matrix. */
static lks_tensor *columns_of(const lks_tensor *a, lks_tensor *b, int *vector)
{
    *vector = b->v.ndim == 1;
    if (b->v.ndim == a->v.ndim - 1 && b->v.ndim >= 1) {
        *vector = 1;
        for (int d = 0; d < b->v.ndim; d++) *vector &= b->v.shape[d] == a->v.shape[d];
    }
    return *vector ? lks_unsqueeze(b, -1) : b;
}

static lks_tensor *identity(lks_tensor *like)
{
    int64_t n = like->v.shape[like->v.ndim - 1];
    lks_tensor *one = lks_ones(like->ctx, like->v.dtype, 1, &n);
    return lks_diag(one, 0);
}

/* --- Cholesky --- */

static lks_status cholesky(const char *where, lks_tensor *x, int upper, int check, lks_tensor **factor,
                           lks_tensor **info) {
    lks_tensor *out[2], **to[2] = {factor, info};
    if (upper) x = is_matrix(where, x) ? mT(x) : NULL;
    lks_status s = call(where, LKSI_OP_linalg_cholesky_ex, 1, &x, (lksi_attr){.linalg = {.check = check}}, 2, out);
    if (s == LKS_OK && upper && !(out[0] = mT(out[0]))) s = x->ctx->base.code;
    return hand_out(s, 2, out, to);
}

lks_tensor *lks_linalg_cholesky(lks_tensor *x, int upper)
{
    lks_tensor *l = NULL;
    return cholesky("lks_linalg_cholesky", x, upper, 1, &l, NULL) == LKS_OK ? l : NULL;
}

lks_status lks_linalg_cholesky_ex(lks_tensor *x, int upper, lks_tensor **factor, lks_tensor **info)
{
    return cholesky("lks_linalg_cholesky_ex", x, upper, 0, factor, info);
}

static lks_tensor *triangular(const char *where, lks_tensor *b, lks_tensor *a, int upper, int transposed, int unit)
{
    if (!is_matrix(where, a) || !is_matrix(where, b) || !same_batch(where, &a, &b)) return NULL;
    lks_tensor *in[2] = {a, b}, *out[1];
    lksi_attr attr = {.linalg = {.upper = upper != 0, .transpose = transposed != 0, .unit = unit != 0, .check = 1}};
    return call(where, LKSI_OP_triangular_solve, 2, in, attr, 1, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_triangular_solve(lks_tensor *b, lks_tensor *a, int upper, int transposed, int unit)
{
    return triangular("lks_triangular_solve", b, a, upper, transposed, unit);
}

static lks_tensor *by_factor(const char *where, lks_tensor *b, lks_tensor *factor, int upper)
{
    return triangular(where, triangular(where, b, factor, upper, upper, 0), factor, upper, !upper, 0);
}

lks_tensor *lks_cholesky_solve(lks_tensor *b, lks_tensor *factor, int upper)
{
    return by_factor("lks_cholesky_solve", b, factor, upper);
}

lks_tensor *lks_cholesky_inverse(lks_tensor *factor, int upper)
{
    const char *where = "lks_cholesky_inverse";
    if (!is_matrix(where, factor)) return NULL;
    lks_tensor *one = identity(factor);
    return one ? by_factor(where, one, factor, upper) : NULL;
}

/* --- general systems --- */

static lks_status solve(const char *where, lks_tensor *a, lks_tensor *b, int check, lks_tensor **y, lks_tensor **info)
{
    lks_tensor *in[2], *out[2], **to[2] = {y, info};
    if (!is_matrix(where, a) || !is_matrix(where, b) || !same_batch(where, &a, &b)) return LKS_ERR_SHAPE;
    in[0] = a, in[1] = b;
    return hand_out(call(where, LKSI_OP_linalg_solve, 2, in, (lksi_attr){.linalg = {.check = check}}, 2, out), 2, out,
                    to);
}

lks_tensor *lks_linalg_solve(lks_tensor *a, lks_tensor *b)
{
    const char *where = "lks_linalg_solve";
    lks_tensor *y = NULL;
    int vector;
    if (!b || b == lks_none || !is_matrix(where, a)) return NULL;
    b = columns_of(a, b, &vector);
    if (!b || solve(where, a, b, 1, &y, NULL)) return NULL;
    return vector ? lks_squeeze(y, -1) : y;
}

static lks_status inverse_of(const char *where, lks_tensor *x, int check, lks_tensor **inverse, lks_tensor **info)
{
    if (inverse) *inverse = NULL;
    if (info) *info = NULL;
    if (!is_matrix(where, x)) return LKS_ERR_ARGUMENT;
    lks_tensor *one = identity(x);
    return one ? solve(where, x, one, check, inverse, info) : LKS_ERR_ARGUMENT;
}

lks_tensor *lks_linalg_inv(lks_tensor *x)
{
    lks_tensor *y = NULL;
    return inverse_of("lks_linalg_inv", x, 1, &y, NULL) == LKS_OK ? y : NULL;
}

lks_tensor *lks_inverse(lks_tensor *x) { return lks_linalg_inv(x); }

lks_status lks_linalg_inv_ex(lks_tensor *x, lks_tensor **inverse, lks_tensor **info)
{
    return inverse_of("lks_linalg_inv_ex", x, 0, inverse, info);
}

static int64_t product(const int64_t *shape, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= shape[d];
    return n;
}

lks_tensor *lks_linalg_tensorinv(lks_tensor *x, int ind)
{
    char s[200];
    if (!x || x == lks_none) return NULL;
    int n = x->v.ndim;
    int64_t rows = ind > 0 && ind <= n ? product(x->v.shape, 0, ind) : -1, shape[LKS_MAX_DIMS], flat[2] = {rows, rows};
    if (rows < 0 || rows != product(x->v.shape, ind, n)) {
        lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_linalg_tensorinv", "%s is not square around its first %d dims",
                  lksi_shape_text(&x->v, s, sizeof s), ind);
        return NULL;
    }
    for (int d = 0; d < n; d++) shape[d] = x->v.shape[(d + ind) % n];
    lks_tensor *y = NULL, *flat_x = lks_reshape(x, 2, flat);
    return inverse_of("lks_linalg_tensorinv", flat_x, 1, &y, NULL) == LKS_OK ? lks_reshape(y, n, shape) : NULL;
}

lks_tensor *lks_linalg_tensorsolve(lks_tensor *a, lks_tensor *b, int n, const int *dims)
{
    const char *where = "lks_linalg_tensorsolve";
    char s[200], t[200];
    if (!a || !b || a == lks_none || b == lks_none) return NULL;
    if (dims && n > 0) {
        int order[LKS_MAX_DIMS], k = 0, moved = 0;
        for (int i = 0; i < n; i++) {
            int d = dims[i];
            if (lksi_dim(a->ctx, where, a->v.ndim, &d)) return NULL;
            moved |= 1 << d;
        }
        for (int d = 0; d < a->v.ndim; d++)
            if (!(moved >> d & 1)) order[k++] = d;
        for (int i = 0; i < n && k < LKS_MAX_DIMS; i++) order[k++] = dims[i] < 0 ? dims[i] + a->v.ndim : dims[i];
        if (k != a->v.ndim || !(a = lks_permute(a, k, order))) return NULL;
    }
    int lead = b->v.ndim, last = a->v.ndim - lead;
    int64_t rows = product(b->v.shape, 0, lead), flat[2] = {rows, rows}, one[1] = {rows};
    if (last < 0 || product(a->v.shape, 0, lead) != rows || product(a->v.shape, lead, a->v.ndim) != rows) {
        lksi_fail(&a->ctx->base, LKS_ERR_SHAPE, where, "%s is no square system for %s",
                  lksi_shape_text(&a->v, s, sizeof s), lksi_shape_text(&b->v, t, sizeof t));
        return NULL;
    }
    int64_t shape[LKS_MAX_DIMS];
    memcpy(shape, a->v.shape + lead, (size_t)last * sizeof *shape);
    lks_tensor *y = NULL, *column = lks_unsqueeze(lks_reshape(b, 1, one), 1);
    return !solve(where, lks_reshape(a, 2, flat), column, 1, &y, NULL) ? lks_reshape(y, last, shape) : NULL;
}

/* --- LU --- */

lks_status lks_linalg_lu_factor_ex(lks_tensor *x, lks_tensor **lu, lks_tensor **pivots, lks_tensor **info)
{
    lks_tensor *out[3], **to[3] = {lu, pivots, info};
    return hand_out(call("lks_linalg_lu_factor", LKSI_OP_linalg_lu_factor, 1, &x, (lksi_attr){{0}}, 3, out), 3, out,
                    to);
}

lks_status lks_linalg_lu_factor(lks_tensor *x, lks_tensor **lu, lks_tensor **pivots)
{
    return lks_linalg_lu_factor_ex(x, lu, pivots, NULL);
}

lks_tensor *lksi_lu_rows(lks_tensor *pivots, int64_t n)
{
    lksi_attr attr = {.linalg = {.n = n}};
    return pivots ? lksi_call1(pivots->ctx, "lks_lu_solve", LKSI_OP_lu_perm, 1, &pivots, &attr) : NULL;
}

lks_tensor *lks_lu_solve(lks_tensor *b, lks_tensor *lu, lks_tensor *pivots)
{
    const char *where = "lks_lu_solve";
    char s[200], t[200];
    if (!is_matrix(where, lu) || !is_matrix(where, b) || !pivots || !same_batch(where, &lu, &b)) return NULL;
    int n = b->v.ndim;
    lks_tensor *rows = lksi_lu_rows(pivots, b->v.shape[n - 2]);
    if (!rows) return NULL;
    if (rows->v.shape[rows->v.ndim - 1] != b->v.shape[n - 2] || pivots->v.ndim > n - 1) {
        lksi_fail(&b->ctx->base, LKS_ERR_SHAPE, where, "pivots %s for %s", lksi_shape_text(&pivots->v, s, sizeof s),
                  lksi_shape_text(&b->v, t, sizeof t));
        return NULL;
    }
    b = lks_take_along_dim(b, lks_expand(lks_unsqueeze(rows, -1), n, b->v.shape), -2);
    return triangular(where, triangular(where, b, lu, 0, 0, 1), lu, 1, 0, 0);
}

/* U's diagonal [..., n]. A 0 there is taken as the dtype's epsilon times the largest element: the determinant is 0 all
 * the same, and its gradient that of a matrix so near, not 0/0. */
lks_tensor *lksi_lu_diagonal(lks_tensor *lu)
{
    if (!lu) return NULL;
    lks_context *ctx = lu->ctx;
    lks_tensor *d = lks_diagonal(lu, 0, -2, -1), *tiny;
    if (!d || lu->v.shape[lu->v.ndim - 1] == 0 || lu->v.shape[lu->v.ndim - 2] == 0) return d;
    int dims[2] = {-2, -1};
    ctx->no_grad++;
    lks_tensor *zero = lks_zeros(ctx, lu->v.dtype, 0, NULL), *one = lks_ones(ctx, lu->v.dtype, 0, NULL);
    tiny = lks_amax(lks_abs(lu), 2, dims, 0);
    tiny = lks_mul_scalar(lks_where(lks_eq(tiny, zero), one, tiny), lu->v.dtype == LKS_F64 ? DBL_EPSILON : FLT_EPSILON);
    tiny = lks_where(lks_eq(d, zero), lks_unsqueeze(tiny, -1), zero);
    ctx->no_grad--;
    return lks_add(d, tiny); /* the gradient passes */
}

/* -1 for each row exchange, else 1: [..., n]. */
static lks_tensor *exchanges(lks_tensor *pivots, lks_dtype dtype)
{
    if (!pivots) return NULL;
    lks_context *ctx = pivots->ctx;
    lks_tensor *own = lks_add_scalar(lks_arange(ctx, LKS_I32, pivots->v.shape[pivots->v.ndim - 1]), 1);
    return lks_affine(lks_to(lks_ne(pivots, own), dtype), -2, 1);
}

static int square_matrix(const char *where, lks_tensor *x)
{
    char s[200];
    if (!is_matrix(where, x)) return 0;
    if (x->v.shape[x->v.ndim - 1] == x->v.shape[x->v.ndim - 2]) return 1;
    lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, where, "%s is not square", lksi_shape_text(&x->v, s, sizeof s));
    return 0;
}

lks_tensor *lks_linalg_det(lks_tensor *x)
{
    int last = -1;
    lks_tensor *lu, *pivots;
    if (!square_matrix("lks_linalg_det", x) || lks_linalg_lu_factor(x, &lu, &pivots)) return NULL;
    lks_context *ctx = x->ctx;
    lks_tensor *sign = exchanges(pivots, lu->v.dtype), *zero = lks_zeros(ctx, lu->v.dtype, 0, NULL);
    ctx->no_grad++;
    lks_tensor *exact = lks_prod(lks_mul(lks_diagonal(lu, 0, -2, -1), sign), 1, &last, 0, LKS_DTYPE_NONE);
    ctx->no_grad--;
    if (!keeps_graph(lu)) return exact;
    lks_tensor *y = lks_prod(lks_mul(lksi_lu_diagonal(lu), sign), 1, &last, 0, LKS_DTYPE_NONE);
    ctx->no_grad++;
    lks_tensor *off = exact ? lks_where(lks_eq(exact, zero), lks_sub(y, exact), zero) : NULL;
    ctx->no_grad--;
    return lks_sub(y, off);
}

lks_status lks_linalg_slogdet(lks_tensor *x, lks_tensor **sign, lks_tensor **logabsdet)
{
    int last = -1;
    lks_tensor *lu = NULL, *pivots = NULL, *out[2] = {NULL, NULL}, **to[2] = {sign, logabsdet};
    if (!square_matrix("lks_linalg_slogdet", x)) return hand_out(LKS_ERR_SHAPE, 2, out, to);
    lks_status s = lks_linalg_lu_factor(x, &lu, &pivots);
    if (s != LKS_OK) return hand_out(s, 2, out, to);
    lks_tensor *d = lks_diagonal(lu, 0, -2, -1);
    x->ctx->no_grad++;
    lks_tensor *signs = lks_mul(lks_sign(d), exchanges(pivots, lu->v.dtype));
    out[0] = lks_prod(signs, 1, &last, 0, LKS_DTYPE_NONE);
    x->ctx->no_grad--;
    out[1] = lks_sum(lks_log(lks_abs(d)), 1, &last, 0, LKS_DTYPE_NONE);
    return hand_out(out[0] && out[1] ? LKS_OK : x->ctx->base.code, 2, out, to);
}

/* --- orthogonal factors --- */

lks_status lks_linalg_qr(lks_tensor *x, int mode, lks_tensor **q, lks_tensor **r)
{
    lks_tensor *out[2], **to[2] = {q, r};
    if (x && x != lks_none && (mode < LKS_QR_REDUCED || mode > LKS_QR_R))
        return hand_out(lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_linalg_qr", "mode %d is not one of lks_qr_mode",
                                  mode), 2, out, to);
    return hand_out(call("lks_linalg_qr", LKSI_OP_linalg_qr, 1, &x, (lksi_attr){.linalg = {.mode = mode}}, 2, out), 2,
                    out, to);
}

lks_status lks_geqrf(lks_tensor *x, lks_tensor **a, lks_tensor **tau)
{
    lks_tensor *out[2], **to[2] = {a, tau};
    return hand_out(call("lks_geqrf", LKSI_OP_geqrf, 1, &x, (lksi_attr){{0}}, 2, out), 2, out, to);
}

lks_tensor *lks_orgqr(lks_tensor *a, lks_tensor *tau)
{
    lks_tensor *in[2] = {a, tau}, *out[1];
    return call("lks_orgqr", LKSI_OP_orgqr, 2, in, (lksi_attr){{0}}, 1, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_linalg_householder_product(lks_tensor *a, lks_tensor *tau) { return lks_orgqr(a, tau); }

lks_tensor *lks_ormqr(lks_tensor *a, lks_tensor *tau, lks_tensor *c, int left, int transposed)
{
    lks_tensor *in[3] = {a, tau, c}, *out[1];
    lksi_attr attr = {.linalg = {.left = left != 0, .transpose = transposed != 0}};
    return call("lks_ormqr", LKSI_OP_ormqr, 3, in, attr, 1, out) == LKS_OK ? out[0] : NULL;
}

/* --- singular values and eigenvalues, with vectors where a gradient may come: it is made of them --- */


static lks_status svd(const char *where, lks_tensor *x, int vectors, int full, lks_tensor **out)
{
    return call(where, LKSI_OP_linalg_svd, 1, &x, (lksi_attr){.linalg = {.vectors = vectors, .mode = full != 0}}, 3,
                out);
}

lks_status lks_linalg_svd(lks_tensor *x, int full, lks_tensor **u, lks_tensor **s, lks_tensor **vh)
{
    lks_tensor *out[3], **to[3] = {u, s, vh};
    return hand_out(svd("lks_linalg_svd", x, 1, full, out), 3, out, to);
}

lks_status lks_svd(lks_tensor *x, int full, lks_tensor **u, lks_tensor **s, lks_tensor **v)
{
    lks_tensor *out[3], **to[3] = {u, s, v};
    lks_status status = svd("lks_svd", x, 1, full, out);
    if (status == LKS_OK && !(out[2] = mT(out[2]))) status = x->ctx->base.code;
    return hand_out(status, 3, out, to);
}

lks_tensor *lks_linalg_svdvals(lks_tensor *x)
{
    lks_tensor *out[3];
    return svd("lks_linalg_svdvals", x, keeps_graph(x), 0, out) == LKS_OK ? out[1] : NULL;
}

lks_status lks_linalg_eig(lks_tensor *x, lks_tensor **w, lks_tensor **v)
{
    lks_tensor *out[2], **to[2] = {w, v};
    return hand_out(call("lks_linalg_eig", LKSI_OP_linalg_eig, 1, &x, (lksi_attr){.linalg = {.vectors = 1}}, 2, out), 2,
                    out, to);
}

lks_tensor *lks_linalg_eigvals(lks_tensor *x)
{
    lks_tensor *out[2];
    lksi_attr attr = {.linalg = {.vectors = keeps_graph(x)}};
    return call("lks_linalg_eigvals", LKSI_OP_linalg_eig, 1, &x, attr, 2, out) == LKS_OK ? out[0] : NULL;
}

lks_status lks_linalg_eigh(lks_tensor *x, int upper, lks_tensor **w, lks_tensor **v)
{
    lks_tensor *out[2], **to[2] = {w, v};
    lksi_attr attr = {.linalg = {.vectors = 1, .upper = upper != 0}};
    return hand_out(call("lks_linalg_eigh", LKSI_OP_linalg_eigh, 1, &x, attr, 2, out), 2, out, to);
}

lks_tensor *lks_linalg_eigvalsh(lks_tensor *x, int upper)
{
    lks_tensor *out[2];
    lksi_attr attr = {.linalg = {.vectors = keeps_graph(x), .upper = upper != 0}};
    return call("lks_linalg_eigvalsh", LKSI_OP_linalg_eigh, 1, &x, attr, 2, out) == LKS_OK ? out[0] : NULL;
}

/* --- of any rank --- */

static double rcond_of(const lks_tensor *x, double rcond)
{
    int64_t m = x->v.shape[x->v.ndim - 2], n = x->v.shape[x->v.ndim - 1];
    if (rcond >= 0) return rcond;
    return (x->v.dtype == LKS_F64 ? DBL_EPSILON : FLT_EPSILON) * (double)(m > n ? m : n);
}

lks_status lks_linalg_lstsq(lks_tensor *a, lks_tensor *b, double rcond, lks_tensor **y, lks_tensor **rank,
                            lks_tensor **s) {
    LKSI_GUARD;
    const char *where = "lks_linalg_lstsq";
    lks_tensor *in[2], *out[3] = {NULL}, **to[3] = {y, rank, s};
    int vector = 0;
    lks_status status = LKS_ERR_ARGUMENT;
    if (b && b != lks_none && is_matrix(where, a) && (b = columns_of(a, b, &vector)) && same_batch(where, &a, &b)) {
        in[0] = a, in[1] = b;
        status = call(where, LKSI_OP_linalg_lstsq, 2, in, (lksi_attr){.linalg = {.rcond = rcond_of(a, rcond)}}, 3, out);
    }
    if (status == LKS_OK && vector && !(out[0] = lks_squeeze(out[0], -1))) status = a->ctx->base.code;
    return hand_out(status, 3, out, to);
}

/* 1 where singular value i counts: s above rcond times the first. */
static lks_tensor *counts(lks_tensor *s, double rcond)
{
    return s ? lks_gt(s, lks_mul_scalar(lks_slice(s, -1, 0, 1, 1), rcond)) : NULL;
}

/* The gradient is the rule's, not that of the svd, which is not finite for equal singular values. */
lks_tensor *lks_pinverse(lks_tensor *x, double rcond)
{
    const char *where = "lks_pinverse";
    if (!is_matrix(where, x)) return NULL;
    lksi_attr attr = {.linalg = {.rcond = rcond}};
    return lksi_call1(x->ctx, where, LKSI_OP_pinverse, 1, &x, &attr);
}

lks_tensor *lks_linalg_matrix_rank(lks_tensor *x, double rcond)
{
    LKSI_GUARD;
    lks_tensor *out[3], *y = NULL;
    if (!is_matrix("lks_linalg_matrix_rank", x)) return NULL;
    int dim = -1;
    x->ctx->no_grad++;
    if (svd("lks_linalg_matrix_rank", x, 0, 0, out) == LKS_OK)
        y = lks_sum(counts(out[1], rcond_of(out[1]->v.dtype == x->v.dtype ? x : out[1], rcond)), 1, &dim, 0,
                    LKS_DTYPE_NONE);
    x->ctx->no_grad--;
    return y;
}

static lks_tensor *norm_of(lks_tensor *x, double p)
{
    int dims[2] = {-2, -1};
    if (p == 0) return lks_norm(x, 2, 2, dims, 0);
    lks_tensor *sums = lks_norm(x, 1, 1, &dims[fabs(p) == 1 ? 0 : 1], 0);
    int last = -1;
    return p > 0 ? lks_amax(sums, 1, &last, 0) : lks_amin(sums, 1, &last, 0);
}

lks_tensor *lks_linalg_cond(lks_tensor *x, double p)
{
    const char *where = "lks_linalg_cond";
    if (!is_matrix(where, x)) return NULL;
    lks_context *ctx = x->ctx;
    const int64_t *size = x->v.shape + x->v.ndim - 2;
    if (p == 2 || p == -2) {
        lks_tensor *s = lks_linalg_svdvals(x);
        if (!s) return NULL;
        int64_t k = s->v.shape[s->v.ndim - 1];
        if (k == 0) return lks_zeros(ctx, s->v.dtype, x->v.ndim - 2, x->v.shape);
        lks_tensor *most = lks_select(s, -1, 0), *least = lks_select(s, -1, k - 1);
        return p > 0 ? lks_div(most, least) : lks_div(least, most);
    }
    if (p != 0 && fabs(p) != 1 && !isinf(p)) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "p is %g; 2, -2, 1, -1, inf, -inf or 0 (Frobenius)", p);
        return NULL;
    }
    lks_tensor *inverse = NULL, *info = NULL;
    if (inverse_of(where, x, 0, &inverse, &info)) return NULL;
    if (size[0] == 0) return lks_zeros(ctx, inverse->v.dtype, x->v.ndim - 2, x->v.shape);
    x = lks_to(x, inverse->v.dtype);
    lks_tensor *zero = lks_zeros(ctx, LKS_I32, 0, NULL), *y = lks_mul(norm_of(x, p), norm_of(inverse, p));
    return y ? lks_where(lks_eq(info, zero), y, lks_full(ctx, y->v.dtype, 0, NULL, INFINITY)) : NULL;
}
