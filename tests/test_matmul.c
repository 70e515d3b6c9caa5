/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_matmul.c - matmul and linear on the CPU against plain loops in double: all ranks, layouts, dtypes, empty sizes,
 * bias, wider results, the same bits on any thread count, and the texts of what does not fit.
 */
#include "cpu/gemm.h"
#include "products.h"

static lksi_view without_vectors(const lksi_view *v, int left)
{
    lksi_view m = *v;
    if (v->ndim != 1) return m;
    m.ndim = 2;
    m.shape[left ? 1 : 0] = v->shape[0], m.stride[left ? 1 : 0] = v->stride[0];
    m.shape[left ? 0 : 1] = 1, m.stride[left ? 0 : 1] = 0;
    return m;
}

/* Elements of z that are not x @ y. */
static int64_t wrong_products(const lksi_view *x0, const lksi_view *y0, const lksi_view *z)
{
    lksi_view x = without_vectors(x0, 1), y = without_vectors(y0, 0);
    int64_t m = x.shape[x.ndim - 2], k = x.shape[x.ndim - 1], n = y.shape[y.ndim - 1], wrong = 0, total = lksi_numel(z);
    int nb = (x.ndim > y.ndim ? x.ndim : y.ndim) - 2;
    for (int64_t e = 0; e < total; e++) {
        int64_t j = e % n, i = e / n % m, rest = e / n / m;
        int64_t xo = i * x.stride[x.ndim - 2], yo = j * y.stride[y.ndim - 1];
        for (int d = nb - 1; d >= 0; d--) {
            int64_t size = z->shape[d], at = rest % size;
            int dx = d - (nb - (x.ndim - 2)), dy = d - (nb - (y.ndim - 2));
            rest /= size;
            if (dx >= 0 && x.shape[dx] > 1) xo += at * x.stride[dx];
            if (dy >= 0 && y.shape[dy] > 1) yo += at * y.stride[dy];
        }
        double sum = 0, size = 0;
        for (int64_t p = 0; p < k; p++) {
            double term = get_element(x.data, x.dtype, xo + p * x.stride[x.ndim - 1]) *
                          get_element(y.data, y.dtype, yo + p * y.stride[y.ndim - 2]);
            sum += term, size += fabs(term);
        }
        double got = element(z, e);
        if (!near_sum(got, sum, size, z->dtype == LKS_F32 && x.dtype == LKS_F64 ? LKS_F32 : z->dtype, (double)k)) {
            if (wrong++ == 0) diag("element %lld: got %.9g, want %.9g", (long long)e, got, sum);
        }
    }
    return wrong;
}

static int one_matmul(int dtype, int lx, int ly, int nx, const int64_t *sx, int ny, const int64_t *sy)
{
    lksi_view in[2] = {make(dtype, lx, nx, sx), make(dtype, ly, ny, sy)}, z;
    int good = call(LKSI_OP_matmul, 2, in, 1, &z, NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
    if (good) {
        good = wrong_products(&in[0], &in[1], &z) == 0;
        drop(&z);
    }
    if (!good) {
        char s[64], t[64];
        diag("%s %s layout %d @ %s layout %d: %s", lks_dtype_name(dtype), lksi_shape_text(&in[0], s, sizeof s), lx,
             lksi_shape_text(&in[1], t, sizeof t), ly, why);
    }
    drop(&in[0]), drop(&in[1]);
    return good;
}

static void shapes(const char *isa)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 4}, {5, 7, 6}, {6, 16, 8}, {7, 17, 33}, {12, 32, 64}, {13, 31,
                                                                                                                5},
                                       {64, 48, 100}, {3, 130, 385}, {150, 20, 77}, {145, 530, 9}, {1, 200, 50},
                                       {200, 1, 50}, {2, 2, 900}, {40, 65, 769}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}};
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            for (int lx = 0; lx < LAST; lx++)
                for (int ly = 0; ly < LAST; ly++) good &= one_matmul(floats[t], lx, ly, SHAPE(m, k), SHAPE(k, n));
        }
        ok(good, "%s %s: two dims, any size and layout", isa, lks_dtype_name(floats[t]));
        good = 1;
        for (int l = 0; l < LAST; l++) {
            good &= one_matmul(floats[t], l, 0, SHAPE(37), SHAPE(37));
            good &= one_matmul(floats[t], l, l, SHAPE(0), SHAPE(0));
            good &= one_matmul(floats[t], 0, l, SHAPE(37), SHAPE(37, 5));
            good &= one_matmul(floats[t], l, 0, SHAPE(5, 37), SHAPE(37));
            good &= one_matmul(floats[t], l, 0, SHAPE(3, 5, 37), SHAPE(37));
            good &= one_matmul(floats[t], l, 0, SHAPE(37), SHAPE(3, 37, 5));
            good &= one_matmul(floats[t], l, l, SHAPE(3, 5, 7), SHAPE(3, 7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(3, 5, 7), SHAPE(7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(5, 7), SHAPE(3, 7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(2, 1, 5, 7), SHAPE(3, 7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(2, 1, 5, 7), SHAPE(1, 3, 7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(2, 3, 2, 1, 5, 7), SHAPE(3, 1, 6, 7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(0, 5, 7), SHAPE(7, 4));
            good &= one_matmul(floats[t], l, l, SHAPE(9, 1, 7), SHAPE(7, 40));
            good &= one_matmul(floats[t], l, l, SHAPE(9, 70, 70), SHAPE(9, 70, 70));
        }
        ok(good, "%s %s: vectors and batches", isa, lks_dtype_name(floats[t]));
    }
}

static void expanded(const char *isa)
{
    /* rows and columns that repeat one number: stride 0 */
    lksi_view in[2] = {make(LKS_F32, ROWS, SHAPE(50, 60)), make(LKS_F32, ROWS, SHAPE(60, 70))}, z;
    in[0].stride[0] = 0;
    in[1].stride[1] = 0;
    int good = call(LKSI_OP_matmul, 2, in, 1, &z, NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
    good = good && wrong_products(&in[0], &in[1], &z) == 0;
    if (z.data) drop(&z);
    in[0].stride[0] = 60, in[0].stride[1] = 0, in[1].stride[1] = 1, in[1].stride[0] = 0;
    good = good && call(LKSI_OP_matmul, 2, in, 1, &z, NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
    good = good && wrong_products(&in[0], &in[1], &z) == 0;
    ok(good, "%s: expanded operands", isa);
    if (z.data) drop(&z);
    drop(&in[0]), drop(&in[1]);
}

/* All elements of v, the last dim fastest; free() it. */
static double *elements(const lksi_view *v)
{
    int64_t n = lksi_numel(v);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    if (!x) bail("no memory");
    for (int64_t i = 0; i < n; i++) x[i] = element(v, i);
    return x;
}

static int one_linear(int dtype, int bias, int layout, int wide, int nx, const int64_t *sx, int64_t out)
{
    int64_t inner = sx[nx - 1], rows = 1, wrong = 0;
    for (int d = 0; d < nx - 1; d++) rows *= sx[d];
    lksi_view in[3] = {make(dtype, layout, nx, sx), make(dtype, layout, SHAPE(out, inner)), absent}, y;
    if (bias != LKS_DTYPE_NONE) in[2] = make(bias, layout, SHAPE(out));
    lks_status s = call(LKSI_OP_linear, 3, in, 1, &y, NULL, NULL, wide);
    if (s == LKS_OK) {
        double *x = elements(&in[0]), *w = elements(&in[1]);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t o = 0; o < out; o++) {
                double sum = bias != LKS_DTYPE_NONE ? element(&in[2], o) : 0, size = fabs(sum);
                for (int64_t i = 0; i < inner; i++) {
                    double term = x[r * inner + i] * w[o * inner + i];
                    sum += term, size += fabs(term);
                }
                wrong += !near_sum(element(&y, r * out + o), sum, size, y.dtype, (double)inner);
            }
        free(x), free(w);
        drop(&y);
    }
    for (int i = 0; i < 3; i++)
        if (in[i].data) drop(&in[i]);
    if (s || wrong) diag("linear %s, layout %d: %lld wrong, %s", lks_dtype_name(dtype), layout, (long long)wrong, why);
    return s == LKS_OK && wrong == 0;
}

static void linears(const char *isa)
{
    for (int t = 0; t < 4; t++) {
        int good = 1, d = floats[t], own = d;
        for (int l = 0; l < LAST; l++)
            for (int b = 0; b < 3; b++) {
                int bias = b == 0 ? LKS_DTYPE_NONE : b == 1 ? own : d == LKS_F64 ? LKS_F64 : LKS_F32;
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(9, 20), 7);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(3, 50, 400), 130);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(20), 7);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(2, 0, 20), 7);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(2, 3, 0), 7);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(2, 3, 5, 6, 7), 1);
                good &= one_linear(d, bias, l, LKS_DTYPE_NONE, SHAPE(2, 3, 5, 6, 1), 9);
                if (d == LKS_BF16 || d == LKS_F16) good &= one_linear(d, bias, l, LKS_F32, SHAPE(30, 800), 70);
            }
        ok(good, "%s %s: linear, bias of its own and of a wider dtype, wider result", isa, lks_dtype_name(d));
    }
}

/* alpha x y + beta c for every form of c; c's dims behind those of the product. beta 0: c is full of NaN. */
static int one_addmm(int dtype, int layout, int nx, const int64_t *sx, int ny, const int64_t *sy, int nc,
                     const int64_t *sc, double alpha, double beta, int c_dtype)
{
    lksi_view in[3] = {make(dtype, layout, nx, sx), make(dtype, layout, ny, sy), make(c_dtype, layout, nc, sc)}, z, p;
    lksi_attr attr = {.product = {.alpha = alpha, .beta = beta}};
    if (beta == 0)
        for (int64_t i = 0; i < lksi_numel(&in[2]); i++) set_element(&in[2], i, NAN);
    int wide = dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    int good = call(LKSI_OP_matmul, 2, in, 1, &p, NULL, NULL, wide) == LKS_OK, wrong = 0;
    good = good && call(LKSI_OP_addmm, 3, in, 1, &z, &attr, NULL, LKS_DTYPE_NONE) == LKS_OK;
    for (int64_t e = 0; good && e < lksi_numel(&z); e++) {
        int64_t rest = e, at = 0;
        for (int d = z.ndim - 1; d >= 0; d--) {
            int own = d - (z.ndim - in[2].ndim);
            if (own >= 0 && in[2].shape[own] != 1) at += rest % z.shape[d] * in[2].stride[own];
            rest /= z.shape[d];
        }
        double sum = alpha * element(&p, e), add = beta == 0 ? 0 : beta * get_element(in[2].data, c_dtype, at);
        double k = (double)sx[nx - 1], unit = dtype == LKS_F64 ? 0x1p-50 : 0x1p-21;
        double slack = unit * (fabs(alpha) * (1 + k) + fabs(add)) + rounding(dtype) * 1.01 * fabs(sum + add) + 1e-7 *
                       (dtype == LKS_F16);
        if (!(fabs(element(&z, e) - sum - add) <= slack) && wrong++ == 0)
            diag("element %lld: got %.9g, want %.9g", (long long)e, element(&z, e), sum + add);
    }
    if (!good || wrong) diag("%s, layout %d, alpha %g beta %g: %s", lks_dtype_name(dtype), layout, alpha, beta, why);
    if (good) drop(&z), drop(&p);
    for (int i = 0; i < 3; i++) drop(&in[i]);
    return good && !wrong;
}

static void addmms(const char *isa)
{
    static const double factors[][2] = {{1, 1}, {0.5, -2}, {-1, 0}, {1, 0}, {0, 1}, {1, 0.25}, {3, 1}};
    for (int t = 0; t < 4; t++) {
        int good = 1, d = floats[t];
        for (int l = 0; l < LAST; l++)
            for (unsigned f = 0; f < sizeof factors / sizeof *factors; f++) {
                double al = factors[f][0], be = factors[f][1];
                int cd = f == 1 && d != LKS_F64 ? LKS_F32 : d;
#define CASE(x, y, ...) good &= one_addmm(d, l, x, y, SHAPE(__VA_ARGS__), al, be, cd)
                CASE(SHAPE(13, 31), SHAPE(31, 37), 13, 37);
                CASE(SHAPE(13, 31), SHAPE(31, 37), 37);
                CASE(SHAPE(13, 31), SHAPE(31, 37), 13, 1);
                CASE(SHAPE(13, 31), SHAPE(31, 37), 1, 1);
                CASE(SHAPE(40, 800), SHAPE(800, 70), 40, 70); /* several passes over the inner dim */
                CASE(SHAPE(2, 40), SHAPE(40, 70), 2, 70);     /* few rows, few columns */
                CASE(SHAPE(70, 40), SHAPE(40, 2), 70, 2);
                CASE(SHAPE(70, 40), SHAPE(40, 2), 70, 1);
                CASE(SHAPE(3, 5, 7), SHAPE(3, 7, 4), 3, 5, 4);
                CASE(SHAPE(3, 5, 7), SHAPE(7, 4), 5, 4);
                CASE(SHAPE(3, 5, 7), SHAPE(7, 4), 3, 1, 4);
                CASE(SHAPE(3, 5, 7), SHAPE(3, 7, 4), 3, 1, 1);
                CASE(SHAPE(5, 7), SHAPE(3, 7, 4), 3, 5, 1);
                CASE(SHAPE(9, 1, 7), SHAPE(7, 40), 9, 1, 40);
                CASE(SHAPE(9, 20, 7), SHAPE(9, 7, 1), 9, 20, 1);
                CASE(SHAPE(7), SHAPE(7, 40), 40);
                CASE(SHAPE(40, 7), SHAPE(7), 40);
                CASE(SHAPE(3, 40, 7), SHAPE(7), 3, 1);
                CASE(SHAPE(6, 0), SHAPE(0, 4), 6, 4);
                CASE(SHAPE(0, 3), SHAPE(3, 4), 4);
#undef CASE
            }
        ok(good, "%s %s: addmm, any addend, factors and layout; beta 0 does not read", isa, lks_dtype_name(d));
    }
}

/* The same bits whatever the threads. */
static void threads(const char *isa)
{
    lksi_view in[2] = {make(LKS_F32, ROWS, SHAPE(150, 500)), make(LKS_F32, SWAPPED, SHAPE(500, 210))}, z[2];
    lksi_view batch[2] = {make(LKS_BF16, ROWS, SHAPE(3, 90, 60)), make(LKS_BF16, ROWS, SHAPE(3, 60, 90))}, y[2];
    static const int count[] = {1, 3};
    int good = 1;
    for (int i = 0; i < 2; i++) {
        if (!open_cpu(isa, count[i])) return;
        good &= call(LKSI_OP_matmul, 2, in, 1, &z[i], NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
        good &= call(LKSI_OP_matmul, 2, batch, 1, &y[i], NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
        close_cpu();
    }
    ok(good && same_bits(&z[0], &z[1]) && same_bits(&y[0], &y[1]), "%s: 1 and 3 threads give the same bits", isa);
    for (int i = 0; i < 2; i++) drop(&z[i]), drop(&y[i]), drop(&in[i]), drop(&batch[i]);
}

static void special_values(const char *isa)
{
    lksi_view in[2] = {make(LKS_F32, ROWS, SHAPE(20, 30)), make(LKS_F32, ROWS, SHAPE(30, 40))}, z;
    set_element(&in[0], 5 * 30 + 3, INFINITY);
    set_element(&in[1], 7 * 40 + 11, NAN);
    set_element(&in[1], 3 * 40 + 2, 0);
    int good = call(LKSI_OP_matmul, 2, in, 1, &z, NULL, NULL, LKS_DTYPE_NONE) == LKS_OK, bad = 0;
    for (int64_t i = 0; good && i < 20; i++)
        for (int64_t j = 0; j < 40; j++) {
            double x = element(&z, i * 40 + j);
            int nan = j == 11 || (i == 5 && j == 2), inf = !nan && i == 5;
            bad += nan ? !isnan(x) : inf ? !isinf(x) : !isfinite(x);
        }
    ok(good && bad == 0, "%s: infinity and NaN stay in their rows and columns", isa);
    if (z.data) drop(&z);
    drop(&in[0]), drop(&in[1]);
}

typedef struct onednn_job { const lksi_gemm *g; int64_t rows; void *memory[4]; int failed; } onednn_job;

static void onednn_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    onednn_job *s = arg;
    for (int64_t u = begin; u < end; u++) {
        lksi_gemm g = *s->g;
        g.m = g.m - u * s->rows < s->rows ? g.m - u * s->rows : s->rows;
        g.a = (const float *)g.a + u * s->rows * g.a_rs;
        g.c = (float *)g.c + u * s->rows * g.c_rs;
        if (!lksi_onednn_run(cpu, &g, s->memory[worker])) s->failed = 1;
    }
}

/* The way to oneDNN that bfloat16 takes where the processor has it, in float32, which every processor has. */
static void onednn(void)
{
    lksi_view in[2] = {make(LKS_F32, ROWS, SHAPE(100, 70)), make(LKS_F32, ROWS, SHAPE(70, 50))};
    lksi_view bias = make(LKS_F32, ROWS, SHAPE(50));
    lksi_view z = make(LKS_F32, GAPS, SHAPE(100, 50)), y;
    int taken = 0, good = 1;
    for (int round = 0; round < 40 && good; round++) {
        int layout = round % 3, with_bias = round % 2;
        int64_t m = 100 - round, bytes;
        lksi_gemm g = {.m = m, .n = 50, .k = 70, .a_dtype = LKS_F32, .b_dtype = LKS_F32, .c_dtype = LKS_F32,
                       .a = in[0].data,
                       .b = in[1].data, .c = z.data, .a_rs = layout == 1 ? 1 : 70, .a_cs = layout == 1 ? 100 : 1,
                       .b_rs = layout == 2 ? 1 : 50, .b_cs = layout == 2 ? 70 : 1, .c_rs = z.stride[0], .c_cs = 1};
        if (with_bias) g.bias = bias.data, g.bias_dtype = LKS_F32, g.bias_cs = 1;
        if (!lksi_onednn_prepare(cpu, &g, 24, 50, &bytes)) break;
        onednn_job s = {.g = &g, .rows = 24};
        for (int i = 0; i < 4; i++) s.memory[i] = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
        taken = 1;
        lksi_parallel(cpu, (m + 23) / 24, 1, onednn_rows, &s);
        for (int i = 0; i < 4; i++) free(s.memory[i]);
        good = !s.failed;
        lksi_view x = in[0], w = in[1];
        x.shape[0] = m, x.stride[0] = g.a_rs, x.stride[1] = g.a_cs;
        w.stride[0] = g.b_rs, w.stride[1] = g.b_cs;
        good = good && call(LKSI_OP_matmul, 2, (lksi_view[]){x, w}, 1, &y, NULL, NULL, LKS_DTYPE_NONE) == LKS_OK;
        for (int64_t e = 0; good && e < m * 50; e++)
            good = fabs(element(&z, e) - element(&y, e) - (with_bias ? element(&bias, e % 50) : 0)) < 1e-4;
        drop(&y);
    }
    if (taken) ok(good, "oneDNN on the workers gives the same products");
    else skip(1, "oneDNN is not in this build");
    drop(&in[0]), drop(&in[1]), drop(&bias), drop(&z);
}

static void refusals(void)
{
    lksi_view f23 = make(LKS_F32, ROWS, SHAPE(2, 3)), f45 = make(LKS_F32, ROWS, SHAPE(4, 5));
    lksi_view b32 = make(LKS_BF16, ROWS, SHAPE(3, 2)), f3 = make(LKS_F32, ROWS, SHAPE(3)), scalar = f3, z;
    lksi_view i32 = make(LKS_I32, ROWS, SHAPE(3, 2)), i23 = make(LKS_I32, ROWS, SHAPE(2, 3));
    lksi_view a3 = make(LKS_F32, ROWS, SHAPE(2, 2, 3)), b3 = make(LKS_F32, ROWS, SHAPE(3, 3, 2));
    scalar.ndim = 0;
    is_int(call(LKSI_OP_matmul, 2, (lksi_view[]){f23, f45}, 1, &z, NULL, NULL, -1), LKS_ERR_SHAPE, "inner sizes");
    is_str(why, "inner sizes differ: [2,3] @ [4,5]", "... are named");
    is_int(call(LKSI_OP_matmul, 2, (lksi_view[]){f23, b32}, 1, &z, NULL, NULL, -1), LKS_ERR_DTYPE, "unlike dtypes");
    is_str(why, "products of unlike dtypes: float32 @ bfloat16", "... are named");
    is_int(call(LKSI_OP_matmul, 2, (lksi_view[]){i23, i32}, 1, &z, NULL, NULL, -1), LKS_ERR_DTYPE, "integers");
    is_int(call(LKSI_OP_matmul, 2, (lksi_view[]){scalar, f3}, 1, &z, NULL, NULL, -1), LKS_ERR_SHAPE, "a 0-dim operand");
    is_int(call(LKSI_OP_matmul, 2, (lksi_view[]){a3, b3}, 1, &z, NULL, NULL, -1), LKS_ERR_SHAPE, "batches");
    ok(strstr(why, "[2,2,3] @ [3,3,2]") != NULL, "... are named");
    is_int(call(LKSI_OP_linear, 3, (lksi_view[]){f23, f23, f45}, 1, &z, NULL, NULL, -1), LKS_ERR_SHAPE,
           "bias of a wrong shape");
    is_int(call(LKSI_OP_linear, 3, (lksi_view[]){f23, f45, absent}, 1, &z, NULL, NULL, -1), LKS_ERR_SHAPE,
           "weight of a wrong shape");
    is_int(call(LKSI_OP_linear, 3, (lksi_view[]){f23, b32, absent}, 1, &z, NULL, NULL, -1), LKS_ERR_DTYPE,
           "weight of another dtype");
    lksi_view *all[] = {&f23, &f45, &b32, &f3, &i32, &i23, &a3, &b3};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

int main(void)
{
    for (unsigned i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!open_cpu(isas[i], 2)) continue;
        shapes(isas[i]);
        expanded(isas[i]);
        linears(isas[i]);
        addmms(isas[i]);
        special_values(isas[i]);
        close_cpu();
        threads(isas[i]);
    }
    lksi_view square = make(LKS_F32, ROWS, SHAPE(90, 90));
    ok(fails_cleanly(LKSI_OP_matmul, 2, (lksi_view[]){square, square}, 1, NULL), "no memory");
    drop(&square);
    ok(open_cpu(NULL, 2), "a CPU");
    onednn();
    refusals();
    close_cpu();
    return done();
}
