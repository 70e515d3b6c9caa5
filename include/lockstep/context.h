/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/context.h - a context is one rank's place in a training job: a duplicate of the caller's communicator, one
 * device, the first error, the open scopes, the random state. There is no global state besides it.
 */
#ifndef LOCKSTEP_CONTEXT_H
#define LOCKSTEP_CONTEXT_H

#include <lockstep/base.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lks_log_level { LKS_LOG_DEBUG, LKS_LOG_INFO, LKS_LOG_WARNING, LKS_LOG_ERROR };
/* Receives one line without newline. Called on the thread that uses the context, never from another. */
typedef void (*lks_log_fn)(void *user, int level, const char *line);

/* Options of a context, all with defaults; NULL only when out of memory. Free with lks_config_free (NULL is fine).
 * Local. */
LKS_API lks_config *lks_config_new(void);
LKS_API void lks_config_free(lks_config *config);
/* "cpu" (default), "cuda", or "auto" (cuda if every rank has one, else cpu; ranks that differ are an error). A device
 * that is asked for and missing is an error, never a fallback. "far" is the test device: CPU kernels behind an
 * asynchronous queue and memory that the host cannot touch. Local. */
LKS_API lks_status lks_config_set_device(lks_config *config, const char *device);
/* How device memory of several ranks is reduced: "auto" (default; NCCL on the device cuda if every rank has it and a
 * device of its own, else MPI on host memory, to which device memory is copied; lks_transport and a warning say why),
 * "mpi", "nccl" (not possible: LKS_ERR_UNSUPPORTED). A device address is never given to MPI. Must be the same on every
 * rank. Local. */
LKS_API lks_status lks_config_set_transport(lks_config *config, const char *transport);
/* Threads of the CPU backend, >= 1; 0 (default) = OMP_NUM_THREADS if set, else cores allowed / ranks on the node.
 * Local. */
LKS_API lks_status lks_config_set_threads(lks_config *config, int threads);
/* Seed of all random numbers (default 0). Must be the same on every rank: checked at create. Local. */
LKS_API lks_status lks_config_set_seed(lks_config *config, int64_t seed);
/* Seconds that a collective call waits for other ranks before it gives up with LKS_ERR_TIMEOUT and names who is
 * missing; default 600, > 0. Local. */
LKS_API lks_status lks_config_set_deadline(lks_config *config, double seconds);
/* Where warnings and progress go; default nowhere. Local. */
LKS_API lks_status lks_config_set_log(lks_config *config, lks_log_fn fn, void *user);
/* Text of the error of the last lks_context_create with this config, "" if none. Owned by config. Local. */
LKS_API const char *lks_config_message(const lks_config *config);

/* Makes a context on a duplicate of `comm` (MPI_Comm_idup) and the device of `config` (NULL: defaults). MPI may be
 * initialised by the program (MPI_THREAD_FUNNELED suffices) or not at all: then Lockstep initialises it and finalises
 * it in lks_finalize. MPI_COMM_NULL with MPI not initialised stands for MPI_COMM_WORLD. The host's error handlers,
 * signal handlers and floating-point environment are left alone. On failure *ctx is NULL, nothing is left behind and
 * lks_config_message tells why. Errors: LKS_ERR_ARGUMENT, _DEVICE, _MPI, _PEER_FAILED, _TIMEOUT, _STATE (after
 * MPI_Finalize; or N processes were started that do not see each other: the launcher's PMI does not fit this MPI).
 * Collective. */
LKS_API lks_status lks_context_create(MPI_Comm comm, const lks_config *config, lks_context **ctx);
/* The same with a Fortran handle (MPI_Fint). Collective. */
LKS_API lks_status lks_context_create_f(int comm, const lks_config *config, lks_context **ctx);
/* Frees the context and all that it still owns, sets *ctx to NULL; a NULL *ctx is fine. After MPI_Finalize no MPI call
 * is made and LKS_ERR_STATE is returned, memory is freed all the same. Collective. */
LKS_API lks_status lks_context_destroy(lks_context **ctx);
/* Finalises MPI if Lockstep initialised it, else does nothing. Call once after the last context. Collective. */
LKS_API lks_status lks_finalize(void);

/* How many devices of this kind ("cpu", "cuda") a context could be made on here; text (of `bytes` bytes, or NULL) says
 * what they are, or why there are none ("...: libcudart.so.13: cannot open shared object file"). Local. */
LKS_API int lks_device_probe(const char *device, char *text, int bytes);

/* What this library was built with: number of facts, name and value of each ("HDF5", "1.10.8, parallel"). Local. */
LKS_API int lks_build_count(void);
LKS_API const char *lks_build_name(int i);
LKS_API const char *lks_build_value(int i);

/* Rank and size of the context's communicator; rank among, and number of, the ranks on this node. Local. */
LKS_API int lks_rank(const lks_context *ctx);
LKS_API int lks_size(const lks_context *ctx);
LKS_API int lks_local_rank(const lks_context *ctx);
LKS_API int lks_local_size(const lks_context *ctx);
/* "cpu", "cuda" or "far"; a line about it (model, ISA, threads); threads of the CPU backend. Local. */
LKS_API const char *lks_device_name(const lks_context *ctx);
LKS_API const char *lks_device_description(const lks_context *ctx);
LKS_API int lks_threads(const lks_context *ctx);
/* What carries reductions between the ranks' devices: "nccl (NCCL 2.28.3)", "mpi", "mpi, staged through host memory:
 * ranks 0 and 1 share a device, ...", "none: one rank". Local. */
LKS_API const char *lks_transport(const lks_context *ctx);

/* First error since the last clear: its code (LKS_OK if none) and text ("rank 1: lks_matmul: inner sizes differ:
 * [2,3] @ [4,5]"; "" if none). The text lives until the next failure after a clear. Local. */
LKS_API lks_status lks_error_code(const lks_context *ctx);
LKS_API const char *lks_error(const lks_context *ctx);
LKS_API void lks_error_clear(lks_context *ctx);
/* Records an error as the library does (the first is kept) and returns code: for bindings, hooks and functions of the
 * program. where: the call it happened in; text: what happened and what to do. Local. */
LKS_API lks_status lks_error_raise(lks_context *ctx, lks_status code, const char *where, const char *text);

/* Opens a scope: tensors made from now on belong to it. Ends the innermost one and releases its share of its tensors;
 * tensors kept (lks_keep), referred to by a living graph or view, live on. Scopes nest. Without a scope tensors belong
 * to the context. Ending a scope that was not begun: LKS_ERR_STATE. Local. */
LKS_API lks_status lks_scope_begin(lks_context *ctx);
LKS_API lks_status lks_scope_end(lks_context *ctx);
/* Ends the innermost scope but hands t (NULL passes) to the enclosing one; returns t. Local. */
LKS_API lks_tensor *lks_scope_leave(lks_context *ctx, lks_tensor *t);

/* Counters: living tensor headers, living graph nodes, bytes of device memory in use by tensors, the highest that was,
 * bytes held by the caching pool. lks_memory_peak_reset starts the peak anew. lks_memory_trim gives back what the pool
 * holds and no tensor uses (for other users of the device, or after the largest batch); it waits for the device, and
 * the next step takes new memory. Local. */
LKS_API int64_t lks_live_tensors(const lks_context *ctx);
LKS_API int64_t lks_live_nodes(const lks_context *ctx);
LKS_API int64_t lks_memory_used(const lks_context *ctx);
LKS_API int64_t lks_memory_peak(const lks_context *ctx);
LKS_API int64_t lks_memory_held(const lks_context *ctx);
LKS_API void lks_memory_peak_reset(lks_context *ctx);
LKS_API void lks_memory_trim(lks_context *ctx);

/* Random numbers: Philox4x32-10 (Salmon et al., 2011) with key (seed, attempted step, call number) and counter = the
 * element's linear index in the global batch, so neither the number of ranks nor the splitting into micro-batches
 * changes them. lks_random_set places the state; the optimizer adds 1 to `attempt` at each step, applied or skipped.
 * Local (the values must agree on every rank). */
LKS_API lks_status lks_random_set(lks_context *ctx, int64_t seed, int64_t attempt);
LKS_API int64_t lks_random_seed(const lks_context *ctx);
LKS_API int64_t lks_random_attempt(const lks_context *ctx);
/* Declares that the next forward pass works on rows [first, first + rows) of the global batch, and starts the call
 * numbers anew. rows = 0 (the state at start): replicated, every rank draws the same numbers. Local. */
LKS_API lks_status lks_random_rows(lks_context *ctx, int64_t first, int64_t rows);
/* What is declared now, by that call or lks_loader_train; each may be NULL. Local. */
LKS_API void lks_random_rows_now(const lks_context *ctx, int64_t *first, int64_t *rows);

/* Work of the program's own on the device cuda. lks_after_stream: all that is asked of the context from now on comes
 * after what `stream` (a cudaStream_t of the context's device) was given so far; the host does not wait. lks_event: a
 * cudaEvent_t that is done when the device has done all that was asked of the context so far; it belongs to the context
 * and is recorded anew by the next of these two calls. So a simulation on the GPU gives its arrays to lks_wrap, calls
 * lks_after_stream(ctx, stream), the ops, and cudaStreamWaitEvent(stream, lks_event(ctx), 0). A program that has
 * communicators of NCCL orders them with the context's in this way, on every rank alike: two that run at once may
 * wait for each other for ever. Where devices have no such streams (cpu, far) `stream` must be NULL, and lks_event
 * waits until all is done and returns NULL. lks_event is NULL after a failure, too, which is recorded. Local. */
LKS_API lks_status lks_after_stream(lks_context *ctx, void *stream);
LKS_API void *lks_event(lks_context *ctx);

/* Between lks_graph_begin and lks_graph_end what is asked of the device is not started but gathered (NCCL's reductions
 * included) and then launched at once as one CUDA graph: the same results, bit for bit, with a launch in place of
 * hundreds. The next graph of the same shape puts its arguments into the last one. Make a step or two without it first,
 * since libraries set themselves up then; bring data to the device before it begins. A call that waits for the device
 * launches what was gathered so far and ends the gathering; so does lks_linalg_eig, part of which is the host's work.
 * Errors: LKS_ERR_UNSUPPORTED (another device), LKS_ERR_STATE (begun already, or inside lks_graph_step, which spares the
 * calls, too), LKS_ERR_DEVICE. Local (but begin and end at the same places on every rank). */
LKS_API lks_status lks_graph_begin(lks_context *ctx);
LKS_API lks_status lks_graph_end(lks_context *ctx);

/* A step that is captured once as a CUDA graph and then replayed: launched by one call, without the calls that it is
 * made of, with the bits that these would have given. `step` makes the calls: gradients to zero, forward, backward, the
 * optimizer's step, the scaler's update, but no data. lks_graph_step(g, key, step, user) calls it while it must: two
 * times as it is, the third time it is captured, and if it asked the device for the same as the time before, it is
 * replayed from the fourth time on. Then `step` is not called, and everything else is as if it had been: counters,
 * reports, random numbers, gradients, the loss scale, checkpoints.
 *
 * - What a step reads lies in the same tensors each time: data are written to them before (lks_copy_,
 *   lks_set_from_host). Tensors made in it that the program keeps (lks_keep: the loss) have new contents after each
 *   replay, which lks_item_later, called afterwards, brings to the host.
 * - `key` names all that the program decides by itself: shapes, numbers handed to calls (the weight of a batch). A step
 *   with another key is made by its calls, and the graph stays for the next with the old one; a second one in a row
 *   takes its place. It is the same on every rank.
 * - What Lockstep can see is looked at before each replay: precision, what is trained, train or eval, which gradients
 *   are there, groups and state of optimizers and scalers, memory that was freed, lks_random_rows. Where something has
 *   changed the step is captured anew. Learning rates and other settings may be changed, and checkpoints saved and
 *   loaded, at any time between steps.
 * - Never replayed, but gathered each time as by lks_graph_begin, is a step that waits for the device or uploads more
 *   than 4 KiB, that calls lks_item_later or lks_optim_report, whose ranks exchange messages (reductions over MPI,
 *   running statistics on several ranks), that an observer watches, or that leaves things in another state than it
 *   found them: gradients are set to zero in it, not before. lks_graph_why tells.
 * - Functions of the program (lks_hook_add, lks_custom_call, lks_recompute) are not called in a replay; what they ask
 *   of the device is part of it.
 * - Its memory is its own while the graph lives, also between steps; it is given up where memory is short, and the step
 *   then captured anew. lks_memory_peak counts it while it runs.
 *
 * create: LKS_ERR_UNSUPPORTED where the device has no graphs; with g NULL lks_graph_step just calls step, so that a
 * program is the same there. Destroy it before the context. step: its status where it was called, LKS_ERR_STATE inside
 * another one, LKS_ERR_DEVICE. Ranks tell each other in a short message whether all can replay. Collective (create,
 * destroy: local). */
typedef struct lks_graph lks_graph;
typedef lks_status (*lks_step_fn)(void *user);
LKS_API lks_status lks_graph_create(lks_context *ctx, lks_graph **g);
LKS_API void lks_graph_destroy(lks_graph **g);
LKS_API lks_status lks_graph_step(lks_graph *g, int64_t key, lks_step_fn step, void *user);
/* How often the step was made by its calls, captured, replayed (each may be NULL); why it was not replayed when it last
 * was not. Local. */
LKS_API void lks_graph_counts(const lks_graph *g, int64_t *eager, int64_t *captured, int64_t *replayed);
LKS_API const char *lks_graph_why(const lks_graph *g);

/* Waits until the device has done all that was asked of it. The library itself never needs this. Local. */
LKS_API lks_status lks_synchronize(lks_context *ctx);

#ifdef __cplusplus
}
#endif
#endif
