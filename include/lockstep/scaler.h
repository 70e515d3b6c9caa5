/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/scaler.h - dynamic loss scaling (Micikevicius et al., 2018) that lives on the device.
 *
 * Order of a step: scale the loss, backward, [unscale, clip], lks_scaler_step(s) (optim.h), lks_scaler_update. Scale,
 * growth tracker and finite flag are device memory; no call but the getters marked "waits" reads them. When gradients
 * of any rank are not finite, every rank skips: parameters, moments and counters keep their bits.
 * Schedule: finite update: tracker + 1, at >= interval scale *= growth and tracker = 0; else scale *= backoff, tracker
 * = 0. The new scale is computed in double, stored in float32, kept within [floor, ceiling]; growth beyond the ceiling
 * is refused (tracker still goes to 0).
 */
#ifndef LOCKSTEP_SCALER_H
#define LOCKSTEP_SCALER_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An enabled scaler with the defaults: scale 65536, growth 2, backoff 0.5, interval 2000, floor 2^-126, ceiling 2^126,
 * 50 skips at the floor before LKS_ERR_FLOOR. enabled 0: scale reads 1, scaling is identity, state is empty. Local. */
LKS_API lks_status lks_scaler_create(lks_context *ctx, int enabled, lks_scaler **s);
LKS_API void lks_scaler_destroy(lks_scaler **s);
LKS_API int lks_scaler_enabled(const lks_scaler *s);

/* Settings: scale > 0 and finite with a normal reciprocal; growth > 1; 0 < backoff < 1; interval >= 1; 0 < floor <=
 * ceiling; hysteresis >= 1. Bad values: LKS_ERR_ARGUMENT naming option and value, nothing changed; checked on a
 * disabled scaler, too. set_scale does not touch the tracker and is LKS_ERR_STATE while scaled gradients are pending:
 * scaled and not yet stepped and updated. hysteresis h: the scale backs off from the h-th bad update after a growth on
 * (default 1: at once). dynamic 0: a static scale; steps are tested and skipped as ever, the scale stays. Local, the
 * same on every rank. */
LKS_API lks_status lks_scaler_set_scale(lks_scaler *s, double scale);
LKS_API lks_status lks_scaler_set_growth_factor(lks_scaler *s, double growth);
LKS_API lks_status lks_scaler_set_backoff_factor(lks_scaler *s, double backoff);
LKS_API lks_status lks_scaler_set_growth_interval(lks_scaler *s, int64_t interval);
LKS_API lks_status lks_scaler_set_bounds(lks_scaler *s, double floor, double ceiling);
LKS_API lks_status lks_scaler_set_floor_limit(lks_scaler *s, int64_t skips);
LKS_API lks_status lks_scaler_set_hysteresis(lks_scaler *s, int64_t skips);
LKS_API lks_status lks_scaler_set_dynamic(lks_scaler *s, int on);
LKS_API double lks_scaler_growth_factor(const lks_scaler *s);
LKS_API double lks_scaler_backoff_factor(const lks_scaler *s);
LKS_API int64_t lks_scaler_growth_interval(const lks_scaler *s);
LKS_API double lks_scaler_floor(const lks_scaler *s);
LKS_API double lks_scaler_ceiling(const lks_scaler *s);
LKS_API int64_t lks_scaler_floor_limit(const lks_scaler *s);
LKS_API int64_t lks_scaler_hysteresis(const lks_scaler *s);
LKS_API int lks_scaler_dynamic(const lks_scaler *s);
/* Current scale and tracker. Waits for the device. Local. */
LKS_API lks_status lks_scaler_get(lks_scaler *s, double *scale, int64_t *tracker);
/* Good updates and bad ones so far. Waits for the device. Local. */
LKS_API lks_status lks_scaler_counts(lks_scaler *s, int64_t *good, int64_t *bad);

/* loss times scale, recorded; the product is made in float32, so a reduced loss does not overflow. Any shape, any
 * number of losses in an iteration. Disabled: the loss itself. Local. */
LKS_API lks_tensor *lks_scaler_scale(lks_scaler *s, lks_tensor *loss);
/* The same for n tensors; on failure scaled[] is NULL from the bad one on. Local. */
LKS_API lks_status lks_scaler_scale_n(lks_scaler *s, int n, lks_tensor *const *loss, lks_tensor **scaled);
/* Ends the iteration: new scale from the flags of all optimizers stepped or unscaled since the last update (bad if any
 * was); they become READY. LKS_ERR_STATE if there was none. Disabled: does nothing. Local: every rank holds the same
 * flag. */
LKS_API lks_status lks_scaler_update(lks_scaler *s);
/* In its place, call by call, for a scale that changes only at every n-th iteration, from a flag that keeps what
 * happened in between: one backoff if any was bad; else the good ones are credited, with one growth for each full
 * interval and the remainder kept. Steps are skipped one by one as ever. n may change, and lks_scaler_update be used
 * again, when the window is over (else LKS_ERR_STATE). Local. */
LKS_API lks_status lks_scaler_update_n(lks_scaler *s, int64_t n);
/* In its place: the iteration is counted, its flags do not matter, the scale becomes `scale`, the tracker stays. Any
 * open window ends. LKS_ERR_STATE if a loss was scaled and nothing stepped. _from takes it from a float32 or float64
 * tensor of one element, without waiting: brought within the bounds; one that is not above 0 and finite is not taken.
 * Local, the same on every rank. */
LKS_API lks_status lks_scaler_update_to(lks_scaler *s, double scale);
LKS_API lks_status lks_scaler_update_from(lks_scaler *s, lks_tensor *scale);

/* State as one line of text: floats in exact hexadecimal; `text` needs 1024 bytes. LKS_ERR_STATE between a step and its
 * update; loading also between scale and step. Load compares the schedule: REFUSE a difference (LKS_ERR_MISMATCH names
 * both), ADOPT the file's, KEEP the program's. An empty state does not load into an enabled scaler. Waits for the
 * device. Local. */
enum lks_state_policy { LKS_STATE_REFUSE, LKS_STATE_ADOPT, LKS_STATE_KEEP };
LKS_API lks_status lks_scaler_save_text(lks_scaler *s, char *text, int bytes);
LKS_API lks_status lks_scaler_load_text(lks_scaler *s, const char *text, int policy);

#ifdef __cplusplus
}
#endif
#endif
