/* SPDX-License-Identifier: BSD-3-Clause
 *
 * save.c - writing a checkpoint. Rank 0 makes the HDF5 structure in memory and hands out the places of the big
 * datasets; every rank writes its share of their blocks in place, to PATH.tmp; rank 0 adds checksums and structure,
 * syncs, verifies, renames, syncs the folder. Until the rename an older PATH is untouched; after any failure PATH.tmp
 * is gone. HDF5 itself never writes to the disk, so a full one is an ordinary error.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, fallocate */
#endif
#include "ckpt/ckpt.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIRECT_ALIGN 4096
#define DIRECT_LEAST (1 << 20) /* shorter pieces are not worth it */

/* A dataset whose bytes the ranks write. */
typedef struct item {
    char *path;
    int entry;        /* parameter */
    int block;        /* optimizer block, -1: the value */
    const char *data; /* device */
    lks_dtype dtype;
    int ndim;
    const int64_t *shape;
    int64_t bytes, offset, first_block;
} item;

typedef struct saving {
    lks_checkpoint *c;
    lks_context *ctx;
    lksi_base *b;
    const char *where, *path;
    char *tmp;
    int64_t step;
    item *it;
    int64_t items, blocks;
    uint64_t *hash; /* blocks */
    lksi_optim_saved optim;
    lksi_scaler_saved scaler;
    /* rank 0 */
    lksi_h5 *h5;
    lksi_h5_image *image;
    int fd;
    int created;
} saving;

/* --- SIGXFSZ: a file size limit is an error, not the end of the process ------------------------------------------- */

typedef struct guard { sigset_t old; int pending; } guard;

static void guard_begin(guard *g)
{
    sigset_t one, now;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &one, &g->old);
    sigpending(&now);
    g->pending = sigismember(&now, SIGXFSZ);
}

static void guard_end(const guard *g)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    struct timespec none = {0, 0};
    if (!g->pending)
        while (sigtimedwait(&one, NULL, &none) < 0 && errno == EINTR) {}
    pthread_sigmask(SIG_SETMASK, &g->old, NULL);
}

/* --- what is to be written ---------------------------------------------------------------------------------------- */

static lks_status add(saving *s, const char *prefix, int entry, int block, const char *data, lks_dtype dtype)
{
    const lksi_entry *e = &lksi_ckpt_params(s->c)->e[entry];
    item *i = &s->it[s->items];
    i->path = lksi_ckpt_escape(s->b, prefix, e->name);
    if (!i->path) return LKS_ERR_MEMORY;
    i->entry = entry;
    i->block = block;
    i->data = data;
    i->dtype = dtype;
    i->ndim = e->t->v.ndim;
    i->shape = e->t->v.shape;
    i->bytes = e->t->numel * lks_dtype_size(dtype);
    i->offset = -1;
    i->first_block = s->blocks;
    s->blocks += lksi_ckpt_blocks(i->bytes);
    s->items++;
    return LKS_OK;
}

/* Every rank makes the same list; fallible and local. */
static lks_status collect(saving *s)
{
    lks_checkpoint *c = s->c;
    lks_params *ps = lksi_ckpt_params(c);
    int n = ps ? ps->n : 0, blocks = c->opt ? lksi_optim_block_count(c->opt) : 0;
    s->it = lksi_alloc(s->b, n * (int64_t)(1 + blocks) * (int64_t)sizeof *s->it);
    s->optim.param_applied = lksi_alloc(s->b, n * (int64_t)sizeof(int64_t));
    s->tmp = lksi_alloc(s->b, (int64_t)strlen(s->path) + 5);
    if (!s->it || !s->optim.param_applied || !s->tmp) return LKS_ERR_MEMORY;
    snprintf(s->tmp, strlen(s->path) + 5, "%s.tmp", s->path);
    for (int i = 0; i < n; i++) TRY(add(s, "/model/", i, -1, ps->e[i].t->v.data, ps->e[i].t->v.dtype));
    for (int k = 0; k < blocks; k++) {
        lksi_state_block block;
        char prefix[80];
        lksi_optim_block(c->opt, k, &block);
        snprintf(prefix, sizeof prefix, "/optimizer/%s/", block.name);
        for (int i = 0; i < n; i++) {
            const lksi_entry *e = &ps->e[i];
            if (e->is_buffer || e->arena != block.arena) continue;
            int64_t at = ps->arena[block.arena]->slice[e->slice].offset * lks_dtype_size(block.dtype);
            TRY(add(s, prefix, i, k, block.data + at, block.dtype));
        }
    }
    s->hash = lksi_alloc(s->b, s->blocks * (int64_t)sizeof *s->hash);
    if (!s->hash) return LKS_ERR_MEMORY;
    if (c->opt) TRY(lksi_optim_read(c->opt, &s->optim));
    if (c->scaler) TRY(lksi_scaler_read(c->scaler, &s->scaler));
    return LKS_OK;
}

/* --- rank 0: structure -------------------------------------------------------------------------------------------- */

static lks_status put_keys(saving *s)
{
    const lksi_keys *keys = &s->c->keys;
    TRY(lksi_h5_make_group(s->h5, "/program"));
    for (int64_t i = 0; i < keys->n; i++) {
        const lksi_key *k = &keys->k[i];
        char *path = lksi_ckpt_escape(s->b, "/program/", k->name);
        if (!path) return LKS_ERR_MEMORY;
        lks_status status;
        lks_dtype dtype = k->kind == LKSI_KEY_I64 ? LKS_I64 : LKS_F64;
        if (k->kind == LKSI_KEY_TEXT) status = lksi_h5_put_text(s->h5, path, k->text);
        else {
            status = lksi_h5_make_dataset(s->h5, path, dtype, 0, NULL, NULL);
            if (status == LKS_OK)
                status = lksi_h5_write(s->h5, path, dtype, dtype == LKS_I64 ? (const void *)&k->i64 : &k->f64);
        }
        lksi_free(s->b, path);
        TRY(status);
    }
    return LKS_OK;
}

static lks_status put_scaler(saving *s)
{
    const lksi_scaler_saved *v = &s->scaler;
    const struct { const char *name; int64_t value;
    } whole[] = {{"enabled", v->enabled},   {"scale_bits", v->scale_bits},
                 {"tracker", v->tracker},   {"good", v->good},
                 {"bad", v->bad},           {"floor_skips", v->floor_skips},
                 {"interval", v->interval}, {"floor_limit", v->floor_limit},
                 {"hysteresis", v->hysteresis}, {"fixed", v->fixed},
                 {"credit", v->credit},     {"sticky", v->sticky},
                 {"strikes", v->strikes},   {"window_at", v->window_at}};
    const struct { const char *name; double value; } real[] = {
        {"growth", v->growth}, {"backoff", v->backoff}, {"floor", v->floor}, {"ceiling", v->ceiling}};
    float scale;
    char hex[40];
    memcpy(&scale, &v->scale_bits, 4);
    lksi_hex_float(hex, sizeof hex, (double)scale);
    TRY(lksi_h5_make_group(s->h5, "/scaler"));
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        TRY(lksi_h5_set_i64(s->h5, "/scaler", whole[i].name, whole[i].value));
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        TRY(lksi_h5_set_f64(s->h5, "/scaler", real[i].name, real[i].value));
    return lksi_h5_set_text(s->h5, "/scaler", "scale", hex);
}

static lks_status put_optim(saving *s)
{
    lks_optim *opt = s->c->opt;
    const char *text = lksi_optim_kind_name(opt);
    if (!text) return LKS_ERR_MEMORY;
    char kind[80];
    snprintf(kind, sizeof kind, "%.*s", lksi_ckpt_kind_length(text), text);
    int64_t n = lksi_ckpt_params(s->c)->n;
    TRY(lksi_h5_make_group(s->h5, "/optimizer"));
    TRY(lksi_h5_set_text(s->h5, "/optimizer", "kind", kind));
    TRY(lksi_h5_set_i64(s->h5, "/optimizer", "attempts", s->optim.attempts));
    TRY(lksi_h5_set_i64(s->h5, "/optimizer", "applied", s->optim.applied));
    TRY(lksi_h5_set_i64(s->h5, "/optimizer", "skipped", s->optim.skipped));
    TRY(lksi_h5_put_text(s->h5, "/optimizer/settings", text));
    TRY(lksi_h5_make_dataset(s->h5, "/optimizer/param_applied", LKS_I64, 1, &n, NULL));
    if (n) TRY(lksi_h5_write(s->h5, "/optimizer/param_applied", LKS_I64, s->optim.param_applied));
    for (int k = 0; k < lksi_optim_block_count(opt); k++) {
        lksi_state_block block;
        char path[80];
        lksi_optim_block(opt, k, &block);
        snprintf(path, sizeof path, "/optimizer/%s", block.name);
        if (!lksi_h5_has(s->h5, path)) TRY(lksi_h5_make_group(s->h5, path)); /* one for all dtypes */
    }
    return LKS_OK;
}

static lks_status put_items(saving *s)
{
    lks_params *ps = lksi_ckpt_params(s->c);
    for (int64_t k = 0; k < s->items; k++) {
        item *i = &s->it[k];
        TRY(lksi_h5_make_dataset(s->h5, i->path, i->dtype, i->ndim, i->shape, &i->offset));
        TRY(lksi_h5_set_text(s->h5, i->path, "dtype", lks_dtype_name(i->dtype)));
        TRY(lksi_h5_set_text(s->h5, i->path, "xxh64", "0000000000000000"));
        if (i->block >= 0) continue;
        TRY(lksi_h5_set_i64(s->h5, i->path, "index", i->entry));
        TRY(lksi_h5_set_text(s->h5, i->path, "role", ps->e[i->entry].is_buffer ? "buffer" : "parameter"));
    }
    return LKS_OK;
}

static lks_status lay_out(saving *s)
{
    int64_t metadata = 16384, end = 0, rows[2] = {0, 3};
    while (metadata < s->items * 1024 && metadata < 1 << 20) metadata *= 2;
    TRY(lksi_h5_create(s->b, s->where, LKSI_CKPT_HEAD, metadata, &s->h5));
    TRY(lksi_h5_set_i64(s->h5, "/", "format", LKSI_CKPT_FORMAT));
    TRY(lksi_h5_set_i64(s->h5, "/", "step", s->step));
    TRY(lksi_h5_set_i64(s->h5, "/", "world_size", s->b->size));
    TRY(lksi_h5_set_i64(s->h5, "/", "threads", s->ctx->threads));
    TRY(lksi_h5_set_text(s->h5, "/", "device", s->ctx->dev->be->name));
    char version[40];
    snprintf(version, sizeof version, "%d.%d.%d", LKS_VERSION_MAJOR, LKS_VERSION_MINOR, LKS_VERSION_PATCH);
    TRY(lksi_h5_set_text(s->h5, "/", "lockstep", version));
    TRY(lksi_h5_make_group(s->h5, "/rng"));
    TRY(lksi_h5_set_i64(s->h5, "/rng", "seed", s->ctx->seed));
    TRY(lksi_h5_set_i64(s->h5, "/rng", "attempt", s->ctx->attempt));
    TRY(put_keys(s));
    if (s->c->scaler) TRY(put_scaler(s));
    TRY(lksi_h5_make_group(s->h5, "/model"));
    if (s->c->opt) TRY(put_optim(s));
    for (int64_t k = 0; k < s->items; k++) rows[0] += s->it[k].bytes > 0;
    TRY(lksi_h5_make_dataset(s->h5, "/extents", LKS_I64, 2, rows, NULL));
    TRY(put_items(s));
    for (int64_t k = 0; k < s->items; k++)
        if (s->it[k].offset + s->it[k].bytes > end) end = s->it[k].offset + s->it[k].bytes;
    s->fd = open(s->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (s->fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return lksi_fail(s->b, LKS_ERR_NOT_FOUND, s->where, "%s cannot be made: its folder does not exist",
                             s->path);
        return lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
    }
    s->created = 1;
    /* Space is taken now, so that a full disk is known before anything is written. */
    if (end && fallocate(s->fd, 0, 0, end) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
    return LKS_OK;
}

/* --- every rank: data --------------------------------------------------------------------------------------------- */

/* While one piece is written by a thread of ours the next one is fetched and hashed. The thread only writes: errors
 * are recorded, and devices asked, by the caller's. */
typedef struct sink {
    int fd, direct;  /* direct: -1 = not to be had */
    char *room;      /* of both buffers */
    char *buffer[2]; /* aligned, LKSI_CKPT_WRITE bytes each */
    int turn;
    /* the piece that is being written */
    const char *host;
    int64_t offset, bytes, past; /* past: of bytes, those past the cache */
    int busy, quit, error, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} sink;

/* The bytes of a piece, in the buffer if they are to be written past the cache. */
static lks_status fetch(saving *s, char *buffer, const char *device, int64_t bytes, int copy, const char **host)
{
    lksi_device *d = s->ctx->dev;
    const char *view = d->be->host_view(d->self, (void *)(uintptr_t)device);
    *host = buffer;
    if (!view) return lksi_device_read(d, buffer, device, bytes);
    if (copy) memcpy(buffer, view, (size_t)bytes);
    else *host = view;
    return LKS_OK;
}

/* errno of the failure, 0. */
static int put_piece(sink *k)
{
    int64_t done = 0;
    while (done < k->past && k->direct >= 0) {
        ssize_t n = pwrite(k->direct, k->host + done, (size_t)(k->past - done), (off_t)(k->offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EINVAL) return errno;
        if (n <= 0 || n % DIRECT_ALIGN) { /* refused here: go on through the cache */
            close(k->direct);
            __atomic_store_n(&k->direct, -1, __ATOMIC_RELAXED);
            break;
        }
        done += n;
    }
    return lksi_ckpt_put(k->fd, k->offset + done, k->host + done, k->bytes - done);
}

static void *write_pieces(void *arg)
{
    sink *k = arg;
    pthread_mutex_lock(&k->lock);
    while (!k->quit) {
        if (k->busy) {
            pthread_mutex_unlock(&k->lock);
            int error = put_piece(k);
            pthread_mutex_lock(&k->lock);
            k->error = error;
            k->busy = 0;
            pthread_cond_signal(&k->changed);
        } else {
            pthread_cond_wait(&k->changed, &k->lock);
        }
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static void start(sink *k)
{
    sigset_t all, old;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    k->started = !pthread_create(&k->thread, NULL, write_pieces, k); /* else each piece is waited for */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* What was handed over is written, or has failed. */
static lks_status written(saving *s, sink *k)
{
    pthread_mutex_lock(&k->lock);
    while (k->busy) pthread_cond_wait(&k->changed, &k->lock);
    int error = k->error;
    k->error = 0;
    pthread_mutex_unlock(&k->lock);
    return error ? lksi_ckpt_write_error(s->b, s->where, s->tmp, error) : LKS_OK;
}

static lks_status stop(saving *s, sink *k, lks_status status)
{
    lks_status last = written(s, k);
    if (k->started) {
        pthread_mutex_lock(&k->lock);
        k->quit = 1;
        pthread_cond_signal(&k->changed);
        pthread_mutex_unlock(&k->lock);
        pthread_join(k->thread, NULL);
    }
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    return status == LKS_OK ? last : status;
}

static lks_status write_piece(saving *s, sink *k, const item *i, int64_t at, int64_t bytes)
{
    const char *host;
    int direct = __atomic_load_n(&k->direct, __ATOMIC_RELAXED) >= 0;
    int64_t past = direct && bytes >= DIRECT_LEAST ? bytes / DIRECT_ALIGN * DIRECT_ALIGN : 0;
    char *buffer = k->buffer[k->turn];
    k->turn = !k->turn;
    TRY(fetch(s, buffer, i->data + at, bytes, past > 0, &host));
    lksi_ckpt_hash_blocks(host, bytes, s->hash + i->first_block + at / LKSI_CKPT_BLOCK);
    TRY(written(s, k));
    k->host = host, k->offset = i->offset + at, k->bytes = bytes, k->past = past;
    if (!k->started) {
        k->error = put_piece(k);
        return written(s, k);
    }
    pthread_mutex_lock(&k->lock);
    k->busy = 1;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    return LKS_OK;
}

static lks_status write_share(saving *s)
{
    sink k = {.fd = s->fd, .direct = -1};
    lks_status status = LKS_OK;
    int size = s->b->size, rank = s->b->rank;
    int64_t q = s->blocks / size, r = s->blocks % size, first = rank * q + (rank < r ? rank : r),
            last = first + q + (rank < r);
    int64_t half = first + (last - first) / 2, killed = 0;
    if (first < last) {
        k.room = lksi_alloc(s->b, 2 * LKSI_CKPT_WRITE + DIRECT_ALIGN);
        if (!k.room) return LKS_ERR_MEMORY;
        k.buffer[0] = k.room + (DIRECT_ALIGN - (uintptr_t)k.room % DIRECT_ALIGN) % DIRECT_ALIGN;
        k.buffer[1] = k.buffer[0] + LKSI_CKPT_WRITE;
        if (k.fd < 0 && (k.fd = open(s->tmp, O_WRONLY | O_CLOEXEC | O_NOFOLLOW)) < 0)
            status = lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
#ifdef O_DIRECT
        if (status == LKS_OK) k.direct = open(s->tmp, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_DIRECT);
#endif
        if (status == LKS_OK) status = lksi_device_synchronize(s->ctx->dev);
    }
    start(&k);
    for (int64_t n = 0; n < s->items && status == LKS_OK; n++) {
        const item *i = &s->it[n];
        int64_t end_block = i->first_block + lksi_ckpt_blocks(i->bytes);
        int64_t from = first > i->first_block ? first : i->first_block, to = last < end_block ? last : end_block;
        if (from >= to) continue;
        int64_t at = (from - i->first_block) * LKSI_CKPT_BLOCK, end = (to - i->first_block) * LKSI_CKPT_BLOCK;
        if (end > i->bytes) end = i->bytes;
        for (; at < end && status == LKS_OK; at += LKSI_CKPT_WRITE) {
            if (!killed && i->first_block + at / LKSI_CKPT_BLOCK >= half) {
                killed = 1;
                status = written(s, &k);
                lksi_fault_point(s->b, "mid-write");
                if (status != LKS_OK) break;
            }
            status = write_piece(s, &k, i, at, end - at < LKSI_CKPT_WRITE ? end - at : LKSI_CKPT_WRITE);
        }
    }
    if (!killed) lksi_fault_point(s->b, "mid-write");
    status = stop(s, &k, status);
    if (k.direct >= 0) close(k.direct);
    if (k.fd >= 0 && k.fd != s->fd) {
        if (fsync(k.fd) && status == LKS_OK) status = lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
        if (close(k.fd) && status == LKS_OK) status = lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
    }
    lksi_free(s->b, k.room);
    return status;
}

/* --- rank 0: the end ---------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    int64_t x = ((const lksi_extent *)a)->offset, y = ((const lksi_extent *)b)->offset;
    return x < y ? -1 : x > y;
}

/* The bytes HDF5 wrote between from and to; the rest there is zero as the file was made. */
static lks_status write_gap(saving *s, int64_t from, int64_t to)
{
    for (int64_t k = 0; k < lksi_h5_image_pieces(s->image); k++) {
        int64_t at, begin, end;
        const char *data = lksi_h5_image_piece(s->image, k, &at);
        begin = at > from ? at : from;
        end = at + LKSI_H5_CHUNK < to ? at + LKSI_H5_CHUNK : to;
        if (begin < end) TRY(lksi_ckpt_write(s->b, s->where, s->fd, s->tmp, begin, data + (begin - at), end - begin));
    }
    return LKS_OK;
}

static lks_status sync_folder(saving *s)
{
    char *folder = lksi_strdup(s->b, s->path);
    if (!folder) return LKS_ERR_MEMORY;
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), bad = fd < 0 || fsync(fd), error = errno;
    if (fd >= 0) close(fd);
    lksi_free(s->b, folder);
    if (bad && error != EINVAL && error != ENOTSUP && error != EACCES)
        return lksi_ckpt_write_error(s->b, s->where, s->path, error);
    return LKS_OK;
}

static lks_status seal(saving *s)
{
    int64_t n = 0, size, end = LKSI_CKPT_HEAD, extents_at = -1;
    lksi_extent *e = lksi_alloc(s->b, s->items * (int64_t)sizeof *e);
    char *head = lksi_alloc(s->b, LKSI_CKPT_HEAD);
    lks_status status = e && head ? LKS_OK : LKS_ERR_MEMORY;
    for (int64_t k = 0; k < s->items && status == LKS_OK; k++) {
        const item *i = &s->it[k];
        char text[17];
        uint64_t hash = lksi_ckpt_hash_list(s->hash + i->first_block, lksi_ckpt_blocks(i->bytes));
        snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
        status = lksi_h5_set_text(s->h5, i->path, "xxh64", text);
        if (i->bytes) e[n++] = (lksi_extent){i->offset, i->bytes, hash};
    }
    if (status == LKS_OK) {
        qsort(e, (size_t)n, sizeof *e, by_offset);
        lksi_h5_info info;
        if (n) status = lksi_h5_write(s->h5, "/extents", LKS_I64, e);
        if (status == LKS_OK) status = lksi_h5_describe(s->h5, "/extents", &info);
        if (status == LKS_OK) extents_at = n ? info.offset : LKSI_CKPT_HEAD;
    }
    if (status == LKS_OK) {
        status = lksi_h5_finish(s->h5, &s->image, &size);
        s->h5 = NULL;
    }
    if (status == LKS_OK && ftruncate(s->fd, (off_t)size))
        status = lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
    for (int64_t k = 0; k <= n && status == LKS_OK; k++) {
        status = write_gap(s, end, k < n ? e[k].offset : size);
        if (k < n) end = e[k].offset + e[k].bytes;
    }
    if (status == LKS_OK) {
        lksi_ckpt_head(head, size, extents_at, n, lksi_ckpt_structure(s->image, size, e, n));
        status = lksi_ckpt_write(s->b, s->where, s->fd, s->tmp, 0, head, LKSI_CKPT_HEAD);
    }
    lksi_free(s->b, head);
    lksi_free(s->b, e);
    return status;
}

static lks_status finish(saving *s)
{
    TRY(seal(s));
    lksi_fault_point(s->b, "before-fsync");
    if (fsync(s->fd)) return lksi_ckpt_write_error(s->b, s->where, s->tmp, errno);
    lksi_ckpt_file *f; /* what is on the disk is what was meant */
    TRY(lksi_ckpt_open(s->b, s->where, s->tmp, &f));
    lksi_ckpt_close(f);
    int bad = close(s->fd), error = errno;
    s->fd = -1;
    if (bad) return lksi_ckpt_write_error(s->b, s->where, s->tmp, error);
    lksi_fault_point(s->b, "before-rename");
    if (rename(s->tmp, s->path)) return lksi_ckpt_write_error(s->b, s->where, s->path, errno);
    s->created = 0;
    lksi_fault_point(s->b, "after-rename");
    return sync_folder(s);
}

static lks_status save(saving *s)
{
    lksi_comm *comm = s->ctx->comm;
    int root = s->b->rank == 0;
    TRY(lksi_ckpt_outcome(s->ctx, s->where, collect(s)));
    /* Ranks that built unlike models would write nonsense. */
    int64_t same[4] = {s->items, ~s->items, s->blocks, ~s->blocks};
    TRY(lksi_host_reduce(comm, s->where, same, 4, LKS_I64, LKS_MAX));
    if (same[0] != ~same[1] || same[2] != ~same[3])
        return lksi_fail(s->b, LKS_ERR_MISMATCH, s->where, "ranks do not hold the same parameters");
    TRY(lksi_ckpt_outcome(s->ctx, s->where, root ? lay_out(s) : LKS_OK));
    int64_t *offset = lksi_alloc(s->b, (s->items + 1) * (int64_t)sizeof *offset);
    TRY(lksi_ckpt_outcome(s->ctx, s->where, offset ? LKS_OK : LKS_ERR_MEMORY));
    for (int64_t k = 0; k < s->items; k++) offset[k] = s->it[k].offset;
    lks_status status = lksi_host_broadcast(comm, s->where, offset, (s->items + 1) * (int64_t)sizeof *offset, 0);
    for (int64_t k = 0; k < s->items; k++) s->it[k].offset = offset[k];
    lksi_free(s->b, offset);
    TRY(status);
    TRY(lksi_ckpt_outcome(s->ctx, s->where, write_share(s)));
    if (s->blocks) TRY(lksi_host_reduce(comm, s->where, s->hash, s->blocks, LKS_I64, LKS_SUM)); /* the others' are 0 */
    return lksi_ckpt_outcome(s->ctx, s->where, root ? finish(s) : LKS_OK);
}

lks_status lksi_ckpt_save(lks_checkpoint *c, const char *where, const char *path, int64_t step)
{
    saving s = {.c = c, .ctx = c->ctx, .b = &c->ctx->base, .where = where, .path = path, .step = step, .fd = -1};
    guard g;
    guard_begin(&g);
    lks_status status = save(&s);
    if (s.fd >= 0) close(s.fd);
    if (s.created) unlink(s.tmp);
    /* No rank returns from a failure before the temporary file is gone; a broken communicator cannot promise that. */
    if (status != LKS_OK && status != LKS_ERR_MPI && status != LKS_ERR_TIMEOUT && status != LKS_ERR_PEER_FAILED)
        lksi_ckpt_outcome(s.ctx, where, LKS_OK);
    guard_end(&g);
    lksi_h5_image *image = s.image;
    if (s.h5) lksi_h5_close(s.h5); /* its image goes with it */
    lksi_h5_image_free(image);
    for (int64_t k = 0; k < s.items; k++) lksi_free(s.b, s.it[k].path);
    lksi_free(s.b, s.it);
    lksi_free(s.b, s.hash);
    lksi_free(s.b, s.optim.param_applied);
    lksi_free(s.b, s.tmp);
    return status;
}

lks_status lks_checkpoint_save(lks_checkpoint *c, const char *path)
{
    if (!c) return LKS_ERR_ARGUMENT;
    const lksi_key *step = lksi_keys_find(&c->keys, "step");
    if (!path || !*path) return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, "lks_checkpoint_save", "no path given");
    return lksi_ckpt_save(c, "lks_checkpoint_save", path,
                          step && step->kind == LKSI_KEY_I64 ? step->i64 : c->ctx->attempt);
}
