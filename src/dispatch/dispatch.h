/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dispatch.h - the one door: every op of every kind goes through lksi_call.
 */
#ifndef LKSI_DISPATCH_H
#define LKSI_DISPATCH_H

#include "tensor/tensor.h"

/* Runs row `op`: decide dtype (autocast), cast, infer, allocate, launch, record.
 *   in    nin tensors; NULL anywhere: returns LKS_ERR_STATE at once (the first error is already recorded); lks_none =
 * absent out   nout entries. NULL entry: allocated, in the innermost scope. Non-NULL (in-place rows; or an out form,
 * where dtype may differ from the inferred one for floats): written, version + 1 A failure is recorded in the context
 * with `where` ("lks_matmul"). */
lks_status lksi_call(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in, const lksi_attr *attr,
                     int nout, lks_tensor **out);
/* The common case: one output, NULL on failure. */
lks_tensor *lksi_call1(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                       const lksi_attr *attr);
/* In-place row on raw device memory (arenas, tables, step state): no tensors, no recording. */
lks_status lksi_call_raw(lks_context *ctx, const char *where, int op, int nin, const lksi_view *in,
                         const lksi_attr *attr, int nout, lksi_view *out);

/* A public function that is a composite row calls these around the ops it is made of: the row's policy is applied to
 * its inputs, and inside it no other policy is (a row without a policy leaves that to the rows it calls). work  nin
 * entries: in[i] itself or its cast, with in[i]'s place in the graph NULL among the inputs fails at once. After a
 * failure there is no end to call. */
lks_status lksi_composite_begin(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lks_tensor **work);
void lksi_composite_end(lks_context *ctx, int op);

/* The door's cast of t: where t's gradient goes, its gradient goes. t itself if it is not cast to `to`. */
lks_tensor *lksi_cast_for(lks_context *ctx, const char *where, lks_tensor *t, lks_dtype to);

#endif
