/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.c - softmax, log_softmax and their backward rows over any dim of any strides: memory and splitting. The
 * arithmetic is in softmax_real.h. A slice of -inf alone gives zeros (log_softmax: -inf) and a zero gradient.
 */
#include "cpu/rows.h"
#include "cpu/rows_exp.h"

enum { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACK, LOG_SOFTMAX_BACK };
enum { MUCH = 1 << 28 }; /* bytes: slices that need more are made by one worker */

typedef struct job {
    int what, back;
    lksi_rowset x, y, dy; /* x: input, or result for backward; y: what is made */
    int64_t group;        /* slices moved together at most */
    char *scratch;        /* per worker: x, then y; backward: y, then dy and dx; room elements each */
    int64_t scratch_each, room;
} job;

#define REAL float
#define F(name) name##_f
#include "cpu/softmax_real.h"
#undef REAL
#undef F
#define REAL double
#define F(name) name##_d
#include "cpu/softmax_real.h"
#undef REAL
#undef F

static lks_status run(lksi_cpu *cpu, const lksi_args *a, int what, const lksi_view *x, const lksi_view *dy)
{
    unsigned mask = x->ndim ? 1u << a->attr.dim.dim : 0u;
    int dbl = x->dtype == LKS_F64;
    job s = {.what = what, .back = dy != NULL, .x = lksi_rowset_of(x, mask), .y = lksi_rowset_of(&a->out[0], mask)};
    if (dy) s.dy = lksi_rowset_of(dy, mask);
    if (s.x.n == 0 || s.x.rows == 0) return LKS_OK;
    s.group = lksi_rowset_group(s.x.n);
    s.room = (s.group * s.x.n + 15) / 16 * 16;
    s.scratch_each = (s.back ? 2 : 1) * s.room * (dbl ? 8 : 4);
    int64_t grain = 8192 / s.x.n, workers = s.scratch_each > MUCH ? 1 : lksi_cpu_workers(cpu);
    if (grain < s.group) grain = s.group;
    if (workers == 1) grain = s.x.rows;
    int64_t bytes = workers * s.scratch_each;
    s.scratch = lksi_scratch(cpu, -1, 0, bytes);
    if (!s.scratch) return lksi_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of scratch", (long long)bytes);
    lksi_parallel(cpu, s.x.rows, grain, dbl ? slices_d : slices_f, &s);
    return LKS_OK;
}

LKSI_KERNEL(softmax) { return run(cpu, a, SOFTMAX, &a->in[0], NULL); }
LKSI_KERNEL(log_softmax) { return run(cpu, a, LOG_SOFTMAX, &a->in[0], NULL); }
LKSI_KERNEL(softmax_backward) { return run(cpu, a, SOFTMAX_BACK, &a->in[1], &a->in[0]); }
LKSI_KERNEL(log_softmax_backward) { return run(cpu, a, LOG_SOFTMAX_BACK, &a->in[1], &a->in[0]); }
