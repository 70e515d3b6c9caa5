/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plugin.h - what a backend that is a module of its own (liblockstep_NAME.so) and the library hand each other. The
 * module exports one symbol, a const lksi_plugin called lksi_plugin_NAME, that is data: it is compared with the
 * library's own sizes and version before anything of the module is called. The module sees nothing else of the library.
 */
#ifndef LKSI_PLUGIN_H
#define LKSI_PLUGIN_H

#include "device/device.h"

/* What the library lends to a module. */
typedef struct lksi_host {
    const lksi_row *rows; /* LKSI_OP_COUNT */
    lks_status (*fail)(lksi_base *b, lks_status code, const char *where, const char *format, ...);
    void (*log)(lksi_base *b, int level, const char *format, ...);
    void *(*alloc)(lksi_base *b, int64_t bytes);
    void (*free)(lksi_base *b, void *p);
    int (*alloc_must_fail)(lksi_base *b);
    const char *(*shape_text)(const lksi_view *v, char *buffer, int bytes);
    void (*make_room)(lksi_base *b); /* the pool of b's context gives its idle memory back to the backend */
} lksi_host;

typedef struct lksi_plugin {
    int abi, size;       /* LKSI_ABI, sizeof(lksi_plugin) */
    const char *version; /* "0.1.0", of the headers that it was built with */
    int host_size, backend_size, view_size, args_size, row_size, ops;
    const lksi_backend *backend;
    void (*attach)(const lksi_host *host); /* once before anything else; the host lives on */
    /* Devices that can be used here; text says what they are, or why there are none. */
    int (*probe)(char *text, int bytes);
    /* What a module that is no backend provides instead (device/fft.h). */
    const void *service;
} lksi_plugin;

#define LKSI_PLUGIN_TEXT_(x) #x
#define LKSI_PLUGIN_TEXT(x) LKSI_PLUGIN_TEXT_(x)
#define LKSI_PLUGIN_VERSION                                                                                    \
    LKSI_PLUGIN_TEXT(LKS_VERSION_MAJOR) "." LKSI_PLUGIN_TEXT(LKS_VERSION_MINOR) "." LKSI_PLUGIN_TEXT(LKS_VERSION_PATCH)
/* The facts of an lksi_plugin that the compiler knows. */
#define LKSI_PLUGIN_FACTS                                                                                      \
    .abi = LKSI_ABI, .size = (int)sizeof(lksi_plugin), .version = LKSI_PLUGIN_VERSION,                         \
    .host_size = (int)sizeof(lksi_host), .backend_size = (int)sizeof(lksi_backend),                            \
    .view_size = (int)sizeof(lksi_view), .args_size = (int)sizeof(lksi_args), .row_size = (int)sizeof(lksi_row), \
    .ops = LKSI_OP_COUNT

#endif
