/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_complex.c - complex tensors against C's own complex arithmetic in double: every op that takes them, layouts,
 * promotion, edge values, gradients, errors, autocast.
 */
#include "arrays.h"
#include "errors.h"
#include "dispatch/dispatch.h"
#include <complex.h>

typedef double _Complex pair;
#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__}

static lks_context *ctx;

static lks_tensor *made(lks_dtype dtype, int ndim, const int64_t *shape, uint64_t seed)
{
    int64_t all[9];
    for (int d = 0; d < ndim; d++) all[d] = shape[d];
    all[ndim] = 2;
    lks_tensor *t = noise_of(ctx, dtype == LKS_C64 ? LKS_F32 : LKS_F64, ndim + 1, all, 2, seed);
    return lks_view_as_complex(t);
}

static pair *pairs_of(lks_tensor *t)
{
    if (!t) {
        diag("no tensor: %s", lks_error(ctx));
        lks_error_clear(ctx);
        return calloc(64, sizeof(pair));
    }
    lks_no_grad_begin(ctx);
    int64_t n = lks_numel(t);
    pair *v = malloc((size_t)(n + 1) * sizeof *v);
    if (lks_to_host(lks_to(t, LKS_C128), v, n * (int64_t)sizeof *v) != LKS_OK) diag("%s", lks_error(ctx));
    lks_no_grad_end(ctx);
    return v;
}

/* Same numbers, to a few ulps of double or float. */
static int same(lks_tensor *t, int64_t n, const pair *want, double tol)
{
    if (!t || lks_numel(t) != n) {
        diag("no tensor, or of another size: %s", lks_error(ctx));
        lks_error_clear(ctx);
        return 0;
    }
    pair *v = pairs_of(t);
    int good = 1;
    for (int64_t i = 0; i < n && good; i++) {
        good = cabs(v[i] - want[i]) <= tol * (1 + cabs(want[i]));
        if (!good)
            diag("element %d is %g%+gi, want %g%+gi", (int)i, creal(v[i]), cimag(v[i]), creal(want[i]), cimag(want[i]));
    }
    free(v);
    return good;
}

static void arithmetic(lks_dtype dtype)
{
    const char *name = lks_dtype_name(dtype);
    double tol = dtype == LKS_C64 ? 2e-6 : 1e-14;
    for (int layout = 0; layout < 2; layout++) {
        lks_scope_begin(ctx);
        enum { N = 3 * 700 };
        lks_tensor *a = made(dtype, SHAPE(3, 700), 1), *b = made(dtype, SHAPE(3, 700), 2);
        if (layout) a = reversed(a);
        pair *x = pairs_of(a), *y = pairs_of(b), *w = malloc(N * sizeof *w);
#define EACH(what, op, formula)                                                                                \
    for (int i = 0; i < N; i++) w[i] = formula;                                                                \
    ok(same(op, N, w, tol), "%s %s, layout %d", what, name, layout)
        EACH("add", lks_add(a, b), x[i] + y[i]);
        EACH("sub", lks_sub(a, b), x[i] - y[i]);
        EACH("mul", lks_mul(a, b), x[i] * y[i]);
        EACH("div", lks_div(a, b), x[i] / y[i]);
        EACH("neg", lks_neg(a), -x[i]);
        EACH("affine", lks_affine(a, -2.5, 0.75), -2.5 * x[i] + 0.75);
        EACH("conj", lks_conj(a), conj(x[i]));
        EACH("exp", lks_exp(a), cexp(x[i]));
        EACH("abs", lks_abs(a), cabs(x[i]));
        EACH("angle", lks_angle(a), carg(x[i]));
        EACH("real", lks_real(a), creal(x[i]));
        EACH("imag", lks_imag(a), cimag(x[i]));
        EACH("complex", lks_complex(lks_real(a), lks_imag(a)), x[i]);
        EACH("polar", lks_polar(lks_abs(a), lks_angle(a)), x[i]);
        EACH("real times complex", lks_mul(lks_real(a), b), creal(x[i]) * y[i]);
        EACH("where", lks_where(lks_gt(lks_real(a), lks_imag(a)), a, b), creal(x[i]) > cimag(x[i]) ? x[i] : y[i]);
        EACH("eq", lks_to(lks_eq(a, lks_where(lks_gt(lks_real(a), lks_imag(a)), a, b)), LKS_F64),
             creal(x[i]) > cimag(x[i]));
        EACH("ne", lks_to(lks_ne(a, lks_where(lks_gt(lks_real(a), lks_imag(a)), a, b)), LKS_F64),
             !(creal(x[i]) > cimag(x[i])));
        pair row[3] = {0}, all = 0;
        for (int i = 0; i < N; i++) row[i / 700] += x[i], all += x[i];
        ok(same(lks_sum(a, 1, (int[]){1}, 0, LKS_DTYPE_NONE), 3, row, 100 * tol), "sum of rows %s", name);
        all /= N;
        ok(same(lks_mean(a, 0, NULL, 0, LKS_DTYPE_NONE), 1, &all, 10 * tol), "mean %s", name);
        ok(lks_dtype_of(lks_abs(a)) == (dtype == LKS_C64 ? LKS_F32 : LKS_F64) && lks_dtype_of(lks_add(a, b)) == dtype,
           "dtypes %s", name);
        free(x), free(y), free(w);
        lks_scope_end(ctx);
    }
}

static void products(lks_dtype dtype)
{
    const char *name = lks_dtype_name(dtype);
    static const struct { int an, bn; int64_t a[4], b[4];
    } cases[] = {{2, 2, {3, 5}, {5, 4}},       {1, 1, {5}, {5}},
                 {1, 2, {5}, {5, 3}},          {2, 1, {3, 5}, {5}},
                 {3, 3, {2, 3, 5}, {2, 5, 4}}, {4, 3, {3, 1, 2, 5}, {4, 5, 3}},
                 {1, 3, {5}, {2, 5, 3}},       {3, 1, {2, 3, 5}, {5}},
                 {2, 3, {7, 40}, {3, 40, 9}},  {2, 2, {1, 1}, {1, 1}},
                 {2, 2, {3, 0}, {0, 2}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int layout = 0; layout < 4; layout++) {
            lks_scope_begin(ctx);
            lks_tensor *a = made(dtype, cases[c].an, cases[c].a, 3), *b = made(dtype, cases[c].bn, cases[c].b, 4);
            if (layout & 1) a = reversed(a);
            if (layout & 2) b = reversed(b);
            lks_tensor *y = lks_matmul(a, b);
            lks_tensor *ar = lks_contiguous(lks_real(a)), *ai = lks_contiguous(lks_imag(a));
            lks_tensor *br = lks_contiguous(lks_real(b)), *bi = lks_contiguous(lks_imag(b));
            lks_tensor *re = lks_sub(lks_matmul(ar, br), lks_matmul(ai, bi));
            lks_tensor *im = lks_add(lks_matmul(ar, bi), lks_matmul(ai, br));
            pair *want = pairs_of(lks_complex(re, im));
            int good =
                y && lks_ndim(y) == lks_ndim(re) && same(y, lks_numel(re), want, dtype == LKS_C64 ? 1e-5 : 1e-13);
            free(want);
            if (!good || layout == 3) ok(good, "matmul %s, case %d", name, (int)c);
            lks_scope_end(ctx);
        }
}

/* Everything that moves complex numbers, by what it does to the parts. */
static void movements(lks_dtype dtype)
{
    lks_scope_begin(ctx);
    lks_tensor *a = made(dtype, SHAPE(40, 3, 50), 5);
#define PARTS(what, op)                                                                                        \
    do {                                                                                                       \
        lks_tensor *x = a, *y = op;                                                                            \
        x = lks_contiguous(lks_real(a));                                                                       \
        lks_tensor *re = op;                                                                                   \
        x = lks_contiguous(lks_imag(a));                                                                       \
        lks_tensor *im = op;                                                                                   \
        pair *want = pairs_of(lks_complex(re, im));                                                            \
        ok(same(y, lks_numel(re), want, 0), "%s %s", what, lks_dtype_name(dtype));                               \
        free(want);                                                                                            \
    } while (0)
    PARTS("transposed copy", lks_clone(lks_permute(x, 3, (int[]){2, 0, 1})));
    PARTS("slices", lks_clone(lks_slice(lks_slice(x, 2, 1, 40, 3), 0, 5, 30, 2)));
    PARTS("cat", lks_cat(2, ((lks_tensor *[]){x, lks_flip(x, 1, (int[]){0})}), 1));
    PARTS("pad", lks_pad(x, 4, (int64_t[]){1, 2, 0, 3}, 0));
    PARTS("roll", lks_roll(x, 2, (int64_t[]){7, 1}, (int[]){0, 1}));
    PARTS("triu", lks_triu(x, 1));
    PARTS("diagonal", lks_clone(lks_diagonal(x, 0, 0, 2)));
    PARTS("diag_embed", lks_diag_embed(lks_slice(x, 0, 0, 2, 1), 1, -1, -2));
    PARTS("expand", lks_clone(lks_expand(x, 4, (int64_t[]){2, 40, 3, 50})));
    lks_tensor *whole = lks_zeros(ctx, dtype, SHAPE(40, 3, 50));
    ok(lks_copy_(lks_slice(whole, 1, 0, 1, 1), lks_slice(a, 1, 2, 3, 1)) == LKS_OK &&
           lks_fill_(lks_slice(whole, 1, 1, 2, 1), 2.5) == LKS_OK,
       "copy_ and fill_ into a part");
    pair *x = pairs_of(a), *w = pairs_of(whole);
    int good = 1;
    for (int i = 0; i < 40; i++)
        for (int k = 0; k < 50; k++)
            good &= w[i * 150 + k] == x[i * 150 + 100 + k] && w[i * 150 + 50 + k] == 2.5 && w[i * 150 + 100 + k] == 0;
    ok(good, "what they left %s", lks_dtype_name(dtype));
    free(x), free(w);
    lks_tensor *view = lks_view_as_real(a);
    lks_fill_(lks_select(view, -1, 1), 7);
    w = pairs_of(a);
    ok(lks_data(view) == lks_data(a) && cimag(w[6]) == 7, "view_as_real shares the memory");
    free(w);
    lks_scope_end(ctx);
}

static void conversions(void)
{
    static const lks_dtype reals[] = {LKS_F32, LKS_F64, LKS_F16, LKS_BF16, LKS_I64, LKS_I32, LKS_U8, LKS_BOOL};
    lks_scope_begin(ctx);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 2; k++) {
            double v[200];
            pair want[200];
            for (int j = 0; j < 200; j++) v[j] = reals[i] == LKS_BOOL ? j % 2 : j % 100, want[j] = v[j];
            lks_dtype c = k ? LKS_C128 : LKS_C64;
            lks_tensor *x = tensor_of(ctx, reals[i], SHAPE(4, 50), v), *y = lks_to(x, c);
            lks_tensor *shifted = lks_complex(x, lks_full(ctx, LKS_F32, 0, NULL, reals[i] != LKS_BOOL));
            int good = same(y, 200, want, 0) && close_to(ctx, lks_to(reversed(shifted), reals[i]), v, 200, 0.01);
            ok(good && lks_dtype_of(y) == c && lks_promote(reals[i], c) == (reals[i] == LKS_F64 ? LKS_C128 : c) &&
                   lks_promote(c, reals[i]) == lks_promote(reals[i], c),
               "%s and %s", lks_dtype_name(reals[i]), lks_dtype_name(c));
        }
    lks_tensor *one = lks_ones(ctx, LKS_C128, 0, NULL), *many = lks_ones(ctx, LKS_F32, SHAPE(3));
    ok(lks_dtype_of(lks_mul(one, many)) == LKS_C64 &&
           lks_dtype_of(lks_mul(lks_to(one, LKS_C64), lks_to(many, LKS_F64))) == LKS_C128 &&
           lks_dtype_of(lks_mul(one, lks_to(many, LKS_C64))) == LKS_C64 &&
           lks_dtype_of(lks_mul(lks_ones(ctx, LKS_F64, 0, NULL), lks_to(many, LKS_C64))) == LKS_C64,
       "0-dim tensors do not widen");
    ok(lks_dtype_from_name("complex64") == LKS_C64 && lks_dtype_size(LKS_C128) == 16 && lks_dtype_is_complex(LKS_C64) &&
           !lks_dtype_is_float(LKS_C64),
       "names and sizes");
    lks_scope_end(ctx);
}

/* f of complex parts as a function of real tensors. */
static lks_tensor *rotated(lks_tensor *const *in) { return lks_complex(in[0], in[1]); }
#define GRAD(name, expr)                                                                                       \
    static lks_tensor *name(void *user, lks_tensor *const *in, int n)                                          \
    {                                                                                                          \
        (void)user, (void)n;                                                                                   \
        lks_tensor *z = rotated(in), *w = lks_complex(in[2], in[3]);                                           \
        (void)z, (void)w;                                                                                      \
        return expr;                                                                                           \
    }
GRAD(g_mul, lks_view_as_real(lks_mul(z, w)))
GRAD(g_div, lks_view_as_real(lks_div(z, w)))
GRAD(g_exp, lks_view_as_real(lks_exp(z)))
GRAD(g_abs, lks_abs(z))
GRAD(g_angle, lks_angle(z))
GRAD(g_conj, lks_view_as_real(lks_mul(lks_conj(z), w)))
GRAD(g_polar, lks_view_as_real(lks_mul(lks_polar(in[0], in[1]), w)))
GRAD(g_matmul, lks_view_as_real(lks_matmul(z, lks_transpose(w, 0, 1))))
GRAD(g_mixed, lks_view_as_real(lks_mul(lks_sub(in[0], z), lks_imag(w))))
GRAD(g_views, lks_real(lks_view_as_complex(lks_mul(lks_view_as_real(z), lks_view_as_real(w)))))
GRAD(g_sum, lks_view_as_real(lks_sum(lks_mul(z, lks_sum(w, 1, (int[]){0}, 0, LKS_DTYPE_NONE)), 1, (int[]){1}, 0,
                                     LKS_DTYPE_NONE)))
GRAD(g_where,
     lks_view_as_real(lks_where(lks_gt(in[0], in[1]), lks_affine(z, 2, -1), lks_mean(w, 0, NULL, 0, LKS_DTYPE_NONE))))

static void gradients(void)
{
    static const struct { const char *name; lks_gradcheck_fn f; } checks[] = {
        {"mul", g_mul}, {"div", g_div}, {"exp", g_exp}, {"abs", g_abs}, {"angle", g_angle}, {"conj", g_conj},
        {"polar", g_polar}, {"matmul", g_matmul}, {"real with complex", g_mixed}, {"views", g_views}, {"sum", g_sum},
        {"where, affine, mean", g_where}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        lks_scope_begin(ctx);
        lks_tensor *in[4];
        double worst;
        for (int k = 0; k < 4; k++)
            in[k] = lks_add_scalar(noise_of(ctx, LKS_F64, SHAPE(3, 2), 1, 20 + (uint64_t)k), k * 0.25);
        ok(lks_gradcheck(ctx, checks[i].f, NULL, 4, in, 1e-6, 1e-7, &worst) == LKS_OK, "gradient of %s (%.1e)",
           checks[i].name, worst);
        if (lks_error_code(ctx)) diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
        lks_scope_end(ctx);
    }
    /* A complex leaf; twice. */
    lks_scope_begin(ctx);
    lks_tensor *z = made(LKS_C128, SHAPE(4), 9), *loss, *g = NULL, *gg = NULL;
    lks_set_requires_grad(z, 1);
    loss = lks_sum(lks_real(lks_mul(lks_mul(z, z), lks_conj(z))), 0, NULL, 0, LKS_DTYPE_NONE); /* |z|^2 x */
    pair *v = pairs_of(z), first[4], second[4];
    for (int i = 0; i < 4; i++) {
        double x = creal(v[i]), y = cimag(v[i]);
        first[i] = 3 * x * x + y * y + 2 * x * y * I;
        second[i] = 6 * x + 2 * y + (2 * y + 2 * x) * I; /* gradient of the sum of both parts */
    }
    ok(lks_gradients(loss, LKS_NONE, 1, &z, 1, 1, &g) == LKS_OK && same(g, 4, first, 1e-13),
       "gradient of a complex leaf");
    lks_tensor *sum = lks_sum(lks_view_as_real(g), 0, NULL, 0, LKS_DTYPE_NONE);
    ok(lks_gradients(sum, LKS_NONE, 1, &z, 0, 0, &gg) == LKS_OK && same(gg, 4, second, 1e-13), "and its gradient");
    if (lks_error_code(ctx)) diag("%s", lks_error(ctx));
    free(v);
    lks_tensor *x = noise_of(ctx, LKS_F64, SHAPE(3), 1, 4);
    lks_set_requires_grad(x, 1);
    lks_tensor *y = lks_mul(x, made(LKS_C128, SHAPE(3), 5));
    ok(lks_backward(y, lks_ones(ctx, LKS_C128, SHAPE(3)), 0) == LKS_OK && lks_dtype_of(lks_grad(x)) == LKS_F64,
       "a real tensor's gradient stays real");
    lks_tensor *zero = lks_zeros(ctx, LKS_C64, SHAPE(2));
    lks_set_requires_grad(zero, 1);
    pair none[2] = {0};
    ok(lks_backward(lks_sum(lks_add(lks_abs(zero), lks_angle(zero)), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) ==
               LKS_OK &&
           same(lks_grad(zero), 2, none, 0),
       "abs and angle at 0 have gradient 0");
    lks_scope_end(ctx);
}

static int refused(lks_tensor *y, lks_status code, const char *a, const char *b)
{
    return recorded(ctx, !y, code, a, b);
}

static void edges(void)
{
    lks_scope_begin(ctx);
    double big = 1e300, v[] = {big, big, INFINITY, 1, 3, NAN, 0, 0};
    lks_tensor *z = lks_from_host(ctx, LKS_C128, SHAPE(4), v);
    double *a = values_of(ctx, lks_abs(z));
    ok(fabs(a[0] / (big * sqrt(2)) - 1) < 1e-15 && a[1] == INFINITY && isnan(a[2]) && a[3] == 0,
       "abs of huge, inf, NaN, 0");
    free(a);
    pair *q = pairs_of(lks_div(z, z));
    ok(cabs(q[0] - 1) < 1e-15 && isnan(creal(q[3])), "division does not overflow; 0/0 is NaN");
    free(q);
    ok(lks_numel(lks_matmul(made(LKS_C64, SHAPE(0, 3), 1), made(LKS_C64, SHAPE(3, 2), 1))) == 0 &&
           lks_numel(lks_exp(made(LKS_C64, SHAPE(0), 1))) == 0,
       "empty tensors");
    pair zero = 0;
    ok(same(lks_sum(made(LKS_C64, SHAPE(0), 1), 0, NULL, 0, LKS_DTYPE_NONE), 1, &zero, 0), "the sum of nothing is 0");
    lks_tensor *c = lks_ones(ctx, LKS_C64, SHAPE(2, 2)), *r = lks_ones(ctx, LKS_F32, SHAPE(3, 3));
    ok(refused(lks_relu(c), LKS_ERR_DTYPE, "relu", "complex64"), "relu names the dtype");
    ok(refused(lks_softmax(c, 0), LKS_ERR_DTYPE, "softmax", "complex64"), "so does softmax");
    ok(refused(lks_lt(c, c), LKS_ERR_DTYPE, "lt", "complex64"), "complex numbers have no order");
    ok(refused(lks_complex(c, c), LKS_ERR_DTYPE, "complex", "complex64"), "complex of complex");
    ok(refused(lks_imag(r), LKS_ERR_DTYPE, "float32", "complex"), "imag of a real tensor");
    ok(refused(lks_view_as_complex(r), LKS_ERR_SHAPE, "[3,3]", "size 2"), "view_as_complex of triples");
    ok(refused(lks_view_as_complex(lks_transpose(lks_ones(ctx, LKS_F32, SHAPE(2, 2)), 0, 1)), LKS_ERR_SHAPE, "stride 1",
               ""),
       "of strided pairs");
    lks_tensor *nobody = lks_view_as_complex(lks_transpose(lks_ones(ctx, LKS_F32, SHAPE(2, 0)), 0, 1));
    ok(nobody && lks_dtype_of(nobody) == LKS_C64 && lks_ndim(nobody) == 1 && lks_numel(nobody) == 0,
       "of no pairs, whatever the strides");
    ok(refused(lks_view_as_complex(lks_ones(ctx, LKS_F16, SHAPE(2, 2))), LKS_ERR_DTYPE, "float16", ""),
       "of pairs of float16");
    ok(refused(lks_sum(c, 0, NULL, 0, LKS_F32), LKS_ERR_DTYPE, "complex64", "float32"), "sum into a real dtype");
    ok(refused(lks_matmul(c, lks_ones(ctx, LKS_F32, SHAPE(2, 2))), LKS_ERR_DTYPE, "complex64", "float32"),
       "products of unlike dtypes");
    double d;
    ok(lks_item(lks_ones(ctx, LKS_C64, 0, NULL), &d) == LKS_ERR_DTYPE, "item of a complex number");
    lks_error_clear(ctx);
    ok(lks_real(r) == r && lks_conj(r) == r, "real and conj of a real tensor are itself");
    ok(refused(lks_arange(ctx, LKS_C64, 3), LKS_ERR_DTYPE, "arange", "complex64"), "arange");
    lks_scope_end(ctx);
}

static void regions(void)
{
    lks_scope_begin(ctx);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *c = made(LKS_C64, SHAPE(3, 3), 1), *h = lks_ones(ctx, LKS_BF16, SHAPE(3, 2));
    ok(lks_dtype_of(lks_matmul(c, c)) == LKS_C64, "a region leaves complex products alone");
    ok(lks_dtype_of(lks_view_as_complex(h)) == LKS_C64 && lks_dtype_of(lks_polar(h, h)) == LKS_C64,
       "view_as_complex and polar take float32");
    lks_autocast_end(ctx);
    lks_anomaly_begin(ctx);
    lks_tensor *zero = lks_zeros(ctx, LKS_C64, SHAPE(2));
    ok(refused(lks_div(zero, zero), LKS_ERR_NAN, "div", "complex64"), "anomaly mode sees complex NaN");
    lks_anomaly_end(ctx);
    lks_scope_end(ctx);
}

static void all(void)
{
    for (int k = 0; k < 2; k++) {
        lks_dtype dtype = k ? LKS_C128 : LKS_C64;
        arithmetic(dtype);
        products(dtype);
        movements(dtype);
    }
    conversions();
    gradients();
    edges();
    regions();
}

int main(void)
{
    on_both_devices(&ctx, NULL, all);
    lks_finalize();
    return done();
}
