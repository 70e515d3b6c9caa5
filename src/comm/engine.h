/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.h - collectives on host memory out of point-to-point messages, private to the room.
 *
 * Why not MPI's own collectives: with own messages a wait knows which rank it waits for, every operation carries a head
 * that says what it is (a mismatch is seen, not suffered), and contributions are added in rank order 0, 1, ..., n-1, so
 * that a result has the same bits on every rank, in every run and for every bucket size.
 *
 * Each operation starts with a head round. Up to LKSI_DIRECT ranks send their head to each other; beyond that heads are
 * joined along a binomial tree. Small operations carry their values with the head and are done then. The rest go in
 * chunks: rank s owns slice s of a chunk, gets the others' contributions to it, adds them, sends the sum to all.
 *
 * Where all ranks are on one node and can share memory, heads, small values and chunks go through it (shm.h) instead of
 * messages: the same heads, the same slices added in the same order, the same bits. Notes stay messages.
 */
#ifndef LKSI_COMM_ENGINE_H
#define LKSI_COMM_ENGINE_H

#include "comm/comm.h"

#define LKSI_DIRECT 8   /* most ranks that exchange heads pairwise */
#define LKSI_CHUNKS 8   /* chunks under way at once */
#define LKSI_WHAT 72
#define LKSI_STAGES 3   /* of a chunk in shared memory: shm.h */

enum { LKSI_DO_BARRIER, LKSI_DO_REDUCE, LKSI_DO_BROADCAST, LKSI_DO_GATHER };

/* Says what an operation is; the same on every rank but for `step`. 128 bytes, so that values after it are aligned. */
typedef struct lksi_head {
    int64_t sequence, step, count; /* count: elements (reduce), bytes (broadcast, gather) */
    int32_t magic, kind, dtype, op, root;
    int32_t inlined;               /* bytes of values that follow in this message */
    int32_t elsewhere;             /* the values move on another way: this is the head alone */
    int32_t spare;
    char what[LKSI_WHAT];
} lksi_head;

/* A request of the engine; device transports that stage through the host hang their part on it. */
struct lksi_request {
    lksi_request *next;  /* active list or pool */
    lksi_head head;
    char *buf;           /* host memory, in place */
    const char *in;      /* gather: this rank's block; buf holds size blocks */
    int64_t bytes;       /* reduce, broadcast: of buf; gather: of one block */
    int active;          /* in the active list */
    int ready;           /* buf is complete in host memory */
    int started, headed, done;
    /* head round */
    char *mail;          /* direct: a slot per rank; tree: a slot per rank of the subtree, then one for the result */
    MPI_Request *rq;
    int rqs, left, stage;
    char *arrived;       /* direct and shared memory: heads here, by rank */
    /* chunks */
    int64_t chunks, chunk_next, chunk_done, chunk_elements;
    int64_t stage_done[LKSI_STAGES]; /* chunks through each stage in shared memory */
    int esize;
    /* staging (mpi.c) */
    lksi_request *staged_next;
    void *device;        /* device address to upload to, NULL: none */
    char *host;
    int64_t host_bytes;
    lksi_event *event;
    void *rounded;       /* nccl.c: float32 memory in use until waited for */
};

/* Makes the head and puts the request in the active list; not ready: lksi_engine_ready follows. On failure nothing is
 * posted and the other ranks are told. */
lks_status lksi_engine_post(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root, void *buf,
                            const void *in, int64_t count, int ready, lksi_request **rq);
/* The head of an operation whose values move on another way (NCCL): done when all ranks' heads are here and agree. */
lks_status lksi_engine_announce(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root,
                                int64_t count, lksi_request **rq);
/* Everything that can move is moved. */
void lksi_engine_poll(lksi_comm *c);
/* Waits with the deadline. Does not free. patient: rank 0 is in a long call; only its death or stop counts. */
lks_status lksi_engine_wait(lksi_comm *c, lksi_request *r, int patient);
/* Gives a done request back to the pool (one under way of a broken communicator stays where it is). */
void lksi_engine_recycle(lksi_comm *c, lksi_request *r);
/* The communicator cannot go on: keeps the text, tells the other ranks if `tell`, records the error. */
lks_status lksi_engine_break(lksi_comm *c, lks_status code, int tell, const char *where, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* LKS_OK, or the error that broke the communicator, recorded again for `where`. */
lks_status lksi_engine_usable(lksi_comm *c, const char *where);
int lksi_engine_broken(lksi_comm *c);
/* Nothing came for `waited` seconds (or, with `why`, that happened): asks every rank where it is and breaks off with a
 * text that names the silent ones. LKS_OK when r got done meanwhile. */
lks_status lksi_engine_give_up(lksi_comm *c, lksi_request *r, double waited, const char *why);
/* What this rank waits for, as others are told; returns what it was. */
lksi_request *lksi_engine_waiting(lksi_comm *c, lksi_request *r);
/* Breaks off as another rank has said it did, once this one has come to operation `sequence`. */
void lksi_engine_follow(lksi_comm *c, int64_t sequence);
/* Names a node. */
uint64_t lksi_node_key(void);

lks_status lksi_engine_open(lksi_comm *c);
void lksi_engine_close(lksi_comm *c);
/* Who can be watched through /proc, after the first gather (see comm.c). */
typedef struct lksi_peer { int64_t pid, started; uint64_t node; } lksi_peer;
void lksi_engine_peers(lksi_comm *c, const lksi_peer *peer);
/* From the next operation on through shared memory, if the ranks can. Collective. */
lks_status lksi_engine_share(lksi_comm *c, const lksi_peer *peer);
int lksi_engine_shared(const lksi_comm *c);
/* Start time of a process in clock ticks, its state letter; 0 if there is none (any more). */
int64_t lksi_process(int64_t pid, char *state);

/* out[i] = in[0][i] op in[1][i] op ... in that order; MEAN divides by n. out may be one of in. f16 and bf16 are added
 * in float32 and rounded once. */
void lksi_combine(int n, const char *const *in, char *out, int64_t count, lks_dtype dtype, int op);
/* memcpy between cores: what is in their shared memory. */
void lksi_carry(char *to, const char *from, int64_t bytes);
/* The same, not by way of the cache; `to` on a cache line. */
void lksi_carry_past(char *to, const char *from, int64_t bytes);
/* Whether op is defined on dtype. */
lks_status lksi_combine_check(lksi_base *b, const char *where, lks_dtype dtype, int op);

extern const lksi_transport lksi_transport_self;
extern const lksi_transport lksi_transport_mpi;
extern const lksi_transport lksi_transport_nccl;
struct lksi_heads { int n, room, failed; lksi_head *head; };
lks_status lksi_nccl_again(void *self, const lksi_heads *h);
lks_status lksi_nccl_launched(void *self);
/* Whether all ranks can use it: c->transport and c->transport_text, why not in there. Collective. */
lks_status lksi_nccl_choose(lksi_comm *c);

#endif
