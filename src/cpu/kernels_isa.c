/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernels_isa.c - the table of the kernels of one instruction set, expanded from ops.def. Compiled once per ISA; a row
 * without its kernel does not link.
 */
#include "cpu/cpu.h"

#define OP(name, ...) LKSI_KERNEL(name);
#define OP_NOGRAD OP
#define OP_INPLACE OP
#define OP_VIEW(name, ...)
#include "table/ops.def"
#undef OP

extern const lksi_cpu_kernel LKSI_PASTE(lksi_cpu_table, LKSI_ISA)[LKSI_OP_COUNT];
const lksi_cpu_kernel LKSI_PASTE(lksi_cpu_table, LKSI_ISA)[LKSI_OP_COUNT] = {
#define OP(name, ...) [LKSI_OP_##name] = LKSI_KERNEL_NAME(name),
#include "table/ops.def"
};
