/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products_real.h - the part of products.c that exists for float and for double: included twice, with REAL and F(name)
 * defined.
 */

#define WIDTH ((int)(LKSI_VECTOR / sizeof(REAL)))
#define PIECES ((int)(LKSI_LANES * sizeof(REAL) / LKSI_VECTOR))

static REAL F(dot)(const REAL *x, const REAL *y, int64_t n)
{
    F(lanes) a;
    F(clear)(&a);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++)
            a.p[k] = (F(vec))F(vfma)(F(vec_at)(x + i + k * WIDTH), F(vec_at)(y + i + k * WIDTH), a.p[k]);
    if (i < n) {
        F(lanes) s = F(tail)(x + i, n - i, 0), t = F(tail)(y + i, n - i, 0);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] = (F(vec))F(vfma)(s.p[k], t.p[k], a.p[k]);
    }
    return F(fold)(&a);
}

/* Items are blocks of rows' elements; where a row has one block, the result is stored at once. */
static void F(vecdot)(void *arg, int64_t begin, int64_t end, int worker)
{
    const vecdot *v = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / v->blocks, first = item % v->blocks * BLOCK;
        int64_t last = first + BLOCK < v->x.n ? first + BLOCK : v->x.n;
        double sum = 0;
        for (; first < last; first += CHUNK) {
            REAL left[CHUNK], right[CHUNK];
            int64_t n = last - first < CHUNK ? last - first : CHUNK;
            const REAL *x = F(rows_part)(&v->x, row, first, n, left), *y = F(rows_part)(&v->y, row, first, n, right);
            sum += (double)F(dot)(x, y, n);
        }
        if (v->blocks == 1) lksi_put(v->z.data, v->z.dtype, lksi_rowset_offset(&v->z, row), sum);
        else v->part[item] = sum;
    }
}

/* x1 as a dense block */
static void F(bilinear_rows)(void *arg, int64_t begin, int64_t end, int worker)
{
    const bilinear *b = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) F(rows_move)(&b->x, b->first + r, 0, b->x.n, (REAL *)b->rows + r * b->x.n, 0);
}

/* y[r, o] = sum_j t[r, o, j] x2[r, j] + bias[o] */
static void F(bilinear_dots)(void *arg, int64_t begin, int64_t end, int worker)
{
    const bilinear *b = arg;
    int64_t n = b->y.n;
    REAL *buffer = (REAL *)(void *)(b->scratch + worker * b->scratch_each), *out = buffer + n;
    for (int64_t r = begin; r < end; r++) {
        const REAL *y = F(rows_load)(&b->y, b->first + r, buffer), *t = (const REAL *)b->products + r * b->outputs * n;
        for (int64_t o = 0; o < b->outputs; o++, t += n) {
            out[o] = F(dot)(t, y, n);
            if (b->bias) out[o] += (REAL)lksi_get(b->bias->data, b->bias->dtype, o * b->bias->stride[0]);
        }
        F(rows_move)(&b->z, b->first + r, 0, b->outputs, out, 1);
    }
}

#undef WIDTH
#undef PIECES
