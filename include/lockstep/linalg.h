/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/linalg.h - factorisations and solvers of dense matrices, by LAPACK and cuSOLVER. Names and meanings are
 * PyTorch's; what ops.h says is common to all ops holds here.
 *
 * The last two dims are a matrix, the others a batch. float32 and float64 (solve and inv take complex ones, too);
 * integers and reduced floats are LKS_ERR_DTYPE outside a region whose policy casts them. A matrix that has no answer
 * (singular, not positive definite) is LKS_ERR_ARGUMENT naming its number in the batch; the forms ..._ex give int32
 * info instead (0, or what LAPACK says), and NaN as the results of that matrix. Matrices with NaN or infinity are
 * LKS_ERR_ARGUMENT where iterations would not end (svd, eig, eigh, lstsq). Matrices of no rows or columns are fine.
 * On a GPU nothing waits: such an error is that of the next call or wait that meets it. Without LAPACK (cuSOLVER) when
 * Lockstep was built a call is LKS_ERR_UNSUPPORTED. Functions with several results fill their last arguments, each of
 * which may be NULL, and return a status.
 */
#ifndef LOCKSTEP_LINALG_H
#define LOCKSTEP_LINALG_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* L with x = L L^T, of the lower triangle of x (upper: U with x = U^T U, of the upper one); the other one is not
 * read. */
LKS_API lks_tensor *lks_linalg_cholesky(lks_tensor *x, int upper);
LKS_API lks_status lks_linalg_cholesky_ex(lks_tensor *x, int upper, lks_tensor **factor, lks_tensor **info);
/* From such a factor: x^-1; y with x y = b. */
LKS_API lks_tensor *lks_cholesky_inverse(lks_tensor *factor, int upper);
LKS_API lks_tensor *lks_cholesky_solve(lks_tensor *b, lks_tensor *factor, int upper);
/* y with A y = b for a triangle of A (transposed: A^T y = b; unit: ones are taken as its diagonal). Batches
 * broadcast. */
LKS_API lks_tensor *lks_triangular_solve(lks_tensor *b, lks_tensor *a, int upper, int transposed, int unit);

/* x^-1. lks_inverse is another name. */
LKS_API lks_tensor *lks_linalg_inv(lks_tensor *x);
LKS_API lks_tensor *lks_inverse(lks_tensor *x);
LKS_API lks_status lks_linalg_inv_ex(lks_tensor *x, lks_tensor **inverse, lks_tensor **info);
/* y with a y = b; b [..., n, k], or [..., n] when it has one dim less than a, or is a vector. Batches broadcast. */
LKS_API lks_tensor *lks_linalg_solve(lks_tensor *a, lks_tensor *b);
/* x as a map from its last dims to the first ind ones (their sizes agree): its inverse map; y with a y = b, summed over
 * the last dims of a, those that b lacks. dims (n of them, NULL: none) of a go to the end before. */
LKS_API lks_tensor *lks_linalg_tensorinv(lks_tensor *x, int ind);
LKS_API lks_tensor *lks_linalg_tensorsolve(lks_tensor *a, lks_tensor *b, int n, const int *dims);

/* x = P L U with row exchanges: lu holds U and, below its diagonal, L without its ones; pivots int32, from 1 as LAPACK
 * has them. A singular x has factors as well: no error, the ..._ex form's info says so. The
 * gradient of a singular x is that of factors whose zeros on U's diagonal are the dtype's epsilon. */
LKS_API lks_status lks_linalg_lu_factor(lks_tensor *x, lks_tensor **lu, lks_tensor **pivots);
LKS_API lks_status lks_linalg_lu_factor_ex(lks_tensor *x, lks_tensor **lu, lks_tensor **pivots, lks_tensor **info);
/* y with x y = b, of these. */
LKS_API lks_tensor *lks_lu_solve(lks_tensor *b, lks_tensor *lu, lks_tensor *pivots);
/* Determinant of square x, 1 of nothing. Its gradient det(x) x^-T is that of cofactors where x is singular (to the
 * dtype's precision). */
LKS_API lks_tensor *lks_linalg_det(lks_tensor *x);
/* Sign of the determinant (-1, 0, 1; no gradient) and logarithm of its absolute value: -INFINITY for a singular x,
 * whose gradient is not finite. */
LKS_API lks_status lks_linalg_slogdet(lks_tensor *x, lks_tensor **sign, lks_tensor **logabsdet);

enum lks_qr_mode {
    LKS_QR_REDUCED,  /* Q [m, k], R [k, n], k the smaller of m and n */
    LKS_QR_COMPLETE, /* Q [m, m], R [m, n]; no gradient if m > n */
    LKS_QR_R         /* R alone, Q is empty; no gradient */
};
/* x = Q R, Q orthogonal, R upper triangular. */
LKS_API lks_status lks_linalg_qr(lks_tensor *x, int mode, lks_tensor **q, lks_tensor **r);
/* The same in LAPACK's form: R, below it the vectors of k reflections, their scalars tau [k]. orgqr,
 * householder_product: the first columns of their product; ormqr: that product (or its transpose) times c, from the
 * left or the right. geqrf has no gradient (as in PyTorch: use linalg_qr), the others have, in a, tau and c; the part
 * of a that they do not read gets 0. */
LKS_API lks_status lks_geqrf(lks_tensor *x, lks_tensor **a, lks_tensor **tau);
LKS_API lks_tensor *lks_orgqr(lks_tensor *a, lks_tensor *tau);
LKS_API lks_tensor *lks_linalg_householder_product(lks_tensor *a, lks_tensor *tau);
LKS_API lks_tensor *lks_ormqr(lks_tensor *a, lks_tensor *tau, lks_tensor *c, int left, int transposed);

/* x = U diag(S) Vh, S falling. full: U and Vh are square (their gradient then is for square x). The gradient of U and
 * Vh does not exist where singular values are equal or 0: it is not finite there. lks_svd gives V instead of Vh. */
LKS_API lks_status lks_linalg_svd(lks_tensor *x, int full, lks_tensor **u, lks_tensor **s, lks_tensor **vh);
LKS_API lks_status lks_svd(lks_tensor *x, int full, lks_tensor **u, lks_tensor **s, lks_tensor **v);
LKS_API lks_tensor *lks_linalg_svdvals(lks_tensor *x);
/* Eigenvalues and right eigenvectors (columns, of length 1), complex. A loss must not depend on their phases. */
LKS_API lks_status lks_linalg_eig(lks_tensor *x, lks_tensor **w, lks_tensor **v);
LKS_API lks_tensor *lks_linalg_eigvals(lks_tensor *x);
/* Of symmetric x, of which one triangle is read: real, w rising. */
LKS_API lks_status lks_linalg_eigh(lks_tensor *x, int upper, lks_tensor **w, lks_tensor **v);
LKS_API lks_tensor *lks_linalg_eigvalsh(lks_tensor *x, int upper);

/* The y of least norm among those for which |a y - b| is least, a of any rank. Singular values up to rcond times the
 * largest count as 0 (rcond < 0: the dtype's epsilon times the larger size). b as for solve. rank int32; s: the
 * singular values. */
LKS_API lks_status lks_linalg_lstsq(lks_tensor *a, lks_tensor *b, double rcond, lks_tensor **y, lks_tensor **rank,
                                    lks_tensor **s);
/* V diag(1 / S) U^T, 1 / S 0 for singular values up to rcond times the largest (rcond < 0: as in lstsq). */
LKS_API lks_tensor *lks_pinverse(lks_tensor *x, double rcond);
/* How many singular values are above rcond times the largest; int64, no gradient. */
LKS_API lks_tensor *lks_linalg_matrix_rank(lks_tensor *x, double rcond);
/* Norm of x times norm of its inverse. p: 2 and -2 by singular values (any shape); 1, -1, INFINITY, -INFINITY:
 * largest or smallest sum of a column or a row; 0: the root of the sum of squares; these for square x, INFINITY if
 * singular. 0 for x of no rows or columns. */
LKS_API lks_tensor *lks_linalg_cond(lks_tensor *x, double p);

#ifdef __cplusplus
}
#endif
#endif
