/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loss_class.cu - losses over classes besides cross entropy with classes as target: nll, cross entropy with
 * probabilities as target, the multi-class and the multi-label margin, and ctc (Graves et al., 2006), with their
 * backward rows. Losses of rows are double and added in tiles of a fixed size.
 */
#include "loss.cuh"

using namespace lksi;

#define WARPS (LKSI_THREADS / 32)

namespace {
struct classes {
    walk<4> rows; /* result of each row, x, target, dy or lse: first elements of a row */
    int64_t n;    /* classes */
    int64_t step[3]; /* from class to class: of the result, x and the target */
    const void *weight; /* or NULL */
    int weight_dtype, op, reduction;
    int64_t weight_step, ignore;
    double margin, smoothing;
    int p, strict, flags;
    lksi_fault fault;
};

__device__ inline double weight_of(const classes &s, int64_t j)
{
    return s.weight ? load<double>(s.weight, s.weight_dtype, j * s.weight_step) : 1.0;
}

/* What a row's gradient is multiplied by; count: what a mean is over. */
__device__ inline double given_at(const classes &s, int64_t at, double count)
{
    double g = load<double>(s.rows.data[3], s.rows.dtype[3], s.reduction == 0 ? at : 0);
    return s.reduction == 1 || s.reduction == 4 ? (count != 0 ? g / count : 0) : g;
}

__device__ inline double warp_sum(double x)
{
    for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(0xffffffffu, x, half);
    return x;
}

/* The target of a row; -1: ignored, or none of the classes (which lane 0 reports). */
__device__ inline int64_t target_at(const classes &s, int64_t at, int64_t row, bool tells)
{
    int64_t t = load<int64_t>(s.rows.data[2], s.rows.dtype[2], at);
    if (!s.strict && t == s.ignore) return -1;
    if (t >= 0 && t < s.n) return t;
    if (tells) fail(s.fault, LKSI_FAULT_TARGET, s.op, t, row, s.n);
    return -1;
}

/* --- nll --- */

/* A tile: a row a thread. */
__global__ void __launch_bounds__(LKSI_THREADS) nll_rows(const __grid_constant__ classes s, double *part, int64_t tiles)
{
    __shared__ double room[WARPS];
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        int64_t row = i * LKSI_THREADS + threadIdx.x, at[4];
        double loss = 0, weight = 0;
        if (row < s.rows.n) {
            s.rows.seek(row, at);
            int64_t t = target_at(s, at[2], row, true);
            if (t >= 0) {
                weight = weight_of(s, t);
                loss = -weight * load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + t * s.step[1]);
            }
            if (s.reduction == 0) store(s.rows.data[0], s.rows.dtype[0], at[0], loss);
        }
        loss = block_sum(loss, room);
        weight = block_sum(weight, room);
        if (threadIdx.x == 0) part[2 * i] = loss, part[2 * i + 1] = weight;
    }
}

/* w: dx, target and dy over its shape; class: (element / inner) % n */
__global__ void __launch_bounds__(LKSI_THREADS)
    nll_back(const __grid_constant__ classes s, walk<3> w, int64_t inner, const void *count, int count_dtype)
{
    const int64_t step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < w.n; i += step) {
        int64_t at[3], class_ = i / inner % s.n, t;
        double v = 0;
        w.seek(i, at);
        t = load<int64_t>(w.data[1], w.dtype[1], at[1]);
        if (t != s.ignore && (t < 0 || t >= s.n) && class_ == 0) fail(s.fault, LKSI_FAULT_TARGET, s.op, t, i, s.n);
        if (t == class_ && t != s.ignore) {
            double g = load<double>(w.data[2], w.dtype[2], at[2]);
            if (s.reduction == 1 || s.reduction == 4) {
                double c = load<double>(count, count_dtype, 0);
                g = c != 0 ? g / c : 0;
            }
            v = -weight_of(s, t) * g;
        }
        store(w.data[0], w.dtype[0], at[0], v);
    }
}

/* --- cross entropy with probabilities --- */

template <class C> __device__ inline C power_of_e(C x);
template <> __device__ inline float power_of_e(float x) { return lksi_exp_negative(x); }
template <> __device__ inline double power_of_e(double x) { return exp(x); }

/* The target as the loss takes it: w ((1 - smoothing) t + smoothing / n). */
template <class C> __device__ inline C soft_target(const classes &s, const int64_t at[4], int64_t j)
{
    C t = load<C>(s.rows.data[2], s.rows.dtype[2], at[2] + j * s.step[2]);
    if (s.smoothing > 0) t = (C)(1 - s.smoothing) * t + (C)(s.smoothing / (double)s.n);
    return s.weight ? (C)weight_of(s, j) * t : t;
}

/* Largest logit and sum of e^(x - max), by LANES threads; all of them have them. */
template <class C, int LANES> __device__ inline void soft_scan(const classes &s, int64_t at, C *max, C *sum)
{
    C m = -INFINITY, e = 0;
    for (int64_t j = threadIdx.x % LANES; j < s.n; j += LANES) {
        C x = load<C>(s.rows.data[1], s.rows.dtype[1], at + j * s.step[1]);
        if (x > m) e *= m == -INFINITY ? (C)0 : power_of_e(m - x), m = x;
        e += m == -INFINITY ? (x == x ? (C)0 : x) : power_of_e(x - m);
    }
    if (LANES > 1)
        for (int half = 16; half > 0; half /= 2) {
            C n = __shfl_xor_sync(0xffffffffu, m, half), f = __shfl_xor_sync(0xffffffffu, e, half);
            C top = n > m ? n : m, from = top == -INFINITY ? (C)0 : top;
            /* the lower lane's part first, so that both add alike */
            C mine = e * power_of_e(m - from), its = f * power_of_e(n - from);
            e = threadIdx.x & half ? its + mine : mine + its, m = top;
        }
    *max = m;
    *sum = m == -INFINITY ? m - m : e; /* no probability of anything: NaN */
}

template <class C, int LANES>
__global__ void __launch_bounds__(LKSI_THREADS)
    soft_rows(const __grid_constant__ classes s, double *part, int64_t tiles)
{
    enum { GROUPS = LKSI_THREADS / LANES };
    __shared__ double room[WARPS];
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        int64_t row = i * GROUPS + threadIdx.x / LANES, at[4];
        double loss = 0;
        if (row < s.rows.n) {
            C max, sum;
            double against = 0, share = 0;
            s.rows.seek(row, at);
            soft_scan<C, LANES>(s, at[1], &max, &sum);
            for (int64_t j = threadIdx.x % LANES; j < s.n; j += LANES) {
                C q = soft_target<C>(s, at, j);
                C x = load<C>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]);
                against += q == 0 ? 0.0 : (double)(q * (max - x));
                share += (double)q;
            }
            if (LANES > 1) against = warp_sum(against), share = warp_sum(share);
            if (threadIdx.x % LANES == 0) {
                double log_sum = log((double)sum);
                loss = against + share * log_sum;
                if (s.reduction == 0) store(s.rows.data[0], s.rows.dtype[0], at[0], loss);
                store(s.rows.data[3], s.rows.dtype[3], at[3], (double)max + log_sum);
            }
        }
        loss = block_sum(loss, room);
        if (threadIdx.x == 0) part[2 * i] = loss, part[2 * i + 1] = 0;
    }
}

/* dx = g (sum(q) p - q); dt = g w (1 - smoothing) (lse - x). rows: dx, x, target, dy; `more`: lse, dt */
template <class C, int LANES>
__global__ void __launch_bounds__(LKSI_THREADS)
    soft_back(const __grid_constant__ classes s, const __grid_constant__ walk<2> more, int64_t dt_step)
{
    enum { GROUPS = LKSI_THREADS / LANES };
    for (int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / LANES; row < s.rows.n;
         row += (int64_t)gridDim.x * GROUPS) {
        int64_t at[4], to[2];
        C max, sum;
        double share = 0;
        s.rows.seek(row, at);
        more.seek(row, to);
        soft_scan<C, LANES>(s, at[1], &max, &sum);
        for (int64_t j = threadIdx.x % LANES; j < s.n; j += LANES) share += (double)soft_target<C>(s, at, j);
        if (LANES > 1) share = warp_sum(share);
        const C g = (C)given_at(s, at[3], (double)s.rows.n), scale = (C)share / sum;
        const double lse = load<double>(more.data[0], more.dtype[0], to[0]);
        for (int64_t j = threadIdx.x % LANES; j < s.n; j += LANES) {
            C x = load<C>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]);
            C d = g * (power_of_e(x - max) * scale - soft_target<C>(s, at, j));
            store(s.rows.data[0], s.rows.dtype[0], at[0] + j * s.step[0], d);
            if (s.flags & 1)
                store(more.data[1], more.dtype[1], to[1] + j * dt_step,
                      g * (C)(1 - s.smoothing) * (C)weight_of(s, j) * (C)(lse - (double)x));
        }
    }
}

/* --- multi-class margin: a warp a row --- */

/* max(0, margin - x[t] + x[j]); NaN stays. */
__device__ inline double over(const classes &s, double xt, double xj, bool is)
{
    double z = s.margin - xt + xj;
    return z < 0 || is ? 0 : z;
}

__global__ void __launch_bounds__(LKSI_THREADS)
    margin_rows(const __grid_constant__ classes s, double *part, int64_t tiles)
{
    __shared__ double room[WARPS];
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        int64_t row = i * WARPS + threadIdx.x / 32, at[4], lane = threadIdx.x % 32;
        double loss = 0;
        if (row < s.rows.n) {
            s.rows.seek(row, at);
            int64_t t = target_at(s, at[2], row, lane == 0);
            if (t >= 0) {
                double xt = load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + t * s.step[1]);
                for (int64_t j = lane; j < s.n; j += 32) {
                    double x = load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]);
                    double z = over(s, xt, x, j == t);
                    loss += s.p == 2 ? z * z : z;
                }
                loss = warp_sum(loss) * (weight_of(s, t) / (double)s.n);
            }
            if (lane != 0) loss = 0;
            else if (s.reduction == 0) store(s.rows.data[0], s.rows.dtype[0], at[0], loss);
        }
        loss = block_sum(loss, room);
        if (threadIdx.x == 0) part[2 * i] = loss, part[2 * i + 1] = 0;
    }
}

__global__ void __launch_bounds__(LKSI_THREADS) margin_back(const __grid_constant__ classes s)
{
    const int64_t lane = threadIdx.x % 32;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < s.rows.n;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t at[4];
        s.rows.seek(row, at);
        int64_t t = target_at(s, at[2], row, lane == 0);
        double g = given_at(s, at[3], (double)s.rows.n), xt = 0, w = 0, slopes = 0;
        if (t >= 0) {
            xt = load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + t * s.step[1]);
            w = weight_of(s, t) / (double)s.n;
        }
        for (int64_t j = lane; j < s.n; j += 32) {
            double z = t < 0 ? 0 : over(s, xt, load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]),
                                        j == t);
            double d = w * (s.p == 2 ? 2 * z : z > 0 ? 1.0 : z);
            slopes += d;
            if (j != t) store(s.rows.data[0], s.rows.dtype[0], at[0] + j * s.step[0], d * g);
        }
        slopes = warp_sum(slopes);
        if (lane == 0 && t >= 0) store(s.rows.data[0], s.rows.dtype[0], at[0] + t * s.step[0], -slopes * g);
    }
}

/* --- multi-label margin: a warp a row --- */

/* Length of a row's list of labels, which ends at -1. */
__device__ inline int64_t labels_of(const classes &s, int64_t at, int64_t row, bool tells)
{
    int64_t i = 0;
    for (; i < s.n; i++) {
        int64_t k = load<int64_t>(s.rows.data[2], s.rows.dtype[2], at + i * s.step[2]);
        if (k >= 0 && k < s.n) continue;
        if (k != -1 && tells) fail(s.fault, LKSI_FAULT_TARGET, s.op, k, row, s.n);
        break;
    }
    return i;
}

__device__ inline int64_t label_at(const classes &s, int64_t at, int64_t i)
{
    return load<int64_t>(s.rows.data[2], s.rows.dtype[2], at + i * s.step[2]);
}

/* is[class]: how often it is a label; [rows][n], written here and read by the same warp. */
__device__ inline void mark_labels(const classes &s, int64_t at, int64_t labels, int32_t *is)
{
    for (int64_t j = threadIdx.x % 32; j < s.n; j += 32) {
        int32_t times = 0;
        for (int64_t i = 0; i < labels; i++) times += label_at(s, at, i) == j;
        is[j] = times;
    }
    __syncwarp();
}

__global__ void __launch_bounds__(LKSI_THREADS)
    labels_rows(const __grid_constant__ classes s, int32_t *is, double *part, int64_t tiles)
{
    __shared__ double room[WARPS];
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t row = tile * WARPS + threadIdx.x / 32, at[4], lane = threadIdx.x % 32;
        double loss = 0;
        if (row < s.rows.n) {
            s.rows.seek(row, at);
            int64_t labels = labels_of(s, at[2], row, lane == 0);
            int32_t *mine = is + row * s.n;
            mark_labels(s, at[2], labels, mine);
            for (int64_t j = lane; j < s.n; j += 32) {
                if (mine[j]) continue;
                double x = load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]);
                for (int64_t i = 0; i < labels; i++) {
                    double z = 1 - load<double>(s.rows.data[1], s.rows.dtype[1],
                                                at[1] + label_at(s, at[2], i) * s.step[1]) + x;
                    if (!(z <= 0)) loss += z;
                }
            }
            loss = warp_sum(loss) * (1 / (double)s.n);
            if (lane != 0) loss = 0;
            else if (s.reduction == 0) store(s.rows.data[0], s.rows.dtype[0], at[0], loss);
        }
        loss = block_sum(loss, room);
        if (threadIdx.x == 0) part[2 * tile] = loss, part[2 * tile + 1] = 0;
    }
}

__global__ void __launch_bounds__(LKSI_THREADS) labels_back(const __grid_constant__ classes s, int32_t *is)
{
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < s.rows.n;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t at[4], lane = threadIdx.x % 32;
        s.rows.seek(row, at);
        int64_t labels = labels_of(s, at[2], row, lane == 0);
        int32_t *mine = is + row * s.n;
        mark_labels(s, at[2], labels, mine);
        const double g = given_at(s, at[3], (double)s.rows.n), each = 1 / (double)s.n;
        for (int64_t j = lane; j < s.n; j += 32) {
            double x = load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + j * s.step[1]);
            int64_t hits = 0;
            if (mine[j]) { /* against all that are no labels */
                for (int64_t k = 0; k < s.n; k++) {
                    double z = 1 - x + load<double>(s.rows.data[1], s.rows.dtype[1], at[1] + k * s.step[1]);
                    hits -= !mine[k] && !(z <= 0) ? mine[j] : 0;
                }
            } else { /* against all labels */
                for (int64_t i = 0; i < labels; i++) {
                    double z = 1 - load<double>(s.rows.data[1], s.rows.dtype[1],
                                                at[1] + label_at(s, at[2], i) * s.step[1]) + x;
                    hits += !(z <= 0);
                }
            }
            store(s.rows.data[0], s.rows.dtype[0], at[0] + j * s.step[0], each * (double)hits * g);
        }
    }
}

/* --- ctc: a block a sample; all is in logarithms, as on the CPU --- */

struct ctc {
    const void *x, *dy;
    void *nll, *dx;
    int dtype, nll_dtype, dx_dtype, dy_dtype, target_dtype, input_dtype, length_dtype, reduction, flags, op;
    int64_t xs[3], ds[3], ts[2], input_step, length_step, dy_step, nll_step; /* strides */
    const void *target, *input, *length;
    int64_t steps, samples, classes, most, blank; /* most: labels of a sample */
    char *memory;                                 /* of each sample: rows of states */
    int64_t each, row;
    lksi_fault fault;
};

__device__ inline float exp_of(float x) { return lksi_expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float log_of(float x) { return lksi_logf(x); }
__device__ inline double log_of(double x) { return log(x); }

template <class C> __device__ inline C log_add(C a, C b, C c)
{
    C m = a > b ? a : b;
    m = m > c ? m : c;
    m = m == (C)-INFINITY ? (C)0 : m;
    return m + log_of(exp_of(a - m) + exp_of(b - m) + exp_of(c - m));
}

template <class C, bool MAX> __device__ inline C fold(C x, C *room)
{
    for (int half = 16; half > 0; half /= 2) {
        C y = __shfl_xor_sync(0xffffffffu, x, half);
        x = MAX ? (y > x || x != x ? y : x) : x + y;
    }
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
    for (int k = 1; k < WARPS; k++) x = MAX ? (room[k] > x || x != x ? room[k] : x) : x + room[k];
    __syncthreads();
    return x;
}

/* A sample's part of it. */
template <class C> struct sample {
    int64_t n, steps, labels, states;
    __device__ int64_t label(const ctc &s, int64_t i) const
    {
        return load<int64_t>(s.target, s.target_dtype, n * s.ts[0] + i * s.ts[1]);
    }
    __device__ int64_t of_state(const ctc &s, int64_t i) const { return i % 2 ? label(s, i / 2) : s.blank; }
    __device__ C emission(const ctc &s, int64_t t, int64_t i) const
    {
        return load<C>(s.x, s.dtype, t * s.xs[0] + n * s.xs[1] + of_state(s, i) * s.xs[2]);
    }
    /* 1 where state i may be reached from i - 2. */
    __device__ bool skips(const ctc &s, int64_t i) const
    {
        return i % 2 && i >= 3 && label(s, i / 2) != label(s, i / 2 - 1);
    }
};

template <class C> __device__ inline sample<C> sample_of(const ctc &s, int64_t n)
{
    sample<C> p;
    p.n = n;
    p.steps = load<int64_t>(s.input, s.input_dtype, n * s.input_step);
    p.labels = load<int64_t>(s.length, s.length_dtype, n * s.length_step);
    const bool tells = threadIdx.x == 0;
    if (p.steps < 0 || p.steps > s.steps) {
        if (tells) fail(s.fault, LKSI_FAULT_TARGET, s.op, p.steps, n, s.steps + 1);
        p.steps = 0;
    }
    if (p.labels < 0 || p.labels > s.most) {
        if (tells) fail(s.fault, LKSI_FAULT_TARGET, s.op, p.labels, n, s.most + 1);
        p.labels = 0;
    }
    for (int64_t i = 0; i < p.labels; i++) { /* the same for all threads */
        int64_t k = p.label(s, i);
        if (k >= 0 && k < s.classes && k != s.blank) continue;
        if (tells) fail(s.fault, LKSI_FAULT_TARGET, s.op, k, n, s.classes);
        p.labels = 0;
        break;
    }
    p.states = 2 * p.labels + 1;
    return p;
}

/* Rows of alpha, `keep` of them in turns (2, or all); returns -log of the probability. */
template <class C> __device__ double ctc_forward(const ctc &s, const sample<C> &p, C *alpha, int64_t keep, C *room)
{
    if (p.steps == 0) return p.labels == 0 ? 0 : INFINITY;
    double off = 0;
    for (int64_t t = 0; t < p.steps; t++) {
        C *now = alpha + t % keep * s.row, top = -INFINITY;
        const C *last = alpha + (t + keep - 1) % keep * s.row;
        for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) {
            C v = -INFINITY;
            if (t == 0) {
                if (i < 2) v = p.emission(s, 0, i);
            } else {
                v = log_add(last[i], i > 0 ? last[i - 1] : (C)-INFINITY, p.skips(s, i) ? last[i - 2] : (C)-INFINITY) +
                    p.emission(s, t, i);
            }
            now[i] = v;
            top = v > top || top != top ? v : top;
        }
        top = fold<C, true>(top, room);
        if (top > (C)-INFINITY) {
            off += (double)top;
            for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) now[i] -= top;
        }
        __syncthreads();
    }
    const C *end = alpha + (p.steps - 1) % keep * s.row;
    return -(off + (double)log_add(end[p.states - 1], p.states > 1 ? end[p.states - 2] : (C)-INFINITY, (C)-INFINITY));
}

/* loss: of each sample, as it is reduced; or NULL */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) ctc_rows(const __grid_constant__ ctc s, double *loss)
{
    __shared__ C room[WARPS];
    for (int64_t n = blockIdx.x; n < s.samples; n += gridDim.x) {
        sample<C> p = sample_of<C>(s, n);
        double v = ctc_forward<C>(s, p, (C *)(s.memory + n * s.each), 2, room);
        __syncthreads();
        if (threadIdx.x != 0) continue;
        store(s.nll, s.nll_dtype, n * s.nll_step, v);
        if (s.flags & 1 && v == INFINITY) v = 0;
        if (s.reduction == 1 || s.reduction == 4) v /= (double)(p.labels > 0 ? p.labels : 1);
        loss[2 * n] = v, loss[2 * n + 1] = 1;
        if (s.reduction == 0) store(s.dx, s.dx_dtype, n * s.ds[0], v);
    }
}

/* The gradient of log_probs[t] is minus the probability of each label at t given the target. */
template <class C> __global__ void __launch_bounds__(LKSI_THREADS) ctc_back(const __grid_constant__ ctc s)
{
    __shared__ C room[WARPS];
    for (int64_t n = blockIdx.x; n < s.samples; n += gridDim.x) {
        sample<C> p = sample_of<C>(s, n);
        C *beta = (C *)(s.memory + n * s.each), *next = beta + s.row, *gamma = next + s.row, *alpha = gamma + s.row;
        const double nll = ctc_forward<C>(s, p, alpha, s.steps > 0 ? s.steps : 1, room);
        double given = load<double>(s.dy, s.dy_dtype, s.reduction == 0 ? n * s.dy_step : 0);
        if (s.reduction == 1 || s.reduction == 4)
            given /= (double)s.samples * (double)(p.labels > 0 ? p.labels : 1);
        const C g = (C)given;
        const bool none = nll == INFINITY;
        const C nothing = none && !(s.flags & 1) ? (C)NAN : (C)0;
        for (int64_t e = threadIdx.x; e < s.steps * s.classes; e += LKSI_THREADS) {
            int64_t t = e / s.classes;
            store(s.dx, s.dx_dtype, t * s.ds[0] + n * s.ds[1] + (e - t * s.classes) * s.ds[2],
                  t < p.steps ? nothing : (C)0);
        }
        for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS)
            beta[i] = i >= p.states - 2 ? (C)0 : (C)-INFINITY;
        __syncthreads();
        if (none) continue;
        for (int64_t t = p.steps - 1; t >= 0; t--) {
            const C *a = alpha + t * s.row;
            C top = -INFINITY, sum = 0, blanks = 0;
            for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) {
                C v = a[i] + beta[i];
                gamma[i] = v;
                top = v > top || top != top ? v : top;
            }
            top = fold<C, true>(top, room);
            for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) {
                C v = exp_of(gamma[i] - top);
                gamma[i] = v;
                sum += v;
                if (i % 2 == 0) blanks += v;
            }
            sum = fold<C, false>(sum, room);
            blanks = fold<C, false>(blanks, room);
            const C scale = -g / sum;
            const int64_t to = t * s.ds[0] + n * s.ds[1];
            if (threadIdx.x == 0)
                store(s.dx, s.dx_dtype, to + s.blank * s.ds[2], blanks == 0 ? (C)0 : blanks * scale);
            /* The first of the states of a label adds them up. */
            for (int64_t i = 2 * threadIdx.x + 1; i < p.states; i += 2 * LKSI_THREADS) {
                const int64_t label = p.label(s, i / 2);
                bool first = true;
                for (int64_t k = 1; k < i && first; k += 2) first = p.label(s, k / 2) != label;
                if (!first) continue;
                C v = 0;
                for (int64_t k = i; k < p.states; k += 2) v += p.label(s, k / 2) == label ? gamma[k] : (C)0;
                store(s.dx, s.dx_dtype, to + label * s.ds[2], v == 0 ? (C)0 : v * scale);
            }
            if (t == 0) break;
            __syncthreads();
            for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) gamma[i] = beta[i] + p.emission(s, t, i);
            __syncthreads();
            top = -INFINITY;
            for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) {
                C v = log_add(gamma[i], i + 1 < p.states ? gamma[i + 1] : (C)-INFINITY,
                              i + 2 < p.states && p.skips(s, i + 2) ? gamma[i + 2] : (C)-INFINITY);
                next[i] = v;
                top = v > top || top != top ? v : top;
            }
            top = fold<C, true>(top, room);
            if (top > (C)-INFINITY)
                for (int64_t i = threadIdx.x; i < p.states; i += LKSI_THREADS) next[i] -= top;
            __syncthreads();
            C *swap = beta;
            beta = next;
            next = swap;
        }
        __syncthreads();
    }
}

/* --- rows: host parts --- */

int class_dim(const lksi_view *x) { return x->ndim > 1; }
int64_t class_step(const lksi_view *x)
{
    int d = class_dim(x);
    return x->shape[d] == 1 ? 1 : x->stride[d];
}

/* [C] has one row. */
lksi_view rows_view(const lksi_view *x) { return without_classes(x); }

classes describe(lksi_cuda *cuda, const lksi_args *a, const lksi_view *x, const lksi_view *weight)
{
    classes s = {};
    s.n = x->shape[class_dim(x)];
    s.step[1] = class_step(x);
    s.op = a->op;
    s.reduction = a->attr.loss.reduction;
    s.ignore = a->attr.loss.ignore_index;
    s.margin = a->attr.loss.a;
    s.smoothing = a->attr.loss.smoothing;
    s.p = a->attr.loss.p;
    s.flags = a->attr.loss.flags;
    s.fault = lksi_cuda_fault(cuda);
    if (weight) s.weight = weight->data, s.weight_dtype = weight->dtype, s.weight_step = weight->stride[0];
    return s;
}

/* rows: those of the first view; what has no dims or no meaning there is repeated. */
void set_rows(classes *s, const lksi_view *y, const lksi_view *x, const lksi_view *t, const lksi_view *dy)
{
    const lksi_view *view[4] = {y, x, t, dy};
    s->rows = walk_of<4>(view, true);
}

lks_status parts(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int64_t tiles, void **part)
{
    return lksi_cuda_scratch(cuda, stream, a, 0, tiles * 16 + 16, part);
}

/* fixed: a mean is over `divisor`, else over what the tiles counted. */
lks_status finish_rows(cudaStream_t stream, const lksi_args *a, const lksi_view *count, const void *part, int64_t tiles,
                       bool fixed, double divisor)
{
    const int reduction = a->attr.loss.reduction;
    const bool mean = reduction == 1 || reduction == 4;
    result r = {reduction ? a->out[0].data : NULL, count ? count->data : NULL, a->out[0].dtype,
                count ? count->dtype : 0, reduction, fixed, mean ? divisor : 1};
    finish<<<1, LKSI_THREADS, 0, stream>>>(r, (const double *)part, tiles);
    return lksi_cuda_launched(a);
}
} // namespace

LKSI_CUDA(nll_loss)
{
    const lksi_view *x = &a->in[0], *t = &a->in[1];
    classes s = describe(cuda, a, x, given(a, 2));
    lksi_view x_rows = rows_view(x);
    set_rows(&s, s.reduction ? t : &a->out[0], &x_rows, t, t);
    if (s.reduction) s.rows.data[0] = NULL;
    const int64_t tiles = (s.rows.n + LKSI_THREADS - 1) / LKSI_THREADS;
    void *part;
    lks_status status = parts(cuda, stream, a, tiles, &part);
    if (status != LKS_OK) return status;
    if (tiles > 0) nll_rows<<<blocks_for(tiles, 1), LKSI_THREADS, 0, stream>>>(s, (double *)part, tiles);
    return finish_rows(stream, a, &a->out[1], part, tiles, false, 1);
}

LKSI_CUDA(nll_loss_backward)
{
    const lksi_view *dx = &a->out[0], *count = &a->in[2];
    classes s = describe(cuda, a, dx, given(a, 3));
    lksi_view t = *dx, dy = *dx;
    const int d = class_dim(dx);
    int64_t inner = 1;
    t.data = a->in[1].data, t.dtype = a->in[1].dtype, dy.data = a->in[0].data, dy.dtype = a->in[0].dtype;
    for (int i = 0, k = 0; i < dx->ndim; i++) {
        t.stride[i] = i == d ? 0 : a->in[1].stride[k];
        dy.stride[i] = i == d || s.reduction ? 0 : a->in[0].stride[k];
        k += i != d;
        if (i > d) inner *= dx->shape[i];
    }
    if (dx->ndim == 1) t.stride[0] = dy.stride[0] = 0;
    const lksi_view *view[3] = {dx, &t, &dy};
    walk<3> w = walk_of<3>(view, true);
    if (w.n == 0) return LKS_OK;
    nll_back<<<blocks_for(w.n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(s, w, inner, count->data, count->dtype);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(cross_entropy_soft)
{
    const lksi_view *x = &a->in[0], *t = &a->in[1], *lse = &a->out[1];
    classes s = describe(cuda, a, x, given(a, 2));
    lksi_view x_rows = rows_view(x), t_rows = rows_view(t);
    s.step[2] = class_step(t);
    set_rows(&s, s.reduction ? lse : &a->out[0], &x_rows, &t_rows, lse);
    const bool alone = s.step[1] != 1 || s.n <= 16, dbl = x->dtype == LKS_F64 || t->dtype == LKS_F64;
    const int64_t each = alone ? LKSI_THREADS : WARPS, tiles = (s.rows.n + each - 1) / each;
    const unsigned blocks = blocks_for(tiles, 1);
    void *p;
    lks_status status = parts(cuda, stream, a, tiles, &p);
    if (status != LKS_OK) return status;
    double *part = (double *)p;
    if (tiles > 0 && dbl && alone) soft_rows<double, 1><<<blocks, LKSI_THREADS, 0, stream>>>(s, part, tiles);
    else if (tiles > 0 && dbl) soft_rows<double, 32><<<blocks, LKSI_THREADS, 0, stream>>>(s, part, tiles);
    else if (tiles > 0 && alone) soft_rows<float, 1><<<blocks, LKSI_THREADS, 0, stream>>>(s, part, tiles);
    else if (tiles > 0) soft_rows<float, 32><<<blocks, LKSI_THREADS, 0, stream>>>(s, part, tiles);
    const bool over_none = s.reduction == 1 && s.rows.n == 0; /* gives 0 */
    return finish_rows(stream, a, NULL, part, tiles, true, over_none ? 1 : (double)s.rows.n);
}

LKSI_CUDA(cross_entropy_soft_backward)
{
    const lksi_view *x = &a->in[1], *t = &a->in[2], *lse = &a->in[3], *dx = &a->out[0];
    classes s = describe(cuda, a, x, given(a, 4));
    lksi_view x_rows = rows_view(x), t_rows = rows_view(t), dx_rows = rows_view(dx);
    lksi_view dt_rows = s.flags & 1 ? rows_view(&a->out[1]) : *lse;
    s.step[0] = class_step(dx), s.step[2] = class_step(t);
    set_rows(&s, &dx_rows, &x_rows, &t_rows, s.reduction ? lse : &a->in[0]);
    s.rows.data[3] = a->in[0].data, s.rows.dtype[3] = a->in[0].dtype;
    const lksi_view *view[2] = {lse, &dt_rows};
    walk<2> more = walk_of<2>(view, true);
    if (s.rows.n == 0 || s.n == 0) return LKS_OK;
    const int64_t dt_step = s.flags & 1 ? class_step(&a->out[1]) : 0;
    const bool alone = s.step[1] != 1 || s.n <= 16, dbl = x->dtype == LKS_F64 || t->dtype == LKS_F64;
    const unsigned blocks = blocks_for(s.rows.n, alone ? LKSI_THREADS : WARPS);
    if (dbl && alone) soft_back<double, 1><<<blocks, LKSI_THREADS, 0, stream>>>(s, more, dt_step);
    else if (dbl) soft_back<double, 32><<<blocks, LKSI_THREADS, 0, stream>>>(s, more, dt_step);
    else if (alone) soft_back<float, 1><<<blocks, LKSI_THREADS, 0, stream>>>(s, more, dt_step);
    else soft_back<float, 32><<<blocks, LKSI_THREADS, 0, stream>>>(s, more, dt_step);
    return lksi_cuda_launched(a);
}

/* Rows of the margins; labels: the target has x's shape. Backward: x is input 1. */
static classes margin_of(lksi_cuda *cuda, const lksi_args *a, bool backward, bool labels)
{
    const lksi_view *x = &a->in[backward], *t = &a->in[backward + 1];
    classes s = describe(cuda, a, x, labels ? NULL : given(a, backward + 2));
    lksi_view x_rows = rows_view(x), t_rows = labels ? rows_view(t) : *t, y_rows = x_rows;
    s.strict = 1;
    if (labels) s.step[2] = class_step(t);
    if (backward) y_rows = rows_view(&a->out[0]), s.step[0] = class_step(&a->out[0]);
    else if (s.reduction == 0) y_rows = a->out[0];
    set_rows(&s, &y_rows, &x_rows, &t_rows, backward && s.reduction == 0 ? &a->in[0] : &x_rows);
    if (backward) s.rows.data[3] = a->in[0].data, s.rows.dtype[3] = a->in[0].dtype;
    return s;
}

static lks_status marks(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const classes &s, int32_t **is)
{
    void *p;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 1, s.rows.n * s.n * 4 + 16, &p);
    *is = (int32_t *)p;
    return status;
}

static lks_status margin_losses(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, bool labels)
{
    classes s = margin_of(cuda, a, false, labels);
    const int64_t tiles = (s.rows.n + WARPS - 1) / WARPS;
    int32_t *is = NULL;
    void *part;
    lks_status status = parts(cuda, stream, a, tiles, &part);
    if (status == LKS_OK && labels) status = marks(cuda, stream, a, s, &is);
    if (status != LKS_OK) return status;
    const unsigned blocks = blocks_for(tiles, 1);
    if (tiles > 0 && labels) labels_rows<<<blocks, LKSI_THREADS, 0, stream>>>(s, is, (double *)part, tiles);
    else if (tiles > 0) margin_rows<<<blocks, LKSI_THREADS, 0, stream>>>(s, (double *)part, tiles);
    return finish_rows(stream, a, NULL, part, tiles, true, (double)s.rows.n);
}

static lks_status margin_slopes(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, bool labels)
{
    classes s = margin_of(cuda, a, true, labels);
    int32_t *is = NULL;
    if (s.rows.n == 0 || s.n == 0) return LKS_OK;
    lks_status status = labels ? marks(cuda, stream, a, s, &is) : LKS_OK;
    if (status != LKS_OK) return status;
    const unsigned blocks = blocks_for(s.rows.n, WARPS);
    if (labels) labels_back<<<blocks, LKSI_THREADS, 0, stream>>>(s, is);
    else margin_back<<<blocks, LKSI_THREADS, 0, stream>>>(s);
    return lksi_cuda_launched(a);
}

LKSI_CUDA(multi_margin_loss) { return margin_losses(cuda, stream, a, false); }
LKSI_CUDA(multi_margin_loss_backward) { return margin_slopes(cuda, stream, a, false); }
LKSI_CUDA(multilabel_margin_loss) { return margin_losses(cuda, stream, a, true); }
LKSI_CUDA(multilabel_margin_loss_backward) { return margin_slopes(cuda, stream, a, true); }

/* first: where log_probs are among the inputs; rows: of states for each sample */
static lks_status ctc_of(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int first, int64_t rows, ctc *s)
{
    const lksi_view *x = &a->in[first], *t = x + 1, *input = x + 2, *length = x + 3;
    *s = ctc();
    s->x = x->data, s->dtype = x->dtype;
    for (int d = 0; d < 3; d++) s->xs[d] = x->stride[d];
    s->steps = x->shape[0], s->samples = x->shape[1], s->classes = x->shape[2], s->most = t->shape[1];
    s->target = t->data, s->target_dtype = t->dtype, s->ts[0] = t->stride[0], s->ts[1] = t->stride[1];
    s->input = input->data, s->input_dtype = input->dtype, s->input_step = input->stride[0];
    s->length = length->data, s->length_dtype = length->dtype, s->length_step = length->stride[0];
    s->blank = a->attr.loss.ignore_index, s->reduction = a->attr.loss.reduction, s->flags = a->attr.loss.flags;
    s->op = a->op, s->fault = lksi_cuda_fault(cuda);
    s->row = 2 * s->most + 1;
    s->each = (rows * s->row * (x->dtype == LKS_F64 ? 8 : 4) + 15) / 16 * 16;
    void *p;
    lks_status status = lksi_cuda_scratch(cuda, stream, a, 1, s->samples * s->each + 16, &p);
    s->memory = (char *)p;
    return status;
}

LKSI_CUDA(ctc_loss)
{
    ctc s;
    void *part;
    lks_status status = ctc_of(cuda, stream, a, 0, 2, &s);
    if (status == LKS_OK) status = parts(cuda, stream, a, s.samples, &part);
    if (status != LKS_OK) return status;
    s.nll = a->out[1].data, s.nll_dtype = a->out[1].dtype, s.nll_step = 1;
    s.dx = a->out[0].data, s.dx_dtype = a->out[0].dtype, s.ds[0] = 1;
    const unsigned blocks = blocks_for(s.samples, 1);
    if (s.samples > 0 && s.dtype == LKS_F64)
        ctc_rows<double><<<blocks, LKSI_THREADS, 0, stream>>>(s, (double *)part);
    else if (s.samples > 0) ctc_rows<float><<<blocks, LKSI_THREADS, 0, stream>>>(s, (double *)part);
    return finish_rows(stream, a, NULL, part, s.samples, true, (double)s.samples);
}

LKSI_CUDA(ctc_loss_backward)
{
    ctc s;
    const lksi_view *dx = &a->out[0], *dy = &a->in[0];
    lks_status status = ctc_of(cuda, stream, a, 1, 3 + (a->in[1].shape[0] > 0 ? a->in[1].shape[0] : 1), &s);
    if (status != LKS_OK || s.samples == 0 || s.steps == 0) return status;
    s.dx = dx->data, s.dx_dtype = dx->dtype;
    for (int d = 0; d < 3; d++) s.ds[d] = dx->stride[d];
    s.dy = dy->data, s.dy_dtype = dy->dtype, s.dy_step = dy->ndim ? dy->stride[0] : 0;
    const unsigned blocks = blocks_for(s.samples, 1);
    if (s.dtype == LKS_F64) ctc_back<double><<<blocks, LKSI_THREADS, 0, stream>>>(s);
    else ctc_back<float><<<blocks, LKSI_THREADS, 0, stream>>>(s);
    return lksi_cuda_launched(a);
}
