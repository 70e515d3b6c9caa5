/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_comm.c - collectives on 1 to 9 ranks: values and bits, order, mismatches, lifetimes. tests/comm.test starts it
 * with several rank counts; arguments: the device ("cpu", "far"); "alone": the library initialises MPI; "late": a
 * context outlives MPI_Finalize. Ranks that fail are in fail.test.
 */
#include "comm/comm.h"
#include "tap_mpi.h"
#include "tensor/tensor.h"
#include <lockstep.h>
#include <time.h>

static const char *device = "cpu";

static int said; /* log lines about messages instead of shared memory */

/* MPI as the library meets it: the next message fails if it is told to. */
static int broken;
int MPI_Isend(const void *p, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *rq)
{
    if (broken) return broken = 0, MPI_ERR_TRUNCATE;
    return PMPI_Isend(p, n, type, to, tag, comm, rq);
}

static void listen(void *user, int level, const char *line)
{
    (void)user;
    said += level == LKS_LOG_INFO && strstr(line, "talk by messages") != NULL;
}

static lks_context *open_context(MPI_Comm comm, double deadline)
{
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    lks_config_set_log(config, listen, NULL);
    lks_config_set_device(config, device);
    lks_config_set_threads(config, 1);
    lks_config_set_deadline(config, deadline);
    if (lks_context_create(comm, config, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
    return ctx;
}

static void counters(lks_context *ctx)
{
    int n = lks_size(ctx), me = lks_rank(ctx);
    int64_t v[3] = {300000000, me, INT64_MIN + me};
    ok(lks_reduce_i64(ctx, v, 3, LKS_SUM) == LKS_OK && v[0] == 300000000LL * n && v[1] == n * (n - 1) / 2,
       "B63: counters are summed in 64 bits");
    int64_t lo = me, hi = me;
    ok(lks_reduce_i64(ctx, &lo, 1, LKS_MIN) == LKS_OK && lks_reduce_i64(ctx, &hi, 1, LKS_MAX) == LKS_OK && lo == 0 &&
           hi == n - 1,
       "min and max of int64");
    double d[2] = {0.5 * me, 2};
    ok(lks_reduce_f64(ctx, d, 1, LKS_MEAN) == LKS_OK && d[0] == 0.5 * (n - 1) / 2 &&
           lks_reduce_f64(ctx, d + 1, 1, LKS_PRODUCT) == LKS_OK && d[1] == ldexp(1, n),
       "mean and product of float64");
    d[0] = me == n - 1 ? NAN : me;
    d[1] = -d[0];
    lks_reduce_f64(ctx, d, 2, LKS_MAX);
    ok(isnan(d[0]) && isnan(d[1]), "a NaN on any rank wins min and max");
    int64_t mean = 1;
    ok(lks_reduce_i64(ctx, &mean, 1, LKS_MEAN) == LKS_ERR_DTYPE, "mean of integers is an error");
    lks_error_clear(ctx);
    ok(lks_reduce_i64(ctx, NULL, 0, LKS_SUM) == LKS_OK, "nothing to reduce");
}

/* Fills with `bits`, reduces, compares every element with `want`. */
static int half_case(lks_context *ctx, lks_dtype dtype, uint16_t bits, int op, uint16_t want, int64_t count)
{
    uint16_t *h = malloc((size_t)count * 2);
    for (int64_t i = 0; i < count; i++) h[i] = bits;
    lks_scope_begin(ctx);
    lks_tensor *t = lks_from_host(ctx, dtype, 1, &count, h);
    int good = t && lks_all_reduce(t, op) == LKS_OK && lks_to_host(t, h, count * 2) == LKS_OK;
    for (int64_t i = 0; i < count && good; i++) good = h[i] == want;
    lks_scope_end(ctx);
    free(h);
    return good;
}

static void halves(lks_context *ctx)
{
    int n = lks_size(ctx);
    for (int64_t count = 3; count < 1000000; count *= 250000) {
        ok(half_case(ctx, LKS_F16, 0x70e2, LKS_MEAN, 0x70e2, count) &&
               half_case(ctx, LKS_F16, 0x0001, LKS_MEAN, 0x0001, count),
           "B91: float16 means of 10000 and of 2^-24 over %d ranks, %lld elements", n, (long long)count);
        if (n == 2)
            ok(half_case(ctx, LKS_F16, 0x3c00, LKS_SUM, 0x4000, count) &&
                   half_case(ctx, LKS_BF16, 0x3f80, LKS_SUM, 0x4000, count),
               "B92: 1 + 1 = 2 in float16 and bfloat16, %lld elements", (long long)count);
        ok(half_case(ctx, LKS_F16, 0x7bff, LKS_SUM, n == 1 ? 0x7bff : 0x7c00, count),
           "a float16 sum beyond the largest value is infinite, %lld elements", (long long)count);
    }
}

/* 1e8, 1, -1e8, 1: left to right 1, any other order 0 or 2. */
static void order(lks_context *ctx)
{
    static const float part[4] = {1e8f, 1, -1e8f, 1};
    int n = lks_size(ctx), me = lks_rank(ctx), good = 1;
    float want = part[0];
    for (int s = 1; s < n; s++) want += part[s % 4];
    int64_t sizes[] = {1, 1000, 70001};
    for (int run = 0; run < 100 && good; run++) {
        int64_t m = sizes[run % 3];
        float *f = malloc((size_t)m * sizeof *f);
        for (int64_t i = 0; i < m; i++) f[i] = part[me % 4];
        lks_scope_begin(ctx);
        lks_tensor *t = lks_from_host(ctx, LKS_F32, 1, &m, f);
        good = lks_all_reduce(t, LKS_SUM) == LKS_OK && lks_to_host(t, f, m * (int64_t)sizeof *f) == LKS_OK;
        for (int64_t i = 0; i < m && good; i++) good = f[i] == want;
        lks_scope_end(ctx);
        free(f);
    }
    ok(good, "B97: the sum is taken in rank order, the same in 100 runs of three sizes");
}

static void same_bits(lks_context *ctx)
{
    int n = lks_size(ctx), me = lks_rank(ctx);
    int64_t m = 500003;
    float *f = malloc((size_t)m * sizeof *f), *all = malloc((size_t)(m * n) * sizeof *f);
    uint32_t x = 12345u + (uint32_t)me;
    for (int64_t i = 0; i < m; i++) {
        x = x * 1664525u + 1013904223u;
        f[i] = (float)((int32_t)x) * 1e-5f;
    }
    lks_scope_begin(ctx);
    lks_tensor *t = lks_from_host(ctx, LKS_F32, 1, &m, f);
    int good = lks_all_reduce(t, LKS_SUM) == LKS_OK;
    lks_tensor *g = lks_all_gather(t);
    good = good && g && lks_numel(g) == m * n && lks_to_host(g, all, m * n * (int64_t)sizeof *f) == LKS_OK;
    for (int s = 1; s < n && good; s++) good = memcmp(all, all + s * m, (size_t)m * sizeof *f) == 0;
    ok(good, "B96: a float32 sum has the same bits on every rank");
    lks_scope_end(ctx);
    free(f);
    free(all);
}

static void tensors(lks_context *ctx)
{
    int n = lks_size(ctx), me = lks_rank(ctx), good = 1;
    lks_scope_begin(ctx);
    for (int root = 0; root < n; root++)
        for (int64_t m = 1; m < 2000000 && good; m *= 1100) {
            lks_tensor *t = lks_full(ctx, LKS_F32, 1, &m, me == root ? 7 + root : -1),
                       *end = lks_narrow(t, 0, m - 1, 1);
            double v = 0;
            good = lks_broadcast(t, root) == LKS_OK && lks_item(end, &v) == LKS_OK && v == 7 + root;
        }
    if (!ok(good, "broadcast from every root in three sizes")) diag("%s", lks_error(ctx));
    int64_t bytes = 3000000;
    char *data = malloc((size_t)bytes);
    memset(data, me == n - 1 ? 5 : 0, (size_t)bytes);
    ok(lks_broadcast_bytes(ctx, data, bytes, n - 1) == LKS_OK && data[0] == 5 && data[bytes - 1] == 5,
       "broadcast of host memory");
    free(data);

    /* Rank r has r rows; rank 0 none. */
    int64_t shape[2] = {me, 3}, total = n * (n - 1) / 2;
    lks_tensor *y = lks_all_gather(lks_full(ctx, LKS_I64, 2, shape, me));
    int64_t *rows = calloc((size_t)total * 3 + 1, sizeof *rows), at = 0;
    good = y && lks_dim(y, 0) == total && lks_dim(y, 1) == 3 && lks_to_host(y, rows, total * 3 * 8) == LKS_OK;
    for (int s = 0; s < n; s++)
        for (int i = 0; i < 3 * s && good; i++) good = rows[at++] == s;
    ok(good, "gather of unequal blocks, an empty one among them");
    free(rows);
    int64_t even[1] = {2};
    y = lks_all_gather(lks_full(ctx, LKS_BF16, 1, even, me));
    double v = -1;
    ok(y && lks_dim(y, 0) == 2 * n && lks_item(lks_narrow(y, 0, 2 * n - 1, 1), &v) == LKS_OK && v == n - 1,
       "gather of equal blocks");
    int64_t odd[2] = {1, me ? 3 : 2};
    y = lks_all_gather(lks_ones(ctx, LKS_F32, 2, odd));
    ok(n == 1 ? y != NULL : !y && lks_error_code(ctx) == LKS_ERR_SHAPE && strstr(lks_error(ctx), "[1,2]") &&
                                strstr(lks_error(ctx), "[1,3]"),
       "gather of shapes that do not fit fails on every rank and names both");
    lks_error_clear(ctx);

    int64_t square[2] = {3, 4};
    lks_tensor *x = lks_full(ctx, LKS_F32, 2, square, 1), *part = lks_slice(x, 1, 0, 4, 2);
    float cells[12];
    good = lks_all_reduce(part, LKS_SUM) == LKS_OK && lks_to_host(x, cells, sizeof cells) == LKS_OK;
    for (int i = 0; i < 12 && good; i++) good = cells[i] == (i % 2 ? 1 : n);
    ok(good, "a strided view is reduced in place, its neighbours stay");
    int64_t none[2] = {0, 4};
    ok(lks_all_reduce(lks_zeros(ctx, LKS_F32, 2, none), LKS_SUM) == LKS_OK, "an empty tensor");
    lks_tensor *wide = lks_expand(lks_ones(ctx, LKS_F32, 1, (int64_t[]){1}), 1, even);
    ok(lks_all_reduce(wide, LKS_SUM) == LKS_ERR_ARGUMENT, "an expanded tensor cannot hold a result");
    lks_error_clear(ctx);
    ok(lks_barrier(ctx) == LKS_OK, "barrier");
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), 0, "no tensor is left");
}

/* Any bits: NaN, infinities, denormals among them. */
static void fill(char *p, int64_t bytes, uint32_t x)
{
    for (int64_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (char)(x >> 24);
    }
}

/* Element k of both is NaN: of two NaN a sum keeps the payload of either, as the compiler orders them. */
static int both_nan(lks_dtype d, const char *const p[2], int64_t k)
{
    uint64_t infinity = d == LKS_F64 ? 0x7ffull << 52 : d == LKS_F32 ? 0xffull << 23 : d == LKS_F16 ? 0x1full << 10
        : d == LKS_BF16 ? 0xffull << 7 : UINT64_MAX;
    int bytes = lks_dtype_size(d), nan = infinity != UINT64_MAX;
    for (int i = 0; i < 2 && nan; i++) {
        uint64_t bits = 0; /* little-endian, as all that MPI reduces here */
        memcpy(&bits, p[i] + k * bytes, (size_t)bytes);
        nan = (bits & ((1ull << (8 * bytes - 1)) - 1)) > infinity;
    }
    return nan;
}

static int same(lks_dtype d, const char *const p[2], int64_t n)
{
    int size = lks_dtype_size(d);
    if (memcmp(p[0], p[1], (size_t)(n * size)) == 0) return 1;
    for (int64_t k = 0; k < n; k++)
        if (memcmp(p[0] + k * size, p[1] + k * size, (size_t)size) && !both_nan(d, p, k)) return 0;
    return 1;
}

/* One context goes by messages, the other by what is found. */
static void same_either_way(MPI_Comm comm)
{
    const char *was = getenv("LKS_SHM");
    char *keep = was ? strdup(was) : NULL;
    setenv("LKS_SHM", "0", 1);
    lks_context *by[2] = {open_context(comm, 20), NULL};
    if (keep) setenv("LKS_SHM", keep, 1);
    else unsetenv("LKS_SHM");
    free(keep);
    by[1] = open_context(comm, 20);
    int me = lks_rank(by[0]), n = lks_size(by[0]);
    static const int64_t sizes[] = {1, 7, 991, 993, 8161, 65536, 65537, 262151, 1100003};
    for (lks_dtype d = 0; d < LKS_DTYPE_COUNT; d++) {
        int good = 1;
        for (int i = 0; i < 9; i++)
            for (int op = LKS_SUM; op <= LKS_PRODUCT && good; op++) {
                int complex = d == LKS_C64 || d == LKS_C128;
                if (op == LKS_MEAN && !lks_dtype_is_float(d)) continue;
                if (complex && op != LKS_SUM) continue;
                if (d == LKS_BOOL && op != LKS_MIN && op != LKS_MAX) continue;
                if (sizes[i] > 100000 && op != LKS_SUM && op != LKS_MAX) continue;
                int64_t bytes = sizes[i] * lks_dtype_size(d);
                char *p[2] = {malloc((size_t)bytes), malloc((size_t)bytes)};
                fill(p[0], bytes, (uint32_t)(me + 77 * op));
                if (d == LKS_BOOL)
                    for (int64_t k = 0; k < bytes; k++) p[0][k] &= 1;
                memcpy(p[1], p[0], (size_t)bytes);
                for (int w = 0; w < 2; w++)
                    good &= lksi_host_reduce(by[w]->comm, "either way", p[w], sizes[i], d, op) == LKS_OK;
                good = good && same(d, (const char *const[]){p[0], p[1]}, sizes[i]);
                free(p[0]);
                free(p[1]);
            }
        ok(good, "%s: messages and shared memory give the same bits", lks_dtype_name(d));
    }
    int good = 1;
    for (int64_t bytes = 1; bytes < 3000000 && good; bytes = bytes * 13 + 1)
        for (int root = 0; root < n; root++) {
            char *p = malloc((size_t)bytes), *want = malloc((size_t)bytes), *all = malloc((size_t)(bytes * n));
            fill(p, bytes, (uint32_t)me);
            fill(want, bytes, (uint32_t)root);
            good &= lksi_host_gather(by[1]->comm, "blocks", p, all, bytes) == LKS_OK &&
                    memcmp(all + root * bytes, want, (size_t)bytes) == 0;
            good &= lksi_host_broadcast(by[1]->comm, "block", p, bytes, root) == LKS_OK &&
                    memcmp(p, want, (size_t)bytes) == 0;
            free(p);
            free(want);
            free(all);
        }
    ok(good, "broadcast and gather of many sizes");
    lks_context_destroy(&by[0]);
    lks_context_destroy(&by[1]);
}

/* More operations under way than there are places for heads, small and large in turn, finished from the last on. */
static void many_at_once(lks_context *ctx)
{
    enum { MANY = 200 };
    lksi_comm *c = ctx->comm;
    int n = c->size, me = c->rank, good = 1;
    lksi_request *rq[MANY];
    int64_t *v[MANY];
    for (int i = 0; i < MANY; i++) {
        int m = i % 20 == 7 ? 150000 : i % 3 * 400 + 1;
        v[i] = malloc((size_t)m * sizeof *v[i]);
        for (int k = 0; k < m; k++) v[i][k] = me + i + k;
        good &= lksi_host_reduce_start(c, "many", v[i], m, LKS_SUM, &rq[i]) == LKS_OK;
        if (i == 90 && me == 0) nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    for (int i = MANY - 1; i >= 0; i--) {
        int m = i % 20 == 7 ? 150000 : i % 3 * 400 + 1;
        good &= lksi_host_reduce_finish(c, &rq[i]) == LKS_OK;
        for (int k = 0; k < m && good; k++) good = v[i][k] == (int64_t)n * (i + k) + n * (n - 1) / 2;
        free(v[i]);
    }
    ok(good, "%d reductions under way at once", MANY);
}

static lks_status long_work(void *user)
{
    struct timespec t = {2, 500000000};
    nanosleep(&t, NULL);
    *(int *)user = 1;
    return LKS_OK;
}

static lks_status bad_work(void *user)
{
    (void)user;
    return LKS_ERR_IO;
}

static void agreement(MPI_Comm comm)
{
    lks_context *ctx = open_context(comm, 1);
    int n = lks_size(ctx), me = lks_rank(ctx), ran = 0;
    ok(lks_agree(ctx, LKS_OK) == LKS_OK && lks_error_code(ctx) == LKS_OK, "all ranks are well");
    /* The last two fail; the lower of them is named. */
    int low = n > 2 ? n - 2 : n - 1;
    lks_status st = lks_agree(ctx, me >= low ? LKS_ERR_NO_SPACE : LKS_OK);
    char name[32];
    snprintf(name, sizeof name, "rank %d", low);
    ok(me >= low ? st == LKS_ERR_NO_SPACE : st == LKS_ERR_PEER_FAILED && strstr(lks_error(ctx), name),
       "a failure is every rank's, with the lowest failing rank");
    lks_error_clear(ctx);
    ok(lks_rank_zero_call(ctx, long_work, &ran) == LKS_OK && ran == (me == 0),
       "B110: work on rank 0 of 2.5 times the deadline does not trip it");
    st = lks_rank_zero_call(ctx, bad_work, NULL);
    ok(st == (me == 0 ? LKS_ERR_IO : LKS_ERR_PEER_FAILED), "its failure is every rank's");
    lks_error_clear(ctx);
    ok(lks_barrier(ctx) == LKS_OK, "and the context goes on");
    lks_context_destroy(&ctx);
}

static void mismatches(MPI_Comm comm)
{
    int size;
    MPI_Comm_size(comm, &size);
    if (size == 1) {
        skip(5, "needs several ranks");
        return;
    }
    lks_context *ctx = open_context(comm, 5);
    int me = lks_rank(ctx);
    double start = MPI_Wtime();
    lks_status st = me == 0 ? lks_rank_zero_call(ctx, bad_work, NULL) : lks_barrier(ctx);
    ok(st == LKS_ERR_STATE && strstr(lks_error(ctx), "lks_rank_zero_call") && strstr(lks_error(ctx), "lks_barrier"),
       "B110: rank 0 in one call, the others in another: an error on every rank that names both");
    ok(MPI_Wtime() - start < 5, "without waiting for the deadline");
    lks_error_clear(ctx);
    st = lks_barrier(ctx);
    ok(st == LKS_ERR_STATE && strstr(lks_error(ctx), "earlier"), "the communicator is not used any more");
    lks_context_destroy(&ctx);

    for (int64_t m = 100; m < 2000000; m *= 10000) {
        ctx = open_context(comm, 5);
        int64_t mine = me == 0 ? 2 * m : m;
        char two[32], one[32];
        snprintf(two, sizeof two, "of %lld float32", (long long)(2 * m));
        snprintf(one, sizeof one, "of %lld float32", (long long)m);
        lks_tensor *t = lks_ones(ctx, LKS_F32, 1, &mine);
        st = lks_all_reduce(t, LKS_SUM);
        ok(st == LKS_ERR_STATE && strstr(lks_error(ctx), two) && strstr(lks_error(ctx), one),
           "B109: %lld elements on rank 0, %lld elsewhere: an error on every rank that names both", (long long)(2 * m),
           (long long)m);
        lks_context_destroy(&ctx);
    }
}

/* B102: what a failed call of MPI becomes: a status, and its text; nobody is aborted. */
static void failed_call(MPI_Comm comm)
{
    int n;
    MPI_Comm_size(comm, &n);
    if (n == 1 || n > 4) {
        skip(2, "needs 2 to 4 ranks, of which each sends");
        return;
    }
    const char *was = getenv("LKS_SHM");
    char keep[16] = "", text[MPI_MAX_ERROR_STRING] = "";
    if (was) snprintf(keep, sizeof keep, "%s", was);
    setenv("LKS_SHM", "0", 1);
    int silent = said, length = 0;
    lks_context *ctx = open_context(comm, 20);
    said = silent; /* it was asked for */
    if (was) setenv("LKS_SHM", keep, 1);
    else unsetenv("LKS_SHM");
    MPI_Error_string(MPI_ERR_TRUNCATE, text, &length);
    int me = lks_rank(ctx), y = 0;
    broken = me == 0; /* the others are told */
    lks_status st = LKS_OK;
    if (lks_size(ctx) > 1) LKS_TRY(st, out, lks_barrier(ctx));
    else y = 1;
out:
    ok((me ? st != LKS_OK : st == LKS_ERR_MPI) && y == 0 && strstr(lks_error(ctx), "lks_barrier") &&
           strstr(lks_error(ctx), text) && length > 4,
       "B102: a call of MPI fails: an error code, with MPI's text and the name of the call, and no abort");
    diag("%s: %s", lks_status_name(st), lks_error(ctx));
    broken = 0;
    st = lks_context_destroy(&ctx);
    ok(!ctx, "and the context can be closed: %s", lks_status_name(st));
}

/* B100: wildcard receives and a pending barrier of the host, the library on three of four ranks. */
static void guest(MPI_Comm comm)
{
    int n, me, color;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &me);
    if (n < 4) {
        skip(2, "needs four ranks");
        return;
    }
    int got[4] = {0}, word = 17;
    MPI_Request any[4], barrier;
    MPI_Errhandler before, after;
    MPI_Comm_get_errhandler(comm, &before);
    for (int i = 0; i < 4; i++) MPI_Irecv(&got[i], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &any[i]);
    MPI_Ibarrier(comm, &barrier);
    color = me == 3 ? MPI_UNDEFINED : 0;
    MPI_Comm sub;
    MPI_Comm_split(comm, color, me, &sub);
    int good = 1;
    if (sub != MPI_COMM_NULL) {
        lks_context *ctx = open_context(sub, 20);
        int64_t v = 1;
        good = lks_reduce_i64(ctx, &v, 1, LKS_SUM) == LKS_OK && v == n - 1 && lks_barrier(ctx) == LKS_OK;
        lks_context_destroy(&ctx);
        MPI_Comm_free(&sub);
    }
    for (int i = 0; i < 4; i++) MPI_Send(&word, 1, MPI_INT, (me + 1) % n, 100 + i, comm);
    for (int i = 0; i < 4; i++) MPI_Wait(&any[i], MPI_STATUS_IGNORE);
    MPI_Wait(&barrier, MPI_STATUS_IGNORE);
    for (int i = 0; i < 4; i++) good &= got[i] == 17;
    ok(good, "B100: no message of the host is taken, a rank outside need not take part");
    MPI_Comm_get_errhandler(comm, &after);
    ok(before == after, "B100: the host's error handler is as it was");
    MPI_Errhandler_free(&before);
    MPI_Errhandler_free(&after);
}

static void lifetimes(MPI_Comm comm)
{
    int good = 1, n, one = 1, sum = 0;
    MPI_Comm_size(comm, &n);
    for (int i = 0; i < 100; i++) {
        lks_context *ctx = open_context(comm, 20);
        int64_t v = 1;
        good &= lks_reduce_i64(ctx, &v, 1, LKS_SUM) == LKS_OK && v == n;
        good &= lks_context_destroy(&ctx) == LKS_OK;
    }
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    ok(good && sum == n, "B98: contexts come and go 100 times, MPI of the host works in between");
    lks_context *a = open_context(comm, 20), *b = open_context(comm, 20);
    int64_t v = 1, w = 2;
    good = lks_reduce_i64(a, &v, 1, LKS_SUM) == LKS_OK && lks_reduce_i64(b, &w, 1, LKS_SUM) == LKS_OK && v == n &&
           w == 2 * n;
    lks_context_destroy(&a);
    good = good && lks_barrier(b) == LKS_OK;
    lks_context_destroy(&b);
    ok(good, "two contexts at once");
}

/* Without tap_mpi: MPI is up for a part of the program only. Rank 0 speaks. */
static int alone(void)
{
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    lks_config_set_threads(config, 1);
    lks_status st = lks_context_create(MPI_COMM_NULL, config, &ctx);
    int up = 0, down = 0;
    MPI_Initialized(&up);
    if (ctx) tap_.rank = lks_rank(ctx);
    int64_t v = 1;
    ok(st == LKS_OK && up && lks_reduce_i64(ctx, &v, 1, LKS_SUM) == LKS_OK && v == lks_size(ctx),
       "B98: a host without MPI: the library initialises it");
    ok(lks_context_destroy(&ctx) == LKS_OK && lks_finalize() == LKS_OK, "B98: and finalises it");
    MPI_Finalized(&down);
    ok(down, "B98: as the owner");
    ok(lks_context_create(MPI_COMM_NULL, config, &ctx) == LKS_ERR_STATE && !ctx, "B98: no context after that");
    lks_config_free(config);
    return done();
}

static int late(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    lks_context *ctx = open_context(MPI_COMM_WORLD, 20);
    tap_.rank = lks_rank(ctx);
    ok(lks_barrier(ctx) == LKS_OK, "a context");
    ok(lks_finalize() == LKS_OK && lks_barrier(ctx) == LKS_OK,
       "B98: the library does not finalise what it does not own");
    MPI_Finalize();
    ok(lks_context_destroy(&ctx) == LKS_ERR_STATE && !ctx, "B98: after MPI_Finalize: an error code, no MPI call");
    return done();
}

int main(int argc, char **argv)
{
    if (argc > 1) device = argv[1];
    if (argc > 2 && !strcmp(argv[2], "alone")) return alone();
    if (argc > 2 && !strcmp(argv[2], "late")) return late(argc, argv);
    MPI_Init(&argc, &argv);
    tap_mpi(MPI_COMM_WORLD);
    lks_context *ctx = open_context(MPI_COMM_WORLD, 20);
    counters(ctx);
    halves(ctx);
    order(ctx);
    same_bits(ctx);
    tensors(ctx);
    many_at_once(ctx);
    lks_context_destroy(&ctx);
    same_either_way(MPI_COMM_WORLD);
    agreement(MPI_COMM_WORLD);
    mismatches(MPI_COMM_WORLD);
    failed_call(MPI_COMM_WORLD);
    guest(MPI_COMM_WORLD);
    lifetimes(MPI_COMM_WORLD);
    is_int(said, 0, "no fallback that was not asked for");
    int status = done();
    MPI_Finalize();
    return status;
}
