/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_view.c - shape rules of the rows that make views. Attributes come normalised from src/ops/views.c, except sizes
 * -1 in view; what could still be wrong is checked here once.
 */
#include "table/table.h"

/* Strides for x under another shape of as many elements, if it can be had without moving data. Walks both shapes from
 * the end: each group of x's dims that is evenly strided is carved into the new dims. */
static int restride(const lksi_view *x, int ndim, const int64_t *shape, int64_t *stride)
{
    int d = x->ndim - 1;
    int n = ndim - 1;
    while (d >= 0) {
        /* The longest run of dims ending at d that walks memory evenly. */
        int64_t base = x->stride[d], run = 1;
        if (x->shape[d] == 1) {
            d--;
            continue;
        }
        int64_t last = base;
        int first = 1;
        while (d >= 0 && (x->shape[d] == 1 || first || x->stride[d] == last)) {
            if (x->shape[d] != 1) {
                run *= x->shape[d];
                last = x->stride[d] * x->shape[d];
                first = 0;
            }
            d--;
        }
        int64_t got = 1;
        while (n >= 0 && got < run) {
            stride[n] = got * base;
            got *= shape[n];
            n--;
        }
        if (got != run) return 0;
    }
    for (; n >= 0; n--) {
        if (shape[n] != 1) return 0;
        stride[n] = 1;
    }
    return 1;
}

lks_status lksi_infer_view(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int n = a->attr.view.ndim;
    char text[200], want[200];
    int64_t known = 1, hole = -1, total = lksi_numel(x);
    y->dtype = x->dtype;
    y->ndim = n;
    for (int d = 0; d < n; d++) {
        y->shape[d] = a->attr.view.shape[d];
        if (y->shape[d] == -1 && hole < 0) hole = d;
        else if (y->shape[d] < 0 || __builtin_mul_overflow(known, y->shape[d], &known))
            return lksi_why(a, LKS_ERR_SHAPE, "shape %s is not valid", lksi_shape_text(y, want, sizeof want));
    }
    if (hole >= 0) {
        if (known == 0 || total % known)
            return lksi_why(a, LKS_ERR_SHAPE, "%s cannot be seen as %s", lksi_shape_text(x, text, sizeof text),
                            lksi_shape_text(y, want, sizeof want));
        y->shape[hole] = total / known;
        known *= y->shape[hole];
    }
    if (known != total)
        return lksi_why(a, LKS_ERR_SHAPE, "%s cannot be seen as %s", lksi_shape_text(x, text, sizeof text),
                        lksi_shape_text(y, want, sizeof want));
    y->data = x->data;
    lksi_contiguous_strides(y);
    if (total == 0) return LKS_OK;
    if (!restride(x, n, y->shape, y->stride))
        return lksi_why(a, LKS_ERR_UNSUPPORTED, "strides of %s do not allow a view as %s",
                        lksi_shape_text(x, text, sizeof text), lksi_shape_text(y, want, sizeof want));
    return LKS_OK;
}

lks_status lksi_infer_expand(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int n = a->attr.view.ndim, lead = n - x->ndim;
    y->dtype = x->dtype;
    y->ndim = n;
    y->data = x->data;
    for (int d = 0; d < n; d++) y->shape[d] = a->attr.view.shape[d];
    for (int d = 0; d < n; d++) {
        int64_t have = d < lead ? 1 : x->shape[d - lead], want = y->shape[d];
        if (want == -1 && d >= lead) want = y->shape[d] = have;
        if (lead < 0 || want < 0 || (have != want && have != 1)) {
            char text[200], target[200];
            return lksi_why(a, LKS_ERR_SHAPE, "%s does not expand to %s", lksi_shape_text(x, text, sizeof text),
                            lksi_shape_text(y, target, sizeof target));
        }
        y->stride[d] = have == want && d >= lead ? x->stride[d - lead] : 0;
    }
    return LKS_OK;
}

lks_status lksi_infer_permute(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int seen = 0;
    *y = *x;
    for (int d = 0; d < x->ndim; d++) {
        int from = a->attr.permute.dims[d];
        if (from < 0 || from >= x->ndim || seen >> from & 1)
            return lksi_why(a, LKS_ERR_ARGUMENT, "dims are not a permutation of 0..%d", x->ndim - 1);
        seen |= 1 << from;
        y->shape[d] = x->shape[from];
        y->stride[d] = x->stride[from];
    }
    return LKS_OK;
}

lks_status lksi_infer_slice(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int d = a->attr.slice.dim;
    int64_t start = a->attr.slice.start, stop = a->attr.slice.stop, step = a->attr.slice.step;
    *y = *x;
    y->shape[d] = stop > start ? (stop - start + step - 1) / step : 0;
    y->stride[d] = x->stride[d] * step;
    if (lksi_numel(y) > 0) y->data = (char *)x->data + start * x->stride[d] * lks_dtype_size(x->dtype);
    return LKS_OK;
}
