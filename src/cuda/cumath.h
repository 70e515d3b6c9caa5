/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cumath.h - what the CUDA backend and its second module, liblockstep_cumath.so, hand each other. That module is all
 * that links cuFFT and cuSOLVER, which are large and missing on many machines; it is loaded by the first row that needs
 * it. The tables begin with version and size, which the other side compares before it looks further.
 */
#ifndef LKSI_CUDA_CUMATH_H
#define LKSI_CUDA_CUMATH_H

#include "cuda/inside.h"

#define LKSI_CUMATH_ABI 2

/* What the backend lends. The functions of cuda.h with the same names call these (cumath.c), so that rows are written
 * here as in the backend. */
typedef struct lksi_cuda_services {
    int abi, size;
    const lksi_cuda_kernel *kernels; /* of the backend, by row; NULL: it has none */
    lks_status (*launched)(const lksi_args *a);
    lks_status (*scratch)(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int64_t bytes, void **p);
    lks_status (*copy_view)(cudaStream_t stream, const lksi_args *a, const lksi_view *dst, const lksi_view *src);
    lks_status (*product)(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *x,
                          const lksi_view *y, const lksi_view *z);
    int (*sms)(const lksi_cuda *cuda);
    int (*sm)(const lksi_cuda *cuda);
    int (*keeps)(const lksi_cuda *cuda);
    void **(*state)(lksi_cuda *cuda, int slot, void (*destroy)(lksi_cuda *cuda, void *state));
    int (*stream_index)(const lksi_cuda *cuda, cudaStream_t stream);
    void *(*alloc)(lksi_cuda *cuda, int64_t bytes);
    void (*free)(lksi_cuda *cuda, void *p);
    lksi_fault (*fault)(const lksi_cuda *cuda);
    lks_status (*eager)(lksi_cuda *cuda, const lksi_args *a);
} lksi_cuda_services;

/* What the module provides: lksi_plugin.service. */
typedef struct lksi_cumath {
    int abi, size;
    void (*lend)(const lksi_cuda_services *services); /* before any row; they live on */
    lksi_cuda_kernel row[LKSI_OP_COUNT];              /* those of cumath.def; NULL: built without that library */
} lksi_cumath;

/* A row of the module: CUMATH(fft_c2c) { ... } */
#define CUMATH(name) lks_status lksi_cumath_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)

/* In the module: one of the backend's rows. */
lks_status lksi_cumath_backend(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int op);

#endif
