/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loader.h - the parts of a loader. A source knows files and where the bytes of a sample lie; the loader knows epochs,
 * shares and batches; a job is a list of reads by offset that the loader or its thread carries out.
 */
#ifndef LKSI_LOADER_H
#define LKSI_LOADER_H

#include "comm/comm.h"
#include "data/order.h"
#include "h5/h5.h"
#include "tensor/tensor.h"
#include <lockstep/data.h>

/* A file read by offset. Beyond LKSI_OPEN_FILES of them it is opened for each read. */
#define LKSI_OPEN_FILES 256
typedef struct lksi_file {
    char *path;
    int fd; /* -1: opened when read */
    int64_t bytes;
} lksi_file;

/* Opens and measures. A missing, unreadable or empty file or a folder is an error that names it. */
lks_status lksi_file_open(lksi_base *b, const char *where, const char *path, int keep_open, lksi_file *f);
void lksi_file_close(lksi_base *b, lksi_file *f);

/* Read `bytes` at `offset` of `file` to `to`. */
typedef struct lksi_piece {
    const lksi_file *file;
    int64_t offset, bytes;
    char *to;
} lksi_piece;

enum lksi_part { LKSI_PART_TRAIN, LKSI_PART_VALID, LKSI_PART_ALL };
/* The rows of one batch on their way: which, their pieces, and the memory they go to (a row after the other). */
typedef struct lksi_job {
    int part; /* TRAIN, VALID, or ALL: the data as it lies in the files */
    int64_t at, batch, micro, micros, seed; /* key */
    int64_t rows, first, total;             /* first: row in the step's global batch */
    int64_t *sample;                        /* rows */
    int64_t sample_room;
    lksi_piece *piece;
    int64_t pieces, piece_room;
    char *raw;
    int64_t raw_room;
    /* result of reading */
    int error; /* errno, -1 = end of file */
    const lksi_file *error_file;
    int64_t error_offset;
} lksi_job;

/* Carries out a job's reads. No context, no MPI, no HDF5: also run by the thread. */
void lksi_job_read(lksi_job *job);

typedef struct lksi_prefetch lksi_prefetch;
lks_status lksi_prefetch_start(lksi_base *b, lksi_prefetch **p);
void lksi_prefetch_stop(lksi_base *b, lksi_prefetch **p); /* NULL is fine; waits for the thread */
void lksi_prefetch_submit(lksi_prefetch *p, lksi_job *job); /* none may be under way */
void lksi_prefetch_wait(lksi_prefetch *p);                  /* until none is under way */

/* What a source provides. */
typedef struct lksi_source {
    void (*close)(lks_loader *l);
    /* Raw bytes of a row, the pieces it takes, 0 pieces: it cannot be read by offset. */
    int64_t raw_bytes;
    int pieces;
    /* Fills piece[0 .. pieces) for sample s (a window or a row of the data); to: where the row's raw bytes go. */
    void (*locate)(lks_loader *l, int valid_part, int64_t s, char *to, lksi_piece *piece);
    /* Makes the tensors of the job's rows. */
    lks_status (*deliver)(lks_loader *l, const char *where, lksi_job *job, lks_tensor **input, lks_tensor **target);
    int64_t (*classes)(lks_loader *l, lks_status *status); /* of this rank's share, -1 = none */
    /* Arrays only, else NULL. Host memory of the job's rows of column 0 (inputs) or 1 (targets), with their dtype and
     * elements a row; NULL: failed. Text for a sample of a column ("u.h5: sample 7 of inputs \"u\""). */
    void *(*host)(lks_loader *l, const char *where, lksi_job *job, int column, lks_dtype *dtype, int64_t *numel);
    void (*name)(lks_loader *l, int column, int64_t sample, char *text, int bytes);
} lksi_source;

struct lks_loader {
    lks_context *ctx;
    lksi_source source;
    void *state;              /* the source's own */
    int shuffled_split;       /* arrays: validation samples are chosen by a seeded shuffle */
    int64_t train, valid;     /* samples */
    int input_ndim;
    int64_t input_shape[LKS_MAX_DIMS];
    lks_dtype dtype[2]; /* of inputs and targets as delivered */
    int target_ndim;    /* -1: no targets */
    int64_t target_shape[LKS_MAX_DIMS];
    uint64_t fingerprint;
    lksi_prefetch *prefetch;
    lksi_job job[3];          /* the batch asked for, the one read ahead, validation */
    int ahead;                /* job[1] is under way or done */
    char *scratch[2];         /* host memory of the tensors */
    int64_t scratch_room[2];
};

/* At least `bytes` of scratch. */
void *lksi_loader_scratch(lks_loader *l, int which, int64_t bytes);
/* Sample at place k of an epoch, of the validation part, of the data. */
int64_t lksi_loader_sample(const lks_loader *l, int part, int64_t seed, int64_t epoch, int64_t k);
/* Reads a column of `rows` samples (numbers over the data) into the job, for source.host. */
lks_status lksi_loader_fetch(lks_loader *l, const char *where, lksi_job *job, const int64_t *sample, int64_t rows,
                             int column);
/* FNV-1a over bytes, continued. */
uint64_t lksi_fingerprint(uint64_t h, const void *data, int64_t bytes);
uint64_t lksi_fingerprint_name(uint64_t h, const char *path); /* without its folder */
/* Ends a create: agreement of all ranks on the outcome and on the fingerprint. Destroys *l on failure. Collective. */
lks_status lksi_loader_ready(lks_loader **l, lks_context *ctx, const char *where, lks_status status);

#endif
