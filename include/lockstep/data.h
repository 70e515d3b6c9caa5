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
 * T]). Reads by offset; no file is held in memory. Collective. */
LKS_API lks_status lks_loader_text(lks_context *ctx, int n, const char *const *paths, int64_t seq_len,
                                   double valid_fraction, lks_loader **loader);
/* HDF5 arrays: datasets `inputs` [N, ...] and `targets` [N, ...] over n files joined along dim 0, read by hyperslab.
 * Integer images (uint8) are delivered as float32 / 255. Integer targets as int64. A seeded shuffle sets aside
 * valid_fraction for validation. Collective. */
LKS_API lks_status lks_loader_hdf5(lks_context *ctx, int n, const char *const *paths, const char *inputs,
                                   const char *targets, double valid_fraction, lks_loader **loader);
LKS_API void lks_loader_destroy(lks_loader **loader);
/* A thread reads ahead (files only, no MPI or HDF5 call); default off. Local. */
LKS_API lks_status lks_loader_set_prefetch(lks_loader *loader, int on);
/* Samples in the training / validation part; per-sample shape without the leading dim. Local. */
LKS_API int64_t lks_loader_train_count(const lks_loader *loader);
LKS_API int64_t lks_loader_valid_count(const lks_loader *loader);
LKS_API int lks_loader_input_ndim(const lks_loader *loader);
LKS_API const int64_t *lks_loader_input_shape(const lks_loader *loader);
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
/* Global sample index at place `k` of epoch `epoch` (training part); for tests and tools. Local. */
LKS_API int64_t lks_loader_index(const lks_loader *loader, int64_t epoch, int64_t k);
/* 64-bit fingerprint of the data (names without folders, sizes, shapes): kept in checkpoints. Local. */
LKS_API int64_t lks_loader_fingerprint(const lks_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
