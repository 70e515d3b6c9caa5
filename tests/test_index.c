/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_index.c - embedding, its gradient, and cat, against plain loops: dtypes, layouts, repeated and wrong indices,
 * promotion, empty inputs, thread counts.
 */
#include "arrays.h"

static int embedding_case(lks_context *ctx, lks_dtype dtype, int64_t v, int64_t d, int64_t n, int64_t m, int layout,
                          int narrow)
{
    int64_t shape[2] = {v, d}, ishape[2] = {n, m}, yshape[3] = {n, m, d};
    lks_scope_begin(ctx);
    lks_tensor *w = noise_of(ctx, dtype, 2, shape, 2, 1);
    int64_t *index = calloc((size_t)(n * m) + 1, sizeof *index);
    for (int64_t i = 0; i < n * m; i++) index[i] = i * i * 5 % v;
    lks_tensor *t = lks_from_host(ctx, LKS_I64, 2, ishape, index), *dy = noise_of(ctx, dtype, 3, yshape, 1, 2);
    if (narrow) t = lks_to(t, LKS_I32);
    if (layout) {
        w = reversed(w);
        t = reversed(t);
        dy = reversed(dy);
    }
    double *vw = values_of(ctx, w), *vg = values_of(ctx, dy);
    double *y = calloc((size_t)(n * m * d) + 1, sizeof *y), *dw = calloc((size_t)(v * d) + 1, sizeof *dw);
    for (int64_t i = 0; i < n * m; i++)
        for (int64_t j = 0; j < d; j++) {
            y[i * d + j] = vw[index[i] * d + j];
            dw[index[i] * d + j] += vg[i * d + j];
        }
    lks_set_requires_grad(w, 1);
    lks_tensor *out = lks_embedding(w, t);
    int good = out && lks_dtype_of(out) == dtype && close_to(ctx, out, y, n * m * d, 0) &&
               lks_backward(out, dy, 0) == LKS_OK && close_to(ctx, lks_grad(w), dw, v * d, tolerance_of(dtype));
    if (!good) diag("%s", lks_error(ctx));
    free(vw), free(vg), free(index), free(y), free(dw);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void embeddings(lks_context *ctx, const char *name)
{
    static const int64_t cases[][4] = {{7, 5, 3, 4}, {300, 64, 20, 33}, {1, 3, 4, 5}, {5, 4, 0, 3},
                                       {5, 0, 2, 3}, {9, 1, 1, 1}};
    for (int d = 0; d < 4; d++) {
        int good = 1;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int how = 0; how < 4; how++)
                if (!embedding_case(ctx, array_floats[d], cases[c][0], cases[c][1], cases[c][2], cases[c][3], how & 1,
                                    how >> 1)) {
                    diag("case %d how %d", (int)c, how);
                    good = 0;
                }
        ok(good, "embedding %s %s", name, lks_dtype_name(array_floats[d]));
    }
}

static void wrong(lks_context *ctx)
{
    int64_t s[2] = {5, 2}, n[1] = {3}, over[3] = {0, 1, 5}, under[3] = {0, -1, 2};
    lks_tensor *w = lks_zeros(ctx, LKS_F32, 2, s);
    ok(!lks_embedding(w, lks_from_host(ctx, LKS_I64, 1, n, over)) && lks_error_code(ctx) == LKS_ERR_ARGUMENT &&
           strstr(lks_error(ctx), "index 5 at place 2"),
       "index 5 of 5: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_embedding(w, lks_from_host(ctx, LKS_I64, 1, n, under)) && strstr(lks_error(ctx), "index -1 at place 1"),
       "index -1: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_embedding(lks_zeros(ctx, LKS_F32, 1, s), lks_zeros(ctx, LKS_I64, 1, n)) &&
           lks_error_code(ctx) == LKS_ERR_SHAPE,
       "a table of one dim: %s", lks_error(ctx));
    lks_error_clear(ctx);
}

static void bits(void)
{
    enum { V = 50, D = 40, N = 3000 };
    float *dw[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        lks_context *ctx = context_on("cpu", NULL, i ? 3 : 1);
        if (!ctx) continue;
        int64_t s[2] = {V, D}, n[1] = {N}, y[2] = {N, D}, index[N];
        for (int k = 0; k < N; k++) index[k] = k * 7 % V;
        lks_scope_begin(ctx);
        lks_tensor *w = lks_zeros(ctx, LKS_F32, 2, s);
        lks_set_requires_grad(w, 1);
        lks_backward(lks_embedding(w, lks_from_host(ctx, LKS_I64, 1, n, index)), noise_of(ctx, LKS_F32, 2, y, 1, 5), 0);
        dw[i] = malloc(V * D * 4);
        lks_to_host(lks_grad(w), dw[i], V * D * 4);
        lks_scope_end(ctx);
        lks_context_destroy(&ctx);
    }
    ok(dw[0] && dw[1] && !memcmp(dw[0], dw[1], V * D * 4), "embedding's gradient has the same bits on 1 and 3 threads");
    free(dw[0]), free(dw[1]);
}

/* Inputs of these dtypes joined along dim. */
static int cat_case(lks_context *ctx, int n, const lks_dtype *dtypes, lks_dtype want, int dim, int layout)
{
    int64_t shape[3] = {3, 4, 50}, total = 0, lengths[8];
    lks_tensor *x[8];
    double *v[8];
    lks_scope_begin(ctx);
    for (int i = 0; i < n; i++) {
        int64_t s[3] = {3, 4, 50}, count;
        s[dim] = lengths[i] = dim == 2 ? 50 - 7 * i : i == 1 ? 0 : i + 1;
        count = s[0] * s[1] * s[2];
        double *values = noise(count, 60, (uint64_t)i + 1);
        for (int64_t k = 0; k < count; k++)
            values[k] = lks_dtype_is_float(dtypes[i]) ? values[k]
                        : dtypes[i] == LKS_BOOL       ? values[k] > 0
                                                      : fabs(round(values[k]));
        x[i] = tensor_of(ctx, dtypes[i], 3, s, values);
        free(values);
        if (layout && (layout == 1 || i % 2)) x[i] = reversed(x[i]);
        v[i] = values_of(ctx, x[i]);
        total += lengths[i];
    }
    lks_tensor *y = lks_cat(n, x, dim - 3);
    int good = y && lks_dtype_of(y) == want;
    if (!good)
        diag("%s, dtype %s for %s", lks_error(ctx), lks_dtype_name(y ? lks_dtype_of(y) : -1), lks_dtype_name(want));
    shape[dim] = total;
    for (int d = 0; d < 3 && good; d++) good = lks_dim(y, d) == shape[d];
    double *got = good ? values_of(ctx, y) : NULL;
    double tol = want == LKS_F16 ? 5e-4 : want == LKS_BF16 ? 4e-3 : 0;
    for (int64_t a = 0; got && good && a < shape[0]; a++)
        for (int64_t b = 0; b < shape[1]; b++)
            for (int64_t c = 0; c < shape[2]; c++) {
                int64_t at[3] = {a, b, c};
                int i = 0;
                while (at[dim] >= lengths[i]) at[dim] -= lengths[i++];
                int64_t s[3] = {3, 4, 50};
                s[dim] = lengths[i];
                double is = got[(a * shape[1] + b) * shape[2] + c], must = v[i][(at[0] * s[1] + at[1]) * s[2] + at[2]];
                if (fabs(is - must) > tol * fabs(must) && good) {
                    diag("[%d,%d,%d] is %g, not %g", (int)a, (int)b, (int)c, is, must);
                    good = 0;
                }
            }
    for (int i = 0; i < n; i++) free(v[i]);
    free(got);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void cats(lks_context *ctx, const char *name)
{
    static const struct { int n; lks_dtype in[4], out; const char *text; } cases[] = {
        {3, {LKS_F32, LKS_F32, LKS_F32}, LKS_F32, "float32"},
        {3, {LKS_BF16, LKS_BF16, LKS_BF16}, LKS_BF16, "bfloat16"},
        {3, {LKS_F64, LKS_F16, LKS_F32}, LKS_F64, "float64, float16, float32"},
        {3, {LKS_F16, LKS_BF16, LKS_F16}, LKS_F32, "float16, bfloat16"},
        {3, {LKS_F16, LKS_I64, LKS_BOOL}, LKS_F16, "float16, int64, bool"},
        {3, {LKS_I32, LKS_BOOL, LKS_I64}, LKS_I64, "int32, bool, int64"},
        {3, {LKS_U8, LKS_U8, LKS_BOOL}, LKS_U8, "uint8, bool"},
        {2, {LKS_BOOL, LKS_BOOL}, LKS_BOOL, "bool"},
        {1, {LKS_F32}, LKS_F32, "one"},
        {3, {LKS_BF16, LKS_F32, LKS_BF16}, LKS_F32, "bfloat16, float32"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int good = 1;
        for (int dim = 0; dim < 3; dim++)
            for (int layout = 0; layout < 3; layout++)
                if (!cat_case(ctx, cases[c].n, cases[c].in, cases[c].out, dim, layout)) {
                    diag("dim %d layout %d", dim, layout);
                    good = 0;
                }
        ok(good, "cat %s %s", name, cases[c].text);
    }
}

static lks_tensor *join(void *user, lks_tensor *const *inputs, int n)
{
    return lks_cat(n, inputs, *(int *)user);
}

static void cat_more(lks_context *ctx)
{
    int64_t none[1] = {0}, s[2] = {2, 3}, t[2] = {2, 1}, u[2] = {3, 3};
    lks_scope_begin(ctx);
    lks_tensor *a = noise_of(ctx, LKS_F32, 2, s, 1, 1), *e = lks_zeros(ctx, LKS_F32, 1, none);
    lks_tensor *in[3] = {e, a, a}, *y = lks_cat(3, in, 1);
    ok(y && lks_dim(y, 0) == 2 && lks_dim(y, 1) == 6, "an empty 1-D input is passed over: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_tensor *empties[2] = {e, e};
    y = lks_cat(2, empties, 0);
    ok(y && lks_ndim(y) == 1 && lks_numel(y) == 0, "nothing and nothing");
    in[0] = lks_zeros(ctx, LKS_F32, 2, u);
    ok(!lks_cat(2, in, 1) && lks_error_code(ctx) == LKS_ERR_SHAPE, "shapes that do not fit: %s", lks_error(ctx));
    lks_error_clear(ctx);
    in[0] = lks_zeros(ctx, LKS_F32, 0, NULL);
    ok(!lks_cat(2, in, 0) && lks_error_code(ctx) != LKS_OK, "a 0-dim input: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_tensor *check[3] = {noise_of(ctx, LKS_F64, 2, s, 1, 2), noise_of(ctx, LKS_F64, 2, t, 1, 3),
                            noise_of(ctx, LKS_F64, 2, s, 1, 4)};
    int dim = 1;
    double worst = 0;
    ok(lks_gradcheck(ctx, join, &dim, 3, check, 1e-6, 1e-7, &worst) == LKS_OK, "gradient of cat: %s", lks_error(ctx));
    lks_error_clear(ctx);
    /* Many inputs. */
    lks_tensor *many[200];
    double want[200];
    int64_t one[1] = {1};
    for (int i = 0; i < 200; i++) {
        want[i] = i;
        many[i] = lks_full(ctx, LKS_F32, 1, one, i);
    }
    ok(close_to(ctx, lks_cat(200, many, 0), want, 200, 0), "200 inputs");
    lks_scope_end(ctx);
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
        embeddings(ctx, name);
        cats(ctx, name);
        cat_more(ctx);
        if (i < 2) wrong(ctx);
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    bits();
    MPI_Finalize();
    return done();
}
