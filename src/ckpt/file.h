/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.h - a checkpoint as bytes: the head in front of the HDF5 file, the extents of big data, checksums. Specified in
 * doc/checkpoint-format.md. Knows no parameters, no optimizer.
 */
#ifndef LKSI_CKPT_FILE_H
#define LKSI_CKPT_FILE_H

#include "comm/comm.h"
#include "h5/h5.h"
#include "tensor/tensor.h"

#define LKSI_CKPT_FORMAT 1
#define LKSI_CKPT_HEAD 4096          /* bytes in front of HDF5's (its user block) */
#define LKSI_CKPT_BLOCK (1 << 20)    /* checksums are over blocks of this many bytes */
#define LKSI_CKPT_WRITE (8 << 20)    /* bytes of one read or write */

/* Where the bytes of a dataset lie. hash: of the list of its blocks' hashes. */
typedef struct lksi_extent {
    int64_t offset, bytes;
    uint64_t hash;
} lksi_extent;

int64_t lksi_ckpt_blocks(int64_t bytes);
/* Hashes of the blocks of `bytes` bytes; data begins at a block border. */
void lksi_ckpt_hash_blocks(const void *data, int64_t bytes, uint64_t *hash);
uint64_t lksi_ckpt_hash_list(const uint64_t *hash, int64_t blocks);

/* Hash of all of the file's bytes after the head that are in no extent (sorted by offset). */
uint64_t lksi_ckpt_structure(const lksi_h5_image *image, int64_t size, const lksi_extent *e, int64_t n);
/* Fills the head: LKSI_CKPT_HEAD bytes. */
void lksi_ckpt_head(char *head, int64_t size, int64_t extents_at, int64_t n, uint64_t structure);

/* A checkpoint opened for reading, its head, structure and extents verified: nothing of it has been given to HDF5
 * before. The data of the extents is not verified yet. */
typedef struct lksi_ckpt_file {
    lksi_base *base;
    const char *where;
    char *path;
    int fd;
    int64_t size, n;
    lksi_extent *e;
    uint64_t structure;
    int64_t *first_block; /* n + 1: number of the first block of each extent, over all */
    uint64_t *block_hash; /* filled by lksi_ckpt_verify_data */
    lksi_h5_image *image;
    lksi_h5 *h5;
} lksi_ckpt_file;

lks_status lksi_ckpt_open(lksi_base *b, const char *where, const char *path, lksi_ckpt_file **f);
void lksi_ckpt_close(lksi_ckpt_file *f); /* NULL is fine */
/* Reads all data, each rank a share, and compares the checksums; every rank has the same file or it is an error. Ends
 * with an agreement: the same outcome on every rank. Collective; `mine`: this rank's status so far. */
lks_status lksi_ckpt_verify_data(lks_context *ctx, lksi_ckpt_file *f, lks_status mine);
/* Index of the extent at offset, -1 if there is none. */
int64_t lksi_ckpt_find(const lksi_ckpt_file *f, int64_t offset);

/* pread and pwrite of everything. LKS_ERR_IO, _NO_SPACE, _CORRUPT (end of file). */
lks_status lksi_ckpt_read(lksi_base *b, const char *where, int fd, const char *path, int64_t offset, void *data,
                          int64_t bytes);
lks_status lksi_ckpt_write(lksi_base *b, const char *where, int fd, const char *path, int64_t offset, const void *data,
                           int64_t bytes);
/* pwrite of everything for a thread that records no errors: errno of the failure, or 0. */
int lksi_ckpt_put(int fd, int64_t offset, const void *data, int64_t bytes);
/* The error for errno after a call that writes. */
lks_status lksi_ckpt_write_error(lksi_base *b, const char *where, const char *path, int error);

/* Every rank ends with the code and text of the lowest rank that failed. Collective. */
lks_status lksi_ckpt_outcome(lks_context *ctx, const char *where, lks_status mine);

/* Escaped form of a name, fit for one HDF5 link: '/', '%' and control characters as %XX, and "." and "..". NULL: out of
 * memory. And back, in place. */
char *lksi_ckpt_escape(lksi_base *b, const char *prefix, const char *name);
void lksi_ckpt_unescape(char *name);

#endif
