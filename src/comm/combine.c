/* SPDX-License-Identifier: BSD-3-Clause
 *
 * combine.c - the arithmetic of reductions on host memory: contributions of all ranks, combined in rank order; a copy
 * for memory that another core writes or reads. No MPI.
 */
#include "comm/engine.h"
#include "base/half.h"
#include <string.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#define BLOCK 2048 /* elements held in the cache while contributions are added */

static const char *const op_names[] = {"sum", "mean", "min", "max", "product"};

lks_status lksi_combine_check(lksi_base *b, const char *where, lks_dtype dtype, int op)
{
    if (op < LKS_SUM || op > LKS_PRODUCT)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "reduction %d does not exist; use LKS_SUM ... LKS_PRODUCT", op);
    if (lks_dtype_size(dtype) == 0)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "dtype %d does not exist", dtype);
    if (op == LKS_MEAN && !lks_dtype_is_float(dtype))
        return lksi_fail(b, LKS_ERR_DTYPE, where, "mean of %s: needs a floating dtype", lks_dtype_name(dtype));
    if (lks_dtype_is_complex(dtype) && op != LKS_SUM && op != LKS_MEAN)
        return lksi_fail(b, LKS_ERR_DTYPE, where, "%s of %s: only sum and mean are defined", op_names[op],
                         lks_dtype_name(dtype));
    if (dtype == LKS_BOOL && op != LKS_MIN && op != LKS_MAX)
        return lksi_fail(b, LKS_ERR_DTYPE, where, "%s of bool: only min (all) and max (any) are defined", op_names[op]);
    return LKS_OK;
}

/* Which of two counts as the smaller or larger; NaN wins either way, on every rank alike. */
#define LESS(a, b) ((a) < (b) ? (a) : (a) >= (b) ? (b) : (a) + (b))
#define MORE(a, b) ((a) > (b) ? (a) : (a) <= (b) ? (b) : (a) + (b))
#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))

/* acc[i] = w[i] op x[i], then acc[i] = acc[i] op x[i]; A is the type added in, T the type stored, LOAD converts. */
#define STEP(NAME, A, T, LOAD, OP)                                                                             \
    static void NAME##_first(A *restrict acc, const T *w, const T *x, int64_t n) {                             \
        for (int64_t i = 0; i < n; i++) acc[i] = (A)OP((A)LOAD(w[i]), (A)LOAD(x[i]));                          \
    }                                                                                                          \
    static void NAME(A *restrict acc, const T *restrict x, int64_t n) {                                        \
        for (int64_t i = 0; i < n; i++) acc[i] = (A)OP(acc[i], (A)LOAD(x[i]));                                 \
    }
#define EITHER(NAME, acc, w, x, n) (w ? NAME##_first(acc, w, x, n) : NAME(acc, x, n))
#define STEPS(NAME, A, T, LOAD)                                                                                \
    STEP(NAME##_plus, A, T, LOAD, PLUS)                                                                        \
    STEP(NAME##_times, A, T, LOAD, TIMES)                                                                      \
    STEP(NAME##_less, A, T, LOAD, LESS)                                                                        \
    STEP(NAME##_more, A, T, LOAD, MORE)                                                                        \
    static void NAME##_step(int op, A *acc, const T *w, const T *x, int64_t n) {                               \
        switch (op) {                                                                                          \
        case LKS_MIN: EITHER(NAME##_less, acc, w, x, n); break;                                                \
        case LKS_MAX: EITHER(NAME##_more, acc, w, x, n); break;                                                \
        case LKS_PRODUCT: EITHER(NAME##_times, acc, w, x, n); break;                                           \
        default: EITHER(NAME##_plus, acc, w, x, n);                                                            \
        }                                                                                                      \
    }
/* A whole combination in blocks: steps through contributions 0 and 1, 2, ..., divides, stores. */
#define COMBINE(NAME, A, T, LOAD, STORE, DIVIDE)                                                               \
    STEPS(NAME, A, T, LOAD)                                                                                    \
    static void NAME(int n, const char *const *in, char *out, int64_t count, int op) {                         \
        A acc[BLOCK];                                                                                          \
        for (int64_t at = 0; at < count; at += BLOCK) {                                                        \
            int64_t m = count - at < BLOCK ? count - at : BLOCK;                                               \
            const T *first = (const T *)in[0] + at;                                                            \
            if (n == 1)                                                                                        \
                for (int64_t i = 0; i < m; i++) acc[i] = (A)LOAD(first[i]);                                    \
            for (int k = 1; k < n; k++) NAME##_step(op, acc, k == 1 ? first : NULL, (const T *)in[k] + at, m); \
            if (op == LKS_MEAN)                                                                                \
                for (int64_t i = 0; i < m; i++) acc[i] = (A)(acc[i] DIVIDE);                                   \
            T *to = (T *)out + at;                                                                             \
            for (int64_t i = 0; i < m; i++) to[i] = (T)STORE(acc[i]);                                          \
        }                                                                                                      \
    }
#define SAME(x) (x)

/* Integers wrap: sums and products in unsigned arithmetic, comparisons in signed. */
COMBINE(combine_f32, float, float, SAME, SAME, / (float)n)
COMBINE(combine_f64, double, double, SAME, SAME, / (double)n)
COMBINE(combine_f16, float, uint16_t, lksi_f16_to_f32, lksi_f32_to_f16, / (float)n)
COMBINE(combine_bf16, float, uint16_t, lksi_bf16_to_f32, lksi_f32_to_bf16, / (float)n)
COMBINE(combine_wrap64, uint64_t, uint64_t, SAME, SAME, + 0)
COMBINE(combine_i64, int64_t, int64_t, SAME, SAME, + 0)
COMBINE(combine_wrap32, uint32_t, uint32_t, SAME, SAME, + 0)
COMBINE(combine_i32, int32_t, int32_t, SAME, SAME, + 0)
COMBINE(combine_u8, uint8_t, uint8_t, SAME, SAME, + 0)

typedef uint64_t word __attribute__((vector_size(16), aligned(1), may_alias));

/* memcpy takes `rep movsb` for such sizes, which some processors do at a fifth of this speed. */
void lksi_carry(char *to, const char *from, int64_t bytes)
{
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        const word *f = (const word *)(from + i);
        word *t = (word *)(to + i);
        __builtin_prefetch(from + i + 1024);
        word a = f[0], b = f[1], c = f[2], d = f[3];
        t[0] = a;
        t[1] = b;
        t[2] = c;
        t[3] = d;
    }
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

void lksi_carry_past(char *to, const char *from, int64_t bytes)
{
#ifdef __x86_64__
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        const word *f = (const word *)(from + i);
        __m128i *t = (__m128i *)(to + i);
        __builtin_prefetch(from + i + 1024);
        __m128i a = (__m128i)f[0], b = (__m128i)f[1], c = (__m128i)f[2], d = (__m128i)f[3];
        _mm_stream_si128(t, a);
        _mm_stream_si128(t + 1, b);
        _mm_stream_si128(t + 2, c);
        _mm_stream_si128(t + 3, d);
    }
    memcpy(to + i, from + i, (size_t)(bytes - i));
    _mm_sfence(); /* such stores are not in order with the counter that shows them */
#else
    lksi_carry(to, from, bytes);
#endif
}

void lksi_combine(int n, const char *const *in, char *out, int64_t count, lks_dtype dtype, int op)
{
    int compares = op == LKS_MIN || op == LKS_MAX;
    lksi_fpenv env;
    lksi_fpenv_enter(&env);
    switch (dtype) {
    case LKS_F32: combine_f32(n, in, out, count, op); break;
    case LKS_F64: combine_f64(n, in, out, count, op); break;
    case LKS_C64: combine_f32(n, in, out, 2 * count, op); break; /* sums: parts by themselves */
    case LKS_C128: combine_f64(n, in, out, 2 * count, op); break;
    case LKS_F16: combine_f16(n, in, out, count, op); break;
    case LKS_BF16: combine_bf16(n, in, out, count, op); break;
    case LKS_I64:
        if (compares) combine_i64(n, in, out, count, op);
        else combine_wrap64(n, in, out, count, op);
        break;
    case LKS_I32:
        if (compares) combine_i32(n, in, out, count, op);
        else combine_wrap32(n, in, out, count, op);
        break;
    default: combine_u8(n, in, out, count, op);
    }
    lksi_fpenv_leave(&env);
}
