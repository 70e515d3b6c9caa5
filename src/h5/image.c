/* SPDX-License-Identifier: BSD-3-Clause
 *
 * image.c - HDF5 files in memory, sparse: an HDF5 file driver over pieces of 64 KiB. A file being made costs only its
 * metadata, however large the datasets that are given a place in it, and no HDF5 call ever meets a full disk. Not for
 * raw data: those bytes are written and read by the rooms above, at the offsets HDF5 gave.
 */
#include "h5/inside.h"
#include <string.h>

typedef struct piece {
    int64_t index; /* offset / LKSI_H5_CHUNK */
    unsigned char *data;
} piece;

struct lksi_h5_image {
    lksi_base *base;
    piece *p; /* by rising index */
    int64_t n, room;
    int64_t bytes;
    int out_of_memory;
};

lksi_h5_image *lksi_h5_image_new(lksi_base *b, int64_t bytes)
{
    lksi_h5_image *image = lksi_alloc(b, sizeof *image);
    if (!image) return NULL;
    image->base = b;
    image->bytes = bytes;
    return image;
}

void lksi_h5_image_free(lksi_h5_image *image)
{
    if (!image) return;
    for (int64_t i = 0; i < image->n; i++) lksi_free(image->base, image->p[i].data);
    lksi_free(image->base, image->p);
    lksi_free(image->base, image);
}

/* First piece with an index >= index. */
static int64_t find(const lksi_h5_image *image, int64_t index)
{
    int64_t lo = 0, hi = image->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (image->p[mid].index < index) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static piece *make(lksi_h5_image *image, int64_t index)
{
    int64_t i = find(image, index);
    if (i < image->n && image->p[i].index == index) return &image->p[i];
    if (image->n == image->room) {
        int64_t room = image->room ? 2 * image->room : 16;
        piece *p = lksi_realloc(image->base, image->p, image->room * (int64_t)sizeof *p, room * (int64_t)sizeof *p);
        if (!p) return NULL;
        image->p = p;
        image->room = room;
    }
    unsigned char *data = lksi_alloc(image->base, LKSI_H5_CHUNK);
    if (!data) return NULL;
    memmove(image->p + i + 1, image->p + i, (size_t)(image->n - i) * sizeof *image->p);
    image->p[i] = (piece){index, data};
    image->n++;
    return &image->p[i];
}

lks_status lksi_h5_image_put(lksi_h5_image *image, int64_t offset, const void *data, int64_t bytes)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        int64_t at = offset % LKSI_H5_CHUNK, n = LKSI_H5_CHUNK - at < bytes ? LKSI_H5_CHUNK - at : bytes;
        piece *p = make(image, offset / LKSI_H5_CHUNK);
        if (!p) {
            image->out_of_memory = 1;
            return LKS_ERR_MEMORY;
        }
        memcpy(p->data + at, from, (size_t)n);
        from += n, offset += n, bytes -= n;
    }
    if (offset > image->bytes) image->bytes = offset;
    return LKS_OK;
}

void lksi_h5_image_get(const lksi_h5_image *image, int64_t offset, void *data, int64_t bytes)
{
    unsigned char *to = data;
    while (bytes > 0) {
        int64_t at = offset % LKSI_H5_CHUNK, n = LKSI_H5_CHUNK - at < bytes ? LKSI_H5_CHUNK - at : bytes;
        int64_t i = find(image, offset / LKSI_H5_CHUNK);
        if (i < image->n && image->p[i].index == offset / LKSI_H5_CHUNK) memcpy(to, image->p[i].data + at, (size_t)n);
        else memset(to, 0, (size_t)n);
        to += n, offset += n, bytes -= n;
    }
}

int64_t lksi_h5_image_pieces(const lksi_h5_image *image) { return image->n; }

const void *lksi_h5_image_piece(const lksi_h5_image *image, int64_t i, int64_t *offset)
{
    *offset = image->p[i].index * LKSI_H5_CHUNK;
    return image->p[i].data;
}

int lksi_h5_image_out_of_memory(const lksi_h5_image *image) { return image->out_of_memory; }
int64_t lksi_h5_image_bytes(const lksi_h5_image *image) { return image->bytes; }

/* --- the driver --------------------------------------------------------------------------------------------------- */

typedef struct access { lksi_h5_image *image; } access; /* what the file access list carries */

typedef struct driver_file {
    H5FD_t pub; /* first: HDF5's own part */
    lksi_h5_image *image;
    haddr_t eoa;
} driver_file;

#define MAX_ADDRESS ((haddr_t)INT64_MAX)

static H5FD_t *drv_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    (void)name, (void)flags, (void)maxaddr;
    const access *a = H5Pget_driver_info(fapl);
    if (!a) return NULL;
    driver_file *f = lksi_alloc(a->image->base, sizeof *f);
    if (!f) {
        a->image->out_of_memory = 1;
        return NULL;
    }
    f->image = a->image;
    return &f->pub;
}

static herr_t drv_close(H5FD_t *file)
{
    driver_file *f = (driver_file *)file;
    lksi_free(f->image->base, f);
    return 0;
}

static int drv_cmp(const H5FD_t *a, const H5FD_t *b)
{
    uintptr_t x = (uintptr_t)((const driver_file *)a)->image, y = (uintptr_t)((const driver_file *)b)->image;
    return x < y ? -1 : x > y;
}

static herr_t drv_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    if (flags) *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t drv_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const driver_file *)file)->eoa;
}

static herr_t drv_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    ((driver_file *)file)->eoa = addr;
    return 0;
}

static haddr_t drv_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return (haddr_t)((const driver_file *)file)->image->bytes;
}

static herr_t drv_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *buffer)
{
    (void)type, (void)dxpl;
    if (addr > MAX_ADDRESS || size > MAX_ADDRESS - addr) return -1;
    lksi_h5_image_get(((driver_file *)file)->image, (int64_t)addr, buffer, (int64_t)size);
    return 0;
}

static herr_t drv_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, const void *buffer)
{
    (void)type, (void)dxpl;
    if (addr > MAX_ADDRESS || size > MAX_ADDRESS - addr) return -1;
    /* Out of memory is remembered, not returned: HDF5 cannot close a file whose writes fail. */
    lksi_h5_image_put(((driver_file *)file)->image, (int64_t)addr, buffer, (int64_t)size);
    return 0;
}

static herr_t drv_truncate(H5FD_t *file, hid_t dxpl, hbool_t closing)
{
    (void)dxpl, (void)closing;
    driver_file *f = (driver_file *)file;
    f->image->bytes = (int64_t)f->eoa;
    return 0;
}

static const H5FD_class_t driver = {
#ifdef H5FD_CLASS_VERSION
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)601,
#endif
    .name = "lockstep_image",
    .maxaddr = MAX_ADDRESS,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(access),
    .open = drv_open,
    .close = drv_close,
    .cmp = drv_cmp,
    .query = drv_query,
    .get_eoa = drv_get_eoa,
    .set_eoa = drv_set_eoa,
    .get_eof = drv_get_eof,
    .read = drv_read,
    .write = drv_write,
    .truncate = drv_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

int lksi_h5_image_access(lksi_h5_image *image, hid_t fapl, hid_t *id)
{
    access a = {image};
    *id = H5FDregister(&driver);
    if (*id < 0) return -1;
    if (H5Pset_driver(fapl, *id, &a) < 0) {
        H5FDunregister(*id);
        *id = -1;
        return -1;
    }
    return 0;
}
