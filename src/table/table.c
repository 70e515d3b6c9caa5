/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c - ops.def as an array of rows, and what shape rules, kernels and rooms above need to talk about views.
 */
#include "table/table.h"

#include <stdio.h>
#include <string.h>

#define OP(name, ...) lks_status lksi_infer_##name(lksi_args *a);
#define OP_NOGRAD OP
#define OP_VIEW OP
#define OP_INPLACE OP
#include "table/ops.def"
#undef OP
#undef OP_NOGRAD
#undef OP_VIEW
#undef OP_INPLACE

#define ROW(kind_, name_, min, max, outs, sin, sout, cuda, cpu, text, rule)                                         \
    {.name = #name_,                                                                                           \
     .schema = text,                                                                                           \
     .kind = kind_,                                                                                            \
     .min_in = min,                                                                                            \
     .max_in = max,                                                                                            \
     .nout = outs,                                                                                             \
     .save_in = sin,                                                                                           \
     .save_out = sout,                                                                                         \
     .policy = {LKSI_POLICY_##cpu, LKSI_POLICY_##cuda},                                                        \
     .infer = rule},
/* Values of enum lks_policy (autocast.h); the room that owns it asserts that they agree. */
enum { LKSI_POLICY_NONE, LKSI_POLICY_LOWER, LKSI_POLICY_FP32, LKSI_POLICY_PROMOTE, LKSI_POLICY_ERROR };

const lksi_row lksi_rows[LKSI_OP_COUNT] = {
#define OP(name, ...) ROW(LKSI_KIND_OP, name, __VA_ARGS__, lksi_infer_##name)
#define OP_NOGRAD(name, ...) ROW(LKSI_KIND_NOGRAD, name, __VA_ARGS__, lksi_infer_##name)
#define OP_VIEW(name, ...) ROW(LKSI_KIND_VIEW, name, __VA_ARGS__, lksi_infer_##name)
#define OP_INPLACE(name, ...) ROW(LKSI_KIND_INPLACE, name, __VA_ARGS__, lksi_infer_##name)
#define OP_COMPOSITE(...) ROW(LKSI_KIND_COMPOSITE, __VA_ARGS__, NULL)
#include "table/ops.def"
#undef OP
#undef OP_NOGRAD
#undef OP_VIEW
#undef OP_INPLACE
#undef OP_COMPOSITE
};

int lksi_takes_complex(int op)
{
    switch (op) {
#define COMPLEX(name) case LKSI_OP_##name:
#include "table/complex.def"
#undef COMPLEX
        return 1;
    }
    return 0;
}

int lksi_row_named(const char *name)
{
    static const struct { const char *alias, *name; } aliases[] = {
#define ALIAS(alias, name) {#alias, #name},
#include "table/aliases.def"
#undef ALIAS
    };
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(aliases[i].alias, name)) name = aliases[i].name;
    for (int i = 0; i < LKSI_OP_COUNT; i++)
        if (!strcmp(lksi_rows[i].name, name)) return i;
    return -1;
}

int64_t lksi_numel(const lksi_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++)
        if (__builtin_mul_overflow(n, v->shape[d], &n)) return 0; /* an empty tensor with large other dims */
    return n;
}

int lksi_is_contiguous(const lksi_view *v)
{
    int64_t want = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->shape[d] == 0) return 1;
        if (v->shape[d] != 1 && v->stride[d] != want) return 0;
        (void)__builtin_mul_overflow(want, v->shape[d], &want); /* only where another dim is 0 */
    }
    return 1;
}

int lksi_is_channels_last(const lksi_view *v)
{
    if (v->ndim != 4 && v->ndim != 5) return 0;
    int64_t want = 1;
    for (int i = 0; i < v->ndim; i++) { /* fastest first: channels, last dim, ..., first spatial dim, images */
        int d = i == 0 ? 1 : i == v->ndim - 1 ? 0 : v->ndim - i;
        if (v->shape[d] == 0) return 0;
        if (v->shape[d] != 1 && v->stride[d] != want) return 0;
        (void)__builtin_mul_overflow(want, v->shape[d], &want);
    }
    return 1;
}

void lksi_contiguous_strides(lksi_view *v)
{
    int64_t s = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        v->stride[d] = s;
        if (v->shape[d] > 1 && __builtin_mul_overflow(s, v->shape[d], &s)) s = 1; /* empty: strides are never used */
    }
}

void lksi_channels_last_strides(lksi_view *v)
{
    int64_t s = v->shape[1] > 0 ? v->shape[1] : 1;
    v->stride[1] = 1;
    for (int d = v->ndim - 1; d >= 2; d--) {
        v->stride[d] = s;
        if (v->shape[d] > 1 && __builtin_mul_overflow(s, v->shape[d], &s)) s = 1; /* empty */
    }
    v->stride[0] = s;
}

int lksi_broadcast(const lksi_view *a, const lksi_view *b, lksi_view *out)
{
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    out->ndim = n;
    for (int i = 1; i <= n; i++) {
        int64_t x = i <= a->ndim ? a->shape[a->ndim - i] : 1, y = i <= b->ndim ? b->shape[b->ndim - i] : 1;
        if (x != y && x != 1 && y != 1) return 0;
        out->shape[n - i] = x == 1 ? y : x;
    }
    return 1;
}

/* 0 bool, 1 integer, 2 float, 3 complex */
static int category(lks_dtype t)
{
    return lks_dtype_is_complex(t) ? 3 : lks_dtype_is_float(t) ? 2 : t == LKS_BOOL ? 0 : 1;
}

lks_dtype lksi_promote_views(const lksi_view *a, const lksi_view *b)
{
    int a0 = a->ndim == 0, b0 = b->ndim == 0;
    if (a->dtype == b->dtype && a->dtype >= 0) return a->dtype;
    if (a0 == b0) return lks_promote(a->dtype, b->dtype);
    const lksi_view *wide = a0 ? b : a, *zero = a0 ? a : b;
    /* A 0-dim tensor only widens to a higher category. */
    if (category(zero->dtype) <= category(wide->dtype)) return wide->dtype;
    if (lks_dtype_is_complex(zero->dtype) && lks_dtype_is_float(wide->dtype))
        return wide->dtype == LKS_F64 ? LKS_C128 : LKS_C64;
    return zero->dtype;
}

const char *lksi_shape_text(const lksi_view *v, char *buffer, int bytes)
{
    if (v->ndim < 0) {
        snprintf(buffer, (size_t)bytes, "none");
        return buffer;
    }
    int at = snprintf(buffer, (size_t)bytes, "[");
    for (int d = 0; d < v->ndim && at < bytes; d++)
        at += snprintf(buffer + at, (size_t)(bytes - at), d ? ",%lld" : "%lld", (long long)v->shape[d]);
    if (at < bytes) snprintf(buffer + at, (size_t)(bytes - at), "]");
    return buffer;
}

