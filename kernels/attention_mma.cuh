/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention_mma.cuh - attention of float16 and bfloat16 on tensor cores (mma.sync m16n8k16, sums in float32). Included
 * once, by attention.cu, whose notes hold here too: softmax as the tiles go by, probabilities made again for the
 * gradient, an order that sizes alone decide. A block is 4 warps with 16 rows each; the other side goes by in tiles.
 * Probabilities and the gradient of scores are rounded to the 16-bit dtype before they are multiplied.
 *
 * Fragments (lane = 4 g + t): A has rows g and g + 8, columns 2 t, 2 t + 1 and 8 more; B has those columns as its rows
 * and column g; C has rows g and g + 8, columns 2 t, 2 t + 1. So a pair of C tiles, packed, is an A.
 */
#ifndef LKSI_ATTENTION_MMA_CUH
#define LKSI_ATTENTION_MMA_CUH

#define MMA_THREADS 128
#define MMA_ROWS 64 /* of a block, 16 to a warp */
#define LOG2E 1.4426950408889634f

/* Tiles in shared memory: rows of DEEP + 8 elements, so that 8 rows begin in different banks. */
extern __shared__ __align__(16) uint16_t attention_tiles[];
template <int DEEP> struct deep { enum { LD = DEEP + 8, STEPS = DEEP / 16, TILES = DEEP / 8 }; };

__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ inline void matrices(uint32_t x[4], const uint16_t *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(p)) : "memory");
}
__device__ inline void matrices_turned(uint32_t x[4], const uint16_t *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(p)) : "memory");
}

template <class T> __device__ inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <> __device__ inline void mma<bf16>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void mma<f16>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class T> __device__ inline uint32_t pair_of(float low, float high)
{
    return (uint32_t)put<T>::of(low).bits | (uint32_t)put<T>::of(high).bits << 16;
}
template <class T> __device__ inline float times_pair(uint32_t x, uint32_t y, float sum)
{
    T a = {(uint16_t)x}, b = {(uint16_t)y}, c = {(uint16_t)(x >> 16)}, d = {(uint16_t)(y >> 16)};
    return fused(get<float>::of(c), get<float>::of(d), fused(get<float>::of(a), get<float>::of(b), sum));
}

/* 2^x */
__device__ inline float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* to = ROWS rows from `row` on, 0 beyond the `rows` that there are and beyond `depth` columns. */
template <class T, int DEEP, int ROWS>
__device__ inline void fetch(uint16_t *to, const lksi_view &v, const place &p, int64_t row, int64_t rows, int depth)
{
    const T *from = at<const T>(v, p.b, p.h, row);
    for (int i = threadIdx.x; i < ROWS * deep<DEEP>::TILES; i += MMA_THREADS) {
        int r = i / deep<DEEP>::TILES, c = i % deep<DEEP>::TILES * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row + r < rows && c < depth) x = *(const uint4 *)(const void *)(from + r * v.stride[2] + c);
        *(uint4 *)(void *)(to + r * deep<DEEP>::LD + c) = x;
    }
}

/* x[n] = rows of this warp times rows 8 n .. 8 n + 7 of z, N tiles of them. */
template <class T, int DEEP, int N>
__device__ inline void rows_by_rows(float (*x)[4], const uint16_t *a, const uint16_t *z)
{
    const int lane = threadIdx.x % 32;
    const uint16_t *from = z + (lane / 16 * 8 + lane % 8) * deep<DEEP>::LD + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N; n++) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
    for (int k = 0; k < deep<DEEP>::STEPS; k++) {
        uint32_t fa[4], fb[4];
        matrices(fa, a + (lane % 16) * deep<DEEP>::LD + k * 16 + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            matrices(fb, from + n * 8 * deep<DEEP>::LD + k * 16);
            mma<T>(x[n], fa, fb[0], fb[1]);
            mma<T>(x[n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* sum += p (16 by 8 N, packed here) times the 8 N rows of z. */
template <class T, int DEEP, int N>
__device__ inline void rows_by_columns(float (*sum)[4], float (*p)[4], const uint16_t *z)
{
    const int lane = threadIdx.x % 32;
    const uint16_t *from = z + (lane % 16) * deep<DEEP>::LD + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t fa[4] = {pair_of<T>(p[n][0], p[n][1]), pair_of<T>(p[n][2], p[n][3]),
                          pair_of<T>(p[n + 1][0], p[n + 1][1]), pair_of<T>(p[n + 1][2], p[n + 1][3])};
#pragma unroll
        for (int d = 0; d < deep<DEEP>::TILES; d += 2) {
            uint32_t fb[4];
            matrices_turned(fb, from + n * 8 * deep<DEEP>::LD + d * 8);
            mma<T>(sum[d], fa, fb[0], fb[1]);
            mma<T>(sum[d + 1], fa, fb[2], fb[3]);
        }
    }
}

/* This warp's rows of a result, by way of `room`, its 16 rows of a tile that nobody else uses. */
template <class T, int DEEP>
__device__ inline void write_rows(const lksi_view &v, const place &p, int64_t row, int64_t rows, int depth,
                                  uint16_t *room, float (*sum)[4], float low, float high)
{
    const int lane = threadIdx.x % 32;
    uint16_t *to = room + lane / 4 * deep<DEEP>::LD + lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < deep<DEEP>::TILES; n++) {
        *(uint32_t *)(void *)(to + n * 8) = pair_of<T>(sum[n][0] * low, sum[n][1] * low);
        *(uint32_t *)(void *)(to + 8 * deep<DEEP>::LD + n * 8) = pair_of<T>(sum[n][2] * high, sum[n][3] * high);
    }
    __syncwarp();
    T *y = at<T>(v, p.b, p.h, row);
    for (int i = lane; i < 16 * deep<DEEP>::TILES; i += 32) {
        int r = i / deep<DEEP>::TILES, c = i % deep<DEEP>::TILES * 8;
        if (row + r < rows && c < depth)
            *(uint4 *)(void *)(y + r * v.stride[2] + c) = *(const uint4 *)(const void *)(room + r * deep<DEEP>::LD + c);
    }
}

/* Score of query t and key j from their product, in units of log 2; -infinity where the key is not seen. */
__device__ inline float score(const heads &s, float x, float scale, const place &p, int64_t t, int64_t j, int64_t seen)
{
    x *= scale;
    if (j >= seen) return -INFINITY;
    if (s.mask.ndim < 0) return x;
    int64_t i = p.b * s.mask.stride[0] + p.h * s.mask.stride[1] + t * s.mask.stride[2] + j * s.mask.stride[3];
    if (s.mask.dtype == LKS_BOOL) return ((const uint8_t *)s.mask.data)[i] ? x : -INFINITY;
    return x + load<float>(s.mask.data, s.mask.dtype, i) * LOG2E;
}

/* Factor of dropout of one element. */
__device__ inline float draw_one(const heads &s, const place &p, int64_t t, int64_t j)
{
    const lksi_philox stream = lksi_philox_stream(s.rng->seed, s.rng->attempt, s.call);
    const uint64_t first = (uint64_t)s.offset + (uint64_t)(((p.b * s.head + p.h) * s.queries + t) * s.keys + j);
    uint32_t w[4];
    lksi_philox_block(&stream, first >> 2, w);
    const int k = (int)(first & 3);
    return ((k == 0 ? w[0] : k == 1 ? w[1] : k == 2 ? w[2] : w[3]) >> 8) >= s.limit ? (float)s.keep : 0.0f;
}

__device__ inline place place_at(const heads &s, int64_t item, int64_t tiles)
{
    place p;
    int64_t bh = item / tiles;
    p.row = (item - bh * tiles) * MMA_ROWS;
    p.column = 0;
    p.b = bh / s.head;
    p.h = bh - p.b * s.head;
    return p;
}

template <class T, int DEEP>
__global__ void __launch_bounds__(MMA_THREADS) mma_attend(const heads s, int64_t items, int64_t tiles)
{
    enum { KEYS = 64, N = KEYS / 8 };
    uint16_t *qs = attention_tiles, *ks = qs + MMA_ROWS * deep<DEEP>::LD, *vs = ks + KEYS * deep<DEEP>::LD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, two = lane % 4 * 2;
    const int depth = (int)s.depth;
    const float scale = (float)s.scale * LOG2E;
    uint16_t *mine = qs + warp * 16 * deep<DEEP>::LD;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_at(s, item, tiles);
        const int64_t row = p.row + warp * 16, t[2] = {row + g, row + g + 8};
        const int64_t seen[2] = {seen_keys(s, t[0]), seen_keys(s, t[1])};
        const int64_t end = p.row + MMA_ROWS < s.queries ? p.row + MMA_ROWS : s.queries, most = seen_keys(s, end - 1);
        float sum[deep<DEEP>::TILES][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < deep<DEEP>::TILES; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
        __syncthreads();
        fetch<T, DEEP, MMA_ROWS>(qs, s.q, p, p.row, s.queries, depth);
        for (int64_t j = 0; j < most; j += KEYS) {
            float x[N][4];
            __syncthreads();
            fetch<T, DEEP, KEYS>(ks, s.k, p, j, s.keys, depth);
            fetch<T, DEEP, KEYS>(vs, s.v, p, j, s.keys, depth);
            __syncthreads();
            rows_by_rows<T, DEEP, N>(x, mine, ks);
            float high[2] = {top[0], top[1]}, from[2], shrink[2];
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[n][i] = score(s, x[n][i], scale, p, t[i / 2], j + n * 8 + two + i % 2, seen[i / 2]);
                    high[i / 2] = x[n][i] > high[i / 2] ? x[n][i] : high[i / 2];
                }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                for (int half = 2; half > 0; half /= 2) {
                    float other = __shfl_xor_sync(0xffffffffu, high[r], half);
                    high[r] = other > high[r] ? other : high[r];
                }
                from[r] = high[r] == -INFINITY ? 0.0f : high[r];
                shrink[r] = power(top[r] - from[r]);
                top[r] = high[r];
                total[r] *= shrink[r];
            }
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[n][i] = power(x[n][i] - from[i / 2]);
                    total[i / 2] += x[n][i];
                    if (s.drops && j + n * 8 + two + i % 2 < seen[i / 2])
                        x[n][i] *= draw_one(s, p, t[i / 2], j + n * 8 + two + i % 2);
                }
#pragma unroll
            for (int n = 0; n < deep<DEEP>::TILES; n++) {
                sum[n][0] *= shrink[0], sum[n][1] *= shrink[0];
                sum[n][2] *= shrink[1], sum[n][3] *= shrink[1];
            }
            rows_by_columns<T, DEEP, N>(sum, x, vs);
        }
        if (most <= 0) __syncthreads(); /* nobody writes to what is a warp's own any more */
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int half = 2; half > 0; half /= 2) total[r] += __shfl_xor_sync(0xffffffffu, total[r], half);
            factor[r] = total[r] == 0 ? 0.0f : 1 / total[r]; /* a row that sees nothing is 0 */
            if (two == 0 && t[r] < s.queries)
                *at<float>(s.lse, p.b, p.h, t[r]) =
                    (float)((double)top[r] * 0.6931471805599453 + log((double)total[r]));
        }
        write_rows<T, DEEP>(s.y, p, row, s.queries, depth, mine, sum, factor[0], factor[1]);
    }
}

/* dq, and delta (dy times y of each query) for mma_back_keys. */
template <class T, int DEEP>
__global__ void __launch_bounds__(MMA_THREADS)
    mma_back_queries(const heads s, int64_t items, int64_t tiles, float *delta)
{
    enum { KEYS = 32, N = KEYS / 8 };
    uint16_t *qs = attention_tiles, *ds = qs + MMA_ROWS * deep<DEEP>::LD;
    uint16_t *ks = ds + MMA_ROWS * deep<DEEP>::LD, *vs = ks + KEYS * deep<DEEP>::LD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, two = lane % 4 * 2;
    const int depth = (int)s.depth;
    const float scale = (float)s.scale * LOG2E;
    uint16_t *mine = qs + warp * 16 * deep<DEEP>::LD, *dmine = ds + warp * 16 * deep<DEEP>::LD;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_at(s, item, tiles);
        const int64_t row = p.row + warp * 16, t[2] = {row + g, row + g + 8};
        const int64_t seen[2] = {seen_keys(s, t[0]), seen_keys(s, t[1])};
        const int64_t end = p.row + MMA_ROWS < s.queries ? p.row + MMA_ROWS : s.queries, most = seen_keys(s, end - 1);
        float sum[deep<DEEP>::TILES][4], d[2], lse[2];
#pragma unroll
        for (int n = 0; n < deep<DEEP>::TILES; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
        __syncthreads();
        fetch<T, DEEP, MMA_ROWS>(qs, s.q, p, p.row, s.queries, depth);
        fetch<T, DEEP, MMA_ROWS>(ds, s.dy, p, p.row, s.queries, depth);
        __syncthreads();
        /* Two lanes to a row of y. */
        float own = 0;
        const int64_t r = row + lane / 2;
        for (int c = lane % 2 * 8; c < depth && r < s.queries; c += 16) {
            uint4 y = *(const uint4 *)(const void *)(at<const T>(s.y, p.b, p.h, r) + c);
            uint4 dy = *(const uint4 *)(const void *)(dmine + lane / 2 * deep<DEEP>::LD + c);
            own = times_pair<T>(y.x, dy.x, own), own = times_pair<T>(y.y, dy.y, own);
            own = times_pair<T>(y.z, dy.z, own), own = times_pair<T>(y.w, dy.w, own);
        }
        own += __shfl_xor_sync(0xffffffffu, own, 1);
        if (lane % 2 == 0 && r < s.queries) delta[(p.b * s.head + p.h) * s.queries + r] = own;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            d[i] = __shfl_sync(0xffffffffu, own, (g + 8 * i) * 2);
            lse[i] = t[i] < s.queries ? *at<const float>(s.lse, p.b, p.h, t[i]) * LOG2E : -INFINITY;
        }
        for (int64_t j = 0; j < most; j += KEYS) {
            float x[N][4], y[N][4];
            __syncthreads();
            fetch<T, DEEP, KEYS>(ks, s.k, p, j, s.keys, depth);
            fetch<T, DEEP, KEYS>(vs, s.v, p, j, s.keys, depth);
            __syncthreads();
            rows_by_rows<T, DEEP, N>(x, mine, ks);
            rows_by_rows<T, DEEP, N>(y, dmine, vs);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int64_t key = j + n * 8 + two + i % 2, query = t[i / 2];
                    const bool shown = key < seen[i / 2] && lse[i / 2] != -INFINITY;
                    float prob = shown ? power(score(s, x[n][i], scale, p, query, key, s.keys) - lse[i / 2]) : 0.0f;
                    float f = s.drops && shown ? draw_one(s, p, query, key) : 1.0f;
                    x[n][i] = shown ? prob * (y[n][i] * f - d[i / 2]) * (float)s.scale : 0.0f;
                }
            rows_by_columns<T, DEEP, N>(sum, x, ks);
        }
        write_rows<T, DEEP>(s.dq, p, row, s.queries, depth, mine, sum, 1, 1);
    }
}

/* dk and dv: rows are keys, what goes by are queries. */
template <class T, int DEEP>
__global__ void __launch_bounds__(MMA_THREADS)
    mma_back_keys(const heads s, int64_t items, int64_t tiles, const float *delta)
{
    enum { QUERIES = 32, N = QUERIES / 8 };
    __shared__ float lse[QUERIES], d[QUERIES];
    uint16_t *ks = attention_tiles, *vs = ks + MMA_ROWS * deep<DEEP>::LD;
    uint16_t *qs = vs + MMA_ROWS * deep<DEEP>::LD, *ds = qs + QUERIES * deep<DEEP>::LD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, two = lane % 4 * 2;
    const int depth = (int)s.depth;
    const float scale = (float)s.scale * LOG2E;
    uint16_t *kmine = ks + warp * 16 * deep<DEEP>::LD, *vmine = vs + warp * 16 * deep<DEEP>::LD;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const place p = place_at(s, item, tiles);
        const int64_t row = p.row + warp * 16;
        float dk[deep<DEEP>::TILES][4], dv[deep<DEEP>::TILES][4];
#pragma unroll
        for (int n = 0; n < deep<DEEP>::TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = 0;
        int64_t t0 = s.causal ? p.row - (s.keys - s.queries) : 0; /* the first query that sees a key of these */
        __syncthreads();
        fetch<T, DEEP, MMA_ROWS>(ks, s.k, p, p.row, s.keys, depth);
        fetch<T, DEEP, MMA_ROWS>(vs, s.v, p, p.row, s.keys, depth);
        t0 = t0 < 0 ? 0 : t0 / QUERIES * QUERIES;
        if (t0 >= s.queries) __syncthreads(); /* nobody writes to what is a warp's own any more */
        for (; t0 < s.queries; t0 += QUERIES) {
            float x[N][4], y[N][4];
            __syncthreads();
            fetch<T, DEEP, QUERIES>(qs, s.q, p, t0, s.queries, depth);
            fetch<T, DEEP, QUERIES>(ds, s.dy, p, t0, s.queries, depth);
            if (threadIdx.x < QUERIES) {
                const int64_t t = t0 + threadIdx.x;
                lse[threadIdx.x] = t < s.queries ? *at<const float>(s.lse, p.b, p.h, t) * LOG2E : -INFINITY;
                d[threadIdx.x] = t < s.queries ? delta[(p.b * s.head + p.h) * s.queries + t] : 0.0f;
            }
            __syncthreads();
            rows_by_rows<T, DEEP, N>(x, kmine, qs);
            rows_by_rows<T, DEEP, N>(y, vmine, ds);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at_query = n * 8 + two + i % 2;
                    const int64_t key = row + g + i / 2 * 8, query = t0 + at_query;
                    const bool shown = key < seen_keys(s, query) && lse[at_query] != -INFINITY;
                    float prob = shown ? power(score(s, x[n][i], scale, p, query, key, s.keys) - lse[at_query]) : 0.0f;
                    float f = s.drops && shown ? draw_one(s, p, query, key) : 1.0f;
                    x[n][i] = prob * f;
                    y[n][i] = shown ? prob * (y[n][i] * f - d[at_query]) * (float)s.scale : 0.0f;
                }
            rows_by_columns<T, DEEP, N>(dv, x, ds);
            rows_by_columns<T, DEEP, N>(dk, y, qs);
        }
        write_rows<T, DEEP>(s.dk, p, row, s.keys, depth, kmine, dk, 1, 1);
        write_rows<T, DEEP>(s.dv, p, row, s.keys, depth, vmine, dv, 1, 1);
    }
}

/* Rows that move 16 bytes at a time. */
static bool mma_view(const lksi_view &v)
{
    if (v.stride[3] != 1 || !aligned(v.data)) return false;
    for (int d = 0; d < 3; d++)
        if (v.shape[d] > 1 && v.stride[d] % 8) return false;
    return true;
}
static bool mma_fits(const heads &s)
{
    return s.depth == s.value_depth && s.depth % 8 == 0 && s.depth >= 8 && s.depth <= 128 && s.queries > 0 &&
           s.keys > 0 && mma_view(s.q) && mma_view(s.k) && mma_view(s.v) && mma_view(s.y);
}
static bool mma_fits_back(const heads &s)
{
    return mma_fits(s) && mma_view(s.dy) && mma_view(s.dq) && mma_view(s.dk) && mma_view(s.dv);
}

template <class T, int DEEP> static lks_status mma_forward(cudaStream_t stream, const lksi_args *a, const heads &s)
{
    const int bytes = (MMA_ROWS + 2 * 64) * deep<DEEP>::LD * 2;
    int64_t tiles = (s.queries + MMA_ROWS - 1) / MMA_ROWS, items = s.batch * s.head * tiles;
    room_for(mma_attend<T, DEEP>, bytes);
    mma_attend<T, DEEP><<<blocks_for(items, 1), MMA_THREADS, bytes, stream>>>(s, items, tiles);
    return lksi_cuda_launched(a);
}

template <class T, int DEEP>
static lks_status mma_backward(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const heads &s)
{
    const int bytes = 2 * (MMA_ROWS + 32) * deep<DEEP>::LD * 2;
    void *delta;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 0, s.batch * s.head * s.queries * 4 + 16, &delta);
    if (status != LKS_OK) return status;
    int64_t tiles = (s.queries + MMA_ROWS - 1) / MMA_ROWS, items = s.batch * s.head * tiles;
    room_for(mma_back_queries<T, DEEP>, bytes);
    mma_back_queries<T, DEEP><<<blocks_for(items, 1), MMA_THREADS, bytes, stream>>>(s, items, tiles, (float *)delta);
    tiles = (s.keys + MMA_ROWS - 1) / MMA_ROWS, items = s.batch * s.head * tiles;
    room_for(mma_back_keys<T, DEEP>, bytes);
    mma_back_keys<T, DEEP><<<blocks_for(items, 1), MMA_THREADS, bytes, stream>>>(s, items, tiles, (const float *)delta);
    return lksi_cuda_launched(a);
}

/* By depth: 16, 32, 64 or 128 columns in a tile. */
template <class T> static lks_status mma_forward_any(cudaStream_t stream, const lksi_args *a, const heads &s)
{
    if (s.depth <= 16) return mma_forward<T, 16>(stream, a, s);
    if (s.depth <= 32) return mma_forward<T, 32>(stream, a, s);
    if (s.depth <= 64) return mma_forward<T, 64>(stream, a, s);
    return mma_forward<T, 128>(stream, a, s);
}
template <class T>
static lks_status mma_backward_any(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const heads &s)
{
    if (s.depth <= 16) return mma_backward<T, 16>(cuda, stream, a, s);
    if (s.depth <= 32) return mma_backward<T, 32>(cuda, stream, a, s);
    if (s.depth <= 64) return mma_backward<T, 64>(cuda, stream, a, s);
    return mma_backward<T, 128>(cuda, stream, a, s);
}

#endif
