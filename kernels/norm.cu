/* SPDX-License-Identifier: BSD-3-Clause
 *
 * norm.cu - layer_norm, rms_norm, group_norm, batch_norm and their backward rows, with the formulas of cpu/norm_real.h.
 * Layer and RMS norm hold a row in registers and read it once; backward makes the gradients of weight and bias in the
 * same pass, by fixed blocks of rows that a second kernel adds up in order. Group and batch norm measure chunks of
 * channels (one read), join what was found in a fixed order, and apply it (one read and one write); a group that fits
 * into shared memory is read once.
 */
#include "rows.cuh"

using namespace lksi;

namespace {
/* A vector of parameters or statistics, or nothing. */
struct vector {
    void *data;
    int dtype;
    int64_t stride;
    __device__ double at(int64_t i) const { return load<double>(data, dtype, i * stride); }
    __device__ void set(int64_t i, double x) const { store(data, dtype, i * stride, x); }
};
vector vector_of(const lksi_view *v)
{
    vector r = {NULL, LKS_F32, 0};
    if (!v || v->ndim < 0) return r;
    r.data = v->data, r.dtype = v->dtype;
    r.stride = v->ndim ? v->stride[v->ndim - 1] : 0;
    return r;
}
const lksi_view *input(const lksi_args *a, int i)
{
    return i < a->nin && a->in[i].ndim >= 0 ? &a->in[i] : NULL;
}
}

__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }

/* Mean hi + lo and squared deviations: hi from the sum of x - first, the rest from sums of d = x - hi and of d d. */
template <class C> __device__ inline C mean_from(C first, C sum, int64_t n)
{
    return (C)((double)first + (double)sum / (double)n);
}
template <class C> __device__ inline double squares_from(C sum, C squares, double lo)
{
    double m = (double)squares - (double)sum * lo;
    return m < 0 ? 0 : m; /* rounding only; NaN stays */
}

/* --- layer norm, RMS norm --- */

struct layer {
    rows<7> r; /* y or dx; x; weight and bias, repeated over the rows; dy; what is added to dx; dx in another dtype */
    bool packed[2]; /* weight, bias: of x's dtype, and aligned */
    int half; /* > 0: packed rows, weight and bias are staged in shared memory, in planes of so many words (below) */
    int stage_bytes;
    vector mean, rstd;
    double eps;
    int64_t tiles, block, blocks; /* backward: rows of a block, blocks */
    void *part;                   /* [blocks, 2, n] of C, in planes */
};

/* A thread takes V elements at a time, in float32 V / 4 words of 16 bytes. In planes the q-th words of all threads lie
 * side by side, so that neighbours always read and write neighbours: where element i goes, planes of `half` words. */
template <int V> __device__ inline int64_t plane_of(int64_t i, int64_t half)
{
    return V <= 4 ? i : i % V / 4 * half + i / V * 4 + i % 4;
}
template <int V> __device__ inline int64_t from_plane(int64_t at, int64_t half)
{
    return V <= 4 ? at : at % half / 4 * V + at / half * 4 + at % 4;
}

/* Pack u of what lies in planes. */
template <class C, int V> __device__ inline void planes_get(C *x, const C *p, int64_t half, int64_t u)
{
    const int W = V < 4 ? V : 4;
#pragma unroll
    for (int q = 0; q < V / W; q++) {
        pack<C, W> w = *(const pack<C, W> *)(const void *)(p + q * half + u * W);
#pragma unroll
        for (int j = 0; j < W; j++) x[q * W + j] = w.v[j];
    }
}
template <class C, int V> __device__ inline void planes_put(const C *x, C *p, int64_t half, int64_t u)
{
    const int W = V < 4 ? V : 4;
#pragma unroll
    for (int q = 0; q < V / W; q++) {
        pack<C, W> w;
#pragma unroll
        for (int j = 0; j < W; j++) w.v[j] = x[q * W + j];
        *(pack<C, W> *)(void *)(p + q * half + u * W) = w;
    }
}

/* V elements of any dtype of float32 arithmetic; V 1: of any dtype at all. */
template <class C, int V> __device__ inline void any_get(C *x, const void *p, int dtype, int64_t i)
{
    if constexpr (V == 1) {
        *x = load<C>(p, dtype, i);
    } else if (dtype == LKS_F32) {
        planes_get<C, V>(x, (const C *)p + i, 4, 0);
    } else if (dtype == LKS_F16) {
        mover<C, f16, V>::get_(x, p, dtype, i);
    } else {
        mover<C, bf16, V>::get_(x, p, dtype, i);
    }
}
template <class C, int V> __device__ inline void any_put(const C *x, void *p, int dtype, int64_t i)
{
    if constexpr (V == 1) {
        store(p, dtype, i, *x);
    } else if (dtype == LKS_F32) {
        planes_put<C, V>(x, (C *)p + i, 4, 0);
    } else if (dtype == LKS_F16) {
        mover<C, f16, V>::put_(x, p, dtype, i);
    } else {
        mover<C, bf16, V>::put_(x, p, dtype, i);
    }
}

/* A block's copy of weight and bias as float32, whatever their dtype and stride: rows read them from there. */
extern __shared__ __align__(16) float staged_parameters[];
template <int V> __device__ inline void stage(const layer &l)
{
    if (V == 1 || !l.half) return;
    const walk<7> &in = l.r.inner;
    for (int which = 0; which < 2; which++) {
        float *to = staged_parameters + which * (V / 4) * l.half;
        if (!in.data[2 + which]) continue;
        for (int64_t i = threadIdx.x; i < in.n; i += LKSI_THREADS)
            to[plane_of<V>(i, l.half)] =
                load<float>(in.data[2 + which], in.dtype[2 + which], i * in.stride[2 + which][0]);
    }
    __syncthreads();
}

/* V entries of weight or bias: unit u of the row. */
template <class C, class T, int V> __device__ inline void parameter(C *x, const layer &l, int which, int64_t u)
{
    const walk<7> &in = l.r.inner;
    const void *p = in.data[2 + which];
    int dtype = in.dtype[2 + which];
    if constexpr (V == 1) {
        *x = load<C>(p, dtype, mover<C, T, V>::place(in, 2 + which, u));
    } else {
        if (l.half) {
            planes_get<C, V>(x, staged_parameters + which * (V / 4) * l.half, l.half, u);
        } else if (l.packed[which]) {
            mover<C, T, V>::get_(x, p, dtype, u * V);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) x[j] = load<C>(p, dtype, (u * V + j) * in.stride[2 + which][0]);
        }
    }
}

template <class C, class T, int V, int LANES, int K, bool RMS>
__global__ void __launch_bounds__(LKSI_THREADS) layer_rows(layer l)
{
    typedef crew<LANES, 1> team;
    typedef mover<C, T, V> move;
    __shared__ C room[team::ROOM];
    const walk<7> &in = l.r.inner;
    const int64_t n = in.n, lane = team::lane();
    const int dtype0 = in.dtype[0], dtype1 = in.dtype[1];
    const bool w = in.data[2] != NULL, b = in.data[3] != NULL;
    stage<V>(l);
    for (int64_t tile = blockIdx.x; tile < l.tiles; tile += gridDim.x) {
        int64_t row = tile * team::ROWS + team::row(), base[7] = {0, 0, 0, 0, 0, 0, 0};
        bool inside = row < l.r.outer.n;
        int64_t count = inside ? n / V : 0;
        if (inside) l.r.outer.seek(row, base);
        C x[K ? K : 1][V], hi = C(0), lo = C(0), rstd = C(0), sum = C(0), squares = C(0);
        if (!RMS) {
            C first = count ? load<C>(in.data[1], dtype1, base[1]) : C(0);
            sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
#pragma unroll
                for (int j = 0; j < V; j++) sum += x[k][j] - first;
            });
            sum = team::fold(sum, room, join_sum());
            if (n > 0) hi = mean_from(first, sum, n);
            sum = C(0);
        }
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            if (RMS || K == 0) {
                move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
            }
#pragma unroll
            for (int j = 0; j < V; j++) {
                C d = x[k][j] - hi;
                sum += d;
                squares = fused(d, d, squares);
            }
        });
        squares = team::fold(squares, room, join_sum());
        if (RMS) {
            /* Squares that overflow or vanish are taken of x / max |x|. */
            double m = (double)squares / (double)n, low = sizeof(C) == 4 ? 1e-30 : 1e-290;
            rstd = (C)(1 / sqrt(m + l.eps));
            bool odd = n > 0 && inside && !(m > low && m < 1 / low);
            if (LANES > 32 ? __syncthreads_or(odd) : __any_sync(0xffffffffu, odd)) {
                double big = 0, s = 0;
                bool nan = false;
                sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                    if (K == 0) {
                        move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
                    }
#pragma unroll
                    for (int j = 0; j < V; j++) {
                        double v = fabs((double)x[k][j]);
                        if (v > big) big = v;
                        nan = nan || v != v;
                    }
                });
                __shared__ double wide[team::ROOM];
                big = team::fold(nan ? (double)INFINITY : big, wide, join_max());
                sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                    if (K == 0) {
                        move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
                    }
#pragma unroll
                    for (int j = 0; j < V; j++) s += (double)x[k][j] / big * ((double)x[k][j] / big);
                });
                s = team::fold(s, wide, join_sum());
                if (big > 0 && big < (double)INFINITY)
                    rstd = (C)(1 / big / sqrt(s / (double)n + l.eps / big / big));
            }
        } else if (n > 0) {
            sum = team::fold(sum, room, join_sum());
            double rest = (double)sum / (double)n;
            lo = (C)rest;
            rstd = (C)(1 / sqrt(squares_from(sum, squares, (double)lo) / (double)n + l.eps));
        }
        if (n == 0) rstd = C(0);
        C shift = -lo * rstd;
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            C y[V], wv[V], bv[V];
            if (K == 0) move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
            if (w) parameter<C, T, V>(wv, l, 0, u);
            if (b) parameter<C, T, V>(bv, l, 1, u);
#pragma unroll
            for (int j = 0; j < V; j++) {
                y[j] = RMS ? x[k][j] * rstd : fused(x[k][j] - hi, rstd, shift);
                if (w && b) y[j] = fused(y[j], wv[j], bv[j]);
                else if (w) y[j] *= wv[j];
                else if (b) y[j] += bv[j];
            }
            any_put<C, V>(y, in.data[0], dtype0, base[0] + move::place(in, 0, u));
        });
        if (inside && lane == 0) {
            if (!RMS) l.mean.set(row, (double)hi + (double)lo);
            l.rstd.set(row, (double)rstd);
        }
    }
}

/* A team takes a block of rows; its share of dweight and dbias stays in registers (K > 0) or in memory. */
template <class C, class T, int V, int LANES, int K, bool RMS>
__global__ void __launch_bounds__(LKSI_THREADS) layer_back(layer l)
{
    typedef crew<LANES, 1> team;
    typedef mover<C, T, V> move;
    __shared__ C room[team::ROOM];
    const walk<7> &in = l.r.inner;
    const int64_t n = in.n, lane = team::lane(), count = n / V;
    const int dtype0 = in.dtype[0], dtype1 = in.dtype[1], dtype4 = in.dtype[4];
    const bool w = in.data[2] != NULL, there = in.data[5] != NULL, low = in.data[6] != NULL;
    const int64_t half = n / V * 4; /* of part */
    stage<V>(l);
    for (int64_t tile = blockIdx.x; tile < l.tiles; tile += gridDim.x) {
        int64_t block = tile * team::ROWS + team::row();
        if (block >= l.blocks) continue; /* a whole warp: no other has less than a block of threads */
        int64_t last = (block + 1) * l.block < l.r.outer.n ? (block + 1) * l.block : l.r.outer.n;
        C *pw = (C *)l.part + block * 2 * n, *pb = pw + n;
        C x[K ? K : 1][V], g[K ? K : 1][V], aw[K ? K : 1][V], ab[K ? K : 1][V];
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
#pragma unroll
            for (int j = 0; j < V; j++) aw[k][j] = ab[k][j] = C(0);
            if (K == 0) {
                planes_put<C, V>(aw[k], pw, half, u);
                planes_put<C, V>(ab[k], pb, half, u);
            }
        });
        for (int64_t row = block * l.block; row < last; row++) {
            int64_t base[7];
            l.r.outer.seek(row, base);
            C hi = RMS ? C(0) : (C)l.mean.at(row), rstd = (C)l.rstd.at(row), sd = C(0), sg = C(0), sgd = C(0);
            sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                C wv[V];
                move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
                any_get<C, V>(g[k], in.data[4], dtype4, base[4] + move::place(in, 4, u));
                if (w) parameter<C, T, V>(wv, l, 0, u);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    C d = x[k][j] - hi, e = w ? g[k][j] * wv[j] : g[k][j];
                    sd += d;
                    sg += e;
                    sgd = fused(e, d, sgd);
                }
            });
            sgd = team::fold(sgd, room, join_sum());
            double lo = 0, c1 = 0;
            if (!RMS) {
                sd = team::fold(sd, room, join_sum());
                sg = team::fold(sg, room, join_sum());
                lo = (double)sd / (double)n; /* what the stored mean misses */
                c1 = (double)sg / (double)n;
            }
            C shift = (C)(-lo * (double)rstd), less = (C)c1;
            C slope = (C)(((double)sgd - (RMS ? 0 : lo * (double)sg)) * (double)rstd / (double)n);
            sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                C wv[V], dx[V];
                if (K == 0) {
                    move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
                    any_get<C, V>(g[k], in.data[4], dtype4, base[4] + move::place(in, 4, u));
                    planes_get<C, V>(aw[k], pw, half, u);
                    planes_get<C, V>(ab[k], pb, half, u);
                }
                if (w) parameter<C, T, V>(wv, l, 0, u);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    C xhat = RMS ? x[k][j] * rstd : fused(x[k][j] - hi, rstd, shift), e = w ? g[k][j] * wv[j] : g[k][j];
                    dx[j] = fused(xhat, -slope, RMS ? e : e - less) * rstd;
                    aw[k][j] = fused(g[k][j], xhat, aw[k][j]);
                    if (!RMS) ab[k][j] += g[k][j];
                }
                if (K == 0) {
                    planes_put<C, V>(aw[k], pw, half, u);
                    planes_put<C, V>(ab[k], pb, half, u);
                }
                if (there) {
                    C t[V];
                    move::get_(t, in.data[5], dtype0, base[5] + move::place(in, 5, u));
#pragma unroll
                    for (int j = 0; j < V; j++) dx[j] += t[j];
                }
                move::put_(dx, in.data[0], dtype0, base[0] + move::place(in, 0, u));
                if (low) any_put<C, V>(dx, in.data[6], in.dtype[6], base[6] + move::place(in, 6, u));
            });
        }
        if (K > 0)
            sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
                planes_put<C, V>(aw[k], pw, half, u);
                planes_put<C, V>(ab[k], pb, half, u);
            });
    }
}

/* Blocks added in order, for dweight (blockIdx.y 0) or dbias. */
#define JOIN_COLUMNS 32
#define JOIN_LINES (LKSI_THREADS / JOIN_COLUMNS)
template <class C, int V>
__global__ void __launch_bounds__(LKSI_THREADS)
    layer_join(walk<1> dw, walk<1> db, const C *part, int64_t n, int64_t blocks)
{
    __shared__ double room[LKSI_THREADS];
    const walk<1> &to = blockIdx.y ? db : dw;
    if (!to.data[0]) return;
    for (int64_t first = (int64_t)blockIdx.x * JOIN_COLUMNS; first < n; first += (int64_t)gridDim.x * JOIN_COLUMNS) {
        int64_t i = first + threadIdx.x % JOIN_COLUMNS, at[1];
        double sum = 0;
        if (i < n)
            for (int64_t k = threadIdx.x / JOIN_COLUMNS; k < blocks; k += JOIN_LINES)
                sum += (double)part[(k * 2 + blockIdx.y) * n + i];
        sum = crew<JOIN_LINES, JOIN_COLUMNS>::fold(sum, room, join_sum());
        if (i < n && threadIdx.x < JOIN_COLUMNS) {
            to.seek(from_plane<V>(i, n / V * 4), at);
            store(to.data[0], to.dtype[0], at[0], (C)sum);
        }
    }
}

#define STAGE_MOST 40960 /* bytes of shared memory for weight and bias */

/* v, which has the last dims of x, repeated over the others. */
static const lksi_view *repeated(lksi_view *r, const lksi_view *x, const lksi_view *v)
{
    if (!v || v->ndim < 0) return NULL;
    *r = *x;
    r->data = v->data, r->dtype = v->dtype;
    for (int d = 0; d < x->ndim; d++) {
        int own = d - (x->ndim - v->ndim);
        r->stride[d] = own < 0 ? 0 : v->stride[own];
    }
    return r;
}

static layer layer_of(const lksi_args *a, const lksi_view *x, const lksi_view *weight, const lksi_view *bias,
                      const lksi_view *dy, const lksi_view *there, const lksi_view *low, bool *pack)
{
    lksi_view w, b;
    const lksi_view *view[7] = {&a->out[0], x, repeated(&w, x, weight), repeated(&b, x, bias), dy, there, low};
    int k = a->attr.norm.ndims, v = 16 / size_of(x->dtype), staged = 0;
    layer l = {};
    l.r = rows_of<7>(view, (~0u << (x->ndim - k)) & ((1u << x->ndim) - 1));
    rows<7> moved = l.r;
    *pack = l.r.inner.ndim == 1 && (!dy || a->out[0].dtype == x->dtype);
    for (int i = 0; i < 7; i++) {
        if ((i < 2 || i > 3) && view[i] && view[i]->dtype == LKS_F64) *pack = false;
        moved.inner.dtype[i] = x->dtype; /* packs of any dtype: any_get, any_put */
    }
    for (int i = 0; i < 2; i++) {
        moved.outer.data[2 + i] = NULL;
        if (!view[2 + i]) continue;
        l.packed[i] = l.r.inner.dtype[2 + i] == x->dtype && aligned(l.r.inner.data[2 + i]) &&
                      l.r.inner.stride[2 + i][0] == 1;
        staged |= 1 << i;
    }
    *pack = *pack && packs(moved, v);
    if (*pack && staged) {
        /* Planes 16 words apart modulo the banks, so that the copy has no conflicts. */
        int64_t half = v <= 4 ? l.r.inner.n : (l.r.inner.n / 2 + 15) / 32 * 32 + 16;
        if (half * (v / 4) * (staged >> 1 ? 2 : 1) * 4 <= STAGE_MOST) l.half = (int)half;
    }
    l.stage_bytes = l.half * (v / 4) * (staged >> 1 ? 2 : 1) * 4;
    l.eps = a->attr.norm.eps;
    return l;
}

template <class C, class T, int V, int LANES, int K, bool RMS> static void layer_go(cudaStream_t stream, layer l)
{
    const int each = LKSI_THREADS / LANES;
    l.tiles = (l.r.outer.n + each - 1) / each;
    /* A block that stages parameters has two rows at least, and more where there are many. */
    int64_t blocks = l.half && LANES > 32 ? (l.tiles + 1) / 2 : l.tiles;
    if (l.half && blocks > 2112) blocks = 2112;
    layer_rows<C, T, V, LANES, K, RMS><<<blocks_for(blocks, 1), LKSI_THREADS, l.stage_bytes, stream>>>(l);
}
template <class T, bool RMS> static void layer_packed(cudaStream_t stream, const layer &l)
{
    const int v = 16 / (int)sizeof(T);
    const int64_t n = l.r.inner.n;
    if (n <= 32 * 32) layer_go<float, T, v, 32, 32 / v, RMS>(stream, l);
    else if (n <= LKSI_THREADS * 32) layer_go<float, T, v, LKSI_THREADS, 32 / v, RMS>(stream, l);
    else layer_go<float, T, v, LKSI_THREADS, 0, RMS>(stream, l);
}
template <class C, bool RMS> static void layer_unpacked(cudaStream_t stream, const layer &l)
{
    if (l.r.inner.n <= 2048) layer_go<C, untyped, 1, 32, 0, RMS>(stream, l);
    else layer_go<C, untyped, 1, LKSI_THREADS, 0, RMS>(stream, l);
}

template <bool RMS> static lks_status layer_forward(cudaStream_t stream, const lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    bool pack;
    layer l = layer_of(a, x, input(a, 1), RMS ? NULL : input(a, 2), NULL, NULL, NULL, &pack);
    if (!RMS) l.mean = vector_of(&a->out[1]);
    l.rstd = vector_of(&a->out[RMS ? 1 : 2]);
    if (l.r.outer.n == 0) return LKS_OK;
    if (x->dtype == LKS_F64) layer_unpacked<double, RMS>(stream, l);
    else if (!pack) layer_unpacked<float, RMS>(stream, l);
    else if (x->dtype == LKS_F32) layer_packed<float, RMS>(stream, l);
    else if (x->dtype == LKS_F16) layer_packed<f16, RMS>(stream, l);
    else layer_packed<bf16, RMS>(stream, l);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(layer_norm) { (void)cuda; return layer_forward<false>(stream, a); }
LKSI_CUDA(rms_norm) { (void)cuda; return layer_forward<true>(stream, a); }

template <class C, class T, int V, int LANES, int K, bool RMS> static void back_go(cudaStream_t stream, layer l)
{
    const int each = LKSI_THREADS / LANES;
    l.tiles = (l.blocks + each - 1) / each;
    if (l.blocks)
        layer_back<C, T, V, LANES, K, RMS><<<blocks_for(l.tiles, 1), LKSI_THREADS, l.stage_bytes, stream>>>(l);
}

/* Blocks of rows: by shapes alone. One that a warp takes is short of threads, so there are more of them. */
static lks_status back_blocks(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, layer *l, bool warps, int size)
{
    int64_t least = warps ? 32 : 16, most = warps ? 4096 : 528;
    l->block = (l->r.outer.n + most - 1) / most;
    if (l->block < least) l->block = least;
    l->blocks = (l->r.outer.n + l->block - 1) / l->block;
    return lksi_cuda_scratch(cuda, stream, a, 0, (l->blocks * 2 * l->r.inner.n + 1) * size, &l->part);
}

template <class C, int V, bool RMS> static lks_status back_join(cudaStream_t stream, const lksi_args *a, const layer &l)
{
    const lksi_view *dw = l.r.inner.data[2] ? &a->out[1] : NULL, *db = RMS ? NULL : &a->out[2];
    walk<1> to[2] = {};
    if (dw) to[0] = walk_of<1>(&dw, true);
    if (db) to[1] = walk_of<1>(&db, true);
    if (dw || db)
        layer_join<C, V><<<dim3(blocks_for(l.r.inner.n, JOIN_COLUMNS), 2), LKSI_THREADS, 0, stream>>>(
            to[0], to[1], (const C *)l.part, l.r.inner.n, l.blocks);
    return lksi_cuda_launched(a);
}

template <class T, bool RMS>
static lks_status back_packed(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, layer l)
{
    const int v = 16 / (int)sizeof(T);
    const int64_t n = l.r.inner.n;
    lks_status s = back_blocks(cuda, stream, a, &l, n <= 32 * 8, 4);
    if (s != LKS_OK) return s;
    if (n <= 32 * 8) back_go<float, T, v, 32, 8 / v, RMS>(stream, l);
    else if (n <= LKSI_THREADS * 8) back_go<float, T, v, LKSI_THREADS, 8 / v, RMS>(stream, l);
    else if (n <= LKSI_THREADS * 32) back_go<float, T, v, LKSI_THREADS, 32 / v, RMS>(stream, l);
    else back_go<float, T, v, LKSI_THREADS, 0, RMS>(stream, l);
    return back_join<float, v, RMS>(stream, a, l);
}
template <class C, bool RMS>
static lks_status back_unpacked(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, layer l)
{
    bool warps = l.r.inner.n <= 32 * 8;
    lks_status s = back_blocks(cuda, stream, a, &l, warps, (int)sizeof(C));
    if (s != LKS_OK) return s;
    if (warps) back_go<C, untyped, 1, 32, 0, RMS>(stream, l);
    else back_go<C, untyped, 1, LKSI_THREADS, 0, RMS>(stream, l);
    return back_join<C, 1, RMS>(stream, a, l);
}

template <bool RMS> static lks_status layer_backward(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    const lksi_view *x = &a->in[1];
    bool pack;
    layer l = layer_of(a, x, input(a, 2), NULL, &a->in[0], input(a, RMS ? 4 : 5),
                       a->attr.norm.low ? &a->out[RMS ? 2 : 3] : NULL, &pack);
    if (!RMS) l.mean = vector_of(&a->in[3]);
    l.rstd = vector_of(&a->in[RMS ? 3 : 4]);
    if (l.r.inner.n == 0) return LKS_OK;
    if (x->dtype == LKS_F64) return back_unpacked<double, RMS>(cuda, stream, a, l);
    if (!pack) return back_unpacked<float, RMS>(cuda, stream, a, l);
    if (x->dtype == LKS_F32) return back_packed<float, RMS>(cuda, stream, a, l);
    if (x->dtype == LKS_F16) return back_packed<f16, RMS>(cuda, stream, a, l);
    return back_packed<bf16, RMS>(cuda, stream, a, l);
}

LKSI_CUDA(layer_norm_backward) { return layer_backward<false>(cuda, stream, a); }
LKSI_CUDA(rms_norm_backward) { return layer_backward<true>(cuda, stream, a); }

/* --- batch norm, group norm: rows are channels, or channels of images --- */

/* Elements of a row in chunks of `chunk` packs. */
struct planes {
    rows<3> r; /* y or dx, x, dy */
    int64_t units, chunk, chunks, tiles;
    int v;        /* elements of a pack */
    vector mean;  /* sums: of row / each */
    int64_t each;
    double *part; /* stats: [chunks, 2, rows] of mean, squares; sums: [chunks, 3, rows] of d, dy, dy d */
};

template <class C, class T, int V, int LANES, int COLS>
__global__ void __launch_bounds__(LKSI_THREADS) plane_stats(planes p)
{
    typedef crew<LANES, COLS> team;
    typedef mover<C, T, V> move;
    const int K = move::HELD; /* 0: chunks are read twice */
    __shared__ C room[team::ROOM];
    const walk<3> &in = p.r.inner;
    const int64_t n = p.r.outer.n, lane = team::lane();
    const int dtype = in.dtype[1];
    for (int64_t item = blockIdx.x; item < p.tiles * p.chunks; item += gridDim.x) {
        int64_t tile = item / p.chunks, c = item - tile * p.chunks, row = tile * team::ROWS + team::row();
        int64_t base[3] = {0, 0, 0}, begin = c * p.chunk;
        int64_t length = p.units - begin < p.chunk ? p.units - begin : p.chunk, count = row < n ? length : 0;
        C x[K ? K : 1][V], first = C(0), sum = C(0), squares = C(0);
        if (count) {
            p.r.outer.seek(row, base);
            first = load<C>(in.data[1], dtype, base[1] + move::place(in, 1, begin));
        }
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            move::get_(x[k], in.data[1], dtype, base[1] + move::place(in, 1, begin + u));
#pragma unroll
            for (int j = 0; j < V; j++) sum += x[k][j] - first;
        });
        sum = team::fold(sum, room, join_sum());
        C hi = mean_from(first, sum, length * V);
        sum = C(0);
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            if (K == 0) move::get_(x[k], in.data[1], dtype, base[1] + move::place(in, 1, begin + u));
#pragma unroll
            for (int j = 0; j < V; j++) {
                C d = x[k][j] - hi;
                sum += d;
                squares = fused(d, d, squares);
            }
        });
        sum = team::fold(sum, room, join_sum());
        squares = team::fold(squares, room, join_sum());
        if (count && lane == 0) {
            double lo = (double)sum / (double)(length * V);
            p.part[c * 2 * n + row] = (double)hi + lo;
            p.part[(c * 2 + 1) * n + row] = squares_from(sum, squares, lo);
        }
    }
}

/* What backward sums of a row: d = x - hi, dy and dy d. */
template <class C> struct back_sums {
    C d = C(0), dy = C(0), dyd = C(0);
    template <int V> __device__ void add(const C (&x)[V], const C (&g)[V], C hi)
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            C e = x[j] - hi;
            d += e;
            dy += g[j];
            dyd = fused(g[j], e, dyd);
        }
    }
    template <class TEAM> __device__ void fold(C *room)
    {
        d = TEAM::fold(d, room, join_sum());
        dy = TEAM::fold(dy, room, join_sum());
        dyd = TEAM::fold(dyd, room, join_sum());
    }
    /* To [3, step]. */
    __device__ void put_(double *to, int64_t step) const
    {
        to[0] = (double)d, to[step] = (double)dy, to[2 * step] = (double)dyd;
    }
};

template <class C, class T, int V, int LANES, int COLS>
__global__ void __launch_bounds__(LKSI_THREADS) plane_sums(planes p)
{
    typedef crew<LANES, COLS> team;
    typedef mover<C, T, V> move;
    __shared__ C room[team::ROOM];
    const walk<3> &in = p.r.inner;
    const int64_t n = p.r.outer.n, lane = team::lane();
    const int dtype1 = in.dtype[1], dtype2 = in.dtype[2];
    for (int64_t item = blockIdx.x; item < p.tiles * p.chunks; item += gridDim.x) {
        int64_t tile = item / p.chunks, c = item - tile * p.chunks, row = tile * team::ROWS + team::row();
        int64_t base[3] = {0, 0, 0}, begin = c * p.chunk;
        int64_t length = p.units - begin < p.chunk ? p.units - begin : p.chunk, count = row < n ? length : 0;
        C hi = C(0);
        back_sums<C> sums;
        if (count) {
            p.r.outer.seek(row, base);
            hi = (C)p.mean.at(row / p.each);
        }
#pragma unroll(V > 1 ? 4 : 1)
        for (int64_t u = lane; u < count; u += LANES) {
            C x[V], g[V];
            move::get_(x, in.data[1], dtype1, base[1] + move::place(in, 1, begin + u));
            move::get_(g, in.data[2], dtype2, base[2] + move::place(in, 2, begin + u));
            sums.add(x, g, hi);
        }
        sums.template fold<team>(room);
        if (count && lane == 0) sums.put_(p.part + c * 3 * n + row, n);
    }
}

/* What is made of a row: four coefficients of C each, [4, rows]. */
enum { FORWARD, BATCH_BACK, FIXED_BACK, GROUP_BACK };

template <class C, class T, int V, int LANES, int COLS>
__global__ void __launch_bounds__(LKSI_THREADS) plane_apply(planes p, const C *coefficients, int what)
{
    typedef crew<LANES, COLS> team;
    typedef mover<C, T, V> move;
    const walk<3> &in = p.r.inner;
    const int64_t n = p.r.outer.n, lane = team::lane();
    const int dtype0 = in.dtype[0], dtype1 = in.dtype[1], dtype2 = in.dtype[2];
    for (int64_t item = blockIdx.x; item < p.tiles * p.chunks; item += gridDim.x) {
        int64_t tile = item / p.chunks, c = item - tile * p.chunks, row = tile * team::ROWS + team::row();
        int64_t base[3] = {0, 0, 0}, begin = c * p.chunk;
        int64_t length = p.units - begin < p.chunk ? p.units - begin : p.chunk;
        if (row >= n) continue; /* no barrier below */
        p.r.outer.seek(row, base);
        C hi = coefficients[row], c1 = coefficients[n + row], c2 = coefficients[2 * n + row];
        C scale = coefficients[3 * n + row];
#pragma unroll(V > 1 ? 4 : 1)
        for (int64_t u = lane; u < length; u += LANES) {
            C x[V], g[V], y[V];
            if (what != FIXED_BACK) move::get_(x, in.data[1], dtype1, base[1] + move::place(in, 1, begin + u));
            if (what != FORWARD) move::get_(g, in.data[2], dtype2, base[2] + move::place(in, 2, begin + u));
#pragma unroll
            for (int j = 0; j < V; j++) {
                switch (what) {
                case FORWARD: y[j] = fused(x[j] - hi, scale, c1); break;
                case BATCH_BACK: y[j] = fused(x[j] - hi, -c2, g[j] - c1) * scale; break;
                case FIXED_BACK: y[j] = g[j] * scale; break;
                default: y[j] = fused(g[j], scale, fused(x[j] - hi, -c2, -c1)); break;
                }
            }
            move::put_(y, in.data[0], dtype0, base[0] + move::place(in, 0, begin + u));
        }
    }
}

/* Chan, Golub & LeVeque (1983). */
struct moments { double n, mean, m2; };
__device__ inline void moments_join(moments *a, double n, double mean, double m2)
{
    if (n == 0) return;
    if (a->n == 0) {
        a->n = n, a->mean = mean, a->m2 = m2;
        return;
    }
    double total = a->n + n, delta = mean - a->mean;
    a->mean += delta * (n / total);
    a->m2 += m2 + delta * delta * (a->n * n / total);
    a->n = total;
}

/* One warp joins what was measured of `each` rows; lane 0 has the result, the same for all lanes afterwards. */
__device__ inline moments join_chunks(const planes &p, int64_t first, int64_t each)
{
    const int64_t rows = p.r.outer.n, items = each * p.chunks;
    moments m = {0, 0, 0};
    for (int64_t i = threadIdx.x % 32; i < items; i += 32) {
        int64_t c = i / each, row = first + i - c * each, left = p.units - c * p.chunk;
        moments_join(&m, (double)((left < p.chunk ? left : p.chunk) * p.v), p.part[c * 2 * rows + row],
                     p.part[(c * 2 + 1) * rows + row]);
    }
    for (int step = 16; step > 0; step /= 2) {
        double n = __shfl_down_sync(0xffffffffu, m.n, step), mean = __shfl_down_sync(0xffffffffu, m.mean, step);
        double m2 = __shfl_down_sync(0xffffffffu, m.m2, step);
        if (threadIdx.x % 32 < step) moments_join(&m, n, mean, m2);
    }
    m.n = __shfl_sync(0xffffffffu, m.n, 0);
    m.mean = __shfl_sync(0xffffffffu, m.mean, 0);
    m.m2 = __shfl_sync(0xffffffffu, m.m2, 0);
    return m;
}

/* What the ranks found, [ranks, 1 + 2 C] of float64. */
struct table {
    const double *data;
    int64_t rows, stride[2];
    __device__ double at(int64_t r, int64_t i) const { return data[r * stride[0] + i * stride[1]]; }
};
static table table_of(const lksi_view *v)
{
    table t = {};
    if (!v) return t;
    t.data = (const double *)v->data, t.rows = v->shape[0];
    t.stride[0] = v->stride[0], t.stride[1] = v->stride[1];
    return t;
}

struct batch {
    planes p;
    int training;
    int64_t channels, count; /* elements of a channel */
    double eps, momentum;
    vector weight, bias, running_mean, running_var, staged_mean, staged_var, mean, rstd, dweight, dbias;
    table measured, own, all;
    double *stats; /* where a row that only measures puts it */
    void *coefficients;
};

#define WARPS (LKSI_THREADS / 32)

/* A warp to a channel: its statistics, and what makes y of x. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) batch_settle(batch b)
{
    C *to = (C *)b.coefficients;
    const int64_t step = (int64_t)gridDim.x * WARPS, n = b.channels;
    if (b.stats && blockIdx.x == 0 && threadIdx.x == 0) b.stats[0] = (double)b.count;
    for (int64_t c = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; c < n; c += step) {
        double mean, var;
        if (b.training || b.stats) {
            moments m = {0, 0, 0};
            if (b.measured.data)
                for (int64_t r = 0; r < b.measured.rows; r++)
                    moments_join(&m, b.measured.at(r, 0), b.measured.at(r, 1 + c), b.measured.at(r, 1 + n + c));
            else
                m = join_chunks(b.p, c, 1);
            if (threadIdx.x % 32) continue;
            if (b.stats) {
                b.stats[1 + c] = m.mean, b.stats[1 + n + c] = m.m2;
                continue;
            }
            mean = m.mean, var = m.n > 0 ? m.m2 / m.n : 0;
            if (b.staged_mean.data && m.n > 0) {
                double f = b.momentum;
                b.staged_mean.set(c, (1 - f) * b.staged_mean.at(c) + f * mean);
                b.staged_var.set(c, (1 - f) * b.staged_var.at(c) + f * (m.n > 1 ? m.m2 / (m.n - 1) : var));
            }
        } else {
            if (threadIdx.x % 32) continue;
            mean = b.running_mean.at(c), var = b.running_var.at(c);
        }
        double rstd = 1 / sqrt(var + b.eps), scale = b.weight.data ? rstd * b.weight.at(c) : rstd;
        b.mean.set(c, mean);
        b.rstd.set(c, rstd);
        C hi = (C)mean;
        to[c] = hi;
        to[n + c] = (C)((b.bias.data ? b.bias.at(c) : 0) - (mean - (double)hi) * scale);
        to[2 * n + c] = C(0);
        to[3 * n + c] = (C)scale;
    }
}

__device__ inline double warp_sum(double x)
{
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Backward: the sums of a channel, dweight, dbias, and what makes dx. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) batch_settle_back(batch b)
{
    C *to = (C *)b.coefficients;
    const int64_t step = (int64_t)gridDim.x * WARPS, n = b.channels;
    for (int64_t c = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; c < n; c += step) {
        double s[3] = {0, 0, 0}, total = (double)b.count;
        if (!b.measured.data)
            for (int k = 0; k < 3; k++) {
                for (int64_t i = threadIdx.x % 32; i < b.p.chunks; i += 32) s[k] += b.p.part[(i * 3 + k) * n + c];
                s[k] = warp_sum(s[k]);
            }
        if (threadIdx.x % 32) continue;
        if (b.stats) {
            for (int k = 0; k < 3; k++) b.stats[k * n + c] = s[k];
            continue;
        }
        double own_sg = s[1], own_sgd = s[2], rstd = b.rstd.at(c), mean = b.mean.at(c);
        if (b.measured.data) {
            total = 0;
            for (int64_t r = 0; r < b.measured.rows; r++) total += b.measured.at(r, 0);
            own_sg = b.own.at(1, c), own_sgd = b.own.at(2, c);
            for (int k = 0; k < 3; k++) s[k] = b.all.at(k, c);
        }
        if (!(total > 1)) total = 1;
        double lo = b.training ? s[0] / total : 0; /* what the stored mean misses */
        double c2 = (s[2] - lo * s[1]) * rstd / total * rstd;
        to[c] = (C)mean;
        to[n + c] = (C)(s[1] / total - lo * c2);
        to[2 * n + c] = (C)c2;
        to[3 * n + c] = (C)(b.weight.data ? rstd * b.weight.at(c) : rstd);
        if (b.dweight.data) b.dweight.set(c, (own_sgd - lo * own_sg) * rstd);
        b.dbias.set(c, own_sg);
    }
}

/* --- which threads take the planes --- */

enum { STATS, SUMS, APPLY };
template <class C, class T, int V, int LANES, int COLS>
static void planes_go(cudaStream_t stream, planes *p, int pass, const void *coefficients, int what)
{
    const int each = LKSI_THREADS / LANES;
    p->v = V;
    p->units = p->r.inner.n / V;
    p->chunk = LANES * (32 / V);
    p->chunks = (p->units + p->chunk - 1) / p->chunk;
    p->tiles = (p->r.outer.n + each - 1) / each;
    unsigned blocks = blocks_for(p->tiles * p->chunks, 1);
    if (pass < 0 || p->tiles * p->chunks == 0) return;
    if (pass == STATS) plane_stats<C, T, V, LANES, COLS><<<blocks, LKSI_THREADS, 0, stream>>>(*p);
    else if (pass == SUMS) plane_sums<C, T, V, LANES, COLS><<<blocks, LKSI_THREADS, 0, stream>>>(*p);
    else plane_apply<C, T, V, LANES, COLS><<<blocks, LKSI_THREADS, 0, stream>>>(*p, (const C *)coefficients, what);
}
template <class C, class T, int V>
static void planes_along(cudaStream_t stream, planes *p, int pass, const void *coefficients, int what)
{
    if (p->r.inner.n <= 32 * 32) planes_go<C, T, V, 32, 1>(stream, p, pass, coefficients, what);
    else planes_go<C, T, V, LKSI_THREADS, 1>(stream, p, pass, coefficients, what);
}
template <class C>
static void planes_unpacked(cudaStream_t stream, planes *p, int pass, const void *coefficients, int what)
{
    if (upright(p->r, 1)) planes_go<C, untyped, 1, 8, 32>(stream, p, pass, coefficients, what);
    else planes_along<C, untyped, 1>(stream, p, pass, coefficients, what);
}
/* pass -1: nothing is done but to find the chunks. */
static void planes_run(cudaStream_t stream, planes *p, int pass, const void *coefficients, int what)
{
    int dtype = p->r.inner.dtype[1];
    if (dtype == LKS_F64) planes_unpacked<double>(stream, p, pass, coefficients, what);
    else if (!packs(p->r, 16 / size_of(dtype))) planes_unpacked<float>(stream, p, pass, coefficients, what);
    else if (dtype == LKS_F32) planes_along<float, float, 4>(stream, p, pass, coefficients, what);
    else if (dtype == LKS_F16) planes_along<float, f16, 8>(stream, p, pass, coefficients, what);
    else planes_along<float, bf16, 8>(stream, p, pass, coefficients, what);
}

/* Memory for the chunks' findings (`sums` doubles each) and for the coefficients of the rows. */
static lks_status planes_memory(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, planes *p, int sums,
                                void **coefficients)
{
    void *part;
    planes_run(stream, p, -1, NULL, 0);
    lks_status s = lksi_cuda_scratch(cuda, stream, a, 0, (p->chunks * sums * p->r.outer.n + 1) * 8, &part);
    if (s == LKS_OK) s = lksi_cuda_scratch(cuda, stream, a, 1, (4 * p->r.outer.n + 1) * 8, coefficients);
    p->part = (double *)part;
    return s;
}

static batch batch_of(const lksi_args *a, const lksi_view *x, const lksi_view *y, const lksi_view *dy)
{
    const lksi_view *view[3] = {y, x, dy};
    batch b = {};
    b.p.r = rows_of<3>(view, ((1u << x->ndim) - 1) & ~2u);
    b.p.each = 1;
    b.channels = x->shape[1];
    b.count = 1;
    for (int d = 0; d < x->ndim; d++)
        if (d != 1) b.count *= x->shape[d];
    b.training = a->attr.batch_norm.training != 0;
    b.eps = a->attr.batch_norm.eps;
    b.momentum = a->attr.batch_norm.momentum;
    return b;
}

static void batch_settled(cudaStream_t stream, const batch &b, const lksi_view *x, bool back)
{
    unsigned blocks = blocks_for(b.channels, WARPS);
    bool dbl = x->dtype == LKS_F64;
    if (back && dbl) batch_settle_back<double><<<blocks, LKSI_THREADS, 0, stream>>>(b);
    else if (back) batch_settle_back<float><<<blocks, LKSI_THREADS, 0, stream>>>(b);
    else if (dbl) batch_settle<double><<<blocks, LKSI_THREADS, 0, stream>>>(b);
    else batch_settle<float><<<blocks, LKSI_THREADS, 0, stream>>>(b);
}

/* Training writes staged_mean and staged_var (inputs 5 and 6) in place. */
LKSI_CUDA(batch_norm)
{
    const lksi_view *x = &a->in[0];
    batch b = batch_of(a, x, &a->out[0], NULL);
    b.weight = vector_of(input(a, 1)), b.bias = vector_of(input(a, 2));
    b.running_mean = vector_of(input(a, 3)), b.running_var = vector_of(input(a, 4));
    b.staged_mean = vector_of(input(a, 5)), b.staged_var = vector_of(input(a, 6));
    b.measured = table_of(input(a, 7));
    b.mean = vector_of(&a->out[1]), b.rstd = vector_of(&a->out[2]);
    lks_status s = planes_memory(cuda, stream, a, &b.p, 2, &b.coefficients);
    if (s != LKS_OK || b.channels == 0) return s;
    if (b.training && !b.measured.data) planes_run(stream, &b.p, STATS, NULL, 0);
    batch_settled(stream, b, x, false);
    planes_run(stream, &b.p, APPLY, b.coefficients, FORWARD);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(batch_norm_backward)
{
    const lksi_view *x = &a->in[1];
    batch b = batch_of(a, x, &a->out[0], &a->in[0]);
    b.weight = vector_of(input(a, 2)), b.mean = vector_of(&a->in[3]), b.rstd = vector_of(&a->in[4]);
    b.own = table_of(input(a, 5)), b.all = table_of(input(a, 6)), b.measured = table_of(input(a, 7));
    if (b.weight.data) b.dweight = vector_of(&a->out[1]);
    b.dbias = vector_of(&a->out[2]);
    b.p.mean = b.mean;
    lks_status s = planes_memory(cuda, stream, a, &b.p, 3, &b.coefficients);
    if (s != LKS_OK || b.channels == 0) return s;
    if (!b.measured.data) planes_run(stream, &b.p, SUMS, NULL, 0);
    batch_settled(stream, b, x, true);
    planes_run(stream, &b.p, APPLY, b.coefficients, b.training ? BATCH_BACK : FIXED_BACK);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(batch_norm_stats)
{
    const lksi_view *x = &a->in[0];
    batch b = batch_of(a, x, x, NULL);
    b.stats = (double *)a->out[0].data;
    lks_status s = planes_memory(cuda, stream, a, &b.p, 2, &b.coefficients);
    if (s != LKS_OK) return s;
    planes_run(stream, &b.p, STATS, NULL, 0);
    batch_settled(stream, b, x, false);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(batch_norm_sums)
{
    const lksi_view *x = &a->in[1];
    batch b = batch_of(a, x, x, &a->in[0]);
    b.p.mean = vector_of(&a->in[2]);
    b.stats = (double *)a->out[0].data;
    lks_status s = planes_memory(cuda, stream, a, &b.p, 3, &b.coefficients);
    if (s != LKS_OK || b.channels == 0) return s;
    planes_run(stream, &b.p, SUMS, NULL, 0);
    batch_settled(stream, b, x, true);
    return lksi_cuda_launched(a);
}

/* --- group norm --- */

struct group {
    planes p;
    int64_t images, channels, groups, each, plane;
    double eps;
    vector weight, bias, mean, rstd, dweight, dbias;
    double *sums, *lo; /* backward: [3, N C]; [N G] */
    void *coefficients;
};

/* A warp to a group of an image. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) group_settle(group s)
{
    C *to = (C *)s.coefficients;
    const int64_t step = (int64_t)gridDim.x * WARPS, n = s.images * s.channels;
    for (int64_t g = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; g < s.images * s.groups; g += step) {
        moments m = join_chunks(s.p, g * s.each, s.each);
        double count = (double)s.each * (double)s.plane, rstd = 1 / sqrt((count > 0 ? m.m2 / count : 0) + s.eps);
        C hi = (C)m.mean;
        if (threadIdx.x % 32 == 0) s.mean.set(g, m.mean), s.rstd.set(g, rstd);
        for (int64_t i = threadIdx.x % 32; i < s.each; i += 32) {
            int64_t row = g * s.each + i, c = row % s.channels;
            double scale = s.weight.data ? rstd * s.weight.at(c) : rstd;
            to[row] = hi;
            to[n + row] = (C)((s.bias.data ? s.bias.at(c) : 0) - (m.mean - (double)hi) * scale);
            to[2 * n + row] = C(0);
            to[3 * n + row] = (C)scale;
        }
    }
}

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) group_settle_back(group s)
{
    C *to = (C *)s.coefficients;
    const int64_t step = (int64_t)gridDim.x * WARPS, n = s.images * s.channels;
    for (int64_t g = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; g < s.images * s.groups; g += step) {
        double sd = 0, sg = 0, sgd = 0, count = (double)s.each * (double)s.plane;
        double rstd = s.rstd.at(g), mean = s.mean.at(g);
        for (int64_t i = threadIdx.x % 32; i < s.each; i += 32) {
            int64_t row = g * s.each + i;
            double sum[3] = {0, 0, 0}, w = s.weight.data ? s.weight.at(row % s.channels) : 1;
            for (int64_t c = 0; c < s.p.chunks; c++)
                for (int k = 0; k < 3; k++) sum[k] += s.p.part[(c * 3 + k) * n + row];
            for (int k = 0; k < 3; k++) s.sums[k * n + row] = sum[k];
            sd += sum[0];
            sg += w * sum[1];
            sgd += w * sum[2];
        }
        sd = warp_sum(sd), sg = warp_sum(sg), sgd = warp_sum(sgd);
        if (count < 1) count = 1;
        double lo = sd / count, b = (sgd - lo * sg) * rstd / count * rstd * rstd, e = sg / count * rstd - lo * b;
        if (threadIdx.x % 32 == 0) s.lo[g] = lo;
        for (int64_t i = threadIdx.x % 32; i < s.each; i += 32) {
            int64_t row = g * s.each + i;
            to[row] = (C)mean;
            to[n + row] = (C)e;
            to[2 * n + row] = (C)b;
            to[3 * n + row] = (C)(s.weight.data ? rstd * s.weight.at(row % s.channels) : rstd);
        }
    }
}

/* A channel's share in dweight and dbias: images in order. */
static __global__ void __launch_bounds__(LKSI_THREADS) group_join(group s)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, n = s.images * s.channels;
    for (int64_t c = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; c < s.channels; c += step) {
        double dw = 0, db = 0;
        for (int64_t i = 0; i < s.images; i++) {
            int64_t row = i * s.channels + c, g = row / s.each;
            dw += (s.sums[2 * n + row] - s.lo[g] * s.sums[n + row]) * s.rstd.at(g);
            db += s.sums[n + row];
        }
        if (s.dweight.data) s.dweight.set(c, dw);
        s.dbias.set(c, db);
    }
}

/* A block to a group of an image that lies in one run: kept in shared memory as it comes, x and then dy, each followed
 * by what belongs to its channels. */
struct whole {
    group g;
    int64_t n;       /* elements of a group */
    divisor channel; /* division by packs of a channel */
    int bytes;       /* shared memory */
};
extern __shared__ __align__(16) unsigned char whole_room[];

/* A thread reads back what it has kept itself, so that takes no barrier. */
template <class C, class T, int V>
__global__ void __launch_bounds__(LKSI_THREADS) group_whole(const __grid_constant__ whole s)
{
    typedef crew<LKSI_THREADS, 1> team;
    typedef mover<C, T, V> move;
    __shared__ C room[team::ROOM];
    const group &g = s.g;
    const int64_t units = s.n / V;
    T *held = (T *)(void *)whole_room;
    C *scales = (C *)(void *)(whole_room + s.n * sizeof(T)), *shifts = scales + g.each;
    const T *from = (const T *)g.p.r.inner.data[1];
    T *to = (T *)g.p.r.inner.data[0];
    for (int64_t at = blockIdx.x; at < g.images * g.groups; at += gridDim.x) {
        const T *source = from + at * s.n;
        C x[V], first = get<C>::of(source[0]), sum = C(0), squares = C(0);
        for (int64_t u = threadIdx.x; u < units; u += LKSI_THREADS) {
            move::get_(x, source, 0, u * V);
            move::put_(x, held, 0, u * V);
#pragma unroll
            for (int j = 0; j < V; j++) sum += x[j] - first;
        }
        sum = team::fold(sum, room, join_sum());
        const C hi = mean_from(first, sum, s.n);
        sum = C(0);
        for (int64_t u = threadIdx.x; u < units; u += LKSI_THREADS) {
            move::get_(x, held, 0, u * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                C d = x[j] - hi;
                sum += d;
                squares = fused(d, d, squares);
            }
        }
        sum = team::fold(sum, room, join_sum());
        squares = team::fold(squares, room, join_sum());
        const double lo = (double)sum / (double)s.n;
        const double rstd = 1 / sqrt(squares_from(sum, squares, lo) / (double)s.n + g.eps);
        if (threadIdx.x == 0) g.mean.set(at, (double)hi + lo), g.rstd.set(at, rstd);
        for (int64_t i = threadIdx.x; i < g.each; i += LKSI_THREADS) {
            int64_t c = at % g.groups * g.each + i;
            double scale = g.weight.data ? rstd * g.weight.at(c) : rstd;
            scales[i] = (C)scale;
            shifts[i] = (C)((g.bias.data ? g.bias.at(c) : 0) - lo * scale);
        }
        __syncthreads();
        for (int64_t u = threadIdx.x; u < units; u += LKSI_THREADS) {
            const uint32_t i = (__umulhi((uint32_t)u, s.channel.m) + (uint32_t)u) >> s.channel.s;
            move::get_(x, held, 0, u * V);
#pragma unroll
            for (int j = 0; j < V; j++) x[j] = fused(x[j] - hi, scales[i], shifts[i]);
            move::put_(x, to + at * s.n, 0, u * V);
        }
        __syncthreads();
    }
}

/* LANES threads to a channel. */
template <class C, class T, int V, int LANES>
__global__ void __launch_bounds__(LKSI_THREADS) group_whole_back(const __grid_constant__ whole s)
{
    typedef crew<LANES, 1> team;
    typedef mover<C, T, V> move;
    __shared__ C room[team::ROOM];
    const group &g = s.g;
    const int64_t units = g.plane / V, rows = g.images * g.channels, lane = team::lane();
    T *held_x = (T *)(void *)whole_room, *held_g = held_x + s.n;
    double *sums = (double *)(void *)(whole_room + 2 * s.n * sizeof(T)); /* [3, each] */
    for (int64_t at = blockIdx.x; at < g.images * g.groups; at += gridDim.x) {
        const T *from = (const T *)g.p.r.inner.data[1] + at * s.n, *given = (const T *)g.p.r.inner.data[2] + at * s.n;
        T *to = (T *)g.p.r.inner.data[0] + at * s.n;
        const double mean = g.mean.at(at), rstd = g.rstd.at(at);
        const C hi = (C)mean;
        C x[V], dy[V];
        for (int64_t i = team::row(); i < g.each; i += team::ROWS) {
            back_sums<C> own;
            for (int64_t u = lane; u < units; u += LANES) {
                move::get_(x, from, 0, i * g.plane + u * V);
                move::get_(dy, given, 0, i * g.plane + u * V);
                move::put_(x, held_x, 0, i * g.plane + u * V);
                move::put_(dy, held_g, 0, i * g.plane + u * V);
                own.add(x, dy, hi);
            }
            own.template fold<team>(room);
            if (lane == 0) own.put_(sums + i, g.each);
        }
        __syncthreads();
        double sd = 0, sg = 0, sgd = 0;
        for (int64_t i = 0; i < g.each; i++) {
            double w = g.weight.data ? g.weight.at(at % g.groups * g.each + i) : 1;
            sd += sums[i];
            sg += w * sums[g.each + i];
            sgd += w * sums[2 * g.each + i];
        }
        const double n = (double)s.n, lo = sd / n, b = (sgd - lo * sg) * rstd / n * rstd * rstd;
        const C less = (C)(sg / n * rstd - lo * b), slope = (C)b;
        if (threadIdx.x == 0) g.lo[at] = lo;
        for (int64_t i = threadIdx.x; i < g.each; i += LKSI_THREADS) {
            g.sums[rows + at * g.each + i] = sums[g.each + i];
            g.sums[2 * rows + at * g.each + i] = sums[2 * g.each + i];
        }
        for (int64_t i = team::row(); i < g.each; i += team::ROWS) {
            const C scale = (C)(g.weight.data ? rstd * g.weight.at(at % g.groups * g.each + i) : rstd);
            for (int64_t u = lane; u < units; u += LANES) {
                move::get_(x, held_x, 0, i * g.plane + u * V);
                move::get_(dy, held_g, 0, i * g.plane + u * V);
#pragma unroll
                for (int j = 0; j < V; j++) x[j] = fused(dy[j], scale, fused(x[j] - hi, -slope, -less));
                move::put_(x, to, 0, i * g.plane + u * V);
            }
        }
        __syncthreads();
    }
}

/* More than that leaves a processor with too few blocks. */
#define WHOLE_MOST (96 * 1024)

/* Whether groups can be taken whole: `operands` of x's dtype are kept, and `each` bytes for a channel. */
static bool whole_of(const group &g, int operands, int each, whole *w)
{
    const rows<3> &r = g.p.r;
    const int size = size_of(r.inner.dtype[1]), v = 16 / size;
    *w = {};
    w->g = g;
    w->n = g.each * g.plane;
    if (r.inner.dtype[1] == LKS_F64 || w->n <= 0 || !packs(r, v) || r.inner.ndim != 1 || r.outer.ndim > 1) return false;
    for (int k = 0; k < 3; k++)
        if (r.outer.data[k] && r.outer.n > 1 && r.outer.stride[k][0] != g.plane) return false;
    w->channel = divisor_of(g.plane / v);
    int64_t bytes = operands * w->n * size + g.each * each;
    if (bytes > WHOLE_MOST) return false;
    w->bytes = (int)bytes;
    return true;
}

template <class T> static void whole_go(cudaStream_t stream, const whole &w, bool back)
{
    const int v = 16 / (int)sizeof(T);
    const unsigned blocks = blocks_for(w.g.images * w.g.groups, 1);
    void (*kernel)(whole) = !back ? group_whole<float, T, v>
        : w.g.each * 2 >= WARPS   ? group_whole_back<float, T, v, 32>
                                  : group_whole_back<float, T, v, LKSI_THREADS>;
    room_for(kernel, w.bytes);
    kernel<<<blocks, LKSI_THREADS, w.bytes, stream>>>(w);
}
static void whole_run(cudaStream_t stream, const whole &w, bool back)
{
    switch (w.g.p.r.inner.dtype[1]) {
    case LKS_F32: whole_go<float>(stream, w, back); break;
    case LKS_F16: whole_go<f16>(stream, w, back); break;
    default: whole_go<bf16>(stream, w, back); break;
    }
}

static group group_of(const lksi_args *a, const lksi_view *x, const lksi_view *dy)
{
    const lksi_view *view[3] = {&a->out[0], x, dy};
    group s = {};
    s.p.r = rows_of<3>(view, ((1u << x->ndim) - 1) & ~3u);
    s.images = x->shape[0], s.channels = x->shape[1], s.groups = a->attr.norm.groups;
    s.p.each = s.each = s.channels / s.groups;
    s.plane = 1;
    for (int d = 2; d < x->ndim; d++) s.plane *= x->shape[d];
    s.eps = a->attr.norm.eps;
    return s;
}

LKSI_CUDA(group_norm)
{
    const lksi_view *x = &a->in[0];
    group s = group_of(a, x, NULL);
    s.weight = vector_of(input(a, 1)), s.bias = vector_of(input(a, 2));
    s.mean = vector_of(&a->out[1]), s.rstd = vector_of(&a->out[2]);
    whole w;
    if (whole_of(s, 1, 2 * sizeof(float), &w)) {
        whole_run(stream, w, false);
        return lksi_cuda_launched(a);
    }
    lks_status status = planes_memory(cuda, stream, a, &s.p, 2, &s.coefficients);
    if (status != LKS_OK || s.images == 0) return status;
    planes_run(stream, &s.p, STATS, NULL, 0);
    unsigned blocks = blocks_for(s.images * s.groups, WARPS);
    if (x->dtype == LKS_F64) group_settle<double><<<blocks, LKSI_THREADS, 0, stream>>>(s);
    else group_settle<float><<<blocks, LKSI_THREADS, 0, stream>>>(s);
    planes_run(stream, &s.p, APPLY, s.coefficients, FORWARD);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(group_norm_backward)
{
    const lksi_view *x = &a->in[1];
    group s = group_of(a, x, &a->in[0]);
    void *sums;
    s.weight = vector_of(input(a, 2)), s.mean = vector_of(&a->in[3]), s.rstd = vector_of(&a->in[4]);
    if (s.weight.data) s.dweight = vector_of(&a->out[1]);
    s.dbias = vector_of(&a->out[2]);
    s.p.mean = s.mean;
    lks_status status =
        lksi_cuda_scratch(cuda, stream, a, 2, (s.images * (3 * s.channels + s.groups) + 1) * 8, &sums);
    if (status != LKS_OK) return status;
    s.sums = (double *)sums;
    s.lo = s.sums + 3 * s.images * s.channels;
    whole w;
    if (whole_of(s, 2, 3 * sizeof(double), &w)) {
        whole_run(stream, w, true);
    } else if (s.images > 0) {
        status = planes_memory(cuda, stream, a, &s.p, 3, &s.coefficients);
        if (status != LKS_OK) return status;
        planes_run(stream, &s.p, SUMS, NULL, 0);
        unsigned blocks = blocks_for(s.images * s.groups, WARPS);
        if (x->dtype == LKS_F64) group_settle_back<double><<<blocks, LKSI_THREADS, 0, stream>>>(s);
        else group_settle_back<float><<<blocks, LKSI_THREADS, 0, stream>>>(s);
        planes_run(stream, &s.p, APPLY, s.coefficients, GROUP_BACK);
    }
    if (s.channels > 0)
        group_join<<<blocks_for(s.channels, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(s);
    return lksi_cuda_launched(a);
}
