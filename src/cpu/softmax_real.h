/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax_real.h - softmax, log_softmax and their backward rows over one slice, for one type of arithmetic. Included by
 * softmax.c for float and double, with REAL, F(name) and REAL_DTYPE defined; y may be x, dx may be dy.
 */

/* 1 if all n > 0 entries are -inf; max is the largest that is not NaN. */
static int F(nothing)(const REAL *x, int64_t n, REAL max)
{
    if (max != (REAL)-INFINITY) return 0;
    for (int64_t i = 0; i < n; i++)
        if (!(x[i] == (REAL)-INFINITY)) return 0;
    return 1;
}

static void F(softmax_slice)(const REAL *x, REAL *y, int64_t n)
{
    REAL max = F(max)(x, n);
    if (F(nothing)(x, n, max)) {
        memset(y, 0, (size_t)n * sizeof *y);
        return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) y[i] = F(exp_below)(x[i] - max);
    REAL scale = 1 / F(sum)(y, n);
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
}

static void F(log_softmax_slice)(const REAL *x, REAL *y, int64_t n)
{
    REAL max = F(max)(x, n);
    if (F(nothing)(x, n, max)) {
        for (int64_t i = 0; i < n; i++) y[i] = (REAL)-INFINITY;
        return;
    }
    /* x - max - log sum: adding max to the logarithm first would lose the logarithm of large entries. */
    REAL log_sum = (REAL)log((double)F(sum_exp)(x, n, max));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - max - log_sum;
}

static void F(softmax_slice_back)(const REAL *dy, const REAL *y, REAL *dx, int64_t n)
{
    REAL dot = F(dot)(dy, y, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - dot);
}

static void F(log_softmax_slice_back)(const REAL *dy, const REAL *y, REAL *dx, int64_t n)
{
    if (F(nothing)(y, n, F(max)(y, n))) {
        memset(dx, 0, (size_t)n * sizeof *dx);
        return;
    }
    REAL sum = F(sum)(dy, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - F(exp_below)(y[i]) * sum;
}

static void F(slice)(int what, const REAL *x, const REAL *dy, REAL *y, int64_t n)
{
    switch (what) {
    case SOFTMAX: F(softmax_slice)(x, y, n); break;
    case LOG_SOFTMAX: F(log_softmax_slice)(x, y, n); break;
    case SOFTMAX_BACK: F(softmax_slice_back)(dy, x, y, n); break;
    default: F(log_softmax_slice_back)(dy, x, y, n); break;
    }
}

static void F(slices)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + s->room, *yb = s->back ? gb : xb;
    for (int64_t r = begin, k; r < end; r += k) {
        k = lksi_rowset_beside(&s->x, r, end - r < s->group ? end - r : s->group);
        if (k == 1) {
            const REAL *x = F(rows_load)(&s->x, r, xb), *dy = s->back ? F(rows_load)(&s->dy, r, gb) : NULL;
            REAL *y = F(rows_room)(&s->y, r, 0, n, yb);
            F(slice)(s->what, x, dy, y, n);
            F(rows_store)(&s->y, r, 0, n, y);
            continue;
        }
        /* Slices side by side in memory: moved together. The other tensors may lie otherwise. */
        F(rows_load_beside)(&s->x, r, k, xb);
        if (s->back) F(rows_load_group)(&s->dy, r, k, gb);
        for (int64_t i = 0; i < k; i++) F(slice)(s->what, xb + i * n, gb + i * n, yb + i * n, n);
        F(rows_store_group)(&s->y, r, k, yb);
    }
}
