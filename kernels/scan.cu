/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scan.cu - what runs along one dim: cumsum, cumprod and its backward row, the linear recurrence; and the backward row
 * of prod, which runs along all reduced dims. Floats are carried in double, integers in int64 (they wrap). Lines are
 * cut into chunks of a fixed size: their totals, the totals' scan, then each chunk from what comes before it; short
 * lines, and lines that lie side by side, are a thread's.
 */
#include "rows.cuh"

using namespace lksi;

#define ITEMS 8 /* of a thread in a tile */
#define TILE (LKSI_THREADS * ITEMS)
#define CHUNK TILE

/* --- what is scanned --- */

/* y, x0, x1; buffer: [line][n] doubles of a first pass. Element k of the scan is element at(k) of the line. */
struct job {
    rows<3> r;
    int64_t n, chunks;
    int reverse;
    double *buffer;
    __device__ int64_t place(int64_t k) const { return reverse ? n - 1 - k : k; }
    template <class C> __device__ C read(int which, const int64_t base[3], int64_t k) const
    {
        int64_t at[3];
        r.inner.seek(place(k), at);
        return load<C>(r.outer.data[which], r.outer.dtype[which], base[which] + at[which]);
    }
    template <class C> __device__ void write(const int64_t base[3], int64_t k, C v) const
    {
        int64_t at[3];
        r.inner.seek(place(k), at);
        store(r.outer.data[0], r.outer.dtype[0], base[0] + at[0], v);
    }
};

namespace {
/* The sum or product up to and with element k. */
template <class C, bool PRODUCT> struct running {
    typedef C acc;
    __device__ acc none() const { return PRODUCT ? (C)1 : (C)0; }
    __device__ acc item(const job &j, int64_t, const int64_t base[3], int64_t k) const { return j.read<C>(1, base, k); }
    __device__ acc join(acc x, acc z) const { return PRODUCT ? x * z : x + z; }
    __device__ void give(const job &j, int64_t, const int64_t base[3], int64_t k, acc, acc x) const
    {
        j.write(base, k, x);
    }
};
template <bool PRODUCT> struct running<int64_t, PRODUCT> {
    typedef uint64_t acc;
    __device__ acc none() const { return PRODUCT; }
    __device__ acc item(const job &j, int64_t, const int64_t base[3], int64_t k) const
    {
        return (uint64_t)j.read<int64_t>(1, base, k);
    }
    __device__ acc join(acc x, acc z) const { return PRODUCT ? x * z : x + z; }
    __device__ void give(const job &j, int64_t, const int64_t base[3], int64_t k, acc, acc x) const
    {
        j.write(base, k, (int64_t)x);
    }
};

/* The product of what is before element k, to the buffer. */
struct before {
    typedef double acc;
    int which;
    __device__ acc none() const { return 1; }
    __device__ acc item(const job &j, int64_t, const int64_t base[3], int64_t k) const
    {
        return j.read<double>(which, base, k);
    }
    __device__ acc join(acc x, acc z) const { return x * z; }
    __device__ void give(const job &j, int64_t line, const int64_t *, int64_t k, acc left, acc) const
    {
        j.buffer[line * j.n + j.place(k)] = left;
    }
};

/* The same from the other end, times the buffer, times x0. */
struct others : before {
    __device__ void give(const job &j, int64_t line, const int64_t base[3], int64_t k, acc left, acc) const
    {
        j.write(base, k, j.read<double>(1, base, k) * j.buffer[line * j.n + j.place(k)] * left);
    }
};

/* y = b + a y before: steps (a, b), one after the other. A nothing that is multiplied stays nothing, however large a
 * product of a's is. */
struct step { double a, b; };
struct linear_steps {
    typedef step acc;
    __device__ acc none() const { return {1, 0}; }
    __device__ acc join(acc x, acc z) const { return {x.a * z.a, x.b == 0 ? z.b : z.b + z.a * x.b}; }
};
struct recur : linear_steps {
    __device__ acc item(const job &j, int64_t, const int64_t base[3], int64_t k) const
    {
        return {j.read<double>(1, base, k), j.read<double>(2, base, k)};
    }
    __device__ void give(const job &j, int64_t, const int64_t base[3], int64_t k, acc, acc x) const
    {
        j.write(base, k, x.b);
    }
};
/* cumprod's gradient: S_k = dy_k + x_{k+1} S_{k+1}, from the end of the scan, times the buffer. x0: dy, x1: x. */
struct pull_back : linear_steps {
    __device__ acc item(const job &j, int64_t, const int64_t base[3], int64_t k) const
    {
        return {k ? j.read<double>(2, base, k - 1) : 0.0, j.read<double>(1, base, k)};
    }
    __device__ void give(const job &j, int64_t line, const int64_t base[3], int64_t k, acc, acc x) const
    {
        j.write(base, k, j.buffer[line * j.n + j.place(k)] * x.b);
    }
};
}

/* --- kernels --- */

template <class A> __device__ inline A shifted(A x, int by) { return __shfl_up_sync(0xffffffffu, x, by); }
template <> __device__ inline step shifted(step x, int by)
{
    return {__shfl_up_sync(0xffffffffu, x.a, by), __shfl_up_sync(0xffffffffu, x.b, by)};
}

/* What comes before this thread's value, in the block; *all: everything. Every thread takes part. */
template <class F> __device__ inline typename F::acc ahead(const F &f, typename F::acc x, typename F::acc *all)
{
    typedef typename F::acc acc;
    __shared__ acc room[LKSI_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int by = 1; by < 32; by *= 2) {
        acc y = shifted(x, by);
        if (lane >= by) x = f.join(y, x);
    }
    if (lane == 31) room[warp] = x;
    acc left = shifted(x, 1);
    __syncthreads();
    acc sum = f.none(), mine = f.none();
    for (int w = 0; w < LKSI_THREADS / 32; w++) {
        if (w == warp) mine = sum;
        sum = f.join(sum, room[w]);
    }
    __syncthreads();
    *all = sum;
    return lane ? f.join(mine, left) : mine;
}

/* Items: (line, chunk). TOTAL: only what a chunk comes to, to part; else the results, from part on if there is one.
 * Threads read and write side by side, but scan ITEMS in a row: elements change hands in shared memory, where the runs
 * of neighbours begin in different banks. */
template <class F, bool TOTAL>
__global__ void __launch_bounds__(LKSI_THREADS) scan_chunks(F f, const __grid_constant__ job j, typename F::acc *part)
{
    typedef typename F::acc acc;
    enum { BANKS = 128 / sizeof(acc) }; /* elements that the banks hold once: a gap after each so many */
    __shared__ acc room[TILE + TILE / BANKS];
    acc *mine = room + threadIdx.x * ITEMS + threadIdx.x * ITEMS / BANKS;
    for (int64_t item = blockIdx.x; item < j.r.outer.n * j.chunks; item += gridDim.x) {
        int64_t line = item / j.chunks, base[3], first = (item - line * j.chunks) * CHUNK + threadIdx.x;
        acc x[ITEMS], sum = f.none(), all;
        j.r.outer.seek(line, base);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int k = i * LKSI_THREADS + threadIdx.x;
            x[i] = first + i * LKSI_THREADS < j.n ? f.item(j, line, base, first + i * LKSI_THREADS) : f.none();
            room[k + k / BANKS] = x[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) sum = f.join(sum, mine[i]);
        acc left = ahead(f, sum, &all);
        if (TOTAL) {
            if (threadIdx.x == 0) part[item] = all;
            continue;
        }
        if (part) left = f.join(part[item], left);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            acc own = mine[i];
            mine[i] = left;
            left = f.join(left, own);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int k = i * LKSI_THREADS + threadIdx.x;
            acc before = room[k + k / BANKS];
            if (first + i * LKSI_THREADS < j.n)
                f.give(j, line, base, first + i * LKSI_THREADS, before, f.join(before, x[i]));
        }
        __syncthreads();
    }
}

/* The totals of a line's chunks become what comes before each; a block to a line. */
template <class F>
__global__ void __launch_bounds__(LKSI_THREADS) scan_totals(F f, int64_t lines, int64_t chunks, typename F::acc *part)
{
    typedef typename F::acc acc;
    for (int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
        acc carry = f.none(), all;
        for (int64_t at = 0; at < chunks; at += LKSI_THREADS) {
            int64_t c = at + threadIdx.x;
            acc x = c < chunks ? part[line * chunks + c] : f.none(), left = ahead(f, x, &all);
            if (c < chunks) part[line * chunks + c] = f.join(carry, left);
            carry = f.join(carry, all);
        }
    }
}

/* A thread: a line. */
template <class F> __global__ void __launch_bounds__(LKSI_THREADS) scan_lines(F f, const __grid_constant__ job j)
{
    typedef typename F::acc acc;
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t line = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; line < j.r.outer.n; line += step) {
        int64_t base[3];
        acc left = f.none();
        j.r.outer.seek(line, base);
        for (int64_t k = 0; k < j.n; k++) {
            acc next = f.join(left, f.item(j, line, base, k));
            f.give(j, line, base, k, left, next);
            left = next;
        }
    }
}

template <class F> static lks_status scan(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, F f, job j)
{
    typedef typename F::acc acc;
    const int64_t lines = j.r.outer.n;
    if (lines == 0 || j.n == 0) return LKS_OK;
    if (j.n <= 32 || (j.n <= 4 * lines && lines >= 2048 && upright(j.r, 1))) {
        scan_lines<F><<<blocks_for(lines, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(f, j);
        return lksi_cuda_launched(a);
    }
    void *part = NULL;
    j.chunks = (j.n + CHUNK - 1) / CHUNK;
    if (j.chunks > 1) {
        lks_status s = lksi_cuda_scratch(cuda, stream, a, 1, lines * j.chunks * (int64_t)sizeof(acc), &part);
        if (s != LKS_OK) return s;
        scan_chunks<F, true><<<blocks_for(lines * j.chunks, 1), LKSI_THREADS, 0, stream>>>(f, j, (acc *)part);
        scan_totals<F><<<blocks_for(lines, 1), LKSI_THREADS, 0, stream>>>(f, lines, j.chunks, (acc *)part);
    }
    scan_chunks<F, false><<<blocks_for(lines * j.chunks, 1), LKSI_THREADS, 0, stream>>>(f, j, (acc *)part);
    return lksi_cuda_launched(a);
}

/* --- rows --- */

static job job_of(const lksi_view *y, const lksi_view *x0, const lksi_view *x1, unsigned mask, int reverse)
{
    const lksi_view *view[3] = {y, x0, x1};
    job j = {};
    j.r = rows_of<3>(view, mask);
    j.n = j.r.inner.n, j.reverse = reverse;
    return j;
}

static unsigned along(const lksi_args *a) { return a->out[0].ndim ? 1u << a->attr.scan.dim : 0u; }

template <bool PRODUCT> static lks_status running_row(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    job j = job_of(&a->out[0], &a->in[0], NULL, along(a), a->attr.scan.reverse);
    if (is_float(a->out[0].dtype)) return scan(cuda, stream, a, running<double, PRODUCT>(), j);
    return scan(cuda, stream, a, running<int64_t, PRODUCT>(), j);
}

LKSI_CUDA(cumsum) { return running_row<false>(cuda, stream, a); }
LKSI_CUDA(cumprod) { return running_row<true>(cuda, stream, a); }

LKSI_CUDA(recurrence)
{
    return scan(cuda, stream, a, recur(), job_of(&a->out[0], &a->in[0], &a->in[1], along(a), a->attr.scan.reverse));
}

static lks_status buffer_for(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, job *j)
{
    void *p;
    lks_status s = lksi_cuda_scratch(cuda, stream, a, 0, count(&a->out[0]) * 8, &p);
    j->buffer = (double *)p;
    return s;
}

LKSI_CUDA(cumprod_backward) /* dy, x */
{
    job j = job_of(&a->out[0], &a->in[0], &a->in[1], along(a), a->attr.scan.reverse);
    if (j.n == 0 || j.r.outer.n == 0) return LKS_OK;
    before first;
    first.which = 2;
    lks_status s = buffer_for(cuda, stream, a, &j);
    if (s == LKS_OK) s = scan(cuda, stream, a, first, j);
    j.reverse = !j.reverse;
    return s == LKS_OK ? scan(cuda, stream, a, pull_back(), j) : s;
}

LKSI_CUDA(prod_backward) /* dy, x: dy times the product of all others, from the left and from the right */
{
    const lksi_view *x = &a->in[1];
    const unsigned mask = (unsigned)a->attr.reduce.mask;
    lksi_view dy = *x;
    dy.data = a->in[0].data, dy.dtype = a->in[0].dtype;
    for (int d = 0, k = 0; d < x->ndim; d++) {
        const bool reduced = mask >> d & 1;
        dy.stride[d] = reduced ? 0 : a->in[0].stride[k];
        k += !reduced || a->attr.reduce.keepdim;
    }
    job j = job_of(&a->out[0], &dy, x, mask, 0);
    if (j.n == 0 || j.r.outer.n == 0) return LKS_OK;
    before first;
    others second;
    first.which = second.which = 2;
    lks_status s = buffer_for(cuda, stream, a, &j);
    if (s == LKS_OK) s = scan(cuda, stream, a, first, j);
    j.reverse = 1;
    return s == LKS_OK ? scan(cuda, stream, a, second, j) : s;
}
