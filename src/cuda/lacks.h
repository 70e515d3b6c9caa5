/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lacks.h - the rows of ops.def that have no CUDA kernel: LKS_ERR_UNSUPPORTED on this device. A row that has neither a
 * kernel nor a line here does not link. A line is: #define LKSI_LACKS_row ~, NULL
 */
#ifndef LKSI_CUDA_LACKS_H
#define LKSI_CUDA_LACKS_H

#define LKSI_LACKS_geqrf ~, NULL
#define LKSI_LACKS_linalg_cholesky_ex ~, NULL
#define LKSI_LACKS_linalg_eig ~, NULL
#define LKSI_LACKS_linalg_eigh ~, NULL
#define LKSI_LACKS_linalg_lstsq ~, NULL
#define LKSI_LACKS_linalg_lu_factor ~, NULL
#define LKSI_LACKS_linalg_qr ~, NULL
#define LKSI_LACKS_linalg_solve ~, NULL
#define LKSI_LACKS_linalg_svd ~, NULL
#define LKSI_LACKS_lu_perm ~, NULL
#define LKSI_LACKS_orgqr ~, NULL
#define LKSI_LACKS_ormqr ~, NULL
#define LKSI_LACKS_pinverse ~, NULL
#define LKSI_LACKS_triangular_solve ~, NULL

#endif
