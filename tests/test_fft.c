/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_fft.c - Fourier transforms against sums written out in double: sizes, dims, norms, layouts, dtypes, gradients of
 * first and second order, short-time transforms, what happens without the module.
 */
#include "arrays.h"
#include "errors.h"
#include <complex.h>
#undef complex

typedef double _Complex pair;
#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__}

static lks_context *ctx;

static lks_tensor *made(lks_dtype dtype, int ndim, const int64_t *shape, uint64_t seed)
{
    int64_t all[9];
    if (!lks_dtype_is_complex(dtype)) return noise_of(ctx, dtype, ndim, shape, 2, seed);
    for (int d = 0; d < ndim; d++) all[d] = shape[d];
    all[ndim] = 2;
    return lks_view_as_complex(noise_of(ctx, dtype == LKS_C64 ? LKS_F32 : LKS_F64, ndim + 1, all, 2, seed));
}

static pair *pairs_of(lks_tensor *t)
{
    int64_t n = lks_numel(t);
    pair *v = malloc((size_t)(n + 1) * sizeof *v);
    if (lks_to_host(lks_to(t, LKS_C128), v, n * (int64_t)sizeof *v) != LKS_OK) diag("%s", lks_error(ctx));
    return v;
}

/* One dim of an array [outer, n, inner] transformed to [outer, m, inner]: m points of the input, cut or padded. */
static pair *line_by_line(const pair *x, int64_t outer, int64_t n, int64_t m, int64_t inner, int sign)
{
    pair *y = calloc((size_t)(outer * m * inner) + 1, sizeof *y);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < m; k++)
            for (int64_t j = 0; j < m && j < n; j++) {
                pair f = cexp(sign * 2 * M_PI * I * (double)(j * k % m) / (double)m);
                for (int64_t i = 0; i < inner; i++) y[(o * m + k) * inner + i] += f * x[(o * n + j) * inner + i];
            }
    return y;
}

static pair *reference(const pair *x, int ndim, int64_t *shape, int n, const int *dims, const int64_t *sizes, int sign,
                       double scale)
{
    int64_t all = 1;
    for (int d = 0; d < ndim; d++) all *= shape[d];
    pair *y = malloc((size_t)(all + 1) * sizeof *y);
    memcpy(y, x, (size_t)all * sizeof *y);
    for (int i = 0; i < n; i++) {
        int d = dims[i] < 0 ? dims[i] + ndim : dims[i];
        int64_t outer = 1, inner = 1, m = sizes ? sizes[i] : shape[d];
        for (int e = 0; e < ndim; e++) *(e < d ? &outer : e > d ? &inner : &(int64_t){0}) *= shape[e];
        pair *z = line_by_line(y, outer, shape[d], m, inner, sign);
        free(y);
        y = z;
        shape[d] = m;
    }
    all = 1;
    for (int d = 0; d < ndim; d++) all *= shape[d];
    for (int64_t i = 0; i < all; i++) y[i] *= scale;
    return y;
}

static int same(lks_tensor *t, int64_t n, const pair *want, double tol)
{
    if (!t || lks_numel(t) != n) {
        diag("no tensor, or of %lld elements: %s", t ? (long long)lks_numel(t) : -1, lks_error(ctx));
        lks_error_clear(ctx);
        return 0;
    }
    pair *v = pairs_of(t);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = cabs(v[i] - want[i]) / (1 + cabs(want[i]));
        if (!(d <= worst)) worst = d;
    }
    free(v);
    if (!(worst <= tol)) diag("off by %g", worst);
    return worst <= tol;
}

static double scale_of(int norm, int inverse, int ndim, const int64_t *shape, int n, const int *dims)
{
    double p = 1;
    for (int i = 0; i < n; i++) p *= (double)shape[dims[i] < 0 ? dims[i] + ndim : dims[i]];
    return norm == LKS_FFT_ORTHO ? 1 / sqrt(p) : (norm == LKS_FFT_FORWARD) == !inverse ? 1 / p : 1;
}

/* half[d] of a full spectrum: the first m / 2 + 1 along dim d. */
static lks_tensor *half(lks_tensor *full, int d) { return lks_slice(full, d, 0, lks_dim(full, d) / 2 + 1, 1); }

static void transforms(lks_dtype dtype, int layout)
{
    static const struct { int ndim, n; int64_t shape[4]; int dims[4]; int64_t sizes[4]; int sized;
    } cases[] = {{1, 1, {1}, {0}, {0}, 0},
                 {1, 1, {8}, {0}, {0}, 0},
                 {1, 1, {7}, {-1}, {12}, 1},
                 {1, 1, {30}, {0}, {9}, 1},
                 {2, 1, {3, 101}, {1}, {0}, 0},
                 {3, 1, {3, 16, 5}, {1}, {0}, 0},
                 {3, 1, {9, 4, 5}, {0}, {10}, 1},
                 {2, 2, {6, 10}, {0, 1}, {0}, 0},
                 {4, 2, {2, 3, 8, 9}, {2, 3}, {0}, 0},
                 {4, 2, {2, 3, 8, 9}, {-1, 1}, {6, 4}, 1},
                 {3, 3, {4, 3, 5}, {0, 1, 2}, {0}, 0},
                 {3, 3, {4, 3, 6}, {2, 0, 1}, {3, 5, 4}, 1},
                 {4, 3, {9, 4, 3, 4}, {1, 2, 3}, {0}, 0}};
    lks_dtype complex = dtype == LKS_F32 ? LKS_C64 : LKS_C128;
    double tol = dtype == LKS_F32 ? 3e-5 : 1e-12;
    int fine[6] = {1, 1, 1, 1, 1, 1};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int norm = 0; norm < 3; norm++) {
            int nd = cases[c].ndim, n = cases[c].n;
            const int *dims = cases[c].dims;
            const int64_t *sizes = cases[c].sized ? cases[c].sizes : NULL;
            lks_scope_begin(ctx);
            lks_tensor *x = made(dtype, nd, cases[c].shape, 7), *z = made(complex, nd, cases[c].shape, 8);
            if (layout) x = reversed(x), z = reversed(z);
            pair *vx = pairs_of(x), *vz = pairs_of(z);
            int64_t shape[4], all = 1;
            memcpy(shape, cases[c].shape, sizeof shape);
            pair *w = reference(vz, nd, shape, n, dims, sizes, -1, 1);
            for (int d = 0; d < nd; d++) all *= shape[d];
            double s = scale_of(norm, 0, nd, shape, n, dims), si = scale_of(norm, 1, nd, shape, n, dims);
            for (int64_t i = 0; i < all; i++) w[i] *= s;
            fine[0] &= same(lks_fft_fftn(z, n, sizes, dims, norm), all, w, tol);
            free(w);
            memcpy(shape, cases[c].shape, sizeof shape);
            w = reference(vz, nd, shape, n, dims, sizes, 1, si);
            fine[1] &= same(lks_fft_ifftn(z, n, sizes, dims, norm), all, w, tol);
            free(w);
            memcpy(shape, cases[c].shape, sizeof shape);
            w = reference(vx, nd, shape, n, dims, sizes, -1, s);
            lks_tensor *full = lks_from_host(ctx, LKS_C128, nd, shape, w), *r = lks_fft_rfftn(x, n, sizes, dims, norm);
            fine[2] &= same(lks_fft_fftn(x, n, sizes, dims, norm), all, w, tol);
            free(w);
            lks_tensor *h = half(full, dims[n - 1]);
            w = pairs_of(h);
            fine[3] &= same(r, lks_numel(h), w, tol) && lks_dtype_of(r) == complex;
            free(w);
            /* The way back gives the cut or padded input. */
            int64_t back[4];
            for (int i = 0; i < n; i++) back[i] = shape[dims[i] < 0 ? dims[i] + nd : dims[i]];
            lks_tensor *y = lks_fft_irfftn(r, n, back, dims, norm), *again = lks_fft_ifftn(full, n, NULL, dims, norm);
            w = pairs_of(again);
            fine[4] &= same(y, all, w, tol) && lks_dtype_of(y) == dtype;
            free(w);
            /* hfft is irfft of the conjugate with the other norm, ihfft its inverse. */
            lks_tensor *spectrum = lks_fft_ihfftn(x, n, sizes, dims, norm);
            lks_tensor *there = lks_fft_hfftn(spectrum, n, back, dims, norm);
            w = pairs_of(again);
            fine[5] &= same(there, all, w, tol);
            free(w), free(vx), free(vz);
            if (fine[0] + fine[1] + fine[2] + fine[3] + fine[4] + fine[5] != 6) diag("case %d norm %d", (int)c, norm);
            lks_scope_end(ctx);
        }
    static const char *const what[6] = {"fftn", "ifftn", "fftn of real", "rfftn", "irfftn", "ihfftn and hfftn"};
    for (int i = 0; i < 6; i++) ok(fine[i], "%s %s layout %d", what[i], lks_dtype_name(dtype), layout);
}

static void forms(void)
{
    lks_scope_begin(ctx);
    lks_tensor *z = made(LKS_C128, SHAPE(3, 4, 6), 1), *x = lks_real(z);
    static const int last[2] = {-2, -1}, one[1] = {1};
    static const int64_t four[1] = {5}, two[2] = {5, 4};
#define ALIKE(what, a, b)                                                                                      \
    do {                                                                                                       \
        lks_tensor *p = a, *q = b;                                                                             \
        pair *v = q ? pairs_of(q) : NULL;                                                                      \
        ok(p && q && same(p, lks_numel(q), v, 1e-14), what);                                                   \
        free(v);                                                                                               \
    } while (0)
    ALIKE("fft", lks_fft_fft(z, 5, 1, 1), lks_fft_fftn(z, 1, four, one, 1));
    ALIKE("ifft", lks_fft_ifft(z, -1, 1, 0), lks_fft_ifftn(z, 1, NULL, one, 0));
    ALIKE("rfft", lks_fft_rfft(x, 5, 1, 2), lks_fft_rfftn(x, 1, four, one, 2));
    ALIKE("irfft", lks_fft_irfft(z, -1, 1, 0), lks_fft_irfftn(z, 1, (int64_t[]){6}, one, 0));
    ALIKE("hfft", lks_fft_hfft(z, 5, 1, 0), lks_fft_hfftn(z, 1, four, one, 0));
    ALIKE("hfft by irfft", lks_fft_hfft(z, 5, 1, LKS_FFT_FORWARD), lks_fft_irfft(lks_conj(z), 5, 1, LKS_FFT_BACKWARD));
    ALIKE("ihfft", lks_fft_ihfft(x, 5, 1, 0), lks_fft_ihfftn(x, 1, four, one, 0));
    ALIKE("ihfft by rfft", lks_fft_ihfft(x, 5, 1, LKS_FFT_FORWARD), lks_conj(lks_fft_rfft(x, 5, 1, LKS_FFT_BACKWARD)));
    ALIKE("fft2", lks_fft_fft2(z, two, NULL, 0), lks_fft_fftn(z, 2, two, last, 0));
    ALIKE("ifft2", lks_fft_ifft2(z, NULL, NULL, 0), lks_fft_ifftn(z, 2, NULL, last, 0));
    ALIKE("rfft2", lks_fft_rfft2(x, two, NULL, 0), lks_fft_rfftn(x, 2, two, NULL, 0));
    ALIKE("irfft2", lks_fft_irfft2(z, NULL, NULL, 0), lks_fft_irfftn(z, 2, NULL, last, 0));
    ALIKE("hfft2", lks_fft_hfft2(z, NULL, NULL, 1), lks_fft_hfftn(z, 2, NULL, last, 1));
    ALIKE("ihfft2", lks_fft_ihfft2(x, NULL, NULL, 1), lks_fft_ihfftn(x, 2, NULL, last, 1));
    ALIKE("all dims", lks_fft_fftn(z, 0, NULL, NULL, 0), lks_fft_fftn(z, 3, NULL, (int[]){0, 1, 2}, 0));
    ALIKE("integers count as float32", lks_fft_fft(lks_arange(ctx, LKS_I64, 6), -1, 0, 0),
          lks_fft_fft(lks_arange(ctx, LKS_F32, 6), -1, 0, 0));
    static const double f7[] = {0, 1, 2, 3, -3, -2, -1}, f6[] = {0, 1, 2, -3, -2, -1};
    double g[7];
    for (int i = 0; i < 7; i++) g[i] = f7[i] / 3.5;
    ok(close_to(ctx, lks_fft_fftfreq(ctx, LKS_F64, 7, 0.5), g, 7, 1e-15), "fftfreq, odd");
    for (int i = 0; i < 6; i++) g[i] = f6[i] / 6;
    lks_tensor *f = lks_fft_fftfreq(ctx, LKS_F32, 6, 1);
    ok(close_to(ctx, f, g, 6, 1e-7) && lks_dtype_of(f) == LKS_F32, "fftfreq, even");
    ok(close_to(ctx, lks_fft_rfftfreq(ctx, LKS_F64, 6, 1), (double[]){0, 1 / 6.0, 2 / 6.0, 0.5}, 4, 1e-15), "rfftfreq");
    ok(close_to(ctx, lks_fft_fftshift(lks_arange(ctx, LKS_F64, 5), 0, NULL), (double[]){3, 4, 0, 1, 2}, 5, 0),
       "fftshift");
    ALIKE("ifftshift undoes it", lks_fft_ifftshift(lks_fft_fftshift(z, 2, last), 2, last), z);
    lks_tensor *b = lks_ones(ctx, LKS_BF16, SHAPE(8));
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *y = lks_fft_rfft(b, -1, 0, 0);
    lks_autocast_end(ctx);
    ok(y && lks_dtype_of(y) == LKS_C64, "a region casts to float32");
    lks_scope_end(ctx);
}

static lks_tensor *as_complex(lks_tensor *const *in) { return lks_complex(in[0], in[1]); }
#define GRAD(name, expr)                                                                                       \
    static lks_tensor *name(void *user, lks_tensor *const *in, int n)                                          \
    {                                                                                                          \
        (void)user, (void)n;                                                                                   \
        lks_tensor *x = in[0], *z = as_complex(in);                                                            \
        (void)x, (void)z;                                                                                      \
        return expr;                                                                                           \
    }
#define PARTS(z) lks_view_as_real(z)
GRAD(g_fft, PARTS(lks_fft_fftn(z, 2, NULL, NULL, 1)))
GRAD(g_ifft, PARTS(lks_fft_ifft(z, 7, 0, 0)))
GRAD(g_rfft, PARTS(lks_fft_rfft(x, -1, 1, 0)))
GRAD(g_rfft_odd, PARTS(lks_fft_rfft(x, 5, 1, 2)))
GRAD(g_rfft2, PARTS(lks_fft_rfft2(x, NULL, NULL, 1)))
GRAD(g_rfftn, PARTS(lks_fft_rfftn(x, 2, NULL, (int[]){1, 0}, 1)))
GRAD(g_irfft, lks_fft_irfft(z, -1, 1, 0))
GRAD(g_irfft_odd, lks_fft_irfft(z, 7, 1, 0))
GRAD(g_irfft2, lks_fft_irfft2(z, NULL, NULL, 1))
GRAD(g_hfft, lks_fft_hfft(z, 6, 0, 1))
GRAD(g_ihfft, PARTS(lks_fft_ihfft2(x, NULL, NULL, 0)))
GRAD(g_shift, PARTS(lks_fft_fftshift(lks_fft_fft2(z, NULL, NULL, 0), 0, NULL)))
GRAD(g_stft,
     PARTS(lks_stft(lks_flatten(x, 0, 1), 6, 3, 4, lks_flatten(lks_slice(in[1], 0, 0, 1, 1), 0, 1), LKS_STFT_CENTER)))

/* A gradient made with create_graph, as a function. */
static lks_tensor *gradient_of(lks_tensor *y, lks_tensor *x)
{
    lks_tensor *g, *loss = lks_sum(lks_mul(lks_mul(y, y), y), 0, NULL, 0, LKS_DTYPE_NONE);
    return loss && lks_gradients(loss, LKS_NONE, 1, &x, 1, 1, &g) == LKS_OK ? g : NULL;
}
/* The numeric side of the check runs without a graph, which the gradient itself needs. */
#define TWICE(name)                                                                                            \
    static lks_tensor *name##_twice(void *user, lks_tensor *const *in, int n)                                  \
    {                                                                                                          \
        int depth = 0;                                                                                         \
        for (; !lks_grad_enabled(ctx); depth++) lks_no_grad_end(ctx);                                          \
        lks_tensor *g = gradient_of(name(user, in, n), in[0]);                                                 \
        for (; depth > 0; depth--) lks_no_grad_begin(ctx);                                                     \
        return g;                                                                                              \
    }
TWICE(g_fft)
TWICE(g_rfft2)
TWICE(g_irfft)
TWICE(g_irfft2)
TWICE(g_stft)

/* A layer of a Fourier neural operator: spectrum times weights, and back. */
static lks_tensor *operator_layer(void *user, lks_tensor *const *in, int n)
{
    (void)user, (void)n;
    lks_tensor *u = lks_fft_rfft2(in[0], NULL, NULL, LKS_FFT_ORTHO); /* [B, C, 4, 3] */
    lks_tensor *part = lks_slice(lks_slice(u, 2, 0, 2, 1), 3, 0, 2, 1);
    lks_tensor *w = lks_view_as_complex(in[1]); /* [2, 2, O, C] */
    lks_tensor *v = lks_matmul(w, lks_permute(part, 4, (int[]){2, 3, 1, 0}));
    v = lks_pad(lks_permute(v, 4, (int[]){3, 2, 0, 1}), 4, (int64_t[]){0, 1, 0, 2}, 0);
    return lks_gelu(lks_fft_irfft2(v, (int64_t[]){4, 4}, NULL, LKS_FFT_ORTHO), 0);
}

static void gradients(void)
{
    static const struct { const char *name; lks_gradcheck_fn f; } checks[] = {
        {"fftn", g_fft}, {"ifft, padded", g_ifft}, {"rfft", g_rfft}, {"rfft, padded", g_rfft_odd}, {"rfft2", g_rfft2},
        {"rfftn", g_rfftn}, {"irfft", g_irfft}, {"irfft, odd", g_irfft_odd}, {"irfft2", g_irfft2}, {"hfft", g_hfft},
        {"ihfft2", g_ihfft}, {"fftshift", g_shift}, {"stft", g_stft}, {"fftn, second", g_fft_twice},
        {"rfft2, second", g_rfft2_twice}, {"irfft, second", g_irfft_twice}, {"irfft2, second", g_irfft2_twice},
        {"stft, second", g_stft_twice}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        lks_scope_begin(ctx);
        lks_tensor *in[2];
        double worst = -1;
        for (int k = 0; k < 2; k++) in[k] = noise_of(ctx, LKS_F64, SHAPE(3, 4), 1, 40 + (uint64_t)k);
        ok(lks_gradcheck(ctx, checks[i].f, NULL, 2, in, 1e-5, 1e-7, &worst) == LKS_OK, "gradient of %s (%.1e)",
           checks[i].name, worst);
        if (lks_error_code(ctx)) diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
        lks_scope_end(ctx);
    }
    lks_scope_begin(ctx);
    lks_tensor *in[2] = {noise_of(ctx, LKS_F64, SHAPE(2, 3, 4, 4), 1, 3),
                         noise_of(ctx, LKS_F64, SHAPE(2, 2, 2, 3, 2), 1, 4)};
    double worst = -1;
    ok(lks_gradcheck(ctx, operator_layer, NULL, 2, in, 1e-6, 1e-6, &worst) == LKS_OK,
       "a layer of a Fourier neural operator (%.1e)", worst);
    if (lks_error_code(ctx)) diag("%s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

static void short_time(void)
{
    lks_scope_begin(ctx);
    enum { L = 50, N = 8, HOP = 3, W = 6 };
    lks_tensor *x = noise_of(ctx, LKS_F64, SHAPE(2, L), 1, 1),
               *w = lks_add_scalar(noise_of(ctx, LKS_F64, SHAPE(W), 0.5, 2), 1);
    double *vx = values_of(ctx, x), *vw = values_of(ctx, w);
    int frames = L / HOP + 1;
    pair *want = calloc((size_t)(2 * 5 * frames), sizeof *want);
    for (int b = 0; b < 2; b++)
        for (int k = 0; k < 5; k++)
            for (int t = 0; t < frames; t++)
                for (int j = 0; j < N; j++) {
                    int at = t * HOP + j - N / 2, in = j - 1;
                    at = at < 0 ? -at : at >= L ? 2 * (L - 1) - at : at;
                    double weight = in >= 0 && in < W ? vw[in] : 0;
                    want[(b * 5 + k) * frames + t] +=
                        weight * vx[b * L + at] * cexp(-2 * M_PI * I * j * k / N) / sqrt(N);
                }
    lks_tensor *z = lks_stft(x, N, HOP, W, w, LKS_STFT_CENTER | LKS_STFT_NORMALIZED);
    ok(same(z, 2 * 5 * frames, want, 1e-13) && lks_dim(z, 1) == 5 && lks_dim(z, 2) == frames, "stft");
    free(want);
    lks_tensor *back = lks_istft(z, N, HOP, W, w, LKS_STFT_CENTER | LKS_STFT_NORMALIZED, -1);
    ok(close_to(ctx, back, vx, 0, 0) == 0 && lks_dim(back, 1) == (frames - 1) * HOP,
       "istft gives what the frames cover");
    lks_tensor *part = lks_slice(x, 1, 0, lks_dim(back, 1), 1);
    double *vp = values_of(ctx, part);
    ok(close_to(ctx, back, vp, lks_numel(part), 1e-12), "istft undoes stft");
    free(vp);
    lks_tensor *two = lks_stft(lks_select(x, 0, 0), N, HOP, N, LKS_NONE, LKS_STFT_TWOSIDED);
    ok(two && lks_ndim(two) == 2 && lks_dim(two, 0) == N && lks_dim(two, 1) == (L - N) / HOP + 1,
       "a vector, both sides, not centered");
    lks_tensor *again = lks_istft(two, N, HOP, N, LKS_NONE, LKS_STFT_TWOSIDED, 20);
    ok(close_to(ctx, again, vx, 20, 1e-12), "and back, 20 points");
    lks_tensor *complex = lks_stft(lks_complex(x, x), N, HOP, W, w, LKS_STFT_CENTER | LKS_STFT_ZEROS);
    ok(complex && lks_dim(complex, 1) == N, "stft of a complex signal");
    free(vx), free(vw);
    lks_scope_end(ctx);
}

static int refused(lks_tensor *y, lks_status code, const char *a, const char *b)
{
    return recorded(ctx, !y, code, a, b);
}

static void refusals(void)
{
    lks_scope_begin(ctx);
    lks_tensor *x = lks_ones(ctx, LKS_F32, SHAPE(3, 4)), *z = lks_ones(ctx, LKS_C64, SHAPE(3, 4));
    ok(refused(lks_fft_fft(x, 0, 0, 0), LKS_ERR_ARGUMENT, "lks_fft_fft", "size"), "no points");
    ok(refused(lks_fft_fft(x, -1, 2, 0), LKS_ERR_ARGUMENT, "dim 2", ""), "no such dim");
    ok(refused(lks_fft_fftn(x, 2, NULL, (int[]){1, -1}, 0), LKS_ERR_ARGUMENT, "twice", ""), "a dim twice");
    ok(refused(lks_fft_fft(x, -1, 0, 3), LKS_ERR_ARGUMENT, "norm", "ORTHO"), "no such norm");
    ok(refused(lks_fft_rfft(z, -1, 0, 0), LKS_ERR_DTYPE, "real", "complex"), "rfft of a complex tensor");
    ok(refused(lks_fft_fft(lks_ones(ctx, LKS_F16, SHAPE(4)), -1, 0, 0), LKS_ERR_DTYPE, "float16", "float32"),
       "float16");
    ok(refused(lks_fft_rfft(lks_ones(ctx, LKS_BF16, SHAPE(4)), -1, 0, 0), LKS_ERR_DTYPE, "bfloat16", "float32"),
       "bfloat16");
    ok(refused(lks_fft_irfft(lks_ones(ctx, LKS_C64, SHAPE(3, 1)), -1, 1, 0), LKS_ERR_SHAPE, "one frequency", ""),
       "irfft of one frequency");
    ok(refused(lks_fft_fft(lks_ones(ctx, LKS_C64, SHAPE(2, 0)), -1, 1, 0), LKS_ERR_SHAPE, "no points", ""),
       "an empty dim");
    ok(lks_numel(lks_fft_fft(lks_ones(ctx, LKS_C64, SHAPE(0, 4)), -1, 1, 0)) == 0, "an empty batch is fine");
    ok(refused(lks_fft_fft2(lks_ones(ctx, LKS_C64, SHAPE(4)), NULL, NULL, 0), LKS_ERR_SHAPE, "dim", ""),
       "fft2 of a vector");
    ok(refused(lks_stft(x, 8, 1, 8, LKS_NONE, 0), LKS_ERR_SHAPE, "frame of 8", ""), "stft of too few points");
    ok(refused(lks_stft(x, 3, 1, 3, lks_ones(ctx, LKS_F32, SHAPE(2)), 0), LKS_ERR_SHAPE, "window", "[3]"),
       "a window of another size");
    double v[2] = {INFINITY, NAN};
    lks_tensor *bad = lks_fft_fft(lks_from_host(ctx, LKS_F64, SHAPE(2), v), -1, 0, 0);
    double *h = values_of(ctx, lks_real(bad));
    ok(isnan(h[0]) && isnan(h[1]), "NaN spreads over a transform");
    free(h);
    lks_scope_end(ctx);
}

static void without_module(void)
{
    const char *was = getenv("LKS_PLUGIN_DIR");
    char *keep = was ? strdup(was) : NULL;
    for (int device = 0; device < 2; device++) {
        if (!(ctx = context_on(device ? "far" : "cpu", NULL, 1))) bail("no context");
        const char *library = strcmp(lks_device_name(ctx), "cuda") ? "libfftw3-dev" : "cuFFT";
        if (!strcmp(lks_device_name(ctx), "far")) { /* the CPU's kernels again, whose failures come later */
            lks_context_destroy(&ctx);
            continue;
        }
        setenv("LKS_PLUGIN_DIR", "/nonexistent", 1);
        ok(refused(lks_fft_fft(lks_ones(ctx, LKS_C64, SHAPE(4)), -1, 0, 0), LKS_ERR_UNSUPPORTED, library,
                   "/nonexistent"),
           "without the module the error says what is missing");
        lks_context_destroy(&ctx);
        if (keep) setenv("LKS_PLUGIN_DIR", keep, 1);
        else unsetenv("LKS_PLUGIN_DIR");
    }
    free(keep);
}

static const char *lacks_fftw(void)
{
    lks_tensor *y = lks_fft_fft(lks_ones(ctx, LKS_C64, SHAPE(4)), -1, 0, 0);
    if (lks_synchronize(ctx) == LKS_OK && y) return NULL;
    if (!strstr(lks_error(ctx), "libfftw3-dev") && !strstr(lks_error(ctx), "cuFFT")) bail("%s", lks_error(ctx));
    return "this build has no FFTW, or no cuFFT";
}

static void all(void)
{
    for (int layout = 0; layout < 2; layout++) {
        transforms(LKS_F32, layout);
        transforms(LKS_F64, layout);
    }
    forms();
    gradients();
    short_time();
    refusals();
}

int main(void)
{
    if (!getenv("LKS_PLUGIN_DIR")) setenv("LKS_PLUGIN_DIR", ".libs", 1); /* by hand, in the build folder */
    without_module();
    on_both_devices(&ctx, lacks_fftw, all);
    lks_finalize();
    return done();
}
