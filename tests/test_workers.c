/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_workers.c - the threads of the CPU backend: every item once, nesting, reductions that do not depend on the
 * thread count, idle threads that sleep, fork, the environment they run in, scratch memory. No time is asserted but
 * CPU time of a sleeping process.
 */
#define _GNU_SOURCE
#include "cpu/infra.h"
#include "tap.h"
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static lksi_base base;

static lksi_cpu *open_cpu(int threads)
{
    lksi_device_options o = {.threads = threads, .local_size = 1};
    lksi_cpu *cpu;
    if (lksi_cpu_open(&base, &o, &cpu) != LKS_OK) bail("%s", base.text);
    return cpu;
}

#define MANY 100003
struct cover { int hits[MANY]; int64_t n; int threads, bad; };

static void count_items(void *arg, int64_t begin, int64_t end, int worker)
{
    struct cover *c = arg;
    if (begin < 0 || begin >= end || end > c->n || worker < 0 || worker >= c->threads)
        __atomic_store_n(&c->bad, 1, __ATOMIC_RELAXED);
    else
        for (int64_t i = begin; i < end; i++) __atomic_add_fetch(&c->hits[i], 1, __ATOMIC_RELAXED);
}

static void coverage(lksi_cpu *cpu, int threads)
{
    static struct cover c;
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 8, 9, 31, 64, 65, 255, 256, 257, 1000, 1025, 4096, 9999, MANY},
                         grains[] = {0, 1, 2, 3, 16, 64, 100, 1000, 5000, MANY, INT64_MAX};
    int right = 1, lone = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
            memset(&c, 0, sizeof c);
            c.n = sizes[s], c.threads = grains[g] >= c.n ? 1 : threads; /* n <= grain: worker 0 alone */
            lksi_parallel(cpu, c.n, grains[g], count_items, &c);
            if (c.bad) lone = 0;
            for (int64_t i = 0; i < c.n; i++)
                if (c.hits[i] != 1) right = 0;
            if (!right) diag("n %lld, grain %lld", (long long)c.n, (long long)grains[g]);
        }
    ok(right, "%d threads: every item of every size once", threads);
    ok(lone, "%d threads: ranges and worker numbers are valid", threads);
}

static void big_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    __atomic_add_fetch((int64_t *)arg, end - begin, __ATOMIC_RELAXED);
}

/* A sum in fixed blocks, as kernels do it. */
#define BLOCK 1000
struct sum { const float *x; float *part; int64_t n; };

static void sum_blocks(void *arg, int64_t begin, int64_t end, int worker)
{
    struct sum *s = arg;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        float t = 0;
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK && i < s->n; i++) t += s->x[i];
        s->part[b] = t;
    }
}

static float reduce(lksi_cpu *cpu, const float *x, int64_t n)
{
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    struct sum s = {x, lksi_scratch(cpu, -1, 0, blocks * (int64_t)sizeof(float)), n};
    lksi_parallel(cpu, blocks, 1, sum_blocks, &s);
    float t = 0;
    for (int64_t b = 0; b < blocks; b++) t += s.part[b];
    return t;
}

struct nest { lksi_cpu *cpu; int64_t total; int wrong; };
struct inner { struct nest *n; int worker; pthread_t thread; };

static void inner_fn(void *arg, int64_t begin, int64_t end, int worker)
{
    struct inner *i = arg;
    if (worker != i->worker || !pthread_equal(pthread_self(), i->thread) || begin != 0 || end != 100)
        __atomic_store_n(&i->n->wrong, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&i->n->total, end - begin, __ATOMIC_RELAXED);
}

static void outer_fn(void *arg, int64_t begin, int64_t end, int worker)
{
    struct nest *n = arg;
    for (int64_t i = begin; i < end; i++) {
        struct inner in = {n, worker, pthread_self()};
        lksi_parallel(n->cpu, 100, 1, inner_fn, &in);
    }
}

struct where { int bad, others; };

static void look_around(void *arg, int64_t begin, int64_t end, int worker)
{
    struct where *w = arg;
    (void)begin, (void)end;
    usleep(1000); /* so that every worker gets a piece */
    if (worker == 0) return;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    int good = fegetround() == FE_TONEAREST && sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1) &&
               !strcmp(name, "lks-worker");
#ifdef __x86_64__
    good = good && (__builtin_ia32_stmxcsr() & 0xFFC0) == 0x1F80;
#endif
    if (!good) __atomic_store_n(&w->bad, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&w->others, 1, __ATOMIC_RELAXED);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec);
}

static void scratch(void)
{
    lksi_cpu *cpu = open_cpu(2);
    char *all[3][LKSI_SCRATCH_SLOTS];
    int aligned = 1, apart = 1, kept = 1;
    for (int w = -1; w < 2; w++)
        for (int s = 0; s < LKSI_SCRATCH_SLOTS; s++) {
            char *p = all[w + 1][s] = lksi_scratch(cpu, w, s, 10000);
            aligned &= p && (uintptr_t)p % 64 == 0;
            memset(p, w * 16 + s, 10000);
        }
    for (int w = -1; w < 2; w++)
        for (int s = 0; s < LKSI_SCRATCH_SLOTS; s++) {
            char *p = all[w + 1][s];
            for (int i = 0; i < 10000; i++) apart &= p[i] == (char)(w * 16 + s);
            kept &= lksi_scratch(cpu, w, s, 5) == p && lksi_scratch(cpu, w, s, 10000) == p;
        }
    ok(aligned, "scratch is aligned");
    ok(apart, "each (worker, slot) has its own");
    ok(kept, "and keeps it");
    char *big = lksi_scratch(cpu, 1, 2, 5 << 20);
    ok(big && (uintptr_t)big % 4096 == 0, "it grows");
    memset(big, 1, 5 << 20);
    base.fail_at = 1;
    ok(lksi_scratch(cpu, 1, 2, 50 << 20) == NULL, "growing can be told to fail");
    ok(lksi_scratch(cpu, 1, 2, 5 << 20) == big, "and leaves what was there");
    is_int(base.code, LKS_OK, "without an error: the kernel says which");
    ok(lksi_scratch(cpu, 0, 0, INT64_MAX) == NULL, "an impossible size");
    base.fail_at = 0;
    lksi_cpu_close(cpu);
}

static int destroyed;
static void destroy(void *state)
{
    destroyed += *(int *)state;
}

static void settings(void)
{
    static const struct { const char *omp; int asked, local, want; } t[] = {
        {"3", 0, 1, 3}, {"3", 2, 1, 2}, {"2,4", 0, 1, 2}, {" 5", 0, 8, 5}, {"x", 0, 1 << 20, 1},
        {"0", 0, 1 << 20, 1}, {"-4", 0, 1 << 20, 1}, {"4x", 0, 1 << 20, 1}, {NULL, 0, 1 << 20, 1},
        {NULL, 7, 1 << 20, 7},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        if (t[i].omp) setenv("OMP_NUM_THREADS", t[i].omp, 1);
        else unsetenv("OMP_NUM_THREADS");
        lksi_device_options o = {.threads = t[i].asked, .local_size = t[i].local};
        lksi_cpu *cpu = NULL;
        is_int(lksi_cpu_open(&base, &o, &cpu) == LKS_OK ? lksi_cpu_workers(cpu) : -1, t[i].want,
               "OMP_NUM_THREADS=%s, %d asked, %d ranks on the node", t[i].omp ? t[i].omp : "(unset)", t[i].asked,
               t[i].local);
        lksi_cpu_close(cpu);
    }
    unsetenv("OMP_NUM_THREADS");
    lksi_cpu *cpu = NULL;
    const char *kept = getenv("LKS_ISA");
    char *isa = kept ? strdup(kept) : NULL;
    setenv("LKS_ISA", "sse9", 1);
    ok(lksi_cpu_open(&base, NULL, &cpu) == LKS_ERR_DEVICE && !cpu, "an unknown LKS_ISA is an error, not a fallback");
    ok(strstr(base.text, "LKS_ISA=sse9") && strstr(base.text, "base"), "that names it and what there is");
    base.code = LKS_OK;
    setenv("LKS_ISA", "base", 1);
    ok(lksi_cpu_open(&base, NULL, &cpu) == LKS_OK && !strcmp(lksi_cpu_isa(cpu), "base"), "LKS_ISA=base");
    ok(strstr(lksi_backend_cpu.describe(cpu), "base kernels") != NULL, "the description says so: %s",
       lksi_backend_cpu.describe(cpu));
    lksi_cpu_close(cpu);
    static const char *const names[] = {"avx2", "avx512"};
    for (int i = 0; i < 2; i++) {
        setenv("LKS_ISA", names[i], 1);
        lks_status code = lksi_cpu_open(&base, NULL, &cpu);
        ok(code == LKS_OK ? !strcmp(lksi_cpu_isa(cpu), names[i])
                          : code == LKS_ERR_DEVICE && !cpu && strstr(base.text, names[i]) != NULL,
           "LKS_ISA=%s gives that or an error%s%s", names[i], code ? ": " : "", code ? base.text : "");
        if (code == LKS_OK) lksi_cpu_close(cpu);
        base.code = LKS_OK;
    }
    if (isa) setenv("LKS_ISA", isa, 1);
    else unsetenv("LKS_ISA");
    free(isa);

    cpu = open_cpu(1);
    int one = 1;
    void **state = lksi_cpu_state(cpu, LKSI_STATE_SPARE, destroy);
    ok(*state == NULL, "a state is NULL at first");
    *state = &one;
    ok(*lksi_cpu_state(cpu, LKSI_STATE_SPARE, destroy) == &one, "and stays what it is made");
    lksi_cpu_close(cpu);
    is_int(destroyed, 1, "and is destroyed once, at close");
}

int main(void)
{
    int64_t live = base.live_blocks;
    static float x[123456];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed / 65536.0f * ((i & 7) ? 1.0f : 1e-3f);
    }
    float first = 0;
    for (int threads = 1; threads <= 5; threads++) {
        /* The host's odd environment must not reach the workers. */
        fesetround(FE_UPWARD);
#ifdef __x86_64__
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
        lksi_cpu *cpu = open_cpu(threads);
        fesetenv(FE_DFL_ENV);
        is_int(lksi_cpu_workers(cpu), threads, "%d threads as asked", threads);
        coverage(cpu, threads);
        int64_t big = 0;
        lksi_parallel(cpu, INT64_C(1) << 60, 1000, big_range, &big);
        ok(big == INT64_C(1) << 60, "%d threads: 2^60 items", threads);
        float total = reduce(cpu, x, sizeof x / sizeof *x);
        if (threads == 1) first = total;
        int same = 1;
        for (int i = 0; i < 200; i++) {
            total = reduce(cpu, x, sizeof x / sizeof *x);
            same &= memcmp(&total, &first, sizeof total) == 0;
        }
        ok(same, "%d threads: a sum has the bits it has with one", threads);
        struct nest n = {.cpu = cpu};
        for (int i = 0; i < 20; i++) lksi_parallel(cpu, 100, 1, outer_fn, &n);
        is_int(n.total, 20 * 100 * 100, "%d threads: nested calls do all", threads);
        if (threads > 1) ok(!n.wrong, "%d threads: nested calls stay on their worker", threads);
        struct where w = {0};
        for (int i = 0; i < 100 && w.others == 0; i++) lksi_parallel(cpu, 20 * threads, 1, look_around, &w);
        if (threads > 1) ok(w.others > 0, "%d threads: workers take part", threads);
        ok(!w.bad, "%d threads: default floating point, no signals, a name", threads);

        /* Jobs of every length with pauses of every length: workers are caught spinning, falling asleep, asleep. */
        int64_t items = 0, want = 0;
        for (int i = 0; i < 3000; i++) {
            lksi_parallel(cpu, 1 + i % 37, 1, big_range, &items);
            want += 1 + i % 37;
            if (i % 100 == 0) usleep((unsigned)(i % 7) * 30);
            for (volatile int k = 0; k < i % 1000; k++) {}
        }
        is_int(items, want, "%d threads: 3000 short jobs", threads);

        usleep(20000);
        double before = cpu_seconds();
        usleep(300000);
        double spent = cpu_seconds() - before;
        ok(spent < 0.05, "%d threads: idle for 0.3 s costs next to no CPU time", threads);
        if (spent >= 0.05) diag("%g s", spent);

        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            int64_t all = 0;
            for (int i = 0; i < 10; i++) lksi_parallel(cpu, 1000, 1, big_range, &all);
            lksi_cpu_close(cpu);
            _exit(all == 10000 ? 0 : 1);
        }
        int status;
        waitpid(child, &status, 0);
        ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d threads: a forked child works alone and closes", threads);
        items = 0;
        lksi_parallel(cpu, 1000, 1, big_range, &items);
        is_int(items, 1000, "%d threads: and the parent goes on", threads);
        lksi_cpu_close(cpu);
    }

    /* Far more threads than cores. */
    lksi_cpu *cpu = open_cpu(64);
    int64_t items = 0;
    for (int i = 0; i < 200; i++) lksi_parallel(cpu, 100000, 10, big_range, &items);
    is_int(items, 200 * 100000, "64 threads do all of 200 jobs");
    lksi_cpu_close(cpu);

    for (int i = 0; i < 100; i++) lksi_cpu_close(open_cpu(3));
    scratch();
    settings();

    /* Opening fails cleanly at every allocation. */
    lksi_device_options o = {.threads = 3, .local_size = 1};
    int failures = 0;
    for (cpu = NULL;; failures++) {
        base.fail_at = failures + 1;
        if (lksi_cpu_open(&base, &o, &cpu) == LKS_OK) break;
        if (base.code != LKS_ERR_MEMORY || cpu || base.live_blocks != live)
            bail("failure %d is not clean", failures + 1);
        base.code = LKS_OK;
    }
    base.fail_at = 0;
    lksi_cpu_close(cpu);
    ok(failures >= 3, "open fails cleanly at each of its allocations");
    is_int(base.live_blocks, live, "nothing is left");
    return done();
}
