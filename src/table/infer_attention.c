/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_attention.c - shape rules of attention and its gradient. Results lie in memory as [B, T, H, D], so that the
 * step that follows in every transformer, merging the heads, is a view. The log-sum is float32, float64 where q is.
 */
#include "base/base.h"
#include "table/table.h"
#include <math.h>

/* v [B, H, T, D] in the memory order B T H D. */
static void heads_inside(lksi_view *v, lks_dtype dtype, int64_t b, int64_t h, int64_t t, int64_t d)
{
    v->dtype = dtype;
    v->ndim = 4;
    v->shape[0] = b, v->shape[1] = h, v->shape[2] = t, v->shape[3] = d;
    int64_t hd = h > 0 && d > 0 ? h * d : 1, rows = t > 0 ? t : 1;
    v->stride[0] = rows * hd, v->stride[1] = d > 0 ? d : 1, v->stride[2] = hd, v->stride[3] = 1;
}

static lks_status check(lksi_args *a, const lksi_view *q, const lksi_view *k, const lksi_view *v, const lksi_view *mask)
{
    char s[128], t[128], u[128];
    int fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4;
    for (int d = 0; fits && d < 2; d++) fits = q->shape[d] == k->shape[d] && q->shape[d] == v->shape[d];
    if (!fits || k->shape[2] != v->shape[2] || q->shape[3] != k->shape[3])
        return lksi_why(a, LKS_ERR_SHAPE, "q %s, k %s, v %s must be [B,H,T,D], [B,H,S,D], [B,H,S,Dv]",
                        lksi_shape_text(q, s, sizeof s), lksi_shape_text(k, t, sizeof t),
                        lksi_shape_text(v, u, sizeof u));
    if (q->dtype != k->dtype || q->dtype != v->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "products of unlike dtypes: q %s, k %s, v %s", lks_dtype_name(q->dtype),
                        lks_dtype_name(k->dtype), lks_dtype_name(v->dtype));
    if (!lks_dtype_is_float(q->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "q is %s, a floating dtype is needed", lks_dtype_name(q->dtype));
    if (mask->ndim >= 0) {
        const int64_t full[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
        fits = mask->ndim <= 4;
        for (int d = 0; fits && d < mask->ndim; d++)
            fits = mask->shape[d] == 1 || mask->shape[d] == full[4 - mask->ndim + d];
        if (!fits)
            return lksi_why(a, LKS_ERR_SHAPE, "mask %s does not broadcast to [%lld,%lld,%lld,%lld]",
                            lksi_shape_text(mask, s, sizeof s), (long long)full[0], (long long)full[1],
                            (long long)full[2], (long long)full[3]);
        if (mask->dtype != LKS_BOOL && !lks_dtype_is_float(mask->dtype))
            return lksi_why(a, LKS_ERR_DTYPE, "mask is %s, it must be bool or floating", lks_dtype_name(mask->dtype));
    }
    if (!(a->attr.attention.p >= 0 && a->attr.attention.p < 1))
        return lksi_why(a, LKS_ERR_ARGUMENT, "dropout probability %g is not in [0, 1)", a->attr.attention.p);
    if (a->attr.attention.scale == 0)
        a->attr.attention.scale = 1 / sqrt((double)(q->shape[3] > 0 ? q->shape[3] : 1));
    return LKS_OK;
}

static const lksi_view none = {.ndim = -1};

lks_status lksi_infer_attention(lksi_args *a)
{
    const lksi_view *q = &a->in[0], *k = &a->in[1], *v = &a->in[2], *mask = a->nin > 3 ? &a->in[3] : &none;
    lksi_view *lse = &a->out[1];
    TRY(check(a, q, k, v, mask));
    heads_inside(&a->out[0], q->dtype, q->shape[0], q->shape[1], q->shape[2], v->shape[3]);
    lse->dtype = q->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    lse->ndim = 3;
    for (int d = 0; d < 3; d++) lse->shape[d] = q->shape[d];
    lksi_contiguous_strides(lse);
    return LKS_OK;
}

lks_status lksi_infer_attention_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *q = &a->in[1], *k = &a->in[2], *v = &a->in[3], *lse = &a->in[6];
    char s[128], t[128];
    TRY(check(a, q, k, v, &a->in[4]));
    int fits = dy->ndim == 4 && lse->ndim == 3;
    for (int d = 0; fits && d < 3; d++) fits = dy->shape[d] == q->shape[d] && lse->shape[d] == q->shape[d];
    if (!fits || dy->shape[3] != v->shape[3])
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s and lse %s do not belong to these inputs",
                        lksi_shape_text(dy, s, sizeof s), lksi_shape_text(lse, t, sizeof t));
    if (dy->dtype != q->dtype || lse->dtype != (q->dtype == LKS_F64 ? LKS_F64 : LKS_F32))
        return lksi_why(a, LKS_ERR_DTYPE, "q is %s, but dy %s and lse %s", lks_dtype_name(q->dtype),
                        lks_dtype_name(dy->dtype), lks_dtype_name(lse->dtype));
    heads_inside(&a->out[0], q->dtype, q->shape[0], q->shape[1], q->shape[2], q->shape[3]);
    heads_inside(&a->out[1], k->dtype, k->shape[0], k->shape[1], k->shape[2], k->shape[3]);
    heads_inside(&a->out[2], v->dtype, v->shape[0], v->shape[1], v->shape[2], v->shape[3]);
    return LKS_OK;
}
