/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/ckpt.h - the state of a training run in one HDF5 file, readable by h5dump and h5py; the format is specified
 * in doc/checkpoint-format.md.
 *
 * Saving: written under a temporary name in place by all ranks, checksummed, fsynced, verified, renamed, folder synced:
 * a kill at any moment leaves the last complete file. Loading: all or nothing; a damaged, truncated, foreign or newer
 * file gives one error on every rank and changes nothing. Two runs of one training give byte-identical files.
 */
#ifndef LOCKSTEP_CKPT_H
#define LOCKSTEP_CKPT_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A checkpoint object names what is saved and loaded; it borrows the objects, which must outlive it. policy: of
 * lks_scaler_load_text (scaler.h), for a file whose scaler has another schedule. Local. */
LKS_API lks_status lks_checkpoint_create(lks_context *ctx, lks_checkpoint **c);
LKS_API void lks_checkpoint_destroy(lks_checkpoint **c);
LKS_API lks_status lks_checkpoint_set_params(lks_checkpoint *c, lks_params *ps);
LKS_API lks_status lks_checkpoint_set_optim(lks_checkpoint *c, lks_optim *opt);
LKS_API lks_status lks_checkpoint_set_scaler(lks_checkpoint *c, lks_scaler *s, int policy);
/* Named numbers and texts of the program (step, position, options...): kept in /program, order irrelevant. Set before
 * save; after load, get. LKS_ERR_NOT_FOUND if the file had none. Text lives until the next load or destroy. Local. */
LKS_API lks_status lks_checkpoint_set_i64(lks_checkpoint *c, const char *key, int64_t value);
LKS_API lks_status lks_checkpoint_set_f64(lks_checkpoint *c, const char *key, double value);
LKS_API lks_status lks_checkpoint_set_text(lks_checkpoint *c, const char *key, const char *text);
LKS_API lks_status lks_checkpoint_get_i64(lks_checkpoint *c, const char *key, int64_t *value);
LKS_API lks_status lks_checkpoint_get_f64(lks_checkpoint *c, const char *key, double *value);
LKS_API lks_status lks_checkpoint_get_text(lks_checkpoint *c, const char *key, const char **text);
/* Strict (default 1): names missing in the file or unknown to the program are LKS_ERR_MISMATCH listing both. 0: load
 * what fits; *missing and *unexpected of lks_checkpoint_load count them. Local. */
LKS_API lks_status lks_checkpoint_set_strict(lks_checkpoint *c, int strict);

/* Writes `path` (its folder must exist). Random state and data position are included. Errors: LKS_ERR_IO,
 * LKS_ERR_NO_SPACE; the file that was there stays. Collective. */
LKS_API lks_status lks_checkpoint_save(lks_checkpoint *c, const char *path);
/* Restores from `path`, at any rank count. missing, unexpected may be NULL. Errors: LKS_ERR_NOT_FOUND, LKS_ERR_CORRUPT
 * (damaged, truncated, foreign), LKS_ERR_UNSUPPORTED (newer), LKS_ERR_MISMATCH (not what the program built): all is as
 * it was before. Collective. */
LKS_API lks_status lks_checkpoint_load(lks_checkpoint *c, const char *path, int *missing, int *unexpected);
/* Reads /program and attributes only, changing nothing else (for tools that build the model from the file).
 * Collective. */
LKS_API lks_status lks_checkpoint_peek(lks_checkpoint *c, const char *path);
/* Checks structure and every checksum. LKS_ERR_CORRUPT, _NOT_FOUND, ... with what is wrong. Collective. */
LKS_API lks_status lks_checkpoint_verify(lks_context *ctx, const char *path);

/* Compares what two checkpoints hold, by their checksums: `line` gets a text for each dataset that differs or is in one
 * of them only ("/model/w: differs"). Returns their number, or a negative status. Collective. */
typedef void (*lks_line_fn)(void *user, const char *line);
LKS_API int64_t lks_checkpoint_compare(lks_context *ctx, const char *a, const char *b, lks_line_fn line, void *user);

/* In folder `dir`: saves as step-NNNNNNNN.h5 and keeps the newest `keep` (>= 1). Collective. */
LKS_API lks_status lks_checkpoint_save_step(lks_checkpoint *c, const char *dir, int64_t step, int keep);
/* Newest valid checkpoint in dir: its path in `path` (bytes long), its step; each bad one is named in a warning to the
 * log. LKS_ERR_NOT_FOUND if there is none, LKS_ERR_CORRUPT if there are, but all bad. Collective. */
LKS_API lks_status lks_checkpoint_latest(lks_context *ctx, const char *dir, char *path, int bytes, int64_t *step);

#ifdef __cplusplus
}
#endif
#endif
