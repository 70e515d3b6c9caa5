/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention_core.h - attention of one head and its gradient, for one accumulator type; included by attention.c with
 * REAL = float and double. A block of query rows keeps its whole rows of scores in the second cache: there is no T x S
 * matrix.
 *
 * Wants: REAL, BITS (integer of its size), SUFFIX, REAL_DTYPE, EXP (x <= 0), LOG, LOWEST (-infinity).
 */
#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)
#define NR (LKSI_TILE_BYTES / (int)sizeof(REAL))
#define LANES (64 / (int)sizeof(REAL))
#define UP(x, to) (((x) + (to) - 1) / (to) * (to))

/* Sums and maxima go in LANES lanes, held in PIECES hardware vectors; n is a multiple of LANES. */
typedef REAL NAME(vec) __attribute__((vector_size(LKSI_TILE_BYTES / 2), aligned(sizeof(REAL))));
typedef BITS NAME(bits) __attribute__((vector_size(LKSI_TILE_BYTES / 2)));
#define PIECES (128 / LKSI_TILE_BYTES)
#define WIDTH (LANES / PIECES)
#define AT(x, i) (*(const NAME(vec) *)((x) + (i)))

static REAL NAME(fold)(const NAME(vec) *v)
{
    REAL t[LANES];
    memcpy(t, v, sizeof t);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

static REAL NAME(sum)(const REAL *x, int64_t n)
{
    NAME(vec) total[PIECES] = {{0}};
    for (int64_t j = 0; j < n; j += LANES)
#pragma GCC unroll 8
        for (int p = 0; p < PIECES; p++) total[p] += AT(x, j + p * WIDTH);
    return NAME(fold)(total);
}

static REAL NAME(dot)(const REAL *x, const REAL *y, int64_t n)
{
    NAME(vec) total[PIECES] = {{0}};
    for (int64_t j = 0; j < n; j += LANES)
#pragma GCC unroll 8
        for (int p = 0; p < PIECES; p++) total[p] += AT(x, j + p * WIDTH) * AT(y, j + p * WIDTH);
    return NAME(fold)(total);
}

/* NaN is passed over. */
static REAL NAME(largest)(const REAL *x, int64_t n)
{
    NAME(vec) best[PIECES];
    REAL lane[LANES], top = LOWEST;
#pragma GCC unroll 8
    for (int p = 0; p < PIECES; p++) best[p] = LOWEST - (NAME(vec)){0};
    for (int64_t j = 0; j < n; j += LANES)
#pragma GCC unroll 8
        for (int p = 0; p < PIECES; p++) {
            NAME(vec) v = AT(x, j + p * WIDTH);
            NAME(bits) more = v > best[p];
            best[p] = (NAME(vec))(((NAME(bits))v & more) | ((NAME(bits))best[p] & ~more));
        }
    memcpy(lane, best, sizeof lane);
    for (int i = 0; i < LANES; i++) top = lane[i] > top ? lane[i] : top;
    return top;
}

/* Rows of one head are far apart in a packed tensor, so the processor does not foresee them. */
static inline void NAME(ahead)(const void *x, int dtype, int64_t rs, int64_t n, int64_t d)
{
    int64_t bytes = d * lks_dtype_size(dtype);
    if (rs * lks_dtype_size(dtype) <= bytes + 256 || bytes > 1024) return;
    for (int64_t i = 0; i < n; i++)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch((const char *)io_at(x, dtype, i * rs) + at);
}

/* Rows [n, d] of any dtype and strides: REAL, dense. */
static void NAME(rows)(REAL *to, const void *x, int dtype, int64_t rs, int64_t cs, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++) NAME(io_load)(to + i * d, io_at(x, dtype, i * rs), dtype, cs, d);
}

/* Panels [d][NR] over the rows of [n, d]: its transpose, ready to be the right side of a product. stage: NR * d. */
static void NAME(panels_of_transpose)(REAL *to, const void *x, int dtype, int64_t rs, int64_t cs, int64_t n, int64_t d,
                                      REAL *stage)
{
    for (int64_t i = 0; i < n; i += NR, to += NR * d) {
        int64_t count = n - i < NR ? n - i : NR, ld = rs;
        const REAL *from = io_at(x, dtype, i * rs);
        if (dtype != REAL_DTYPE || cs != 1) {
            NAME(rows)(stage, io_at(x, dtype, i * rs), dtype, rs, cs, count, d);
            from = stage, ld = d;
        }
        if (count < NR) memset(to, 0, (size_t)(NR * d) * sizeof(REAL));
        NAME(transpose)(to, NR, from, ld, count, d);
    }
}

/* Panels [n][NR] over the columns of [n, d]. */
static void NAME(panels_of)(REAL *to, const void *x, int dtype, int64_t rs, int64_t cs, int64_t n, int64_t d)
{
    for (int64_t j = 0; j < d; j += NR, to += n * NR) {
        int64_t count = d - j < NR ? d - j : NR;
        if (count == NR && cs == 1)
            for (int64_t i = 0; i < n; i++)
                NAME(io_load)(to + i * NR, io_at(x, dtype, i * rs + j), dtype, 1, NR);
        else
            for (int64_t i = 0; i < n; i++) {
                NAME(io_load)(to + i * NR, io_at(x, dtype, i * rs + j * cs), dtype, cs, count);
                for (int64_t c = count; c < NR; c++) to[i * NR + c] = 0;
            }
    }
}

/* Scores of query t scaled and masked; -infinity from `seen` to `end` (whole lanes). */
static void NAME(mask_row)(const head_job *s, REAL *restrict row, int64_t b, int64_t h, int64_t t, int64_t seen,
                           int64_t end, REAL *restrict added)
{
    REAL scale = (REAL)s->scale;
    for (int64_t j = 0; j < seen; j++) row[j] *= scale;
    if (s->mask.ndim >= 0) {
        int64_t at = b * s->mask.stride[0] + h * s->mask.stride[1] + t * s->mask.stride[2], step = s->mask.stride[3];
        if (s->mask.dtype == LKS_BOOL) {
            const uint8_t *m = (const uint8_t *)s->mask.data + at;
            for (int64_t j = 0; j < seen; j++) row[j] = m[j * step] ? row[j] : LOWEST;
        } else {
            NAME(io_load)(added, io_at(s->mask.data, s->mask.dtype, at), s->mask.dtype, step, seen);
            for (int64_t j = 0; j < seen; j++) row[j] += added[j];
        }
    }
    for (int64_t j = seen; j < end; j++) row[j] = LOWEST;
}

/* Factors of dropout for keys [0, n) of query t: 1 / (1 - p) or 0. */
static void NAME(draw)(const head_job *s, int64_t b, int64_t h, int64_t t, int64_t n, uint32_t *words, REAL *restrict f)
{
    uint64_t first = (uint64_t)s->offset + (uint64_t)(((b * s->heads + h) * s->queries + t) * s->keys);
    int32_t limit = (int32_t)s->limit;
    REAL keep = (REAL)(1.0 / (1.0 - s->p));
    lksi_philox_fill(&s->stream, first / 4, (int64_t)((first + (uint64_t)n + 3) / 4 - first / 4), words);
    words += first % 4;
    for (int64_t j = 0; j < n; j++) f[j] = (int32_t)(words[j] >> 8) >= limit ? keep : 0;
}

static void NAME(forward_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const head_job *s = arg;
    const lksi_view *q = &s->q, *k = &s->k, *v = &s->v, *y = &s->y, *lse = &s->lse;
    REAL *memory = lksi_scratch(s->cpu, worker, 0, s->bytes);
    REAL *kt = memory + s->at[0], *vp = memory + s->at[1], *qb = memory + s->at[2], *scores = memory + s->at[3];
    REAL *yb = memory + s->at[4], *extra = memory + s->at[5], *stage = memory + s->at[6];
    uint32_t *words = (uint32_t *)(memory + s->at[7]);
    int64_t packed = -1, d = s->depth, dv = s->value_depth, ldy = UP(dv, NR);
    for (int64_t u = begin; u < end; u++) {
        int64_t block = u % s->blocks, bh = u / s->blocks, b = bh / s->heads, h = bh % s->heads;
        int64_t t0 = block * s->rows, rows = s->queries - t0 < s->rows ? s->queries - t0 : s->rows;
        int64_t most = seen_keys(s, t0 + rows - 1); /* of any row here */
        const void *qh = io_at(q->data, q->dtype, b * q->stride[0] + h * q->stride[1] + t0 * q->stride[2]);
        NAME(ahead)(qh, q->dtype, q->stride[2], rows, d);
        if (bh != packed) {
            NAME(ahead)(io_at(k->data, k->dtype, b * k->stride[0] + h * k->stride[1]), k->dtype, k->stride[2],
                        s->keys < 256 ? s->keys : 256, d);
            NAME(ahead)(io_at(v->data, v->dtype, b * v->stride[0] + h * v->stride[1]), v->dtype, v->stride[2],
                        s->keys < 256 ? s->keys : 256, dv);
            NAME(panels_of_transpose)(kt, io_at(k->data, k->dtype, b * k->stride[0] + h * k->stride[1]), k->dtype,
                                      k->stride[2], k->stride[3], s->keys, d, stage);
            NAME(panels_of)(vp, io_at(v->data, v->dtype, b * v->stride[0] + h * v->stride[1]), v->dtype, v->stride[2],
                            v->stride[3], s->keys, dv);
            packed = bh;
        }
        NAME(rows)(qb, qh, q->dtype, q->stride[2], q->stride[3], rows, d);
        memset(qb + rows * d, 0, (size_t)((UP(rows, LKSI_TILE_ROWS) - rows) * d) * sizeof(REAL));
        NAME(tiles)(rows, most, d, qb, d, 1, kt, NR * d, scores, s->ld, 0);
        for (int64_t r = 0; r < rows; r++) {
            REAL *restrict row = scores + r * s->ld;
            int64_t seen = seen_keys(s, t0 + r), whole = UP(seen, LANES);
            NAME(mask_row)(s, row, b, h, t0 + r, seen, UP(most, LANES), extra);
            REAL top = NAME(largest)(row, whole);
            if (top == LOWEST) { /* nothing is seen */
                int nan = 0;
                for (int64_t j = 0; j < seen; j++) nan |= !(row[j] == LOWEST);
                if (!nan) {
                    memset(row, 0, (size_t)UP(most, LANES) * sizeof(REAL));
                    put_lse(lse, b, h, t0 + r, (double)LOWEST);
                    continue;
                }
            }
            for (int64_t j = 0; j < whole; j++) row[j] = EXP(row[j] - top);
            REAL sum = NAME(sum)(row, whole);
            put_lse(lse, b, h, t0 + r, (double)top + LOG((double)sum));
            REAL inverse = 1 / sum;
            if (s->p > 0) {
                NAME(draw)(s, b, h, t0 + r, seen, words, extra);
                for (int64_t j = 0; j < seen; j++) row[j] = row[j] * inverse * extra[j];
            } else {
                for (int64_t j = 0; j < whole; j++) row[j] *= inverse;
            }
            for (int64_t j = whole; j < UP(most, LANES); j++) row[j] = 0;
        }
        NAME(tiles)(rows, dv, most, scores, s->ld, 1, vp, s->keys * NR, yb, ldy, 0);
        for (int64_t r = 0; r < rows; r++)
            NAME(io_store)(io_at(y->data, y->dtype, b * y->stride[0] + h * y->stride[1] + (t0 + r) * y->stride[2]),
                           yb + r * ldy, y->dtype, y->stride[3], dv);
    }
}

static lks_status NAME(forward)(lksi_cpu *cpu, const lksi_args *a, head_job *s)
{
    int64_t rows = UP(s->rows, LKSI_TILE_ROWS), at = 0;
    s->ld = UP(s->keys, LANES) + LANES + NR;
    s->at[0] = at, at += UP(s->keys, NR) * s->depth;
    at = UP(at, 16), s->at[1] = at, at += UP(s->value_depth, NR) * s->keys;
    at = UP(at, 16), s->at[2] = at, at += rows * s->depth;
    at = UP(at, 16), s->at[3] = at, at += rows * s->ld;
    at = UP(at, 16), s->at[4] = at, at += rows * UP(s->value_depth, NR);
    at = UP(at, 16), s->at[5] = at, at += s->ld;
    at = UP(at, 16), s->at[6] = at, at += NR * s->depth;
    at = UP(at, 16), s->at[7] = at, at += s->ld + 16;
    s->bytes = at * (int64_t)sizeof(REAL) + 64;
    for (int w = 0; w < lksi_cpu_workers(cpu); w++)
        if (!lksi_scratch(cpu, w, 0, s->bytes)) return no_memory(a, s);
    lksi_parallel(cpu, s->batch * s->heads * s->blocks, 1, NAME(forward_part), s);
    return LKS_OK;
}

/* One head: query blocks in order, sums over queries in dk and dv. P is recomputed from the log-sums. */
static void NAME(backward_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const head_job *s = arg;
    const lksi_view *q = &s->q, *k = &s->k, *v = &s->v, *dy = &s->dy;
    REAL *memory = lksi_scratch(s->cpu, worker, 0, s->bytes);
    REAL *kt = memory + s->at[0], *vt = memory + s->at[1], *kp = memory + s->at[2], *dk = memory + s->at[3];
    REAL *dv = memory + s->at[4], *qb = memory + s->at[5], *gb = memory + s->at[6], *qp = memory + s->at[7];
    REAL *gp = memory + s->at[8], *prob = memory + s->at[9], *grad = memory + s->at[10], *dqb = memory + s->at[11];
    REAL *extra = memory + s->at[12], *stage = memory + s->at[13];
    uint32_t *words = (uint32_t *)(memory + s->at[14]);
    int64_t d = s->depth, e = s->value_depth, ldk = UP(d, NR), ldv = UP(e, NR), key_rows = UP(s->keys, LKSI_TILE_ROWS);
    for (int64_t bh = begin; bh < end; bh++) {
        int64_t b = bh / s->heads, h = bh % s->heads;
        const void *kh = io_at(k->data, k->dtype, b * k->stride[0] + h * k->stride[1]);
        const void *vh = io_at(v->data, v->dtype, b * v->stride[0] + h * v->stride[1]);
        NAME(panels_of_transpose)(kt, kh, k->dtype, k->stride[2], k->stride[3], s->keys, d, stage);
        NAME(panels_of_transpose)(vt, vh, v->dtype, v->stride[2], v->stride[3], s->keys, e, stage);
        NAME(panels_of)(kp, kh, k->dtype, k->stride[2], k->stride[3], s->keys, d);
        memset(dk, 0, (size_t)(key_rows * ldk) * sizeof(REAL));
        memset(dv, 0, (size_t)(key_rows * ldv) * sizeof(REAL));
        for (int64_t t0 = 0; t0 < s->queries; t0 += s->rows) {
            int64_t rows = s->queries - t0 < s->rows ? s->queries - t0 : s->rows;
            int64_t most = seen_keys(s, t0 + rows - 1), wide = UP(most, LANES), pad = UP(rows, LKSI_TILE_ROWS) - rows;
            if (wide < UP(most, LKSI_TILE_ROWS)) wide = UP(most, LKSI_TILE_ROWS);
            NAME(rows)(qb, io_at(q->data, q->dtype, b * q->stride[0] + h * q->stride[1] + t0 * q->stride[2]), q->dtype,
                       q->stride[2], q->stride[3], rows, d);
            NAME(rows)(gb, io_at(dy->data, dy->dtype, b * dy->stride[0] + h * dy->stride[1] + t0 * dy->stride[2]),
                       dy->dtype, dy->stride[2], dy->stride[3], rows, e);
            memset(qb + rows * d, 0, (size_t)(pad * d) * sizeof(REAL));
            memset(gb + rows * e, 0, (size_t)(pad * e) * sizeof(REAL));
            NAME(panels_of)(qp, qb, REAL_DTYPE, d, 1, rows, d);
            NAME(panels_of)(gp, gb, REAL_DTYPE, e, 1, rows, e);
            NAME(tiles)(rows, most, d, qb, d, 1, kt, NR * d, prob, s->ld, 0);
            NAME(tiles)(rows, most, e, gb, e, 1, vt, NR * e, grad, s->ld, 0);
            for (int64_t r = 0; r < rows; r++) {
                REAL *restrict row = prob + r * s->ld, *restrict g = grad + r * s->ld;
                int64_t seen = seen_keys(s, t0 + r), whole = UP(seen, LANES);
                REAL log_sum = (REAL)get_lse(&s->lse, b, h, t0 + r), scale = (REAL)s->scale;
                NAME(mask_row)(s, row, b, h, t0 + r, seen, whole, extra);
                if (log_sum == LOWEST) seen = whole = 0;
                for (int64_t j = 0; j < whole; j++) row[j] = EXP(row[j] - log_sum);
                for (int64_t j = seen; j < whole; j++) g[j] = 0;
                if (s->p > 0) { /* extra: factors; g: gradient of the probabilities before dropout */
                    NAME(draw)(s, b, h, t0 + r, seen, words, extra);
                    for (int64_t j = seen; j < whole; j++) extra[j] = 0;
                    for (int64_t j = 0; j < whole; j++) g[j] *= extra[j];
                }
                REAL delta = NAME(dot)(row, g, whole);
                for (int64_t j = 0; j < whole; j++) g[j] = row[j] * (g[j] - delta) * scale;
                if (s->p > 0)
                    for (int64_t j = 0; j < whole; j++) row[j] *= extra[j];
                for (int64_t j = whole; j < wide; j++) row[j] = g[j] = 0;
            }
            memset(grad + rows * s->ld, 0, (size_t)(pad * s->ld) * sizeof(REAL));
            NAME(tiles)(most, e, rows, prob, 1, s->ld, gp, rows * NR, dv, ldv, 1);
            NAME(tiles)(most, d, rows, grad, 1, s->ld, qp, rows * NR, dk, ldk, 1);
            NAME(tiles)(rows, d, most, grad, s->ld, 1, kp, s->keys * NR, dqb, ldk, 0);
            for (int64_t r = 0; r < rows; r++)
                NAME(io_store)(io_at(s->dq.data, s->dq.dtype,
                                     b * s->dq.stride[0] + h * s->dq.stride[1] + (t0 + r) * s->dq.stride[2]),
                               dqb + r * ldk, s->dq.dtype, s->dq.stride[3], d);
        }
        for (int64_t j = 0; j < s->keys; j++) {
            NAME(io_store)(io_at(s->dk.data, s->dk.dtype,
                                 b * s->dk.stride[0] + h * s->dk.stride[1] + j * s->dk.stride[2]),
                           dk + j * ldk, s->dk.dtype, s->dk.stride[3], d);
            NAME(io_store)(io_at(s->dv.data, s->dv.dtype,
                                 b * s->dv.stride[0] + h * s->dv.stride[1] + j * s->dv.stride[2]),
                           dv + j * ldv, s->dv.dtype, s->dv.stride[3], e);
        }
    }
}

static lks_status NAME(backward)(lksi_cpu *cpu, const lksi_args *a, head_job *s)
{
    int64_t rows = UP(s->rows, LKSI_TILE_ROWS), at = 0, d = s->depth, e = s->value_depth, deep = d > e ? d : e;
    int64_t key_rows = UP(s->keys, LKSI_TILE_ROWS);
    s->ld = UP(s->keys, LANES) + LANES + NR;
    const int64_t size[15] = {UP(s->keys, NR) * d, UP(s->keys, NR) * e, UP(d, NR) * s->keys, key_rows * UP(d, NR),
                              key_rows * UP(e, NR), rows * d, rows * e, UP(d, NR) * rows, UP(e, NR) * rows,
                              rows * s->ld, rows * s->ld, rows * UP(d, NR), s->ld, NR * deep, s->ld + 16};
    for (int i = 0; i < 15; i++) s->at[i] = at, at += UP(size[i], 16);
    s->bytes = at * (int64_t)sizeof(REAL) + 64;
    for (int w = 0; w < lksi_cpu_workers(cpu); w++)
        if (!lksi_scratch(cpu, w, 0, s->bytes)) return no_memory(a, s);
    lksi_parallel(cpu, s->batch * s->heads, 1, NAME(backward_part), s);
    return LKS_OK;
}

#undef CORE_
#undef CORE
#undef NAME
#undef NR
#undef LANES
#undef PIECES
#undef WIDTH
#undef AT
#undef BITS
#undef UP
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
#undef EXP
#undef LOG
#undef LOWEST
