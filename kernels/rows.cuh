/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows.cuh - tensors of one shape as rows: some dims number the rows, the others the elements of a row. Several threads
 * go along a row together and fold what they found in a fixed order. For softmax.cu and norm.cu.
 */
#ifndef LKSI_ROWS_CUH
#define LKSI_ROWS_CUH

#include "common.cuh"

namespace lksi {

/* Rows are numbered row-major over the dims that mask leaves, elements row-major over those in mask. Operand 0 is the
 * output; a NULL view has no memory and is never read. */
template <int N> struct rows {
    walk<N> outer, inner;
};

static inline lksi_view part_of(const lksi_view *v, unsigned mask)
{
    lksi_view r = *v;
    r.ndim = 0;
    for (int d = 0; d < v->ndim; d++) {
        if (!(mask >> d & 1)) continue;
        r.shape[r.ndim] = v->shape[d];
        r.stride[r.ndim++] = v->stride[d];
    }
    return r;
}

template <int N> static rows<N> rows_of(const lksi_view *const view[N], unsigned mask)
{
    lksi_view kept[N], along[N];
    const lksi_view *pk[N], *pa[N];
    rows<N> r;
    for (int k = 0; k < N; k++) {
        const lksi_view *v = view[k] ? view[k] : view[0];
        kept[k] = part_of(v, ~mask), along[k] = part_of(v, mask);
        pk[k] = &kept[k], pa[k] = &along[k];
    }
    r.outer = walk_of<N>(pk, true);
    r.inner = walk_of<N>(pa, true);
    for (int k = 0; k < N; k++)
        if (!view[k]) r.outer.data[k] = r.inner.data[k] = NULL;
    return r;
}

/* All operands lie in packs of v elements of one dtype: a row is one run of elements, or runs at equal distances. */
template <int N> static bool packs(const rows<N> &r, int v)
{
    const walk<N> &in = r.inner;
    if (v > 8 || in.ndim < 1 || in.ndim > 2 || !in.small || in.shape[in.ndim - 1] % v) return false;
    for (int k = 0; k < N; k++) {
        if (!r.outer.data[k]) continue;
        if (in.dtype[k] != in.dtype[0] || !aligned(in.data[k]) || in.stride[k][in.ndim - 1] != 1) return false;
        for (int d = 0; d < in.ndim - 1; d++)
            if (in.stride[k][d] % v) return false;
        for (int d = 0; d < r.outer.ndim; d++)
            if (r.outer.stride[k][d] % v) return false;
    }
    return true;
}

/* Operand k: neighbouring rows are neighbours in memory, elements of a row are not. */
template <int N> static bool upright(const rows<N> &r, int k)
{
    const walk<N> &in = r.inner, &out = r.outer;
    return out.n > 1 && in.n > 1 && out.stride[k][out.ndim - 1] == 1 && in.stride[k][in.ndim - 1] != 1;
}

/* What moves as one: V elements of type T that are known to lie so (packs), or one element of whatever a row has. Small
 * code matters here: the first kind is unrolled. */
struct untyped {};
template <class C, class T, int V> struct mover {
    enum { HELD = 32 / V }; /* packs that a thread can keep */
    /* Unit u of a row: offset of operand k. */
    template <int N> static __device__ int64_t place(const walk<N> &w, int k, int64_t u)
    {
        uint32_t i = (uint32_t)u * V;
        if (w.ndim == 1) return i;
        uint32_t q = (__umulhi(i, w.div[1].m) + i) >> w.div[1].s;
        return q * w.stride[k][0] + (i - q * w.div[1].d);
    }
    static __device__ void get_(C *x, const void *p, int, int64_t i)
    {
        pack<T, V> q = *(const pack<T, V> *)(const void *)((const T *)p + i);
#pragma unroll
        for (int j = 0; j < V; j++) x[j] = get<C>::of(q.v[j]);
    }
    static __device__ void put_(const C *x, void *p, int, int64_t i)
    {
        pack<T, V> q;
#pragma unroll
        for (int j = 0; j < V; j++) q.v[j] = put<T>::of(x[j]);
        *(pack<T, V> *)(void *)((T *)p + i) = q;
    }
};
template <class C> struct mover<C, untyped, 1> {
    enum { HELD = 0 };
    template <int N> static __device__ int64_t place(const walk<N> &w, int k, int64_t u)
    {
        if (w.ndim <= 1) return u * w.stride[k][0];
        int64_t at = 0;
#pragma unroll 1
        for (int d = w.ndim - 1; d > 0; d--) {
            int64_t q = w.small ? (__umulhi((uint32_t)u, w.div[d].m) + (uint32_t)u) >> w.div[d].s : u / w.shape[d];
            at += (u - q * w.shape[d]) * w.stride[k][d];
            u = q;
        }
        return at + u * w.stride[k][0];
    }
    static __device__ void get_(C *x, const void *p, int dtype, int64_t i) { *x = load<C>(p, dtype, i); }
    static __device__ void put_(const C *x, void *p, int dtype, int64_t i) { store(p, dtype, i, *x); }
};

/* f(k, u) for the units u of a thread; K > 0: they are K at most, numbered k so that what was read can be kept in
 * registers. */
template <int K, class F> __device__ inline void sweep(int64_t lane, int64_t lanes, int64_t count, F f)
{
    if constexpr (K > 0) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t u = lane + k * lanes;
            if (u < count) f(k, u);
        }
    } else {
#pragma unroll 1
        for (int64_t u = lane; u < count; u += lanes) f(0, u);
    }
}

/* How the threads of a block share rows: LANES of them to a row, side by side, or (COLS > 1) COLS rows side by side. */
template <int LANES, int COLS> struct crew {
    enum { ROWS = LKSI_THREADS / LANES, ROOM = COLS > 1 ? LKSI_THREADS : LKSI_THREADS / 32 };
    static __device__ int lane() { return COLS > 1 ? threadIdx.x / COLS : threadIdx.x % LANES; }
    static __device__ int row() { return COLS > 1 ? threadIdx.x % COLS : threadIdx.x / LANES; }

    /* The values of a row's threads joined in a fixed order; all of them have the result. */
    template <class A, class J> static __device__ A fold(A x, A *room, J join)
    {
        if constexpr (COLS > 1) {
            room[threadIdx.x] = x;
            __syncthreads();
            x = room[row()];
            for (int k = 1; k < LANES; k++) x = join(x, room[k * COLS + row()]);
            __syncthreads();
        } else {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
        }
        if constexpr (COLS == 1 && LANES > 32) {
            if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
            __syncthreads();
            x = room[0];
            for (int k = 1; k < LKSI_THREADS / 32; k++) x = join(x, room[k]);
            __syncthreads();
        }
        return x;
    }
};

struct join_sum {
    template <class A> __device__ A operator()(A a, A b) const { return a + b; }
};
struct join_max { /* NaN loses */
    template <class A> __device__ A operator()(A a, A b) const { return b > a || a != a ? b : a; }
};

/* x <= 0 or NaN */
__device__ inline float exp_of(float x) { return lksi_exp_negative(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double log_of(double x) { return log(x); }

} // namespace lksi

#endif
