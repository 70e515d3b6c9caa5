/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/dp.h - data parallel training: every rank computes on its share of the global batch; gradients are summed in
 * buckets during the last backward of a step.
 *
 * The library alone divides: pass summed losses and how many samples (or targets that count) are in them. With nominal
 * N the seed of backward is scale / N, the true weight of all ranks and micro-batches is summed alongside, and the
 * update multiplies by N / true weight: a mean over what there really was, also with a short last batch or a rank
 * without samples.
 */
#ifndef LOCKSTEP_DP_H
#define LOCKSTEP_DP_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks that every rank has the same parameters and buffers (names, shapes, dtypes, trainable; the first difference
 * is LKS_ERR_MISMATCH on every rank, with both sides), broadcasts them from rank 0, installs the hooks. Seals ps; one
 * lks_dp per set. Buckets are runs of neighbouring parameters of one dtype in reverse order of creation, closed as
 * soon as they hold bucket_bytes (0 = 4 MiB), the first as soon as it holds 1 MiB; a frozen parameter is in none.
 * Flags changed by lks_params_set_trainable are followed, and compared again, by the next backward after
 * lks_params_zero_grad. Works with one rank, too. Collective. */
LKS_API lks_status lks_dp_create(lks_params *ps, int64_t bucket_bytes, lks_dp **dp);
/* Removes the hooks; waits for reductions under way. NULL is fine. Before lks_params_destroy. Local. */
LKS_API void lks_dp_destroy(lks_dp **dp);
/* Nominal weight of a whole step (global batch size, or tokens), > 0. Between steps. Local, the same on every rank. */
LKS_API lks_status lks_dp_set_nominal(lks_dp *dp, double weight);

/* Backward of a loss that is a SUM over `weight` samples of this rank (weight_tensor, a one-element tensor, instead
 * when not LKS_NONE; both may be 0 and loss LKS_NONE on a rank without samples). last 0: gradients only accumulate (no
 * sync); last 1: buckets are reduced as they fill, the rest at the end; this call is the one that decides. s: scaler or
 * NULL. Gradients are complete after lks_optim_unscale or in lks_optim_step, which wait for them; a parameter without a
 * gradient on some ranks counts as zero there, and has the sum on those, too, afterwards (one without it on all ranks
 * has none). A call after last and before the step, or a step without it, is LKS_ERR_STATE, and so is a gradient left
 * from the last step: it is the sum over ranks. A rank that fails here, or hands in the NULL of a failed forward pass,
 * still joins all reductions and gets its error; every rank then skips the step (lks_optim_step is still to be called).
 * Statistics staged by forward are averaged over the ranks that staged some. Collective when last. */
LKS_API lks_status lks_dp_backward(lks_dp *dp, lks_scaler *s, lks_tensor *loss, double weight,
                                   lks_tensor *weight_tensor, int last);
/* Number of buckets; elements of parameters in bucket i; gradient reductions issued so far (one per bucket and step;
 * true weight and control are not counted). Local. */
LKS_API int lks_dp_bucket_count(const lks_dp *dp);
LKS_API int64_t lks_dp_bucket_numel(const lks_dp *dp, int i);
LKS_API int64_t lks_dp_collectives(const lks_dp *dp);
/* Compares parameters and buffers over ranks bit for bit (by 64-bit hashes; waits for the device); LKS_ERR_DRIFT
 * names the first that differs. Collective. */
LKS_API lks_status lks_dp_check(lks_dp *dp);

#ifdef __cplusplus
}
#endif
#endif
