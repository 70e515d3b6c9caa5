/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu.h - what CPU kernels stand on: the workers, scratch memory, the naming that lets one source be compiled for
 * several instruction sets (LKSI_ISA = base, avx2, avx512; chosen at run time, LKS_ISA forces one).
 *
 * Kernel files (src/cpu/NAME.c listed under "kernels" in Makefile.am) are compiled once per ISA, everything else
 * once. All vector code uses GCC vector extensions of 64 bytes or plain loops, so every ISA adds in the same order.
 */
#ifndef LKSI_CPU_H
#define LKSI_CPU_H

#include "device/device.h"

typedef struct lksi_cpu lksi_cpu;

/* Workers: the calling thread is worker 0; others spin briefly, then sleep. They run under the default floating-point
 * environment, with signals blocked. */
int lksi_cpu_workers(const lksi_cpu *cpu);
/* fn(arg, begin, end, worker) over [0, n) in contiguous pieces of at least `grain` (the last may be shorter); runs on
 * the caller alone when n < 2 grain, and when called from inside fn. A worker may be given several pieces, in any
 * order. The split depends on the thread count: reductions must use fixed blocks as items. Returns when all is done. */
typedef void (*lksi_range_fn)(void *arg, int64_t begin, int64_t end, int worker);
void lksi_parallel(lksi_cpu *cpu, int64_t n, int64_t grain, lksi_range_fn fn, void *arg);
/* Memory of at least `bytes`, 64-byte aligned, kept and reused: one per (worker, slot); worker -1 = shared by all
 * (ask for it outside fn). It holds anything; asking for more may move it. NULL when out of memory. slot <
 * LKSI_SCRATCH_SLOTS. */
#define LKSI_SCRATCH_SLOTS 6
void *lksi_scratch(lksi_cpu *cpu, int worker, int slot, int64_t bytes);

/* What a kernel family keeps from call to call (cached primitives): a pointer, NULL at first. If it is not NULL when
 * the backend is closed, destroy gets it. Only outside fn. slot: one of these. */
enum { LKSI_STATE_FFT, LKSI_STATE_ONEDNN, LKSI_STATE_GEMM, LKSI_STATE_CONV, LKSI_STATE_SPARE, LKSI_STATES };
void **lksi_cpu_state(lksi_cpu *cpu, int slot, void (*destroy)(void *state));
/* What the module liblockstep_NAME.so provides, loaded now if it was not; NULL, with a text of LKSI_WHY bytes. */
const void *lksi_cpu_module(lksi_cpu *cpu, const char *name, char *why);
/* "base", "avx2", "avx512". */
const char *lksi_cpu_isa(const lksi_cpu *cpu);

typedef lks_status (*lksi_cpu_kernel)(lksi_cpu *cpu, const lksi_args *a);

#define LKSI_PASTE_(a, b) a##_##b
#define LKSI_PASTE(a, b) LKSI_PASTE_(a, b)
/* Name of a kernel in this ISA's build: lksi_cpu_add_avx2. Define kernels as LKSI_KERNEL(add) { ... }. */
#define LKSI_KERNEL_NAME(op) LKSI_PASTE(lksi_cpu_##op, LKSI_ISA)
#define LKSI_KERNEL(op) lks_status LKSI_KERNEL_NAME(op)(lksi_cpu *cpu, const lksi_args *a)
/* Any other non-static name in a kernel file must be LKSI_LOCAL(name). */
#define LKSI_LOCAL(name) LKSI_PASTE(lksi_##name, LKSI_ISA)

#endif
