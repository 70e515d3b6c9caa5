/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fft.c - Fourier transforms by cuFFT: which dims at once, what is copied first, plans kept by shape. Neighbouring dims
 * are one transform of up to three; where it has dims on both sides, and on the outer one many, it is done on a copy
 * that has it innermost. Nothing waits, and no memory is asked for once a shape is known.
 */
#include "cuda/cumath.h"
#include "cuda/spectrum.h"
#include <cufft.h>

/* Scratch slots of a stream. */
enum { COPY, TURNED, RESULT, WORK };

#define MOST 3 /* dims of a transform */
#define LOOPS 3 /* launches that are not more than those of a copy, the transform and a copy back */

/* A transform of n[0] x .. x n[rank - 1] points, many times: `inner` of them side by side, element by element, or, with
 * inner 1, one behind the other. No padding: compared as bytes. */
typedef struct key {
    int64_t n[MOST], inner, many;
    int32_t type, rank;
} key;

typedef struct entry {
    key k;
    cufftHandle plan;
    int made;
    size_t work;
    struct entry *next;
} entry;

/* retired: plans that gave way to others, which a graph that will be launched may still need. */
typedef struct plans {
    lksi_remembered known;
    entry *retired;
} plans;

static void end(lksi_cuda *cuda, entry *e)
{
    if (e->made) cufftDestroy(e->plan);
    lksi_cuda_free(cuda, e);
}

static void end_retired(lksi_cuda *cuda, plans *p)
{
    for (entry *e = p->retired, *next; e; e = next) {
        next = e->next;
        end(cuda, e);
    }
    p->retired = NULL;
}

static void destroy(lksi_cuda *cuda, void *state)
{
    plans *p = state;
    end_retired(cuda, p);
    for (int i = 0; i < LKSI_REMEMBERED; i++)
        if (p->known.entry[i]) end(cuda, p->known.entry[i]);
    lksi_cuda_free(cuda, p);
}

static void drop(lksi_cuda *cuda, void *remembered)
{
    plans *p = *lksi_cuda_state(cuda, LKSI_CUDA_FFT, destroy);
    entry *e = remembered;
    if (!e) return;
    e->next = p->retired;
    p->retired = e;
}

static lks_status failed(const lksi_args *a, const char *what, cufftResult r)
{
    lks_status code = r == CUFFT_ALLOC_FAILED                               ? LKS_ERR_MEMORY
                      : r == CUFFT_INVALID_SIZE || r == CUFFT_NOT_SUPPORTED ? LKS_ERR_UNSUPPORTED
                                                                            : LKS_ERR_DEVICE;
    return lksi_why(a, code, "cuFFT %s: status %d", what, (int)r);
}

static cufftResult make(entry *e)
{
    const key *k = &e->k;
    long long n[MOST], in[MOST], out[MOST], points = 1, half = 1;
    for (int i = 0; i < k->rank; i++) {
        n[i] = in[i] = out[i] = k->n[i];
        points *= n[i];
        half *= i == k->rank - 1 ? n[i] / 2 + 1 : n[i];
    }
    int forward = k->type == CUFFT_R2C || k->type == CUFFT_D2Z, back = k->type == CUFFT_C2R || k->type == CUFFT_Z2D;
    if (forward) out[k->rank - 1] = n[k->rank - 1] / 2 + 1;
    if (back) in[k->rank - 1] = n[k->rank - 1] / 2 + 1;
    cufftResult r = cufftCreate(&e->plan);
    if (r != CUFFT_SUCCESS) return r;
    e->made = 1;
    r = cufftSetAutoAllocation(e->plan, 0);
    if (r != CUFFT_SUCCESS) return r;
    long long next_in = k->inner > 1 ? 1 : back ? half : points, next_out = k->inner > 1 ? 1 : forward ? half : points;
    return cufftMakePlanMany64(e->plan, k->rank, n, in, k->inner, next_in, out, k->inner, next_out,
                               (cufftType)k->type, k->many, &e->work);
}

/* The remembered plan, or a new one. */
static lks_status lookup(lksi_cuda *cuda, const lksi_args *a, const key *k, entry **out)
{
    void **state = lksi_cuda_state(cuda, LKSI_CUDA_FFT, destroy);
    plans *p = *state;
    if (!p && !(*state = p = lksi_cuda_alloc(cuda, sizeof *p)))
        return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    if (p->known.count >= LKSI_REMEMBERED / 2 && !lksi_cuda_keeps(cuda))
        end_retired(cuda, p); /* before the next ones follow them */
    void **at = lksi_remembered_at(cuda, &p->known, k, sizeof *k, drop);
    if ((*out = *at)) return LKS_OK;
    entry *e = lksi_cuda_alloc(cuda, sizeof *e);
    if (!e) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    e->k = *k;
    cufftResult r = make(e);
    if (r != CUFFT_SUCCESS) {
        end(cuda, e);
        return failed(a, "has no plan for this transform", r);
    }
    *at = *out = e;
    p->known.count++;
    return LKS_OK;
}

static lks_status transform(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const key *k, int inverse,
                            void *in, void *out)
{
    entry *e;
    void *work;
    TRY(lookup(cuda, a, k, &e));
    TRY(lksi_cuda_scratch(cuda, stream, a, WORK, e->work ? (int64_t)e->work : 1, &work));
    int direction = inverse ? CUFFT_INVERSE : CUFFT_FORWARD;
    cufftResult r = cufftSetStream(e->plan, stream);
    if (r == CUFFT_SUCCESS) r = cufftSetWorkArea(e->plan, work);
    if (r == CUFFT_SUCCESS) {
        switch (k->type) {
        case CUFFT_C2C: r = cufftExecC2C(e->plan, in, out, direction); break;
        case CUFFT_Z2Z: r = cufftExecZ2Z(e->plan, in, out, direction); break;
        case CUFFT_R2C: r = cufftExecR2C(e->plan, in, out); break;
        case CUFFT_D2Z: r = cufftExecD2Z(e->plan, in, out); break;
        case CUFFT_C2R: r = cufftExecC2R(e->plan, in, out); break;
        default: r = cufftExecZ2D(e->plan, in, out); break;
        }
    }
    return r == CUFFT_SUCCESS ? LKS_OK : failed(a, "failed", r);
}

/* --- views --- */

static int is_double(const lksi_view *v) { return v->dtype == LKS_F64 || v->dtype == LKS_C128; }

static int64_t bytes_of(const lksi_view *v)
{
    return (is_double(v) ? 8 : 4) * (v->dtype == LKS_C64 || v->dtype == LKS_C128 ? 2 : 1);
}

static int64_t product(const lksi_view *v, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= v->shape[d];
    return n;
}

static void straight(lksi_view *v)
{
    int64_t n = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        v->stride[d] = n;
        n *= v->shape[d];
    }
}

/* Fit for cuFFT: row-major, and where a complex number could lie. */
static int is_straight(const lksi_view *v)
{
    int64_t n = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->shape[d] != 1 && v->stride[d] != n) return 0;
        n *= v->shape[d];
    }
    return (uintptr_t)v->data % (is_double(v) ? 16 : 8) == 0;
}

/* A dense place for v's elements in a slot, with the dims [first, last] innermost. */
static lks_status place(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int first, int last,
                        lksi_view *v)
{
    int64_t n = 1;
    for (int round = 0; round < 2; round++)
        for (int d = v->ndim - 1; d >= 0; d--) {
            if ((d >= first && d <= last) != (round == 0)) continue;
            v->stride[d] = n;
            n *= v->shape[d];
        }
    return lksi_cuda_scratch(cuda, stream, a, slot, n * bytes_of(v), &v->data);
}

/* The dims [first, last] of y, whose real sizes are those of `real`, as a transform. */
static key key_of(int type, const lksi_view *real, int first, int last, int64_t inner, int64_t many)
{
    key k;
    memset(&k, 0, sizeof k);
    k.type = type, k.rank = last - first + 1;
    for (int d = first; d <= last; d++) k.n[d - first] = real->shape[d];
    k.inner = inner, k.many = many;
    return k;
}

/* The first dim of those that end with `last` and go into one transform. */
static int first_of(int mask, int last)
{
    int first = last;
    while (first > 0 && last - first + 1 < MOST && mask >> (first - 1) & 1) first--;
    return first;
}

static int bits(int first, int last) { return (1 << (last + 1)) - (1 << first); }

/* --- passes --- */

/* z, which is dense, = x transformed over the dims of mask; x may be z. */
static lks_status complex_dims(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int mask, int inverse,
                               const lksi_view *x, const lksi_view *z)
{
    const int type = is_double(z) ? CUFFT_Z2Z : CUFFT_C2C;
    for (int d = 0; d < z->ndim; d++)
        if (z->shape[d] == 1) mask &= ~(1 << d);
    if (!mask && x->data != z->data) return lksi_cuda_copy_view(stream, a, z, x);
    lksi_view from = *x;
    while (mask) {
        int last = 31 - __builtin_clz((unsigned)mask), first = first_of(mask, last);
        int64_t outer = product(z, 0, first), inner = product(z, last + 1, z->ndim);
        int64_t block = product(z, first, last + 1) * inner;
        if (inner > 1 && outer > LOOPS) {
            lksi_view t = *z;
            key k = key_of(type, z, first, last, 1, outer * inner);
            TRY(place(cuda, stream, a, TURNED, first, last, &t));
            TRY(lksi_cuda_copy_view(stream, a, &t, &from));
            TRY(transform(cuda, stream, a, &k, inverse, t.data, t.data));
            TRY(lksi_cuda_copy_view(stream, a, z, &t));
        } else {
            if (from.data != z->data && !is_straight(&from)) {
                TRY(lksi_cuda_copy_view(stream, a, z, &from));
                from = *z;
            }
            int loops = inner > 1 ? (int)outer : 1;
            key k = key_of(type, z, first, last, inner, inner > 1 ? inner : outer);
            for (int i = 0; i < loops; i++)
                TRY(transform(cuda, stream, a, &k, inverse, (char *)from.data + i * block * bytes_of(z),
                              (char *)z->data + i * block * bytes_of(z)));
        }
        from = *z;
        mask &= ~bits(first, last);
    }
    return LKS_OK;
}

/* Numbers of v, which is dense, times scale. */
static lks_status scaled(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *v, double scale)
{
    if (scale == 1) return LKS_OK;
    lksi_args b = *a;
    lksi_view flat = *v;
    flat.ndim = 1, flat.stride[0] = 1;
    flat.dtype = is_double(v) ? LKS_F64 : LKS_F32;
    flat.shape[0] = product(v, 0, v->ndim) * (bytes_of(v) / bytes_of(&flat));
    b.op = LKSI_OP_affine, b.nin = b.nout = 1;
    b.in = &flat, b.out = &flat;
    b.attr.affine.scale = scale, b.attr.affine.shift = 0;
    return lksi_cumath_backend(cuda, stream, &b, b.op);
}

static int mask_of(const lksi_attr *attr)
{
    int mask = 0;
    for (int i = 0; i < attr->fft.n; i++) mask |= 1 << attr->fft.dims[i];
    return mask;
}

/* --- rows --- */

CUMATH(fft_c2c)
{
    const lksi_view *y = &a->out[0];
    if (product(y, 0, y->ndim) == 0) return LKS_OK;
    TRY(complex_dims(cuda, stream, a, mask_of(&a->attr), a->attr.fft.inverse, &a->in[0], y));
    return scaled(cuda, stream, a, y, a->attr.fft.scale);
}

/* The last dim named is halved, with those before it that are its neighbours; the others follow in place. */
CUMATH(fft_r2c)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    const int type = is_double(x) ? CUFFT_D2Z : CUFFT_R2C;
    int last = a->attr.fft.dims[a->attr.fft.n - 1], mask = mask_of(&a->attr), first = first_of(mask, last);
    if (product(y, 0, y->ndim) == 0) return LKS_OK;
    if (x->shape[last] == 1) {
        first = last;
        TRY(lksi_cuda_copy_view(stream, a, y, x));
    } else {
        int64_t outer = product(x, 0, first), inner = product(x, last + 1, x->ndim);
        lksi_view from = *x, to = *y;
        if (outer > 1 && inner > 1) {
            key k = key_of(type, x, first, last, 1, outer * inner);
            TRY(place(cuda, stream, a, COPY, first, last, &from));
            TRY(place(cuda, stream, a, TURNED, first, last, &to));
            TRY(lksi_cuda_copy_view(stream, a, &from, x));
            TRY(transform(cuda, stream, a, &k, 0, from.data, to.data));
            TRY(lksi_cuda_copy_view(stream, a, y, &to));
        } else {
            key k = key_of(type, x, first, last, inner, inner > 1 ? inner : outer);
            if (!is_straight(x)) {
                TRY(place(cuda, stream, a, COPY, 0, x->ndim - 1, &from));
                TRY(lksi_cuda_copy_view(stream, a, &from, x));
            }
            TRY(transform(cuda, stream, a, &k, 0, from.data, to.data));
        }
    }
    TRY(complex_dims(cuda, stream, a, mask & ~bits(first, last), 0, y, y));
    return scaled(cuda, stream, a, y, a->attr.fft.scale);
}

/* On a copy, which the transform destroys: the other dims, then the last one named with its neighbours. */
CUMATH(fft_c2r)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    const int type = is_double(x) ? CUFFT_Z2D : CUFFT_C2R, last = a->attr.fft.dims[a->attr.fft.n - 1];
    int mask = mask_of(&a->attr), first = first_of(mask, last), rest = mask & ~bits(first, last);
    lksi_view z = *x, to = *y;
    if (product(y, 0, y->ndim) == 0) return LKS_OK;
    if (a->attr.fft.last == 1) {
        TRY(place(cuda, stream, a, COPY, 0, x->ndim - 1, &z));
        TRY(complex_dims(cuda, stream, a, mask & ~(1 << last), 1, x, &z));
        z.dtype = y->dtype;
        for (int d = 0; d < z.ndim; d++) z.stride[d] *= 2;
        TRY(lksi_cuda_copy_view(stream, a, y, &z));
        return scaled(cuda, stream, a, y, a->attr.fft.scale);
    }
    int64_t outer = product(x, 0, first), inner = product(x, last + 1, x->ndim);
    int turned = outer > 1 && inner > 1;
    if (rest || !turned) {
        TRY(place(cuda, stream, a, COPY, 0, x->ndim - 1, &z));
        TRY(complex_dims(cuda, stream, a, rest, 1, x, &z));
    }
    if (turned) {
        lksi_view from = z;
        TRY(place(cuda, stream, a, TURNED, first, last, &z));
        TRY(place(cuda, stream, a, RESULT, first, last, &to));
        TRY(lksi_cuda_copy_view(stream, a, &z, &from));
        outer *= inner, inner = 1;
    }
    int64_t n[4] = {outer, 1, 1, inner};
    for (int d = first; d < last; d++) n[2 - (last - 1 - d)] = x->shape[d];
    TRY(lksi_cumath_real_spectrum(stream, a, z.data, is_double(x), n, a->attr.fft.last));
    key k = key_of(type, y, first, last, inner, inner > 1 ? inner : outer);
    TRY(transform(cuda, stream, a, &k, 1, z.data, to.data));
    if (turned) TRY(lksi_cuda_copy_view(stream, a, y, &to));
    return scaled(cuda, stream, a, y, a->attr.fft.scale);
}
