/* SPDX-License-Identifier: BSD-3-Clause
 *
 * why.c - the text of a failed row. A file of its own, since each of the CUDA modules links a copy.
 */
#include "table/why.h"
#include <stdarg.h>
#include <stdio.h>

lks_status lksi_why(const lksi_args *a, lks_status code, const char *format, ...)
{
    if (!a->why) return code;
    va_list args;
    va_start(args, format);
    vsnprintf(a->why, LKSI_WHY, format, args);
    va_end(args);
    return code;
}
