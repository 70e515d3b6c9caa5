/* SPDX-License-Identifier: BSD-3-Clause
 *
 * conv_core.h - convolution as products, for one accumulator type; included by conv.c with REAL = float and double.
 * Images are read channels-last (staged so, and converted, where they are not); a block of output pixels becomes rows
 * of R S C numbers that stay in the second cache, and one product makes all its channels.
 *
 * A third dim is a loop around: a plane of the result is a sum over the planes of x that its window reaches, each a
 * convolution in two dims; planes are views of four dims.
 *
 * Wants: REAL, SUFFIX, REAL_DTYPE. Letters: N images, C channels, D H W, kernel T R S; K channels, O P Q of the result.
 */
#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)

/* Rows h0..h1 of one group's channels in image n as REAL [h][w][c]; where they lie already if that is how they lie. */
static const REAL *NAME(stage)(const geometry *v, const lksi_view *x, int64_t n, int64_t group, int64_t h0, int64_t h1,
                               REAL *stage, int64_t *row, int64_t *step)
{
    int64_t cs = x->stride[1], hs = x->stride[2], ws = x->stride[3], c = v->c, w = v->w, rows = h1 - h0;
    const void *from = io_at(x->data, x->dtype, n * x->stride[0] + group * c * cs + h0 * hs);
    if (x->dtype == REAL_DTYPE && (cs == 1 || c == 1)) {
        *row = hs, *step = ws;
        return from;
    }
    *row = w * c, *step = c;
    REAL *planes = stage + rows * w * c, *first = stage; /* [c][w] of one row */
    if (w == 1 && rows > 1) w = rows, rows = 1, ws = hs; /* columns of one pixel: as one row */
    if (ws == 1 && hs == w && x->dtype == REAL_DTYPE) { /* rows end to end: as many at once as the first cache holds */
        int64_t most = 8192 / (w * c + 1), some = most < 1 ? 1 : most;
        for (int64_t left; rows > 0; rows -= left, from = io_at(from, x->dtype, left * hs), stage += left * w * c) {
            left = rows < some ? rows : some;
            NAME(transpose)(stage, c, from, cs, c, left * w);
        }
        return first;
    }
    for (; rows > 0; rows--, from = io_at(from, x->dtype, hs), stage += w * c) {
        if (cs == 1 && ws == c) {
            NAME(io_load)(stage, from, x->dtype, 1, w * c);
        } else if (cs == 1 || w == 1) {
            for (int64_t j = 0; j < w; j++)
                NAME(io_load)(stage + j * c, io_at(from, x->dtype, j * ws), x->dtype, cs, c);
        } else if (x->dtype == REAL_DTYPE && ws == 1) {
            NAME(transpose)(stage, c, from, cs, c, w);
        } else {
            for (int64_t i = 0; i < c; i++)
                NAME(io_load)(planes + i * w, io_at(from, x->dtype, i * cs), x->dtype, ws, w);
            NAME(transpose)(stage, c, planes, w, c, w);
        }
    }
    return first;
}

static int64_t NAME(stage_size)(const geometry *v, const lksi_view *x, int64_t rows)
{
    if (x->dtype == REAL_DTYPE && (x->stride[1] == 1 || v->c == 1)) return 0;
    return (v->w == 1 ? 2 * rows : rows + 1) * v->w * v->c;
}

static inline void NAME(run)(REAL *restrict to, const REAL *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

/* Rows [pixels, R S C] of the pixels begin..end of image n; the image itself where the window is one pixel. */
static const REAL *NAME(columns)(const geometry *v, const lksi_view *x, int64_t n, int64_t group, int64_t begin,
                                 int64_t end, REAL *stage, REAL *columns, int64_t *ld)
{
    int64_t c = v->c, row, step, h0 = begin / v->q * v->sh - v->ph;
    int64_t h1 = (end - 1) / v->q * v->sh - v->ph + (v->r - 1) * v->dh + 1;
    if (h0 < 0) h0 = 0;
    if (h1 > v->h) h1 = v->h;
    if (h0 >= h1) h0 = h1 = h1 > 0 ? h1 : 0; /* only padding is seen */
    const REAL *image = NAME(stage)(v, x, n, group, h0, h1, stage, &row, &step);
    if (v->pointwise && row == v->w * step) {
        *ld = step;
        return image + (begin - h0 * v->w) * step;
    }
    *ld = v->r * v->s * c;
    REAL *to = columns;
    for (int64_t pixel = begin; pixel < end; pixel++) {
        int64_t h = pixel / v->q * v->sh - v->ph, w = pixel % v->q * v->sw - v->pw;
        for (int64_t i = 0; i < v->r; i++, h += v->dh) {
            if (h < 0 || h >= v->h) {
                memset(to, 0, (size_t)(v->s * c) * sizeof(REAL));
                to += v->s * c;
                continue;
            }
            const REAL *from = image + (h - h0) * row + w * step;
            if (v->dw == 1 && step == c && w >= 0 && w + v->s <= v->w) {
                NAME(run)(to, from, v->s * c);
                to += v->s * c;
                continue;
            }
            for (int64_t j = 0, at = w; j < v->s; j++, at += v->dw, to += c, from += v->dw * step)
                if (at >= 0 && at < v->w) NAME(run)(to, from, c);
                else memset(to, 0, (size_t)c * sizeof(REAL));
        }
    }
    return columns;
}

/* to: weights [K][R][S][C] of all groups, of one plane of the kernel; or [C all groups][R][S][K] turned round, for the
 * gradient of x. */
static void NAME(arrange)(REAL *to, const lksi_view *w, int64_t groups, int turned)
{
    int64_t kg = w->shape[0] / groups, c = w->shape[1], r = w->shape[2], s = w->shape[3];
    for (int64_t g = 0; g < groups; g++)
        for (int64_t outer = 0; outer < (turned ? c : kg); outer++)
            for (int64_t i = 0; i < r; i++)
                for (int64_t j = 0; j < s; j++, to += turned ? kg : c) {
                    int64_t at = turned ? g * kg * w->stride[0] + outer * w->stride[1] + (r - 1 - i) * w->stride[2] +
                                              (s - 1 - j) * w->stride[3]
                                        : (g * kg + outer) * w->stride[0] + i * w->stride[2] + j * w->stride[3];
                    NAME(io_load)(to, io_at(w->data, w->dtype, at), w->dtype, turned ? w->stride[0] : w->stride[1],
                                  turned ? kg : c);
                }
}

/* A block of result pixels of image n: rows [pixels, channels] of REAL to where they belong. */
static void NAME(put)(const lksi_view *y, int64_t n, int64_t channel, int64_t pixel, int64_t pixels, int64_t channels,
                      const REAL *rows, REAL *turned)
{
    int64_t cs = y->stride[1], ps = y->stride[3];
    void *to = io_at(y->data, y->dtype, n * y->stride[0] + channel * cs + pixel * ps);
    if (cs == 1 || channels == 1) {
        for (int64_t i = 0; i < pixels; i++)
            NAME(io_store)(io_at(to, y->dtype, i * ps), rows + i * channels, y->dtype, cs, channels);
    } else if (y->dtype == REAL_DTYPE && ps == 1) {
        NAME(transpose)(to, cs, rows, channels, pixels, channels);
    } else {
        NAME(transpose)(turned, pixels, rows, channels, pixels, channels);
        for (int64_t i = 0; i < channels; i++)
            NAME(io_store)(io_at(to, y->dtype, i * cs), turned + i * pixels, y->dtype, ps, pixels);
    }
}

static void NAME(forward_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    const geometry *v = &s->v;
    REAL *memory = lksi_scratch(s->cpu, worker, 1, s->bytes), *stage = memory + s->at[0], *columns = memory + s->at[1];
    REAL *rows = memory + s->at[2], *turned = memory + s->at[3];
    for (int64_t u = begin; u < end; u++) {
        int64_t block = u % s->blocks, group = u / s->blocks % v->groups, o = u / s->blocks / v->groups % v->o;
        int64_t n = u / s->blocks / v->groups / v->o;
        int64_t p0 = block * s->block, p1 = p0 + s->block < v->p * v->q ? p0 + s->block : v->p * v->q;
        lksi_gemm g = s->g;
        lksi_view y = plane_of(s->y, o);
        g.m = p1 - p0;
        g.c = s->direct ? io_at(y.data, y.dtype, n * y.stride[0] + group * v->k + p0 * y.stride[3]) : rows;
        if (g.bias) g.bias = io_at(g.bias, g.bias_dtype, group * v->k * g.bias_cs);
        for (int64_t t = 0, d = o * v->sd - v->pd; t < v->t; t++, d += v->dd) {
            int inside = d >= 0 && d < v->d;
            if (!inside && (g.add || t + 1 < v->t)) continue; /* the last one makes a plane that sees padding only */
            if (inside) {
                lksi_view x = plane_of(s->x, d);
                g.a = NAME(columns)(v, &x, n, group, p0, p1, stage, columns, &g.a_rs);
            } else {
                memset(columns, 0, (size_t)(g.m * g.k) * sizeof(REAL));
                g.a = columns, g.a_rs = g.k;
            }
            g.packed_b = (const char *)s->packed + (t * v->groups + group) * s->packed_bytes;
            LKSI_LOCAL(gemm_serial)(&g, memory);
            g.add = 1, g.bias = NULL;
        }
        if (!s->direct) NAME(put)(&y, n, group * v->k, p0, g.m, v->k, rows, turned);
    }
}

/* The weights of each plane of the kernel and each group, packed: packed_bytes each. */
static lks_status NAME(pack)(lksi_cpu *cpu, const lksi_args *a, job *s, const lksi_view *w, int turned)
{
    const geometry *v = &s->v;
    int64_t each = v->k * v->r * v->s * v->c;
    s->packed_bytes = (LKSI_LOCAL(gemm_packed_bytes)(&s->g) + 63) / 64 * 64;
    REAL *arranged = lksi_scratch(cpu, -1, 1, each * v->groups * (int64_t)sizeof(REAL) + 64);
    s->packed = lksi_scratch(cpu, -1, 2, s->packed_bytes * v->groups * v->t);
    if (!arranged || !s->packed) return no_memory(a);
    for (int64_t t = 0; t < v->t; t++) {
        lksi_view plane = plane_of(w, turned ? v->t - 1 - t : t);
        NAME(arrange)(arranged, &plane, v->groups, turned);
        for (int64_t group = 0; group < v->groups; group++) {
            s->g.b = arranged + group * each;
            TRY(LKSI_LOCAL(gemm_pack)(cpu, a, &s->g, (char *)s->packed + (t * v->groups + group) * s->packed_bytes));
        }
    }
    s->g.packed_b = s->packed;
    return LKS_OK;
}

/* y = x * w (w as arranged), v: geometry of this very convolution. */
static lks_status NAME(forward)(lksi_cpu *cpu, const lksi_args *a, const geometry *v, const lksi_view *x,
                                const lksi_view *w, int turned, const lksi_view *bias, const lksi_view *y)
{
    int64_t depth = v->r * v->s * v->c, pixels = v->p * v->q, workers = lksi_cpu_workers(cpu);
    job s = {.cpu = cpu, .v = *v, .x = x, .y = y};
    if (v->n == 0 || pixels == 0 || v->o == 0 || v->k == 0) return LKS_OK;
    s.direct = y->stride[1] == 1 && (v->t == 1 || y->dtype == REAL_DTYPE);
    s.g = (lksi_gemm){.m = 1, .n = v->k, .k = depth, .a_cs = 1, .a_rs = depth, .b_rs = 1, .b_cs = depth,
                      .a_dtype = REAL_DTYPE, .b_dtype = REAL_DTYPE, .c_dtype = s.direct ? y->dtype : REAL_DTYPE,
                      .c_rs = s.direct ? y->stride[4] : v->k, .c_cs = 1};
    if (bias) s.g.bias = bias->data, s.g.bias_dtype = bias->dtype, s.g.bias_cs = bias->stride[0];
    s.block = block_size(depth, pixels);
    while (s.block > 96 && v->n * v->o * v->groups * ((pixels + s.block - 1) / s.block) < 3 * workers)
        s.block = (s.block / 2 + 11) / 12 * 12;
    s.blocks = (pixels + s.block - 1) / s.block;
    s.g.m = s.block;
    TRY(NAME(pack)(cpu, a, &s, w, turned));
    int64_t rows = (s.block + v->q - 2) / v->q + 1;
    s.at[0] = (LKSI_LOCAL(gemm_bytes)(&s.g) + 63) / 64 * 64 / (int64_t)sizeof(REAL);
    s.at[1] = s.at[0] + (NAME(stage_size)(v, x, (rows - 1) * v->sh + (v->r - 1) * v->dh + 1) + 15) / 16 * 16;
    s.at[2] = s.at[1] + (s.block * depth + 15) / 16 * 16;
    s.at[3] = s.at[2] + (s.direct ? 0 : (s.block * v->k + 15) / 16 * 16);
    s.bytes = (s.at[3] + (s.direct ? 0 : s.block * v->k)) * (int64_t)sizeof(REAL) + 64;
    for (int i = 0; i < workers; i++)
        if (!lksi_scratch(cpu, i, 1, s.bytes)) return no_memory(a);
    lksi_parallel(cpu, v->n * v->o * v->groups * s.blocks, 1, NAME(forward_part), &s);
    return LKS_OK;
}

/* What the pixels of one plane of dy send back into a plane `own` [H W C] of dx through plane t of the window. */
static void NAME(scatter)(const job *s, const lksi_view *dy, int64_t n, int64_t group, int64_t t, void *memory,
                          REAL *columns, REAL *own)
{
    const geometry *v = &s->v;
    int64_t c = v->c, depth = v->r * v->s * c, pixels = v->p * v->q;
    for (int64_t p0 = 0; p0 < pixels; p0 += s->block) {
        lksi_gemm g = s->g;
        g.m = pixels - p0 < s->block ? pixels - p0 : s->block;
        g.a = io_at(dy->data, dy->dtype, n * dy->stride[0] + group * v->k * dy->stride[1]);
        g.c = columns;
        g.packed_b = (const char *)s->packed + (t * v->groups + group) * s->packed_bytes;
        int64_t p1 = p0 + g.m;
        if (dy->stride[2] == v->q * dy->stride[3] || v->p == 1) {
            g.a = io_at(g.a, dy->dtype, p0 * dy->stride[3]);
            LKSI_LOCAL(gemm_serial)(&g, memory);
        } else { /* a strided gradient: row by row */
            for (int64_t p = p0, run; p < p1; p += run) {
                run = (p / v->q + 1) * v->q - p < p1 - p ? (p / v->q + 1) * v->q - p : p1 - p;
                lksi_gemm one = g;
                one.m = run;
                one.a = io_at(g.a, dy->dtype, p / v->q * dy->stride[2] + p % v->q * dy->stride[3]);
                one.c = columns + (p - p0) * depth;
                LKSI_LOCAL(gemm_serial)(&one, memory);
            }
        }
        const REAL *from = columns;
        for (int64_t p = p0; p < p1; p++) {
            int64_t h = p / v->q * v->sh - v->ph, w = p % v->q * v->sw - v->pw;
            for (int64_t i = 0; i < v->r; i++, h += v->dh) {
                if (h < 0 || h >= v->h) {
                    from += v->s * c;
                    continue;
                }
                for (int64_t j = 0, at = w; j < v->s; j++, at += v->dw, from += c) {
                    if (at < 0 || at >= v->w) continue;
                    REAL *restrict to = own + (h * v->w + at) * c;
                    for (int64_t k = 0; k < c; k++) to[k] += from[k];
                }
            }
        }
    }
}

/* Gradient of x for strides above 1: each plane adds up what reaches it. */
static void NAME(scatter_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    const geometry *v = &s->v;
    REAL *memory = lksi_scratch(s->cpu, worker, 1, s->bytes), *columns = memory + s->at[0], *own = memory + s->at[1];
    REAL *turned = memory + s->at[2];
    int64_t c = v->c;
    for (int64_t u = begin; u < end; u++) {
        int64_t d = u % v->d, group = u / v->d % v->groups, n = u / v->d / v->groups;
        memset(own, 0, (size_t)(v->h * v->w * c) * sizeof(REAL));
        if (s->bias && c > 0) {
            NAME(io_load)(own, io_at(s->bias->data, s->bias->dtype, group * c * s->bias->stride[0]), s->bias->dtype,
                          s->bias->stride[0], c);
            for (int64_t i = 1; i < v->h * v->w; i++) memcpy(own + i * c, own, (size_t)c * sizeof(REAL));
        }
        for (int64_t t = 0; t < v->t; t++) {
            int64_t at = d + v->pd - t * v->dd;
            if (at < 0 || at % v->sd || at / v->sd >= v->o) continue;
            lksi_view dy = plane_of(s->x, at / v->sd);
            NAME(scatter)(s, &dy, n, group, t, memory, columns, own);
        }
        lksi_view dx = plane_of(s->y, d);
        NAME(put)(&dx, n, group * c, 0, v->h * v->w, c, own, turned);
    }
}

/* bias is added where this is a transposed convolution. */
static lks_status NAME(backward_input)(lksi_cpu *cpu, const lksi_args *a, const geometry *v, const lksi_view *dy,
                                       const lksi_view *w, const lksi_view *bias, const lksi_view *dx)
{
    if (v->sd == 1 && v->sh == 1 && v->sw == 1) { /* a convolution of dy with the weights turned round */
        geometry t = *v;
        t.c = v->k, t.k = v->c, t.d = v->o, t.h = v->p, t.w = v->q, t.o = v->d, t.p = v->h, t.q = v->w;
        t.pd = v->dd * (v->t - 1) - v->pd;
        t.ph = v->dh * (v->r - 1) - v->ph;
        t.pw = v->dw * (v->s - 1) - v->pw;
        return NAME(forward)(cpu, a, &t, dy, w, 1, bias, dx);
    }
    int64_t depth = v->r * v->s * v->c, pixels = v->p * v->q;
    job s = {.cpu = cpu, .v = *v, .x = dy, .y = dx, .bias = bias};
    if (v->n == 0 || v->c == 0 || v->groups == 0) return LKS_OK;
    s.block = block_size(depth, pixels);
    s.g = (lksi_gemm){.m = s.block, .n = depth, .k = v->k, .a_dtype = dy->dtype, .b_dtype = REAL_DTYPE,
                      .c_dtype = REAL_DTYPE, .a_rs = dy->stride[4], .a_cs = dy->stride[1], .b_rs = depth, .b_cs = 1,
                      .c_rs = depth, .c_cs = 1};
    TRY(NAME(pack)(cpu, a, &s, w, 0));
    int64_t image = (v->h * v->w * v->c + 15) / 16 * 16;
    s.at[0] = (LKSI_LOCAL(gemm_bytes)(&s.g) + 63) / 64 * 64 / (int64_t)sizeof(REAL);
    s.at[1] = s.at[0] + (s.block * depth + 15) / 16 * 16;
    s.at[2] = s.at[1] + image;
    s.bytes = (s.at[2] + image) * (int64_t)sizeof(REAL) + 64;
    for (int i = 0; i < lksi_cpu_workers(cpu); i++)
        if (!lksi_scratch(cpu, i, 1, s.bytes)) return no_memory(a);
    lksi_parallel(cpu, v->n * v->groups * v->d, 1, NAME(scatter_part), &s);
    return LKS_OK;
}

/* Part u % parts of the blocks of group u / parts, into its own sum [T R S C, K]. */
static void NAME(weight_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    const geometry *v = &s->v;
    REAL *memory = lksi_scratch(s->cpu, worker, 1, s->bytes), *stage = memory + s->at[0], *columns = memory + s->at[1];
    int64_t pixels = v->p * v->q, all = v->n * v->o * s->blocks, size = v->r * v->s * v->c * v->k;
    for (int64_t u = begin; u < end; u++) {
        int64_t group = u / s->parts, part = u % s->parts, first = part * all / s->parts;
        REAL *sum = (REAL *)s->packed + u * v->t * size;
        if (v->t > 1) memset(sum, 0, (size_t)(v->t * size) * sizeof(REAL)); /* a plane may get nothing */
        for (int64_t b = first; b < (part + 1) * all / s->parts; b++) {
            int64_t o = b / s->blocks % v->o, n = b / s->blocks / v->o, p0 = b % s->blocks * s->block;
            int64_t p1 = p0 + s->block < pixels ? p0 + s->block : pixels;
            lksi_view dy = plane_of(s->y, o);
            const void *from = io_at(dy.data, dy.dtype, n * dy.stride[0] + group * v->k * dy.stride[1]);
            for (int64_t t = 0, d = o * v->sd - v->pd; t < v->t; t++, d += v->dd) {
                if ((d < 0 || d >= v->d) && v->t > 1) continue;
                lksi_view x = plane_of(s->x, d);
                lksi_gemm g = s->g;
                g.k = p1 - p0;
                g.c = sum + t * size;
                g.add = v->t > 1 || b > first;
                if (d < 0 || d >= v->d) {
                    memset(columns, 0, (size_t)(g.k * g.m) * sizeof(REAL));
                    g.a = columns, g.a_cs = g.m;
                } else {
                    g.a = NAME(columns)(v, &x, n, group, p0, p1, stage, columns, &g.a_cs);
                }
                if (dy.stride[2] == v->q * dy.stride[3] || v->p == 1) {
                    g.b = io_at(from, dy.dtype, p0 * dy.stride[3]);
                    LKSI_LOCAL(gemm_serial)(&g, memory);
                    continue;
                }
                for (int64_t p = p0, run; p < p1; p += run, g.add = 1) { /* a strided gradient: row by row */
                    run = (p / v->q + 1) * v->q - p < p1 - p ? (p / v->q + 1) * v->q - p : p1 - p;
                    lksi_gemm one = g;
                    one.k = run;
                    one.a = (const REAL *)g.a + (p - p0) * g.a_cs;
                    one.b = io_at(from, dy.dtype, p / v->q * dy.stride[2] + p % v->q * dy.stride[3]);
                    LKSI_LOCAL(gemm_serial)(&one, memory);
                }
            }
        }
    }
}

/* Adds the parts up in order, over rows [begin, end) of [groups T R S C]; the first part holds the result. */
static void NAME(sum_part)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    const geometry *v = &s->v;
    (void)worker;
    int64_t depth = v->t * v->r * v->s * v->c, size = depth * v->k;
    for (int64_t u = begin; u < end; u++) {
        REAL *restrict to = (REAL *)s->packed + u / depth * s->parts * size + u % depth * v->k;
        for (int64_t part = 1; part < s->parts; part++) {
            const REAL *from = to + part * size;
            for (int64_t k = 0; k < v->k; k++) to[k] += from[k];
        }
    }
}

static lks_status NAME(backward_weight)(lksi_cpu *cpu, const lksi_args *a, const geometry *v, const lksi_view *dy,
                                        const lksi_view *x, const lksi_view *dw)
{
    int64_t depth = v->r * v->s * v->c, pixels = v->p * v->q, size = v->t * depth * v->k, planes = v->n * v->o;
    job s = {.cpu = cpu, .v = *v, .x = x, .y = dy};
    if (size == 0 || v->groups == 0) return LKS_OK;
    s.block = block_size(depth, pixels);
    if (s.block > 120) s.block = 120; /* shallow enough for the product to read the rows where they are */
    s.blocks = (pixels + s.block - 1) / (s.block ? s.block : 1);
    /* As many parts as 32 threads can use and 64 MiB can hold: never by the thread count, so that bits do not depend on
     * it. */
    s.parts = planes * s.blocks < 32 ? planes * s.blocks : 32;
    while (s.parts > 4 && s.parts * size * v->groups * (int64_t)sizeof(REAL) > 64 << 20) s.parts /= 2;
    if (s.parts < 1) s.parts = 1;
    s.packed = lksi_scratch(cpu, -1, 2, s.parts * size * v->groups * (int64_t)sizeof(REAL));
    if (!s.packed) return no_memory(a);
    if (planes * pixels == 0) memset(s.packed, 0, (size_t)(size * v->groups) * sizeof(REAL));
    s.g = (lksi_gemm){.m = depth, .n = v->k, .k = s.block, .a_dtype = REAL_DTYPE, .b_dtype = dy->dtype,
                      .c_dtype = REAL_DTYPE, .a_rs = 1, .a_cs = depth, .b_rs = dy->stride[4], .b_cs = dy->stride[1],
                      .c_rs = v->k, .c_cs = 1};
    int64_t rows = (s.block + v->q - 2) / (v->q ? v->q : 1) + 1;
    s.at[0] = (LKSI_LOCAL(gemm_bytes)(&s.g) + 63) / 64 * 64 / (int64_t)sizeof(REAL);
    s.at[1] = s.at[0] + (NAME(stage_size)(v, x, (rows - 1) * v->sh + (v->r - 1) * v->dh + 1) + 15) / 16 * 16;
    s.bytes = (s.at[1] + s.block * depth) * (int64_t)sizeof(REAL) + 64;
    for (int i = 0; i < lksi_cpu_workers(cpu); i++)
        if (!lksi_scratch(cpu, i, 1, s.bytes)) return no_memory(a);
    if (planes * pixels > 0) {
        lksi_parallel(cpu, v->groups * s.parts, 1, NAME(weight_part), &s);
        lksi_parallel(cpu, v->groups * v->t * depth, 1 + 65536 / (s.parts * v->k), NAME(sum_part), &s);
    } else {
        s.parts = 1;
    }
    /* [T R S C, K] to [K, C, T, R, S] */
    const REAL *from = s.packed;
    for (int64_t g = 0; g < v->groups; g++, from += s.parts * size) {
        const REAL *row = from;
        for (int64_t t = 0; t < v->t; t++)
            for (int64_t i = 0; i < v->r; i++)
                for (int64_t j = 0; j < v->s; j++)
                    for (int64_t c = 0; c < v->c; c++, row += v->k)
                        NAME(io_store)(io_at(dw->data, dw->dtype, g * v->k * dw->stride[0] + c * dw->stride[1] +
                                                                      t * dw->stride[2] + i * dw->stride[3] +
                                                                      j * dw->stride[4]),
                                       row, dw->dtype, dw->stride[0], v->k);
    }
    return LKS_OK;
}

#undef CORE_
#undef CORE
#undef NAME
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
