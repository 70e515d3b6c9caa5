/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_index.c - shape rules of what picks, places, joins, sorts and cuts elements.
 */
#include "table/table.h"

static lks_status index_check(lksi_args *a, const lksi_view *index)
{
    if (index->dtype != LKS_I64 && index->dtype != LKS_I32)
        return lksi_why(a, LKS_ERR_DTYPE, "index is %s, int64 or int32 is needed", lks_dtype_name(index->dtype));
    return LKS_OK;
}

lks_status lksi_infer_embedding(lksi_args *a)
{
    const lksi_view *weight = &a->in[0], *index = &a->in[1];
    lksi_view *y = &a->out[0];
    char s[128];
    TRY(index_check(a, index));
    if (!lks_dtype_is_float(weight->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "weight is %s, a floating dtype is needed", lks_dtype_name(weight->dtype));
    if (weight->ndim != 2)
        return lksi_why(a, LKS_ERR_SHAPE, "weight %s must be [V, D]", lksi_shape_text(weight, s, sizeof s));
    if (index->ndim >= LKS_MAX_DIMS)
        return lksi_why(a, LKS_ERR_SHAPE, "index %s has too many dims", lksi_shape_text(index, s, sizeof s));
    y->dtype = weight->dtype;
    y->ndim = index->ndim + 1;
    for (int d = 0; d < index->ndim; d++) y->shape[d] = index->shape[d];
    y->shape[index->ndim] = weight->shape[1];
    lksi_contiguous_strides(y);
    return LKS_OK;
}

lks_status lksi_infer_embedding_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *index = &a->in[1];
    lksi_view *dw = &a->out[0];
    char s[128], t[128];
    TRY(index_check(a, index));
    if (!lks_dtype_is_float(dy->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "dy is %s, a floating dtype is needed", lks_dtype_name(dy->dtype));
    int fits = dy->ndim == index->ndim + 1;
    for (int d = 0; fits && d < index->ndim; d++) fits = dy->shape[d] == index->shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit index %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(index, t, sizeof t));
    if (a->attr.embedding.rows < 0)
        return lksi_why(a, LKS_ERR_ARGUMENT, "%lld rows", (long long)a->attr.embedding.rows);
    dw->dtype = dy->dtype;
    dw->ndim = 2;
    dw->shape[0] = a->attr.embedding.rows;
    dw->shape[1] = dy->shape[dy->ndim - 1];
    lksi_contiguous_strides(dw);
    return LKS_OK;
}

/* An empty 1-D tensor goes with any shape, as it does in PyTorch. */
static int skipped(const lksi_view *v)
{
    return v->ndim == 1 && v->shape[0] == 0;
}

lks_status lksi_infer_cat(lksi_args *a)
{
    lksi_view *y = &a->out[0], acc = {0};
    const lksi_view *like = 0;
    char s[128], t[128];
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *x = &a->in[i];
        if (x->ndim < 0) return lksi_why(a, LKS_ERR_ARGUMENT, "input %d is absent", i);
        if (x->ndim == 0) return lksi_why(a, LKS_ERR_SHAPE, "input %d has no dims", i);
        if (i == 0) acc = *x;
        else acc.dtype = lksi_promote_views(&acc, x);
        if (!like && !skipped(x)) like = x;
    }
    if (!like) like = &a->in[0];
    int dim = a->attr.dim.dim;
    if (dim < -like->ndim || dim >= like->ndim)
        return lksi_why(a, LKS_ERR_SHAPE, "dim %d of %s", dim, lksi_shape_text(like, s, sizeof s));
    if (dim < 0) dim += like->ndim;
    a->attr.dim.dim = dim;
    y->dtype = acc.dtype;
    y->ndim = like->ndim;
    for (int d = 0; d < like->ndim; d++) y->shape[d] = like->shape[d];
    y->shape[dim] = 0;
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *x = &a->in[i];
        if (skipped(x)) continue;
        int fits = x->ndim == like->ndim;
        for (int d = 0; fits && d < x->ndim; d++) fits = d == dim || x->shape[d] == like->shape[d];
        if (!fits)
            return lksi_why(a, LKS_ERR_SHAPE, "input %d %s does not fit %s outside dim %d", i,
                            lksi_shape_text(x, s, sizeof s), lksi_shape_text(like, t, sizeof t), dim);
        if (!lksi_add_fits(y->shape[dim], x->shape[dim], &y->shape[dim]))
            return lksi_why(a, LKS_ERR_SHAPE, "the joined dim is too large");
    }
    lksi_contiguous_strides(y);
    return LKS_OK;
}

/* --- along a dim --- */

/* dim counted from the front; a 0-dim tensor has dim 0. */
static lks_status check_dim(lksi_args *a, const lksi_view *x, int32_t *dim)
{
    char s[128];
    int n = x->ndim > 0 ? x->ndim : 1, d = *dim < 0 ? *dim + n : *dim;
    if (d < 0 || d >= n)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dim %d of %s", *dim, lksi_shape_text(x, s, sizeof s));
    *dim = d;
    return LKS_OK;
}

static void like(lksi_view *y, const lksi_view *x)
{
    *y = *x;
    y->data = NULL;
    lksi_contiguous_strides(y);
}

/* index has as many dims as x, and is nowhere larger but along dim. */
static lks_status check_along(lksi_args *a, const lksi_view *x, const lksi_view *index)
{
    char s[128], t[128];
    TRY(index_check(a, index));
    TRY(check_dim(a, x, &a->attr.dim.dim));
    int fits = (x->ndim > 0 ? x->ndim : 1) == (index->ndim > 0 ? index->ndim : 1);
    for (int d = 0; fits && d < x->ndim && d < index->ndim; d++)
        fits = d == a->attr.dim.dim || index->shape[d] <= x->shape[d];
    if (fits) return LKS_OK;
    return lksi_why(a, LKS_ERR_SHAPE, "index %s does not fit %s outside dim %d", lksi_shape_text(index, t, sizeof t),
                    lksi_shape_text(x, s, sizeof s), a->attr.dim.dim);
}

lks_status lksi_infer_gather(lksi_args *a)
{
    TRY(check_along(a, &a->in[0], &a->in[1]));
    like(&a->out[0], &a->in[1]);
    a->out[0].dtype = a->in[0].dtype;
    return LKS_OK;
}

static lks_status same_dtype(lksi_args *a, const lksi_view *x, const lksi_view *src)
{
    if (x->dtype == src->dtype) return LKS_OK;
    return lksi_why(a, LKS_ERR_DTYPE, "%s cannot be placed into %s; cast one of them first", lks_dtype_name(src->dtype),
                    lks_dtype_name(x->dtype));
}

lks_status lksi_infer_scatter(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *index = &a->in[1], *src = &a->in[2];
    char s[128], t[128];
    TRY(check_along(a, x, index));
    TRY(same_dtype(a, x, src));
    int fits = (src->ndim > 0 ? src->ndim : 1) == (index->ndim > 0 ? index->ndim : 1);
    for (int d = 0; fits && d < src->ndim && d < index->ndim; d++) fits = index->shape[d] <= src->shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "src %s is smaller than index %s", lksi_shape_text(src, s, sizeof s),
                        lksi_shape_text(index, t, sizeof t));
    like(&a->out[0], x);
    return LKS_OK;
}

lks_status lksi_infer_index_copy(lksi_args *a) { return lksi_infer_scatter(a); }
lks_status lksi_infer_scatter_add(lksi_args *a) { return lksi_infer_scatter(a); }

/* --- by several indices --- */

/* out: the indices' broadcast shape, then x's dims that they leave. */
static lks_status pick_shape(lksi_args *a, const lksi_view *x, int n, const lksi_view *index, lksi_view *out)
{
    char s[128], t[128];
    out->ndim = 0;
    if (n < 1 || n > x->ndim || n != a->attr.put.n)
        return lksi_why(a, LKS_ERR_ARGUMENT, "%d indices for %s", n, lksi_shape_text(x, s, sizeof s));
    for (int i = 0; i < n; i++) {
        lksi_view both;
        if (index[i].ndim < 0) return lksi_why(a, LKS_ERR_ARGUMENT, "index %d is absent", i);
        TRY(index_check(a, &index[i]));
        if (!lksi_broadcast(out, &index[i], &both))
            return lksi_why(a, LKS_ERR_SHAPE, "index %d %s does not broadcast with %s", i,
                            lksi_shape_text(&index[i], s, sizeof s), lksi_shape_text(out, t, sizeof t));
        out->ndim = both.ndim;
        for (int d = 0; d < both.ndim; d++) out->shape[d] = both.shape[d];
    }
    if (out->ndim + x->ndim - n > LKS_MAX_DIMS)
        return lksi_why(a, LKS_ERR_SHAPE, "the result would have %d dims; %d are allowed", out->ndim + x->ndim - n,
                        LKS_MAX_DIMS);
    for (int d = n; d < x->ndim; d++) out->shape[out->ndim++] = x->shape[d];
    lksi_contiguous_strides(out);
    return LKS_OK;
}

lks_status lksi_infer_index(lksi_args *a)
{
    TRY(pick_shape(a, &a->in[0], a->nin - 1, &a->in[1], &a->out[0]));
    a->out[0].dtype = a->in[0].dtype;
    return LKS_OK;
}

lks_status lksi_infer_index_put(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *values = &a->in[1];
    lksi_view place, both;
    char s[128], t[128];
    TRY(pick_shape(a, x, a->nin - 2, &a->in[2], &place));
    TRY(same_dtype(a, x, values));
    int fits = lksi_broadcast(values, &place, &both) && both.ndim == place.ndim;
    for (int d = 0; fits && d < place.ndim; d++) fits = both.shape[d] == place.shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "values %s do not broadcast to %s", lksi_shape_text(values, s, sizeof s),
                        lksi_shape_text(&place, t, sizeof t));
    like(&a->out[0], x);
    return LKS_OK;
}

lks_status lksi_infer_one_hot(lksi_args *a)
{
    const lksi_view *index = &a->in[0];
    lksi_view *y = &a->out[0];
    char s[128];
    TRY(index_check(a, index));
    if (index->ndim >= LKS_MAX_DIMS || a->attr.embedding.rows < 1)
        return lksi_why(a, LKS_ERR_ARGUMENT, "%lld classes for index %s", (long long)a->attr.embedding.rows,
                        lksi_shape_text(index, s, sizeof s));
    *y = *index;
    y->data = NULL;
    y->dtype = LKS_I64;
    y->shape[y->ndim++] = a->attr.embedding.rows;
    lksi_contiguous_strides(y);
    return LKS_OK;
}

/* --- parts and places --- */

lks_status lksi_infer_pad(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    char s[128];
    like(&a->out[0], x);
    for (int d = 0; d < x->ndim; d++) {
        int64_t before = a->attr.pad.before[d], after = a->attr.pad.after[d], n = x->shape[d];
        if (!lksi_add_fits(n, before, &n) || !lksi_add_fits(n, after, &n) || n < 0)
            return lksi_why(a, LKS_ERR_SHAPE, "padding %lld and %lld of dim %d of %s", (long long)before,
                            (long long)after, d, lksi_shape_text(x, s, sizeof s));
        a->out[0].shape[d] = n;
    }
    lksi_contiguous_strides(&a->out[0]);
    return LKS_OK;
}

lks_status lksi_infer_triu(lksi_args *a)
{
    char s[128];
    if (a->in[0].ndim < 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x %s must be [..., n, m]", lksi_shape_text(&a->in[0], s, sizeof s));
    like(&a->out[0], &a->in[0]);
    return LKS_OK;
}

lks_status lksi_infer_flip(lksi_args *a)
{
    if (a->attr.reduce.mask < 0 || a->attr.reduce.mask >> a->in[0].ndim)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dims (mask %#x) of a %d-D tensor", a->attr.reduce.mask, a->in[0].ndim);
    like(&a->out[0], &a->in[0]);
    return LKS_OK;
}

lks_status lksi_infer_diagonal(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    char s[128];
    int32_t *p = &a->attr.diagonal.d0, *q = &a->attr.diagonal.d1;
    int64_t k = a->attr.diagonal.offset, n, m;
    TRY(check_dim(a, x, p));
    TRY(check_dim(a, x, q));
    if (*p == *q || x->ndim < 2)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dims %d and %d of %s", *p, *q, lksi_shape_text(x, s, sizeof s));
    n = x->shape[*p], m = x->shape[*q];
    if (k > m || k < -n) k = k > 0 ? m : -n; /* nothing is left, and no overflow */
    a->attr.diagonal.offset = k;
    *y = *x;
    y->ndim = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != *p && d != *q) {
            y->shape[y->ndim] = x->shape[d];
            y->stride[y->ndim++] = x->stride[d];
        }
    if (k > 0) m -= k;
    else n += k;
    y->shape[y->ndim] = n < m ? n : m;
    y->stride[y->ndim++] = x->stride[*p] + x->stride[*q];
    if (lksi_numel(y) > 0)
        y->data = (char *)x->data + (k > 0 ? k * x->stride[*q] : -k * x->stride[*p]) * lks_dtype_size(x->dtype);
    return LKS_OK;
}

lks_status lksi_infer_diag_embed(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    char s[128];
    int nd = x->ndim + 1, p = a->attr.diagonal.d0, q = a->attr.diagonal.d1, k = 0;
    if (p < 0) p += nd;
    if (q < 0) q += nd;
    if (x->ndim < 1 || nd > LKS_MAX_DIMS || p < 0 || q < 0 || p >= nd || q >= nd || p == q)
        return lksi_why(a, LKS_ERR_ARGUMENT, "dims %d and %d for the diagonal %s", a->attr.diagonal.d0,
                        a->attr.diagonal.d1, lksi_shape_text(x, s, sizeof s));
    a->attr.diagonal.d0 = p, a->attr.diagonal.d1 = q;
    int64_t n = a->attr.diagonal.rows, m = a->attr.diagonal.columns, off = a->attr.diagonal.offset;
    int64_t right = off > 0 ? m - off : m, down = off > 0 ? n : n + off, have = down < right ? down : right;
    if (n < 0 || m < 0 || (have < 0 ? 0 : have) != x->shape[x->ndim - 1])
        return lksi_why(a, LKS_ERR_SHAPE, "%s is not diagonal %lld of a [%lld,%lld] matrix",
                        lksi_shape_text(x, s, sizeof s), (long long)off, (long long)n, (long long)m);
    y->dtype = x->dtype;
    y->ndim = nd;
    for (int d = 0; d < nd; d++) y->shape[d] = d == p ? n : d == q ? m : x->shape[k++];
    lksi_contiguous_strides(y);
    return LKS_OK;
}

lks_status lksi_infer_trace(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    char s[128];
    if (x->ndim != 2) return lksi_why(a, LKS_ERR_SHAPE, "x %s must be [n, m]", lksi_shape_text(x, s, sizeof s));
    a->out[0].dtype = lks_dtype_is_float(x->dtype) ? x->dtype : LKS_I64;
    a->out[0].ndim = 0;
    return LKS_OK;
}

lks_status lksi_infer_cross(lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1];
    lksi_view *z = &a->out[0];
    char s[128], t[128];
    if (!lksi_broadcast(x, y, z))
        return lksi_why(a, LKS_ERR_SHAPE, "shapes %s and %s do not broadcast", lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    TRY(check_dim(a, z, &a->attr.dim.dim));
    int d = a->attr.dim.dim, i = d - (z->ndim - x->ndim), j = d - (z->ndim - y->ndim);
    if (z->ndim == 0 || i < 0 || j < 0 || x->shape[i] != 3 || y->shape[j] != 3)
        return lksi_why(a, LKS_ERR_SHAPE, "dim %d of %s and %s must have size 3", d, lksi_shape_text(x, s, sizeof s),
                        lksi_shape_text(y, t, sizeof t));
    z->dtype = lksi_promote_views(x, y);
    if (z->dtype == LKS_BOOL) return lksi_why(a, LKS_ERR_DTYPE, "a cross product of bool has no meaning");
    lksi_contiguous_strides(z);
    return LKS_OK;
}

lks_status lksi_infer_sort(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    char s[128];
    TRY(check_dim(a, x, &a->attr.sort.dim));
    int d = a->attr.sort.dim;
    int64_t n = x->ndim > 0 ? x->shape[d] : 1, k = a->attr.sort.k;
    if (k < 0 || k > n)
        return lksi_why(a, LKS_ERR_ARGUMENT, "%lld elements of dim %d of %s", (long long)k, d,
                        lksi_shape_text(x, s, sizeof s));
    for (int i = 0; i < 2; i++) {
        like(&a->out[i], x);
        if (x->ndim > 0) a->out[i].shape[d] = k;
        lksi_contiguous_strides(&a->out[i]);
    }
    if (x->ndim == 0 && k == 0) return lksi_why(a, LKS_ERR_ARGUMENT, "0 elements of a 0-dim tensor");
    a->out[1].dtype = LKS_I64;
    return LKS_OK;
}
