/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_real.h - cross entropy of one row of logits and its gradients, for one type of arithmetic. Included by loss.c
 * for float and double, with REAL and F(name) defined.
 */

/* n classes, target t. The loss is taken from the maximum down: log sum exp(x - max) + (max - x[t]); max + log sum
 * first would lose the logarithm where logits are large. */
static double F(loss_row)(const job *s, const REAL *x, int64_t n, int64_t t, double *lse)
{
    REAL max = F(max)(x, n);
    const REAL *w = s->w;
    double log_sum = log((double)F(sum_exp)(x, n, max)), smoothing = s->smoothing;
    double loss = (double)max - (double)x[t];
    *lse = (double)max + log_sum;
    if (!w) {
        loss = log_sum + (1 - smoothing) * loss;
        if (smoothing > 0) loss += smoothing * ((double)max - (double)F(sum)(x, n) / (double)n);
        return loss;
    }
    loss = (1 - smoothing) * (double)w[t] * (log_sum + loss);
    if (smoothing > 0) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)w[j] * ((double)max - (double)x[j]);
        loss += smoothing / (double)n * (s->w_sum * log_sum + sum);
    }
    return loss;
}

/* y = scale e^(x - max), which sums to scale; y may be x. */
static void F(soft_row)(const REAL *x, REAL *y, int64_t n, REAL scale)
{
    REAL max = F(max)(x, n);
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) y[j] = F(exp_below)(x[j] - max);
    scale /= F(sum)(y, n);
    for (int64_t j = 0; j < n; j++) y[j] = y[j] * scale;
}

/* dx = g (p - (1 - smoothing) [j = t] - smoothing / n), with weights
 * g (((1 - smoothing) w[t] + smoothing sum w / n) p - (1 - smoothing) w[t] [j = t] - smoothing w / n); dx may be x. */
static void F(loss_row_back)(const job *s, const REAL *x, REAL *dx, int64_t n, int64_t t, REAL lse, REAL g)
{
    REAL even = (REAL)(s->smoothing / (double)n), hit = (REAL)(1 - s->smoothing);
    const REAL *w = s->w;
    if (w) {
        hit *= w[t];
        F(soft_row)(x, dx, n, hit + even * (REAL)s->w_sum);
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++) dx[j] = g * (dx[j] - even * w[j]);
    } else if (lse < 16 && lse > -16) {
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

/* The target as the loss takes it, q = w ((1 - smoothing) t + smoothing / n); q may be t. */
static void F(soft_target)(const job *s, const REAL *t, REAL *q, int64_t n)
{
    REAL even = (REAL)(s->smoothing / (double)n), part = (REAL)(1 - s->smoothing);
    const REAL *w = s->w;
    if (s->smoothing > 0) {
        for (int64_t j = 0; j < n; j++) q[j] = part * t[j] + even;
        t = q;
    }
    if (w)
        for (int64_t j = 0; j < n; j++) q[j] = w[j] * t[j];
    else if (q != t)
        memcpy(q, t, (size_t)n * sizeof *q);
}

/* sum q (lse - x); a class that has no part in the target has none in the loss, whatever its logit. buffer: n. */
static double F(soft_loss_row)(const REAL *x, const REAL *q, int64_t n, REAL *buffer, double *lse)
{
    REAL max = F(max)(x, n);
    double log_sum = log((double)F(sum_exp)(x, n, max));
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) buffer[j] = q[j] == 0 ? 0 : q[j] * (max - x[j]);
    *lse = (double)max + log_sum;
    return (double)F(sum)(buffer, n) + (double)F(sum)(q, n) * log_sum;
}

static void F(losses)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *qb = xb + s->room, *eb = qb + s->room;
    for (int64_t r = begin, k; r < end; r += k) {
        k = lksi_rowset_beside(&s->x, r, end - r < s->group ? end - r : s->group);
        if (k > 1) F(rows_load_beside)(&s->x, r, k, xb);
        if (s->soft) F(rows_load_group)(&s->target, r, k, qb);
        for (int64_t i = 0; i < k; i++) {
            const REAL *x = k > 1 ? xb + i * n : NULL;
            double loss = 0, lse = 0;
            if (s->soft) {
                if (!x) x = F(rows_load)(&s->x, r, xb);
                F(soft_target)(s, qb + i * n, qb + i * n, n);
                loss = F(soft_loss_row)(x, qb + i * n, n, eb, &lse);
            } else {
                int64_t t = index_of(&s->target, r + i);
                if (t != s->ignore) loss = F(loss_row)(s, x ? x : F(rows_load)(&s->x, r, xb), n, t, &lse);
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
            int64_t t = index_of(&s->target, r + i);
            REAL *dx = k > 1 ? db + i * n : F(rows_room)(&s->y, r, 0, n, db);
            if (t == s->ignore) {
                memset(dx, 0, (size_t)n * sizeof *dx);
            } else {
                double g = given_at(s->a, &s->dy, r + i, s->count);
                const REAL *x = k > 1 ? xb + i * n : F(rows_load)(&s->x, r, xb);
                REAL lse = (REAL)lksi_get(s->lse.data, s->lse.dtype, lksi_rowset_offset(&s->lse, r + i));
                F(loss_row_back)(s, x, dx, n, t, lse, (REAL)g);
            }
            if (k == 1) F(rows_store)(&s->y, r, 0, n, dx);
        }
        if (k > 1) F(rows_store_group)(&s->y, r, k, db);
    }
}

/* dx = g (sum(q) p - q); dt = g w (1 - smoothing) (lse - x). */
static void F(soft_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *qb = xb + s->room, *db = qb + s->room,
         *tb = db + s->room;
    const REAL *w = s->w;
    for (int64_t r = begin, k; r < end; r += k) {
        k = lksi_rowset_beside(&s->x, r, end - r < s->group ? end - r : s->group);
        F(rows_load_group)(&s->x, r, k, xb);
        F(rows_load_group)(&s->target, r, k, qb);
        for (int64_t i = 0; i < k; i++) {
            const REAL *x = xb + i * n;
            REAL *q = qb + i * n, *dx = db + i * n, *dt = tb + i * n;
            REAL g = (REAL)given_at(s->a, &s->dy, r + i, s->count), part = g * (REAL)(1 - s->smoothing);
            F(soft_target)(s, q, q, n);
            F(soft_row)(x, dx, n, F(sum)(q, n));
#pragma GCC ivdep
            for (int64_t j = 0; j < n; j++) dx[j] = g * (dx[j] - q[j]);
            if (!s->wants_dtarget) continue;
            double lse = lksi_get(s->lse.data, s->lse.dtype, lksi_rowset_offset(&s->lse, r + i));
            for (int64_t j = 0; j < n; j++) dt[j] = part * (w ? w[j] : 1) * (REAL)(lse - (double)x[j]);
        }
        F(rows_store_group)(&s->y, r, k, db);
        if (s->wants_dtarget) F(rows_store_group)(&s->dtarget, r, k, tb);
    }
}
