/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nccl.c - device buffers over the collectives of the backend (NCCL): queued on the comm stream, ordered with the
 * compute stream by events, no host wait. Knows the table lksi_collectives only; NCCL itself is called by the module.
 *
 * Each operation sends its head over MPI as well (a small message that nobody waits for): ranks that call different
 * things find out, and at the deadline it is known who did not come. While the host waits for the device it keeps
 * asking (idle): a broken group, another rank's last word or the deadline end it by lksi_collectives.abort.
 *
 * What NCCL does not do as the other transports do (means; smallest and largest of floating numbers, where NaN wins)
 * goes through host memory: these are not on the way of a training step.
 */
#include "comm/engine.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK 0.05     /* seconds between questions for asynchronous errors */
#define REMEMBER 1024 /* operations whose events are kept at most */

/* An operation in the stream. */
typedef struct op {
    struct op *next;
    lksi_event *begun, *ended;
    lksi_head head;
} op;

typedef struct nccl {
    lksi_comm *c;
    const lksi_collectives *ops;
    void *group;
    void *staged;           /* transport mpi */
    op *first, *last, *pool; /* in the stream, oldest first; not in use */
    int count;
    lksi_request *late;     /* waited for, but not all heads are here */
    lksi_request now;       /* the operation that this rank waits for, for texts */
    double looked, asked, stuck; /* stuck: since when the oldest operation waits for others; 0: it does not */
    op *again;              /* for all that a graph to be launched again holds */
    int gone;               /* the group was aborted, */
    double gone_at;         /* then */
    int giving_up;
} nccl;

/* --- choice ------------------------------------------------------------------------------------------------------- */

typedef struct offer {
    char key[LKSI_GROUP_KEY], text[LKSI_WHY];
    uint64_t node;
    int32_t has, spare;
} offer;

static void choose(lksi_comm *c, const offer *all)
{
    char *text = c->transport_text;
    size_t bytes = sizeof c->transport_text;
    for (int s = 0; s < c->size; s++)
        if (!all[s].has) {
            snprintf(text, bytes, "mpi, staged through host memory: rank %d has no NCCL (%.300s)", s, all[s].text);
            return;
        }
    for (int s = 0; s < c->size; s++)
        for (int r = 0; r < s; r++)
            if (all[r].node == all[s].node && memcmp(all[r].key, all[s].key, sizeof all[s].key) == 0) {
                snprintf(text, bytes,
                         "mpi, staged through host memory: ranks %d and %d share a device, which NCCL does not allow",
                         r, s);
                return;
            }
    for (int s = 1; s < c->size; s++)
        if (strcmp(all[0].text, all[s].text)) {
            snprintf(text, bytes, "mpi, staged through host memory: rank 0 has %.100s, rank %d %.100s",
                     all[0].text, s, all[s].text);
            return;
        }
    snprintf(text, bytes, "nccl (%.200s)", all[0].text);
    c->transport = &lksi_transport_nccl;
}

lks_status lksi_nccl_choose(lksi_comm *c)
{
    static const char where[] = "lks_context_create";
    const lksi_collectives *ops = c->dev->be->collectives;
    offer mine = {.node = lksi_node_key()};
    offer *all = lksi_alloc(c->base, (int64_t)sizeof *all * c->size);
    TRY(lksi_agree(c, where, all ? LKS_OK : LKS_ERR_MEMORY));
    if (ops->size != (int)sizeof *ops)
        snprintf(mine.text, sizeof mine.text, "the module is of another build");
    else if ((mine.has = ops->probe(c->dev->self, mine.text) == LKS_OK))
        ops->identity(c->dev->self, mine.key);
    lks_status st = lksi_host_gather(c, "transport", &mine, all, sizeof mine);
    if (st == LKS_OK) choose(c, all);
    lksi_free(c->base, all);
    if (st == LKS_OK && c->transport != &lksi_transport_nccl && c->rank == 0)
        lksi_log(c->base, LKS_LOG_WARNING, "gradients of GPUs go over %s", c->transport_text);
    return st;
}

/* --- failure ------------------------------------------------------------------------------------------------------ */

static void nccl_abort(void *self)
{
    nccl *t = self;
    if (t->gone || !t->group) return;
    t->gone = 1;
    t->gone_at = lksi_now();
    t->ops->abort(t->group);
}

static lks_status give_up(nccl *t, double waited, const char *why)
{
    t->giving_up = 1;
    t->now.done = 0;
    lks_status st = lksi_engine_give_up(t->c, &t->now, waited, why);
    t->giving_up = 0;
    return st;
}

/* The group has failed: who is behind it is for MPI to tell. */
static lks_status sick(nccl *t)
{
    lksi_comm *c = t->c;
    char why[LKSI_WHY + 32];
    /* Ranks that called different things know better what is wrong: their heads are on the way. */
    double until = lksi_now() + (c->base->deadline < 4 ? c->base->deadline / 4 : 1);
    t->giving_up = 1;
    for (struct timespec moment = {0, 100000}; !lksi_engine_broken(c) && lksi_now() < until; nanosleep(&moment, NULL)) {
        lksi_comm_poll(c);
        lksi_engine_follow(c, t->now.head.sequence);
    }
    t->giving_up = 0;
    if (lksi_engine_broken(c)) return lksi_engine_usable(c, t->now.head.what);
    snprintf(why, sizeof why, "NCCL failed (%.400s)", t->ops->failure(c->dev->self));
    return give_up(t, 0, why);
}

/* Until the group has taken the last call: at once but for the first ones, which make connections. */
static lks_status settle(nccl *t)
{
    lksi_comm *c = t->c;
    double start = 0;
    for (int state; (state = t->gone ? LKS_ERR_STATE : t->ops->state(t->group)) != 1;) {
        if (state < 0) return sick(t);
        double now = lksi_now();
        if (start == 0) start = now;
        lksi_request *outer = lksi_engine_waiting(c, &t->now);
        lksi_engine_poll(c);
        lksi_engine_follow(c, t->now.head.sequence);
        lksi_engine_waiting(c, outer);
        if (lksi_engine_broken(c)) return lksi_engine_usable(c, t->now.head.what);
        if (now - start > c->base->deadline) return give_up(t, now - start, NULL);
        struct timespec moment = {0, 100000};
        if (now - start > 0.002) nanosleep(&moment, NULL);
    }
    return LKS_OK;
}

/* --- operations in the stream ------------------------------------------------------------------------------------- */

static void op_drop(nccl *t, op *o)
{
    lksi_device *d = t->c->dev;
    if (o->begun) d->be->event_destroy(d->self, o->begun);
    if (o->ended) d->be->event_destroy(d->self, o->ended);
    lksi_free(t->c->base, o);
}

/* Takes what has ended off the list; keeps at most `most`. */
static void reap(nccl *t, int most)
{
    lksi_device *d = t->c->dev;
    while (t->first) {
        op *o = t->first;
        if (t->count <= most && d->be->event_done(d->self, o->ended) == 0) return;
        t->first = o->next;
        if (!t->first) t->last = NULL;
        t->count--;
        t->stuck = 0;
        o->next = t->pool;
        t->pool = o;
    }
}

static void append(nccl *t, op *o)
{
    if (t->last) t->last->next = o;
    else t->first = o;
    t->last = o;
    t->count++;
}

/* Nothing of r is left to wait for but heads. */
static void done_with(nccl *t, lksi_request *r)
{
    if (r->done || lksi_engine_broken(t->c)) {
        lksi_engine_recycle(t->c, r);
    } else {
        r->staged_next = t->late;
        t->late = r;
    }
}

static op *op_new(nccl *t)
{
    lksi_device *d = t->c->dev;
    if (t->count >= REMEMBER) reap(t, REMEMBER - 1);
    op *o = t->pool;
    if (o) {
        t->pool = o->next;
    } else {
        o = lksi_alloc(t->c->base, sizeof *o);
        if (!o) return NULL;
        if (d->be->event_create(d->self, &o->begun) != LKS_OK || d->be->event_create(d->self, &o->ended) != LKS_OK) {
            op_drop(t, o);
            return NULL;
        }
    }
    o->next = NULL;
    return o;
}

/* Called while the host waits for the device. */
static lks_status idle(void *user, double waited)
{
    nccl *t = user;
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    int down = 0;
    MPI_Finalized(&down);
    if (t->giving_up || down) return LKS_OK;
    /* The communicator broke before: nothing in the streams waits for others, and memory can still be read. */
    if (t->gone && lksi_now() - waited >= t->gone_at) return LKS_OK;
    lksi_request *outer = lksi_engine_waiting(c, &t->now);
    lks_status st = LKS_OK;
    lksi_comm_poll(c);
    lksi_engine_follow(c, t->now.head.sequence);
    double now = lksi_now();
    if (lksi_engine_broken(c)) {
        st = lksi_engine_usable(c, t->now.head.what);
    } else if (now - t->asked >= LOOK) {
        t->asked = now;
        reap(t, REMEMBER);
        op *o = t->first;
        if (o) t->now.head = o->head;
        if (!o || d->be->event_done(d->self, o->begun) == 0) {
            t->stuck = 0; /* the device works for itself */
        } else if (t->stuck == 0) {
            t->stuck = now;
        } else if (now - t->stuck > c->base->deadline) {
            st = give_up(t, now - t->stuck, NULL);
            if (st == LKS_OK) t->stuck = 0;
        }
    }
    lksi_engine_waiting(c, outer);
    return st;
}

/* --- the transport ------------------------------------------------------------------------------------------------ */

static void nccl_close(void *self)
{
    nccl *t = self;
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    /* What is under way uses memory that goes now; a rank that does not come breaks the communicator. */
    if (t->last && !lksi_engine_broken(c) && lksi_device_event_wait(d, t->last->ended) != LKS_OK &&
        !lksi_engine_broken(c))
        (void)lksi_engine_break(c, LKS_ERR_DEVICE, 1, "lks_context_destroy", "NCCL does not end");
    d->idle = NULL;
    if (lksi_engine_broken(c)) nccl_abort(t);
    if (t->group && !t->gone) t->ops->close(t->group, c->base->deadline < 10 ? c->base->deadline : 10);
    while (t->late) {
        lksi_request *r = t->late;
        t->late = r->staged_next;
        lksi_engine_recycle(c, r);
    }
    for (op *o = t->first, *next; o; o = next) {
        next = o->next;
        op_drop(t, o);
    }
    for (op *o = t->pool, *next; o; o = next) {
        next = o->next;
        op_drop(t, o);
    }
    if (t->again) op_drop(t, t->again);
    if (t->staged) lksi_transport_mpi.close(t->staged);
    lksi_free(c->base, t);
}

static lks_status open_group(nccl *t)
{
    static const char where[] = "lks_context_create";
    lksi_comm *c = t->c;
    char id[LKSI_GROUP_ID] = {0};
    lks_status st = LKS_OK;
    if (c->rank == 0 && (st = t->ops->unique_id(c->dev->self, id)) != LKS_OK)
        lksi_fail(c->base, st, where, "NCCL: %s", t->ops->failure(c->dev->self));
    TRY(lksi_agree(c, where, st));
    TRY(lksi_host_broadcast(c, "NCCL id", id, sizeof id, 0));
    t->now.head.sequence = c->sequence;
    t->now.head.kind = LKSI_DO_BARRIER;
    snprintf(t->now.head.what, sizeof t->now.head.what, "creation of the NCCL communicator");
    if (t->ops->open(c->dev->self, id, c->size, c->rank, &t->group) != LKS_OK)
        return lksi_engine_break(c, LKS_ERR_DEVICE, 1, where, "NCCL: %s", t->ops->failure(c->dev->self));
    return settle(t);
}

/* Fails on every rank or on none (the caller agrees), or the communicator is broken. */
static lks_status nccl_open(lksi_comm *c, void **self)
{
    nccl *t = lksi_alloc(c->base, sizeof *t);
    lks_status st = t ? lksi_transport_mpi.open(c, &t->staged) : LKS_ERR_MEMORY;
    if (t) {
        t->c = c;
        t->ops = c->dev->be->collectives;
        *self = t;
    }
    TRY(lksi_agree(c, "lks_context_create", st));
    TRY(open_group(t));
    c->dev->idle = idle;
    c->dev->idle_user = t;
    return LKS_OK;
}

static lksi_view flat(void *data, lks_dtype dtype, int64_t n)
{
    lksi_view v = {.dtype = dtype, .ndim = 1};
    v.shape[0] = n;
    v.stride[0] = 1;
    v.data = data;
    return v;
}

/* to = from, another dtype, on the comm stream. */
static lks_status convert(nccl *t, void *to, lks_dtype to_dtype, void *from, lks_dtype from_dtype, int64_t n)
{
    lksi_device *d = t->c->dev;
    char why[LKSI_WHY] = "";
    lksi_view in = flat(from, from_dtype, n), out = flat(to, to_dtype, n);
    lksi_args a = {.op = LKSI_OP_copy, .nin = 1, .nout = 1, .in = &in, .out = &out, .why = why};
    return d->be->launch(d->self, LKSI_STREAM_COMM, &a);
}

static lks_status go(nccl *t, int kind, int op, lks_dtype dtype, int root, const void *in, void *buf, int64_t count,
                     void *wide)
{
    lks_status st;
    switch (kind) {
    case LKSI_DO_REDUCE:
        if (!wide) {
            st = t->ops->all_reduce(t->group, buf, count, dtype, op);
        } else {
            st = convert(t, wide, LKS_F32, buf, dtype, count);
            if (st == LKS_OK) st = t->ops->all_reduce(t->group, wide, count, LKS_F32, op);
            if (st == LKS_OK) st = settle(t);
            if (st == LKS_OK) st = convert(t, buf, dtype, wide, LKS_F32, count);
            return st;
        }
        break;
    case LKSI_DO_BROADCAST: st = t->ops->broadcast(t->group, buf, count, root); break;
    default: st = t->ops->all_gather(t->group, in, buf, count);
    }
    return st == LKS_OK ? settle(t) : st;
}

/* The op of a failed operation. */
static lks_status undone(nccl *t, lksi_request *r, op *o, lks_status st)
{
    lksi_comm *c = t->c;
    const char *text = t->ops->failure(c->dev->self);
    if (o) {
        o->next = t->pool;
        t->pool = o;
    }
    if (!lksi_engine_broken(c))
        (void)lksi_engine_break(c, st, 1, r->head.what, "%s", text && *text ? text : lks_status_text(st));
    if (r->rounded) lksi_device_free(c->dev, r->rounded);
    r->rounded = NULL;
    return st;
}

static lks_status post(nccl *t, const char *what, int kind, int op_, lks_dtype dtype, int root, const void *in,
                       void *buf, int64_t count, lksi_request **rq)
{
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    int half = kind == LKSI_DO_REDUCE && (dtype == LKS_F16 || dtype == LKS_BF16);
    TRY(lksi_engine_announce(c, what, kind, op_, dtype, root, count, rq));
    lksi_request *r = *rq;
    t->now.head = r->head;
    if (c->careful) TRY(lksi_engine_wait(c, r, 0));
    if (count == 0) return LKS_OK;
    lks_status st = LKS_OK;
    op *o = op_new(t);
    if (!o) st = LKS_ERR_MEMORY;
    if (st == LKS_OK && half) st = lksi_device_alloc(d, count * (int64_t)sizeof(float), &r->rounded);
    if (st != LKS_OK) return undone(t, r, o, st);
    o->head = r->head;
    lksi_trace_address(d, buf);
    if (in) lksi_trace_address(d, in);
    st = d->be->event_record(d->self, o->begun, LKSI_STREAM_COMPUTE);
    if (st == LKS_OK) st = d->be->stream_wait(d->self, LKSI_STREAM_COMM, o->begun);
    /* Again, behind what the comm stream had to do before: from here on the operation waits for other ranks alone. */
    if (st == LKS_OK) st = d->be->event_record(d->self, o->begun, LKSI_STREAM_COMM | LKSI_EVENT_EARLY);
    if (st == LKS_OK) st = go(t, kind, op_, dtype, root, in, buf, count, r->rounded);
    if (st == LKS_OK) st = d->be->event_record(d->self, o->ended, LKSI_STREAM_COMM);
    if (st != LKS_OK) return undone(t, r, o, st);
    append(t, o);
    r->event = o->ended;
    return LKS_OK;
}

static lks_status nccl_all_reduce(void *self, const char *what, void *buf, int64_t count, lks_dtype dtype, int op_,
                                  lksi_request **rq)
{
    nccl *t = self;
    if (op_ == LKS_MEAN || ((op_ == LKS_MIN || op_ == LKS_MAX) && lks_dtype_is_float(dtype)))
        return lksi_transport_mpi.all_reduce(t->staged, what, buf, count, dtype, op_, rq);
    return post(t, what, LKSI_DO_REDUCE, op_, dtype, 0, NULL, buf, count, rq);
}

static lks_status nccl_broadcast(void *self, const char *what, void *buf, int64_t bytes, int root, lksi_request **rq)
{
    return post(self, what, LKSI_DO_BROADCAST, 0, LKS_U8, root, NULL, buf, bytes, rq);
}

static lks_status nccl_all_gather(void *self, const char *what, const void *in, void *out, int64_t bytes,
                                  lksi_request **rq)
{
    return post(self, what, LKSI_DO_GATHER, 0, LKS_U8, 0, in, out, bytes, rq);
}

static void nccl_poll(void *self)
{
    nccl *t = self;
    lksi_comm *c = t->c;
    lksi_transport_mpi.poll(t->staged);
    for (lksi_request **p = &t->late; *p;) {
        lksi_request *r = *p;
        if (!r->done) {
            p = &r->staged_next;
            continue;
        }
        *p = r->staged_next;
        lksi_engine_recycle(c, r);
    }
    if (t->gone || !t->group || t->giving_up) return;
    double now = lksi_now();
    if (now - t->looked < LOOK) return;
    t->looked = now;
    if (!lksi_engine_broken(c) && t->ops->state(t->group) < 0) (void)sick(t);
}

static int nccl_test(void *self, lksi_request *r)
{
    nccl *t = self;
    lksi_device *d = t->c->dev;
    if (!r->head.elsewhere) return lksi_transport_mpi.test(t->staged, r);
    nccl_poll(t);
    if (lksi_engine_broken(t->c)) return lksi_engine_usable(t->c, r->head.what);
    return r->event ? d->be->event_done(d->self, r->event) : r->done;
}

static lks_status nccl_wait(void *self, lksi_request *r)
{
    nccl *t = self;
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    if (!r->head.elsewhere) return lksi_transport_mpi.wait(t->staged, r);
    lks_status st = lksi_engine_usable(c, r->head.what);
    if (st == LKS_OK && r->event) {
        st = d->be->stream_wait(d->self, LKSI_STREAM_COMPUTE, r->event);
        if (st != LKS_OK) (void)lksi_fail(c->base, st, r->head.what, "the compute stream cannot be made to wait");
    }
    if (r->rounded) lksi_device_free(d, r->rounded);
    r->rounded = NULL;
    r->event = NULL;
    done_with(t, r);
    return st;
}

/* --- the operations of a graph that is launched again ------------------------------------------------------------- */

lks_status lksi_nccl_again(void *self, const lksi_heads *h)
{
    nccl *t = self;
    lksi_comm *c = t->c;
    lksi_device *d = c->dev;
    if (t->again) op_drop(t, t->again); /* that launch failed */
    if (!(t->again = op_new(t))) return LKS_ERR_MEMORY;
    for (int i = 0; i < h->n; i++) {
        const lksi_head *o = &h->head[i];
        lksi_request *r;
        TRY(lksi_engine_announce(c, o->what, o->kind, o->op, o->dtype, o->root, o->count, &r));
        t->now.head = r->head;
        if (i == 0) t->again->head = r->head;
        if (c->careful) TRY(lksi_engine_wait(c, r, 0));
        done_with(t, r);
    }
    lks_status st = d->be->event_record(d->self, t->again->begun, LKSI_STREAM_COMPUTE);
    return st == LKS_OK ? st : lksi_fail(c->base, st, t->now.head.what, "no event before the graph");
}

lks_status lksi_nccl_launched(void *self)
{
    nccl *t = self;
    lksi_device *d = t->c->dev;
    op *o = t->again;
    lks_status st = d->be->event_record(d->self, o->ended, LKSI_STREAM_COMPUTE);
    if (st != LKS_OK) return lksi_fail(d->base, st, t->now.head.what, "no event behind the graph");
    t->again = NULL;
    append(t, o);
    return LKS_OK;
}

const lksi_transport lksi_transport_nccl = {
    LKSI_ABI,       sizeof(lksi_transport), "nccl",    nccl_open, nccl_close, nccl_all_reduce,
    nccl_broadcast, nccl_all_gather,        nccl_test, nccl_wait, nccl_poll,  nccl_abort,
};
