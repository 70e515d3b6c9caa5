/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ctc.c - connectionist temporal classification (Graves et al., 2006) and its gradient: checks, memory, one sample per
 * item. The recursions are in ctc_real.h. Nothing but the loss of each sample is kept for backward, which runs the
 * forward recursion again.
 */
#include "cpu/loss_rows.h"
#include "table/math.h"

typedef struct job {
    const lksi_args *a;
    const lksi_view *x, *dx; /* [T, N, C]; dx: backward */
    lksi_rowset target, input_length, target_length, dy;
    int64_t blank, states; /* most states of a sample: 2 S + 1 */
    double *loss;
    char *scratch;
    int64_t scratch_each;
} job;

static int64_t label_at(const job *s, int64_t sample, int64_t i)
{
    const lksi_rowset *t = &s->target;
    int64_t at = lksi_rowset_offset(t, sample) + (t->inner ? i * t->istride[0] : 0);
    return t->dtype == LKS_I64 ? ((const int64_t *)(void *)t->data)[at] : ((const int32_t *)(void *)t->data)[at];
}

/* Label of state i: blanks are the even ones. */
static int64_t state_label(const job *s, int64_t sample, int64_t i)
{
    return i % 2 ? label_at(s, sample, i / 2) : s->blank;
}

#define REAL float
#define F(name) name##_f
#define EXP lksi_expf
#define LOG lksi_logf
#include "cpu/ctc_real.h"
#undef REAL
#undef F
#undef EXP
#undef LOG
#define REAL double
#define F(name) name##_d
#define EXP exp
#define LOG log
#include "cpu/ctc_real.h"
#undef REAL
#undef F
#undef EXP
#undef LOG

static lks_status prepare(lksi_cpu *cpu, job *s, const lksi_args *a, int first, int backward)
{
    int64_t steps = a->in[first].shape[0], samples = a->in[first].shape[1], classes = a->in[first].shape[2];
    s->a = a;
    s->x = &a->in[first];
    s->target = lksi_rowset_of(&a->in[first + 1], 2u);
    s->input_length = lksi_rowset_of(&a->in[first + 2], 0);
    s->target_length = lksi_rowset_of(&a->in[first + 3], 0);
    s->blank = a->attr.loss.ignore_index;
    for (int64_t n = 0; n < samples; n++) {
        int64_t t = index_of(&s->input_length, n), l = index_of(&s->target_length, n);
        if (t < 0 || t > steps)
            return lksi_why(a, LKS_ERR_ARGUMENT, "input length %lld of sample %lld is outside [0, %lld]",
                            (long long)t, (long long)n, (long long)steps);
        if (l < 0 || l > s->target.n)
            return lksi_why(a, LKS_ERR_ARGUMENT, "target length %lld of sample %lld is outside [0, %lld]",
                            (long long)l, (long long)n, (long long)s->target.n);
        for (int64_t i = 0; i < l; i++) {
            int64_t k = label_at(s, n, i);
            if (k < 0 || k >= classes || k == s->blank)
                return lksi_why(a, LKS_ERR_ARGUMENT,
                                "target %lld at place %lld of sample %lld is outside [0, %lld) or the blank",
                                       (long long)k, (long long)i, (long long)n, (long long)classes);
        }
    }
    s->states = 2 * s->target.n + 1;
    int64_t row = s->states + 4, rows = 6 + (backward ? steps : 0);
    s->scratch_each = ((rows * row + classes) * 8 + 63) / 64 * 64;
    s->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s->scratch_each + 64);
    s->loss = lksi_scratch(cpu, -1, 1, samples * 8 + 64);
    if (!s->scratch || !s->loss) return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
    return LKS_OK;
}

/* A mean is over samples, each loss over its target's length. */
LKSI_KERNEL(ctc_loss)
{
    job s = {0};
    TRY(prepare(cpu, &s, a, 0, 0));
    int64_t samples = s.x->shape[1];
    lksi_parallel(cpu, samples, 1, s.x->dtype == LKS_F64 ? losses_d : losses_f, &s);
    lksi_rowset nll = lksi_rowset_of(&a->out[1], 0);
    for (int64_t n = 0; n < samples; n++) {
        double v = s.loss[n];
        int64_t l = index_of(&s.target_length, n);
        lksi_put(nll.data, nll.dtype, lksi_rowset_offset(&nll, n), v);
        if (a->attr.loss.flags & 1 && v == INFINITY) s.loss[n] = 0;
        if (a->attr.loss.reduction == 1 || a->attr.loss.reduction == 4) s.loss[n] /= (double)(l > 0 ? l : 1);
    }
    put_losses(a, s.loss, samples, (double)samples, 1);
    return LKS_OK;
}

LKSI_KERNEL(ctc_loss_backward)
{
    job s = {.dx = &a->out[0], .dy = lksi_rowset_of(&a->in[0], 0)};
    TRY(prepare(cpu, &s, a, 1, 1));
    lksi_parallel(cpu, s.x->shape[1], 1, s.x->dtype == LKS_F64 ? losses_back_d : losses_back_f, &s);
    return LKS_OK;
}
