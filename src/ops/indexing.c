/* SPDX-License-Identifier: BSD-3-Clause
 *
 * indexing.c - public functions that pick, place, cut, join, repeat and sort elements, and distances of rows.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>
#include <string.h>

/* --- along a dim --- */

static lks_tensor *along(const char *where, int op, int dim, int n, lks_tensor *const *in)
{
    lks_context *ctx = lksi_ctx(n, in);
    lksi_attr attr = {.dim = {.dim = dim}};
    return ctx ? lksi_call1(ctx, where, op, n, in, &attr) : NULL;
}

lks_tensor *lks_gather(lks_tensor *x, int dim, lks_tensor *index)
{
    lks_tensor *in[2] = {x, index};
    return along("lks_gather", LKSI_OP_gather, dim, 2, in);
}

lks_tensor *lks_scatter(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src)
{
    lks_tensor *in[3] = {x, index, src};
    return along("lks_scatter", LKSI_OP_scatter, dim, 3, in);
}

lks_tensor *lks_scatter_value(lks_tensor *x, int dim, lks_tensor *index, double value)
{
    if (!x || !index || x == lks_none || index == lks_none) return lks_scatter(x, dim, index, x);
    lks_tensor *one = lks_full(x->ctx, x->v.dtype, 0, NULL, value);
    return one ? lks_scatter(x, dim, index, lks_expand(one, index->v.ndim, index->v.shape)) : NULL;
}

lks_tensor *lks_scatter_add(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src)
{
    lks_tensor *in[3] = {x, index, src};
    return along("lks_scatter_add", LKSI_OP_scatter_add, dim, 3, in);
}

/* A 1-D (or 0-dim) index repeated over the other dims of `like`. dim is counted from the front. */
static lks_tensor *repeated(const char *where, lks_tensor *like, int *dim, lks_tensor *index)
{
    lks_tensor *in[2] = {like, index};
    lks_context *ctx = lksi_ctx(2, in);
    char text[200];
    if (!ctx) return NULL;
    if (like == lks_none || index == lks_none || index->v.ndim > 1) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "index %s must be 1-D",
                  index == lks_none ? "LKS_NONE" : lksi_shape_text(&index->v, text, sizeof text));
        return NULL;
    }
    int n = like->v.ndim;
    if (lksi_dim(ctx, where, n ? n : 1, dim)) return NULL;
    if (n == 0) return lks_reshape(index, 0, NULL);
    int64_t shape[LKS_MAX_DIMS], place[LKS_MAX_DIMS];
    for (int d = 0; d < n; d++) {
        shape[d] = d == *dim ? index->numel : like->v.shape[d];
        place[d] = d == *dim ? index->numel : 1;
    }
    return lks_expand(lks_reshape(index, n, place), n, shape);
}

lks_tensor *lks_index_select(lks_tensor *x, int dim, lks_tensor *index)
{
    lks_tensor *in[2] = {x, repeated("lks_index_select", x, &dim, index)};
    return in[1] ? along("lks_index_select", LKSI_OP_gather, dim, 2, in) : NULL;
}

/* src must have exactly index's length along dim, and x's other sizes. */
static int fits_exactly(const char *where, lks_tensor *index, lks_tensor *src)
{
    char s[200], t[200];
    if (src == lks_none || (src->v.ndim == index->v.ndim &&
                            !memcmp(src->v.shape, index->v.shape, (size_t)src->v.ndim * sizeof(int64_t))))
        return 1;
    lksi_fail(&index->ctx->base, LKS_ERR_SHAPE, where, "src %s, needed is %s", lksi_shape_text(&src->v, s, sizeof s),
              lksi_shape_text(&index->v, t, sizeof t));
    return 0;
}

lks_tensor *lks_index_add(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src, double alpha)
{
    if (!src) return NULL;
    lks_tensor *in[3] = {x, repeated("lks_index_add", x, &dim, index), src};
    if (!in[1] || !fits_exactly("lks_index_add", in[1], src)) return NULL;
    if (alpha != 1) in[2] = lks_mul_scalar(src, alpha);
    return along("lks_index_add", LKSI_OP_scatter_add, dim, 3, in);
}

lks_tensor *lks_index_copy(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src)
{
    if (!src) return NULL;
    lks_tensor *in[3] = {x, repeated("lks_index_copy", x, &dim, index), src};
    if (!in[1] || !fits_exactly("lks_index_copy", in[1], src)) return NULL;
    return along("lks_index_copy", LKSI_OP_index_copy, dim, 3, in);
}

lks_tensor *lks_take_along_dim(lks_tensor *x, lks_tensor *index, int dim)
{
    lks_tensor *in[2] = {x, index};
    lks_context *ctx = lksi_ctx(2, in);
    char s[200], t[200];
    if (!ctx) return NULL;
    if (x == lks_none || index == lks_none) return along("lks_take_along_dim", LKSI_OP_gather, dim, 2, in);
    int n = x->v.ndim;
    if (lksi_dim(ctx, "lks_take_along_dim", n ? n : 1, &dim)) return NULL;
    int64_t xs[LKS_MAX_DIMS], is[LKS_MAX_DIMS];
    int fits = index->v.ndim == n;
    for (int d = 0; fits && d < n; d++) {
        int64_t p = x->v.shape[d], q = index->v.shape[d];
        xs[d] = d == dim || q == 1 ? p : q;
        is[d] = d == dim || q != 1 ? q : p;
        fits = d == dim || p == q || p == 1 || q == 1;
    }
    if (!fits) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_take_along_dim", "%s and index %s do not broadcast outside dim %d",
                  lksi_shape_text(&x->v, s, sizeof s), lksi_shape_text(&index->v, t, sizeof t), dim);
        return NULL;
    }
    in[0] = lks_expand(x, n, xs);
    in[1] = lks_expand(index, n, is);
    return along("lks_take_along_dim", LKSI_OP_gather, dim, 2, in);
}

/* --- by several indices --- */

typedef struct picks {
    int k, named[LKS_MAX_DIMS]; /* dims that have an index, in order */
    int order[LKS_MAX_DIMS];    /* x's dims with the named ones first */
    int identity;               /* order changes nothing */
    int nb, at;                 /* dims of the indices' broadcast shape; where the result has them */
    int64_t shape[LKS_MAX_DIMS];
} picks;

static lks_status examine(const char *where, lks_context *ctx, lks_tensor *x, int n, lks_tensor *const *index, picks *p)
{
    char s[200];
    memset(p, 0, sizeof *p);
    if (x == lks_none || n < 1 || n > x->v.ndim)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "%d indices for %s", n,
                         x == lks_none ? "LKS_NONE" : lksi_shape_text(&x->v, s, sizeof s));
    lksi_view b = {.ndim = 0}, both;
    for (int d = 0; d < n; d++) {
        if (index[d] == lks_none) continue;
        if (!lksi_broadcast(&b, &index[d]->v, &both))
            return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "index %d %s does not broadcast with those before it",
                             d, lksi_shape_text(&index[d]->v, s, sizeof s));
        b.ndim = both.ndim;
        memcpy(b.shape, both.shape, sizeof b.shape);
        p->named[p->k++] = d;
    }
    if (!p->k) return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "all indices are LKS_NONE");
    p->nb = b.ndim;
    memcpy(p->shape, b.shape, sizeof p->shape);
    int m = 0, named = 0;
    for (int i = 0; i < p->k; i++) {
        p->order[m++] = p->named[i];
        named |= 1 << p->named[i];
    }
    for (int d = 0; d < x->v.ndim; d++)
        if (!(named >> d & 1)) p->order[m++] = d;
    p->identity = 1;
    for (int d = 0; d < m; d++) p->identity &= p->order[d] == d;
    /* Side by side: the result has their dims where they were; else in front. */
    p->at = p->named[p->k - 1] - p->named[0] == p->k - 1 ? p->named[0] : 0;
    return LKS_OK;
}

/* Dims [B..., rest...] moved so that B starts at `at`; or back. */
static lks_tensor *move_block(lks_tensor *y, int nb, int at, int back)
{
    if (!y || at == 0 || nb == 0) return y;
    int order[LKS_MAX_DIMS], inverse[LKS_MAX_DIMS], n = y->v.ndim, m = 0;
    for (int d = 0; d < at; d++) order[m++] = nb + d;
    for (int d = 0; d < nb; d++) order[m++] = d;
    for (int d = nb + at; d < n; d++) order[m++] = d;
    for (int d = 0; d < n; d++) inverse[order[d]] = d;
    return lks_permute(y, n, back ? inverse : order);
}

lks_tensor *lks_index(lks_tensor *x, int n, lks_tensor *const *index)
{
    lks_context *ctx = lksi_ctx(1, &x);
    lks_tensor *in[1 + LKS_MAX_DIMS];
    picks p;
    if (!ctx || (n > 0 && lksi_any_null(n, index)) || examine("lks_index", ctx, x, n, index, &p)) return NULL;
    in[0] = p.identity ? x : lks_permute(x, x->v.ndim, p.order);
    for (int i = 0; i < p.k; i++) in[1 + i] = index[p.named[i]];
    lksi_attr attr = {.put = {.n = p.k}};
    return move_block(lksi_call1(ctx, "lks_index", LKSI_OP_index, 1 + p.k, in, &attr), p.nb, p.at, 0);
}

lks_tensor *lks_index_put(lks_tensor *x, int n, lks_tensor *const *index, lks_tensor *values, int accumulate)
{
    lks_tensor *in[2 + LKS_MAX_DIMS] = {x, values};
    lks_context *ctx = lksi_ctx(2, in);
    picks p;
    if (!ctx || (n > 0 && lksi_any_null(n, index)) || examine("lks_index_put", ctx, x, n, index, &p)) return NULL;
    if (!p.identity) in[0] = lks_permute(x, x->v.ndim, p.order);
    if (p.at > 0 && p.nb > 0 && values != lks_none) {
        int64_t whole[2 * LKS_MAX_DIMS];
        int m = 0;
        for (int d = 0; d < p.at; d++) whole[m++] = x->v.shape[d];
        for (int d = 0; d < p.nb; d++) whole[m++] = p.shape[d];
        for (int d = p.at + p.k; d < x->v.ndim; d++) whole[m++] = x->v.shape[d];
        in[1] = move_block(lks_expand(values, m, whole), p.nb, p.at, 1);
    }
    for (int i = 0; i < p.k; i++) in[2 + i] = index[p.named[i]];
    lksi_attr attr = {.put = {.n = p.k, .accumulate = accumulate != 0}};
    lks_tensor *y = lksi_call1(ctx, "lks_index_put", LKSI_OP_index_put, 2 + p.k, in, &attr);
    if (!y || p.identity) return y;
    int back[LKS_MAX_DIMS];
    for (int d = 0; d < y->v.ndim; d++) back[p.order[d]] = d;
    return lks_permute(y, y->v.ndim, back);
}

lks_tensor *lks_one_hot(lks_tensor *index, int64_t classes)
{
    lksi_attr attr = {.embedding = {.rows = classes}};
    return index ? lksi_call1(index->ctx, "lks_one_hot", LKSI_OP_one_hot, 1, &index, &attr) : NULL;
}

/* --- numbers in place of tensors --- */

lks_tensor *lks_masked_fill(lks_tensor *x, lks_tensor *mask, double value)
{
    lks_tensor *in[2] = {x, mask};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx || x == lks_none) return NULL;
    lks_tensor *one = lks_full(ctx, x->v.dtype, 0, NULL, value);
    return one ? lks_where(mask, one, x) : NULL;
}

lks_tensor *lks_where_scalar(lks_tensor *condition, lks_tensor *a, double b)
{
    lks_tensor *in[2] = {condition, a};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx || a == lks_none) return NULL;
    lks_tensor *one = lks_full(ctx, a->v.dtype, 0, NULL, b);
    return one ? lks_where(condition, a, one) : NULL;
}

/* --- parts --- */

static lks_tensor *one(const char *where, int op, lks_tensor *x, const lksi_attr *attr)
{
    return x ? lksi_call1(x->ctx, where, op, 1, &x, attr) : NULL;
}

lks_tensor *lks_pad(lks_tensor *x, int n, const int64_t *pads, double value)
{
    if (!x) return NULL;
    lksi_attr attr = {.pad = {.value = value}};
    char s[200];
    if (n < 0 || n % 2 || n / 2 > x->v.ndim) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_pad", "%d numbers for %s; two a dim are needed", n,
                  lksi_shape_text(&x->v, s, sizeof s));
        return NULL;
    }
    for (int i = 0; i < n / 2; i++) {
        attr.pad.before[x->v.ndim - 1 - i] = pads[2 * i];
        attr.pad.after[x->v.ndim - 1 - i] = pads[2 * i + 1];
    }
    return one("lks_pad", LKSI_OP_pad, x, &attr);
}

lks_tensor *lks_triu(lks_tensor *x, int64_t diagonal)
{
    lksi_attr attr = {.diagonal = {.offset = diagonal, .upper = 1}};
    return one("lks_triu", LKSI_OP_triu, x, &attr);
}

lks_tensor *lks_tril(lks_tensor *x, int64_t diagonal)
{
    lksi_attr attr = {.diagonal = {.offset = diagonal}};
    return one("lks_tril", LKSI_OP_triu, x, &attr);
}

lks_tensor *lks_diagonal(lks_tensor *x, int64_t offset, int d0, int d1)
{
    lksi_attr attr = {.diagonal = {.offset = offset, .d0 = d0, .d1 = d1}};
    return one("lks_diagonal", LKSI_OP_diagonal, x, &attr);
}

lks_tensor *lks_diag_embed(lks_tensor *x, int64_t offset, int d0, int d1)
{
    if (!x) return NULL;
    int64_t n = x->v.ndim > 0 ? x->v.shape[x->v.ndim - 1] : 0, size;
    if (offset < -INT64_MAX || !lksi_add_fits(n, offset < 0 ? -offset : offset, &size)) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_diag_embed", "offset %lld", (long long)offset);
        return NULL;
    }
    lksi_attr attr = {.diagonal = {.offset = offset, .d0 = d0, .d1 = d1, .rows = size, .columns = size}};
    return one("lks_diag_embed", LKSI_OP_diag_embed, x, &attr);
}

lks_tensor *lks_diag(lks_tensor *x, int64_t offset)
{
    char s[200];
    if (!x) return NULL;
    if (x->v.ndim == 1) return lks_diag_embed(x, offset, 0, 1);
    if (x->v.ndim == 2) return lks_clone(lks_diagonal(x, offset, 0, 1));
    lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_diag", "%s is neither 1-D nor 2-D",
              lksi_shape_text(&x->v, s, sizeof s));
    return NULL;
}

lks_tensor *lks_trace(lks_tensor *x) { return one("lks_trace", LKSI_OP_trace, x, NULL); }

lks_tensor *lks_cross(lks_tensor *a, lks_tensor *b, int dim)
{
    lks_tensor *in[2] = {a, b};
    return along("lks_cross", LKSI_OP_cross, dim, 2, in);
}

lks_tensor *lks_flip(lks_tensor *x, int n, const int *dims)
{
    if (!x) return NULL;
    lksi_attr attr = {.reduce = {.mask = 0}};
    for (int i = 0; i < n; i++) {
        int d = dims[i];
        if (lksi_dim(x->ctx, "lks_flip", x->v.ndim, &d)) return NULL;
        if (attr.reduce.mask >> d & 1) {
            lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_flip", "dim %d is named twice", d);
            return NULL;
        }
        attr.reduce.mask |= 1 << d;
    }
    return one("lks_flip", LKSI_OP_flip, x, &attr);
}

lks_tensor *lks_roll(lks_tensor *x, int n, const int64_t *shifts, const int *dims)
{
    for (int i = 0; x && i < n; i++) {
        int d = dims[i];
        if (lksi_dim(x->ctx, "lks_roll", x->v.ndim, &d)) return NULL;
        int64_t size = x->v.shape[d], shift = size ? shifts[i] % size : 0;
        if (shift < 0) shift += size;
        if (shift == 0) continue;
        lks_tensor *part[2] = {lks_slice(x, d, size - shift, size, 1), lks_slice(x, d, 0, size - shift, 1)};
        x = lks_cat(2, part, d);
    }
    return x;
}

lks_tensor *lks_repeat(lks_tensor *x, int n, const int64_t *times)
{
    if (!x) return NULL;
    char s[200];
    int lead = n - x->v.ndim;
    int64_t shape[LKS_MAX_DIMS] = {0};
    if (lead < 0 || n > LKS_MAX_DIMS) {
        lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_repeat", "%d counts for %s; one a dim, %d at most, are needed", n,
                  lksi_shape_text(&x->v, s, sizeof s), LKS_MAX_DIMS);
        return NULL;
    }
    for (int d = 0; d < n; d++) {
        shape[d] = d < lead ? 1 : x->v.shape[d - lead];
        if (times[d] < 0) {
            lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_repeat", "dim %d is repeated %lld times", d,
                      (long long)times[d]);
            return NULL;
        }
    }
    x = lksi_reshape_like(x, n, shape);
    for (int d = 0; x && d < n; d++) {
        if (times[d] == 1) continue;
        /* [a, s, b] seen as [a, 1, s b], repeated in the middle */
        int64_t fold[3] = {1, 1, 1};
        if (!lksi_mul_fits(times[d], shape[d], &shape[d])) {
            lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_repeat", "dim %d becomes too large", d);
            return NULL;
        }
        for (int e = 0; e < n; e++) fold[e < d ? 0 : 2] *= x->v.shape[e];
        x = lks_reshape(x, 3, fold);
        fold[1] = times[d];
        x = x ? lks_reshape(lks_expand(x, 3, fold), n, shape) : NULL;
    }
    return x;
}

lks_tensor *lks_stack(int n, lks_tensor *const *x, int dim)
{
    lks_context *ctx = lksi_ctx(n, x);
    char s[200], t[200];
    if (!ctx) return NULL;
    lks_tensor **with = lksi_alloc(&ctx->base, n * (int64_t)sizeof *with), *y = NULL;
    if (!with) return NULL;
    int good = 1;
    for (int i = 0; i < n && good; i++) {
        const lksi_view *v = &x[i]->v, *first = &x[0]->v;
        good = x[i] != lks_none && x[0] != lks_none && v->ndim == first->ndim &&
               !memcmp(v->shape, first->shape, (size_t)v->ndim * sizeof(int64_t));
        if (!good)
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_stack", "input %d %s is not like input 0 %s", i,
                      x[i] == lks_none ? "LKS_NONE" : lksi_shape_text(v, s, sizeof s),
                      x[0] == lks_none ? "LKS_NONE" : lksi_shape_text(first, t, sizeof t));
        else good = (with[i] = lks_unsqueeze(x[i], dim)) != NULL;
    }
    if (good) y = lks_cat(n, with, dim);
    lksi_free(&ctx->base, with);
    return y;
}

int lks_split_sizes(lks_tensor *x, int n, const int64_t *sizes, int dim, lks_tensor **out)
{
    if (!x) return LKS_ERR_ARGUMENT;
    TRY(lksi_dim(x->ctx, "lks_split_sizes", x->v.ndim, &dim));
    int64_t at = 0;
    for (int i = 0; i < n; i++)
        if (sizes[i] < 0 || !lksi_add_fits(at, sizes[i], &at)) at = -1, n = 0;
    if (at != x->v.shape[dim])
        return lksi_fail(&x->ctx->base, LKS_ERR_SHAPE, "lks_split_sizes", "sizes do not add up to dim %d, %lld",
                         dim, (long long)x->v.shape[dim]);
    at = 0;
    for (int i = 0; i < n; at += sizes[i++])
        if (!(out[i] = lks_slice(x, dim, at, at + sizes[i], 1))) return x->ctx->base.code;
    return n;
}

/* --- sorting --- */

static lks_status sort_k(const char *where, lks_tensor *x, int64_t k, int dim, int descending, lks_tensor **values,
                         lks_tensor **indices)
{
    lks_tensor *out[2] = {NULL, NULL};
    if (values) *values = NULL;
    if (indices) *indices = NULL;
    if (!x) return LKS_ERR_ARGUMENT;
    int n = x->v.ndim;
    if (x == lks_none) return LKS_ERR_ARGUMENT;
    TRY(lksi_dim(x->ctx, where, n ? n : 1, &dim));
    lksi_attr attr = {.sort = {.dim = dim, .descending = descending != 0, .k = k < 0 ? n ? x->v.shape[dim] : 1 : k}};
    TRY(lksi_call(x->ctx, where, LKSI_OP_sort, 1, &x, &attr, 2, out));
    if (values) *values = out[0];
    if (indices) *indices = out[1];
    return LKS_OK;
}

lks_status lks_sort(lks_tensor *x, int dim, int descending, lks_tensor **values, lks_tensor **indices)
{
    return sort_k("lks_sort", x, -1, dim, descending, values, indices);
}

lks_tensor *lks_argsort(lks_tensor *x, int dim, int descending)
{
    lks_tensor *indices;
    return sort_k("lks_argsort", x, -1, dim, descending, NULL, &indices) == LKS_OK ? indices : NULL;
}

lks_status lks_topk(lks_tensor *x, int64_t k, int dim, int largest, lks_tensor **values, lks_tensor **indices)
{
    if (k < 0 && x && x != lks_none) {
        if (values) *values = NULL;
        if (indices) *indices = NULL;
        return lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_topk", "k is %lld", (long long)k);
    }
    return sort_k("lks_topk", x, k, dim, largest, values, indices);
}

/* --- quantiles: two neighbours of the sorted line, and a place between them --- */

/* 1 where an int64 number is odd. */
static lks_tensor *is_odd(lks_tensor *t)
{
    lks_tensor *half = lks_to(lks_mul_scalar(lks_to(t, LKS_F64), 0.5), LKS_I64);
    return lks_ne(lks_mul_scalar(half, 2), t);
}

/* sorted [..., n], rank float64 [..., nq] (0 to n - 1): values [..., nq] in float32 or wider. */
static lks_tensor *between(lks_tensor *sorted, lks_tensor *rank, int mode)
{
    lks_tensor *low = lks_to(rank, LKS_I64), *part = lks_sub(rank, lks_to(low, LKS_F64));
    if (!low || !part) return NULL;
    lks_context *ctx = rank->ctx;
    lks_tensor *zero = lks_zeros(ctx, LKS_F64, 0, NULL), *half = lks_full(ctx, LKS_F64, 0, NULL, 0.5);
    lks_tensor *up = lks_gt(part, zero);
    if (mode == LKS_QUANTILE_NEAREST) { /* halves to the even one */
        lks_tensor *beyond = lks_gt(part, half), *tie = lks_eq(part, half);
        up = lks_where(tie, is_odd(low), beyond);
    }
    lks_tensor *high = lks_add(low, lks_to(up, LKS_I64));
    if (mode == LKS_QUANTILE_LOWER) high = low;
    if (mode == LKS_QUANTILE_HIGHER || mode == LKS_QUANTILE_NEAREST) low = high;
    if (!low || !high) return NULL;
    int dim = sorted->v.ndim - 1;
    lks_dtype wide = sorted->v.dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    lks_tensor *a = lks_to(lks_gather(sorted, dim, low), wide);
    if (low == high) return a;
    lks_tensor *b = lks_to(lks_gather(sorted, dim, high), wide);
    lks_tensor *w = lks_to(mode == LKS_QUANTILE_MIDPOINT ? half : part, wide);
    lks_tensor *y = lks_add(a, lks_mul(w, lks_sub(b, a)));
    return lks_where(lks_eq(a, b), a, y); /* equal infinities have no difference */
}

static lks_tensor *quantiles(lks_context *ctx, lks_tensor *x, int nq, const double *q, int mode, int skip_nan)
{
    int64_t n = x->v.shape[x->v.ndim - 1], shape[LKS_MAX_DIMS], one_q[LKS_MAX_DIMS];
    int nd = x->v.ndim;
    for (int d = 0; d < nd; d++) {
        shape[d] = d == nd - 1 ? nq : x->v.shape[d];
        one_q[d] = d == nd - 1 ? nq : 1;
    }
    lks_tensor *sorted, *qs = lks_from_host(ctx, LKS_F64, nd, one_q, q), *rank;
    if (!qs || lks_sort(x, nd - 1, 0, &sorted, NULL)) return NULL;
    if (skip_nan) {
        int last = nd - 1;
        lks_tensor *count = lks_sum(lks_eq(x, x), 1, &last, 1, LKS_DTYPE_NONE);
        rank = lks_relu(lks_mul(qs, lks_add_scalar(lks_to(count, LKS_F64), -1)));
    } else {
        rank = lks_expand(lks_mul_scalar(qs, (double)(n - 1)), nd, shape);
    }
    lks_tensor *y = between(sorted, rank, mode);
    if (!y) return NULL;
    if (!skip_nan) { /* NaN are last: one is there if the last is one */
        lks_tensor *last = lks_slice(sorted, nd - 1, n - 1, n, 1);
        y = lks_where(lks_ne(last, last), lks_full(ctx, y->v.dtype, 0, NULL, NAN), y);
    }
    return lks_to(y, x->v.dtype);
}

static lks_tensor *quantile(const char *where, lks_tensor *x, int nq, const double *q, int dim, int keepdim, int mode,
                            int skip_nan)
{
    LKSI_GUARD;
    lks_tensor *work;
    char s[200];
    if (!x || x == lks_none) return NULL;
    lks_context *ctx = x->ctx;
    int nd = x->v.ndim, all = dim == LKS_DIM_ALL;
    if (!lks_dtype_is_float(x->v.dtype)) {
        lksi_fail(&ctx->base, LKS_ERR_DTYPE, where, "%s; a floating dtype is needed", lks_dtype_name(x->v.dtype));
        return NULL;
    }
    if (!all && lksi_dim(ctx, where, nd ? nd : 1, &dim)) return NULL;
    int good = nq > 0 && mode >= LKS_QUANTILE_LINEAR && mode <= LKS_QUANTILE_NEAREST;
    for (int i = 0; i < nq && good; i++) good = q[i] >= 0 && q[i] <= 1;
    if (!good) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where,
                  "%d values q, interpolation %d: one q at least, in [0, 1], and 0 to 4 are needed", nq, mode);
        return NULL;
    }
    if (all ? x->numel == 0 : nd && x->v.shape[dim] == 0) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "there is nothing in %s to choose from",
                  lksi_shape_text(&x->v, s, sizeof s));
        return NULL;
    }
    if (nd == LKS_MAX_DIMS && nq > 1 && keepdim) {
        lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "the result would have more than %d dims", LKS_MAX_DIMS);
        return NULL;
    }
    if (lksi_composite_begin(ctx, where, LKSI_OP_quantile, 1, &x, &work)) return NULL;
    int order[LKS_MAX_DIMS], m = 0;
    int64_t flat = -1, kept[LKS_MAX_DIMS + 1];
    for (int d = 0; d < nd; d++)
        if (d != dim) order[m++] = d;
    if (!all && nd) order[m++] = dim;
    lks_tensor *lines = work;
    if (all || nd == 0) lines = lks_reshape(work, 1, &flat);
    else if (dim != nd - 1) lines = lks_permute(work, nd, order);
    lks_tensor *y = lines ? quantiles(ctx, lines, nq, q, mode, skip_nan) : NULL;
    if (y && nq == 1) y = lks_select(y, -1, 0);
    else if (y && y->v.ndim > 1) { /* q first */
        order[0] = y->v.ndim - 1;
        for (int d = 1; d < y->v.ndim; d++) order[d] = d - 1;
        y = lks_permute(y, y->v.ndim, order);
    }
    if (y && keepdim && nd) {
        m = 0;
        if (nq > 1) kept[m++] = nq;
        for (int d = 0; d < nd; d++) kept[m++] = all || d == dim ? 1 : x->v.shape[d];
        y = lks_reshape(y, m, kept);
    }
    lksi_composite_end(ctx, LKSI_OP_quantile);
    return y;
}

lks_tensor *lks_quantile(lks_tensor *x, int nq, const double *q, int dim, int keepdim, int interpolation)
{
    return quantile("lks_quantile", x, nq, q, dim, keepdim, interpolation, 0);
}

lks_tensor *lks_nanquantile(lks_tensor *x, int nq, const double *q, int dim, int keepdim, int interpolation)
{
    return quantile("lks_nanquantile", x, nq, q, dim, keepdim, interpolation, 1);
}

/* --- distances --- */

lks_tensor *lks_cdist(lks_tensor *a, lks_tensor *b, double p)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    lksi_attr attr = {.distance = {.p = p}};
    return ctx ? lksi_call1(ctx, "lks_cdist", LKSI_OP_cdist, 2, in, &attr) : NULL;
}

lks_tensor *lks_pdist(lks_tensor *x, double p)
{
    lksi_attr attr = {.distance = {.p = p}};
    return one("lks_pdist", LKSI_OP_pdist, x, &attr);
}
