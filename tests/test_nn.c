/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_nn.c - initialisers and modules: names, starts, shapes, values against ops written out, train and eval, running
 * statistics, training that learns, failures that leave nothing behind.
 */
#include "arrays.h"
#include "nn/params.h"

static double norm_of(lks_context *ctx, lks_tensor *t, double *mean)
{
    double *v = values_of(ctx, t), s = 0, q = 0;
    int64_t n = lks_numel(t);
    for (int64_t i = 0; i < n; i++) s += v[i];
    for (int64_t i = 0; i < n; i++) q += (v[i] - s / (double)n) * (v[i] - s / (double)n);
    free(v);
    *mean = s / (double)n;
    return sqrt(q / (double)n);
}

static double largest(lks_context *ctx, lks_tensor *t)
{
    double *v = values_of(ctx, t), m = 0;
    for (int64_t i = 0; i < lks_numel(t); i++) m = fmax(m, fabs(v[i]));
    free(v);
    return m;
}

static lks_tensor *param(lks_params *ps, const char *name)
{
    int i = lks_params_find(ps, name);
    if (i < 0) diag("no %s", name);
    return lks_params_tensor(ps, i);
}

static void starts(lks_context *ctx)
{
    int64_t s[2] = {200, 300};
    double mean, std;
    lks_scope_begin(ctx);
    lks_tensor *w = lks_zeros(ctx, LKS_F32, 2, s);
    lks_set_requires_grad(w, 1);
    ok(lks_init_normal(w, 0.02) == LKS_OK, "normal");
    std = norm_of(ctx, w, &mean);
    ok(fabs(std - 0.02) < 4e-4 && fabs(mean) < 5e-4, "its moments %g %g", mean, std);
    lks_init_kaiming_uniform(w, 300);
    std = norm_of(ctx, w, &mean);
    double bound = 1 / sqrt(300.0);
    ok(largest(ctx, w) <= bound * (1 + 1e-6) && fabs(std - bound / sqrt(3)) < 1e-3, "kaiming uniform");
    lks_init_xavier_uniform(w, 300, 200);
    bound = sqrt(6.0 / 500);
    ok(largest(ctx, w) <= bound * (1 + 1e-6) && largest(ctx, w) > 0.99 * bound, "xavier uniform");
    lks_init_kaiming_normal(w, 300);
    std = norm_of(ctx, w, &mean);
    ok(fabs(std - sqrt(2.0 / 300)) < 2e-3, "kaiming normal");
    ok(lks_init_kaiming_uniform(w, 0) == LKS_ERR_ARGUMENT, "a fan of 0: %s", lks_error(ctx));
    lks_error_clear(ctx);
    /* Replicated also while rows of a batch are declared. */
    lks_tensor *a = lks_zeros(ctx, LKS_F32, 2, s), *b = lks_zeros(ctx, LKS_F32, 2, s);
    lks_random_rows(ctx, 0, 0);
    lks_init_normal(a, 1);
    lks_random_rows(ctx, 8, 4);
    lks_init_normal(b, 1);
    lks_random_rows(ctx, 0, 0);
    double *va = values_of(ctx, a);
    ok(close_to(ctx, b, va, 60000, 0), "initialisers do not depend on rows of a batch");
    free(va);
    lks_scope_end(ctx);
}

static void layers(lks_context *ctx)
{
    lks_params *ps = NULL;
    lks_module *lin = NULL, *emb = NULL, *conv = NULL, *ln = NULL, *drop = NULL, *bare = NULL;
    lks_params_create(ctx, &ps);
    ok(lks_linear_create(ps, "a", 5, 3, 1, &lin) == LKS_OK && lks_linear_create(ps, "", 5, 3, 0, &bare) == LKS_OK &&
           lks_embedding_create(ps, "e", 7, 4, &emb) == LKS_OK &&
           lks_conv2d_create(ps, "c", 2, 6, 3, 1, 1, 1, &conv) == LKS_OK &&
           lks_layer_norm_create(ps, "n", 3, 1e-5, &ln) == LKS_OK && lks_dropout_create(ps, 0.5, &drop) == LKS_OK,
       "layers: %s", lks_error(ctx));
    static const char *const names[] = {"a.weight", "a.bias",   "weight",   "e.weight",
                                        "c.weight", "c.bias", "n.weight", "n.bias"};
    int same = lks_params_count(ps) == 8;
    for (int i = 0; i < 8 && same; i++) same = !strcmp(lks_params_name(ps, i), names[i]);
    ok(same, "names of parameters in order");
    ok(lks_params_numel(ps) == 15 + 3 + 15 + 28 + 108 + 6 + 3 + 3, "number of parameters");
    double bias = largest(ctx, param(ps, "a.bias"));
    ok(bias > 0 && bias <= 1 / sqrt(5.0), "bias starts as PyTorch's");

    lks_scope_begin(ctx);
    int64_t s[3] = {2, 4, 5};
    lks_tensor *x = noise_of(ctx, LKS_F32, 3, s, 1, 1), *y = lks_module_forward(lin, x);
    double *want = values_of(ctx, lks_linear(x, param(ps, "a.weight"), param(ps, "a.bias")));
    ok(close_to(ctx, y, want, 24, 0), "linear");
    free(want);
    ok(lks_module_forward(ln, y) && !lks_error_code(ctx), "layer norm of it");
    ok(lks_module_forward(lin, lks_module_forward(emb, x)) == NULL && lks_error_code(ctx) == LKS_ERR_DTYPE,
       "an embedding of floats: %s", lks_error(ctx));
    lks_error_clear(ctx);
    int64_t t[2] = {2, 3}, ids[6] = {0, 6, 3, 3, 1, 2};
    y = lks_module_forward(emb, lks_from_host(ctx, LKS_I64, 2, t, ids));
    ok(y && lks_ndim(y) == 3 && lks_dim(y, 2) == 4, "embedding");
    int64_t img[4] = {2, 2, 5, 5};
    y = lks_module_forward(conv, noise_of(ctx, LKS_F32, 4, img, 1, 2));
    ok(y && lks_dim(y, 1) == 6 && lks_dim(y, 2) == 5, "convolution");
    y = lks_module_forward(drop, x);
    double *v = values_of(ctx, y), *vx = values_of(ctx, x);
    int zeros = 0, twice = 0;
    for (int i = 0; v && i < 40; i++) {
        zeros += v[i] == 0;
        twice += v[i] == 2 * vx[i];
    }
    ok(zeros + twice == 40 && zeros > 5 && twice > 5, "dropout: %d of 40 are 0", zeros);
    free(v);
    lks_module_train(drop, 0);
    ok(lks_module_forward(drop, x) == x, "in evaluation it is nothing");
    free(vx);
    lks_scope_end(ctx);

    ok(lks_module_forward(lin, NULL) == NULL && !lks_error_code(ctx), "NULL passes");
    lks_module_destroy(&lin), lks_module_destroy(&bare), lks_module_destroy(&emb), lks_module_destroy(&conv);
    lks_module_destroy(&ln), lks_module_destroy(&drop), lks_module_destroy(&drop);
    lks_params_destroy(&ps);
    ok(lks_live_tensors(ctx) == 0 && lks_live_nodes(ctx) == 0, "nothing lives on");
}

static void refusals(lks_context *ctx)
{
    lks_params *ps = NULL;
    lks_module *m = NULL;
    int64_t one[1] = {3}, bad[3] = {3, 0, 2};
    lks_params_create(ctx, &ps);
#define REFUSED(call)                                                                                          \
    do {                                                                                                       \
        ok((call) == LKS_ERR_ARGUMENT && !m && lks_params_count(ps) == 0, "refused: %s", lks_error(ctx));        \
        lks_error_clear(ctx);                                                                                  \
    } while (0)
    REFUSED(lks_linear_create(ps, "x", 0, 3, 1, &m));
    REFUSED(lks_embedding_create(ps, "x", 3, 0, &m));
    REFUSED(lks_conv2d_create(ps, "x", 1, 1, 3, 0, 0, 1, &m));
    REFUSED(lks_layer_norm_create(ps, "x", 0, 1e-5, &m));
    REFUSED(lks_dropout_create(ps, 1, &m));
    REFUSED(lks_attention_create(ps, "x", 10, 3, 1, 0, &m));
    REFUSED(lks_attention_create(ps, "x", 10, 2, 1, -1, &m));
    REFUSED(lks_mlp_create(ps, "x", 1, one, 0, &m));
    REFUSED(lks_mlp_create(ps, "x", 3, bad, 0, &m));
    REFUSED(lks_gpt_create(ps, "x", 10, 8, 0, 8, 2, 0, &m));
    REFUSED(lks_gpt_create(ps, "x", 10, 8, 2, 9, 2, 0, &m));
    REFUSED(lks_cnn_create(ps, "x", 1, 8, 8, 10, 4, 4, 1, 0, &m));
    lks_linear_create(ps, "x.0", 2, 2, 1, &m);
    lks_module *again = NULL;
    ok(lks_mlp_create(ps, "x", 3, (int64_t[3]){2, 2, 2}, 0, &again) == LKS_ERR_ARGUMENT && !again &&
           lks_params_count(ps) == 2,
       "a taken name: %s", lks_error(ctx));
    lks_error_clear(ctx);
    char longer[1100];
    memset(longer, 'n', sizeof longer);
    longer[1099] = 0;
    ok(lks_linear_create(ps, longer, 2, 2, 1, &again) == LKS_ERR_ARGUMENT && lks_params_count(ps) == 2, "a long name");
    lks_error_clear(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
}

static void attention(lks_context *ctx)
{
    lks_params *ps = NULL;
    lks_module *m = NULL;
    lks_params_create(ctx, &ps);
    ok(lks_attention_create(ps, "a", 6, 2, 1, 0, &m) == LKS_OK, "attention: %s", lks_error(ctx));
    ok(largest(ctx, param(ps, "a.qkv.bias")) == 0 && largest(ctx, param(ps, "a.proj.bias")) == 0 &&
           largest(ctx, param(ps, "a.proj.weight")) > 0,
       "its start");
    lks_scope_begin(ctx);
    lks_no_grad_begin(ctx);
    int64_t s[3] = {2, 4, 6};
    lks_tensor *x = noise_of(ctx, LKS_F32, 3, s, 1, 3);
    double *vx = values_of(ctx, x), *w = values_of(ctx, param(ps, "a.qkv.weight"));
    double *pw = values_of(ctx, param(ps, "a.proj.weight")), want[48], qkv[4][18], o[4][6];
    for (int b = 0; b < 2; b++) {
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < 18; j++) {
                qkv[t][j] = 0;
                for (int i = 0; i < 6; i++) qkv[t][j] += w[j * 6 + i] * vx[(b * 4 + t) * 6 + i];
            }
        for (int h = 0; h < 2; h++)
            for (int t = 0; t < 4; t++) {
                double p[4], sum = 0;
                for (int u = 0; u <= t; u++) {
                    p[u] = 0;
                    for (int d = 0; d < 3; d++) p[u] += qkv[t][h * 3 + d] * qkv[u][6 + h * 3 + d];
                    sum += p[u] = exp(p[u] / sqrt(3.0));
                }
                for (int d = 0; d < 3; d++) {
                    o[t][h * 3 + d] = 0;
                    for (int u = 0; u <= t; u++) o[t][h * 3 + d] += p[u] / sum * qkv[u][12 + h * 3 + d];
                }
            }
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < 6; j++) {
                want[(b * 4 + t) * 6 + j] = 0;
                for (int i = 0; i < 6; i++) want[(b * 4 + t) * 6 + j] += pw[j * 6 + i] * o[t][i];
            }
    }
    ok(close_to(ctx, lks_module_forward(m, x), want, 48, 1e-5), "attention against loops");
    int64_t s2[2] = {4, 6};
    ok(!lks_module_forward(m, lks_zeros(ctx, LKS_F32, 2, s2)) && lks_error_code(ctx) == LKS_ERR_SHAPE,
       "wrong shape: %s", lks_error(ctx));
    lks_error_clear(ctx);
    free(vx), free(w), free(pw);
    lks_no_grad_end(ctx);
    lks_scope_end(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
}

/* Gradient descent by hand. */
static int descend(lks_context *ctx, lks_params *ps, double lr)
{
    int bad = 0;
    lks_no_grad_begin(ctx);
    for (int i = 0; i < lks_params_count(ps); i++) {
        lks_tensor *w = lks_params_tensor(ps, i), *g = lks_grad(w);
        if (lks_params_is_buffer(ps, i)) continue;
        if (!g) {
            diag("no gradient of %s", lks_params_name(ps, i));
            bad = 1;
            continue;
        }
        bad |= lks_copy_(w, lks_sub(w, lks_mul_scalar(g, lr))) != LKS_OK;
    }
    lks_no_grad_end(ctx);
    lks_params_zero_grad(ps);
    return bad;
}

/* Losses of some steps on one batch: the first and the last. low: forward in an autocast region of bfloat16. */
static int learns_in(lks_context *ctx, lks_params *ps, lks_module *m, lks_tensor *x, lks_tensor *target, int steps,
                     double lr, int low, double *first, double *last)
{
    int bad = 0;
    int64_t live = 0;
    for (int i = 0; i < steps && !bad; i++) {
        lks_scope_begin(ctx);
        lks_autocast_begin(ctx, LKS_BF16, low, 1);
        lks_tensor *y = lks_module_forward(m, x);
        if (low && y && lks_dtype_of(y) != LKS_BF16) bad = 1;
        if (y && lks_ndim(y) == 3) y = lks_flatten(y, 0, 1);
        lks_tensor *loss = lks_cross_entropy(y, target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
        lks_autocast_end(ctx);
        double v = NAN;
        bad |= !loss || lks_item(loss, &v) != LKS_OK;
        if (!bad) bad |= lks_backward(loss, LKS_NONE, 0) != LKS_OK;
        if (!bad) bad |= descend(ctx, ps, lr);
        if (i == 0) *first = v;
        *last = v;
        lks_scope_end(ctx);
        if (i == 1) live = lks_live_tensors(ctx);
        if (i > 1 && lks_live_tensors(ctx) != live) {
            diag("%lld tensors, then %lld", (long long)live, (long long)lks_live_tensors(ctx));
            bad = 1;
        }
    }
    if (bad) diag("%s", lks_error(ctx));
    lks_error_clear(ctx);
    return !bad;
}

static int learns(lks_context *ctx, lks_params *ps, lks_module *m, lks_tensor *x, lks_tensor *target, int steps,
                  double lr, double *first, double *last)
{
    return learns_in(ctx, ps, m, x, target, steps, lr, 0, first, last);
}

static void models(lks_context *ctx, const char *device)
{
    lks_params *ps = NULL;
    lks_module *m = NULL;
    int good;
    double first = NAN, last = NAN, mean;
    lks_scope_begin(ctx);
    int64_t n16[1] = {16}, s[2] = {16, 6}, t16[16], sizes[3] = {6, 20, 4};
    for (int i = 0; i < 16; i++) t16[i] = (i * 7) % 4;
    lks_tensor *target = lks_from_host(ctx, LKS_I64, 1, n16, t16);

    lks_params_create(ctx, &ps);
    ok(lks_mlp_create(ps, "mlp", 3, sizes, 0, &m) == LKS_OK, "mlp");
    good = learns(ctx, ps, m, noise_of(ctx, LKS_F32, 2, s, 1, 4), target, 60, 0.5, &first, &last);
    ok(good && last < 0.5 * first, "mlp learns on %s: %g -> %g", device, first, last);
    int64_t s3[3] = {2, 5, 6};
    lks_tensor *y = lks_module_forward(m, noise_of(ctx, LKS_F32, 3, s3, 1, 4));
    ok(y && lks_ndim(y) == 3 && lks_dim(y, 2) == 4, "mlp of more dims");
    lks_module_destroy(&m);
    lks_params_destroy(&ps);

    lks_params_create(ctx, &ps);
    ok(lks_gpt_create(ps, "", 11, 8, 2, 12, 3, 0, &m) == LKS_OK, "gpt: %s", lks_error(ctx));
    ok(lks_params_numel(ps) == 11 * 12 + 8 * 12 + 2 * (2 * 24 + 36 * 13 + 12 * 13 + 48 * 13 + 12 * 49) + 24,
       "gpt parameters: %lld", (long long)lks_params_numel(ps));
    double std = norm_of(ctx, param(ps, "blocks.1.fc.weight"), &mean);
    ok(fabs(std - 0.02) < 3e-3, "weights start with deviation %g", std);
    std = norm_of(ctx, param(ps, "blocks.1.proj.weight"), &mean);
    ok(fabs(std - 0.01) < 2e-3, "those into the residual with %g", std);
    int64_t bt[2] = {2, 8}, ids[16];
    for (int i = 0; i < 16; i++) ids[i] = (i * i + 3) % 11;
    lks_tensor *tokens = lks_from_host(ctx, LKS_I64, 2, bt, ids);
    for (int i = 0; i < 16; i++) t16[i] = ids[(i + 1) % 16];
    target = lks_from_host(ctx, LKS_I64, 1, n16, t16);
    good = learns(ctx, ps, m, tokens, target, 60, 0.5, &first, &last);
    ok(good && fabs(first - log(11)) < 0.2 && last < 0.7 * first,
       "gpt learns on %s: %g -> %g", device, first, last);
    /* Later tokens do not change earlier outputs. */
    lks_module_train(m, 0);
    lks_no_grad_begin(ctx);
    double *all = values_of(ctx, lks_module_forward(m, tokens));
    ids[7] = (ids[7] + 1) % 11;
    double *other = values_of(ctx, lks_module_forward(m, lks_from_host(ctx, LKS_I64, 2, bt, ids)));
    ok(all && other && distance(all, other, 7 * 11) < 1e-6 && distance(all + 77, other + 77, 11) > 1e-4,
       "gpt looks back only");
    free(all), free(other);
    int64_t shorter[2] = {2, 5};
    y = lks_module_forward(m, lks_from_host(ctx, LKS_I64, 2, shorter, ids));
    ok(y && lks_dim(y, 1) == 5 && lks_dim(y, 2) == 11, "gpt of a shorter text");
    int64_t longer[2] = {1, 9};
    ok(!lks_module_forward(m, lks_zeros(ctx, LKS_I64, 2, longer)) && lks_error_code(ctx) == LKS_ERR_SHAPE,
       "gpt of a longer one: %s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_no_grad_end(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);

    lks_params_create(ctx, &ps);
    ok(lks_gpt_create(ps, "g", 11, 8, 1, 12, 3, 0.1, &m) == LKS_OK &&
           learns(ctx, ps, m, tokens, target, 5, 0.1, &first, &last),
       "gpt with dropout");
    lks_module_destroy(&m);
    lks_params_destroy(&ps);

    lks_params_create(ctx, &ps);
    good = lks_gpt_create(ps, "", 11, 8, 2, 12, 3, 0, &m) == LKS_OK &&
           learns_in(ctx, ps, m, tokens, target, 60, 0.5, 1, &first, &last);
    ok(good && last < 0.7 * first, "gpt in bfloat16: %g -> %g", first, last);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);

    int64_t img[4] = {16, 3, 9, 8};
    for (int i = 0; i < 16; i++) t16[i] = i % 4;
    target = lks_from_host(ctx, LKS_I64, 1, n16, t16);
    for (int norm = 0; norm < 2; norm++) {
        lks_params_create(ctx, &ps);
        ok(lks_cnn_create(ps, "c", 3, 9, 8, 4, 4, 2, norm, 0, &m) == LKS_OK, "cnn: %s", lks_error(ctx));
        ok((lks_params_find(ps, "c.stages.0.conv.bias") < 0) == norm &&
               (lks_params_find(ps, "c.stages.1.norm.running_var") >= 0) == norm,
           "its parameters");
        good = learns(ctx, ps, m, noise_of(ctx, LKS_F32, 4, img, 1, 6), target, 60, 0.2, &first, &last);
        ok(good && last < 0.6 * first, "cnn learns on %s: %g -> %g", device, first, last);
        good = learns_in(ctx, ps, m, noise_of(ctx, LKS_F32, 4, img, 1, 6), target, 60, 0.2, 1, &first, &last);
        ok(good && last < 0.1, "and in bfloat16: %g", last);
        ok(!lks_module_forward(m, lks_zeros(ctx, LKS_F32, 1, n16)) && lks_error_code(ctx) == LKS_ERR_SHAPE,
           "wrong input: %s", lks_error(ctx));
        lks_error_clear(ctx);
        lks_module_destroy(&m);
        lks_params_destroy(&ps);
    }
    lks_scope_end(ctx);
    ok(lks_live_tensors(ctx) == 0 && lks_live_nodes(ctx) == 0, "nothing lives on");
}

/* Running statistics are staged in training with gradients, and only there. */
static void statistics(lks_context *ctx)
{
    lks_params *ps = NULL;
    lks_module *m = NULL;
    int64_t s[4] = {4, 3, 5, 5};
    lks_params_create(ctx, &ps);
    ok(lks_batch_norm2d_create(ps, "bn", 3, 0.1, 1e-5, &m) == LKS_OK, "batch norm");
    int mean = lks_params_find(ps, "bn.running_mean"), var = lks_params_find(ps, "bn.running_var");
    ok(mean >= 0 && lks_params_is_buffer(ps, mean) && lks_params_is_buffer(ps, var), "its buffers");
    ok(largest(ctx, lks_params_tensor(ps, mean)) == 0 && largest(ctx, lks_params_tensor(ps, var)) == 1, "their start");
    lks_scope_begin(ctx);
    lks_tensor *x = lks_add_scalar(noise_of(ctx, LKS_F32, 4, s, 1, 7), 5);
    ok(lks_module_forward(m, x) && ps->buffers_dirty, "training stages");
    double *staged = values_of(ctx, ps->e[mean].staged), *running = values_of(ctx, ps->e[mean].t);
    ok(staged && fabs(staged[0] - 0.5) < 0.05 && running[0] == 0, "the staged mean moves, the running one waits");
    ps->buffers_dirty = 0;
    lks_no_grad_begin(ctx);
    double *same = values_of(ctx, lks_module_forward(m, x));
    lks_no_grad_end(ctx);
    ok(same && fabs(same[0]) < 3 && !ps->buffers_dirty, "without gradients nothing is staged");
    ok(close_to(ctx, ps->e[mean].staged, staged, 3, 0), "and the staged values stand");
    free(same), free(running), free(staged);
    lks_module_train(m, 0);
    double *y = values_of(ctx, lks_module_forward(m, x)), *vx = values_of(ctx, x);
    double most = 0;
    for (int i = 0; y && i < 300; i++) most = fmax(most, fabs(y[i] - vx[i] / sqrt(1 + 1e-5)));
    ok(y && most < 1e-5 && !ps->buffers_dirty, "evaluation uses the running ones");
    free(y), free(vx);
    lks_scope_end(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
}

/* The n-th allocation fails: an error, nothing left behind, and the same call works afterwards. */
static void memory(lks_context *ctx)
{
    int64_t before = ctx->base.live_blocks;
    int good = 1, n = 1;
    for (;; n++) {
        lks_params *ps = NULL;
        lks_module *m = NULL;
        if (lks_params_create(ctx, &ps) != LKS_OK) break;
        ctx->base.fail_at = n;
        lks_status s = lks_gpt_create(ps, "", 11, 8, 1, 12, 3, 0, &m);
        int reached = ctx->base.fail_at <= 0;
        ctx->base.fail_at = 0;
        if (s != LKS_OK) {
            good &= !m && s == LKS_ERR_MEMORY && lks_params_count(ps) == 0;
            lks_error_clear(ctx);
            good &= lks_gpt_create(ps, "", 11, 8, 1, 12, 3, 0, &m) == LKS_OK;
        }
        lks_module_destroy(&m);
        lks_params_destroy(&ps);
        good &= lks_live_tensors(ctx) == 0;
        if (!good) diag("allocation %d: %s", n, lks_error(ctx));
        if (!good || (!reached && s == LKS_OK) || n > 2000) break;
    }
    ok(good && n > 10 && n <= 2000, "%d allocations fail one after the other", n - 1);
    ok(ctx->base.live_blocks <= before + 4, "no host memory is left: %lld, %lld", (long long)before,
       (long long)ctx->base.live_blocks);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int far = 0; far < 2; far++) {
        lks_context *ctx = context_on(far ? "far" : "cpu", NULL, 2);
        if (!ctx) continue;
        starts(ctx);
        layers(ctx);
        attention(ctx);
        statistics(ctx);
        models(ctx, far ? "far" : "cpu");
        if (!far) {
            refusals(ctx);
            memory(ctx);
        }
        ok(lks_context_destroy(&ctx) == LKS_OK, "context destroyed");
    }
    MPI_Finalize();
    return done();
}
