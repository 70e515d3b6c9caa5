/* SPDX-License-Identifier: BSD-3-Clause
 *
 * order.c - a keyed bijection of [0, n): a balanced Feistel network (Luby & Rackoff, 1988) on the smallest even
 * number of bits that holds n, walked until it falls below n (Black & Rogaway, 2002). The network permutes fewer than
 * 4 n numbers, so the walk takes less than four steps on average, and any place of an epoch costs the same: nothing
 * is shuffled, stored or replayed. Integers only: the same order on every machine.
 */
#include "data/order.h"

#define ROUNDS 8

/* splitmix64's finaliser: all output bits depend on all input bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t lksi_order(int64_t seed, int64_t epoch, int64_t n, int64_t k)
{
    if (n <= 1) return 0;
    int half = 1;
    while (half < 31 && (uint64_t)(n - 1) >> (2 * half)) half++;
    if ((uint64_t)(n - 1) >> (2 * half)) half = 32;
    uint64_t mask = (UINT64_C(1) << half) - 1, key[ROUNDS];
    uint64_t state = mix((uint64_t)seed + 0x9e3779b97f4a7c15u) ^ mix((uint64_t)epoch * 0xd1342543de82ef95u + 1);
    for (int i = 0; i < ROUNDS; i++) key[i] = mix(state + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u);
    uint64_t x = (uint64_t)k;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t t = left ^ (mix(right + key[i]) & mask);
            left = right;
            right = t;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

void lksi_share(int64_t n, int64_t parts, int64_t i, int64_t *first, int64_t *rows)
{
    int64_t q = n / parts, r = n % parts;
    *first = i * q + (i < r ? i : r);
    *rows = q + (i < r);
}
