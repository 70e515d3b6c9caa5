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

lks_status lksi_infer_view_as_real(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    if (!lks_dtype_is_complex(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "%s has no parts; a complex tensor is needed", lks_dtype_name(x->dtype));
    if (x->ndim == LKS_MAX_DIMS) return lksi_why(a, LKS_ERR_SHAPE, "%d dims; there is no place for one more", x->ndim);
    *y = *x;
    y->dtype = x->dtype == LKS_C64 ? LKS_F32 : LKS_F64;
    for (int d = 0; d < x->ndim; d++) y->stride[d] = 2 * x->stride[d];
    y->shape[y->ndim] = 2;
    y->stride[y->ndim++] = 1;
    return LKS_OK;
}

lks_status lksi_infer_as_complex(lksi_args *a)
{
    const lksi_view *x = &a->in[0];
    lksi_view *y = &a->out[0];
    int n = x->ndim - 1;
    char s[200];
    if (x->dtype != LKS_F32 && x->dtype != LKS_F64)
        return lksi_why(a, LKS_ERR_DTYPE, "pairs of %s are no complex numbers here; float32 or float64 is needed",
                        lks_dtype_name(x->dtype));
    int empty = lksi_numel(x) == 0, fits = n >= 0 && x->shape[n] == 2 && (x->stride[n] == 1 || empty);
    for (int d = 0; fits && d < n; d++) fits = x->stride[d] % 2 == 0 || x->shape[d] == 1 || empty;
    int64_t bytes = 2 * lks_dtype_size(x->dtype);
    if (!fits || (!empty && (intptr_t)x->data % (bytes > 8 ? 8 : bytes)))
        return lksi_why(a, LKS_ERR_SHAPE,
                        "%s is not seen as pairs: the last dim must have size 2 and stride 1, the others even strides "
                        "(lks_contiguous)",
                        lksi_shape_text(x, s, sizeof s));
    *y = *x;
    y->ndim = n;
    y->dtype = x->dtype == LKS_F32 ? LKS_C64 : LKS_C128;
    for (int d = 0; d < n; d++) y->stride[d] = x->stride[d] / 2;
    return LKS_OK;
}
