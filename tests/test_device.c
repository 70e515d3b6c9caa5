/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_device.c - the device layer over the CPU and over "far": pool, counters, copies, events, launches and their
 * failures, and that memory of "far" cannot be touched by the host. Kernels are the test's own.
 */
#define _GNU_SOURCE
#include "cpu/infra.h"
#include "tap.h"
#include <signal.h>
#include <sys/wait.h>

static lksi_base base;
static const lksi_backend *backend;

/* Kernels: add (float32, contiguous), exp (slow copy), log (fails), fill (value and seed). */

static lks_status test_add(lksi_cpu *cpu, const lksi_args *a)
{
    const float *x = a->in[0].data, *y = a->in[1].data;
    float *z = a->out[0].data;
    (void)cpu;
    for (int64_t i = 0; i < a->out[0].shape[0]; i++) z[i] = x[i] + y[i];
    return LKS_OK;
}

static int gate = 1; /* 0: test_slow does not go on */

static lks_status test_slow(lksi_cpu *cpu, const lksi_args *a)
{
    (void)cpu;
    do usleep(20000);
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE));
    memcpy(a->out[0].data, a->in[0].data, (size_t)a->out[0].shape[0] * 4);
    return LKS_OK;
}

static lks_status test_fails(lksi_cpu *cpu, const lksi_args *a)
{
    (void)cpu;
    return lksi_why(a, LKS_ERR_ARGUMENT, "index %d is out of range", 17);
}

static void fill_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const lksi_args *a = arg;
    float *z = a->out[0].data;
    (void)worker;
    for (int64_t i = begin; i < end; i++) z[i] = (float)a->attr.fill.value + (a->rng ? (float)a->rng->seed : 0);
}

static lks_status test_fill(lksi_cpu *cpu, const lksi_args *a)
{
    lksi_parallel(cpu, a->out[0].shape[0], 16, fill_range, (void *)a);
    return LKS_OK;
}

/* On the CPU the gate stays open: the caller is the one who would wait. */
static void set_gate(int open)
{
    if (backend == &lksi_backend_far) __atomic_store_n(&gate, open, __ATOMIC_RELEASE);
}

static const lksi_cpu_kernel kernels[LKSI_OP_COUNT] = {
    [LKSI_OP_add] = test_add,
    [LKSI_OP_exp] = test_slow,
    [LKSI_OP_log] = test_fails,
    [LKSI_OP_fill] = test_fill,
};

static lksi_device *open_device(int threads)
{
    lksi_device_options o = {.threads = threads, .local_size = 1};
    lksi_device *d;
    if (lksi_device_open(&base, backend, &o, &d) != LKS_OK) bail("%s", base.text);
    lksi_cpu *cpu = backend == &lksi_backend_far ? lksi_far_cpu(d->self) : d->self;
    cpu->table = kernels;
    return d;
}

static lksi_view vector(void *p, int64_t n)
{
    return (lksi_view){.data = p, .dtype = LKS_F32, .ndim = 1, .shape = {n}, .stride = {1}};
}

static lks_status launch(lksi_device *d, int stream, int op, void *x, void *y, void *z, int64_t n, double value,
                         const lksi_rng *rng, char *why)
{
    /* All on this stack: the device has to copy what it queues. */
    lksi_view in[2] = {vector(x, n), vector(y, n)}, out[1] = {vector(z, n)};
    lksi_args a = {.op = op, .nin = y ? 2 : x ? 1 : 0, .nout = 1, .in = in, .out = out, .rng = rng, .why = why};
    a.attr.fill.value = value;
    if (stream == LKSI_STREAM_COMPUTE) return lksi_device_launch(d, &a);
    return d->be->launch(d->self, stream, &a);
}

static void *get(lksi_device *d, int64_t bytes)
{
    void *p;
    if (lksi_device_alloc(d, bytes, &p) != LKS_OK) bail("%s", base.text);
    return p;
}

static void pool(void)
{
    const char *name = backend->name;
    lksi_device *d = open_device(1);
    int aligned = 1, counted = 1;
    enum { N = 600 };
    static char *p[N];
    static int64_t size[N];
    int64_t sum = 0;
    for (int i = 0; i < N; i++) {
        size[i] = i < 200 ? i : i < 500 ? (int64_t)i * i : (int64_t)(i - 490) * 100000;
        p[i] = get(d, size[i]);
        sum += size[i];
        aligned &= (uintptr_t)p[i] % 64 == 0;
        counted &= d->used == sum && d->peak == sum && d->held >= sum;
    }
    ok(aligned, "%s: 64-byte aligned, 0 bytes too", name);
    ok(counted, "%s: used and peak are what was asked for, held is no less", name);
    int apart = 1;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++) apart &= p[i] + size[i] <= p[j] || p[j] + size[j] <= p[i];
    ok(apart, "%s: no two overlap", name);
    ok(p[0] != p[1], "%s: blocks of 0 bytes differ", name);
    for (int i = 0; i < N; i += 2) lksi_device_free(d, p[i]), sum -= size[i];
    ok(d->used == sum && d->peak > sum, "%s: freed memory is not in use, the peak stays", name);
    int64_t held = d->held;
    int reused = 1;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < N; i += 2) p[i] = get(d, size[i]);
        for (int i = N - 2; i >= 0; i -= 2) lksi_device_free(d, p[i]);
    }
    reused = d->held == held;
    ok(reused, "%s: the same sizes again take nothing from the backend", name);
    void *big = get(d, 40 << 20);
    lksi_device_free(d, big);
    void *again = get(d, 40 << 20), *other;
    ok(again == big, "%s: a big block is handed out again", name);
    lksi_device_free(d, again);
    other = get(d, 33 << 20);
    ok(other != big, "%s: not for much less", name);
    lksi_device_free(d, other);
    again = get(d, 38 << 20);
    ok(again == big, "%s: also for a little less", name);
    other = get(d, 20 << 20);
    ok(other != big, "%s: but not twice", name);
    lksi_device_free(d, again);
    void *half = get(d, 19 << 20);
    ok(half != big, "%s: nor for half of it", name);
    held = d->held;
    lksi_device_trim(d);
    ok(d->held <= held - (40 << 20), "%s: trim gives idle blocks back", name);
    /* What is in use survives a trim. */
    char text[100] = "still here", back[100] = "";
    lksi_device_write(d, p[101], text, 100);
    lksi_device_trim(d);
    for (int i = 0; i < N; i += 2) p[i] = get(d, size[i]);
    lksi_device_read(d, back, p[101], 100);
    is_str(back, text, "%s: blocks in use survive a trim", name);
    void *first = get(d, 5000), *second = get(d, 5000);
    lksi_device_free(d, first);
    lksi_device_trim(d);
    ok(get(d, 5000) == first, "%s: an idle block whose neighbour is in use is not lost by a trim", name);
    lksi_device_free(d, first), lksi_device_free(d, second);
    for (int i = 0; i < N; i++) lksi_device_free(d, p[i]);
    lksi_device_free(d, other), lksi_device_free(d, half), lksi_device_free(d, NULL);
    is_int(d->used, 0, "%s: all freed", name);
    lksi_device_trim(d);
    is_int(d->held, 0, "%s: all given back", name);
    is_int(base.code, LKS_OK, "%s: no error so far", name);

    void *once = get(d, 100);
    lksi_device_free(d, once), lksi_device_free(d, once);
    is_int(base.code, LKS_ERR_INTERNAL, "%s: freeing twice is an error", name);
    base.code = LKS_OK;

    /* A random walk against a list. */
    static struct { char *p; int64_t n; unsigned char mark; } live[300];
    memset(live, 0, sizeof live);
    uint64_t seed = 12345;
    int good = 1;
    unsigned char *host = malloc(3 << 20);
    for (int step = 0; step < 3000; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(seed >> 33) % 300;
        if (live[i].p) {
            lksi_device_read(d, host, live[i].p, live[i].n);
            good &= host[0] == live[i].mark && host[live[i].n - 1] == live[i].mark;
            lksi_device_free(d, live[i].p);
            live[i].p = NULL;
        } else {
            int bits = (int)(seed >> 50) % 22;
            live[i].n = 1 + (int64_t)((seed >> 20) & ((1u << bits) - 1));
            live[i].mark = (unsigned char)step;
            live[i].p = get(d, live[i].n);
            d->be->fill(d->self, LKSI_STREAM_COMPUTE, live[i].p, live[i].mark, live[i].n);
        }
        if (step % 500 == 499) lksi_device_trim(d);
    }
    ok(good && base.code == LKS_OK, "%s: 3000 random requests keep to themselves", name);
    free(host);
    lksi_device_close(d); /* with blocks still handed out */

    d = open_device(1);
    int64_t blocks = base.live_blocks;
    void *x = get(d, 1000);
    base.fail_at = 1;
    void *fail = x;
    is_int(lksi_device_alloc(d, 1234567, &fail), LKS_ERR_MEMORY, "%s: an allocation told to fail", name);
    ok(!fail && strstr(base.text, "1234567") && strstr(base.text, "1000 in use") && strstr(base.text, "peak"),
       "%s: its text: %s", name, base.text);
    base.code = LKS_OK, base.fail_at = 2;
    void *one = get(d, 1);
    is_int(base.fail_at, 1, "%s: a request counts once, hit or miss", name);
    base.fail_at = 0;
    is_int(lksi_device_alloc(d, INT64_C(1) << 50, &fail), LKS_ERR_MEMORY, "%s: more than there is", name);
    base.code = LKS_OK;
    is_int(lksi_device_alloc(d, -1, &fail), LKS_ERR_MEMORY, "%s: a negative size", name);
    base.code = LKS_OK;
    lksi_device_free(d, x), lksi_device_free(d, one);
    is_int(base.live_blocks, blocks, "%s: the pool's own bookkeeping is not the caller's", name);
    lksi_device_close(d);
}

/* The region of "far" is finite: idle blocks of other sizes make room. */
static void pressure(void)
{
    lksi_device *d = open_device(1);
    void *p[3];
    for (int i = 0; i < 3; i++) p[i] = get(d, INT64_C(2) << 30);
    for (int i = 0; i < 3; i++) lksi_device_free(d, p[i]);
    void *all = NULL;
    is_int(lksi_device_alloc(d, INT64_C(7) << 30, &all), LKS_OK,
           "far: idle blocks are given back when memory is short");
    void *more;
    is_int(lksi_device_alloc(d, INT64_C(3) << 30, &more), LKS_ERR_MEMORY, "far: and then it is really full");
    base.code = LKS_OK;
    void *small;
    is_int(lksi_device_alloc(d, 100, &small), LKS_OK, "far: a small block still fits");
    lksi_device_free(d, all), lksi_device_free(d, small);
    lksi_device_close(d);
}

static void copies(void)
{
    const char *name = backend->name;
    lksi_device *d = open_device(2);
    enum { N = 3 << 20 };
    unsigned char *a = malloc(N), *b = malloc(N);
    for (int i = 0; i < N; i++) a[i] = (unsigned char)(i * 7 + i / 251);
    void *x = get(d, N), *y = get(d, N);
    int64_t waits = d->waits;
    is_int(lksi_device_write(d, x, a, N), LKS_OK, "%s: write", name);
    is_int(d->waits, waits + 1, "%s: a large write waits", name);
    ok((d->be->host_view(d->self, x) != NULL) == (backend == &lksi_backend_cpu), "%s: host_view", name);
    lksi_device_copy(d, y, x, N);
    is_int(d->waits, waits + 1, "%s: a copy on the device does not", name);
    lksi_device_read(d, b, y, N);
    ok(!memcmp(a, b, N), "%s: write, copy, read", name);
    is_int(d->waits, waits + 2, "%s: a read waits", name);
    lksi_device_zero(d, (char *)y + 100, 1000000);
    lksi_device_read(d, b, y, N);
    int right = !memcmp(b, a, 100) && !memcmp(b + 1000100, a + 1000100, N - 1000100);
    for (int i = 0; i < 1000000; i++) right &= b[100 + i] == 0;
    ok(right, "%s: zero, and only what was asked", name);
    waits = d->waits;
    char small[4096];
    for (int i = 0; i < 100; i++) {
        memset(small, i, sizeof small);
        lksi_device_write(d, (char *)x + i * 4096, small, 4096);
    }
    memset(small, 255, sizeof small);
    is_int(d->waits, waits, "%s: small writes do not wait", name);
    lksi_device_read(d, b, x, 100 * 4096);
    right = 1;
    for (int i = 0; i < 100 * 4096; i++) right &= b[i] == i / 4096;
    ok(right, "%s: and their source may change at once", name);
    waits = d->waits;
    ok(lksi_device_write(d, x, NULL, 0) == LKS_OK && lksi_device_read(d, NULL, x, 0) == LKS_OK &&
           lksi_device_copy(d, y, x, 0) == LKS_OK && lksi_device_zero(d, y, 0) == LKS_OK && d->waits == waits,
       "%s: nothing to copy is fine", name);
    void *pinned = NULL;
    ok(d->be->host_alloc(d->self, 5 << 20, &pinned) == LKS_OK && (uintptr_t)pinned % 64 == 0, "%s: host memory", name);
    memset(pinned, 1, 5 << 20);
    d->be->host_free(d->self, pinned, 5 << 20);
    is_int(lksi_device_synchronize(d), LKS_OK, "%s: synchronize", name);
    free(a), free(b);
    lksi_device_close(d);
}

static void launches(void)
{
    const char *name = backend->name;
    lksi_device *d = open_device(3);
    enum { N = 5000 };
    static float h[N];
    float *x = get(d, sizeof h), *y = get(d, sizeof h);
    lksi_rng *rng = get(d, sizeof *rng);
    lksi_rng seed = {40, 0};
    lksi_device_write(d, rng, &seed, sizeof seed);
    int64_t waits = d->waits, launched = d->launches;
    int fine = 1;
    fine &= launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, x, N, 2, rng, NULL) == LKS_OK;
    fine &= launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, y, N, 1, NULL, NULL) == LKS_OK;
    for (int i = 0; i < 100; i++)
        fine &= launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_add, x, y, x, N, 0, NULL, NULL) == LKS_OK;
    ok(fine && base.code == LKS_OK, "%s: 102 launches", name);
    is_int(d->launches - launched, 102, "%s: counted", name);
    is_int(d->waits, waits, "%s: without a wait", name);
    lksi_device_read(d, h, x, sizeof h);
    int right = 1;
    for (int i = 0; i < N; i++) right &= h[i] == 142;
    ok(right, "%s: in order, with the attributes and the random state of each", name);

    ok(d->be->has(d->self, LKSI_OP_add) && !d->be->has(d->self, LKSI_OP_matmul) && !d->be->has(d->self, -1) &&
           !d->be->has(d->self, LKSI_OP_COUNT),
       "%s: has", name);
    is_int(launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_matmul, x, y, x, N, 0, NULL, NULL), LKS_ERR_UNSUPPORTED,
           "%s: a missing kernel", name);
    ok(strstr(base.text, "matmul: ") != NULL, "%s: is named: %s", name, base.text);
    base.code = LKS_OK;

    /* A failing kernel: at once on the CPU, with the next call on far. */
    char why[LKSI_WHY];
    lks_status code = launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_log, x, NULL, y, N, 0, NULL, why);
    if (code == LKS_OK) code = lksi_device_synchronize(d);
    is_int(code, LKS_ERR_ARGUMENT, "%s: a failing kernel", name);
    ok(base.code == LKS_ERR_ARGUMENT && strstr(base.text, "log: index 17 is out of range"),
       "%s: with its text: %s", name, base.text);
    base.code = LKS_OK;
    is_int(lksi_device_synchronize(d), LKS_OK, "%s: is reported once", name);
    code = launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_log, x, NULL, y, N, 0, NULL, NULL);
    for (int i = 0; code == LKS_OK && i < 5000; i++) {
        usleep(1000);
        code = launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, y, N, 1, NULL, NULL);
    }
    ok(code == LKS_ERR_ARGUMENT && strstr(base.text, "log: index 17"), "%s: a later launch tells: %s", name, base.text);
    base.code = LKS_OK;
    is_int(launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, y, N, 1, NULL, NULL), LKS_OK,
           "%s: and goes on", name);
    is_int(lksi_device_synchronize(d), LKS_OK, "%s: with no error left", name);
    lksi_device_close(d);
}

static void streams(void)
{
    const char *name = backend->name;
    lksi_device *d = open_device(2);
    const lksi_backend *be = d->be;
    enum { N = 1000 };
    static float h[N], g[N];
    float *x = get(d, sizeof h), *y = get(d, sizeof h), *z = get(d, sizeof h);
    lksi_event *e, *f;
    if (be->event_create(d->self, &e) || be->event_create(d->self, &f)) bail("events");
    ok(be->event_done(d->self, e) == 1 && be->event_wait(d->self, e) == LKS_OK &&
           be->stream_wait(d->self, LKSI_STREAM_COMM, e) == LKS_OK,
       "%s: an event that was never recorded is done", name);
    int right = 1, early = 0;
    for (int round = 0; round < 3; round++) {
        set_gate(0);
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, x, N, round + 1, NULL, NULL);
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_exp, x, NULL, y, N, 0, NULL, NULL); /* slow: y = x */
        be->event_record(d->self, e, LKSI_STREAM_COMPUTE);
        early += be->event_done(d->self, e) == 0;
        if (round > 0) set_gate(1); /* in round 0 only after all is queued */
        be->stream_wait(d->self, LKSI_STREAM_COMM, e);
        launch(d, LKSI_STREAM_COMM, LKSI_OP_add, y, y, z, N, 0, NULL, NULL);
        be->event_record(d->self, f, LKSI_STREAM_COMM);
        be->stream_wait(d->self, LKSI_STREAM_COPY, f);
        be->download(d->self, LKSI_STREAM_COPY, h, z, sizeof h);
        be->event_record(d->self, e, LKSI_STREAM_COPY); /* recorded anew while others wait for the old place */
        set_gate(1);
        int64_t waits = d->waits;
        right &= lksi_device_event_wait(d, e) == LKS_OK && d->waits == waits + 1;
        right &= be->event_done(d->self, e) == 1 && be->event_done(d->self, f) == 1;
        for (int i = 0; i < N; i++) right &= h[i] == 2 * (float)(round + 1);
    }
    ok(right, "%s: three streams ordered by events", name);
    if (backend == &lksi_backend_far) {
        is_int(early, 3, "far: calls return before the work is done");
        /* A stream that does not wait is not held up. */
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, x, N, 5, NULL, NULL);
        set_gate(0);
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_exp, x, NULL, y, N, 0, NULL, NULL);
        be->event_record(d->self, e, LKSI_STREAM_COMPUTE);
        be->download(d->self, LKSI_STREAM_COPY, g, z, sizeof g);
        be->event_record(d->self, f, LKSI_STREAM_COPY);
        lksi_device_event_wait(d, f);
        is_int(be->event_done(d->self, e), 0, "far: another stream runs ahead");
        set_gate(1);
        lksi_device_synchronize(d);
        void *big = get(d, 10 << 20);
        set_gate(0);
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_exp, x, NULL, big, N, 0, NULL, NULL);
        be->event_record(d->self, e, LKSI_STREAM_COMPUTE);
        lksi_device_free(d, big);
        early = be->event_done(d->self, e);
        set_gate(1);
        lksi_device_trim(d);
        ok(early == 0 && be->event_done(d->self, e) == 1, "far: memory goes back when nothing works on it any more");
        launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_exp, x, NULL, y, N, 0, NULL, NULL);
        be->event_record(d->self, e, LKSI_STREAM_COMPUTE);
        be->event_destroy(d->self, e); /* while its mark is still queued */
        lksi_device_synchronize(d);
        be->event_destroy(d->self, f);
    } else {
        be->event_destroy(d->self, e), be->event_destroy(d->self, f);
    }
    is_int(base.code, LKS_OK, "%s: no error", name);
    lksi_device_close(d);
}

static int signal_of(void (*fn)(lksi_device *, float *), lksi_device *d, float *p)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        /* AddressSanitizer has handlers of its own. */
        signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL);
        fn(d, p);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void touch(lksi_device *d, float *p)
{
    (void)d;
    *(volatile float *)p = 1;
}

static void look(lksi_device *d, float *p)
{
    (void)d;
    (void)*(volatile float *)p;
}

static void nothing(lksi_device *d, float *p)
{
    (void)d, (void)p;
}

static void walls(void)
{
    lksi_device *d = open_device(1);
    float *p = get(d, 4096), host[4] = {1, 2, 3, 4};
    is_int(signal_of(nothing, d, p), 0, "far: a child that touches nothing lives");
    is_int(signal_of(touch, d, p), SIGSEGV, "far: writing through a device address faults");
    is_int(signal_of(look, d, p), SIGSEGV, "far: so does reading");
    is_int(lksi_device_read(d, p, p, 16), LKS_ERR_INTERNAL, "far: a read into device memory is refused");
    base.code = LKS_OK;
    is_int(lksi_device_write(d, host, host, 16), LKS_ERR_INTERNAL, "far: a write to host memory is refused");
    base.code = LKS_OK;
    is_int(lksi_device_copy(d, p, host, 16), LKS_ERR_INTERNAL, "far: a device copy from host memory is refused");
    base.code = LKS_OK;
    is_int(lksi_device_zero(d, host, 16), LKS_ERR_INTERNAL, "far: zeroing host memory is refused");
    base.code = LKS_OK;
    is_int(launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_add, host, p, p, 4, 0, NULL, NULL), LKS_ERR_INTERNAL,
           "far: a kernel on host memory is refused");
    base.code = LKS_OK;
    lksi_rng rng = {0, 0};
    is_int(launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, p, 4, 0, &rng, NULL), LKS_ERR_INTERNAL,
           "far: and a random state on the host");
    base.code = LKS_OK;
    ok(host[0] == 1 && host[3] == 4, "far: nothing was written");
    is_int(launch(d, LKSI_STREAM_COMPUTE, LKSI_OP_fill, NULL, NULL, NULL, 0, 0, NULL, NULL), LKS_OK,
           "far: an absent view passes");
    lksi_device_close(d);

    setenv("LKS_FAR_DELAY", "soon", 1);
    lksi_device_options o = {.threads = 1, .local_size = 1};
    int64_t live = base.live_blocks;
    is_int(lksi_device_open(&base, backend, &o, &d), LKS_ERR_ARGUMENT, "far: a senseless LKS_FAR_DELAY is an error");
    ok(!d && strstr(base.text, "LKS_FAR_DELAY=soon") && base.live_blocks == live, "far: that names it");
    base.code = LKS_OK;
    unsetenv("LKS_FAR_DELAY");
}

static void opening(void)
{
    int64_t live = base.live_blocks;
    lksi_device_options o = {.threads = 2, .local_size = 1};
    lksi_device *d = NULL;
    int failures = 0;
    for (;; failures++) {
        base.fail_at = failures + 1;
        if (lksi_device_open(&base, backend, &o, &d) == LKS_OK) break;
        if (base.code != LKS_ERR_MEMORY || d || base.live_blocks != live) bail("failure %d", failures + 1);
        base.code = LKS_OK;
    }
    base.fail_at = 0;
    ok(failures >= 4, "%s: open fails cleanly at each of its %d allocations", backend->name, failures);
    is_int(d->be->threads(d->self), 2, "%s: threads", backend->name);
    ok(*d->be->describe(d->self), "%s: %s", backend->name, d->be->describe(d->self));
    lksi_device_close(d);
    for (int i = 0; i < 100; i++) {
        d = open_device(2);
        lksi_device_free(d, get(d, 100));
        lksi_device_close(d);
    }
    is_int(base.live_blocks, live, "%s: 100 times open and close leave nothing", backend->name);
    lksi_device_close(NULL);
    lksi_backend old = *backend;
    old.abi++;
    is_int(lksi_device_open(&base, &old, &o, &d), LKS_ERR_DEVICE, "%s: another version is refused", backend->name);
    base.code = LKS_OK;
}

int main(void)
{
    static const lksi_backend *const both[2] = {&lksi_backend_cpu, &lksi_backend_far};
    for (int i = 0; i < 2; i++) {
        backend = both[i];
        opening();
        pool();
        copies();
        launches();
        streams();
    }
    pressure();
    walls();
    setenv("LKS_FAR_DELAY", "2000", 1);
    copies();
    launches();
    streams();
    is_int(base.live_blocks, 0, "nothing is left");
    return done();
}
