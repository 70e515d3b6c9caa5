/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_linalg.c - factorisations and solvers: what they must multiply back to, in float64 and float32, batches,
 * strides, matrices of nothing, rank-deficient and singular ones; gradients, those of vectors on functions that do not
 * depend on signs and phases.
 */
#include "arrays.h"
#include "ops/ops.h"

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__}

static lks_context *ctx;

static lks_tensor *mT(lks_tensor *x) { return lks_transpose(x, -2, -1); }
static lks_tensor *noise3(lks_dtype dtype, int64_t b, int64_t m, int64_t n, uint64_t seed)
{
    return noise_of(ctx, dtype, 3, (int64_t[]){b, m, n}, 1, seed);
}
static lks_tensor *eye(lks_dtype dtype, int64_t n) { return lks_diag(lks_ones(ctx, dtype, 1, &n), 0); }
static lks_tensor *scaled(lks_tensor *columns, lks_tensor *s) { return lks_mul(columns, lks_unsqueeze(s, -2)); }
static lks_tensor *positive(lks_tensor *x) /* x x^T + 1 */
{
    return lks_add(lks_matmul(x, mT(x)), eye(lks_dtype_of(x), lks_dim(x, -2)));
}

static int near(lks_tensor *a, lks_tensor *b, double tol)
{
    if (!a || !b) {
        diag("no tensor: %s", lks_error(ctx));
        lks_error_clear(ctx);
        return 0;
    }
    if (lks_ndim(a) != lks_ndim(b)) {
        diag("%d and %d dims", lks_ndim(a), lks_ndim(b));
        return 0;
    }
    for (int d = 0; d < lks_ndim(a); d++)
        if (lks_dim(a, d) != lks_dim(b, d)) {
            diag("dim %d: %d and %d", d, (int)lks_dim(a, d), (int)lks_dim(b, d));
            return 0;
        }
    if (lks_dtype_is_complex(lks_dtype_of(a))) a = lks_view_as_real(a);
    if (lks_dtype_is_complex(lks_dtype_of(b))) b = lks_view_as_real(b);
    double *w = values_of(ctx, b);
    int good = close_to(ctx, a, w, lks_numel(a), tol);
    free(w);
    return good;
}

static void factors(lks_dtype dtype, int layout)
{
    const char *name = lks_dtype_name(dtype);
    double tol = dtype == LKS_F32 ? 1e-4 : 1e-11;
    lks_scope_begin(ctx);
    lks_tensor *x = noise3(dtype, 3, 5, 5, 1), *b = noise3(dtype, 3, 5, 2, 2), *p, *l, *y, *info, *lu, *pivots, *q, *r,
               *tau, *a;
    x = lks_add(x, lks_mul_scalar(eye(dtype, 5), 3));
    if (layout) x = reversed(x), b = reversed(b);
    p = positive(x);
#define IS(what, left, right) ok(near(left, right, tol), "%s %s layout %d", what, name, layout)
    l = lks_linalg_cholesky(p, 0);
    IS("cholesky", lks_matmul(l, mT(l)), p);
    IS("its upper triangle is 0", lks_triu(l, 1), lks_mul_scalar(l, 0));
    IS("cholesky, upper", lks_linalg_cholesky(p, 1), mT(l));
    IS("cholesky_inverse", lks_matmul(lks_cholesky_inverse(l, 0), p), lks_expand(eye(dtype, 5), SHAPE(3, 5, 5)));
    IS("cholesky_solve", lks_matmul(p, lks_cholesky_solve(b, l, 0)), b);
    IS("cholesky_solve, upper", lks_matmul(p, lks_cholesky_solve(b, mT(l), 1)), b);
    IS("triangular_solve", lks_matmul(lks_tril(x, 0), lks_triangular_solve(b, x, 0, 0, 0)), b);
    IS("transposed", lks_matmul(mT(lks_triu(x, 0)), lks_triangular_solve(b, x, 1, 1, 0)), b);
    IS("unit", lks_matmul(lks_add(lks_tril(x, -1), eye(dtype, 5)), lks_triangular_solve(b, x, 0, 0, 1)), b);
    IS("solve", lks_matmul(x, lks_linalg_solve(x, b)), b);
    IS("solve, one matrix for all", lks_matmul(lks_select(x, 0, 1), lks_linalg_solve(lks_select(x, 0, 1), b)), b);
    IS("solve, vectors", lks_linalg_solve(x, lks_select(b, 2, 1)), lks_select(lks_linalg_solve(x, b), 2, 1));
    IS("inv", lks_matmul(lks_linalg_inv(x), x), lks_expand(eye(dtype, 5), SHAPE(3, 5, 5)));
    IS("inverse", lks_inverse(x), lks_linalg_inv(x));
    ok(lks_linalg_inv_ex(x, &y, &info) == LKS_OK && near(y, lks_linalg_inv(x), 0) && lks_dtype_of(info) == LKS_I32 &&
           lks_numel(info) == 3,
       "inv_ex");
    ok(lks_linalg_lu_factor(x, &lu, &pivots) == LKS_OK && lks_dtype_of(pivots) == LKS_I32, "lu_factor %s", name);
    IS("lu_solve", lks_matmul(x, lks_lu_solve(b, lu, pivots)), b);
    lks_tensor *sign, *logabs;
    ok(lks_linalg_slogdet(x, &sign, &logabs) == LKS_OK, "slogdet");
    IS("det", lks_mul(sign, lks_exp(logabs)), lks_linalg_det(x));
    IS("det of a product", lks_linalg_det(lks_matmul(x, mT(x))), lks_mul(lks_linalg_det(x), lks_linalg_det(x)));
    IS("det of a triangle", lks_linalg_det(lks_tril(x, 0)), lks_prod(lks_diagonal(x, 0, 1, 2), 1, (int[]){1}, 0,
                                                                      LKS_DTYPE_NONE));
    for (int i = 0; i < 2; i++) {
        lks_tensor *c = noise3(dtype, 2, i ? 3 : 6, i ? 6 : 3, 5), *rows = NULL;
        if (layout) c = reversed(c);
        lks_linalg_lu_factor(c, &lu, &pivots);
        lks_tensor *lower = lks_add(lks_tril(lks_slice(lu, -1, 0, 3, 1), -1),
                                    lks_slice(eye(dtype, i ? 3 : 6), -1, 0, 3, 1));
        rows = lksi_lu_rows(pivots, i ? 3 : 6);
        IS("lu of a rectangle", lks_matmul(lower, lks_triu(lks_slice(lu, -2, 0, 3, 1), 0)),
           lks_take_along_dim(c, lks_expand(lks_unsqueeze(rows, -1), 3, lks_shape(c)), -2));
    }
    static const int64_t sizes[4][2] = {{5, 5}, {6, 3}, {3, 6}, {1, 4}};
    for (int i = 0; i < 4; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], k = m < n ? m : n;
        lks_tensor *c = noise3(dtype, 2, m, n, 5), *u, *s, *vh;
        if (layout) c = reversed(c);
        lks_linalg_qr(c, LKS_QR_REDUCED, &q, &r);
        IS("qr", lks_matmul(q, r), c);
        IS("Q is orthogonal", lks_matmul(mT(q), q), lks_expand(eye(dtype, k), SHAPE(2, k, k)));
        IS("R is triangular", lks_tril(r, -1), lks_mul_scalar(r, 0));
        ok(lks_linalg_qr(c, LKS_QR_R, NULL, &y) == LKS_OK && near(y, r, tol), "R alone");
        lks_linalg_qr(c, LKS_QR_COMPLETE, &q, &r);
        IS("qr, complete", lks_matmul(q, r), c);
        IS("complete Q is orthogonal", lks_matmul(q, mT(q)), lks_expand(eye(dtype, m), SHAPE(2, m, m)));
        ok(lks_geqrf(c, &a, &tau) == LKS_OK && lks_dim(tau, -1) == k, "geqrf");
        if (m >= n) {
            IS("orgqr", lks_orgqr(a, tau), lks_slice(q, -1, 0, n, 1));
            IS("householder_product", lks_linalg_householder_product(a, tau), lks_orgqr(a, tau));
        }
        lks_tensor *d = noise3(dtype, 2, m, 3, 9);
        IS("ormqr", lks_ormqr(a, tau, d, 1, 0), lks_matmul(q, d));
        IS("ormqr, transposed from the right", lks_ormqr(a, tau, mT(d), 0, 1), lks_matmul(mT(d), mT(q)));
        lks_linalg_svd(c, 0, &u, &s, &vh);
        IS("svd", lks_matmul(scaled(u, s), vh), c);
        IS("U is orthogonal", lks_matmul(mT(u), u), lks_expand(eye(dtype, k), SHAPE(2, k, k)));
        IS("svdvals", lks_linalg_svdvals(c), s);
        lks_linalg_svd(c, 1, &u, &s, &vh);
        IS("svd, full", lks_matmul(scaled(lks_slice(u, -1, 0, k, 1), s), lks_slice(vh, -2, 0, k, 1)), c);
        IS("full Vh is orthogonal", lks_matmul(vh, mT(vh)), lks_expand(eye(dtype, n), SHAPE(2, n, n)));
        ok(lks_svd(c, 0, &u, &s, &y) == LKS_OK && near(lks_matmul(scaled(u, s), mT(y)), c, tol), "svd with V");
        lks_tensor *pinv = lks_pinverse(c, -1);
        IS("pinverse: a p a = a", lks_matmul(lks_matmul(c, pinv), c), c);
        IS("a p is symmetric", lks_matmul(c, pinv), mT(lks_matmul(c, pinv)));
        lks_tensor *rank, *e = noise3(dtype, 2, m, 2, 11);
        ok(lks_linalg_lstsq(c, e, -1, &y, &rank, &s) == LKS_OK, "lstsq");
        IS("lstsq is the pseudoinverse", y, lks_matmul(pinv, e));
        ok(close_to(ctx, rank, (double[]){(double)k, (double)k}, 2, 0) &&
               close_to(ctx, lks_linalg_matrix_rank(c, -1), (double[]){(double)k, (double)k}, 2, 0), "rank");
    }
    lks_tensor *w, *v;
    lks_linalg_eigh(p, 0, &w, &v);
    IS("eigh", lks_matmul(scaled(v, w), mT(v)), p);
    IS("eigvalsh", lks_linalg_eigvalsh(p, 1), w);
    lks_linalg_eig(x, &w, &v);
    lks_tensor *xc = lks_to(x, dtype == LKS_F32 ? LKS_C64 : LKS_C128);
    IS("eig", lks_matmul(xc, v), scaled(v, w));
    IS("eigvals", lks_linalg_eigvals(x), w);
    IS("their sum is the trace", lks_real(lks_sum(w, 1, (int[]){1}, 0, LKS_DTYPE_NONE)),
       lks_sum(lks_diagonal(x, 0, 1, 2), 1, (int[]){1}, 0, LKS_DTYPE_NONE));
    IS("cond by inverses", lks_linalg_cond(x, 1),
       lks_mul(lks_amax(lks_norm(x, 1, 1, (int[]){1}, 0), 1, (int[]){1}, 0),
               lks_amax(lks_norm(lks_linalg_inv(x), 1, 1, (int[]){1}, 0), 1, (int[]){1}, 0)));
    IS("cond 2", lks_mul(lks_linalg_cond(x, 2), lks_linalg_cond(x, -2)), lks_ones(ctx, dtype, SHAPE(3)));
    lks_tensor *t = noise_of(ctx, dtype, SHAPE(2, 3, 3, 2), 1, 13);
    IS("tensorinv", lks_matmul(lks_reshape(lks_linalg_tensorinv(t, 2), SHAPE(6, 6)), lks_reshape(t, SHAPE(6, 6))),
       eye(dtype, 6));
    lks_tensor *tb = noise_of(ctx, dtype, SHAPE(2, 3), 1, 14), *ty = lks_linalg_tensorsolve(t, tb, 0, NULL);
    IS("tensorsolve", lks_matmul(lks_reshape(t, SHAPE(6, 6)), lks_reshape(ty, SHAPE(6))), lks_reshape(tb, SHAPE(6)));
    lks_scope_end(ctx);
}

static int refused(int failed, lks_status code, const char *a, const char *b)
{
    lks_status s = lks_synchronize(ctx); /* a queued kernel tells later */
    const char *text = lks_error(ctx);
    int good = (failed || s != LKS_OK) && lks_error_code(ctx) == code && strstr(text, a) && strstr(text, b);
    if (!good) diag("%s", text);
    lks_error_clear(ctx);
    return good;
}

static void edges(void)
{
    lks_scope_begin(ctx);
    double v[] = {1, 2, 2, 4, 2, 1, 1, 2}; /* a singular matrix, a good one */
    lks_tensor *x = tensor_of(ctx, LKS_F64, SHAPE(2, 2, 2), v), *b = lks_ones(ctx, LKS_F64, SHAPE(2, 2, 1)), *y, *info,
               *l, *s, *u, *vh, *rank;
    ok(refused(!lks_linalg_inv(x), LKS_ERR_ARGUMENT, "matrix 0", "singular"), "inv of a singular matrix");
    ok(refused(!lks_linalg_solve(x, b), LKS_ERR_ARGUMENT, "matrix 0", "singular"), "solve");
    lks_linalg_inv_ex(x, &y, &info);
    double *h = values_of(ctx, y), *i = values_of(ctx, info);
    ok(i[0] == 2 && i[1] == 0 && isnan(h[0]) && isnan(h[3]) && fabs(h[4] - 2 / 3.0) < 1e-15,
       "inv_ex: info, and NaN for that matrix alone");
    free(h), free(i);
    double n[] = {1, 2, 2, 1, 4, 2, 2, 3};
    lks_tensor *indefinite = tensor_of(ctx, LKS_F64, SHAPE(2, 2, 2), n);
    ok(refused(!lks_linalg_cholesky(indefinite, 0), LKS_ERR_ARGUMENT, "matrix 0", "positive definite"),
       "cholesky of an indefinite matrix");
    lks_linalg_cholesky_ex(indefinite, 0, &l, &info);
    h = values_of(ctx, l), i = values_of(ctx, info);
    ok(i[0] == 2 && i[1] == 0 && isnan(h[0]) && h[4] == 2, "cholesky_ex");
    free(h), free(i);
    ok(refused(!lks_triangular_solve(b, lks_mul_scalar(x, 0), 0, 0, 0), LKS_ERR_ARGUMENT, "singular", "diagonal"),
       "a triangle with 0 on its diagonal");
    ok(close_to(ctx, lks_linalg_matrix_rank(x, -1), (double[]){1, 2}, 2, 0), "rank of a rank-deficient matrix");
    ok(lks_linalg_lstsq(x, b, -1, &y, &rank, &s) == LKS_OK && close_to(ctx, rank, (double[]){1, 2}, 2, 0),
       "lstsq tells the rank");
    ok(near(y, lks_matmul(lks_pinverse(x, -1), b), 1e-12), "and has the least norm");
    h = values_of(ctx, lks_linalg_cond(x, INFINITY));
    ok(h[0] == INFINITY && fabs(h[1] - 3) < 1e-14, "cond of a singular matrix");
    free(h);
    double three[] = {1, 2, 3, 2, 4, 6, 1, 0, 1}, zeros[] = {0, 1, 0, 0};
    lks_tensor *singular = tensor_of(ctx, LKS_F64, SHAPE(3, 3), three), *gx, *sign, *logabs;
    double cofactors[] = {4, 4, -4, -2, -2, 2, 0, 0, 0}, corner[] = {0, 0, -1, 0};
    lks_set_requires_grad(singular, 1);
    lks_tensor *det = lks_linalg_det(singular);
    ok(close_to(ctx, det, (double[]){0}, 1, 0) && lks_gradients(det, LKS_NONE, 1, &singular, 0, 0, &gx) == LKS_OK &&
           close_to(ctx, gx, cofactors, 9, 1e-13),
       "det of a singular matrix is 0, its gradient the cofactors");
    singular = tensor_of(ctx, LKS_F64, SHAPE(2, 2), zeros);
    lks_set_requires_grad(singular, 1);
    ok(lks_gradients(lks_linalg_det(singular), LKS_NONE, 1, &singular, 0, 0, &gx) == LKS_OK &&
           close_to(ctx, gx, corner, 4, 1e-13),
       "with zeros all along U's diagonal, too");
    ok(lks_linalg_slogdet(x, &sign, &logabs) == LKS_OK && close_to(ctx, sign, (double[]){0, 1}, 2, 0), "its sign is 0");
    h = values_of(ctx, logabs);
    ok(h[0] == -INFINITY && fabs(h[1] - log(3)) < 1e-14, "and the logarithm -inf");
    free(h);
    ok(close_to(ctx, lks_linalg_det(lks_ones(ctx, LKS_F64, SHAPE(2, 0, 0))), (double[]){1, 1}, 2, 0), "det of nothing");
    ok(refused(!lks_linalg_det(lks_ones(ctx, LKS_F64, SHAPE(2, 3))), LKS_ERR_SHAPE, "[2,3]", "square"),
       "det of a rectangle");
    lks_tensor *lu, *pivots;
    lks_linalg_lu_factor(x, &lu, &pivots);
    lks_tensor *wrong = lks_mul(pivots, lks_zeros(ctx, LKS_I32, 0, NULL));
    ok(refused(!lks_lu_solve(lks_ones(ctx, LKS_F64, SHAPE(2, 2, 1)), lks_add(lu, eye(LKS_F64, 2)), wrong),
               LKS_ERR_ARGUMENT, "lu", "2"),
       "pivots that are no rows");
    double bad[] = {1, NAN, 2, 3};
    lks_tensor *nan = tensor_of(ctx, LKS_F64, SHAPE(2, 2), bad);
    ok(refused(lks_linalg_svd(nan, 0, &u, &s, &vh) != LKS_OK, LKS_ERR_ARGUMENT, "NaN", "matrix 0"), "svd of NaN");
    ok(refused(lks_linalg_eig(nan, &u, &s) != LKS_OK, LKS_ERR_ARGUMENT, "NaN", ""), "eig of NaN");
    ok(refused(lks_linalg_eigh(nan, 0, &u, &s) != LKS_OK, LKS_ERR_ARGUMENT, "NaN", ""), "eigh of NaN");
    ok(refused(lks_linalg_lstsq(nan, lks_ones(ctx, LKS_F64, SHAPE(2, 1)), -1, &u, NULL, NULL) != LKS_OK,
               LKS_ERR_ARGUMENT, "NaN", ""),
       "lstsq of NaN");
    lks_tensor *e = lks_ones(ctx, LKS_F64, SHAPE(2, 0, 0)), *none = lks_ones(ctx, LKS_F64, SHAPE(0, 3, 3)),
               *thin = lks_ones(ctx, LKS_F64, SHAPE(3, 0));
    ok(lks_numel(lks_linalg_cholesky(e, 0)) == 0 && lks_numel(lks_linalg_inv(none)) == 0 &&
           lks_numel(lks_linalg_inv(e)) == 0 && lks_linalg_svd(thin, 1, &u, &s, &vh) == LKS_OK &&
           near(u, eye(LKS_F64, 3), 0),
       "matrices of nothing");
    ok(lks_linalg_qr(thin, LKS_QR_COMPLETE, &u, &s) == LKS_OK && near(u, eye(LKS_F64, 3), 0),
       "Q of nothing is the identity");
    for (int i = 0; i < 20; i++) lks_full(ctx, LKS_F64, SHAPE(3, 2), 5); /* memory that was used before */
    lks_scope_end(ctx);
    lks_scope_begin(ctx);
    double nothing[12] = {0}, orders[] = {2, -2, 1, -1, INFINITY, -INFINITY, 0};
    lks_tensor *flat = lks_ones(ctx, LKS_F64, SHAPE(2, 0, 3)), *at = lks_ones(ctx, LKS_F64, SHAPE(2, 0, 2));
    ok(lks_linalg_lstsq(flat, at, -1, &y, &rank, &s) == LKS_OK && close_to(ctx, y, nothing, 12, 0) &&
           close_to(ctx, rank, nothing, 2, 0),
       "lstsq of no equations: zeros are the shortest answer");
    e = lks_ones(ctx, LKS_F64, SHAPE(2, 0, 0));
    for (int i = 0; i < 7; i++)
        ok(close_to(ctx, lks_linalg_cond(e, orders[i]), nothing, 2, 0), "cond %g of nothing is 0", orders[i]);
    ok(refused(!lks_linalg_inv(lks_ones(ctx, LKS_F64, SHAPE(2, 3))), LKS_ERR_SHAPE, "square", ""),
       "inv of a rectangle");
    ok(refused(!lks_linalg_cholesky(lks_ones(ctx, LKS_F64, SHAPE(2, 3)), 0), LKS_ERR_SHAPE, "[2,3]", "square"),
       "cholesky of a rectangle");
    ok(refused(!lks_linalg_inv(lks_ones(ctx, LKS_F64, SHAPE(3))), LKS_ERR_SHAPE, "[3]", "matrix"), "inv of a vector");
    ok(refused(!lks_linalg_solve(eye(LKS_F64, 3), lks_ones(ctx, LKS_F64, SHAPE(2, 2))), LKS_ERR_SHAPE, "[3,3]",
               "[2,2]"),
       "solve that does not fit");
    ok(refused(!lks_linalg_svdvals(lks_ones(ctx, LKS_F16, SHAPE(2, 2))), LKS_ERR_DTYPE, "float16", "float32"),
       "float16");
    ok(refused(!lks_linalg_svdvals(lks_ones(ctx, LKS_C64, SHAPE(2, 2))), LKS_ERR_DTYPE, "complex64", ""), "complex");
    lks_tensor *z = lks_complex(noise3(LKS_F64, 2, 3, 3, 1), noise3(LKS_F64, 2, 3, 3, 2)),
               *zb = lks_complex(noise3(LKS_F64, 2, 3, 2, 3), noise3(LKS_F64, 2, 3, 2, 4));
    ok(near(lks_matmul(z, lks_linalg_solve(z, zb)), zb, 1e-12), "solve of complex matrices");
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *half = lks_to(eye(LKS_F32, 3), LKS_BF16);
    ok(lks_dtype_of(lks_linalg_inv(half)) == LKS_F32 && lks_dtype_of(lks_pinverse(half, -1)) == LKS_F32 &&
           lks_dtype_of(lks_linalg_svdvals(half)) == LKS_F32 && lks_dtype_of(lks_linalg_cond(half, 1)) == LKS_F32,
       "a region casts to float32");
    lks_autocast_end(ctx);
    lks_scope_end(ctx);
}

/* Matrices beyond the sizes that a device takes as one call for all of them. */
static void many(void)
{
    static const int64_t sizes[2][2] = {{40, 33}, {33, 40}};
    lks_tensor *q, *r, *u, *s, *vh, *w, *v, *lu, *pivots;
    lks_scope_begin(ctx);
    for (int i = 0; i < 2; i++) {
        lks_tensor *c = noise3(LKS_F64, 2, sizes[i][0], sizes[i][1], 31);
        ok(lks_linalg_svd(c, 0, &u, &s, &vh) == LKS_OK && near(lks_matmul(scaled(u, s), vh), c, 1e-12),
           "svd of a larger one");
        ok(lks_linalg_qr(c, LKS_QR_REDUCED, &q, &r) == LKS_OK && near(lks_matmul(q, r), c, 1e-12), "qr");
    }
    lks_tensor *x = lks_add(noise3(LKS_F64, 2, 140, 140, 33), lks_mul_scalar(eye(LKS_F64, 140), 12)),
               *b = noise3(LKS_F64, 2, 140, 3, 34), *p = lks_matmul(x, mT(x));
    ok(near(lks_matmul(x, lks_linalg_solve(x, b)), b, 1e-11), "solve");
    ok(lks_linalg_lu_factor(x, &lu, &pivots) == LKS_OK && near(lks_matmul(x, lks_lu_solve(b, lu, pivots)), b, 1e-11),
       "lu_factor, lu_solve");
    lks_tensor *one = lks_select(p, 0, 1), *l = lks_linalg_cholesky(one, 0);
    ok(near(lks_matmul(l, mT(l)), one, 1e-10), "cholesky of one");
    ok(lks_linalg_eigh(one, 0, &w, &v) == LKS_OK && near(lks_matmul(scaled(v, w), mT(v)), one, 1e-10), "eigh of one");
    lks_scope_end(ctx);
}

#define GRAD(name, ...)                                                                                                \
    static lks_tensor *name(void *user, lks_tensor *const *in, int count) {                                            \
        (void)user, (void)count;                                                                                       \
        lks_tensor *x = in[0], *c = in[1], *u = NULL, *s = NULL, *v = NULL;                                            \
        (void)x, (void)c, (void)u, (void)s, (void)v;                                                                   \
        __VA_ARGS__                                                                                                    \
    }
#define WELL lks_add(x, lks_mul_scalar(eye(LKS_F64, 3), 2.5))
#define SYMMETRIC lks_add(lks_add(x, mT(x)), lks_diag(lks_mul_scalar(lks_arange(ctx, LKS_F64, 3), 3), 0))
GRAD(g_cholesky, return lks_linalg_cholesky(positive(x), 0);)
GRAD(g_cholesky_solve, return lks_cholesky_solve(c, WELL, 1);)
GRAD(g_cholesky_inverse, return lks_cholesky_inverse(WELL, 0);)
GRAD(g_triangular, return lks_triangular_solve(c, WELL, 1, 0, 0);)
GRAD(g_triangular_t, return lks_triangular_solve(c, WELL, 0, 1, 1);)
GRAD(g_solve, return lks_linalg_solve(WELL, c);)
GRAD(g_solve_shared, return lks_linalg_solve(lks_select(WELL, 0, 0), c);)
GRAD(g_inv, return lks_linalg_inv(WELL);)
GRAD(g_lu, lks_linalg_lu_factor(WELL, &u, &s); return u;)
GRAD(g_lu_solve, lks_linalg_lu_factor(WELL, &u, &s); return lks_lu_solve(c, u, s);)
GRAD(g_lu_tall, lks_linalg_lu_factor(lks_add(c, lks_mul_scalar(lks_slice(eye(LKS_F64, 3), -1, 0, 2, 1), 3)), &u, &s);
     return u;)
GRAD(g_lu_wide, lks_linalg_lu_factor(mT(c), &u, &s); return u;)
GRAD(g_det, return lks_linalg_det(x);)
GRAD(g_slogdet, lks_linalg_slogdet(WELL, &u, &s); return s;)
#define TAU lks_select(lks_slice(x, 1, 0, 2, 1), 2, 1)
GRAD(g_orgqr, return lks_orgqr(c, TAU);)
GRAD(g_orgqr_few, return lks_orgqr(x, TAU);)
GRAD(g_ormqr, return lks_ormqr(x, TAU, c, 1, 0);)
GRAD(g_ormqr_t, return lks_ormqr(x, TAU, c, 1, 1);)
GRAD(g_ormqr_right, return lks_ormqr(x, TAU, mT(c), 0, 0);)
GRAD(g_ormqr_right_t, return lks_ormqr(x, TAU, mT(c), 0, 1);)
GRAD(g_qr, lks_linalg_qr(c, 0, &u, &s); return lks_add(lks_matmul(lks_matmul(mT(u), x), c), lks_mul(s, s));)
/* Signs of rows and columns cancel in these. */
GRAD(g_qr_wide, lks_linalg_qr(mT(c), 0, &u, &s);
     return lks_mul(lks_matmul(mT(u), lks_slice(mT(c), -1, 0, 2, 1)), lks_slice(s, -1, 0, 2, 1));)
GRAD(g_svdvals, return lks_linalg_svdvals(c);)
GRAD(g_svd, lks_linalg_svd(x, 0, &u, &s, &v); return lks_mul(lks_mul(u, u), mT(lks_mul(v, v)));)
GRAD(g_svd_tall, lks_linalg_svd(c, 0, &u, &s, &v); return lks_matmul(lks_mul(u, u), lks_mul(v, v));)
GRAD(g_svd_wide, lks_linalg_svd(mT(c), 0, &u, &s, &v); return lks_matmul(lks_mul(u, u), lks_mul(v, v));)
GRAD(g_eigh, lks_linalg_eigh(SYMMETRIC, 0, &u, &v);
     return lks_matmul(scaled(lks_mul(v, v), lks_exp(lks_mul_scalar(u, 0.1))), mT(lks_mul(v, v)));)
GRAD(g_eigvalsh, return lks_linalg_eigvalsh(SYMMETRIC, 1);)
GRAD(g_eigvals, return lks_view_as_real(lks_linalg_eigvals(x));)
GRAD(g_eig, lks_linalg_eig(x, &u, &v); return lks_mul(lks_abs(v), lks_abs(lks_unsqueeze(u, -2)));)
GRAD(g_lstsq, lks_linalg_lstsq(c, lks_matmul(x, c), -1, &u, NULL, NULL); return u;)
GRAD(g_pinverse, return lks_pinverse(c, -1);)
GRAD(g_pinverse_wide, return lks_pinverse(mT(c), -1);)
GRAD(g_cond, return lks_add(lks_linalg_cond(WELL, 0), lks_linalg_cond(WELL, 2));)
GRAD(g_tensorinv, return lks_linalg_tensorinv(lks_reshape(lks_select(WELL, 0, 0), SHAPE(3, 1, 3)), 1);)

static lks_tensor *gradient_of(lks_tensor *y, lks_tensor *x)
{
    lks_tensor *g, *loss = lks_sum(lks_mul(lks_mul(y, y), y), 0, NULL, 0, LKS_DTYPE_NONE);
    return loss && lks_gradients(loss, LKS_NONE, 1, &x, 1, 1, &g) == LKS_OK ? g : NULL;
}
/* The numeric side of the check runs without a graph, which the gradient itself needs. */
#define TWICE(name, input)                                                                                     \
    static lks_tensor *name##_twice(void *user, lks_tensor *const *in, int n)                                  \
    {                                                                                                          \
        int depth = 0;                                                                                         \
        for (; !lks_grad_enabled(ctx); depth++) lks_no_grad_end(ctx);                                          \
        lks_tensor *g = gradient_of(name(user, in, n), in[input]);                                             \
        for (; depth > 0; depth--) lks_no_grad_begin(ctx);                                                     \
        return g;                                                                                              \
    }
TWICE(g_cholesky, 0)
TWICE(g_solve, 0)
TWICE(g_triangular, 0)
TWICE(g_eigh, 0)
TWICE(g_eigvalsh, 0)
TWICE(g_svdvals, 1)
TWICE(g_svd_tall, 1)
TWICE(g_det, 0)
TWICE(g_orgqr_few, 0)
TWICE(g_qr, 1)
TWICE(g_pinverse, 1)

static void gradients(void)
{
#define CHECK(f) {#f, f}
    static const struct { const char *name; lks_gradcheck_fn f;
    } checks[] = {CHECK(g_cholesky),
                  CHECK(g_cholesky_solve),
                  CHECK(g_cholesky_inverse),
                  CHECK(g_triangular),
                  CHECK(g_triangular_t),
                  CHECK(g_solve),
                  CHECK(g_solve_shared),
                  CHECK(g_inv),
                  CHECK(g_lu),
                  CHECK(g_lu_solve),
                  CHECK(g_lu_tall),
                  CHECK(g_lu_wide),
                  CHECK(g_det),
                  CHECK(g_slogdet),
                  CHECK(g_orgqr),
                  CHECK(g_orgqr_few),
                  CHECK(g_ormqr),
                  CHECK(g_ormqr_t),
                  CHECK(g_ormqr_right),
                  CHECK(g_ormqr_right_t),
                  CHECK(g_qr),
                  CHECK(g_qr_wide),
                  CHECK(g_svdvals),
                  CHECK(g_svd),
                  CHECK(g_svd_tall),
                  CHECK(g_svd_wide),
                  CHECK(g_eigh),
                  CHECK(g_eigvalsh),
                  CHECK(g_eigvals),
                  CHECK(g_eig),
                  CHECK(g_lstsq),
                  CHECK(g_pinverse),
                  CHECK(g_pinverse_wide),
                  CHECK(g_cond),
                  CHECK(g_tensorinv),
                  CHECK(g_cholesky_twice),
                  CHECK(g_solve_twice),
                  CHECK(g_triangular_twice),
                  CHECK(g_eigh_twice),
                  CHECK(g_eigvalsh_twice),
                  CHECK(g_svdvals_twice),
                  CHECK(g_svd_tall_twice),
                  CHECK(g_det_twice),
                  CHECK(g_orgqr_few_twice),
                  CHECK(g_qr_twice),
                  CHECK(g_pinverse_twice)};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        lks_scope_begin(ctx);
        lks_tensor *in[2] = {noise3(LKS_F64, 2, 3, 3, 21), noise3(LKS_F64, 2, 3, 2, 24)};
        double worst = -1;
        ok(lks_gradcheck(ctx, checks[i].f, NULL, 2, in, 1e-6, 2e-6, &worst) == LKS_OK, "gradient %s (%.1e)",
           checks[i].name + 2, worst);
        if (lks_error_code(ctx)) diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
        lks_scope_end(ctx);
    }
    lks_scope_begin(ctx);
    lks_tensor *x = noise3(LKS_F64, 1, 4, 3, 1), *q, *r;
    lks_set_requires_grad(x, 1);
    lks_linalg_qr(x, LKS_QR_COMPLETE, &q, &r);
    ok(refused(lks_backward(lks_sum(q, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) != LKS_OK, LKS_ERR_UNSUPPORTED,
               "complete", "REDUCED"),
       "a complete Q has no gradient");
    lks_scope_end(ctx);
}

int main(void)
{
    /* On a device that is asked for: values alone. The loops of test_ops check gradients there. */
    const char *asked = getenv("LKS_TEST_DEVICE");
    int other = asked && *asked && strcmp(asked, "cpu");
    for (int device = other; device < 2; device++) {
        if (!(ctx = context_on(device ? "far" : "cpu", NULL, 1 + device))) bail("no context");
        diag("%s", lks_device_name(ctx));
        lks_scope_begin(ctx);
        lks_tensor *y = lks_linalg_inv(eye(LKS_F64, 2));
        if (lks_synchronize(ctx) != LKS_OK || !y) {
            if (!strstr(lks_error(ctx), "liblapacke-dev") && !strstr(lks_error(ctx), "cuSOLVER"))
                bail("%s", lks_error(ctx));
            skip(1, "no linear algebra: %s", lks_error(ctx));
            lks_error_clear(ctx);
            lks_scope_end(ctx);
            lks_context_destroy(&ctx);
            continue;
        }
        lks_scope_end(ctx);
        for (int layout = 0; layout < 2; layout++) {
            factors(LKS_F64, layout);
            factors(LKS_F32, layout);
        }
        edges();
        if (other) many();
        else gradients();
        is_int(lks_live_tensors(ctx), 0, "nothing is left");
        lks_context_destroy(&ctx);
    }
    lks_finalize();
    return done();
}
