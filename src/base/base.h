/* SPDX-License-Identifier: BSD-3-Clause
 *
 * base.h - what every room stands on: the first error, the log, checked memory with fault injection, fault points,
 * the floating-point guard. Knows no tensor, no device, no MPI.
 */
#ifndef LKSI_BASE_H
#define LKSI_BASE_H

#include <lockstep/base.h>
#include <lockstep/context.h>
#include <stdarg.h>
#include <stddef.h>

#define LKSI_TEXT 2048 /* bytes of an error text */
#define LKSI_CELL_CLASSES 16 /* of 64 bytes each */

/* One per context; the low rooms see only this part of it. */
typedef struct lksi_base {
    int rank, size;
    lks_status code;      /* first error since the last clear */
    char text[LKSI_TEXT]; /* "rank R: WHERE: cause" */
    lks_log_fn log;
    void *log_user;
    int64_t live_blocks; /* host blocks from lksi_alloc that are not freed */
    int64_t live_cells;  /* and from lksi_cell_take */
    struct lksi_cell *cells[LKSI_CELL_CLASSES]; /* idle ones, by size */
    int64_t fail_at;     /* > 0: the fail_at-th allocation from now (host or device) fails; counts down */
    double deadline;     /* seconds */
    /* LKS_FAULT, read at the first passage of a fault point. */
    int fault_state; /* 0 not read, 1 none, 2 armed to kill, 3 to stop */
    char fault_point[24];
    int64_t fault_left; /* passages until it strikes */
} lksi_base;

/* Records the first error (later ones are dropped until cleared) and returns code. where: "lks_matmul". Only on the
 * thread that uses the context; b NULL records nothing. */
lks_status lksi_fail(lksi_base *b, lks_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
lks_status lksi_vfail(lksi_base *b, lks_status code, const char *where, const char *format, va_list args);
/* Hands on the status of a function of the program (`who`: "the hook of a leaf"); a failure without a text gets one. */
lks_status lksi_said(lksi_base *b, lks_status s, const char *where, const char *who);
void lksi_log(lksi_base *b, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns the status from the enclosing function unless it is LKS_OK. */
#define TRY(call)                                                                                              \
    do {                                                                                                       \
        lks_status try_status_ = (call);                                                                       \
        if (try_status_ != LKS_OK) return try_status_;                                                         \
    } while (0)

/* Host memory. Zeroed; NULL when out of memory (or when told to fail), with LKS_ERR_MEMORY recorded. bytes 0 gives a
 * block. lksi_free(b, NULL) is fine. lksi_realloc zeroes what is new; when it fails, p is still valid. b NULL: not
 * counted, not recorded. */
void *lksi_alloc(lksi_base *b, int64_t bytes);
void *lksi_realloc(lksi_base *b, void *p, int64_t old_bytes, int64_t new_bytes);
char *lksi_strdup(lksi_base *b, const char *s);
void lksi_free(lksi_base *b, void *p);
/* Small blocks that come and go with each op: kept for the next of their size, not zeroed, on the thread of the context
 * only. They fail and are counted like the others; what is given back has the size that was taken. */
typedef struct lksi_cell {
    struct lksi_cell *next;
} lksi_cell;
void *lksi_cell_new(lksi_base *b, int64_t bytes);
void lksi_cell_drop(lksi_base *b, void *p, int64_t bytes);
void lksi_cells_clear(lksi_base *b); /* frees the idle ones */
int64_t lksi_blocks_in_use(const lksi_base *b);
static inline void *lksi_cell_take(lksi_base *b, int64_t bytes)
{
    uint64_t k = (uint64_t)(bytes - 1) >> 6;
    lksi_cell *c = k < LKSI_CELL_CLASSES ? b->cells[k] : NULL;
    if (__builtin_expect(!c || b->fail_at > 0, 0)) return lksi_cell_new(b, bytes);
    b->cells[k] = c->next;
    b->live_cells++;
    return c;
}
static inline void lksi_cell_give(lksi_base *b, void *p, int64_t bytes)
{
    uint64_t k = (uint64_t)(bytes - 1) >> 6;
#ifdef __SANITIZE_ADDRESS__
    k = LKSI_CELL_CLASSES; /* so that use after it is seen */
#endif
    if (__builtin_expect(k >= LKSI_CELL_CLASSES, 0)) {
        lksi_cell_drop(b, p, bytes);
        return;
    }
    lksi_cell *c = p;
    c->next = b->cells[k];
    b->cells[k] = c;
    b->live_cells--;
}
/* 1 if this allocation must fail (fault injection); every allocator asks it once per request. */
int lksi_alloc_must_fail(lksi_base *b);

/* Products and sums that notice overflow: 1 = fits. */
int lksi_mul_fits(int64_t a, int64_t b, int64_t *r);
int lksi_add_fits(int64_t a, int64_t b, int64_t *r);

/* LKS_FAULT=kill:POINT@N kills this process (SIGKILL) at the N-th passage of POINT (1 = first); LKS_FAULT_RANK picks a
 * rank (default 0). Points: after-reduce before-update mid-write before-fsync before-rename after-rename prune
 * evaluation. Costs one test when unset. */
void lksi_fault_point(lksi_base *b, const char *point);

/* Public entry points that compute run under the default floating-point environment: nearest, no traps, no FTZ/DAZ. The
 * host's is put back, sticky flags included. */
#if !defined __x86_64__ && !defined __aarch64__
#include <fenv.h>
#endif
typedef struct lksi_fpenv {
    unsigned csr, flags; /* as found; flags only where they have a register of their own */
    int changed;
#if !defined __x86_64__ && !defined __aarch64__
    fenv_t env;
#endif
} lksi_fpenv;
void lksi_fpenv_enter(lksi_fpenv *saved);
void lksi_fpenv_leave(const lksi_fpenv *saved);

/* Monotonic seconds. */
double lksi_now(void);

#endif
