/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reduce_core.h - sums and maxima in one compute type. Included by reduce.c once per type with
 *   T type, NAME(x) x with the type's suffix, LANES 128 bytes of T (0: no vectors), BITS an integer like T, IS_NAN(x),
 *   SUM, MAX: which half is wanted; ABOVE(a, b): a is the one that max looks for (min is the other way)
 * The order of additions depends on shape and strides only: lanes within a block, blocks by pairs.
 */

#if LANES
enum { NAME(VECTORS) = LANES * sizeof(T) / VECTOR };
typedef T NAME(vec) __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
typedef BITS NAME(mask) __attribute__((vector_size(VECTOR)));
#define PER (VECTOR / (int)sizeof(T))
#endif

#if SUM

/* --- sum: the reduced dim is innermost ---------------------------------------------------------------------------- */

/* Sum of one piece of a row, at most SUM_BLOCK elements. */
static T NAME(block_sum)(const reduction *r, const char *p, int64_t stride, int64_t n)
{
    int pass = r->natural && stride == 1;
    if (n < 16) {
        T few[16], s = 0;
        const T *x = (const void *)p;
        if (!pass) r->load(few, p, stride, n), x = few;
        for (int64_t i = 0; i < n; i++) s += x[i];
        return s;
    }
    lksi_block buf;
#if LANES
    NAME(vec) sum[NAME(VECTORS)]; /* of the parts before: a lane adds few numbers in a row */
    _Alignas(64) T lane[LANES];
#pragma GCC unroll 16
    for (int v = 0; v < NAME(VECTORS); v++) sum[v] = (NAME(vec)){0};
    int64_t rest = 0;
    const T *x = NULL;
    for (int64_t at = 0; at < n; at += LKSI_BLOCK) {
        int64_t m = n - at < LKSI_BLOCK ? n - at : LKSI_BLOCK;
        x = (const void *)(p + at * r->size);
        if (!pass) r->load(buf.bytes, p + at * stride * r->size, stride, m), x = (const void *)buf.bytes;
        int64_t i = 0;
        NAME(vec) acc[NAME(VECTORS)];
#pragma GCC unroll 16
        for (int v = 0; v < NAME(VECTORS); v++) acc[v] = (NAME(vec)){0};
        for (; i + LANES <= m; i += LANES) {
#pragma GCC unroll 16
            for (int v = 0; v < NAME(VECTORS); v++) acc[v] += *(const NAME(vec) *)(const void *)(x + i + v * PER);
        }
#pragma GCC unroll 16
        for (int v = 0; v < NAME(VECTORS); v++) sum[v] += acc[v];
        x += i;
        rest = m - i;
    }
#pragma GCC unroll 16
    for (int v = 0; v < NAME(VECTORS); v++) *(NAME(vec) *)(void *)(lane + v * PER) = sum[v];
    for (int64_t i = 0; i < rest; i++) lane[i] += x[i];
#pragma GCC unroll 16
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    return lane[0];
#else
    T s = 0;
    for (int64_t at = 0; at < n; at += LKSI_BLOCK) {
        int64_t m = n - at < LKSI_BLOCK ? n - at : LKSI_BLOCK;
        const T *x = (const void *)(p + at * r->size);
        if (!pass) r->load(buf.bytes, p + at * stride * r->size, stride, m), x = (const void *)buf.bytes;
        for (int64_t i = 0; i < m; i++) s += x[i];
    }
    return s;
#endif
}

/* Sums that arrive one by one, added by pairs of equal weight like a binary counter. */
typedef struct NAME(cascade) { T level[64]; uint64_t count; } NAME(cascade);

static void NAME(push)(NAME(cascade) *c, T s)
{
    int k = 0;
    for (uint64_t n = c->count++; n & 1; n >>= 1) s = c->level[k++] + s;
    c->level[k] = s;
}

static T NAME(total)(const NAME(cascade) *c)
{
    T s = 0;
    int first = 1, k = 0;
    for (uint64_t n = c->count; n; n >>= 1, k++)
        if (n & 1) s = first ? c->level[k] : c->level[k] + s, first = 0;
    return s;
}

static void NAME(put)(const reduction *r, int64_t offset, T s)
{
    if (r->divide) s = (T)(s / (T)r->count);
    if (r->out_natural)
        ((T *)(void *)r->out)[offset] = s;
    else
        r->store(r->out + offset * r->out_size, 1, &s, 1);
}

/* Item: output k. */
static void NAME(sum_rows)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    odometer k, rows;
    int last = r->nr - 1;
    odometer_start(&k, r->nk, r->kshape, r->kstride, r->ostride[0], begin);
    for (int64_t item = begin; item < end; item++, odometer_next(&k)) {
        const char *p = r->data + k.a * r->size;
        if (r->rows == 1 && r->blocks == 1) {
            NAME(put)(r, k.b, NAME(block_sum)(r, p, r->rstride[last], r->length));
            continue;
        }
        NAME(cascade) c;
        c.count = 0;
        odometer_start(&rows, last, r->rshape, r->rstride, r->rstride, 0);
        for (int64_t row = 0; row < r->rows; row++, odometer_next(&rows))
            for (int64_t b = 0; b < r->blocks; b++) {
                int64_t at = b * SUM_BLOCK, n = r->length - at < SUM_BLOCK ? r->length - at : SUM_BLOCK;
                NAME(push)(&c, NAME(block_sum)(r, p + (rows.a + at * r->rstride[last]) * r->size, r->rstride[last], n));
            }
        NAME(put)(r, k.b, NAME(total)(&c));
    }
}

/* Item: block b of row j of output k, into the partial sums [k][j][b]. */
static void NAME(sum_parts)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    T *part = r->part;
    int last = r->nr - 1;
    for (int64_t item = begin; item < end; item++) {
        odometer k, rows;
        int64_t b = item % r->blocks, row = item / r->blocks, at = b * SUM_BLOCK;
        int64_t n = r->length - at < SUM_BLOCK ? r->length - at : SUM_BLOCK;
        odometer_start(&k, r->nk, r->kshape, r->kstride, r->kstride, row / r->rows);
        odometer_start(&rows, last, r->rshape, r->rstride, r->rstride, row % r->rows);
        part[item] = NAME(block_sum)(r, r->data + (k.a + rows.a + at * r->rstride[last]) * r->size, r->rstride[last],
                                     n);
    }
}

static lks_status NAME(sum_inner)(lksi_cpu *cpu, reduction *r)
{
    int64_t pieces = r->rows * r->blocks;
    if (r->kept >= 64 || pieces == 1 || r->kept * r->rows * r->length <= LKSI_GRAIN) {
        int64_t grain = LKSI_GRAIN / (r->rows * r->length);
        lksi_parallel(cpu, r->kept, grain < 1 ? 1 : grain, NAME(sum_rows), r);
        return LKS_OK;
    }
    r->part = lksi_scratch(cpu, -1, 0, r->kept * pieces * (int64_t)sizeof(T));
    if (!r->part) return LKS_ERR_MEMORY;
    int64_t n = r->length < SUM_BLOCK ? r->length : SUM_BLOCK, grain = LKSI_GRAIN / n;
    lksi_parallel(cpu, r->kept * pieces, grain < 1 ? 1 : grain, NAME(sum_parts), r);
    odometer k;
    odometer_start(&k, r->nk, r->kshape, r->kstride, r->ostride[0], 0);
    for (int64_t i = 0; i < r->kept; i++, odometer_next(&k)) {
        NAME(cascade) c;
        c.count = 0;
        for (int64_t j = 0; j < pieces; j++) NAME(push)(&c, ((T *)r->part)[i * pieces + j]);
        NAME(put)(r, k.b, NAME(total)(&c));
    }
    return LKS_OK;
}

/* --- sum: a kept dim is innermost --------------------------------------------------------------------------------- */

static void NAME(add_rows)(T *restrict acc, const T *restrict a, const T *restrict b, const T *restrict c,
                           const T *restrict d, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += (a[i] + b[i]) + (c[i] + d[i]);
}

static void NAME(add_row)(T *restrict acc, const T *restrict a, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += a[i];
}

/* Rows [first, first + n) of columns [column, column + width), starting at p, added into acc. Row i of the innermost
 * reduced dim may be a group of `fold` rows in one, the last of them shorter. */
static void NAME(sum_columns)(const reduction *r, const char *p, int64_t first, int64_t n, int64_t width, T *acc)
{
    _Alignas(64) T buf[4][SUM_TILE];
    const T *x[4];
    int64_t stride = r->kstride[r->nk - 1];
    int pass = r->natural && stride == 1, held = 0;
    odometer rows;
    odometer_start(&rows, r->nr, r->rshape, r->rstride, r->rstride, first);
    memset(acc, 0, (size_t)width * sizeof(T));
    for (int64_t i = 0; i < n; i++, odometer_next(&rows)) {
        const char *q = p + rows.a * r->size;
        int64_t m = r->short_row && rows.index[r->nr - 1] == r->rshape[r->nr - 1] - 1 ? r->short_row : width;
        if (pass)
            x[held] = (const void *)q;
        else
            r->load(buf[held], q, stride, m), x[held] = buf[held];
        if (m < width) {
            NAME(add_row)(acc, x[held], m);
        } else if (++held == 4) {
            NAME(add_rows)(acc, x[0], x[1], x[2], x[3], width);
            held = 0;
        }
    }
    for (int i = 0; i < held; i++) NAME(add_row)(acc, x[i], width);
}

static void NAME(put_columns)(const reduction *r, int64_t outer, int64_t column, int64_t width, T *acc)
{
    odometer k;
    odometer_start(&k, r->nk - 1, r->kshape, r->ostride[0], r->ostride[0], outer);
    int64_t stride = r->ostride[0][r->nk - 1];
    if (r->fold > 1) {
        int64_t columns = width / r->fold;
        for (int64_t step = 1; step < r->fold; step *= 2)
            for (int64_t i = 0; i + step < r->fold; i += 2 * step)
                NAME(add_row)(acc + i * columns, acc + (i + step) * columns, columns);
        width = columns;
    }
    if (r->divide)
        for (int64_t i = 0; i < width; i++) acc[i] = (T)(acc[i] / (T)r->count);
    r->store(r->out + (k.a + column * stride) * r->out_size, stride, acc, width);
}

/* Item: (outer, tile, chunk). One chunk: straight to the output, else into part [outer][tile][chunk][SUM_TILE]. */
static void NAME(sum_chunks)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    int64_t total = r->fold > 1 ? r->fold * r->kshape[r->nk - 1] : r->kshape[r->nk - 1];
    for (int64_t item = begin; item < end; item++) {
        odometer k;
        int64_t chunk = item % r->chunks, tile = item / r->chunks % r->tiles, outer = item / r->chunks / r->tiles;
        int64_t column = tile * SUM_TILE, width = total - column < SUM_TILE ? total - column : SUM_TILE;
        int64_t first = chunk * SUM_ROWS, n = r->rows - first < SUM_ROWS ? r->rows - first : SUM_ROWS;
        odometer_start(&k, r->nk - 1, r->kshape, r->kstride, r->kstride, outer);
        const char *p = r->data + (k.a + column * r->kstride[r->nk - 1]) * r->size;
        _Alignas(64) T acc[SUM_TILE];
        T *to = r->chunks == 1 ? acc : (T *)r->part + item * SUM_TILE;
        NAME(sum_columns)(r, p, first, n, width, to);
        if (r->chunks == 1) NAME(put_columns)(r, outer, column, width, acc);
    }
}

/* Item: (outer, tile): its chunks by pairs. */
static void NAME(sum_combine)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    int64_t total = r->fold > 1 ? r->fold * r->kshape[r->nk - 1] : r->kshape[r->nk - 1];
    for (int64_t item = begin; item < end; item++) {
        int64_t column = item % r->tiles * SUM_TILE, width = total - column < SUM_TILE ? total - column : SUM_TILE;
        T *part = (T *)r->part + item * r->chunks * SUM_TILE;
        for (int64_t step = 1; step < r->chunks; step *= 2)
            for (int64_t i = 0; i + step < r->chunks; i += 2 * step)
                NAME(add_row)(part + i * SUM_TILE, part + (i + step) * SUM_TILE, width);
        NAME(put_columns)(r, item / r->tiles, column, width, part);
    }
}

static lks_status NAME(sum_outer)(lksi_cpu *cpu, reduction *r)
{
    int64_t items = r->outer * r->tiles;
    int64_t n = (r->rows < SUM_ROWS ? r->rows : SUM_ROWS) * SUM_TILE, grain = LKSI_GRAIN / n;
    if (r->chunks > 1) {
        r->part = lksi_scratch(cpu, -1, 0, items * r->chunks * SUM_TILE * (int64_t)sizeof(T));
        if (!r->part) return LKS_ERR_MEMORY;
    }
    lksi_parallel(cpu, items * r->chunks, grain < 1 ? 1 : grain, NAME(sum_chunks), r);
    if (r->chunks > 1) lksi_parallel(cpu, items, 1, NAME(sum_combine), r);
    return LKS_OK;
}

#endif
#if MAX

/* --- max ---------------------------------------------------------------------------------------------------------- */

typedef struct NAME(best) { T value; int64_t index; } NAME(best);

/* Largest of x[0..n) after `best` (whose elements come before); base: index of x[0]. */
static void NAME(block_max)(NAME(best) *best, const T *x, int64_t n, int64_t base)
{
    if (IS_NAN(best->value)) return;
    T m = best->value;
    int nan = 0;
    int64_t i = 0;
#if LANES
    if (n >= LANES) {
        NAME(vec) top[2];
        NAME(mask) odd[2] = {{0}, {0}};
        for (int v = 0; v < 2; v++) top[v] = (NAME(vec)){0} + m; /* m is not NaN */
        for (; i + 2 * PER <= n; i += 2 * PER) {
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                NAME(vec) y = *(const NAME(vec) *)(const void *)(x + i + v * PER);
                NAME(mask) more = (NAME(mask))(ABOVE(y, top[v]));
                odd[v] |= (NAME(mask))(y != y);
                top[v] = (NAME(vec))(((NAME(mask))y & more) | ((NAME(mask))top[v] & ~more));
            }
        }
        for (int v = 0; v < 2; v++)
            for (int j = 0; j < PER; j++) {
                m = ABOVE(top[v][j], m) ? top[v][j] : m;
                nan |= odd[v][j] != 0;
            }
    }
#endif
    for (; i < n; i++) {
        m = ABOVE(x[i], m) ? x[i] : m;
        nan |= IS_NAN(x[i]);
    }
    if (!nan && !ABOVE(m, best->value)) return;
    for (i = 0; nan ? !IS_NAN(x[i]) : x[i] != m;) i++;
    best->value = x[i];
    best->index = base + i;
}

static NAME(best) NAME(row_max)(const reduction *r, const char *p, int64_t begin, int64_t end)
{
    int64_t stride = r->rstride[0];
    NAME(best) best;
    if (end - begin <= 16) { /* no vectors: the first that is larger than all before, or NaN */
        T few[16];
        const T *x = (const void *)(p + begin * r->size);
        if (!(r->natural && stride == 1)) r->load(few, p + begin * stride * r->size, stride, end - begin), x = few;
        best.value = x[0];
        best.index = begin;
        for (int64_t i = 1; i < end - begin; i++) {
            int more = ABOVE(x[i], best.value) | (IS_NAN(x[i]) & !IS_NAN(best.value));
            best.value = more ? x[i] : best.value;
            best.index = more ? begin + i : best.index;
        }
        return best;
    }
    lksi_block buf;
    r->load(&best.value, p + begin * stride * r->size, 1, 1);
    best.index = begin;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        const T *x = (const void *)(p + at * r->size);
        if (!(r->natural && stride == 1))
            r->load(buf.bytes, p + at * stride * r->size, stride, n), x = (const void *)buf.bytes;
        NAME(block_max)(&best, x, n, at);
    }
    return best;
}

static void NAME(put_max)(const reduction *r, const odometer *k, const NAME(best) *best)
{
    if (r->out) r->store(r->out + k->b * r->out_size, 1, &best->value, 1);
    r->index[k->c] = best->index;
}

/* Item: output k. */
static void NAME(max_rows)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    odometer k;
    odometer_start3(&k, r->nk, r->kshape, r->kstride, r->ostride[0], r->ostride[1], begin);
    for (int64_t item = begin; item < end; item++, odometer_next(&k)) {
        NAME(best) best = NAME(row_max)(r, r->data + k.a * r->size, 0, r->length);
        NAME(put_max)(r, &k, &best);
    }
}

/* Item: piece j of output k. */
static void NAME(max_parts)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    for (int64_t item = begin; item < end; item++) {
        odometer k;
        int64_t at = item % r->blocks * MAX_PIECE, to = r->length - at < MAX_PIECE ? r->length : at + MAX_PIECE;
        odometer_start(&k, r->nk, r->kshape, r->kstride, r->kstride, item / r->blocks);
        ((NAME(best) *)r->part)[item] = NAME(row_max)(r, r->data + k.a * r->size, at, to);
    }
}

static void NAME(take_larger)(T *restrict best, int32_t *restrict place, const T *restrict x, int32_t row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        T y = x[i], b = best[i];
        int take = ABOVE(y, b) | (IS_NAN(y) & !IS_NAN(b)); /* NaN wins, the first one */
        best[i] = take ? y : b;
        place[i] = take ? row : place[i];
    }
}

/* Item: (outer, tile of columns); rows are compared column by column. */
static void NAME(max_columns)(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const reduction *r = arg;
    int last = r->nk - 1;
    int64_t stride = r->kstride[last];
    for (int64_t item = begin; item < end; item++) {
        _Alignas(64) T best[MAX_TILE], buf[MAX_TILE];
        _Alignas(64) int32_t place[MAX_TILE];
        int64_t index[MAX_TILE];
        odometer k;
        int64_t column = item % r->tiles * MAX_TILE;
        int64_t width = r->kshape[last] - column < MAX_TILE ? r->kshape[last] - column : MAX_TILE;
        odometer_start3(&k, last, r->kshape, r->kstride, r->ostride[0], r->ostride[1], item / r->tiles);
        const char *p = r->data + (k.a + column * stride) * r->size;
        r->load(best, p, stride, width);
        memset(index, 0, sizeof index);
        for (int64_t base = 0; base < r->length; base += 1 << 30) {
            int64_t rows = r->length - base < 1 << 30 ? r->length - base : 1 << 30;
            for (int64_t i = 0; i < width; i++) place[i] = -1;
            for (int64_t j = 0; j < rows; j++) {
                const char *q = p + (base + j) * r->rstride[0] * r->size;
                const T *x = (const void *)q;
                if (!(r->natural && stride == 1)) r->load(buf, q, stride, width), x = buf;
                NAME(take_larger)(best, place, x, (int32_t)j, width);
            }
            for (int64_t i = 0; i < width; i++)
                if (place[i] >= 0) index[i] = base + place[i];
        }
        if (r->out)
            r->store(r->out + (k.b + column * r->ostride[0][last]) * r->out_size, r->ostride[0][last], best, width);
        for (int64_t i = 0; i < width; i++) r->index[k.c + (column + i) * r->ostride[1][last]] = index[i];
    }
}

static lks_status NAME(max)(lksi_cpu *cpu, reduction *r)
{
    if (!r->inner) {
        r->tiles = (r->kshape[r->nk - 1] + MAX_TILE - 1) / MAX_TILE;
        int64_t n = (r->kept / r->kshape[r->nk - 1]) * r->tiles, grain = LKSI_GRAIN / MAX_TILE / r->length;
        lksi_parallel(cpu, n, grain < 1 ? 1 : grain, NAME(max_columns), r);
        return LKS_OK;
    }
    r->blocks = (r->length + MAX_PIECE - 1) / MAX_PIECE;
    if (r->kept >= 16 || r->blocks == 1) {
        int64_t grain = LKSI_GRAIN / r->length;
        lksi_parallel(cpu, r->kept, grain < 1 ? 1 : grain, NAME(max_rows), r);
        return LKS_OK;
    }
    NAME(best) *part = r->part = lksi_scratch(cpu, -1, 0, r->kept * r->blocks * (int64_t)sizeof *part);
    if (!part) return LKS_ERR_MEMORY;
    lksi_parallel(cpu, r->kept * r->blocks, 1, NAME(max_parts), r);
    odometer k;
    odometer_start3(&k, r->nk, r->kshape, r->kstride, r->ostride[0], r->ostride[1], 0);
    for (int64_t i = 0; i < r->kept; i++, odometer_next(&k)) {
        NAME(best) best = part[i * r->blocks];
        for (int64_t j = 1; j < r->blocks; j++) {
            NAME(best) next = part[i * r->blocks + j];
            if (ABOVE(next.value, best.value) || (IS_NAN(next.value) && !IS_NAN(best.value))) best = next;
        }
        NAME(put_max)(r, &k, &best);
    }
    return LKS_OK;
}

#endif

#undef T
#undef NAME
#undef SUM
#undef MAX
#undef LANES
#undef BITS
#undef IS_NAN
#undef ABOVE
#undef PER
