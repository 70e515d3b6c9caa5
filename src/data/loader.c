/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loader.c - from a position to this rank's rows. Knows epochs, the order of samples, the shares of micro-batches and
 * ranks, and reading ahead; not what a sample is (text.c, arrays.c).
 *
 * With n training samples, position `at` is place k = at mod n of epoch at div n. The step takes total = min(batch, n
 * - k) samples: batches end with the epoch, and a batch larger than the data is the whole data. Row r of the step is
 * the sample at place k + r. Micro-batch m has the contiguous share m of `micros` of these rows, and a rank the
 * contiguous share `rank` of `size` of those (lksi_share): sizes differ by at most one, larger ones first, so with
 * more ranks than rows the last ranks have none.
 */
#include "data/loader.h"
#include "base/guard.h"
#include <string.h>

#define LEAVE_OUT (-1) /* the epoch number whose order chooses the validation samples of arrays */

uint64_t lksi_fingerprint(uint64_t h, const void *data, int64_t bytes)
{
    const unsigned char *p = data;
    for (int64_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

uint64_t lksi_fingerprint_name(uint64_t h, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return lksi_fingerprint(h, name, (int64_t)strlen(name) + 1);
}

lks_status lksi_loader_ready(lks_loader **l, lks_context *ctx, const char *where, lks_status status)
{
    if (status == LKS_OK && (*l)->train == 0)
        status = lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "no sample is left for training");
    status = lksi_agree(ctx->comm, where, status);
    if (status == LKS_OK) {
        /* Equal maximum of h and of ~h: every rank has the same. */
        int64_t h[2] = {(int64_t)(*l)->fingerprint, (int64_t)~(*l)->fingerprint};
        status = lksi_host_reduce(ctx->comm, where, h, 2, LKS_I64, LKS_MAX);
        if (status == LKS_OK && h[0] != ~h[1])
            status =
                lksi_fail(&ctx->base, LKS_ERR_MISMATCH, where,
                          "the data files differ between ranks (name, size or shape); every rank must see the same");
    }
    if (status != LKS_OK) lks_loader_destroy(l);
    return status;
}

void lks_loader_destroy(lks_loader **pl)
{
    if (!pl || !*pl) return;
    lks_loader *l = *pl;
    lksi_base *b = &l->ctx->base;
    lksi_prefetch_stop(b, &l->prefetch);
    if (l->state) l->source.close(l);
    for (int i = 0; i < 3; i++) {
        lksi_free(b, l->job[i].sample);
        lksi_free(b, l->job[i].piece);
        lksi_free(b, l->job[i].raw);
    }
    lksi_free(b, l->scratch[0]);
    lksi_free(b, l->scratch[1]);
    lksi_free(b, l);
    *pl = NULL;
}

lks_status lks_loader_set_prefetch(lks_loader *l, int on)
{
    if (!l) return LKS_ERR_ARGUMENT;
    if (!on) {
        lksi_prefetch_stop(&l->ctx->base, &l->prefetch);
        l->ahead = 0;
        return LKS_OK;
    }
    return l->prefetch ? LKS_OK : lksi_prefetch_start(&l->ctx->base, &l->prefetch);
}

int64_t lks_loader_train_count(const lks_loader *l) { return l ? l->train : LKS_ERR_ARGUMENT; }
int64_t lks_loader_valid_count(const lks_loader *l) { return l ? l->valid : LKS_ERR_ARGUMENT; }
int lks_loader_input_ndim(const lks_loader *l) { return l ? l->input_ndim : LKS_ERR_ARGUMENT; }
const int64_t *lks_loader_input_shape(const lks_loader *l) { return l ? l->input_shape : NULL; }
int lks_loader_target_ndim(const lks_loader *l) { return l ? l->target_ndim : LKS_ERR_ARGUMENT; }
int64_t lks_loader_target_dim(const lks_loader *l, int dim)
{
    if (!l || dim < 0 || dim >= l->target_ndim) return LKS_ERR_ARGUMENT;
    return l->target_shape[dim];
}
lks_dtype lks_loader_dtype(const lks_loader *l, int column)
{
    return l && column >= 0 && column < (l->target_ndim < 0 ? 1 : 2) ? l->dtype[column] : LKS_DTYPE_NONE;
}
int64_t lks_loader_fingerprint(const lks_loader *l) { return l ? (int64_t)l->fingerprint : LKS_ERR_ARGUMENT; }

/* Sample at place k of an epoch, of the validation part, of the data. */
int64_t lksi_loader_sample(const lks_loader *l, int part, int64_t seed, int64_t epoch, int64_t k)
{
    if (part == LKSI_PART_ALL) return k;
    int valid = part == LKSI_PART_VALID;
    int64_t s = valid ? k : lksi_order(seed, epoch, l->train, k);
    if (!l->shuffled_split) return s;
    return lksi_order(seed, LEAVE_OUT, l->train + l->valid, valid ? l->train + s : s);
}

int64_t lks_loader_index(const lks_loader *l, int64_t epoch, int64_t k)
{
    if (!l || epoch < 0 || k < 0 || k >= l->train) return LKS_ERR_ARGUMENT;
    return lksi_loader_sample(l, LKSI_PART_TRAIN, l->ctx->seed, epoch, k);
}

int64_t lks_loader_classes(lks_loader *l)
{
    LKSI_GUARD;
    if (!l) return LKS_ERR_ARGUMENT;
    lks_status status = LKS_OK;
    int64_t n = l->source.classes(l, &status);
    status = lksi_agree(l->ctx->comm, "lks_loader_classes", status);
    if (status == LKS_OK) status = lksi_host_reduce(l->ctx->comm, "lks_loader_classes", &n, 1, LKS_I64, LKS_MAX);
    return status ? status : n + 1;
}

void *lksi_loader_scratch(lks_loader *l, int which, int64_t bytes)
{
    if (l->scratch_room[which] < bytes) {
        lksi_free(&l->ctx->base, l->scratch[which]);
        l->scratch_room[which] = 0;
        l->scratch[which] = lksi_alloc(&l->ctx->base, bytes);
        if (l->scratch[which]) l->scratch_room[which] = bytes;
    }
    return l->scratch[which];
}

/* At least `want` elements; contents are lost. */
static lks_status room(lksi_base *b, void *block, int64_t *have, int64_t want, int64_t size)
{
    void *p;
    int64_t bytes;
    if (*have >= want) return LKS_OK;
    memcpy(&p, block, sizeof p);
    lksi_free(b, p);
    *have = 0;
    p = lksi_mul_fits(want, size, &bytes) ? lksi_alloc(b, bytes) : NULL;
    memcpy(block, &p, sizeof p);
    if (!p)
        return lksi_fail(b, LKS_ERR_MEMORY, "lks_loader", "a batch of %lld rows does not fit in memory",
                         (long long)want);
    *have = want;
    return LKS_OK;
}

/* Pieces of a job whose samples are set. */
static lks_status locate(lks_loader *l, lksi_job *job)
{
    lksi_base *b = &l->ctx->base;
    int64_t rows = job->rows, pieces, bytes;
    job->pieces = 0;
    job->error = 0;
    if (!l->source.pieces) return LKS_OK;
    if (!lksi_mul_fits(rows, l->source.pieces, &pieces) || !lksi_mul_fits(rows, l->source.raw_bytes, &bytes))
        return lksi_fail(b, LKS_ERR_MEMORY, "lks_loader", "a batch of %lld rows does not fit in memory",
                         (long long)rows);
    TRY(room(b, &job->piece, &job->piece_room, pieces, (int64_t)sizeof *job->piece));
    TRY(room(b, &job->raw, &job->raw_room, bytes, 1));
    for (int64_t i = 0; i < rows; i++)
        l->source.locate(l, job->part == LKSI_PART_VALID, job->sample[i], job->raw + i * l->source.raw_bytes,
                         job->piece + i * l->source.pieces);
    job->pieces = pieces;
    return LKS_OK;
}

/* Fills a job whose key is set: rows, samples, pieces. */
static lks_status prepare(lks_loader *l, lksi_job *job)
{
    lksi_base *b = &l->ctx->base;
    int epochs = job->part == LKSI_PART_TRAIN;
    int64_t n = (job->part == LKSI_PART_VALID ? 0 : l->train) + (job->part == LKSI_PART_TRAIN ? 0 : l->valid);
    int64_t epoch = epochs ? job->at / n : 0, k = epochs ? job->at % n : job->at, first, rows, part = 0, part_rows;
    job->total = k >= n ? 0 : n - k < job->batch ? n - k : job->batch;
    lksi_share(job->total, job->micros, job->micro, &part, &part_rows);
    lksi_share(part_rows, l->ctx->base.size, l->ctx->base.rank, &first, &rows);
    job->first = part + first;
    job->rows = rows;
    TRY(room(b, &job->sample, &job->sample_room, rows, (int64_t)sizeof *job->sample));
    for (int64_t i = 0; i < rows; i++)
        job->sample[i] = lksi_loader_sample(l, job->part, job->seed, epoch, k + job->first + i);
    return locate(l, job);
}

static lks_status read_failed(lks_loader *l, const char *where, const lksi_job *job)
{
    return lksi_fail(&l->ctx->base, LKS_ERR_IO, where, "%s cannot be read at byte %lld: %s", job->error_file->path,
                     (long long)job->error_offset,
                     job->error < 0 ? "it has become shorter since it was opened" : strerror(job->error));
}

lks_status lksi_loader_fetch(lks_loader *l, const char *where, lksi_job *job, const int64_t *sample, int64_t rows,
                             int column)
{
    TRY(room(&l->ctx->base, &job->sample, &job->sample_room, rows, (int64_t)sizeof *job->sample));
    memcpy(job->sample, sample, (size_t)rows * sizeof *sample);
    job->rows = rows;
    TRY(locate(l, job));
    if (l->source.pieces > 1) { /* only those of the column */
        for (int64_t i = 0; i < rows; i++) job->piece[i] = job->piece[i * l->source.pieces + column];
        job->pieces = rows;
    }
    lksi_job_read(job);
    return job->error ? read_failed(l, where, job) : LKS_OK;
}

static int same_key(const lksi_job *a, const lksi_job *b)
{
    return a->at == b->at && a->batch == b->batch && a->micro == b->micro && a->micros == b->micros &&
           a->seed == b->seed;
}

static lks_status deliver(lks_loader *l, const char *where, lksi_job *job, lks_tensor **input, lks_tensor **target)
{
    if (job->error) return read_failed(l, where, job);
    if (job->rows == 0) return LKS_OK;
    return l->source.deliver(l, where, job, input, target);
}

lks_status lks_loader_train(lks_loader *l, int64_t at, int64_t batch, int micro, int micros, lks_tensor **input,
                            lks_tensor **target, int64_t *rows, int64_t *total)
{
    LKSI_GUARD;
    static const char where[] = "lks_loader_train";
    if (!l || !input || !target || !rows || !total) return LKS_ERR_ARGUMENT;
    lks_context *ctx = l->ctx;
    *input = *target = LKS_NONE;
    *rows = *total = 0;
    if (at < 0 || batch < 1 || micros < 1 || micro < 0 || micro >= micros)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "position %lld, batch %lld, micro-batch %d of %d",
                         (long long)at, (long long)batch, micro, micros);
    lksi_job key = {.at = at, .batch = batch, .micro = micro, .micros = micros, .seed = ctx->seed};
    lksi_job *job = &l->job[0];
    if (l->ahead) lksi_prefetch_wait(l->prefetch);
    if (l->ahead && same_key(&l->job[1], &key) && !l->job[1].error) {
        lksi_job swap = l->job[0];
        l->job[0] = l->job[1];
        l->job[1] = swap;
    } else {
        job->at = at, job->batch = batch, job->micro = micro, job->micros = micros, job->seed = ctx->seed;
        job->part = LKSI_PART_TRAIN;
        TRY(prepare(l, job));
        lksi_job_read(job);
    }
    l->ahead = 0;
    if (l->prefetch && l->source.pieces) {
        lksi_job *next = &l->job[1];
        int more = micro + 1 < micros;
        next->at = more ? at : at + job->total;
        next->batch = batch, next->micros = micros, next->seed = ctx->seed;
        next->micro = more ? micro + 1 : 0;
        next->part = LKSI_PART_TRAIN;
        TRY(prepare(l, next));
        lksi_prefetch_submit(l->prefetch, next);
        l->ahead = 1;
    }
    TRY(deliver(l, where, job, input, target));
    *rows = job->rows;
    *total = job->total;
    ctx->row_first = job->first; /* as lks_random_rows */
    ctx->row_count = job->rows;
    ctx->call = 0;
    return LKS_OK;
}

lks_status lks_loader_valid(lks_loader *l, int64_t first, int64_t batch, lks_tensor **input, lks_tensor **target,
                            int64_t *rows)
{
    LKSI_GUARD;
    static const char where[] = "lks_loader_valid";
    if (!l || !input || !target || !rows) return LKS_ERR_ARGUMENT;
    *input = *target = LKS_NONE;
    *rows = 0;
    if (first < 0 || batch < 1)
        return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, where, "first %lld, batch %lld", (long long)first,
                         (long long)batch);
    lksi_fault_point(&l->ctx->base, "evaluation");
    lksi_job *job = &l->job[2];
    job->part = LKSI_PART_VALID;
    job->at = first, job->batch = batch, job->micro = 0, job->micros = 1, job->seed = l->ctx->seed;
    TRY(prepare(l, job));
    lksi_job_read(job);
    TRY(deliver(l, where, job, input, target));
    *rows = job->rows;
    return LKS_OK;
}

lks_status lks_loader_rows(lks_loader *l, int64_t first, int64_t batch, lks_tensor **input, lks_tensor **target,
                           int64_t *rows, int64_t *begin)
{
    LKSI_GUARD;
    static const char where[] = "lks_loader_rows";
    if (!l || !input || !target || !rows || !begin) return LKS_ERR_ARGUMENT;
    *input = *target = LKS_NONE;
    *rows = *begin = 0;
    if (first < 0 || batch < 1 || !l->source.host)
        return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, where, "first %lld, batch %lld%s", (long long)first,
                         (long long)batch, l->source.host ? "" : " of a text");
    lksi_job *job = &l->job[2];
    job->part = LKSI_PART_ALL;
    job->at = first, job->batch = batch, job->micro = 0, job->micros = 1, job->seed = l->ctx->seed;
    TRY(prepare(l, job));
    lksi_job_read(job);
    TRY(deliver(l, where, job, input, target));
    *rows = job->rows;
    *begin = first + job->first;
    return LKS_OK;
}
