/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inside.h - what the files of this room share besides cuda.h. Kernels see cuda.h only.
 */
#ifndef LKSI_CUDA_INSIDE_H
#define LKSI_CUDA_INSIDE_H

#include "cuda/cuda.h"
#include "device/plugin.h"

/* dst[0, bytes) = src, which is read at once; bytes <= 4096. In kernels/copy.cu. */
cudaError_t lksi_cuda_write(cudaStream_t stream, void *dst, const void *src, int64_t bytes);

#endif
