/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dtype.c - what is known of status codes and element types, expanded from the two lists of <lockstep/base.h>, and the
 * promotion of dtypes. Not here: conversions of values (half.h, the cast kernels).
 */
#include <lockstep/base.h>
#include <string.h>
#include <strings.h>

const char *lks_status_name(lks_status code)
{
    switch (code) {
#define X(name, value, text) case value: return "LKS_" #name;
        LKS_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *lks_status_text(lks_status code)
{
    switch (code) {
#define X(name, value, text) case value: return text;
        LKS_STATUS_LIST(X)
#undef X
    }
    return "not a status code of Lockstep";
}

const char *lks_dtype_name(lks_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, bytes) case LKS_##NAME: return name;
        LKS_DTYPE_LIST(X)
#undef X
    }
    return "none";
}

int lks_dtype_size(lks_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, bytes) case LKS_##NAME: return bytes;
        LKS_DTYPE_LIST(X)
#undef X
    }
    return 0;
}

int lks_dtype_is_float(lks_dtype dtype)
{
    return dtype == LKS_F32 || dtype == LKS_F64 || dtype == LKS_F16 || dtype == LKS_BF16;
}

int lks_dtype_is_complex(lks_dtype dtype)
{
    return dtype == LKS_C64 || dtype == LKS_C128;
}

lks_dtype lks_dtype_from_name(const char *name)
{
    if (!name) return LKS_DTYPE_NONE;
#define X(NAME, long_name, bytes)                                                                              \
    if (!strcmp(name, long_name) || !strcasecmp(name, #NAME)) return LKS_##NAME;
    LKS_DTYPE_LIST(X)
#undef X
    return LKS_DTYPE_NONE;
}

/* Height of a dtype in the lattice; F16 and BF16 stand side by side, and their join is F32. -1: no dtype. */
static int height(lks_dtype dtype)
{
    switch (dtype) {
    case LKS_BOOL: return 0;
    case LKS_U8: return 1;
    case LKS_I32: return 2;
    case LKS_I64: return 3;
    case LKS_F16: return 4;
    case LKS_BF16: return 4;
    case LKS_F32: return 5;
    case LKS_F64: return 6;
    case LKS_C64: return 7;
    case LKS_C128: return 8;
    }
    return -1;
}

lks_dtype lks_promote(lks_dtype a, lks_dtype b)
{
    int ha = height(a), hb = height(b);
    if (ha < 0 || hb < 0) return LKS_DTYPE_NONE;
    if (ha == hb) return a == b ? a : LKS_F32;
    if (ha + hb == 13 && ha >= 6 && hb >= 6) return LKS_C128; /* float64 and complex64 */
    return ha > hb ? a : b;
}
