/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sort.c - sorting along a dim, with indices. Elements become unsigned keys that rise as they do (NaN last, -0 and 0
 * alike, inverted for falling order), which are sorted by digits; so it is stable. A small k out of many is picked by a
 * heap. One line is one worker's.
 */
#include "cpu/block.h"
#include "cpu/rows.h"

enum { FEW = 24 }; /* sorted by insertion */

static uint64_t key_of_f32(uint32_t u)
{
    if ((u << 1) > 0xff000000u) return 0xffffffffu;
    if (u << 1 == 0) u = 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

static uint64_t key_of_f64(uint64_t u)
{
    if ((u << 1) > 0xffe0000000000000u) return UINT64_MAX;
    if (u << 1 == 0) u = 0;
    return u >> 63 ? ~u : u | ((uint64_t)1 << 63);
}

/* Keys of n elements, `stride` apart; bits: of a key. */
static int keys_of(int dtype, const void *from, int64_t stride, int64_t n, int falling, uint64_t *key)
{
    int bits = lksi_size_of[dtype] == 8 ? 64 : lksi_size_of[dtype] == 1 ? 8 : 32;
    uint64_t invert = falling ? ~(uint64_t)0 >> (64 - bits) : 0;
#define KEYS(type, EXPR)                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                                          \
        type x = ((const type *)from)[i * stride];                                                             \
        key[i] = (EXPR) ^ invert;                                                                              \
    }                                                                                                          \
    break
    switch (dtype) {
    case LKS_F32: KEYS(float, key_of_f32(lksi_bits_f32(x)));
    case LKS_F64: KEYS(double, key_of_f64(lksi_bits_f64(x)));
    case LKS_F16: KEYS(uint16_t, key_of_f32(lksi_bits_f32(lksi_f16_to_f32(x))));
    case LKS_BF16: KEYS(uint16_t, key_of_f32((uint32_t)x << 16));
    case LKS_I64: KEYS(int64_t, (uint64_t)x ^ ((uint64_t)1 << 63));
    case LKS_I32: KEYS(int32_t, (uint32_t)x ^ 0x80000000u);
    case LKS_U8: KEYS(uint8_t, x);
    default: KEYS(uint8_t, (uint64_t)(x != 0));
    }
#undef KEYS
    return bits;
}

typedef struct pair { uint64_t key; int64_t index; } pair;

static int before(pair x, pair y) { return x.key < y.key || (x.key == y.key && x.index < y.index); }

static void insertion(pair *p, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        pair x = p[i];
        int64_t j = i;
        for (; j > 0 && p[j - 1].key > x.key; j--) p[j] = p[j - 1];
        p[j] = x;
    }
}

/* Sorted pairs, in p or other. */
static pair *by_digits(pair *p, pair *other, int64_t n, int bits)
{
    if (n <= FEW) {
        insertion(p, n);
        return p;
    }
    for (int shift = 0; shift < bits; shift += 8) {
        int64_t start[257] = {0};
        for (int64_t i = 0; i < n; i++) start[(p[i].key >> shift & 255) + 1]++;
        int alike = 0;
        for (int d = 0; d < 256 && !alike; d++) alike = start[d + 1] == n;
        if (alike) continue;
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];
        for (int64_t i = 0; i < n; i++) other[start[p[i].key >> shift & 255]++] = p[i];
        pair *t = p;
        p = other;
        other = t;
    }
    return p;
}

/* The k first of n pairs, in any order, at the front: a heap whose top is the last of them. */
static void first_ones(pair *p, int64_t n, int64_t k)
{
    for (int64_t i = 1; i < k; i++)
        for (int64_t c = i; c > 0 && before(p[(c - 1) / 2], p[c]); c = (c - 1) / 2) {
            pair t = p[c];
            p[c] = p[(c - 1) / 2];
            p[(c - 1) / 2] = t;
        }
    for (int64_t i = k; i < n; i++) {
        if (!before(p[i], p[0])) continue;
        pair x = p[i];
        int64_t at = 0;
        for (;;) {
            int64_t c = 2 * at + 1;
            if (c >= k) break;
            if (c + 1 < k && before(p[c], p[c + 1])) c++;
            if (!before(x, p[c])) break;
            p[at] = p[c];
            at = c;
        }
        p[at] = x;
    }
}

typedef struct sorting {
    lksi_cpu *cpu;
    lksi_rowset x, values, indices;
    int64_t n, k, x_stride, v_stride, i_stride;
    int falling;
    char *scratch;
    int64_t scratch_each;
} sorting;

static void sort_lines(void *arg, int64_t begin, int64_t end, int worker)
{
    const sorting *s = arg;
    char *memory = s->scratch + worker * s->scratch_each;
    int64_t n = s->n, k = s->k;
    uint64_t *key = (uint64_t *)(void *)memory;
    pair *first = (pair *)(void *)(key + n), *second = first + n;
    for (int64_t line = begin; line < end; line++) {
        const char *x = s->x.data + lksi_rowset_offset(&s->x, line) * s->x.size;
        char *v = s->values.data + lksi_rowset_offset(&s->values, line) * s->x.size;
        int64_t *index = (int64_t *)(void *)s->indices.data + lksi_rowset_offset(&s->indices, line);
        int bits = keys_of(s->x.dtype, x, s->x_stride, n, s->falling, key);
        for (int64_t i = 0; i < n; i++) first[i] = (pair){key[i], i};
        pair *p = first;
        int64_t left = n;
        if (k < n / 8) {
            first_ones(first, n, k);
            left = k;
            /* Heap order is not that of indices: sort by them first, then stably by key. */
            for (int64_t i = 0; i < k; i++) second[i] = (pair){(uint64_t)first[i].index, (int64_t)first[i].key};
            pair *q = by_digits(second, first, k, 64), *r = q == second ? first : second;
            for (int64_t i = 0; i < k; i++) r[i] = (pair){(uint64_t)q[i].index, (int64_t)q[i].key};
            p = by_digits(r, q, left, bits);
        } else {
            p = by_digits(first, second, n, bits);
        }
        for (int64_t i = 0; i < k; i++) index[i * s->i_stride] = p[i].index;
#define TAKE(type)                                                                                             \
    for (int64_t i = 0; i < k; i++)                                                                            \
        ((type *)(void *)v)[i * s->v_stride] = ((const type *)(const void *)x)[p[i].index * s->x_stride]
        switch (s->x.size) {
        case 1: TAKE(uint8_t); break;
        case 2: TAKE(uint16_t); break;
        case 4: TAKE(uint32_t); break;
        default: TAKE(uint64_t); break;
        }
#undef TAKE
    }
}

LKSI_KERNEL(sort)
{
    const lksi_view *x = &a->in[0], *v = &a->out[0];
    int d = a->attr.sort.dim, many = x->ndim > 0;
    unsigned mask = many ? 1u << d : 0;
    sorting s = {.cpu = cpu, .x = lksi_rowset_of(x, mask), .values = lksi_rowset_of(v, mask),
                 .indices = lksi_rowset_of(&a->out[1], mask), .n = many ? x->shape[d] : 1, .k = a->attr.sort.k,
                 .x_stride = many ? x->stride[d] : 1, .v_stride = many ? v->stride[d] : 1,
                 .i_stride = many ? a->out[1].stride[d] : 1, .falling = a->attr.sort.descending};
    s.scratch_each = (s.n * (8 + 2 * (int64_t)sizeof(pair)) + 63) / 64 * 64;
    s.scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s.scratch_each + 64);
    if (!s.scratch) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    lksi_parallel(cpu, s.x.rows, 1 + 4096 / (s.n + 1), sort_lines, &s);
    return LKS_OK;
}
