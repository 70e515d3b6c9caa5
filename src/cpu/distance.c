/* SPDX-License-Identifier: BSD-3-Clause
 *
 * distance.c - distances of rows in the p-norm, between two sets (cdist) and within one (pdist), and their gradients.
 * Differences are taken as they are, not through products, so near rows do not cancel. Sums go by fixed blocks.
 */
#include "cpu/rows.h"

enum { P_ZERO, P_ONE, P_TWO, P_INF, P_ANY };
enum { COLUMNS = 64, DEPTH = 256 }; /* rows compared at once; terms that are added up before they join others */

typedef struct distance {
    lksi_rowset x, y, z, dy, dx; /* x [batch, rows, m], y alike, z [batch, x rows, y rows] or all pairs */
    int64_t m, x_rows, y_rows, x_blocks, y_blocks;
    int kind, triangle; /* triangle: z has the pairs i < j of one set, row by row */
    double p;
    char *scratch;
    int64_t scratch_each;
} distance;

/* Place of the pair i < j among those of n rows. */
static inline int64_t pair_at(int64_t n, int64_t i, int64_t j)
{
    return i * (2 * n - i - 1) / 2 + j - i - 1;
}

#define REAL float
#define F(name) name##_f
#include "cpu/distance_real.h"
#undef REAL
#undef F
#define REAL double
#define F(name) name##_d
#include "cpu/distance_real.h"
#undef REAL
#undef F

/* v's batch dims broadcast to those of like, which has the same number of trailing dims. */
static lksi_view spread(const lksi_view *v, const lksi_view *like)
{
    lksi_view r = *v;
    r.ndim = like->ndim;
    for (int d = 0; d < r.ndim; d++) {
        int own = d - (r.ndim - v->ndim), batch = d < r.ndim - 2;
        r.shape[d] = batch ? like->shape[d] : v->shape[own];
        r.stride[d] = own < 0 || (batch && v->shape[own] == 1) ? 0 : v->stride[own];
    }
    return r;
}

static void set_power(distance *s, double p)
{
    s->p = p;
    s->kind = p == 0 ? P_ZERO : p == 1 ? P_ONE : p == 2 ? P_TWO : isinf(p) ? P_INF : P_ANY;
}

static unsigned last_dim(const lksi_view *v) { return 1u << (v->ndim - 1); }

static lks_status run(lksi_cpu *cpu, const lksi_args *a, distance *s, int backward)
{
    int dbl = s->x.dtype == LKS_F64;
    s->x_blocks = (s->x_rows + COLUMNS - 1) / COLUMNS, s->y_blocks = (s->y_rows + COLUMNS - 1) / COLUMNS;
    s->scratch_each = ((backward ? 4 : COLUMNS + 2) * s->m * (dbl ? 8 : 4) + 127) / 64 * 64;
    s->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s->scratch_each);
    if (!s->scratch) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    int64_t batch = s->x_rows ? s->x.rows / s->x_rows : 0;
    if (backward)
        lksi_parallel(cpu, s->x.rows, 1 + 16384 / (s->m * s->y_rows + 1), dbl ? backward_d : backward_f, s);
    else
        lksi_parallel(cpu, batch * s->x_blocks * s->y_blocks, 1 + 4 / (s->m + 1), dbl ? forward_d : forward_f, s);
    return LKS_OK;
}

LKSI_KERNEL(cdist)
{
    const lksi_view *z = &a->out[0];
    lksi_view x = spread(&a->in[0], z), y = spread(&a->in[1], z);
    unsigned last = last_dim(z);
    distance s = {.x = lksi_rowset_of(&x, last), .y = lksi_rowset_of(&y, last), .z = lksi_rowset_of(z, last),
                  .m = x.shape[x.ndim - 1], .x_rows = x.shape[x.ndim - 2], .y_rows = y.shape[y.ndim - 2]};
    set_power(&s, a->attr.distance.p);
    return run(cpu, a, &s, 0);
}

LKSI_KERNEL(cdist_backward)
{
    const lksi_view *dy = &a->in[0], *dx = &a->out[0];
    lksi_view x = spread(&a->in[1], dy), y = spread(&a->in[2], dy);
    unsigned last = last_dim(dy);
    distance s = {.x = lksi_rowset_of(&x, last), .y = lksi_rowset_of(&y, last), .z = lksi_rowset_of(&a->in[3], last),
                  .dy = lksi_rowset_of(dy, last), .dx = lksi_rowset_of(dx, last), .m = x.shape[x.ndim - 1],
                  .x_rows = x.shape[x.ndim - 2], .y_rows = y.shape[y.ndim - 2]};
    set_power(&s, a->attr.distance.p);
    return run(cpu, a, &s, 1);
}

LKSI_KERNEL(pdist)
{
    const lksi_view *x = &a->in[0];
    distance s = {.x = lksi_rowset_of(x, 2u), .y = lksi_rowset_of(x, 2u), .z = lksi_rowset_of(&a->out[0], 1u),
                  .m = x->shape[1], .x_rows = x->shape[0], .y_rows = x->shape[0], .triangle = 1};
    set_power(&s, a->attr.distance.p);
    return run(cpu, a, &s, 0);
}

LKSI_KERNEL(pdist_backward)
{
    const lksi_view *x = &a->in[1];
    distance s = {.x = lksi_rowset_of(x, 2u), .y = lksi_rowset_of(x, 2u), .z = lksi_rowset_of(&a->in[2], 1u),
                  .dy = lksi_rowset_of(&a->in[0], 1u), .dx = lksi_rowset_of(&a->out[0], 2u), .m = x->shape[1],
                  .x_rows = x->shape[0], .y_rows = x->shape[0], .triangle = 1};
    set_power(&s, a->attr.distance.p);
    return run(cpu, a, &s, 1);
}
