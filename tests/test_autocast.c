/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_autocast.c - regions: nesting, what is cast to what, casts that are kept and when they are not, sealed
 * parameters and their low-precision copies; the policies against the published lists. Each row's dtype is in
 * test_ops.c.
 */
#include "arrays.h"
#include "errors.h"
#include "autocast/autocast.h"
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <lockstep/scaler.h>

static lks_context *ctx;

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}

static lks_tensor *full(lks_dtype dtype, double v, int64_t rows, int64_t columns)
{
    return lks_full(ctx, dtype, SHAPE(rows, columns), v);
}

static lks_tensor *leaf(lks_tensor *t)
{
    lks_set_requires_grad(t, 1);
    return t;
}

static double item(lks_tensor *t)
{
    double v = NAN;
    if (!t || lks_item(t, &v) != LKS_OK) {
        diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    return v;
}

static int fails(lks_status s, lks_status want, const char *a, const char *b)
{
    return recorded(ctx, s == want, want, a, b);
}

#define BEGIN(dtype) lks_autocast_begin(ctx, dtype, 1, 1)
#define END() lks_autocast_end(ctx)
#define DTYPE(t) lks_dtype_name((t) ? lks_dtype_of(t) : LKS_DTYPE_NONE)

/* --- policies --- */

/* Rows that the published lists know by other names: on CUDA, on the CPU. */
static const struct { const char *row, *cuda, *cpu; } other_names[] = {
    {"attention", "scaled_dot_product_attention", "scaled_dot_product_attention"},
    {"cross_entropy", "cross_entropy", "cross_entropy_loss"},
    {"cross_entropy_soft", "cross_entropy", "cross_entropy_loss"},
    {"gru", "GRUCell", "mkldnn_rnn_layer"},
    {"gru_cell", "GRUCell", "GRUCell"},
    {"linalg_lu_factor", "_lu_with_info", "_lu_with_info"},
    {"lstm", "LSTMCell", "mkldnn_rnn_layer"},
    {"lstm_cell", "LSTMCell", "LSTMCell"},
    {"multi_head_attention", "_native_multi_head_attention", "_native_multi_head_attention"},
    {"pow_scalar", "pow", "pow"},
    {"rnn", "RNNCell", "mkldnn_rnn_layer"},
    {"rnn_cell", "RNNCell", "RNNCell"},
    {"rpow", "__rpow__", "__rpow__"},
    {"rdiv", "__rdiv__", "__rdiv__"},
    {"grid_sampler_2d", "grid_sample", "grid_sampler_2d"},
    {"grid_sampler_3d", "grid_sample", "grid_sampler_3d"},
};

/* Of op `name` on `device` in tests/policies.tsv; "none" if it is not there. "" without the file. */
static const char *published(const char *device, const char *name)
{
    static char path[4096], line[512], found[32];
    const char *top = getenv("LKS_SRCDIR");
    snprintf(path, sizeof path, "%s/tests/policies.tsv", top ? top : "..");
    FILE *f = fopen(path, "r");
    if (!f) return "";
    snprintf(found, sizeof found, "none");
    while (fgets(line, sizeof line, f)) {
        char d[16], p[16], n[256];
        if (sscanf(line, "%15s %15s %255s", d, p, n) == 3 && !strcmp(d, device) && !strcmp(n, name))
            snprintf(found, sizeof found, "%s", p);
    }
    fclose(f);
    return found;
}

static const char *policy_text(int policy)
{
    static const char *const text[] = {"none", "lower", "fp32", "promote", "error"};
    return policy >= 0 && policy <= LKS_POLICY_ERROR ? text[policy] : "unknown";
}

static void test_policies(void)
{
    for (int i = 0; i < lks_op_count(); i++) {
        const char *name = lks_op_name(i), *on_cuda = name, *on_cpu = name;
        char cuda[32], cpu[32];
        for (size_t k = 0; k < sizeof other_names / sizeof *other_names; k++)
            if (!strcmp(other_names[k].row, name)) on_cuda = other_names[k].cuda, on_cpu = other_names[k].cpu;
        snprintf(cuda, sizeof cuda, "%s", published("cuda", on_cuda));
        snprintf(cpu, sizeof cpu, "%s", published("cpu", on_cpu));
        int c = lks_autocast_policy(name, LKS_TABLE_CUDA), p = lks_autocast_policy(name, LKS_TABLE_CPU);
        ok(!strcmp(policy_text(c), cuda) && !strcmp(policy_text(p), cpu), "%s: cuda %s, cpu %s", name, cuda, cpu);
    }
    is_int(lks_autocast_policy("no_such_op", LKS_TABLE_CPU), LKS_ERR_NOT_FOUND, "an unknown name");
    is_int(lks_autocast_policy("matmul", 2), LKS_ERR_ARGUMENT, "an unknown table");
    is_int(lks_autocast_table(ctx), LKS_TABLE_CPU, "the table of this device");
    ok(fails(lks_autocast_set_table(ctx, 2), LKS_ERR_ARGUMENT, "lks_autocast_set_table", "2"), "no third table");
    is_int(lks_autocast_table(ctx), LKS_TABLE_CPU, "the table stays");
}

/* --- regions --- */

static void test_nesting(void)
{
    lks_tensor *a = full(LKS_F32, 1, 2, 2);
    ok(!lks_autocast_enabled(ctx) && lks_autocast_depth(ctx) == 0, "off at first");
    is_str(DTYPE(lks_matmul(a, a)), "float32", "outside");
    BEGIN(LKS_DTYPE_NONE);
    ok(lks_autocast_enabled(ctx) && lks_autocast_dtype(ctx) == LKS_BF16, "bfloat16 by default");
    is_str(DTYPE(lks_matmul(a, a)), "bfloat16", "inside");
    BEGIN(LKS_F16);
    is_str(DTYPE(lks_matmul(a, a)), "float16", "another dtype inside");
    lks_autocast_begin(ctx, LKS_BF16, 0, 1);
    ok(!lks_autocast_enabled(ctx) && lks_autocast_depth(ctx) == 3, "off inside");
    is_str(DTYPE(lks_matmul(a, a)), "float32", "nothing is cast");
    BEGIN(LKS_BF16);
    is_str(DTYPE(lks_matmul(a, a)), "bfloat16", "on again inside off");
    END();
    is_str(DTYPE(lks_matmul(a, a)), "float32", "back to off");
    END();
    is_str(DTYPE(lks_matmul(a, a)), "float16", "back to float16");
    END();
    is_str(DTYPE(lks_matmul(a, a)), "bfloat16", "back to bfloat16");
    END();
    is_str(DTYPE(lks_matmul(a, a)), "float32", "back outside");
    ok(fails(END(), LKS_ERR_STATE, "lks_autocast_end", "no region"), "an end too many");
    ok(fails(BEGIN(LKS_F32), LKS_ERR_DTYPE, "lks_autocast_begin", "float32") && lks_autocast_depth(ctx) == 0,
       "float32 is no region");
    ok(fails(BEGIN(LKS_I32), LKS_ERR_DTYPE, "lks_autocast_begin", "int32"), "nor is int32");
    /* Mixed products are an error outside and cast inside. */
    lks_tensor *h = full(LKS_F16, 1, 2, 2);
    ok(!lks_matmul(a, h) && fails(LKS_ERR_DTYPE, LKS_ERR_DTYPE, "lks_matmul", "float16"), "unlike dtypes outside");
    BEGIN(LKS_BF16);
    is_str(DTYPE(lks_matmul(a, h)), "bfloat16", "float32 by float16 in a bfloat16 region");
    END();
    for (int i = 0; i < 50; i++) BEGIN(i % 2 ? LKS_F16 : LKS_BF16);
    is_int(lks_autocast_depth(ctx), 50, "50 regions");
    for (int i = 0; i < 50; i++) END();
    ok(lks_autocast_depth(ctx) == 0 && !lks_autocast_enabled(ctx), "all closed");
}

static void test_inner_off(void) /* B25 */
{
    double exact = 1 + 0x1p-9;
    lks_tensor *v = full(LKS_F32, exact, 1, 1), *one = full(LKS_F32, 1, 1, 1);
    for (int broken = 0; broken < 2; broken++) {
        BEGIN(LKS_BF16);
        is_double(item(lks_matmul(v, one)), 1, 0, "B25: outside, rounded");
        lks_autocast_begin(ctx, LKS_BF16, 0, 1);
        is_double(item(lks_matmul(v, one)), exact, 0, "B25: inside, as it is");
        if (broken) {
            ok(!lks_matmul(v, full(LKS_F32, 1, 2, 2)) && lks_error_code(ctx) == LKS_ERR_SHAPE, "an op fails inside");
            lks_error_clear(ctx);
        }
        END();
        is_double(item(lks_matmul(v, one)), 1, 0, "B25: outside again");
        END();
        ok(!lks_autocast_enabled(ctx) && lks_autocast_depth(ctx) == 0 && lks_autocast_dtype(ctx) == LKS_BF16,
           "as before");
    }
}

static void test_who(void)
{
    lks_tensor *i = lks_arange(ctx, LKS_I64, 3), *f = lks_ones(ctx, LKS_F32, SHAPE(3));
    lks_tensor *d = lks_ones(ctx, LKS_F64, SHAPE(3));
    lks_tensor *h = lks_ones(ctx, LKS_F16, SHAPE(3)), *b = lks_ones(ctx, LKS_BF16, SHAPE(3));
    lks_tensor *dd = full(LKS_F64, 1, 2, 2), *ff = full(LKS_F32, 1, 2, 2);
    BEGIN(LKS_BF16);
    is_str(DTYPE(lks_matmul(dd, dd)), "float64", "float64 is not cast");
    ok(!lks_matmul(dd, ff) && fails(LKS_ERR_DTYPE, LKS_ERR_DTYPE, "lks_matmul", "float64"), "nor mixed with what is");
    is_str(DTYPE(lks_add(i, i)), "int64", "integers are not");
    is_str(DTYPE(lks_add(f, h)), "float32", "add promotes by itself");
    is_str(DTYPE(lks_add(b, h)), "float32", "bfloat16 with float16, too");
    is_str(DTYPE(lks_mul(h, h)), "float16", "mul keeps its dtype");
    is_str(DTYPE(lks_to(f, LKS_F16)), "float16", "an explicit cast is what it says");
    is_str(DTYPE(lks_sum(h, 0, NULL, 0, LKS_F64)), "float64", "an explicit result dtype is, too");
    is_str(DTYPE(lks_mean(b, 0, NULL, 0, LKS_DTYPE_NONE)), "bfloat16", "mean has no policy");
    is_str(DTYPE(lks_sum(b, 0, NULL, 0, LKS_DTYPE_NONE)), "bfloat16", "nor has sum on the cpu table");
    lks_tensor *dst = full(LKS_F32, 0, 2, 2);
    ok(lks_copy_(dst, lks_matmul(ff, ff)) == LKS_OK && lks_dtype_of(dst) == LKS_F32, "in-place forms keep their dtype");
    lks_tensor *e = lks_embedding(ff, lks_zeros(ctx, LKS_I64, SHAPE(2)));
    is_str(DTYPE(e), "float32", "an embedding keeps the dtype of its weight");
    /* promote */
    lks_tensor *x[3] = {b, b, b};
    is_str(DTYPE(lks_cat(3, x, 0)), "bfloat16", "cat of alike");
    x[1] = f;
    is_str(DTYPE(lks_cat(3, x, 0)), "float32", "the widest");
    x[1] = h;
    is_str(DTYPE(lks_cat(3, x, 0)), "float32", "two reduced ones");
    x[0] = x[1] = x[2] = h;
    is_str(DTYPE(lks_cat(3, x, 0)), "float16", "alike, whatever the region's dtype is");
    x[1] = i;
    is_str(DTYPE(lks_cat(3, x, 0)), "float16", "integers don't count");
    x[1] = d;
    is_str(DTYPE(lks_cat(3, x, 0)), "float64", "with a float64 ordinary promotion holds");
    x[0] = x[1] = x[2] = i;
    is_str(DTYPE(lks_cat(3, x, 0)), "int64", "integers alone");
    /* cuda table */
    lks_autocast_set_table(ctx, LKS_TABLE_CUDA);
    is_str(DTYPE(lks_exp(b)), "float32", "exp in float32");
    is_str(DTYPE(lks_sum(h, 0, NULL, 0, LKS_DTYPE_NONE)), "float32", "sum to float32");
    is_str(DTYPE(lks_sum(h, 0, NULL, 0, LKS_F16)), "float16", "unless the call says otherwise");
    is_str(DTYPE(lks_sum(i, 0, NULL, 0, LKS_DTYPE_NONE)), "int64", "sum of integers");
    is_str(DTYPE(lks_sum(d, 0, NULL, 0, LKS_DTYPE_NONE)), "float64", "sum of float64");
    is_str(DTYPE(lks_exp(d)), "float64", "exp of float64");
    is_str(DTYPE(lks_mean(b, 0, NULL, 0, LKS_DTYPE_NONE)), "bfloat16", "mean has none here either");
    is_str(DTYPE(lks_layer_norm(b, 1, LKS_NONE, LKS_NONE, 1e-5)), "float32", "layer_norm in float32");
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    is_str(DTYPE(lks_layer_norm(b, 1, f, f, 1e-5)), "bfloat16", "layer_norm without a policy returns x's dtype");
    is_str(DTYPE(lks_exp(b)), "bfloat16", "exp without one");
    END();
}

static void test_losses(void) /* B28, B30 */
{
    lks_tensor *logits = lks_reshape(lks_affine(lks_arange(ctx, LKS_F32, 2), -20, 20), SHAPE(1, 2));
    lks_tensor *target = lks_ones(ctx, LKS_I64, SHAPE(1));
    BEGIN(LKS_F16);
    lks_tensor *half = lks_to(logits, LKS_F16);
    lks_tensor *loss = lks_cross_entropy(half, target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
    is_str(DTYPE(loss), "float32", "B28: the loss is float32");
    is_double(item(loss), 20.0, 1e-5, "B28: fused");
    lks_tensor *by_hand = lks_neg(lks_select(lks_log(lks_softmax(half, -1)), 1, 1));
    is_double(item(by_hand), INFINITY, 0, "B28: softmax and log without a policy lose the tail");
    lks_autocast_set_table(ctx, LKS_TABLE_CUDA);
    by_hand = lks_neg(lks_select(lks_log(lks_softmax(half, -1)), 1, 1));
    is_double(item(by_hand), 20.0, 1e-5, "B28: with the cuda table they do not");
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    END();
    /* A loss of 36.07 from bfloat16 logits: log(1 + e^36) and a shift that bfloat16 holds would be 36.0 there. */
    double rows[4] = {0, 36, 0, 36.25};
    lks_tensor *l = lks_to(lks_from_host(ctx, LKS_F64, SHAPE(2, 2), rows), LKS_BF16);
    BEGIN(LKS_BF16);
    loss = lks_cross_entropy(l, lks_zeros(ctx, LKS_I64, SHAPE(2)), LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
    END();
    is_str(DTYPE(loss), "float32", "B30: float32");
    is_double(item(loss), 36.125, 1e-5, "B30: with its fraction");
}

/* --- casts that are kept --- */

static void test_cache(void)
{
    lks_tensor *w = leaf(full(LKS_F32, 1, 4, 4)), *x = full(LKS_F32, 2, 4, 4), *v;
    int64_t casts = lks_autocast_casts(ctx), hits = lks_autocast_hits(ctx);
    lks_matmul(w, w);
    is_int(lks_autocast_casts(ctx), casts, "outside nothing is cast");
    BEGIN(LKS_BF16);
    for (int i = 0; i < 3; i++) lks_matmul(x, w);
    is_int(lks_autocast_casts(ctx) - casts, 4, "w once, x each time");
    is_int(lks_autocast_hits(ctx) - hits, 2, "two hits");
    v = lks_transpose(w, 0, 1);
    casts = lks_autocast_casts(ctx);
    lks_matmul(x, v);
    lks_matmul(x, v);
    is_int(lks_autocast_casts(ctx) - casts, 4, "a view is not kept");
    casts = lks_autocast_casts(ctx);
    BEGIN(LKS_F16);
    lks_matmul(w, w);
    is_int(lks_autocast_casts(ctx) - casts, 1, "another dtype is another cast");
    END();
    lks_matmul(w, w);
    is_int(lks_autocast_casts(ctx) - casts, 1, "both are kept to the outermost end");
    lks_no_grad_begin(ctx);
    lks_matmul(w, w);
    is_int(lks_autocast_casts(ctx) - casts, 2, "under no_grad it is made anew");
    lks_no_grad_end(ctx);
    lks_tensor *y = lks_matmul(x, w);
    ok(lks_requires_grad(y), "and after it again with a graph");
    lks_autocast_begin(ctx, LKS_BF16, 1, 0);
    casts = lks_autocast_casts(ctx);
    lks_matmul(w, w);
    is_int(lks_autocast_casts(ctx) - casts, 2, "a region without cache makes each cast");
    END();
    END();
    casts = lks_autocast_casts(ctx);
    BEGIN(LKS_BF16);
    lks_matmul(x, w);
    END();
    is_int(lks_autocast_casts(ctx) - casts, 2, "a new region starts with nothing");
    /* Many leaves: the table grows. */
    lks_tensor *many[200];
    for (int i = 0; i < 200; i++) many[i] = leaf(full(LKS_F32, i, 1, 1));
    BEGIN(LKS_BF16);
    for (int i = 0; i < 200; i++) lks_matmul(many[i], many[i]);
    casts = lks_autocast_casts(ctx);
    int good = 1;
    for (int i = 0; i < 200; i++) good &= item(lks_matmul(many[i], many[i])) == (double)((i * i)) || i > 15;
    ok(good && lks_autocast_casts(ctx) == casts, "200 leaves are all kept");
    END();
    /* A leaf that ends inside the region. */
    BEGIN(LKS_BF16);
    for (int i = 0; i < 50; i++) {
        lks_scope_begin(ctx);
        lks_tensor *short_lived = leaf(full(LKS_F32, i, 1, 1));
        good &= item(lks_matmul(short_lived, short_lived)) == item(lks_mul(short_lived, short_lived)) || i > 15;
        lks_scope_end(ctx);
    }
    END();
    ok(good, "an address that is used again finds no old cast");
}

static void write_by(int how, lks_tensor *w, double v)
{
    float f = (float)v;
    if (how == 0) lks_fill_(w, v);
    if (how == 1) lks_copy_(w, full(LKS_F32, v, 1, 1));
    if (how == 2) lks_set_from_host(w, &f, sizeof f);
    if (how == 3) lks_fill_(lks_detach(w), v);
    if (how == 4) lks_fill_(lks_select(lks_detach(w), 0, 0), v);
    if (how == 5) lks_uniform_(w, v, v + 0x1p-20);
}

static void test_stale(void) /* B23 */
{
    static const char *const ways[] = {"fill", "copy", "the host", "a detached tensor", "a view", "random numbers"};
    for (int sealed = 0; sealed < 2; sealed++)
        for (int how = 0; how < 6; how++) {
            lks_params *ps = NULL;
            lks_tensor *w;
            lks_scope_begin(ctx);
            if (sealed) {
                lks_params_create(ctx, &ps);
                lks_params_add(ps, "w", LKS_F32, SHAPE(1, 1), &w);
                lks_params_seal(ps);
            } else {
                w = leaf(full(LKS_F32, 0, 1, 1));
            }
            lks_no_grad_begin(ctx);
            lks_fill_(w, 1);
            lks_no_grad_end(ctx);
            lks_tensor *x = full(LKS_F32, 2, 1, 1);
            BEGIN(LKS_BF16);
            double one = item(lks_matmul(w, x));
            lks_no_grad_begin(ctx);
            write_by(how, w, 3);
            lks_no_grad_end(ctx);
            double two = item(lks_matmul(w, x));
            END();
            ok(one == 2 && two == 6, "B23: %s weight written inside a region by %s", sealed ? "a sealed" : "a",
               ways[how]);
            lks_params_destroy(&ps);
            lks_scope_end(ctx);
        }
}

static void test_graph_of_casts(void)
{
    /* The gradient comes back to the float32 leaf, through kept casts and fresh ones, at each use. */
    lks_tensor *w = leaf(full(LKS_F32, 3, 1, 1)), *x = leaf(full(LKS_F32, 2, 1, 1));
    BEGIN(LKS_F16);
    lks_tensor *h = lks_matmul(lks_matmul(x, w), w); /* x w^2 */
    END();
    ok(lks_backward(h, LKS_NONE, 1) == LKS_OK && lks_dtype_of(lks_grad(w)) == LKS_F32, "float32 gradients");
    ok(item(lks_grad(w)) == 12 && item(lks_grad(x)) == 9, "of both uses");
    BEGIN(LKS_BF16);
    ok(lks_backward(h, LKS_NONE, 0) == LKS_OK && item(lks_grad(w)) == 24, "backward in another region is the same");
    ok(lks_autocast_depth(ctx) == 1 && lks_autocast_enabled(ctx), "and leaves it open");
    END();
    /* A cast in the middle: gradients of results that were cast. */
    lks_zero_grad(w);
    lks_tensor *mid, *g[2], *in[2];
    BEGIN(LKS_BF16);
    mid = lks_mul_scalar(w, 2);
    h = lks_matmul(mid, mid);
    END();
    in[0] = mid, in[1] = w;
    ok(lks_gradients(h, LKS_NONE, 2, in, 0, 0, g) == LKS_OK && lks_dtype_of(g[0]) == LKS_F32 && item(g[0]) == 12 &&
           item(g[1]) == 24, "lks_gradients of a result that was cast");
    /* Second order through a region. */
    BEGIN(LKS_BF16);
    h = lks_matmul(lks_matmul(w, w), w);
    END();
    lks_tensor *g1, *g2;
    ok(lks_gradients(h, LKS_NONE, 1, &w, 0, 1, &g1) == LKS_OK && item(g1) == 27 &&
           lks_gradients(g1, LKS_NONE, 1, &w, 0, 0, &g2) == LKS_OK && item(g2) == 18, "second order: 6 w");
    /* A leaf frozen within the region. */
    BEGIN(LKS_BF16);
    lks_tensor *a = lks_matmul(w, x);
    lks_set_requires_grad(w, 0);
    lks_tensor *b = lks_matmul(w, x);
    lks_set_requires_grad(w, 1);
    END();
    lks_zero_grad(w);
    lks_zero_grad(x);
    ok(lks_backward(b, LKS_NONE, 0) == LKS_OK && item(lks_grad(x)) == 3 && !lks_grad(w), "frozen: no gradient for w");
    ok(lks_backward(a, LKS_NONE, 0) == LKS_OK && item(lks_grad(w)) == 2, "recorded before: one for w");
    lks_zero_grad(w);
    BEGIN(LKS_BF16);
    lks_set_requires_grad(w, 0);
    lks_matmul(w, x);
    lks_set_requires_grad(w, 1);
    lks_tensor *c = lks_matmul(w, x);
    END();
    ok(lks_requires_grad(c) && lks_backward(c, LKS_NONE, 0) == LKS_OK && lks_grad(w) && item(lks_grad(w)) == 2,
       "cast while frozen, used when free again");
    /* Saved casts are guarded like any saved tensor. */
    BEGIN(LKS_BF16);
    c = lks_matmul(x, w);
    END();
    lks_no_grad_begin(ctx);
    lks_fill_(w, 1);
    lks_no_grad_end(ctx);
    lks_zero_grad(x);
    ok(lks_backward(c, LKS_NONE, 0) == LKS_OK && item(lks_grad(x)) == 3,
       "what was saved is the cast, and that did not change");
    /* An error inside a region leaves no region behind that the program did not open. */
    BEGIN(LKS_BF16);
    ctx->base.fail_at = 1;
    lks_tensor *none = lks_matmul(x, w);
    ctx->base.fail_at = 0;
    ok(!none && lks_autocast_depth(ctx) == 1, "memory runs out inside");
    lks_error_clear(ctx);
    END();
}

/* Sealed parameters have permanent low-precision copies that the update writes. */
static void test_twins(void)
{
    lks_params *ps;
    lks_optim *opt;
    lks_tensor *w, *b;
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, SHAPE(1, 1), &w);
    lks_params_add(ps, "b", LKS_F32, SHAPE(1), &b);
    lks_no_grad_begin(ctx);
    lks_fill_(w, 4);
    lks_no_grad_end(ctx);
    ok(lks_optim_create(ps, LKS_SGD, &opt) == LKS_OK && lks_optim_set_lr(opt, -1, 0.5) == LKS_OK, "an optimizer seals");
    lks_scope_begin(ctx);
    lks_tensor *x = full(LKS_F32, 2, 1, 1);
    int64_t casts = lks_autocast_casts(ctx);
    BEGIN(LKS_BF16);
    lks_tensor *y = lks_linear(x, w, b);
    is_int(lks_autocast_casts(ctx) - casts, 3, "x, w and b are cast");
    is_double(item(lks_linear(x, w, b)), 8, 0, "4 times 2");
    is_int(lks_autocast_casts(ctx) - casts, 4, "then x alone");
    END();
    lks_backward(lks_sum(y, 0, NULL, 0, LKS_F32), LKS_NONE, 0);
    ok(item(lks_grad(w)) == 2 && item(lks_grad(b)) == 1 && lks_grad(w) == w->grad_slot, "gradients in their slots");
    BEGIN(LKS_BF16);
    y = lks_linear(x, w, b);
    END();
    lks_status s = lks_optim_step(opt, NULL);
    ok(s == LKS_OK, "a step: %s", lks_error(ctx));
    ok(fails(lks_backward(lks_sum(y, 0, NULL, 0, LKS_F32), LKS_NONE, 0), LKS_ERR_MODIFIED, "linear", "changed"),
       "a graph from before the step saved copies that the step wrote");
    casts = lks_autocast_casts(ctx);
    BEGIN(LKS_BF16);
    is_double(item(lks_linear(x, w, b)), 5.5, 0, "the copies follow the step: 3 times 2 - 0.5");
    is_int(lks_autocast_casts(ctx) - casts, 1, "without a cast");
    END();
    BEGIN(LKS_F16);
    is_double(item(lks_linear(x, w, b)), 5.5, 0, "the float16 copy");
    is_int(lks_autocast_casts(ctx) - casts, 4, "is made when first asked for");
    END();
    casts = lks_autocast_casts(ctx);
    lks_params_zero_grad(ps);
    BEGIN(LKS_F16);
    lks_backward(lks_sum(lks_linear(x, w, b), 0, NULL, 0, LKS_F32), LKS_NONE, 0);
    END();
    lks_optim_step(opt, NULL);
    BEGIN(LKS_BF16);
    is_double(item(lks_linear(x, w, b)), 3, 0, "both follow: bfloat16");
    END();
    BEGIN(LKS_F16);
    is_double(item(lks_linear(x, w, b)), 3, 0, "float16");
    END();
    is_int(lks_autocast_casts(ctx) - casts, 3, "x alone was cast, three times");
    /* Under no_grad the copy is used as well, and no graph comes of it. */
    casts = lks_autocast_casts(ctx);
    lks_no_grad_begin(ctx);
    BEGIN(LKS_BF16);
    y = lks_linear(x, w, b);
    END();
    lks_no_grad_end(ctx);
    ok(!lks_requires_grad(y) && lks_autocast_casts(ctx) - casts == 1, "evaluation uses the copies");
    lks_scope_end(ctx);
    lks_optim_destroy(&opt);
    lks_params_destroy(&ps);
    is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "nothing is left");
}

static void test_two(const char *device)
{
    lks_context *other = context_on(device, NULL, 1);
    BEGIN(LKS_F16);
    ok(!lks_autocast_enabled(other) && lks_autocast_depth(other) == 0, "another context has regions of its own");
    lks_autocast_begin(other, LKS_BF16, 1, 1);
    lks_autocast_set_table(other, LKS_TABLE_CUDA);
    ok(lks_autocast_dtype(ctx) == LKS_F16 && lks_autocast_table(ctx) == LKS_TABLE_CPU &&
       lks_autocast_dtype(other) == LKS_BF16,
       "neither changes the other");
    END();
    ok(lks_autocast_enabled(other), "nor ends it");
    lks_tensor *w = lks_ones(other, LKS_F32, SHAPE(2, 2));
    lks_set_requires_grad(w, 1);
    lks_matmul(w, w);
    is_int(lks_context_destroy(&other), LKS_OK, "destroyed with a region open and casts kept");
}

int main(void)
{
    static const char *const devices[] = {"cpu", "far"};
    for (int i = 0; i < 2; i++) {
        diag("device %s", devices[i]);
        ctx = context_on(devices[i], NULL, 2);
        if (!ctx) bail("no context on %s", devices[i]);
        static void (*const tests[])(void) = {
            test_policies, test_nesting, test_inner_off, test_who, test_losses, test_cache, test_stale,
            test_graph_of_casts};
        for (int k = 0; k < (int)(sizeof tests / sizeof *tests); k++) {
            lks_scope_begin(ctx);
            tests[k]();
            if (lks_error_code(ctx)) {
                ok(0, "an error is left: %s", lks_error(ctx));
                lks_error_clear(ctx);
            }
            is_int(lks_autocast_depth(ctx), 0, "no region is left open");
            lks_scope_end(ctx);
            is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "no tensor and no node is left");
        }
        test_twins();
        test_two(devices[i]);
        is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed");
    }
    lks_finalize();
    return done();
}
