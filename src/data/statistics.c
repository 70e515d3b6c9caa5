/* SPDX-License-Identifier: BSD-3-Clause
 *
 * statistics.c - mean and deviation of arrays in one pass over the files, in memory that does not grow with them. The
 * training samples are cut into chunks and blocks whose borders hang on their number alone; a chunk is summed in order,
 * chunks are merged in order within a block (Chan et al., 1979) and blocks in order at the end: any number of ranks
 * gives the same bits.
 */
#include "data/loader.h"
#include "base/guard.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (4 << 20)
#define CHUNK_ROWS 256
#define BLOCKS 256
#define BLOCK_NUMBERS (1 << 21) /* numbers of all blocks together */

typedef struct survey {
    lks_loader *l;
    const char *where;
    int column;
    int64_t groups, numel, chunk;
    int64_t *sample;
    double *sum, *square; /* of a chunk: groups */
} survey;

/* mean, m2: moments of n numbers a group; those of m more are merged into them. */
static void merge(int64_t groups, double n, double *mean, double *m2, double m, const double *mean2, const double *m22)
{
    for (int64_t g = 0; g < groups; g++) {
        double d = mean2[g] - mean[g];
        mean[g] += d * (m / (n + m));
        m2[g] += m22[g] + d * d * (n * m / (n + m));
    }
}

static double number(const void *data, lks_dtype dtype, int64_t i)
{
    return dtype == LKS_F64   ? ((const double *)data)[i]
           : dtype == LKS_F32 ? (double)((const float *)data)[i]
                              : (double)((const int64_t *)data)[i];
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Reads rows [first, first + rows) of a part; sum and square get mean and sum of squares around it, each a group. */
static lks_status chunk(survey *s, int part, int64_t first, int64_t rows)
{
    lks_loader *l = s->l;
    lks_dtype dtype;
    int64_t numel, each = s->numel / s->groups;
    for (int64_t i = 0; i < rows; i++) s->sample[i] = lksi_loader_sample(l, part, l->ctx->seed, 0, first + i);
    qsort(s->sample, (size_t)rows, sizeof *s->sample, by_number); /* neighbours are read together */
    TRY(lksi_loader_fetch(l, s->where, &l->job[2], s->sample, rows, s->column));
    const void *x = l->source.host(l, s->where, &l->job[2], s->column, &dtype, &numel);
    if (!x) return l->ctx->base.code ? l->ctx->base.code : LKS_ERR_MEMORY;
    for (int64_t i = 0; i < rows * numel; i++) {
        double v = number(x, dtype, i);
        if (v - v == 0) continue;
        char text[1200];
        l->source.name(l, s->column, s->sample[i / numel], text, sizeof text);
        return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, s->where, "%s holds %s (element %lld of the sample)", text,
                         v == v ? "infinity" : "NaN", (long long)(i % numel));
    }
    memset(s->sum, 0, (size_t)s->groups * sizeof *s->sum);
    memset(s->square, 0, (size_t)s->groups * sizeof *s->square);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < s->groups; g++) {
            double sum = 0;
            for (int64_t i = 0; i < each; i++) sum += number(x, dtype, r * numel + g * each + i);
            s->sum[g] += sum;
        }
    for (int64_t g = 0; g < s->groups; g++) s->sum[g] /= (double)(rows * each);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < s->groups; g++) {
            double sum = 0, mean = s->sum[g];
            for (int64_t i = 0; i < each; i++) {
                double d = number(x, dtype, r * numel + g * each + i) - mean;
                sum += d * d;
            }
            s->square[g] += sum;
        }
    return LKS_OK;
}

/* Blocks of this rank: moments into part[b * 2 groups], counts into count[b]. Validation samples are looked at only. */
static lks_status share(survey *s, int64_t blocks, double *part, double *count)
{
    lks_loader *l = s->l;
    lksi_base *b = &l->ctx->base;
    int64_t chunks = (l->train + s->chunk - 1) / s->chunk, first, n;
    lksi_share(blocks, b->size, b->rank, &first, &n);
    for (int64_t k = first; k < first + n; k++) {
        int64_t c, m;
        lksi_share(chunks, blocks, k, &c, &m);
        for (int64_t end = c + m; c < end; c++) {
            int64_t at = c * s->chunk, rows = l->train - at < s->chunk ? l->train - at : s->chunk;
            double each = (double)(rows * (s->numel / s->groups)), *mean = part + k * 2 * s->groups;
            TRY(chunk(s, LKSI_PART_TRAIN, at, rows));
            merge(s->groups, count[k], mean, mean + s->groups, each, s->sum, s->square);
            count[k] += each;
        }
    }
    lksi_share((l->valid + s->chunk - 1) / s->chunk, b->size, b->rank, &first, &n);
    for (int64_t c = first; c < first + n; c++) {
        int64_t at = c * s->chunk;
        TRY(chunk(s, LKSI_PART_VALID, at, l->valid - at < s->chunk ? l->valid - at : s->chunk));
    }
    return LKS_OK;
}

lks_status lks_loader_statistics(lks_loader *l, int column, int n, double *moments)
{
    LKSI_GUARD;
    static const char where[] = "lks_loader_statistics";
    if (!l || !moments) return LKS_ERR_ARGUMENT;
    lks_context *ctx = l->ctx;
    lksi_base *b = &ctx->base;
    survey s = {.l = l, .where = where, .column = column, .groups = n / 2, .numel = 1};
    int ndim = column == 0 ? l->input_ndim : l->target_ndim;
    const int64_t *shape = column == 0 ? l->input_shape : l->target_shape;
    lks_status status = LKS_OK;
    if (!l->source.host || column < 0 || column > 1 || ndim < 0)
        status = lksi_fail(b, LKS_ERR_ARGUMENT, where, "there is no array %d of numbers", column);
    for (int d = 0; d < ndim; d++) s.numel *= shape[d];
    if (status == LKS_OK && (n < 2 || n % 2 || s.numel % s.groups))
        status = lksi_fail(b, LKS_ERR_ARGUMENT, where, "%lld numbers a sample do not fall into %lld groups",
                           (long long)s.numel, (long long)s.groups);
    int64_t blocks = 1;
    double *part = NULL, *count = NULL;
    if (status == LKS_OK) {
        s.chunk = CHUNK_BYTES / 8 / s.numel;
        s.chunk = s.chunk < 1 ? 1 : s.chunk > CHUNK_ROWS ? CHUNK_ROWS : s.chunk;
        int64_t chunks = (l->train + s.chunk - 1) / s.chunk;
        blocks = BLOCK_NUMBERS / n < 1 ? 1 : BLOCK_NUMBERS / n < BLOCKS ? BLOCK_NUMBERS / n : BLOCKS;
        if (blocks > chunks) blocks = chunks;
        part = lksi_alloc(b, blocks * n * (int64_t)sizeof *part);
        count = lksi_alloc(b, blocks * (int64_t)sizeof *count);
        s.sum = lksi_alloc(b, n * (int64_t)sizeof *s.sum);
        s.sample = lksi_alloc(b, s.chunk * (int64_t)sizeof *s.sample);
        s.square = s.sum ? s.sum + s.groups : NULL;
        status = part && count && s.sum && s.sample ? share(&s, blocks, part, count) : LKS_ERR_MEMORY;
    }
    status = lksi_agree(ctx->comm, where, status);
    /* The other ranks' blocks are zero here. */
    if (status == LKS_OK) status = lksi_host_reduce(ctx->comm, where, part, blocks * n, LKS_F64, LKS_SUM);
    if (status == LKS_OK) status = lksi_host_reduce(ctx->comm, where, count, blocks, LKS_F64, LKS_SUM);
    if (status == LKS_OK) {
        double all = 0;
        memset(moments, 0, (size_t)n * sizeof *moments);
        for (int64_t k = 0; k < blocks; k++) {
            double *mean = part + k * n;
            merge(s.groups, all, moments, moments + s.groups, count[k], mean, mean + s.groups);
            all += count[k];
        }
        for (int64_t g = 0; g < s.groups; g++) moments[s.groups + g] = sqrt(moments[s.groups + g] / all);
    }
    lksi_free(b, part);
    lksi_free(b, count);
    lksi_free(b, s.sum);
    lksi_free(b, s.sample);
    return status;
}
