/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.cu - products that are not one matrix product: dot products along a dim, and the bilinear form, whose
 * matrix products are blas.c's. Sums go in a fixed order.
 */
#include "common.cuh"

using namespace lksi;

#define CHUNK 32768 /* elements of a dot product that one block takes */

/* Scratch; those of products in blas.c are below. */
enum { PARTS = LKSI_CUDA_PRODUCT_SLOTS, LEFT = LKSI_CUDA_PRODUCT_SLOTS, WEIGHT, MIDDLE };

/* The threads' values added in a fixed tree; thread 0 has the result. */
template <class C> __device__ inline C total(C x, C *room)
{
    room[threadIdx.x] = x;
    for (int half = LKSI_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) room[threadIdx.x] = x = x + room[threadIdx.x + half];
    }
    __syncthreads();
    return x;
}

struct dots {
    walk<3> outer; /* z, x, y */
    int64_t n, x_stride, y_stride, chunks;
};

/* Block: (output, chunk) */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) dot_rows(const __grid_constant__ dots d, double *part)
{
    __shared__ C room[LKSI_THREADS];
    for (int64_t item = blockIdx.x; item < d.outer.n * d.chunks; item += gridDim.x) {
        int64_t out = item / d.chunks, first = (item - out * d.chunks) * CHUNK, at[3];
        int64_t last = first + CHUNK < d.n ? first + CHUNK : d.n;
        d.outer.seek(out, at);
        C sum = 0;
        for (int64_t i = first + threadIdx.x; i < last; i += LKSI_THREADS)
            sum += load<C>(d.outer.data[1], d.outer.dtype[1], at[1] + i * d.x_stride) *
                   load<C>(d.outer.data[2], d.outer.dtype[2], at[2] + i * d.y_stride);
        sum = total(sum, room);
        if (threadIdx.x != 0) continue;
        if (d.chunks == 1) store(d.outer.data[0], d.outer.dtype[0], at[0], sum);
        else part[item] = (double)sum;
    }
}

/* A thread: an output. For short sums, and where outputs lie side by side. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) dot_columns(const __grid_constant__ dots d)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t out = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; out < d.outer.n; out += step) {
        int64_t at[3];
        d.outer.seek(out, at);
        C sum[4] = {0, 0, 0, 0};
        int64_t i = 0;
        for (; i + 4 <= d.n; i += 4)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[k] += load<C>(d.outer.data[1], d.outer.dtype[1], at[1] + (i + k) * d.x_stride) *
                          load<C>(d.outer.data[2], d.outer.dtype[2], at[2] + (i + k) * d.y_stride);
        for (; i < d.n; i++)
            sum[0] += load<C>(d.outer.data[1], d.outer.dtype[1], at[1] + i * d.x_stride) *
                      load<C>(d.outer.data[2], d.outer.dtype[2], at[2] + i * d.y_stride);
        store(d.outer.data[0], d.outer.dtype[0], at[0], (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}

static __global__ void __launch_bounds__(LKSI_THREADS) join_dots(const __grid_constant__ dots d, const double *part)
{
    __shared__ double room[LKSI_THREADS];
    for (int64_t out = blockIdx.x; out < d.outer.n; out += gridDim.x) {
        double sum = 0;
        for (int64_t c = threadIdx.x; c < d.chunks; c += LKSI_THREADS) sum += part[out * d.chunks + c];
        sum = total(sum, room);
        if (threadIdx.x != 0) continue;
        int64_t at[3];
        d.outer.seek(out, at);
        store(d.outer.data[0], d.outer.dtype[0], at[0], sum);
    }
}

/* v without dim d of the broadcast shape of ndim dims; returns its stride there. */
static int64_t take_out(lksi_view *v, int ndim, int d)
{
    d -= ndim - v->ndim;
    if (d < 0) return 0;
    int64_t stride = v->shape[d] == 1 ? 0 : v->stride[d];
    v->ndim--;
    for (; d < v->ndim; d++) v->shape[d] = v->shape[d + 1], v->stride[d] = v->stride[d + 1];
    return stride;
}

LKSI_CUDA(linalg_vecdot)
{
    lksi_view x = a->in[0], y = a->in[1];
    const lksi_view *z = &a->out[0];
    const int ndim = x.ndim > y.ndim ? x.ndim : y.ndim, dim = a->attr.dim.dim;
    dots d = {};
    d.n = 1;
    for (int k = 0; k < 2; k++) {
        int own = dim - (ndim - a->in[k].ndim);
        if (own >= 0 && a->in[k].shape[own] != 1) d.n = a->in[k].shape[own];
    }
    d.x_stride = take_out(&x, ndim, dim), d.y_stride = take_out(&y, ndim, dim);
    const lksi_view *view[3] = {z, &x, &y};
    d.outer = walk_of<3>(view, true);
    if (d.outer.n == 0) return LKS_OK;
    d.chunks = d.n > CHUNK ? (d.n + CHUNK - 1) / CHUNK : 1;
    const bool dbl = z->dtype == LKS_F64;
    if (d.n <= 16 || (d.outer.n >= 8192 && d.x_stride != 1 && d.y_stride != 1)) {
        unsigned blocks = blocks_for(d.outer.n, LKSI_THREADS);
        if (dbl) dot_columns<double><<<blocks, LKSI_THREADS, 0, stream>>>(d);
        else dot_columns<float><<<blocks, LKSI_THREADS, 0, stream>>>(d);
        return lksi_cuda_launched(a);
    }
    void *part = NULL;
    if (d.chunks > 1) {
        lks_status s = lksi_cuda_scratch(cuda, stream, a, PARTS, d.outer.n * d.chunks * 8, &part);
        if (s != LKS_OK) return s;
    }
    unsigned blocks = blocks_for(d.outer.n * d.chunks, 1);
    if (dbl) dot_rows<double><<<blocks, LKSI_THREADS, 0, stream>>>(d, (double *)part);
    else dot_rows<float><<<blocks, LKSI_THREADS, 0, stream>>>(d, (double *)part);
    if (d.chunks > 1)
        join_dots<<<blocks_for(d.outer.n, 1), LKSI_THREADS, 0, stream>>>(d, (const double *)part);
    return lksi_cuda_launched(a);
}

/* --- bilinear: t[o, r, :] = x1[r] W[o], a block of rows at a time, then dot products with x2 --- */

struct forms {
    walk<1> y, z;     /* x2 [rows, J], result [rows, O] */
    const void *bias; /* or NULL */
    int bias_dtype;
    int64_t bias_stride, first, rows, outputs, n; /* rows of this block, from first on; n: J */
};

/* A warp: one output. */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) close_forms(const __grid_constant__ forms f, const C *t)
{
    const int lane = threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (LKSI_THREADS / 32), items = f.rows * f.outputs;
    for (int64_t item = (int64_t)blockIdx.x * (LKSI_THREADS / 32) + threadIdx.x / 32; item < items; item += step) {
        int64_t r = item / f.outputs, o = item - r * f.outputs, at[1];
        C sum = 0;
        for (int64_t j = lane; j < f.n; j += 32) {
            f.y.seek((f.first + r) * f.n + j, at);
            sum += t[(o * f.rows + r) * f.n + j] * load<C>(f.y.data[0], f.y.dtype[0], at[0]);
        }
        for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (lane != 0) continue;
        if (f.bias) sum += load<C>(f.bias, f.bias_dtype, o * f.bias_stride);
        f.z.seek((f.first + r) * f.outputs + o, at);
        store(f.z.data[0], f.z.dtype[0], at[0], sum);
    }
}

static void dense(lksi_view *v)
{
    int64_t n = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        v->stride[d] = n;
        n *= v->shape[d];
    }
}

/* v in dtype, dense, in scratch */
static lks_status unfold(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int dtype, lksi_view *v)
{
    lksi_view to = *v;
    to.dtype = dtype;
    dense(&to);
    lks_status s = lksi_cuda_scratch(cuda, stream, a, slot, count(&to) * size_of(dtype) + 16, &to.data);
    if (s == LKS_OK) s = lksi_cuda_copy_view(stream, a, &to, v);
    *v = to;
    return s;
}

LKSI_CUDA(bilinear)
{
    lksi_view x = a->in[0], w = a->in[2], t = {};
    const lksi_view *y = &a->in[1], *z = &a->out[0], *bias = a->nin > 3 && a->in[3].ndim >= 0 ? &a->in[3] : NULL;
    const lksi_view *vy[1] = {y}, *vz[1] = {z};
    const int dtype = x.dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    forms f = {};
    f.y = walk_of<1>(vy, true), f.z = walk_of<1>(vz, true);
    f.outputs = w.shape[0], f.n = w.shape[2];
    if (f.z.n == 0) return LKS_OK;
    const int64_t rows = f.z.n / f.outputs, inner = w.shape[1];
    if (bias) f.bias = bias->data, f.bias_dtype = bias->dtype, f.bias_stride = bias->stride[0];
    lks_status s = unfold(cuda, stream, a, LEFT, dtype, &x);
    if (s == LKS_OK && w.dtype != dtype) s = unfold(cuda, stream, a, WEIGHT, dtype, &w);
    if (s != LKS_OK) return s;
    int64_t each = f.outputs * f.n * size_of(dtype), block = ((int64_t)64 << 20) / (each + 1);
    block = block < 64 ? 64 : block;
    if (block > rows) block = rows;
    s = lksi_cuda_scratch(cuda, stream, a, MIDDLE, block * each + 16, &t.data);
    if (s != LKS_OK) return s;
    for (f.first = 0; f.first < rows; f.first += block) {
        f.rows = rows - f.first < block ? rows - f.first : block;
        lksi_view left = x;
        left.data = (char *)x.data + f.first * inner * size_of(dtype);
        left.ndim = 2, left.shape[0] = f.rows, left.shape[1] = inner;
        t.dtype = dtype, t.ndim = 3;
        t.shape[0] = f.outputs, t.shape[1] = f.rows, t.shape[2] = f.n;
        dense(&left), dense(&t);
        if (f.n > 0 && (s = lksi_cuda_product(cuda, stream, a, &left, &w, &t)) != LKS_OK) return s;
        unsigned blocks = blocks_for(f.rows * f.outputs, LKSI_THREADS / 32);
        if (dtype == LKS_F64) close_forms<double><<<blocks, LKSI_THREADS, 0, stream>>>(f, (const double *)t.data);
        else close_forms<float><<<blocks, LKSI_THREADS, 0, stream>>>(f, (const float *)t.data);
    }
    return lksi_cuda_launched(a);
}
