/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.c - storages, tensor headers and scopes: who owns what. No op is run here.
 */
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

static lks_tensor none_; /* its address stands for an absent optional tensor; it is never written */
lks_tensor *const lks_none = &none_;

int64_t lksi_grad_scale(const lks_tensor *t)
{
    return t->grad && t->grad->st->version == t->grad_version ? t->grad_scale : LKSI_GRAD_BY_HAND;
}

void lksi_grad_set_scale(lks_tensor *t, int64_t scale)
{
    t->grad_scale = scale;
    if (t->grad) t->grad_version = t->grad->st->version;
}

int lksi_any_null(int n, lks_tensor *const *t)
{
    for (int i = 0; i < n; i++)
        if (!t[i]) return 1;
    return 0;
}

void lksi_owned_drop(lksi_owned *o)
{
    if (o && --o->refs == 0) o->destroy(o);
}

/* --- storages --- */

lksi_storage *lksi_storage_wrap(lks_context *ctx, void *data, int64_t bytes)
{
    lksi_storage *st = lksi_cell_take(&ctx->base, sizeof *st);
    if (st) *st = (lksi_storage){.ctx = ctx, .data = data, .bytes = bytes, .refs = 1};
    return st;
}

void lksi_tensors_alive(lks_context *ctx, const lksi_view *wanted, const char *where)
{
    enum { KINDS = 64, SHOWN = 8 };
    struct { const lks_tensor *one; int64_t count, bytes; } kind[KINDS];
    int kinds = 0, shown = 0;
    int64_t count = 0, bytes = 0;
    char *text = ctx->base.text, shape[256];
    for (int64_t i = 0; i < ctx->born_count; i++) {
        const lks_tensor *t = ctx->born[i];
        int k = 0;
        if (t->is_view || !t->st->owned) continue;
        while (k < kinds && (kind[k].one->v.dtype != t->v.dtype || kind[k].one->v.ndim != t->v.ndim ||
                             memcmp(kind[k].one->v.shape, t->v.shape, (size_t)t->v.ndim * sizeof *t->v.shape)))
            k++;
        count++, bytes += t->st->bytes;
        if (k == KINDS) continue; /* in the totals alone */
        if (k == kinds) kind[kinds++].one = t, kind[k].count = kind[k].bytes = 0;
        kind[k].count++, kind[k].bytes += t->st->bytes;
    }
    size_t n = strlen(text);
    n += (size_t)snprintf(text + n, LKSI_TEXT - n,
                          "; wanted by %s for %s%s. Tensors of open scopes: %lld of %lld bytes", where,
                          lks_dtype_name(wanted->dtype), lksi_shape_text(wanted, shape, sizeof shape),
                          (long long)count, (long long)bytes);
    for (; shown < SHOWN && n < LKSI_TEXT; shown++) {
        int most = -1;
        for (int k = 0; k < kinds; k++)
            if (kind[k].bytes > 0 && (most < 0 || kind[k].bytes > kind[most].bytes)) most = k;
        if (most < 0) break;
        n += (size_t)snprintf(text + n, LKSI_TEXT - n, "%s%lld %s%s", shown ? ", " : ": ", (long long)kind[most].count,
                              lks_dtype_name(kind[most].one->v.dtype),
                              lksi_shape_text(&kind[most].one->v, shape, sizeof shape));
        kind[most].bytes = 0;
    }
    if (n < LKSI_TEXT)
        snprintf(text + n, LKSI_TEXT - n, "; %lld bytes are parameters, gradients, optimizers' state and what the "
                 "program and graphs keep", (long long)(ctx->dev->used - bytes));
}

static lksi_storage *storage_new(lks_context *ctx, int64_t bytes, const lksi_view *v, const char *where)
{
    lksi_storage *st = lksi_cell_take(&ctx->base, sizeof *st);
    if (!st) return NULL;
    *st = (lksi_storage){.ctx = ctx, .bytes = bytes, .refs = 1, .owned = 1};
    lks_status before = ctx->base.code;
    void *p;
    if (lksi_device_alloc(ctx->dev, bytes, &p) != LKS_OK) {
        if (before == LKS_OK) lksi_tensors_alive(ctx, v, where);
        lksi_cell_give(&ctx->base, st, sizeof *st);
        return NULL;
    }
    st->data = p;
    return st;
}

static void storage_destroy(lksi_storage *st)
{
    if (st->owned) lksi_device_free(st->ctx->dev, st->data);
    lksi_cell_give(&st->ctx->base, st, sizeof *st);
}

void lksi_storage_drop(lksi_storage *st)
{
    if (st && --st->refs == 0) storage_destroy(st);
}

/* --- scopes --- */

static lks_status more_born(lks_context *ctx)
{
    int64_t room = ctx->born_room ? 2 * ctx->born_room : 256;
    lks_tensor **p = lksi_realloc(&ctx->base, ctx->born, ctx->born_room * (int64_t)sizeof *p,
                                  room * (int64_t)sizeof *p);
    if (!p) return LKS_ERR_MEMORY;
    ctx->born = p;
    ctx->born_room = room;
    return LKS_OK;
}

static inline lks_status scope_push(lks_context *ctx, lks_tensor *t)
{
    if (__builtin_expect(ctx->born_count == ctx->born_room, 0)) TRY(more_born(ctx));
    ctx->born[ctx->born_count++] = t;
    return LKS_OK;
}

lks_status lks_scope_begin(lks_context *ctx)
{
    if (ctx->scope_count == ctx->scope_room) {
        int room = ctx->scope_room ? 2 * ctx->scope_room : 16;
        int64_t *p = lksi_realloc(&ctx->base, ctx->scope_start, ctx->scope_room * (int64_t)sizeof *p,
                                  room * (int64_t)sizeof *p);
        if (!p) return LKS_ERR_MEMORY;
        ctx->scope_start = p;
        ctx->scope_room = room;
    }
    ctx->scope_start[ctx->scope_count++] = ctx->born_count;
    return LKS_OK;
}

lks_status lks_scope_end(lks_context *ctx)
{
    if (!ctx->scope_count)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_scope_end", "no scope is open (lks_scope_begin opens one)");
    int64_t start = ctx->scope_start[--ctx->scope_count];
    while (ctx->born_count > start) lksi_drop(ctx->born[--ctx->born_count]);
    return LKS_OK;
}

lks_tensor *lks_scope_leave(lks_context *ctx, lks_tensor *t)
{
    if (t && t != lks_none) lks_keep(t);
    if (lks_scope_end(ctx) != LKS_OK) {
        lks_release(t);
        return NULL;
    }
    if (t && t != lks_none && scope_push(ctx, t) != LKS_OK) {
        lks_release(t);
        return NULL;
    }
    return t;
}

/* --- headers --- */

lks_tensor *lks_keep(lks_tensor *t) { return lksi_keep(t); }
void lks_release(lks_tensor *t) { lksi_drop(t); }

void lksi_tensor_forget(lks_tensor *t)
{
    struct lksi_node *node = t->node;
    lks_tensor *leaf = t->leaf;
    t->node = NULL;
    t->leaf = NULL;
    t->requires_grad = 0;
    lksi_owned_drop((lksi_owned *)node);
    lksi_drop(leaf);
}

void lksi_tensor_destroy(lks_tensor *t)
{
    lks_context *ctx = t->ctx;
    if (t->node || t->leaf) lksi_tensor_forget(t);
    if (t->grad) lks_release(t->grad);
    if (t->grad_slot) lks_release(t->grad_slot);
    while (t->hooks) {
        lksi_hook *next = t->hooks->next;
        lksi_free(&ctx->base, t->hooks);
        t->hooks = next;
    }
    if (--t->st->refs == 0) storage_destroy(t->st);
    ctx->live_tensors--;
    lksi_cell_give(&ctx->base, t, sizeof *t);
}

/* A header on st, of no scope. Takes no share of st. */
static inline lks_tensor *header(lksi_storage *st, const lksi_view *v, int64_t numel)
{
    lks_tensor *t = lksi_cell_take(&st->ctx->base, sizeof *t);
    if (!t) return NULL;
    t->ctx = st->ctx;
    t->st = st;
    t->v = *v;
    t->numel = numel;
    t->shares = 1;
    /* One by one: a memset of so little is slower than the stores. */
    t->requires_grad = t->is_view = 0;
    t->node = NULL;
    t->out = 0;
    t->leaf = t->grad = t->grad_slot = NULL;
    t->pass = 0;
    t->uses = 0;
    t->grad_scale = t->grad_version = 0;
    t->hooks = NULL;
    return t;
}

lks_tensor *lksi_tensor_on(lksi_storage *st, const lksi_view *v)
{
    lks_context *ctx = st->ctx;
    lks_tensor *t = header(st, v, lksi_numel(v));
    if (!t) return NULL;
    if (scope_push(ctx, t) != LKS_OK) {
        lksi_cell_give(&ctx->base, t, sizeof *t);
        return NULL;
    }
    st->refs++;
    ctx->live_tensors++;
    return t;
}

lks_tensor *lksi_tensor_saved(lks_tensor *t)
{
    lks_tensor *a = header(t->st, &t->v, t->numel);
    if (!a) return NULL;
    a->is_view = 1;
    t->st->refs++;
    t->ctx->live_tensors++;
    return a;
}

lks_tensor *lksi_tensor_unscoped(lks_tensor *t)
{
    if (!t) return NULL;
    lks_context *ctx = t->ctx;
    for (int64_t i = ctx->born_count - 1; i >= 0; i--)
        if (ctx->born[i] == t) {
            memmove(ctx->born + i, ctx->born + i + 1, (size_t)(ctx->born_count - i - 1) * sizeof *ctx->born);
            ctx->born_count--;
            for (int s = ctx->scope_count - 1; s >= 0 && ctx->scope_start[s] > i; s--) ctx->scope_start[s]--;
            break;
        }
    return t;
}

lks_tensor *lksi_tensor_alias(lks_tensor *t)
{
    lks_tensor *a = lksi_tensor_on(t->st, &t->v);
    if (a) a->is_view = 1;
    return a;
}

lks_tensor *lks_detach(lks_tensor *t)
{
    return t ? lksi_tensor_alias(t) : NULL;
}

void lksi_view_init(lksi_view *v, lks_dtype dtype, int ndim, const int64_t *shape)
{
    v->data = NULL;
    v->dtype = dtype;
    v->ndim = ndim;
    for (int d = 0; d < ndim; d++) v->shape[d] = shape[d];
    lksi_contiguous_strides(v);
}

lks_status lksi_check_shape(lks_context *ctx, const char *where, lks_dtype dtype, int ndim, const int64_t *shape,
                            int64_t *numel)
{
    if (ndim < 0 || ndim > LKS_MAX_DIMS || (ndim > 0 && !shape))
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "ndim is %d; 0 to %d are allowed", ndim, LKS_MAX_DIMS);
    if (!lks_dtype_size(dtype))
        return lksi_fail(&ctx->base, LKS_ERR_DTYPE, where, "dtype %d does not exist", dtype);
    int64_t n = 1, bytes;
    int empty = 0, fits = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "size %lld of dim %d is negative",
                             (long long)shape[d], d);
        empty |= shape[d] == 0;
    }
    for (int d = 0; d < ndim && !empty && fits; d++) fits = lksi_mul_fits(n, shape[d], &n);
    if (empty) n = 0;
    if (!fits || !lksi_mul_fits(n, lks_dtype_size(dtype), &bytes)) {
        lksi_view v;
        char text[256];
        v.ndim = ndim;
        memcpy(v.shape, shape, (size_t)ndim * sizeof *shape);
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, where, "%s%s does not fit a 64-bit size", lks_dtype_name(dtype),
                         lksi_shape_text(&v, text, sizeof text));
    }
    *numel = n;
    return LKS_OK;
}

/* Elements of v if they are few and its dtype exists; else -1. */
static inline int64_t few(const lksi_view *v)
{
    int64_t n = 1;
    if (v->ndim < 0 || v->ndim > LKS_MAX_DIMS || v->dtype < 0 || v->dtype >= LKS_DTYPE_COUNT) return -1;
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] <= 0 || v->shape[d] > INT32_MAX || n > INT32_MAX) return -1;
        n *= v->shape[d];
    }
    return n <= INT32_MAX ? n : -1;
}

lks_tensor *lksi_tensor_new(lks_context *ctx, const lksi_view *v, const char *where)
{
    int64_t n = few(v);
    if (n < 0 && lksi_check_shape(ctx, where, v->dtype, v->ndim, v->shape, &n) != LKS_OK) return NULL;
    lksi_storage *st = storage_new(ctx, n * lks_dtype_size(v->dtype), v, where);
    if (!st) return NULL;
    lks_tensor *t = header(st, v, n);
    if (t && scope_push(ctx, t) != LKS_OK) {
        lksi_cell_give(&ctx->base, t, sizeof *t);
        t = NULL;
    }
    if (!t) {
        lksi_storage_drop(st);
        return NULL;
    }
    t->v.data = st->data;
    ctx->live_tensors++;
    return t;
}

const char *lksi_tensor_text(const lks_tensor *t, char *buffer, int bytes)
{
    if (t == lks_none) {
        snprintf(buffer, (size_t)bytes, "none");
        return buffer;
    }
    char shape[200];
    snprintf(buffer, (size_t)bytes, "%s%s", lks_dtype_name(t->v.dtype), lksi_shape_text(&t->v, shape, sizeof shape));
    return buffer;
}

/* --- public: making and reading without an op --- */

lks_tensor *lks_empty(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t n;
    if (lksi_check_shape(ctx, "lks_empty", dtype, ndim, shape, &n) != LKS_OK) return NULL;
    lksi_view v;
    lksi_view_init(&v, dtype, ndim, shape);
    return lksi_tensor_new(ctx, &v, "lks_empty");
}

lks_tensor *lks_from_host(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape, const void *data)
{
    lks_tensor *t = lks_empty(ctx, dtype, ndim, shape);
    if (!t) return NULL;
    if (t->numel && !data) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_from_host", "data is NULL");
        return NULL;
    }
    if (lksi_device_write(ctx->dev, t->v.data, data, t->numel * lks_dtype_size(dtype)) != LKS_OK) return NULL;
    return t;
}

lks_tensor *lks_wrap(lks_context *ctx, void *data, lks_dtype dtype, int ndim, const int64_t *shape,
                     const int64_t *stride)
{
    int64_t n, last = 0;
    if (lksi_check_shape(ctx, "lks_wrap", dtype, ndim, shape, &n) != LKS_OK) return NULL;
    if (n && !data) {
        lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_wrap", "data is NULL");
        return NULL;
    }
    lksi_view v;
    lksi_view_init(&v, dtype, ndim, shape);
    for (int d = 0; d < ndim && stride; d++) {
        if (stride[d] < 0) {
            lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_wrap", "stride %lld of dim %d is negative",
                      (long long)stride[d], d);
            return NULL;
        }
        v.stride[d] = stride[d];
    }
    for (int d = 0; d < ndim && n; d++) {
        int64_t reach;
        if (!lksi_mul_fits(v.shape[d] - 1, v.stride[d], &reach) || !lksi_add_fits(last, reach, &last) ||
            last >= INT64_MAX / 8) {
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, "lks_wrap", "strides reach beyond a 64-bit size");
            return NULL;
        }
    }
    v.data = data;
    lksi_storage *st = lksi_storage_wrap(ctx, data, n ? (last + 1) * lks_dtype_size(dtype) : 0);
    if (!st) return NULL;
    lks_tensor *t = lksi_tensor_on(st, &v);
    lksi_storage_drop(st);
    return t;
}

lks_context *lks_context_of(const lks_tensor *t) { return t->ctx; }
lks_dtype lks_dtype_of(const lks_tensor *t) { return t->v.dtype; }
int lks_ndim(const lks_tensor *t) { return t->v.ndim; }
const int64_t *lks_shape(const lks_tensor *t) { return t->v.shape; }
const int64_t *lks_stride(const lks_tensor *t) { return t->v.stride; }
int64_t lks_numel(const lks_tensor *t) { return t->numel; }
int lks_is_contiguous(const lks_tensor *t) { return lksi_is_contiguous(&t->v); }
void *lks_data(lks_tensor *t) { return t->v.data; }

int64_t lks_dim(const lks_tensor *t, int dim)
{
    if (dim < 0) dim += t->v.ndim;
    return dim >= 0 && dim < t->v.ndim ? t->v.shape[dim] : -1;
}

lks_status lks_error_code(const lks_context *ctx) { return ctx->base.code; }
const char *lks_error(const lks_context *ctx) { return ctx->base.text; }

void lks_error_clear(lks_context *ctx)
{
    ctx->base.code = LKS_OK;
    ctx->base.text[0] = 0;
}

lks_status lks_error_raise(lks_context *ctx, lks_status code, const char *where, const char *text)
{
    if (!ctx || code >= LKS_OK) return LKS_ERR_ARGUMENT;
    return lksi_fail(&ctx->base, code, where ? where : "program", "%s", text ? text : lks_status_text(code));
}

int64_t lks_live_tensors(const lks_context *ctx) { return ctx->live_tensors; }
int64_t lks_live_nodes(const lks_context *ctx) { return ctx->live_nodes; }
int64_t lks_memory_used(const lks_context *ctx) { return ctx->dev->used; }
int64_t lks_memory_peak(const lks_context *ctx) { return ctx->dev->peak; }
int64_t lks_memory_held(const lks_context *ctx) { return ctx->dev->held; }
void lks_memory_peak_reset(lks_context *ctx) { ctx->dev->peak = ctx->dev->used; }
void lks_memory_trim(lks_context *ctx) { lksi_device_trim(ctx->dev); }
