/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fft.c - public functions of Fourier transforms: sizes, dims and norms to the three rows fft_c2c, fft_r2c, fft_c2r.
 * The gradient of cutting and padding is that of the rows that do it.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>
#include <string.h>

typedef struct plan {
    lks_context *ctx;
    const char *where;
    lksi_attr attr;
    int64_t size[LKS_MAX_DIMS]; /* by place in attr.fft.dims; -1: as it is */
    int norm;
} plan;

static lks_status fail(const plan *p, lks_status code, const char *what)
{
    return lksi_fail(&p->ctx->base, code, p->where, "%s", what);
}

/* dims NULL: the last ones, as many as there are sizes, or all. */
static lks_status plan_dims(plan *p, const char *where, lks_tensor *x, int ndims, const int64_t *sizes, const int *dims,
                            int norm)
{
    if (!x || x == lks_none) return LKS_ERR_ARGUMENT;
    *p = (plan){.ctx = x->ctx, .where = where, .norm = norm};
    int n = !dims && !sizes ? x->v.ndim : ndims;
    if (norm < LKS_FFT_BACKWARD || norm > LKS_FFT_FORWARD)
        return fail(p, LKS_ERR_ARGUMENT, "norm is none of LKS_FFT_BACKWARD, LKS_FFT_ORTHO, LKS_FFT_FORWARD");
    if (n < 1 || n > x->v.ndim) return fail(p, LKS_ERR_SHAPE, "at least one dim, and no more than the tensor has");
    p->attr.fft.n = n;
    for (int i = 0; i < n; i++) {
        int d = dims ? dims[i] : x->v.ndim - n + i;
        TRY(lksi_dim(x->ctx, where, x->v.ndim, &d));
        for (int k = 0; k < i; k++)
            if (p->attr.fft.dims[k] == d) return fail(p, LKS_ERR_ARGUMENT, "a dim is named twice");
        p->attr.fft.dims[i] = d;
        p->size[i] = sizes ? sizes[i] : -1;
        if (p->size[i] < -1 || p->size[i] == 0) return fail(p, LKS_ERR_ARGUMENT, "a size is not positive");
    }
    return LKS_OK;
}

/* Number of points of one transform, once all sizes are known, as a factor. */
static void set_scale(plan *p, int inverse)
{
    LKSI_GUARD;
    double points = 1;
    for (int i = 0; i < p->attr.fft.n; i++) points *= (double)p->size[i];
    p->attr.fft.inverse = inverse;
    p->attr.fft.scale = p->norm == LKS_FFT_ORTHO                   ? 1 / sqrt(points)
                        : (p->norm == LKS_FFT_FORWARD) == !inverse ? 1 / points
                                                                   : 1;
}

/* x with `size` elements along dim: cut, or padded with zeros. */
static lks_tensor *resized(lks_tensor *x, int dim, int64_t size)
{
    if (!x || x->v.shape[dim] == size) return x;
    if (size < x->v.shape[dim]) return lks_slice(x, dim, 0, size, 1);
    int64_t pads[2 * LKS_MAX_DIMS] = {0};
    int back = x->v.ndim - 1 - dim;
    pads[2 * back + 1] = size - x->v.shape[dim];
    return lks_pad(x, 2 * (back + 1), pads, 0);
}

/* All sizes known, x cut and padded to them; half: the last holds size / 2 + 1. */
static lks_tensor *prepared(plan *p, lks_tensor *x, int half)
{
    for (int i = 0; i < p->attr.fft.n && x; i++) {
        int d = p->attr.fft.dims[i], last = half && i == p->attr.fft.n - 1;
        if (p->size[i] < 0) p->size[i] = last ? 2 * (x->v.shape[d] - 1) : x->v.shape[d];
        if (last && p->size[i] < 1) {
            fail(p, LKS_ERR_SHAPE, "one frequency is no half of a spectrum; give the size of the result");
            return NULL;
        }
        if (p->size[i] < 1) {
            fail(p, LKS_ERR_SHAPE, "a dim has no points to transform");
            return NULL;
        }
        x = resized(x, d, last ? p->size[i] / 2 + 1 : p->size[i]);
    }
    return x;
}

static lks_tensor *row(plan *p, int op, lks_tensor *x)
{
    return x ? lksi_call1(p->ctx, p->where, op, 1, &x, &p->attr) : NULL;
}

/* Integers count as float32, real tensors as complex ones with imaginary part 0. */
static lks_tensor *as_float(lks_tensor *x)
{
    return x && !lksi_has_gradient(x->v.dtype) ? lks_to(x, LKS_F32) : x;
}

static lks_tensor *as_complex(plan *p, lks_tensor *x)
{
    x = as_float(x);
    if (!x || lks_dtype_is_complex(x->v.dtype)) return x;
    if (x->v.dtype == LKS_F32 || x->v.dtype == LKS_F64) return lks_to(x, x->v.dtype == LKS_F32 ? LKS_C64 : LKS_C128);
    lksi_fail(&p->ctx->base, LKS_ERR_DTYPE, p->where, "%s; cast it to float32 first", lks_dtype_name(x->v.dtype));
    return NULL;
}

enum { FULL, FULL_BACK, TO_HALF, TO_REAL, HERMITIAN, HERMITIAN_BACK };

static lks_tensor *transform(const char *where, int kind, lks_tensor *x, int ndims, const int64_t *sizes,
                             const int *dims, int norm)
{
    plan p;
    if (plan_dims(&p, where, x, ndims, sizes, dims, norm)) return NULL;
    if (kind == TO_HALF ||
        kind == HERMITIAN_BACK) { /* the inverse of a real tensor is the conjugate of the other way */
        x = as_float(x);
        if (x && lks_dtype_is_complex(x->v.dtype)) {
            fail(&p, LKS_ERR_DTYPE, "a real tensor is needed, not a complex one");
            return NULL;
        }
        x = prepared(&p, x, 0);
        set_scale(&p, kind == HERMITIAN_BACK);
        x = row(&p, LKSI_OP_fft_r2c, x);
        return kind == HERMITIAN_BACK ? lks_conj(x) : x;
    }
    x = as_complex(&p, x);
    if (kind == TO_REAL || kind == HERMITIAN) {
        if (kind == HERMITIAN) x = lks_conj(x);
        x = prepared(&p, x, 1);
        set_scale(&p, kind == TO_REAL);
        p.attr.fft.last = p.size[p.attr.fft.n - 1];
        return row(&p, LKSI_OP_fft_c2r, x);
    }
    x = prepared(&p, x, 0);
    set_scale(&p, kind == FULL_BACK);
    return row(&p, LKSI_OP_fft_c2c, x);
}

/* Under the policy of the family. */
static lks_tensor *under(const char *where, int kind, lks_tensor *x, int ndims, const int64_t *sizes, const int *dims,
                         int norm)
{
    lks_tensor *w = x;
    if (!x || lksi_composite_begin(x->ctx, where, LKSI_OP_fft_fft, 1, &x, &w)) return NULL;
    lks_tensor *y = transform(where, kind, w, ndims, sizes, dims, norm);
    lksi_composite_end(x->ctx, LKSI_OP_fft_fft);
    return y;
}

/* name, the same over 2 and n dims. */
#define FAMILY(name, kind)                                                                                     \
    lks_tensor *lks_fft_##name(lks_tensor *x, int64_t n, int dim, int norm)                                    \
    {                                                                                                          \
        return under("lks_fft_" #name, kind, x, 1, &n, &dim, norm);                                       \
    }                                                                                                          \
    lks_tensor *lks_fft_##name##2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm)              \
    {                                                                                                          \
        static const int last[2] = {-2, -1};                                                                   \
        return under("lks_fft_" #name "2", kind, x, 2, sizes, dims ? dims : last, norm);                  \
    }                                                                                                          \
    lks_tensor *lks_fft_##name##n(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm)   \
    {                                                                                                          \
        return under("lks_fft_" #name "n", kind, x, ndims, sizes, dims, norm);                            \
    }
FAMILY(fft, FULL)
FAMILY(ifft, FULL_BACK)
FAMILY(rfft, TO_HALF)
FAMILY(irfft, TO_REAL)
FAMILY(hfft, HERMITIAN)
FAMILY(ihfft, HERMITIAN_BACK)

/* --- order of frequencies --- */

static lks_tensor *shifted(lks_tensor *x, int ndims, const int *dims, int back)
{
    int all[LKS_MAX_DIMS];
    int64_t by[LKS_MAX_DIMS];
    if (!x || x == lks_none) return NULL;
    if (!dims) {
        ndims = x->v.ndim;
        for (int d = 0; d < ndims; d++) all[d] = d;
        dims = all;
    }
    for (int i = 0; i < ndims && i < LKS_MAX_DIMS; i++) {
        int64_t n = lks_dim(x, dims[i]);
        by[i] = back ? (n + 1) / 2 : n / 2;
    }
    return lks_roll(x, ndims < LKS_MAX_DIMS ? ndims : LKS_MAX_DIMS, by, dims);
}

lks_tensor *lks_fft_fftshift(lks_tensor *x, int ndims, const int *dims) { return shifted(x, ndims, dims, 0); }
lks_tensor *lks_fft_ifftshift(lks_tensor *x, int ndims, const int *dims) { return shifted(x, ndims, dims, 1); }

static lks_tensor *frequencies(const char *where, lks_context *ctx, lks_dtype dtype, int64_t n, double d, int half)
{
    LKSI_GUARD;
    if (n < 1 || !(d != 0)) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%lld points, %g apart", (long long)n, d);
        return NULL;
    }
    if (!lks_dtype_is_float(dtype)) {
        lksi_fail(&ctx->base, LKS_ERR_DTYPE, where, "%s; a floating dtype is needed", lks_dtype_name(dtype));
        return NULL;
    }
    lks_tensor *k = lks_to(lks_arange(ctx, LKS_I64, half ? n / 2 + 1 : n), LKS_F64);
    if (!half && k) { /* from (n + 1) / 2 on: the negative ones */
        lks_tensor *part[2] = {lks_slice(k, 0, 0, (n + 1) / 2, 1),
                               lks_add_scalar(lks_slice(k, 0, (n + 1) / 2, n, 1), -(double)n)};
        k = lks_cat(2, part, 0);
    }
    return lks_to(lks_mul_scalar(k, 1 / ((double)n * d)), dtype);
}

lks_tensor *lks_fft_fftfreq(lks_context *ctx, lks_dtype dtype, int64_t n, double d)
{
    return frequencies("lks_fft_fftfreq", ctx, dtype, n, d, 0);
}

lks_tensor *lks_fft_rfftfreq(lks_context *ctx, lks_dtype dtype, int64_t n, double d)
{
    return frequencies("lks_fft_rfftfreq", ctx, dtype, n, d, 1);
}

/* --- short-time transforms --- */

/* [frames, n]: index of each point of each frame. */
static lks_tensor *places(lks_context *ctx, int64_t frames, int64_t n, int64_t hop)
{
    lks_tensor *t = lks_unsqueeze(lks_mul_scalar(lks_arange(ctx, LKS_I64, frames), (double)hop), 1);
    return lks_flatten(lks_add(t, lks_arange(ctx, LKS_I64, n)), 0, 1);
}

/* window, in the middle of n points; ones if there is none. */
static lks_tensor *windowed(lks_context *ctx, const char *where, lks_tensor *window, lks_dtype dtype, int64_t n,
                            int64_t length)
{
    char s[200];
    if (length < 1 || length > n) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "a window of %lld points in frames of %lld", (long long)length,
                  (long long)n);
        return NULL;
    }
    if (window == lks_none) window = lks_ones(ctx, dtype, 1, &length);
    if (!window) return NULL;
    if (window->v.ndim != 1 || window->v.shape[0] != length || lks_dtype_is_complex(window->v.dtype)) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "the window is %s%s; real [%lld] is needed",
                  lks_dtype_name(window->v.dtype), lksi_shape_text(&window->v, s, sizeof s), (long long)length);
        return NULL;
    }
    int64_t left = (n - length) / 2, pads[2] = {left, n - length - left};
    return length == n ? window : lks_pad(window, 2, pads, 0);
}

static lks_tensor *short_time(lks_tensor *x, int64_t n, int64_t hop, int64_t length, lks_tensor *window, int flags)
{
    static const char where[] = "lks_stft";
    lks_context *ctx = x->ctx;
    char s[200];
    int vector = x->v.ndim == 1, complex = lks_dtype_is_complex(x->v.dtype),
        whole = complex || flags & LKS_STFT_TWOSIDED;
    if (x->v.ndim < 1 || x->v.ndim > 2) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "%s; [L] or [B, L] is needed", lksi_shape_text(&x->v, s, sizeof s));
        return NULL;
    }
    if (n < 1 || hop < 1) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "frames of %lld points, %lld apart", (long long)n,
                  (long long)hop);
        return NULL;
    }
    window =
        windowed(ctx, where, window, complex ? (x->v.dtype == LKS_C64 ? LKS_F32 : LKS_F64) : x->v.dtype, n, length);
    if (vector) x = lks_unsqueeze(x, 0);
    if (flags & LKS_STFT_CENTER && x) {
        int64_t half = n / 2, pads[2] = {half, half};
        if (flags & LKS_STFT_ZEROS) {
            x = lks_pad(x, 2, pads, 0);
        } else { /* reflected without the last point: by turned pieces, which complex tensors can do, too */
            int64_t l = x->v.shape[1];
            int last = 1;
            if (half >= l) {
                lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "%lld points are too few to be reflected by %lld",
                          (long long)l, (long long)half);
                return NULL;
            }
            lks_tensor *part[3] = {lks_flip(lks_slice(x, 1, 1, half + 1, 1), 1, &last), x,
                                   lks_flip(lks_slice(x, 1, l - 1 - half, l - 1, 1), 1, &last)};
            if (half) x = lks_cat(3, part, 1);
        }
    }
    if (!x || !window) return NULL;
    int64_t l = x->v.shape[1], batch = x->v.shape[0];
    if (l < n) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "%lld points are no frame of %lld", (long long)l, (long long)n);
        return NULL;
    }
    int64_t frames = (l - n) / hop + 1, shape[3] = {batch, frames, n};
    /* index_select takes real tensors: parts of complex ones one by one */
    lks_tensor *at = places(ctx, frames, n, hop);
    lks_tensor *f = complex ? lks_complex(lks_index_select(lks_real(x), 1, at), lks_index_select(lks_imag(x), 1, at))
                            : lks_index_select(x, 1, at);
    f = f ? lks_mul(lks_reshape(f, 3, shape), window) : NULL;
    int norm = flags & LKS_STFT_NORMALIZED ? LKS_FFT_ORTHO : LKS_FFT_BACKWARD;
    int64_t size = -1;
    int dim = -1;
    lks_tensor *y = lks_transpose(transform(where, whole ? FULL : TO_HALF, f, 1, &size, &dim, norm), 1, 2);
    return vector ? lks_squeeze(y, 0) : y;
}

lks_tensor *lks_stft(lks_tensor *x, int64_t n, int64_t hop, int64_t length, lks_tensor *window, int flags)
{
    if (!x || x == lks_none) return NULL;
    if (window == lks_none)
        window = lks_ones(x->ctx, lks_dtype_is_complex(x->v.dtype) ? LKS_F32 : x->v.dtype, 1, &length);
    lks_tensor *in[2] = {x, window}, *w[2];
    if (lksi_composite_begin(x->ctx, "lks_stft", LKSI_OP_stft, 2, in, w)) return NULL;
    lks_tensor *y = short_time(w[0], n, hop, length, w[1], flags);
    lksi_composite_end(x->ctx, LKSI_OP_stft);
    return y;
}

/* Frames are added up where they lie and divided by the sum of the squared windows. */
lks_tensor *lks_istft(lks_tensor *z, int64_t n, int64_t hop, int64_t length, lks_tensor *window, int flags,
                      int64_t points)
{
    static const char where[] = "lks_istft";
    if (!z || !window || z == lks_none) return NULL;
    lks_context *ctx = z->ctx;
    char s[200];
    int vector = z->v.ndim == 2;
    if ((z->v.ndim != 2 && z->v.ndim != 3) || !lks_dtype_is_complex(z->v.dtype) || n < 1 || hop < 1) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where,
                  "%s%s, frames of %lld points, %lld apart; complex [N, T] or [B, N, T]", lks_dtype_name(z->v.dtype),
                  lksi_shape_text(&z->v, s, sizeof s), (long long)n, (long long)hop);
        return NULL;
    }
    lks_dtype real = z->v.dtype == LKS_C64 ? LKS_F32 : LKS_F64;
    if (vector) z = lks_unsqueeze(z, 0);
    window = windowed(ctx, where, window, real, n, length);
    if (!z || !window) return NULL;
    int64_t batch = z->v.shape[0], frames = z->v.shape[2], bins = flags & LKS_STFT_TWOSIDED ? n : n / 2 + 1;
    if (z->v.shape[1] != bins || frames < 1) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "%s; %lld frequencies of one frame at least are needed",
                  lksi_shape_text(&z->v, s, sizeof s), (long long)bins);
        return NULL;
    }
    int64_t l = n + (frames - 1) * hop, half = flags & LKS_STFT_CENTER ? n / 2 : 0;
    int64_t flat[2] = {batch, frames * n}, zeros[2] = {batch, l}, one[2] = {1, frames * n}, line[2] = {1, l};
    int64_t grid[3] = {1, frames, n};
    int norm = flags & LKS_STFT_NORMALIZED ? LKS_FFT_ORTHO : LKS_FFT_BACKWARD, dim = -1;
    lks_tensor *f = lks_transpose(z, 1, 2);
    f = flags & LKS_STFT_TWOSIDED ? lks_real(transform(where, FULL_BACK, f, 1, &n, &dim, norm))
                                  : transform(where, TO_REAL, f, 1, &n, &dim, norm);
    lks_tensor *at = places(ctx, frames, n, hop);
    if (!f || !at) return NULL;
    f = lks_reshape(lks_mul(f, window), 2, flat);
    lks_tensor *sum = f ? lks_index_add(lks_zeros(ctx, f->v.dtype, 2, zeros), 1, at, f, 1) : NULL;
    lks_tensor *w2 = lks_reshape(lks_expand(lks_mul(window, window), 3, grid), 2, one);
    lks_tensor *weight = w2 ? lks_index_add(lks_zeros(ctx, w2->v.dtype, 2, line), 1, at, w2, 1) : NULL;
    int64_t end = points >= 0 ? half + points : l - half;
    if (points < 0 && end <= half) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where,
                  "nothing is left between the halves of the first and the last frame");
        return NULL;
    }
    int64_t have = end < l ? end : l;
    lks_tensor *y = lks_div(lks_slice(sum, 1, half, have, 1), lks_slice(weight, 1, half, have, 1));
    if (y && end > l) y = resized(y, 1, end - half);
    return vector ? lks_squeeze(y, 0) : y;
}
