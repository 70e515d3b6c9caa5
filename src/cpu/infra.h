/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infra.h - the inside of struct lksi_cpu, for cpu.c, workers.c and far.c. Kernels see cpu.h only.
 */
#ifndef LKSI_INFRA_H
#define LKSI_INFRA_H

#include "cpu/cpu.h"

struct lksi_scratch_block { void *p; int64_t bytes; };

struct lksi_cpu {
    lksi_base *base;
    const lksi_cpu_kernel *table; /* kernels of the ISA in use, by op */
    const char *isa;
    int threads;
    char text[192];                     /* what describe says */
    struct lksi_team *team;             /* NULL with one thread */
    struct lksi_scratch_block *scratch; /* [threads + 1][LKSI_SCRATCH_SLOTS]; row 0 is the shared one */
    struct { void *p; void (*destroy)(void *); } state[LKSI_STATES];
    const struct lksi_plugin *(*module)(const char *name, char *path, char *why);
};

/* Both record their errors; close takes NULL. */
lks_status lksi_cpu_open(lksi_base *b, const lksi_device_options *o, lksi_cpu **cpu);
void lksi_cpu_close(lksi_cpu *cpu);

/* The CPU under a device that lksi_backend_far opened (for tests that put kernels of their own into its table). */
lksi_cpu *lksi_far_cpu(void *self);

/* Memory from the system: NULL when there is none. */
void *lksi_cpu_memory(int64_t bytes);
void lksi_cpu_memory_free(void *p, int64_t bytes);

/* oversubscribed: more threads than cores, so that spinning takes time from those who work. */
lks_status lksi_team_open(lksi_cpu *cpu, int oversubscribed);
void lksi_team_close(lksi_cpu *cpu);

/* A thread with all signals blocked; 0 or an errno. */
int lksi_thread_start(void *thread, void *(*body)(void *), void *arg, const char *name);

#endif
