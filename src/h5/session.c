/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session.c - the lock, the host's error handling put aside and back, the version comparison. The lock is the one piece
 * of process-wide state in Lockstep: HDF5 itself is process-wide.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include "h5/inside.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void lksi_h5_enter(lksi_h5_session *s)
{
    pthread_mutex_lock(&lock);
    memset(s, 0, sizeof *s);
    s->stack = H5Eget_current_stack(); /* first: every other call clears it */
    unsigned new_style = 1;
    if (H5Eauto_is_v2(H5E_DEFAULT, &new_style) < 0) new_style = 1;
    s->old_style = !new_style;
#ifndef H5_NO_DEPRECATED_SYMBOLS
    if (s->old_style) {
        H5E_auto1_t fn = NULL;
        H5Eget_auto1(&fn, &s->old_data);
        memcpy(&s->old_fn, &fn, sizeof fn);
        H5Eset_auto1(NULL, NULL);
        return;
    }
#endif
    H5Eget_auto2(H5E_DEFAULT, &s->fn, &s->data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void lksi_h5_leave(lksi_h5_session *s)
{
#ifndef H5_NO_DEPRECATED_SYMBOLS
    if (s->old_style) {
        H5E_auto1_t fn = NULL;
        memcpy(&fn, &s->old_fn, sizeof fn);
        H5Eset_auto1(fn, s->old_data);
    } else
#endif
        H5Eset_auto2(H5E_DEFAULT, s->fn, s->data);
    if (s->stack >= 0) H5Eset_current_stack(s->stack); /* closes it; last, as every call clears the stack */
    pthread_mutex_unlock(&lock);
}

typedef struct reason { char *text; int bytes; } reason;

static herr_t take(unsigned n, const H5E_error2_t *e, void *user)
{
    reason *r = user;
    if (n == 0) snprintf(r->text, (size_t)r->bytes, "%s", e->desc ? e->desc : "");
    return 0;
}

void lksi_h5_reason(char *text, int bytes)
{
    reason r = {text, bytes};
    text[0] = 0;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &r);
}

lks_status lksi_h5_compare(lksi_base *b, const char *where, const unsigned built[3], int built_parallel,
                           const unsigned runs[3], int runs_parallel)
{
    const char *flavour[] = {"", " serial", " parallel"};
    int other = runs_parallel >= 0 && built_parallel >= 0 && runs_parallel != built_parallel;
    if (runs[0] == built[0] && runs[1] == built[1] && runs[2] >= built[2] && !other) return LKS_OK;
    return lksi_fail(
        b, LKS_ERR_UNSUPPORTED, where,
        "Lockstep was built with%s HDF5 %u.%u.%u but runs with%s HDF5 %u.%u.%u; put the library it was built "
        "with on the library path, or build it anew",
        flavour[built_parallel + 1], built[0], built[1], built[2], flavour[runs_parallel + 1], runs[0], runs[1],
        runs[2]);
}

/* Whether the library that runs is a parallel one: asked of that very library, another may be in the process, too. */
static int running_parallel(void)
{
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)H5Fopen, &info) || !info.dli_fname) return -1;
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return -1; /* linked statically: it is what it was built with */
    int parallel = dlsym(handle, "H5Pset_fapl_mpio") != NULL;
    dlclose(handle);
    return parallel;
}

lks_status lksi_h5_check(lksi_base *b, const char *where)
{
    const unsigned built[3] = {H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE};
    unsigned runs[3] = {0, 0, 0};
#ifdef H5_HAVE_PARALLEL
    int built_parallel = 1;
#else
    int built_parallel = 0;
#endif
    lksi_h5_session s;
    lksi_h5_enter(&s);
    herr_t bad = H5get_libversion(&runs[0], &runs[1], &runs[2]);
    lksi_h5_leave(&s);
    if (bad < 0) return lksi_fail(b, LKS_ERR_UNSUPPORTED, where, "HDF5 does not tell its version");
    return lksi_h5_compare(b, where, built, built_parallel, runs, running_parallel());
}
