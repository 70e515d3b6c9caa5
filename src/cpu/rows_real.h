/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows_real.h - the part of rows.h that exists for float and for double. Included by rows.h twice, with REAL (the
 * type), F(name) (the name for it) and REAL_DTYPE defined.
 */

/* A hardware vector of REAL, unaligned in memory, and LKSI_LANES partial results. */
typedef REAL F(vec) __attribute__((vector_size(LKSI_VECTOR), aligned(sizeof(REAL)), may_alias));
#define WIDTH ((int)(LKSI_VECTOR / sizeof(REAL)))
#define PIECES ((int)(LKSI_LANES * sizeof(REAL) / LKSI_VECTOR))
typedef struct F(lanes) { F(vec) p[PIECES]; } F(lanes);

static inline LKSI_UNUSED F(vec) F(vec_at)(const REAL *x) { return *(const F(vec) *)x; }
static inline LKSI_UNUSED F(vec) F(vec_all)(REAL v)
{
    F(vec) r;
    for (int k = 0; k < WIDTH; k++) r[k] = v;
    return r;
}
static inline LKSI_UNUSED F(vec) F(vec_select)(F(vec) x, F(vec) m)
{
    __typeof__(x > m) take = x > m;
    return (F(vec))(((__typeof__(take))x & take) | ((__typeof__(take))m & ~take));
}

static inline LKSI_INLINE void F(clear)(F(lanes) *a)
{
#pragma GCC unroll 32
    for (int k = 0; k < PIECES; k++) a->p[k] = F(vec_all)(0);
}

/* Tree over the lanes, the same on every ISA: lane k takes in lane k + 16, then k + 8, and so on. */
static inline LKSI_INLINE REAL F(fold)(F(lanes) *a)
{
#pragma GCC unroll 8
    for (int half = PIECES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int k = 0; k < half; k++) a->p[k] += a->p[k + half];
    F(vec) v = a->p[0];
#pragma GCC unroll 8
    for (int half = WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int k = 0; k < half; k++) v[k] += v[k + half];
    return v[0];
}

/* The n < LKSI_LANES elements that are left, as lanes; the rest is `fill`. */
static inline LKSI_UNUSED F(lanes) F(tail)(const REAL *x, int64_t n, REAL fill)
{
    F(lanes) a;
    REAL lane[LKSI_LANES];
    for (int k = 0; k < LKSI_LANES; k++) lane[k] = fill;
    memcpy(lane, x, (size_t)n * sizeof *x);
    memcpy(&a, lane, sizeof a);
    return a;
}

static LKSI_UNUSED REAL F(sum)(const REAL *x, int64_t n)
{
    F(lanes) a;
    F(clear)(&a);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] += F(vec_at)(x + i + k * WIDTH);
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, 0);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] += t.p[k];
    }
    return F(fold)(&a);
}

/* Largest element; -inf for n = 0. NaN is passed over. */
static LKSI_UNUSED REAL F(max)(const REAL *x, int64_t n)
{
    F(lanes) a;
    for (int k = 0; k < PIECES; k++) a.p[k] = F(vec_all)((REAL)-INFINITY);
    int64_t i = 0;
    for (; i + LKSI_LANES <= n; i += LKSI_LANES)
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] = (F(vec))F(vmax)(F(vec_at)(x + i + k * WIDTH), a.p[k]);
    if (i < n) {
        F(lanes) t = F(tail)(x + i, n - i, (REAL)-INFINITY);
#pragma GCC unroll 32
        for (int k = 0; k < PIECES; k++) a.p[k] = (F(vec))F(vmax)(t.p[k], a.p[k]);
    }
#pragma GCC unroll 8
    for (int half = PIECES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int k = 0; k < half; k++) a.p[k] = (F(vec))F(vmax)(a.p[k], a.p[k + half]);
    REAL m = a.p[0][0];
#pragma GCC unroll 32
    for (int k = 1; k < WIDTH; k++) m = a.p[0][k] > m ? a.p[0][k] : m;
    return m;
}

/* n elements, stride s, of a float dtype to and from REAL. */
static LKSI_UNUSED void F(load_run)(int dtype, const void *src, int64_t s, REAL *d, int64_t n)
{
    if (dtype == LKS_F32) {
        const float *x = src;
        if (s == 1)
            for (int64_t i = 0; i < n; i++) d[i] = (REAL)x[i];
        else
            for (int64_t i = 0; i < n; i++) d[i] = (REAL)x[i * s];
    } else if (dtype == LKS_F64) {
        const double *x = src;
        for (int64_t i = 0; i < n; i++) d[i] = (REAL)x[i * s];
    } else if (s == 1 && sizeof(REAL) == sizeof(float)) {
        if (dtype == LKS_F16) lksi_f16_to_f32_n((float *)(void *)d, src, n);
        else lksi_load_bf16((float *)(void *)d, src, n);
    } else {
        const uint16_t *x = src;
        if (dtype == LKS_F16)
            for (int64_t i = 0; i < n; i++) d[i] = (REAL)lksi_f16_to_f32(x[i * s]);
        else
            for (int64_t i = 0; i < n; i++) d[i] = (REAL)lksi_bf16_to_f32(x[i * s]);
    }
}
static LKSI_UNUSED void F(store_run)(int dtype, void *dst, int64_t s, const REAL *x, int64_t n)
{
    if (dtype == LKS_F32) {
        float *d = dst;
        if (s == 1)
            for (int64_t i = 0; i < n; i++) d[i] = (float)x[i];
        else
            for (int64_t i = 0; i < n; i++) d[i * s] = (float)x[i];
    } else if (dtype == LKS_F64) {
        double *d = dst;
        for (int64_t i = 0; i < n; i++) d[i * s] = (double)x[i];
    } else if (s == 1 && sizeof(REAL) == sizeof(float)) {
        if (dtype == LKS_F16) lksi_f32_to_f16_n(dst, (const float *)(const void *)x, n);
        else lksi_store_bf16(dst, (const float *)(const void *)x, n);
    } else {
        uint16_t *d = dst;
        if (dtype == LKS_F16)
            for (int64_t i = 0; i < n; i++) d[i * s] = F(to_f16)(x[i]);
        else
            for (int64_t i = 0; i < n; i++) d[i * s] = F(to_bf16)(x[i]);
    }
}

/* Address of elements [first, first + n) of a row if they can be used in place, else NULL. */
static LKSI_UNUSED REAL *F(rows_direct)(const lksi_rowset *r, int64_t row, int64_t first, int64_t n)
{
    if (r->dtype != REAL_DTYPE || n == 0) return NULL; /* of nothing there is no place: sizes inside may be 0 */
    int64_t offset = lksi_rowset_offset(r, row);
    if (r->inner) {
        int last = r->inner - 1;
        int64_t run = r->ishape[last], at = first % run, rest = first / run;
        if (r->istride[last] != 1 || at + n > run) return NULL;
        for (int d = last - 1; d >= 0; d--) {
            offset += rest % r->ishape[d] * r->istride[d];
            rest /= r->ishape[d];
        }
        offset += at;
    }
    return (REAL *)(void *)r->data + offset;
}

/* Elements [first, first + n) of a row to or from buffer. */
static LKSI_UNUSED void F(rows_move)(const lksi_rowset *r, int64_t row, int64_t first, int64_t n, REAL *buffer,
                                     int store)
{
    if (n == 0) return;
    lksi_walk w = lksi_walk_start(r, row, first, n);
    for (int64_t offset, k; (k = lksi_walk_next(&w, &offset)) > 0; buffer += k) {
        char *p = r->data + offset * r->size;
        if (store) F(store_run)(r->dtype, p, w.stride, buffer, k);
        else F(load_run)(r->dtype, p, w.stride, buffer, k);
    }
}

/* Elements [first, first + n) of a row: in place, or copied to buffer. */
static LKSI_UNUSED const REAL *F(rows_part)(const lksi_rowset *r, int64_t row, int64_t first, int64_t n, REAL *buffer)
{
    const REAL *p = F(rows_direct)(r, row, first, n);
    if (p) return p;
    F(rows_move)(r, row, first, n, buffer, 0);
    return buffer;
}
static LKSI_UNUSED const REAL *F(rows_load)(const lksi_rowset *r, int64_t row, REAL *buffer)
{
    return F(rows_part)(r, row, 0, r->n, buffer);
}
/* Where to compute elements of a result row: in place, or buffer, which rows_store then writes out. */
static LKSI_UNUSED REAL *F(rows_room)(const lksi_rowset *r, int64_t row, int64_t first, int64_t n, REAL *buffer)
{
    REAL *p = F(rows_direct)(r, row, first, n);
    return p ? p : buffer;
}
static LKSI_UNUSED void F(rows_store)(const lksi_rowset *r, int64_t row, int64_t first, int64_t n, REAL *from)
{
    if (F(rows_direct)(r, row, first, n) != from) F(rows_move)(r, row, first, n, from, 1);
}

/* count rows one after the other, [count, n]: in place, or copied to buffer; the same for results. */
static LKSI_UNUSED const REAL *F(rows_block)(const lksi_rowset *r, int64_t row, int64_t count, REAL *buffer)
{
    if (lksi_rowset_packed(r)) {
        char *p = r->data + row * r->n * r->size;
        if (r->dtype == REAL_DTYPE) return (const REAL *)(void *)p;
        F(load_run)(r->dtype, p, 1, buffer, count * r->n);
        return buffer;
    }
    for (int64_t i = 0; i < count; i++) F(rows_move)(r, row + i, 0, r->n, buffer + i * r->n, 0);
    return buffer;
}
static LKSI_UNUSED REAL *F(rows_block_room)(const lksi_rowset *r, int64_t row, REAL *buffer)
{
    int direct = lksi_rowset_packed(r) && r->dtype == REAL_DTYPE;
    return direct ? (REAL *)(void *)(r->data + row * r->n * r->size) : buffer;
}
static LKSI_UNUSED void F(rows_block_store)(const lksi_rowset *r, int64_t row, int64_t count, REAL *from)
{
    if (lksi_rowset_packed(r)) {
        char *p = r->data + row * r->n * r->size;
        if ((char *)from != p) F(store_run)(r->dtype, p, 1, from, count * r->n);
        return;
    }
    for (int64_t i = 0; i < count; i++) F(rows_move)(r, row + i, 0, r->n, from + i * r->n, 1);
}

/* count rows that lie beside each other (lksi_rowset_beside), to and from buffer [count, n]. */
static LKSI_UNUSED void F(rows_load_beside)(const lksi_rowset *r, int64_t row, int64_t count, REAL *buffer)
{
    REAL tile[32];
    const char *p = r->data + lksi_rowset_offset(r, row) * r->size;
    for (int64_t i = 0; i < r->n; i++) {
        F(load_run)(r->dtype, p + i * r->istride[0] * r->size, 1, tile, count);
        for (int64_t j = 0; j < count; j++) buffer[j * r->n + i] = tile[j];
    }
}
static LKSI_UNUSED void F(rows_store_beside)(const lksi_rowset *r, int64_t row, int64_t count, const REAL *buffer)
{
    REAL tile[32];
    char *p = r->data + lksi_rowset_offset(r, row) * r->size;
    for (int64_t i = 0; i < r->n; i++) {
        for (int64_t j = 0; j < count; j++) tile[j] = buffer[j * r->n + i];
        F(store_run)(r->dtype, p + i * r->istride[0] * r->size, 1, tile, count);
    }
}

#undef WIDTH
#undef PIECES
