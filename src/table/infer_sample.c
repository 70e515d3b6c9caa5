/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_sample.c - shape rules of padding by what is inside (reflection, replication) and of sampling at the places of
 * a grid.
 */
#include "base/base.h"
#include "table/infer.h"

static lks_status is_image(lksi_args *a, int dims, const lksi_view *x, const char *name)
{
    char s[128];
    if (x->ndim != dims + 2)
        return lksi_why(a, LKS_ERR_SHAPE, "%s must have %d dims, not %s", name, dims + 2,
                        lksi_shape_text(x, s, sizeof s));
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s is %s, a floating dtype is needed", name, lks_dtype_name(x->dtype));
    return LKS_OK;
}

static lks_status padded(lksi_args *a, int dims, const lksi_view *x, int64_t *shape)
{
    TRY(is_image(a, dims, x, "x"));
    for (int d = 0; d < dims + 2; d++) {
        shape[d] = x->shape[d];
        if (d < 2) continue;
        int i = 1 - dims + d;
        int64_t before = a->attr.edge.before[i], after = a->attr.edge.after[i];
        if (before < 0 || after < 0)
            return lksi_why(a, LKS_ERR_ARGUMENT, "%s: padding %lld, %lld must be at least 0", lksi_infer_side(i),
                            (long long)before, (long long)after);
        if (shape[d] < 1) return lksi_why(a, LKS_ERR_SHAPE, "%s: nothing to pad with", lksi_infer_side(i));
        if (a->attr.edge.reflect && (before >= shape[d] || after >= shape[d]))
            return lksi_why(a, LKS_ERR_SHAPE, "%s: reflection of %lld, %lld needs more than %lld elements",
                            lksi_infer_side(i), (long long)before, (long long)after, (long long)shape[d]);
        if (!lksi_add_fits(before, after, &before) || !lksi_add_fits(shape[d], before, &shape[d]))
            return lksi_why(a, LKS_ERR_SHAPE, "%s: sizes overflow", lksi_infer_side(i));
    }
    return LKS_OK;
}

static lks_status pad(lksi_args *a, int dims)
{
    int64_t shape[5];
    TRY(padded(a, dims, &a->in[0], shape));
    lksi_infer_image(&a->out[0], &a->in[0], a->in[0].dtype, dims + 2, shape);
    return LKS_OK;
}

lks_status lksi_infer_reflection_pad1d(lksi_args *a) { return pad(a, 1); }
lks_status lksi_infer_reflection_pad2d(lksi_args *a) { return pad(a, 2); }
lks_status lksi_infer_reflection_pad3d(lksi_args *a) { return pad(a, 3); }
lks_status lksi_infer_replication_pad1d(lksi_args *a) { return pad(a, 1); }
lks_status lksi_infer_replication_pad2d(lksi_args *a) { return pad(a, 2); }
lks_status lksi_infer_replication_pad3d(lksi_args *a) { return pad(a, 3); }

lks_status lksi_infer_edge_pad_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0];
    lksi_view x = {.ndim = dy->ndim, .dtype = dy->dtype};
    char s[128], t[128];
    int64_t shape[5];
    int dims = dy->ndim < 3 || dy->ndim > 5 ? 2 : dy->ndim - 2;
    TRY(is_image(a, dims, dy, "dy"));
    for (int d = 0; d < x.ndim; d++) x.shape[d] = a->attr.edge.size[d];
    TRY(padded(a, dims, &x, shape));
    for (int d = 0; d < x.ndim; d++)
        if (dy->shape[d] != shape[d])
            return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s", lksi_shape_text(dy, s, sizeof s),
                            lksi_shape_text(&x, t, sizeof t));
    lksi_infer_image(&a->out[0], dy, dy->dtype, x.ndim, x.shape);
    return LKS_OK;
}

/* x [N, C, ...], grid [N, ..., dims] -> [N, C, ...] of the grid. */
static lks_status sampled(lksi_args *a, int dims, const lksi_view *x, const lksi_view *grid, int64_t *shape)
{
    char s[128], t[128];
    TRY(is_image(a, dims, x, "x"));
    if (grid->dtype != x->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "x is %s, grid is %s: they must be alike", lks_dtype_name(x->dtype),
                        lks_dtype_name(grid->dtype));
    if (grid->ndim != dims + 2 || grid->shape[dims + 1] != dims || grid->shape[0] != x->shape[0])
        return lksi_why(a, LKS_ERR_SHAPE, "grid %s must be [N,...,%d] with %d sizes between for x %s",
                        lksi_shape_text(grid, s, sizeof s), dims, dims, lksi_shape_text(x, t, sizeof t));
    if (a->attr.grid.mode < 0 || a->attr.grid.mode > 2 || a->attr.grid.padding < 0 || a->attr.grid.padding > 2 ||
        (dims == 3 && a->attr.grid.mode == 2))
        return lksi_why(a, LKS_ERR_ARGUMENT, "mode %d, padding %d: no such sampling in %d dims", a->attr.grid.mode,
                        a->attr.grid.padding, dims);
    shape[0] = x->shape[0], shape[1] = x->shape[1];
    for (int d = 2; d < dims + 2; d++) {
        if (x->shape[d] < 1 || x->shape[d] > INT32_MAX / 4)
            return lksi_why(a, LKS_ERR_SHAPE, "x %s cannot be sampled", lksi_shape_text(x, s, sizeof s));
        shape[d] = grid->shape[d - 1];
    }
    return LKS_OK;
}

static lks_status sampler(lksi_args *a, int dims)
{
    int64_t shape[5];
    TRY(sampled(a, dims, &a->in[0], &a->in[1], shape));
    lksi_infer_image(&a->out[0], &a->in[0], a->in[0].dtype, dims + 2, shape);
    return LKS_OK;
}

lks_status lksi_infer_grid_sampler_2d(lksi_args *a) { return sampler(a, 2); }
lks_status lksi_infer_grid_sampler_3d(lksi_args *a) { return sampler(a, 3); }

lks_status lksi_infer_grid_sampler_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *x = &a->in[1], *grid = &a->in[2];
    char s[128], t[128];
    int64_t shape[5];
    int fits = dy->ndim == x->ndim && dy->dtype == x->dtype;
    TRY(sampled(a, x->ndim == 5 ? 3 : 2, x, grid, shape));
    for (int d = 0; fits && d < x->ndim; d++) fits = dy->shape[d] == shape[d];
    if (!fits)
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s does not fit x %s and its grid", lksi_shape_text(dy, s, sizeof s),
                        lksi_shape_text(x, t, sizeof t));
    lksi_infer_image(&a->out[0], x, x->dtype, x->ndim, x->shape);
    a->out[1] = *grid;
    a->out[1].data = NULL;
    lksi_contiguous_strides(&a->out[1]);
    return LKS_OK;
}
