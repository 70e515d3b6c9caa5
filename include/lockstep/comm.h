/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/comm.h - collectives on tensors and on host memory, over the context's own duplicate of the communicator.
 *
 * No blocking MPI call is made: each operation is posted non-blocking and polled until the context's deadline; then
 * every rank gets LKS_ERR_TIMEOUT with a text naming the operation and the silent ranks. Ranks must issue
 * collectives in the same order; each carries a tag of operation, dtype and count, and a mismatch is an error on
 * every rank that names both, not a hang or a truncated result. After a timeout or a mismatch the context's
 * communicator is broken: every later collective fails at once with the same text; end the job (MPI_Abort).
 *
 * Where all ranks are on one node and see each other's processes in /proc, host memory goes through a piece of memory
 * that they share (0.9 MiB a rank, no file of a name) instead of messages: same results, same errors. The environment
 * variable LKS_SHM=0, on any rank, keeps to messages; a node that does not allow it is told once at level info.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lks_reduce { LKS_SUM, LKS_MEAN, LKS_MIN, LKS_MAX, LKS_PRODUCT };

/* In place over all ranks; contributions are combined in rank order 0, 1, ... f16 and bf16 are staged to float32,
 * reduced (and divided), and rounded once. Any shape and strides but expanded dims, as many elements of the same dtype
 * on every rank. MEAN needs a floating or complex dtype; complex: SUM and MEAN, bool: MIN and MAX alone. The result has
 * the same bits on every rank; it is not recorded. Collective. */
LKS_API lks_status lks_all_reduce(lks_tensor *t, int op);
/* Overwrites t on every rank with root's: as many elements of any dtype, strides as above. Collective. */
LKS_API lks_status lks_broadcast(lks_tensor *t, int root);
/* [d0, ...] of each rank, joined along dim 0 in rank order: [sum d0, ...]; other dims and the dtype must agree. A new
 * tensor, not recorded. Collective. */
LKS_API lks_tensor *lks_all_gather(lks_tensor *t);
/* Returns when every rank has called it. Collective. */
LKS_API lks_status lks_barrier(lks_context *ctx);

/* Reduces n int64 values / n doubles in host memory in place (SUM, MIN, MAX). Collective. */
LKS_API lks_status lks_reduce_i64(lks_context *ctx, int64_t *value, int n, int op);
LKS_API lks_status lks_reduce_f64(lks_context *ctx, double *value, int n, int op);
/* Copies `bytes` of root's host memory to every rank. Collective. */
LKS_API lks_status lks_broadcast_bytes(lks_context *ctx, void *data, int64_t bytes, int root);

/* Posts `mine` and gives in *all the largest value that any rank posted `lag` calls ago (0 before that): agreement on
 * stop, save and errors that a training loop makes once a step and that waits for nothing current. 0 <= lag <= 7,
 * the same on every rank and in every call. Collective. */
LKS_API lks_status lks_control(lks_context *ctx, int64_t mine, int lag, int64_t *all);

/* MAX(code, rank) over `mine`: LKS_OK if every rank passes LKS_OK; else every rank gets an error: the failing one its
 * own code, the others LKS_ERR_PEER_FAILED with the lowest failing rank and its text. Collective. */
LKS_API lks_status lks_agree(lks_context *ctx, lks_status mine);
/* Runs fn on rank 0, on the calling thread, once all ranks are here. Its length does not count toward the deadline:
 * ranks on the same node watch that rank 0's process is there and not stopped, others wait. fn may call MPI, but no
 * collective of this context. Its failure is every rank's (lks_agree). Collective. */
typedef lks_status (*lks_rank_zero_fn)(void *user);
LKS_API lks_status lks_rank_zero_call(lks_context *ctx, lks_rank_zero_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
