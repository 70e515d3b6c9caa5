/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_norm.c - shape rules of layer_norm, rms_norm, group_norm and batch_norm. Statistics are float32, float64 where
 * x is.
 */
#include "table/table.h"

static const lksi_view absent = {.ndim = -1};

/* Input i; trailing optional inputs may be left out. */
static const lksi_view *input(const lksi_args *a, int i)
{
    return i < a->nin ? &a->in[i] : &absent;
}

static int is_float_or_absent(const lksi_view *v)
{
    return v->ndim < 0 || lks_dtype_is_float(v->dtype);
}

static lks_dtype wide(const lksi_view *x)
{
    return x->dtype == LKS_F64 ? LKS_F64 : LKS_F32;
}

static void vector(lksi_view *v, lks_dtype dtype, int64_t n)
{
    v->dtype = dtype;
    v->ndim = 1;
    v->shape[0] = n;
    lksi_contiguous_strides(v);
}

/* Same shape as x; channels-last where x is, else row-major. */
static void like(lksi_view *y, const lksi_view *x, int keep_layout)
{
    y->dtype = x->dtype;
    y->ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) y->shape[d] = x->shape[d];
    if (keep_layout && lksi_is_channels_last(x) && !lksi_is_contiguous(x)) lksi_channels_last_strides(y);
    else lksi_contiguous_strides(y);
}

static int same_shape(const lksi_view *a, const lksi_view *b)
{
    if (a->ndim != b->ndim) return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    return 1;
}

static lks_status layer_norm_check(lksi_args *a, const lksi_view *x, const lksi_view *weight, const lksi_view *bias,
                                   int64_t *rows)
{
    char s[128], t[128];
    int k = a->attr.norm.ndims;
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    if (!is_float_or_absent(weight) || (bias && !is_float_or_absent(bias)))
        return lksi_why(a, LKS_ERR_DTYPE, "weight and bias must be floating");
    if (k < 1 || k > x->ndim)
        return lksi_why(a, LKS_ERR_SHAPE, "%d normalised dims of x %s", k, lksi_shape_text(x, s, sizeof s));
    if (!(a->attr.norm.eps >= 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "eps is %g", a->attr.norm.eps);
    for (int i = 0; i < 2; i++) {
        const lksi_view *p = i ? bias : weight;
        if (!p || p->ndim < 0) continue;
        int fits = p->ndim == k;
        for (int d = 0; fits && d < k; d++) fits = p->shape[d] == x->shape[x->ndim - k + d];
        if (!fits)
            return lksi_why(a, LKS_ERR_SHAPE, "%s %s does not have the shape of the last %d dims of x %s",
                            i ? "bias" : "weight", lksi_shape_text(p, s, sizeof s), k, lksi_shape_text(x, t, sizeof t));
    }
    *rows = 1;
    for (int d = 0; d < x->ndim - k; d++)
        if (!lksi_mul_fits(*rows, x->shape[d], rows))
            return lksi_why(a, LKS_ERR_SHAPE, "too many rows in x %s", lksi_shape_text(x, s, sizeof s));
    return LKS_OK;
}

lks_status lksi_infer_layer_norm(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    int64_t rows;
    TRY(layer_norm_check(a, x, input(a, 1), input(a, 2), &rows));
    like(&a->out[0], x, 0);
    if (a->attr.norm.to) a->out[0].dtype = a->attr.norm.to - 1;
    vector(&a->out[1], wide(x), rows);
    vector(&a->out[2], wide(x), rows);
    return LKS_OK;
}

/* Backward: what is added to dx, and dx once more in another dtype. */
static lks_status more_of_dx(lksi_args *a, const lksi_view *x, const lksi_view *there, lksi_view *low)
{
    char s[128], t[128];
    if (there->ndim >= 0 && (there->dtype != x->dtype || !same_shape(there, x)))
        return lksi_why(a, LKS_ERR_SHAPE, "there %s does not fit x %s", lksi_shape_text(there, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    if (!a->attr.norm.low) {
        vector(low, x->dtype, 0);
        return LKS_OK;
    }
    like(low, x, 0);
    low->dtype = a->attr.norm.low - 1;
    return LKS_OK;
}

/* dweight and dbias have weight's shape and dtype. Without weight, dweight is [0] and dbias that of the statistics. */
lks_status lksi_infer_layer_norm_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *weight = &a->in[2];
    char s[128], t[128];
    int64_t rows;
    TRY(layer_norm_check(a, x, weight, 0, &rows));
    if (!lks_dtype_is_float(dy->dtype) || !same_shape(dy, x))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    for (int i = 3; i < 5; i++)
        if (a->in[i].ndim < 0 || lksi_numel(&a->in[i]) != rows || !lks_dtype_is_float(a->in[i].dtype))
            return lksi_why(a, LKS_ERR_SHAPE, "statistics %s do not fit x %s", lksi_shape_text(&a->in[i], s, sizeof s),
                            lksi_shape_text(x, t, sizeof t));
    like(&a->out[0], x, 0);
    TRY(more_of_dx(a, x, input(a, 5), &a->out[3]));
    if (weight->ndim >= 0) {
        like(&a->out[1], weight, 0);
        like(&a->out[2], weight, 0);
        return LKS_OK;
    }
    lksi_view *db = &a->out[2];
    vector(&a->out[1], wide(x), 0);
    db->dtype = wide(x);
    db->ndim = a->attr.norm.ndims;
    for (int d = 0; d < db->ndim; d++) db->shape[d] = x->shape[x->ndim - db->ndim + d];
    lksi_contiguous_strides(db);
    return LKS_OK;
}

lks_status lksi_infer_rms_norm(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    int64_t rows;
    TRY(layer_norm_check(a, x, input(a, 1), NULL, &rows));
    like(&a->out[0], x, 0);
    if (a->attr.norm.to) a->out[0].dtype = a->attr.norm.to - 1;
    vector(&a->out[1], wide(x), rows);
    return LKS_OK;
}

/* dweight has weight's shape and dtype; [0] without one. */
lks_status lksi_infer_rms_norm_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *weight = &a->in[2], *rstd = &a->in[3];
    char s[128], t[128];
    int64_t rows;
    TRY(layer_norm_check(a, x, weight, NULL, &rows));
    if (!lks_dtype_is_float(dy->dtype) || !same_shape(dy, x) || rstd->ndim < 0 || lksi_numel(rstd) != rows ||
        !lks_dtype_is_float(rstd->dtype))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s or its statistics do not fit x %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    like(&a->out[0], x, 0);
    if (weight->ndim >= 0) like(&a->out[1], weight, 0);
    else vector(&a->out[1], wide(x), 0);
    return more_of_dx(a, x, input(a, 4), &a->out[2]);
}

/* x [N, C, ...]; weight and bias [C] or absent; groups that divide C. */
static lks_status group_norm_check(lksi_args *a, const lksi_view *x, const lksi_view *weight, const lksi_view *bias)
{
    char s[128], t[128];
    int64_t groups = a->attr.norm.groups;
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    if (x->ndim < 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x %s needs a batch and a channel dim", lksi_shape_text(x, s, sizeof s));
    if (groups < 1 || x->shape[1] % groups)
        return lksi_why(a, LKS_ERR_SHAPE, "the channels of x %s do not make %lld groups",
                        lksi_shape_text(x, s, sizeof s), (long long)groups);
    if (!(a->attr.norm.eps >= 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "eps is %g", a->attr.norm.eps);
    for (int i = 0; i < 2; i++) {
        const lksi_view *p = i ? bias : weight;
        if (p->ndim < 0) continue;
        if (!lks_dtype_is_float(p->dtype)) return lksi_why(a, LKS_ERR_DTYPE, "weight and bias must be floating");
        if (p->ndim != 1 || p->shape[0] != x->shape[1])
            return lksi_why(a, LKS_ERR_SHAPE, "%s %s does not fit the channels of x %s", i ? "bias" : "weight",
                            lksi_shape_text(p, s, sizeof s), lksi_shape_text(x, t, sizeof t));
    }
    return LKS_OK;
}

static void table_of(lksi_view *v, lks_dtype dtype, int64_t rows, int64_t columns)
{
    v->dtype = dtype;
    v->ndim = 2;
    v->shape[0] = rows;
    v->shape[1] = columns;
    lksi_contiguous_strides(v);
}

lks_status lksi_infer_group_norm(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    TRY(group_norm_check(a, x, input(a, 1), input(a, 2)));
    like(&a->out[0], x, 1);
    table_of(&a->out[1], wide(x), x->shape[0], a->attr.norm.groups);
    table_of(&a->out[2], wide(x), x->shape[0], a->attr.norm.groups);
    return LKS_OK;
}

/* As batch_norm_backward. */
lks_status lksi_infer_group_norm_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *weight = &a->in[2];
    char s[128], t[128];
    TRY(group_norm_check(a, x, weight, &absent));
    if (!lks_dtype_is_float(dy->dtype) || !same_shape(dy, x))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    for (int i = 3; i < 5; i++)
        if (a->in[i].ndim != 2 || a->in[i].shape[0] != x->shape[0] || a->in[i].shape[1] != a->attr.norm.groups ||
            !lks_dtype_is_float(a->in[i].dtype))
            return lksi_why(a, LKS_ERR_SHAPE, "statistics %s do not fit x %s", lksi_shape_text(&a->in[i], s, sizeof s),
                            lksi_shape_text(x, t, sizeof t));
    like(&a->out[0], x, 1);
    lks_dtype dtype = weight->ndim < 0 ? wide(x) : weight->dtype;
    vector(&a->out[1], dtype, weight->ndim < 0 ? 0 : x->shape[1]);
    vector(&a->out[2], dtype, x->shape[1]);
    return LKS_OK;
}

/* Inputs from `first` on are parameters and statistics, all [C] or absent; name[i] for the text. */
static lks_status batch_norm_check(lksi_args *a, const lksi_view *x, int first, int count, const char *const *name)
{
    char s[128], t[128];
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    if (x->ndim < 2)
        return lksi_why(a, LKS_ERR_SHAPE, "x %s needs a batch and a channel dim", lksi_shape_text(x, s, sizeof s));
    if (!(a->attr.batch_norm.eps >= 0)) return lksi_why(a, LKS_ERR_ARGUMENT, "eps is %g", a->attr.batch_norm.eps);
    for (int i = 0; i < count; i++) {
        const lksi_view *p = input(a, first + i);
        if (p->ndim < 0) continue;
        if (!lks_dtype_is_float(p->dtype))
            return lksi_why(a, LKS_ERR_DTYPE, "%s is %s, a floating dtype is needed", name[i],
                            lks_dtype_name(p->dtype));
        if (p->ndim != 1 || p->shape[0] != x->shape[1])
            return lksi_why(a, LKS_ERR_SHAPE, "%s %s does not fit the %lld channels of x %s", name[i],
                            lksi_shape_text(p, s, sizeof s), (long long)x->shape[1], lksi_shape_text(x, t, sizeof t));
    }
    return LKS_OK;
}

/* What each rank measured, [ranks, 1 + 2 C] of float64. */
static lks_status measured_fits(lksi_args *a, const lksi_view *m, const lksi_view *x)
{
    char s[128], t[128];
    if (m->ndim < 0) return LKS_OK;
    if (m->dtype != LKS_F64 || m->ndim != 2 || m->shape[0] < 1 || m->shape[1] != 1 + 2 * x->shape[1])
        return lksi_why(a, LKS_ERR_SHAPE, "what was measured %s does not fit the channels of x %s",
                        lksi_shape_text(m, s, sizeof s), lksi_shape_text(x, t, sizeof t));
    return LKS_OK;
}

lks_status lksi_infer_batch_norm_stats(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    TRY(batch_norm_check(a, x, 1, 0, NULL));
    vector(&a->out[0], LKS_F64, 1 + 2 * x->shape[1]);
    return LKS_OK;
}

lks_status lksi_infer_batch_norm_sums(lksi_args *a)
{
    static const char *const name[] = {"mean"};
    const lksi_view *dy = &a->in[0], *x = &a->in[1];
    char s[128], t[128];
    TRY(batch_norm_check(a, x, 2, 1, name));
    if (a->in[2].ndim < 0 || !lks_dtype_is_float(dy->dtype) || !same_shape(dy, x))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    table_of(&a->out[0], LKS_F64, 3, x->shape[1]);
    return LKS_OK;
}

lks_status lksi_infer_batch_norm(lksi_args *a)
{
    static const char *const name[] = {"weight",       "bias",        "running_mean",
                                       "running_var",  "staged_mean", "staged_var"};
    const lksi_view *x = &a->in[0];
    double momentum = a->attr.batch_norm.momentum;
    TRY(batch_norm_check(a, x, 1, 6, name));
    if (!a->attr.batch_norm.training && (input(a, 3)->ndim < 0 || input(a, 4)->ndim < 0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "running_mean and running_var are needed outside training");
    if ((input(a, 5)->ndim < 0) != (input(a, 6)->ndim < 0))
        return lksi_why(a, LKS_ERR_ARGUMENT, "staged_mean and staged_var go together");
    if (!(momentum >= 0 && momentum <= 1)) return lksi_why(a, LKS_ERR_ARGUMENT, "momentum is %g", momentum);
    TRY(measured_fits(a, input(a, 7), x));
    like(&a->out[0], x, 1);
    vector(&a->out[1], wide(x), x->shape[1]);
    vector(&a->out[2], wide(x), x->shape[1]);
    return LKS_OK;
}

/* dweight and dbias have weight's dtype. Without weight, dweight is [0] and dbias has that of the statistics. */
lks_status lksi_infer_batch_norm_backward(lksi_args *a)
{
    static const char *const name[] = {"weight", "mean", "rstd"};
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *weight = &a->in[2];
    char s[128], t[128];
    TRY(batch_norm_check(a, x, 2, 3, name));
    if (a->in[3].ndim < 0 || a->in[4].ndim < 0) return lksi_why(a, LKS_ERR_ARGUMENT, "mean and rstd are needed");
    TRY(measured_fits(a, input(a, 7), x));
    for (int i = 5; i < 7; i++) {
        const lksi_view *v = input(a, i);
        if ((v->ndim < 0) != (input(a, 7)->ndim < 0) ||
            (v->ndim >= 0 && (v->dtype != LKS_F64 || v->ndim != 2 || v->shape[0] != 3 || v->shape[1] != x->shape[1])))
            return lksi_why(a, LKS_ERR_SHAPE, "sums %s do not fit the channels of x %s",
                            lksi_shape_text(v, s, sizeof s), lksi_shape_text(x, t, sizeof t));
    }
    if (!lks_dtype_is_float(dy->dtype) || !same_shape(dy, x))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    like(&a->out[0], x, 1);
    lks_dtype dtype = weight->ndim < 0 ? wide(x) : weight->dtype;
    vector(&a->out[1], dtype, weight->ndim < 0 ? 0 : x->shape[1]);
    vector(&a->out[2], dtype, x->shape[1]);
    return LKS_OK;
}
