/* SPDX-License-Identifier: BSD-3-Clause
 *
 * why.h - how shape rules and kernels of every device fail. For C and CUDA C++.
 */
#ifndef LKSI_WHY_H
#define LKSI_WHY_H

#include "table/view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Text for the caller, where there is room for one; returns code. */
lks_status lksi_why(const lksi_args *a, lks_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
