/* SPDX-License-Identifier: BSD-3-Clause
 *
 * autocast.h - the one question "which dtype?", and the casts that were made already. It decides and remembers; the door
 * makes the casts.
 */
#ifndef LKSI_AUTOCAST_H
#define LKSI_AUTOCAST_H

#include "tensor/tensor.h"
#include <lockstep/autocast.h>

struct lksi_autocast *lksi_autocast_create(lks_context *ctx);
void lksi_autocast_destroy(lks_context *ctx);

/* The dtype that eligible inputs of `op` are cast to, LKS_DTYPE_NONE: none is. May set attr (an op that widens by itself
 * is told so instead of being fed a copy). Fails for an op that is refused inside a region. */
lks_status lksi_autocast_decide(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lksi_attr *attr, lks_dtype *to);
/* 1 if t would be cast to `to`. */
int lksi_autocast_eligible(const lks_tensor *t, lks_dtype to);
/* *found: a valid cast of t to `to` made before, or NULL. *fill: a header that must be written by the door with the cast
 * (a twin out of date), then announced by _filled. Fails when memory for a twin is missing. */
lks_status lksi_autocast_find(lks_context *ctx, lks_tensor *t, lks_dtype to, lks_tensor **found, lks_tensor **fill);
void lksi_autocast_filled(lks_context *ctx, lks_tensor *t, lks_tensor *twin);
/* Remembers cast c of t while the outermost region is open, if it is of the kind that is kept. */
void lksi_autocast_remember(lks_context *ctx, lks_tensor *t, lks_tensor *c);
void lksi_autocast_count(lks_context *ctx, int hit);
/* Backward runs with autocast off. Nests. */
void lksi_autocast_suspend(lks_context *ctx);
void lksi_autocast_resume(lks_context *ctx);

#endif
