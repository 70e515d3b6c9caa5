/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arrays.c - Fortran arrays of any rank as tensors: the only place that reads array descriptors
 * (ISO_Fortran_binding.h). A program on the public headers. Order of indices: see the head of lockstep.F90.
 */
#include <ISO_Fortran_binding.h>
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LKSF_API __attribute__((visibility("default")))
LKSF_API lks_tensor *lksf_tensor_of(lks_context *ctx, CFI_cdesc_t *a, int lend, int reversed);
LKSF_API lks_status lksf_to_array(lks_tensor *t, CFI_cdesc_t *a, int reversed);
LKSF_API lks_status lksf_from_array(lks_tensor *t, CFI_cdesc_t *a, int reversed);
LKSF_API lks_tensor *lksf_none(void);

/* LKS_NONE: a module variable of Fortran would be one of its own. */
lks_tensor *lksf_none(void) { return LKS_NONE; }

/* An array as memory: dims in the array's own order, strides in bytes. */
typedef struct array {
    char *base;
    lks_dtype dtype;
    int rank;
    int64_t size, shape[LKS_MAX_DIMS], step[LKS_MAX_DIMS], numel;
    int dense; /* column-major without gaps */
} array;

static lks_dtype dtype_of(const CFI_cdesc_t *a)
{
    switch (a->type) {
    case CFI_type_float: return LKS_F32;
    case CFI_type_double: return LKS_F64;
    case CFI_type_int32_t: return LKS_I32;
    case CFI_type_int64_t: return LKS_I64;
    case CFI_type_int8_t: return LKS_U8;
    case CFI_type_float_Complex: return LKS_C64;
    case CFI_type_double_Complex: return LKS_C128;
    default: return LKS_DTYPE_NONE;
    }
}

/* 0: an array that cannot be a tensor; the context's error says why. */
static int read_array(lks_context *ctx, const char *where, const CFI_cdesc_t *a, array *r)
{
    r->base = a->base_addr;
    r->dtype = dtype_of(a);
    r->rank = a->rank;
    r->size = (int64_t)a->elem_len;
    r->numel = 1;
    r->dense = 1;
    if (r->dtype == LKS_DTYPE_NONE || r->size != lks_dtype_size(r->dtype))
        return lks_error_raise(ctx, LKS_ERR_DTYPE, where,
                               "arrays are real32, real64, complex of these, or integers of 32 or 64 bits") > 0;
    if (r->rank > LKS_MAX_DIMS) return lks_error_raise(ctx, LKS_ERR_SHAPE, where, "an array of more than 8 dims") > 0;
    for (int d = 0; d < r->rank; d++) {
        r->shape[d] = a->dim[d].extent < 0 ? 0 : a->dim[d].extent;
        r->step[d] = a->dim[d].sm;
        if (r->shape[d] != 1 && r->step[d] != r->numel * r->size) r->dense = 0;
        r->numel *= r->shape[d];
    }
    if (r->numel == 0) r->dense = 1;
    return 1;
}

/* All elements between an array and column-major memory without gaps. */
static void pack(const array *a, char *dense, int out)
{
    int64_t at[LKS_MAX_DIMS] = {0};
    for (int64_t i = 0; i < a->numel; i++) {
        char *p = a->base;
        for (int d = 0; d < a->rank; d++) p += at[d] * a->step[d];
        if (out) memcpy(dense + i * a->size, p, (size_t)a->size);
        else memcpy(p, dense + i * a->size, (size_t)a->size);
        for (int d = 0; d < a->rank && ++at[d] == a->shape[d]; d++) at[d] = 0;
    }
}

/* Row-major shape of column-major memory. */
static void turned(const array *a, int64_t *shape)
{
    for (int d = 0; d < a->rank; d++) shape[d] = a->shape[a->rank - 1 - d];
}

static lks_tensor *turn(lks_tensor *t, int rank)
{
    int dims[LKS_MAX_DIMS];
    for (int d = 0; d < rank; d++) dims[d] = rank - 1 - d;
    return lks_permute(t, rank, dims);
}

lks_tensor *lksf_tensor_of(lks_context *ctx, CFI_cdesc_t *d, int lend, int reversed)
{
    array a;
    int64_t shape[LKS_MAX_DIMS], stride[LKS_MAX_DIMS];
    const char *where = lend ? "lks_wrap_array" : "lks_tensor_of";
    if (!ctx || !read_array(ctx, where, d, &a)) return NULL;
    if (lend) {
        for (int i = 0; i < a.rank; i++) {
            int from = reversed ? a.rank - 1 - i : i;
            shape[i] = a.shape[from];
            stride[i] = a.step[from] % a.size ? -1 : a.step[from] / a.size; /* a component's section: refused there */
        }
        return lks_wrap(ctx, a.base, a.dtype, a.rank, shape, stride);
    }
    char *dense = a.base;
    if (!a.dense) {
        dense = malloc((size_t)(a.numel * a.size));
        if (!dense) {
            lks_error_raise(ctx, LKS_ERR_MEMORY, where, "no memory to pack an array section");
            return NULL;
        }
        pack(&a, dense, 1);
    }
    turned(&a, shape);
    lks_tensor *t = lks_from_host(ctx, a.dtype, a.rank, shape, dense);
    if (dense != a.base) free(dense);
    return reversed ? t : turn(t, a.rank);
}

static lks_status fits(lks_context *ctx, const char *where, lks_tensor *t, const array *a, int reversed)
{
    char text[256], sizes[128] = "";
    int same = lks_ndim(t) == a->rank, at = 0;
    for (int d = 0; d < a->rank; d++) {
        int64_t n = a->shape[reversed ? a->rank - 1 - d : d];
        if (same && lks_dim(t, d) != n) same = 0;
        at += snprintf(sizes + at, sizeof sizes - (size_t)at, "%s%lld", d ? "," : "", (long long)n);
    }
    if (lks_dtype_of(t) != a->dtype) {
        snprintf(text, sizeof text, "the tensor is %s, the array %s", lks_dtype_name(lks_dtype_of(t)),
                 lks_dtype_name(a->dtype));
        return lks_error_raise(ctx, LKS_ERR_DTYPE, where, text);
    }
    if (same) return LKS_OK;
    at = snprintf(text, sizeof text, "the array has shape [%s] in the tensor's order of indices, the tensor [", sizes);
    for (int d = 0; d < lks_ndim(t); d++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", d ? "," : "", (long long)lks_dim(t, d));
    snprintf(text + at, sizeof text - (size_t)at, "]");
    return lks_error_raise(ctx, LKS_ERR_SHAPE, where, text);
}

static lks_status move(lks_tensor *t, CFI_cdesc_t *d, int reversed, int out)
{
    array a;
    if (!t) return LKS_ERR_ARGUMENT;
    const char *where = out ? "lks_to_array" : "lks_from_array";
    lks_context *ctx = lks_context_of(t);
    if (!read_array(ctx, where, d, &a)) return lks_error_code(ctx);
    lks_status s = fits(ctx, where, t, &a, reversed);
    if (s == LKS_OK) s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    lks_tensor *row = reversed ? t : turn(t, a.rank);
    char *dense = a.dense ? a.base : malloc((size_t)(a.numel * a.size));
    if (!row) s = lks_error_code(ctx);
    else if (!dense) s = lks_error_raise(ctx, LKS_ERR_MEMORY, where, "no memory to pack an array section");
    if (s == LKS_OK && out) {
        s = lks_to_host(row, dense, a.numel * a.size);
        if (s == LKS_OK && !a.dense) pack(&a, dense, 0);
    } else if (s == LKS_OK) {
        if (!a.dense) pack(&a, dense, 1);
        s = lks_set_from_host(row, dense, a.numel * a.size);
    }
    if (!a.dense) free(dense);
    lks_scope_end(ctx);
    return s;
}

lks_status lksf_to_array(lks_tensor *t, CFI_cdesc_t *a, int reversed) { return move(t, a, reversed, 1); }
lks_status lksf_from_array(lks_tensor *t, CFI_cdesc_t *a, int reversed) { return move(t, a, reversed, 0); }
