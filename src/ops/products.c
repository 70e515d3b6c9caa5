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

/* --- einsum --- */

/* Letters are 0..51; dims of an ellipsis 52.., counted from the last. */
enum { LABELS = 52 + LKS_MAX_DIMS };

typedef struct labelled {
    lks_tensor *t;
    int label[LKS_MAX_DIMS];
} labelled;

static int letter(char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= 'A' && c <= 'Z' ? c - 'A' : -1; }

/* Reads labels up to ',' or '-' or the end; ndim < 0: any number, an ellipsis stands for `dots` dims. -1: wrong. */
static int read_labels(const char **at, int ndim, int dots, int *label)
{
    int n = 0, rest = 0;
    for (const char *c = *at; *c && *c != ',' && *c != '-'; c++) rest += letter(*c) >= 0;
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        if (**at == ' ') continue;
        if (!strncmp(*at, "...", 3)) {
            int count = ndim < 0 ? dots : ndim - rest;
            if (count < 0 || n + count > LKS_MAX_DIMS) return -1;
            for (int i = 0; i < count; i++) label[n++] = 52 + count - 1 - i;
            *at += 2;
            ndim = ndim < 0 ? ndim : rest + count;
        } else if (letter(**at) < 0 || n == LKS_MAX_DIMS) {
            return -1;
        } else {
            label[n++] = letter(**at);
        }
    }
    return ndim >= 0 && n != ndim ? -1 : n;
}

static int place_of(const labelled *x, int label)
{
    for (int d = 0; d < x->t->v.ndim; d++)
        if (x->label[d] == label) return d;
    return -1;
}

/* A letter twice: the diagonal, which comes last. */
static int take_diagonals(labelled *x)
{
    for (int d = 0; x->t && d < x->t->v.ndim; d++)
        for (int e = d + 1; x->t && e < x->t->v.ndim; e++) {
            if (x->label[d] != x->label[e]) continue;
            int n = 0, twice = x->label[d];
            for (int i = 0; i < x->t->v.ndim; i++)
                if (i != d && i != e) x->label[n++] = x->label[i];
            x->label[n] = twice;
            if (x->t->v.shape[d] != x->t->v.shape[e]) return 0;
            x->t = lks_diagonal(x->t, 0, d, e);
            d = -1;
            break;
        }
    return 1;
}

/* Sums over the labels that are not in `kept`. */
static void sum_others(labelled *x, const char *kept)
{
    int dims[LKS_MAX_DIMS], n = 0, m = 0;
    for (int d = 0; x->t && d < x->t->v.ndim; d++)
        if (!kept[x->label[d]]) dims[n++] = d;
    for (int d = 0; x->t && d < x->t->v.ndim; d++)
        if (kept[x->label[d]]) x->label[m++] = x->label[d];
    if (n) x->t = lks_sum(x->t, n, dims, 0, LKS_DTYPE_NONE);
}

/* x with its dims in the order of the lists, each list folded into one; a dim of size 1 is repeated. */
static lks_tensor *folded(const labelled *x, const int64_t *size, int lists, const int *const *list, const int *count)
{
    int dims[LKS_MAX_DIMS], n = 0;
    int64_t wide[LKS_MAX_DIMS], shape[3];
    for (int l = 0; l < lists; l++) {
        shape[l] = 1;
        for (int i = 0; i < count[l]; i++) {
            dims[n] = place_of(x, list[l][i]);
            shape[l] *= wide[n++] = size[list[l][i]];
        }
    }
    return lksi_reshape_like(lks_expand(lks_permute(x->t, n, dims), n, wide), lists, shape);
}

/* a becomes the product of a and b, summed over what is in both and not kept. */
static void contract(labelled *a, labelled *b, const char *kept, const int64_t *size)
{
    int both[LKS_MAX_DIMS], summed[LKS_MAX_DIMS], left[LKS_MAX_DIMS], right[LKS_MAX_DIMS];
    int nb = 0, ns = 0, nl = 0, nr = 0;
    char in_b[LABELS] = {0}, need_a[LABELS], need_b[LABELS];
    memcpy(need_a, kept, LABELS), memcpy(need_b, kept, LABELS);
    for (int d = 0; d < b->t->v.ndim; d++) in_b[b->label[d]] = need_a[b->label[d]] = 1;
    for (int d = 0; d < a->t->v.ndim; d++) need_b[a->label[d]] = 1;
    sum_others(a, need_a), sum_others(b, need_b);
    if (!a->t || !b->t) {
        a->t = NULL;
        return;
    }
    for (int d = 0; d < a->t->v.ndim; d++) {
        int l = a->label[d];
        if (!in_b[l]) left[nl++] = l;
        else if (kept[l]) both[nb++] = l;
        else summed[ns++] = l;
    }
    for (int d = 0; d < b->t->v.ndim; d++)
        if (place_of(a, b->label[d]) < 0) right[nr++] = b->label[d];
    if (nb + nl + nr > LKS_MAX_DIMS) {
        lksi_fail(&a->t->ctx->base, LKS_ERR_SHAPE, "lks_einsum", "a product has more than %d dims", LKS_MAX_DIMS);
        a->t = NULL;
        return;
    }
    lks_tensor *x = folded(a, size, 3, (const int *[]){both, left, summed}, (int[]){nb, nl, ns});
    lks_tensor *y = folded(b, size, 3, (const int *[]){both, summed, right}, (int[]){nb, ns, nr});
    int64_t shape[LKS_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < nb; i++) a->label[n] = both[i], shape[n++] = size[both[i]];
    for (int i = 0; i < nl; i++) a->label[n] = left[i], shape[n++] = size[left[i]];
    for (int i = 0; i < nr; i++) a->label[n] = right[i], shape[n++] = size[right[i]];
    a->t = x && y ? lksi_reshape_like(lks_bmm(x, y), n, shape) : NULL;
}

static lks_tensor *refuse_equation(lks_context *ctx, const char *equation, const char *what)
{
    if (!ctx->base.code)
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_einsum", "\"%s\": %s", equation ? equation : "(null)", what);
    return NULL;
}

lks_tensor *lks_einsum(const char *equation, int n, lks_tensor *const *x)
{
    lks_context *ctx = n > 0 ? lksi_ctx(n, x) : NULL;
    int64_t size[LABELS];
    int seen[LABELS] = {0}, out[LKS_MAX_DIMS], nout, dots = 0;
    const char *at = equation;
    if (!ctx) return NULL;
    if (!equation || n > 16) return refuse_equation(ctx, equation, "no equation, or more than 16 tensors");
    for (int l = 0; l < LABELS; l++) size[l] = 1;
    labelled op[16];
    for (int i = 0; i < n; i++) {
        op[i].t = x[i];
        if (x[i] == lks_none) return refuse_equation(ctx, equation, "LKS_NONE has no dims");
        if (read_labels(&at, x[i]->v.ndim, 0, op[i].label) < 0 || *at != (i + 1 < n ? ',' : *at == '-' ? '-' : 0))
            return refuse_equation(ctx, equation, "a tensor's letters are not its dims");
        if (*at == ',') at++;
        for (int d = 0; d < x[i]->v.ndim; d++) {
            int l = op[i].label[d];
            int64_t s = x[i]->v.shape[d];
            if (l >= 52 && l - 51 > dots) dots = l - 51;
            seen[l]++;
            if (s != 1 && size[l] != 1 && s != size[l])
                return refuse_equation(ctx, equation, "a letter stands for two sizes");
            if (s != 1) size[l] = s;
        }
        if (!take_diagonals(&op[i])) return refuse_equation(ctx, equation, "the sizes of a diagonal differ");
        if (!op[i].t) return NULL;
    }
    if (*at == '-') {
        if (at[1] != '>') return refuse_equation(ctx, equation, "\"->\" is expected");
        at += 2;
        nout = read_labels(&at, -1, dots, out);
        if (nout < 0 || *at) return refuse_equation(ctx, equation, "the result's letters are not understood");
        for (int i = 0; i < nout; i++)
            for (int j = 0; j <= i; j++)
                if (!seen[out[i]] || (j < i && out[i] == out[j]))
                    return refuse_equation(ctx, equation, "a letter of the result is new, or there twice");
    } else {
        nout = 0;
        for (int l = dots - 1; l >= 0 && nout < LKS_MAX_DIMS; l--) out[nout++] = 52 + l;
        for (int l = 0; l < 52; l++)
            if (seen[l] == 1 && nout < LKS_MAX_DIMS) out[nout++] = l;
    }
    if (lks_scope_begin(ctx) != LKS_OK) return NULL;
    for (int i = 1; i < n && op[0].t; i++) {
        char kept[LABELS] = {0};
        for (int k = 0; k < nout; k++) kept[out[k]] = 1;
        for (int k = i + 1; k < n; k++)
            for (int d = 0; d < op[k].t->v.ndim; d++) kept[op[k].label[d]] = 1;
        contract(&op[0], &op[i], kept, size);
    }
    char kept[LABELS] = {0};
    int dims[LKS_MAX_DIMS];
    for (int k = 0; k < nout; k++) kept[out[k]] = 1;
    if (op[0].t) sum_others(&op[0], kept);
    for (int k = 0; op[0].t && k < nout; k++) dims[k] = place_of(&op[0], out[k]);
    lks_tensor *y = op[0].t ? lks_permute(op[0].t, nout, dims) : NULL;
    return lks_scope_leave(ctx, y);
}
