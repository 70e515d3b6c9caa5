/* SPDX-License-Identifier: BSD-3-Clause
 *
 * write.c - making a file in memory: groups, datasets that get a place but no bytes, small datasets, attributes. Object
 * times are off and everything is fixed-length, so that two files of the same content are the same bytes.
 */
#include "h5/inside.h"
#include <stdlib.h>
#include <string.h>

hid_t lksi_h5_file_type(lks_dtype dtype)
{
    hid_t type;
    switch (dtype) {
    case LKS_F32: return H5Tcopy(H5T_IEEE_F32LE);
    case LKS_F64: return H5Tcopy(H5T_IEEE_F64LE);
    case LKS_I64: return H5Tcopy(H5T_STD_I64LE);
    case LKS_I32: return H5Tcopy(H5T_STD_I32LE);
    case LKS_U8:
    case LKS_BOOL: return H5Tcopy(H5T_STD_U8LE);
    case LKS_F16:
    case LKS_BF16: {
        int f16 = dtype == LKS_F16;
        type = H5Tcopy(H5T_IEEE_F32LE);
        if (type < 0) return type;
        if (H5Tset_fields(type, 15, f16 ? 10 : 7, f16 ? 5 : 8, 0, f16 ? 10 : 7) < 0 || H5Tset_precision(type, 16) < 0 ||
            H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, f16 ? 15 : 127) < 0) {
            H5Tclose(type);
            return -1;
        }
        return type;
    }
    case LKS_C64: return lksi_h5_pair(H5T_IEEE_F32LE);
    case LKS_C128: return lksi_h5_pair(H5T_IEEE_F64LE);
    default: return -1;
    }
}

hid_t lksi_h5_pair(hid_t real)
{
    size_t size = H5Tget_size(real);
    hid_t type = size ? H5Tcreate(H5T_COMPOUND, 2 * size) : -1;
    if (type >= 0 && (H5Tinsert(type, "r", 0, real) < 0 || H5Tinsert(type, "i", size, real) < 0)) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

static hid_t text_type(size_t bytes)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type < 0) return type;
    if (H5Tset_size(type, bytes ? bytes : 1) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

static lks_status broken(lksi_h5 *f, const char *what, const char *path)
{
    char why[256];
    lksi_h5_reason(why, sizeof why);
    if (lksi_h5_image_out_of_memory(f->image)) return LKS_ERR_MEMORY;
    return lksi_fail(f->base, LKS_ERR_INTERNAL, f->where, "HDF5 could not make %s %s (%s)", what, path, why);
}

lks_status lksi_h5_create(lksi_base *b, const char *where, int64_t userblock, int64_t metadata_block, lksi_h5 **out)
{
    *out = NULL;
    TRY(lksi_h5_check(b, where));
    lksi_h5 *f = lksi_alloc(b, sizeof *f);
    if (!f) return LKS_ERR_MEMORY;
    f->base = b;
    f->where = where;
    f->file = f->driver = -1;
    f->owns_image = f->writing = 1;
    f->label = lksi_strdup(b, "a new file");
    f->image = f->label ? lksi_h5_image_new(b, 0) : NULL;
    if (!f->image) {
        lksi_free(b, f->label);
        lksi_free(b, f);
        return LKS_ERR_MEMORY;
    }
    lksi_h5_session s;
    lks_status status = LKS_OK;
    lksi_h5_enter(&s);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), fcpl = H5Pcreate(H5P_FILE_CREATE);
    if (fapl >= 0 && fcpl >= 0 && H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) >= 0 &&
        H5Pset_libver_bounds(fapl, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 && H5Pset_alignment(fapl, 4096, 4096) >= 0 &&
        H5Pset_meta_block_size(fapl, (hsize_t)metadata_block) >= 0 && H5Pset_userblock(fcpl, (hsize_t)userblock) >= 0 &&
        H5Pset_obj_track_times(fcpl, 0) >= 0 && H5Pset_attr_phase_change(fcpl, 1000, 0) >= 0 &&
        lksi_h5_image_access(f->image, fapl, &f->driver) == 0)
        f->file = H5Fcreate("image", H5F_ACC_TRUNC, fcpl, fapl);
    if (f->file < 0) status = broken(f, "the file", "in memory");
    if (fapl >= 0) H5Pclose(fapl);
    if (fcpl >= 0) H5Pclose(fcpl);
    if (f->file < 0 && f->driver >= 0) H5FDunregister(f->driver);
    lksi_h5_leave(&s);
    if (status == LKS_OK) {
        *out = f;
        return LKS_OK;
    }
    lksi_h5_image_free(f->image);
    lksi_free(b, f->label);
    lksi_free(b, f);
    return status;
}

/* Names are UTF-8. */
static hid_t link_list(void)
{
    hid_t lcpl = H5Pcreate(H5P_LINK_CREATE);
    if (lcpl >= 0) H5Pset_char_encoding(lcpl, H5T_CSET_UTF8);
    return lcpl;
}

lks_status lksi_h5_make_group(lksi_h5 *f, const char *path)
{
    lksi_h5_session s;
    lks_status status = LKS_OK;
    lksi_h5_enter(&s);
    hid_t lcpl = link_list(), gcpl = H5Pcreate(H5P_GROUP_CREATE), g = -1;
    if (lcpl >= 0 && gcpl >= 0 && H5Pset_obj_track_times(gcpl, 0) >= 0 && H5Pset_attr_phase_change(gcpl, 1000, 0) >= 0)
        g = H5Gcreate2(f->file, path, lcpl, gcpl, H5P_DEFAULT);
    if (g < 0) status = broken(f, "group", path);
    if (g >= 0) H5Gclose(g);
    if (gcpl >= 0) H5Pclose(gcpl);
    if (lcpl >= 0) H5Pclose(lcpl);
    lksi_h5_leave(&s);
    return status;
}

/* type is closed. data may be NULL. */
static lks_status make(lksi_h5 *f, const char *path, hid_t type, int ndim, const int64_t *shape, const void *data,
                       int64_t *offset)
{
    lks_status status = LKS_OK;
    hid_t lcpl = link_list(), dcpl = H5Pcreate(H5P_DATASET_CREATE), space = -1, d = -1;
    hsize_t dims[LKS_MAX_DIMS];
    int empty = 0;
    for (int i = 0; i < ndim; i++) {
        dims[i] = (hsize_t)shape[i];
        empty |= shape[i] == 0;
    }
    space = ndim ? H5Screate_simple(ndim, dims, NULL) : H5Screate(H5S_SCALAR);
    if (type >= 0 && lcpl >= 0 && dcpl >= 0 && space >= 0 && H5Pset_obj_track_times(dcpl, 0) >= 0 &&
        H5Pset_attr_phase_change(dcpl, 1000, 0) >= 0 && H5Pset_layout(dcpl, H5D_CONTIGUOUS) >= 0 &&
        H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY) >= 0 && H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER) >= 0)
        d = H5Dcreate2(f->file, path, type, space, lcpl, dcpl, H5P_DEFAULT);
    if (d < 0 || (data && H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0))
        status = broken(f, "dataset", path);
    else if (offset) {
        haddr_t at = H5Dget_offset(d);
        *offset = at == HADDR_UNDEF || empty ? -1 : (int64_t)at;
    }
    if (d >= 0) H5Dclose(d);
    if (space >= 0) H5Sclose(space);
    if (dcpl >= 0) H5Pclose(dcpl);
    if (lcpl >= 0) H5Pclose(lcpl);
    if (type >= 0) H5Tclose(type);
    return status;
}

lks_status lksi_h5_make_dataset(lksi_h5 *f, const char *path, lks_dtype dtype, int ndim, const int64_t *shape,
                                int64_t *offset)
{
    if (ndim < 0 || ndim > LKS_MAX_DIMS)
        return lksi_fail(f->base, LKS_ERR_SHAPE, f->where, "dataset %s: %d dimensions", path, ndim);
    lksi_h5_session s;
    lksi_h5_enter(&s);
    lks_status status = make(f, path, lksi_h5_file_type(dtype), ndim, shape, NULL, offset);
    lksi_h5_leave(&s);
    return status;
}

lks_status lksi_h5_write(lksi_h5 *f, const char *path, lks_dtype dtype, const void *data)
{
    lksi_h5_session s;
    lks_status status = LKS_OK;
    lksi_h5_enter(&s);
    hid_t d = H5Dopen2(f->file, path, H5P_DEFAULT), type = d >= 0 ? lksi_h5_memory_type(dtype) : -1;
    if (type < 0 || H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) status = broken(f, "dataset", path);
    if (type >= 0) H5Tclose(type);
    if (d >= 0) H5Dclose(d);
    lksi_h5_leave(&s);
    return status;
}

lks_status lksi_h5_put_text(lksi_h5 *f, const char *path, const char *text)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    lks_status status = make(f, path, text_type(strlen(text)), 0, NULL, text, NULL);
    lksi_h5_leave(&s);
    return status;
}

/* type (file) and memory are closed. */
static lks_status set(lksi_h5 *f, const char *path, const char *name, hid_t type, hid_t memory, const void *value)
{
    lks_status status = LKS_OK;
    hid_t a = -1, space = -1, o = -1;
    if (type >= 0 && memory >= 0)
        o = H5Oopen(f->file, path, H5P_DEFAULT); /* an attribute opened by path is not written */
    if (o >= 0) {
        if (H5Aexists(o, name) > 0) a = H5Aopen(o, name, H5P_DEFAULT);
        else if ((space = H5Screate(H5S_SCALAR)) >= 0) a = H5Acreate2(o, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    }
    if (a < 0 || H5Awrite(a, memory, value) < 0) status = broken(f, "an attribute of", path);
    if (a >= 0) H5Aclose(a);
    if (o >= 0) H5Oclose(o);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (memory >= 0) H5Tclose(memory);
    return status;
}

lks_status lksi_h5_set_i64(lksi_h5 *f, const char *path, const char *name, int64_t value)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    lks_status status = set(f, path, name, lksi_h5_file_type(LKS_I64), lksi_h5_memory_type(LKS_I64), &value);
    lksi_h5_leave(&s);
    return status;
}

lks_status lksi_h5_set_f64(lksi_h5 *f, const char *path, const char *name, double value)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    lks_status status = set(f, path, name, lksi_h5_file_type(LKS_F64), lksi_h5_memory_type(LKS_F64), &value);
    lksi_h5_leave(&s);
    return status;
}

lks_status lksi_h5_set_text(lksi_h5 *f, const char *path, const char *name, const char *text)
{
    lksi_h5_session s;
    lksi_h5_enter(&s);
    lks_status status = set(f, path, name, text_type(strlen(text)), text_type(strlen(text)), text);
    lksi_h5_leave(&s);
    return status;
}

#if H5_VERSION_GE(1, 12, 0)
#define RECLAIM H5Treclaim
#else
#define RECLAIM H5Dvlen_reclaim
#endif

/* One attribute, the object it goes to. Failures leave it behind. */
static herr_t copy_one(hid_t from, const char *name, const H5A_info_t *info, void *user)
{
    hid_t to = *(hid_t *)user, a = H5Aopen(from, name, H5P_DEFAULT), b = -1, type = -1, space = -1;
    (void)info;
    hid_t held = a >= 0 ? H5Aget_type(a) : -1;
    hsize_t bytes = a >= 0 ? H5Aget_storage_size(a) : 0;
    if (held >= 0) type = H5Tcopy(held);
    if (a >= 0) space = H5Aget_space(a);
    if (type >= 0 && space >= 0 && bytes < 60000 && H5Tdetect_class(type, H5T_REFERENCE) <= 0) {
        hssize_t n = H5Sget_simple_extent_npoints(space);
        size_t size = H5Tget_size(type);
        void *value = n >= 0 && size ? calloc((size_t)n + 1, size) : NULL;
        if (value && (n == 0 || H5Aread(a, type, value) >= 0)) {
            if (H5Aexists(to, name) > 0) H5Adelete(to, name);
            b = H5Acreate2(to, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
            if (b >= 0 && n > 0 && H5Awrite(b, type, value) < 0) {
                H5Aclose(b);
                b = -1;
                H5Adelete(to, name);
            }
            if (n > 0) RECLAIM(type, space, H5P_DEFAULT, value);
        }
        free(value);
    }
    if (b >= 0) H5Aclose(b);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (held >= 0) H5Tclose(held);
    if (a >= 0) H5Aclose(a);
    return 0;
}

lks_status lksi_h5_copy_attributes(lksi_h5 *from, const char *from_path, lksi_h5 *to, const char *to_path)
{
    lksi_h5_session s;
    lks_status status = LKS_OK;
    hsize_t at = 0;
    lksi_h5_enter(&s);
    hid_t a = H5Oopen(from->file, from_path, H5P_DEFAULT), b = H5Oopen(to->file, to_path, H5P_DEFAULT);
    if (a < 0 || b < 0 || H5Aiterate2(a, H5_INDEX_NAME, H5_ITER_INC, &at, copy_one, &b) < 0)
        status = broken(to, "the attributes of", to_path);
    if (a >= 0) H5Oclose(a);
    if (b >= 0) H5Oclose(b);
    lksi_h5_leave(&s);
    return status;
}

lks_status lksi_h5_finish(lksi_h5 *f, lksi_h5_image **image, int64_t *bytes)
{
    *image = NULL;
    lksi_base *b = f->base;
    lksi_h5_image *kept = f->image;
    f->owns_image = 0;
    lks_status status = lksi_h5_close(f);
    if (status != LKS_OK || lksi_h5_image_out_of_memory(kept)) {
        lksi_h5_image_free(kept);
        return status ? status : lksi_fail(b, LKS_ERR_MEMORY, NULL, "out of memory");
    }
    *image = kept;
    *bytes = lksi_h5_image_bytes(kept);
    return LKS_OK;
}
