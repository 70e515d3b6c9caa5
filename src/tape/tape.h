/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tape.h - what was done and what is saved of it. A node is owned by its outputs and by the edges of later nodes, and
 * numbered per context; backward (room grad) walks by falling number.
 */
#ifndef LKSI_TAPE_H
#define LKSI_TAPE_H

#include "tensor/tensor.h"

/* Where the gradient of an input goes: output `out` of a node, or a leaf; both NULL: nowhere. */
typedef struct lksi_edge {
    struct lksi_node *node; /* a share */
    lks_tensor *leaf;       /* a share */
    int out;
} lksi_edge;

typedef struct lksi_saved {
    lks_tensor *t; /* a share; NULL: not saved. An output is saved as an alias without history */
    int64_t version;
} lksi_saved;

/* dtype and shape of an output: what its gradient must look like. */
typedef struct lksi_meta {
    int32_t dtype, ndim;
    int64_t shape[LKS_MAX_DIMS];
} lksi_meta;

typedef struct lksi_node {
    lksi_owned own; /* first */
    lks_context *ctx;
    int64_t number;
    int op, nin, nout;
    int freed;    /* saved tensors and edges are gone */
    int64_t pass; /* backward pass that last met it */
    lksi_attr attr;
    lksi_edge *edge;   /* nin */
    lksi_saved *saved; /* nin inputs, then nout outputs */
    lksi_meta *out;    /* nout */
    lks_tensor **grad; /* nout: gradients that arrived in the pass under way (shares) */
    int64_t *part;     /* cat: size of input i along attr.dim.dim, -1 if it was skipped; else NULL */
    uint8_t *grad_own; /* nout: 1 = the tensor is ours alone and may be added to in place */
    struct lksi_node *next_dying;
} lksi_node;

/* 1 if an op on these inputs must be recorded. */
int lksi_tape_wants(lks_context *ctx, int nin, lks_tensor *const *in);
/* Records op: out[] become its children. On failure nothing is recorded. */
lks_status lksi_tape_record(lks_context *ctx, int op, int nin, lks_tensor *const *in, const lksi_attr *attr, int nout,
                            lks_tensor **out);
/* Frees saved tensors and edges. */
void lksi_node_free_saved(lksi_node *n);
/* The edge along which t's gradient goes; borrowed. */
lksi_edge lksi_edge_of(lks_tensor *t);

#endif
