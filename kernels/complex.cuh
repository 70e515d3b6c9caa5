/* SPDX-License-Identifier: BSD-3-Clause
 *
 * complex.cuh - complex elements, for the kernels that take them besides the dtypes of common.cuh: pairs as compute
 * types, conversions from and to them, sizes and classes of every dtype.
 */
#ifndef LKSI_COMPLEX_CUH
#define LKSI_COMPLEX_CUH

#include "common.cuh"

namespace lksi {

/* A complex number; complex128 may lie at any multiple of 8. */
template <class R> struct __align__(8) pair { R re, im; };
typedef pair<float> c64;
typedef pair<double> c128;
/* 16 bytes that are only moved. */
struct bytes16 {
    uint64_t low, high;
    bytes16() = default;
    __host__ __device__ bytes16(uint64_t v) : low(v), high(0) {}
};

/* Loads any dtype; a real number gets an imaginary part of 0. */
template <class R> static __device__ inline pair<R> load_pair(const void *p, int dtype, int64_t i)
{
    if (dtype == LKS_C64) {
        c64 x = ((const c64 *)p)[i];
        return {(R)x.re, (R)x.im};
    }
    if (dtype == LKS_C128) {
        c128 x = ((const c128 *)p)[i];
        return {(R)x.re, (R)x.im};
    }
    return {load<R>(p, dtype, i), R(0)};
}
template <> __device__ inline c64 load<c64>(const void *p, int dtype, int64_t i)
{
    return load_pair<float>(p, dtype, i);
}
template <> __device__ inline c128 load<c128>(const void *p, int dtype, int64_t i)
{
    return load_pair<double>(p, dtype, i);
}

/* Stores to any dtype; a real place takes the real part (a bool: either is not 0). */
template <class R> static __device__ inline void store_pair(void *p, int dtype, int64_t i, pair<R> x)
{
    if (dtype == LKS_C64) ((c64 *)p)[i] = {(float)x.re, (float)x.im};
    else if (dtype == LKS_C128) ((c128 *)p)[i] = {(double)x.re, (double)x.im};
    else if (dtype == LKS_BOOL) ((boolean *)p)[i].byte = x.re != R(0) || x.im != R(0);
    else store(p, dtype, i, x.re);
}
template <> __device__ inline void store<c64>(void *p, int dtype, int64_t i, c64 x) { store_pair(p, dtype, i, x); }
template <> __device__ inline void store<c128>(void *p, int dtype, int64_t i, c128 x) { store_pair(p, dtype, i, x); }

static inline bool is_complex(int dtype) { return dtype == LKS_C64 || dtype == LKS_C128; }
/* size_of and class_of with the complex dtypes. */
static inline int bytes_of(int dtype) { return dtype == LKS_C128 ? 16 : dtype == LKS_C64 ? 8 : size_of(dtype); }
enum { CLASS_C64 = CLASS_F64 + 1, CLASS_C128 };
static inline int kind_of(int dtype)
{
    return dtype == LKS_C128 ? CLASS_C128 : dtype == LKS_C64 ? CLASS_C64 : class_of(dtype);
}

} // namespace lksi

/* An elementwise row with complex operands (complex.cu). */
enum { PAIRS_NONE, PAIRS_ADD, PAIRS_SUB, PAIRS_MUL, PAIRS_DIV, PAIRS_EQ, PAIRS_NE, PAIRS_EXP, PAIRS_AFFINE };
extern "C" lks_status lksi_cuda_on_pairs(cudaStream_t stream, const lksi_args *a, int formula);

#endif
