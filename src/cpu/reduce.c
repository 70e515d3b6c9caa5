/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reduce.c - sum, mean, max, min, argmax, index_fill_backward; through stat_core.h var, prod, norm and the like. Dims
 * are put in the order of the input's memory and merged; then either a reduced dim is innermost (rows are summed) or a
 * kept one (rows are added to each other, column by column). Work is split into blocks of a fixed size and their
 * results are combined in a fixed order, so the number of threads changes nothing. Compiled once per ISA.
 */
#include "cpu/block.h"
#include <math.h>

#define SUM_BLOCK 4096    /* elements of a row summed in lanes */
#define SUM_TILE 512      /* columns */
#define SUM_ROWS 128      /* rows added before their sums are added by pairs */
#define MAX_PIECE 65536
#define MAX_TILE 256

/* Native vectors; lanes are 128 bytes on every ISA. */
#if defined __AVX512F__
#define VECTOR 64
#elif defined __AVX2__
#define VECTOR 32
#else
#define VECTOR 16
#endif

typedef struct reduction {
    const char *data;
    int size, natural, inner, divide;
    lksi_load_fn load;
    lksi_store_fn store;
    char *out; /* NULL: argmax */
    int out_size, out_natural;
    int64_t *index;
    int nr, nk;                                                /* dims reduced and kept, innermost last */
    int64_t rshape[LKS_MAX_DIMS + 1], rstride[LKS_MAX_DIMS + 1]; /* strides in elements of the input */
    int64_t kshape[LKS_MAX_DIMS + 1], kstride[LKS_MAX_DIMS + 1];
    int64_t ostride[2][LKS_MAX_DIMS + 1];                      /* of the outputs */
    int64_t kept, count;                                       /* outputs; inputs of each */
    int64_t rows, length, blocks;                              /* inner: rows of length in blocks. outer: rows */
    int64_t outer, tiles, chunks;                              /* outer: product of other kept dims, tiles of columns */
    int64_t fold, short_row; /* outer, few columns: so many rows are taken as one; the last holds short_row elements */
    void *part;
} reduction;

/* Walks a box; a, b and c are the offsets by three sets of strides. */
typedef struct odometer {
    int ndim;
    const int64_t *shape, *sa, *sb, *sc;
    int64_t index[LKS_MAX_DIMS + 1], a, b, c;
} odometer;

static void odometer_start3(odometer *o, int ndim, const int64_t *shape, const int64_t *sa, const int64_t *sb,
                            const int64_t *sc, int64_t at)
{
    o->ndim = ndim;
    o->shape = shape;
    o->sa = sa;
    o->sb = sb;
    o->sc = sc;
    o->a = o->b = o->c = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        o->index[d] = at ? at % shape[d] : 0;
        at = at ? at / shape[d] : 0;
        o->a += o->index[d] * sa[d];
        o->b += o->index[d] * sb[d];
        o->c += o->index[d] * sc[d];
    }
}

static void odometer_start(odometer *o, int ndim, const int64_t *shape, const int64_t *sa, const int64_t *sb,
                           int64_t at)
{
    odometer_start3(o, ndim, shape, sa, sb, sb, at);
}

static inline void odometer_next(odometer *o)
{
    for (int d = o->ndim - 1; d >= 0; d--) {
        o->a += o->sa[d];
        o->b += o->sb[d];
        o->c += o->sc[d];
        if (++o->index[d] < o->shape[d]) return;
        o->a -= o->index[d] * o->sa[d];
        o->b -= o->index[d] * o->sb[d];
        o->c -= o->index[d] * o->sc[d];
        o->index[d] = 0;
    }
}

#define T float
#define NAME(x) x##_f32
#define LANES 32
#define BITS int32_t
#define IS_NAN(x) lksi_is_nan_f32(x)
#define SUM 1
#define MAX 1
#define ABOVE(a, b) ((a) > (b))
#include "cpu/reduce_core.h"

#define T double
#define NAME(x) x##_f64
#define LANES 16
#define BITS int64_t
#define IS_NAN(x) lksi_is_nan_f64(x)
#define SUM 1
#define MAX 1
#define ABOVE(a, b) ((a) > (b))
#include "cpu/reduce_core.h"

/* Integers: sums wrap, so they are unsigned; largest elements are signed. */
#define T uint64_t
#define NAME(x) x##_i64
#define LANES 0
#define SUM 1
#define MAX 0
#include "cpu/reduce_core.h"

#define T int64_t
#define NAME(x) x##_i64
#define LANES 0
#define IS_NAN(x) 0
#define SUM 0
#define MAX 1
#define ABOVE(a, b) ((a) > (b))
#include "cpu/reduce_core.h"

#define T float
#define NAME(x) x##_min_f32
#define LANES 32
#define BITS int32_t
#define IS_NAN(x) lksi_is_nan_f32(x)
#define SUM 0
#define MAX 1
#define ABOVE(a, b) ((a) < (b))
#include "cpu/reduce_core.h"

#define T double
#define NAME(x) x##_min_f64
#define LANES 16
#define BITS int64_t
#define IS_NAN(x) lksi_is_nan_f64(x)
#define SUM 0
#define MAX 1
#define ABOVE(a, b) ((a) < (b))
#include "cpu/reduce_core.h"

#define T int64_t
#define NAME(x) x##_min_i64
#define LANES 0
#define IS_NAN(x) 0
#define SUM 0
#define MAX 1
#define ABOVE(a, b) ((a) < (b))
#include "cpu/reduce_core.h"

/* Sorts and merges x's dims; mask: the reduced ones. out, index: outputs with those dims removed or of size 1, or NULL.
 * Returns 0 if there is nothing to do (no outputs). */
static int describe(reduction *r, const lksi_view *x, int mask, int keepdim, const lksi_view *out,
                    const lksi_view *index,
                    int cls)
{
    int order[LKS_MAX_DIMS], n = 0;
    int64_t to[2][LKS_MAX_DIMS] = {{0}};
    memset(r, 0, sizeof *r);
    r->data = x->data;
    r->size = lksi_size_of[x->dtype];
    r->natural = lksi_is_natural(cls, x->dtype);
    r->load = LKSI_LOCAL(load)[cls][x->dtype];
    r->kept = r->count = 1;
    for (int d = 0, o = 0; d < x->ndim; d++) {
        int reduced = mask >> d & 1;
        if (!reduced) {
            to[0][d] = out ? out->stride[o] : 0;
            to[1][d] = index ? index->stride[o] : 0;
        }
        o += !reduced || keepdim;
        if (x->shape[d] == 0) {
            if (!reduced) return 0;
            r->count = 0;
        }
    }
    for (int d = 0; d < x->ndim; d++) {
        if (mask >> d & 1)
            r->count = r->count ? r->count * x->shape[d] : 0;
        else
            r->kept *= x->shape[d];
        if (x->shape[d] == 1) continue;
        /* Repeated elements count as the outermost dims. */
        int64_t s = x->stride[d];
        int at = n++;
        for (; at > 0; at--) {
            int64_t t = x->stride[order[at - 1]];
            if (s == 0 ? t == 0 : t == 0 || t >= s) break;
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
    int previous = -1; /* 1: reduced, 0: kept */
    for (int i = 0; i < n; i++) {
        int d = order[i], reduced = mask >> d & 1;
        int64_t size = x->shape[d], s = x->stride[d];
        if (reduced) {
            int m = r->nr - 1;
            if (previous == 1 && r->rstride[m] == s * size) {
                r->rshape[m] *= size;
                r->rstride[m] = s;
            } else {
                r->rshape[r->nr] = size;
                r->rstride[r->nr++] = s;
            }
        } else {
            int m = r->nk - 1;
            if (previous == 0 && r->kstride[m] == s * size && r->ostride[0][m] == to[0][d] * size &&
                r->ostride[1][m] == to[1][d] * size) {
                r->kshape[m] *= size;
                r->kstride[m] = s;
                r->ostride[0][m] = to[0][d];
                r->ostride[1][m] = to[1][d];
            } else {
                r->kshape[r->nk] = size;
                r->kstride[r->nk] = s;
                r->ostride[0][r->nk] = to[0][d];
                r->ostride[1][r->nk++] = to[1][d];
            }
        }
        previous = reduced;
    }
    r->inner = previous != 0;
    if (r->nr == 0) {
        r->rshape[0] = 1;
        r->rstride[0] = 1;
        r->nr = 1;
    }
    r->length = r->rshape[r->nr - 1];
    r->rows = 1;
    return 1;
}

static void plan_sum(reduction *r)
{
    r->fold = 1;
    if (r->inner) {
        for (int d = 0; d < r->nr - 1; d++) r->rows *= r->rshape[d];
        r->blocks = (r->length + SUM_BLOCK - 1) / SUM_BLOCK;
        return;
    }
    int64_t columns = r->kshape[r->nk - 1], *size = &r->rshape[r->nr - 1], *stride = &r->rstride[r->nr - 1];
    if (columns <= SUM_TILE / 4 && r->kstride[r->nk - 1] == 1 && *stride == columns && *size >= 8) {
        r->fold = SUM_TILE / columns < *size ? SUM_TILE / columns : *size;
        r->short_row = *size % r->fold * columns;
        *size = (*size + r->fold - 1) / r->fold;
        *stride *= r->fold;
    }
    for (int d = 0; d < r->nr; d++) r->rows *= r->rshape[d];
    r->outer = r->kept / columns;
    r->tiles = (r->fold * columns + SUM_TILE - 1) / SUM_TILE;
    r->chunks = (r->rows + SUM_ROWS - 1) / SUM_ROWS;
}

static lks_status sum_or_mean(lksi_cpu *cpu, const lksi_args *a, int mean)
{
    reduction r;
    lks_status s;
    const lksi_view *out = &a->out[0];
    int cls = lksi_class_of[out->dtype];
    if (!describe(&r, &a->in[0], a->attr.reduce.mask, a->attr.reduce.keepdim, out, NULL, cls)) return LKS_OK;
    r.out = out->data;
    r.out_size = lksi_size_of[out->dtype];
    r.out_natural = lksi_is_natural(cls, out->dtype);
    r.store = LKSI_LOCAL(store)[cls][out->dtype];
    r.divide = mean;
    if (r.count == 0) {
        LKSI_LOCAL(fill)(cpu, out, mean ? lksi_float_f64(0x7ff8000000000000u) : 0.0);
        return LKS_OK;
    }
    plan_sum(&r);
    if (cls == LKSI_CLASS_F32)
        s = r.inner ? sum_inner_f32(cpu, &r) : sum_outer_f32(cpu, &r);
    else if (cls == LKSI_CLASS_F64)
        s = r.inner ? sum_inner_f64(cpu, &r) : sum_outer_f64(cpu, &r);
    else
        s = r.inner ? sum_inner_i64(cpu, &r) : sum_outer_i64(cpu, &r);
    return s == LKS_OK ? s : lksi_why(a, s, "no memory for partial sums");
}

/* The real parts, then the imaginary ones, each as a tensor of its own. */
static lks_status sum_of_parts(lksi_cpu *cpu, const lksi_args *a, int mean)
{
    if (!lks_dtype_is_complex(a->in[0].dtype)) return sum_or_mean(cpu, a, mean);
    lks_status s = LKS_OK;
    for (int part = 0; part < 2 && s == LKS_OK; part++) {
        lksi_args p = *a;
        lksi_view v[2] = {a->in[0], a->out[0]};
        for (int i = 0; i < 2; i++) {
            v[i].dtype = v[i].dtype == LKS_C64 ? LKS_F32 : LKS_F64;
            v[i].data = (char *)v[i].data + part * lksi_size_of[v[i].dtype];
            for (int d = 0; d < v[i].ndim; d++) v[i].stride[d] *= 2;
        }
        p.in = &v[0];
        p.out = &v[1];
        s = sum_or_mean(cpu, &p, mean);
    }
    return s;
}

LKSI_KERNEL(sum) { return sum_of_parts(cpu, a, 0); }
LKSI_KERNEL(mean) { return sum_of_parts(cpu, a, 1); }

static lks_status extreme_along(lksi_cpu *cpu, const lksi_args *a, int min, const lksi_view *values,
                                const lksi_view *index)
{
    reduction r;
    lks_status s;
    int cls = lksi_class_of[a->in[0].dtype], mask = a->in[0].ndim ? 1 << a->attr.dim.dim : 0;
    if (!describe(&r, &a->in[0], mask, a->attr.dim.keepdim, values, index, cls)) return LKS_OK;
    if (values) {
        r.out = values->data;
        r.out_size = lksi_size_of[values->dtype];
        r.store = LKSI_LOCAL(store)[cls][values->dtype];
    }
    r.index = index->data;
    if (min)
        s = cls == LKSI_CLASS_F32   ? max_min_f32(cpu, &r)
            : cls == LKSI_CLASS_F64 ? max_min_f64(cpu, &r)
                                    : max_min_i64(cpu, &r);
    else
        s = cls == LKSI_CLASS_F32 ? max_f32(cpu, &r) : cls == LKSI_CLASS_F64 ? max_f64(cpu, &r) : max_i64(cpu, &r);
    return s == LKS_OK ? s : lksi_why(a, s, "no memory for partial results");
}

LKSI_KERNEL(max) { return extreme_along(cpu, a, 0, &a->out[0], &a->out[1]); }
LKSI_KERNEL(min) { return extreme_along(cpu, a, 1, &a->out[0], &a->out[1]); }
LKSI_KERNEL(argmax) { return extreme_along(cpu, a, 0, NULL, &a->out[0]); }

#include "cpu/stat_core.h"

static const double nothing = __builtin_nan("");
static int whole(const lksi_args *a) { return lksi_class_of[a->out[0].dtype] == LKSI_CLASS_I64; }

LKSI_KERNEL(var) { return stat_reduce(cpu, a, STAT_VAR, a->attr.reduce.p, nothing); }
LKSI_KERNEL(std) { return stat_reduce(cpu, a, STAT_STD, a->attr.reduce.p, nothing); }
LKSI_KERNEL(prod) { return stat_reduce(cpu, a, whole(a) ? STAT_INT_PROD : STAT_PROD, 0, 1); }
LKSI_KERNEL(amax) { return stat_reduce(cpu, a, whole(a) ? STAT_INT_MAX : STAT_MAX, 0, nothing); }
LKSI_KERNEL(amin) { return stat_reduce(cpu, a, whole(a) ? STAT_INT_MIN : STAT_MIN, 0, nothing); }
LKSI_KERNEL(all) { return stat_reduce(cpu, a, STAT_ALL, 0, 1); }
LKSI_KERNEL(any) { return stat_reduce(cpu, a, STAT_ANY, 0, 0); }
LKSI_KERNEL(norm)
{
    double p = a->attr.reduce.p;
    enum stat what = p == 2   ? STAT_ROOT
                     : p == 1 ? STAT_SUM_ABS
                     : p == 0 ? STAT_COUNT
                     : p == HUGE_VAL  ? STAT_MAX_ABS
                     : p == -HUGE_VAL ? STAT_MIN_ABS
                                      : STAT_POWER;
    return stat_reduce(cpu, a, what, p, 0);
}

/* --- index_fill_backward ------------------------------------------------------------------------------------------ */

typedef struct scatter {
    const lksi_view *dy, *index;
    const lksi_view *dx;
    int dim, size;
    int64_t reach;
    int bad; /* set by any thread */
} scatter;

static void scatter_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    scatter *s = arg;
    odometer o;
    odometer_start3(&o, s->dy->ndim, s->dy->shape, s->dy->stride, s->index->stride, s->dx->stride, begin);
    for (int64_t i = begin; i < end; i++, odometer_next(&o)) {
        int64_t at = ((const int64_t *)s->index->data)[o.b];
        if (at < 0 || at >= s->reach) {
            __atomic_store_n(&s->bad, 1, __ATOMIC_RELAXED);
            continue;
        }
        char *to = (char *)s->dx->data + (o.c + at * s->dx->stride[s->dim]) * s->size;
        memcpy(to, (const char *)s->dy->data + o.a * s->size, (size_t)s->size);
    }
}

LKSI_KERNEL(index_fill_backward)
{
    scatter s = {.dy = &a->in[0],
                 .index = &a->in[1],
                 .dx = &a->out[0],
                 .dim = a->attr.slice.dim,
                 .size = lksi_size_of[a->out[0].dtype],
                 .reach = a->attr.slice.size};
    int64_t n = lksi_count(&a->in[0]);
    LKSI_LOCAL(fill)(cpu, &a->out[0], 0.0);
    lksi_parallel(cpu, n, LKSI_GRAIN / 4, scatter_range, &s);
    if (s.bad) return lksi_why(a, LKS_ERR_ARGUMENT, "an index is outside [0, %lld)", (long long)s.reach);
    return LKS_OK;
}
