/* SPDX-License-Identifier: BSD-3-Clause
 *
 * distance.cu - distances of rows in the p-norm, between two sets (cdist) and within one (pdist), and their gradients.
 * Differences are taken as they are, not through products, so near rows do not cancel. Sums go in a fixed order.
 */
#include "common.cuh"

using namespace lksi;

#define SIDE 16    /* rows of either set that a block compares */
#define DEPTH 256  /* terms that are added up before they join others */

enum { P_ZERO, P_ONE, P_TWO, P_INF, P_ANY };

struct sets {
    walk<5> batch; /* 0: z or dx; x, y; backward: dy, z */
    int64_t m, rows, others; /* elements of a row, rows of x and of y */
    int64_t s[5][2];         /* strides of each within a batch entry */
    int triangle;            /* z has the pairs i < j of one set, row by row, s[][1] apart */
    double p;
};

/* Place of the pair i < j among those of n rows. */
__device__ inline int64_t pair_at(int64_t n, int64_t i, int64_t j) { return i * (2 * n - i - 1) / 2 + j - i - 1; }

__device__ inline float power(float x, double p) { return powf(x, (float)p); }
__device__ inline double power(double x, double p) { return pow(x, p); }
__device__ inline float root(float x) { return __fsqrt_rn(x); }
__device__ inline double root(double x) { return __dsqrt_rn(x); }

template <int KIND, class C> __device__ inline C join(C sum, C term)
{
    if constexpr (KIND == P_INF) return sum != sum ? sum : !(term <= sum) ? term : sum; /* NaN stays */
    else return sum + term;
}

template <int KIND, class C> __device__ inline C term(C d, double p)
{
    C far = d < 0 ? -d : d;
    if constexpr (KIND == P_TWO) return d * d;
    else if constexpr (KIND == P_ZERO) return d != 0 ? (C)1 : (C)0;
    else if constexpr (KIND == P_ANY) return d == 0 ? (C)0 : power(far, p);
    else return far;
}

/* A block: SIDE rows of x by SIDE rows of y. */
template <class C, int KIND>
__global__ void __launch_bounds__(SIDE *SIDE) compare(const __grid_constant__ sets q, int64_t down, int64_t right)
{
    __shared__ C xs[SIDE][SIDE + 1], ys[SIDE][SIDE + 1];
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    for (int64_t item = blockIdx.x; item < q.batch.n * down * right; item += gridDim.x) {
        const int64_t jb = item % right, rest = item / right, ib = rest % down;
        const int64_t i0 = ib * SIDE, j0 = jb * SIDE, i = i0 + ty, j = j0 + tx;
        if (q.triangle && j0 + SIDE - 1 <= i0) continue; /* the same for all threads */
        int64_t at[5];
        q.batch.seek(rest / down, at);
        C sum = 0, part = 0;
        for (int64_t k0 = 0; k0 < q.m; k0 += SIDE) {
            __syncthreads();
            xs[ty][tx] = i < q.rows && k0 + tx < q.m
                             ? load<C>(q.batch.data[1], q.batch.dtype[1], at[1] + i * q.s[1][0] + (k0 + tx) * q.s[1][1])
                             : (C)0;
            ys[ty][tx] = j0 + ty < q.others && k0 + tx < q.m
                             ? load<C>(q.batch.data[2], q.batch.dtype[2],
                                       at[2] + (j0 + ty) * q.s[2][0] + (k0 + tx) * q.s[2][1])
                             : (C)0;
            __syncthreads();
#pragma unroll
            for (int k = 0; k < SIDE; k++) part = join<KIND>(part, term<KIND>(xs[ty][k] - ys[tx][k], q.p));
            if ((k0 + SIDE) % DEPTH == 0) sum = join<KIND>(sum, part), part = 0;
        }
        sum = join<KIND>(sum, part);
        if (KIND == P_TWO) sum = root(sum);
        if (KIND == P_ANY) sum = (C)pow((double)sum, 1 / q.p);
        if (i >= q.rows || j >= q.others) continue;
        if (!q.triangle) store(q.batch.data[0], q.batch.dtype[0], at[0] + i * q.s[0][0] + j * q.s[0][1], sum);
        else if (i < j) store(q.batch.data[0], q.batch.dtype[0], pair_at(q.rows, i, j) * q.s[0][1], sum);
    }
}

template <int KIND, class C> __device__ inline C slope(C dy, C far, C d, double p)
{
    if (KIND == P_ZERO || far == 0) return 0;
    if constexpr (KIND == P_TWO) return dy / far * d;
    else if constexpr (KIND == P_ONE) return d > 0 ? dy : d < 0 ? -dy : (C)0;
    else if constexpr (KIND == P_INF) return d == far ? dy : -d == far ? -dy : (C)0;
    else return d == 0 ? (C)0 : (C)(dy * (C)copysign(pow(fabs((double)d) / (double)far, p - 1), (double)d));
}

/* A thread: one element of dx; the rows of y in order, by blocks. */
template <class C, int KIND> __global__ void __launch_bounds__(LKSI_THREADS) pull(const __grid_constant__ sets q)
{
    const int64_t n = q.batch.n * q.rows * q.m, step = (int64_t)gridDim.x * LKSI_THREADS;
    for (int64_t e = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; e < n; e += step) {
        const int64_t row = e / q.m, c = e - row * q.m, entry = row / q.rows, i = row - entry * q.rows;
        int64_t at[5];
        q.batch.seek(entry, at);
        const C x = load<C>(q.batch.data[1], q.batch.dtype[1], at[1] + i * q.s[1][0] + c * q.s[1][1]);
        C sum = 0;
        for (int64_t j0 = 0; j0 < q.others; j0 += DEPTH) {
            const int64_t j1 = q.others - j0 < DEPTH ? q.others : j0 + DEPTH;
            C part = 0;
            for (int64_t j = j0; j < j1; j++) {
                if (q.triangle && j == i) continue;
                const int64_t pair = q.triangle ? pair_at(q.rows, i < j ? i : j, i < j ? j : i) : 0;
                const int64_t dy_at = q.triangle ? pair * q.s[3][1] : at[3] + i * q.s[3][0] + j * q.s[3][1];
                const int64_t z_at = q.triangle ? pair * q.s[4][1] : at[4] + i * q.s[4][0] + j * q.s[4][1];
                const C dy = load<C>(q.batch.data[3], q.batch.dtype[3], dy_at);
                const C far = load<C>(q.batch.data[4], q.batch.dtype[4], z_at);
                const C y = load<C>(q.batch.data[2], q.batch.dtype[2], at[2] + j * q.s[2][0] + c * q.s[2][1]);
                part += slope<KIND>(dy, far, x - y, q.p);
            }
            sum += part;
        }
        store(q.batch.data[0], q.batch.dtype[0], at[0] + i * q.s[0][0] + c * q.s[0][1], sum);
    }
}

/* Splits v, which has `inner` dims within a batch entry, for operand k. */
static void split(sets *q, int k, lksi_view *v, int inner)
{
    for (int d = 0; d < inner; d++) q->s[k][2 - inner + d] = v->stride[v->ndim - inner + d];
    v->ndim -= inner;
}

template <class C> static lks_status run(cudaStream_t stream, const lksi_args *a, const sets &q, bool backward)
{
    const int64_t down = (q.rows + SIDE - 1) / SIDE, right = (q.others + SIDE - 1) / SIDE;
    const double p = q.p;
#define GO(KIND)                                                                                               \
    if (backward)                                                                                              \
        pull<C, KIND><<<blocks_for(q.batch.n * q.rows * q.m, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(q);     \
    else compare<C, KIND><<<blocks_for(q.batch.n * down * right, 1), SIDE * SIDE, 0, stream>>>(q, down, right)
    if (p == 0) {
        GO(P_ZERO);
    } else if (p == 1) {
        GO(P_ONE);
    } else if (p == 2) {
        GO(P_TWO);
    } else if (isinf(p)) {
        GO(P_INF);
    } else {
        GO(P_ANY);
    }
#undef GO
    return lksi_cuda_launched(a);
}

static lks_status distances(cudaStream_t stream, const lksi_args *a, bool backward, int triangle)
{
    lksi_view v[5] = {a->out[0], a->in[backward], a->in[triangle ? backward : backward + 1], a->in[0], a->in[0]};
    if (backward) v[4] = a->in[triangle ? 2 : 3];
    sets q = {};
    q.p = a->attr.distance.p, q.triangle = triangle;
    q.m = v[1].shape[v[1].ndim - 1], q.rows = v[1].shape[v[1].ndim - 2], q.others = v[2].shape[v[2].ndim - 2];
    if (count(&v[0]) == 0) return LKS_OK;
    const int pairs = triangle ? 1 : 2;
    split(&q, 0, &v[0], backward ? 2 : pairs);
    split(&q, 1, &v[1], 2);
    split(&q, 2, &v[2], 2);
    if (backward) split(&q, 3, &v[3], pairs), split(&q, 4, &v[4], pairs);
    else v[3] = v[4] = v[0];
    const lksi_view *view[5] = {&v[0], &v[1], &v[2], &v[3], &v[4]};
    q.batch = walk_of<5>(view, true);
    return v[1].dtype == LKS_F64 ? run<double>(stream, a, q, backward) : run<float>(stream, a, q, backward);
}

LKSI_CUDA(cdist) { return (void)cuda, distances(stream, a, false, 0); }
LKSI_CUDA(cdist_backward) { return (void)cuda, distances(stream, a, true, 0); }
LKSI_CUDA(pdist) { return (void)cuda, distances(stream, a, false, 1); }
LKSI_CUDA(pdist_backward) { return (void)cuda, distances(stream, a, true, 1); }
