/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/optim.h - optimizers, learning-rate schedules, clipping.
 *
 * A step is two passes over the parameter arenas: (1) read the gradients once: finite test of the scaled and the
 * unscaled value, sum of squares; (2) after flag and norm are reduced: factor, selection, update, low-precision copies.
 * Learning rate, clip factor, bias corrections and counters are device memory; nothing is read by the host.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lks_optim_kind { LKS_SGD, LKS_ADAM, LKS_ADAMW, LKS_RMSPROP, LKS_ADAGRAD, LKS_LAMB, LKS_LARS };

/* Optimizer over all parameters of ps (sealed by the call), PyTorch's defaults: SGD lr 0.01, momentum 0, dampening 0,
 * weight decay 0; Adam lr 0.001, betas 0.9 0.999, eps 1e-8, weight decay 0; AdamW the same with 0.01 (Loshchilov &
 * Hutter, 2019); RMSprop lr 0.01, alpha 0.99, eps 1e-8, momentum 0; Adagrad lr 0.01, lr_decay 0, eps 1e-10 (Duchi et
 * al., 2011). LAMB (You et al., 2020): Adam's step and weight decay, scaled per parameter by |w| / |step|; lr 0.001,
 * eps 1e-6, weight decay 0.01. LARS (You et al., 2017): SGD whose gradient and weight decay are scaled per parameter by
 * trust |w| / (|g| + weight_decay |w| + eps); lr 0.1, trust 0.001. Where |w| or the other norm is 0, both take 1. These
 * two read gradients and state once more, as the clip factor is part of their norms. Parameters of reduced dtype get
 * float32 masters. Parameters without a gradient keep moments and counts. Local. */
LKS_API lks_status lks_optim_create(lks_params *ps, int kind, lks_optim **opt);
LKS_API void lks_optim_destroy(lks_optim **opt);
/* "sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars" -> kind, or LKS_ERR_NOT_FOUND. Local. */
LKS_API int lks_optim_kind_from_name(const char *name);

/* Groups: 0 holds every parameter at first. A new group takes n parameters (indices in ps) out of theirs and copies
 * group 0's settings; returns its number or a negative status. Before the first step only. Local. */
LKS_API int lks_optim_add_group(lks_optim *opt, int n, const int *index);
/* Settings of one group (-1: all). lr is the base that the schedule multiplies. Takes effect at the next step. Bad
 * values (lr < 0, betas outside [0, 1), eps < 0, momentum < 0, nesterov without momentum or with dampening):
 * LKS_ERR_ARGUMENT. Local, the same on every rank. */
LKS_API lks_status lks_optim_set_lr(lks_optim *opt, int group, double lr);
LKS_API lks_status lks_optim_set_weight_decay(lks_optim *opt, int group, double weight_decay);
LKS_API lks_status lks_optim_set_momentum(lks_optim *opt, int group, double momentum, double dampening, int nesterov);
LKS_API lks_status lks_optim_set_betas(lks_optim *opt, int group, double beta1, double beta2);
LKS_API lks_status lks_optim_set_eps(lks_optim *opt, int group, double eps);
/* RMSprop's alpha in [0, 1); Adagrad's lr_decay >= 0; LARS's trust coefficient > 0. Momentum of SGD and LARS; of
 * RMSprop with dampening 0 and nesterov 0. Local. */
LKS_API lks_status lks_optim_set_alpha(lks_optim *opt, int group, double alpha);
LKS_API lks_status lks_optim_set_lr_decay(lks_optim *opt, int group, double lr_decay);
LKS_API lks_status lks_optim_set_trust(lks_optim *opt, int group, double coefficient);
/* Weight decay apart from the gradient (w -= lr weight_decay w; AdamW's default) or as part of it (all others'). Not
 * for LAMB and LARS. Local. */
LKS_API lks_status lks_optim_set_decoupled(lks_optim *opt, int group, int on);
/* State of its own, so before the first step only (LKS_ERR_STATE): AMSGrad for Adam, AdamW and LAMB (Reddi et al.,
 * 2018); centered RMSprop; where Adagrad's accumulators start. Local. */
LKS_API lks_status lks_optim_set_amsgrad(lks_optim *opt, int on);
LKS_API lks_status lks_optim_set_centered(lks_optim *opt, int on);
LKS_API lks_status lks_optim_set_initial_accumulator(lks_optim *opt, double value);

/* Clip by global norm over all parameters of the optimizer (0: off; Pascanu et al., 2013) and by value (0: off); both
 * on unscaled gradients, as they are read: the buffers are not changed. Local. */
LKS_API lks_status lks_optim_set_clip_norm(lks_optim *opt, double max_norm);
LKS_API lks_status lks_optim_set_clip_value(lks_optim *opt, double max_value);
/* Finite test, flag and skip also without an enabled scaler; default 1. Local. */
LKS_API lks_status lks_optim_set_check_finite(lks_optim *opt, int on);

/* Factor of the base lr at applied step k (0, 1, ...): warm-up (k + 1) / warmup for k < warmup, then with
 * t = (k - warmup) / max(1, total - warmup) clamped to 1: constant 1; linear 1 - t (1 - final); cosine final + (1 -
 * final) (1 + cos pi t) / 2; step gamma^floor((k - warmup) / period); wsd (warm-up, stable, decay) 1 until total -
 * period, then linear to final over `period` steps. Evaluated on the device in double. Skipped steps do not count.
 * Local. */
enum lks_schedule {
    LKS_SCHEDULE_CONSTANT,
    LKS_SCHEDULE_LINEAR,
    LKS_SCHEDULE_COSINE,
    LKS_SCHEDULE_STEP,
    LKS_SCHEDULE_WSD,
    LKS_SCHEDULE_TABLE
};
LKS_API lks_status lks_optim_set_schedule(lks_optim *opt, int kind, int64_t warmup, int64_t total, double final_factor,
                                          double gamma, int64_t period);
/* A schedule of the program's own: factor[k] for applied step k, the last one for all later steps; n >= 1, factors >= 0
 * and finite, copied. Local. */
LKS_API lks_status lks_optim_set_schedule_table(lks_optim *opt, int64_t n, const double *factor);

/* Keeps an exponential moving average of all weights, from their values at the first call on (a later one changes decay
 * and warmup only): after each applied step average += (1 - d) (weight - average), d = decay, with warmup min(decay, (1
 * + k) / (10 + k)), k steps having been applied before it. float32 (float64 for float64 parameters), part of
 * checkpoints. Local. */
LKS_API lks_status lks_optim_set_ema(lks_optim *opt, double decay, int warmup);
/* in 1: puts the averages in the place of the weights (for evaluation) and the weights aside; 0: the weights back, bit
 * for bit. In between a step, an unscale and a save are LKS_ERR_STATE. Local. */
LKS_API lks_status lks_optim_ema_swap(lks_optim *opt, int in);

/* The step. s may be NULL (no scaling). Waits (on the device) for pending reductions, reduces flag, drift hash and
 * presence with MAX over the communicator, applies or skips. Gradients are left as they are. LKS_ERR_NO_GRADIENTS on a
 * rank none of whose parameters has one, which still takes part; if that holds everywhere nothing changes. Wrong
 * order (step twice before lks_scaler_update) is LKS_ERR_STATE naming both calls, nothing changed; so are gradients of
 * backward passes that s cannot divide: of another scaler, of a loss that was not scaled (or twice), from before an
 * update that can change the scale (as after a skipped step without lks_params_zero_grad), divided by lks_optim_unscale
 * already, sums of scaled and unscaled ones (on several ranks the others then skip that step). With data parallelism no
 * gradient at all is no error. Gradients that the program wrote, or that come of a gradient it gave to lks_backward
 * with an output that was not scaled, are taken as they are. Collective. */
LKS_API lks_status lks_optim_step(lks_optim *opt, lks_scaler *s);
/* Divides the gradients by the scale (and the sample weight) now, so that the program may look at or change them;
 * records the finite test. Once between updates, or until lks_params_zero_grad. Collective. */
LKS_API lks_status lks_optim_unscale(lks_optim *opt, lks_scaler *s);

enum lks_outcome { LKS_STEPPED = 1, LKS_SKIPPED_HERE = 2, LKS_SKIPPED_ELSEWHERE = 3, LKS_NOTHING = 4 };
/* What happened at attempted step `attempt` (1, 2, ...). Waits for that step's event only; kept for the last 8 steps.
 * Any pointer may be NULL. outcome: skipped here if this rank's own gradients were not finite (before their reduction)
 * or it failed, elsewhere if others' were, or only the sum over ranks. grad_norm: global, unscaled; scale: used in that
 * step; lr of group 0; applied and skipped: totals after it. Returns LKS_ERR_DRIFT / LKS_ERR_FLOOR if that step found
 * it: on every rank alike. Ask at attempt - 2 to wait for nothing. Local. */
LKS_API lks_status lks_optim_report(lks_optim *opt, int64_t attempt, int *outcome, double *grad_norm, double *scale,
                                    double *lr, int64_t *applied, int64_t *skipped);
/* Like lks_optim_report: how often each outcome was there up to and with `attempt`, since the optimizer was made (after
 * a load `here` starts at 0 and `elsewhere` has all that were skipped before). Local. */
LKS_API lks_status lks_optim_outcomes(lks_optim *opt, int64_t attempt, int64_t *stepped, int64_t *here,
                                      int64_t *elsewhere, int64_t *nothing);
/* What was not finite in that step, each -1 where nothing was: `param` the first parameter (in the order of the arena)
 * in its set, `bucket` its data-parallel bucket, `rank` the lowest rank whose own gradients were not finite (-1 with a
 * param: every rank's were, the sum over ranks was not). infs and nans: values on this rank, after the reduction and
 * unscaled. Local. */
LKS_API lks_status lks_optim_blame(lks_optim *opt, int64_t attempt, int *param, int *bucket, int *rank, int64_t *infs,
                                   int64_t *nans);
/* Optional report of what reduced precision loses, off at first: of the gradients as they are in memory, scaled, how
 * many are 0, how many are not 0 but below the smallest normal number (float16 2^-14, bfloat16 2^-126; float32
 * gradients are measured with float16's; float64 not), of how many. This rank's. Local. */
LKS_API lks_status lks_optim_set_underflow_report(lks_optim *opt, int on);
LKS_API lks_status lks_optim_underflow(lks_optim *opt, int64_t attempt, int64_t *zeros, int64_t *tiny, int64_t *seen);
/* A step that does not lose its batch: calls `batch` (zero the gradients, forward, lks_scaler_scale or
 * lks_dp_backward), steps and updates; if the step was skipped for its gradients, does the same again, with the same
 * random numbers and the lower scale, at most `retries` times more. *outcome (may be NULL): of the last try. Every try
 * is an attempted step. Waits for each step's outcome, unlike everything else here. A batch that fails makes no step:
 * its status is returned at once; the other ranks see a skip of another rank and try no more, so it must still take
 * part in the reductions (lks_dp_backward does). Collective. */
typedef lks_status (*lks_batch_fn)(void *user);
LKS_API lks_status lks_optim_step_retry(lks_optim *opt, lks_scaler *s, int retries, lks_batch_fn batch, void *user,
                                        int *outcome);
/* Attempted steps so far (host counter, no wait). Applied ones: waits. Local. */
LKS_API int64_t lks_optim_attempts(const lks_optim *opt);
LKS_API lks_status lks_optim_applied(lks_optim *opt, int64_t *applied);

#ifdef __cplusplus
}
#endif
#endif
