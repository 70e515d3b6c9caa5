/* SPDX-License-Identifier: BSD-3-Clause
 *
 * buckets.c - which gradients are reduced together. Plain bookkeeping, no communication.
 *
 * Parameters are taken in reverse order of creation, since backward makes their gradients about in that order. A bucket
 * is a run of neighbours in one arena, so nothing is copied; it is closed when it is large enough, and the first is
 * small so that reduction starts early. A frozen parameter is in no bucket and ends the run it would lie in.
 */
#include "dp/inside.h"
#include <stdio.h>
#include <string.h>

#define FIRST_BYTES (1 << 20)

void lksi_buckets_free(lks_dp *dp)
{
    lksi_base *b = &dp->ctx->base;
    for (int i = 0; i < dp->buckets; i++) lksi_free(b, dp->bucket[i].what);
    lksi_free(b, dp->bucket);
    dp->bucket = NULL;
    dp->buckets = dp->bucket_room = 0;
}

static lks_status name_bucket(lks_dp *dp, int k, int first, int last)
{
    lksi_bucket *q = &dp->bucket[k];
    char text[160];
    snprintf(text, sizeof text, "gradient bucket %d (%.40s%s%.40s)", k, dp->ps->e[first].name,
             first == last ? "" : " ... ", first == last ? "" : dp->ps->e[last].name);
    q->what = lksi_strdup(&dp->ctx->base, text);
    return q->what ? LKS_OK : LKS_ERR_MEMORY;
}

/* An open run of each arena becomes a bucket at the end of the list. */
typedef struct run {
    int members, first, last; /* entries: highest and lowest */
    int64_t begin, end, numel;
} run;

static lks_status close_run(lks_dp *dp, int arena, run *r, int *list, int first_entry)
{
    if (!r->members) return LKS_OK;
    if (dp->buckets == dp->bucket_room) {
        int room = dp->bucket_room ? 2 * dp->bucket_room : 16;
        lksi_bucket *q = lksi_realloc(&dp->ctx->base, dp->bucket, dp->bucket_room * (int64_t)sizeof *q,
                                      room * (int64_t)sizeof *q);
        if (!q) return LKS_ERR_MEMORY;
        dp->bucket = q;
        dp->bucket_room = room;
    }
    int k = dp->buckets++;
    dp->bucket[k] = (lksi_bucket){.arena = arena, .begin = r->begin, .end = r->end, .numel = r->numel,
                                  .members = r->members};
    for (int i = first_entry; i < dp->ps->n; i++)
        if (list[i] == -2 - arena) list[i] = k;
    lks_status st = name_bucket(dp, k, r->last, r->first);
    *r = (run){0};
    return st;
}

lks_status lksi_buckets_build(lks_dp *dp)
{
    lks_params *ps = dp->ps;
    run open[LKSI_ARENAS] = {{0}};
    lksi_buckets_free(dp);
    for (int i = 0; i < ps->n; i++) dp->bucket_of[i] = -1;
    for (int i = ps->n - 1; i >= 0; i--) {
        const lksi_entry *e = &ps->e[i];
        if (e->is_buffer) continue;
        run *r = &open[e->arena];
        if (!e->trainable) {
            TRY(close_run(dp, e->arena, r, dp->bucket_of, i));
            continue;
        }
        const lksi_slice *s = &ps->arena[e->arena]->slice[e->slice];
        if (!r->members) {
            r->first = i;
            r->end = s->offset + s->numel;
        }
        r->last = i;
        r->begin = s->offset;
        r->numel += s->numel;
        r->members++;
        dp->bucket_of[i] = -2 - e->arena; /* in the open run of that arena */
        int64_t bytes = (r->end - r->begin) * lks_dtype_size(e->arena);
        int64_t limit = dp->buckets || dp->bucket_bytes < FIRST_BYTES ? dp->bucket_bytes : FIRST_BYTES;
        if (bytes >= limit) TRY(close_run(dp, e->arena, r, dp->bucket_of, i));
    }
    for (int k = 0; k < LKSI_ARENAS; k++) TRY(close_run(dp, k, &open[k], dp->bucket_of, 0));
    dp->layout = ps->layout_version;
    return LKS_OK;
}
