/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ckpt.h - the checkpoint object: what is saved and loaded, and the program's own keys.
 */
#ifndef LKSI_CKPT_H
#define LKSI_CKPT_H

#include "ckpt/file.h"
#include "optim/optim.h"
#include "scaler/scaler.h"
#include <lockstep/ckpt.h>

enum lksi_key_kind { LKSI_KEY_I64, LKSI_KEY_F64, LKSI_KEY_TEXT };
typedef struct lksi_key {
    char *name, *text;
    int kind;
    int64_t i64;
    double f64;
} lksi_key;

typedef struct lksi_keys {
    int64_t n, room;
    lksi_key *k; /* by name */
} lksi_keys;
lksi_key *lksi_keys_find(const lksi_keys *keys, const char *name);
/* The entry of that name, made if need be; its old value is dropped. NULL: out of memory. */
lksi_key *lksi_keys_put(lksi_base *b, lksi_keys *keys, const char *name);
void lksi_keys_free(lksi_base *b, lksi_keys *keys);

struct lks_checkpoint {
    lks_context *ctx;
    lks_params *ps;
    lks_optim *opt;
    lks_scaler *scaler;
    int policy, strict;
    lksi_keys keys;
};

/* Parameters in question: those set, else the optimizer's, else NULL. */
lks_params *lksi_ckpt_params(const lks_checkpoint *c);
/* Length of the kind in an optimizer's text: "adamw" of "adamw; group 0 ...". */
int lksi_ckpt_kind_length(const char *text);

lks_status lksi_ckpt_save(lks_checkpoint *c, const char *where, const char *path, int64_t step);

#endif
