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
 * leaf (LKS_ERR_STATE). A leaf that is off when backward reaches it gets nothing, its hooks are not called. Local. */
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

/* Runs fn without keeping what backward will need of it, and once more when backward comes to it: memory falls to the
 * inputs and outputs (and one function's tensors at a time, in backward) for the time of a second forward. The second
 * run has the autocast state and random numbers of the first, and leaves running statistics alone; gradients are the
 * same bit for bit, also of higher order and with hooks. fn gives nout tensors made from in[] and from whatever user
 * leads to, must do the same again (else LKS_ERR_STATE in backward; LKS_ERR_MODIFIED if an input or parameter was
 * changed in place), and user must live as long as the graph. Inside another lks_recompute, or where nothing is
 * recorded, it is a plain call. Local. */
typedef lks_status (*lks_recompute_fn)(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out);
LKS_API lks_status lks_recompute(lks_context *ctx, lks_recompute_fn fn, void *user, int nin, lks_tensor *const *in,
                                 int nout, lks_tensor **out);

/* A function of the program with a backward of its own. forward makes out[] (nout of them, 1 to 64) from in[] (1 to 64,
 * LKS_NONE for an absent one); nothing in it is recorded. backward gets the gradients of the outputs (zeros where none
 * came; LKS_NONE for an output that is not floating) and sets din[i] to the gradient of input i, of its shape, or
 * leaves it NULL. It is recorded when a higher order is asked for: then its ops must be differentiable. What it needs
 * forward hands to lks_custom_save: inputs, outputs, others; changed in place meanwhile they are LKS_ERR_MODIFIED.
 * Precision, as torch.amp.custom_fwd and custom_bwd: with cast LKS_DTYPE_NONE forward runs in the autocast state it is
 * called in and backward in the same one. With a dtype (float32, float16, bfloat16), inside an enabled region, floating
 * inputs other than float64 are cast to it (differentiably) and both run without autocast; outside a region nothing is
 * cast. A policy registered for `name` (lks_autocast_register) does the same with the dtype it decides. Local. */
typedef struct lks_custom lks_custom; /* one call of it */
typedef lks_status (*lks_custom_forward_fn)(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout,
                                         lks_tensor **out);
typedef lks_status (*lks_custom_backward_fn)(lks_custom *call, void *user, int nout, lks_tensor *const *dout, int nin,
                                          lks_tensor **din);
LKS_API lks_status lks_custom_call(lks_context *ctx, const char *name, lks_custom_forward_fn forward,
                                   lks_custom_backward_fn backward, void *user, lks_dtype cast, int nin,
                                   lks_tensor *const *in, int nout, lks_tensor **out);
/* In forward: keeps a tensor (64 at most). In backward: the i-th that was kept, NULL if it was changed; 1 if input i
 * wants a gradient. Local. */
LKS_API lks_status lks_custom_save(lks_custom *call, lks_tensor *t);
LKS_API lks_tensor *lks_custom_saved(lks_custom *call, int i);
LKS_API int lks_custom_needs(const lks_custom *call, int i);

/* Between begin and end every op looks whether it made a NaN and fails with LKS_ERR_NAN if so: the text names the first
 * op that did, in backward also the op whose gradient it was computing, and an input that was given with one. Waits for
 * the device at each op: for finding faults only. Nests. Local. */
LKS_API lks_status lks_anomaly_begin(lks_context *ctx);
LKS_API lks_status lks_anomaly_end(lks_context *ctx);

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
 * the call; perturbed and restored). f builds its output, of any shape, from inputs; it is called 2 * numel + 1 times,
 * recorded each time (so it may itself call lks_gradients with create_graph), and must be deterministic. *worst gets
 * the largest |analytic - numeric| / (1 + |numeric|); fails with LKS_ERR_MISMATCH and a text naming input and element
 * if it exceeds `tolerance`. eps 1e-6 suits float64. Local. */
typedef lks_tensor *(*lks_gradcheck_fn)(void *user, lks_tensor *const *inputs, int n);
LKS_API lks_status lks_gradcheck(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs,
                                 double eps, double tolerance, double *worst);

#ifdef __cplusplus
}
#endif
#endif
