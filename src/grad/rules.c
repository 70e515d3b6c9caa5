/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules.c - the table's gradient column: one rule per row, or NULL. The rules themselves are in rules_FAMILY.c.
 */
#include "grad/grad.h"

#define OP(name, ...) lks_status lksi_back_##name(lksi_back *b);
#define OP_VIEW OP
#define OP_NOGRAD(...)
#define OP_INPLACE(...)
#include "table/ops.def"
#undef OP
#undef OP_VIEW
#undef OP_NOGRAD
#undef OP_INPLACE

const lksi_back_fn lksi_back_rules[LKSI_OP_COUNT] = {
#define OP(name, ...) lksi_back_##name,
#define OP_VIEW OP
#define OP_NOGRAD(name, ...) NULL,
#define OP_INPLACE OP_NOGRAD
#define OP_COMPOSITE OP_NOGRAD
#include "table/ops.def"
#undef OP
#undef OP_VIEW
#undef OP_NOGRAD
#undef OP_INPLACE
#undef OP_COMPOSITE
};
