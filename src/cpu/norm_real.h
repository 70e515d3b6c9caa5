/* SPDX-License-Identifier: BSD-3-Clause
 *
 * norm_real.h - layer_norm, rms_norm, group_norm and batch_norm for one type of arithmetic. Included by norm.c for
 * float and double, with REAL, F(name) and REAL_DTYPE defined. Memory, splitting and dtypes of storage are decided in
 * norm.c.
 *
 * Statistics: the mean is hi + lo, hi rounded to REAL. A first pass sums x - x[0], so that equal elements give exactly
 * their value; the second works on d = x - hi and corrects both mean and variance by what hi misses (Chan, Golub &
 * LeVeque, 1983). No difference of large squares, no negative variance.
 */

#define WIDTH ((int)(LKSI_VECTOR / sizeof(REAL)))
#define PIECES ((int)(LKSI_LANES * sizeof(REAL) / LKSI_VECTOR))

/* Sum of x[i] - shift. */
static REAL F(sum_from)(const REAL *x, REAL shift, int64_t n)
{
    F(lanes) a;
    F(clear)(&a);
    F(vec) s = F(vec_all)(shift);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] += F(vec_at)(x + i + k * WIDTH) - s;
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, shift);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] += t.p[k] - s;
    }
    return F(fold)(&a);
}

/* Sums of d and d * d, d = x[i] - hi. */
static void F(sum_squares)(const REAL *x, REAL hi, int64_t n, REAL *sum, REAL *squares)
{
    F(lanes) a, b;
    F(clear)(&a);
    F(clear)(&b);
    F(vec) h = F(vec_all)(hi);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) {
            F(vec) d = F(vec_at)(x + i + k * WIDTH) - h;
            a.p[k] += d;
            b.p[k] = (F(vec))F(vfma)(d, d, b.p[k]);
        }
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, hi);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) {
            F(vec) d = t.p[k] - h;
            a.p[k] += d;
            b.p[k] = (F(vec))F(vfma)(d, d, b.p[k]);
        }
    }
    *sum = F(fold)(&a);
    *squares = F(fold)(&b);
}

/* Mean hi + lo and sum of squared deviations of n > 0 elements. */
static void F(moments)(const REAL *x, int64_t n, REAL *hi, REAL *lo, double *m2)
{
    REAL sum, squares;
    *hi = (REAL)((double)x[0] + (double)F(sum_from)(x, x[0], n) / (double)n);
    F(sum_squares)(x, *hi, n, &sum, &squares);
    *lo = (REAL)((double)sum / (double)n);
    double m = (double)squares - (double)sum * (double)*lo;
    *m2 = m < 0 ? 0 : m; /* rounding only; NaN stays */
}

/* y = ((x - hi) - lo) rstd [weight] [+ bias]; y may be x. Equal elements give bias exactly: x - hi and lo are 0. */
static void F(normalise)(const REAL *x, const REAL *w, const REAL *b, REAL *y, int64_t n, REAL hi, REAL lo, REAL rstd)
{
    REAL c = -lo * rstd;
    if (w && b) {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) y[i] = F(fma)(F(fma)(x[i] - hi, rstd, c), w[i], b[i]);
    } else if (w) {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) y[i] = F(fma)(x[i] - hi, rstd, c) * w[i];
    } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) y[i] = F(fma)(x[i] - hi, rstd, c);
        if (b)
            for (int64_t i = 0; i < n; i++) y[i] += b[i];
    }
}

/* --- layer norm --- */

static void F(layer_norm_rows)(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_norm *l = arg;
    REAL *xb = (REAL *)(void *)(l->scratch + worker * l->scratch_each), *yb = xb + l->room;
    int64_t n = l->x.n;
    for (int64_t r = begin; r < end; r++) {
        REAL hi = 0, lo = 0, rstd = 0;
        double m2 = 0;
        if (n > 0) {
            const REAL *x = F(rows_load)(&l->x, r, xb);
            REAL *y = F(rows_room)(&l->y, r, 0, n, yb);
            F(moments)(x, n, &hi, &lo, &m2);
            rstd = (REAL)(1 / sqrt(m2 / (double)n + l->eps));
            F(normalise)(x, l->w, l->b, y, n, hi, lo, rstd);
            F(rows_store)(&l->y, r, 0, n, y);
        }
        lksi_put(l->mean->data, l->mean->dtype, r * l->mean->stride[0], (double)hi + (double)lo);
        lksi_put(l->rstd->data, l->rstd->dtype, r * l->rstd->stride[0], (double)rstd);
    }
}

/* Sums over a row of d, g and g d: d = x - hi, g = dy [weight]. */
static void F(row_sums)(const REAL *x, const REAL *dy, const REAL *w, int64_t n, REAL hi, REAL *sd, REAL *sg, REAL *sgd)
{
    F(lanes) a, b, c;
    F(clear)(&a);
    F(clear)(&b);
    F(clear)(&c);
    F(vec) h = F(vec_all)(hi);
    int64_t i = 0;
    if (w) {
        for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
            for (int k = 0; k < PIECES; k++) {
                F(vec) d = F(vec_at)(x + i + k * WIDTH) - h;
                F(vec) g = F(vec_at)(dy + i + k * WIDTH) * F(vec_at)(w + i + k * WIDTH);
                a.p[k] += d;
                b.p[k] += g;
                c.p[k] = (F(vec))F(vfma)(g, d, c.p[k]);
            }
    } else {
        for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
            for (int k = 0; k < PIECES; k++) {
                F(vec) d = F(vec_at)(x + i + k * WIDTH) - h;
                F(vec) g = F(vec_at)(dy + i + k * WIDTH);
                a.p[k] += d;
                b.p[k] += g;
                c.p[k] = (F(vec))F(vfma)(g, d, c.p[k]);
            }
    }
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, hi), u = F(tail)(dy + i, n - i, 0);
        if (w) {
            F(lanes) v = F(tail)(w + i, n - i, 0);
            for (int k = 0; k < PIECES; k++) u.p[k] *= v.p[k];
        }
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) {
            F(vec) d = t.p[k] - h;
            a.p[k] += d;
            b.p[k] += u.p[k];
            c.p[k] = (F(vec))F(vfma)(u.p[k], d, c.p[k]);
        }
    }
    *sd = F(fold)(&a);
    *sg = F(fold)(&b);
    *sgd = F(fold)(&c);
}

/* Row r of dx is done: with what is there added, and once more in another dtype. */
static void F(layer_norm_emit)(const layer_norm *l, int64_t r, REAL *dx, REAL *buffer)
{
    int64_t n = l->x.n;
    if (l->there.data) {
        const REAL *t = F(rows_load)(&l->there, r, buffer), *own = dx;
        dx = F(rows_room)(&l->y, r, 0, n, dx);
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) dx[i] = own[i] + t[i];
    }
    F(rows_store)(&l->y, r, 0, n, dx);
    if (l->low.data) F(rows_store)(&l->low, r, 0, n, dx);
}

/* Items are blocks of rows: each adds into its own dweight and dbias, [blocks, 2, n]. */
static void F(layer_norm_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_norm *l = arg;
    REAL *xb = (REAL *)(void *)(l->scratch + worker * l->scratch_each), *gb = xb + l->room, *db = gb + l->room;
    int64_t n = l->x.n;
    const REAL *w = l->w;
    if (n == 0) return;
    for (int64_t block = begin; block < end; block++) {
        int64_t last = (block + 1) * l->block;
        if (last > l->x.rows) last = l->x.rows;
        REAL *restrict pw = (REAL *)l->partial + block * 2 * n, *restrict pb = pw + n;
        memset(pw, 0, (size_t)(2 * n) * sizeof(REAL));
        for (int64_t r = block * l->block; r < last; r++) {
            const REAL *x = F(rows_load)(&l->x, r, xb), *dy = F(rows_load)(&l->dy, r, gb);
            REAL *dx = l->there.data ? db : F(rows_room)(&l->y, r, 0, n, db); /* they may be the same memory */
            REAL hi = (REAL)lksi_get(l->mean->data, l->mean->dtype, r * l->mean->stride[0]);
            REAL rstd = (REAL)lksi_get(l->rstd->data, l->rstd->dtype, r * l->rstd->stride[0]);
            REAL sd, sg, sgd;
            F(row_sums)(x, dy, w, n, hi, &sd, &sg, &sgd);
            /* The stored mean is rounded: lo is what it misses. c1 = mean g, c2 = mean g xhat. */
            double lo = (double)sd / (double)n;
            REAL c0 = (REAL)(-lo * (double)rstd), c1 = (REAL)((double)sg / (double)n);
            REAL c2 = (REAL)(((double)sgd - lo * (double)sg) * (double)rstd / (double)n);
            if (w) {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) {
                    REAL xhat = F(fma)(x[i] - hi, rstd, c0), g = dy[i];
                    pw[i] = F(fma)(g, xhat, pw[i]);
                    pb[i] += g;
                    dx[i] = F(fma)(xhat, -c2, g * w[i] - c1) * rstd;
                }
            } else {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) {
                    REAL xhat = F(fma)(x[i] - hi, rstd, c0), g = dy[i];
                    pb[i] += g;
                    dx[i] = F(fma)(xhat, -c2, g - c1) * rstd;
                }
            }
            F(layer_norm_emit)(l, r, dx, db + l->room);
        }
    }
}

/* Columns [begin, end) of dweight and dbias: the blocks are added in order. */
static void F(layer_norm_join)(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_norm *l = arg;
    (void)worker;
    for (int which = l->w ? 0 : 1; which < (l->db.data ? 2 : 1); which++) { /* an RMS norm has no bias */
        const REAL *p = (const REAL *)l->partial + which * l->x.n;
        for (int64_t at = begin; at < end; at += 64) {
            int64_t m = end - at < 64 ? end - at : 64;
            double sum[64] = {0};
            REAL out[64];
            for (int64_t block = 0; block < l->blocks; block++)
                for (int64_t k = 0; k < m; k++) sum[k] += (double)p[block * 2 * l->x.n + at + k];
            for (int64_t k = 0; k < m; k++) out[k] = (REAL)sum[k];
            F(rows_move)(which ? &l->db : &l->dw, 0, at, m, out, 1);
        }
    }
}

/* --- RMS norm --- */

/* 1 / sqrt(mean x^2 + eps). Squares that overflow or vanish are taken of x / max |x|. */
static double F(rms)(const REAL *x, int64_t n, double eps)
{
    REAL sum, squares;
    F(sum_squares)(x, 0, n, &sum, &squares);
    double m = (double)squares / (double)n, low = sizeof(REAL) == 4 ? 1e-30 : 1e-290, big = 0, s = 0;
    if (m > low && m < 1 / low) return 1 / sqrt(m + eps);
    for (int64_t i = 0; i < n; i++) {
        double v = fabs((double)x[i]);
        if (!(v <= big)) big = v; /* a NaN stays: nothing is larger */
    }
    if (!(big > 0 && big < INFINITY)) return 1 / sqrt(m + eps);
    for (int64_t i = 0; i < n; i++) s += (double)x[i] / big * ((double)x[i] / big);
    return 1 / big / sqrt(s / (double)n + eps / big / big);
}

static void F(rms_norm_rows)(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_norm *l = arg;
    REAL *xb = (REAL *)(void *)(l->scratch + worker * l->scratch_each), *yb = xb + l->room;
    const REAL *w = l->w;
    int64_t n = l->x.n;
    for (int64_t r = begin; r < end; r++) {
        REAL rstd = 0;
        if (n > 0) {
            const REAL *x = F(rows_load)(&l->x, r, xb);
            REAL *y = F(rows_room)(&l->y, r, 0, n, yb);
            rstd = (REAL)F(rms)(x, n, l->eps);
            if (w) {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i];
            } else {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd;
            }
            F(rows_store)(&l->y, r, 0, n, y);
        }
        lksi_put(l->rstd->data, l->rstd->dtype, r * l->rstd->stride[0], (double)rstd);
    }
}

/* As layer_norm_back; dx = rstd (g - xhat mean g xhat), g = dy [weight]. */
static void F(rms_norm_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_norm *l = arg;
    REAL *xb = (REAL *)(void *)(l->scratch + worker * l->scratch_each), *gb = xb + l->room, *db = gb + l->room;
    int64_t n = l->x.n;
    const REAL *w = l->w;
    if (n == 0) return;
    for (int64_t block = begin; block < end; block++) {
        int64_t last = (block + 1) * l->block;
        if (last > l->x.rows) last = l->x.rows;
        REAL *restrict pw = (REAL *)l->partial + block * 2 * n;
        memset(pw, 0, (size_t)n * sizeof(REAL));
        for (int64_t r = block * l->block; r < last; r++) {
            const REAL *x = F(rows_load)(&l->x, r, xb), *dy = F(rows_load)(&l->dy, r, gb);
            REAL *dx = l->there.data ? db : F(rows_room)(&l->y, r, 0, n, db);
            REAL rstd = (REAL)lksi_get(l->rstd->data, l->rstd->dtype, r * l->rstd->stride[0]);
            REAL sd, sg, sgd;
            F(row_sums)(x, dy, w, n, 0, &sd, &sg, &sgd);
            REAL c = (REAL)((double)sgd * (double)rstd / (double)n);
            if (w) {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) {
                    REAL xhat = x[i] * rstd, g = dy[i];
                    pw[i] = F(fma)(g, xhat, pw[i]);
                    dx[i] = F(fma)(xhat, -c, g * w[i]) * rstd;
                }
            } else {
#pragma GCC ivdep
                for (int64_t i = 0; i < n; i++) dx[i] = F(fma)(x[i] * rstd, -c, dy[i]) * rstd;
            }
            F(layer_norm_emit)(l, r, dx, db + l->room);
        }
    }
}

/* --- batch norm, planes: one channel at a time --- */

/* Piece of a channel from `at` on: within one plane if planes are large, so that it can be used in place. */
static int64_t F(piece)(const batch_norm *s, int64_t at)
{
    int64_t left = s->count - at, plane = s->plane;
    int64_t want = plane >= 256 ? plane - at % plane : PIECE;
    if (want > PIECE) want = PIECE;
    return want < left ? want : left;
}

static moments F(plane_moments)(const batch_norm *s, int64_t c, REAL *xb)
{
    moments m = {0, 0, 0};
    for (int64_t at = 0, k; at < s->count; at += k) {
        REAL hi, lo;
        double m2;
        k = F(piece)(s, at);
        F(moments)(F(rows_part)(&s->x, c, at, k, xb), k, &hi, &lo, &m2);
        moments_join(&m, (double)k, (double)hi + (double)lo, m2);
    }
    return m;
}

static void F(planes_stats)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    for (int64_t c = begin; c < end; c++) {
        moments m = F(plane_moments)(s, c, (REAL *)(void *)(s->scratch + worker * s->scratch_each));
        batch_norm_found(s, c, &m);
    }
}

static void F(planes)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *yb = xb + PIECE;
    for (int64_t c = begin; c < end; c++) {
        if (s->training && !s->measured) {
            moments m = F(plane_moments)(s, c, xb);
            batch_norm_set(s, c, m.mean, m.m2);
        }
        REAL hi = (REAL)s->mean[c], scale = (REAL)s->scale[c];
        REAL b = (REAL)(s->shift[c] - (s->mean[c] - (double)hi) * s->scale[c]);
        for (int64_t at = 0, k; at < s->count; at += k) {
            k = F(piece)(s, at);
            const REAL *x = F(rows_part)(&s->x, c, at, k, xb);
            REAL *y = F(rows_room)(&s->y, c, at, k, yb);
#pragma GCC ivdep
            for (int64_t i = 0; i < k; i++) y[i] = F(fma)(x[i] - hi, scale, b);
            F(rows_store)(&s->y, c, at, k, y);
        }
    }
}

static void F(plane_sums)(const batch_norm *s, int64_t c, REAL *xb, REAL *gb)
{
    REAL hi = (REAL)s->mean[c];
    double sd = 0, sg = 0, sgd = 0;
    for (int64_t at = 0, k; at < s->count && !s->measured; at += k) {
        REAL d, g, gd;
        k = F(piece)(s, at);
        F(row_sums)(F(rows_part)(&s->x, c, at, k, xb), F(rows_part)(&s->dy, c, at, k, gb), NULL, k, hi, &d, &g, &gd);
        sd += (double)d;
        sg += (double)g;
        sgd += (double)gd;
    }
    batch_norm_summed(s, c, sd, sg, sgd);
}

static void F(planes_sums)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each);
    for (int64_t c = begin; c < end; c++) F(plane_sums)(s, c, xb, xb + PIECE);
}

static void F(planes_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + PIECE, *db = gb + PIECE;
    for (int64_t c = begin; c < end; c++) {
        REAL hi = (REAL)s->mean[c];
        F(plane_sums)(s, c, xb, gb);
        REAL c1 = (REAL)(s->c1[c] - s->lo[c] * s->c2[c]), c2 = (REAL)s->c2[c], scale = (REAL)s->scale[c];
        for (int64_t at = 0, k; at < s->count; at += k) {
            k = F(piece)(s, at);
            const REAL *dy = F(rows_part)(&s->dy, c, at, k, gb);
            REAL *dx = F(rows_room)(&s->y, c, at, k, db);
            if (s->training) {
                const REAL *x = F(rows_part)(&s->x, c, at, k, xb);
#pragma GCC ivdep
                for (int64_t i = 0; i < k; i++) dx[i] = F(fma)(x[i] - hi, -c2, dy[i] - c1) * scale;
            } else {
#pragma GCC ivdep
                for (int64_t i = 0; i < k; i++) dx[i] = dy[i] * scale;
            }
            F(rows_store)(&s->y, c, at, k, dx);
        }
    }
}

/* --- batch norm, columns: channels adjacent, rows of C --- */

/* Statistics of superblocks of rows: into moments [supers, C]. Blocks stay in cache for two passes. */
static void F(columns_stats)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    int64_t n = s->channels;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *hi = xb + 3 * s->block * n;
    REAL *sum = hi + n, *squares = sum + n;
    for (int64_t super = begin; super < end; super++) {
        moments *m = s->moments + super * n;
        memset(m, 0, (size_t)n * sizeof *m);
        int64_t last = (super + 1) * s->super;
        if (last > s->count) last = s->count;
        for (int64_t at = super * s->super; at < last; at += s->block) {
            int64_t k = last - at < s->block ? last - at : s->block;
            const REAL *x = F(rows_block)(&s->x, at, k, xb);
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int64_t r = 0; r < k; r++) {
                const REAL *row = x + r * n;
#pragma GCC ivdep
                for (int64_t c = 0; c < n; c++) sum[c] += row[c] - x[c];
            }
            for (int64_t c = 0; c < n; c++) {
                hi[c] = x[c] + sum[c] / (REAL)k;
                sum[c] = 0;
                squares[c] = 0;
            }
            for (int64_t r = 0; r < k; r++) {
                const REAL *row = x + r * n;
#pragma GCC ivdep
                for (int64_t c = 0; c < n; c++) {
                    REAL d = row[c] - hi[c];
                    sum[c] += d;
                    squares[c] = F(fma)(d, d, squares[c]);
                }
            }
            for (int64_t c = 0; c < n; c++) {
                double lo = (double)sum[c] / (double)k, m2 = (double)squares[c] - (double)sum[c] * lo;
                moments_join(&m[c], (double)k, (double)hi[c] + lo, m2 < 0 ? 0 : m2);
            }
        }
    }
}

static void F(columns_apply)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    int64_t n = s->channels;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *yb = xb + s->block * n;
    REAL *hi = yb + 2 * s->block * n, *scale = hi + n, *shift = scale + n;
    for (int64_t c = 0; c < n; c++) {
        hi[c] = (REAL)s->mean[c];
        scale[c] = (REAL)s->scale[c];
        shift[c] = (REAL)(s->shift[c] - (s->mean[c] - (double)hi[c]) * s->scale[c]);
    }
    for (int64_t at = begin, k; at < end; at += k) {
        k = end - at < s->block ? end - at : s->block;
        const REAL *x = F(rows_block)(&s->x, at, k, xb);
        REAL *y = F(rows_block_room)(&s->y, at, yb);
        for (int64_t r = 0; r < k; r++) {
            const REAL *xr = x + r * n;
            REAL *yr = y + r * n;
#pragma GCC ivdep
            for (int64_t c = 0; c < n; c++) yr[c] = F(fma)(xr[c] - hi[c], scale[c], shift[c]);
        }
        F(rows_block_store)(&s->y, at, k, y);
    }
}

/* Sums of superblocks, [supers, 3, C] of double: d, dy, dy d. */
static void F(columns_sums)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    int64_t n = s->channels;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + s->block * n;
    REAL *hi = gb + 2 * s->block * n, *sd = hi + n, *sg = sd + n, *sgd = sg + n;
    for (int64_t c = 0; c < n; c++) hi[c] = (REAL)s->mean[c];
    for (int64_t super = begin; super < end; super++) {
        double *out = s->sums + super * 3 * n;
        memset(out, 0, (size_t)(3 * n) * sizeof *out);
        int64_t last = (super + 1) * s->super;
        if (last > s->count) last = s->count;
        for (int64_t at = super * s->super; at < last; at += s->block) {
            int64_t k = last - at < s->block ? last - at : s->block;
            const REAL *x = F(rows_block)(&s->x, at, k, xb), *dy = F(rows_block)(&s->dy, at, k, gb);
            memset(sd, 0, (size_t)(3 * n) * sizeof *sd);
            for (int64_t r = 0; r < k; r++) {
                const REAL *xr = x + r * n, *gr = dy + r * n;
#pragma GCC ivdep
                for (int64_t c = 0; c < n; c++) {
                    REAL d = xr[c] - hi[c], g = gr[c];
                    sd[c] += d;
                    sg[c] += g;
                    sgd[c] = F(fma)(g, d, sgd[c]);
                }
            }
            for (int64_t c = 0; c < 3 * n; c++) out[c] += (double)sd[c];
        }
    }
}

static void F(columns_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    int64_t n = s->channels;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + s->block * n;
    REAL *db = gb + s->block * n, *hi = db + s->block * n, *c1 = hi + n, *c2 = c1 + n, *scale = c2 + n;
    for (int64_t c = 0; c < n; c++) {
        hi[c] = (REAL)s->mean[c];
        c1[c] = (REAL)(s->c1[c] - s->lo[c] * s->c2[c]);
        c2[c] = (REAL)s->c2[c];
        scale[c] = (REAL)s->scale[c];
    }
    for (int64_t at = begin, k; at < end; at += k) {
        k = end - at < s->block ? end - at : s->block;
        const REAL *dy = F(rows_block)(&s->dy, at, k, gb), *x = s->training ? F(rows_block)(&s->x, at, k, xb) : NULL;
        REAL *dx = F(rows_block_room)(&s->y, at, db);
        for (int64_t r = 0; r < k; r++) {
            const REAL *gr = dy + r * n;
            REAL *dr = dx + r * n;
            if (x) {
                const REAL *xr = x + r * n;
#pragma GCC ivdep
                for (int64_t c = 0; c < n; c++) dr[c] = F(fma)(xr[c] - hi[c], -c2[c], gr[c] - c1[c]) * scale[c];
            } else {
#pragma GCC ivdep
                for (int64_t c = 0; c < n; c++) dr[c] = gr[c] * scale[c];
            }
        }
        F(rows_block_store)(&s->y, at, k, dx);
    }
}

/* --- group norm, planes: a group of an image at a time --- */

static int64_t F(part)(int64_t at, int64_t n) { return n - at < PIECE ? n - at : PIECE; }

static void F(group_planes)(void *arg, int64_t begin, int64_t end, int worker)
{
    const group_norm *s = arg;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *yb = xb + PIECE;
    for (int64_t group = begin; group < end; group++) {
        int64_t first = group * s->each, c0 = group % s->groups * s->each;
        moments m = {0, 0, 0};
        for (int64_t c = 0; c < s->each; c++)
            for (int64_t at = 0, k; at < s->plane; at += k) {
                REAL hi, lo;
                double m2;
                k = F(part)(at, s->plane);
                F(moments)(F(rows_part)(&s->x, first + c, at, k, xb), k, &hi, &lo, &m2);
                moments_join(&m, (double)k, (double)hi + (double)lo, m2);
            }
        double rstd = group_set(s, group, m.mean, m.m2);
        REAL hi = (REAL)m.mean;
        for (int64_t c = 0; c < s->each; c++) {
            double factor = rstd * group_weight(s, c0 + c);
            REAL scale = (REAL)factor, b = (REAL)(group_bias(s, c0 + c) - (m.mean - (double)hi) * factor);
            for (int64_t at = 0, k; at < s->plane; at += k) {
                k = F(part)(at, s->plane);
                const REAL *x = F(rows_part)(&s->x, first + c, at, k, xb);
                REAL *y = F(rows_room)(&s->y, first + c, at, k, yb);
#pragma GCC ivdep
                for (int64_t i = 0; i < k; i++) y[i] = F(fma)(x[i] - hi, scale, b);
                F(rows_store)(&s->y, first + c, at, k, y);
            }
        }
    }
}

static void F(group_planes_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const group_norm *s = arg;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + PIECE, *db = gb + PIECE;
    for (int64_t group = begin; group < end; group++) {
        int64_t first = group * s->each, c0 = group % s->groups * s->each;
        REAL hi = (REAL)group_entry(s->mean, group);
        double coefficient, constant;
        for (int64_t c = 0; c < s->each; c++) {
            double *p = s->sums + (first + c) * 3;
            p[0] = p[1] = p[2] = 0;
            for (int64_t at = 0, k; at < s->plane; at += k) {
                REAL d, g, gd;
                k = F(part)(at, s->plane);
                F(row_sums)(F(rows_part)(&s->x, first + c, at, k, xb), F(rows_part)(&s->dy, first + c, at, k, gb),
                            NULL, k, hi, &d, &g, &gd);
                p[0] += (double)d;
                p[1] += (double)g;
                p[2] += (double)gd;
            }
        }
        group_coefficients(s, group / s->groups, group % s->groups, &coefficient, &constant);
        REAL b = (REAL)coefficient, e = (REAL)constant;
        for (int64_t c = 0; c < s->each; c++) {
            REAL scale = (REAL)(group_entry(s->rstd, group) * group_weight(s, c0 + c));
            for (int64_t at = 0, k; at < s->plane; at += k) {
                k = F(part)(at, s->plane);
                const REAL *x = F(rows_part)(&s->x, first + c, at, k, xb);
                const REAL *dy = F(rows_part)(&s->dy, first + c, at, k, gb);
                REAL *dx = F(rows_room)(&s->y, first + c, at, k, db);
#pragma GCC ivdep
                for (int64_t i = 0; i < k; i++) dx[i] = F(fma)(dy[i], scale, F(fma)(x[i] - hi, -b, -e));
                F(rows_store)(&s->y, first + c, at, k, dx);
            }
        }
    }
}

/* --- group norm, columns: an image at a time; channels are measured as by batch norm and joined --- */

static void F(group_columns)(void *arg, int64_t begin, int64_t end, int worker)
{
    const group_norm *s = arg;
    for (int64_t n = begin; n < end; n++) {
        batch_norm b = group_image(s, n, worker);
        F(columns_stats)(&b, 0, b.supers, worker);
        for (int64_t g = 0; g < s->groups; g++) {
            moments m = {0, 0, 0};
            for (int64_t c = g * s->each; c < (g + 1) * s->each; c++)
                for (int64_t i = 0; i < b.supers; i++) {
                    const moments *p = &b.moments[i * s->channels + c];
                    moments_join(&m, p->n, p->mean, p->m2);
                }
            double rstd = group_set(s, n * s->groups + g, m.mean, m.m2);
            for (int64_t c = g * s->each; c < (g + 1) * s->each; c++) {
                b.mean[c] = m.mean;
                b.scale[c] = rstd * group_weight(s, c);
                b.shift[c] = group_bias(s, c);
            }
        }
        F(columns_apply)(&b, 0, s->plane, worker);
    }
}

static void F(group_columns_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const group_norm *s = arg;
    int64_t channels = s->channels;
    REAL *xb = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *gb = xb + s->block * channels;
    REAL *db = gb + s->block * channels, *hi = db + s->block * channels, *scale = hi + channels;
    REAL *slope = scale + channels, *constant = slope + channels;
    for (int64_t n = begin; n < end; n++) {
        batch_norm b = group_image(s, n, worker);
        for (int64_t c = 0; c < channels; c++) b.mean[c] = group_entry(s->mean, n * s->groups + c / s->each);
        F(columns_sums)(&b, 0, b.supers, worker);
        for (int64_t c = 0; c < channels; c++) {
            double *p = s->sums + (n * channels + c) * 3;
            p[0] = p[1] = p[2] = 0;
            for (int64_t i = 0; i < b.supers; i++)
                for (int k = 0; k < 3; k++) p[k] += b.sums[(i * 3 + k) * channels + c];
        }
        for (int64_t g = 0; g < s->groups; g++) {
            double slopes, constants;
            group_coefficients(s, n, g, &slopes, &constants);
            for (int64_t c = g * s->each; c < (g + 1) * s->each; c++) {
                hi[c] = (REAL)b.mean[c];
                scale[c] = (REAL)(group_entry(s->rstd, n * s->groups + g) * group_weight(s, c));
                slope[c] = (REAL)slopes;
                constant[c] = (REAL)constants;
            }
        }
        for (int64_t at = 0, k; at < s->plane; at += k) {
            k = s->plane - at < s->block ? s->plane - at : s->block;
            const REAL *x = F(rows_block)(&b.x, at, k, xb), *dy = F(rows_block)(&b.dy, at, k, gb);
            REAL *dx = F(rows_block_room)(&b.y, at, db);
            for (int64_t r = 0; r < k; r++) {
                const REAL *xr = x + r * channels, *gr = dy + r * channels;
                REAL *dr = dx + r * channels;
#pragma GCC ivdep
                for (int64_t c = 0; c < channels; c++)
                    dr[c] = F(fma)(gr[c], scale[c], F(fma)(xr[c] - hi[c], -slope[c], -constant[c]));
            }
            F(rows_block_store)(&b.y, at, k, dx);
        }
    }
}

#undef WIDTH
#undef PIECES
