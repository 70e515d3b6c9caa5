/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rnn.cu - the part of a recurrent layer that goes step by step, for one direction, and its gradient: each step is one
 * product with the recurrent weight (blas.c) and one kernel for its gates. Reduced dtypes are computed in float32 from
 * step to step and rounded when they are written. Nothing is waited for between steps.
 */
#include "common.cuh"

using namespace lksi;

/* Scratch; those of products in blas.c are below. */
enum { WEIGHT = LKSI_CUDA_PRODUCT_SLOTS, STATE, PRODUCT };

struct steps {
    lksi_view x, h0, c0, states, dy, dx, dstate, dh0, dc0; /* absent: no memory */
    int kind, reverse, gates, keeps, lstm, op;
    int64_t T, B, H;
    const void *bias, *lengths;
    int bias_dtype;
    int64_t bias_step, lengths_step;
    void *kept; /* or NULL */
    lksi_fault fault;
};

/* What goes from step to step: [B, H] each. before: of the forward pass; pass: what skips the product. */
template <class C> struct memory {
    C *before, *next, *cell, *pass, *product;
};

template <class C> __device__ inline C at3(const lksi_view &v, int64_t t, int64_t r, int64_t j)
{
    return load<C>(v.data, v.dtype, t * v.stride[0] + r * v.stride[1] + j * v.stride[2]);
}
template <class C> __device__ inline void put3(const lksi_view &v, int64_t t, int64_t r, int64_t j, C x)
{
    store(v.data, v.dtype, t * v.stride[0] + r * v.stride[1] + j * v.stride[2], x);
}

__device__ inline float sigmoid_of(float x) { return lksi_sigmoidf(x); }
__device__ inline double sigmoid_of(double x) { return lksi_sigmoid(x); }
__device__ inline float tanh_of(float x) { return lksi_tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }

#define EACH_UNIT(s)                                                                                           \
    for (int64_t e = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; e < (s).B * (s).H;                      \
         e += (int64_t)gridDim.x * LKSI_THREADS)

__device__ inline int64_t length_of(const steps &s, int64_t r)
{
    return s.lengths ? ((const int64_t *)s.lengths)[r * s.lengths_step] : s.T;
}

/* The states before all steps; checks the lengths. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) begin(const __grid_constant__ steps s, memory<C> m)
{
    EACH_UNIT(s) {
        int64_t r = e / s.H, j = e - r * s.H, n = length_of(s, r);
        if (j == 0 && (n < 0 || n > s.T)) fail(s.fault, LKSI_FAULT_INDEX, s.op, n, r, s.T + 1);
        C h = s.h0.data ? load<C>(s.h0.data, s.h0.dtype, r * s.h0.stride[0] + j * s.h0.stride[1]) : (C)0;
        m.before[e] = h;
        put3(s.states, s.reverse ? s.T : 0, r, j, h);
        if (s.lstm)
            m.cell[e] = s.c0.data ? load<C>(s.c0.data, s.c0.dtype, r * s.c0.stride[0] + j * s.c0.stride[1]) : (C)0;
    }
}

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) end(const __grid_constant__ steps s, const C *cell)
{
    EACH_UNIT(s) { put3(s.states, s.T + 1, e / s.H, e % s.H, cell[e]); }
}

/* Gates of step t; product: [B, G H]. */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) forward(const __grid_constant__ steps s, memory<C> m, int64_t t)
{
    EACH_UNIT(s) {
        const int64_t r = e / s.H, j = e - r * s.H, K = s.keeps;
        C *kept = s.kept ? (C *)s.kept + (t * s.B + r) * K * s.H + j : NULL;
        C before = m.before[e], h = before;
        if (t >= length_of(s, r)) { /* past the end: the state stays */
            for (int k = 0; kept && k < K; k++) kept[k * s.H] = k == 4 ? m.cell[e] : (C)0;
        } else {
            C x[4], w[4];
#pragma unroll
            for (int g = 0; g < 4; g++) {
                if (g >= s.gates) continue;
                x[g] = at3<C>(s.x, t, r, g * s.H + j);
                w[g] = m.product[(r * s.gates + g) * s.H + j];
                w[g] += s.bias ? load<C>(s.bias, s.bias_dtype, (g * s.H + j) * s.bias_step) : (C)0;
            }
            if (s.kind == 3) {
                C i = sigmoid_of(x[0] + w[0]), f = sigmoid_of(x[1] + w[1]), g = tanh_of(x[2] + w[2]);
                C o = sigmoid_of(x[3] + w[3]), now = f * m.cell[e] + i * g;
                m.cell[e] = now;
                h = o * tanh_of(now);
                if (kept)
                    kept[0] = i, kept[s.H] = f, kept[2 * s.H] = g, kept[3 * s.H] = o, kept[4 * s.H] = now;
            } else if (s.kind == 2) {
                C u = sigmoid_of(x[0] + w[0]), z = sigmoid_of(x[1] + w[1]), v = tanh_of(x[2] + u * w[2]);
                h = v + z * (before - v);
                if (kept) kept[0] = u, kept[s.H] = z, kept[2 * s.H] = v, kept[3 * s.H] = w[2];
            } else {
                C v = x[0] + w[0];
                h = s.kind == 0 ? tanh_of(v) : v <= 0 ? (C)0 : v;
            }
        }
        m.next[e] = h;
        put3(s.states, s.reverse ? t : t + 1, r, j, h);
    }
}

/* The gradient of the last cells is the last row's; nothing else came yet. */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) begin_back(const __grid_constant__ steps s, memory<C> m)
{
    EACH_UNIT(s) {
        const int64_t r = e / s.H, j = e - r * s.H, n = length_of(s, r);
        if (j == 0 && (n < 0 || n > s.T)) fail(s.fault, LKSI_FAULT_INDEX, s.op, n, r, s.T + 1);
        m.pass[e] = 0;
        m.product[e] = 0;
        if (s.lstm) m.cell[e] = at3<C>(s.dy, s.T + 1, r, j);
    }
}

/* Slopes of step t from those of the step after it (product: [B, H]), to next [B, G H] and the outputs; t < 0: what is
 * left for the states before all. */
template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) backward(const __grid_constant__ steps s, memory<C> m, int64_t t)
{
    EACH_UNIT(s) {
        const int64_t r = e / s.H, j = e - r * s.H, at = t < 0 ? (s.reverse ? s.T : 0) : s.reverse ? t : t + 1;
        const C dh = m.product[e] + m.pass[e] + at3<C>(s.dy, at, r, j);
        if (t < 0) {
            store(s.dh0.data, s.dh0.dtype, r * s.dh0.stride[0] + j * s.dh0.stride[1], dh);
            if (s.lstm) store(s.dc0.data, s.dc0.dtype, r * s.dc0.stride[0] + j * s.dc0.stride[1], m.cell[e]);
            continue;
        }
        C d[4] = {0, 0, 0, 0}, x2 = 0, pass = 0;
        const C *kept = (const C *)s.kept + (t * s.B + r) * s.keeps * s.H + j;
        if (t >= length_of(s, r)) {
            pass = dh;
        } else if (s.kind == 2) {
            C u = kept[0], z = kept[s.H], v = kept[2 * s.H], w = kept[3 * s.H];
            C before = at3<C>(s.states, s.reverse ? t + 1 : t, r, j), dv = dh * (1 - z) * (1 - v * v);
            d[0] = dv * w * u * (1 - u);
            d[1] = dh * (before - v) * z * (1 - z);
            d[2] = dv * u;
            x2 = dv;
            pass = dh * z;
        } else if (s.kind == 3) {
            C i = kept[0], f = kept[s.H], g = kept[2 * s.H], o = kept[3 * s.H], c = tanh_of(kept[4 * s.H]), before = 0;
            const int64_t last = s.reverse ? t + 1 : t - 1;
            if (last >= 0 && last < s.T) before = ((const C *)s.kept)[((last * s.B + r) * s.keeps + 4) * s.H + j];
            else if (s.c0.data) before = load<C>(s.c0.data, s.c0.dtype, r * s.c0.stride[0] + j * s.c0.stride[1]);
            C all = m.cell[e] + dh * o * (1 - c * c);
            d[0] = all * g * i * (1 - i);
            d[1] = all * before * f * (1 - f);
            d[2] = all * i * (1 - g * g);
            d[3] = dh * c * o * (1 - o);
            m.cell[e] = all * f;
        } else {
            C h = at3<C>(s.states, at, r, j);
            d[0] = s.kind == 0 ? dh * (1 - h * h) : h <= 0 ? (C)0 : dh;
        }
        m.pass[e] = pass;
#pragma unroll
        for (int g = 0; g < 4; g++) {
            if (g >= s.gates) continue;
            m.next[(r * s.gates + g) * s.H + j] = d[g];
            put3(s.dx, t, r, g * s.H + j, s.kind == 2 && g == 2 ? x2 : d[g]);
            if (s.kind == 2) put3(s.dstate, t, r, g * s.H + j, d[g]);
        }
    }
}

static lksi_view dense2(void *data, int dtype, int64_t rows, int64_t columns)
{
    lksi_view v = {};
    v.data = data, v.dtype = dtype, v.ndim = 2;
    v.shape[0] = rows, v.shape[1] = columns, v.stride[0] = columns, v.stride[1] = 1;
    return v;
}

static lksi_view input(const lksi_args *a, int i)
{
    lksi_view none = {};
    none.ndim = -1;
    return i < a->nin && a->in[i].ndim >= 0 ? a->in[i] : none;
}

/* The weight in the compute type, and the memory of the steps. */
template <class C>
static lks_status prepare(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const steps &s, lksi_view *w,
                          bool back, memory<C> *m)
{
    const int dtype = sizeof(C) == 8 ? LKS_F64 : LKS_F32;
    const int64_t wide = s.gates * s.H, each = s.B * s.H;
    void *p;
    lks_status status = LKS_OK;
    if (w->dtype != dtype) {
        status = lksi_cuda_scratch(cuda, stream, a, WEIGHT, wide * s.H * (int64_t)sizeof(C) + 16, &p);
        if (status != LKS_OK) return status;
        lksi_view to = dense2(p, dtype, wide, s.H);
        status = lksi_cuda_copy_view(stream, a, &to, w);
        *w = to;
    }
    if (status == LKS_OK)
        status = lksi_cuda_scratch(cuda, stream, a, STATE, (4 + s.gates) * (each + 32) * (int64_t)sizeof(C), &p);
    if (status != LKS_OK) return status;
    const int64_t room = (each + 31) / 32 * 32; /* each begins on a line */
    m->cell = (C *)p, m->pass = m->cell + room, m->before = m->pass + room, m->next = m->before + room;
    status = lksi_cuda_scratch(cuda, stream, a, PRODUCT, (back ? each : s.B * wide) * (int64_t)sizeof(C) + 16, &p);
    m->product = (C *)p;
    return status;
}

static steps steps_of(lksi_cuda *cuda, const lksi_args *a, const lksi_view *states)
{
    steps s = {};
    s.kind = a->attr.rnn.kind, s.reverse = a->attr.rnn.reverse, s.lstm = s.kind == 3;
    s.gates = s.lstm ? 4 : s.kind == 2 ? 3 : 1;
    s.keeps = s.lstm ? 5 : s.kind == 2 ? 4 : 0;
    s.states = *states;
    s.T = states->shape[0] - 1 - s.lstm, s.B = states->shape[1], s.H = states->shape[2];
    s.op = a->op, s.fault = lksi_cuda_fault(cuda);
    lksi_view lengths = input(a, 5);
    if (lengths.ndim >= 0) s.lengths = lengths.data, s.lengths_step = lengths.stride[0];
    return s;
}

template <class C> static lks_status go(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, steps s, lksi_view w)
{
    memory<C> m;
    lks_status status = prepare<C>(cuda, stream, a, s, &w, false, &m);
    if (status != LKS_OK) return status;
    const unsigned blocks = blocks_for(s.B * s.H, LKSI_THREADS);
    const int64_t wide = s.gates * s.H;
    lksi_view right = w; /* [H, G H] */
    right.shape[0] = s.H, right.shape[1] = wide, right.stride[0] = w.stride[1], right.stride[1] = w.stride[0];
    begin<C><<<blocks, LKSI_THREADS, 0, stream>>>(s, m);
    for (int64_t k = 0; k < s.T; k++) {
        lksi_view left = dense2(m.before, right.dtype, s.B, s.H), z = dense2(m.product, right.dtype, s.B, wide);
        status = lksi_cuda_product(cuda, stream, a, &left, &right, &z);
        if (status != LKS_OK) return status;
        forward<C><<<blocks, LKSI_THREADS, 0, stream>>>(s, m, s.reverse ? s.T - 1 - k : k);
        C *swap = m.before;
        m.before = m.next, m.next = swap;
    }
    if (s.lstm) end<C><<<blocks, LKSI_THREADS, 0, stream>>>(s, m.cell);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(rnn_steps)
{
    steps s = steps_of(cuda, a, &a->out[0]);
    if (count(&a->out[0]) == 0) return LKS_OK;
    lksi_view bias = input(a, 2);
    s.x = a->in[0], s.h0 = input(a, 3), s.c0 = input(a, 4);
    if (bias.ndim >= 0) s.bias = bias.data, s.bias_dtype = bias.dtype, s.bias_step = bias.stride[0];
    s.kept = a->attr.rnn.save && s.keeps ? a->out[1].data : NULL;
    return s.states.dtype == LKS_F64 ? go<double>(cuda, stream, a, s, a->in[1])
                                     : go<float>(cuda, stream, a, s, a->in[1]);
}

template <class C>
static lks_status go_back(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, steps s, lksi_view w)
{
    memory<C> m;
    lks_status status = prepare<C>(cuda, stream, a, s, &w, true, &m);
    if (status != LKS_OK) return status;
    const unsigned blocks = blocks_for(s.B * s.H, LKSI_THREADS);
    const int64_t wide = s.gates * s.H;
    begin_back<C><<<blocks, LKSI_THREADS, 0, stream>>>(s, m);
    for (int64_t k = 0; k <= s.T; k++) {
        if (k > 0) {
            lksi_view left = dense2(m.next, w.dtype, s.B, wide), z = dense2(m.product, w.dtype, s.B, s.H);
            status = lksi_cuda_product(cuda, stream, a, &left, &w, &z);
            if (status != LKS_OK) return status;
        }
        backward<C><<<blocks, LKSI_THREADS, 0, stream>>>(s, m, k == s.T ? -1 : s.reverse ? k : s.T - 1 - k);
    }
    return lksi_cuda_launched(a);
}

LKSI_CUDA(rnn_steps_backward)
{
    steps s = steps_of(cuda, a, &a->in[1]);
    if (count(&a->in[1]) == 0) return LKS_OK;
    s.dy = a->in[0], s.kept = a->in[2].data, s.c0 = input(a, 4);
    s.dx = a->out[0], s.dstate = a->out[1], s.dh0 = a->out[2], s.dc0 = a->out[3];
    return s.states.dtype == LKS_F64 ? go_back<double>(cuda, stream, a, s, a->in[3])
                                     : go_back<float>(cuda, stream, a, s, a->in[3]);
}
