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

enum lks_optim_kind { LKS_SGD, LKS_ADAM, LKS_ADAMW };

/* Optimizer over all parameters of ps (sealed by the call), PyTorch's defaults: SGD lr 0.01, momentum 0, dampening 0,
 * weight decay 0; Adam lr 0.001, betas 0.9 0.999, eps 1e-8, weight decay 0; AdamW the same with 0.01 (Loshchilov &
 * Hutter, 2019). Parameters of reduced dtype get float32 masters. Local. */
LKS_API lks_status lks_optim_create(lks_params *ps, int kind, lks_optim **opt);
LKS_API void lks_optim_destroy(lks_optim **opt);
/* "sgd", "adam", "adamw" <-> kind. */
LKS_API int lks_optim_kind_from_name(const char *name);

/* Groups: 0 holds every parameter at first. A new group takes n parameters (indices in ps) out of theirs and copies
 * group 0's settings; returns its number or a negative status. Before the first step only. Local. */
LKS_API int lks_optim_add_group(lks_optim *opt, int n, const int *index);
/* Settings of one group (-1: all). lr is the base that the schedule multiplies. Takes effect at the next step. Bad values
 * (lr < 0, betas outside [0, 1), eps < 0, momentum < 0, nesterov without momentum or with dampening):
 * LKS_ERR_ARGUMENT. Local, the same on every rank. */
LKS_API lks_status lks_optim_set_lr(lks_optim *opt, int group, double lr);
LKS_API lks_status lks_optim_set_weight_decay(lks_optim *opt, int group, double weight_decay);
LKS_API lks_status lks_optim_set_momentum(lks_optim *opt, int group, double momentum, double dampening, int nesterov);
LKS_API lks_status lks_optim_set_betas(lks_optim *opt, int group, double beta1, double beta2);
LKS_API lks_status lks_optim_set_eps(lks_optim *opt, int group, double eps);

/* Clip by global norm over all parameters of the optimizer (0: off; Pascanu et al., 2013) and by value (0: off); both on
 * unscaled gradients, as they are read: the buffers are not changed. Local. */
LKS_API lks_status lks_optim_set_clip_norm(lks_optim *opt, double max_norm);
LKS_API lks_status lks_optim_set_clip_value(lks_optim *opt, double max_value);
/* Finite test, flag and skip also without an enabled scaler; default 1. Local. */
LKS_API lks_status lks_optim_set_check_finite(lks_optim *opt, int on);

/* Factor of the base lr at applied step k (0, 1, ...): warm-up (k + 1) / warmup for k < warmup, then with
 * t = (k - warmup) / max(1, total - warmup) clamped to 1: constant 1; linear 1 - t (1 - final); cosine final + (1 -
 * final) (1 + cos pi t) / 2; step gamma^floor((k - warmup) / period). Evaluated on the device in double. Skipped steps
 * do not count. Local. */
enum lks_schedule { LKS_SCHEDULE_CONSTANT, LKS_SCHEDULE_LINEAR, LKS_SCHEDULE_COSINE, LKS_SCHEDULE_STEP };
LKS_API lks_status lks_optim_set_schedule(lks_optim *opt, int kind, int64_t warmup, int64_t total, double final_factor,
                                          double gamma, int64_t period);

/* The step. s may be NULL (no scaling). Waits (on the device) for pending reductions, reduces flag, drift hash and
 * presence with MAX over the communicator, applies or skips. Gradients are left as they are. LKS_ERR_NO_GRADIENTS on a
 * rank none of whose parameters has one, which still takes part; if that holds everywhere nothing changes. Wrong
 * order (step twice before lks_scaler_update): LKS_ERR_STATE naming both calls, nothing changed. Collective. */
LKS_API lks_status lks_optim_step(lks_optim *opt, lks_scaler *s);
/* Divides the gradients by the scale (and the sample weight) now, so that the program may look at or change them; records
 * the finite test. Once between updates. Collective. */
LKS_API lks_status lks_optim_unscale(lks_optim *opt, lks_scaler *s);

enum lks_outcome { LKS_STEPPED = 1, LKS_SKIPPED_HERE = 2, LKS_SKIPPED_ELSEWHERE = 3, LKS_NOTHING = 4 };
/* What happened at attempted step `attempt` (1, 2, ...). Waits for that step's event only; kept for the last 8 steps.
 * Any pointer may be NULL. grad_norm: global, unscaled; scale: used in that step; lr of group 0; applied and skipped:
 * totals after it. Returns LKS_ERR_DRIFT / LKS_ERR_FLOOR if that step found it: on every rank alike. Ask at
 * attempt - 2 to wait for nothing. Local. */
LKS_API lks_status lks_optim_report(lks_optim *opt, int64_t attempt, int *outcome, double *grad_norm, double *scale,
                                    double *lr, int64_t *applied, int64_t *skipped);
/* Attempted steps so far (host counter, no wait). Applied ones: waits. Local. */
LKS_API int64_t lks_optim_attempts(const lks_optim *opt);
LKS_API lks_status lks_optim_applied(lks_optim *opt, int64_t *applied);

#ifdef __cplusplus
}
#endif
#endif
