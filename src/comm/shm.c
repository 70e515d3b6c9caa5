/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shm.c - memory shared by the ranks of one node. Rank 0 makes a file that has no name (memfd_create), the others open
 * it through /proc: whenever a process is killed, nothing is left. Every rank allocates its part beforehand, so that no
 * access can find memory used up (SIGBUS). How it is used is in shm.h; no MPI call is made here.
 */
#define _GNU_SOURCE /* memfd_create, fallocate, seals, sched_getaffinity */
#include "comm/shm.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING 64
/* A head and LKSI_SHM_INLINE bytes; no multiple of 4096, or all heads would be in one set of the cache. */
#define RING_BYTES (4096 + 3 * LINE)
#define LINE 64          /* bytes of a cache line */
#define PLACES 4
#define HEADER_BYTES 512
#define PLACES_AT (20 * 4096 + RING * 4096) /* the ring fits before it */
#define TIMED (16 << 10) /* copies at least so long say which way is faster */
#define PIECE (16 << 10) /* bytes added and stored twice while they are in the first cache */
#define PAGE 65536       /* a multiple of usual page sizes: a rank's part is on its own pages */

enum { IN, ADD, OUT, STAGES };
_Static_assert(STAGES == LKSI_STAGES && sizeof(lksi_head) + LKSI_SHM_INLINE <= RING_BYTES &&
                   HEADER_BYTES + RING * RING_BYTES <= PLACES_AT,
               "the parts fit");

typedef struct counter {
    _Alignas(LINE) int64_t n;
} counter;

/* A rank's part of the memory: this, the ring, the places. */
typedef struct part {
    counter stage[STAGES]; /* chunks that are through it */
    counter taken;         /* operations up to this one are taken */
    counter nudges;        /* written by the others */
} part;
_Static_assert(sizeof(part) <= HEADER_BYTES, "the counters fit");

struct lksi_shm {
    char *memory;
    int64_t bytes, stride;
    int rank, size, crowded;
    int64_t seen[STAGES], seen_taken; /* least of all ranks' counters, when last looked at */
    int64_t done[STAGES], taken;      /* own counters */
    char took[RING];                  /* operations after `taken` that are taken */
    const char **from;                /* scratch of combinations: size */
    int64_t puts;                     /* copies to the own part that were timed */
    double pace[2];                   /* best seconds a byte lately: by way of the cache, past it */
};

static int64_t look(const int64_t *n)
{
    return __atomic_load_n(n, __ATOMIC_ACQUIRE);
}

static void show(int64_t *n, int64_t value)
{
    __atomic_store_n(n, value, __ATOMIC_RELEASE);
}

static part *part_of(const lksi_shm *m, int s)
{
    return (part *)(m->memory + s * m->stride);
}

static lksi_head *ring_at(const lksi_shm *m, int s, int64_t sequence)
{
    return (lksi_head *)(m->memory + s * m->stride + HEADER_BYTES + sequence % RING * RING_BYTES);
}

static char *place_at(const lksi_shm *m, int s, int64_t chunk)
{
    return m->memory + s * m->stride + PLACES_AT + chunk % PLACES * LKSI_SHM_CHUNK;
}

/* --- heads and small values --------------------------------------------------------------------------------------- */

int lksi_shm_free(lksi_shm *m, int64_t sequence)
{
    if (m->seen_taken >= sequence - RING) return 1;
    int64_t least = INT64_MAX;
    for (int s = 0; s < m->size; s++) {
        int64_t n = look(&part_of(m, s)->taken.n);
        if (n < least) least = n;
    }
    m->seen_taken = least;
    return least >= sequence - RING;
}

char *lksi_shm_values(const lksi_shm *m, int s, int64_t sequence)
{
    return (char *)(ring_at(m, s, sequence) + 1);
}

int64_t lksi_shm_stride(const lksi_shm *m)
{
    return m->stride;
}

void lksi_shm_show(lksi_shm *m, const lksi_head *h)
{
    lksi_head *to = ring_at(m, m->rank, h->sequence);
    memcpy((char *)to + sizeof to->sequence, (const char *)h + sizeof h->sequence, sizeof *h - sizeof h->sequence);
    show(&to->sequence, h->sequence);
}

const lksi_head *lksi_shm_head(const lksi_shm *m, int s, int64_t sequence)
{
    const lksi_head *h = ring_at(m, s, sequence);
    return look(&h->sequence) == sequence ? h : NULL;
}

void lksi_shm_take(lksi_shm *m, int64_t sequence)
{
    m->took[sequence % RING] = 1;
    if (sequence != m->taken + 1) return;
    for (int64_t q = sequence; m->took[q % RING]; q++) {
        m->took[q % RING] = 0;
        m->taken = q;
    }
    show(&part_of(m, m->rank)->taken.n, m->taken);
}

void lksi_shm_nudge(lksi_shm *m, int s)
{
    __atomic_add_fetch(&part_of(m, s)->nudges.n, 1, __ATOMIC_RELEASE);
}

int64_t lksi_shm_nudges(const lksi_shm *m)
{
    return look(&part_of(m, m->rank)->nudges.n);
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

/* Whether all ranks have done stage `stage` of chunk k. */
static int all_did(lksi_shm *m, int stage, int64_t k)
{
    if (m->seen[stage] > k) return 1;
    int64_t least = INT64_MAX;
    for (int s = 0; s < m->size; s++) {
        int64_t n = look(&part_of(m, s)->stage[stage].n);
        if (n < least) least = n;
    }
    m->seen[stage] = least;
    return least > k;
}

/* Elements `begin` to `end` of a chunk of n are rank s's to add: whole cache lines. */
static void slice_of(const lksi_shm *m, const lksi_request *r, int s, int64_t n, int64_t *begin, int64_t *end)
{
    int64_t each = (n + m->size - 1) / m->size, line = LINE / r->esize;
    each = (each + line - 1) / line * line;
    *begin = s * each < n ? s * each : n;
    *end = *begin + each < n ? *begin + each : n;
}

/* To the own part. Where the cores of a node share a cache its way is the faster one, else past it: what is measured
 * decides, again and again, since a process may be moved. Both give the same bytes. */
static void put(lksi_shm *m, char *to, const char *from, int64_t bytes)
{
    int past = m->pace[1] < m->pace[0];
    if (bytes >= TIMED) {
        m->puts++;
        if (m->puts < 16) past = m->puts & 1;
        else if (m->puts % 32 == 0) past = !past;
    }
    double start = bytes >= TIMED ? lksi_now() : 0;
    if (past) lksi_carry_past(to, from, bytes);
    else lksi_carry(to, from, bytes);
    if (bytes < TIMED) return;
    double pace = (lksi_now() - start) / (double)bytes, best = m->pace[past] * 1.05;
    m->pace[past] = best == 0 || pace < best ? pace : best;
}

static void copy_in(lksi_shm *m, const lksi_request *r, int64_t k, int64_t at, int64_t n)
{
    char *to = place_at(m, m->rank, k);
    if (r->head.kind == LKSI_DO_GATHER) {
        put(m, to, r->in + at, n);
    } else if (r->head.kind == LKSI_DO_BROADCAST) {
        if (m->rank == r->head.root) put(m, to, r->buf + at, n);
    } else { /* the own slice stays: nobody else adds it */
        int64_t begin, end, size = r->esize;
        const char *from = r->buf + at * size;
        slice_of(m, r, m->rank, n, &begin, &end);
        put(m, to, from, begin * size);
        put(m, to + end * size, from + end * size, (n - end) * size);
    }
}

static void add(lksi_shm *m, const lksi_request *r, int64_t k, int64_t at, int64_t n)
{
    int64_t begin, end, size = r->esize, piece = PIECE / size;
    slice_of(m, r, m->rank, n, &begin, &end);
    for (int64_t i = begin; i < end; i += piece) {
        int64_t some = end - i < piece ? end - i : piece;
        char *mine = r->buf + (at + i) * size;
        for (int s = 0; s < m->size; s++) m->from[s] = s == m->rank ? mine : place_at(m, s, k) + i * size;
        lksi_combine(m->size, m->from, mine, some, r->head.dtype, r->head.op);
        put(m, place_at(m, m->rank, k) + i * size, mine, some * size);
    }
}

static void copy_out(lksi_shm *m, const lksi_request *r, int64_t k, int64_t at, int64_t n)
{
    if (r->head.kind == LKSI_DO_BROADCAST) {
        if (m->rank != r->head.root) lksi_carry(r->buf + at, place_at(m, r->head.root, k), n);
        return;
    }
    for (int j = 1; j < m->size; j++) { /* not all from rank 0 first */
        int s = (m->rank + j) % m->size;
        if (r->head.kind == LKSI_DO_GATHER) {
            lksi_carry(r->buf + s * r->bytes + at, place_at(m, s, k), n);
        } else {
            int64_t begin, end, size = r->esize;
            slice_of(m, r, s, n, &begin, &end);
            lksi_carry(r->buf + (at + begin) * size, place_at(m, s, k) + begin * size, (end - begin) * size);
        }
    }
}

static int may(lksi_shm *m, const lksi_request *r, int stage)
{
    int64_t k = m->done[stage];
    int reduce = r->head.kind == LKSI_DO_REDUCE;
    if (stage == IN) return k < PLACES || all_did(m, OUT, k - PLACES);
    if (m->done[stage - 1] <= k) return 0;
    if (stage == ADD) return !reduce || all_did(m, IN, k);
    return all_did(m, reduce ? ADD : IN, k);
}

static void step(lksi_shm *m, lksi_request *r, int stage)
{
    int64_t k = m->done[stage], at = r->stage_done[stage] * r->chunk_elements;
    int64_t total = r->head.kind == LKSI_DO_REDUCE ? r->head.count : r->bytes;
    int64_t n = total - at < r->chunk_elements ? total - at : r->chunk_elements;
    if (stage == IN) copy_in(m, r, k, at, n);
    else if (stage == OUT) copy_out(m, r, k, at, n);
    else if (r->head.kind == LKSI_DO_REDUCE) add(m, r, k, at, n);
    r->stage_done[stage]++;
    r->chunk_done = r->stage_done[OUT];
    m->done[stage] = k + 1;
    show(&part_of(m, m->rank)->stage[stage].n, k + 1);
}

int lksi_shm_move(lksi_shm *m, lksi_request *first)
{
    int steps = 0, before;
    do {
        before = steps;
        for (int stage = OUT; stage >= IN; stage--) /* what is awaited by others most comes first */
            for (lksi_request *r = first; r; r = r->next) {
                if (r->stage_done[stage] == r->chunks) continue;
                if (!r->ready || !r->headed) break;
                if (may(m, r, stage)) {
                    step(m, r, stage);
                    steps++;
                }
                if (r->stage_done[stage] < r->chunks) break;
            }
    } while (steps > before);
    return steps;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* What a rank has to say while the memory is made; step: in what it failed, 0: in nothing. */
typedef struct offer {
    int64_t fd, device, inode;
    int32_t step, code;
    uint64_t cores[16]; /* bits of those it may run on */
} offer;

enum { OFF = 1, UNSEEN, MAKE, OPEN, MAP, FILL };
static const char *const step_names[] = {"", "LKS_SHM=0", "it does not see all processes in /proc", "memfd_create",
                                         "open through /proc", "mmap", "fallocate"};

static void failed_in(offer *o, int step)
{
    o->step = step;
    o->code = errno;
}

static void make(const lksi_shm *m, offer *o)
{
    struct stat st;
    int fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    o->fd = fd;
    if (fd < 0 || ftruncate(fd, (off_t)m->bytes) != 0 || fstat(fd, &st) != 0) {
        failed_in(o, MAKE);
        return;
    }
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    o->device = (int64_t)st.st_dev;
    o->inode = (int64_t)st.st_ino;
}

static int open_of(const offer *zero, int64_t pid, offer *o)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)pid, (long long)zero->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && (int64_t)st.st_dev == zero->device && (int64_t)st.st_ino == zero->inode)
        return fd;
    failed_in(o, OPEN);
    if (fd >= 0) close(fd);
    return -1;
}

static void map(lksi_shm *m, int fd, offer *o)
{
    /* The own part only: its pages come from the memory next to this rank's cores. */
    if (fallocate(fd, 0, (off_t)(m->rank * m->stride), (off_t)m->stride) != 0) {
        failed_in(o, FILL);
        return;
    }
    void *p = mmap(NULL, (size_t)m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) failed_in(o, MAP);
    else m->memory = p;
}

static void may_run_on(offer *o)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return; /* counts as none */
    for (int i = 0; i < CPU_SETSIZE && i < 64 * 16; i++)
        if (CPU_ISSET(i, &set)) o->cores[i / 64] |= (uint64_t)1 << i % 64;
}

static int fewer_cores_than(int n, const offer *all)
{
    int cores = 0;
    for (int i = 0; i < 16; i++) {
        uint64_t any = 0;
        for (int s = 0; s < n; s++) any |= all[s].cores[i];
        cores += __builtin_popcountll(any);
    }
    return cores < n;
}

/* The lowest rank that failed; -1: none. */
static int who_failed(const lksi_comm *c, const offer *all)
{
    for (int s = 0; s < c->size; s++)
        if (all[s].step) return s;
    return -1;
}

static lks_status share(lksi_comm *c, const lksi_peer *peer, lksi_shm *m, offer *all, int *who)
{
    static const char where[] = "lks_context_create";
    const char *wish = getenv("LKS_SHM");
    offer mine = {.fd = -1};
    int fd = -1;
    if (wish && !strcmp(wish, "0")) mine.step = OFF;
    for (int s = 0; s < c->size && !mine.step; s++)
        if (peer[s].pid == 0) mine.step = UNSEEN;
    if (!mine.step && c->rank == 0) make(m, &mine);
    may_run_on(&mine);
    lks_status st = lksi_host_gather(c, where, &mine, all, sizeof mine);
    fd = (int)mine.fd;
    *who = who_failed(c, all);
    if (st == LKS_OK && *who < 0) {
        m->crowded = fewer_cores_than(c->size, all);
        if (c->rank != 0) fd = open_of(&all[0], peer[0].pid, &mine);
        if (fd >= 0) map(m, fd, &mine);
        st = lksi_host_gather(c, where, &mine, all, sizeof mine); /* rank 0 keeps its fd till all have it */
        *who = who_failed(c, all);
    }
    if (fd >= 0) close(fd);
    return st;
}

lks_status lksi_shm_open(lksi_comm *c, const lksi_peer *peer, lksi_shm **out)
{
    lksi_base *b = c->base;
    *out = NULL;
    if (c->local_size != c->size) return LKS_OK; /* all ranks find the same */
    int who = -1;
    lksi_shm *m = lksi_alloc(b, sizeof *m);
    offer *all = lksi_alloc(b, (int64_t)sizeof *all * c->size);
    if (m) m->from = lksi_alloc(b, (int64_t)sizeof *m->from * c->size);
    lks_status st = lksi_agree(c, "lks_context_create", m && all && m->from ? LKS_OK : LKS_ERR_MEMORY);
    if (st == LKS_OK) {
        m->rank = c->rank;
        m->size = c->size;
        m->stride = (PLACES_AT + PLACES * LKSI_SHM_CHUNK + PAGE - 1) / PAGE * PAGE;
        m->bytes = m->stride * c->size;
        st = share(c, peer, m, all, &who);
    }
    if (st == LKS_OK && who < 0) {
        /* The next operation is the first in the ring; nobody looks before it has its number. */
        m->taken = m->seen_taken = c->sequence;
        show(&part_of(m, m->rank)->taken.n, m->taken);
        *out = m;
        m = NULL;
    } else if (st == LKS_OK && c->rank == 0 && all[who].step != OFF) {
        lksi_log(b, LKS_LOG_INFO, "the ranks of this node talk by messages, they cannot share memory: rank %d: %s%s%s",
                 who, step_names[all[who].step], all[who].code ? ": " : "",
                 all[who].code ? strerror(all[who].code) : "");
    }
    lksi_shm_close(c, m);
    lksi_free(b, all);
    return st;
}

int lksi_shm_crowded(const lksi_shm *m)
{
    return m->crowded;
}

void lksi_shm_close(lksi_comm *c, lksi_shm *m)
{
    if (!m) return;
    if (m->memory) munmap(m->memory, (size_t)m->bytes);
    lksi_free(c->base, m->from);
    lksi_free(c->base, m);
}
