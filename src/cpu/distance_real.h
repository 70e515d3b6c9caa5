/* SPDX-License-Identifier: BSD-3-Clause
 *
 * distance_real.h - the part of distance.c that exists for float and for double: included twice, with REAL and F(name)
 * defined.
 */

static inline REAL F(one)(REAL d, double p)
{
    return d == 0 ? 0 : (REAL)pow(fabs((double)d), p);
}

static inline REAL F(larger)(REAL d, REAL m)
{
    return m != m ? m : !(d <= m) ? d : m; /* NaN stays */
}

static inline REAL F(finish)(REAL sum, const distance *s)
{
    switch (s->kind) {
    case P_TWO: return sizeof(REAL) == 4 ? (REAL)sqrtf((float)sum) : (REAL)sqrt((double)sum);
    case P_ANY: return (REAL)pow((double)sum, 1 / s->p);
    default: return sum;
    }
}

/* total[r] = what x [m] and the columns of y [m, COLUMNS] differ by */
static void F(columns)(const distance *s, const REAL *restrict x, const REAL *restrict y, REAL *restrict total)
{
    REAL part[COLUMNS];
    for (int r = 0; r < COLUMNS; r++) total[r] = 0;
    for (int64_t m0 = 0; m0 < s->m; m0 += DEPTH) {
        int64_t end = s->m - m0 < DEPTH ? s->m : m0 + DEPTH;
        for (int r = 0; r < COLUMNS; r++) part[r] = 0;
#define EACH(EXPR)                                                                                             \
    for (int64_t i = m0; i < end; i++) {                                                                       \
        const REAL *row = y + i * COLUMNS;                                                                     \
        REAL v = x[i];                                                                                         \
        for (int r = 0; r < COLUMNS; r++) {                                                                    \
            REAL d = v - row[r];                                                                               \
            part[r] = EXPR;                                                                                    \
        }                                                                                                      \
    }                                                                                                          \
    break
        switch (s->kind) {
        case P_TWO: EACH(part[r] + d * d);
        case P_ONE: EACH(part[r] + (d < 0 ? -d : d));
        case P_ZERO: EACH(part[r] + (d != 0 ? 1 : 0));
        case P_INF: EACH(F(larger)(d < 0 ? -d : d, part[r]));
        default: EACH(part[r] + F(one)(d, s->p));
        }
#undef EACH
        for (int r = 0; r < COLUMNS; r++)
            total[r] = s->kind == P_INF ? F(larger)(part[r], total[r]) : total[r] + part[r];
    }
}

/* Item: a batch entry, a block of rows of x, a block of rows of y. */
static void F(forward)(void *arg, int64_t begin, int64_t end, int worker)
{
    const distance *s = arg;
    REAL *y = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *x = y + s->m * COLUMNS, *row = x + s->m;
    for (int64_t item = begin; item < end; item++) {
        int64_t jb = item % s->y_blocks, rest = item / s->y_blocks, ib = rest % s->x_blocks, batch = rest / s->x_blocks;
        int64_t j0 = jb * COLUMNS, n = s->y_rows - j0 < COLUMNS ? s->y_rows - j0 : COLUMNS;
        int64_t i0 = ib * COLUMNS, i1 = s->x_rows - i0 < COLUMNS ? s->x_rows : i0 + COLUMNS;
        int64_t first = s->triangle ? i0 + 1 - j0 : 0;
        if (s->triangle && first >= n) continue; /* all of it on or below the diagonal */
        for (int64_t j = 0; j < n; j++) {
            const REAL *from = F(rows_load)(&s->y, batch * s->y_rows + j0 + j, row);
            for (int64_t i = 0; i < s->m; i++) y[i * COLUMNS + j] = from[i];
        }
        for (int64_t i = 0; i < s->m; i++)
            for (int64_t j = n; j < COLUMNS; j++) y[i * COLUMNS + j] = 0;
        for (int64_t i = i0; i < i1; i++) {
            REAL total[COLUMNS];
            F(columns)(s, F(rows_load)(&s->x, batch * s->x_rows + i, x), y, total);
            for (int64_t j = 0; j < n; j++) total[j] = F(finish)(total[j], s);
            if (!s->triangle) {
                F(rows_move)(&s->z, batch * s->x_rows + i, j0, n, total, 1);
                continue;
            }
            int64_t skip = i + 1 - j0 > 0 ? i + 1 - j0 : 0;
            if (skip < n) F(rows_move)(&s->z, 0, pair_at(s->x_rows, i, j0 + skip), n - skip, total + skip, 1);
        }
    }
}

/* sum += dy d/dx of the distance, where it is `far` */
static void F(add_gradient)(const distance *s, REAL dy, REAL far, const REAL *restrict x, const REAL *restrict y,
                            REAL *restrict sum)
{
    int64_t n = s->m;
    if (far == 0 || s->kind == P_ZERO) return;
    switch (s->kind) {
    case P_TWO: {
        REAL w = dy / far;
        for (int64_t i = 0; i < n; i++) sum[i] += w * (x[i] - y[i]);
        break;
    }
    case P_ONE:
        for (int64_t i = 0; i < n; i++) sum[i] += x[i] > y[i] ? dy : x[i] < y[i] ? -dy : 0;
        break;
    case P_INF:
        for (int64_t i = 0; i < n; i++) {
            REAL d = x[i] - y[i];
            sum[i] += d == far ? dy : -d == far ? -dy : 0;
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            double d = (double)(x[i] - y[i]);
            if (d != 0) sum[i] += (REAL)((double)dy * copysign(pow(fabs(d) / (double)far, s->p - 1), d));
        }
    }
}

/* Item: a row of x. Sums over the rows of y in order, by blocks. */
static void F(backward)(void *arg, int64_t begin, int64_t end, int worker)
{
    const distance *s = arg;
    int64_t m = s->m;
    REAL *x = (REAL *)(void *)(s->scratch + worker * s->scratch_each), *row = x + m, *part = row + m, *sum = part + m;
    for (int64_t item = begin; item < end; item++) {
        int64_t batch = item / s->x_rows, i = item % s->x_rows;
        const REAL *from = F(rows_load)(&s->x, item, x);
        memset(sum, 0, (size_t)m * sizeof *sum);
        for (int64_t j0 = 0; j0 < s->y_rows; j0 += DEPTH) {
            int64_t j1 = s->y_rows - j0 < DEPTH ? s->y_rows : j0 + DEPTH;
            memset(part, 0, (size_t)m * sizeof *part);
            for (int64_t j = j0; j < j1; j++) {
                if (s->triangle && j == i) continue;
                int64_t at = s->triangle ? pair_at(s->x_rows, i < j ? i : j, i < j ? j : i) : j;
                int64_t line = s->triangle ? 0 : item;
                REAL dy, far;
                F(rows_move)(&s->dy, line, at, 1, &dy, 0);
                F(rows_move)(&s->z, line, at, 1, &far, 0);
                F(add_gradient)(s, dy, far, from, F(rows_load)(&s->y, batch * s->y_rows + j, row), part);
            }
            for (int64_t k = 0; k < m; k++) sum[k] += part[k];
        }
        F(rows_move)(&s->dx, item, 0, m, sum, 1);
    }
}
