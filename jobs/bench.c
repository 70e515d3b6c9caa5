/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bench.c - training steps against what this machine could do at best, measured in the same process: `make bench`.
 * Ratios are what counts: quote them, not milliseconds. Not a test.
 *
 *   bench [THREADS [ROUNDS]]
 *
 * limit = flops / rate of the best matrix product found here + bytes of AdamW / bandwidth of an in-place scale. A round
 * in which the process was preempted often is dropped; the median of the others is shown.
 */
#include <lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define ROUNDS_MAX 64

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

/* Median seconds of fn over quiet rounds; *quiet: how many there were (0: the best of all is returned). */
typedef int (*work_fn)(void *);
static double median(work_fn fn, void *user, int repeat, int rounds, int *quiet)
{
    double good[ROUNDS_MAX], best = 1e30;
    *quiet = 0;
    if (fn(user)) return -1;
    for (int r = 0; r < rounds; r++) {
        long before = preemptions();
        double t = now();
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

typedef struct product { lks_context *ctx; lks_tensor *a, *b; } product;
static int one_product(void *user)
{
    product *p = user;
    lks_scope_begin(p->ctx);
    int bad = !lks_matmul(p->a, p->b);
    lks_scope_end(p->ctx);
    return bad;
}

/* A plain loop over memory far beyond the caches: x = 0.999 x. One thread a rank: several would need a loop of ours. */
#define STREAM (32 << 20)
static int one_scale(void *user)
{
    float *x = user;
    for (int64_t i = 0; i < STREAM; i++) x[i] *= 0.999f;
    return x[1] > 2;
}

/* --- a training step --- */

typedef struct trainer {
    lks_context *ctx;
    lks_params *ps;
    lks_module *m;
    lks_optim *opt;
    lks_dp *dp;
    lks_tensor *x, *target;
    lks_dtype cast;
    double weight;
    int64_t classes;
} trainer;

static int step(void *user)
{
    trainer *t = user;
    lks_context *ctx = t->ctx;
    int64_t rows[2] = {-1, t->classes}, flat = -1;
    lks_scope_begin(ctx);
    lks_params_zero_grad(t->ps);
    if (t->cast != LKS_DTYPE_NONE) lks_autocast_begin(ctx, t->cast, 1, 1);
    lks_tensor *y = lks_module_forward(t->m, t->x);
    y = lks_reshape(y, 2, rows);
    lks_tensor *loss = lks_cross_entropy(y, lks_reshape(t->target, 1, &flat), LKS_IGNORE_INDEX, 0, LKS_REDUCTION_SUM);
    if (t->cast != LKS_DTYPE_NONE) lks_autocast_end(ctx);
    int bad = lks_dp_backward(t->dp, NULL, loss, t->weight, LKS_NONE, 1) || lks_optim_step(t->opt, NULL);
    lks_scope_end(ctx);
    return bad;
}

static int setup(trainer *t, int64_t count, int64_t *shape, int ndim, int64_t top, int images)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    int64_t *host = malloc((size_t)n * sizeof *host), *labels = malloc((size_t)count * sizeof *labels);
    float *f = malloc((size_t)n * sizeof *f);
    if (!host || !labels || !f) return 1;
    for (int64_t i = 0; i < n; i++) host[i] = i * 7919 % top, f[i] = (float)(host[i] % 97) / 97;
    for (int64_t i = 0; i < count; i++) labels[i] = i * 104729 % t->classes;
    t->x = lks_keep(images ? lks_from_host(t->ctx, LKS_F32, ndim, shape, f)
                           : lks_from_host(t->ctx, LKS_I64, ndim, shape, host));
    t->target = lks_keep(lks_from_host(t->ctx, LKS_I64, 1, &count, labels));
    free(host);
    free(labels);
    free(f);
    t->weight = (double)count;
    return !t->x || !t->target || lks_optim_create(t->ps, LKS_ADAMW, &t->opt) || lks_dp_create(t->ps, 0, &t->dp) ||
           lks_dp_set_nominal(t->dp, t->weight * lks_size(t->ctx));
}

static void drop(trainer *t)
{
    lks_dp_destroy(&t->dp);
    lks_optim_destroy(&t->opt);
    lks_module_destroy(&t->m);
    lks_params_destroy(&t->ps);
    lks_release(t->x);
    lks_release(t->target);
}

static int row(lks_context *ctx, const char *name, int gpt, lks_dtype cast, double gflop, double rate, double bandwidth,
               int rounds)
{
    trainer t = {.ctx = ctx, .cast = cast, .classes = gpt ? 256 : 10};
    int64_t tokens[2] = {8, 128}, pixels[2] = {64, 784}, sizes[4] = {784, 512, 512, 10};
    int quiet, bad = lks_params_create(ctx, &t.ps) != LKS_OK;
    if (!bad && gpt)
        bad = lks_gpt_create(t.ps, "", 256, 128, 4, 128, 4, 0, &t.m) || setup(&t, 8 * 128, tokens, 2, 256, 0);
    if (!bad && !gpt) bad = lks_mlp_create(t.ps, "", 4, sizes, 0, &t.m) || setup(&t, 64, pixels, 2, 1000, 1);
    double bytes = 28.0 * (double)lks_params_numel(t.ps) / 1e9;
    double s = bad ? -1 : median(step, &t, gpt ? 2 : 20, rounds, &quiet);
    double limit = gflop / rate + bytes / bandwidth;
    if (s > 0 && lks_rank(ctx) == 0)
        printf("%-8s %-5s %9.2f ms %9.2f ms   %5.2f   %d of %d\n", name, cast == LKS_DTYPE_NONE ? "f32" : "bf16",
               1e3 * s, 1e3 * limit, s / limit, quiet, rounds);
    if (s <= 0) fprintf(stderr, "bench: %s\n", lks_error(ctx));
    drop(&t);
    return s <= 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 11, quiet;
    if (rounds < 1 || rounds > ROUNDS_MAX || threads < 1) {
        fprintf(stderr, "usage: bench [THREADS [ROUNDS]]\n");
        return 2;
    }
    lks_config *c = lks_config_new();
    lks_context *ctx;
    lks_config_set_threads(c, threads);
    if (lks_context_create(MPI_COMM_NULL, c, &ctx) != LKS_OK) {
        fprintf(stderr, "bench: %s\n", lks_config_message(c));
        return 1;
    }
    lks_config_free(c);
    int64_t square[2] = {1024, 1024};
    product p = {ctx, lks_full(ctx, LKS_F32, 2, square, 0.5), lks_full(ctx, LKS_F32, 2, square, 0.25)};
    double rate = 2 * 1024.0 * 1024 * 1024 / median(one_product, &p, 1, rounds, &quiet) / 1e9;
    product q = {ctx, lks_to(p.a, LKS_BF16), lks_to(p.b, LKS_BF16)};
    double rate16 = 2 * 1024.0 * 1024 * 1024 / median(one_product, &q, 1, rounds, &quiet) / 1e9;
    if (rate16 < rate) rate16 = rate; /* without bfloat16 instructions float32 is the limit */
    float *stream = calloc(STREAM, sizeof *stream);
    if (!stream) return 1;
    for (int64_t i = 0; i < STREAM; i++) stream[i] = 1;
    double bandwidth = 8.0 * STREAM / median(one_scale, stream, 1, rounds, &quiet) / 1e9;
    free(stream);
    if (lks_rank(ctx) == 0) {
        printf("%s, %d rank%s\n", lks_device_description(ctx), lks_size(ctx), lks_size(ctx) > 1 ? "s" : "");
        printf("product 1024^3: f32 %.0f GF/s, bf16 %.0f GF/s; in-place scale %.1f GB/s\n", rate, rate16, bandwidth);
        printf("%-8s %-5s %12s %12s   %5s   quiet rounds\n", "step", "", "time", "limit", "ratio");
    }
    int bad = 0;
    for (int cast = 0; cast < 2 && !bad; cast++) {
        lks_dtype d = cast ? LKS_BF16 : LKS_DTYPE_NONE;
        bad = row(ctx, "MLP-64", 0, d, 64 * 3.213e-3, cast ? rate16 : rate, bandwidth, rounds) ||
              row(ctx, "gptS", 1, d, 5.84, cast ? rate16 : rate, bandwidth, rounds);
    }
    lks_context_destroy(&ctx);
    lks_finalize();
    return bad;
}
