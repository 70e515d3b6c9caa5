/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reduce.cuh - the plan of a reduction and its kernels, for reduce.cu and stat.cu. Dims are put in the order of the
 * input's memory and merged; then either a reduced dim is innermost (threads go along it) or a kept one (threads go
 * along that, and down the rows). Long reductions are cut into chunks of a fixed size whose results are joined in a
 * fixed order: the same bits each time, on every GPU. What is reduced is a struct F: acc, none, item, join, write.
 */
#ifndef LKSI_REDUCE_CUH
#define LKSI_REDUCE_CUH

#include "common.cuh"

namespace lksi {

#define ROW_CHUNK 16384 /* elements of a reduction along the innermost dim that one block takes */
#define COLUMN_CHUNK 128 /* rows that one block takes */
#define COLUMNS 32
#define LINES 8 /* threads down a column */

/* keep: walk over the kept dims, operand 0 the input, 1 and 2 the outputs; fold: over the reduced ones. */
struct reduction {
    walk<3> keep;
    walk<1> fold;
    int dtype;
    int64_t chunks, chunk;
};

template <class C> __device__ inline bool is_nan(C) { return false; }
template <> __device__ inline bool is_nan(float x) { return lksi_is_nan_f32(x); }
template <> __device__ inline bool is_nan(double x) { return lksi_is_nan_f64(x); }

/* Joins the values of LANES neighbouring threads in a fixed tree; the first one has the result. */
template <class F, int LANES>
__device__ inline typename F::acc tree(const F &f, typename F::acc x, typename F::acc *room)
{
    if (LANES == 1) return x;
    room[threadIdx.x] = x;
    for (int half = LANES / 2; half > 0; half /= 2) {
        if (LANES > 32) __syncthreads();
        else __syncwarp();
        if (threadIdx.x % LANES < half) room[threadIdx.x] = x = f.join(x, room[threadIdx.x + half]);
    }
    if (LANES > 32) __syncthreads(); /* room may be used again */
    else __syncwarp();
    return x;
}

template <class F, int DTYPE>
__device__ inline typename F::acc one(const F &f, const reduction &r, int64_t base, int64_t i)
{
    int64_t at[1];
    r.fold.seek(i, at);
    return f.item(load<typename F::type>(r.keep.data[0], DTYPE < 0 ? r.dtype : DTYPE, base + at[0]), i);
}

/* Items are (output, chunk); LANES threads to each. */
template <class F, int DTYPE, int LANES>
__global__ void __launch_bounds__(LKSI_THREADS) reduce_rows(F f, reduction r, typename F::acc *part)
{
    typedef typename F::acc acc;
    __shared__ acc room[LKSI_THREADS];
    const int each = LKSI_THREADS / LANES, lane = threadIdx.x % LANES;
    const int64_t items = r.keep.n * r.chunks, step = (int64_t)gridDim.x * each;
    for (int64_t item = (int64_t)blockIdx.x * each + threadIdx.x / LANES; item < items; item += step) {
        int64_t at[3], out = r.chunks == 1 ? item : item / r.chunks, c = item - out * r.chunks;
        int64_t first = c * r.chunk, last = first + r.chunk < r.fold.n ? first + r.chunk : r.fold.n, i = first + lane;
        r.keep.seek(out, at);
        acc x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = f.none();
        for (; i + 3 * LANES < last; i += 4 * LANES)
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = f.join(x[k], one<F, DTYPE>(f, r, at[0], i + k * LANES));
        for (; i < last; i += LANES) x[0] = f.join(x[0], one<F, DTYPE>(f, r, at[0], i));
        acc s = tree<F, LANES>(f, f.join(f.join(x[0], x[1]), f.join(x[2], x[3])), room);
        if (lane == 0) {
            if (r.chunks == 1) f.write(r, at, s);
            else part[item] = s;
        }
    }
}

/* The chunks of each output, one block to each. */
template <class F>
__global__ void __launch_bounds__(LKSI_THREADS) join_rows(F f, reduction r, const typename F::acc *part)
{
    typedef typename F::acc acc;
    __shared__ acc room[LKSI_THREADS];
    for (int64_t out = blockIdx.x; out < r.keep.n; out += gridDim.x) {
        acc x = f.none();
        for (int64_t c = threadIdx.x; c < r.chunks; c += LKSI_THREADS) x = f.join(x, part[out * r.chunks + c]);
        x = tree<F, LKSI_THREADS>(f, x, room);
        if (threadIdx.x == 0) {
            int64_t at[3];
            r.keep.seek(out, at);
            f.write(r, at, x);
        }
    }
}

/* LINES threads of a column joined in order; those of line 0 have the result. */
template <class F>
__device__ inline typename F::acc down(const F &f, typename F::acc x, typename F::acc (*room)[COLUMNS])
{
    const int column = threadIdx.x % COLUMNS, line = threadIdx.x / COLUMNS;
    room[line][column] = x;
    __syncthreads();
    if (line == 0)
        for (int k = 1; k < LINES; k++) x = f.join(x, room[k][column]);
    __syncthreads();
    return x;
}

template <class F, int DTYPE>
__global__ void __launch_bounds__(COLUMNS *LINES) reduce_columns(F f, reduction r, int64_t tiles, typename F::acc *part)
{
    typedef typename F::acc acc;
    __shared__ acc room[LINES][COLUMNS];
    for (int64_t item = blockIdx.x; item < tiles * r.chunks; item += gridDim.x) {
        int64_t c = item / tiles, out = (item - c * tiles) * COLUMNS + threadIdx.x % COLUMNS, at[3] = {0, 0, 0};
        int64_t first = c * r.chunk, last = first + r.chunk < r.fold.n ? first + r.chunk : r.fold.n;
        bool inside = out < r.keep.n;
        acc x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = f.none();
        if (inside) {
            int64_t i = first + threadIdx.x / COLUMNS;
            r.keep.seek(out, at);
            for (; i + 3 * LINES < last; i += 4 * LINES)
#pragma unroll
                for (int k = 0; k < 4; k++) x[k] = f.join(x[k], one<F, DTYPE>(f, r, at[0], i + k * LINES));
            for (; i < last; i += LINES) x[0] = f.join(x[0], one<F, DTYPE>(f, r, at[0], i));
        }
        acc s = down(f, f.join(f.join(x[0], x[1]), f.join(x[2], x[3])), room);
        if (inside && threadIdx.x < COLUMNS) {
            if (r.chunks == 1) f.write(r, at, s);
            else part[c * r.keep.n + out] = s;
        }
    }
}

template <class F>
__global__ void __launch_bounds__(COLUMNS *LINES)
    join_columns(F f, reduction r, int64_t tiles, const typename F::acc *part)
{
    typedef typename F::acc acc;
    __shared__ acc room[LINES][COLUMNS];
    for (int64_t item = blockIdx.x; item < tiles; item += gridDim.x) {
        int64_t out = item * COLUMNS + threadIdx.x % COLUMNS;
        acc x = f.none();
        if (out < r.keep.n)
            for (int64_t c = threadIdx.x / COLUMNS; c < r.chunks; c += LINES) x = f.join(x, part[c * r.keep.n + out]);
        x = down(f, x, room);
        if (out < r.keep.n && threadIdx.x < COLUMNS) {
            int64_t at[3];
            r.keep.seek(out, at);
            f.write(r, at, x);
        }
    }
}

/* --- plan --- */

template <int N> static void add_dim(walk<N> *w, int64_t size, const int64_t *stride, bool merge)
{
    for (int k = 0; k < N; k++) merge = merge && w->ndim > 0 && w->stride[k][w->ndim - 1] == stride[k] * size;
    int to = merge ? w->ndim - 1 : w->ndim++;
    w->shape[to] = merge ? w->shape[to] * size : size;
    for (int k = 0; k < N; k++) w->stride[k][to] = stride[k];
}

template <int N> static void finish(walk<N> *w)
{
    w->n = 1;
    for (int d = 0; d < w->ndim; d++) {
        w->n *= w->shape[d];
        w->div[d] = divisor_of(w->shape[d]);
    }
    w->small = w->n < (int64_t)1 << 31;
}

/* Sorts and merges x's dims. 0: there are no outputs. *inner: the innermost dim is a reduced one. in_order: places are
 * numbered row-major over the reduced dims (there is one for max). */
static bool describe(reduction *r, const lksi_view *x, int mask, int keepdim, const lksi_view *out,
                     const lksi_view *index, bool *inner)
{
    int order[LKS_MAX_DIMS], n = 0, previous = -1;
    int64_t to[2][LKS_MAX_DIMS] = {{0}};
    bool nothing = false, empty = false;
    *r = reduction();
    r->dtype = x->dtype;
    r->keep.data[0] = x->data;
    r->keep.data[1] = out ? out->data : NULL, r->keep.data[2] = index ? index->data : NULL;
    if (out) r->keep.dtype[1] = out->dtype;
    for (int d = 0, o = 0; d < x->ndim; d++) {
        bool reduced = mask >> d & 1;
        if (!reduced) to[0][d] = out ? out->stride[o] : 0, to[1][d] = index ? index->stride[o] : 0;
        o += !reduced || keepdim;
        if (x->shape[d] == 0) (reduced ? empty : nothing) = true;
        if (x->shape[d] == 1) continue;
        int64_t s = x->stride[d];
        int at = n++;
        for (; at > 0; at--) { /* repeated elements count as the outermost dims */
            int64_t t = x->stride[order[at - 1]];
            if (s == 0 ? t == 0 : t == 0 || t >= s) break;
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
    for (int i = 0; i < n; i++) {
        int d = order[i], reduced = mask >> d & 1;
        int64_t kept[3] = {x->stride[d], to[0][d], to[1][d]};
        if (reduced) add_dim(&r->fold, x->shape[d], kept, previous == 1);
        else add_dim(&r->keep, x->shape[d], kept, previous == 0);
        previous = reduced;
    }
    finish(&r->keep);
    finish(&r->fold);
    if (empty) r->fold.n = 0;
    *inner = previous != 0;
    return !nothing;
}

template <class F, int DTYPE>
static lks_status run(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, F f, reduction r, bool inner)
{
    typedef typename F::acc acc;
    void *part = NULL;
    r.chunk = inner ? ROW_CHUNK : COLUMN_CHUNK;
    r.chunks = r.fold.n > r.chunk ? (r.fold.n + r.chunk - 1) / r.chunk : 1;
    if (r.chunks > 1) {
        lks_status s = lksi_cuda_scratch(cuda, stream, a, 0, r.chunks * r.keep.n * (int64_t)sizeof(acc), &part);
        if (s != LKS_OK) return s;
    }
    if (inner) {
        int64_t items = r.keep.n * r.chunks;
        if (r.fold.n > 512)
            reduce_rows<F, DTYPE, LKSI_THREADS><<<blocks_for(items, 1), LKSI_THREADS, 0, stream>>>(f, r, (acc *)part);
        else if (r.fold.n > 4)
            reduce_rows<F, DTYPE, 32>
                <<<blocks_for(items, LKSI_THREADS / 32), LKSI_THREADS, 0, stream>>>(f, r, (acc *)part);
        else
            reduce_rows<F, DTYPE, 1><<<blocks_for(items, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(f, r, (acc *)part);
        if (r.chunks > 1)
            join_rows<F><<<blocks_for(r.keep.n, 1), LKSI_THREADS, 0, stream>>>(f, r, (const acc *)part);
    } else {
        int64_t tiles = (r.keep.n + COLUMNS - 1) / COLUMNS;
        reduce_columns<F, DTYPE>
            <<<blocks_for(tiles * r.chunks, 1), COLUMNS * LINES, 0, stream>>>(f, r, tiles, (acc *)part);
        if (r.chunks > 1)
            join_columns<F><<<blocks_for(tiles, 1), COLUMNS * LINES, 0, stream>>>(f, r, tiles, (const acc *)part);
    }
    return lksi_cuda_launched(a);
}

} // namespace lksi

#endif
