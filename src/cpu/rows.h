/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows.h - a strided tensor seen as rows of elements, loaded into and stored from a float or double buffer: what
 * norms, softmax and losses compute on, whatever the storage dtype. Also sums and maxima in fixed lanes. Private to the
 * kernel files that include it (everything is static). No arithmetic of any op is here.
 */
#ifndef LKSI_ROWS_H
#define LKSI_ROWS_H

#include "base/half.h"
#include "cpu/cpu.h"
#include <math.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

/* Bytes of a hardware vector. A reduction has LKSI_LANES partial sums on every ISA, held in as many vectors as it
 * takes. */
#if defined __AVX512F__
#define LKSI_VECTOR 64
#elif defined __AVX__
#define LKSI_VECTOR 32
#else
#define LKSI_VECTOR 16
#endif
#define LKSI_LANES 32

#define LKSI_UNUSED __attribute__((unused))
#define LKSI_INLINE __attribute__((unused, always_inline))

/* rows x n elements. Dims are merged where strides allow; outer dims number the rows, inner dims the elements. */
typedef struct lksi_rowset {
    char *data;
    int dtype, size;
    int64_t rows, n;
    int outer, inner;
    int64_t oshape[LKS_MAX_DIMS], ostride[LKS_MAX_DIMS];
    int64_t ishape[LKS_MAX_DIMS], istride[LKS_MAX_DIMS];
} lksi_rowset;

static LKSI_UNUSED int lksi_merge_dim(int count, int64_t *shape, int64_t *stride, int64_t n, int64_t s)
{
    if (n == 1) return count;
    if (count > 0 && stride[count - 1] == n * s) {
        shape[count - 1] *= n;
        stride[count - 1] = s;
        return count;
    }
    shape[count] = n;
    stride[count] = s;
    return count + 1;
}

/* Bit d of mask: dim d belongs to the row. */
static LKSI_UNUSED lksi_rowset lksi_rowset_of(const lksi_view *v, unsigned mask)
{
    lksi_rowset r = {.data = v->data, .dtype = v->dtype, .size = lks_dtype_size(v->dtype), .rows = 1, .n = 1};
    for (int d = 0; d < v->ndim; d++) {
        if (mask >> d & 1) {
            r.n *= v->shape[d];
            r.inner = lksi_merge_dim(r.inner, r.ishape, r.istride, v->shape[d], v->stride[d]);
        } else {
            r.rows *= v->shape[d];
            r.outer = lksi_merge_dim(r.outer, r.oshape, r.ostride, v->shape[d], v->stride[d]);
        }
    }
    return r;
}

/* Offset in elements of the first element of a row. */
static LKSI_UNUSED int64_t lksi_rowset_offset(const lksi_rowset *r, int64_t row)
{
    int64_t offset = 0;
    for (int d = r->outer - 1; d > 0; d--) {
        offset += row % r->oshape[d] * r->ostride[d];
        row /= r->oshape[d];
    }
    return r->outer ? offset + row * r->ostride[0] : 0;
}

/* 1 if a row's elements are adjacent in memory. */
static LKSI_UNUSED int lksi_rowset_dense(const lksi_rowset *r)
{
    return r->inner == 0 || (r->inner == 1 && r->istride[0] == 1);
}

/* 1 if the rows follow each other without gaps. */
static LKSI_UNUSED int lksi_rowset_packed(const lksi_rowset *r)
{
    return lksi_rowset_dense(r) && (r->outer == 0 || (r->outer == 1 && r->ostride[0] == r->n));
}

/* How many rows from `row` on lie side by side (element i of each at consecutive addresses), at most `most`; 1 if a row
 * is dense itself or they do not. Such rows are moved together, so that each cache line is used whole. */
static LKSI_UNUSED int64_t lksi_rowset_beside(const lksi_rowset *r, int64_t row, int64_t most)
{
    if (lksi_rowset_dense(r) || r->inner != 1 || r->outer == 0 || r->ostride[r->outer - 1] != 1) return 1;
    int64_t left = r->oshape[r->outer - 1] - row % r->oshape[r->outer - 1];
    return left < most ? left : most;
}

/* Elements [first, first + n) of a row as runs of one stride. */
typedef struct lksi_walk {
    const lksi_rowset *r;
    int64_t base, left, stride, at[LKS_MAX_DIMS];
} lksi_walk;

static LKSI_UNUSED lksi_walk lksi_walk_start(const lksi_rowset *r, int64_t row, int64_t first, int64_t n)
{
    lksi_walk w = {.r = r, .base = lksi_rowset_offset(r, row), .left = n, .stride = 1};
    if (n == 0) return w;
    if (r->inner) w.stride = r->istride[r->inner - 1];
    for (int d = r->inner - 1; d >= 0; d--) {
        w.at[d] = first % r->ishape[d];
        first /= r->ishape[d];
    }
    return w;
}

/* Length of the next run, 0 at the end; *offset in elements. */
static LKSI_UNUSED int64_t lksi_walk_next(lksi_walk *w, int64_t *offset)
{
    const lksi_rowset *r = w->r;
    int last = r->inner - 1;
    int64_t length = last < 0 ? w->left : r->ishape[last] - w->at[last];
    *offset = w->base;
    for (int d = 0; d <= last; d++) *offset += w->at[d] * r->istride[d];
    if (length > w->left) length = w->left;
    w->left -= length;
    if (last < 0 || w->left == 0) return length;
    w->at[last] = 0;
    for (int d = last - 1; d >= 0; d--) {
        if (++w->at[d] < r->ishape[d]) break;
        w->at[d] = 0;
    }
    return length;
}

/* One value as double, for statistics, scales and gradients of a scalar. */
static LKSI_UNUSED double lksi_get(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
    case LKS_F64: return ((const double *)data)[i];
    case LKS_F16: return (double)lksi_f16_to_f32(((const uint16_t *)data)[i]);
    case LKS_BF16: return (double)lksi_bf16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)((const float *)data)[i];
    }
}
static LKSI_UNUSED void lksi_put(void *data, int dtype, int64_t i, double value)
{
    switch (dtype) {
    case LKS_F64: ((double *)data)[i] = value; break;
    case LKS_F16: ((uint16_t *)data)[i] = lksi_f64_to_f16(value); break;
    case LKS_BF16: ((uint16_t *)data)[i] = lksi_f64_to_bf16(value); break;
    default: ((float *)data)[i] = (float)value; break;
    }
}

/* A signalling NaN stays one here; the arithmetic that follows quiets it. */
static LKSI_UNUSED void lksi_load_bf16(float *restrict d, const uint16_t *restrict s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) d[i] = lksi_float_f32((uint32_t)s[i] << 16);
}

/* lksi_f32_to_bf16 on whole vectors while no NaN is among them. */
static LKSI_UNUSED void lksi_store_bf16(uint16_t *restrict d, const float *restrict s, int64_t n)
{
    int64_t i = 0;
#if defined __AVX512F__
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    for (; i + 16 <= n; i += 16) {
        __m512 x = _mm512_loadu_ps(s + i);
        if (_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)) break;
        __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
        u = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, half), odd), 16);
        _mm256_storeu_si256((__m256i *)(void *)(d + i), _mm512_cvtepi32_epi16(u));
    }
#elif defined __AVX2__
    const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    for (; i + 16 <= n; i += 16) {
        __m256 x = _mm256_loadu_ps(s + i), y = _mm256_loadu_ps(s + i + 8);
        if (_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_UNORD_Q))) break;
        __m256i u = _mm256_castps_si256(x), v = _mm256_castps_si256(y);
        __m256i p = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
        __m256i q = _mm256_and_si256(_mm256_srli_epi32(v, 16), one);
        u = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, half), p), 16);
        v = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(v, half), q), 16);
        u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, v), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(d + i), u);
    }
#endif
    lksi_f32_to_bf16_n(d + i, s + i, n - i);
}

/* a b + c, fused where that is one instruction: for plain loops, and for hardware vectors. Larger of x and m, m where x
 * is NaN. */
#if defined __FMA__ || defined __AVX512F__ || defined __aarch64__
#define fma_f __builtin_fmaf
#define fma_d __builtin_fma
#else
#define fma_f(a, b, c) ((a) * (b) + (c))
#define fma_d(a, b, c) ((a) * (b) + (c))
#endif
#if defined __AVX512F__
#define vfma_f(a, b, c) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#define vfma_d(a, b, c) _mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c))
#define vmax_f(x, m) _mm512_max_ps((__m512)(x), (__m512)(m))
#define vmax_d(x, m) _mm512_max_pd((__m512d)(x), (__m512d)(m))
#elif defined __AVX2__ && defined __FMA__
#define vfma_f(a, b, c) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#define vfma_d(a, b, c) _mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c))
#define vmax_f(x, m) _mm256_max_ps((__m256)(x), (__m256)(m))
#define vmax_d(x, m) _mm256_max_pd((__m256d)(x), (__m256d)(m))
#elif defined __SSE2__
#define vfma_f(a, b, c) ((a) * (b) + (c))
#define vfma_d(a, b, c) ((a) * (b) + (c))
#define vmax_f(x, m) _mm_max_ps((__m128)(x), (__m128)(m))
#define vmax_d(x, m) _mm_max_pd((__m128d)(x), (__m128d)(m))
#else
#define vfma_f(a, b, c) ((a) * (b) + (c))
#define vfma_d(a, b, c) ((a) * (b) + (c))
#define vmax_f(x, m) vec_select_f(x, m)
#define vmax_d(x, m) vec_select_d(x, m)
#endif

#define to_f16_f lksi_f32_to_f16
#define to_bf16_f lksi_f32_to_bf16
#define to_f16_d lksi_f64_to_f16
#define to_bf16_d lksi_f64_to_bf16
#define REAL float
#define F(name) name##_f
#define REAL_DTYPE LKS_F32
#include "cpu/rows_real.h"
#undef REAL
#undef F
#undef REAL_DTYPE
#define REAL double
#define F(name) name##_d
#define REAL_DTYPE LKS_F64
#include "cpu/rows_real.h"
#undef REAL
#undef F
#undef REAL_DTYPE

#endif
