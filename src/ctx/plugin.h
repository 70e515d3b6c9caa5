/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plugin.h - finding and loading a backend that is a module of its own. Private to this room.
 */
#ifndef LKSI_CTX_PLUGIN_H
#define LKSI_CTX_PLUGIN_H

#include "device/plugin.h"

/* The module of backend `name` ("cuda"), loaded for good and attached, path in `path`; NULL with the reason in `why`.
 * Both LKSI_TEXT bytes. */
const lksi_plugin *lksi_plugin_load(const char *name, char *path, char *why);

#endif
