/* SPDX-License-Identifier: BSD-3-Clause
 *
 * linalg.cu - for src/cuda/solver.c, in the second module: triangles, checks, scalings around the calls of cuSOLVER. A
 * block a matrix where something is found out about it, else a thread an element. matrices.h says what each does.
 */
#include "common.cuh"
#include "cuda/matrices.h"

using namespace lksi;

#define SHARED_ROWS 8192 /* of an order that is kept in shared memory */

namespace {
#define EACH_MATRIX(i) for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
#define EACH(e, n) for (int64_t e = threadIdx.x; e < (n); e += LKSI_THREADS)
#define ALL(e, n)                                                                                              \
    for (int64_t e = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; e < (n); e += (int64_t)gridDim.x * LKSI_THREADS)

template <class U> __global__ void clean(U *x, int64_t each, int64_t count, int32_t *bad, U exponent)
{
    EACH_MATRIX(i) {
        U *m = x + i * each;
        int found = 0;
        EACH(e, each) found |= (m[e] & exponent) == exponent;
        found = __syncthreads_or(found);
        if (found) EACH(e, each) m[e] = 0;
        if (threadIdx.x == 0) bad[i] = found != 0;
    }
}

__global__ void pointers(void **p, char *base, int64_t bytes, int64_t count) { ALL(i, count) p[i] = base + i * bytes; }

template <class T>
__global__ void upper(T *y, int64_t rows, int64_t n, const T *x, int64_t ld, int64_t step, int64_t count)
{
    ALL(e, rows * n * count) {
        int64_t r = e % rows, c = e / rows % n, i = e / rows / n;
        y[e] = r <= c ? x[i * step + c * ld + r] : (T)0;
    }
}

template <class T> __global__ void lower(T *x, int64_t n, int64_t count)
{
    ALL(e, n * n * count) {
        if (e % n < e / n % n) x[e] = 0;
    }
}

template <class T> __global__ void eye(T *x, int64_t rows, int64_t columns, int64_t count)
{
    ALL(e, rows * columns * count) x[e] = e % rows == e / rows % columns ? (T)1 : (T)0;
}

template <class T> __global__ void diagonal(const T *x, int64_t n, int64_t count, int32_t *info)
{
    __shared__ int first;
    EACH_MATRIX(i) {
        if (threadIdx.x == 0) first = 0x7fffffff;
        __syncthreads();
        EACH(e, n) {
            if (x[i * n * n + e * (n + 1)] == 0) atomicMin(&first, (int)e + 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) info[i] = first == 0x7fffffff ? 0 : first;
        __syncthreads();
    }
}

template <class T>
__global__ void divide(T *u, int64_t rows, int64_t step, const T *s, int64_t n, T rcond, int32_t *rank, int64_t count)
{
    EACH_MATRIX(i) {
        const T *v = s + i * n, least = rcond * v[0];
        EACH(e, rows * n) {
            T d = v[e / rows], *p = u + i * step + e;
            *p = d > least ? *p / d : (T)0;
        }
        if (rank && threadIdx.x == 0) {
            int32_t k = 0;
            while (k < n && v[k] > least) k++;
            rank[i] = k;
        }
    }
}

template <class T> struct pair { T re, im; };

template <class T> __global__ void pairs(pair<T> *w, pair<T> *y, const T *wri, const T *v, int64_t n, int64_t count)
{
    ALL(e, n * count) {
        const T *from = wri + e / n * 2 * n + e % n;
        w[e] = {from[0], from[n]};
    }
    if (!y) return;
    ALL(e, n * n * count) {
        int64_t c = e / n % n;
        T im = wri[e / (n * n) * 2 * n + n + c];
        if (im > 0) y[e] = {v[e], v[e + n]}; /* the first of a pair */
        else if (im < 0) y[e] = {v[e - n], -v[e]};
        else y[e] = {v[e], (T)0};
    }
}

__global__ void order(lksi_fault fault, int op, int64_t *y, int64_t n, const int32_t *swap, int64_t k, int64_t count)
{
    extern __shared__ int32_t rows[];
    bool small = n <= SHARED_ROWS;
    EACH_MATRIX(i) {
        EACH(r, n) {
            if (small) rows[r] = (int32_t)r;
            else y[i * n + r] = r;
        }
        __syncthreads();
        for (int64_t r = 0; threadIdx.x == 0 && r < k; r++) {
            int64_t with = (int64_t)swap[i * k + r] - 1;
            if (with < 0 || with >= n) {
                fail(fault, LKSI_FAULT_INDEX, op, with, i * k + r, n);
            } else if (small) {
                int32_t was = rows[r];
                rows[r] = rows[with];
                rows[with] = was;
            } else {
                int64_t was = y[i * n + r];
                y[i * n + r] = y[i * n + with];
                y[i * n + with] = was;
            }
        }
        __syncthreads();
        if (small) EACH(r, n) y[i * n + r] = rows[r];
        __syncthreads();
    }
}

template <class T> __global__ void finish(lksi_fault fault, lksi_matrices_end end, T nan, int64_t count)
{
    EACH_MATRIX(i) {
        int info = end.info[i], bad = end.bad && end.bad[i];
        if (threadIdx.x == 0) {
            if (end.to) end.to[i] = info;
            if (bad) fail(fault, LKSI_FAULT_MATRIX, end.op, 0, i, LKSI_TROUBLE_NAN);
            else if (info && end.error) fail(fault, LKSI_FAULT_MATRIX, end.op, info, i, end.trouble);
        }
        if (!info && !bad) continue;
        for (int k = 0; k < end.outputs; k++) EACH(e, end.each[k]) ((T *)end.data[k])[i * end.each[k] + e] = nan;
    }
}

unsigned blocks_of(int64_t matrices) { return blocks_for(matrices, 1); }
}

#define BOTH(kernel, blocks, ...)                                                                              \
    do {                                                                                                       \
        if (dbl) {                                                                                             \
            typedef double T;                                                                                  \
            kernel<T><<<blocks, LKSI_THREADS, 0, stream>>>(__VA_ARGS__);                                       \
        } else {                                                                                               \
            typedef float T;                                                                                   \
            kernel<T><<<blocks, LKSI_THREADS, 0, stream>>>(__VA_ARGS__);                                       \
        }                                                                                                      \
    } while (0)

extern "C" {

void lksi_matrices_clean(cudaStream_t stream, void *x, int dbl, int64_t each, int64_t count, int32_t *bad)
{
    if (dbl)
        clean<uint64_t><<<blocks_of(count), LKSI_THREADS, 0, stream>>>((uint64_t *)x, each, count, bad,
                                                                       (uint64_t)0x7ff << 52);
    else
        clean<uint32_t><<<blocks_of(count), LKSI_THREADS, 0, stream>>>((uint32_t *)x, each, count, bad,
                                                                       (uint32_t)0xff << 23);
}

void lksi_matrices_pointers(cudaStream_t stream, void **p, void *base, int64_t bytes, int64_t count)
{
    pointers<<<blocks_for(count, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(p, (char *)base, bytes, count);
}

void lksi_matrices_upper(cudaStream_t stream, void *y, int64_t rows, int64_t n, const void *x, int64_t ld, int64_t step,
                         int dbl, int64_t count)
{
    if (rows * n * count == 0) return;
    BOTH(upper, blocks_for(rows * n * count, LKSI_THREADS), (T *)y, rows, n, (const T *)x, ld, step, count);
}

void lksi_matrices_lower(cudaStream_t stream, void *x, int64_t n, int dbl, int64_t count)
{
    if (n * count == 0) return;
    BOTH(lower, blocks_for(n * n * count, LKSI_THREADS), (T *)x, n, count);
}

void lksi_matrices_eye(cudaStream_t stream, void *x, int64_t rows, int64_t columns, int dbl, int64_t count)
{
    if (rows * columns * count == 0) return;
    BOTH(eye, blocks_for(rows * columns * count, LKSI_THREADS), (T *)x, rows, columns, count);
}

void lksi_matrices_diagonal(cudaStream_t stream, const void *x, int64_t n, int dbl, int64_t count, int32_t *info)
{
    BOTH(diagonal, blocks_of(count), (const T *)x, n, count, info);
}

void lksi_matrices_divide(cudaStream_t stream, void *u, int64_t rows, int64_t step, const void *s, int64_t n,
                          double rcond, int32_t *rank, int dbl, int64_t count)
{
    BOTH(divide, blocks_of(count), (T *)u, rows, step, (const T *)s, n, (T)rcond, rank, count);
}

void lksi_matrices_pairs(cudaStream_t stream, void *w, void *y, const void *wri, const void *v, int64_t n, int dbl,
                         int64_t count)
{
    BOTH(pairs, blocks_for(n * n * count, LKSI_THREADS), (pair<T> *)w, (pair<T> *)y, (const T *)wri, (const T *)v, n,
         count);
}

void lksi_matrices_order(cudaStream_t stream, lksi_fault fault, int op, int64_t *y, int64_t n, const int32_t *swap,
                         int64_t k, int64_t count)
{
    size_t shared = n <= SHARED_ROWS ? (size_t)n * sizeof(int32_t) : 0;
    order<<<blocks_of(count), LKSI_THREADS, shared, stream>>>(fault, op, y, n, swap, k, count);
}

void lksi_matrices_finish(cudaStream_t stream, lksi_fault fault, lksi_matrices_end end, int dbl, int64_t count)
{
    BOTH(finish, blocks_of(count), fault, end, (T)__builtin_nan(""), count);
}
}
