/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_real.h - cross entropy of one row of logits and its gradient, for one type of arithmetic. Included by loss.c for
 * float and double, with REAL and F(name) defined.
 */

/* n classes, target t. The loss is taken from the maximum down: log sum exp(x - max) + (max - x[t]); max + log sum
 * first would lose the logarithm where logits are large. */
static double F(loss_row)(const job *s, const REAL *x, int64_t n, int64_t t, double *lse)
{
    REAL max = F(max)(x, n);
    double log_sum = log((double)F(sum_exp)(x, n, max)), smoothing = s->smoothing;
    double loss = log_sum + (1 - smoothing) * ((double)max - (double)x[t]);
    if (smoothing > 0) loss += smoothing * ((double)max - (double)F(sum)(x, n) / (double)n);
    *lse = (double)max + log_sum;
    return loss;
}

/* dx = g (p - (1 - smoothing) [j = t] - smoothing / n); dx may be x. */
static void F(loss_row_back)(const job *s, const REAL *x, REAL *dx, int64_t n, int64_t t, REAL lse, REAL g)
{
    REAL even = (REAL)(s->smoothing / (double)n), hit = (REAL)(1 - s->smoothing);
    if (lse < 16 && lse > -16) {
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++) dx[j] = g * (F(exp_below)(x[j] - lse) - even);
    } else {
        /* The stored logarithm is rounded too coarsely: sum again. */
        REAL max = F(max)(x, n);
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++) dx[j] = F(exp_below)(x[j] - max);
        REAL scale = 1 / F(sum)(dx, n);
        for (int64_t j = 0; j < n; j++) dx[j] = g * (dx[j] * scale - even);
    }
    dx[t] -= g * hit;
}

static void F(losses)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each);
    for (int64_t r = begin, k; r < end; r += k) {
        k = lksi_rowset_beside(&s->x, r, end - r < s->group ? end - r : s->group);
        if (k > 1) F(rows_load_beside)(&s->x, r, k, xb);
        for (int64_t i = 0; i < k; i++) {
            int64_t t = target_at(s, r + i);
            double loss = 0, lse = 0;
            if (t != s->ignore) {
                const REAL *x = k > 1 ? xb + i * n : F(rows_load)(&s->x, r, xb);
                loss = F(loss_row)(s, x, n, t, &lse);
            }
            s->loss[r + i] = loss;
            lksi_put(s->lse.data, s->lse.dtype, lksi_rowset_offset(&s->lse, r + i), lse);
        }
    }
}

static void F(losses_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *db = xb + s->room;
    for (int64_t r = begin, k; r < end; r += k) {
        k = lksi_rowset_beside(&s->x, r, end - r < s->group ? end - r : s->group);
        if (k > 1) F(rows_load_beside)(&s->x, r, k, xb);
        for (int64_t i = 0; i < k; i++) {
            int64_t t = target_at(s, r + i);
            REAL *dx = k > 1 ? db + i * n : F(rows_room)(&s->y, r, 0, n, db);
            if (t == s->ignore) {
                memset(dx, 0, (size_t)n * sizeof *dx);
            } else {
                double g = lksi_get(s->dy.data, s->dy.dtype, lksi_rowset_offset(&s->dy, s->each ? r + i : 0));
                const REAL *x = k > 1 ? xb + i * n : F(rows_load)(&s->x, r, xb);
                REAL lse = (REAL)lksi_get(s->lse.data, s->lse.dtype, lksi_rowset_offset(&s->lse, r + i));
                F(loss_row_back)(s, x, dx, n, t, lse, (REAL)(g * s->factor));
            }
            if (k == 1) F(rows_store)(&s->y, r, 0, n, dx);
        }
        if (k > 1) F(rows_store_group)(&s->y, r, k, db);
    }
}
