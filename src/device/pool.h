/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.h - the caching pool under lksi_device_alloc. Private to this room.
 */
#ifndef LKSI_POOL_H
#define LKSI_POOL_H

#include "device/device.h"

lks_status lksi_pool_open(lksi_device *d);
void lksi_pool_close(lksi_device *d);

/* A block in use, for traces. gone: freed since. */
typedef struct lksi_range {
    const char *addr;
    int64_t bytes;
    struct block *block;
    int gone;
} lksi_range;
/* Those in use now, by address; *n of them. NULL: no host memory. */
lksi_range *lksi_pool_ranges(lksi_device *d, int64_t *n);
void lksi_pool_mark(lksi_range *r); /* a traced step uses it */
/* 1 if p lies in a block of h. */
int lksi_pool_inside(const lksi_device *d, const lksi_heap *h, const char *p);
void lksi_pool_enter(lksi_device *d, lksi_heap *h); /* NULL: leave */
/* device.c: a block in use at the start of the trace is freed. */
void lksi_trace_freed(lksi_device *d, const char *addr);

#endif
