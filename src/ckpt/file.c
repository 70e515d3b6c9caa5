/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.c - head, extents, checksums, and bytes in and out. A file that is not whole is recognised here, before HDF5
 * reads any of it: HDF5 does not survive every damaged file.
 */
#include "ckpt/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* the size of the state */
#include <xxhash.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are written as memory is: little-endian machines only"
#endif

#define MAGIC "lockstep checkpoint\n"
#define CHECKED (LKSI_CKPT_HEAD - 16) /* the last 16 bytes are the hash of those before, in hexadecimal */

int64_t lksi_ckpt_blocks(int64_t bytes)
{
    return bytes / LKSI_CKPT_BLOCK + (bytes % LKSI_CKPT_BLOCK != 0);
}

void lksi_ckpt_hash_blocks(const void *data, int64_t bytes, uint64_t *hash)
{
    const char *p = data;
    for (int64_t at = 0; at < bytes; at += LKSI_CKPT_BLOCK)
        *hash++ = XXH64(p + at, (size_t)(bytes - at < LKSI_CKPT_BLOCK ? bytes - at : LKSI_CKPT_BLOCK), 0);
}

uint64_t lksi_ckpt_hash_list(const uint64_t *hash, int64_t blocks)
{
    return XXH64(hash, (size_t)blocks * sizeof *hash, 0);
}

uint64_t lksi_ckpt_structure(const lksi_h5_image *image, int64_t size, const lksi_extent *e, int64_t n)
{
    char part[4096];
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    int64_t at = LKSI_CKPT_HEAD;
    for (int64_t i = 0; i <= n; i++) {
        int64_t end = i < n ? e[i].offset : size;
        while (at < end) {
            int64_t m = end - at < (int64_t)sizeof part ? end - at : (int64_t)sizeof part;
            lksi_h5_image_get(image, at, part, m);
            XXH64_update(&state, part, (size_t)m);
            at += m;
        }
        if (i < n) at = e[i].offset + e[i].bytes;
    }
    return XXH64_digest(&state);
}

void lksi_ckpt_head(char *head, int64_t size, int64_t extents_at, int64_t n, uint64_t structure)
{
    memset(head, 0, LKSI_CKPT_HEAD);
    snprintf(
        head, CHECKED,
        MAGIC
        "format %d\nsize %lld\nextents %lld %lld\nstructure %016llx\nAn HDF5 file begins at byte %d; this is its "
        "user block.\n",
        LKSI_CKPT_FORMAT, (long long)size, (long long)extents_at, (long long)n, (unsigned long long)structure,
        LKSI_CKPT_HEAD);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH64(head, CHECKED, 0));
    memcpy(head + CHECKED, hash, 16);
}

lks_status lksi_ckpt_read(lksi_base *b, const char *where, int fd, const char *path, int64_t offset, void *data,
                          int64_t bytes)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes < LKSI_CKPT_WRITE ? (size_t)bytes : LKSI_CKPT_WRITE, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return lksi_fail(b, LKS_ERR_IO, where, "%s cannot be read at byte %lld: %s", path, (long long)offset,
                             strerror(errno));
        if (n == 0)
            return lksi_fail(b, LKS_ERR_CORRUPT, where, "%s ends at byte %lld, too early", path, (long long)offset);
        to += n, offset += n, bytes -= n;
    }
    return LKS_OK;
}

lks_status lksi_ckpt_write_error(lksi_base *b, const char *where, const char *path, int error)
{
    int space = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return lksi_fail(b, space ? LKS_ERR_NO_SPACE : LKS_ERR_IO, where, "%s cannot be written: %s%s", path,
                     strerror(error), error == EFBIG ? " (see ulimit -f)" : "");
}

int lksi_ckpt_put(int fd, int64_t offset, const void *data, int64_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes < LKSI_CKPT_WRITE ? (size_t)bytes : LKSI_CKPT_WRITE, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : ENOSPC;
        from += n, offset += n, bytes -= n;
    }
    return 0;
}

lks_status lksi_ckpt_write(lksi_base *b, const char *where, int fd, const char *path, int64_t offset, const void *data,
                           int64_t bytes)
{
    int error = lksi_ckpt_put(fd, offset, data, bytes);
    return error ? lksi_ckpt_write_error(b, where, path, error) : LKS_OK;
}

lks_status lksi_ckpt_outcome(lks_context *ctx, const char *where, lks_status mine)
{
    lksi_comm *c = ctx->comm;
    struct { int64_t code; char text[LKSI_TEXT]; } first = {mine, ""};
    int64_t rank = mine == LKS_OK ? c->size : c->rank;
    TRY(lksi_host_reduce(c, where, &rank, 1, LKS_I64, LKS_MIN));
    if (rank == c->size) return LKS_OK;
    if (rank == c->rank) snprintf(first.text, sizeof first.text, "%s", ctx->base.text);
    TRY(lksi_host_broadcast(c, where, &first, sizeof first, (int)rank));
    if (mine == LKS_OK) lksi_fail(&ctx->base, (lks_status)first.code, where, "%s", first.text);
    return (lks_status)first.code;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static lks_status damaged(lksi_ckpt_file *f, const char *what)
{
    return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s is damaged: %s", f->path, what);
}

static lks_status read_head(lksi_ckpt_file *f, int64_t *extents_at)
{
    char head[LKSI_CKPT_HEAD + 1];
    struct stat st;
    if (fstat(f->fd, &st))
        return lksi_fail(f->base, LKS_ERR_IO, f->where, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s is not a file", f->path);
    if (st.st_size < LKSI_CKPT_HEAD) {
        int64_t n = st.st_size < (int64_t)sizeof MAGIC - 1 ? st.st_size : (int64_t)sizeof MAGIC - 1;
        TRY(lksi_ckpt_read(f->base, f->where, f->fd, f->path, 0, head, n));
        if (n && memcmp(head, MAGIC, (size_t)n))
            return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s is not a Lockstep checkpoint", f->path);
        return damaged(f, "it is shorter than its head");
    }
    TRY(lksi_ckpt_read(f->base, f->where, f->fd, f->path, 0, head, LKSI_CKPT_HEAD));
    head[LKSI_CKPT_HEAD] = 0;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH64(head, CHECKED, 0));
    int good = !memcmp(hash, head + CHECKED, 16);
    if (memcmp(head, MAGIC, sizeof MAGIC - 1)) {
        if (good) return damaged(f, "its head is unknown");
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where,
                         "%s is not a Lockstep checkpoint, or its head is damaged", f->path);
    }
    if (!good) return damaged(f, "the checksum of its head does not fit");
    long long format = 0, size = 0, at = 0, n = 0;
    unsigned long long structure = 0;
    if (sscanf(head + sizeof MAGIC - 1, "format %lld", &format) != 1) return damaged(f, "its head is unknown");
    if (format != LKSI_CKPT_FORMAT)
        return lksi_fail(f->base, LKS_ERR_UNSUPPORTED, f->where,
                         "%s has format %lld, this Lockstep reads format %d; use a newer Lockstep", f->path, format,
                         LKSI_CKPT_FORMAT);
    if (sscanf(head + sizeof MAGIC - 1, "format %*d\nsize %lld\nextents %lld %lld\nstructure %llx", &size, &at, &n,
               &structure) != 4)
        return damaged(f, "its head is unknown");
    if (size != st.st_size)
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s is damaged: it has %lld bytes instead of %lld",
                         f->path, (long long)st.st_size, size);
    if (n < 0 || at < LKSI_CKPT_HEAD || n > size / 24 || at > size - 24 * n)
        return damaged(f, "its extents have no place in it");
    f->size = size;
    f->n = n;
    f->structure = structure;
    *extents_at = at;
    return LKS_OK;
}

/* Reads the bytes outside of the extents into the image. */
static lks_status read_structure(lksi_ckpt_file *f)
{
    char part[16384];
    int64_t at = LKSI_CKPT_HEAD;
    for (int64_t i = 0; i <= f->n; i++) {
        int64_t end = i < f->n ? f->e[i].offset : f->size;
        while (at < end) {
            int64_t m = end - at < (int64_t)sizeof part ? end - at : (int64_t)sizeof part;
            TRY(lksi_ckpt_read(f->base, f->where, f->fd, f->path, at, part, m));
            TRY(lksi_h5_image_put(f->image, at, part, m));
            at += m;
        }
        if (i < f->n) at = f->e[i].offset + f->e[i].bytes;
    }
    return LKS_OK;
}

static lks_status open_checked(lksi_ckpt_file *f)
{
    int64_t extents_at = 0, end = LKSI_CKPT_HEAD, blocks = 0;
    TRY(read_head(f, &extents_at));
    f->e = lksi_alloc(f->base, f->n * (int64_t)sizeof *f->e);
    f->first_block = lksi_alloc(f->base, (f->n + 1) * (int64_t)sizeof *f->first_block);
    f->image = lksi_h5_image_new(f->base, f->size);
    if (!f->e || !f->first_block || !f->image) return LKS_ERR_MEMORY;
    TRY(lksi_ckpt_read(f->base, f->where, f->fd, f->path, extents_at, f->e, f->n * (int64_t)sizeof *f->e));
    for (int64_t i = 0; i < f->n; i++) {
        if (f->e[i].offset < end || f->e[i].bytes <= 0 || f->e[i].bytes > f->size - f->e[i].offset)
            return damaged(f, "its extents overlap or go beyond its end");
        end = f->e[i].offset + f->e[i].bytes;
        f->first_block[i] = blocks;
        blocks += lksi_ckpt_blocks(f->e[i].bytes);
    }
    f->first_block[f->n] = blocks;
    f->block_hash = lksi_alloc(f->base, blocks * (int64_t)sizeof *f->block_hash);
    if (!f->block_hash) return LKS_ERR_MEMORY;
    TRY(read_structure(f));
    if (lksi_ckpt_structure(f->image, f->size, f->e, f->n) != f->structure)
        return damaged(f, "the checksum of its structure does not fit");
    return lksi_h5_open_image(f->base, f->where, f->path, f->image, &f->h5);
}

lks_status lksi_ckpt_open(lksi_base *b, const char *where, const char *path, lksi_ckpt_file **out)
{
    *out = NULL;
    lksi_ckpt_file *f = lksi_alloc(b, sizeof *f);
    if (!f) return LKS_ERR_MEMORY;
    f->base = b;
    f->where = where;
    f->fd = -1;
    f->path = lksi_strdup(b, path);
    lks_status status = LKS_ERR_MEMORY;
    if (f->path) {
        f->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (f->fd < 0)
            status = lksi_fail(b, errno == ENOENT || errno == ENOTDIR ? LKS_ERR_NOT_FOUND : LKS_ERR_IO, where,
                               "%s: %s", path, strerror(errno));
        else status = open_checked(f);
    }
    if (status == LKS_OK) *out = f;
    else lksi_ckpt_close(f);
    return status;
}

void lksi_ckpt_close(lksi_ckpt_file *f)
{
    if (!f) return;
    lksi_h5_close(f->h5);
    lksi_h5_image_free(f->image);
    if (f->fd >= 0) close(f->fd);
    lksi_free(f->base, f->block_hash);
    lksi_free(f->base, f->first_block);
    lksi_free(f->base, f->e);
    lksi_free(f->base, f->path);
    lksi_free(f->base, f);
}

int64_t lksi_ckpt_find(const lksi_ckpt_file *f, int64_t offset)
{
    int64_t lo = 0, hi = f->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (f->e[mid].offset < offset) lo = mid + 1;
        else hi = mid;
    }
    return lo < f->n && f->e[lo].offset == offset ? lo : -1;
}

/* --- data --------------------------------------------------------------------------------------------------------- */

/* Hashes the blocks [first, first + count), numbered over all extents. */
static lks_status hash_share(lksi_ckpt_file *f, int64_t first, int64_t count)
{
    char *buffer = lksi_alloc(f->base, LKSI_CKPT_WRITE);
    lks_status status = buffer ? LKS_OK : LKS_ERR_MEMORY;
    int64_t last = first + count;
    for (int64_t i = 0; i < f->n && status == LKS_OK; i++) {
        int64_t from = first > f->first_block[i] ? first : f->first_block[i];
        int64_t to = last < f->first_block[i + 1] ? last : f->first_block[i + 1];
        while (from < to && status == LKS_OK) {
            int64_t at = (from - f->first_block[i]) * LKSI_CKPT_BLOCK;
            int64_t end = (to - f->first_block[i]) * LKSI_CKPT_BLOCK < f->e[i].bytes
                              ? (to - f->first_block[i]) * LKSI_CKPT_BLOCK : f->e[i].bytes;
            int64_t m = end - at < LKSI_CKPT_WRITE ? end - at : LKSI_CKPT_WRITE;
            status = lksi_ckpt_read(f->base, f->where, f->fd, f->path, f->e[i].offset + at, buffer, m);
            if (status == LKS_OK) lksi_ckpt_hash_blocks(buffer, m, f->block_hash + from);
            from += lksi_ckpt_blocks(m);
        }
    }
    lksi_free(f->base, buffer);
    return status;
}

/* The dataset at an offset, for an error text. */
typedef struct search { lksi_ckpt_file *f; const char *group; int64_t offset; char *text; int bytes; } search;

static lks_status compare(void *user, const char *name)
{
    search *s = user;
    char path[4096];
    lksi_h5_info info;
    int n = snprintf(path, sizeof path, "%s/%s", s->group, name);
    if (n < (int)sizeof path && lksi_h5_describe(s->f->h5, path, &info) == LKS_OK && info.offset == s->offset)
        snprintf(s->text, (size_t)s->bytes, "dataset %s", path);
    return LKS_OK;
}

static lks_status compare_group(void *user, const char *name)
{
    search *s = user, inner = *s;
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", s->group, name) >= (int)sizeof path) return LKS_OK;
    inner.group = path;
    lksi_base *b = s->f->base;
    lks_status kept = b->code; /* datasets among the groups are no groups: that is no error here */
    lksi_h5_list(s->f->h5, path, compare, &inner);
    if (kept == LKS_OK) b->code = LKS_OK;
    return LKS_OK;
}

static void dataset_at(lksi_ckpt_file *f, int64_t offset, char *text, int bytes)
{
    search s = {f, "", offset, text, bytes};
    snprintf(text, (size_t)bytes, "data at byte %lld", (long long)offset);
    compare_group(&s, "model");
    s.group = "/optimizer";
    lks_status kept = f->base->code;
    lksi_h5_list(f->h5, "/optimizer", compare_group, &s);
    if (kept == LKS_OK) f->base->code = LKS_OK;
}

lks_status lksi_ckpt_verify_data(lks_context *ctx, lksi_ckpt_file *f, lks_status mine)
{
    lksi_comm *c = ctx->comm;
    const char *where = f ? f->where : "lks_checkpoint_load";
    TRY(lksi_ckpt_outcome(ctx, where, mine));
    int64_t same[6] = {f->size, ~f->size, (int64_t)f->structure, ~(int64_t)f->structure, f->n, ~f->n};
    TRY(lksi_host_reduce(c, where, same, 6, LKS_I64, LKS_MAX));
    if (same[0] != ~same[1] || same[2] != ~same[3] || same[4] != ~same[5])
        return lksi_fail(f->base, LKS_ERR_CORRUPT, where, "%s is not the same file on every rank", f->path);
    int64_t total = f->first_block[f->n], q = total / c->size, r = total % c->size;
    mine = hash_share(f, c->rank * q + (c->rank < r ? c->rank : r), q + (c->rank < r));
    TRY(lksi_ckpt_outcome(ctx, where, mine));
    if (total) TRY(lksi_host_reduce(c, where, f->block_hash, total, LKS_I64, LKS_SUM)); /* the other ranks' are 0 */
    for (int64_t i = 0; i < f->n; i++) {
        uint64_t hash =
            lksi_ckpt_hash_list(f->block_hash + f->first_block[i], f->first_block[i + 1] - f->first_block[i]);
        if (hash == f->e[i].hash) continue;
        char text[1200];
        dataset_at(f, f->e[i].offset, text, sizeof text);
        return lksi_fail(f->base, LKS_ERR_CORRUPT, where, "%s is damaged: the checksum of %s does not fit", f->path,
                         text);
    }
    return LKS_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

char *lksi_ckpt_escape(lksi_base *b, const char *prefix, const char *name)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = strlen(prefix);
    char *out = lksi_alloc(b, (int64_t)(n + 3 * strlen(name) + 1)), *p = out;
    if (!out) return NULL;
    memcpy(p, prefix, n);
    p += n;
    int dots = !strcmp(name, ".") || !strcmp(name, "..");
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        if (dots || *c == '/' || *c == '%' || *c < 0x20 || *c == 0x7f) {
            *p++ = '%', *p++ = hex[*c >> 4], *p++ = hex[*c & 15];
        } else *p++ = (char)*c;
    }
    *p = 0;
    return out;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void lksi_ckpt_unescape(char *name)
{
    char *to = name;
    for (const char *c = name; *c; c++) {
        if (*c == '%' && digit(c[1]) >= 0 && digit(c[2]) >= 0) {
            *to++ = (char)(digit(c[1]) << 4 | digit(c[2]));
            c += 2;
        } else *to++ = *c;
    }
    *to = 0;
}
