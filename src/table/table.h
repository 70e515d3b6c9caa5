/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.h - ops.def as an enum and an array of rows, and the shape rules. Knows no memory, no device, no context.
 */
#ifndef LKSI_TABLE_H
#define LKSI_TABLE_H

#include "base/base.h"
#include "table/why.h"

enum lksi_op {
#define OP(name, ...) LKSI_OP_##name,
#define OP_NOGRAD OP
#define OP_VIEW OP
#define OP_INPLACE OP
#define OP_COMPOSITE OP
#include "table/ops.def"
#undef OP
#undef OP_NOGRAD
#undef OP_VIEW
#undef OP_INPLACE
#undef OP_COMPOSITE
    LKSI_OP_COUNT
};

enum lksi_kind { LKSI_KIND_OP, LKSI_KIND_NOGRAD, LKSI_KIND_VIEW, LKSI_KIND_INPLACE, LKSI_KIND_COMPOSITE };

/* Shape rule: fills dtype, ndim, shape and stride of every out (stride row-major unless the row keeps channels-last;
 * a view row also sets out->data from in->data), normalises attr (negative dims). Returns a status with the cause in
 * a->why ("inner sizes differ: [2,3] @ [4,5]"). In-place rows check that what was handed in fits. Inputs' data must not
 * be read. Absent inputs have ndim -1. */
typedef lks_status (*lksi_infer_fn)(lksi_args *a);

/* In save_out: the saved outputs after the first have gradients, too (otherwise they are statistics). */
#define LKSI_SAVE_LIVE 0x100
typedef struct lksi_row {
    const char *name, *schema;
    int kind, min_in, max_in, nout;
    int save_in, save_out;
    int policy[2]; /* by lks_policy_table: [LKS_TABLE_CPU], [LKS_TABLE_CUDA] */
    lksi_infer_fn infer; /* NULL: composite */
} lksi_row;

extern const lksi_row lksi_rows[LKSI_OP_COUNT];
/* 1 if the row works on complex tensors (complex.def). */
int lksi_takes_complex(int op);
/* Row of a name or of an alias (aliases.def); -1: there is none. */
int lksi_row_named(const char *name);

/* Helpers for shape rules, kernels and rooms above. */
int64_t lksi_numel(const lksi_view *v);                       /* product of shape (checked when the tensor was made) */
int lksi_is_contiguous(const lksi_view *v);                   /* row-major; strides of size-1 dims are ignored */
int lksi_is_channels_last(const lksi_view *v);                /* 4-D or 5-D, channels fastest in memory */
void lksi_contiguous_strides(lksi_view *v);                   /* row-major strides for v->shape */
void lksi_channels_last_strides(lksi_view *v); /* of any ndim from 3 on */
int lksi_broadcast(const lksi_view *a, const lksi_view *b, lksi_view *out); /* 1 = fits; sets ndim and shape */
void lksi_order_like_inputs(lksi_args *a); /* strides of out 0 (shape is set) after those of inputs of its shape */
lks_dtype lksi_promote_views(const lksi_view *a, const lksi_view *b);       /* 0-dim tensors do not widen */
const char *lksi_shape_text(const lksi_view *v, char *buffer, int bytes);   /* "[2,3]"; "none" if absent */

#endif
