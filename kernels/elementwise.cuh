/* SPDX-License-Identifier: BSD-3-Clause
 *
 * elementwise.cuh - what elementwise rows of real and of complex numbers share: the kernel for all that does not lie
 * side by side in one dtype.
 */
#ifndef LKSI_ELEMENTWISE_CUH
#define LKSI_ELEMENTWISE_CUH

#include "complex.cuh"

namespace lksi {

/* What a formula gives, to where it goes; a comparison gives a byte, stored as it is. */
template <class Y> __device__ inline void emit(void *p, int dtype, int64_t i, Y x) { store(p, dtype, i, x); }
__device__ inline void emit(void *p, int, int64_t i, boolean x) { ((boolean *)p)[i] = x; }

/* f of N operands, taken as C: any strides, broadcasts, dtypes. */
template <class F, class C, int N> __global__ void __launch_bounds__(LKSI_THREADS) strided(F f, walk<N + 1> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[N + 1];
        w.seek(i, at);
        C x = load<C>(w.data[1], w.dtype[1], at[1]), z = C();
        if (N > 1) z = load<C>(w.data[N], w.dtype[N], at[N]);
        emit(w.data[0], w.dtype[0], at[0], f(x, z));
    }
}

} // namespace lksi
#endif
