/* SPDX-License-Identifier: BSD-3-Clause
 *
 * order.h - the order of an epoch as a function, and how rows are shared out. No memory, no state.
 */
#ifndef LKSI_ORDER_H
#define LKSI_ORDER_H

#include <stdint.h>

/* Where place k of [0, n) goes: a bijection of [0, n) chosen by (seed, epoch). 0 <= k < n. */
int64_t lksi_order(int64_t seed, int64_t epoch, int64_t n, int64_t k);
/* Share i of n rows cut into `parts` contiguous shares whose sizes differ by at most one, larger ones first:
 * with q = n / parts and r = n mod parts it begins at i q + min(i, r) and has q + (i < r) rows. */
void lksi_share(int64_t n, int64_t parts, int64_t i, int64_t *first, int64_t *rows);

#endif
