/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_loss.c - losses against plain loops in double: dtypes, layouts, reductions, weights, smoothing, ignored rows,
 * extreme inputs, targets out of range, thread counts. Gradients of all are compared with differences in test_ops.c.
 */
#include "arrays.h"

#define IGNORE 2

/* x [N, C, D], t [N, D]; dy [N, D], or one entry. */
static void reference(const double *x, const int64_t *t, const double *dy, int64_t n, int64_t c, int64_t d, double s,
                      int reduction, double *loss, double *dx)
{
    int64_t count = 0;
    double sum = 0;
    for (int64_t i = 0; i < n * d; i++) count += t[i] != IGNORE;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) {
            const double *row = x + i * c * d + k;
            double *out = dx + i * c * d + k, max = -INFINITY, total = 0, mean = 0, g = dy[reduction ? 0 : i * d + k];
            int64_t target = t[i * d + k];
            if (reduction == LKS_REDUCTION_MEAN) g /= (double)(count ? count : 1);
            if (target == IGNORE) {
                if (!reduction) loss[i * d + k] = 0;
                for (int64_t j = 0; j < c; j++) out[j * d] = 0;
                continue;
            }
            for (int64_t j = 0; j < c; j++) max = fmax(max, row[j * d]);
            for (int64_t j = 0; j < c; j++) total += exp(row[j * d] - max);
            for (int64_t j = 0; j < c; j++) mean += (max - row[j * d]) / (double)c;
            double one = log(total) + (1 - s) * (max - row[target * d]) + s * mean;
            sum += one;
            if (!reduction) loss[i * d + k] = one;
            for (int64_t j = 0; j < c; j++)
                out[j * d] = g * (exp(row[j * d] - max) / total - s / (double)c - (j == target ? 1 - s : 0));
        }
    if (reduction) loss[0] = reduction == LKS_REDUCTION_MEAN ? (count ? sum / (double)count : 0) : sum;
}

static int loss_case(lks_context *ctx, lks_dtype dtype, int64_t n, int64_t c, int64_t d, double s, int reduction,
                     int layout, int narrow)
{
    int ndim = d ? 3 : 2;
    int64_t shape[3] = {n, c, d}, tshape[2] = {n, d}, deep = d ? d : 1, rows = n * deep, all = rows * c;
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, ndim, shape, 4, 1);
    if (layout) x = reversed(x);
    int64_t *t = calloc((size_t)rows + 1, sizeof *t);
    for (int64_t i = 0; i < rows; i++) t[i] = (i * 7 + 1) % c;
    lks_tensor *target = lks_from_host(ctx, LKS_I64, ndim - 1, tshape, t);
    if (narrow) target = lks_to(target, LKS_I32);
    if (layout) target = reversed(target);
    lks_tensor *dy = noise_of(ctx, dtype == LKS_F64 ? LKS_F64 : LKS_F32, reduction ? 0 : ndim - 1, tshape, 1, 3);
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy);
    double *loss = calloc((size_t)rows + 1, sizeof *loss), *dx = calloc((size_t)all + 1, sizeof *dx);
    reference(vx, t, vg, n, c, deep, s, reduction, loss, dx);
    lks_set_requires_grad(x, 1);
    lks_tensor *out = lks_cross_entropy(x, target, IGNORE, s, reduction);
    double tol = tolerance_of(dtype), wide = tolerance_of(dtype == LKS_F64 ? LKS_F64 : LKS_F32);
    int good = out && lks_dtype_of(out) == (dtype == LKS_F64 ? LKS_F64 : LKS_F32) &&
               close_to(ctx, out, loss, reduction ? 1 : rows, wide) && lks_backward(out, dy, 0) == LKS_OK &&
               lks_dtype_of(lks_grad(x)) == dtype && close_to(ctx, lks_grad(x), dx, all, tol);
    if (!good) diag("%s", lks_error(ctx));
    free(vx), free(vg), free(t), free(loss), free(dx);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void losses(lks_context *ctx, const char *name)
{
    static const int64_t cases[][3] = {{9, 5, 0}, {40, 700, 0}, {3, 6, 11}, {1, 3, 0}, {0, 4, 0}, {2, 4, 0}, {6, 1, 0}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int how = 0; how < 24; how++) {
                if (loss_case(ctx, array_floats[d], cases[c][0], cases[c][1], cases[c][2], how & 8 ? 0.1 : 0, how % 3,
                              how & 1, how >= 16))
                    continue;
                diag("case %d how %d", (int)c, how);
                good = 0;
            }
        ok(good, "cross_entropy %s %s", name, lks_dtype_name(array_floats[d]));
    }
}

/* Loss (and gradient of its sum in dx, if not NULL) of float logits. */
static double *run(lks_context *ctx, lks_dtype dtype, int64_t n, int64_t c, const double *x, const int64_t *t,
                   int64_t ignore, int reduction, double **dx)
{
    int64_t s[2] = {n, c};
    lks_tensor *logits = tensor_of(ctx, dtype, 2, s, x), *target = lks_from_host(ctx, LKS_I64, 1, s, t);
    lks_set_requires_grad(logits, 1);
    lks_tensor *loss = lks_cross_entropy(logits, target, ignore, 0, reduction);
    if (dx) {
        *dx = NULL;
        if (loss && lks_backward(loss, lks_ones(ctx, lks_dtype_of(loss), lks_ndim(loss), lks_shape(loss)), 0) == LKS_OK)
            *dx = values_of(ctx, lks_grad(logits));
    }
    return loss ? values_of(ctx, loss) : NULL;
}

static void known(lks_context *ctx)
{
    double *dx, *v;
    /* Equal huge logits: ln 2, and the gradient of a fair coin. */
    for (int sign = 1; sign >= -1; sign -= 2) {
        double x[2] = {sign * 1e8, sign * 1e8};
        int64_t t[1] = {1};
        v = run(ctx, LKS_F32, 1, 2, x, t, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN, &dx);
        ok(v && fabs(v[0] - 0.69314718) < 1e-7 && dx && dx[0] == 0.5 && dx[1] == -0.5, "B49: logits of %g: ln 2", x[0]);
        free(v), free(dx);
    }
    /* Extreme half-precision logits. */
    double x2[2] = {60000, -60000};
    int64_t t1[1] = {1};
    v = run(ctx, LKS_F16, 1, 2, x2, t1, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN, &dx);
    double far = (double)(float)60000 * 2;
    ok(v && v[0] == far && dx && dx[0] == 1 && dx[1] == -1, "B50: float16 logits of 60000 and -60000: %g",
       v ? v[0] : NAN);
    free(v), free(dx);
    /* All targets ignored. */
    double x6[6] = {1, 2, 3, 4, 5, 6};
    int64_t off[2] = {-100, -100};
    for (int r = 0; r < 3; r++) {
        v = run(ctx, LKS_F32, 2, 3, x6, off, LKS_IGNORE_INDEX, r, &dx);
        int zero = v && dx && v[0] == 0 && (r || v[1] == 0);
        for (int i = 0; i < 6 && zero; i++) zero = dx[i] == 0;
        ok(zero, "B52: all targets ignored, reduction %d: zeros", r);
        free(v), free(dx);
    }
    /* Targets out of range; 255 as the ignored class. */
    double x5[5] = {0};
    int64_t t4[1] = {-4};
    v = run(ctx, LKS_F32, 1, 5, x5, t4, -1, LKS_REDUCTION_MEAN, NULL);
    ok(!v && lks_error_code(ctx) == LKS_ERR_ARGUMENT && strstr(lks_error(ctx), "-4") && strstr(lks_error(ctx), "row 0"),
       "B53: target -4: %s", lks_error(ctx));
    free(v);
    lks_error_clear(ctx);
    double zeros[18] = {0};
    int64_t six[6] = {0, 1, 255, 0, 1, 2};
    v = run(ctx, LKS_F32, 6, 3, zeros, six, 255, LKS_REDUCTION_NONE, NULL);
    int good = v != NULL;
    for (int i = 0; i < 6 && good; i++) good = fabs(v[i] - (i == 2 ? 0 : 1.0986123)) < 1e-6;
    ok(good, "B53: 255 is ignored: ln 3 elsewhere");
    free(v);
    v = run(ctx, LKS_F32, 6, 3, zeros, six, 255, LKS_REDUCTION_MEAN, NULL);
    ok(v && fabs(v[0] - 1.0986123) < 1e-6, "B53: mean over five rows");
    free(v);
    six[2] = 3;
    v = run(ctx, LKS_F32, 6, 3, zeros, six, 255, LKS_REDUCTION_NONE, NULL);
    ok(!v && strstr(lks_error(ctx), "row 2"), "target 3 of 3: %s", lks_error(ctx));
    lks_error_clear(ctx);
    free(v);
    /* -inf for classes that cannot be. */
    double xi[3] = {-INFINITY, 0, 0};
    v = run(ctx, LKS_F32, 1, 3, xi, t1, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN, &dx);
    ok(v && fabs(v[0] - 0.69314718) < 1e-6 && dx && dx[0] == 0 && fabs(dx[1] + 0.5) < 1e-6, "a class of -inf");
    free(v), free(dx);
    int64_t t0[1] = {0};
    v = run(ctx, LKS_F32, 1, 3, xi, t0, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN, NULL);
    ok(v && v[0] == INFINITY, "as the target: an infinite loss");
    free(v);
    /* Shapes and arguments. */
    int64_t s[2] = {2, 3}, bad[1] = {3};
    lks_tensor *logits = lks_zeros(ctx, LKS_F32, 2, s);
    ok(!lks_cross_entropy(logits, lks_zeros(ctx, LKS_I64, 1, bad), -100, 0, 1) && lks_error_code(ctx) == LKS_ERR_SHAPE,
       "target of another length: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_cross_entropy(logits, lks_zeros(ctx, LKS_F32, 1, s), -100, 0, 1) && lks_error_code(ctx) == LKS_ERR_DTYPE,
       "float targets: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_cross_entropy(logits, lks_zeros(ctx, LKS_I64, 1, s), -100, 1.5, 1), "smoothing of 1.5: %s", lks_error(ctx));
    lks_error_clear(ctx);
}

/* --- pointwise losses --- */

enum { UNIT = 1, SIGNS = 2, POSITIVE = 4 }; /* what a loss needs: x in [0, 1], target of signs, of positives */

typedef struct pointwise {
    const char *name;
    lks_tensor *(*call)(lks_tensor *x, lks_tensor *t, int reduction);
    double (*formula)(double x, double t);
    int needs;
} pointwise;

#define CALL(name, ...) static lks_tensor *do_##name(lks_tensor *x, lks_tensor *t, int r) { return __VA_ARGS__; }
#define FORMULA(name, ...) static double f_##name(double x, double t) { return __VA_ARGS__; }
CALL(mse, lks_mse_loss(x, t, r))
FORMULA(mse, (x - t) * (x - t))
CALL(l1, lks_l1_loss(x, t, r))
FORMULA(l1, fabs(x - t))
CALL(smooth, lks_smooth_l1_loss(x, t, 0.75, r))
FORMULA(smooth, fabs(x - t) < 0.75 ? (x - t) * (x - t) / 1.5 : fabs(x - t) - 0.375)
CALL(smooth_0, lks_smooth_l1_loss(x, t, 0, r))
CALL(huber, lks_huber_loss(x, t, 0.75, r))
FORMULA(huber, fabs(x - t) < 0.75 ? (x - t) * (x - t) / 2 : 0.75 * (fabs(x - t) - 0.375))
CALL(bce, lks_binary_cross_entropy(x, t, LKS_NONE, r))
FORMULA(bce, -(t * fmax(log(x), -100) + (1 - t) * fmax(log1p(-x), -100)))
CALL(logits, lks_binary_cross_entropy_with_logits(x, t, LKS_NONE, LKS_NONE, r))
FORMULA(logits, (1 - t) * x + log1p(exp(-fabs(x))) + fmax(-x, 0))
CALL(kl, lks_kl_div(x, t, 0, r))
FORMULA(kl, t == 0 ? 0 : t * (log(t) - x))
CALL(kl_log, lks_kl_div(x, t, 1, r))
FORMULA(kl_log, exp(t) * (t - x))
CALL(poisson, lks_poisson_nll_loss(x, t, 1, 0, 0, r))
FORMULA(poisson, exp(x) - t * x)
CALL(poisson_full, lks_poisson_nll_loss(x, t, 0, 1, 1e-3, r))
FORMULA(poisson_full, x - t * log(x + 1e-3) + (t > 1 ? t * log(t) - t + 0.5 * log(2 * acos(-1) * t) : 0))
CALL(hinge, lks_hinge_embedding_loss(x, t, 0.5, r))
FORMULA(hinge, t == 1 ? x : fmax(0, 0.5 - x))
CALL(soft_margin, lks_soft_margin_loss(x, t, r))
FORMULA(soft_margin, log1p(exp(-t * x)))
CALL(ranking, lks_margin_ranking_loss(x, lks_mul_scalar(x, 0.5), t, 0.25, r))
FORMULA(ranking, fmax(0, 0.25 - t * (x - 0.5 * x)))

static const pointwise points[] = {
    {"mse_loss", do_mse, f_mse, 0},
    {"l1_loss", do_l1, f_l1, 0},
    {"smooth_l1_loss", do_smooth, f_smooth, 0},
    {"smooth_l1_loss, beta 0", do_smooth_0, f_l1, 0},
    {"huber_loss", do_huber, f_huber, 0},
    {"binary_cross_entropy", do_bce, f_bce, UNIT},
    {"binary_cross_entropy_with_logits", do_logits, f_logits, 0},
    {"kl_div", do_kl, f_kl, POSITIVE},
    {"kl_div of logarithms", do_kl_log, f_kl_log, 0},
    {"poisson_nll_loss", do_poisson, f_poisson, POSITIVE},
    {"poisson_nll_loss, full", do_poisson_full, f_poisson_full, UNIT | POSITIVE},
    {"hinge_embedding_loss", do_hinge, f_hinge, SIGNS},
    {"soft_margin_loss", do_soft_margin, f_soft_margin, 0},
    {"margin_ranking_loss", do_ranking, f_ranking, SIGNS},
};

static lks_tensor *operand(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, int needs, uint64_t seed)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    double *v = noise(n, 3, seed);
    for (int64_t i = 0; i < n; i++) {
        if (needs & UNIT) v[i] = (v[i] + 3) / 6;
        if (needs & POSITIVE) v[i] = fabs(v[i]);
        if (needs & SIGNS) v[i] = v[i] > 0 ? 1 : -1;
    }
    lks_tensor *t = tensor_of(ctx, dtype, ndim, shape, v);
    free(v);
    return t;
}

/* x [n, 3, m]; target of that shape, or [m]. */
static int point_case(lks_context *ctx, const pointwise *p, lks_dtype dtype, int64_t n, int64_t m, int reduction,
                      int layout, int wide)
{
    int64_t shape[3] = {n, 3, m}, all = n * 3 * m;
    int row = wide && strncmp(p->name, "binary", 6); /* those take no broadcast target */
    lks_scope_begin(ctx);
    lks_tensor *x = operand(ctx, dtype, 3, shape, p->needs & UNIT, 1);
    lks_tensor *t = row ? operand(ctx, dtype, 1, &m, p->needs & ~UNIT, 2)
                        : operand(ctx, dtype, 3, shape, p->call == do_bce ? UNIT : p->needs & ~UNIT, 2);
    double *vx = values_of(ctx, x), *vt = values_of(ctx, t), *want = malloc((size_t)(all + 1) * sizeof *want), sum = 0;
    for (int64_t i = 0; i < all; i++) sum += want[i] = p->formula(vx[i], vt[row ? i % m : i]);
    if (reduction) want[0] = reduction == LKS_REDUCTION_MEAN ? sum / (double)all : sum;
    if (dtype == LKS_F16 && reduction && fabs(want[0]) > 65519) want[0] = copysign(INFINITY, want[0]);
    if (layout) x = reversed(x);
    lks_tensor *y = p->call(x, t, reduction);
    int good = y && lks_dtype_of(y) == dtype && lks_ndim(y) == (reduction ? 0 : 3) &&
               close_to(ctx, y, want, reduction ? 1 : all, tolerance_of(dtype));
    if (!good) diag("%s: %s", p->name, lks_error(ctx));
    free(vx), free(vt), free(want);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void pointwise_losses(lks_context *ctx, const char *name)
{
    static const int64_t cases[][2] = {{5, 7}, {1, 1}, {40, 900}, {0, 3}};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int good = 1;
        for (int d = 0; d < 4; d++)
            for (int c = 0; c < 4; c++)
                for (int how = 0; how < 12; how++) {
                    if (c == 3 && how % 3 == LKS_REDUCTION_MEAN) continue; /* NaN, see below */
                    if (point_case(ctx, &points[p], array_floats[d], cases[c][0], cases[c][1], how % 3, how / 3 & 1,
                                   how >= 6))
                        continue;
                    diag("%s, case %d, how %d", lks_dtype_name(array_floats[d]), c, how);
                    good = 0;
                }
        ok(good, "%s on %s", points[p].name, name);
    }
}

/* One element: value and gradient with respect to x. */
static int one(lks_context *ctx, lks_tensor *(*call)(lks_tensor *, lks_tensor *, int), double x, double t, double want,
               double slope)
{
    float fx = (float)x, ft = (float)t, v = 0, g = 0;
    lks_scope_begin(ctx);
    lks_tensor *a = lks_from_host(ctx, LKS_F32, 0, NULL, &fx), *b = lks_from_host(ctx, LKS_F32, 0, NULL, &ft);
    lks_set_requires_grad(a, 1);
    lks_tensor *y = call(a, b, LKS_REDUCTION_MEAN);
    int good = y && lks_backward(y, LKS_NONE, 0) == LKS_OK && lks_to_host(y, &v, 4) == LKS_OK &&
               lks_to_host(lks_grad(a), &g, 4) == LKS_OK;
    double got[2] = {v, g}, wanted[2] = {(float)want, (float)slope};
    for (int i = 0; i < 2; i++)
        good &= isnan(wanted[i]) ? isnan(got[i])
                                 : got[i] == wanted[i] || fabs(got[i] - wanted[i]) <= 1e-6 * fabs(wanted[i]);
    if (!good)
        diag("x %g, t %g: %.9g slope %.9g, not %.9g slope %.9g; %s", x, t, got[0], got[1], want, slope, lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void pointwise_edges(lks_context *ctx)
{
    double inf = INFINITY, nan = NAN, ln2 = log(2);
    ok(one(ctx, do_bce, 0, 0, 0, 0) && one(ctx, do_bce, 1, 1, 0, 0) && one(ctx, do_bce, 0, 1, 100, -1e12) &&
           one(ctx, do_bce, 1, 0, 100, 1e12),
       "binary_cross_entropy at probabilities of 0 and 1: 0 or 100, finite gradients");
    ok(one(ctx, do_bce, 1e-40, 1, 92.1034037, -1e12) && one(ctx, do_bce, 0x1p-24, 0, 0x1p-24, 1 + 0x1p-24),
       "binary_cross_entropy of tiny probabilities");
    ok(one(ctx, do_bce, 1.5, 1, nan, nan) && one(ctx, do_bce, -0.5, 0, nan, nan) && one(ctx, do_bce, nan, 0, nan, nan),
       "binary_cross_entropy outside [0, 1] is NaN");
    ok(one(ctx, do_logits, 0, 1, ln2, -0.5) && one(ctx, do_logits, 1e4, 1, 0, 0) &&
           one(ctx, do_logits, -1e4, 1, 1e4, -1) && one(ctx, do_logits, 3e38, 0, 3e38, 1) &&
           one(ctx, do_logits, 88, 1, 6.0546018e-39, -6.0546018e-39),
       "huge logits");
    ok(one(ctx, do_logits, inf, 1, 0, 0) && one(ctx, do_logits, -inf, 0, 0, 0) && one(ctx, do_logits, inf, 0, inf, 1) &&
           one(ctx, do_logits, -inf, 1, inf, -1) && one(ctx, do_logits, nan, 1, nan, nan),
       "infinite logits: 0 of the right sign, infinite of the wrong one");
    ok(one(ctx, do_kl, -inf, 0, 0, 0) && one(ctx, do_kl, -2, 0, 0, 0) && one(ctx, do_kl, -1, 1, 1, -1) &&
           one(ctx, do_kl, -inf, 0.5, inf, -0.5) && one(ctx, do_kl, -1, -0.5, nan, 0.5),
       "kl_div where the target is 0, 1, negative");
    ok(one(ctx, do_kl_log, -3, -inf, 0, 0) && one(ctx, do_kl_log, -inf, -inf, 0, 0) &&
           one(ctx, do_kl_log, -1, 0, 1, -1),
       "kl_div of logarithms");
    ok(one(ctx, do_poisson, -inf, 0, 0, 0) && one(ctx, do_poisson, 0, 3, 1, -2) &&
           one(ctx, do_poisson, 100, 1, inf, inf),
       "poisson_nll_loss at its ends");
    ok(one(ctx, do_l1, 2, 2, 0, 0) && one(ctx, do_smooth_0, 2, 2, 0, 0) &&
           one(ctx, do_huber, 3e38, 0, 0.75 * 3e38, 0.75) && one(ctx, do_huber, -inf, 0, inf, -0.75) &&
           one(ctx, do_smooth, inf, 0, inf, 1) && one(ctx, do_l1, nan, 0, nan, nan) &&
           one(ctx, do_mse, 2e19, -1e19, inf, 6e19) && one(ctx, do_mse, 1e-30, 0, 0, 2e-30),
       "distances of 0, huge ones, NaN");
    ok(one(ctx, do_soft_margin, -1e4, 1, 1e4, -1) && one(ctx, do_soft_margin, 1e4, 1, 0, 0) &&
           one(ctx, do_soft_margin, inf, 1, 0, 0) && one(ctx, do_soft_margin, 0, -1, ln2, 0.5),
       "soft_margin_loss does not overflow");
    ok(one(ctx, do_hinge, 0.5, -1, 0, -1) && one(ctx, do_hinge, 0.25, 0, 0.5, 0) && one(ctx, do_hinge, -4, 1, -4, 1) &&
           one(ctx, do_hinge, 2, -1, 0, 0),
       "hinge_embedding_loss at its corner and for another target");
    int nothing = 1;
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int64_t none = 0;
        lks_tensor *x = lks_zeros(ctx, LKS_F32, 1, &none);
        double *mean = values_of(ctx, points[p].call(x, x, LKS_REDUCTION_MEAN)),
               *sum = values_of(ctx, points[p].call(x, x, LKS_REDUCTION_SUM));
        nothing &= mean && sum && isnan(mean[0]) && sum[0] == 0;
        free(mean), free(sum);
    }
    ok(nothing, "the mean of no losses is NaN, the sum 0");
    /* Weights. */
    int64_t n[2] = {2, 3};
    double vx[6] = {0.5, -1, 2, 0, 3, -2}, vt[6] = {1, 0, 0.5, 0.25, 1, 0}, vw[3] = {1, 0, 2}, vp[3] = {3, 1, 0.5},
           each[6];
    double mean = 0;
    for (int i = 0; i < 6; i++) {
        each[i] = vw[i % 3] * ((1 - vt[i]) * log1p(exp(vx[i])) + vp[i % 3] * vt[i] * log1p(exp(-vx[i])));
        mean += each[i] / 6;
    }
    lks_tensor *x = tensor_of(ctx, LKS_F32, 2, n, vx), *t = tensor_of(ctx, LKS_F32, 2, n, vt),
               *w = tensor_of(ctx, LKS_F32, 1, n + 1, vw), *pos = tensor_of(ctx, LKS_F32, 1, n + 1, vp);
    ok(close_to(ctx, lks_binary_cross_entropy_with_logits(x, t, w, pos, LKS_REDUCTION_NONE), each, 6, 1e-6) &&
           close_to(ctx, lks_binary_cross_entropy_with_logits(x, t, w, pos, LKS_REDUCTION_MEAN), &mean, 1, 1e-6),
       "weight and pos_weight; a mean is over elements");
    double batch = 0;
    for (int i = 0; i < 6; i++) batch += f_kl(vx[i], vt[i]) / 2;
    ok(close_to(ctx, lks_kl_div(x, t, 0, LKS_REDUCTION_BATCHMEAN), &batch, 1, 1e-6), "kl_div: mean over the batch");
    /* Refusals. */
#define NO(call, code, text)                                                                                   \
    do {                                                                                                       \
        lks_tensor *r_ = call;                                                                                 \
        ok(!r_ && lks_error_code(ctx) == code && strstr(lks_error(ctx), text), "%s", lks_error(ctx));           \
        lks_error_clear(ctx);                                                                                  \
    } while (0)
    NO(lks_mse_loss(x, lks_zeros(ctx, LKS_F32, 1, n), 1), LKS_ERR_SHAPE, "[2]");
    NO(lks_binary_cross_entropy(x, w, LKS_NONE, 1), LKS_ERR_SHAPE, "[2,3]");
    NO(lks_binary_cross_entropy_with_logits(x, t, lks_zeros(ctx, LKS_F32, 1, n), LKS_NONE, 1), LKS_ERR_SHAPE,
       "weight [2]");
    NO(lks_mse_loss(x, t, 7), LKS_ERR_ARGUMENT, "reduction is 7");
    NO(lks_mse_loss(x, t, LKS_REDUCTION_BATCHMEAN), LKS_ERR_ARGUMENT, "mse_loss");
    NO(lks_huber_loss(x, t, 0, 1), LKS_ERR_ARGUMENT, "delta is 0");
    NO(lks_smooth_l1_loss(x, t, -1, 1), LKS_ERR_ARGUMENT, "beta is -1");
    NO(lks_l1_loss(x, LKS_NONE, 1), LKS_ERR_ARGUMENT, "LKS_NONE");
    ok(!lks_l1_loss(NULL, t, 1) && !lks_kl_div(x, NULL, 0, 1) && lks_error_code(ctx) == LKS_OK, "NULL passes");
}

/* --- over classes --- */

/* -log softmax over dim 1 of [N, C, D] in double. */
static double *minus_log_softmax(const double *x, int64_t n, int64_t c, int64_t d)
{
    double *y = malloc((size_t)(n * c * d + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) {
            const double *row = x + i * c * d + k;
            double max = -INFINITY, sum = 0;
            for (int64_t j = 0; j < c; j++) max = fmax(max, row[j * d]);
            for (int64_t j = 0; j < c; j++) sum += exp(row[j * d] - max);
            for (int64_t j = 0; j < c; j++) y[i * c * d + j * d + k] = log(sum) + (max - row[j * d]);
        }
    return y;
}

/* Cross entropy with weights, with probabilities, and nll of the same numbers. */
static int weighted_case(lks_context *ctx, lks_dtype dtype, int64_t n, int64_t c, int64_t d, double s, int reduction,
                         int layout)
{
    int64_t shape[3] = {n, c, d}, tshape[2] = {n, d}, rows = n * d, all = rows * c;
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, 3, shape, 4, 1), *w = operand(ctx, LKS_F32, 1, &c, POSITIVE, 2);
    lks_tensor *q = operand(ctx, dtype, 3, shape, UNIT, 3);
    double *vx = values_of(ctx, x), *vw = values_of(ctx, w), *vq = values_of(ctx, q),
           *m = minus_log_softmax(vx, n, c, d);
    int64_t *t = calloc((size_t)rows + 1, sizeof *t);
    double *hard = calloc((size_t)rows + 1, 8), *soft = calloc((size_t)rows + 1, 8), *nll = calloc((size_t)rows + 1, 8);
    double count = 0, sums[3] = {0};
    for (int64_t r = 0; r < rows; r++) {
        int64_t base = r / d * c * d + r % d;
        t[r] = (r * 7 + 1) % c;
        for (int64_t j = 0; j < c; j++) {
            int64_t at = base + j * d;
            soft[r] += vw[j] * ((1 - s) * vq[at] + s / (double)c) * m[at];
            if (t[r] == IGNORE) continue;
            hard[r] += vw[j] * ((j == t[r] ? 1 - s : 0) + s / (double)c) * m[at];
            if (j == t[r]) nll[r] = -vw[j] * vx[at];
        }
        count += t[r] == IGNORE ? 0 : vw[t[r]];
        sums[0] += hard[r], sums[1] += soft[r], sums[2] += nll[r];
    }
    if (reduction) {
        int mean = reduction == LKS_REDUCTION_MEAN;
        hard[0] = sums[0] / (mean ? count : 1);
        soft[0] = sums[1] / (mean ? (double)rows : 1);
        nll[0] = sums[2] / (mean ? count : 1);
    }
    lks_tensor *target = lks_from_host(ctx, LKS_I64, 2, tshape, t);
    if (layout) x = reversed(x), target = reversed(target), q = reversed(q);
    double tol = dtype == LKS_F64 ? 1e-11 : 1e-5;
    int64_t k = reduction ? 1 : rows;
    int good = close_to(ctx, lks_cross_entropy_weighted(x, target, w, IGNORE, s, reduction), hard, k, tol) &
               close_to(ctx, lks_cross_entropy_weighted(x, q, w, IGNORE, s, reduction), soft, k, tol) &
               close_to(ctx, lks_nll_loss(x, target, w, IGNORE, reduction), nll, k, tolerance_of(dtype));
    free(vx), free(vw), free(vq), free(m), free(t), free(hard), free(soft), free(nll);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    (void)all;
    return good;
}

static void class_losses(lks_context *ctx, const char *name)
{
    static const int64_t cases[][3] = {{9, 5, 1}, {40, 200, 1}, {3, 6, 11}, {1, 3, 1}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int how = 0; how < 12; how++) {
                if (weighted_case(ctx, array_floats[d], cases[c][0], cases[c][1], cases[c][2], how >= 6 ? 0.1 : 0,
                                  how % 3, how / 3 & 1))
                    continue;
                diag("case %d how %d", (int)c, how);
                good = 0;
            }
        ok(good, "class weights, probabilities and nll_loss on %s in %s", name, lks_dtype_name(array_floats[d]));
    }
}

static double item(lks_context *ctx, lks_tensor *t)
{
    double *v = values_of(ctx, t), x = v ? v[0] : -12345;
    free(v);
    return x;
}

static void class_edges(lks_context *ctx)
{
    int64_t s[2] = {2, 3}, off[2] = {-100, -100}, t2[2] = {2, 0}, bad[2] = {0, 3};
    double v[6] = {-1, -2, -3, -0.5, -1.5, -2.5}, zero[3] = {0};
    lks_tensor *x = tensor_of(ctx, LKS_F32, 2, s, v), *all_off = lks_from_host(ctx, LKS_I64, 1, s, off);
    ok(item(ctx, lks_nll_loss(x, all_off, LKS_NONE, -100, LKS_REDUCTION_MEAN)) == 0 &&
           item(ctx, lks_nll_loss(x, all_off, LKS_NONE, -100, LKS_REDUCTION_SUM)) == 0 &&
           isnan(item(ctx, lks_nll_loss(x, all_off, LKS_NONE, -100, LKS_REDUCTION_MEAN_NAN))) &&
           isnan(item(ctx, lks_cross_entropy(x, all_off, -100, 0, LKS_REDUCTION_MEAN_NAN))),
       "B52: all targets ignored: a mean of 0, of NaN only where it is asked for");
    lks_tensor *leaf = lks_clone(x);
    lks_set_requires_grad(leaf, 1);
    lks_backward(lks_nll_loss(leaf, all_off, LKS_NONE, -100, LKS_REDUCTION_MEAN), LKS_NONE, 0);
    double none[6] = {0};
    ok(close_to(ctx, lks_grad(leaf), none, 6, 0), "B52: and a gradient of 0");
    lks_tensor *t = lks_from_host(ctx, LKS_I64, 1, s, t2);
    ok(item(ctx, lks_nll_loss(x, t, LKS_NONE, -100, LKS_REDUCTION_MEAN)) == (3 + 0.5) / 2, "nll_loss by hand");
    ok(item(ctx, lks_nll_loss(lks_select(x, 0, 0), lks_select(t, 0, 0), LKS_NONE, -100, LKS_REDUCTION_MEAN)) == 3 &&
           fabs(item(ctx, lks_cross_entropy(lks_select(x, 0, 0), lks_select(t, 0, 0), -100, 0, 1)) - 2.40760596) <
               1e-6 &&
           lks_ndim(lks_cross_entropy(lks_select(x, 0, 0), lks_select(t, 0, 0), -100, 0, 0)) == 0,
       "one row without a batch");
    ok(item(ctx, lks_nll_loss(x, t, tensor_of(ctx, LKS_F32, 1, s + 1, zero), -100, LKS_REDUCTION_MEAN)) == 0,
       "weights of 0: nothing counts");
    NO(lks_nll_loss(x, lks_from_host(ctx, LKS_I64, 1, s, bad), LKS_NONE, -100, 1), LKS_ERR_ARGUMENT,
       "target 3 at row 1");
    NO(lks_nll_loss(x, t, lks_zeros(ctx, LKS_F32, 1, s), -100, 1), LKS_ERR_SHAPE, "weight [2]");
    NO(lks_cross_entropy_weighted(x, t, lks_zeros(ctx, LKS_F32, 1, s), -100, 0, 1), LKS_ERR_SHAPE, "weight [2]");
    NO(lks_nll_loss(x, lks_to(t, LKS_F32), LKS_NONE, -100, 1), LKS_ERR_DTYPE, "float32");
    NO(lks_multi_margin_loss(x, lks_from_host(ctx, LKS_I64, 1, s, bad), LKS_NONE, 1, 1, 1), LKS_ERR_ARGUMENT,
       "target 3 at row 1");
    NO(lks_multi_margin_loss(x, t, LKS_NONE, 3, 1, 1), LKS_ERR_ARGUMENT, "p is 3");
    /* Probabilities: one-hot is a class; what has no part in the target may have a logit of -inf. */
    double hot[6] = {0, 0, 1, 1, 0, 0}, walls[6] = {-INFINITY, 0, 0, 1, 2, -INFINITY}, half[6] = {0, 0.5, 0.5, 1, 0, 0};
    lks_tensor *one_hot = tensor_of(ctx, LKS_F32, 2, s, hot);
    double as_class = item(ctx, lks_cross_entropy(x, t, -100, 0.2, 1)),
           as_hot = item(ctx, lks_cross_entropy(x, one_hot, -100, 0.2, 1));
    ok(fabs(as_class - as_hot) < 1e-6, "one-hot probabilities are a class: %.9g, %.9g", as_class, as_hot);
    lks_tensor *wall = tensor_of(ctx, LKS_F32, 2, s, walls), *h = tensor_of(ctx, LKS_F32, 2, s, half);
    lks_set_requires_grad(wall, 1);
    lks_tensor *y = lks_cross_entropy(wall, h, -100, 0, LKS_REDUCTION_NONE);
    double want[2] = {log(2), log(1 + exp(1))}, grad[6] = {0, 0, 0, 1 / (1 + exp(1)) - 1, exp(1) / (1 + exp(1)), 0};
    ok(close_to(ctx, y, want, 2, 1e-6) && lks_backward(y, lks_ones(ctx, LKS_F32, 1, s), 0) == LKS_OK &&
           close_to(ctx, lks_grad(wall), grad, 6, 1e-6),
       "logits of -inf beside probabilities of 0");
    double huge[6] = {1e8, 1e8, -1e8, 0, 0, 0}, first[6] = {0.25, 0.75, 0, 1, 0, 0};
    y = lks_cross_entropy(tensor_of(ctx, LKS_F32, 2, s, huge), tensor_of(ctx, LKS_F32, 2, s, first), -100, 0, 0);
    double ln[2] = {log(2), log(3)};
    ok(close_to(ctx, y, ln, 2, 1e-6), "B49: with probabilities as the target, too");
    /* Margins. */
    double mx[4] = {0.1, 0.2, 0.4, 0.8};
    int64_t four = 4, list[4] = {3, 0, -1, 1};
    y = lks_multilabel_margin_loss(tensor_of(ctx, LKS_F32, 1, &four, mx), lks_from_host(ctx, LKS_I64, 1, &four, list),
                                   1);
    ok(fabs(item(ctx, y) - 0.25 * ((1 - (0.1 - 0.2)) + (1 - (0.1 - 0.4)) + (1 - (0.8 - 0.2)) + (1 - (0.8 - 0.4)))) <
           1e-6,
       "multilabel_margin_loss by hand: %g", item(ctx, y));
    list[1] = 4;
    NO(lks_multilabel_margin_loss(tensor_of(ctx, LKS_F32, 1, &four, mx), lks_from_host(ctx, LKS_I64, 1, &four, list),
                                  1),
       LKS_ERR_ARGUMENT, "target 4 at row 0, place 1");
    list[0] = -1;
    ok(item(ctx, lks_multilabel_margin_loss(tensor_of(ctx, LKS_F32, 1, &four, mx),
                                            lks_from_host(ctx, LKS_I64, 1, &four, list), 1)) == 0,
       "a row without labels adds 0");
    lks_tensor *y1 = lks_multi_margin_loss(tensor_of(ctx, LKS_F32, 1, &four, mx), lks_full(ctx, LKS_I64, 0, NULL, 3),
                                           LKS_NONE, 2, 0.5, 1);
    ok(fabs(item(ctx, y1) - 0.01 / 4) < 1e-7, "multi_margin_loss of squares by hand: %g", item(ctx, y1));
    int64_t empty[2] = {0, 3};
    ok(isnan(item(ctx, lks_multi_margin_loss(lks_zeros(ctx, LKS_F32, 2, empty), lks_zeros(ctx, LKS_I64, 1, empty),
                                             LKS_NONE, 1, 1, 1))) &&
           item(ctx, lks_multilabel_margin_loss(lks_zeros(ctx, LKS_F32, 2, empty), lks_zeros(ctx, LKS_I64, 2, empty),
                                                LKS_REDUCTION_SUM)) == 0,
       "no rows");
    /* A seed of 65536 on half-precision logits: the loss is float32, so it arrives whole. */
    int64_t pair[2] = {1, 2}, first_class = 0, single = 1;
    lks_tensor *f16 = lks_zeros(ctx, LKS_F16, 2, pair), *seed = lks_full(ctx, LKS_F32, 0, NULL, 65536);
    lks_set_requires_grad(f16, 1);
    y = lks_cross_entropy(f16, lks_from_host(ctx, LKS_I64, 1, &single, &first_class), -100, 0, 1);
    double scaled[2] = {-32768, 32768};
    ok(lks_backward(y, seed, 0) == LKS_OK && close_to(ctx, lks_grad(f16), scaled, 2, 0),
       "B17: a scale of 65536 on float16 logits");
}

/* --- ctc --- */

/* Sum over all paths of steps t.. from p, given what they spell so far, of the probability that it becomes the
 * target. */
static double paths(const double *p, int64_t steps, int64_t c, int64_t t, int64_t last, const int64_t *target,
                    int64_t n)
{
    if (t == steps) return n == 0;
    double sum = 0;
    for (int64_t k = 0; k < c; k++) {
        int more = k != 0 && k != last;
        if (more && (n == 0 || k != *target)) continue;
        sum += exp(p[t * c + k]) * paths(p, steps, c, t + 1, k, more ? target + 1 : target, more ? n - 1 : n);
    }
    return sum;
}

static void ctc(lks_context *ctx, const char *name)
{
    enum { T = 6, N = 4, C = 4, S = 3 };
    static const int64_t targets[N][S] = {{1, 2, 3}, {2, 2, 99}, {3, -7, 99}, {99, 99, 99}}; /* the rest is not read */
    int64_t steps[N] = {6, 5, 1, 4}, labels[N] = {3, 2, 1, 0}, shape[3] = {T, N, C}, tshape[2] = {N, S}, n = N;
    for (int d = 0; d < 4; d++) {
        lks_scope_begin(ctx);
        lks_tensor *x = lks_to(lks_log_softmax(noise_of(ctx, LKS_F64, 3, shape, 2, 5), 2), array_floats[d]);
        double *v = values_of(ctx, x), each[N], mean = 0, sum = 0;
        for (int i = 0; i < N; i++) {
            double one_sample[T * C];
            for (int t = 0; t < T; t++) memcpy(one_sample + t * C, v + (t * N + i) * C, sizeof(double) * C);
            each[i] = -log(paths(one_sample, steps[i], C, 0, -1, targets[i], labels[i]));
            mean += each[i] / (double)(labels[i] ? labels[i] : 1) / N;
            sum += each[i];
        }
        lks_tensor *t = lks_from_host(ctx, LKS_I64, 2, tshape, targets),
                   *il = lks_from_host(ctx, LKS_I64, 1, &n, steps), *tl = lks_from_host(ctx, LKS_I64, 1, &n, labels);
        double tol = tolerance_of(array_floats[d]);
        ok(close_to(ctx, lks_ctc_loss(x, t, il, tl, 0, 0, LKS_REDUCTION_NONE), each, N, tol) &&
               close_to(ctx, lks_ctc_loss(reversed(x), reversed(t), il, tl, 0, 0, LKS_REDUCTION_MEAN), &mean, 1, tol) &&
               close_to(ctx, lks_ctc_loss(x, lks_to(t, LKS_I32), il, lks_to(tl, LKS_I32), 0, 1, LKS_REDUCTION_SUM),
                        &sum, 1, tol),
           "ctc_loss on %s in %s against all paths", name, lks_dtype_name(array_floats[d]));
        free(v);
        lks_scope_end(ctx);
    }
}

static void ctc_edges(lks_context *ctx)
{
    int64_t shape[3] = {3, 2, 3}, tshape[2] = {2, 2}, n = 2;
    int64_t t[4] = {1, 1, 2, 1}, steps[2] = {2, 3}, labels[2] = {2, 2}; /* 1 1 needs three steps */
    lks_tensor *x = lks_log_softmax(noise_of(ctx, LKS_F32, 3, shape, 1, 2), 2),
               *il = lks_from_host(ctx, LKS_I64, 1, &n, steps), *tl = lks_from_host(ctx, LKS_I64, 1, &n, labels),
               *targets = lks_from_host(ctx, LKS_I64, 2, tshape, t);
    for (int zero = 0; zero < 2; zero++) {
        lks_tensor *leaf = lks_clone(x);
        lks_set_requires_grad(leaf, 1);
        lks_tensor *y = lks_ctc_loss(leaf, targets, il, tl, 0, zero, LKS_REDUCTION_NONE);
        double *v = values_of(ctx, y);
        lks_backward(y, lks_ones(ctx, LKS_F32, 1, &n), 0);
        double *g = values_of(ctx, lks_grad(leaf));
        int good = v && g && (zero ? v[0] == 0 : v[0] == INFINITY) && isfinite(v[1]);
        for (int i = 0; i < 18 && good; i++) {
            int first = i / 3 % 2 == 0, past = first && i / 6 >= 2;
            good = past || (first && zero) ? g[i] == 0 : first ? isnan(g[i]) : isfinite(g[i]);
        }
        double of_step = 0;
        for (int i = 0; i < 3 && good; i++) of_step += g[3 + i];
        ok(good && fabs(of_step + 1) < 1e-5, "a target that does not fit, zero_infinity %d", zero);
        free(v), free(g);
    }
    int64_t long_shape[3] = {900, 1, 7}, long_t[2] = {1, 100}, labels_100[100], steps_900 = 900, one_sample = 1,
            hundred = 100;
    for (int i = 0; i < 100; i++) labels_100[i] = 1 + i * i % 6;
    double *g[2], *v[2];
    for (int i = 0; i < 2; i++) {
        lks_tensor *leaf =
            lks_to(lks_log_softmax(noise_of(ctx, LKS_F32, 3, long_shape, 3, 4), 2), i ? LKS_F32 : LKS_F64);
        leaf = lks_detach(leaf);
        lks_set_requires_grad(leaf, 1);
        lks_tensor *y = lks_ctc_loss(leaf, lks_from_host(ctx, LKS_I64, 2, long_t, labels_100),
                                     lks_from_host(ctx, LKS_I64, 1, &one_sample, &steps_900),
                                     lks_from_host(ctx, LKS_I64, 1, &one_sample, &hundred), 0, 0, LKS_REDUCTION_SUM);
        lks_backward(y, LKS_NONE, 0);
        v[i] = values_of(ctx, y);
        g[i] = values_of(ctx, lks_grad(leaf));
    }
    ok(distance(v[1], v[0], 1) < 1e-6 && distance(g[1], g[0], 900 * 7) < 1e-4,
       "900 steps in float32: %g, gradient off by %g", distance(v[1], v[0], 1), distance(g[1], g[0], 900 * 7));
    free(g[0]), free(g[1]), free(v[0]), free(v[1]);
    lks_tensor *alone = lks_ctc_loss(lks_select(x, 1, 1), lks_select(targets, 0, 1), lks_select(il, 0, 1),
                                     lks_select(tl, 0, 1), 0, 0, 0);
    double *both = values_of(ctx, lks_ctc_loss(x, targets, il, tl, 0, 0, 0));
    ok(alone && lks_ndim(alone) == 0 && both && item(ctx, alone) == both[1], "a sample without a batch");
    free(both);
    int64_t none[3] = {3, 0, 3}, tnone[2] = {0, 2}, zero = 0;
    lks_tensor *no = lks_zeros(ctx, LKS_I64, 1, &zero);
    ok(isnan(item(ctx,
                  lks_ctc_loss(lks_zeros(ctx, LKS_F32, 3, none), lks_zeros(ctx, LKS_I64, 2, tnone), no, no, 0, 0, 1))),
       "no samples: a mean of NaN");
    NO(lks_ctc_loss(x, lks_zeros(ctx, LKS_I64, 2, tshape), il, tl, 0, 0, 1), LKS_ERR_ARGUMENT,
       "target 0 at place 0 of sample 0");
    NO(lks_ctc_loss(x, targets, lks_full(ctx, LKS_I64, 1, &n, 4), tl, 0, 0, 1), LKS_ERR_ARGUMENT, "input length 4");
    NO(lks_ctc_loss(x, targets, il, lks_full(ctx, LKS_I64, 1, &n, 3), 0, 0, 1), LKS_ERR_ARGUMENT, "target length 3");
    NO(lks_ctc_loss(x, targets, il, tl, 3, 0, 1), LKS_ERR_ARGUMENT, "blank 3");
    NO(lks_ctc_loss(x, targets, il, lks_zeros(ctx, LKS_I64, 1, tshape + 1), 0, 0, 9), LKS_ERR_ARGUMENT,
       "reduction is 9");
}

/* --- embeddings --- */

static void embeddings(lks_context *ctx)
{
    int64_t s[2] = {3, 4}, n = 3;
    lks_tensor *a = noise_of(ctx, LKS_F32, 2, s, 1, 1), *b = noise_of(ctx, LKS_F32, 2, s, 1, 2),
               *c = noise_of(ctx, LKS_F32, 2, s, 1, 3);
    double *va = values_of(ctx, a), *vb = values_of(ctx, b), *vc = values_of(ctx, c), sign[3] = {1, -1, 0}, each[3];
    for (int i = 0; i < 3; i++) {
        double dot = 0, x = 0, y = 0;
        for (int j = 4 * i; j < 4 * i + 4; j++) dot += va[j] * vb[j], x += va[j] * va[j], y += vb[j] * vb[j];
        double cosine = dot / sqrt(x * y);
        each[i] = i == 0 ? 1 - cosine : i == 1 ? fmax(0, cosine + 0.9) : 0;
    }
    lks_tensor *t = tensor_of(ctx, LKS_F32, 1, &n, sign);
    ok(close_to(ctx, lks_cosine_embedding_loss(a, b, t, -0.9, LKS_REDUCTION_NONE), each, 3, 1e-6),
       "cosine_embedding_loss");
    ok(item(ctx, lks_cosine_embedding_loss(lks_zeros(ctx, LKS_F32, 2, s), b, lks_ones(ctx, LKS_F32, 1, &n), 0, 1)) == 1,
       "of a zero vector: a cosine of 0");
    NO(lks_cosine_embedding_loss(a, b, lks_ones(ctx, LKS_F32, 1, s + 1), 0, 1), LKS_ERR_SHAPE, "[4]");
    NO(lks_cosine_embedding_loss(a, LKS_NONE, t, 0, 1), LKS_ERR_ARGUMENT, "LKS_NONE");
    static const double powers[] = {1, 2, 3, INFINITY};
    for (int k = 0; k < 8; k++) {
        double p = powers[k % 4], mean = 0;
        for (int i = 0; i < 3; i++) {
            double d[3] = {0};
            for (int j = 4 * i; j < 4 * i + 4; j++) {
                double e[3] = {fabs(va[j] - vb[j] + 1e-6), fabs(va[j] - vc[j] + 1e-6), fabs(vb[j] - vc[j] + 1e-6)};
                for (int m = 0; m < 3; m++) d[m] = isinf(p) ? fmax(d[m], e[m]) : d[m] + pow(e[m], p);
            }
            for (int m = 0; m < 3 && !isinf(p); m++) d[m] = pow(d[m], 1 / p);
            mean += fmax(0, 1 + d[0] - (k < 4 ? d[1] : fmin(d[1], d[2]))) / 3;
        }
        ok(close_to(ctx, lks_triplet_margin_loss(a, b, c, 1, p, 1e-6, k >= 4, LKS_REDUCTION_MEAN), &mean, 1, 1e-5),
           "triplet_margin_loss, p = %g%s", p, k < 4 ? "" : ", swapped");
    }
    for (int k = 0; k < 4; k++) {
        lks_tensor *same[3] = {lks_clone(a), lks_clone(a), lks_clone(c)}, *g[3];
        for (int i = 0; i < 3; i++) lks_set_requires_grad(same[i], 1);
        lks_tensor *y = lks_triplet_margin_loss(same[0], same[1], same[2], 100, powers[k], 0, 0, LKS_REDUCTION_SUM);
        int good = lks_gradients(y, LKS_NONE, 3, same, 0, 0, g) == LKS_OK;
        double size[3];
        for (int i = 0; i < 3; i++) size[i] = item(ctx, lks_norm(g[i], 1, 0, NULL, 0));
        ok(good && isfinite(size[0]) && size[1] == 0 && size[2] > 0,
           "triplet_margin_loss, p = %g: a distance of 0 has no gradient", powers[k]);
    }
    NO(lks_triplet_margin_loss(a, b, c, 1, 0, 1e-6, 0, 1), LKS_ERR_ARGUMENT, "p is 0");
    NO(lks_triplet_margin_loss(a, b, t, 1, 2, 1e-6, 0, 1), LKS_ERR_SHAPE, "input 2");
    free(va), free(vb), free(vc);
    /* Policies of names that are no rows. */
    for (int table = 0; table < 2; table++) {
        lks_autocast_set_table(ctx, table);
        lks_autocast_begin(ctx, LKS_F16, 1, 1);
        lks_tensor *h = lks_to(a, LKS_F16), *y = lks_cosine_embedding_loss(h, lks_to(b, LKS_F16), t, 0, 1),
                   *z = lks_triplet_margin_loss(h, h, lks_to(b, LKS_F16), 1, 2, 1e-6, 0, 1);
        ok(y && z && lks_dtype_of(y) == LKS_F32 && lks_dtype_of(z) == LKS_F32 && lks_autocast_enabled(ctx),
           "composed losses are float32 in a region, table %d", table);
        lks_tensor *p = lks_sigmoid(h), *e = lks_binary_cross_entropy(p, p, LKS_NONE, 1);
        ok(table == LKS_TABLE_CPU ? e && lks_dtype_of(e) == LKS_F32
                                  : !e && lks_error_code(ctx) == LKS_ERR_UNSUPPORTED &&
                                        strstr(lks_error(ctx), "binary_cross_entropy_with_logits"),
           "binary_cross_entropy in a region, table %d: %s", table, lks_error(ctx));
        lks_error_clear(ctx);
        lks_autocast_end(ctx);
    }
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    ok(lks_dtype_of(lks_triplet_margin_loss(lks_to(a, LKS_BF16), lks_to(b, LKS_BF16), lks_to(c, LKS_BF16), 1, 2, 0, 0,
                                            1)) == LKS_BF16,
       "outside they keep the dtype");
    ok(lks_op_lookup("nll_loss2d") == lks_op_lookup("nll_loss") && lks_op_lookup("triplet_margin_loss") >= 0 &&
           lks_op_lookup("multilabel_margin_loss_forward") == lks_op_lookup("multilabel_margin_loss"),
       "found by every name");
}

static void thread_counts(void)
{
    enum { N = 700, C = 130 };
    float *dx[2] = {NULL, NULL}, loss[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        lks_context *ctx = context_on("cpu", NULL, i ? 3 : 1);
        if (!ctx) continue;
        int64_t s[2] = {N, C}, t[N];
        for (int k = 0; k < N; k++) t[k] = k % C;
        lks_scope_begin(ctx);
        lks_tensor *x = noise_of(ctx, LKS_F32, 2, s, 5, 8);
        lks_set_requires_grad(x, 1);
        lks_tensor *l = lks_cross_entropy(x, lks_from_host(ctx, LKS_I64, 1, s, t), 2, 0.1, LKS_REDUCTION_MEAN);
        lks_backward(l, LKS_NONE, 0);
        dx[i] = malloc(N * C * 4);
        lks_to_host(l, &loss[i], 4);
        lks_to_host(lks_grad(x), dx[i], N * C * 4);
        lks_scope_end(ctx);
        lks_context_destroy(&ctx);
    }
    ok(dx[0] && dx[1] && !memcmp(dx[0], dx[1], N * C * 4) && !memcmp(&loss[0], &loss[1], 4),
       "the same bits on 1 and 3 threads");
    free(dx[0]), free(dx[1]);
}

int main(int argc, char **argv)
{
    static const struct { const char *device, *isa; int threads; } on[] = {
        {"cpu", "base", 1}, {"cpu", "avx2", 3}, {"cpu", "avx512", 2}, {"far", NULL, 2}};
    MPI_Init(&argc, &argv);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        lks_context *ctx = context_on(on[i].device, on[i].isa, on[i].threads);
        if (!ctx) continue;
        const char *name = on[i].isa ? on[i].isa : on[i].device;
        losses(ctx, name);
        pointwise_losses(ctx, name);
        class_losses(ctx, name);
        ctc(ctx, name);
        if (i < 2) { /* on an asynchronous device an error may come later */
            known(ctx);
            lks_scope_begin(ctx);
            pointwise_edges(ctx);
            class_edges(ctx);
            ctc_edges(ctx);
            embeddings(ctx);
            lks_scope_end(ctx);
        }
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    thread_counts();
    MPI_Finalize();
    return done();
}
