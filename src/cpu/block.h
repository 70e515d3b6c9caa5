/* SPDX-License-Identifier: BSD-3-Clause
 *
 * block.h - how CPU kernels read and write tensors of any dtype, stride and shape: in blocks of up to LKSI_BLOCK
 * elements that are converted to a compute type in the L1 cache. A kernel then is one plain loop over contiguous
 * arrays. The conversion tables are in copy.c; everything here is compiled once per ISA.
 */
#ifndef LKSI_BLOCK_H
#define LKSI_BLOCK_H

#include "base/half.h"
#include "cpu/cpu.h"

#define LKSI_BLOCK 1024
#define LKSI_GRAIN 32768 /* elements below which a second thread does not pay */

/* Compute types. f16, bf16 and f32 are computed in float; integers and bool in int64, which wraps when stored; RAW8 is
 * a byte taken as it is (conditions, results of comparisons); C64 and C128 are pairs of float and of double. */
enum {
    LKSI_CLASS_I64,
    LKSI_CLASS_F32,
    LKSI_CLASS_F64,
    LKSI_CLASS_RAW8,
    LKSI_CLASS_C64,
    LKSI_CLASS_C128,
    LKSI_CLASSES
};
typedef struct lksi_c64 { float re, im; } lksi_c64;
typedef struct lksi_c128 { double re, im; } lksi_c128;

/* n elements from src (stride in elements) to contiguous compute type; and back. Arrays do not overlap. */
typedef void (*lksi_load_fn)(void *dst, const void *src, int64_t stride, int64_t n);
typedef void (*lksi_store_fn)(void *dst, int64_t stride, const void *src, int64_t n);
extern const lksi_load_fn LKSI_LOCAL(load)[LKSI_CLASSES][LKS_DTYPE_COUNT];
extern const lksi_store_fn LKSI_LOCAL(store)[LKSI_CLASSES][LKS_DTYPE_COUNT];
/* All elements of dst become value, converted. */
void LKSI_LOCAL(fill)(lksi_cpu *cpu, const lksi_view *dst, double value);
/* dst = src, broadcast and converted. */
void LKSI_LOCAL(copy)(lksi_cpu *cpu, const lksi_view *dst, const lksi_view *src);

static const uint8_t lksi_class_of[LKS_DTYPE_COUNT] = {
    [LKS_F32] = LKSI_CLASS_F32,  [LKS_F64] = LKSI_CLASS_F64, [LKS_F16] = LKSI_CLASS_F32, [LKS_BF16] = LKSI_CLASS_F32,
    [LKS_I64] = LKSI_CLASS_I64, [LKS_I32] = LKSI_CLASS_I64, [LKS_U8] = LKSI_CLASS_I64,  [LKS_BOOL] = LKSI_CLASS_I64,
    [LKS_C64] = LKSI_CLASS_C64,  [LKS_C128] = LKSI_CLASS_C128,
};
static const uint8_t lksi_size_of[LKS_DTYPE_COUNT] = {
#define X(NAME, name, bytes) bytes,
    LKS_DTYPE_LIST(X)
#undef X
};
static const uint8_t lksi_class_size[LKSI_CLASSES] = {8, 4, 8, 1, 8, 16};

/* 1 if memory of this dtype is the compute type: no conversion. */
static inline int lksi_is_natural(int cls, int dtype)
{
    return cls == LKSI_CLASS_F32    ? dtype == LKS_F32
           : cls == LKSI_CLASS_F64  ? dtype == LKS_F64
           : cls == LKSI_CLASS_I64  ? dtype == LKS_I64
           : cls == LKSI_CLASS_C64  ? dtype == LKS_C64
           : cls == LKSI_CLASS_C128 ? dtype == LKS_C128
                                    : lksi_size_of[dtype] == 1;
}

/* Room for one block of any compute type. */
typedef struct lksi_block {
    _Alignas(64) char bytes[LKSI_BLOCK * 16];
} lksi_block;

/* A tensor as seen along a walk over an output: dims in walk order, size-1 dims dropped, neighbours merged. */
typedef struct lksi_operand {
    char *data;
    int dtype, size, cls, ndim, natural;
    int constant;   /* every element is the same one */
    int contiguous; /* one dim, stride 1 */
    int64_t period; /* the elements repeat with this period, > 0; else 0 */
    int64_t shape[LKS_MAX_DIMS], stride[LKS_MAX_DIMS];
} lksi_operand;

/* Order of dims in which out's memory is walked: larger strides first, equal ones as they are, size 1 last. */
static inline void lksi_walk_order(const lksi_view *out, int *order)
{
    int n = 0;
    for (int d = 0; d < out->ndim; d++) {
        if (out->shape[d] == 1) continue;
        int at = n++;
        for (; at > 0 && out->stride[order[at - 1]] < out->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    for (int d = 0; d < out->ndim; d++)
        if (out->shape[d] == 1) order[n++] = d;
}

/* v broadcast to the shape of `space` (whose dims are walked in `order`), read or written as class cls. */
static inline void lksi_operand_init(lksi_operand *o, const lksi_view *v, const lksi_view *space, const int *order,
                                     int cls)
{
    int n = 0, skip = space->ndim - v->ndim;
    o->data = v->data;
    o->dtype = v->dtype;
    o->size = lksi_size_of[v->dtype];
    o->cls = cls;
    o->natural = lksi_is_natural(cls, v->dtype);
    for (int k = 0; k < space->ndim; k++) {
        int d = order[k], own = d - skip;
        int64_t size = space->shape[d];
        if (size == 1) continue;
        int64_t stride = own < 0 || v->shape[own] == 1 ? 0 : v->stride[own];
        if (n > 0 && o->stride[n - 1] == stride * size) {
            o->shape[n - 1] *= size;
            o->stride[n - 1] = stride;
        } else {
            o->shape[n] = size;
            o->stride[n++] = stride;
        }
    }
    o->ndim = n;
    o->constant = n == 0 || (n == 1 && o->stride[0] == 0);
    o->contiguous = n == 1 && o->stride[0] == 1;
    o->period = n >= 2 && o->stride[0] == 0 ? 1 : 0;
    for (int d = 1; o->period && d < n; d++) o->period *= o->shape[d];
}

/* Splits element number `at` of the walk into an index per dim; returns its offset in elements. */
static inline int64_t lksi_operand_seek(const lksi_operand *o, int64_t at, int64_t *index)
{
    int64_t offset = 0;
    for (int d = o->ndim - 1; d > 0; d--) {
        int64_t q = at / o->shape[d];
        index[d] = at - q * o->shape[d];
        at = q;
        offset += index[d] * o->stride[d];
    }
    if (o->ndim > 0) {
        index[0] = at;
        offset += at * o->stride[0];
    }
    return offset;
}

/* Steps over the rest of a row: index of the last dim has reached its end. */
static inline int64_t lksi_operand_carry(const lksi_operand *o, int64_t *index, int64_t offset)
{
    for (int d = o->ndim - 1; d > 0 && index[d] == o->shape[d]; d--) {
        offset += o->stride[d - 1] - index[d] * o->stride[d];
        index[d] = 0;
        index[d - 1]++;
    }
    return offset;
}

/* Elements [at, at + n) of the walk in the compute type: in place where they lie so, else in buf. */
static inline const void *lksi_operand_load(const lksi_operand *o, int64_t at, int64_t n, void *buf)
{
    if (o->contiguous && o->natural) return o->data + at * o->size;
    lksi_load_fn load = LKSI_LOCAL(load)[o->cls][o->dtype];
    if (o->ndim <= 1) {
        int64_t stride = o->ndim ? o->stride[0] : 0;
        load(buf, o->data + at * stride * o->size, stride, n);
        return buf;
    }
    int64_t index[LKS_MAX_DIMS], offset = lksi_operand_seek(o, at, index);
    int last = o->ndim - 1;
    int64_t stride = o->stride[last], size = o->shape[last];
    if (o->natural && stride == 1 && index[last] + n <= size) return o->data + offset * o->size;
    for (int64_t done = 0; done < n;) {
        int64_t run = size - index[last];
        if (run > n - done) run = n - done;
        load((char *)buf + done * lksi_class_size[o->cls], o->data + offset * o->size, stride, run);
        done += run;
        index[last] += run;
        offset += run * stride;
        offset = lksi_operand_carry(o, index, offset);
    }
    return buf;
}

/* Where a block of the output may be computed: its own memory, or NULL if it must be stored from a buffer. */
static inline void *lksi_operand_direct(const lksi_operand *o, int64_t at)
{
    return o->contiguous && o->natural ? o->data + at * o->size
           : o->ndim == 0 && o->natural ? o->data
                                        : NULL;
}

static inline void lksi_operand_store(const lksi_operand *o, int64_t at, int64_t n, const void *buf)
{
    lksi_store_fn store = LKSI_LOCAL(store)[o->cls][o->dtype];
    if (o->ndim <= 1) {
        int64_t stride = o->ndim ? o->stride[0] : 1;
        store(o->data + at * stride * o->size, stride, buf, n);
        return;
    }
    int64_t index[LKS_MAX_DIMS], offset = lksi_operand_seek(o, at, index);
    int last = o->ndim - 1;
    int64_t stride = o->stride[last], size = o->shape[last];
    for (int64_t done = 0; done < n;) {
        int64_t run = size - index[last];
        if (run > n - done) run = n - done;
        store(o->data + offset * o->size, stride, (const char *)buf + done * lksi_class_size[o->cls], run);
        done += run;
        index[last] += run;
        offset += run * stride;
        offset = lksi_operand_carry(o, index, offset);
    }
}

static inline int64_t lksi_count(const lksi_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++)
        if (v->shape[d] == 0) return 0; /* [2^62, 4, 0] must not overflow */
    for (int d = 0; d < v->ndim; d++) n *= v->shape[d];
    return n;
}

#endif
