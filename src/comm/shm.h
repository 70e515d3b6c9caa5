/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shm.h - memory that all ranks of a communicator share when they are on one node, private to the room. The engine
 * moves heads, small values and chunks through it instead of messages; deadline, notes and texts stay the engine's.
 *
 * A rank writes its own part only, but for the count of nudges. What it writes is shown by a counter stored with
 * release and read with acquire:
 *
 *   ring    operation q has place q % RING: head, then small values; shown by the head's `sequence`. The place is free
 *           again once every rank has taken operation q - RING.
 *   places  chunk k of all operations has place k % PLACES. Each rank does three stages in order of chunks: IN copies
 *           to its place, once all are OUT of that place's former chunk; ADD combines its slice of a reduction from
 *           all places in rank order, once all are IN; OUT copies the result from the places, once all have ADDed.
 */
#ifndef LKSI_COMM_SHM_H
#define LKSI_COMM_SHM_H

#include "comm/engine.h"

#define LKSI_SHM_INLINE 3968        /* most bytes of values beside a head */
#define LKSI_SHM_CHUNK (128 << 10)  /* bytes of a place */

typedef struct lksi_shm lksi_shm;

/* *out NULL with LKS_OK: the ranks cannot share memory or LKS_SHM=0; messages it is. Uses the engine's messages, so
 * nothing waits beyond the deadline. Collective. */
lks_status lksi_shm_open(lksi_comm *c, const lksi_peer *peer, lksi_shm **out);
void lksi_shm_close(lksi_comm *c, lksi_shm *m);
/* Whether the ranks may run on fewer cores than there are ranks: waiting then takes another's time. */
int lksi_shm_crowded(const lksi_shm *m);

/* 0: some rank has not taken the operation that had the place before. */
int lksi_shm_free(lksi_shm *m, int64_t sequence);
/* Rank s's values of an operation; those of rank s + 1 are lksi_shm_stride bytes on. */
char *lksi_shm_values(const lksi_shm *m, int s, int64_t sequence);
int64_t lksi_shm_stride(const lksi_shm *m);
/* The values are in place: the head goes before them and shows them. */
void lksi_shm_show(lksi_shm *m, const lksi_head *h);
/* NULL: rank s has not come to it. */
const lksi_head *lksi_shm_head(const lksi_shm *m, int s, int64_t sequence);
/* This rank reads nothing more of the operation. */
void lksi_shm_take(lksi_shm *m, int64_t sequence);

/* Goes on with the chunks of the active requests, oldest first. Returns how many stages of chunks were done. */
int lksi_shm_move(lksi_shm *m, lksi_request *first);

/* A note is on its way to rank s; notes on their way to this rank, all told. */
void lksi_shm_nudge(lksi_shm *m, int s);
int64_t lksi_shm_nudges(const lksi_shm *m);

#endif
