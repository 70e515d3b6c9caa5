/* SPDX-License-Identifier: BSD-3-Clause
 *
 * basic.c - public functions of copies, fills, elementwise ops, reductions, random fills: arguments to attributes, then
 * the door.
 */
#include "ops/ops.h"
#include "base/guard.h"

#include <math.h>
#include <string.h>

static lks_tensor *unary(const char *where, int op, lks_tensor *x, const lksi_attr *attr)
{
    return x ? lksi_call1(x->ctx, where, op, 1, &x, attr) : NULL;
}

static lks_tensor *binary(const char *where, int op, lks_tensor *a, lks_tensor *b)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    return ctx ? lksi_call1(ctx, where, op, 2, in, NULL) : NULL;
}

#define BINARY(name)                                                                                           \
    lks_tensor *lks_##name(lks_tensor *a, lks_tensor *b) { return binary("lks_" #name, LKSI_OP_##name, a, b); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(eq)
BINARY(ne)
BINARY(lt)
BINARY(le)
BINARY(gt)
BINARY(ge)

#define UNARY(name)                                                                                            \
    lks_tensor *lks_##name(lks_tensor *x) { return unary("lks_" #name, LKSI_OP_##name, x, NULL); }
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(relu)
UNARY(clone)

lks_tensor *lks_affine(lks_tensor *x, double scale, double shift)
{
    lksi_attr attr = {.affine = {.scale = scale, .shift = shift}};
    return unary("lks_affine", LKSI_OP_affine, x, &attr);
}

lks_tensor *lks_add_scalar(lks_tensor *x, double v) { return lks_affine(x, 1, v); }
lks_tensor *lks_mul_scalar(lks_tensor *x, double v) { return lks_affine(x, v, 0); }
lks_tensor *lks_neg(lks_tensor *x) { return lks_affine(x, -1, 0); }

lks_tensor *lks_gelu(lks_tensor *x, int tanh_form)
{
    lksi_attr attr = {.gelu = {.tanh_form = tanh_form != 0}};
    return unary("lks_gelu", LKSI_OP_gelu, x, &attr);
}

lks_tensor *lks_where(lks_tensor *condition, lks_tensor *a, lks_tensor *b)
{
    lks_tensor *in[3] = {condition, a, b};
    lks_context *ctx = lksi_ctx(3, in);
    return ctx ? lksi_call1(ctx, "lks_where", LKSI_OP_where, 3, in, NULL) : NULL;
}

/* --- copies --- */

lks_tensor *lks_contiguous(lks_tensor *x)
{
    return x && lksi_is_contiguous(&x->v) ? x : lks_clone(x);
}

lks_tensor *lks_to(lks_tensor *x, lks_dtype dtype)
{
    if (!x || x->v.dtype == dtype) return x;
    lksi_attr attr = {.cast = {.dtype = dtype}};
    return unary("lks_to", LKSI_OP_cast, x, &attr);
}

static lks_status writable(const char *where, lks_tensor *dst)
{
    if (dst == lks_none) return LKS_ERR_ARGUMENT;
    if (dst->requires_grad && !dst->ctx->no_grad)
        return lksi_fail(
            &dst->ctx->base, LKS_ERR_STATE, where,
            "a tensor that requires a gradient is changed in place while ops are recorded (put the call between "
            "lks_no_grad_begin and lks_no_grad_end)");
    return LKS_OK;
}

/* 1 if the memory from first to last element of one meets that of the other. */
static int overlap(const lksi_view *a, const lksi_view *b)
{
    const lksi_view *v[2] = {a, b};
    const char *from[2], *to[2];
    for (int i = 0; i < 2; i++) {
        int64_t last = 0;
        for (int d = 0; d < v[i]->ndim; d++) {
            if (v[i]->shape[d] == 0) return 0;
            last += (v[i]->shape[d] - 1) * v[i]->stride[d];
        }
        from[i] = v[i]->data;
        to[i] = from[i] + (last + 1) * lks_dtype_size(v[i]->dtype);
    }
    return from[0] < to[1] && from[1] < to[0];
}

lks_status lks_copy_(lks_tensor *dst, lks_tensor *src)
{
    if (!dst || !src) return LKS_ERR_ARGUMENT;
    TRY(writable("lks_copy_", dst));
    if (src == lks_none || !overlap(&dst->v, &src->v))
        return lksi_call(dst->ctx, "lks_copy_", LKSI_OP_copy, 1, &src, NULL, 1, &dst);
    TRY(lks_scope_begin(dst->ctx));
    dst->ctx->no_grad++;
    lks_tensor *apart = lks_clone(src);
    dst->ctx->no_grad--;
    lks_status s = lksi_call(dst->ctx, "lks_copy_", LKSI_OP_copy, 1, &apart, NULL, 1, &dst);
    lks_scope_end(dst->ctx);
    return s;
}

lks_status lks_fill_(lks_tensor *dst, double value)
{
    if (!dst) return LKS_ERR_ARGUMENT;
    TRY(writable("lks_fill_", dst));
    lksi_attr attr = {.fill = {.value = value}};
    return lksi_call(dst->ctx, "lks_fill_", LKSI_OP_fill, 0, NULL, &attr, 1, &dst);
}

lks_tensor *lks_full(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, double value)
{
    lks_tensor *t = lks_empty(ctx, dtype, ndim, shape);
    return t && lks_fill_(t, value) == LKS_OK ? t : NULL;
}

lks_tensor *lks_ones(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape)
{
    return lks_full(ctx, dtype, ndim, shape, 1);
}

lks_tensor *lks_zeros(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape)
{
    lks_tensor *t = lks_empty(ctx, dtype, ndim, shape);
    if (!t) return NULL;
    int64_t bytes = t->numel * lks_dtype_size(dtype);
    return !bytes || lksi_device_zero(ctx->dev, t->v.data, bytes) == LKS_OK ? t : NULL;
}

lks_tensor *lks_arange(lks_context *ctx, lks_dtype dtype, int64_t n)
{
    lks_tensor *t = lks_empty(ctx, dtype, 1, &n);
    return t && lksi_call(ctx, "lks_arange", LKSI_OP_arange, 0, NULL, NULL, 1, &t) == LKS_OK ? t : NULL;
}

/* --- host --- */

lks_status lks_to_host(lks_tensor *t, void *data, int64_t bytes)
{
    if (!t) return LKS_ERR_ARGUMENT;
    lks_context *ctx = t->ctx;
    int64_t need = t->numel * lks_dtype_size(t->v.dtype);
    if (bytes != need)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_to_host", "the tensor has %lld bytes, the buffer %lld",
                         (long long)need, (long long)bytes);
    if (!need) return LKS_OK;
    TRY(lks_scope_begin(ctx));
    ctx->no_grad++;
    lks_tensor *c = lks_contiguous(t);
    ctx->no_grad--;
    lks_status s = c ? lksi_device_read(ctx->dev, data, c->v.data, need) : ctx->base.code;
    lks_scope_end(ctx);
    return s;
}

lks_status lks_item(lks_tensor *t, double *value)
{
    if (!t || !value) return LKS_ERR_ARGUMENT;
    lks_context *ctx = t->ctx;
    if (lks_dtype_is_complex(t->v.dtype))
        return lksi_fail(&ctx->base, LKS_ERR_DTYPE, "lks_item", "a %s is two numbers (lks_real, lks_imag)",
                         lks_dtype_name(t->v.dtype));
    if (t->numel != 1)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_item", "the tensor has %lld elements, not 1",
                         (long long)t->numel);
    TRY(lks_scope_begin(ctx));
    ctx->no_grad++;
    lks_tensor *c = lks_to(t, LKS_F64);
    ctx->no_grad--;
    lks_status s = c ? lks_to_host(c, value, sizeof *value) : ctx->base.code;
    lks_scope_end(ctx);
    return s;
}

lks_status lks_set_from_host(lks_tensor *t, const void *data, int64_t bytes)
{
    if (!t) return LKS_ERR_ARGUMENT;
    lks_context *ctx = t->ctx;
    int64_t need = t->numel * lks_dtype_size(t->v.dtype);
    if (bytes != need)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_set_from_host", "the tensor has %lld bytes, the buffer %lld",
                         (long long)need, (long long)bytes);
    TRY(writable("lks_set_from_host", t));
    if (!need) return LKS_OK;
    if (lksi_is_contiguous(&t->v)) {
        t->st->version++;
        return lksi_device_write(ctx->dev, t->v.data, data, bytes);
    }
    TRY(lks_scope_begin(ctx));
    lks_tensor *c = lks_from_host(ctx, t->v.dtype, t->v.ndim, t->v.shape, data);
    lks_status s = c ? lks_copy_(t, c) : ctx->base.code;
    lks_scope_end(ctx);
    return s;
}

/* --- reductions --- */

static lks_status reduce_mask(const char *where, lks_tensor *x, int ndims, const int *dims, int32_t *mask)
{
    *mask = 0;
    for (int i = 0; i < ndims && dims; i++) {
        int d = dims[i];
        TRY(lksi_dim(x->ctx, where, x->v.ndim, &d));
        if (*mask >> d & 1) return lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, where, "dim %d is named twice", d);
        *mask |= 1 << d;
    }
    if (!dims || ndims == 0) *mask = (1 << x->v.ndim) - 1;
    return LKS_OK;
}

static lks_tensor *reduce(const char *where, int op, lks_tensor *x, int ndims, const int *dims, int keepdim,
                          lks_dtype dtype)
{
    lksi_attr attr = {.reduce = {.keepdim = keepdim != 0, .dtype = dtype}};
    if (!x || reduce_mask(where, x, ndims, dims, &attr.reduce.mask)) return NULL;
    return lksi_call1(x->ctx, where, op, 1, &x, &attr);
}

lks_tensor *lks_sum(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype)
{
    return reduce("lks_sum", LKSI_OP_sum, x, ndims, dims, keepdim, dtype);
}

lks_tensor *lks_mean(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype)
{
    return reduce("lks_mean", LKSI_OP_mean, x, ndims, dims, keepdim, dtype);
}

/* p: exponent of a norm, correction. */
static lks_tensor *reduce_p(const char *where, int op, lks_tensor *x, int ndims, const int *dims, int keepdim,
                            lks_dtype dtype, double p)
{
    lksi_attr attr = {.reduce = {.keepdim = keepdim != 0, .dtype = dtype, .p = p}};
    if (!x || reduce_mask(where, x, ndims, dims, &attr.reduce.mask)) return NULL;
    return lksi_call1(x->ctx, where, op, 1, &x, &attr);
}

lks_tensor *lks_var(lks_tensor *x, int ndims, const int *dims, int keepdim, double correction)
{
    return reduce_p("lks_var", LKSI_OP_var, x, ndims, dims, keepdim, LKS_DTYPE_NONE, correction);
}

lks_tensor *lks_std(lks_tensor *x, int ndims, const int *dims, int keepdim, double correction)
{
    return reduce_p("lks_std", LKSI_OP_std, x, ndims, dims, keepdim, LKS_DTYPE_NONE, correction);
}

lks_tensor *lks_prod(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype)
{
    return reduce("lks_prod", LKSI_OP_prod, x, ndims, dims, keepdim, dtype);
}

lks_tensor *lks_norm(lks_tensor *x, double p, int ndims, const int *dims, int keepdim)
{
    return reduce_p("lks_norm", LKSI_OP_norm, x, ndims, dims, keepdim, LKS_DTYPE_NONE, p);
}

#define REDUCE(name)                                                                                           \
    lks_tensor *lks_##name(lks_tensor *x, int ndims, const int *dims, int keepdim)                             \
    {                                                                                                          \
        return reduce("lks_" #name, LKSI_OP_##name, x, ndims, dims, keepdim, LKS_DTYPE_NONE);                  \
    }
REDUCE(amax)
REDUCE(amin)
REDUCE(all)
REDUCE(any)

lks_tensor *lksi_sum_to(lks_tensor *g, int ndim, const int64_t *shape)
{
    if (!g) return NULL;
    int lead = g->v.ndim - ndim, dims[LKS_MAX_DIMS], n = 0;
    for (int d = 0; d < g->v.ndim; d++)
        if (d < lead || (shape[d - lead] == 1 && g->v.shape[d] != 1)) dims[n++] = d;
    if (n) g = lks_sum(g, n, dims, 1, LKS_DTYPE_NONE);
    return lksi_reshape_like(g, ndim, shape);
}

static lks_status extreme(const char *where, int op, lks_tensor *x, int dim, int keepdim, lks_tensor **values,
                          lks_tensor **indices)
{
    lks_tensor *out[2] = {NULL, NULL};
    *values = NULL;
    if (indices) *indices = NULL;
    if (!x) return LKS_ERR_ARGUMENT;
    if (x->v.ndim) TRY(lksi_dim(x->ctx, where, x->v.ndim, &dim));
    lksi_attr attr = {.dim = {.dim = dim, .keepdim = keepdim != 0}};
    TRY(lksi_call(x->ctx, where, op, 1, &x, &attr, 2, out));
    *values = out[0];
    if (indices) *indices = out[1];
    return LKS_OK;
}

lks_status lks_max(lks_tensor *x, int dim, int keepdim, lks_tensor **values, lks_tensor **indices)
{
    return extreme("lks_max", LKSI_OP_max, x, dim, keepdim, values, indices);
}

lks_status lks_min(lks_tensor *x, int dim, int keepdim, lks_tensor **values, lks_tensor **indices)
{
    return extreme("lks_min", LKSI_OP_min, x, dim, keepdim, values, indices);
}

lks_tensor *lks_max_all(lks_tensor *x)
{
    lks_tensor *flat = x ? lks_flatten(x, 0, -1) : NULL, *y;
    return flat && lks_max(flat, 0, 0, &y, NULL) == LKS_OK ? y : NULL;
}

lks_tensor *lks_min_all(lks_tensor *x)
{
    lks_tensor *flat = x ? lks_flatten(x, 0, -1) : NULL, *y;
    return flat && lks_min(flat, 0, 0, &y, NULL) == LKS_OK ? y : NULL;
}

lks_tensor *lks_argmin(lks_tensor *x, int dim, int keepdim)
{
    if (!x || x == lks_none) return NULL;
    lks_tensor *y, *index;
    x->ctx->no_grad++;
    lks_status s = extreme("lks_argmin", LKSI_OP_min, x, dim, keepdim, &y, &index);
    x->ctx->no_grad--;
    return s == LKS_OK ? index : NULL;
}

lks_tensor *lks_argmax(lks_tensor *x, int dim, int keepdim)
{
    if (!x || (x->v.ndim && lksi_dim(x->ctx, "lks_argmax", x->v.ndim, &dim))) return NULL;
    lksi_attr attr = {.dim = {.dim = dim, .keepdim = keepdim != 0}};
    return lksi_call1(x->ctx, "lks_argmax", LKSI_OP_argmax, 1, &x, &attr);
}

/* --- along one dim --- */

static lks_tensor *scan(const char *where, int op, int nin, lks_tensor *const *in, int dim, int reverse,
                        lks_dtype dtype)
{
    lks_context *ctx = lksi_ctx(nin, in);
    if (!ctx || (in[0] != lks_none && in[0]->v.ndim && lksi_dim(ctx, where, in[0]->v.ndim, &dim))) return NULL;
    lksi_attr attr = {.scan = {.dim = dim, .reverse = reverse, .dtype = dtype}};
    return lksi_call1(ctx, where, op, nin, in, &attr);
}

lks_tensor *lks_cumsum(lks_tensor *x, int dim, lks_dtype dtype)
{
    return scan("lks_cumsum", LKSI_OP_cumsum, 1, &x, dim, 0, dtype);
}

lks_tensor *lks_cumprod(lks_tensor *x, int dim, lks_dtype dtype)
{
    return scan("lks_cumprod", LKSI_OP_cumprod, 1, &x, dim, 0, dtype);
}

lks_tensor *lks_recurrence(lks_tensor *a, lks_tensor *b, int dim, int reverse)
{
    lks_tensor *in[2] = {a, b};
    return scan("lks_recurrence", LKSI_OP_recurrence, 2, in, dim, reverse != 0, LKS_DTYPE_NONE);
}

/* --- random --- */

/* The element's linear index in the global batch: the rows before ours times the elements of a row. */
static void place(lks_context *ctx, int64_t numel, int64_t *offset, int64_t *call)
{
    *offset = ctx->row_count > 0 ? ctx->row_first * (numel / ctx->row_count) : 0;
    *call = ctx->call++;
}

lks_tensor *lks_dropout(lks_tensor *x, double p)
{
    LKSI_GUARD;
    if (!x) return NULL;
    if (!(p >= 0 && p < 1)) {
        lksi_fail(&x->ctx->base, LKS_ERR_ARGUMENT, "lks_dropout", "p is %g; it must be in [0, 1)", p);
        return NULL;
    }
    lksi_attr attr = {.random = {.a = p}};
    place(x->ctx, x->numel, &attr.random.offset, &attr.random.call);
    return lksi_call1(x->ctx, "lks_dropout", LKSI_OP_dropout, 1, &x, &attr);
}

lks_tensor *lks_bernoulli(lks_tensor *p)
{
    if (!p || p == lks_none) return NULL;
    lksi_attr attr = {.random = {.a = 0}};
    place(p->ctx, p->numel, &attr.random.offset, &attr.random.call);
    p->ctx->no_grad++;
    lks_tensor *y = lksi_call1(p->ctx, "lks_bernoulli", LKSI_OP_bernoulli, 1, &p, &attr);
    p->ctx->no_grad--;
    return y;
}

lks_status lks_bernoulli_(lks_tensor *x, double p)
{
    LKSI_GUARD;
    if (!x) return LKS_ERR_ARGUMENT;
    TRY(writable("lks_bernoulli_", x));
    lks_context *ctx = x->ctx;
    if (!(p >= 0 && p <= 1))
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_bernoulli_", "p is %g; it must be in [0, 1]", p);
    TRY(lks_scope_begin(ctx));
    lks_tensor *y = lks_full(ctx, LKS_F32, 0, NULL, p);
    y = y ? lks_bernoulli(lks_expand(y, x->v.ndim, x->v.shape)) : NULL;
    lks_status s = y ? lks_copy_(x, y) : ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
    lks_scope_end(ctx);
    return s;
}

static lks_status fill_random(const char *where, int op, lks_tensor *x, double a, double b)
{
    if (!x) return LKS_ERR_ARGUMENT;
    char text[256];
    if (!lks_dtype_is_float(x->v.dtype))
        return lksi_fail(&x->ctx->base, LKS_ERR_DTYPE, where, "%s: only floating tensors can be filled",
                         lksi_tensor_text(x, text, sizeof text));
    TRY(writable(where, x));
    lksi_attr attr = {.random = {.a = a, .b = b}};
    place(x->ctx, x->numel, &attr.random.offset, &attr.random.call);
    return lksi_call(x->ctx, where, op, 0, NULL, &attr, 1, &x);
}

lks_status lks_uniform_(lks_tensor *x, double lo, double hi)
{
    return fill_random("lks_uniform_", LKSI_OP_uniform, x, lo, hi);
}

lks_status lks_normal_(lks_tensor *x, double mean, double std)
{
    return fill_random("lks_normal_", LKSI_OP_normal, x, mean, std);
}

lks_tensor *lks_scaled_dot_product_attention(lks_tensor *q, lks_tensor *k, lks_tensor *v, lks_tensor *mask,
                                             double dropout_p, int causal, double scale)
{
    LKSI_GUARD;
    lks_tensor *in[4] = {q, k, v, mask}, *out[2] = {NULL, NULL};
    lks_context *ctx = lksi_ctx(4, in);
    if (!ctx) return NULL;
    if (!(dropout_p >= 0 && dropout_p < 1)) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_scaled_dot_product_attention",
                  "dropout_p is %g; it must be in [0, 1)", dropout_p);
        return NULL;
    }
    if (scale == 0 && q->v.ndim == 4) scale = 1 / sqrt((double)(q->v.shape[3] > 0 ? q->v.shape[3] : 1));
    lksi_attr attr = {.attention = {.p = dropout_p, .scale = scale, .causal = causal != 0}};
    if (dropout_p > 0 && q->v.ndim == 4 && k->v.ndim == 4)
        place(ctx, q->v.shape[0] * q->v.shape[1] * q->v.shape[2] * k->v.shape[2], &attr.attention.offset,
              &attr.attention.call);
    return lksi_call(ctx, "lks_scaled_dot_product_attention", LKSI_OP_attention, 4, in, &attr, 2, out) == LKS_OK
               ? out[0]
               : NULL;
}
