/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sort.cu - sorting along a dim, with indices. Elements become unsigned keys that rise as they do (NaN last, -0 and 0
 * alike, inverted for falling order). Short lines are sorted by a block in shared memory, key and index as one; longer
 * ones all at once by digits, first of the keys, then of the lines. Both are stable.
 */
#include "sort.cuh"

using namespace lksi;

#define SHORT 1024 /* elements of a line that a block sorts */

__device__ inline uint32_t rising(uint32_t u)
{
    if ((u << 1) > 0xff000000u) return 0xffffffffu;
    if (u << 1 == 0) u = 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ inline uint64_t rising(uint64_t u)
{
    if ((u << 1) > 0xffe0000000000000u) return ~(uint64_t)0;
    if (u << 1 == 0) u = 0;
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

/* Of element i; wide enough for every dtype, filled from below. */
__device__ inline uint64_t key_of(const void *p, int dtype, int64_t i)
{
    switch (dtype) {
    case LKS_F32: return rising(((const uint32_t *)p)[i]);
    case LKS_F64: return rising(((const uint64_t *)p)[i]);
    case LKS_F16: return rising(__float_as_uint(f16_up(((const uint16_t *)p)[i])));
    case LKS_BF16: return rising((uint32_t)((const uint16_t *)p)[i] << 16);
    case LKS_I64: return ((const uint64_t *)p)[i] ^ (uint64_t)1 << 63;
    case LKS_I32: return ((const uint32_t *)p)[i] ^ 0x80000000u;
    case LKS_U8: return ((const uint8_t *)p)[i];
    default: return ((const uint8_t *)p)[i] != 0;
    }
}

struct lines {
    walk<3> outer; /* values, indices, x: first element of each line */
    int64_t n, k, v_stride, i_stride, x_stride;
    uint64_t invert; /* all ones of a key for falling order */
};

/* Element j of line `line` of the result is x's element number `index`. */
template <class T>
__device__ inline void emit(const lines &s, const int64_t at[3], int64_t j, int64_t index)
{
    ((int64_t *)s.outer.data[1])[at[1] + j * s.i_stride] = index;
    ((T *)s.outer.data[0])[at[0] + j * s.v_stride] = ((const T *)s.outer.data[2])[at[2] + index * s.x_stride];
}

/* A bitonic network over size = 2^m places. */
template <class T>
__global__ void __launch_bounds__(LKSI_THREADS) sort_short(const __grid_constant__ lines s, int size)
{
    __shared__ uint64_t key[SHORT];
    __shared__ uint16_t index[SHORT];
    for (int64_t line = blockIdx.x; line < s.outer.n; line += gridDim.x) {
        int64_t at[3];
        s.outer.seek(line, at);
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += LKSI_THREADS) {
            key[i] = i < s.n ? key_of(s.outer.data[2], s.outer.dtype[2], at[2] + i * s.x_stride) ^ s.invert
                             : ~(uint64_t)0;
            index[i] = (uint16_t)i;
        }
        __syncthreads();
        for (int run = 2; run <= size; run *= 2)
            for (int far = run / 2; far > 0; far /= 2) {
                for (int i = threadIdx.x; i < size / 2; i += LKSI_THREADS) {
                    int p = 2 * i - (i & (far - 1)), q = p + far;
                    uint64_t a = key[p], b = key[q];
                    uint16_t x = index[p], y = index[q];
                    bool later = a > b || (a == b && x > y);
                    if (later == ((p & run) == 0)) key[p] = b, key[q] = a, index[p] = y, index[q] = x;
                }
                __syncthreads();
            }
        for (int j = threadIdx.x; j < s.k; j += LKSI_THREADS) emit<T>(s, at, j, index[j]);
    }
}

/* Lines [first, first + n / s.n) */
template <class K>
__global__ void __launch_bounds__(LKSI_THREADS)
    take_keys(const __grid_constant__ lines s, int64_t first, int64_t n, K *key)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < n; i += step) {
        int64_t line = i / s.n, at[3];
        s.outer.seek(first + line, at);
        key[i] = (K)(key_of(s.outer.data[2], s.outer.dtype[2], at[2] + (i - line * s.n) * s.x_stride) ^ s.invert);
    }
}

template <class K>
__global__ void __launch_bounds__(LKSI_THREADS) take_lines(K *key, const uint32_t *order, int64_t each, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < n; i += step) key[i] = (K)(order[i] / each);
}

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    give(const __grid_constant__ lines s, int64_t first, int64_t n, const uint32_t *order)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < n; i += step) {
        int64_t line = i / s.k, j = i - line * s.k, at[3];
        s.outer.seek(first + line, at);
        emit<T>(s, at, j, order[line * s.n + j] - line * s.n);
    }
}

template <class K, class T>
static lks_status sort_long(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lines &s, int bits)
{
    if (s.n >= (int64_t)1 << 32)
        return lksi_why(a, LKS_ERR_UNSUPPORTED, "lines of %lld elements; fewer than 2^32 can be sorted",
                        (long long)s.n);
    int64_t at_once = ((int64_t)1 << 28) / s.n; /* lines */
    at_once = at_once < 1 ? 1 : at_once > s.outer.n ? s.outer.n : at_once;
    void *p;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, sort_bytes<K>(at_once * s.n), &p);
    if (code != LKS_OK) return code;
    for (int64_t first = 0; first < s.outer.n; first += at_once) {
        int64_t count = s.outer.n - first < at_once ? s.outer.n - first : at_once, n = count * s.n;
        sorter<K> by = sorter_of<K>(p, n);
        take_keys<K><<<blocks_for(n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(s, first, n, by.key[0]);
        sort_by(stream, by, bits);
        if (count > 1) {
            take_lines<K><<<blocks_for(n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(by.key[by.now], by.order[by.now],
                                                                                   s.n, n);
            sort_by(stream, by, bits_of((uint64_t)count - 1), false);
        }
        give<T><<<blocks_for(count * s.k, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(s, first, count * s.k,
                                                                                    by.order[by.now]);
    }
    return lksi_cuda_launched(a);
}

/* v's lines along d as a tensor of their first elements; returns the stride along d. */
static int64_t first_of(lksi_view *v, int d)
{
    if (v->ndim == 0) return 1;
    int64_t stride = v->stride[d];
    v->ndim--;
    for (; d < v->ndim; d++) v->shape[d] = v->shape[d + 1], v->stride[d] = v->stride[d + 1];
    return stride;
}

LKSI_CUDA(sort)
{
    lksi_view x = a->in[0], v = a->out[0], i = a->out[1];
    const int d = a->attr.sort.dim, dtype = x.dtype, size = size_of(dtype), bits = size == 8 ? 64 : size == 1 ? 8 : 32;
    lines s;
    s.n = x.ndim ? x.shape[d] : 1, s.k = a->attr.sort.k;
    s.x_stride = first_of(&x, d), s.v_stride = first_of(&v, d), s.i_stride = first_of(&i, d);
    s.invert = a->attr.sort.descending ? ~(uint64_t)0 >> (64 - bits) : 0;
    const lksi_view *view[3] = {&v, &i, &x};
    s.outer = walk_of<3>(view, true);
    if (s.outer.n == 0 || s.k == 0) return LKS_OK;
    if (s.n <= SHORT) {
        int places = 1;
        while (places < s.n) places *= 2;
        unsigned blocks = blocks_for(s.outer.n, 1);
        switch (size) {
        case 1: sort_short<uint8_t><<<blocks, LKSI_THREADS, 0, stream>>>(s, places); break;
        case 2: sort_short<uint16_t><<<blocks, LKSI_THREADS, 0, stream>>>(s, places); break;
        case 4: sort_short<uint32_t><<<blocks, LKSI_THREADS, 0, stream>>>(s, places); break;
        default: sort_short<uint64_t><<<blocks, LKSI_THREADS, 0, stream>>>(s, places); break;
        }
        return lksi_cuda_launched(a);
    }
    switch (size) {
    case 1: return sort_long<uint32_t, uint8_t>(cuda, stream, a, s, bits);
    case 2: return sort_long<uint32_t, uint16_t>(cuda, stream, a, s, bits);
    case 4: return sort_long<uint32_t, uint32_t>(cuda, stream, a, s, bits);
    default: return sort_long<uint64_t, uint64_t>(cuda, stream, a, s, bits);
    }
}
