/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scatter.c - picking and placing by indices, and what only moves elements: gather, scatter, index, index_put, one_hot,
 * pad, triu, flip, diagonals, trace, cross. What is added to one place is added in the order of the indices: by whole
 * rows after a stable sort of the indices, or line by line along dim; so bits do not depend on threads.
 */
#include "cpu/block.h"
#include "cpu/rows.h"

enum { SEGMENT = 512 }; /* elements of a line handled at a time */

static lks_status no_memory(const lksi_args *a)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
}

static int64_t grain_of(int64_t work)
{
    int64_t g = 16384 / (work > 0 ? work : 1);
    return g > 0 ? g : 1;
}

/* A 0-dim tensor as one of a single element. */
static lksi_view at_least_1d(const lksi_view *v)
{
    lksi_view r = *v;
    if (r.ndim == 0) r.ndim = 1, r.shape[0] = 1, r.stride[0] = 1;
    return r;
}

/* All of index as int64 in row-major order, in `to`; `from` <= each < to is checked. */
static lks_status load_indices(const lksi_args *a, const lksi_view *index, int64_t low, int64_t high, int64_t *to)
{
    int order[LKS_MAX_DIMS];
    lksi_operand o;
    int64_t n = lksi_count(index);
    _Alignas(64) int64_t buffer[LKSI_BLOCK];
    for (int d = 0; d < index->ndim; d++) order[d] = d;
    lksi_operand_init(&o, index, index, order, LKSI_CLASS_I64);
    for (int64_t at = 0; at < n; at += LKSI_BLOCK) {
        int64_t k = n - at < LKSI_BLOCK ? n - at : LKSI_BLOCK;
        const int64_t *p = lksi_operand_load(&o, at, k, to ? to + at : buffer);
        int64_t least = p[0], most = p[0];
        for (int64_t i = 1; i < k; i++) {
            least = p[i] < least ? p[i] : least;
            most = p[i] > most ? p[i] : most;
        }
        if (to && p != to + at) memcpy(to + at, p, (size_t)k * sizeof *p);
        if (least >= low && most < high) continue;
        int64_t i = 0;
        while (p[i] >= low && p[i] < high) i++;
        return lksi_why(a, LKS_ERR_ARGUMENT, "index %lld at place %lld is outside [%lld, %lld)", (long long)p[i],
                               (long long)(at + i), (long long)low, (long long)high);
    }
    return LKS_OK;
}

typedef uint16_t __attribute__((may_alias)) word2;
typedef uint32_t __attribute__((may_alias)) word4;
typedef uint64_t __attribute__((may_alias)) word8;
typedef struct __attribute__((may_alias)) word16 { uint64_t a, b; } word16;

static void move_elements(char *to, int64_t to_stride, const char *from, int64_t stride, int size, int64_t n)
{
    if (stride == 1 && to_stride == 1) {
        memcpy(to, from, (size_t)(n * size));
        return;
    }
#define MOVE(type)                                                                                             \
    for (int64_t i = 0; i < n; i++) ((type *)(void *)to)[i * to_stride] = ((const type *)(const void *)from)[i * stride]
    switch (size) {
    case 1: MOVE(uint8_t); break;
    case 2: MOVE(word2); break;
    case 4: MOVE(word4); break;
    case 16: MOVE(word16); break;
    default: MOVE(word8); break;
    }
#undef MOVE
}

/* A row to a dense place. */
static void row_to(char *to, const lksi_rowset *r, int64_t row)
{
    lksi_walk w = lksi_walk_start(r, row, 0, r->n);
    for (int64_t offset, k; (k = lksi_walk_next(&w, &offset)) > 0; to += k * r->size)
        move_elements(to, 1, r->data + offset * r->size, w.stride, r->size, k);
}

/* --- whole rows: outer x places of n elements each --- */

typedef struct by_row {
    lksi_rowset x;          /* gather: [outer, rows, n]; else what is placed, [outer, count, n] */
    char *y;                /* gather: [outer, count, n]; else [outer, rows, n]; dense */
    const int64_t *place;   /* [count] */
    int64_t outer, rows, count;
    int add;
    const int64_t *order;   /* places in rising order, equal ones as they were */
    const int64_t *group;   /* order[group[g]..group[g + 1]) have one place */
    int64_t groups;
    char *scratch;
    int64_t scratch_each;
} by_row;

static void pick_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const by_row *b = arg;
    int64_t bytes = b->x.n * b->x.size;
    int dense = lksi_rowset_dense(&b->x);
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / b->count * b->rows + b->place[item % b->count];
        if (dense) memcpy(b->y + item * bytes, b->x.data + lksi_rowset_offset(&b->x, row) * b->x.size, (size_t)bytes);
        else row_to(b->y + item * bytes, &b->x, row);
    }
}

/* y += a row that is dense, in y's type */
static void add_elements(int dtype, char *y, const char *x, int64_t n)
{
#define ADD(type, EXPR)                                                                                        \
    {                                                                                                          \
        type *p = (type *)(void *)y;                                                                           \
        const type *q = (const type *)(const void *)x;                                                         \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) p[i] = (type)(EXPR);                              \
    }
    switch (dtype) {
    case LKS_F32: ADD(float, p[i] + q[i]) break;
    case LKS_F64: ADD(double, p[i] + q[i]) break;
    case LKS_I64: ADD(uint64_t, p[i] + q[i]) break;
    case LKS_I32: ADD(uint32_t, p[i] + q[i]) break;
    case LKS_U8: ADD(uint8_t, p[i] + q[i]) break;
    default: ADD(uint8_t, (p[i] | q[i]) != 0) break;
    }
#undef ADD
}

static int is_reduced(int dtype) { return dtype == LKS_F16 || dtype == LKS_BF16; }

static void place_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const by_row *b = arg;
    int64_t n = b->x.n, bytes = n * b->x.size;
    int reduced = is_reduced(b->x.dtype), dense = lksi_rowset_dense(&b->x);
    char *buffer = b->scratch + worker * b->scratch_each;
    float *sum = (float *)(void *)(buffer + (n * 4 + 63) / 64 * 64);
    for (int64_t item = begin; item < end; item++) {
        int64_t o = item / b->groups, g = item % b->groups, first = b->group[g], last = b->group[g + 1];
        char *y = b->y + (o * b->rows + b->place[b->order[first]]) * bytes;
        if (!b->add) {
            row_to(y, &b->x, o * b->count + b->order[last - 1]);
            continue;
        }
        if (reduced) load_run_f(b->x.dtype, y, 1, sum, n);
        for (int64_t i = first; i < last; i++) {
            int64_t row = o * b->count + b->order[i];
            if (reduced) {
                rows_move_f(&b->x, row, 0, n, (float *)(void *)buffer, 0);
                add_elements(LKS_F32, (char *)sum, buffer, n);
            } else if (dense) {
                add_elements(b->x.dtype, y, b->x.data + lksi_rowset_offset(&b->x, row) * b->x.size, n);
            } else {
                row_to(buffer, &b->x, row);
                add_elements(b->x.dtype, y, buffer, n);
            }
        }
        if (reduced) store_run_f(b->x.dtype, y, 1, sum, n);
    }
}

/* Stable order of count places in [0, rows): by digits of 8 bits, lowest first. order and other: [count]. */
static const int64_t *sort_places(const int64_t *place, int64_t count, int64_t rows, int64_t *order, int64_t *other)
{
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int shift = 0; shift < 63 && (rows - 1) >> shift > 0; shift += 8) {
        int64_t start[257] = {0};
        for (int64_t i = 0; i < count; i++) start[(place[i] >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];
        for (int64_t i = 0; i < count; i++) other[start[place[order[i]] >> shift & 255]++] = order[i];
        int64_t *t = order;
        order = other;
        other = t;
    }
    return order;
}

/* Scratch slots: 0 places, 1 order, 2 other, 3 groups, 4 rows of workers. */
static lks_status run_by_row(lksi_cpu *cpu, const lksi_args *a, by_row *b)
{
    if (b->outer * b->count == 0 || b->x.n == 0) return LKS_OK;
    int64_t *order = lksi_scratch(cpu, -1, 1, b->count * 8), *other = lksi_scratch(cpu, -1, 2, b->count * 8);
    int64_t *group = lksi_scratch(cpu, -1, 3, (b->count + 1) * 8), n = b->x.n;
    b->scratch_each = (n * 8 + 63) / 64 * 64 + (n * 4 + 63) / 64 * 64;
    b->scratch = lksi_scratch(cpu, -1, 4, lksi_cpu_workers(cpu) * b->scratch_each + 64);
    if (!order || !other || !group || !b->scratch) return no_memory(a);
    b->order = sort_places(b->place, b->count, b->rows, order, other);
    for (int64_t i = 0; i < b->count; i++)
        if (i == 0 || b->place[b->order[i]] != b->place[b->order[i - 1]]) group[b->groups++] = i;
    group[b->groups] = b->count;
    b->group = group;
    lksi_parallel(cpu, b->outer * b->groups, grain_of(n * b->count / b->groups), place_rows, b);
    return LKS_OK;
}

/* --- single elements along a dim --- */

typedef struct along {
    lksi_view x, index, src, y; /* gather: x and y; else y (a copy of x already) and src */
    int dim, last;              /* last: dim is the innermost one */
    int op;                     /* 0 gather, 1 set, 2 add */
    int64_t segments;           /* of a line's innermost dim */
    int64_t lines;              /* over all dims but dim and the innermost */
    char *scratch;
    int64_t scratch_each;
    int64_t width; /* elements of a segment */
} along;

/* Offsets of line number `line`: an index for each dim but dim and the innermost. */
static void line_offsets(const along *s, int64_t line, int64_t *x, int64_t *index, int64_t *src, int64_t *y)
{
    *x = *index = *src = *y = 0;
    for (int d = s->index.ndim - 2; d >= 0; d--) {
        if (d == s->dim) continue;
        int64_t at = line % s->index.shape[d];
        line /= s->index.shape[d];
        *x += at * s->x.stride[d];
        *index += at * s->index.stride[d];
        *src += at * s->src.stride[d];
        *y += at * s->y.stride[d];
    }
}

/* n elements that begin at these offsets. gather: y[j] = x[j step + index[j] stride]; set, add: y[j step + index[j]
 * stride] op src[j]. */
static void pick_run(const along *s, const char *x, int64_t step, int64_t stride, const int64_t *index, char *y,
                     int64_t n)
{
    int64_t to = s->y.stride[s->y.ndim - 1];
#define PICK(type)                                                                                             \
    for (int64_t j = 0; j < n; j++)                                                                            \
        ((type *)(void *)y)[j * to] = ((const type *)(const void *)x)[j * step + index[j] * stride]
    switch (lksi_size_of[s->y.dtype]) {
    case 1: PICK(uint8_t); break;
    case 2: PICK(word2); break;
    case 4: PICK(word4); break;
    default: PICK(word8); break;
    }
#undef PICK
}

static void set_run(const along *s, char *y, int64_t step, int64_t stride, const int64_t *index, const char *src,
                    int64_t n)
{
    int64_t from = s->src.stride[s->src.ndim - 1];
#define SET(type)                                                                                              \
    for (int64_t j = 0; j < n; j++)                                                                            \
        ((type *)(void *)y)[j * step + index[j] * stride] = ((const type *)(const void *)src)[j * from]
    switch (lksi_size_of[s->y.dtype]) {
    case 1: SET(uint8_t); break;
    case 2: SET(word2); break;
    case 4: SET(word4); break;
    default: SET(word8); break;
    }
#undef SET
}

static void add_run(int dtype, char *y, int64_t step, int64_t stride, const int64_t *index, const char *src,
                    int64_t from, int64_t n)
{
#define ADD(type, EXPR)                                                                                        \
    {                                                                                                          \
        type *p = (type *)(void *)y;                                                                           \
        const type *q = (const type *)(const void *)src;                                                       \
        for (int64_t j = 0; j < n; j++) {                                                                      \
            int64_t at = j * step + index[j] * stride;                                                         \
            p[at] = (type)(EXPR);                                                                              \
        }                                                                                                      \
    }
    switch (dtype) {
    case LKS_F32: ADD(float, p[at] + q[j * from]) break;
    case LKS_F64: ADD(double, p[at] + q[j * from]) break;
    case LKS_I64: ADD(uint64_t, p[at] + q[j * from]) break;
    case LKS_I32: ADD(uint32_t, p[at] + q[j * from]) break;
    case LKS_U8: ADD(uint8_t, p[at] + q[j * from]) break;
    default: ADD(uint8_t, (p[at] | q[j * from]) != 0) break;
    }
#undef ADD
}

static void run_along(void *arg, int64_t begin, int64_t end, int worker)
{
    const along *s = arg;
    int inner = s->index.ndim - 1, size = lksi_size_of[s->y.dtype], reduced = s->op == 2 && is_reduced(s->y.dtype);
    lksi_load_fn load = LKSI_LOCAL(load)[LKSI_CLASS_I64][s->index.dtype];
    int64_t count = s->last ? 1 : s->index.shape[s->dim], rows = s->y.shape[s->dim];
    float *sum = (float *)(void *)(s->scratch ? s->scratch + worker * s->scratch_each : NULL);
    for (int64_t item = begin; item < end; item++) {
        int64_t xo, io, so, yo, first = item % s->segments * s->width;
        int64_t n = s->index.shape[inner] - first < s->width ? s->index.shape[inner] - first : s->width;
        line_offsets(s, item / s->segments, &xo, &io, &so, &yo);
        const lksi_view *t = s->op == 0 ? &s->x : &s->y; /* what the index goes into */
        int64_t step = s->last ? 0 : t->stride[inner], stride = t->stride[s->dim];
        char *whole = (char *)t->data + ((s->op == 0 ? xo : yo) + first * step) * size;
        if (reduced) { /* in float32, [rows, n]; or one whole line */
            if (s->last) load_run_f(s->y.dtype, whole, stride, sum, rows);
            else
                for (int64_t r = 0; r < rows; r++)
                    load_run_f(s->y.dtype, whole + r * stride * size, step, sum + r * n, n);
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < n; j += SEGMENT) {
                int64_t k = n - j < SEGMENT ? n - j : SEGMENT, buffer[SEGMENT], at = first + j;
                int64_t along_i = s->last ? 0 : i;
                const char *from = (const char *)s->index.data +
                                   (io + along_i * s->index.stride[s->dim] + at * s->index.stride[inner]) *
                                       lksi_size_of[s->index.dtype];
                const char *src = NULL;
                load(buffer, from, s->index.stride[inner], k);
                if (s->op)
                    src = (const char *)s->src.data +
                          (so + along_i * s->src.stride[s->dim] + at * s->src.stride[inner]) * size;
                if (s->op == 0) {
                    char *y = (char *)s->y.data +
                              (yo + along_i * s->y.stride[s->dim] + at * s->y.stride[inner]) * size;
                    pick_run(s, whole + j * step * size, step, stride, buffer, y, k);
                } else if (s->op == 1) {
                    set_run(s, whole + j * step * size, step, stride, buffer, src, k);
                } else if (reduced) {
                    float value[SEGMENT];
                    load_run_f(s->y.dtype, src, s->src.stride[inner], value, k);
                    add_run(LKS_F32, (char *)(sum + (s->last ? 0 : j)), s->last ? 0 : 1, s->last ? 1 : n, buffer,
                            (const char *)value, 1, k);
                } else {
                    add_run(s->y.dtype, whole + j * step * size, step, stride, buffer, src, s->src.stride[inner], k);
                }
            }
        if (reduced) {
            if (s->last) store_run_f(s->y.dtype, whole, stride, sum, rows);
            else
                for (int64_t r = 0; r < rows; r++)
                    store_run_f(s->y.dtype, whole + r * stride * size, step, sum + r * n, n);
        }
    }
}

static int64_t product(const lksi_view *v, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= v->shape[d];
    return n;
}

/* 1 if the index is the same for all elements outside dim. */
static int is_repeated(const lksi_view *index, int dim)
{
    for (int d = 0; d < index->ndim; d++)
        if (d != dim && index->shape[d] != 1 && index->stride[d] != 0) return 0;
    return 1;
}

/* Gathers into out, or places src (op 1 set, 2 add) into out, which is made a copy of in[0]. */
static lks_status go_along(lksi_cpu *cpu, const lksi_args *a, int op)
{
    along s = {.x = at_least_1d(&a->in[0]), .index = at_least_1d(&a->in[1]), .y = at_least_1d(&a->out[0]), .op = op,
               .dim = a->attr.dim.dim};
    s.src = op ? at_least_1d(&a->in[2]) : s.y;
    int dim = s.dim, inner = s.index.ndim - 1, whole = 1;
    int64_t n = product(&s.index, dim + 1, s.index.ndim), outer = product(&s.index, 0, dim);
    int64_t count = s.index.shape[dim], rows = s.x.shape[dim];
    int repeated = is_repeated(&s.index, dim) && lksi_count(&s.index) > 0;
    if (repeated) {
        lksi_view line = s.index;
        line.ndim = 1, line.shape[0] = count, line.stride[0] = s.index.stride[dim];
        int64_t *place = lksi_scratch(cpu, -1, 0, count * 8);
        if (!place) return no_memory(a);
        TRY(load_indices(a, &line, 0, rows, place));
        for (int d = 0; d < s.index.ndim; d++) whole &= d == dim || s.index.shape[d] == s.x.shape[d];
        if (op) LKSI_LOCAL(copy)(cpu, &a->out[0], &a->in[0]);
        if (n >= 8 && (op == 0 || whole)) {
            lksi_view part = op ? s.src : s.x; /* as much of it as the index names */
            for (int d = 0; d < part.ndim; d++)
                if (d != dim || op) part.shape[d] = s.index.shape[d];
            unsigned mask = ((1u << part.ndim) - 1) & (~0u << (dim + 1));
            by_row b = {.x = lksi_rowset_of(&part, mask), .y = s.y.data, .place = place, .outer = outer, .rows = rows,
                        .count = count, .add = op == 2};
            if (op) return run_by_row(cpu, a, &b);
            lksi_parallel(cpu, outer * count, grain_of(n), pick_rows, &b);
            return LKS_OK;
        }
    } else {
        TRY(load_indices(a, &s.index, 0, rows, NULL));
        if (op) LKSI_LOCAL(copy)(cpu, &a->out[0], &a->in[0]);
    }
    if (lksi_count(&s.index) == 0) return LKS_OK;
    s.last = dim == inner;
    s.lines = product(&s.index, 0, inner);
    if (!s.last) s.lines /= count;
    s.width = s.index.shape[inner];
    int64_t height = s.y.shape[dim];
    if (!s.last) {
        int64_t most = is_reduced(s.y.dtype) && op == 2 ? ((int64_t)1 << 18) / height : 4096;
        if (most < 64) most = 64;
        if (s.width > most) s.width = most;
    }
    s.segments = s.last ? 1 : (s.index.shape[inner] + s.width - 1) / s.width;
    if (op == 2 && is_reduced(s.y.dtype)) {
        s.scratch_each = (height * (s.last ? 1 : s.width) * 4 + 63) / 64 * 64;
        s.scratch = lksi_scratch(cpu, -1, 4, lksi_cpu_workers(cpu) * s.scratch_each);
        if (!s.scratch) return no_memory(a);
    }
    if (op == 0 && s.last && s.lines == 1) { /* one line: its parts are independent */
        s.width = 4096;
        s.segments = (s.index.shape[inner] + s.width - 1) / s.width;
    }
    lksi_parallel(cpu, s.lines * s.segments, grain_of(s.width * (s.last ? 1 : count)), run_along, &s);
    return LKS_OK;
}

LKSI_KERNEL(gather) { return go_along(cpu, a, 0); }
LKSI_KERNEL(scatter) { return go_along(cpu, a, 1); }
LKSI_KERNEL(index_copy) { return go_along(cpu, a, 1); }
LKSI_KERNEL(scatter_add) { return go_along(cpu, a, 2); }

/* --- several indices --- */

/* v broadcast to n dims of this shape. */
static lksi_view spread(const lksi_view *v, int n, const int64_t *shape)
{
    lksi_view r = *v;
    r.ndim = n;
    for (int d = 0; d < n; d++) {
        int own = d - (n - v->ndim);
        r.shape[d] = shape[d];
        r.stride[d] = own < 0 || v->shape[own] == 1 ? 0 : v->stride[own];
    }
    return r;
}

/* The number of the row that each place names, over the n first dims of x; negative indices count from the end. */
static lks_status places(lksi_cpu *cpu, const lksi_args *a, const lksi_view *x, int n, const lksi_view *index, int nb,
                         const int64_t *shape, int64_t count, int64_t **place)
{
    int64_t *one = lksi_scratch(cpu, -1, 1, count * 8 + 64), *all = lksi_scratch(cpu, -1, 0, count * 8 + 64);
    if (!one || !all) return no_memory(a);
    for (int i = 0; i < n; i++) {
        int64_t size = x->shape[i];
        lksi_view v = spread(&index[i], nb, shape);
        TRY(load_indices(a, &v, -size, size, one));
        for (int64_t p = 0; p < count; p++) {
            int64_t at = one[p] < 0 ? one[p] + size : one[p];
            all[p] = i ? all[p] * size + at : at;
        }
    }
    *place = all;
    return LKS_OK;
}

/* The last dims of v, from dim on. */
static unsigned from_dim(const lksi_view *v, int dim) { return ((1u << v->ndim) - 1) & (~0u << dim); }

LKSI_KERNEL(index)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    int n = a->attr.put.n, nb = y->ndim - (x->ndim - n);
    by_row b = {.x = lksi_rowset_of(x, from_dim(x, n)), .y = y->data, .outer = 1, .rows = product(x, 0, n),
                .count = product(y, 0, nb)};
    int64_t *place;
    TRY(places(cpu, a, x, n, &a->in[1], nb, y->shape, b.count, &place));
    b.place = place;
    lksi_parallel(cpu, b.count, grain_of(b.x.n), pick_rows, &b);
    return LKS_OK;
}

LKSI_KERNEL(index_put)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    int n = a->attr.put.n, nb = 0;
    int64_t shape[LKS_MAX_DIMS];
    for (int i = 0; i < n; i++)
        if (a->in[2 + i].ndim > nb) nb = a->in[2 + i].ndim;
    for (int d = 0; d < nb; d++) {
        shape[d] = 1;
        for (int i = 0; i < n; i++) {
            int own = d - (nb - a->in[2 + i].ndim);
            if (own >= 0 && a->in[2 + i].shape[own] != 1) shape[d] = a->in[2 + i].shape[own];
        }
    }
    int64_t count = 1, *place;
    for (int d = 0; d < nb; d++) count *= shape[d];
    for (int d = n; d < x->ndim; d++) shape[nb + d - n] = x->shape[d];
    TRY(places(cpu, a, x, n, &a->in[2], nb, shape, count, &place));
    LKSI_LOCAL(copy)(cpu, y, x);
    lksi_view values = spread(&a->in[1], nb + x->ndim - n, shape);
    by_row b = {.x = lksi_rowset_of(&values, from_dim(&values, nb)), .y = y->data, .place = place, .outer = 1,
                .rows = product(x, 0, n), .count = count, .add = a->attr.put.accumulate};
    return run_by_row(cpu, a, &b);
}

LKSI_KERNEL(one_hot)
{
    const lksi_view *y = &a->out[0];
    int64_t rows = a->attr.embedding.rows, n = lksi_count(&a->in[0]);
    int64_t *place = lksi_scratch(cpu, -1, 0, n * 8 + 64), *to = y->data;
    if (!place) return no_memory(a);
    TRY(load_indices(a, &a->in[0], 0, rows, place));
    memset(to, 0, (size_t)(n * rows) * sizeof *to);
    for (int64_t i = 0; i < n; i++) to[i * rows + place[i]] = 1;
    return LKS_OK;
}

/* --- parts --- */

LKSI_KERNEL(pad)
{
    lksi_view x = a->in[0], y = a->out[0];
    int inside = 1;
    for (int d = 0; d < x.ndim; d++) inside &= a->attr.pad.before[d] <= 0 && a->attr.pad.after[d] <= 0;
    if (!inside) LKSI_LOCAL(fill)(cpu, &y, a->attr.pad.value);
    for (int d = 0; d < x.ndim; d++) { /* the part that both have */
        int64_t before = a->attr.pad.before[d], after = a->attr.pad.after[d];
        int64_t skip = before < 0 ? -before : 0, n = x.shape[d] - skip + (after < 0 ? after : 0);
        if (n <= 0) return LKS_OK;
        x.data = (char *)x.data + skip * x.stride[d] * lksi_size_of[x.dtype];
        if (before > 0) y.data = (char *)y.data + before * y.stride[d] * lksi_size_of[y.dtype];
        x.shape[d] = y.shape[d] = n;
    }
    LKSI_LOCAL(copy)(cpu, &y, &x);
    return LKS_OK;
}

typedef struct mover {
    lksi_rowset x;
    char *y;
    int64_t rows, offset; /* of a matrix */
    int upper, mask, ndim;
    int64_t shape[LKS_MAX_DIMS], stride[LKS_MAX_DIMS];
} mover;

static void triangle_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const mover *m = arg;
    int64_t n = m->x.n;
    int size = m->x.size;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        /* column i + offset is the first that triu, the last that tril keeps */
        int64_t i = r % m->rows, edge = m->offset > n ? n : m->offset < -m->rows ? -m->rows : m->offset;
        edge += i + (m->upper ? 0 : 1);
        edge = edge < 0 ? 0 : edge > n ? n : edge;
        int64_t first = m->upper ? edge : 0, last = m->upper ? n : edge;
        char *y = m->y + r * n * size;
        lksi_walk w = lksi_walk_start(&m->x, r, first, last - first);
        memset(y, 0, (size_t)(first * size));
        memset(y + last * size, 0, (size_t)((n - last) * size));
        y += first * size;
        for (int64_t offset, k; (k = lksi_walk_next(&w, &offset)) > 0; y += k * size)
            move_elements(y, 1, m->x.data + offset * size, w.stride, size, k);
    }
}

LKSI_KERNEL(triu)
{
    const lksi_view *x = &a->in[0];
    mover m = {.x = lksi_rowset_of(x, 1u << (x->ndim - 1)), .y = a->out[0].data, .rows = x->shape[x->ndim - 2],
               .offset = a->attr.diagonal.offset, .upper = a->attr.diagonal.upper};
    lksi_parallel(cpu, m.x.rows, grain_of(m.x.n), triangle_rows, &m);
    return LKS_OK;
}

static void flip_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const mover *m = arg;
    int last = m->ndim - 1, back = m->mask >> last & 1, size = m->x.size;
    int64_t n = m->shape[last], stride = back ? -m->stride[last] : m->stride[last];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        int64_t rest = r, offset = back ? (n - 1) * m->stride[last] : 0;
        for (int d = last - 1; d >= 0; d--) {
            int64_t at = rest % m->shape[d];
            rest /= m->shape[d];
            offset += (m->mask >> d & 1 ? m->shape[d] - 1 - at : at) * m->stride[d];
        }
        move_elements(m->y + r * n * size, 1, m->x.data + offset * size, stride, size, n);
    }
}

LKSI_KERNEL(flip)
{
    lksi_view x = at_least_1d(&a->in[0]);
    mover m = {.x = {.data = x.data, .size = lksi_size_of[x.dtype]}, .y = a->out[0].data, .mask = a->attr.reduce.mask,
               .ndim = x.ndim};
    memcpy(m.shape, x.shape, sizeof m.shape);
    memcpy(m.stride, x.stride, sizeof m.stride);
    int64_t n = x.shape[x.ndim - 1];
    lksi_parallel(cpu, lksi_count(&x) / n, grain_of(n), flip_rows, &m);
    return LKS_OK;
}

LKSI_KERNEL(diag_embed)
{
    lksi_view y = a->out[0], part = {.dtype = y.dtype};
    const lksi_view *x = &a->in[0];
    int p = a->attr.diagonal.d0, q = a->attr.diagonal.d1;
    int64_t k = a->attr.diagonal.offset;
    LKSI_LOCAL(fill)(cpu, &y, 0);
    if (lksi_count(x) == 0) return LKS_OK;
    for (int d = 0; d < y.ndim; d++)
        if (d != p && d != q) {
            part.shape[part.ndim] = y.shape[d];
            part.stride[part.ndim++] = y.stride[d];
        }
    part.shape[part.ndim] = x->shape[x->ndim - 1];
    part.stride[part.ndim++] = y.stride[p] + y.stride[q];
    part.data = (char *)y.data + (k > 0 ? k * y.stride[q] : -k * y.stride[p]) * lksi_size_of[y.dtype];
    LKSI_LOCAL(copy)(cpu, &part, x);
    return LKS_OK;
}

LKSI_KERNEL(trace)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    int64_t n = x->shape[0] < x->shape[1] ? x->shape[0] : x->shape[1], whole = 0, stride = x->stride[0] + x->stride[1];
    double sum = 0;
    lksi_block block;
    int cls = lks_dtype_is_float(x->dtype) ? LKSI_CLASS_F64 : LKSI_CLASS_I64;
    (void)cpu;
    for (int64_t at = 0; at < n; at += LKSI_BLOCK) {
        int64_t k = n - at < LKSI_BLOCK ? n - at : LKSI_BLOCK;
        LKSI_LOCAL(load)[cls][x->dtype](block.bytes, (char *)x->data + at * stride * lksi_size_of[x->dtype], stride, k);
        for (int64_t i = 0; i < k; i++) {
            if (cls == LKSI_CLASS_F64) sum += ((double *)(void *)block.bytes)[i];
            else whole = (int64_t)((uint64_t)whole + (uint64_t)((int64_t *)(void *)block.bytes)[i]);
        }
    }
    LKSI_LOCAL(store)[cls][y->dtype](y->data, 1, cls == LKSI_CLASS_F64 ? (void *)&sum : (void *)&whole, 1);
    return LKS_OK;
}

/* --- cross --- */

typedef struct cross { lksi_operand a1, b2, a2, b1, y; } cross;

static void cross_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const cross *c = arg;
    lksi_block a1, b2, a2, b1, out;
    (void)worker;
    for (int64_t at = begin; at < end; at += LKSI_BLOCK) {
        int64_t n = end - at < LKSI_BLOCK ? end - at : LKSI_BLOCK;
        const void *p = lksi_operand_load(&c->a1, at, n, a1.bytes), *q = lksi_operand_load(&c->b2, at, n, b2.bytes);
        const void *r = lksi_operand_load(&c->a2, at, n, a2.bytes), *s = lksi_operand_load(&c->b1, at, n, b1.bytes);
#define CROSS(type)                                                                                            \
    for (int64_t i = 0; i < n; i++)                                                                            \
        ((type *)(void *)out.bytes)[i] = ((const type *)p)[i] * ((const type *)q)[i] -                         \
                                         ((const type *)r)[i] * ((const type *)s)[i]
        if (c->y.cls == LKSI_CLASS_F32) CROSS(float);
        else if (c->y.cls == LKSI_CLASS_F64) CROSS(double);
        else CROSS(uint64_t);
#undef CROSS
        lksi_operand_store(&c->y, at, n, out.bytes);
    }
}

/* v at index i of the dim that is dim of y, without that dim. */
static lksi_view component(const lksi_view *v, const lksi_view *y, int dim, int i)
{
    lksi_view r = *v;
    int own = dim - (y->ndim - v->ndim);
    r.data = (char *)v->data + i * v->stride[own] * lksi_size_of[v->dtype];
    r.ndim--;
    for (int d = own; d < r.ndim; d++) r.shape[d] = v->shape[d + 1], r.stride[d] = v->stride[d + 1];
    return r;
}

LKSI_KERNEL(cross)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1], *z = &a->out[0];
    int dim = a->attr.dim.dim, order[LKS_MAX_DIMS], cls = lksi_class_of[z->dtype];
    for (int i = 0; i < 3; i++) {
        int j = (i + 1) % 3, k = (i + 2) % 3;
        lksi_view out = component(z, z, dim, i), p = component(x, z, dim, j), q = component(y, z, dim, k);
        lksi_view r = component(x, z, dim, k), s = component(y, z, dim, j);
        cross c;
        lksi_walk_order(&out, order);
        lksi_operand_init(&c.y, &out, &out, order, cls);
        lksi_operand_init(&c.a1, &p, &out, order, cls);
        lksi_operand_init(&c.b2, &q, &out, order, cls);
        lksi_operand_init(&c.a2, &r, &out, order, cls);
        lksi_operand_init(&c.b1, &s, &out, order, cls);
        lksi_parallel(cpu, lksi_count(&out), LKSI_GRAIN, cross_range, &c);
    }
    return LKS_OK;
}
