/* SPDX-License-Identifier: BSD-3-Clause
 *
 * h5.h - the one door to HDF5. Every call holds one lock (HDF5 is not thread-safe), keeps the error stack and the error
 * printing of the host program as they were, and leaves no identifier behind. Knows files, datasets and attributes, not
 * what they mean; makes no MPI call, so a serial HDF5 serves as well as a parallel one.
 */
#ifndef LKSI_H5_H
#define LKSI_H5_H

#include "base/base.h"

typedef struct lksi_h5 lksi_h5;             /* an open file */
typedef struct lksi_h5_image lksi_h5_image; /* a file in memory: only the bytes that HDF5 itself wrote or reads */

/* Compares the HDF5 that was compiled against with the one that runs, before anything that would let HDF5 abort the
 * process. Same major and minor, at least the same release, same flavour. */
lks_status lksi_h5_check(lksi_base *b, const char *where);
/* The comparison itself. parallel: 1 or 0, -1 = not known. */
lks_status lksi_h5_compare(lksi_base *b, const char *where, const unsigned built[3], int built_parallel,
                           const unsigned runs[3], int runs_parallel);

/* What a dataset is. Shapes of more than LKS_MAX_DIMS dimensions are refused. */
enum lksi_h5_kind { LKSI_H5_OTHER, LKSI_H5_INT, LKSI_H5_UINT, LKSI_H5_FLOAT, LKSI_H5_TEXT };
typedef struct lksi_h5_info {
    int ndim;
    int64_t shape[LKS_MAX_DIMS], numel;
    int kind, size;  /* bytes of an element in the file */
    int big_endian;
    int plain;       /* lksi_h5_decode can read the raw bytes: 1, 2 = bfloat16 */
    lks_dtype dtype; /* stored exactly as this dtype, little-endian; else LKS_DTYPE_NONE */
    int64_t offset;  /* of the first element in the file when contiguous, unfiltered and allocated; else -1 */
} lksi_h5_info;

/* Opens for reading, without file locks. LKS_ERR_NOT_FOUND, _IO, _CORRUPT (not HDF5). where lasts as long as the
 * file. */
lks_status lksi_h5_open(lksi_base *b, const char *where, const char *path, lksi_h5 **f);
/* NULL is fine. */
lks_status lksi_h5_close(lksi_h5 *f);
/* 1 there is such a group or dataset (by path), 0 there is not. */
int lksi_h5_has(lksi_h5 *f, const char *path);
/* LKS_ERR_NOT_FOUND names the datasets that exist. */
lks_status lksi_h5_describe(lksi_h5 *f, const char *path, lksi_h5_info *info);
/* Rows [first, first + count) of dim 0 (or all of a scalar: 0, 1) into memory of dtype F32, F64, I64 or U8; HDF5
 * converts. */
lks_status lksi_h5_read_rows(lksi_h5 *f, const char *path, int64_t first, int64_t count, lks_dtype dtype, void *out);
/* The same for a box: start and count have as many entries as the dataset has dimensions. */
lks_status lksi_h5_read_box(lksi_h5 *f, const char *path, const int64_t *start, const int64_t *count, lks_dtype dtype,
                            void *out);
/* The same with every step-th element of each dim (count: elements that are read). */
lks_status lksi_h5_read_slab(lksi_h5 *f, const char *path, const int64_t *start, const int64_t *step,
                             const int64_t *count, lks_dtype dtype, void *out);
/* A fixed-length text dataset, freed with lksi_free. */
lks_status lksi_h5_read_text(lksi_h5 *f, const char *path, char **text);
/* Names of the links of a group, in order of name. A stop by fn's status ends with it. */
typedef lks_status (*lksi_h5_name_fn)(void *user, const char *name);
lks_status lksi_h5_list(lksi_h5 *f, const char *group, lksi_h5_name_fn fn, void *user);
/* Attributes of the group or dataset at path. */
lks_status lksi_h5_get_i64(lksi_h5 *f, const char *path, const char *name, int64_t *value);
lks_status lksi_h5_get_f64(lksi_h5 *f, const char *path, const char *name, double *value);
lks_status lksi_h5_get_text(lksi_h5 *f, const char *path, const char *name, char *text, int bytes);

/* Raw elements as they lie in the file (info->plain) to F32, F64, I64 or U8. Integers to floats round once. */
void lksi_h5_decode(const lksi_h5_info *info, const void *raw, int64_t n, lks_dtype dtype, void *out);

/* --- writing: a file is made in memory, its big datasets are only given a place ----------------------------------- */

/* New file whose first `userblock` bytes (a power of two >= 512, or 0) are not HDF5's. No times are kept. Datasets of
 * 4 KiB and more begin on multiples of 4 KiB. */
lks_status lksi_h5_create(lksi_base *b, const char *where, int64_t userblock, int64_t metadata_block, lksi_h5 **f);
lks_status lksi_h5_make_group(lksi_h5 *f, const char *path);
/* Contiguous, allocated, not filled. *offset: where its bytes go in the file, -1 if it has none. */
lks_status lksi_h5_make_dataset(lksi_h5 *f, const char *path, lks_dtype dtype, int ndim, const int64_t *shape,
                                int64_t *offset);
/* All elements of a dataset, memory in the dataset's own dtype. */
lks_status lksi_h5_write(lksi_h5 *f, const char *path, lks_dtype dtype, const void *data);
lks_status lksi_h5_put_text(lksi_h5 *f, const char *path, const char *text);
/* An attribute that exists is overwritten (text: by one of the same length). */
lks_status lksi_h5_set_i64(lksi_h5 *f, const char *path, const char *name, int64_t value);
lks_status lksi_h5_set_f64(lksi_h5 *f, const char *path, const char *name, double value);
lks_status lksi_h5_set_text(lksi_h5 *f, const char *path, const char *name, const char *text);
/* Gives the object at to_path the attributes of that at from_path, over those of the same name; references, and what is
 * too large for an object's head (64 KiB), stay behind. */
lks_status lksi_h5_copy_attributes(lksi_h5 *from, const char *from_path, lksi_h5 *to, const char *to_path);
/* Closes the file; what HDF5 wrote is in *image, *bytes is the size of the file. Frees f also on failure. */
lks_status lksi_h5_finish(lksi_h5 *f, lksi_h5_image **image, int64_t *bytes);

/* --- images ------------------------------------------------------------------------------------------------------- */

#define LKSI_H5_CHUNK 65536 /* an image is held in pieces of this size */

/* An empty image of a file of `bytes` bytes; bytes not put read as zero. */
lksi_h5_image *lksi_h5_image_new(lksi_base *b, int64_t bytes);
void lksi_h5_image_free(lksi_h5_image *image);
lks_status lksi_h5_image_put(lksi_h5_image *image, int64_t offset, const void *data, int64_t bytes);
void lksi_h5_image_get(const lksi_h5_image *image, int64_t offset, void *data, int64_t bytes);
/* Number of pieces held; the i-th: its offset in the file. */
int64_t lksi_h5_image_pieces(const lksi_h5_image *image);
const void *lksi_h5_image_piece(const lksi_h5_image *image, int64_t i, int64_t *offset);
/* Opens an image for reading; label: the file's name in error texts. The image must outlive f. */
lks_status lksi_h5_open_image(lksi_base *b, const char *where, const char *label, lksi_h5_image *image, lksi_h5 **f);

#endif
