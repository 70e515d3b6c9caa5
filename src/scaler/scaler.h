/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scaler.h - the scaler as optim, dp and ckpt see it: its device state, and the states of optimizers between updates.
 */
#ifndef LKSI_SCALER_H
#define LKSI_SCALER_H

#include "tensor/tensor.h"
#include <lockstep/scaler.h>

/* Layout of the scaler in device memory (one block; see src/table/step.h for the struct). */
void *lksi_scaler_device(lks_scaler *s); /* NULL s, or a disabled one: NULL */

lks_context *lksi_scaler_context(const lks_scaler *s);
/* Names the time between two updates: an optimizer that remembers another one is READY. */
int64_t lksi_scaler_round(const lks_scaler *s);
/* An optimizer has stepped or unscaled in this round: update is in order. */
void lksi_scaler_recorded(lks_scaler *s);
/* Number of the present scale (tensor.grad_scale). */
int64_t lksi_scaler_number(const lks_scaler *s);

/* x as an integer times a power of two, "0x3p-4": exact, and the same in every locale. 32 bytes are enough. */
void lksi_hex_float(char *text, int bytes, double x);

/* Complete state as host numbers for a checkpoint. */
typedef struct lksi_scaler_saved {
    int32_t enabled;
    uint32_t scale_bits; /* float32 */
    int64_t tracker, good, bad, floor_skips;
    int64_t credit, sticky, strikes, window_at; /* inside a window of lks_scaler_update_n */
    double growth, backoff, floor, ceiling;
    int64_t interval, floor_limit, hysteresis, fixed;
} lksi_scaler_saved;
/* Waits. LKS_ERR_STATE while a step or unscale waits for its update. A disabled scaler: all zero. */
lks_status lksi_scaler_read(lks_scaler *s, lksi_scaler_saved *saved);
/* Checks against the program by policy (enum lks_state_policy); writes nothing when it fails. A disabled scaler takes
 * anything and keeps nothing; an enabled one does not take the state of a disabled one. */
lks_status lksi_scaler_check(lks_scaler *s, const lksi_scaler_saved *saved, int policy);
lks_status lksi_scaler_write(lks_scaler *s, const lksi_scaler_saved *saved, int policy);

#endif
