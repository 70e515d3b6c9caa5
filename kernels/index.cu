/* SPDX-License-Identifier: BSD-3-Clause
 *
 * index.cu - embedding, its gradient, and cat. The gradient sorts the places by index (a stable radix sort), adds the
 * rows of dy in that order in pieces of a fixed length, and joins the pieces of a long run in order: no atomic addition
 * of floats, the same bits each time, and an index that everybody uses costs no more than others.
 */
#include "complex.cuh"
#include "sort.cuh"

using namespace lksi;

/* --- embedding --- */

/* Row i of y is row index[i] of the table; `each` is what one thread moves. */
template <class P>
__global__ void __launch_bounds__(LKSI_THREADS)
    gather(P *y, const P *table, walk<1> index, int64_t row, int64_t table_row, int64_t rows, int op, lksi_fault fault)
{
    const int64_t n = index.n * row, step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < n; i += step) {
        int64_t place = i / row, c = i - place * row, at[1];
        index.seek(place, at);
        int64_t v = load<int64_t>(index.data[0], index.dtype[0], at[0]);
        if (v < 0 || v >= rows) {
            if (c == 0) fail(fault, LKSI_FAULT_INDEX, op, v, place, rows);
            y[i] = P();
        } else {
            y[i] = table[v * table_row + c];
        }
    }
}

/* Any strides and dtypes; y: [places, D] over its last dim. */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS)
    gather_any(walk<1> y, walk<1> index, const void *table, int dtype, int64_t s0, int64_t s1, int64_t columns,
               int64_t rows, int op, lksi_fault fault)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < y.n; i += step) {
        int64_t place = i / columns, c = i - place * columns, at[1], to[1];
        index.seek(place, at);
        y.seek(i, to);
        int64_t v = load<int64_t>(index.data[0], index.dtype[0], at[0]);
        bool bad = v < 0 || v >= rows;
        if (bad && c == 0) fail(fault, LKSI_FAULT_INDEX, op, v, place, rows);
        store(y.data[0], y.dtype[0], to[0], bad ? (C)0 : load<C>(table, dtype, v * s0 + c * s1));
    }
}

LKSI_CUDA(embedding)
{
    const lksi_view *w = &a->in[0], *y = &a->out[0], *vi[1] = {&a->in[1]}, *vy[1] = {y};
    walk<1> index = walk_of<1>(vi, true), out = walk_of<1>(vy, true);
    int64_t columns = w->shape[1], rows = w->shape[0];
    if (out.n == 0) return LKS_OK;
    lksi_fault fault = lksi_cuda_fault(cuda);
    int size = size_of(w->dtype);
    bool dense = w->dtype == y->dtype && (w->stride[1] == 1 || columns == 1) && runs(out, 0);
    int64_t row = columns * size, table_row = w->stride[0] * size;
    unsigned blocks;
#define GATHER(P)                                                                                              \
    blocks = blocks_for(index.n * (row / (int)sizeof(P)), LKSI_THREADS);                                       \
    gather<P><<<blocks, LKSI_THREADS, 0, stream>>>((P *)y->data, (const P *)w->data, index, row / (int)sizeof(P), \
                                                   table_row / (int)sizeof(P), rows, a->op, fault)
    if (dense && row % 16 == 0 && table_row % 16 == 0 && aligned(y->data) && aligned(w->data)) {
        GATHER(uint4);
    } else if (dense && size == 4) {
        GATHER(uint32_t);
    } else if (dense && size == 2) {
        GATHER(uint16_t);
    } else {
        blocks = blocks_for(out.n, LKSI_THREADS);
        if (w->dtype == LKS_F64)
            gather_any<double><<<blocks, LKSI_THREADS, 0, stream>>>(out, index, w->data, w->dtype, w->stride[0],
                                                                    w->stride[1], columns, rows, a->op, fault);
        else
            gather_any<float><<<blocks, LKSI_THREADS, 0, stream>>>(out, index, w->data, w->dtype, w->stride[0],
                                                                   w->stride[1], columns, rows, a->op, fault);
    }
    return lksi_cuda_launched(a);
}

/* --- embedding_backward --- */

/* Keys from indices; what is out of range is reported and goes to the end. */
__global__ void __launch_bounds__(LKSI_THREADS)
    make_keys(walk<1> index, uint32_t *key, int64_t rows, int op, lksi_fault fault)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < index.n; i += step) {
        int64_t at[1];
        index.seek(i, at);
        int64_t v = load<int64_t>(index.data[0], index.dtype[0], at[0]);
        if (v < 0 || v >= rows) {
            fail(fault, LKSI_FAULT_INDEX, op, v, i, rows);
            v = rows;
        }
        key[i] = (uint32_t)v;
    }
}

#define PIECE 64 /* sorted places that one block adds */

/* Rows that no index names are 0. */
template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    clear_absent(T *dw, int64_t rows, int64_t columns, int64_t s0, int64_t s1, const uint32_t *key, int64_t n)
{
    for (int64_t v = blockIdx.x; v < rows; v += gridDim.x) {
        int64_t lo = 0, hi = n;
        while (lo < hi) { /* the same for all threads */
            int64_t mid = (lo + hi) / 2;
            if (key[mid] < v) lo = mid + 1;
            else hi = mid;
        }
        if (lo < n && key[lo] == v) continue;
        for (int64_t c = threadIdx.x; c < columns; c += LKSI_THREADS) dw[v * s0 + c * s1] = T();
    }
}

struct scatter {
    walk<1> dy; /* [places, columns] */
    const uint32_t *key, *order;
    int64_t n, rows, columns;
    void *dw;
    int dtype;
    int64_t s0, s1;
};

/* Block (piece, column tile). A run of one key inside the piece goes to dw; the part of a run that goes on over an edge
 * of the piece goes to edge[piece][0 begin, 1 end][columns]. A piece that is part of one run only uses entry 0. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) add_pieces(scatter s, C *edge, int64_t tiles)
{
    const int64_t pieces = (s.n + PIECE - 1) / PIECE;
    for (int64_t item = blockIdx.x; item < pieces * tiles; item += gridDim.x) {
        int64_t piece = item / tiles, c = (item - piece * tiles) * LKSI_THREADS + threadIdx.x;
        int64_t first = piece * PIECE, last = first + PIECE < s.n ? first + PIECE : s.n;
        if (c >= s.columns) continue;
        uint32_t k = s.key[first];
        bool open = first > 0 && s.key[first - 1] == k; /* the run began before */
        C sum = 0;
        for (int64_t i = first; i < last; i++) {
            uint32_t key = s.key[i];
            if (key != k) {
                if (open) edge[piece * 2 * s.columns + c] = sum;
                else if (k < s.rows) store(s.dw, s.dtype, k * s.s0 + c * s.s1, sum);
                k = key, sum = 0, open = false;
            }
            int64_t at[1];
            s.dy.seek(s.order[i] * s.columns + c, at);
            sum += load<C>(s.dy.data[0], s.dy.dtype[0], at[0]);
        }
        bool goes_on = last < s.n && s.key[last] == k;
        if (open) edge[piece * 2 * s.columns + c] = sum;
        else if (goes_on) edge[(piece * 2 + 1) * s.columns + c] = sum;
        else if (k < s.rows) store(s.dw, s.dtype, k * s.s0 + c * s.s1, sum);
    }
}

/* Runs that begin in one piece and go on in others: the block of the first piece adds their parts in order. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) join_pieces(scatter s, const C *edge, int64_t tiles)
{
    const int64_t pieces = (s.n + PIECE - 1) / PIECE;
    for (int64_t item = blockIdx.x; item < (pieces - 1) * tiles; item += gridDim.x) {
        int64_t piece = item / tiles, c = (item - piece * tiles) * LKSI_THREADS + threadIdx.x,
                end = (piece + 1) * PIECE;
        uint32_t k = s.key[end - 1];
        if (c >= s.columns || s.key[end] != k || k >= s.rows) continue;
        if (s.key[piece * PIECE] == k && piece > 0 && s.key[piece * PIECE - 1] == k) continue; /* began earlier */
        C sum = edge[(piece * 2 + 1) * s.columns + c];
        for (int64_t p = piece + 1; p < pieces && s.key[p * PIECE] == k; p++) sum += edge[p * 2 * s.columns + c];
        store(s.dw, s.dtype, k * s.s0 + c * s.s1, sum);
    }
}

template <class C>
static lks_status add_rows(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const scatter &s)
{
    int64_t pieces = (s.n + PIECE - 1) / PIECE, tiles = (s.columns + LKSI_THREADS - 1) / LKSI_THREADS;
    void *edge;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 1, 2 * pieces * s.columns * (int64_t)sizeof(C), &edge);
    if (code != LKS_OK) return code;
    add_pieces<C><<<blocks_for(pieces * tiles, 1), LKSI_THREADS, 0, stream>>>(s, (C *)edge, tiles);
    if (pieces > 1)
        join_pieces<C><<<blocks_for((pieces - 1) * tiles, 1), LKSI_THREADS, 0, stream>>>(s, (const C *)edge, tiles);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(embedding_backward)
{
    const lksi_view *dw = &a->out[0], *vi[1] = {&a->in[1]}, *vy[1] = {&a->in[0]};
    walk<1> index = walk_of<1>(vi, true);
    scatter s = {};
    s.dy = walk_of<1>(vy, true);
    s.n = index.n, s.rows = dw->shape[0], s.columns = dw->shape[1];
    s.dw = dw->data, s.dtype = dw->dtype, s.s0 = dw->stride[0], s.s1 = dw->stride[1];
    if (s.rows == 0 || s.columns == 0) return LKS_OK;
    if (s.n >= 0xffffffffll || s.rows >= 0xffffffffll)
        return lksi_why(a, LKS_ERR_UNSUPPORTED, "%lld indices into %lld rows: fewer than 2^32 of either",
                        (long long)s.n, (long long)s.rows);
    void *p;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, sort_bytes<uint32_t>(s.n), &p);
    if (code != LKS_OK) return code;
    sorter<uint32_t> by = sorter_of<uint32_t>(p, s.n);
    if (s.n > 0)
        make_keys<<<blocks_for(s.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(index, by.key[0], s.rows, a->op,
                                                                              lksi_cuda_fault(cuda));
    sort_by(stream, by, bits_of((uint64_t)s.rows));
    s.key = by.key[by.now], s.order = by.order[by.now];
#define CLEAR(T)                                                                                               \
    clear_absent<T><<<blocks_for(s.rows, 1), LKSI_THREADS, 0, stream>>>((T *)dw->data, s.rows, s.columns, s.s0, s.s1, \
                                                                       s.key, s.n)
    switch (size_of(dw->dtype)) {
    case 2: CLEAR(uint16_t); break;
    case 4: CLEAR(uint32_t); break;
    default: CLEAR(uint64_t); break;
    }
    if (s.n == 0) return lksi_cuda_launched(a);
    bool dbl = dw->dtype == LKS_F64 || a->in[0].dtype == LKS_F64;
    return dbl ? add_rows<double>(cuda, stream, a, s) : add_rows<float>(cuda, stream, a, s);
}

/* --- cat --- */

LKSI_CUDA(cat)
{
    (void)cuda;
    const lksi_view *y = &a->out[0];
    int dim = a->attr.dim.dim;
    int64_t at = 0;
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *x = &a->in[i];
        if (count(x) == 0) {
            if (x->ndim == y->ndim) at += x->shape[dim];
            continue;
        }
        lksi_view part = *x;
        part.dtype = y->dtype;
        for (int d = 0; d < y->ndim; d++) part.stride[d] = y->stride[d];
        part.data = (char *)y->data + at * y->stride[dim] * bytes_of(y->dtype);
        at += x->shape[dim];
        lks_status s = lksi_cuda_copy_view(stream, a, &part, x);
        if (s != LKS_OK) return s;
    }
    return LKS_OK;
}
