/* SPDX-License-Identifier: BSD-3-Clause
 *
 * norm.c - layer_norm, rms_norm, group_norm and batch_norm with their backward rows: memory, splitting over workers,
 * dtypes. The arithmetic is in norm_real.h. Sums are taken in blocks that depend on shapes only, and joined in order.
 */
#include "cpu/rows.h"

#include <math.h>

static const lksi_view absent = {.ndim = -1};

static const lksi_view *input(const lksi_args *a, int i)
{
    return i < a->nin ? &a->in[i] : &absent;
}

static int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Items of `work` elements each: how many make a piece worth a worker. */
static int64_t grain_of(int64_t work)
{
    return at_least(1, 16384 / at_least(1, work));
}

/* --- layer norm --- */

enum { NORM_BLOCK = 64, NORM_BLOCKS = 256 }; /* rows of a block at least, blocks at most */

typedef struct layer_norm {
    lksi_rowset x, y, dy, dw, db; /* backward: y is dx */
    lksi_rowset there, low;       /* backward: what is added to dx, dx in another dtype; data NULL: neither */
    const lksi_view *mean, *rstd;
    const void *w, *b; /* [n] of REAL, NULL if absent */
    double eps;
    int64_t block, blocks; /* rows per block, blocks */
    void *partial;         /* [blocks, 2, n] of REAL */
    char *scratch;         /* per worker */
    int64_t scratch_each, room; /* bytes; elements of a row's buffer */
} layer_norm;

/* --- batch norm --- */

/* Elements of a piece of a plane, of a block of rows; superblocks at most. */
enum { PIECE = 4096, BLOCK = 8192, SUPERS = 64 };

typedef struct moments { double n, mean, m2; } moments;

/* Chan, Golub & LeVeque (1983). */
static inline void moments_join(moments *a, double n, double mean, double m2)
{
    double total = a->n + n, delta = mean - a->mean;
    if (a->n == 0) {
        *a = (moments){n, mean, m2};
        return;
    }
    if (n == 0) return;
    a->mean += delta * (n / total);
    a->m2 += m2 + delta * delta * (a->n * n / total);
    a->n = total;
}

typedef struct batch_norm {
    lksi_rowset x, y, dy; /* rows are channels (planes) or positions (columns); backward: y is dx */
    const lksi_args *a;
    const lksi_view *weight, *bias;
    int training, measured;         /* measured: mean and scale are known already */
    double total;                   /* elements of a channel over all ranks */
    int64_t channels, count, plane; /* count: elements of a channel */
    double *mean, *scale, *shift;   /* [C] each */
    double *lo, *c1, *c2;           /* [C] each, backward */
    int64_t block, super, supers;   /* columns: rows of a block, of a superblock */
    double *stats;                  /* where a row that only measures puts it; NULL */
    moments *moments;               /* [supers, C] */
    double *sums;                   /* [supers, 3, C] */
    char *scratch;
    int64_t scratch_each;
} batch_norm;

static double entry(const lksi_view *v, int64_t c)
{
    return lksi_get(v->data, v->dtype, c * v->stride[0]);
}

static void put_entry(const lksi_view *v, int64_t c, double value)
{
    lksi_put(v->data, v->dtype, c * v->stride[0], value);
}

/* What forward uses of channel c, from its statistics. */
static void batch_norm_use(const batch_norm *s, int64_t c, double mean, double var)
{
    double rstd = 1 / sqrt(var + s->a->attr.batch_norm.eps);
    s->mean[c] = mean;
    s->scale[c] = rstd * (s->weight->ndim < 0 ? 1 : entry(s->weight, c));
    s->shift[c] = s->bias->ndim < 0 ? 0 : entry(s->bias, c);
    put_entry(&s->a->out[1], c, mean);
    put_entry(&s->a->out[2], c, rstd);
}

/* Batch statistics of channel c are known: used, and staged. */
static void batch_norm_set(const batch_norm *s, int64_t c, double mean, double m2)
{
    double n = s->total, m = s->a->attr.batch_norm.momentum, var = n > 0 ? m2 / n : 0;
    const lksi_view *staged_mean = input(s->a, 5), *staged_var = input(s->a, 6);
    batch_norm_use(s, c, mean, var);
    if (staged_mean->ndim < 0 || n == 0) return;
    put_entry(staged_mean, c, (1 - m) * entry(staged_mean, c) + m * mean);
    put_entry(staged_var, c, (1 - m) * entry(staged_var, c) + m * (n > 1 ? m2 / (n - 1) : var));
}

/* Element k of what batch_norm_sums gave for channel c: this rank's (input 5) or that of all (input 6). */
static double sum_entry(const batch_norm *s, int i, int k, int64_t c)
{
    const lksi_view *v = &s->a->in[i];
    return ((const double *)v->data)[k * v->stride[0] + c * v->stride[1]];
}

/* Backward: sums over channel c of d = x - mean, dy and dy d are known. Over several ranks their sums make dx, this
 * rank's own dweight and dbias, which are added up like any gradient. */
static void batch_norm_coefficients(const batch_norm *s, int64_t c, double sd, double sg, double sgd)
{
    double n = s->total > 1 ? s->total : 1, rstd = entry(&s->a->in[4], c);
    double own_sg = sg, own_sgd = sgd;
    if (s->measured) {
        own_sg = sum_entry(s, 5, 1, c), own_sgd = sum_entry(s, 5, 2, c);
        sd = sum_entry(s, 6, 0, c), sg = sum_entry(s, 6, 1, c), sgd = sum_entry(s, 6, 2, c);
    }
    double lo = s->training ? sd / n : 0; /* what the stored mean misses */
    double sgx = (sgd - lo * sg) * rstd;
    s->lo[c] = lo;
    s->c1[c] = sg / n;
    s->c2[c] = sgx / n * rstd;
    s->scale[c] = rstd * (s->weight->ndim < 0 ? 1 : entry(s->weight, c));
    if (s->weight->ndim >= 0) put_entry(&s->a->out[1], c, (own_sgd - lo * own_sg) * rstd);
    put_entry(&s->a->out[2], c, own_sg);
}

/* Channel c was measured: the end of it, or used. */
static void batch_norm_found(const batch_norm *s, int64_t c, const moments *m)
{
    if (s->stats) s->stats[1 + c] = m->mean, s->stats[1 + s->channels + c] = m->m2;
    else batch_norm_set(s, c, m->mean, m->m2);
}

static void batch_norm_summed(const batch_norm *s, int64_t c, double sd, double sg, double sgd)
{
    if (!s->stats) {
        batch_norm_coefficients(s, c, sd, sg, sgd);
        return;
    }
    s->stats[c] = sd;
    s->stats[s->channels + c] = sg;
    s->stats[2 * s->channels + c] = sgd;
}

/* --- group norm --- */

typedef struct group_norm {
    lksi_rowset x, y, dy; /* rows are planes [N C], or positions [N P] of C; backward: y is dx */
    const lksi_args *a;
    const lksi_view *weight, *bias, *mean, *rstd;
    int64_t images, channels, groups, each, plane; /* each: channels of a group */
    int columns;                                   /* channels are adjacent in memory */
    double *sums, *lo;                             /* backward: [N, C] of sums of d, dy, dy d; [N, G] */
    int64_t block, super, supers;                  /* columns: as in batch_norm, within an image */
    char *scratch, *own;                           /* per worker: rows; statistics of channels */
    int64_t scratch_each, own_each;
} group_norm;

static double group_entry(const lksi_view *v, int64_t group) /* [N, G], dense */
{
    return lksi_get(v->data, v->dtype, group);
}

/* One image as a batch norm sees it, with memory of this worker for what it finds. */
static batch_norm group_image(const group_norm *s, int64_t n, int worker)
{
    double *own = (double *)(void *)(s->own + worker * s->own_each);
    batch_norm b = {.x = s->x, .y = s->y, .dy = s->dy, .channels = s->channels, .count = s->plane, .plane = s->plane,
                    .mean = own, .scale = own + s->channels, .shift = own + 2 * s->channels, .block = s->block,
                    .super = s->super, .supers = s->supers, .sums = own + 3 * s->channels, .scratch = s->scratch,
                    .scratch_each = s->scratch_each};
    b.moments = (moments *)(void *)b.sums;
    if (s->plane == 0) return b;
    b.x.data += lksi_rowset_offset(&s->x, n * s->plane) * s->x.size;
    b.y.data += lksi_rowset_offset(&s->y, n * s->plane) * s->y.size;
    if (s->dy.data) b.dy.data += lksi_rowset_offset(&s->dy, n * s->plane) * s->dy.size;
    return b;
}

/* Group g of image n is known: mean, and rstd from its squared deviations. */
static double group_set(const group_norm *s, int64_t group, double mean, double m2)
{
    double count = (double)s->each * (double)s->plane;
    double rstd = 1 / sqrt((count > 0 ? m2 / count : 0) + s->a->attr.norm.eps);
    lksi_put(s->mean->data, s->mean->dtype, group, mean);
    lksi_put(s->rstd->data, s->rstd->dtype, group, rstd);
    return rstd;
}

static double group_weight(const group_norm *s, int64_t c)
{
    return s->weight->ndim < 0 ? 1 : lksi_get(s->weight->data, s->weight->dtype, c * s->weight->stride[0]);
}

static double group_bias(const group_norm *s, int64_t c)
{
    return s->bias->ndim < 0 ? 0 : lksi_get(s->bias->data, s->bias->dtype, c * s->bias->stride[0]);
}

/* Backward, with the sums of the channels of a group known: dx = dy w rstd - (x - hi) b - e. */
static void group_coefficients(const group_norm *s, int64_t n, int64_t g, double *b, double *e)
{
    double sd = 0, sg = 0, sgd = 0, count = (double)s->each * (double)s->plane;
    int64_t group = n * s->groups + g;
    double rstd = group_entry(s->rstd, group);
    for (int64_t c = g * s->each; c < (g + 1) * s->each; c++) {
        const double *p = s->sums + (n * s->channels + c) * 3;
        double w = group_weight(s, c);
        sd += p[0];
        sg += w * p[1];
        sgd += w * p[2];
    }
    if (count < 1) count = 1;
    double lo = sd / count; /* what the stored mean misses */
    s->lo[group] = lo;
    *b = (sgd - lo * sg) * rstd / count * rstd * rstd;
    *e = sg / count * rstd - lo * *b;
}

#define REAL float
#define F(name) name##_f
#define REAL_DTYPE LKS_F32
#include "cpu/norm_real.h"
#undef REAL
#undef F
#undef REAL_DTYPE
#define REAL double
#define F(name) name##_d
#define REAL_DTYPE LKS_F64
#include "cpu/norm_real.h"
#undef REAL
#undef F
#undef REAL_DTYPE

static lks_status no_memory(const lksi_args *a)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
}

/* weight or bias as REAL: in place or in buffer. */
static const void *parameter(const lksi_view *v, int dbl, void *buffer)
{
    if (v->ndim < 0) return NULL;
    lksi_rowset r = lksi_rowset_of(v, ~0u);
    if (r.n == 0) return buffer;
    return dbl ? (const void *)rows_load_d(&r, 0, buffer) : (const void *)rows_load_f(&r, 0, buffer);
}

static unsigned last_dims(const lksi_view *x, int k)
{
    return (~0u << (x->ndim - k)) & ((1u << x->ndim) - 1);
}

/* Scratch common to both directions: `buffers` rows per worker, two parameters. */
static int layer_norm_memory(lksi_cpu *cpu, layer_norm *l, int dbl, int buffers, const lksi_view *weight,
                             const lksi_view *bias)
{
    int64_t real = dbl ? 8 : 4;
    l->room = (l->x.n + 15) / 16 * 16;
    l->scratch_each = buffers * l->room * real;
    l->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * l->scratch_each + 64);
    char *p = lksi_scratch(cpu, -1, 1, 2 * l->room * real + 64);
    if (!l->scratch || !p) return 0;
    l->w = parameter(weight, dbl, p);
    l->b = parameter(bias, dbl, p + l->room * real);
    return 1;
}

static void more_of_dx(layer_norm *l, const lksi_view *there, const lksi_view *low, unsigned mask)
{
    if (there->ndim >= 0) l->there = lksi_rowset_of(there, mask);
    if (low->ndim >= 0) l->low = lksi_rowset_of(low, mask);
}

LKSI_KERNEL(layer_norm)
{
    const lksi_view *x = &a->in[0];
    unsigned mask = last_dims(x, a->attr.norm.ndims);
    int dbl = x->dtype == LKS_F64;
    layer_norm l = {.x = lksi_rowset_of(x, mask),
                    .y = lksi_rowset_of(&a->out[0], mask),
                    .mean = &a->out[1],
                    .rstd = &a->out[2],
                    .eps = a->attr.norm.eps};
    if (!layer_norm_memory(cpu, &l, dbl, 2, input(a, 1), input(a, 2))) return no_memory(a);
    lksi_parallel(cpu, l.x.rows, grain_of(l.x.n), dbl ? layer_norm_rows_d : layer_norm_rows_f, &l);
    return LKS_OK;
}

LKSI_KERNEL(layer_norm_backward)
{
    const lksi_view *x = &a->in[1], *weight = &a->in[2];
    unsigned mask = last_dims(x, a->attr.norm.ndims);
    int dbl = x->dtype == LKS_F64;
    layer_norm l = {.x = lksi_rowset_of(x, mask),
                    .dy = lksi_rowset_of(&a->in[0], mask),
                    .y = lksi_rowset_of(&a->out[0], mask),
                    .mean = &a->in[3],
                    .rstd = &a->in[4]};
    l.block = at_least(NORM_BLOCK, (l.x.rows + NORM_BLOCKS - 1) / NORM_BLOCKS);
    l.blocks = (l.x.rows + l.block - 1) / l.block;
    more_of_dx(&l, input(a, 5), a->attr.norm.low ? &a->out[3] : &absent, mask);
    if (!layer_norm_memory(cpu, &l, dbl, 4, weight, &absent)) return no_memory(a);
    if (weight->ndim >= 0) l.dw = lksi_rowset_of(&a->out[1], ~0u);
    l.db = lksi_rowset_of(&a->out[2], ~0u);
    l.partial = lksi_scratch(cpu, -1, 2, l.blocks * 2 * l.x.n * (dbl ? 8 : 4) + 64);
    if (!l.partial) return no_memory(a);
    lksi_parallel(cpu, l.blocks, grain_of(l.x.n * l.block), dbl ? layer_norm_back_d : layer_norm_back_f, &l);
    lksi_parallel(cpu, l.x.n, at_least(64, grain_of(l.blocks)), dbl ? layer_norm_join_d : layer_norm_join_f, &l);
    return LKS_OK;
}

/* --- RMS norm: a layer norm without a mean and without bias --- */

LKSI_KERNEL(rms_norm)
{
    const lksi_view *x = &a->in[0];
    unsigned mask = last_dims(x, a->attr.norm.ndims);
    int dbl = x->dtype == LKS_F64;
    layer_norm l = {.x = lksi_rowset_of(x, mask),
                    .y = lksi_rowset_of(&a->out[0], mask),
                    .rstd = &a->out[1],
                    .eps = a->attr.norm.eps};
    if (!layer_norm_memory(cpu, &l, dbl, 2, input(a, 1), &absent)) return no_memory(a);
    lksi_parallel(cpu, l.x.rows, grain_of(l.x.n), dbl ? rms_norm_rows_d : rms_norm_rows_f, &l);
    return LKS_OK;
}

LKSI_KERNEL(rms_norm_backward)
{
    const lksi_view *x = &a->in[1], *weight = &a->in[2];
    unsigned mask = last_dims(x, a->attr.norm.ndims);
    int dbl = x->dtype == LKS_F64;
    layer_norm l = {.x = lksi_rowset_of(x, mask),
                    .dy = lksi_rowset_of(&a->in[0], mask),
                    .y = lksi_rowset_of(&a->out[0], mask),
                    .rstd = &a->in[3]};
    l.block = at_least(NORM_BLOCK, (l.x.rows + NORM_BLOCKS - 1) / NORM_BLOCKS);
    l.blocks = (l.x.rows + l.block - 1) / l.block;
    more_of_dx(&l, input(a, 4), a->attr.norm.low ? &a->out[2] : &absent, mask);
    if (!layer_norm_memory(cpu, &l, dbl, 4, weight, &absent)) return no_memory(a);
    if (weight->ndim >= 0) l.dw = lksi_rowset_of(&a->out[1], ~0u);
    l.partial = lksi_scratch(cpu, -1, 2, l.blocks * 2 * l.x.n * (dbl ? 8 : 4) + 64);
    if (!l.partial) return no_memory(a);
    lksi_parallel(cpu, l.blocks, grain_of(l.x.n * l.block), dbl ? rms_norm_back_d : rms_norm_back_f, &l);
    lksi_parallel(cpu, l.x.n, at_least(64, grain_of(l.blocks)), dbl ? layer_norm_join_d : layer_norm_join_f, &l);
    return LKS_OK;
}

/* --- group norm --- */

/* A channel's share in dweight and dbias: images in order. */
static void group_join(void *arg, int64_t begin, int64_t end, int worker)
{
    const group_norm *s = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        double dw = 0, db = 0;
        for (int64_t n = 0; n < s->images; n++) {
            const double *p = s->sums + (n * s->channels + c) * 3;
            int64_t g = n * s->groups + c / s->each;
            dw += (p[2] - s->lo[g] * p[1]) * group_entry(s->rstd, g);
            db += p[1];
        }
        if (s->weight->ndim >= 0) put_entry(&s->a->out[1], c, dw);
        put_entry(&s->a->out[2], c, db);
    }
}

static int group_norm_memory(lksi_cpu *cpu, group_norm *s, const lksi_view *x, const lksi_view *y,
                             const lksi_view *dy)
{
    int64_t c = x->shape[1], workers = lksi_cpu_workers(cpu);
    s->images = x->shape[0];
    s->channels = c;
    s->groups = s->a->attr.norm.groups;
    s->each = c / s->groups;
    s->plane = 1;
    for (int d = 2; d < x->ndim; d++) s->plane *= x->shape[d];
    s->columns = c > 1 && x->stride[1] == 1;
    unsigned all = (1u << x->ndim) - 1, mask = s->columns ? 2u : all & ~3u;
    s->x = lksi_rowset_of(x, mask);
    s->y = lksi_rowset_of(y, mask);
    if (dy) s->dy = lksi_rowset_of(dy, mask);
    if (dy) {
        s->sums = lksi_scratch(cpu, -1, 2, (3 * s->images * c + s->images * s->groups) * 8 + 64);
        if (!s->sums) return 0;
        s->lo = s->sums + 3 * s->images * c;
    }
    s->block = at_least(4, BLOCK / at_least(1, c));
    s->super = at_least(1, (s->plane + s->block * SUPERS - 1) / (s->block * SUPERS)) * s->block;
    s->supers = (s->plane + s->super - 1) / s->super;
    int64_t real = x->dtype == LKS_F64 ? 8 : 4;
    s->scratch_each = s->columns ? (3 * s->block + 9) * c * real : 3 * PIECE * real;
    s->scratch_each = (s->scratch_each + 63) / 64 * 64;
    s->own_each = s->columns ? (3 * c + at_least(1, s->supers) * 3 * c) * 8 : 0;
    s->scratch = lksi_scratch(cpu, -1, 0, workers * s->scratch_each + 64);
    s->own = lksi_scratch(cpu, -1, 1, workers * s->own_each + 64);
    return s->scratch && s->own;
}

LKSI_KERNEL(group_norm)
{
    const lksi_view *x = &a->in[0];
    int dbl = x->dtype == LKS_F64;
    group_norm s = {.a = a, .weight = input(a, 1), .bias = input(a, 2), .mean = &a->out[1], .rstd = &a->out[2]};
    if (!group_norm_memory(cpu, &s, x, &a->out[0], NULL)) return no_memory(a);
    if (s.columns)
        lksi_parallel(cpu, s.images, grain_of(s.plane * s.channels), dbl ? group_columns_d : group_columns_f, &s);
    else
        lksi_parallel(cpu, s.images * s.groups, grain_of(s.plane * s.each), dbl ? group_planes_d : group_planes_f, &s);
    return LKS_OK;
}

LKSI_KERNEL(group_norm_backward)
{
    const lksi_view *x = &a->in[1];
    int dbl = x->dtype == LKS_F64;
    group_norm s = {.a = a, .weight = &a->in[2], .bias = &absent, .mean = &a->in[3], .rstd = &a->in[4]};
    if (!group_norm_memory(cpu, &s, x, &a->out[0], &a->in[0])) return no_memory(a);
    if (s.columns)
        lksi_parallel(cpu, s.images, grain_of(s.plane * s.channels),
                      dbl ? group_columns_back_d : group_columns_back_f, &s);
    else
        lksi_parallel(cpu, s.images * s.groups, grain_of(s.plane * s.each),
                      dbl ? group_planes_back_d : group_planes_back_f, &s);
    lksi_parallel(cpu, s.channels, grain_of(s.images * 4), group_join, &s);
    return LKS_OK;
}

/* --- batch norm --- */

/* Rows, layout and scratch of a batch norm over x. columns: channels are adjacent in memory. */
static int batch_norm_memory(lksi_cpu *cpu, batch_norm *s, const lksi_view *x, const lksi_view *y, const lksi_view *dy,
                             int *columns)
{
    int64_t real = x->dtype == LKS_F64 ? 8 : 4, c = x->shape[1];
    *columns = c > 1 && x->stride[1] == 1;
    unsigned all = (1u << x->ndim) - 1, mask = *columns ? 2u : all & ~2u;
    s->x = lksi_rowset_of(x, mask);
    s->y = lksi_rowset_of(y, mask);
    if (dy) s->dy = lksi_rowset_of(dy, mask);
    s->channels = c;
    s->count = *columns ? s->x.rows : s->x.n;
    s->total = (double)s->count;
    s->plane = 1;
    for (int d = 2; d < x->ndim; d++) s->plane *= x->shape[d];
    double *p = lksi_scratch(cpu, -1, 1, 6 * c * 8 + 64);
    if (!p) return 0;
    s->mean = p;
    s->scale = p + c;
    s->shift = p + 2 * c;
    s->lo = p + 3 * c;
    s->c1 = p + 4 * c;
    s->c2 = p + 5 * c;
    s->block = at_least(4, BLOCK / at_least(1, c));
    s->super = at_least(1, (s->count + s->block * SUPERS - 1) / (s->block * SUPERS)) * s->block;
    s->supers = (s->count + s->super - 1) / s->super;
    s->scratch_each = *columns ? (3 * s->block + 9) * c * real : 3 * PIECE * real;
    s->scratch_each = (s->scratch_each + 63) / 64 * 64;
    s->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s->scratch_each + 64);
    if (*columns) {
        s->sums = lksi_scratch(cpu, -1, 2, s->supers * 3 * c * 8 + 64);
        s->moments = (moments *)(void *)s->sums;
        if (!s->sums) return 0;
    }
    return s->scratch != NULL;
}

/* Channels [begin, end): superblocks joined in order. */
static void join_stats(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        moments m = {0, 0, 0};
        for (int64_t i = 0; i < s->supers; i++) {
            const moments *p = &s->moments[i * s->channels + c];
            moments_join(&m, p->n, p->mean, p->m2);
        }
        batch_norm_found(s, c, &m);
    }
}

static void join_sums(void *arg, int64_t begin, int64_t end, int worker)
{
    const batch_norm *s = arg;
    int64_t n = s->channels;
    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        double sd = 0, sg = 0, sgd = 0;
        for (int64_t i = 0; i < s->supers; i++) {
            const double *p = s->sums + i * 3 * n + c;
            sd += p[0];
            sg += p[n];
            sgd += p[2 * n];
        }
        batch_norm_summed(s, c, sd, sg, sgd);
    }
}

/* What one rank found, or all: row `rank` of [ranks, 1 + 2 C]. */
static double measure(const lksi_view *v, int64_t rank, int64_t i)
{
    return ((const double *)v->data)[rank * v->stride[0] + i * v->stride[1]];
}

static double measured_total(const lksi_view *v)
{
    double n = 0;
    for (int64_t r = 0; r < v->shape[0]; r++) n += measure(v, r, 0);
    return n;
}

/* Joins what the ranks measured, in their order. */
static void batch_norm_measured(batch_norm *s, const lksi_view *v)
{
    s->total = measured_total(v);
    s->measured = 1;
    for (int64_t c = 0; c < s->channels; c++) {
        moments m = {0, 0, 0};
        for (int64_t r = 0; r < v->shape[0]; r++)
            moments_join(&m, measure(v, r, 0), measure(v, r, 1 + c), measure(v, r, 1 + s->channels + c));
        batch_norm_set(s, c, m.mean, m.m2);
    }
}

/* Training writes staged_mean and staged_var (inputs 5 and 6) in place. */
LKSI_KERNEL(batch_norm)
{
    const lksi_view *x = &a->in[0], *measured = input(a, 7);
    int dbl = x->dtype == LKS_F64, columns;
    batch_norm s = {
        .a = a, .weight = input(a, 1), .bias = input(a, 2), .training = a->attr.batch_norm.training != 0};
    if (!batch_norm_memory(cpu, &s, x, &a->out[0], NULL, &columns)) return no_memory(a);
    if (!s.training)
        for (int64_t c = 0; c < s.channels; c++)
            batch_norm_use(&s, c, entry(&a->in[3], c), entry(&a->in[4], c));
    if (s.training && measured->ndim >= 0) batch_norm_measured(&s, measured);
    if (!columns) {
        lksi_parallel(cpu, s.channels, grain_of(s.count), dbl ? planes_d : planes_f, &s);
        return LKS_OK;
    }
    if (s.training && !s.measured) {
        lksi_parallel(cpu, s.supers, grain_of(s.super * s.channels), dbl ? columns_stats_d : columns_stats_f, &s);
        lksi_parallel(cpu, s.channels, grain_of(s.supers), join_stats, &s);
    }
    lksi_parallel(cpu, s.count, grain_of(s.channels), dbl ? columns_apply_d : columns_apply_f, &s);
    return LKS_OK;
}

LKSI_KERNEL(batch_norm_backward)
{
    const lksi_view *x = &a->in[1], *measured = input(a, 7);
    int dbl = x->dtype == LKS_F64, columns;
    batch_norm s = {.a = a, .weight = &a->in[2], .bias = &absent, .training = a->attr.batch_norm.training != 0};
    if (!batch_norm_memory(cpu, &s, x, &a->out[0], &a->in[0], &columns)) return no_memory(a);
    if (measured->ndim >= 0) {
        s.total = measured_total(measured);
        s.measured = 1;
    }
    for (int64_t c = 0; c < s.channels; c++) s.mean[c] = entry(&a->in[3], c);
    if (!columns) {
        lksi_parallel(cpu, s.channels, grain_of(s.count), dbl ? planes_back_d : planes_back_f, &s);
        return LKS_OK;
    }
    if (s.measured) {
        for (int64_t c = 0; c < s.channels; c++) batch_norm_coefficients(&s, c, 0, 0, 0);
    } else {
        lksi_parallel(cpu, s.supers, grain_of(s.super * s.channels), dbl ? columns_sums_d : columns_sums_f, &s);
        lksi_parallel(cpu, s.channels, grain_of(s.supers), join_sums, &s);
    }
    lksi_parallel(cpu, s.count, grain_of(s.channels), dbl ? columns_back_d : columns_back_f, &s);
    return LKS_OK;
}

LKSI_KERNEL(batch_norm_stats)
{
    const lksi_view *x = &a->in[0];
    int dbl = x->dtype == LKS_F64, columns;
    batch_norm s = {.a = a};
    if (!batch_norm_memory(cpu, &s, x, x, NULL, &columns)) return no_memory(a);
    s.stats = a->out[0].data;
    s.stats[0] = s.total;
    if (!columns) {
        lksi_parallel(cpu, s.channels, grain_of(s.count), dbl ? planes_stats_d : planes_stats_f, &s);
        return LKS_OK;
    }
    lksi_parallel(cpu, s.supers, grain_of(s.super * s.channels), dbl ? columns_stats_d : columns_stats_f, &s);
    lksi_parallel(cpu, s.channels, grain_of(s.supers), join_stats, &s);
    return LKS_OK;
}

LKSI_KERNEL(batch_norm_sums)
{
    const lksi_view *x = &a->in[1];
    int dbl = x->dtype == LKS_F64, columns;
    batch_norm s = {.a = a};
    if (!batch_norm_memory(cpu, &s, x, x, &a->in[0], &columns)) return no_memory(a);
    s.stats = a->out[0].data;
    for (int64_t c = 0; c < s.channels; c++) s.mean[c] = entry(&a->in[2], c);
    if (!columns) {
        lksi_parallel(cpu, s.channels, grain_of(s.count), dbl ? planes_sums_d : planes_sums_f, &s);
        return LKS_OK;
    }
    lksi_parallel(cpu, s.supers, grain_of(s.super * s.channels), dbl ? columns_sums_d : columns_sums_f, &s);
    lksi_parallel(cpu, s.channels, grain_of(s.supers), join_sums, &s);
    return LKS_OK;
}
