/* SPDX-License-Identifier: BSD-3-Clause
 *
 * view.h - the plain structs that kernels see. Compiled as C and as CUDA C++; no function here, no other room's type.
 */
#ifndef LKSI_VIEW_H
#define LKSI_VIEW_H

#include <lockstep/base.h>

#define LKSI_MAX_IN 12 /* inputs of a row; cat takes more through lksi_args.in, which is an array of any length */
#define LKSI_MAX_OUT 8

typedef struct lksi_view {
    void *data; /* device address of element 0; NULL with ndim -1: absent (LKS_NONE) */
    int32_t dtype;
    int32_t ndim;
    int64_t shape[LKS_MAX_DIMS];
    int64_t stride[LKS_MAX_DIMS]; /* in elements, >= 0 */
} lksi_view;

/* Where the windows of a pooling lie. */
enum lksi_windows { LKSI_POOL_WINDOW, LKSI_POOL_ADAPTIVE, LKSI_POOL_FRACTIONAL };

/* Kinds of recurrent layers. */
enum lksi_rnn { LKSI_RNN_TANH, LKSI_RNN_RELU, LKSI_RNN_GRU, LKSI_RNN_LSTM };

/* What an op is told besides its tensors. One member per family; rows name theirs in ops.def. */
typedef union lksi_attr {
    struct { double scale, shift; } affine;
    struct { double value; } fill;
    struct { int32_t dtype; } cast;
    struct { int32_t mask, keepdim, dtype; double p; } reduce; /* bit d of mask: dim d goes; p: norm's, correction */
    struct { double a, b; } scalar; /* numbers of a formula: see src/table/scalar.def */
    struct { double scale, zero, min, max; } quantize; /* zero, min, max: whole numbers */
    struct { int32_t dim, reverse, dtype; } scan;
    struct { int32_t dim, keepdim; } dim;
    struct { int32_t tanh_form; } gelu;
    /* Windows over 1 to 3 dims: entry 2 is the last dim, dims that are not there have the neutral value. size: shape of
     * what a backward row makes. */
    struct { int64_t stride[3], padding[3], dilation[3], extra[3], groups, size[5]; } conv; /* extra: behind - before */
    struct { /* adaptive and fractional: stride is the shape of the result */
        int64_t kernel[3], stride[3], padding[3], dilation[3], size[5], divisor;
        int32_t how, ceil, include_pad, inside; /* inside: no place is outside its window (max_pool_backward) */
    } pool;
    struct { int64_t before[3], after[3], size[5]; int32_t reflect; } edge; /* entries and size as for pool */
    struct { int32_t mode, padding, align; } grid;
    struct { /* groups: group_norm; to: dtype of y, low: of the copy of dx, both plus 1, 0: that of x, none */
        int32_t ndims, to, low;
        int64_t groups;
        double eps;
    } norm;
    struct { int32_t training; double momentum, eps; } batch_norm;
    struct { /* wide: result is float32 at least; dtype: of a gradient; kind, order: see loss.h; classes: by infer */
        int64_t ignore_index;
        double smoothing;
        int32_t reduction, wide, dtype, kind, order, flags, p;
        double a, b, divisor;
        int64_t classes;
    } loss;
    struct { int64_t rows; } embedding;
    /* Element i of the tensor has counter offset + i (linear, row-major); key (seed, attempt, call). */
    struct { int64_t offset, call; double a, b; } random; /* dropout: a = p; uniform: [a, b); normal: mean a, std b */
    struct { int64_t offset, call; double p, scale; int32_t causal; } attention;
    struct { int32_t kind, reverse, save, batch_major; } rnn; /* save: for backward; batch_major: set by infer */
    struct { int32_t ndim; int64_t shape[LKS_MAX_DIMS]; } view;
    struct { int32_t dim; int64_t start, stop, step, size; } slice; /* size: of dim before slicing, for backward */
    struct { int32_t ndim, dims[LKS_MAX_DIMS]; } permute;
    struct { double alpha, beta; } product; /* alpha a b + beta c */
    struct { int32_t d0, d1, upper; int64_t offset, rows, columns; } diagonal; /* rows, columns: of what embed makes */
    struct { double value; int64_t before[LKS_MAX_DIMS], after[LKS_MAX_DIMS]; } pad; /* negative: cut off */
    struct { int32_t dim, descending; int64_t k; } sort;                              /* k: how many are kept */
    struct { double p; } distance;
    struct { int32_t n, accumulate; } put;                                            /* n index tensors */
    struct { int32_t n, inverse, dims[LKS_MAX_DIMS]; int64_t last; double scale; } fft; /* last: size of c2r's result */
    /* mode: of qr and svd; vectors: wanted; check: a failed matrix is an error; n: rows */
    struct { int32_t upper, transpose, unit, left, mode, vectors, check; int64_t n; double rcond; } linalg;
    struct { int64_t i[12]; double f[6]; } raw; /* optimizer rows: see src/table/step.h */
} lksi_attr;

/* Seed and attempted step, in device memory. */
typedef struct lksi_rng { int64_t seed, attempt; } lksi_rng;

/* One call of a kernel: complete and copyable, so that a device may queue it. */
typedef struct lksi_args {
    int32_t op, nin, nout;
    const lksi_view *in; /* nin entries */
    lksi_view *out;      /* nout entries, memory allocated, not overlapping inputs unless the row is in place */
    lksi_attr attr;
    const lksi_rng *rng; /* device memory */
    char *why;           /* LKSI_WHY bytes for the text of a failure */
} lksi_args;
#define LKSI_WHY 512

#endif
