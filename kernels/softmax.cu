/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.cu - softmax, log_softmax and their backward rows over any dim of any strides. A row that fits the registers
 * of its threads is read once; a longer one twice, with the largest entry and the sum found together. A row of -inf
 * alone gives zeros (log_softmax: -inf) and a zero gradient, as on the CPU.
 */
#include "rows.cuh"

using namespace lksi;

enum { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACK, LOG_SOFTMAX_BACK };

/* What all threads of a row know before the output is made. */
template <class C> struct known {
    C max, sum; /* backward: sum alone */
    bool nothing;
};

template <class C, int WHAT> __device__ inline C result(const known<C> &s, C x, C e, C dy)
{
    switch (WHAT) {
    case SOFTMAX: return s.nothing ? C(0) : e * s.sum;
    case LOG_SOFTMAX: return s.nothing ? -(C)INFINITY : x - s.max - s.sum;
    case SOFTMAX_BACK: return x * (dy - s.sum);
    default: return s.nothing ? C(0) : dy - exp_of(x) * s.sum;
    }
}

/* exp(x - max), 0 for -inf whatever max is. */
template <class C> __device__ inline C term(C x, C max) { return x == -(C)INFINITY ? C(0) : exp_of(x - max); }

/* Operands: what is made; x, or y for backward; dy. K > 0: a thread keeps that many packs, else it reads them again. */
template <class C, class T, int V, int LANES, int COLS, int K, int WHAT>
__global__ void __launch_bounds__(LKSI_THREADS) softmax_rows(rows<3> r, int64_t tiles)
{
    typedef crew<LANES, COLS> team;
    typedef mover<C, T, V> move;
    const bool back = WHAT == SOFTMAX_BACK || WHAT == LOG_SOFTMAX_BACK;
    const walk<3> &in = r.inner;
    const int64_t units = in.n / V, lane = team::lane();
    const int dtype0 = in.dtype[0], dtype1 = in.dtype[1], dtype2 = in.dtype[2];
    __shared__ C room[team::ROOM];
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t row = tile * team::ROWS + team::row(), base[3] = {0, 0, 0};
        int64_t count = row < r.outer.n ? units : 0;
        if (count) r.outer.seek(row, base);
        C x[K ? K : 1][V], e[K ? K : 1][V], max = -(C)INFINITY, sum = C(0), some = C(0);
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
            if (back) move::get_(e[k], in.data[2], dtype2, base[2] + move::place(in, 2, u));
            C top = max;
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (WHAT == SOFTMAX_BACK) sum += e[k][j] * x[k][j];
                else if (back) sum += e[k][j];
                else top = join_max()(top, x[k][j]);
                if (!(x[k][j] == -(C)INFINITY)) some = C(1);
            }
            if (!back && K == 0) { /* the sum so far, of exp(x - max), follows the largest */
                if (top != max) sum *= exp_of(max - top);
#pragma unroll
                for (int j = 0; j < V; j++) sum += term(x[k][j], top);
            }
            max = top;
        });
        known<C> s = {C(0), C(0), false};
        if (!back) {
            s.max = team::fold(max, room, join_max());
            if (K == 0 && s.max != max) sum *= exp_of(max - s.max);
            if (K > 0)
                sweep<K>(lane, LANES, count, [&](int k, int64_t) {
#pragma unroll
                    for (int j = 0; j < V; j++) {
                        C t = term(x[k][j], s.max);
                        if (WHAT == SOFTMAX) e[k][j] = t;
                        sum += t;
                    }
                });
        }
        s.sum = team::fold(sum, room, join_sum());
        if (WHAT == LOG_SOFTMAX_BACK) s.nothing = team::fold(some, room, join_sum()) == C(0);
        if (!back) s.nothing = s.sum == C(0);
        if (WHAT == SOFTMAX) s.sum = 1 / s.sum;
        if (WHAT == LOG_SOFTMAX) s.sum = log_of(s.sum);
        sweep<K>(lane, LANES, count, [&](int k, int64_t u) {
            C y[V];
            if (K == 0) {
                move::get_(x[k], in.data[1], dtype1, base[1] + move::place(in, 1, u));
                if (back) move::get_(e[k], in.data[2], dtype2, base[2] + move::place(in, 2, u));
            }
#pragma unroll
            for (int j = 0; j < V; j++) {
                C t = WHAT == SOFTMAX && K == 0 ? term(x[k][j], s.max) : WHAT == LOG_SOFTMAX ? C(0) : e[k][j];
                y[j] = result<C, WHAT>(s, x[k][j], t, t);
            }
            move::put_(y, in.data[0], dtype0, base[0] + move::place(in, 0, u));
        });
    }
}

template <class C, class T, int V, int LANES, int COLS, int K, int WHAT>
static void launch(cudaStream_t stream, const rows<3> &r)
{
    const int each = LKSI_THREADS / LANES;
    int64_t tiles = (r.outer.n + each - 1) / each;
    softmax_rows<C, T, V, LANES, COLS, K, WHAT><<<blocks_for(tiles, 1), LKSI_THREADS, 0, stream>>>(r, tiles);
}

template <class T, int WHAT> static void packed(cudaStream_t stream, const rows<3> &r)
{
    const int v = 16 / (int)sizeof(T), k = 32 / v;
    if (r.inner.n <= 32 * 32) launch<float, T, v, 32, 1, k, WHAT>(stream, r);
    else if (r.inner.n <= LKSI_THREADS * 32) launch<float, T, v, LKSI_THREADS, 1, k, WHAT>(stream, r);
    else launch<float, T, v, LKSI_THREADS, 1, 0, WHAT>(stream, r);
}
template <class C, int WHAT> static void unpacked(cudaStream_t stream, const rows<3> &r)
{
    if (upright(r, 1)) launch<C, untyped, 1, 8, 32, 0, WHAT>(stream, r);
    else if (r.inner.n <= 2048) launch<C, untyped, 1, 32, 1, 0, WHAT>(stream, r);
    else launch<C, untyped, 1, LKSI_THREADS, 1, 0, WHAT>(stream, r);
}

template <int WHAT>
static lks_status run(cudaStream_t stream, const lksi_args *a, const lksi_view *x, const lksi_view *dy)
{
    const lksi_view *view[3] = {&a->out[0], x, dy};
    rows<3> r = rows_of<3>(view, x->ndim ? 1u << a->attr.dim.dim : 0u);
    if (r.inner.n == 0 || r.outer.n == 0) return LKS_OK;
    if (x->dtype == LKS_F64) unpacked<double, WHAT>(stream, r);
    else if (!packs(r, 16 / size_of(x->dtype))) unpacked<float, WHAT>(stream, r);
    else if (x->dtype == LKS_F32) packed<float, WHAT>(stream, r);
    else if (x->dtype == LKS_F16) packed<f16, WHAT>(stream, r);
    else packed<bf16, WHAT>(stream, r);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(softmax) { (void)cuda; return run<SOFTMAX>(stream, a, &a->in[0], NULL); }
LKSI_CUDA(log_softmax) { (void)cuda; return run<LOG_SOFTMAX>(stream, a, &a->in[0], NULL); }
LKSI_CUDA(softmax_backward) { (void)cuda; return run<SOFTMAX_BACK>(stream, a, &a->in[1], &a->in[0]); }
LKSI_CUDA(log_softmax_backward) { (void)cuda; return run<LOG_SOFTMAX_BACK>(stream, a, &a->in[1], &a->in[0]); }
