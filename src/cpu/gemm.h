/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gemm.h - products inside the CPU room: one strided, batched matrix product with mixed dtypes (matmul.c, once per ISA)
 * and the door to oneDNN (onednn.c, once). Not an op: shapes are the caller's business.
 */
#ifndef LKSI_GEMM_H
#define LKSI_GEMM_H

#include "cpu/cpu.h"

/* A tile of the register kernel: rows, bytes across. */
#if defined __AVX512F__
#define LKSI_TILE_ROWS 12
#define LKSI_TILE_BYTES 128
#elif defined __AVX__
#define LKSI_TILE_ROWS 6
#define LKSI_TILE_BYTES 64
#else
#define LKSI_TILE_ROWS 4
#define LKSI_TILE_BYTES 32
#endif

#define LKSI_GEMM_BATCH_DIMS LKS_MAX_DIMS

/* C[i,j] = sum_p A[i,p] B[p,j] (+ C[i,j] if add) + bias[i,j], over a batch. Strides in elements, any value (0 too, not
 * for C). Either all dtypes are F64, or a, b, c, bias are each one of F32, BF16, F16 and the sum is a float32 one,
 * rounded once. k = 0 gives bias (or zeros). The order of additions depends on sizes and strides, not on threads or
 * position. scaled: alpha times the sum, beta times the bias (not with add). */
typedef struct lksi_gemm {
    int64_t m, n, k;
    const void *a, *b, *bias; /* bias NULL: none */
    void *c;
    int32_t a_dtype, b_dtype, c_dtype, bias_dtype;
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs; /* row and column strides */
    int64_t bias_rs, bias_cs;                   /* bias[i bias_rs + j bias_cs]; usually (0, 1) */
    const void *packed_b;                       /* B as LKSI_LOCAL(gemm_pack) left it, or NULL */
    int32_t add;                                /* only where c_dtype is F32 or F64 */
    int32_t scaled;
    double alpha, beta;
    int32_t nbatch;                             /* batch dims, outermost first */
    int64_t batch[LKSI_GEMM_BATCH_DIMS], a_bs[LKSI_GEMM_BATCH_DIMS], b_bs[LKSI_GEMM_BATCH_DIMS],
        c_bs[LKSI_GEMM_BATCH_DIMS], bias_bs[LKSI_GEMM_BATCH_DIMS];
} lksi_gemm;

/* On all workers. Uses scratch slot 0 of each worker. */
lks_status LKSI_LOCAL(gemm)(lksi_cpu *cpu, const lksi_args *a, const lksi_gemm *g);
/* One product (batch ignored) on the calling worker, which hands in memory of at least lksi_gemm_bytes (64-byte
 * aligned). For use inside lksi_parallel. */
int64_t LKSI_LOCAL(gemm_bytes)(const lksi_gemm *g);
void LKSI_LOCAL(gemm_serial)(const lksi_gemm *g, void *memory);

/* onednn.c. 1 if oneDNN has products of bfloat16 that use this processor's bfloat16 instructions. */
int lksi_onednn_bf16(lksi_cpu *cpu);
/* Outside lksi_parallel: 1 if all pieces of g that are rows x columns, or what is left at the edges, are for oneDNN
 * to run; bytes: memory that a run needs. Then one piece, on any worker (memory 64-byte aligned): 1, or 0 if it
 * failed. */
int lksi_onednn_prepare(lksi_cpu *cpu, const lksi_gemm *g, int64_t rows, int64_t columns, int64_t *bytes);
int lksi_onednn_run(lksi_cpu *cpu, const lksi_gemm *piece, void *memory);
/* B of a product that is used many times (with any m), packed once, on all workers: `to` holds gemm_packed_bytes,
 * 64-byte aligned. Uses scratch slot 0 of each worker. */
int64_t LKSI_LOCAL(gemm_packed_bytes)(const lksi_gemm *g);
lks_status LKSI_LOCAL(gemm_pack)(lksi_cpu *cpu, const lksi_args *a, const lksi_gemm *g, void *to);
/* The bare kernel, for those who pack themselves: C [m, n] (+)= A [m, k] B, tile by tile, so A must be readable and C
 * writable up to whole tiles. A's element (i, p) is a[i rs + p ps], one of which is 1; B is panels [k, columns of a
 * tile], `panel` elements apart, 64-byte aligned. */
void LKSI_LOCAL(tiles_f32)(int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t ps, const float *b,
                           int64_t panel, float *c, int64_t ldc, int add);
void LKSI_LOCAL(tiles_f64)(int64_t m, int64_t n, int64_t k, const double *a, int64_t rs, int64_t ps, const double *b,
                           int64_t panel, double *c, int64_t ldc, int add);
/* to[p width + i] = x[i ld + p] for i < rows, p < k. */
void LKSI_LOCAL(transpose_f32)(float *to, int64_t width, const float *x, int64_t ld, int64_t rows, int64_t k);
void LKSI_LOCAL(transpose_f64)(double *to, int64_t width, const double *x, int64_t ld, int64_t rows, int64_t k);

#endif
