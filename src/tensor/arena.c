/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arena.c - parameters of one dtype side by side in one block, with a gradient block of the same layout and
 * low-precision twins, so that one pass sees all. Slices have storage headers of their own: to versions and caches they
 * are not views.
 */
#include "tensor/tensor.h"

static int64_t padded(int64_t n)
{
    return (n + LKSI_ARENA_ALIGN - 1) / LKSI_ARENA_ALIGN * LKSI_ARENA_ALIGN;
}

/* A zeroed block of `count` elements. */
static lks_status block_new(lksi_arena *a, lks_dtype dtype, char **block)
{
    int64_t bytes = a->count * lks_dtype_size(dtype);
    void *p;
    TRY(lksi_device_alloc(a->ctx->dev, bytes, &p));
    *block = p;
    return bytes ? lksi_device_zero(a->ctx->dev, p, bytes) : LKS_OK;
}

/* A header of t's shape over the slice of a block; belongs to no scope. */
static lks_tensor *slice_header(lksi_arena *a, int i, char *block, lks_dtype dtype)
{
    lksi_slice *s = &a->slice[i];
    char *data = block + s->offset * lks_dtype_size(dtype);
    lksi_storage *st = lksi_storage_wrap(a->ctx, data, s->numel * lks_dtype_size(dtype));
    if (!st) return NULL;
    st->arena = a;
    st->slice = i;
    lksi_view v;
    lksi_view_init(&v, dtype, s->value->v.ndim, s->value->v.shape);
    v.data = data;
    lks_tensor *t = lksi_tensor_unscoped(lksi_tensor_on(st, &v));
    lksi_storage_drop(st);
    return t;
}

lks_status lksi_arena_create(lks_context *ctx, lks_dtype dtype, int n, lks_tensor *const *t, int with_grad,
                             lksi_arena **out)
{
    *out = NULL;
    lksi_arena *a = lksi_alloc(&ctx->base, sizeof *a);
    if (!a) return LKS_ERR_MEMORY;
    a->ctx = ctx;
    a->dtype = dtype;
    a->slice = lksi_alloc(&ctx->base, n * (int64_t)sizeof *a->slice);
    if (!a->slice) goto fail;
    a->slices = n;
    for (int i = 0; i < n; i++) {
        a->slice[i].offset = a->count;
        a->slice[i].numel = t[i]->numel;
        a->slice[i].value = lks_keep(t[i]);
        a->count += padded(t[i]->numel);
    }
    if (block_new(a, dtype, &a->value) != LKS_OK) goto fail;
    if (with_grad) {
        if (block_new(a, dtype, &a->grad) != LKS_OK) goto fail;
        for (int i = 0; i < n; i++)
            if (!(a->slice[i].grad = slice_header(a, i, a->grad, dtype))) goto fail;
    }
    /* Storages last: from here on only copies can fail, and they leave the old storages in place. */
    int size = lks_dtype_size(dtype);
    for (int i = 0; i < n; i++) {
        lksi_slice *s = &a->slice[i];
        if (s->numel &&
            lksi_device_copy(ctx->dev, a->value + s->offset * size, t[i]->v.data, s->numel * size) != LKS_OK)
            goto fail;
    }
    lksi_storage **fresh = lksi_alloc(&ctx->base, n * (int64_t)sizeof *fresh);
    if (!fresh) goto fail;
    for (int i = 0; i < n; i++) {
        fresh[i] = lksi_storage_wrap(ctx, a->value + a->slice[i].offset * size, a->slice[i].numel * size);
        if (!fresh[i]) {
            while (i-- > 0) lksi_storage_drop(fresh[i]);
            lksi_free(&ctx->base, fresh);
            goto fail;
        }
    }
    for (int i = 0; i < n; i++) {
        fresh[i]->arena = a;
        fresh[i]->slice = i;
        fresh[i]->version = t[i]->st->version + 1;
        lksi_storage_drop(t[i]->st);
        t[i]->st = fresh[i];
        t[i]->v.data = fresh[i]->data;
        lksi_contiguous_strides(&t[i]->v);
        if (with_grad) t[i]->grad_slot = lks_keep(a->slice[i].grad);
    }
    lksi_free(&ctx->base, fresh);
    *out = a;
    return LKS_OK;
fail:
    lksi_arena_destroy(a);
    return ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
}

/* The tensor may outlive the block: leave it empty instead of with a dangling address. */
static void orphan(lks_tensor *t, const lksi_arena *a)
{
    if (!t || t->st->arena != a) return;
    t->st->arena = NULL;
    t->st->data = NULL;
    t->st->bytes = 0;
    t->v.data = NULL;
    t->v.ndim = 1;
    t->v.shape[0] = t->v.stride[0] = 0;
    t->numel = 0;
}

void lksi_arena_destroy(lksi_arena *a)
{
    if (!a) return;
    lks_context *ctx = a->ctx;
    for (int i = 0; i < a->slices; i++) {
        lksi_slice *s = &a->slice[i];
        for (int w = 0; w < 2; w++) {
            orphan(s->twin[w], a);
            lks_release(s->twin[w]);
        }
        if (s->value && s->value->grad_slot && s->value->grad_slot == s->grad) {
            if (s->value->grad == s->grad) {
                lks_release(s->value->grad);
                s->value->grad = NULL;
            }
            lks_release(s->value->grad_slot);
            s->value->grad_slot = NULL;
        }
        orphan(s->grad, a);
        lks_release(s->grad);
        if (s->value) orphan(s->value, a);
        lks_release(s->value);
    }
    for (int w = 0; w < 2; w++)
        if (a->twin[w]) lksi_device_free(ctx->dev, a->twin[w]);
    if (a->grad) lksi_device_free(ctx->dev, a->grad);
    if (a->value) lksi_device_free(ctx->dev, a->value);
    lksi_free(&ctx->base, a->slice);
    lksi_free(&ctx->base, a);
}

lks_status lksi_arena_twin(lksi_arena *a, lks_dtype dtype, int *which)
{
    int w = *which = dtype == LKS_F16;
    if (!a->twin[w]) TRY(block_new(a, dtype, &a->twin[w]));
    for (int i = 0; i < a->slices; i++) {
        lksi_slice *s = &a->slice[i];
        if (s->twin[w]) continue;
        lks_tensor *t = slice_header(a, i, a->twin[w], dtype);
        if (!t) return LKS_ERR_MEMORY;
        s->twin[w] = t;
        s->twin_version[w] = -1;
    }
    return LKS_OK;
}

void lksi_arena_touched(lksi_arena *a, int twins_too)
{
    for (int i = 0; i < a->slices; i++) {
        lksi_slice *s = &a->slice[i];
        int64_t before = s->value->st->version++;
        for (int w = 0; w < 2; w++)
            /* A stale twin stays stale: a frozen slice is not rewritten, and a cast refreshes it when next asked for.
             */
            if (twins_too && s->twin[w] && s->twin_version[w] == before) {
                s->twin_version[w] = s->value->st->version;
                s->twin[w]->st->version++;
            }
    }
}
