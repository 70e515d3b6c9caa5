/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample_core.h - grid sampling for one type of arithmetic; included by sample.c with REAL, REAL_DTYPE and SUFFIX.
 */

typedef REAL NAME(vec) __attribute__((vector_size(LKSI_VECTOR), aligned(sizeof(REAL)), may_alias));
#define LANES ((int)(LKSI_VECTOR / sizeof(REAL)))

typedef struct NAME(tap) {
    int64_t at; /* pixel of x */
    REAL weight, change[3]; /* of the weight, with x, y, z of the grid */
} NAME(tap);

typedef struct NAME(block) { /* PLACES places of the grid, one after the other, and what they take of x */
    REAL u[PLACES][WIDE];
    int count[PLACES];
    NAME(tap) t[PLACES][TAPS];
} NAME(block);

/* Into [low / 2, high / 2] by reflection at both ends; *slope changes sign with the direction. */
static REAL NAME(reflect)(REAL at, REAL low, REAL high, REAL *slope)
{
    if (low == high) {
        *slope = 0;
        return 0;
    }
    REAL least = low / 2, span = (high - low) / 2;
    at -= least;
    if (at < 0) at = -at, *slope = -*slope;
    REAL extra = (REAL)fmod((double)at, (double)span), flips = (REAL)floor((double)(at / span));
    if (fmod((double)flips, 2) == 0) return extra + least;
    *slope = -*slope;
    return span - extra + least;
}

static REAL NAME(inside)(const sampling *s, REAL at, int64_t size, REAL *slope)
{
    REAL most = (REAL)(size - 1);
    if (s->padding == ZEROS) return at;
    if (s->padding == REFLECTION)
        at = s->align ? NAME(reflect)(at, 0, 2 * most, slope) : NAME(reflect)(at, -1, 2 * (REAL)size - 1, slope);
    if (at <= 0 || (s->padding == BORDER && NAME(is_nan)(at))) at = 0, *slope = 0; /* infinity in a dim of one */
    else if (at >= most) at = most, *slope = 0;
    return at;
}

/* Elements from what the grid says, -1 to 1 over the image; NaN is -1. slope: elements per unit of the grid. */
static REAL NAME(elements)(const sampling *s, REAL u, int64_t size, REAL *slope)
{
    *slope = s->align ? (REAL)(size - 1) / 2 : (REAL)size / 2;
    if (NAME(is_nan)(u)) u = -1, *slope = 0;
    return s->align ? (u + 1) / 2 * (REAL)(size - 1) : ((u + 1) * (REAL)size - 1) / 2;
}

/* Far outside, or nowhere: outside. */
static REAL NAME(bounded)(REAL at) { return at > -1e9f && at < 1e9f ? at : -100; }

/* For the taps around it: beyond the border all are the outermost element. */
static REAL NAME(nearby)(const sampling *s, REAL at, int64_t size, REAL *slope)
{
    REAL most = (REAL)size + 2;
    if (s->padding != BORDER || (at > -3 && at < most)) return NAME(bounded)(at);
    *slope = 0;
    return at > -3 ? most : -3;
}

/* For what is bounded: a call of floor is dear where the instruction set has none. */
static inline int64_t NAME(whole)(REAL at)
{
    int32_t low = (int32_t)at;
    return low - ((REAL)low > at);
}

static inline int NAME(within)(const sampling *s, int64_t d, int64_t h, int64_t w)
{
    return (uint64_t)d < (uint64_t)s->in[0] && (uint64_t)h < (uint64_t)s->in[1] && (uint64_t)w < (uint64_t)s->in[2];
}

/* The four weights of cubic convolution (Keys, 1981; a = -0.75) at t in [0, 1), and their slopes. */
static void NAME(cubic)(REAL t, REAL *w, REAL *slope)
{
    const REAL a = (REAL)-0.75;
    REAL x[4] = {t + 1, t, 1 - t, 2 - t};
    for (int i = 0; i < 4; i++) {
        REAL v = x[i], sign = i < 2 ? 1 : -1;
        if (i == 0 || i == 3) {
            w[i] = ((a * v - 5 * a) * v + 8 * a) * v - 4 * a;
            slope[i] = sign * ((3 * a * v - 10 * a) * v + 8 * a);
        } else {
            w[i] = ((a + 2) * v - (a + 3)) * v * v + 1;
            slope[i] = sign * (3 * (a + 2) * v - 2 * (a + 3)) * v;
        }
    }
}

static int NAME(bicubic)(const sampling *s, const REAL *u, NAME(tap) *t)
{
    REAL at[2], slope[2], w[2][4], change[2][4];
    int64_t first[2];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        at[i] = NAME(nearby)(s, NAME(elements)(s, u[i], s->in[2 - i], &slope[i]), s->in[2 - i], &slope[i]);
        int64_t low = NAME(whole)(at[i]);
        first[i] = low - 1;
        NAME(cubic)(at[i] - (REAL)low, w[i], change[i]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            REAL none = 0;
            int64_t row = (int64_t)NAME(bounded)(NAME(inside)(s, (REAL)(first[1] + i), s->in[1], &none));
            int64_t column = (int64_t)NAME(bounded)(NAME(inside)(s, (REAL)(first[0] + j), s->in[2], &none));
            if (!NAME(within)(s, 0, row, column)) continue;
            t[count++] = (NAME(tap)){row * s->in[2] + column, w[1][i] * w[0][j],
                                     {w[1][i] * change[0][j] * slope[0], change[1][i] * w[0][j] * slope[1], 0}};
        }
    return count;
}

/* u: x, y, z of the grid. Returns how many taps of x there are. */
static inline __attribute__((always_inline)) int NAME(taps)(const sampling *s, const REAL *u, int dims, NAME(tap) *t)
{
    REAL part[3] = {0}, slope[3] = {0};
    int64_t low[3] = {0};
    int count = 0;
    for (int i = 0; i < dims; i++) {
        REAL at = NAME(elements)(s, u[i], s->in[2 - i], &slope[i]);
        at = NAME(bounded)(NAME(inside)(s, at, s->in[2 - i], &slope[i]));
        low[i] = s->mode == NEAREST ? (int64_t)nearbyint((double)at) : NAME(whole)(at);
        part[i] = at - (REAL)low[i];
    }
    int64_t first = (low[2] * s->in[1] + low[1]) * s->in[2] + low[0];
    if (s->mode == NEAREST) {
        *t = (NAME(tap)){first, 1, {0, 0, 0}};
        return NAME(within)(s, low[2], low[1], low[0]);
    }
    for (int corner = 0; corner < 1 << dims; corner++) { /* one that does not count is written, too, and overwritten */
        int x = corner & 1, y = corner >> 1 & 1, z = corner >> 2;
        REAL wx = x ? part[0] : 1 - part[0], wy = y ? part[1] : 1 - part[1], wz = z ? part[2] : 1 - part[2];
        t[count] = (NAME(tap)){first + (z * s->in[1] + y) * s->in[2] + x, wx * wy * wz,
                               {(x ? slope[0] : -slope[0]) * wy * wz, (y ? slope[1] : -slope[1]) * wx * wz,
                                (z ? slope[2] : -slope[2]) * wx * wy}};
        count += NAME(within)(s, low[2] + z, low[1] + y, low[0] + x);
    }
    return count;
}

/* Offset of pixel i, and how many from there on lie one stride apart. */
static inline int64_t NAME(pixel)(const raster *r, int64_t i, int64_t *run)
{
    int64_t w = i % r->size[2], row = i / r->size[2];
    *run = r->flat ? r->size[0] * r->size[1] * r->size[2] - i : r->size[2] - w;
    return row / r->size[1] * r->stride[0] + row % r->size[1] * r->stride[1] + w * r->stride[2];
}

/* Pixels [first, first + count) of image n to [count, width]: channels from c0 on, then zeros. count <= PLACES */
static void NAME(fetch)(const raster *r, int64_t n, int64_t c0, int64_t channels, int64_t first, int64_t count,
                        int64_t width, REAL *restrict to)
{
    REAL line[PLACES];
    for (int64_t run; count > 0; first += run, count -= run, to += run * width) {
        const char *from = io_at(r->data, r->dtype, n * r->of_n + c0 * r->of_c + NAME(pixel)(r, first, &run));
        run = least(run, count);
        for (int64_t i = 0; i < run && r->of_c == 1; i++)
            NAME(io_load)(to + i * width, io_at(from, r->dtype, i * r->stride[2]), r->dtype, 1, channels);
        for (int64_t c = 0; c < channels && r->of_c != 1; c++) {
            NAME(io_load)(line, io_at(from, r->dtype, c * r->of_c), r->dtype, r->stride[2], run);
            for (int64_t i = 0; i < run; i++) to[i * width + c] = line[i];
        }
        for (int64_t i = 0; i < run; i++)
            for (int64_t c = channels; c < width; c++) to[i * width + c] = 0;
    }
}

/* The way back. */
static void NAME(put)(const raster *r, int64_t n, int64_t c0, int64_t channels, int64_t first, int64_t count,
                      int64_t width, const REAL *restrict from)
{
    REAL line[PLACES];
    for (int64_t run; count > 0; first += run, count -= run, from += run * width) {
        char *to = io_at(r->data, r->dtype, n * r->of_n + c0 * r->of_c + NAME(pixel)(r, first, &run));
        run = least(run, count);
        for (int64_t i = 0; i < run && r->of_c == 1; i++)
            NAME(io_store)(io_at(to, r->dtype, i * r->stride[2]), from + i * width, r->dtype, 1, channels);
        for (int64_t c = 0; c < channels && r->of_c != 1; c++) {
            for (int64_t i = 0; i < run; i++) line[i] = from[i * width + c];
            NAME(io_store)(io_at(to, r->dtype, c * r->of_c), line, r->dtype, r->stride[2], run);
        }
    }
}

/* Taps of places [first, first + count) of image n. */
static void NAME(look)(const sampling *s, int64_t n, int64_t first, int64_t count, NAME(block) *b)
{
    NAME(fetch)(&s->grid, n, 0, s->dims, first, count, WIDE, b->u[0]);
    for (int64_t p = 0; p < count; p++)
        b->count[p] = s->mode == BICUBIC ? NAME(bicubic)(s, b->u[p], b->t[p])
                      : s->dims == 2     ? NAME(taps)(s, b->u[p], 2, b->t[p])
                                         : NAME(taps)(s, b->u[p], 3, b->t[p]);
}

/* y [count, width] of what the taps name in x, whose pixels are `step` apart. */
static inline __attribute__((always_inline)) void NAME(mix)(const NAME(block) *b, int64_t count, int nearest,
                                                            const REAL *x, int64_t step, REAL *y, int pieces)
{
    for (int64_t p = 0; p < count; p++) {
        NAME(vec) sum[CHANNELS] = {{0}}, *to = (NAME(vec) *)(y + p * pieces * LANES);
        for (int k = 0; k < b->count[p]; k++) {
            const NAME(vec) *v = (const NAME(vec) *)(x + b->t[p][k].at * step);
            if (nearest)
                for (int i = 0; i < pieces; i++) sum[i] = v[i];
            else
                for (int i = 0; i < pieces; i++) sum[i] += b->t[p][k].weight * v[i];
        }
        for (int i = 0; i < pieces; i++) to[i] = sum[i];
    }
}

/* dy [count, width]: to dx [pixels, width] what each tap counts, and to change [count, WIDE] what the place does by x.
 * x: or NULL */
static inline __attribute__((always_inline)) void NAME(unmix)(const NAME(block) *b, int64_t count, const REAL *dy,
                                                              const REAL *x, int64_t step, REAL *dx, REAL *change,
                                                              int pieces)
{
    for (int64_t p = 0; p < count; p++) {
        const NAME(vec) *g = (const NAME(vec) *)(dy + p * pieces * LANES);
        NAME(vec) sum[3] = {{0}};
        for (int k = 0; k < b->count[p]; k++) {
            const NAME(tap) *t = &b->t[p][k];
            NAME(vec) *to = (NAME(vec) *)(dx + t->at * pieces * LANES);
            for (int i = 0; i < pieces; i++) to[i] += t->weight * g[i];
            if (!x) continue;
            const NAME(vec) *v = (const NAME(vec) *)(x + t->at * step);
            NAME(vec) dot = v[0] * g[0];
            for (int i = 1; i < pieces; i++) dot += v[i] * g[i];
            for (int j = 0; j < 3; j++) sum[j] += t->change[j] * dot;
        }
        for (int j = 0; j < 3 && x; j++) {
            REAL all = 0;
            for (int l = 0; l < LANES; l++) all += sum[j][l];
            change[p * WIDE + j] = all;
        }
    }
}

/* f(..., pieces) with the number of vectors that a group of channels has as a constant */
#define BY_PIECES(width, f, ...)                                      \
    do {                                                              \
        int pieces_ = (int)((width) / LANES);                         \
        if (pieces_ == 1) f(__VA_ARGS__, 1);                          \
        else if (pieces_ == 2) f(__VA_ARGS__, 2);                     \
        else if (pieces_ == 4) f(__VA_ARGS__, 4);                     \
        else f(__VA_ARGS__, 8);                                       \
    } while (0)

/* Where the pixels of a group of channels of image n lie side by side in x already: there; *step apart. Or NULL. */
static const REAL *NAME(there)(const sampling *s, int64_t n, int64_t group, int64_t *step)
{
    const raster *x = &s->x;
    *step = x->stride[2];
    if (x->dtype != REAL_DTYPE || !x->flat || x->of_c != 1 || s->channels % s->width != 0) return NULL;
    return io_at(x->data, x->dtype, n * x->of_n + group * CHANNELS * x->of_c);
}

/* Pixels [first, last) of a group of channels to [pixels, width]. */
static void NAME(gather)(const sampling *s, int64_t n, int64_t group, int64_t first, int64_t last, REAL *to)
{
    for (int64_t i = first; i < last; i += PLACES)
        NAME(fetch)(&s->x, n, group * CHANNELS, channels_of(s, group), i, least(last - i, PLACES), s->width,
                    to + i * s->width);
}

/* Units: pieces of an image for one group of channels. */
static void NAME(gather_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    int64_t pieces = (s->plane + PIECE - 1) / PIECE;
    (void)worker;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit % pieces * PIECE, which = unit / pieces;
        NAME(gather)(s, s->first + which / s->groups, which % s->groups, first, least(first + PIECE, s->plane),
                     (REAL *)s->shared + which * s->plane * s->width);
    }
}

/* The elements that the taps name to [place, tap, width] of `to`, where the taps point from now on: x as it lies. */
static void NAME(pick)(const sampling *s, int64_t n, int64_t group, int64_t count, const NAME(block) *b, REAL *to,
                       NAME(block) *near)
{
    for (int64_t p = 0; p < count; p++) {
        near->count[p] = b->count[p];
        for (int k = 0; k < b->count[p]; k++) {
            near->t[p][k] = b->t[p][k];
            near->t[p][k].at = p * TAPS + k;
            NAME(fetch)(&s->x, n, group * CHANNELS, channels_of(s, group), b->t[p][k].at, 1, s->width,
                        to + (p * TAPS + k) * s->width);
        }
    }
}

/* Units: blocks of places of the images of this round. */
static void NAME(sample_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    int64_t blocks = (s->places + PLACES - 1) / PLACES;
    REAL *y = lksi_scratch(s->cpu, worker, 0, s->bytes), *picked = y + PLACES * s->width;
    NAME(block) b, near;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t image = unit / blocks, n = s->first + image, first = unit % blocks * PLACES, step;
        int64_t count = least(s->places - first, PLACES);
        NAME(look)(s, n, first, count, &b);
        for (int64_t group = 0; group < s->groups; group++) {
            const REAL *x = NAME(there)(s, n, group, &step);
            const NAME(block) *from = &b;
            if (!x) step = s->width;
            if (!x && s->shared) x = (REAL *)s->shared + (image * s->groups + group) * s->plane * s->width;
            if (!x) {
                NAME(pick)(s, n, group, count, &b, picked, &near);
                from = &near, x = picked;
            }
            BY_PIECES(s->width, NAME(mix), from, count, s->mode == NEAREST, x, step, y);
            NAME(put)(&s->y, n, group * CHANNELS, channels_of(s, group), first, count, s->width, y);
        }
    }
}

/* Units: a group of channels of an image of this round. What it says of the grid goes to [image, group, place, WIDE] of
 * `shared`. */
static void NAME(back_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    REAL *dy = lksi_scratch(s->cpu, worker, 0, s->bytes), *pixels = dy + PLACES * s->width;
    REAL *dx = pixels + (s->shared ? s->plane * s->width : 0);
    NAME(block) b;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t n = s->first + unit / s->groups, group = unit % s->groups, channels = channels_of(s, group), step;
        const REAL *x = s->shared ? NAME(there)(s, n, group, &step) : NULL;
        if (s->shared && !x) {
            NAME(gather)(s, n, group, 0, s->plane, pixels);
            x = pixels, step = s->width;
        }
        memset(dx, 0, (size_t)(s->plane * s->width) * sizeof(REAL));
        for (int64_t first = 0; first < s->places; first += PLACES) {
            int64_t count = least(s->places - first, PLACES);
            REAL *change = s->shared ? (REAL *)s->shared + (unit * s->places + first) * WIDE : NULL;
            NAME(look)(s, n, first, count, &b);
            NAME(fetch)(&s->y, n, group * CHANNELS, channels, first, count, s->width, dy);
            BY_PIECES(s->width, NAME(unmix), &b, count, dy, x, step, dx, change);
        }
        for (int64_t i = 0; i < s->plane; i += PLACES)
            NAME(put)(&s->dx, n, group * CHANNELS, channels, i, least(s->plane - i, PLACES), s->width,
                      dx + i * s->width);
    }
}

/* Units: blocks of places of the images of this round. The groups' shares in their order. */
static void NAME(grid_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    int64_t blocks = (s->places + PLACES - 1) / PLACES;
    (void)worker;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t image = unit / blocks, first = unit % blocks * PLACES;
        int64_t count = least(s->places - first, PLACES);
        REAL sum[PLACES * WIDE] = {0};
        for (int64_t group = 0; group < s->groups && s->shared; group++) {
            const REAL *part = (REAL *)s->shared + ((image * s->groups + group) * s->places + first) * WIDE;
            for (int64_t i = 0; i < count * WIDE; i++) sum[i] += part[i];
        }
        NAME(put)(&s->dgrid, s->first + image, 0, s->dims, first, count, WIDE, sum);
    }
}

#undef LANES
#undef BY_PIECES
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
