/* SPDX-License-Identifier: BSD-3-Clause
 *
 * elementwise.cu - elementwise rows, with the formulas of the CPU. Operands that lie in the output's order and have one
 * dtype go 16 bytes at a time; all else (strides, broadcasts, mixed dtypes) through a walk, neighbours by neighbouring
 * threads. Arithmetic is in float for f16, bf16 and f32, in double for f64, in int64 (which wraps) for integers.
 */
#include "elementwise.cuh"

using namespace lksi;

/* --- formulas --- */

#define BINARY(name, f32, f64)                                                                                 \
    struct name {                                                                                              \
        enum { FLOATS_ONLY = 1 };                                                                              \
        __device__ float operator()(float x, float z) const { return f32; }                                    \
        __device__ double operator()(double x, double z) const { return f64; }                                 \
    };
#define ARITHMETIC(name, op)                                                                                   \
    struct name {                                                                                              \
        enum { FLOATS_ONLY = 0 };                                                                              \
        __device__ float operator()(float x, float z) const { return x op z; }                                 \
        __device__ double operator()(double x, double z) const { return x op z; }                              \
        __device__ int64_t operator()(int64_t x, int64_t z) const                                              \
        {                                                                                                      \
            return (int64_t)((uint64_t)x op(uint64_t) z);                                                      \
        }                                                                                                      \
    };
#define COMPARISON(name, op)                                                                                   \
    struct name {                                                                                              \
        enum { FLOATS_ONLY = 0 };                                                                              \
        template <class C> __device__ boolean operator()(C x, C z) const { return {(uint8_t)(x op z)}; }       \
    };
#define UNARY(name, f32, f64)                                                                                  \
    struct name {                                                                                              \
        enum { FLOATS_ONLY = 1 };                                                                              \
        __device__ float operator()(float x, float) const { return f32; }                                      \
        __device__ double operator()(double x, double) const { return f64; }                                   \
    };

namespace {
ARITHMETIC(add, +)
ARITHMETIC(sub, -)
ARITHMETIC(mul, *)
BINARY(divide, x / z, x / z)
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
UNARY(exponential, lksi_expf(x), exp(x))
UNARY(logarithm, lksi_logf(x), log(x))
UNARY(root, __fsqrt_rn(x), __dsqrt_rn(x))
UNARY(tangent, lksi_tanhf(x), tanh(x))
UNARY(sigmoid, lksi_sigmoidf(x), lksi_sigmoid(x))
UNARY(gelu_erf, lksi_geluf(x), lksi_gelu(x))
UNARY(gelu_tanh, lksi_gelu_tanhf(x), lksi_gelu_tanh(x))
struct relu {
    enum { FLOATS_ONLY = 0 };
    template <class C> __device__ C operator()(C x, C) const { return x <= (C)0 ? (C)0 : x; } /* NaN is not <= 0 */
};
BINARY(sqrt_backward, x == 0.0f ? 0.0f : x / (z + z), x == 0.0 ? 0.0 : x / (z + z))
BINARY(tanh_backward, x * (1.0f - z * z), x * (1.0 - z * z))
BINARY(sigmoid_backward, x * (z * (1.0f - z)), x * (z * (1.0 - z)))
BINARY(relu_backward, z <= 0.0f ? 0.0f : x, z <= 0.0 ? 0.0 : x)
BINARY(gelu_erf_backward, x * lksi_gelu_slopef(z), x * lksi_gelu_slope(z))
BINARY(gelu_tanh_backward, x * lksi_gelu_tanh_slopef(z), x * lksi_gelu_tanh_slope(z))

/* Halves are rounded to even; a NaN stays one. BACKWARD: x is dy, z what was quantised. */
template <bool BACKWARD> struct quantize {
    enum { FLOATS_ONLY = 1 };
    double scale, zero, min, max;
    static __device__ float whole(float x) { return rintf(x); }
    static __device__ double whole(double x) { return rint(x); }
    template <class C> __device__ C operator()(C x, C z) const
    {
        C low = (C)min, high = (C)max, v = whole((BACKWARD ? z : x) * ((C)1 / (C)scale)) + (C)zero;
        if (BACKWARD) return v >= low && v <= high ? x : (C)0;
        v = v < low ? low : v;
        return ((v > high ? high : v) - (C)zero) * (C)scale;
    }
};

/* scale 1 adds, shift 0 multiplies: so that -0 and infinities come out as from one operation. */
struct affine {
    enum { FLOATS_ONLY = 0 };
    double scale, shift;
    template <class C> __device__ C operator()(C x, C) const
    {
        C s = (C)scale, t = (C)shift;
        return shift == 0.0 ? s * x : scale == 1.0 ? x + t : s * x + t;
    }
    __device__ int64_t operator()(int64_t x, int64_t) const
    {
        return (int64_t)((uint64_t)(int64_t)scale * (uint64_t)x + (uint64_t)(int64_t)shift);
    }
};
}

/* The same formula for complex numbers. */
template <class F> struct pairs { enum { FORMULA = PAIRS_NONE }; };
#define ON_PAIRS(name, formula)                                                                                \
    template <> struct pairs<name> { enum { FORMULA = formula }; };
ON_PAIRS(add, PAIRS_ADD)
ON_PAIRS(sub, PAIRS_SUB)
ON_PAIRS(mul, PAIRS_MUL)
ON_PAIRS(divide, PAIRS_DIV)
ON_PAIRS(eq, PAIRS_EQ)
ON_PAIRS(ne, PAIRS_NE)
ON_PAIRS(exponential, PAIRS_EXP)
ON_PAIRS(affine, PAIRS_AFFINE)

/* --- contiguous, one dtype --- */

#define UNROLL 2 /* packs a thread */

template <class F, class C, class T, class Y, int N, int V>
__global__ void __launch_bounds__(LKSI_THREADS) contiguous(F f, Y *y, const T *a, const T *b, int64_t n, int fixed)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS * UNROLL;
    C one = C(), two = C();
    if (fixed & 1) one = get<C>::of(a[0]);
    if (N > 1 && fixed & 2) two = get<C>::of(b[0]);
    const int64_t packs = n / V;
    for (int64_t base = (int64_t)blockIdx.x * LKSI_THREADS * UNROLL + threadIdx.x; base < packs; base += step) {
        pack<T, V> x[UNROLL], z[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int64_t i = base + u * LKSI_THREADS;
            if (i >= packs) break;
            if (!(fixed & 1)) x[u] = ((const pack<T, V> *)a)[i];
            if (N > 1 && !(fixed & 2)) z[u] = ((const pack<T, V> *)b)[i];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int64_t i = base + u * LKSI_THREADS;
            if (i >= packs) break;
            pack<Y, V> r;
#pragma unroll
            for (int k = 0; k < V; k++) {
                C p = fixed & 1 ? one : get<C>::of(x[u].v[k]), q = N == 1      ? C()
                                                                   : fixed & 2 ? two
                                                                               : get<C>::of(z[u].v[k]);
                r.v[k] = put<Y>::of(f(p, q));
            }
            ((pack<Y, V> *)y)[i] = r;
        }
    }
    /* The rest, shorter than a pack. */
    if (blockIdx.x == 0 && threadIdx.x < n - packs * V) {
        int64_t i = packs * V + threadIdx.x;
        C p = fixed & 1 ? one : get<C>::of(a[i]), q = N == 1 ? C() : fixed & 2 ? two : get<C>::of(b[i]);
        y[i] = put<Y>::of(f(p, q));
    }
}

/* --- everything else --- */

/* f of operands that are rounded to these dtypes first, as comparisons happen in the promoted one; -1: as they are. */
template <class F> struct rounded {
    F f;
    int dtype[2];
    template <class C> static __device__ C to(int dtype, C x)
    {
        return dtype == LKS_F16    ? get<C>::of(put<f16>::of(x))
               : dtype == LKS_BF16 ? get<C>::of(put<bf16>::of(x))
                                   : x;
    }
    template <class C> __device__ auto operator()(C x, C z) const { return f(to(dtype[0], x), to(dtype[1], z)); }
};

template <class F, class C, class T, class Y, int N>
static void launch_contiguous(cudaStream_t stream, const walk<N + 1> &w, F f, int fixed)
{
    const int V = 16 / sizeof(T);
    const T *b = N > 1 ? (const T *)w.data[N] : NULL;
    contiguous<F, C, T, Y, N, V><<<blocks_for(w.n, (int64_t)LKSI_THREADS * UNROLL * V), LKSI_THREADS, 0, stream>>>(
        f, (Y *)w.data[0], (const T *)w.data[1], b, w.n, fixed);
}

/* CMP: the result is a byte. */
template <bool CMP, class F, class C, class T, int N> struct pick {
    static void go(cudaStream_t s, const walk<N + 1> &w, F f, int fixed)
    {
        launch_contiguous<F, C, T, T, N>(s, w, f, fixed);
    }
};
template <class F, class C, class T, int N> struct pick<true, F, C, T, N> {
    static void go(cudaStream_t s, const walk<N + 1> &w, F f, int fixed)
    {
        launch_contiguous<F, C, T, boolean, N>(s, w, f, fixed);
    }
};

template <bool CMP, class F, int N, bool FLOATS> struct integers {
    static void contiguous_i64(cudaStream_t s, const walk<N + 1> &w, F f, int fixed)
    {
        pick<CMP, F, int64_t, int64_t, N>::go(s, w, f, fixed);
    }
    static void any(cudaStream_t s, const walk<N + 1> &w, F f)
    {
        strided<F, int64_t, N><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, s>>>(f, w);
    }
};
template <bool CMP, class F, int N> struct integers<CMP, F, N, true> {
    static void contiguous_i64(cudaStream_t, const walk<N + 1> &, F, int) {}
    static void any(cudaStream_t, const walk<N + 1> &, F) {}
};

/* The promoted dtype of two inputs: 0-dim tensors do not widen within their category. As lksi_promote_views. */
static int category(int t) { return is_float(t) ? 2 : t == LKS_BOOL ? 0 : 1; }
static int promoted(const lksi_view *x, const lksi_view *z)
{
    int a = x->dtype, b = z->dtype;
    if ((x->ndim == 0) != (z->ndim == 0)) {
        int wide = x->ndim == 0 ? b : a, zero = x->ndim == 0 ? a : b;
        return category(zero) <= category(wide) ? wide : zero;
    }
    if (a == b) return a;
    if (category(a) != category(b)) return category(a) > category(b) ? a : b;
    if (is_float(a)) return a == LKS_F64 || b == LKS_F64 ? LKS_F64 : LKS_F32;
    return a == LKS_I64 || b == LKS_I64 ? LKS_I64 : LKS_I32;
}

static int wider(int a, int b)
{
    static const int rank[3] = {0, 1, 2}; /* CLASS_I64, CLASS_F32, CLASS_F64 */
    return rank[a] < rank[b] ? b : a;
}

template <bool CMP, int N, class F> static lks_status run(cudaStream_t stream, const lksi_args *a, F f)
{
    const lksi_view *view[N + 1];
    if (is_complex(a->out[0].dtype) || is_complex(a->in[0].dtype) || is_complex(a->in[N - 1].dtype))
        return lksi_cuda_on_pairs(stream, a, pairs<F>::FORMULA);
    view[0] = &a->out[0];
    for (int i = 0; i < N; i++) view[i + 1] = &a->in[i];
    walk<N + 1> w = walk_of<N + 1>(view);
    if (w.n == 0) return LKS_OK;
    int dtype = N == 1 ? a->in[0].dtype : promoted(&a->in[0], &a->in[N - 1]);
    int cls = class_of(dtype), fixed = 0;
    if (!CMP) cls = wider(cls, class_of(a->out[0].dtype));
    if (F::FLOATS_ONLY && cls == CLASS_I64) cls = CLASS_F32;
    bool plain = runs(w, 0) && aligned(w.data[0]);
    for (int i = 1; i <= N; i++) {
        if (constant(w, i) && N > 1) fixed |= 1 << (i - 1);
        else plain = plain && runs(w, i) && aligned(w.data[i]);
        plain = plain && w.dtype[i] == w.dtype[1] && (CMP || w.dtype[i] == w.dtype[0]);
    }
    if (plain && w.dtype[1] == dtype) {
        switch (dtype) {
        case LKS_F32: pick<CMP, F, float, float, N>::go(stream, w, f, fixed); return lksi_cuda_launched(a);
        case LKS_F64: pick<CMP, F, double, double, N>::go(stream, w, f, fixed); return lksi_cuda_launched(a);
        case LKS_F16: pick<CMP, F, float, f16, N>::go(stream, w, f, fixed); return lksi_cuda_launched(a);
        case LKS_BF16: pick<CMP, F, float, bf16, N>::go(stream, w, f, fixed); return lksi_cuda_launched(a);
        case LKS_I64:
            if (F::FLOATS_ONLY) break;
            integers<CMP, F, N, F::FLOATS_ONLY>::contiguous_i64(stream, w, f, fixed);
            return lksi_cuda_launched(a);
        }
    }
    rounded<F> g = {f, {-1, -1}};
    for (int i = 0; i < N && CMP; i++)
        if (a->in[i].dtype != dtype && (dtype == LKS_F16 || dtype == LKS_BF16)) g.dtype[i] = dtype;
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    if (cls == CLASS_F32)
        strided<rounded<F>, float, N><<<blocks, LKSI_THREADS, 0, stream>>>(g, w);
    else if (cls == CLASS_F64)
        strided<rounded<F>, double, N><<<blocks, LKSI_THREADS, 0, stream>>>(g, w);
    else
        integers<CMP, F, N, F::FLOATS_ONLY>::any(stream, w, f);
    return lksi_cuda_launched(a);
}

/* --- rows --- */

#define ROW(name, cmp, inputs, formula)                                                                        \
    LKSI_CUDA(name)                                                                                            \
    {                                                                                                          \
        (void)cuda;                                                                                            \
        return run<cmp, inputs>(stream, a, formula());                                                         \
    }
ROW(add, false, 2, add)
ROW(sub, false, 2, sub)
ROW(mul, false, 2, mul)
ROW(div, false, 2, divide)
ROW(eq, true, 2, eq)
ROW(ne, true, 2, ne)
ROW(lt, true, 2, lt)
ROW(le, true, 2, le)
ROW(gt, true, 2, gt)
ROW(ge, true, 2, ge)
ROW(exp, false, 1, exponential)
ROW(log, false, 1, logarithm)
ROW(sqrt, false, 1, root)
ROW(tanh, false, 1, tangent)
ROW(sigmoid, false, 1, sigmoid)
ROW(relu, false, 1, relu)
ROW(sqrt_backward, false, 2, sqrt_backward)
ROW(tanh_backward, false, 2, tanh_backward)
ROW(sigmoid_backward, false, 2, sigmoid_backward)
ROW(relu_backward, false, 2, relu_backward)

LKSI_CUDA(affine)
{
    (void)cuda;
    affine f;
    f.scale = a->attr.affine.scale, f.shift = a->attr.affine.shift;
    return run<false, 1>(stream, a, f);
}

template <bool BACKWARD> static lks_status quantized(cudaStream_t stream, const lksi_args *a)
{
    quantize<BACKWARD> f;
    f.scale = a->attr.quantize.scale, f.zero = a->attr.quantize.zero;
    f.min = a->attr.quantize.min, f.max = a->attr.quantize.max;
    return run<false, BACKWARD ? 2 : 1>(stream, a, f);
}

LKSI_CUDA(fake_quantize_per_tensor_affine) { return (void)cuda, quantized<false>(stream, a); }
LKSI_CUDA(fake_quantize_backward) { return (void)cuda, quantized<true>(stream, a); }

LKSI_CUDA(gelu)
{
    (void)cuda;
    return a->attr.gelu.tanh_form ? run<false, 1>(stream, a, gelu_tanh()) : run<false, 1>(stream, a, gelu_erf());
}

LKSI_CUDA(gelu_backward)
{
    (void)cuda;
    return a->attr.gelu.tanh_form ? run<false, 2>(stream, a, gelu_tanh_backward())
                                  : run<false, 2>(stream, a, gelu_erf_backward());
}

/* --- where: bits are chosen, so NaNs pass unchanged --- */

template <class T, int V>
__global__ void __launch_bounds__(LKSI_THREADS)
    choose(T *y, const uint8_t *c, const T *p, const T *q, int64_t n, int fixed)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS, packs = n / V;
    const int64_t first = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x;
    T one = T(), two = T();
    if (fixed & 2) one = p[0];
    if (fixed & 4) two = q[0];
    for (int64_t i = first; i < packs; i += step) {
        pack<uint8_t, V> k = ((const pack<uint8_t, V> *)c)[i];
        pack<T, V> x, z;
        if (!(fixed & 2)) x = ((const pack<T, V> *)p)[i];
        if (!(fixed & 4)) z = ((const pack<T, V> *)q)[i];
#pragma unroll
        for (int j = 0; j < V; j++) {
            T u = fixed & 2 ? one : x.v[j], v = fixed & 4 ? two : z.v[j];
            x.v[j] = k.v[j] ? u : v;
        }
        ((pack<T, V> *)y)[i] = x;
    }
    if (first < n - packs * V) {
        int64_t i = packs * V + first;
        T u = fixed & 2 ? one : p[i], v = fixed & 4 ? two : q[i];
        y[i] = c[i] ? u : v;
    }
}

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) choose_bits(walk<4> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[4];
        w.seek(i, at);
        ((T *)w.data[0])[at[0]] = ((const uint8_t *)w.data[1])[at[1]] ? ((const T *)w.data[2])[at[2]]
                                                                      : ((const T *)w.data[3])[at[3]];
    }
}

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) choose_any(walk<4> w)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[4];
        w.seek(i, at);
        C x = load<C>(w.data[2], w.dtype[2], at[2]), z = load<C>(w.data[3], w.dtype[3], at[3]);
        store(w.data[0], w.dtype[0], at[0], ((const uint8_t *)w.data[1])[at[1]] ? x : z);
    }
}

template <class T> static void choose_one_dtype(cudaStream_t stream, const walk<4> &w)
{
    const int V = 16 / sizeof(T);
    int fixed = (constant(w, 2) ? 2 : 0) | (constant(w, 3) ? 4 : 0);
    bool plain = runs(w, 0) && runs(w, 1) && aligned(w.data[0]) && aligned(w.data[1]);
    for (int i = 2; i < 4; i++)
        if (!(fixed >> (i - 1) & 1)) plain = plain && runs(w, i) && aligned(w.data[i]);
    if (plain)
        choose<T, V><<<blocks_for(w.n, (int64_t)LKSI_THREADS * V), LKSI_THREADS, 0, stream>>>(
            (T *)w.data[0], (const uint8_t *)w.data[1], (const T *)w.data[2], (const T *)w.data[3], w.n, fixed);
    else
        choose_bits<T><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(w);
}

LKSI_CUDA(where)
{
    (void)cuda;
    const lksi_view *view[4] = {&a->out[0], &a->in[0], &a->in[1], &a->in[2]};
    walk<4> w = walk_of<4>(view);
    if (w.n == 0) return LKS_OK;
    if (w.dtype[2] == w.dtype[0] && w.dtype[3] == w.dtype[0]) {
        switch (bytes_of(w.dtype[0])) {
        case 1: choose_one_dtype<uint8_t>(stream, w); break;
        case 2: choose_one_dtype<uint16_t>(stream, w); break;
        case 4: choose_one_dtype<uint32_t>(stream, w); break;
        case 8: choose_one_dtype<uint64_t>(stream, w); break;
        default: choose_one_dtype<bytes16>(stream, w); break;
        }
        return lksi_cuda_launched(a);
    }
    int cls = kind_of(a->out[0].dtype);
    if (!is_complex(a->out[0].dtype)) cls = wider(class_of(promoted(&a->in[1], &a->in[2])), cls);
    unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    if (cls == CLASS_C64) choose_any<c64><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_C128) choose_any<c128><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_F32) choose_any<float><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else if (cls == CLASS_F64) choose_any<double><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    else choose_any<int64_t><<<blocks, LKSI_THREADS, 0, stream>>>(w);
    return lksi_cuda_launched(a);
}
