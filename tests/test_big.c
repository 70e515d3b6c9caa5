/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_big.c - ops on tensors of more than 2^31 elements (LKS_TEST_LARGE=1, 20 GB of memory; check-long big): an index
 * kept in 32 bits anywhere is found by what stands at the end. Values are so chosen that each result is exact.
 */
#include "arrays.h"

#define N ((INT64_C(1) << 31) + 6)
#define ROWS 46342 /* ROWS * ROWS > 2^31 */

static lks_context *ctx;

static double at(lks_tensor *t, int64_t i)
{
    double v = NAN;
    lks_tensor *x = t ? lks_narrow(lks_reshape(t, 1, (int64_t[]){-1}), 0, i, 1) : NULL;
    if (x) x = lks_reshape(lks_to(x, LKS_F64), 0, NULL);
    if (!x || lks_item(x, &v) != LKS_OK) {
        diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    return v;
}

static double last(lks_tensor *t)
{
    return t ? at(t, lks_numel(t) - 1) : NAN;
}

/* Zeros with `v` at the end. */
static lks_tensor *zeros_and(lks_dtype dtype, int ndim, const int64_t *shape, double v)
{
    lks_tensor *t = lks_zeros(ctx, dtype, ndim, shape);
    int64_t one = 1;
    if (t) lks_fill_(lks_narrow(lks_reshape(t, 1, (int64_t[]){-1}), 0, lks_numel(t) - one, one), v);
    return t;
}

#define CASE(what, condition)                                                                                          \
    do {                                                                                                               \
        lks_scope_begin(ctx);                                                                                          \
        int good_ = (condition);                                                                                       \
        if (lks_error_code(ctx)) diag("%s", lks_error(ctx));                                                           \
        lks_error_clear(ctx);                                                                                          \
        ok(good_, what);                                                                                               \
        lks_scope_end(ctx);                                                                                            \
        lks_memory_trim(ctx); /* results of other sizes find room */                                                   \
    } while (0)

static void bytes(void)
{
    int64_t n = N, index[2] = {N - 1, 3}, two = 2, half = N / 2, less = N - 1;
    lks_scope_begin(ctx);
    lks_tensor *x = zeros_and(LKS_U8, 1, &n, 7), *i = lks_from_host(ctx, LKS_I64, 1, &two, index);
    CASE("the last element", last(x) == 7 && at(x, N - 2) == 0);
    CASE("max, argmax", last(lks_max_all(x)) == 7 && last(lks_argmax(x, 0, 0)) == (double)(N - 1));
    CASE("sum", last(lks_sum(x, 0, NULL, 0, LKS_I64)) == 7);
    CASE("index_select", at(lks_index_select(x, 0, i), 0) == 7);
    CASE("gather", at(lks_gather(x, 0, i), 0) == 7);
    CASE("scatter", last(lks_scatter_value(x, 0, i, 9)) == 9);
    CASE("flip", at(lks_flip(x, 1, (int[]){0}), 0) == 7);
    CASE("roll", at(lks_roll(x, 1, (int64_t[]){1}, (int[]){0}), 0) == 7);
    CASE("slice with a step", last(lks_contiguous(lks_slice(x, 0, 1, N, 2))) == 7);
    CASE("a comparison", last(lks_sum(lks_ne(x, lks_zeros(ctx, LKS_U8, 0, NULL)), 0, NULL, 0, LKS_I64)) == 1);
    lks_tensor *parts[2] = {lks_narrow(x, 0, 0, half), lks_narrow(x, 0, half, N - half)};
    CASE("cat", last(lks_cat(2, parts, 0)) == 7);
    CASE("pad", at(lks_pad(lks_narrow(x, 0, 1, less), 2, (int64_t[]){1, 0}, 5), 0) == 5);
    lks_scope_end(ctx);
}

static void halves(void)
{
    int64_t n = N, rows[2] = {N / 2, 2}, few[2] = {2, N / 2};
    int first = 0, second = 1;
    lks_scope_begin(ctx);
    lks_tensor *x = zeros_and(LKS_F16, 1, &n, 2);
    CASE("relu", last(lks_relu(x)) == 2);
    CASE("add", last(lks_add_scalar(x, 1)) == 3);
    CASE("mean, in float32", last(lks_mean(x, 0, NULL, 0, LKS_F32)) == (double)(float)(2.0 / N));
    CASE("a sum over many rows", last(lks_sum(lks_reshape(x, 2, rows), 1, &first, 0, LKS_F32)) == 2);
    CASE("a sum of each row", last(lks_sum(lks_reshape(x, 2, rows), 1, &second, 0, LKS_F32)) == 2);
    CASE("a sum of long rows", last(lks_sum(lks_reshape(x, 2, few), 1, &second, 0, LKS_F32)) == 2);
    CASE("cumsum", last(lks_cumsum(x, 0, LKS_DTYPE_NONE)) == 2);
    CASE("softmax of short rows", fabs(last(lks_softmax(lks_reshape(x, 2, rows), 1)) - 0.880797) < 1e-3);
    CASE("softmax of long rows", last(lks_softmax(lks_reshape(x, 2, few), 1)) < 1e-6);
    CASE("layer norm", last(lks_layer_norm(lks_reshape(x, 2, rows), 1, LKS_NONE, LKS_NONE, 1e-5)) == 1);
    CASE("dropout", isfinite(last(lks_dropout(x, 0.5))));
    CASE("float16 to float32 and back", last(lks_to(lks_to(lks_narrow(x, 0, 3, N - 3), LKS_BF16), LKS_F16)) == 2);
    lks_scope_end(ctx);
}

static void gradients(void)
{
    int64_t n = N;
    lks_scope_begin(ctx);
    lks_tensor *x = zeros_and(LKS_F16, 1, &n, 2);
    lks_set_requires_grad(x, 1);
    ok(lks_backward(lks_sum(lks_relu(x), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) == LKS_OK &&
           last(lks_grad(x)) == 1 && at(lks_grad(x), N - 2) == 0,
       "a gradient through relu and sum");
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

static void images(void)
{
    static const int64_t shape[4] = {1, 1, ROWS, ROWS}, two[2] = {2, 2}, one[2] = {1, 1}, zero[2] = {0, 0},
                         kernel[4] = {1, 1, 1, 1};
    lks_scope_begin(ctx);
    lks_tensor *x = zeros_and(LKS_F16, 4, shape, 3), *w = lks_keep(lks_full(ctx, LKS_F16, 4, kernel, 2));
    ok(!lks_max_pool2d(x, two, two, zero) && lks_error_code(ctx) == LKS_ERR_SHAPE, "max pool, a plane: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
    CASE("average pool", last(lks_avg_pool(x, two, NULL, NULL, 0, 1, 0)) == 0.75);
    CASE("convolution of one image", last(lks_conv2d(x, w, LKS_NONE, one, zero, one, 1)) == 6);
    lks_scope_end(ctx);
    static const int64_t many[4] = {(1 << 25) + 1, 1, 8, 8};
    lks_scope_begin(ctx);
    x = zeros_and(LKS_F16, 4, many, 3);
    CASE("convolution of many images", last(lks_conv2d(x, w, LKS_NONE, one, zero, one, 1)) == 6);
    CASE("max pool of many images", last(lks_max_pool2d(x, two, two, zero)) == 3);
    lks_scope_end(ctx);
    lks_release(w);
}

static void tables(void)
{
    static const int64_t tall[2] = {ROWS, ROWS}, column[2] = {ROWS, 1}, wide = 2;
    int64_t index[2] = {ROWS - 1, 0};
    lks_scope_begin(ctx);
    lks_tensor *x = zeros_and(LKS_F16, 2, tall, 3), *one = lks_full(ctx, LKS_F16, 2, column, 1);
    lks_tensor *i = lks_from_host(ctx, LKS_I64, 1, &wide, index);
    CASE("matrix product, a large factor", last(lks_matmul(x, one)) == 3);
    CASE("matrix product, transposed", last(lks_matmul(lks_transpose(x, 0, 1), one)) == 3);
    CASE("matrix product, a large result", last(lks_matmul(one, lks_transpose(one, 0, 1))) == 1);
    CASE("embedding", at(lks_embedding(x, i), ROWS - 1) == 3);
    CASE("a transposed copy", last(lks_contiguous(lks_transpose(x, 0, 1))) == 3);
    lks_scope_end(ctx);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (!getenv("LKS_TEST_LARGE")) {
        plan(1);
        skip(1, "needs 20 GB of memory and minutes; set LKS_TEST_LARGE=1");
    } else {
        ctx = context_on("cpu", NULL, 0);
        if (!ctx) bail("no context");
        lks_no_grad_begin(ctx);
        bytes();
        halves();
        images();
        tables();
        lks_no_grad_end(ctx);
        gradients();
        ok(lks_context_destroy(&ctx) == LKS_OK, "nothing is left");
    }
    MPI_Finalize();
    return done();
}
