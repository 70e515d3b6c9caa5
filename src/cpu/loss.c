/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss.c - cross entropy and its backward row: checks of targets, memory, splitting, the sum over rows. The arithmetic
 * is in loss_real.h. No probabilities are stored: backward makes them from the logits again.
 */
#include "cpu/rows.h"
#include "cpu/rows_exp.h"

typedef struct job {
    lksi_rowset x, y; /* logits, and their gradient */
    lksi_rowset target, lse, dy; /* rows of one element */
    int64_t ignore, group;
    double smoothing, factor; /* factor: 1, or 1 / count */
    int each;                 /* dy has an entry for each row */
    double *loss;             /* [rows] */
    char *scratch;            /* per worker */
    int64_t scratch_each, room;
} job;

static inline int64_t target_at(const job *s, int64_t row)
{
    int64_t i = lksi_rowset_offset(&s->target, row);
    return s->target.dtype == LKS_I64 ? ((const int64_t *)(void *)s->target.data)[i]
                                      : ((const int32_t *)(void *)s->target.data)[i];
}

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

/* Every target is a class or ignore_index; how many are classes. */
static lks_status count_targets(const lksi_args *a, const job *s, int64_t *count)
{
    *count = 0;
    for (int64_t r = 0; r < s->target.rows; r++) {
        int64_t t = target_at(s, r);
        if (t == s->ignore) continue;
        if (t < 0 || t >= s->x.n)
            return lksi_kernel_why(a, LKS_ERR_ARGUMENT,
                                   "target %lld at row %lld is outside [0, %lld) and is not ignore_index",
                                   (long long)t, (long long)r, (long long)s->x.n);
        ++*count;
    }
    return LKS_OK;
}

static job job_of(const lksi_args *a, const lksi_view *x, const lksi_view *target, const lksi_view *lse)
{
    job s = {.x = lksi_rowset_of(x, 2u),
             .target = lksi_rowset_of(target, 0),
             .lse = lksi_rowset_of(lse, 0),
             .ignore = a->attr.loss.ignore_index,
             .smoothing = a->attr.loss.smoothing,
             .each = a->attr.loss.reduction == 0,
             .factor = 1};
    s.group = lksi_rowset_group(s.x.n);
    s.room = (s.group * s.x.n + 15) / 16 * 16;
    return s;
}

static int64_t grain(const job *s)
{
    int64_t g = 8192 / (s->x.n > 0 ? s->x.n : 1);
    return g < s->group ? s->group : g;
}

/* A class at ignore_index is ignored, as everywhere. Rows are added in double, one after the other. */
LKSI_KERNEL(cross_entropy)
{
    const lksi_view *x = &a->in[0];
    int dbl = x->dtype == LKS_F64, reduction = a->attr.loss.reduction;
    job s = job_of(a, x, &a->in[1], &a->out[1]);
    int64_t count;
    TRY(count_targets(a, &s, &count));
    s.scratch_each = s.room * (dbl ? 8 : 4);
    s.scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s.scratch_each + 64);
    s.loss = lksi_scratch(cpu, -1, 1, s.x.rows * 8 + 64);
    if (!s.scratch || !s.loss) return lksi_kernel_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    lksi_parallel(cpu, s.x.rows, grain(&s), dbl ? losses_d : losses_f, &s);
    if (s.each) {
        lksi_rowset out = lksi_rowset_of(&a->out[0], 0);
        for (int64_t r = 0; r < s.x.rows; r++) lksi_put(out.data, out.dtype, lksi_rowset_offset(&out, r), s.loss[r]);
    } else {
        double sum = 0;
        for (int64_t r = 0; r < s.x.rows; r++) sum += s.loss[r];
        if (reduction == 1 && count > 0) sum /= (double)count;
        lksi_put(a->out[0].data, a->out[0].dtype, 0, sum);
    }
    lksi_put(a->out[2].data, a->out[2].dtype, 0, (double)count);
    return LKS_OK;
}

LKSI_KERNEL(cross_entropy_backward)
{
    const lksi_view *x = &a->in[1];
    int dbl = x->dtype == LKS_F64;
    job s = job_of(a, x, &a->in[2], &a->in[3]);
    int64_t count;
    TRY(count_targets(a, &s, &count));
    if (s.x.n == 0 || s.x.rows == 0) return LKS_OK;
    s.y = lksi_rowset_of(&a->out[0], 2u);
    s.dy = lksi_rowset_of(&a->in[0], 0);
    if (a->attr.loss.reduction == 1) {
        double n = lksi_get(a->in[4].data, a->in[4].dtype, 0);
        s.factor = n > 0 ? 1 / n : 0;
    }
    s.scratch_each = 2 * s.room * (dbl ? 8 : 4);
    s.scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s.scratch_each);
    if (!s.scratch) return lksi_kernel_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    lksi_parallel(cpu, s.x.rows, grain(&s), dbl ? losses_back_d : losses_back_f, &s);
    return LKS_OK;
}
