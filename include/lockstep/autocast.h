/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/autocast.h - regions in which ops choose their precision by a policy table. Put forward and loss inside;
 * backward uses the recorded choice wherever it is called. State is per context; regions nest in any mix.
 *
 * Who is cast: floating inputs except float64. Never: integers, bool, in-place forms, calls with an explicit dtype.
 * lower = the region's dtype; fp32 = float32; promote = widest of the eligible inputs (all alike keep it, else
 * float32; a float64 among them: nothing is cast); none = input dtype; error = refused, with advice.
 */
#ifndef LOCKSTEP_AUTOCAST_H
#define LOCKSTEP_AUTOCAST_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lks_policy {
    LKS_POLICY_DEFAULT = -1,
    LKS_POLICY_NONE,
    LKS_POLICY_LOWER,
    LKS_POLICY_FP32,
    LKS_POLICY_PROMOTE,
    LKS_POLICY_ERROR
};
enum lks_policy_table { LKS_TABLE_CPU, LKS_TABLE_CUDA };

/* Opens a region. dtype: LKS_BF16, LKS_F16 or LKS_DTYPE_NONE (bfloat16). enabled 0 opens a region without casts inside
 * an enabled one. cache: keep casts of leaves until the outermost region ends. Local. */
LKS_API lks_status lks_autocast_begin(lks_context *ctx, lks_dtype dtype, int enabled, int cache);
/* Closes the innermost region and restores the state before it, also after a failed op. Local. */
LKS_API lks_status lks_autocast_end(lks_context *ctx);
/* Of the innermost region: 1 if it casts (0: not, or there is none), its dtype (LKS_BF16 where there is none); how many
 * are open. Local. */
LKS_API int lks_autocast_enabled(const lks_context *ctx);
LKS_API lks_dtype lks_autocast_dtype(const lks_context *ctx);
LKS_API int lks_autocast_depth(const lks_context *ctx);
/* Which table is in force: by default the one of the context's device; any may be chosen on any backend. Local. */
LKS_API lks_status lks_autocast_set_table(lks_context *ctx, int table);
LKS_API int lks_autocast_table(const lks_context *ctx);
/* Policy of op `name` in a table: an lks_policy value (LKS_POLICY_NONE for an op without one), or LKS_ERR_NOT_FOUND.
 * All names of PyTorch's lists are known, also those of ops that Lockstep does not have. _in_force: in this context,
 * with its table, what the program set and registered. Local. */
LKS_API int lks_autocast_policy(const char *name, int table);
LKS_API int lks_autocast_policy_in_force(const lks_context *ctx, const char *name);
/* Replaces the policy of an op in this context, in regions open or to come; LKS_POLICY_DEFAULT: the table's again. Not
 * for views and ops in place (LKS_ERR_UNSUPPORTED): those are never cast. Local, the same on every rank. */
LKS_API lks_status lks_autocast_set_policy(lks_context *ctx, const char *name, int policy);
/* Gives a function of the program (lks_custom_call with that name) a policy in either table. Local. */
LKS_API lks_status lks_autocast_register(lks_context *ctx, const char *name, int cpu, int cuda);

/* Casts made and casts answered from cache or twin since the context was made. Local. */
LKS_API int64_t lks_autocast_casts(const lks_context *ctx);
LKS_API int64_t lks_autocast_hits(const lks_context *ctx);
/* The same, with the bytes that casts wrote; casts in the cache now, their bytes, and how many did not fit under the
 * limit. Any pointer may be NULL. Local. */
LKS_API lks_status lks_autocast_statistics(const lks_context *ctx, int64_t *casts, int64_t *bytes, int64_t *hits,
                                           int64_t *cached, int64_t *cached_bytes, int64_t *refused);
/* Most bytes of casts that the cache keeps (0, the default: no limit); what does not fit is cast each time. Sealed
 * parameters have permanent copies and are not in it. Local. */
LKS_API lks_status lks_autocast_set_cache_limit(lks_context *ctx, int64_t bytes);

/* One call of an op as it passes the door, where everything passes: forward, backward, casts. Valid during the call of
 * the observer only. */
typedef struct lks_op_event {
    const char *op;       /* "matmul" */
    const char *where;    /* the call it was made for: "lks_linear", "lks_backward" */
    const char *backward; /* the op whose gradient is being computed; NULL */
    int end;              /* 0: its inputs are decided, it is about to run; 1: it is done */
    lks_status status;    /* at the end */
    int policy;           /* enum lks_policy, as applied */
    const char *why;      /* where that is from */
    lks_dtype dtype;      /* to which eligible inputs were cast; LKS_DTYPE_NONE: none were */
    int casts;            /* inputs that were (made or from the cache) */
    int nin, nout;
    const lks_dtype *in;  /* of the first 16 inputs, after the casts; LKS_DTYPE_NONE: absent */
    const lks_dtype *out; /* at the end; at the begin NULL */
} lks_op_event;
typedef void (*lks_observer_fn)(void *user, const lks_op_event *event);
/* fn sees every op of this context from now on; NULL: nobody. It must not call ops. An op that fails before it can run
 * has an end without a begin; one that is made of others has a begin, and theirs follow. Local. */
LKS_API lks_status lks_observe(lks_context *ctx, lks_observer_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
