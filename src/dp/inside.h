/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inside.h - the dp struct, private to the room.
 */
#ifndef LKSI_DP_INSIDE_H
#define LKSI_DP_INSIDE_H

#include "comm/comm.h"
#include "nn/params.h"
#include <lockstep/dp.h>

/* A run of slices that lie side by side in one gradient arena and are reduced together. */
typedef struct lksi_bucket {
    int arena;
    int64_t begin, end;  /* elements of the arena, padding between slices included */
    int64_t numel;       /* elements of parameters */
    int members, ready;
    char *what;          /* "gradient bucket 0 (fc2.weight ... fc2.bias)" */
    lksi_request *rq;
} lksi_bucket;

typedef struct lksi_dp_hook {
    lks_dp *dp;
    int entry;
    int64_t id; /* 0: none */
    int64_t stepped; /* version of the gradient that the last step took; -1: there was none */
} lksi_dp_hook;

struct lks_dp {
    lks_context *ctx;
    lks_params *ps;
    lksi_reducer reducer;
    int64_t bucket_bytes;
    double nominal;
    /* buckets, in the order they are reduced */
    lksi_bucket *bucket;
    int buckets, bucket_room;
    int *bucket_of;      /* per entry of the set, -1: none */
    uint8_t *seen;       /* per entry: its hook fired in this backward */
    int layout;          /* ps->layout_version of the buckets */
    int unchecked;       /* layout not compared over ranks yet */
    lksi_dp_hook *hook;  /* per entry */
    int hooks;
    /* the window: from one step to the next */
    int64_t micro;       /* backward calls in it */
    int failed;          /* this rank failed in one of them */
    int syncing;         /* inside the last backward */
    int synced;          /* the last backward is over */
    int finished;        /* all has been waited for */
    int next;            /* first bucket not started */
    double host_weight;
    int device_weight;   /* a weight tensor was added */
    double *weight;      /* device: [0] the sum, [1] what the host adds */
    int32_t *here;       /* device: this rank's gradients were not finite before the sum; NULL with one rank */
    lksi_request *weight_rq, *control_rq;
    lksi_request *present_rq;
    int64_t *present;    /* per entry: has any rank a gradient of it; being reduced while present_rq is set */
    int absent;          /* this rank lacks one */
    int64_t scale;       /* tensor.grad_scale of what the last backward makes */
    int64_t staged_ranks; /* control: ranks whose forward staged buffers */
    int staged_here;
    int64_t collectives;
    lksi_mover mover;
};

/* Lays the buckets out for the set's present trainable flags. Local. */
lks_status lksi_buckets_build(lks_dp *dp);
void lksi_buckets_free(lks_dp *dp);
/* Every rank has the same entries: names, dtypes, shapes, trainable flags. Collective. */
lks_status lksi_dp_same_entries(lks_dp *dp, const char *where);
/* First entry whose hash h[i] (n of them) is not the same on every rank: *entry, and a rank that differs from rank 0
 * there; -1 if all agree. Collective. */
lks_status lksi_dp_first_difference(lks_dp *dp, const char *where, int n, const uint64_t *h, int *entry, int *rank);

#endif
