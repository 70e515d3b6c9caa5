/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_rnn.c - recurrent layers and cells on the CPU against the formulas in double, step by step: kinds, directions,
 * layers, lengths, layouts, dtypes, sizes around the blocks of the kernels; edge values; calls that must be refused.
 * Gradients: test_ops.c. PyTorch: test_golden.c.
 */
#include "arrays.h"

enum { TANH, RELU, GRU, LSTM };
static const char *const kinds[] = {"rnn tanh", "rnn relu", "gru", "lstm"};
static const int gates_of[] = {1, 1, 3, 4};

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* h, c [N, H] after one step; p: x W_ih + b_ih [G H]; w [G H, H], b [G H]. */
static void one_step(int kind, int64_t H, const double *p, const double *w, const double *b, double *h, double *c)
{
    double *q = malloc((size_t)(4 * H) * sizeof *q);
    for (int64_t k = 0; k < gates_of[kind] * H; k++) {
        q[k] = b[k];
        for (int64_t j = 0; j < H; j++) q[k] += w[k * H + j] * h[j];
    }
    for (int64_t j = 0; j < H; j++) {
        if (kind == TANH) h[j] = tanh(p[j] + q[j]);
        if (kind == RELU) h[j] = fmax(p[j] + q[j], 0);
        if (kind == GRU) {
            double r = sigmoid(p[j] + q[j]), z = sigmoid(p[H + j] + q[H + j]);
            double n = tanh(p[2 * H + j] + r * q[2 * H + j]);
            h[j] = (1 - z) * n + z * h[j];
        }
        if (kind == LSTM) {
            double i = sigmoid(p[j] + q[j]), f = sigmoid(p[H + j] + q[H + j]);
            double g = tanh(p[2 * H + j] + q[2 * H + j]), o = sigmoid(p[3 * H + j] + q[3 * H + j]);
            c[j] = f * c[j] + i * g;
            h[j] = o * tanh(c[j]);
        }
    }
    free(q);
}

typedef struct problem {
    int kind, layers, both, batch_first, biases, states;
    int64_t T, N, I, H;
    const int64_t *lengths; /* or NULL */
} problem;

enum { MOST = 16 };

/* Everything in double, rounded as dtype rounds; layer by layer. y [T, N, D H], hn and cn [L D, N, H]. */
static void reference(const problem *a, const double *x, double *const *w, const double *h0, const double *c0,
                      double *y, double *hn, double *cn)
{
    int D = 1 + a->both, G = gates_of[a->kind];
    int64_t wide = a->I, H = a->H, rows = a->T * a->N, most = (a->I > 2 * H ? a->I : 2 * H);
    double *in = malloc((size_t)(rows * most + 1) * sizeof *in), *p = malloc((size_t)(4 * H) * sizeof *p);
    double *h = malloc((size_t)H * sizeof *h), *c = malloc((size_t)H * sizeof *c);
    memcpy(in, x, (size_t)(rows * a->I) * sizeof *in);
    for (int l = 0; l < a->layers; l++) {
        for (int d = 0; d < D; d++) {
            double *const *u = w + 4 * (l * D + d);
            for (int64_t n = 0; n < a->N; n++) {
                int64_t length = a->lengths ? a->lengths[n] : a->T, at = ((l * D + d) * a->N + n) * H;
                for (int64_t j = 0; j < H; j++) h[j] = h0 ? h0[at + j] : 0, c[j] = c0 ? c0[at + j] : 0;
                for (int64_t s = 0; s < a->T; s++) {
                    int64_t t = s >= length ? s : d ? length - 1 - s : s;
                    if (s < length) {
                        for (int64_t k = 0; k < G * H; k++) {
                            p[k] = u[2][k];
                            for (int64_t i = 0; i < wide; i++)
                                p[k] += u[0][k * wide + i] * in[(t * a->N + n) * wide + i];
                        }
                        one_step(a->kind, H, p, u[1], u[3], h, c);
                    }
                    for (int64_t j = 0; j < H; j++) y[((t * a->N + n) * D + d) * H + j] = s < length ? h[j] : 0;
                }
                for (int64_t j = 0; j < H; j++) hn[at + j] = h[j], cn[at + j] = c[j];
            }
        }
        wide = D * H;
        memcpy(in, y, (size_t)(rows * wide) * sizeof *in);
    }
    free(in), free(p), free(h), free(c);
}

/* A tensor of noise, and what it really holds. */
static lks_tensor *filled(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, double scale,
                          uint64_t seed, double **values)
{
    lks_tensor *t = noise_of(ctx, dtype, ndim, shape, scale, seed);
    *values = values_of(ctx, t);
    return t;
}

static lks_status call(const problem *a, lks_tensor *x, lks_tensor *h, lks_tensor *c, lks_tensor *lengths, int n,
                       lks_tensor *const *w, lks_tensor **y, lks_tensor **hn, lks_tensor **cn)
{
    *cn = NULL;
    if (a->kind == LSTM) return lks_lstm(x, h, c, lengths, n, w, a->both, a->batch_first, 0, y, hn, cn);
    if (a->kind == GRU) return lks_gru(x, h, lengths, n, w, a->both, a->batch_first, 0, y, hn);
    return lks_rnn(x, h, lengths, n, w, a->kind == RELU, a->both, a->batch_first, 0, y, hn);
}

static int agrees(lks_context *ctx, const problem *a, lks_dtype dtype, int strided)
{
    int D = 1 + a->both, G = gates_of[a->kind], n = 4 * a->layers * D, good = 1;
    int64_t xs[3] = {a->T, a->N, a->I}, ss[3] = {a->layers * D, a->N, a->H}, count = a->T * a->N * D * a->H;
    int64_t states = a->layers * D * a->N * a->H;
    double *v[MOST], *xv, *hv = NULL, *cv = NULL, *want[3];
    lks_tensor *w[MOST], *h = LKS_NONE, *c = LKS_NONE, *lengths = LKS_NONE, *y, *hn, *cn;
    lks_scope_begin(ctx);
    lks_tensor *x = filled(ctx, dtype, 3, xs, 1, 3, &xv);
    for (int k = 0; k < n; k++) {
        int64_t s[2] = {G * a->H, k % 4 == 1 ? a->H : k < 4 * D ? a->I : D * a->H};
        w[k] = filled(ctx, dtype, k % 4 < 2 ? 2 : 1, s, 1 / sqrt((double)a->H), (uint64_t)(10 + k), &v[k]);
        if (strided && k % 4 < 2) w[k] = reversed(w[k]);
        if (k % 4 < 2 || a->biases) continue;
        w[k] = LKS_NONE;
        memset(v[k], 0, (size_t)s[0] * sizeof(double));
    }
    if (a->states) h = filled(ctx, dtype, 3, ss, 1, 5, &hv);
    if (a->states && a->kind == LSTM) c = filled(ctx, dtype, 3, ss, 1, 6, &cv);
    if (a->lengths) lengths = lks_from_host(ctx, LKS_I64, 1, &a->N, a->lengths);
    for (int k = 0; k < 3; k++) want[k] = malloc((size_t)((k ? states : count) + 1) * sizeof(double));
    reference(a, xv, v, hv, cv, want[0], want[1], want[2]);
    if (strided) x = reversed(x), h = h == LKS_NONE ? h : reversed(h);
    if (a->batch_first) x = lks_transpose(x, 0, 1);
    if (a->batch_first && !strided) x = lks_contiguous(x);
    if (call(a, x, h, c, lengths, n, w, &y, &hn, &cn) != LKS_OK) {
        diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
        good = 0;
    } else {
        double tol = (a->layers + 1) * (dtype == LKS_F32 ? 4e-6 : tolerance_of(dtype));
        if (a->batch_first) y = lks_transpose(y, 0, 1);
        good = close_to(ctx, y, want[0], count, tol) & close_to(ctx, hn, want[1], states, tol);
        if (a->kind == LSTM) good &= close_to(ctx, cn, want[2], states, 2 * tol);
        good &= lks_dtype_of(y) == dtype && lks_dtype_of(hn) == dtype;
    }
    for (int k = 0; k < n; k++) free(v[k]);
    for (int k = 0; k < 3; k++) free(want[k]);
    free(xv), free(hv), free(cv);
    lks_scope_end(ctx);
    return good;
}

static void values(lks_context *ctx, const char *name)
{
    static const int64_t few[4] = {3, 0, 5, 1};
    static const problem all[] = {
        {.layers = 1, .T = 5, .N = 4, .I = 3, .H = 7, .biases = 1, .states = 1},
        {.layers = 1, .T = 1, .N = 1, .I = 1, .H = 1, .biases = 1, .states = 0},
        {.layers = 2, .both = 1, .T = 5, .N = 4, .I = 3, .H = 7, .biases = 1, .states = 1, .lengths = few},
        {.layers = 1, .both = 1, .batch_first = 1, .T = 5, .N = 4, .I = 6, .H = 5, .states = 1, .lengths = few},
        {.layers = 2, .batch_first = 1, .T = 3, .N = 2, .I = 17, .H = 16, .biases = 1},
        {.layers = 1, .T = 3, .N = 31, .I = 20, .H = 33, .biases = 1, .states = 1},
        {.layers = 1, .both = 1, .T = 2, .N = 53, .I = 9, .H = 65, .biases = 1, .states = 1},
    };
    for (int kind = 0; kind < 4; kind++) {
        int good = 1;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            for (int d = 0; d < 4; d++)
                for (int strided = 0; strided < 2; strided++) {
                    problem a = all[i];
                    a.kind = kind;
                    if (agrees(ctx, &a, array_floats[d], strided)) continue;
                    diag("problem %d in %s%s", (int)i, lks_dtype_name(array_floats[d]), strided ? ", strided" : "");
                    good = 0;
                }
        ok(good, "%s against its formula, %s", kinds[kind], name);
    }
}

/* A cell is a sequence of one step; a sequence alone is a batch of one. */
static void shapes(lks_context *ctx)
{
    int64_t xs[2] = {3, 5}, hs[2] = {3, 4}, wi[2] = {16, 5}, wh[2] = {16, 4};
    lks_tensor *x = noise_of(ctx, LKS_F32, 2, xs, 1, 1), *h = noise_of(ctx, LKS_F32, 2, hs, 1, 2);
    lks_tensor *c = noise_of(ctx, LKS_F32, 2, hs, 1, 3), *y, *hn, *cn, *h1, *c1;
    lks_tensor *w[4] = {noise_of(ctx, LKS_F32, 2, wi, 1, 4), noise_of(ctx, LKS_F32, 2, wh, 1, 5),
                        noise_of(ctx, LKS_F32, 1, wi, 1, 6), noise_of(ctx, LKS_F32, 1, wi, 1, 7)};
    lks_lstm(lks_unsqueeze(x, 0), lks_unsqueeze(h, 0), lks_unsqueeze(c, 0), LKS_NONE, 4, w, 0, 0, 0, &y, &hn, &cn);
    lks_lstm_cell(x, h, c, w[0], w[1], w[2], w[3], &h1, &c1);
    double *a = values_of(ctx, hn), *b = values_of(ctx, cn);
    ok(close_to(ctx, h1, a, 12, 0) && close_to(ctx, c1, b, 12, 0) && lks_ndim(h1) == 2, "a cell is one step");
    lks_lstm_cell(lks_select(x, 0, 1), lks_select(h, 0, 1), lks_select(c, 0, 1), w[0], w[1], w[2], w[3], &h1, NULL);
    ok(close_to(ctx, h1, a + 4, 4, 1e-6) && lks_ndim(h1) == 1, "a cell of one sample");
    free(a), free(b);
    lks_lstm(lks_unsqueeze(x, 1), LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, NULL, NULL);
    a = values_of(ctx, y);
    for (int first = 0; first < 2; first++) {
        lks_lstm(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, first, 0, &y, &hn, &cn);
        ok(close_to(ctx, y, a, 12, 1e-6) && lks_ndim(y) == 2 && lks_ndim(hn) == 2 && lks_dim(hn, 1) == 4,
           "one sequence%s", first ? ", batch first" : "");
    }
    free(a);
    lks_tensor *wi4 = lks_narrow(w[0], 0, 0, 4), *wh4 = lks_narrow(w[1], 0, 0, 4);
    lks_tensor *wi12 = lks_narrow(w[0], 0, 0, 12), *wh12 = lks_narrow(w[1], 0, 0, 12);
    ok(lks_rnn_cell(x, LKS_NONE, wi4, wh4, LKS_NONE, LKS_NONE, 1) != NULL &&
           lks_gru_cell(x, LKS_NONE, wi12, wh12, LKS_NONE, LKS_NONE) != NULL,
       "cells without state and biases");
}

static void edges(lks_context *ctx)
{
    int64_t xs[3] = {2, 3, 2}, wi[2] = {8, 2};
    double xv[12] = {1e30, -1e30, 0, 0, INFINITY, 1, 1, 1, 0, 0, 1, NAN};
    double wv[16] = {0};
    for (int k = 0; k < 16; k++) wv[k] = k % 2 ? 0.5 : 1;
    lks_tensor *w[4] = {tensor_of(ctx, LKS_F32, 2, wi, wv), tensor_of(ctx, LKS_F32, 2, wi, wv), LKS_NONE, LKS_NONE};
    lks_tensor *y, *hn, *cn, *x = tensor_of(ctx, LKS_F32, 3, xs, xv);
    lks_lstm(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, &hn, &cn);
    double *v = values_of(ctx, y);
    ok(v && fabs(v[0] - tanh(1.0)) < 1e-6 && v[2] == 0 && fabs(v[4] - tanh(1.0)) < 1e-6 && isnan(v[10]) &&
           fabs(v[6] - 0.8892) < 1e-3 && !isnan(v[8]),
       "huge and infinite inputs saturate the gates; a NaN stays in its sequence");
    free(v);
    /* relu lets what is not finite through, and keeps NaN. */
    lks_tensor *square = tensor_of(ctx, LKS_F32, 2, (int64_t[]){2, 2}, wv);
    lks_tensor *r[4] = {square, square, LKS_NONE, LKS_NONE};
    lks_rnn(x, LKS_NONE, LKS_NONE, 4, r, 1, 0, 0, 0, &y, &hn);
    v = values_of(ctx, y);
    ok(v && isinf(v[4]) && v[2] == 0 && isnan(v[10]), "relu: infinity, zero and NaN");
    free(v);
    /* What lies behind the end of a sequence is not looked at, forward or backward. */
    for (int kind = TANH; kind <= LSTM; kind++) {
        for (int batch_first = 0; batch_first < 2; batch_first++) {
            problem p = {.kind = kind, .both = 1, .batch_first = batch_first};
            int64_t rows = 2 * gates_of[kind], n3 = 3, ends[3] = {1, 2, 0};
            double rubbish[12] = {1, 2, 3, 4, NAN, INFINITY, NAN, NAN, -0.5, 1, -INFINITY, NAN}, zeros[12] = {0};
            lks_tensor *q[8], *grad[2][9], *all[9], *out[2];
            lks_scope_begin(ctx);
            for (int i = 0; i < 8; i++) {
                double scale = 0.5 + i;
                q[i] = i % 4 < 2 ? noise_of(ctx, LKS_F32, 2, (int64_t[]){rows, 2}, scale, 7 + (uint64_t)i)
                                 : noise_of(ctx, LKS_F32, 1, (int64_t[]){rows}, scale, 7 + (uint64_t)i);
                lks_set_requires_grad(all[i + 1] = q[i], 1);
            }
            int good = 1;
            for (int clean = 0; clean < 2; clean++) { /* [2, 3, 2]: time by batch */
                for (int i = 0; i < 12; i++) {
                    int beyond = i / 6 >= ends[i / 2 % 3];
                    zeros[i] = beyond ? (clean ? 0 : rubbish[(i + 4) % 8]) : rubbish[i % 4];
                }
                lks_tensor *part = tensor_of(ctx, LKS_F32, 3, xs, zeros), *lengths;
                if (batch_first) part = lks_contiguous(lks_transpose(part, 0, 1));
                lengths = lks_from_host(ctx, LKS_I64, 1, &n3, ends);
                lks_set_requires_grad(all[0] = part, 1);
                good &= call(&p, part, LKS_NONE, LKS_NONE, lengths, 8, q, &out[0], &hn, &cn) == LKS_OK &&
                        lks_gradients(lks_sum(out[0], 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 9, all, 0, 0,
                                      grad[clean]) == LKS_OK;
            }
            for (int i = 0; good && i < 9; i++) {
                v = values_of(ctx, grad[0][i]);
                good &= v && close_to(ctx, grad[1][i], v, lks_numel(grad[1][i]), 0) && !isnan(v[0]);
                free(v);
            }
            ok(good, "%s: NaN behind the ends reaches no gradient (batch %s)", kinds[kind],
               batch_first ? "first" : "second");
            lks_scope_end(ctx);
        }
    }
    int64_t none[3] = {0, 3, 2}, nobody[3] = {2, 0, 2};
    lks_tensor *no_x = lks_zeros(ctx, LKS_F32, 3, none), *no_n = lks_zeros(ctx, LKS_F32, 3, nobody);
    ok(lks_lstm(no_x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, &hn, &cn) == LKS_OK &&
           lks_numel(y) == 0 && lks_numel(hn) == 6 && close_to(ctx, cn, (double[6]){0}, 6, 0),
       "no steps: the state is the first one");
    ok(lks_lstm(no_n, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, &hn, &cn) == LKS_OK &&
           lks_dim(y, 0) == 2 && lks_numel(hn) == 0,
       "no sequences");
}

#define NO(expression, code, text)                                                                             \
    do {                                                                                                       \
        lks_status got = (expression);                                                                         \
        ok(got == (code) && lks_error_code(ctx) == (code) && strstr(lks_error(ctx), text), "%s", lks_error(ctx)); \
        lks_error_clear(ctx);                                                                                  \
    } while (0)

static void refusals(lks_context *ctx)
{
    int64_t xs[3] = {4, 3, 5}, wi[2] = {16, 5}, wh[2] = {16, 4}, n3 = 3, n2 = 2, hs[3] = {2, 3, 4};
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 3, xs), *y, *hn, *cn;
    lks_tensor *w[8] = {lks_zeros(ctx, LKS_F32, 2, wi), lks_zeros(ctx, LKS_F32, 2, wh), LKS_NONE, LKS_NONE,
                        lks_zeros(ctx, LKS_F32, 2, wi), lks_zeros(ctx, LKS_F32, 2, wh), LKS_NONE, LKS_NONE};
#define LSTM_(x, h, c, lengths, n, w, both, p) lks_lstm(x, h, c, lengths, n, w, both, 0, p, &y, &hn, &cn)
    NO(LSTM_(x, LKS_NONE, LKS_NONE, LKS_NONE, 3, w, 0, 0), LKS_ERR_ARGUMENT, "3 weights");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 1, 0), LKS_ERR_ARGUMENT, "4 weights");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 1), LKS_ERR_ARGUMENT, "dropout is 1");
    NO(LSTM_(x, lks_zeros(ctx, LKS_F32, 3, hs), LKS_NONE, LKS_NONE, 4, w, 0, 0), LKS_ERR_SHAPE, "h0 [2,3,4]");
    NO(LSTM_(x, LKS_NONE, lks_zeros(ctx, LKS_F16, 3, hs), LKS_NONE, 8, w, 1, 0), LKS_ERR_DTYPE, "c0 is float16");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, lks_full(ctx, LKS_I64, 1, &n3, 5), 4, w, 0, 0), LKS_ERR_ARGUMENT, "length 5");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, lks_full(ctx, LKS_I64, 1, &n3, -1), 4, w, 0, 0), LKS_ERR_ARGUMENT, "length -1");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, lks_full(ctx, LKS_I32, 1, &n3, 1), 4, w, 0, 0), LKS_ERR_DTYPE, "int64");
    NO(LSTM_(x, LKS_NONE, LKS_NONE, lks_full(ctx, LKS_I64, 1, &n2, 1), 4, w, 0, 0), LKS_ERR_SHAPE, "[2]");
    NO(LSTM_(lks_zeros(ctx, LKS_F32, 1, xs), LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0), LKS_ERR_SHAPE, "x [4]");
    NO(lks_gru(x, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, &hn), LKS_ERR_SHAPE, "3 H");
    ok(LSTM_(LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0) == LKS_ERR_ARGUMENT && !y, "no x");
    ok(lks_lstm(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, (lks_tensor *[4]){w[0], NULL, w[2], w[3]}, 0, 0, 0, &y, &hn, &cn) !=
               LKS_OK && !y, "NULL among the weights fails");
    lks_error_clear(ctx);
    lks_tensor *g = lks_set_requires_grad(x, 1) == LKS_OK ? x : NULL, *d;
    LSTM_(g, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0);
    lks_tensor *loss = lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE);
    NO(lks_gradients(loss, LKS_NONE, 1, &x, 0, 1, &d) == LKS_OK
           ? lks_backward(lks_sum(d, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) : LKS_ERR_STATE,
       LKS_ERR_UNSUPPORTED, "not differentiable twice");
}

/* A region's dtype: sequences by either table, cells as the tables say. */
static void policies(lks_context *ctx)
{
    int64_t xs[3] = {2, 3, 5}, wi[2] = {16, 5}, wh[2] = {16, 4};
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 3, xs), *y, *h;
    lks_tensor *w[4] = {lks_zeros(ctx, LKS_F32, 2, wi), lks_zeros(ctx, LKS_F32, 2, wh), LKS_NONE, LKS_NONE};
    for (int table = 0; table < 2; table++) {
        lks_autocast_set_table(ctx, table);
        lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        lks_lstm(x, LKS_NONE, LKS_NONE, LKS_NONE, 4, w, 0, 0, 0, &y, &h, NULL);
        lks_dtype sequence = lks_dtype_of(y);
        lks_lstm_cell(lks_select(x, 0, 0), LKS_NONE, LKS_NONE, w[0], w[1], w[2], w[3], &h, NULL);
        ok(sequence == LKS_BF16 && lks_dtype_of(h) == (table == LKS_TABLE_CUDA ? LKS_BF16 : LKS_F32),
           "a region by the table of %s", table == LKS_TABLE_CUDA ? "cuda" : "cpu");
        lks_autocast_end(ctx);
    }
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    ok(lks_op_lookup("LSTMCell") == lks_op_lookup("lstm_cell") && lks_op_lookup("mkldnn_rnn_layer") >= 0 &&
           lks_op_lookup("GRUCell") >= 0 && lks_op_lookup("RNNCell") >= 0,
       "names of the published lists");
}

static void modules(lks_context *ctx)
{
    int64_t xs[3] = {2, 5, 3}, n = 2;
    lks_params *ps = NULL;
    lks_module *m[4] = {NULL, NULL, NULL, NULL};
    lks_tensor *y, *hn, *cn, *x = noise_of(ctx, LKS_F32, 3, xs, 1, 9);
    lks_tensor *lengths = lks_from_host(ctx, LKS_I64, 1, &n, (int64_t[]){5, 2});
    lks_params_create(ctx, &ps);
    ok(lks_lstm_create(ps, "a", 3, 4, 2, 1, 0.5, &m[0]) == LKS_OK &&
           lks_gru_create(ps, "b", 3, 4, 1, 0, 0, &m[1]) == LKS_OK &&
           lks_rnn_create(ps, "c", 3, 4, 1, 1, 0, 0, &m[2]) == LKS_OK &&
           lks_linear_create(ps, "d", 3, 4, 1, &m[3]) == LKS_OK,
       "modules");
    int at = lks_params_find(ps, "a.weight_ih_l1_reverse");
    ok(lks_params_count(ps) == 16 + 4 + 4 + 2 && at >= 0 && lks_dim(lks_params_tensor(ps, at), 1) == 8,
       "parameters have PyTorch's names");
    y = lks_module_forward(m[0], x);
    ok(y && lks_dim(y, 0) == 2 && lks_dim(y, 1) == 5 && lks_dim(y, 2) == 8, "a bidirectional LSTM's output");
    lks_module_train(m[0], 0);
    double *a = values_of(ctx, lks_module_forward(m[0], x)), *b = values_of(ctx, lks_module_forward(m[0], x));
    ok(a && b && !memcmp(a, b, 80 * sizeof *a), "without dropout in eval mode");
    free(a), free(b);
    ok(lks_recurrent_forward(m[0], x, LKS_NONE, LKS_NONE, lengths, &y, &hn, &cn) == LKS_OK && lks_dim(hn, 0) == 4 &&
           lks_dim(cn, 1) == 2 &&
           lks_recurrent_forward(m[1], x, LKS_NONE, LKS_NONE, LKS_NONE, NULL, &hn, &cn) == LKS_OK && !cn &&
           lks_recurrent_forward(m[2], x, LKS_NONE, LKS_NONE, lengths, &y, NULL, NULL) == LKS_OK,
       "states and lengths");
    ok(lks_recurrent_forward(m[3], x, LKS_NONE, LKS_NONE, LKS_NONE, &y, &hn, &cn) == LKS_ERR_ARGUMENT &&
           strstr(lks_error(ctx), "linear"), "%s", lks_error(ctx));
    lks_error_clear(ctx);
    for (int i = 0; i < 4; i++) lks_module_destroy(&m[i]);
    ok(lks_lstm_create(ps, "e", 3, 0, 1, 0, 0, &m[0]) == LKS_ERR_ARGUMENT && !m[0], "%s", lks_error(ctx));
    lks_error_clear(ctx);
    lks_params_destroy(&ps);
}

/* The products of attention's parts by einsum, and what einsum refuses; quantisation's ends. */
static void composed(lks_context *ctx)
{
    int64_t as[3] = {2, 3, 4}, bs[3] = {2, 5, 4}, ns[1] = {6};
    lks_tensor *a = noise_of(ctx, LKS_F64, 3, as, 1, 1), *b = noise_of(ctx, LKS_F64, 3, bs, 1, 2), *x[2] = {a, b};
    double *want = values_of(ctx, lks_matmul(a, lks_transpose(b, 1, 2)));
    ok(close_to(ctx, lks_einsum("bqd, bkd -> bqk", 2, x), want, 30, 1e-14), "einsum: spaces");
    free(want);
    want = values_of(ctx, lks_sum(a, 0, NULL, 0, LKS_DTYPE_NONE));
    ok(close_to(ctx, lks_einsum("...->", 1, x), want, 1, 1e-14), "einsum: all of an ellipsis is summed");
    free(want);
    static const char *const wrong[] = {"ab,abc",    "abc,abc", "abc,adc->abx", "abc,adc->aa",
                                        "abc,adc>a", "abc",     "a!c,abc",      NULL};
    for (int i = 0; i < 8; i++) {
        ok(!lks_einsum(wrong[i], 2, x) && lks_error_code(ctx) == LKS_ERR_ARGUMENT, "%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    double v[6] = {0.25, 0.75, -0.25, 100, -INFINITY, NAN}, w[6] = {0, 1, -0.0, 2.5, -4, NAN};
    double d[6] = {1, 1, 1, 0, 0, 0};
    lks_tensor *q = tensor_of(ctx, LKS_F32, 1, ns, v);
    lks_set_requires_grad(q, 1);
    lks_tensor *y = lks_fake_quantize_per_tensor_affine(q, 0.5, 2, -6, 7);
    ok(close_to(ctx, y, w, 6, 0), "fake_quantize: halves to even, clamped ends, NaN");
    lks_backward(y, lks_full(ctx, LKS_F32, 1, ns, 1), 0);
    ok(close_to(ctx, lks_grad(q), d, 6, 0), "fake_quantize: straight through, nothing where it was clamped");
    for (int zero = 0; zero < 10; zero += 9) {
        y = lks_fake_quantize_per_tensor_affine(q, zero, zero, 0, 1);
        ok(!y && lks_error_code(ctx) == LKS_ERR_ARGUMENT, "%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    lks_zero_grad(q);
    /* A query that sees no key: zeros, and its weights are zeros. */
    int64_t qs[3] = {1, 2, 4}, wi[2] = {12, 4}, ms[2] = {2, 2};
    lks_tensor *h = noise_of(ctx, LKS_F32, 3, qs, 1, 3), *weights;
    lks_tensor *mask = lks_to(lks_from_host(ctx, LKS_I64, 2, ms, (int64_t[]){1, 1, 0, 0}), LKS_BOOL);
    lks_tensor *w_in = noise_of(ctx, LKS_F32, 2, wi, 1, 4), *w_out = lks_narrow(w_in, 0, 0, 4);
    lks_status s = lks_multi_head_attention(h, h, h, 2, w_in, LKS_NONE, w_out, LKS_NONE, mask, 0, 0, &y, &weights);
    double *p = values_of(ctx, weights), *o = values_of(ctx, y);
    ok(s == LKS_OK && p && o && fabs(p[0] + p[1] - 1) < 1e-6 && p[2] == 0 && p[3] == 0 && o[4] == 0 && o[0] != 0,
       "multi-head attention: a query that sees nothing");
    free(p), free(o);
    ok(lks_multi_head_attention(h, h, h, 3, h, LKS_NONE, h, LKS_NONE, LKS_NONE, 0, 0, &y, NULL) == LKS_ERR_ARGUMENT,
       "%s", lks_error(ctx));
    lks_error_clear(ctx);
}

int main(void)
{
    static const char *const isa[] = {NULL, "base", "avx2"};
    for (int k = 0; k < 3; k++) {
        lks_context *ctx = context_on("cpu", isa[k], k == 1 ? 1 : 2);
        if (!ctx) continue;
        lks_scope_begin(ctx);
        values(ctx, isa[k] ? isa[k] : "the best ISA");
        if (k == 0) shapes(ctx), edges(ctx), refusals(ctx), policies(ctx), modules(ctx), composed(ctx);
        lks_scope_end(ctx);
        ok(lks_live_tensors(ctx) == 0, "nothing is left");
        lks_context_destroy(&ctx);
    }
    lks_finalize();
    return done();
}
