/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matrices.h - the kernels of linear algebra in the second module (kernels/linalg.cu): what cuSOLVER leaves to do; and
 * what can be wrong with a matrix.
 * Matrices of a batch lie one behind the other, column by column; dbl: float64, else float32.
 */
#ifndef LKSI_CUDA_MATRICES_H
#define LKSI_CUDA_MATRICES_H

#include "cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A fault (lksi_fault_record) beside those of cuda.h. place: which matrix of the batch; value: LAPACK's info; limit:
 * one of these. */
#define LKSI_FAULT_MATRIX 64
enum lksi_matrix_trouble {
    LKSI_TROUBLE_NAN,
    LKSI_TROUBLE_DEFINITE,
    LKSI_TROUBLE_SINGULAR,
    LKSI_TROUBLE_DIAGONAL,
    LKSI_TROUBLE_VALUES,
    LKSI_TROUBLE_EIGEN
};

/* bad[i]: matrix i, of `each` numbers, holds NaN or infinity; it is then made 0, as not all of the library ends on
 * those. */
void lksi_matrices_clean(cudaStream_t stream, void *x, int dbl, int64_t each, int64_t count, int32_t *bad);
/* p[i] = base + i bytes */
void lksi_matrices_pointers(cudaStream_t stream, void **p, void *base, int64_t bytes, int64_t count);
/* y [rows, n] = the upper triangle of x, whose columns are ld apart and whose matrices step. */
void lksi_matrices_upper(cudaStream_t stream, void *y, int64_t rows, int64_t n, const void *x, int64_t ld, int64_t step,
                         int dbl, int64_t count);
/* What lies above the diagonal of x [n, n] becomes 0. */
void lksi_matrices_lower(cudaStream_t stream, void *x, int64_t n, int dbl, int64_t count);
void lksi_matrices_eye(cudaStream_t stream, void *x, int64_t rows, int64_t columns, int dbl, int64_t count);
/* info[i]: the first 0 on the diagonal of x [n, n], from 1; 0: there is none. */
void lksi_matrices_diagonal(cudaStream_t stream, const void *x, int64_t n, int dbl, int64_t count, int32_t *info);
/* Columns c < n of u [rows, ...] by 1 / s[c], 0 where s[c] <= rcond s[0]; rank (or NULL): how many are not 0. */
void lksi_matrices_divide(cudaStream_t stream, void *u, int64_t rows, int64_t step, const void *s, int64_t n,
                          double rcond, int32_t *rank, int dbl, int64_t count);
/* Eigenvalues wr, wi [2, n] and vectors as LAPACK has them (a pair is its real and its imaginary part) to pairs; y, v:
 * or NULL. */
void lksi_matrices_pairs(cudaStream_t stream, void *w, void *y, const void *wri, const void *v, int64_t n, int dbl,
                         int64_t count);
/* Row exchanges [count, k], from 1, as an order of n rows. */
void lksi_matrices_order(cudaStream_t stream, lksi_fault fault, int op, int64_t *order, int64_t n, const int32_t *swap,
                         int64_t k, int64_t count);

/* What the matrices of a result with info != 0 become, or those that `bad` (or NULL) names: NaN. error: the first of
 * them is a fault, too; bad ones always are. to: info for the caller, or NULL. */
typedef struct lksi_matrices_end {
    const int32_t *info, *bad;
    int32_t *to;
    int error, op, trouble, outputs;
    void *data[3];
    int64_t each[3]; /* real numbers of a matrix */
} lksi_matrices_end;
void lksi_matrices_finish(cudaStream_t stream, lksi_fault fault, lksi_matrices_end end, int dbl, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
