/* SPDX-License-Identifier: BSD-3-Clause
 *
 * text.c - files as bytes in windows. Of a file of S bytes the first S - V are for training and the last V = floor(S x
 * valid_fraction) for validation. A part of P bytes has (P - 1) div T windows: window w reads T + 1 bytes from w T on,
 * its input is the first T, its target the last T. Windows cross neither parts nor files. No tokens here but bytes.
 */
#include "data/loader.h"
#include "base/guard.h"
#include <string.h>

typedef struct text_file {
    lksi_file file;
    int64_t begin[2];       /* byte where the part begins: [0] training, [1] validation */
    int64_t before[2];      /* windows of the part in the files before this one */
    int64_t windows[2];
} text_file;

typedef struct text_state {
    int n;
    int64_t length; /* T */
    text_file *f;
} text_state;

static void text_close(lks_loader *l)
{
    text_state *s = l->state;
    lksi_base *b = &l->ctx->base;
    for (int i = 0; s->f && i < s->n; i++) lksi_file_close(b, &s->f[i].file);
    lksi_free(b, s->f);
    lksi_free(b, s);
}

static void text_locate(lks_loader *l, int part, int64_t w, char *to, lksi_piece *piece)
{
    text_state *s = l->state;
    int lo = 0, hi = s->n - 1; /* last file that begins at or before w */
    while (lo < hi) {
        int mid = hi - (hi - lo) / 2;
        if (s->f[mid].before[part] <= w) lo = mid;
        else hi = mid - 1;
    }
    text_file *f = &s->f[lo];
    *piece = (lksi_piece){&f->file, f->begin[part] + (w - f->before[part]) * s->length, s->length + 1, to};
}

static lks_status text_deliver(lks_loader *l, const char *where, lksi_job *job, lks_tensor **input, lks_tensor **target)
{
    (void)where;
    text_state *s = l->state;
    int64_t T = s->length, shape[2] = {job->rows, T};
    int64_t *x = lksi_loader_scratch(l, 0, job->rows * T * 8),
            *y = x ? lksi_loader_scratch(l, 1, job->rows * T * 8) : NULL;
    if (!y) return LKS_ERR_MEMORY;
    for (int64_t i = 0; i < job->rows; i++) {
        const unsigned char *raw = (const unsigned char *)job->raw + i * (T + 1);
        for (int64_t t = 0; t < T; t++) {
            x[i * T + t] = raw[t];
            y[i * T + t] = raw[t + 1];
        }
    }
    lks_tensor *in = lks_from_host(l->ctx, LKS_I64, 2, shape, x),
               *out = in ? lks_from_host(l->ctx, LKS_I64, 2, shape, y) : NULL;
    if (!out) return l->ctx->base.code ? l->ctx->base.code : LKS_ERR_MEMORY;
    *input = in;
    *target = out;
    return LKS_OK;
}

/* Bytes are bytes: nothing is read for this. */
static int64_t text_classes(lks_loader *l, lks_status *status)
{
    (void)l, (void)status;
    return 255;
}

static lks_status text_open(lks_loader *l, int n, const char *const *paths, int64_t T, double fraction)
{
    static const char where[] = "lks_loader_text";
    lksi_base *b = &l->ctx->base;
    if (n < 1 || !paths) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "no files given");
    if (T < 1 || T > INT32_MAX)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "seq_len is %lld; it must be at least 1", (long long)T);
    if (!(fraction >= 0 && fraction < 1))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "valid_fraction is %g; it must be in [0, 1)", fraction);
    text_state *s = lksi_alloc(b, sizeof *s);
    if (!s) return LKS_ERR_MEMORY;
    l->state = s;
    s->length = T;
    s->f = lksi_alloc(b, n * (int64_t)sizeof *s->f);
    if (!s->f) return LKS_ERR_MEMORY;
    for (; s->n < n; s->n++) s->f[s->n].file.fd = -1;
    uint64_t h = lksi_fingerprint(0xcbf29ce484222325u, &T, sizeof T);
    h = lksi_fingerprint(h, &fraction, sizeof fraction);
    int64_t total[2] = {0, 0}, longest = 0;
    for (int i = 0; i < n; i++) {
        text_file *f = &s->f[i];
        if (!paths[i]) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "path %d is NULL", i);
        TRY(lksi_file_open(b, where, paths[i], n <= LKSI_OPEN_FILES, &f->file));
        h = lksi_fingerprint_name(h, paths[i]);
        h = lksi_fingerprint(h, &f->file.bytes, sizeof f->file.bytes);
        int64_t valid = (int64_t)((double)f->file.bytes * fraction + 1e-9), bytes[2] = {f->file.bytes - valid, valid};
        f->begin[1] = bytes[0];
        if (bytes[0] > longest) longest = bytes[0];
        for (int p = 0; p < 2; p++) {
            f->before[p] = total[p];
            f->windows[p] = bytes[p] > 0 ? (bytes[p] - 1) / T : 0;
            total[p] += f->windows[p];
        }
        if (f->windows[0] == 0 && n > 1)
            lksi_log(b, LKS_LOG_WARNING,
                     "%s: %s has %lld bytes for training, too short for one window of %lld + 1: it is not used",
                     where, paths[i], (long long)bytes[0], (long long)T);
    }
    if (total[0] == 0)
        return lksi_fail(
            b, LKS_ERR_ARGUMENT, where,
            "%s is too short: %lld bytes for training, one window takes %lld; use a smaller seq_len or more text",
            n == 1 ? paths[0] : "every file", (long long)longest, (long long)T + 1);
    l->train = total[0];
    l->valid = total[1];
    l->input_ndim = 1;
    l->dtype[0] = l->dtype[1] = LKS_I64;
    l->target_ndim = 1;
    l->target_shape[0] = T;
    l->input_shape[0] = T;
    l->fingerprint = h;
    l->source.raw_bytes = T + 1;
    return LKS_OK;
}

lks_status lks_loader_text(lks_context *ctx, int n, const char *const *paths, int64_t seq_len, double valid_fraction,
                           lks_loader **out)
{
    LKSI_GUARD;
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_loader *l = lksi_alloc(&ctx->base, sizeof *l);
    lks_status status = LKS_ERR_MEMORY;
    if (l) {
        l->ctx = ctx;
        l->source = (lksi_source){text_close, 0, 1, text_locate, text_deliver, text_classes, NULL, NULL};
        status = text_open(l, n, paths, seq_len, valid_fraction);
    }
    status = lksi_loader_ready(&l, ctx, "lks_loader_text", status);
    *out = l;
    return status;
}
