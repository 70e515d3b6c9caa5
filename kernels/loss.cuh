/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.cuh - what losses share: sums of a block, the sum over tiles and its division, views of rows. For loss.cu and
 * loss_class.cu.
 */
#ifndef LKSI_LOSS_CUH
#define LKSI_LOSS_CUH

#include "common.cuh"

namespace lksi {
/* Sum of the threads of a block, in a fixed tree; thread 0 has the result. room: one entry a warp. */
__device__ inline double block_sum(double x, double *room)
{
    for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(0xffffffffu, x, half);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int k = 1; k < LKSI_THREADS / 32; k++) x += room[k];
    return x;
}

/* What the tiles gave: pairs of a sum and what a mean is over. divisor: taken instead of that, if `fixed`. */
struct result {
    void *loss, *count;
    int loss_dtype, count_dtype, reduction, fixed;
    double divisor;
};

static __global__ void __launch_bounds__(LKSI_THREADS) finish(result r, const double *part, int64_t tiles)
{
    __shared__ double room[LKSI_THREADS / 32];
    double sum = 0, count = 0;
    for (int64_t i = threadIdx.x; i < tiles; i += LKSI_THREADS) {
        sum += part[2 * i];
        count += part[2 * i + 1];
    }
    sum = block_sum(sum, room);
    count = block_sum(count, room);
    if (threadIdx.x != 0) return;
    if (r.count) store(r.count, r.count_dtype, 0, count);
    if (!r.loss) return;
    if (r.fixed) sum /= r.divisor;
    else if (r.reduction == 4 || (r.reduction == 1 && count != 0)) sum /= count;
    store(r.loss, r.loss_dtype, 0, sum);
}

static inline const lksi_view *given(const lksi_args *a, int i)
{
    return i < a->nin && a->in[i].ndim >= 0 ? &a->in[i] : NULL;
}

/* x [N, C, d...] or [C] without its dim of classes. */
static inline lksi_view without_classes(const lksi_view *x)
{
    lksi_view v = *x;
    v.ndim = x->ndim > 0 ? x->ndim - 1 : 0;
    for (int d = 2; d < x->ndim; d++) v.shape[d - 1] = x->shape[d], v.stride[d - 1] = x->stride[d];
    return v;
}

} // namespace lksi

#endif
