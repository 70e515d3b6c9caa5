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

/* A part of the graph that keeps no tensors: they are made again when backward first needs one. Room grad fills it in;
 * its nodes have shares of it. */
typedef struct lksi_recompute {
    int64_t refs;
    lks_context *ctx;
    struct lksi_node **node; /* in the order of recording; NULL where one is gone or needs no more */
    int64_t count, room;
    int64_t at; /* >= 0: made again, the next node; -1: being recorded */
    int filled;
    lks_status (*refill)(struct lksi_recompute *self);
    void (*destroy)(struct lksi_recompute *self);
} lksi_recompute;
void lksi_recompute_drop(lksi_recompute *rc); /* NULL is fine */

#define LKSI_CUSTOM 64
struct lks_custom; /* begins with a lksi_custom_head */
typedef struct lksi_custom_head {
    char name[64];
    int saved; /* tensors it keeps for backward */
    lks_tensor **tensor;
    int64_t *version;
    int *output; /* tensor i is an alias of this output, -1: it is not one */
} lksi_custom_head;

typedef struct lksi_node {
    lksi_owned own; /* first */
    lks_context *ctx;
    int64_t number;
    int op, nin, nout; /* op -1: a custom function */
    struct lks_custom *custom; /* its call; room grad */
    void (*custom_free)(struct lks_custom *call);
    lksi_recompute *recompute; /* a share; NULL */
    int64_t place;             /* in it */
    int freed;    /* saved tensors and edges are gone */
    int64_t pass; /* backward pass that last met it */
    int64_t scale; /* number of the scale that it multiplies a loss by; 0: it does not */
    int64_t arrived; /* tensor.grad_scale of the gradients that arrived in the pass under way */
    int64_t bytes; /* of the node, with all that its pointers point into */
    lksi_attr attr;
    lksi_edge *edge;   /* nin */
    lksi_saved *saved; /* nin inputs, then nout outputs */
    lksi_meta *out;    /* nout */
    lks_tensor **grad; /* nout: gradients that arrived in the pass under way (shares) */
    lks_tensor *low;   /* grad[0] in another dtype, made with it, for edges that want that one (a share); NULL */
    int64_t *part;     /* cat: size of input i along attr.dim.dim, -1 if it was skipped; else NULL */
    uint8_t *grad_own; /* nout: 1 = the tensor is ours alone and may be added to in place */
    struct lksi_node *next_dying;
} lksi_node;

/* 1 if an op on these inputs must be recorded. */
int lksi_tape_wants(lks_context *ctx, int nin, lks_tensor *const *in);
/* Records op: out[] become its children. On failure nothing is recorded. */
lks_status lksi_tape_record(lks_context *ctx, int op, int nin, lks_tensor *const *in, const lksi_attr *attr, int nout,
                            lks_tensor **out);
/* Records a call of a custom function, which must have LKSI_CUSTOM inputs and outputs at most; takes `call` over when
 * it succeeds. outputs that are not floating are no children. */
lks_status lksi_tape_record_custom(lks_context *ctx, struct lks_custom *call, void (*custom_free)(struct lks_custom *),
                                   int nin, lks_tensor *const *in, int nout, lks_tensor **out);
/* Name of what a node did; name of a custom call (room grad sets how it is found). */
const char *lksi_node_name(const lksi_node *n);
/* Frees saved tensors and edges. */
void lksi_node_free_saved(lksi_node *n);
/* The edge along which t's gradient goes; borrowed. */
lksi_edge lksi_edge_of(lks_tensor *t);

#endif
