/* SPDX-License-Identifier: BSD-3-Clause
 *
 * same.c - do all ranks hold the same? Of the parameters' descriptions at creation, of their bits on request.
 */
#include "dp/inside.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define PIECE (4 << 20)

lks_status lksi_dp_first_difference(lks_dp *dp, const char *where, int n, const uint64_t *h, int *entry, int *rank)
{
    lksi_comm *c = dp->ctx->comm;
    lksi_base *b = &dp->ctx->base;
    *entry = -1;
    *rank = 0;
    /* One number each, which is all when all is well. */
    int64_t v[4] = {n, -(int64_t)n, (int64_t)XXH64(h, sizeof *h * (size_t)n, 0), 0};
    v[3] = ~v[2];
    TRY(lksi_host_reduce(c, where, v, 4, LKS_I64, LKS_MAX));
    if (v[0] == -v[1] && v[2] == ~v[3]) return LKS_OK;
    int most = (int)v[0];
    int64_t bytes = most * (int64_t)sizeof(uint64_t);
    uint64_t *mine = lksi_alloc(b, bytes), *all = lksi_alloc(b, bytes * c->size);
    lks_status st = lksi_agree(c, where, mine && all ? LKS_OK : LKS_ERR_MEMORY);
    if (st == LKS_OK) {
        memcpy(mine, h, sizeof *h * (size_t)n);
        for (int i = n; i < most; i++) mine[i] = 0; /* no such entry here */
        st = lksi_host_gather(c, where, mine, all, bytes);
    }
    for (int i = 0; i < most && st == LKS_OK && *entry < 0; i++)
        for (int s = 1; s < c->size && *entry < 0; s++)
            if (all[(int64_t)s * most + i] != all[i]) {
                *entry = i;
                *rank = s;
            }
    lksi_free(b, mine);
    lksi_free(b, all);
    return st;
}

static void describe(const lks_params *ps, int i, char *text, int bytes)
{
    char shape[256];
    if (i >= ps->n) {
        snprintf(text, (size_t)bytes, "nothing (it has %d)", ps->n);
        return;
    }
    const lksi_entry *e = &ps->e[i];
    snprintf(text, (size_t)bytes, "%s \"%.200s\" %s%s", e->is_buffer ? "buffer" : "parameter", e->name,
             lksi_tensor_text(e->t, shape, sizeof shape), e->is_buffer || e->trainable ? "" : " (frozen)");
}

lks_status lksi_dp_same_entries(lks_dp *dp, const char *where)
{
    lks_params *ps = dp->ps;
    lksi_comm *c = dp->ctx->comm;
    lksi_base *b = &dp->ctx->base;
    if (c->size == 1) return LKS_OK;
    int entry, rank;
    char text[2][512];
    uint64_t *h = lksi_alloc(b, (ps->n + 1) * (int64_t)sizeof *h);
    lks_status st = lksi_agree(c, where, h ? LKS_OK : LKS_ERR_MEMORY);
    if (st == LKS_OK) {
        for (int i = 0; i < ps->n; i++) {
            const lksi_entry *e = &ps->e[i];
            struct { int64_t dtype, ndim, kind, shape[LKS_MAX_DIMS]; } d = {e->t->v.dtype, e->t->v.ndim,
                                                                           e->is_buffer ? 2 : e->trainable, {0}};
            memcpy(d.shape, e->t->v.shape, sizeof(int64_t) * (size_t)e->t->v.ndim);
            h[i] = XXH64(e->name, strlen(e->name), XXH64(&d, sizeof d, 1)) | 1; /* 0 stands for none */
        }
        st = lksi_dp_first_difference(dp, where, ps->n, h, &entry, &rank);
    }
    lksi_free(b, h);
    if (st != LKS_OK || entry < 0) return st;
    describe(ps, entry, text[0], sizeof text[0]);
    memcpy(text[1], text[0], sizeof text[1]);
    TRY(lksi_host_broadcast(c, where, text[0], sizeof text[0], 0));
    TRY(lksi_host_broadcast(c, where, text[1], sizeof text[1], rank));
    return lksi_fail(b, LKS_ERR_MISMATCH, where, "entry %d differs: rank 0 has %s, rank %d has %s", entry, text[0],
                     rank, text[1]);
}

/* Hash of the bits of t, read piece by piece. */
static lks_status hash_bits(lks_dp *dp, const lks_tensor *t, char *piece, uint64_t *h)
{
    int64_t bytes = t->numel * lks_dtype_size(t->v.dtype);
    uint64_t sum = 0;
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        TRY(lksi_device_read(dp->ctx->dev, piece, (const char *)t->v.data + at, n));
        sum = XXH64(piece, (size_t)n, sum);
    }
    *h = sum;
    return LKS_OK;
}

lks_status lks_dp_check(lks_dp *dp)
{
    static const char where[] = "lks_dp_check";
    if (!dp) return LKS_ERR_ARGUMENT;
    lks_params *ps = dp->ps;
    lksi_comm *c = dp->ctx->comm;
    lksi_base *b = &dp->ctx->base;
    if (c->size == 1) return LKS_OK;
    int entry = -1, rank = 0;
    uint64_t *h = lksi_alloc(b, (ps->n + 1) * (int64_t)sizeof *h);
    char *piece = lksi_alloc(b, PIECE), text[512];
    lks_status st = h && piece ? LKS_OK : LKS_ERR_MEMORY;
    for (int i = 0; i < ps->n && st == LKS_OK; i++) st = hash_bits(dp, ps->e[i].t, piece, &h[i]);
    st = lksi_agree(c, where, st);
    if (st == LKS_OK) st = lksi_dp_first_difference(dp, where, ps->n, h, &entry, &rank);
    lksi_free(b, h);
    lksi_free(b, piece);
    if (st != LKS_OK || entry < 0) return st;
    describe(ps, entry, text, sizeof text);
    return lksi_fail(b, LKS_ERR_DRIFT, where, "%s has other bits on rank %d than on rank 0 (the first that differs)",
                     text, rank);
}
