/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.c - raw elements of an HDF5 dataset, read by offset without HDF5, to the dtypes that loaders deliver: all
 * standard integers and IEEE floats, bfloat16, either byte order. Other types go through HDF5's own conversion.
 */
#include "base/half.h"
#include "h5/h5.h"
#include <string.h>

static uint64_t load(const unsigned char *p, int size, int big)
{
    uint64_t v = 0;
    for (int i = 0; i < size; i++) v |= (uint64_t)p[big ? size - 1 - i : i] << (8 * i);
    return v;
}

static int64_t extend(uint64_t v, int size)
{
    int shift = 64 - 8 * size;
    return (int64_t)(v << shift) >> shift;
}

void lksi_h5_decode(const lksi_h5_info *info, const void *raw, int64_t n, lks_dtype dtype, void *out)
{
    const unsigned char *p = raw;
    int size = info->size;
    if (info->dtype == dtype) {
        memcpy(out, raw, (size_t)(n * size));
        return;
    }
    for (int64_t i = 0; i < n; i++, p += size) {
        uint64_t v = load(p, size, info->big_endian);
        double d = 0;
        float f = 0;
        int64_t whole = 0;
        if (info->kind == LKSI_H5_FLOAT) {
            if (size == 8) {
                memcpy(&d, &v, 8);
                f = (float)d;
            } else {
                uint32_t bits = (uint32_t)v;
                if (size == 4) memcpy(&f, &bits, 4);
                else f = info->plain == 2 ? lksi_bf16_to_f32((uint16_t)v)
                                                                    : lksi_f16_to_f32((uint16_t)v);
                d = f;
            }
        } else {
            whole = info->kind == LKSI_H5_INT ? extend(v, size) : v > INT64_MAX ? INT64_MAX : (int64_t)v;
            d = (double)whole;
            f = (float)whole;
        }
        if (dtype == LKS_F32) ((float *)out)[i] = f;
        else if (dtype == LKS_F64) ((double *)out)[i] = d;
        else if (dtype == LKS_I64) ((int64_t *)out)[i] = whole;
        else ((uint8_t *)out)[i] = (uint8_t)(whole < 0 ? 0 : whole > 255 ? 255 : whole);
    }
}
