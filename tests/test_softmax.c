/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_softmax.c - softmax and log_softmax, forward and backward, against plain loops in double: dtypes, dims, layouts,
 * ISAs, masked slices, extreme values.
 */
#include "arrays.h"
#include "dispatch/dispatch.h"

/* Slices of n elements, `inner` apart, in a row-major [outer, n, inner]. */
static void reference(const double *x, const double *dy, int64_t outer, int64_t n, int64_t inner, int logarithm,
                      double *y, double *dx)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t at = o * n * inner + i;
            double max = -INFINITY, sum = 0, dot = 0, total = 0;
            for (int64_t k = 0; k < n; k++) max = fmax(max, x[at + k * inner]);
            for (int64_t k = 0; k < n; k++) sum += exp(x[at + k * inner] - max);
            for (int64_t k = 0; k < n; k++) {
                double p = exp(x[at + k * inner] - max) / sum;
                y[at + k * inner] = logarithm ? x[at + k * inner] - max - log(sum) : p;
                dot += p * dy[at + k * inner];
                total += dy[at + k * inner];
            }
            for (int64_t k = 0; k < n; k++) {
                double p = exp(x[at + k * inner] - max) / sum, g = dy[at + k * inner];
                dx[at + k * inner] = logarithm ? g - p * total : p * (g - dot);
            }
        }
}

static int softmax_case(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, int dim, int layout,
                        int logarithm)
{
    int64_t outer = 1, inner = 1, n = 1;
    for (int d = 0; d < ndim; d++) *(d < dim ? &outer : d == dim ? &n : &inner) *= shape[d];
    int64_t all = outer * n * inner;
    lks_scope_begin(ctx);
    lks_tensor *x = noise_of(ctx, dtype, ndim, shape, 6, 1), *dy = noise_of(ctx, dtype, ndim, shape, 1, 2);
    if (layout & 1) x = reversed(x);
    if (layout & 2) dy = reversed(dy);
    double *vx = values_of(ctx, x), *vg = values_of(ctx, dy);
    double *y = calloc((size_t)all + 1, sizeof *y), *dx = calloc((size_t)all + 1, sizeof *dx);
    reference(vx, vg, outer, n, inner, logarithm, y, dx);
    lks_set_requires_grad(x, 1);
    lks_tensor *out = logarithm ? lks_log_softmax(x, dim) : lks_softmax(x, dim - ndim);
    double tol = tolerance_of(dtype);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, all, tol);
    good = good && lks_backward(out, dy, 0) == LKS_OK;
    /* The result that backward starts from is rounded to dtype. */
    good = good && close_to(ctx, lks_grad(x), dx, all, (logarithm ? 30 : 6) * tol);
    if (!good) diag("%s", lks_error(ctx));
    free(vx), free(vg), free(y), free(dx);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void softmaxes(lks_context *ctx, const char *name)
{
    static const struct { int ndim, dim; int64_t shape[4]; } cases[] = {
        {2, 1, {7, 33}}, {2, 0, {70, 45}}, {4, 1, {2, 5, 3, 7}}, {3, 2, {3, 4, 1030}}, {1, 0, {1}},
        {3, 1, {2, 3000, 40}}, {2, 1, {0, 4}}, {2, 1, {3, 0}}, {2, 0, {3, 0}}};
    for (int d = 0; d < 4; d++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            int good = 1;
            for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
                for (int layout = 0; layout < 4; layout++)
                    if (!softmax_case(ctx, array_floats[d], cases[c].ndim, cases[c].shape, cases[c].dim, layout,
                                      logarithm)) {
                        diag("case %d layout %d", (int)c, layout);
                        good = 0;
                    }
            ok(good, "%s %s %s", logarithm ? "log_softmax" : "softmax", name, lks_dtype_name(array_floats[d]));
        }
}

static void known(lks_context *ctx)
{
    /* A slice of -inf alone: zeros, zero gradient; the other slices as ever. */
    static const double want[6] = {0.26894142, 0.73105858, 0, 0, 0, 1};
    static const double dwant[6] = {0.19661193, -0.19661193, 0, 0, 0, 0};
    int64_t s[2] = {3, 2};
    for (int d = 1; d < 4; d++) {
        lks_scope_begin(ctx);
        lks_dtype dtype = array_floats[d];
        double x[6] = {0, 1, -INFINITY, -INFINITY, -INFINITY, 5}, g[6] = {1, 0, 1, 0, 1, 0};
        lks_tensor *t = tensor_of(ctx, dtype, 2, s, x), *dy = tensor_of(ctx, dtype, 2, s, g);
        lks_set_requires_grad(t, 1);
        lks_tensor *y = lks_softmax(t, 1);
        ok(close_to(ctx, y, want, 6, tolerance_of(dtype)), "a masked slice gives zeros (%s)", lks_dtype_name(dtype));
        lks_backward(y, dy, 0);
        ok(close_to(ctx, lks_grad(t), dwant, 6, 2 * tolerance_of(dtype)), "and a zero gradient");
        lks_zero_grad(t);
        y = lks_log_softmax(t, 1);
        double *v = values_of(ctx, y);
        ok(v && v[2] == -INFINITY && v[3] == -INFINITY && v[4] == -INFINITY && v[5] == 0, "log_softmax gives -inf");
        lks_backward(y, dy, 0);
        double *dx = values_of(ctx, lks_grad(t));
        ok(dx && dx[2] == 0 && dx[3] == 0 && fabs(dx[0] - 0.7310586) < 5e-3 && fabs(dx[4] - 1) < 1e-6,
           "and a zero gradient");
        free(v), free(dx);
        lks_scope_end(ctx);
    }
    /* Large entries, infinities and NaN. */
    double x[12] = {1e8, 1e8, -1e8, -1e8, 3e38, -3e38, NAN, 0, INFINITY, 0, NAN, -INFINITY};
    int64_t s6[2] = {6, 2};
    double *v = values_of(ctx, lks_softmax(tensor_of(ctx, LKS_F32, 2, s6, x), 1));
    ok(v && v[0] == 0.5 && v[2] == 0.5 && v[4] == 1 && v[5] == 0, "large entries");
    ok(v && isnan(v[6]) && isnan(v[7]) && isnan(v[8]) && isnan(v[10]) && isnan(v[11]), "NaN and inf stay visible");
    free(v);
    v = values_of(ctx, lks_log_softmax(tensor_of(ctx, LKS_F32, 2, s6, x), 1));
    ok(v && fabs(v[0] + 0.69314718) < 1e-6 && fabs(v[3] + 0.69314718) < 1e-6, "log_softmax keeps ln 2 beside 1e8");
    free(v);
    double one[1] = {3};
    v = values_of(ctx, lks_softmax(tensor_of(ctx, LKS_F32, 0, NULL, one), -1));
    ok(v && v[0] == 1, "a 0-dim tensor is one slice");
    free(v);
    ok(!lks_softmax(lks_zeros(ctx, LKS_F32, 2, s), 2) && lks_error_code(ctx) != LKS_OK, "dim 2 of 2: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_softmax(lks_zeros(ctx, LKS_I64, 2, s), 1) && lks_error_code(ctx) == LKS_ERR_DTYPE, "integers: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
}

/* The backward rows have gradients too. */
static lks_tensor *backward_row(void *user, lks_tensor *const *inputs, int n)
{
    lksi_attr attr = {.dim = {.dim = 1}};
    int op = *(int *)user ? LKSI_OP_log_softmax_backward : LKSI_OP_softmax_backward;
    return lksi_call1(lks_context_of(inputs[0]), "backward", op, n, inputs, &attr);
}

static void twice(lks_context *ctx)
{
    int64_t s[2] = {2, 4};
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        lks_tensor *in[2] = {noise_of(ctx, LKS_F64, 2, s, 1, 3), noise_of(ctx, LKS_F64, 2, s, 1, 4)};
        double worst = 0;
        lks_status status = lks_gradcheck(ctx, backward_row, &logarithm, 2, in, 1e-6, 1e-6, &worst);
        ok(status == LKS_OK, "gradient of the backward row of %s: %g %s",
           logarithm ? "log_softmax" : "softmax", worst, lks_error(ctx));
        lks_error_clear(ctx);
    }
}

int main(int argc, char **argv)
{
    static const struct { const char *device, *isa; int threads; } on[] = {
        {"cpu", "base", 1}, {"cpu", "avx2", 3}, {"cpu", "avx512", 2}, {"far", NULL, 2}};
    MPI_Init(&argc, &argv);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        lks_context *ctx = context_on(on[i].device, on[i].isa, on[i].threads);
        if (!ctx) continue;
        softmaxes(ctx, on[i].isa ? on[i].isa : on[i].device);
        if (i != 2) known(ctx);
        if (i == 1) twice(ctx);
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    MPI_Finalize();
    return done();
}
