/* SPDX-License-Identifier: BSD-3-Clause
 *
 * output.c - one array into a new HDF5 file, by all ranks. Rank 0 makes the file's structure in memory, which gives the
 * array its place; every rank writes its rows there with pwrite; rank 0 adds the structure and renames. The same with
 * serial and parallel HDF5; a file of that name appears when it is whole.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fallocate */
#endif
#include "data/loader.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct lks_output {
    lks_context *ctx;
    char *path, *temporary, *name;
    lks_dtype dtype;
    int ndim, fd, made;               /* made: rank 0 has made the temporary file */
    int64_t shape[LKS_MAX_DIMS], row; /* bytes */
    int64_t offset;
    lksi_h5 *h5; /* rank 0 */
};

static lks_status write_error(lks_output *o, const char *where, int error)
{
    int space = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return lksi_fail(&o->ctx->base, space ? LKS_ERR_NO_SPACE : LKS_ERR_IO, where, "%s cannot be written: %s",
                     o->temporary, strerror(error));
}

static lks_status put(lks_output *o, const char *where, int64_t offset, const char *data, int64_t bytes)
{
    while (bytes > 0) {
        ssize_t n = pwrite(o->fd, data, bytes < 8 << 20 ? (size_t)bytes : 8 << 20, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return write_error(o, where, n ? errno : ENOSPC);
        data += n, offset += n, bytes -= n;
    }
    return LKS_OK;
}

void lks_output_destroy(lks_output **po)
{
    if (!po || !*po) return;
    lks_output *o = *po;
    lksi_base *b = &o->ctx->base;
    lksi_h5_close(o->h5);
    if (o->fd >= 0) close(o->fd);
    if (o->made) unlink(o->temporary);
    lksi_free(b, o->name);
    lksi_free(b, o->temporary);
    lksi_free(b, o->path);
    lksi_free(b, o);
    *po = NULL;
}

/* Rank 0. Groups on the way to the array are made. */
static lks_status lay_out(lks_output *o, const char *where)
{
    char part[1100];
    TRY(lksi_h5_create(&o->ctx->base, where, 0, 16384, &o->h5));
    for (size_t i = 1; o->name[i]; i++) {
        if (o->name[i] != '/') continue;
        memcpy(part, o->name, i);
        part[i] = 0;
        if (!lksi_h5_has(o->h5, part)) TRY(lksi_h5_make_group(o->h5, part));
    }
    TRY(lksi_h5_make_dataset(o->h5, o->name, o->dtype, o->ndim, o->shape, &o->offset));
    o->fd = open(o->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (o->fd < 0) return write_error(o, where, errno);
    o->made = 1;
    int64_t end = o->offset < 0 ? 0 : o->offset + o->row * o->shape[0]; /* a full disk is known before work is done */
    if (end && fallocate(o->fd, 0, 0, end) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return write_error(o, where, errno);
    return LKS_OK;
}

static lks_status prepare(lks_output *o, const char *where, const char *path, const char *name)
{
    lksi_base *b = &o->ctx->base;
    if (!path || !*path || !name || !*name || strlen(name) > 1000 || name[strlen(name) - 1] == '/')
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the names of a file and of a dataset are needed");
    if (o->dtype < 0 || o->dtype >= LKS_DTYPE_COUNT || o->ndim < 1 || o->ndim > LKS_MAX_DIMS)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "dtype %s, %d dims; [N, ...] is needed", lks_dtype_name(o->dtype),
                         o->ndim);
    o->row = lks_dtype_size(o->dtype);
    int64_t all = 0;
    for (int d = 0; d < o->ndim; d++)
        if (o->shape[d] < 0 || (d && !lksi_mul_fits(o->row, o->shape[d], &o->row)) ||
            !lksi_mul_fits(o->row, o->shape[0], &all))
            return lksi_fail(b, LKS_ERR_SHAPE, where, "size %lld of dim %d does not do", (long long)o->shape[d], d);
    o->path = lksi_strdup(b, path);
    o->name = lksi_strdup(b, name);
    o->temporary = lksi_alloc(b, (int64_t)strlen(path) + 5);
    if (!o->path || !o->name || !o->temporary) return LKS_ERR_MEMORY;
    sprintf(o->temporary, "%s.tmp", path);
    return LKS_OK;
}

lks_status lks_output_create(lks_context *ctx, const char *path, const char *name, lks_dtype dtype, int ndim,
                             const int64_t *shape, lks_output **out)
{
    static const char where[] = "lks_output_create";
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_output *o = lksi_alloc(&ctx->base, sizeof *o);
    lks_status status = LKS_ERR_MEMORY;
    int root = ctx->base.rank == 0;
    if (o) {
        o->ctx = ctx;
        o->fd = -1;
        o->dtype = dtype;
        o->ndim = ndim;
        if (shape && ndim > 0 && ndim <= LKS_MAX_DIMS) memcpy(o->shape, shape, (size_t)ndim * sizeof *shape);
        status = prepare(o, where, path, name);
    }
    status = lksi_agree(ctx->comm, where, status);
    if (status == LKS_OK) status = lksi_agree(ctx->comm, where, root ? lay_out(o, where) : LKS_OK);
    if (status == LKS_OK) status = lksi_host_broadcast(ctx->comm, where, &o->offset, sizeof o->offset, 0);
    if (status == LKS_OK) {
        lks_status mine = LKS_OK;
        if (!root && (o->fd = open(o->temporary, O_WRONLY | O_CLOEXEC)) < 0) mine = write_error(o, where, errno);
        status = lksi_agree(ctx->comm, where, mine);
    }
    if (status != LKS_OK) lks_output_destroy(&o);
    *out = o;
    return status;
}

lks_status lks_output_write(lks_output *o, int64_t first, int64_t rows, const void *data)
{
    static const char where[] = "lks_output_write";
    if (!o) return LKS_ERR_ARGUMENT;
    if (first < 0 || rows < 0 || first > o->shape[0] || rows > o->shape[0] - first || (rows && !data))
        return lksi_fail(&o->ctx->base, LKS_ERR_ARGUMENT, where, "rows [%lld, %lld) of the %lld of \"%s\"",
                         (long long)first, (long long)first + rows, (long long)o->shape[0], o->name);
    return put(o, where, o->offset + first * o->row, data, rows * o->row);
}

/* Rank 0: the attributes of a file's root and of a dataset in it. */
static lks_status copy_from(lks_output *o, const char *where, const char *path, const char *name)
{
    lksi_h5 *f;
    TRY(lksi_h5_open(&o->ctx->base, where, path, &f));
    lks_status status = lksi_h5_copy_attributes(f, "/", o->h5, "/");
    if (status == LKS_OK) {
        size_t n = strlen(name);
        char *own = lksi_strdup(&o->ctx->base, name), *open = own && n && own[n - 1] == ']' ? strrchr(own, '[') : NULL;
        if (!own) status = LKS_ERR_MEMORY;
        if (open && !lksi_h5_has(f, own)) *open = 0;
        if (own && lksi_h5_has(f, own)) status = lksi_h5_copy_attributes(f, own, o->h5, o->name);
        lksi_free(&o->ctx->base, own);
    }
    lks_status closed = lksi_h5_close(f);
    return status == LKS_OK ? closed : status;
}

lks_status lks_output_copy_attributes(lks_output *o, const char *path, const char *name)
{
    static const char where[] = "lks_output_copy_attributes";
    if (!o || !path || !name) return LKS_ERR_ARGUMENT;
    return lksi_agree(o->ctx->comm, where, o->ctx->base.rank == 0 ? copy_from(o, where, path, name) : LKS_OK);
}

lks_status lks_output_set_text(lks_output *o, const char *key, const char *text)
{
    if (!o || !key || !*key || !text) return LKS_ERR_ARGUMENT;
    return o->ctx->base.rank ? LKS_OK : lksi_h5_set_text(o->h5, o->name, key, text);
}

/* Rank 0: everything but the array. */
static lks_status seal(lks_output *o, const char *where)
{
    lksi_h5_image *image;
    int64_t size, from = o->offset < 0 ? INT64_MAX : o->offset,
                  to = o->offset < 0 ? 0 : o->offset + o->row * o->shape[0];
    lksi_h5 *h5 = o->h5;
    o->h5 = NULL;
    TRY(lksi_h5_finish(h5, &image, &size));
    lks_status status = ftruncate(o->fd, (off_t)size) ? write_error(o, where, errno) : LKS_OK;
    for (int64_t k = 0; k < lksi_h5_image_pieces(image) && status == LKS_OK; k++) {
        int64_t at, end;
        const char *data = lksi_h5_image_piece(image, k, &at);
        end = at + LKSI_H5_CHUNK < size ? at + LKSI_H5_CHUNK : size;
        int64_t before = from < end ? from : end, after = to > at ? to : at;
        if (before > at) status = put(o, where, at, data, before - at);
        if (status == LKS_OK && after < end && after >= before)
            status = put(o, where, after, data + (after - at), end - after);
    }
    lksi_h5_image_free(image);
    TRY(status);
    if (fsync(o->fd)) return write_error(o, where, errno);
    if (rename(o->temporary, o->path)) return write_error(o, where, errno);
    o->made = 0;
    return LKS_OK;
}

lks_status lks_output_finish(lks_output *o)
{
    static const char where[] = "lks_output_finish";
    if (!o) return LKS_ERR_ARGUMENT;
    lks_status mine = LKS_OK;
    if (o->ctx->base.rank && fsync(o->fd)) mine = write_error(o, where, errno);
    TRY(lksi_agree(o->ctx->comm, where, mine));
    return lksi_agree(o->ctx->comm, where, o->ctx->base.rank == 0 ? seal(o, where) : LKS_OK);
}
