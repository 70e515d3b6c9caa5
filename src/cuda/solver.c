/* SPDX-License-Identifier: BSD-3-Clause
 *
 * solver.c - linear algebra by cuSOLVER and cuBLAS. Inputs are copied column by column into scratch memory, the library
 * works there, results are copied out. Small matrices of a batch are one call where the library has one, others a call
 * each, all on the row's stream; info stays on the device, and so does what goes wrong: it is a fault of a running
 * kernel, told by the next launch or wait. The meanings are those of src/cpu/linalg.c.
 */
#include "cuda/cumath.h"
#include "cuda/matrices.h"
#include <cublas_v2.h>
#include <cusolverDn.h>

/* Scratch slots of a stream; those below are lksi_cuda_product's. */
enum { MATRICES = LKSI_CUDA_PRODUCT_SLOTS, WORK };
_Static_assert(WORK < LKSI_CUDA_SLOTS, "slots");

/* Sizes up to which the calls for batches are the faster ones; that of singular values takes no more. */
#define BATCHED_CHOLESKY 256
#define BATCHED_LU 128
#define BATCHED_SVD 32

/* Host memory that the library works in; a larger one is added in front, as queued work may still use the others. */
typedef struct host_memory {
    struct host_memory *next;
    size_t bytes;
    double data[];
} host_memory;

typedef struct solver {
    cusolverDnHandle_t dn;
    cublasHandle_t blas;
    cusolverDnParams_t params;
    gesvdjInfo_t jacobi;
    host_memory *host;
} solver;

static void destroy(lksi_cuda *cuda, void *state)
{
    solver *s = state;
    if (s->jacobi) cusolverDnDestroyGesvdjInfo(s->jacobi);
    if (s->params) cusolverDnDestroyParams(s->params);
    if (s->dn) cusolverDnDestroy(s->dn);
    if (s->blas) cublasDestroy(s->blas);
    for (host_memory *h = s->host, *next; h; h = next) {
        next = h->next;
        lksi_cuda_free(cuda, h);
    }
    lksi_cuda_free(cuda, s);
}

/* A batch of matrices, column by column. */
typedef struct matrices {
    lksi_view v; /* the batch as a view of this memory */
    void *data;
    int64_t rows, columns, bytes; /* bytes: of one matrix */
} matrices;

#define MOST 5
typedef struct job {
    lksi_cuda *cuda;
    cudaStream_t stream;
    const lksi_args *a;
    solver *s;
    int dtype, dbl, complex, many; /* many: of several matrices, as a number for the batched calls */
    int64_t count;
    matrices m[MOST];
    int32_t *info, *bad, *pivots;
    void **p[2];
    void *work;
    int lwork;
} job;

static void *at(const job *j, int which, int64_t i) { return (char *)j->m[which].data + i * j->m[which].bytes; }

static lks_status failed(const lksi_args *a, const char *what, int status)
{
    return lksi_why(a, status == CUSOLVER_STATUS_ALLOC_FAILED ? LKS_ERR_MEMORY : LKS_ERR_DEVICE,
                    "%s: status %d", what, status);
}
/* One of the library's calls, and its name. */
#define DO(name, call)                                                                                         \
    do {                                                                                                       \
        int status_ = (int)(call);                                                                             \
        if (status_) return failed(j->a, name, status_);                                                       \
    } while (0)

static lks_status start(job *j, lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    memset(j, 0, sizeof *j);
    j->cuda = cuda, j->stream = stream, j->a = a;
    j->dtype = x->dtype;
    j->complex = x->dtype == LKS_C64 || x->dtype == LKS_C128;
    j->dbl = x->dtype == LKS_F64 || x->dtype == LKS_C128;
    j->count = 1;
    for (int d = 0; d < x->ndim - 2; d++) j->count *= x->shape[d];
    if (j->count > INT32_MAX) return lksi_why(a, LKS_ERR_UNSUPPORTED, "more than 2^31 matrices");
    j->many = (int)j->count;
    void **state = lksi_cuda_state(cuda, LKSI_CUDA_SOLVER, destroy);
    j->s = *state;
    if (!j->s) {
        solver *s = lksi_cuda_alloc(cuda, sizeof *s);
        if (!s) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
        int status = cublasCreate(&s->blas);
        if (!status) status = cusolverDnCreate(&s->dn);
        if (!status) status = cusolverDnCreateParams(&s->params);
        if (!status) status = cusolverDnCreateGesvdjInfo(&s->jacobi);
        if (status) {
            destroy(cuda, s);
            return failed(a, "cuSOLVER cannot be opened", status);
        }
        *state = j->s = s;
    }
    DO("cusolverDnSetStream", cusolverDnSetStream(j->s->dn, stream));
    DO("cublasSetStream", cublasSetStream(j->s->blas, stream));
    return LKS_OK;
}

static int size_of(int dtype)
{
    return dtype == LKS_C128 ? 16 : dtype == LKS_F64 || dtype == LKS_C64 ? 8 : 4;
}

/* m[which] is a batch like that of input 0; vectors: of one column, without a dim for it. */
static void shape(job *j, int which, int vectors, int dtype, int64_t rows, int64_t columns)
{
    matrices *m = &j->m[which];
    const lksi_view *like = &j->a->in[0];
    int batch = like->ndim - 2;
    int64_t step = rows * columns;
    m->v = *like;
    m->v.dtype = dtype;
    m->v.ndim = batch + 2 - vectors;
    m->rows = rows, m->columns = columns;
    m->bytes = step * size_of(dtype);
    for (int d = batch - 1; d >= 0; d--) {
        m->v.stride[d] = step;
        step *= like->shape[d];
    }
    m->v.shape[batch] = rows, m->v.stride[batch] = 1;
    if (!vectors) m->v.shape[batch + 1] = columns, m->v.stride[batch + 1] = rows;
}

static int64_t aligned(int64_t bytes) { return (bytes + 256) / 256 * 256; }

/* Memory for m[0 .. n), info, and what is asked for. */
static lks_status memory(job *j, int n, int64_t pivots, int pointers)
{
    int64_t numbers = aligned(j->count * 4), all = 2 * numbers + aligned(j->count * pivots * 4), each[2] = {0};
    for (int i = 0; i < n; i++) all += aligned(j->count * j->m[i].bytes);
    for (int i = 0; i < pointers; i++) all += each[i] = aligned(j->count * (int64_t)sizeof(void *));
    void *block;
    TRY(lksi_cuda_scratch(j->cuda, j->stream, j->a, MATRICES, all, &block));
    char *p = block;
    for (int i = 0; i < n; i++) {
        j->m[i].data = j->m[i].v.data = p;
        p += aligned(j->count * j->m[i].bytes);
    }
    for (int i = 0; i < pointers; i++) {
        j->p[i] = (void **)(void *)p;
        p += each[i];
    }
    j->info = (int32_t *)(void *)p, p += numbers;
    j->bad = (int32_t *)(void *)p, p += numbers;
    j->pivots = (int32_t *)(void *)p;
    return LKS_OK;
}

static lks_status work(job *j, int64_t bytes)
{
    return lksi_cuda_scratch(j->cuda, j->stream, j->a, WORK, bytes > 0 ? bytes : 1, &j->work);
}
/* After a question for the size in elements. */
static lks_status elements(job *j) { return work(j, (int64_t)j->lwork * size_of(j->dtype)); }

/* x into the first rows and columns of m[which]. */
static lks_status take(job *j, int which, const lksi_view *x)
{
    lksi_view part = j->m[which].v;
    for (int d = 0; d < x->ndim; d++) part.shape[d] = x->shape[d];
    return lksi_cuda_copy_view(j->stream, j->a, &part, x);
}

static lks_status give_view(job *j, const lksi_view *y, const lksi_view *from)
{
    lksi_view part = *from;
    int64_t n = 1;
    for (int d = 0; d < y->ndim; d++) {
        part.shape[d] = y->shape[d];
        n *= y->shape[d];
    }
    return n ? lksi_cuda_copy_view(j->stream, j->a, y, &part) : LKS_OK;
}

/* The first rows and columns of m[which] to output k. */
static lks_status give(job *j, int k, int which) { return give_view(j, &j->a->out[k], &j->m[which].v); }

static void nothing_wrong(job *j) { cudaMemsetAsync(j->info, 0, (size_t)j->count * 4, j->stream); }

static void clean(job *j, int which)
{
    lksi_matrices_clean(j->stream, j->m[which].data, j->dbl, j->m[which].rows * j->m[which].columns, j->count, j->bad);
}

static void pointers(job *j, int which, int to)
{
    lksi_matrices_pointers(j->stream, j->p[to], j->m[which].data, j->m[which].bytes, j->count);
}

/* Info to output info_at (-1: nowhere, and what is wrong is a fault); m[0 .. outputs) of those matrices become NaN.
 * looked: `bad` was filled. */
static lks_status finish(job *j, int info_at, int outputs, int looked, int trouble)
{
    lksi_matrices_end end = {.info = j->info, .bad = looked ? j->bad : NULL, .op = j->a->op, .trouble = trouble,
                             .to = info_at >= 0 ? j->a->out[info_at].data : NULL,
                             .error = info_at < 0 || j->a->attr.linalg.check, .outputs = outputs};
    for (int k = 0; k < outputs; k++) {
        end.data[k] = j->m[k].data;
        end.each[k] = j->m[k].bytes / (j->dbl ? 8 : 4);
    }
    lksi_matrices_finish(j->stream, lksi_cuda_fault(j->cuda), end, j->dbl, j->count);
    return lksi_cuda_launched(j->a);
}

#define N(x) ((int)(x))
#define LD(x) ((int)((x) > 0 ? (x) : 1))
#define ROWS(x) ((x)->shape[(x)->ndim - 2])
#define COLUMNS(x) ((x)->shape[(x)->ndim - 1])
static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
#define EACH for (int64_t i = 0; i < j->count; i++)

/* cuSOLVER's NAME in the job's precision, real. */
#define DN(name, ...)                                                                                          \
    DO("cusolverDn" #name,                                                                                     \
       j->dbl ? cusolverDnD##name(j->s->dn, __VA_ARGS__) : cusolverDnS##name(j->s->dn, __VA_ARGS__))
/* The same, and cuBLAS's, in all four. */
#define FOUR(library, handle, name, ...)                                                                       \
    DO(#library #name,                                                                                         \
       j->complex ? (int)(j->dbl ? library##Z##name(handle, __VA_ARGS__) : library##C##name(handle, __VA_ARGS__)) \
                  : (int)(j->dbl ? library##D##name(handle, __VA_ARGS__) : library##S##name(handle, __VA_ARGS__)))

/* --- Cholesky --- */

CUMATH(linalg_cholesky_ex)
{
    const lksi_view *x = &a->in[0];
    const int n = N(ROWS(x));
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, n, n);
    TRY(memory(j, 1, 0, 1));
    TRY(take(j, 0, x));
    if (n == 0) {
        nothing_wrong(j);
    } else if (j->count > 1 && n <= BATCHED_CHOLESKY) {
        pointers(j, 0, 0);
        DN(potrfBatched, CUBLAS_FILL_MODE_LOWER, n, (void *)j->p[0], n, j->info, j->many);
    } else {
        DN(potrf_bufferSize, CUBLAS_FILL_MODE_LOWER, n, at(j, 0, 0), n, &j->lwork);
        TRY(elements(j));
        EACH DN(potrf, CUBLAS_FILL_MODE_LOWER, n, at(j, 0, i), n, j->work, j->lwork, j->info + i);
    }
    lksi_matrices_lower(stream, j->m[0].data, n, j->dbl, j->count);
    TRY(finish(j, 1, 1, 0, LKSI_TROUBLE_DEFINITE));
    return give(j, 0, 0);
}

/* --- triangular and general systems --- */

CUMATH(triangular_solve)
{
    const lksi_view *x = &a->in[0], *b = &a->in[1];
    const int n = N(ROWS(x)), k = N(COLUMNS(b));
    cublasFillMode_t uplo = a->attr.linalg.upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
    cublasOperation_t trans = a->attr.linalg.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasDiagType_t unit = a->attr.linalg.unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
    const double one = 1;
    const float one_f = 1;
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count || !n) return LKS_OK;
    shape(j, 0, 0, j->dtype, n, k);
    shape(j, 1, 0, j->dtype, n, n);
    TRY(memory(j, 2, 0, 2));
    TRY(take(j, 0, b));
    TRY(take(j, 1, x));
    if (unit == CUBLAS_DIAG_UNIT) nothing_wrong(j);
    else lksi_matrices_diagonal(stream, j->m[1].data, n, j->dbl, j->count, j->info);
    if (k && j->count > 1 && n <= BATCHED_LU) {
        pointers(j, 1, 0);
        pointers(j, 0, 1);
        DO("cublasTrsmBatched",
           j->dbl ? cublasDtrsmBatched(j->s->blas, CUBLAS_SIDE_LEFT, uplo, trans, unit, n, k, &one, (void *)j->p[0], n,
                                       (void *)j->p[1], n, j->many)
                  : cublasStrsmBatched(j->s->blas, CUBLAS_SIDE_LEFT, uplo, trans, unit, n, k, &one_f, (void *)j->p[0],
                                       n, (void *)j->p[1], n, j->many));
    } else if (k) {
        EACH DO("cublasTrsm",
                j->dbl ? cublasDtrsm(j->s->blas, CUBLAS_SIDE_LEFT, uplo, trans, unit, n, k, &one, at(j, 1, i), n,
                                     at(j, 0, i), n)
                       : cublasStrsm(j->s->blas, CUBLAS_SIDE_LEFT, uplo, trans, unit, n, k, &one_f, at(j, 1, i), n,
                                     at(j, 0, i), n));
    }
    TRY(finish(j, -1, 1, 0, LKSI_TROUBLE_DIAGONAL));
    return give(j, 0, 0);
}

/* Factors of m[which], pivots to j->pivots. */
static lks_status factor(job *j, int which)
{
    const int m = N(j->m[which].rows), n = N(j->m[which].columns), k = m < n ? m : n;
    if (k == 0) {
        nothing_wrong(j);
    } else if (j->count > 1 && m == n && n <= BATCHED_LU) {
        pointers(j, which, 0);
        FOUR(cublas, j->s->blas, getrfBatched, n, (void *)j->p[0], n, j->pivots, j->info, j->many);
    } else {
        FOUR(cusolverDn, j->s->dn, getrf_bufferSize, m, n, at(j, which, 0), m, &j->lwork);
        TRY(elements(j));
        EACH FOUR(cusolverDn, j->s->dn, getrf, m, n, at(j, which, i), m, j->work, j->pivots + i * k, j->info + i);
    }
    return LKS_OK;
}

CUMATH(linalg_solve)
{
    const lksi_view *x = &a->in[0], *b = &a->in[1];
    const int n = N(ROWS(x)), k = N(COLUMNS(b));
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, n, k);
    shape(j, 1, 0, j->dtype, n, n);
    TRY(memory(j, 2, n + 1, 2));
    TRY(take(j, 0, b));
    TRY(take(j, 1, x));
    TRY(factor(j, 1));
    if (n && k && j->count > 1 && n <= BATCHED_LU) {
        int info = 0;
        pointers(j, 0, 1);
        FOUR(cublas, j->s->blas, getrsBatched, CUBLAS_OP_N, n, k, (void *)j->p[0], n, j->pivots, (void *)j->p[1], n,
             &info, j->many);
    } else if (n && k) { /* its info says nothing about the matrix: to `bad`, which nobody reads here */
        EACH FOUR(cusolverDn, j->s->dn, getrs, CUBLAS_OP_N, n, k, at(j, 1, i), n, j->pivots + i * n, at(j, 0, i), n,
                  j->bad + i);
    }
    TRY(finish(j, 1, 1, 0, LKSI_TROUBLE_SINGULAR));
    return give(j, 0, 0);
}

/* A singular matrix has factors, too: they are given, info tells. */
CUMATH(linalg_lu_factor)
{
    const lksi_view *x = &a->in[0];
    const int64_t k = least(ROWS(x), COLUMNS(x));
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, ROWS(x), COLUMNS(x));
    TRY(memory(j, 1, k, 1));
    TRY(take(j, 0, x));
    TRY(factor(j, 0));
    TRY(finish(j, 2, 0, 0, LKSI_TROUBLE_SINGULAR));
    TRY(give(j, 0, 0));
    lksi_view pivots = a->out[1];
    pivots.data = j->pivots;
    return give_view(j, &a->out[1], &pivots);
}

CUMATH(lu_perm)
{
    const lksi_view *p = &a->in[0], *y = &a->out[0];
    int64_t k = COLUMNS(p), n = COLUMNS(y), count = 1;
    lksi_view dense = *p;
    for (int d = 0; d < p->ndim - 1; d++) count *= p->shape[d];
    if (!count || !n) return LKS_OK;
    TRY(lksi_cuda_scratch(cuda, stream, a, MATRICES, count * k * 4 + 4, &dense.data));
    for (int64_t d = p->ndim - 1, step = 1; d >= 0; d--) {
        dense.stride[d] = step;
        step *= p->shape[d];
    }
    if (k) TRY(lksi_cuda_copy_view(stream, a, &dense, p));
    lksi_matrices_order(stream, lksi_cuda_fault(cuda), a->op, y->data, n, dense.data, k, count);
    return lksi_cuda_launched(a);
}

/* --- orthogonal factors --- */

/* m[which] [m, >= n], its scalars to m[tau]. */
static lks_status reflect(job *j, int which, int n, int tau)
{
    const int m = N(j->m[which].rows);
    if (m == 0 || n == 0) {
        nothing_wrong(j);
        return LKS_OK;
    }
    DN(geqrf_bufferSize, m, n, at(j, which, 0), m, &j->lwork);
    TRY(elements(j));
    EACH DN(geqrf, m, n, at(j, which, i), m, at(j, tau, i), j->work, j->lwork, j->info + i);
    return LKS_OK;
}

/* The first n columns of the product of k reflections, in their place. */
static lks_status multiply_out(job *j, int which, int n, int k, int tau)
{
    const int m = N(j->m[which].rows);
    if (n == 0 || m == 0) return LKS_OK;
    if (k == 0) {
        lksi_matrices_eye(j->stream, j->m[which].data, m, j->m[which].columns, j->dbl, j->count);
        return lksi_cuda_launched(j->a);
    }
    DN(orgqr_bufferSize, m, n, k, at(j, which, 0), m, at(j, tau, 0), &j->lwork);
    TRY(elements(j));
    EACH DN(orgqr, m, n, k, at(j, which, i), m, at(j, tau, i), j->work, j->lwork, j->info + i);
    return LKS_OK;
}

CUMATH(geqrf)
{
    const lksi_view *x = &a->in[0];
    const int64_t m = ROWS(x), n = COLUMNS(x);
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, m, n);
    shape(j, 1, 1, j->dtype, least(m, n), 1);
    TRY(memory(j, 2, 0, 0));
    TRY(take(j, 0, x));
    TRY(reflect(j, 0, N(n), 1));
    TRY(give(j, 0, 0));
    return give(j, 1, 1);
}

CUMATH(orgqr)
{
    const lksi_view *x = &a->in[0], *tau = &a->in[1];
    const int64_t k = COLUMNS(tau);
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, ROWS(x), COLUMNS(x));
    shape(j, 1, 1, j->dtype, k, 1);
    TRY(memory(j, 2, 0, 0));
    TRY(take(j, 0, x));
    if (k) TRY(take(j, 1, tau));
    TRY(multiply_out(j, 0, N(COLUMNS(x)), N(k), 1));
    return give(j, 0, 0);
}

CUMATH(ormqr)
{
    const lksi_view *x = &a->in[0], *tau = &a->in[1], *c = &a->in[2];
    const int m = N(ROWS(c)), n = N(COLUMNS(c)), k = N(COLUMNS(tau)), rows = N(ROWS(x));
    cublasSideMode_t side = a->attr.linalg.left ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
    cublasOperation_t trans = a->attr.linalg.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count || !m || !n) return LKS_OK;
    shape(j, 0, 0, j->dtype, m, n);
    shape(j, 1, 0, j->dtype, rows, COLUMNS(x));
    shape(j, 2, 1, j->dtype, k, 1);
    TRY(memory(j, 3, 0, 0));
    TRY(take(j, 0, c));
    if (k) {
        TRY(take(j, 1, x));
        TRY(take(j, 2, tau));
        DN(ormqr_bufferSize, side, trans, m, n, k, at(j, 1, 0), LD(rows), at(j, 2, 0), at(j, 0, 0), m, &j->lwork);
        TRY(elements(j));
        EACH DN(ormqr, side, trans, m, n, k, at(j, 1, i), LD(rows), at(j, 2, i), at(j, 0, i), m, j->work, j->lwork,
                j->info + i);
    }
    return give(j, 0, 0);
}

CUMATH(linalg_qr)
{
    const lksi_view *x = &a->in[0], *yq = &a->out[0], *yr = &a->out[1];
    const int64_t m = ROWS(x), n = COLUMNS(x), k = least(m, n), rows = ROWS(yr);
    const int64_t columns = a->attr.linalg.mode == 2 ? 0 : COLUMNS(yq); /* of Q */
    const int64_t wide = columns > n ? columns : n;                     /* memory for A and for Q */
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    shape(j, 0, 0, j->dtype, m, wide);
    shape(j, 1, 0, j->dtype, rows, n);
    shape(j, 2, 1, j->dtype, k, 1);
    TRY(memory(j, 3, 0, 0));
    if (n) TRY(take(j, 0, x));
    TRY(reflect(j, 0, N(n), 2));
    lksi_matrices_upper(stream, j->m[1].data, rows, n, j->m[0].data, m, m * wide, j->dbl, j->count);
    TRY(multiply_out(j, 0, N(columns), N(least(k, columns)), 2));
    if (columns) TRY(give(j, 0, 0));
    return give(j, 1, 1);
}

/* --- singular values --- */

/* A of M rows and N <= M columns is x, or its transpose where that has fewer. */
enum { U, S, V, A, REST };
typedef struct factors {
    int turned;     /* A is x transposed */
    int64_t m, n;
    lksi_view u, v; /* left and right vectors of x as columns; of U the first N that S goes with, or all (full) */
} factors;

static void swap(lksi_view *v)
{
    int64_t *n = v->shape + v->ndim - 2, *s = v->stride + v->ndim - 2, t = n[0];
    n[0] = n[1], n[1] = t;
    t = s[0], s[0] = s[1], s[1] = t;
}

/* m[U] = U of A, m[S], m[V] = V of A or its transpose; more: of what the caller described in m[REST], memory for it. */
static lks_status decompose(job *j, factors *f, int vectors, int full, int more)
{
    lksi_view x = j->a->in[0];
    f->turned = ROWS(&x) < COLUMNS(&x);
    if (f->turned) swap(&x);
    const int m = N(f->m = ROWS(&x)), n = N(f->n = COLUMNS(&x));
    const int batched = j->count > 1 && m <= BATCHED_SVD && n > 0;
    const int columns = !vectors ? 0 : full || batched ? m : n;
    shape(j, U, 0, j->dtype, m, columns);
    shape(j, S, 1, j->dtype, n, 1);
    shape(j, V, 0, j->dtype, vectors ? n : 0, n);
    shape(j, A, 0, j->dtype, m, n);
    TRY(memory(j, REST + more, 0, 0));
    nothing_wrong(j);
    if (n > 0) TRY(take(j, A, &x));
    clean(j, A);
    if (n == 0) { /* of nothing: any basis */
        lksi_matrices_eye(j->stream, j->m[U].data, m, columns, j->dbl, j->count);
    } else if (batched) {
        cusolverEigMode_t how = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
        DN(gesvdjBatched_bufferSize, how, m, n, at(j, A, 0), m, at(j, S, 0), at(j, U, 0), m, at(j, V, 0), n, &j->lwork,
           j->s->jacobi, j->many);
        TRY(elements(j));
        DN(gesvdjBatched, how, m, n, at(j, A, 0), m, at(j, S, 0), at(j, U, 0), m, at(j, V, 0), n, j->work, j->lwork,
           j->info, j->s->jacobi, j->many);
    } else {
        signed char how = !vectors ? 'N' : full ? 'A' : 'S', other = vectors ? 'S' : 'N';
        DN(gesvd_bufferSize, m, n, &j->lwork);
        TRY(elements(j));
        EACH DN(gesvd, how, other, m, n, at(j, A, i), m, at(j, S, i), at(j, U, i), m, at(j, V, i), n, j->work, j->lwork,
                NULL, j->info + i);
    }
    TRY(finish(j, -1, 3, 1, LKSI_TROUBLE_VALUES));
    f->u = j->m[U].v;
    f->v = j->m[V].v;
    if (!batched) swap(&f->v);
    if (f->turned) {
        lksi_view t = f->u;
        f->u = f->v, f->v = t;
    }
    return LKS_OK;
}

CUMATH(linalg_svd)
{
    job q, *j = &q;
    factors f;
    const int vectors = a->attr.linalg.vectors;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    TRY(decompose(j, &f, vectors, a->attr.linalg.mode, 0));
    TRY(give(j, 1, S));
    if (!vectors) return LKS_OK;
    TRY(give_view(j, &a->out[0], &f.u));
    swap(&f.v);
    return give_view(j, &a->out[2], &f.v);
}

/* Both sides of x with k columns each, the left or the right one divided by S. */
static lks_status inverted(job *j, factors *f, double rcond, int32_t *rank)
{
    const double eps = j->dbl ? 0x1p-52 : 0x1p-23;
    if (rcond < 0) rcond = eps * (double)f->m;
    lksi_matrices_divide(j->stream, j->m[U].data, f->m, f->m * j->m[U].columns, j->m[S].data, f->n, rcond, rank, j->dbl,
                         j->count);
    COLUMNS(&f->u) = COLUMNS(&f->v) = f->n;
    return lksi_cuda_launched(j->a);
}

CUMATH(pinverse)
{
    const lksi_view *x = &a->in[0];
    job q, *j = &q;
    factors f;
    TRY(start(j, cuda, stream, a));
    if (!j->count || !ROWS(x) || !COLUMNS(x)) return LKS_OK;
    TRY(decompose(j, &f, 1, 0, 0));
    TRY(inverted(j, &f, a->attr.linalg.rcond, NULL));
    swap(&f.u);
    return lksi_cuda_product(cuda, stream, a, &f.v, &f.u, &a->out[0]);
}

/* V S^-1 (U^T b) */
CUMATH(linalg_lstsq)
{
    const lksi_view *x = &a->in[0], *b = &a->in[1], *y = &a->out[0];
    const int64_t k = least(ROWS(x), COLUMNS(x)), c = COLUMNS(b);
    job q, *j = &q;
    factors f;
    TRY(start(j, cuda, stream, a));
    if (!j->count) return LKS_OK;
    if (k == 0) {
        cudaMemsetAsync(a->out[1].data, 0, (size_t)j->count * 4, stream);
        cudaMemsetAsync(y->data, 0, (size_t)(j->count * COLUMNS(x) * c * (j->dbl ? 8 : 4)), stream);
        return lksi_cuda_launched(a);
    }
    shape(j, REST, 0, j->dtype, c, k); /* seen as k rows of c */
    TRY(decompose(j, &f, 1, 0, 1));
    TRY(inverted(j, &f, a->attr.linalg.rcond, a->out[1].data));
    TRY(give(j, 2, S));
    if (c == 0 || COLUMNS(x) == 0) return LKS_OK;
    lksi_view z = j->m[REST].v;
    swap(&z);
    swap(&f.u);
    TRY(lksi_cuda_product(cuda, stream, a, &f.u, b, &z));
    return lksi_cuda_product(cuda, stream, a, &f.v, &z, y);
}

/* --- eigenvalues --- */

#if CUSOLVER_VERSION >= 11702
static cudaDataType type_of(const job *j) { return j->dbl ? CUDA_R_64F : CUDA_R_32F; }

/* Memory for a call of the 64-bit interface. Where it works on the host as well it cannot be gathered for a graph. */
static lks_status both_sides(job *j, size_t device, size_t host, void **p)
{
    solver *s = j->s;
    j->lwork = 0;
    if (host) TRY(lksi_cuda_eager(j->cuda, j->a));
    if (host && (!s->host || s->host->bytes < host)) {
        host_memory *h = lksi_cuda_alloc(j->cuda, (int64_t)(sizeof *h + host));
        if (!h) return lksi_why(j->a, LKS_ERR_MEMORY, "no host memory");
        h->next = s->host, h->bytes = host;
        s->host = h;
    }
    *p = host ? s->host->data : NULL;
    return work(j, (int64_t)device);
}
#endif

CUMATH(linalg_eigh)
{
    const lksi_view *x = &a->in[0];
    const int n = N(ROWS(x)), vectors = a->attr.linalg.vectors;
    cusolverEigMode_t how = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
    cublasFillMode_t uplo = a->attr.linalg.upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
    job q, *j = &q;
    TRY(start(j, cuda, stream, a));
    if (!j->count || !n) return LKS_OK;
    shape(j, 0, 0, j->dtype, n, n);
    shape(j, 1, 1, j->dtype, n, 1);
    TRY(memory(j, 2, 0, 0));
    TRY(take(j, 0, x));
    clean(j, 0);
#if CUSOLVER_VERSION >= 11702
    if (j->count > 1) {
        size_t device = 0, host = 0;
        void *p;
        cudaDataType t = type_of(j);
        DO("cusolverDnXsyevBatched_bufferSize",
           cusolverDnXsyevBatched_bufferSize(j->s->dn, j->s->params, how, uplo, n, t, at(j, 0, 0), n, t, at(j, 1, 0), t,
                                             &device, &host, j->count));
        TRY(both_sides(j, device, host, &p));
        DO("cusolverDnXsyevBatched",
           cusolverDnXsyevBatched(j->s->dn, j->s->params, how, uplo, n, t, at(j, 0, 0), n, t, at(j, 1, 0), t, j->work,
                                  device, p, host, j->info, j->count));
    } else
#endif
    {
        DN(syevd_bufferSize, how, uplo, n, at(j, 0, 0), n, at(j, 1, 0), &j->lwork);
        TRY(elements(j));
        EACH DN(syevd, how, uplo, n, at(j, 0, i), n, at(j, 1, i), j->work, j->lwork, j->info + i);
    }
    TRY(finish(j, -1, 2, 1, LKSI_TROUBLE_EIGEN));
    TRY(give(j, 0, 1));
    return vectors ? give(j, 1, 0) : LKS_OK;
}

/* m[0]: w, m[1]: V, m[2]: A, m[3]: wr and wi, m[4]: V as LAPACK has it */
CUMATH(linalg_eig)
{
#if CUSOLVER_VERSION >= 11702
    const lksi_view *x = &a->in[0];
    const int n = N(ROWS(x)), vectors = a->attr.linalg.vectors, complex = a->out[0].dtype;
    cusolverEigMode_t how = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR,
                      none = CUSOLVER_EIG_MODE_NOVECTOR;
    job q, *j = &q;
    size_t device = 0, host = 0;
    void *p;
    TRY(start(j, cuda, stream, a));
    if (!j->count || !n) return LKS_OK;
    shape(j, 0, 1, complex, n, 1);
    shape(j, 1, 0, complex, n, vectors ? n : 0);
    shape(j, 2, 0, j->dtype, n, n);
    shape(j, 3, 0, j->dtype, n, 2);
    shape(j, 4, 0, j->dtype, n, vectors ? n : 0);
    TRY(memory(j, 5, 0, 0));
    TRY(take(j, 2, x));
    clean(j, 2);
    cudaDataType t = type_of(j);
    DO("cusolverDnXgeev_bufferSize",
       cusolverDnXgeev_bufferSize(j->s->dn, j->s->params, none, how, n, t, at(j, 2, 0), n, t, at(j, 3, 0), t, NULL, n,
                                  t, at(j, 4, 0), n, t, &device, &host));
    TRY(both_sides(j, device, host, &p));
    EACH DO("cusolverDnXgeev",
            cusolverDnXgeev(j->s->dn, j->s->params, none, how, n, t, at(j, 2, i), n, t, at(j, 3, i), t, NULL, n, t,
                            at(j, 4, i), n, t, j->work, device, p, host, j->info + i));
    lksi_matrices_pairs(stream, j->m[0].data, vectors ? j->m[1].data : NULL, j->m[3].data, j->m[4].data, n, j->dbl,
                        j->count);
    TRY(finish(j, -1, 2, 1, LKSI_TROUBLE_EIGEN));
    TRY(give(j, 0, 0));
    return vectors ? give(j, 1, 1) : LKS_OK;
#else
    (void)cuda, (void)stream;
    return lksi_why(a, LKS_ERR_UNSUPPORTED, "on a GPU it needs cuSOLVER 11.7.2 (CUDA 12.8) or later");
#endif
}
