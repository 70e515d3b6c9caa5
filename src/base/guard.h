/* SPDX-License-Identifier: BSD-3-Clause
 *
 * guard.h - for functions outside the door that compute, compare or convert numbers: the program's traps, rounding and
 * flushing are not for them. What passes the door (src/dispatch) is guarded there.
 */
#ifndef LKSI_GUARD_H
#define LKSI_GUARD_H

#include "base/base.h"

/* The rest of the function runs in the default floating-point environment; the program's is back when it returns. */
#define LKSI_GUARD                                                                                             \
    __attribute__((cleanup(lksi_fpenv_leave))) lksi_fpenv guard_;                                              \
    lksi_fpenv_enter(&guard_)

#endif
