/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copy.c - moving elements: conversion tables of all dtypes, clone, cast, copy, accumulate, fill, arange,
 * slice_backward. Same dtype: bytes are moved, by memcpy where both sides are rows, by tiles where they are transposed.
 * Other dtypes: through blocks. Compiled once per ISA.
 */
#include "cpu/block.h"

/* --- conversions: LOAD(class, dtype) and STORE(class, dtype) ------------------------------------------------------ */

#define LOAD(NAME, D, S, EXPR)                                                                                 \
    static void NAME(void *dst, const void *src, int64_t stride, int64_t n)                                    \
    {                                                                                                          \
        D *restrict y = dst;                                                                                   \
        const S *restrict p = src;                                                                             \
        if (stride == 1) {                                                                                     \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                S x = p[i];                                                                                    \
                y[i] = EXPR;                                                                                   \
            }                                                                                                  \
        } else if (stride == 0) {                                                                              \
            S x = p[0];                                                                                        \
            D v = EXPR;                                                                                        \
            for (int64_t i = 0; i < n; i++) y[i] = v;                                                          \
        } else {                                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                S x = p[i * stride];                                                                           \
                y[i] = EXPR;                                                                                   \
            }                                                                                                  \
        }                                                                                                      \
    }

#define STORE(NAME, D, S, EXPR)                                                                                \
    static void NAME(void *dst, int64_t stride, const void *src, int64_t n)                                    \
    {                                                                                                          \
        D *restrict y = dst;                                                                                   \
        const S *restrict p = src;                                                                             \
        if (stride == 1) {                                                                                     \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                S x = p[i];                                                                                    \
                y[i] = EXPR;                                                                                   \
            }                                                                                                  \
        } else {                                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                  \
                S x = p[i];                                                                                    \
                y[i * stride] = EXPR;                                                                          \
            }                                                                                                  \
        }                                                                                                      \
    }

/* float to int64 for float dtypes goes through double, which is exact. */
LOAD(load_i64_f32, int64_t, float, lksi_f64_to_i64(x))
LOAD(load_i64_f64, int64_t, double, lksi_f64_to_i64(x))
LOAD(load_i64_f16, int64_t, uint16_t, lksi_f64_to_i64(lksi_f16_to_f32(x)))
LOAD(load_i64_bf16, int64_t, uint16_t, lksi_f64_to_i64(lksi_bf16_to_f32(x)))
LOAD(load_i64_i64, int64_t, int64_t, x)
LOAD(load_i64_i32, int64_t, int32_t, x)
LOAD(load_i64_u8, int64_t, uint8_t, x)
LOAD(load_i64_bool, int64_t, uint8_t, x != 0)

LOAD(load_f32_f32, float, float, x)
LOAD(load_f32_f64, float, double, (float)x)
LOAD(load_f32_f16_plain, float, uint16_t, lksi_f16_to_f32(x))
LOAD(load_f32_bf16, float, uint16_t, lksi_bf16_to_f32(x))
LOAD(load_f32_i64, float, int64_t, (float)x)
LOAD(load_f32_i32, float, int32_t, (float)x)
LOAD(load_f32_u8, float, uint8_t, (float)x)
LOAD(load_f32_bool, float, uint8_t, x ? 1.0f : 0.0f)

LOAD(load_f64_f32, double, float, x)
LOAD(load_f64_f64, double, double, x)
LOAD(load_f64_f16, double, uint16_t, lksi_f16_to_f32(x))
LOAD(load_f64_bf16, double, uint16_t, lksi_bf16_to_f32(x))
LOAD(load_f64_i64, double, int64_t, (double)x)
LOAD(load_f64_i32, double, int32_t, x)
LOAD(load_f64_u8, double, uint8_t, x)
LOAD(load_f64_bool, double, uint8_t, x ? 1.0 : 0.0)

LOAD(load_raw8, uint8_t, uint8_t, x)

static void load_f32_f16(void *dst, const void *src, int64_t stride, int64_t n)
{
    if (stride == 1)
        lksi_f16_to_f32_n(dst, src, n);
    else
        load_f32_f16_plain(dst, src, stride, n);
}

STORE(store_i64_f32, float, int64_t, (float)x)
STORE(store_i64_f64, double, int64_t, (double)x)
STORE(store_i64_f16, uint16_t, int64_t, lksi_i64_to_f16(x))
STORE(store_i64_bf16, uint16_t, int64_t, lksi_i64_to_bf16(x))
STORE(store_i64_i64, int64_t, int64_t, x)
STORE(store_i64_i32, int32_t, int64_t, (int32_t)x)
STORE(store_i64_u8, uint8_t, int64_t, (uint8_t)x)
STORE(store_i64_bool, uint8_t, int64_t, x != 0)

STORE(store_f32_f32, float, float, x)
STORE(store_f32_f64, double, float, x)
STORE(store_f32_f16_plain, uint16_t, float, lksi_f32_to_f16(x))
STORE(store_f32_bf16_plain, uint16_t, float, lksi_f32_to_bf16(x))
STORE(store_f32_i64, int64_t, float, lksi_f64_to_i64(x))
STORE(store_f32_i32, int32_t, float, lksi_f64_to_i32(x))
STORE(store_f32_u8, uint8_t, float, lksi_f64_to_u8(x))
STORE(store_f32_bool, uint8_t, float, (lksi_bits_f32(x) & 0x7fffffffu) != 0)

STORE(store_f64_f32, float, double, (float)x)
STORE(store_f64_f64, double, double, x)
STORE(store_f64_f16, uint16_t, double, lksi_f64_to_f16(x))
STORE(store_f64_bf16, uint16_t, double, lksi_f64_to_bf16(x))
STORE(store_f64_i64, int64_t, double, lksi_f64_to_i64(x))
STORE(store_f64_i32, int32_t, double, lksi_f64_to_i32(x))
STORE(store_f64_u8, uint8_t, double, lksi_f64_to_u8(x))
STORE(store_f64_bool, uint8_t, double, (lksi_bits_f64(x) & 0x7fffffffffffffffu) != 0)

STORE(store_raw8, uint8_t, uint8_t, x)

static void store_f32_f16(void *dst, int64_t stride, const void *src, int64_t n)
{
    if (stride == 1)
        lksi_f32_to_f16_n(dst, src, n);
    else
        store_f32_f16_plain(dst, stride, src, n);
}

static void store_f32_bf16(void *dst, int64_t stride, const void *src, int64_t n)
{
    if (stride == 1)
        lksi_f32_to_bf16_n(dst, src, n);
    else
        store_f32_bf16_plain(dst, stride, src, n);
}

/* Complex: a real number gets an imaginary part of 0; a real place takes the real part (a bool: either is not 0). */
LOAD(load_c64_c64, lksi_c64, lksi_c64, x)
LOAD(load_c64_c128, lksi_c64, lksi_c128, ((lksi_c64){(float)x.re, (float)x.im}))
LOAD(load_c128_c64, lksi_c128, lksi_c64, ((lksi_c128){x.re, x.im}))
LOAD(load_c128_c128, lksi_c128, lksi_c128, x)
STORE(store_c64_c64, lksi_c64, lksi_c64, x)
STORE(store_c64_c128, lksi_c128, lksi_c64, ((lksi_c128){x.re, x.im}))
STORE(store_c128_c64, lksi_c64, lksi_c128, ((lksi_c64){(float)x.re, (float)x.im}))
STORE(store_c128_c128, lksi_c128, lksi_c128, x)
STORE(store_f64_c64, lksi_c64, double, ((lksi_c64){(float)x, 0}))
STORE(store_f64_c128, lksi_c128, double, ((lksi_c128){x, 0}))
STORE(store_c64_bool, uint8_t, lksi_c64, x.re != 0 || x.im != 0)
STORE(store_c128_bool, uint8_t, lksi_c128, x.re != 0 || x.im != 0)

/* Loaded into the upper half of dst, then spread. */
#define COMPLEX_OF(C, CLS, REAL, RCLS, NAME)                                                                   \
    static void load_##CLS##_##NAME(void *dst, const void *src, int64_t stride, int64_t n)                      \
    {                                                                                                          \
        REAL *y = dst, *x = y + n;                                                                             \
        load_##RCLS##_##NAME(x, src, stride, n);                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                      \
            REAL v = x[i];                                                                                     \
            y[2 * i] = v;                                                                                      \
            y[2 * i + 1] = 0;                                                                                  \
        }                                                                                                      \
    }
#define REAL_OF(C, CLS, REAL, RCLS, NAME, BYTES)                                                               \
    static void store_##CLS##_##NAME(void *dst, int64_t stride, const void *src, int64_t n)                     \
    {                                                                                                          \
        const C *p = src;                                                                                      \
        REAL x[64];                                                                                            \
        for (int64_t at = 0; at < n; at += 64) {                                                               \
            int64_t m = n - at < 64 ? n - at : 64;                                                             \
            for (int64_t i = 0; i < m; i++) x[i] = p[at + i].re;                                               \
            store_##RCLS##_##NAME((char *)dst + at * stride * BYTES, stride, x, m);                            \
        }                                                                                                      \
    }
#define BOTH(NAME, BYTES)                                                                                      \
    COMPLEX_OF(lksi_c64, c64, float, f32, NAME)                                                                \
    COMPLEX_OF(lksi_c128, c128, double, f64, NAME)                                                             \
    REAL_OF(lksi_c64, c64, float, f32, NAME, BYTES)                                                            \
    REAL_OF(lksi_c128, c128, double, f64, NAME, BYTES)
BOTH(f32, 4)
BOTH(f64, 8)
BOTH(f16, 2)
BOTH(bf16, 2)
BOTH(i64, 8)
BOTH(i32, 4)
BOTH(u8, 1)
COMPLEX_OF(lksi_c64, c64, float, f32, bool)
COMPLEX_OF(lksi_c128, c128, double, f64, bool)

#define ROW(what, cls)                                                                                         \
    {                                                                                                          \
        [LKS_F32] = what##_##cls##_f32, [LKS_F64] = what##_##cls##_f64, [LKS_F16] = what##_##cls##_f16,        \
        [LKS_BF16] = what##_##cls##_bf16, [LKS_I64] = what##_##cls##_i64, [LKS_I32] = what##_##cls##_i32,      \
        [LKS_U8] = what##_##cls##_u8, [LKS_BOOL] = what##_##cls##_bool                                         \
    }
#define ALL(what, cls)                                                                                         \
    {                                                                                                          \
        [LKS_F32] = what##_##cls##_f32, [LKS_F64] = what##_##cls##_f64, [LKS_F16] = what##_##cls##_f16,        \
        [LKS_BF16] = what##_##cls##_bf16, [LKS_I64] = what##_##cls##_i64, [LKS_I32] = what##_##cls##_i32,      \
        [LKS_U8] = what##_##cls##_u8, [LKS_BOOL] = what##_##cls##_bool, [LKS_C64] = what##_##cls##_c64,        \
        [LKS_C128] = what##_##cls##_c128                                                                       \
    }
const lksi_load_fn LKSI_LOCAL(load)[LKSI_CLASSES][LKS_DTYPE_COUNT] = {
    [LKSI_CLASS_I64] = ROW(load, i64),
    [LKSI_CLASS_F32] = ROW(load, f32),
    [LKSI_CLASS_F64] = ROW(load, f64),
    [LKSI_CLASS_RAW8] = {[LKS_U8] = load_raw8, [LKS_BOOL] = load_raw8},
    [LKSI_CLASS_C64] = ALL(load, c64),
    [LKSI_CLASS_C128] = ALL(load, c128),
};
const lksi_store_fn LKSI_LOCAL(store)[LKSI_CLASSES][LKS_DTYPE_COUNT] = {
    [LKSI_CLASS_I64] = ROW(store, i64),
    [LKSI_CLASS_F32] = ROW(store, f32),
    [LKSI_CLASS_F64] = ALL(store, f64),
    [LKSI_CLASS_RAW8] = {[LKS_U8] = store_raw8, [LKS_BOOL] = store_raw8},
    [LKSI_CLASS_C64] = ALL(store, c64),
    [LKSI_CLASS_C128] = ALL(store, c128),
};

/* --- same dtype: bytes -------------------------------------------------------------------------------------------- */

/* dst and src over common dims, walked in dst's order, neighbours merged where both allow it. */
typedef struct move {
    char *dst;
    const char *src;
    int size, ndim;
    int64_t shape[LKS_MAX_DIMS], to[LKS_MAX_DIMS], from[LKS_MAX_DIMS]; /* strides in elements */
    int64_t outer; /* items: product of all dims but the last `inner` ones */
    int across;    /* transposed: the dim along which src is contiguous, moved to ndim - 2; tiles */
    int64_t tiles_down, tiles_right;
} move;

#define TILE 32

#define MOVE_ROW(T)                                                                                            \
    static void move_row_##T(T *restrict y, int64_t to, const T *restrict x, int64_t from, int64_t n)           \
    {                                                                                                          \
        if (to == 1 && from == 0) {                                                                            \
            T v = x[0];                                                                                        \
            for (int64_t i = 0; i < n; i++) y[i] = v;                                                          \
        } else if (to == 1 && from == 1) {                                                                     \
            for (int64_t i = 0; i < n; i++) y[i] = x[i];                                                       \
        } else if (to == 1) {                                                                                  \
            for (int64_t i = 0; i < n; i++) y[i] = x[i * from];                                                \
        } else {                                                                                               \
            for (int64_t i = 0; i < n; i++) y[i * to] = x[i * from];                                           \
        }                                                                                                      \
    }                                                                                                          \
    /* y[i][j] = x[j][i] for i < rows, j < columns; to, from: strides of i in y, of j in x. Rows go through a tile so \
     * that each line of memory is touched once, also where strides are powers of 2. */                        \
    static void move_tile_##T(T *restrict y, int64_t to, const T *restrict x, int64_t from, int rows, int columns) \
    {                                                                                                          \
        T t[TILE][TILE + 4];                                                                                   \
        if (rows == TILE && columns == TILE) {                                                                 \
            for (int j = 0; j < TILE; j++)                                                                     \
                for (int i = 0; i < TILE; i++) t[j][i] = x[j * from + i];                                      \
            for (int i = 0; i < TILE; i++)                                                                     \
                for (int j = 0; j < TILE; j++) y[i * to + j] = t[j][i];                                        \
            return;                                                                                            \
        }                                                                                                      \
        for (int i = 0; i < rows; i++)                                                                         \
            for (int j = 0; j < columns; j++) y[i * to + j] = x[j * from + i];                                 \
    }
MOVE_ROW(uint8_t)
MOVE_ROW(uint16_t)
MOVE_ROW(uint32_t)
MOVE_ROW(uint64_t)
typedef struct pair { uint64_t a, b; } pair;
MOVE_ROW(pair)

/* Full tiles of 4-byte elements by 4 x 4 shuffles. */
typedef uint32_t quad __attribute__((vector_size(16), aligned(4), may_alias));
static void move_full_tile_4(char *y_, int64_t to, const char *x_, int64_t from)
{
    uint32_t t[TILE][TILE + 4], *y = (void *)y_;
    const uint32_t *x = (const void *)x_;
    for (int j = 0; j < TILE; j++)
        for (int i = 0; i < TILE; i++) t[j][i] = x[j * from + i];
    for (int i = 0; i < TILE; i += 4)
        for (int j = 0; j < TILE; j += 4) {
            quad a = *(quad *)(void *)&t[j][i], b = *(quad *)(void *)&t[j + 1][i];
            quad c = *(quad *)(void *)&t[j + 2][i], d = *(quad *)(void *)&t[j + 3][i];
            quad ac0 = __builtin_shufflevector(a, c, 0, 4, 1, 5), ac1 = __builtin_shufflevector(a, c, 2, 6, 3, 7);
            quad bd0 = __builtin_shufflevector(b, d, 0, 4, 1, 5), bd1 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
            uint32_t *r = y + i * to + j;
            *(quad *)(void *)r = __builtin_shufflevector(ac0, bd0, 0, 4, 1, 5);
            *(quad *)(void *)(r + to) = __builtin_shufflevector(ac0, bd0, 2, 6, 3, 7);
            *(quad *)(void *)(r + 2 * to) = __builtin_shufflevector(ac1, bd1, 0, 4, 1, 5);
            *(quad *)(void *)(r + 3 * to) = __builtin_shufflevector(ac1, bd1, 2, 6, 3, 7);
        }
}

static void move_row(int size, char *y, int64_t to, const char *x, int64_t from, int64_t n)
{
    if (to == 1 && from == 1 && n * size >= 64)
        memcpy(y, x, (size_t)(n * size));
    else if (size == 4)
        move_row_uint32_t((void *)y, to, (const void *)x, from, n);
    else if (size == 2)
        move_row_uint16_t((void *)y, to, (const void *)x, from, n);
    else if (size == 8)
        move_row_uint64_t((void *)y, to, (const void *)x, from, n);
    else if (size == 16)
        move_row_pair((void *)y, to, (const void *)x, from, n);
    else
        move_row_uint8_t((void *)y, to, (const void *)x, from, n);
}

static void move_tile(int size, char *y, int64_t to, const char *x, int64_t from, int rows, int columns)
{
    if (size == 4 && rows == TILE && columns == TILE)
        move_full_tile_4(y, to, x, from);
    else if (size == 4)
        move_tile_uint32_t((void *)y, to, (const void *)x, from, rows, columns);
    else if (size == 2)
        move_tile_uint16_t((void *)y, to, (const void *)x, from, rows, columns);
    else if (size == 8)
        move_tile_uint64_t((void *)y, to, (const void *)x, from, rows, columns);
    else if (size == 16)
        move_tile_pair((void *)y, to, (const void *)x, from, rows, columns);
    else
        move_tile_uint8_t((void *)y, to, (const void *)x, from, rows, columns);
}

static void move_init(move *m, const lksi_view *dst, const lksi_view *src)
{
    int order[LKS_MAX_DIMS], n = 0, skip = dst->ndim - src->ndim;
    lksi_walk_order(dst, order);
    m->dst = dst->data;
    m->src = src->data;
    m->size = lksi_size_of[dst->dtype];
    for (int k = 0; k < dst->ndim; k++) {
        int d = order[k], own = d - skip;
        int64_t size = dst->shape[d], from = own < 0 || src->shape[own] == 1 ? 0 : src->stride[own];
        if (size == 1) continue;
        if (n > 0 && m->to[n - 1] == dst->stride[d] * size && m->from[n - 1] == from * size) {
            m->shape[n - 1] *= size;
            m->to[n - 1] = dst->stride[d];
            m->from[n - 1] = from;
        } else {
            m->shape[n] = size;
            m->to[n] = dst->stride[d];
            m->from[n++] = from;
        }
    }
    if (n == 0) {
        m->shape[0] = 1;
        m->to[0] = m->from[0] = 1;
        n = 1;
    }
    m->ndim = n;
    m->across = 0;
    if (n >= 2 && m->to[n - 1] == 1 && m->from[n - 1] > 1 && m->shape[n - 1] >= 4) {
        int best = -1;
        for (int d = 0; d < n - 1; d++)
            if (m->from[d] == 1 && m->shape[d] >= 4) best = d;
        if (best >= 0) { /* bring it next to the last dim; the others keep their order */
            int64_t shape = m->shape[best], to = m->to[best];
            for (int d = best; d < n - 2; d++) {
                m->shape[d] = m->shape[d + 1];
                m->to[d] = m->to[d + 1];
                m->from[d] = m->from[d + 1];
            }
            m->shape[n - 2] = shape;
            m->to[n - 2] = to;
            m->from[n - 2] = 1;
            m->across = 1;
            m->tiles_down = (m->shape[n - 2] + TILE - 1) / TILE;
            m->tiles_right = (m->shape[n - 1] + TILE - 1) / TILE;
        }
    }
    m->outer = 1;
    for (int d = 0; d < n - 1 - m->across; d++) m->outer *= m->shape[d];
}

/* Offsets of outer item `at`, and its index per outer dim. */
static void move_seek(const move *m, int dims, int64_t at, int64_t *index, int64_t *to, int64_t *from)
{
    *to = *from = 0;
    for (int d = dims - 1; d >= 0; d--) {
        int64_t q = at / m->shape[d];
        index[d] = at - q * m->shape[d];
        at = q;
        *to += index[d] * m->to[d];
        *from += index[d] * m->from[d];
    }
}

static void move_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const move *m = arg;
    int dims = m->ndim - 1;
    int64_t index[LKS_MAX_DIMS], to, from;
    move_seek(m, dims, begin, index, &to, &from);
    for (int64_t item = begin; item < end; item++) {
        move_row(m->size, m->dst + to * m->size, m->to[dims], m->src + from * m->size, m->from[dims], m->shape[dims]);
        for (int d = dims - 1; d >= 0; d--) {
            to += m->to[d];
            from += m->from[d];
            if (++index[d] < m->shape[d]) break;
            to -= index[d] * m->to[d];
            from -= index[d] * m->from[d];
            index[d] = 0;
        }
    }
}

/* Where tile `item` lies: offsets of its first element, and its size. */
typedef struct place { int64_t to, from; int rows, columns; } place;

static place move_place(const move *m, int64_t item)
{
    place p;
    int down = m->ndim - 2, right = m->ndim - 1;
    int64_t column = item % m->tiles_right * TILE, rest = item / m->tiles_right, row = rest % m->tiles_down * TILE;
    int64_t index[LKS_MAX_DIMS];
    move_seek(m, down, rest / m->tiles_down, index, &p.to, &p.from);
    p.rows = (int)(m->shape[down] - row < TILE ? m->shape[down] - row : TILE);
    p.columns = (int)(m->shape[right] - column < TILE ? m->shape[right] - column : TILE);
    p.to += row * m->to[down] + column;
    p.from += row + column * m->from[right];
    return p;
}

static void move_tiles(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const move *m = arg;
    for (int64_t item = begin; item < end; item++) {
        place p = move_place(m, item);
        move_tile(m->size, m->dst + p.to * m->size, m->to[m->ndim - 2], m->src + p.from * m->size, m->from[m->ndim - 1],
                  p.rows, p.columns);
    }
}

/* One long row, by elements. */
static void move_piece(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const move *m = arg;
    int last = m->ndim - 1;
    move_row(m->size, m->dst + begin * m->to[last] * m->size, m->to[last], m->src + begin * m->from[last] * m->size,
             m->from[last], end - begin);
}

static void move_all(lksi_cpu *cpu, const lksi_view *dst, const lksi_view *src)
{
    move m;
    move_init(&m, dst, src);
    if (m.across) {
        lksi_parallel(cpu, m.outer * m.tiles_down * m.tiles_right, LKSI_GRAIN / (TILE * TILE), move_tiles, &m);
    } else if (m.outer == 1) {
        lksi_parallel(cpu, m.shape[m.ndim - 1], 4 * LKSI_GRAIN / m.size, move_piece, &m);
    } else {
        int64_t grain = LKSI_GRAIN / m.shape[m.ndim - 1];
        lksi_parallel(cpu, m.outer, grain < 1 ? 1 : grain, move_rows, &m);
    }
}

/* --- other dtypes: blocks ----------------------------------------------------------------------------------------- */

typedef struct convert { lksi_operand dst, src; } convert;

static void convert_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const convert *c = arg;
    lksi_block buf;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        void *direct = lksi_operand_direct(&c->dst, at);
        const void *x = lksi_operand_load(&c->src, at, n, direct ? direct : buf.bytes);
        if (x != direct) lksi_operand_store(&c->dst, at, n, x);
    }
}

/* Transposed: a tile of src is turned first, then its rows are converted. */
typedef struct convert_across {
    move m; /* size: of src */
    lksi_load_fn load;
    lksi_store_fn store;
    int size; /* of dst */
} convert_across;

static void convert_tiles(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const convert_across *c = arg;
    const move *m = &c->m;
    _Alignas(64) char tile[TILE * TILE * 16], row[TILE * 16];
    for (int64_t item = begin; item < end; item++) {
        place p = move_place(m, item);
        move_tile(m->size, tile, TILE, m->src + p.from * m->size, m->from[m->ndim - 1], p.rows, p.columns);
        for (int i = 0; i < p.rows; i++) {
            c->load(row, tile + i * TILE * m->size, 1, p.columns);
            c->store(m->dst + (p.to + i * m->to[m->ndim - 2]) * c->size, 1, row, p.columns);
        }
    }
}

/* dst = src, broadcast and converted. */
static void copy_all(lksi_cpu *cpu, const lksi_view *dst, const lksi_view *src)
{
    int64_t n = lksi_count(dst);
    if (n == 0) return;
    /* A bool is normalised where it comes from another dtype; between bools bytes are moved. */
    if (dst->dtype == src->dtype) {
        move_all(cpu, dst, src);
        return;
    }
    convert_across t;
    convert c;
    int order[LKS_MAX_DIMS], cls = lksi_class_of[src->dtype];
    /* A class that loads straight into dst saves a pass: it must hold every src value. */
    if (dst->dtype == LKS_F64 && cls == LKSI_CLASS_F32) cls = LKSI_CLASS_F64;
    if (lks_dtype_is_complex(dst->dtype)) cls = cls == LKSI_CLASS_C128 ? cls : lksi_class_of[dst->dtype];
    if ((dst->dtype == LKS_F32 || dst->dtype == LKS_F64) && cls == LKSI_CLASS_I64) cls = lksi_class_of[dst->dtype];
    move_init(&t.m, dst, src);
    if (t.m.across) {
        t.m.size = lksi_size_of[src->dtype];
        t.size = lksi_size_of[dst->dtype];
        t.load = LKSI_LOCAL(load)[cls][src->dtype];
        t.store = LKSI_LOCAL(store)[cls][dst->dtype];
        lksi_parallel(cpu, t.m.outer * t.m.tiles_down * t.m.tiles_right, LKSI_GRAIN / (TILE * TILE), convert_tiles, &t);
        return;
    }
    lksi_walk_order(dst, order);
    lksi_operand_init(&c.dst, dst, dst, order, cls);
    lksi_operand_init(&c.src, src, dst, order, cls);
    lksi_parallel(cpu, n, LKSI_GRAIN, convert_range, &c);
}

void LKSI_LOCAL(copy)(lksi_cpu *cpu, const lksi_view *dst, const lksi_view *src) { copy_all(cpu, dst, src); }

LKSI_KERNEL(clone)
{
    copy_all(cpu, &a->out[0], &a->in[0]);
    return LKS_OK;
}

LKSI_KERNEL(cast)
{
    copy_all(cpu, &a->out[0], &a->in[0]);
    return LKS_OK;
}

LKSI_KERNEL(copy)
{
    copy_all(cpu, &a->out[0], &a->in[0]);
    return LKS_OK;
}

/* --- accumulate --------------------------------------------------------------------------------------------------- */

static void add_f32(void *y, const void *a, const void *b, int64_t n)
{
    float *r = y;
    const float *p = a, *q = b;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) r[i] = p[i] + q[i];
}

static void add_f64(void *y, const void *a, const void *b, int64_t n)
{
    double *r = y;
    const double *p = a, *q = b;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) r[i] = p[i] + q[i];
}

static void add_i64(void *y, const void *a, const void *b, int64_t n)
{
    uint64_t *r = y;
    const uint64_t *p = a, *q = b;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) r[i] = p[i] + q[i];
}

static void accumulate_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const convert *c = arg;
    lksi_block x, y;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        const void *q = lksi_operand_load(&c->src, at, n, x.bytes);
        const void *p = lksi_operand_load(&c->dst, at, n, y.bytes);
        void *direct = lksi_operand_direct(&c->dst, at), *r = direct ? direct : y.bytes;
        if (c->dst.cls == LKSI_CLASS_F32)
            add_f32(r, p, q, n);
        else if (c->dst.cls == LKSI_CLASS_F64)
            add_f64(r, p, q, n);
        else if (c->dst.cls == LKSI_CLASS_C64)
            add_f32(r, p, q, 2 * n);
        else if (c->dst.cls == LKSI_CLASS_C128)
            add_f64(r, p, q, 2 * n);
        else
            add_i64(r, p, q, n);
        if (!direct) lksi_operand_store(&c->dst, at, n, r);
    }
}

LKSI_KERNEL(accumulate)
{
    const lksi_view *dst = &a->out[0], *src = &a->in[0];
    int64_t n = lksi_count(dst);
    if (n == 0) return LKS_OK;
    convert c;
    int order[LKS_MAX_DIMS], cls = lksi_class_of[dst->dtype];
    lksi_walk_order(dst, order);
    lksi_operand_init(&c.dst, dst, dst, order, cls);
    lksi_operand_init(&c.src, src, dst, order, cls);
    lksi_parallel(cpu, n, LKSI_GRAIN, accumulate_range, &c);
    return LKS_OK;
}

/* --- fills -------------------------------------------------------------------------------------------------------- */

void LKSI_LOCAL(fill)(lksi_cpu *cpu, const lksi_view *dst, double value)
{
    /* One element converted from the double once, then copied by bytes. */
    _Alignas(16) char one[16];
    lksi_view v = {.data = one, .dtype = dst->dtype, .ndim = 0};
    LKSI_LOCAL(store)[LKSI_CLASS_F64][dst->dtype](one, 1, &value, 1);
    if (lksi_count(dst) > 0) move_all(cpu, dst, &v);
}

LKSI_KERNEL(fill)
{
    LKSI_LOCAL(fill)(cpu, &a->out[0], a->attr.fill.value);
    return LKS_OK;
}

static void arange_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const lksi_operand *dst = arg;
    lksi_block buf;
    int64_t *p = (int64_t *)(void *)buf.bytes;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        for (int64_t i = 0; i < n; i++) p[i] = at + i;
        lksi_operand_store(dst, at, n, p);
    }
}

LKSI_KERNEL(arange)
{
    const lksi_view *dst = &a->out[0];
    int64_t n = lksi_count(dst);
    if (n == 0) return LKS_OK;
    int order[LKS_MAX_DIMS];
    lksi_operand o;
    for (int d = 0; d < dst->ndim; d++) order[d] = d; /* numbers follow the shape, not memory */
    lksi_operand_init(&o, dst, dst, order, LKSI_CLASS_I64);
    lksi_parallel(cpu, n, LKSI_GRAIN, arange_range, &o);
    return LKS_OK;
}

LKSI_KERNEL(slice_backward)
{
    lksi_view dx = a->out[0];
    int d = a->attr.slice.dim;
    if (lksi_count(&dx) == 0) return LKS_OK;
    if (lksi_count(&a->in[0]) != lksi_count(&dx)) LKSI_LOCAL(fill)(cpu, &dx, 0.0);
    /* The window of dx that dy covers. */
    dx.data = (char *)dx.data + a->attr.slice.start * dx.stride[d] * lksi_size_of[dx.dtype];
    dx.shape[d] = a->in[0].shape[d];
    dx.stride[d] *= a->attr.slice.step;
    copy_all(cpu, &dx, &a->in[0]);
    return LKS_OK;
}
