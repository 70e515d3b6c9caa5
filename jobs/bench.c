/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bench.c - what this library does against what the machine could do at best, measured in the same process. Not a test.
 * jobs/bench-table runs it with bench.py (the same rows in PyTorch) and makes the table; `make bench` runs that.
 *
 *   bench [-t THREADS] [-r ROUNDS] [-d DIR] [ROW...]    (no ROW: all; -l lists them)
 *
 * A line a row: name, seconds, the limit's seconds, peak bytes of tensors, quiet rounds, tabs between. limit = flops /
 * rate of the best matrix product found here + bytes that must move / bandwidth of an in-place scale; for the products
 * themselves the rate of a loop that stays in registers. A round in which the process was preempted often is dropped;
 * the median of the others counts.
 */
#define _GNU_SOURCE
#include <lockstep.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 64
#define THREADS_MAX 256

static int threads = 1, rounds = 9;
static const char *folder = ".";
static lks_context *ctx;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long preemptions(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of fn over quiet rounds of at least `least` seconds; *quiet: how many there were (0: the best of all
 * is returned). Every rank makes the same number of calls. */
typedef int (*work_fn)(void *);
static double median(work_fn fn, void *user, double least, int *quiet)
{
    double good[ROUNDS_MAX], best = 1e30, t = now();
    *quiet = 0;
    if (fn(user) || fn(user)) return -1;
    double repeats = 2 * least / (now() - t + 1e-9);
    if (lks_reduce_f64(ctx, &repeats, 1, LKS_MAX)) return -1;
    int repeat = repeats < 1 ? 1 : repeats > 1e6 ? 1000000 : (int)repeats;
    for (int r = 0; r < rounds; r++) {
        long before = preemptions();
        t = now();
        for (int i = 0; i < repeat; i++)
            if (fn(user)) return -1;
        t = (now() - t) / repeat;
        if (t < best) best = t;
        if (preemptions() - before <= 1 + (long)(10 * t * repeat)) good[(*quiet)++] = t;
    }
    if (!*quiet) return best;
    qsort(good, (size_t)*quiet, sizeof *good, by_value);
    return good[*quiet / 2];
}

/* --- limits --- */

/* The same function on every thread; it has its number and the number of threads. */
typedef struct team { void (*fn)(int, int, void *); void *user; int i, n; } team;
static void *member(void *p)
{
    team *t = p;
    t->fn(t->i, t->n, t->user);
    return NULL;
}

static int together(void (*fn)(int, int, void *), void *user)
{
    pthread_t id[THREADS_MAX];
    team t[THREADS_MAX];
    int started = 1;
    for (int i = 0; i < threads; i++) t[i] = (team){fn, user, i, threads};
    for (; started < threads; started++)
        if (pthread_create(&id[started], NULL, member, &t[started])) break;
    member(&t[0]);
    for (int i = 1; i < started; i++) pthread_join(id[i], NULL);
    return started < threads;
}

/* Twelve chains of multiply and add, as wide as the processor has them: the most that it can compute. */
#define CHAINS 12
#define PEAK_STEPS 2000000
#define PEAK_LOOP(name, bytes, attribute)                                                                              \
    typedef float name##_t __attribute__((vector_size(bytes)));                                                        \
    attribute static float name(void)                                                                                  \
    {                                                                                                                  \
        name##_t x[CHAINS], m, sum = {0};                                                                              \
        for (int i = 0; i < (int)(bytes) / 4; i++) m[i] = 0.999f;                                                      \
        for (int k = 0; k < CHAINS; k++) x[k] = m + (float)k;                                                          \
        for (int i = 0; i < PEAK_STEPS; i++)                                                                           \
            for (int k = 0; k < CHAINS; k++) x[k] = x[k] * m + m;                                                      \
        for (int k = 0; k < CHAINS; k++) sum += x[k];                                                                  \
        return sum[0];                                                                                                 \
    }
#if defined __x86_64__
PEAK_LOOP(peak_avx2, 32, __attribute__((target("avx2,fma"), optimize("O3,fp-contract=fast"), noinline)))
PEAK_LOOP(peak_avx512, 64, __attribute__((target("avx512f,fma"), optimize("O3,fp-contract=fast"), noinline)))
#endif
PEAK_LOOP(peak_base, 16, __attribute__((noinline)))

static void peak_member(int i, int n, void *user)
{
    volatile float *sink = user;
    (void)n;
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f")) sink[i] = peak_avx512();
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sink[i] = peak_avx2();
    else sink[i] = peak_base();
#else
    sink[i] = peak_base();
#endif
}

static int one_peak(void *user)
{
    return together(peak_member, user);
}

#define STREAM (32 << 20) /* floats, far beyond the caches */
static void scale_member(int i, int n, void *user)
{
    float *x = user;
    int64_t from = (int64_t)STREAM / n * i, to = i == n - 1 ? STREAM : (int64_t)STREAM / n * (i + 1);
    for (int64_t k = from; k < to; k++) x[k] *= 0.999f;
}

static int one_stream(void *user)
{
    return together(scale_member, user);
}

typedef struct product { lks_tensor *a, *b; } product;
static int one_product(void *user)
{
    product *p = user;
    lks_scope_begin(ctx);
    int bad = !lks_matmul(p->a, p->b);
    lks_scope_end(ctx);
    return bad;
}

static double peak, rate, rate16, bandwidth; /* flop/s, flop/s, bytes/s */
static double second_of_product[2];

static int limits(void)
{
    int quiet;
    float sink[THREADS_MAX], *stream = aligned_alloc(64, STREAM * sizeof *stream);
    int64_t square[2] = {1024, 1024};
    if (!stream) return 1;
    int lanes = 4; /* float32 numbers in a register */
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f")) lanes = 16;
    else if (__builtin_cpu_supports("avx2")) lanes = 8;
#endif
    peak = 2.0 * CHAINS * PEAK_STEPS * lanes * threads / median(one_peak, sink, 0, &quiet);
    for (int64_t i = 0; i < STREAM; i++) stream[i] = 1;
    bandwidth = 8.0 * STREAM / median(one_stream, stream, 0, &quiet);
    free(stream);
    lks_scope_begin(ctx);
    product p = {lks_full(ctx, LKS_F32, 2, square, 0.5), lks_full(ctx, LKS_F32, 2, square, 0.25)};
    second_of_product[0] = median(one_product, &p, 0.1, &quiet);
    product q = {lks_to(p.a, LKS_BF16), lks_to(p.b, LKS_BF16)};
    second_of_product[1] = median(one_product, &q, 0.1, &quiet);
    lks_scope_end(ctx);
    if (second_of_product[0] < 0 || second_of_product[1] < 0) return 1;
    rate = 2.0 * 1024 * 1024 * 1024 / second_of_product[0];
    rate16 = 2.0 * 1024 * 1024 * 1024 / second_of_product[1];
    if (rate16 < rate) rate16 = rate; /* without bfloat16 instructions float32 is the limit */
    return 0;
}

/* --- training steps --- */

typedef struct trainer {
    lks_params *ps;
    lks_module *m[8];
    lks_optim *opt;
    lks_dp *dp;
    lks_tensor *x, *target;
    lks_dtype cast;
    double weight;
    int64_t classes;
    int cnn;
} trainer;

static lks_tensor *forward(trainer *t)
{
    if (!t->cnn) return lks_module_forward(t->m[0], t->x);
    static const int64_t two[2] = {2, 2}, zero[2] = {0, 0};
    lks_tensor *y = lks_relu(lks_module_forward(t->m[0], t->x));
    y = lks_max_pool2d(lks_relu(lks_module_forward(t->m[1], y)), two, two, zero);
    y = lks_max_pool2d(lks_relu(lks_module_forward(t->m[2], y)), two, two, zero);
    return lks_module_forward(t->m[3], lks_flatten(y, 1, -1));
}

static int step(void *user)
{
    trainer *t = user;
    int64_t rows[2] = {-1, t->classes}, flat = -1;
    lks_scope_begin(ctx);
    lks_params_zero_grad(t->ps);
    if (t->cast != LKS_DTYPE_NONE) lks_autocast_begin(ctx, t->cast, 1, 1);
    lks_tensor *y = lks_reshape(forward(t), 2, rows);
    lks_tensor *loss = lks_cross_entropy(y, lks_reshape(t->target, 1, &flat), LKS_IGNORE_INDEX, 0, LKS_REDUCTION_SUM);
    if (t->cast != LKS_DTYPE_NONE) lks_autocast_end(ctx);
    int bad = lks_dp_backward(t->dp, NULL, loss, t->weight, LKS_NONE, 1) || lks_optim_step(t->opt, NULL);
    lks_scope_end(ctx);
    return bad;
}

/* x: numbers below `top`, or images; those of four dims with their channels last in memory, as in bench.py. */
static int setup(trainer *t, int64_t count, const int64_t *shape, int ndim, int64_t top, int images)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    int64_t *host = malloc((size_t)n * sizeof *host), *labels = malloc((size_t)count * sizeof *labels);
    float *f = malloc((size_t)n * sizeof *f);
    if (!host || !labels || !f) return 1;
    for (int64_t i = 0; i < n; i++) host[i] = i * 7919 % top, f[i] = (float)(host[i] % 97) / 97;
    for (int64_t i = 0; i < count; i++) labels[i] = i * 104729 % t->classes;
    t->x = images ? lks_from_host(ctx, LKS_F32, ndim, shape, f) : lks_from_host(ctx, LKS_I64, ndim, shape, host);
    if (ndim == 4) {
        static const int last[4] = {0, 2, 3, 1}, back[4] = {0, 3, 1, 2};
        t->x = lks_permute(lks_contiguous(lks_permute(t->x, 4, last)), 4, back);
    }
    lks_keep(t->x);
    t->target = lks_keep(lks_from_host(ctx, LKS_I64, 1, &count, labels));
    free(host);
    free(labels);
    free(f);
    t->weight = (double)count;
    return !t->x || !t->target || lks_optim_create(t->ps, LKS_ADAMW, &t->opt) || lks_dp_create(t->ps, 0, &t->dp) ||
           lks_dp_set_nominal(t->dp, t->weight * lks_size(ctx));
}

static int make_mlp(trainer *t, int64_t batch)
{
    int64_t pixels[2] = {batch, 784}, sizes[4] = {784, 512, 512, 10};
    t->classes = 10;
    return lks_mlp_create(t->ps, "", 4, sizes, 0, &t->m[0]) || setup(t, batch, pixels, 2, 1000, 1);
}

static int make_gpt(trainer *t, int64_t layers, int64_t dim, int64_t heads, int64_t length, int64_t batch)
{
    int64_t tokens[2] = {batch, length};
    t->classes = 256;
    return lks_gpt_create(t->ps, "", 256, length, layers, dim, heads, 0, &t->m[0]) ||
           setup(t, batch * length, tokens, 2, 256, 0);
}

static int make_cnn(trainer *t)
{
    int64_t images[4] = {64, 3, 32, 32};
    t->classes = 10;
    t->cnn = 1;
    return lks_conv2d_create(t->ps, "0", 3, 32, 3, 1, 1, 1, &t->m[0]) ||
           lks_conv2d_create(t->ps, "1", 32, 64, 3, 1, 1, 1, &t->m[1]) ||
           lks_conv2d_create(t->ps, "2", 64, 128, 3, 1, 1, 1, &t->m[2]) ||
           lks_linear_create(t->ps, "3", 128 * 64, 10, 1, &t->m[3]) || setup(t, 64, images, 4, 1000, 1);
}

typedef struct result { double seconds, limit; int64_t bytes; int quiet; } result;

static int train(const char *name, int reduced, result *r)
{
    trainer t = {.cast = reduced ? LKS_BF16 : LKS_DTYPE_NONE};
    double flops = 0;
    int bad = lks_params_create(ctx, &t.ps) != LKS_OK;
    lks_memory_peak_reset(ctx);
    if (!bad && !strcmp(name, "mlp64")) flops = 64 * 3.213e6, bad = make_mlp(&t, 64);
    else if (!bad && !strcmp(name, "mlp512")) flops = 512 * 3.213e6, bad = make_mlp(&t, 512);
    else if (!bad && !strcmp(name, "cnn")) flops = 14.75e9, bad = make_cnn(&t);
    else if (!bad && !strcmp(name, "gpts")) flops = 5.84e9, bad = make_gpt(&t, 4, 128, 4, 128, 8);
    else if (!bad) flops = 73.1e9, bad = make_gpt(&t, 6, 384, 6, 256, 4);
    if (!bad) {
        r->seconds = median(step, &t, 0.2, &r->quiet);
        r->limit = flops / (reduced ? rate16 : rate) + 28.0 * (double)lks_params_numel(t.ps) / bandwidth;
        r->bytes = lks_memory_peak(ctx);
    }
    lks_dp_destroy(&t.dp);
    lks_optim_destroy(&t.opt);
    for (int i = 0; i < 8; i++) lks_module_destroy(&t.m[i]);
    lks_params_destroy(&t.ps);
    lks_release(t.x);
    lks_release(t.target);
    return bad || r->seconds < 0;
}

/* --- the optimizer's passes --- */

#define MANY 10000000
typedef struct passes { lks_params *ps; lks_optim *opt; lks_scaler *s; lks_tensor *first[10]; int unscale; } passes;

static int one_pass(void *user)
{
    passes *p = user;
    if (!p->unscale) return lks_optim_step(p->opt, NULL) != LKS_OK;
    for (int i = 0; i < 10; i++) /* gradients that the program wrote may be divided again */
        if (lks_fill_(p->first[i], 1)) return 1;
    return lks_optim_unscale(p->opt, p->s) || lks_scaler_update(p->s);
}

static int optimizer(const char *name, int reduced, result *r)
{
    passes p = {.unscale = !strcmp(name, "unscale")};
    int64_t n = MANY / 10;
    int bad = lks_params_create(ctx, &p.ps) != LKS_OK;
    lks_tensor *w[10] = {NULL};
    lks_scope_begin(ctx);
    lks_no_grad_begin(ctx);
    for (int i = 0; i < 10 && !bad; i++) {
        char text[8];
        snprintf(text, sizeof text, "w%d", i);
        bad = lks_params_add(p.ps, text, LKS_F32, 1, &n, &w[i]) || lks_fill_(w[i], 0.5);
    }
    lks_no_grad_end(ctx);
    bad = bad || lks_optim_create(p.ps, LKS_ADAMW, &p.opt) || lks_scaler_create(ctx, 1, &p.s) ||
          lks_scaler_set_scale(p.s, 1) || lks_scaler_set_dynamic(p.s, 0);
    for (int i = 0; i < 10 && !bad; i++) { /* gradients, and in a region the copies that the update keeps up to date */
        if (reduced) lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        lks_tensor *y = reduced ? lks_matmul(w[i], w[i]) : lks_mul(w[i], w[i]);
        if (reduced) lks_autocast_end(ctx);
        bad = lks_backward(lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) != LKS_OK;
    }
    for (int i = 0; i < 10 && !bad; i++) bad = !(p.first[i] = lks_narrow(lks_grad(w[i]), 0, 0, 1));
    if (!bad) {
        r->seconds = median(one_pass, &p, 0.1, &r->quiet);
        r->limit = (p.unscale ? 8.0 : reduced ? 30.0 : 28.0) * MANY / bandwidth;
        r->bytes = lks_memory_peak(ctx);
    }
    lks_scope_end(ctx);
    lks_scaler_destroy(&p.s);
    lks_optim_destroy(&p.opt);
    lks_params_destroy(&p.ps);
    return bad || r->seconds < 0;
}

/* --- single ops, forward and backward --- */

typedef struct point { lks_tensor *x, *target, *w, *b, *more[4], *dy; } point;

static lks_tensor *layer_norm(point *p) { return lks_layer_norm(p->x, 1, p->w, p->b, 1e-5); }
static lks_tensor *rms_norm(point *p) { return lks_rms_norm(p->x, 1, p->w, 1e-5); }
static lks_tensor *batch_norm(point *p)
{
    return lks_batch_norm(p->x, p->w, p->b, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5);
}
static lks_tensor *group_norm(point *p) { return lks_group_norm(p->x, 8, p->w, p->b, 1e-5); }
static lks_tensor *softmax(point *p) { return lks_softmax(p->x, 1); }
static lks_tensor *gelu(point *p) { return lks_gelu(p->x, 0); }
static lks_tensor *gelu_tanh(point *p) { return lks_gelu(p->x, 1); }
static lks_tensor *relu(point *p) { return lks_relu(p->x); }
static lks_tensor *cross_entropy(point *p)
{
    return lks_cross_entropy(p->x, p->target, LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
}
static lks_tensor *mse(point *p) { return lks_mse_loss(p->x, p->target, LKS_REDUCTION_MEAN); }
static lks_tensor *bce(point *p)
{
    return lks_binary_cross_entropy_with_logits(p->x, p->target, LKS_NONE, LKS_NONE, LKS_REDUCTION_MEAN);
}
static lks_tensor *cumsum(point *p) { return lks_cumsum(p->x, 1, LKS_DTYPE_NONE); }
static const int64_t two[2] = {2, 2}, zero[2] = {0, 0};
static lks_tensor *max_pool(point *p) { return lks_max_pool2d(p->x, two, two, zero); }
static lks_tensor *avg_pool(point *p) { return lks_avg_pool(p->x, two, two, zero, 0, 1, 0); }
static lks_tensor *grid_sample(point *p)
{
    return lks_grid_sample(p->x, p->target, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_ZEROS, 0);
}
static lks_tensor *lstm(point *p)
{
    lks_tensor *y = NULL;
    return lks_lstm(p->x, LKS_NONE, LKS_NONE, LKS_NONE, 4, p->more, 0, 1, 0, &y, NULL, NULL) == LKS_OK ? y : NULL;
}
static lks_tensor *gru(point *p)
{
    lks_tensor *y = NULL;
    return lks_gru(p->x, LKS_NONE, LKS_NONE, 4, p->more, 0, 1, 0, &y, NULL) == LKS_OK ? y : NULL;
}

/* Of the target: labels; numbers of [0, 1) of x's shape; places to look at, [N, H, W, 2]. */
enum { NOTHING, LABELS, SHARES, GRID };
static const struct single {
    const char *name;
    lks_tensor *(*f)(point *p);
    int ndim;
    int64_t shape[4];
    int target, gates; /* gates: of a recurrent layer as wide as its input */
    double moves;      /* arrays of x's size that must be read or written, forward and backward */
} single[] = {
    {"layernorm", layer_norm, 2, {4096, 1024}, NOTHING, 0, 5},
    {"softmax", softmax, 2, {4096, 1024}, NOTHING, 0, 5},
    {"crossentropy", cross_entropy, 2, {4096, 1024}, LABELS, 0, 2},
    {"gelu", gelu, 2, {4096, 1024}, NOTHING, 0, 5},
    {"gelutanh", gelu_tanh, 2, {4096, 1024}, NOTHING, 0, 5},
    {"relu", relu, 2, {4096, 1024}, NOTHING, 0, 5},
    {"rmsnorm", rms_norm, 2, {4096, 1024}, NOTHING, 0, 5},
    {"batchnorm", batch_norm, 4, {16, 64, 64, 64}, NOTHING, 0, 7},
    {"groupnorm", group_norm, 4, {16, 64, 64, 64}, NOTHING, 0, 5},
    {"mse", mse, 2, {4096, 1024}, SHARES, 0, 5},
    {"bcelogits", bce, 2, {4096, 1024}, SHARES, 0, 5},
    {"cumsum", cumsum, 2, {4096, 1024}, NOTHING, 0, 4},
    {"maxpool", max_pool, 4, {16, 64, 64, 64}, NOTHING, 0, 2.75},
    {"avgpool", avg_pool, 4, {16, 64, 64, 64}, NOTHING, 0, 2.5},
    {"gridsample", grid_sample, 4, {4, 16, 128, 128}, GRID, 0, 5},
    {"lstm", lstm, 3, {32, 64, 256}, NOTHING, 4, 0},
    {"gru", gru, 3, {32, 64, 256}, NOTHING, 3, 0},
};
typedef struct running { const struct single *op; point p; } running;

static int one_point(void *user)
{
    running *r = user;
    point *p = &r->p;
    lks_scope_begin(ctx);
    lks_zero_grad(p->x);
    for (int i = 0; r->op->gates && i < 4; i++) lks_zero_grad(p->more[i]);
    if (r->op->target == GRID) lks_zero_grad(p->target);
    int bad = lks_backward(r->op->f(p), p->dy, 0) != LKS_OK;
    lks_scope_end(ctx);
    return bad;
}

static lks_tensor *target_of(const struct single *op, lks_dtype d)
{
    int64_t grid[4] = {op->shape[0], op->shape[2], op->shape[3], 2}, rows = op->shape[0];
    if (op->target == NOTHING) return LKS_NONE;
    if (op->target == LABELS) return lks_arange(ctx, LKS_I64, rows < op->shape[1] ? rows : op->shape[1]);
    lks_tensor *t = lks_empty(ctx, d, op->target == GRID ? 4 : op->ndim, op->target == GRID ? grid : op->shape);
    return t && lks_uniform_(t, op->target == GRID ? -1 : 0, 1) == LKS_OK ? t : NULL;
}

static int pointwise(const char *name, int reduced, result *res)
{
    lks_dtype d = reduced ? LKS_BF16 : LKS_F32;
    running r = {.op = single};
    point *p = &r.p;
    while (strcmp(r.op->name, name)) r.op++;
    const struct single *op = r.op;
    int64_t channels = op->shape[op->ndim == 4 ? 1 : op->ndim - 1], n = 1, wide = op->gates * channels;
    int64_t matrix[2] = {wide, channels};
    for (int i = 0; i < op->ndim; i++) n *= op->shape[i];
    lks_scope_begin(ctx);
    p->x = lks_empty(ctx, d, op->ndim, op->shape);
    p->target = target_of(op, d);
    if (op->target == LABELS && op->shape[0] > op->shape[1]) { /* 0, 1, ... over and over */
        int64_t fold[2] = {op->shape[0] / op->shape[1], op->shape[1]};
        p->target = lks_contiguous(lks_reshape(lks_expand(p->target, 2, fold), 1, op->shape));
    }
    int bad = !p->x || !p->target || lks_normal_(p->x, 0, 1) || lks_set_requires_grad(p->x, 1);
    p->w = lks_full(ctx, LKS_F32, 1, &channels, 1);
    p->b = lks_full(ctx, LKS_F32, 1, &channels, 0);
    if (op->target == GRID) bad = bad || lks_set_requires_grad(p->target, 1);
    for (int i = 0; i < 4 && op->gates && !bad; i++) {
        p->more[i] = lks_empty(ctx, d, i < 2 ? 2 : 1, i < 2 ? matrix : &wide);
        bad = !p->more[i] || lks_uniform_(p->more[i], -0.06, 0.06) || lks_set_requires_grad(p->more[i], 1);
    }
    lks_no_grad_begin(ctx);
    lks_tensor *y = bad ? NULL : op->f(p);
    lks_no_grad_end(ctx);
    p->dy = !y ? NULL : lks_ndim(y) ? lks_full(ctx, lks_dtype_of(y), lks_ndim(y), lks_shape(y), 0.25) : LKS_NONE;
    bad = bad || !p->dy;
    if (!bad) {
        res->seconds = median(one_point, &r, 0.05, &res->quiet);
        res->limit = op->moves * (double)n * lks_dtype_size(d) / bandwidth;
        if (op->gates) /* three products of both matrices a step */
            res->limit = 3 * 2.0 * (double)n * 2 * (double)wide / (reduced ? rate16 : rate);
    }
    lks_scope_end(ctx);
    return bad || res->seconds < 0;
}

/* 100 ops on 16 floats; seconds an op. */
typedef struct chain { lks_tensor *x, *c, *g; } chain;

static int one_chain(void *user)
{
    chain *p = user;
    lks_scope_begin(ctx);
    lks_zero_grad(p->x);
    lks_tensor *y = p->x;
    for (int i = 0; i < 25; i++) y = lks_relu(lks_tanh(lks_add(lks_mul(y, p->c), p->c)));
    int bad = lks_backward(y, p->g, 0) != LKS_OK;
    lks_scope_end(ctx);
    return bad;
}

static int small(const char *name, int reduced, result *r)
{
    int64_t n = 16;
    (void)name, (void)reduced;
    lks_scope_begin(ctx);
    chain p = {lks_full(ctx, LKS_F32, 1, &n, 0.5), lks_full(ctx, LKS_F32, 1, &n, 0.999),
               lks_full(ctx, LKS_F32, 1, &n, 1)};
    int bad = !p.x || !p.c || !p.g || lks_set_requires_grad(p.x, 1);
    if (!bad) r->seconds = median(one_chain, &p, 0.05, &r->quiet) / 100;
    r->limit = 0.3e-6; /* a goal, not a limit */
    lks_scope_end(ctx);
    return bad || r->seconds < 0;
}

static int products(const char *name, int reduced, result *r)
{
    (void)name;
    r->seconds = second_of_product[reduced];
    r->limit = 2.0 * 1024 * 1024 * 1024 / peak;
    r->quiet = rounds;
    return 0;
}

/* --- communication --- */

static int one_all_reduce(void *user)
{
    return lks_all_reduce(user, LKS_SUM) != LKS_OK;
}

/* 40 MB; the limit is an in-place scale over its bytes. */
static int all_reduce(const char *name, int reduced, result *r)
{
    int64_t n = 10000000;
    (void)name, (void)reduced;
    lks_scope_begin(ctx);
    lks_tensor *t = lks_full(ctx, LKS_F32, 1, &n, 0);
    if (t) r->seconds = median(one_all_reduce, t, 0, &r->quiet);
    r->limit = 8.0 * (double)n / bandwidth;
    lks_scope_end(ctx);
    return !t || r->seconds < 0;
}

/* --- checkpoint --- */

typedef struct disk { lks_checkpoint *c; char path[4096]; char *raw; int64_t bytes; int direct; } disk;

static int one_save(void *user)
{
    disk *d = user;
    return lks_checkpoint_save(d->c, d->path) != LKS_OK;
}

/* The same bytes in pieces of 8 MiB, past the page cache where that can be. */
static int one_raw(void *user)
{
    disk *d = user;
    int fd = open(d->path, O_WRONLY | O_CREAT | O_TRUNC | (d->direct ? O_DIRECT : 0), 0666), bad = fd < 0;
    for (int64_t at = 0; at < d->bytes && !bad; at += 8 << 20) bad = write(fd, d->raw, 8 << 20) != 8 << 20;
    if (!bad) bad = fsync(fd);
    if (fd >= 0) close(fd);
    return bad;
}

static int checkpoint(const char *name, int reduced, result *r)
{
    disk d = {.bytes = 400 << 20, .direct = 1};
    lks_params *ps = NULL;
    int64_t n = 1 << 20;
    int quiet;
    (void)name, (void)reduced;
    snprintf(d.path, sizeof d.path, "%s/bench.h5.tmp", folder);
    d.raw = aligned_alloc(4096, 8 << 20);
    int bad = !d.raw || lks_params_create(ctx, &ps);
    lks_no_grad_begin(ctx);
    for (int i = 0; i < 100 && !bad; i++) {
        char text[16];
        lks_tensor *w;
        snprintf(text, sizeof text, "w%d", i);
        bad = lks_params_add(ps, text, LKS_F32, 1, &n, &w) || lks_fill_(w, i);
    }
    lks_no_grad_end(ctx);
    if (!bad) memset(d.raw, 7, 8 << 20);
    bad = bad || lks_params_seal(ps) || lks_checkpoint_create(ctx, &d.c) || lks_checkpoint_set_params(d.c, ps);
    if (!bad && one_raw(&d)) d.direct = 0;
    if (!bad) r->limit = median(one_raw, &d, 0, &quiet);
    if (!bad) r->seconds = median(one_save, &d, 0, &r->quiet);
    unlink(d.path);
    lks_checkpoint_destroy(&d.c);
    lks_params_destroy(&ps);
    free(d.raw);
    return bad || r->seconds < 0 || r->limit < 0;
}

/* --- the rows --- */

enum { F32 = 1, BF16 = 2, RANKS = 4, ALONE = 8 };
static const struct { const char *name; int (*run)(const char *, int, result *); int kinds; } table[] = {
    {"product", products, F32 | BF16 | ALONE},
    {"adamw", optimizer, F32 | BF16 | ALONE},
    {"unscale", optimizer, F32 | ALONE},
    {"layernorm", pointwise, F32 | BF16 | ALONE},
    {"softmax", pointwise, F32 | BF16 | ALONE},
    {"crossentropy", pointwise, F32 | BF16 | ALONE},
    {"gelu", pointwise, F32 | BF16 | ALONE},
    {"gelutanh", pointwise, F32 | BF16 | ALONE},
    {"relu", pointwise, F32 | BF16 | ALONE},
    {"rmsnorm", pointwise, F32 | ALONE},
    {"batchnorm", pointwise, F32 | ALONE},
    {"groupnorm", pointwise, F32 | ALONE},
    {"mse", pointwise, F32 | ALONE},
    {"bcelogits", pointwise, F32 | ALONE},
    {"cumsum", pointwise, F32 | ALONE},
    {"maxpool", pointwise, F32 | ALONE},
    {"avgpool", pointwise, F32 | ALONE},
    {"gridsample", pointwise, F32 | ALONE},
    {"lstm", pointwise, F32 | ALONE},
    {"gru", pointwise, F32 | ALONE},
    {"small", small, F32 | ALONE},
    {"mlp64", train, F32 | BF16 | ALONE | RANKS},
    {"mlp512", train, F32 | BF16 | ALONE | RANKS},
    {"cnn", train, F32 | BF16 | ALONE},
    {"gpts", train, F32 | BF16 | ALONE | RANKS},
    {"gptl", train, F32 | BF16 | ALONE | RANKS},
    {"allreduce", all_reduce, F32 | RANKS},
    {"checkpoint", checkpoint, F32 | ALONE},
};
#define ROWS (int)(sizeof table / sizeof *table)

static int asked(int n, char **names, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return 1;
    return n == 0;
}

int main(int argc, char **argv)
{
    int c, bad = 0;
    while ((c = getopt(argc, argv, "t:r:d:l")) > 0)
        switch (c) {
        case 't': threads = atoi(optarg); break;
        case 'r': rounds = atoi(optarg); break;
        case 'd': folder = optarg; break;
        case 'l':
            for (int i = 0; i < ROWS; i++) printf("%s\n", table[i].name);
            return 0;
        default: bad = 1;
        }
    for (int i = optind, k; i < argc; i++) {
        for (k = 0; k < ROWS && strcmp(table[k].name, argv[i]); k++) {}
        bad |= k == ROWS;
    }
    if (bad || rounds < 1 || rounds > ROUNDS_MAX || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: bench [-t THREADS] [-r ROUNDS] [-d DIR] [ROW...]   (-l lists the rows)\n");
        return 2;
    }
    lks_config *config = lks_config_new();
    lks_config_set_threads(config, threads);
    if (lks_context_create(MPI_COMM_NULL, config, &ctx) != LKS_OK) {
        fprintf(stderr, "bench: %s\n", lks_config_message(config));
        return 1;
    }
    lks_config_free(config);
    bad = limits();
    int first = lks_rank(ctx) == 0;
    if (!bad && first)
        printf("# peak %.1f GF/s, product f32 %.1f GF/s, bf16 %.1f GF/s, in-place scale %.1f GB/s, %d rank%s; %s\n",
               peak / 1e9, rate / 1e9, rate16 / 1e9, bandwidth / 1e9, lks_size(ctx), lks_size(ctx) > 1 ? "s" : "",
               lks_device_description(ctx));
    for (int i = 0; i < ROWS && !bad; i++) {
        if (!asked(argc - optind, argv + optind, table[i].name)) continue;
        if (!(table[i].kinds & (lks_size(ctx) > 1 ? RANKS : ALONE))) continue;
        for (int reduced = 0; reduced < 2 && !bad; reduced++) {
            if (!(table[i].kinds & (reduced ? BF16 : F32))) continue;
            result r = {.seconds = -1};
            bad = table[i].run(table[i].name, reduced, &r);
            if (!bad && first)
                printf("%s-%s\t%.6g\t%.6g\t%lld\t%d\n", table[i].name, reduced ? "bf16" : "f32", r.seconds, r.limit,
                       (long long)r.bytes, r.quiet);
            if (!bad) fflush(stdout);
        }
    }
    if (bad) fprintf(stderr, "bench: %s\n", lks_error(ctx));
    lks_context_destroy(&ctx);
    lks_finalize();
    return bad != 0;
}
