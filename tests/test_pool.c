/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_pool.c - pooling, padding, sampling and transposed convolution on the CPU against plain loops in double: 1 to 3
 * dims, layouts, dtypes, NaN, ties, windows over the edge; and what must be refused. Gradients are checked by the loops
 * of test_ops; here the pairs are checked that must be adjoint.
 */
#include "arrays.h"

static lks_context *ctx;

/* [N, C, D, H, W] of an image of 1 to 3 dims. */
static void five(lks_tensor *t, int64_t *shape)
{
    int n = lks_ndim(t);
    shape[0] = lks_shape(t)[0], shape[1] = lks_shape(t)[1];
    for (int d = 2; d < 5; d++) shape[d] = d >= 7 - n ? lks_shape(t)[d - 5 + n] : 1;
}

static lks_tensor *laid_out(lks_tensor *t, int layout)
{
    int to[5] = {0}, from[5] = {0}, n = lks_ndim(t);
    if (layout == 0) return t;
    if (layout == 1) return reversed(t);
    for (int d = 1; d < n; d++) to[d] = d == n - 1 ? 1 : d + 1;
    for (int d = 0; d < n; d++) from[to[d]] = d;
    return lks_permute(lks_contiguous(lks_permute(t, n, to)), n, from);
}

typedef struct window {
    int dims;
    int64_t shape[5], kernel[3], stride[3], padding[3], dilation[3];
    int ceil, include, divisor;
} window;

static const window windows[] = {
    {1, {2, 3, 17}, {3}, {2}, {1}, {2}, 0, 1, 0},
    {1, {1, 5, 9}, {4}, {3}, {2}, {1}, 1, 0, 0},
    {2, {2, 5, 8, 9}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, 0, 1, 0},
    {2, {2, 70, 7, 6}, {3, 2}, {1, 3}, {1, 1}, {1, 1}, 1, 1, 0},
    {2, {1, 4, 10, 11}, {3, 3}, {2, 2}, {1, 0}, {2, 3}, 1, 1, 0},
    {2, {2, 3, 5, 5}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, 0, 0},
    {2, {2, 3, 5, 5}, {2, 3}, {1, 2}, {0, 1}, {1, 1}, 0, 1, 5},
    {3, {2, 3, 5, 6, 7}, {2, 3, 2}, {1, 2, 2}, {1, 1, 0}, {1, 1, 1}, 1, 0, 0},
    {3, {1, 6, 4, 5, 4}, {3, 2, 3}, {2, 2, 1}, {1, 0, 1}, {1, 2, 1}, 0, 1, 0},
};

static int64_t results(const window *w, int d)
{
    int64_t in = w->shape[2 + d], k = w->kernel[d], s = w->stride[d], p = w->padding[d], l = w->dilation[d];
    int64_t n = 0; /* counted, not computed */
    while (1) {
        int64_t begin = n * s - p, end = begin + l * (k - 1) + 1;
        if (w->ceil ? n > 0 && (end - s >= in + p || begin >= in) : end > in + p) break;
        n++;
    }
    return n;
}

/* The gradient of x for dy, which is exact in any dtype; NaN and infinity go where they belong and nowhere else. */
static int gradient_case(lks_tensor *x, lks_tensor *y, int layout, const double *dy, const double *want, double tol)
{
    lks_tensor *g = laid_out(tensor_of(ctx, lks_dtype_of(y), lks_ndim(y), lks_shape(y), dy), layout);
    int good = lks_backward(y, g, 0) == LKS_OK;
    double *got = good ? values_of(ctx, lks_grad(x)) : NULL;
    for (int64_t i = 0; good && i < lks_numel(x); i++) {
        good = got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) || fabs(got[i] - want[i]) <= tol;
        if (!good) diag("gradient %lld: %.9g, not %.9g", (long long)i, got[i], want[i]);
    }
    if (!got) diag("%s", lks_error(ctx));
    free(got);
    return good;
}

static int window_case(const window *w, lks_dtype dtype, int layout, int mean)
{
    int64_t out[5] = {w->shape[0], w->shape[1], 1, 1, 1}, in[5] = {w->shape[0], w->shape[1], 1, 1, 1};
    int64_t k[3] = {1, 1, 1}, s[3] = {1, 1, 1}, p[3] = {0}, l[3] = {1, 1, 1};
    for (int d = 0; d < w->dims; d++) {
        int i = 3 - w->dims + d;
        k[i] = w->kernel[d], s[i] = w->stride[d], p[i] = w->padding[d], l[i] = mean ? 1 : w->dilation[d];
        in[2 + i] = w->shape[2 + d];
    }
    window v = *w;
    if (mean)
        for (int d = 0; d < 3; d++) v.dilation[d] = 1;
    for (int d = 0; d < w->dims; d++) out[5 - w->dims + d] = results(&v, d);
    lks_scope_begin(ctx);
    int64_t all = w->shape[0] * w->shape[1] * in[2] * in[3] * in[4];
    double *x0 = noise(all, 2, 7);
    for (int64_t i = 0; i < all; i += 3) x0[i] = floor(x0[i] * 2) / 2; /* ties */
    if (all > 40 && !mean) x0[5] = x0[6] = NAN, x0[30] = -INFINITY;
    lks_tensor *x = laid_out(tensor_of(ctx, dtype, w->dims + 2, w->shape, x0), layout), *y = NULL, *at = NULL;
    double *xv = values_of(ctx, x), *dx = calloc((size_t)all + 1, sizeof *dx);
    int good = lks_set_requires_grad(x, 1) == LKS_OK;
    if (mean) y = lks_avg_pool(x, w->kernel, w->stride, w->padding, w->ceil, w->include, w->divisor);
    else good &= lks_max_pool(x, w->kernel, w->stride, w->padding, w->dilation, w->ceil, &y, &at) == LKS_OK;
    double *got = values_of(ctx, y), *place = mean ? NULL : values_of(ctx, at);
    double *dy = noise(y ? lks_numel(y) : 0, 8, 9);
    for (int64_t i = 0; y && i < lks_numel(y); i++) dy[i] = floor(dy[i] * 4) / 4;
    if (y && lks_numel(y) > 8) dy[2] = NAN, dy[7] = -INFINITY, dy[8] = -0.0;
    int64_t have[5] = {0};
    if (y) five(y, have);
    good = good && y && !memcmp(have, out, sizeof have);
    if (good && layout == 2 && w->shape[1] > 1) good = lks_stride(y)[1] == 1;
    int64_t e = 0;
    for (int64_t nc = 0; good && nc < out[0] * out[1]; nc++)
        for (int64_t o = 0; o < out[2]; o++)
            for (int64_t i = 0; i < out[3]; i++)
                for (int64_t j = 0; j < out[4]; j++, e++) {
                    double best = -INFINITY, sum = 0, size = 0;
                    int64_t where = -1, count = 0, full = 0;
                    for (int64_t a = 0; a < k[0]; a++)
                        for (int64_t b = 0; b < k[1]; b++)
                            for (int64_t c = 0; c < k[2]; c++) {
                                int64_t d = o * s[0] - p[0] + a * l[0], h = i * s[1] - p[1] + b * l[1];
                                int64_t q = j * s[2] - p[2] + c * l[2];
                                full += d < in[2] + p[0] && h < in[3] + p[1] && q < in[4] + p[2];
                                if (d < 0 || h < 0 || q < 0 || d >= in[2] || h >= in[3] || q >= in[4]) continue;
                                int64_t t = (d * in[3] + h) * in[4] + q;
                                double u = xv[nc * in[2] * in[3] * in[4] + t];
                                sum += u, size += fabs(u), count++;
                                if (where < 0 || u > best || (isnan(u) && !isnan(best))) best = u, where = t;
                            }
                    double share = dy[e] / (double)(!mean ? 1 : w->divisor ? w->divisor : w->include ? full : count);
                    for (int64_t a = 0; a < k[0] * k[1] * k[2]; a++) {
                        int64_t d = o * s[0] - p[0] + a / k[2] / k[1] * l[0];
                        int64_t h = i * s[1] - p[1] + a / k[2] % k[1] * l[1], q = j * s[2] - p[2] + a % k[2] * l[2];
                        int64_t t = (d * in[3] + h) * in[4] + q;
                        if (d < 0 || h < 0 || q < 0 || d >= in[2] || h >= in[3] || q >= in[4]) continue;
                        if (mean || t == where) dx[nc * in[2] * in[3] * in[4] + t] += share;
                    }
                    if (mean) {
                        sum /= (double)(w->divisor ? w->divisor : w->include ? full : count);
                        good &= fabs(got[e] - sum) <= tolerance_of(dtype) * (1 + fabs(sum));
                    } else {
                        good &= place[e] == (double)where && (got[e] == best || (isnan(got[e]) && isnan(best)));
                    }
                    if (!good) {
                        diag("result %lld: %.9g, place %g", (long long)e, got[e], place ? place[e] : 0.);
                        goto end;
                    }
                }
    good = good && gradient_case(x, y, layout, dy, dx, mean ? 100 * tolerance_of(dtype) : 0);
end:
    if (!y) diag("%s", lks_error(ctx));
    lks_error_clear(ctx);
    free(x0), free(xv), free(got), free(place), free(dx), free(dy);
    lks_scope_end(ctx);
    return good;
}

/* Rows of all lengths around those of vectors. */
static void test_lengths(const char *isa)
{
    static const int64_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 49, 64};
    static const window kinds[] = {
        {2, {0}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, 0, 1, 0}, {2, {0}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 0, 1, 0},
        {2, {0}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, 1, 0, 0}, {2, {0}, {2, 2}, {2, 2}, {1, 1}, {1, 1}, 1, 1, 0},
        {2, {0}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0, 0, 0}, {2, {0}, {1, 2}, {1, 3}, {0, 1}, {1, 1}, 0, 1, 0},
        {2, {0}, {2, 3}, {1, 2}, {1, 1}, {1, 3}, 1, 0, 0}, {2, {0}, {2, 4}, {3, 4}, {1, 2}, {1, 1}, 1, 1, -3},
        {2, {0}, {1, 9}, {1, 5}, {0, 4}, {1, 1}, 1, 1, 0}, {2, {0}, {5, 7}, {2, 1}, {2, 3}, {1, 1}, 0, 1, 0},
    };
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
            for (int l = 0; l < (int)(sizeof lengths / sizeof *lengths); l++)
                for (int layout = 0; layout < 3; layout += 2)
                    for (int mean = 0; mean < 2; mean++) {
                        window w = kinds[i];
                        const int64_t shape[4] = {2, layout ? 66 : 2, 6, lengths[l]};
                        memcpy(w.shape, shape, sizeof shape);
                        int64_t reach = (w.kernel[1] - 1) * (mean ? 1 : w.dilation[1]);
                        if (lengths[l] + 2 * w.padding[1] <= reach) continue;
                        if (layout && lengths[l] > 17) continue;
                        if (!window_case(&w, array_floats[t], layout, mean)) {
                            diag("kind %d length %lld layout %d mean %d", i, (long long)lengths[l], layout, mean);
                            good = 0;
                        }
                    }
        ok(good, "%s %s: rows of any length", isa, lks_dtype_name(array_floats[t]));
    }
}

static void test_windows(const char *isa)
{
    for (int t = 0; t < 4; t++)
        for (int mean = 0; mean < 2; mean++) {
            int good = 1;
            for (int i = 0; i < (int)(sizeof windows / sizeof *windows); i++)
                for (int layout = 0; layout < 3; layout++)
                    if (!window_case(&windows[i], array_floats[t], layout, mean)) {
                        diag("window %d layout %d", i, layout);
                        good = 0;
                    }
            ok(good, "%s %s: %s pooling in 1 to 3 dims", isa, lks_dtype_name(array_floats[t]), mean ? "mean" : "max");
        }
}

static void test_adaptive(void)
{
    int good = 1;
    static const int64_t shapes[4][5] = {{2, 3, 7, 0, 0}, {2, 3, 7, 10, 0}, {1, 4, 3, 5, 4}, {1, 2, 2, 3, 3}};
    static const int64_t sizes[4][3] = {{3, 0, 0}, {4, 3, 0}, {2, -1, 3}, {4, 5, 1}};
    static const int dims[4] = {1, 2, 3, 3};
    for (int t = 0; t < 4; t++)
        for (int layout = 0; layout < 3; layout++) {
            lks_scope_begin(ctx);
            lks_tensor *x = laid_out(noise_of(ctx, LKS_F32, dims[t] + 2, shapes[t], 1, 3), layout), *y, *at;
            lks_tensor *m = lks_adaptive_avg_pool(x, sizes[t]);
            good &= lks_adaptive_max_pool(x, sizes[t], &y, &at) == LKS_OK && m;
            int64_t in[5], out[5];
            five(x, in), five(y, out);
            double *xv = values_of(ctx, x), *yv = values_of(ctx, y), *av = values_of(ctx, at), *mv = values_of(ctx, m);
            for (int64_t e = 0; good && e < lks_numel(y); e++) {
                int64_t o[3] = {e / out[4] / out[3] % out[2], e / out[4] % out[3], e % out[4]}, lo[3], hi[3];
                int64_t nc = e / out[4] / out[3] / out[2], where = -1;
                double best = 0, sum = 0, count = 0;
                for (int i = 0; i < 3; i++) {
                    lo[i] = (int64_t)floor((double)o[i] * (double)in[2 + i] / (double)out[2 + i]);
                    hi[i] = (int64_t)ceil((double)(o[i] + 1) * (double)in[2 + i] / (double)out[2 + i]);
                }
                for (int64_t a = lo[0]; a < hi[0]; a++)
                    for (int64_t b = lo[1]; b < hi[1]; b++)
                        for (int64_t c = lo[2]; c < hi[2]; c++) {
                            int64_t place = (a * in[3] + b) * in[4] + c;
                            double v = xv[nc * in[2] * in[3] * in[4] + place];
                            sum += v, count++;
                            if (where < 0 || v > best) best = v, where = place;
                        }
                good &= yv[e] == best && av[e] == (double)where && fabs(mv[e] - sum / count) < 1e-6;
            }
            if (!good) diag("case %d layout %d: %s", t, layout, lks_error(ctx));
            free(xv), free(yv), free(av), free(mv);
            lks_scope_end(ctx);
        }
    ok(good, "adaptive pooling: windows of floor and ceil");
}

static void test_fractional(void)
{
    lks_scope_begin(ctx);
    double u[4] = {0.3, 0.8, 0, 0.999};
    lks_tensor *x = noise_of(ctx, LKS_F32, 4, (int64_t[]){1, 2, 9, 12}, 1, 5), *y = NULL, *at = NULL, *z, *p;
    lks_tensor *s = tensor_of(ctx, LKS_F32, 3, (int64_t[]){1, 2, 2}, u);
    int good = lks_fractional_max_pool(x, (int64_t[]){2, 3}, (int64_t[]){4, 5}, s, &y, &at) == LKS_OK;
    double *xv = values_of(ctx, x), *yv = values_of(ctx, y), *av = values_of(ctx, at);
    for (int64_t e = 0; good && e < 40; e++) {
        int64_t c = e / 20, i = e / 5 % 4, j = e % 5, where = -1;
        float ah = 7.f / 3.f, aw = 9.f / 4.f, uw = (float)u[2 * c], uh = (float)u[2 * c + 1];
        int64_t h = i == 3 ? 7 : (int64_t)(((float)i + uh) * ah) - (int64_t)(uh * ah);
        int64_t w = j == 4 ? 9 : (int64_t)(((float)j + uw) * aw) - (int64_t)(uw * aw);
        double best = 0;
        for (int64_t a = h; a < h + 2; a++)
            for (int64_t b = w; b < w + 3; b++)
                if (where < 0 || xv[c * 108 + a * 12 + b] > best) where = a * 12 + b, best = xv[c * 108 + where];
        good &= yv[e] == best && av[e] == (double)where;
    }
    ok(good, "fractional pooling: windows from samples");
    free(xv), free(yv), free(av);
    ok(lks_fractional_max_pool(x, (int64_t[]){2, 2}, (int64_t[]){4, 4}, LKS_NONE, &z, &p) == LKS_OK && z && p,
       "... and from drawn ones");
    lks_scope_end(ctx);
}

static int sums_to(lks_tensor *a, lks_tensor *b, double *sum)
{
    double *x = values_of(ctx, a), *y = values_of(ctx, b);
    if (!x || !y || lks_numel(a) != lks_numel(b)) return 0;
    *sum = 0;
    for (int64_t i = 0; i < lks_numel(a); i++) *sum += x[i] * y[i];
    free(x), free(y);
    return 1;
}

/* <conv(x), y> = <x, transposed(y)>: the same weights, sizes that fit by output padding. */
static void test_adjoint(void)
{
    static const struct {
        int dims;
        int64_t x[5], w[5], stride[3], padding[3], dilation[3], behind[3], groups;
    } cases[] = {
        {1, {2, 4, 12}, {6, 2, 3}, {2}, {1}, {2}, {1}, 2},
        {1, {1, 3, 9}, {5, 3, 4}, {1}, {2}, {1}, {0}, 1},
        {2, {2, 4, 9, 8}, {6, 4, 3, 2}, {2, 3}, {1, 0}, {1, 1}, {0, 0}, 1},
        {2, {2, 4, 9, 8}, {6, 2, 3, 2}, {1, 1}, {1, 1}, {1, 2}, {0, 0}, 2},
        {3, {1, 2, 5, 6, 5}, {3, 2, 2, 3, 3}, {2, 1, 2}, {0, 1, 1}, {1, 1, 1}, {1, 0, 0}, 1},
        {3, {2, 2, 4, 5, 5}, {4, 1, 3, 3, 2}, {1, 1, 1}, {1, 0, 1}, {1, 2, 1}, {0, 0, 0}, 2},
    };
    int good = 1;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        for (int layout = 0; layout < 3; layout++) {
            int n = cases[i].dims + 2;
            lks_scope_begin(ctx);
            lks_tensor *x = laid_out(noise_of(ctx, LKS_F64, n, cases[i].x, 1, 11), layout);
            lks_tensor *w = noise_of(ctx, LKS_F64, n, cases[i].w, 1, 12), *y, *back;
            const int64_t *s = cases[i].stride, *p = cases[i].padding, *d = cases[i].dilation, *o = cases[i].behind;
            int64_t g = cases[i].groups;
            y = n == 3   ? lks_conv1d(x, w, LKS_NONE, s, p, d, g)
                : n == 4 ? lks_conv2d(x, w, LKS_NONE, s, p, d, g)
                         : lks_conv3d(x, w, LKS_NONE, s, p, d, g);
            lks_tensor *r = y ? laid_out(noise_of(ctx, LKS_F64, n, lks_shape(y), 1, 13), layout) : NULL;
            back = n == 3   ? lks_conv_transpose1d(r, w, LKS_NONE, s, p, o, g, d)
                   : n == 4 ? lks_conv_transpose2d(r, w, LKS_NONE, s, p, o, g, d)
                            : lks_conv_transpose3d(r, w, LKS_NONE, s, p, o, g, d);
            double a = 0, b = 1;
            int fits = y && back && sums_to(y, r, &a) && sums_to(x, back, &b);
            if (!fits || fabs(a - b) > 1e-10 * (1 + fabs(a)))
                good = 0, diag("case %d layout %d: %g, %g: %s", i, layout, a, b, lks_error(ctx));
            lks_error_clear(ctx);
            lks_scope_end(ctx);
        }
    ok(good, "transposed convolution is the adjoint of convolution, with groups, dilation, output padding");
}

/* conv3d against conv2d of its planes; conv1d against conv2d of height 1; conv_tbc against conv1d. */
static void test_convolutions(void)
{
    int good = 1;
    for (int t = 0; t < 4; t++)
        for (int layout = 0; layout < 3; layout++) {
            lks_dtype dtype = array_floats[t];
            lks_scope_begin(ctx);
            lks_tensor *x = laid_out(noise_of(ctx, dtype, 5, (int64_t[]){2, 3, 5, 6, 7}, 1, 21), layout);
            lks_tensor *w = noise_of(ctx, dtype, 5, (int64_t[]){4, 3, 3, 2, 3}, 1, 22);
            lks_tensor *bias = noise_of(ctx, dtype, 1, (int64_t[]){4}, 1, 23);
            lks_tensor *y = lks_conv3d(x, w, bias, (int64_t[]){2, 1, 1}, (int64_t[]){1, 0, 1}, NULL, 1);
            lks_tensor *xd = lks_to(x, LKS_F64), *wd = lks_to(w, LKS_F64), *want = NULL;
            for (int o = 0; o < 3; o++) { /* sizes 5 + 2 - 3, by 2 */
                lks_tensor *sum = NULL;
                for (int k = 0; k < 3; k++) {
                    int64_t d = 2 * o - 1 + k;
                    if (d < 0 || d > 4) continue;
                    lks_tensor *part = lks_conv2d(lks_select(xd, 2, d), lks_select(wd, 2, k), LKS_NONE, NULL,
                                                  (int64_t[]){0, 1}, NULL, 1);
                    sum = sum ? lks_add(sum, part) : part;
                }
                sum = lks_unsqueeze(sum, 2);
                want = want ? lks_cat(2, (lks_tensor *[]){want, sum}, 2) : sum;
            }
            want = lks_add(want, lks_reshape(lks_to(bias, LKS_F64), 4, (int64_t[]){4, 1, 1, 1}));
            double *v = values_of(ctx, want);
            good &= y && close_to(ctx, y, v, lks_numel(want), 4 * tolerance_of(dtype));
            if (good && layout == 2) good = lks_stride(y)[1] == 1;
            free(v);
            /* a line */
            x = laid_out(noise_of(ctx, dtype, 3, (int64_t[]){2, 6, 40}, 1, 24), layout);
            w = noise_of(ctx, dtype, 3, (int64_t[]){8, 3, 5}, 1, 25);
            y = lks_conv1d(x, w, LKS_NONE, (int64_t[]){3}, (int64_t[]){2}, (int64_t[]){2}, 2);
            want = lks_squeeze(lks_conv2d(lks_unsqueeze(lks_to(x, LKS_F64), 2), lks_unsqueeze(lks_to(w, LKS_F64), 2),
                                          LKS_NONE, (int64_t[]){1, 3}, (int64_t[]){0, 2}, (int64_t[]){1, 2}, 2), 2);
            v = values_of(ctx, want);
            good &= y && close_to(ctx, y, v, lks_numel(want), 4 * tolerance_of(dtype));
            free(v);
            /* time first */
            w = noise_of(ctx, dtype, 3, (int64_t[]){4, 6, 5}, 1, 26);
            y = lks_conv_tbc(lks_permute(x, 3, (int[]){2, 0, 1}), w, LKS_NONE, 2);
            want = lks_permute(lks_conv1d(lks_to(x, LKS_F64), lks_permute(lks_to(w, LKS_F64), 3, (int[]){2, 1, 0}),
                                          LKS_NONE, NULL, (int64_t[]){2}, NULL, 1), 3, (int[]){2, 0, 1});
            v = values_of(ctx, want);
            good &= y && close_to(ctx, y, v, lks_numel(want), 4 * tolerance_of(dtype));
            free(v);
            if (!good) diag("%s layout %d: %s", lks_dtype_name(dtype), layout, lks_error(ctx));
            lks_error_clear(ctx);
            lks_scope_end(ctx);
        }
    ok(good, "conv3d by planes, conv1d, conv_tbc");
    lks_scope_begin(ctx);
    good = 1;
    for (int64_t k = 1; k < 6; k++) {
        lks_tensor *x = noise_of(ctx, LKS_F32, 4, (int64_t[]){1, 2, 6, 7}, 1, 27);
        lks_tensor *w = noise_of(ctx, LKS_F32, 4, (int64_t[]){3, 2, k, 2}, 1, 28);
        lks_tensor *y = lks_conv2d(x, w, LKS_NONE, NULL, (int64_t[]){LKS_SAME, LKS_SAME}, (int64_t[]){2, 1}, 1);
        int64_t left = k - 1; /* dilation 2: 2 (k - 1) in all */
        lks_tensor *full = lks_conv2d(x, w, LKS_NONE, NULL, (int64_t[]){left, 1}, (int64_t[]){2, 1}, 1);
        double *v = values_of(ctx, lks_slice(full, 3, 1, 8, 1)); /* 1 zero behind, none before */
        good &= y && lks_shape(y)[2] == 6 && lks_shape(y)[3] == 7 && close_to(ctx, y, v, 126, 1e-5);
        free(v);
    }
    ok(good, "padding of same: the odd zero comes behind: %s", lks_error(ctx));
    lks_scope_end(ctx);
}

static void test_pads(void)
{
    static const int64_t before[3] = {1, 2, 2}, after[3] = {0, 1, 3};
    int good = 1;
    for (int dims = 1; dims <= 3; dims++)
        for (int reflect = 0; reflect < 2; reflect++)
            for (int layout = 0; layout < 3; layout++) {
                lks_scope_begin(ctx);
                const int64_t *b = before + 3 - dims, *a = after + 3 - dims;
                int64_t shape[5] = {2, 3, 4, 4, 4}, in[5], out[5];
                lks_tensor *x = laid_out(noise_of(ctx, LKS_BF16, dims + 2, shape, 1, 31), layout);
                lks_tensor *y = reflect ? lks_reflection_pad(x, b, a) : lks_replication_pad(x, b, a);
                five(x, in), five(y, out);
                double *xv = values_of(ctx, x), *yv = values_of(ctx, y);
                for (int64_t e = 0; e < lks_numel(y); e++) {
                    int64_t at[3] = {e / out[4] / out[3] % out[2], e / out[4] % out[3], e % out[4]};
                    for (int i = 3 - dims; i < 3; i++) {
                        at[i] -= before[i];
                        while (reflect && (at[i] < 0 || at[i] > 3)) at[i] = at[i] < 0 ? -at[i] : 6 - at[i];
                        at[i] = at[i] < 0 ? 0 : at[i] > 3 ? 3 : at[i];
                    }
                    int64_t nc = e / out[4] / out[3] / out[2];
                    good &= yv[e] == xv[((nc * in[2] + at[0]) * in[3] + at[1]) * in[4] + at[2]];
                }
                free(xv), free(yv);
                lks_scope_end(ctx);
            }
    ok(good, "reflection and replication in 1 to 3 dims");
}

static double pixel(const double *x, int64_t h, int64_t w, double i, double j)
{
    return i < 0 || j < 0 || i >= (double)h || j >= (double)w ? 0 : x[(int64_t)i * w + (int64_t)j];
}

static double mirrored(double at, double low, double high)
{
    if (high <= low) return 0;
    while (at < low || at > high) at = at < low ? 2 * low - at : 2 * high - at;
    return at;
}

static double bound(double at, int64_t n, int padding, int align)
{
    if (padding == LKS_SAMPLE_REFLECTION)
        at = align ? mirrored(at, 0, (double)n - 1) : mirrored(at, -0.5, (double)n - 0.5);
    if (padding) at = fmin(fmax(at, 0), (double)n - 1);
    return at;
}

static void test_grid(void)
{
    enum { H = 5, W = 6, C = 3, Q = 40 };
    int64_t xs[4] = {1, C, H, W}, gs[4] = {1, 1, Q, 2};
    int good = 1;
    for (int mode = 0; mode < 3; mode++)
        for (int padding = 0; padding < 3; padding++)
            for (int align = 0; align < 2; align++)
                for (int layout = 0; layout < 3; layout++) {
                    lks_scope_begin(ctx);
                    lks_tensor *x = laid_out(noise_of(ctx, LKS_F64, 4, xs, 1, 41), layout);
                    lks_tensor *g = noise_of(ctx, LKS_F64, 4, gs, 2.5, 42);
                    lks_tensor *y = lks_grid_sample(x, g, mode, padding, align);
                    double *xv = values_of(ctx, x), *gv = values_of(ctx, g), *yv = values_of(ctx, y);
                    for (int64_t q = 0; yv && q < Q; q++)
                        for (int64_t c = 0; c < C; c++) {
                            const double *p = xv + c * H * W;
                            double u = align ? (gv[2 * q] + 1) / 2 * (W - 1) : ((gv[2 * q] + 1) * W - 1) / 2, want = 0;
                            double v = align ? (gv[2 * q + 1] + 1) / 2 * (H - 1) : ((gv[2 * q + 1] + 1) * H - 1) / 2;
                            if (mode != LKS_SAMPLE_BICUBIC)
                                u = bound(u, W, padding, align), v = bound(v, H, padding, align);
                            double fu = floor(u), fv = floor(v), a = u - fu, b = v - fv;
                            if (mode == LKS_SAMPLE_NEAREST) want = pixel(p, H, W, nearbyint(v), nearbyint(u));
                            if (mode == LKS_SAMPLE_BILINEAR)
                                want = (1 - b) * (pixel(p, H, W, fv, fu) * (1 - a) + pixel(p, H, W, fv, fu + 1) * a) +
                                       b * (pixel(p, H, W, fv + 1, fu) * (1 - a) + pixel(p, H, W, fv + 1, fu + 1) * a);
                            for (int i = -1; mode == LKS_SAMPLE_BICUBIC && i < 3; i++)
                                for (int j = -1; j < 3; j++) {
                                    double d[2] = {fabs(b - i), fabs(a - j)}, k = 1;
                                    for (int n = 0; n < 2; n++)
                                        k *= d[n] <= 1 ? 1.25 * d[n] * d[n] * d[n] - 2.25 * d[n] * d[n] + 1
                                                       : -0.75 * (d[n] * d[n] * d[n] - 5 * d[n] * d[n] + 8 * d[n] - 4);
                                    want += k * pixel(p, H, W, bound(fv + i, H, padding, align),
                                                      bound(fu + j, W, padding, align));
                                }
                            good &= fabs(yv[c * Q + q] - want) < 1e-9;
                            if (fabs(yv[c * Q + q] - want) >= 1e-9)
                                diag("mode %d padding %d align %d: %g, %g", mode, padding, align, yv[c * Q + q], want);
                        }
                    good &= yv != NULL;
                    free(xv), free(gv), free(yv);
                    lks_scope_end(ctx);
                }
    ok(good, "grid sampling: modes, paddings, corners");
    lks_scope_begin(ctx);
    double place[8] = {NAN, NAN, INFINITY, 0, -INFINITY, -INFINITY, 1e30, -1e30}, one[4] = {1, 2, 3, 4};
    lks_tensor *x = tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 1, 2, 2}, one);
    lks_tensor *g = tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 1, 4, 2}, place);
    double *zeros = values_of(ctx, lks_grid_sample(x, g, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_ZEROS, 1));
    double *border = values_of(ctx, lks_grid_sample(x, g, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_BORDER, 1));
    ok(zeros && zeros[0] == 1 && zeros[1] == 0 && zeros[2] == 0 && zeros[3] == 0, "NaN is -1, outside is 0");
    ok(border && border[0] == 1 && border[1] == 3 && border[2] == 1 && border[3] == 2, "infinite places at the border");
    free(zeros), free(border);
    /* In a dim of one element infinity is none of its ends; far beyond the border bicubic takes the nearer one. */
    double column[3] = {1, 2, 3}, far[6] = {INFINITY, 0, -INFINITY, 1, 1e30, -1};
    lks_tensor *thin = tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 1, 3, 1}, column);
    lks_tensor *f = tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 1, 3, 2}, far), *all[2] = {thin, f}, *grad[2];
    lks_set_requires_grad(thin, 1), lks_set_requires_grad(f, 1);
    for (int mode = LKS_SAMPLE_BILINEAR; mode <= LKS_SAMPLE_BICUBIC; mode++) {
        lks_tensor *z = lks_grid_sample(thin, f, mode, LKS_SAMPLE_BORDER, 1);
        ok(lks_gradients(z, lks_ones(ctx, LKS_F32, 4, (int64_t[]){1, 1, 1, 3}), 2, all, 0, 0, grad) == LKS_OK,
           "a gradient");
        double *v = values_of(ctx, z), *dx = values_of(ctx, grad[0]), *dg = values_of(ctx, grad[1]);
        ok(v && fabs(v[0] - 2) < 1e-6 && fabs(v[1] - 3) < 1e-6 && fabs(v[2] - 1) < 1e-6,
           "mode %d, a border around one element", mode);
        ok(dx && fabs(dx[0] - 1) < 1e-6 && fabs(dx[2] - 1) < 1e-6 && dg && dg[0] == 0 && dg[2] == 0 && dg[4] == 0,
           "its gradient");
        free(v), free(dx), free(dg);
    }
    double *edge = values_of(ctx, lks_grid_sample(x, g, LKS_SAMPLE_BICUBIC, LKS_SAMPLE_BORDER, 0));
    ok(edge && fabs(edge[2] - 1) < 1e-6 && fabs(edge[3] - 2) < 1e-6, "bicubic at infinity: the nearest element");
    free(edge);
    /* A transposed convolution of one pixel whose output padding lies beyond all of x: bias alone. */
    double two[2] = {8, 5};
    int64_t more[1] = {1}, apart[1] = {2};
    lks_tensor *in = tensor_of(ctx, LKS_F32, 3, (int64_t[]){1, 1, 1}, one);
    lks_tensor *w = tensor_of(ctx, LKS_F32, 3, (int64_t[]){1, 1, 1}, column + 2);
    lks_tensor *bias = lks_full(ctx, LKS_F32, 1, more, 5), *grads[2], *of[2] = {in, w};
    for (int i = 0; i < 20; i++) lks_full(ctx, LKS_F32, 3, (int64_t[]){1, 1, 2}, 7); /* memory that was used before */
    lks_set_requires_grad(in, 1), lks_set_requires_grad(w, 1);
    lks_tensor *wide = lks_conv_transpose1d(in, w, bias, NULL, NULL, more, 1, apart);
    ok(close_to(ctx, wide, two, 2, 0) &&
           lks_gradients(wide, lks_ones(ctx, LKS_F32, 3, (int64_t[]){1, 1, 2}), 2, of, 0, 0, grads) == LKS_OK &&
           close_to(ctx, grads[0], (double[]){3}, 1, 0) && close_to(ctx, grads[1], (double[]){1}, 1, 0),
       "conv_transpose1d: output padding with a kernel of 1");
    lks_scope_end(ctx);
}

/* Channels are taken in groups, images in rounds, pixels side by side where there are many places: a channel has the
 * bits that it has alone, dx too, and the gradient of the grid is the sum of theirs. */
static int channels_case(lks_dtype dtype, int dims, int mode, int channels, int64_t size, int64_t places, int layout)
{
    int64_t xs[5] = {2, channels, size, size + 1, size + 2}, gs[5] = {2, places, 3, 2, 2};
    int64_t ys[5] = {2, channels, places};
    for (int d = 0; d < dims - 1; d++) ys[3 + d] = gs[2 + d];
    gs[dims + 1] = dims;
    lks_scope_begin(ctx);
    lks_tensor *x = laid_out(noise_of(ctx, dtype, dims + 2, xs, 1, 51), layout);
    lks_tensor *g = laid_out(noise_of(ctx, dtype, dims + 2, gs, 1.2, 52), layout == 2 ? 1 : layout);
    lks_tensor *dy = laid_out(noise_of(ctx, dtype, dims + 2, ys, 1, 53), layout);
    lks_tensor *all[2] = {x, g}, *grad[2] = {0};
    lks_set_requires_grad(x, 1), lks_set_requires_grad(g, 1);
    lks_tensor *y = lks_grid_sample(x, g, mode, LKS_SAMPLE_BORDER, 0);
    int good = lks_gradients(y, dy, 2, all, 0, 0, grad) == LKS_OK;
    double *sum = calloc((size_t)lks_numel(g), sizeof *sum), *dg = values_of(ctx, grad[1]);
    for (int c = 0; good && c < channels; c++) {
        lks_tensor *one[2] = {lks_contiguous(lks_narrow(lks_detach(x), 1, c, 1)), lks_detach(g)}, *own[2] = {0};
        lks_set_requires_grad(one[0], 1), lks_set_requires_grad(one[1], 1);
        lks_tensor *z = lks_grid_sample(one[0], one[1], mode, LKS_SAMPLE_BORDER, 0);
        good &= lks_gradients(z, lks_contiguous(lks_narrow(dy, 1, c, 1)), 2, one, 0, 0, own) == LKS_OK;
        double *v[5] = {values_of(ctx, z), values_of(ctx, lks_narrow(y, 1, c, 1)), values_of(ctx, own[0]),
                        values_of(ctx, lks_narrow(grad[0], 1, c, 1)), values_of(ctx, own[1])};
        for (int64_t i = 0; v[0] && v[1] && i < lks_numel(z); i++) good &= v[0][i] == v[1][i];
        for (int64_t i = 0; v[2] && v[3] && i < lks_numel(own[0]); i++) good &= v[2][i] == v[3][i];
        for (int64_t i = 0; v[4] && i < lks_numel(g); i++) sum[i] += v[4][i];
        for (int i = 0; i < 5; i++) good &= v[i] != NULL, free(v[i]);
    }
    for (int64_t i = 0; good && i < lks_numel(g); i++)
        good &= fabs(sum[i] - dg[i]) <= (dtype == LKS_F64 ? 1e-12 : 2e-4) * (1 + fabs(sum[i]));
    if (!good)
        diag("%s, %d dims, mode %d, %d channels, layout %d", lks_dtype_name(dtype), dims, mode, channels, layout);
    free(sum), free(dg);
    lks_scope_end(ctx);
    return good;
}

static void test_grid_channels(const char *isa)
{
    static const int channels[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 35};
    int good = 1;
    for (int i = 0; i < 11; i++)
        for (int layout = 0; layout < 3; layout++) {
            int mode = (i + layout) % 3;
            good &= channels_case(LKS_F32, 2, mode, channels[i], 6, 50, layout);
            good &= channels_case(LKS_F64, 2, mode, channels[i], 40, 3, layout); /* few places: x as it lies */
            good &= channels_case(layout ? LKS_F32 : LKS_F64, 3, mode % 2, channels[i], 4, 20, layout);
        }
    ok(good, "grid sampling: a channel does not depend on its neighbours, %s", isa);
    int64_t xs[4] = {5, 16, 256, 256}, gs[4] = {5, 256, 256, 2};
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, LKS_F32, 4, xs, 1, 54);
    int64_t places = gs[0] * gs[1] * gs[2];
    float *at = malloc((size_t)places * 2 * sizeof *at);
    for (int64_t i = 0; at && i < places; i++)
        at[2 * i] = (float)(2 * (i % 256) + 1) / 256 - 1, at[2 * i + 1] = (float)(2 * (i / 256 % 256) + 1) / 256 - 1;
    lks_tensor *g = lks_from_host(ctx, LKS_F32, 4, gs, at);
    lks_set_requires_grad(x, 1);
    lks_tensor *y = lks_grid_sample(x, g, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_ZEROS, 0), *dx = NULL;
    good = lks_gradients(y, lks_detach(x), 1, &x, 0, 0, &dx) == LKS_OK;
    double *v[3] = {values_of(ctx, x), values_of(ctx, y), values_of(ctx, dx)};
    for (int64_t i = 0; v[0] && v[1] && v[2] && i < lks_numel(x); i++) good &= v[0][i] == v[1][i] && v[0][i] == v[2][i];
    ok(good && v[0] && v[1] && v[2], "grid sampling at each pixel is the image, in several rounds of images, %s", isa);
    for (int i = 0; i < 3; i++) free(v[i]);
    free(at);
    lks_scope_end(ctx);
}

#define NO(call, status, text)                                                                                 \
    do {                                                                                                       \
        (void)(call);                                                                                          \
        ok(lks_error_code(ctx) == (status) && strstr(lks_error(ctx), text), "refused: %s", lks_error(ctx));    \
        lks_error_clear(ctx);                                                                                  \
    } while (0)

static void test_refusals(void)
{
    lks_tensor *y, *at;
    lks_scope_begin(ctx);
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 4, (int64_t[]){1, 2, 4, 4});
    lks_tensor *i = lks_full(ctx, LKS_I64, 4, (int64_t[]){1, 2, 2, 2}, 16);
    lks_tensor *line = lks_zeros(ctx, LKS_F32, 3, (int64_t[]){1, 2, 4});
    lks_tensor *two = lks_zeros(ctx, LKS_F32, 4, (int64_t[]){1, 2, 2, 2});
    const int64_t k[3] = {2, 2, 2}, none[3] = {0, 0, 0}, big[3] = {4, 4, 4};
    NO(lks_max_pool(x, k, none, NULL, NULL, 0, &y, &at), LKS_ERR_ARGUMENT, "stride 0");
    NO(lks_max_pool(x, k, NULL, k, NULL, 0, &y, &at), LKS_ERR_ARGUMENT, "padding 2");
    NO(lks_max_pool(x, k, NULL, NULL, big, 0, &y, &at), LKS_ERR_SHAPE, "does not fit");
    NO(lks_avg_pool(i, k, NULL, NULL, 0, 1, 0), LKS_ERR_DTYPE, "int64");
    NO(lks_adaptive_avg_pool(x, none), LKS_ERR_ARGUMENT, "size 0");
    NO(lks_max_unpool(two, i, big), LKS_ERR_ARGUMENT, "16");
    NO(lks_max_unpool(x, i, big), LKS_ERR_SHAPE, "[1,2,2,2]");
    NO(lks_reflection_pad(x, big, none), LKS_ERR_SHAPE, "reflection");
    NO(lks_replication_pad(x, (int64_t[]){-1, 0}, NULL), LKS_ERR_ARGUMENT, "-1");
    NO(lks_grid_sample(x, x, 0, 0, 0), LKS_ERR_SHAPE, "grid");
    NO(lks_grid_sample(x, two, 3, 0, 0), LKS_ERR_ARGUMENT, "mode 3");
    NO(lks_conv1d(line, line, LKS_NONE, k, (int64_t[]){LKS_SAME}, NULL, 1), LKS_ERR_ARGUMENT, "LKS_SAME");
    NO(lks_conv_transpose2d(x, two, LKS_NONE, NULL, NULL, k, 1, NULL), LKS_ERR_SHAPE, "weight");
    NO(lks_conv_transpose2d(x, lks_transpose(two, 0, 1), LKS_NONE, NULL, NULL, k, 1, NULL), LKS_ERR_ARGUMENT,
       "output padding 2");
    lks_scope_end(ctx);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    static const char *const isas[] = {"base", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        if (!(ctx = context_on("cpu", isas[i], 2))) continue;
        test_windows(isas[i]);
        test_lengths(isas[i]);
        test_convolutions();
        test_grid_channels(isas[i]);
        lks_context_destroy(&ctx);
    }
    ctx = context_on("cpu", NULL, 2);
    test_adaptive();
    test_fractional();
    test_adjoint();
    test_pads();
    test_grid();
    test_refusals();
    is_int(lks_live_tensors(ctx), 0, "nothing is left");
    lks_context_destroy(&ctx);
    int status = done();
    MPI_Finalize();
    return status;
}
