/* SPDX-License-Identifier: BSD-3-Clause
 *
 * complex.cu - elementwise rows of complex numbers: arithmetic, comparisons, affine and exp, to which elementwise.cu
 * comes for complex operands, and the rows that make complex numbers or take them apart. As elementwise.cu: what lies
 * in the output's order with one dtype goes 16 bytes at a time, all else through a walk.
 */
#include "elementwise.cuh"
#include "table/complex.h"

using namespace lksi;

namespace {
/* --- formulas --- */

struct add {
    template <class R> __device__ pair<R> operator()(pair<R> x, pair<R> z) const { return {x.re + z.re, x.im + z.im}; }
};
struct sub {
    template <class R> __device__ pair<R> operator()(pair<R> x, pair<R> z) const { return {x.re - z.re, x.im - z.im}; }
};
struct mul {
    template <class R> __device__ pair<R> operator()(pair<R> x, pair<R> z) const
    {
        return {x.re * z.re - x.im * z.im, x.re * z.im + x.im * z.re};
    }
};
struct divide {
    __device__ c64 operator()(c64 x, c64 z) const
    {
        c64 y;
        lksi_complex_divf(x.re, x.im, z.re, z.im, &y.re, &y.im);
        return y;
    }
    __device__ c128 operator()(c128 x, c128 z) const
    {
        c128 y;
        lksi_complex_div(x.re, x.im, z.re, z.im, &y.re, &y.im);
        return y;
    }
};
template <int NOT> struct equal {
    template <class R> __device__ boolean operator()(pair<R> x, pair<R> z) const
    {
        bool same = (x.re == z.re) & (x.im == z.im);
        return {(uint8_t)(NOT ? !same : same)};
    }
};
struct affine {
    double scale, shift;
    template <class R> __device__ pair<R> operator()(pair<R> x, pair<R>) const
    {
        R s = (R)scale, t = (R)shift;
        return {t == 0 ? s * x.re : s == 1 ? x.re + t : s * x.re + t, s * x.im};
    }
};
struct exponential {
    __device__ c64 operator()(c64 x, c64) const
    {
        double re, im;
        lksi_complex_exp(x.re, x.im, &re, &im);
        return {(float)re, (float)im};
    }
    __device__ c128 operator()(c128 x, c128) const
    {
        c128 y;
        lksi_complex_exp(x.re, x.im, &y.re, &y.im);
        return y;
    }
};
struct conjugate {
    template <class R> __device__ pair<R> operator()(pair<R> x, pair<R>) const { return {x.re, -x.im}; }
};
struct absolute {
    __device__ float operator()(c64 x, c64) const
    {
        double a = x.re, b = x.im; /* squares of floats neither overflow nor vanish */
        return fabsf(x.re) == INFINITY || fabsf(x.im) == INFINITY ? INFINITY : (float)sqrt(a * a + b * b);
    }
    __device__ double operator()(c128 x, c128) const { return hypot(x.re, x.im); }
};
struct angle {
    __device__ float operator()(c64 x, c64) const { return (float)atan2((double)x.im, (double)x.re); }
    __device__ double operator()(c128 x, c128) const { return atan2(x.im, x.re); }
    /* real numbers: 0 or pi; NaN stays */
    template <class R> __device__ R operator()(R x, R) const
    {
        return x < 0 ? (R)3.14159265358979323846 : x == 0 || x > 0 ? 0 : x;
    }
};
struct join {
    template <class R> __device__ pair<R> operator()(R x, R z) const { return {x, z}; }
};
struct polar {
    template <class R> __device__ pair<R> operator()(R r, R w) const
    {
        double x = r, sine, cosine;
        sincos((double)w, &sine, &cosine);
        return {(R)(x * cosine), (R)(x * sine)};
    }
};
}

/* --- kernels: Y is what F gives, C what it takes --- */

/* Elements of type C without gaps; V of them are the larger of 16 bytes of input and of output at most. */
template <class F, class C, class Y, int N, int V>
__global__ void __launch_bounds__(LKSI_THREADS) contiguous(F f, Y *y, const C *a, const C *b, int64_t n, int fixed)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    C one = C(), two = C();
    if (fixed & 1) one = a[0];
    if (N > 1 && fixed & 2) two = b[0];
    for (int64_t i = first; i < packs; i += step) {
        pack<C, V> x, z;
        pack<Y, V> r;
        if (!(fixed & 1)) x = ((const pack<C, V> *)a)[i];
        if (N > 1 && !(fixed & 2)) z = ((const pack<C, V> *)b)[i];
#pragma unroll
        for (int k = 0; k < V; k++) r.v[k] = f(fixed & 1 ? one : x.v[k], N == 1 ? C() : fixed & 2 ? two : z.v[k]);
        ((pack<Y, V> *)y)[i] = r;
    }
    if (first < n - packs * V) {
        int64_t i = packs * V + first;
        y[i] = f(fixed & 1 ? one : a[i], N == 1 ? C() : fixed & 2 ? two : b[i]);
    }
}

/* in, out: dtypes of C and Y in memory */
template <int N, class C, class Y, class F>
static lks_status run_as(cudaStream_t stream, const lksi_args *a, F f, int in, int out)
{
    const int V = sizeof(C) > sizeof(Y) ? 16 / sizeof(C) : 16 / sizeof(Y);
    const lksi_view *view[N + 1];
    view[0] = &a->out[0];
    for (int i = 0; i < N; i++) view[i + 1] = &a->in[i];
    walk<N + 1> w = walk_of<N + 1>(view);
    if (w.n == 0) return LKS_OK;
    int fixed = 0;
    bool plain = runs(w, 0) && aligned(w.data[0]) && w.dtype[0] == out;
    for (int i = 1; i <= N; i++) {
        plain = plain && w.dtype[i] == in;
        if (constant(w, i) && N > 1) fixed |= 1 << (i - 1);
        else plain = plain && runs(w, i) && aligned(w.data[i]);
    }
    if (plain)
        contiguous<F, C, Y, N, V><<<blocks_for(w.n, (int64_t)LKSI_THREADS * V), LKSI_THREADS, 0, stream>>>(
            f, (Y *)w.data[0], (const C *)w.data[1], (const C *)w.data[N], w.n, fixed);
    else
        strided<F, C, N><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(f, w);
    return lksi_cuda_launched(a);
}

/* Complex in and out. */
template <int N, class F> static lks_status run(cudaStream_t stream, const lksi_args *a, F f)
{
    if (a->out[0].dtype == LKS_C128) return run_as<N, c128, c128>(stream, a, f, LKS_C128, LKS_C128);
    return run_as<N, c64, c64>(stream, a, f, LKS_C64, LKS_C64);
}

/* The promoted dtype of two inputs of which one is complex, as lksi_promote_views: a 0-dim tensor does not widen a
 * complex one, and makes a real one complex without widening it. */
static int promoted(const lksi_view *x, const lksi_view *z)
{
    if ((x->ndim == 0) != (z->ndim == 0)) {
        const lksi_view *many = x->ndim == 0 ? z : x, *zero = x->ndim == 0 ? x : z;
        if (is_complex(many->dtype)) return many->dtype;
        if (is_float(many->dtype)) return many->dtype == LKS_F64 ? LKS_C128 : LKS_C64;
        return zero->dtype;
    }
    int wide = x->dtype == LKS_C128 || z->dtype == LKS_C128 || x->dtype == LKS_F64 || z->dtype == LKS_F64;
    return wide ? LKS_C128 : LKS_C64;
}

template <int NOT> static lks_status compare(cudaStream_t stream, const lksi_args *a)
{
    if (promoted(&a->in[0], &a->in[1]) == LKS_C128)
        return run_as<2, c128, boolean>(stream, a, equal<NOT>(), LKS_C128, LKS_BOOL);
    return run_as<2, c64, boolean>(stream, a, equal<NOT>(), LKS_C64, LKS_BOOL);
}

extern "C" lks_status lksi_cuda_on_pairs(cudaStream_t stream, const lksi_args *a, int formula)
{
    affine f;
    switch (formula) {
    case PAIRS_ADD: return run<2>(stream, a, add());
    case PAIRS_SUB: return run<2>(stream, a, sub());
    case PAIRS_MUL: return run<2>(stream, a, mul());
    case PAIRS_DIV: return run<2>(stream, a, divide());
    case PAIRS_EQ: return compare<0>(stream, a);
    case PAIRS_NE: return compare<1>(stream, a);
    case PAIRS_EXP: return run<1>(stream, a, exponential());
    case PAIRS_AFFINE:
        f.scale = a->attr.affine.scale, f.shift = a->attr.affine.shift;
        return run<1>(stream, a, f);
    }
    return lksi_why(a, LKS_ERR_UNSUPPORTED, "there is no kernel for complex tensors");
}

/* --- rows --- */

LKSI_CUDA(conj)
{
    (void)cuda;
    if (!is_complex(a->in[0].dtype)) return lksi_cuda_copy_view(stream, a, &a->out[0], &a->in[0]);
    return run<1>(stream, a, conjugate());
}

/* Complex in, real out: both parts of the input's precision. */
template <class F> static lks_status part(cudaStream_t stream, const lksi_args *a, F f)
{
    if (a->in[0].dtype == LKS_C128) return run_as<1, c128, double>(stream, a, f, LKS_C128, LKS_F64);
    return run_as<1, c64, float>(stream, a, f, LKS_C64, LKS_F32);
}

LKSI_CUDA(complex_abs) { return (void)cuda, part(stream, a, absolute()); }

LKSI_CUDA(angle)
{
    (void)cuda;
    if (is_complex(a->in[0].dtype)) return part(stream, a, angle());
    if (a->out[0].dtype == LKS_F64) return run_as<1, double, double>(stream, a, angle(), LKS_F64, LKS_F64);
    return run_as<1, float, float>(stream, a, angle(), LKS_F32, LKS_F32);
}

/* Two real in, complex out. */
template <class F> static lks_status both(cudaStream_t stream, const lksi_args *a, F f)
{
    if (a->out[0].dtype == LKS_C128) return run_as<2, double, c128>(stream, a, f, LKS_F64, LKS_C128);
    return run_as<2, float, c64>(stream, a, f, LKS_F32, LKS_C64);
}

LKSI_CUDA(complex) { return (void)cuda, both(stream, a, join()); }
LKSI_CUDA(polar) { return (void)cuda, both(stream, a, polar()); }
