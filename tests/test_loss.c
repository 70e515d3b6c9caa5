/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_loss.c - cross entropy and its gradient against plain loops in double: dtypes, layouts, reductions, smoothing,
 * ignored rows, extreme logits, targets out of range, thread counts.
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
        ok(v && fabs(v[0] - 0.69314718) < 1e-7 && dx && dx[0] == 0.5 && dx[1] == -0.5, "logits of %g: ln 2", x[0]);
        free(v), free(dx);
    }
    /* Extreme half-precision logits. */
    double x2[2] = {60000, -60000};
    int64_t t1[1] = {1};
    v = run(ctx, LKS_F16, 1, 2, x2, t1, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN, &dx);
    double far = (double)(float)60000 * 2;
    ok(v && v[0] == far && dx && dx[0] == 1 && dx[1] == -1, "float16 logits of 60000 and -60000: %g", v ? v[0] : NAN);
    free(v), free(dx);
    /* All targets ignored. */
    double x6[6] = {1, 2, 3, 4, 5, 6};
    int64_t off[2] = {-100, -100};
    for (int r = 0; r < 3; r++) {
        v = run(ctx, LKS_F32, 2, 3, x6, off, LKS_IGNORE_INDEX, r, &dx);
        int zero = v && dx && v[0] == 0 && (r || v[1] == 0);
        for (int i = 0; i < 6 && zero; i++) zero = dx[i] == 0;
        ok(zero, "all targets ignored, reduction %d: zeros", r);
        free(v), free(dx);
    }
    /* Targets out of range; 255 as the ignored class. */
    double x5[5] = {0};
    int64_t t4[1] = {-4};
    v = run(ctx, LKS_F32, 1, 5, x5, t4, -1, LKS_REDUCTION_MEAN, NULL);
    ok(!v && lks_error_code(ctx) == LKS_ERR_ARGUMENT && strstr(lks_error(ctx), "-4") && strstr(lks_error(ctx), "row 0"),
       "target -4: %s", lks_error(ctx));
    free(v);
    lks_error_clear(ctx);
    double zeros[18] = {0};
    int64_t six[6] = {0, 1, 255, 0, 1, 2};
    v = run(ctx, LKS_F32, 6, 3, zeros, six, 255, LKS_REDUCTION_NONE, NULL);
    int good = v != NULL;
    for (int i = 0; i < 6 && good; i++) good = fabs(v[i] - (i == 2 ? 0 : 1.0986123)) < 1e-6;
    ok(good, "255 is ignored: ln 3 elsewhere");
    free(v);
    v = run(ctx, LKS_F32, 6, 3, zeros, six, 255, LKS_REDUCTION_MEAN, NULL);
    ok(v && fabs(v[0] - 1.0986123) < 1e-6, "mean over five rows");
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
        losses(ctx, on[i].isa ? on[i].isa : on[i].device);
        if (i < 2) known(ctx); /* on an asynchronous device an error may come later */
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    thread_counts();
    MPI_Finalize();
    return done();
}
