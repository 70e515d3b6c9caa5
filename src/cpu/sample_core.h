/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample_core.h - grid sampling for one type of arithmetic; included by sample.c with REAL, REAL_DTYPE and SUFFIX.
 */

typedef struct NAME(tap) {
    int64_t d, h, w;
    REAL weight, change[3]; /* of the weight, with x, y, z of the grid */
} NAME(tap);

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
    if (at <= 0) at = 0, *slope = 0;
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

static int NAME(within)(const sampling *s, const NAME(tap) *t)
{
    return t->d >= 0 && t->d < s->in[0] && t->h >= 0 && t->h < s->in[1] && t->w >= 0 && t->w < s->in[2];
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
        at[i] = NAME(bounded)(NAME(elements)(s, u[i], s->in[2 - i], &slope[i]));
        REAL low = (REAL)floor((double)at[i]);
        first[i] = (int64_t)low - 1;
        NAME(cubic)(at[i] - low, w[i], change[i]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            REAL none = 0;
            NAME(tap) *p = &t[count];
            p->d = 0;
            p->h = (int64_t)NAME(bounded)(NAME(inside)(s, (REAL)(first[1] + i), s->in[1], &none));
            p->w = (int64_t)NAME(bounded)(NAME(inside)(s, (REAL)(first[0] + j), s->in[2], &none));
            if (!NAME(within)(s, p)) continue;
            p->weight = w[1][i] * w[0][j];
            p->change[0] = w[1][i] * change[0][j] * slope[0];
            p->change[1] = change[1][i] * w[0][j] * slope[1];
            p->change[2] = 0;
            count++;
        }
    return count;
}

/* u: x, y, z of the grid. Returns how many taps of x there are. */
static int NAME(taps)(const sampling *s, const REAL *u, NAME(tap) *t)
{
    REAL part[3] = {0}, slope[3] = {0};
    int64_t low[3] = {0};
    int count = 0;
    if (s->mode == BICUBIC) return NAME(bicubic)(s, u, t);
    for (int i = 0; i < s->dims; i++) {
        REAL at = NAME(elements)(s, u[i], s->in[2 - i], &slope[i]);
        at = NAME(bounded)(NAME(inside)(s, at, s->in[2 - i], &slope[i]));
        REAL whole = (REAL)(s->mode == NEAREST ? nearbyint((double)at) : floor((double)at));
        low[i] = (int64_t)whole;
        part[i] = at - whole;
    }
    if (s->mode == NEAREST) {
        *t = (NAME(tap)){low[2], low[1], low[0], 1, {0, 0, 0}};
        return NAME(within)(s, t);
    }
    for (int corner = 0; corner < 1 << s->dims; corner++) {
        NAME(tap) *p = &t[count];
        REAL w[3] = {1, 1, 1}, sign[3] = {0, 0, 0};
        for (int i = 0; i < s->dims; i++) {
            int up = corner >> i & 1;
            w[i] = up ? part[i] : 1 - part[i];
            sign[i] = up ? slope[i] : -slope[i];
        }
        p->w = low[0] + (corner & 1);
        p->h = low[1] + (corner >> 1 & 1);
        p->d = low[2] + (corner >> 2 & 1);
        if (!NAME(within)(s, p)) continue;
        p->weight = w[0] * w[1] * w[2];
        p->change[0] = sign[0] * w[1] * w[2];
        p->change[1] = sign[1] * w[0] * w[2];
        p->change[2] = sign[2] * w[0] * w[1];
        count++;
    }
    return count;
}

static void NAME(place)(const sampling *s, int64_t n, int64_t o, int64_t i, int64_t q, REAL *u)
{
    const lksi_view *g = &s->grid;
    int64_t at = n * g->stride[0] + o * g->stride[1] + i * g->stride[2] + q * g->stride[3];
    NAME(io_load)(u, io_at(g->data, g->dtype, at), g->dtype, g->stride[4], s->dims);
}

/* Channels c0.. of x at a tap, in place or in buffer. */
static const REAL *NAME(at_tap)(const lksi_view *x, int64_t n, int64_t c0, int64_t channels, const NAME(tap) *t,
                                REAL *buffer)
{
    int64_t at = n * x->stride[0] + c0 * x->stride[1] + t->d * x->stride[2] + t->h * x->stride[3] + t->w * x->stride[4];
    const void *from = io_at(x->data, x->dtype, at);
    if (x->dtype == REAL_DTYPE && (x->stride[1] == 1 || channels == 1)) return from;
    NAME(io_load)(buffer, from, x->dtype, x->stride[1], channels);
    return buffer;
}

static int64_t NAME(pixel_at)(const lksi_view *y, int64_t n, int64_t o, int64_t i, int64_t q)
{
    return n * y->stride[0] + o * y->stride[2] + i * y->stride[3] + q * y->stride[4];
}

/* Units: rows of the result. */
static void NAME(sample_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    const lksi_view *y = &s->y;
    int64_t channels = s->x.shape[1];
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *restrict sum = buffer + channels, u[WIDE] = {0};
    NAME(tap) t[TAPS];
    for (int64_t row = begin; row < end; row++) {
        int64_t i = row % s->out[1], o = row / s->out[1] % s->out[0], n = row / s->out[1] / s->out[0];
        for (int64_t q = 0; q < s->out[2]; q++) {
            NAME(place)(s, n, o, i, q, u);
            int count = NAME(taps)(s, u, t);
            memset(sum, 0, (size_t)channels * sizeof(REAL));
            for (int k = 0; k < count; k++) {
                const REAL *v = NAME(at_tap)(&s->x, n, 0, channels, &t[k], buffer);
                REAL w = t[k].weight;
                if (s->mode == NEAREST)
                    for (int64_t c = 0; c < channels; c++) sum[c] = v[c];
                else
                    for (int64_t c = 0; c < channels; c++) sum[c] += w * v[c];
            }
            NAME(io_store)(io_at(y->data, y->dtype, NAME(pixel_at)(y, n, o, i, q)), sum, y->dtype, y->stride[1],
                           channels);
        }
    }
}

/* Units: planes of CHANNELS channels of dx. */
static void NAME(back_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    const lksi_view *dy = &s->y, *dx = &s->dx;
    int64_t all = s->x.shape[1], per = (all + CHANNELS - 1) / CHANNELS, plane = s->in[0] * s->in[1] * s->in[2];
    REAL *sum = lksi_scratch(s->cpu, worker, 0, s->bytes), *buffer = sum + plane * CHANNELS, u[WIDE] = {0};
    NAME(tap) t[TAPS];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t n = unit / per, c0 = unit % per * CHANNELS, channels = all - c0 < CHANNELS ? all - c0 : CHANNELS;
        memset(sum, 0, (size_t)(plane * channels) * sizeof(REAL));
        for (int64_t o = 0; o < s->out[0]; o++)
            for (int64_t i = 0; i < s->out[1]; i++)
                for (int64_t q = 0; q < s->out[2]; q++) {
                    NAME(place)(s, n, o, i, q, u);
                    int count = NAME(taps)(s, u, t);
                    int64_t at = NAME(pixel_at)(dy, n, o, i, q) + c0 * dy->stride[1];
                    NAME(io_load)(buffer, io_at(dy->data, dy->dtype, at), dy->dtype, dy->stride[1], channels);
                    for (int k = 0; k < count; k++) {
                        REAL *restrict to = sum + ((t[k].d * s->in[1] + t[k].h) * s->in[2] + t[k].w) * channels;
                        for (int64_t c = 0; c < channels; c++) to[c] += t[k].weight * buffer[c];
                    }
                }
        const REAL *from = sum;
        for (int64_t o = 0; o < s->in[0]; o++)
            for (int64_t i = 0; i < s->in[1]; i++)
                for (int64_t q = 0; q < s->in[2]; q++, from += channels) {
                    int64_t at = NAME(pixel_at)(dx, n, o, i, q) + c0 * dx->stride[1];
                    NAME(io_store)(io_at(dx->data, dx->dtype, at), from, dx->dtype, dx->stride[1], channels);
                }
    }
}

/* Units: rows of the grid. */
static void NAME(grid_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const sampling *s = arg;
    const lksi_view *dy = &s->y, *dg = &s->dgrid;
    int64_t channels = s->x.shape[1];
    REAL *buffer = lksi_scratch(s->cpu, worker, 0, s->bytes), *g = buffer + channels, u[WIDE] = {0};
    NAME(tap) t[TAPS];
    for (int64_t row = begin; row < end; row++) {
        int64_t i = row % s->out[1], o = row / s->out[1] % s->out[0], n = row / s->out[1] / s->out[0];
        for (int64_t q = 0; q < s->out[2]; q++) {
            REAL change[WIDE] = {0};
            NAME(place)(s, n, o, i, q, u);
            int count = s->mode == NEAREST ? 0 : NAME(taps)(s, u, t);
            NAME(io_load)(g, io_at(dy->data, dy->dtype, NAME(pixel_at)(dy, n, o, i, q)), dy->dtype, dy->stride[1],
                          channels);
            for (int k = 0; k < count; k++) {
                const REAL *v = NAME(at_tap)(&s->x, n, 0, channels, &t[k], buffer);
                REAL dot = 0;
                for (int64_t c = 0; c < channels; c++) dot += v[c] * g[c];
                for (int j = 0; j < 3; j++) change[j] += dot * t[k].change[j];
            }
            int64_t at = n * dg->stride[0] + o * dg->stride[1] + i * dg->stride[2] + q * dg->stride[3];
            NAME(io_store)(io_at(dg->data, dg->dtype, at), change, dg->dtype, dg->stride[4], s->dims);
        }
    }
}

#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
