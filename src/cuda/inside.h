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

/* The open device: number, stream of LKSI_STREAM_..., base. */
int lksi_cuda_device(const lksi_cuda *cuda);
cudaStream_t lksi_cuda_stream(const lksi_cuda *cuda, int stream);
lksi_base *lksi_cuda_base(const lksi_cuda *cuda);
/* Makes the device current, returns what was; puts it back. */
int lksi_cuda_enter(const lksi_cuda *cuda);
void lksi_cuda_leave(const lksi_cuda *cuda, int was);
/* Keeps the text of a failure; returns code. */
lks_status lksi_cuda_failed(lksi_cuda *cuda, lks_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const char *lksi_cuda_failure(const lksi_cuda *cuda); /* that text */

extern const lksi_collectives lksi_cuda_collectives; /* nccl.c */

#endif
