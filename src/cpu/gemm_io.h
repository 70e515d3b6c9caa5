/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gemm_io.h - runs of elements of any float dtype to and from float32 or float64, for products, convolution and
 * attention, which compute in one type. Static functions, so that each ISA has its own.
 */
#ifndef LKSI_GEMM_IO_H
#define LKSI_GEMM_IO_H

#include "base/half.h"
#include "cpu/cpu.h"
#include <string.h>

#define IO_FN static inline __attribute__((unused))

/* Address of element i of p. */
IO_FN void *io_at(const void *p, int dtype, int64_t i)
{
    return (char *)p + i * (dtype == LKS_F64 ? 8 : dtype == LKS_F32 ? 4 : 2);
}

/* Runs here are short: the barrier keeps the compiler from calling memmove for each. */
IO_FN void io_copy_f32(float *restrict to, const float *restrict from, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(to + i, from + i, 32);
        __asm__ volatile("" ::: "memory");
    }
    for (; i < n; i++) {
        to[i] = from[i];
        __asm__ volatile("" ::: "memory");
    }
}

/* to[0..n) = n elements `stride` apart, in float32. */
IO_FN void io_load_f32(float *restrict to, const void *restrict from, int dtype, int64_t stride, int64_t n)
{
    int64_t i = 0;
    if (dtype == LKS_F32) {
        const float *x = from;
        if (stride == 1)
            io_copy_f32(to, x, n);
        else
            for (; i < n; i++) to[i] = x[i * stride];
    } else if (dtype == LKS_BF16) {
        const uint16_t *x = from;
        if (stride == 1)
            lksi_bf16_to_f32_n(to, x, n);
        else
            for (; i < n; i++) to[i] = lksi_bf16_to_f32(x[i * stride]);
    } else if (dtype == LKS_F16) {
        const uint16_t *x = from;
        if (stride == 1)
            lksi_f16_to_f32_n(to, x, n);
        else
            for (; i < n; i++) to[i] = lksi_f16_to_f32(x[i * stride]);
    } else {
        const double *x = from;
        for (; i < n; i++) to[i] = (float)x[i * stride];
    }
}

IO_FN void io_store_f32(void *restrict to, const float *restrict from, int dtype, int64_t stride, int64_t n)
{
    int64_t i = 0;
    if (dtype == LKS_F32) {
        float *y = to;
        if (stride == 1)
            io_copy_f32(y, from, n);
        else
            for (; i < n; i++) y[i * stride] = from[i];
    } else if (dtype == LKS_BF16) {
        uint16_t *y = to;
        if (stride == 1)
            lksi_f32_to_bf16_n(y, from, n);
        else
            for (; i < n; i++) y[i * stride] = lksi_f32_to_bf16(from[i]);
    } else if (dtype == LKS_F16) {
        uint16_t *y = to;
        if (stride == 1)
            lksi_f32_to_f16_n(y, from, n);
        else
            for (; i < n; i++) y[i * stride] = lksi_f32_to_f16(from[i]);
    } else {
        double *y = to;
        for (; i < n; i++) y[i * stride] = from[i];
    }
}

IO_FN void io_load_f64(double *restrict to, const void *restrict from, int dtype, int64_t stride, int64_t n)
{
    if (dtype == LKS_F64) {
        const double *x = from;
        for (int64_t i = 0; i < n; i++) to[i] = x[i * stride];
    } else { /* a bias or mask may be narrower than what it is added to */
        for (int64_t i = 0; i < n; i++) {
            float f;
            io_load_f32(&f, io_at(from, dtype, i * stride), dtype, 1, 1);
            to[i] = f;
        }
    }
}

IO_FN void io_store_f64(void *restrict to, const double *restrict from, int dtype, int64_t stride, int64_t n)
{
    (void)dtype;
    double *y = to;
    for (int64_t i = 0; i < n; i++) y[i * stride] = from[i];
}

#endif
