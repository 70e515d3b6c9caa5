/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_context.c - contexts: options and their errors, made and ended a thousand times, two at once, guests in a
 * program that has its own MPI, error handlers, floating-point traps and rounding. The lifetimes of MPI each need a
 * process of their own: the program starts itself with an argument. With "ranks" it is one of several
 * (tests/context.test).
 */
#define _GNU_SOURCE
#include "arrays.h"
#include "tap_mpi.h"
#include "tensor/tensor.h"
#include <dirent.h>
#include <fenv.h>
#include <signal.h>
#include <sys/wait.h>

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}

static lks_context *open_on(MPI_Comm comm, const char *device, int threads)
{
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    lks_config_set_device(config, device);
    lks_config_set_threads(config, threads);
    if (lks_context_create(comm, config, &ctx) != LKS_OK) diag("%s: %s", device, lks_config_message(config));
    lks_config_free(config);
    return ctx;
}

/* The sum of 0..9, by ops. */
static double ten(lks_context *ctx)
{
    double v = -1;
    lks_scope_begin(ctx);
    lks_item(lks_sum(lks_arange(ctx, LKS_F32, 10), 0, NULL, 0, LKS_DTYPE_NONE), &v);
    lks_scope_end(ctx);
    return v;
}

/* --- one process each: its status says whether all was well --- */

#define NEED(condition)                                                                                        \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            printf("# %s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                   \
            return 1;                                                                                          \
        }                                                                                                      \
    } while (0)

static int is_up(void)
{
    int up = 0, down = 0;
    MPI_Initialized(&up);
    MPI_Finalized(&down);
    return up && !down;
}

/* MPI is Lockstep's to begin and to end. */
static int mode_ours(void)
{
    lks_context *a = NULL, *b = NULL;
    lks_config *config = lks_config_new();
    NEED(lks_finalize() == LKS_OK && !is_up());
    NEED(lks_context_create(MPI_COMM_NULL, NULL, &a) == LKS_OK && is_up());
    NEED(lks_context_create(MPI_COMM_NULL, NULL, &b) == LKS_OK); /* still ours */
    NEED(lks_rank(a) == 0 && lks_size(a) == 1 && ten(a) == 45 && ten(b) == 45);
    NEED(lks_context_destroy(&a) == LKS_OK && !a && is_up() && ten(b) == 45);
    NEED(lks_context_destroy(&b) == LKS_OK && is_up());
    NEED(lks_finalize() == LKS_OK && !is_up());
    NEED(lks_finalize() == LKS_OK);
    NEED(lks_context_create(MPI_COMM_NULL, config, &a) == LKS_ERR_STATE && !a);
    NEED(strstr(lks_config_message(config), "finalised"));
    lks_config_free(config);
    return 0;
}

/* MPI is the program's. */
static int mode_host(void)
{
    lks_context *ctx = NULL;
    lks_config *config = lks_config_new();
    NEED(MPI_Init(NULL, NULL) == MPI_SUCCESS);
    NEED(lks_context_create(MPI_COMM_WORLD, config, &ctx) == LKS_OK && ten(ctx) == 45);
    NEED(lks_context_destroy(&ctx) == LKS_OK);
    NEED(lks_finalize() == LKS_OK && is_up());
    /* A rank that MPI_Comm_split left out has MPI_COMM_NULL: not a wish for all ranks. */
    NEED(lks_context_create(MPI_COMM_NULL, config, &ctx) == LKS_ERR_ARGUMENT && !ctx);
    NEED(strstr(lks_config_message(config), "MPI_COMM_NULL"));
    NEED(lks_context_create_f(MPI_Comm_c2f(MPI_COMM_SELF), config, &ctx) == LKS_OK && ten(ctx) == 45);
    NEED(lks_context_destroy(&ctx) == LKS_OK);
    lks_config_free(config);
    NEED(MPI_Finalize() == MPI_SUCCESS);
    return 0;
}

/* A context, tensors and a graph that outlive MPI. */
static int mode_late(void)
{
    lks_context *ctx = NULL;
    NEED(MPI_Init(NULL, NULL) == MPI_SUCCESS);
    NEED(lks_context_create(MPI_COMM_WORLD, NULL, &ctx) == LKS_OK);
    lks_tensor *x = lks_ones(ctx, LKS_F32, SHAPE(3)), *y;
    lks_set_requires_grad(x, 1);
    y = lks_sum(lks_mul(x, x), 0, NULL, 0, LKS_DTYPE_NONE);
    NEED(MPI_Finalize() == MPI_SUCCESS);
    NEED(lks_backward(y, LKS_NONE, 0) == LKS_OK && ten(ctx) == 45); /* work on the device goes on */
    NEED(lks_context_destroy(&ctx) == LKS_ERR_STATE && !ctx);
    NEED(lks_finalize() == LKS_OK);
    NEED(lks_context_create(MPI_COMM_WORLD, NULL, &ctx) == LKS_ERR_STATE && !ctx);
    NEED(lks_context_create_f(0, NULL, &ctx) == LKS_ERR_STATE && !ctx);
    return 0;
}

/* A launcher started four processes, and each sees a world of one. */
static int mode_launch(void)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "PMI_SIZE"};
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    NEED(MPI_Init(NULL, NULL) == MPI_SUCCESS); /* before the variables are set: this MPI would believe them */
    for (int i = 0; i < 2; i++) {
        setenv(names[i], "4", 1);
        NEED(lks_context_create(MPI_COMM_WORLD, config, &ctx) == LKS_ERR_STATE && !ctx);
        const char *text = lks_config_message(config);
        NEED(strstr(text, names[i]) && strstr(text, "4") && strstr(text, "PMI") && strstr(text, "srun"));
        setenv(names[i], "1", 1);
        NEED(lks_context_create(MPI_COMM_WORLD, config, &ctx) == LKS_OK);
        NEED(!strcmp(lks_config_message(config), ""));
        NEED(lks_context_destroy(&ctx) == LKS_OK);
        unsetenv(names[i]);
    }
    lks_config_free(config);
    MPI_Finalize();
    return 0;
}

static int mode(const char *name)
{
    if (!strcmp(name, "ours")) return mode_ours();
    if (!strcmp(name, "host")) return mode_host();
    if (!strcmp(name, "late")) return mode_late();
    if (!strcmp(name, "launch")) return mode_launch();
    return 2;
}

static int by_itself(const char *name)
{
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
        execl("/proc/self/exe", "test_context", name, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    if (p < 0 || waitpid(p, &status, 0) != p) return 0;
    if (status) diag("%s: %s %d", name, WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return status == 0;
}

/* --- options --- */

static void collect(void *user, int level, const char *line)
{
    (void)level;
    snprintf(user, 256, "%s", line);
}

static void test_options(void)
{
    lks_config *c = lks_config_new();
    lks_context *ctx = (lks_context *)(void *)c;
    lks_config_free(NULL);
    is_str(lks_config_message(c), "", "no message at first");
    ok(lks_config_set_device(c, "gpu") == LKS_ERR_ARGUMENT && strstr(lks_config_message(c), "cuda"),
       "an unknown device");
    ok(lks_config_set_device(c, NULL) == LKS_ERR_ARGUMENT, "no device");
    ok(lks_config_set_threads(c, -1) == LKS_ERR_ARGUMENT && strstr(lks_config_message(c), "threads"), "-1 threads");
    ok(lks_config_set_threads(c, 1000000) == LKS_ERR_ARGUMENT, "too many threads");
    ok(lks_config_set_deadline(c, 0) == LKS_ERR_ARGUMENT && lks_config_set_deadline(c, -1) == LKS_ERR_ARGUMENT &&
           lks_config_set_deadline(c, NAN) == LKS_ERR_ARGUMENT &&
               strstr(lks_config_message(c), "deadline"), "bad deadlines");
    lks_config_set_device(c, "cuda");
    lks_status s = lks_context_create(MPI_COMM_SELF, c, &ctx);
    if (s == LKS_OK) {
        skip(2, "this build has a CUDA backend and a device");
        lks_context_destroy(&ctx);
    } else {
        ok(s == LKS_ERR_DEVICE && !ctx, "a device that is missing is an error");
        ok(strstr(lks_config_message(c), "cuda") != NULL, "that says so: %s", lks_config_message(c));
    }
    lks_config_set_device(c, "auto");
    lks_config_set_threads(c, 3);
    lks_config_set_seed(c, 42);
    char line[256] = "";
    lks_config_set_log(c, collect, line);
    ok(lks_context_create(MPI_COMM_SELF, c, &ctx) == LKS_OK, "auto takes what there is");
    is_str(lks_config_message(c), "", "and the message is gone");
    lks_config_free(c); /* not needed any more */
    if (!strcmp(lks_device_name(ctx), "cpu")) is_int(lks_threads(ctx), 3, "threads as asked");
    else skip(1, "not the CPU");
    ok(lks_rank(ctx) == 0 && lks_size(ctx) == 1 && lks_local_rank(ctx) == 0 && lks_local_size(ctx) == 1, "alone");
    ok(strlen(lks_device_description(ctx)) > 3, "described: %s", lks_device_description(ctx));
    ok(lks_random_seed(ctx) == 42 && lks_random_attempt(ctx) == 0, "the seed");
    ok(lks_error_code(ctx) == LKS_OK && !strcmp(lks_error(ctx), ""), "no error");
    ok(lks_random_set(ctx, 1, -1) == LKS_ERR_ARGUMENT && strstr(lks_error(ctx), "-1"), "attempts are not negative");
    lks_error_clear(ctx);
    ok(lks_random_rows(ctx, -1, 2) == LKS_ERR_ARGUMENT && lks_random_seed(ctx) == 42, "nor are rows");
    lks_error_clear(ctx);
    ok(lks_synchronize(ctx) == LKS_OK && lks_memory_used(ctx) >= 0 && lks_memory_held(ctx) >= lks_memory_used(ctx),
       "counters");
    /* Random numbers: the seed, the attempt and the call make them; rows make the place. */
    float a[8], b[8];
    lks_scope_begin(ctx);
    lks_tensor *x = lks_zeros(ctx, LKS_F32, SHAPE(8)), *half = lks_narrow(x, 0, 0, 4), *rest = lks_narrow(x, 0, 4, 4);
    lks_random_set(ctx, 7, 3);
    lks_uniform_(x, 0, 1);
    lks_to_host(x, a, sizeof a);
    lks_uniform_(x, 0, 1);
    lks_to_host(x, b, sizeof b);
    ok(memcmp(a, b, sizeof a) != 0, "each call draws other numbers");
    lks_random_set(ctx, 7, 3);
    lks_uniform_(x, 0, 1);
    lks_to_host(x, b, sizeof b);
    ok(!memcmp(a, b, sizeof a), "the same state gives the same");
    lks_random_set(ctx, 7, 4);
    lks_uniform_(x, 0, 1);
    lks_to_host(x, b, sizeof b);
    ok(memcmp(a, b, sizeof a) != 0, "another attempt gives others");
    lks_random_set(ctx, 7, 3);
    lks_random_rows(ctx, 0, 4);
    lks_uniform_(half, 0, 1);
    lks_random_rows(ctx, 4, 4);
    lks_uniform_(rest, 0, 1);
    lks_to_host(x, b, sizeof b);
    ok(!memcmp(a, b, sizeof a), "two halves of the batch draw what the whole does");
    lks_scope_end(ctx);
    /* Destroyed with everything open. */
    lks_scope_begin(ctx);
    x = lks_ones(ctx, LKS_F32, SHAPE(5));
    lks_set_requires_grad(x, 1);
    lks_tensor *kept = lks_keep(lks_exp(lks_mul(x, x)));
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_no_grad_begin(ctx);
    lks_item_later(lks_sum(x, 0, NULL, 0, LKS_DTYPE_NONE));
    is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed with scopes, regions and a graph open");
    ok(!ctx && strstr(line, "still kept"), "what the program keeps is said: %s", line);
    is_int(lks_context_destroy(&ctx), LKS_OK, "again is fine");
    (void)kept; /* its memory is gone with the context, apart from the header */
    int n = lks_build_count(), good = n > 3;
    for (int i = 0; i < n; i++) good &= strlen(lks_build_name(i)) > 0 && strlen(lks_build_value(i)) > 0;
    ok(good && !strcmp(lks_build_name(-1), "") && !strcmp(lks_build_value(n), ""), "%d facts about the build", n);
}

/* --- many, and two --- */

static int64_t kilobytes(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long v = -1;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) sscanf(line + strlen(key), ": %lld", &v);
    if (f) fclose(f);
    return v;
}

static int64_t open_files(void)
{
    int64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* Communicators get the lowest free number: this is how many there are. */
static int communicators(void)
{
    MPI_Comm c;
    MPI_Comm_dup(MPI_COMM_SELF, &c);
    int f = (int)MPI_Comm_c2f(c);
    MPI_Comm_free(&c);
    return f;
}

static void test_many(void)
{
    int64_t memory = 0, files = 0, threads = 0;
    int comms = 0, bad = 0;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    const int rounds = 200, slack = 1 << 30; /* freed memory is held back there */
#else
    const int rounds = 1000, slack = 4096;
#endif
    for (int i = 0; i < rounds && !bad; i++) {
        if (i == rounds / 5) {
            memory = kilobytes("VmRSS"), files = open_files(), threads = kilobytes("Threads");
            comms = communicators();
        }
        lks_context *ctx = open_on(MPI_COMM_SELF, i % 4 == 3 ? "far" : "cpu", 1 + i % 2);
        bad = !ctx || ten(ctx) != 45 || lks_context_destroy(&ctx) != LKS_OK;
    }
    ok(!bad, "%d contexts, one after the other", rounds);
    int64_t grown = kilobytes("VmRSS") - memory;
    ok(grown < slack, "memory grew by %lld KiB", (long long)grown);
    is_int(open_files(), files, "open files");
    is_int(kilobytes("Threads"), threads, "threads");
    is_int(communicators(), comms, "communicators");
}

static void test_two(void)
{
    lks_context *a = open_on(MPI_COMM_SELF, "cpu", 1), *b = open_on(MPI_COMM_SELF, "far", 2);
    lks_context *c = open_on(MPI_COMM_SELF, "cpu", 2);
    ok(a && b && c && ten(a) == 45 && ten(b) == 45 && ten(c) == 45, "three contexts at once");
    lks_tensor *x = lks_ones(a, LKS_F32, SHAPE(2)), *y = lks_ones(b, LKS_F32, SHAPE(2));
    ok(!lks_add(x, y) && lks_error_code(a) == LKS_ERR_ARGUMENT && lks_error_code(b) == LKS_OK &&
       lks_error_code(c) == LKS_OK,
       "an error belongs to one of them");
    ok(lks_copy_(y, x) == LKS_ERR_ARGUMENT && lks_error_code(b) == LKS_ERR_ARGUMENT, "tensors of two do not mix");
    ok(lks_context_of(x) == a && lks_context_of(y) == b, "each tensor knows its own");
    lks_no_grad_begin(a);
    ok(lks_grad_enabled(b), "modes are their own, too");
    is_int(lks_context_destroy(&b), LKS_OK, "one ends");
    ok(ten(a) == 45 && ten(c) == 45, "the others go on");
    lks_context_destroy(&a);
    lks_context_destroy(&c);
}

/* --- the host's own settings --- */

static void quiet(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }

static void test_handlers(void)
{
    MPI_Errhandler mine, now[2];
    MPI_Comm_create_errhandler(quiet, &mine);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, mine);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, mine);
    lks_context *ctx = open_on(MPI_COMM_WORLD, "cpu", 1);
    ten(ctx);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now[0]);
    lks_context_destroy(&ctx);
    MPI_Comm_get_errhandler(MPI_COMM_SELF, &now[1]);
    ok(now[0] == mine && now[1] == mine, "the program's error handlers are left alone");
    for (int i = 0; i < 2; i++) MPI_Errhandler_free(&now[i]);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&mine);
}

/* Results that are infinite or NaN, forward and backward, read back as bits; the number of bad ones. */
static int extremes(lks_context *ctx, uint64_t *bits, int max)
{
    int n = 0;
    int64_t count = 70000; /* enough that several threads take part */
    lks_scope_begin(ctx);
    for (int k = 0; k < 2; k++) {
        lks_dtype dtype = k ? LKS_F64 : LKS_F32;
        lks_tensor *zero = lks_zeros(ctx, dtype, 1, &count), *x = lks_affine(zero, 1, -1), *y[12];
        lks_tensor *big = lks_affine(zero, 1, 1e30);
        lks_set_requires_grad(zero, 1);
        y[0] = lks_log(zero);
        y[1] = lks_log(x);
        y[2] = lks_sqrt(x);
        y[3] = lks_div(zero, zero);
        y[4] = lks_div(x, zero);
        y[5] = lks_exp(lks_mul(big, big));
        y[6] = lks_to(big, LKS_F16);
        y[7] = lks_to(lks_div(zero, zero), LKS_I32);
        y[8] = lks_softmax(lks_reshape(lks_log(zero), SHAPE(100, 700)), 1);
        y[9] = lks_matmul(lks_reshape(lks_log(zero), SHAPE(100, 700)), lks_reshape(zero, SHAPE(700, 100)));
        y[10] = lks_sum(lks_mul(lks_mul(big, big), big), 0, NULL, 0, LKS_DTYPE_NONE);
        y[11] = lks_layer_norm(lks_reshape(lks_log(zero), SHAPE(100, 700)), 1, LKS_NONE, LKS_NONE, 0);
        lks_backward(lks_sum(lks_add(y[0], lks_sqrt(zero)), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
        for (int i = 0; i < 13 && n < max; i++) {
            lks_tensor *t = i < 12 ? y[i] : lks_grad(zero);
            uint64_t b = 0;
            if (t) t = lks_slice(lks_flatten(lks_detach(t), 0, -1), 0, 0, 1, 1);
            if (!t || lks_to_host(t, &b, lks_dtype_size(lks_dtype_of(t))) != LKS_OK) b = 12345;
            bits[n++] = b;
        }
        lks_tensor *tiny = lks_full(ctx, LKS_F32, 0, NULL, 0x1p-140), *three = lks_full(ctx, LKS_F32, 0, NULL, 3);
        lks_tensor *third = lks_div(lks_ones(ctx, LKS_F32, 0, NULL), three);
        uint32_t w = 0;
        lks_to_host(lks_add(tiny, tiny), &w, 4);
        bits[n++] = w; /* a denormal number */
        lks_to_host(third, &w, 4);
        bits[n++] = w; /* as rounding to nearest has it */
    }
    lks_scope_end(ctx);
    return n;
}

static void test_floating_point(void)
{
#if defined __x86_64__
    uint64_t want[64], got[64];
    for (int d = 0; d < 2; d++) {
        const char *device = d ? "far" : "cpu";
        lks_context *ctx = open_on(MPI_COMM_SELF, device, 2);
        int n = extremes(ctx, want, 64);
        lks_context_destroy(&ctx);
        is_int(want[n - 2], 0x400, "%s: denormal numbers are kept", device);
        is_int(want[n - 1], 0x3eaaaaab, "%s: to nearest", device);
        /* Traps: everything that would raise one is on, also while threads are started. */
        feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
        ctx = open_on(MPI_COMM_SELF, device, 2);
        int m = extremes(ctx, got, 64), traps = fegetexcept(), flags = fetestexcept(FE_ALL_EXCEPT);
        lks_status s = lks_context_destroy(&ctx);
        fedisableexcept(FE_ALL_EXCEPT);
        ok(s == LKS_OK && n == m && !memcmp(want, got, (size_t)n * sizeof *want),
           "%s: infinities and NaNs raise no trap", device);
        ok(traps == (FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW), "%s: the traps are still set", device);
        is_int(flags & (FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW), 0, "%s: no flag of the program's was raised", device);
        /* Rounding, flushing to zero. */
        unsigned csr = __builtin_ia32_stmxcsr();
        fesetround(FE_UPWARD);
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
        unsigned set = __builtin_ia32_stmxcsr();
        ctx = open_on(MPI_COMM_SELF, device, 2);
        m = extremes(ctx, got, 64);
        unsigned after = __builtin_ia32_stmxcsr();
        int rounding = fegetround();
        lks_context_destroy(&ctx);
        fesetround(FE_TONEAREST);
        __builtin_ia32_ldmxcsr(csr);
        ok(n == m && !memcmp(want, got, (size_t)n * sizeof *want),
           "%s: the program's rounding and flushing change no result", device);
        ok((after & ~0x3fu) == (set & ~0x3fu) && rounding == FE_UPWARD, "%s: and are still set", device);
    }
#else
    skip(1, "written for x86-64");
#endif
}

/* --- signals --- */

static volatile sig_atomic_t caught;

static void on_signal(int number) { caught += number; }

static void test_signals(void)
{
    static const int numbers[4] = {SIGTERM, SIGUSR1, SIGINT, SIGFPE};
    struct sigaction before[4], now, mine = {.sa_handler = on_signal};
    int same = 1, n = 0;
    for (int i = 0; i < 4; i++) sigaction(numbers[i], i % 2 ? &mine : NULL, &before[i]);
    for (int i = 0; i < 4; i++) sigaction(numbers[i], NULL, &now), same &= i % 2 == 0 || now.sa_handler == on_signal;
    lks_context *ctx = open_on(MPI_COMM_SELF, "cpu", 2);
    same &= ctx && ten(ctx) == 45;
    sigaction(SIGTERM, &mine, NULL); /* one more while the library works */
    same &= ctx && ten(ctx) == 45;
    raise(SIGUSR1);
    raise(SIGTERM);
    n = caught;
    lks_context_destroy(&ctx);
    for (int i = 0; i < 4; i++) {
        sigaction(numbers[i], NULL, &now);
        same &= now.sa_handler == (i % 2 || numbers[i] == SIGTERM ? on_signal : before[i].sa_handler);
        sigaction(numbers[i], &before[i], NULL);
    }
    ok(same, "B131: a context leaves the program's signal handlers alone");
    is_int(n, SIGUSR1 + SIGTERM, "B131: and they get their signals");
}

/* --- several ranks --- */

static lks_status try_with(MPI_Comm comm, const char *device, int64_t seed, char *text)
{
    lks_config *c = lks_config_new();
    lks_context *ctx = NULL;
    lks_config_set_device(c, device);
    lks_config_set_threads(c, 1);
    lks_config_set_seed(c, seed);
    lks_config_set_deadline(c, 60);
    lks_status s = lks_context_create(comm, c, &ctx);
    snprintf(text, 512, "%s", lks_config_message(c));
    lks_config_free(c);
    if (s == LKS_OK && lks_context_destroy(&ctx) != LKS_OK) s = LKS_ERR_INTERNAL;
    return ctx ? LKS_ERR_INTERNAL : s;
}

static int ranks(void)
{
    int me, n, comms = 0, bad = 0;
    char text[512];
    MPI_Init(NULL, NULL);
    tap_mpi(MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    lks_context *all = open_on(MPI_COMM_WORLD, "cpu", 1);
    ok(all && lks_rank(all) == me && lks_size(all) == n && lks_local_size(all) == n && lks_local_rank(all) == me,
       "%d ranks", n);
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, me % 2, -me, &half);
    lks_context *some = open_on(half, me % 2 ? "far" : "cpu", 1);
    int want = me % 2 ? n / 2 : (n + 1) / 2;
    ok(some && lks_size(some) == want && lks_rank(some) == want - 1 - me / 2,
       "a context on part of the ranks, in another order");
    int64_t one = 1, two = 1;
    for (int i = 0; i < 20; i++) {
        one = two = 1;
        bad |= lks_reduce_i64(all, &one, 1, LKS_SUM) != LKS_OK || lks_reduce_i64(some, &two, 1, LKS_SUM) != LKS_OK;
        bad |= one != n || two != want;
    }
    ok(!bad, "both in turn");
    MPI_Comm_free(&half); /* the context has its own */
    two = 1;
    ok(lks_reduce_i64(some, &two, 1, LKS_SUM) == LKS_OK && two == want, "the program's communicator may go first");
    is_int(lks_context_destroy(&some), LKS_OK, "destroyed");
    one = 1;
    ok(lks_reduce_i64(all, &one, 1, LKS_SUM) == LKS_OK && one == n, "the other goes on");
    is_int(lks_context_destroy(&all), LKS_OK, "destroyed");
    if (n > 1) {
        lks_status s = try_with(MPI_COMM_WORLD, "cpu", me == n - 1, text);
        ok(s == LKS_ERR_ARGUMENT && strstr(text, "seed"), "different seeds are seen on every rank: %s", text);
        s = try_with(MPI_COMM_WORLD, me ? "far" : "cpu", 0, text);
        ok(s == LKS_ERR_ARGUMENT && strstr(text, "device"), "so are different devices: %s", text);
        s = try_with(MPI_COMM_WORLD, me ? "cpu" : "cuda", 0, text);
        ok(s != LKS_OK && (me == 0 || s == LKS_ERR_PEER_FAILED || s == LKS_ERR_ARGUMENT),
           "and a rank without its device: %s", text);
    } else {
        skip(3, "one rank");
    }
    bad = 0;
    for (int i = 0; i < 60; i++) {
        if (i == 10) comms = communicators();
        bad |= try_with(MPI_COMM_WORLD, i % 2 ? "far" : "cpu", 0, text) != LKS_OK;
    }
    ok(!bad, "60 contexts, one after the other");
    is_int(communicators(), comms, "communicators");
    int status = done();
    MPI_Finalize();
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "ranks")) return ranks();
    if (argc > 1) return mode(argv[1]);
    if (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK")) {
        skip(4, "started by a launcher: a process cannot start others with their own MPI");
    } else {
        ok(by_itself("ours"), "MPI begun and ended by Lockstep");
        ok(by_itself("host"), "MPI begun and ended by the program");
        ok(by_itself("late"), "a context that outlives MPI");
        ok(by_itself("launch"), "processes that do not see each other");
    }
    MPI_Init(NULL, NULL);
    test_options();
    test_many();
    test_two();
    test_handlers();
    test_floating_point();
    test_signals();
    int status = done();
    lks_finalize();
    MPI_Finalize();
    return status;
}
