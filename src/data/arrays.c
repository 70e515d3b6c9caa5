/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arrays.c - HDF5 datasets inputs [N, ...] and targets [N, ...] over several files, or a part of them ("u[:-1, 0:8]").
 * Datasets that lie contiguous and unfiltered in the file are read by offset (also ahead, by the thread); others
 * (chunked, compressed, late, parts of samples) by hyperslab through HDF5, on the calling thread. Delivered: floats as
 * float32, integers as int64, but uint8 inputs as float32 / 255; wide loaders: wide numbers as float64.
 */
#include "data/loader.h"
#include "base/guard.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_H5 64 /* HDF5 files kept open where reading goes through HDF5 */

typedef struct column {
    const char *what; /* "inputs" */
    char *given, *name, *slab; /* "u[:-1]": "u" and ":-1", NULL without */
    int ndim; /* of a row */
    int64_t shape[LKS_MAX_DIMS], numel;
    int scaled;         /* uint8 / 255 */
    int narrow_scaled, wide; /* what it is while the loader is not wide; numbers that float32 does not hold */
    lks_dtype narrow;
    lks_dtype dtype;  /* delivered */
    int64_t raw_at;   /* place in a row's raw bytes */
} column;

/* What is taken of a dataset: of each dim every step-th element from start on. */
typedef struct part {
    int ndim, whole; /* whole: rows are read entire */
    int64_t start[LKS_MAX_DIMS], step[LKS_MAX_DIMS], count[LKS_MAX_DIMS];
} part;

typedef struct array_file {
    lksi_file file;
    lksi_h5 *h5; /* open where needed */
    int64_t rows, before;
    lksi_h5_info info[2]; /* shape: as taken */
    part part[2];
} array_file;

typedef struct array_state {
    int n, by_offset, columns; /* columns: 1 without targets */
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
    for (int c = 0; c < 2; c++) {
        lksi_free(b, s->c[c].given);
        lksi_free(b, s->c[c].name);
        lksi_free(b, s->c[c].slab);
    }
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
    for (int c = 0; c < s->columns; c++) {
        const lksi_h5_info *i = &f->info[c];
        int64_t bytes = s->c[c].numel * i->size, at = f->part[c].start[0] + (row - f->before) * f->part[c].step[0];
        piece[c] = (lksi_piece){&f->file, i->offset + at * bytes, bytes, to + s->c[c].raw_at};
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
    part p = f->part[c];
    p.start[0] += first * p.step[0];
    p.count[0] = count;
    TRY(open_h5(l, where, f));
    TRY(lksi_h5_read_slab(f->h5, s->c[c].name, p.start, p.step, p.count, s->c[c].dtype, out));
    return done_h5(s, f);
}

static void *array_host(lks_loader *l, const char *where, lksi_job *job, int which, lks_dtype *dtype, int64_t *numel)
{
    array_state *s = l->state;
    column *c = &s->c[which];
    int64_t size = lks_dtype_size(c->dtype), row = c->numel * size;
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
    *dtype = c->dtype;
    *numel = c->numel;
    return out;
}

static void array_name(lks_loader *l, int which, int64_t sample, char *text, int bytes)
{
    array_state *s = l->state;
    array_file *f = file_of(s, sample);
    snprintf(text, (size_t)bytes, "%s: sample %lld of %s \"%s\"", f->file.path, (long long)(sample - f->before),
             s->c[which].what, s->c[which].given);
}

static lks_tensor *column_tensor(lks_loader *l, const char *where, lksi_job *job, int which)
{
    column *c = &((array_state *)l->state)->c[which];
    int64_t shape[LKS_MAX_DIMS] = {job->rows}, numel;
    lks_dtype dtype;
    void *out = array_host(l, where, job, which, &dtype, &numel);
    for (int d = 0; d < c->ndim; d++) shape[d + 1] = c->shape[d];
    return out ? lks_from_host(l->ctx, dtype, c->ndim + 1, shape, out) : NULL;
}

static lks_status array_deliver(lks_loader *l, const char *where, lksi_job *job, lks_tensor **input,
                                lks_tensor **target)
{
    array_state *s = l->state;
    lks_tensor *in = column_tensor(l, where, job, 0), *out = LKS_NONE;
    if (!in || s->columns > 1) out = in ? column_tensor(l, where, job, 1) : NULL;
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
    if (s->columns < 2 || c->dtype != LKS_I64) return best;
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

/* One entry of a slab: ":", "a:b", "a:b:s", "i"; from the end where negative. *one: a single index. */
static const char *parse_entry(const char *t, int64_t size, int64_t *start, int64_t *step, int64_t *count, int *one)
{
    int64_t v[3] = {0, size, 1};
    int given[3] = {0, 0, 0}, colons = 0;
    for (;; t++) {
        while (*t == ' ') t++;
        if (*t == '-' || *t == '+' || (*t >= '0' && *t <= '9')) {
            char *end;
            errno = 0;
            v[colons] = strtoll(t, &end, 10);
            if (end == t || errno) return NULL;
            given[colons] = 1;
            t = end;
            while (*t == ' ') t++;
        }
        if (*t != ':') break;
        if (++colons > 2) return NULL;
    }
    if ((*t && *t != ',') || (!colons && !given[0])) return NULL;
    for (int i = 0; i < 2; i++)
        if (given[i] && v[i] < 0) v[i] += size;
    *one = !colons;
    if (!colons && v[0] < size) v[1] = v[0] + 1;
    if (v[0] < 0 || v[1] > size || v[0] >= v[1] || v[2] < 1) return NULL;
    *start = v[0], *step = v[2], *count = (v[1] - v[0] - 1) / v[2] + 1;
    return t;
}

/* What the column's slab takes of a dataset; info->shape and numel become those of what is taken. */
static lks_status take(lks_loader *l, const char *where, array_file *f, const column *c, lksi_h5_info *i, part *p)
{
    const char *t = c->slab ? c->slab : "";
    int ndim = 0;
    char text[200];
    *p = (part){.ndim = i->ndim, .whole = 1};
    shape_text(i, text, sizeof text);
    i->numel = 1;
    for (int d = 0; d < p->ndim; d++) {
        int one = 0;
        int64_t size = i->shape[d];
        p->step[d] = 1;
        p->count[d] = size;
        if (*t && !(t = parse_entry(t, size, &p->start[d], &p->step[d], &p->count[d], &one)))
            return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, where,
                             "%s: \"%s\": entry %d of [...] is no start:stop:step or index within %s of \"%s\"",
                             f->file.path, c->given, d + 1, text, c->name);
        if (d == 0 && one)
            return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, where,
                             "\"%s\": the first entry of [...] takes samples; it is a range, as in [0:100]", c->given);
        if (d && p->count[d] != size) p->whole = 0;
        if (!one) i->shape[ndim++] = p->count[d];
        if (!lksi_mul_fits(i->numel, p->count[d], &i->numel)) return LKS_ERR_INTERNAL; /* smaller than the whole */
        if (*t == ',') t++;
    }
    if (*t)
        return lksi_fail(&l->ctx->base, LKS_ERR_SHAPE, where,
                         "%s: \"%s\": more entries than dataset \"%s\" %s has dims", f->file.path, c->given,
                         c->name, text);
    i->ndim = ndim;
    return LKS_OK;
}

/* Looks at one column of one file; the first file says what the rest must be like. */
static lks_status survey(lks_loader *l, const char *where, array_file *f, lksi_h5 *h5, int which, int first)
{
    array_state *s = l->state;
    lksi_base *b = &l->ctx->base;
    column *c = &s->c[which];
    lksi_h5_info *i = &f->info[which];
    char text[200];
    if (first && c->slab && lksi_h5_has(h5, c->given)) { /* a name that ends so */
        lksi_free(b, c->name);
        lksi_free(b, c->slab);
        c->slab = NULL;
        if (!(c->name = lksi_strdup(b, c->given))) return LKS_ERR_MEMORY;
    }
    TRY(lksi_h5_describe(h5, c->name, i));
    if (i->kind != LKSI_H5_INT && i->kind != LKSI_H5_UINT && i->kind != LKSI_H5_FLOAT)
        return lksi_fail(b, LKS_ERR_DTYPE, where, "%s: dataset \"%s\" does not hold integers or floats", f->file.path,
                         c->name);
    if (i->ndim < 1)
        return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: %s \"%s\" is a single number; [N, ...] is needed", f->file.path,
                         c->what, c->name);
    TRY(take(l, where, f, c, i, &f->part[which]));
    int scaled = which == 0 && i->kind == LKSI_H5_UINT && i->size == 1;
    lks_dtype dtype = scaled || i->kind == LKSI_H5_FLOAT ? LKS_F32 : LKS_I64;
    if (first) {
        c->ndim = i->ndim - 1;
        c->numel = 1;
        for (int d = 0; d < c->ndim; d++) {
            c->shape[d] = i->shape[d + 1];
            if (!lksi_mul_fits(c->numel, c->shape[d], &c->numel)) return LKS_ERR_INTERNAL; /* describe has checked */
        }
        c->dtype = c->narrow = dtype;
        c->scaled = c->narrow_scaled = scaled;
        if (c->numel == 0)
            return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: dataset \"%s\" %s has empty samples", f->file.path, c->name,
                             shape_text(i, text, sizeof text));
    }
    if (i->size > 4 || i->kind != LKSI_H5_FLOAT) c->wide = 1;
    int same = i->ndim == c->ndim + 1 && dtype == c->dtype && scaled == c->scaled;
    for (int d = 0; same && d < c->ndim; d++) same = i->shape[d + 1] == c->shape[d];
    if (!same)
        return lksi_fail(b, LKS_ERR_SHAPE, where,
                         "%s: dataset \"%s\" %s does not fit that of %s: samples must be of one shape "
                         "and type",
                         f->file.path, c->name, shape_text(i, text, sizeof text), s->f[0].file.path);
    return LKS_OK;
}

/* "u[:-1]" into "u" and ":-1". */
static lks_status split(lksi_base *b, column *c, const char *given)
{
    size_t n = strlen(given);
    const char *open = n && given[n - 1] == ']' ? strrchr(given, '[') : NULL;
    c->given = lksi_strdup(b, given);
    c->name = lksi_strdup(b, given);
    if (!c->given || !c->name) return LKS_ERR_MEMORY;
    if (!open || open == given || open + 2 == given + n) return LKS_OK;
    c->slab = lksi_strdup(b, open + 1);
    if (!c->slab) return LKS_ERR_MEMORY;
    c->slab[strlen(c->slab) - 1] = 0;
    c->name[open - given] = 0;
    return LKS_OK;
}

static lks_status array_open(lks_loader *l, int n, const char *const *paths, const char *inputs, const char *targets,
                             double fraction)
{
    static const char where[] = "lks_loader_hdf5";
    lksi_base *b = &l->ctx->base;
    char text[2][200];
    if (n < 1 || !paths) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "no files given");
    if (!inputs || !*inputs || (targets && !*targets))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the names of the inputs and targets datasets are needed");
    if (!(fraction >= 0 && fraction < 1))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "valid_fraction is %g; it must be in [0, 1)", fraction);
    array_state *s = lksi_alloc(b, sizeof *s);
    if (!s) return LKS_ERR_MEMORY;
    l->state = s;
    s->c[0].what = "inputs", s->c[1].what = "targets";
    s->columns = targets ? 2 : 1;
    TRY(split(b, &s->c[0], inputs));
    if (targets) TRY(split(b, &s->c[1], targets));
    s->f = lksi_alloc(b, n * (int64_t)sizeof *s->f);
    if (!s->f) return LKS_ERR_MEMORY;
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
        for (int c = 0; c < s->columns && status == LKS_OK; c++) status = survey(l, where, f, h5, c, i == 0);
        closed = lksi_h5_close(h5);
        TRY(status);
        TRY(closed);
        if (targets && f->info[0].shape[0] != f->info[1].shape[0])
            return lksi_fail(b, LKS_ERR_SHAPE, where, "%s: \"%s\" %s and \"%s\" %s differ in the number of samples",
                             paths[i], inputs, shape_text(&f->info[0], text[0], 200), targets,
                             shape_text(&f->info[1], text[1], 200));
        f->rows = f->info[0].shape[0];
        f->before = total;
        if (!lksi_add_fits(total, f->rows, &total)) return lksi_fail(b, LKS_ERR_SHAPE, where, "too many samples");
        h = lksi_fingerprint_name(h, paths[i]);
        h = lksi_fingerprint(h, &f->file.bytes, sizeof f->file.bytes);
        for (int c = 0; c < s->columns; c++) {
            const lksi_h5_info *d = &f->info[c];
            const part *p = &f->part[c];
            int64_t end = 0;
            h = lksi_fingerprint(h, d->shape, d->ndim * (int64_t)sizeof d->shape[0]);
            h = lksi_fingerprint_name(h, s->c[c].given);
            if (!f->rows) continue;
            int64_t last = p->start[0] + (p->count[0] - 1) * p->step[0] + 1;
            if (!d->plain || d->offset < 0 || !p->whole) s->by_offset = 0;
            else if (!lksi_mul_fits(last * s->c[c].numel, d->size, &end) || !lksi_add_fits(end, d->offset, &end) ||
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
    l->dtype[0] = s->c[0].dtype;
    l->dtype[1] = s->c[1].dtype;
    l->target_ndim = targets ? s->c[1].ndim : -1;
    memcpy(l->target_shape, s->c[1].shape, sizeof l->target_shape);
    l->fingerprint = h;
    if (s->by_offset) {
        int64_t widest[2] = {0, 0}; /* files may differ in the width of their numbers */
        for (int i = 0; i < n; i++)
            for (int c = 0; c < 2; c++)
                if (s->f[i].info[c].size > widest[c]) widest[c] = s->f[i].info[c].size;
        s->c[1].raw_at = s->c[0].numel * widest[0];
        l->source.raw_bytes = s->c[1].raw_at + s->c[1].numel * widest[1];
        l->source.pieces = s->columns;
    }
    return LKS_OK;
}

lks_status lks_loader_set_wide(lks_loader *l, int on)
{
    if (!l) return LKS_ERR_ARGUMENT;
    if (!l->source.host)
        return lksi_fail(&l->ctx->base, LKS_ERR_ARGUMENT, "lks_loader_set_wide", "a text has no wide numbers");
    array_state *s = l->state;
    for (int i = 0; i < s->columns; i++) {
        column *c = &s->c[i];
        l->dtype[i] = c->dtype = on && c->wide ? LKS_F64 : on ? LKS_F32 : c->narrow;
        c->scaled = on ? 0 : c->narrow_scaled;
    }
    return LKS_OK;
}

lks_status lks_loader_hdf5(lks_context *ctx, int n, const char *const *paths, const char *inputs, const char *targets,
                           double valid_fraction, lks_loader **out)
{
    LKSI_GUARD;
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_loader *l = lksi_alloc(&ctx->base, sizeof *l);
    lks_status status = LKS_ERR_MEMORY;
    if (l) {
        l->ctx = ctx;
        l->source = (lksi_source){array_close, 0, 0, array_locate, array_deliver, array_classes,
                                  array_host,  array_name};
        status = array_open(l, n, paths, inputs, targets, valid_fraction);
    }
    status = lksi_loader_ready(&l, ctx, "lks_loader_hdf5", status);
    *out = l;
    return status;
}
