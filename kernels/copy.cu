/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copy.cu - moving elements: clone, cast, copy, accumulate, fill, arange, slice_backward, and small uploads. Same
 * dtype: bytes are moved, by the copy engine where both sides are one run, by tiles in shared memory where they are
 * transposed. Other dtypes are converted with one rounding.
 */
#include "complex.cuh"

using namespace lksi;

/* --- same dtype --- */

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) move_strided(walk<2> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[2];
        w.seek(i, at);
        ((T *)w.data[0])[at[0]] = ((const T *)w.data[1])[at[1]];
    }
}

/* dst[..., i, j] from src where dst runs along j and src along i: dims ndim - 2 and ndim - 1 of the walk. */
#define TILE 32
#define TILE_ROWS 8
template <class T>
__global__ void __launch_bounds__(TILE *TILE_ROWS) move_across(walk<2> w, int64_t down, int64_t right, int64_t tiles)
{
    __shared__ T tile[TILE][TILE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)]; /* rows an odd number of words apart */
    const int last = w.ndim - 1, x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        int64_t column = t % right * TILE, rest = t / right, row = rest % down * TILE, to = 0, from = 0;
        rest /= down;
        for (int d = last - 2; d >= 0; d--) {
            int64_t q = rest / w.shape[d], i = rest - q * w.shape[d];
            rest = q;
            to += i * w.stride[0][d];
            from += i * w.stride[1][d];
        }
        const T *src = (const T *)w.data[1] + from + row + column * w.stride[1][last];
        T *dst = (T *)w.data[0] + to + row * w.stride[0][last - 1] + column;
        const int64_t rows = w.shape[last - 1] - row, columns = w.shape[last] - column;
        for (int j = y; j < TILE; j += TILE_ROWS)
            if (x < rows && j < columns) tile[j][x] = src[x + j * w.stride[1][last]];
        __syncthreads();
        for (int i = y; i < TILE; i += TILE_ROWS)
            if (i < rows && x < columns) dst[i * w.stride[0][last - 1] + x] = tile[x][i];
        __syncthreads();
    }
}

/* Brings the dim along which src runs next to the last one, if there is one that pays. */
static bool turn(walk<2> &w)
{
    int last = w.ndim - 1, best = -1;
    if (w.ndim < 2 || w.stride[0][last] != 1 || w.stride[1][last] <= 1 || w.shape[last] < 4) return false;
    for (int d = 0; d < last; d++)
        if (w.stride[1][d] == 1 && w.shape[d] >= 4) best = d;
    if (best < 0) return false;
    int64_t shape = w.shape[best], to = w.stride[0][best];
    for (int d = best; d < last - 1; d++) {
        w.shape[d] = w.shape[d + 1];
        w.stride[0][d] = w.stride[0][d + 1], w.stride[1][d] = w.stride[1][d + 1];
    }
    w.shape[last - 1] = shape, w.stride[0][last - 1] = to, w.stride[1][last - 1] = 1;
    return true;
}

template <class T> static void move(cudaStream_t stream, const walk<2> &w)
{
    walk<2> t = w;
    if (turn(t)) {
        int64_t down = (t.shape[t.ndim - 2] + TILE - 1) / TILE, right = (t.shape[t.ndim - 1] + TILE - 1) / TILE;
        int64_t tiles = down * right;
        for (int d = 0; d < t.ndim - 2; d++) tiles *= t.shape[d];
        move_across<T><<<blocks_for(tiles, 1), TILE * TILE_ROWS, 0, stream>>>(t, down, right, tiles);
    } else {
        move_strided<T><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(w);
    }
}

/* --- other dtypes --- */

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) convert_strided(walk<2> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[2];
        w.seek(i, at);
        store(w.data[0], w.dtype[0], at[0], load<C>(w.data[1], w.dtype[1], at[1]));
    }
}

template <class C, class Y, class X, int V>
__global__ void __launch_bounds__(LKSI_THREADS) convert_run(Y *y, const X *x, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    for (int64_t i = first; i < packs; i += step) {
        pack<X, V> p = ((const pack<X, V> *)x)[i];
        pack<Y, V> r;
#pragma unroll
        for (int k = 0; k < V; k++) r.v[k] = put<Y>::of(get<C>::of(p.v[k]));
        ((pack<Y, V> *)y)[i] = r;
    }
    if (first < n - packs * V) y[packs * V + first] = put<Y>::of(get<C>::of(x[packs * V + first]));
}

template <class C, class Y, class X> static void convert_pair(cudaStream_t stream, const walk<2> &w)
{
    const int V = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
    convert_run<C, Y, X, V><<<blocks_for(w.n, (int64_t)LKSI_THREADS * V), LKSI_THREADS, 0, stream>>>(
        (Y *)w.data[0], (const X *)w.data[1], w.n);
}

/* 1 if this pair of dtypes has a kernel for runs: those of mixed precision. */
static bool convert_plain(cudaStream_t stream, const walk<2> &w)
{
    if (!runs(w, 0) || !runs(w, 1) || !aligned(w.data[0]) || !aligned(w.data[1])) return false;
    switch (w.dtype[0] * LKS_DTYPE_COUNT + w.dtype[1]) {
#define PAIR(to, from) to * LKS_DTYPE_COUNT + from
    case PAIR(LKS_F32, LKS_BF16): convert_pair<float, float, bf16>(stream, w); return true;
    case PAIR(LKS_F32, LKS_F16): convert_pair<float, float, f16>(stream, w); return true;
    case PAIR(LKS_BF16, LKS_F32): convert_pair<float, bf16, float>(stream, w); return true;
    case PAIR(LKS_F16, LKS_F32): convert_pair<float, f16, float>(stream, w); return true;
    case PAIR(LKS_BF16, LKS_F16): convert_pair<float, bf16, f16>(stream, w); return true;
    case PAIR(LKS_F16, LKS_BF16): convert_pair<float, f16, bf16>(stream, w); return true;
    case PAIR(LKS_F64, LKS_F32): convert_pair<double, double, float>(stream, w); return true;
    case PAIR(LKS_F32, LKS_F64): convert_pair<double, float, double>(stream, w); return true;
#undef PAIR
    }
    return false;
}

/* dst = src, broadcast and converted. */
static lks_status copy_all(cudaStream_t stream, const lksi_args *a, const lksi_view *dst, const lksi_view *src)
{
    const lksi_view *view[2] = {dst, src};
    walk<2> w = walk_of<2>(view);
    if (w.n == 0) return LKS_OK;
    if (dst->dtype == src->dtype) {
        int size = bytes_of(dst->dtype);
        if (w.ndim == 0 || (runs(w, 0) && runs(w, 1))) {
            cudaMemcpyAsync(w.data[0], w.data[1], (size_t)(w.n * size), cudaMemcpyDeviceToDevice, stream);
            return lksi_cuda_launched(a);
        }
        switch (size) {
        case 1: move<uint8_t>(stream, w); break;
        case 2: move<uint16_t>(stream, w); break;
        case 4: move<uint32_t>(stream, w); break;
        case 8: move<uint64_t>(stream, w); break;
        default: move<bytes16>(stream, w); break;
        }
        return lksi_cuda_launched(a);
    }
    if (convert_plain(stream, w)) return lksi_cuda_launched(a);
    /* The class must hold every source value. */
    int cls = kind_of(src->dtype);
    if (dst->dtype == LKS_F64 && cls == CLASS_F32) cls = CLASS_F64;
    if ((dst->dtype == LKS_F32 || dst->dtype == LKS_F64) && cls == CLASS_I64) cls = class_of(dst->dtype);
    if (is_complex(dst->dtype) && cls != CLASS_C128) cls = kind_of(dst->dtype);
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    if (cls == CLASS_C64) convert_strided<c64><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_C128) convert_strided<c128><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_F32) convert_strided<float><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_F64) convert_strided<double><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else convert_strided<int64_t><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    return lksi_cuda_launched(a);
}

extern "C" lks_status lksi_cuda_copy_view(cudaStream_t stream, const lksi_args *a, const lksi_view *dst,
                                          const lksi_view *src)
{
    return copy_all(stream, a, dst, src);
}

LKSI_CUDA(clone)
{
    (void)cuda;
    return copy_all(stream, a, &a->out[0], &a->in[0]);
}

LKSI_CUDA(cast)
{
    (void)cuda;
    return copy_all(stream, a, &a->out[0], &a->in[0]);
}

LKSI_CUDA(copy)
{
    (void)cuda;
    return copy_all(stream, a, &a->out[0], &a->in[0]);
}

/* --- accumulate --- */

template <class C> __device__ inline C plus(C x, C z) { return x + z; }
template <> __device__ inline int64_t plus(int64_t x, int64_t z) { return (int64_t)((uint64_t)x + (uint64_t)z); }
template <> __device__ inline c64 plus(c64 x, c64 z) { return {x.re + z.re, x.im + z.im}; }
template <> __device__ inline c128 plus(c128 x, c128 z) { return {x.re + z.re, x.im + z.im}; }

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) accumulate_strided(walk<2> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[2];
        w.seek(i, at);
        C x = load<C>(w.data[1], w.dtype[1], at[1]);
        store(w.data[0], w.dtype[0], at[0], plus(load<C>(w.data[0], w.dtype[0], at[0]), x));
    }
}

template <class C, class T, int V>
__global__ void __launch_bounds__(LKSI_THREADS) accumulate_run(T *y, const T *x, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    for (int64_t i = first; i < packs; i += step) {
        pack<T, V> p = ((const pack<T, V> *)x)[i], r = ((const pack<T, V> *)y)[i];
#pragma unroll
        for (int k = 0; k < V; k++) r.v[k] = put<T>::of(get<C>::of(r.v[k]) + get<C>::of(p.v[k]));
        ((pack<T, V> *)y)[i] = r;
    }
    if (first < n - packs * V) {
        int64_t i = packs * V + first;
        y[i] = put<T>::of(get<C>::of(y[i]) + get<C>::of(x[i]));
    }
}

template <class C, class T> static void accumulate_plain(cudaStream_t stream, const walk<2> &w)
{
    const int V = 16 / sizeof(T);
    accumulate_run<C, T, V><<<blocks_for(w.n, (int64_t)LKSI_THREADS * V), LKSI_THREADS, 0, stream>>>(
        (T *)w.data[0], (const T *)w.data[1], w.n);
}

LKSI_CUDA(accumulate)
{
    (void)cuda;
    const lksi_view *view[2] = {&a->out[0], &a->in[0]};
    walk<2> w = walk_of<2>(view);
    if (w.n == 0) return LKS_OK;
    int dtype = w.dtype[0], cls = kind_of(dtype);
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    if (is_complex(dtype) && dtype == w.dtype[1] && runs(w, 0) && runs(w, 1)) { /* as real numbers */
        w.n *= 2;
        w.dtype[0] = w.dtype[1] = dtype = dtype == LKS_C64 ? LKS_F32 : LKS_F64;
        cls = class_of(dtype);
        w.small = w.n < (int64_t)1 << 31;
        blocks = blocks_for(w.n, LKSI_THREADS);
    }
    if (dtype == w.dtype[1] && is_float(dtype) && runs(w, 0) && runs(w, 1) && aligned(w.data[0]) &&
        aligned(w.data[1])) {
        if (dtype == LKS_F32) accumulate_plain<float, float>(stream, w);
        else if (dtype == LKS_F64) accumulate_plain<double, double>(stream, w);
        else if (dtype == LKS_F16) accumulate_plain<float, f16>(stream, w);
        else accumulate_plain<float, bf16>(stream, w);
    } else if (cls == CLASS_F32) {
        accumulate_strided<float><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    } else if (cls == CLASS_F64) {
        accumulate_strided<double><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    } else if (cls == CLASS_C64) {
        accumulate_strided<c64><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    } else if (cls == CLASS_C128) {
        accumulate_strided<c128><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    } else {
        accumulate_strided<int64_t><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    }
    return lksi_cuda_launched(a);
}

/* --- fills --- */

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) fill_strided(walk<1> w, T bits)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[1];
        w.seek(i, at);
        ((T *)w.data[0])[at[0]] = bits;
    }
}

template <class T, int V> __global__ void __launch_bounds__(LKSI_THREADS) fill_run(T *y, int64_t n, T bits)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    pack<T, V> r;
#pragma unroll
    for (int k = 0; k < V; k++) r.v[k] = bits;
    for (int64_t i = first; i < packs; i += step) ((pack<T, V> *)y)[i] = r;
    if (first < n - packs * V) y[packs * V + first] = bits;
}

template <class T> static void fill_bits(cudaStream_t stream, const walk<1> &w, T bits)
{
    const int V = 16 / sizeof(T);
    if (runs(w, 0) && aligned(w.data[0]))
        fill_run<T, V>
            <<<blocks_for(w.n, (int64_t)LKSI_THREADS * V), LKSI_THREADS, 0, stream>>>((T *)w.data[0], w.n, bits);
    else
        fill_strided<T><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(w, bits);
}

LKSI_CUDA(fill)
{
    (void)cuda;
    const lksi_view *view[1] = {&a->out[0]};
    walk<1> w = walk_of<1>(view);
    double v = a->attr.fill.value;
    if (w.n == 0) return LKS_OK;
    switch (w.dtype[0]) {
    case LKS_F32: fill_bits(stream, w, lksi_bits_f32((float)v)); break;
    case LKS_F64: fill_bits(stream, w, lksi_bits_f64(v)); break;
    case LKS_F16: fill_bits(stream, w, lksi_f64_to_f16(v)); break;
    case LKS_BF16: fill_bits(stream, w, lksi_f64_to_bf16(v)); break;
    case LKS_I64: fill_bits(stream, w, (uint64_t)lksi_f64_to_i64(v)); break;
    case LKS_I32: fill_bits(stream, w, (uint32_t)lksi_f64_to_i32(v)); break;
    case LKS_U8: fill_bits(stream, w, lksi_f64_to_u8(v)); break;
    case LKS_C64: fill_bits(stream, w, (uint64_t)lksi_bits_f32((float)v)); break; /* the real part is the lower half */
    case LKS_C128: fill_bits(stream, w, bytes16(lksi_bits_f64(v))); break;
    default: fill_bits(stream, w, (uint8_t)((lksi_bits_f64(v) & 0x7fffffffffffffffu) != 0)); break;
    }
    return lksi_cuda_launched(a);
}

__global__ void __launch_bounds__(LKSI_THREADS) count_up(walk<1> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[1];
        w.seek(i, at);
        store(w.data[0], w.dtype[0], at[0], i);
    }
}

LKSI_CUDA(arange)
{
    (void)cuda;
    const lksi_view *view[1] = {&a->out[0]};
    walk<1> w = walk_of<1>(view, true); /* numbers follow the shape, not memory */
    if (w.n == 0) return LKS_OK;
    count_up<<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(w);
    return lksi_cuda_launched(a);
}

/* --- slice_backward: dy in its window of dx, 0 outside, in one pass --- */

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    spread(walk<2> w, int64_t inner, int64_t size, int64_t start, int64_t by, int64_t n, int64_t stride)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[2], row = i / inner, j = row % size - start, k = j / by;
        w.seek(i, at);
        T v = 0;
        if (j >= 0 && k < n && k * by == j) v = ((const T *)w.data[1])[at[1] + k * stride];
        ((T *)w.data[0])[at[0]] = v;
    }
}

LKSI_CUDA(slice_backward)
{
    (void)cuda;
    const lksi_view *dx = &a->out[0];
    int d = a->attr.slice.dim;
    lksi_view dy = a->in[0];
    int64_t n = dy.shape[d], stride = dy.stride[d], inner = 1;
    /* dy as if each place along dim were its first one; the kernel adds the rest. */
    dy.shape[d] = dx->shape[d], dy.stride[d] = 0;
    const lksi_view *view[2] = {dx, &dy};
    walk<2> w = walk_of<2>(view, true);
    if (w.n == 0) return LKS_OK;
    for (int k = d + 1; k < dx->ndim; k++) inner *= dx->shape[k];
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
#define SPREAD(T) \
    spread<T><<<blocks, LKSI_THREADS, 0, stream>>>(w, inner, dx->shape[d], a->attr.slice.start, a->attr.slice.step, n, \
                                                   stride)
    switch (bytes_of(dx->dtype)) {
    case 1: SPREAD(uint8_t); break;
    case 2: SPREAD(uint16_t); break;
    case 4: SPREAD(uint32_t); break;
    case 8: SPREAD(uint64_t); break;
    default: SPREAD(bytes16); break;
    }
    return lksi_cuda_launched(a);
}

/* --- small uploads: the bytes travel as the kernel's argument --- */

template <int N> struct bytes { uint8_t b[N]; };

template <int N> __global__ void write_bytes(const __grid_constant__ bytes<N> src, uint8_t *dst, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) dst[i] = src.b[i];
}

template <int N> static void write_part(cudaStream_t stream, uint8_t *dst, const uint8_t *src, int n)
{
    bytes<N> b;
    memcpy(b.b, src, (size_t)n);
    write_bytes<N><<<1, n < 256 ? (n + 31) / 32 * 32 : 256, 0, stream>>>(b, dst, n);
}

extern "C" cudaError_t lksi_cuda_write(cudaStream_t stream, void *dst, const void *src, int64_t n)
{
    uint8_t *to = (uint8_t *)dst;
    const uint8_t *from = (const uint8_t *)src;
    for (int64_t at = 0; at < n; at += 2048) {
        int k = n - at < 2048 ? (int)(n - at) : 2048;
        if (k <= 64) write_part<64>(stream, to + at, from + at, k);
        else if (k <= 512) write_part<512>(stream, to + at, from + at, k);
        else write_part<2048>(stream, to + at, from + at, k);
    }
    return cudaGetLastError();
}
