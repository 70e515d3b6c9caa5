/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gemm_core.h - the blocked product on one worker, for one accumulator type; included by matmul.c with REAL = float and
 * double. B (and A, where it is not already good to read) is packed into blocks that fit the caches, which also
 * converts, transposes and pads; one register kernel of MR x NR does the rest (Goto and van de Geijn, 2008).
 *
 * Wants: REAL, SUFFIX, REAL_DTYPE, MR, NV (vectors across a tile), KC (depth of a block), fma_SUFFIX, transpose_SUFFIX.
 */
#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define NR (NV * LANES)
#define MC (144 / MR * MR)   /* rows of A in a block: with KC, about 200 KiB */
#define MB (1008 / MR * MR)  /* rows that share an accumulator block */
#define NC (512 / NR * NR)

typedef REAL NAME(vec_u) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL))));

/* c [MR, NR] (= or +=) A [MR, k] B panel [k, NR], plus bias [NR] unless it is NULL. A element (i, p) is at
 * a[i rs + p ps]. */
static inline __attribute__((always_inline)) void NAME(tile)(int64_t k, const REAL *restrict a, int64_t rs, int64_t ps,
                                                             const REAL *restrict b, REAL *restrict c, int64_t ldc,
                                                             int add, const REAL *bias)
{
    NAME(vec) acc[MR][NV];
    for (int i = 0; i < MR; i++) __builtin_prefetch(c + i * ldc, 1);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) acc[i][v] = (NAME(vec)){0};
    for (int64_t p = 0; p < k; p++) {
        NAME(vec) row[NV];
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) row[v] = *(const NAME(vec) *)(b + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            NAME(vec) x = a[i * rs] - (NAME(vec)){0};
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[i][v] = NAME(fma)(x, row[v], acc[i][v]);
        }
        a += ps;
        b += NR;
    }
    if (add)
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[i][v] = *(const NAME(vec_u) *)(c + i * ldc + v * LANES) + acc[i][v];
    if (bias)
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[i][v] += *(const NAME(vec_u) *)(bias + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) *(NAME(vec_u) *)(c + i * ldc + v * LANES) = acc[i][v];
}

static __attribute__((noinline)) void NAME(tile_rows)(int64_t k, const REAL *a, int64_t rs, const REAL *b, REAL *c,
                                                      int64_t ldc, int add, const REAL *bias)
{
    NAME(tile)(k, a, rs, 1, b, c, ldc, add, bias);
}

static __attribute__((noinline)) void NAME(tile_columns)(int64_t k, const REAL *a, int64_t ps, const REAL *b, REAL *c,
                                                         int64_t ldc, int add, const REAL *bias)
{
    NAME(tile)(k, a, 1, ps, b, c, ldc, add, bias);
}

static void NAME(tiles)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t rs, int64_t ps, const REAL *b,
                        int64_t panel, REAL *c, int64_t ldc, int add)
{
    for (int64_t j = 0; j < n; j += NR, b += panel)
        for (int64_t i = 0; i < m; i += MR)
            if (ps == 1)
                NAME(tile_rows)(k, a + i * rs, rs, b, c + i * ldc + j, ldc, add, NULL);
            else
                NAME(tile_columns)(k, a + i, ps, b, c + i * ldc + j, ldc, add, NULL);
}

/* to: panels [n / NR][kc, NR] of B[p0.., j0..], the last one padded with zeros. stage: NR * kc. */
static void NAME(pack_b)(REAL *restrict to, const lksi_gemm *g, int64_t p0, int64_t kc, int64_t j0, int64_t n,
                         REAL *restrict stage)
{
    for (int64_t j = 0; j < n; j += NR, to += kc * NR) {
        int64_t nr = n - j < NR ? n - j : NR;
        const void *from = io_at(g->b, g->b_dtype, p0 * g->b_rs + (j0 + j) * g->b_cs);
        if (g->b_cs != 1) { /* columns are (made) contiguous */
            const REAL *x = from;
            int64_t ld = g->b_cs;
            if (g->b_dtype != REAL_DTYPE || g->b_rs != 1) {
                for (int64_t i = 0; i < nr; i++)
                    NAME(io_load)(stage + i * kc, io_at(from, g->b_dtype, i * g->b_cs), g->b_dtype, g->b_rs, kc);
                x = stage;
                ld = kc;
            }
            if (nr < NR) memset(to, 0, (size_t)(kc * NR) * sizeof(REAL));
            NAME(transpose)(to, NR, x, ld, nr, kc);
        } else if (nr < NR) {
            for (int64_t p = 0; p < kc; p++) {
                NAME(io_load)(to + p * NR, io_at(from, g->b_dtype, p * g->b_rs), g->b_dtype, 1, nr);
                for (int64_t i = nr; i < NR; i++) to[p * NR + i] = 0;
            }
        } else if (g->b_dtype == REAL_DTYPE) {
            const REAL *x = from;
            for (int64_t p = 0; p < kc; p++, x += g->b_rs)
                for (int v = 0; v < NV; v++)
                    *(NAME(vec) *)(to + p * NR + v * LANES) = *(const NAME(vec_u) *)(x + v * LANES);
        } else {
            for (int64_t p = 0; p < kc; p++)
                NAME(io_load)(to + p * NR, io_at(from, g->b_dtype, p * g->b_rs), g->b_dtype, 1, NR);
        }
    }
}

/* to: panels [kc, MR] of A[i0.., p0..] where A's columns are contiguous. */
static void NAME(pack_a_panels)(REAL *restrict to, const lksi_gemm *g, int64_t i0, int64_t m, int64_t p0, int64_t kc,
                                REAL *restrict stage)
{
    for (int64_t p = 0; p < kc; p++) {
        const void *from = io_at(g->a, g->a_dtype, i0 + (p0 + p) * g->a_cs);
        const REAL *x = from;
        if (g->a_dtype != REAL_DTYPE) {
            NAME(io_load)(stage, from, g->a_dtype, 1, m);
            x = stage;
        }
        REAL *at = to + p * MR;
        int64_t i = 0;
        for (; i + MR <= m; i += MR, at += kc * MR) memcpy(at, x + i, MR * sizeof(REAL));
        if (i < m)
            for (int r = 0; r < MR; r++) at[r] = i + r < m ? x[i + r] : 0;
    }
}

/* What store (below) does where C lies by columns. bias: one for each row. */
static __attribute__((noinline)) void NAME(store_columns)(const lksi_gemm *g, int64_t i, int64_t j, int64_t mr,
                                                          int64_t nr, const REAL *t, int64_t ldt, int add, int bias)
{
    REAL own[MR] = {0};
    for (int64_t r = 0; r < mr && bias; r++)
        NAME(io_load)(own + r, io_at(g->bias, g->bias_dtype, (i + r) * g->bias_rs), g->bias_dtype, 1, 1);
    for (int64_t q = 0; q < nr; q++) {
        REAL *c = (REAL *)g->c + i + (j + q) * g->c_cs;
        for (int64_t r = 0; r < mr; r++) {
            REAL x = t[r * ldt + q];
            if (add) x = c[r] + x;
            c[r] = bias ? x + own[r] : x;
        }
    }
}

/* C rows i.., columns j.. [mr, nr] = t [mr, ldt] (+ C if add); in the end scaled, and with the bias (bias_j if it is
 * the same for all rows). */
static void NAME(store)(const lksi_gemm *g, int64_t i, int64_t j, int64_t mr, int64_t nr, const REAL *t, int64_t ldt,
                        int add, int end, const REAL *bias_j)
{
    REAL row[NR], own[NR];
    int bias = end && g->bias, scale = end && g->scaled;
    REAL alpha = (REAL)g->alpha, beta = scale ? (REAL)g->beta : 1;
    if (g->c_rs == 1 && g->c_cs != 1 && g->c_dtype == REAL_DTYPE && !scale &&
        (!bias || (!bias_j && g->bias_cs == 0))) {
        NAME(store_columns)(g, i, j, mr, nr, t, ldt, add, bias);
        return;
    }
    for (int64_t r = 0; r < mr; r++, t += ldt) {
        void *c = io_at(g->c, g->c_dtype, (i + r) * g->c_rs + j * g->c_cs);
        const REAL *x = t;
        if (add || bias || scale) {
            for (int64_t q = 0; q < nr; q++) row[q] = t[q];
            if (add)
                for (int64_t q = 0; q < nr; q++) row[q] = ((const REAL *)c)[q * g->c_cs] + row[q];
            if (scale)
                for (int64_t q = 0; q < nr; q++) row[q] *= alpha;
            if (bias) {
                const REAL *b = bias_j;
                if (!b) {
                    int64_t at = (i + r) * g->bias_rs + j * g->bias_cs;
                    NAME(io_load)(own, io_at(g->bias, g->bias_dtype, at), g->bias_dtype, g->bias_cs, nr);
                    b = own;
                }
                for (int64_t q = 0; q < nr; q++) row[q] += beta * b[q];
            }
            x = row;
        }
        NAME(io_store)(c, x, g->c_dtype, g->c_cs, nr);
    }
}

typedef struct NAME(plan) {
    int64_t passes, kc, nc, mc, mb, edge_at, a_at, stage_at, acc_at, bias_at, bytes;
    int direct, acc;
} NAME(plan);

static NAME(plan) NAME(make_plan)(const lksi_gemm *g)
{
    NAME(plan) q;
    q.passes = g->k > KC ? (g->k + KC - 1) / KC : 1;
    q.kc = ((g->k + q.passes - 1) / q.passes + 3) / 4 * 4;
    q.nc = g->n < NC ? (g->n + NR - 1) / NR * NR : NC;
    q.mc = g->m < MC ? (g->m + MR - 1) / MR * MR : MC;
    q.direct = g->c_dtype == REAL_DTYPE && g->c_cs == 1;
    q.acc = !q.direct && q.passes > 1;
    q.mb = !q.acc ? INT64_MAX : g->m < MB ? (g->m + MR - 1) / MR * MR : MB;
    int64_t at = q.kc * q.nc, stage = NR * q.kc;
    if (g->packed_b) at = 0;
    q.a_at = at, at += q.mc * q.kc;
    q.edge_at = at, at += (MR * q.kc + 15) / 16 * 16;
    q.stage_at = at, at += stage > q.mc ? stage : (q.mc + 15) / 16 * 16;
    q.bias_at = at, at += q.nc;
    q.acc_at = at, at += q.acc ? q.mb * q.nc : 0;
    q.bytes = at * (int64_t)sizeof(REAL) + 64;
    return q;
}

static void NAME(gemm_serial)(const lksi_gemm *g, REAL *memory)
{
    NAME(plan) q = NAME(make_plan)(g);
    REAL *pb = memory, *pa = memory + q.a_at, *edge = memory + q.edge_at, *stage = memory + q.stage_at;
    REAL *acc = memory + q.acc_at, *bias = g->bias && !g->bias_rs ? memory + q.bias_at : NULL;
    _Alignas(64) REAL t[MR * NR];
    int panels = g->a_cs != 1 && g->a_rs == 1;
    /* A is read where it lies when it is used few times, or its rows are near enough not to fight for cache sets; by
     * columns, when a block is so shallow that its lines stay in the first cache from panel to panel. */
    int in_place = g->a_dtype == REAL_DTYPE &&
                   (panels ? q.kc <= 128 && g->a_cs <= 4096
                           : g->a_cs == 1 && (g->n <= 4 * NR || g->a_rs == g->k || (g->a_rs <= 768 && g->a_rs % 512)));
    for (int64_t j0 = 0; j0 < g->n; j0 += q.nc) {
        int64_t n = g->n - j0 < q.nc ? g->n - j0 : q.nc;
        if (bias)
            NAME(io_load)(bias, io_at(g->bias, g->bias_dtype, j0 * g->bias_cs), g->bias_dtype, g->bias_cs, n);
        for (int64_t b0 = 0, b1; b0 < g->m; b0 = b1) {
            b1 = g->m - b0 < q.mb ? g->m : b0 + q.mb;
            for (int64_t pass = 0; pass < q.passes; pass++) {
                int64_t p0 = pass * q.kc, kc = g->k - p0 < q.kc ? g->k - p0 : q.kc;
                int first = pass == 0, last = pass == q.passes - 1;
                if (kc < 0) kc = 0;
                if (g->packed_b)
                    pb = (REAL *)g->packed_b + j0 * g->k + p0 * ((n + NR - 1) / NR * NR);
                else
                    NAME(pack_b)(pb, g, p0, kc, j0, n, stage);
                for (int64_t i0 = b0; i0 < b1; i0 += q.mc) {
                    int64_t m = b1 - i0 < q.mc ? b1 - i0 : q.mc, whole = m / MR * MR;
                    const REAL *a = pa;
                    int64_t rs = kc;
                    if (panels && in_place) {
                        a = (const REAL *)g->a + i0 + p0 * g->a_cs;
                        if (whole < m)
                            for (int64_t p = 0; p < kc; p++)
                                for (int r = 0; r < MR; r++)
                                    edge[p * MR + r] = whole + r < m ? a[whole + r + p * g->a_cs] : 0;
                    } else if (panels) {
                        NAME(pack_a_panels)(pa, g, i0, m, p0, kc, stage);
                    } else {
                        REAL *last_rows = in_place ? edge : pa + whole * kc;
                        if (in_place) {
                            a = (const REAL *)g->a + i0 * g->a_rs + p0;
                            rs = g->a_rs;
                        }
                        for (int64_t i = in_place ? whole : 0; i < m; i++)
                            NAME(io_load)(in_place ? edge + (i - whole) * kc : pa + i * kc,
                                            io_at(g->a, g->a_dtype, (i0 + i) * g->a_rs + p0 * g->a_cs), g->a_dtype,
                                            g->a_cs, kc);
                        if (whole < m)
                            memset(last_rows + (m - whole) * kc, 0, (size_t)((whole + MR - m) * kc) * sizeof(REAL));
                    }
                    for (int64_t j = 0; j < n; j += NR) {
                        int64_t nr = n - j < NR ? n - j : NR;
                        const REAL *b = pb + j * kc;
                        for (int64_t i = 0; i < m; i += MR) {
                            int64_t mr = m - i < MR ? m - i : MR, ldc = NR;
                            int add = 0, whole_tile = mr == MR && nr == NR;
                            REAL *c = t;
                            const REAL *own = NULL; /* added by the tile */
                            if (q.direct && whole_tile) {
                                c = (REAL *)g->c + (i0 + i) * g->c_rs + j0 + j;
                                ldc = g->c_rs;
                                add = g->add || !first;
                                if (last && bias && !g->scaled) own = bias + j;
                            } else if (q.acc) {
                                c = acc + (i0 - b0 + i) * q.nc + j;
                                ldc = q.nc;
                                add = !first;
                            }
                            if (panels && in_place && i < whole)
                                NAME(tile_columns)(kc, a + i, g->a_cs, b, c, ldc, add, own);
                            else if (panels)
                                NAME(tile_columns)(kc, in_place ? edge : a + i * kc, MR, b, c, ldc, add, own);
                            else if (in_place && i == whole)
                                NAME(tile_rows)(kc, edge, kc, b, c, ldc, add, own);
                            else
                                NAME(tile_rows)(kc, a + i * rs, rs, b, c, ldc, add, own);
                            if (q.direct && whole_tile) {
                                if (last && (g->bias || g->scaled) && !own)
                                    NAME(store)(g, i0 + i, j0 + j, mr, nr, c, ldc, 0, 1, bias ? bias + j : NULL);
                            } else if (q.acc) {
                                if (last)
                                    NAME(store)(g, i0 + i, j0 + j, mr, nr, c, ldc, g->add, 1, bias ? bias + j : NULL);
                            } else {
                                /* over several passes when direct but not whole: bias with the last one only */
                                NAME(store)(g, i0 + i, j0 + j, mr, nr, c, ldc, g->add || !first, last,
                                            bias ? bias + j : NULL);
                            }
                        }
                    }
                }
            }
        }
    }
}

/* At most THIN rows: B is read once, where it lies. Where its rows are contiguous the additions go in the order of the
 * tiles, else each column is a dot product in lanes. */
static int64_t NAME(thin_bytes)(const lksi_gemm *g)
{
    return (THIN * ((g->k + 15) / 16 * 16) + (2 * THIN + 4) * THIN_COLUMNS) * (int64_t)sizeof(REAL) + 64;
}

static void NAME(gemm_thin)(const lksi_gemm *g, REAL *memory)
{
    int64_t ka = (g->k + 15) / 16 * 16, passes = g->k > KC ? (g->k + KC - 1) / KC : 1;
    int64_t depth = ((g->k + passes - 1) / passes + 3) / 4 * 4;
    REAL *a = memory, *sums = a + THIN * ka, *total = sums + THIN * THIN_COLUMNS, *stage = total + THIN * THIN_COLUMNS;
    for (int64_t i = 0; i < g->m; i++)
        NAME(io_load)(a + i * ka, io_at(g->a, g->a_dtype, i * g->a_rs), g->a_dtype, g->a_cs, g->k);
    for (int64_t j0 = 0; j0 < g->n; j0 += THIN_COLUMNS) {
        int64_t n = g->n - j0 < THIN_COLUMNS ? g->n - j0 : THIN_COLUMNS;
        memset(total, 0, THIN * THIN_COLUMNS * sizeof(REAL));
        if (g->b_cs == 1) {
            for (int64_t p0 = 0; p0 < g->k; p0 += depth) {
                int64_t end = g->k - p0 < depth ? g->k : p0 + depth;
                memset(sums, 0, THIN * THIN_COLUMNS * sizeof(REAL));
                for (int64_t p = p0; p < end; p += 4) {
                    const REAL *row[4];
                    int64_t rows = end - p < 4 ? end - p : 4;
                    for (int64_t r = 0; r < 4; r++) {
                        const void *from = io_at(g->b, g->b_dtype, (p + (r < rows ? r : 0)) * g->b_rs + j0);
                        if (g->b_dtype != REAL_DTYPE) NAME(io_load)(stage + r * THIN_COLUMNS, from, g->b_dtype, 1, n);
                        row[r] = g->b_dtype != REAL_DTYPE ? stage + r * THIN_COLUMNS : from;
                    }
                    for (int64_t i = 0; i < g->m; i++) {
                        const REAL *x = a + i * ka + p, *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
                        REAL *restrict c = sums + i * THIN_COLUMNS;
                        if (rows == 4)
                            for (int64_t j = 0; j < n; j++)
                                c[j] = FMA1(x[3], r3[j], FMA1(x[2], r2[j], FMA1(x[1], r1[j], FMA1(x[0], r0[j], c[j]))));
                        else
                            for (int64_t r = 0; r < rows; r++)
                                for (int64_t j = 0; j < n; j++) c[j] = FMA1(x[r], row[r][j], c[j]);
                    }
                }
                for (int64_t i = 0; i < g->m * THIN_COLUMNS; i++) total[i] = p0 ? total[i] + sums[i] : sums[i];
            }
        } else {
            enum { L = 4 * LANES };
            for (int64_t j = 0; j < n; j++) {
                NAME(vec) acc[THIN][4] = {{{0}}};
                REAL rest[THIN] = {0};
                for (int64_t p0 = 0; p0 < g->k; p0 += THIN_COLUMNS) {
                    int64_t count = g->k - p0 < THIN_COLUMNS ? g->k - p0 : THIN_COLUMNS, p = 0;
                    const void *from = io_at(g->b, g->b_dtype, p0 * g->b_rs + (j0 + j) * g->b_cs);
                    const REAL *column = from;
                    if (g->b_dtype != REAL_DTYPE || g->b_rs != 1) {
                        NAME(io_load)(stage, from, g->b_dtype, g->b_rs, count);
                        column = stage;
                    }
                    for (int64_t i = 0; i < g->m; i++) {
                        const REAL *x = a + i * ka + p0;
                        for (p = 0; p + L <= count; p += L)
                            for (int v = 0; v < 4; v++)
                                acc[i][v] = NAME(fma)(*(const NAME(vec_u) *)(x + p + v * LANES),
                                                      *(const NAME(vec_u) *)(column + p + v * LANES), acc[i][v]);
                        for (; p < count; p++) rest[i] = FMA1(x[p], column[p], rest[i]);
                    }
                }
                for (int64_t i = 0; i < g->m; i++) {
                    REAL lane[LANES], sum = 0;
                    NAME(vec) all = (acc[i][0] + acc[i][1]) + (acc[i][2] + acc[i][3]);
                    memcpy(lane, &all, sizeof lane);
                    for (int l = 0; l < LANES; l++) sum += lane[l];
                    total[i * THIN_COLUMNS + j] = sum + rest[i];
                }
            }
        }
        for (int64_t j = 0; j < n; j += NR) {
            REAL bias[NR];
            int64_t nr = n - j < NR ? n - j : NR;
            if (g->bias && !g->bias_rs)
                NAME(io_load)(bias, io_at(g->bias, g->bias_dtype, (j0 + j) * g->bias_cs), g->bias_dtype, g->bias_cs,
                              nr);
            NAME(store)(g, 0, j0 + j, g->m, nr, total + j, THIN_COLUMNS, g->add, 1,
                        g->bias && !g->bias_rs ? bias : NULL);
        }
    }
}

/* Panels of NR columns from `begin` to `end`, where gemm_serial looks for them. */
static void NAME(pack_panels)(const lksi_gemm *g, REAL *to, int64_t begin, int64_t end, REAL *stage)
{
    NAME(plan) q = NAME(make_plan)(g);
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t j = panel * NR, j0 = j / q.nc * q.nc, n = g->n - j0 < q.nc ? g->n - j0 : q.nc;
        for (int64_t p0 = 0; p0 < g->k; p0 += q.kc) {
            int64_t kc = g->k - p0 < q.kc ? g->k - p0 : q.kc;
            REAL *at = to + j0 * g->k + p0 * ((n + NR - 1) / NR * NR) + (j - j0) * kc;
            NAME(pack_b)(at, g, p0, kc, j, g->n - j < NR ? g->n - j : NR, stage);
        }
    }
}

#undef CORE_
#undef CORE
#undef NAME
#undef LANES
#undef NR
#undef MC
#undef MB
#undef NC
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
#undef MR
#undef NV
#undef KC
#undef FMA1
