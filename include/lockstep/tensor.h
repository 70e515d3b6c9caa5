/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/tensor.h - making, wrapping, reading and describing tensors. What is computed from tensors is in ops.h.
 *
 * A tensor is a strided view (dtype, shape, strides in elements, offset) of a storage on the context's device. Sizes 0
 * and 0-dim tensors are ordinary everywhere. Sizes are int64; an element count or byte size beyond int64 is
 * LKS_ERR_SHAPE before anything is allocated ([0, 2^62, 4] is an empty tensor).
 */
#ifndef LOCKSTEP_TENSOR_H
#define LOCKSTEP_TENSOR_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* New contiguous tensors: uninitialised, zeros, ones, all `value` (converted to dtype). shape has ndim entries. Local.
 */
LKS_API lks_tensor *lks_empty(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape);
LKS_API lks_tensor *lks_zeros(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape);
LKS_API lks_tensor *lks_ones(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape);
LKS_API lks_tensor *lks_full(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, double value);
/* 0, 1, ..., n-1 along one dimension, in any real dtype. Local. */
LKS_API lks_tensor *lks_arange(lks_context *ctx, lks_dtype dtype, int64_t n);
/* New tensor holding a copy of host memory, row-major; the memory may be reused when the call returns. Local. */
LKS_API lks_tensor *lks_from_host(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, const void *data);
/* A tensor over the caller's device memory (on the CPU device: any memory), never freed by Lockstep; it must outlive
 * the tensor and its views. stride in elements, NULL = row-major; a Fortran array has stride[i] = product of
 * shape[0..i-1]. Writes through the tensor change the caller's memory. Strides must be >= 0. Local. */
LKS_API lks_tensor *lks_wrap(lks_context *ctx, void *data, lks_dtype dtype, int ndim, const int64_t *shape,
                             const int64_t *stride);

/* Copies all elements to host memory in row-major order; `bytes` must be numel * element size. Waits for the device.
 * Local. */
LKS_API lks_status lks_to_host(lks_tensor *t, void *data, int64_t bytes);
/* Value of a one-element tensor of any shape and real dtype as a double. Waits for the device. Local. */
LKS_API lks_status lks_item(lks_tensor *t, double *value);
/* The same without waiting now: queues the reading of t's value and returns a ticket (> 0, or a negative status);
 * lks_item_take gives the value later and waits only until that reading is done. The last 64 tickets are kept. Local.
 */
LKS_API int64_t lks_item_later(lks_tensor *t);
LKS_API lks_status lks_item_take(lks_context *ctx, int64_t ticket, double *value);
/* Overwrites the elements with host memory (row-major, numel * element size bytes). Counts as a write in place. Local.
 */
LKS_API lks_status lks_set_from_host(lks_tensor *t, const void *data, int64_t bytes);

/* Description. lks_shape/lks_stride return ndim entries owned by the tensor. dim may be negative (from the end) in
 * lks_dim. lks_data is the device address of element 0. All Local. */
LKS_API lks_context *lks_context_of(const lks_tensor *t);
LKS_API lks_dtype lks_dtype_of(const lks_tensor *t);
LKS_API int lks_ndim(const lks_tensor *t);
LKS_API const int64_t *lks_shape(const lks_tensor *t);
LKS_API const int64_t *lks_stride(const lks_tensor *t);
LKS_API int64_t lks_dim(const lks_tensor *t, int dim);
LKS_API int64_t lks_numel(const lks_tensor *t);
LKS_API int lks_is_contiguous(const lks_tensor *t);
LKS_API void *lks_data(lks_tensor *t);

/* Takes a share that outlives the scope; returns t. Drops a share (NULL and LKS_NONE are fine). Local. */
LKS_API lks_tensor *lks_keep(lks_tensor *t);
LKS_API void lks_release(lks_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
