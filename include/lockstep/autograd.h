/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/autograd.h - reverse-mode differentiation. An op whose inputs require a gradient is recorded as a node that
 * its outputs own; a graph nobody refers to frees itself.
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Turns tracking of a leaf on or off. Floating dtypes only (LKS_ERR_DTYPE); a tensor made by a recorded op is not a
 * leaf (LKS_ERR_STATE). Local. */
LKS_API lks_status lks_set_requires_grad(lks_tensor *t, int on);
LKS_API int lks_requires_grad(const lks_tensor *t);
/* The accumulated gradient of a leaf: same shape and dtype, owned by the leaf (keep it to hold it). NULL before the
 * first backward and after lks_zero_grad; that is not an error. Local. */
LKS_API lks_tensor *lks_grad(const lks_tensor *t);
/* Drops the gradient of one leaf; a sealed parameter's slice is marked absent. Local. */
LKS_API lks_status lks_zero_grad(lks_tensor *t);

/* Adds the gradient of `root` with respect to every leaf into the leaves' .grad. `gradient` has root's shape (LKS_NONE:
 * 1, root must have one element). The graph is freed unless `retain`; a second backward over a freed graph is
 * LKS_ERR_MODIFIED, as is a saved tensor changed in place since. Runs in the precision recorded with each op, whether
 * or not an autocast region is open. Order of additions is fixed. When it returns, all work is queued on the device.
 * Local (with data parallel: use lks_dp_backward). */
LKS_API lks_status lks_backward(lks_tensor *root, lks_tensor *gradient, int retain);
/* Gradients of `root` with respect to n tensors (leaves or not) without touching any .grad: grads[i] has the shape and
 * dtype of inputs[i], or is NULL where root does not depend on it. create_graph: record the backward pass itself, so
 * that grads can be differentiated again. Local. */
LKS_API lks_status lks_gradients(lks_tensor *root, lks_tensor *gradient, int n, lks_tensor *const *inputs, int retain,
                                 int create_graph, lks_tensor **grads);

/* Between begin and end nothing is recorded. Nests; ending what was not begun is LKS_ERR_STATE. Local. */
LKS_API lks_status lks_no_grad_begin(lks_context *ctx);
LKS_API lks_status lks_no_grad_end(lks_context *ctx);
/* 1 if ops are recorded now. Local. */
LKS_API int lks_grad_enabled(const lks_context *ctx);

/* Same storage, no history; writes through it are seen by t. Local. */
LKS_API lks_tensor *lks_detach(lks_tensor *t);

/* Called once per backward for a leaf, after the last contribution to its gradient was added; `grad` is the leaf's
 * accumulated gradient. A status other than LKS_OK stops the backward pass with it. Nothing is recorded in a hook, and
 * another backward from one is LKS_ERR_STATE. *id is for removal. Local. */
typedef lks_status (*lks_hook_fn)(void *user, lks_tensor *leaf, lks_tensor *grad);
LKS_API lks_status lks_hook_add(lks_tensor *leaf, lks_hook_fn fn, void *user, int64_t *id);
LKS_API lks_status lks_hook_remove(lks_tensor *leaf, int64_t id);

/* Compares the analytic gradients of `f` with central differences at `inputs` (n leaves, float64, requires_grad set by
 * the call; perturbed and restored). f builds its output, of any shape, from inputs; it is called 2 * numel + 1 times
 * and must be deterministic. *worst gets the largest |analytic - numeric| / (1 + |numeric|); fails with
 * LKS_ERR_MISMATCH and a text naming input and element if it exceeds `tolerance`. eps 1e-6 suits float64. Local. */
typedef lks_tensor *(*lks_gradcheck_fn)(void *user, lks_tensor *const *inputs, int n);
LKS_API lks_status lks_gradcheck(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs,
                                 double eps, double tolerance, double *worst);

#ifdef __cplusplus
}
#endif
#endif
