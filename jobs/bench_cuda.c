/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bench_cuda.c - work for counting and timing on a GPU. jobs/bench-cuda counts, in the simulator, what each row moves;
 * jobs/gpu-check times the same rows, a matrix product and GPT-2 on the machine's GPU.
 *
 *   bench_cuda -l                    the rows
 *   bench_cuda count ROW TIMES       runs it so often and prints the bytes that must move each time (inputs, outputs
 *                                    and what is saved for backward, once each)
 *   bench_cuda launches LAYERS TIMES GRAPH   training steps of a small GPT
 *   bench_cuda time [tiny]           rows against a copy, products, tokens/s of GPT-2 (124 M parameters, bf16)
 */
#define _GNU_SOURCE
#include <lockstep.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static lks_context *ctx;
static int64_t side = 1024; /* rows work on side x side elements */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- rows: name, dtype, bytes an element of the square --- */

enum { ADD, COPY, TRANSPOSE, CAST, GELU, DROPOUT, SUM, SUM_ROWS, SUM_COLUMNS, SOFTMAX, LAYER_NORM, RMS_NORM, GROUP_NORM,
       BATCH_NORM, CROSS_ENTROPY, EMBEDDING, CUMSUM, MAX_POOL, CAT, ADAMW };
/* both: forward and backward */
typedef struct row { const char *name; int what, both; lks_dtype dtype; double each; } row;
static const row rows[] = {
    {"add", ADD, 0, LKS_F32, 12},
    {"add-bf16", ADD, 0, LKS_BF16, 6},
    {"copy", COPY, 0, LKS_F32, 8},
    {"transpose", TRANSPOSE, 0, LKS_F32, 8},
    {"transpose-bf16", TRANSPOSE, 0, LKS_BF16, 4},
    {"cast-bf16", CAST, 0, LKS_F32, 6},
    {"gelu", GELU, 0, LKS_F32, 8},
    {"gelu-bf16", GELU, 0, LKS_BF16, 4},
    {"gelu-both", GELU, 1, LKS_F32, 20},
    {"gelu-bf16-both", GELU, 1, LKS_BF16, 10},
    {"dropout", DROPOUT, 0, LKS_F32, 8},
    {"dropout-both", DROPOUT, 1, LKS_F32, 16},
    {"dropout-bf16-both", DROPOUT, 1, LKS_BF16, 8},
    {"sum", SUM, 0, LKS_F32, 4},
    {"sum-rows", SUM_ROWS, 0, LKS_F32, 4},
    {"sum-columns", SUM_COLUMNS, 0, LKS_F32, 4},
    {"sum-columns-bf16", SUM_COLUMNS, 0, LKS_BF16, 2},
    {"softmax", SOFTMAX, 0, LKS_F32, 8},
    {"softmax-both", SOFTMAX, 1, LKS_F32, 20},
    {"softmax-bf16", SOFTMAX, 0, LKS_BF16, 4},
    {"softmax-bf16-both", SOFTMAX, 1, LKS_BF16, 10},
    {"softmax-f16-both", SOFTMAX, 1, LKS_F16, 10},
    {"layernorm", LAYER_NORM, 0, LKS_F32, 8}, /* weight and bias of the norms are float32 */
    {"layernorm-both", LAYER_NORM, 1, LKS_F32, 20},
    {"layernorm-bf16", LAYER_NORM, 0, LKS_BF16, 4},
    {"layernorm-bf16-both", LAYER_NORM, 1, LKS_BF16, 10},
    {"layernorm-f16-both", LAYER_NORM, 1, LKS_F16, 10},
    {"rmsnorm", RMS_NORM, 0, LKS_F32, 8},
    {"rmsnorm-both", RMS_NORM, 1, LKS_F32, 20},
    {"rmsnorm-bf16-both", RMS_NORM, 1, LKS_BF16, 10},
    {"groupnorm", GROUP_NORM, 0, LKS_F32, 8},
    {"groupnorm-bf16-both", GROUP_NORM, 1, LKS_BF16, 10},
    {"batchnorm", BATCH_NORM, 0, LKS_F32, 12}, /* x twice, in backward dy too: what a channel sums to comes first */
    {"batchnorm-bf16-both", BATCH_NORM, 1, LKS_BF16, 16},
    {"crossentropy", CROSS_ENTROPY, 0, LKS_F32, 4},
    {"crossentropy-both", CROSS_ENTROPY, 1, LKS_F32, 12},
    {"crossentropy-bf16-both", CROSS_ENTROPY, 1, LKS_BF16, 6},
    {"embedding", EMBEDDING, 0, LKS_F32, 8},
    {"embedding-both", EMBEDDING, 1, LKS_F32, 16},
    {"cumsum", CUMSUM, 0, LKS_F32, 8},
    {"maxpool", MAX_POOL, 0, LKS_F32, 6}, /* a quarter: values and places */
    {"maxpool-bf16", MAX_POOL, 0, LKS_BF16, 3.5},
    {"cat", CAT, 0, LKS_F32, 16},
    {"adamw", ADAMW, 0, LKS_F32, 32}, /* gradient twice: the finite test comes first */
};
enum { ROWS = sizeof rows / sizeof *rows };

typedef struct work {
    const row *r;
    lks_tensor *x, *y, *dy, *w, *b, *labels;
    lks_params *ps;
    lks_optim *opt;
} work;

static int open_work(work *k, const row *r)
{
    int64_t shape[2] = {side, side}, n = side * side, *labels = malloc((size_t)side * sizeof *labels);
    float *host = malloc((size_t)n * sizeof *host);
    *k = (work){.r = r};
    if (!host || !labels) return 1;
    for (int64_t i = 0; i < n; i++) host[i] = (float)((i * 7919) % 2003) / 1000 - 1;
    for (int64_t i = 0; i < side; i++) labels[i] = i * 31 % side;
    lks_tensor *x = lks_from_host(ctx, LKS_F32, 2, shape, host);
    k->x = r->dtype == LKS_F32 ? x : lks_to(x, r->dtype);
    k->dy = lks_to(lks_from_host(ctx, LKS_F32, 2, shape, host), r->dtype);
    k->y = lks_to(lks_from_host(ctx, LKS_F32, 2, shape, host), r->dtype);
    k->w = lks_from_host(ctx, LKS_F32, 1, &side, host);
    k->b = lks_from_host(ctx, LKS_F32, 1, &side, host);
    k->labels = lks_from_host(ctx, LKS_I64, 1, &side, labels);
    free(host);
    free(labels);
    int bad = !k->x || !k->dy || !k->y || !k->w || !k->b || !k->labels;
    if (!bad && r->both) bad = lks_set_requires_grad(k->x, 1) != LKS_OK;
    if (bad || r->what != ADAMW) return bad;
    lks_tensor *p;
    bad = lks_params_create(ctx, &k->ps) || lks_params_add(k->ps, "p", LKS_F32, 2, shape, &p) ||
          lks_optim_create(k->ps, LKS_ADAMW, &k->opt);
    return bad || lks_backward(lks_mul(p, k->x), k->dy, 0) != LKS_OK;
}

static int one(work *k)
{
    static const int64_t window[2] = {2, 2};
    int first = 0, last = 1;
    lks_scope_begin(ctx);
    lks_tensor *two[2] = {k->x, k->dy}, *y = NULL, *w = lks_narrow(k->w, 0, 0, 64), *b = lks_narrow(k->b, 0, 0, 64);
    int64_t plane = side < 1024 ? 8 : 32, shape[4] = {-1, 64, plane, plane};
    lks_tensor *image = lks_reshape(k->x, 4, shape);
    int bad = 0;
    switch (k->r->what) {
    case ADD: y = lks_add(k->x, k->dy); break;
    case COPY: bad = lks_copy_(k->y, k->x) != LKS_OK, y = k->y; break;
    case TRANSPOSE: y = lks_contiguous(lks_transpose(k->x, 0, 1)); break;
    case CAST: y = lks_to(k->x, LKS_BF16); break;
    case GELU: y = lks_gelu(k->x, 0); break;
    case DROPOUT: y = lks_dropout(k->x, 0.1); break;
    case SUM: y = lks_sum(k->x, 0, NULL, 0, LKS_DTYPE_NONE); break;
    case SUM_ROWS: y = lks_sum(k->x, 1, &last, 0, LKS_DTYPE_NONE); break;
    case SUM_COLUMNS: y = lks_sum(k->x, 1, &first, 0, LKS_DTYPE_NONE); break;
    case SOFTMAX: y = lks_softmax(k->x, 1); break;
    case LAYER_NORM: y = lks_layer_norm(k->x, 1, k->w, k->b, 1e-5); break;
    case RMS_NORM: y = lks_rms_norm(k->x, 1, k->w, 1e-5); break;
    case GROUP_NORM: y = lks_group_norm(image, 8, w, b, 1e-5); break;
    case BATCH_NORM:
        y = lks_batch_norm(image, w, b, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5);
        break;
    case CROSS_ENTROPY: y = lks_cross_entropy(k->x, k->labels, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN); break;
    case EMBEDDING: y = lks_embedding(k->x, k->labels); break;
    case CUMSUM: y = lks_cumsum(k->x, 1, LKS_DTYPE_NONE); break;
    case MAX_POOL: y = lks_max_pool2d(image, window, window, NULL); break;
    case CAT: y = lks_cat(2, two, 0); break;
    default: bad = lks_optim_step(k->opt, NULL) != LKS_OK, y = k->x;
    }
    if (k->r->both) {
        lks_zero_grad(k->x);
        if (lks_ndim(y) == 4) bad = lks_backward(lks_reshape(y, 2, (int64_t[]){side, side}), k->dy, 0) != LKS_OK;
        else bad = lks_backward(y, lks_ndim(y) ? k->dy : LKS_NONE, 0) != LKS_OK;
    }
    lks_scope_end(ctx);
    return bad || !y;
}

static void close_work(work *k)
{
    lks_optim_destroy(&k->opt);
    lks_params_destroy(&k->ps);
}

/* --- a GPT --- */

typedef struct gpt {
    lks_params *ps;
    lks_module *m;
    lks_optim *opt;
    lks_dp *dp;
    lks_tensor *in, *target;
    int64_t vocab, batch, length;
    lks_graph *graph;
} gpt;

static int open_gpt(gpt *g, int64_t vocab, int64_t length, int64_t layers, int64_t dim, int64_t heads, int64_t batch)
{
    int64_t shape[2] = {batch, length}, n = batch * length, *token = malloc((size_t)n * sizeof *token);
    *g = (gpt){.vocab = vocab, .batch = batch, .length = length};
    if (!token) return 1;
    for (int64_t i = 0; i < n; i++) token[i] = i * 7919 % vocab;
    g->in = lks_from_host(ctx, LKS_I64, 2, shape, token);
    g->target = lks_from_host(ctx, LKS_I64, 1, &n, token);
    free(token);
    return !g->in || !g->target || lks_params_create(ctx, &g->ps) ||
           lks_gpt_create(g->ps, "", vocab, length, layers, dim, heads, 0, &g->m) ||
           lks_optim_create(g->ps, LKS_ADAMW, &g->opt) || lks_dp_create(g->ps, 0, &g->dp) ||
           lks_dp_set_nominal(g->dp, (double)n);
}

static lks_status calls(void *user)
{
    gpt *g = user;
    int64_t flat[2] = {-1, g->vocab};
    lks_scope_begin(ctx);
    lks_params_zero_grad(g->ps);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *y = lks_reshape(lks_module_forward(g->m, g->in), 2, flat);
    lks_tensor *loss = lks_cross_entropy(y, g->target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_SUM);
    lks_autocast_end(ctx);
    lks_status s = lks_dp_backward(g->dp, NULL, loss, (double)(g->batch * g->length), LKS_NONE, 1);
    if (s == LKS_OK) s = lks_optim_step(g->opt, NULL);
    lks_scope_end(ctx);
    return s;
}

/* graph: from the fourth step on it is replayed. */
static int train(gpt *g, int graph)
{
    if (graph && !g->graph && lks_graph_create(ctx, &g->graph) != LKS_OK) return 1;
    return lks_graph_step(g->graph, 0, calls, g) != LKS_OK;
}

static void close_gpt(gpt *g)
{
    lks_graph_destroy(&g->graph);
    lks_dp_destroy(&g->dp);
    lks_optim_destroy(&g->opt);
    lks_module_destroy(&g->m);
    lks_params_destroy(&g->ps);
}

/* --- counting --- */

static int count(const char *name, int times)
{
    for (int i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name)) continue;
        work k;
        lks_scope_begin(ctx);
        int bad = open_work(&k, &rows[i]);
        for (int t = 0; t < times && !bad; t++) bad = one(&k);
        lks_synchronize(ctx);
        close_work(&k);
        lks_scope_end(ctx);
        printf("%.0f\n", rows[i].each * (double)(side * side));
        return bad;
    }
    fprintf(stderr, "bench_cuda: no row %s\n", name);
    return 1;
}

static int launches(int64_t layers, int times, int graph)
{
    gpt g;
    lks_scope_begin(ctx);
    int bad = open_gpt(&g, 64, 16, layers, 32, 2, 2);
    for (int i = 0; i < times && !bad; i++) bad = train(&g, graph);
    lks_synchronize(ctx);
    close_gpt(&g);
    lks_scope_end(ctx);
    return bad;
}

/* --- timing --- */

static double row_seconds(const row *r, int repeat)
{
    work k;
    lks_scope_begin(ctx);
    int bad = open_work(&k, r) || one(&k);
    lks_synchronize(ctx);
    double best = INFINITY;
    for (int i = 0; i < 3 && !bad; i++) {
        double t = now();
        for (int n = 0; n < repeat && !bad; n++) bad = one(&k);
        lks_synchronize(ctx);
        t = (now() - t) / repeat;
        if (t < best) best = t;
    }
    close_work(&k);
    lks_scope_end(ctx);
    return bad ? NAN : best;
}

static double product_rate(int64_t n, lks_dtype dtype, int repeat)
{
    int64_t shape[2] = {n, n};
    double best = INFINITY;
    lks_scope_begin(ctx);
    lks_tensor *a = lks_to(lks_full(ctx, LKS_F32, 2, shape, 0.5), dtype), *b = lks_to(a, dtype);
    for (int i = 0; i < 4; i++) {
        double t = now();
        for (int k = 0; k < repeat; k++) {
            lks_scope_begin(ctx);
            lks_matmul(a, b);
            lks_scope_end(ctx);
        }
        lks_synchronize(ctx);
        t = (now() - t) / repeat;
        if (i && t < best) best = t;
    }
    lks_scope_end(ctx);
    return 2.0 * (double)n * (double)n * (double)n / best;
}

static int timing(int tiny)
{
    int repeat = tiny ? 1 : 20, bad = 0;
    side = tiny ? 64 : 8192;
    double copy = 8.0 * (double)(side * side) / row_seconds(&rows[2], repeat); /* the row copy */
    printf("device              %s\ncopy                %.1f GB/s\n", lks_device_description(ctx), copy / 1e9);
    for (int i = 0; i < ROWS; i++) {
        double t = row_seconds(&rows[i], repeat), rate = rows[i].each * (double)(side * side) / t;
        printf("%-22s %9.3f ms %9.1f GB/s  %5.1f %% of copy\n", rows[i].name, 1e3 * t, rate / 1e9, 100 * rate / copy);
        bad |= isnan(t);
    }
    int64_t n = tiny ? 64 : 8192;
    double peak = product_rate(n, LKS_BF16, repeat);
    printf("product bf16        %.1f TFLOP/s\nproduct f32         %.1f TFLOP/s\n", peak / 1e12,
           product_rate(n, LKS_F32, tiny ? 1 : 4) / 1e12);
    for (int graph = 0; graph < 2 && !bad; graph++) {
        gpt g;
        int steps = tiny ? 3 : 50;
        int64_t layers = tiny ? 1 : 12, dim = tiny ? 32 : 768;
        lks_scope_begin(ctx);
        bad = tiny ? open_gpt(&g, 64, 16, layers, dim, 2, 2) : open_gpt(&g, 50257, 1024, layers, dim, 12, 16);
        for (int i = 0; i < 3 && !bad; i++) bad = train(&g, graph);
        lks_synchronize(ctx);
        double t = now();
        for (int i = 0; i < steps && !bad; i++) {
            bad = train(&g, graph);
            if (i % 2) { /* the host runs two steps ahead at most, as in training */
                int64_t before = lks_optim_attempts(g.opt) - 1;
                bad |= lks_optim_report(g.opt, before, NULL, NULL, NULL, NULL, NULL, NULL) != LKS_OK;
            }
        }
        lks_synchronize(ctx);
        t = (now() - t) / steps;
        double tokens = (double)(g.batch * g.length);
        double flops = tokens * (6.0 * (double)lks_params_numel(g.ps) + 12.0 * (double)(layers * dim * g.length));
        if (!bad)
            printf("gpt %.1f M%s  %.2f ms a step, %.0f tokens/s, %.1f TFLOP/s: %.1f %% of the product's rate, "
                   "peak memory %.2f GB\n",
                   (double)lks_params_numel(g.ps) / 1e6, graph ? " replayed " : "          ", 1e3 * t, tokens / t,
                   flops / t / 1e12, 100 * flops / t / peak, (double)lks_memory_peak(ctx) / 1e9);
        close_gpt(&g);
        lks_scope_end(ctx);
    }
    return bad;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "-l")) {
        for (int i = 0; i < ROWS; i++) printf("%s\n", rows[i].name);
        return 0;
    }
    lks_config *config = lks_config_new();
    if (!config || lks_config_set_device(config, "cuda") != LKS_OK) return 1;
    if (lks_context_create(MPI_COMM_NULL, config, &ctx) != LKS_OK) {
        fprintf(stderr, "bench_cuda: %s\n", lks_config_message(config));
        return 1;
    }
    int bad;
    if (!strcmp(mode, "count") && argc > 3) bad = count(argv[2], atoi(argv[3]));
    else if (!strcmp(mode, "launches") && argc > 4) bad = launches(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    else bad = strcmp(mode, "time") ? 2 : timing(argc > 2 && !strcmp(argv[2], "tiny"));
    if (bad) fprintf(stderr, "bench_cuda: %s\n", bad == 2 ? "count, launches or time?" : lks_error(ctx));
    lks_context_destroy(&ctx);
    lks_config_free(config);
    lks_finalize();
    return bad;
}
