/* SPDX-License-Identifier: BSD-3-Clause
 *
 * folder.c - a folder of checkpoints step-NNNNNNNN.h5: saving one more, keeping the newest, finding the newest that is
 * whole. Only rank 0 lists and removes.
 */
#include "ckpt/ckpt.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Step of "step-NNNNNNNN.h5" (8 digits or more, no superfluous zeros), -1 for any other name. tail: what follows. */
static int64_t step_of(const char *name, const char *tail)
{
    if (strncmp(name, "step-", 5)) return -1;
    const char *p = name + 5;
    int64_t step = 0;
    int digits = 0;
    for (; *p >= '0' && *p <= '9'; p++, digits++)
        if (digits < 18) step = 10 * step + (*p - '0');
    if (digits < 8 || digits > 18 || (digits > 8 && name[5] == '0') || strcmp(p, tail)) return -1;
    return step;
}

typedef struct steps { int64_t *step; int64_t n, room; } steps;

/* All steps in a folder with that ending, newest first. Local. */
static lks_status list(lksi_base *b, const char *where, const char *dir, const char *tail, steps *s)
{
    memset(s, 0, sizeof *s);
    DIR *d = opendir(dir);
    if (!d)
        return lksi_fail(b, errno == ENOENT || errno == ENOTDIR ? LKS_ERR_NOT_FOUND : LKS_ERR_IO, where, "%s: %s", dir,
                         strerror(errno));
    lks_status status = LKS_OK;
    for (struct dirent *e; status == LKS_OK && (e = readdir(d));) {
        int64_t step = step_of(e->d_name, tail);
        if (step < 0) continue;
        if (s->n == s->room) {
            int64_t room = s->room ? 2 * s->room : 32;
            int64_t *grown = lksi_realloc(b, s->step, s->room * 8, room * 8);
            if (!grown) {
                status = LKS_ERR_MEMORY;
                break;
            }
            s->step = grown;
            s->room = room;
        }
        int64_t i = s->n++;
        for (; i > 0 && s->step[i - 1] < step; i--) s->step[i] = s->step[i - 1];
        s->step[i] = step;
    }
    closedir(d);
    if (status != LKS_OK) {
        lksi_free(b, s->step);
        memset(s, 0, sizeof *s);
    }
    return status;
}

static lks_status name_of(lksi_base *b, const char *where, const char *dir, int64_t step, const char *tail, char *path,
                          int bytes)
{
    size_t n = strlen(dir);
    if (snprintf(path, (size_t)bytes, "%s%sstep-%08lld%s", dir, n && dir[n - 1] == '/' ? "" : "/", (long long)step,
                 tail) >= bytes)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the path of step %lld in %s is too long", (long long)step, dir);
    return LKS_OK;
}

/* Removes what is older than the newest `keep` up to `step`, which was just written; later ones are of another run of
 * the training and stay. Also what killed runs left half-written. A file that cannot be removed is a warning. Local. */
static void prune(lksi_base *b, const char *where, const char *dir, int64_t step, int keep)
{
    steps s;
    char path[4096];
    int kept = 0;
    if (list(b, where, dir, ".h5", &s)) return;
    for (int64_t i = 0; i < s.n; i++) {
        if (s.step[i] > step || kept++ < keep) continue;
        lksi_fault_point(b, "prune");
        if (name_of(b, where, dir, s.step[i], ".h5", path, sizeof path) == LKS_OK && unlink(path))
            lksi_log(b, LKS_LOG_WARNING, "%s: %s cannot be removed: %s", where, path, strerror(errno));
    }
    lksi_free(b, s.step);
    if (list(b, where, dir, ".h5.tmp", &s)) return;
    for (int64_t i = 0; i < s.n; i++)
        if (name_of(b, where, dir, s.step[i], ".h5.tmp", path, sizeof path) == LKS_OK) unlink(path);
    lksi_free(b, s.step);
}

lks_status lks_checkpoint_save_step(lks_checkpoint *c, const char *dir, int64_t step, int keep)
{
    static const char where[] = "lks_checkpoint_save_step";
    char path[4096];
    if (!c) return LKS_ERR_ARGUMENT;
    lksi_base *b = &c->ctx->base;
    if (!dir || !*dir || step < 0 || step >= 1000000000000000000 || keep < 1)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "dir \"%s\", step %lld, keep %d: step must be >= 0, keep >= 1",
                         dir ? dir : "", (long long)step, keep);
    TRY(name_of(b, where, dir, step, ".h5", path, sizeof path));
    TRY(lksi_ckpt_save(c, where, path, step));
    lks_status status = LKS_OK, before = b->code;
    if (b->rank == 0) {
        prune(b, where, dir, step, keep);
        if (before == LKS_OK) b->code = LKS_OK; /* the checkpoint is there: nothing of this is a failure */
    }
    return lksi_ckpt_outcome(c->ctx, where, status);
}

lks_status lks_checkpoint_latest(lks_context *ctx, const char *dir, char *path, int bytes, int64_t *step)
{
    static const char where[] = "lks_checkpoint_latest";
    if (!ctx || !path || bytes < 1 || !step) return LKS_ERR_ARGUMENT;
    lksi_base *b = &ctx->base;
    path[0] = 0;
    *step = -1;
    if (!dir || !*dir) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "no folder given");
    steps s = {NULL, 0, 0};
    lks_status status = lksi_ckpt_outcome(ctx, where, b->rank == 0 ? list(b, where, dir, ".h5", &s) : LKS_OK);
    int64_t n = s.n, bad = 0;
    if (status == LKS_OK) status = lksi_host_broadcast(ctx->comm, where, &n, sizeof n, 0);
    for (int64_t i = 0; i < n && status == LKS_OK; i++) {
        int64_t at = b->rank == 0 ? s.step[i] : 0;
        char file[4096];
        status = lksi_host_broadcast(ctx->comm, where, &at, sizeof at, 0);
        if (status == LKS_OK)
            status = lksi_ckpt_outcome(ctx, where, name_of(b, where, dir, at, ".h5", file, sizeof file));
        if (status != LKS_OK) break;
        /* A bad file is no error of this call: the context's error is put back as it was. */
        char kept[LKSI_TEXT];
        lks_status code = b->code;
        memcpy(kept, b->text, sizeof kept);
        b->code = LKS_OK;
        lks_status valid = lks_checkpoint_verify(ctx, file);
        if (valid == LKS_OK || valid == LKS_ERR_MPI || valid == LKS_ERR_TIMEOUT || valid == LKS_ERR_PEER_FAILED ||
            valid == LKS_ERR_MEMORY) {
            if (code != LKS_OK || valid == LKS_OK) {
                b->code = code;
                memcpy(b->text, kept, sizeof kept);
            }
            status = valid;
            if (valid != LKS_OK) break;
            if ((int)strlen(file) >= bytes) {
                status = lksi_fail(b, LKS_ERR_ARGUMENT, where, "the path %s is longer than %d bytes", file, bytes - 1);
                break;
            }
            memcpy(path, file, strlen(file) + 1);
            *step = at;
            break;
        }
        if (b->rank == 0) lksi_log(b, LKS_LOG_WARNING, "checkpoint passed over: %s", b->text);
        b->code = code;
        memcpy(b->text, kept, sizeof kept);
        bad++;
    }
    lksi_free(b, s.step);
    if (status == LKS_OK && *step < 0)
        status = lksi_fail(b, bad ? LKS_ERR_CORRUPT : LKS_ERR_NOT_FOUND, where,
                           bad ? "%s holds %lld checkpoints, none of them whole"
                               : "%s holds no checkpoint step-NNNNNNNN.h5",
                           dir, (long long)bad);
    return status;
}
