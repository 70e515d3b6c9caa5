/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.c - max_pool2d and its gradient. The largest element and its place (h W + w in the plane of x) are kept; padding
 * is smaller than anything, NaN larger. One pass per result, no sums, so nothing depends on the order of work.
 */
#include "cpu/gemm_io.h"


typedef struct pooling {
    const lksi_args *a;
    lksi_view x, y, place;
    int64_t channels_inner; /* channels are contiguous in x, y and place: 1 */
} pooling;

static inline int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smallest(int64_t a, int64_t b) { return a < b ? a : b; }

/* First of the largest; a NaN is taken and kept. */
#define POOL_WINDOW(TYPE, LOAD, IS_NAN)                                                                        \
    for (int64_t q = 0; q < y->shape[3]; q++) {                                                                \
        int64_t w0 = largest(q * sw - pw, 0), w1 = smallest(q * sw - pw + kw, width);                          \
        TYPE *to = (TYPE *)y->data + y_at + q * y->stride[3];                                                  \
        int32_t *place = (int32_t *)p->data + p_at + q * p->stride[3];                                         \
        for (int64_t c = 0; c < channels; c++) {                                                               \
            const TYPE *from = (const TYPE *)x->data + x_at + c * x->stride[1];                                \
            TYPE best = 0;                                                                                     \
            int32_t at = -1;                                                                                   \
            for (int64_t h = h0; h < h1; h++)                                                                  \
                for (int64_t w = w0; w < w1; w++) {                                                            \
                    TYPE v = from[h * x->stride[2] + w * x->stride[3]];                                        \
                    if (at < 0 || LOAD(v) > LOAD(best) || (IS_NAN(v) && !IS_NAN(best)))                        \
                        best = v, at = (int32_t)(h * width + w);                                               \
                }                                                                                              \
            to[c * y->stride[1]] = best;                                                                       \
            place[c * p->stride[1]] = at;                                                                      \
        }                                                                                                      \
    }

static inline int nan_f32(float x) { return lksi_is_nan_f32(x); }
static inline int nan_f64(double x) { return lksi_is_nan_f64(x); }
static inline int nan_bf16(uint16_t x) { return (x & 0x7fff) > 0x7f80; }
static inline int nan_f16(uint16_t x) { return (x & 0x7fff) > 0x7c00; }
static inline float same_f32(float x) { return x; }
static inline double same_f64(double x) { return x; }

/* Contiguous channels, float32: the window is walked outside, channels inside, so that they are vectorised. */
static void window_f32(const float *restrict from, int64_t hs, int64_t ws, int64_t h0, int64_t h1, int64_t w0,
                       int64_t w1,
                       int64_t width, int64_t channels, float *restrict to, int32_t *restrict place)
{
    int32_t first = (int32_t)(h0 * width + w0);
    for (int64_t c = 0; c < channels; c++) to[c] = from[h0 * hs + w0 * ws + c], place[c] = first;
    for (int64_t h = h0; h < h1; h++)
        for (int64_t w = w0; w < w1; w++) {
            const float *row = from + h * hs + w * ws;
            int32_t at = (int32_t)(h * width + w);
            for (int64_t c = 0; c < channels; c++) {
                float v = row[c], best = to[c];
                int take = (v > best) | (nan_f32(v) & !nan_f32(best));
                to[c] = take ? v : best;
                place[c] = take ? at : place[c];
            }
        }
}

static void window_bf16(const uint16_t *restrict from, int64_t hs, int64_t ws, int64_t h0, int64_t h1, int64_t w0,
                        int64_t w1, int64_t width, int64_t channels, uint16_t *restrict to, int32_t *restrict place)
{
    int32_t first = (int32_t)(h0 * width + w0);
    for (int64_t c = 0; c < channels; c++) to[c] = from[h0 * hs + w0 * ws + c], place[c] = first;
    for (int64_t h = h0; h < h1; h++)
        for (int64_t w = w0; w < w1; w++) {
            const uint16_t *row = from + h * hs + w * ws;
            int32_t at = (int32_t)(h * width + w);
            for (int64_t c = 0; c < channels; c++) {
                uint16_t v = row[c], best = to[c];
                int take = (lksi_bf16_to_f32(v) > lksi_bf16_to_f32(best)) | (nan_bf16(v) & !nan_bf16(best));
                to[c] = take ? v : best;
                place[c] = take ? at : place[c];
            }
        }
}

static void pool_part(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t sh = s->a->attr.pool.stride[0], sw = s->a->attr.pool.stride[1], ph = s->a->attr.pool.padding[0];
    int64_t pw = s->a->attr.pool.padding[1], kh = s->a->attr.pool.kernel[0], kw = s->a->attr.pool.kernel[1];
    int64_t height = x->shape[2], width = x->shape[3];
    (void)worker;
    for (int64_t u = begin; u < end; u++) { /* a row of results of one image: all channels, or one */
        int64_t row = u % y->shape[2], rest = u / y->shape[2];
        int64_t channels = s->channels_inner ? y->shape[1] : 1;
        int64_t c0 = s->channels_inner ? 0 : rest % y->shape[1], n = s->channels_inner ? rest : rest / y->shape[1];
        int64_t h0 = largest(row * sh - ph, 0), h1 = smallest(row * sh - ph + kh, height);
        int64_t x_at = n * x->stride[0] + c0 * x->stride[1];
        int64_t y_at = n * y->stride[0] + c0 * y->stride[1] + row * y->stride[2];
        int64_t p_at = n * p->stride[0] + c0 * p->stride[1] + row * p->stride[2];
        if (s->channels_inner && (x->dtype == LKS_F32 || x->dtype == LKS_BF16)) {
            for (int64_t q = 0; q < y->shape[3]; q++) {
                int64_t w0 = largest(q * sw - pw, 0), w1 = smallest(q * sw - pw + kw, width);
                int32_t *place = (int32_t *)p->data + p_at + q * p->stride[3];
                if (x->dtype == LKS_F32)
                    window_f32((const float *)x->data + x_at, x->stride[2], x->stride[3], h0, h1, w0, w1, width,
                               channels,
                               (float *)y->data + y_at + q * y->stride[3], place);
                else
                    window_bf16((const uint16_t *)x->data + x_at, x->stride[2], x->stride[3], h0, h1, w0, w1, width,
                                channels, (uint16_t *)y->data + y_at + q * y->stride[3], place);
            }
            continue;
        }
        if (x->dtype == LKS_F32) {
            POOL_WINDOW(float, same_f32, nan_f32)
        } else if (x->dtype == LKS_F64) {
            POOL_WINDOW(double, same_f64, nan_f64)
        } else if (x->dtype == LKS_BF16) {
            POOL_WINDOW(uint16_t, lksi_bf16_to_f32, nan_bf16)
        } else {
            POOL_WINDOW(uint16_t, lksi_f16_to_f32, nan_f16)
        }
    }
}

LKSI_KERNEL(max_pool2d)
{
    pooling s = {.a = a, .x = a->in[0], .y = a->out[0], .place = a->out[1]};
    s.channels_inner = s.x.stride[1] == 1 && s.y.stride[1] == 1 && s.place.stride[1] == 1 && s.x.shape[1] > 1;
    int64_t rows = s.y.shape[0] * s.y.shape[2] * (s.channels_inner ? 1 : s.y.shape[1]);
    int64_t cost = s.y.shape[3] * (s.channels_inner ? s.y.shape[1] : 1);
    cost *= a->attr.pool.kernel[0] * a->attr.pool.kernel[1];
    if (lksi_numel(&s.y) == 0) return LKS_OK;
    lksi_parallel(cpu, rows, 1 + 32768 / (cost + 1), pool_part, &s);
    return LKS_OK;
}

typedef struct spreading { lksi_cpu *cpu; lksi_view dy, place, dx; int64_t channels, plane, bytes; } spreading;

/* A plane of x, or all planes of an image whose channels are contiguous. Overlapping windows add in float32 (or 64). */
static void spread_part(void *arg, int64_t begin, int64_t end, int worker)
{
    const spreading *s = arg;
    const lksi_view *dy = &s->dy, *p = &s->place, *dx = &s->dx;
    int wide = dx->dtype == LKS_F64;
    int64_t width = dx->shape[3], channels = s->channels, per = dx->shape[1] / channels;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * channels;
        void *sum = lksi_scratch(s->cpu, worker, 0, s->bytes);
        memset(sum, 0, (size_t)s->bytes);
        for (int64_t h = 0; h < dy->shape[2]; h++)
            for (int64_t w = 0; w < dy->shape[3]; w++)
                for (int64_t c = 0; c < channels; c++) {
                    int64_t k = c0 + c;
                    int64_t from = n * dy->stride[0] + k * dy->stride[1] + h * dy->stride[2] + w * dy->stride[3];
                    int64_t place = n * p->stride[0] + k * p->stride[1] + h * p->stride[2] + w * p->stride[3];
                    int64_t at = ((const int32_t *)p->data)[place];
                    if (at < 0 || at >= s->plane) continue;
                    if (dy->dtype == LKS_F64)
                        ((double *)sum)[at * channels + c] += ((const double *)dy->data)[from];
                    else
                        ((float *)sum)[at * channels + c] +=
                            dy->dtype == LKS_F32    ? ((const float *)dy->data)[from]
                            : dy->dtype == LKS_BF16 ? lksi_bf16_to_f32(((const uint16_t *)dy->data)[from])
                                                    : lksi_f16_to_f32(((const uint16_t *)dy->data)[from]);
                }
        for (int64_t h = 0; h < dx->shape[2]; h++)
            for (int64_t w = 0; w < width; w++) {
                void *to = io_at(dx->data, dx->dtype,
                                 n * dx->stride[0] + c0 * dx->stride[1] + h * dx->stride[2] + w * dx->stride[3]);
                int64_t at = (h * width + w) * channels;
                int run = channels == 1 && dx->stride[3] == 1; /* a row of one plane at once */
                int64_t count = run ? width : channels, step = run ? 1 : dx->stride[1];
                if (wide) io_store_f64(to, (double *)sum + at, dx->dtype, step, count);
                else io_store_f32(to, (float *)sum + at, dx->dtype, step, count);
                if (run) break;
            }
    }
}

LKSI_KERNEL(max_pool2d_backward)
{
    spreading s = {.cpu = cpu, .dy = a->in[0], .place = a->in[1], .dx = a->out[0]};
    if (lksi_numel(&s.dx) == 0) return LKS_OK;
    s.plane = s.dx.shape[2] * s.dx.shape[3];
    s.channels = s.dx.stride[1] == 1 ? s.dx.shape[1] : 1;
    s.bytes = s.plane * s.channels * (s.dx.dtype == LKS_F64 ? 8 : 4);
    for (int w = 0; w < lksi_cpu_workers(cpu); w++)
        if (!lksi_scratch(cpu, w, 0, s.bytes))
            return lksi_kernel_why(a, LKS_ERR_MEMORY, "no memory for a plane of %lld bytes", (long long)s.bytes);
    lksi_parallel(cpu, s.dx.shape[0] * (s.dx.shape[1] / s.channels), 1 + 16384 / s.bytes, spread_part, &s);
    return LKS_OK;
}
