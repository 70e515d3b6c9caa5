/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.h - what a backend provides (struct lksi_backend) and the layer over it that all rooms use: caching pool,
 * copies, events, launches. Device memory is an address that only the backend may dereference.
 */
#ifndef LKSI_DEVICE_H
#define LKSI_DEVICE_H

#include "base/base.h"
#include "table/table.h"

enum { LKSI_STREAM_COMPUTE, LKSI_STREAM_COMM, LKSI_STREAM_COPY, LKSI_STREAMS };

typedef struct lksi_event lksi_event; /* a place in a stream */
/* Added to the stream of event_record (devices with graphs): in a graph, for the host, the event is the graph's start
 * and not its end. */
#define LKSI_EVENT_EARLY 16

struct lksi_plugin;
typedef struct lksi_device_options {
    int threads, local_rank, local_size;
    /* Loads a module that a backend needs for some rows; NULL, with LKSI_TEXT bytes of why. Any thread. */
    const struct lksi_plugin *(*module)(const char *name, char *path, char *why);
} lksi_device_options;

/* Collectives between the devices of several ranks, without the host (NCCL). They are queued on the comm stream, in
 * place where in and out are the same. After each call `state` is asked until it is not 0: only then is the work in
 * the stream. `device` is the backend's self; nothing waits but what says so. */
#define LKSI_GROUP_ID 128
#define LKSI_GROUP_KEY 64
typedef struct lksi_collectives {
    int size; /* of this struct */
    /* LKS_OK and what it is ("NCCL 2.28.3"), or why there is none. LKSI_WHY bytes. */
    lks_status (*probe)(void *device, char *text);
    /* LKSI_GROUP_KEY bytes that no other device of this node has. */
    void (*identity)(void *device, char *key);
    lks_status (*unique_id)(void *device, char *id); /* LKSI_GROUP_ID bytes, from one rank to all */
    lks_status (*open)(void *device, const char *id, int size, int rank, void **group); /* begins; see state */
    int (*state)(void *group); /* 1 done, 0 not yet, negative status: the group is broken */
    lks_status (*all_reduce)(void *group, void *buf, int64_t count, lks_dtype dtype, int op); /* no mean */
    lks_status (*broadcast)(void *group, void *buf, int64_t bytes, int root);
    lks_status (*all_gather)(void *group, const void *in, void *out, int64_t bytes);
    /* What is queued ends with anything as its result; later calls fail. From any thread, once. */
    void (*abort)(void *group);
    void (*close)(void *group, double seconds); /* waits so long for the other ranks; NULL is fine */
    const char *(*failure)(void *device);       /* text of the last failure */
} lksi_collectives;

/* A backend: one const table. size = sizeof the struct it was compiled with, abi = LKSI_ABI. */
#define LKSI_ABI 2
typedef struct lksi_backend {
    int abi, size;
    const char *name; /* "cpu" */
    lks_status (*open)(lksi_base *b, const lksi_device_options *o, void **self);
    void (*close)(void *self);
    const char *(*describe)(void *self);
    int (*threads)(void *self);
    /* Raw device memory, 64-byte aligned (4 KiB and on huge pages from 2 MiB). Slow; the pool calls it. */
    lks_status (*alloc)(void *self, int64_t bytes, void **p);
    void (*free)(void *self, void *p, int64_t bytes); /* waits for queued work that may use it */
    /* Host memory for fast copies (pinned where that means something). */
    lks_status (*host_alloc)(void *self, int64_t bytes, void **p);
    void (*host_free)(void *self, void *p, int64_t bytes);
    /* Queued on a stream; host memory must stay until an event after it is done, except that small (<= 4 KiB) uploads
     * copy their source at once. */
    lks_status (*upload)(void *self, int stream, void *dst, const void *host, int64_t bytes);
    lks_status (*download)(void *self, int stream, void *host, const void *src, int64_t bytes);
    lks_status (*copy)(void *self, int stream, void *dst, const void *src, int64_t bytes);
    lks_status (*fill)(void *self, int stream, void *dst, int byte, int64_t bytes);
    lks_status (*event_create)(void *self, lksi_event **e);
    void (*event_destroy)(void *self, lksi_event *e);
    lks_status (*event_record)(void *self, lksi_event *e, int stream);
    lks_status (*stream_wait)(void *self, int stream, lksi_event *e); /* later work in stream waits; host does not */
    int (*event_done)(void *self, lksi_event *e);                     /* 1 done, 0 not, negative status: failed */
    lks_status (*event_wait)(void *self, lksi_event *e);              /* host waits */
    /* Host address of device memory where the host may touch it (CPU), else NULL. The device must be idle on it. */
    void *(*host_view)(void *self, void *p);
    /* 1 if it has a kernel for op. Queues it; args and what they point to may be reused when it returns. */
    int (*has)(void *self, int op);
    lks_status (*launch)(void *self, int stream, const lksi_args *a);
    /* Text of the last failure other than that of a launch (those have a->why); "" if there is none. A queued kernel
     * that fails later is reported once, by the next launch or event_wait; event_done shows it until then. */
    const char *(*failure)(void *self);
    /* May be NULL. As event_wait, but for `seconds` at most: 1 done, 0 not yet, negative status. The wait goes on
     * behind the scenes, so that asking again costs nothing. */
    int (*event_wait_for)(void *self, lksi_event *e, double seconds);
    const lksi_collectives *collectives; /* may be NULL */
    /* Streams of the program (may be NULL: there are none). Later work of the compute stream comes after what `stream`
     * was given; *event, the backend's own kind, is done with the compute stream's work so far, until the next call. */
    lks_status (*after)(void *self, void *stream);
    lks_status (*event_for)(void *self, void **event);
    /* May be NULL. Between these what the streams are given is gathered, then launched as one graph; a wait in between
     * launches what there is and ends the gathering. */
    lks_status (*graph_begin)(void *self);
    lks_status (*graph_end)(void *self);
    /* As graph_end, and keeps what can be launched again: *kept is NULL where that is not all of the step (a wait ended
     * it, or it waited for work from before). again launches it, and reports a fault of an earlier kernel. */
    lks_status (*graph_keep)(void *self, void **kept);
    lks_status (*graph_again)(void *self, void *kept);
    void (*graph_drop)(void *self, void *kept);
} lksi_backend;

/* Backends that are compiled in. */
extern const lksi_backend lksi_backend_cpu;
extern const lksi_backend lksi_backend_far;

typedef struct lksi_device {
    const lksi_backend *be;
    void *self;
    lksi_base *base;
    struct lksi_pool *pool;
    int64_t used, peak, held; /* bytes: handed out, highest, taken from the backend */
    int64_t waits;            /* host waits for events so far */
    int64_t launches;
    /* Called now and then while the host waits for the device, which may itself wait for another rank; an error, which
     * is recorded, ends the wait. NULL: nobody. */
    lks_status (*idle)(void *user, double waited);
    void *idle_user;
    struct lksi_trace *trace; /* of the step being made; NULL */
    int64_t drops;            /* blocks freed that a traced step had used from outside */
} lksi_device;

lks_status lksi_device_open(lksi_base *b, const lksi_backend *be, const lksi_device_options *o, lksi_device **d);
void lksi_device_close(lksi_device *d); /* NULL is fine */

/* Memory from the caching pool, 64-byte aligned, ordered by the compute stream: freed memory may be handed out at
 * once to later work of that stream. bytes 0 gives a valid address. On failure LKS_ERR_MEMORY names the request, what
 * is used, the peak; the pool first returns its idle blocks to the backend and tries again. */
lks_status lksi_device_alloc(lksi_device *d, int64_t bytes, void **p);
void lksi_device_free(lksi_device *d, void *p);
/* Gives idle blocks back. */
void lksi_device_trim(lksi_device *d);
/* The same, and if there were none, those that graphs keep between their launches. */
void lksi_device_make_room(lksi_device *d);

/* Host-blocking copies on the compute stream (they count as waits) and queued ones. */
lks_status lksi_device_read(lksi_device *d, void *host, const void *src, int64_t bytes);
lks_status lksi_device_write(lksi_device *d, void *dst, const void *host, int64_t bytes); /* host reusable at return; up
                                                                                        * to 4 KiB do not wait */
lks_status lksi_device_copy(lksi_device *d, void *dst, const void *src, int64_t bytes);
lks_status lksi_device_zero(lksi_device *d, void *dst, int64_t bytes);
lks_status lksi_device_event_wait(lksi_device *d, lksi_event *e); /* counted in waits */
lks_status lksi_device_synchronize(lksi_device *d);
/* Launches on the compute stream; a failure of the kernel is recorded with the row's name and a->why. */
lks_status lksi_device_launch(lksi_device *d, lksi_args *a);

/* --- steps that are repeated without their calls (ctx/graph.c) ---------------------------------------------------- */

/* Memory of one graph: what is handed out while a trace with it is open goes back to it when freed, and to nobody else,
 * so that a replay writes over nothing. */
typedef struct lksi_heap lksi_heap;
lks_status lksi_heap_new(lksi_device *d, lksi_heap **h);
void lksi_heap_free(lksi_device *d, lksi_heap *h); /* its blocks, also those in use, are as others again */
int lksi_heap_lost(const lksi_heap *h);            /* 1: given up because memory was short */

/* What a step asks of the device, as one number: rows, shapes, numbers, what small uploads hold, addresses of what was
 * there before the step. Two steps with the same number do the same from the same memory. */
typedef struct lksi_trace {
    uint64_t hash;
    const char *once; /* why the step cannot be repeated without its calls; NULL */
    int capturing;    /* what is asked for is gathered, not started */
    int64_t high;     /* bytes in use at most, beyond those at the start */
    int64_t drops;    /* at the start */
    lksi_heap *heap;
    struct lksi_range *outside; /* blocks in use at the start, by address */
    int64_t ranges, used, peak;
} lksi_trace;
lks_status lksi_trace_begin(lksi_device *d, lksi_trace *t, lksi_heap *heap);
void lksi_trace_end(lksi_device *d); /* frees what t holds */
/* Without a trace these do nothing. cut: what was gathered so far is launched, the rest of the step as without a graph.
 */
void lksi_trace_once(lksi_device *d, const char *why);
lks_status lksi_trace_cut(lksi_device *d, const char *why);
void lksi_trace_number(lksi_device *d, int64_t x);
void lksi_trace_address(lksi_device *d, const void *p);

#endif
