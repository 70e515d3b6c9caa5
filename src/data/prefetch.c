/* SPDX-License-Identifier: BSD-3-Clause
 *
 * prefetch.c - reading by offset, here and in a thread. The thread calls pread and nothing else: no MPI, no HDF5, no
 * allocation, no context. It blocks all signals, so the host's handlers never run on it.
 */
#include "data/loader.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

lks_status lksi_file_open(lksi_base *b, const char *where, const char *path, int keep_open, lksi_file *f)
{
    f->fd = -1;
    f->path = lksi_strdup(b, path);
    if (!f->path) return LKS_ERR_MEMORY;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold us up */
    struct stat st;
    if (fd < 0)
        return lksi_fail(b, errno == ENOENT || errno == ENOTDIR ? LKS_ERR_NOT_FOUND : LKS_ERR_IO, where, "%s: %s", path,
                         strerror(errno));
    lks_status status = LKS_OK;
    if (fstat(fd, &st)) status = lksi_fail(b, LKS_ERR_IO, where, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = lksi_fail(b, LKS_ERR_IO, where, "%s is a folder; name the files in it", path);
    else if (!S_ISREG(st.st_mode)) status = lksi_fail(b, LKS_ERR_IO, where, "%s is not an ordinary file", path);
    else if (st.st_size == 0) status = lksi_fail(b, LKS_ERR_ARGUMENT, where, "%s is empty", path);
    f->bytes = st.st_size;
    if (status == LKS_OK && keep_open) f->fd = fd;
    else close(fd);
    return status;
}

void lksi_file_close(lksi_base *b, lksi_file *f)
{
    if (f->path && f->fd >= 0) close(f->fd);
    lksi_free(b, f->path);
    f->path = NULL;
    f->fd = -1;
}

void lksi_job_read(lksi_job *job)
{
    job->error = 0;
    for (int64_t i = 0; i < job->pieces && !job->error; i++) {
        const lksi_piece *p = &job->piece[i];
        int fd = p->file->fd >= 0 ? p->file->fd : open(p->file->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) job->error = errno;
        int64_t got = 0;
        while (!job->error && got < p->bytes) {
            ssize_t n = pread(fd, p->to + got, (size_t)(p->bytes - got), (off_t)(p->offset + got));
            if (n > 0) got += n;
            else if (n == 0) job->error = -1;
            else if (errno != EINTR) job->error = errno;
        }
        if (fd >= 0 && fd != p->file->fd) close(fd);
        job->error_file = p->file;
        job->error_offset = p->offset + got;
    }
}

struct lksi_prefetch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    lksi_job *job; /* under way */
    int stop;
};

static void *work(void *user)
{
    lksi_prefetch *p = user;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (!p->job) {
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        lksi_job_read(p->job);
        pthread_mutex_lock(&p->lock);
        p->job = NULL;
        pthread_cond_broadcast(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

lks_status lksi_prefetch_start(lksi_base *b, lksi_prefetch **out)
{
    *out = NULL;
    lksi_prefetch *p = lksi_alloc(b, sizeof *p);
    if (!p) return LKS_ERR_MEMORY;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int bad = pthread_create(&p->thread, NULL, work, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!bad) {
        *out = p;
        return LKS_OK;
    }
    pthread_cond_destroy(&p->idle);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    lksi_free(b, p);
    return lksi_fail(b, LKS_ERR_MEMORY, "lks_loader_set_prefetch", "no thread: %s", strerror(bad));
}

void lksi_prefetch_stop(lksi_base *b, lksi_prefetch **pp)
{
    lksi_prefetch *p = *pp;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->idle);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    lksi_free(b, p);
    *pp = NULL;
}

void lksi_prefetch_submit(lksi_prefetch *p, lksi_job *job)
{
    pthread_mutex_lock(&p->lock);
    p->job = job;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void lksi_prefetch_wait(lksi_prefetch *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->job) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
