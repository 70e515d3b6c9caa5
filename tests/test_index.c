/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_index.c - embedding, cat, and what picks, places, cuts, sorts and measures, against plain loops: dtypes,
 * layouts, repeated and wrong indices, promotion, empty inputs, thread counts, edge values, policies.
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

/* --- along a dim: gather, scatter, scatter_add, slices --- */

enum { GATHER, SCATTER, SCATTER_ADD, SELECT, INDEX_COPY, INDEX_ADD, FORMS };
static const char *const form_names[FORMS] = {"gather", "scatter", "scatter_add", "index_select", "index_copy",
                                              "index_add"};
static const lks_dtype all_dtypes[8] = {LKS_F64, LKS_F32, LKS_F16, LKS_BF16, LKS_I64, LKS_I32, LKS_U8, LKS_BOOL};

/* Small whole numbers: sums of them are exact in every dtype. */
static lks_tensor *whole_of(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, uint64_t seed)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    double *v = noise(n, 1, seed);
    for (int64_t i = 0; i < n; i++) v[i] = dtype == LKS_BOOL ? v[i] > 0.5 : floor(fabs(v[i]) * 4);
    lks_tensor *t = tensor_of(ctx, dtype, ndim, shape, v);
    free(v);
    return t;
}

static lks_tensor *indices_of(lks_context *ctx, int narrow, int ndim, const int64_t *shape, int64_t below,
                               uint64_t seed)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    int64_t *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = (int64_t)(((uint64_t)i * 2654435761u + seed * 977) >> 7) % below;
    lks_tensor *t = lks_from_host(ctx, LKS_I64, ndim, shape, v);
    free(v);
    return narrow ? lks_to(t, LKS_I32) : t;
}

static int along_case(lks_context *ctx, int form, lks_dtype dtype, int dim, int layout, const int64_t *big)
{
    int64_t small[3], n = 1, total = 1, m;
    int slices = form >= SELECT, good;
    lks_scope_begin(ctx);
    for (int d = 0; d < 3; d++) small[d] = d == dim ? big[d] + 4 : slices ? big[d] : big[d] - 1;
    m = small[dim];
    lks_tensor *x = whole_of(ctx, dtype, 3, big, 1), *src = whole_of(ctx, dtype, 3, small, 2);
    lks_tensor *index = slices ? indices_of(ctx, layout & 1, 1, &m, big[dim], 3)
                               : indices_of(ctx, layout & 1, 3, small, big[dim], 3);
    if (layout) x = reversed(x), src = reversed(src);
    if (layout == 2 && !slices) index = reversed(index);
    double *vx = values_of(ctx, x), *vs = values_of(ctx, src), *vi = values_of(ctx, index);
    for (int d = 0; d < 3; d++) n *= small[d], total *= big[d];
    double *want = calloc((size_t)(n > total ? n : total) + 1, sizeof *want);
    if (form != GATHER && form != SELECT) memcpy(want, vx, (size_t)total * sizeof *want);
    for (int64_t i = 0; i < n; i++) {
        int64_t at[3] = {i / (small[1] * small[2]), i / small[2] % small[1], i % small[2]};
        at[dim] = (int64_t)vi[slices ? at[dim] : i];
        int64_t to = (at[0] * big[1] + at[1]) * big[2] + at[2];
        if (form == GATHER || form == SELECT) want[i] = vx[to];
        else if (form == SCATTER || form == INDEX_COPY) want[to] = vs[i];
        else want[to] = dtype == LKS_BOOL ? want[to] + vs[i] > 0 : want[to] + vs[i];
    }
    lks_tensor *y = form == GATHER      ? lks_gather(x, dim, index)
                    : form == SCATTER   ? lks_scatter(x, dim - 3, index, src)
                    : form == SCATTER_ADD ? lks_scatter_add(x, dim, index, src)
                    : form == SELECT    ? lks_index_select(x, dim - 3, index)
                    : form == INDEX_COPY ? lks_index_copy(x, dim, index, src)
                                         : lks_index_add(x, dim, index, src, 1);
    good = y && lks_dtype_of(y) == dtype && close_to(ctx, y, want, form == GATHER || form == SELECT ? n : total, 0) &&
           close_to(ctx, x, vx, total, 0);
    if (!good) diag("dim %d layout %d: %s", dim, layout, lks_error(ctx));
    free(vx), free(vs), free(vi), free(want);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void along_a_dim(lks_context *ctx, const char *name)
{
    static const int64_t sizes[][3] = {{4, 5, 6}, {3, 2, 40}, {9, 3, 600}};
    for (int form = 0; form < FORMS; form++) {
        int good = 1;
        for (int t = 0; t < 8; t++)
            for (int dim = 0; dim < 3; dim++)
                for (int layout = 0; layout < 3; layout++)
                    for (int s = 0; s < 3; s++)
                        if (!along_case(ctx, form, all_dtypes[t], dim, layout, sizes[s])) {
                            diag("%s size %d", lks_dtype_name(all_dtypes[t]), s);
                            good = 0;
                        }
        ok(good, "%s %s: every dtype, dim and layout", form_names[form], name);
    }
}

/* Many small terms in one place of a reduced float: summed in float32, rounded once. */
static void long_sums(lks_context *ctx)
{
    int64_t n = 4096, one = 1, row[2] = {4096, 9}, few[2] = {1, 9};
    lks_scope_begin(ctx);
    lks_tensor *index = lks_zeros(ctx, LKS_I64, 1, &n), *wide = lks_zeros(ctx, LKS_I64, 2, row);
    lks_tensor *term = lks_full(ctx, LKS_BF16, 2, row, 1), *at = NULL;
    double want[9];
    for (int i = 0; i < 9; i++) want[i] = 4096;
    ok(close_to(ctx, lks_scatter_add(lks_zeros(ctx, LKS_BF16, 1, &one), 0, index, lks_full(ctx, LKS_BF16, 1, &n, 1)),
                want, 1, 0) &&
           close_to(ctx, lks_scatter_add(lks_zeros(ctx, LKS_BF16, 2, few), 0, wide, term), want, 9, 0) &&
           close_to(ctx, lks_index_add(lks_zeros(ctx, LKS_BF16, 2, few), 0, index, term, 1), want, 9, 0) &&
           close_to(ctx, lks_index_put(lks_zeros(ctx, LKS_BF16, 2, few), 1, (at = index, &at), term, 1), want, 9, 0),
       "4096 ones add up to 4096 in bfloat16");
    lks_scope_end(ctx);
}

/* --- several indices --- */

static int same(lks_context *ctx, lks_tensor *y, lks_tensor *want, const char *what)
{
    double *v = values_of(ctx, want);
    int good = y && want && lks_ndim(y) == lks_ndim(want) && lks_dtype_of(y) == lks_dtype_of(want);
    for (int d = 0; good && d < lks_ndim(y); d++) good = lks_dim(y, d) == lks_dim(want, d);
    good = good && close_to(ctx, y, v, lks_numel(want), 0);
    if (!good) diag("%s: %s", what, lks_error(ctx));
    free(v);
    lks_error_clear(ctx);
    return good;
}

static void several_indices(lks_context *ctx, const char *name)
{
    int good = 1;
    for (int t = 0; t < 8; t++)
        for (int layout = 0; layout < 2; layout++) {
            int64_t s[3] = {3, 4, 5}, b[2] = {2, 1}, c[1] = {3};
            lks_scope_begin(ctx);
            lks_tensor *x = whole_of(ctx, all_dtypes[t], 3, s, 1), *none = LKS_NONE;
            if (layout) x = reversed(x);
            int64_t vi[2] = {-1, 0}, vj[3] = {2, -4, 2};
            lks_tensor *i = lks_from_host(ctx, LKS_I64, 2, b, vi), *j = lks_from_host(ctx, LKS_I64, 1, c, vj);
            j = lks_to(j, LKS_I32);
            double *vx = values_of(ctx, x), want[120], put[60];
            /* x[i, j], x[i, :, j], x[:, i, j] */
            for (int form = 0; form < 3; form++) {
                lks_tensor *list[3] = {form == 2 ? none : i, form == 0 ? j : form == 1 ? none : i, form ? j : none};
                int64_t shape[3] = {2, 3, form == 0 ? 5 : form == 1 ? 4 : 0}, inner = form == 2 ? 1 : shape[2];
                int64_t front[3] = {3, 2, 3};
                int64_t lead = form == 2 ? 3 : 1, k = 0;
                memcpy(put, vx, sizeof put);
                for (int64_t a = 0; a < lead; a++)
                    for (int p = 0; p < 2; p++)
                        for (int q = 0; q < 3; q++)
                            for (int64_t r = 0; r < inner; r++) {
                                int64_t size_i = form == 2 ? 4 : 3, size_j = form == 0 ? 4 : 5;
                                int64_t ii = (vi[p] + size_i) % size_i, jj = (vj[q] + size_j) % size_j, at;
                                if (form == 0) at = (ii * 4 + jj) * 5 + r;
                                else if (form == 1) at = (ii * 4 + r) * 5 + jj;
                                else at = (a * 4 + ii) * 5 + jj;
                                put[at] = all_dtypes[t] == LKS_BOOL ? 1 : put[at] + 1;
                                want[k++] = vx[at];
                            }
                lks_tensor *y = lks_index(x, form == 0 ? 2 : 3, list);
                good &= same(ctx, y, tensor_of(ctx, all_dtypes[t], 3, form == 2 ? front : shape, want), "index");
                y = lks_index_put(x, form == 0 ? 2 : 3, list, lks_full(ctx, all_dtypes[t], 0, NULL, 1), 1);
                good &= same(ctx, y, tensor_of(ctx, all_dtypes[t], 3, s, put), "index_put, added");
                /* what was picked, put back, changes nothing */
                y = lks_index_put(x, form == 0 ? 2 : 3, list, lks_index(x, form == 0 ? 2 : 3, list), 0);
                good &= same(ctx, y, x, "index_put of index");
            }
            free(vx);
            lks_scope_end(ctx);
        }
    ok(good, "index, index_put %s: side by side, apart, behind; negative numbers", name);
    int64_t n[1] = {5}, m[1] = {4};
    lks_scope_begin(ctx);
    int64_t where[4] = {3, 0, 3, 3};
    double values[4] = {1, 2, 3, 4}, want[5] = {2, 0, 0, 4, 0}, number[5] = {7, 0, 0, 7, 0};
    lks_tensor *i = lks_from_host(ctx, LKS_I64, 1, m, where);
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 1, n), *four = tensor_of(ctx, LKS_F32, 1, m, values);
    ok(close_to(ctx, lks_index_put(x, 1, &i, four, 0), want, 5, 0) &&
           close_to(ctx, lks_scatter(x, 0, i, four), want, 5, 0),
       "of several writes to one place the last wins");
    lks_tensor *hot = lks_one_hot(i, 5);
    double *v = values_of(ctx, hot);
    int fits = hot && lks_ndim(hot) == 2 && lks_dtype_of(hot) == LKS_I64;
    for (int p = 0; fits && p < 20; p++) fits = v[p] == (p % 5 == where[p / 5]);
    free(v);
    ok(fits, "one_hot");
    ok(close_to(ctx, lks_scatter_value(x, 0, i, 7), number, 5, 0), "scatter of a number");
    lks_scope_end(ctx);
}

static void out_of_range(lks_context *ctx)
{
    int64_t s[2] = {3, 4}, n[1] = {2}, m[2] = {2, 4}, bad[2] = {0, 3}, low[2] = {-4, 0}, neg[2] = {0, -1};
    lks_scope_begin(ctx);
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 2, s), *src = lks_zeros(ctx, LKS_F32, 2, m);
    lks_tensor *i = lks_from_host(ctx, LKS_I64, 1, n, bad), *j = lks_from_host(ctx, LKS_I64, 1, n, low);
    lks_tensor *k = lks_from_host(ctx, LKS_I64, 1, n, neg), *wide = lks_expand(lks_unsqueeze(i, 1), 2, m);
    lks_tensor *tall = lks_contiguous(wide);
#define REFUSED(call, text)                                                                                    \
    do {                                                                                                       \
        lks_tensor *t_ = call;                                                                                 \
        ok(!t_ && lks_error_code(ctx) == LKS_ERR_ARGUMENT && strstr(lks_error(ctx), text), "%s: %s", #call,    \
           lks_error(ctx));                                                                                    \
        lks_error_clear(ctx);                                                                                  \
    } while (0)
    REFUSED(lks_gather(x, 0, tall), "index 3 at place 4 is outside [0, 3)");
    REFUSED(lks_gather(x, 0, wide), "index 3 at place 1");
    REFUSED(lks_scatter(x, 0, tall, src), "index 3");
    REFUSED(lks_scatter_add(x, 0, wide, src), "index 3");
    REFUSED(lks_index_select(x, 0, k), "index -1 at place 1");
    REFUSED(lks_index_copy(x, 0, i, src), "index 3");
    REFUSED(lks_index(x, 1, &i), "index 3 at place 1 is outside [-3, 3)");
    REFUSED(lks_index_put(x, 1, &j, lks_zeros(ctx, LKS_F32, 0, NULL), 1), "index -4 at place 0");
    REFUSED(lks_one_hot(i, 3), "index 3");
    REFUSED(lks_gather(lks_zeros(ctx, LKS_F32, 2, (int64_t[]){0, 4}), 0, tall), "outside [0, 0)");
    REFUSED(lks_index(x, 3, (lks_tensor *[]){i, i, i}), "3 indices");
#undef REFUSED
    ok(!lks_scatter_add(x, 0, tall, lks_zeros(ctx, LKS_F64, 2, m)) && lks_error_code(ctx) == LKS_ERR_DTYPE,
       "src of another dtype: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_gather(x, 1, lks_zeros(ctx, LKS_I64, 2, (int64_t[]){4, 1})) && lks_error_code(ctx) == LKS_ERR_SHAPE,
       "an index that is too large: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

/* --- parts --- */

static void parts(lks_context *ctx, const char *name)
{
    int good = 1;
    for (int t = 0; t < 8; t++)
        for (int layout = 0; layout < 2; layout++) {
            int64_t s[3] = {2, 4, 5}, p[4] = {2, -1, -1, 3}, ps[3] = {2, 6, 6};
            lks_dtype d = all_dtypes[t];
            lks_scope_begin(ctx);
            lks_tensor *x = whole_of(ctx, d, 3, s, 5);
            if (layout) x = reversed(x);
            double *v = values_of(ctx, x), w[200];
            for (int i = 0; i < 72; i++) {
                int a = i / 36, b = i / 6 % 6 + 1, c = i % 6 - 2;
                w[i] = b >= 4 || c < 0 || c >= 4 ? 1 : v[(a * 4 + b) * 5 + c];
            }
            good &= same(ctx, lks_pad(x, 4, p, 1), tensor_of(ctx, d, 3, ps, w), "pad");
            for (int k = -6; k < 7; k++)
                for (int upper = 0; upper < 2; upper++) {
                    for (int i = 0; i < 40; i++) {
                        int r = i / 5 % 4, c = i % 5;
                        w[i] = (upper ? c - r >= k : c - r <= k) ? v[i] : 0;
                    }
                    lks_tensor *y = upper ? lks_triu(x, k) : lks_tril(x, k);
                    good &= same(ctx, y, tensor_of(ctx, d, 3, s, w), "triu, tril");
                }
            for (int mask = 0; mask < 8; mask++) {
                int dims[3], n = 0;
                for (int e = 0; e < 3; e++)
                    if (mask >> e & 1) {
                        dims[n] = e - (n ? 3 : 0);
                        n++;
                    }
                for (int i = 0; i < 40; i++) {
                    int a = i / 20, b = i / 5 % 4, c = i % 5;
                    if (mask & 1) a = 1 - a;
                    if (mask & 2) b = 3 - b;
                    if (mask & 4) c = 4 - c;
                    w[i] = v[(a * 4 + b) * 5 + c];
                }
                good &= same(ctx, lks_flip(x, n, dims), tensor_of(ctx, d, 3, s, w), "flip");
            }
            for (int i = 0; i < 40; i++) w[i] = v[(i / 20 * 4 + (i / 5 % 4 + 3) % 4) * 5 + (i % 5 + 7) % 5];
            good &= same(ctx, lks_roll(x, 2, (int64_t[]){5, -2}, (int[]){1, -1}), tensor_of(ctx, d, 3, s, w), "roll");
            int64_t twice[3] = {2, 8, 5};
            for (int i = 0; i < 80; i++) w[i] = v[(i / 40 * 4 + i / 5 % 8 % 4) * 5 + i % 5];
            good &= same(ctx, lks_repeat(x, 3, (int64_t[]){1, 2, 1}), tensor_of(ctx, d, 3, twice, w), "repeat");
            int64_t ds[2] = {2, 3};
            for (int i = 0; i < 6; i++) w[i] = v[(i / 3 * 4 + i % 3) * 5 + i % 3 + 2];
            lks_tensor *line = lks_diagonal(x, 2, 1, -1);
            good &= same(ctx, line, tensor_of(ctx, d, 2, ds, w), "diagonal");
            good &= same(ctx, lks_diagonal(lks_diag_embed(line, -2, -1, 0), -2, 2, 0), tensor_of(ctx, d, 2, ds, w),
                         "diagonal of diag_embed");
            lks_tensor *m = lks_select(x, 0, 1);
            double sum = 0;
            for (int i = 0; i < 4; i++) sum += v[20 + i * 6];
            lks_dtype td = lks_dtype_is_float(d) ? d : LKS_I64;
            good &= same(ctx, lks_trace(m), tensor_of(ctx, td, 0, NULL, &sum), "trace");
            good &= same(ctx, lks_diag(lks_diag(lks_select(m, 0, 0), 1), 1), lks_select(m, 0, 0), "diag of diag");
            lks_tensor *pair[2] = {x, x};
            lks_tensor *both = lks_stack(2, pair, -2);
            good &= both && lks_ndim(both) == 4 && lks_dim(both, 2) == 2 &&
                    same(ctx, lks_select(both, 2, 1), lks_clone(x), "stack");
            lks_tensor *piece[4];
            good &= lks_split(x, 3, 2, 4, piece) == 2 && lks_dim(piece[1], 2) == 2 && lks_chunk(x, 3, 2, piece) == 3 &&
                    lks_dim(piece[2], 2) == 1 && lks_split_sizes(x, 4, (int64_t[]){0, 1, 1, 2}, 1, piece) == 4 &&
                    lks_dim(piece[0], 1) == 0 && same(ctx, lks_cat(4, piece, 1), lks_clone(x), "pieces of uneven size");
            if (!good) diag("%s layout %d", lks_dtype_name(d), layout);
            free(v);
            lks_scope_end(ctx);
        }
    ok(good, "pad, triu, tril, flip, roll, repeat, diagonals, trace, stack, pieces %s", name);
    lks_scope_begin(ctx);
    int64_t s[2] = {2, 3};
    double a[6] = {1, 2, 3, 0, -1, 2}, b[3] = {2, 0, 1}, c[6] = {2, 5, -4, -1, 4, 2}, nan[6] = {1, NAN, 3, NAN, -1, 2};
    double kept[6] = {1, 0, 3, 0, -1, 2}, filled[6] = {1, 9, 3, 9, -1, 2};
    good = 1;
    for (int t = 0; t < 6; t++)
        good &= close_to(ctx, lks_cross(tensor_of(ctx, all_dtypes[t], 2, s, a),
                                        tensor_of(ctx, all_dtypes[t], 1, s + 1, b), -1), c, 6, 0);
    ok(good, "cross %s", name);
    lks_tensor *n = tensor_of(ctx, LKS_F32, 2, s, nan), *isnan_ = lks_ne(n, n);
    ok(close_to(ctx, lks_masked_fill(n, isnan_, 9), filled, 6, 0) &&
           close_to(ctx, lks_where_scalar(lks_eq(n, n), n, 0), kept, 6, 0),
       "masked_fill and where with a number");
    ok(lks_split_sizes(n, 2, (int64_t[]){1, 1}, 1, (lks_tensor *[2]){0}) == LKS_ERR_SHAPE &&
           strstr(lks_error(ctx), "add up"),
       "sizes that do not add up: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

/* --- sorting --- */

static int after(double x, double y) { return isnan(x) ? !isnan(y) : !isnan(y) && x > y; }

static int sort_case(lks_context *ctx, lks_dtype dtype, int64_t n, int64_t k, int dim, int falling, int layout)
{
    int64_t s[2] = {dim ? 3 : n, dim ? n : 3}, count = 3 * n;
    lks_scope_begin(ctx);
    double *v = noise(count, n > 100 ? 200 : 4, (uint64_t)n);
    for (int64_t i = 0; i < count; i++) {
        v[i] = dtype == LKS_U8 ? fabs(round(v[i])) : dtype == LKS_BOOL ? v[i] > 0 : round(v[i]);
        if (lks_dtype_is_float(dtype) && i % 7 == 3) v[i] = i % 2 ? NAN : i % 4 ? -INFINITY : -0.0;
    }
    lks_tensor *x = tensor_of(ctx, dtype, 2, s, v), *values, *indices;
    if (layout) x = reversed(x);
    lks_status st = k < 0 ? lks_sort(x, dim, falling, &values, &indices)
                          : lks_topk(x, k, dim, falling, &values, &indices);
    int good = st == LKS_OK;
    double *got = good ? values_of(ctx, values) : NULL, *at = good ? values_of(ctx, indices) : NULL;
    double *vx = values_of(ctx, x);
    int64_t kept = k < 0 ? n : k;
    for (int line = 0; good && line < 3; line++) {
        char *seen = calloc((size_t)n + 1, 1);
        int64_t step = dim ? 1 : 3, in = dim ? line * n : line, out = dim ? line * kept : line;
        for (int64_t i = 0; good && i < kept; i++) {
            int64_t index = (int64_t)at[out + i * step];
            good = index >= 0 && index < n && !seen[index]++;
            double x1 = good ? vx[in + index * step] : 0, y1 = got[out + i * step];
            good = good && (memcmp(&x1, &y1, sizeof x1) == 0 || (isnan(x1) && isnan(y1)));
            if (good && i > 0) {
                int64_t before = (int64_t)at[out + (i - 1) * step];
                double x0 = vx[in + before * step];
                good = falling ? !after(x1, x0) : !after(x0, x1);
                if (!after(x0, x1) && !after(x1, x0)) good = good && before < index; /* stable */
            }
        }
        if (good && kept) { /* none that was left comes before the last taken */
            int64_t last = (int64_t)at[out + (kept - 1) * step];
            double x1 = vx[in + last * step];
            for (int64_t i = 0; good && i < n; i++)
                if (!seen[i]) {
                    double y1 = vx[in + i * step];
                    good = falling ? !after(y1, x1) : !after(x1, y1);
                    if (!after(x1, y1) && !after(y1, x1)) good = good && last < i;
                }
        }
        free(seen);
    }
    if (!good)
        diag("%s n %d k %d dim %d falling %d: %s", lks_dtype_name(dtype), (int)n, (int)k, dim, falling, lks_error(ctx));
    free(v), free(got), free(at), free(vx);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

static void sorts(lks_context *ctx, const char *name)
{
    static const int64_t cases[][2] = {{1, -1}, {7, -1}, {24, -1}, {25, -1}, {300, -1}, {700, -1}, {9, 4}, {300, 0},
                                       {300, 1}, {300, 30}, {300, 299}, {700, 60}};
    int good = 1;
    for (int t = 0; t < 8; t++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int how = 0; how < 8; how++)
                good &= sort_case(ctx, all_dtypes[t], cases[c][0], cases[c][1], how & 1, how >> 1 & 1, how >> 2);
    ok(good, "sort and topk %s: stable, NaN the largest, -0 like 0, both ways", name);
}

/* --- quantiles --- */

static double quantile_of(const double *sorted, int64_t n, double q, int mode)
{
    double rank = q * (double)(n - 1), low = floor(rank), part = rank - low;
    double a = sorted[(int64_t)low], b = sorted[(int64_t)ceil(rank)];
    if (mode == LKS_QUANTILE_LOWER) return a;
    if (mode == LKS_QUANTILE_HIGHER) return b;
    if (mode == LKS_QUANTILE_NEAREST) return sorted[(int64_t)nearbyint(rank)];
    if (mode == LKS_QUANTILE_MIDPOINT) part = 0.5;
    return a == b ? a : a + part * (b - a);
}

static int rising(const void *x, const void *y) { return *(const double *)x < *(const double *)y ? -1 : 1; }

static void quantile_values(lks_context *ctx, const char *name)
{
    static const double q[5] = {0, 0.125, 0.5, 0.77, 1};
    int64_t s[3] = {2, 9, 3};
    int good = 1;
    lks_scope_begin(ctx);
    for (int t = 0; t < 4; t++)
        for (int mode = 0; mode < 5; mode++)
            for (int skip = 0; skip < 2; skip++)
                for (int keep = 0; keep < 2; keep++) {
                    double *v = noise(54, 3, 8), want[30];
                    v[4] = NAN, v[5] = INFINITY, v[8] = INFINITY, v[11] = INFINITY;
                    for (int i = 0; i < 9; i++) v[27 + 3 * i] = NAN; /* a line of nothing else */
                    lks_tensor *x = tensor_of(ctx, array_floats[t], 3, s, v);
                    free(v);
                    v = values_of(ctx, x);
                    for (int line = 0; line < 6; line++) {
                        double sorted[9];
                        int64_t n = 0;
                        for (int i = 0; i < 9; i++) {
                            double e = v[(line / 3 * 9 + i) * 3 + line % 3];
                            if (!isnan(e)) sorted[n++] = e;
                        }
                        qsort(sorted, (size_t)n, sizeof *sorted, rising);
                        for (int k = 0; k < 5; k++)
                            want[k * 6 + line] = n == 0 || (!skip && n < 9) ? NAN : quantile_of(sorted, n, q[k], mode);
                    }
                    lks_tensor *(*f)(lks_tensor *, int, const double *, int, int, int) = skip ? lks_nanquantile
                                                                                              : lks_quantile;
                    lks_tensor *y = f(x, 5, q, -2, keep, mode);
                    int fits = y && lks_dtype_of(y) == array_floats[t] && lks_ndim(y) == (keep ? 4 : 3);
                    fits = fits && lks_dim(y, 0) == 5 &&
                           close_to(ctx, y, want, 30, t == 0 ? 1e-15 : tolerance_of(array_floats[t]));
                    y = f(x, 1, q + 2, 1, keep, mode);
                    fits = fits && y && lks_ndim(y) == (keep ? 3 : 2) &&
                           close_to(ctx, y, want + 12, 6, t == 0 ? 1e-15 : tolerance_of(array_floats[t]));
                    if (!fits)
                        diag("%s mode %d skip %d keep %d: %s", lks_dtype_name(array_floats[t]), mode, skip, keep,
                             lks_error(ctx));
                    lks_error_clear(ctx);
                    good &= fits;
                    free(v);
                }
    ok(good, "quantile and nanquantile %s: five interpolations, NaN, infinities", name);
    lks_tensor *empty = lks_zeros(ctx, LKS_F32, 1, (int64_t[]){0}), *two = lks_ones(ctx, LKS_F32, 1, (int64_t[]){2});
    double over = 1.5;
    ok(!lks_quantile(empty, 1, q, 0, 0, 0) && lks_error_code(ctx) == LKS_ERR_SHAPE, "of nothing: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_quantile(two, 1, &over, 0, 0, 0) && lks_error_code(ctx) == LKS_ERR_ARGUMENT, "q 1.5: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

/* --- distances --- */

static double distance_of(const double *a, const double *b, int64_t m, double p)
{
    double sum = 0;
    for (int64_t i = 0; i < m; i++) {
        double d = fabs(a[i] - b[i]);
        sum = p == 0 ? sum + (d != 0) : isinf(p) ? (d > sum || isnan(d) ? d : sum) : sum + pow(d, p);
    }
    return p == 0 || isinf(p) ? sum : pow(sum, 1 / p);
}

static void distances(lks_context *ctx, const char *name)
{
    static const double ps[] = {0, 0.5, 1, 2, 3, INFINITY};
    static const int64_t sizes[][3] = {{5, 7, 3}, {70, 130, 4}, {3, 2, 700}, {1, 1, 1}, {0, 3, 2}, {65, 1, 0}};
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++)
            for (int k = 0; k < 6; k++) {
                int64_t n = sizes[c][0], r = sizes[c][1], m = sizes[c][2], sa[3] = {2, n, m}, sb[2] = {r, m};
                if (array_floats[t] == LKS_F16 && m == 700 && ps[k] == 0.5) continue; /* beyond float16 */
                lks_scope_begin(ctx);
                lks_tensor *a = noise_of(ctx, array_floats[t], 3, sa, 1, 1);
                lks_tensor *b = noise_of(ctx, array_floats[t], 2, sb, 1, 2);
                if (k % 2) a = reversed(a), b = reversed(b);
                double *va = values_of(ctx, a), *vb = values_of(ctx, b);
                double *want = calloc((size_t)(2 * n * (r + n)) + 1, sizeof *want);
                for (int64_t i = 0; i < 2 * n; i++)
                    for (int64_t j = 0; j < r; j++) want[i * r + j] = distance_of(va + i * m, vb + j * m, m, ps[k]);
                double tol = tolerance_of(array_floats[t]) * (ps[k] < 1 ? 20 : 1);
                good &= close_to(ctx, lks_cdist(a, b, ps[k]), want, 2 * n * r, tol);
                int64_t at = 0;
                for (int64_t i = 0; i < n; i++)
                    for (int64_t j = i + 1; j < n; j++) want[at++] = distance_of(va + i * m, va + j * m, m, ps[k]);
                good &= close_to(ctx, lks_pdist(lks_select(a, 0, 0), ps[k]), want, at, tol);
                if (!good) diag("case %d p %g: %s", (int)c, ps[k], lks_error(ctx));
                lks_error_clear(ctx);
                free(va), free(vb), free(want);
                lks_scope_end(ctx);
            }
        ok(good, "cdist, pdist %s %s: p 0, 0.5, 1, 2, 3, inf", name, lks_dtype_name(array_floats[t]));
    }
    lks_scope_begin(ctx);
    int64_t s[2] = {30, 40};
    double *v = noise(1200, 1, 3), want = 0.5, nan = NAN;
    for (int i = 0; i < 1200; i++) v[i] = i < 40 ? 4096 + v[i] : v[i % 40];
    v[40] += 0.5;
    lks_tensor *x = tensor_of(ctx, LKS_F32, 2, s, v), *d = lks_cdist(x, x, 2);
    free(v);
    ok(close_to(ctx, lks_select(lks_select(d, 0, 0), 0, 1), &want, 1, 1e-3), "near rows far from 0 do not cancel");
    int good = 1;
    for (int k = 0; k < 6; k++) {
        lks_tensor *same_rows = lks_ones(ctx, LKS_F32, 2, (int64_t[]){3, 2});
        lks_tensor *other = lks_ones(ctx, LKS_F32, 2, (int64_t[]){2, 2});
        double zero[6] = {0};
        lks_set_requires_grad(same_rows, 1);
        lks_tensor *sum = lks_sum(lks_pdist(same_rows, ps[k]), 0, NULL, 0, LKS_DTYPE_NONE);
        good &= lks_backward(sum, LKS_NONE, 0) == LKS_OK &&
                close_to(ctx, lks_grad(same_rows), zero, 6, 0);
        lks_set_requires_grad(other, 1);
        sum = lks_sum(lks_cdist(other, same_rows, ps[k]), 0, NULL, 0, LKS_DTYPE_NONE);
        good &= lks_backward(sum, LKS_NONE, 0) == LKS_OK &&
                close_to(ctx, lks_grad(other), zero, 4, 0);
    }
    ok(good, "the gradient at distance 0 is 0: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_tensor *bad = lks_full(ctx, LKS_F32, 2, (int64_t[]){1, 2}, NAN);
    lks_tensor *fine = lks_ones(ctx, LKS_F32, 2, (int64_t[]){1, 2});
    good = 1;
    for (int k = 1; k < 6; k++) good &= close_to(ctx, lks_cdist(bad, fine, ps[k]), &nan, 1, 0);
    ok(good, "NaN in a row gives NaN");
    /* The largest difference is no number of the result's dtype: its gradient is there all the same. */
    for (int t = 2; t < 4; t++) {
        double left[2] = {1.5, 0.0625}, right[2] = {-2.01, 0};
        lks_tensor *from = tensor_of(ctx, array_floats[t], 2, (int64_t[]){1, 2}, left), *all[2] = {from}, *grad[2],
                   *both[2] = {from, tensor_of(ctx, array_floats[t], 2, (int64_t[]){1, 2}, right)};
        all[1] = both[1];
        lks_set_requires_grad(from, 1), lks_set_requires_grad(all[1], 1);
        ok(lks_gradients(lks_cdist(all[0], all[1], INFINITY), LKS_NONE, 2, all, 0, 0, grad) == LKS_OK &&
               close_to(ctx, grad[0], (double[]){1, 0}, 2, 0) && close_to(ctx, grad[1], (double[]){-1, 0}, 2, 0) &&
               lks_dtype_of(grad[0]) == array_floats[t],
           "%s: gradient of cdist, p inf", lks_dtype_name(array_floats[t]));
        ok(lks_gradients(lks_pdist(lks_cat(2, both, 0), INFINITY), LKS_NONE, 2, both, 0, 0, grad) == LKS_OK &&
               close_to(ctx, grad[0], (double[]){1, 0}, 2, 0) && close_to(ctx, grad[1], (double[]){-1, 0}, 2, 0),
           "%s: and of pdist", lks_dtype_name(array_floats[t]));
    }
    ok(!lks_cdist(fine, fine, -1) && lks_error_code(ctx) == LKS_ERR_ARGUMENT, "p -1: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

/* --- policies: names, and what regions make of mixed inputs --- */

static void policies(lks_context *ctx)
{
    enum { N = LKS_POLICY_NONE, L = LKS_POLICY_LOWER, F = LKS_POLICY_FP32, P = LKS_POLICY_PROMOTE };
    static const struct { const char *name; int cuda, cpu; } names[] = {
        {"mm", L, L}, {"bmm", L, L}, {"mv", L, N}, {"dot", P, N}, {"addmm", L, L}, {"baddbmm", L, L}, {"addbmm", L, L},
        {"addmv", L, N}, {"addr", L, N}, {"chain_matmul", L, -9}, {"multi_dot", L, -9}, {"linalg_vecdot", N, L},
        {"tensordot", P, N}, {"bilinear", P, N}, {"index_put", P, N}, {"scatter_add", P, N}, {"index_copy", N, P},
        {"stack", N, P}, {"cat", N, P}, {"cross", P, N}, {"trace", N, F}, {"quantile", N, F}, {"nanquantile", N, F},
        {"cdist", F, F}, {"pdist", F, N}};
    int good = 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int cuda = lks_autocast_policy(names[i].name, LKS_TABLE_CUDA);
        int cpu = lks_autocast_policy(names[i].name, LKS_TABLE_CPU);
        int fits = lks_op_lookup(names[i].name) >= 0 && cuda == names[i].cuda;
        fits = fits && (names[i].cpu == -9 || cpu == names[i].cpu);
        if (!fits) diag("%s: cuda %d cpu %d", names[i].name, cuda, cpu);
        good &= fits;
    }
    ok(good, "every name has its policy in both tables");
    good = 1;
    for (int table = 0; table < 2; table++) {
        lks_scope_begin(ctx);
        lks_autocast_set_table(ctx, table);
        int cuda = table == LKS_TABLE_CUDA;
        int64_t s[2] = {3, 3}, one[1] = {3};
        lks_tensor *f = noise_of(ctx, LKS_F32, 2, s, 1, 1), *h = noise_of(ctx, LKS_BF16, 2, s, 1, 2);
        lks_tensor *fv = noise_of(ctx, LKS_F32, 1, one, 1, 1), *hv = noise_of(ctx, LKS_BF16, 1, one, 1, 2);
        lks_tensor *i = lks_zeros(ctx, LKS_I64, 2, s), *iv = lks_zeros(ctx, LKS_I64, 1, one), *pair[2] = {f, h};
        double q = 0.5;
        lks_autocast_begin(ctx, LKS_BF16, 1, 1);
#define GIVES(call, want)                                                                                      \
    do {                                                                                                       \
        lks_tensor *t_ = call;                                                                                 \
        if (!t_ || lks_dtype_of(t_) != (want)) {                                                               \
            diag("table %d: %s is %s: %s", table, #call, t_ ? lks_dtype_name(lks_dtype_of(t_)) : "nothing",    \
                 lks_error(ctx));                                                                              \
            good = 0;                                                                                          \
        }                                                                                                      \
        lks_error_clear(ctx);                                                                                  \
    } while (0)
        GIVES(lks_mm(f, h), LKS_BF16);
        GIVES(lks_mv(f, fv), cuda ? LKS_BF16 : LKS_F32);
        GIVES(lks_addmv(fv, f, fv, 1, 1), cuda ? LKS_BF16 : LKS_F32);
        GIVES(lks_addr(f, fv, fv, 1, 1), cuda ? LKS_BF16 : LKS_F32);
        GIVES(lks_addmm(f, f, h, 1, 1), LKS_BF16);
        GIVES(lks_multi_dot(2, pair), LKS_BF16);
        GIVES(lks_linalg_vecdot(f, f, 0), cuda ? LKS_F32 : LKS_BF16);
        GIVES(lks_dot(fv, fv), LKS_F32);
        GIVES(lks_dot(hv, hv), LKS_BF16);
        GIVES(lks_tensordot(h, h, 1, NULL, NULL), LKS_BF16);
        GIVES(lks_trace(h), cuda ? LKS_BF16 : LKS_F32);
        GIVES(lks_quantile(h, 1, &q, 0, 0, LKS_QUANTILE_LINEAR), cuda ? LKS_BF16 : LKS_F32);
        GIVES(lks_cdist(h, h, 2), LKS_F32);
        GIVES(lks_pdist(h, 2), cuda ? LKS_F32 : LKS_BF16);
        GIVES(lks_stack(2, pair, 0), LKS_F32);
        if (cuda) { /* unlike dtypes: the widest */
            GIVES(lks_dot(fv, hv), LKS_F32);
            GIVES(lks_tensordot(h, f, 1, NULL, NULL), LKS_F32);
            GIVES(lks_bilinear(f, h, lks_unsqueeze(h, 0), LKS_NONE), LKS_F32);
            GIVES(lks_cross(h, f, 0), LKS_F32);
            GIVES(lks_scatter_add(h, 0, i, f), LKS_F32);
            GIVES(lks_index_put(h, 1, &iv, f, 1), LKS_F32);
        } else {
            GIVES(lks_index_copy(h, 0, iv, f), LKS_F32);
        }
        lks_autocast_end(ctx);
        lks_autocast_set_table(ctx, LKS_TABLE_CPU);
        lks_scope_end(ctx);
    }
    ok(good, "regions give the policies' dtypes");
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
        along_a_dim(ctx, name);
        several_indices(ctx, name);
        parts(ctx, name);
        sorts(ctx, name);
        quantile_values(ctx, name);
        distances(ctx, name);
        long_sums(ctx);
        policies(ctx);
        if (i < 2) wrong(ctx);
        if (i < 2) out_of_range(ctx);
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    bits();
    MPI_Finalize();
    return done();
}
