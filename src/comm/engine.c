/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.c - collectives out of non-blocking point-to-point messages: head round, chunks, deadline, notes between ranks
 * about who waits for what. Knows host memory only. Called on the one thread that may call MPI (FUNNELED).
 *
 * Order: operations are numbered; tags of heads carry the number, so heads of different operations never meet, and two
 * ranks that issue different operations under one number see each other's head and both fail. Chunks are numbered over
 * all operations and take the places in turn, the same on every rank; a place's tags serve one chunk after the other.
 * No chunk moves before all heads agree: after a mismatch nothing of the caller's memory is in MPI's hands.
 */
#include "comm/shm.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MAGIC 0x4c4b5331
/* Looks at nothing new before the processor is offered to others, who may keep it for milliseconds; more where every
 * rank has a core and a look is only one into shared memory. */
#define SPINS 256
#define SPINS_SHARED 4000
#define YIELDS 4096
#define TAG_NOTE 15
#define TAG_CHUNK 16
#define TAG_BASE 64
#define TAGS 8192 /* numbers in use at once; tags stay below 32768, the least that MPI promises */
enum { TAG_UP, TAG_DOWN };

/* Most bytes that travel with a head. Everybody sends all of it to everybody: for two ranks that is no more than in
 * slices, and one hop instead of three; for many it stays, with the head, below the usual eager limit in shared memory.
 */
#define INLINE_TWO 32640
#define INLINE_FOUR 16256
#define INLINE_DIRECT 3840
#define INLINE_TREE 512
#define CHUNK_BYTES (1 << 20)
#define SLICE_BYTES (16 << 10) /* least slice of a chunk with many ranks */

enum { NOTE_ASK, NOTE_ANSWER, NOTE_BREAK };

/* Out of band, fixed size: a question "where are you", its answer, or "I broke off". */
typedef struct lksi_note {
    int32_t kind, code, waiting, spare;
    int64_t sequence, step;
    char what[LKSI_WHAT];
    char text[LKSI_TEXT / 2];
} lksi_note;

typedef struct lksi_note_out {
    struct lksi_note_out *next;
    MPI_Request rq;
    lksi_note note;
} lksi_note_out;

/* A piece of an operation under way. rq: n receives of parts, n sends of parts, n receives of sums, n sends of sums. */
typedef struct lksi_chunk {
    lksi_request *r; /* NULL: free */
    int64_t at, elements, slice; /* first element, elements, elements of a slice */
    char *stage;
    int64_t stage_bytes;
    MPI_Request *rq;
    int place;
    int parts, left; /* receives of parts missing; requests under way or still to be posted */
    int summed;
} lksi_chunk;

typedef struct lksi_engine {
    lksi_request *first, *last, *pool;
    lksi_chunk chunk[LKSI_CHUNKS];
    int64_t chunks_started;
    int chunks_busy;
    int inline_max;
    int64_t chunk_bytes;
    int64_t progress, polls, spins;
    lksi_shm *shm;       /* NULL: messages */
    int64_t nudged;      /* notes taken since there is shared memory */
    int *index;          /* scratch of MPI_Testsome: 4 n */
    MPI_Status *status;
    const char **part;   /* scratch of combinations: n */
    lksi_note note;      /* being received */
    MPI_Request note_rq;
    lksi_note_out *out;
    lksi_note *answer;   /* last answer of each rank */
    char *answered;
    lksi_peer *peer;     /* NULL until known */
    lksi_request *waiting; /* what this rank waits for now */
    lks_status broken;
    char text[LKSI_TEXT];
    int64_t broke_at;    /* the operation in which this rank broke off */
    /* Another rank broke off in an operation that this rank has not come to: earlier ones may still end well. */
    lks_status later;
    int64_t later_at;
    double later_since;
} lksi_engine;

static const char *const kind_names[] = {"barrier", "reduce", "broadcast", "gather"};
static const char *const op_names[] = {"sum", "mean", "min", "max", "product"};

static lksi_engine *engine_of(const lksi_comm *c)
{
    return c->state;
}

static int tag_of(int64_t sequence, int which)
{
    return TAG_BASE + (int)(sequence % TAGS) * 2 + which;
}

/* --- failure ----------------------------------------------------------------------------------------------------- */

static void send_note(lksi_comm *c, int to, int kind, lks_status code, const char *text)
{
    lksi_engine *e = engine_of(c);
    lksi_note_out *o = lksi_alloc(c->base, sizeof *o);
    if (!o) return; /* the other rank finds out at its own deadline */
    o->note.kind = kind;
    o->note.code = code;
    o->note.sequence = c->sequence;
    o->note.step = c->step;
    if (e->waiting) {
        o->note.waiting = 1;
        o->note.sequence = e->waiting->head.sequence;
        snprintf(o->note.what, sizeof o->note.what, "%s", e->waiting->head.what);
    }
    if (kind == NOTE_BREAK && e->broke_at) o->note.sequence = e->broke_at;
    if (text) snprintf(o->note.text, sizeof o->note.text, "%s", text);
    if (MPI_Isend(&o->note, (int)sizeof o->note, MPI_BYTE, to, TAG_NOTE, c->mpi, &o->rq) != MPI_SUCCESS) {
        lksi_free(c->base, o);
        return;
    }
    o->next = e->out;
    e->out = o;
    if (e->shm) lksi_shm_nudge(e->shm, to);
}

static void reap_notes(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    for (lksi_note_out **p = &e->out; *p;) {
        int done = 0;
        if (MPI_Test(&(*p)->rq, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 1;
        if (!done) {
            p = &(*p)->next;
            continue;
        }
        lksi_note_out *o = *p;
        *p = o->next;
        lksi_free(c->base, o);
    }
}

lks_status lksi_engine_usable(lksi_comm *c, const char *where)
{
    lksi_engine *e = engine_of(c);
    if (e->broken == LKS_OK) return LKS_OK;
    return lksi_fail(c->base, e->broken, where, "the communicator broke off earlier: %s", e->text);
}

int lksi_engine_broken(lksi_comm *c)
{
    return engine_of(c)->broken != LKS_OK;
}

static void tell_all(lksi_comm *c, lks_status code, const char *text)
{
    for (int s = 0; s < c->size; s++)
        if (s != c->rank) send_note(c, s, NOTE_BREAK, code, text);
}

/* What is under way between devices ends now: nothing may wait for it any more. */
static void end_transport(lksi_comm *c)
{
    if (c->self && c->transport->abort) c->transport->abort(c->self);
}

lks_status lksi_engine_break(lksi_comm *c, lks_status code, int tell, const char *where, const char *format, ...)
{
    lksi_engine *e = engine_of(c);
    if (e->broken != LKS_OK) return lksi_fail(c->base, e->broken, where, "%s", e->text);
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    e->broken = code;
    if (!e->broke_at) e->broke_at = e->waiting ? e->waiting->head.sequence : c->sequence;
    if (tell) tell_all(c, code, e->text);
    end_transport(c);
    return lksi_fail(c->base, code, where, "%s", e->text);
}

static lks_status mpi_failed(lksi_comm *c, const char *call, int rc, const char *where)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(rc, text, &length);
    return lksi_engine_break(c, LKS_ERR_MPI, 1, where, "%s: %s", call, text);
}

/* "all_reduce 'lks_agree' sum of 3 int64" */
static const char *head_text(const lksi_head *h, char *text, size_t bytes)
{
    if (h->kind == LKSI_DO_REDUCE)
        snprintf(text, bytes, "%s (%s of %lld %s)", h->what, op_names[h->op], (long long)h->count,
                 lks_dtype_name(h->dtype));
    else if (h->kind == LKSI_DO_BARRIER)
        snprintf(text, bytes, "%s (barrier)", h->what);
    else
        snprintf(text, bytes, "%s (%s of %lld bytes%s%.0d)", h->what, kind_names[h->kind], (long long)h->count,
                 h->kind == LKSI_DO_BROADCAST ? " from rank " : "", h->kind == LKSI_DO_BROADCAST ? h->root : 0);
    return text;
}

static int heads_agree(const lksi_head *a, const lksi_head *b)
{
    return a->magic == b->magic && a->sequence == b->sequence && a->count == b->count && a->kind == b->kind &&
           a->dtype == b->dtype && a->op == b->op && a->root == b->root && a->inlined == b->inlined &&
           a->elsewhere == b->elsewhere && memcmp(a->what, b->what, sizeof a->what) == 0;
}

static lks_status mismatch(lksi_request *r, lksi_comm *c, int s, const lksi_head *theirs)
{
    char mine[160], other[160];
    engine_of(c)->broke_at = r->head.sequence;
    lksi_head h = *theirs;
    h.what[sizeof h.what - 1] = 0;
    if (h.magic != MAGIC || h.kind < 0 || h.kind > LKSI_DO_GATHER || h.op < 0 || h.op > LKS_PRODUCT)
        return lksi_engine_break(c, LKS_ERR_STATE, 1, r->head.what, "rank %d sent something that is not a head", s);
    return lksi_engine_break(c, LKS_ERR_STATE, 1, r->head.what,
                             "ranks called different collectives as number %lld (step %lld): rank %d: %s; rank %d: %s",
                             (long long)r->head.sequence, (long long)r->head.step, c->rank,
                             head_text(&r->head, mine, sizeof mine), s, head_text(&h, other, sizeof other));
}

/* --- the head round ---------------------------------------------------------------------------------------------- */

static int64_t slot_bytes(const lksi_engine *e)
{
    return (int64_t)sizeof(lksi_head) + e->inline_max;
}

static int tree_children(const lksi_comm *c)
{
    int n = 0;
    for (int bit = 1; c->rank + bit < c->size && !(c->rank & bit); bit <<= 1) n++;
    return n;
}

static int tree_span(const lksi_comm *c, int rank)
{
    int low = rank & -rank;
    int span = rank == 0 ? c->size : low;
    return rank + span > c->size ? c->size - rank : span;
}

/* Tree layout of mail: the result (head and size blocks), a message per child in order of rank (head and as many blocks
 * as its subtree has ranks), the own message up. A block has inline_max bytes at most; those of a message are those of
 * ranks rank, rank + 1, ... */
static int64_t tree_message(const lksi_engine *e, int span)
{
    return (int64_t)sizeof(lksi_head) + (int64_t)span * e->inline_max;
}

static int64_t mail_bytes(const lksi_comm *c, const lksi_engine *e)
{
    if (c->size <= LKSI_DIRECT) return c->size * slot_bytes(e);
    int64_t total = tree_message(e, c->size) + tree_message(e, tree_span(c, c->rank));
    for (int bit = 1; c->rank + bit < c->size && !(c->rank & bit); bit <<= 1)
        total += tree_message(e, tree_span(c, c->rank + bit));
    return total;
}

static char *tree_child_mail(const lksi_comm *c, const lksi_engine *e, lksi_request *r, int child)
{
    char *p = r->mail + tree_message(e, c->size);
    for (int bit = 1, k = 0; k < child; bit <<= 1, k++) p += tree_message(e, tree_span(c, c->rank + bit));
    return p;
}

static char *tree_up_mail(const lksi_comm *c, const lksi_engine *e, lksi_request *r)
{
    return tree_child_mail(c, e, r, tree_children(c));
}

/* Values that this rank sends with its head. */
static void own_values(lksi_comm *c, lksi_request *r, char *to)
{
    if (r->head.inlined == 0) return;
    if (r->head.kind == LKSI_DO_GATHER) memcpy(to, r->in, (size_t)r->bytes);
    else if (r->head.kind == LKSI_DO_REDUCE || c->rank == r->head.root) memcpy(to, r->buf, (size_t)r->bytes);
}

/* Values of all ranks are at first + s * stride: make the result. */
static void inline_result(lksi_comm *c, lksi_request *r, const char *first, int64_t stride)
{
    lksi_engine *e = engine_of(c);
    if (r->head.inlined == 0) return;
    if (r->head.kind == LKSI_DO_REDUCE) {
        for (int s = 0; s < c->size; s++) e->part[s] = first + s * stride;
        lksi_combine(c->size, e->part, r->buf, r->head.count, r->head.dtype, r->head.op);
    } else if (r->head.kind == LKSI_DO_BROADCAST) {
        if (c->rank != r->head.root) memcpy(r->buf, first + r->head.root * stride, (size_t)r->bytes);
    } else {
        for (int s = 0; s < c->size; s++) memcpy(r->buf + s * r->bytes, first + s * stride, (size_t)r->bytes);
    }
}

static int64_t result_bytes(const lksi_comm *c, const lksi_request *r)
{
    if (r->head.inlined == 0) return 0;
    return r->head.kind == LKSI_DO_GATHER ? r->bytes * c->size : r->bytes;
}

/* Into shared memory: once its place is free. */
static void shared_start(lksi_comm *c, lksi_request *r)
{
    lksi_shm *m = engine_of(c)->shm;
    if (!lksi_shm_free(m, r->head.sequence)) return;
    r->started = 1;
    r->left = c->size - 1;
    memset(r->arrived, 0, (size_t)c->size);
    own_values(c, r, lksi_shm_values(m, c->rank, r->head.sequence));
    lksi_shm_show(m, &r->head);
}

static lks_status shared_move(lksi_comm *c, lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    int64_t sequence = r->head.sequence;
    for (int s = 0; s < c->size && r->left > 0; s++) {
        if (s == c->rank || r->arrived[s]) continue;
        const lksi_head *h = lksi_shm_head(e->shm, s, sequence);
        if (!h) continue;
        r->arrived[s] = 1;
        r->left--;
        e->progress++;
        if (!heads_agree(&r->head, h)) return mismatch(r, c, s, h);
    }
    if (r->left > 0) return LKS_OK;
    inline_result(c, r, lksi_shm_values(e->shm, 0, sequence), lksi_shm_stride(e->shm));
    lksi_shm_take(e->shm, sequence);
    r->headed = 1;
    return LKS_OK;
}

static lks_status head_start(lksi_comm *c, lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    int n = c->size, rc = MPI_SUCCESS;
    if (e->shm) {
        shared_start(c, r);
        return LKS_OK;
    }
    r->started = 1;
    if (n <= LKSI_DIRECT) {
        char *own = r->mail + c->rank * slot_bytes(e);
        memcpy(own, &r->head, sizeof r->head);
        own_values(c, r, own + sizeof r->head);
        int own_bytes = (int)sizeof r->head + r->head.inlined;
        memset(r->arrived, 0, (size_t)n);
        r->rqs = 2 * n;
        r->left = 2 * (n - 1);
        for (int s = 0; s < n; s++) r->rq[s] = r->rq[n + s] = MPI_REQUEST_NULL;
        for (int k = 1; k < n && rc == MPI_SUCCESS; k++) {
            int s = (c->rank + k) % n;
            rc = MPI_Irecv(r->mail + s * slot_bytes(e), (int)slot_bytes(e), MPI_BYTE, s,
                           tag_of(r->head.sequence, TAG_UP), c->mpi, &r->rq[s]);
            if (rc == MPI_SUCCESS)
                rc = MPI_Isend(own, own_bytes, MPI_BYTE, s, tag_of(r->head.sequence, TAG_UP), c->mpi, &r->rq[n + s]);
        }
    } else {
        char *up = tree_up_mail(c, e, r);
        memcpy(up, &r->head, sizeof r->head);
        own_values(c, r, up + sizeof r->head);
        r->stage = 0;
        r->rqs = r->left = tree_children(c);
        for (int k = 0; k < r->rqs && rc == MPI_SUCCESS; k++)
            rc = MPI_Irecv(tree_child_mail(c, e, r, k), (int)tree_message(e, tree_span(c, c->rank + (1 << k))),
                           MPI_BYTE, c->rank + (1 << k), tag_of(r->head.sequence, TAG_UP), c->mpi, &r->rq[k]);
    }
    return rc == MPI_SUCCESS ? LKS_OK : mpi_failed(c, "MPI_Irecv or MPI_Isend", rc, r->head.what);
}

/* Tests the requests of a head round or a chunk; *outs entries of e->index say which ended. A message longer than its
 * buffer is marked in *too_long: heads will tell why. */
static lks_status test_some(lksi_comm *c, const char *where, int n, MPI_Request *rq, int *outs, int *too_long)
{
    lksi_engine *e = engine_of(c);
    *outs = 0;
    *too_long = 0;
    int rc = MPI_Testsome(n, rq, outs, e->index, e->status);
    if (*outs == MPI_UNDEFINED) *outs = 0;
    if (rc == MPI_SUCCESS) return LKS_OK;
    if (rc != MPI_ERR_IN_STATUS) return mpi_failed(c, "MPI_Testsome", rc, where);
    for (int i = 0; i < *outs; i++) {
        if (e->status[i].MPI_ERROR == MPI_SUCCESS || e->status[i].MPI_ERROR == MPI_ERR_PENDING) continue;
        int cls = 0;
        MPI_Error_class(e->status[i].MPI_ERROR, &cls);
        if (cls != MPI_ERR_TRUNCATE) return mpi_failed(c, "MPI_Testsome", e->status[i].MPI_ERROR, where);
        *too_long = 1;
    }
    return LKS_OK;
}

static lks_status direct_move(lksi_comm *c, lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    int n = c->size, outs, too_long;
    TRY(test_some(c, r->head.what, r->rqs, r->rq, &outs, &too_long));
    if (too_long) return lksi_engine_break(c, LKS_ERR_INTERNAL, 1, r->head.what, "a head was too long");
    for (int i = 0; i < outs; i++) {
        e->progress++;
        r->left--;
        int s = e->index[i];
        if (s >= n) continue;
        r->arrived[s] = 1;
        const lksi_head *h = (const lksi_head *)(r->mail + s * slot_bytes(e));
        if (!heads_agree(&r->head, h)) return mismatch(r, c, s, h);
    }
    if (r->left == 0) {
        inline_result(c, r, r->mail + sizeof(lksi_head), slot_bytes(e));
        r->headed = 1;
    }
    return LKS_OK;
}

/* stage 0: heads of children come in; 1: ours went up, the result comes down; 2: it goes to the children. */
static lks_status tree_move(lksi_comm *c, lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    int outs, too_long, rc = MPI_SUCCESS, children = tree_children(c);
    if (r->left > 0) {
        TRY(test_some(c, r->head.what, r->rqs, r->rq, &outs, &too_long));
        if (too_long) return lksi_engine_break(c, LKS_ERR_INTERNAL, 1, r->head.what, "a head was too long");
        for (int i = 0; i < outs; i++) {
            e->progress++;
            r->left--;
            if (r->stage != 0) continue;
            int k = e->index[i];
            const lksi_head *h = (const lksi_head *)tree_child_mail(c, e, r, k);
            if (!heads_agree(&r->head, h)) return mismatch(r, c, c->rank + (1 << k), h);
        }
    }
    if (r->left > 0) return LKS_OK;
    int64_t inl = r->head.inlined;
    char *up = tree_up_mail(c, e, r), *result = r->mail;
    if (r->stage == 0) {
        /* Blocks of the subtree after the own one, in order of rank. */
        for (int k = 0; k < children; k++)
            memcpy(up + sizeof(lksi_head) + (int64_t)(1 << k) * inl, tree_child_mail(c, e, r, k) + sizeof(lksi_head),
                   (size_t)(tree_span(c, c->rank + (1 << k)) * inl));
        r->stage = 1;
        if (c->rank == 0) {
            memcpy(result, &r->head, sizeof r->head);
            inline_result(c, r, up + sizeof(lksi_head), inl);
            if (inl) memcpy(result + sizeof(lksi_head), r->buf, (size_t)result_bytes(c, r));
        } else {
            int parent = c->rank & (c->rank - 1);
            r->rqs = r->left = 2;
            rc = MPI_Irecv(result, (int)tree_message(e, c->size), MPI_BYTE, parent,
                           tag_of(r->head.sequence, TAG_DOWN), c->mpi, &r->rq[0]);
            if (rc == MPI_SUCCESS)
                rc = MPI_Isend(up, (int)(sizeof(lksi_head) + (size_t)(tree_span(c, c->rank) * inl)), MPI_BYTE, parent,
                               tag_of(r->head.sequence, TAG_UP), c->mpi, &r->rq[1]);
            if (rc != MPI_SUCCESS) return mpi_failed(c, "MPI_Irecv or MPI_Isend", rc, r->head.what);
            return LKS_OK;
        }
    }
    if (r->stage == 1) {
        if (c->rank != 0 && inl) memcpy(r->buf, result + sizeof(lksi_head), (size_t)result_bytes(c, r));
        r->stage = 2;
        r->rqs = r->left = children;
        for (int k = 0; k < children && rc == MPI_SUCCESS; k++)
            rc = MPI_Isend(result, (int)(sizeof(lksi_head) + (size_t)result_bytes(c, r)), MPI_BYTE, c->rank + (1 << k),
                           tag_of(r->head.sequence, TAG_DOWN), c->mpi, &r->rq[k]);
        if (rc != MPI_SUCCESS) return mpi_failed(c, "MPI_Isend", rc, r->head.what);
        if (children) return LKS_OK;
    }
    r->headed = 1;
    return LKS_OK;
}

/* --- chunks ------------------------------------------------------------------------------------------------------ */

static int64_t slice_of(const lksi_chunk *k, int s)
{
    int64_t begin = s * k->slice, end = begin + k->slice;
    if (end > k->elements) end = k->elements;
    return end > begin ? end - begin : 0;
}

static char *slice_at(const lksi_chunk *k, int s)
{
    return k->r->buf + (k->at + s * k->slice) * k->r->esize;
}

static int post(lksi_comm *c, lksi_chunk *k, int group, int s, int send, char *at, int64_t bytes)
{
    int tag = TAG_CHUNK + 2 * k->place + (group >= 2);
    MPI_Request *rq = &k->rq[group * c->size + s];
    return send ? MPI_Isend(at, (int)bytes, MPI_BYTE, s, tag, c->mpi, rq)
                : MPI_Irecv(at, (int)bytes, MPI_BYTE, s, tag, c->mpi, rq);
}

static lks_status chunk_start(lksi_comm *c, lksi_chunk *k, lksi_request *r)
{
    int n = c->size, me = c->rank, rc = MPI_SUCCESS, kind = r->head.kind;
    if (!k->rq) {
        k->rq = lksi_alloc(c->base, (int64_t)sizeof *k->rq * 4 * n);
        if (!k->rq) return lksi_engine_break(c, LKS_ERR_MEMORY, 1, r->head.what, "out of memory in a collective");
    }
    for (int i = 0; i < 4 * n; i++) k->rq[i] = MPI_REQUEST_NULL;
    int64_t total = kind == LKSI_DO_REDUCE ? r->head.count : r->bytes;
    k->r = r;
    k->at = r->chunk_next * r->chunk_elements;
    k->elements = total - k->at < r->chunk_elements ? total - k->at : r->chunk_elements;
    k->slice = kind == LKSI_DO_GATHER ? k->elements : (k->elements + n - 1) / n;
    k->parts = k->left = k->summed = 0;
    int64_t own = slice_of(k, me) * r->esize;
    if (kind == LKSI_DO_REDUCE && own > 0) {
        int64_t need = (n - 1) * k->slice * r->esize;
        if (need > k->stage_bytes) {
            lksi_free(c->base, k->stage);
            k->stage_bytes = 0;
            k->stage = lksi_alloc(c->base, need);
            if (!k->stage)
                return lksi_engine_break(c, LKS_ERR_MEMORY, 1, r->head.what, "out of memory in a collective");
            k->stage_bytes = need;
        }
    }
    for (int j = 1; j < n && rc == MPI_SUCCESS; j++) {
        int s = (me + j) % n;
        int64_t theirs = slice_of(k, s) * r->esize;
        if (kind == LKSI_DO_GATHER) {
            k->parts++;
            k->left += 2;
            rc = post(c, k, 0, s, 0, r->buf + s * r->bytes + k->at, k->elements);
            if (rc == MPI_SUCCESS) rc = post(c, k, 1, s, 1, (char *)r->in + k->at, k->elements);
        } else if (kind == LKSI_DO_BROADCAST) {
            if (s == r->head.root && own > 0) {
                k->parts++;
                k->left++;
                rc = post(c, k, 0, s, 0, slice_at(k, me), own);
            }
            if (me == r->head.root && theirs > 0) {
                k->left++;
                rc = post(c, k, 1, s, 1, slice_at(k, s), theirs);
            }
            if (me != r->head.root && theirs > 0 && rc == MPI_SUCCESS) {
                k->left++;
                rc = post(c, k, 2, s, 0, slice_at(k, s), theirs);
            }
            if (s != r->head.root && own > 0) k->left++; /* send of the own slice, later */
        } else {
            if (own > 0) {
                k->parts++;
                k->left += 2; /* and the send of the sum */
                rc = post(c, k, 0, s, 0, k->stage + (s - (s > me)) * k->slice * r->esize, own);
            }
            if (theirs > 0 && rc == MPI_SUCCESS) {
                k->left += 2; /* and the receive of their sum */
                rc = post(c, k, 1, s, 1, slice_at(k, s), theirs);
            }
        }
    }
    if (rc != MPI_SUCCESS) return mpi_failed(c, "MPI_Irecv or MPI_Isend", rc, r->head.what);
    r->chunk_next++;
    return LKS_OK;
}

static lks_status chunk_move(lksi_comm *c, lksi_chunk *k)
{
    lksi_engine *e = engine_of(c);
    lksi_request *r = k->r;
    int n = c->size, me = c->rank, outs, too_long, rc = MPI_SUCCESS, kind = r->head.kind;
    int64_t own = slice_of(k, me) * r->esize;
    TRY(test_some(c, r->head.what, 4 * n, k->rq, &outs, &too_long));
    if (too_long) return lksi_engine_break(c, LKS_ERR_INTERNAL, 1, r->head.what, "a chunk was too long");
    for (int i = 0; i < outs; i++) {
        int group = e->index[i] / n, s = e->index[i] % n;
        e->progress++;
        k->left--;
        if (group == 0) k->parts--;
        /* Its part is out of buf: the sum may come in. */
        if (group == 1 && kind == LKSI_DO_REDUCE) {
            rc = post(c, k, 2, s, 0, slice_at(k, s), slice_of(k, s) * r->esize);
            if (rc != MPI_SUCCESS) return mpi_failed(c, "MPI_Irecv", rc, r->head.what);
        }
    }
    if (!k->summed && k->parts == 0 && kind != LKSI_DO_GATHER && own > 0) {
        k->summed = 1;
        if (kind == LKSI_DO_REDUCE) {
            for (int s = 0; s < n; s++)
                e->part[s] = s == me ? slice_at(k, me) : k->stage + (s - (s > me)) * k->slice * r->esize;
            lksi_combine(n, e->part, slice_at(k, me), slice_of(k, me), r->head.dtype, r->head.op);
        }
        for (int j = 1; j < n && rc == MPI_SUCCESS; j++) {
            int s = (me + j) % n;
            if (kind == LKSI_DO_BROADCAST && s == r->head.root) continue;
            rc = post(c, k, 3, s, 1, slice_at(k, me), own);
        }
        if (rc != MPI_SUCCESS) return mpi_failed(c, "MPI_Isend", rc, r->head.what);
    }
    if (k->left == 0) {
        r->chunk_done++;
        k->r = NULL;
        e->chunks_busy--;
    }
    return LKS_OK;
}

/* --- posting, moving --------------------------------------------------------------------------------------------- */

static lksi_request *request_new(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    lksi_request *r = e->pool;
    if (r) {
        e->pool = r->next;
        char *mail = r->mail, *arrived = r->arrived;
        MPI_Request *rq = r->rq;
        memset(r, 0, sizeof *r);
        r->mail = mail;
        r->arrived = arrived;
        r->rq = rq;
        return r;
    }
    r = lksi_alloc(c->base, sizeof *r);
    if (!r) return NULL;
    int rqs = e->shm ? 0 : c->size <= LKSI_DIRECT ? 2 * c->size : 64;
    r->mail = lksi_alloc(c->base, e->shm ? 0 : mail_bytes(c, e));
    r->rq = lksi_alloc(c->base, (int64_t)sizeof *r->rq * rqs);
    r->arrived = lksi_alloc(c->base, c->size);
    if (r->mail && r->rq && r->arrived) {
        for (int i = 0; i < rqs; i++) r->rq[i] = MPI_REQUEST_NULL;
        return r;
    }
    lksi_free(c->base, r->mail);
    lksi_free(c->base, r->rq);
    lksi_free(c->base, r->arrived);
    lksi_free(c->base, r);
    return NULL;
}

static void take_note(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    if (e->note_rq == MPI_REQUEST_NULL) return;
    int done = 0;
    MPI_Status st;
    if (MPI_Test(&e->note_rq, &done, &st) != MPI_SUCCESS || !done) return;
    int from = st.MPI_SOURCE;
    e->nudged++;
    e->note.text[sizeof e->note.text - 1] = 0;
    e->note.what[sizeof e->note.what - 1] = 0;
    if (e->note.kind == NOTE_ASK) {
        send_note(c, from, NOTE_ANSWER, LKS_OK, NULL);
    } else if (e->note.kind == NOTE_ANSWER) {
        e->answer[from] = e->note;
        e->answered[from] = 1;
    } else if (e->broken == LKS_OK && e->later == LKS_OK) {
        e->later = e->note.code;
        e->later_at = e->note.sequence;
        e->later_since = lksi_now();
        snprintf(e->text, sizeof e->text, "rank %d broke off: %s", from, e->note.text);
    }
    if (MPI_Irecv(&e->note, (int)sizeof e->note, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTE, c->mpi, &e->note_rq) !=
        MPI_SUCCESS)
        e->note_rq = MPI_REQUEST_NULL;
}

/* Looks for notes: with shared memory mostly when one is known to be on its way. */
static void take_notes(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    if (e->shm && (e->polls & 1023) != 0 && lksi_shm_nudges(e->shm) <= e->nudged) return;
    take_note(c);
}

/* Breaks off as another rank did, once this one is in operation `sequence`; an earlier one gets a moment to end. */
void lksi_engine_follow(lksi_comm *c, int64_t sequence)
{
    lksi_engine *e = engine_of(c);
    if (e->later == LKS_OK || e->broken != LKS_OK) return;
    double moment = c->base->deadline < 4 ? c->base->deadline / 4 : 1;
    if (sequence < e->later_at && lksi_now() - e->later_since < moment) return;
    e->broken = e->later;
    end_transport(c);
}

void lksi_engine_recycle(lksi_comm *c, lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    if (!r || r->active) return;
    r->next = e->pool;
    e->pool = r;
}

/* h is part of a step that may be repeated. */
static void trace(lksi_comm *c, const lksi_head *h)
{
    lksi_heads *l = c->record;
    if (!h->elsewhere) lksi_trace_once(c->dev, "ranks exchange messages in it");
    lksi_trace_number(c->dev, h->kind << 16 | h->dtype << 8 | h->op);
    lksi_trace_number(c->dev, h->count);
    lksi_trace_number(c->dev, h->root);
    if (!l || !h->elsewhere) return;
    if (l->n == l->room) {
        int room = 2 * l->room + 16;
        lksi_head *head = lksi_realloc(c->base, l->head, l->room * (int64_t)sizeof *head, room * (int64_t)sizeof *head);
        if (!head) {
            l->failed = 1;
            return;
        }
        l->head = head;
        l->room = room;
    }
    l->head[l->n++] = *h;
}

static lks_status post_request(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root, void *buf,
                               const void *in, int64_t count, int ready, int elsewhere, lksi_request **rq)
{
    lksi_engine *e = engine_of(c);
    *rq = NULL;
    take_notes(c);
    lksi_engine_follow(c, c->sequence + 1);
    TRY(lksi_engine_usable(c, what));
    lksi_request *r = request_new(c);
    if (!r) return lksi_engine_break(c, LKS_ERR_MEMORY, 1, what, "out of memory in a collective");
    r->esize = kind == LKSI_DO_REDUCE ? lks_dtype_size(dtype) : 1;
    r->bytes = elsewhere ? 0 : count * r->esize;
    r->buf = buf;
    r->in = in;
    r->ready = ready;
    lksi_head *h = &r->head;
    h->sequence = ++c->sequence;
    h->step = c->step;
    h->count = count;
    h->magic = MAGIC;
    h->kind = kind;
    h->dtype = dtype;
    h->op = op;
    h->root = root;
    h->elsewhere = elsewhere;
    h->inlined = r->bytes <= e->inline_max ? (int32_t)r->bytes : 0;
    snprintf(h->what, sizeof h->what, "%s", what);
    if (!h->inlined && r->bytes > 0) {
        int64_t piece = e->chunk_bytes / r->esize;
        r->chunk_elements = kind == LKSI_DO_GATHER && !e->shm ? (piece + c->size - 1) / c->size : piece;
        r->chunks = (count + r->chunk_elements - 1) / r->chunk_elements;
        if (kind == LKSI_DO_GATHER && ready) memcpy(r->buf + c->rank * r->bytes, r->in, (size_t)r->bytes);
    }
    r->active = 1;
    if (e->last) e->last->next = r;
    else e->first = r;
    e->last = r;
    *rq = r;
    if (c->dev && c->dev->trace) trace(c, h);
    if (h->inlined == 0 || ready) {
        lks_status st = head_start(c, r);
        if (st != LKS_OK) return st;
    }
    return LKS_OK;
}

lks_status lksi_engine_post(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root, void *buf,
                            const void *in, int64_t count, int ready, lksi_request **rq)
{
    return post_request(c, what, kind, op, dtype, root, buf, in, count, ready, 0, rq);
}

lks_status lksi_engine_announce(lksi_comm *c, const char *what, int kind, int op, lks_dtype dtype, int root,
                                int64_t count, lksi_request **rq)
{
    return post_request(c, what, kind, op, dtype, root, NULL, NULL, count, 1, 1, rq);
}

static lks_status move(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    for (lksi_request *r = e->first; r; r = r->next) {
        if (r->ready && !r->started) TRY(head_start(c, r));
        if (!r->started || r->headed) continue;
        TRY(e->shm ? shared_move(c, r) : c->size <= LKSI_DIRECT ? direct_move(c, r) : tree_move(c, r));
    }
    if (e->shm) e->progress += lksi_shm_move(e->shm, e->first);
    if (e->chunks_busy)
        for (int i = 0; i < LKSI_CHUNKS; i++)
            if (e->chunk[i].r) TRY(chunk_move(c, &e->chunk[i]));
    /* The next place goes to the oldest operation that has chunks left. */
    for (lksi_request *r = e->shm ? NULL : e->first; r; r = r->next) {
        if (r->chunk_next == r->chunks) continue;
        if (!r->ready || !r->headed) break;
        lksi_chunk *k;
        while (r->chunk_next < r->chunks && !(k = &e->chunk[e->chunks_started % LKSI_CHUNKS])->r) {
            k->place = (int)(e->chunks_started++ % LKSI_CHUNKS);
            e->chunks_busy++;
            TRY(chunk_start(c, k, r));
        }
        if (r->chunk_next < r->chunks) break;
    }
    for (lksi_request **p = &e->first, *before = NULL; *p;) {
        lksi_request *r = *p;
        if (!r->headed || r->chunk_done < r->chunks) {
            before = r;
            p = &r->next;
            continue;
        }
        *p = r->next;
        if (e->last == r) e->last = before;
        r->next = NULL;
        r->active = 0;
        r->done = 1;
        e->progress++;
    }
    return LKS_OK;
}

void lksi_engine_poll(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    if (e->broken != LKS_OK || c->size == 1) return;
    if (e->first) (void)move(c);
    if (e->broken == LKS_OK && (!e->first || e->shm || (e->polls & 15) == 0)) {
        take_notes(c);
        if (e->out) reap_notes(c);
    }
    e->polls++;
}

/* --- waiting ----------------------------------------------------------------------------------------------------- */

static void rest(int64_t idle, int64_t spins, double since)
{
    if (idle < spins) {
#if defined __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("yield");
#endif
        return;
    }
    if (idle < spins + YIELDS) {
        sched_yield();
        return;
    }
    double waited = lksi_now() - since;
    struct timespec t = {0, waited < 0.02 ? 50000 : waited < 1.0 ? 200000 : 1000000};
    nanosleep(&t, NULL);
}

int64_t lksi_process(int64_t pid, char *state)
{
    char path[64], line[1024];
    *state = 'X';
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = 0;
    char *p = strrchr(line, ')'); /* the name may hold anything */
    long long started = 0;
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld", state,
                     &started) != 2)
        return 0;
    return started;
}

/* "", " (process has ended)", " (process is stopped)": what this rank can see of rank s. */
static const char *seen_of(lksi_comm *c, int s)
{
    lksi_engine *e = engine_of(c);
    if (!e->peer || e->peer[s].pid == 0 || e->peer[s].node != e->peer[c->rank].node) return "";
    char state;
    if (lksi_process(e->peer[s].pid, &state) != e->peer[s].started || state == 'Z' || state == 'X')
        return " (process has ended)";
    return state == 'T' || state == 't' ? " (process is stopped)" : "";
}

lksi_request *lksi_engine_waiting(lksi_comm *c, lksi_request *r)
{
    lksi_request *was = engine_of(c)->waiting;
    engine_of(c)->waiting = r;
    return was;
}

lks_status lksi_engine_give_up(lksi_comm *c, lksi_request *r, double waited, const char *why)
{
    lksi_engine *e = engine_of(c);
    int n = c->size;
    memset(e->answered, 0, (size_t)n);
    for (int s = 0; s < n; s++)
        if (s != c->rank) send_note(c, s, NOTE_ASK, LKS_OK, NULL);
    double until = lksi_now() + (c->base->deadline < 4.0 ? c->base->deadline / 4 : 1.0), start = lksi_now();
    for (int64_t idle = 0; lksi_now() < until; idle++) {
        e->polls = 0; /* notes first */
        lksi_comm_poll(c);
        if (r->done) return LKS_OK;
        lksi_engine_follow(c, r->head.sequence);
        if (e->broken != LKS_OK) return lksi_fail(c->base, e->broken, r->head.what, "%s", e->text);
        int all = 1;
        for (int s = 0; s < n; s++) all &= s == c->rank || e->answered[s];
        if (all) break;
        rest(idle, e->spins, start);
    }
    char what[160], text[LKSI_TEXT / 2];
    size_t at = 0;
    int silent = 0, listed = 0;
    text[0] = 0;
    for (int s = 0; s < n && at + 100 < sizeof text; s++) {
        if (s == c->rank || e->answered[s]) continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d%s", silent++ ? ", " : "no sign of life from rank ", s,
                               seen_of(c, s));
    }
    for (int s = 0; s < n && listed < 8 && at + 200 < sizeof text; s++) {
        lksi_note *a = &e->answer[s];
        if (s == c->rank || !e->answered[s] || (a->waiting && a->sequence == r->head.sequence)) continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "%srank %d is at step %lld, %s%s (collective %lld)",
                               silent || listed ? "; " : "", s, (long long)a->step,
                               a->waiting ? "in " : "in no collective", a->waiting ? a->what : "",
                               (long long)a->sequence);
        listed++;
    }
    if (!silent && !listed) snprintf(text, sizeof text, "every rank waits in it: the network does not deliver");
    if (why)
        return lksi_engine_break(c, LKS_ERR_TIMEOUT, 1, r->head.what, "%s in %s, collective %lld, step %lld: %s. The "
                                 "communicator cannot be used any more: end the job (MPI_Abort) and resume from a "
                                 "checkpoint", why, head_text(&r->head, what, sizeof what), (long long)r->head.sequence,
                                 (long long)r->head.step, text);
    return lksi_engine_break(c, LKS_ERR_TIMEOUT, 1, r->head.what,
                             "no progress for %.3g s in %s, collective %lld, step %lld: %s. The communicator cannot be "
                             "used any more: end the job (MPI_Abort) and resume from a checkpoint",
                             waited, head_text(&r->head, what, sizeof what), (long long)r->head.sequence,
                             (long long)r->head.step, text);
}

static int let_go(MPI_Request *rq, int receive);

/* The caller gets its memory back although the operation did not end: nothing may arrive in it any more. */
static void abandon(lksi_comm *c, const lksi_request *r)
{
    lksi_engine *e = engine_of(c);
    for (int i = 0; i < LKSI_CHUNKS; i++)
        if (e->chunk[i].r == r && e->chunk[i].rq)
            for (int j = 0; j < 4 * c->size; j++)
                if ((j / c->size) % 2 == 0) let_go(&e->chunk[i].rq[j], 1);
}

lks_status lksi_engine_wait(lksi_comm *c, lksi_request *r, int patient)
{
    lksi_engine *e = engine_of(c);
    const char *where = r->head.what;
    if (r->done) return LKS_OK;
    if (e->broken != LKS_OK) {
        abandon(c, r);
        return lksi_engine_usable(c, where);
    }
    lksi_request *outer = e->waiting;
    e->waiting = r;
    double since = lksi_now(), looked = since;
    int64_t progress = e->progress;
    lks_status status = LKS_OK;
    for (int64_t idle = 0;; idle++) {
        lksi_comm_poll(c);
        if (r->done) break;
        lksi_engine_follow(c, r->head.sequence);
        if (e->broken != LKS_OK) {
            status = lksi_fail(c->base, e->broken, where, "%s", e->text);
            break;
        }
        if (progress != e->progress) {
            progress = e->progress;
            since = lksi_now();
            idle = 0;
            continue;
        }
        rest(idle, e->spins, since);
        if (idle % 64 != 0) continue;
        double now = lksi_now();
        if (patient && now - looked > 0.1) {
            looked = now;
            if (seen_of(c, 0)[0] == 0) since = now; /* rank 0 works, or cannot be seen from here */
        } else if (patient) {
            continue;
        }
        if (now - since < c->base->deadline) continue;
        status = lksi_engine_give_up(c, r, now - since, NULL);
        break;
    }
    e->waiting = outer;
    if (status != LKS_OK) abandon(c, r);
    return status;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

void lksi_engine_peers(lksi_comm *c, const lksi_peer *peer)
{
    lksi_engine *e = engine_of(c);
    if (e->peer) memcpy(e->peer, peer, sizeof *peer * (size_t)c->size);
}

lks_status lksi_engine_share(lksi_comm *c, const lksi_peer *peer)
{
    lksi_engine *e = engine_of(c);
    lksi_shm *m = NULL;
    TRY(lksi_shm_open(c, peer, &m));
    if (!m) return LKS_OK;
    e->inline_max = LKSI_SHM_INLINE;
    e->chunk_bytes = LKSI_SHM_CHUNK;
    e->nudged = 0;
    if (!lksi_shm_crowded(m)) e->spins = SPINS_SHARED;
    e->shm = m;
    return LKS_OK;
}

int lksi_engine_shared(const lksi_comm *c)
{
    return engine_of(c)->shm != NULL;
}

lks_status lksi_engine_open(lksi_comm *c)
{
    lksi_engine *e = lksi_alloc(c->base, sizeof *e);
    if (!e) return LKS_ERR_MEMORY;
    c->state = e;
    int n = c->size;
    e->note_rq = MPI_REQUEST_NULL;
    e->spins = SPINS;
    e->inline_max = n <= 2 ? INLINE_TWO : n <= 4 ? INLINE_FOUR : n <= LKSI_DIRECT ? INLINE_DIRECT : INLINE_TREE;
    e->chunk_bytes = CHUNK_BYTES > (int64_t)n * SLICE_BYTES ? CHUNK_BYTES : (int64_t)n * SLICE_BYTES;
    e->index = lksi_alloc(c->base, (int64_t)sizeof *e->index * (4 * n + 64));
    e->status = lksi_alloc(c->base, (int64_t)sizeof *e->status * (4 * n + 64));
    e->part = lksi_alloc(c->base, (int64_t)sizeof *e->part * n);
    e->answer = lksi_alloc(c->base, (int64_t)sizeof *e->answer * n);
    e->answered = lksi_alloc(c->base, n);
    e->peer = lksi_alloc(c->base, (int64_t)sizeof *e->peer * n);
    if (!e->index || !e->status || !e->part || !e->answer || !e->answered || !e->peer) return LKS_ERR_MEMORY;
    if (n == 1) return LKS_OK;
    int rc = MPI_Irecv(&e->note, (int)sizeof e->note, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTE, c->mpi, &e->note_rq);
    if (rc == MPI_SUCCESS) return LKS_OK;
    e->note_rq = MPI_REQUEST_NULL;
    return lksi_fail(c->base, LKS_ERR_MPI, "lks_context_create", "MPI_Irecv failed with %d", rc);
}

/* 1: MPI no longer touches the memory behind rq. Receives are cancelled; a send ends by itself or not at all. */
static int let_go(MPI_Request *rq, int receive)
{
    if (*rq == MPI_REQUEST_NULL) return 1;
    int done = 0;
    if (receive) MPI_Cancel(rq);
    for (int i = 0; i < 100 && !done; i++)
        if (MPI_Test(rq, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 1;
    return done;
}

static void request_free(lksi_comm *c, lksi_request *r)
{
    lksi_free(c->base, r->mail);
    lksi_free(c->base, r->rq);
    lksi_free(c->base, r->arrived);
    lksi_free(c->base, r);
}

/* A broken communicator has messages under way. What MPI may still write to or read from is not freed: better a few
 * blocks lost at the end of a failed job than a crash in it. */
void lksi_engine_close(lksi_comm *c)
{
    lksi_engine *e = engine_of(c);
    if (!e) return;
    int n = c->size, down = 0;
    MPI_Finalized(&down);
    int lost = 0;
    while (e->first) {
        lksi_request *r = e->first;
        e->first = r->next;
        int ok = 1;
        if (!down)
            for (int i = 0; i < r->rqs; i++) {
                int receive = n <= LKSI_DIRECT ? i < n : r->stage == 0 || (r->stage == 1 && i == 0);
                ok &= let_go(&r->rq[i], receive);
            }
        if (ok) request_free(c, r);
        else lost++;
    }
    while (e->pool) {
        lksi_request *r = e->pool;
        e->pool = r->next;
        request_free(c, r);
    }
    for (int i = 0; i < LKSI_CHUNKS; i++) {
        lksi_chunk *k = &e->chunk[i];
        int ok = 1;
        if (k->r && k->rq && !down)
            for (int j = 0; j < 4 * n; j++) ok &= let_go(&k->rq[j], (j / n) % 2 == 0);
        if (!ok) {
            lost++;
            continue;
        }
        lksi_free(c->base, k->stage);
        lksi_free(c->base, k->rq);
    }
    if (!down) {
        double until = lksi_now() + 0.5; /* a last word gets a moment to leave */
        while (e->out && lksi_now() < until) reap_notes(c);
        if (!let_go(&e->note_rq, 1)) lost++;
    }
    lost += e->out != NULL;
    if (down)
        while (e->out) {
            lksi_note_out *o = e->out;
            e->out = o->next;
            lksi_free(c->base, o);
        }
    lksi_shm_close(c, e->shm);
    e->shm = NULL;
    lksi_free(c->base, e->index);
    lksi_free(c->base, e->status);
    lksi_free(c->base, e->part);
    lksi_free(c->base, e->answer);
    lksi_free(c->base, e->answered);
    lksi_free(c->base, e->peer);
    if (!lost) lksi_free(c->base, e);
    c->state = NULL;
}
