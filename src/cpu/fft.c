/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fft.c - Fourier transforms: which dims, which batches, which plans; the transforms themselves are the module's (see
 * device/fft.h). Work is cut into pieces by shape alone, so the number of threads changes no bits. Plans are kept by
 * shape. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "device/fft.h"

#include <stdlib.h>
#include <string.h>

#define PLANS 256
#define PIECE 32768 /* elements that one run should have at least */

typedef struct kept { lksi_fft_shape shape; void *plan; int64_t used; } kept;
typedef struct plans {
    const lksi_fft_module *module;
    int64_t clock;
    int count;
    kept k[PLANS];
} plans;

static void forget(void *state)
{
    plans *p = state;
    for (int i = 0; i < p->count; i++) p->module->destroy(&p->k[i].shape, p->k[i].plan);
    free(p);
}

static lks_status open_plans(lksi_cpu *cpu, const lksi_args *a, plans **out)
{
    void **slot = lksi_cpu_state(cpu, LKSI_STATE_FFT, forget);
    char why[LKSI_WHY];
    if (!*slot) {
        const lksi_fft_module *m = lksi_cpu_module(cpu, "fftw", why);
        if (!m)
            return lksi_why(
                a, LKS_ERR_UNSUPPORTED,
                "Fourier transforms need the module of FFTW: %.300s (Debian: install libfftw3-dev and "
                "build Lockstep again)",
                why);
        plans *p = calloc(1, sizeof *p);
        if (!p) return lksi_why(a, LKS_ERR_MEMORY, "no memory for plans");
        p->module = m;
        *slot = p;
    }
    *out = *slot;
    return LKS_OK;
}

/* The plan of a shape; the one that was not used for longest gives way. */
static void *plan_of(plans *p, const lksi_fft_shape *s)
{
    int place = 0;
    for (int i = 0; i < p->count; i++) {
        if (!memcmp(&p->k[i].shape, s, sizeof *s)) {
            p->k[i].used = ++p->clock;
            return p->k[i].plan;
        }
        if (p->k[i].used < p->k[place].used) place = i;
    }
    void *plan = p->module->plan(s);
    if (!plan) return NULL;
    if (p->count < PLANS) place = p->count++;
    else p->module->destroy(&p->k[place].shape, p->k[place].plan);
    p->k[place] = (kept){*s, plan, ++p->clock};
    return plan;
}

/* One pass: transforms over some dims of x to y; the other dims are batches. */
typedef struct pass {
    const lksi_fft_module *module;
    lksi_fft_shape shape[2]; /* of whole pieces, of the last one */
    void *plan[2];
    char *x, *y;
    int64_t x_size, y_size, many_in, many_out; /* bytes of an element */
    int64_t piece, pieces;                     /* transforms in a piece; pieces of the innermost batch dim */
    int nouter;
    int64_t outer[LKS_MAX_DIMS], outer_in[LKS_MAX_DIMS], outer_out[LKS_MAX_DIMS];
} pass;

static void run_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    const pass *p = arg;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t k = item % p->pieces, rest = item / p->pieces, in = k * p->piece * p->many_in,
                out = k * p->piece * p->many_out;
        for (int d = p->nouter - 1; d >= 0; d--) {
            int64_t at = rest % p->outer[d];
            rest /= p->outer[d];
            in += at * p->outer_in[d];
            out += at * p->outer_out[d];
        }
        int last = k == p->pieces - 1;
        p->module->run(&p->shape[last], p->plan[last], p->x + in * p->x_size, p->y + out * p->y_size);
    }
}

/* dims: bit d of mask. x and y have the same dims but for the size of a halved one; n: size of that on the real side.
 * */
static lks_status transform(lksi_cpu *cpu, const lksi_args *a, plans *p, int kind, int mask, int inverse, int64_t n,
                            const lksi_view *x, const lksi_view *y)
{
    pass w = {.module = p->module, .x = x->data, .y = y->data, .x_size = lksi_size_of[x->dtype],
              .y_size = lksi_size_of[y->dtype], .piece = 1, .pieces = 1};
    lksi_fft_shape s;
    int inner = -1;
    int64_t points = 1, items = 1, many = 1;
    memset(&s, 0, sizeof s);
    s.kind = kind, s.inverse = inverse, s.in_place = x->data == y->data;
    s.dbl = x->dtype == LKS_F64 || x->dtype == LKS_C128;
    s.aligned = ((uintptr_t)w.x | (uintptr_t)w.y) % 16 == 0;
    for (int d = 0; d < y->ndim; d++) {
        if (mask >> d & 1) {
            s.n[s.rank] = kind == LKSI_FFT_C2C ? y->shape[d] : n;
            s.in[s.rank] = x->stride[d];
            s.out[s.rank++] = y->stride[d];
            points *= s.n[s.rank - 1];
        } else if (y->shape[d] > 1 && (inner < 0 || y->stride[d] <= y->stride[inner])) {
            inner = d;
        }
    }
    for (int d = 0; d < y->ndim; d++) {
        if (mask >> d & 1 || d == inner || y->shape[d] == 1) continue;
        w.outer[w.nouter] = y->shape[d];
        w.outer_in[w.nouter] = x->stride[d];
        w.outer_out[w.nouter++] = y->stride[d];
        s.aligned &= x->stride[d] * w.x_size % 16 == 0 && y->stride[d] * w.y_size % 16 == 0;
        items *= y->shape[d];
    }
    if (inner >= 0) {
        many = y->shape[inner];
        w.many_in = x->stride[inner];
        w.many_out = y->stride[inner];
        w.piece = points < PIECE ? PIECE / points : 1;
        if (w.piece > many) w.piece = many;
        w.pieces = (many + w.piece - 1) / w.piece;
        if (w.pieces > 1)
            s.aligned &= w.piece * w.many_in * w.x_size % 16 == 0 && w.piece * w.many_out * w.y_size % 16 == 0;
    }
    for (int last = 0; last < 2; last++) {
        s.many = last ? many - (w.pieces - 1) * w.piece : w.piece;
        s.many_in = s.many > 1 ? w.many_in : 0;
        s.many_out = s.many > 1 ? w.many_out : 0;
        w.shape[last] = s;
        if (!(w.plan[last] = plan_of(p, &s))) return lksi_why(a, LKS_ERR_MEMORY, "FFTW made no plan");
    }
    /* The second may have taken the place of the first. */
    w.plan[0] = plan_of(p, &w.shape[0]);
    if (!w.plan[0]) return lksi_why(a, LKS_ERR_MEMORY, "FFTW made no plan");
    int64_t grain = PIECE / (points * w.piece);
    lksi_parallel(cpu, items * w.pieces, grain < 1 ? 1 : grain, run_pieces, &w);
    return LKS_OK;
}

/* Complex y over the dims of mask, in place. A batch gives work to all threads; else it is one dim after another. */
static lks_status in_place(lksi_cpu *cpu, const lksi_args *a, plans *p, int mask, int inverse, const lksi_view *y)
{
    int64_t batch = 1;
    for (int d = 0; d < y->ndim; d++)
        if (!(mask >> d & 1)) batch *= y->shape[d];
    if (batch >= 8) return mask ? transform(cpu, a, p, LKSI_FFT_C2C, mask, inverse, 0, y, y) : LKS_OK;
    for (int d = y->ndim - 1; d >= 0; d--)
        if (mask >> d & 1) {
            lks_status s = transform(cpu, a, p, LKSI_FFT_C2C, 1 << d, inverse, 0, y, y);
            if (s != LKS_OK) return s;
        }
    return LKS_OK;
}

typedef struct scaling { void *y; double scale; int dbl; } scaling;

static void scale_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const scaling *s = arg;
    (void)worker;
    if (s->dbl) {
        double *y = s->y;
        for (int64_t i = begin; i < end; i++) y[i] *= s->scale;
    } else {
        float *y = s->y, scale = (float)s->scale;
        for (int64_t i = begin; i < end; i++) y[i] *= scale;
    }
}

static void scale_all(lksi_cpu *cpu, const lksi_view *y, double scale)
{
    int complex = lks_dtype_is_complex(y->dtype);
    scaling s = {y->data, scale, y->dtype == LKS_F64 || y->dtype == LKS_C128};
    if (scale != 1) lksi_parallel(cpu, lksi_count(y) * (1 + complex), LKSI_GRAIN, scale_range, &s);
}

static int mask_of(const lksi_attr *attr, int from)
{
    int mask = 0;
    for (int i = from; i < attr->fft.n; i++) mask |= 1 << attr->fft.dims[i];
    return mask;
}

static lks_status check_dense(const lksi_args *a)
{
    return lksi_is_contiguous(&a->out[0]) ? LKS_OK : lksi_why(a, LKS_ERR_UNSUPPORTED, "a strided result");
}

LKSI_KERNEL(fft_c2c)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    plans *p;
    TRY(open_plans(cpu, a, &p));
    TRY(check_dense(a));
    LKSI_LOCAL(copy)(cpu, y, x);
    TRY(in_place(cpu, a, p, mask_of(&a->attr, 0), a->attr.fft.inverse, y));
    scale_all(cpu, y, a->attr.fft.scale);
    return LKS_OK;
}

/* The last dim named is halved, first; the others follow in place. */
LKSI_KERNEL(fft_r2c)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    int last = a->attr.fft.dims[a->attr.fft.n - 1];
    plans *p;
    TRY(open_plans(cpu, a, &p));
    TRY(check_dense(a));
    TRY(transform(cpu, a, p, LKSI_FFT_R2C, 1 << last, 0, x->shape[last], x, y));
    TRY(in_place(cpu, a, p, mask_of(&a->attr, 0) & ~(1 << last), 0, y));
    scale_all(cpu, y, a->attr.fft.scale);
    return LKS_OK;
}

/* Imaginary parts along dim at `at` become 0: what stands there has no meaning for a real result. */
static void drop_imaginary(lksi_cpu *cpu, const lksi_view *z, int dim, int64_t at)
{
    lksi_view v = *z;
    int size = lksi_size_of[z->dtype];
    v.data = (char *)v.data + at * v.stride[dim] * size + size / 2;
    v.dtype = z->dtype == LKS_C64 ? LKS_F32 : LKS_F64;
    v.shape[dim] = 1;
    for (int d = 0; d < v.ndim; d++) v.stride[d] *= 2;
    LKSI_LOCAL(fill)(cpu, &v, 0);
}

/* On a copy: the other dims in place, then the last one named. */
LKSI_KERNEL(fft_c2r)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    int last = a->attr.fft.dims[a->attr.fft.n - 1];
    int64_t n = a->attr.fft.last;
    lksi_view z = *x;
    plans *p;
    TRY(open_plans(cpu, a, &p));
    TRY(check_dense(a));
    lksi_contiguous_strides(&z);
    z.data = lksi_scratch(cpu, -1, 0, lksi_count(x) * lksi_size_of[x->dtype]);
    if (!z.data) return lksi_why(a, LKS_ERR_MEMORY, "no memory for a copy");
    LKSI_LOCAL(copy)(cpu, &z, x);
    TRY(in_place(cpu, a, p, mask_of(&a->attr, 0) & ~(1 << last), 1, &z));
    drop_imaginary(cpu, &z, last, 0);
    if (n % 2 == 0) drop_imaginary(cpu, &z, last, n / 2);
    TRY(transform(cpu, a, p, LKSI_FFT_C2R, 1 << last, 1, n, &z, y));
    scale_all(cpu, y, a->attr.fft.scale);
    return LKS_OK;
}
