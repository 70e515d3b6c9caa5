/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.cu - the optimizer step: two passes over the arenas, one block to a chunk, and the small rows that decide, one block
 * each. What they compute for one scalar or one segment is in table/step.h; the update has the bits of the CPU's.
 * Elements outside trainable segments that act are neither read nor written.
 */
#include "common.cuh"
#include "table/step.h"

using namespace lksi;

static bool absent(const lksi_view *v) { return v->ndim < 0; }
template <class T> static T *data_of(const lksi_view *v) { return absent(v) ? NULL : (T *)v->data; }

/* First segment that ends after `at`. */
__device__ inline int64_t segment_at(const lksi_segment *seg, int64_t n, int64_t at)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (seg[mid].offset + seg[mid].numel <= at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* All threads of the block over elements [from, to): f.pack(i) for V elements from i, a multiple of V; f.one(i) for those
 * at the ends. */
template <int V, class F> __device__ inline void over(F &f, int64_t from, int64_t to)
{
    int64_t first = (from + V - 1) / V * V, last = to / V * V;
    if (first >= last) {
        for (int64_t i = from + threadIdx.x; i < to; i += LKSI_THREADS) f.one(i);
        return;
    }
    if (threadIdx.x < first - from) f.one(from + threadIdx.x);
    for (int64_t i = first + (int64_t)threadIdx.x * V; i < last; i += (int64_t)LKSI_THREADS * V) f.pack_of(i);
    if (threadIdx.x < to - last) f.one(last + threadIdx.x);
}

/* --- pass 1 --- */

template <class T> struct stats {
    T *grad;
    float f;
    double factor;
    bool write;
    double squares;
    int bad;
    __device__ void take(T &g)
    {
        if (sizeof(T) == 8) {
            double x = get<double>::of(g), v = x * factor;
            squares += v * v;
            bad |= !lksi_is_finite_f64(x) | !lksi_is_finite_f64(v);
            if (write) g = put<T>::of(v);
            return;
        }
        float x = get<float>::of(g), v = x * f;
        squares += (double)v * (double)v;
        bad |= !lksi_is_finite_f32(x) | !lksi_is_finite_f32(v);
        if (write) {
            g = put<T>::of(v);
            bad |= !lksi_is_finite_f32(get<float>::of(g)); /* what was rounded is what counts */
        }
    }
    __device__ void one(int64_t i)
    {
        T g = grad[i];
        take(g);
        if (write) grad[i] = g;
    }
    __device__ void pack_of(int64_t i)
    {
        enum { V = 16 / sizeof(T) };
        pack<T, V> p = *(const pack<T, V> *)(grad + i);
#pragma unroll
        for (int k = 0; k < V; k++) take(p.v[k]);
        if (write) *(pack<T, V> *)(grad + i) = p;
    }
};

/* Sum over the block in a fixed tree; all threads get it. */
__device__ inline double block_sum(double x, double *room)
{
    room[threadIdx.x] = x;
    for (int half = LKSI_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
    }
    __syncthreads();
    double s = room[0];
    __syncthreads();
    return s;
}

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    grad_stats(T *grad, int64_t chunks, const lksi_segment *seg, int64_t segments, const int32_t *has,
               const lksi_scaler_state *scaler, const double *weight, double nominal, int unscaled, int write,
               lksi_part *part)
{
    __shared__ double room[LKSI_THREADS];
    const double factor = lksi_grad_factor(scaler, weight, nominal, unscaled);
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        stats<T> f = {grad, (float)factor, factor, write != 0, 0.0, 0};
        for (int64_t s = segment_at(seg, segments, lo); s < segments && seg[s].offset < hi; s++) {
            int64_t from = seg[s].offset > lo ? seg[s].offset : lo, end = seg[s].offset + seg[s].numel;
            int64_t to = end < hi ? end : hi;
            if (seg[s].trainable && (has[s] & LKSI_READ_GRAD) && to > from) over<16 / sizeof(T)>(f, from, to);
        }
        double squares = block_sum(f.squares, room);
        int bad = __syncthreads_or(f.bad);
        if (threadIdx.x == 0) part[c].squares = squares, part[c].bad = bad != 0;
    }
}

LKSI_CUDA(grad_stats)
{
    (void)cuda;
    const lksi_view *g = &a->in[0];
    int64_t chunks = (g->shape[0] + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK;
    if (chunks == 0) return LKS_OK;
#define STATS(T)                                                                                               \
    grad_stats<T><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(                                         \
        (T *)g->data, chunks, (const lksi_segment *)a->in[1].data, a->attr.raw.i[0], (const int32_t *)a->in[2].data, \
        data_of<const lksi_scaler_state>(&a->in[3]), data_of<const double>(&a->in[4]), a->attr.raw.f[0],       \
        (int)a->attr.raw.i[1], !absent(&a->out[1]), (lksi_part *)a->out[0].data + a->attr.raw.i[2])
    switch (g->dtype) {
    case LKS_F32: STATS(float); break;
    case LKS_F64: STATS(double); break;
    case LKS_F16: STATS(f16); break;
    default: STATS(bf16); break;
    }
    return lksi_cuda_launched(a);
}

/* --- the decision --- */

__global__ void __launch_bounds__(LKSI_THREADS)
    step_begin(const lksi_part *part, int64_t parts, const lksi_segment *seg, const int32_t *has, int64_t segments,
               const lksi_scaler_state *scaler, const double *weight, int unscaled, int failed, lksi_step *st, int32_t *vec)
{
    __shared__ double room[LKSI_THREADS];
    double mine = 0;
    int bad = 0;
    /* Neighbouring parts by one thread: an order that depends on their number alone. */
    int64_t each = (parts + LKSI_THREADS - 1) / LKSI_THREADS, first = threadIdx.x * each;
    for (int64_t i = first; i < first + each && i < parts; i++) {
        mine += part[i].squares;
        bad |= part[i].bad != 0;
    }
    double squares = block_sum(mine, room);
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) lksi_step_begin(st, vec, scaler, weight, squares, bad, unscaled, failed);
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS)
        vec[LKSI_VEC_PRESENT + i] = seg[i].trainable && (has[i] & LKSI_HAS_GRAD);
}

LKSI_CUDA(step_begin)
{
    (void)cuda;
    step_begin<<<1, LKSI_THREADS, 0, stream>>>(
        (const lksi_part *)a->in[0].data, a->attr.raw.i[1], (const lksi_segment *)a->in[1].data,
        (const int32_t *)a->in[2].data, a->attr.raw.i[0], data_of<const lksi_scaler_state>(&a->in[3]),
        data_of<const double>(&a->in[4]), (int)a->attr.raw.i[2], (int)a->attr.raw.i[3], (lksi_step *)a->out[0].data,
        (int32_t *)a->out[1].data);
    return lksi_cuda_launched(a);
}

__global__ void __launch_bounds__(LKSI_THREADS)
    step_decide(const int32_t *vec, const lksi_settings *o, const lksi_group *group, const lksi_segment *seg,
                const int32_t *has, int64_t segments, const double *weight, double nominal, int unscaled, int explicitly,
                lksi_step *st, lksi_segment_step *x, lksi_scaler_state *scaler, lksi_rng *rng)
{
    __shared__ double factor;
    int any = 0;
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS) any |= vec[LKSI_VEC_PRESENT + i];
    any = __syncthreads_or(any);
    if (explicitly) {
        if (threadIdx.x == 0) lksi_step_unscaled(st, vec, any, scaler, weight);
        return;
    }
    if (threadIdx.x == 0) {
        factor = lksi_step_decide(st, vec, any, o, group[0].lr, scaler, weight, nominal, unscaled);
        if (rng) rng->attempt += 1;
        __threadfence_block();
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS)
        lksi_segment_decide(&x[i], st, &seg[i], vec[LKSI_VEC_PRESENT + i], has[i], &group[seg[i].group], o->kind, factor);
}

LKSI_CUDA(step_decide)
{
    (void)cuda;
    step_decide<<<1, LKSI_THREADS, 0, stream>>>(
        (const int32_t *)a->in[0].data, (const lksi_settings *)a->in[1].data, (const lksi_group *)a->in[2].data,
        (const lksi_segment *)a->in[3].data, (const int32_t *)a->in[4].data, a->attr.raw.i[0],
        data_of<const double>(&a->in[5]), a->attr.raw.f[0], (int)a->attr.raw.i[2], (int)a->attr.raw.i[3],
        (lksi_step *)a->out[0].data, (lksi_segment_step *)a->out[1].data, data_of<lksi_scaler_state>(&a->out[2]),
        data_of<lksi_rng>(&a->out[3]));
    return lksi_cuda_launched(a);
}

__global__ void scaler_update(lksi_scaler_state *s) { lksi_scaler_advance(s); }

LKSI_CUDA(scaler_update)
{
    (void)cuda;
    scaler_update<<<1, 1, 0, stream>>>((lksi_scaler_state *)a->out[0].data);
    return lksi_cuda_launched(a);
}

/* --- pass 2 --- */

__device__ inline float square_root(float x) { return __fsqrt_rn(x); }
__device__ inline double square_root(double x) { return __dsqrt_rn(x); }

/* A bound that is absent is infinite: the comparisons change nothing. A NaN passes. */
template <class R> __device__ inline R gradient(R g, R factor, R clip, R bound)
{
    R x = g * factor * clip;
    x = x > bound ? bound : x;
    return x < -bound ? -bound : x;
}

/* What the passes of one segment need; b0: momentum or exp_avg, b1: exp_avg_sq. T is the arena's dtype, R computes. */
template <class T, class R, bool SGD> struct update {
    const T *grad;
    T *value;
    R *b0, *b1, *master;
    uint16_t *twin[2];
    R factor, clip, bound;
    /* of the segment: */
    bool zero, plain, nesterov;
    R step, keep, l2, eps, root, m_keep, m_add, m_first, v_keep, v_add;

    __device__ void segment(const lksi_segment_step &x)
    {
        zero = x.zero, nesterov = x.nesterov;
        plain = !b0 || x.m_keep == 0;
        step = (R)x.step, keep = (R)x.keep, l2 = (R)x.l2, eps = (R)x.eps, root = (R)x.root;
        m_keep = (R)x.m_keep, v_keep = (R)x.v_keep, v_add = (R)x.v_add;
        m_add = SGD && x.first ? (R)1 : (R)x.m_add;
        m_first = x.first ? (R)0 : m_keep;
    }
    __device__ void item(R g, R &p, R &m, R &v) const
    {
        R d = gradient(g, factor, clip, bound) + l2 * p;
        if (SGD) {
            if (plain) {
                p -= step * d;
                return;
            }
            m = m_first * m + m_add * d;
            if (nesterov) p -= step * (d + m_keep * m);
            else p -= step * m;
        } else {
            m = m_keep * m + m_add * d;
            v = v_keep * v + v_add * d * d;
            p = keep * p - step * m / (square_root(v) * root + eps);
        }
    }
    __device__ void one(int64_t i)
    {
        R p = master ? master[i] : get<R>::of(value[i]), m = 0, v = 0;
        if (SGD ? !plain : true) m = b0[i];
        if (!SGD) v = b1[i];
        item(zero ? (R)0 : get<R>::of(grad[i]), p, m, v);
        if (SGD ? !plain : true) b0[i] = m;
        if (!SGD) b1[i] = v;
        if (master) master[i] = p;
        value[i] = put<T>::of(p);
        if (twin[0]) twin[0][i] = put<bf16>::of(p).bits;
        if (twin[1]) twin[1][i] = put<f16>::of(p).bits;
    }
    __device__ void pack_of(int64_t i)
    {
        enum { V = 16 / sizeof(T) };
        typedef pack<R, V> row;
        pack<T, V> g, y;
        row p, m = {}, v = {};
        if (!zero) g = *(const pack<T, V> *)(grad + i);
        if (master) {
            p = *(const row *)(master + i);
        } else {
            y = *(const pack<T, V> *)(value + i);
#pragma unroll
            for (int k = 0; k < V; k++) p.v[k] = get<R>::of(y.v[k]);
        }
        if (SGD ? !plain : true) m = *(const row *)(b0 + i);
        if (!SGD) v = *(const row *)(b1 + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            item(zero ? (R)0 : get<R>::of(g.v[k]), p.v[k], m.v[k], v.v[k]);
            y.v[k] = put<T>::of(p.v[k]);
        }
        if (SGD ? !plain : true) *(row *)(b0 + i) = m;
        if (!SGD) *(row *)(b1 + i) = v;
        if (master) *(row *)(master + i) = p;
        *(pack<T, V> *)(value + i) = y;
        if (twin[0]) {
            pack<uint16_t, V> t;
#pragma unroll
            for (int k = 0; k < V; k++) t.v[k] = put<bf16>::of(p.v[k]).bits;
            *(pack<uint16_t, V> *)(twin[0] + i) = t;
        }
        if (twin[1]) {
            pack<uint16_t, V> t;
#pragma unroll
            for (int k = 0; k < V; k++) t.v[k] = put<f16>::of(p.v[k]).bits;
            *(pack<uint16_t, V> *)(twin[1] + i) = t;
        }
    }
};

template <class T, class R, bool SGD>
__global__ void __launch_bounds__(LKSI_THREADS)
    update_arena(update<T, R, SGD> f, int64_t chunks, const lksi_segment *seg, int64_t segments, const lksi_segment_step *x,
                 const lksi_step *st)
{
    if (!st->ran) return;
    f.factor = (R)st->factor, f.clip = (R)st->clip, f.bound = (R)st->clip_value;
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK;
        for (int64_t s = segment_at(seg, segments, lo); s < segments && seg[s].offset < hi; s++) {
            int64_t from = seg[s].offset > lo ? seg[s].offset : lo, end = seg[s].offset + seg[s].numel;
            int64_t to = end < hi ? end : hi;
            if (!x[s].act || to <= from) continue;
            f.segment(x[s]);
            over<16 / sizeof(T)>(f, from, to);
        }
    }
}

template <class T, class R, bool SGD> static lks_status run_update(cudaStream_t stream, const lksi_args *a)
{
    const lksi_view *out = a->out + (SGD ? 2 : 3); /* master, twins */
    int64_t chunks = (a->in[0].shape[0] + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK;
    if (chunks == 0) return LKS_OK;
    update<T, R, SGD> f = {};
    f.grad = (const T *)a->in[0].data;
    f.value = (T *)a->out[0].data;
    f.b0 = data_of<R>(&a->out[1]);
    f.b1 = SGD ? NULL : data_of<R>(&a->out[2]);
    f.master = data_of<R>(&out[0]);
    f.twin[0] = data_of<uint16_t>(&out[1]), f.twin[1] = data_of<uint16_t>(&out[2]);
    update_arena<T, R, SGD><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(
        f, chunks, (const lksi_segment *)a->in[1].data, a->attr.raw.i[0], (const lksi_segment_step *)a->in[2].data,
        (const lksi_step *)a->in[3].data);
    return lksi_cuda_launched(a);
}

template <bool SGD> static lks_status update_any(cudaStream_t stream, const lksi_args *a)
{
    switch (a->in[0].dtype) {
    case LKS_F32: return run_update<float, float, SGD>(stream, a);
    case LKS_F64: return run_update<double, double, SGD>(stream, a);
    case LKS_F16: return run_update<f16, float, SGD>(stream, a);
    default: return run_update<bf16, float, SGD>(stream, a);
    }
}

LKSI_CUDA(sgd_step)
{
    (void)cuda;
    return update_any<true>(stream, a);
}

LKSI_CUDA(adam_step)
{
    (void)cuda;
    return update_any<false>(stream, a);
}

/* --- running statistics --- */

__global__ void __launch_bounds__(LKSI_THREADS) buffers_commit(const lksi_step *st, float *running, float *staged, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < n; i += step) {
        if (st->ran) running[i] = staged[i];
        else staged[i] = running[i];
    }
}

LKSI_CUDA(buffers_commit)
{
    (void)cuda;
    int64_t n = a->out[0].shape[0];
    if (n == 0) return LKS_OK;
    buffers_commit<<<blocks_for(n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(
        (const lksi_step *)a->in[0].data, (float *)a->out[0].data, (float *)a->out[1].data, n);
    return lksi_cuda_launched(a);
}
