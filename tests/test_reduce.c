/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_reduce.c - sum, mean, max, argmax, index_fill_backward on the CPU, each ISA that runs here: random shapes,
 * strides and dims against long double; the same bits for any thread count and on every ISA; sums that overflow or
 * stagnate in half precision; NaN, ties, empty dims; what must be refused.
 */
#include "kernels.h"

static kernels k, threads[3];
static const int counts[3] = {2, 3, 5};

static double fill(int dtype)
{
    if (dtype == LKS_BOOL) return (double)dice(2);
    if (!lks_dtype_is_float(dtype)) return (double)dice(200) - (dtype == LKS_U8 ? 0 : 90);
    return rounded_to(dtype, dice_real(-2, 3));
}

static double few_values(int dtype) /* ties, and now and then a NaN */
{
    if (!lks_dtype_is_float(dtype)) return (double)dice(2);
    return dice(60) == 0 ? NAN : (double)dice(4) - 2;
}

static int random_shape(int64_t *shape)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 9, 17, 40, 130};
    int n = (int)dice(6), kind = (int)dice(10);
    if (kind == 0) {
        shape[0] = 1 + (int64_t)dice(150000);
        return 1;
    }
    if (kind <= 2) { /* many rows of few columns, few of many */
        shape[0] = 1 + (int64_t)dice(kind == 1 ? 20000 : 60);
        shape[1] = 1 + (int64_t)dice(kind == 1 ? 12 : 5000);
        return 2;
    }
    for (int64_t d = 0, total = 1; d < n; d++) {
        do shape[d] = sizes[dice(8)];
        while (shape[d] * total > 150000);
        total *= shape[d];
    }
    if (n && dice(12) == 0) shape[dice((uint64_t)n)] = 0;
    return n;
}

/* Offset of the i-th combination of the dims of mask. */

static int64_t member(const lksi_view *x, int mask, int64_t i)
{
    int64_t offset = 0;
    for (int d = x->ndim - 1; d >= 0; d--)
        if (mask >> d & 1) {
            offset += i % x->shape[d] * x->stride[d];
            i /= x->shape[d];
        }
    return offset;
}

static int64_t size_of_mask(const lksi_view *x, int mask)
{
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        if (mask >> d & 1) n *= x->shape[d];
    return n;
}

static void sums(const char *isa)
{
    int wrong = 0, bits = 0, shape_wrong = 0;
    for (int j = 0; j < 250 && wrong < 4; j++) {
        int64_t shape[LKS_MAX_DIMS];
        int n = random_shape(shape), mean = (int)dice(2), mask = (int)dice(1u << n), from = (int)dice(LKS_C64);
        int to = dice(3) ? LKS_DTYPE_NONE : (int)dice(LKS_C64), keep = (int)dice(2);
        if (mean && !lks_dtype_is_float(to == LKS_DTYPE_NONE ? from : to)) to = LKS_F32;
        if (to == LKS_BOOL) to = LKS_I64;
        void *memory;
        lksi_view x = random_view(from, n, shape, (int)dice(3), fill, &memory), y = {0}, z;
        lksi_attr attr = {.reduce = {.mask = mask, .keepdim = keep, .dtype = to}};
        int op = mean ? LKSI_OP_mean : LKSI_OP_sum,
            result = to != LKS_DTYPE_NONE ? to : lks_dtype_is_float(from) ? from : LKS_I64;
        int bad = kernels_run(&k, op, 1, &x, &attr, 1, &y) != LKS_OK;
        if (bad) {
            diag("%s", k.why);
            wrong++;
            free(memory);
            continue;
        }
        int ndim = 0;
        for (int d = 0; d < n; d++) {
            if (!(mask >> d & 1)) shape_wrong += y.shape[ndim++] != shape[d];
            else if (keep) shape_wrong += y.shape[ndim++] != 1;
        }
        shape_wrong += ndim != y.ndim || y.dtype != result;
        int64_t each = size_of_mask(&x, mask), all = lksi_numel(&y), kept = ~mask & ((1 << n) - 1);
        for (int64_t i = 0; i < all && !bad; i++) {
            int64_t base = member(&x, (int)kept, i);
            long double s = 0, size = 0;
            for (int64_t e = 0; e < each; e++) {
                double v = value_at(from, x.data, base + member(&x, mask, e));
                if (!lks_dtype_is_float(result)) v = trunc(v);
                s += v;
                size += fabs(v);
            }
            double got = element(&y, &y, i), unit = result == LKS_F16 ? 0x1p-11 : result == LKS_BF16 ? 0x1p-8 : 0;
            if (mean) s /= each, size /= each;
            if (mean && each == 0) bad = !isnan(got);
            else if (!lks_dtype_is_float(result))
                bad = got != (result == LKS_U8 ? (uint8_t)(int64_t)s : result == LKS_I32 ? (int32_t)(int64_t)s
                              : (double)s);
            else if (result == LKS_F16 && fabsl(s) > 65000) continue;
            else
                bad = !(fabsl(got - s) <= size * (result == LKS_F64 ? 1e-14 : 1e-6) + unit * fabsl(s)
                        + (unit > 0 ? 0x1p-25 : 0));
            if (bad) {
                char t[100];
                diag("%s of %s %s, mask %#x, to %s: element %lld: got %.9g, want %.9Lg", lksi_rows[op].name,
                     lks_dtype_name(from),
                     lksi_shape_text(&x, t, sizeof t), mask, lks_dtype_name(result), (long long)i, got, s);
            }
        }
        wrong += bad;
        for (int t = 0; t < 3; t++) {
            z = (lksi_view){0};
            kernels_run(&threads[t], op, 1, &x, &attr, 1, &z);
            bits += memcmp(y.data, z.data, (size_t)span_of(&y)) != 0;
            free(z.data);
        }
        free(memory);
        free(y.data);
    }
    is_int(wrong, 0, "%s: sum and mean, random cases", isa);
    is_int(shape_wrong, 0, "%s: shapes and dtypes of sums", isa);
    is_int(bits, 0, "%s: sums have the same bits with 1, 2, 3 and 5 threads", isa);
}

static void maxima(const char *isa)
{
    int wrong = 0;
    for (int j = 0; j < 250 && wrong < 4; j++) {
        int64_t shape[LKS_MAX_DIMS];
        int n = random_shape(shape), dim = n ? (int)dice((uint64_t)n) : 0, dtype = (int)dice(LKS_C64),
            keep = (int)dice(2);
        if (n && shape[dim] == 0) shape[dim] = 1;
        void *memory;
        lksi_view x = random_view(dtype, n, shape, (int)dice(3), dice(2) ? fill : few_values, &memory), y[2] = {{0}},
            index = {0};
        int mask = n ? 1 << dim : 0;
        lksi_attr attr = {.dim = {.dim = dice(2) && n ? dim - n : dim, .keepdim = keep}};
        kernels *kk = dice(2) ? &k : &threads[dice(3)];
        int bad = kernels_run(kk, LKSI_OP_max, 1, &x, &attr, 2, y) != LKS_OK ||
                  kernels_run(kk, LKSI_OP_argmax, 1, &x, &attr, 1, &index) != LKS_OK;
        int64_t each = size_of_mask(&x, mask), all = bad ? 0 : lksi_numel(&y[0]), kept = ~mask & ((1 << n) - 1);
        bad |= y[0].dtype != dtype || y[1].dtype != LKS_I64 || y[0].ndim != (n ? n - !keep : 0);
        for (int64_t i = 0; i < all && !bad; i++) {
            int64_t base = member(&x, (int)kept, i), at = 0;
            double best = value_at(dtype, x.data, base);
            for (int64_t e = 1; e < each && !isnan(best); e++) {
                double v = value_at(dtype, x.data, base + member(&x, mask, e));
                if (v > best || isnan(v)) best = v, at = e;
            }
            double got = element(&y[0], &y[0], i);
            bad = !(got == best || (isnan(got) && isnan(best))) || element(&y[1], &y[1], i) != (double)at ||
                  element(&index, &index, i) != (double)at;
            if (bad) {
                char t[100];
                diag("max of %s %s along %d: output %lld: got %g at %g (argmax %g), want %g at %lld",
                     lks_dtype_name(dtype),
                     lksi_shape_text(&x, t, sizeof t), dim, (long long)i, got, element(&y[1], &y[1], i),
                     element(&index, &index, i), best, (long long)at);
            }
        }
        wrong += bad;
        free(memory);
        free(y[0].data);
        free(y[1].data);
        free(index.data);
    }
    is_int(wrong, 0, "%s: max and argmax, random cases", isa);
}

static double total(kernels *kk, int op, lksi_view *x, int to)
{
    lksi_view y = {0};
    lksi_attr attr = {.reduce = {.mask = (1 << x->ndim) - 1, .dtype = to}};
    if (kernels_run(kk, op, 1, x, &attr, 1, &y) != LKS_OK) return NAN;
    double v = value_at(y.dtype, y.data, 0);
    free(y.data);
    return v;
}

static void half_precision(const char *isa)
{
    static uint16_t one[100000], three[3];
    int64_t n[1] = {100000}, m[1] = {3};
    for (int i = 0; i < 100000; i++) one[i] = 0x3c00;
    for (int i = 0; i < 3; i++) set_value(LKS_F16, three, i, 40000);
    lksi_view x = view_of(one, LKS_F16, 1, n), y = view_of(three, LKS_F16, 1, m);
    is_double(total(&k, LKSI_OP_mean, &x, -1), 1, 0, "%s: mean of 100000 ones in float16", isa);
    is_double(total(&k, LKSI_OP_mean, &y, -1), 40000, 0, "%s: mean of three times 40000 in float16", isa);
    is_double(total(&k, LKSI_OP_sum, &x, -1), INFINITY, 0, "%s: a float16 sum beyond 65504 is infinite", isa);
    is_double(total(&k, LKSI_OP_sum, &x, LKS_F32), 100000, 0, "%s: and right in float32", isa);
    static const int sizes[] = {2050, 5000, 10000};
    for (int i = 0; i < 3; i++) {
        x.shape[0] = sizes[i];
        is_double(total(&k, LKSI_OP_sum, &x, -1), sizes[i], 0, "%s: sum of %d ones in float16", isa, sizes[i]);
    }
    static uint16_t b[70000];
    for (int i = 0; i < 70000; i++) b[i] = 0x3f80;
    lksi_view z = view_of(b, LKS_BF16, 1, (int64_t[]){65536});
    is_double(total(&k, LKSI_OP_sum, &z, -1), 65536, 0, "%s: sum of 65536 ones in bfloat16", isa);
}

static void specials(const char *isa)
{
    int64_t none[2] = {0, 3};
    float f[40];
    lksi_view x = view_of(f, LKS_F32, 2, none), y = {0};
    is_double(total(&k, LKSI_OP_sum, &x, -1), 0, 0, "%s: the sum of nothing is 0", isa);
    is_double(total(&k, LKSI_OP_mean, &x, -1), NAN, 0, "%s: the mean of nothing is NaN", isa);
    kernels_run(&k, LKSI_OP_mean, 1, &x, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &y);
    ok(y.ndim == 1 && isnan(element(&y, &y, 0)) && isnan(element(&y, &y, 2)), "%s: also along one dim", isa);
    free(y.data);
    for (int i = 0; i < 40; i++) f[i] = -INFINITY;
    int64_t forty[1] = {40};
    x = view_of(f, LKS_F32, 1, forty);
    lksi_view out[2] = {{0}};
    kernels_run(&k, LKSI_OP_max, 1, &x, &(lksi_attr){{0}}, 2, out);
    ok(element(&out[0], &out[0], 0) == -INFINITY && element(&out[1], &out[1], 0) == 0, "%s: max of minus infinities",
       isa);
    free(out[0].data);
    free(out[1].data);
    is_double(total(&k, LKSI_OP_sum, &x, -1), -INFINITY, 0, "%s: the sum of infinities", isa);
    f[20] = INFINITY;
    is_double(total(&k, LKSI_OP_sum, &x, -1), NAN, 0, "%s: of infinities of both signs", isa);
    int64_t big[3] = {INT64_MAX, 1, 5};
    lksi_view w = view_of(big, LKS_I64, 1, (int64_t[]){3});
    lksi_view s = {0};
    kernels_run(&k, LKSI_OP_sum, 1, &w, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &s);
    ok(*(int64_t *)s.data == INT64_MIN + 5, "%s: int64 sums wrap", isa);
    free(s.data);
    /* int64 keeps what double cannot. */
    int64_t near[3] = {1LL << 53, (1LL << 53) + 1, 3};
    w = view_of(near, LKS_I64, 1, (int64_t[]){3});
    lksi_view r[2] = {{0}};
    kernels_run(&k, LKSI_OP_max, 1, &w, &(lksi_attr){{0}}, 2, r);
    ok(*(int64_t *)r[0].data == near[1] && *(int64_t *)r[1].data == 1, "%s: max of int64 is exact", isa);
    free(r[0].data);
    free(r[1].data);
}

static void index_fill(const char *isa)
{
    int wrong = 0;
    for (int j = 0; j < 60; j++) {
        int64_t shape[LKS_MAX_DIMS];
        int n = 1 + (int)dice(4), d = (int)dice((uint64_t)n);
        for (int i = 0; i < n; i++) shape[i] = i == d ? 1 : 1 + (int64_t)dice(12);
        int64_t size = 1 + (int64_t)dice(9);
        void *a, *b;
        lksi_view in[2] = {random_view(dice(2) ? LKS_F32 : LKS_F16, n, shape, (int)dice(2), fill, &a),
                           random_view(LKS_I64, n, shape, (int)dice(2), fill, &b)};
        for (int64_t i = 0; i < span_of(&in[1]) / 8; i++) ((int64_t *)b)[i] = (int64_t)dice((uint64_t)size);
        lksi_view dx = {0};
        lksi_attr attr = {.slice = {.dim = d, .size = size}};
        wrong += kernels_run(&k, LKSI_OP_index_fill_backward, 2, in, &attr, 1, &dx) != LKS_OK || dx.shape[d] != size;
        for (int64_t i = 0; i < lksi_numel(&dx); i++) {
            int64_t inner = 1, at;
            for (int e = d + 1; e < n; e++) inner *= dx.shape[e];
            at = i / inner % size;
            double want = element(&in[1], &dx, i) == (double)at ? element(&in[0], &dx, i) : 0;
            wrong += element(&dx, &dx, i) != want;
        }
        free(a);
        free(b);
        free(dx.data);
    }
    is_int(wrong, 0, "%s: index_fill_backward, random cases", isa);
    float dy = 1;
    int64_t at = 4;
    lksi_view in[2] = {view_of(&dy, LKS_F32, 1, (int64_t[]){1}), view_of(&at, LKS_I64, 1, (int64_t[]){1})}, dx = {0};
    is_int(kernels_run(&k, LKSI_OP_index_fill_backward, 2, in, &(lksi_attr){.slice = {.size = 4}}, 1, &dx),
           LKS_ERR_ARGUMENT,
           "%s: an index outside: %s", isa, k.why);
    free(dx.data);
}

static void refusals(void)
{
    float f[6] = {0};
    int64_t n[6] = {0}, empty[2] = {2, 0}, grid[2] = {2, 3};
    lksi_view x = view_of(f, LKS_F32, 2, empty), y[2] = {{0}}, i = view_of(n, LKS_I64, 2, grid),
        g = view_of(f, LKS_F32, 2, grid);
    is_int(kernels_run(&k, LKSI_OP_max, 1, &x, &(lksi_attr){.dim = {.dim = 1}}, 2, y), LKS_ERR_SHAPE,
           "max along an empty dim: %s",
           k.why);
    is_int(kernels_run(&k, LKSI_OP_argmax, 1, &x, &(lksi_attr){.dim = {.dim = -1}}, 1, y), LKS_ERR_SHAPE, "argmax too");
    is_int(kernels_run(&k, LKSI_OP_argmax, 1, &x, &(lksi_attr){.dim = {.dim = 0}}, 1, y), LKS_OK,
           "along the other dim: no outputs");
    free(y[0].data);
    y[0] = (lksi_view){0};
    is_int(kernels_run(&k, LKSI_OP_argmax, 1, &g, &(lksi_attr){.dim = {.dim = 2}}, 1, y), LKS_ERR_ARGUMENT,
           "dim 2 of 2: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_mean, 1, &i, &(lksi_attr){.reduce = {.mask = 3, .dtype = -1}}, 1, y), LKS_ERR_DTYPE,
           "mean of integers: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_sum, 1, &g, &(lksi_attr){.reduce = {.mask = 4, .dtype = -1}}, 1, y),
           LKS_ERR_ARGUMENT,
           "a dim that is not there: %s", k.why);
}

int main(void)
{
    static const char *const isas[] = {"base", "avx2", "avx512"};
    static float first[300];
    for (int i = 0; i < 3; i++) {
        if (!kernels_open(&k, isas[i], 1)) {
            skip(1, "%s: not on this processor or not built", isas[i]);
            continue;
        }
        for (int t = 0; t < 3; t++)
            if (!kernels_open(&threads[t], isas[i], counts[t])) bail("no backend with %d threads", counts[t]);
        sums(isas[i]);
        maxima(isas[i]);
        half_precision(isas[i]);
        specials(isas[i]);
        index_fill(isas[i]);
        /* One sum over rows, one over columns, the same bits in every build. */
        static float x[300 * 3000], out[300];
        for (int j = 0; j < 300 * 3000; j++) x[j] = (float)(j % 10007 * 7919 % 10007) / 97 - 50;
        lksi_view v = view_of(x, LKS_F32, 2, (int64_t[]){300, 3000}),
            w = view_of(x, LKS_F32, 2, (int64_t[]){3000, 300});
        lksi_view y = view_of(out, LKS_F32, 1, (int64_t[]){300});
        kernels_run(&k, LKSI_OP_sum, 1, &v, &(lksi_attr){.reduce = {.mask = 2, .dtype = -1}}, 1, &y);
        lksi_view z = {0};
        kernels_run(&k, LKSI_OP_sum, 1, &w, &(lksi_attr){.reduce = {.mask = 1, .dtype = -1}}, 1, &z);
        for (int j = 0; j < 300; j++) out[j] -= 3 * ((float *)z.data)[j];
        free(z.data);
        if (i == 0) memcpy(first, out, sizeof out);
        else ok(!memcmp(first, out, sizeof out), "%s: sums have the bits of the base build", isas[i]);
        kernels_close(&k);
        for (int t = 0; t < 3; t++) kernels_close(&threads[t]);
    }
    if (!kernels_open(&k, NULL, 1)) bail("no CPU backend");
    refusals();
    kernels_close(&k);
    return done();
}
