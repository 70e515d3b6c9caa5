/* SPDX-License-Identifier: BSD-3-Clause
 *
 * workers.c - the threads that share a kernel's work. They spin for a few microseconds after a job and then sleep, so
 * an idle process uses no CPU. Not here: what is computed, and any thought of NUMA (the launcher binds ranks).
 *
 * A job of n items is cut into lanes, one for each worker that takes part, and a lane into a few pieces. A worker
 * takes the pieces of its own lane first (the same ranges in every op, which its caches remember) and then what
 * others have not begun: whoever is late, or has lost its core to a stranger, is not waited for. The caller works
 * too, and if nobody else comes it does everything.
 *
 * A lane is one 64-bit ticket: generation of the job (32 bits), pieces (16), next piece (16). A piece is taken by
 * compare-and-swap on the whole, so a worker that comes too late fails by the generation; and the fields of a job
 * cannot change while a piece of it that was taken is not done.
 */
#define _GNU_SOURCE
#include "cpu/infra.h"
#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIECES 4              /* per lane, at most */
#define SPIN_WORKER 50e-6     /* seconds before a worker without a job sleeps */
#define SPIN_CALLER 20e-6     /* before the caller sleeps until the last piece is done */
#define SPIN_OVERSUBSCRIBED 0 /* either, when cores are too few */

struct lane {
    _Alignas(64) uint64_t ticket;
    pthread_t thread;
    struct lksi_team *team;
    int id;
};

struct lksi_team {
    _Alignas(64) uint32_t generation; /* workers sleep on it */
    uint32_t sleepers, quit;
    /* The job: written by the caller before it makes the generation known. */
    lksi_range_fn fn;
    void *arg;
    int64_t n, piece; /* items; items of a piece */
    uint32_t lanes;
    int busy; /* inside lksi_parallel */
    _Alignas(64) uint32_t done; /* pieces done by others; the caller sleeps on it */
    uint32_t waiting;
    _Alignas(64) int workers;
    double spin_worker, spin_caller;
    pid_t pid;
    void *block; /* what was allocated */
    struct lane lane[];
};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

static inline void relax(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void futex_wait(uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Waits for *word to differ from seen: spins for some seconds; 1 if it does. */
static int spin(uint32_t *word, uint32_t seen, double seconds)
{
    double end = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != seen) return 1;
            relax();
        }
        double now = lksi_now();
        if (end == 0) end = now + seconds;
        if (now >= end) return 0;
    }
}

/* Next piece of the lane, -1 if there is none. */
static int take(struct lane *l, uint32_t generation)
{
    uint64_t t = __atomic_load_n(&l->ticket, __ATOMIC_ACQUIRE);
    while ((uint32_t)(t >> 32) == generation && (t & 0xffff) < (t >> 16 & 0xffff))
        if (__atomic_compare_exchange_n(&l->ticket, &t, t + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return (int)(t & 0xffff);
    return -1;
}

/* Works on the job of this generation as long as it has pieces; how many were done. */
static uint32_t work(struct lksi_team *m, int id, uint32_t generation)
{
    uint32_t lanes = LOAD(m->lanes), count = 0;
    for (uint32_t k = 0; k < lanes; k++) {
        uint32_t l = ((uint32_t)id + k) % lanes;
        for (int i; (i = take(&m->lane[l], generation)) >= 0; count++) {
            int64_t n = LOAD(m->n), piece = LOAD(m->piece);
            int64_t pieces = (int64_t)(LOAD(m->lane[l].ticket) >> 16 & 0xffff);
            int64_t begin = ((int64_t)l * pieces + i) * piece, end = begin + piece < n ? begin + piece : n;
            if (begin < end) LOAD(m->fn)(LOAD(m->arg), begin, end, id);
        }
    }
    return count;
}

static void *worker(void *arg)
{
    struct lane *me = arg;
    struct lksi_team *m = me->team;
    fesetenv(FE_DFL_ENV); /* a new thread inherits that of the host */
    uint32_t seen = 0;
    for (;;) {
        while (!spin(&m->generation, seen, m->spin_worker)) {
            __atomic_add_fetch(&m->sleepers, 1, __ATOMIC_SEQ_CST);
            futex_wait(&m->generation, seen);
            __atomic_sub_fetch(&m->sleepers, 1, __ATOMIC_SEQ_CST);
        }
        seen = __atomic_load_n(&m->generation, __ATOMIC_ACQUIRE);
        if (LOAD(m->quit)) return NULL;
        uint32_t count = work(m, me->id, seen);
        if (count == 0) continue;
        __atomic_add_fetch(&m->done, count, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&m->waiting, __ATOMIC_SEQ_CST)) futex_wake(&m->done, 1);
    }
}

static void publish(struct lksi_team *m, int wake)
{
    __atomic_store_n(&m->generation, m->generation + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&m->sleepers, __ATOMIC_SEQ_CST)) futex_wake(&m->generation, wake);
}

/* Number of the worker that runs this thread; 0 for any thread from outside. */
static int self(const struct lksi_team *m)
{
    pthread_t me = pthread_self();
    for (int i = 1; i < m->workers; i++)
        if (pthread_equal(m->lane[i].thread, me)) return i;
    return 0;
}

void lksi_parallel(lksi_cpu *cpu, int64_t n, int64_t grain, lksi_range_fn fn, void *arg)
{
    struct lksi_team *m = cpu->team;
    if (n <= 0) return;
    if (!m) {
        fn(arg, 0, n, 0);
        return;
    }
    if (grain < 1) grain = 1;
    if (m->busy) { /* only from inside fn: one thread at a time uses a context */
        fn(arg, 0, n, self(m));
        return;
    }
    int64_t fit = n / grain;
    if (fit < 2) {
        fn(arg, 0, n, 0);
        return;
    }
    int64_t lanes = fit < m->workers ? fit : m->workers;
    int64_t per = fit / lanes < PIECES ? fit / lanes : PIECES;
    int64_t total = lanes * per, piece = n / total + (n % total != 0);
    if (piece >= 256) piece = (piece + 63) / 64 * 64; /* pieces begin at cache lines */
    m->busy = 1;
    STORE(m->fn, fn);
    STORE(m->arg, arg);
    STORE(m->n, n);
    STORE(m->piece, piece);
    STORE(m->lanes, (uint32_t)lanes);
    STORE(m->done, 0);
    uint32_t generation = m->generation + 1;
    for (int64_t l = 0; l < lanes; l++)
        __atomic_store_n(&m->lane[l].ticket, (uint64_t)generation << 32 | (uint64_t)per << 16, __ATOMIC_RELEASE);
    publish(m, (int)lanes - 1);
    uint32_t target = (uint32_t)total - work(m, 0, generation);
    for (uint32_t done; (done = __atomic_load_n(&m->done, __ATOMIC_ACQUIRE)) != target;) {
        if (spin(&m->done, done, m->spin_caller)) continue;
        __atomic_store_n(&m->waiting, 1, __ATOMIC_SEQ_CST);
        if ((done = __atomic_load_n(&m->done, __ATOMIC_SEQ_CST)) != target) futex_wait(&m->done, done);
        __atomic_store_n(&m->waiting, 0, __ATOMIC_SEQ_CST);
    }
    m->busy = 0;
}

int lksi_cpu_workers(const lksi_cpu *cpu)
{
    return cpu->threads;
}

int lksi_thread_start(void *thread, void *(*body)(void *), void *arg, const char *name)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0) pthread_setname_np(*(pthread_t *)thread, name);
    return code;
}

lks_status lksi_team_open(lksi_cpu *cpu, int oversubscribed)
{
    if (cpu->threads < 2) return LKS_OK;
    struct lksi_team *m;
    void *block = lksi_alloc(cpu->base, (int64_t)(sizeof *m + (size_t)cpu->threads * sizeof m->lane[0] + 64));
    if (!block) return LKS_ERR_MEMORY;
    m = (struct lksi_team *)(((uintptr_t)block + 63) & ~(uintptr_t)63);
    m->block = block, m->pid = getpid(), m->lanes = 1, m->workers = 1;
    m->spin_worker = oversubscribed ? SPIN_OVERSUBSCRIBED : SPIN_WORKER;
    m->spin_caller = oversubscribed ? SPIN_OVERSUBSCRIBED : SPIN_CALLER;
    cpu->team = m;
    for (int i = 1; i < cpu->threads; i++) {
        m->lane[i].team = m, m->lane[i].id = i;
        int code = lksi_thread_start(&m->lane[i].thread, worker, &m->lane[i], "lks-worker");
        if (code) {
            lksi_team_close(cpu);
            return lksi_fail(cpu->base, LKS_ERR_DEVICE, "cpu", "thread %d of %d cannot be started: %s", i + 1,
                             cpu->threads, strerror(code));
        }
        m->workers = i + 1;
    }
    return LKS_OK;
}

void lksi_team_close(lksi_cpu *cpu)
{
    struct lksi_team *m = cpu->team;
    if (!m) return;
    if (m->pid == getpid()) { /* a forked child has the memory, but not the threads */
        STORE(m->quit, 1);
        publish(m, INT_MAX);
        for (int i = 1; i < m->workers; i++) pthread_join(m->lane[i].thread, NULL);
    }
    lksi_free(cpu->base, m->block);
    cpu->team = NULL;
}

void *lksi_scratch(lksi_cpu *cpu, int worker_id, int slot, int64_t bytes)
{
    struct lksi_scratch_block *s = &cpu->scratch[(worker_id + 1) * LKSI_SCRATCH_SLOTS + slot];
    if (__builtin_expect(s->p && s->bytes >= bytes, 1)) return s->p;
    /* A quarter more than was asked, so that slowly growing sizes do not move it each time. Neither counted as a
     * block of the context (it is kept on purpose) nor recorded: this may be a worker. */
    int64_t want = 4096;
    if (lksi_alloc_must_fail(cpu->base) || bytes < 0 || bytes > INT64_MAX / 4) return NULL;
    if (bytes > want) want = (bytes + (s->p ? bytes / 4 : 0) + 4095) / 4096 * 4096;
    void *p = lksi_cpu_memory(want);
    if (!p) return NULL;
    if (s->p) lksi_cpu_memory_free(s->p, s->bytes);
    s->p = p, s->bytes = want;
    return p;
}
