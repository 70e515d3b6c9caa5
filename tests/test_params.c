/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_params.c - parameter sets: declaration, names, sealing, presence of gradients, freezing, staged buffers, and
 * that no failed allocation leaves anything behind.
 */
#include "grads.h"

#include "dispatch/dispatch.h"
#include "table/step.h"

static lks_context *ctx;
static const int64_t two[] = {2}, mat[] = {3, 5}, nothing[] = {0};

static void declaration(void)
{
    lks_params *ps;
    lks_tensor *w, *b, *t;
    ok(good(ctx, lks_params_create(ctx, &ps)), "create");
    ok(good(ctx, lks_params_add(ps, "w", LKS_F32, 2, mat, &w)), "add w");
    ok(good(ctx, lks_params_add_buffer(ps, "mean", LKS_F32, 1, two, &b)), "add a buffer");
    ok(lks_requires_grad(w) && !lks_requires_grad(b), "parameters require a gradient, buffers do not");
    is_int(lks_params_count(ps), 2, "count");
    is_str(lks_params_name(ps, 1), "mean", "name");
    ok(lks_params_tensor(ps, 0) == w && !lks_params_is_buffer(ps, 0) && lks_params_is_buffer(ps, 1),
       "tensor, is_buffer");
    is_int(lks_params_find(ps, "mean"), 1, "find");
    is_int(lks_params_find(ps, "mea"), LKS_ERR_NOT_FOUND, "a prefix is not found");
    is_int(lks_params_numel(ps), 15, "trainable elements");
    ok(lks_params_name(ps, 2) == NULL && lks_params_tensor(ps, -1) == NULL, "indices out of range give NULL");
    double x[15];
    get(w, x);
    int zero = 1;
    for (int i = 0; i < 15; i++) zero &= x[i] == 0;
    ok(zero, "zero-filled");

    /* B120: names are refused at registration, not at save */
    ok(fails(ctx, lks_params_add(ps, "", LKS_F32, 1, two, &t), LKS_ERR_ARGUMENT, "name", NULL), "B120 empty name");
    ok(fails(ctx, lks_params_add(ps, "w", LKS_F32, 1, two, &t), LKS_ERR_ARGUMENT, "\"w\"", NULL),
       "B120 duplicate name");
    ok(fails(ctx, lks_params_add_buffer(ps, "w", LKS_F32, 1, two, &t), LKS_ERR_ARGUMENT, "taken", NULL),
       "B120 duplicate of a parameter as a buffer");
    ok(t == NULL, "a failed call gives NULL");
    char name[1026];
    memset(name, 'a', sizeof name);
    name[1025] = 0;
    ok(fails(ctx, lks_params_add(ps, name, LKS_F32, 1, two, &t), LKS_ERR_ARGUMENT, "1025", NULL), "B120 1025 bytes");
    name[1024] = 0;
    ok(good(ctx, lks_params_add(ps, name, LKS_F32, 1, two, &t)), "B120 1024 bytes");
    static const char *const fine[] = {"conv1/conv", "conv1/bn", "conv1", ".", "..", "/abs", "a//b", "w.foo",
                                       "gewichtung-\xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9e"};
    for (int i = 0; i < 9; i++)
        ok(good(ctx, lks_params_add(ps, fine[i], LKS_F32, 0, NULL, &t)), "B120 name %s", fine[i]);
    static const char *const bad[] = {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80"};
    for (int i = 0; i < 6; i++)
        ok(fails(ctx, lks_params_add(ps, bad[i], LKS_F32, 1, two, &t), LKS_ERR_ARGUMENT, "UTF-8", NULL),
           "B120 bytes that are not UTF-8 (%d)", i);
    ok(fails(ctx, lks_params_add(ps, "i", LKS_I64, 1, two, &t), LKS_ERR_DTYPE, "int64", NULL),
       "parameters are floating");
    ok(good(ctx, lks_params_add_buffer(ps, "i", LKS_I64, 1, two, &t)), "buffers of any dtype");
    static const int64_t huge[] = {INT64_C(1) << 31, INT64_C(1) << 33};
    ok(fails(ctx, lks_params_add(ps, "huge", LKS_F32, 2, huge, &t), LKS_ERR_SHAPE, NULL, NULL),
       "a size that does not fit");
    lks_params_destroy(&ps);
    ok(ps == NULL, "destroy");
    lks_params_destroy(&ps);
    lks_params_destroy(NULL);
}

static void sealing(void)
{
    lks_params *ps;
    lks_tensor *a, *b, *c, *h, *d, *m, *e;
    double x[15], y[15];
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "a", LKS_F32, 2, mat, &a);
    lks_params_add(ps, "h", LKS_BF16, 1, two, &h);
    lks_params_add(ps, "m", LKS_F32, 1, two, &e);
    lks_params_add_buffer(ps, "buffer", LKS_F32, 1, two, &m);
    lks_params_add(ps, "b", LKS_F32, 0, NULL, &b);
    lks_params_add(ps, "d", LKS_F64, 1, two, &d);
    lks_params_add(ps, "empty", LKS_F32, 1, nothing, &c);
    for (int i = 0; i < 15; i++) x[i] = i + 1;
    put(a, x);
    put(m, x);
    /* a gradient from before sealing is kept */
    lks_scope_begin(ctx);
    lks_tensor *loss = lks_sum(lks_mul(a, a), 0, NULL, 0, LKS_DTYPE_NONE);
    int have = loss && good(ctx, lks_backward(loss, LKS_NONE, 0));
    lks_scope_end(ctx);
    ok(good(ctx, lks_params_seal(ps)), "seal");
    ok(good(ctx, lks_params_seal(ps)), "seal again");
    ok(ps->arena[LKS_F32] && ps->arena[LKS_F64] && ps->arena[LKS_BF16] && !ps->arena[LKS_F16], "one arena per dtype");
    is_int(ps->arena[LKS_F32]->slices, 4, "in order of declaration, empty ones too");
    ok(ps->e[0].slice == 0 && ps->e[2].slice == 1 && ps->e[4].slice == 2 && ps->e[6].slice == 3, "slices");
    is_int(ps->arena[LKS_F32]->slice[1].offset % LKSI_ARENA_ALIGN, 0, "aligned");
    get(a, y);
    ok(!memcmp(x, y, sizeof x), "values stay");
    ok(a->grad_slot && h->grad_slot && !m->grad_slot, "gradients have their place");
    if (have) {
        ok(a->grad == a->grad_slot && lksi_params_present(ps, 0) && !lksi_params_present(ps, 4),
           "an earlier gradient moves in");
        get(a->grad, y);
        ok(y[0] == 2 && y[14] == 30, "with its value");
    } else {
        ok(0, "backward before sealing");
        ok(0, "backward before sealing");
    }
    lks_tensor *t;
    ok(fails(ctx, lks_params_add(ps, "late", LKS_F32, 1, two, &t), LKS_ERR_STATE, "sealed", "late"),
       "no later parameter");
    ok(fails(ctx, lks_params_add_buffer(ps, "late", LKS_F32, 1, two, &t), LKS_ERR_STATE, NULL, NULL),
       "no later buffer");
    ok(good(ctx, lks_params_zero_grad(ps)) && !lksi_params_present(ps, 0) && lks_grad(a) == NULL && a->grad_slot,
       "zero_grad marks absent");

    /* freezing takes effect at zero_grad */
    int layout = ps->layout_version;
    ok(good(ctx, lks_params_set_trainable(ps, 0, 0)), "freeze");
    ok(lks_requires_grad(a) && ps->layout_version == layout, "not yet in force");
    is_int(lks_params_numel(ps), 22, "trainable elements before");
    ok(good(ctx, lks_params_zero_grad(ps)) && !lks_requires_grad(a) && ps->layout_version > layout,
       "in force at zero_grad");
    is_int(lks_params_numel(ps), 7, "trainable elements after");
    put_grad(a, x);
    ok(!lksi_params_present(ps, 0), "a frozen parameter has no gradient, whatever is there");
    lks_params_set_trainable(ps, 0, 1);
    lks_params_zero_grad(ps);
    ok(lks_requires_grad(a), "and back");
    ok(fails(ctx, lks_params_set_trainable(ps, 3, 1), LKS_ERR_ARGUMENT, NULL, NULL), "a buffer cannot be trained");
    ok(fails(ctx, lks_params_set_trainable(ps, 99, 1), LKS_ERR_ARGUMENT, NULL, NULL), "index out of range");
    lks_params_destroy(&ps);
}

/* Runs buffers_commit with a step that was applied or not. */
static void commit(lks_params *ps, int ran)
{
    lksi_step host;
    memset(&host, 0, sizeof host);
    host.ran = ran;
    void *p;
    int64_t bytes = sizeof host;
    lksi_view v;
    lksi_device_alloc(ctx->dev, bytes, &p);
    lksi_device_write(ctx->dev, p, &host, bytes);
    lksi_view_init(&v, LKS_U8, 1, &bytes);
    v.data = p;
    ok(good(ctx, lksi_params_commit(ps, "test", &v)), "commit");
    lksi_device_free(ctx->dev, p);
}

static void staging(int early)
{
    lks_params *ps;
    lks_tensor *w, *m, *v, *k;
    double one[] = {1, 2}, other[] = {5, 6}, x[2], y[2];
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, 1, two, &w);
    lks_params_add_buffer(ps, "mean", LKS_F32, 1, two, &m);
    lks_params_add_buffer(ps, "count", LKS_I64, 1, two, &k);
    lks_params_add_buffer(ps, "var", LKS_F32, 1, two, &v);
    put(m, one);
    put(v, one);
    ok(lksi_params_staged(ps, 2) == NULL && lksi_params_staged(ps, 0) == NULL, "only float32 buffers are staged");
    lks_tensor *s = NULL;
    if (early) { /* a forward pass before sealing */
        s = lksi_params_staged(ps, 1);
        get(s, x);
        ok(x[0] == 1 && x[1] == 2, "staged starts with the running value");
        put(s, other);
    }
    ok(good(ctx, lks_params_seal(ps)), "seal");
    if (!early) {
        s = lksi_params_staged(ps, 1);
        put(s, other);
    }
    ok(s == ps->e[1].staged, "the staged tensor stays");
    commit(ps, 0);
    get(m, x);
    get(s, y);
    ok(x[0] == 1 && x[1] == 2 && y[0] == 1 && y[1] == 2, "a skipped step takes staged values back");
    put(lksi_params_staged(ps, 1), other);
    commit(ps, 1);
    get(m, x);
    get(v, y);
    ok(x[0] == 5 && x[1] == 6 && y[0] == 1 && y[1] == 2, "an applied step keeps them, and nothing else changes");
    /* written from outside between two passes: a load */
    put(v, other);
    get(lksi_params_staged(ps, 3), x);
    ok(x[0] == 5 && x[1] == 6, "staged follows what others wrote");
    put(ps->e[3].staged, one);
    put(v, other);
    commit(ps, 1);
    get(v, x);
    ok(x[0] == 5 && x[1] == 6, "a value written during the window stands");
    put(m, one);
    put(lksi_params_staged(ps, 3), one);
    commit(ps, 1);
    get(m, x);
    get(v, y);
    ok(x[0] == 1 && x[1] == 2 && y[0] == 1 && y[1] == 2, "so does one next to a committed one");
    lks_params_destroy(&ps);
}

/* Every allocation fails once: the call says so, and repeating it after that works. */
static void memory(void)
{
    int64_t blocks = lksi_blocks_in_use(&ctx->base), tensors = lks_live_tensors(ctx), used = lks_memory_used(ctx);
    int tried = 0, clean = 1, repeated = 1;
    for (int64_t n = 1; n < 200; n++) {
        lks_params *ps = NULL;
        lks_tensor *t;
        lks_status s = lks_params_create(ctx, &ps);
        if (s == LKS_OK) s = lks_params_add(ps, "w", LKS_F32, 2, mat, &t);
        if (s == LKS_OK) s = lks_params_add(ps, "h", LKS_F16, 1, two, &t);
        if (s == LKS_OK) s = lks_params_add_buffer(ps, "m", LKS_F32, 1, two, &t);
        ctx->base.fail_at = n;
        if (s == LKS_OK) s = lks_params_add_buffer(ps, "v", LKS_F32, 1, two, &t);
        if (s == LKS_OK) s = lks_params_seal(ps);
        int failed = s != LKS_OK;
        ctx->base.fail_at = 0;
        clean &= !failed || (s == LKS_ERR_MEMORY && lks_error_code(ctx) == LKS_ERR_MEMORY);
        lks_error_clear(ctx);
        repeated &= lks_params_seal(ps) == LKS_OK;
        lks_params_destroy(&ps);
        int same = lksi_blocks_in_use(&ctx->base) == blocks && lks_live_tensors(ctx) == tensors &&
                   lks_memory_used(ctx) == used;
        if (!same)
            diag("allocation %lld: blocks %+lld, tensors %+lld, bytes %+lld", (long long)n,
                 (long long)(lksi_blocks_in_use(&ctx->base) - blocks), (long long)(lks_live_tensors(ctx) - tensors),
                 (long long)(lks_memory_used(ctx) - used));
        clean &= same;
        tried += failed;
        if (!failed) break;
    }
    ok(clean && tried > 5, "each of %d failed allocations is reported and leaves nothing behind", tried);
    ok(repeated, "sealing can be tried again");
}

int main(void)
{
    static const char *const device[] = {"cpu", "far"};
    for (int i = 0; i < 2; i++) {
        ctx = context_on(device[i]);
        diag("device %s", device[i]);
        lks_scope_begin(ctx);
        declaration();
        sealing();
        staging(0);
        staging(1);
        memory();
        lks_scope_end(ctx);
        is_int(lks_live_tensors(ctx), 0, "no tensor is left");
        lks_context_destroy(&ctx);
    }
    int status = done();
    lks_finalize();
    return status;
}
