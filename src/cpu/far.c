/* SPDX-License-Identifier: BSD-3-Clause
 *
 * far.c - the test device "far": CPU kernels behind an asynchronous queue, and memory that the host cannot touch. It
 * shows that code above `device` neither dereferences device addresses nor relies on work being done when a call
 * returns. It is not fast and not meant to be.
 *
 * Memory: one region of address space, mapped twice at a constant distance. The address that is handed out has no
 * access rights; the executor adds the distance. Each stream is a thread with a queue; kernels of all streams take
 * turns, since the workers are one team. LKS_FAR_DELAY=US sleeps up to US microseconds before each command, to shake
 * out work that lacks an event.
 */
#define _GNU_SOURCE
#include "cpu/infra.h"
#include <errno.h>
#include <fenv.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define REGION ((int64_t)8 << 30)
#define PAGE 4096
#define SMALL_UPLOAD 4096
#define MAX_DELAY 1000000

/* A place in a stream; shared by the event it was recorded in and by those who wait for it. */
struct mark { int refs, done; };

struct lksi_event { struct mark *mark; /* of the last record; NULL: never recorded, which counts as done */ };

enum { COPY, FILL, MARK, WAIT, KERNEL };

struct command {
    struct command *next;
    int kind, byte;
    void *dst;
    const void *src;
    int64_t bytes;
    struct mark *mark;
    lksi_args args;
    char why[LKSI_WHY];
    char payload[]; /* bytes of a small upload, or views of a kernel */
};

struct stream {
    struct far *far;
    int index, started;
    pthread_t thread;
    struct command *first, **last;
    int working; /* on a command that is no longer in the list */
};

struct range { int64_t begin, end; struct range *next; };

struct far {
    lksi_cpu *cpu;
    lksi_base *base;
    char *alias, *real; /* what is handed out; what the executor uses */
    struct range *free; /* by address, never adjacent */
    pthread_mutex_t lock;   /* queues, marks, failure */
    pthread_cond_t changed; /* any of these */
    pthread_mutex_t turn;   /* held by the stream that runs a kernel */
    struct stream stream[LKSI_STREAMS];
    int quit;
    lks_status code; /* first failure of a queued kernel that was not yet reported */
    char text[LKSI_WHY + 64];
    char failure[LKSI_WHY + 64]; /* the text last reported */
    char describe[256];
    long delay; /* microseconds */
    pid_t pid;
};

static int inside(const struct far *f, const void *p)
{
    return (const char *)p >= f->alias && (const char *)p < f->alias + REGION;
}

/* Executor's address of n bytes of device memory; NULL if they are not all in the region. */
static void *real(const struct far *f, const void *p, int64_t n)
{
    int64_t at = (const char *)p - f->alias;
    return inside(f, p) && n <= REGION - at ? f->real + at : NULL;
}

/* Executor. */

static void unref(struct mark *m)
{
    if (m && --m->refs == 0) free(m);
}

static void doze(struct far *f, uint64_t *seed)
{
    if (f->delay == 0) return;
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    long us = (long)(*seed % (uint64_t)(f->delay + 1));
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Runs c without the lock; 1 if it failed. */
static lks_status run(struct far *f, struct command *c)
{
    lks_status code = LKS_OK;
    switch (c->kind) {
    case COPY: memcpy(c->dst, c->src, (size_t)c->bytes); break;
    case FILL: memset(c->dst, c->byte, (size_t)c->bytes); break;
    case KERNEL:
        pthread_mutex_lock(&f->turn);
        code = lksi_backend_cpu.launch(f->cpu, LKSI_STREAM_COMPUTE, &c->args);
        pthread_mutex_unlock(&f->turn);
        break;
    }
    return code;
}

static void *executor(void *arg)
{
    struct stream *s = arg;
    struct far *f = s->far;
    uint64_t seed = 88172645463325252u + (uint64_t)s->index;
    fesetenv(FE_DFL_ENV);
    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct command *c = s->first;
        if (!c) {
            if (f->quit) break;
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        if (!(s->first = c->next)) s->last = &s->first;
        s->working = 1;
        if (c->kind == WAIT) {
            while (!c->mark->done) pthread_cond_wait(&f->changed, &f->lock);
            unref(c->mark);
        } else {
            pthread_mutex_unlock(&f->lock);
            doze(f, &seed);
            lks_status code = run(f, c);
            pthread_mutex_lock(&f->lock);
            if (code != LKS_OK && f->code == LKS_OK) {
                f->code = code;
                snprintf(f->text, sizeof f->text, "%s: %s", lksi_rows[c->args.op].name,
                         c->why[0] ? c->why : lks_status_text(code));
            }
            if (c->kind == MARK) c->mark->done = 1, unref(c->mark);
        }
        s->working = 0;
        pthread_cond_broadcast(&f->changed);
        free(c);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* Host side. */

static struct command *new_command(struct far *f, int kind, int64_t payload)
{
    if (lksi_alloc_must_fail(f->base)) return NULL;
    struct command *c = malloc(sizeof *c + (size_t)payload);
    if (!c) return NULL;
    c->next = NULL, c->kind = kind, c->mark = NULL;
    c->why[0] = 0;
    return c;
}

/* With the lock held. */
static void queue(struct far *f, int stream, struct command *c)
{
    struct stream *s = &f->stream[stream];
    *s->last = c, s->last = &c->next;
    pthread_cond_broadcast(&f->changed);
}

static lks_status say(struct far *f, lks_status code, const char *text)
{
    snprintf(f->failure, sizeof f->failure, "%s", text);
    return code;
}

/* Takes the latched failure; lock held. */
static lks_status report(struct far *f)
{
    lks_status code = f->code;
    f->code = LKS_OK;
    if (code != LKS_OK) memcpy(f->failure, f->text, sizeof f->text);
    return code;
}

static void wait_idle(struct far *f)
{
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < LKSI_STREAMS; i++)
        while (f->stream[i].first || f->stream[i].working) pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static void far_close(void *self)
{
    struct far *f = self;
    if (f->pid == getpid()) { /* a forked child has no executors */
        pthread_mutex_lock(&f->lock);
        f->quit = 1;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        for (int i = 0; i < LKSI_STREAMS; i++)
            if (f->stream[i].started) pthread_join(f->stream[i].thread, NULL);
        pthread_cond_destroy(&f->changed);
        pthread_mutex_destroy(&f->lock);
        pthread_mutex_destroy(&f->turn);
    }
    lksi_cpu_close(f->cpu);
    for (struct range *r = f->free, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    if (f->alias) munmap(f->alias, (size_t)REGION);
    if (f->real) munmap(f->real, (size_t)REGION);
    lksi_free(f->base, f);
}

static char *reserve(int rights)
{
    char *p = mmap(NULL, (size_t)REGION, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static lks_status set_up(struct far *f, const lksi_device_options *o)
{
    const char *delay = getenv("LKS_FAR_DELAY");
    if (delay && *delay) {
        char *end;
        f->delay = strtol(delay, &end, 10);
        if (*end || f->delay < 0 || f->delay > MAX_DELAY) {
            f->delay = 0;
            return lksi_fail(f->base, LKS_ERR_ARGUMENT, "far", "LKS_FAR_DELAY=%s is not 0 to %d microseconds", delay,
                             MAX_DELAY);
        }
    }
    TRY(lksi_cpu_open(f->base, o, &f->cpu));
    snprintf(f->describe, sizeof f->describe, "test device: queues and memory of its own on %s",
             lksi_backend_cpu.describe(f->cpu));
    f->alias = reserve(PROT_NONE);
    f->real = reserve(PROT_READ | PROT_WRITE);
    f->free = malloc(sizeof *f->free);
    if (!f->alias || !f->real || !f->free)
        return lksi_fail(f->base, LKS_ERR_MEMORY, "far", "cannot reserve two regions of %" PRId64 " bytes: %s", REGION,
                         strerror(errno));
    *f->free = (struct range){0, REGION, NULL};
    for (int i = 0; i < LKSI_STREAMS; i++) {
        struct stream *s = &f->stream[i];
        s->far = f, s->index = i, s->last = &s->first;
        int code = lksi_thread_start(&s->thread, executor, s, "lks-far");
        if (code)
            return lksi_fail(f->base, LKS_ERR_DEVICE, "far", "a thread cannot be started: %s", strerror(code));
        s->started = 1;
    }
    return LKS_OK;
}

static lks_status far_open(lksi_base *b, const lksi_device_options *o, void **self)
{
    *self = NULL;
    struct far *f = lksi_alloc(b, sizeof *f);
    if (!f) return LKS_ERR_MEMORY;
    f->base = b, f->pid = getpid();
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->turn, NULL);
    pthread_cond_init(&f->changed, NULL);
    lks_status code = set_up(f, o);
    if (code != LKS_OK) {
        far_close(f);
        return code;
    }
    *self = f;
    return LKS_OK;
}

lksi_cpu *lksi_far_cpu(void *self)
{
    return ((struct far *)self)->cpu;
}

static const char *far_describe(void *self)
{
    return ((struct far *)self)->describe;
}

static int far_threads(void *self)
{
    return lksi_cpu_workers(((struct far *)self)->cpu);
}

static int64_t whole_pages(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static lks_status far_alloc(void *self, int64_t bytes, void **p)
{
    struct far *f = self;
    *p = NULL;
    if (bytes > REGION) return LKS_ERR_MEMORY;
    int64_t want = whole_pages(bytes > 0 ? bytes : 1);
    for (struct range **at = &f->free, *r; (r = *at); at = &r->next) {
        if (r->end - r->begin < want) continue;
        *p = f->alias + r->begin;
        r->begin += want;
        if (r->begin == r->end) {
            *at = r->next;
            free(r);
        }
        return LKS_OK;
    }
    return LKS_ERR_MEMORY;
}

static void far_free(void *self, void *p, int64_t bytes)
{
    struct far *f = self;
    int64_t begin = (char *)p - f->alias, end = begin + whole_pages(bytes > 0 ? bytes : 1);
    wait_idle(f);
    madvise(f->real + begin, (size_t)(end - begin), MADV_DONTNEED);
    struct range **at = &f->free;
    while (*at && (*at)->end < begin) at = &(*at)->next;
    struct range *r = *at;
    if (r && r->end == begin) {
        r->end = end;
        if (r->next && r->next->begin == end) {
            struct range *gone = r->next;
            r->end = gone->end, r->next = gone->next;
            free(gone);
        }
    } else if (r && r->begin == end) {
        r->begin = begin;
    } else {
        struct range *fresh = malloc(sizeof *fresh);
        if (!fresh) return; /* the range stays unused: address space only */
        *fresh = (struct range){begin, end, r};
        *at = fresh;
    }
}

static lks_status far_host_alloc(void *self, int64_t bytes, void **p)
{
    (void)self;
    *p = lksi_cpu_memory(bytes);
    return *p ? LKS_OK : LKS_ERR_MEMORY;
}

static void far_host_free(void *self, void *p, int64_t bytes)
{
    (void)self;
    if (p) lksi_cpu_memory_free(p, bytes);
}

/* dst and src as the executor sees them; NULL: the address was on the wrong side. keep: copy the source now. */
static lks_status copy(struct far *f, int stream, void *dst, const void *src, int64_t bytes, int keep)
{
    if (!dst || !src) return say(f, LKS_ERR_INTERNAL, "a copy with an address that is on the wrong side");
    struct command *c = new_command(f, COPY, keep ? bytes : 0);
    if (!c) return say(f, LKS_ERR_MEMORY, "out of host memory");
    c->dst = dst, c->src = src, c->bytes = bytes;
    if (keep) c->src = memcpy(c->payload, src, (size_t)bytes);
    pthread_mutex_lock(&f->lock);
    queue(f, stream, c);
    pthread_mutex_unlock(&f->lock);
    return LKS_OK;
}

static lks_status far_upload(void *self, int stream, void *dst, const void *host, int64_t bytes)
{
    struct far *f = self;
    return copy(f, stream, real(f, dst, bytes), inside(f, host) ? NULL : host, bytes, bytes <= SMALL_UPLOAD);
}

static lks_status far_download(void *self, int stream, void *host, const void *src, int64_t bytes)
{
    struct far *f = self;
    return copy(f, stream, inside(f, host) ? NULL : host, real(f, src, bytes), bytes, 0);
}

static lks_status far_copy(void *self, int stream, void *dst, const void *src, int64_t bytes)
{
    struct far *f = self;
    return copy(f, stream, real(f, dst, bytes), real(f, src, bytes), bytes, 0);
}

static lks_status far_fill(void *self, int stream, void *dst, int byte, int64_t bytes)
{
    struct far *f = self;
    void *to = real(f, dst, bytes);
    if (!to) return say(f, LKS_ERR_INTERNAL, "a fill of an address that is not device memory");
    struct command *c = new_command(f, FILL, 0);
    if (!c) return say(f, LKS_ERR_MEMORY, "out of host memory");
    c->dst = to, c->byte = byte, c->bytes = bytes;
    pthread_mutex_lock(&f->lock);
    queue(f, stream, c);
    pthread_mutex_unlock(&f->lock);
    return LKS_OK;
}

static lks_status far_event_create(void *self, lksi_event **e)
{
    struct far *f = self;
    *e = lksi_alloc(f->base, sizeof **e);
    return *e ? LKS_OK : LKS_ERR_MEMORY;
}

static void far_event_destroy(void *self, lksi_event *e)
{
    struct far *f = self;
    if (!e) return;
    pthread_mutex_lock(&f->lock);
    unref(e->mark);
    pthread_mutex_unlock(&f->lock);
    lksi_free(f->base, e);
}

static lks_status far_event_record(void *self, lksi_event *e, int stream)
{
    struct far *f = self;
    struct command *c = new_command(f, MARK, 0);
    struct mark *m = c ? malloc(sizeof *m) : NULL;
    if (!m) {
        free(c);
        return say(f, LKS_ERR_MEMORY, "out of host memory");
    }
    *m = (struct mark){.refs = 2};
    c->mark = m;
    pthread_mutex_lock(&f->lock);
    unref(e->mark);
    e->mark = m;
    queue(f, stream, c);
    pthread_mutex_unlock(&f->lock);
    return LKS_OK;
}

static lks_status far_stream_wait(void *self, int stream, lksi_event *e)
{
    struct far *f = self;
    struct command *c = new_command(f, WAIT, 0);
    if (!c) return say(f, LKS_ERR_MEMORY, "out of host memory");
    pthread_mutex_lock(&f->lock);
    if (e->mark) {
        c->mark = e->mark, c->mark->refs++;
        queue(f, stream, c);
        c = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    free(c);
    return LKS_OK;
}

static int far_event_done(void *self, lksi_event *e)
{
    struct far *f = self;
    pthread_mutex_lock(&f->lock);
    int done = f->code != LKS_OK ? f->code : !e->mark || e->mark->done;
    if (f->code != LKS_OK) memcpy(f->failure, f->text, sizeof f->text);
    pthread_mutex_unlock(&f->lock);
    return done;
}

static lks_status far_event_wait(void *self, lksi_event *e)
{
    struct far *f = self;
    pthread_mutex_lock(&f->lock);
    while (e->mark && !e->mark->done) pthread_cond_wait(&f->changed, &f->lock);
    lks_status code = report(f);
    pthread_mutex_unlock(&f->lock);
    return code;
}

static void *far_host_view(void *self, void *p)
{
    (void)self, (void)p;
    return NULL;
}

static int far_has(void *self, int op)
{
    return lksi_backend_cpu.has(((struct far *)self)->cpu, op);
}

/* Views with the executor's addresses; 0 if one is not device memory. An absent or empty one has nothing to look at. */
static int translate(const struct far *f, lksi_view *to, const lksi_view *from, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] = from[i];
        if (!from[i].data) continue;
        to[i].data = real(f, from[i].data, 0);
        if (!to[i].data) return 0;
    }
    return 1;
}

static lks_status far_launch(void *self, int stream, const lksi_args *a)
{
    struct far *f = self;
    pthread_mutex_lock(&f->lock);
    lks_status code = report(f);
    pthread_mutex_unlock(&f->lock);
    if (code != LKS_OK) return lksi_why(a, code, "an earlier call failed: %s", f->failure);
    if (!far_has(f, a->op)) return lksi_why(a, LKS_ERR_UNSUPPORTED, "there is no kernel for it");
    struct command *c = new_command(f, KERNEL, (a->nin + a->nout) * (int64_t)sizeof(lksi_view));
    if (!c) return lksi_why(a, LKS_ERR_MEMORY, "out of host memory");
    lksi_view *in = (lksi_view *)c->payload, *out = in + a->nin;
    c->args = *a;
    c->args.in = in, c->args.out = out, c->args.why = c->why;
    int fine = translate(f, in, a->in, a->nin) && translate(f, out, a->out, a->nout);
    if (a->rng) {
        c->args.rng = real(f, a->rng, sizeof *a->rng);
        fine = fine && c->args.rng;
    }
    if (!fine) {
        free(c);
        return lksi_why(a, LKS_ERR_INTERNAL, "an address that was handed to the kernel is not device memory");
    }
    pthread_mutex_lock(&f->lock);
    queue(f, stream, c);
    pthread_mutex_unlock(&f->lock);
    return LKS_OK;
}

static const char *far_failure(void *self)
{
    return ((struct far *)self)->failure;
}

const lksi_backend lksi_backend_far = {
    .abi = LKSI_ABI,
    .size = sizeof(lksi_backend),
    .name = "far",
    .open = far_open,
    .close = far_close,
    .describe = far_describe,
    .threads = far_threads,
    .alloc = far_alloc,
    .free = far_free,
    .host_alloc = far_host_alloc,
    .host_free = far_host_free,
    .upload = far_upload,
    .download = far_download,
    .copy = far_copy,
    .fill = far_fill,
    .event_create = far_event_create,
    .event_destroy = far_event_destroy,
    .event_record = far_event_record,
    .stream_wait = far_stream_wait,
    .event_done = far_event_done,
    .event_wait = far_event_wait,
    .host_view = far_host_view,
    .has = far_has,
    .launch = far_launch,
    .failure = far_failure,
};
