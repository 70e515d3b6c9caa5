/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.c - cross entropy with classes or probabilities as target, and its backward rows: checks of targets, memory,
 * splitting, the sum over rows. The arithmetic is in loss_real.h. No probabilities of the model are stored: backward
 * makes them from the logits again.
 */
#include "cpu/loss_rows.h"
#include "cpu/rows_exp.h"

typedef struct job {
    const lksi_args *a;
    lksi_rowset x, y; /* logits, and their gradient */
    lksi_rowset target, lse, dy; /* rows of one element; soft: target has x's rows */
    lksi_rowset dtarget;
    int soft, wants_dtarget;
    int64_t ignore, group;
    double smoothing, count;
    const void *w; /* weights of the classes in the compute type, or NULL */
    double w_sum;
    double *loss; /* [rows] */
    char *scratch; /* per worker */
    int64_t scratch_each, room;
} job;

#define REAL float
#define F(name) name##_f
#include "cpu/loss_real.h"
#undef REAL
#undef F
#define REAL double
#define F(name) name##_d
#include "cpu/loss_real.h"
#undef REAL
#undef F

static job job_of(const lksi_args *a, const lksi_view *x, const lksi_view *target, const lksi_view *lse, int soft)
{
    job s = {.a = a,
             .x = lksi_rowset_of(x, 2u),
             .target = lksi_rowset_of(target, soft ? 2u : 0),
             .lse = lksi_rowset_of(lse, 0),
             .soft = soft,
             .ignore = a->attr.loss.ignore_index,
             .smoothing = a->attr.loss.smoothing};
    s.group = lksi_rowset_group(s.x.n);
    s.room = (s.group * s.x.n + 15) / 16 * 16;
    return s;
}

static int64_t grain(const job *s)
{
    int64_t g = 8192 / (s->x.n > 0 ? s->x.n : 1);
    return g < s->group ? s->group : g;
}

/* Scratch of `buffers` groups of rows per worker, and the weights. */
static lks_status memory(lksi_cpu *cpu, job *s, const lksi_view *weight, int dbl, int buffers)
{
    s->scratch_each = buffers * s->room * (dbl ? 8 : 4);
    s->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s->scratch_each + 64);
    if (!s->scratch) return lksi_why(s->a, LKS_ERR_MEMORY, "no memory for scratch");
    if (!weight) return LKS_OK;
    void *w = lksi_scratch(cpu, -1, 2, s->x.n * 8 + 64);
    if (!w) return lksi_why(s->a, LKS_ERR_MEMORY, "no memory for weights");
    s->w = w;
    for (int64_t j = 0; j < s->x.n; j++) {
        double v = lksi_get(weight->data, weight->dtype, j * weight->stride[0]);
        if (dbl) ((double *)w)[j] = v;
        else ((float *)w)[j] = (float)v;
        s->w_sum += v;
    }
    return LKS_OK;
}

static lks_status forward(lksi_cpu *cpu, job *s, const lksi_view *weight, int dbl)
{
    TRY(memory(cpu, s, weight, dbl, s->soft ? 3 : 1));
    s->loss = lksi_scratch(cpu, -1, 1, s->x.rows * 8 + 64);
    if (!s->loss) return lksi_why(s->a, LKS_ERR_MEMORY, "no memory for scratch");
    lksi_parallel(cpu, s->x.rows, grain(s), dbl ? losses_d : losses_f, s);
    put_losses(s->a, s->loss, s->x.rows, s->count, 0);
    return LKS_OK;
}

/* A class at ignore_index is ignored, as everywhere. Rows are added in double, one after the other. */
LKSI_KERNEL(cross_entropy)
{
    int dbl = a->in[0].dtype == LKS_F64;
    const lksi_view *weight = given(a, 2);
    job s = job_of(a, &a->in[0], &a->in[1], &a->out[1], 0);
    TRY(check_targets(a, &s.target, s.x.n, s.ignore, weight, &s.count));
    TRY(forward(cpu, &s, weight, dbl));
    lksi_put(a->out[2].data, a->out[2].dtype, 0, s.count);
    return LKS_OK;
}

LKSI_KERNEL(cross_entropy_soft)
{
    int dbl = a->in[0].dtype == LKS_F64 || a->in[1].dtype == LKS_F64;
    job s = job_of(a, &a->in[0], &a->in[1], &a->out[1], 1);
    s.count = (double)s.x.rows;
    return forward(cpu, &s, given(a, 2), dbl);
}

LKSI_KERNEL(cross_entropy_backward)
{
    int dbl = a->in[1].dtype == LKS_F64;
    const lksi_view *weight = given(a, 5);
    job s = job_of(a, &a->in[1], &a->in[2], &a->in[3], 0);
    TRY(check_targets(a, &s.target, s.x.n, s.ignore, weight, &s.count));
    if (s.x.n == 0 || s.x.rows == 0) return LKS_OK;
    s.y = lksi_rowset_of(&a->out[0], 2u);
    s.dy = lksi_rowset_of(&a->in[0], 0);
    s.count = lksi_get(a->in[4].data, a->in[4].dtype, 0);
    TRY(memory(cpu, &s, weight, dbl, 2));
    lksi_parallel(cpu, s.x.rows, grain(&s), dbl ? losses_back_d : losses_back_f, &s);
    return LKS_OK;
}

LKSI_KERNEL(cross_entropy_soft_backward)
{
    int dbl = a->in[1].dtype == LKS_F64 || a->in[2].dtype == LKS_F64;
    job s = job_of(a, &a->in[1], &a->in[2], &a->in[3], 1);
    if (s.x.n == 0 || s.x.rows == 0) return LKS_OK;
    s.y = lksi_rowset_of(&a->out[0], 2u);
    s.wants_dtarget = a->attr.loss.flags & 1;
    if (s.wants_dtarget) s.dtarget = lksi_rowset_of(&a->out[1], 2u);
    s.dy = lksi_rowset_of(&a->in[0], 0);
    s.count = (double)s.x.rows;
    TRY(memory(cpu, &s, given(a, 4), dbl, 4));
    lksi_parallel(cpu, s.x.rows, grain(&s), dbl ? soft_back_d : soft_back_f, &s);
    return LKS_OK;
}
