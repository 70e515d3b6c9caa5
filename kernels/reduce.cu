/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reduce.cu - sum, mean, max, min, argmax, index_fill_backward; how they go is in reduce.cuh.
 */
#include "complex.cuh"
#include "reduce.cuh"

using namespace lksi;

/* --- what is reduced --- */

namespace {
template <class C> struct add_up {
    typedef C acc;
    typedef C type;
    int divide;
    int64_t count;
    __device__ acc none() const { return C(0); }
    __device__ acc item(C x, int64_t) const { return x; }
    __device__ acc join(acc x, acc z) const { return x + z; }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        store(r.keep.data[1], r.keep.dtype[1], at[1], divide ? x / (C)count : x);
    }
};

/* Both parts at once, each added up as a real tensor would be. */
template <class R> struct add_up<pair<R>> {
    typedef pair<R> acc;
    typedef pair<R> type;
    int divide;
    int64_t count;
    __device__ acc none() const { return {R(0), R(0)}; }
    __device__ acc item(acc x, int64_t) const { return x; }
    __device__ acc join(acc x, acc z) const { return {x.re + z.re, x.im + z.im}; }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        acc mean = {x.re / (R)count, x.im / (R)count};
        store(r.keep.data[1], r.keep.dtype[1], at[1], divide ? mean : x);
    }
};

/* The first of the largest, or (LEAST) of the smallest; NaN wins. */
template <class C, bool LEAST> struct extreme {
    struct acc { C value; int64_t place; };
    typedef C type;
    __device__ acc none() const { return {C(0), -1}; }
    __device__ acc item(C x, int64_t i) const { return {x, i}; }
    __device__ acc join(acc x, acc z) const
    {
        if (x.place < 0) return z;
        if (z.place < 0) return x;
        bool nx = is_nan(x.value), nz = is_nan(z.value);
        if (nx || nz) return nx && nz ? (x.place < z.place ? x : z) : nx ? x : z;
        if (x.value == z.value) return x.place < z.place ? x : z;
        return (LEAST ? x.value < z.value : x.value > z.value) ? x : z;
    }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        if (r.keep.data[1]) store(r.keep.data[1], r.keep.dtype[1], at[1], x.value);
        ((int64_t *)r.keep.data[2])[at[2]] = x.place;
    }
};
}

static lks_status sum_or_mean(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int divide)
{
    reduction r;
    bool inner;
    if (!describe(&r, &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim, &a->out[0], NULL, &inner)) return LKS_OK;
    int from = r.dtype, cls = kind_of(a->out[0].dtype);
    add_up<float> f = {divide, r.fold.n};
    add_up<double> d = {divide, r.fold.n};
    add_up<int64_t> i = {0, 1};
    if (cls == CLASS_C64) return run<add_up<c64>, -1>(cuda, stream, a, add_up<c64>{divide, r.fold.n}, r, inner);
    if (cls == CLASS_C128) return run<add_up<c128>, -1>(cuda, stream, a, add_up<c128>{divide, r.fold.n}, r, inner);
    if (cls == CLASS_I64) return run<add_up<int64_t>, -1>(cuda, stream, a, i, r, inner);
    if (cls == CLASS_F64) {
        if (from == LKS_F64) return run<add_up<double>, LKS_F64>(cuda, stream, a, d, r, inner);
        return run<add_up<double>, -1>(cuda, stream, a, d, r, inner);
    }
    switch (from) {
    case LKS_F32: return run<add_up<float>, LKS_F32>(cuda, stream, a, f, r, inner);
    case LKS_F16: return run<add_up<float>, LKS_F16>(cuda, stream, a, f, r, inner);
    case LKS_BF16: return run<add_up<float>, LKS_BF16>(cuda, stream, a, f, r, inner);
    default: return run<add_up<float>, -1>(cuda, stream, a, f, r, inner);
    }
}

LKSI_CUDA(sum) { return sum_or_mean(cuda, stream, a, 0); }
LKSI_CUDA(mean) { return sum_or_mean(cuda, stream, a, 1); }

template <bool LEAST>
static lks_status extreme_along(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *values,
                                const lksi_view *index)
{
    reduction r;
    bool inner;
    int mask = a->in[0].ndim ? 1 << a->attr.dim.dim : 0, cls = class_of(a->in[0].dtype);
    if (!describe(&r, &a->in[0], mask, a->attr.dim.keepdim, values, index, &inner)) return LKS_OK;
    if (cls == CLASS_F64) return run<extreme<double, LEAST>, -1>(cuda, stream, a, extreme<double, LEAST>(), r, inner);
    if (cls == CLASS_I64) return run<extreme<int64_t, LEAST>, -1>(cuda, stream, a, extreme<int64_t, LEAST>(), r, inner);
    return run<extreme<float, LEAST>, -1>(cuda, stream, a, extreme<float, LEAST>(), r, inner);
}

LKSI_CUDA(max) { return extreme_along<false>(cuda, stream, a, &a->out[0], &a->out[1]); }
LKSI_CUDA(min) { return extreme_along<true>(cuda, stream, a, &a->out[0], &a->out[1]); }
LKSI_CUDA(argmax) { return extreme_along<false>(cuda, stream, a, NULL, &a->out[0]); }

/* --- index_fill_backward: dy at its index along dim, 0 elsewhere, in one pass --- */

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS) spread(walk<3> w, int64_t inner, int64_t size, int op, lksi_fault fault)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[3], j = i / inner % size;
        w.seek(i, at);
        int64_t index = ((const int64_t *)w.data[2])[at[2]];
        if (j == 0 && (index < 0 || index >= size)) fail(fault, LKSI_FAULT_INDEX, op, index, i, size);
        ((T *)w.data[0])[at[0]] = j == index ? ((const T *)w.data[1])[at[1]] : T(0);
    }
}

LKSI_CUDA(index_fill_backward)
{
    const lksi_view *dx = &a->out[0], *view[3] = {dx, &a->in[0], &a->in[1]};
    walk<3> w = walk_of<3>(view, true); /* both have size 1 along dim, so they are repeated there */
    int64_t inner = 1, size = a->attr.slice.size;
    if (w.n == 0) return LKS_OK;
    for (int d = a->attr.slice.dim + 1; d < dx->ndim; d++) inner *= dx->shape[d];
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    lksi_fault fault = lksi_cuda_fault(cuda);
    switch (size_of(dx->dtype)) {
    case 1: spread<uint8_t><<<blocks, LKSI_THREADS, 0, stream>>>(w, inner, size, a->op, fault); break;
    case 2: spread<uint16_t><<<blocks, LKSI_THREADS, 0, stream>>>(w, inner, size, a->op, fault); break;
    case 4: spread<uint32_t><<<blocks, LKSI_THREADS, 0, stream>>>(w, inner, size, a->op, fault); break;
    default: spread<uint64_t><<<blocks, LKSI_THREADS, 0, stream>>>(w, inner, size, a->op, fault); break;
    }
    return lksi_cuda_launched(a);
}
