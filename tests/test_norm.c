/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_norm.c - layer_norm, rms_norm, group_norm and batch_norm, forward and backward, against plain loops in double:
 * every float dtype, layouts, ISAs, thread counts; rows of one element, large means, constant rows.
 */
#include "arrays.h"
#include "dispatch/dispatch.h"

/* x, y, dy, dx: [rows, n]; w, b, dw, db: [n], w and b may be NULL. */
static void reference(const double *x, const double *w, const double *b, const double *dy, int64_t rows, int64_t n,
                      double eps, double *y, double *dx, double *dw, double *db)
{
    memset(dw, 0, (size_t)n * sizeof *dw);
    memset(db, 0, (size_t)n * sizeof *db);
    for (int64_t r = 0; r < rows; r++, x += n, y += n, dy += n, dx += n) {
        double mean = 0, var = 0, g1 = 0, g2 = 0;
        for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / (double)n;
        double rstd = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < n; i++) {
            double h = (x[i] - mean) * rstd, g = dy[i] * (w ? w[i] : 1);
            y[i] = h * (w ? w[i] : 1) + (b ? b[i] : 0);
            dw[i] += dy[i] * h;
            db[i] += dy[i];
            g1 += g / (double)n;
            g2 += g * h / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            double h = (x[i] - mean) * rstd, g = dy[i] * (w ? w[i] : 1);
            dx[i] = (g - g1 - h * g2) * rstd;
        }
    }
}

static double *room(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(double));
}

/* parameters: 0 none, 1 weight, 2 weight and bias, 3 bias, all float32 or of x's dtype. */
static int layer_norm_case(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, int k, int layout,
                           int parameters, int narrow)
{
    int64_t n = 1, rows = 1;
    for (int d = 0; d < ndim; d++) *(d < ndim - k ? &rows : &n) *= shape[d];
    lks_dtype pd = dtype == LKS_F64 || narrow ? dtype : LKS_F32;
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, ndim, shape, 2, 1), *dy = noise_of(ctx, dtype, ndim, shape, 1, 2);
    lks_tensor *w = parameters == 1 || parameters == 2 ? noise_of(ctx, pd, k, shape + ndim - k, 1, 3) : LKS_NONE;
    lks_tensor *b = parameters >= 2 ? noise_of(ctx, pd, k, shape + ndim - k, 1, 4) : LKS_NONE;
    if (layout) {
        x = reversed(x);
        dy = reversed(dy);
    }
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy);
    double *vw = w == LKS_NONE ? NULL : values_of(ctx, w), *vb = b == LKS_NONE ? NULL : values_of(ctx, b);
    double *y = room(rows * n), *dx = room(rows * n), *dw = room(n), *db = room(n);
    reference(vx, vw, vb, vg, rows, n, 1e-5, y, dx, dw, db);
    lks_set_requires_grad(x, 1);
    if (vw) lks_set_requires_grad(w, 1);
    if (vb) lks_set_requires_grad(b, 1);
    lks_tensor *out = lks_layer_norm(x, k, w, b, 1e-5);
    double tol = tolerance_of(dtype), sums = pd == dtype ? tol : tolerance_of(pd);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, rows * n, 2 * tol);
    good &= lks_backward(out, dy, 0) == LKS_OK;
    if (!good) diag("%s", lks_error(ctx));
    good = good && close_to(ctx, lks_grad(x), dx, rows * n, 10 * tol);
    if (vw) good = good && close_to(ctx, lks_grad(w), dw, n, 10 * sums);
    if (vb) good = good && close_to(ctx, lks_grad(b), db, n, 10 * sums);
    free(vx), free(vg), free(vw), free(vb), free(y), free(dx), free(dw), free(db);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void layer_norms(lks_context *ctx, const char *name)
{
    static const struct { int ndim, k; int64_t shape[4]; } cases[] = {
        {2, 1, {7, 33}}, {3, 2, {5, 3, 20}}, {2, 1, {150, 64}}, {1, 1, {100}}, {2, 1, {3, 1}}, {4, 1, {2, 3, 4, 513}},
        {2, 1, {0, 4}}, {2, 1, {3, 0}}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int layout = 0; layout < 2; layout++)
                for (int p = 0; p < 5; p++)
                    if (!layer_norm_case(ctx, array_floats[d], cases[c].ndim, cases[c].shape, cases[c].k, layout, p & 3,
                                         p == 4)) {
                        diag("case %d layout %d parameters %d", (int)c, layout, p);
                        good = 0;
                    }
        ok(good, "layer_norm %s %s", name, lks_dtype_name(array_floats[d]));
    }
}

/* Channels as rows: [C, count] from [N, C, P]. */
static void to_rows(const double *x, int64_t n, int64_t c, int64_t p, double *out, int back)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t k = 0; k < p; k++) {
                int64_t a = (i * c + j) * p + k, b = (j * n + i) * p + k;
                if (back) out[a] = x[b];
                else out[b] = x[a];
            }
}

static int batch_norm_case(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, int layout, int training,
                           int affine)
{
    int64_t n = shape[0], c = shape[1], p = 1, count = 0, one[1] = {shape[1]};
    for (int d = 2; d < ndim; d++) p *= shape[d];
    count = n * p;
    double eps = 1e-5, m = 0.1;
    lks_dtype wide = dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, ndim, shape, 2, 5), *dy = noise_of(ctx, dtype, ndim, shape, 1, 6);
    if (layout == 1) {
        x = channels_last(x);
        dy = channels_last(dy);
    } else if (layout == 2) {
        x = reversed(x);
        dy = reversed(dy);
    }
    lks_tensor *w = affine ? noise_of(ctx, wide, 1, one, 1, 7) : LKS_NONE;
    lks_tensor *b = affine ? noise_of(ctx, wide, 1, one, 1, 8) : LKS_NONE;
    double *rv = noise(c, 1, 9);
    for (int64_t j = 0; j < c; j++) rv[j] = rv[j] * rv[j] + 0.5;
    lks_tensor *rm = noise_of(ctx, wide, 1, one, 1, 10), *rvar = tensor_of(ctx, wide, 1, one, rv);
    lks_tensor *sm = lks_clone(rm), *sv = lks_clone(rvar);
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy), *vm = values_of(ctx, rm), *vv = values_of(ctx, rvar);
    double *vw = affine ? values_of(ctx, w) : NULL, *vb = affine ? values_of(ctx, b) : NULL;
    int64_t all = n * c * p;
    double *xr = room(all), *gr = room(all), *yr = room(all), *dr = room(all), *y = room(all), *dx = room(all);
    double *dw = room(c), *db = room(c), *em = room(c), *ev = room(c);
    to_rows(vx, n, c, p, xr, 0);
    to_rows(vg, n, c, p, gr, 0);
    for (int64_t j = 0; j < c; j++) {
        const double *row = xr + j * count, *g = gr + j * count;
        double mean = 0, var = 0, s1 = 0, s2 = 0, weight = vw ? vw[j] : 1, bias = vb ? vb[j] : 0;
        for (int64_t i = 0; i < count; i++) mean += row[i] / (double)count;
        for (int64_t i = 0; i < count; i++) var += (row[i] - mean) * (row[i] - mean) / (double)count;
        em[j] = (1 - m) * vm[j] + m * mean;
        ev[j] = (1 - m) * vv[j] + m * (count > 1 ? var * (double)count / (double)(count - 1) : var);
        if (!training) {
            em[j] = mean = vm[j];
            ev[j] = var = vv[j];
        }
        double rstd = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < count; i++) {
            double h = (row[i] - mean) * rstd;
            yr[j * count + i] = h * weight + bias;
            s1 += g[i];
            s2 += g[i] * h;
        }
        dw[j] = s2;
        db[j] = s1;
        for (int64_t i = 0; i < count; i++) {
            double h = (row[i] - mean) * rstd;
            double d = training ? g[i] - s1 / (double)count - h * s2 / (double)count : g[i];
            dr[j * count + i] = d * weight * rstd;
        }
    }
    to_rows(yr, n, c, p, y, 1);
    to_rows(dr, n, c, p, dx, 1);
    lks_set_requires_grad(x, 1);
    if (affine) {
        lks_set_requires_grad(w, 1);
        lks_set_requires_grad(b, 1);
    }
    lks_tensor *out = lks_batch_norm(x, w, b, rm, rvar, sm, sv, training, m, eps);
    double tol = tolerance_of(dtype), sums = tolerance_of(wide);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, all, 2 * tol);
    if (good && layout == 1 && c > 1) good = lks_stride(out)[1] == 1;
    good = good && close_to(ctx, sm, em, c, sums) && close_to(ctx, sv, ev, c, sums);
    good = good && close_to(ctx, rm, vm, c, 0);
    good = good && lks_backward(out, dy, 0) == LKS_OK && close_to(ctx, lks_grad(x), dx, all, 10 * tol);
    if (affine) good = good && close_to(ctx, lks_grad(w), dw, c, 10 * sums);
    if (affine) good = good && close_to(ctx, lks_grad(b), db, c, 10 * sums);
    if (!good) diag("%s", lks_error(ctx));
    free(rv), free(vx), free(vg), free(vm), free(vv), free(vw), free(vb), free(xr), free(gr), free(yr), free(dr);
    free(y), free(dx), free(dw), free(db), free(em), free(ev);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void batch_norms(lks_context *ctx, const char *name)
{
    static const struct { int ndim; int64_t shape[4]; } cases[] = {
        {4, {3, 5, 4, 6}}, {4, {2, 3, 20, 20}}, {2, {9, 7}}, {2, {1, 4}}, {3, {4, 6, 5}}, {4, {2, 1, 3, 3}},
        {4, {1, 40, 70, 9}}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int layout = 0; layout < 3; layout++)
                for (int how = 0; how < 4; how++) {
                    if (layout == 1 && cases[c].ndim != 4) continue;
                    if (batch_norm_case(ctx, array_floats[d], cases[c].ndim, cases[c].shape, layout, how & 1, how >> 1))
                        continue;
                    diag("case %d layout %d how %d", (int)c, layout, how);
                    good = 0;
                }
        ok(good, "batch_norm %s %s", name, lks_dtype_name(array_floats[d]));
    }
}

/* dx of layer_norm for an upstream of ones. */
static double *gradient(lks_context *ctx, lks_tensor *x, int k, lks_tensor *w, lks_tensor *b)
{
    lks_set_requires_grad(x, 1);
    lks_tensor *y = lks_layer_norm(x, k, w, b, 1e-5);
    lks_tensor *ones = lks_ones(ctx, lks_dtype_of(x), lks_ndim(x), lks_shape(x));
    if (lks_backward(y, ones, 0)) return NULL;
    return values_of(ctx, lks_grad(x));
}

static void known(lks_context *ctx)
{
    /* Rows of one element: the bias exactly, no gradient. */
    int64_t s31[2] = {3, 1}, s1[1] = {1};
    double x31[3] = {4, -1e30, 0.5}, beta[1] = {0.7}, gamma[1] = {3};
    lks_tensor *b = tensor_of(ctx, LKS_F32, 1, s1, beta), *w = tensor_of(ctx, LKS_F32, 1, s1, gamma);
    double *v = values_of(ctx, lks_layer_norm(tensor_of(ctx, LKS_F32, 2, s31, x31), 1, w, b, 1e-5));
    double is = (double)0.7f;
    ok(v && v[0] == is && v[1] == is && v[2] == is, "layer norm of one feature is the bias");
    free(v);
    v = gradient(ctx, tensor_of(ctx, LKS_F32, 2, s31, x31), 1, w, b);
    ok(v && v[0] == 0 && v[1] == 0 && v[2] == 0, "its gradient is 0");
    free(v);

    /* A large mean does not cancel. */
    static const double means[4] = {0, 100, 1000, 10000};
    static const double first[4] = {-1.3416408, -1.3415277, -1.3415078, -1.3313334};
    int64_t s16[1] = {16};
    for (int m = 0; m < 4; m++) {
        double x[16];
        for (int i = 0; i < 16; i++) x[i] = (double)((float)means[m] + (float)((float)i * 1e-3f));
        v = values_of(ctx, lks_layer_norm(tensor_of(ctx, LKS_F32, 1, s16, x), 1, LKS_NONE, LKS_NONE, 1e-5));
        ok(v && fabs(v[0] - first[m]) < 1e-4, "layer norm with mean %g: %.7f", means[m], v ? v[0] : NAN);
        free(v);
        double y[16], dx[16], dw[16], db[16], g[16];
        for (int i = 0; i < 16; i++) g[i] = (double)(float)(0.25 * (i * i % 7));
        reference(x, NULL, NULL, g, 1, 16, 1e-5, y, dx, dw, db);
        lks_tensor *t = tensor_of(ctx, LKS_F32, 1, s16, x);
        lks_set_requires_grad(t, 1);
        lks_backward(lks_layer_norm(t, 1, LKS_NONE, LKS_NONE, 1e-5), tensor_of(ctx, LKS_F32, 1, s16, g), 0);
        ok(close_to(ctx, lks_grad(t), dx, 16, 1e-4), "its gradient");
    }

    /* Nearly and quite constant rows. */
    int64_t big[1] = {10240}, s256[1] = {256};
    double *x = room(10240);
    for (int i = 0; i < 10240; i++) x[i] = i == 10239 ? 255 : 256;
    v = values_of(ctx, lks_layer_norm(tensor_of(ctx, LKS_F32, 1, big, x), 1, LKS_NONE, LKS_NONE, 1e-5));
    ok(v && fabs(v[0] - 0.0094124) < 1e-6 && fabs(v[10239] + 96.373404) < 1e-4, "one of 10240 differs: %.7f %.6f",
       v ? v[0] : NAN, v ? v[10239] : NAN);
    free(v);
    for (int i = 0; i < 256; i++) x[i] = 1234;
    lks_tensor *beta256 = noise_of(ctx, LKS_F32, 1, s256, 1, 11), *gamma256 = lks_ones(ctx, LKS_F32, 1, s256);
    double *want = values_of(ctx, beta256);
    v = values_of(ctx, lks_layer_norm(tensor_of(ctx, LKS_F32, 1, s256, x), 1, gamma256, beta256, 1e-5));
    ok(v && want && !memcmp(v, want, 256 * sizeof *v), "a constant row gives the bias exactly");
    free(v), free(want);
    v = gradient(ctx, tensor_of(ctx, LKS_F32, 1, s256, x), 1, gamma256, beta256);
    double most = 0;
    for (int i = 0; v && i < 256; i++) most = fmax(most, fabs(v[i]));
    ok(v && most == 0, "its gradient is 0");
    free(v);

    /* Sums of half-precision squares do not overflow: 300 and -300. */
    int64_t s512[1] = {512};
    for (int i = 0; i < 512; i++) x[i] = i % 2 ? 300 : -300;
    v = values_of(ctx, lks_layer_norm(tensor_of(ctx, LKS_F16, 1, s512, x), 1, LKS_NONE, LKS_NONE, 1e-6));
    ok(v && v[0] == -1 && v[511] == 1, "float16 row of 300s");
    free(v);

    /* Means of float16 values that overflow as a sum. */
    int64_t s2[2] = {3, 1};
    for (int i = 0; i < 3; i++) x[i] = 40000;
    int64_t one[1] = {1};
    lks_tensor *sm = lks_zeros(ctx, LKS_F32, 1, one), *sv = lks_zeros(ctx, LKS_F32, 1, one);
    lks_batch_norm(tensor_of(ctx, LKS_F16, 2, s2, x), LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, sm, sv, 1, 1.0, 1e-5);
    double *mean = values_of(ctx, sm), *var = values_of(ctx, sv);
    ok(mean && var && mean[0] == 40000 && var[0] == 0, "float16 values of 40000 have mean 40000 and variance 0");
    free(mean), free(var);

    /* A batch of one sample in training: the bias. */
    int64_t s12[2] = {1, 2}, c2[1] = {2};
    double bb[2] = {0.25, -3};
    v = values_of(ctx, lks_batch_norm(tensor_of(ctx, LKS_F32, 2, s12, x), LKS_NONE, tensor_of(ctx, LKS_F32, 1, c2, bb),
                                      LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5));
    ok(v && v[0] == 0.25 && v[1] == -3, "batch norm of one sample is the bias");
    free(v), free(x);
    ok(lks_error_code(ctx) == LKS_OK, "no error left: %s", lks_error(ctx));
}

/* RMS norm of rows, group norm of [N, C, P]: forward and gradients against loops in double. */
static int rms_case(lks_context *ctx, lks_dtype dtype, const int64_t *shape, int layout, int weighted)
{
    int64_t rows = shape[0] * shape[1], n = shape[2];
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, 3, shape, 2, 1), *dy = noise_of(ctx, dtype, 3, shape, 1, 2);
    lks_tensor *w = weighted ? noise_of(ctx, dtype == LKS_F64 ? LKS_F64 : LKS_F32, 1, &n, 1, 3) : LKS_NONE;
    if (layout) x = reversed(x), dy = reversed(dy);
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy), *vw = weighted ? values_of(ctx, w) : NULL;
    double *y = room(rows * n), *dx = room(rows * n), *dw = room(n);
    for (int64_t r = 0; r < rows; r++) {
        double s = 0, t = 0;
        const double *a = vx + r * n, *g = vg + r * n;
        for (int64_t i = 0; i < n; i++) s += a[i] * a[i] / (double)n;
        double rstd = 1 / sqrt(s + 1e-5);
        for (int64_t i = 0; i < n; i++) {
            double k = vw ? vw[i] : 1;
            y[r * n + i] = a[i] * rstd * k;
            t += g[i] * k * a[i] * rstd / (double)n;
            dw[i] += g[i] * a[i] * rstd;
        }
        for (int64_t i = 0; i < n; i++) dx[r * n + i] = rstd * (g[i] * (vw ? vw[i] : 1) - a[i] * rstd * t);
    }
    lks_set_requires_grad(x, 1);
    if (weighted) lks_set_requires_grad(w, 1);
    lks_tensor *out = lks_rms_norm(x, 1, w, 1e-5);
    double tol = tolerance_of(dtype);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, rows * n, 2 * tol);
    good = good && lks_backward(out, dy, 0) == LKS_OK && close_to(ctx, lks_grad(x), dx, rows * n, 10 * tol);
    if (weighted) good = good && close_to(ctx, lks_grad(w), dw, n, 10 * tolerance_of(lks_dtype_of(w)));
    if (!good) diag("rms layout %d weight %d: %s", layout, weighted, lks_error(ctx));
    free(vx), free(vg), free(vw), free(y), free(dx), free(dw);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static int group_case(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, int64_t groups, int layout,
                      int affine)
{
    int64_t n = shape[0], c = shape[1], p = 1, all, each = c / groups;
    for (int d = 2; d < ndim; d++) p *= shape[d];
    all = n * c * p;
    lks_dtype wide = dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    lks_scope_begin(ctx);
    lks_tensor *x = lks_affine(noise_of(ctx, dtype, ndim, shape, 2, 5), 1, 4);
    lks_tensor *dy = noise_of(ctx, dtype, ndim, shape, 1, 6);
    if (layout == 1 && ndim == 4) x = channels_last(x), dy = channels_last(dy);
    else if (layout == 2) x = reversed(x), dy = reversed(dy);
    lks_tensor *w = affine ? noise_of(ctx, wide, 1, &c, 1, 7) : LKS_NONE;
    lks_tensor *b = affine ? noise_of(ctx, wide, 1, &c, 1, 8) : LKS_NONE;
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy), *vw = affine ? values_of(ctx, w) : NULL;
    double *vb = affine ? values_of(ctx, b) : NULL, *y = room(all), *dx = room(all), *dw = room(c), *db = room(c);
    for (int64_t g = 0; g < n * groups; g++) {
        int64_t count = each * p, first = g * count;
        double mean = 0, var = 0, s1 = 0, s2 = 0;
        for (int64_t i = 0; i < count; i++) mean += vx[first + i] / (double)count;
        for (int64_t i = 0; i < count; i++) var += pow(vx[first + i] - mean, 2) / (double)count;
        double rstd = 1 / sqrt(var + 1e-5);
        for (int64_t i = 0; i < count; i++) {
            int64_t k = g % groups * each + i / p;
            double h = (vx[first + i] - mean) * rstd, d = vg[first + i], f = vw ? vw[k] : 1;
            y[first + i] = h * f + (vb ? vb[k] : 0);
            s1 += d * f / (double)count;
            s2 += d * f * h / (double)count;
            dw[k] += d * h;
            db[k] += d;
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t k = g % groups * each + i / p;
            dx[first + i] = rstd * (vg[first + i] * (vw ? vw[k] : 1) - s1 - (vx[first + i] - mean) * rstd * s2);
        }
    }
    lks_set_requires_grad(x, 1);
    if (affine) lks_set_requires_grad(w, 1), lks_set_requires_grad(b, 1);
    lks_tensor *out = lks_group_norm(x, groups, w, b, 1e-5);
    double tol = tolerance_of(dtype), sums = 20 * tolerance_of(wide);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, all, 4 * tol);
    if (good && layout == 1 && ndim == 4 && c > 1) good = lks_stride(out)[1] == 1;
    good = good && lks_backward(out, dy, 0) == LKS_OK && close_to(ctx, lks_grad(x), dx, all, 10 * tol);
    if (affine) good = good && close_to(ctx, lks_grad(w), dw, c, sums) && close_to(ctx, lks_grad(b), db, c, sums);
    if (!good) diag("groups %d layout %d affine %d: %s", (int)groups, layout, affine, lks_error(ctx));
    free(vx), free(vg), free(vw), free(vb), free(y), free(dx), free(dw), free(db);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void rms_and_group_norms(lks_context *ctx, const char *name)
{
    static const int64_t rows[][3] = {{2, 3, 33}, {1, 1, 1}, {5, 40, 64}, {2, 0, 4}, {2, 3, 515}};
    static const struct { int ndim; int64_t shape[5], groups; } groups[] = {
        {4, {2, 6, 4, 5}, 2}, {4, {2, 6, 4, 5}, 6}, {4, {3, 4, 20, 20}, 1}, {2, {4, 12}, 3}, {3, {2, 4, 100}, 2},
        {5, {2, 4, 3, 3, 2}, 2}, {4, {2, 32, 9, 7}, 8}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int how = 0; how < 4; how++) good &= rms_case(ctx, array_floats[d], rows[i], how & 1, how >> 1);
        ok(good, "rms_norm %s %s", name, lks_dtype_name(array_floats[d]));
        good = 1;
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            for (int how = 0; how < 6; how++)
                good &= group_case(ctx, array_floats[d], groups[i].ndim, groups[i].shape, groups[i].groups, how % 3,
                                   how / 3);
        ok(good, "group_norm %s %s", name, lks_dtype_name(array_floats[d]));
    }
}

static int same_bits(lks_tensor *a, lks_tensor *b)
{
    if (!a || !b || lks_dtype_of(a) != lks_dtype_of(b) || lks_numel(a) != lks_numel(b)) return 0;
    int64_t bytes = lks_numel(a) * lks_dtype_size(lks_dtype_of(a));
    char *p = malloc((size_t)bytes + 1), *q = malloc((size_t)bytes + 1);
    int same = lks_to_host(a, p, bytes) == LKS_OK && lks_to_host(b, q, bytes) == LKS_OK &&
               !memcmp(p, q, (size_t)bytes);
    free(p), free(q);
    return same;
}

/* The rows as models and rules call them: y in another dtype (norm.to); dx added to what is there, in its place or not,
 * and once more in 16 bits (norm.low). The functions of ops.h give none of it. */
static int to_and_low_case(lks_context *ctx, int rms, lks_dtype dtype, lks_dtype other, int64_t n)
{
    int64_t rows = 7, shape[2] = {rows, n};
    int op = rms ? LKSI_OP_rms_norm : LKSI_OP_layer_norm, nin = rms ? 2 : 3, nout = rms ? 2 : 3, good = 1;
    int back = rms ? LKSI_OP_rms_norm_backward : LKSI_OP_layer_norm_backward;
    lksi_attr attr = {.norm = {.ndims = 1, .eps = 1e-5}};
    lks_scope_begin(ctx);
    lks_no_grad_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, 2, shape, 2, 1), *w = noise_of(ctx, dtype, 1, &n, 1, 3);
    lks_tensor *dy = noise_of(ctx, dtype, 2, shape, 1, 2), *more = noise_of(ctx, dtype, 2, shape, 3, 4);
    lks_tensor *in[3] = {x, w, LKS_NONE}, *plain[3] = {NULL}, *out[3] = {NULL};
    good &= lksi_call(ctx, "plain", op, nin, in, &attr, nout, plain) == LKS_OK;
    attr.norm.to = other + 1;
    good &= lksi_call(ctx, "norm.to", op, nin, in, &attr, nout, out) == LKS_OK;
    attr.norm.to = 0;
    /* Reference */
    double *vx = values_of(ctx, x), *vw = values_of(ctx, w), *vg = values_of(ctx, dy), *vm = values_of(ctx, more);
    double *y = room(rows * n), *dx = room(rows * n), *dw = room(n), *db = room(n);
    if (!rms) reference(vx, vw, NULL, vg, rows, n, 1e-5, y, dx, dw, db);
    else
        for (int64_t r = 0; r < rows; r++) {
            const double *p = vx + r * n, *g = vg + r * n;
            double squares = 0, mean = 0;
            for (int64_t i = 0; i < n; i++) squares += p[i] * p[i] / (double)n;
            double rstd = 1 / sqrt(squares + 1e-5);
            for (int64_t i = 0; i < n; i++) mean += g[i] * vw[i] * p[i] * rstd / (double)n;
            for (int64_t i = 0; i < n; i++) {
                y[r * n + i] = p[i] * rstd * vw[i];
                dx[r * n + i] = (g[i] * vw[i] - p[i] * rstd * mean) * rstd;
            }
        }
    double tol = fmax(tolerance_of(dtype), tolerance_of(other));
    good = good && lks_dtype_of(out[0]) == other && close_to(ctx, out[0], y, rows * n, tolerance_of(other));
    for (int i = 1; i < nout; i++) good = good && same_bits(out[i], plain[i]);
    if (good && dtype == LKS_F32) good = same_bits(out[0], lks_to(plain[0], other));
    if (!good) diag("norm.to: %s", lks_error(ctx));
    for (int64_t i = 0; i < rows * n; i++) y[i] = dx[i] + vm[i];
    lks_tensor *first[2] = {NULL};
    for (int how = 0; how < 3 && good; how++) { /* nothing is there; added; added in its place */
        lks_tensor *from[6] = {dy, x, w, plain[1], rms ? LKS_NONE : plain[2], LKS_NONE}, *to[4] = {NULL};
        int there = rms ? 4 : 5, low = rms ? 2 : 3;
        attr.norm.low = other + 1;
        if (how) from[there] = how == 2 ? lks_clone(more) : more;
        if (how == 2) to[0] = from[there];
        good = lksi_call(ctx, "norm.low", back, there + 1, from, &attr, low + 1, to) == LKS_OK;
        good = good && (how < 2 || to[0] == from[there]) && lks_dtype_of(to[low]) == other &&
               close_to(ctx, to[0], how ? y : dx, rows * n, tolerance_of(dtype) * 4) &&
               close_to(ctx, to[low], how ? y : dx, rows * n, tol * 4);
        if (good && dtype == LKS_F32) good = same_bits(to[low], lks_to(to[0], other));
        if (how == 0) first[0] = to[0], first[1] = to[1];
        else good = good && same_bits(to[1], first[1]);
        if (good && how == 1) good = close_to(ctx, more, vm, rows * n, 0); /* not written */
        if (!good) diag("norm.low, way %d: %s", how, lks_error(ctx));
    }
    /* Without low nothing is made, without there dx is the same. */
    attr.norm.low = 0;
    lks_tensor *from[5] = {dy, x, w, plain[1], rms ? NULL : plain[2]}, *to[4] = {NULL};
    good = good && lksi_call(ctx, "plain", back, rms ? 4 : 5, from, &attr, rms ? 3 : 4, to) == LKS_OK &&
           same_bits(to[0], first[0]) && lks_numel(to[rms ? 2 : 3]) == 0;
    free(vx), free(vw), free(vg), free(vm), free(y), free(dx), free(dw), free(db);
    lks_no_grad_end(ctx);
    lks_scope_end(ctx);
    if (!good)
        diag("%s, %s and %s, rows of %lld", rms ? "rms" : "layer", lks_dtype_name(dtype), lks_dtype_name(other),
             (long long)n);
    return good;
}

static void to_and_low(lks_context *ctx, const char *name)
{
    static const int64_t n[] = {1, 33, 64, 515, 4099};
    for (int rms = 0; rms < 2; rms++)
        for (int d = 0; d < 4; d++) {
            int good = 1;
            for (int k = 2; k < 4; k++)
                for (size_t i = 0; i < sizeof n / sizeof *n; i++)
                    good &= to_and_low_case(ctx, rms, array_floats[d], array_floats[k], n[i]);
            ok(good, "%s %s %s: y in 16 bits; dx with what is there, and in 16 bits", rms ? "rms_norm" : "layer_norm",
               name, lks_dtype_name(array_floats[d]));
        }
    /* What does not fit. */
    int64_t shape[2] = {2, 3}, flat[1] = {6}, one = 2;
    lksi_attr attr = {.norm = {.ndims = 1, .eps = 1e-5}};
    lks_tensor *x = lks_ones(ctx, LKS_F32, 2, shape), *s = lks_ones(ctx, LKS_F32, 1, &one), *out[4] = {NULL};
    lks_tensor *in[6] = {x, x, LKS_NONE, s, s, lks_ones(ctx, LKS_F32, 1, flat)};
    ok(lksi_call(ctx, "there", LKSI_OP_layer_norm_backward, 6, in, &attr, 4, out) == LKS_ERR_SHAPE &&
           strstr(lks_error(ctx), "there [6]"),
       "what is there has another shape: %s", lks_error(ctx));
    lks_error_clear(ctx);
    in[5] = lks_ones(ctx, LKS_BF16, 2, shape);
    ok(lksi_call(ctx, "there", LKSI_OP_layer_norm_backward, 6, in, &attr, 4, out) != LKS_OK, "or another dtype: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
}

static void known_rms_and_group(lks_context *ctx)
{
    double v[512], *y;
    int64_t row = 512, four = 4;
    for (int i = 0; i < 512; i++) v[i] = 300;
    y = values_of(ctx, lks_rms_norm(tensor_of(ctx, LKS_F16, 1, &row, v), 1, LKS_NONE, 1e-6));
    int good = y != NULL;
    for (int i = 0; good && i < 512; i++) good = y[i] == 1;
    ok(good, "B58: RMS norm of 512 times 300 in half precision is 1");
    free(y);
    static const double sizes[2] = {1e30, 1e-30};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++) v[i] = (i - 1.5) * sizes[k];
        y = values_of(ctx, lks_rms_norm(tensor_of(ctx, LKS_F32, 1, &four, v), 1, LKS_NONE, 0));
        ok(y && fabs(y[0] + 1.5 / sqrt(1.25)) < 1e-6 && fabs(y[2] - 0.5 / sqrt(1.25)) < 1e-6,
           "RMS norm of numbers near %g: squares are out of range", sizes[k]);
        free(y);
    }
    v[0] = 0, v[1] = 0, v[2] = 0, v[3] = 0;
    y = values_of(ctx, lks_rms_norm(tensor_of(ctx, LKS_F32, 1, &four, v), 1, LKS_NONE, -1));
    ok(y && y[0] == 0 && y[3] == 0, "RMS norm of zeros is 0, with the epsilon of the dtype");
    free(y);
    v[1] = NAN;
    y = values_of(ctx, lks_rms_norm(tensor_of(ctx, LKS_F32, 1, &four, v), 1, LKS_NONE, 1e-5));
    ok(y && isnan(y[0]) && isnan(y[1]), "a NaN spreads over its row");
    free(y);
    for (int i = 0; i < 16; i++) v[i] = (double)((float)10000 + (float)(i * 1e-3));
    lks_tensor *x = tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 4, 2, 2}, v);
    y = values_of(ctx, lks_group_norm(x, 1, LKS_NONE, LKS_NONE, 1e-5));
    ok(y && fabs(y[0] + 1.3313334) < 1e-4, "B55: group norm with a mean of 10000");
    free(y);
    for (int i = 0; i < 16; i++) v[i] = 1234;
    x = channels_last(tensor_of(ctx, LKS_F32, 4, (int64_t[]){1, 4, 2, 2}, v));
    y = values_of(ctx, lks_group_norm(x, 2, LKS_NONE, LKS_NONE, 1e-5));
    ok(y && y[0] == 0 && y[15] == 0, "B57: group norm of equal numbers is exactly 0");
    free(y);
    ok(!lks_group_norm(lks_zeros(ctx, LKS_F32, 2, (int64_t[]){2, 6}), 4, LKS_NONE, LKS_NONE, 1e-5) &&
           lks_error_code(ctx) == LKS_ERR_SHAPE && strstr(lks_error(ctx), "4 groups"),
       "groups that do not divide: %s", lks_error(ctx));
    lks_error_clear(ctx);
}

static void errors(lks_context *ctx)
{
    int64_t s[2] = {2, 3}, s4[1] = {4};
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 2, s), *w = lks_zeros(ctx, LKS_F32, 1, s4);
    ok(!lks_layer_norm(x, 1, w, LKS_NONE, 1e-5) && lks_error_code(ctx) == LKS_ERR_SHAPE, "weight that does not fit: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_layer_norm(x, 3, LKS_NONE, LKS_NONE, 1e-5) && lks_error_code(ctx) == LKS_ERR_SHAPE, "too many dims: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_batch_norm(x, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 0, 0.1, 1e-5) &&
           lks_error_code(ctx) == LKS_ERR_ARGUMENT,
       "evaluation without statistics: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_layer_norm(lks_zeros(ctx, LKS_I64, 2, s), 1, LKS_NONE, LKS_NONE, 1e-5) &&
           lks_error_code(ctx) == LKS_ERR_DTYPE,
       "integers: %s", lks_error(ctx));
    lks_error_clear(ctx);
}

/* dx and dweight of a larger case, bit for bit. */
static void *bits(lks_context *ctx, int batch, int64_t *bytes)
{
    int64_t s[2] = {1500, 96}, c[1] = {96};
    *bytes = 1500 * 96 * 4 + 2 * 96 * 4;
    char *out = malloc((size_t)*bytes);
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, LKS_F32, 2, s, 3, 20), *w = noise_of(ctx, LKS_F32, 1, c, 1, 21);
    lks_tensor *b = noise_of(ctx, LKS_F32, 1, c, 1, 22), *dy = noise_of(ctx, LKS_F32, 2, s, 1, 23);
    lks_set_requires_grad(x, 1);
    lks_set_requires_grad(w, 1);
    lks_set_requires_grad(b, 1);
    lks_tensor *y = batch ? lks_batch_norm(x, w, b, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5)
                          : lks_layer_norm(x, 1, w, b, 1e-5);
    memset(out, 0, (size_t)*bytes);
    if (lks_backward(y, dy, 0) == LKS_OK) {
        lks_to_host(lks_grad(x), out, 1500 * 96 * 4);
        lks_to_host(lks_grad(w), out + 1500 * 96 * 4, 96 * 4);
        lks_to_host(lks_grad(b), out + 1500 * 96 * 4 + 96 * 4, 96 * 4);
    } else diag("%s", lks_error(ctx));
    lks_scope_end(ctx);
    return out;
}

static void thread_counts(void)
{
    for (int batch = 0; batch < 2; batch++) {
        void *one = NULL, *many = NULL;
        int64_t bytes = 0;
        lks_context *ctx = context_on("cpu", NULL, 1);
        if (ctx) one = bits(ctx, batch, &bytes);
        lks_context_destroy(&ctx);
        ctx = context_on("cpu", NULL, 3);
        if (ctx) many = bits(ctx, batch, &bytes);
        lks_context_destroy(&ctx);
        ok(one && many && !memcmp(one, many, (size_t)bytes), "%s has the same bits on 1 and 3 threads",
           batch ? "batch_norm" : "layer_norm");
        free(one), free(many);
    }
}

int main(int argc, char **argv)
{
    static const struct { const char *device, *isa; int threads; } on[] = {
        {"cpu", "base", 1}, {"cpu", "avx2", 2}, {"cpu", "avx512", 2}, {"far", NULL, 2}};
    MPI_Init(&argc, &argv);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        lks_context *ctx = context_on(on[i].device, on[i].isa, on[i].threads);
        if (!ctx) continue;
        const char *name = on[i].isa ? on[i].isa : on[i].device;
        layer_norms(ctx, name);
        batch_norms(ctx, name);
        rms_and_group_norms(ctx, name);
        to_and_low(ctx, name);
        if (i == 1 || i == 3) known(ctx), known_rms_and_group(ctx);
        if (i == 1) errors(ctx);
        ok(lks_context_destroy(&ctx) == LKS_OK, "%s destroyed", name);
    }
    thread_counts();
    MPI_Finalize();
    return done();
}
