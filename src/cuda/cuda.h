/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda.h - what CUDA kernels (kernels/NAME.cu) and the files of this room stand on: the open device, its scratch
 * memory, failures with a text, faults that a running kernel finds. For C and CUDA C++; knows the runtime API, no MPI.
 */
#ifndef LKSI_CUDA_H
#define LKSI_CUDA_H

#include "table/why.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lksi_cuda lksi_cuda;

/* A row's kernel: queues its work on `stream` and returns; never waits. Defined as LKSI_CUDA(NAME) in kernels/, found
 * by its name. out[] holds memory, inputs may have any stride; every output is written whole. */
typedef lks_status (*lksi_cuda_kernel)(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a);

/* After the last <<<>>> of a kernel: LKS_OK, or the launch error with the shapes. */
lks_status lksi_cuda_launched(const lksi_args *a);

/* Device memory of at least `bytes`, 256-byte aligned, one per (stream, slot), kept and reused by later work of that
 * stream: never hand it from one row to the next. It holds anything. Fails with a text. slot < LKSI_CUDA_SLOTS. */
#define LKSI_CUDA_SLOTS 8
lks_status lksi_cuda_scratch(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int64_t bytes,
                             void **p);

/* dst = src, broadcast and converted; any strides (kernels/copy.cu). */
lks_status lksi_cuda_copy_view(cudaStream_t stream, const lksi_args *a, const lksi_view *dst, const lksi_view *src);

/* z = x y, all dense in their last two dims or not, of one dtype (blas.c); z has every batch dim. It uses the scratch
 * slots below LKSI_CUDA_PRODUCT_SLOTS. */
#define LKSI_CUDA_PRODUCT_SLOTS 5
lks_status lksi_cuda_product(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *x,
                             const lksi_view *y, const lksi_view *z);

int lksi_cuda_sms(const lksi_cuda *cuda); /* multiprocessors */
int lksi_cuda_sm(const lksi_cuda *cuda);  /* compute capability: 80, 90 */

/* What a kernel's family keeps from call to call (library handles): a pointer, NULL at first; destroy gets it when the
 * device is closed. slot: one of these. */
enum { LKSI_CUDA_BLAS, LKSI_CUDA_CUDNN, LKSI_CUDA_SPARE, LKSI_CUDA_STATES };
void **lksi_cuda_state(lksi_cuda *cuda, int slot, void (*destroy)(lksi_cuda *cuda, void *state));
int lksi_cuda_stream_index(const lksi_cuda *cuda, cudaStream_t stream);
/* Host memory that is counted and can be told to fail. */
void *lksi_cuda_alloc(lksi_cuda *cuda, int64_t bytes);
void lksi_cuda_free(lksi_cuda *cuda, void *p);

/* What a running kernel finds wrong with its data: the first one is kept and told by the next launch or wait. */
enum lksi_fault_kind {
    LKSI_FAULT_NONE,
    LKSI_FAULT_INDEX,
    LKSI_FAULT_EITHER_END, /* an index that may count from the end */
    LKSI_FAULT_TARGET,
    LKSI_FAULT_PROBABILITY
};
typedef struct lksi_fault_record { int32_t kind, op; int64_t value, place, limit; } lksi_fault_record;
typedef struct lksi_fault { int32_t *lock; lksi_fault_record *record; } lksi_fault; /* device memory; pinned memory */
lksi_fault lksi_cuda_fault(const lksi_cuda *cuda);

#ifdef __cplusplus
}
#endif
#endif
