/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.c - public functions of products beyond matmul and linear: forms with a fixed number of dims, forms that
 * add, chains of products in the cheapest order, and contractions of any dims.
 */
#include "ops/ops.h"

#include <string.h>

/* The tensors' numbers of dims must be those given. */
static lks_context *with_dims(const char *where, int n, lks_tensor *const *t, const int *ndim)
{
    lks_context *ctx = lksi_ctx(n, t);
    char text[200];
    for (int i = 0; ctx && i < n; i++)
        if (t[i] != lks_none && t[i]->v.ndim != ndim[i]) {
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "input %d is %s; %d dims are needed", i,
                      lksi_shape_text(&t[i]->v, text, sizeof text), ndim[i]);
            return NULL;
        }
    return ctx;
}

static lks_tensor *product(const char *where, int op, lks_tensor *a, lks_tensor *b, int na, int nb)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = with_dims(where, 2, in, (int[]){na, nb});
    return ctx ? lksi_call1(ctx, where, op, 2, in, NULL) : NULL;
}

lks_tensor *lks_mm(lks_tensor *a, lks_tensor *b) { return product("lks_mm", LKSI_OP_matmul, a, b, 2, 2); }
lks_tensor *lks_mv(lks_tensor *a, lks_tensor *b) { return product("lks_mv", LKSI_OP_mv, a, b, 2, 1); }
lks_tensor *lks_dot(lks_tensor *a, lks_tensor *b) { return product("lks_dot", LKSI_OP_dot, a, b, 1, 1); }

/* matmul would broadcast batches; these forms do not. */
static int same_batch(const char *where, lks_context *ctx, lks_tensor *a, lks_tensor *b)
{
    char s[200], t[200];
    if (a->v.shape[0] == b->v.shape[0]) return 1;
    lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "batches differ: %s @ %s", lksi_shape_text(&a->v, s, sizeof s),
              lksi_shape_text(&b->v, t, sizeof t));
    return 0;
}

lks_tensor *lks_bmm(lks_tensor *a, lks_tensor *b)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = with_dims("lks_bmm", 2, in, (int[]){3, 3});
    return ctx && same_batch("lks_bmm", ctx, a, b) ? lksi_call1(ctx, "lks_bmm", LKSI_OP_matmul, 2, in, NULL) : NULL;
}

/* c may be LKS_NONE or broadcast; it is in[0] for the caller, in[2] for the row. */
static lks_tensor *add_product(const char *where, int op, lks_tensor *c, lks_tensor *a, lks_tensor *b, int na, int nb,
                               double beta, double alpha)
{
    lks_tensor *in[3] = {a, b, c};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx || !with_dims(where, 2, in, (int[]){na, nb})) return NULL;
    if (na == 3 && !same_batch(where, ctx, a, b)) return NULL;
    lksi_attr attr = {.product = {.alpha = alpha, .beta = beta}};
    return lksi_call1(ctx, where, op, 3, in, &attr);
}

lks_tensor *lks_addmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha)
{
    return add_product("lks_addmm", LKSI_OP_addmm, c, a, b, 2, 2, beta, alpha);
}

lks_tensor *lks_baddbmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha)
{
    return add_product("lks_baddbmm", LKSI_OP_addmm, c, a, b, 3, 3, beta, alpha);
}

lks_tensor *lks_addmv(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha)
{
    return add_product("lks_addmv", LKSI_OP_addmv, c, a, b, 2, 1, beta, alpha);
}

lks_tensor *lks_addr(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha)
{
    lks_tensor *in[2] = {a, b};
    if (!with_dims("lks_addr", 2, in, (int[]){1, 1})) return NULL;
    return add_product("lks_addr", LKSI_OP_addmv, c, lks_unsqueeze(a, 1), lks_unsqueeze(b, 0), 2, 2, beta, alpha);
}

/* One product whose inner size is batch times inner size. */
lks_tensor *lks_addbmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = with_dims("lks_addbmm", 2, in, (int[]){3, 3});
    char s[200], t[200];
    if (!ctx || !same_batch("lks_addbmm", ctx, a, b)) return NULL;
    if (a->v.shape[2] != b->v.shape[1]) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_addbmm", "inner sizes differ: %s @ %s",
                  lksi_shape_text(&a->v, s, sizeof s), lksi_shape_text(&b->v, t, sizeof t));
        return NULL;
    }
    int64_t inner = a->v.shape[0] * a->v.shape[2], rows = a->v.shape[1], columns = b->v.shape[2];
    lks_tensor *wide = lks_reshape(lks_permute(a, 3, (int[]){1, 0, 2}), 2, (int64_t[]){rows, inner});
    lks_tensor *tall = lks_reshape(b, 2, (int64_t[]){inner, columns});
    return add_product("lks_addbmm", LKSI_OP_addmm, c, wide, tall, 2, 2, beta, alpha);
}

lks_tensor *lks_outer(lks_tensor *a, lks_tensor *b)
{
    lks_tensor *in[2] = {a, b};
    return with_dims("lks_outer", 2, in, (int[]){1, 1}) ? lks_mul(lks_unsqueeze(a, 1), lks_unsqueeze(b, 0)) : NULL;
}

lks_tensor *lks_linalg_vecdot(lks_tensor *a, lks_tensor *b, int dim)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    lksi_attr attr = {.dim = {.dim = dim}};
    return ctx ? lksi_call1(ctx, "lks_linalg_vecdot", LKSI_OP_linalg_vecdot, 2, in, &attr) : NULL;
}

lks_tensor *lks_bilinear(lks_tensor *x1, lks_tensor *x2, lks_tensor *weight, lks_tensor *bias)
{
    lks_tensor *in[4] = {x1, x2, weight, bias};
    lks_context *ctx = lksi_ctx(4, in);
    return ctx ? lksi_call1(ctx, "lks_bilinear", LKSI_OP_bilinear, 4, in, NULL) : NULL;
}

/* --- chains --- */

typedef struct chain {
    int n;
    lks_tensor **x;
    double *cost; /* [n, n]: multiplications for i..j */
    int *cut;     /* [n, n]: i..j is (i..cut) (cut+1..j) */
} chain;

static lks_tensor *multiply(const chain *c, int i, int j)
{
    if (i == j) return c->x[i];
    int k = c->cut[i * c->n + j];
    return lks_matmul(multiply(c, i, k), multiply(c, k + 1, j));
}

static lks_tensor *chain_product(const char *where, int n, lks_tensor *const *x, int vectors)
{
    lks_context *ctx = lksi_ctx(n, x);
    char s[200], t[200];
    if (!ctx) return NULL;
    for (int i = 0; i < n; i++) {
        int end = vectors && n > 1 && (i == 0 || i == n - 1), nd = x[i]->v.ndim;
        if (x[i] == lks_none || (nd != 2 && !(end && nd == 1))) {
            lksi_fail(&ctx->base, x[i] == lks_none ? LKS_ERR_ARGUMENT : LKS_ERR_SHAPE, where,
                      "input %d is %s; 2 dims are needed%s", i,
                      x[i] == lks_none ? "LKS_NONE" : lksi_shape_text(&x[i]->v, s, sizeof s),
                      vectors ? " (1 for the first and last)" : "");
            return NULL;
        }
    }
    if (n == 1) return x[0];
    int64_t each = (int64_t)sizeof(lks_tensor *) + n * (int64_t)(sizeof(double) + sizeof(int));
    char *memory = lksi_alloc(&ctx->base, n * each);
    if (!memory) return NULL;
    chain c = {.n = n, .x = (lks_tensor **)(void *)memory};
    c.cost = (double *)(void *)(c.x + n);
    c.cut = (int *)(void *)(c.cost + (size_t)n * (size_t)n);
    lks_tensor *y = NULL;
    int first = x[0]->v.ndim == 1, last = x[n - 1]->v.ndim == 1;
    memcpy(c.x, x, (size_t)n * sizeof *x);
    if (first) c.x[0] = lks_unsqueeze(c.x[0], 0);
    if (last) c.x[n - 1] = lks_unsqueeze(c.x[n - 1], 1);
    if (!c.x[0] || !c.x[n - 1]) goto out;
    for (int i = 0; i + 1 < n; i++)
        if (c.x[i]->v.shape[1] != c.x[i + 1]->v.shape[0]) {
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "inner sizes differ: input %d %s @ input %d %s", i,
                      lksi_shape_text(&x[i]->v, s, sizeof s), i + 1, lksi_shape_text(&x[i + 1]->v, t, sizeof t));
            goto out;
        }
    for (int span = 1; span < n; span++)
        for (int i = 0; i + span < n; i++) {
            int j = i + span;
            double best = -1;
            for (int k = i; k < j; k++) {
                double cost = c.cost[i * n + k] + c.cost[(k + 1) * n + j] +
                              (double)c.x[i]->v.shape[0] * (double)c.x[k]->v.shape[1] * (double)c.x[j]->v.shape[1];
                if (best < 0 || cost < best) {
                    best = cost;
                    c.cut[i * n + j] = k;
                }
            }
            c.cost[i * n + j] = best;
        }
    y = multiply(&c, 0, n - 1);
    if (last && y) y = lks_squeeze(y, -1);
    if (first && y) y = lks_squeeze(y, 0);
out:
    lksi_free(&ctx->base, memory);
    return y;
}

lks_tensor *lks_multi_dot(int n, lks_tensor *const *x) { return chain_product("lks_multi_dot", n, x, 1); }
lks_tensor *lks_chain_matmul(int n, lks_tensor *const *x) { return chain_product("lks_chain_matmul", n, x, 0); }

/* --- contractions --- */

/* x with the dims that are contracted behind (or before) the others, as a matrix; `free` gets the others' sizes. */
static lks_tensor *as_matrix(lks_tensor *x, int n, const int *dims, int behind, int64_t *inner, int *nfree,
                             int64_t *free)
{
    int order[LKS_MAX_DIMS], at = 0, others[LKS_MAX_DIMS], k = 0, used = 0;
    int64_t rest = 1;
    *inner = 1;
    for (int i = 0; i < n; i++) {
        used |= 1 << dims[i];
        *inner *= x->v.shape[dims[i]];
    }
    for (int d = 0; d < x->v.ndim; d++)
        if (!(used >> d & 1)) {
            others[k++] = d;
            free[(*nfree)++] = x->v.shape[d];
            rest *= x->v.shape[d];
        }
    for (int i = 0; i < k && behind; i++) order[at++] = others[i];
    for (int i = 0; i < n; i++) order[at++] = dims[i];
    for (int i = 0; i < k && !behind; i++) order[at++] = others[i];
    int64_t shape[2] = {behind ? rest : *inner, behind ? *inner : rest};
    int sorted = 1;
    for (int i = 0; i < at; i++) sorted &= order[i] == i;
    return lks_reshape(sorted ? x : lks_permute(x, at, order), 2, shape);
}

lks_tensor *lks_tensordot(lks_tensor *a, lks_tensor *b, int n, const int *dims_a, const int *dims_b)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    const char *where = "lks_tensordot";
    char s[200], t[200];
    if (!ctx) return NULL;
    for (int i = 0; i < 2; i++)
        if (in[i] == lks_none || n < 0 || n > in[i]->v.ndim) {
            lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%d dims of %s cannot be contracted", n,
                      in[i] == lks_none ? "LKS_NONE" : lksi_shape_text(&in[i]->v, s, sizeof s));
            return NULL;
        }
    int da[LKS_MAX_DIMS], db[LKS_MAX_DIMS], seen_a = 0, seen_b = 0, nfree = 0;
    for (int i = 0; i < n; i++) {
        da[i] = dims_a ? dims_a[i] : a->v.ndim - n + i;
        db[i] = dims_b ? dims_b[i] : i;
        if (lksi_dim(ctx, where, a->v.ndim, &da[i]) || lksi_dim(ctx, where, b->v.ndim, &db[i])) return NULL;
        if (seen_a >> da[i] & 1 || seen_b >> db[i] & 1) {
            lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "a dim is named twice (pair %d)", i);
            return NULL;
        }
        seen_a |= 1 << da[i], seen_b |= 1 << db[i];
        if (a->v.shape[da[i]] != b->v.shape[db[i]]) {
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "dim %d of %s and dim %d of %s differ", da[i],
                      lksi_shape_text(&a->v, s, sizeof s), db[i], lksi_shape_text(&b->v, t, sizeof t));
            return NULL;
        }
    }
    if (a->v.ndim + b->v.ndim - 2 * n > LKS_MAX_DIMS) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "the result would have more than %d dims", LKS_MAX_DIMS);
        return NULL;
    }
    int64_t inner, free[2 * LKS_MAX_DIMS];
    lks_tensor *matrix[2];
    matrix[0] = as_matrix(a, n, da, 1, &inner, &nfree, free);
    matrix[1] = as_matrix(b, n, db, 0, &inner, &nfree, free);
    if (!matrix[0] || !matrix[1]) return NULL;
    return lksi_reshape_like(lksi_call1(ctx, where, LKSI_OP_dot, 2, matrix, NULL), nfree, free);
}
