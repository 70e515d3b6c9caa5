/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_linalg.c - shape rules of factorisations and solvers. The last two dims are a matrix, the others a batch, alike
 * in all inputs (what the public functions broadcast is expanded before).
 */
#include "table/table.h"

static lks_status real_matrix(lksi_args *a, int i, int square, int complex_too)
{
    const lksi_view *x = &a->in[i];
    char s[200];
    if (x->ndim < 2)
        return lksi_why(a, LKS_ERR_SHAPE, "%s is no matrix", lksi_shape_text(x, s, sizeof s));
    if (x->dtype != LKS_F32 && x->dtype != LKS_F64 && !(complex_too && lks_dtype_is_complex(x->dtype)))
        return lksi_why(a, LKS_ERR_DTYPE, "%s; float32 or float64 is needed", lks_dtype_name(x->dtype));
    if (square && x->shape[x->ndim - 1] != x->shape[x->ndim - 2])
        return lksi_why(a, LKS_ERR_SHAPE, "%s is not square", lksi_shape_text(x, s, sizeof s));
    for (int d = x->ndim - 2; d < x->ndim; d++)
        if (x->shape[d] > INT32_MAX / 4)
            return lksi_why(a, LKS_ERR_UNSUPPORTED, "%s is too large for LAPACK", lksi_shape_text(x, s, sizeof s));
    return LKS_OK;
}

/* Inputs 0 and i have one dtype and batch; `last` dims of input i are its own. */
static lks_status alike(lksi_args *a, int i, int last)
{
    const lksi_view *x = &a->in[0], *y = &a->in[i];
    char s[200], t[200];
    if (x->dtype != y->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "%s with %s", lks_dtype_name(x->dtype), lks_dtype_name(y->dtype));
    int same = x->ndim - 2 == y->ndim - last;
    for (int d = 0; same && d < x->ndim - 2; d++) same = x->shape[d] == y->shape[d];
    if (!same)
        return lksi_why(a, LKS_ERR_SHAPE, "%s and %s are not of one batch", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    return LKS_OK;
}

/* Output k: the batch of input 0, then rows and columns (-1: that dim is not there). */
static void result(lksi_args *a, int k, lks_dtype dtype, int64_t rows, int64_t columns)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[k];
    y->dtype = dtype;
    y->ndim = x->ndim - 2;
    for (int d = 0; d < y->ndim; d++) y->shape[d] = x->shape[d];
    if (rows >= 0) y->shape[y->ndim++] = rows;
    if (columns >= 0) y->shape[y->ndim++] = columns;
    lksi_contiguous_strides(y);
}

#define ROWS(i) a->in[i].shape[a->in[i].ndim - 2]
#define COLUMNS(i) a->in[i].shape[a->in[i].ndim - 1]
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

lks_status lksi_infer_linalg_cholesky_ex(lksi_args *a)
{
    TRY(real_matrix(a, 0, 1, 0));
    result(a, 0, a->in[0].dtype, ROWS(0), ROWS(0));
    result(a, 1, LKS_I32, -1, -1);
    return LKS_OK;
}

static lks_status system_of(lksi_args *a, int complex_too)
{
    char s[200], t[200];
    TRY(real_matrix(a, 0, 1, complex_too));
    TRY(real_matrix(a, 1, 0, complex_too));
    TRY(alike(a, 1, 2));
    if (ROWS(0) != ROWS(1))
        return lksi_why(a, LKS_ERR_SHAPE, "%s has no solution of the form %s", lksi_shape_text(&a->in[0], s, sizeof s),
                        lksi_shape_text(&a->in[1], t, sizeof t));
    result(a, 0, a->in[0].dtype, ROWS(0), COLUMNS(1));
    return LKS_OK;
}

lks_status lksi_infer_triangular_solve(lksi_args *a) { return system_of(a, 0); }

lks_status lksi_infer_linalg_solve(lksi_args *a)
{
    TRY(system_of(a, 1));
    result(a, 1, LKS_I32, -1, -1);
    return LKS_OK;
}

lks_status lksi_infer_linalg_lu_factor(lksi_args *a)
{
    TRY(real_matrix(a, 0, 0, 0));
    result(a, 0, a->in[0].dtype, ROWS(0), COLUMNS(0));
    result(a, 1, LKS_I32, least(ROWS(0), COLUMNS(0)), -1);
    result(a, 2, LKS_I32, -1, -1);
    return LKS_OK;
}

lks_status lksi_infer_lu_perm(lksi_args *a)
{
    const lksi_view *p = &a->in[0];
    if (p->dtype != LKS_I32 || p->ndim < 1)
        return lksi_why(a, LKS_ERR_DTYPE, "pivots are %s; int32 is needed", lks_dtype_name(p->dtype));
    if (a->attr.linalg.n < p->shape[p->ndim - 1])
        return lksi_why(a, LKS_ERR_SHAPE, "%lld rows for %lld pivots", (long long)a->attr.linalg.n,
                        (long long)p->shape[p->ndim - 1]);
    a->out[0] = *p;
    a->out[0].data = NULL;
    a->out[0].dtype = LKS_I64;
    a->out[0].shape[p->ndim - 1] = a->attr.linalg.n;
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}

lks_status lksi_infer_geqrf(lksi_args *a)
{
    TRY(real_matrix(a, 0, 0, 0));
    result(a, 0, a->in[0].dtype, ROWS(0), COLUMNS(0));
    result(a, 1, a->in[0].dtype, least(ROWS(0), COLUMNS(0)), -1);
    return LKS_OK;
}

lks_status lksi_infer_orgqr(lksi_args *a)
{
    char s[200], t[200];
    TRY(real_matrix(a, 0, 0, 0));
    TRY(alike(a, 1, 1));
    if (COLUMNS(0) > ROWS(0) || COLUMNS(1) > COLUMNS(0))
        return lksi_why(a, LKS_ERR_SHAPE,
                        "%s with scalars %s: at least as many rows as columns, and columns as scalars",
                        lksi_shape_text(&a->in[0], s, sizeof s), lksi_shape_text(&a->in[1], t, sizeof t));
    result(a, 0, a->in[0].dtype, ROWS(0), COLUMNS(0));
    return LKS_OK;
}

lks_status lksi_infer_ormqr(lksi_args *a)
{
    char s[200], t[200], u[200];
    TRY(real_matrix(a, 0, 0, 0));
    TRY(real_matrix(a, 2, 0, 0));
    TRY(alike(a, 1, 1));
    TRY(alike(a, 2, 2));
    int64_t side = a->attr.linalg.left ? ROWS(2) : COLUMNS(2);
    if (ROWS(0) != side || COLUMNS(1) > least(ROWS(0), COLUMNS(0)))
        return lksi_why(a, LKS_ERR_SHAPE, "%s with scalars %s does not fit %s", lksi_shape_text(&a->in[0], s, sizeof s),
                        lksi_shape_text(&a->in[1], t, sizeof t), lksi_shape_text(&a->in[2], u, sizeof u));
    result(a, 0, a->in[0].dtype, ROWS(2), COLUMNS(2));
    return LKS_OK;
}

lks_status lksi_infer_linalg_qr(lksi_args *a)
{
    TRY(real_matrix(a, 0, 0, 0));
    int mode = a->attr.linalg.mode; /* 0 reduced, 1 complete, 2 R alone */
    int64_t m = ROWS(0), n = COLUMNS(0), k = mode == 1 ? m : least(m, n);
    result(a, 0, a->in[0].dtype, mode == 2 ? 0 : m, mode == 2 ? 0 : k);
    result(a, 1, a->in[0].dtype, k, n);
    return LKS_OK;
}

lks_status lksi_infer_linalg_svd(lksi_args *a)
{
    TRY(real_matrix(a, 0, 0, 0));
    int64_t m = ROWS(0), n = COLUMNS(0), k = least(m, n);
    int vectors = a->attr.linalg.vectors, full = a->attr.linalg.mode;
    result(a, 0, a->in[0].dtype, vectors ? m : 0, !vectors ? 0 : full ? m : k);
    result(a, 1, a->in[0].dtype, k, -1);
    result(a, 2, a->in[0].dtype, !vectors ? 0 : full ? n : k, vectors ? n : 0);
    return LKS_OK;
}

lks_status lksi_infer_linalg_eigh(lksi_args *a)
{
    TRY(real_matrix(a, 0, 1, 0));
    int64_t n = ROWS(0);
    result(a, 0, a->in[0].dtype, n, -1);
    result(a, 1, a->in[0].dtype, a->attr.linalg.vectors ? n : 0, a->attr.linalg.vectors ? n : 0);
    return LKS_OK;
}

lks_status lksi_infer_linalg_eig(lksi_args *a)
{
    TRY(real_matrix(a, 0, 1, 0));
    lks_dtype complex = a->in[0].dtype == LKS_F32 ? LKS_C64 : LKS_C128;
    int64_t n = ROWS(0);
    result(a, 0, complex, n, -1);
    result(a, 1, complex, a->attr.linalg.vectors ? n : 0, a->attr.linalg.vectors ? n : 0);
    return LKS_OK;
}

lks_status lksi_infer_linalg_lstsq(lksi_args *a)
{
    char s[200], t[200];
    TRY(real_matrix(a, 0, 0, 0));
    TRY(real_matrix(a, 1, 0, 0));
    TRY(alike(a, 1, 2));
    if (ROWS(0) != ROWS(1))
        return lksi_why(a, LKS_ERR_SHAPE, "%s has no solution of the form %s", lksi_shape_text(&a->in[0], s, sizeof s),
                        lksi_shape_text(&a->in[1], t, sizeof t));
    result(a, 0, a->in[0].dtype, COLUMNS(0), COLUMNS(1));
    result(a, 1, LKS_I32, -1, -1);
    result(a, 2, a->in[0].dtype, least(ROWS(0), COLUMNS(0)), -1);
    return LKS_OK;
}

lks_status lksi_infer_pinverse(lksi_args *a)
{
    TRY(real_matrix(a, 0, 0, 0));
    if (a->attr.linalg.rcond != a->attr.linalg.rcond) return lksi_why(a, LKS_ERR_ARGUMENT, "rcond is NaN");
    result(a, 0, a->in[0].dtype, COLUMNS(0), ROWS(0));
    return LKS_OK;
}
