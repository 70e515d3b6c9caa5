/* SPDX-License-Identifier: BSD-3-Clause
 *
 * comm.c - the communicator: opening and closing, collectives on host memory, agreement. How messages move is in
 * engine.c, device buffers are the transports' (self.c, mpi.c).
 */
#include "comm/engine.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int mpi_is_down(void)
{
    int up = 0, down = 0;
    MPI_Initialized(&up);
    MPI_Finalized(&down);
    return !up || down;
}

/* Names a node: its host name and what its kernel drew at boot. Containers of one node with names of their own count as
 * nodes of their own. No MPI call, so no call that could block. */
uint64_t lksi_node_key(void)
{
    char text[512] = "";
    if (gethostname(text, 255) != 0) text[0] = 0;
    text[255] = 0;
    size_t at = strlen(text);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        at += fread(text + at, 1, sizeof text - 1 - at, f);
        fclose(f);
    }
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < at; i++) h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h;
}

/* Non-blocking duplicate, polled. On a timeout MPI may still write the handle: it stays allocated. */
static lks_status duplicate(lksi_base *b, MPI_Comm comm, MPI_Comm *dup)
{
    MPI_Comm *place = malloc(sizeof *place);
    MPI_Request rq;
    if (!place) return lksi_fail(b, LKS_ERR_MEMORY, "lks_context_create", "out of memory");
    int done = 0, rc = MPI_Comm_idup(comm, place, &rq);
    double start = lksi_now();
    for (int64_t i = 0; rc == MPI_SUCCESS && !done; i++) {
        rc = MPI_Test(&rq, &done, MPI_STATUS_IGNORE);
        if (done || rc != MPI_SUCCESS) break;
        if (i > 1000) sched_yield();
        if (i % 64 == 0 && lksi_now() - start > b->deadline)
            return lksi_fail(b, LKS_ERR_TIMEOUT, "lks_context_create",
                             "MPI_Comm_idup did not end within %.3g s: not every rank of the communicator calls "
                             "lks_context_create",
                             b->deadline);
    }
    if (rc == MPI_SUCCESS) *dup = *place;
    free(place);
    if (rc != MPI_SUCCESS) return lksi_fail(b, LKS_ERR_MPI, "lks_context_create", "MPI_Comm_idup failed (%d)", rc);
    /* Only on ours: the host's handlers stay as they are. */
    MPI_Comm_set_errhandler(*dup, MPI_ERRORS_RETURN);
    return LKS_OK;
}

static lks_status find_peers(lksi_comm *c)
{
    lksi_peer mine = {getpid(), 0, lksi_node_key()};
    char state;
    mine.started = lksi_process(mine.pid, &state);
    lksi_peer *all = lksi_alloc(c->base, (int64_t)sizeof *all * c->size);
    if (!all)
        return lksi_engine_break(c, LKS_ERR_MEMORY, 1, "lks_context_create", "out of memory");
    lks_status st = lksi_host_gather(c, "lks_context_create", &mine, all, sizeof mine);
    if (st == LKS_OK) {
        for (int s = 0; s < c->size; s++) {
            if (all[s].node != mine.node) continue;
            if (s < c->rank) c->local_rank++;
            c->local_size++;
            /* Another pid namespace: that number means something else here. */
            if (lksi_process(all[s].pid, &state) != all[s].started || mine.started == 0) all[s].pid = 0;
        }
        lksi_engine_peers(c, all);
        st = lksi_engine_share(c, all);
    }
    lksi_free(c->base, all);
    return st;
}

lks_status lksi_comm_open(lksi_base *b, MPI_Comm comm, lksi_comm **out)
{
    *out = NULL;
    int inter = 0;
    if (mpi_is_down())
        return lksi_fail(b, LKS_ERR_STATE, "lks_context_create", "MPI is not initialised or already finalised");
    if (comm == MPI_COMM_NULL)
        return lksi_fail(b, LKS_ERR_ARGUMENT, "lks_context_create", "the communicator is MPI_COMM_NULL");
    if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
        return lksi_fail(b, LKS_ERR_ARGUMENT, "lks_context_create", "an intercommunicator cannot be used");
    lksi_comm *c = lksi_alloc(b, sizeof *c);
    if (!c) return LKS_ERR_MEMORY;
    c->base = b;
    c->mpi = MPI_COMM_NULL;
    lks_status st = duplicate(b, comm, &c->mpi);
    if (st == LKS_OK) {
        MPI_Comm_rank(c->mpi, &c->rank);
        MPI_Comm_size(c->mpi, &c->size);
        b->rank = c->rank;
        b->size = c->size;
        c->transport = c->size == 1 ? &lksi_transport_self : &lksi_transport_mpi;
        st = lksi_engine_open(c);
        if (st == LKS_OK) st = find_peers(c);
    }
    if (st != LKS_OK) {
        lksi_comm_close(c);
        return st;
    }
    *out = c;
    return LKS_OK;
}

lks_status lksi_comm_attach(lksi_comm *c, lksi_device *dev, int want)
{
    static const char where[] = "lks_context_create";
    const lksi_backend *be = dev->be;
    c->dev = dev;
    if (c->size == 1) {
        snprintf(c->transport_text, sizeof c->transport_text, "none: one rank");
    } else if (be->collectives && want != LKSI_TRANSPORT_MPI) {
        TRY(lksi_nccl_choose(c));
        if (want == LKSI_TRANSPORT_NCCL && c->transport != &lksi_transport_nccl)
            return lksi_fail(c->base, LKS_ERR_UNSUPPORTED, where, "NCCL was asked for: %s", c->transport_text);
    } else {
        if (want == LKSI_TRANSPORT_NCCL)
            return lksi_fail(c->base, LKS_ERR_UNSUPPORTED, where,
                             "NCCL was asked for, but device %s does not have it (transport auto or mpi)", be->name);
        snprintf(c->transport_text, sizeof c->transport_text, "mpi%s%s",
                 lksi_engine_shared(c) ? ", by memory that the node's ranks share" : "",
                 be->collectives ? ", staged through host memory, as was asked for" : "");
    }
    return lksi_agree(c, where, c->transport->open(c, &c->self));
}

void lksi_comm_close(lksi_comm *c)
{
    if (!c) return;
    int broken = c->state && lksi_engine_broken(c);
    if (c->self) c->transport->close(c->self);
    lksi_engine_close(c);
    /* Collective, though no implementation waits in it; with a rank that hangs it is better left out. */
    if (c->mpi != MPI_COMM_NULL && !broken && !mpi_is_down()) MPI_Comm_free(&c->mpi);
    lksi_free(c->base, c);
}

/* What failed to start is not for the caller to wait for: the communicator is broken and keeps it. */
static lks_status posted(lks_status st, lksi_request **rq)
{
    if (st != LKS_OK) *rq = NULL;
    return st;
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

static lks_status run(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root, void *buf,
                      const void *in, int64_t count, int patient)
{
    lksi_request *r;
    TRY(lksi_engine_post(c, what, kind, op, dtype, root, buf, in, count, 1, &r));
    lks_status st = lksi_engine_wait(c, r, patient);
    lksi_engine_recycle(c, r);
    return st;
}

lks_status lksi_host_reduce(lksi_comm *c, const char *what, void *buf, int64_t count, lks_dtype dtype, int op)
{
    TRY(lksi_combine_check(c->base, what, dtype, op));
    if (c->size == 1) return LKS_OK;
    return run(c, what, LKSI_DO_REDUCE, op, dtype, 0, buf, NULL, count, 0);
}

lks_status lksi_host_broadcast(lksi_comm *c, const char *what, void *buf, int64_t bytes, int root)
{
    if (root < 0 || root >= c->size)
        return lksi_fail(c->base, LKS_ERR_ARGUMENT, what, "root %d of %d ranks", root, c->size);
    if (c->size == 1) return LKS_OK;
    return run(c, what, LKSI_DO_BROADCAST, 0, LKS_U8, root, buf, NULL, bytes, 0);
}

lks_status lksi_host_gather(lksi_comm *c, const char *what, const void *in, void *out, int64_t bytes)
{
    if (c->size == 1) {
        if (bytes) memmove(out, in, (size_t)bytes);
        return LKS_OK;
    }
    return run(c, what, LKSI_DO_GATHER, 0, LKS_U8, 0, out, in, bytes, 0);
}

lks_status lksi_host_barrier(lksi_comm *c, const char *what)
{
    if (c->size == 1) return LKS_OK;
    return run(c, what, LKSI_DO_BARRIER, 0, LKS_U8, 0, NULL, NULL, 0, 0);
}

lks_status lksi_host_reduce_start(lksi_comm *c, const char *what, int64_t *value, int n, int op, lksi_request **rq)
{
    *rq = NULL;
    TRY(lksi_combine_check(c->base, what, LKS_I64, op));
    if (c->size == 1) return LKS_OK;
    return posted(lksi_engine_post(c, what, LKSI_DO_REDUCE, op, LKS_I64, 0, value, NULL, n, 1, rq), rq);
}

lks_status lksi_host_reduce_finish(lksi_comm *c, lksi_request **rq)
{
    lksi_request *r = *rq;
    *rq = NULL;
    if (!r) return LKS_OK;
    lks_status st = lksi_engine_wait(c, r, 0);
    lksi_engine_recycle(c, r);
    return st;
}

/* --- agreement ---------------------------------------------------------------------------------------------------- */

typedef struct failure {
    int32_t code, spare;
    char text[LKSI_TEXT];
} failure;

static lks_status agree(lksi_comm *c, const char *where, lks_status mine, int patient)
{
    lksi_base *b = c->base;
    if (mine != LKS_OK && b->code == LKS_OK) lksi_fail(b, mine, where, "%s", lks_status_text(mine));
    if (c->size == 1) return mine;
    int64_t worst = mine == LKS_OK ? 0 : INT64_MAX - c->rank; /* the largest is the lowest failing rank */
    TRY(run(c, where, LKSI_DO_REDUCE, LKS_MAX, LKS_I64, 0, &worst, NULL, 1, patient));
    if (worst == 0) return LKS_OK;
    int who = (int)(INT64_MAX - worst);
    failure f = {0};
    if (who == c->rank) {
        f.code = mine;
        snprintf(f.text, sizeof f.text, "%s", b->text);
    }
    TRY(lksi_host_broadcast(c, where, &f, sizeof f, who));
    if (mine != LKS_OK) return mine;
    f.text[sizeof f.text - 1] = 0;
    return lksi_fail(b, LKS_ERR_PEER_FAILED, where, "%s (%s)", f.text, lks_status_name(f.code));
}

lks_status lksi_agree(lksi_comm *c, const char *where, lks_status mine)
{
    return agree(c, where, mine, 0);
}

lks_status lksi_rank_zero(lksi_comm *c, const char *where, lks_status (*fn)(void *user), void *user)
{
    TRY(lksi_host_barrier(c, where)); /* all are here: from now on rank 0 may take its time */
    lks_status mine = c->rank == 0 ? lksi_said(c->base, fn(user), where, "the function of rank 0") : LKS_OK;
    return agree(c, where, mine, c->rank != 0);
}

/* --- operations of steps that are repeated ------------------------------------------------------------------------ */

lksi_heads *lksi_heads_new(lksi_base *b)
{
    return lksi_alloc(b, sizeof(lksi_heads));
}

void lksi_heads_clear(lksi_heads *h)
{
    h->n = h->failed = 0;
}

int lksi_heads_failed(const lksi_heads *h) { return h->failed; }

void lksi_heads_free(lksi_base *b, lksi_heads *h)
{
    if (!h) return;
    lksi_free(b, h->head);
    lksi_free(b, h);
}

lks_status lksi_comm_again(lksi_comm *c, const lksi_heads *h)
{
    return h->n ? lksi_nccl_again(c->self, h) : LKS_OK;
}

lks_status lksi_comm_launched(lksi_comm *c, const lksi_heads *h)
{
    return h->n ? lksi_nccl_launched(c->self) : LKS_OK;
}

/* --- device memory ------------------------------------------------------------------------------------------------ */

static lks_status attached(lksi_comm *c, const char *what)
{
    if (!c->dev) return lksi_fail(c->base, LKS_ERR_INTERNAL, what, "no device is attached to the communicator");
    return lksi_engine_usable(c, what);
}

lks_status lksi_comm_all_reduce(lksi_comm *c, const char *what, void *buf, int64_t count, lks_dtype dtype, int op,
                                lksi_request **rq)
{
    *rq = NULL;
    TRY(lksi_combine_check(c->base, what, dtype, op));
    TRY(attached(c, what));
    return posted(c->transport->all_reduce(c->self, what, buf, count, dtype, op, rq), rq);
}

lks_status lksi_comm_broadcast(lksi_comm *c, const char *what, void *buf, int64_t bytes, int root, lksi_request **rq)
{
    *rq = NULL;
    if (root < 0 || root >= c->size)
        return lksi_fail(c->base, LKS_ERR_ARGUMENT, what, "root %d of %d ranks", root, c->size);
    TRY(attached(c, what));
    return posted(c->transport->broadcast(c->self, what, buf, bytes, root, rq), rq);
}

lks_status lksi_comm_all_gather(lksi_comm *c, const char *what, const void *in, void *out, int64_t bytes,
                                lksi_request **rq)
{
    *rq = NULL;
    TRY(attached(c, what));
    return posted(c->transport->all_gather(c->self, what, in, out, bytes, rq), rq);
}

lks_status lksi_comm_wait(lksi_comm *c, lksi_request **rq)
{
    lksi_request *r = *rq;
    *rq = NULL;
    return r ? c->transport->wait(c->self, r) : LKS_OK;
}

void lksi_comm_poll(lksi_comm *c)
{
    if (c->self) c->transport->poll(c->self);
    else lksi_engine_poll(c);
}
