/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_random_graphs.c - random graphs of ops: gradients against central differences in float64, in float32 against
 * float64, the same bits when run again, made again (lks_recompute) or asked for without .grad, and nothing left. 100
 * seeds; LKS_GRAPH_SEEDS asks for more. A seed that fails is printed and can be run alone with LKS_GRAPH_FIRST.
 */
#include "tap.h"
#include <lockstep.h>
#include <math.h>
#include <stdlib.h>

enum { LEAVES = 3, OPS = 14 };

static lks_context *ctx;

/* Numbers that depend on seed and place in the order of drawing alone. */
typedef struct dice { uint64_t s; } dice;

static uint32_t roll(dice *d)
{
    d->s = d->s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(d->s >> 33);
}

static int pick(dice *d, int n) { return (int)(roll(d) % (uint32_t)n); }
static double real(dice *d) { return (double)roll(d) / 0x1p30 - 1; }

/* A tensor as a matrix [2 to 4, 2 to 4]; all values of the pool are that. */
static lks_tensor *matrix(dice *d, lks_dtype dtype)
{
    double v[16];
    int64_t shape[2] = {2 + pick(d, 3), 2 + pick(d, 3)};
    for (int i = 0; i < 16; i++) v[i] = real(d);
    return lks_to(lks_from_host(ctx, LKS_F64, 2, shape, v), dtype);
}

static int fits(lks_tensor *a, lks_tensor *b)
{
    for (int k = 0; k < 2; k++)
        if (lks_dim(a, k) != lks_dim(b, k) && lks_dim(a, k) != 1 && lks_dim(b, k) != 1) return 0;
    return 1;
}

/* b brought to a's shape: cut, or repeated from its first row or column. */
static lks_tensor *like(lks_tensor *b, lks_tensor *a)
{
    for (int k = 0; k < 2; k++) {
        int64_t n = lks_dim(a, k);
        if (lks_dim(b, k) > n) b = lks_narrow(b, k, 0, n);
        else if (lks_dim(b, k) < n) b = lks_narrow(b, k, 0, 1);
    }
    return b;
}

/* One op on members of the pool; smooth everywhere, values stay of the size of one. */
static lks_tensor *apply(dice *d, lks_tensor *const *pool, int n)
{
    lks_tensor *a = pool[pick(d, n)], *b = pool[pick(d, n)], *w[2];
    int op = pick(d, 22);
    b = like(b, a);
    switch (op) {
    case 0: return lks_tanh(lks_add(a, b));
    case 1: return lks_sub(a, b);
    case 2: return lks_mul(lks_tanh(a), b);
    case 3: return lks_div(a, lks_add_scalar(lks_mul(b, b), 1.5));
    case 4: return lks_tanh(a);
    case 5: return lks_sigmoid(a);
    case 6: return lks_gelu(a, pick(d, 2));
    case 7: return lks_exp(lks_affine(lks_tanh(a), 0.5, 0));
    case 8: return lks_log(lks_add_scalar(lks_mul(a, a), 1.1));
    case 9: return lks_sqrt(lks_add_scalar(lks_mul(a, a), 0.7));
    case 10: return lks_softmax(a, pick(d, 2));
    case 11: return lks_mul_scalar(lks_log_softmax(a, pick(d, 2)), 0.3);
    case 12: return lks_mul_scalar(lks_matmul(a, lks_transpose(fits(a, b) ? lks_add(a, b) : a, 0, 1)), 0.3);
    case 13: return lks_mean(a, 1, (int[]){pick(d, 2)}, 1, LKS_DTYPE_NONE);
    case 14: return lks_mul_scalar(lks_sum(a, 1, (int[]){pick(d, 2)}, 1, LKS_DTYPE_NONE), 0.3);
    case 15: return lks_transpose(a, 0, 1);
    case 16: {
        int64_t rows = lks_dim(a, 0), columns = lks_dim(a, 1);
        return lks_reshape(a, 2, (int64_t[]){columns, rows});
    }
    case 17: return lks_narrow(a, 1, lks_dim(a, 1) / 2, lks_dim(a, 1) - lks_dim(a, 1) / 2);
    case 18:
        w[0] = a;
        w[1] = lks_expand(lks_narrow(b, 0, 0, 1), 2, (int64_t[]){1, lks_dim(a, 1)});
        a = lks_cat(2, w, 0);
        return lks_narrow(a, 0, 1, lks_dim(a, 0) - 1);
    case 19: return lks_dim(a, 1) > 1 ? lks_mul_scalar(lks_layer_norm(a, 1, LKS_NONE, LKS_NONE, 0.3), 0.5) : lks_neg(a);
    case 20: {
        lks_tensor *v = lks_expand(lks_narrow(b, 0, 0, 1), 2, (int64_t[]){1, lks_dim(a, 1)});
        return lks_mul_scalar(lks_linear(a, v, LKS_NONE), 0.4);
    }
    default: return lks_affine(a, 0.7, -0.2);
    }
}

typedef struct graph {
    uint64_t seed;
    int again; /* the middle runs in lks_recompute */
} graph;

typedef struct middle {
    dice d;
    int count;
} middle;

/* Some ops on a pool that grows; the last is the result. */
static lks_status stretch(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    middle m = *(middle *)user; /* the same dice each time */
    lks_tensor *pool[LEAVES + OPS];
    (void)nout;
    for (int i = 0; i < nin; i++) pool[i] = in[i];
    for (int i = 0; i < m.count; i++)
        if (!(pool[nin + i] = apply(&m.d, pool, nin + i))) return lks_error_code(ctx);
    out[0] = pool[nin + m.count - 1];
    return LKS_OK;
}

static middle kept[2]; /* what lks_recompute will want in backward */

static lks_tensor *build(void *user, lks_tensor *const *in, int n)
{
    graph *g = user;
    dice d = {g->seed * 0x9e3779b97f4a7c15u + 1};
    lks_tensor *parts[LEAVES + 2];
    for (int i = 0; i < n; i++) parts[i] = in[i];
    for (int i = 0; i < 2; i++) {
        kept[i] = (middle){{roll(&d)}, 2 + pick(&d, OPS - 2)};
        lks_status s = g->again ? lks_recompute(ctx, stretch, &kept[i], n + i, parts, 1, &parts[n + i])
                                : stretch(&kept[i], n + i, parts, 1, &parts[n + i]);
        if (s != LKS_OK) return NULL;
    }
    /* every leaf has a part in the result */
    lks_tensor *y = lks_sum(lks_mul(parts[n], parts[n]), 0, NULL, 0, LKS_DTYPE_NONE);
    y = lks_add(y, lks_sum(parts[n + 1], 0, NULL, 0, LKS_DTYPE_NONE));
    for (int i = 0; i < n; i++) y = lks_add(y, lks_mean(lks_tanh(in[i]), 0, NULL, 0, LKS_DTYPE_NONE));
    return y;
}

static void leaves(uint64_t seed, lks_dtype dtype, lks_tensor **in)
{
    dice d = {seed + 77};
    for (int i = 0; i < LEAVES; i++) {
        in[i] = matrix(&d, dtype);
        lks_set_requires_grad(in[i], 1);
    }
}

static int64_t fetch(lks_tensor *const *t, double *to, int64_t at)
{
    for (int i = 0; i < LEAVES; i++) {
        int64_t n = lks_numel(t[i]);
        if (lks_to_host(lks_to(lks_detach(t[i]), LKS_F64), to + at, n * 8) != LKS_OK) return -1;
        at += n;
    }
    return at;
}

/* Gradients by backward, all leaves one after the other; count, -1 on failure. */
static int64_t gradients(uint64_t seed, lks_dtype dtype, int again, int by_call, double *to)
{
    graph g = {seed, again};
    lks_tensor *in[LEAVES], *grad[LEAVES] = {NULL};
    leaves(seed, dtype, in);
    lks_tensor *y = build(&g, in, LEAVES);
    if (!y) return -1;
    if (by_call) {
        if (lks_gradients(y, LKS_NONE, LEAVES, in, 0, 0, grad) != LKS_OK) return -1;
        for (int i = 0; i < LEAVES; i++)
            if (lks_grad(in[i])) return -1;
    } else {
        if (lks_backward(y, LKS_NONE, 0) != LKS_OK) return -1;
        for (int i = 0; i < LEAVES; i++) grad[i] = lks_grad(in[i]);
    }
    for (int i = 0; i < LEAVES; i++)
        if (!grad[i]) return -1;
    return fetch(grad, to, 0);
}

static const char *check(uint64_t seed)
{
    enum { MOST = LEAVES * 16 };
    double first[MOST], other[MOST], worst = 0, size = 0;
    graph g = {seed, 0};
    lks_tensor *in[LEAVES];
    leaves(seed, LKS_F64, in);
    if (lks_gradcheck(ctx, build, &g, LEAVES, in, 1e-6, 2e-6, &worst) != LKS_OK) return "differences";
    int64_t n = gradients(seed, LKS_F64, 0, 0, first);
    if (n < 0) return "no gradients";
    if (gradients(seed, LKS_F64, 0, 0, other) != n || memcmp(first, other, (size_t)n * 8))
        return "other bits in a second run";
    if (gradients(seed, LKS_F64, 1, 0, other) != n || memcmp(first, other, (size_t)n * 8))
        return "other bits when made again";
    if (gradients(seed, LKS_F64, 0, 1, other) != n) return "lks_gradients";
    for (int64_t i = 0; i < n; i++)
        if (fabs(first[i] - other[i]) > 1e-13 * (1 + fabs(first[i]))) return "lks_gradients gives others";
    if (gradients(seed, LKS_F32, 0, 0, other) != n) return "no float32 gradients";
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(first[i]));
    for (int64_t i = 0; i < n; i++)
        if (fabs(first[i] - other[i]) > 2e-4 * (1 + size)) return "float32 is far from float64";
    return NULL;
}

int main(void)
{
    const char *text = getenv("LKS_GRAPH_SEEDS"), *from = getenv("LKS_GRAPH_FIRST");
    uint64_t seeds = text ? strtoull(text, NULL, 10) : 100, start = from ? strtoull(from, NULL, 10) : 0;
    lks_config *c = lks_config_new();
    lks_config_set_threads(c, 2);
    if (lks_context_create(MPI_COMM_NULL, c, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(c));
    lks_config_free(c);
    int failed = 0, leaked = 0;
    for (uint64_t seed = start; seed < start + seeds; seed++) {
        lks_scope_begin(ctx);
        const char *why = check(seed);
        if (why) diag("seed %llu: %s: %s", (unsigned long long)seed, why, lks_error(ctx));
        failed += why != NULL;
        lks_error_clear(ctx);
        lks_scope_end(ctx);
        if (lks_live_tensors(ctx) || lks_live_nodes(ctx)) {
            if (!leaked++) diag("seed %llu leaves something", (unsigned long long)seed);
        }
    }
    ok(seeds > 0, "%llu random graphs", (unsigned long long)seeds);
    is_int(failed, 0, "right gradients, the same each time, in every way");
    is_int(leaked, 0, "no tensor, no node is left of any");
    lks_context_destroy(&ctx);
    int status = done();
    lks_finalize();
    return status;
}
