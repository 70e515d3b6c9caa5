/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inside.h - what the files of this room share; nothing outside of it includes this header (it brings in hdf5.h).
 */
#ifndef LKSI_H5_INSIDE_H
#define LKSI_H5_INSIDE_H

#include "h5/h5.h"
#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

/* The macros of hdf5.h call H5check_version, which may abort; lksi_h5_check has compared before. */
#undef H5CHECK
#define H5CHECK

struct lksi_h5 {
    lksi_base *base;
    const char *where;
    char *label;
    hid_t file, driver; /* driver < 0: an ordinary file */
    lksi_h5_image *image;
    int owns_image, writing;
};

/* The host's error handling, put aside while we are inside. */
typedef struct lksi_h5_session {
    H5E_auto2_t fn;
    void *data, *old_fn, *old_data;
    int old_style;
    hid_t stack;
} lksi_h5_session;
void lksi_h5_enter(lksi_h5_session *s);
void lksi_h5_leave(lksi_h5_session *s);

/* Innermost reason HDF5 gives, "" if none; before any other HDF5 call. */
void lksi_h5_reason(char *text, int bytes);
/* Registers the driver that keeps a file in `image` and sets it in a file access list; *driver is to be unregistered.
 */
int lksi_h5_image_access(lksi_h5_image *image, hid_t fapl, hid_t *driver);
int lksi_h5_image_out_of_memory(const lksi_h5_image *image);
int64_t lksi_h5_image_bytes(const lksi_h5_image *image);
/* File and memory types; the caller closes them. */
hid_t lksi_h5_file_type(lks_dtype dtype);
hid_t lksi_h5_memory_type(lks_dtype dtype);
/* A complex number as h5py writes it: a compound of r and i. */
hid_t lksi_h5_pair(hid_t real);

#endif
