/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_hostile.c - inputs from somebody who means harm, or from a broken disk: command lines, configuration files, HDF5
 * data and checkpoints, each made by chance from good ones. Whatever comes in, an error with a text or a right result
 * comes out; a crash ends this program, a hang its alarm, and the seed that it prints makes the input again.
 *
 *   LKS_HOSTILE=N inputs of each kind (default 1000), LKS_HOSTILE_SEED=N (default 1)
 *
 * With LKS_FUZZER defined the same four doors are one target of libFuzzer (tests/check-long fuzz); its first byte says
 * which.
 */
#define _GNU_SOURCE
#include "tap.h"
#include "tools/tools.h"
#include <lockstep.h>

#include <fcntl.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANG 60 /* seconds an input may take, on a slow machine under a sanitizer */

static lks_context *ctx;
static char folder[256], path[300];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int store(const char *name, const void *data, size_t n)
{
    int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int bad = fd < 0 || write(fd, data, n) != (ssize_t)n;
    if (fd >= 0) close(fd);
    return bad;
}

static char *fetch(const char *name, size_t *n)
{
    struct stat st;
    int fd = open(in_folder(name), O_RDONLY);
    if (fd < 0 || fstat(fd, &st)) bail("%s is not there", path);
    char *data = malloc((size_t)st.st_size + 1);
    if (!data || read(fd, data, (size_t)st.st_size) != st.st_size) bail("%s cannot be read", path);
    close(fd);
    *n = (size_t)st.st_size;
    return data;
}

/* --- the doors: 1 taken, 0 refused with a text, -1 refused without one ------------------------------------------- */

static int outcome(lks_status s)
{
    int said = lks_error_code(ctx) == s && lks_error(ctx)[0];
    lks_error_clear(ctx);
    return s == LKS_OK ? 1 : said ? 0 : -1;
}

/* Where stdout and stderr are while the command speaks: the texts of errors are in a file. */
static int was[2], quiet[2];

static void hush(int on)
{
    fflush(stdout);
    fflush(stderr);
    if (on && !was[0]) {
        for (int i = 0; i < 2; i++) was[i] = dup(1 + i);
        quiet[0] = open("/dev/null", O_WRONLY);
        quiet[1] = open(in_folder("stderr"), O_RDWR | O_CREAT | O_APPEND, 0600);
    }
    for (int i = 0; i < 2; i++) dup2(on ? quiet[i] : was[i], 1 + i);
}

static int said_something(void)
{
    fflush(stderr);
    struct stat st;
    return !fstat(STDERR_FILENO, &st) && !ftruncate(STDERR_FILENO, 0) && st.st_size > 0;
}

static int parsed(int argc, const char **argv)
{
    static const int commands[] = {LM, CLASSIFY, SAMPLE, EVALUATE, PLOT, INFO};
    static options o;
    int any = 0;
    hush(1);
    said_something();
    for (int i = 0; i < 6; i++) {
        int code = options_parse(&o, commands[i], "lockstep", argc, argv, 1);
        int said = said_something();
        if (code > 0 && !said) any = -1;
        if (any < 0) break;
        any |= code == 0;
    }
    hush(0);
    return any;
}

/* Words between zero bytes or line ends. */
static int door_arguments(const char *data, size_t n)
{
    const char *argv[66] = {"lockstep"};
    char *text = malloc(n + 1);
    int argc = 1;
    if (!text) return 0;
    memcpy(text, data, n);
    text[n] = 0;
    for (char *w = text, *end; w < text + n && argc < 64; w = end + 1) {
        for (end = w; end < text + n && *end && *end != '\n'; end++) {}
        *end = 0;
        argv[argc++] = w;
    }
    int took = parsed(argc, argv);
    free(text);
    return took;
}

static int door_config(const char *data, size_t n)
{
    if (store("hostile.conf", data, n)) return 0;
    const char *argv[4] = {"lockstep", "--config", path, NULL};
    char keep[sizeof path];
    memcpy(keep, path, sizeof keep);
    argv[2] = keep;
    return parsed(3, argv);
}

static int door_arrays(const char *data, size_t n)
{
    if (store("hostile-data.h5", data, n)) return 0;
    const char *list[1] = {path};
    lks_loader *loader = NULL;
    lks_tensor *in, *target;
    int64_t rows, all;
    lks_scope_begin(ctx);
    lks_status s = lks_loader_hdf5(ctx, 1, list, "images", "labels", 0.25, &loader);
    /* what would be read for hours is a right result, too */
    if (s == LKS_OK && lks_loader_train_count(loader) < 1 << 20 && lks_loader_classes(loader) < 0)
        s = lks_error_code(ctx);
    int64_t each = 8;
    for (int d = 0; s == LKS_OK && d < lks_loader_input_ndim(loader); d++)
        each *= lks_loader_input_shape(loader)[d] < 1 << 20 ? lks_loader_input_shape(loader)[d] : 1 << 20;
    if (s == LKS_OK && each < 1 << 24) {
        for (int64_t at = 0; at < 24 && s == LKS_OK; at += 8)
            s = lks_loader_train(loader, at, 8, 0, 1, &in, &target, &rows, &all);
        if (s == LKS_OK && lks_loader_valid_count(loader) > 0) s = lks_loader_valid(loader, 0, 8, &in, &target, &rows);
    }
    lks_loader_destroy(&loader);
    lks_scope_end(ctx);
    return outcome(s);
}

static lks_params *weights;
static lks_optim *optimizer;
static lks_scaler *scaler;
static lks_checkpoint *checkpoint;

static int door_checkpoint(const char *data, size_t n)
{
    if (store("hostile.h5", data, n)) return 0;
    char keep[sizeof path];
    memcpy(keep, path, sizeof keep);
    int whole = outcome(lks_checkpoint_verify(ctx, keep));
    int seen = outcome(lks_checkpoint_peek(checkpoint, keep));
    int loaded = outcome(lks_checkpoint_load(checkpoint, keep, NULL, NULL));
    return whole < 0 || seen < 0 || loaded < 0 ? -1 : loaded;
}

static int (*const door[4])(const char *, size_t) = {door_arguments, door_config, door_arrays, door_checkpoint};

/* --- good ones ------------------------------------------------------------------------------------------------- */

static void good_data(const char *name)
{
    hsize_t images[3] = {40, 4, 4}, labels = 40, chunk[3] = {8, 4, 4};
    uint8_t pixel[40 * 16];
    int64_t number[40];
    for (int i = 0; i < 640; i++) pixel[i] = (uint8_t)(i * 37);
    for (int i = 0; i < 40; i++) number[i] = i % 10;
    hid_t f = H5Fcreate(in_folder(name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), p = H5Pcreate(H5P_DATASET_CREATE);
    hid_t s = H5Screate_simple(3, images, NULL), t = H5Screate_simple(1, &labels, NULL);
    H5Pset_chunk(p, 3, chunk);
    hid_t d = H5Dcreate2(f, "images", H5T_STD_U8LE, s, H5P_DEFAULT, p, H5P_DEFAULT);
    H5Dwrite(d, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, pixel);
    hid_t e = H5Dcreate2(f, "labels", H5T_STD_I64LE, t, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(e, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, number);
    H5Dclose(d), H5Dclose(e), H5Sclose(s), H5Sclose(t), H5Pclose(p), H5Fclose(f);
}

static void good_checkpoint(const char *name)
{
    static const int64_t shape[2] = {3, 5};
    lks_tensor *w, *v;
    if (lks_params_create(ctx, &weights) || lks_params_add(weights, "w", LKS_F32, 2, shape, &w) ||
        lks_params_add(weights, "a/b", LKS_BF16, 1, shape, &v) || lks_optim_create(weights, LKS_ADAMW, &optimizer) ||
        lks_scaler_create(ctx, 1, &scaler) || lks_checkpoint_create(ctx, &checkpoint) ||
        lks_checkpoint_set_params(checkpoint, weights) || lks_checkpoint_set_optim(checkpoint, optimizer) ||
        lks_checkpoint_set_scaler(checkpoint, scaler, LKS_STATE_ADOPT) ||
        lks_checkpoint_set_text(checkpoint, "task", "lm") || lks_checkpoint_set_i64(checkpoint, "step", 7) ||
        (name && lks_checkpoint_save(checkpoint, in_folder(name))))
        bail("no checkpoint: %s", lks_error(ctx));
}

static void open_doors(void)
{
    lks_config *c = lks_config_new();
    lks_config_set_device(c, "cpu");
    lks_config_set_threads(c, 1);
    int up = 0;
    MPI_Initialized(&up);
    if (lks_context_create(up ? MPI_COMM_WORLD : MPI_COMM_NULL, c, &ctx) != LKS_OK)
        bail("no context: %s", lks_config_message(c));
    lks_config_free(c);
    snprintf(folder, sizeof folder, "%s/hostile-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(folder)) bail("no folder %s", folder);
}

#ifdef LKS_FUZZER

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    open_doors();
    good_checkpoint(NULL);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1) return 0;
    /* Of HDF5 data only what this library parses: libhdf5 has its own fuzzers. */
    int k = data[0] % 3 == 2 ? 3 : data[0] % 3;
    if (door[k]((const char *)data + 1, n - 1) < 0) abort();
    return 0;
}

#else

/* --- chance ---------------------------------------------------------------------------------------------------- */

static uint64_t chance_state;

static uint64_t chance(uint64_t n)
{
    chance_state = chance_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = chance_state >> 33;
    return n ? x % n : 0;
}

/* Changes data, of n bytes with room for as many more; the new length. from, to: where. */
static size_t spoil(char *data, size_t n, size_t from, size_t to)
{
    static const int64_t odd[] = {0,     1,     -1,        127,       128,       255,      256,
                                  32767, 65535, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    if (to > n) to = n;
    for (uint64_t k = 1 + chance(4); k && to > from; k--) {
        size_t at = from + chance(to - from), m = 1 + chance(16);
        if (m > to - at) m = to - at;
        switch (chance(6)) {
        case 0: data[at] ^= (char)(1 << chance(8)); break;
        case 1: data[at] = (char)chance(256); break;
        case 2: {
            int64_t v = odd[chance(13)];
            size_t bytes = (size_t)1 << chance(4);
            memcpy(data + at, &v, bytes < to - at ? bytes : to - at);
            break;
        }
        case 3: memset(data + at, chance(2) ? 0 : 255, m); break;
        case 4: memmove(data + at, data + from + chance(to - from - m + 1), m); break;
        default:
            if (from || to < n) break; /* lengths stay where only a part may change */
            if (chance(2)) n = to = chance(n) + 1;
            else memmove(data + at + m, data + at, n - at), n += m, to = n;
        }
    }
    return n;
}

static const char *const words[] = {
    "--data", "--out", "--batch", "--lr", "--steps", "--epochs", "--seed", "--precision", "--config", "--device",
    "--resume", "--heads", "--clip", "--valid-fraction", "--ops", "--help", "--", "-", "f16", "bf16", "cpu", "1e999",
    "-1", "0x10", "nan", "inf", "", "=", "--lr=", "--lr=3", "--=1", "1 2", "%s%n", "../../../etc",
    "9223372036854775808", "\377\376"};

static size_t random_line(char *to, size_t room)
{
    size_t n = 0;
    for (uint64_t k = chance(8) + 1; k; k--) {
        const char *w = words[chance(sizeof words / sizeof *words)];
        size_t m = strlen(w) + 1;
        if (n + m >= room) break;
        memcpy(to + n, w, m);
        n += m;
    }
    return n;
}

static const char config[] = "# a run\ndata = {\"a.txt\", \"b.txt\"}\nprecision = bf16\nsteps = 200\nlr = 0.001\n"
                             "batch = 16\nout = \"run\"\nschedule = cosine\n";

static volatile int now_kind, now_number;
static void on_alarm(int number)
{
    char text[100];
    int n = snprintf(text, sizeof text, "Bail out! input %d of kind %d hangs\n", now_number, now_kind);
    (void)number;
    if (write(STDOUT_FILENO, text, (size_t)n) < 0) _exit(98);
    _exit(99);
}

static void kind(int k, const char *name, int inputs)
{
    size_t n = 0, bytes;
    char *whole = NULL;
    int took = 0, refused = 0, silent = 0;
    if (k == 2) good_data("good-data.h5"), whole = fetch("good-data.h5", &n);
    if (k == 3) good_checkpoint("good.h5"), whole = fetch("good.h5", &n);
    if (k == 1) whole = memcpy(malloc(sizeof config), config, n = sizeof config - 1);
    char *data = malloc(2 * n + 4096);
    for (int i = 0; i < inputs; i++) {
        now_kind = k, now_number = i;
        if (k == 0) {
            bytes = random_line(data, 2048);
            if (chance(2)) bytes = spoil(data, bytes, 0, bytes);
        } else {
            memcpy(data, whole, bytes = n);
            if (k == 2) { /* raw data, or the file cut short: libhdf5 does not survive all damage to its structure */
                if (chance(4)) bytes = spoil(data, n, n > 1024 ? n - 1024 : 0, n);
                else bytes = chance(n);
            } else if (i) {
                bytes = spoil(data, n, 0, n);
            }
        }
        alarm(HANG);
        int r = door[k](data, bytes);
        alarm(0);
        if (k == 3 && r == 1 && (bytes != n || memcmp(data, whole, n))) r = -1;
        took += r == 1, refused += r == 0, silent += r < 0;
        if (r < 0) diag("%s, input %d: refused without a word, or taken though it is not what was saved", name, i);
    }
    ok(took + refused == inputs && !silent, "%s: %d inputs, %d taken, %d refused with a text", name, inputs, took,
       refused);
    free(whole);
    free(data);
}

/* Files that HDF5 finds whole and that make no sense: unlike lengths, strange types, empty and huge shapes. */
static void odd_arrays(int inputs)
{
    const hid_t types[] = {H5T_STD_U8LE, H5T_STD_I64BE, H5T_IEEE_F32LE, H5T_IEEE_F64BE, H5T_STD_U64LE, H5T_C_S1,
                           H5T_STD_B8LE, H5T_STD_REF_OBJ};
    static const hsize_t sizes[] = {0, 1, 2, 7, 40, 1000, (hsize_t)1 << 33, (hsize_t)1 << 60};
    int took = 0, refused = 0, silent = 0;
    now_kind = 4;
    for (int i = 0; i < inputs; i++) {
        now_number = i;
        hid_t f = H5Fcreate(in_folder("odd.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        int sane = chance(2) != 0; /* all but one thing */
        hsize_t samples = sizes[chance(8)];
        for (int d = 0; d < 2; d++) {
            hsize_t shape[6];
            int ndim = sane ? d ? 1 : 1 + (int)chance(4) : (int)chance(7);
            for (int j = 0; j < ndim; j++) shape[j] = sizes[chance(j ? 5 : 8)];
            if (sane) shape[0] = samples;
            hid_t s = ndim ? H5Screate_simple(ndim, shape, NULL) : H5Screate(chance(2) ? H5S_SCALAR : H5S_NULL);
            hid_t p = H5Pcreate(H5P_DATASET_CREATE);
            H5Pset_alloc_time(p, H5D_ALLOC_TIME_INCR);
            if (ndim) {
                hsize_t chunk[6];
                for (int j = 0; j < ndim; j++) chunk[j] = 1 + chance(8);
                H5Pset_chunk(p, ndim, chunk);
            }
            const char *name = chance(8) ? d ? "labels" : "images" : "other";
            hid_t x = H5Dcreate2(f, name, types[chance(sane ? d ? 2 : 5 : 8)], s, H5P_DEFAULT, p, H5P_DEFAULT);
            if (x >= 0) H5Dclose(x);
            H5Pclose(p), H5Sclose(s);
        }
        H5Fclose(f);
        size_t n;
        char *data = fetch("odd.h5", &n);
        alarm(HANG);
        int r = door_arrays(data, n);
        alarm(0);
        took += r == 1, refused += r == 0, silent += r < 0;
        if (r < 0) diag("odd arrays, input %d: refused without a word", i);
        free(data);
    }
    ok(took + refused == inputs && !silent, "odd arrays: %d inputs, %d taken, %d refused with a text", inputs, took,
       refused);
}

int main(void)
{
    const char *n = getenv("LKS_HOSTILE"), *seed = getenv("LKS_HOSTILE_SEED");
    int inputs = n ? atoi(n) : 1000;
    MPI_Init(NULL, NULL);
    open_doors();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    signal(SIGALRM, on_alarm);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    static const char *const names[] = {"command lines", "configuration files", "HDF5 data", "checkpoints"};
    for (int k = 0; k < 4; k++) {
        chance_state = (seed ? strtoull(seed, NULL, 10) : 1) * 1000003 + (uint64_t)k;
        kind(k, names[k], inputs);
    }
    odd_arrays(inputs);
    getrusage(RUSAGE_SELF, &after);
    ok(after.ru_maxrss - before.ru_maxrss < 1 << 20, "memory grew by %ld KiB, less than 1 GiB",
       after.ru_maxrss - before.ru_maxrss);
    lks_checkpoint_destroy(&checkpoint);
    lks_scaler_destroy(&scaler);
    lks_optim_destroy(&optimizer);
    lks_params_destroy(&weights);
    ok(lks_context_destroy(&ctx) == LKS_OK, "nothing is left");
    static const char *const files[] = {"hostile.conf", "hostile-data.h5", "hostile.h5", "good.h5", "good-data.h5",
                                        "odd.h5", "stderr"};
    for (int i = 0; i < 7; i++) unlink(in_folder(files[i]));
    rmdir(folder);
    MPI_Finalize();
    return done();
}

#endif
