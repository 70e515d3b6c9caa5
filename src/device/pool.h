/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.h - the caching pool under lksi_device_alloc. Private to this room.
 */
#ifndef LKSI_POOL_H
#define LKSI_POOL_H

#include "device/device.h"

lks_status lksi_pool_open(lksi_device *d);
void lksi_pool_close(lksi_device *d);

#endif
