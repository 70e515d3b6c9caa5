/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.c - products that are not one matrix product: dot products along a dim, and the bilinear form. Sums go by
 * fixed blocks, so thread count does not change bits.
 */
#include "cpu/gemm.h"
#include "cpu/rows.h"

enum { CHUNK = 1024, BLOCK = 65536 }; /* elements of a row loaded at a time; of a worker's item */

typedef struct vecdot {
    lksi_rowset x, y, z;
    int64_t blocks; /* of a row */
    double *part;
} vecdot;

typedef struct bilinear {
    lksi_rowset x, y, z;
    const lksi_view *bias;
    int64_t outputs, first; /* first row of the block at hand */
    void *rows, *products;  /* [block, I], [block, O, J] */
    char *scratch;
    int64_t scratch_each;
} bilinear;

#define REAL float
#define F(name) name##_f
#include "cpu/products_real.h"
#undef REAL
#undef F
#define REAL double
#define F(name) name##_d
#include "cpu/products_real.h"
#undef REAL
#undef F

static lks_status no_memory(const lksi_args *a)
{
    return lksi_why(a, LKS_ERR_MEMORY, "no memory for scratch");
}

/* v with the shape of a broadcast of both; repeated dims have stride 0. */
static lksi_view broadcast_to(const lksi_view *v, const lksi_view *other)
{
    lksi_view r = *v;
    r.ndim = v->ndim > other->ndim ? v->ndim : other->ndim;
    for (int d = 0; d < r.ndim; d++) {
        int i = d - (r.ndim - v->ndim), j = d - (r.ndim - other->ndim);
        int64_t own = i < 0 ? 1 : v->shape[i];
        r.shape[d] = own == 1 && j >= 0 ? other->shape[j] : own;
        r.stride[d] = own == 1 ? 0 : v->stride[i];
    }
    return r;
}

LKSI_KERNEL(linalg_vecdot)
{
    lksi_view x = broadcast_to(&a->in[0], &a->in[1]), y = broadcast_to(&a->in[1], &a->in[0]);
    unsigned dim = 1u << a->attr.dim.dim;
    vecdot v = {.x = lksi_rowset_of(&x, dim), .y = lksi_rowset_of(&y, dim), .z = lksi_rowset_of(&a->out[0], 0)};
    lksi_range_fn run = v.x.dtype == LKS_F64 ? vecdot_d : vecdot_f;
    int64_t grain = 32768 / (v.x.n < BLOCK ? v.x.n + 1 : BLOCK);
    v.blocks = v.x.n > BLOCK ? (v.x.n + BLOCK - 1) / BLOCK : 1;
    if (v.blocks > 1 && !(v.part = lksi_scratch(cpu, -1, 0, v.x.rows * v.blocks * 8))) return no_memory(a);
    lksi_parallel(cpu, v.x.rows * v.blocks, grain > 0 ? grain : 1, run, &v);
    for (int64_t r = 0; v.blocks > 1 && r < v.x.rows; r++) {
        double sum = 0;
        for (int64_t b = 0; b < v.blocks; b++) sum += v.part[r * v.blocks + b];
        lksi_put(v.z.data, v.z.dtype, lksi_rowset_offset(&v.z, r), sum);
    }
    return LKS_OK;
}

/* t[r, o, :] = x1[r] W[o], a block of rows at a time, then dot products with x2. */
LKSI_KERNEL(bilinear)
{
    const lksi_view *x = &a->in[0], *y = &a->in[1], *w = &a->in[2], *z = &a->out[0];
    unsigned last = 1u << (x->ndim - 1);
    bilinear b = {.x = lksi_rowset_of(x, last), .y = lksi_rowset_of(y, last), .z = lksi_rowset_of(z, last),
                  .bias = a->nin > 3 && a->in[3].ndim >= 0 ? &a->in[3] : NULL, .outputs = w->shape[0]};
    int dbl = x->dtype == LKS_F64;
    int64_t size = dbl ? 8 : 4, each = b.outputs * b.y.n, block = ((int64_t)4 << 20) / (size * (each + b.x.n + 1));
    block = block < 12 ? 12 : block > 480 ? 480 : block;
    if (block > b.x.rows) block = b.x.rows;
    b.rows = lksi_scratch(cpu, -1, 0, block * b.x.n * size + 64);
    b.products = lksi_scratch(cpu, -1, 1, block * each * size + 64);
    b.scratch_each = ((b.y.n + b.outputs) * size + 63) / 64 * 64;
    b.scratch = lksi_scratch(cpu, -1, 2, lksi_cpu_workers(cpu) * b.scratch_each + 64);
    if (!b.rows || !b.products || !b.scratch) return no_memory(a);
    int dtype = dbl ? LKS_F64 : LKS_F32;
    for (; b.first < b.x.rows; b.first += block) {
        int64_t n = b.x.rows - b.first < block ? b.x.rows - b.first : block;
        lksi_parallel(cpu, n, 1 + 16384 / (b.x.n + 1), dbl ? bilinear_rows_d : bilinear_rows_f, &b);
        lksi_gemm g = {.m = n, .n = b.y.n, .k = b.x.n, .a = b.rows, .b = w->data, .c = b.products, .a_dtype = dtype,
                       .b_dtype = w->dtype, .c_dtype = dtype, .a_rs = b.x.n, .a_cs = 1, .b_rs = w->stride[1],
                       .b_cs = w->stride[2], .c_rs = each, .c_cs = 1, .nbatch = 1, .batch = {b.outputs},
                       .b_bs = {w->stride[0]}, .c_bs = {b.y.n}};
        TRY(LKSI_LOCAL(gemm)(cpu, a, &g));
        lksi_parallel(cpu, n, 1 + 16384 / (each + 1), dbl ? bilinear_dots_d : bilinear_dots_f, &b);
    }
    return LKS_OK;
}
