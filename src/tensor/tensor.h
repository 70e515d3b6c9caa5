/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.h - the context struct, storages, tensors, scopes, arenas. Rooms above keep their state behind the pointers of
 * the context.
 */
#ifndef LKSI_TENSOR_H
#define LKSI_TENSOR_H

#include "base/base.h"
#include "device/device.h"
#include <lockstep/autograd.h>
#include <lockstep/autocast.h>
#include <lockstep/tensor.h>

struct lksi_comm;
struct lksi_node;
struct lksi_autocast;
struct lksi_recompute;

struct lks_context {
    lksi_base base; /* first: a context is a base */
    lksi_device *dev;
    struct lksi_comm *comm;         /* room comm */
    struct lksi_autocast *autocast; /* room autocast */
    void (*poll)(struct lksi_comm *comm); /* handed down by comm: called by the door every few ops; may be NULL */
    int door_count;
    /* scopes */
    lks_tensor **born;
    int64_t born_count, born_room;
    int64_t *scope_start;
    int scope_count, scope_room;
    /* tape */
    int no_grad;           /* nesting of lks_no_grad_begin */
    int64_t next_node;     /* number of the next node */
    int64_t live_nodes, live_tensors;
    int64_t walk;          /* stamp of the last backward pass */
    int64_t scales;        /* numbers given to scales of losses */
    int walking;           /* one is under way */
    void *dying;           /* nodes waiting to be freed, so that long graphs do not recurse */
    int draining;
    struct lksi_recompute *recompute; /* nodes recorded now belong to it */
    const char *visiting;  /* the op whose gradient is being computed; NULL */
    int anomaly;           /* > 0: the door looks for NaN */
    int looking;           /* it is doing so */
    lks_observer_fn observer;
    void *observer_user;
    /* random */
    lksi_rng *rng;         /* device copy of (seed, attempt) */
    int64_t seed, attempt; /* host copy */
    int64_t call;          /* next call number */
    int64_t row_first, row_count;
    int staged_off; /* > 0: recomputation, running statistics are not staged again */
    int local_rank, local_size, threads;
    int owns_mpi;
    struct lksi_control *control; /* room comm: lks_control's ring */
    struct lksi_later *later;     /* room ops: values on their way to the host */
    struct lksi_mover *movers;
    struct lks_graph *graphs;     /* room ctx */
};

/* --- what steps move on the host ---
 *
 * A replay (ctx/graph.c) launches a step without making its calls, and moves on the host what they would have moved. So
 * each object that steps change lists its numbers, in an order that hangs on its facts alone:
 * a fact decides what the calls do, and is the same before and after each step (a gradient is there, a copy is of the
 * present version: the difference of two counters); a counter grows by the same number in each step; a place is where
 * the program puts it before each step (the call number of random numbers), and is the same before each. Steps repeat
 * if facts and places are those of the step that was captured. */
enum { LKSI_LOOK, LKSI_COMPARE, LKSI_MOVE };
typedef struct lksi_moves {
    lksi_base *base;
    int what;
    uint64_t facts, places;
    int64_t *value; /* look: the numbers, filled in; move: what is added */
    int64_t n, room;
    int failed;       /* no host memory */
    const char *once; /* why no step can be repeated now; NULL */
} lksi_moves;
void lksi_fact(lksi_moves *m, int64_t fact);
void lksi_fact_at(lksi_moves *m, const void *p);
void lksi_counter(lksi_moves *m, int64_t *counter);
void lksi_stamp(lksi_moves *m, int64_t *stamp, int64_t of); /* a counter, and how far it is behind another one */
void lksi_place(lksi_moves *m, int64_t *place);
typedef struct lksi_mover {
    struct lksi_mover *next, **at;
    void *self;
    void (*list)(void *self, lksi_moves *m);
    /* May be NULL. before: what the device lacks is sent now, not in the step. after: the step is launched, captured or
     * replayed, and its numbers are moved; what was left for then. */
    lks_status (*before)(void *self);
    lks_status (*after)(void *self);
} lksi_mover;
void lksi_mover_add(lks_context *ctx, lksi_mover *m, void *self, void (*list)(void *self, lksi_moves *m));
void lksi_mover_remove(lksi_mover *m); /* one that was not added is fine */

/* Something shared whose last share destroys it; graph nodes begin with one, so that a tensor can drop its node. */
typedef struct lksi_owned {
    int64_t refs;
    void (*destroy)(struct lksi_owned *self);
} lksi_owned;
void lksi_owned_drop(lksi_owned *o); /* NULL is fine */

/* Device memory with a version that counts writes. Slices of an arena have their own. */
typedef struct lksi_storage {
    lks_context *ctx;
    char *data;
    int64_t bytes;
    int64_t version;
    int refs;
    int owned; /* free data with the pool when refs drop to 0; 0: wrapped or an arena slice */
    struct lksi_arena *arena; /* of which it is a slice; NULL */
    int slice;
} lksi_storage;

typedef struct lksi_hook {
    int64_t id;
    lks_hook_fn fn;
    void *user;
    struct lksi_hook *next;
} lksi_hook;

struct lks_tensor {
    lks_context *ctx;
    lksi_storage *st;
    lksi_view v;       /* data = st->data + offset */
    int64_t numel;
    int shares;
    uint8_t requires_grad; /* leaf that wants a gradient, or result of a recorded op */
    uint8_t is_view;
    /* Where its gradient goes: output `out` of node (a share of it), or into `leaf` (a share; NULL for itself). A cast
     * copy made by the door has the edge of its source. */
    struct lksi_node *node;
    int out;
    lks_tensor *leaf;
    /* leaves */
    lks_tensor *grad;
    int64_t pass; /* backward pass that last counted it */
    int uses;     /* contributions still to come in that pass */
    /* What grad was multiplied by: the number of a scale (above 0) or one of those below; when its version was that. */
    int64_t grad_scale, grad_version;
    lks_tensor *grad_slot; /* sealed parameter: its slice of the gradient arena */
    lksi_hook *hooks;
};

/* tensor.grad_scale: written by hand, or there is none; of losses that were not scaled; a sum of different ones;
 * divided by lks_optim_unscale. */
enum { LKSI_GRAD_BY_HAND = 0, LKSI_GRAD_PLAIN = -1, LKSI_GRAD_MIXED = -2, LKSI_GRAD_DIVIDED = -3 };
/* grad_scale of t as it is now; LKSI_GRAD_BY_HAND if the program wrote to grad since. And sets it. */
int64_t lksi_grad_scale(const lks_tensor *t);
void lksi_grad_set_scale(lks_tensor *t, int64_t scale);

/* lks_keep and lks_release, for loops that meet many. */
void lksi_tensor_destroy(lks_tensor *t); /* the last share is gone */
static inline lks_tensor *lksi_keep(lks_tensor *t)
{
    if (t && t != lks_none) t->shares++;
    return t;
}
static inline void lksi_drop(lks_tensor *t)
{
    if (t && t != lks_none && --t->shares == 0) lksi_tensor_destroy(t);
}

/* Never fails the NULL pass-through silently: 1 if any of the n tensors is NULL. */
int lksi_any_null(int n, lks_tensor *const *t);

/* New storage over foreign memory. NULL with the error recorded. */
lksi_storage *lksi_storage_wrap(lks_context *ctx, void *data, int64_t bytes);
void lksi_storage_drop(lksi_storage *st);

/* New tensor on st (takes a share of it) described by v, v->data included; belongs to the innermost scope. */
lks_tensor *lksi_tensor_on(lksi_storage *st, const lksi_view *v);
/* New tensor with fresh memory for v's dtype, shape and stride (dense). where: for the error text. */
lks_tensor *lksi_tensor_new(lks_context *ctx, const lksi_view *v, const char *where);
/* Takes the newest tensor out of its scope: the caller owns its one share. NULL passes. */
lks_tensor *lksi_tensor_unscoped(lks_tensor *t);
/* A further header on t's memory, without history. */
lks_tensor *lksi_tensor_alias(lks_tensor *t);
/* The same, of no scope: the caller owns its one share. */
lks_tensor *lksi_tensor_saved(lks_tensor *t);
/* Drops the tensor's share of its node and leaf: it becomes a constant. */
void lksi_tensor_forget(lks_tensor *t);
/* Checks an element count and byte size; where: for the error. */
lks_status lksi_check_shape(lks_context *ctx, const char *where, lks_dtype dtype, int ndim, const int64_t *shape,
                            int64_t *numel);
/* 1 for the dtypes that gradients are of: floating and complex ones. */
static inline int lksi_has_gradient(lks_dtype dtype)
{
    const unsigned which =
        1u << LKS_F32 | 1u << LKS_F64 | 1u << LKS_F16 | 1u << LKS_BF16 | 1u << LKS_C64 | 1u << LKS_C128;
    return dtype >= 0 && which >> dtype & 1;
}
/* Fills v (row-major). */
void lksi_view_init(lksi_view *v, lks_dtype dtype, int ndim, const int64_t *shape);
/* Adds to the text of the error just recorded, a request for device memory that failed: the call and the shape it was
 * for, and the tensors of the open scopes, largest first. */
void lksi_tensors_alive(lks_context *ctx, const lksi_view *wanted, const char *where);
/* "bfloat16[2,3]" for error texts. */
const char *lksi_tensor_text(const lks_tensor *t, char *buffer, int bytes);

/* --- arenas: one dtype's parameters in one block, gradients in a twin layout ------------------------------------- */

#define LKSI_ARENA_ALIGN 64 /* elements; each slice starts on a multiple */

typedef struct lksi_slice {
    int64_t offset, numel; /* elements */
    lks_tensor *value;     /* the parameter (its storage is the slice) */
    lks_tensor *grad;      /* same shape over the gradient block; NULL for buffers */
    lks_tensor *twin[2];   /* low-precision copies: [0] bf16, [1] f16; NULL until in use */
    int64_t twin_version[2];
} lksi_slice;

typedef struct lksi_arena {
    lks_context *ctx;
    lks_dtype dtype;
    int64_t count; /* elements, padding included (padding stays 0) */
    char *value, *grad;  /* device blocks; grad NULL for buffers */
    char *twin[2];       /* blocks of count elements, NULL until in use */
    int slices;
    lksi_slice *slice;
} lksi_arena;

/* Moves the n tensors (contiguous leaves of one dtype, own storage) into one new block in the order given, keeping
 * their headers and values; with_grad: also a zeroed gradient block, and each tensor's grad_slot. */
lks_status lksi_arena_create(lks_context *ctx, lks_dtype dtype, int n, lks_tensor *const *t, int with_grad,
                             lksi_arena **arena);
/* Frees blocks; tensors over them must not be used afterwards (their storages become empty). */
void lksi_arena_destroy(lksi_arena *a);
/* Makes sure the twin block and headers for dtype (LKS_BF16 or LKS_F16) exist; which = 0 or 1. Contents are not filled.
 */
lks_status lksi_arena_twin(lksi_arena *a, lks_dtype dtype, int *which);
/* All values were written: versions + 1; twins_too: twins were rewritten with them. */
void lksi_arena_touched(lksi_arena *a, int twins_too);

#endif
