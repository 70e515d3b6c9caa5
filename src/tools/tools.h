/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tools.h - the parts of the lockstep command. It sees the public header only; JSON is jansson's, options popt's,
 * configuration files libconfuse's, pictures gnuplot's.
 */
#ifndef LOCKSTEP_TOOLS_H
#define LOCKSTEP_TOOLS_H

#include <lockstep.h>

#include <stdio.h>

enum { LM = 1, CLASSIFY = 2, SAMPLE = 4, EVALUATE = 8, CHECKPOINT = 16, PLOT = 32, INFO = 64, SHAPE = 128,
       REGRESS = 256, PREDICT = 512, WATCH = 1024 };
#define ARRAYS (CLASSIFY + REGRESS)
#define TRAIN (LM + ARRAYS)

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_STOPPED = 85 };

enum option_id {
#define OPTION(id, ...) OPT_##id,
#include "tools/options.def"
#undef OPTION
    OPT_COUNT
};
enum option_kind { TEXT, LIST, WHOLE, REAL, CHOICE, FLAG };

typedef struct option_value {
    int from; /* -1 nothing, 0 default, 1 configuration file, 2 command line, 3 checkpoint */
    const char *text;
    int64_t whole;
    double real;
    const char **list;
    int count;
} option_value;

typedef struct options {
    int command;
    option_value v[OPT_COUNT];
    const char **operand; /* words that are no options */
    int operands;
} options;

/* Fills o for `command` from argv[first..]; 0, or an exit code after a text on stderr; -1 after --help. Ranks other
 * than the first print nothing. */
int options_parse(options *o, int command, const char *usage, int argc, const char **argv, int first);
/* Sets one option from text, as if given (from 3: a checkpoint's); 0 or an exit code. */
int options_set(options *o, int id, const char *text, int from);
const char *option_name(int id);
int option_kind(int id);
int option_is_shape(int id);
int option_applies(int id, int command);
/* The value as text, lists joined by newlines, "" if there is none; owned by a static table per id of o. */
const char *option_text(const options *o, int id, char *buffer, int bytes);
#define opt_given(o, id) ((o)->v[OPT_##id].from > 0)
#define opt_whole(o, id) ((o)->v[OPT_##id].whole)
#define opt_real(o, id) ((o)->v[OPT_##id].real)
#define opt_text(o, id) ((o)->v[OPT_##id].text)

/* Is this the rank that speaks? Known before MPI is up, from the launcher's environment. */
int speaks(void);
/* Message on stderr from the speaking rank; returns EXIT_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- job.c: context and model from options --- */
/* What a regression is about; regress.c. Shapes are those of a sample. */
typedef struct fields {
    int dims, ndim[2];                   /* spatial dims; dims of inputs and targets, -1: not there */
    int stored_known, stored_ndim[2];    /* of the checkpoint */
    int64_t shape[2][LKS_MAX_DIMS], stored[2][LKS_MAX_DIMS], numel[2], groups[2];
    lks_dtype target_dtype;
    lks_tensor *mean[2], *scale[2]; /* buffers of the parameter set, float64 [groups] */
} fields;

typedef struct job {
    options *o;
    int task;       /* LM, CLASSIFY or REGRESS */
    int no_targets; /* predict: inputs only, all of them */
    fields f;
    lks_context *ctx;
    lks_loader *loader;
    lks_params *ps;
    lks_module *model;
    lks_optim *opt;
    lks_scaler *scaler;
    lks_dp *dp;
    lks_checkpoint *ckpt;
    int64_t classes, seq_len;
    lks_dtype cast; /* LKS_DTYPE_NONE: no autocast */
} job;
/* Context by options; prints what is wrong. */
int job_open(job *j, options *o);
int job_data(job *j, double valid_fraction);
int job_model(job *j);
void job_close(job *j);
/* Prints the context's error with what was being done; returns EXIT_FAILED. Every rank may call it: all with a cause of
 * their own speak, those that only heard of another's failure do not. */
int job_fail(job *j, const char *doing);
const char *job_task_name(int task); /* "lm" */
/* loss (0-dim, sum over rows; NULL on failure) and, when score is not NULL, what the score is made of, float64 [2]:
 * right answers and 0; or the sums of squares of error and targets. */
lks_tensor *job_loss(job *j, lks_tensor *input, lks_tensor *target, lks_tensor **score);
/* Mean loss and score (accuracy; or error relative to the targets, root of the ratio of sums of squares) over the
 * validation part, over all ranks. *stop: set when a signal asked to stop meanwhile. */
int job_validate(job *j, int64_t batch, double *loss, double *score, int *stop);
/* Options and class count into / from the checkpoint object. */
int job_remember(job *j);
int job_recall(job *j, options *o, lks_checkpoint *c);

/* --- regress.c: fields in, fields or vectors out --- */
/* From the loader: shapes, model and its size where the options leave them open. 0 or an exit code. */
int regress_shapes(job *j);
int regress_model(job *j);
/* Means and scales from the training part into their buffers; refuses numbers that are not finite. */
int regress_normalize(job *j);
lks_tensor *regress_loss(job *j, lks_tensor *input, lks_tensor *target, lks_tensor **score);
/* Predictions for a batch, in the units of the targets, [n, shape of a target]. */
lks_tensor *regress_predict(job *j, lks_tensor *input);
int regress_remember(job *j);
int regress_recall(job *j, lks_checkpoint *c);

/* --- run.c: the folder of a run --- */
typedef struct metrics {
    int64_t step, skipped;
    double loss, valid_loss, valid_score, lr, scale, grad_norm, samples_per_s, tokens_per_s, seconds;
    int has_valid, has_tokens;
    const char *score; /* "valid_accuracy", "valid_error", NULL */
} metrics;
int run_open(job *j, const char *dir, int fresh, int64_t from_step,
             int64_t steps); /* rank 0: folders, run.json, metrics cut to from_step */
int run_log(const metrics *m);
/* Does the step's line of metrics, the last one, lack a validation? Adding it; both after run_open. */
int run_lacks_valid(int64_t step);
int run_add_valid(const char *dir, int64_t step, double loss, double score, const char *name);
void run_progress(const metrics *m, int64_t total, double seconds_left, int validated);
void run_close(void);
/* Into run.json: "done", "stopped", "failed". */
void run_ended(const char *dir, const char *state);
int run_width(void); /* of the terminal, in columns */
int run_used(const char *dir);

/* --- commands --- */
int cmd_train(int argc, const char **argv);
int cmd_sample(int argc, const char **argv);
int cmd_evaluate(int argc, const char **argv);
int cmd_predict(int argc, const char **argv);
int cmd_checkpoint(int argc, const char **argv);
int cmd_watch(int argc, const char **argv);
int cmd_plot(int argc, const char **argv);
int cmd_info(int argc, const char **argv);
/* Draws the runs' metrics into a PNG; 0, or EXIT_FAILED after a text. */
int plot_runs(int n, const char **dirs, const char *image);

/* Set by USR1, TERM, INT once signals_install was called: 1 = stop. */
void signals_install(void);
int signals_stop(void);

#endif
