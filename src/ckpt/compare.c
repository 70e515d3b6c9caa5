/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare.c - what differs between two checkpoints: data by the checksums they carry, the rest by value.
 */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <string.h>

typedef struct compare {
    lksi_base *b;
    lksi_ckpt_file *a, *other; /* names are listed from a and looked up in other; then the other way round */
    int second;                /* the other way round: only what a lacked is news */
    const char *group;
    lks_line_fn line;
    void *user;
    int64_t found;
} compare;

static void tell(compare *c, const char *path, const char *what)
{
    char text[1400], name[1200];
    snprintf(name, sizeof name, "%s", path);
    lksi_ckpt_unescape(name);
    snprintf(text, sizeof text, "%s: %s", name, what);
    c->found++;
    if (c->line) c->line(c->user, text);
}

static lks_status same_values(compare *c, const char *path, const lksi_h5_info *x, int *same)
{
    int64_t bytes = x->numel * 8;
    void *p = lksi_alloc(c->b, 2 * bytes + 8);
    if (!p) return LKS_ERR_MEMORY;
    char *q = (char *)p + bytes;
    lks_dtype t = x->kind == LKSI_H5_FLOAT ? LKS_F64 : LKS_I64;
    int64_t rows = x->ndim ? x->shape[0] : 1;
    lks_status s = rows ? lksi_h5_read_rows(c->a->h5, path, 0, rows, t, p) : LKS_OK;
    if (s == LKS_OK && rows) s = lksi_h5_read_rows(c->other->h5, path, 0, rows, t, q);
    *same = s == LKS_OK && !memcmp(p, q, (size_t)bytes);
    lksi_free(c->b, p);
    return s;
}

static lks_status same_text(compare *c, const char *path, int *same)
{
    char *x = NULL, *y = NULL;
    lks_status s = lksi_h5_read_text(c->a->h5, path, &x);
    if (s == LKS_OK) s = lksi_h5_read_text(c->other->h5, path, &y);
    *same = s == LKS_OK && !strcmp(x, y);
    lksi_free(c->b, x);
    lksi_free(c->b, y);
    return s;
}

static lks_status group(compare *c, const char *path);

static lks_status entry(void *user, const char *name)
{
    compare *c = user;
    char path[1200];
    const char *parent = c->group;
    if (snprintf(path, sizeof path, "%s/%s", parent, name) >= (int)sizeof path) return LKS_OK;
    if (!strcmp(path, "/extents")) return LKS_OK; /* places in the file and the checksums themselves */
    if (!lksi_h5_has(c->other->h5, path)) {
        tell(c, path, c->second ? "only in the second" : "only in the first");
        return LKS_OK;
    }
    lksi_h5_info x, y;
    lks_status code = c->b->code;
    if (lksi_h5_describe(c->a->h5, path, &x) != LKS_OK) { /* a group */
        if (code == LKS_OK) {
            c->b->code = LKS_OK;
            c->b->text[0] = 0;
        }
        lks_status s = group(c, path);
        c->group = parent;
        return s;
    }
    if (c->second) return LKS_OK;
    TRY(lksi_h5_describe(c->other->h5, path, &y));
    int same = x.ndim == y.ndim && x.kind == y.kind && x.size == y.size &&
               !memcmp(x.shape, y.shape, (size_t)x.ndim * sizeof *x.shape);
    if (!same) {
        if (x.kind == LKSI_H5_TEXT && y.kind == LKSI_H5_TEXT) tell(c, path, "differs");
        else tell(c, path, "has another shape or type");
        return LKS_OK;
    }
    int64_t ex = lksi_ckpt_find(c->a, x.offset), ey = lksi_ckpt_find(c->other, y.offset);
    if (ex >= 0 && ey >= 0) same = c->a->e[ex].hash == c->other->e[ey].hash;
    else if (x.kind == LKSI_H5_TEXT) TRY(same_text(c, path, &same));
    else if (x.kind != LKSI_H5_OTHER) TRY(same_values(c, path, &x, &same));
    if (!same) tell(c, path, "differs");
    return LKS_OK;
}

static lks_status group(compare *c, const char *path)
{
    c->group = path[1] ? path : "";
    return lksi_h5_list(c->a->h5, path, entry, c);
}

int64_t lks_checkpoint_compare(lks_context *ctx, const char *a, const char *b, lks_line_fn line, void *user)
{
    static const char where[] = "lks_checkpoint_compare";
    if (!ctx || !a || !b) return LKS_ERR_ARGUMENT;
    lksi_ckpt_file *f = NULL, *g = NULL;
    lks_status s = lksi_ckpt_open(&ctx->base, where, a, &f);
    s = lksi_ckpt_verify_data(ctx, f, s);
    if (s == LKS_OK) {
        s = lksi_ckpt_open(&ctx->base, where, b, &g);
        s = lksi_ckpt_verify_data(ctx, g, s);
    }
    compare c = {.b = &ctx->base, .a = f, .other = g, .line = line, .user = user};
    if (s == LKS_OK) s = group(&c, "/");
    if (s == LKS_OK) {
        c.a = g;
        c.other = f;
        c.second = 1;
        s = group(&c, "/");
    }
    /* Attributes (counters, seeds, scaler state) are part of the structure that the head vouches for. */
    if (s == LKS_OK && !c.found && f->structure != g->structure) tell(&c, "/", "attributes differ");
    s = lksi_ckpt_outcome(ctx, where, s);
    lksi_ckpt_close(f);
    lksi_ckpt_close(g);
    return s == LKS_OK ? c.found : s;
}
