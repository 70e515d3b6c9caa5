/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spectrum.cu - for src/cuda/fft.c, in the second module: makes half a spectrum one of real data. Frequencies 0 and n/2
 * of the halved dim are their own mirror there: what they hold beyond that has no meaning for a real result, and cuFFT
 * does not say what it makes of it. Each becomes the mean of itself and of the conjugate of its mirror.
 */
#include "cuda/spectrum.h"

#define THREADS 256

namespace {
template <class R> struct number { R re, im; };

/* z [outer, n0, n1, half, inner]: columns 0 and, if n is even, half - 1 */
template <class R>
__global__ void __launch_bounds__(THREADS)
    mirror(number<R> *z, int64_t outer, int64_t n0, int64_t n1, int64_t half, int64_t inner, int columns)
{
    const int64_t all = outer * n0 * n1 * columns * inner, step = (int64_t)gridDim.x * THREADS;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < all; e += step) {
        int64_t i = e % inner, r = e / inner, column = r % columns * (half - 1);
        r /= columns;
        int64_t k1 = r % n1, k0 = r / n1 % n0, o = r / n1 / n0;
        int64_t m1 = k1 ? n1 - k1 : 0, m0 = k0 ? n0 - k0 : 0, here = k0 * n1 + k1, there = m0 * n1 + m1;
        if (here > there) continue;
        number<R> *p = z + ((o * n0 * n1 + here) * half + column) * inner + i;
        if (here == there) {
            p->im = 0;
            continue;
        }
        number<R> *q = z + ((o * n0 * n1 + there) * half + column) * inner + i;
        R re = (p->re + q->re) / 2, im = (p->im - q->im) / 2;
        p->re = q->re = re;
        p->im = im, q->im = -im;
    }
}

template <class R> void go(cudaStream_t stream, void *z, const int64_t *n, int64_t half, int columns)
{
    int64_t blocks = (n[0] * n[1] * n[2] * columns * n[3] + THREADS - 1) / THREADS;
    mirror<R><<<(unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff), THREADS, 0, stream>>>(
        (number<R> *)z, n[0], n[1], n[2], half, n[3], columns);
}
}

extern "C" lks_status lksi_cumath_real_spectrum(cudaStream_t stream, const lksi_args *a, void *z, int dbl,
                                                const int64_t n[4], int64_t last)
{
    const int64_t half = last / 2 + 1;
    const int columns = last % 2 == 0 ? 2 : 1;
    if (dbl) go<double>(stream, z, n, half, columns);
    else go<float>(stream, z, n, half, columns);
    return lksi_cuda_launched(a);
}
