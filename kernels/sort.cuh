/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sort.cuh - a stable radix sort of (key, place) by key, 8 bits at a time: for index.cu, place.cu and sort.cu. Nothing
 * is allocated; order and bits are the same each time.
 */
#ifndef LKSI_SORT_CUH
#define LKSI_SORT_CUH

#include "common.cuh"

namespace lksi {

#define DIGITS 256
#define SORT_ITEMS 2048 /* of a block: 8 warps, 256 each */
#define SORT_WARPS (LKSI_THREADS / 32)

/* counts[digit][block] */
template <class K>
__global__ void __launch_bounds__(LKSI_THREADS)
    sort_count(const K *key, int64_t n, int shift, uint32_t *counts, int blocks)
{
    __shared__ uint32_t mine[DIGITS];
    mine[threadIdx.x] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * SORT_ITEMS;
    for (int64_t i = first + threadIdx.x; i < first + SORT_ITEMS && i < n; i += LKSI_THREADS)
        atomicAdd(&mine[(uint32_t)(key[i] >> shift) & (DIGITS - 1)], 1u); /* integers: any order gives the same */
    __syncthreads();
    counts[(int64_t)threadIdx.x * blocks + blockIdx.x] = mine[threadIdx.x];
}

/* Exclusive sums of n counts in place, by one block. */
static __global__ void __launch_bounds__(1024) sort_scan(uint32_t *counts, int64_t n)
{
    __shared__ uint32_t room[32];
    __shared__ uint32_t carry;
    if (threadIdx.x == 0) carry = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t base = 0; base < n; base += 1024) {
        int64_t i = base + threadIdx.x;
        uint32_t own = i < n ? counts[i] : 0, x = own, before = carry;
        for (int d = 1; d < 32; d *= 2) {
            uint32_t y = __shfl_up_sync(0xffffffffu, x, d);
            if (lane >= d) x += y;
        }
        if (lane == 31) room[warp] = x;
        __syncthreads();
        if (warp == 0) {
            uint32_t t = room[lane];
            for (int d = 1; d < 32; d *= 2) {
                uint32_t y = __shfl_up_sync(0xffffffffu, t, d);
                if (lane >= d) t += y;
            }
            room[lane] = t;
        }
        __syncthreads();
        uint32_t sum = before + (warp ? room[warp - 1] : 0) + x;
        if (i < n) counts[i] = sum - own;
        __syncthreads();
        if (threadIdx.x == 1023) carry = sum;
        __syncthreads();
    }
}

/* order_in NULL: the first pass, places are 0, 1, 2... */
template <class K>
__global__ void __launch_bounds__(LKSI_THREADS)
    sort_place(const K *key, const uint32_t *order, int64_t n, int shift, const uint32_t *counts, int blocks,
               K *key_out, uint32_t *order_out)
{
    __shared__ uint32_t at[SORT_WARPS][DIGITS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = SORT_ITEMS / SORT_WARPS;
    for (int w = 0; w < SORT_WARPS; w++) at[w][threadIdx.x] = 0;
    __syncthreads();
    const int64_t first = (int64_t)blockIdx.x * SORT_ITEMS + warp * each;
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; j < each; j += 32) {
            int64_t i = first + j + lane;
            bool inside = i < n;
            unsigned active = __ballot_sync(0xffffffffu, inside);
            if (!inside) continue;
            K k = key[i];
            uint32_t digit = (uint32_t)(k >> shift) & (DIGITS - 1);
            unsigned same = __match_any_sync(active, digit), below = same & ((1u << lane) - 1);
            uint32_t start = at[warp][digit];
            __syncwarp(active);
            if (below == 0) at[warp][digit] = start + __popc(same);
            __syncwarp(active);
            if (pass == 1) {
                uint32_t to = start + __popc(below);
                key_out[to] = k;
                order_out[to] = order ? order[i] : (uint32_t)i;
            }
        }
        __syncthreads();
        if (pass == 0) {
            uint32_t sum = counts[(int64_t)threadIdx.x * blocks + blockIdx.x];
            for (int w = 0; w < SORT_WARPS; w++) {
                uint32_t c = at[w][threadIdx.x];
                at[w][threadIdx.x] = sum;
                sum += c;
            }
            __syncthreads();
        }
    }
}

/* Memory of one sort: keys and places twice, and counts. */
template <class K> struct sorter {
    K *key[2];
    uint32_t *order[2], *counts;
    int64_t n;
    int now; /* where the sorted ones are */
};

static inline int sort_blocks(int64_t n) { return (int)((n + SORT_ITEMS - 1) / SORT_ITEMS); }

template <class K> static int64_t sort_bytes(int64_t n)
{
    int64_t words = (n + 64) / 64 * 64;
    return 2 * words * (int64_t)(sizeof(K) + 4) + (int64_t)DIGITS * (sort_blocks(n) + 1) * 4;
}

/* p: sort_bytes of memory; keys go to key[0]. n < 2^32. */
template <class K> static sorter<K> sorter_of(void *p, int64_t n)
{
    int64_t words = (n + 64) / 64 * 64;
    sorter<K> s = {};
    s.n = n;
    s.key[0] = (K *)p, s.key[1] = s.key[0] + words;
    s.order[0] = (uint32_t *)(s.key[1] + words), s.order[1] = s.order[0] + words;
    s.counts = s.order[1] + words;
    return s;
}

/* Sorts by bits [0, bits) of the keys; fresh: places are 0, 1, 2..., else those of order[now]. Bits 0: one pass that
 * writes the places. */
template <class K> static void sort_by(cudaStream_t stream, sorter<K> &s, int bits, bool fresh = true)
{
    const int blocks = sort_blocks(s.n);
    for (int shift = 0; s.n > 0 && (shift == 0 || shift < bits); shift += 8, s.now ^= 1) {
        sort_count<K><<<blocks, LKSI_THREADS, 0, stream>>>(s.key[s.now], s.n, shift, s.counts, blocks);
        sort_scan<<<1, 1024, 0, stream>>>(s.counts, (int64_t)DIGITS * blocks);
        sort_place<K><<<blocks, LKSI_THREADS, 0, stream>>>(s.key[s.now], shift || !fresh ? s.order[s.now] : NULL, s.n,
                                                           shift, s.counts, blocks, s.key[s.now ^ 1],
                                                           s.order[s.now ^ 1]);
    }
}

/* Bits that tell 0 from most apart. */
static inline int bits_of(uint64_t most)
{
    int b = 0;
    while (b < 64 && most >> b) b++;
    return b;
}

} // namespace lksi

#endif
