/* SPDX-License-Identifier: BSD-3-Clause
 *
 * comm.h - the transport table and the communicator that rooms above use. Device buffers are reduced by a transport
 * (self, MPI, NCCL); control messages always go over MPI host buffers. Nothing here blocks in MPI: operations are
 * posted non-blocking and polled with the context's deadline.
 */
#ifndef LKSI_COMM_H
#define LKSI_COMM_H

#include "device/device.h"
#include <lockstep/comm.h>
#include <mpi.h>

typedef struct lksi_comm lksi_comm;
typedef struct lksi_request lksi_request;

/* A transport of device buffers. Requests complete in the order of the compute stream once waited for. */
typedef struct lksi_transport {
    int abi, size;
    const char *name; /* "self", "mpi", "nccl" */
    lks_status (*open)(lksi_comm *c, void **self);
    void (*close)(void *self);
    /* In place on `count` elements at device address buf. what: a lasting text for errors. f16/bf16 staged to
     * float32. The buffer must be complete in the compute stream; it must not be touched until waited for. */
    lks_status (*all_reduce)(void *self, const char *what, void *buf, int64_t count, lks_dtype dtype, int op,
                             lksi_request **rq);
    lks_status (*broadcast)(void *self, const char *what, void *buf, int64_t bytes, int root, lksi_request **rq);
    lks_status (*all_gather)(void *self, const char *what, const void *in, void *out, int64_t bytes, lksi_request **rq);
    int (*test)(void *self, lksi_request *rq);          /* 1 done, 0 not yet, negative status */
    lks_status (*wait)(void *self, lksi_request *rq);   /* later work of the compute stream comes after it; frees rq */
    void (*poll)(void *self);                           /* makes progress; cheap */
    void (*abort)(void *self);                          /* NULL: nothing to end when the communicator breaks */
} lksi_transport;

/* What is asked for; auto: NCCL if every rank has it and a device of its own. */
enum { LKSI_TRANSPORT_AUTO, LKSI_TRANSPORT_MPI, LKSI_TRANSPORT_NCCL };

struct lksi_comm {
    lksi_base *base;
    lksi_device *dev;
    MPI_Comm mpi; /* our duplicate */
    int rank, size, local_rank, local_size;
    const lksi_transport *transport;
    void *self;
    char transport_text[LKSI_WHY]; /* for people: what it is, and why */
    int64_t sequence;   /* collectives so far, for tags */
    int careful;        /* > 0: no transport starts before all ranks are known to call the same */
    int64_t step;       /* attempted step, for texts; set by optim */
    struct lksi_heads *record; /* operations from device to device are written down here; NULL */
    void *state;        /* comm.c's own */
};

/* dups `comm`. Collective. */
lks_status lksi_comm_open(lksi_base *b, MPI_Comm comm, lksi_comm **c);
/* Second half, once the device is open: chooses and opens the transport. Collective; agrees on failures by itself. */
lks_status lksi_comm_attach(lksi_comm *c, lksi_device *dev, int want);
void lksi_comm_close(lksi_comm *c);

/* Device buffers through the transport. */
lks_status lksi_comm_all_reduce(lksi_comm *c, const char *what, void *buf, int64_t count, lks_dtype dtype, int op,
                                lksi_request **rq);
lks_status lksi_comm_broadcast(lksi_comm *c, const char *what, void *buf, int64_t bytes, int root, lksi_request **rq);
/* bytes of each rank, out holds size * bytes. in may be its place in out. */
lks_status lksi_comm_all_gather(lksi_comm *c, const char *what, const void *in, void *out, int64_t bytes,
                                lksi_request **rq);
lks_status lksi_comm_wait(lksi_comm *c, lksi_request **rq); /* sets *rq NULL; NULL is fine */
void lksi_comm_poll(lksi_comm *c);

/* Host memory. Each waits (polling, with deadline). `what` and the sizes must be the same on every rank: they are
 * compared. After LKS_ERR_TIMEOUT, a mismatch or a lost message the communicator is broken: every later call fails at
 * once with the same text. Collective. */
lks_status lksi_host_reduce(lksi_comm *c, const char *what, void *buf, int64_t count, lks_dtype dtype, int op);
lks_status lksi_host_broadcast(lksi_comm *c, const char *what, void *buf, int64_t bytes, int root);
/* bytes of each rank, out holds size * bytes. */
lks_status lksi_host_gather(lksi_comm *c, const char *what, const void *in, void *out, int64_t bytes);
lks_status lksi_host_barrier(lksi_comm *c, const char *what);
/* As lks_agree. where: the call for the text. */
lks_status lksi_agree(lksi_comm *c, const char *where, lks_status mine);
/* As lks_rank_zero_call. */
lks_status lksi_rank_zero(lksi_comm *c, const char *where, lks_status (*fn)(void *user), void *user);
/* Posted now, finished later without a wait at the usual lag: one int64 MAX-reduced on the host (stop, save, error
 * control). */
lks_status lksi_host_reduce_start(lksi_comm *c, const char *what, int64_t *value, int n, int op, lksi_request **rq);
lks_status lksi_host_reduce_finish(lksi_comm *c, lksi_request **rq);

/* The operations of a captured step that go from device to device (NULL: none). A replay makes them without calling:
 * again, before the launch, tells the other ranks which they are; launched, after it, says where they end. */
typedef struct lksi_heads lksi_heads;
lksi_heads *lksi_heads_new(lksi_base *b);
void lksi_heads_clear(lksi_heads *h);
lks_status lksi_comm_again(lksi_comm *c, const lksi_heads *h);
lks_status lksi_comm_launched(lksi_comm *c, const lksi_heads *h);
int lksi_heads_failed(const lksi_heads *h); /* not all could be written down */
void lksi_heads_free(lksi_base *b, lksi_heads *h);

/* Finishes and frees lks_control's ring. */
struct lks_context;
void lksi_control_close(struct lks_context *ctx);

#endif
