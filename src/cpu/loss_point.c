/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_point.c - pointwise losses and their derivatives: one loop per formula of table/loss.h and form, one driver for
 * all. Blocks of 1024 elements pass through the cache; a mean or sum is added up as they do, so no tensor of single
 * losses is made. Partial sums are over fixed runs of elements and are added in their order. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "cpu/rows.h"
#include "table/loss.h"

#define UNIT 32 /* blocks of a partial sum */

/* y = scale times the formula, n contiguous elements of the compute type. */
typedef void (*loop)(void *y, const void *x, const void *t, const void *p, double scale, int64_t n,
                     const lksi_attr *attr);

#define LOOP(NAME, R, f, form, ORDER)                                                                          \
    static void NAME##_##form##_##f(void *y_, const void *x_, const void *t_, const void *p_, double scale_,    \
                                    int64_t n, const lksi_attr *attr)                                          \
    {                                                                                                          \
        R *restrict y = y_;                                                                                    \
        R scale = (R)scale_, a = (R)attr->loss.a, b = (R)attr->loss.b;                                         \
        const R *x = x_, *t = t_, *p = p_;                                                                     \
        int flags = attr->loss.flags;                                                                          \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                   \
            y[i] = scale * lksi_##NAME##_##f(ORDER, x[i], t[i], p[i], a, b, flags);                            \
    }
#define FORMS(NAME, R, f)                                                                                      \
    LOOP(NAME, R, f, value, LKSI_LOSS_VALUE)                                                                   \
    LOOP(NAME, R, f, x, LKSI_LOSS_X)                                                                           \
    LOOP(NAME, R, f, t, LKSI_LOSS_T)                                                                           \
    LOOP(NAME, R, f, xx, LKSI_LOSS_XX)                                                                         \
    LOOP(NAME, R, f, xt, LKSI_LOSS_XT)                                                                         \
    LOOP(NAME, R, f, tt, LKSI_LOSS_TT)
#define X(name, flat) FORMS(name, float, f) FORMS(name, double, d)
LKSI_LOSS_LIST(X)
#undef X

static const loop loops[2][LKSI_LOSS_COUNT][LKSI_LOSS_ORDERS] = {
#define X(name, flat) {name##_value_f, name##_x_f, name##_t_f, name##_xx_f, name##_xt_f, name##_tt_f},
    {LKSI_LOSS_LIST(X)},
#undef X
#define X(name, flat) {name##_value_d, name##_x_d, name##_t_d, name##_xx_d, name##_xt_d, name##_tt_d},
    {LKSI_LOSS_LIST(X)},
#undef X
};

enum { IN_X, IN_T, IN_WEIGHT, IN_P, IN_DY, OPERANDS };

typedef struct point {
    lksi_operand out, in[OPERANDS];
    int has[OPERANDS], dbl, adds; /* adds: nothing is stored, parts are summed */
    int64_t count;
    double scale;
    loop fn;
    const lksi_attr *attr;
    double *part;
} point;

static void times(const point *w, void *y, const void *v, int64_t n)
{
    if (w->dbl) {
        double *a = y;
        const double *b = v;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) a[i] *= b[i];
    } else {
        float *a = y;
        const float *b = v;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++) a[i] *= b[i];
    }
}

static void ones(const point *w, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (w->dbl) ((double *)y)[i] = 1;
        else ((float *)y)[i] = 1;
}

/* Item: UNIT blocks. */
static void units(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const point *w = arg;
    lksi_block buf[OPERANDS], result;
    const void *v[OPERANDS] = {NULL};
    int64_t most = w->count < LKSI_BLOCK ? w->count : LKSI_BLOCK;
    for (int i = 0; i < OPERANDS; i++)
        if (w->has[i] && w->in[i].constant) v[i] = lksi_operand_load(&w->in[i], 0, most, buf[i].bytes);
    if (!w->has[IN_P]) ones(w, buf[IN_P].bytes, most), v[IN_P] = buf[IN_P].bytes;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t at = unit * UNIT * LKSI_BLOCK;
        int64_t stop = w->count - at < UNIT * LKSI_BLOCK ? w->count : at + UNIT * LKSI_BLOCK;
        double sum = 0;
        for (; at < stop; at += LKSI_BLOCK) {
            int64_t n = stop - at < LKSI_BLOCK ? stop - at : LKSI_BLOCK;
            for (int i = 0; i < OPERANDS; i++)
                if (w->has[i] && !w->in[i].constant) v[i] = lksi_operand_load(&w->in[i], at, n, buf[i].bytes);
            void *direct = w->adds ? NULL : lksi_operand_direct(&w->out, at), *y = direct ? direct : result.bytes;
            w->fn(y, v[IN_X], v[IN_T], v[IN_P], w->scale, n, w->attr);
            if (w->has[IN_WEIGHT]) times(w, y, v[IN_WEIGHT], n);
            if (w->has[IN_DY]) times(w, y, v[IN_DY], n);
            if (w->adds) sum += w->dbl ? sum_d(y, n) : (double)sum_f(y, n);
            else if (!direct) lksi_operand_store(&w->out, at, n, y);
        }
        if (w->adds) w->part[unit] = sum;
    }
}

/* in[first]: input. The walk follows `order_of`, a view of the shape of all. */
static int prepare(point *w, const lksi_args *a, int first, const lksi_view *order_of, const lksi_view *dy)
{
    int order[LKS_MAX_DIMS], dbl = 0;
    memset(w->has, 0, sizeof w->has);
    for (int i = 0; i < 4; i++)
        if (first + i < a->nin && a->in[first + i].ndim >= 0) {
            w->has[i] = 1;
            dbl |= a->in[first + i].dtype == LKS_F64;
        }
    w->has[IN_DY] = dy != NULL;
    w->dbl = dbl;
    w->attr = &a->attr;
    w->scale = 1;
    w->adds = 0;
    w->count = lksi_count(order_of);
    w->fn = loops[dbl][a->attr.loss.kind][a->attr.loss.order];
    if (w->count == 0) return 0;
    lksi_walk_order(order_of, order);
    for (int i = 0; i < OPERANDS; i++)
        if (w->has[i])
            lksi_operand_init(&w->in[i], i == IN_DY ? dy : &a->in[first + i], order_of, order,
                              dbl ? LKSI_CLASS_F64 : LKSI_CLASS_F32);
    lksi_operand_init(&w->out, order_of, order_of, order, dbl ? LKSI_CLASS_F64 : LKSI_CLASS_F32);
    return 1;
}

static int64_t units_of(const point *w) { return (w->count + UNIT * LKSI_BLOCK - 1) / (UNIT * LKSI_BLOCK); }

static lks_status forward(lksi_cpu *cpu, const lksi_args *a)
{
    point w;
    if (a->attr.loss.reduction == 0) {
        if (prepare(&w, a, 0, &a->out[0], NULL)) lksi_parallel(cpu, units_of(&w), 1, units, &w);
        return LKS_OK;
    }
    const lksi_view *x = &a->in[0];
    lksi_view space;
    double sum = 0, few[4];
    lksi_broadcast(x, &a->in[1], &space);
    lksi_contiguous_strides(&space);
    int whole = x->ndim == space.ndim; /* then x's own order is the one to walk in */
    for (int d = 0; whole && d < x->ndim; d++) whole = x->shape[d] == space.shape[d];
    for (int d = 0; whole && d < x->ndim; d++) space.stride[d] = x->stride[d];
    space.dtype = LKS_F32;
    space.data = NULL;
    if (prepare(&w, a, 0, &space, NULL)) {
        int64_t n = units_of(&w);
        w.adds = 1;
        w.part = n > 4 ? lksi_scratch(cpu, -1, 0, n * (int64_t)sizeof *w.part) : few;
        if (!w.part) return lksi_why(a, LKS_ERR_MEMORY, "no memory for partial sums");
        lksi_parallel(cpu, n, 1, units, &w);
        for (int64_t i = 0; i < n; i++) sum += w.part[i];
    }
    lksi_put(a->out[0].data, a->out[0].dtype, 0, sum / a->attr.loss.divisor); /* the mean of nothing is NaN */
    return LKS_OK;
}

#define X(name, flat)                                                                                          \
    LKSI_KERNEL(name) { return forward(cpu, a); }
LKSI_LOSS_LIST(X)
#undef X

LKSI_KERNEL(loss_slope)
{
    point w;
    const lksi_view *dy = &a->in[0];
    int one = dy->ndim == 0;
    if (!prepare(&w, a, 1, &a->out[0], one ? NULL : dy)) return LKS_OK;
    w.scale = (one ? lksi_get(dy->data, dy->dtype, 0) : 1) / a->attr.loss.divisor;
    lksi_parallel(cpu, units_of(&w), 1, units, &w);
    return LKS_OK;
}
