/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_index.c - shape rules of embedding and cat.
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
