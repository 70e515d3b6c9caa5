/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rnn_core.h - one step of a recurrent layer, forward and backward, in one accumulator type; included by rnn.c. An item
 * is UNITS hidden units of some rows of the batch: their part of the recurrent product by tiles, then their gates, so
 * that one pass over the workers makes a step.
 *
 * Wants: REAL, REAL_DTYPE, SUFFIX, SIGMOID, TANH.
 */
#define CORE_(a, b) a##_##b
#define CORE(a, b) CORE_(a, b)
#define NAME(x) CORE(x, SUFFIX)
#define UNITS ((int64_t)(LKSI_TILE_BYTES / sizeof(REAL)))

/* n numbers of dim 2 of v [T, N, ..] from (t, r, j) on: where they lie, or a copy in buf. */
static inline const REAL *NAME(run)(const lksi_view *v, int64_t t, int64_t r, int64_t j, int64_t n, REAL *buf)
{
    const void *from = io_at(v->data, v->dtype, t * v->stride[0] + r * v->stride[1] + j * v->stride[2]);
    if (v->dtype == REAL_DTYPE && v->stride[2] == 1) return from;
    NAME(io_load)(buf, from, v->dtype, v->stride[2], n);
    return buf;
}

static inline void NAME(put)(const lksi_view *v, int64_t t, int64_t r, int64_t j, int64_t n, const REAL *x)
{
    NAME(io_store)(io_at(v->data, v->dtype, t * v->stride[0] + r * v->stride[1] + j * v->stride[2]), x, v->dtype,
                   v->stride[2], n);
}

/* Panels of the recurrent weight, [blocks of UNITS][G][H, UNITS] forward and [blocks of UNITS][G H, UNITS] backward,
 * padded with zeros; begin..end: rows of the weight (forward: of one gate's block). */
static void NAME(pack)(void *arg, int64_t begin, int64_t end, int worker)
{
    const rnn_job *s = arg;
    const lksi_view *w = &s->w;
    const int64_t H = s->hidden;
    REAL *stage = lksi_scratch(s->cpu, worker, 0, s->stage_bytes);
    for (int64_t i = begin; i < end; i++) {
        if (s->backward) { /* row i of w: one row of each panel */
            NAME(io_load)(stage, io_at(w->data, w->dtype, i * w->stride[0]), w->dtype, w->stride[1], H);
            for (int64_t u = 0; u < s->blocks; u++) {
                REAL *to = (REAL *)s->panels + (u * s->gates * H + i) * UNITS;
                int64_t n = H - u * UNITS < UNITS ? H - u * UNITS : UNITS;
                for (int64_t j = 0; j < UNITS; j++) to[j] = j < n ? stage[u * UNITS + j] : 0;
            }
            continue;
        }
        int64_t u = i / s->gates, g = i % s->gates, n = H - u * UNITS < UNITS ? H - u * UNITS : UNITS;
        REAL *to = (REAL *)s->panels + i * H * UNITS;
        for (int64_t j = 0; j < n; j++)
            NAME(io_load)(stage + j * H, io_at(w->data, w->dtype, (g * H + u * UNITS + j) * w->stride[0]), w->dtype,
                          w->stride[1], H);
        if (n < UNITS) memset(to, 0, (size_t)(H * UNITS) * sizeof(REAL));
        NAME(transpose)(to, UNITS, stage, H, n, H);
    }
}

/* Gates of n units: x from the input, w from the state before, b; kept is what backward reads. */
static inline void NAME(lstm_gates)(int64_t n, const REAL *const *x, const REAL *w, const REAL *const *b,
                                    REAL *const *kept, REAL *restrict c, REAL *restrict h)
{
    const REAL *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    REAL *k0 = kept[0], *k1 = kept[1], *k2 = kept[2], *k3 = kept[3], *k4 = kept[4];
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        REAL i = SIGMOID(x0[j] + (w[j] + b0[j])), f = SIGMOID(x1[j] + (w[UNITS + j] + b1[j]));
        REAL g = TANH(x2[j] + (w[2 * UNITS + j] + b2[j])), o = SIGMOID(x3[j] + (w[3 * UNITS + j] + b3[j]));
        REAL now = f * c[j] + i * g;
        c[j] = now;
        h[j] = o * TANH(now);
        k0[j] = i, k1[j] = f, k2[j] = g, k3[j] = o, k4[j] = now;
    }
}

static inline void NAME(gru_gates)(int64_t n, const REAL *const *x, const REAL *w, const REAL *const *b,
                                   REAL *const *kept, const REAL *restrict before, REAL *restrict h)
{
    const REAL *x0 = x[0], *x1 = x[1], *x2 = x[2], *b0 = b[0], *b1 = b[1], *b2 = b[2];
    REAL *k0 = kept[0], *k1 = kept[1], *k2 = kept[2], *k3 = kept[3];
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        REAL r = SIGMOID(x0[j] + (w[j] + b0[j])), z = SIGMOID(x1[j] + (w[UNITS + j] + b1[j]));
        REAL m = w[2 * UNITS + j] + b2[j], v = TANH(x2[j] + r * m);
        h[j] = v + z * (before[j] - v);
        k0[j] = r, k1[j] = z, k2[j] = v, k3[j] = m;
    }
}

static void NAME(forward_items)(void *arg, int64_t begin, int64_t end, int worker)
{
    const rnn_job *s = arg;
    const int64_t H = s->hidden, G = s->gates, K = s->keeps, t = s->t, ld = s->ld;
    const REAL *state = s->state[s->side], *bias = s->bias;
    REAL *next = s->state[!s->side], *cell = s->cell;
    _Alignas(64) REAL product[ROWS * MOST_GATES * UNITS];
    REAL given[MOST_GATES * UNITS], unwanted[MOST_KEPT * UNITS];
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t u = item / s->row_blocks, first = item % s->row_blocks * s->rows, j = u * UNITS;
        int64_t m = s->batch - first < s->rows ? s->batch - first : s->rows, n = H - j < UNITS ? H - j : UNITS;
        const REAL *panel = (const REAL *)s->panels + u * G * H * UNITS, *x[MOST_GATES], *b[MOST_GATES];
        for (int64_t g = 0; g < G; g++) {
            NAME(tiles)(m, UNITS, H, state + first * ld, ld, 1, panel + g * H * UNITS, 0, product + g * UNITS,
                        G * UNITS, 0);
            b[g] = bias + g * s->blocks * UNITS + j;
        }
        for (int64_t i = 0; i < m; i++) {
            int64_t r = first + i;
            const REAL *before = state + r * ld + j, *w = product + i * G * UNITS;
            REAL *h = next + r * ld + j, *c = cell ? cell + r * H + j : NULL, *kept[MOST_KEPT];
            for (int64_t k = 0; k < K; k++)
                kept[k] = s->kept ? (REAL *)s->kept + ((t * s->batch + r) * K + k) * H + j : unwanted + k * UNITS;
            if (s->length && t >= s->length[r]) { /* past the end: the state stays */
                memcpy(h, before, (size_t)n * sizeof(REAL));
                for (int64_t k = 0; k < K; k++)
                    for (int64_t q = 0; q < n; q++) kept[k][q] = k == 4 ? c[q] : 0;
            } else {
                for (int64_t g = 0; g < G; g++) x[g] = NAME(run)(&s->x, t, r, g * H + j, n, given + g * UNITS);
                if (s->kind == LKSI_RNN_LSTM) {
                    NAME(lstm_gates)(n, x, w, b, kept, c, h);
                } else if (s->kind == LKSI_RNN_GRU) {
                    NAME(gru_gates)(n, x, w, b, kept, before, h);
                } else if (s->kind == LKSI_RNN_TANH) {
                    for (int64_t q = 0; q < n; q++) h[q] = TANH(x[0][q] + (w[q] + b[0][q]));
                } else {
                    for (int64_t q = 0; q < n; q++) {
                        REAL v = x[0][q] + (w[q] + b[0][q]);
                        h[q] = v <= 0 ? 0 : v;
                    }
                }
            }
            NAME(put)(&s->states, s->reverse ? t : t + 1, r, j, n, h);
        }
    }
}

/* States at the ends: in h0 and c0, out the row of the first state and the row of the cells. */
static void NAME(ends)(const rnn_job *s, int begin)
{
    REAL buf[256];
    const lksi_view *from[2] = {&s->h0, &s->c0};
    int64_t T = s->steps, H = s->hidden;
    for (int64_t r = 0; r < s->batch; r++)
        for (int64_t j = 0; j < H; j += 256) {
            int64_t n = H - j < 256 ? H - j : 256;
            if (!begin) {
                NAME(put)(&s->states, T + 1, r, j, n, (REAL *)s->cell + r * H + j);
                continue;
            }
            for (int k = 0; k < 1 + (s->cell != NULL); k++) {
                REAL *to = k ? (REAL *)s->cell + r * H + j : (REAL *)s->state[0] + r * s->ld + j;
                const lksi_view *v = from[k];
                for (int64_t q = 0; q < n; q++) buf[q] = 0;
                if (v->ndim >= 0)
                    NAME(io_load)(buf, io_at(v->data, v->dtype, r * v->stride[0] + j * v->stride[1]), v->dtype,
                                  v->stride[1], n);
                memcpy(to, buf, (size_t)n * sizeof(REAL));
                if (!k) NAME(put)(&s->states, s->reverse ? T : 0, r, j, n, buf);
            }
        }
}

static inline void NAME(lstm_slopes)(int64_t n, const REAL *const *kept, const REAL *restrict before,
                                     const REAL *restrict dh, REAL *restrict dc, REAL *const *d)
{
    const REAL *k0 = kept[0], *k1 = kept[1], *k2 = kept[2], *k3 = kept[3], *k4 = kept[4];
    REAL *d0 = d[0], *d1 = d[1], *d2 = d[2], *d3 = d[3];
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        REAL i = k0[j], f = k1[j], g = k2[j], o = k3[j], c = TANH(k4[j]);
        REAL all = dc[j] + dh[j] * o * (1 - c * c);
        d0[j] = all * g * i * (1 - i);
        d1[j] = all * before[j] * f * (1 - f);
        d2[j] = all * i * (1 - g * g);
        d3[j] = dh[j] * c * o * (1 - o);
        dc[j] = all * f;
    }
}

/* m: of the new gate's part from the state, whose slope differs from that of the part from the input. */
static inline void NAME(gru_slopes)(int64_t n, const REAL *const *kept, const REAL *restrict before,
                                    const REAL *restrict dh, REAL *restrict pass, REAL *const *d, REAL *restrict x2)
{
    const REAL *k0 = kept[0], *k1 = kept[1], *k2 = kept[2], *k3 = kept[3];
    REAL *d0 = d[0], *d1 = d[1], *d2 = d[2];
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        REAL r = k0[j], z = k1[j], v = k2[j], m = k3[j];
        REAL dv = dh[j] * (1 - z) * (1 - v * v);
        d0[j] = dv * m * r * (1 - r);
        d1[j] = dh[j] * (before[j] - v) * z * (1 - z);
        d2[j] = dv * r;
        x2[j] = dv;
        pass[j] = dh[j] * z;
    }
}

/* Slopes of step t from those of the step after it; t < 0: what is left for the states before all. */
static void NAME(backward_items)(void *arg, int64_t begin, int64_t end, int worker)
{
    const rnn_job *s = arg;
    const int64_t H = s->hidden, G = s->gates, K = s->keeps, t = s->t, ld = s->ld, B = s->batch;
    const REAL *after = s->state[s->side];
    _Alignas(64) REAL product[ROWS * UNITS];
    REAL buf[2 * UNITS], dh[UNITS], x2[UNITS];
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t u = item / s->row_blocks, first = item % s->row_blocks * s->rows, j = u * UNITS;
        int64_t m = B - first < s->rows ? B - first : s->rows, n = H - j < UNITS ? H - j : UNITS;
        if (s->last)
            memset(product, 0, (size_t)(m * UNITS) * sizeof(REAL));
        else
            NAME(tiles)(m, UNITS, G * H, after + first * ld, ld, 1, (const REAL *)s->panels + u * G * H * UNITS, 0,
                        product, UNITS, 0);
        for (int64_t i = 0; i < m; i++) {
            int64_t r = first + i, at = t < 0 ? (s->reverse ? s->steps : 0) : s->reverse ? t : t + 1;
            REAL *pass = (REAL *)s->pass + r * H + j, *dc = s->cell ? (REAL *)s->cell + r * H + j : NULL;
            REAL *now = (REAL *)s->state[!s->side] + r * ld + j, *d[MOST_GATES];
            const REAL *dy = NAME(run)(&s->dy, at, r, j, n, buf), *kept[MOST_KEPT], *before = buf;
            for (int64_t q = 0; q < n; q++) dh[q] = product[i * UNITS + q] + pass[q] + dy[q];
            if (t < 0) {
                NAME(put)(&s->dh0, 0, r, j, n, dh);
                if (dc) NAME(put)(&s->dc0, 0, r, j, n, dc);
                continue;
            }
            for (int64_t g = 0; g < G; g++) d[g] = now + g * H;
            if (s->length && t >= s->length[r]) {
                for (int64_t g = 0; g < G; g++) memset(d[g], 0, (size_t)n * sizeof(REAL));
                memcpy(pass, dh, (size_t)n * sizeof(REAL));
                for (int64_t q = 0; q < n; q++) x2[q] = 0;
            } else if (s->kind == LKSI_RNN_LSTM || s->kind == LKSI_RNN_GRU) {
                for (int64_t k = 0; k < K; k++)
                    kept[k] = (const REAL *)s->kept + ((t * B + r) * K + k) * H + j;
                if (s->kind == LKSI_RNN_GRU) {
                    before = NAME(run)(&s->states, s->reverse ? t + 1 : t, r, j, n, buf);
                    NAME(gru_slopes)(n, kept, before, dh, pass, d, x2);
                } else {
                    if (t == s->first && s->c0.ndim < 0)
                        for (int64_t q = 0; q < n; q++) buf[q] = 0;
                    else if (t == s->first)
                        before = NAME(run)(&s->c0, 0, r, j, n, buf);
                    else
                        before = (const REAL *)s->kept + (((s->reverse ? t + 1 : t - 1) * B + r) * K + 4) * H + j;
                    NAME(lstm_slopes)(n, kept, before, dh, dc, d);
                    memset(pass, 0, (size_t)n * sizeof(REAL)); /* what a frozen state left there is used up */
                }
            } else {
                const REAL *h = NAME(run)(&s->states, at, r, j, n, buf);
                if (s->kind == LKSI_RNN_TANH)
                    for (int64_t q = 0; q < n; q++) d[0][q] = dh[q] * (1 - h[q] * h[q]);
                else
                    for (int64_t q = 0; q < n; q++) d[0][q] = h[q] <= 0 ? 0 : dh[q];
                for (int64_t q = 0; q < n; q++) pass[q] = 0;
            }
            for (int64_t g = 0; g < G; g++) {
                NAME(put)(&s->dx, t, r, g * H + j, n, s->kind == LKSI_RNN_GRU && g == 2 ? x2 : d[g]);
                if (s->kind == LKSI_RNN_GRU) NAME(put)(&s->dstate, t, r, g * H + j, n, d[g]);
            }
        }
    }
}

#undef CORE_
#undef CORE
#undef NAME
#undef UNITS
#undef REAL
#undef REAL_DTYPE
#undef SUFFIX
#undef SIGMOID
#undef TANH
