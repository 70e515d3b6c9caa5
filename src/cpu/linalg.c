/* SPDX-License-Identifier: BSD-3-Clause
 *
 * linalg.c - factorisations by LAPACK, matrix by matrix of a batch. Inputs are copied column by column into scratch
 * memory, LAPACK works there, results are copied out; matrices are shared between the workers. A matrix that LAPACK
 * gives up on is an error (attr.linalg.check) or a number in info, and its results are NaN. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "table/table.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_LAPACKE
#include <lapacke.h>

/* A batch of matrices, column by column. */
typedef struct matrices {
    lksi_view v; /* the batch as a view of this memory */
    char *data;
    int64_t rows, columns, count, bytes; /* bytes: of one matrix */
} matrices;

/* Shape of a view as matrices; `columns` 0: a vector a matrix. */
static int take(lksi_cpu *cpu, matrices *m, int slot, const lksi_view *like, int vectors, int dtype, int64_t rows,
                int64_t columns)
{
    int batch = like->ndim - (vectors ? 1 : 2);
    m->v = *like;
    m->v.dtype = dtype;
    m->rows = rows, m->columns = columns, m->count = 1;
    m->bytes = rows * columns * lks_dtype_size(dtype);
    for (int d = 0; d < batch; d++) m->count *= like->shape[d];
    int64_t step = rows * columns;
    for (int d = batch - 1; d >= 0; d--) {
        m->v.stride[d] = step;
        step *= like->shape[d];
    }
    m->v.shape[batch] = rows;
    m->v.stride[batch] = 1;
    if (!vectors) {
        m->v.shape[batch + 1] = columns;
        m->v.stride[batch + 1] = rows;
    }
    m->v.data = m->data = lksi_scratch(cpu, -1, slot, m->count * m->bytes + 64);
    return m->data != NULL;
}

static lks_status no_memory(const lksi_args *a) { return lksi_why(a, LKS_ERR_MEMORY, "no memory for matrices"); }

/* x [..., rows, columns] into scratch; room for more rows may be asked for. */
static int take_copy(lksi_cpu *cpu, matrices *m, int slot, const lksi_view *x, int64_t rows)
{
    int64_t have = x->shape[x->ndim - 2];
    if (!take(cpu, m, slot, x, 0, x->dtype, rows > have ? rows : have, x->shape[x->ndim - 1])) return 0;
    lksi_view part = m->v;
    part.shape[part.ndim - 2] = have;
    LKSI_LOCAL(copy)(cpu, &part, x);
    return 1;
}

/* The first rows and columns of m to y. */
static void give(lksi_cpu *cpu, const lksi_view *y, const matrices *m)
{
    lksi_view part = m->v;
    for (int d = 0; d < y->ndim; d++) part.shape[d] = y->shape[d];
    if (lksi_count(y)) LKSI_LOCAL(copy)(cpu, y, &part);
}

typedef struct job job;
/* Works on matrix i; returns LAPACK's info. work: job.work bytes. */
typedef int (*one_fn)(const job *j, int64_t i, void *work);
struct job {
    lksi_cpu *cpu;
    int dtype, dbl;
    matrices m[4];
    const lksi_attr *attr;
    one_fn one;
    int64_t work, lwork;   /* bytes, and elements of LAPACK's work array at their start */
    int64_t n, k;          /* of the kernel */
    int *info;             /* [count] */
    int outputs;           /* m[0..outputs) become NaN where info is not 0 */
    int finite;            /* m[finite] is looked at before; -1: none */
    int failed_memory;
};

static void *at(const job *j, int which, int64_t i) { return j->m[which].data + i * j->m[which].bytes; }

#define NOT_FINITE -99
/* Some of LAPACK does not end on NaN. */
static int is_finite(const job *j, int which, int64_t i)
{
    int64_t n = j->m[which].bytes / (j->dbl ? 8 : 4), bad = 0;
    if (j->dbl) {
        const uint64_t *x = at(j, which, i);
        for (int64_t e = 0; e < n; e++) bad += (x[e] >> 52 & 0x7ff) == 0x7ff;
    } else {
        const uint32_t *x = at(j, which, i);
        for (int64_t e = 0; e < n; e++) bad += (x[e] >> 23 & 0xff) == 0xff;
    }
    return bad == 0;
}

static void run_range(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    void *work = lksi_scratch(j->cpu, worker, 1, j->work + 64);
    if (!work) {
        __atomic_store_n(&j->failed_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        j->info[i] = j->finite < 0 || is_finite(j, j->finite, i) ? j->one(j, i, work) : NOT_FINITE;
}

/* All matrices; then info goes to out `info_at` (-1: nowhere) and, if asked for, the first failure is an error. */
static lks_status run(lksi_cpu *cpu, const lksi_args *a, job *j, int info_at, const char *trouble)
{
    int64_t count = j->m[0].count;
    j->cpu = cpu;
    j->attr = &a->attr;
    j->info = lksi_scratch(cpu, -1, 5, count * (int64_t)sizeof *j->info + 64);
    if (!j->info) return no_memory(a);
    double work = (double)j->m[0].rows * (double)j->m[0].columns * (double)(j->m[0].rows + j->m[0].columns);
    int64_t grain = work < 2e5 ? 1 + (int64_t)(2e5 / (work + 1)) : 1;
    lksi_parallel(cpu, count, grain, run_range, j);
    if (j->failed_memory) return no_memory(a);
    for (int64_t i = 0; i < count; i++) {
        if (!j->info[i]) continue;
        if (j->info[i] == NOT_FINITE)
            return lksi_why(a, LKS_ERR_ARGUMENT, "matrix %lld of the batch holds NaN or infinity", (long long)i);
        if (a->attr.linalg.check || info_at < 0)
            return lksi_why(a, LKS_ERR_ARGUMENT, "matrix %lld of the batch %s (LAPACK's info is %d)",
                            (long long)i, trouble, j->info[i]);
        for (int k = 0; k < j->outputs; k++) {
            int64_t n = j->m[k].bytes / (j->dbl ? 8 : 4);
            for (int64_t e = 0; e < n; e++) {
                if (j->dbl) ((double *)at(j, k, i))[e] = __builtin_nan("");
                else ((float *)at(j, k, i))[e] = __builtin_nanf("");
            }
        }
    }
    if (info_at >= 0) {
        lksi_view info = a->out[info_at];
        info.data = j->info;
        lksi_contiguous_strides(&info);
        LKSI_LOCAL(copy)(cpu, &a->out[info_at], &info);
    }
    return LKS_OK;
}

static job job_for(const lksi_view *x, one_fn one, int outputs)
{
    return (job){.dtype = x->dtype, .dbl = x->dtype == LKS_F64 || x->dtype == LKS_C128, .one = one, .outputs = outputs,
                 .finite = -1};
}

/* LAPACK's NAME in the job's precision, real. */
#define LA(name, ...)                                                                                                  \
    (j->dbl ? LAPACKE_d##name##_work(LAPACK_COL_MAJOR, __VA_ARGS__)                                                    \
            : LAPACKE_s##name##_work(LAPACK_COL_MAJOR, __VA_ARGS__))
/* Asks how large a work array must be: `call` puts it into the first element of `answer`. */
#define ASK(call)                                                                                              \
    do {                                                                                                       \
        union { double d; float f; } number = {0};                                                             \
        void *answer = &number;                                                                                \
        call;                                                                                                  \
        j->lwork = (int64_t)(j->dbl ? number.d : (double)number.f) + 1;                                        \
        j->work = j->lwork * (j->dbl ? 8 : 4);                                                                 \
    } while (0)
#define N(x) ((lapack_int)(x))
#define LD(x) ((lapack_int)((x) > 0 ? (x) : 1))

/* --- Cholesky --- */

static int one_cholesky(const job *j, int64_t i, void *work)
{
    int64_t n = j->m[0].rows;
    (void)work;
    int info = LA(potrf, 'L', N(n), at(j, 0, i), LD(n));
    for (int64_t c = 1; c < n; c++) { /* what lies above is the input's */
        if (j->dbl) memset((double *)at(j, 0, i) + c * n, 0, (size_t)c * 8);
        else memset((float *)at(j, 0, i) + c * n, 0, (size_t)c * 4);
    }
    return info;
}

LKSI_KERNEL(linalg_cholesky_ex)
{
    job j = job_for(&a->in[0], one_cholesky, 1);
    if (!take_copy(cpu, &j.m[0], 0, &a->in[0], 0)) return no_memory(a);
    TRY(run(cpu, a, &j, 1, "is not positive definite"));
    give(cpu, &a->out[0], &j.m[0]);
    return LKS_OK;
}

/* --- triangular and general systems --- */

static int one_triangular(const job *j, int64_t i, void *work)
{
    int64_t n = j->m[0].rows, k = j->m[0].columns;
    (void)work;
    return LA(trtrs, j->attr->linalg.upper ? 'U' : 'L', j->attr->linalg.transpose ? 'T' : 'N',
              j->attr->linalg.unit ? 'U' : 'N', N(n), N(k), at(j, 1, i), LD(n), at(j, 0, i), LD(n));
}

LKSI_KERNEL(triangular_solve)
{
    job j = job_for(&a->in[0], one_triangular, 1);
    if (!take_copy(cpu, &j.m[0], 0, &a->in[1], 0) || !take_copy(cpu, &j.m[1], 1, &a->in[0], 0)) return no_memory(a);
    TRY(run(cpu, a, &j, -1, "is singular: its diagonal holds a 0"));
    give(cpu, &a->out[0], &j.m[0]);
    return LKS_OK;
}

static int one_solve(const job *j, int64_t i, void *work)
{
    lapack_int n = N(j->m[0].rows), k = N(j->m[0].columns), ld = LD(n);
    void *x = at(j, 1, i), *y = at(j, 0, i);
    switch (j->dtype) {
    case LKS_F32: return LAPACKE_sgesv_work(LAPACK_COL_MAJOR, n, k, x, ld, work, y, ld);
    case LKS_F64: return LAPACKE_dgesv_work(LAPACK_COL_MAJOR, n, k, x, ld, work, y, ld);
    case LKS_C64: return LAPACKE_cgesv_work(LAPACK_COL_MAJOR, n, k, x, ld, work, y, ld);
    default: return LAPACKE_zgesv_work(LAPACK_COL_MAJOR, n, k, x, ld, work, y, ld);
    }
}

LKSI_KERNEL(linalg_solve)
{
    job j = job_for(&a->in[0], one_solve, 1);
    if (!take_copy(cpu, &j.m[0], 0, &a->in[1], 0) || !take_copy(cpu, &j.m[1], 1, &a->in[0], 0)) return no_memory(a);
    j.work = j.m[0].rows * (int64_t)sizeof(lapack_int);
    TRY(run(cpu, a, &j, 1, "is singular"));
    give(cpu, &a->out[0], &j.m[0]);
    return LKS_OK;
}

static int one_lu(const job *j, int64_t i, void *work)
{
    (void)work;
    return LA(getrf, N(j->m[0].rows), N(j->m[0].columns), at(j, 0, i), LD(j->m[0].rows), at(j, 1, i));
}

/* A singular matrix has factors, too: they are given, info tells. */
LKSI_KERNEL(linalg_lu_factor)
{
    const lksi_view *x = &a->in[0];
    job j = job_for(x, one_lu, 0);
    if (!take_copy(cpu, &j.m[0], 0, x, 0) ||
        !take(cpu, &j.m[1], 1, &a->out[1], 1, LKS_I32, a->out[1].shape[a->out[1].ndim - 1], 1))
        return no_memory(a);
    TRY(run(cpu, a, &j, 2, "is singular"));
    give(cpu, &a->out[0], &j.m[0]);
    give(cpu, &a->out[1], &j.m[1]);
    return LKS_OK;
}

/* --- orthogonal factors --- */

static int one_geqrf(const job *j, int64_t i, void *work)
{
    return LA(geqrf, N(j->m[0].rows), N(j->m[0].columns), at(j, 0, i), LD(j->m[0].rows), at(j, 1, i), work,
              N(j->lwork));
}

LKSI_KERNEL(geqrf)
{
    const lksi_view *x = &a->in[0];
    job q = job_for(x, one_geqrf, 0), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    if (!take_copy(cpu, &j->m[0], 0, x, 0) || !take(cpu, &j->m[1], 1, &a->out[1], 1, x->dtype, k, 1))
        return no_memory(a);
    ASK(LA(geqrf, N(m), N(n), at(j, 0, 0), LD(m), at(j, 1, 0), answer, -1));
    TRY(run(cpu, a, j, -1, "has no factors"));
    give(cpu, &a->out[0], &j->m[0]);
    give(cpu, &a->out[1], &j->m[1]);
    return LKS_OK;
}

static int one_orgqr(const job *j, int64_t i, void *work)
{
    return LA(orgqr, N(j->m[0].rows), N(j->m[0].columns), N(j->k), at(j, 0, i), LD(j->m[0].rows), at(j, 1, i), work,
              N(j->lwork));
}

LKSI_KERNEL(orgqr)
{
    const lksi_view *x = &a->in[0], *tau = &a->in[1];
    job q = job_for(x, one_orgqr, 0), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1];
    j->k = tau->shape[tau->ndim - 1];
    if (!take_copy(cpu, &j->m[0], 0, x, 0) || !take(cpu, &j->m[1], 1, tau, 1, x->dtype, j->k, 1)) return no_memory(a);
    if (lksi_count(tau)) LKSI_LOCAL(copy)(cpu, &j->m[1].v, tau);
    ASK(LA(orgqr, N(m), N(n), N(j->k), at(j, 0, 0), LD(m), at(j, 1, 0), answer, -1));
    TRY(run(cpu, a, j, -1, "has no such factor"));
    give(cpu, &a->out[0], &j->m[0]);
    return LKS_OK;
}

static int one_ormqr(const job *j, int64_t i, void *work)
{
    int left = j->attr->linalg.left;
    return LA(ormqr, left ? 'L' : 'R', j->attr->linalg.transpose ? 'T' : 'N', N(j->m[0].rows), N(j->m[0].columns),
              N(j->k), at(j, 1, i), LD(j->m[1].rows), at(j, 2, i), at(j, 0, i), LD(j->m[0].rows), work, N(j->lwork));
}

LKSI_KERNEL(ormqr)
{
    const lksi_view *x = &a->in[0], *tau = &a->in[1], *c = &a->in[2];
    job q = job_for(x, one_ormqr, 0), *j = &q;
    j->attr = &a->attr;
    j->k = tau->shape[tau->ndim - 1];
    if (!take_copy(cpu, &j->m[0], 0, c, 0) || !take_copy(cpu, &j->m[1], 1, x, 0) ||
        !take(cpu, &j->m[2], 2, tau, 1, x->dtype, j->k, 1))
        return no_memory(a);
    if (lksi_count(tau)) LKSI_LOCAL(copy)(cpu, &j->m[2].v, tau);
    ASK(LA(ormqr, a->attr.linalg.left ? 'L' : 'R', 'N', N(j->m[0].rows), N(j->m[0].columns), N(j->k), at(j, 1, 0),
           LD(j->m[1].rows), at(j, 2, 0), at(j, 0, 0), LD(j->m[0].rows), answer, -1));
    TRY(run(cpu, a, j, -1, "cannot be multiplied"));
    give(cpu, &a->out[0], &j->m[0]);
    return LKS_OK;
}

/* m[0]: A, then the k columns of Q that are wanted; m[1]: R; m[2]: the scalars of the reflections. */
static int one_qr(const job *j, int64_t i, void *work)
{
    int64_t m = j->n, n = j->m[1].columns, rows = j->m[1].rows, columns = j->k, r = m < n ? m : n;
    int info = LA(geqrf, N(m), N(n), at(j, 0, i), LD(m), at(j, 2, i), work, N(j->lwork));
    size_t size = j->dbl ? 8 : 4;
    memset(at(j, 1, i), 0, (size_t)j->m[1].bytes);
    for (int64_t c = 0; c < n; c++) {
        int64_t top = c + 1 < rows ? c + 1 : rows;
        memcpy((char *)at(j, 1, i) + (size_t)(c * rows) * size, (char *)at(j, 0, i) + (size_t)(c * m) * size,
               (size_t)top * size);
    }
    if (info || columns == 0) return info;
    return LA(orgqr, N(m), N(columns), N(r < columns ? r : columns), at(j, 0, i), LD(m), at(j, 2, i), work,
              N(j->lwork));
}

LKSI_KERNEL(linalg_qr)
{
    const lksi_view *x = &a->in[0], *yq = &a->out[0], *yr = &a->out[1];
    job q = job_for(x, one_qr, 0), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    j->n = m;
    j->k = a->attr.linalg.mode == 2 ? 0 : yq->shape[yq->ndim - 1];
    int64_t wide = j->k > n ? j->k : n; /* memory for A and for Q */
    if (!take(cpu, &j->m[0], 0, x, 0, x->dtype, m, wide) ||
        !take(cpu, &j->m[1], 1, yr, 0, x->dtype, yr->shape[yr->ndim - 2], n) ||
        !take(cpu, &j->m[2], 2, x, 0, x->dtype, k, 1))
        return no_memory(a);
    lksi_view part = j->m[0].v;
    part.shape[part.ndim - 1] = n;
    LKSI_LOCAL(copy)(cpu, &part, x);
    int64_t lwork = 0;
    ASK(LA(geqrf, N(m), N(n), at(j, 0, 0), LD(m), at(j, 2, 0), answer, -1));
    lwork = j->lwork;
    if (j->k) {
        int64_t r = k < j->k ? k : j->k;
        ASK(LA(orgqr, N(m), N(j->k), N(r), at(j, 0, 0), LD(m), at(j, 2, 0), answer, -1));
    }
    if (j->lwork < lwork) j->lwork = lwork;
    j->work = j->lwork * (j->dbl ? 8 : 4);
    TRY(run(cpu, a, j, -1, "has no factors"));
    give(cpu, yq, &j->m[0]);
    give(cpu, yr, &j->m[1]);
    return LKS_OK;
}

/* --- singular values --- */

/* m[0]: U, m[1]: S, m[2]: Vh, m[3]: A */
static int one_svd(const job *j, int64_t i, void *work)
{
    int64_t m = j->m[3].rows, n = j->m[3].columns, k = m < n ? m : n;
    char how = j->attr->linalg.vectors ? (j->attr->linalg.mode ? 'A' : 'S') : 'N';
    lapack_int *iwork = (lapack_int *)(void *)((char *)work + j->lwork * (j->dbl ? 8 : 4));
    (void)k;
    return LA(gesdd, how, N(m), N(n), at(j, 3, i), LD(m), at(j, 1, i), at(j, 0, i), LD(m), at(j, 2, i),
              LD(j->m[2].rows), work, N(j->lwork), iwork);
}

LKSI_KERNEL(linalg_svd)
{
    const lksi_view *x = &a->in[0];
    job q = job_for(x, one_svd, 3), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    int vectors = a->attr.linalg.vectors, full = a->attr.linalg.mode;
    int64_t uc = vectors ? (full ? m : k) : 0, vr = vectors ? (full ? n : k) : 0;
    if (!take(cpu, &j->m[0], 0, x, 0, x->dtype, m, uc) || !take(cpu, &j->m[1], 1, &a->out[1], 1, x->dtype, k, 1) ||
        !take(cpu, &j->m[2], 2, x, 0, x->dtype, vr, n) || !take_copy(cpu, &j->m[3], 3, x, 0))
        return no_memory(a);
    char how = vectors ? (full ? 'A' : 'S') : 'N';
    lapack_int none[8];
    ASK(LA(gesdd, how, N(m), N(n), at(j, 3, 0), LD(m), at(j, 1, 0), at(j, 0, 0), LD(m), at(j, 2, 0), LD(vr),
           answer, -1, none));
    j->work += 8 * k * (int64_t)sizeof(lapack_int) + 64;
    j->finite = 3;
    TRY(run(cpu, a, j, -1, "has no singular values that LAPACK could find"));
    for (int side = 0; side < 3 && k == 0 && full; side += 2) /* of nothing: any basis */
        for (int64_t e = 0, size = side ? n : m; e < j->m[side].count * size; e++) {
            char *x = (char *)at(j, side, e / size) + (e % size) * size * (j->dbl ? 8 : 4);
            memset(x, 0, (size_t)(size * (j->dbl ? 8 : 4)));
            if (j->dbl) ((double *)(void *)x)[e % size] = 1;
            else ((float *)(void *)x)[e % size] = 1;
        }
    give(cpu, &a->out[1], &j->m[1]);
    if (vectors) {
        give(cpu, &a->out[0], &j->m[0]);
        give(cpu, &a->out[2], &j->m[2]);
    }
    return LKS_OK;
}

/* y = V diag(1 / S) U^T, by columns: m[0]: y; m[1]: U, S, Vh one after another; m[3]: A */
#define PINVERSE(T, P)                                                                                                 \
    static int pinverse_##P(const job *j, int64_t i, void *work) {                                                     \
        int64_t m = j->m[3].rows, n = j->m[3].columns, k = m < n ? m : n;                                              \
        T *y = at(j, 0, i), *u = at(j, 1, i), *s = u + m * k, *vh = s + k;                                             \
        lapack_int *iwork = (lapack_int *)(void *)((T *)work + j->lwork);                                              \
        int info = LAPACKE_##P##gesdd_work(LAPACK_COL_MAJOR, 'S', N(m), N(n), at(j, 3, i), LD(m), s, u, LD(m), vh,     \
                                           LD(k), work, N(j->lwork), iwork);                                           \
        memset(y, 0, (size_t)(n * m) * sizeof *y);                                                                     \
        double rcond = j->attr->linalg.rcond;                                                                          \
        if (rcond < 0) rcond = (sizeof(T) == 8 ? 0x1p-52 : 0x1p-23) * (double)(m > n ? m : n);                         \
        for (int64_t r = 0; r < k; r++) {                                                                              \
            if (!(s[r] > (T)rcond * s[0])) break;                                                                      \
            for (int64_t c = 0; c < m; c++) {                                                                          \
                T f = u[c + r * m] / s[r];                                                                             \
                for (int64_t e = 0; e < n; e++) y[e + c * n] += vh[r + e * k] * f;                                     \
            }                                                                                                          \
        }                                                                                                              \
        return info;                                                                                                   \
    }
PINVERSE(float, s)
PINVERSE(double, d)
static int one_pinverse(const job *j, int64_t i, void *work)
{
    return j->dbl ? pinverse_d(j, i, work) : pinverse_s(j, i, work);
}

LKSI_KERNEL(pinverse)
{
    const lksi_view *x = &a->in[0];
    job q = job_for(x, one_pinverse, 0), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
    if (!take(cpu, &j->m[0], 0, x, 0, x->dtype, n, m) ||
        !take(cpu, &j->m[1], 1, x, 0, x->dtype, m * k + k + k * n, 1) || !take_copy(cpu, &j->m[3], 3, x, 0))
        return no_memory(a);
    lapack_int none[8];
    void *u = at(j, 1, 0);
    ASK(LA(gesdd, 'S', N(m), N(n), at(j, 3, 0), LD(m), u, u, LD(m), u, LD(k), answer, -1, none));
    j->work += 8 * k * (int64_t)sizeof(lapack_int) + 64;
    j->finite = 3;
    TRY(run(cpu, a, j, -1, "has no singular values that LAPACK could find"));
    give(cpu, &a->out[0], &j->m[0]);
    return LKS_OK;
}

/* --- eigenvalues --- */

static int one_eigh(const job *j, int64_t i, void *work)
{
    int64_t n = j->m[0].rows;
    lapack_int *iwork = (lapack_int *)(void *)((char *)work + j->lwork * (j->dbl ? 8 : 4));
    return LA(syevd, j->attr->linalg.vectors ? 'V' : 'N', j->attr->linalg.upper ? 'U' : 'L', N(n), at(j, 0, i), LD(n),
              at(j, 1, i), work, N(j->lwork), iwork, N(j->k));
}

LKSI_KERNEL(linalg_eigh)
{
    const lksi_view *x = &a->in[0];
    job q = job_for(x, one_eigh, 2), *j = &q;
    int64_t n = x->shape[x->ndim - 1];
    lapack_int want[2] = {0};
    if (!take_copy(cpu, &j->m[0], 0, x, 0) || !take(cpu, &j->m[1], 1, &a->out[0], 1, x->dtype, n, 1))
        return no_memory(a);
    ASK(LA(syevd, a->attr.linalg.vectors ? 'V' : 'N', 'L', N(n), at(j, 0, 0), LD(n), at(j, 1, 0), answer, -1, want,
           -1));
    j->k = want[0] + 1;
    j->work += j->k * (int64_t)sizeof(lapack_int) + 64;
    j->finite = 0;
    TRY(run(cpu, a, j, -1, "has no eigenvalues that LAPACK could find"));
    give(cpu, &a->out[0], &j->m[1]);
    if (a->attr.linalg.vectors) give(cpu, &a->out[1], &j->m[0]);
    return LKS_OK;
}

/* m[0]: A, m[1]: pairs w, m[2]: pairs V. work: LAPACK's, then wr, wi, V. */
#define EIG(T, P)                                                                                                      \
    static int eig_##P(const job *j, int64_t i, void *work) {                                                          \
        int64_t n = j->m[0].rows;                                                                                      \
        T *wr = (T *)work + j->lwork, *wi = wr + n, *v = wi + n, *w = at(j, 1, i), *y = at(j, 2, i);                   \
        int vectors = j->attr->linalg.vectors;                                                                         \
        int info = LAPACKE_##P##geev_work(LAPACK_COL_MAJOR, 'N', vectors ? 'V' : 'N', N(n), at(j, 0, i), LD(n), wr,    \
                                          wi, NULL, 1, v, LD(n), work, N(j->lwork));                                   \
        for (int64_t c = 0; c < n; c++) {                                                                              \
            w[2 * c] = wr[c], w[2 * c + 1] = wi[c];                                                                    \
            if (!vectors) continue;                                                                                    \
            int pair = wi[c] > 0 ? 1 : wi[c] < 0 ? -1 : 0; /* the first of a pair, the second */                       \
            const T *re = v + (pair < 0 ? c - 1 : c) * n, *im = re + n;                                                \
            for (int64_t r = 0; r < n; r++) {                                                                          \
                y[2 * (c * n + r)] = re[r];                                                                            \
                y[2 * (c * n + r) + 1] = pair > 0 ? im[r] : pair < 0 ? -im[r] : 0;                                     \
            }                                                                                                          \
        }                                                                                                              \
        return info;                                                                                                   \
    }
EIG(float, s)
EIG(double, d)
static int one_eig(const job *j, int64_t i, void *work) { return j->dbl ? eig_d(j, i, work) : eig_s(j, i, work); }

LKSI_KERNEL(linalg_eig)
{
    const lksi_view *x = &a->in[0], *w = &a->out[0];
    job q = job_for(x, one_eig, 0), *j = &q;
    int64_t n = x->shape[x->ndim - 1], vectors = a->attr.linalg.vectors;
    if (!take_copy(cpu, &j->m[0], 0, x, 0) || !take(cpu, &j->m[1], 1, w, 1, w->dtype, n, 1) ||
        !take(cpu, &j->m[2], 2, x, 0, w->dtype, n, vectors ? n : 0))
        return no_memory(a);
    ASK(LA(geev, 'N', vectors ? 'V' : 'N', N(n), at(j, 0, 0), LD(n), (void *)at(j, 1, 0), (void *)at(j, 1, 0), NULL, 1,
           NULL, LD(n), answer, -1));
    j->work += (2 * n + n * n) * (j->dbl ? 8 : 4);
    j->finite = 0;
    TRY(run(cpu, a, j, -1, "has no eigenvalues that LAPACK could find"));
    give(cpu, &a->out[0], &j->m[1]);
    if (vectors) give(cpu, &a->out[1], &j->m[2]);
    return LKS_OK;
}

/* --- least squares: m[0]: B, then X; m[1]: A; m[2]: S --- */

static int one_lstsq(const job *j, int64_t i, void *work)
{
    int64_t m = j->m[1].rows, n = j->m[1].columns;
    lapack_int rank = 0, *iwork = (lapack_int *)(void *)((char *)work + j->lwork * (j->dbl ? 8 : 4));
    if (m == 0) memset(at(j, 0, i), 0, (size_t)(n * j->m[0].columns * (j->dbl ? 8 : 4))); /* LAPACK leaves it */
    int info = LA(gelsd, N(m), N(n), N(j->m[0].columns), at(j, 1, i), LD(m), at(j, 0, i), LD(j->m[0].rows), at(j, 2, i),
                  j->attr->linalg.rcond, &rank, work, N(j->lwork), iwork);
    ((int32_t *)(void *)j->m[3].data)[i] = rank;
    return info;
}

LKSI_KERNEL(linalg_lstsq)
{
    const lksi_view *x = &a->in[0], *b = &a->in[1], *s = &a->out[2];
    job q = job_for(x, one_lstsq, 0), *j = &q;
    int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1];
    lapack_int rank = 0, want[2] = {0};
    if (!take_copy(cpu, &j->m[0], 0, b, m > n ? m : n) || !take_copy(cpu, &j->m[1], 1, x, 0) ||
        !take(cpu, &j->m[2], 2, s, 1, x->dtype, s->shape[s->ndim - 1], 1) ||
        !take(cpu, &j->m[3], 3, s, 1, LKS_I32, 1, 1))
        return no_memory(a);
    ASK(LA(gelsd, N(m), N(n), N(j->m[0].columns), at(j, 1, 0), LD(m), at(j, 0, 0), LD(j->m[0].rows), at(j, 2, 0), -1,
           &rank, answer, -1, want));
    j->work += (want[0] + 1) * (int64_t)sizeof(lapack_int) + 64;
    j->finite = 1;
    TRY(run(cpu, a, j, -1, "has no singular values that LAPACK could find"));
    give(cpu, &a->out[0], &j->m[0]);
    lksi_view rank_of = a->out[1];
    rank_of.data = j->m[3].data;
    lksi_contiguous_strides(&rank_of);
    LKSI_LOCAL(copy)(cpu, &a->out[1], &rank_of);
    give(cpu, s, &j->m[2]);
    return LKS_OK;
}

#else

#define NO_LAPACK(name)                                                                                        \
    LKSI_KERNEL(name)                                                                                          \
    {                                                                                                          \
        (void)cpu;                                                                                             \
        return lksi_why(a, LKS_ERR_UNSUPPORTED,                                                                \
                        "this build has no LAPACK (Debian: install liblapacke-dev and build Lockstep again)"); \
    }
NO_LAPACK(linalg_cholesky_ex)
NO_LAPACK(triangular_solve)
NO_LAPACK(linalg_solve)
NO_LAPACK(linalg_lu_factor)
NO_LAPACK(geqrf)
NO_LAPACK(orgqr)
NO_LAPACK(ormqr)
NO_LAPACK(linalg_qr)
NO_LAPACK(linalg_svd)
NO_LAPACK(linalg_eigh)
NO_LAPACK(linalg_eig)
NO_LAPACK(linalg_lstsq)
NO_LAPACK(pinverse)
#endif

/* Row exchanges, one after another (from 1), as the order that they come to. */
LKSI_KERNEL(lu_perm)
{
    const lksi_view *p = &a->in[0], *y = &a->out[0];
    int64_t k = p->shape[p->ndim - 1], n = y->shape[y->ndim - 1], count = lksi_count(p) / (k > 0 ? k : 1);
    lksi_view dense = *p;
    lksi_contiguous_strides(&dense);
    dense.data = lksi_scratch(cpu, -1, 0, lksi_count(p) * 4 + 64);
    if (!dense.data) return lksi_why(a, LKS_ERR_MEMORY, "no memory for a copy");
    LKSI_LOCAL(copy)(cpu, &dense, p);
    if (k == 0) count = lksi_count(y) / (n > 0 ? n : 1);
    for (int64_t i = 0; i < count; i++) {
        const int32_t *swap = (const int32_t *)dense.data + i * k;
        int64_t *order = (int64_t *)y->data + i * n;
        for (int64_t r = 0; r < n; r++) order[r] = r;
        for (int64_t r = 0; r < k; r++) {
            int64_t with = swap[r] - 1;
            if (with < 0 || with >= n)
                return lksi_why(a, LKS_ERR_ARGUMENT, "pivot %d of %lld rows", swap[r], (long long)n);
            int64_t was = order[r];
            order[r] = order[with];
            order[with] = was;
        }
    }
    return LKS_OK;
}
