/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/data.h - batches for training from text files (bytes) and HDF5 arrays, sharded over ranks.
 *
 * Position is one number: samples consumed by all ranks since training began. Epoch e visits each sample once in the
 * order of a keyed bijection of (seed, e); any rank count sees the same order, so a position is valid at any.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Text: n files, read as bytes in windows of length seq_len (+ 1 for the target); the last valid_fraction of each file
 * is the validation part, windows never cross the border or files. A batch is (input int64 [b, T], target int64 [b,
 * T]). Reads by offset; no file is held in memory. A file that is not there is LKS_ERR_NOT_FOUND, one that cannot be
 * read LKS_ERR_IO; ranks that see different files: LKS_ERR_MISMATCH. Collective. */
LKS_API lks_status lks_loader_text(lks_context *ctx, int n, const char *const *paths, int64_t seq_len,
                                   double valid_fraction, lks_loader **loader);
/* HDF5 arrays: datasets `inputs` [N, ...] and `targets` [N, ...] over n files joined along dim 0, read by hyperslab;
 * targets NULL: there are none, batches have LKS_NONE. Integer images (uint8) are delivered as float32 / 255. Integer
 * targets as int64. A name may take a part of its dataset as NumPy writes it, start:stop:step or an index (which drops
 * the dim) for each dim, from the end where negative: with "u[:-1]" and "u[1:]" a field is followed by the next one.
 * The first dim is that of the samples and takes a range; what lies outside the dataset is an error. A seeded shuffle
 * sets aside valid_fraction for validation. Errors as for text; LKS_ERR_NOT_FOUND also names the datasets that are
 * there, LKS_ERR_CORRUPT: not an HDF5 file, or damaged. Collective. */
LKS_API lks_status lks_loader_hdf5(lks_context *ctx, int n, const char *const *paths, const char *inputs,
                                   const char *targets, double valid_fraction, lks_loader **loader);
/* Ends reading ahead, too. Local. */
LKS_API void lks_loader_destroy(lks_loader **loader);
/* Arrays: numbers that float32 does not hold (float64, integers) are delivered as float64, all others as float32, none
 * divided. Local, the same on every rank. */
LKS_API lks_status lks_loader_set_wide(lks_loader *loader, int on);
/* A thread reads ahead (files only, no MPI or HDF5 call); default off. Local. */
LKS_API lks_status lks_loader_set_prefetch(lks_loader *loader, int on);
/* Samples in the training / validation part; per-sample shape without the leading dim. Local. */
LKS_API int64_t lks_loader_train_count(const lks_loader *loader);
LKS_API int64_t lks_loader_valid_count(const lks_loader *loader);
LKS_API int lks_loader_input_ndim(const lks_loader *loader);
LKS_API const int64_t *lks_loader_input_shape(const lks_loader *loader);
/* Dims of a target without the leading one (-1: no targets), and the size of one of them. Local. */
LKS_API int lks_loader_target_ndim(const lks_loader *loader);
LKS_API int64_t lks_loader_target_dim(const lks_loader *loader, int dim);
/* dtype in which column 0 (inputs) or 1 (targets) is delivered; LKS_DTYPE_NONE: there is none. Local. */
LKS_API lks_dtype lks_loader_dtype(const lks_loader *loader, int column);
/* Largest integer target + 1 over the data (classes); 0 if targets are not integers. Collective. */
LKS_API int64_t lks_loader_classes(lks_loader *loader);

/* Next micro-batch `micro` of `micros` of the step that starts at position `at` with a global batch of `batch` samples:
 * this rank's rows, row-major contiguous share. The last batch of an epoch holds what is left. *rows: this rank's
 * rows (0: inputs are LKS_NONE); *total: rows of the whole step over all ranks and micro-batches; sets
 * lks_random_rows. The next position is at + *total. Tensors belong to the innermost scope. Local (fails on this
 * rank alone; agree before going on). */
LKS_API lks_status lks_loader_train(lks_loader *loader, int64_t at, int64_t batch, int micro, int micros,
                                    lks_tensor **input, lks_tensor **target, int64_t *rows, int64_t *total);
/* Rows [first, first + batch) of the validation part, this rank's share; *rows 0 where there are none. Each sample is
 * seen once over all ranks. Local. */
LKS_API lks_status lks_loader_valid(lks_loader *loader, int64_t first, int64_t batch, lks_tensor **input,
                                    lks_tensor **target, int64_t *rows);
/* Arrays: rows [first, first + batch) as they lie in the files, this rank's share of them, which begins with number
 * *begin. Local. */
LKS_API lks_status lks_loader_rows(lks_loader *loader, int64_t first, int64_t batch, lks_tensor **input,
                                   lks_tensor **target, int64_t *rows, int64_t *begin);
/* Arrays: mean and standard deviation (of the population) over the training part of the inputs (column 0) or targets
 * (1), as they are delivered. A sample is cut into n / 2 groups of equal size (1: all of it; its first dim: by channel;
 * its elements: each its own); moments gets their means, then their deviations. One pass over the files, in memory that
 * does not grow with them; the same bits on any number of ranks. NaN or infinity in any sample, of the validation part,
 * too, is LKS_ERR_ARGUMENT and named. Collective. */
LKS_API lks_status lks_loader_statistics(lks_loader *loader, int column, int n, double *moments);
/* Global sample index at place `k` of epoch `epoch` (training part); for tests and tools. Local. */
LKS_API int64_t lks_loader_index(const lks_loader *loader, int64_t epoch, int64_t k);
/* 64-bit fingerprint of the data (names without folders, sizes, shapes): kept in checkpoints. Local. */
LKS_API int64_t lks_loader_fingerprint(const lks_loader *loader);

/* --- results ------------------------------------------------------------------------------------------------------
 * One array [N, ...] as dataset `name` (with groups: "run/u") of a new HDF5 file that all ranks write; `path` appears,
 * or is replaced, when it is whole. Errors: LKS_ERR_IO, LKS_ERR_NO_SPACE. */

/* shape has ndim entries. Collective. */
LKS_API lks_status lks_output_create(lks_context *ctx, const char *path, const char *name, lks_dtype dtype, int ndim,
                                     const int64_t *shape, lks_output **output);
/* Rows [first, first + rows) from host memory, row-major, of the dataset's dtype; rows nobody writes are zero. Local
 * (fails on this rank alone; agree before going on). */
LKS_API lks_status lks_output_write(lks_output *output, int64_t first, int64_t rows, const void *data);
/* Copies the attributes of file `path` and of dataset `name` in it (as given to lks_loader_hdf5; need not exist) to the
 * new file and its dataset, over those of the same name; references stay behind. Collective. */
LKS_API lks_status lks_output_copy_attributes(lks_output *output, const char *path, const char *name);
/* A text as attribute of the dataset. Local, the same on every rank. */
LKS_API lks_status lks_output_set_text(lks_output *output, const char *key, const char *text);
/* The file is complete: synced and renamed. Collective. */
LKS_API lks_status lks_output_finish(lks_output *output);
/* Before lks_output_finish nothing remains of it. NULL is fine. Local. */
LKS_API void lks_output_destroy(lks_output **output);

#ifdef __cplusplus
}
#endif
#endif
