/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_rows.h - what losses over classes share on the CPU: targets and their check, weights of classes, and the
 * reduction of one loss per row. Follows rows.h; static.
 */
#ifndef LKSI_LOSS_ROWS_H
#define LKSI_LOSS_ROWS_H

#include "cpu/rows.h"

static inline LKSI_UNUSED int64_t index_of(const lksi_rowset *r, int64_t row)
{
    int64_t i = lksi_rowset_offset(r, row);
    return r->dtype == LKS_I64 ? ((const int64_t *)(void *)r->data)[i] : ((const int32_t *)(void *)r->data)[i];
}

/* Input i of a, NULL if it is absent. */
static inline LKSI_UNUSED const lksi_view *given(const lksi_args *a, int i)
{
    return i < a->nin && a->in[i].ndim >= 0 ? &a->in[i] : NULL;
}

/* Every target is a class or ignore_index; *count: the sum of the weights of the classes, 1 each without weight. */
static LKSI_UNUSED lks_status check_targets(const lksi_args *a, const lksi_rowset *target, int64_t classes,
                                            int64_t ignore, const lksi_view *weight, double *count)
{
    int64_t n = 0;
    double sum = 0;
    for (int64_t r = 0; r < target->rows; r++) {
        int64_t t = index_of(target, r);
        if (t == ignore) continue;
        if (t < 0 || t >= classes)
            return lksi_why(a, LKS_ERR_ARGUMENT,
                            "target %lld at row %lld is outside [0, %lld) and is not ignore_index",
                                   (long long)t, (long long)r, (long long)classes);
        if (weight) sum += lksi_get(weight->data, weight->dtype, t * weight->stride[0]);
        else n++;
    }
    *count = weight ? sum : (double)n;
    return LKS_OK;
}

/* The losses of rows, in double, to the result. count: what a mean is over; 0 of it gives 0 by LKS_REDUCTION_MEAN (1)
 * unless `strict`, NaN by LKS_REDUCTION_MEAN_NAN (4). */
static LKSI_UNUSED void put_losses(const lksi_args *a, const double *loss, int64_t rows, double count, int strict)
{
    const lksi_view *y = &a->out[0];
    int reduction = a->attr.loss.reduction;
    if (reduction == 0) {
        lksi_rowset out = lksi_rowset_of(y, 0);
        for (int64_t r = 0; r < rows; r++) lksi_put(out.data, out.dtype, lksi_rowset_offset(&out, r), loss[r]);
        return;
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += loss[r];
    if (reduction == 4 || (reduction == 1 && (strict || count != 0))) sum /= count;
    lksi_put(y->data, y->dtype, 0, sum);
}

/* What the gradient of row `row` is multiplied by: dy of the row, or dy over count. */
static inline LKSI_UNUSED double given_at(const lksi_args *a, const lksi_rowset *dy, int64_t row, double count)
{
    int reduction = a->attr.loss.reduction;
    double g = lksi_get(dy->data, dy->dtype, reduction == 0 ? lksi_rowset_offset(dy, row) : 0);
    return reduction == 1 || reduction == 4 ? (count != 0 ? g / count : 0) : g;
}

#endif
