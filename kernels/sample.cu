/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.cu - grid_sampler in 2 and 3 dims and its gradients. A place of the grid becomes a list of taps: elements of
 * x, what each counts and how that changes with the place. For dx the taps are turned around: every element of x gets
 * the list of those that name it, in the order of the places, so that its sum has a fixed order.
 */
#include "common.cuh"

using namespace lksi;

namespace {

enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };
enum { TAPS = 16, GROUP = 8 }; /* GROUP: channels that a thread takes where they do not lie side by side */

struct lifted { /* five dims; the grid is [N, D, H, W, dims] */
    void *data;
    int dtype;
    int64_t shape[5], stride[5];
};

static lifted lift(const lksi_view *v, int at) /* a dim of size 1 in place `at` of a 4-D view */
{
    lifted y = {v->data, v->dtype, {0}, {0}};
    for (int d = 0; d < 5; d++) {
        int from = v->ndim == 5 || d < at ? d : d - 1, there = v->ndim == 5 || d != at;
        y.shape[d] = there ? v->shape[from] : 1;
        y.stride[d] = there ? v->stride[from] : 0;
    }
    return y;
}

static int64_t size(const lifted &v) { return v.shape[0] * v.shape[1] * v.shape[2] * v.shape[3] * v.shape[4]; }

/* Backward: y is dy. pixels: places of one image; group: channels of a thread. */
struct sampling {
    lifted x, grid, y, dx, dgrid;
    int dims, mode, padding, align, last;
    int64_t in[3], out[3], pixels, plane, channels, group, most; /* most: taps of a place */
};

__device__ inline bool is_nan(float x) { return lksi_is_nan_f32(x); }
__device__ inline bool is_nan(double x) { return lksi_is_nan_f64(x); }

template <class C> struct tap {
    int64_t d, h, w;
    C weight, change[3]; /* of the weight, with x, y, z of the grid */
};

/* Into [low / 2, high / 2] by reflection at both ends; *slope changes sign with the direction. */
template <class C> __device__ C reflect(C at, C low, C high, C *slope)
{
    if (low == high) {
        *slope = 0;
        return 0;
    }
    C least = low / 2, span = (high - low) / 2;
    at -= least;
    if (at < 0) at = -at, *slope = -*slope;
    C extra = (C)fmod((double)at, (double)span), flips = (C)floor((double)(at / span));
    if (fmod((double)flips, 2.0) == 0) return extra + least;
    *slope = -*slope;
    return span - extra + least;
}

template <class C> __device__ C inside(const sampling &s, C at, int64_t size, C *slope)
{
    C most = (C)(size - 1);
    if (s.padding == ZEROS) return at;
    if (s.padding == REFLECTION)
        at = s.align ? reflect<C>(at, 0, 2 * most, slope) : reflect<C>(at, -1, 2 * (C)size - 1, slope);
    if (at <= 0 || (s.padding == BORDER && is_nan(at))) at = 0, *slope = 0; /* infinity in a dim of one */
    else if (at >= most) at = most, *slope = 0;
    return at;
}

/* Elements from what the grid says, -1 to 1 over the image; NaN is -1. slope: elements per unit of the grid. */
template <class C> __device__ C elements(const sampling &s, C u, int64_t size, C *slope)
{
    *slope = s.align ? (C)(size - 1) / 2 : (C)size / 2;
    if (is_nan(u)) u = -1, *slope = 0;
    return s.align ? (u + 1) / 2 * (C)(size - 1) : ((u + 1) * (C)size - 1) / 2;
}

/* Far outside, or nowhere: outside. */
template <class C> __device__ inline C bounded(C at) { return at > (C)-1e9f && at < (C)1e9f ? at : -100; }

/* For the taps around it: beyond the border all are the outermost element. */
template <class C> __device__ inline C nearby(const sampling &s, C at, int64_t size, C *slope)
{
    C most = (C)size + 2;
    if (s.padding != BORDER || (at > -3 && at < most)) return bounded(at);
    *slope = 0;
    return at > -3 ? most : -3;
}

template <class C> __device__ inline bool within(const sampling &s, const tap<C> &t)
{
    return t.d >= 0 && t.d < s.in[0] && t.h >= 0 && t.h < s.in[1] && t.w >= 0 && t.w < s.in[2];
}

/* The four weights of cubic convolution (Keys, 1981; a = -0.75) at t in [0, 1), and their slopes. */
template <class C> __device__ void cubic(C t, C *w, C *slope)
{
    const C a = (C)-0.75;
    C x[4] = {t + 1, t, 1 - t, 2 - t};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        C v = x[i], sign = i < 2 ? 1 : -1;
        if (i == 0 || i == 3) {
            w[i] = ((a * v - 5 * a) * v + 8 * a) * v - 4 * a;
            slope[i] = sign * ((3 * a * v - 10 * a) * v + 8 * a);
        } else {
            w[i] = ((a + 2) * v - (a + 3)) * v * v + 1;
            slope[i] = sign * (3 * (a + 2) * v - 2 * (a + 3)) * v;
        }
    }
}

template <class C> __device__ int bicubic(const sampling &s, const C *u, tap<C> *t)
{
    C slope[2], w[2][4], change[2][4];
    int64_t first[2];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        C at = nearby(s, elements(s, u[i], s.in[2 - i], &slope[i]), s.in[2 - i], &slope[i]), low = (C)floor((double)at);
        first[i] = (int64_t)low - 1;
        cubic(at - low, w[i], change[i]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            C none = 0;
            tap<C> *p = &t[count];
            p->d = 0;
            p->h = (int64_t)bounded(inside(s, (C)(first[1] + i), s.in[1], &none));
            p->w = (int64_t)bounded(inside(s, (C)(first[0] + j), s.in[2], &none));
            if (!within(s, *p)) continue;
            p->weight = w[1][i] * w[0][j];
            p->change[0] = w[1][i] * change[0][j] * slope[0];
            p->change[1] = change[1][i] * w[0][j] * slope[1];
            p->change[2] = 0;
            count++;
        }
    return count;
}

/* u: x, y, z of the grid. Returns how many taps of x there are. */
template <class C> __device__ int taps(const sampling &s, const C *u, tap<C> *t)
{
    C part[3] = {0, 0, 0}, slope[3] = {0, 0, 0};
    int64_t low[3] = {0, 0, 0};
    int count = 0;
    if (s.mode == BICUBIC) return bicubic(s, u, t);
    for (int i = 0; i < s.dims; i++) {
        C at = elements(s, u[i], s.in[2 - i], &slope[i]);
        at = bounded(inside(s, at, s.in[2 - i], &slope[i]));
        C whole = (C)(s.mode == NEAREST ? rint((double)at) : floor((double)at));
        low[i] = (int64_t)whole;
        part[i] = at - whole;
    }
    if (s.mode == NEAREST) {
        *t = {low[2], low[1], low[0], 1, {0, 0, 0}};
        return within(s, *t);
    }
    for (int corner = 0; corner < 1 << s.dims; corner++) {
        tap<C> *p = &t[count];
        C w[3] = {1, 1, 1}, sign[3] = {0, 0, 0};
        for (int i = 0; i < s.dims; i++) {
            int up = corner >> i & 1;
            w[i] = up ? part[i] : 1 - part[i];
            sign[i] = up ? slope[i] : -slope[i];
        }
        p->w = low[0] + (corner & 1);
        p->h = low[1] + (corner >> 1 & 1);
        p->d = low[2] + (corner >> 2 & 1);
        if (!within(s, *p)) continue;
        p->weight = w[0] * w[1] * w[2];
        p->change[0] = sign[0] * w[1] * w[2];
        p->change[1] = sign[1] * w[0] * w[2];
        p->change[2] = sign[2] * w[0] * w[1];
        count++;
    }
    return count;
}

/* Place j of image n, and its taps. */
template <class C> __device__ int taps_of(const sampling &s, int64_t n, int64_t j, tap<C> *t)
{
    int64_t q = j % s.out[2], i = j / s.out[2] % s.out[1], o = j / s.out[2] / s.out[1];
    int64_t at = n * s.grid.stride[0] + o * s.grid.stride[1] + i * s.grid.stride[2] + q * s.grid.stride[3];
    C u[3] = {0, 0, 0};
    for (int k = 0; k < s.dims; k++) u[k] = load<C>(s.grid.data, s.grid.dtype, at + k * s.grid.stride[4]);
    return taps(s, u, t);
}

/* Element j of a plane of [.., D, H, W]. */
__device__ inline int64_t in_plane(const lifted &v, int64_t j)
{
    int64_t row = j / v.shape[4];
    return (j - row * v.shape[4]) * v.stride[4] + row % v.shape[3] * v.stride[3] + row / v.shape[3] * v.stride[2];
}

template <class C> __device__ inline int64_t at_tap(const lifted &x, const tap<C> &t)
{
    return t.d * x.stride[2] + t.h * x.stride[3] + t.w * x.stride[4];
}

#define EACH(i, n)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * LKSI_THREADS + threadIdx.x; i < (n); i += (int64_t)gridDim.x * LKSI_THREADS)

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) sample(const __grid_constant__ sampling s)
{
    const int64_t groups = (s.channels + s.group - 1) / s.group;
    tap<C> t[TAPS];
    EACH(e, s.x.shape[0] * groups * s.pixels) {
        int64_t group = s.last ? e % groups : e / s.pixels % groups, j = s.last ? e / groups % s.pixels : e % s.pixels;
        int64_t n = e / s.pixels / groups, first = group * s.group, end = first + s.group;
        if (end > s.channels) end = s.channels;
        int count = taps_of(s, n, j, t);
        int64_t y = n * s.y.stride[0] + in_plane(s.y, j);
        for (int64_t c = first; c < end; c++) {
            C sum = 0;
            for (int k = 0; k < count; k++) {
                C v = load<C>(s.x.data, s.x.dtype, n * s.x.stride[0] + c * s.x.stride[1] + at_tap(s.x, t[k]));
                sum = s.mode == NEAREST ? v : sum + t[k].weight * v;
            }
            store(s.y.data, s.y.dtype, y + c * s.y.stride[1], sum);
        }
    }
}

template <class C> __global__ void __launch_bounds__(LKSI_THREADS) grid_back(const __grid_constant__ sampling s)
{
    tap<C> t[TAPS];
    EACH(e, s.x.shape[0] * s.pixels) {
        int64_t n = e / s.pixels, j = e % s.pixels;
        int count = s.mode == NEAREST ? 0 : taps_of(s, n, j, t);
        C change[3] = {0, 0, 0};
        int64_t dy = n * s.y.stride[0] + in_plane(s.y, j);
        for (int k = 0; k < count; k++) {
            int64_t x = n * s.x.stride[0] + at_tap(s.x, t[k]);
            C dot = 0;
            for (int64_t c = 0; c < s.channels; c++)
                dot += load<C>(s.x.data, s.x.dtype, x + c * s.x.stride[1]) *
                       load<C>(s.y.data, s.y.dtype, dy + c * s.y.stride[1]);
            for (int i = 0; i < 3; i++) change[i] += dot * t[k].change[i];
        }
        const lifted &g = s.dgrid;
        int64_t at = n * g.stride[0] + j / s.out[2] / s.out[1] * g.stride[1] + j / s.out[2] % s.out[1] * g.stride[2] +
                     j % s.out[2] * g.stride[3];
        for (int i = 0; i < s.dims; i++) store(g.data, g.dtype, at + i * g.stride[4], change[i]);
    }
}

/* --- dx: lists of the taps of each element ------------------------------------------------------------------------ */

template <class C>
__global__ void __launch_bounds__(LKSI_THREADS) count_taps(const __grid_constant__ sampling s, int32_t *many)
{
    tap<C> t[TAPS];
    EACH(e, s.x.shape[0] * s.pixels) {
        int64_t n = e / s.pixels;
        int count = taps_of(s, n, e % s.pixels, t);
        for (int k = 0; k < count; k++)
            atomicAdd(&many[n * s.plane + (t[k].d * s.in[1] + t[k].h) * s.in[2] + t[k].w], 1);
    }
}

/* Block n: many[n] becomes where the lists of image n end: for now where they begin, and they grow. */
__global__ void __launch_bounds__(LKSI_THREADS) begin_lists(int32_t *many, int32_t *begin, int64_t plane)
{
    __shared__ int32_t part[LKSI_THREADS];
    many += blockIdx.x * plane, begin += blockIdx.x * plane;
    int32_t before = 0;
    for (int64_t first = 0; first < plane; first += LKSI_THREADS) {
        int64_t i = first + threadIdx.x;
        int32_t own = i < plane ? many[i] : 0, sum = own;
        part[threadIdx.x] = own;
        __syncthreads();
        for (int d = 1; d < LKSI_THREADS; d *= 2) {
            int32_t left = (int)threadIdx.x >= d ? part[threadIdx.x - d] : 0;
            __syncthreads();
            part[threadIdx.x] = sum += left;
            __syncthreads();
        }
        if (i < plane) many[i] = begin[i] = before + sum - own;
        before += part[LKSI_THREADS - 1];
        __syncthreads();
    }
}

template <class C>
__global__ void __launch_bounds__(LKSI_THREADS)
    fill_lists(const __grid_constant__ sampling s, int32_t *end, int32_t *list, C *weight)
{
    tap<C> t[TAPS];
    EACH(e, s.x.shape[0] * s.pixels) {
        int64_t n = e / s.pixels, j = e % s.pixels, base = n * s.pixels * s.most;
        int count = taps_of(s, n, j, t);
        for (int k = 0; k < count; k++) {
            int32_t at = atomicAdd(&end[n * s.plane + (t[k].d * s.in[1] + t[k].h) * s.in[2] + t[k].w], 1);
            list[base + at] = (int32_t)(j * s.most + k);
            weight[base + j * s.most + k] = t[k].weight;
        }
    }
}

/* Threads filled them in any order. */
__global__ void __launch_bounds__(LKSI_THREADS)
    order_lists(const __grid_constant__ sampling s, const int32_t *begin, const int32_t *end, int32_t *list)
{
    EACH(e, s.x.shape[0] * s.plane) {
        int32_t *own = list + e / s.plane * s.pixels * s.most + begin[e], count = end[e] - begin[e];
        for (int32_t gap = count / 2; gap > 0; gap /= 2)
            for (int32_t i = gap; i < count; i++) {
                int32_t x = own[i], to = i;
                for (; to >= gap && own[to - gap] > x; to -= gap) own[to] = own[to - gap];
                own[to] = x;
            }
    }
}

template <class C>
__global__ void __launch_bounds__(LKSI_THREADS)
    add_lists(const __grid_constant__ sampling s, const int32_t *begin, const int32_t *end, const int32_t *list,
              const C *weight)
{
    EACH(e, s.x.shape[0] * s.channels * s.plane) {
        int64_t c = s.last ? e % s.channels : e / s.plane % s.channels;
        int64_t i = s.last ? e / s.channels % s.plane : e % s.plane;
        int64_t n = e / s.plane / s.channels, base = n * s.pixels * s.most, dy = n * s.y.stride[0] + c * s.y.stride[1];
        C sum = 0;
        for (int32_t k = begin[n * s.plane + i], last = end[n * s.plane + i]; k < last; k++) {
            int32_t id = list[base + k];
            sum += weight[base + id] * load<C>(s.y.data, s.y.dtype, dy + in_plane(s.y, id / s.most));
        }
        store(s.dx.data, s.dx.dtype, n * s.dx.stride[0] + c * s.dx.stride[1] + in_plane(s.dx, i), sum);
    }
}

/* --- host --------------------------------------------------------------------------------------------------------- */

static sampling sampling_of(const lksi_args *a, const lksi_view *x, const lksi_view *grid, const lksi_view *y)
{
    sampling s = {};
    s.x = lift(x, 2), s.grid = lift(grid, 1), s.y = lift(y, 2);
    s.dims = x->ndim - 2, s.mode = a->attr.grid.mode, s.padding = a->attr.grid.padding, s.align = a->attr.grid.align;
    for (int i = 0; i < 3; i++) s.in[i] = s.x.shape[2 + i], s.out[i] = s.y.shape[2 + i];
    s.plane = s.in[0] * s.in[1] * s.in[2], s.pixels = s.out[0] * s.out[1] * s.out[2];
    s.channels = s.x.shape[1];
    s.last = s.channels > 1 && s.y.stride[1] == 1;
    s.group = s.last ? 1 : GROUP;
    s.most = s.mode == NEAREST ? 1 : s.mode == BICUBIC ? 16 : 1 << s.dims;
    return s;
}

#define LAUNCH(kernel, n, ...) kernel<<<blocks_for(n, LKSI_THREADS), LKSI_THREADS, 0, stream>>>(__VA_ARGS__)

template <class C> static lks_status forward(cudaStream_t stream, const lksi_args *a)
{
    sampling s = sampling_of(a, &a->in[0], &a->in[1], &a->out[0]);
    if (size(s.y) == 0) return LKS_OK;
    LAUNCH(sample<C>, s.x.shape[0] * ((s.channels + s.group - 1) / s.group) * s.pixels, s);
    return lksi_cuda_launched(a);
}

template <class C> static lks_status backward(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
{
    sampling s = sampling_of(a, &a->in[1], &a->in[2], &a->in[0]);
    s.dx = lift(&a->out[0], 2), s.dgrid = lift(&a->out[1], 1);
    s.last = s.channels > 1 && s.dx.stride[1] == 1;
    if (size(s.dgrid) > 0) LAUNCH(grid_back<C>, s.x.shape[0] * s.pixels, s);
    if (size(s.dx) == 0) return lksi_cuda_launched(a);
    const int64_t batch = s.x.shape[0], slots = batch * s.pixels * s.most, cells = batch * s.plane;
    if (s.pixels * s.most >= (int64_t)1 << 31)
        return lksi_why(a, LKS_ERR_UNSUPPORTED, "%lld places of an image, of %lld taps: fewer than 2^31 taps",
                        (long long)s.pixels, (long long)s.most);
    void *p;
    lks_status code = lksi_cuda_scratch(cuda, stream, a, 0, slots * (int64_t)(sizeof(C) + 4) + 2 * cells * 4 + 256, &p);
    if (code != LKS_OK) return code;
    C *weight = (C *)p;
    int32_t *list = (int32_t *)(weight + slots), *begin = list + slots, *end = begin + cells;
    cudaMemsetAsync(end, 0, (size_t)(cells * 4), stream);
    if (slots > 0) LAUNCH(count_taps<C>, batch * s.pixels, s, end);
    begin_lists<<<(unsigned)batch, LKSI_THREADS, 0, stream>>>(end, begin, s.plane);
    if (slots > 0) LAUNCH(fill_lists<C>, batch * s.pixels, s, end, list, weight);
    LAUNCH(order_lists, cells, s, begin, end, list);
    LAUNCH(add_lists<C>, cells * s.channels, s, begin, end, list, weight);
    return lksi_cuda_launched(a);
}

} // namespace

#define ROW(name, call)                                                                                        \
    LKSI_CUDA(name)                                                                                            \
    {                                                                                                          \
        (void)cuda;                                                                                            \
        return call;                                                                                           \
    }
ROW(grid_sampler_2d, a->in[0].dtype == LKS_F64 ? forward<double>(stream, a) : forward<float>(stream, a))
ROW(grid_sampler_3d, a->in[0].dtype == LKS_F64 ? forward<double>(stream, a) : forward<float>(stream, a))
ROW(grid_sampler_backward,
    a->in[1].dtype == LKS_F64 ? backward<double>(cuda, stream, a) : backward<float>(cuda, stream, a))
