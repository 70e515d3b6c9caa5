/* SPDX-License-Identifier: BSD-3-Clause
 *
 * optim.h - optimizer state as a checkpoint sees it.
 */
#ifndef LKSI_OPTIM_H
#define LKSI_OPTIM_H

#include "nn/params.h"
#include <lockstep/optim.h>

/* A block of per-element state with the layout of ps->arena[arena]: "exp_avg", "exp_avg_sq", "max_exp_avg_sq",
 * "momentum", "square_avg", "grad_avg", "sum", "master", "average". */
typedef struct lksi_state_block {
    const char *name;
    int arena;
    char *data;      /* device */
    lks_dtype dtype; /* float32, or float64 for float64 parameters */
} lksi_state_block;
int lksi_optim_block_count(const lks_optim *opt);
void lksi_optim_block(const lks_optim *opt, int i, lksi_state_block *block);

/* Everything else, as host numbers. applied: per entry of the parameter set (buffers: 0). Read waits for the device. */
typedef struct lksi_optim_saved {
    int64_t attempts, applied, skipped;
    int64_t *param_applied; /* ps->n entries, caller's memory */
} lksi_optim_saved;
lks_status lksi_optim_read(lks_optim *opt, lksi_optim_saved *s);
/* Writes it, rebuilds what follows from it (bias corrections, drift hash), ends a drift. Call it last, after values and
 * blocks were written: masters then count as they are, else a value that was written from outside renews its master. */
lks_status lksi_optim_write(lks_optim *opt, const lksi_optim_saved *s);
/* "adamw ..." and what the meaning of its state depends on (groups, betas, momentum) as text that two equal optimizers
 * share: stored, and compared on load. Learning rate, decay, eps and schedule may change from run to run and are not
 * in it. Lives until the next call; NULL when out of memory. */
const char *lksi_optim_kind_name(const lks_optim *opt);
lks_params *lksi_optim_params(const lks_optim *opt);

#endif
