/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.cu - pooling over 1 to 3 dims (windows of one size, adaptive, fractional), the way back, padding by what is
 * inside. All are seen as 3-D images. One thread makes one element, in the order of the memory that is written; on the
 * way back it looks up the windows that its element lies in, so that sums have a fixed order without atomics. Padding
 * is smaller than anything, NaN larger; the first of the largest counts.
 */
#include "common.cuh"
#include <math_constants.h>

using namespace lksi;

namespace {

/* A view lifted to five dims, and how its elements are numbered: as they lie. */
struct image {
    void *data;
    int dtype, last, small; /* last: channels lie side by side */
    int64_t n, shape[5], stride[5];
    divisor div[5];
};

static image image_of(const lksi_view *v)
{
    image g = {};
    const int missing = 5 - v->ndim;
    g.data = v->data, g.dtype = v->dtype, g.n = count(v);
    for (int d = 0; d < 5; d++) {
        int there = d < 2 || d >= 2 + missing, from = d < 2 ? d : d - missing;
        g.shape[d] = there ? v->shape[from] : 1;
        g.stride[d] = there ? v->stride[from] : 0;
        g.div[d] = divisor_of(g.shape[d]);
    }
    g.last = g.shape[1] > 1 && g.stride[1] == 1;
    g.small = g.n < (int64_t)1 << 31;
    return g;
}

struct pixel { int64_t n, c, at[3]; };

__device__ inline int64_t split(const image &g, int d, int64_t *r)
{
    if (g.small) {
        uint32_t x = (uint32_t)*r, q = (__umulhi(x, g.div[d].m) + x) >> g.div[d].s;
        *r = q;
        return x - q * g.div[d].d;
    }
    int64_t q = *r / g.shape[d], x = *r - q * g.shape[d];
    *r = q;
    return x;
}

/* Element i, numbered as they lie. */
__device__ inline pixel find(const image &g, int64_t i)
{
    pixel p;
    if (g.last) p.c = split(g, 1, &i);
    p.at[2] = split(g, 4, &i);
    p.at[1] = split(g, 3, &i);
    p.at[0] = split(g, 2, &i);
    if (!g.last) p.c = split(g, 1, &i);
    p.n = i;
    return p;
}

__device__ inline int64_t plane_at(const image &g, const pixel &p) { return p.n * g.stride[0] + p.c * g.stride[1]; }
__device__ inline int64_t within(const image &g, int64_t d, int64_t h, int64_t w)
{
    return d * g.stride[2] + h * g.stride[3] + w * g.stride[4];
}
__device__ inline int64_t offset(const image &g, const pixel &p)
{
    return plane_at(g, p) + within(g, p.at[0], p.at[1], p.at[2]);
}

/* Element j of a plane, row-major. */
__device__ inline int64_t offset_in(const image &g, int64_t j)
{
    int64_t w = j % g.shape[4], h = j / g.shape[4] % g.shape[3], d = j / g.shape[4] / g.shape[3];
    return within(g, d, h, w);
}

/* x: the side with the larger planes, y: that of the results. */
struct pooling {
    image x, y, place;
    const void *samples;
    int samples_dtype, samples_dims, dbl;
    int64_t samples_stride[3];
    int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3], divide;
    int how[3], own_how, include_pad, reflect;
};

/* Elements begin, begin + dilation, ... below end; full: how many with padding. */
struct span { int64_t begin, end, full; };

/* Start of fractional window o (Graham, 2014), in the arithmetic of x. */
__device__ inline int64_t fraction(int dbl, int64_t in, int64_t kernel, int64_t out, int64_t o, double u)
{
    if (o == out - 1) return in - kernel;
    int64_t at;
    if (dbl) {
        double alpha = (double)(in - kernel) / (double)(out - 1);
        at = (int64_t)(((double)o + u) * alpha) - (int64_t)(u * alpha);
    } else {
        float alpha = (float)(in - kernel) / (float)(out - 1), v = (float)u;
        at = (int64_t)(((float)o + v) * alpha) - (int64_t)(v * alpha);
    }
    return at < 0 ? 0 : at > in - kernel ? in - kernel : at;
}

__device__ inline span span_of(const pooling &s, int i, int64_t o, const double *u)
{
    int64_t in = s.in[i], begin, end;
    if (s.how[i] == LKSI_POOL_WINDOW) {
        begin = o * s.stride[i] - s.padding[i];
        end = begin + (s.kernel[i] - 1) * s.dilation[i] + 1;
        int64_t full = (end < in + s.padding[i] ? end : in + s.padding[i]) - begin;
        if (begin < 0) begin += (-begin + s.dilation[i] - 1) / s.dilation[i] * s.dilation[i];
        return {begin, end < in ? end : in, full};
    }
    if (s.how[i] == LKSI_POOL_ADAPTIVE) { /* o in / out; planes have fewer than 2^31 elements */
        int64_t out = s.out[i], whole = in / out, rest = in % out;
        begin = o * whole + o * rest / out;
        end = (o + 1) * whole + ((o + 1) * rest + out - 1) / out;
    } else {
        begin = fraction(s.dbl, in, s.kernel[i], s.out[i], o, u[i]);
        end = begin + s.kernel[i];
    }
    return {begin, end, end - begin};
}

/* The results first .. last whose windows may hold element x. */
struct range { int64_t first, last; };
__device__ inline range windows_of(const pooling &s, int i, int64_t x)
{
    int64_t in = s.in[i], out = s.out[i];
    range r;
    if (s.how[i] == LKSI_POOL_WINDOW) {
        int64_t at = x + s.padding[i], least = at - (s.kernel[i] - 1) * s.dilation[i];
        r.first = least <= 0 ? 0 : (least + s.stride[i] - 1) / s.stride[i];
        r.last = at / s.stride[i];
    } else if (s.how[i] == LKSI_POOL_ADAPTIVE) {
        r.first = x * out / in;
        r.last = ((x + 1) * out + in - 1) / in - 1;
    } else { /* window o begins within `play` of o alpha */
        double alpha = out > 1 ? (double)(in - s.kernel[i]) / (double)(out - 1) : 0, play = 2 + 1e-6 * (double)in;
        if (!(alpha > 0)) return {0, out - 1};
        double first = ((double)(x - s.kernel[i] + 1) - play) / alpha, last = ((double)x + play) / alpha;
        r.first = first < 0 ? 0 : (int64_t)first;
        r.last = last > (double)out ? out - 1 : (int64_t)last + 1;
    }
    if (r.last > out - 1) r.last = out - 1;
    return r;
}

__device__ inline void samples_of(const pooling &s, const pixel &p, double *u)
{
    if (!s.samples) return;
#pragma unroll
    for (int k = 0; k < 3; k++) { /* two dims: the width comes first */
        int from = s.samples_dims == 2 ? 2 - k : k;
        if (from >= s.samples_dims) continue;
        double x = load<double>(s.samples, s.samples_dtype,
                                p.n * s.samples_stride[0] + p.c * s.samples_stride[1] + from * s.samples_stride[2]);
        u[k] = x >= 0 && x < 1 ? x : 0;
    }
}

/* What a sum is divided by; dilation is 1 where means are taken. */
__device__ inline double count_of(const pooling &s, span d, span h, span w)
{
    if (s.own_how == LKSI_POOL_WINDOW) {
        if (s.divide) return (double)s.divide;
        if (s.include_pad) return (double)d.full * (double)h.full * (double)w.full;
    }
    return (double)(d.end - d.begin) * (double)(h.end - h.begin) * (double)(w.end - w.begin);
}

template <class T> struct compute { typedef float type; };
template <> struct compute<double> { typedef double type; };

__device__ inline bool is_nan(float x) { return lksi_is_nan_f32(x); }
__device__ inline bool is_nan(double x) { return lksi_is_nan_f64(x); }

__device__ inline int64_t place_of(const image &p, int64_t i)
{
    return p.dtype == LKS_I64 ? ((const int64_t *)p.data)[i] : (int64_t)((const int32_t *)p.data)[i];
}

#define EACH(i, n)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < (n); i += (int64_t)gridDim.x * LKSI_THREADS)

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* PAIRS: a window is two elements wide, and they move as one. */
template <class T, bool MEAN, bool PAIRS>
__global__ void __launch_bounds__(LKSI_THREADS) pool(const __grid_constant__ pooling s)
{
    typedef typename compute<T>::type C;
    EACH(i, s.y.n) {
        pixel p = find(s.y, i);
        double u[3] = {0, 0, 0};
        samples_of(s, p, u);
        span d = span_of(s, 0, p.at[0], u), h = span_of(s, 1, p.at[1], u), w = span_of(s, 2, p.at[2], u);
        const T *x = (const T *)s.x.data + plane_at(s.x, p);
        C best = MEAN ? C(0) : C(-CUDART_INF);
        int32_t place = -1;
        for (int64_t a = d.begin; a < d.end; a += s.dilation[0])
            for (int64_t b = h.begin; b < h.end; b += s.dilation[1]) {
                C row = 0;
                auto take = [&](T element, int64_t c) {
                    C v = get<C>::of(element);
                    if (MEAN) row += v;
                    else if (place < 0 || v > best || (is_nan(v) && !is_nan(best)))
                        best = v, place = (int32_t)((a * s.in[1] + b) * s.in[2] + c);
                };
                if constexpr (PAIRS) {
                    pack<T, 2> both = *(const pack<T, 2> *)(const void *)(x + within(s.x, a, b, w.begin));
                    take(both.v[0], w.begin);
                    take(both.v[1], w.begin + 1);
                } else {
                    for (int64_t c = w.begin; c < w.end; c += s.dilation[2]) take(x[within(s.x, a, b, c)], c);
                }
                if (MEAN) best += row;
            }
        if (MEAN) best /= (C)count_of(s, d, h, w);
        else ((int32_t *)s.place.data)[offset(s.place, p)] = place;
        ((T *)s.y.data)[offset(s.y, p)] = put<T>::of(best);
    }
}

/* --- back --------------------------------------------------------------------------------------------------------- */

/* Each place lies in its window, or is -1. */
template <class T> __global__ void __launch_bounds__(LKSI_THREADS) largest_back(const __grid_constant__ pooling s)
{
    typedef typename compute<T>::type C;
    EACH(i, s.x.n) {
        pixel p = find(s.x, i);
        const int64_t own = (p.at[0] * s.in[1] + p.at[1]) * s.in[2] + p.at[2];
        range d = windows_of(s, 0, p.at[0]), h = windows_of(s, 1, p.at[1]), w = windows_of(s, 2, p.at[2]);
        const int64_t dy = plane_at(s.y, p), at = plane_at(s.place, p);
        C sum = 0;
        for (int64_t a = d.first; a <= d.last; a++)
            for (int64_t b = h.first; b <= h.last; b++)
                for (int64_t c = w.first; c <= w.last; c++)
                    if (place_of(s.place, at + within(s.place, a, b, c)) == own)
                        sum += get<C>::of(((const T *)s.y.data)[dy + within(s.y, a, b, c)]);
        ((T *)s.x.data)[offset(s.x, p)] = put<T>::of(sum);
    }
}

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) mean_back(const __grid_constant__ pooling s)
{
    typedef typename compute<T>::type C;
    const double none[3] = {0, 0, 0};
    EACH(i, s.x.n) {
        pixel p = find(s.x, i);
        range d = windows_of(s, 0, p.at[0]), h = windows_of(s, 1, p.at[1]), w = windows_of(s, 2, p.at[2]);
        const int64_t dy = plane_at(s.y, p);
        C sum = 0;
        for (int64_t a = d.first; a <= d.last; a++) {
            span sd = span_of(s, 0, a, none);
            for (int64_t b = h.first; b <= h.last; b++) {
                span sh = span_of(s, 1, b, none);
                for (int64_t c = w.first; c <= w.last; c++) {
                    span sw = span_of(s, 2, c, none);
                    sum += get<C>::of(((const T *)s.y.data)[dy + within(s.y, a, b, c)]) / (C)count_of(s, sd, sh, sw);
                }
            }
        }
        ((T *)s.x.data)[offset(s.x, p)] = put<T>::of(sum);
    }
}

/* Places that may be anywhere. A block has one plane at a time: in each round every element takes the next result that
 * names it, in their order; done when none is left. next: the result that is up, last: the one before. */
template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    gather_rounds(const __grid_constant__ pooling s, typename compute<T>::type *sums, int32_t *nexts, int32_t *lasts)
{
    typedef typename compute<T>::type C;
    const int64_t plane = s.in[0] * s.in[1] * s.in[2], results = s.out[0] * s.out[1] * s.out[2];
    const int64_t planes = s.x.shape[0] * s.x.shape[1];
    C *sum = sums + blockIdx.x * plane;
    int32_t *next = nexts + blockIdx.x * plane, *last = lasts + blockIdx.x * plane;
    for (int64_t u = blockIdx.x; u < planes; u += gridDim.x) {
        pixel p = {u / s.x.shape[1], u % s.x.shape[1], {0, 0, 0}};
        const int64_t dy = plane_at(s.y, p), at = plane_at(s.place, p), dx = plane_at(s.x, p);
        for (int64_t i = threadIdx.x; i < plane; i += LKSI_THREADS) sum[i] = 0, next[i] = 0x7fffffff, last[i] = -1;
        __syncthreads();
        for (int more = 1; more;) {
            int found = 0;
            for (int64_t j = threadIdx.x; j < results; j += LKSI_THREADS) {
                int64_t t = place_of(s.place, at + offset_in(s.place, j));
                if (t < 0 || t >= plane || j <= last[t]) continue;
                atomicMin(&next[t], (int32_t)j);
                found = 1;
            }
            more = __syncthreads_or(found);
            for (int64_t i = threadIdx.x; i < plane; i += LKSI_THREADS) {
                int32_t j = next[i];
                if (j == 0x7fffffff) continue;
                sum[i] += get<C>::of(((const T *)s.y.data)[dy + offset_in(s.y, j)]);
                last[i] = j, next[i] = 0x7fffffff;
            }
            __syncthreads();
        }
        for (int64_t i = threadIdx.x; i < plane; i += LKSI_THREADS)
            ((T *)s.x.data)[dx + offset_in(s.x, i)] = put<T>::of(sum[i]);
        __syncthreads();
    }
}

/* --- by places ---------------------------------------------------------------------------------------------------- */

/* owner[plane, element] = the last result that names it. */
__global__ void __launch_bounds__(LKSI_THREADS)
    claim(const __grid_constant__ pooling s, int32_t *owner, int op, lksi_fault fault)
{
    const int64_t plane = s.in[0] * s.in[1] * s.in[2];
    EACH(i, s.place.n) {
        pixel p = find(s.place, i);
        int64_t t = place_of(s.place, offset(s.place, p)), j = (p.at[0] * s.out[1] + p.at[1]) * s.out[2] + p.at[2];
        if (t < 0 || t >= plane) fail(fault, LKSI_FAULT_INDEX, op, t, i, plane);
        else atomicMax(&owner[(p.n * s.x.shape[1] + p.c) * plane + t], (int32_t)j);
    }
}

template <class T>
__global__ void __launch_bounds__(LKSI_THREADS) take(const __grid_constant__ pooling s, const int32_t *owner)
{
    const int64_t plane = s.in[0] * s.in[1] * s.in[2];
    EACH(i, s.x.n) {
        pixel p = find(s.x, i);
        int32_t j = owner[(p.n * s.x.shape[1] + p.c) * plane + (p.at[0] * s.in[1] + p.at[1]) * s.in[2] + p.at[2]];
        T v = T();
        if (j >= 0) v = ((const T *)s.y.data)[plane_at(s.y, p) + offset_in(s.y, j)];
        ((T *)s.x.data)[offset(s.x, p)] = v;
    }
}

/* y = x at the places; 0 where there is none. */
template <class T> __global__ void __launch_bounds__(LKSI_THREADS) look_up(const __grid_constant__ pooling s)
{
    const int64_t plane = s.in[0] * s.in[1] * s.in[2];
    EACH(i, s.y.n) {
        pixel p = find(s.y, i);
        int64_t t = place_of(s.place, offset(s.place, p));
        T v = T();
        if (t >= 0 && t < plane) v = ((const T *)s.x.data)[plane_at(s.x, p) + offset_in(s.x, t)];
        ((T *)s.y.data)[offset(s.y, p)] = v;
    }
}

/* --- padding by what is inside ------------------------------------------------------------------------------------ */

__device__ inline int64_t source_of(const pooling &s, int i, int64_t o)
{
    int64_t at = o - s.padding[i], last = s.in[i] - 1;
    if (s.reflect) return at < 0 ? -at : at > last ? 2 * last - at : at;
    return at < 0 ? 0 : at > last ? last : at;
}

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) pad(const __grid_constant__ pooling s)
{
    EACH(i, s.y.n) {
        pixel p = find(s.y, i);
        ((T *)s.y.data)[offset(s.y, p)] = ((const T *)s.x.data)[plane_at(s.x, p) +
            within(s.x, source_of(s, 0, p.at[0]), source_of(s, 1, p.at[1]), source_of(s, 2, p.at[2]))];
    }
}

/* Results that show element x: [k] of them in the order of k; -1: no such. */
__device__ inline int64_t shown_count(const pooling &s, int i, int64_t x)
{
    if (s.reflect) return 3;
    int64_t first = x == 0 ? 0 : x + s.padding[i], last = x == s.in[i] - 1 ? s.out[i] - 1 : x + s.padding[i];
    return last - first + 1;
}
__device__ inline int64_t shown(const pooling &s, int i, int64_t x, int64_t k)
{
    if (!s.reflect) return (x == 0 ? 0 : x + s.padding[i]) + k;
    int64_t last = s.in[i] - 1, o = k == 0 ? s.padding[i] - x : k == 1 ? s.padding[i] + x : s.padding[i] + 2 * last - x;
    if ((k == 0 && x == 0) || (k == 2 && x >= last)) return -1;
    return o < s.out[i] ? o : -1;
}

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) pad_back(const __grid_constant__ pooling s)
{
    typedef typename compute<T>::type C;
    EACH(i, s.x.n) {
        pixel p = find(s.x, i);
        const T *dy = (const T *)s.y.data + plane_at(s.y, p);
        int64_t count[3];
        for (int k = 0; k < 3; k++) count[k] = shown_count(s, k, p.at[k]);
        C sum = 0;
        for (int64_t a = 0; a < count[0]; a++) {
            int64_t d = shown(s, 0, p.at[0], a);
            for (int64_t b = 0; d >= 0 && b < count[1]; b++) {
                int64_t h = shown(s, 1, p.at[1], b);
                C row = 0;
                for (int64_t c = 0; h >= 0 && c < count[2]; c++) {
                    int64_t w = shown(s, 2, p.at[2], c);
                    if (w >= 0) row += get<C>::of(dy[within(s.y, d, h, w)]);
                }
                sum += row;
            }
        }
        ((T *)s.x.data)[offset(s.x, p)] = put<T>::of(sum);
    }
}

/* --- host --------------------------------------------------------------------------------------------------------- */

static pooling planes_of(const lksi_view *x, const lksi_view *y)
{
    pooling s = {};
    s.x = image_of(x), s.y = image_of(y);
    s.dbl = x->dtype == LKS_F64;
    for (int i = 0; i < 3; i++) {
        s.in[i] = s.x.shape[2 + i], s.out[i] = s.y.shape[2 + i];
        s.kernel[i] = s.stride[i] = s.dilation[i] = 1;
    }
    return s;
}

static pooling pooling_of(const lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    pooling s = planes_of(x, y);
    s.own_how = a->attr.pool.how, s.include_pad = a->attr.pool.include_pad, s.divide = a->attr.pool.divisor;
    for (int i = 5 - x->ndim; i < 3; i++) {
        s.how[i] = a->attr.pool.how;
        s.kernel[i] = a->attr.pool.kernel[i];
        if (s.how[i] != LKSI_POOL_WINDOW) continue;
        s.stride[i] = a->attr.pool.stride[i];
        s.padding[i] = a->attr.pool.padding[i];
        s.dilation[i] = a->attr.pool.dilation[i];
    }
    return s;
}

static pooling padding_of(const lksi_args *a, const lksi_view *x, const lksi_view *y)
{
    pooling s = planes_of(x, y);
    s.reflect = a->attr.edge.reflect;
    for (int i = 5 - x->ndim; i < 3; i++) s.padding[i] = a->attr.edge.before[i];
    return s;
}

#define LAUNCH(kernel, n, ...) kernel<<<blocks_for(n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(__VA_ARGS__)
#define BY_FLOAT(dtype, GO)                                                                                    \
    switch (dtype) {                                                                                           \
    case LKS_F32: GO(float); break;                                                                            \
    case LKS_F64: GO(double); break;                                                                           \
    case LKS_F16: GO(f16); break;                                                                              \
    default: GO(bf16); break;                                                                                  \
    }
/* Moves alone. */
#define BY_SIZE(dtype, GO)                                                                                     \
    switch (size_of(dtype)) {                                                                                  \
    case 2: GO(uint16_t); break;                                                                               \
    case 4: GO(uint32_t); break;                                                                               \
    default: GO(uint64_t); break;                                                                              \
    }

/* Windows that are two elements wide and lie side by side, each where a pair may be read. */
static bool in_pairs(const pooling &s)
{
    for (int d = 0; d < 4; d++)
        if (s.x.shape[d] > 1 && s.x.stride[d] % 2) return false;
    return s.how[2] == LKSI_POOL_WINDOW && s.kernel[2] == 2 && s.stride[2] == 2 && s.dilation[2] == 1 &&
           s.padding[2] == 0 && s.out[2] * 2 <= s.in[2] && s.x.stride[4] == 1 && aligned(s.x.data);
}

template <class T> static void forward_go(cudaStream_t stream, const pooling &s, bool mean)
{
    const bool pairs = in_pairs(s);
    if (mean && pairs) LAUNCH((pool<T, true, true>), s.y.n, s);
    else if (mean) LAUNCH((pool<T, true, false>), s.y.n, s);
    else if (pairs) LAUNCH((pool<T, false, true>), s.y.n, s);
    else LAUNCH((pool<T, false, false>), s.y.n, s);
}

static lks_status forward(cudaStream_t stream, const lksi_args *a, bool mean, const lksi_view *samples)
{
    pooling s = pooling_of(a, &a->in[0], &a->out[0]);
    if (s.y.n == 0) return LKS_OK;
    if (!mean) s.place = image_of(&a->out[1]);
    if (samples) {
        s.samples = samples->data, s.samples_dtype = samples->dtype, s.samples_dims = (int)samples->shape[2];
        for (int d = 0; d < 3; d++) s.samples_stride[d] = samples->stride[d];
    }
#define GO(T) forward_go<T>(stream, s, mean)
    BY_FLOAT(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

static lks_status unpool(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    pooling s = pooling_of(a, &a->out[0], &a->in[0]);
    void *owner;
    s.place = image_of(&a->in[1]);
    const int64_t n = s.x.n > 0 ? s.x.n : 1;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, n * 4, &owner);
    if (code != LKS_OK) return code;
    if (s.x.n > 0) cudaMemsetAsync(owner, 0xff, (size_t)(s.x.n * 4), stream);
    if (s.place.n > 0) LAUNCH(claim, s.place.n, s, (int32_t *)owner, a->op, lksi_cuda_fault(cuda));
    if (s.x.n > 0) {
#define GO(T) LAUNCH(take<T>, s.x.n, s, (const int32_t *)owner)
        BY_SIZE(s.x.dtype, GO)
#undef GO
    }
    return lksi_cuda_launched(a);
}

static lks_status pad_rows(cudaStream_t stream, const lksi_args *a)
{
    pooling s = padding_of(a, &a->in[0], &a->out[0]);
    if (s.y.n == 0) return LKS_OK;
#define GO(T) LAUNCH(pad<T>, s.y.n, s)
    BY_SIZE(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

} // namespace

#define ROW(name, call)                                                                                        \
    LKSI_CUDA(name)                                                                                            \
    {                                                                                                          \
        (void)cuda;                                                                                            \
        return call;                                                                                           \
    }
ROW(max_pool1d, forward(stream, a, false, NULL))
ROW(max_pool2d, forward(stream, a, false, NULL))
ROW(max_pool3d, forward(stream, a, false, NULL))
ROW(adaptive_max_pool1d, forward(stream, a, false, NULL))
ROW(adaptive_max_pool2d, forward(stream, a, false, NULL))
ROW(adaptive_max_pool3d, forward(stream, a, false, NULL))
ROW(fractional_max_pool2d, forward(stream, a, false, &a->in[1]))
ROW(fractional_max_pool3d, forward(stream, a, false, &a->in[1]))
ROW(avg_pool1d, forward(stream, a, true, NULL))
ROW(avg_pool2d, forward(stream, a, true, NULL))
ROW(avg_pool3d, forward(stream, a, true, NULL))
ROW(adaptive_avg_pool1d, forward(stream, a, true, NULL))
ROW(adaptive_avg_pool2d, forward(stream, a, true, NULL))
ROW(adaptive_avg_pool3d, forward(stream, a, true, NULL))
ROW(max_unpool1d, unpool(cuda, stream, a))
ROW(max_unpool2d, unpool(cuda, stream, a))
ROW(max_unpool3d, unpool(cuda, stream, a))
ROW(reflection_pad1d, pad_rows(stream, a))
ROW(reflection_pad2d, pad_rows(stream, a))
ROW(reflection_pad3d, pad_rows(stream, a))
ROW(replication_pad1d, pad_rows(stream, a))
ROW(replication_pad2d, pad_rows(stream, a))
ROW(replication_pad3d, pad_rows(stream, a))

LKSI_CUDA(max_pool_backward)
{
    pooling s = pooling_of(a, &a->out[0], &a->in[0]);
    s.place = image_of(&a->in[1]);
    if (s.x.n == 0) return LKS_OK;
    if (a->attr.pool.inside) {
#define GO(T) LAUNCH(largest_back<T>, s.x.n, s)
        BY_FLOAT(s.x.dtype, GO)
#undef GO
        return lksi_cuda_launched(a);
    }
    const int64_t planes = s.x.shape[0] * s.x.shape[1], plane = s.x.n / planes, most = 4 * lksi_cuda_sms(cuda);
    const int64_t blocks = planes < most ? planes : most, sums = blocks * plane * (s.dbl ? 8 : 4);
    void *p;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, sums + 2 * blocks * plane * 4, &p);
    if (code != LKS_OK) return code;
    int32_t *next = (int32_t *)((char *)p + sums), *last = next + blocks * plane;
#define GO(T)                                                                                                  \
    gather_rounds<T><<<(unsigned)blocks, LKSI_THREADS, 0, stream>>>(s, (compute<T>::type *)p, next, last)
    BY_FLOAT(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

LKSI_CUDA(avg_pool_backward)
{
    (void)cuda;
    pooling s = pooling_of(a, &a->out[0], &a->in[0]);
    if (s.x.n == 0) return LKS_OK;
#define GO(T) LAUNCH(mean_back<T>, s.x.n, s)
    BY_FLOAT(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

LKSI_CUDA(max_pool_gather)
{
    (void)cuda;
    pooling s = pooling_of(a, &a->in[0], &a->out[0]);
    s.place = image_of(&a->in[1]);
    if (s.y.n == 0) return LKS_OK;
#define GO(T) LAUNCH(look_up<T>, s.y.n, s)
    BY_SIZE(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

LKSI_CUDA(edge_pad_backward)
{
    (void)cuda;
    pooling s = padding_of(a, &a->out[0], &a->in[0]);
    if (s.x.n == 0) return LKS_OK;
#define GO(T) LAUNCH(pad_back<T>, s.x.n, s)
    BY_FLOAT(s.x.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}
