/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda.c - the CUDA backend: choice of device, streams, events, memory, copies, the launch. Nothing here waits but what
 * says so. Kernels are in kernels/, products in blas.c. The caller's current device is put back by every entry, if the
 * program uses it.
 */
#include "cuda/inside.h"
#include "cuda/lacks.h"
#include "cuda/matrices.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SMALL_UPLOAD 4096
#define PINNED_LEAST 4096
#define PINNED_SIZES 48

/* inner: recorded in place of event while a graph is being gathered, the captured-th; event is then recorded after the
 * launch. */
struct lksi_event { cudaEvent_t event, inner; int64_t captured; int early; };

/* Kernels by row: lksi_cuda_NAME, or NULL for the rows of lacks.h. */
#define SECOND_(a, b, ...) b
#define SECOND(...) SECOND_(__VA_ARGS__)
#define OP(name, ...) lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a);
#define OP_NOGRAD OP
#define OP_INPLACE OP
#define OP_VIEW(name, ...)
#include "table/ops.def"
#undef OP
#undef OP_VIEW

const lksi_cuda_kernel lksi_cuda_kernels[LKSI_OP_COUNT] = {
#define OP(name, ...) [LKSI_OP_##name] = SECOND(LKSI_LACKS_##name, lksi_cuda_##name, ~),
#define OP_VIEW(name, ...) [LKSI_OP_##name] = NULL,
#include "table/ops.def"
#undef OP
#undef OP_NOGRAD
#undef OP_INPLACE
#undef OP_VIEW
};

static const lksi_host *host; /* set once, before anything else */

/* A pinned block that nobody uses; the list is kept by size. */
struct pinned { struct pinned *next; };

struct scratch { void *p; int64_t bytes; };

/* A thread that waits for an event, so that the caller's can look after other things meanwhile. Started when first
 * needed. */
struct waiter {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, ended;
    lksi_event *event; /* of the wait under way, or of the last one */
    cudaError_t result;
    int up, busy, quit, device;
};

/* A graph being gathered, by stream capture. exec is that of the last one, which the next one updates. */
struct graph {
    int on;
    int64_t number;
    int joined[LKSI_STREAMS]; /* streams that take part */
    lksi_event **events;      /* to be recorded after the launch */
    int count, room, gated;
    cudaStream_t gate;        /* waits for what was recorded before: the launch comes after it */
    cudaEvent_t fork;
    cudaGraphExec_t exec;
    int keeps; /* others, that may be launched again */
};

struct lksi_cuda {
    lksi_base *base;
    int device, sms, sm;
    const lksi_plugin *(*module)(const char *name, char *path, char *why);
    int (*context_state)(int device, unsigned *flags, int *active); /* the driver's; NULL if it cannot be had */
    cudaStream_t stream[LKSI_STREAMS];
    struct scratch scratch[LKSI_STREAMS][LKSI_CUDA_SLOTS];
    void **retired; /* outgrown scratch memory: queued work may still use it */
    int retired_count, retired_room;
    struct pinned *pinned[PINNED_SIZES];
    lksi_fault fault;
    struct { void *p; void (*destroy)(lksi_cuda *cuda, void *state); } state[LKSI_CUDA_ALL_STATES];
    char describe[256];
    char failure[LKSI_WHY];
    struct waiter waiter;
    struct graph graph;
    cudaEvent_t foreign; /* between the compute stream and those of the program */
};

/* --- errors --- */

static lks_status status_of(cudaError_t e)
{
    return e == cudaSuccess ? LKS_OK : e == cudaErrorMemoryAllocation ? LKS_ERR_MEMORY : LKS_ERR_DEVICE;
}

/* Keeps the text of a failed call; also takes it from the runtime, so that the next call does not meet it again. */
static lks_status check(lksi_cuda *c, cudaError_t e, const char *what)
{
    if (__builtin_expect(e == cudaSuccess, 1)) return LKS_OK;
    (void)cudaGetLastError();
    snprintf(c->failure, sizeof c->failure, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
    return status_of(e);
}

lks_status lksi_cuda_failed(lksi_cuda *c, lks_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->failure, sizeof c->failure, format, args);
    va_end(args);
    return code;
}

lks_status lksi_cuda_launched(const lksi_args *a)
{
    cudaError_t e = cudaGetLastError();
    if (__builtin_expect(e == cudaSuccess, 1)) return LKS_OK;
    char text[256] = "", shape[200];
    for (int i = 0; i < a->nin + a->nout && i < 8; i++) {
        const lksi_view *v = i < a->nin ? &a->in[i] : &a->out[i - a->nin];
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s", i == a->nin ? " -> " : i ? ", " : "",
                 host->shape_text(v, shape, sizeof shape));
    }
    return lksi_why(a, status_of(e), "the launch for %s failed: %s (%s)", text, cudaGetErrorString(e),
                    cudaGetErrorName(e));
}

static const char *trouble_of(int64_t trouble)
{
    switch (trouble) {
    case LKSI_TROUBLE_NAN: return "holds NaN or infinity";
    case LKSI_TROUBLE_DEFINITE: return "is not positive definite";
    case LKSI_TROUBLE_SINGULAR: return "is singular";
    case LKSI_TROUBLE_DIAGONAL: return "is singular: its diagonal holds a 0";
    case LKSI_TROUBLE_VALUES: return "has no singular values that cuSOLVER could find";
    default: return "has no eigenvalues that cuSOLVER could find";
    }
}

/* What a kernel found while it ran; told once. */
static lks_status report(lksi_cuda *c)
{
    volatile lksi_fault_record *r = c->fault.record;
    if (__builtin_expect(r->kind == LKSI_FAULT_NONE, 1)) return LKS_OK;
    const char *name = r->op >= 0 && r->op < LKSI_OP_COUNT ? host->rows[r->op].name : "a kernel";
    if (r->kind == LKSI_FAULT_PROBABILITY)
        snprintf(c->failure, sizeof c->failure, "%s: a probability is outside [0, 1], or NaN", name);
    else if (r->kind == LKSI_FAULT_MATRIX)
        snprintf(c->failure, sizeof c->failure, "%s: matrix %lld of the batch %s (info is %lld)", name,
                 (long long)r->place, trouble_of(r->limit), (long long)r->value);
    else
        snprintf(c->failure, sizeof c->failure, "%s: %s %lld at place %lld is outside [%lld, %lld)", name,
                 r->kind == LKSI_FAULT_TARGET ? "target" : "index", (long long)r->value, (long long)r->place,
                 r->kind == LKSI_FAULT_EITHER_END ? -(long long)r->limit : 0, (long long)r->limit);
    r->kind = LKSI_FAULT_NONE;
    (void)cudaMemsetAsync(c->fault.lock, 0, sizeof *c->fault.lock, c->stream[LKSI_STREAM_COMPUTE]);
    return LKS_ERR_ARGUMENT;
}

/* --- the caller's current device ---
 *
 * cudaSetDevice makes a context on the device, some hundred MB of its memory. The current device of a thread that has
 * never used CUDA is 0, so putting that back would give every rank of a node a context on GPU 0. A device on which the
 * program has no context is therefore not made current again. */

int lksi_cuda_enter(const lksi_cuda *c)
{
    int was = -1;
    (void)cudaGetDevice(&was);
    if (was != c->device) (void)cudaSetDevice(c->device);
    return was;
}

void lksi_cuda_leave(const lksi_cuda *c, int was)
{
    unsigned flags;
    int active = 1;
    if (was < 0 || was == c->device) return;
    if (c->context_state && c->context_state(was, &flags, &active) != 0) active = 1;
    if (active) (void)cudaSetDevice(was);
}

static void find_context_state(lksi_cuda *c)
{
    void *f = NULL;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &f, 7000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        f = NULL;
    (void)cudaGetLastError();
#endif
    *(void **)&c->context_state = f;
}

/* --- opening --- */

/* The rank's number on its node. The context's communicator may hold some ranks only, and an environment variable may
 * be that of a launcher that started one process for all: each is too small then, never too large. */
static int local_number(const lksi_device_options *o)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "PMI_LOCAL_RANK", "SLURM_LOCALID"};
    int n = o ? o->local_rank : 0;
    for (int i = 0; i < 5; i++) {
        const char *v = getenv(names[i]);
        if (v && *v && atoi(v) > n) n = atoi(v);
    }
    return n;
}

static int count_devices(char *text, int bytes)
{
    int n = 0, driver = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) return n;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (driver == 0)
        snprintf(text, (size_t)bytes, "there is no NVIDIA driver here (%s)", cudaGetErrorString(e));
    else if (e != cudaSuccess && e != cudaErrorNoDevice)
        snprintf(text, (size_t)bytes, "driver for CUDA %d.%d: %s", driver / 1000, driver % 1000 / 10,
                 cudaGetErrorString(e));
    else if (visible)
        snprintf(text, (size_t)bytes, "no device is visible (CUDA_VISIBLE_DEVICES=%s)", visible);
    else
        snprintf(text, (size_t)bytes, "there is no CUDA device");
    return 0;
}

static int cuda_probe(char *text, int bytes)
{
    int n = count_devices(text, bytes), driver = 0, runtime = 0;
    if (n == 0) return 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    int at = snprintf(text, (size_t)bytes, "CUDA %d.%d, driver for %d.%d, %d device%s", runtime / 1000,
                      runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, n, n == 1 ? "" : "s");
    for (int i = 0; i < n && at < bytes; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
        at += snprintf(text + at, (size_t)(bytes - at), "%s%s", i ? ", " : ": ", p.name);
    }
    return n;
}

static lks_status open_parts(lksi_cuda *c, const lksi_device_options *o)
{
    char text[LKSI_WHY];
    int n = count_devices(text, sizeof text), least, greatest;
    if (n == 0) return host->fail(c->base, LKS_ERR_DEVICE, "cuda", "%s", text);
    c->device = local_number(o) % n;
    struct cudaDeviceProp p;
    TRY(check(c, cudaSetDevice(c->device), "cudaSetDevice"));
    TRY(check(c, cudaGetDeviceProperties(&p, c->device), "cudaGetDeviceProperties"));
    c->sms = p.multiProcessorCount;
    c->sm = 10 * p.major + p.minor;
    if (c->sm < 80)
        return host->fail(c->base, LKS_ERR_DEVICE, "cuda", "%s has compute capability %d.%d; 8.0 is needed", p.name,
                          p.major, p.minor);
    snprintf(c->describe, sizeof c->describe, "%.100s, sm_%d, %d multiprocessors, %.1f GB, device %d of %d", p.name,
             c->sm, c->sms, (double)p.totalGlobalMem / 1e9, c->device, n);
    TRY(check(c, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    for (int i = 0; i < LKSI_STREAMS; i++)
        TRY(check(c, cudaStreamCreateWithPriority(&c->stream[i], cudaStreamNonBlocking,
                                                  i == LKSI_STREAM_COMPUTE ? least : greatest), "cudaStreamCreate"));
    TRY(check(c, cudaEventCreateWithFlags(&c->foreign, cudaEventDisableTiming), "cudaEventCreate"));
    TRY(check(c, cudaHostAlloc((void **)&c->fault.record, sizeof *c->fault.record, cudaHostAllocPortable),
              "cudaHostAlloc"));
    memset(c->fault.record, 0, sizeof *c->fault.record);
    TRY(check(c, cudaMalloc((void **)&c->fault.lock, sizeof *c->fault.lock), "cudaMalloc"));
    /* All streams may run kernels that use it. */
    TRY(check(c, cudaMemset(c->fault.lock, 0, sizeof *c->fault.lock), "cudaMemset"));
    return check(c, cudaDeviceSynchronize(), "the first kernel");
}

static void waiter_close(struct waiter *w);
static void waiter_forget(struct waiter *w, const lksi_event *e);
static void graph_close(struct graph *g);

static void cuda_close(void *self)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    waiter_close(&c->waiter);
    graph_close(&c->graph);
    if (c->foreign) (void)cudaEventDestroy(c->foreign);
    for (int i = 0; i < LKSI_STREAMS; i++)
        if (c->stream[i]) (void)cudaStreamSynchronize(c->stream[i]);
    for (int i = 0; i < LKSI_CUDA_ALL_STATES; i++)
        if (c->state[i].p && c->state[i].destroy) c->state[i].destroy(c, c->state[i].p);
    for (int i = 0; i < LKSI_STREAMS; i++)
        for (int k = 0; k < LKSI_CUDA_SLOTS; k++)
            if (c->scratch[i][k].p) (void)cudaFree(c->scratch[i][k].p);
    for (int i = 0; i < c->retired_count; i++) (void)cudaFree(c->retired[i]);
    free(c->retired);
    for (int i = 0; i < PINNED_SIZES; i++)
        for (struct pinned *p = c->pinned[i], *next; p; p = next) {
            next = p->next;
            (void)cudaFreeHost(p);
        }
    if (c->fault.lock) (void)cudaFree(c->fault.lock);
    if (c->fault.record) (void)cudaFreeHost(c->fault.record);
    for (int i = 0; i < LKSI_STREAMS; i++)
        if (c->stream[i]) (void)cudaStreamDestroy(c->stream[i]);
    (void)cudaGetLastError();
    lksi_cuda_leave(c, was);
    host->free(c->base, c);
}

static lks_status cuda_open(lksi_base *b, const lksi_device_options *o, void **self)
{
    *self = NULL;
    int was = -1;
    (void)cudaGetDevice(&was);
    (void)cudaGetLastError();
    lksi_cuda *c = host->alloc(b, sizeof *c);
    if (!c) return LKS_ERR_MEMORY;
    c->base = b;
    c->module = o ? o->module : NULL;
    find_context_state(c);
    lks_status code = open_parts(c, o);
    lksi_cuda_leave(c, was);
    if (code != LKS_OK) {
        if (c->failure[0]) host->fail(b, code, "cuda", "%s", c->failure);
        cuda_close(c);
    } else {
        *self = c;
    }
    (void)cudaGetLastError();
    return code;
}

static const char *cuda_describe(void *self)
{
    return ((lksi_cuda *)self)->describe;
}

static int cuda_threads(void *self)
{
    (void)self;
    return 1;
}

/* --- memory --- */

static lks_status cuda_alloc(void *self, int64_t bytes, void **p)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    *p = NULL;
    lks_status code = check(c, cudaMalloc(p, bytes > 0 ? (size_t)bytes : 1), "cudaMalloc");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_graph_end(void *self);

static void cuda_free(void *self, void *p, int64_t bytes)
{
    lksi_cuda *c = self;
    if (c->graph.on) cuda_graph_end(c); /* what was gathered may use it, and cudaFree waits for what was launched */
    int was = lksi_cuda_enter(c);
    (void)bytes;
    check(c, cudaFree(p), "cudaFree");
    lksi_cuda_leave(c, was);
}

/* Pinned memory is slow to get: blocks are kept, by powers of two. */
static int pinned_class(int64_t bytes)
{
    int k = 12;
    while (k < PINNED_SIZES - 1 && (int64_t)1 << k < bytes) k++;
    return k;
}

static lks_status cuda_host_alloc(void *self, int64_t bytes, void **p)
{
    lksi_cuda *c = self;
    int k = pinned_class(bytes);
    struct pinned *first = c->pinned[k];
    if (first) {
        c->pinned[k] = first->next;
        *p = first;
        return LKS_OK;
    }
    int was = lksi_cuda_enter(c);
    *p = NULL;
    lks_status code = check(c, cudaHostAlloc(p, (size_t)1 << k, cudaHostAllocPortable), "cudaHostAlloc");
    lksi_cuda_leave(c, was);
    return code;
}

static void cuda_host_free(void *self, void *p, int64_t bytes)
{
    lksi_cuda *c = self;
    if (!p) return;
    struct pinned *block = p;
    int k = pinned_class(bytes);
    block->next = c->pinned[k];
    c->pinned[k] = block;
}

lks_status lksi_cuda_scratch(lksi_cuda *c, cudaStream_t stream, const lksi_args *a, int slot, int64_t bytes, void **p)
{
    struct scratch *s = &c->scratch[lksi_cuda_stream_index(c, stream)][slot];
    *p = s->p;
    if (__builtin_expect(s->bytes >= bytes && s->p, 1)) return LKS_OK;
    int64_t want = 2 * s->bytes > bytes ? 2 * s->bytes : bytes;
    want = (want + 65535) / 65536 * 65536;
    if (s->p && c->retired_count == c->retired_room) {
        int room = 2 * c->retired_room + 8;
        void **list = realloc(c->retired, (size_t)room * sizeof *list);
        if (!list) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
        c->retired = list, c->retired_room = room;
    }
    void *fresh = NULL;
    cudaError_t e = cudaErrorMemoryAllocation;
    if (!host->alloc_must_fail(c->base)) {
        e = cudaMalloc(&fresh, (size_t)want);
        if (e == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            host->make_room(c->base);
            e = cudaMalloc(&fresh, (size_t)want);
        }
    }
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return lksi_why(a, status_of(e), "no memory for %lld bytes of scratch: %s", (long long)want,
                        cudaGetErrorString(e));
    }
    if (s->p) c->retired[c->retired_count++] = s->p;
    s->p = fresh, s->bytes = want;
    *p = fresh;
    return LKS_OK;
}

/* --- copies --- */

static lks_status cuda_upload(void *self, int stream, void *dst, const void *src, int64_t bytes)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    /* Small ones travel with a launch: the source is read at once, and nothing is ever waited for. */
    cudaError_t e = bytes <= SMALL_UPLOAD
                        ? lksi_cuda_write(c->stream[stream], dst, src, bytes)
                        : cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyHostToDevice, c->stream[stream]);
    lks_status code = check(c, e, "copy to the device");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_download(void *self, int stream, void *to, const void *src, int64_t bytes)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaMemcpyAsync(to, src, (size_t)bytes, cudaMemcpyDeviceToHost, c->stream[stream]),
                            "copy from the device");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_copy(void *self, int stream, void *dst, const void *src, int64_t bytes)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToDevice, c->stream[stream]),
                            "copy on the device");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_fill(void *self, int stream, void *dst, int byte, int64_t bytes)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaMemsetAsync(dst, byte, (size_t)bytes, c->stream[stream]), "fill on the device");
    lksi_cuda_leave(c, was);
    return code;
}

/* --- events --- */

/* The thread is its own: it makes the device current before its first call, and takes no signals. */
static void *waiter_main(void *arg)
{
    struct waiter *w = arg;
    (void)cudaSetDevice(w->device);
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        if (!w->busy) {
            pthread_cond_wait(&w->work, &w->lock);
            continue;
        }
        cudaEvent_t event = w->event->event;
        pthread_mutex_unlock(&w->lock);
        cudaError_t result = cudaEventSynchronize(event);
        pthread_mutex_lock(&w->lock);
        w->result = result;
        w->busy = 0;
        pthread_cond_broadcast(&w->ended);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int waiter_open(lksi_cuda *c)
{
    struct waiter *w = &c->waiter;
    if (w->up) return 1;
    pthread_condattr_t a;
    sigset_t all, was;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, &a);
    pthread_cond_init(&w->ended, &a);
    pthread_condattr_destroy(&a);
    w->device = c->device;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    w->up = pthread_create(&w->thread, NULL, waiter_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (w->up) return 1;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->ended);
    return 0;
}

static void waiter_close(struct waiter *w)
{
    if (!w->up) return;
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->ended);
    w->up = 0;
}

/* e goes away: nobody may be waiting for it. */
static void waiter_forget(struct waiter *w, const lksi_event *e)
{
    if (!w->up) return;
    pthread_mutex_lock(&w->lock);
    while (w->busy && w->event == e) pthread_cond_wait(&w->ended, &w->lock);
    if (w->event == e) w->event = NULL;
    pthread_mutex_unlock(&w->lock);
}

static lks_status cuda_event_create(void *self, lksi_event **e)
{
    lksi_cuda *c = self;
    *e = host->alloc(c->base, sizeof **e);
    if (!*e) return LKS_ERR_MEMORY;
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaEventCreateWithFlags(&(*e)->event, cudaEventDisableTiming), "cudaEventCreate");
    lksi_cuda_leave(c, was);
    if (code != LKS_OK) {
        host->free(c->base, *e);
        *e = NULL;
    }
    return code;
}

static void cuda_event_destroy(void *self, lksi_event *e)
{
    lksi_cuda *c = self;
    if (!e) return;
    waiter_forget(&c->waiter, e);
    int was = lksi_cuda_enter(c);
    (void)cudaEventDestroy(e->event);
    if (e->inner) (void)cudaEventDestroy(e->inner);
    for (int i = 0; i < c->graph.count; i++)
        if (c->graph.events[i] == e) c->graph.events[i] = NULL;
    lksi_cuda_leave(c, was);
    host->free(c->base, e);
}

static int gathered(const lksi_cuda *c, const lksi_event *e)
{
    return c->graph.on && e->captured == c->graph.number;
}

static lks_status cuda_event_record(void *self, lksi_event *e, int stream)
{
    lksi_cuda *c = self;
    struct graph *g = &c->graph;
    int was = lksi_cuda_enter(c), early = stream & LKSI_EVENT_EARLY;
    cudaError_t r = cudaSuccess;
    stream -= early;
    e->early = early;
    if (!g->on || !g->joined[stream]) {
        e->captured = 0;
        r = cudaEventRecord(e->event, c->stream[stream]);
    } else {
        if (!e->inner) r = cudaEventCreateWithFlags(&e->inner, cudaEventDisableTiming);
        if (r == cudaSuccess) r = cudaEventRecord(e->inner, c->stream[stream]);
        if (g->count == g->room) {
            int room = 2 * g->room + 64;
            lksi_event **list = realloc(g->events, (size_t)room * sizeof(lksi_event *));
            if (!list) r = cudaErrorMemoryAllocation;
            else g->events = list, g->room = room;
        }
        if (r == cudaSuccess && !gathered(c, e)) g->events[g->count++] = e;
        if (r == cudaSuccess) e->captured = g->number;
    }
    lks_status code = check(c, r, "cudaEventRecord");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_stream_wait(void *self, int stream, lksi_event *e)
{
    lksi_cuda *c = self;
    struct graph *g = &c->graph;
    int was = lksi_cuda_enter(c);
    cudaError_t r;
    if (gathered(c, e)) {
        r = cudaStreamWaitEvent(c->stream[stream], e->inner, 0);
        g->joined[stream] = 1;
    } else if (g->on && g->joined[stream]) {
        r = cudaStreamWaitEvent(g->gate, e->event, 0);
        g->gated = 1;
    } else {
        r = cudaStreamWaitEvent(c->stream[stream], e->event, 0);
    }
    lks_status code = check(c, r, "cudaStreamWaitEvent");
    lksi_cuda_leave(c, was);
    return code;
}

/* --- graphs --- */

static lks_status cuda_graph_begin(void *self)
{
    lksi_cuda *c = self;
    struct graph *g = &c->graph;
    if (g->on) return lksi_cuda_failed(c, LKS_ERR_STATE, "a graph is being gathered already");
    int was = lksi_cuda_enter(c);
    cudaError_t r = cudaSuccess;
    if (!g->gate) r = cudaStreamCreateWithFlags(&g->gate, cudaStreamNonBlocking);
    if (r == cudaSuccess && !g->fork) r = cudaEventCreateWithFlags(&g->fork, cudaEventDisableTiming);
    /* Relaxed: the first use of a kernel may need memory of its own. */
    if (r == cudaSuccess) r = cudaStreamBeginCapture(c->stream[LKSI_STREAM_COMPUTE], cudaStreamCaptureModeRelaxed);
    lks_status code = check(c, r, "cudaStreamBeginCapture");
    if (code == LKS_OK) {
        memset(g->joined, 0, sizeof g->joined);
        g->joined[LKSI_STREAM_COMPUTE] = g->on = 1;
        g->count = g->gated = 0;
        g->number++;
    }
    lksi_cuda_leave(c, was);
    return code;
}

/* Makes the graph's executable form, or updates the last one where only arguments have changed. */
static cudaError_t ready(struct graph *g, cudaGraph_t graph)
{
    if (g->exec) {
        cudaGraphExecUpdateResultInfo info;
        if (cudaGraphExecUpdate(g->exec, graph, &info) == cudaSuccess) return cudaSuccess;
        (void)cudaGetLastError();
        (void)cudaGraphExecDestroy(g->exec);
        g->exec = NULL;
    }
    return cudaGraphInstantiate(&g->exec, graph, 0);
}

/* kept: NULL, or where a graph goes that can be launched again. */
static lks_status finish(lksi_cuda *c, cudaGraphExec_t *kept)
{
    struct graph *g = &c->graph;
    cudaGraphExec_t exec = NULL;
    if (kept) *kept = NULL;
    if (!g->on) return LKS_OK; /* a wait ended it */
    int was = lksi_cuda_enter(c);
    cudaStream_t compute = c->stream[LKSI_STREAM_COMPUTE];
    cudaGraph_t graph = NULL;
    cudaError_t r = cudaSuccess;
    for (int i = 0; i < LKSI_STREAMS; i++) {
        if (!g->joined[i] || i == LKSI_STREAM_COMPUTE || r != cudaSuccess) continue;
        r = cudaEventRecord(g->fork, c->stream[i]);
        if (r == cudaSuccess) r = cudaStreamWaitEvent(compute, g->fork, 0);
    }
    cudaError_t ended = cudaStreamEndCapture(compute, &graph);
    g->on = 0;
    if (r == cudaSuccess) r = ended;
    if (g->gated) kept = NULL; /* it waits for work from before */
    if (r == cudaSuccess && g->gated) {
        r = cudaEventRecord(g->fork, g->gate);
        if (r == cudaSuccess) r = cudaStreamWaitEvent(compute, g->fork, 0);
    }
    if (r == cudaSuccess) r = kept ? cudaGraphInstantiate(&exec, graph, 0) : ready(g, graph);
    for (int late = 0; late < 2; late++) {
        if (late && r == cudaSuccess) r = cudaGraphLaunch(kept ? exec : g->exec, compute);
        for (int i = 0; i < g->count; i++) {
            if (!g->events[i] || late == (g->events[i]->early != 0)) continue;
            cudaError_t next = cudaEventRecord(g->events[i]->event, compute);
            if (r == cudaSuccess) r = next;
        }
    }
    g->count = 0;
    if (graph) (void)cudaGraphDestroy(graph);
    lks_status code = check(c, r, "the graph of a step");
    if (kept && code == LKS_OK) *kept = exec, g->keeps++;
    else if (exec) (void)cudaGraphExecDestroy(exec);
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_graph_end(void *self)
{
    return finish(self, NULL);
}

static lks_status cuda_graph_keep(void *self, void **kept)
{
    cudaGraphExec_t exec = NULL;
    lks_status code = finish(self, &exec);
    *kept = exec;
    return code;
}

static lks_status cuda_graph_again(void *self, void *kept)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    /* Also after a fault: other ranks wait for the reductions of this one. */
    cudaError_t e = cudaGraphLaunch(kept, c->stream[LKSI_STREAM_COMPUTE]);
    lks_status found = report(c), code = e == cudaSuccess ? found : check(c, e, "the graph of a step");
    lksi_cuda_leave(c, was);
    return code;
}

static void cuda_graph_drop(void *self, void *kept)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    (void)cudaGraphExecDestroy(kept);
    c->graph.keeps--;
    lksi_cuda_leave(c, was);
}

static void graph_close(struct graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    if (g->fork) (void)cudaEventDestroy(g->fork);
    if (g->gate) (void)cudaStreamDestroy(g->gate);
    free(g->events);
}

/* --- streams of the program --- */

static lks_status cuda_after(void *self, void *stream)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    cudaError_t r = cudaEventRecord(c->foreign, stream);
    for (int i = 0; i < LKSI_STREAMS && r == cudaSuccess; i++) r = cudaStreamWaitEvent(c->stream[i], c->foreign, 0);
    lks_status code = check(c, r, "waiting for the program's stream");
    lksi_cuda_leave(c, was);
    return code;
}

static lks_status cuda_event_for(void *self, void **event)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaEventRecord(c->foreign, c->stream[LKSI_STREAM_COMPUTE]), "cudaEventRecord");
    *event = c->foreign;
    lksi_cuda_leave(c, was);
    return code;
}

static int cuda_event_done(void *self, lksi_event *e)
{
    lksi_cuda *c = self;
    /* Somebody waits for what was not even launched. */
    if (gathered(c, e) && cuda_graph_end(c) != LKS_OK) return LKS_ERR_DEVICE;
    int was = lksi_cuda_enter(c);
    cudaError_t s = cudaEventQuery(e->event);
    int done = s == cudaSuccess ? 1 : s == cudaErrorNotReady ? 0 : check(c, s, "a queued kernel");
    lksi_cuda_leave(c, was);
    if (s == cudaErrorNotReady) (void)cudaGetLastError();
    return done == 1 && c->fault.record->kind ? LKS_ERR_ARGUMENT : done;
}

static lks_status cuda_event_wait(void *self, lksi_event *e)
{
    lksi_cuda *c = self;
    if (gathered(c, e)) TRY(cuda_graph_end(c));
    int was = lksi_cuda_enter(c);
    lks_status code = check(c, cudaEventSynchronize(e->event), "a queued kernel"), found = report(c);
    lksi_cuda_leave(c, was);
    return code != LKS_OK ? code : found;
}

static int cuda_event_wait_for(void *self, lksi_event *e, double seconds)
{
    lksi_cuda *c = self;
    struct waiter *w = &c->waiter;
    cudaError_t result = cudaErrorNotReady;
    if (gathered(c, e)) TRY(cuda_graph_end(c));
    int was = lksi_cuda_enter(c);
    if (!waiter_open(c)) {
        result = cudaEventSynchronize(e->event);
    } else {
        pthread_mutex_lock(&w->lock);
        int mine = w->busy && w->event == e;
        if (!mine) result = cudaEventQuery(e->event);
        if (result == cudaErrorNotReady) {
            (void)cudaGetLastError();
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
            until.tv_sec += ns / 1000000000;
            until.tv_nsec = ns % 1000000000;
            int late = 0;
            if (!w->busy) {
                w->event = e;
                w->busy = mine = 1;
                pthread_cond_broadcast(&w->work);
            }
            while (w->busy && !late) late = pthread_cond_timedwait(&w->ended, &w->lock, &until) != 0;
            if (!w->busy && mine) result = w->result;
        }
        pthread_mutex_unlock(&w->lock);
    }
    int code = result == cudaSuccess ? 1 : result == cudaErrorNotReady ? 0 : check(c, result, "a queued kernel");
    lks_status found = code == 1 ? report(c) : LKS_OK;
    lksi_cuda_leave(c, was);
    return found != LKS_OK ? found : code;
}

static void *cuda_host_view(void *self, void *p)
{
    (void)self, (void)p;
    return NULL;
}

/* --- kernels --- */

static int cuda_has(void *self, int op)
{
    (void)self;
    return op >= 0 && op < LKSI_OP_COUNT && lksi_cuda_kernels[op] != NULL;
}

/* Why, where the build decided it. */
static const char *lacking(int op)
{
#ifndef HAVE_CUDNN
    if (lksi_cuda_kernels[op] == NULL && op >= LKSI_OP_conv1d && op <= LKSI_OP_conv_backward_weight)
        return ": convolutions need cuDNN, which this build does not have (install it and build Lockstep again)";
#endif
    (void)op;
    return "";
}

static lks_status cuda_launch(void *self, int stream, const lksi_args *a)
{
    lksi_cuda *c = self;
    int was = lksi_cuda_enter(c);
    lks_status code = report(c);
    if (code != LKS_OK)
        lksi_why(a, code, "an earlier call failed: %s", c->failure);
    else if (!lksi_cuda_kernels[a->op])
        code = lksi_why(a, LKS_ERR_UNSUPPORTED, "there is no kernel for it%s", lacking(a->op));
    else
        code = lksi_cuda_kernels[a->op](c, c->stream[stream], a);
    lksi_cuda_leave(c, was);
    return code;
}

static const char *cuda_failure(void *self)
{
    return ((lksi_cuda *)self)->failure;
}

/* --- what kernels ask --- */

int lksi_cuda_device(const lksi_cuda *c) { return c->device; }
cudaStream_t lksi_cuda_stream(const lksi_cuda *c, int stream) { return c->stream[stream]; }
const char *lksi_cuda_failure(const lksi_cuda *c) { return c->failure; }
lksi_base *lksi_cuda_base(const lksi_cuda *c) { return c->base; }
int lksi_cuda_sms(const lksi_cuda *c) { return c->sms; }
int lksi_cuda_sm(const lksi_cuda *c) { return c->sm; }
int lksi_cuda_keeps(const lksi_cuda *c) { return c->graph.keeps; }
lksi_fault lksi_cuda_fault(const lksi_cuda *c) { return c->fault; }
void *lksi_cuda_alloc(lksi_cuda *c, int64_t bytes) { return host->alloc(c->base, bytes); }
void lksi_cuda_free(lksi_cuda *c, void *p) { host->free(c->base, p); }

const void *lksi_cuda_module(const lksi_cuda *c, const char *name, char *why)
{
    char path[LKSI_TEXT], text[LKSI_TEXT] = "nothing here loads modules";
    const lksi_plugin *p = c->module ? c->module(name, path, text) : NULL;
    snprintf(why, LKSI_WHY, "%.*s", LKSI_WHY - 1, text);
    return p ? p->service : NULL;
}

void **lksi_cuda_state(lksi_cuda *c, int slot, void (*destroy)(lksi_cuda *cuda, void *state))
{
    c->state[slot].destroy = destroy;
    return &c->state[slot].p;
}

lks_status lksi_cuda_eager(lksi_cuda *c, const lksi_args *a)
{
    lks_status code = cuda_graph_end(c);
    return code == LKS_OK ? code : lksi_why(a, code, "%.*s", LKSI_WHY - 1, c->failure);
}

int lksi_cuda_stream_index(const lksi_cuda *c, cudaStream_t stream)
{
    for (int i = 0; i < LKSI_STREAMS; i++)
        if (c->stream[i] == stream) return i;
    return LKSI_STREAM_COMPUTE;
}

/* --- the module --- */

static const lksi_backend lksi_backend_cuda = {
    .abi = LKSI_ABI,
    .size = sizeof(lksi_backend),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .threads = cuda_threads,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_done = cuda_event_done,
    .event_wait = cuda_event_wait,
    .host_view = cuda_host_view,
    .has = cuda_has,
    .launch = cuda_launch,
    .failure = cuda_failure,
    .event_wait_for = cuda_event_wait_for,
    .collectives = &lksi_cuda_collectives,
    .after = cuda_after,
    .event_for = cuda_event_for,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_keep = cuda_graph_keep,
    .graph_again = cuda_graph_again,
    .graph_drop = cuda_graph_drop,
};

static void attach(const lksi_host *h)
{
    host = h;
}

/* The one name that the module shows. */
extern const lksi_plugin lksi_plugin_cuda;
__attribute__((visibility("default"))) const lksi_plugin lksi_plugin_cuda = {
    LKSI_PLUGIN_FACTS,
    .backend = &lksi_backend_cuda,
    .attach = attach,
    .probe = cuda_probe,
};
