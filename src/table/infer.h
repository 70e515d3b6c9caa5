/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer.h - what the shape rules of convolution, pooling and sampling share. Defined in infer_conv.c.
 */
#ifndef LKSI_INFER_H
#define LKSI_INFER_H

#include "table/table.h"

/* y has this dtype and shape; channels-last where `like` is (also [N, C, L] with channels side by side). */
void lksi_infer_image(lksi_view *y, const lksi_view *like, lks_dtype dtype, int ndim, const int64_t *shape);
/* Name of attribute entry i (0..2) for texts. */
const char *lksi_infer_side(int i);
/* Refuses attributes of a window that are unsound; gives dilation (kernel - 1) and in + 2 padding. */
lks_status lksi_infer_window(lksi_args *a, int i, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                             int64_t dilation, int64_t *reach, int64_t *padded);

#endif
