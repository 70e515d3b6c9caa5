/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ops.h - what the rooms above use of ops beyond the public functions.
 */
#ifndef LKSI_OPS_H
#define LKSI_OPS_H

#include "dispatch/dispatch.h"
#include <lockstep/fft.h>
#include <lockstep/linalg.h>
#include <lockstep/ops.h>

/* First tensor's context; NULL if any of the n is NULL (the error is recorded already). */
lks_context *lksi_ctx(int n, lks_tensor *const *t);
/* dim counted from the front; fails naming where. */
lks_status lksi_dim(lks_context *ctx, const char *where, int ndim, int *dim);
/* Row-major strides whatever the strides were; a view where possible. */
lks_tensor *lksi_reshape_like(lks_tensor *x, int ndim, const int64_t *shape);
/* Sum over the dims that were broadcast from `shape`, giving that shape. */
lks_tensor *lksi_sum_to(lks_tensor *g, int ndim, const int64_t *shape);
/* a b with the result written to `into` (may be NULL): the out form for gradients. */
lks_tensor *lksi_matmul_into(lks_tensor *a, lks_tensor *b, lks_tensor *into);
/* lks_layer_norm; for_products: y is written in the dtype that autocast would cast it to for a linear layer. */
lks_tensor *lksi_layer_norm(lks_tensor *x, int ndims, lks_tensor *weight, lks_tensor *bias, double eps,
                            int for_products);
/* Ends the innermost scope of a function with n results, which live on in the one outside; s: how it went so far. After
 * a failure all are NULL, and the code is that of the recorded error. */
lks_status lksi_leave_all(lks_context *ctx, int n, lks_tensor **t, lks_status s);
/* Frees what lks_item_later holds. */
void lksi_later_close(lks_context *ctx);
/* For what is made of several rows: reduced ones of n inputs become float32, so that the result is rounded once, to the
 * dtype returned, their widest (LKS_DTYPE_NONE: none is floating). */
lks_dtype lksi_widen(int n, lks_tensor **in);
/* x^T of the last two dims. */
lks_tensor *lksi_mT(lks_tensor *x);

/* Order of the rows that LU's pivots [..., k] leave n rows in: int64 [..., n]. */
lks_tensor *lksi_lu_rows(lks_tensor *pivots, int64_t n);
/* The diagonal of U [..., n] in square factors, without zeros. */
lks_tensor *lksi_lu_diagonal(lks_tensor *lu);
/* Conjugate of a complex tensor; a real one itself. NULL passes. */
lks_tensor *lksi_conj(lks_tensor *x);

#endif
