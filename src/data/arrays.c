/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arrays.c - HDF5 datasets inputs [N, ...] and targets [N, ...] over several files. Datasets that lie contiguous and
 * unfiltered in the file are read by offset (also ahead, by the thread); others (chunked, compressed, late) by
 * hyperslab through HDF5, on the calling thread. Delivered: floats as float32, integers as int64, but uint8 inputs as
 * float32 / 255.
 */
#include "data/loader.h"
#include <stdio.h>
#include <string.h>

#define OPEN_H5 64 /* HDF5 files kept open where reading goes through HDF5 */

typedef struct column {
    const char *what; /* "inputs" */
    char *name;
    int ndim; /* of a row */
    int64_t shape[LKS_MAX_DIMS], numel;
    int kind, scaled; /* scaled: uint8 / 255 */
    lks_dtype dtype;  /* delivered */
    int64_t raw_at;   /* place in a row's raw bytes */
} column;

typedef struct array_file {
    lksi_file file;
    lksi_h5 *h5; /* open where needed */
    int64_t rows, before;
    lksi_h5_info info[2];
} array_file;

typedef struct array_state {
    int n, by_offset;
    column c[2];
    array_file *f;
} array_state;

static void array_close(lks_loader *l)
{
    array_state *s = l->state;
    lksi_base *b = &l->ctx->base;
    for (int i = 0; s->f && i < s->n; i++) {
        lksi_h5_close(s->f[i].h5);
        lksi_file_close(b, &s->f[i].file);
    }
    lksi_free(b, s->c[0].name);
    lksi_free(b, s->c[1].name);
    lksi_free(b, s->f);
    lksi_free(b, s);
}

static array_file *file_of(array_state *s, int64_t row)
{
    int lo = 0, hi = s->n - 1;
    while (lo < hi) {
        int mid = hi - (hi - lo) / 2;
        if (s->f[mid].before <= row) lo = mid;
        else hi = mid - 1;
    }
    return &s->f[lo];
}

static void array_locate(lks_loader *l, int part, int64_t row, char *to, lksi_piece *piece)
{
    (void)part; /* rows are numbered over both parts */
    array_state *s = l->state;
    array_file *f = file_of(s, row);
    for (int c = 0; c < 2; c++) {
        const lksi_h5_info *i = &f->info[c];
        int64_t bytes = s->c[c].numel * i->size;
        piece[c] = (lksi_piece){&f->file, i->offset + (row - f->before) * bytes, bytes, to + s->c[c].raw_at};
    }
}

static lks_status open_h5(lks_loader *l, const char *where, array_file *f)
{
    return f->h5 ? LKS_OK : lksi_h5_open(&l->ctx->base, where, f->file.path, &f->h5);
}

static lks_status done_h5(array_state *s, array_file *f)
{
    if (s->n <= OPEN_H5) return LKS_OK;
    lksi_h5 *h5 = f->h5;
    f->h5 = NULL;
    return lksi_h5_close(h5);
}

/* Rows [first, first + count) of a file's column through HDF5. */
static lks_status read_h5(lks_loader *l, const char *where, int c, array_file *f, int64_t first, int64_t count,
                          void *out)
{
    array_state *s = l->state;
    int64_t start[LKS_MAX_DIMS] = {first}, size[LKS_MAX_DIMS] = {count};
    for (int d = 0; d < s->c[c].ndim; d++) size[d + 1] = s->c[c].shape[d];
    TRY(open_h5(l, where, f));
    TRY(lksi_h5_read_box(f->h5, s->c[c].name, start, size, s->c[c].dtype, out));
    return done_h5(s, f);
}

static lks_tensor *column_tensor(lks_loader *l, const char *where, lksi_job *job, int which)
{
    array_state *s = l->state;
    column *c = &s->c[which];
    int64_t size = lks_dtype_size(c->dtype), row = c->numel * size, shape[LKS_MAX_DIMS] = {job->rows};
    char *out = lksi_loader_scratch(l, which, job->rows * row);
    if (!out) return NULL;
    for (int64_t i = 0; i < job->rows;) {
        array_file *f = file_of(s, job->sample[i]);
        int64_t n = 1; /* neighbours are read together */
        if (s->by_offset)
            lksi_h5_decode(&f->info[which], job->raw + i * l->source.raw_bytes + c->raw_at, c->numel, c->dtype,
                           out + i * row);
        else {
            while (i + n < job->rows && job->sample[i + n] == job->sample[i] + n &&
                   job->sample[i + n] < f->before + f->rows)
                n++;
            if (read_h5(l, where, which, f, job->sample[i] - f->before, n, out + i * row)) return NULL;
        }
        i += n;
    }
    if (c->scaled)
        for (int64_t i = 0; i < job->rows * c->numel; i++) ((float *)out)[i] /= 255.0f;
    for (int d = 0; d < c->ndim; d++) shape[d + 1] = c->shape[d];
    return lks_from_host(l->ctx, c->dtype, c->ndim + 1, shape, out);
}

static lks_status array_deliver(lks_loader *l, const char *where, lksi_job *job, lks_tensor **input,
                                lks_tensor **target)
{
    lks_tensor *in = column_tensor(l, where, job, 0), *out = in ? column_tensor(l, where, job, 1) : NULL;
    if (!out) return l->ctx->base.code ? l->ctx->base.code : LKS_ERR_MEMORY;
    *input = in;
    *target = out;
    return LKS_OK;
}

static int64_t array_classes(lks_loader *l, lks_status *status)
{
    array_state *s = l->state;
    column *c = &s->c[1];
    int64_t best = -1;
    if (c->dtype != LKS_I64) return best;
    int64_t block = 65536 / c->numel > 0 ? 65536 / c->numel : 1;
    for (int i = 0; i < s->n && *status == LKS_OK; i++) {
        int64_t first, rows;
        lksi_share(s->f[i].rows, l->ctx->base.size, l->ctx->base.rank, &first, &rows);
        for (int64_t at = 0; at < rows && *status == LKS_OK; at += block) {
            int64_t n = rows - at < block ? rows - at : block;
            int64_t *v = lksi_loader_scratch(l, 1, n * c->numel * 8);
            *status = v ? read_h5(l, "lks_loader_classes", 1, &s->f[i], first + at, n, v) : LKS_ERR_MEMORY;
            for (int64_t k = 0; *status == LKS_OK && k < n * c->numel; k++)
                if (v[k] < 0 && v[k] != -100) /* LKS_IGNORE_INDEX */
                    *status = lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, "lks_loader_classes",
                                        "%s: target %lld of sample %lld is no class number", s->f[i].file.path,
                                        (long long)v[k], (long long)(first + at + k / c->numel));
                else if (v[k] > best) best = v[k];
        }
        if (s->by_offset) {
            lksi_h5 *h5 = s->f[i].h5;
            s->f[i].h5 = NULL;
            lks_status closed = lksi_h5_close(h5);
            if (*status == LKS_OK) *status = closed;
        }
    }
    if (*status == LKS_OK && best == INT64_MAX)
        *status = lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, "lks_loader_classes", "a target is too large for a class");
    return best;
}

static const char *shape_text(const lksi_h5_info *i, char *text, int bytes)
{
    int n = snprintf(text, (size_t)bytes, "[");
    for (int d = 0; d < i->ndim && n < bytes; d++)
        n += snprintf(text + n, (size_t)(bytes - n), "%s%lld", d ? "," : "", (long long)i->shape[d]);
    if (n < bytes) snprintf(text + n, (size_t)(bytes - n), "]");
    return text;
}

/* Looks at one column of one file; the first file says what the rest must be like. */
static lks_status survey(lks_loader *l, const char *where, array_file *f, lksi_h5 *h5, int which, int first)
{
    array_state *s = l->state;
    lksi_base *b = &l->ctx->base;
    column *c = &s->c[which];
    lksi_h5_info *i = &f->info[which];
    char text[200];
    TRY(lksi_h5_describe(h5, c->name, i));
    if (i->kind != LKSI_H5_INT && i->kind != LKSI_H5_UINT && i->kind != LKSI_H5_FLOAT)
        return lksi_fail(b, LKS_ERR_DTYPE, where, "%s: dataset \"%s\" does not hold integers or floats", f->file.path,
                         c->name);
    if (i->ndim < 1)
        return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: %s \"%s\" is a single number; [N, ...] is needed", f->file.path,
                         c->what, c->name);
    int scaled = which == 0 && i->kind == LKSI_H5_UINT && i->size == 1;
    lks_dtype dtype = scaled || i->kind == LKSI_H5_FLOAT ? LKS_F32 : LKS_I64;
    if (first) {
        c->ndim = i->ndim - 1;
        c->numel = 1;
        for (int d = 0; d < c->ndim; d++) {
            c->shape[d] = i->shape[d + 1];
            if (!lksi_mul_fits(c->numel, c->shape[d], &c->numel)) return LKS_ERR_INTERNAL; /* describe has checked */
        }
        c->dtype = dtype;
        c->scaled = scaled;
        if (c->numel == 0)
            return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: dataset \"%s\" %s has empty samples", f->file.path, c->name,
                             shape_text(i, text, sizeof text));
    }
    int same = i->ndim == c->ndim + 1 && dtype == c->dtype && scaled == c->scaled;
    for (int d = 0; same && d < c->ndim; d++) same = i->shape[d + 1] == c->shape[d];
    if (!same)
        return lksi_fail(b, LKS_ERR_SHAPE, where,
                         "%s: dataset \"%s\" %s does not fit that of %s: samples must be of one shape "
                         "and type",
                         f->file.path, c->name, shape_text(i, text, sizeof text), s->f[0].file.path);
    return LKS_OK;
}

static lks_status array_open(lks_loader *l, int n, const char *const *paths, const char *inputs, const char *targets,
                             double fraction)
{
    static const char where[] = "lks_loader_hdf5";
    lksi_base *b = &l->ctx->base;
    char text[2][200];
    if (n < 1 || !paths) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "no files given");
    if (!inputs || !targets || !*inputs || !*targets)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the names of the inputs and targets datasets are needed");
    if (!(fraction >= 0 && fraction < 1))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "valid_fraction is %g; it must be in [0, 1)", fraction);
    array_state *s = lksi_alloc(b, sizeof *s);
    if (!s) return LKS_ERR_MEMORY;
    l->state = s;
    s->c[0].what = "inputs", s->c[1].what = "targets";
    s->c[0].name = lksi_strdup(b, inputs);
    s->c[1].name = lksi_strdup(b, targets);
    s->f = lksi_alloc(b, n * (int64_t)sizeof *s->f);
    if (!s->f || !s->c[0].name || !s->c[1].name) return LKS_ERR_MEMORY;
    for (; s->n < n; s->n++) s->f[s->n].file.fd = -1;
    s->by_offset = 1;
    int64_t total = 0;
    uint64_t h = lksi_fingerprint(0xcbf29ce484222325u, &fraction, sizeof fraction);
    for (int i = 0; i < n; i++) {
        array_file *f = &s->f[i];
        lksi_h5 *h5;
        if (!paths[i]) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "path %d is NULL", i);
        TRY(lksi_file_open(b, where, paths[i], n <= LKSI_OPEN_FILES, &f->file));
        TRY(lksi_h5_open(b, where, paths[i], &h5));
        lks_status status = LKS_OK, closed;
        for (int c = 0; c < 2 && status == LKS_OK; c++) status = survey(l, where, f, h5, c, i == 0);
        closed = lksi_h5_close(h5);
        TRY(status);
        TRY(closed);
        if (f->info[0].shape[0] != f->info[1].shape[0])
            return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: \"%s\" %s and \"%s\" %s differ in the number of samples",
                             paths[i], inputs, shape_text(&f->info[0], text[0], 200), targets,
                             shape_text(&f->info[1], text[1], 200));
        f->rows = f->info[0].shape[0];
        f->before = total;
        if (!lksi_add_fits(total, f->rows, &total)) return lksi_fail(b, LKS_ERR_SHAPE, where, "too many samples");
        h = lksi_fingerprint_name(h, paths[i]);
        h = lksi_fingerprint(h, &f->file.bytes, sizeof f->file.bytes);
        for (int c = 0; c < 2; c++) {
            const lksi_h5_info *d = &f->info[c];
            int64_t end = 0;
            h = lksi_fingerprint(h, d->shape, d->ndim * (int64_t)sizeof d->shape[0]);
            h = lksi_fingerprint_name(h, s->c[c].name);
            if (!f->rows) continue;
            if (!d->plain || d->offset < 0) s->by_offset = 0;
            else if (!lksi_mul_fits(d->numel, d->size, &end) || !lksi_add_fits(end, d->offset, &end) ||
                     end > f->file.bytes)
                return lksi_fail(b, LKS_ERR_CORRUPT, where,
                                 "%s is truncated: dataset \"%s\" ends at byte %lld, the file at %lld", paths[i],
                                 s->c[c].name, (long long)end, (long long)f->file.bytes);
        }
    }
    if (total == 0) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "%s holds no samples", n == 1 ? paths[0] : "no file");
    l->shuffled_split = 1;
    l->valid = (int64_t)((double)total * fraction + 1e-9);
    l->train = total - l->valid;
    l->input_ndim = s->c[0].ndim;
    memcpy(l->input_shape, s->c[0].shape, sizeof l->input_shape);
    l->fingerprint = h;
    if (s->by_offset) {
        int64_t widest[2] = {0, 0}; /* files may differ in the width of their numbers */
        for (int i = 0; i < n; i++)
            for (int c = 0; c < 2; c++)
                if (s->f[i].info[c].size > widest[c]) widest[c] = s->f[i].info[c].size;
        s->c[1].raw_at = s->c[0].numel * widest[0];
        l->source.raw_bytes = s->c[1].raw_at + s->c[1].numel * widest[1];
        l->source.pieces = 2;
    }
    return LKS_OK;
}

lks_status lks_loader_hdf5(lks_context *ctx, int n, const char *const *paths, const char *inputs, const char *targets,
                           double valid_fraction, lks_loader **out)
{
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_loader *l = lksi_alloc(&ctx->base, sizeof *l);
    lks_status status = LKS_ERR_MEMORY;
    if (l) {
        l->ctx = ctx;
        l->source = (lksi_source){array_close, 0, 0, array_locate, array_deliver, array_classes};
        status = array_open(l, n, paths, inputs, targets, valid_fraction);
    }
    status = lksi_loader_ready(&l, ctx, "lks_loader_hdf5", status);
    *out = l;
    return status;
}
