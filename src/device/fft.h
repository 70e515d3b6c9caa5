/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fft.h - what the module for Fourier transforms (liblockstep_fftw.so, lksi_plugin.service) provides. It is a module of
 * its own because FFTW is under the GPL: the library neither links nor needs it.
 */
#ifndef LKSI_FFT_H
#define LKSI_FFT_H

#include <lockstep/base.h>

enum lksi_fft_kind { LKSI_FFT_C2C, LKSI_FFT_R2C, LKSI_FFT_C2R };

/* One transform over `rank` dims, done `many` times. Strides in elements of the side they are of; real sides count real
 * numbers. R2C and C2R have rank 1, n is of the real side. Compared bytewise: no padding, unused entries 0. */
typedef struct lksi_fft_shape {
    int32_t kind, dbl, inverse, rank;
    int32_t in_place;
    int32_t aligned; /* every address that will be given is a multiple of 16 */
    int64_t n[LKS_MAX_DIMS], in[LKS_MAX_DIMS], out[LKS_MAX_DIMS];
    int64_t many, many_in, many_out;
} lksi_fft_shape;

typedef struct lksi_fft_module {
    int size; /* sizeof(lksi_fft_module) */
    /* A plan, the same for the same shape, made without looking at data or clock; NULL: there is none, or no memory.
     * Any thread. */
    void *(*plan)(const lksi_fft_shape *shape);
    /* Any number of threads at once. C2R destroys its input. */
    void (*run)(const lksi_fft_shape *shape, void *plan, void *in, void *out);
    void (*destroy)(const lksi_fft_shape *shape, void *plan);
} lksi_fft_module;

#endif
