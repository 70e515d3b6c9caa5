/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.cu - cross entropy with classes as target, its gradient, and the pointwise losses of table/loss.h with their
 * derivatives. A row of logits is read once: its maximum and the sum of exponentials go along together. No probability
 * is stored. Sums over rows or elements are taken in tiles of a fixed size, whose double sums are added in order.
 */
#include "loss.cuh"
#include "table/loss.h"

using namespace lksi;

#define LOWEST(C) ((C)-INFINITY)

namespace {
/* exp(x) for x <= 0, or above it by a rounding. */
__device__ inline float below(float x) { return lksi_exp_negative(x); }
__device__ inline double below(double x) { return exp(x); }

/* --- cross entropy --- */

/* Operands of the walk over rows. Forward: lse, logits, target, loss of each row, if it is wanted. Backward: dx,
 * logits, target, lse, dy. */
struct entropy {
    walk<5> rows;
    int64_t classes, x_step, y_step; /* from class to class */
    const void *weight;              /* or NULL */
    int weight_dtype, reduction, op, each;
    int64_t weight_step, ignore;
    const void *count;
    int count_dtype;
    double smoothing;
    lksi_fault fault;
};

template <class C> __device__ inline C weight_of(const entropy &e, int64_t j)
{
    return load<C>(e.weight, e.weight_dtype, j * e.weight_step);
}

/* The target of a row, or -1: ignored. */
__device__ inline int64_t target_of(const entropy &e, int64_t at, int64_t row, bool tells)
{
    const void *p = e.rows.data[2];
    int64_t t = e.rows.dtype[2] == LKS_I64 ? ((const int64_t *)p)[at] : ((const int32_t *)p)[at];
    if (t == e.ignore) return -1;
    if (t >= 0 && t < e.classes) return t;
    if (tells) fail(e.fault, LKSI_FAULT_TARGET, e.op, t, row, e.classes);
    return -1;
}

/* sum: of e^(x - max). part: sum of x, or of w x; weights: sum of w. Both for smoothing only. */
template <class C> struct sums {
    C max, sum;
    double part, weights;
};

template <class C> __device__ inline void join(sums<C> *a, C max, C sum, double part, double weights)
{
    C top = max > a->max ? max : a->max, from = top == LOWEST(C) ? C(0) : top;
    a->sum = a->sum * below(a->max - from) + sum * below(max - from);
    a->max = top;
    a->part += part;
    a->weights += weights;
}

/* K elements of class j, j + step, ... */
template <class C, int K> __device__ inline void take(const entropy &e, sums<C> *a, const C *x, int64_t j, int64_t step)
{
    C top = a->max;
#pragma unroll
    for (int k = 0; k < K; k++) top = x[k] > top ? x[k] : top;
    C from = top == LOWEST(C) ? C(0) : top;
    if (top > a->max) a->sum *= below(a->max - from);
    a->max = top;
#pragma unroll
    for (int k = 0; k < K; k++) a->sum += below(x[k] - from);
    if (e.smoothing == 0) return;
#pragma unroll
    for (int k = 0; k < K; k++) {
        double w = e.weight ? weight_of<double>(e, j + k * step) : 1.0;
        a->part += e.weight ? w * (double)x[k] : (double)x[k];
        a->weights += w;
    }
}

/* LANES threads to a row; all of them have the result. */
template <class T, class C, int LANES> __device__ sums<C> scan(const entropy &e, const T *x)
{
    const int lane = threadIdx.x % LANES;
    const int64_t n = e.classes, s = e.x_step;
    sums<C> a = {LOWEST(C), C(0), 0, 0};
    int64_t j = lane;
    if (LANES > 1 && s == 1) {
        enum { V = 16 / sizeof(T) };
        int64_t head = (int64_t)(-(uintptr_t)x / sizeof(T) % V);
        if (head > n) head = n;
        const int64_t packs = (n - head) / V;
        if (lane < head) {
            C v = get<C>::of(x[lane]);
            take<C, 1>(e, &a, &v, lane, 1);
        }
        for (int64_t i = lane; i < packs; i += LANES) {
            pack<T, V> p = ((const pack<T, V> *)(x + head))[i];
            C v[V];
#pragma unroll
            for (int k = 0; k < V; k++) v[k] = get<C>::of(p.v[k]);
            take<C, V>(e, &a, v, head + i * V, 1);
        }
        j += head + packs * V;
    }
    for (; j + 3 * LANES < n; j += 4 * LANES) {
        C v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = get<C>::of(x[(j + k * LANES) * s]);
        take<C, 4>(e, &a, v, j, LANES);
    }
    for (; j < n; j += LANES) {
        C v = get<C>::of(x[j * s]);
        take<C, 1>(e, &a, &v, j, 1);
    }
    if (LANES > 1)
        for (int half = 16; half > 0; half /= 2)
            join(&a, __shfl_xor_sync(0xffffffffu, a.max, half), __shfl_xor_sync(0xffffffffu, a.sum, half),
                 __shfl_xor_sync(0xffffffffu, a.part, half), __shfl_xor_sync(0xffffffffu, a.weights, half));
    if (LANES > 32) {
        __shared__ sums<C> warp[LKSI_THREADS / 32];
        __syncthreads();
        if (lane % 32 == 0) warp[lane / 32] = a;
        __syncthreads();
        a = warp[0];
        for (int k = 1; k < LANES / 32; k++) join(&a, warp[k].max, warp[k].sum, warp[k].part, warp[k].weights);
    }
    if (a.max == LOWEST(C)) a.sum = a.max - a.max; /* no probability of anything: NaN */
    return a;
}

/* Rows of a tile. */
template <int LANES> struct tile { enum { rows = LANES == 1 ? LKSI_THREADS : LANES == 32 ? 16 : 1 }; };

template <class T, class C, int LANES>
__global__ void __launch_bounds__(LKSI_THREADS) entropy_forward(const entropy e, double *part, int64_t tiles)
{
    enum { ROWS = tile<LANES>::rows, GROUPS = LKSI_THREADS / LANES };
    __shared__ double room[LKSI_THREADS / 32];
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        double loss_sum = 0, weight_sum = 0;
        for (int r = threadIdx.x / LANES; r < ROWS; r += GROUPS) {
            int64_t row = i * ROWS + r, at[5];
            if (row >= e.rows.n) break;
            e.rows.seek(row, at);
            bool first = threadIdx.x % LANES == 0;
            int64_t t = target_of(e, at[2], row, first);
            double loss = 0, lse = 0;
            if (t >= 0) {
                const T *x = (const T *)e.rows.data[1] + at[1];
                sums<C> s = scan<T, C, LANES>(e, x);
                if (first) {
                    double max = s.max, log_sum = log((double)s.sum), even = e.smoothing, wt = 1;
                    lse = max + log_sum;
                    loss = log_sum + (1 - even) * (max - (double)get<C>::of(x[t * e.x_step]));
                    if (e.weight) {
                        wt = weight_of<double>(e, t);
                        loss = (1 - even) * wt * (log_sum + (max - (double)get<C>::of(x[t * e.x_step])));
                        if (even > 0)
                            loss += even / (double)e.classes * (s.weights * log_sum + (s.weights * max - s.part));
                    } else if (even > 0) {
                        loss += even * (max - s.part / (double)e.classes);
                    }
                    weight_sum += wt;
                }
            }
            if (!first) continue;
            store(e.rows.data[0], e.rows.dtype[0], at[0], lse);
            if (e.each) store(e.rows.data[3], e.rows.dtype[3], at[3], loss);
            loss_sum += loss;
        }
        loss_sum = block_sum(loss_sum, room);
        weight_sum = block_sum(weight_sum, room);
        if (threadIdx.x == 0) part[2 * i] = loss_sum, part[2 * i + 1] = weight_sum;
    }
}

/* dx = g (share e^(x - from) - even w) - g hit [j = t] */
template <class C> struct slope { C from, share, even, g, hit; };

template <class C> __device__ inline C slope_at(const entropy &e, const slope<C> &s, C x, int64_t j, int64_t t)
{
    C flat = e.weight && s.even != 0 ? s.even * weight_of<C>(e, j) : s.even;
    C d = s.g * (below(x - s.from) * s.share - flat);
    return j == t ? d - s.g * s.hit : d;
}

template <class T, class C, int LANES> __global__ void __launch_bounds__(LKSI_THREADS) entropy_backward(const entropy e)
{
    enum { GROUPS = LKSI_THREADS / LANES, V = 16 / sizeof(T) };
    const int lane = threadIdx.x % LANES;
    const int64_t n = e.classes, step = (int64_t)gridDim.x * GROUPS;
    for (int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / LANES; row < e.rows.n; row += step) {
        int64_t at[5];
        e.rows.seek(row, at);
        int64_t t = target_of(e, at[2], row, lane == 0);
        const T *x = (const T *)e.rows.data[1] + at[1];
        T *y = (T *)e.rows.data[0] + at[0];
        slope<C> s = {0, 0, 0, 0, 0};
        if (t >= 0) {
            double g = load<double>(e.rows.data[4], e.rows.dtype[4], at[4]), total = 0;
            if (e.reduction == 1 || e.reduction == 4) {
                double count = load<double>(e.count, e.count_dtype, 0);
                g = count != 0 ? g / count : 0;
            }
            C lse = load<C>(e.rows.data[3], e.rows.dtype[3], at[3]);
            s.g = (C)g;
            s.even = (C)(e.smoothing / (double)n);
            s.hit = (C)(1 - e.smoothing);
            s.from = lse;
            s.share = 1;
            bool weighted = e.weight && e.smoothing > 0;
            if (e.weight) s.share = s.hit = s.hit * weight_of<C>(e, t);
            if (weighted || !(lse < 16 && lse > -16)) { /* a large logarithm is rounded too coarsely: sum again */
                sums<C> a = scan<T, C, LANES>(e, x);
                total = a.weights;
                s.from = a.max;
                if (weighted) s.share += s.even * (C)total;
                s.share /= a.sum;
            }
        }
        int64_t j = lane;
        if (LANES > 1 && e.x_step == 1 && e.y_step == 1 && ((uintptr_t)x & 15) == ((uintptr_t)y & 15)) {
            int64_t head = (int64_t)(-(uintptr_t)x / sizeof(T) % V);
            if (head > n) head = n;
            const int64_t packs = (n - head) / V;
            if (lane < head) y[lane] = put<T>::of(t < 0 ? C(0) : slope_at(e, s, get<C>::of(x[lane]), lane, t));
            for (int64_t i = lane; i < packs; i += LANES) {
                pack<T, V> p = {};
                if (t >= 0) {
                    p = ((const pack<T, V> *)(x + head))[i];
#pragma unroll
                    for (int k = 0; k < V; k++)
                        p.v[k] = put<T>::of(slope_at(e, s, get<C>::of(p.v[k]), head + i * V + k, t));
                }
                ((pack<T, V> *)(y + head))[i] = p;
            }
            j += head + packs * V;
        }
        for (; j < n; j += LANES)
            y[j * e.y_step] = put<T>::of(t < 0 ? C(0) : slope_at(e, s, get<C>::of(x[j * e.x_step]), j, t));
    }
}

/* Threads to a row. */
int lanes_of(const entropy &e) { return e.x_step != 1 || e.classes <= 16 ? 1 : e.classes <= 2048 ? 32 : LKSI_THREADS; }

template <class T, class C> void forward(cudaStream_t stream, const entropy &e, double *part, int64_t tiles)
{
    unsigned blocks = blocks_for(tiles, 1);
    switch (lanes_of(e)) {
    case 1: entropy_forward<T, C, 1><<<blocks, LKSI_THREADS, 0, stream>>>(e, part, tiles); break;
    case 32: entropy_forward<T, C, 32><<<blocks, LKSI_THREADS, 0, stream>>>(e, part, tiles); break;
    default: entropy_forward<T, C, LKSI_THREADS><<<blocks, LKSI_THREADS, 0, stream>>>(e, part, tiles);
    }
}

template <class T, class C> void backward(cudaStream_t stream, const entropy &e)
{
    int lanes = lanes_of(e);
    unsigned blocks = blocks_for(e.rows.n, LKSI_THREADS / lanes);
    switch (lanes) {
    case 1: entropy_backward<T, C, 1><<<blocks, LKSI_THREADS, 0, stream>>>(e); break;
    case 32: entropy_backward<T, C, 32><<<blocks, LKSI_THREADS, 0, stream>>>(e); break;
    default: entropy_backward<T, C, LKSI_THREADS><<<blocks, LKSI_THREADS, 0, stream>>>(e);
    }
}

entropy describe(lksi_cuda *cuda, const lksi_args *a, const lksi_view *x, const lksi_view *weight)
{
    entropy e = {};
    e.classes = x->shape[1];
    e.x_step = x->shape[1] == 1 ? 1 : x->stride[1];
    e.ignore = a->attr.loss.ignore_index;
    e.smoothing = a->attr.loss.smoothing;
    e.reduction = a->attr.loss.reduction;
    e.op = a->op;
    e.fault = lksi_cuda_fault(cuda);
    if (weight) e.weight = weight->data, e.weight_dtype = weight->dtype, e.weight_step = weight->stride[0];
    return e;
}
} // namespace

LKSI_CUDA(cross_entropy)
{
    const lksi_view *x = &a->in[0], *lse = &a->out[1];
    entropy e = describe(cuda, a, x, given(a, 2));
    lksi_view x_rows = without_classes(x);
    e.each = e.reduction == 0;
    const lksi_view *view[5] = {lse, &x_rows, &a->in[1], e.each ? &a->out[0] : lse, lse};
    e.rows = walk_of<5>(view, true);
    int lanes = lanes_of(e);
    int rows = lanes == 1 ? (int)tile<1>::rows : lanes == 32 ? (int)tile<32>::rows : (int)tile<LKSI_THREADS>::rows;
    int64_t tiles = (e.rows.n + rows - 1) / rows;
    void *part = NULL;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 0, tiles * 16 + 16, &part);
    if (status != LKS_OK) return status;
    if (tiles > 0) switch (x->dtype) {
        case LKS_F32: forward<float, float>(stream, e, (double *)part, tiles); break;
        case LKS_F16: forward<f16, float>(stream, e, (double *)part, tiles); break;
        case LKS_BF16: forward<bf16, float>(stream, e, (double *)part, tiles); break;
        default: forward<double, double>(stream, e, (double *)part, tiles);
        }
    result r = {e.each ? NULL : a->out[0].data, a->out[2].data, a->out[0].dtype, a->out[2].dtype, e.reduction, 0, 1};
    finish<<<1, LKSI_THREADS, 0, stream>>>(r, (const double *)part, tiles);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(cross_entropy_backward)
{
    const lksi_view *x = &a->in[1], *dx = &a->out[0];
    entropy e = describe(cuda, a, x, given(a, 5));
    lksi_view x_rows = without_classes(x), y_rows = without_classes(dx);
    const lksi_view *view[5] = {&y_rows, &x_rows, &a->in[2], &a->in[3], &a->in[0]};
    e.rows = walk_of<5>(view, true);
    e.y_step = dx->shape[1] == 1 ? 1 : dx->stride[1];
    e.count = a->in[4].data, e.count_dtype = a->in[4].dtype;
    if (e.rows.n == 0) return LKS_OK;
    switch (x->dtype) {
    case LKS_F32: backward<float, float>(stream, e); break;
    case LKS_F16: backward<f16, float>(stream, e); break;
    case LKS_BF16: backward<bf16, float>(stream, e); break;
    default: backward<double, double>(stream, e);
    }
    return lksi_cuda_launched(a);
}

/* --- pointwise --- */

namespace {
#define EACH 8                          /* elements that a thread takes at once */
#define POINT_TILE (LKSI_THREADS * EACH * 4) /* elements whose losses one block adds */

enum { OUT, IN_X, IN_T, IN_WEIGHT, IN_P, IN_DY, OPERANDS };

struct point {
    walk<OPERANDS> w;
    int has[OPERANDS], single[OPERANDS], order, flags; /* single: one element for all */
    double a, b, divisor;
    const void *dy; /* 0-dim: dy over divisor is the factor; else NULL */
    int dy_dtype;
};

template <class T, class C> __device__ inline void take_run(const T *p, C *v)
{
    enum { V = 16 / sizeof(T) };
#pragma unroll
    for (int k = 0; k < EACH; k += V) {
        pack<T, V> q = *(const pack<T, V> *)(p + k);
#pragma unroll
        for (int i = 0; i < V; i++) v[k + i] = get<C>::of(q.v[i]);
    }
}

template <class C> __device__ inline void load_run(const void *p, int dtype, int64_t i, C *v)
{
    switch (dtype) {
    case LKS_F32: take_run((const float *)p + i, v); break;
    case LKS_F64: take_run((const double *)p + i, v); break;
    case LKS_F16: take_run((const f16 *)p + i, v); break;
    case LKS_BF16: take_run((const bf16 *)p + i, v); break;
    default:
#pragma unroll
        for (int k = 0; k < EACH; k++) v[k] = load<C>(p, dtype, i + k);
    }
}

template <class T, class C> __device__ inline void put_run(T *p, const C *v)
{
    enum { V = 16 / sizeof(T) };
#pragma unroll
    for (int k = 0; k < EACH; k += V) {
        pack<T, V> q;
#pragma unroll
        for (int i = 0; i < V; i++) q.v[i] = put<T>::of(v[k + i]);
        *(pack<T, V> *)(p + k) = q;
    }
}

template <class C> __device__ inline void store_run(void *p, int dtype, int64_t i, const C *v)
{
    switch (dtype) {
    case LKS_F32: put_run((float *)p + i, v); break;
    case LKS_F64: put_run((double *)p + i, v); break;
    case LKS_F16: put_run((f16 *)p + i, v); break;
    default: put_run((bf16 *)p + i, v); break;
    }
}

template <int KIND> __device__ inline float formula(int order, float x, float t, float p, float a, float b, int flags)
{
    switch (KIND) {
#define X(name, flat) case LKSI_LOSS_##name: return lksi_##name##_f(order, x, t, p, a, b, flags);
        LKSI_LOSS_LIST(X)
#undef X
    }
    return 0;
}
template <int KIND>
__device__ inline double formula(int order, double x, double t, double p, double a, double b, int flags)
{
    switch (KIND) {
#define X(name, flat) case LKSI_LOSS_##name: return lksi_##name##_d(order, x, t, p, a, b, flags);
        LKSI_LOSS_LIST(X)
#undef X
    }
    return 0;
}

/* v[k] of operand k, 1 if it is absent. */
template <class C> __device__ inline C one_of(const point &s, int k, int64_t at)
{
    return s.has[k] ? load<C>(s.w.data[k], s.w.dtype[k], at) : C(1);
}

/* ADDS: tiles of losses are summed to part; else each one is stored. RUNS: operands are runs of aligned memory, or
 * single. */
template <int KIND, class C, bool ADDS, bool RUNS>
__global__ void __launch_bounds__(LKSI_THREADS) points(const point s, double *part)
{
    __shared__ double room[LKSI_THREADS / 32];
    const int64_t tiles = (s.w.n + POINT_TILE - 1) / POINT_TILE;
    const C a = (C)s.a, b = (C)s.b, scale = (C)((s.dy ? load<double>(s.dy, s.dy_dtype, 0) : 1.0) / s.divisor);
    C given[OPERANDS] = {0, 0, 0, 1, 1, 1};
    if (RUNS)
#pragma unroll
        for (int k = IN_X; k < OPERANDS; k++)
            if (s.has[k] && s.single[k]) given[k] = load<C>(s.w.data[k], s.w.dtype[k], 0);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        C sum = 0;
        if (RUNS) {
            for (int pass = 0; pass < 4; pass++) {
                int64_t i = tile * POINT_TILE + ((int64_t)pass * LKSI_THREADS + threadIdx.x) * EACH;
                if (i >= s.w.n) break;
                const bool whole = i + EACH <= s.w.n;
                C v[OPERANDS][EACH], y[EACH];
#pragma unroll
                for (int k = IN_X; k < OPERANDS; k++) {
                    if (!s.has[k] || s.single[k]) {
#pragma unroll
                        for (int q = 0; q < EACH; q++) v[k][q] = given[k];
                    } else if (whole) {
                        load_run(s.w.data[k], s.w.dtype[k], i, v[k]);
                    } else {
#pragma unroll
                        for (int q = 0; q < EACH; q++)
                            v[k][q] = load<C>(s.w.data[k], s.w.dtype[k], i + q < s.w.n ? i + q : i);
                    }
                }
#pragma unroll
                for (int q = 0; q < EACH; q++) {
                    y[q] = scale * formula<KIND>(ADDS ? LKSI_LOSS_VALUE : s.order, v[IN_X][q], v[IN_T][q],
                                                 v[IN_P][q], a, b, s.flags);
                    if (s.has[IN_WEIGHT]) y[q] *= v[IN_WEIGHT][q];
                    if (!ADDS && s.has[IN_DY]) y[q] *= v[IN_DY][q];
                    if (ADDS && (whole || i + q < s.w.n)) sum += y[q];
                }
                if (!ADDS && whole) store_run(s.w.data[OUT], s.w.dtype[OUT], i, y);
                if (!ADDS && !whole)
#pragma unroll
                    for (int q = 0; q < EACH; q++)
                        if (i + q < s.w.n) store(s.w.data[OUT], s.w.dtype[OUT], i + q, y[q]);
            }
        } else {
            for (int pass = 0; pass < 4 * EACH; pass++) {
                int64_t i = tile * POINT_TILE + (int64_t)pass * LKSI_THREADS + threadIdx.x, at[OPERANDS];
                if (i >= s.w.n) break;
                s.w.seek(i, at);
                C y = scale * formula<KIND>(ADDS ? LKSI_LOSS_VALUE : s.order, one_of<C>(s, IN_X, at[IN_X]),
                                            one_of<C>(s, IN_T, at[IN_T]), one_of<C>(s, IN_P, at[IN_P]), a, b, s.flags);
                if (s.has[IN_WEIGHT]) y *= one_of<C>(s, IN_WEIGHT, at[IN_WEIGHT]);
                if (!ADDS && s.has[IN_DY]) y *= one_of<C>(s, IN_DY, at[IN_DY]);
                if (ADDS) sum += y;
                else store(s.w.data[OUT], s.w.dtype[OUT], at[OUT], y);
            }
        }
        if (ADDS) {
            double all = block_sum((double)sum, room);
            if (threadIdx.x == 0) part[2 * tile] = all, part[2 * tile + 1] = 0;
        }
    }
}

/* in[first]: input. The walk follows `order_of`, a view of the shape of all. */
point prepare(const lksi_args *a, int first, const lksi_view *order_of, const lksi_view *dy, bool *dbl, bool *run)
{
    point s = {};
    const lksi_view *view[OPERANDS] = {order_of, order_of, order_of, order_of, order_of, order_of};
    *dbl = false;
    for (int k = 0; k < 4; k++) {
        const lksi_view *v = given(a, first + k);
        if (!v) continue;
        view[IN_X + k] = v;
        s.has[IN_X + k] = 1;
        *dbl = *dbl || v->dtype == LKS_F64;
    }
    if (dy) view[IN_DY] = dy, s.has[IN_DY] = 1;
    s.w = walk_of<OPERANDS>(view);
    *run = order_of->data == NULL || (runs(s.w, OUT) && aligned(s.w.data[OUT]));
    for (int k = IN_X; k < OPERANDS; k++) {
        if (!s.has[k]) continue;
        s.single[k] = constant(s.w, k);
        *run = *run && (s.single[k] || (runs(s.w, k) && aligned(s.w.data[k])));
    }
    s.order = a->attr.loss.order;
    s.flags = a->attr.loss.flags;
    s.a = a->attr.loss.a, s.b = a->attr.loss.b;
    s.divisor = 1;
    return s;
}

template <int KIND, class C, bool ADDS> void launch(cudaStream_t stream, const point &s, double *part, bool run)
{
    unsigned blocks = blocks_for(s.w.n, POINT_TILE);
    if constexpr (sizeof(C) == 4) /* double: neighbours by neighbouring threads will do */
        if (run) {
            points<KIND, C, ADDS, true><<<blocks, LKSI_THREADS, 0, stream>>>(s, part);
            return;
        }
    points<KIND, C, ADDS, false><<<blocks, LKSI_THREADS, 0, stream>>>(s, part);
}

template <int KIND> lks_status losses(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    const lksi_view *x = &a->in[0], *t = &a->in[1], *y = &a->out[0];
    bool dbl, run;
    if (a->attr.loss.reduction == 0) {
        point s = prepare(a, 0, y, NULL, &dbl, &run);
        if (s.w.n == 0) return LKS_OK;
        if (dbl) launch<KIND, double, false>(stream, s, NULL, run);
        else launch<KIND, float, false>(stream, s, NULL, run);
        return lksi_cuda_launched(a);
    }
    /* The shape of all, in the order of the input if that has it. */
    lksi_view space = {};
    space.dtype = LKS_F32;
    space.ndim = x->ndim > t->ndim ? x->ndim : t->ndim;
    bool whole = x->ndim == space.ndim;
    int64_t stride = 1;
    for (int d = space.ndim - 1; d >= 0; d--) {
        int dx = d - (space.ndim - x->ndim), dt = d - (space.ndim - t->ndim);
        int64_t nx = dx < 0 ? 1 : x->shape[dx], nt = dt < 0 ? 1 : t->shape[dt];
        space.shape[d] = nx == 1 ? nt : nx;
        space.stride[d] = stride;
        stride *= space.shape[d] > 0 ? space.shape[d] : 1;
        whole = whole && nx == space.shape[d];
    }
    for (int d = 0; whole && d < x->ndim; d++) space.stride[d] = x->stride[d];
    point s = prepare(a, 0, &space, NULL, &dbl, &run);
    int64_t tiles = (s.w.n + POINT_TILE - 1) / POINT_TILE;
    void *part = NULL;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 0, tiles * 16 + 16, &part);
    if (status != LKS_OK) return status;
    if (tiles > 0 && dbl) launch<KIND, double, true>(stream, s, (double *)part, run);
    else if (tiles > 0) launch<KIND, float, true>(stream, s, (double *)part, run);
    result r = {y->data, NULL, y->dtype, 0, a->attr.loss.reduction, 1, a->attr.loss.divisor};
    finish<<<1, LKSI_THREADS, 0, stream>>>(r, (const double *)part, tiles);
    return lksi_cuda_launched(a);
}

template <int KIND> void slopes(cudaStream_t stream, const point &s, bool dbl, bool run)
{
    if (dbl) launch<KIND, double, false>(stream, s, NULL, run);
    else launch<KIND, float, false>(stream, s, NULL, run);
}
} // namespace

#define X(name, flat)                                                                                          \
    LKSI_CUDA(name) { return losses<LKSI_LOSS_##name>(cuda, stream, a); }
LKSI_LOSS_LIST(X)
#undef X

LKSI_CUDA(loss_slope)
{
    (void)cuda;
    const lksi_view *dy = &a->in[0];
    bool dbl, run, one = dy->ndim == 0;
    point s = prepare(a, 1, &a->out[0], one ? NULL : dy, &dbl, &run);
    if (s.w.n == 0) return LKS_OK;
    s.divisor = a->attr.loss.divisor;
    if (one) s.dy = dy->data, s.dy_dtype = dy->dtype;
    switch (a->attr.loss.kind) {
#define X(name, flat) case LKSI_LOSS_##name: slopes<LKSI_LOSS_##name>(stream, s, dbl, run); break;
        LKSI_LOSS_LIST(X)
#undef X
    }
    return lksi_cuda_launched(a);
}
