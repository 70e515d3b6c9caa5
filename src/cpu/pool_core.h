/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool_core.h - pooling for one type of arithmetic; included by pool.c with REAL, REAL_DTYPE and SUFFIX. Where channels
 * lie side by side they are the vector; else a row of the image is: first over the rows of a window, element by
 * element, then along the row, split into phases (see pool.c) so that windows lie side by side as well. Sums are of
 * rows first, so that a large window does not lose what it adds last.
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

/* phases [stride, n] of a row [n stride], and back. */
static void NAME(split)(REAL *restrict to, const REAL *restrict row, int64_t n, int64_t stride)
{
    if (stride == 2)
        for (int64_t i = 0; i < n; i++) to[i] = row[2 * i], to[n + i] = row[2 * i + 1];
    else
        for (int64_t p = 0; p < stride; p++)
            for (int64_t i = 0; i < n; i++) to[p * n + i] = row[i * stride + p];
}

static void NAME(join)(REAL *restrict row, const REAL *restrict from, int64_t n, int64_t stride)
{
    if (stride == 2)
        for (int64_t i = 0; i < n; i++) row[2 * i] = from[i], row[2 * i + 1] = from[n + i];
    else
        for (int64_t p = 0; p < stride; p++)
            for (int64_t i = 0; i < n; i++) row[i * stride + p] = from[p * n + i];
}

/* What is larger, or a NaN; of what is as large, what comes first: no place (-1) is behind all. best may be `old`. */
static inline void NAME(larger_of)(REAL *best, int32_t *place, const REAL *old, const int32_t *old_at, const REAL *v,
                                   const int32_t *at, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        REAL x = v[i], b = old[i];
        int nan = NAME(is_nan)(x), had = NAME(is_nan)(b);
        int take = (x > b) | (nan & !had) | (((x == b) | (nan & had)) & ((uint32_t)at[i] < (uint32_t)old_at[i]));
        best[i] = take ? x : b;
        place[i] = take ? at[i] : old_at[i];
    }
}

/* What a worker has in hand for a row of results of one channel. */
typedef struct NAME(hands) {
    REAL *buffer, *row, *phases, *counts;       /* row: with its padding */
    int32_t *place, *place_phases, *own;
    double count;                               /* of the rows of a window, which counts are for */
} NAME(hands);

static NAME(hands) NAME(hands_of)(const pooling *s, REAL *memory)
{
    int64_t room = s->room;
    NAME(hands) m = {memory, memory + room, memory + 2 * room, memory + 3 * room, NULL, NULL, NULL, NAN};
    m.place = (int32_t *)(void *)(memory + 4 * room);
    m.place_phases = (int32_t *)(void *)(memory + 5 * room);
    m.own = (int32_t *)(void *)(memory + 6 * room);
    for (int64_t i = 0; i < room; i++) m.row[i] = s->mean ? 0 : (REAL)-INFINITY, m.place[i] = -1;
    return m;
}

/* What the sums of a row of windows are divided by. */
static void NAME(counts)(const pooling *s, NAME(hands) *m, span d, span h, const double *u)
{
    double count = count_of(s, d, h, (span){0, 1, 1});
    if (count == m->count) return;
    m->count = count;
    for (int64_t q = 0; q < s->out[2]; q++) m->counts[q] = (REAL)count_of(s, d, h, span_of(s, 2, q, u));
}

/* Windows along a row, all at once: into buffer, places into own. */
static void NAME(windows)(const pooling *s, NAME(hands) *m)
{
    int64_t stride = s->stride[2], n = (s->out[2] + LANES - 1) / LANES * LANES;
    const REAL *row = m->row;
    const int32_t *place = m->place;
    if (stride > 1) {
        NAME(split)(m->phases, row, s->phase, stride);
        row = m->phases;
        if (!s->mean) split_places(m->place_phases, place, s->phase, stride);
        place = m->place_phases;
    }
    if (s->mean) {
        memset(m->buffer, 0, (size_t)n * sizeof(REAL));
        for (int64_t k = 0; k < s->kernel[2]; k++) NAME(add)(m->buffer, row + phase_at(s, k), n);
        for (int64_t q = 0; q < s->out[2]; q++) m->buffer[q] /= m->counts[q];
        return;
    }
    const REAL *best = row;
    const int32_t *best_at = place;
    for (int64_t k = s->kernel[2] > 1; k < s->kernel[2]; k++, best = m->buffer, best_at = m->own)
        NAME(larger_of)(m->buffer, m->own, best, best_at, row + phase_at(s, k), place + phase_at(s, k), n);
}

/* A row of the result of one channel. */
static void NAME(line)(const pooling *s, int64_t x_at, const double *u, span d, span h, int64_t y_at, int64_t p_at,
                       NAME(hands) *m)
{
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t width = s->in[2], left = s->phase ? s->padding[2] : 0;
    REAL *best = m->row + left;
    int32_t *place = m->place + left;
    int first = 1;
    for (int64_t i = d.begin; i < d.end; i += s->dilation[0])
        for (int64_t j = h.begin; j < h.end; j += s->dilation[1]) {
            const REAL *v = NAME(run_of)(x, x_at + i * x->stride[2] + j * x->stride[3], x->stride[4], width, m->buffer);
            int32_t at = (int32_t)((i * s->in[1] + j) * width);
            if (s->mean && first) memcpy(best, v, (size_t)width * sizeof(REAL));
            else if (s->mean) NAME(add)(best, v, width);
            else if (first) NAME(first_of)(best, place, v, at, 1, width);
            else NAME(largest_of)(best, place, v, at, 1, width);
            first = 0;
        }
    if (first)
        for (int64_t k = 0; k < width; k++) best[k] = s->mean ? 0 : (REAL)-INFINITY, place[k] = -1;
    if (s->mean) NAME(counts)(s, m, d, h, u);
    if (s->phase) NAME(windows)(s, m);
    for (int64_t q = 0; q < s->out[2] && !s->phase; q++) {
        span w = span_of(s, 2, q, u);
        if (s->mean) {
            REAL sum = 0;
            for (int64_t k = w.begin; k < w.end; k += s->dilation[2]) sum += best[k];
            m->buffer[q] = sum / m->counts[q];
            continue;
        }
        REAL b = (REAL)-INFINITY;
        int32_t at = -1;
        for (int64_t k = w.begin; k < w.end; k += s->dilation[2])
            NAME(larger_of)(&b, &at, &b, &at, best + k, place + k, 1);
        m->buffer[q] = b, m->own[q] = at;
    }
    NAME(io_store)(io_at(y->data, y->dtype, y_at), m->buffer, y->dtype, y->stride[4], s->out[2]);
    if (s->mean) return;
    int32_t *to = (int32_t *)p->data + p_at;
    if (p->stride[4] == 1) memcpy(to, m->own, (size_t)s->out[2] * sizeof *to);
    else
        for (int64_t q = 0; q < s->out[2]; q++) to[q * p->stride[4]] = m->own[q];
}

/* Units: a row of results of one image, of all channels or of one. */
static void NAME(pool_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t per = y->shape[1] / s->channels;
    NAME(hands) m = NAME(hands_of)(s, lksi_scratch(s->cpu, worker, 0, s->bytes));
    int64_t i = begin % s->out[1], o = begin / s->out[1] % s->out[0], c = begin / s->out[1] / s->out[0] % per;
    int64_t n = begin / s->out[1] / s->out[0] / per;
    for (int64_t unit = begin; unit < end; unit++) {
        double u[3] = {0};
        samples_of(s, n, c, u);
        span d = span_of(s, 0, o, u), h = span_of(s, 1, i, u);
        int64_t x_at = n * x->stride[0] + c * x->stride[1];
        int64_t y_at = n * y->stride[0] + c * y->stride[1] + o * y->stride[2] + i * y->stride[3];
        int64_t p_at = n * p->stride[0] + c * p->stride[1] + o * p->stride[2] + i * p->stride[3];
        if (s->channels == 1) NAME(line)(s, x_at, u, d, h, y_at, p_at, &m);
        for (int64_t q = 0; q < s->out[2] && s->channels > 1; q++) {
            void *to = io_at(y->data, y->dtype, y_at + q * y->stride[4]);
            REAL *room = y->dtype == REAL_DTYPE ? to : m.phases;
            int32_t *place = s->mean ? NULL : (int32_t *)p->data + p_at + q * p->stride[4];
            NAME(pixel)(s, x_at, d, h, span_of(s, 2, q, u), room, place, m.buffer);
            if (room != to) NAME(io_store)(to, room, y->dtype, 1, s->channels);
        }
        if (++i < s->out[1]) continue;
        i = 0;
        if (++o < s->out[0]) continue;
        o = 0;
        if (++c == per) c = 0, n++;
    }
}

/* --- the other way: planes of x, of a few channels that lie side by side or of one --- */

/* A plane [D H W, channels] to add to, zeros at first: where it belongs if it can be there, else in `own`. *step: from
 * pixel to pixel. */
static REAL *NAME(take_plane)(const pooling *s, int64_t n, int64_t c0, int64_t channels, REAL *own, int64_t *step)
{
    const lksi_view *x = &s->x;
    int64_t pixels = s->in[0] * s->in[1] * s->in[2];
    *step = s->in_place ? s->step : channels;
    if (s->in_place) own = (REAL *)x->data + n * x->stride[0] + c0 * x->stride[1];
    if (*step == channels) memset(own, 0, (size_t)(pixels * channels) * sizeof(REAL));
    else
        for (int64_t i = 0; i < pixels; i++) memset(own + i * *step, 0, (size_t)channels * sizeof(REAL));
    return own;
}

/* It goes to where it belongs. */
static void NAME(put_plane)(const pooling *s, int64_t n, int64_t c0, int64_t channels, const REAL *plane)
{
    const lksi_view *x = &s->x;
    for (int64_t i = 0; i < s->in[0] && !s->in_place; i++)
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

/* A row [W, channels] is added to a row of a plane. */
static inline void NAME(add_row)(REAL *to, int64_t step, const REAL *row, int64_t width, int64_t channels)
{
    if (step == channels) NAME(add)(to, row, width * channels);
    else
        for (int64_t k = 0; k < width; k++) NAME(add)(to + k * step, row + k * channels, channels);
}

/* v is added where its place is the one looked for, which goes up by `step`. */
static inline void NAME(add_found)(REAL *restrict to, const REAL *restrict v, const int32_t *restrict place, int32_t at,
                                   int step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += place[i] == (int32_t)((uint32_t)at + (uint32_t)i * (uint32_t)step) ? v[i] : 0;
}

/* A row of y from `at` on as pixels of some channels, *step apart: in place or in buffer [pixels, channels]. */
static const REAL *NAME(pixels_of)(const lksi_view *y, int64_t at, int64_t pixels, int64_t channels, REAL *buffer,
                                   int64_t *step)
{
    const void *from = io_at(y->data, y->dtype, at);
    int side_by_side = y->stride[1] == 1 || channels == 1;
    *step = channels;
    if (y->dtype == REAL_DTYPE && side_by_side) {
        *step = y->stride[4];
        return from;
    }
    if (y->dtype == REAL_DTYPE && y->stride[4] == 1) {
        NAME(turn)(buffer, channels, from, y->stride[1], channels, pixels);
        return buffer;
    }
    for (int64_t q = 0; q < pixels; q++)
        NAME(io_load)(buffer + q * channels, io_at(from, y->dtype, q * y->stride[4]), y->dtype, y->stride[1], channels);
    return buffer;
}

/* Windows of one size and places inside them: each element looks up the results whose windows hold it, in their
 * order. Units: planes in two dims. */
static void NAME(look_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *x = &s->x, *y = &s->y, *p = &s->place;
    int64_t all = x->shape[1], per = (all + s->channels - 1) / s->channels, width = s->in[2], out = s->out[2];
    int one = s->channels == 1, in_place = s->in_place && !one;
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *own = buffer + s->room, *row = own + s->room;
    memset(row, 0, (size_t)s->room * sizeof(REAL)); /* what no window reaches stays so */
    for (int64_t u = begin; u < end; u++) {
        int64_t d = u % s->in[0], c0 = u / s->in[0] % per * s->channels, n = u / s->in[0] / per;
        int64_t channels = all - c0 < s->channels ? all - c0 : s->channels, step = in_place ? s->step : channels;
        span o = results_of(s, 0, d);
        for (int64_t j = 0; j < s->in[1]; j++) {
            span i = results_of(s, 1, j);
            void *to = io_at(x->data, x->dtype, n * x->stride[0] + c0 * x->stride[1] + d * x->stride[2] +
                                                    j * x->stride[3]);
            REAL *sum = in_place ? to : own;
            int64_t whole = one ? s->stride[2] * s->phase : step == channels ? width * channels : 0;
            memset(sum, 0, (size_t)whole * sizeof(REAL));
            for (int64_t k = 0; k < width && !whole; k++) memset(sum + k * step, 0, (size_t)channels * sizeof(REAL));
            for (int64_t a = o.begin; a < o.end; a += o.full)
                for (int64_t b = i.begin; b < i.end; b += i.full) {
                    int64_t y_at = n * y->stride[0] + c0 * y->stride[1] + a * y->stride[2] + b * y->stride[3];
                    const int32_t *place = (const int32_t *)p->data + n * p->stride[0] + c0 * p->stride[1] +
                                           a * p->stride[2] + b * p->stride[3];
                    int32_t at = (int32_t)((d * s->in[1] + j) * width);
                    if (one) {
                        const REAL *v = NAME(run_of)(y, y_at, y->stride[4], out, buffer);
                        for (int64_t k = s->kernel[2] - 1; k >= 0; k--)
                            NAME(add_found)(sum + phase_at(s, k), v, place,
                                            at + (int32_t)(k * s->dilation[2] - s->padding[2]), (int)s->stride[2], out);
                        continue;
                    }
                    int64_t apart;
                    const REAL *v = NAME(pixels_of)(y, y_at, out, channels, buffer, &apart);
                    for (int64_t k = 0; k < width; k++) {
                        span w = results_of(s, 2, k);
                        for (int64_t q = w.begin; q < w.end; q += w.full)
                            NAME(add_found)(sum + k * step, v + q * apart, place + q * p->stride[4], at + (int32_t)k, 0,
                                            channels);
                    }
                }
            if (one) {
                if (s->stride[2] > 1) NAME(join)(row, sum, s->phase, s->stride[2]), sum = row;
                NAME(io_store)(to, sum + s->padding[2], x->dtype, x->stride[4], width);
            }
            for (int64_t k = 0; k < width && !one && !in_place; k++)
                NAME(io_store)(io_at(to, x->dtype, k * x->stride[4]), sum + k * step, x->dtype, x->stride[1], channels);
        }
    }
}

/* dy added (or x put) at its places. Overlapping windows add in a fixed order. */
static void NAME(spread_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const pooling *s = arg;
    const lksi_view *y = &s->y, *p = &s->place;
    int64_t all = s->x.shape[1], per = (all + s->channels - 1) / s->channels, plane = s->in[0] * s->in[1] * s->in[2];
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *own = buffer + s->room;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        int64_t across = channels == 1 ? s->out[2] : channels, step;
        REAL *sum = NAME(take_plane)(s, n, c0, channels, own, &step);
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
                        REAL *to = sum + at * step + (channels == 1 ? 0 : c);
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
    const double none[3] = {0};
    NAME(hands) m = NAME(hands_of)(s, lksi_scratch(s->cpu, worker, 0, s->bytes));
    REAL *buffer = m.buffer, *own = buffer + HANDS * s->room;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        int64_t step;
        REAL *sum = NAME(take_plane)(s, n, c0, channels, own, &step);
        for (int64_t o = 0; o < s->out[0]; o++)
            for (int64_t i = 0; i < s->out[1]; i++) {
                span d = span_of(s, 0, o, none), h = span_of(s, 1, i, none);
                int64_t from = n * y->stride[0] + c0 * y->stride[1] + o * y->stride[2] + i * y->stride[3];
                REAL *row = s->phase && s->stride[2] > 1 ? m.phases : m.row;
                memset(row, 0, (size_t)(s->phase ? s->stride[2] * s->phase : width * channels) * sizeof(REAL));
                const REAL *g = channels == 1 ? NAME(run_of)(y, from, y->stride[4], s->out[2], buffer) : NULL;
                NAME(counts)(s, &m, d, h, none);
                if (s->phase) {
                    for (int64_t q = 0; q < s->out[2]; q++) buffer[q] = g[q] / m.counts[q];
                    for (int64_t k = s->kernel[2] - 1; k >= 0; k--)
                        NAME(add)(row + phase_at(s, k), buffer, s->out[2]);
                    if (row != m.row) NAME(join)(m.row, row, s->phase, s->stride[2]);
                    row = m.row + s->padding[2];
                }
                for (int64_t q = 0; q < s->out[2] && !s->phase; q++) {
                    span w = span_of(s, 2, q, none);
                    if (channels == 1) {
                        REAL share = g[q] / m.counts[q];
                        for (int64_t k = w.begin; k < w.end; k += s->dilation[2]) row[k] += share;
                        continue;
                    }
                    NAME(io_load)(buffer, io_at(y->data, y->dtype, from + q * y->stride[4]), y->dtype, y->stride[1],
                                  channels);
                    for (int64_t c = 0; c < channels; c++) buffer[c] /= m.counts[q];
                    for (int64_t k = w.begin; k < w.end; k += s->dilation[2])
                        NAME(add)(row + k * channels, buffer, channels);
                }
                for (int64_t j = d.begin; j < d.end; j += s->dilation[0])
                    for (int64_t k = h.begin; k < h.end; k += s->dilation[1])
                        NAME(add_row)(sum + (j * s->in[1] + k) * width * step, step, row, width, channels);
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
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *row = buffer + s->room, *own = row + s->room;
    for (int64_t u = begin; u < end; u++) {
        int64_t n = u / per, c0 = u % per * s->channels, channels = all - c0 < s->channels ? all - c0 : s->channels;
        int64_t step;
        REAL *sum = NAME(take_plane)(s, n, c0, channels, own, &step);
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
                NAME(add_row)(sum + (source_of(s, 0, o) * s->in[1] + source_of(s, 1, i)) * width * step, step, row,
                              width, channels);
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
