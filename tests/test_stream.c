/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_stream.c - a program with a stream and device memory of its own: wrapped, ordered by lks_after_stream and
 * lks_event alone; graphs of steps. On the device LKS_TEST_DEVICE=cuda (tests/cuda.test); what is said elsewhere.
 * With the argument "nccl", on several ranks with a device each (tests/nccl.test): one with a communicator of its own;
 * with "memory", on a device that has little (tests/cuda.test).
 */
#include "tap_mpi.h"
#include <dlfcn.h>
#include <lockstep.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

static lks_context *ctx;

static lks_context *open_context_on(MPI_Comm comm, const char *device)
{
    lks_config *config = lks_config_new();
    lks_context *c = NULL;
    lks_config_set_device(config, device);
    lks_config_set_threads(config, 1);
    if (lks_context_create(comm, config, &c) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
    return c;
}

static lks_context *open_context(const char *device)
{
    return open_context_on(MPI_COMM_NULL, device);
}

static void without(const char *device)
{
    ctx = open_context(device);
    int here;
    ok(lks_after_stream(ctx, NULL) == LKS_OK && !lks_event(ctx) && lks_error_code(ctx) == LKS_OK,
       "%s: nothing to order", device);
    ok(lks_after_stream(ctx, &here) == LKS_ERR_ARGUMENT, "%s: a stream is an error", device);
    lks_error_clear(ctx);
    ok(lks_graph_begin(ctx) == LKS_ERR_UNSUPPORTED && strstr(lks_error(ctx), device), "%s: no graphs", device);
    lks_context_destroy(&ctx);
}

/* The runtime's calls, as a program that is linked with it would make them. */
static struct {
    int (*malloc)(void **, size_t);
    int (*free)(void *);
    int (*host_alloc)(void **, size_t, unsigned);
    int (*host_free)(void *);
    int (*stream)(void **, unsigned);
    int (*stream_end)(void *);
    int (*copy)(void *, const void *, size_t, int, void *);
    int (*wait)(void *, void *, unsigned);
    int (*sync)(void *);
    int (*device)(int *);
    int (*set_device)(int);
} cuda;

static int load(void)
{
    void *so = dlopen("libcudart.so.13", RTLD_NOW);
    if (!so) so = dlopen("libcudart.so", RTLD_NOW);
    if (!so) return 0;
#define GET(table, member, name) *(void **)&table.member = dlsym(so, #name)
    GET(cuda, malloc, cudaMalloc);
    GET(cuda, free, cudaFree);
    GET(cuda, host_alloc, cudaHostAlloc);
    GET(cuda, host_free, cudaFreeHost);
    GET(cuda, stream, cudaStreamCreateWithFlags);
    GET(cuda, stream_end, cudaStreamDestroy);
    GET(cuda, copy, cudaMemcpyAsync);
    GET(cuda, wait, cudaStreamWaitEvent);
    GET(cuda, sync, cudaStreamSynchronize);
    GET(cuda, device, cudaGetDevice);
    GET(cuda, set_device, cudaSetDevice);
    return cuda.malloc && cuda.sync && cuda.wait && cuda.host_alloc;
}

enum { N = 3000, ROUNDS = 8, NON_BLOCKING = 1, UP = 1, DOWN = 2 };

/* Each round: the program's stream brings numbers, Lockstep computes, the stream takes the result away. */
static void streams(void)
{
    void *stream, *x, *y, *in, *out;
    int64_t size = N, bytes = N * (int64_t)sizeof(float);
    if (cuda.stream(&stream, NON_BLOCKING) || cuda.malloc(&x, (size_t)bytes) || cuda.malloc(&y, (size_t)bytes) ||
        cuda.host_alloc(&in, (size_t)(ROUNDS * bytes), 0) || cuda.host_alloc(&out, (size_t)(ROUNDS * bytes), 0))
        bail("no memory for the program");
    float *given = in, *taken = out;
    for (int i = 0; i < ROUNDS * N; i++) given[i] = (float)(i % 4099) / 16;
    lks_tensor *tx = lks_wrap(ctx, x, LKS_F32, 1, &size, NULL), *ty = lks_wrap(ctx, y, LKS_F32, 1, &size, NULL);
    int good = tx && ty;
    for (int k = 0; k < ROUNDS && good; k++) {
        lks_scope_begin(ctx);
        good = !cuda.copy(x, given + k * N, (size_t)bytes, UP, stream) && lks_after_stream(ctx, stream) == LKS_OK &&
               lks_copy_(ty, lks_add_scalar(lks_mul_scalar(tx, 2), 1)) == LKS_OK;
        void *event = lks_event(ctx);
        good = good && event && !cuda.wait(stream, event, 0) &&
               !cuda.copy(taken + k * N, y, (size_t)bytes, DOWN, stream);
        lks_scope_end(ctx);
    }
    ok(good, "memory of the program is wrapped, its stream ordered by events: %s", lks_error(ctx));
    cuda.sync(stream);
    int wrong = 0;
    for (int i = 0; i < ROUNDS * N; i++) wrong += taken[i] != 2 * given[i] + 1;
    is_int(wrong, 0, "no number came too early or too late, without a wait of the host");
    lks_synchronize(ctx);
    cuda.free(x);
    cuda.free(y);
    cuda.host_free(in);
    cuda.host_free(out);
    cuda.stream_end(stream);
}

/* Steps of a small regression; graph: each gathered and launched as one; transforms: there is a library for them.
 * Parameters at the end. */
static void train(int graph, int transforms, float *w)
{
    lks_params *ps;
    lks_tensor *p;
    lks_optim *opt;
    int64_t shape[2] = {8, 4}, in_shape[2] = {16, 8};
    lks_random_set(ctx, 5, 0);
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, 2, shape, &p);
    lks_optim_create(ps, LKS_ADAMW, &opt);
    for (int k = 0; k < 5; k++) {
        lks_scope_begin(ctx);
        float x[128];
        for (int i = 0; i < 128; i++) x[i] = (float)((i * 7 + k * 3) % 11) / 4;
        lks_params_zero_grad(ps);
        lks_tensor *t = lks_from_host(ctx, LKS_F32, 2, in_shape, x);
        if (graph && k > 0) lks_graph_begin(ctx);
        lks_tensor *y = lks_add_scalar(lks_dropout(lks_matmul(t, p), 0.3), -1);
        if (transforms) y = lks_fft_irfft(lks_fft_rfft(lks_transpose(y, 0, 1), -1, 0, 0), 4, 0, LKS_FFT_ORTHO);
        lks_tensor *loss = lks_mean(lks_pow_scalar(y, 2), 0, NULL, 0, LKS_DTYPE_NONE);
        int64_t ticket = lks_item_later(loss);
        double v = 0, direct = 0;
        lks_backward(loss, LKS_NONE, 0);
        lks_optim_step(opt, NULL);
        /* One graph is cut in two by a wait. */
        if (k == 3) lks_item(loss, &direct);
        if (graph && k > 0 && lks_graph_end(ctx) != LKS_OK) diag("%s", lks_error(ctx));
        lks_item_take(ctx, ticket, &v);
        if (k == 3) ok(v == direct && v > 0, "loss %g, read at once and later", v);
        lks_scope_end(ctx);
    }
    ok(lks_to_host(p, w, 32 * sizeof *w) == LKS_OK && lks_error_code(ctx) == LKS_OK, "%s: five steps %s",
       graph ? "graphs" : "eager", lks_error(ctx));
    lks_optim_destroy(&opt);
    lks_params_destroy(&ps);
}

/* eig works on the host, too: inside a graph it ends the gathering, as a wait does. */
static void eigenvalues(void)
{
    double a[16], got[2][32], more[4] = {0};
    lks_tensor *w, *v;
    lks_error_clear(ctx);
    for (int i = 0; i < 16; i++) a[i] = (i * 7 + 3) % 11 - 4 + (i % 5 == 0) * 6;
    lks_tensor *x = lks_from_host(ctx, LKS_F64, 2, (int64_t[]){4, 4}, a);
    if (lks_linalg_eig(x, &w, &v) != LKS_OK && lks_error_code(ctx) == LKS_ERR_UNSUPPORTED) {
        skip(2, "%s", lks_error(ctx));
        lks_error_clear(ctx);
        return;
    }
    for (int graph = 0; graph < 2; graph++) {
        lks_tensor *y = lks_mul_scalar(x, 2);
        if (graph) lks_graph_begin(ctx);
        lks_tensor *z = lks_sub(y, x); /* made by what is gathered */
        int good = lks_linalg_eig(z, &w, &v) == LKS_OK;
        lks_tensor *rest = lks_sum(lks_mul(z, z), 1, (int[]){1}, 0, LKS_DTYPE_NONE);
        if (graph) good = good && lks_graph_end(ctx) == LKS_OK;
        good = good && lks_to_host(lks_view_as_real(v), got[graph], sizeof got[graph]) == LKS_OK &&
               lks_to_host(rest, more, sizeof more) == LKS_OK;
        double want = 0;
        for (int i = 0; i < 4; i++) want += a[i] * a[i];
        ok(good && more[0] == want && (!graph || !memcmp(got[0], got[1], sizeof got[0])),
           graph ? "eig inside a graph: the same bits, and what comes after it: %s" : "eig, eager: %s", lks_error(ctx));
    }
}

/* --- attention of 16 bits: tiles on tensor cores, against float64 on the CPU from the same rounded numbers --- */

enum { PLAIN, CAUSAL, MASKED, ADDED, DROPPED, MODES };

/* result[4]: y, dq, dk, dv in float64. */
static lks_status attend(lks_context *c, lks_dtype rounded, lks_dtype dtype, const int64_t *n, int mode,
                         double **result)
{
    int64_t shape[3][4] = {{n[0], n[1], n[2], n[4]}, {n[0], n[1], n[3], n[4]}, {n[0], n[1], n[3], n[4]}};
    int64_t seen[2] = {n[2], n[3]}, most = n[0] * n[1] * (n[2] > n[3] ? n[2] : n[3]) * n[4];
    lks_tensor *in[3], *mask = LKS_NONE, *dy;
    float *x = malloc((size_t)(most + seen[0] * seen[1]) * sizeof *x);
    lks_scope_begin(c);
    lks_random_set(c, 5, 0);
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < most; i++) x[i] = (float)((i * 7919 + k * 101) % 2003) / 1000 - 1;
        lks_tensor *t = lks_to(lks_to(lks_from_host(c, LKS_F32, 4, shape[k % 3], x), rounded), dtype);
        if (k < 3) lks_set_requires_grad(in[k] = t, 1);
        else dy = t;
    }
    for (int64_t i = 0; i < seen[0] * seen[1]; i++) x[i] = (float)(i * 31 % 17) / 8 - 1;
    if (mode == MASKED) 
        mask = lks_gt(lks_from_host(c, LKS_F32, 2, seen, x), lks_full(c, LKS_F32, 0, NULL, -0.5));
    if (mode == ADDED) mask = lks_from_host(c, LKS_F32, 2, seen, x);
    lks_tensor *y = lks_scaled_dot_product_attention(in[0], in[1], in[2], mask, mode == DROPPED ? 0.25 : 0,
                                                     mode == CAUSAL || mode == DROPPED, 0);
    lks_status s = lks_backward(y, dy, 0);
    for (int k = 0; k < 4 && s == LKS_OK; k++) {
        lks_tensor *t = lks_to(k ? lks_grad(in[k - 1]) : lks_detach(y), LKS_F64);
        s = lks_to_host(lks_contiguous(t), result[k], (k < 2 ? shape[0] : shape[1])[2] * n[0] * n[1] * n[4] * 8);
    }
    lks_scope_end(c);
    free(x);
    return s;
}

static void attention(void)
{
    static const int64_t sizes[][5] = {{1, 2, 70, 75, 24}, {2, 1, 33, 130, 64}, {1, 1, 65, 64, 128}, {1, 3, 5, 7, 8}};
    static const lks_dtype dtypes[] = {LKS_BF16, LKS_F16};
    static const char *const modes[] = {"plain", "causal", "masked", "added mask", "dropout"};
    lks_context *cpu = open_context("cpu");
    for (int mode = 0; mode < MODES; mode++) {
        double worst = 0;
        for (int i = 0; i < 8; i++) {
            const int64_t *n = sizes[i / 2];
            int64_t count[4] = {n[0] * n[1] * n[2] * n[4], n[0] * n[1] * n[2] * n[4], n[0] * n[1] * n[3] * n[4],
                                n[0] * n[1] * n[3] * n[4]};
            double *got[4], *want[4], unit = dtypes[i % 2] == LKS_BF16 ? 0x1p-8 : 0x1p-11;
            for (int k = 0; k < 4; k++)
                got[k] = malloc((size_t)count[k] * sizeof(double)), want[k] = malloc((size_t)count[k] * sizeof(double));
            if (attend(ctx, dtypes[i % 2], dtypes[i % 2], n, mode, got) ||
                attend(cpu, dtypes[i % 2], LKS_F64, n, mode, want))
                worst = INFINITY;
            for (int k = 0; k < 4; k++) {
                double top = 0, off = 0;
                for (int64_t e = 0; e < count[k]; e++) top = fmax(top, fabs(want[k][e]));
                for (int64_t e = 0; e < count[k]; e++) {
                    double d = fabs(got[k][e] - want[k][e]) / top / unit;
                    if (!(d <= off)) off = d;
                }
                if (!(off <= worst)) worst = off;
                free(got[k]);
                free(want[k]);
            }
        }
        ok(worst < 4, "attention of 16 bits, %s: off by %.2f units of rounding", modes[mode], worst);
    }
    if (lks_error_code(ctx) || lks_error_code(cpu)) diag("%s%s", lks_error(ctx), lks_error(cpu));
    lks_error_clear(ctx);
    lks_context_destroy(&cpu);
}

/* --- B111: the program's communicator of NCCL and the context's, in turn --- */

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

static struct {
    int (*id)(nccl_id *);
    int (*open)(void **, int, nccl_id, int);
    int (*sum)(const void *, void *, size_t, int, int, void *, void *);
    int (*error)(void *, int *);
    int (*close)(void *);
} nccl;

static int load_nccl(void)
{
    void *so = dlopen("libnccl.so.2", RTLD_NOW);
    if (!so) return 0;
    GET(nccl, id, ncclGetUniqueId);
    GET(nccl, open, ncclCommInitRank);
    GET(nccl, sum, ncclAllReduce);
    GET(nccl, error, ncclCommGetAsyncError);
    GET(nccl, close, ncclCommDestroy);
    return nccl.id && nccl.open && nccl.sum && nccl.error && nccl.close;
}

/* A thread of the program that has a stream of its own and knows nothing of Lockstep. */
typedef struct other {
    int device, stop, rounds, wrong;
} other;

static void *other_main(void *arg)
{
    other *o = arg;
    void *stream, *x, *host;
    int *v;
    if (cuda.set_device(o->device) || cuda.stream(&stream, NON_BLOCKING) || cuda.malloc(&x, N * sizeof *v) ||
        cuda.host_alloc(&host, N * sizeof *v, 0)) {
        o->wrong = 1;
        return NULL;
    }
    for (v = host; !__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE); o->rounds++) {
        for (int i = 0; i < N; i++) v[i] = o->rounds + i;
        cuda.copy(x, v, N * sizeof *v, UP, stream);
        cuda.sync(stream);
        memset(v, 0, N * sizeof *v);
        cuda.copy(v, x, N * sizeof *v, DOWN, stream);
        cuda.sync(stream);
        for (int i = 0; i < N; i++) o->wrong += v[i] != o->rounds + i;
        usleep(500);
    }
    cuda.free(x);
    cuda.host_free(host);
    cuda.stream_end(stream);
    return NULL;
}

enum { TURNS = 1000, SOME = 64, FLOAT = 7, SUM = 0 };

/* Up on the program's stream, summed by Lockstep, summed again by the program, down: each after the other by events.
 * The ranks are late at random. */
static void two_communicators(void)
{
    int n, me, was = -1, now = -1, error = 0;
    void *stream, *x, *in, *out, *comm;
    int64_t size = SOME, bytes = SOME * (int64_t)sizeof(float);
    pthread_t thread;
    nccl_id id;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    ctx = open_context_on(MPI_COMM_WORLD, "cuda");
    ok(strncmp(lks_transport(ctx), "nccl", 4) == 0, "the context's ranks have NCCL: %s", lks_transport(ctx));
    if (me == 0) nccl.id(&id);
    MPI_Bcast(&id, (int)sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (cuda.set_device(me) || nccl.open(&comm, n, id, me) || cuda.stream(&stream, NON_BLOCKING) ||
        cuda.malloc(&x, (size_t)bytes) || cuda.host_alloc(&in, (size_t)(TURNS * bytes), 0) ||
        cuda.host_alloc(&out, (size_t)(TURNS * bytes), 0))
        bail("no communicator, stream or memory for the program");
    other o = {.device = 1 - me % 2};
    int threaded = pthread_create(&thread, NULL, other_main, &o) == 0;
    cuda.device(&was);
    float *given = in, *taken = out;
    for (int i = 0; i < TURNS * SOME; i++) given[i] = (float)(i % 1021 + me);
    lks_scope_begin(ctx);
    lks_tensor *t = lks_wrap(ctx, x, LKS_F32, 1, &size, NULL);
    unsigned dice = 7 + (unsigned)me;
    int good = t != NULL;
    for (int k = 0; k < TURNS && good; k++) {
        dice = dice * 1664525 + 1013904223;
        if (dice >> 29 == 0) usleep(dice >> 8 & 511);
        lks_scope_begin(ctx);
        good = !cuda.copy(x, given + k * SOME, (size_t)bytes, UP, stream) && lks_after_stream(ctx, stream) == LKS_OK &&
               lks_all_reduce(t, LKS_SUM) == LKS_OK;
        void *event = lks_event(ctx);
        good = good && event && !cuda.wait(stream, event, 0) && !nccl.sum(x, x, SOME, FLOAT, SUM, comm, stream) &&
               !cuda.copy(taken + k * SOME, x, (size_t)bytes, DOWN, stream);
        lks_scope_end(ctx);
    }
    ok(good, "B111: a communicator of the program's and the context's, %d times in turn: %s", TURNS, lks_error(ctx));
    cuda.sync(stream);
    int wrong = 0;
    for (int i = 0; i < TURNS * SOME; i++) wrong += taken[i] != (float)(n * (n * (i % 1021) + n * (n - 1) / 2));
    is_int(wrong, 0, "B111: every sum is right, nobody waits for ever");
    cuda.device(&now);
    ok(now == was && was == me, "the program's current device is as it was (%d, %d)", was, now);
    __atomic_store_n(&o.stop, 1, __ATOMIC_RELEASE);
    if (threaded) pthread_join(thread, NULL);
    ok(threaded && o.wrong == 0, "and a thread of the program's on the other device was not disturbed");
    ok(nccl.error(comm, &error) == 0 && error == 0, "the program's communicator is sound");
    lks_scope_end(ctx);
    lks_context_destroy(&ctx);
    nccl.close(comm);
    cuda.free(x);
    cuda.host_free(in);
    cuda.host_free(out);
    cuda.stream_end(stream);
}

static int with_nccl(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    tap_mpi(MPI_COMM_WORLD);
    if (!load() || !load_nccl()) bail("no CUDA runtime, or no NCCL");
    two_communicators();
    int status = done();
    MPI_Finalize();
    return status;
}

/* --- a device of 100 MiB (cuda.test makes one) --- */

static double sum_of(lks_tensor *t)
{
    double v = NAN;
    lks_item(lks_sum(t, 0, NULL, 0, LKS_DTYPE_NONE), &v);
    return v;
}

static int short_of_memory(void)
{
    const int64_t some[2] = {1024, 1024}, most = 15 << 20; /* 4 MiB; 60 MiB */
    ctx = open_context("cuda");
    lks_scope_begin(ctx);
    lks_tensor *x = lks_ones(ctx, LKS_F32, 2, some), *y = x;
    int n = 0;
    for (; y && n < 1000; n++) y = lks_exp(x);
    const char *text = lks_error(ctx);
    ok(!y && n > 10 && lks_error_code(ctx) == LKS_ERR_MEMORY && strstr(text, "peak") &&
           strstr(text, "wanted by lks_exp for float32[1024,1024]") && strstr(text, "float32[1024,1024];"), "%s", text);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    lks_scope_begin(ctx);
    x = lks_ones(ctx, LKS_F32, 2, some);
    ok(sum_of(lks_add(x, x)) == 2 << 20, "then all goes on");
    ok(sum_of(lks_matmul(x, x)) == 1 << 30, "a library's workspace is made of what the pool holds idle: %s",
       lks_error(ctx));
    lks_scope_end(ctx);
    /* Idle memory is given back in the middle of a graph that uses it. */
    lks_scope_begin(ctx);
    ok(lks_graph_begin(ctx) == LKS_OK, "a graph");
    lks_scope_begin(ctx);
    y = x = lks_ones(ctx, LKS_F32, 2, some);
    for (int i = 0; i < 6; i++) y = lks_add(lks_mul(y, x), x);
    y = lks_scope_leave(ctx, lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE));
    x = lks_full(ctx, LKS_F32, 1, &most, 2);
    ok(lks_graph_end(ctx) == LKS_OK && sum_of(y) == 7 << 20 && sum_of(x) == 30 << 20,
       "memory that it needs is given back when it is done: %s", lks_error(ctx));
    lks_scope_end(ctx);
    is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed");
    lks_finalize();
    return done();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "nccl")) return with_nccl(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "memory")) return short_of_memory();
    without("cpu");
    without("far");
    const char *device = tap_device("far");
    if (strcmp(device, "far") && load()) {
        ctx = open_context(device);
        lks_scope_begin(ctx);
        streams();
        float eager[32], graph[32];
        int transforms = lks_fft_fft(lks_ones(ctx, LKS_C64, 1, (int64_t[]){4}), -1, 0, 0) != NULL;
        lks_error_clear(ctx);
        diag("%s Fourier transforms", transforms ? "with" : "without");
        train(0, transforms, eager);
        train(1, transforms, graph);
        ok(memcmp(eager, graph, sizeof eager) == 0, "graphs: the same bits as eager");
        ok(lks_graph_begin(ctx) == LKS_OK && lks_graph_begin(ctx) == LKS_ERR_STATE && lks_graph_end(ctx) == LKS_OK,
           "begun twice is an error");
        eigenvalues();
        attention();
        lks_scope_end(ctx);
        lks_context_destroy(&ctx);
    } else {
        skip(15, "no device with streams (LKS_TEST_DEVICE=cuda)");
    }
    int status = done();
    lks_finalize();
    return status;
}
