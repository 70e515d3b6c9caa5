/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matmul.c - matrix products: the blocked product of this ISA (see gemm.h, gemm_core.h), how it is shared between the
 * workers, and the rows matmul and linear. Every element of a result is summed in an order that depends on the inner
 * size alone, so thread count and batching do not change bits.
 */
#include "cpu/gemm.h"
#include "cpu/block.h"
#include "cpu/gemm_io.h"
#if defined __x86_64__
#include <immintrin.h>
#endif

#define VECTOR_BYTES (LKSI_TILE_BYTES / 2)
typedef float vec_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double vec_f64 __attribute__((vector_size(VECTOR_BYTES)));

static inline vec_f32 fma_f32(vec_f32 x, vec_f32 y, vec_f32 z)
{
#if defined __AVX512F__
    return (vec_f32)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined __FMA__
    return (vec_f32)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
    return x * y + z;
#endif
}

static inline vec_f64 fma_f64(vec_f64 x, vec_f64 y, vec_f64 z)
{
#if defined __AVX512F__
    return (vec_f64)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
#elif defined __FMA__
    return (vec_f64)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
#else
    return x * y + z;
#endif
}

static inline void transpose_4(float *restrict to, int64_t width, const float *restrict x, int64_t ld)
{
    typedef float quad __attribute__((vector_size(16)));
    typedef float quad_u __attribute__((vector_size(16), aligned(4)));
    quad a = *(const quad_u *)x, b = *(const quad_u *)(x + ld);
    quad c = *(const quad_u *)(x + 2 * ld), d = *(const quad_u *)(x + 3 * ld);
    quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(quad_u *)to = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    *(quad_u *)(to + width) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    *(quad_u *)(to + 2 * width) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    *(quad_u *)(to + 3 * width) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

/* to[p width + i] = x[i ld + p], i < rows <= width, p < k. Goes along the side whose lines are farther apart: many of
 * them at a time would fight for a few cache sets. */
static void transpose_f32(float *restrict to, int64_t width, const float *restrict x, int64_t ld, int64_t rows,
                          int64_t k)
{
    int64_t i4 = rows / 4 * 4, k4 = k / 4 * 4;
    if (width > ld)
        for (int64_t p = 0; p < k4; p += 4)
            for (int64_t i = 0; i < i4; i += 4) transpose_4(to + p * width + i, width, x + i * ld + p, ld);
    else
        for (int64_t i = 0; i < i4; i += 4)
            for (int64_t p = 0; p < k4; p += 4) transpose_4(to + p * width + i, width, x + i * ld + p, ld);
    for (int64_t i = 0; i < i4; i++)
        for (int64_t p = k4; p < k; p++) to[p * width + i] = x[i * ld + p];
    for (int64_t i = i4; i < rows; i++)
        for (int64_t p = 0; p < k; p++) to[p * width + i] = x[i * ld + p];
}

static void transpose_f64(double *restrict to, int64_t width, const double *restrict x, int64_t ld, int64_t rows,
                          int64_t k)
{
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
        for (int64_t p = 0; p < k; p++)
            for (int r = 0; r < 4; r++) to[p * width + i + r] = x[(i + r) * ld + p];
    for (; i < rows; i++)
        for (int64_t p = 0; p < k; p++) to[p * width + i] = x[i * ld + p];
}

enum { THIN = 3, THIN_COLUMNS = 512 };
#ifdef __FMA__
#define FMA_F32(x, y, z) __builtin_fmaf(x, y, z)
#define FMA_F64(x, y, z) __builtin_fma(x, y, z)
#else
#define FMA_F32(x, y, z) ((x) * (y) + (z))
#define FMA_F64(x, y, z) ((x) * (y) + (z))
#endif

#define REAL float
#define REAL_DTYPE LKS_F32
#define FMA1 FMA_F32
#define SUFFIX f32
#define MR LKSI_TILE_ROWS
#define NV 2
#define KC 384
#include "cpu/gemm_core.h"

#define REAL double
#define REAL_DTYPE LKS_F64
#define FMA1 FMA_F64
#define SUFFIX f64
#define MR LKSI_TILE_ROWS
#define NV 2
#define KC 256
#include "cpu/gemm_core.h"

int64_t LKSI_LOCAL(gemm_bytes)(const lksi_gemm *g)
{
    return g->c_dtype == LKS_F64 ? make_plan_f64(g).bytes : make_plan_f32(g).bytes;
}

void LKSI_LOCAL(gemm_serial)(const lksi_gemm *g, void *memory)
{
    if (g->m == 0 || g->n == 0) return;
    if (g->c_dtype == LKS_F64)
        gemm_serial_f64(g, memory);
    else
        gemm_serial_f32(g, memory);
}

static int64_t panel_width(const lksi_gemm *g)
{
    return VECTOR_BYTES / lks_dtype_size(g->c_dtype == LKS_F64 ? LKS_F64 : LKS_F32) * 2;
}

int64_t LKSI_LOCAL(gemm_packed_bytes)(const lksi_gemm *g)
{
    int64_t w = panel_width(g);
    return (g->n + w - 1) / w * w * g->k * lks_dtype_size(g->c_dtype == LKS_F64 ? LKS_F64 : LKS_F32) + 64;
}

typedef struct packing { lksi_cpu *cpu; const lksi_gemm *g; void *to; int64_t bytes; } packing;

static void pack_part(void *arg, int64_t begin, int64_t end, int worker)
{
    const packing *s = arg;
    void *stage = lksi_scratch(s->cpu, worker, 0, s->bytes);
    if (s->g->c_dtype == LKS_F64)
        pack_panels_f64(s->g, s->to, begin, end, stage);
    else
        pack_panels_f32(s->g, s->to, begin, end, stage);
}

static lks_status scratch_for_all(lksi_cpu *cpu, const lksi_args *a, int workers, int64_t bytes)
{
    for (int w = 0; w < workers; w++)
        if (!lksi_scratch(cpu, w, 0, bytes))
            return lksi_why(a, LKS_ERR_MEMORY, "no memory for %lld bytes of packed blocks on each of %d threads",
                            (long long)bytes, workers);
    return LKS_OK;
}

lks_status LKSI_LOCAL(gemm_pack)(lksi_cpu *cpu, const lksi_args *a, const lksi_gemm *g, void *to)
{
    packing s = {cpu, g, to, LKSI_LOCAL(gemm_bytes)(g)};
    lks_status status = scratch_for_all(cpu, a, lksi_cpu_workers(cpu), s.bytes);
    if (status != LKS_OK) return status;
    int64_t panels = (g->n + panel_width(g) - 1) / panel_width(g), grain = 1 + 65536 / (panel_width(g) * (g->k + 1));
    lksi_parallel(cpu, panels, grain, pack_part, &s);
    return LKS_OK;
}

void LKSI_LOCAL(tiles_f32)(int64_t m, int64_t n, int64_t k, const float *a, int64_t rs, int64_t ps, const float *b,
                           int64_t panel, float *c, int64_t ldc, int add)
{
    tiles_f32(m, n, k, a, rs, ps, b, panel, c, ldc, add);
}

void LKSI_LOCAL(tiles_f64)(int64_t m, int64_t n, int64_t k, const double *a, int64_t rs, int64_t ps, const double *b,
                           int64_t panel, double *c, int64_t ldc, int add)
{
    tiles_f64(m, n, k, a, rs, ps, b, panel, c, ldc, add);
}

void LKSI_LOCAL(transpose_f32)(float *to, int64_t width, const float *x, int64_t ld, int64_t rows, int64_t k)
{
    transpose_f32(to, width, x, ld, rows, k);
}

void LKSI_LOCAL(transpose_f64)(double *to, int64_t width, const double *x, int64_t ld, int64_t rows, int64_t k)
{
    transpose_f64(to, width, x, ld, rows, k);
}

/* Same product, transposed. */
static void swap_sides(lksi_gemm *g)
{
    lksi_gemm o = *g;
    g->m = o.n, g->n = o.m;
    g->a = o.b, g->b = o.a;
    g->a_dtype = o.b_dtype, g->b_dtype = o.a_dtype;
    g->a_rs = o.b_cs, g->a_cs = o.b_rs;
    g->b_rs = o.a_cs, g->b_cs = o.a_rs;
    g->c_rs = o.c_cs, g->c_cs = o.c_rs;
    g->bias_rs = o.bias_cs, g->bias_cs = o.bias_rs;
    memcpy(g->a_bs, o.b_bs, sizeof g->a_bs);
    memcpy(g->b_bs, o.a_bs, sizeof g->b_bs);
}

static void drop_batch(lksi_gemm *g, int d)
{
    g->nbatch--;
    for (; d < g->nbatch; d++) {
        g->batch[d] = g->batch[d + 1];
        g->a_bs[d] = g->a_bs[d + 1];
        g->b_bs[d] = g->b_bs[d + 1];
        g->c_bs[d] = g->c_bs[d + 1];
        g->bias_bs[d] = g->bias_bs[d + 1];
    }
}

/* Fewer, larger products: batch dims of size 1 go, nested ones join, and one that only B or only A does not see joins
 * the rows or columns. */
static void simplify(lksi_gemm *g)
{
    for (int d = g->nbatch - 1; d >= 0; d--)
        if (g->batch[d] == 1) drop_batch(g, d);
    for (int d = g->nbatch - 2; d >= 0; d--) {
        int64_t inner = g->batch[d + 1];
        if (g->a_bs[d] != inner * g->a_bs[d + 1] || g->b_bs[d] != inner * g->b_bs[d + 1] ||
            g->c_bs[d] != inner * g->c_bs[d + 1] || g->bias_bs[d] != inner * g->bias_bs[d + 1])
            continue;
        g->batch[d + 1] *= g->batch[d];
        drop_batch(g, d);
    }
    while (g->nbatch > 0) {
        int d = g->nbatch - 1;
        int64_t count = g->batch[d];
        if (g->b_bs[d] == 0 && (g->m == 1 || (g->a_bs[d] == g->m * g->a_rs && g->c_bs[d] == g->m * g->c_rs &&
                                              g->bias_bs[d] == g->m * g->bias_rs))) {
            if (g->m == 1) g->a_rs = g->a_bs[d], g->c_rs = g->c_bs[d], g->bias_rs = g->bias_bs[d];
            g->m *= count;
        } else if (g->a_bs[d] == 0 && (g->n == 1 || (g->b_bs[d] == g->n * g->b_cs && g->c_bs[d] == g->n * g->c_cs &&
                                                     g->bias_bs[d] == g->n * g->bias_cs))) {
            if (g->n == 1) g->b_cs = g->b_bs[d], g->c_cs = g->c_bs[d], g->bias_cs = g->bias_bs[d];
            g->n *= count;
        } else {
            break;
        }
        g->nbatch--;
    }
    if (g->c_cs != 1 && g->c_rs == 1 && g->n > 1) swap_sides(g);
}

typedef struct shared_product {
    lksi_cpu *cpu;
    const lksi_gemm *g;
    int64_t rows, columns;           /* of one piece */
    int64_t row_pieces, column_pieces;
    int64_t bytes;
    int onednn; /* all pieces are oneDNN's */
    int thin;   /* few rows in all */
} shared_product;

static void product_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    const shared_product *s = arg;
    void *memory = lksi_scratch(s->cpu, worker, 0, s->bytes);
    for (int64_t u = begin; u < end; u++) {
        lksi_gemm g = *s->g;
        int64_t j = u % s->column_pieces * s->columns, rest = u / s->column_pieces;
        int64_t i = rest % s->row_pieces * s->rows;
        int64_t a = 0, b = 0, c = 0, bias = 0;
        rest /= s->row_pieces;
        for (int d = g.nbatch - 1; d >= 0; d--) {
            int64_t at = rest % g.batch[d];
            rest /= g.batch[d];
            a += at * g.a_bs[d], b += at * g.b_bs[d], c += at * g.c_bs[d], bias += at * g.bias_bs[d];
        }
        g.m = g.m - i < s->rows ? g.m - i : s->rows;
        g.n = g.n - j < s->columns ? g.n - j : s->columns;
        if (g.m <= 0 || g.n <= 0) continue;
        g.a = io_at(g.a, g.a_dtype, a + i * g.a_rs);
        g.b = io_at(g.b, g.b_dtype, b + j * g.b_cs);
        g.c = io_at(g.c, g.c_dtype, c + i * g.c_rs + j * g.c_cs);
        if (g.bias) g.bias = io_at(g.bias, g.bias_dtype, bias + i * g.bias_rs + j * g.bias_cs);
        if (s->thin) {
            if (g.c_dtype == LKS_F64) gemm_thin_f64(&g, memory);
            else gemm_thin_f32(&g, memory);
            continue;
        }
        if (!s->onednn || !lksi_onednn_run(s->cpu, &g, memory)) LKSI_LOCAL(gemm_serial)(&g, memory);
    }
}

static int64_t common_divisor(int64_t x, int64_t y)
{
    while (y) {
        int64_t r = x % y;
        x = y, y = r;
    }
    return x;
}

lks_status LKSI_LOCAL(gemm)(lksi_cpu *cpu, const lksi_args *a, const lksi_gemm *given)
{
    lksi_gemm g = *given;
    int64_t batch = 1;
    simplify(&g);
    for (int d = 0; d < g.nbatch; d++) batch *= g.batch[d];
    if (g.m == 0 || g.n == 0 || batch == 0) return LKS_OK;
    if (g.n <= THIN && g.m > THIN) swap_sides(&g);
    int reduced = g.a_dtype == LKS_BF16 && g.b_dtype == LKS_BF16 && lksi_onednn_bf16(cpu);
    /* x W^T with few rows: to pack all of W for them costs more than to write the result by columns. */
    if (!g.scaled && !reduced && g.b_rs == 1 && g.b_cs != 1 && g.a_cs == 1 && g.m > THIN && g.n > THIN &&
        g.c_dtype == (g.a_dtype == LKS_F64 ? LKS_F64 : LKS_F32) && 2 * g.m * (g.k + 2 * g.n) <= g.n * g.k)
        swap_sides(&g);
    int workers = lksi_cpu_workers(cpu);
    double work = (double)g.m * (double)g.n * (double)(g.k + 8) * (double)batch;
    if (work < 2e5) workers = 1; /* a few microseconds: less than waking others */
    /* Pieces a batch entry is cut into, the cut that packs least. */
    int64_t want = workers / common_divisor(workers, batch), row_pieces = 1, column_pieces = 1;
    int thin = g.m <= THIN;
    if (thin) {
        if (batch < 4 * workers) column_pieces = want;
    } else if (batch < 4 * workers) {
        double least = 0;
        for (int64_t r = 1; r <= want; r++) {
            if (want % r) continue;
            int64_t c = want / r, rows = (g.m + r - 1) / r, columns = (g.n + c - 1) / c;
            double cost = (double)(rows + LKSI_TILE_ROWS) * (double)(columns + 16) + 8.0 * (double)(rows + columns);
            if (least == 0 || cost < least) least = cost, row_pieces = r, column_pieces = c;
        }
    }
    int64_t step = VECTOR_BYTES / 4 * 2;
    shared_product s = {.cpu = cpu, .g = &g, .row_pieces = row_pieces, .column_pieces = column_pieces};
    s.rows = ((g.m + row_pieces - 1) / row_pieces + LKSI_TILE_ROWS - 1) / LKSI_TILE_ROWS * LKSI_TILE_ROWS;
    s.columns = ((g.n + column_pieces - 1) / column_pieces + step - 1) / step * step;
    lksi_gemm piece = g;
    piece.m = g.m < s.rows ? g.m : s.rows;
    piece.n = g.n < s.columns ? g.n : s.columns;
    s.bytes = LKSI_LOCAL(gemm_bytes)(&piece);
    if (thin) {
        s.thin = 1;
        s.bytes = piece.c_dtype == LKS_F64 ? thin_bytes_f64(&piece) : thin_bytes_f32(&piece);
    }
    int64_t bytes;
    double piece_work = (double)piece.m * (double)piece.n * (double)piece.k;
    if (!thin && reduced && piece_work > 1e5 &&
        lksi_onednn_prepare(cpu, &g, s.rows, s.columns, &bytes)) {
        s.onednn = 1;
        if (bytes > s.bytes) s.bytes = bytes;
    }
    lks_status status = scratch_for_all(cpu, a, workers, s.bytes);
    if (status != LKS_OK) return status;
    int64_t units = batch * row_pieces * column_pieces;
    if (workers == 1)
        product_pieces(&s, 0, units, 0);
    else
        lksi_parallel(cpu, units, 1, product_pieces, &s);
    return LKS_OK;
}

/* x [b..., m, k] @ y [b..., k, n]; a vector on either side gets a dim of 1 that the result lacks. */
static lksi_gemm product_of(const lksi_args *a)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1], *z = &a->out[0];
    int xv = x->ndim == 1, yv = y->ndim == 1, xd = x->ndim, yd = y->ndim, zd = z->ndim;
    lksi_gemm g = {.a = x->data, .b = y->data, .c = z->data, .a_dtype = x->dtype, .b_dtype = y->dtype,
                   .c_dtype = z->dtype};
    g.m = xv ? 1 : x->shape[xd - 2];
    g.k = x->shape[xd - 1];
    g.n = yv ? 1 : y->shape[yd - 1];
    g.a_rs = xv ? 0 : x->stride[xd - 2], g.a_cs = x->stride[xd - 1];
    g.b_rs = yv ? y->stride[0] : y->stride[yd - 2], g.b_cs = yv ? 1 : y->stride[yd - 1];
    g.c_cs = yv ? 1 : z->stride[zd - 1];
    g.c_rs = xv ? g.n : z->stride[zd - (yv ? 1 : 2)];
    int xb = xv ? 0 : xd - 2, yb = yv ? 0 : yd - 2;
    g.nbatch = xb > yb ? xb : yb;
    for (int d = 0; d < g.nbatch; d++) {
        int i = d - (g.nbatch - xb), j = d - (g.nbatch - yb);
        g.batch[d] = z->shape[d];
        g.a_bs[d] = i < 0 || x->shape[i] == 1 ? 0 : x->stride[i];
        g.b_bs[d] = j < 0 || y->shape[j] == 1 ? 0 : y->stride[j];
        g.c_bs[d] = z->stride[d];
    }
    return g;
}

/* [re im] of A's rows, 2 k numbers, times B spread to 2 k x 2 n: rows (re, im, ...) and (-im, re, ...). So C comes out
 * as pairs, by one real product. */
typedef struct spread { lksi_view b; char *to; int64_t rows, n; } spread;

static void spread_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const spread *s = arg;
    int last = s->b.ndim - 1;
    int64_t step = s->b.stride[last];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        int64_t rest = r, at = 0;
        for (int d = last - 1; d >= 0; d--) {
            at += rest % s->b.shape[d] * s->b.stride[d];
            rest /= s->b.shape[d];
        }
#define SPREAD(T)                                                                                              \
    {                                                                                                          \
        const T *x = (const T *)s->b.data + 2 * at;                                                            \
        T *u = (T *)(void *)s->to + 4 * s->n * r, *v = u + 2 * s->n;                                           \
        for (int64_t j = 0; j < s->n; j++, x += 2 * step) {                                                    \
            u[2 * j] = x[0], u[2 * j + 1] = x[1];                                                              \
            v[2 * j] = -x[1], v[2 * j + 1] = x[0];                                                             \
        }                                                                                                      \
    }
        if (s->b.dtype == LKS_C64) SPREAD(float)
        else SPREAD(double)
    }
}

static lks_status complex_product(lksi_cpu *cpu, const lksi_args *a)
{
    lksi_view x = a->in[0], y = a->in[1], z = a->out[0];
    lks_dtype real = z.dtype == LKS_C64 ? LKS_F32 : LKS_F64;
    int xv = x.ndim == 1, yv = y.ndim == 1;
    if (!lksi_is_contiguous(&z)) return lksi_why(a, LKS_ERR_UNSUPPORTED, "a strided complex result");
    if (xv) { /* vectors as matrices */
        x.ndim = 2, x.shape[1] = x.shape[0], x.stride[1] = x.stride[0], x.shape[0] = 1, x.stride[0] = 0;
        if (!yv) z.shape[z.ndim] = z.shape[z.ndim - 1];
        z.shape[z.ndim - !yv] = 1;
        z.ndim++;
    }
    if (yv) {
        y.ndim = 2, y.shape[1] = 1, y.stride[1] = 1;
        z.shape[z.ndim++] = 1;
    }
    lksi_contiguous_strides(&z);
    int xd = x.ndim, yd = y.ndim;
    int64_t m = x.shape[xd - 2], k = x.shape[xd - 1], n = y.shape[yd - 1], rows = 1, size = lks_dtype_size(x.dtype);
    if (lksi_numel(&z) == 0) return LKS_OK;
    if (x.stride[xd - 1] != 1 && k > 1) {
        lksi_view dense = x;
        lksi_contiguous_strides(&dense);
        dense.data = lksi_scratch(cpu, -1, 1, lksi_numel(&x) * size);
        if (!dense.data) return lksi_why(a, LKS_ERR_MEMORY, "no memory for a copy of a");
        LKSI_LOCAL(copy)(cpu, &dense, &x);
        x = dense;
    }
    for (int d = 0; d < yd - 1; d++) rows *= y.shape[d];
    spread s = {.b = y, .rows = rows, .n = n, .to = lksi_scratch(cpu, -1, 0, 2 * rows * n * size + 64)};
    if (!s.to) return lksi_why(a, LKS_ERR_MEMORY, "no memory for a copy of b");
    lksi_parallel(cpu, rows, 1 + 16384 / (n + 1), spread_rows, &s);
    lksi_gemm g = {.a = x.data, .b = s.to, .c = z.data, .a_dtype = real, .b_dtype = real, .c_dtype = real,
                   .m = m, .k = 2 * k, .n = 2 * n, .a_rs = 2 * x.stride[xd - 2], .a_cs = 1, .b_rs = 2 * n, .b_cs = 1,
                   .c_rs = 2 * z.stride[z.ndim - 2], .c_cs = 1};
    int xb = xd - 2, yb = yd - 2;
    g.nbatch = xb > yb ? xb : yb;
    int64_t dense = 4 * k * n;
    for (int d = g.nbatch - 1; d >= 0; d--) {
        int i = d - (g.nbatch - xb), j = d - (g.nbatch - yb);
        g.batch[d] = z.shape[d];
        g.a_bs[d] = i < 0 || x.shape[i] == 1 ? 0 : 2 * x.stride[i];
        g.b_bs[d] = j < 0 || y.shape[j] == 1 ? 0 : dense;
        if (j >= 0) dense *= y.shape[j];
        g.c_bs[d] = 2 * z.stride[d];
    }
    return LKSI_LOCAL(gemm)(cpu, a, &g);
}

LKSI_KERNEL(matmul)
{
    if (lks_dtype_is_complex(a->out[0].dtype)) return complex_product(cpu, a);
    lksi_gemm g = product_of(a);
    return LKSI_LOCAL(gemm)(cpu, a, &g);
}

LKSI_KERNEL(mv) { return LKSI_KERNEL_NAME(matmul)(cpu, a); }
LKSI_KERNEL(dot) { return LKSI_KERNEL_NAME(matmul)(cpu, a); }

/* Stride of c, broadcast to z, in z's dim d. */
static int64_t stride_in(const lksi_view *c, const lksi_view *z, int d)
{
    int own = d - (z->ndim - c->ndim);
    return d < 0 || own < 0 || c->shape[own] == 1 ? 0 : c->stride[own];
}

/* alpha x y + beta c */
LKSI_KERNEL(addmm)
{
    lksi_gemm g = product_of(a);
    const lksi_view *c = &a->in[2], *z = &a->out[0];
    int xv = a->in[0].ndim == 1, yv = a->in[1].ndim == 1, at = z->ndim - 1;
    g.alpha = a->attr.product.alpha, g.beta = a->attr.product.beta;
    if (a->nin > 2 && c->ndim >= 0 && g.beta != 0) {
        g.bias = c->data, g.bias_dtype = c->dtype;
        if (!yv) g.bias_cs = stride_in(c, z, at--);
        if (!xv) g.bias_rs = stride_in(c, z, at--);
        for (int d = 0; d < g.nbatch; d++) g.bias_bs[d] = stride_in(c, z, d);
    }
    g.scaled = g.alpha != 1 || (g.bias && g.beta != 1);
    return LKSI_LOCAL(gemm)(cpu, a, &g);
}

LKSI_KERNEL(addmv) { return LKSI_KERNEL_NAME(addmm)(cpu, a); }

/* x [..., I] @ weight [O, I]^T + bias [O] */
LKSI_KERNEL(sum); /* reduce.c */

/* dweight = dy^T x, dbias = sums of dy over rows */
LKSI_KERNEL(linear_weight_backward)
{
    lksi_view in[2] = {a->in[0], a->in[1]};
    lksi_args b = *a;
    in[0].shape[0] = a->in[0].shape[1], in[0].stride[0] = a->in[0].stride[1];
    in[0].shape[1] = a->in[0].shape[0], in[0].stride[1] = a->in[0].stride[0];
    b.in = in, b.nout = 1;
    if (a->out[0].shape[0] && a->out[0].shape[1]) TRY(LKSI_KERNEL_NAME(matmul)(cpu, &b));
    b.in = a->in, b.nin = 1, b.out = &a->out[1];
    b.attr.reduce.mask = 1, b.attr.reduce.keepdim = 0, b.attr.reduce.dtype = a->out[1].dtype;
    return a->out[1].shape[0] ? LKSI_KERNEL_NAME(sum)(cpu, &b) : LKS_OK;
}

LKSI_KERNEL(linear)
{
    const lksi_view *x = &a->in[0], *w = &a->in[1], *b = a->nin > 2 ? &a->in[2] : NULL, *y = &a->out[0];
    int xd = x->ndim, rows = xd >= 2;
    lksi_gemm g = {.a = x->data, .b = w->data, .c = y->data, .a_dtype = x->dtype, .b_dtype = w->dtype,
                   .c_dtype = y->dtype};
    g.k = x->shape[xd - 1], g.n = w->shape[0], g.m = rows ? x->shape[xd - 2] : 1;
    g.a_rs = rows ? x->stride[xd - 2] : 0, g.a_cs = x->stride[xd - 1];
    g.b_rs = w->stride[1], g.b_cs = w->stride[0];
    g.c_rs = rows ? y->stride[xd - 2] : g.n, g.c_cs = y->stride[xd - 1];
    if (b && b->ndim >= 0) g.bias = b->data, g.bias_dtype = b->dtype, g.bias_cs = b->stride[0];
    g.nbatch = rows ? xd - 2 : 0;
    for (int d = 0; d < g.nbatch; d++) g.batch[d] = x->shape[d], g.a_bs[d] = x->stride[d], g.c_bs[d] = y->stride[d];
    return LKSI_LOCAL(gemm)(cpu, a, &g);
}
