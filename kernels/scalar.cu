/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scalar.cu - the formulas of table/scalar.def, and sin, cos, tan. Operands of one dtype of mixed precision that lie in
 * the output's order, or are one number, go 16 bytes at a time; all else through a walk.
 */
#include "common.cuh"
#pragma nv_diag_suppress 177 /* what the host form alone uses */
#include "table/scalar.h"
#pragma nv_diag_default 177

using namespace lksi;

/* The numbers of a formula in the compute type. */
__device__ inline void number(double v, float *x) { *x = (float)v; }
__device__ inline void number(double v, double *x) { *x = v; }
__device__ inline void number(double v, int64_t *x) { *x = lksi_f64_to_i64(v); }

#define LIST_10 (x[0])
#define LIST_11 (x[0], a, b)
#define LIST_20 (x[0], x[1])
#define LIST_21 (x[0], x[1], a, b)
#define LIST_30 (x[0], x[1], x[2])
#define LIST_31 (x[0], x[1], x[2], a, b)
#define GIVE(T, name, inputs, numbers)                                                                         \
    __device__ T operator()(const T *x) const                                                                  \
    {                                                                                                          \
        T a, b;                                                                                                \
        number(first, &a), number(second, &b);                                                                 \
        return (void)a, (void)b, name LIST_##inputs##numbers;                                                  \
    }
#define INTEGERS_0(name, inputs, numbers)
#define INTEGERS_1(name, inputs, numbers) GIVE(int64_t, lksi_##name##i, inputs, numbers)

namespace {
#define SCALAR(inputs, numbers, integers, name)                                                                \
    struct formula_##name {                                                                                    \
        enum { INPUTS = inputs, INTEGERS = integers };                                                         \
        double first, second;                                                                                  \
        GIVE(float, lksi_##name##f, inputs, numbers)                                                           \
        GIVE(double, lksi_##name, inputs, numbers)                                                             \
        INTEGERS_##integers(name, inputs, numbers)                                                             \
    };
#define SCALAR_AND_TURNS                                                                                       \
    SCALAR(1, 0, 0, sin)                                                                                       \
    SCALAR(1, 0, 0, cos)                                                                                       \
    SCALAR(1, 0, 0, tan)
SCALAR_AND_TURNS
#include "table/scalar.def"
}

template <class T, int N> struct inputs { const T *x[N]; };

/* Bit i of fixed: input i is one number. */
template <class F, class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    packed(F f, T *y, inputs<T, F::INPUTS> in, int64_t n, int fixed)
{
    enum { N = F::INPUTS, V = 16 / sizeof(T) };
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    float one[N];
#pragma unroll
    for (int k = 0; k < N; k++) one[k] = fixed >> k & 1 ? get<float>::of(in.x[k][0]) : 0.0f;
    for (int64_t i = first; i < packs; i += step) {
        pack<T, V> p[N], r;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (!(fixed >> k & 1)) p[k] = ((const pack<T, V> *)in.x[k])[i];
#pragma unroll
        for (int j = 0; j < V; j++) {
            float x[N];
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = fixed >> k & 1 ? one[k] : get<float>::of(p[k].v[j]);
            r.v[j] = put<T>::of(f(x));
        }
        ((pack<T, V> *)y)[i] = r;
    }
    if (first < n - packs * V) {
        int64_t i = packs * V + first;
        float x[N];
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = fixed >> k & 1 ? one[k] : get<float>::of(in.x[k][i]);
        y[i] = put<T>::of(f(x));
    }
}

template <class F, class C>
__global__ void __launch_bounds__(LKSI_THREADS) walked(F f, const __grid_constant__ walk<F::INPUTS + 1> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[F::INPUTS + 1];
        C x[F::INPUTS];
        w.seek(i, at);
#pragma unroll
        for (int k = 0; k < F::INPUTS; k++) x[k] = load<C>(w.data[k + 1], w.dtype[k + 1], at[k + 1]);
        store(w.data[0], w.dtype[0], at[0], f(x));
    }
}

template <class F, class T> static void go_packed(cudaStream_t stream, F f, const walk<F::INPUTS + 1> &w, int fixed)
{
    inputs<T, F::INPUTS> in;
    for (int k = 0; k < F::INPUTS; k++) in.x[k] = (const T *)w.data[k + 1];
    packed<F, T><<<blocks_for(w.n, (int64_t)LKSI_THREADS * (16 / sizeof(T))), LKSI_THREADS, 0, stream>>>(
        f, (T *)w.data[0], in, w.n, fixed);
}

template <class F, class C> static void go_walked(cudaStream_t stream, F f, const walk<F::INPUTS + 1> &w)
{
    walked<F, C><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(f, w);
}

template <class F> static lks_status run(cudaStream_t stream, const lksi_args *a)
{
    enum { N = F::INPUTS };
    F f;
    f.first = a->attr.scalar.a, f.second = a->attr.scalar.b;
    const lksi_view *view[N + 1] = {&a->out[0]};
    for (int k = 0; k < N; k++) view[k + 1] = &a->in[k];
    walk<N + 1> w = walk_of<N + 1>(view);
    if (w.n == 0) return LKS_OK;
    bool plain = runs(w, 0) && aligned(w.data[0]), dbl = w.dtype[0] == LKS_F64, whole = !is_float(w.dtype[0]);
    int fixed = 0;
    for (int k = 1; k <= N; k++) {
        if (N > 1 && constant(w, k)) fixed |= 1 << (k - 1);
        else plain = plain && runs(w, k) && aligned(w.data[k]);
        plain = plain && w.dtype[k] == w.dtype[0];
        dbl = dbl || w.dtype[k] == LKS_F64;
    }
    if (plain && w.dtype[0] == LKS_F32) go_packed<F, float>(stream, f, w, fixed);
    else if (plain && w.dtype[0] == LKS_BF16) go_packed<F, bf16>(stream, f, w, fixed);
    else if (plain && w.dtype[0] == LKS_F16) go_packed<F, f16>(stream, f, w, fixed);
    else if (dbl) go_walked<F, double>(stream, f, w);
    else if (!whole) go_walked<F, float>(stream, f, w);
    else if constexpr (F::INTEGERS) go_walked<F, int64_t>(stream, f, w);
    return lksi_cuda_launched(a);
}

#define SCALAR(inputs, numbers, integers, name)                                                                \
    LKSI_CUDA(name)                                                                                            \
    {                                                                                                          \
        (void)cuda;                                                                                            \
        return run<formula_##name>(stream, a);                                                                 \
    }
SCALAR_AND_TURNS
#include "table/scalar.def"
