/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.cu - the optimizer step: two passes over the arenas, one block to a chunk, and the small rows that decide, one
 * block each. What they compute for one scalar or one segment is in table/step.h; the update has the bits of the CPU's.
 * Elements outside trainable segments that act are neither read nor written.
 */
#include "common.cuh"
#include "table/step.h"

using namespace lksi;

static bool absent(const lksi_view *v) { return v->ndim < 0; }
template <class T> static T *data_of(const lksi_view *v) { return absent(v) ? NULL : (T *)v->data; }

/* What a dtype is computed in. */
template <class T> struct wide { typedef float type; };
template <> struct wide<double> { typedef double type; };

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

/* All threads of the block over elements [from, to): f.pack(i) for V elements from i, a multiple of V; f.one(i) for
 * those at the ends. */
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

/* What one thread found. */
struct finding {
    double squares;
    uint32_t infs, nans, zeros, tiny;
};

template <class T> struct stats {
    T *grad;
    float f;
    double factor, limit; /* limit: below it is underflow; 0: not counted */
    bool write;
    finding found;
    __device__ void take(T &g)
    {
        typedef typename wide<T>::type R; /* float or double */
        R x = get<R>::of(g), v = x * (sizeof(R) == 8 ? (R)factor : (R)f);
        found.squares += (double)v * (double)v;
        if (limit > 0) {
            double m = fabs((double)x);
            found.zeros += m == 0;
            found.tiny += m > 0 && m < limit;
        }
        if (write) {
            g = put<T>::of(v);
            v = get<R>::of(g); /* what was rounded is what counts */
        }
        uint64_t u = lksi_bits_f64((double)v);
        if ((u >> 52 & 0x7ff) != 0x7ff) return;
        if (u << 12) found.nans++;
        else found.infs++;
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

/* Elements [*from, *to) of segment s that are in the chunk from lo; 0: none. */
__device__ inline bool piece_of(const lksi_segment &s, int64_t lo, int64_t *from, int64_t *to)
{
    int64_t hi = lo + LKSI_STEP_CHUNK, end = s.offset + s.numel;
    *from = s.offset > lo ? s.offset : lo;
    *to = end < hi ? end : hi;
    return *to > *from;
}

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    grad_stats(T *grad, int64_t chunks, const lksi_segment *seg, int64_t segments, int first_segment,
               const int32_t *has, const lksi_scaler_state *scaler, const double *weight, double nominal, int unscaled,
               double limit, int write, lksi_part *part)
{
    __shared__ double room[LKSI_THREADS];
    __shared__ unsigned count[4];
    __shared__ int first;
    const double factor = lksi_grad_factor(scaler, weight, nominal, unscaled);
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK, from, to, seen = 0;
        stats<T> f = {grad, (float)factor, factor, limit, write != 0, {0.0, 0, 0, 0, 0}};
        int mine = 0x7fffffff;
        for (int64_t s = segment_at(seg, segments, lo); s < segments && seg[s].offset < hi; s++) {
            if (!seg[s].trainable || !(has[s] & LKSI_READ_GRAD) || !piece_of(seg[s], lo, &from, &to)) continue;
            uint32_t before = f.found.infs + f.found.nans;
            over<16 / sizeof(T)>(f, from, to);
            seen += to - from;
            if (f.found.infs + f.found.nans != before && mine == 0x7fffffff) mine = first_segment + (int)s;
        }
        double squares = block_sum(f.found.squares, room);
        bool bad = __syncthreads_or(mine != 0x7fffffff);
        if (bad || limit > 0) { /* integers: any order gives the same */
            if (threadIdx.x < 4) count[threadIdx.x] = 0;
            if (threadIdx.x == 0) first = 0x7fffffff;
            __syncthreads();
            if (f.found.infs) atomicAdd(&count[0], f.found.infs);
            if (f.found.nans) atomicAdd(&count[1], f.found.nans);
            if (f.found.zeros) atomicAdd(&count[2], f.found.zeros);
            if (f.found.tiny) atomicAdd(&count[3], f.found.tiny);
            if (mine != 0x7fffffff) atomicMin(&first, mine);
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            lksi_part p = {};
            p.squares = squares;
            if (bad || limit > 0) {
                p.bad = bad, p.first = bad ? first : 0;
                p.infs = count[0], p.nans = count[1], p.zeros = count[2], p.tiny = count[3];
                p.seen = limit > 0 ? seen : 0;
            }
            part[c] = p;
        }
        __syncthreads();
    }
}

static int64_t chunks_of(const lksi_view *arena) { return (arena->shape[0] + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK; }

LKSI_CUDA(grad_stats)
{
    (void)cuda;
    const lksi_view *g = &a->in[0];
    int64_t chunks = chunks_of(g);
    if (chunks == 0) return LKS_OK;
    double limit = a->attr.raw.i[4] ? lksi_underflow_limit(g->dtype) : 0;
#define STATS(T)                                                                                               \
    grad_stats<T><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(                                         \
        (T *)g->data, chunks, (const lksi_segment *)a->in[1].data, a->attr.raw.i[0], (int)a->attr.raw.i[3],    \
        (const int32_t *)a->in[2].data, data_of<const lksi_scaler_state>(&a->in[3]),                           \
        data_of<const double>(&a->in[4]), a->attr.raw.f[0], (int)a->attr.raw.i[1], limit, !absent(&a->out[1]), \
        (lksi_part *)a->out[0].data + a->attr.raw.i[2])
    switch (g->dtype) {
    case LKS_F32: STATS(float); break;
    case LKS_F64: STATS(double); break;
    case LKS_F16: STATS(f16); break;
    default: STATS(bf16); break;
    }
    return lksi_cuda_launched(a);
}

template <class T> struct looks_finite {
    const T *grad;
    int bad;
    __device__ void one(int64_t i)
    {
        typedef typename wide<T>::type R;
        bad |= !lksi_is_finite_f64((double)get<R>::of(grad[i]));
    }
    __device__ void pack_of(int64_t i)
    {
        typedef typename wide<T>::type R;
        enum { V = 16 / sizeof(T) };
        pack<T, V> p = *(const pack<T, V> *)(grad + i);
#pragma unroll
        for (int k = 0; k < V; k++) bad |= !lksi_is_finite_f64((double)get<R>::of(p.v[k]));
    }
};

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS) grad_check(const T *grad, int64_t n, int64_t chunks, int32_t *found)
{
    looks_finite<T> f = {grad, 0};
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK < n ? lo + LKSI_STEP_CHUNK : n;
        if (((uintptr_t)grad & 15) == 0) over<16 / sizeof(T)>(f, lo, hi);
        else over<1 << 30>(f, lo, hi);
    }
    if (__syncthreads_or(f.bad) && threadIdx.x == 0) atomicOr(found, 1);
}

LKSI_CUDA(grad_check)
{
    (void)cuda;
    const lksi_view *g = &a->in[0];
    int64_t n = g->shape[0], chunks = chunks_of(g);
    int32_t *found = (int32_t *)a->out[0].data;
    if (n == 0) return LKS_OK;
#define CHECK(T) grad_check<T><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>((const T *)g->data, n, chunks, found)
    switch (g->dtype) {
    case LKS_F32: CHECK(float); break;
    case LKS_F64: CHECK(double); break;
    case LKS_F16: CHECK(f16); break;
    default: CHECK(bf16); break;
    }
    return lksi_cuda_launched(a);
}

/* --- the decision --- */

__global__ void __launch_bounds__(LKSI_THREADS)
    step_begin(const lksi_part *part, int64_t parts, const lksi_segment *seg, const int32_t *has, int64_t segments,
               const lksi_scaler_state *scaler, const double *weight, const int32_t *here, int unscaled, int failed,
               int rank, lksi_step *st, int32_t *vec)
{
    __shared__ double room[LKSI_THREADS];
    __shared__ unsigned long long count[5];
    lksi_part mine = {};
    /* Neighbouring parts by one thread: an order that depends on their number alone. */
    int64_t each = (parts + LKSI_THREADS - 1) / LKSI_THREADS, first = threadIdx.x * each;
    for (int64_t i = first; i < first + each && i < parts; i++) lksi_part_add(&mine, &part[i]);
    if (threadIdx.x < 5) count[threadIdx.x] = 0;
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS)
        vec[LKSI_VEC_PRESENT + i] = seg[i].trainable && (has[i] & LKSI_HAS_GRAD) ? LKSI_PRESENT : LKSI_ABSENT;
    lksi_part sum = {};
    sum.squares = block_sum(mine.squares, room);
    sum.bad = __syncthreads_or(mine.bad) != 0;
    if (mine.infs) atomicAdd(&count[0], (unsigned long long)mine.infs);
    if (mine.nans) atomicAdd(&count[1], (unsigned long long)mine.nans);
    if (mine.zeros) atomicAdd(&count[2], (unsigned long long)mine.zeros);
    if (mine.tiny) atomicAdd(&count[3], (unsigned long long)mine.tiny);
    if (mine.seen) atomicAdd(&count[4], (unsigned long long)mine.seen);
    __syncthreads();
    if (threadIdx.x == 0) {
        sum.infs = (int64_t)count[0], sum.nans = (int64_t)count[1], sum.zeros = (int64_t)count[2];
        sum.tiny = (int64_t)count[3], sum.seen = (int64_t)count[4];
        lksi_step_begin(st, vec, scaler, weight, &sum, here, unscaled, failed, rank);
    }
    for (int64_t i = threadIdx.x; i < parts && sum.bad; i += LKSI_THREADS) /* all write the same value */
        if (part[i].bad && vec[LKSI_VEC_PRESENT + part[i].first])
            vec[LKSI_VEC_PRESENT + part[i].first] = LKSI_PRESENT_BAD;
}

LKSI_CUDA(step_begin)
{
    (void)cuda;
    step_begin<<<1, LKSI_THREADS, 0, stream>>>(
        (const lksi_part *)a->in[0].data, a->attr.raw.i[1], (const lksi_segment *)a->in[1].data,
        (const int32_t *)a->in[2].data, a->attr.raw.i[0], data_of<const lksi_scaler_state>(&a->in[3]),
        data_of<const double>(&a->in[4]), data_of<const int32_t>(&a->in[5]), (int)a->attr.raw.i[2],
        (int)a->attr.raw.i[3], (int)a->attr.raw.i[4], (lksi_step *)a->out[0].data, (int32_t *)a->out[1].data);
    return lksi_cuda_launched(a);
}

__global__ void __launch_bounds__(LKSI_THREADS)
    step_decide(const int32_t *vec, const lksi_settings *o, const lksi_group *group, const lksi_segment *seg,
                const int32_t *has, int64_t segments, const double *weight, const double *table, double nominal,
                int unscaled, int explicitly, lksi_step *st, lksi_segment_step *x, lksi_scaler_state *scaler,
                lksi_rng *rng)
{
    __shared__ double factor;
    __shared__ int first;
    int any = 0, mine = 0x7fffffff;
    if (threadIdx.x == 0) first = 0x7fffffff;
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS) {
        any |= vec[LKSI_VEC_PRESENT + i] != LKSI_ABSENT;
        if (vec[LKSI_VEC_PRESENT + i] == LKSI_PRESENT_BAD && mine == 0x7fffffff) mine = (int)i;
    }
    any = __syncthreads_or(any);
    if (mine != 0x7fffffff) atomicMin(&first, mine);
    __syncthreads();
    if (threadIdx.x == 0) {
        int which = first == 0x7fffffff ? -1 : first;
        if (explicitly) {
            lksi_step_unscaled(st, vec, any, which, scaler, weight);
        } else {
            factor = lksi_step_decide(st, vec, any, which, o, table, group[0].lr, scaler, weight, nominal, unscaled);
            if (rng) rng->attempt += 1;
        }
    }
    __syncthreads();
    if (explicitly) return;
    for (int64_t i = threadIdx.x; i < segments; i += LKSI_THREADS)
        lksi_segment_decide(&x[i], st, &seg[i], vec[LKSI_VEC_PRESENT + i], has[i], &group[seg[i].group], o->kind,
                            factor);
}

LKSI_CUDA(step_decide)
{
    (void)cuda;
    step_decide<<<1, LKSI_THREADS, 0, stream>>>(
        (const int32_t *)a->in[0].data, (const lksi_settings *)a->in[1].data, (const lksi_group *)a->in[2].data,
        (const lksi_segment *)a->in[3].data, (const int32_t *)a->in[4].data, a->attr.raw.i[0],
        data_of<const double>(&a->in[5]), data_of<const double>(&a->in[6]), a->attr.raw.f[0], (int)a->attr.raw.i[2],
        (int)a->attr.raw.i[3], (lksi_step *)a->out[0].data, (lksi_segment_step *)a->out[1].data,
        data_of<lksi_scaler_state>(&a->out[2]), data_of<lksi_rng>(&a->out[3]));
    return lksi_cuda_launched(a);
}

__global__ void scaler_update(lksi_scaler_state *s, int what, double given, const void *scale, int dtype)
{
    if (scale) given = dtype == LKS_F64 ? *(const double *)scale : (double)*(const float *)scale;
    lksi_scaler_advance(s, what, given);
}

LKSI_CUDA(scaler_update)
{
    (void)cuda;
    const void *scale = a->nin ? data_of<const void>(&a->in[0]) : NULL;
    scaler_update<<<1, 1, 0, stream>>>((lksi_scaler_state *)a->out[0].data, (int)a->attr.raw.i[0], a->attr.raw.f[0],
                                       scale, a->nin ? a->in[0].dtype : 0);
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

enum { SGD, ADAM, RMSPROP, ADAGRAD };

/* What an update of one segment needs. b: state blocks by row, see ops_step.def; NULL: none. T is the arena's dtype, R
 * computes. */
template <class T, class R, int RULE> struct update {
    const T *grad;
    T *value;
    R *b[3], *master;
    uint16_t *twin[2];
    R factor, clip, bound;
    /* of the segment: */
    bool zero, nesterov, use[3];
    R step, keep, l2, eps, root, m_keep, m_add, m_first, v_keep, v_add, trust;

    __device__ void segment(const lksi_segment_step &x)
    {
        zero = x.zero, nesterov = x.nesterov;
#pragma unroll
        for (int k = 0; k < 3; k++) use[k] = b[k] != NULL;
        if (RULE == SGD && x.m_keep == 0) use[0] = false;
        step = (R)x.step, keep = (R)x.keep, l2 = (R)x.l2, eps = (R)x.eps, root = (R)x.root, trust = (R)x.trust;
        m_keep = (R)x.m_keep, v_keep = (R)x.v_keep, v_add = (R)x.v_add;
        m_add = RULE == SGD && x.first ? (R)1 : (R)x.m_add;
        m_first = x.first ? (R)0 : m_keep;
    }
    __device__ void item(R g, R &p, R s[3]) const
    {
        R d = gradient(g, factor, clip, bound) + l2 * p;
        if (RULE == SGD) {
            d = trust * d;
            if (use[0]) {
                s[0] = m_first * s[0] + m_add * d;
                d = nesterov ? d + m_keep * s[0] : s[0];
            }
            p = keep * p - step * d;
        } else if (RULE == ADAM) {
            s[0] = m_keep * s[0] + m_add * d;
            s[1] = v_keep * s[1] + v_add * d * d;
            R top = s[1];
            if (use[2]) s[2] = top = s[1] > s[2] ? s[1] : s[2];
            p = keep * p - step * s[0] / (square_root(top) * root + eps);
        } else if (RULE == RMSPROP) {
            s[0] = v_keep * s[0] + v_add * d * d;
            R about = s[0];
            if (use[2]) {
                s[2] = v_keep * s[2] + v_add * d;
                about = s[0] - s[2] * s[2];
                about = about > 0 ? about : 0; /* rounding may make a variance of zero negative */
            }
            d = d / (square_root(about) + eps);
            if (use[1]) s[1] = d = m_keep * s[1] + d;
            p = keep * p - step * d;
        } else {
            s[0] = s[0] + d * d;
            p = keep * p - step * d / (square_root(s[0]) + eps);
        }
    }
    __device__ void one(int64_t i)
    {
        R p = master ? master[i] : get<R>::of(value[i]), s[3] = {0, 0, 0};
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (use[k]) s[k] = b[k][i];
        item(zero ? (R)0 : get<R>::of(grad[i]), p, s);
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (use[k]) b[k][i] = s[k];
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
        row p, s[3] = {};
        if (!zero) g = *(const pack<T, V> *)(grad + i);
        if (master) {
            p = *(const row *)(master + i);
        } else {
            y = *(const pack<T, V> *)(value + i);
#pragma unroll
            for (int k = 0; k < V; k++) p.v[k] = get<R>::of(y.v[k]);
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (use[k]) s[k] = *(const row *)(b[k] + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            R t[3] = {s[0].v[k], s[1].v[k], s[2].v[k]};
            item(zero ? (R)0 : get<R>::of(g.v[k]), p.v[k], t);
            s[0].v[k] = t[0], s[1].v[k] = t[1], s[2].v[k] = t[2];
            y.v[k] = put<T>::of(p.v[k]);
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (use[k]) *(row *)(b[k] + i) = s[k];
        if (master) *(row *)(master + i) = p;
        *(pack<T, V> *)(value + i) = y;
        pack<uint16_t, V> t;
        if (twin[0]) {
#pragma unroll
            for (int k = 0; k < V; k++) t.v[k] = put<bf16>::of(p.v[k]).bits;
            *(pack<uint16_t, V> *)(twin[0] + i) = t;
        }
        if (twin[1]) {
#pragma unroll
            for (int k = 0; k < V; k++) t.v[k] = put<f16>::of(p.v[k]).bits;
            *(pack<uint16_t, V> *)(twin[1] + i) = t;
        }
    }
};

template <class T, class R, int RULE>
__global__ void __launch_bounds__(LKSI_THREADS)
    update_arena(update<T, R, RULE> f, int64_t chunks, const lksi_segment *seg, int64_t segments,
                 const lksi_segment_step *x, const lksi_step *st)
{
    if (!st->ran) return;
    f.factor = (R)st->factor, f.clip = (R)st->clip, f.bound = (R)st->clip_value;
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK, from, to;
        for (int64_t s = segment_at(seg, segments, lo); s < segments && seg[s].offset < hi; s++) {
            if (!x[s].act || !piece_of(seg[s], lo, &from, &to)) continue;
            f.segment(x[s]);
            over<16 / sizeof(T)>(f, from, to);
        }
    }
}

template <class T, class R, int RULE> static lks_status run_update(cudaStream_t stream, const lksi_args *a)
{
    int64_t chunks = chunks_of(&a->in[0]);
    if (chunks == 0) return LKS_OK;
    update<T, R, RULE> f = {};
    f.grad = (const T *)a->in[0].data;
    f.value = (T *)a->out[0].data;
    for (int k = 0; k < 3; k++) f.b[k] = data_of<R>(&a->out[1 + k]);
    f.master = data_of<R>(&a->out[4]);
    f.twin[0] = data_of<uint16_t>(&a->out[5]), f.twin[1] = data_of<uint16_t>(&a->out[6]);
    update_arena<T, R, RULE><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(
        f, chunks, (const lksi_segment *)a->in[1].data, a->attr.raw.i[0], (const lksi_segment_step *)a->in[2].data,
        (const lksi_step *)a->in[3].data);
    return lksi_cuda_launched(a);
}

#define UPDATE(row, RULE)                                                                                      \
    LKSI_CUDA(row)                                                                                             \
    {                                                                                                          \
        (void)cuda;                                                                                            \
        switch (a->in[0].dtype) {                                                                              \
        case LKS_F32: return run_update<float, float, RULE>(stream, a);                                        \
        case LKS_F64: return run_update<double, double, RULE>(stream, a);                                      \
        case LKS_F16: return run_update<f16, float, RULE>(stream, a);                                          \
        default: return run_update<bf16, float, RULE>(stream, a);                                              \
        }                                                                                                      \
    }
UPDATE(sgd_step, SGD)
UPDATE(adam_step, ADAM)
UPDATE(rmsprop_step, RMSPROP)
UPDATE(adagrad_step, ADAGRAD)

/* --- ratios of LAMB and LARS --- */

/* Sums of squares of weights and direction over what a thread saw; see trust in cpu/step_core.h. */
template <class T, class R> struct norms {
    const T *grad;
    const R *value, *b[3];
    R factor, clip, bound;
    bool lamb, zero;
    R l2, eps, root, m_keep, m_add, v_keep, v_add, unbias;
    double w, d;
    __device__ void one(int64_t i)
    {
        R p = value[i], u = gradient(zero ? (R)0 : get<R>::of(grad[i]), factor, clip, bound);
        if (lamb) {
            R m = m_keep * b[0][i] + m_add * u, v = v_keep * b[1][i] + v_add * u * u;
            if (b[2] && b[2][i] > v) v = b[2][i];
            u = unbias * m / (square_root(v) * root + eps) + l2 * p;
        }
        w += (double)p * (double)p;
        d += (double)u * (double)u;
    }
    __device__ void pack_of(int64_t i) { one(i); }
};

template <class T, class R>
__global__ void __launch_bounds__(LKSI_THREADS)
    trust_stats(norms<T, R> f, int64_t chunks, const lksi_segment *seg, int64_t segments, const lksi_segment_step *x,
                const lksi_step *st, lksi_piece *piece)
{
    __shared__ double room[LKSI_THREADS];
    if (!st->ran) return;
    f.factor = (R)st->factor, f.clip = (R)st->clip, f.bound = (R)st->clip_value;
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK, from, to;
        for (int64_t s = segment_at(seg, segments, lo); s < segments && seg[s].offset < hi; s++) {
            const lksi_segment_step &q = x[s];
            f.w = f.d = 0;
            if (q.act && piece_of(seg[s], lo, &from, &to)) {
                f.zero = q.zero;
                f.l2 = (R)q.l2, f.eps = (R)q.eps, f.root = (R)q.root, f.unbias = (R)q.unbias;
                f.m_keep = (R)q.m_keep, f.m_add = (R)q.m_add, f.v_keep = (R)q.v_keep, f.v_add = (R)q.v_add;
                over<1>(f, from, to);
            }
            double w = block_sum(f.w, room), d = block_sum(f.d, room);
            if (threadIdx.x == 0) piece[c + s].weight = w, piece[c + s].direction = d;
        }
    }
}

template <class T, class R> static lks_status run_trust(cudaStream_t stream, const lksi_args *a)
{
    int64_t chunks = chunks_of(&a->in[0]);
    if (chunks == 0) return LKS_OK;
    norms<T, R> f = {};
    f.grad = (const T *)a->in[0].data;
    f.value = (const R *)a->in[4].data;
    for (int k = 0; k < 3; k++) f.b[k] = data_of<const R>(&a->in[5 + k]);
    f.lamb = a->attr.raw.i[1] == LKSI_STEP_LAMB;
    trust_stats<T, R><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(
        f, chunks, (const lksi_segment *)a->in[1].data, a->attr.raw.i[0], (const lksi_segment_step *)a->in[2].data,
        (const lksi_step *)a->in[3].data, (lksi_piece *)a->out[0].data + a->attr.raw.i[2]);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(trust_stats)
{
    (void)cuda;
    switch (a->in[0].dtype) {
    case LKS_F32: return run_trust<float, float>(stream, a);
    case LKS_F64: return run_trust<double, double>(stream, a);
    case LKS_F16: return run_trust<f16, float>(stream, a);
    default: return run_trust<bf16, float>(stream, a);
    }
}

__global__ void __launch_bounds__(LKSI_THREADS)
    trust_decide(const lksi_piece *piece, const lksi_segment *seg, int64_t segments, const lksi_step *st, int kind,
                 lksi_segment_step *x)
{
    __shared__ double room[LKSI_THREADS];
    if (!st->ran) return;
    for (int64_t s = blockIdx.x; s < segments; s += gridDim.x) {
        if (!x[s].act || !seg[s].numel) continue;
        int64_t first = seg[s].offset / LKSI_STEP_CHUNK, last = (seg[s].offset + seg[s].numel - 1) / LKSI_STEP_CHUNK;
        double w = 0, d = 0;
        for (int64_t c = first + threadIdx.x; c <= last; c += LKSI_THREADS) {
            w += piece[c + s].weight;
            d += piece[c + s].direction;
        }
        w = block_sum(w, room);
        d = block_sum(d, room);
        if (threadIdx.x == 0) lksi_trust_decide(&x[s], w, d, kind);
    }
}

LKSI_CUDA(trust_decide)
{
    (void)cuda;
    int64_t segments = a->attr.raw.i[0];
    if (segments == 0) return LKS_OK;
    trust_decide<<<blocks_for(segments, 1), LKSI_THREADS, 0, stream>>>(
        (const lksi_piece *)a->in[0].data + a->attr.raw.i[2], (const lksi_segment *)a->in[1].data, segments,
        (const lksi_step *)a->in[2].data, (int)a->attr.raw.i[1], (lksi_segment_step *)a->out[0].data);
    return lksi_cuda_launched(a);
}

/* --- the moving average of the weights --- */

template <class R> struct average {
    const R *p;
    R *e, add;
    __device__ void one(int64_t i) { e[i] += add * (p[i] - e[i]); }
    __device__ void pack_of(int64_t i)
    {
        enum { V = 16 / sizeof(R) };
        pack<R, V> x = *(const pack<R, V> *)(p + i), y = *(const pack<R, V> *)(e + i);
#pragma unroll
        for (int k = 0; k < V; k++) y.v[k] += add * (x.v[k] - y.v[k]);
        *(pack<R, V> *)(e + i) = y;
    }
};

template <class R>
__global__ void __launch_bounds__(LKSI_THREADS)
    ema_step(const lksi_step *st, const R *p, R *e, int64_t n, int64_t chunks)
{
    if (!st->ran) return;
    average<R> f = {p, e, (R)st->ema_add};
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        int64_t lo = c * LKSI_STEP_CHUNK, hi = lo + LKSI_STEP_CHUNK < n ? lo + LKSI_STEP_CHUNK : n;
        over<16 / sizeof(R)>(f, lo, hi);
    }
}

LKSI_CUDA(ema_step)
{
    (void)cuda;
    const lksi_view *p = &a->in[1];
    const lksi_step *st = (const lksi_step *)a->in[0].data;
    int64_t n = p->shape[0], chunks = chunks_of(p);
    if (n == 0) return LKS_OK;
    if (p->dtype == LKS_F64)
        ema_step<double><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(st, (const double *)p->data,
                                                                             (double *)a->out[0].data, n, chunks);
    else
        ema_step<float><<<blocks_for(chunks, 1), LKSI_THREADS, 0, stream>>>(st, (const float *)p->data,
                                                                            (float *)a->out[0].data, n, chunks);
    return lksi_cuda_launched(a);
}

/* --- running statistics --- */

__global__ void __launch_bounds__(LKSI_THREADS)
    buffers_commit(const lksi_step *st, float *running, float *staged, int64_t n)
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
