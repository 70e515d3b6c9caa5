/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_h5.c - the door to HDF5: what is written is read back, files of equal content are equal bytes, the host's error
 * handling is left alone, no identifier is left open, another HDF5 version is said and does not abort.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "h5/h5.h"
#include "tap.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>

static lksi_base base;
static char dir[] = "/tmp/lks_h5_XXXXXX";
static unsigned fake_minor;

/* Stands before the library's own function: lets a test play a program that runs with another HDF5. */
herr_t H5get_libversion(unsigned *major, unsigned *minor, unsigned *release)
{
    static herr_t (*real)(unsigned *, unsigned *, unsigned *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "H5get_libversion");
    herr_t r = real(major, minor, release);
    if (fake_minor) *minor = fake_minor;
    return r;
}

static int refused(lks_status got, lks_status want, const char *part)
{
    int good = got == want && base.code == want && strstr(base.text, part);
    if (!good) diag("got %s (%s)", lks_status_name(got), base.text);
    base.code = LKS_OK;
    base.text[0] = 0;
    return good;
}

static char *path_of(const char *name)
{
    static char path[4][200];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

/* Everything an image holds, and the bytes of big datasets, as a file. */
static void store(const lksi_h5_image *image, int64_t bytes, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *all = calloc(1, (size_t)bytes);
    lksi_h5_image_get(image, 0, all, bytes);
    if (write(fd, all, (size_t)bytes) != bytes) diag("short write");
    free(all);
    close(fd);
}

static const lks_dtype kinds[] = {LKS_F32, LKS_F64, LKS_F16, LKS_BF16, LKS_I64, LKS_I32, LKS_U8, LKS_BOOL};

static int make_file(const char *path, int64_t offset[8])
{
    lksi_h5 *f;
    lksi_h5_image *image;
    int64_t bytes, shape[2] = {300, 70}, small[1] = {3}, none[2] = {0, 5}, at;
    if (lksi_h5_create(&base, "test", 4096, 8192, &f)) return 0;
    int good = lksi_h5_make_group(f, "/model") == LKS_OK;
    for (int i = 0; i < 8; i++) {
        char name[40];
        snprintf(name, sizeof name, "/model/%s", lks_dtype_name(kinds[i]));
        good &= lksi_h5_make_dataset(f, name, kinds[i], 2, shape, &offset[i]) == LKS_OK;
        good &= lksi_h5_set_i64(f, name, "index", i) == LKS_OK;
        good &= lksi_h5_set_text(f, name, "xxh64", "0000000000000000") == LKS_OK;
    }
    good &= lksi_h5_make_dataset(f, "/model/scalar", LKS_F64, 0, NULL, &at) == LKS_OK && at > 0;
    good &= lksi_h5_make_dataset(f, "/model/none", LKS_F32, 2, none, &at) == LKS_OK && at == -1;
    good &= lksi_h5_make_dataset(f, "/small", LKS_I64, 1, small, &at) == LKS_OK;
    good &= lksi_h5_write(f, "/small", LKS_I64, (int64_t[]){1, -2, INT64_MAX}) == LKS_OK;
    good &= lksi_h5_write(f, "/model/scalar", LKS_F64, &(double){0.1}) == LKS_OK;
    good &=
        lksi_h5_put_text(f, "/words", "gr\xc3\xbc\xc3\x9f") == LKS_OK && lksi_h5_put_text(f, "/empty", "") == LKS_OK;
    good &= lksi_h5_set_f64(f, "/", "tenth", 0.1) == LKS_OK;
    for (int i = 0; i < 20; i++) { /* far more than fit in a compact header */
        char name[20];
        snprintf(name, sizeof name, "n%d", i);
        good &= lksi_h5_set_i64(f, "/model", name, i) == LKS_OK;
    }
    good &= lksi_h5_set_text(f, "/model/bool", "xxh64", "0123456789abcdef") == LKS_OK;
    good &= lksi_h5_finish(f, &image, &bytes) == LKS_OK;
    if (!good && !base.fail_at) diag("%s", base.text);
    if (image) store(image, bytes, path);
    lksi_h5_image_free(image);
    return good;
}

static void fill(const char *path, const int64_t offset[8])
{
    int fd = open(path, O_WRONLY);
    for (int k = 0; k < 8; k++) {
        unsigned char data[300 * 70 * 8];
        int size = lks_dtype_size(kinds[k]);
        for (int i = 0; i < 300 * 70; i++) {
            int v = i % 120;
            if (kinds[k] == LKS_F32) ((float *)data)[i] = (float)v;
            if (kinds[k] == LKS_F64) ((double *)data)[i] = v;
            if (kinds[k] == LKS_BF16) { /* exact: below 128 */
                float f = (float)v;
                memcpy(data + 2 * i, (char *)&f + 2, 2);
            }
            if (kinds[k] == LKS_F16) { /* 1.m 2^e */
                int e = v ? 31 - __builtin_clz((unsigned)v) : 0;
                ((uint16_t *)data)[i] = (uint16_t)(v ? (e + 15) << 10 | (v << (10 - e) & 0x3ff) : 0);
            }
            if (kinds[k] == LKS_I64) ((int64_t *)data)[i] = v;
            if (kinds[k] == LKS_I32) ((int32_t *)data)[i] = v;
            if (size == 1) data[i] = (unsigned char)v;
        }
        if (pwrite(fd, data, (size_t)(300 * 70 * size), offset[k]) < 0) diag("pwrite failed");
    }
    close(fd);
}

static lks_status count_name(void *user, const char *name)
{
    (void)name;
    ++*(int *)user;
    return LKS_OK;
}

static int same_files(const char *a, const char *b)
{
    char command[500];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    return system(command) == 0;
}

static void written_is_read(void)
{
    int64_t offset[8], other[8];
    char *path = path_of("a.h5"), *again = path_of("b.h5");
    ok(make_file(path, offset), "a file is made in memory");
    fill(path, offset);
    int aligned = 1;
    for (int i = 0; i < 8; i++) aligned &= offset[i] % 4096 == 0;
    ok(aligned, "datasets begin on 4 KiB");
    lksi_h5 *f;
    if (lksi_h5_open(&base, "test", path, &f)) bail("%s", base.text);
    for (int k = 0; k < 8; k++) {
        char name[40];
        snprintf(name, sizeof name, "/model/%s", lks_dtype_name(kinds[k]));
        lksi_h5_info info;
        ok(lksi_h5_describe(f, name, &info) == LKS_OK && info.offset == offset[k] && info.ndim == 2 &&
               info.shape[0] == 300 && info.shape[1] == 70 &&
               info.dtype == (kinds[k] == LKS_BOOL ? LKS_U8 : kinds[k]) && info.plain,
           "%s is described, at its offset with the user block counted", name);
        float x[2 * 70], y[2 * 70];
        int good = lksi_h5_read_rows(f, name, 7, 2, LKS_F32, x) == LKS_OK;
        for (int i = 0; i < 140; i++) good &= x[i] == (float)((7 * 70 + i) % 120);
        unsigned char raw[140 * 8];
        int fd = open(path, O_RDONLY);
        if (pread(fd, raw, (size_t)(140 * info.size), info.offset + 7 * 70 * info.size) < 0) diag("pread failed");
        close(fd);
        lksi_h5_decode(&info, raw, 140, LKS_F32, y);
        ok(good && !memcmp(x, y, sizeof x), "%s reads alike through HDF5 and by offset", name);
    }
    double d = 0;
    int64_t three[3], n = 0;
    char *text = NULL, hash[17];
    ok(lksi_h5_read_rows(f, "/model/scalar", 0, 1, LKS_F64, &d) == LKS_OK && d == 0.1, "a scalar");
    ok(lksi_h5_read_rows(f, "/small", 0, 3, LKS_I64, three) == LKS_OK && three[2] == INT64_MAX, "a small dataset");
    ok(lksi_h5_read_text(f, "/words", &text) == LKS_OK && !strcmp(text, "gr\xc3\xbc\xc3\x9f"), "UTF-8 text");
    lksi_free(&base, text);
    ok(lksi_h5_read_text(f, "/empty", &text) == LKS_OK && !*text, "empty text");
    lksi_free(&base, text);
    ok(lksi_h5_get_f64(f, "/", "tenth", &d) == LKS_OK && d == 0.1, "a float64 attribute");
    ok(lksi_h5_get_i64(f, "/model", "n19", &n) == LKS_OK && n == 19, "the twentieth attribute");
    ok(lksi_h5_get_text(f, "/model/bool", "xxh64", hash, sizeof hash) == LKS_OK && !strcmp(hash, "0123456789abcdef"),
       "a text attribute, overwritten");
    int links = 0;
    ok(lksi_h5_list(f, "/model", count_name, &links) == LKS_OK && links == 10, "names of a group");
    ok(lksi_h5_has(f, "/model/bool") && !lksi_h5_has(f, "/model/nothing/x"), "has");
    lksi_h5_info info;
    ok(refused(lksi_h5_describe(f, "images", &info), LKS_ERR_NOT_FOUND, "model/bfloat16"),
       "a missing dataset: the error names those that exist");
    ok(refused(lksi_h5_get_i64(f, "/", "tenth", &n), LKS_ERR_CORRUPT, "tenth"), "an attribute of another type");
    ok(refused(lksi_h5_read_rows(f, "/small", 2, 2, LKS_I64, three), LKS_ERR_ARGUMENT, "[2, 4)"), "rows past the end");
    ok(refused(lksi_h5_read_text(f, "/small", &text), LKS_ERR_CORRUPT, "not a text"), "text of a number");
    ok(lksi_h5_close(f) == LKS_OK, "one object is open at close: the file");
    setenv("MALLOC_PERTURB_", "85", 1);
    ok(make_file(again, other), "made once more");
    fill(again, other);
    ok(same_files(path, again), "equal content is equal bytes");
}

static int host_calls;
static herr_t host_handler(hid_t stack, void *user)
{
    (void)stack;
    host_calls += user == &host_calls;
    return 0;
}
#ifndef H5_NO_DEPRECATED_SYMBOLS
static herr_t old_handler(void *user)
{
    host_calls += user == &host_calls;
    return 0;
}
#endif

static void host_is_left_alone(void)
{
    lksi_h5 *f;
    H5Eset_auto2(H5E_DEFAULT, host_handler, &host_calls);
    hid_t mine = H5Screate(H5S_SCALAR);
    H5Dopen2(mine, "nothing", H5P_DEFAULT); /* leaves an error on the stack */
    ssize_t errors = H5Eget_num(H5E_DEFAULT);
    int before = host_calls;
    ok(refused(lksi_h5_open(&base, "test", path_of("missing.h5"), &f), LKS_ERR_NOT_FOUND, "missing.h5"),
       "no such file");
    int fd = open(path_of("text.h5"), O_WRONLY | O_CREAT, 0600);
    if (write(fd, "not HDF5", 8) != 8) diag("short write");
    close(fd);
    ok(refused(lksi_h5_open(&base, "test", path_of("text.h5"), &f), LKS_ERR_CORRUPT, "not an HDF5 file"), "not HDF5");
    close(open(path_of("none.h5"), O_WRONLY | O_CREAT, 0600));
    ok(refused(lksi_h5_open(&base, "test", path_of("none.h5"), &f), LKS_ERR_CORRUPT, "is empty"), "an empty file");
    ok(refused(lksi_h5_open(&base, "test", dir, &f), LKS_ERR_IO, "not a file"), "a folder");
    ok(host_calls == before && errors > 0 && H5Eget_num(H5E_DEFAULT) == errors,
       "our failures are neither printed nor left on the host's error stack");
    H5E_auto2_t fn;
    void *data;
    H5Eget_auto2(H5E_DEFAULT, &fn, &data);
    ok(fn == host_handler && data == &host_calls, "the host's error handler is in force again");
#ifndef H5_NO_DEPRECATED_SYMBOLS
    H5Eset_auto1(old_handler, &host_calls);
    refused(lksi_h5_open(&base, "test", path_of("text.h5"), &f), LKS_ERR_CORRUPT, "not an HDF5 file");
    unsigned new_style = 1;
    H5E_auto1_t old = NULL;
    H5Eauto_is_v2(H5E_DEFAULT, &new_style);
    H5Eget_auto1(&old, &data);
    ok(!new_style && old == old_handler && host_calls == before, "also one of the old kind");
#else
    skip(1, "this HDF5 has no old calls");
#endif
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5Sclose(mine);
}

/* Identifiers of the kinds we use that were given out between two marks and are still valid. */
enum { MARKS = 4 };
static void mark(hid_t m[MARKS])
{
    m[0] = H5Screate(H5S_SCALAR), H5Sclose(m[0]);
    m[1] = H5Tcopy(H5T_NATIVE_INT), H5Tclose(m[1]);
    m[2] = H5Pcreate(H5P_DATASET_CREATE), H5Pclose(m[2]);
    m[3] = H5Eget_current_stack(), H5Eclose_stack(m[3]);
}

static int left_open(const hid_t from[MARKS], const hid_t to[MARKS])
{
    int n = 0;
    for (int i = 0; i < MARKS; i++)
        for (hid_t id = from[i]; id < to[i]; id++) n += H5Iis_valid(id) > 0;
    return n;
}

/* B127 */
static void nothing_is_left_open(void)
{
    int64_t offset[8];
    char *path = path_of("c.h5");
    hid_t from[MARKS], to[MARKS];
    int good = 1;
    for (int i = 0; i < 60; i++) {
        lksi_h5 *f;
        lksi_h5_info info;
        if (i == 1) mark(from);
        good &= make_file(path, offset);
        good &= lksi_h5_open(&base, "test", path, &f) == LKS_OK;
        good &= lksi_h5_describe(f, "/model/bool", &info) == LKS_OK;
        good &= refused(lksi_h5_describe(f, "/model/other", &info), LKS_ERR_NOT_FOUND, "other");
        good &= lksi_h5_close(f) == LKS_OK;
    }
    mark(to);
    ok(good && to[0] > from[0] + 60, "60 rounds");
    is_int(left_open(from, to), 0, "B127: no HDF5 identifier is left of them");
    is_int(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0, "no file or object is open");
    is_int(base.live_blocks, 0, "no memory is left");
}

/* B128 */
static void another_version(void)
{
    const unsigned a[3] = {1, 10, 8}, older[3] = {1, 10, 7}, newer[3] = {1, 10, 11}, next[3] = {1, 12, 0};
    lksi_h5 *f;
    ok(lksi_h5_check(&base, "test") == LKS_OK, "the version that runs is the one built with");
    ok(lksi_h5_compare(&base, "test", a, 1, newer, 1) == LKS_OK, "a newer release of the same minor version serves");
    ok(refused(lksi_h5_compare(&base, "test", a, 1, older, 1), LKS_ERR_UNSUPPORTED, "1.10.7"), "an older one does not");
    ok(refused(lksi_h5_compare(&base, "test", a, 1, next, -1), LKS_ERR_UNSUPPORTED, "1.12.0"),
       "nor another minor version");
    ok(refused(lksi_h5_compare(&base, "test", a, 1, a, 0), LKS_ERR_UNSUPPORTED, "runs with serial"),
       "serial and parallel differ");
    fake_minor = 99;
    lks_status opened = lksi_h5_open(&base, "test", path_of("a.h5"), &f);
    int text = strstr(base.text, ".99.") && strstr(base.text, "built with");
    ok(text && refused(opened, LKS_ERR_UNSUPPORTED, "but runs with"), "B128: an error naming both, no abort");
    ok(refused(lksi_h5_create(&base, "test", 0, 2048, &f), LKS_ERR_UNSUPPORTED, ".99."), "the same on writing");
    fake_minor = 0;
}

static void memory_fails(void)
{
    int64_t offset[8];
    int done_ = 0, clean = 1;
    for (int n = 1; n < 400 && !done_; n++) {
        base.fail_at = n;
        done_ = make_file(path_of("d.h5"), offset) && base.code == LKS_OK;
        base.fail_at = 0;
        clean &= base.live_blocks == 0;
        base.code = LKS_OK;
    }
    ok(done_ && clean, "the n-th allocation fails: an error, nothing is leaked");
}

/* Files of other programs: big-endian, chunked, narrow integers. */
static void foreign_files(void)
{
    char *path = path_of("foreign.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t dims[3] = {4, 2, 3}, chunk[3] = {1, 2, 3}, wide[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    hid_t space = H5Screate_simple(3, dims, NULL), nine = H5Screate_simple(9, wide, NULL);
    hid_t types[] = {H5T_IEEE_F32BE, H5T_IEEE_F64BE, H5T_STD_I16BE, H5T_STD_U16LE, H5T_STD_I8LE, H5T_STD_U32BE};
    double x[24];
    for (int i = 0; i < 24; i++) x[i] = i;
    H5Pset_chunk(dcpl, 3, chunk);
    H5Pset_deflate(dcpl, 1);
    for (int i = 0; i < 7; i++) {
        char name[8] = {(char)('a' + i), 0};
        hid_t d = H5Dcreate2(file, name, i < 6 ? types[i] : H5T_IEEE_F32LE, space, H5P_DEFAULT,
                             i < 6 ? H5P_DEFAULT : dcpl, H5P_DEFAULT);
        H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, x);
        H5Dclose(d);
    }
    H5Dclose(H5Dcreate2(file, "nine", H5T_IEEE_F32LE, nine, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(H5Dcreate2(file, "late", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Pclose(dcpl), H5Sclose(space), H5Sclose(nine), H5Fclose(file);
    lksi_h5 *f;
    if (lksi_h5_open(&base, "test", path, &f)) bail("%s", base.text);
    lksi_h5_info info;
    int fd = open(path, O_RDONLY);
    for (int i = 0; i < 6; i++) {
        char name[8] = {(char)('a' + i), 0};
        unsigned char raw[24 * 8];
        double y[24];
        int64_t z[24];
        int good = lksi_h5_describe(f, name, &info) == LKS_OK && info.plain && info.offset > 0 &&
                   pread(fd, raw, (size_t)(24 * info.size), info.offset) == 24 * info.size;
        if (good) lksi_h5_decode(&info, raw, 24, LKS_F64, y);
        ok(good && !memcmp(x, y, sizeof x), "type %s by offset", name);
        if (info.kind == LKSI_H5_FLOAT) continue;
        lksi_h5_decode(&info, raw, 24, LKS_I64, z);
        ok(z[23] == 23, "and as int64");
    }
    close(fd);
    double box[2];
    ok(lksi_h5_describe(f, "g", &info) == LKS_OK && info.offset == -1, "a compressed dataset has no offset");
    ok(lksi_h5_read_box(f, "g", (int64_t[]){2, 1, 0}, (int64_t[]){1, 1, 2}, LKS_F64, box) == LKS_OK && box[0] == 15 &&
           box[1] == 16,
       "a box of it is read");
    ok(lksi_h5_describe(f, "late", &info) == LKS_OK && info.offset == -1, "nor has one that was never written");
    ok(refused(lksi_h5_describe(f, "nine", &info), LKS_ERR_SHAPE, "9 dimensions"), "nine dimensions are refused");
    ok(lksi_h5_close(f) == LKS_OK, "closed");
}

int main(void)
{
    if (!mkdtemp(dir)) bail("no folder for the test");
    written_is_read();
    host_is_left_alone();
    nothing_is_left_open();
    another_version();
    memory_fails();
    foreign_files();
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command)) diag("could not remove %s", dir);
    return done();
}
