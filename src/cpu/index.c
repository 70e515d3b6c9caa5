/* SPDX-License-Identifier: BSD-3-Clause
 *
 * index.c - embedding, its gradient, and cat. The gradient is added row by row of the table in the order of the indices
 * (a counting sort finds them), so it has the same bits on any number of threads and needs no atomics.
 */
#include "cpu/block.h"
#include "cpu/rows.h"

static inline int64_t index_at(const lksi_rowset *index, int64_t i)
{
    int64_t at = lksi_rowset_offset(index, i);
    return index->dtype == LKS_I64 ? ((const int64_t *)(void *)index->data)[at]
                                   : ((const int32_t *)(void *)index->data)[at];
}

static lks_status check_indices(const lksi_args *a, const lksi_rowset *index, int64_t rows)
{
    for (int64_t i = 0; i < index->rows; i++) {
        int64_t v = index_at(index, i);
        if (v < 0 || v >= rows)
            return lksi_why(a, LKS_ERR_ARGUMENT, "index %lld at place %lld is outside [0, %lld)", (long long)v,
                                   (long long)i, (long long)rows);
    }
    return LKS_OK;
}

static lks_status no_memory(const lksi_args *a)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
}

static int64_t grain_of(int64_t work)
{
    int64_t g = 16384 / (work > 0 ? work : 1);
    return g > 0 ? g : 1;
}

typedef struct embedding {
    lksi_rowset table, index, y; /* backward: table is dweight, y is dy */
    int plain;                   /* rows are dense and of one dtype: bytes are copied */
    int dbl;
    const int64_t *start, *order; /* backward: entries of table row v are order[start[v]..start[v + 1]) */
    char *scratch;
    int64_t scratch_each;
} embedding;

static unsigned last_dim(const lksi_view *v)
{
    return 1u << (v->ndim - 1);
}

static int embedding_memory(lksi_cpu *cpu, embedding *e)
{
    int64_t n = e->table.n;
    e->dbl = e->table.dtype == LKS_F64 || e->y.dtype == LKS_F64;
    e->plain = e->table.dtype == e->y.dtype && lksi_rowset_dense(&e->table) && lksi_rowset_dense(&e->y);
    e->scratch_each = (2 * n * 8 + 63) / 64 * 64;
    e->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * e->scratch_each + 64);
    return e->scratch != NULL;
}

static void gather(void *arg, int64_t begin, int64_t end, int worker)
{
    const embedding *e = arg;
    int64_t n = e->table.n, size = e->table.size;
    void *buffer = e->scratch + worker * e->scratch_each;
    for (int64_t i = begin; i < end; i++) {
        int64_t v = index_at(&e->index, i);
        if (e->plain) {
            memcpy(e->y.data + lksi_rowset_offset(&e->y, i) * size,
                   e->table.data + lksi_rowset_offset(&e->table, v) * size, (size_t)(n * size));
        } else if (e->dbl) {
            rows_move_d(&e->table, v, 0, n, buffer, 0);
            rows_move_d(&e->y, i, 0, n, buffer, 1);
        } else {
            rows_move_f(&e->table, v, 0, n, buffer, 0);
            rows_move_f(&e->y, i, 0, n, buffer, 1);
        }
    }
}

LKSI_KERNEL(embedding)
{
    embedding e = {.table = lksi_rowset_of(&a->in[0], 2u),
                   .index = lksi_rowset_of(&a->in[1], 0),
                   .y = lksi_rowset_of(&a->out[0], last_dim(&a->out[0]))};
    TRY(check_indices(a, &e.index, a->in[0].shape[0]));
    if (!embedding_memory(cpu, &e)) return no_memory(a);
    if (e.table.n > 0) lksi_parallel(cpu, e.index.rows, grain_of(e.table.n), gather, &e);
    return LKS_OK;
}

#define SCATTER(name, REAL, f)                                                                                 \
    static void name(void *arg, int64_t begin, int64_t end, int worker)                                        \
    {                                                                                                          \
        const embedding *e = arg;                                                                              \
        int64_t n = e->table.n;                                                                                \
        REAL *buffer = (REAL *)(void *)(e->scratch + worker * e->scratch_each), *sum = buffer + n;             \
        for (int64_t v = begin; v < end; v++) {                                                                \
            int64_t first = e->start[v], last = e->start[v + 1];                                               \
            if (e->plain && last == first + 1) {                                                               \
                memcpy(e->table.data + lksi_rowset_offset(&e->table, v) * e->table.size,                       \
                       e->y.data + lksi_rowset_offset(&e->y, e->order[first]) * e->y.size,                     \
                       (size_t)(n * e->table.size));                                                           \
                continue;                                                                                      \
            }                                                                                                  \
            REAL *s = rows_room_##f(&e->table, v, 0, n, sum);                                                  \
            memset(s, 0, (size_t)n * sizeof *s);                                                               \
            for (int64_t i = first; i < last; i++) {                                                           \
                const REAL *dy = rows_load_##f(&e->y, e->order[i], buffer);                                    \
                _Pragma("GCC ivdep") for (int64_t c = 0; c < n; c++) s[c] += dy[c];                            \
            }                                                                                                  \
            rows_store_##f(&e->table, v, 0, n, s);                                                             \
        }                                                                                                      \
    }
SCATTER(scatter_f, float, f)
SCATTER(scatter_d, double, d)

LKSI_KERNEL(embedding_backward)
{
    embedding e = {.y = lksi_rowset_of(&a->in[0], last_dim(&a->in[0])),
                   .index = lksi_rowset_of(&a->in[1], 0),
                   .table = lksi_rowset_of(&a->out[0], 2u)};
    int64_t rows = a->out[0].shape[0], count = e.index.rows;
    TRY(check_indices(a, &e.index, rows));
    if (e.table.n == 0 || rows == 0) return LKS_OK;
    int64_t *start = lksi_scratch(cpu, -1, 1, (rows + 2) * 8), *order = lksi_scratch(cpu, -1, 2, count * 8 + 64);
    if (!start || !order || !embedding_memory(cpu, &e)) return no_memory(a);
    /* start[v + 2] counts v, then start[v + 1] is where v begins, then, all placed, where it ends. */
    memset(start, 0, (size_t)(rows + 2) * sizeof *start);
    for (int64_t i = 0; i < count; i++) start[index_at(&e.index, i) + 2]++;
    for (int64_t v = 2; v < rows + 2; v++) start[v] += start[v - 1];
    for (int64_t i = 0; i < count; i++) order[start[index_at(&e.index, i) + 1]++] = i;
    e.start = start;
    e.order = order;
    lksi_parallel(cpu, rows, grain_of(e.table.n), e.dbl ? scatter_d : scatter_f, &e);
    return LKS_OK;
}

/* --- cat --- */

enum { CHUNK = 2048, BLOCK = 32768 }; /* elements converted at a time; of a worker's item */

typedef struct cat {
    lksi_rowset x, y; /* one input, and its place in the result */
    int64_t blocks;   /* of a row */
} cat;

typedef uint16_t __attribute__((may_alias)) word2;
typedef uint32_t __attribute__((may_alias)) word4;
typedef uint64_t __attribute__((may_alias)) word8;

static void copy_bytes(const char *s, int64_t stride, char *d, int64_t to, int size, int64_t n)
{
    if (stride == 1 && to == 1) {
        memcpy(d, s, (size_t)(n * size));
        return;
    }
#define COPY(type)                                                                                             \
    for (int64_t i = 0; i < n; i++) ((type *)(void *)d)[i * to] = ((const type *)(const void *)s)[i * stride]
    switch (size) {
    case 1: COPY(uint8_t); break;
    case 2: COPY(word2); break;
    case 4: COPY(word4); break;
    default: COPY(word8); break;
    }
#undef COPY
}

/* Elements of a row to or from a dense buffer of its dtype. */
static void move_bytes(const lksi_rowset *r, int64_t row, int64_t first, int64_t n, char *buffer, int store)
{
    lksi_walk w = lksi_walk_start(r, row, first, n);
    for (int64_t offset, k; (k = lksi_walk_next(&w, &offset)) > 0; buffer += k * r->size) {
        char *p = r->data + offset * r->size;
        if (store) copy_bytes(buffer, 1, p, w.stride, r->size, k);
        else copy_bytes(p, w.stride, buffer, 1, r->size, k);
    }
}

/* Integers and bool to anything; promotion never goes from floats to integers. */
static void convert_integers(int from, const void *s, int to, void *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v = 0;
        if (from == LKS_I64) memcpy(&v, (const char *)s + i * 8, 8);
        else if (from == LKS_I32) v = (int32_t)((const word4 *)s)[i];
        else v = ((const uint8_t *)s)[i];
        switch (to) {
        case LKS_F32: ((word4 *)d)[i] = lksi_bits_f32((float)v); break;
        case LKS_F64: ((word8 *)d)[i] = lksi_bits_f64((double)v); break;
        case LKS_F16: ((word2 *)d)[i] = lksi_i64_to_f16(v); break;
        case LKS_BF16: ((word2 *)d)[i] = lksi_i64_to_bf16(v); break;
        case LKS_I64: ((word8 *)d)[i] = (uint64_t)v; break;
        case LKS_I32: ((word4 *)d)[i] = (uint32_t)v; break;
        default: ((uint8_t *)d)[i] = (uint8_t)v; break;
        }
    }
}

static void join(void *arg, int64_t begin, int64_t end, int worker)
{
    const cat *c = arg;
    int floats = lks_dtype_is_float(c->x.dtype), dbl = c->x.dtype == LKS_F64 || c->y.dtype == LKS_F64;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / c->blocks, first = item % c->blocks * BLOCK;
        int64_t last = first + BLOCK < c->x.n ? first + BLOCK : c->x.n;
        if (c->x.dtype == c->y.dtype && lksi_rowset_dense(&c->y)) {
            char *to = c->y.data + (lksi_rowset_offset(&c->y, row) + first) * c->y.size;
            move_bytes(&c->x, row, first, last - first, to, 0);
            continue;
        }
        for (; first < last; first += CHUNK) {
            int64_t k = last - first < CHUNK ? last - first : CHUNK;
            union { float f[CHUNK]; double d[CHUNK]; char c[CHUNK * 8]; } in, out;
            if (c->x.dtype == c->y.dtype) {
                move_bytes(&c->x, row, first, k, in.c, 0);
                move_bytes(&c->y, row, first, k, in.c, 1);
            } else if (!floats) {
                move_bytes(&c->x, row, first, k, in.c, 0);
                convert_integers(c->x.dtype, in.c, c->y.dtype, out.c, k);
                move_bytes(&c->y, row, first, k, out.c, 1);
            } else if (dbl) {
                rows_move_d(&c->x, row, first, k, in.d, 0);
                rows_move_d(&c->y, row, first, k, in.d, 1);
            } else {
                rows_move_f(&c->x, row, first, k, in.f, 0);
                rows_move_f(&c->y, row, first, k, in.f, 1);
            }
        }
    }
}

LKSI_KERNEL(cat)
{
    const lksi_view *y = &a->out[0];
    int dim = a->attr.dim.dim;
    unsigned inner = ((1u << y->ndim) - 1) & (~0u << dim);
    int64_t at = 0;
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *x = &a->in[i];
        if (lksi_numel(x) == 0) {
            if (x->ndim == y->ndim) at += x->shape[dim];
            continue;
        }
        lksi_view part = *x;
        part.dtype = y->dtype;
        for (int d = 0; d < y->ndim; d++) part.stride[d] = y->stride[d];
        part.data = (char *)y->data + at * y->stride[dim] * lks_dtype_size(y->dtype);
        at += x->shape[dim];
        if (lks_dtype_is_complex(y->dtype)) {
            for (int d = 0; d < y->ndim; d++) part.shape[d] = x->shape[d];
            LKSI_LOCAL(copy)(cpu, &part, x);
            continue;
        }
        cat c = {.x = lksi_rowset_of(x, inner), .y = lksi_rowset_of(&part, inner)};
        c.blocks = (c.x.n + BLOCK - 1) / BLOCK;
        lksi_parallel(cpu, c.x.rows * c.blocks, grain_of(c.x.n < BLOCK ? c.x.n : BLOCK), join, &c);
    }
    return LKS_OK;
}
