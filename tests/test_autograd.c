/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_autograd.c - the backward walk as a program sees it: accumulation, graphs kept and freed, changes in place,
 * hooks, gradients without .grad, second order, sealed parameters, depth, memory that stays flat; and cases where
 * others went wrong. Gradients of single ops are in test_ops.c.
 */
#include "arrays.h"
#include "errors.h"
#include "grad/grad.h"
#include <lockstep/nn.h>
#include <sys/resource.h>

static lks_context *ctx;

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define COUNT(...) (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__}
#define ALL 0, NULL, 0, LKS_DTYPE_NONE

static lks_tensor *total(lks_tensor *x) { return lks_sum(x, ALL); }

static lks_tensor *filled(int64_t n, const double *v, lks_dtype dtype, int ndim, const int64_t *shape)
{
    (void)n;
    return lks_to(lks_from_host(ctx, LKS_F64, ndim, shape, v), dtype);
}

static lks_tensor *leaf_of(lks_tensor *t)
{
    lks_set_requires_grad(t, 1);
    return t;
}

/* A float32 vector; one that requires a gradient. */
#define CONST(...)                                                                                             \
    filled(COUNT(__VA_ARGS__), LKS_F32, 1, (int64_t[]){(int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double))})
#define LEAF(...) leaf_of(CONST(__VA_ARGS__))

static int holds(lks_tensor *t, int64_t n, const double *want)
{
    double *v = t ? values_of(ctx, t) : NULL;
    int same = v && lks_numel(t) == n;
    if (!t) diag("no tensor: %s", lks_error(ctx));
    for (int64_t i = 0; i < n && same; i++)
        if (!(same = v[i] == want[i] || (isnan(v[i]) && isnan(want[i])) ||
              fabs(v[i] - want[i]) <= 1e-6 * fabs(want[i])))
            diag("element %lld: %.9g, not %.9g", (long long)i, v[i], want[i]);
    free(v);
    return same;
}
#define HOLDS(t, ...) holds(t, COUNT(__VA_ARGS__))

static int shaped(const lks_tensor *t, int ndim, const int64_t *shape)
{
    return t && lks_ndim(t) == ndim && (!ndim || !memcmp(lks_shape(t), shape, (size_t)ndim * sizeof *shape));
}

static int fine(lks_status s)
{
    if (s == LKS_OK) return 1;
    diag("%s: %s", lks_status_name(s), lks_error(ctx));
    lks_error_clear(ctx);
    return 0;
}

static int fails(lks_status s, lks_status want, const char *a, const char *b)
{
    return recorded(ctx, s == want, want, a, b);
}

/* --- leaves --- */

static void test_leaves(void)
{
    lks_tensor *x = LEAF(1, 2), *c = CONST(3, 4), *i = lks_arange(ctx, LKS_I64, 3);
    ok(lks_requires_grad(x) && !lks_requires_grad(c) && !lks_grad(x), "no gradient before the first backward");
    ok(fails(lks_set_requires_grad(i, 1), LKS_ERR_DTYPE, "int64", "floating"), "integers have none");
    is_int(lks_set_requires_grad(i, 0), LKS_OK, "turning off is always allowed");
    lks_tensor *y = lks_mul(x, c);
    ok(lks_requires_grad(y) && !lks_requires_grad(lks_mul(c, c)), "results of recorded ops require one");
    ok(fails(lks_set_requires_grad(y, 0), LKS_ERR_STATE, "mul", "leaf"), "and are not leaves");
    ok(!lks_requires_grad(lks_gt(x, c)) && !lks_requires_grad(lks_argmax(x, 0, 0)), "integers and bools do not");
    ok(!lks_requires_grad(lks_to(x, LKS_I32)), "nor do casts to integers");
    ok(fails(lks_backward(y, LKS_NONE, 0), LKS_ERR_SHAPE, "float32[2]", "one element"), "a vector needs a gradient");
    ok(fails(lks_backward(y, lks_zeros(ctx, LKS_F32, SHAPE(3)), 0), LKS_ERR_SHAPE, "[3]", "[2]"), "of its own shape");
    ok(fails(lks_backward(total(c), LKS_NONE, 0), LKS_ERR_STATE, "does not depend", ""), "a constant has no backward");
    ok(fine(lks_backward(total(y), LKS_NONE, 0)) && HOLDS(lks_grad(x), 3, 4), "the gradient");
    ok(!lks_grad(c) && !lks_grad(y), "of the leaf alone");
    ok(fine(lks_backward(total(lks_mul(x, c)), LKS_NONE, 0)) && HOLDS(lks_grad(x), 6, 8), "adds up");
    lks_tensor *kept = lks_keep(lks_grad(x));
    ok(fine(lks_backward(total(lks_mul(x, c)), LKS_NONE, 0)) && HOLDS(lks_grad(x), 9, 12) && HOLDS(kept, 6, 8),
       "a gradient that the program keeps is left as it is");
    lks_release(kept);
    lks_zero_grad(x);
    ok(!lks_grad(x), "zero_grad drops it");
    ok(fine(lks_backward(total(lks_mul(x, c)), LKS_NONE, 0)) && HOLDS(lks_grad(x), 3, 4), "and it starts anew");
    lks_set_requires_grad(x, 0);
    ok(!lks_requires_grad(lks_mul(x, c)) && lks_grad(x), "a frozen leaf keeps what it has");
    /* The root itself a leaf. */
    lks_tensor *z = LEAF(5), *seed = CONST(2);
    ok(fine(lks_backward(z, LKS_NONE, 0)) && HOLDS(lks_grad(z), 1), "a leaf as root gets the gradient given");
    lks_zero_grad(z);
    ok(fine(lks_backward(z, seed, 0)) && HOLDS(lks_grad(z), 2) && lks_grad(z)->st != seed->st,
       "in memory of its own, not in that of the program's tensor");
    /* Given gradients and saved tensors are not changed, and gradients do not share memory. */
    lks_tensor *a = LEAF(1, 2), *b = LEAF(3, 4);
    seed = CONST(1, 1);
    lks_backward(lks_add(a, b), seed, 0);
    ok(lks_grad(a)->st != lks_grad(b)->st && lks_grad(a)->st != seed->st && lks_grad(b)->st != seed->st,
       "each in its own memory");
    lks_backward(total(lks_mul_scalar(a, 2)), LKS_NONE, 0);
    ok(HOLDS(lks_grad(a), 3, 3) && HOLDS(lks_grad(b), 1, 1) && HOLDS(seed, 1, 1), "so that one may grow alone");
    lks_tensor *e = LEAF(1);
    lks_backward(total(lks_expand(e, SHAPE(4))), LKS_NONE, 0);
    ok(HOLDS(lks_grad(e), 4) && lks_is_contiguous(lks_grad(e)), "a repeated gradient is summed");
    e = LEAF(1, 2);
    lks_backward(total(e), LKS_NONE, 0);
    ok(HOLDS(lks_grad(e), 1, 1) && lks_is_contiguous(lks_grad(e)), "an expanded one is laid out");
    lks_fill_(lks_grad(e), 5);
    ok(HOLDS(lks_grad(e), 5, 5), "and may be written");
    /* dtypes of leaves. */
    for (int k = 0; k < 4; k++) {
        lks_tensor *h = leaf_of(lks_ones(ctx, array_floats[k], SHAPE(2)));
        ok(fine(lks_backward(total(lks_to(h, LKS_F32)), LKS_NONE, 0)) && lks_dtype_of(lks_grad(h)) == array_floats[k] &&
               HOLDS(lks_grad(h), 1, 1), "gradient of a %s leaf", lks_dtype_name(array_floats[k]));
    }
}

/* --- graphs --- */

static void test_graphs(void)
{
    lks_tensor *x = LEAF(2), *y = lks_mul(x, x), *z = total(lks_mul(y, x));
    ok(fine(lks_backward(z, LKS_NONE, 1)) && HOLDS(lks_grad(x), 12), "x^3");
    ok(fine(lks_backward(z, LKS_NONE, 0)) && HOLDS(lks_grad(x), 24), "again over a graph that was kept");
    ok(fails(lks_backward(z, LKS_NONE, 0), LKS_ERR_MODIFIED, "freed", "retain"), "a third time it is gone");
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_MODIFIED, "mul", "freed"), "as is every part of it");
    ok(HOLDS(lks_grad(x), 24), "a failed backward adds nothing");
    /* Two losses over one trunk. */
    lks_zero_grad(x);
    y = lks_mul(x, x);
    lks_tensor *one = total(lks_mul_scalar(y, 3)), *two = total(lks_mul(y, y));
    ok(fine(lks_backward(one, LKS_NONE, 1)) && fine(lks_backward(two, LKS_NONE, 0)) && HOLDS(lks_grad(x), 12 + 32),
       "several losses over one graph");
    lks_zero_grad(x);
    y = lks_mul(x, x);
    ok(fine(lks_backward(lks_add(total(lks_mul_scalar(y, 3)), total(lks_mul(y, y))), LKS_NONE, 0)) &&
       HOLDS(lks_grad(x), 44),
       "and their sum at once");
    /* A failure in the middle: nothing leaks, the graph is still there. */
    lks_zero_grad(x);
    int64_t live = lks_live_tensors(ctx), nodes = lks_live_nodes(ctx);
    lks_scope_begin(ctx);
    lks_tensor *m = lks_clone(lks_mul_scalar(x, 1)), *w = total(lks_mul(m, m));
    lks_fill_(lks_detach(m), 9);
    ok(fails(lks_backward(w, LKS_NONE, 0), LKS_ERR_MODIFIED, "mul", "changed in place"), "a saved tensor was changed");
    ok(!lks_grad(x), "no gradient came through");
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), live, "tensors after the failure");
    is_int(lks_live_nodes(ctx), nodes, "nodes after the failure");
    /* Dead branches. */
    lks_scope_begin(ctx);
    lks_tensor *kept = lks_keep(lks_mul(x, x));
    for (int i = 0; i < 10; i++) lks_exp(lks_mul(x, x));
    ok(lks_live_nodes(ctx) == nodes + 21, "21 nodes");
    lks_scope_end(ctx);
    is_int(lks_live_nodes(ctx), nodes + 1, "dead branches free themselves");
    ok(fine(lks_backward(total(kept), LKS_NONE, 0)) && HOLDS(lks_grad(x), 4), "a kept result still has its graph");
    lks_release(kept);
    is_int(lks_live_nodes(ctx), nodes + 1, "but for the sum in this scope");
    /* A leaf that the program let go lives as long as its graph. */
    lks_scope_begin(ctx);
    lks_scope_begin(ctx);
    lks_tensor *gone = LEAF(3), *out = lks_scope_leave(ctx, total(lks_mul(gone, gone)));
    ok(fine(lks_backward(out, LKS_NONE, 0)), "backward to a leaf nobody else holds");
    lks_scope_end(ctx);
}

static void test_in_place(void)
{
    lks_tensor *x = LEAF(2, 3), *c = CONST(5, 7), *y = lks_mul(x, c);
    lks_fill_(c, 1);
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_MODIFIED, "input 1 of mul", "float32[2]"),
       "a constant that was saved");
    y = lks_add(x, c);
    lks_fill_(c, 2);
    ok(fine(lks_backward(total(y), LKS_NONE, 0)), "one that was not saved may change");
    lks_zero_grad(x);
    y = lks_exp(x);
    lks_fill_(lks_detach(y), 0);
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_MODIFIED, "output 0 of exp", ""), "a result that was saved");
    lks_tensor *base = lks_zeros(ctx, LKS_F32, SHAPE(4));
    y = lks_mul(x, lks_slice(base, 0, 0, 2, 1));
    lks_fill_(lks_slice(base, 0, 2, 4, 1), 1);
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_MODIFIED, "input 1 of mul", ""),
       "a write to another part of the memory counts, too");
    y = lks_mul(x, c);
    lks_no_grad_begin(ctx);
    lks_fill_(x, 4);
    lks_no_grad_end(ctx);
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_MODIFIED, "input 0 of mul", ""),
       "a leaf written under no_grad");
    lks_tensor *z = LEAF(1), *s = lks_mul(z, z);
    float three = 3;
    lks_no_grad_begin(ctx);
    lks_set_from_host(z, &three, 4);
    lks_no_grad_end(ctx);
    ok(fails(lks_backward(s, LKS_NONE, 0), LKS_ERR_MODIFIED, "mul", ""), "or from the host");
    ok(fails(lks_set_from_host(z, &three, 4), LKS_ERR_STATE, "lks_set_from_host", "no_grad"),
       "which is refused while ops are recorded");
    ok(fails(lks_copy_(z, z), LKS_ERR_STATE, "lks_copy_", "") &&
       fails(lks_normal_(z, 0, 1), LKS_ERR_STATE, "lks_normal_", ""),
       "like every write to a leaf");
    s = lks_mul(z, z);
    ok(fine(lks_backward(s, LKS_NONE, 0)) && HOLDS(lks_grad(z), 6), "after a new forward all is well");
    /* Running statistics are written by batch_norm: a graph that saved them must know. */
    lks_tensor *mean = lks_zeros(ctx, LKS_F32, SHAPE(1)), *var = lks_ones(ctx, LKS_F32, SHAPE(1));
    lks_tensor *q = lks_mul(z, mean), *in = lks_reshape(lks_arange(ctx, LKS_F32, 4), SHAPE(4, 1));
    lks_batch_norm(in, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, mean, var, 1, 0.5, 1e-5);
    ok(HOLDS(mean, 0.75), "a staged mean");
    ok(fails(lks_backward(q, LKS_NONE, 0), LKS_ERR_MODIFIED, "input 1 of mul", ""), "counts as changed in place");
}

static void test_modes(void)
{
    lks_tensor *x = LEAF(2), *y;
    int64_t nodes = lks_live_nodes(ctx);
    ok(lks_grad_enabled(ctx), "recording at first");
    lks_no_grad_begin(ctx);
    lks_no_grad_begin(ctx);
    lks_no_grad_end(ctx);
    ok(!lks_grad_enabled(ctx), "regions nest");
    y = lks_mul(x, x);
    lks_no_grad_end(ctx);
    ok(lks_grad_enabled(ctx) && !lks_requires_grad(y) && lks_live_nodes(ctx) == nodes, "nothing was recorded");
    ok(fails(lks_no_grad_end(ctx), LKS_ERR_STATE, "lks_no_grad_end", ""), "an end too many");
    y = lks_detach(lks_mul(x, x));
    ok(!lks_requires_grad(y) && HOLDS(y, 4), "detach has no history");
    ok(fine(lks_set_requires_grad(y, 1)) && fine(lks_backward(lks_mul(lks_mul(y, x), y), LKS_NONE, 0)) &&
           HOLDS(lks_grad(x), 16) && HOLDS(lks_grad(y), 16), "and may be a leaf of its own");
    /* Backward inside no_grad, and after it the mode is as before. */
    lks_zero_grad(x);
    y = lks_mul(x, x);
    lks_no_grad_begin(ctx);
    ok(fine(lks_backward(y, LKS_NONE, 0)) && HOLDS(lks_grad(x), 4) && !lks_grad_enabled(ctx),
       "backward inside no_grad");
    lks_no_grad_end(ctx);
    ok(!lks_requires_grad(lks_grad(x)), "a gradient is a constant");
}

/* --- hooks --- */

typedef struct record {
    int calls, graded;
    double value;
    lks_status give;
    int64_t remove, other;
    lks_tensor *leaf;
} record;

static lks_status hook(void *user, lks_tensor *leaf, lks_tensor *grad)
{
    record *r = user;
    r->calls++;
    r->leaf = leaf;
    r->graded = lks_grad(leaf) == grad;
    if (lks_numel(grad) == 1) lks_item(grad, &r->value);
    if (r->remove) lks_hook_remove(leaf, r->remove);
    if (r->other) lks_hook_remove(leaf, r->other);
    r->remove = r->other = 0;
    return r->give;
}

static void test_hooks(void)
{
    lks_tensor *x = LEAF(2), *y = LEAF(3);
    record r = {0}, q = {0}, third = {0};
    int64_t id = 0, id2 = 0, id3 = 0;
    ok(fine(lks_hook_add(x, hook, &r, &id)) && fine(lks_hook_add(x, hook, &q, &id2)) && id != id2, "two hooks");
    ok(fails(lks_hook_add(lks_mul(x, x), hook, &r, NULL), LKS_ERR_STATE, "lks_hook_add", "leaves"), "not on results");
    ok(fails(lks_hook_add(CONST(1), hook, &r, NULL), LKS_ERR_STATE, "lks_hook_add", "leaves"), "nor on constants");
    lks_tensor *a = lks_mul(x, y), *b = lks_mul(x, x);
    ok(fine(lks_backward(lks_add(lks_mul(a, b), lks_mul_scalar(x, 5)), LKS_NONE, 0)), "x used four times");
    ok(r.calls == 1 && q.calls == 1 && r.leaf == x && r.graded, "each fires once");
    is_double(r.value, 3 * 4 * 3 + 5, 0, "after the last contribution");
    fine(lks_backward(lks_mul(x, y), LKS_NONE, 0));
    ok(r.calls == 2 && r.value == 41 + 3, "once per backward, with the accumulated gradient");
    fine(lks_backward(lks_mul(y, y), LKS_NONE, 0));
    is_int(r.calls, 2, "not when the leaf has no part in it");
    lks_tensor *none[1] = {NULL};
    fine(lks_gradients(lks_mul(x, x), LKS_NONE, 1, &x, 0, 0, none));
    is_int(r.calls, 2, "nor for lks_gradients");
    ok(fine(lks_hook_remove(x, id)) && fails(lks_hook_remove(x, id), LKS_ERR_NOT_FOUND, "lks_hook_remove", ""),
       "removed once");
    fine(lks_backward(lks_mul(x, x), LKS_NONE, 0));
    ok(r.calls == 2 && q.calls == 3, "the other one stays");
    /* Hooks that remove themselves and each other while they run. */
    lks_hook_remove(x, id2);
    r = q = third = (record){0};
    lks_hook_add(x, hook, &r, &id);
    lks_hook_add(x, hook, &q, &id2);
    lks_hook_add(x, hook, &third, &id3);
    r.remove = id;
    r.other = id2;
    fine(lks_backward(lks_mul(x, x), LKS_NONE, 0));
    ok(r.calls == 1 && q.calls == 0 && third.calls == 1, "a hook may remove itself and the next");
    /* A status stops the walk. */
    third.give = LKS_ERR_INTERRUPTED;
    lks_tensor *z = LEAF(1);
    int64_t nodes = lks_live_nodes(ctx);
    lks_scope_begin(ctx);
    lks_tensor *first = lks_mul(z, z); /* older: its turn comes after x */
    is_int(lks_backward(lks_add(lks_exp(first), lks_mul(x, x)), LKS_NONE, 0), LKS_ERR_INTERRUPTED,
           "a hook's status is returned");
    ok(strstr(lks_error(ctx), "hook") && strstr(lks_error(ctx), "INTERRUPTED"),
       "with a text that says whose it is (%s)", lks_error(ctx));
    lks_error_clear(ctx);
    ok(!lks_grad(z) && lks_grad_enabled(ctx), "the rest is not walked");
    lks_scope_end(ctx);
    is_int(lks_live_nodes(ctx), nodes, "and nothing is left of it");
    /* A leaf one of whose paths carries nothing: the hook still comes, once, at the end. */
    third = (record){0};
    lks_zero_grad(x);
    lks_tensor *parts[2] = {lks_mul_scalar(x, 2), lks_slice(x, 0, 0, 0, 1)};
    fine(lks_backward(total(lks_cat(2, parts, 0)), LKS_NONE, 0));
    ok(third.calls == 1 && third.value == 2, "a path without gradient");
    lks_tensor *dead = LEAF(1, 2), *values, *m = lks_exp(dead);
    record d = {0};
    lks_hook_add(dead, hook, &d, NULL);
    lks_max(m, 0, 0, &values, NULL);
    fine(lks_backward(values, LKS_NONE, 0));
    ok(d.calls == 1 && HOLDS(lks_grad(dead), 0, exp(2)), "through max");
}

/* A leaf that is frozen between forward and backward. */
static void test_frozen_since(void)
{
    lks_tensor *x = LEAF(2), *y = LEAF(3), *z;
    record r = {0};
    lks_hook_add(x, hook, &r, NULL);
    fine(lks_backward(lks_mul(x, y), LKS_NONE, 0));
    ok(r.calls == 1 && HOLDS(lks_grad(x), 3) && HOLDS(lks_grad(y), 2), "both get theirs");
    z = lks_mul(lks_mul(x, x), y);
    lks_set_requires_grad(x, 0);
    ok(fine(lks_backward(z, LKS_NONE, 0)) && HOLDS(lks_grad(x), 3) && HOLDS(lks_grad(y), 6) && r.calls == 1,
       "a leaf that was turned off since the forward gets no more, and its hook is not called");
    lks_set_requires_grad(x, 1);
    fine(lks_backward(lks_mul(x, y), LKS_NONE, 0));
    ok(r.calls == 2 && HOLDS(lks_grad(x), 6), "and on again");
}

static lks_status nested(void *user, lks_tensor *leaf, lks_tensor *grad)
{
    (void)grad;
    *(lks_status *)user = lks_backward(lks_mul(leaf, leaf), LKS_NONE, 0);
    lks_error_clear(ctx);
    return LKS_OK;
}

/* The result of a hook's own call, made before so that it has a graph. */
static lks_tensor *made_before;
static lks_status nested_graph(void *user, lks_tensor *leaf, lks_tensor *grad)
{
    (void)leaf, (void)grad;
    *(lks_status *)user = lks_backward(made_before, LKS_NONE, 0);
    lks_error_clear(ctx);
    return LKS_OK;
}

static void test_nested(void)
{
    lks_tensor *x = LEAF(2), *z = LEAF(3);
    lks_status inner = LKS_OK;
    lks_hook_add(x, nested, &inner, NULL);
    ok(fine(lks_backward(lks_mul(x, x), LKS_NONE, 0)) && inner == LKS_ERR_STATE, "nothing is recorded in a hook");
    made_before = lks_mul(z, z);
    x = LEAF(2);
    inner = LKS_OK;
    lks_hook_add(x, nested_graph, &inner, NULL);
    ok(fine(lks_backward(lks_mul(x, z), LKS_NONE, 0)) && inner == LKS_ERR_STATE && HOLDS(lks_grad(z), 2),
       "and a backward from one is refused");
    ok(fine(lks_backward(made_before, LKS_NONE, 0)) && HOLDS(lks_grad(z), 8), "after it all is as before");
}

/* --- lks_gradients --- */

static void test_gradients(void)
{
    lks_tensor *x = LEAF(2), *w = LEAF(3), *other = LEAF(1), *g[4];
    lks_tensor *h = lks_mul(x, w), *y = lks_mul(h, h); /* x^2 w^2 */
    lks_tensor *in[4] = {x, h, other, x};
    ok(fine(lks_gradients(y, LKS_NONE, 4, in, 1, 0, g)) && HOLDS(g[0], 36) && HOLDS(g[1], 12) && !g[2] &&
       HOLDS(g[3], 36),
       "leaves, results, none for what has no part, one asked for twice");
    ok(!lks_grad(x) && !lks_grad(w), "no .grad was touched");
    ok(fine(lks_gradients(y, LKS_NONE, 1, &y, 1, 0, g)) && HOLDS(g[0], 1), "the root itself");
    ok(fine(lks_gradients(y, LKS_NONE, 0, NULL, 1, 0, g)) && !lks_grad(x), "nothing asked for changes nothing");
    ok(fine(lks_gradients(y, CONST(2), 1, in, 0, 0, g)) && HOLDS(g[0], 72), "with a gradient given");
    ok(fails(lks_gradients(y, LKS_NONE, 1, in, 0, 0, g), LKS_ERR_MODIFIED, "lks_gradients", "freed") && !g[0],
       "the graph was freed");
    lks_tensor *c = CONST(1);
    ok(fails(lks_gradients(lks_mul(x, x), LKS_NONE, 1, &c, 0, 0, g), LKS_ERR_STATE, "input 0", "require"),
       "a constant is refused");
    in[0] = NULL;
    ok(lks_gradients(y, LKS_NONE, 1, in, 0, 0, g) == LKS_ERR_ARGUMENT && !g[0], "NULL passes");
    /* Gradients belong to the caller's scope. */
    int64_t live = lks_live_tensors(ctx);
    lks_scope_begin(ctx);
    fine(lks_gradients(lks_mul(x, x), LKS_NONE, 1, &x, 0, 0, g));
    ok(HOLDS(g[0], 4), "2 x");
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), live, "and end with it");
    /* Second and third order: x^3 at 2. */
    lks_tensor *cube = lks_mul(lks_mul(x, x), x), *g1, *g2, *g3;
    ok(fine(lks_gradients(cube, LKS_NONE, 1, &x, 0, 1, &g1)) && HOLDS(g1, 12) && lks_requires_grad(g1), "3 x^2");
    ok(fine(lks_gradients(g1, LKS_NONE, 1, &x, 0, 1, &g2)) && HOLDS(g2, 12), "6 x");
    ok(fine(lks_gradients(g2, LKS_NONE, 1, &x, 0, 1, &g3)) && HOLDS(g3, 6), "6");
    ok(!lks_grad(x), "still no .grad");
    /* Gradient penalty: |d/dx f|^2 with a graph, then backward into .grad. */
    lks_tensor *v = LEAF(1, 2), *s = total(lks_exp(lks_mul_scalar(v, 0.5))), *gv;
    ok(fine(lks_gradients(s, LKS_NONE, 1, &v, 0, 1, &gv)) && fine(lks_backward(total(lks_mul(gv, gv)), LKS_NONE, 0)) &&
           HOLDS(lks_grad(v), 0.25 * exp(1), 0.25 * exp(2)), "a penalty on a gradient");
    /* Results in the middle of a tree of views, and an intermediate used twice. */
    lks_tensor *a = LEAF(1, 2, 3, 4), *mid = lks_mul_scalar(a, 2), *gm[2], *ask[2] = {mid, a};
    lks_tensor *sum = lks_add(total(lks_slice(mid, 0, 0, 2, 1)), total(lks_mul(mid, mid)));
    ok(fine(lks_gradients(sum, LKS_NONE, 2, ask, 0, 0, gm)) && HOLDS(gm[0], 5, 9, 12, 16) &&
       HOLDS(gm[1], 10, 18, 24, 32),
       "of a result whose parts are used apart");
    /* What was captured is not changed by the walk that goes on. */
    lks_tensor *p = lks_mul_scalar(a, 1), *q = lks_clone(p), *ask2[3] = {q, p, a}, *g4[3];
    ok(fine(lks_gradients(total(lks_add(lks_mul_scalar(q, 3), p)), LKS_NONE, 3, ask2, 0, 0, g4)) &&
       HOLDS(g4[0], 3, 3, 3, 3) &&
           HOLDS(g4[1], 4, 4, 4, 4) && HOLDS(g4[2], 4, 4, 4, 4), "chained results each have their own gradient");
}

/* Random graphs against numbers: along one random direction, by forward mode on the host. */
static void test_random_graphs(void)
{
    enum { LEAVES = 3, NODES = 16 };
    int bad = 0;
    uint64_t state = 12345;
#define DICE(n) ((state = state * 6364136223846793005u + 1442695040888963407u), (int)((state >> 33) % (uint64_t)(n)))
    for (int round = 0; round < 400 && !bad; round++) {
        double v[LEAVES + NODES][2], dv[LEAVES + NODES][2];
        lks_tensor *t[LEAVES + NODES];
        lks_scope_begin(ctx);
        for (int i = 0; i < LEAVES; i++) {
            for (int e = 0; e < 2; e++) v[i][e] = 0.5 + 0.25 * DICE(4), dv[i][e] = 0.25 * DICE(9) - 1;
            t[i] = leaf_of(lks_from_host(ctx, LKS_F64, SHAPE(2), v[i]));
        }
        for (int i = LEAVES; i < LEAVES + NODES; i++) {
            int a = DICE(i), b = DICE(i), kind = DICE(9);
            lks_tensor *ab[2] = {NULL, NULL};
            switch (kind) {
            case 0: t[i] = lks_add(t[a], t[b]); break;
            case 1: t[i] = lks_sub(t[a], t[b]); break;
            case 2: t[i] = lks_tanh(lks_mul(t[a], t[b])); break;
            case 3: t[i] = lks_clone(t[a]); break;
            case 4: t[i] = lks_mul_scalar(t[a], -0.5); break;
            case 5: t[i] = lks_reshape(lks_reshape(t[a], SHAPE(1, 2)), SHAPE(2)); break;
            case 6: /* first of a, second of b */
                ab[0] = lks_slice(t[a], 0, 0, 1, 1), ab[1] = lks_slice(t[b], 0, 1, 2, 1);
                t[i] = lks_cat(2, ab, 0);
                break;
            case 7: /* turned round */
                ab[0] = lks_slice(t[a], 0, 1, 2, 1), ab[1] = lks_slice(t[a], 0, 0, 1, 1);
                t[i] = lks_cat(2, ab, 0);
                break;
            default: t[i] = lks_expand(lks_sum(t[a], 1, (int[]){0}, 1, LKS_DTYPE_NONE), SHAPE(2));
            }
            for (int e = 0; e < 2; e++) {
                double th = tanh(v[a][e] * v[b][e]);
                v[i][e] = kind == 0 ? v[a][e] + v[b][e] : kind == 1 ? v[a][e] - v[b][e] : kind == 2 ? th
                        : kind == 4 ? -0.5 * v[a][e] : kind == 6 ? v[e ? b : a][e] : kind == 7 ? v[a][1 - e]
                        : kind == 8 ? v[a][0] + v[a][1] : v[a][e];
                dv[i][e] = kind == 0 ? dv[a][e] + dv[b][e] : kind == 1 ? dv[a][e] - dv[b][e]
                         : kind == 2 ? (1 - th * th) * (dv[a][e] * v[b][e] + v[a][e] * dv[b][e])
                         : kind == 4 ? -0.5 * dv[a][e] : kind == 6 ? dv[e ? b : a][e] : kind == 7 ? dv[a][1 - e]
                         : kind == 8 ? dv[a][0] + dv[a][1] : dv[a][e];
            }
        }
        double w[2] = {1, -2}, want = dv[LEAVES + NODES - 1][0] - 2 * dv[LEAVES + NODES - 1][1];
        lks_tensor *root = t[LEAVES + NODES - 1], *seed = lks_from_host(ctx, LKS_F64, SHAPE(2), w);
        for (int way = 0; way < 3 && !bad; way++) { /* .grad; gradients; gradients with a graph */
            lks_tensor *g[LEAVES] = {NULL};
            bad = !fine(way ? lks_gradients(root, seed, LEAVES, t, 1, way == 2, g) : lks_backward(root, seed, 1));
            double sum = 0;
            for (int l = 0; l < LEAVES && !bad; l++) {
                lks_tensor *have = way ? g[l] : lks_grad(t[l]);
                double got[2] = {0, 0};
                if (have) lks_to_host(have, got, sizeof got);
                sum += got[0] * dv[l][0] + got[1] * dv[l][1];
            }
            if (!(fabs(sum - want) <= 1e-12 * (1 + fabs(want) + fabs(sum)))) {
                diag("round %d, way %d: %.17g, not %.17g", round, way, sum, want);
                bad = 1;
            }
        }
        lks_scope_end(ctx);
        if (lks_live_nodes(ctx)) bad = 1;
    }
    ok(!bad, "400 random graphs, three ways each");
}

/* --- sealed parameters: gradients are written straight into their slots --- */

enum { W, V, B, C, K, KB, PARAMS };
static const char *const param_name[PARAMS] = {"w", "v", "b", "c", "k", "kb"};
static const int64_t param_shape[PARAMS][4] = {{4, 4}, {6, 4}, {4}, {4}, {4, 2, 3, 3}, {4}};
static const int param_ndim[PARAMS] = {2, 2, 1, 1, 4, 1};

static lks_tensor *in_4(int64_t rows) { return noise_of(ctx, LKS_F32, SHAPE(rows, 4), 1, 5); }
static lks_tensor *picks(void) { return lks_from_host(ctx, LKS_I64, SHAPE(5), (int64_t[]){0, 3, 3, 5, 1}); }

static lks_tensor *use_linear(lks_tensor **p) { return lks_linear(in_4(3), p[W], p[B]); }
static lks_tensor *use_tied(lks_tensor **p) { return lks_linear(lks_linear(in_4(3), p[W], p[B]), p[W], p[B]); }
static lks_tensor *use_matmul(lks_tensor **p) { return lks_matmul(in_4(3), p[W]); }
static lks_tensor *use_matmul_3d(lks_tensor **p)
{
    return lks_matmul(noise_of(ctx, LKS_F32, SHAPE(2, 3, 4), 1, 6), p[W]);
}
static lks_tensor *use_matmul_left(lks_tensor **p) { return lks_matmul(p[V], lks_transpose(in_4(3), 0, 1)); }
static lks_tensor *use_square(lks_tensor **p) { return lks_matmul(p[W], p[W]); }
static lks_tensor *use_square_linear(lks_tensor **p) { return lks_linear(p[W], p[W], p[B]); }
static lks_tensor *use_twice(lks_tensor **p) { return lks_matmul(lks_matmul(p[W], p[W]), p[W]); }
static lks_tensor *use_matmul_1d(lks_tensor **p) { return lks_matmul(p[B], p[W]); }
static lks_tensor *use_embedding(lks_tensor **p) { return lks_embedding(p[V], picks()); }
static lks_tensor *use_tied_embedding(lks_tensor **p)
{
    return lks_linear(lks_linear(lks_embedding(p[V], picks()), p[W], LKS_NONE), p[V], LKS_NONE);
}
static lks_tensor *use_layer_norm(lks_tensor **p) { return lks_layer_norm(in_4(3), 1, p[B], p[C], 1e-3); }
static lks_tensor *use_layer_norm_tied(lks_tensor **p) { return lks_layer_norm(in_4(3), 1, p[B], p[B], 1e-3); }
static lks_tensor *use_layer_norm_bias(lks_tensor **p) { return lks_layer_norm(in_4(3), 1, LKS_NONE, p[C], 1e-3); }
static lks_tensor *use_batch_norm(lks_tensor **p)
{
    return lks_batch_norm(in_4(5), p[B], p[C], LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-3);
}
static lks_tensor *use_batch_norm_bias(lks_tensor **p)
{
    return lks_batch_norm(in_4(5), LKS_NONE, p[C], LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-3);
}
static lks_tensor *use_conv(lks_tensor **p)
{
    lks_tensor *x = noise_of(ctx, LKS_F32, SHAPE(2, 4, 5, 5), 1, 7);
    return lks_conv2d(channels_last(x), p[K], p[KB], NULL, (int64_t[]){1, 1}, NULL, 2);
}
static lks_tensor *use_conv_plain(lks_tensor **p)
{
    return lks_conv2d(noise_of(ctx, LKS_F32, SHAPE(1, 4, 3, 4), 1, 7), p[K], LKS_NONE, NULL, NULL, NULL, 2);
}
static lks_tensor *use_plainly(lks_tensor **p) { return lks_mul(lks_add(p[W], p[B]), lks_exp(p[W])); }
static lks_tensor *use_no_rows(lks_tensor **p) { return lks_linear(in_4(0), p[W], p[B]); }
static lks_tensor *use_views(lks_tensor **p)
{
    return lks_matmul(in_4(2), lks_transpose(lks_slice(p[V], 0, 1, 6, 2), 0, 1));
}

static const struct { const char *name; lks_tensor *(*f)(lks_tensor **p); } uses[] = {
    {"linear", use_linear}, {"linear, tied", use_tied}, {"matmul", use_matmul}, {"matmul 3-D", use_matmul_3d},
    {"matmul, left", use_matmul_left}, {"W W", use_square}, {"linear of W by W", use_square_linear}, 
    {"W W W", use_twice},
    {"matmul 1-D", use_matmul_1d}, {"embedding", use_embedding}, {"embedding tied to linear", use_tied_embedding},
    {"layer_norm", use_layer_norm}, {"layer_norm, weight = bias", use_layer_norm_tied}, 
    {"layer_norm, bias", use_layer_norm_bias},
    {"batch_norm", use_batch_norm}, {"batch_norm, bias", use_batch_norm_bias}, {"conv2d", use_conv},
    {"conv2d, no bias", use_conv_plain}, {"elementwise", use_plainly}, {"no rows", use_no_rows}, {"views", use_views},
};

static lks_status run_use(int u, lks_tensor **p, int lower, int times)
{
    lks_status s = LKS_OK;
    for (int k = 0; k < times && s == LKS_OK; k++) {
        if (lower) lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        lks_tensor *y = lks_to(uses[u].f(p), LKS_F32);
        if (lower) lks_autocast_end(ctx);
        s = y ? lks_backward(y, noise_of(ctx, LKS_F32, lks_ndim(y), lks_shape(y), 1, 9), 0) : LKS_ERR_ARGUMENT;
    }
    return s;
}

static void test_sealed(void)
{
    lks_params *ps;
    lks_tensor *p[PARAMS], *q[PARAMS];
    lks_params_create(ctx, &ps);
    for (int i = 0; i < PARAMS; i++) {
        lks_params_add(ps, param_name[i], LKS_F32, param_ndim[i], param_shape[i], &p[i]);
        lks_scope_begin(ctx);
        lks_no_grad_begin(ctx);
        lks_copy_(p[i], noise_of(ctx, LKS_F32, param_ndim[i], param_shape[i], 1, 20 + (uint64_t)i));
        lks_no_grad_end(ctx);
        lks_scope_end(ctx);
    }
    ok(fine(lks_params_seal(ps)), "sealed");
    for (int u = 0; u < (int)(sizeof uses / sizeof *uses); u++)
        for (int lower = 0; lower < 2; lower++) {
            int good = 1;
            for (int times = 1; times <= 2; times++) {
                lks_scope_begin(ctx);
                lks_params_zero_grad(ps);
                for (int i = 0; i < PARAMS; i++) q[i] = leaf_of(lks_clone(lks_detach(p[i])));
                good &= fine(run_use(u, p, lower, times)) && fine(run_use(u, q, lower, times));
                for (int i = 0; i < PARAMS; i++) {
                    lks_tensor *a = lks_grad(p[i]), *b = lks_grad(q[i]);
                    if (!a != !b) good = 0, diag("%s: only one %s has a gradient", uses[u].name, param_name[i]);
                    if (!a || !b) continue;
                    if (a != p[i]->grad_slot) good = 0, diag("%s: a gradient outside its slot", uses[u].name);
                    double *x = values_of(ctx, a), *y = values_of(ctx, b), d = distance(x, y, lks_numel(a));
                    if (!(d <= (lower ? 5e-2 : 1e-5)))
                        good = 0, diag("%s: gradient of %s is off by %g after %d", uses[u].name, param_name[i], d,
                                       times);
                    free(x);
                    free(y);
                }
                lks_scope_end(ctx);
                for (int i = 0; i < PARAMS; i++)
                    if (p[i]->grad_slot->shares > 3) good = 0, diag("%s: shares of a slot grow", uses[u].name);
            }
            /* lks_gradients leaves slots alone. */
            lks_scope_begin(ctx);
            lks_params_zero_grad(ps);
            lks_tensor *g[PARAMS], *y = uses[u].f(p);
            for (int i = 0; i < PARAMS; i++) {
                lks_no_grad_begin(ctx);
                lks_fill_(p[i]->grad_slot, 77);
                lks_no_grad_end(ctx);
            }
            good &= fine(lks_gradients(y, lks_ones(ctx, lks_dtype_of(y), lks_ndim(y), lks_shape(y)), PARAMS, p, 0, 0,
                                       g));
            for (int i = 0; i < PARAMS; i++) {
                double *v = values_of(ctx, p[i]->grad_slot);
                for (int64_t e = 0; e < lks_numel(p[i]); e++) good &= v[e] == 77;
                free(v);
                good &= !lks_grad(p[i]);
            }
            lks_scope_end(ctx);
            ok(good, "sealed: %s%s", uses[u].name, lower ? ", autocast" : "");
        }
    /* A hook sees the finished slot of a tied weight. */
    record r = {0};
    int64_t id;
    lks_scope_begin(ctx);
    lks_params_zero_grad(ps);
    lks_hook_add(p[C], hook, &r, &id);
    lks_tensor *one = lks_slice(p[C], 0, 0, 1, 1);
    fine(lks_backward(total(lks_mul(lks_add(one, one), one)), LKS_NONE, 0));
    is_int(r.calls, 1, "a hook on a sealed parameter fires once");
    lks_hook_remove(p[C], id);
    lks_scope_end(ctx);
    /* Frozen, then free again. */
    lks_scope_begin(ctx);
    lks_params_zero_grad(ps);
    lks_set_requires_grad(p[W], 0);
    fine(run_use(0, p, 0, 1));
    ok(!lks_grad(p[W]) && lks_grad(p[B]), "a frozen parameter gets none");
    lks_set_requires_grad(p[W], 1);
    fine(run_use(0, p, 1, 1));
    ok(lks_grad(p[W]) != NULL, "free again, through its low-precision copy");
    lks_scope_end(ctx);
    lks_params_destroy(&ps);
    is_int(lks_live_tensors(ctx), 0, "nothing of the parameters is left");
}

/* A graph that outlives the parameters is empty, not dangling. */
static void test_orphans(void)
{
    lks_params *ps;
    lks_tensor *w;
    lks_scope_begin(ctx);
    lks_params_create(ctx, &ps);
    lks_params_add(ps, "w", LKS_F32, SHAPE(4, 4), &w);
    lks_params_seal(ps);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *y = lks_linear(in_4(3), w, LKS_NONE), *held = lks_keep(w);
    lks_autocast_end(ctx);
    lks_params_destroy(&ps);
    is_int(lks_numel(held), 0, "a parameter kept beyond its set is empty");
    lks_tensor *z = lks_add(held, held);
    ok(z && lks_numel(z) == 0, "and safe to use");
    int s = lks_backward(total(y), LKS_NONE, 0);
    ok(s != LKS_OK && lks_error_code(ctx) != LKS_OK, "backward through it is an error (%s)", lks_status_name(s));
    lks_error_clear(ctx);
    lks_release(held);
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "nothing is left");
}

/* --- the check itself --- */

static lks_tensor *half_right(void *user, lks_tensor *const *in, int n)
{
    (void)n;
    if (*(int *)user == 2) return NULL;
    return lks_add(lks_mul(in[0], in[0]), lks_mul(in[1], *(int *)user ? lks_detach(in[1]) : in[1]));
}

/* d/dx of the sum of x^3: its own gradient is 6 x. */
static lks_tensor *slope(void *user, lks_tensor *const *in, int n)
{
    (void)user;
    lks_tensor *g[1] = {NULL};
    lks_tensor *y = total(lks_mul(in[0], lks_mul(in[0], in[0])));
    return lks_gradients(y, LKS_NONE, n, in, 0, 1, g) == LKS_OK ? g[0] : NULL;
}

static lks_tensor *root(void *user, lks_tensor *const *in, int n)
{
    (void)user, (void)n;
    return lks_sqrt(in[0]);
}

static void test_gradcheck(void)
{
    double v[2] = {1, 2}, w[2] = {3, -1}, back[2], worst = -1;
    lks_tensor *in[2] = {lks_from_host(ctx, LKS_F64, SHAPE(2), v), lks_from_host(ctx, LKS_F64, SHAPE(2), w)};
    int wrong = 0;
    ok(fine(lks_gradcheck(ctx, half_right, &wrong, 2, in, 1e-6, 1e-8, &worst)) && worst >= 0 && worst < 1e-8, "right");
    wrong = 1;
    ok(fails(lks_gradcheck(ctx, half_right, &wrong, 2, in, 1e-6, 1e-8, &worst), LKS_ERR_MISMATCH, "input 1, element 0",
             "analytic 3") && worst > 0.1, "a gradient that misses a part is found");
    lks_to_host(in[1], back, sizeof back);
    ok(!memcmp(back, w, sizeof w) && !lks_grad(in[1]), "inputs are as before");
    wrong = 2;
    ok(fails(lks_gradcheck(ctx, half_right, &wrong, 2, in, 1e-6, 1e-8, NULL), LKS_ERR_ARGUMENT, "the function",
             "no text"),
       "a function that fails");
    ok(fine(lks_gradcheck(ctx, slope, NULL, 1, in, 1e-5, 1e-8, &worst)) && worst < 1e-8,
       "a function that takes gradients itself: second order (%g)", worst);
    lks_no_grad_begin(ctx);
    ok(fine(lks_gradcheck(ctx, slope, NULL, 1, in, 1e-5, 1e-8, &worst)) && worst < 1e-8 && !lks_grad_enabled(ctx),
       "also where nothing is recorded around it");
    lks_no_grad_end(ctx);
    lks_tensor *edge = lks_from_host(ctx, LKS_F64, SHAPE(2), (double[]){0, 4});
    ok(fails(lks_gradcheck(ctx, root, NULL, 1, &edge, 1e-6, 1e-6, &worst), LKS_ERR_MISMATCH, "element 0", "nan") &&
           isnan(worst),
       "a NaN is not forgotten for the good elements behind it");
    in[1] = CONST(1);
    ok(fails(lks_gradcheck(ctx, half_right, &wrong, 2, in, 1e-6, 1e-8, &worst), LKS_ERR_DTYPE, "input 1", "float32"),
       "float32 is too coarse");
    ok(lks_grad_enabled(ctx), "recording as before");
}

/* Rules that go by elementary ops while backward is recorded: what is hidden, not a number, or has no gradient. */
static void test_recorded(void)
{
    double q[6] = {1, -1, 0.5, 2, 0.25, 1}, w[6] = {4, 1, 2, -1, 0.5, 3};
    lks_tensor *x = leaf_of(filled(6, q, LKS_F32, 4, (int64_t[]){1, 1, 3, 2})), *g[2], *h[2];
    lks_tensor *v = filled(6, w, LKS_F32, 4, (int64_t[]){1, 1, 3, 2});
    double add[9] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, 0, 1, -INFINITY, 0.5, 0};
    for (int bad = 0; bad < 2; bad++) {
        if (bad) add[8] = NAN;
        lks_tensor *mask = filled(9, add, LKS_F32, 2, (int64_t[]){3, 3});
        lks_tensor *y = total(lks_slice(lks_scaled_dot_product_attention(x, x, v, mask, 0, 0, 0), 3, 1, 2, 1));
        ok(fine(lks_gradients(y, LKS_NONE, 1, &x, 1, 0, g)) && fine(lks_gradients(y, LKS_NONE, 1, &x, 1, 1, h)),
           "both ways");
        double *a = values_of(ctx, g[0]), *b = values_of(ctx, h[0]);
        int same = a && b;
        for (int i = 0; i < 6 && same; i++) same = fabs(a[i] - b[i]) < 1e-5 || (isnan(a[i]) && isnan(b[i]));
        ok(same && isnan(a[4]) == bad, bad ? "a mask that is not a number is not overlooked"
                                           : "a row that sees no key, a key that none sees");
        free(a);
        free(b);
    }
    add[8] = 0;
    lks_tensor *mask = leaf_of(filled(9, add, LKS_F32, 2, (int64_t[]){3, 3}));
    lks_tensor *in[2] = {x, mask};
    lks_tensor *y = total(lks_scaled_dot_product_attention(x, x, lks_mul(x, x), mask, 0, 0, 0));
    ok(fine(lks_gradients(y, LKS_NONE, 2, in, 1, 1, g)) && !g[1] &&
           fine(lks_gradients(total(lks_mul(g[0], g[0])), LKS_NONE, 2, in, 0, 0, h)) && h[0] && !h[1],
       "a mask has no gradient, nor one of second order");
    in[0] = leaf_of(filled(6, q, LKS_F32, 2, (int64_t[]){2, 3}));
    in[1] = LEAF(1, 2, 3);
    y = lks_cross_entropy_weighted(in[0], lks_arange(ctx, LKS_I64, 2), in[1], -100, 0.1, LKS_REDUCTION_MEAN);
    ok(fine(lks_gradients(y, LKS_NONE, 2, in, 1, 1, g)) && !g[1] &&
           fine(lks_gradients(total(lks_mul(g[0], g[0])), LKS_NONE, 2, in, 0, 0, h)) && h[0] && !h[1],
       "the weight of classes neither");
    in[0] = leaf_of(filled(6, (double[]){3e25, -1e25, 2e25, 1e30, 2e30, -1e30}, LKS_F32, 2, (int64_t[]){2, 3}));
    in[1] = LEAF(1, 2, 3);
    y = total(lks_rms_norm(in[0], 1, in[1], 1e-6));
    ok(fine(lks_gradients(y, LKS_NONE, 2, in, 1, 0, g)) && fine(lks_gradients(y, LKS_NONE, 2, in, 1, 1, h)), "a norm");
    for (int i = 0; i < 2; i++) {
        double *a = values_of(ctx, g[i]), *b = values_of(ctx, h[i]), worst = 0, most = 0;
        for (int k = 0; k < (i ? 3 : 6); k++) worst = fmax(worst, fabs(a[k] - b[k])), most = fmax(most, fabs(a[k]));
        ok(most > 0 && worst <= 1e-5 * most, "of numbers whose squares overflow (%g of %g)", worst, most);
        free(a);
        free(b);
    }
}

/* Norms of float32 far from 0, recorded: first and second order against float64. */
static lks_tensor *some_norm(int which, lks_tensor *x, lks_tensor *w)
{
    if (which == 0) return lks_layer_norm(lks_permute(x, 4, (int[]){0, 2, 3, 1}), 1, w, LKS_NONE, 1e-5);
    if (which == 1) return lks_group_norm(x, 2, w, LKS_NONE, 1e-5);
    return lks_batch_norm(x, w, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5);
}

static void test_recorded_norms(void)
{
    enum { C = 4, ALL_OF = 2 * C * 15 };
    static const char *const names[] = {"layer_norm", "group_norm", "batch_norm"};
    static const double means[] = {0, -1e3, 3e4};
    double v[ALL_OF], f[ALL_OF], w[C] = {1, -0.5, 2, 0.25};
    for (int which = 0; which < 3; which++)
        for (int m = 0; m < 3; m++) {
            lks_scope_begin(ctx);
            for (int i = 0; i < ALL_OF; i++) v[i] = (double)(float)(means[m] + sin(i * 1.3) * 2), f[i] = cos(i * 0.37);
            lks_tensor *g[2][4] = {{NULL}};
            int good = 1;
            for (int wide = 0; wide < 2; wide++) {
                lks_dtype dtype = wide ? LKS_F64 : LKS_F32;
                lks_tensor *in[2] = {leaf_of(filled(0, v, dtype, 4, (int64_t[]){2, C, 3, 5})),
                                     leaf_of(filled(0, w, dtype, 1, (int64_t[]){C}))};
                lks_tensor *y = some_norm(which, in[0], in[1]);
                lks_tensor *c = lks_reshape(filled(0, f, dtype, 1, (int64_t[]){ALL_OF}), 4, lks_shape(y));
                y = total(lks_mul(lks_mul(y, y), c));
                good = good && fine(lks_gradients(y, LKS_NONE, 2, in, 1, 1, g[wide]));
                lks_tensor *z = good ? total(lks_mul(g[wide][0], lks_sin(lks_mul_scalar(g[wide][0], 3)))) : NULL;
                good = good && fine(lks_gradients(z, LKS_NONE, 2, in, 1, 0, g[wide] + 2));
                if (wide) good = good && fine(lks_gradients(y, LKS_NONE, 2, in, 0, 0, g[wide])); /* the fused row */
            }
            double far = 0;
            for (int k = 0; k < 4 && good; k++) {
                double *a = values_of(ctx, g[0][k]), *b = values_of(ctx, g[1][k]), worst = 0, most = 0;
                for (int64_t i = 0; i < lks_numel(g[1][k]); i++)
                    worst = fmax(worst, fabs(a[i] - b[i])), most = fmax(most, fabs(b[i]));
                far = fmax(far, most > 0 && isfinite(worst) ? worst / most : INFINITY);
                free(a), free(b);
            }
            ok(good && far < 3e-5, "%s around %g, recorded: float64's gradients (%g)", names[which], means[m], far);
            lks_scope_end(ctx);
        }
}

/* Second order where a class has a logit of -inf: as with one that is too small to count, in float64. */
static void test_recorded_hidden(void)
{
    enum { R = 4, C = 3 };
    const int64_t target[R] = {0, 1, -100, 1};
    double logits[R * C], soft[R * C] = {1, 0, 0, 0.5, 0.5, 0, 0, 0.25, 0.75, 0, 1, 0};
    for (int probabilities = 0; probabilities < 2; probabilities++)
        for (int reduction = 0; reduction < 3; reduction++) {
            lks_tensor *g[2], *h[2] = {NULL};
            int good = 1;
            for (int wide = 0; wide < 2; wide++) {
                lks_dtype dtype = wide ? LKS_F64 : LKS_F32;
                for (int i = 0; i < R * C; i++) logits[i] = sin(i * 1.9) * 2;
                logits[2] = logits[C + 2] = wide ? -1000 : -INFINITY;
                lks_tensor *x = leaf_of(filled(0, logits, dtype, 2, (int64_t[]){R, C}));
                lks_tensor *t = probabilities ? filled(0, soft, dtype, 2, (int64_t[]){R, C})
                                              : lks_from_host(ctx, LKS_I64, 1, (int64_t[]){R}, target);
                lks_tensor *w = filled(0, (double[]){0.5, 2, 1}, dtype, 1, (int64_t[]){C});
                lks_tensor *y = total(lks_cross_entropy_weighted(x, t, w, -100, 0, reduction));
                y = lks_mul(y, y);
                good = good && fine(lks_gradients(y, LKS_NONE, 1, &x, 1, 1, &g[wide]));
                lks_tensor *z = good ? total(lks_mul(g[wide], lks_sin(lks_mul_scalar(g[wide], 3)))) : NULL;
                good = good && fine(lks_gradients(z, LKS_NONE, 1, &x, 0, 0, &h[wide]));
            }
            double *first = values_of(ctx, g[1]), *second = values_of(ctx, h[1]);
            good = good && close_to(ctx, g[0], first, R * C, 1e-5) && close_to(ctx, h[0], second, R * C, 1e-4) &&
                   second[2] == 0 && second[0] != 0;
            free(first), free(second);
            ok(good, "a class of -inf, %s, reduction %d: second order as if it were not there",
               probabilities ? "probabilities" : "classes", reduction);
        }
}

/* Cross entropy recorded, where logits are infinite, rows are ignored, nothing counts: as the fused row. */
static void test_recorded_entropy(void)
{
    enum { R = 4, C = 3 };
    static const char *const names[] = {"finite logits", "a class of -inf", "a target of -inf", "a row of -inf",
                                        "a class of +inf", "a NaN"};
    static const double weights[][C] = {{1, 1, 1}, {0.5, 2, 1}, {0, 0, 3}};
    const int64_t target[R] = {0, 1, -100, 1}, none[R] = {-100, -100, -100, -100};
    double logits[R * C], soft[R * C] = {1, 0, 0, 0.5, 0.5, 0, 0, 0.25, 0.75, 0, 1, 0};
    for (int kind = 0; kind < 6; kind++)
        for (int probabilities = 0; probabilities < 2; probabilities++) {
            int good = 1;
            for (int how = 0; how < 4 * 3 * 2 * 2; how++) {
                static const int reductions[4] = {LKS_REDUCTION_NONE, LKS_REDUCTION_MEAN, LKS_REDUCTION_SUM,
                                                  LKS_REDUCTION_MEAN_NAN};
                int reduction = reductions[how % 4], weight = how / 4 % 3, ignored = how / 12 % 2, smooth = how / 24;
                for (int i = 0; i < R * C; i++) logits[i] = sin(i * 1.9) * 2;
                if (kind == 1) logits[2] = logits[C + 2] = -INFINITY;
                if (kind == 2) logits[0] = logits[3 * C + 1] = -INFINITY;
                for (int j = 0; j < C && kind == 3; j++) logits[C + j] = -INFINITY;
                if (kind == 4) logits[C] = INFINITY;
                if (kind == 5) logits[C + 1] = NAN;
                lks_scope_begin(ctx);
                lks_tensor *in[2] = {leaf_of(filled(0, logits, LKS_F32, 2, (int64_t[]){R, C})),
                                     leaf_of(filled(0, soft, LKS_F32, 2, (int64_t[]){R, C}))};
                lks_tensor *t = lks_from_host(ctx, LKS_I64, 1, (int64_t[]){R}, ignored ? none : target), *g[2], *h[2];
                lks_tensor *w = weight ? filled(0, weights[weight], LKS_F32, 1, (int64_t[]){C}) : LKS_NONE;
                lks_tensor *y = lks_cross_entropy_weighted(in[0], probabilities ? in[1] : t, w, -100,
                                                           smooth ? 0.1 : 0, reduction);
                if (lks_ndim(y)) y = lks_sum(lks_mul(y, CONST(1, 2, 3, 4)), ALL);
                int fit = fine(lks_gradients(y, LKS_NONE, 1 + probabilities, in, 1, 0, g)) &&
                          fine(lks_gradients(y, LKS_NONE, 1 + probabilities, in, 1, 1, h));
                for (int k = 0; k < 1 + probabilities && fit; k++) {
                    double *a = values_of(ctx, g[k]);
                    fit = close_to(ctx, h[k], a, R * C, 1e-6);
                    for (int i = 0; i < R * C && !fit; i++) {
                        double *b = values_of(ctx, h[k]);
                        diag("%d: fused %g, recorded %g", i, a[i], b[i]);
                        free(b);
                    }
                    free(a);
                }
                if (!fit)
                    diag("%s, %s, reduction %d, weights %d, %s, smoothing %d", names[kind],
                         probabilities ? "probabilities" : "classes", reduction, weight,
                         ignored ? "all ignored" : "one ignored", smooth);
                good &= fit;
                lks_scope_end(ctx);
            }
            ok(good, "cross entropy of %s, %s: recorded as fused", probabilities ? "probabilities" : "classes",
               names[kind]);
        }
}

/* --- norms that add their gradient to what has arrived --- */

typedef struct tally {
    int adds, norms;
    lks_dtype low; /* of the last norm's copy */
} tally;

static void counts(void *user, const lks_op_event *e)
{
    tally *t = user;
    if (!e->end || !e->backward) return;
    t->adds += !strcmp(e->op, "add") || !strcmp(e->op, "accumulate");
    if (strstr(e->op, "norm_backward")) t->norms++, t->low = e->out[e->nout - 1];
}

/* s = a + b in float32, which a norm of s and `kind` take: 0 a residual, 1 a transposed use, 2 a sum that hands its
 * gradient on to s and to c alike, 3 nothing. half: b came of 16 bits. */
static lks_tensor *stream(int kind, int rms, lks_tensor *a, lks_tensor *b, lks_tensor *c, lks_tensor *w, lks_tensor **s)
{
    *s = lks_add(a, b);
    lks_tensor *h = rms ? lks_rms_norm(*s, 1, w, 1e-5) : lks_layer_norm(*s, 1, w, LKS_NONE, 1e-5);
    h = total(lks_mul(h, lks_mul(h, c)));
    if (kind == 0) return lks_add(h, total(lks_mul(*s, c)));
    if (kind == 1) return lks_add(h, total(lks_mul(lks_contiguous(lks_transpose(*s, 0, 1)), lks_transpose(c, 0, 1))));
    if (kind == 2) return lks_add(h, total(lks_mul(lks_add(*s, lks_mul_scalar(c, 2)), a)));
    return h;
}

static void test_arrived(void)
{
    enum { R = 5, N = 24 };
    static const char *const names[] = {"a residual", "a transposed use", "a gradient that two share", "no other use"};
    double v[R * N];
    lks_tensor *in[4], *g[4], *h[4];
    for (int rms = 0; rms < 2; rms++)
        for (int half = 0; half < 2; half++)
            for (int kind = 0; kind < 4; kind++) {
                lks_scope_begin(ctx);
                for (int k = 0; k < 3; k++) {
                    for (int i = 0; i < R * N; i++) v[i] = sin(i * 1.7 + k * 0.9 + 1) * (k + 1);
                    in[k] = leaf_of(filled(0, v, half && k == 1 ? LKS_BF16 : LKS_F32, 2, (int64_t[]){R, N}));
                }
                in[3] = leaf_of(filled(0, v, LKS_F32, 1, (int64_t[]){N}));
                /* Something between the sum and the leaves, so that there is a place for the gradient. */
                lks_tensor *a = lks_mul_scalar(in[0], 0.5), *b = lks_mul_scalar(in[1], 2), *s;
                lks_tensor *c = lks_mul_scalar(in[2], 1);
                lks_tensor *y = stream(kind, rms, a, b, c, in[3], &s);
                lks_tensor *wanted[5] = {in[0], in[1], in[2], in[3], s}, *first[5], *second[5];
                tally t = {0};
                lks_observe(ctx, counts, &t);
                int good = fine(lks_gradients(y, LKS_NONE, 5, wanted, 1, 0, first));
                lks_observe(ctx, NULL, NULL);
                /* Recorded, the parts are added one by one: what it must come to. */
                good = good && fine(lks_gradients(y, LKS_NONE, 5, wanted, 1, 1, second));
                for (int k = 0; k < 5 && good; k++) {
                    double *p = values_of(ctx, first[k]), *q = values_of(ctx, second[k]), worst = 0, most = 0;
                    for (int64_t i = 0; p && q && i < lks_numel(first[k]); i++)
                        worst = fmax(worst, fabs(p[i] - q[i])), most = fmax(most, fabs(q[i]));
                    good = p && q && most > 0 && worst <= (half && k == 1 ? 8e-3 : 1e-5) * most;
                    if (!good) diag("input %d: off by %g of %g", k, worst, most);
                    free(p), free(q);
                }
                /* In 16 bits, too, where that is what will be wanted: not where more is added to it. */
                good = good && t.norms == 1 && (t.low == LKS_BF16) == (half && kind != 1);
                ok(good, "%s norm beside %s%s", rms ? "an RMS" : "a layer", names[kind],
                   half ? ", 16 bits behind" : "");
                for (int k = 0; k < 4; k++) lks_zero_grad(in[k]);
                good = fine(lks_backward(y, LKS_NONE, 1)) && fine(lks_backward(y, LKS_NONE, 0));
                for (int k = 0; k < 4 && good; k++) g[k] = lks_mul_scalar(first[k], 2), h[k] = lks_grad(in[k]);
                for (int k = 0; k < 4 && good; k++) {
                    double *want = values_of(ctx, g[k]);
                    good = close_to(ctx, h[k], want, lks_numel(h[k]), 0);
                    free(want);
                }
                ok(good, "and twice as much after two walks, to the bit");
                lks_scope_end(ctx);
            }
    /* A residual takes no addition of its own: the norm adds. */
    for (int i = 0; i < R * N; i++) v[i] = cos(i * 0.7);
    lks_tensor *x = leaf_of(filled(0, v, LKS_F32, 2, (int64_t[]){R, N})), *s = lks_mul_scalar(x, 2);
    lks_tensor *y = lks_add(lks_layer_norm(s, 1, LKS_NONE, LKS_NONE, 1e-5), s);
    y = total(lks_mul(y, lks_detach(x)));
    tally t = {0};
    lks_observe(ctx, counts, &t);
    int good = fine(lks_backward(y, LKS_NONE, 0));
    lks_observe(ctx, NULL, NULL);
    ok(good && t.norms == 1 && t.adds == 0, "no addition is made (%d norms, %d additions)", t.norms, t.adds);
}

/* --- depth and length --- */

/* n ops in a row; only the newest result is held. kind 0 saves nothing, 1 its inputs, 2 its output. The caller owns the
 * result. */
static lks_tensor *chain(lks_tensor *x, lks_tensor *factor, int n, int kind)
{
    lks_tensor *y = lks_keep(x);
    for (int i = 0; i < n && y; i++) {
        lks_scope_begin(ctx);
        lks_tensor *z = kind == 0 ? lks_mul_scalar(y, 1) : kind == 1 ? lks_mul(y, factor) : lks_tanh(y);
        lks_keep(z);
        lks_scope_end(ctx);
        lks_release(y);
        y = z;
    }
    return y;
}

static void test_depth(void)
{
    struct rlimit old, small;
    getrlimit(RLIMIT_STACK, &old);
    small = old;
    small.rlim_cur = 1 << 20; /* the stack may not grow beyond this */
    setrlimit(RLIMIT_STACK, &small);
    const int n = 200000;
    for (int kind = 0; kind < 3; kind++) {
        lks_scope_begin(ctx);
        lks_tensor *x = LEAF(0.5), *one = CONST(1);
        lks_tensor *y = chain(x, one, n, kind);
        is_int(lks_live_nodes(ctx), n, "%d nodes in a row", n);
        lks_release(y);
        is_int(lks_live_nodes(ctx), 0, "released without recursion");
        y = chain(x, one, n, kind);
        ok(fine(lks_backward(y, LKS_NONE, 0)), "differentiated");
        if (kind < 2) ok(HOLDS(lks_grad(x), 1), "by walking all of it");
        lks_release(y);
        y = chain(x, one, 1000, kind);
        ok(fine(lks_backward(y, LKS_NONE, 1)) && lks_live_nodes(ctx) == 1000, "kept by retain");
        lks_release(y);
        lks_scope_end(ctx);
        is_int(lks_live_nodes(ctx) + lks_live_tensors(ctx), 0, "nothing is left");
    }
    /* Wide: one tensor used many times, and a sum of many terms. */
    lks_scope_begin(ctx);
    lks_tensor *x = LEAF(1, 2), *y = lks_mul_scalar(x, 1), *sum = y;
    for (int i = 1; i < 20000; i++) sum = lks_add(sum, y);
    ok(fine(lks_backward(total(sum), LKS_NONE, 0)) && HOLDS(lks_grad(x), 20000, 20000), "used 20000 times");
    lks_scope_end(ctx);
    setrlimit(RLIMIT_STACK, &old);
}

static void test_flat(void) /* B43 */
{
    lks_tensor *w[4];
    int64_t nodes = 0, tensors = 0, held = 0, used = 0, blocks = 0, at_most = 0;
    lks_scope_begin(ctx);
    for (int i = 0; i < 4; i++) w[i] = leaf_of(lks_full(ctx, LKS_F32, SHAPE(3), 0.1 * (i + 1)));
    double last = 0, sum = 0;
    for (int step = 0; step < 10000; step++) {
        lks_scope_begin(ctx);
        lks_tensor *h = lks_tanh(lks_add(lks_mul(w[0], w[1]), w[2])), *loss = lks_mean(lks_mul(h, w[3]), ALL);
        lks_backward(loss, LKS_NONE, 0);
        for (int i = 0; i < 4; i++) lks_zero_grad(w[i]);
        if (step % 100 == 0) {
            lks_item(loss, &last);
            sum += last;
        }
        lks_scope_end(ctx);
        if (step == 10) {
            nodes = lks_live_nodes(ctx), tensors = lks_live_tensors(ctx), held = lks_memory_held(ctx);
            used = lks_memory_used(ctx), blocks = ctx->base.live_blocks;
        }
        if (step >= 10 && lks_live_nodes(ctx) + lks_live_tensors(ctx) - nodes - tensors > at_most)
            at_most = lks_live_nodes(ctx) + lks_live_tensors(ctx) - nodes - tensors;
    }
    ok(at_most == 0 && lks_live_nodes(ctx) == nodes, "live counts are flat over 10000 steps");
    ok(lks_memory_held(ctx) == held && lks_memory_used(ctx) == used && ctx->base.live_blocks == blocks, "so is memory");
    ok(sum > 0, "with the loss read out");
    /* The same with the graph kept in a running total: it grows, and the counter says so. */
    lks_tensor *all = lks_keep(lks_zeros(ctx, LKS_F32, 0, NULL));
    for (int step = 0; step < 100; step++) {
        lks_scope_begin(ctx);
        lks_tensor *more = lks_keep(lks_add(all, lks_mean(lks_mul(w[0], w[1]), ALL)));
        lks_scope_end(ctx);
        lks_release(all);
        all = more;
    }
    is_int(lks_live_nodes(ctx), nodes + 300, "a total over 100 steps holds 300 nodes");
    ok(fine(lks_backward(all, LKS_NONE, 0)), "that can be differentiated at last");
    is_int(lks_live_nodes(ctx), nodes + 1, "and are then free, but for the last");
    lks_release(all);
    is_int(lks_live_nodes(ctx), nodes, "which goes with the total");
    lks_scope_end(ctx);
}

/* Additions happen in the order of the walk: the same bits every time, whatever else lives. */
static void test_order(void)
{
    float first[64], again[64];
    int same = 1;
    for (int round = 0; round < 5; round++) {
        lks_scope_begin(ctx);
        lks_tensor *x = leaf_of(noise_of(ctx, LKS_F32, SHAPE(64), 1, 3)), *sum = lks_zeros(ctx, LKS_F32, SHAPE(64));
        for (int i = 0; i < 50; i++) {
            if (round) lks_empty(ctx, LKS_F32, SHAPE(1 + i * round));
            sum = lks_add(sum, lks_mul(lks_exp(lks_mul_scalar(x, 0.1 * i)),
                                       noise_of(ctx, LKS_F32, SHAPE(64), 1e3, 50u + (unsigned)i)));
        }
        lks_backward(total(sum), LKS_NONE, 0);
        lks_to_host(lks_grad(x), round ? again : first, sizeof first);
        if (round) same &= !memcmp(first, again, sizeof first);
        lks_scope_end(ctx);
    }
    ok(same, "50 contributions add up to the same bits five times");
}

/* --- gradients while memory runs out: a larger graph with hooks, retained, and with lks_gradients --- */

static lks_status small_step(lks_tensor *x, lks_tensor *w, int way)
{
    lks_tensor *h = lks_mul(lks_tanh(lks_mul(x, w)), x), *part[2], *g[2], *in[2] = {h, w};
    if (!h || lks_split(h, 2, 0, 2, part) != 2) return lks_error_code(ctx);
    lks_tensor *y = total(lks_add(lks_mul(part[0], part[1]), part[0]));
    if (!y) return lks_error_code(ctx);
    if (way == 0) return lks_backward(y, LKS_NONE, 1);
    return lks_gradients(y, LKS_NONE, 2, in, 0, way == 2, g);
}

static void test_no_memory(void)
{
    int bad = 0, tried = 0;
    for (int way = 0; way < 3; way++) {
        lks_scope_begin(ctx);
        lks_tensor *x = LEAF(1, 2, 3, 4), *w = LEAF(0.5, 0.25, 0.5, 1);
        record r = {0};
        lks_hook_add(x, hook, &r, NULL);
        lks_scope_begin(ctx);
        small_step(x, w, way); /* tables grow to their size */
        lks_scope_end(ctx);
        for (int64_t n = 1; n < 1000; n++) {
            lks_zero_grad(x);
            lks_zero_grad(w);
            int64_t live = lks_live_tensors(ctx), nodes = lks_live_nodes(ctx), used = lks_memory_used(ctx);
            int64_t blocks = ctx->base.live_blocks;
            ctx->base.fail_at = n;
            lks_scope_begin(ctx);
            lks_status s = small_step(x, w, way);
            int64_t left = ctx->base.fail_at;
            ctx->base.fail_at = 0;
            lks_scope_end(ctx);
            lks_zero_grad(x);
            lks_zero_grad(w);
            bad |= left <= 0 && s != LKS_ERR_MEMORY;
            bad |= left > 0 && s != LKS_OK;
            bad |= lks_live_tensors(ctx) != live || lks_live_nodes(ctx) != nodes || lks_memory_used(ctx) != used ||
                   ctx->base.live_blocks != blocks || ctx->no_grad || lks_autocast_depth(ctx);
            if (bad) diag("way %d, allocation %lld: %s: %s", way, (long long)n, lks_status_name(s), lks_error(ctx));
            lks_error_clear(ctx);
            if (bad || left > 0) break;
            tried++;
        }
        lks_scope_end(ctx);
    }
    ok(!bad && tried > 50, "%d allocations fail without a trace", tried);
    /* A graph that is kept through a backward that fails is as good as before. */
    for (int way = 0; way < 2; way++) {
        lks_scope_begin(ctx);
        lks_tensor *x = LEAF(1, 2, 3, 4), *h = lks_mul(x, x), *part[2], *g = NULL;
        lks_split(h, 2, 0, 2, part);
        lks_tensor *y = total(lks_add(lks_add(lks_mul(part[0], part[1]), part[0]),
                                      lks_exp(lks_sum(h, 1, (int[]){0}, 1, LKS_DTYPE_NONE))));
        double want[4], *v;
        lks_backward(y, LKS_NONE, 1);
        v = values_of(ctx, lks_grad(x));
        memcpy(want, v, sizeof want);
        free(v);
        for (int64_t n = 1; n < 1000; n++) {
            lks_zero_grad(x);
            ctx->base.fail_at = n;
            lks_status s = way ? lks_gradients(y, LKS_NONE, 1, &x, 1, 0, &g) : lks_backward(y, LKS_NONE, 1);
            int64_t left = ctx->base.fail_at;
            ctx->base.fail_at = 0;
            lks_error_clear(ctx);
            lks_zero_grad(x);
            bad |= !fine(lks_backward(y, LKS_NONE, 1)) || !holds(lks_grad(x), 4, want);
            if (bad) diag("way %d, after the failure of allocation %lld (%s)", way, (long long)n, lks_status_name(s));
            if (bad || left > 0) break;
        }
        lks_scope_end(ctx);
    }
    ok(!bad, "and a graph that is kept can be walked again");
}

/* --- cases --- */

static int holds_shape(lks_tensor *t, int ndim, const int64_t *shape, double want)
{
    double *v = t ? values_of(ctx, t) : NULL;
    int good = v && shaped(t, ndim, shape);
    for (int64_t i = 0; good && i < lks_numel(t); i++) good = v[i] == want;
    free(v);
    return good;
}

static lks_tensor *ones_leaf(int ndim, const int64_t *shape) { return leaf_of(lks_ones(ctx, LKS_F32, ndim, shape)); }

static void test_cases(void)
{
    lks_tensor *a = ones_leaf(SHAPE(3, 4)), *b = ones_leaf(SHAPE(1, 4));
    lks_backward(total(lks_add(a, b)), LKS_NONE, 0);
    ok(holds_shape(lks_grad(b), SHAPE(1, 4), 3) && holds_shape(lks_grad(a), SHAPE(3, 4), 1), "B31: [3,4] + [1,4]");
    lks_tensor *m = ones_leaf(SHAPE(2, 1, 4, 1));
    lks_backward(total(lks_mul(lks_ones(ctx, LKS_F32, SHAPE(2, 1, 4, 8)), m)), LKS_NONE, 0);
    ok(holds_shape(lks_grad(m), SHAPE(2, 1, 4, 1), 8), "B31: [2,1,4,8] [2,1,4,1]");
    lks_tensor *c = ones_leaf(SHAPE(5)), *e = ones_leaf(SHAPE(1, 5));
    lks_backward(total(lks_add(c, lks_ones(ctx, LKS_F32, SHAPE(3, 5)))), LKS_NONE, 0);
    lks_backward(total(lks_add(e, lks_ones(ctx, LKS_F32, SHAPE(2, 3, 5)))), LKS_NONE, 0);
    ok(holds_shape(lks_grad(c), SHAPE(5), 3) && holds_shape(lks_grad(e), SHAPE(1, 5), 6), "B31: leading dims");

    lks_tensor *s = leaf_of(lks_full(ctx, LKS_F32, 0, NULL, 2)), *x = leaf_of(lks_affine(lks_arange(ctx, LKS_F32, 100),
            1, 1));
    lks_backward(total(lks_mul(s, x)), LKS_NONE, 0);
    ok(holds_shape(lks_grad(s), 0, NULL, 5050) && holds_shape(lks_grad(x), SHAPE(100), 2), "B33: a 0-dim factor");
    lks_zero_grad(s);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_tensor *y = total(lks_mul(s, lks_matmul(lks_ones(ctx, LKS_F32, SHAPE(2, 3)),
                                                lks_ones(ctx, LKS_F32, SHAPE(3, 2)))));
    lks_autocast_end(ctx);
    lks_backward(y, LKS_NONE, 0);
    ok(holds_shape(lks_grad(s), 0, NULL, 12), "B33: and in a region");

    b = ones_leaf(SHAPE(4));
    y = total(lks_add(lks_zeros(ctx, LKS_F32, SHAPE(4, 0)), lks_unsqueeze(b, 1)));
    double v = -1;
    lks_item(y, &v);
    ok(fine(lks_backward(y, LKS_NONE, 0)) && v == 0 && holds_shape(lks_grad(b), SHAPE(4), 0), "B34: against nothing");

    /* B36: a norm composed of sqrt(sum(x^2)) has slope infinity at 0, and infinity times 0 is NaN; where() on both
     * sides of the root gives the right gradient. */
    static const double rows[6] = {0, 0, 0, 1, 2, 2};
    for (int safe = 0; safe < 2; safe++) {
        x = leaf_of(filled(6, rows, LKS_F32, SHAPE(2, 3)));
        lks_tensor *squares = lks_sum(lks_mul(x, x), 1, (int[]){1}, 0, LKS_DTYPE_NONE), *zero = CONST(0), *norm;
        lks_tensor *positive = lks_gt(squares, zero);
        if (safe) norm = lks_where(positive, lks_sqrt(lks_where(positive, squares, CONST(1))), zero);
        else norm = lks_sqrt(squares);
        lks_backward(norm, lks_ones(ctx, LKS_F32, SHAPE(2)), 0);
        ok(HOLDS(norm, 0, 3), "B36: norms");
        if (safe) ok(HOLDS(lks_grad(x), 0, 0, 0, 1.0 / 3, 2.0 / 3, 2.0 / 3), "B36: gradient of the guarded norm");
        else ok(HOLDS(lks_grad(x), NAN, NAN, NAN, 1.0 / 3, 2.0 / 3, 2.0 / 3),
                "B36: the plain composite is NaN at 0, as documented");
    }

    lks_tensor *p = LEAF(0), *q = LEAF(0), *values;
    lks_tensor *both[2] = {lks_sqrt(lks_add(lks_mul(p, p), lks_mul(q, q))), CONST(1e-10)};
    lks_max(lks_cat(2, both, 0), 0, 0, &values, NULL);
    ok(HOLDS(values, (double)1e-10f) && fine(lks_backward(values, LKS_NONE, 0)) && HOLDS(lks_grad(p), 0) &&
       HOLDS(lks_grad(q), 0),
       "B37: the larger of a root at 0 and a small number");
    p = LEAF(0, 4);
    lks_backward(total(lks_where(lks_gt(p, CONST(0)), lks_sqrt(p), CONST(0))), LKS_NONE, 0);
    ok(HOLDS(lks_grad(p), 0, 0.25), "B37: a root that where() does not take");

    x = LEAF(1, 1);
    lks_tensor *d = LEAF(0, 1);
    lks_backward(total(lks_slice(lks_div(x, d), 0, 1, 2, 1)), LKS_NONE, 0);
    ok(HOLDS(lks_grad(x), NAN, 1) && HOLDS(lks_grad(d), NAN, -1),
       "B38: 0 / 0 behind a mask stays NaN, for the finite test to see");
}

int main(void)
{
    static const char *const devices[] = {"cpu", "far"};
    for (int i = 0; i < 2; i++) {
        diag("device %s", devices[i]);
        ctx = context_on(devices[i], NULL, 2);
        if (!ctx) bail("no context on %s", devices[i]);
        static void (*const tests[])(void) = {
            test_leaves, test_graphs, test_in_place, test_modes, test_hooks, test_frozen_since, test_nested,
            test_gradients, test_random_graphs, test_sealed, test_orphans, test_gradcheck, test_recorded,
            test_recorded_norms, test_recorded_entropy, test_recorded_hidden, test_arrived, test_depth, test_flat,
            test_order, test_no_memory, test_cases};
        for (int k = 0; k < (int)(sizeof tests / sizeof *tests); k++) {
            if (i && tests[k] == test_depth) continue; /* says nothing about the device */
            int scoped = tests[k] != test_depth && tests[k] != test_sealed && tests[k] != test_orphans;
            if (scoped) lks_scope_begin(ctx);
            tests[k]();
            if (lks_error_code(ctx)) {
                ok(0, "an error is left: %s", lks_error(ctx));
                lks_error_clear(ctx);
            }
            if (scoped) lks_scope_end(ctx);
            is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "no tensor and no node is left");
        }
        is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed");
    }
    lks_finalize();
    return done();
}
