/* SPDX-License-Identifier: BSD-3-Clause
 *
 * restore.h - a trained model from the name of a run folder or a checkpoint file.
 */
#ifndef LOCKSTEP_RESTORE_H
#define LOCKSTEP_RESTORE_H

#include "tools/tools.h"

/* The newest checkpoint of a run folder, or the file itself; 0 or an exit code. */
int restore_path(job *j, const char *name, char *path, int bytes);
/* Model with its weights; options not given are the checkpoint's. data: open --data, too;
 * else the model must be a language model. */
int restore_model(job *j, options *o, const char *name, int data);

#endif
