/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool_core.h - pooling for one type of arithmetic; included by pool.c with REAL, REAL_DTYPE and SUFFIX. Where channels
 * lie side by side they are the vector; else a row of the image is: first over the rows of a window, element by
 * element, then along the row. Sums are of rows first, so that a large window does not lose what it adds last.
 */
#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)

/* Takes what is larger, or a NaN; places go up by `step`. */
static inline void NAME(largest_of)(REAL *restrict best, int32_t *restrict place, const REAL *restrict v, int32_t at,
                                    int step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        REAL x = v[i], b = best[i];
        int take = (x > b) | (NAME(is_nan)(x) & !NAME(is_nan)(b));
        best[i] = take ? x : b;
        place[i] = take ? at + (int32_t)i * step : place[i];
    }
}

static inline void NAME(first_of)(REAL *restrict best, int32_t *restrict place, const REAL *restrict v, int32_t at,
                                  int step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) best[i] = v[i], place[i] = at + (int32_t)i * step;
}

static inline void NAME(add)(REAL *restrict sum, const REAL *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += v[i];
}

/* n elements of v from `at` on, in place or in buffer. */
static inline const REAL *NAME(run_of)(const lksi_view *v, int64_t at, int64_t stride, int64_t n, REAL *buffer)
{
    const void *from = io_at(v->data, v->dtype, at);
    if (v->dtype == REAL_DTYPE && (stride == 1 || n == 1)) return from;
    NAME(io_load)(buffer, from, v->dtype, stride, n);
    return buffer;
}

/* A pixel of the result, all channels. d, h, w: the window. */
static void NAME(pixel)(const pooling *s, int64_t x_at, span d, span h, span w, REAL *best, int32_t *place,
                        REAL *buffer)
{
    const lksi_view *x = &s->x;
    int64_t channels = s->channels;
    REAL *row = buffer + s->room;
    int first = 1;
    for (int64_t i = d.begin; i < d.end; i += s->dilation[0])
        for (int64_t j = h.begin; j < h.end; j += s->dilation[1]) {
            int64_t line = x_at + i * x->stride[2] + j * x->stride[3];
            REAL *sum = first ? best : row;
            for (int64_t k = w.begin; k < w.end; k += s->dilation[2]) {
                const REAL *v = NAME(run_of)(x, line + k * x->stride[4], 1, channels, buffer);
                int32_t at = (int32_t)((i * s->in[1] + j) * s->in[2] + k);
                if (s->mean) {
                    if (k == w.begin) memcpy(sum, v, (size_t)channels * sizeof(REAL));
                    else NAME(add)(sum, v, channels);
                } else if (first) {
                    NAME(first_of)(best, place, v, at, 0, channels);
                    first = 0;
                } else {
                    NAME(largest_of)(best, place, v, at, 0, channels);
                }
            }
            if (!s->mean || w.begin >= w.end) continue;
            if (!first) NAME(add)(best, row, channels);
            first = 0;
        }
    if (first)
        for (int64_t c = 0; c < channels; c++) {
            best[c] = s->mean ? 0 : (REAL)-INFINITY;
            if (!s->mean) place[c] = -1;
        }
    if (s->mean) {
        REAL count = (REAL)count_of(s, d, h, w);
        for (int64_t c = 0; c < channels; c++) best[c] /= count;
    }
}

/* A row of the result of one channel. */
static void NAME(line)(const pooling *s, int64_t x_at, const double *u, span d, span h, int64_t y_at, int64_t p_at,
                       REAL *buffer, REAL *best, int32_t *place)
{
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t width = s->in[2];
    int first = 1;
    for (int64_t i = d.begin; i < d.end; i += s->dilation[0])
        for (int64_t j = h.begin; j < h.end; j += s->dilation[1]) {
            const REAL *v = NAME(run_of)(x, x_at + i * x->stride[2] + j * x->stride[3], x->stride[4], width, buffer);
            int32_t at = (int32_t)((i * s->in[1] + j) * width);
            if (s->mean && first) memcpy(best, v, (size_t)width * sizeof(REAL));
            else if (s->mean) NAME(add)(best, v, width);
            else if (first) NAME(first_of)(best, place, v, at, 1, width);
            else NAME(largest_of)(best, place, v, at, 1, width);
            first = 0;
        }
    REAL *to = buffer;
    for (int64_t q = 0; q < s->out[2]; q++) {
        span w = span_of(s, 2, q, u);
        if (s->mean) {
            REAL sum = 0;
            for (int64_t k = w.begin; k < w.end && !first; k += s->dilation[2]) sum += best[k];
            to[q] = sum / (REAL)count_of(s, d, h, w);
            continue;
        }
        REAL b = (REAL)-INFINITY;
        int32_t at = -1;
        for (int64_t k = w.begin; k < w.end && !first; k += s->dilation[2]) {
            REAL v = best[k];
            int nan = NAME(is_nan)(v), had = NAME(is_nan)(b);
            if (at < 0 || v > b || (nan && !had) || ((v == b || (nan && had)) && place[k] < at)) b = v, at = place[k];
        }
        to[q] = b;
        ((int32_t *)p->data)[p_at + q * p->stride[4]] = at;
    }
    NAME(io_store)(io_at(y->data, y->dtype, y_at), to, y->dtype, y->stride[4], s->out[2]);
}

/* Units: a row of results of one image, of all channels or of one. */
static void NAME(pool_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t per = y->shape[1] / s->channels;
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *best = buffer + 2 * s->room;
    int32_t *places = (int32_t *)(void *)(best + s->room);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit % s->out[1], o = unit / s->out[1] % s->out[0], rest = unit / s->out[1] / s->out[0];
        int64_t c = rest % per, n = rest / per;
        double u[3] = {0};
        samples_of(s, n, c, u);
        span d = span_of(s, 0, o, u), h = span_of(s, 1, i, u);
        int64_t x_at = n * x->stride[0] + c * x->stride[1];
        int64_t y_at = n * y->stride[0] + c * y->stride[1] + o * y->stride[2] + i * y->stride[3];
        int64_t p_at = n * p->stride[0] + c * p->stride[1] + o * p->stride[2] + i * p->stride[3];
        if (s->channels == 1) {
            NAME(line)(s, x_at, u, d, h, y_at, p_at, buffer, best, places);
            continue;
        }
        for (int64_t q = 0; q < s->out[2]; q++) {
            void *to = io_at(y->data, y->dtype, y_at + q * y->stride[4]);
            REAL *room = y->dtype == REAL_DTYPE ? to : best;
            int32_t *place = s->mean ? NULL : (int32_t *)p->data + p_at + q * p->stride[4];
            NAME(pixel)(s, x_at, d, h, span_of(s, 2, q, u), room, place, buffer);
            if (room != to) NAME(io_store)(to, room, y->dtype, 1, s->channels);
        }
    }
}

/* --- the other way: planes of x, of a few channels that lie side by side or of one --- */

/* A plane [D H W, channels] goes to where it belongs. */
static void NAME(put_plane)(const pooling *s, int64_t n, int64_t c0, int64_t channels, const REAL *plane)
{
    const lksi_view *x = &s->x;
    for (int64_t i = 0; i < s->in[0]; i++)
        for (int64_t j = 0; j < s->in[1]; j++) {
            int64_t at = n * x->stride[0] + c0 * x->stride[1] + i * x->stride[2] + j * x->stride[3];
            if (channels == 1) {
                NAME(io_store)(io_at(x->data, x->dtype, at), plane, x->dtype, x->stride[4], s->in[2]);
                plane += s->in[2];
                continue;
            }
            for (int64_t k = 0; k < s->in[2]; k++, at += x->stride[4], plane += channels)
                NAME(io_store)(io_at(x->data, x->dtype, at), plane, x->dtype, x->stride[1], channels);
        }
}

/* dy added (or x put) at its places. Overlapping windows add in a fixed order. */
static void NAME(spread_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *y = &s->y, *p = &s->place;
    int64_t all = s->x.shape[1], per = (all + s->channels - 1) / s->channels, plane = s->in[0] * s->in[1] * s->in[2];
    REAL *sum = lksi_scratch(s->cpu, worker, 0, s->bytes), *buffer = sum + plane * s->channels;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        int64_t across = channels == 1 ? s->out[2] : channels;
        memset(sum, 0, (size_t)(plane * channels) * sizeof(REAL));
        for (int64_t o = 0; o < s->out[0]; o++)
            for (int64_t i = 0; i < s->out[1]; i++)
                for (int64_t q = 0; q < (channels == 1 ? 1 : s->out[2]); q++) {
                    int64_t from = n * y->stride[0] + c0 * y->stride[1] + o * y->stride[2] + i * y->stride[3] +
                                   q * y->stride[4];
                    int64_t place = n * p->stride[0] + c0 * p->stride[1] + o * p->stride[2] + i * p->stride[3] +
                                    q * p->stride[4];
                    int64_t ps = p->stride[channels == 1 ? 4 : 1], ys = y->stride[channels == 1 ? 4 : 1];
                    const REAL *v = NAME(run_of)(y, from, ys, across, buffer);
                    for (int64_t c = 0; c < across; c++) {
                        int64_t at = place_at(p, place + c * ps);
                        if (at < 0 || at >= plane) continue;
                        REAL *to = sum + at * channels + (channels == 1 ? 0 : c);
                        *to = s->assign ? v[c] : *to + v[c];
                    }
                }
        NAME(put_plane)(s, n, c0, channels, sum);
    }
}

/* Gradient of a mean: each result's share goes to its window. */
static void NAME(share_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *y = &s->y;
    int64_t all = s->x.shape[1], per = (all + s->channels - 1) / s->channels, width = s->in[2];
    int64_t plane = s->in[0] * s->in[1] * width;
    const double none[3] = {0};
    REAL *sum = lksi_scratch(s->cpu, worker, 0, s->bytes), *buffer = sum + plane * s->channels;
    REAL *row = buffer + s->room;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        memset(sum, 0, (size_t)(plane * channels) * sizeof(REAL));
        for (int64_t o = 0; o < s->out[0]; o++)
            for (int64_t i = 0; i < s->out[1]; i++) {
                span d = span_of(s, 0, o, none), h = span_of(s, 1, i, none);
                int64_t from = n * y->stride[0] + c0 * y->stride[1] + o * y->stride[2] + i * y->stride[3];
                memset(row, 0, (size_t)(width * channels) * sizeof(REAL));
                const REAL *g = channels == 1 ? NAME(run_of)(y, from, y->stride[4], s->out[2], buffer) : NULL;
                for (int64_t q = 0; q < s->out[2]; q++) {
                    span w = span_of(s, 2, q, none);
                    REAL count = (REAL)count_of(s, d, h, w);
                    if (channels == 1) {
                        REAL share = g[q] / count;
                        for (int64_t k = w.begin; k < w.end; k += s->dilation[2]) row[k] += share;
                        continue;
                    }
                    NAME(io_load)(buffer, io_at(y->data, y->dtype, from + q * y->stride[4]), y->dtype, y->stride[1],
                                  channels);
                    for (int64_t c = 0; c < channels; c++) buffer[c] /= count;
                    for (int64_t k = w.begin; k < w.end; k += s->dilation[2])
                        NAME(add)(row + k * channels, buffer, channels);
                }
                for (int64_t j = d.begin; j < d.end; j += s->dilation[0])
                    for (int64_t k = h.begin; k < h.end; k += s->dilation[1])
                        NAME(add)(sum + (j * s->in[1] + k) * width * channels, row, width * channels);
            }
        NAME(put_plane)(s, n, c0, channels, sum);
    }
}

/* Gradient of padding by what is inside: each result's goes to where it was taken from. */
static void NAME(fold_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *y = &s->y;
    int64_t all = s->x.shape[1], per = (all + s->channels - 1) / s->channels, width = s->in[2];
    int64_t plane = s->in[0] * s->in[1] * width;
    REAL *sum = lksi_scratch(s->cpu, worker, 0, s->bytes), *buffer = sum + plane * s->channels;
    REAL *row = buffer + s->room;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        memset(sum, 0, (size_t)(plane * channels) * sizeof(REAL));
        for (int64_t o = 0; o < s->out[0]; o++)
            for (int64_t i = 0; i < s->out[1]; i++) {
                int64_t from = n * y->stride[0] + c0 * y->stride[1] + o * y->stride[2] + i * y->stride[3];
                memset(row, 0, (size_t)(width * channels) * sizeof(REAL));
                const REAL *g = channels == 1 ? NAME(run_of)(y, from, y->stride[4], s->out[2], buffer) : NULL;
                for (int64_t q = 0; q < s->out[2]; q++) {
                    int64_t k = source_of(s, 2, q);
                    if (channels == 1) row[k] += g[q];
                    else
                        NAME(add)(row + k * channels, NAME(run_of)(y, from + q * y->stride[4], y->stride[1], channels,
                                                                   buffer), channels);
                }
                NAME(add)(sum + (source_of(s, 0, o) * s->in[1] + source_of(s, 1, i)) * width * channels, row,
                          width * channels);
            }
        NAME(put_plane)(s, n, c0, channels, sum);
    }
}

#undef CORE_
#undef CORE
#undef NAME
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
