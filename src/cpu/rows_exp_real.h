/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows_exp_real.h - the part of rows_exp.h that exists for float and for double; see rows_real.h.
 */
#define WIDTH ((int)(LKSI_VECTOR / sizeof(REAL)))
#define PIECES ((int)(LKSI_LANES * sizeof(REAL) / LKSI_VECTOR))

static LKSI_UNUSED REAL F(dot)(const REAL *x, const REAL *y, int64_t n)
{
    F(lanes) a;
    F(clear)(&a);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) {
            F(vec) u = F(vec_at)(x + i + k * WIDTH), v = F(vec_at)(y + i + k * WIDTH);
            a.p[k] = (F(vec))F(vfma)(u, v, a.p[k]);
        }
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, 0), u = F(tail)(y + i, n - i, 0);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] = (F(vec))F(vfma)(t.p[k], u.p[k], a.p[k]);
    }
    return F(fold)(&a);
}

/* Sum of exp(x[i] - max). Block by block through a small buffer, so that the exponentials are one plain loop. */
static LKSI_UNUSED REAL F(sum_exp)(const REAL *x, int64_t n, REAL max)
{
    REAL e[512];
    double sum = 0;
    for (int64_t at = 0; at < n; at += 512) {
        int64_t k = n - at < 512 ? n - at : 512;
        for (int64_t i = 0; i < k; i++) e[i] = F(exp_below)(x[at + i] - max);
        sum += (double)F(sum)(e, k);
    }
    return (REAL)sum;
}

/* count rows from `row` on to and from buffer [count, n], beside each other in memory or not. */
static LKSI_UNUSED void F(rows_load_group)(const lksi_rowset *r, int64_t row, int64_t count, REAL *buffer)
{
    if (lksi_rowset_beside(r, row, count) == count && count > 1) {
        F(rows_load_beside)(r, row, count, buffer);
        return;
    }
    for (int64_t i = 0; i < count; i++) F(rows_move)(r, row + i, 0, r->n, buffer + i * r->n, 0);
}
static LKSI_UNUSED void F(rows_store_group)(const lksi_rowset *r, int64_t row, int64_t count, REAL *buffer)
{
    if (lksi_rowset_beside(r, row, count) == count && count > 1) {
        F(rows_store_beside)(r, row, count, buffer);
        return;
    }
    for (int64_t i = 0; i < count; i++) F(rows_move)(r, row + i, 0, r->n, buffer + i * r->n, 1);
}

#undef WIDTH
#undef PIECES
