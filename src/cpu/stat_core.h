/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stat_core.h - reductions whose state is more than a sum: var, std, prod, norm, amax, amin, all, any. Included by
 * reduce.c, whose plan of dims it uses. Floats are taken as double and integers as int64, in pieces of at most
 * LKSI_BLOCK elements; states of parts, cut by shape alone, are merged in order.
 */

enum stat {
    STAT_VAR, STAT_STD, STAT_PROD, STAT_COUNT, STAT_SUM_ABS, STAT_ROOT, STAT_POWER, STAT_MAX_ABS, STAT_MIN_ABS,
    STAT_MAX, STAT_MIN, STAT_ALL, STAT_ANY, STAT_INT_PROD, STAT_INT_MAX, STAT_INT_MIN
};

/* var: mean a, sum of squares b. Norms: sum a of powers of elements divided by b. Others: a, or i. */
typedef struct state {
    double a, b;
    int64_t i, n;
} state;

typedef struct stat_job {
    reduction r;
    enum stat what;
    int wide; /* float64: squares may leave the range */
    double p;
    int64_t pieces, each, parts; /* pieces of an output, of a part */
    state *part;
} stat_job;

static state stat_none(enum stat what)
{
    state s = {.b = what == STAT_ROOT || what == STAT_POWER ? 1 : 0};
    switch (what) {
    case STAT_PROD: case STAT_ALL: s.a = 1; break;
    case STAT_MAX: s.a = -HUGE_VAL; break;
    case STAT_MIN: case STAT_MIN_ABS: s.a = HUGE_VAL; break;
    case STAT_INT_PROD: s.i = 1; break;
    case STAT_INT_MAX: s.i = INT64_MIN; break;
    case STAT_INT_MIN: s.i = INT64_MAX; break;
    default: break;
    }
    return s;
}

/* s, then t. */
static void stat_merge(const stat_job *j, state *s, const state *t)
{
    if (t->n == 0) return;
    if (s->n == 0) {
        *s = *t;
        return;
    }
    double n = (double)(s->n + t->n);
    switch (j->what) {
    case STAT_VAR: case STAT_STD: {
        double d = t->a - s->a, share = (double)t->n / n;
        s->b += t->b + d * d * ((double)s->n * share);
        s->a += d * share;
        break;
    }
    case STAT_PROD: s->a *= t->a; break;
    case STAT_COUNT: case STAT_SUM_ABS: s->a += t->a; break;
    case STAT_ROOT: case STAT_POWER: { /* to the larger scale */
        double p = j->what == STAT_ROOT ? 2 : j->p;
        if (s->b == t->b) s->a += t->a;
        else if (s->b > t->b) s->a += t->a * pow(t->b / s->b, p);
        else s->a = s->a * pow(s->b / t->b, p) + t->a, s->b = t->b;
        break;
    }
    case STAT_MAX: case STAT_MAX_ABS: s->a = s->a != s->a || s->a > t->a ? s->a : t->a; break;
    case STAT_MIN: case STAT_MIN_ABS: s->a = s->a != s->a || s->a < t->a ? s->a : t->a; break;
    case STAT_ALL: s->a *= t->a; break;
    case STAT_ANY: s->a = s->a != 0 || t->a != 0; break;
    case STAT_INT_PROD: s->i = (int64_t)((uint64_t)s->i * (uint64_t)t->i); break;
    case STAT_INT_MAX: s->i = s->i > t->i ? s->i : t->i; break;
    case STAT_INT_MIN: s->i = s->i < t->i ? s->i : t->i; break;
    }
    s->n += t->n;
}

static void stat_put(const stat_job *j, int64_t offset, const state *s)
{
    double v = s->a, free_ones = (double)s->n - j->p;
    switch (j->what) {
    case STAT_VAR: v = s->b / (free_ones > 0 ? free_ones : 0); break;
    case STAT_STD: v = sqrt(s->b / (free_ones > 0 ? free_ones : 0)); break;
    case STAT_ROOT: v = s->b * sqrt(s->a); break;
    case STAT_POWER: v = s->b * pow(s->a, 1 / j->p); break;
    default: break;
    }
    const void *from = j->what >= STAT_INT_PROD ? (const void *)&s->i : (const void *)&v;
    int64_t truth = v != 0;
    if (j->what == STAT_ALL || j->what == STAT_ANY) from = &truth;
    j->r.store(j->r.out + offset * j->r.out_size, 1, from, 1);
}

/* --- one piece: n contiguous elements ----------------------------------------------------------------------------- */

/* Eight partial results; EXPR combines s with the element v. */
#define STAT_LANES(INIT, EXPR, FOLD)                                                                           \
    do {                                                                                                       \
        double lane[8], v, s;                                                                                  \
        for (int k = 0; k < 8; k++) lane[k] = INIT;                                                            \
        int64_t i = 0;                                                                                         \
        for (; i + 8 <= n; i += 8)                                                                             \
            for (int k = 0; k < 8; k++) v = x[i + k], s = lane[k], lane[k] = EXPR;                             \
        for (int k = 0; i < n; i++, k++) v = x[i], s = lane[k], lane[k] = EXPR;                                \
        for (int w = 4; w > 0; w /= 2)                                                                         \
            for (int k = 0; k < w; k++) s = lane[k], v = lane[k + w], lane[k] = FOLD;                          \
        result = lane[0];                                                                                      \
    } while (0)

static double piece_sum(const double *x, int64_t n)
{
    double result;
    STAT_LANES(0, s + v, s + v);
    return result;
}

static double piece_max_abs(const double *x, int64_t n)
{
    double result;
    STAT_LANES(0, fabs(v) > s || s != s ? (s != s ? s : fabs(v)) : v != v ? v : s, s != s || s > v ? s : v);
    return result;
}

static void stat_piece(const stat_job *j, const void *from, int64_t n, state *total)
{
    const double *x = from;
    const int64_t *whole = from;
    double result = 0;
    state t = stat_none(j->what);
    t.n = n;
    switch (j->what) {
    case STAT_VAR: case STAT_STD: {
        double mean = piece_sum(x, n) / (double)n, rest;
        STAT_LANES(0, s + (v - mean), s + v);
        rest = result;
        STAT_LANES(0, s + (v - mean) * (v - mean), s + v);
        t.a = mean;
        t.b = result - rest * rest / (double)n;
        break;
    }
    case STAT_PROD: STAT_LANES(1, s * v, s * v); t.a = result; break;
    case STAT_COUNT: STAT_LANES(0, s + (v != 0 ? 1.0 : 0.0), s + v); t.a = result; break;
    case STAT_SUM_ABS: STAT_LANES(0, s + fabs(v), s + v); t.a = result; break;
    case STAT_ROOT: {
        double top = j->wide ? piece_max_abs(x, n) : 1;
        t.b = top > 1e140 && top <= 1.7976931348623157e308 ? 0x1p600 : top < 1e-140 && top > 0 ? 0x1p-600 : 1;
        double scale = 1 / t.b;
        STAT_LANES(0, s + (v * scale) * (v * scale), s + v);
        t.a = result;
        break;
    }
    case STAT_POWER: {
        double top = piece_max_abs(x, n), p = j->p;
        t.b = top > 0 && top <= 1.7976931348623157e308 ? top : 1;
        for (int64_t i = 0; i < n; i++) t.a += pow(fabs(x[i]) / t.b, p);
        break;
    }
    case STAT_MAX_ABS: t.a = piece_max_abs(x, n); break;
    case STAT_MIN_ABS:
        STAT_LANES(HUGE_VAL, s != s ? s : v != v || fabs(v) < s ? fabs(v) : s, s != s || s < v ? s : v); t.a = result;
        break;
    case STAT_MAX:
        STAT_LANES(-HUGE_VAL, s != s ? s : v != v || v > s ? v : s, s != s || s > v ? s : v);
        t.a = result;
        break;
    case STAT_MIN:
        STAT_LANES(HUGE_VAL, s != s ? s : v != v || v < s ? v : s, s != s || s < v ? s : v);
        t.a = result;
        break;
    case STAT_ALL: STAT_LANES(1, v == 0 ? 0.0 : s, s * v); t.a = result; break;
    case STAT_ANY: STAT_LANES(0, v != 0 ? 1.0 : s, s + v); t.a = result != 0; break;
    case STAT_INT_PROD:
        for (int64_t i = 0; i < n; i++) t.i = (int64_t)((uint64_t)t.i * (uint64_t)whole[i]);
        break;
    case STAT_INT_MAX:
        for (int64_t i = 0; i < n; i++) t.i = whole[i] > t.i ? whole[i] : t.i;
        break;
    case STAT_INT_MIN:
        for (int64_t i = 0; i < n; i++) t.i = whole[i] < t.i ? whole[i] : t.i;
        break;
    }
    stat_merge(j, total, &t);
}

/* --- a reduced dim is innermost ----------------------------------------------------------------------------------- */

/* Pieces [first, last) of the output at p. */
static state stat_run(const stat_job *j, const char *p, int64_t first, int64_t last)
{
    const reduction *r = &j->r;
    lksi_block buf;
    odometer rows;
    int d = r->nr - 1;
    int64_t stride = r->rstride[d];
    state s = stat_none(j->what);
    odometer_start(&rows, d, r->rshape, r->rstride, r->rstride, first / r->blocks);
    for (int64_t piece = first, b = first % r->blocks; piece < last; piece++) {
        int64_t at = b * LKSI_BLOCK, n = r->length - at < LKSI_BLOCK ? r->length - at : LKSI_BLOCK;
        const char *q = p + (rows.a + at * stride) * r->size;
        if (!(r->natural && stride == 1)) r->load(buf.bytes, q, stride, n), q = buf.bytes;
        stat_piece(j, q, n, &s);
        if (++b == r->blocks) {
            b = 0;
            odometer_next(&rows);
        }
    }
    return s;
}

/* Item: output k, or part i of it into part[k][i]. */
static void stat_outputs(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const stat_job *j = arg;
    odometer k;
    odometer_start(&k, j->r.nk, j->r.kshape, j->r.kstride, j->r.ostride[0], begin);
    for (int64_t item = begin; item < end; item++, odometer_next(&k)) {
        state s = stat_run(j, j->r.data + k.a * j->r.size, 0, j->pieces);
        stat_put(j, k.b, &s);
    }
}

static void stat_parts(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const stat_job *j = arg;
    for (int64_t item = begin; item < end; item++) {
        odometer k;
        int64_t first = item % j->parts * j->each, last = first + j->each < j->pieces ? first + j->each : j->pieces;
        odometer_start(&k, j->r.nk, j->r.kshape, j->r.kstride, j->r.kstride, item / j->parts);
        j->part[item] = stat_run(j, j->r.data + k.a * j->r.size, first, last);
    }
}

static lks_status stat_inner(lksi_cpu *cpu, stat_job *j)
{
    reduction *r = &j->r;
    for (int d = 0; d < r->nr - 1; d++) r->rows *= r->rshape[d];
    r->blocks = (r->length + LKSI_BLOCK - 1) / LKSI_BLOCK;
    j->pieces = r->rows * r->blocks;
    int64_t size = r->length < LKSI_BLOCK ? r->length : LKSI_BLOCK;
    j->each = (2 * LKSI_GRAIN + size - 1) / size;
    j->parts = (j->pieces + j->each - 1) / j->each;
    if (r->kept >= 64 || j->parts == 1) {
        int64_t grain = LKSI_GRAIN / r->count;
        lksi_parallel(cpu, r->kept, grain < 1 ? 1 : grain, stat_outputs, j);
        return LKS_OK;
    }
    j->part = lksi_scratch(cpu, -1, 0, r->kept * j->parts * (int64_t)sizeof *j->part);
    if (!j->part) return LKS_ERR_MEMORY;
    lksi_parallel(cpu, r->kept * j->parts, 1, stat_parts, j);
    odometer k;
    odometer_start(&k, r->nk, r->kshape, r->kstride, r->ostride[0], 0);
    for (int64_t i = 0; i < r->kept; i++, odometer_next(&k)) {
        state s = j->part[i * j->parts];
        for (int64_t p = 1; p < j->parts; p++) stat_merge(j, &s, &j->part[i * j->parts + p]);
        stat_put(j, k.b, &s);
    }
    return LKS_OK;
}

/* --- a kept dim is innermost -------------------------------------------------------------------------------------- */

#define STAT_TILE 64

/* One more row: x[i] goes into column i. count: rows so far, this one included. */
static void stat_row(enum stat what, const void *from, int64_t n, int64_t count, double *restrict a, double *restrict b,
                     int64_t *restrict whole)
{
    const double *x = from;
    const int64_t *z = from;
    double share = 1 / (double)count;
    switch (what) {
    case STAT_VAR: case STAT_STD: /* Welford, 1962 */
        for (int64_t i = 0; i < n; i++) {
            double d = x[i] - a[i], mean = a[i] + d * share;
            b[i] += d * (x[i] - mean);
            a[i] = mean;
        }
        break;
    case STAT_PROD: for (int64_t i = 0; i < n; i++) a[i] *= x[i]; break;
    case STAT_COUNT: for (int64_t i = 0; i < n; i++) a[i] += x[i] != 0 ? 1.0 : 0.0; break;
    case STAT_SUM_ABS: for (int64_t i = 0; i < n; i++) a[i] += fabs(x[i]); break;
    case STAT_ROOT: for (int64_t i = 0; i < n; i++) a[i] += x[i] * x[i]; break;
    case STAT_MAX_ABS:
        for (int64_t i = 0; i < n; i++) a[i] = a[i] != a[i] || a[i] >= fabs(x[i]) ? a[i] : fabs(x[i]);
        break;
    case STAT_MIN_ABS:
        for (int64_t i = 0; i < n; i++) a[i] = a[i] != a[i] || a[i] <= fabs(x[i]) ? a[i] : fabs(x[i]);
        break;
    case STAT_MAX: for (int64_t i = 0; i < n; i++) a[i] = a[i] != a[i] || a[i] >= x[i] ? a[i] : x[i]; break;
    case STAT_MIN: for (int64_t i = 0; i < n; i++) a[i] = a[i] != a[i] || a[i] <= x[i] ? a[i] : x[i]; break;
    case STAT_ALL: for (int64_t i = 0; i < n; i++) a[i] = x[i] == 0 ? 0.0 : a[i]; break;
    case STAT_ANY: for (int64_t i = 0; i < n; i++) a[i] = x[i] != 0 ? 1.0 : a[i]; break;
    case STAT_INT_PROD:
        for (int64_t i = 0; i < n; i++) whole[i] = (int64_t)((uint64_t)whole[i] * (uint64_t)z[i]);
        break;
    case STAT_INT_MAX: for (int64_t i = 0; i < n; i++) whole[i] = whole[i] > z[i] ? whole[i] : z[i]; break;
    case STAT_INT_MIN: for (int64_t i = 0; i < n; i++) whole[i] = whole[i] < z[i] ? whole[i] : z[i]; break;
    case STAT_POWER: break; /* never here */
    }
}

/* Item: (outer, tile, part); states of the tile's columns into part[item][column]. */
static void stat_columns(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const stat_job *j = arg;
    const reduction *r = &j->r;
    int last = r->nk - 1;
    for (int64_t item = begin; item < end; item++) {
        double a[STAT_TILE], b[STAT_TILE];
        int64_t whole[STAT_TILE], buf[STAT_TILE];
        int64_t part = item % j->parts, place = item / j->parts, column = place % r->tiles * STAT_TILE;
        int64_t width = r->kshape[last] - column < STAT_TILE ? r->kshape[last] - column : STAT_TILE;
        int64_t first = part * j->each, rows = j->pieces - first < j->each ? j->pieces - first : j->each;
        odometer k, o;
        odometer_start(&k, last, r->kshape, r->kstride, r->ostride[0], place / r->tiles);
        odometer_start(&o, r->nr, r->rshape, r->rstride, r->rstride, first);
        state none = stat_none(j->what);
        for (int i = 0; i < width; i++) a[i] = none.a, b[i] = 0, whole[i] = none.i;
        const char *p = r->data + (k.a + column * r->kstride[last]) * r->size;
        for (int64_t i = 0; i < rows; i++, odometer_next(&o)) {
            const char *q = p + o.a * r->size;
            if (!(r->natural && r->kstride[last] == 1)) r->load(buf, q, r->kstride[last], width), q = (const char *)buf;
            stat_row(j->what, q, width, i + 1, a, b, whole);
        }
        for (int i = 0; i < width; i++) {
            state s = {.a = a[i], .b = j->what == STAT_ROOT ? 1 : b[i], .i = whole[i], .n = rows};
            if (j->part) j->part[item * STAT_TILE + i] = s;
            else stat_put(j, k.b + (column + i) * r->ostride[0][last], &s);
        }
    }
}

static lks_status stat_outer(lksi_cpu *cpu, stat_job *j)
{
    reduction *r = &j->r;
    int last = r->nk - 1;
    for (int d = 0; d < r->nr; d++) r->rows *= r->rshape[d];
    j->pieces = r->rows;
    r->tiles = (r->kshape[last] + STAT_TILE - 1) / STAT_TILE;
    j->each = LKSI_GRAIN / STAT_TILE;
    j->parts = (j->pieces + j->each - 1) / j->each;
    int64_t places = r->kept / r->kshape[last] * r->tiles;
    if (places >= 64 || j->parts == 1) {
        j->parts = 1;
        j->each = j->pieces;
        int64_t grain = LKSI_GRAIN / STAT_TILE / r->rows;
        lksi_parallel(cpu, places, grain < 1 ? 1 : grain, stat_columns, j);
        return LKS_OK;
    }
    j->part = lksi_scratch(cpu, -1, 0, places * j->parts * STAT_TILE * (int64_t)sizeof *j->part);
    if (!j->part) return LKS_ERR_MEMORY;
    lksi_parallel(cpu, places * j->parts, 1, stat_columns, j);
    for (int64_t place = 0; place < places; place++) {
        int64_t column = place % r->tiles * STAT_TILE;
        int64_t width = r->kshape[last] - column < STAT_TILE ? r->kshape[last] - column : STAT_TILE;
        odometer k;
        odometer_start(&k, last, r->kshape, r->kstride, r->ostride[0], place / r->tiles);
        for (int64_t i = 0; i < width; i++) {
            const state *part = j->part + place * j->parts * STAT_TILE + i;
            state s = part[0];
            for (int64_t p = 1; p < j->parts; p++) stat_merge(j, &s, &part[p * STAT_TILE]);
            stat_put(j, k.b + (column + i) * r->ostride[0][last], &s);
        }
    }
    return LKS_OK;
}

/* empty: the result where nothing is reduced. */
static lks_status stat_reduce(lksi_cpu *cpu, const lksi_args *a, enum stat what, double p, double empty)
{
    stat_job j = {.what = what, .p = p, .wide = a->in[0].dtype == LKS_F64};
    const lksi_view *out = &a->out[0];
    int cls = what >= STAT_INT_PROD ? LKSI_CLASS_I64 : LKSI_CLASS_F64;
    int to = what == STAT_ALL || what == STAT_ANY ? LKSI_CLASS_I64 : cls;
    if (!describe(&j.r, &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim, out, NULL, cls)) return LKS_OK;
    j.r.out = out->data;
    j.r.out_size = lksi_size_of[out->dtype];
    j.r.store = LKSI_LOCAL(store)[to][out->dtype];
    if (j.r.count == 0) {
        LKSI_LOCAL(fill)(cpu, out, empty);
        return LKS_OK;
    }
    int inner = j.r.inner || what == STAT_POWER || (what == STAT_ROOT && j.wide);
    lks_status s = inner ? stat_inner(cpu, &j) : stat_outer(cpu, &j);
    return s == LKS_OK ? s : lksi_why(a, s, "no memory for partial results");
}
