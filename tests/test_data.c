/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_data.c - loaders: order, shares, windows, arrays, reading ahead, bad files. One process; data.test runs the same
 * program on several ranks ("ranks"), where every sample must be seen once over all of them.
 */
#define _GNU_SOURCE
#include "comm/comm.h"
#include "data/order.h"
#include "errors.h"
#include "tap.h"
#include <fcntl.h>
#include <fenv.h>
#include <hdf5.h>
#include <lockstep.h>
#include <sys/stat.h>

static lks_context *ctx;
static char dir[200] = "/tmp/lks_data_XXXXXX";
static char warning[4000];

static void log_line(void *user, int level, const char *line)
{
    (void)user;
    if (level >= LKS_LOG_WARNING) snprintf(warning, sizeof warning, "%s", line);
}

static int refused(lks_status got, lks_status want, const char *part)
{
    return recorded(ctx, got == want, want, part, "");
}

static const char *path_of(const char *name)
{
    static char path[8][300];
    static int i;
    i = (i + 1) % 8;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static const char *write_text(const char *name, int64_t bytes, unsigned seed)
{
    const char *path = path_of(name);
    FILE *f = fopen(path, "w");
    for (int64_t i = 0; i < bytes; i++) fputc((int)((i * 7 + seed + i / 251) & 255), f);
    fclose(f);
    return path;
}

static unsigned char text_byte(int64_t i, unsigned seed)
{
    return (unsigned char)((i * 7 + seed + i / 251) & 255);
}

/* images [n, 2, 3] of type `images`, labels [n] of type `labels`; value of image i at j: (i * 6 + j) % 251; label: i.
 */
static const char *write_arrays(const char *name, int64_t n, hid_t images, hid_t labels, int chunked)
{
    const char *path = path_of(name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t dims[3] = {(hsize_t)n, 2, 3}, chunk[3] = {5, 2, 3};
    int32_t *x = calloc((size_t)(n * 6 + 1), sizeof *x), *y = calloc((size_t)n + 1, sizeof *y);
    for (int64_t i = 0; i < n * 6; i++) x[i] = (int32_t)(i % 251);
    for (int64_t i = 0; i < n; i++) y[i] = (int32_t)i;
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    if (chunked) {
        H5Pset_chunk(dcpl, 3, chunk);
        H5Pset_deflate(dcpl, 2);
    }
    hid_t s3 = H5Screate_simple(3, dims, NULL), s1 = H5Screate_simple(1, dims, NULL);
    hid_t g = H5Gcreate2(file, "set", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hid_t a = H5Dcreate2(g, "images", images, s3, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    hid_t b = H5Dcreate2(g, "labels", labels, s1, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (n) {
        H5Dwrite(a, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, x);
        H5Dwrite(b, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, y);
    }
    H5Dclose(a), H5Dclose(b), H5Gclose(g), H5Sclose(s3), H5Sclose(s1), H5Pclose(dcpl), H5Fclose(file);
    free(x), free(y);
    return path;
}

/* --- order -------------------------------------------------------------------------------------------------------- */

static void order(void)
{
    int good = 1;
    static unsigned char seen[70000];
    for (int64_t n = 1; n <= 1500 && good; n++)
        for (int e = 0; e < 3; e++) {
            memset(seen, 0, (size_t)n);
            for (int64_t k = 0; k < n; k++) {
                int64_t s = lksi_order(7 * n, e, n, k);
                good &= s >= 0 && s < n && !seen[s]++;
            }
        }
    ok(good, "an epoch is a bijection of [0, n) for n = 1 to 1500");
    for (int i = 0; i < 4; i++) {
        int64_t n = (int64_t[]){65535, 65536, 65537, 69999}[i];
        memset(seen, 0, sizeof seen);
        for (int64_t k = 0; k < n; k++) seen[lksi_order(-3, 11, n, k)]++;
        for (int64_t k = 0; k < n; k++) good &= seen[k] == 1;
    }
    ok(good, "and about a power of four");
    int64_t big = INT64_C(1) << 40, fixed = 0, neighbours = 0, same = 0;
    for (int64_t k = 0; k < 10000; k++) {
        int64_t s = lksi_order(1, 0, big, k);
        good &= s >= 0 && s < big;
        fixed += s == k;
        neighbours += lksi_order(1, 0, big, k + 1) == s + 1;
        same += s == lksi_order(1, 1, big, k) || s == lksi_order(2, 0, big, k);
    }
    ok(good && fixed + neighbours + same <= 2, "2^40 samples: no fixed places, no neighbours, epochs and seeds differ");
    ok(lksi_order(5, 3, INT64_MAX, INT64_MAX - 1) >= 0, "2^63 - 1 samples");
    /* Where sample 0 of 16 goes over 16000 epochs: each place 1000 times, standard deviation 31. */
    for (int64_t n = 2; n <= 16; n *= 2) {
        int count[16] = {0}, worst = 0;
        for (int e = 0; e < 16000; e++) count[lksi_order(99, e, n, 0)]++;
        for (int k = 0; k < n; k++)
            if (abs(count[k] - 16000 / (int)n) > worst) worst = abs(count[k] - 16000 / (int)n);
        ok(worst < 5 * sqrt(16000.0 / (double)n), "n = %d: every place alike over the epochs (off by %d)", (int)n,
           worst);
    }
    /* Pairs: of the 6 orders of 3, each comes up. */
    int orders[6] = {0};
    for (int e = 0; e < 6000; e++) {
        int a = (int)lksi_order(4, e, 3, 0), b = (int)lksi_order(4, e, 3, 1);
        orders[2 * a + (b > (a + 1) % 3 ? 1 : b != (a + 1) % 3)]++;
    }
    int least = orders[0];
    for (int i = 0; i < 6; i++) least = orders[i] < least ? orders[i] : least;
    ok(least > 800, "the six orders of three samples come up (least %d of 6000)", least);
    good = 1;
    for (int64_t n = 0; n < 40; n++)
        for (int64_t parts = 1; parts < 12; parts++) {
            int64_t at = 0, first, rows;
            for (int64_t i = 0; i < parts; i++) {
                lksi_share(n, parts, i, &first, &rows);
                good &= first == at && rows >= n / parts && rows <= n / parts + 1;
                at += rows;
            }
            good &= at == n;
        }
    ok(good, "shares are contiguous, complete, and differ by at most one");
    /* Pinned: a changed order would break every run that is resumed. */
    int64_t first = 0;
    for (int k = 0; k < 8; k++) first = first * 100 + lksi_order(1234, 2, 100, k);
    is_int(first, INT64_C(955274932601387), "the order is what it was");
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static void text(void)
{
    const char *paths[3] = {write_text("a.txt", 1000, 1), write_text("b.txt", 57, 2), write_text("c.txt", 333, 3)};
    int64_t size[3] = {1000, 57, 333}, T = 10, windows = 0, valid = 0;
    for (int i = 0; i < 3; i++) {
        int64_t v = (int64_t)((double)size[i] * 0.2);
        windows += (size[i] - v - 1) / T;
        valid += v > 0 ? (v - 1) / T : 0;
    }
    lks_loader *l = NULL;
    if (lks_loader_text(ctx, 3, paths, T, 0.2, &l)) bail("%s", lks_error(ctx));
    is_int(lks_loader_train_count(l), windows, "windows of the training parts");
    is_int(lks_loader_valid_count(l), valid, "windows of the validation parts");
    ok(lks_loader_input_ndim(l) == 1 && lks_loader_input_shape(l)[0] == T && lks_loader_classes(l) == 256,
       "shape, classes");
    int good = 1;
    char *seen = calloc(1, 1400);
    for (int64_t at = 0; at < windows;) {
        lks_tensor *x, *y;
        int64_t rows, total, in[8 * 10], out[8 * 10];
        lks_scope_begin(ctx);
        if (lks_loader_train(l, at, 8, 0, 1, &x, &y, &rows, &total)) bail("%s", lks_error(ctx));
        good &= rows == total && total == (windows - at < 8 ? windows - at : 8) && lks_dim(x, 0) == rows &&
                lks_dim(x, 1) == T;
        good &= lks_to_host(x, in, rows * T * 8) == LKS_OK && lks_to_host(y, out, rows * T * 8) == LKS_OK;
        for (int64_t r = 0; r < rows && good; r++) {
            int64_t w = lks_loader_index(l, 0, at + r), file = 0, before = 0;
            for (;; file++) {
                int64_t v = (int64_t)((double)size[file] * 0.2), n = (size[file] - v - 1) / T;
                if (w < before + n) break;
                before += n;
            }
            for (int64_t t = 0; t < T; t++) {
                int64_t byte = (w - before) * T + t;
                good &= in[r * T + t] == text_byte(byte, (unsigned)file + 1);
                good &= out[r * T + t] == text_byte(byte + 1, (unsigned)file + 1);
            }
            good &= !seen[w]++;
        }
        lks_scope_end(ctx);
        at += total;
    }
    ok(good, "an epoch holds each window once, targets are the next bytes, none crosses a border");
    free(seen);
    lks_tensor *x, *y;
    int64_t rows, total, v[10];
    lks_scope_begin(ctx);
    ok(lks_loader_valid(l, 0, 1, &x, &y, &rows) == LKS_OK && rows == 1 && lks_to_host(x, v, 80) == LKS_OK &&
           v[0] == text_byte(800, 1),
       "validation begins at the last fifth of the first file");
    ok(lks_loader_valid(l, valid, 4, &x, &y, &rows) == LKS_OK && rows == 0 && x == LKS_NONE, "past its end: no rows");
    ok(lks_loader_train(l, 0, 1000, 0, 1, &x, &y, &rows, &total) == LKS_OK && total == windows,
       "a batch larger than the data is the data");
    ok(lks_loader_train(l, windows - 1, 4, 2, 4, &x, &y, &rows, &total) == LKS_OK && total == 1 && rows == 0 &&
           x == LKS_NONE && y == LKS_NONE,
       "a micro-batch without rows");
    lks_scope_end(ctx);
    ok(refused(lks_loader_train(l, -1, 4, 0, 1, &x, &y, &rows, &total), LKS_ERR_ARGUMENT, "position -1"),
       "position < 0");
    ok(refused(lks_loader_train(l, 0, 0, 0, 1, &x, &y, &rows, &total), LKS_ERR_ARGUMENT, "batch 0"), "batch 0");
    ok(refused(lks_loader_train(l, 0, 4, 2, 2, &x, &y, &rows, &total), LKS_ERR_ARGUMENT, "2 of 2"),
       "micro-batch 2 of 2");
    int64_t print = lks_loader_fingerprint(l);
    lks_loader_destroy(&l);
    ok(!l, "destroyed");
    lks_loader_destroy(&l);
    if (lks_loader_text(ctx, 3, paths, T, 0.2, &l)) bail("%s", lks_error(ctx));
    ok(lks_loader_fingerprint(l) == print, "the fingerprint is the same again");
    lks_loader_destroy(&l);
    write_text("c.txt", 334, 3);
    if (lks_loader_text(ctx, 3, paths, T, 0.2, &l)) bail("%s", lks_error(ctx));
    ok(lks_loader_fingerprint(l) != print, "another after a file has changed in size");
    truncate(path_of("a.txt"), 100);
    lks_status status = LKS_OK;
    for (int64_t at = 0; at < windows && status == LKS_OK; at += 8) {
        lks_scope_begin(ctx);
        status = lks_loader_train(l, at, 8, 0, 1, &x, &y, &rows, &total);
        lks_scope_end(ctx);
    }
    ok(refused(status, LKS_ERR_IO, "shorter"), "a file cut while in use is an error");
    lks_loader_destroy(&l);
}

static void bad_text(void)
{
    lks_loader *l = NULL;
    const char *missing = path_of("missing.txt"), *empty = write_text("empty.txt", 0, 0),
               *tiny = write_text("tiny.txt", 6, 0), *fine = write_text("fine.txt", 500, 0), *folder = dir;
    ok(refused(lks_loader_text(ctx, 1, &missing, 8, 0, &l), LKS_ERR_NOT_FOUND, "missing.txt") && !l, "missing file");
    ok(refused(lks_loader_text(ctx, 1, &empty, 8, 0, &l), LKS_ERR_ARGUMENT, "empty.txt is empty"), "empty file");
    ok(refused(lks_loader_text(ctx, 1, &folder, 8, 0, &l), LKS_ERR_IO, "is a folder"), "folder");
    ok(refused(lks_loader_text(ctx, 1, &tiny, 8, 0, &l), LKS_ERR_ARGUMENT, "one window takes 9"),
       "too short for a window");
    ok(refused(lks_loader_text(ctx, 1, &fine, 0, 0, &l), LKS_ERR_ARGUMENT, "seq_len is 0"), "seq_len 0");
    ok(refused(lks_loader_text(ctx, 1, &fine, 8, 1, &l), LKS_ERR_ARGUMENT, "valid_fraction"), "valid_fraction 1");
    ok(refused(lks_loader_text(ctx, 1, &fine, 8, NAN, &l), LKS_ERR_ARGUMENT, "valid_fraction"), "valid_fraction NaN");
    ok(refused(lks_loader_text(ctx, 0, NULL, 8, 0, &l), LKS_ERR_ARGUMENT, "no files"), "no files");
    const char *two[2] = {tiny, fine};
    warning[0] = 0;
    ok(lks_loader_text(ctx, 2, two, 8, 0, &l) == LKS_OK && strstr(warning, "tiny.txt"),
       "one of several is too short: it is named in a warning");
    lks_loader_destroy(&l);
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static float want(int64_t i, int j, int scaled) { return (float)((i * 6 + j) % 251) / (scaled ? 255.0f : 1.0f); }

static int check_arrays(lks_loader *l, int64_t n, const int64_t *start, int files, int scaled, int whole)
{
    char *seen = calloc(1, (size_t)n);
    int good = 1;
    int64_t train = lks_loader_train_count(l), valid = lks_loader_valid_count(l);
    for (int part = 0; part < 2; part++)
        for (int64_t at = 0; at < (part ? valid : train);) {
            lks_tensor *x, *y;
            int64_t rows, total, labels[16];
            float a[16 * 6];
            int64_t b[16 * 6];
            lks_scope_begin(ctx);
            if (part ? lks_loader_valid(l, at, 16, &x, &y, &rows)
                     : lks_loader_train(l, at, 16, 0, 1, &x, &y, &rows, &total)) {
                diag("%s", lks_error(ctx));
                return 0;
            }
            good &= lks_dtype_of(x) == (whole ? LKS_I64 : LKS_F32) && lks_dtype_of(y) == LKS_I64;
            good &= lks_ndim(x) == 3 && lks_dim(x, 1) == 2 && lks_dim(x, 2) == 3 && lks_ndim(y) == 1;
            good &= lks_to_host(x, whole ? (void *)b : (void *)a, rows * 6 * (whole ? 8 : 4)) == LKS_OK;
            good &= lks_to_host(y, labels, rows * 8) == LKS_OK;
            for (int64_t r = 0; r < rows; r++) {
                int64_t row = -1;
                for (int f = 0; f < files; f++) /* labels count within a file */
                    for (int j = 0; j < 1; j++)
                        if (row < 0 && labels[r] + start[f] < start[f + 1] && !seen[labels[r] + start[f]])
                            row = labels[r] + start[f];
                if (!part) good &= labels[r] == lks_loader_index(l, 0, at + r) - start[0] || files > 1;
                good &= row >= 0;
                if (row >= 0) seen[row]++;
                for (int j = 0; j < 6; j++)
                    good &= whole ? b[r * 6 + j] == (labels[r] * 6 + j) % 251
                                  : a[r * 6 + j] == want(labels[r], j, scaled);
            }
            lks_scope_end(ctx);
            at += rows;
        }
    for (int64_t i = 0; i < n; i++) good &= seen[i] == 1;
    free(seen);
    return good;
}

static void arrays(void)
{
    struct { hid_t type; int chunked, scaled, whole; const char *what; } kind[] = {
        {H5T_STD_U8LE, 0, 1, 0, "uint8 / 255 by offset"},  {H5T_STD_U8LE, 1, 1, 0, "uint8 / 255, compressed"},
        {H5T_IEEE_F32LE, 0, 0, 0, "float32 by offset"},    {H5T_IEEE_F64BE, 0, 0, 0, "big-endian float64 by offset"},
        {H5T_IEEE_F64LE, 1, 0, 0, "float64, compressed"},  {H5T_STD_I32LE, 0, 0, 1, "int32 by offset, as int64"},
        {H5T_STD_I16BE, 1, 0, 1, "int16, compressed"},
    };
    lks_loader *l;
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        const char *path = write_arrays("one.h5", 103, kind[k].type, H5T_STD_U8LE, kind[k].chunked);
        int64_t start[2] = {0, 103};
        if (lks_loader_hdf5(ctx, 1, &path, "set/images", "/set/labels", 0.2, &l)) bail("%s", lks_error(ctx));
        ok(lks_loader_train_count(l) == 83 && lks_loader_valid_count(l) == 20 && lks_loader_classes(l) == 103 &&
               lks_loader_input_ndim(l) == 2,
           "%s: counts, classes", kind[k].what);
        ok(check_arrays(l, 103, start, 1, kind[k].scaled, kind[k].whole), "%s: each sample once, with its target",
           kind[k].what);
        lks_loader_destroy(&l);
    }
    /* The link's file has other bytes where the linked one has the dataset. */
    const char *away = write_arrays("away.h5", 103, H5T_IEEE_F32LE, H5T_STD_U8LE, 0);
    const char *link = write_arrays("link.h5", 103, H5T_IEEE_F64LE, H5T_STD_U8LE, 0);
    hid_t file = H5Fopen(link, H5F_ACC_RDWR, H5P_DEFAULT);
    H5Ldelete(file, "set/images", H5P_DEFAULT);
    H5Lcreate_external(away, "set/images", file, "set/images", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    int64_t whole[2] = {0, 103};
    if (lks_loader_hdf5(ctx, 1, &link, "set/images", "set/labels", 0.2, &l)) bail("%s", lks_error(ctx));
    ok(check_arrays(l, 103, whole, 1, 0, 0), "an external link: the samples of the file that it leads to");
    lks_loader_destroy(&l);
    const char *minus = write_arrays("minus.h5", 20, H5T_STD_U8LE, H5T_STD_I32LE, 0);
    file = H5Fopen(minus, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t set = H5Dopen2(file, "set/labels", H5P_DEFAULT);
    int32_t label[20] = {0, 1, 2, -1};
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, label);
    H5Dclose(set), H5Fclose(file);
    if (lks_loader_hdf5(ctx, 1, &minus, "set/images", "set/labels", 0.2, &l)) bail("%s", lks_error(ctx));
    ok(lks_loader_classes(l) < 1 && strstr(lks_error(ctx), "target -1 of sample 3"), "a negative class is named");
    lks_error_clear(ctx);
    lks_loader_destroy(&l);
    const char *three[3] = {write_arrays("1.h5", 10, H5T_STD_U8LE, H5T_STD_I64LE, 0),
                            write_arrays("2.h5", 0, H5T_STD_U8LE, H5T_STD_I64LE, 0),
                            write_arrays("3.h5", 31, H5T_STD_U8LE, H5T_STD_I16LE, 0)};
    int64_t start[4] = {0, 10, 10, 41};
    if (lks_loader_hdf5(ctx, 3, three, "set/images", "set/labels", 0.25, &l)) bail("%s", lks_error(ctx));
    ok(check_arrays(l, 41, start, 3, 1, 0) && lks_loader_classes(l) == 31,
       "three files joined, one of them without samples");
    int64_t a[31], b[31];
    for (int k = 0; k < 31; k++) a[k] = lks_loader_index(l, 0, k);
    lks_random_set(ctx, 77, 0);
    int same = 0;
    for (int k = 0; k < 31; k++) same += a[k] == (b[k] = lks_loader_index(l, 0, k));
    ok(same < 8, "another seed, another split and order");
    lks_random_set(ctx, 7, 0);
    lks_loader_destroy(&l);
    const char *floats = write_arrays("f.h5", 12, H5T_IEEE_F32LE, H5T_IEEE_F64LE, 0);
    if (lks_loader_hdf5(ctx, 1, &floats, "set/images", "set/labels", 0, &l)) bail("%s", lks_error(ctx));
    lks_tensor *x, *y;
    int64_t rows, total;
    lks_scope_begin(ctx);
    ok(lks_loader_classes(l) == 0 && lks_loader_train(l, 0, 12, 0, 1, &x, &y, &rows, &total) == LKS_OK &&
           lks_dtype_of(y) == LKS_F32,
       "targets that are floats: float32, no classes");
    lks_scope_end(ctx);
    lks_loader_destroy(&l);
}

#if defined __x86_64__
/* A batch of bytes / 255 and its statistics; numbers beyond float32; a NaN: 1 if all went as it should. */
static int delivered(const char *bytes, const char *wild, float *batch, double *moments)
{
    lks_loader *l = NULL;
    lks_tensor *x, *y;
    int64_t rows, total;
    int good = lks_loader_hdf5(ctx, 1, &bytes, "set/images", "set/labels", 0.1, &l) == LKS_OK &&
               lks_loader_train(l, 0, 40, 0, 1, &x, &y, &rows, &total) == LKS_OK && rows == 40 &&
               lks_to_host(x, batch, 40 * 24) == LKS_OK && lks_loader_statistics(l, 0, 4, moments) == LKS_OK;
    lks_loader_destroy(&l);
    good = good && lks_loader_hdf5(ctx, 1, &wild, "x[:2]", NULL, 0, &l) == LKS_OK &&
           lks_loader_train(l, 0, 2, 0, 1, &x, &y, &rows, &total) == LKS_OK && rows == 2;
    lks_loader_destroy(&l);
    good = good && lks_loader_hdf5(ctx, 1, &wild, "x", NULL, 0, &l) == LKS_OK &&
           lks_loader_statistics(l, 0, 2, moments + 4) < 0;
    lks_loader_destroy(&l);
    return good;
}
#endif

static void environment(void)
{
#if defined __x86_64__
    static float batch[2][240];
    double moments[2][6];
    if (emulated()) {
        skip(2, "valgrind has no traps");
        return;
    }
    const char *bytes = write_arrays("bytes.h5", 53, H5T_STD_U8LE, H5T_STD_U8LE, 1), *wild = path_of("wild.h5");
    const double v[3] = {1e300, -1e-310, NAN};
    hid_t file = H5Fcreate(wild, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t s = H5Screate_simple(1, (hsize_t[]){3}, NULL);
    hid_t x = H5Dcreate2(file, "x", H5T_NATIVE_DOUBLE, s, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(x, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v);
    H5Dclose(x), H5Sclose(s), H5Fclose(file);
    lks_scope_begin(ctx);
    int plain = delivered(bytes, wild, batch[0], moments[0]);
    int named = strstr(lks_error(ctx), "infinity") || strstr(lks_error(ctx), "NaN");
    lks_error_clear(ctx);
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_TOWARDZERO);
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    int guest = delivered(bytes, wild, batch[1], moments[1]);
    fedisableexcept(FE_ALL_EXCEPT);
    fesetround(FE_TONEAREST);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    ok(plain && named && guest, "B142: NaN and numbers beyond float32 in files raise no trap");
    ok(!memcmp(batch[0], batch[1], sizeof batch[0]) && !memcmp(moments[0], moments[1], 4 * sizeof(double)),
       "B142: the program's rounding changes neither batches nor statistics");
#else
    skip(2, "written for x86-64");
#endif
}

static void bad_arrays(void)
{
    lks_loader *l = NULL;
    const char *path = write_arrays("one.h5", 20, H5T_STD_U8LE, H5T_STD_U8LE, 0),
               *text_file = write_text("t.h5", 3000, 0),
               *none = write_arrays("none.h5", 0, H5T_STD_U8LE, H5T_STD_U8LE, 0), *missing = path_of("no.h5");
    ok(refused(lks_loader_hdf5(ctx, 1, &missing, "a", "b", 0, &l), LKS_ERR_NOT_FOUND, "no.h5"), "missing file");
    ok(refused(lks_loader_hdf5(ctx, 1, &text_file, "a", "b", 0, &l), LKS_ERR_CORRUPT, "not an HDF5 file"), "not HDF5");
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "pictures", "set/labels", 0, &l), LKS_ERR_NOT_FOUND,
               "it has: set/images, set/labels"),
       "missing dataset: those that exist are named");
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "set", "set/labels", 0, &l), LKS_ERR_NOT_FOUND, "set/images"),
       "a group is no dataset");
    ok(refused(lks_loader_hdf5(ctx, 1, &none, "set/images", "set/labels", 0, &l), LKS_ERR_ARGUMENT, "no samples"),
       "no samples");
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "set/images", "", 0, &l), LKS_ERR_ARGUMENT, "names"), "no name");
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), s0 = H5Screate(H5S_SCALAR);
    hsize_t nineteen = 19;
    hid_t s1 = H5Screate_simple(1, &nineteen, NULL), str = H5Tcopy(H5T_C_S1);
    H5Dclose(H5Dcreate2(f, "number", H5T_STD_U8LE, s0, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(H5Dcreate2(f, "short", H5T_STD_U8LE, s1, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(H5Dcreate2(f, "words", str, s1, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(s0), H5Sclose(s1), H5Tclose(str), H5Fclose(f);
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "number", "set/labels", 0, &l), LKS_ERR_SHAPE, "single number"),
       "wrong rank");
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "set/images", "short", 0, &l), LKS_ERR_SHAPE,
               "[20,2,3] and \"short\" [19]"),
       "numbers of samples differ: both shapes are named");
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "set/images", "words", 0, &l), LKS_ERR_DTYPE, "words"),
       "text as targets");
    const char *two[2] = {path, write_arrays("f.h5", 12, H5T_IEEE_F32LE, H5T_STD_U8LE, 0)};
    ok(refused(lks_loader_hdf5(ctx, 2, two, "set/images", "set/labels", 0, &l), LKS_ERR_SHAPE, "one shape and type"),
       "files of unlike type");
    struct stat st;
    stat(path, &st);
    truncate(path, st.st_size - 1);
    ok(refused(lks_loader_hdf5(ctx, 1, &path, "set/images", "set/labels", 0, &l), LKS_ERR_CORRUPT, ""),
       "a truncated file");
    ok(!l, "no loader after a failure");
}

/* --- reading ahead ------------------------------------------------------------------------------------------------ */

static int same_batches(lks_loader *a, lks_loader *b, int micros)
{
    int good = 1, back = 0;
    int64_t n = lks_loader_train_count(a), bytes = 1 << 16;
    char *x = malloc((size_t)bytes), *y = malloc((size_t)bytes);
    for (int64_t at = 0, total = 0; at < 3 * n; at += total)
        for (int m = 0; m < micros; m++) {
            lks_tensor *in[2], *out[2];
            int64_t rows[2];
            lks_scope_begin(ctx);
            good &= lks_loader_train(a, at, 16, m, micros, &in[0], &out[0], &rows[0], &total) == LKS_OK;
            good &= lks_loader_train(b, at, 16, m, micros, &in[1], &out[1], &rows[1], &total) == LKS_OK;
            good &= rows[0] == rows[1];
            for (int k = 0; k < 2 && good && rows[0]; k++) {
                lks_tensor **t = k ? out : in;
                int64_t size = lks_numel(t[0]) * lks_dtype_size(lks_dtype_of(t[0]));
                good &= lks_to_host(t[0], x, size) == LKS_OK && lks_to_host(t[1], y, size) == LKS_OK &&
                        !memcmp(x, y, (size_t)size);
            }
            lks_scope_end(ctx);
            if (at == 32 && m == 0 && !back++) at = 0; /* go back once: what was read ahead does not fit */
        }
    free(x), free(y);
    return good;
}

static void ahead(void)
{
    const char *paths[2] = {write_text("p.txt", 3000, 1), write_text("q.txt", 900, 2)};
    lks_loader *a, *b;
    if (lks_loader_text(ctx, 2, paths, 16, 0.1, &a) || lks_loader_text(ctx, 2, paths, 16, 0.1, &b))
        bail("%s", lks_error(ctx));
    ok(lks_loader_set_prefetch(b, 1) == LKS_OK && lks_loader_set_prefetch(b, 1) == LKS_OK, "reading ahead is on");
    ok(same_batches(a, b, 1), "text: the same batches with and without");
    ok(same_batches(a, b, 3), "in micro-batches");
    ok(lks_loader_set_prefetch(b, 0) == LKS_OK && same_batches(a, b, 1), "and off again");
    lks_loader_set_prefetch(b, 1);
    lks_tensor *x, *y;
    int64_t rows, total;
    lks_scope_begin(ctx);
    lks_loader_train(b, 0, 16, 0, 1, &x, &y, &rows, &total);
    lks_scope_end(ctx);
    lks_loader_destroy(&a);
    lks_loader_destroy(&b); /* with a read under way or done */
    const char *h5[1] = {write_arrays("h.h5", 90, H5T_STD_U8LE, H5T_STD_U8LE, 0)};
    for (int chunked = 0; chunked < 2; chunked++) {
        h5[0] = write_arrays("h.h5", 90, H5T_STD_U8LE, H5T_STD_U8LE, chunked);
        if (lks_loader_hdf5(ctx, 1, h5, "set/images", "set/labels", 0.1, &a) ||
            lks_loader_hdf5(ctx, 1, h5, "set/images", "set/labels", 0.1, &b))
            bail("%s", lks_error(ctx));
        lks_loader_set_prefetch(b, 1);
        ok(same_batches(a, b, 2), "arrays, %s", chunked ? "compressed" : "by offset");
        lks_loader_destroy(&a);
        lks_loader_destroy(&b);
    }
}

/* More files than are kept open. */
static void many_files(void)
{
    enum { N = 300 };
    char (*name)[300] = calloc(N, sizeof *name);
    const char *paths[N];
    for (int i = 0; i < N; i++) {
        char n[20];
        snprintf(n, sizeof n, "m%d.txt", i);
        paths[i] = strcpy(name[i], write_text(n, 40, (unsigned)i));
    }
    lks_loader *l;
    if (lks_loader_text(ctx, N, paths, 8, 0, &l)) bail("%s", lks_error(ctx));
    int good = lks_loader_train_count(l) == 4 * N;
    int64_t v[8];
    for (int64_t at = 0; at < 4 * N; at++) {
        lks_tensor *x, *y;
        int64_t rows, total, w = lks_loader_index(l, 0, at);
        lks_scope_begin(ctx);
        good &= lks_loader_train(l, at, 1, 0, 1, &x, &y, &rows, &total) == LKS_OK && lks_to_host(x, v, 64) == LKS_OK &&
                v[3] == text_byte(w % 4 * 8 + 3, (unsigned)(w / 4));
        lks_scope_end(ctx);
    }
    ok(good, "300 files");
    lks_loader_destroy(&l);
    free(name);
}

/* --- positions, shares, on any number of ranks -------------------------------------------------------------------- */

static int64_t sum_over_ranks(int64_t v)
{
    lks_reduce_i64(ctx, &v, 1, LKS_SUM);
    return v;
}

/* Counts how often each of n samples was seen over all ranks; sample numbers are the labels. */
static int all_once(char *seen, int64_t n)
{
    int64_t *v = calloc((size_t)n, sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = seen[i];
    lks_reduce_i64(ctx, v, (int)n, LKS_SUM);
    int good = 1;
    for (int64_t i = 0; i < n; i++) good &= v[i] == 1;
    free(v);
    memset(seen, 0, (size_t)n);
    return good;
}

static void share(const char *path)
{
    int size = lks_size(ctx), good = 1;
    int64_t n = 100;
    lks_loader *l;
    if (lks_loader_hdf5(ctx, 1, &path, "set/images", "set/labels", 0, &l)) bail("%s", lks_error(ctx));
    is_int(lks_loader_train_count(l), n, "100 samples");
    char *seen = calloc(1, 256);
    int64_t order_seen[300], at = 0, steps = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        while (at < (epoch + 1) * n) {
            lks_tensor *x, *y;
            int64_t rows, total, labels[16];
            lks_scope_begin(ctx);
            good &= lks_loader_train(l, at, 16, 0, 1, &x, &y, &rows, &total) == LKS_OK;
            good &= total == (steps % 7 == 6 ? 4 : 16) && rows >= total / size && rows <= total / size + 1;
            if (rows) good &= lks_to_host(y, labels, rows * 8) == LKS_OK;
            for (int64_t r = 0; r < rows; r++) seen[labels[r]]++;
            good &= sum_over_ranks(rows) == total;
            lks_scope_end(ctx);
            at += total;
            steps++;
        }
        good &= all_once(seen, n);
    }
    ok(good && steps == 14, "B134: 100 samples in steps of 16: each epoch holds each sample once, the last step has 4");
    /* From any position the same samples follow, whatever came before. */
    for (int64_t k = 0; k < 200; k++) order_seen[k] = lks_loader_index(l, k / n, k % n);
    lks_loader_destroy(&l);
    if (lks_loader_hdf5(ctx, 1, &path, "set/images", "set/labels", 0, &l)) bail("%s", lks_error(ctx));
    good = 1;
    for (at = 48; at < 200;) {
        lks_tensor *x, *y;
        int64_t rows, total, labels[16], first, mine;
        lks_scope_begin(ctx);
        good &= lks_loader_train(l, at, 16, 0, 1, &x, &y, &rows, &total) == LKS_OK;
        lksi_share(total, size, lks_rank(ctx), &first, &mine);
        good &= mine == rows;
        if (rows) good &= lks_to_host(y, labels, rows * 8) == LKS_OK;
        for (int64_t r = 0; r < rows; r++) good &= labels[r] == order_seen[at + first + r];
        lks_scope_end(ctx);
        at += total;
    }
    ok(good, "B134: resumed after step 3, the rest is what an undisturbed run sees");
    /* Micro-batches cover the step. */
    good = 1;
    for (int m = 0; m < 3; m++) {
        lks_tensor *x, *y;
        int64_t rows, total, labels[100];
        lks_scope_begin(ctx);
        good &= lks_loader_train(l, 0, 100, m, 3, &x, &y, &rows, &total) == LKS_OK && total == 100;
        if (rows) good &= lks_to_host(y, labels, rows * 8) == LKS_OK;
        for (int64_t r = 0; r < rows; r++) seen[labels[r]]++;
        lks_scope_end(ctx);
    }
    ok(all_once(seen, n) && good, "three micro-batches cover the step once");
    lks_loader_destroy(&l);
    free(seen);
}

static void uneven(const char *folder)
{
    char path[400];
    const char *p = path;
    int size = lks_size(ctx), rank = lks_rank(ctx);
    lks_loader *l;
    lks_tensor *x, *y;
    int64_t rows, total;
    snprintf(path, sizeof path, "%s/9.h5", folder);
    if (lks_loader_hdf5(ctx, 1, &p, "set/images", "set/labels", 0, &l)) bail("%s", lks_error(ctx));
    int good = 1, steps = 0;
    for (int64_t at = 0; at < 9; at += total, steps++) {
        lks_scope_begin(ctx);
        good &= lks_loader_train(l, at, 4, 0, 1, &x, &y, &rows, &total) == LKS_OK;
        if (total == 1) good &= rows == (rank == 0) && (rows || x == LKS_NONE);
        lks_scope_end(ctx);
    }
    ok(good && steps == 3, "B85: 9 samples in steps of 4: the last sample goes to rank 0, the others have none");
    lks_loader_destroy(&l);
    snprintf(path, sizeof path, "%s/3.h5", folder);
    if (lks_loader_hdf5(ctx, 1, &p, "set/images", "set/labels", 0, &l)) bail("%s", lks_error(ctx));
    lks_scope_begin(ctx);
    ok(lks_loader_train(l, 0, 7, 0, 1, &x, &y, &rows, &total) == LKS_OK && total == 3 && sum_over_ranks(rows) == 3 &&
           (size < 3 || rows == (rank < 3)),
       "B137: 3 samples: ranks from 3 on have none");
    lks_scope_end(ctx);
    lks_loader_destroy(&l);
    snprintf(path, sizeof path, "%s/25.h5", folder);
    if (lks_loader_hdf5(ctx, 1, &p, "set/images", "set/labels", 0.84, &l)) bail("%s", lks_error(ctx));
    char seen[25] = {0};
    int64_t count = 0;
    good = lks_loader_valid_count(l) == 21;
    for (int64_t at = 0; at < lks_loader_valid_count(l); at += 5) {
        int64_t labels[5];
        lks_scope_begin(ctx);
        good &= lks_loader_valid(l, at, 5, &x, &y, &rows) == LKS_OK;
        if (rows) good &= lks_to_host(y, labels, rows * 8) == LKS_OK;
        for (int64_t r = 0; r < rows; r++) seen[labels[r]]++;
        count += rows;
        lks_scope_end(ctx);
    }
    int64_t total_seen[25], twice = 0;
    for (int i = 0; i < 25; i++) total_seen[i] = seen[i];
    lks_reduce_i64(ctx, total_seen, 25, LKS_SUM);
    for (int i = 0; i < 25; i++) twice += total_seen[i] > 1;
    ok(good && twice == 0 && sum_over_ranks(count) == 21, "B136: 21 validation samples: each is counted once");
    lks_loader_destroy(&l);
}

/* B86: 54000 samples, global batch 128; text of one byte a window. */
static void no_end(const char *folder)
{
    char path[400];
    const char *p = path;
    snprintf(path, sizeof path, "%s/54001.txt", folder);
    lks_loader *l;
    if (lks_loader_text(ctx, 1, &p, 1, 0, &l)) bail("%s", lks_error(ctx));
    int good = lks_loader_train_count(l) == 54000, steps = 0;
    int64_t at = 0, last = 0, mine = 0;
    char *seen = calloc(1, 54000);
    for (int64_t k = 0; k < 54000; k++) good &= !seen[lks_loader_index(l, 0, k)]++;
    while (at < 54000) {
        lks_tensor *x, *y;
        int64_t rows, total;
        lks_scope_begin(ctx);
        good &= lks_loader_train(l, at, 128, 0, 1, &x, &y, &rows, &total) == LKS_OK;
        lks_scope_end(ctx);
        at += total;
        last = total;
        mine += rows;
        steps++;
    }
    ok(good && steps == 422 && last == 112 && at == 54000 && sum_over_ranks(mine) == 54000,
       "B86: 54000 samples in steps of 128: 422 steps, the last of 112, each index once");
    free(seen);
    lks_loader_destroy(&l);
}

/* Ranks that see unlike files are told. */
static void unlike(const char *folder)
{
    char path[400];
    const char *p = path;
    snprintf(path, sizeof path, "%s/%s", folder, lks_rank(ctx) ? "3.h5" : "9.h5");
    lks_loader *l = NULL;
    lks_status status = lks_loader_hdf5(ctx, 1, &p, "set/images", "set/labels", 0, &l);
    ok(status == LKS_ERR_MISMATCH && !l && strstr(lks_error(ctx), "differ between ranks"), "ranks see different files");
    lks_error_clear(ctx);
    snprintf(path, sizeof path, "%s/%s", folder, lks_rank(ctx) == 1 ? "missing.h5" : "9.h5");
    status = lks_loader_hdf5(ctx, 1, &p, "set/images", "set/labels", 0, &l);
    ok(status == (lks_rank(ctx) == 1 ? LKS_ERR_NOT_FOUND : LKS_ERR_PEER_FAILED) && !l &&
           strstr(lks_error(ctx), "missing.h5"),
       "one rank misses the file: every rank is told which");
    lks_error_clear(ctx);
}

static void make_files(void)
{
    write_arrays("100.h5", 100, H5T_STD_U8LE, H5T_STD_I64LE, 0);
    write_arrays("9.h5", 9, H5T_STD_U8LE, H5T_STD_I64LE, 0);
    write_arrays("3.h5", 3, H5T_STD_U8LE, H5T_STD_I64LE, 0);
    write_arrays("25.h5", 25, H5T_STD_U8LE, H5T_STD_I64LE, 0);
    write_text("54001.txt", 54001, 0);
}

static int agree(int mine)
{
    int64_t v = mine;
    lks_reduce_i64(ctx, &v, 1, LKS_MIN);
    return (int)v;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1;
    lks_config *config = lks_config_new();
    lks_config_set_seed(config, 7);
    lks_config_set_threads(config, 1);
    lks_config_set_log(config, log_line, NULL);
    lks_config_set_deadline(config, 30);
    if (getenv("LKS_TEST_DEVICE")) lks_config_set_device(config, getenv("LKS_TEST_DEVICE"));
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx)) bail("%s", lks_config_message(config));
    lks_config_free(config);
    if (ranks) {
        tap_.rank = lks_rank(ctx);
        tap_.agree = agree;
        /* Rank 0 makes the files; the barrier of the first reduction follows. */
        snprintf(dir, sizeof dir, "%s", argv[1]);
        if (tap_.rank == 0) make_files();
        sum_over_ranks(0);
        char path[400];
        snprintf(path, sizeof path, "%s/100.h5", argv[1]);
        share(path);
        uneven(argv[1]);
        no_end(argv[1]);
        if (lks_size(ctx) > 1) unlike(argv[1]);
    } else {
        if (!mkdtemp(dir)) bail("no folder for the test");
        order();
        text();
        bad_text();
        arrays();
        environment();
        bad_arrays();
        ahead();
        many_files();
        make_files();
        share(path_of("100.h5"));
        uneven(dir);
        no_end(dir);
    }
    ok(lks_error_code(ctx) == LKS_OK && lks_live_tensors(ctx) == 0, "no error and no tensor is left: %s",
       lks_error(ctx));
    int last = done();
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (!ranks && system(command)) diag("could not remove %s", dir);
    lks_context_destroy(&ctx);
    lks_finalize();
    return last;
}
