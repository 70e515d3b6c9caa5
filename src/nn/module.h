/* SPDX-License-Identifier: BSD-3-Clause
 *
 * module.h - the inside of a module: a table of what it does, its children, train or eval. A layer's struct begins with
 * struct lks_module. Modules call public ops only and own no tensor; parameters belong to the set.
 */
#ifndef LKSI_MODULE_H
#define LKSI_MODULE_H

#include "nn/params.h"

typedef struct lksi_module_ops {
    const char *name; /* "linear": for error texts */
    /* Output for x, which is not NULL. Runs in a scope of its own: what neither backward nor the result needs dies with
     * it. */
    lks_tensor *(*forward)(lks_module *m, lks_tensor *x);
} lksi_module_ops;

struct lks_module {
    const lksi_module_ops *ops;
    lks_params *ps;
    lks_context *ctx;
    int train;
    int recompute; /* its forward runs in lks_recompute */
    int children;
    lks_module **child; /* owned; entries may be NULL */
    lksi_mover mover;
};

/* A zeroed module of `bytes` with room for `children`; NULL: out of memory, recorded. */
void *lksi_module_new(lks_params *ps, const lksi_module_ops *ops, int64_t bytes, int children);

/* Ends a constructor: on LKS_OK *out = m; else m is destroyed, what was declared in ps since it had `count` entries is
 * taken back, and *out is NULL. Returns s. */
lks_status lksi_module_finish(lks_params *ps, int count, lks_status s, lks_module *m, lks_module **out);

/* "PREFIX.name", "name" for prefix "". A text too long for a name is cut where lks_params_add still refuses it. */
#define LKSI_NAME 1100
const char *lksi_name(char *buffer, const char *prefix, const char *name);

/* Bad argument of a constructor. */
lks_status lksi_module_refuse(lks_params *ps, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* How a weight starts; biases start uniform with LKSI_INIT_KAIMING, else 0. */
enum lksi_init { LKSI_INIT_KAIMING, LKSI_INIT_XAVIER, LKSI_INIT_NORMAL };
typedef struct lksi_start { int kind; double std; } lksi_start;

/* Layers with a start of the caller's choice. */
lks_status lksi_linear_new(lks_params *ps, const char *prefix, int64_t in, int64_t out, int bias, lksi_start start,
                           lks_module **m);
lks_status lksi_embedding_new(lks_params *ps, const char *prefix, int64_t count, int64_t dim, double std,
                              lks_module **m);
lks_status lksi_attention_new(lks_params *ps, const char *prefix, int64_t dim, int64_t heads, int causal,
                              double dropout, lksi_start qkv, lksi_start proj, lks_module **m);
/* Layer norm m's results go to linear layers and products alone. */
void lksi_layer_norm_for_products(lks_module *m);
/* The weight of an embedding (shared with a head). */
lks_tensor *lksi_embedding_weight(const lks_module *m);

#endif
