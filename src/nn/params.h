/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h - the parameter set as optim, dp and ckpt see it.
 */
#ifndef LKSI_PARAMS_H
#define LKSI_PARAMS_H

#include "tensor/tensor.h"
#include <lockstep/nn.h>

#define LKSI_ARENAS 4 /* one per floating dtype: f32, f64, f16, bf16 */

typedef struct lksi_entry {
    char *name;
    lks_tensor *t;
    int is_buffer;
    int trainable;      /* in force */
    int want_trainable; /* asked for; taken over at zero_grad */
    int arena, slice;   /* after sealing: ps->arena[arena]->slice[slice]; buffers: ps->buffers (-1: not float32) */
    lks_tensor *staged; /* buffers: what forward wrote, same shape, committed with the step; see lksi_params_staged */
    int staged_dirty;   /* handed out since the last commit */
    int64_t staged_version, running_version; /* of the storages when both were last equal */
} lksi_entry;

/* Handed down by dp (the only arrow upward): called by the optimizer before it reads gradients. With a reducer,
 * gradient memory of every trainable parameter holds a gradient once finish returned (zeros where no rank has one), and
 * presence (t->grad) is the same on every rank: where any of them has one. */
typedef struct lksi_reducer {
    void *self;
    lks_status (*finish)(void *self);               /* all buckets reduced or joined; LKS_OK also if this rank failed */
    int (*failed)(void *self);                      /* 1: this rank failed in backward: put 2 in the flag */
    const double *(*weight)(void *self);            /* device double: true weight summed over ranks and micro-batches */
    double (*nominal)(void *self);                  /* nominal weight, 0 = none */
    void (*stepped)(void *self);                    /* the step is over: a new window begins */
    const int32_t *(*here)(void *self);             /* device: 1 = this rank's gradients were not finite before their
                                                     * reduction; NULL: not looked at */
    int (*bucket)(void *self, int entry);           /* bucket of an entry, -1: none */
    lks_status (*dropped)(void *self);              /* the gradients are cleared: what was reduced is forgotten */
} lksi_reducer;

struct lks_params {
    lks_context *ctx;
    int n, room;
    lksi_entry *e;
    int sealed;
    lksi_arena *arena[LKSI_ARENAS]; /* parameters by dtype; NULL where there are none */
    lksi_arena *buffers;            /* float32 buffers, running values */
    lksi_arena *staged;             /* same layout: values staged by forward */
    int buffers_dirty;              /* forward staged something since the last commit */
    int layout_version;             /* + 1 when trainable flags change */
    int64_t window;                 /* + 1 when gradients begin anew: at zero_grad; with a reducer, at the first
                                     * backward after that or after a step */
    lksi_reducer *reducer;          /* NULL: none */
    lksi_mover mover;
};

/* 1 if entry i has a gradient now. */
int lksi_params_present(const lks_params *ps, int i);
/* The staged twin of float32 buffer i, for a forward pass that is about to write it: it starts each window with the
 * running value, also after a load. NULL: failed, or not a float32 buffer. */
lks_tensor *lksi_params_staged(lks_params *ps, int i);
/* Makes running and staged values of what was handed out equal: running = staged if the step in `step` (view of struct
 * lksi_step) was applied, else staged = running. A buffer written by others in between keeps what they wrote. */
lks_status lksi_params_commit(lks_params *ps, const char *where, const lksi_view *step);

#endif
