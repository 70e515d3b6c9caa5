/* SPDX-License-Identifier: BSD-3-Clause
 *
 * autocast.h - the one question "which dtype?", and the casts that were made already. It decides and remembers; the
 * door makes the casts.
 */
#ifndef LKSI_AUTOCAST_H
#define LKSI_AUTOCAST_H

#include "tensor/tensor.h"
#include <lockstep/autocast.h>

struct lksi_autocast *lksi_autocast_create(lks_context *ctx);
void lksi_autocast_destroy(lks_context *ctx);
/* What steps move, and what decides on dtypes. */
void lksi_autocast_list(lks_context *ctx, lksi_moves *m);

/* The dtype that eligible inputs of `op` are cast to, LKS_DTYPE_NONE: none is. May set attr (an op that widens by
 * itself is told so instead of being fed a copy). Fails for an op that is refused inside a region. */
lks_status lksi_autocast_decide(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lksi_attr *attr, lks_dtype *to);
/* 1 if t would be cast to `to`. */
int lksi_autocast_eligible(const lks_tensor *t, lks_dtype to);
/* *found: a valid cast of t to `to` made before, or NULL. *fill: a header that must be written by the door with the
 * cast (a twin out of date), then announced by _filled. Fails when memory for a twin is missing. */
lks_status lksi_autocast_find(lks_context *ctx, lks_tensor *t, lks_dtype to, lks_tensor **found, lks_tensor **fill);
void lksi_autocast_filled(lks_context *ctx, lks_tensor *t, lks_tensor *twin);
/* Remembers cast c of t while the outermost region is open, if it is of the kind that is kept. */
void lksi_autocast_remember(lks_context *ctx, lks_tensor *t, lks_tensor *c);
void lksi_autocast_count(lks_context *ctx, int hit, int64_t bytes);
/* Policy of a row in this context: the program's or the table's. Policy and reason of the last decision. */
int lksi_autocast_policy(const lks_context *ctx, int op);
void lksi_autocast_last(const lks_context *ctx, int *policy, const char **why);
/* The same decision for a function that the program registered; has_policy 0: it did not, or with none. */
lks_status lksi_autocast_decide_user(lks_context *ctx, const char *name, int nin, lks_tensor *const *in, lks_dtype *to,
                                     int *has_policy);
/* What is in force now, to be put in force again later, whatever then is: enter, and leave with what enter gave, also
 * after a failure in between. */
typedef struct lksi_autocast_state {
    int enabled, cache;
    lks_dtype dtype;
} lksi_autocast_state;
typedef struct lksi_autocast_replay { int suspended, depth; } lksi_autocast_replay;
lksi_autocast_state lksi_autocast_now(const lks_context *ctx);
lks_status lksi_autocast_enter(lks_context *ctx, const lksi_autocast_state *s, lksi_autocast_replay *before);
void lksi_autocast_leave(lks_context *ctx, const lksi_autocast_replay *before);
/* Backward runs with autocast off. Nests. */
void lksi_autocast_suspend(lks_context *ctx);
void lksi_autocast_resume(lks_context *ctx);

#endif
