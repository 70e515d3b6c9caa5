/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - host memory that is counted and can be told to fail, and arithmetic on sizes that notices overflow. Safe
 * from any thread as long as nothing fails; a failure is recorded in the base, so it belongs to the context's thread.
 * Not here: device memory (src/device).
 */
#include "base/base.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int lksi_alloc_must_fail(lksi_base *b)
{
    if (!b || __atomic_load_n(&b->fail_at, __ATOMIC_RELAXED) <= 0) return 0;
    return __atomic_sub_fetch(&b->fail_at, 1, __ATOMIC_RELAXED) == 0;
}

static void out_of_memory(lksi_base *b, int64_t bytes)
{
    lksi_fail(b, LKS_ERR_MEMORY, "host memory", "cannot allocate %" PRId64 " bytes (%" PRId64 " blocks are in use)",
              bytes, b ? lksi_blocks_in_use(b) : 0);
}

void *lksi_alloc(lksi_base *b, int64_t bytes)
{
    void *p = NULL;
    if (!lksi_alloc_must_fail(b) && bytes >= 0 && (uint64_t)bytes <= PTRDIFF_MAX)
        p = calloc(1, bytes ? (size_t)bytes : 1);
    if (!p) {
        out_of_memory(b, bytes);
        return NULL;
    }
    if (b) __atomic_add_fetch(&b->live_blocks, 1, __ATOMIC_RELAXED);
    return p;
}

void *lksi_realloc(lksi_base *b, void *p, int64_t old_bytes, int64_t new_bytes)
{
    if (!p) return lksi_alloc(b, new_bytes);
    void *q = NULL;
    if (!lksi_alloc_must_fail(b) && new_bytes >= 0 && (uint64_t)new_bytes <= PTRDIFF_MAX)
        q = realloc(p, new_bytes ? (size_t)new_bytes : 1);
    if (!q) {
        out_of_memory(b, new_bytes);
        return NULL;
    }
    if (new_bytes > old_bytes) memset((char *)q + old_bytes, 0, (size_t)(new_bytes - old_bytes));
    return q;
}

char *lksi_strdup(lksi_base *b, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = lksi_alloc(b, (int64_t)n);
    if (p) memcpy(p, s, n);
    return p;
}

void lksi_free(lksi_base *b, void *p)
{
    if (!p) return;
    if (b) __atomic_sub_fetch(&b->live_blocks, 1, __ATOMIC_RELAXED);
    free(p);
}

void *lksi_cell_new(lksi_base *b, int64_t bytes)
{
    int64_t k = (bytes - 1) >> 6;
    lksi_cell *c = NULL;
    if (!lksi_alloc_must_fail(b)) {
        if (k < LKSI_CELL_CLASSES && (c = b->cells[k])) b->cells[k] = c->next;
        else c = malloc((size_t)((k + 1) << 6));
    }
    if (!c) out_of_memory(b, bytes);
    else b->live_cells++;
    return c;
}

void lksi_cell_drop(lksi_base *b, void *p, int64_t bytes)
{
    (void)bytes;
    b->live_cells--;
    free(p);
}

void lksi_cells_clear(lksi_base *b)
{
    for (int k = 0; k < LKSI_CELL_CLASSES; k++)
        while (b->cells[k]) {
            lksi_cell *c = b->cells[k];
            b->cells[k] = c->next;
            free(c);
        }
}

int64_t lksi_blocks_in_use(const lksi_base *b)
{
    return __atomic_load_n(&b->live_blocks, __ATOMIC_RELAXED) + b->live_cells;
}

int lksi_mul_fits(int64_t a, int64_t b, int64_t *r)
{
    return !__builtin_mul_overflow(a, b, r);
}

int lksi_add_fits(int64_t a, int64_t b, int64_t *r)
{
    return !__builtin_add_overflow(a, b, r);
}
