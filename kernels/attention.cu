/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention.cu - attention and its gradient without a T x S matrix in memory: tiles of 32 queries by 32 keys, softmax
 * as the tiles go by (Milakov and Gimelshein, 2018), probabilities computed again from the log-sums for the gradient
 * (Dao et al., 2022); float16 and bfloat16 on tensor cores where rows can be moved 16 bytes at a time
 * (attention_mma.cuh). Sums are in float, double for f64, in an order that sizes alone decide; dropout draws the CPU's
 * numbers.
 */
#include "common.cuh"
#include "base/philox.h"

using namespace lksi;

#define SIDE 32 /* of a tile; 8 threads to each of its rows */
#define LOWEST(C) ((C)-INFINITY)

namespace {
/* Depth that is staged at once for products of rows, and columns of a result that one block makes. */
template <class C> struct sizes { enum { DEPTH = 256 / sizeof(C), COLUMNS = 512 / sizeof(C), PER = COLUMNS / 8 }; };

struct heads {
    lksi_view q, k, v, mask, y, lse, dy, dq, dk, dv; /* mask: as [B, H, T, S], or ndim -1 */
    int64_t batch, head, queries, keys, depth, value_depth;
    double scale, keep;
    int causal, drops;
    const lksi_rng *rng;
    int64_t offset, call;
    uint32_t limit; /* dropout keeps where the 24-bit number is not below */
};

__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }
__device__ inline float below(float x) { return lksi_exp_normal(x > 0 ? 0 : x); }
__device__ inline double below(double x) { return exp(x > 0 ? 0 : x); }

/* Keys that query t may see: a leading part of them. */
__device__ inline int64_t seen_keys(const heads &s, int64_t t)
{
    if (t >= s.queries) return 0;
    if (!s.causal) return s.keys;
    int64_t n = t + s.keys - s.queries + 1;
    return n < 0 ? 0 : n > s.keys ? s.keys : n;
}

template <class T> __device__ inline T *at(const lksi_view &v, int64_t b, int64_t h, int64_t t)
{
    return (T *)v.data + b * v.stride[0] + h * v.stride[1] + t * v.stride[2];
}

/* to [SIDE][wide], rows `ld` apart = rows x columns of `from`, 0 beyond. */
template <class T, class C>
__device__ inline void stage(C *to, int ld, int wide, const T *from, int64_t rs, int64_t cs, int64_t rows,
                             int64_t columns)
{
    enum { V = 16 / sizeof(T) };
    if (cs == 1 && ((uintptr_t)from & 15) == 0 && rs % V == 0 && columns >= wide) {
        const int packs = wide / V;
        for (int i = threadIdx.x; i < SIDE * packs; i += LKSI_THREADS) {
            int r = i / packs, c = (i - r * packs) * V;
            pack<T, V> p = {};
            if (r < rows) p = *(const pack<T, V> *)(from + r * rs + c);
#pragma unroll
            for (int k = 0; k < V; k++) to[r * ld + c + k] = r < rows ? get<C>::of(p.v[k]) : C(0);
        }
        return;
    }
    for (int i = threadIdx.x; i < SIDE * wide; i += LKSI_THREADS) {
        int r = i / wide, c = i - r * wide;
        to[r * ld + c] = r < rows && c < columns ? get<C>::of(from[r * rs + c * cs]) : C(0);
    }
}

/* dot[k]: row threadIdx / 8 of x times row 4 (threadIdx % 8) + k of z. room: 2 SIDE (DEPTH + 1). */
template <class T, class C>
__device__ inline void dots(C dot[4], C *room, const T *x, int64_t xr, int64_t xc, int64_t x_rows, const T *z,
                            int64_t zr, int64_t zc, int64_t z_rows, int64_t depth)
{
    enum { DEPTH = sizes<C>::DEPTH, LD = DEPTH + 1 };
    C *xs = room, *zs = room + SIDE * LD;
    const C *xt = xs + threadIdx.x / 8 * LD, *zt = zs + threadIdx.x % 8 * 4 * LD;
#pragma unroll
    for (int k = 0; k < 4; k++) dot[k] = 0;
    if (depth == 0) __syncthreads(); /* what was staged has been used */
    for (int64_t d = 0; d < depth; d += DEPTH) {
        int n = depth - d < DEPTH ? (int)(depth - d) : (int)DEPTH;
        __syncthreads();
        stage<T, C>(xs, LD, DEPTH, x + d * xc, xr, xc, x_rows, n);
        stage<T, C>(zs, LD, DEPTH, z + d * zc, zr, zc, z_rows, n);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < n; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) dot[k] = fused(xt[i], zt[k * LD + i], dot[k]);
    }
}

/* Scores of query t and keys j .. j + 3, scaled and masked; -infinity for a key that is not there. */
template <class C> __device__ inline void mask(const heads &s, C x[4], int64_t b, int64_t h, int64_t t, int64_t j)
{
    const int64_t seen = seen_keys(s, t);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x[k] *= (C)s.scale;
        if (j + k >= seen) {
            x[k] = LOWEST(C);
        } else if (s.mask.ndim >= 0) {
            int64_t i = b * s.mask.stride[0] + h * s.mask.stride[1] + t * s.mask.stride[2] + (j + k) * s.mask.stride[3];
            if (s.mask.dtype == LKS_BOOL) x[k] = ((const uint8_t *)s.mask.data)[i] ? x[k] : LOWEST(C);
            else x[k] += load<C>(s.mask.data, s.mask.dtype, i);
        }
    }
}

/* Factors of dropout of the same four. */
template <class C> __device__ inline void draw(const heads &s, C f[4], int64_t b, int64_t h, int64_t t, int64_t j)
{
    const lksi_philox stream = lksi_philox_stream(s.rng->seed, s.rng->attempt, s.call);
    const uint64_t first = (uint64_t)s.offset + (uint64_t)(((b * s.head + h) * s.queries + t) * s.keys + j);
    const int skip = (int)(first & 3);
    uint32_t w[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    lksi_philox_block(&stream, first >> 2, w);
    if (skip) lksi_philox_block(&stream, (first >> 2) + 1, w + 4);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t x = skip == 0 ? w[k] : skip == 1 ? w[k + 1] : skip == 2 ? w[k + 2] : w[k + 3];
        f[k] = (x >> 8) >= s.limit ? (C)s.keep : C(0);
    }
}

/* sum[i] += row `threadIdx / 8` of p (or its column, for `turned`) times columns threadIdx % 8 + 8 i of z. */
template <class C, bool turned> __device__ inline void times(C *sum, const C (*p)[SIDE + 1], const C *z)
{
    enum { COLUMNS = sizes<C>::COLUMNS, PER = sizes<C>::PER };
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    for (int j = 0; j < SIDE; j++) {
        C x = turned ? p[j][row] : p[row][j];
#pragma unroll
        for (int i = 0; i < PER; i++) sum[i] = fused(x, z[j * COLUMNS + column + 8 * i], sum[i]);
    }
}

template <class T, class C> __device__ inline void emit(T *y, int64_t step, const C *sum, C factor, int64_t columns)
{
#pragma unroll
    for (int i = 0; i < sizes<C>::PER; i++) {
        int64_t c = threadIdx.x % 8 + 8 * i;
        if (c < columns) y[c * step] = put<T>::of(sum[i] * factor);
    }
}

/* Where a block works: a tile of rows, and a chunk of the result's columns. */
struct place { int64_t b, h, row, column; };
__device__ inline place place_of(const heads &s, int64_t item, int64_t tiles, int64_t chunks, int columns)
{
    place p;
    int64_t rest = item / chunks, bh = rest / tiles;
    p.column = (item - rest * chunks) * columns;
    p.row = (rest - bh * tiles) * SIDE;
    p.b = bh / s.head;
    p.h = bh - p.b * s.head;
    return p;
}

/* Staged rows and columns take turns in one piece of memory. */
#define ROOM(C) (2 * SIDE * (sizes<C>::DEPTH + 1))

template <class T, class C>
__global__ void __launch_bounds__(LKSI_THREADS) attend(const heads s, int64_t items, int64_t tiles, int64_t chunks)
{
    enum { COLUMNS = sizes<C>::COLUMNS, PER = sizes<C>::PER };
    __shared__ C room[ROOM(C)], prob[SIDE][SIDE + 1];
    const int row = threadIdx.x / 8, four = threadIdx.x % 8 * 4;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_of(s, item, tiles, chunks, COLUMNS);
        const int64_t t = p.row + row, rows = s.queries - p.row < SIDE ? s.queries - p.row : SIDE;
        const int64_t most = seen_keys(s, p.row + rows - 1);
        const T *q = at<const T>(s.q, p.b, p.h, p.row);
        C sum[PER], top = LOWEST(C), total = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) sum[i] = 0;
        for (int64_t j = 0; j < most; j += SIDE) {
            const int64_t keys = s.keys - j < SIDE ? s.keys - j : SIDE;
            C x[4];
            dots<T, C>(x, room, q, s.q.stride[2], s.q.stride[3], rows, at<const T>(s.k, p.b, p.h, j), s.k.stride[2],
                       s.k.stride[3], keys, s.depth);
            mask(s, x, p.b, p.h, t, j + four);
            C high = top, part = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) high = x[k] > high ? x[k] : high;
            for (int half = 4; half > 0; half /= 2) {
                C other = __shfl_xor_sync(0xffffffffu, high, half);
                high = other > high ? other : high;
            }
            C from = high == LOWEST(C) ? C(0) : high, shrink = below(top - from);
            top = high;
#pragma unroll
            for (int k = 0; k < 4; k++) part += x[k] = below(x[k] - from);
            for (int half = 4; half > 0; half /= 2) part += __shfl_xor_sync(0xffffffffu, part, half);
            total = total * shrink + part;
            if (s.drops && t < s.queries) {
                C f[4];
                draw(s, f, p.b, p.h, t, j + four);
#pragma unroll
                for (int k = 0; k < 4; k++) x[k] *= f[k];
            }
#pragma unroll
            for (int k = 0; k < 4; k++) prob[row][four + k] = x[k];
#pragma unroll
            for (int i = 0; i < PER; i++) sum[i] *= shrink;
            __syncthreads();
            stage<T, C>(room, COLUMNS, COLUMNS, at<const T>(s.v, p.b, p.h, j) + p.column * s.v.stride[3], s.v.stride[2],
                        s.v.stride[3], keys, s.value_depth - p.column);
            __syncthreads();
            times<C, false>(sum, prob, room);
        }
        if (t >= s.queries) continue;
        /* A row that sees nothing is 0. */
        emit<T, C>(at<T>(s.y, p.b, p.h, t) + p.column * s.y.stride[3], s.y.stride[3], sum,
                   total == 0 ? C(0) : C(1) / total, s.value_depth - p.column);
        if (p.column == 0 && four == 0) *at<C>(s.lse, p.b, p.h, t) = (C)((double)top + log((double)total));
    }
}

/* delta: dy times y of each query; a warp to each. */
template <class T, class C> __global__ void __launch_bounds__(LKSI_THREADS) deltas(const heads s, int64_t n, C *delta)
{
    const int64_t step = (int64_t)gridDim.x * (LKSI_THREADS / 32);
    for (int64_t i = (int64_t)blockIdx.x * (LKSI_THREADS / 32) + threadIdx.x / 32; i < n; i += step) {
        int64_t bh = i / s.queries, t = i - bh * s.queries, b = bh / s.head, h = bh - b * s.head;
        const T *y = at<const T>(s.y, b, h, t), *dy = at<const T>(s.dy, b, h, t);
        C sum = 0;
        for (int64_t d = threadIdx.x % 32; d < s.value_depth; d += 32)
            sum = fused(get<C>::of(y[d * s.y.stride[3]]), get<C>::of(dy[d * s.dy.stride[3]]), sum);
        for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (threadIdx.x % 32 == 0) delta[i] = sum;
    }
}

/* Of the tile of queries from t0 and keys from j0: prob (after dropout) and grad, the gradient of the scores. */
template <class T, class C>
__device__ inline void tile_back(const heads &s, const place &p, int64_t t0, int64_t j0, const C *delta, C *room,
                                 C (*prob)[SIDE + 1], C (*grad)[SIDE + 1])
{
    const int row = threadIdx.x / 8, four = threadIdx.x % 8 * 4;
    const int64_t t = t0 + row, j = j0 + four, rows = s.queries - t0, keys = s.keys - j0;
    const int64_t seen = seen_keys(s, t);
    C x[4], g[4], f[4] = {1, 1, 1, 1};
    dots<T, C>(x, room, at<const T>(s.q, p.b, p.h, t0), s.q.stride[2], s.q.stride[3], rows,
               at<const T>(s.k, p.b, p.h, j0), s.k.stride[2], s.k.stride[3], keys, s.depth);
    dots<T, C>(g, room, at<const T>(s.dy, p.b, p.h, t0), s.dy.stride[2], s.dy.stride[3], rows,
               at<const T>(s.v, p.b, p.h, j0), s.v.stride[2], s.v.stride[3], keys, s.value_depth);
    mask(s, x, p.b, p.h, t, j);
    C lse = 0, d = 0;
    if (t < s.queries) {
        lse = *at<const C>(s.lse, p.b, p.h, t);
        d = delta[(p.b * s.head + p.h) * s.queries + t];
        if (s.drops) draw(s, f, p.b, p.h, t, j);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const bool shown = j + k < seen && lse != LOWEST(C);
        C y = shown ? below(x[k] - lse) : C(0);
        if (prob) prob[row][four + k] = y * f[k];
        grad[row][four + k] = shown ? y * (g[k] * f[k] - d) * (C)s.scale : C(0);
    }
}

template <class T, class C>
__global__ void __launch_bounds__(LKSI_THREADS)
    back_queries(const heads s, int64_t items, int64_t tiles, int64_t chunks, const C *delta)
{
    enum { COLUMNS = sizes<C>::COLUMNS, PER = sizes<C>::PER };
    __shared__ C room[ROOM(C)], grad[SIDE][SIDE + 1];
    const int row = threadIdx.x / 8;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_of(s, item, tiles, chunks, COLUMNS);
        const int64_t last = p.row + SIDE < s.queries ? p.row + SIDE - 1 : s.queries - 1, most = seen_keys(s, last);
        C sum[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) sum[i] = 0;
        for (int64_t j = 0; j < most; j += SIDE) {
            tile_back<T, C>(s, p, p.row, j, delta, room, NULL, grad);
            __syncthreads();
            stage<T, C>(room, COLUMNS, COLUMNS, at<const T>(s.k, p.b, p.h, j) + p.column * s.k.stride[3], s.k.stride[2],
                        s.k.stride[3], s.keys - j, s.depth - p.column);
            __syncthreads();
            times<C, false>(sum, grad, room);
        }
        if (p.row + row < s.queries)
            emit<T, C>(at<T>(s.dq, p.b, p.h, p.row + row) + p.column * s.dq.stride[3], s.dq.stride[3], sum, C(1),
                       s.depth - p.column);
    }
}

template <class T, class C>
__global__ void __launch_bounds__(LKSI_THREADS) back_keys(const heads s, int64_t items, int64_t tiles, int64_t chunks,
                                                          const C *delta)
{
    enum { COLUMNS = sizes<C>::COLUMNS, PER = sizes<C>::PER };
    __shared__ C room[ROOM(C)], prob[SIDE][SIDE + 1], grad[SIDE][SIDE + 1];
    const int row = threadIdx.x / 8;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_of(s, item, tiles, chunks, COLUMNS);
        C dk[PER], dv[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) dk[i] = dv[i] = 0;
        int64_t t = s.causal ? p.row - (s.keys - s.queries) : 0; /* the first query that sees a key of these */
        for (t = t < 0 ? 0 : t / SIDE * SIDE; t < s.queries; t += SIDE) {
            tile_back<T, C>(s, p, t, p.row, delta, room, prob, grad);
            __syncthreads();
            stage<T, C>(room, COLUMNS, COLUMNS, at<const T>(s.dy, p.b, p.h, t) + p.column * s.dy.stride[3],
                        s.dy.stride[2], s.dy.stride[3], s.queries - t, s.value_depth - p.column);
            __syncthreads();
            times<C, true>(dv, prob, room);
            __syncthreads();
            stage<T, C>(room, COLUMNS, COLUMNS, at<const T>(s.q, p.b, p.h, t) + p.column * s.q.stride[3], s.q.stride[2],
                        s.q.stride[3], s.queries - t, s.depth - p.column);
            __syncthreads();
            times<C, true>(dk, grad, room);
        }
        if (p.row + row >= s.keys) continue;
        emit<T, C>(at<T>(s.dk, p.b, p.h, p.row + row) + p.column * s.dk.stride[3], s.dk.stride[3], dk, C(1),
                   s.depth - p.column);
        emit<T, C>(at<T>(s.dv, p.b, p.h, p.row + row) + p.column * s.dv.stride[3], s.dv.stride[3], dv, C(1),
                   s.value_depth - p.column);
    }
}

/* Inputs q, k, v, mask begin at in[first]. */
heads prepare(const lksi_args *a, int first)
{
    heads s = {};
    s.q = a->in[first], s.k = a->in[first + 1], s.v = a->in[first + 2];
    s.mask.ndim = -1;
    s.batch = s.q.shape[0], s.head = s.q.shape[1], s.queries = s.q.shape[2], s.keys = s.k.shape[2];
    s.depth = s.q.shape[3], s.value_depth = s.v.shape[3];
    s.scale = a->attr.attention.scale;
    if (s.scale == 0) s.scale = 1 / sqrt((double)(s.depth > 0 ? s.depth : 1));
    s.causal = a->attr.attention.causal;
    if (a->nin > first + 3 && a->in[first + 3].ndim >= 0) {
        const lksi_view *m = &a->in[first + 3];
        s.mask = *m;
        s.mask.ndim = 4;
        for (int d = 0; d < 4; d++) {
            int from = d - (4 - m->ndim);
            s.mask.stride[d] = from < 0 || m->shape[from] == 1 ? 0 : m->stride[from];
        }
    }
    double p = a->attr.attention.p;
    if (p > 0) {
        s.drops = 1;
        s.keep = 1 / (1 - p);
        s.rng = a->rng;
        s.offset = a->attr.attention.offset, s.call = a->attr.attention.call;
        s.limit = (uint32_t)ceil(p * 0x1p24);
    }
    return s;
}

#include "attention_mma.cuh"

template <class C> int64_t chunks_of(int64_t columns)
{
    const int each = sizes<C>::COLUMNS;
    return columns <= each ? 1 : (columns + each - 1) / each;
}

template <class T, class C> lks_status forward(cudaStream_t stream, const lksi_args *a, const heads &s)
{
    int64_t tiles = (s.queries + SIDE - 1) / SIDE, chunks = chunks_of<C>(s.value_depth);
    int64_t items = s.batch * s.head * tiles * chunks;
    if (items == 0) return LKS_OK;
    attend<T, C><<<blocks_for(items, 1), LKSI_THREADS, 0, stream>>>(s, items, tiles, chunks);
    return lksi_cuda_launched(a);
}

template <class T, class C>
lks_status backward(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const heads &s)
{
    int64_t rows = s.batch * s.head * s.queries, deep = s.depth > s.value_depth ? s.depth : s.value_depth;
    void *delta = NULL;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 0, rows * (int64_t)sizeof(C) + 16, &delta);
    if (status != LKS_OK) return status;
    if (rows > 0) {
        int64_t tiles = (s.queries + SIDE - 1) / SIDE, chunks = chunks_of<C>(s.depth);
        int64_t n = s.batch * s.head * tiles * chunks;
        deltas<T, C><<<blocks_for(rows, LKSI_THREADS / 32), LKSI_THREADS, 0, stream>>>(s, rows, (C *)delta);
        back_queries<T, C><<<blocks_for(n, 1), LKSI_THREADS, 0, stream>>>(s, n, tiles, chunks, (const C *)delta);
    }
    int64_t tiles = (s.keys + SIDE - 1) / SIDE, chunks = chunks_of<C>(deep), n = s.batch * s.head * tiles * chunks;
    if (n > 0) back_keys<T, C><<<blocks_for(n, 1), LKSI_THREADS, 0, stream>>>(s, n, tiles, chunks, (const C *)delta);
    return lksi_cuda_launched(a);
}
} // namespace

LKSI_CUDA(attention)
{
    (void)cuda;
    heads s = prepare(a, 0);
    s.y = a->out[0], s.lse = a->out[1];
    switch (s.q.dtype) {
    case LKS_F32: return forward<float, float>(stream, a, s);
    case LKS_F16: if (mma_fits(s)) return mma_forward_any<f16>(stream, a, s); break;
    case LKS_BF16: if (mma_fits(s)) return mma_forward_any<bf16>(stream, a, s); break;
    default: break;
    }
    switch (s.q.dtype) {
    case LKS_F16: return forward<f16, float>(stream, a, s);
    case LKS_BF16: return forward<bf16, float>(stream, a, s);
    default: return forward<double, double>(stream, a, s);
    }
}

LKSI_CUDA(attention_backward)
{
    heads s = prepare(a, 1);
    s.dy = a->in[0], s.y = a->in[5], s.lse = a->in[6];
    s.dq = a->out[0], s.dk = a->out[1], s.dv = a->out[2];
    switch (s.q.dtype) {
    case LKS_F32: return backward<float, float>(cuda, stream, a, s);
    case LKS_F16: if (mma_fits_back(s)) return mma_backward_any<f16>(cuda, stream, a, s); break;
    case LKS_BF16: if (mma_fits_back(s)) return mma_backward_any<bf16>(cuda, stream, a, s); break;
    default: break;
    }
    switch (s.q.dtype) {
    case LKS_F16: return backward<f16, float>(cuda, stream, a, s);
    case LKS_BF16: return backward<bf16, float>(cuda, stream, a, s);
    default: return backward<double, double>(cuda, stream, a, s);
    }
}
