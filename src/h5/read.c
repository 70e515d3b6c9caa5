/* SPDX-License-Identifier: BSD-3-Clause
 *
 * read.c - opening files, describing datasets, reading boxes of them, attributes and names.
 */
#include "h5/inside.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

hid_t lksi_h5_memory_type(lks_dtype dtype)
{
    switch (dtype) {
    case LKS_F32: return H5Tcopy(H5T_NATIVE_FLOAT);
    case LKS_F64: return H5Tcopy(H5T_NATIVE_DOUBLE);
    case LKS_I64: return H5Tcopy(H5T_NATIVE_INT64);
    case LKS_I32: return H5Tcopy(H5T_NATIVE_INT32);
    case LKS_U8:
    case LKS_BOOL: return H5Tcopy(H5T_NATIVE_UINT8);
    case LKS_C64: return lksi_h5_pair(H5T_NATIVE_FLOAT);
    case LKS_C128: return lksi_h5_pair(H5T_NATIVE_DOUBLE);
    default: return lksi_h5_file_type(dtype);
    }
}

/* Where the parts of the IEEE-like floats lie: size, exponent (position, bits), mantissa bits, bias. */
static const struct layout { int size, epos, ebits, mbits, bias; } layouts[] = {
    {4, 23, 8, 23, 127}, {8, 52, 11, 52, 1023}, {2, 10, 5, 10, 15}, {2, 7, 8, 7, 127}};
static const lks_dtype layout_dtype[] = {LKS_F32, LKS_F64, LKS_F16, LKS_BF16};

/* Kind, size, order and, where it is a standard one, dtype of a file type. */
static void classify(hid_t type, lksi_h5_info *info)
{
    info->dtype = LKS_DTYPE_NONE;
    info->size = (int)H5Tget_size(type);
    H5T_order_t order = H5T_ORDER_LE;
    switch (H5Tget_class(type)) {
    case H5T_INTEGER: {
        int is_signed = H5Tget_sign(type) == H5T_SGN_2;
        info->kind = is_signed ? LKSI_H5_INT : LKSI_H5_UINT;
        order = H5Tget_order(type);
        info->plain = info->size <= 8 && H5Tget_precision(type) == 8 * (size_t)info->size && H5Tget_offset(type) == 0 &&
                      (order == H5T_ORDER_LE || order == H5T_ORDER_BE);
        if (info->plain && order == H5T_ORDER_LE && is_signed && info->size == 8) info->dtype = LKS_I64;
        if (info->plain && order == H5T_ORDER_LE && is_signed && info->size == 4) info->dtype = LKS_I32;
        if (info->plain && !is_signed && info->size == 1) info->dtype = LKS_U8;
        break;
    }
    case H5T_FLOAT: {
        info->kind = LKSI_H5_FLOAT;
        order = H5Tget_order(type);
        size_t spos, epos, esize, mpos, msize;
        if (H5Tget_fields(type, &spos, &epos, &esize, &mpos, &msize) < 0) break;
        for (int i = 0; i < 4; i++) {
            const struct layout *l = &layouts[i];
            if (info->size != l->size || (int)epos != l->epos || (int)esize != l->ebits || mpos != 0 ||
                (int)msize != l->mbits || (int)spos != 8 * l->size - 1 || (int)H5Tget_ebias(type) != l->bias ||
                H5Tget_offset(type) != 0 || (order != H5T_ORDER_LE && order != H5T_ORDER_BE))
                continue;
            info->plain = layout_dtype[i] == LKS_BF16 ? 2 : 1;
            if (order == H5T_ORDER_LE) info->dtype = layout_dtype[i];
        }
        break;
    }
    case H5T_COMPOUND: {
        info->kind = LKSI_H5_OTHER;
        if (info->size != 8 && info->size != 16) break;
        hid_t want = lksi_h5_file_type(info->size == 8 ? LKS_C64 : LKS_C128);
        if (want >= 0 && H5Tequal(type, want) > 0) info->dtype = info->size == 8 ? LKS_C64 : LKS_C128;
        if (want >= 0) H5Tclose(want);
        break;
    }
    case H5T_STRING: info->kind = H5Tis_variable_str(type) > 0 ? LKSI_H5_OTHER : LKSI_H5_TEXT; break;
    default: info->kind = LKSI_H5_OTHER;
    }
    info->big_endian = order == H5T_ORDER_BE;
}

static lks_status open_file(lksi_base *b, const char *where, const char *label, lksi_h5_image *image, lksi_h5 **out)
{
    *out = NULL;
    TRY(lksi_h5_check(b, where));
    lksi_h5 *f = lksi_alloc(b, sizeof *f);
    if (!f) return LKS_ERR_MEMORY;
    f->base = b;
    f->where = where;
    f->image = image;
    f->file = f->driver = -1;
    f->label = lksi_strdup(b, label);
    if (!f->label) {
        lksi_free(b, f);
        return LKS_ERR_MEMORY;
    }
    lksi_h5_session s;
    char why[256] = "";
    lksi_h5_enter(&s);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (fapl >= 0) {
        H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
        H5Pset_file_locking(fapl, 0, 1);
#endif
        if (!image || lksi_h5_image_access(image, fapl, &f->driver) == 0)
            f->file = H5Fopen(image ? "image" : label, H5F_ACC_RDONLY, fapl);
        if (f->file < 0) lksi_h5_reason(why, sizeof why);
        H5Pclose(fapl);
    }
    if (f->file < 0 && f->driver >= 0) H5FDunregister(f->driver);
    lksi_h5_leave(&s);
    if (f->file >= 0) {
        *out = f;
        return LKS_OK;
    }
    lksi_free(b, f->label);
    lksi_free(b, f);
    if (image && lksi_h5_image_out_of_memory(image)) return LKS_ERR_MEMORY;
    return lksi_fail(b, LKS_ERR_CORRUPT, where, "%s is not an HDF5 file, or it is damaged (HDF5: %s)", label, why);
}

lks_status lksi_h5_open(lksi_base *b, const char *where, const char *path, lksi_h5 **f)
{
    struct stat st;
    *f = NULL;
    if (stat(path, &st))
        return lksi_fail(b, errno == ENOENT || errno == ENOTDIR ? LKS_ERR_NOT_FOUND : LKS_ERR_IO, where, "%s: %s", path,
                         strerror(errno));
    if (!S_ISREG(st.st_mode)) return lksi_fail(b, LKS_ERR_IO, where, "%s is not a file", path);
    if (st.st_size == 0) return lksi_fail(b, LKS_ERR_CORRUPT, where, "%s is empty", path);
    return open_file(b, where, path, NULL, f);
}

lks_status lksi_h5_open_image(lksi_base *b, const char *where, const char *label, lksi_h5_image *image, lksi_h5 **f)
{
    return open_file(b, where, label, image, f);
}

lks_status lksi_h5_close(lksi_h5 *f)
{
    if (!f) return LKS_OK;
    lksi_h5_session s;
    lksi_h5_enter(&s);
    ssize_t open = H5Fget_obj_count(f->file, H5F_OBJ_ALL | H5F_OBJ_LOCAL);
    herr_t bad = H5Fclose(f->file);
    if (f->driver >= 0) H5FDunregister(f->driver);
    lksi_h5_leave(&s);
    lks_status status = LKS_OK;
    if (bad < 0) status = lksi_fail(f->base, LKS_ERR_IO, f->where, "%s: HDF5 could not close the file", f->label);
    else if (open != 1)
        status = lksi_fail(f->base, LKS_ERR_INTERNAL, f->where, "%s: %d HDF5 objects were open at close", f->label,
                           (int)open);
    if (f->owns_image) lksi_h5_image_free(f->image);
    lksi_base *b = f->base;
    lksi_free(b, f->label);
    lksi_free(b, f);
    return status;
}

/* 1 if every link on the way exists and leads to an object. */
static int exists(hid_t file, const char *path)
{
    char part[4096];
    size_t n = strlen(path);
    if (n >= sizeof part) return 0;
    if (!strcmp(path, "/")) return 1;
    for (size_t i = path[0] == '/'; i <= n; i++) {
        if (path[i] != '/' && path[i]) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (H5Lexists(file, part, H5P_DEFAULT) <= 0) return 0;
    }
    return H5Oexists_by_name(file, path, H5P_DEFAULT) > 0;
}

int lksi_h5_has(lksi_h5 *f, const char *path)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    int yes = exists(f->file, path);
    lksi_h5_leave(&s);
    return yes;
}

/* Appends the paths of the datasets under a group to a text. */
typedef struct survey { char *text; size_t used, room; char path[1024]; int depth, found; } survey;

static herr_t look(hid_t group, const char *name, const H5L_info_t *info, void *user)
{
    (void)info;
    survey *v = user;
    size_t before = strlen(v->path);
    if (before + strlen(name) + 2 >= sizeof v->path) return 0;
    hid_t o = H5Oopen(group, name, H5P_DEFAULT);
    if (o < 0) return 0;
    strcat(strcat(v->path, "/"), name);
    H5I_type_t kind = H5Iget_type(o);
    if (kind == H5I_GROUP && v->depth < 6) {
        v->depth++;
        H5Literate(o, H5_INDEX_NAME, H5_ITER_INC, NULL, look, v);
        v->depth--;
    } else if (kind == H5I_DATASET) {
        int n = snprintf(v->text + v->used, v->room - v->used, "%s%s", v->found ? ", " : "", v->path + 1);
        if (n > 0 && v->used + (size_t)n < v->room) v->used += (size_t)n;
        else v->text[v->used] = 0;
        v->found++;
    }
    H5Oclose(o);
    v->path[before] = 0;
    return v->found > 30;
}

static lks_status no_such(lksi_h5 *f, const char *path)
{
    char text[1024] = "";
    survey v = {text, 0, sizeof text, "", 0, 0};
    lksi_h5_session s;
    lksi_h5_enter(&s);
    H5Literate(f->file, H5_INDEX_NAME, H5_ITER_INC, NULL, look, &v);
    lksi_h5_leave(&s);
    if (!v.found) return lksi_fail(f->base, LKS_ERR_NOT_FOUND, f->where, "%s holds no datasets", f->label);
    return lksi_fail(f->base, LKS_ERR_NOT_FOUND, f->where, "%s has no dataset \"%s\"; it has: %s", f->label, path,
                     text);
}

/* An external link leads to a dataset of another file: its offset means nothing in this one. */
static int in_this_file(lksi_h5 *f, hid_t dataset)
{
    char here[4096], there[4096];
    hid_t file = H5Iget_file_id(dataset);
    if (file < 0) return 0;
    ssize_t a = H5Fget_name(f->file, here, sizeof here), b = H5Fget_name(file, there, sizeof there);
    H5Fclose(file);
    return a >= 0 && a == b && a < (ssize_t)sizeof here && !strcmp(here, there);
}

lks_status lksi_h5_describe(lksi_h5 *f, const char *path, lksi_h5_info *info)
{
    memset(info, 0, sizeof *info);
    info->offset = -1;
    lksi_h5_session s;
    lksi_h5_enter(&s);
    hid_t d = exists(f->file, path) ? H5Dopen2(f->file, path, H5P_DEFAULT) : -1, type = -1, space = -1, dcpl = -1;
    int found = d >= 0, ndim = -1, known = 0;
    hsize_t dims[H5S_MAX_RANK];
    if (found) {
        type = H5Dget_type(d);
        space = H5Dget_space(d);
        dcpl = H5Dget_create_plist(d);
    }
    if (type >= 0 && space >= 0 && dcpl >= 0) {
        classify(type, info);
        if (H5Sget_simple_extent_type(space) != H5S_NULL) ndim = H5Sget_simple_extent_dims(space, dims, NULL);
        if (H5Pget_layout(dcpl) == H5D_CONTIGUOUS && H5Pget_external_count(dcpl) == 0) {
            haddr_t at = H5Dget_offset(d);
            if (at != HADDR_UNDEF && at <= INT64_MAX && in_this_file(f, d)) info->offset = (int64_t)at;
        }
        known = 1;
    }
    if (dcpl >= 0) H5Pclose(dcpl);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (d >= 0) H5Dclose(d);
    lksi_h5_leave(&s);
    if (!found) return no_such(f, path);
    if (!known) return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s cannot be read", f->label, path);
    if (ndim < 0) return lksi_fail(f->base, LKS_ERR_SHAPE, f->where, "%s: dataset %s is empty", f->label, path);
    if (ndim > LKS_MAX_DIMS)
        return lksi_fail(f->base, LKS_ERR_SHAPE, f->where, "%s: dataset %s has %d dimensions, at most %d are supported",
                         f->label, path, ndim, LKS_MAX_DIMS);
    info->ndim = ndim;
    info->numel = 1;
    int64_t bytes, nonzero = 1;
    for (int i = 0; i < ndim; i++) {
        if (dims[i] > INT64_MAX || (dims[i] && !lksi_mul_fits(nonzero, (int64_t)dims[i], &nonzero)))
            return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s has an impossible shape", f->label,
                             path);
        info->shape[i] = (int64_t)dims[i];
        info->numel = dims[i] ? info->numel : 0;
    }
    if (info->numel) info->numel = nonzero;
    if (info->size <= 0 || !lksi_mul_fits(nonzero, info->size, &bytes))
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s has an impossible size", f->label, path);
    return LKS_OK;
}

lks_status lksi_h5_read_box(lksi_h5 *f, const char *path, const int64_t *start, const int64_t *count, lks_dtype dtype,
                            void *out)
{
    return lksi_h5_read_slab(f, path, start, NULL, count, dtype, out);
}

lks_status lksi_h5_read_slab(lksi_h5 *f, const char *path, const int64_t *start, const int64_t *step,
                             const int64_t *count, lks_dtype dtype, void *out)
{
    lksi_h5_session s;
    char why[256] = "";
    lksi_h5_enter(&s);
    hid_t d = exists(f->file, path) ? H5Dopen2(f->file, path, H5P_DEFAULT) : -1, space = -1, mem = -1, type = -1;
    int found = d >= 0;
    herr_t ok = -1;
    if (found) space = H5Dget_space(d);
    int ndim = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    if (ndim >= 0 && ndim <= LKS_MAX_DIMS) {
        hsize_t first[LKS_MAX_DIMS], size[LKS_MAX_DIMS], stride[LKS_MAX_DIMS];
        for (int i = 0; i < ndim; i++)
            first[i] = (hsize_t)start[i], size[i] = (hsize_t)count[i], stride[i] = step ? (hsize_t)step[i] : 1;
        mem = ndim ? H5Screate_simple(ndim, size, NULL) : H5Screate(H5S_SCALAR);
        type = lksi_h5_memory_type(dtype);
        if (mem >= 0 && type >= 0 &&
            (!ndim || H5Sselect_hyperslab(space, H5S_SELECT_SET, first, stride, size, NULL) >= 0))
            ok = H5Dread(d, type, mem, space, H5P_DEFAULT, out);
        if (ok < 0) lksi_h5_reason(why, sizeof why);
    }
    if (type >= 0) H5Tclose(type);
    if (mem >= 0) H5Sclose(mem);
    if (space >= 0) H5Sclose(space);
    if (d >= 0) H5Dclose(d);
    lksi_h5_leave(&s);
    if (!found) return no_such(f, path);
    if (ok < 0)
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s cannot be read as %s (HDF5: %s)", f->label,
                         path, lks_dtype_name(dtype), why);
    return LKS_OK;
}

lks_status lksi_h5_read_rows(lksi_h5 *f, const char *path, int64_t first, int64_t count, lks_dtype dtype, void *out)
{
    lksi_h5_info info;
    TRY(lksi_h5_describe(f, path, &info));
    int64_t start[LKS_MAX_DIMS] = {0};
    if (info.ndim) {
        if (first < 0 || count < 0 || first > info.shape[0] - count)
            return lksi_fail(f->base, LKS_ERR_ARGUMENT, f->where, "%s: dataset %s has no rows [%lld, %lld)", f->label,
                             path, (long long)first, (long long)(first + count));
        start[0] = first;
        info.shape[0] = count;
    }
    for (int i = 0; i < info.ndim; i++)
        if (info.shape[i] == 0) return LKS_OK;
    return lksi_h5_read_box(f, path, start, info.shape, dtype, out);
}

lks_status lksi_h5_read_text(lksi_h5 *f, const char *path, char **text)
{
    lksi_h5_info info;
    *text = NULL;
    TRY(lksi_h5_describe(f, path, &info));
    if (info.kind != LKSI_H5_TEXT || info.numel != 1 || info.size > 1 << 26)
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s is not a text", f->label, path);
    char *t = lksi_alloc(f->base, (int64_t)info.size + 1);
    if (!t) return LKS_ERR_MEMORY;
    lksi_h5_session s;
    lksi_h5_enter(&s);
    hid_t d = H5Dopen2(f->file, path, H5P_DEFAULT), type = d >= 0 ? H5Dget_type(d) : -1;
    herr_t ok = type >= 0 ? H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, t) : -1;
    if (type >= 0) H5Tclose(type);
    if (d >= 0) H5Dclose(d);
    lksi_h5_leave(&s);
    if (ok < 0) {
        lksi_free(f->base, t);
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: dataset %s cannot be read", f->label, path);
    }
    *text = t;
    return LKS_OK;
}

/* Names are collected first, so that fn may use the file. */
typedef struct names { lksi_base *b; char *text; int64_t used, room; int failed; } names;

static herr_t collect(hid_t group, const char *name, const H5L_info_t *info, void *user)
{
    (void)group, (void)info;
    names *v = user;
    int64_t n = (int64_t)strlen(name) + 1;
    if (v->used + n > v->room) {
        int64_t room = 2 * v->room + n + 1024;
        char *t = lksi_realloc(v->b, v->text, v->room, room);
        if (!t) {
            v->failed = 1;
            return -1;
        }
        v->text = t;
        v->room = room;
    }
    memcpy(v->text + v->used, name, (size_t)n);
    v->used += n;
    return 0;
}

lks_status lksi_h5_list(lksi_h5 *f, const char *group, lksi_h5_name_fn fn, void *user)
{
    names v = {f->base, NULL, 0, 0, 0};
    lksi_h5_session s;
    lksi_h5_enter(&s);
    hid_t g = exists(f->file, group) ? H5Gopen2(f->file, group, H5P_DEFAULT) : -1;
    herr_t ok = g >= 0 ? H5Literate(g, H5_INDEX_NAME, H5_ITER_INC, NULL, collect, &v) : -1;
    if (g >= 0) H5Gclose(g);
    lksi_h5_leave(&s);
    lks_status status = LKS_OK;
    if (v.failed) status = LKS_ERR_MEMORY;
    else if (ok < 0)
        status = lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: group %s cannot be read", f->label, group);
    for (int64_t i = 0; status == LKS_OK && i < v.used; i += (int64_t)strlen(v.text + i) + 1)
        status = fn(user, v.text + i);
    lksi_free(f->base, v.text);
    return status;
}

/* Reads a scalar attribute of the class asked for. text: bytes >= 1. */
static lks_status get(lksi_h5 *f, const char *path, const char *name, H5T_class_t want, hid_t (*memory)(void),
                      void *out, int bytes)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    int found = exists(f->file, path) && H5Aexists_by_name(f->file, path, name, H5P_DEFAULT) > 0;
    hid_t a = found ? H5Aopen_by_name(f->file, path, name, H5P_DEFAULT, H5P_DEFAULT) : -1, type = -1, space = -1;
    herr_t ok = -1;
    if (a >= 0) {
        type = H5Aget_type(a);
        space = H5Aget_space(a);
    }
    if (type >= 0 && space >= 0 && H5Tget_class(type) == want && H5Sget_simple_extent_npoints(space) == 1) {
        if (want != H5T_STRING) {
            hid_t mem = memory();
            ok = mem >= 0 ? H5Aread(a, mem, out) : -1;
            if (mem >= 0) H5Tclose(mem);
        } else if (H5Tis_variable_str(type) == 0 && H5Tget_size(type) < (size_t)bytes) {
            memset(out, 0, (size_t)bytes);
            ok = H5Aread(a, type, out);
        }
    }
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (a >= 0) H5Aclose(a);
    lksi_h5_leave(&s);
    if (!found)
        return lksi_fail(f->base, LKS_ERR_NOT_FOUND, f->where, "%s: %s has no attribute \"%s\"", f->label, path, name);
    if (ok < 0)
        return lksi_fail(f->base, LKS_ERR_CORRUPT, f->where, "%s: attribute \"%s\" of %s cannot be read", f->label,
                         name, path);
    return LKS_OK;
}

static hid_t memory_i64(void) { return lksi_h5_memory_type(LKS_I64); }
static hid_t memory_f64(void) { return lksi_h5_memory_type(LKS_F64); }

lks_status lksi_h5_get_i64(lksi_h5 *f, const char *path, const char *name, int64_t *value)
{
    return get(f, path, name, H5T_INTEGER, memory_i64, value, 0);
}

lks_status lksi_h5_get_f64(lksi_h5 *f, const char *path, const char *name, double *value)
{
    return get(f, path, name, H5T_FLOAT, memory_f64, value, 0);
}

lks_status lksi_h5_get_text(lksi_h5 *f, const char *path, const char *name, char *text, int bytes)
{
    return get(f, path, name, H5T_STRING, NULL, text, bytes);
}
