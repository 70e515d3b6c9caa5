/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scan.c - what runs along one dim: cumsum, cumprod and its backward row, the linear recurrence, and the backward row
 * of prod. Floats are carried in double, integers in int64 (they wrap). Lines side by side in memory are taken
 * together; one long line is cut into parts of a fixed size. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "cpu/rows.h"

enum { SUM, PRODUCT, RECURRENCE, PRODUCT_BACK };
#define SIDE 64          /* lines taken together at most */
#define PART (1 << 16)   /* elements of a part of a long line */

typedef struct job {
    int what, reverse, integer, cls;
    lksi_rowset y, x[2]; /* cumsum, cumprod: x. recurrence: a, b. backward: dy, x */
    int nx;
    int64_t n, parts;
    double *carry;       /* [line][part]; int64 for integers. backward: [worker][piece] */
    int64_t carry_each;
    lksi_load_fn load[2];
    lksi_store_fn store;
} job;

/* Elements [at, at + n) in the order of the scan, as double or int64. */
static void fetch(const job *j, int which, int64_t line, int64_t at, int64_t n, void *buf)
{
    const lksi_rowset *r = &j->x[which];
    int64_t stride = r->inner ? r->istride[0] : 1, first = j->reverse ? j->n - at - n : at;
    j->load[which](buf, r->data + (lksi_rowset_offset(r, line) + first * stride) * r->size, stride, n);
    if (!j->reverse) return;
    uint64_t *v = buf;
    for (int64_t i = 0; i < n / 2; i++) {
        uint64_t t = v[i];
        v[i] = v[n - 1 - i];
        v[n - 1 - i] = t;
    }
}

static void deliver(const job *j, int64_t line, int64_t at, int64_t n, void *buf)
{
    const lksi_rowset *r = &j->y;
    int64_t stride = r->inner ? r->istride[0] : 1, first = j->reverse ? j->n - at - n : at;
    if (j->reverse) {
        uint64_t *v = buf;
        for (int64_t i = 0; i < n / 2; i++) {
            uint64_t t = v[i];
            v[i] = v[n - 1 - i];
            v[n - 1 - i] = t;
        }
    }
    j->store(r->data + (lksi_rowset_offset(r, line) + first * stride) * r->size, stride, buf, n);
}

/* One line from `at` to `end`, beginning with the state s. */
static void run_line(const job *j, int64_t line, int64_t at, int64_t end, double s, uint64_t whole)
{
    lksi_block in[2], out;
    const double *p = (const void *)in[0].bytes, *q = (const void *)in[1].bytes;
    const uint64_t *z = (const void *)in[0].bytes;
    double *y = (void *)out.bytes;
    uint64_t *w = (void *)out.bytes;
    for (int64_t n; at < end; at += n) {
        n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        for (int i = 0; i < j->nx; i++) fetch(j, i, line, at, n, in[i].bytes);
        if (j->integer) {
            if (j->what == SUM)
                for (int64_t i = 0; i < n; i++) w[i] = whole += z[i];
            else
                for (int64_t i = 0; i < n; i++) w[i] = whole *= z[i];
        } else if (j->what == SUM) {
            for (int64_t i = 0; i < n; i++) y[i] = s += p[i];
        } else if (j->what == PRODUCT) {
            for (int64_t i = 0; i < n; i++) y[i] = s *= p[i];
        } else {
            for (int64_t i = 0; i < n; i++) y[i] = s = q[i] + p[i] * s;
        }
        deliver(j, line, at, n, out.bytes);
    }
}

/* `count` lines side by side, element by element. */
static void run_side(const job *j, int64_t line, int64_t count)
{
    double s[SIDE], in[2][SIDE];
    uint64_t *whole = (void *)s, *z = (void *)in[0];
    const char *p[2] = {NULL, NULL};
    char *y = j->y.data + lksi_rowset_offset(&j->y, line) * j->y.size;
    for (int i = 0; i < j->nx; i++) p[i] = j->x[i].data + lksi_rowset_offset(&j->x[i], line) * j->x[i].size;
    for (int64_t c = 0; c < count; c++) {
        if (j->integer) whole[c] = j->what == PRODUCT;
        else s[c] = j->what == PRODUCT;
    }
    for (int64_t k = 0; k < j->n; k++) {
        int64_t at = j->reverse ? j->n - 1 - k : k;
        for (int i = 0; i < j->nx; i++)
            j->load[i](in[i], p[i] + at * j->x[i].istride[0] * j->x[i].size, 1, count);
        if (j->integer) {
            if (j->what == SUM)
                for (int64_t c = 0; c < count; c++) whole[c] += z[c];
            else
                for (int64_t c = 0; c < count; c++) whole[c] *= z[c];
        } else if (j->what == SUM) {
            for (int64_t c = 0; c < count; c++) s[c] += in[0][c];
        } else if (j->what == PRODUCT) {
            for (int64_t c = 0; c < count; c++) s[c] *= in[0][c];
        } else {
            for (int64_t c = 0; c < count; c++) s[c] = in[1][c] + in[0][c] * s[c];
        }
        j->store(y + at * j->y.istride[0] * j->y.size, 1, s, count);
    }
}

static void lines(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *j = arg;
    for (int64_t line = begin, k; line < end; line += k) {
        k = lksi_rowset_beside(&j->y, line, end - line < SIDE ? end - line : SIDE);
        for (int i = 0; i < j->nx; i++) k = lksi_rowset_beside(&j->x[i], line, k);
        if (k > 1) run_side(j, line, k);
        else run_line(j, line, 0, j->n, j->what == PRODUCT, j->what == PRODUCT);
    }
}

/* Item: part p of a line: its total. */
static void totals(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *j = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t line = item / j->parts, at = item % j->parts * PART, stop = at + PART < j->n ? at + PART : j->n;
        lksi_block buf;
        const double *p = (const void *)buf.bytes;
        const uint64_t *z = (const void *)buf.bytes;
        double s = j->what == PRODUCT;
        uint64_t whole = j->what == PRODUCT;
        for (int64_t n; at < stop; at += n) {
            n = stop - at < LKSI_BLOCK ? stop - at : LKSI_BLOCK;
            fetch(j, 0, line, at, n, buf.bytes);
            for (int64_t i = 0; i < n && j->integer; i++) whole = j->what == SUM ? whole + z[i] : whole * z[i];
            if (!j->integer && j->what == SUM) s += sum_d(p, n);
            for (int64_t i = 0; i < n && !j->integer && j->what != SUM; i++) s *= p[i];
        }
        if (j->integer) memcpy(&j->carry[item], &whole, sizeof whole);
        else j->carry[item] = s;
    }
}

static void parts(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *j = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t line = item / j->parts, at = item % j->parts * PART;
        uint64_t whole;
        memcpy(&whole, &j->carry[item], sizeof whole);
        run_line(j, line, at, at + PART < j->n ? at + PART : j->n, j->carry[item], whole);
    }
}

static lks_status long_lines(lksi_cpu *cpu, const lksi_args *a, job *j)
{
    j->parts = (j->n + PART - 1) / PART;
    j->carry = lksi_scratch(cpu, -1, 0, j->y.rows * j->parts * (int64_t)sizeof *j->carry);
    if (!j->carry) return lksi_why(a, LKS_ERR_MEMORY, "no memory for partial results");
    lksi_parallel(cpu, j->y.rows * j->parts, 1, totals, j);
    for (int64_t line = 0; line < j->y.rows; line++) { /* each part's total becomes what comes before it */
        double *c = j->carry + line * j->parts, s = j->what == PRODUCT;
        uint64_t whole = j->what == PRODUCT;
        for (int64_t p = 0; p < j->parts; p++) {
            uint64_t w;
            double t = c[p];
            memcpy(&w, &c[p], sizeof w);
            if (j->integer) {
                memcpy(&c[p], &whole, sizeof whole);
                whole = j->what == SUM ? whole + w : whole * w;
            } else {
                c[p] = s;
                s = j->what == SUM ? s + t : s * t;
            }
        }
    }
    lksi_parallel(cpu, j->y.rows * j->parts, 1, parts, j);
    return LKS_OK;
}

static job begin_scan(const lksi_args *a, int what, int nx)
{
    const lksi_view *y = &a->out[0];
    unsigned mask = y->ndim ? 1u << a->attr.scan.dim : 0u;
    job j = {.what = what, .reverse = a->attr.scan.reverse, .nx = nx, .y = lksi_rowset_of(y, mask)};
    j.cls = lksi_class_of[y->dtype] == LKSI_CLASS_I64 ? LKSI_CLASS_I64 : LKSI_CLASS_F64;
    j.integer = j.cls == LKSI_CLASS_I64;
    j.store = LKSI_LOCAL(store)[j.cls][y->dtype];
    for (int i = 0; i < nx; i++) {
        j.x[i] = lksi_rowset_of(&a->in[i], mask);
        j.load[i] = LKSI_LOCAL(load)[j.cls][a->in[i].dtype];
    }
    j.n = j.y.n;
    return j;
}

static lks_status scan(lksi_cpu *cpu, const lksi_args *a, int what, int nx)
{
    job j = begin_scan(a, what, nx);
    if (j.n == 0 || j.y.rows == 0) return LKS_OK;
    if (nx == 1 && j.n >= 2 * PART && j.y.rows < 64) return long_lines(cpu, a, &j);
    int64_t grain = LKSI_GRAIN / j.n, side = lksi_rowset_beside(&j.y, 0, SIDE);
    lksi_parallel(cpu, j.y.rows, grain < side ? side : grain, lines, &j);
    return LKS_OK;
}

LKSI_KERNEL(cumsum) { return scan(cpu, a, SUM, 1); }
LKSI_KERNEL(cumprod) { return scan(cpu, a, PRODUCT, 1); }
LKSI_KERNEL(recurrence) { return scan(cpu, a, RECURRENCE, 2); }

/* --- backward of cumprod: dx_k = (x_0 ... x_{k-1}) S_k, S_k = dy_k + x_{k+1} S_{k+1}; no division --- */

static void product_back(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *j = arg;
    double *before = j->carry + worker * j->carry_each; /* product of what is before each block */
    lksi_block in[2], out;
    double *dy = (void *)in[0].bytes, *x = (void *)in[1].bytes, *y = (void *)out.bytes;
    for (int64_t line = begin; line < end; line++) {
        double product = 1, s = 0, next = 0; /* next: x_{k+1} */
        for (int64_t at = 0, b = 0; at < j->n; at += LKSI_BLOCK, b++) {
            int64_t n = j->n - at < LKSI_BLOCK ? j->n - at : LKSI_BLOCK;
            before[b] = product;
            if (at + n == j->n) break;
            fetch(j, 1, line, at, n, x);
            for (int64_t i = 0; i < n; i++) product *= x[i];
        }
        for (int64_t b = (j->n - 1) / LKSI_BLOCK; b >= 0; b--) {
            int64_t at = b * LKSI_BLOCK, n = j->n - at < LKSI_BLOCK ? j->n - at : LKSI_BLOCK;
            fetch(j, 0, line, at, n, dy);
            fetch(j, 1, line, at, n, x);
            product = before[b];
            for (int64_t i = 0; i < n; i++) y[i] = product, product *= x[i];
            for (int64_t i = n - 1; i >= 0; i--) {
                s = dy[i] + next * s;
                next = x[i];
                y[i] *= s;
            }
            deliver(j, line, at, n, y);
        }
    }
}

LKSI_KERNEL(cumprod_backward)
{
    job j = begin_scan(a, PRODUCT_BACK, 2);
    if (j.n == 0 || j.y.rows == 0) return LKS_OK;
    j.carry_each = j.n / LKSI_BLOCK + 8;
    j.carry = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * j.carry_each * (int64_t)sizeof *j.carry);
    if (!j.carry) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    int64_t grain = LKSI_GRAIN / 4 / j.n;
    lksi_parallel(cpu, j.y.rows, grain < 1 ? 1 : grain, product_back, &j);
    return LKS_OK;
}

/* --- backward of prod: dy times the product of all others, from the left and from the right --- */

typedef struct prod_job {
    lksi_rowset x, dy, dx;
    double *after; /* [worker][block]: product of what is behind each block */
    int64_t each;
} prod_job;

static void prod_lines(void *arg, int64_t begin, int64_t end, int worker)
{
    const prod_job *j = arg;
    double *after = j->after + worker * j->each, x[LKSI_BLOCK], y[LKSI_BLOCK];
    for (int64_t line = begin; line < end; line++) {
        double product = 1, left = lksi_get(j->dy.data, j->dy.dtype, lksi_rowset_offset(&j->dy, line));
        for (int64_t b = (j->x.n - 1) / LKSI_BLOCK; b >= 0; b--) {
            int64_t at = b * LKSI_BLOCK, n = j->x.n - at < LKSI_BLOCK ? j->x.n - at : LKSI_BLOCK;
            after[b] = product;
            if (b == 0) break;
            rows_move_d(&j->x, line, at, n, x, 0);
            for (int64_t i = 0; i < n; i++) product *= x[i];
        }
        for (int64_t at = 0, b = 0; at < j->x.n; at += LKSI_BLOCK, b++) {
            int64_t n = j->x.n - at < LKSI_BLOCK ? j->x.n - at : LKSI_BLOCK;
            rows_move_d(&j->x, line, at, n, x, 0);
            product = after[b];
            for (int64_t i = n - 1; i >= 0; i--) y[i] = product, product *= x[i];
            for (int64_t i = 0; i < n; i++) y[i] *= left, left *= x[i];
            rows_move_d(&j->dx, line, at, n, y, 1);
        }
    }
}

LKSI_KERNEL(prod_backward) /* dy, x */
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1];
    unsigned mask = (unsigned)a->attr.reduce.mask;
    prod_job j = {.x = lksi_rowset_of(x, mask), .dx = lksi_rowset_of(&a->out[0], mask)};
    j.dy = lksi_rowset_of(dy, a->attr.reduce.keepdim ? mask : 0u);
    if (j.x.n == 0 || j.x.rows == 0) return LKS_OK;
    j.each = j.x.n / LKSI_BLOCK + 8;
    j.after = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * j.each * (int64_t)sizeof *j.after);
    if (!j.after) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    int64_t grain = LKSI_GRAIN / 4 / j.x.n;
    lksi_parallel(cpu, j.x.rows, grain < 1 ? 1 : grain, prod_lines, &j);
    return LKS_OK;
}
