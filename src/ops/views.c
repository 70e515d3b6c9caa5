/* SPDX-License-Identifier: BSD-3-Clause
 *
 * views.c - public functions that give views: arguments are normalised here, strides are made by the table's rules.
 */
#include "ops/ops.h"

#include <string.h>

lks_context *lksi_ctx(int n, lks_tensor *const *t)
{
    if (n < 1 || lksi_any_null(n, t)) return NULL;
    for (int i = 0; i < n; i++)
        if (t[i] != lks_none) return t[i]->ctx;
    return NULL;
}

lks_status lksi_dim(lks_context *ctx, const char *where, int ndim, int *dim)
{
    int d = *dim < 0 ? *dim + ndim : *dim;
    if (d < 0 || d >= ndim)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "dim %d is outside a tensor of %d dims", *dim, ndim);
    *dim = d;
    return LKS_OK;
}

static lks_tensor *one(const char *where, int op, lks_tensor *x, const lksi_attr *attr)
{
    return lksi_call1(x->ctx, where, op, 1, &x, attr);
}

static int too_many(lks_tensor *x, const char *where, int ndim)
{
    if (ndim >= 0 && ndim <= LKS_MAX_DIMS) return 0;
    lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, where, "ndim is %d; 0 to %d are allowed", ndim, LKS_MAX_DIMS);
    return 1;
}

lks_tensor *lks_reshape(lks_tensor *x, int ndim, const int64_t *shape)
{
    if (!x || too_many(x, "lks_reshape", ndim)) return NULL;
    lksi_attr attr = {.view = {.ndim = ndim}};
    memcpy(attr.view.shape, shape, (size_t)ndim * sizeof *shape);
    /* Ask the rule first: strides that do not allow a view are no error here. */
    lksi_view in = x->v, out;
    char why[LKSI_WHY];
    lksi_args a = {.op = LKSI_OP_view, .nin = 1, .nout = 1, .in = &in, .out = &out, .attr = attr, .why = why};
    if (lksi_rows[LKSI_OP_view].infer(&a) == LKS_ERR_UNSUPPORTED) x = lks_clone(x);
    return x ? one("lks_reshape", LKSI_OP_view, x, &attr) : NULL;
}

lks_tensor *lksi_reshape_like(lks_tensor *x, int ndim, const int64_t *shape)
{
    if (!x) return NULL;
    if (x->v.ndim == ndim && !memcmp(x->v.shape, shape, (size_t)ndim * sizeof *shape)) return x;
    return lks_reshape(x, ndim, shape);
}

lks_tensor *lks_flatten(lks_tensor *x, int d, int e)
{
    if (!x) return NULL;
    int64_t shape[LKS_MAX_DIMS], one_dim = -1;
    int n = 0;
    if (x->v.ndim == 0) return lks_reshape(x, 1, &one_dim);
    if (lksi_dim(x->ctx, "lks_flatten", x->v.ndim, &d) || lksi_dim(x->ctx, "lks_flatten", x->v.ndim, &e)) return NULL;
    if (d > e) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_flatten", "first dim %d lies behind last dim %d", d, e);
        return NULL;
    }
    for (int i = 0; i < d; i++) shape[n++] = x->v.shape[i];
    shape[n] = 1;
    for (int i = d; i <= e; i++)
        if (!lksi_mul_fits(shape[n], x->v.shape[i], &shape[n])) { /* an empty tensor may have such dims */
            lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_flatten", "dims %d to %d together do not fit a 64-bit size", d,
                      e);
            return NULL;
        }
    n++;
    for (int i = e + 1; i < x->v.ndim; i++) shape[n++] = x->v.shape[i];
    return lks_reshape(x, n, shape);
}

lks_tensor *lks_permute(lks_tensor *x, int ndim, const int *dims)
{
    if (!x) return NULL;
    lksi_attr attr = {.permute = {.ndim = ndim}};
    if (ndim != x->v.ndim) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_permute", "%d dims given for a tensor of %d", ndim, x->v.ndim);
        return NULL;
    }
    for (int i = 0; i < ndim; i++) {
        int d = dims[i];
        if (lksi_dim(x->ctx, "lks_permute", ndim, &d)) return NULL;
        attr.permute.dims[i] = d;
    }
    return one("lks_permute", LKSI_OP_permute, x, &attr);
}

lks_tensor *lks_transpose(lks_tensor *x, int d0, int d1)
{
    if (!x) return NULL;
    int dims[LKS_MAX_DIMS] = {0};
    if (x->v.ndim == 0 && (d0 == 0 || d0 == -1) && (d1 == 0 || d1 == -1)) return lks_permute(x, 0, dims);
    if (lksi_dim(x->ctx, "lks_transpose", x->v.ndim, &d0) || lksi_dim(x->ctx, "lks_transpose", x->v.ndim, &d1))
        return NULL;
    for (int i = 0; i < x->v.ndim; i++) dims[i] = i;
    dims[d0] = d1;
    dims[d1] = d0;
    return lks_permute(x, x->v.ndim, dims);
}

lks_tensor *lksi_mT(lks_tensor *x) { return lks_transpose(x, -2, -1); }

lks_tensor *lks_slice(lks_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    if (!x || lksi_dim(x->ctx, "lks_slice", x->v.ndim, &dim)) return NULL;
    int64_t n = x->v.shape[dim];
    if (step < 1) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_slice", "step is %lld; it must be at least 1", (long long)step);
        return NULL;
    }
    if (start < 0) start += n;
    if (end < 0) end += n;
    start = start < 0 ? 0 : start > n ? n : start;
    end = end < start ? start : end > n ? n : end;
    if (step > n) step = n > 0 ? n : 1; /* one element at most, and no overflow */
    lksi_attr attr = {.slice = {.dim = dim, .start = start, .stop = end, .step = step, .size = n}};
    return one("lks_slice", LKSI_OP_slice, x, &attr);
}

lks_tensor *lks_narrow(lks_tensor *x, int dim, int64_t start, int64_t length)
{
    if (!x || lksi_dim(x->ctx, "lks_narrow", x->v.ndim, &dim)) return NULL;
    int64_t n = x->v.shape[dim];
    if (start < 0) start += n;
    if (start < 0 || length < 0 || start > n || length > n - start) {
        lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_narrow",
                  "start %lld, length %lld reach outside dim %d of size %lld", (long long)start, (long long)length, dim,
                  (long long)n);
        return NULL;
    }
    return lks_slice(x, dim, start, start + length, 1);
}

lks_tensor *lks_select(lks_tensor *x, int dim, int64_t index)
{
    if (!x || lksi_dim(x->ctx, "lks_select", x->v.ndim, &dim)) return NULL;
    int64_t n = x->v.shape[dim], shape[LKS_MAX_DIMS];
    if (index < -n || index >= n) {
        lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_select", "index %lld is outside dim %d of size %lld",
                  (long long)index, dim, (long long)n);
        return NULL;
    }
    if (index < 0) index += n;
    lks_tensor *s = lks_slice(x, dim, index, index + 1, 1);
    int k = 0;
    for (int d = 0; d < x->v.ndim; d++)
        if (d != dim) shape[k++] = x->v.shape[d];
    return s ? lks_reshape(s, k, shape) : NULL;
}

lks_tensor *lks_expand(lks_tensor *x, int ndim, const int64_t *shape)
{
    if (!x || too_many(x, "lks_expand", ndim)) return NULL;
    lksi_attr attr = {.view = {.ndim = ndim}};
    memcpy(attr.view.shape, shape, (size_t)ndim * sizeof *shape);
    return one("lks_expand", LKSI_OP_expand, x, &attr);
}

lks_tensor *lks_squeeze(lks_tensor *x, int dim)
{
    if (!x || lksi_dim(x->ctx, "lks_squeeze", x->v.ndim, &dim)) return NULL;
    int64_t shape[LKS_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->v.ndim; d++)
        if (d != dim || x->v.shape[d] != 1) shape[n++] = x->v.shape[d];
    return lks_reshape(x, n, shape);
}

lks_tensor *lks_unsqueeze(lks_tensor *x, int dim)
{
    if (!x || too_many(x, "lks_unsqueeze", x->v.ndim + 1) || lksi_dim(x->ctx, "lks_unsqueeze", x->v.ndim + 1, &dim))
        return NULL;
    int64_t shape[LKS_MAX_DIMS];
    int n = 0;
    for (int d = 0; d <= x->v.ndim; d++) shape[d] = d == dim ? 1 : x->v.shape[n++];
    return lks_reshape(x, x->v.ndim + 1, shape);
}

int lks_split(lks_tensor *x, int64_t size, int dim, int max, lks_tensor **out)
{
    if (!x) return LKS_ERR_ARGUMENT;
    lks_status s = lksi_dim(x->ctx, "lks_split", x->v.ndim, &dim);
    if (s) return s;
    int64_t n = x->v.shape[dim];
    if (size < 1 && !(size == 0 && n == 0))
        return lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_split", "piece size is %lld; it must be at least 1",
                         (long long)size);
    if (size > n) size = n;
    int64_t pieces = n == 0 ? 1 : n / size + (n % size != 0);
    if (pieces > max)
        return lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_split", "%lld pieces do not fit an array of %d",
                         (long long)pieces, max);
    for (int64_t i = 0; i < pieces; i++)
        if (!(out[i] = lks_slice(x, dim, i * size, n == 0 ? 0 : (i + 1) * size, 1))) return x->ctx->base.code;
    return (int)pieces;
}

int lks_chunk(lks_tensor *x, int n, int dim, lks_tensor **out)
{
    if (!x) return LKS_ERR_ARGUMENT;
    lks_status s = lksi_dim(x->ctx, "lks_chunk", x->v.ndim, &dim);
    if (s) return s;
    if (n < 1) return lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_chunk", "%d pieces; at least 1 is needed", n);
    int64_t size = (x->v.shape[dim] + n - 1) / n;
    return lks_split(x, size, dim, n, out);
}
