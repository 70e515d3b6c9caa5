/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_class.c - losses over classes that need no exponential: nll, the multi-class margin and the multi-label margin,
 * with their backward rows. A row is one sample; rows are computed in double and added in their order.
 */
#include "cpu/loss_rows.h"

typedef struct job {
    const lksi_args *a;
    lksi_rowset x, target, dy; /* x: scores, or their gradient where it is written */
    lksi_rowset from;          /* backward: scores */
    const lksi_view *weight;
    double count, *loss;
    char *scratch;
    int64_t scratch_each;
} job;

/* The dim of classes of [N, C, d...] or [C]. */
static unsigned class_dim(const lksi_view *x) { return 1u << (x->ndim > 1); }

static double weight_of(const job *s, int64_t class)
{
    return s->weight ? lksi_get(s->weight->data, s->weight->dtype, class * s->weight->stride[0]) : 1;
}

static int64_t grain(const job *s)
{
    int64_t g = 16384 / (s->x.n > 0 ? s->x.n : 1);
    return g > 0 ? g : 1;
}

/* buffers: arrays of n doubles per worker. */
static lks_status memory(lksi_cpu *cpu, job *s, int buffers, int losses)
{
    s->scratch_each = (buffers * s->x.n * 8 + 63) / 64 * 64;
    s->scratch = lksi_scratch(cpu, -1, 0, lksi_cpu_workers(cpu) * s->scratch_each + 64);
    s->loss = losses ? lksi_scratch(cpu, -1, 1, s->x.rows * 8 + 64) : NULL;
    if (!s->scratch || (losses && !s->loss)) return lksi_why(s->a, LKS_ERR_MEMORY, "no memory for scratch");
    return LKS_OK;
}

/* --- nll ---------------------------------------------------------------------------------------------------------- */

static void nll_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *s = arg;
    int64_t stride = s->x.inner ? s->x.istride[0] : 0;
    for (int64_t r = begin; r < end; r++) {
        int64_t t = index_of(&s->target, r);
        if (t == s->a->attr.loss.ignore_index) s->loss[r] = 0;
        else
            s->loss[r] = -weight_of(s, t) *
                         lksi_get(s->x.data, s->x.dtype, lksi_rowset_offset(&s->x, r) + t * stride);
    }
}

LKSI_KERNEL(nll_loss)
{
    const lksi_view *x = &a->in[0];
    job s = {.a = a, .x = lksi_rowset_of(x, class_dim(x)), .target = lksi_rowset_of(&a->in[1], 0),
             .weight = given(a, 2)};
    TRY(check_targets(a, &s.target, s.x.n, a->attr.loss.ignore_index, s.weight, &s.count));
    TRY(memory(cpu, &s, 0, 1));
    lksi_parallel(cpu, s.x.rows, 4096, nll_rows, &s);
    put_losses(a, s.loss, s.x.rows, s.count, 0);
    lksi_put(a->out[1].data, a->out[1].dtype, 0, s.count);
    return LKS_OK;
}

static void nll_back(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *s = arg;
    int64_t stride = s->x.inner ? s->x.istride[0] : 0;
    for (int64_t r = begin; r < end; r++) {
        int64_t t = index_of(&s->target, r), at = lksi_rowset_offset(&s->x, r);
        for (int64_t j = 0; j < s->x.n; j++) lksi_put(s->x.data, s->x.dtype, at + j * stride, 0);
        if (t != s->a->attr.loss.ignore_index)
            lksi_put(s->x.data, s->x.dtype, at + t * stride, -weight_of(s, t) * given_at(s->a, &s->dy, r, s->count));
    }
}

LKSI_KERNEL(nll_loss_backward)
{
    const lksi_view *dx = &a->out[0];
    job s = {.a = a, .x = lksi_rowset_of(dx, class_dim(dx)), .target = lksi_rowset_of(&a->in[1], 0),
             .dy = lksi_rowset_of(&a->in[0], 0), .weight = given(a, 3)};
    TRY(check_targets(a, &s.target, s.x.n, a->attr.loss.ignore_index, s.weight, &s.count));
    s.count = lksi_get(a->in[2].data, a->in[2].dtype, 0);
    lksi_parallel(cpu, s.x.rows, grain(&s), nll_back, &s);
    return LKS_OK;
}

/* --- multi-class margin ------------------------------------------------------------------------------------------- */

/* sum over j != t of w[t] max(0, margin - x[t] + x[j])^p / n */
static double margin_row(const job *s, const double *x, int64_t n, int64_t t, double *dx)
{
    double w = weight_of(s, t) / (double)n, margin = s->a->attr.loss.a, sum = 0, slopes = 0;
    int square = s->a->attr.loss.p == 2;
    for (int64_t j = 0; j < n; j++) {
        double z = margin - x[t] + x[j];
        z = z < 0 || j == t ? 0 : z;
        sum += square ? z * z : z;
        if (!dx) continue;
        dx[j] = w * (square ? 2 * z : z > 0 ? 1.0 : z);
        slopes += dx[j];
    }
    if (dx) dx[t] = -slopes;
    return w * sum;
}

static void margin_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    double *buffer = (double *)(void *)(s->scratch + worker * s->scratch_each);
    for (int64_t r = begin; r < end; r++)
        s->loss[r] = margin_row(s, rows_load_d(&s->x, r, buffer), s->x.n, index_of(&s->target, r), NULL);
}

static void margin_back(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    double *buffer = (double *)(void *)(s->scratch + worker * s->scratch_each), *dx = buffer + n;
    for (int64_t r = begin; r < end; r++) {
        double g = given_at(s->a, &s->dy, r, (double)s->x.rows);
        margin_row(s, rows_load_d(&s->from, r, buffer), n, index_of(&s->target, r), dx);
        for (int64_t j = 0; j < n; j++) dx[j] *= g;
        rows_store_d(&s->x, r, 0, n, dx);
    }
}

/* There is no ignore_index here: none is below 0. */
static lks_status margin_targets(const lksi_args *a, const job *s)
{
    for (int64_t r = 0; r < s->target.rows; r++) {
        int64_t t = index_of(&s->target, r);
        if (t < 0 || t >= s->x.n)
            return lksi_why(a, LKS_ERR_ARGUMENT, "target %lld at row %lld is outside [0, %lld)", (long long)t,
                                   (long long)r, (long long)s->x.n);
    }
    return LKS_OK;
}

LKSI_KERNEL(multi_margin_loss)
{
    const lksi_view *x = &a->in[0];
    job s = {.a = a, .x = lksi_rowset_of(x, class_dim(x)), .target = lksi_rowset_of(&a->in[1], 0),
             .weight = given(a, 2)};
    TRY(margin_targets(a, &s));
    TRY(memory(cpu, &s, 1, 1));
    lksi_parallel(cpu, s.x.rows, grain(&s), margin_rows, &s);
    put_losses(a, s.loss, s.x.rows, (double)s.x.rows, 1);
    return LKS_OK;
}

LKSI_KERNEL(multi_margin_loss_backward)
{
    const lksi_view *x = &a->in[1];
    job s = {.a = a, .from = lksi_rowset_of(x, class_dim(x)), .x = lksi_rowset_of(&a->out[0], class_dim(x)),
             .target = lksi_rowset_of(&a->in[2], 0), .dy = lksi_rowset_of(&a->in[0], 0), .weight = given(a, 3)};
    TRY(margin_targets(a, &s));
    TRY(memory(cpu, &s, 2, 0));
    lksi_parallel(cpu, s.x.rows, grain(&s), margin_back, &s);
    return LKS_OK;
}

/* --- multi-label margin ------------------------------------------------------------------------------------------- */

/* Class number i of row r's list, -1 at its end. */
static int64_t label_at(const job *s, int64_t row, int64_t i)
{
    const lksi_rowset *t = &s->target;
    int64_t at = lksi_rowset_offset(t, row) + (t->inner ? i * t->istride[0] : 0);
    return t->dtype == LKS_I64 ? ((const int64_t *)(void *)t->data)[at] : ((const int32_t *)(void *)t->data)[at];
}

/* sum over labels k and classes j that are none of max(0, 1 - x[k] + x[j]) / n. is: n flags. */
static double labels_row(const job *s, int64_t r, const double *x, double *is, double *dx)
{
    int64_t n = s->x.n, labels = 0;
    double sum = 0, each = n > 0 ? 1 / (double)n : 0;
    for (int64_t j = 0; j < n; j++) is[j] = 0;
    for (int64_t k; labels < n && (k = label_at(s, r, labels)) >= 0; labels++) is[k] = 1;
    for (int64_t j = 0; dx && j < n; j++) dx[j] = 0;
    for (int64_t i = 0; i < labels; i++) {
        int64_t k = label_at(s, r, i), hits = 0;
        for (int64_t j = 0; j < n; j++) {
            double z = 1 - x[k] + x[j];
            if (is[j] != 0 || z <= 0) continue; /* a NaN goes on */
            sum += z;
            hits++;
            if (dx) dx[j] += each;
        }
        if (dx) dx[k] -= each * (double)hits;
    }
    return sum * each;
}

static void labels_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    double *is = (double *)(void *)(s->scratch + worker * s->scratch_each), *buffer = is + s->x.n;
    for (int64_t r = begin; r < end; r++) s->loss[r] = labels_row(s, r, rows_load_d(&s->x, r, buffer), is, NULL);
}

static void labels_back(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t n = s->x.n;
    double *is = (double *)(void *)(s->scratch + worker * s->scratch_each), *buffer = is + n, *dx = buffer + n;
    for (int64_t r = begin; r < end; r++) {
        double g = given_at(s->a, &s->dy, r, (double)s->x.rows);
        labels_row(s, r, rows_load_d(&s->from, r, buffer), is, dx);
        for (int64_t j = 0; j < n; j++) dx[j] *= g;
        rows_store_d(&s->x, r, 0, n, dx);
    }
}

static lks_status labels_check(const lksi_args *a, const job *s)
{
    for (int64_t r = 0; r < s->target.rows; r++)
        for (int64_t i = 0, k; i < s->target.n && (k = label_at(s, r, i)) != -1; i++)
            if (k < 0 || k >= s->x.n)
                return lksi_why(a, LKS_ERR_ARGUMENT,
                                "target %lld at row %lld, place %lld is outside [0, %lld) and is not -1",
                                       (long long)k, (long long)r, (long long)i, (long long)s->x.n);
    return LKS_OK;
}

LKSI_KERNEL(multilabel_margin_loss)
{
    const lksi_view *x = &a->in[0];
    job s = {.a = a, .x = lksi_rowset_of(x, class_dim(x)), .target = lksi_rowset_of(&a->in[1], class_dim(x))};
    TRY(labels_check(a, &s));
    TRY(memory(cpu, &s, 2, 1));
    lksi_parallel(cpu, s.x.rows, grain(&s), labels_rows, &s);
    put_losses(a, s.loss, s.x.rows, (double)s.x.rows, 1);
    return LKS_OK;
}

LKSI_KERNEL(multilabel_margin_loss_backward)
{
    const lksi_view *x = &a->in[1];
    job s = {.a = a, .from = lksi_rowset_of(x, class_dim(x)), .x = lksi_rowset_of(&a->out[0], class_dim(x)),
             .target = lksi_rowset_of(&a->in[2], class_dim(x)), .dy = lksi_rowset_of(&a->in[0], 0)};
    TRY(labels_check(a, &s));
    TRY(memory(cpu, &s, 3, 0));
    lksi_parallel(cpu, s.x.rows, grain(&s), labels_back, &s);
    return LKS_OK;
}
