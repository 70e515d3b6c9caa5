/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stat.cu - reductions whose state is more than a sum: var, std, prod, norm, amax, amin, all, any. Floats are taken as
 * double and integers as int64; how the reduction goes is in reduce.cuh.
 */
#include "reduce.cuh"

using namespace lksi;

namespace {
enum { PROD, COUNT, SUM_ABS, SUM_SQUARE, MAX_ABS, MIN_ABS, MAX, MIN, ALL, ANY };

/* One number; start: the result of nothing. */
struct one_number {
    typedef double acc;
    typedef double type;
    int kind;
    double start;
    __device__ acc none() const { return start; }
    __device__ acc item(double x, int64_t) const
    {
        switch (kind) {
        case COUNT: case ALL: case ANY: return x != 0 ? 1 : 0;
        case SUM_ABS: case MAX_ABS: case MIN_ABS: return fabs(x);
        case SUM_SQUARE: return x * x;
        default: return x;
        }
    }
    __device__ acc join(acc x, acc z) const
    {
        switch (kind) {
        case PROD: case ALL: return x * z;
        case COUNT: case SUM_ABS: case SUM_SQUARE: return x + z;
        case MIN: case MIN_ABS: return lksi_is_nan_f64(x) || x < z ? x : z;
        default: return lksi_is_nan_f64(x) || x > z ? x : z; /* NaN wins */
        }
    }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        store(r.keep.data[1], r.keep.dtype[1], at[1], kind == SUM_SQUARE ? sqrt(x) : x);
    }
};

struct one_integer {
    typedef int64_t acc;
    typedef int64_t type;
    int kind;
    __device__ acc none() const { return kind == PROD ? 1 : kind == MAX ? INT64_MIN : INT64_MAX; }
    __device__ acc item(int64_t x, int64_t) const { return x; }
    __device__ acc join(acc x, acc z) const
    {
        return kind == PROD ? (int64_t)((uint64_t)x * (uint64_t)z) : kind == MAX ? (x > z ? x : z) : x < z ? x : z;
    }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        store(r.keep.data[1], r.keep.dtype[1], at[1], x);
    }
};

/* Mean and sum of squared deviations, merged (Chan, Golub and LeVeque, 1983). */
struct moments {
    struct acc { double mean, squares; int64_t n; };
    typedef double type;
    int root;
    double correction;
    __device__ acc none() const { return {0, 0, 0}; }
    __device__ acc item(double x, int64_t) const { return {x, x - x, 1}; } /* of an infinity: NaN */
    __device__ acc join(acc x, acc z) const
    {
        if (z.n == 0) return x;
        if (x.n == 0) return z;
        int64_t n = x.n + z.n;
        double d = z.mean - x.mean, share = (double)z.n / (double)n;
        return {x.mean + d * share, x.squares + z.squares + d * d * ((double)x.n * share), n};
    }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        double freedom = (double)x.n - correction, v = x.squares / (freedom > 0 ? freedom : 0);
        store(r.keep.data[1], r.keep.dtype[1], at[1], root ? sqrt(v) : v);
    }
};

/* Sum of |x / scale|^p, the scale that of the largest element; scale 0: none that counts yet. */
struct powers {
    struct acc { double sum, scale; };
    typedef double type;
    double p;
    __device__ acc none() const { return {0, 0}; }
    __device__ acc item(double x, int64_t) const
    {
        double a = fabs(x);
        if (a == 0) return {p > 0 ? 0 : p < 0 ? (double)INFINITY : 1, 0};
        if (!(a <= 1.7976931348623157e308)) return {pow(a, p), 1};
        return {1, a};
    }
    __device__ acc join(acc x, acc z) const
    {
        if (x.scale == z.scale) return {x.sum + z.sum, x.scale};
        if (x.scale < z.scale) {
            acc t = x;
            x = z, z = t;
        }
        return {x.sum + (z.scale > 0 && z.sum != 0 ? z.sum * pow(z.scale / x.scale, p) : z.sum), x.scale};
    }
    __device__ void write(const reduction &r, const int64_t at[3], acc x) const
    {
        double v = p == 2 ? sqrt(x.sum) : pow(x.sum, 1 / p);
        store(r.keep.data[1], r.keep.dtype[1], at[1], x.scale > 0 ? x.scale * v : v);
    }
};
}

/* What F does to in[0]; false: there are no outputs. */
static bool plan(const lksi_args *a, reduction *r, bool *inner)
{
    return describe(r, &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim, &a->out[0], NULL, inner);
}

/* empty: the result where nothing is reduced. */
static lks_status number(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int kind, double start, double empty)
{
    reduction r;
    bool inner;
    if (!plan(a, &r, &inner)) return LKS_OK;
    one_number f = {kind, r.fold.n ? start : empty};
    return run<one_number, -1>(cuda, stream, a, f, r, inner);
}

static lks_status spread_of(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int root)
{
    reduction r;
    bool inner;
    if (!plan(a, &r, &inner)) return LKS_OK;
    moments f = {root, a->attr.reduce.p};
    return run<moments, -1>(cuda, stream, a, f, r, inner);
}

LKSI_CUDA(var) { return spread_of(cuda, stream, a, 0); }
LKSI_CUDA(std) { return spread_of(cuda, stream, a, 1); }

static lks_status any_class(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int kind, double start,
                            double empty)
{
    reduction r;
    bool inner;
    if (is_float(a->out[0].dtype)) return number(cuda, stream, a, kind, start, empty);
    if (!plan(a, &r, &inner)) return LKS_OK;
    one_integer f = {kind};
    return run<one_integer, -1>(cuda, stream, a, f, r, inner);
}

LKSI_CUDA(prod) { return any_class(cuda, stream, a, PROD, 1, 1); }
LKSI_CUDA(amax) { return any_class(cuda, stream, a, MAX, -INFINITY, NAN); }
LKSI_CUDA(amin) { return any_class(cuda, stream, a, MIN, INFINITY, NAN); }
LKSI_CUDA(all) { return number(cuda, stream, a, ALL, 1, 1); }
LKSI_CUDA(any) { return number(cuda, stream, a, ANY, 0, 0); }

LKSI_CUDA(norm)
{
    const double p = a->attr.reduce.p;
    if (p == 0) return number(cuda, stream, a, COUNT, 0, 0);
    if (p == 1) return number(cuda, stream, a, SUM_ABS, 0, 0);
    if (p == INFINITY) return number(cuda, stream, a, MAX_ABS, 0, 0);
    if (p == -INFINITY) return number(cuda, stream, a, MIN_ABS, INFINITY, 0);
    /* Squares of narrow floats stay inside the range of double. */
    if (p == 2 && a->in[0].dtype != LKS_F64) return number(cuda, stream, a, SUM_SQUARE, 0, 0);
    reduction r;
    bool inner;
    if (!plan(a, &r, &inner)) return LKS_OK;
    if (r.fold.n == 0) return number(cuda, stream, a, SUM_ABS, 0, 0);
    powers f = {p};
    return run<powers, -1>(cuda, stream, a, f, r, inner);
}
