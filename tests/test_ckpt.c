/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_ckpt.c - checkpoints. Without arguments: one process, everything, kills included. With arguments, on several
 * ranks, for ckpt.test: "all DIR" (the same on many ranks), "save FILE", "load FILE" (at another number of ranks),
 * "broken DIR" (damaged files), "full DIR" (DIR is a small file system), "large DIR" (more than 2 GiB).
 */
#include "ckpt/ckpt.h"
#include "errors.h"
#include "tap.h"
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <lockstep.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static lks_context *ctx;
static char dir[200] = "/tmp/lks_ckpt_XXXXXX";
static char last_log[4000];
static int warnings;

static void log_line(void *user, int level, const char *line)
{
    (void)user;
    warnings += level >= LKS_LOG_WARNING;
    snprintf(last_log, sizeof last_log, "%s", line);
}

static int refused(lks_status got, lks_status want, const char *part)
{
    return recorded(ctx, got == want, want, part, "");
}

static const char *path_of(const char *name)
{
    static char path[64][400];
    static int i;
    i = (i + 1) % 64;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static int exists(const char *path) { return access(path, F_OK) == 0; }

/* --- a model whose every number is known -------------------------------------------------------------------------- */

typedef struct model {
    lks_params *ps;
    lks_optim *opt;
    lks_scaler *scaler;
    lks_checkpoint *c;
} model;

/* Bits of element i of a thing numbered `what`, filled with `seed`: finite in every float dtype. */
static uint64_t bits(int seed, int what, int64_t i, lks_dtype dtype)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)(seed * 1000 + what) * 0xd1342543de82ef95u;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    switch (dtype) {
    case LKS_F64: return (x & 0x000fffffffffffffu) | 0x3fe0000000000000u;
    case LKS_F32: return (x & 0x007fffffu) | 0x3f000000u;
    case LKS_F16: return (x & 0x03ffu) | 0x3800u;
    case LKS_BF16: return (x & 0x007fu) | 0x3f00u;
    case LKS_BOOL: return x & 1;
    default: return x;
    }
}

static void fill_memory(void *device, int64_t n, lks_dtype dtype, int seed, int what)
{
    int size = lks_dtype_size(dtype);
    char *host = malloc((size_t)(n * size + 1));
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = bits(seed, what, i, dtype);
        memcpy(host + i * size, &v, (size_t)size);
    }
    if (n) lksi_device_write(ctx->dev, device, host, n * size);
    free(host);
}

static int memory_is(const void *device, int64_t n, lks_dtype dtype, int seed, int what)
{
    int size = lks_dtype_size(dtype), good = 1;
    char *host = malloc((size_t)(n * size + 1));
    if (n) good = lksi_device_read(ctx->dev, host, device, n * size) == LKS_OK;
    for (int64_t i = 0; i < n && good; i++) {
        uint64_t v = bits(seed, what, i, dtype);
        good = !memcmp(host + i * size, &v, (size_t)size);
    }
    free(host);
    return good;
}

/* Value number 0 .. of entry e; blocks are numbered after. */
static void each(model *m, int seed, int write, int *good)
{
    for (int i = 0; i < m->ps->n; i++) {
        lks_tensor *t = m->ps->e[i].t;
        if (write) fill_memory(t->v.data, t->numel, t->v.dtype, seed, i);
        else if (!memory_is(t->v.data, t->numel, t->v.dtype, seed, i)) {
            *good = 0;
            diag("%s differs", m->ps->e[i].name);
        }
    }
    for (int k = 0; m->opt && k < lksi_optim_block_count(m->opt); k++) {
        lksi_state_block b;
        lksi_optim_block(m->opt, k, &b);
        const lksi_arena *a = m->ps->arena[b.arena];
        for (int i = 0; i < a->slices; i++) {
            char *p = b.data + a->slice[i].offset * lks_dtype_size(b.dtype);
            if (write) fill_memory(p, a->slice[i].numel, b.dtype, seed, 100 * (k + 1) + i);
            else if (!memory_is(p, a->slice[i].numel, b.dtype, seed, 100 * (k + 1) + i)) {
                *good = 0;
                diag("block %s of slice %d differs", b.name, i);
            }
        }
    }
    int64_t applied[64];
    lksi_optim_saved s = {seed + 10, seed + 8, 2, applied};
    if (!m->opt) return;
    for (int i = 0; i < m->ps->n; i++) applied[i] = m->ps->e[i].is_buffer ? 0 : seed + i;
    if (write) {
        lksi_optim_write(m->opt, &s);
        return;
    }
    int64_t got[64];
    lksi_optim_saved r = {.param_applied = got};
    *good &=
        lksi_optim_read(m->opt, &r) == LKS_OK && r.attempts == s.attempts && r.applied == s.applied && r.skipped == 2;
    for (int i = 0; i < m->ps->n; i++) *good &= got[i] == applied[i];
}

static void fill(model *m, int seed)
{
    each(m, seed, 1, NULL);
    if (m->scaler) {
        lksi_scaler_saved s;
        lksi_scaler_read(m->scaler, &s);
        float scale = (float)(1024 << seed % 8);
        memcpy(&s.scale_bits, &scale, 4);
        s.tracker = seed, s.good = 3 * seed, s.bad = 5;
        s.credit = seed + 1, s.sticky = seed % 2, s.strikes = seed + 2, s.window_at = seed + 3;
        lksi_scaler_write(m->scaler, &s, LKS_STATE_ADOPT);
    }
    lks_random_set(ctx, 1000 + seed, 50 + seed);
}

static int holds(model *m, int seed)
{
    int good = 1;
    each(m, seed, 0, &good);
    if (m->scaler) {
        double scale = 0;
        int64_t tracker = -1, ok_steps = 0, bad = 0;
        good &= lks_scaler_get(m->scaler, &scale, &tracker) == LKS_OK && scale == 1024 << seed % 8 && tracker == seed;
        good &= lks_scaler_counts(m->scaler, &ok_steps, &bad) == LKS_OK && ok_steps == 3 * seed && bad == 5;
        lksi_scaler_saved s;
        good &= lksi_scaler_read(m->scaler, &s) == LKS_OK && s.credit == seed + 1 && s.sticky == seed % 2 &&
                s.strikes == seed + 2 && s.window_at == seed + 3;
    }
    return good && lks_random_seed(ctx) == 1000 + seed && lks_random_attempt(ctx) == 50 + seed;
}

typedef struct row { const char *name; lks_dtype dtype; int buffer, ndim; int64_t shape[3]; } row;

static void make(model *m, const row *rows, int n, int kind, int scaler)
{
    memset(m, 0, sizeof *m);
    if (lks_params_create(ctx, &m->ps)) bail("%s", lks_error(ctx));
    for (int i = 0; i < n; i++) {
        lks_tensor *t;
        lks_status s =
            rows[i].buffer
                ? lks_params_add_buffer(m->ps, rows[i].name, rows[i].dtype, rows[i].ndim, rows[i].shape, &t)
                : lks_params_add(m->ps, rows[i].name, rows[i].dtype, rows[i].ndim, rows[i].shape, &t);
        if (s) bail("%s", lks_error(ctx));
    }
    if (kind >= 0 && lks_optim_create(m->ps, kind, &m->opt)) bail("%s", lks_error(ctx));
    if (scaler && lks_scaler_create(ctx, 1, &m->scaler)) bail("%s", lks_error(ctx));
    if (lks_checkpoint_create(ctx, &m->c) || lks_checkpoint_set_params(m->c, m->ps) ||
        (m->opt && lks_checkpoint_set_optim(m->c, m->opt)) ||
        (m->scaler && lks_checkpoint_set_scaler(m->c, m->scaler, LKS_STATE_REFUSE)))
        bail("%s", lks_error(ctx));
}

static void drop(model *m)
{
    lks_checkpoint_destroy(&m->c);
    lks_optim_destroy(&m->opt);
    lks_scaler_destroy(&m->scaler);
    lks_params_destroy(&m->ps);
}

static const row plain[] = {{"w", LKS_F32, 0, 2, {700, 500}}, {"b", LKS_F32, 0, 1, {13}},  {"one", LKS_F32, 0, 0, {0}},
                            {"none", LKS_F32, 0, 2, {0, 4}},  {"half", LKS_BF16, 0, 1, {1000}},
                            {"rows", LKS_F32, 0, 2, {3, 5}},  {"mean", LKS_F32, 1, 1, {7}}};
enum { PLAIN = 7 };

/* --- one process or many: the same -------------------------------------------------------------------------------- */

static char *long_name(void)
{
    static char name[301];
    memset(name, 'n', 300);
    return name;
}

static void names(void)
{
    const row rows[] = {{"conv1/conv", LKS_F32, 0, 1, {3}},   {"conv1/bn", LKS_F64, 0, 1, {4}},
                        {"conv1", LKS_F16, 0, 1, {5}},        {".", LKS_F32, 0, 1, {6}},
                        {"..", LKS_F32, 0, 1, {7}},           {"/abs", LKS_F32, 0, 1, {8}},
                        {"a//b", LKS_BF16, 0, 1, {9}},        {"gr\xc3\xbc\xc3\x9f e", LKS_F32, 0, 1, {10}},
                        {long_name(), LKS_F32, 0, 1, {11}},   {"100%", LKS_F32, 0, 1, {12}},
                        {"a%2Fb", LKS_F32, 0, 1, {13}},       {"a/b", LKS_F32, 0, 1, {14}},
                        {"line\nbreak", LKS_F32, 0, 1, {15}}, {"%2E", LKS_F32, 0, 1, {16}}};
    enum { N = sizeof rows / sizeof *rows };
    model a, b;
    make(&a, rows, N, LKS_ADAM, 0);
    fill(&a, 3);
    ok(lks_checkpoint_save(a.c, path_of("names.h5")) == LKS_OK, "B120: saved with awkward names %s", lks_error(ctx));
    make(&b, rows, N, LKS_ADAM, 0);
    fill(&b, 4);
    ok(lks_checkpoint_load(b.c, path_of("names.h5"), NULL, NULL) == LKS_OK && holds(&b, 3),
       "B120: names with slashes, prefixes, dots, UTF-8, 300 bytes round-trip %s", lks_error(ctx));
    drop(&a), drop(&b);
}

static void round_trip(void)
{
    model a, b;
    make(&a, plain, PLAIN, LKS_ADAMW, 1);
    fill(&a, 1);
    lks_checkpoint_set_i64(a.c, "step", 77);
    lks_checkpoint_set_i64(a.c, "position", INT64_MAX);
    lks_checkpoint_set_f64(a.c, "best", 0.1);
    lks_checkpoint_set_text(a.c, "options", "--dim 64\n--name \"\xc3\xa4\"");
    lks_checkpoint_set_text(a.c, "empty", "");
    const char *path = path_of("a.h5");
    ok(lks_checkpoint_save(a.c, path) == LKS_OK, "saved %s", lks_error(ctx));
    ok(exists(path) && !exists(path_of("a.h5.tmp")), "nothing temporary is left");
    ok(lks_checkpoint_verify(ctx, path) == LKS_OK, "it is whole");
    make(&b, plain, PLAIN, LKS_ADAMW, 1);
    fill(&b, 2);
    lks_checkpoint_set_i64(b.c, "other", 1);
    int missing = -1, unexpected = -1;
    ok(lks_checkpoint_load(b.c, path, &missing, &unexpected) == LKS_OK && missing == 0 && unexpected == 0, "loaded %s",
       lks_error(ctx));
    ok(holds(&b, 1), "B118: values, moments, masters, counters, scaler and random state are bit for bit those saved");
    int64_t i = 0;
    double f = 0;
    const char *text = NULL;
    ok(lks_checkpoint_get_i64(b.c, "step", &i) == LKS_OK && i == 77 &&
           lks_checkpoint_get_i64(b.c, "position", &i) == LKS_OK && i == INT64_MAX &&
           lks_checkpoint_get_f64(b.c, "best", &f) == LKS_OK && f == 0.1,
       "the program's numbers");
    ok(lks_checkpoint_get_text(b.c, "options", &text) == LKS_OK && !strcmp(text, "--dim 64\n--name \"\xc3\xa4\""),
       "its text");
    ok(lks_checkpoint_get_text(b.c, "empty", &text) == LKS_OK && !*text, "its empty text");
    ok(refused(lks_checkpoint_get_i64(b.c, "other", &i), LKS_ERR_NOT_FOUND, "other"),
       "keys of before the load are gone");
    ok(refused(lks_checkpoint_get_text(b.c, "step", &text), LKS_ERR_DTYPE, "int64"), "a key of another type");
    fill(&b, 2);
    lks_checkpoint_set_i64(b.c, "step", 1);
    ok(lks_checkpoint_peek(b.c, path) == LKS_OK && lks_checkpoint_get_i64(b.c, "step", &i) == LKS_OK && i == 77 &&
           holds(&b, 2),
       "peek reads the keys and nothing else");
    /* The very same bytes from another run, later, with other things in memory. */
    for (int k = 0; k < PLAIN; k++) fill(&b, 5);
    ok(lks_checkpoint_load(b.c, path, NULL, NULL) == LKS_OK, "loaded again");
    lks_checkpoint_set_text(b.c, "options", "x"); /* set in another order */
    lks_checkpoint_set_text(b.c, "options", "--dim 64\n--name \"\xc3\xa4\"");
    if (lks_rank(ctx) == 0) usleep(1100000);
    ok(lks_checkpoint_save(b.c, path_of("b.h5")) == LKS_OK, "saved again");
    if (lks_rank(ctx) == 0) {
        char command[900];
        snprintf(command, sizeof command, "cmp %s %s", path_of("a.h5"), path_of("b.h5"));
        ok(system(command) == 0, "two files of one state are the same bytes");
    } else ok(1, "two files");
    ok(lks_checkpoint_save(b.c, path) == LKS_OK && lks_checkpoint_verify(ctx, path) == LKS_OK,
       "an older file is replaced");
    drop(&a), drop(&b);
}

/* Every optimizer with all the state it can have. */
static void kinds(void)
{
    static const int blocks[] = {2, 5, 5, 5, 3, 5, 3}; /* with master and average, of two dtypes */
    for (int kind = LKS_SGD; kind <= LKS_LARS; kind++) {
        model m[2];
        char name[16];
        snprintf(name, sizeof name, "kind%d.h5", kind);
        for (int i = 0; i < 2; i++) {
            make(&m[i], plain, PLAIN, kind, 1);
            int good = lks_optim_set_ema(m[i].opt, 0.5, 0) == LKS_OK;
            if (kind == LKS_SGD || kind == LKS_RMSPROP || kind == LKS_LARS)
                good &= lks_optim_set_momentum(m[i].opt, -1, 0.9, 0, 0) == LKS_OK;
            if (kind == LKS_RMSPROP) good &= lks_optim_set_centered(m[i].opt, 1) == LKS_OK;
            if (kind == LKS_ADAM || kind == LKS_ADAMW || kind == LKS_LAMB)
                good &= lks_optim_set_amsgrad(m[i].opt, 1) == LKS_OK;
            lks_scaler_set_hysteresis(m[i].scaler, 3);
            lks_scaler_set_dynamic(m[i].scaler, 0);
            if (!good) bail("%s", lks_error(ctx));
        }
        int missing = -1, unexpected = -1;
        fill(&m[0], 1);
        lks_status saved = lks_checkpoint_save(m[0].c, path_of(name));
        fill(&m[1], 2);
        ok(saved == LKS_OK && lks_checkpoint_load(m[1].c, path_of(name), &missing, &unexpected) == LKS_OK &&
               missing == 0 && unexpected == 0 && holds(&m[1], 1) && lksi_optim_block_count(m[1].opt) >= blocks[kind],
           "optimizer %d with all its state, %d blocks %s", kind, lksi_optim_block_count(m[1].opt), lks_error(ctx));
        drop(&m[0]), drop(&m[1]);
    }
}

static void misfits(void)
{
    model a, b;
    int missing, unexpected;
    const char *path = path_of("m.h5");
    make(&a, plain, PLAIN, LKS_ADAMW, 1);
    fill(&a, 1);
    if (lks_checkpoint_save(a.c, path)) bail("%s", lks_error(ctx));
    /* B123: names differ, optimizer state is not there */
    const row other[] = {
        {"model.w", LKS_F32, 0, 1, {3}}, {"model.b", LKS_F32, 0, 1, {3}}, {"w.foo", LKS_F32, 0, 1, {2}}};
    model c;
    make(&c, other, 3, -1, 0);
    fill(&c, 6);
    if (lks_checkpoint_save(c.c, path_of("other.h5"))) bail("%s", lks_error(ctx));
    const row two[] = {{"w", LKS_F32, 0, 1, {3}}, {"b", LKS_F32, 0, 1, {3}}};
    make(&b, two, 2, LKS_ADAMW, 0);
    fill(&b, 2);
    lks_status status = lks_checkpoint_load(b.c, path_of("other.h5"), &missing, &unexpected);
    const char *text = lks_error(ctx);
    ok(missing == 3 && unexpected == 3 && strstr(text, "(w, b, the optimizer's state)") && strstr(text, "model.b") &&
           strstr(text, "model.w") && strstr(text, "w.foo"),
       "B123: missing and unknown names are listed: %s", text);
    ok(refused(status, LKS_ERR_MISMATCH, "3 missing") && holds(&b, 2), "B123: strict: an error, nothing is changed");
    lks_checkpoint_set_strict(b.c, 0);
    ok(lks_checkpoint_load(b.c, path_of("other.h5"), &missing, &unexpected) == LKS_OK && missing == 3 &&
           unexpected == 3,
       "B123: not strict: the same counts");
    int good = 1;
    lks_random_set(ctx, 1002, 52);
    each(&b, 2, 0, &good);
    ok(good, "and nothing else");
    drop(&b);
    drop(&c);
    const row wide[] = {{"w", LKS_F32, 0, 2, {700, 501}}};
    make(&b, wide, 1, -1, 0);
    fill(&b, 2);
    ok(refused(lks_checkpoint_load(b.c, path, NULL, NULL), LKS_ERR_MISMATCH, "[700,500]") && holds(&b, 2),
       "another shape: both are named, nothing is changed");
    lks_checkpoint_set_strict(b.c, 0);
    ok(refused(lks_checkpoint_load(b.c, path, NULL, NULL), LKS_ERR_MISMATCH, "float32[700,501]"),
       "also when not strict");
    drop(&b);
    const row typed[] = {{"half", LKS_F16, 0, 1, {1000}}};
    make(&b, typed, 1, -1, 0);
    lks_checkpoint_set_strict(b.c, 0);
    ok(refused(lks_checkpoint_load(b.c, path, NULL, NULL), LKS_ERR_MISMATCH, "bfloat16[1000]"), "another dtype");
    drop(&b);
    make(&b, plain, PLAIN, LKS_SGD, 1);
    fill(&b, 2);
    ok(refused(lks_checkpoint_load(b.c, path, NULL, NULL), LKS_ERR_MISMATCH,
               "saved with optimizer adamw, the program has sgd") &&
           holds(&b, 2),
       "another optimizer: both are named");
    drop(&b);
    make(&b, plain, PLAIN, LKS_ADAMW, 1);
    fill(&b, 2);
    lks_scaler_set_growth_interval(b.scaler, 5);
    ok(refused(lks_checkpoint_load(b.c, path, NULL, NULL), LKS_ERR_MISMATCH, "5") && holds(&b, 2),
       "another scaler schedule");
    lks_checkpoint_set_scaler(b.c, b.scaler, LKS_STATE_KEEP);
    ok(lks_checkpoint_load(b.c, path, NULL, NULL) == LKS_OK && holds(&b, 1) &&
           lks_scaler_growth_interval(b.scaler) == 5,
       "the program's is kept when told so");
    drop(&b);
    /* Only the model is wanted: optimizer and scaler of the file are nobody's loss. */
    make(&b, plain, PLAIN, -1, 0);
    fill(&b, 2);
    ok(lks_checkpoint_load(b.c, path, &missing, &unexpected) == LKS_OK && !missing && !unexpected && holds(&b, 1),
       "a model alone is loaded from a file with more");
    drop(&b);
    /* Subset of parameters, in another order. */
    const row some[] = {{"b", LKS_F32, 0, 1, {13}}, {"w", LKS_F32, 0, 2, {700, 500}}};
    make(&b, some, 2, LKS_ADAMW, 0);
    lks_checkpoint_set_strict(b.c, 0);
    ok(lks_checkpoint_load(b.c, path, &missing, &unexpected) == LKS_OK && missing == 0 && unexpected == 5 &&
           memory_is(b.ps->e[0].t->v.data, 13, LKS_F32, 1, 1) && memory_is(b.ps->e[1].t->v.data, 350000, LKS_F32, 1, 0),
       "not strict: a subset in another order");
    int64_t applied[2];
    lksi_optim_saved s = {.param_applied = applied};
    ok(lksi_optim_read(b.opt, &s) == LKS_OK && applied[0] == 2 && applied[1] == 1, "with its counters by name");
    drop(&b);
    drop(&a);
    make(&a, plain, PLAIN, -1, 0);
    ok(refused(lks_checkpoint_save(a.c, path_of("no/such/a.h5")), LKS_ERR_NOT_FOUND, "folder does not exist"),
       "no folder");
    mkdir(path_of("folder.h5"), 0700);
    ok(refused(lks_checkpoint_save(a.c, path_of("folder.h5")), LKS_ERR_IO, "folder.h5") &&
           !exists(path_of("folder.h5.tmp")),
       "a folder is in the way");
    ok(refused(lks_checkpoint_load(a.c, path_of("no.h5"), NULL, NULL), LKS_ERR_NOT_FOUND, "no.h5"), "no such file");
    ok(refused(lks_checkpoint_load(a.c, path_of("folder.h5"), NULL, NULL), LKS_ERR_CORRUPT, "not a file"), "a folder");
    drop(&a);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (write(fd, data, bytes) != (ssize_t)bytes) diag("short write");
    close(fd);
}

static char *read_file(const char *path, size_t *bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    fstat(fd, &st);
    char *data = malloc((size_t)st.st_size + 1);
    if (read(fd, data, (size_t)st.st_size) != st.st_size) diag("short read");
    close(fd);
    *bytes = (size_t)st.st_size;
    return data;
}

/* A step of rank 0 that the others wait for. */
static void barrier(void) { lks_barrier(ctx); }

static int same_everywhere(lks_status s)
{
    int64_t v[2] = {s, -s};
    lks_reduce_i64(ctx, v, 2, LKS_MAX);
    return v[0] == -v[1];
}

/* B115 */
static void damage(void)
{
    model a;
    size_t bytes = 0;
    int root = lks_rank(ctx) == 0, cuts = 0, flips = 0, alike = 1;
    const char *whole = path_of("whole.h5");
    char bad[400];
    snprintf(bad, sizeof bad, "%s", path_of("bad.h5"));
    make(&a, plain, PLAIN, LKS_ADAMW, 1);
    fill(&a, 1);
    if (lks_checkpoint_save(a.c, whole)) bail("%s", lks_error(ctx));
    fill(&a, 2);
    char *data = read_file(whole, &bytes);
    unsigned seed = 20240717;
    for (int k = 0; k < 50; k++) {
        size_t n = k < 10 ? (size_t)k * 450 : k == 49 ? bytes - 1 : bytes / 50 * (size_t)k;
        if (root) write_file(bad, data, n);
        barrier();
        lks_status s = lks_checkpoint_load(a.c, bad, NULL, NULL);
        alike &= same_everywhere(s);
        cuts += s == LKS_ERR_CORRUPT;
        lks_error_clear(ctx);
        barrier();
    }
    is_int(cuts, 50, "B115: cut at 50 lengths: each is an error");
    for (int k = 0; k < 200; k++) {
        seed = seed * 1664525 + 1013904223;
        /* the head, the structure, anywhere */
        size_t at = k < 40 ? (size_t)(seed % 4096) : k < 90 ? 4096 + seed % 16384 : (size_t)seed % bytes;
        seed = seed * 1664525 + 1013904223;
        char flip = (char)(1 << (seed >> 20) % 8);
        data[at] ^= flip;
        if (root) write_file(bad, data, bytes);
        data[at] ^= flip;
        barrier();
        lks_status s = lks_checkpoint_load(a.c, bad, NULL, NULL);
        alike &= same_everywhere(s);
        flips += s == LKS_ERR_CORRUPT;
        if (s != LKS_ERR_CORRUPT) diag("byte %zu flipped: %s", at, lks_status_name(s));
        lks_error_clear(ctx);
        barrier();
    }
    is_int(flips, 200, "B115: a bit flipped at 200 places: each is an error");
    ok(alike, "B115: every rank returns the same code");
    ok(holds(&a, 2), "B115: nothing was changed by any of them");
    /* Longer than it says; foreign; newer. */
    if (root) {
        char *longer = malloc(bytes + 10);
        memcpy(longer, data, bytes);
        memset(longer + bytes, 0, 10);
        write_file(path_of("longer.h5"), longer, bytes + 10);
        free(longer);
        write_file(path_of("text.h5"), "some text that is long enough to be looked at\n", 46);
        hid_t f = H5Fcreate(path_of("foreign.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        hsize_t big = 4000;
        hid_t space = H5Screate_simple(1, &big, NULL);
        H5Dclose(H5Dcreate2(f, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        H5Sclose(space), H5Fclose(f);
        lksi_ckpt_head(data, (int64_t)bytes, 4096, 0, 0);
        memcpy(strchr(data, '1'), "2", 1); /* format 1 */
        write_file(path_of("flipped.h5"), data, bytes);
    }
    barrier();
    ok(refused(lks_checkpoint_load(a.c, path_of("longer.h5"), NULL, NULL), LKS_ERR_CORRUPT, "bytes instead of"),
       "too long");
    ok(refused(lks_checkpoint_load(a.c, path_of("text.h5"), NULL, NULL), LKS_ERR_CORRUPT, "not a Lockstep checkpoint"),
       "a text file");
    ok(refused(lks_checkpoint_load(a.c, path_of("foreign.h5"), NULL, NULL), LKS_ERR_CORRUPT,
               "not a Lockstep checkpoint"),
       "an HDF5 file of something else");
    ok(refused(lks_checkpoint_verify(ctx, path_of("flipped.h5")), LKS_ERR_CORRUPT, "checksum of its head"),
       "a changed head");
    free(data);
    drop(&a);
}

/* A head that is right, but of a newer format. */
static void newer(void)
{
    char head[8192] = {0};
    lksi_ckpt_head(head, 8192, 4096, 0, 0);
    *strchr(head, '1') = '2';
    char again[17];
    uint64_t h;
    /* The checksum is over the first 4080 bytes: one block, and a list of one is hashed again, so take the block's. */
    lksi_ckpt_hash_blocks(head, 4080, &h);
    snprintf(again, sizeof again, "%016llx", (unsigned long long)h);
    memcpy(head + 4080, again, 16);
    if (lks_rank(ctx) == 0) write_file(path_of("newer.h5"), head, sizeof head);
    barrier();
    ok(refused(lks_checkpoint_verify(ctx, path_of("newer.h5")), LKS_ERR_UNSUPPORTED,
               "has format 2, this Lockstep reads format 1"),
       "a newer format");
}

static int64_t count_steps(const char *folder, int64_t *least)
{
    int64_t n = 0;
    for (int64_t s = 0; s < 300; s++) {
        char path[500];
        snprintf(path, sizeof path, "%s/step-%08lld.h5", folder, (long long)s);
        if (exists(path) && n++ == 0) *least = s;
    }
    return n;
}

static void folders(void)
{
    char folder[300], path[500], bad[500];
    int64_t step = 0, least = 0;
    int root = lks_rank(ctx) == 0;
    snprintf(folder, sizeof folder, "%s/steps", dir);
    if (root) mkdir(folder, 0700);
    barrier();
    model a;
    make(&a, plain, PLAIN, LKS_ADAMW, 0);
    ok(refused(lks_checkpoint_latest(ctx, folder, path, sizeof path, &step), LKS_ERR_NOT_FOUND,
               "holds no checkpoint"),
       "none");
    for (int s = 10; s <= 50; s += 10) {
        fill(&a, s);
        if (lks_checkpoint_save_step(a.c, folder, s, 3)) bail("%s", lks_error(ctx));
    }
    barrier();
    ok(count_steps(folder, &least) == 3 && least == 30, "the newest three are kept");
    ok(lks_checkpoint_latest(ctx, folder, path, sizeof path, &step) == LKS_OK && step == 50 &&
           strstr(path, "step-00000050.h5"),
       "the newest is found");
    snprintf(bad, sizeof bad, "%s/step-00000050.h5", folder);
    if (root && truncate(bad, 30000)) diag("truncate");
    snprintf(bad, sizeof bad, "%s/step-00000060.h5", folder);
    if (root) write_file(bad, "", 0);
    snprintf(bad, sizeof bad, "%s/step-60.h5", folder);
    if (root) write_file(bad, "", 0);
    barrier();
    warnings = 0;
    ok(lks_checkpoint_latest(ctx, folder, path, sizeof path, &step) == LKS_OK && step == 40 &&
           lks_error_code(ctx) == LKS_OK,
       "damaged ones are passed over");
    ok(!root || (warnings == 2 && strstr(last_log, "step-00000050.h5")), "and named in warnings");
    ok(lks_checkpoint_load(a.c, path, NULL, NULL) == LKS_OK && holds(&a, 40), "what is found is loaded");
    snprintf(bad, sizeof bad, "%s/step-00000041.h5.tmp", folder);
    if (root) write_file(bad, "", 0);
    barrier();
    fill(&a, 45);
    if (lks_checkpoint_save_step(a.c, folder, 45, 1)) bail("%s", lks_error(ctx));
    barrier();
    ok(count_steps(folder, &least) == 3 && least == 45 && !exists(bad),
       "older ones and half-written ones go, later ones stay");
    ok(lks_checkpoint_latest(ctx, folder, path, sizeof path, &step) == LKS_OK && step == 45,
       "45 is the newest whole one");
    ok(refused(lks_checkpoint_latest(ctx, folder, path, 10, &step), LKS_ERR_ARGUMENT, "longer than 9"),
       "a short path buffer");
    snprintf(bad, sizeof bad, "%s/ruins", dir);
    if (root) mkdir(bad, 0700);
    snprintf(bad, sizeof bad, "%s/ruins/step-00000001.h5", dir);
    if (root) write_file(bad, "x", 1);
    barrier();
    snprintf(bad, sizeof bad, "%s/ruins", dir);
    ok(refused(lks_checkpoint_latest(ctx, bad, path, sizeof path, &step), LKS_ERR_CORRUPT, "none of them whole"),
       "only damaged ones: not the same as none");
    ok(refused(lks_checkpoint_save_step(a.c, folder, -1, 1), LKS_ERR_ARGUMENT, "step -1"), "step -1");
    ok(refused(lks_checkpoint_save_step(a.c, folder, 1, 0), LKS_ERR_ARGUMENT, "keep 0"), "keep 0");
    ok(refused(lks_checkpoint_latest(ctx, path_of("nowhere"), path, sizeof path, &step), LKS_ERR_NOT_FOUND, "nowhere"),
       "no such folder");
    drop(&a);
}

/* B122: a master that its bfloat16 copy cannot tell, restored as it was; with another order of making and loading. */
static void masters(void)
{
    const row one[] = {{"w", LKS_BF16, 0, 1, {1}}};
    const uint32_t master = 0x3f800347; /* 1.0001 */
    model a;
    make(&a, one, 1, LKS_SGD, 0);
    lksi_state_block b = {0};
    int found = 0;
    for (int k = 0; k < lksi_optim_block_count(a.opt); k++) {
        lksi_optim_block(a.opt, k, &b);
        if (!strcmp(b.name, "master")) {
            found = 1;
            break;
        }
    }
    ok(found && b.dtype == LKS_F32, "a bfloat16 parameter has a float32 master");
    if (!found) return;
    uint16_t half = 0x3f80;
    int64_t applied[1] = {0};
    lksi_optim_saved s = {0, 0, 0, applied};
    lksi_device_write(ctx->dev, a.ps->e[0].t->v.data, &half, 2);
    lksi_device_write(ctx->dev, b.data, &master, 4);
    lksi_arena_touched(a.ps->arena[b.arena], 0);
    lksi_optim_write(a.opt, &s);
    if (lks_checkpoint_save(a.c, path_of("master.h5"))) bail("%s", lks_error(ctx));
    drop(&a);
    for (int order = 0; order < 2; order++) {
        make(&a, one, 1, order ? -1 : LKS_SGD, 0);
        if (order) { /* parameters first, then the optimizer, then its state */
            if (lks_checkpoint_load(a.c, path_of("master.h5"), NULL, NULL)) bail("%s", lks_error(ctx));
            if (lks_optim_create(a.ps, LKS_SGD, &a.opt) || lks_checkpoint_set_optim(a.c, a.opt))
                bail("%s", lks_error(ctx));
        }
        lks_optim_set_lr(a.opt, -1, 1e-4);
        if (lks_checkpoint_load(a.c, path_of("master.h5"), NULL, NULL)) bail("%s", lks_error(ctx));
        for (int k = 0; k < lksi_optim_block_count(a.opt); k++) {
            lksi_optim_block(a.opt, k, &b);
            if (!strcmp(b.name, "master")) break;
        }
        uint32_t got = 0;
        lksi_device_read(ctx->dev, &got, b.data, 4);
        ok(got == master, "B122: the master after load is 3F800347 (order %d)", order);
        lks_scope_begin(ctx);
        lks_status st = lks_backward(lks_sum(a.ps->e[0].t, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
        if (st == LKS_OK) st = lks_optim_step(a.opt, NULL);
        lks_scope_end(ctx);
        lksi_device_read(ctx->dev, &got, b.data, 4);
        ok(st == LKS_OK && got == 0x3f800000, "B122: and 1.0 after a step with g = 1, lr = 1e-4 (%08x)", got);
        drop(&a);
    }
}

/* B127 */
static void nothing_is_left(void)
{
    model a;
    make(&a, plain, PLAIN, LKS_ADAMW, 1);
    fill(&a, 1);
    const char *path = path_of("again.h5");
    int rounds = getenv("LKS_TEST_ROUNDS") ? atoi(getenv("LKS_TEST_ROUNDS")) : 60, good = 1;
    struct rusage before = {0}, after;
    hid_t from = -1, to;
    int64_t blocks = 0;
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 3) {
            getrusage(RUSAGE_SELF, &before);
            blocks = lksi_blocks_in_use(&ctx->base);
            H5Pclose(from = H5Pcreate(H5P_FILE_ACCESS));
        }
        good &= lks_checkpoint_save(a.c, path) == LKS_OK && lks_checkpoint_load(a.c, path, NULL, NULL) == LKS_OK;
    }
    getrusage(RUSAGE_SELF, &after);
    H5Pclose(to = H5Pcreate(H5P_FILE_ACCESS));
    int open_ids = 0;
    for (hid_t id = from; id < to; id++) open_ids += H5Iis_valid(id) > 0;
    ok(good && open_ids == 0 && H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL) == 0,
       "B127: %d rounds of save and load leave no HDF5 identifier", rounds);
    ok(lksi_blocks_in_use(&ctx->base) == blocks && after.ru_maxrss - before.ru_maxrss < 4096,
       "B127: nor memory (%ld KiB more)",
       after.ru_maxrss - before.ru_maxrss);
    drop(&a);
}

/* --- one process -------------------------------------------------------------------------------------------------- */

static int has_value(model *m, int64_t step, const char *folder)
{
    char path[500];
    int64_t newest = -1;
    lks_status s = lks_checkpoint_latest(ctx, folder, path, sizeof path, &newest);
    if (s || newest < step) {
        diag("newest is %lld, at least %lld wanted (%s)", (long long)newest, (long long)step, lks_error(ctx));
        lks_error_clear(ctx);
        return 0;
    }
    if (lks_checkpoint_load(m->c, path, NULL, NULL)) {
        diag("%s", lks_error(ctx));
        return 0;
    }
    return holds(m, (int)newest);
}

/* The child saves step after step with keep = 1 and tells each one finished; it is killed in between. */
static void kills(void)
{
    const row big[] = {{"w", LKS_F32, 0, 1, {500000}}, {"b", LKS_F32, 0, 1, {3}}};
    int rounds = getenv("LKS_TEST_KILLS") ? atoi(getenv("LKS_TEST_KILLS")) : 50, good = 1, during = 0;
    unsigned seed = getenv("LKS_TEST_SEED") ? (unsigned)atoi(getenv("LKS_TEST_SEED")) : (unsigned)getpid();
    char folder[300];
    snprintf(folder, sizeof folder, "%s/kills", dir);
    mkdir(folder, 0700);
    model m;
    make(&m, big, 2, LKS_ADAMW, 0);
    int64_t done_step = 1;
    fill(&m, 1);
    if (lks_checkpoint_save_step(m.c, folder, 1, 1)) bail("%s", lks_error(ctx));
    diag("seed %u", seed);
    for (int k = 0; k < rounds; k++) {
        int pipes[2];
        if (pipe(pipes)) bail("pipe");
        pid_t pid = fork();
        if (pid == 0) {
            for (int64_t step = done_step + 1;; step++) {
                fill(&m, (int)step);
                if (lks_checkpoint_save_step(m.c, folder, step, 1)) _exit(1);
                if (write(pipes[1], &step, sizeof step) != sizeof step) _exit(2);
            }
        }
        close(pipes[1]);
        usleep((unsigned)rand_r(&seed) % 40000);
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        for (int64_t step; read(pipes[0], &step, sizeof step) == sizeof step;) done_step = step;
        close(pipes[0]);
        during += WIFSIGNALED(status);
        good &= has_value(&m, done_step, folder);
    }
    ok(good && during == rounds,
       "B113: killed %d times while saving: the newest file is the last finished step or later", rounds);
    const struct { const char *point; int last; } points[] = {
        {"mid-write", 0}, {"before-fsync", 0}, {"before-rename", 0}, {"after-rename", 1}, {"prune", 1}};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        char at[60], path[500];
        int64_t before = done_step, newest = 0, least = 0;
        has_value(&m, done_step, folder);
        lks_checkpoint_latest(ctx, folder, path, sizeof path, &before);
        pid_t pid = fork();
        if (pid == 0) {
            snprintf(at, sizeof at, "kill:%s@1", points[p].point);
            setenv("LKS_FAULT", at, 1);
            ctx->base.fault_state = 0; /* read it anew */
            fill(&m, (int)before + 1);
            lks_checkpoint_save_step(m.c, folder, before + 1, 1);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        lks_status s = lks_checkpoint_latest(ctx, folder, path, sizeof path, &newest);
        ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && s == LKS_OK && newest == before + points[p].last &&
               has_value(&m, newest, folder),
           "killed at %s: the %s file is whole", points[p].point, points[p].last ? "new" : "old");
        (void)least;
    }
    drop(&m);
}

/* B116, by a limit of file size. */
static void limits(void)
{
    model a;
    const char *path = path_of("limit.h5");
    make(&a, plain, PLAIN, LKS_ADAMW, 0);
    fill(&a, 1);
    if (lks_checkpoint_save(a.c, path)) bail("%s", lks_error(ctx));
    fill(&a, 2);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    int good = 1;
    struct stat st;
    stat(path, &st);
    rlim_t at[] = {0, 100, 4096, 10000, 200000, 1000000, (rlim_t)st.st_size - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        small = (struct rlimit){at[i], old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        lks_status s = lks_checkpoint_save(a.c, path);
        setrlimit(RLIMIT_FSIZE, &old);
        if (!refused(s, LKS_ERR_NO_SPACE, "ulimit") || exists(path_of("limit.h5.tmp"))) {
            diag("limit %lld", (long long)at[i]);
            good = 0;
        }
    }
    ok(good, "B116: a file size limit is an error, the temporary file is gone");
    sigset_t pending;
    sigpending(&pending);
    ok(!sigismember(&pending, SIGXFSZ), "no SIGXFSZ is left pending");
    ok(lks_checkpoint_load(a.c, path, NULL, NULL) == LKS_OK && holds(&a, 1), "B116: the older file is whole");
    fill(&a, 2);
    ok(lks_checkpoint_save(a.c, path) == LKS_OK && lks_checkpoint_load(a.c, path, NULL, NULL) == LKS_OK && holds(&a, 2),
       "and life goes on");
    drop(&a);
}

static void memory_fails(void)
{
    model a;
    char path[400];
    snprintf(path, sizeof path, "%s", path_of("oom.h5"));
    make(&a, plain, PLAIN, LKS_ADAMW, 1);
    fill(&a, 1);
    lks_checkpoint_set_text(a.c, "text", "text");
    if (lks_checkpoint_save(a.c, path)) bail("%s", lks_error(ctx));
    int done_ = 0, good = 1;
    int64_t blocks = lksi_blocks_in_use(&ctx->base);
    for (int n = 1; n < 2000 && !done_; n++) {
        ctx->base.fail_at = n;
        lks_status s = lks_checkpoint_save(a.c, path_of("oom2.h5"));
        done_ = ctx->base.fail_at > 0;
        ctx->base.fail_at = 0;
        good &= (s == LKS_ERR_MEMORY) == !done_ && lksi_blocks_in_use(&ctx->base) == blocks &&
                !exists(path_of("oom2.h5.tmp"));
        if (!good) diag("save, allocation %d: %s", n, lks_status_name(s));
        if (!good) break;
        lks_error_clear(ctx);
    }
    ok(done_ && good, "save: the n-th allocation fails: an error, nothing is leaked");
    fill(&a, 2);
    for (int n = 1; n < 2000; n++) {
        ctx->base.fail_at = n;
        lks_status s = lks_checkpoint_load(a.c, path, NULL, NULL);
        done_ = ctx->base.fail_at > 0;
        ctx->base.fail_at = 0;
        if (done_) break;
        good &= s == LKS_ERR_MEMORY && labs((long)(lksi_blocks_in_use(&ctx->base) - blocks)) <= 2;
        if (!good)
            diag("load, allocation %d: %s, %d blocks", n, lks_status_name(s),
                 (int)(lksi_blocks_in_use(&ctx->base) - blocks));
        if (!good) break;
        lks_error_clear(ctx);
    }
    ok(done_ && good && holds(&a, 1), "load: the same");
    drop(&a);
}

/* --- several ranks ------------------------------------------------------------------------------------------------ */

static const row sizes[] = {{"s7", LKS_F32, 0, 1, {7}},       {"s13", LKS_BF16, 0, 1, {13}},
                            {"s1", LKS_F32, 0, 1, {1}},       {"s0", LKS_F32, 0, 1, {0}},
                            {"s1000", LKS_F32, 0, 1, {1000}}, {"b", LKS_F32, 1, 1, {600000}}};

static void save_one(const char *path)
{
    model a;
    make(&a, sizes, 6, LKS_ADAM, 1);
    fill(&a, 9);
    ok(lks_checkpoint_save(a.c, path) == LKS_OK, "B125: saved with %d ranks %s", lks_size(ctx), lks_error(ctx));
    drop(&a);
}

static void load_one(const char *path)
{
    model a;
    make(&a, sizes, 6, LKS_ADAM, 1);
    fill(&a, 2);
    ok(lks_checkpoint_load(a.c, path, NULL, NULL) == LKS_OK && holds(&a, 9),
       "B125: loaded bit for bit with %d ranks %s", lks_size(ctx), lks_error(ctx));
    /* Padding stays zero. */
    int good = 1;
    for (int k = 0; k < LKSI_ARENAS; k++) {
        const lksi_arena *x = a.ps->arena[k];
        if (!x) continue;
        int size = lks_dtype_size(x->dtype);
        char *host = malloc((size_t)(x->count * size));
        lksi_device_read(ctx->dev, host, x->value, x->count * size);
        for (int i = 0; i < x->slices; i++) {
            int64_t end = i + 1 < x->slices ? x->slice[i + 1].offset : x->count;
            for (int64_t j = (x->slice[i].offset + x->slice[i].numel) * size; j < end * size; j++) good &= host[j] == 0;
        }
        free(host);
    }
    ok(good, "B125: padding stays zero");
    drop(&a);
}

/* B116: dir is a file system of 8 MB. */
static void full(void)
{
    const row small[] = {{"w", LKS_F32, 0, 1, {750000}}}, large[] = {{"w", LKS_F32, 0, 1, {1500000}}};
    model a, b;
    make(&a, small, 1, -1, 0);
    fill(&a, 1);
    ok(lks_checkpoint_save(a.c, path_of("c.h5")) == LKS_OK, "3 MB fit %s", lks_error(ctx));
    make(&b, large, 1, -1, 0);
    fill(&b, 1);
    int good = 1;
    for (int i = 0; i < 20; i++)
        good &= refused(lks_checkpoint_save(b.c, path_of("c.h5")), LKS_ERR_NO_SPACE, "c.h5.tmp");
    barrier();
    ok(good && !exists(path_of("c.h5.tmp")), "B116: 6 MB more do not: an error on every rank, the temporary is gone");
    fill(&a, 2);
    ok(lks_checkpoint_load(a.c, path_of("c.h5"), NULL, NULL) == LKS_OK && holds(&a, 1),
       "B116: the 3 MB file still loads");
    for (int i = 0; i < 100; i++) good &= lks_checkpoint_save(a.c, path_of("c.h5")) == LKS_OK;
    ok(good, "B116: and saving goes on");
    drop(&a), drop(&b);
}

/* B119 */
static void large(void)
{
    enum { N = 536870916 };
    const row one[] = {{"w", LKS_F32, 0, 1, {N}}};
    const int64_t at[4] = {0, 536870911, 536870912, 536870915};
    const float want[4] = {0, 869303, 869304, 869307};
    model a;
    make(&a, one, 1, -1, 0);
    lks_params_seal(a.ps);
    float *block = malloc(1 << 24);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < N; i += 1 << 22) {
            int64_t n = N - i < 1 << 22 ? N - i : 1 << 22;
            for (int64_t j = 0; j < n; j++) block[j] = pass ? -1.0f : (float)((i + j) % 1000003);
            lksi_device_write(ctx->dev, (float *)a.ps->e[0].t->v.data + i, block, n * 4);
        }
        if (pass == 0) ok(lks_checkpoint_save(a.c, path_of("large.h5")) == LKS_OK, "B119: saved %s", lks_error(ctx));
    }
    struct stat st;
    stat(path_of("large.h5"), &st);
    ok(st.st_size > (int64_t)1 << 31, "the file has %lld bytes", (long long)st.st_size);
    int good = lks_checkpoint_load(a.c, path_of("large.h5"), NULL, NULL) == LKS_OK;
    for (int k = 0; k < 4; k++) {
        float v = -1;
        lksi_device_read(ctx->dev, &v, (float *)a.ps->e[0].t->v.data + at[k], 4);
        good &= v == want[k];
    }
    ok(good, "B119: a parameter of more than 2 GiB %s", lks_error(ctx));
    free(block);
    drop(&a);
}

static int agree(int mine)
{
    int64_t v = mine;
    lks_reduce_i64(ctx, &v, 1, LKS_MIN);
    return (int)v;
}

static void everywhere(void)
{
    names();
    round_trip();
    kinds();
    misfits();
    newer();
    folders();
    masters();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    lks_config *config = lks_config_new();
    lks_config_set_threads(config, 1);
    lks_config_set_log(config, log_line, NULL);
    lks_config_set_deadline(config, 60);
    if (getenv("LKS_TEST_DEVICE")) lks_config_set_device(config, getenv("LKS_TEST_DEVICE"));
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx)) bail("%s", lks_config_message(config));
    lks_config_free(config);
    tap_.rank = lks_rank(ctx);
    if (argc > 2) {
        tap_.agree = agree;
        snprintf(dir, sizeof dir, "%s", argv[2]);
    } else if (!mkdtemp(dir)) bail("no folder for the test");
    if (!strcmp(what, "save")) save_one(argv[2]);
    else if (!strcmp(what, "load")) load_one(argv[2]);
    else if (!strcmp(what, "full")) full();
    else if (!strcmp(what, "large")) large();
    else if (!strcmp(what, "broken")) damage();
    else if (!strcmp(what, "all")) everywhere();
    else {
        everywhere();
        damage();
        nothing_is_left();
        limits();
        /* On an asynchronous device a copy may still be under way when an injected failure ends the wait for it. */
        if (strcmp(lks_device_name(ctx), "cpu")) skip(2, "failing allocations are tried on the cpu device");
        else memory_fails();
        /* A forked child has no worker threads and no device queue: only the plain CPU device can be tested so. */
        if (strcmp(lks_device_name(ctx), "cpu")) skip(6, "kills are tried on the cpu device");
        else kills();
    }
    ok(lks_error_code(ctx) == LKS_OK && lks_live_tensors(ctx) == 0, "no error and no tensor is left: %s",
       lks_error(ctx));
    int last = done();
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (argc < 3 && system(command)) diag("could not remove %s", dir);
    lks_context_destroy(&ctx);
    lks_finalize();
    return last;
}
