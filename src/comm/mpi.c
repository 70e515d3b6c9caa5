/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi.c - device buffers over the engine. Where the host may touch device memory (CPU) they are reduced in place; else
 * they are staged: downloaded on the comm stream, moved when the download is done, uploaded on the comm stream. A
 * device address is never handed to MPI.
 */
#include "comm/engine.h"
#include <string.h>

/* A block of host staging memory: in use, free, or free once an event has passed. */
typedef struct stage {
    struct stage *next;
    char *p;
    int64_t bytes;
    lksi_event *event; /* the upload that still reads it */
    int busy;          /* 1: held by a request; 2: until the event */
} stage;

typedef struct mpi_transport {
    lksi_comm *c;
    stage *stages;
    lksi_request *staged; /* requests not waited for yet that stage, newest first */
} mpi_transport;

static lks_status mpi_open(lksi_comm *c, void **self)
{
    mpi_transport *t = lksi_alloc(c->base, sizeof *t);
    if (!t) return LKS_ERR_MEMORY;
    t->c = c;
    *self = t;
    return LKS_OK;
}

static void mpi_close(void *self)
{
    mpi_transport *t = self;
    lksi_device *d = t->c->dev;
    int lost = lksi_engine_broken(t->c);
    while (t->stages) {
        stage *s = t->stages;
        t->stages = s->next;
        if (s->busy == 2) (void)d->be->event_wait(d->self, s->event);
        d->be->event_destroy(d->self, s->event);
        /* Of a broken communicator MPI may still read or write it. */
        if (s->busy != 1 || !lost) d->be->host_free(d->self, s->p, s->bytes);
        lksi_free(t->c->base, s);
    }
    lksi_free(t->c->base, t);
}

static stage *stage_take(mpi_transport *t, const char *what, int64_t bytes)
{
    lksi_device *d = t->c->dev;
    for (stage *s = t->stages; s; s = s->next) {
        if (s->busy == 2 && d->be->event_done(d->self, s->event) != 0) s->busy = 0;
        if (s->busy == 0 && s->bytes >= bytes && s->bytes / 4 <= bytes) {
            s->busy = 1;
            return s;
        }
    }
    stage *s = lksi_alloc(t->c->base, sizeof *s);
    if (!s) return NULL;
    s->bytes = bytes;
    if (lksi_alloc_must_fail(t->c->base) || d->be->host_alloc(d->self, bytes, (void **)&s->p) != LKS_OK) {
        lksi_fail(t->c->base, LKS_ERR_MEMORY, what, "no host memory to stage %lld bytes", (long long)bytes);
        lksi_free(t->c->base, s);
        return NULL;
    }
    if (d->be->event_create(d->self, &s->event) != LKS_OK) {
        d->be->host_free(d->self, s->p, bytes);
        lksi_free(t->c->base, s);
        return NULL;
    }
    s->busy = 1;
    s->next = t->stages;
    t->stages = s;
    return s;
}

/* Makes the comm stream wait for what the compute stream has been given. */
static lks_status after_compute(lksi_device *d, lksi_event *e)
{
    TRY(d->be->event_record(d->self, e, LKSI_STREAM_COMPUTE));
    return d->be->stream_wait(d->self, LKSI_STREAM_COMM, e);
}

static lks_status post(mpi_transport *t, const char *what, int kind, int op, lks_dtype dtype, int root,
                       const void *device_in, void *device, int64_t count, lksi_request **rq)
{
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    int gather = kind == LKSI_DO_GATHER;
    int64_t bytes = kind == LKSI_DO_REDUCE ? count * lks_dtype_size(dtype) : count;
    if (bytes == 0) return lksi_engine_post(c, what, kind, op, dtype, root, NULL, NULL, 0, 1, rq);
    void *view = d->be->host_view(d->self, device);
    const void *view_in = gather ? d->be->host_view(d->self, (void *)device_in) : NULL;
    if (view && (!gather || view_in)) {
        /* Such a device works in the calling thread: buf is complete. */
        return lksi_engine_post(c, what, kind, op, dtype, root, view, view_in, count, 1, rq);
    }
    /* Own block of a gather is staged behind the joined ones. */
    int64_t joined = gather ? bytes * c->size : bytes;
    stage *s = stage_take(t, what, joined + (gather ? bytes : 0));
    if (!s) return lksi_engine_break(c, LKS_ERR_MEMORY, 1, what, "cannot stage %lld bytes", (long long)bytes);
    char *own = gather ? s->p + joined : s->p;
    int sends = kind != LKSI_DO_BROADCAST || c->rank == root;
    /* Also before an upload: what the compute stream was given earlier may still write there. */
    lks_status st = after_compute(d, s->event);
    if (sends) {
        if (st == LKS_OK) st = d->be->download(d->self, LKSI_STREAM_COMM, own, gather ? device_in : device, bytes);
        if (st == LKS_OK) st = d->be->event_record(d->self, s->event, LKSI_STREAM_COMM);
    }
    if (st != LKS_OK) {
        s->busy = 0;
        return lksi_engine_break(c, st, 1, what, "download for a collective failed");
    }
    st = lksi_engine_post(c, what, kind, op, dtype, root, s->p, gather ? own : NULL, count, !sends, rq);
    lksi_request *r = *rq;
    if (!r) {
        s->busy = 2;
        return st;
    }
    r->device = device;
    r->host = s->p;
    r->host_bytes = joined;
    r->event = s->event;
    r->staged_next = t->staged;
    t->staged = r;
    return st;
}

static lks_status mpi_all_reduce(void *self, const char *what, void *buf, int64_t count, lks_dtype dtype, int op,
                                 lksi_request **rq)
{
    return post(self, what, LKSI_DO_REDUCE, op, dtype, 0, NULL, buf, count, rq);
}

static lks_status mpi_broadcast(void *self, const char *what, void *buf, int64_t bytes, int root, lksi_request **rq)
{
    return post(self, what, LKSI_DO_BROADCAST, 0, LKS_U8, root, NULL, buf, bytes, rq);
}

static lks_status mpi_all_gather(void *self, const char *what, const void *in, void *out, int64_t bytes,
                                 lksi_request **rq)
{
    return post(self, what, LKSI_DO_GATHER, 0, LKS_U8, 0, in, out, bytes, rq);
}

/* Downloads that ended make their request ready. */
static void look_after(mpi_transport *t)
{
    lksi_device *d = t->c->dev;
    for (lksi_request *r = t->staged; r; r = r->staged_next) {
        if (r->ready) continue;
        int done = d->be->event_done(d->self, r->event);
        if (done == 0) continue;
        if (done < 0) {
            (void)lksi_engine_break(t->c, LKS_ERR_DEVICE, 1, r->head.what, "download for a collective failed");
            return;
        }
        if (r->head.kind == LKSI_DO_GATHER && !r->head.inlined)
            memcpy(r->buf + t->c->rank * r->bytes, r->in, (size_t)r->bytes);
        r->ready = 1;
    }
}

static void mpi_poll(void *self)
{
    mpi_transport *t = self;
    if (t->staged) look_after(t);
    lksi_engine_poll(t->c);
}

static int mpi_test(void *self, lksi_request *r)
{
    mpi_transport *t = self;
    mpi_poll(t);
    if (r->done) return 1;
    return lksi_engine_broken(t->c) ? lksi_engine_usable(t->c, r->head.what) : 0;
}

static lks_status mpi_wait(void *self, lksi_request *r)
{
    mpi_transport *t = self;
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    lks_status st = lksi_engine_wait(c, r, 0);
    if (r->host) {
        lksi_request **at = &t->staged;
        while (*at && *at != r) at = &(*at)->staged_next;
        if (*at) *at = r->staged_next;
        stage *s = t->stages;
        while (s && s->p != r->host) s = s->next;
        if (st == LKS_OK && (r->head.kind != LKSI_DO_BROADCAST || c->rank != r->head.root)) {
            st = d->be->upload(d->self, LKSI_STREAM_COMM, r->device, r->host, r->host_bytes);
            if (st == LKS_OK) st = d->be->event_record(d->self, r->event, LKSI_STREAM_COMM);
            if (st == LKS_OK) st = d->be->stream_wait(d->self, LKSI_STREAM_COMPUTE, r->event);
            if (st != LKS_OK) (void)lksi_fail(c->base, st, r->head.what, "upload after a collective failed");
        }
        if (s && r->done) s->busy = 2;
        r->host = NULL;
        r->event = NULL;
    }
    lksi_engine_recycle(c, r);
    return st;
}

const lksi_transport lksi_transport_mpi = {
    LKSI_ABI,      sizeof(lksi_transport), "mpi",    mpi_open, mpi_close, mpi_all_reduce,
    mpi_broadcast, mpi_all_gather,         mpi_test, mpi_wait, mpi_poll,
    NULL,
};
