/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lacks.h - the rows of ops.def that have no CUDA kernel: LKS_ERR_UNSUPPORTED on this device. A row that has neither a
 * kernel nor a line here does not link. A line is: #define LKSI_LACKS_row ~, NULL
 * There is none where every library was found.
 */
#ifndef LKSI_CUDA_LACKS_H
#define LKSI_CUDA_LACKS_H

#ifndef HAVE_CUDNN /* dnn.c */
#define LKSI_LACKS_conv1d ~, NULL
#define LKSI_LACKS_conv2d ~, NULL
#define LKSI_LACKS_conv3d ~, NULL
#define LKSI_LACKS_conv_transpose1d ~, NULL
#define LKSI_LACKS_conv_transpose2d ~, NULL
#define LKSI_LACKS_conv_transpose3d ~, NULL
#define LKSI_LACKS_conv_tbc ~, NULL
#define LKSI_LACKS_conv_backward_input ~, NULL
#define LKSI_LACKS_conv_backward_weight ~, NULL
#endif

#endif
