/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.c - the caching pool: blocks of device memory that are used again. All bookkeeping is in host memory, since
 * device memory is an address and nothing more. Not here: how a backend gets memory, and when work on a block is done
 * (the pool is ordered by the compute stream).
 *
 * Blocks up to MID_LIMIT come from size classes and are carved from chunks; larger ones are taken whole and given out
 * again for requests of nearly their size. A block keeps its record, found by a hash of its address, for as long as
 * its memory is held, so that handing out is a pop and taking back a look-up and a push.
 */
#include "device/pool.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES 448
#define SMALL_LIMIT (128 << 10) /* blocks up to this share chunks of SMALL_CHUNK, */
#define SMALL_CHUNK (2 << 20)
#define MID_LIMIT (2 << 20) /* up to this, chunks of MID_CHUNK */
#define MID_CHUNK (16 << 20)
#define BIG_STEP (64 << 10) /* sizes above are multiples of this */
#define BIG_SCAN 64         /* idle blocks looked at per list for a big request */
#define RECORDS 128         /* records made at once */
#define MAX_BYTES (INT64_MAX / 4)

struct chunk {
    char *base;
    int64_t bytes, carved, blocks_used;
    struct chunk *next;
};

struct block {
    char *addr;
    int64_t bytes;
    int64_t asked;       /* bytes that the user asked for; -1: idle */
    struct block *next;  /* in its idle list, or in the list of free records */
    struct chunk *chunk; /* NULL: taken whole */
    struct lksi_heap *heap; /* the graph's that it belongs to; NULL */
    int traced;          /* a traced step uses it from outside */
};

struct records {
    struct records *next;
    struct block block[RECORDS];
};

struct slot { char *addr; struct block *block; };

/* Blocks in idle here count as used in their chunks, so that a trim leaves them alone. */
struct lksi_heap {
    struct block *idle[CLASSES];
    struct lksi_heap *next;
    int lost;
};

struct lksi_pool {
    struct block *idle[CLASSES];
    struct chunk *chunks[2]; /* small, mid; the first is the one being carved */
    struct slot *slots;      /* open addressing, power of two */
    int64_t mask, filled;
    struct block *free_records;
    struct records *records;
    struct lksi_heap *heaps, *entered;
};

/* Classes: multiples of 64 up to 1 KiB, then eight to an octave. bytes >= 1. */
static inline int class_of(int64_t bytes)
{
    if (bytes <= 1024) return (int)((bytes - 1) >> 6);
    int64_t n = bytes - 1;
    int e = 63 - __builtin_clzll((unsigned long long)n);
    return 16 + (e - 10) * 8 + (int)((n >> (e - 3)) & 7);
}

static int64_t class_bytes(int c)
{
    if (c < 16) return 64 * (c + 1);
    int e = (c - 16) / 8 + 10;
    return (int64_t)(8 + (c - 16) % 8 + 1) << (e - 3);
}

static inline int64_t hash(const struct lksi_pool *p, const char *addr)
{
    uint64_t h = ((uint64_t)(uintptr_t)addr >> 6) * 0x9E3779B97F4A7C15u;
    return (int64_t)(h >> 32) & p->mask;
}

static inline struct block *find(const struct lksi_pool *p, const char *addr)
{
    for (int64_t i = hash(p, addr);; i = (i + 1) & p->mask) {
        if (p->slots[i].addr == addr) return p->slots[i].block;
        if (!p->slots[i].addr) return NULL;
    }
}

static void put(struct lksi_pool *p, struct block *k)
{
    int64_t i = hash(p, k->addr);
    while (p->slots[i].addr) i = (i + 1) & p->mask;
    p->slots[i] = (struct slot){k->addr, k};
    p->filled++;
}

/* Takes k out and closes the gap, so that probing needs no tombstones. */
static void drop(struct lksi_pool *p, struct block *k)
{
    int64_t i = hash(p, k->addr);
    while (p->slots[i].addr != k->addr) i = (i + 1) & p->mask;
    for (int64_t j = (i + 1) & p->mask; p->slots[j].addr; j = (j + 1) & p->mask) {
        int64_t home = hash(p, p->slots[j].addr);
        if (((j - home) & p->mask) < ((j - i) & p->mask)) continue; /* its home lies after the gap */
        p->slots[i] = p->slots[j];
        i = j;
    }
    p->slots[i].addr = NULL;
    p->filled--;
}

/* The records are plain calloc: a request asks for fault injection once, in lksi_device_alloc, and what is kept here
 * for later use is not a leak of the caller. */
static struct block *new_record(struct lksi_pool *p)
{
    if (2 * (p->filled + 1) > p->mask) {
        int64_t n = 2 * (p->mask + 1), old = p->mask + 1;
        struct slot *slots = calloc((size_t)n, sizeof *slots), *from = p->slots;
        if (!slots) return NULL;
        p->slots = slots, p->mask = n - 1, p->filled = 0;
        for (int64_t i = 0; i < old; i++)
            if (from[i].addr) put(p, from[i].block);
        free(from);
    }
    if (!p->free_records) {
        struct records *r = calloc(1, sizeof *r);
        if (!r) return NULL;
        r->next = p->records, p->records = r;
        for (int i = 0; i < RECORDS; i++) r->block[i].next = p->free_records, p->free_records = &r->block[i];
    }
    struct block *k = p->free_records;
    p->free_records = k->next;
    return k;
}

static void free_record(struct lksi_pool *p, struct block *k)
{
    k->next = p->free_records, p->free_records = k;
}

static void push_idle(struct block **idle, struct block *k)
{
    int c = class_of(k->bytes);
    k->asked = -1;
    k->next = idle[c], idle[c] = k;
}

/* h's blocks are as all others. */
static void give_up(struct lksi_pool *p, struct lksi_heap *h)
{
    memset(h->idle, 0, sizeof h->idle);
    for (int64_t i = 0; i <= p->mask; i++) {
        struct block *k = p->slots[i].block;
        if (!p->slots[i].addr || k->heap != h) continue;
        k->heap = NULL;
        if (k->asked >= 0) continue;
        if (k->chunk) k->chunk->blocks_used--;
        push_idle(p->idle, k);
    }
}

/* What graphs that could be launched again keep goes back; 1: there was some. */
static int lose_heaps(lksi_device *d)
{
    int some = 0;
    for (struct lksi_heap *h = d->pool->heaps; h; h = h->next) {
        if (h->lost || h == d->pool->entered) continue;
        give_up(d->pool, h);
        h->lost = some = 1;
    }
    if (some) lksi_device_trim(d);
    return some;
}

void lksi_device_make_room(lksi_device *d)
{
    int64_t held = d->held;
    lksi_device_trim(d);
    if (d->held == held) lose_heaps(d);
}

/* Memory from the backend; at first failure the idle blocks are given back. */
static void *raw(lksi_device *d, int64_t bytes)
{
    void *addr = NULL;
    if (d->be->alloc(d->self, bytes, &addr) != LKS_OK || !addr) {
        lksi_device_trim(d);
        addr = NULL;
        if (d->be->alloc(d->self, bytes, &addr) != LKS_OK || !addr) { /* graphs are made again, this is needed now */
            addr = NULL;
            if (!lose_heaps(d) || d->be->alloc(d->self, bytes, &addr) != LKS_OK || !addr) return NULL;
        }
    }
    d->held += bytes;
    return addr;
}

static struct block *take_whole(lksi_device *d, int64_t bytes)
{
    struct block *k = new_record(d->pool);
    if (!k) return NULL;
    k->addr = raw(d, bytes);
    if (!k->addr) {
        free_record(d->pool, k);
        return NULL;
    }
    k->bytes = bytes, k->chunk = NULL, k->heap = NULL, k->traced = 0;
    put(d->pool, k);
    return k;
}

static struct block *cut(struct lksi_pool *p, struct chunk *h, int64_t bytes)
{
    struct block *k = new_record(p);
    if (!k) return NULL;
    k->addr = h->base + h->carved, k->bytes = bytes, k->chunk = h, k->heap = NULL, k->traced = 0;
    h->carved += bytes;
    put(p, k);
    return k;
}

/* A block of class c that was not in use before. */
static struct block *carve(lksi_device *d, int c)
{
    struct lksi_pool *p = d->pool;
    int64_t bytes = class_bytes(c);
    int mid = bytes > SMALL_LIMIT;
    struct chunk *h = p->chunks[mid];
    if (!h || h->bytes - h->carved < bytes) {
        /* What is left of the old chunk becomes idle blocks of smaller classes. */
        for (int64_t left; h && (left = h->bytes - h->carved) >= 64;) {
            int s = class_of(left);
            if (class_bytes(s) > left) s--;
            struct block *k = cut(p, h, class_bytes(s));
            if (!k) return NULL;
            push_idle(p->idle, k);
        }
        h = calloc(1, sizeof *h);
        if (!h) return NULL;
        h->bytes = mid ? MID_CHUNK : SMALL_CHUNK;
        h->base = raw(d, h->bytes);
        if (!h->base) { /* no room for a chunk: perhaps for the block alone */
            free(h);
            return take_whole(d, bytes);
        }
        h->next = p->chunks[mid], p->chunks[mid] = h; /* raw() may have trimmed the list */
    }
    return cut(p, h, bytes);
}

/* An idle block of bytes to bytes * 9/8, the closest of those looked at. */
static struct block *find_big(struct block **idle, int64_t bytes)
{
    int c = class_of(bytes);
    struct block **best = NULL;
    for (int i = c; i <= c + 1; i++) {
        int looked = 0;
        for (struct block **k = &idle[i]; *k && looked < BIG_SCAN; k = &(*k)->next, looked++)
            if ((*k)->bytes >= bytes && (*k)->bytes - bytes <= bytes / 8 && (!best || (*k)->bytes < (*best)->bytes)) {
                best = k;
                if ((*k)->bytes == bytes) goto found;
            }
    }
    if (!best) return NULL;
found:;
    struct block *k = *best;
    *best = k->next;
    return k;
}

/* An idle block for `want` bytes, rounded up already where they are many; NULL. */
static struct block *reuse(struct block **idle, int64_t want)
{
    if (want > MID_LIMIT) return find_big(idle, want);
    struct block **at = &idle[class_of(want)], *k = *at;
    if (k) *at = k->next;
    return k;
}

lks_status lksi_device_alloc(lksi_device *d, int64_t bytes, void **out)
{
    struct lksi_pool *p = d->pool;
    struct lksi_heap *h = p->entered;
    struct block *k = NULL;
    *out = NULL;
    int64_t want = bytes > 0 ? bytes : 1;
    if (__builtin_expect(!lksi_alloc_must_fail(d->base) && bytes >= 0 && bytes < MAX_BYTES, 1)) {
        if (want > MID_LIMIT) want = (want + BIG_STEP - 1) / BIG_STEP * BIG_STEP;
        if (__builtin_expect(h != NULL, 0)) k = reuse(h->idle, want);
        if (!k) k = reuse(p->idle, want);
        if (!k) k = want <= MID_LIMIT ? carve(d, class_of(want)) : take_whole(d, want);
    }
    if (!k)
        return lksi_fail(d->base, LKS_ERR_MEMORY, "device memory",
                         "%s cannot allocate %" PRId64 " bytes: %" PRId64 " in use (peak %" PRId64 "), %" PRId64
                         " held; use a smaller batch or model, or more devices",
                         d->be->name, bytes, d->used, d->peak, d->held);
    if (k->chunk && !k->heap) k->chunk->blocks_used++;
    if (__builtin_expect(h != NULL, 0)) k->heap = h;
    k->asked = bytes;
    d->used += bytes;
    if (d->used > d->peak) d->peak = d->used;
    *out = k->addr;
    return LKS_OK;
}

void lksi_device_free(lksi_device *d, void *addr)
{
    if (!addr) return;
    struct block *k = find(d->pool, addr);
    if (!k || k->asked < 0) {
        lksi_fail(d->base, LKS_ERR_INTERNAL, "device memory", "%p is freed but not in use", addr);
        return;
    }
    d->used -= k->asked;
    if (__builtin_expect(d->trace != NULL, 0)) lksi_trace_freed(d, addr);
    d->drops += k->traced;
    k->traced = 0;
    if (k->heap) {
        push_idle(k->heap->idle, k);
        return;
    }
    if (k->chunk) k->chunk->blocks_used--;
    push_idle(d->pool->idle, k);
}

/* --- memory of graphs --- */

lks_status lksi_heap_new(lksi_device *d, lksi_heap **h)
{
    if (!(*h = lksi_alloc(d->base, sizeof **h))) return LKS_ERR_MEMORY;
    (*h)->next = d->pool->heaps;
    d->pool->heaps = *h;
    return LKS_OK;
}

void lksi_heap_free(lksi_device *d, lksi_heap *h)
{
    if (!h) return;
    give_up(d->pool, h);
    for (struct lksi_heap **at = &d->pool->heaps; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    lksi_free(d->base, h);
}

int lksi_heap_lost(const lksi_heap *h) { return h->lost; }
void lksi_pool_enter(lksi_device *d, lksi_heap *h) { d->pool->entered = h; }
void lksi_pool_mark(lksi_range *r) { r->block->traced = 1; }

static int by_address(const void *a, const void *b)
{
    const lksi_range *x = a, *y = b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

lksi_range *lksi_pool_ranges(lksi_device *d, int64_t *n)
{
    struct lksi_pool *p = d->pool;
    lksi_range *r = lksi_alloc(d->base, (p->filled + 1) * (int64_t)sizeof *r);
    *n = 0;
    for (int64_t i = 0; r && i <= p->mask; i++) {
        struct block *k = p->slots[i].block;
        if (p->slots[i].addr && k->asked >= 0) r[(*n)++] = (lksi_range){k->addr, k->bytes, k, 0};
    }
    if (r) qsort(r, (size_t)*n, sizeof *r, by_address);
    return r;
}

int lksi_pool_inside(const lksi_device *d, const lksi_heap *h, const char *addr)
{
    const struct lksi_pool *p = d->pool;
    const struct block *k = find(p, addr);
    if (k) return k->heap == h;
    for (int64_t i = 0; i <= p->mask; i++) {
        k = p->slots[i].block;
        if (p->slots[i].addr && k->heap == h && addr > k->addr && addr < k->addr + k->bytes) return 1;
    }
    return 0;
}

void lksi_device_trim(lksi_device *d)
{
    struct lksi_pool *p = d->pool;
    for (int c = 0; c < CLASSES; c++)
        for (struct block **at = &p->idle[c], *k; (k = *at);) {
            if (k->chunk && k->chunk->blocks_used) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            drop(p, k);
            if (!k->chunk) {
                d->be->free(d->self, k->addr, k->bytes);
                d->held -= k->bytes;
            }
            free_record(p, k);
        }
    for (int i = 0; i < 2; i++)
        for (struct chunk **at = &p->chunks[i], *h; (h = *at);) {
            if (h->blocks_used) {
                at = &h->next;
                continue;
            }
            *at = h->next;
            d->be->free(d->self, h->base, h->bytes);
            d->held -= h->bytes;
            free(h);
        }
}

lks_status lksi_pool_open(lksi_device *d)
{
    struct lksi_pool *p = d->pool = lksi_alloc(d->base, sizeof *p);
    if (!p) return LKS_ERR_MEMORY;
    p->mask = 1023;
    p->slots = lksi_alloc_must_fail(d->base) ? NULL : calloc((size_t)p->mask + 1, sizeof *p->slots);
    if (p->slots) return LKS_OK;
    lksi_free(d->base, p);
    d->pool = NULL;
    return lksi_fail(d->base, LKS_ERR_MEMORY, "device memory", "no host memory for the pool");
}

/* Blocks that are still handed out go too: their chunks are freed, and those taken whole are found in the table. */
void lksi_pool_close(lksi_device *d)
{
    struct lksi_pool *p = d->pool;
    if (!p) return;
    for (int64_t i = 0; i <= p->mask; i++) {
        struct block *k = p->slots[i].block;
        if (p->slots[i].addr && !k->chunk) d->be->free(d->self, k->addr, k->bytes);
    }
    for (int i = 0; i < 2; i++)
        for (struct chunk *h = p->chunks[i], *next; h; h = next) {
            next = h->next;
            d->be->free(d->self, h->base, h->bytes);
            free(h);
        }
    for (struct records *r = p->records, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    free(p->slots);
    lksi_free(d->base, p);
    d->pool = NULL;
}
