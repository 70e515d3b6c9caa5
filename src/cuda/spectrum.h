/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spectrum.h - the kernels of the second module (kernels/spectrum.cu).
 */
#ifndef LKSI_CUDA_SPECTRUM_H
#define LKSI_CUDA_SPECTRUM_H

#include "cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* z [n[0], n[1], n[2], last / 2 + 1, n[3]] becomes half of a spectrum of real data [n[1], n[2], last]. */
lks_status lksi_cumath_real_spectrum(cudaStream_t stream, const lksi_args *a, void *z, int dbl, const int64_t n[4],
                                     int64_t last);

#ifdef __cplusplus
}
#endif
#endif
