/* SPDX-License-Identifier: BSD-3-Clause
 *
 * common.cuh - what CUDA kernel files share: elements of every dtype as compute types, tensors seen along a walk over
 * an output, launches over any number of elements. Compile with -fmad=false: the scalar formulas of table/math.h and
 * table/step.h then have the bits of the CPU; fused multiply-add is used where it is named (LKSI_FMA).
 */
#ifndef LKSI_COMMON_CUH
#define LKSI_COMMON_CUH

#include "cuda/cuda.h"
#include "table/math.h"

/* A row's kernel: LKSI_CUDA(add) { ... return lksi_cuda_launched(a); } */
#define LKSI_CUDA(name)                                                                                        \
    extern "C" lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)

#define LKSI_THREADS 256

namespace lksi {

/* --- elements --- */

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct boolean { uint8_t byte; };

/* Compute types: float for f16, bf16, f32; double for f64; int64_t for integers and bool. */
__device__ inline float f16_up(uint16_t h)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
__device__ inline uint16_t f16_down(float x)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
__device__ inline float bf16_up(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
__device__ inline uint16_t bf16_down(float x)
{
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

/* C value of an element: as the CPU's conversion tables. */
template <class C> struct get;
template <> struct get<float> {
    static __device__ float of(float x) { return x; }
    static __device__ float of(double x) { return (float)x; }
    static __device__ float of(f16 x) { return f16_up(x.bits); }
    static __device__ float of(bf16 x) { return bf16_up(x.bits); }
    static __device__ float of(int64_t x) { return (float)x; }
    static __device__ float of(int32_t x) { return (float)x; }
    static __device__ float of(uint8_t x) { return (float)x; }
    static __device__ float of(boolean x) { return x.byte ? 1.0f : 0.0f; }
};
template <> struct get<double> {
    static __device__ double of(float x) { return x; }
    static __device__ double of(double x) { return x; }
    static __device__ double of(f16 x) { return f16_up(x.bits); }
    static __device__ double of(bf16 x) { return bf16_up(x.bits); }
    static __device__ double of(int64_t x) { return (double)x; }
    static __device__ double of(int32_t x) { return x; }
    static __device__ double of(uint8_t x) { return x; }
    static __device__ double of(boolean x) { return x.byte ? 1.0 : 0.0; }
};
template <> struct get<int64_t> {
    static __device__ int64_t of(float x) { return lksi_f64_to_i64(x); }
    static __device__ int64_t of(double x) { return lksi_f64_to_i64(x); }
    static __device__ int64_t of(f16 x) { return lksi_f64_to_i64(f16_up(x.bits)); }
    static __device__ int64_t of(bf16 x) { return lksi_f64_to_i64(bf16_up(x.bits)); }
    static __device__ int64_t of(int64_t x) { return x; }
    static __device__ int64_t of(int32_t x) { return x; }
    static __device__ int64_t of(uint8_t x) { return x; }
    static __device__ int64_t of(boolean x) { return x.byte != 0; }
};

/* Element of type T from a C value: one rounding. */
template <class T> struct put;
template <> struct put<float> {
    static __device__ float of(float x) { return x; }
    static __device__ float of(double x) { return (float)x; }
    static __device__ float of(int64_t x) { return (float)x; }
};
template <> struct put<double> {
    static __device__ double of(float x) { return x; }
    static __device__ double of(double x) { return x; }
    static __device__ double of(int64_t x) { return (double)x; }
};
template <> struct put<f16> {
    static __device__ f16 of(float x) { return {f16_down(x)}; }
    static __device__ f16 of(double x) { return {f16_down(lksi_f64_to_f32_odd(x))}; }
    static __device__ f16 of(int64_t x) { return of(lksi_i64_to_f64_odd(x)); }
};
template <> struct put<bf16> {
    static __device__ bf16 of(float x) { return {bf16_down(x)}; }
    static __device__ bf16 of(double x) { return {bf16_down(lksi_f64_to_f32_odd(x))}; }
    static __device__ bf16 of(int64_t x) { return of(lksi_i64_to_f64_odd(x)); }
};
template <> struct put<int64_t> {
    static __device__ int64_t of(float x) { return lksi_f64_to_i64(x); }
    static __device__ int64_t of(double x) { return lksi_f64_to_i64(x); }
    static __device__ int64_t of(int64_t x) { return x; }
};
template <> struct put<int32_t> {
    static __device__ int32_t of(float x) { return lksi_f64_to_i32(x); }
    static __device__ int32_t of(double x) { return lksi_f64_to_i32(x); }
    static __device__ int32_t of(int64_t x) { return (int32_t)x; }
};
template <> struct put<uint8_t> {
    static __device__ uint8_t of(float x) { return lksi_f64_to_u8(x); }
    static __device__ uint8_t of(double x) { return lksi_f64_to_u8(x); }
    static __device__ uint8_t of(int64_t x) { return (uint8_t)x; }
};
template <> struct put<boolean> {
    static __device__ boolean of(float x) { return {(uint8_t)(x != 0.0f)}; }
    static __device__ boolean of(double x) { return {(uint8_t)(x != 0.0)}; }
    static __device__ boolean of(int64_t x) { return {(uint8_t)(x != 0)}; }
    static __device__ boolean of(boolean x) { return x; }
};

/* The same with the dtype known at run time only; it is the same for all threads. */
template <class C> __device__ inline C load(const void *p, int dtype, int64_t i)
{
    switch (dtype) {
    case LKS_F32: return get<C>::of(((const float *)p)[i]);
    case LKS_F64: return get<C>::of(((const double *)p)[i]);
    case LKS_F16: return get<C>::of(((const f16 *)p)[i]);
    case LKS_BF16: return get<C>::of(((const bf16 *)p)[i]);
    case LKS_I64: return get<C>::of(((const int64_t *)p)[i]);
    case LKS_I32: return get<C>::of(((const int32_t *)p)[i]);
    case LKS_U8: return get<C>::of(((const uint8_t *)p)[i]);
    default: return get<C>::of(((const boolean *)p)[i]);
    }
}

template <class C> __device__ inline void store(void *p, int dtype, int64_t i, C x)
{
    switch (dtype) {
    case LKS_F32: ((float *)p)[i] = put<float>::of(x); break;
    case LKS_F64: ((double *)p)[i] = put<double>::of(x); break;
    case LKS_F16: ((f16 *)p)[i] = put<f16>::of(x); break;
    case LKS_BF16: ((bf16 *)p)[i] = put<bf16>::of(x); break;
    case LKS_I64: ((int64_t *)p)[i] = put<int64_t>::of(x); break;
    case LKS_I32: ((int32_t *)p)[i] = put<int32_t>::of(x); break;
    case LKS_U8: ((uint8_t *)p)[i] = put<uint8_t>::of(x); break;
    default: ((boolean *)p)[i] = put<boolean>::of(x); break;
    }
}

static inline int size_of(int dtype)
{
    return dtype == LKS_F64 || dtype == LKS_I64 ? 8 : dtype == LKS_F32 || dtype == LKS_I32 ? 4
                                                  : dtype == LKS_F16 || dtype == LKS_BF16  ? 2
                                                                                           : 1;
}
static inline bool is_float(int dtype)
{
    return dtype == LKS_F32 || dtype == LKS_F64 || dtype == LKS_F16 || dtype == LKS_BF16;
}
/* Which compute type a dtype has. */
enum { CLASS_I64, CLASS_F32, CLASS_F64 };
static inline int class_of(int dtype) { return dtype == LKS_F64 ? CLASS_F64 : is_float(dtype) ? CLASS_F32 : CLASS_I64; }

/* V elements that move as one. */
template <class T, int V> struct __align__(sizeof(T) * V) pack { T v[V]; };

static inline bool aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

static inline int64_t count(const lksi_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++)
        if (v->shape[d] == 0) return 0;
    for (int d = 0; d < v->ndim; d++) n *= v->shape[d];
    return n;
}

/* --- walks --- */

/* Division by a number that stays the same: q = (high(x m) + x) >> s for x < 2^31. */
struct divisor {
    uint32_t d, m, s;
};
static inline divisor divisor_of(int64_t d)
{
    divisor r = {(uint32_t)d, 0, 0};
    if (d <= 0 || d >= (int64_t)1 << 31) return r;
    while (((uint64_t)1 << r.s) < (uint64_t)d) r.s++;
    r.m = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << r.s) - (uint64_t)d)) / (uint64_t)d + 1);
    return r;
}

/* N tensors, the first of them the output, over the output's shape: dims in the order of the output's memory (or of its
 * shape), size 1 dropped, neighbours merged where all N allow it. Passed to kernels by value. */
template <int N> struct walk {
    void *data[N];
    int dtype[N];
    int ndim, small;  /* small: fewer than 2^31 elements */
    int64_t n;        /* elements */
    int64_t shape[LKS_MAX_DIMS];
    int64_t stride[N][LKS_MAX_DIMS];
    divisor div[LKS_MAX_DIMS];

    /* Offsets of element i in elements. */
    __device__ void seek(int64_t i, int64_t offset[N]) const
    {
        if (ndim <= 1) {
#pragma unroll
            for (int k = 0; k < N; k++) offset[k] = i * stride[k][0];
            return;
        }
#pragma unroll
        for (int k = 0; k < N; k++) offset[k] = 0;
        if (small) {
            uint32_t r = (uint32_t)i;
#pragma unroll
            for (int d = LKS_MAX_DIMS - 1; d > 0; d--) {
                if (d >= ndim) continue;
                uint32_t q = (__umulhi(r, div[d].m) + r) >> div[d].s, x = r - q * div[d].d;
                r = q;
#pragma unroll
                for (int k = 0; k < N; k++) offset[k] += x * stride[k][d];
            }
#pragma unroll
            for (int k = 0; k < N; k++) offset[k] += r * stride[k][0];
            return;
        }
        int64_t r = i;
#pragma unroll
        for (int d = LKS_MAX_DIMS - 1; d > 0; d--) {
            if (d >= ndim) continue;
            int64_t q = r / shape[d], x = r - q * shape[d];
            r = q;
#pragma unroll
            for (int k = 0; k < N; k++) offset[k] += x * stride[k][d];
        }
#pragma unroll
        for (int k = 0; k < N; k++) offset[k] += r * stride[k][0];
    }
};

/* view[0] is the output, the others broadcast to its shape. by_shape: elements are numbered row-major, whatever the
 * output's memory looks like. */
template <int N> static walk<N> walk_of(const lksi_view *const view[N], bool by_shape = false)
{
    walk<N> w = {};
    const lksi_view *out = view[0];
    int order[LKS_MAX_DIMS], dims = 0;
    for (int d = 0; d < out->ndim; d++) {
        if (out->shape[d] == 1) continue;
        int at = dims++;
        for (; !by_shape && at > 0 && out->stride[order[at - 1]] < out->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    w.n = count(out);
    w.small = w.n < (int64_t)1 << 31;
    for (int k = 0; k < N; k++) w.data[k] = view[k]->data, w.dtype[k] = view[k]->dtype;
    for (int i = 0; i < dims; i++) {
        int d = order[i];
        int64_t size = out->shape[d], stride[N];
        bool merge = w.ndim > 0;
        for (int k = 0; k < N; k++) {
            int own = d - (out->ndim - view[k]->ndim);
            stride[k] = own < 0 || view[k]->shape[own] == 1 ? 0 : view[k]->stride[own];
            merge = merge && w.stride[k][w.ndim - 1] == stride[k] * size;
        }
        int to = merge ? w.ndim - 1 : w.ndim++;
        w.shape[to] = merge ? w.shape[to] * size : size;
        for (int k = 0; k < N; k++) w.stride[k][to] = stride[k];
    }
    for (int d = 0; d < w.ndim; d++) w.div[d] = divisor_of(w.shape[d]);
    return w;
}

/* Operand k lies one element after the other, or is one element for all. */
template <int N> static inline bool runs(const walk<N> &w, int k) { return w.ndim == 1 && w.stride[k][0] == 1; }
template <int N> static inline bool constant(const walk<N> &w, int k)
{
    for (int d = 0; d < w.ndim; d++)
        if (w.stride[k][d]) return false;
    return true;
}

/* --- what a running kernel finds wrong: the first one is kept, and told by the next launch or wait --- */
__device__ inline void fail(lksi_fault f, int kind, int op, int64_t value, int64_t place, int64_t limit)
{
    if (atomicCAS(f.lock, 0, 1) != 0) return;
    volatile lksi_fault_record *r = f.record;
    r->op = op, r->value = value, r->place = place, r->limit = limit;
    __threadfence_system();
    r->kind = kind;
}

/* --- launches --- */

/* Blocks that cover n elements, `each` a block; kernels step by all of them if that is more than a grid may have. */
static inline unsigned blocks_for(int64_t n, int64_t each)
{
    int64_t b = (n + each - 1) / each;
    return (unsigned)(b < 1 ? 1 : b < 0x7fffffff ? b : 0x7fffffff);
}

/* More shared memory than a kernel may have unasked. */
template <class K> static inline void room_for(K kernel, int bytes)
{
    if (bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

} // namespace lksi

#endif
