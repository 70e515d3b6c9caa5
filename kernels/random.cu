/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.cu - uniform and normal fills, dropout, bernoulli: the numbers of the CPU's random.c, bit for bit. Element i
 * of a tensor in row-major order takes those of counter offset + i, so a thread takes one block of the counter and the
 * elements that belong to it.
 */
#include "common.cuh"

using namespace lksi;

enum { UNIFORM, NORMAL, DROPOUT };

struct draw {
    const lksi_rng *rng;
    int64_t offset, call;
    double a, b, low, high;
    uint32_t limit; /* dropout: kept where the 24-bit number is not below */
};

/* Elements of one block of the counter. */
template <int KIND, class C> struct per_block { enum { count = 4 }; };
template <> struct per_block<UNIFORM, double> { enum { count = 2 }; };
template <> struct per_block<NORMAL, double> { enum { count = 2 }; };

template <int KIND> __device__ inline void numbers(const draw &d, const uint32_t w[4], const float x[4], float y[4])
{
    if (KIND == UNIFORM) {
        float lo = (float)d.a, width = (float)(d.b - d.a), low = (float)d.low, high = (float)d.high;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float v = lo + width * lksi_uniform_f32(w[k]);
            v = v < low ? low : v;
            y[k] = v > high ? high : v;
        }
    } else if (KIND == NORMAL) {
        float mean = (float)d.a, std = (float)d.b, z[4];
        lksi_normal_f32(w[0], w[1], &z[0], &z[1]);
        lksi_normal_f32(w[2], w[3], &z[2], &z[3]);
#pragma unroll
        for (int k = 0; k < 4; k++) y[k] = mean + std * z[k];
    } else {
        float scale = (float)(1.0 / (1.0 - d.a));
#pragma unroll
        for (int k = 0; k < 4; k++) y[k] = (w[k] >> 8) >= d.limit ? x[k] * scale : 0.0f;
    }
}

template <int KIND> __device__ inline void numbers(const draw &d, const uint32_t w[4], const double x[4], double y[4])
{
    if (KIND == UNIFORM) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            double v = d.a + (d.b - d.a) * lksi_uniform_f64(w[2 * k], w[2 * k + 1]);
            v = v < d.low ? d.low : v;
            y[k] = v > d.high ? d.high : v;
        }
    } else if (KIND == NORMAL) {
        double z[2];
        lksi_normal_f64(w, z, z + 1);
        y[0] = d.a + d.b * z[0];
        y[1] = d.a + d.b * z[1];
    } else {
        double scale = 1.0 / (1.0 - d.a);
#pragma unroll
        for (int k = 0; k < 4; k++) y[k] = (w[k] >> 8) >= d.limit ? x[k] * scale : 0.0;
    }
}

/* One run of T, offset a multiple of what a block gives: whole blocks move as one. */
template <int KIND, class C, class T>
__global__ void __launch_bounds__(LKSI_THREADS) draw_run(draw d, T *y, const T *x, int64_t n)
{
    enum { E = per_block<KIND, C>::count };
    const lksi_philox s = lksi_philox_stream(d.rng->seed, d.rng->attempt, d.call);
    const int64_t blocks = (n + E - 1) / E, step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < blocks; i += step) {
        uint32_t w[4];
        C in[4] = {0, 0, 0, 0}, out[4];
        lksi_philox_block(&s, (uint64_t)(d.offset / E + i), w);
        if (i * E + E <= n) {
            if (KIND == DROPOUT) {
                pack<T, E> p = ((const pack<T, E> *)x)[i];
#pragma unroll
                for (int k = 0; k < E; k++) in[k] = get<C>::of(p.v[k]);
            }
            numbers<KIND>(d, w, in, out);
            pack<T, E> r;
#pragma unroll
            for (int k = 0; k < E; k++) r.v[k] = put<T>::of(out[k]);
            ((pack<T, E> *)y)[i] = r;
        } else {
            for (int k = 0; k < E && i * E + k < n && KIND == DROPOUT; k++) in[k] = get<C>::of(x[i * E + k]);
            numbers<KIND>(d, w, in, out);
            for (int k = 0; k < E && i * E + k < n; k++) y[i * E + k] = put<T>::of(out[k]);
        }
    }
}

template <int KIND, class C> __global__ void __launch_bounds__(LKSI_THREADS) draw_any(draw d, walk<2> w)
{
    enum { E = per_block<KIND, C>::count };
    const lksi_philox s = lksi_philox_stream(d.rng->seed, d.rng->attempt, d.call);
    const int64_t first = d.offset / E, last = (d.offset + w.n - 1) / E, step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t b = first + (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; b <= last; b += step) {
        uint32_t words[4];
        int64_t at[E][2];
        C in[4] = {0, 0, 0, 0}, out[4];
        lksi_philox_block(&s, (uint64_t)b, words);
        for (int k = 0; k < E; k++) {
            int64_t i = b * E + k - d.offset;
            if (i < 0 || i >= w.n) continue;
            w.seek(i, at[k]);
            if (KIND == DROPOUT) in[k] = load<C>(w.data[1], w.dtype[1], at[k][1]);
        }
        numbers<KIND>(d, words, in, out);
        for (int k = 0; k < E; k++) {
            int64_t i = b * E + k - d.offset;
            if (i >= 0 && i < w.n) store(w.data[0], w.dtype[0], at[k][0], out[k]);
        }
    }
}

template <int KIND, class C, class T> static void launch_run(cudaStream_t stream, const draw &d, const walk<2> &w)
{
    enum { E = per_block<KIND, C>::count };
    draw_run<KIND, C, T><<<blocks_for(w.n, (int64_t)LKSI_THREADS * E), LKSI_THREADS, 0, stream>>>(
        d, (T *)w.data[0], (const T *)w.data[1], w.n);
}

template <int KIND> static lks_status run(cudaStream_t stream, const lksi_args *a, draw d)
{
    const lksi_view *y = &a->out[0], *view[2] = {y, KIND == DROPOUT ? &a->in[0] : y};
    walk<2> w = walk_of<2>(view, true); /* the shape's order, not memory's */
    if (w.n == 0) return LKS_OK;
    d.rng = a->rng;
    d.offset = a->attr.random.offset;
    d.call = a->attr.random.call;
    d.a = a->attr.random.a, d.b = a->attr.random.b;
    int dtype = w.dtype[0];
    bool dbl = dtype == LKS_F64 || w.dtype[1] == LKS_F64;
    if (runs(w, 0) && runs(w, 1) && aligned(w.data[0]) && aligned(w.data[1]) && w.dtype[1] == dtype &&
        d.offset % 4 == 0) {
        switch (dtype) {
        case LKS_F32: launch_run<KIND, float, float>(stream, d, w); break;
        case LKS_F16: launch_run<KIND, float, f16>(stream, d, w); break;
        case LKS_BF16: launch_run<KIND, float, bf16>(stream, d, w); break;
        default: launch_run<KIND, double, double>(stream, d, w); break;
        }
    } else if (dbl) {
        draw_any<KIND, double><<<blocks_for(w.n / 2 + 2, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(d, w);
    } else {
        draw_any<KIND, float><<<blocks_for(w.n / 4 + 2, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(d, w);
    }
    return lksi_cuda_launched(a);
}

LKSI_CUDA(uniform)
{
    (void)cuda;
    draw d = {};
    lksi_uniform_bounds(a->out[0].dtype, a->attr.random.a, a->attr.random.b, &d.low, &d.high);
    return run<UNIFORM>(stream, a, d);
}

LKSI_CUDA(normal)
{
    (void)cuda;
    draw d = {};
    return run<NORMAL>(stream, a, d);
}

LKSI_CUDA(dropout)
{
    (void)cuda;
    draw d = {};
    d.limit = (uint32_t)ceil(a->attr.random.a * 0x1p24); /* u >= p: the least 24-bit number that is kept */
    return run<DROPOUT>(stream, a, d);
}

/* --- bernoulli --- */

template <class C> __global__ void __launch_bounds__(LKSI_THREADS)
    toss(draw d, walk<2> w, int op, lksi_fault fault)
{
    const lksi_philox s = lksi_philox_stream(d.rng->seed, d.rng->attempt, d.call);
    const int64_t first = d.offset / 4, last = (d.offset + w.n - 1) / 4, step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t b = first + (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; b <= last; b += step) {
        uint32_t words[4];
        lksi_philox_block(&s, (uint64_t)b, words);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int64_t i = b * 4 + k - d.offset, at[2];
            if (i < 0 || i >= w.n) continue;
            w.seek(i, at);
            C p = load<C>(w.data[1], w.dtype[1], at[1]);
            if (!(p >= 0 && p <= 1)) fail(fault, LKSI_FAULT_PROBABILITY, op, 0, i, 0);
            store(w.data[0], w.dtype[0], at[0], (C)(int32_t)(words[k] >> 8) < p * (C)0x1p24 ? (C)1 : (C)0);
        }
    }
}

LKSI_CUDA(bernoulli)
{
    const lksi_view *view[2] = {&a->out[0], &a->in[0]};
    walk<2> w = walk_of<2>(view, true);
    if (w.n == 0) return LKS_OK;
    draw d = {};
    d.rng = a->rng, d.offset = a->attr.random.offset, d.call = a->attr.random.call;
    const unsigned blocks = blocks_for(w.n / 4 + 2, LKSI_THREADS);
    if (class_of(w.dtype[0]) == CLASS_F64)
        toss<double><<<blocks, LKSI_THREADS, 0, stream>>>(d, w, a->op, lksi_cuda_fault(cuda));
    else
        toss<float><<<blocks, LKSI_THREADS, 0, stream>>>(d, w, a->op, lksi_cuda_fault(cuda));
    return lksi_cuda_launched(a);
}
