/* SPDX-License-Identifier: BSD-3-Clause
 *
 * samples.h - how each differentiable row of the table is called: one table, walked by test_ops.c, which makes the
 * variants (layouts, dtypes, devices, threads, failing memory) by itself. A new row needs a line in samples.c and
 * nothing else; without one test_ops fails.
 */
#ifndef LKS_TEST_SAMPLES_H
#define LKS_TEST_SAMPLES_H

#include "ops/ops.h"

/* What an input holds. All floats are exact in bfloat16, so that references in float64 see the same numbers. */
enum sample_kind {
    IN_REAL,     /* of both signs, some near 0 */
    IN_POSITIVE, /* 0.25 to 2.25 */
    IN_UNIT,     /* 0.125 to 0.875 */
    IN_AWAY,     /* of both signs, at least 0.25 from 0 */
    IN_APART,    /* no two alike */
    IN_NEGATIVE, /* -0.125 to -2.125 */
    IN_ODD,      /* of both signs, no difference to IN_REAL is 0 or a multiple of 1/32 */
    IN_LAST_FLOAT = IN_ODD,
    IN_SIGN,    /* 1 or -1, no gradient is asked for */
    IN_WEIGHT,  /* 0.25 to 2.25, no gradient is asked for */
    IN_MASK,    /* floating, no gradient is asked for */
    IN_STAT,    /* float32 whatever the others are, positive, no gradient */
    IN_INDEX,   /* int64 in [0, limit) */
    IN_INDEX32, /* int32 in [0, limit) */
    IN_IGNORE,  /* int64 in [0, limit), every third LKS_IGNORE_INDEX */
    IN_BOOL
};

typedef struct sample_input {
    int kind, ndim;
    int64_t shape[5];
    int64_t limit;
} sample_input;

enum {
    ONCE = 1,      /* the backward row is fused: not twice differentiable */
    COMPOSITE = 2, /* several rows: the last one recorded need not be `row` */
    LARGE = 4,     /* for the comparison of thread counts only */
    ROUGH = 8,     /* sums or quotients that lose some more bits in reduced floats */
    CHAIN = 16     /* and several products one after the other, each rounded to the tensors' dtype */
};

#define SAMPLE_INPUTS 7
typedef struct sample {
    const char *row, *what;
    lks_tensor *(*call)(lks_context *ctx, lks_tensor *const *in);
    int flags;
    sample_input in[SAMPLE_INPUTS];
    int nin;
} sample;

extern const sample samples[];
extern const int sample_count;

enum sample_layout { PLAIN, REVERSED, SLICED, CHANNELS_LAST, LAYOUTS };
extern const char *const layout_names[LAYOUTS];

/* 1 if input i is floating and takes part in differentiation. */
int sample_differentiable(const sample *s, int i);
/* Input i in dtype (kinds that are not floating keep theirs), row-major, the dims in reverse order in memory, every
 * second element of a larger tensor, or channels-last (4-D; else row-major). A constant; NULL when out of memory. */
lks_tensor *sample_tensor(lks_context *ctx, const sample *s, int i, lks_dtype dtype, int layout);
/* 1 if `layout` is something else than PLAIN for this sample. */
int sample_has_layout(const sample *s, int layout);

#endif
