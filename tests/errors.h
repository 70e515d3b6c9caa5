/* SPDX-License-Identifier: BSD-3-Clause
 *
 * errors.h - what tests of failures share: is the context's error the one that was to be?
 */
#ifndef LKS_TEST_ERRORS_H
#define LKS_TEST_ERRORS_H

#include "tap.h"
#include <lockstep.h>

/* Did a call fail, and is its error of this code with both words in the text? If not a note says what it is. The error
 * is cleared. */
__attribute__((unused)) static int recorded(lks_context *ctx, int failed, lks_status want, const char *a, const char *b)
{
    lks_status code = lks_error_code(ctx);
    const char *text = lks_error(ctx);
    int good = failed && code == want && strstr(text, a) && strstr(text, b);
    if (!good)
        diag("%s; recorded %s: %s; want %s with \"%s\", \"%s\"", failed ? "failed" : "did not fail",
             lks_status_name(code), text, lks_status_name(want), a, b);
    lks_error_clear(ctx);
    return good;
}

#endif
