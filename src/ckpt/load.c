/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.c - reading a checkpoint, all or nothing: every rank verifies head and structure, the ranks together verify all
 * data, every rank compares what is there with what the program has; only when all of it fits everywhere is anything
 * written. Parameters are held by every rank, so the number of ranks that saved does not matter.
 */
#include "ckpt/ckpt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A dataset of the file. */
typedef struct found {
    char *name;    /* unescaped */
    char *path;
    int64_t index; /* /model: place in the saved order */
    lks_dtype dtype;
    lksi_h5_info info;
    int64_t extent; /* -1: no bytes */
    int used;
} found;

typedef struct table {
    found *f; /* by name */
    int64_t n, room;
} table;

/* Bytes of the file that go to device memory. */
typedef struct copy { int64_t extent; char *to; } copy;

typedef struct loading {
    lks_checkpoint *c;
    lks_context *ctx;
    lksi_base *b;
    const char *where;
    lksi_ckpt_file *file;
    lksi_h5 *h5;
    const char *group; /* being listed */
    table *into;
    table model, *block; /* block: one per optimizer block of the program */
    int blocks;
    copy *copies;
    int64_t copy_count, copy_room;
    int missing, unexpected, entries;
    char missing_text[700], unexpected_text[700];
    int has_optim, has_scaler;
    lksi_optim_saved optim;
    lksi_scaler_saved scaler;
    int64_t seed, attempt;
    lksi_keys keys;
} loading;

static void note(char *text, size_t bytes, int *count, const char *prefix, const char *name)
{
    size_t at = strlen(text), need = strlen(prefix) + strlen(name) + 2;
    if (at + need + 8 < bytes) sprintf(text + at, "%s%s%s", at ? ", " : "", prefix, name);
    else if (at < 4 || strcmp(text + at - 3, "...")) snprintf(text + at, bytes - at, ", ...");
    ++*count;
}

static void miss(loading *l, const char *prefix, const char *name)
{
    note(l->missing_text, sizeof l->missing_text, &l->missing, prefix, name);
}

static void surprise(loading *l, const char *prefix, const char *name)
{
    note(l->unexpected_text, sizeof l->unexpected_text, &l->unexpected, prefix, name);
}

static lks_status damaged(loading *l, const char *path, const char *what)
{
    return lksi_fail(l->b, LKS_ERR_CORRUPT, l->where, "%s is damaged: %s %s", l->file->path, path, what);
}

/* --- what the file has -------------------------------------------------------------------------------------------- */

static lks_status add_found(void *user, const char *link)
{
    loading *l = user;
    table *t = l->into;
    if (t->n == t->room) {
        int64_t room = t->room ? 2 * t->room : 32;
        found *f = lksi_realloc(l->b, t->f, t->room * (int64_t)sizeof *f, room * (int64_t)sizeof *f);
        if (!f) return LKS_ERR_MEMORY;
        t->f = f;
        t->room = room;
    }
    found *f = &t->f[t->n++];
    memset(f, 0, sizeof *f);
    int64_t bytes = (int64_t)(strlen(l->group) + strlen(link) + 2);
    f->path = lksi_alloc(l->b, bytes);
    f->name = lksi_strdup(l->b, link);
    if (!f->path || !f->name) return LKS_ERR_MEMORY;
    snprintf(f->path, (size_t)bytes, "%s/%s", l->group, link);
    lksi_ckpt_unescape(f->name);
    TRY(lksi_h5_describe(l->h5, f->path, &f->info));
    char dtype[40];
    TRY(lksi_h5_get_text(l->h5, f->path, "dtype", dtype, sizeof dtype));
    f->dtype = lks_dtype_from_name(dtype);
    if (f->info.dtype != (f->dtype == LKS_BOOL ? LKS_U8 : f->dtype) || f->dtype == LKS_DTYPE_NONE)
        return damaged(l, f->path, "has another type than it says");
    f->extent = -1;
    if (f->info.numel) {
        f->extent = lksi_ckpt_find(l->file, f->info.offset);
        if (f->extent < 0 || l->file->e[f->extent].bytes != f->info.numel * f->info.size)
            return damaged(l, f->path, "is not where the extents say");
    }
    return LKS_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const found *)a)->name, ((const found *)b)->name); }

static lks_status read_table(loading *l, const char *group, table *t)
{
    l->group = group;
    l->into = t;
    TRY(lksi_h5_list(l->h5, group, add_found, l));
    qsort(t->f, (size_t)t->n, sizeof *t->f, by_name);
    for (int64_t i = 1; i < t->n; i++)
        if (!strcmp(t->f[i].name, t->f[i - 1].name)) return damaged(l, t->f[i].path, "is there twice");
    return LKS_OK;
}

static found *look_up(const table *t, const char *name)
{
    int64_t lo = 0, hi = t->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (strcmp(t->f[mid].name, name) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo < t->n && !strcmp(t->f[lo].name, name) ? &t->f[lo] : NULL;
}

static lks_status read_key(void *user, const char *link)
{
    loading *l = user;
    char *name = lksi_strdup(l->b, link);
    int64_t bytes = (int64_t)strlen(link) + 10;
    char *path = lksi_alloc(l->b, bytes);
    lks_status status = name && path ? LKS_OK : LKS_ERR_MEMORY;
    lksi_h5_info info;
    if (status == LKS_OK) {
        snprintf(path, (size_t)bytes, "/program/%s", link);
        lksi_ckpt_unescape(name);
        status = lksi_h5_describe(l->h5, path, &info);
    }
    lksi_key *k = status == LKS_OK ? lksi_keys_put(l->b, &l->keys, name) : NULL;
    if (status == LKS_OK && !k) status = LKS_ERR_MEMORY;
    if (status == LKS_OK) {
        k->kind = info.dtype == LKS_I64 ? LKSI_KEY_I64 : info.dtype == LKS_F64 ? LKSI_KEY_F64 : LKSI_KEY_TEXT;
        if (info.numel != 1) status = damaged(l, path, "is not one value");
        else if (k->kind == LKSI_KEY_TEXT) status = lksi_h5_read_text(l->h5, path, &k->text);
        else
            status =
                lksi_h5_read_rows(l->h5, path, 0, 1, info.dtype, k->kind == LKSI_KEY_I64 ? (void *)&k->i64 : &k->f64);
        if (status != LKS_OK && !k->text) k->kind = LKSI_KEY_I64;
    }
    lksi_free(l->b, name);
    lksi_free(l->b, path);
    return status;
}

static lks_status known_root(void *user, const char *name)
{
    static const char *const known[] = {"model", "optimizer", "scaler", "rng", "program", "extents"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i])) return LKS_OK;
    surprise(user, "/", name);
    return LKS_OK;
}

static lks_status read_scaler(loading *l)
{
    lksi_scaler_saved *v = &l->scaler;
    int64_t enabled, bits;
    const struct { const char *name; int64_t *value; } whole[] = {
        {"enabled", &enabled}, {"scale_bits", &bits}, {"tracker", &v->tracker}, {"good", &v->good}, {"bad", &v->bad},
        {"floor_skips", &v->floor_skips}, {"interval", &v->interval}, {"floor_limit", &v->floor_limit},
        {"hysteresis", &v->hysteresis}, {"fixed", &v->fixed}, {"credit", &v->credit}, {"sticky", &v->sticky},
        {"strikes", &v->strikes}, {"window_at", &v->window_at}};
    const struct { const char *name; double *value; } real[] = {
        {"growth", &v->growth}, {"backoff", &v->backoff}, {"floor", &v->floor}, {"ceiling", &v->ceiling}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        TRY(lksi_h5_get_i64(l->h5, "/scaler", whole[i].name, whole[i].value));
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        TRY(lksi_h5_get_f64(l->h5, "/scaler", real[i].name, real[i].value));
    if (enabled < 0 || enabled > 1 || bits < 0 || bits > UINT32_MAX)
        return damaged(l, "/scaler", "has impossible values");
    v->enabled = (int32_t)enabled;
    v->scale_bits = (uint32_t)bits;
    return LKS_OK;
}

/* --- what fits where ---------------------------------------------------------------------------------------------- */

static const char *shape_of(lks_dtype dtype, int ndim, const int64_t *shape, char *text, int bytes)
{
    lksi_view v;
    memset(&v, 0, sizeof v);
    v.ndim = ndim;
    memcpy(v.shape, shape, (size_t)ndim * sizeof *shape);
    int n = snprintf(text, (size_t)bytes, "%s", lks_dtype_name(dtype));
    lksi_shape_text(&v, text + n, bytes - n);
    return text;
}

static lks_status plan_copy(loading *l, found *f, lks_dtype dtype, const lks_tensor *t, char *to, const char *what)
{
    char a[300], b[300];
    int same = f->dtype == dtype && f->info.ndim == t->v.ndim;
    for (int d = 0; same && d < t->v.ndim; d++) same = f->info.shape[d] == t->v.shape[d];
    if (!same)
        return lksi_fail(l->b, LKS_ERR_MISMATCH, l->where, "%s%s is %s in %s, but %s in the program", what, f->name,
                         shape_of(f->dtype, f->info.ndim, f->info.shape, a, sizeof a), l->file->path,
                         shape_of(dtype, t->v.ndim, t->v.shape, b, sizeof b));
    f->used = 1;
    if (f->extent < 0) return LKS_OK;
    if (l->copy_count == l->copy_room) {
        int64_t room = l->copy_room ? 2 * l->copy_room : 64;
        copy *grown =
            lksi_realloc(l->b, l->copies, l->copy_room * (int64_t)sizeof *grown, room * (int64_t)sizeof *grown);
        if (!grown) return LKS_ERR_MEMORY;
        l->copies = grown;
        l->copy_room = room;
    }
    l->copies[l->copy_count++] = (copy){f->extent, to};
    return LKS_OK;
}

static lks_status fit_model(loading *l)
{
    lks_params *ps = lksi_ckpt_params(l->c);
    TRY(read_table(l, "/model", &l->model));
    for (int64_t i = 0; i < l->model.n; i++) {
        found *f = &l->model.f[i];
        TRY(lksi_h5_get_i64(l->h5, f->path, "index", &f->index));
        if (f->index < 0 || f->index >= l->model.n) return damaged(l, f->path, "has an impossible index");
    }
    if (!ps) return LKS_OK;
    for (int i = 0; i < ps->n; i++) {
        found *f = look_up(&l->model, ps->e[i].name);
        if (f) TRY(plan_copy(l, f, ps->e[i].t->v.dtype, ps->e[i].t, ps->e[i].t->v.data, ""));
        else miss(l, "", ps->e[i].name);
    }
    for (int64_t i = 0; i < l->model.n; i++)
        if (!l->model.f[i].used) surprise(l, "", l->model.f[i].name);
    return LKS_OK;
}

/* A parameter of the program in a block that it does not have. */
static lks_status known_entry(void *user, const char *link)
{
    loading *l = user;
    char *name = lksi_strdup(l->b, link);
    if (!name) return LKS_ERR_MEMORY;
    lksi_ckpt_unescape(name);
    if (lks_params_find(lksi_ckpt_params(l->c), name) >= 0) l->entries++;
    lksi_free(l->b, name);
    return LKS_OK;
}

static lks_status unknown_block(void *user, const char *name)
{
    loading *l = user;
    char path[600];
    if (!strcmp(name, "settings") || !strcmp(name, "param_applied")) return LKS_OK;
    for (int k = 0; k < l->blocks; k++) {
        lksi_state_block block;
        lksi_optim_block(l->c->opt, k, &block);
        if (!strcmp(name, block.name)) return LKS_OK;
    }
    /* A block of parameters that are unknown themselves is not counted once more. */
    l->entries = 0;
    if (snprintf(path, sizeof path, "/optimizer/%s", name) < (int)sizeof path)
        TRY(lksi_h5_list(l->h5, path, known_entry, l));
    if (l->entries) surprise(l, "/optimizer/", name);
    return LKS_OK;
}

/* Compares kinds; a difference in betas, momentum or groups is only said: those are the program's to choose. */
static lks_status fit_kind(loading *l)
{
    char kind[80], *text = NULL;
    const char *mine = lksi_optim_kind_name(l->c->opt);
    if (!mine) return LKS_ERR_MEMORY;
    TRY(lksi_h5_get_text(l->h5, "/optimizer", "kind", kind, sizeof kind));
    int n = lksi_ckpt_kind_length(mine);
    if ((int)strlen(kind) != n || strncmp(kind, mine, (size_t)n))
        return lksi_fail(l->b, LKS_ERR_MISMATCH, l->where, "%s was saved with optimizer %s, the program has %.*s",
                         l->file->path, kind, n, mine);
    TRY(lksi_h5_read_text(l->h5, "/optimizer/settings", &text));
    if (strcmp(text, mine) && l->b->rank == 0)
        lksi_log(l->b, LKS_LOG_WARNING, "%s: optimizer settings differ: saved \"%s\", now \"%s\"", l->file->path,
                 text, mine);
    lksi_free(l->b, text);
    return LKS_OK;
}

static lks_status fit_optim(loading *l)
{
    lks_optim *opt = l->c->opt;
    lks_params *ps = lksi_ckpt_params(l->c);
    if (!opt) return LKS_OK;
    l->has_optim = lksi_h5_has(l->h5, "/optimizer");
    if (!l->has_optim) {
        miss(l, "", "the optimizer's state");
        return LKS_OK;
    }
    TRY(fit_kind(l));
    l->blocks = lksi_optim_block_count(opt);
    l->block = lksi_alloc(l->b, l->blocks * (int64_t)sizeof *l->block);
    l->optim.param_applied = lksi_alloc(l->b, ps->n * (int64_t)sizeof(int64_t));
    if (!l->block || !l->optim.param_applied) return LKS_ERR_MEMORY;
    TRY(lksi_optim_read(opt, &l->optim)); /* what the file does not have stays */
    for (int k = 0; k < l->blocks; k++) {
        lksi_state_block block;
        char path[80], what[80];
        lksi_optim_block(opt, k, &block);
        snprintf(path, sizeof path, "/optimizer/%s", block.name);
        snprintf(what, sizeof what, "%s of ", block.name);
        if (!lksi_h5_has(l->h5, path)) {
            miss(l, "", path);
            continue;
        }
        TRY(read_table(l, path, &l->block[k]));
        for (int i = 0; i < ps->n; i++) {
            const lksi_entry *e = &ps->e[i];
            if (e->is_buffer || e->arena != block.arena) continue;
            found *f = look_up(&l->block[k], e->name);
            char *to = block.data + ps->arena[block.arena]->slice[e->slice].offset * lks_dtype_size(block.dtype);
            if (f) TRY(plan_copy(l, f, block.dtype, e->t, to, what));
            else if (look_up(&l->model, e->name)) miss(l, what, e->name); /* else it is missing as a whole */
        }
    }
    TRY(lksi_h5_list(l->h5, "/optimizer", unknown_block, l));
    TRY(lksi_h5_get_i64(l->h5, "/optimizer", "attempts", &l->optim.attempts));
    TRY(lksi_h5_get_i64(l->h5, "/optimizer", "applied", &l->optim.applied));
    TRY(lksi_h5_get_i64(l->h5, "/optimizer", "skipped", &l->optim.skipped));
    if (l->optim.attempts < 0 || l->optim.applied < 0 || l->optim.skipped < 0)
        return damaged(l, "/optimizer", "has a negative counter");
    lksi_h5_info info;
    TRY(lksi_h5_describe(l->h5, "/optimizer/param_applied", &info));
    if (info.ndim != 1 || info.numel != l->model.n)
        return damaged(l, "/optimizer/param_applied", "has another length than /model");
    int64_t *applied = lksi_alloc(l->b, l->model.n * (int64_t)sizeof *applied);
    if (!applied) return LKS_ERR_MEMORY;
    lks_status status = lksi_h5_read_rows(l->h5, "/optimizer/param_applied", 0, l->model.n, LKS_I64, applied);
    for (int i = 0; i < ps->n && status == LKS_OK; i++) {
        const found *f = look_up(&l->model, ps->e[i].name);
        if (!f) continue;
        l->optim.param_applied[i] = applied[f->index];
        if (applied[f->index] < 0) status = damaged(l, "/optimizer/param_applied", "has a negative counter");
    }
    lksi_free(l->b, applied);
    return status;
}

static lks_status fit_scaler(loading *l)
{
    if (!l->c->scaler) return LKS_OK;
    l->has_scaler = lksi_h5_has(l->h5, "/scaler");
    if (!l->has_scaler) {
        if (lks_scaler_enabled(l->c->scaler)) miss(l, "", "the scaler's state");
        return LKS_OK;
    }
    TRY(read_scaler(l));
    return lksi_scaler_check(l->c->scaler, &l->scaler, l->c->policy);
}

/* Everything that can be found wrong without touching the program. Local. */
static lks_status fit(loading *l)
{
    lks_params *ps = lksi_ckpt_params(l->c);
    if (ps) TRY(lks_params_seal(ps));
    TRY(lksi_h5_list(l->h5, "/", known_root, l));
    TRY(lksi_h5_list(l->h5, "/program", read_key, l));
    TRY(lksi_h5_get_i64(l->h5, "/rng", "seed", &l->seed));
    TRY(lksi_h5_get_i64(l->h5, "/rng", "attempt", &l->attempt));
    if (l->attempt < 0) return damaged(l, "/rng", "has a negative counter");
    TRY(fit_model(l));
    TRY(fit_optim(l));
    TRY(fit_scaler(l));
    if (l->c->strict && (l->missing || l->unexpected))
        return lksi_fail(l->b, LKS_ERR_MISMATCH, l->where,
                         "%s does not fit the program: %d missing in the file (%s), %d unknown to the program (%s)",
                         l->file->path, l->missing, l->missing ? l->missing_text : "none", l->unexpected,
                         l->unexpected ? l->unexpected_text : "none");
    return LKS_OK;
}

/* --- writing into the program ------------------------------------------------------------------------------------- */

static lks_status copy_in(loading *l)
{
    lksi_ckpt_file *f = l->file;
    char *buffer = lksi_alloc(l->b, LKSI_CKPT_WRITE);
    uint64_t hash[LKSI_CKPT_WRITE / LKSI_CKPT_BLOCK];
    lks_status status = buffer ? LKS_OK : LKS_ERR_MEMORY;
    for (int64_t i = 0; i < l->copy_count && status == LKS_OK; i++) {
        const lksi_extent *e = &f->e[l->copies[i].extent];
        const uint64_t *want = f->block_hash + f->first_block[l->copies[i].extent];
        for (int64_t at = 0; at < e->bytes && status == LKS_OK; at += LKSI_CKPT_WRITE) {
            int64_t n = e->bytes - at < LKSI_CKPT_WRITE ? e->bytes - at : LKSI_CKPT_WRITE;
            status = lksi_ckpt_read(l->b, l->where, f->fd, f->path, e->offset + at, buffer, n);
            if (status != LKS_OK) break;
            lksi_ckpt_hash_blocks(buffer, n, hash);
            if (memcmp(hash, want + at / LKSI_CKPT_BLOCK, (size_t)lksi_ckpt_blocks(n) * sizeof *hash))
                status = lksi_fail(l->b, LKS_ERR_CORRUPT, l->where,
                                   "%s changed while it was loaded; load again before going on", f->path);
            else status = lksi_device_write(l->ctx->dev, l->copies[i].to + at, buffer, n);
        }
    }
    lksi_free(l->b, buffer);
    return status;
}

static lks_status restore(loading *l)
{
    lks_checkpoint *c = l->c;
    lks_params *ps = lksi_ckpt_params(c);
    TRY(copy_in(l));
    for (int k = 0; ps && k < LKSI_ARENAS; k++)
        if (ps->arena[k]) lksi_arena_touched(ps->arena[k], 0);
    if (ps && ps->buffers) lksi_arena_touched(ps->buffers, 0);
    for (int i = 0; ps && i < ps->n; i++)
        if (!ps->e[i].t->st->arena) ps->e[i].t->st->version++;
    if (l->has_scaler) TRY(lksi_scaler_write(c->scaler, &l->scaler, c->policy));
    l->ctx->seed = l->seed; /* as lks_random_set */
    l->ctx->attempt = l->attempt;
    l->ctx->call = 0;
    lksi_rng rng = {l->seed, l->attempt};
    TRY(lksi_device_write(l->ctx->dev, l->ctx->rng, &rng, sizeof rng));
    if (l->has_optim) TRY(lksi_optim_write(c->opt, &l->optim));
    return LKS_OK;
}

/* A difference that may show in the last bits is said. */
static void say_differences(loading *l)
{
    int64_t ranks = 0, threads = 0;
    char device[80] = "";
    lksi_base *b = l->b;
    lks_status kept = b->code;
    lksi_h5_get_i64(l->h5, "/", "world_size", &ranks);
    lksi_h5_get_i64(l->h5, "/", "threads", &threads);
    lksi_h5_get_text(l->h5, "/", "device", device, sizeof device);
    if (kept == LKS_OK) b->code = LKS_OK;
    const char *now = l->ctx->dev->be->name;
    if (b->rank == 0 && (ranks != b->size || threads != l->ctx->threads || strcmp(device, now)))
        lksi_log(b, LKS_LOG_INFO,
                 "%s was saved by %lld ranks of %lld threads on %s, this is %d of %d on %s: results may differ "
                 "in the last bits",
                 l->file->path, (long long)ranks, (long long)threads, device, b->size, l->ctx->threads, now);
}

static void end(loading *l)
{
    table *t[1] = {&l->model};
    for (int k = -1; k < (l->block ? l->blocks : 0); k++) {
        table *x = k < 0 ? t[0] : &l->block[k];
        for (int64_t i = 0; i < x->n; i++) {
            lksi_free(l->b, x->f[i].name);
            lksi_free(l->b, x->f[i].path);
        }
        lksi_free(l->b, x->f);
    }
    lksi_free(l->b, l->block);
    lksi_free(l->b, l->copies);
    lksi_free(l->b, l->optim.param_applied);
    lksi_keys_free(l->b, &l->keys);
    lksi_ckpt_close(l->file);
}

static loading begin(lks_checkpoint *c, const char *where)
{
    return (loading){.c = c, .ctx = c->ctx, .b = &c->ctx->base, .where = where};
}

lks_status lks_checkpoint_load(lks_checkpoint *c, const char *path, int *missing, int *unexpected)
{
    static const char where[] = "lks_checkpoint_load";
    if (missing) *missing = 0;
    if (unexpected) *unexpected = 0;
    if (!c) return LKS_ERR_ARGUMENT;
    if (!path || !*path) return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, where, "no path given");
    loading l = begin(c, where);
    lks_status status = lksi_ckpt_open(l.b, where, path, &l.file);
    status = lksi_ckpt_verify_data(l.ctx, l.file, status);
    if (status == LKS_OK) {
        l.h5 = l.file->h5;
        status = lksi_ckpt_outcome(l.ctx, where, fit(&l));
        if (missing) *missing = l.missing;
        if (unexpected) *unexpected = l.unexpected;
    }
    if (status == LKS_OK) {
        say_differences(&l);
        status = lksi_ckpt_outcome(l.ctx, where, restore(&l));
    }
    if (status == LKS_OK) { /* the file's keys take the place of the program's */
        lksi_keys old = c->keys;
        c->keys = l.keys;
        l.keys = old;
    }
    end(&l);
    return status;
}

lks_status lks_checkpoint_peek(lks_checkpoint *c, const char *path)
{
    static const char where[] = "lks_checkpoint_peek";
    if (!c) return LKS_ERR_ARGUMENT;
    if (!path || !*path) return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, where, "no path given");
    loading l = begin(c, where);
    lks_status status = lksi_ckpt_open(l.b, where, path, &l.file);
    if (status == LKS_OK) {
        l.h5 = l.file->h5;
        status = lksi_h5_list(l.h5, "/program", read_key, &l);
    }
    status = lksi_ckpt_outcome(l.ctx, where, status);
    if (status == LKS_OK) {
        lksi_keys old = c->keys;
        c->keys = l.keys;
        l.keys = old;
    }
    end(&l);
    return status;
}

lks_status lks_checkpoint_verify(lks_context *ctx, const char *path)
{
    static const char where[] = "lks_checkpoint_verify";
    if (!ctx) return LKS_ERR_ARGUMENT;
    if (!path || !*path) return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "no path given");
    lksi_ckpt_file *f = NULL;
    lks_status status = lksi_ckpt_open(&ctx->base, where, path, &f);
    status = lksi_ckpt_verify_data(ctx, f, status);
    lksi_ckpt_close(f);
    return status;
}
