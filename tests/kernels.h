/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernels.h - for tests of single rows: shape rule and CPU kernel on host arrays, without tensors, context or MPI.
 * Values are read and written as double by conversions of its own, so that a fault of the kernels' does not hide.
 */
#ifndef LKS_TEST_KERNELS_H
#define LKS_TEST_KERNELS_H

#include "device/device.h"
#include "tap.h"

typedef struct kernels {
    lksi_base base;
    void *self; /* the backend */
    lksi_rng rng;
    char why[LKSI_WHY]; /* of the last failure */
} kernels;

/* isa: "base", "avx2", ... or NULL. 1 = opened; 0: this processor or build does not have it. */
__attribute__((unused)) static int kernels_open(kernels *k, const char *isa, int threads)
{
    lksi_device_options o = {.threads = threads, .local_size = 1};
    memset(k, 0, sizeof *k);
    if (isa) setenv("LKS_ISA", isa, 1);
    else unsetenv("LKS_ISA");
    return lksi_backend_cpu.open(&k->base, &o, &k->self) == LKS_OK;
}

__attribute__((unused)) static void kernels_close(kernels *k)
{
    lksi_backend_cpu.close(k->self);
    k->self = NULL;
}

/* Runs row op. out[i].data NULL: memory of exactly the right size is allocated with malloc (free it). Rows in place get
 * out filled in. Returns the status; k->why has the text. */
__attribute__((unused)) static lks_status kernels_run(kernels *k, int op, int nin, const lksi_view *in,
                                                      const lksi_attr *attr, int nout, lksi_view *out)
{
    lksi_args a = {.op = op, .nin = nin, .nout = nout, .in = in, .out = out, .rng = &k->rng, .why = k->why};
    if (attr) a.attr = *attr;
    k->why[0] = 0;
    lks_status s = lksi_rows[op].infer(&a);
    if (s != LKS_OK) return s;
    for (int i = 0; i < nout; i++) {
        if (out[i].data) continue;
        size_t bytes = (size_t)lksi_numel(&out[i]) * (size_t)lks_dtype_size(out[i].dtype);
        out[i].data = malloc(bytes ? bytes : 1);
        memset(out[i].data, 0x5a, bytes);
    }
    return lksi_backend_cpu.launch(k->self, LKSI_STREAM_COMPUTE, &a);
}

/* Row-major view on data. */
__attribute__((unused)) static lksi_view view_of(void *data, int dtype, int ndim, const int64_t *shape)
{
    lksi_view v = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++) v.shape[d] = shape[d];
    lksi_contiguous_strides(&v);
    return v;
}

static double kernels_half(int h, int exponent, int mantissa)
{
    int e = (h & 0x7fff) >> mantissa, m = h & ((1 << mantissa) - 1), bias = (1 << (exponent - 1)) - 1;
    double v = e == (1 << exponent) - 1 ? (m ? NAN : INFINITY)
               : e                      ? ldexp(m + (1 << mantissa), e - bias - mantissa)
                                        : ldexp(m, 1 - bias - mantissa);
    return h & 0x8000 ? -v : v;
}

/* Element at an offset in elements. */
__attribute__((unused)) static double value_at(int dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case LKS_F32: return ((const float *)data)[at];
    case LKS_F64: return ((const double *)data)[at];
    case LKS_F16: return kernels_half(((const uint16_t *)data)[at], 5, 10);
    case LKS_BF16: return kernels_half(((const uint16_t *)data)[at], 8, 7);
    case LKS_I64: return (double)((const int64_t *)data)[at];
    case LKS_I32: return ((const int32_t *)data)[at];
    default: return ((const uint8_t *)data)[at];
    }
}

/* v rounded to dtype's precision, nearest even (floats; v itself for others). */
__attribute__((unused)) static double rounded_to(int dtype, double v)
{
    static const struct { int digits, least, most; } f[] = {[LKS_F32] = {24, -149, 128}, [LKS_F16] = {11, -24, 16},
                                                            [LKS_BF16] = {8, -133, 128}};
    if (dtype != LKS_F32 && dtype != LKS_F16 && dtype != LKS_BF16) return v;
    if (!(fabs(v) > 0) || isinf(v)) return v;
    int e;
    frexp(v, &e);
    int unit = e - f[dtype].digits > f[dtype].least ? e - f[dtype].digits : f[dtype].least;
    double r = ldexp(nearbyint(ldexp(v, -unit)), unit);
    return fabs(r) >= ldexp(1, f[dtype].most) ? copysign(INFINITY, v) : r;
}

/* Stores v (which dtype must hold exactly, up to rounding). */
__attribute__((unused)) static void set_value(int dtype, void *data, int64_t at, double v)
{
    float x = (float)rounded_to(dtype, v);
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    switch (dtype) {
    case LKS_F32: ((float *)data)[at] = x; break;
    case LKS_F64: ((double *)data)[at] = v; break;
    case LKS_BF16: ((uint16_t *)data)[at] = (uint16_t)(u >> 16); break;
    case LKS_F16: {
        int e, sign = signbit(v) ? 0x8000 : 0, h;
        double a = fabs((double)x);
        if (isnan(v)) h = 0x7e00;
        else if (isinf(a)) h = 0x7c00;
        else if (a < 0x1p-14) h = (int)(a * 0x1p24);
        else {
            double m = frexp(a, &e);
            h = ((e + 14) << 10) + (int)(m * 2048) - 1024;
        }
        ((uint16_t *)data)[at] = (uint16_t)(h | sign);
        break;
    }
    case LKS_I64: ((int64_t *)data)[at] = (int64_t)v; break;
    case LKS_I32: ((int32_t *)data)[at] = (int32_t)v; break;
    case LKS_U8: ((uint8_t *)data)[at] = (uint8_t)v; break;
    default: ((uint8_t *)data)[at] = v != 0; break;
    }
}

/* Offset in elements of the i-th element in row-major order of `space`, whose shape v is broadcast to. */
__attribute__((unused)) static int64_t offset_of(const lksi_view *v, const lksi_view *space, int64_t i)
{
    int64_t offset = 0;
    for (int d = space->ndim - 1; d >= 0; d--) {
        int64_t index = i % space->shape[d];
        int own = d - (space->ndim - v->ndim);
        i /= space->shape[d];
        if (own >= 0 && v->shape[own] != 1) offset += index * v->stride[own];
    }
    return offset;
}

__attribute__((unused)) static double element(const lksi_view *v, const lksi_view *space, int64_t i)
{
    return value_at(v->dtype, v->data, offset_of(v, space, i));
}

/* Bytes that a view spans. */
__attribute__((unused)) static int64_t span_of(const lksi_view *v)
{
    int64_t last = 0;
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] == 0) return 0;
        last += (v->shape[d] - 1) * v->stride[d];
    }
    return (last + 1) * lks_dtype_size(v->dtype);
}

/* xorshift64: numbers of a test, the same everywhere. */
static uint64_t dice_state = 88172645463325252u;
__attribute__((unused)) static uint64_t dice(uint64_t below)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return (dice_state >> 11) % below;
}

__attribute__((unused)) static double dice_real(double lo, double hi)
{
    return lo + (hi - lo) * (double)dice(1u << 30) / (1u << 30);
}

/* A random view of this shape: row-major, or with permuted, padded, stepped or repeated dims; memory by malloc, filled
 * by `fill`. layout 0: row-major. free(*memory). */
__attribute__((unused)) static lksi_view random_view(int dtype, int ndim, const int64_t *shape, int layout,
                                                     double (*fill)(int dtype), void **memory)
{
    lksi_view v = {.dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++) v.shape[d] = shape[d];
    lksi_contiguous_strides(&v);
    if (layout) {
        int order[LKS_MAX_DIMS];
        int64_t s = 1 + (int64_t)dice(4) / 3;
        for (int d = 0; d < ndim; d++) order[d] = d;
        for (int d = ndim - 1; d > 0; d--) {
            int e = (int)dice((uint64_t)d + 1), t = order[d];
            if (layout == 1 && dice(2)) continue;
            order[d] = order[e];
            order[e] = t;
        }
        for (int i = ndim - 1; i >= 0; i--) {
            int d = order[i];
            v.stride[d] = s;
            s *= v.shape[d] > 0 ? v.shape[d] : 1;
            if (dice(4) == 0) s += (int64_t)dice(5);
            if (v.shape[d] == 1 && dice(2)) v.stride[d] = (int64_t)dice(1000); /* has no meaning */
        }
        if (layout == 2)
            for (int d = 0; d < ndim; d++)
                if (dice(5) == 0) v.stride[d] = 0;
    }
    int64_t bytes = span_of(&v);
    *memory = malloc(bytes ? (size_t)bytes : 1);
    v.data = *memory;
    for (int64_t i = 0; i < bytes / lks_dtype_size(dtype); i++) set_value(dtype, v.data, i, fill(dtype));
    return v;
}

#endif
