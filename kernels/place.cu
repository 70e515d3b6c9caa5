/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.cu - picking and placing by indices, and what only moves elements: gather, scatter, index, index_put, one_hot,
 * pad, triu, flip, diag_embed, trace, cross. What goes to one place is found by a stable sort of the places and taken
 * in the order of the indices, so bits are those of the CPU and no float is added atomically.
 */
#include "complex.cuh"
#include "sort.cuh"

using namespace lksi;

#define BY_SIZE(dtype, GO)                                                                                     \
    switch (bytes_of(dtype)) {                                                                                 \
    case 1: GO(uint8_t); break;                                                                                \
    case 2: GO(uint16_t); break;                                                                               \
    case 4: GO(uint32_t); break;                                                                               \
    case 8: GO(uint64_t); break;                                                                               \
    default: GO(bytes16); break;                                                                               \
    }

#define EACH(i, n)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x, step_ = (int64_t)gridDim.x * LKSI_THREADS; \
         i < (n); i += step_)

/* A 0-dim tensor as one of a single element. */
static lksi_view at_least_1d(const lksi_view *v)
{
    lksi_view r = *v;
    if (r.ndim == 0) r.ndim = 1, r.shape[0] = 1, r.stride[0] = 1;
    return r;
}

static int64_t product(const lksi_view *v, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= v->shape[d];
    return n;
}

/* --- gather --- */

/* w: y, index, x as if index were 0 */
template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    pick_along(walk<3> w, int64_t stride, int64_t rows, int op, lksi_fault fault)
{
    EACH(i, w.n) {
        int64_t at[3];
        w.seek(i, at);
        int64_t v = load<int64_t>(w.data[1], w.dtype[1], at[1]);
        bool bad = v < 0 || v >= rows;
        if (bad) fail(fault, LKSI_FAULT_INDEX, op, v, i, rows);
        ((T *)w.data[0])[at[0]] = bad ? (T)0 : ((const T *)w.data[2])[at[2] + v * stride];
    }
}

LKSI_CUDA(gather)
{
    lksi_view x = at_least_1d(&a->in[0]), index = at_least_1d(&a->in[1]), y = at_least_1d(&a->out[0]);
    const int dim = a->attr.dim.dim;
    int64_t stride = x.stride[dim], rows = x.shape[dim];
    for (int d = 0; d < x.ndim; d++) x.shape[d] = index.shape[d];
    x.stride[dim] = 0;
    const lksi_view *view[3] = {&y, &index, &x};
    walk<3> w = walk_of<3>(view, true);
    if (w.n == 0) return LKS_OK;
    lksi_fault fault = lksi_cuda_fault(cuda);
#define GO(T)                                                                                                  \
    pick_along<T><<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(w, stride, rows, a->op, fault)
    BY_SIZE(y.dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

/* --- placing, after a sort of the places --- */

template <class K> struct placing {
    walk<1> src; /* [outer, count, n] */
    void *y;     /* [outer, rows, n] */
    int dtype;
    const K *key; /* [count], sorted; rows: nowhere */
    const uint32_t *order;
    int64_t outer, rows, count, n;
};

/* The last one for a place is written. */
template <class K, class T> __global__ void __launch_bounds__(LKSI_THREADS) set_places(placing<K> p)
{
    EACH(e, p.outer * p.count * p.n) {
        int64_t r = e / p.n, c = e - r * p.n, o = r / p.count, i = r - o * p.count, at[1];
        K k = p.key[i];
        if (k >= (K)p.rows || (i + 1 < p.count && p.key[i + 1] == k)) continue;
        p.src.seek((o * p.count + p.order[i]) * p.n + c, at);
        ((T *)p.y)[(o * p.rows + (int64_t)k) * p.n + c] = ((const T *)p.src.data[0])[at[0]];
    }
}

template <class C> __device__ inline C plus(C x, C z) { return x + z; }
template <> __device__ inline int64_t plus(int64_t x, int64_t z) { return (int64_t)((uint64_t)x + (uint64_t)z); }

/* All for a place are added to what is there, in order. */
template <class K, class C> __global__ void __launch_bounds__(LKSI_THREADS) add_places(placing<K> p)
{
    EACH(e, p.outer * p.count * p.n) {
        int64_t r = e / p.n, c = e - r * p.n, o = r / p.count, i = r - o * p.count, at[1];
        K k = p.key[i];
        if (k >= (K)p.rows || (i > 0 && p.key[i - 1] == k)) continue;
        const int64_t to = (o * p.rows + (int64_t)k) * p.n + c;
        C sum = load<C>(p.y, p.dtype, to);
        for (; i < p.count && p.key[i] == k; i++) {
            p.src.seek((o * p.count + p.order[i]) * p.n + c, at);
            sum = plus(sum, load<C>(p.src.data[0], p.src.dtype[0], at[0]));
        }
        store(p.y, p.dtype, to, sum);
    }
}

/* y is a copy of what src goes into. */
template <class K>
static lks_status place(cudaStream_t stream, const lksi_args *a, placing<K> p, sorter<K> &s, int add)
{
    sort_by(stream, s, bits_of((uint64_t)p.rows));
    p.key = s.key[s.now], p.order = s.order[s.now];
    const int64_t items = p.outer * p.count * p.n;
    if (items == 0) return lksi_cuda_launched(a);
    const unsigned blocks = blocks_for(items, LKSI_THREADS);
    if (!add) {
#define GO(T) set_places<K, T><<<blocks, LKSI_THREADS, 0, stream>>>(p)
        BY_SIZE(p.dtype, GO)
#undef GO
    } else if (class_of(p.dtype) == CLASS_F32) {
        add_places<K, float><<<blocks, LKSI_THREADS, 0, stream>>>(p);
    } else if (class_of(p.dtype) == CLASS_F64) {
        add_places<K, double><<<blocks, LKSI_THREADS, 0, stream>>>(p);
    } else {
        add_places<K, int64_t><<<blocks, LKSI_THREADS, 0, stream>>>(p);
    }
    return lksi_cuda_launched(a);
}

template <class K>
static lks_status begin_places(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int64_t count, sorter<K> *s)
{
    void *p;
    if (count >= 0xffffffffll)
        return lksi_why(a, LKS_ERR_UNSUPPORTED, "%lld places; fewer than 2^32 can be sorted", (long long)count);
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, sort_bytes<K>(count), &p);
    if (code == LKS_OK) *s = sorter_of<K>(p, count);
    return code;
}

/* --- scatter: places along a dim --- */

/* w: y as if index were 0, index; places are offsets in y */
template <class K>
__global__ void __launch_bounds__(LKSI_THREADS)
    keys_along(walk<2> w, int64_t stride, int64_t rows, K nowhere, K *key, int op, lksi_fault fault)
{
    EACH(i, w.n) {
        int64_t at[2];
        w.seek(i, at);
        int64_t v = load<int64_t>(w.data[1], w.dtype[1], at[1]);
        bool bad = v < 0 || v >= rows;
        if (bad) fail(fault, LKSI_FAULT_INDEX, op, v, i, rows);
        key[i] = bad ? nowhere : (K)(at[0] + v * stride);
    }
}

template <class K>
static lks_status put_along(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *to,
                            const lksi_view *index, int64_t stride, int64_t limit, placing<K> p, int add)
{
    const lksi_view *view[2] = {to, index};
    sorter<K> s;
    lks_status code = begin_places(cuda, stream, a, p.count, &s);
    if (code != LKS_OK) return code;
    keys_along<K><<<blocks_for(p.count, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(
        walk_of<2>(view, true), stride, limit, (K)p.rows, s.key[0], a->op, lksi_cuda_fault(cuda));
    return place(stream, a, p, s, add);
}

static lks_status go_along(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int add)
{
    lks_status code = lksi_cuda_copy_view(stream, a, &a->out[0], &a->in[0]);
    if (code != LKS_OK) return code;
    lksi_view y = at_least_1d(&a->out[0]), index = at_least_1d(&a->in[1]), src = at_least_1d(&a->in[2]), to = y;
    const int dim = a->attr.dim.dim;
    const int64_t limit = y.shape[dim], n = count(&index);
    if (n == 0) return LKS_OK;
    /* Whole rows, if the index is the same for all of them and leaves nothing out. */
    bool by_row = true;
    for (int d = 0; d < index.ndim; d++) {
        src.shape[d] = index.shape[d];
        to.shape[d] = index.shape[d];
        if (d == dim) continue;
        by_row = by_row && index.shape[d] == y.shape[d] && (index.shape[d] == 1 || index.stride[d] == 0);
    }
    const lksi_view *view[1] = {&src};
    placing<uint32_t> p = {};
    p.src = walk_of<1>(view, true);
    p.y = y.data, p.dtype = y.dtype;
    int64_t stride = y.stride[dim];
    to.stride[dim] = 0;
    if (by_row) {
        p.outer = product(&y, 0, dim), p.rows = limit, p.count = index.shape[dim];
        p.n = product(&y, dim + 1, y.ndim);
        index.ndim = to.ndim = 1;
        index.shape[0] = to.shape[0] = p.count, index.stride[0] = index.stride[dim], to.stride[0] = 0;
        stride = 1;
    } else {
        p.outer = p.n = 1, p.rows = count(&y), p.count = n;
    }
    if (p.rows < 0xffffffffll) return put_along<uint32_t>(cuda, stream, a, &to, &index, stride, limit, p, add);
    placing<uint64_t> wide = {p.src, p.y, p.dtype, NULL, NULL, p.outer, p.rows, p.count, p.n};
    return put_along<uint64_t>(cuda, stream, a, &to, &index, stride, limit, wide, add);
}

LKSI_CUDA(scatter) { return go_along(cuda, stream, a, 0); }
LKSI_CUDA(index_copy) { return go_along(cuda, stream, a, 0); }
LKSI_CUDA(scatter_add) { return go_along(cuda, stream, a, 1); }

/* --- several indices --- */

struct picks {
    walk<LKS_MAX_DIMS + 1> index; /* 1 to n: the indices; 0 the shape that they broadcast to */
    int n;
    int64_t size[LKS_MAX_DIMS], times[LKS_MAX_DIMS];
};

/* to[i] = sum of index times `times`; negative indices count from the end. */
template <class K>
__global__ void __launch_bounds__(LKSI_THREADS) keys_of(picks p, K nowhere, K *to, int op, lksi_fault fault)
{
    EACH(i, p.index.n) {
        int64_t at[LKS_MAX_DIMS + 1], sum = 0;
        bool bad = false;
        p.index.seek(i, at);
#pragma unroll
        for (int k = 0; k < LKS_MAX_DIMS; k++) {
            if (k >= p.n) continue;
            int64_t v = load<int64_t>(p.index.data[k + 1], p.index.dtype[k + 1], at[k + 1]), size = p.size[k];
            if (v < -size || v >= size) {
                fail(fault, LKSI_FAULT_EITHER_END, op, v, i, size);
                bad = true;
            }
            sum += (v < 0 ? v + size : v) * p.times[k];
        }
        to[i] = bad ? nowhere : (K)sum;
    }
}

static picks picks_of(const lksi_view *x, int n, const lksi_view *index, lksi_view *shape)
{
    picks p = {};
    const lksi_view *view[LKS_MAX_DIMS + 1];
    for (int k = 0; k < LKS_MAX_DIMS; k++) view[k + 1] = k < n ? &index[k] : &index[0];
    shape->dtype = LKS_U8, shape->data = NULL;
    for (int d = 0; d < shape->ndim; d++) shape->stride[d] = 0;
    view[0] = shape;
    p.index = walk_of<LKS_MAX_DIMS + 1>(view, true);
    p.n = n;
    for (int k = 0; k < n; k++) p.size[k] = x->shape[k];
    return p;
}

/* y[i, :] = x from offset[i] on; w: one row of x */
template <class T>
__global__ void __launch_bounds__(LKSI_THREADS)
    pick_rows(T *y, const int64_t *offset, walk<1> row, int64_t places)
{
    EACH(e, places * row.n) {
        int64_t i = e / row.n, at[1], from = offset[i];
        row.seek(e - i * row.n, at);
        y[e] = from < 0 ? (T)0 : ((const T *)row.data[0])[from + at[0]];
    }
}

LKSI_CUDA(index)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    const int n = a->attr.put.n;
    lksi_view shape = *y, row = *x;
    shape.ndim = y->ndim - (x->ndim - n);
    picks p = picks_of(x, n, &a->in[1], &shape);
    if (p.index.n == 0) return LKS_OK;
    for (int k = 0; k < n; k++) p.times[k] = x->stride[k];
    void *offset;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, p.index.n * 8, &offset);
    if (code != LKS_OK) return code;
    keys_of<int64_t><<<blocks_for(p.index.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(p, -1, (int64_t *)offset, a->op,
                                                                                       lksi_cuda_fault(cuda));
    row.ndim = x->ndim - n;
    for (int d = 0; d < row.ndim; d++) row.shape[d] = x->shape[n + d], row.stride[d] = x->stride[n + d];
    const lksi_view *view[1] = {&row};
    walk<1> w = walk_of<1>(view, true);
    if (w.n == 0) return lksi_cuda_launched(a);
#define GO(T)                                                                                                  \
    pick_rows<T><<<blocks_for(p.index.n * w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(                      \
        (T *)y->data, (const int64_t *)offset, w, p.index.n)
    BY_SIZE(y->dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

template <class K>
static lks_status put_rows(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const picks &q, placing<K> p)
{
    sorter<K> s;
    lks_status code = begin_places(cuda, stream, a, p.count, &s);
    if (code != LKS_OK) return code;
    keys_of<K><<<blocks_for(p.count, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(q, (K)p.rows, s.key[0], a->op,
                                                                              lksi_cuda_fault(cuda));
    return place(stream, a, p, s, a->attr.put.accumulate);
}

LKSI_CUDA(index_put)
{
    const lksi_view *x = &a->in[0], *y = &a->out[0], *index = &a->in[2];
    const int n = a->attr.put.n;
    lks_status code = lksi_cuda_copy_view(stream, a, y, x);
    if (code != LKS_OK) return code;
    lksi_view shape = *x, values;
    shape.ndim = 0;
    for (int i = 0; i < n; i++)
        if (index[i].ndim > shape.ndim) shape.ndim = index[i].ndim;
    for (int d = 0; d < shape.ndim; d++) {
        shape.shape[d] = 1;
        for (int i = 0; i < n; i++) {
            int own = d - (shape.ndim - index[i].ndim);
            if (own >= 0 && index[i].shape[own] != 1) shape.shape[d] = index[i].shape[own];
        }
    }
    picks q = picks_of(x, n, index, &shape);
    if (q.index.n == 0) return LKS_OK;
    int64_t times = 1;
    for (int k = n - 1; k >= 0; k--) q.times[k] = times, times *= x->shape[k];
    /* values, broadcast to the places and the rest of x */
    values = a->in[1];
    values.ndim = shape.ndim + x->ndim - n;
    for (int d = 0; d < values.ndim; d++) {
        int own = d - (values.ndim - a->in[1].ndim);
        values.shape[d] = d < shape.ndim ? shape.shape[d] : x->shape[n + d - shape.ndim];
        values.stride[d] = own < 0 || a->in[1].shape[own] == 1 ? 0 : a->in[1].stride[own];
    }
    const lksi_view *view[1] = {&values};
    placing<uint32_t> p = {};
    p.src = walk_of<1>(view, true);
    p.y = y->data, p.dtype = y->dtype;
    p.outer = 1, p.rows = times, p.count = q.index.n, p.n = product(x, n, x->ndim);
    if (p.rows < 0xffffffffll) return put_rows<uint32_t>(cuda, stream, a, q, p);
    placing<uint64_t> wide = {p.src, p.y, p.dtype, NULL, NULL, p.outer, p.rows, p.count, p.n};
    return put_rows<uint64_t>(cuda, stream, a, q, wide);
}

__global__ void __launch_bounds__(LKSI_THREADS)
    mark(int64_t *y, walk<1> index, int64_t rows, int op, lksi_fault fault)
{
    EACH(e, index.n * rows) {
        int64_t place = e / rows, c = e - place * rows, at[1];
        index.seek(place, at);
        int64_t v = load<int64_t>(index.data[0], index.dtype[0], at[0]);
        if (c == 0 && (v < 0 || v >= rows)) fail(fault, LKSI_FAULT_INDEX, op, v, place, rows);
        y[e] = v == c;
    }
}

LKSI_CUDA(one_hot)
{
    const lksi_view *view[1] = {&a->in[0]};
    walk<1> index = walk_of<1>(view, true);
    const int64_t rows = a->attr.embedding.rows;
    if (index.n == 0) return LKS_OK;
    mark<<<blocks_for(index.n * rows, LKSI_THREADS), LKSI_THREADS, 0, stream>>>((int64_t *)a->out[0].data, index, rows,
                                                                                a->op, lksi_cuda_fault(cuda));
    return lksi_cuda_launched(a);
}

/* --- parts: each element of y is one of x, or the rest --- */

struct map {
    const void *x;
    void *y; /* dense */
    int ndim, small, p, q;
    int64_t n, base, shape[LKS_MAX_DIMS];
    divisor div[LKS_MAX_DIMS];
    int64_t first[LKS_MAX_DIMS], size[LKS_MAX_DIMS], stride[LKS_MAX_DIMS]; /* of x, over the dims of y */
    int64_t least, most; /* of index q less index p */
};

template <class T> __global__ void __launch_bounds__(LKSI_THREADS) move_mapped(const __grid_constant__ map m, T rest)
{
    EACH(i, m.n) {
        int64_t r = i, from = m.base, delta = 0;
        bool inside = true;
#pragma unroll
        for (int d = LKS_MAX_DIMS - 1; d >= 0; d--) {
            if (d >= m.ndim) continue;
            int64_t q = m.small ? (int64_t)((__umulhi((uint32_t)r, m.div[d].m) + (uint32_t)r) >> m.div[d].s)
                                : r / m.shape[d];
            int64_t c = r - q * m.shape[d], j = c - m.first[d];
            r = q;
            inside = inside && j >= 0 && j < m.size[d];
            from += j * m.stride[d];
            delta += d == m.q ? c : d == m.p ? -c : 0;
        }
        inside = inside && delta >= m.least && delta <= m.most;
        ((T *)m.y)[i] = inside ? ((const T *)m.x)[from] : rest;
    }
}

/* The identity of tensors of y's shape. */
static map map_of(const lksi_view *y, const lksi_view *x)
{
    map m = {};
    m.x = x->data, m.y = y->data, m.ndim = y->ndim, m.n = count(y), m.small = m.n < (int64_t)1 << 31;
    m.p = m.q = -1;
    m.least = INT64_MIN, m.most = INT64_MAX;
    for (int d = 0; d < y->ndim; d++) {
        m.shape[d] = m.size[d] = y->shape[d];
        m.div[d] = divisor_of(y->shape[d]);
    }
    for (int d = 0; d < x->ndim; d++) m.stride[d] = x->stride[d];
    return m;
}

static uint64_t bits_for(int dtype, double v)
{
    switch (dtype) {
    case LKS_F32: return lksi_bits_f32((float)v);
    case LKS_F64: return lksi_bits_f64(v);
    case LKS_F16: return lksi_f64_to_f16(v);
    case LKS_BF16: return lksi_f64_to_bf16(v);
    case LKS_I64: return (uint64_t)lksi_f64_to_i64(v);
    case LKS_I32: return (uint32_t)lksi_f64_to_i32(v);
    case LKS_U8: return lksi_f64_to_u8(v);
    case LKS_C64: return lksi_bits_f32((float)v); /* of the real part, which is the lower half */
    case LKS_C128: return lksi_bits_f64(v);
    default: return (lksi_bits_f64(v) & 0x7fffffffffffffffu) != 0;
    }
}

static lks_status move(cudaStream_t stream, const lksi_args *a, const map &m, int dtype, double rest)
{
    if (m.n == 0) return LKS_OK;
    const uint64_t bits = bits_for(dtype, rest);
#define GO(T) move_mapped<T><<<blocks_for(m.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(m, (T)bits)
    BY_SIZE(dtype, GO)
#undef GO
    return lksi_cuda_launched(a);
}

LKSI_CUDA(pad)
{
    (void)cuda;
    const lksi_view *x = &a->in[0];
    map m = map_of(&a->out[0], x);
    for (int d = 0; d < x->ndim; d++) m.first[d] = a->attr.pad.before[d], m.size[d] = x->shape[d];
    return move(stream, a, m, x->dtype, a->attr.pad.value);
}

LKSI_CUDA(triu)
{
    (void)cuda;
    map m = map_of(&a->out[0], &a->in[0]);
    m.p = m.ndim - 2, m.q = m.ndim - 1;
    if (a->attr.diagonal.upper) m.least = a->attr.diagonal.offset;
    else m.most = a->attr.diagonal.offset;
    return move(stream, a, m, a->out[0].dtype, 0);
}

LKSI_CUDA(flip)
{
    (void)cuda;
    map m = map_of(&a->out[0], &a->in[0]);
    for (int d = 0; d < m.ndim; d++) {
        if (!(a->attr.reduce.mask >> d & 1)) continue;
        m.base += (m.shape[d] - 1) * m.stride[d];
        m.stride[d] = -m.stride[d];
    }
    return move(stream, a, m, a->out[0].dtype, 0);
}

LKSI_CUDA(diag_embed)
{
    (void)cuda;
    const lksi_view *x = &a->in[0];
    lksi_view none = *x;
    none.ndim = 0;
    map m = map_of(&a->out[0], &none);
    m.p = a->attr.diagonal.d0, m.q = a->attr.diagonal.d1;
    m.least = m.most = a->attr.diagonal.offset;
    int k = 0;
    for (int d = 0; d < m.ndim; d++) {
        if (d != m.p && d != m.q) m.stride[d] = x->stride[k++];
    }
    /* The dim that begins where the diagonal does counts its elements. */
    m.stride[m.least > 0 ? m.p : m.q] = x->stride[k];
    return move(stream, a, m, x->dtype, 0);
}

/* --- trace --- */

template <class C> __global__ void __launch_bounds__(LKSI_THREADS)
    add_diagonal(void *y, int to, const void *x, int dtype, int64_t stride, int64_t n)
{
    __shared__ C part[LKSI_THREADS];
    C sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += LKSI_THREADS) sum = plus(sum, load<C>(x, dtype, i * stride));
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = LKSI_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] = plus(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) store(y, to, 0, part[0]);
}

LKSI_CUDA(trace)
{
    (void)cuda;
    const lksi_view *x = &a->in[0], *y = &a->out[0];
    const int64_t n = x->shape[0] < x->shape[1] ? x->shape[0] : x->shape[1], stride = x->stride[0] + x->stride[1];
    if (is_float(x->dtype))
        add_diagonal<double><<<1, LKSI_THREADS, 0, stream>>>(y->data, y->dtype, x->data, x->dtype, stride, n);
    else
        add_diagonal<int64_t><<<1, LKSI_THREADS, 0, stream>>>(y->data, y->dtype, x->data, x->dtype, stride, n);
    return lksi_cuda_launched(a);
}

/* --- cross --- */

__device__ inline float minor(float a, float b, float c, float d) { return a * b - c * d; }
__device__ inline double minor(double a, double b, double c, double d) { return a * b - c * d; }
__device__ inline int64_t minor(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (int64_t)((uint64_t)a * (uint64_t)b - (uint64_t)c * (uint64_t)d);
}

struct three { int64_t z, x, y; };

/* w: component 0 of z, x, y; `by`: strides from one to the next */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) cross_product(walk<3> w, three by)
{
    EACH(i, w.n) {
        int64_t at[3];
        C x[3], y[3];
        w.seek(i, at);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            x[k] = load<C>(w.data[1], w.dtype[1], at[1] + k * by.x);
            y[k] = load<C>(w.data[2], w.dtype[2], at[2] + k * by.y);
        }
#pragma unroll
        for (int k = 0; k < 3; k++) {
            int p = (k + 1) % 3, q = (k + 2) % 3;
            store(w.data[0], w.dtype[0], at[0] + k * by.z, minor(x[p], y[q], x[q], y[p]));
        }
    }
}

/* v without the dim that is `dim` of z; returns its stride */
static int64_t without(lksi_view *v, int ndim, int dim)
{
    int own = dim - (ndim - v->ndim);
    int64_t stride = v->stride[own];
    v->ndim--;
    for (int d = own; d < v->ndim; d++) v->shape[d] = v->shape[d + 1], v->stride[d] = v->stride[d + 1];
    return stride;
}

LKSI_CUDA(cross)
{
    (void)cuda;
    lksi_view x = a->in[0], y = a->in[1], z = a->out[0];
    const int dim = a->attr.dim.dim, ndim = z.ndim;
    three by;
    by.x = without(&x, ndim, dim), by.y = without(&y, ndim, dim), by.z = without(&z, ndim, dim);
    const lksi_view *view[3] = {&z, &x, &y};
    walk<3> w = walk_of<3>(view);
    if (w.n == 0) return LKS_OK;
    const unsigned blocks = blocks_for(w.n, LKSI_THREADS);
    switch (class_of(z.dtype)) {
    case CLASS_F32: cross_product<float><<<blocks, LKSI_THREADS, 0, stream>>>(w, by); break;
    case CLASS_F64: cross_product<double><<<blocks, LKSI_THREADS, 0, stream>>>(w, by); break;
    default: cross_product<int64_t><<<blocks, LKSI_THREADS, 0, stream>>>(w, by); break;
    }
    return lksi_cuda_launched(a);
}
