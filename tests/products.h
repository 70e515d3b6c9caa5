/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.h - what the tests of products, convolution and attention share: tensors made of random numbers in any dtype
 * and layout, one call of a row's shape rule and CPU kernel, elements read as double. Included by test programs only.
 */
#ifndef TEST_PRODUCTS_H
#define TEST_PRODUCTS_H

#include "base/half.h"
#include "cpu/infra.h"
#include "tap.h"
#include <stdlib.h>
#include <string.h>

static lksi_base base = {.size = 1};
static lksi_cpu *cpu;
static char why[LKSI_WHY];

/* 1 if this processor and build have the instruction set. */
static int open_cpu(const char *isa, int threads)
{
    lksi_device_options o = {.threads = threads, .local_size = 1};
    if (isa) setenv("LKS_ISA", isa, 1);
    else unsetenv("LKS_ISA");
    cpu = NULL;
    if (lksi_cpu_open(&base, &o, &cpu) == LKS_OK) return 1;
    base.code = LKS_OK;
    return 0;
}

static void close_cpu(void)
{
    lksi_cpu_close(cpu);
    cpu = NULL;
}

static uint32_t random_state = 12345;

static uint32_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static double random_number(void) { return (double)(random_word() >> 8) * 0x1p-23 - 1; }

static void put_element(void *p, int dtype, int64_t i, double x)
{
    if (dtype == LKS_F64) ((double *)p)[i] = x;
    else if (dtype == LKS_F32) ((float *)p)[i] = (float)x;
    else if (dtype == LKS_BF16) ((uint16_t *)p)[i] = lksi_f64_to_bf16(x);
    else if (dtype == LKS_F16) ((uint16_t *)p)[i] = lksi_f64_to_f16(x);
    else if (dtype == LKS_I32) ((int32_t *)p)[i] = (int32_t)x;
    else ((uint8_t *)p)[i] = x != 0;
}

static double get_element(const void *p, int dtype, int64_t i)
{
    if (dtype == LKS_F64) return ((const double *)p)[i];
    if (dtype == LKS_F32) return ((const float *)p)[i];
    if (dtype == LKS_BF16) return lksi_bf16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == LKS_F16) return lksi_f16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == LKS_I32) return ((const int32_t *)p)[i];
    return ((const uint8_t *)p)[i];
}

static int64_t offset_of(const lksi_view *v, int64_t linear)
{
    int64_t at = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        at += linear % v->shape[d] * v->stride[d];
        linear /= v->shape[d];
    }
    return at;
}

/* Element of row-major number `linear`. */
static double element(const lksi_view *v,
                      int64_t linear) { return get_element(v->data, v->dtype, offset_of(v, linear)); }
static void set_element(lksi_view *v, int64_t linear, double x) { put_element(v->data, v->dtype, offset_of(v, linear),
                                                                              x); }

/* Memory for a view whose strides are set; all of it is NaN (or ones, if integer), gaps too. */
static void give_memory(lksi_view *v)
{
    int64_t span = 1;
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] == 0) span = 0;
        if (span) span += (v->shape[d] - 1) * v->stride[d];
    }
    v->data = aligned_alloc(64, (size_t)(span * lks_dtype_size(v->dtype) + 64 + 63) / 64 * 64);
    memset(v->data, 0xff, (size_t)(span * lks_dtype_size(v->dtype)));
}

/* Row-major, the last two dims swapped in memory, a gap after each row, stride 2 everywhere, channels-last. */
enum { ROWS, SWAPPED, GAPS, SPREAD, LAST, LAYOUTS };

/* shape: ndim sizes. Filled with numbers in [-1, 1]. */
static lksi_view make(int dtype, int layout, int ndim, const int64_t *shape)
{
    lksi_view v = {.dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++) v.shape[d] = shape[d];
    lksi_contiguous_strides(&v);
    if (layout == SWAPPED && ndim >= 2) {
        v.stride[ndim - 2] = 1;
        v.stride[ndim - 1] = v.shape[ndim - 2] > 0 ? v.shape[ndim - 2] : 1;
    } else if (layout == GAPS && ndim >= 2) {
        int64_t step = v.shape[ndim - 1] + 3;
        for (int d = ndim - 2; d >= 0; d--) v.stride[d] = step, step *= v.shape[d] > 0 ? v.shape[d] : 1;
    } else if (layout == SPREAD) {
        for (int d = 0; d < ndim; d++) v.stride[d] *= 2;
    } else if (layout == LAST && ndim == 4) {
        lksi_channels_last_strides(&v);
    }
    give_memory(&v);
    for (int64_t i = 0, n = lksi_numel(&v); i < n; i++) set_element(&v, i, random_number());
    return v;
}
#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]){__VA_ARGS__}

static void drop(lksi_view *v)
{
    free(v->data);
    v->data = NULL;
}

static const lksi_view absent = {.ndim = -1};

/* Shape rule and kernel; outputs get memory (to be dropped) unless the status says otherwise. wide: dtype of output 0
 * if not LKS_DTYPE_NONE. rng may be NULL. */
static lks_status call(int op, int nin, const lksi_view *in, int nout, lksi_view *out, const lksi_attr *attr,
                       const lksi_rng *rng, int wide)
{
    lksi_args a = {.op = op, .nin = nin, .nout = nout, .in = in, .out = out, .rng = rng, .why = why};
    if (attr) a.attr = *attr;
    why[0] = 0;
    memset(out, 0, (size_t)nout * sizeof *out);
    lks_status s = lksi_rows[op].infer(&a);
    if (s != LKS_OK) return s;
    if (wide != LKS_DTYPE_NONE) out[0].dtype = wide;
    for (int i = 0; i < nout; i++) give_memory(&out[i]);
    s = cpu->table[op](cpu, &a);
    if (s != LKS_OK)
        for (int i = 0; i < nout; i++) drop(&out[i]);
    return s;
}

/* Relative error of one rounding to dtype. */
static double rounding(int dtype)
{
    return dtype == LKS_BF16 ? 0x1p-8 : dtype == LKS_F16 ? 0x1p-11 : 0;
}

/* Is `got`, stored as dtype, the sum `want` of terms whose magnitudes add up to `size`, for sums of `depth` terms? */
static inline int near_sum(double got, double want, double size, int dtype, double depth)
{
    double unit = dtype == LKS_F64 ? 0x1p-52 : 0x1p-23;
    return fabs(got - want) <= unit * size * (4 + sqrt(depth)) + fabs(want) * rounding(dtype) * 1.01 +
                                   (dtype == LKS_F16 ? 0x1p-24 : 0x1p-120);
}

static int same_bits(const lksi_view *x, const lksi_view *y)
{
    for (int64_t i = 0, n = lksi_numel(x); i < n; i++)
        if (memcmp((char *)x->data + offset_of(x, i) * lks_dtype_size(x->dtype),
                   (char *)y->data + offset_of(y, i) * lks_dtype_size(y->dtype), (size_t)lks_dtype_size(x->dtype)))
            return 0;
    return 1;
}

/* The i-th allocation of a call on a fresh backend fails, for every i that there is: an error with a text, no leak. */
static int fails_cleanly(int op, int nin, const lksi_view *in, int nout, const lksi_attr *attr)
{
    for (int i = 1; i < 100; i++) {
        lksi_view out[4];
        if (!open_cpu(NULL, 2)) return 0;
        base.fail_at = i;
        lks_status s = call(op, nin, in, nout, out, attr, NULL, LKS_DTYPE_NONE);
        base.fail_at = 0, base.code = LKS_OK;
        close_cpu();
        if (s == LKS_OK) {
            for (int k = 0; k < nout; k++) drop(&out[k]);
            return i > 1 && base.live_blocks == 0;
        }
        if (s != LKS_ERR_MEMORY || !why[0]) return 0;
    }
    return 0;
}

static const char *const isas[] = {"base", "avx2", "avx512"};
static const int floats[] = {LKS_F32, LKS_F64, LKS_BF16, LKS_F16};

#endif
