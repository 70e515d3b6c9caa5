/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_ops.c - a battery over the table: each differentiable row, by its samples, in every layout, dtype, on both CPU
 * devices, at several thread counts, inside autocast regions, with memory that runs out; and calls that must be
 * refused. Values of kernels are compared with references of their own in the tests of their families.
 *
 * LKS_TEST_DEVICE=cuda: the same loops on that device (values against the CPU's, to rounding), for the rows whose
 * kernels it has; LKS_TEST_ROWS=add,mul,... takes some rows only. Every layout is compared with the CPU there, so its
 * gradients are compared with differences in the plain layout alone, but with LKS_TEST_THOROUGH=1: simulators are slow.
 */
#include "arrays.h"
#include "samples.h"
#include "tape/tape.h"

#define THREADS 3
static lks_context *cpu[THREADS + 1], *far;
static lks_context *device; /* the one under test, NULL: the CPU */
static int lacks;           /* samples that met a row without a kernel there */

/* Where a check runs: the device under test, or the CPU with t threads. */
static lks_context *on(int t) { return device ? device : cpu[t]; }

/* --- one run of one sample --- */

typedef struct call {
    lks_context *ctx;
    const sample *s;
    int expanded; /* leaves have size 1 in dim 0 and are repeated without copying */
    lks_tensor *in[SAMPLE_INPUTS];   /* all inputs; leaves[k] is in[which[k]] */
    lks_tensor *leaf[SAMPLE_INPUTS + 1];
    int which[SAMPLE_INPUTS], leaves;
} call;

static int expands(const sample *s, int i)
{
    const sample_input *in = &s->in[i];
    return sample_differentiable(s, i) && in->kind != IN_APART && in->ndim > 0 && in->shape[0] > 1;
}

/* Makes the inputs, in the innermost scope. */
static int prepare(call *c, lks_context *ctx, const sample *s, lks_dtype dtype, int layout, int expanded)
{
    memset(c, 0, sizeof *c);
    c->ctx = ctx;
    c->s = s;
    c->expanded = expanded;
    for (int i = 0; i < s->nin; i++) {
        lks_tensor *t = sample_tensor(ctx, s, i, dtype, layout);
        if (!t) return 0;
        c->in[i] = t;
        if (!sample_differentiable(s, i)) continue;
        if (expanded && expands(s, i)) t = lks_clone(lks_slice(t, 0, 0, 1, 1));
        if (lks_set_requires_grad(t, 1) != LKS_OK) return 0;
        c->which[c->leaves] = i;
        c->leaf[c->leaves++] = t;
    }
    return 1;
}

static lks_tensor *forward(void *user, lks_tensor *const *leaf, int n)
{
    call *c = user;
    lks_tensor *in[SAMPLE_INPUTS];
    memcpy(in, c->in, sizeof in);
    for (int k = 0; k < n; k++) {
        const sample_input *s = &c->s->in[c->which[k]];
        in[c->which[k]] = c->expanded && expands(c->s, c->which[k]) ? lks_expand(leaf[k], s->ndim, s->shape) : leaf[k];
    }
    return c->s->call(c->ctx, in);
}

/* Gradient given to backward: exact in every float dtype, of both signs. */
static lks_tensor *seed_for(lks_tensor *y)
{
    if (!y) return NULL;
    int64_t n = lks_numel(y);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = ((double)((i * 29 + 11) % 61) - 30) / 16;
    lks_tensor *t = lks_from_host(lks_context_of(y), LKS_F64, lks_ndim(y), lks_shape(y), v);
    free(v);
    return lks_to(t, lks_dtype_of(y));
}

static lks_status forward_backward(call *c, lks_tensor **y)
{
    *y = forward(c, c->leaf, c->leaves);
    lks_tensor *seed = seed_for(*y);
    if (!seed) return lks_error_code(c->ctx);
    return lks_backward(*y, seed, 0);
}

/* Result and gradients on the host, as bytes or as numbers. */
typedef struct result {
    int n;
    void *data[SAMPLE_INPUTS + 1];
    int64_t bytes[SAMPLE_INPUTS + 1], numel[SAMPLE_INPUTS + 1];
    lks_dtype dtype[SAMPLE_INPUTS + 1];
} result;

static int complain(const sample *s, const char *what)
{
    diag("%s, %s: %s", s->row, s->what, what);
    return 0;
}

static int keep_result(result *r, call *c, lks_tensor *y, int as_numbers)
{
    r->n = c->leaves + 1;
    for (int k = 0; k < r->n; k++) {
        lks_tensor *t = k ? lks_grad(c->leaf[k - 1]) : y;
        r->data[k] = NULL;
        r->numel[k] = r->bytes[k] = -1;
        if (!t) { /* the result does not depend on this leaf: cat skips an empty one, relu_backward is flat in y */
            int flat = !strcmp(c->s->row, "relu_backward") && k == 2;
            int skipped = !strcmp(c->s->row, "cat") && k && lks_numel(c->leaf[k - 1]) == 0;
            if (!flat && !skipped) return complain(c->s, "a leaf has no gradient");
            continue;
        }
        if (k && (lks_dtype_of(t) != lks_dtype_of(c->leaf[k - 1]) || lks_ndim(t) != lks_ndim(c->leaf[k - 1]) ||
                  memcmp(lks_shape(t), lks_shape(c->leaf[k - 1]), (size_t)lks_ndim(t) * sizeof(int64_t)))) {
            diag("gradient %d has another shape or dtype than its leaf", k - 1);
            return 0;
        }
        r->dtype[k] = lks_dtype_of(t);
        r->numel[k] = lks_numel(t);
        lks_no_grad_begin(c->ctx);
        if (as_numbers) t = lks_to(t, LKS_F64);
        r->bytes[k] = lks_numel(t) * lks_dtype_size(lks_dtype_of(t));
        r->data[k] = malloc((size_t)r->bytes[k] + 1);
        lks_status s = lks_to_host(t, r->data[k], r->bytes[k]);
        lks_no_grad_end(c->ctx);
        if (s != LKS_OK) return 0;
    }
    return 1;
}

static void drop_result(result *r)
{
    for (int k = 0; k < r->n; k++) free(r->data[k]);
    memset(r, 0, sizeof *r);
}

/* A row that the device under test has no kernel for: named once, no failure. */
static int kernel_is_missing(lks_context *ctx)
{
    static char told[LKSI_OP_COUNT];
    const char *text = lks_error(ctx), *end = strstr(text, ": there is no kernel");
    if (ctx != device || lks_error_code(ctx) != LKS_ERR_UNSUPPORTED || !end) return 0;
    const char *name = end;
    while (name > text && name[-1] != ' ') name--;
    for (int op = 0; op < LKSI_OP_COUNT; op++)
        if (strlen(lksi_rows[op].name) == (size_t)(end - name) &&
            !strncmp(lksi_rows[op].name, name, (size_t)(end - name)) && !told[op]++)
            diag("no kernel on %s: %s", lks_device_name(ctx), lksi_rows[op].name);
    lks_error_clear(ctx);
    return 1;
}

static int complain_error(lks_context *ctx, const sample *s, const char *what)
{
    if (kernel_is_missing(ctx)) return 1;
    diag("%s, %s: %s: %s", s->row, s->what, what, lks_error(ctx));
    lks_error_clear(ctx);
    return 0;
}

typedef struct counts { int64_t tensors, nodes, blocks, used; int scopes, no_grad; } counts;

static counts count(lks_context *ctx)
{
    return (counts){lks_live_tensors(ctx), lks_live_nodes(ctx), ctx->base.live_blocks, lks_memory_used(ctx),
                    ctx->scope_count, ctx->no_grad};
}

static int same_counts(const sample *s, counts a, counts b)
{
    if (a.tensors == b.tensors && a.nodes == b.nodes && a.blocks == b.blocks && a.used == b.used &&
        a.scopes == b.scopes && a.no_grad == b.no_grad)
        return 1;
    diag("%s, %s: tensors %lld -> %lld, nodes %lld -> %lld, blocks %lld -> %lld, bytes %lld -> %lld, scopes %d -> %d, "
         "no_grad %d -> %d", s->row, s->what, (long long)a.tensors, (long long)b.tensors, (long long)a.nodes,
         (long long)b.nodes, (long long)a.blocks, (long long)b.blocks, (long long)a.used, (long long)b.used, a.scopes,
         b.scopes, a.no_grad, b.no_grad);
    return 0;
}

/* Runs forward and backward in a scope of its own. */
static int run(lks_context *ctx, const sample *s, lks_dtype dtype, int layout, int expanded, int as_numbers, result *r)
{
    call c;
    lks_tensor *y = NULL;
    memset(r, 0, sizeof *r);
    counts before = count(ctx);
    lks_scope_begin(ctx);
    int good = prepare(&c, ctx, s, dtype, layout, expanded) && forward_backward(&c, &y) == LKS_OK;
    if (!good) complain_error(ctx, s, "run");
    good = good && keep_result(r, &c, y, as_numbers);
    lks_scope_end(ctx);
    /* Tables that grow with use are not leaks: only tensors, nodes and device memory count here. */
    counts after = count(ctx);
    before.blocks = after.blocks;
    return good && same_counts(s, before, after);
}

/* --- the loop over rows --- */

/* 1 if the device under test lacks a kernel for s or for its gradient, or this build the library behind it. */
static int lacking(const sample *s)
{
    static signed char known[1024];
    signed char *answer = &known[(s - samples) % 1024];
    call c;
    lks_tensor *y;
    lks_context *at = device ? device : cpu[1];
    if (*answer) return *answer > 0;
    lks_scope_begin(at);
    int bad = !prepare(&c, at, s, LKS_F32, PLAIN, 0) || forward_backward(&c, &y) != LKS_OK;
    int lack = bad && (device ? kernel_is_missing(at) : strstr(lks_error(at), "build Lockstep again") != NULL);
    lks_error_clear(at);
    lks_scope_end(at);
    *answer = lack ? 1 : -1;
    return lack;
}

static int wanted(const char *row)
{
    const char *list = getenv("LKS_TEST_ROWS"), *at = list;
    size_t n = strlen(row);
    if (!list || !*list) return 1;
    for (; (at = strstr(at, row)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) return 1;
    return 0;
}

static void each_row(const char *what, int (*check)(const sample *s), int large)
{
    for (int op = 0; op < LKSI_OP_COUNT; op++) {
        if (!lks_op_differentiable(op) || !wanted(lksi_rows[op].name)) continue;
        int n = 0, good = 1, without = 0;
        for (int i = 0; i < sample_count; i++) {
            if (strcmp(samples[i].row, lksi_rows[op].name) || (!large && samples[i].flags & LARGE)) continue;
            n++;
            if (lacking(&samples[i])) without++;
            else good &= check(&samples[i]);
        }
        lacks += without;
        if (n && without == n)
            skip(1, "%s: %s: no kernel on %s", lksi_rows[op].name, what, lks_device_name(device ? device : cpu[1]));
        else ok(good && n, "%s: %s, %d samples", lksi_rows[op].name, what, n - without);
    }
}

/* The sample records the row it stands for, and the strided and repeated forms have the values of the plain one. */
static int check_layouts(const sample *s)
{
    lks_context *ctx = on(2);
    int good = 1, op = lks_op_lookup(s->row);
    call c;
    lks_scope_begin(ctx);
    lks_tensor *y = prepare(&c, ctx, s, LKS_F64, PLAIN, 0) ? forward(&c, c.leaf, c.leaves) : NULL;
    if (!y) good = complain_error(ctx, s, "forward");
    else if (!y->node) good = complain(s, "was not recorded");
    else if (y->node->op != op && !(s->flags & COMPOSITE)) good = complain(s, lksi_rows[y->node->op].name);
    lks_scope_end(ctx);
    result want, got;
    if (!good || !run(ctx, s, LKS_F64, PLAIN, 0, 1, &want)) return 0;
    for (int layout = REVERSED; layout < LAYOUTS; layout++) {
        if (!sample_has_layout(s, layout)) continue;
        int alike = run(ctx, s, LKS_F64, layout, 0, 1, &got);
        for (int k = 0; k < want.n && alike; k++) {
            double d = distance(got.data[k], want.data[k], want.numel[k]);
            if (want.numel[k] < 0 && got.numel[k] < 0) continue;
            if (got.numel[k] == want.numel[k] && d <= 1e-12) continue;
            diag("%s, %s: %s %d of %s inputs is off by %g", s->row, s->what, k ? "gradient" : "result", k,
                 layout_names[layout], d);
            alike = 0;
        }
        good &= alike;
        drop_result(&got);
    }
    drop_result(&want);
    return good;
}

static int gradcheck(call *c, lks_gradcheck_fn f, int n, const char *layout)
{
    double worst = 0;
    if (lks_gradcheck(c->ctx, f, c, n, c->leaf, 1e-6, 2e-8, &worst) == LKS_OK) return 1;
    if (kernel_is_missing(c->ctx)) return 1; /* a sum, for the gradient of an expanded leaf */
    diag("%s, %s, %s: %s", c->s->row, c->s->what, layout, lks_error(c->ctx));
    lks_error_clear(c->ctx);
    return 0;
}

/* Whether differences are taken in all layouts. */
static int thorough(void)
{
    const char *asked = getenv("LKS_TEST_THOROUGH");
    return !device || (asked && *asked && strcmp(asked, "0"));
}

static int check_gradients(const sample *s)
{
    lks_context *ctx = on(1);
    int good = 1;
    for (int layout = PLAIN; layout <= LAYOUTS; layout++) {
        int expanded = layout == LAYOUTS;
        if (layout != PLAIN && !thorough()) break;
        if (!expanded && !sample_has_layout(s, layout)) continue;
        call c;
        counts before = count(ctx);
        lks_scope_begin(ctx);
        if (!prepare(&c, ctx, s, LKS_F64, expanded ? PLAIN : layout, expanded)) 
            good = complain_error(ctx, s, "prepare");
        else good &= gradcheck(&c, forward, c.leaves, expanded ? "expanded" : layout_names[layout]);
        lks_scope_end(ctx);
        counts after = count(ctx);
        before.blocks = after.blocks;
        good &= same_counts(s, before, after);
    }
    return good;
}

/* The gradients as one vector: a function of the inputs and of the gradient given (the last leaf). */
static lks_tensor *gradient_of(void *user, lks_tensor *const *leaf, int n)
{
    call *c = user;
    lks_tensor *grads[SAMPLE_INPUTS], *parts[SAMPLE_INPUTS];
    int m = 0;
    lks_tensor *y = forward(c, leaf, n - 1);
    lks_status s = y ? lks_gradients(y, leaf[n - 1], n - 1, leaf, 0, 1, grads) : LKS_ERR_ARGUMENT;
    for (int i = 0; i < n - 1 && s == LKS_OK; i++)
        if (grads[i]) parts[m++] = lks_flatten(grads[i], 0, -1);
    return s == LKS_OK && m ? lks_cat(m, parts, 0) : NULL;
}

/* Rules may take another way while they are recorded: it ends at the same numbers. */
static int check_recorded(const sample *s, call *c)
{
    lks_tensor *grads[2][SAMPLE_INPUTS], *y = forward(c, c->leaf, c->leaves);
    if (!y || !lks_requires_grad(y)) return 1;
    for (int recorded = 0; recorded < 2; recorded++)
        if (lks_gradients(y, c->leaf[c->leaves], c->leaves, c->leaf, 1, recorded, grads[recorded]) != LKS_OK)
            return complain_error(c->ctx, s, "gradients with and without a graph");
    for (int i = 0; i < c->leaves; i++) {
        double *got[2] = {NULL, NULL}, top = 1, worst = 0;
        if (!grads[0][i] != !grads[1][i]) return complain(s, "a gradient is there with or without a graph only");
        if (!grads[0][i]) continue;
        int64_t n = lks_numel(grads[0][i]);
        for (int k = 0; k < 2; k++) {
            got[k] = calloc((size_t)n + 1, sizeof **got);
            if (!got[k] || lks_to_host(lks_to(grads[k][i], LKS_F64), got[k], n * 8) != LKS_OK) bail("no memory");
        }
        for (int64_t j = 0; j < n; j++) top = fmax(top, fabs(got[0][j]));
        for (int64_t j = 0; j < n; j++) {
            double d = fabs(got[0][j] - got[1][j]) / top;
            if (!(d <= worst)) worst = d;
        }
        free(got[0]), free(got[1]);
        if (!(worst < 1e-11)) {
            diag("input %d: %g", i, worst);
            return complain(s, "recorded, the gradient is another");
        }
    }
    return 1;
}

static int check_second(const sample *s)
{
    lks_context *ctx = on(1);
    int good = 1;
    for (int form = 0; form < 3; form++) {
        call c;
        lks_tensor *grads[SAMPLE_INPUTS], *y;
        if (form > 0 && !thorough()) break;
        if (form == 1 && !sample_has_layout(s, REVERSED)) continue;
        counts before = count(ctx);
        lks_scope_begin(ctx);
        if (!prepare(&c, ctx, s, LKS_F64, form == 1 ? REVERSED : PLAIN, form == 2)) 
            good = complain_error(ctx, s, "prepare");
        lks_no_grad_begin(ctx);
        c.leaf[c.leaves] = seed_for(forward(&c, c.leaf, c.leaves));
        lks_no_grad_end(ctx);
        if (!c.leaf[c.leaves]) {
            good = complain_error(ctx, s, "forward");
        } else if (s->flags & ONCE) { /* the gradient is right, only its own gradient is refused */
            lks_set_requires_grad(c.leaf[c.leaves], 1);
            y = forward(&c, c.leaf, c.leaves);
            lks_status st = lks_gradients(y, c.leaf[c.leaves], c.leaves, c.leaf, 0, 1, grads);
            if (st != LKS_OK || !grads[0]) {
                good = complain_error(ctx, s, "gradients with a graph");
            } else {
                st = lks_backward(lks_sum(grads[0], 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0);
                if (st != LKS_ERR_UNSUPPORTED || !strstr(lks_error(ctx), "twice")) 
                    good = complain_error(ctx, s, "refusal");
                lks_error_clear(ctx);
            }
        } else {
            good &= check_recorded(s, &c);
            good &= gradcheck(&c, gradient_of, c.leaves + 1, form == 2 ? "expanded, second order" : "second order");
        }
        lks_scope_end(ctx);
        counts after = count(ctx);
        before.blocks = after.blocks;
        good &= same_counts(s, before, after);
    }
    return good;
}

/* --- reduced floats against float64 on the same numbers --- */

/* Rounding errors are measured against the largest element: sums cancel. */
static int near(const sample *s, const result *got, const result *want, double tolerance, const char *how)
{
    if (s->flags & ROUGH) tolerance *= s->flags & CHAIN ? 12 : 6;
    for (int k = 0; k < want->n; k++) {
        const double *a = got->data[k], *b = want->data[k];
        double top = 1, worst = 0;
        if (got->numel[k] != want->numel[k]) return complain(s, "another size");
        for (int64_t i = 0; i < want->numel[k]; i++) top = fmax(top, fabs(b[i]));
        for (int64_t i = 0; i < want->numel[k]; i++) {
            double d = fabs(a[i] - b[i]) / top;
            if (!(d <= worst)) worst = d;
        }
        if (worst <= tolerance) continue;
        diag("%s, %s, %s: %s %d is off by %g (tolerance %g)", s->row, s->what, how, k ? "gradient" : "result", k - 1,
             worst, tolerance);
        return 0;
    }
    return 1;
}

static double unit_of(lks_dtype dtype)
{
    return dtype == LKS_F32 ? 0x1p-20 : dtype == LKS_F16 ? 0x1p-10 : 0x1p-7;
}

static int check_dtypes(const sample *s)
{
    static const lks_dtype dtypes[] = {LKS_F32, LKS_F16, LKS_BF16};
    result want, got;
    if (!run(cpu[2], s, LKS_F64, PLAIN, 0, 1, &want)) return 0;
    int good = 1;
    for (int i = 0; i < 3; i++)
        for (int layout = PLAIN; layout < LAYOUTS; layout++) {
            if (!sample_has_layout(s, layout)) continue;
            char how[80];
            snprintf(how, sizeof how, "%s %s", lks_dtype_name(dtypes[i]), layout_names[layout]);
            good &= run(on(2), s, dtypes[i], layout, 0, 1, &got) && near(s, &got, &want, unit_of(dtypes[i]), how);
            drop_result(&got);
        }
    drop_result(&want);
    return good;
}

/* Reduced x with float32 weight and bias (norms), or with float32 bias (products): values, and gradients in the dtype
 * of each leaf. */
static int check_mixed(const sample *s)
{
    static const lks_dtype dtypes[] = {LKS_F16, LKS_BF16};
    lks_context *ctx = on(2);
    int first = strstr(s->row, "norm") ? 1 : 2, good = 1;
    result want, got;
    if (!run(cpu[2], s, LKS_F64, PLAIN, 0, 1, &want)) return 0;
    for (int i = 0; i < 2; i++)
        for (int layout = PLAIN; layout < LAYOUTS; layout++) {
            call c;
            lks_tensor *y;
            memset(&got, 0, sizeof got);
            lks_scope_begin(ctx);
            good &= prepare(&c, ctx, s, dtypes[i], layout, 0);
            for (int k = 0; k < c.leaves; k++)
                if (c.which[k] >= first) {
                    c.leaf[k] = sample_tensor(ctx, s, c.which[k], LKS_F32, layout);
                    lks_set_requires_grad(c.leaf[k], 1);
                }
            if (forward_backward(&c, &y) != LKS_OK) good = complain_error(ctx, s, "mixed dtypes");
            good = good && keep_result(&got, &c, y, 1) && near(s, &got, &want, unit_of(dtypes[i]), "mixed dtypes");
            good = good && lks_dtype_of(y) == dtypes[i];
            drop_result(&got);
            lks_scope_end(ctx);
        }
    drop_result(&want);
    return good;
}

static void test_mixed(void)
{
    static const char *const rows[] = {"layer_norm", "batch_norm", "linear", "conv2d"};
    for (int r = 0; r < 4; r++) {
        int good = 1;
        for (int i = 0; i < sample_count; i++)
            if (!strcmp(samples[i].row, rows[r]) && !(samples[i].flags & LARGE)) good &= check_mixed(&samples[i]);
        ok(good, "%s: reduced floats with float32 parameters", rows[r]);
    }
}

/* --- memory that runs out --- */

static int64_t failures; /* allocations that were made to fail */

static int fails_cleanly(lks_context *ctx, const sample *s, int layout)
{
    result want, got;
    if (!run(ctx, s, LKS_F32, layout, 0, 0, &want)) return 0;
    int good = 1;
    lks_synchronize(ctx);
    for (int64_t n = 1; good; n++) {
        call c;
        lks_tensor *y;
        lks_scope_begin(ctx);
        if (!prepare(&c, ctx, s, LKS_F32, layout, 0)) return complain_error(ctx, s, "prepare");
        counts before = count(ctx);
        ctx->base.fail_at = n;
        lks_scope_begin(ctx);
        lks_status st = forward_backward(&c, &y);
        int64_t left = ctx->base.fail_at;
        ctx->base.fail_at = 0;
        lks_scope_end(ctx);
        for (int k = 0; k < c.leaves; k++) lks_zero_grad(c.leaf[k]);
        lks_synchronize(ctx);
        counts after = count(ctx);
        if (left > 0 && st == LKS_OK) { /* nothing failed: all places were tried */
            lks_scope_end(ctx);
            break;
        }
        if (left <= 0 && st != LKS_OK && (st != LKS_ERR_MEMORY || lks_error_code(ctx) != LKS_ERR_MEMORY)) {
            diag("allocation %lld: status %s", (long long)n, lks_status_name(st));
            good = complain_error(ctx, s, "not LKS_ERR_MEMORY");
        }
        if (left > 0) good = complain_error(ctx, s, "failed without a reason");
        failures++;
        if (n > 2000) good = complain(s, "no end of allocations");
        lks_error_clear(ctx);
        if (!same_counts(s, before, after)) {
            diag("after the failure of allocation %lld", (long long)n);
            good = 0;
        }
        lks_scope_end(ctx);
        /* And the next call is as if nothing had been. */
        good &= run(ctx, s, LKS_F32, layout, 0, 0, &got);
        for (int k = 0; k < want.n && good; k++)
            if (want.bytes[k] > 0 && memcmp(got.data[k], want.data[k], (size_t)want.bytes[k]))
                good = complain(s, "other bits after a failure");
        drop_result(&got);
    }
    drop_result(&want);
    return good;
}

static int check_failures(const sample *s)
{
    return fails_cleanly(cpu[2], s, PLAIN) & fails_cleanly(cpu[2], s, SLICED);
}
static int check_failures_device(const sample *s) { return fails_cleanly(device, s, PLAIN); }
static int check_failures_far(const sample *s) { return fails_cleanly(far, s, PLAIN); }

/* --- autocast --- */

static int one_region(const sample *s, int table, lks_dtype lower, lks_dtype dtype, int inside, const result *want,
                      result *got)
{
    lks_context *ctx = on(2);
    call c;
    lks_tensor *y;
    int op = lks_op_lookup(s->row), policy = lks_autocast_policy(s->row, table), good = 1;
    memset(got, 0, sizeof *got);
    counts before = count(ctx);
    lks_scope_begin(ctx);
    if (!prepare(&c, ctx, s, dtype, PLAIN, 0)) return complain_error(ctx, s, "prepare");
    lks_no_grad_begin(ctx);
    lks_tensor *outside = forward(&c, c.leaf, c.leaves);
    lks_no_grad_end(ctx);
    int own_table = device ? LKS_TABLE_CUDA : LKS_TABLE_CPU;
    lks_autocast_set_table(ctx, table);
    lks_autocast_begin(ctx, lower, 1, 1);
    y = forward(&c, c.leaf, c.leaves);
    if (!inside) lks_autocast_end(ctx);
    if (policy == LKS_POLICY_ERROR) {
        good = (lks_dtype_of(outside) == LKS_F64 && y) ||
               (!y && lks_error_code(ctx) == LKS_ERR_UNSUPPORTED && strstr(lks_error(ctx), "_with_logits"));
        if (inside) lks_autocast_end(ctx);
        lks_autocast_set_table(ctx, LKS_TABLE_CPU);
        if (!good) complain_error(ctx, s, "not refused in a region");
        lks_error_clear(ctx);
        lks_scope_end(ctx);
        return good;
    }
    lks_status st = y ? lks_backward(y, seed_for(y), 0) : LKS_ERR_ARGUMENT;
    if (inside) lks_autocast_end(ctx);
    lks_autocast_set_table(ctx, own_table);
    if (st != LKS_OK || !outside) {
        good = complain_error(ctx, s, "in a region");
    } else {
        lks_dtype expect = policy == LKS_POLICY_LOWER ? lower : policy == LKS_POLICY_FP32 ? LKS_F32
            : lks_dtype_of(outside);
        if (lks_dtype_of(outside) == LKS_F64) expect = LKS_F64; /* the call says so */
        if (!(s->flags & COMPOSITE) && lks_dtype_of(y) != expect) {
            diag("%s, %s, table %d: %s region, %s input: result is %s, not %s", s->row, s->what, table,
                 lks_dtype_name(lower),
                 lks_dtype_name(dtype), lks_dtype_name(lks_dtype_of(y)), lks_dtype_name(expect));
            good = 0;
        }
        if (!(s->flags & COMPOSITE) && (!y->node || y->node->op != op)) good = complain(s, "another row in a region");
        good = good && keep_result(got, &c, y, 1);
        if (good) good = near(s, got, want, 2 * unit_of(lower), "in a region");
    }
    lks_scope_end(ctx);
    counts after = count(ctx);
    before.blocks = after.blocks;
    return good & same_counts(s, before, after);
}

static int check_autocast(const sample *s)
{
    static const lks_dtype lowers[] = {LKS_BF16, LKS_F16};
    result want, in, out;
    if (!run(cpu[2], s, LKS_F64, PLAIN, 0, 1, &want)) return 0;
    int good = 1;
    for (int table = 0; table < 2; table++)
        for (int l = 0; l < 2; l++)
            for (int d = 0; d < 2; d++) {
                lks_dtype dtype = d ? lowers[l] : LKS_F32;
                good &= one_region(s, table, lowers[l], dtype, 0, &want, &out) &
                        one_region(s, table, lowers[l], dtype, 1, &want, &in);
                for (int k = 0; k < out.n && good; k++)
                    if (out.bytes[k] > 0 && memcmp(in.data[k], out.data[k], (size_t)out.bytes[k]))
                        good = complain(s, "backward inside the region gives other bits than after it");
                drop_result(&in);
                drop_result(&out);
            }
    drop_result(&want);
    return good;
}

/* --- the same bits --- */

static int same_bits(const sample *s, const result *a, const result *b, const char *what)
{
    for (int k = 0; k < a->n; k++)
        if (a->bytes[k] < 0 && b->bytes[k] < 0) continue;
        else if (a->bytes[k] != b->bytes[k] || memcmp(a->data[k], b->data[k], (size_t)a->bytes[k])) {
            diag("%s %d", k ? "gradient" : "result", k - 1);
            return complain(s, what);
        }
    return 1;
}

static int check_bits(const sample *s)
{
    static const lks_dtype dtypes[] = {LKS_F32, LKS_BF16};
    int good = 1;
    for (int i = 0; i < 2; i++) {
        result want, got;
        if (!run(cpu[1], s, dtypes[i], PLAIN, 0, 0, &want)) return 0;
        for (int t = 1; t <= THREADS && good; t++) {
            good = run(cpu[t], s, dtypes[i], PLAIN, 0, 0, &got) &&
                   same_bits(s, &want, &got, t == 1 ? "other bits in a second run" : "other bits with more threads");
            drop_result(&got);
        }
        drop_result(&want);
    }
    return good;
}

static int waits_for_nothing(lks_context *ctx, const sample *s)
{
    call c;
    lks_tensor *y;
    lks_scope_begin(ctx);
    int good = prepare(&c, ctx, s, LKS_F32, REVERSED, 0);
    lks_tensor *seed = seed_for(forward(&c, c.leaf, c.leaves));
    int64_t waits = ctx->dev->waits;
    y = forward(&c, c.leaf, c.leaves);
    if (!y || lks_backward(y, seed, 0) != LKS_OK) good = complain_error(ctx, s, "on the device");
    if (ctx->dev->waits != waits) good = complain(s, "the host waited for the device");
    lks_scope_end(ctx);
    if (lks_synchronize(ctx) != LKS_OK) good = complain_error(ctx, s, "queued on the device");
    return good;
}

/* The device that the host cannot look into: the same bits, and nothing waits. */
static int check_far(const sample *s)
{
    result want, got;
    int good = run(cpu[2], s, LKS_F32, PLAIN, 0, 0, &want) && run(far, s, LKS_F32, PLAIN, 0, 0, &got) &&
               same_bits(s, &want, &got, "other bits on far");
    drop_result(&want);
    drop_result(&got);
    return good && waits_for_nothing(far, s);
}

/* The device under test has the CPU's values, to rounding, and the same bits each time. */
static int check_device(const sample *s)
{
    static const lks_dtype dtypes[] = {LKS_F64, LKS_F32, LKS_F16, LKS_BF16};
    int good = 1;
    for (int i = 0; i < 4; i++)
        for (int layout = PLAIN; layout < LAYOUTS; layout++) {
            if (!sample_has_layout(s, layout)) continue;
            if (s->flags & LARGE && (i != 1 || layout != PLAIN)) continue; /* a simulator is slow */
            result want, got;
            char how[80];
            snprintf(how, sizeof how, "%s %s, cpu and %s", lks_dtype_name(dtypes[i]), layout_names[layout],
                     lks_device_name(device));
            /* Long sums round on the CPU as well, by up to 12 units of float32 in these samples: the reference is
             * float64 then, and the device alone answers for the error. */
            lks_dtype truth = s->flags & LARGE ? LKS_F64 : dtypes[i];
            double allowed = i == 0 ? 1e-13 : s->flags & LARGE ? unit_of(dtypes[i]) : unit_of(dtypes[i]) / 2;
            good &= run(cpu[2], s, truth, layout, 0, 1, &want) && run(device, s, dtypes[i], layout, 0, 1, &got) &&
                    near(s, &got, &want, allowed, how);
            drop_result(&want);
            drop_result(&got);
        }
    if (s->flags & LARGE) return good;
    result want, got;
    good &= run(device, s, LKS_F32, PLAIN, 0, 0, &want) && run(device, s, LKS_F32, PLAIN, 0, 0, &got) &&
            same_bits(s, &want, &got, "other bits in a second run");
    drop_result(&want);
    drop_result(&got);
    return good && waits_for_nothing(device, s);
}

/* --- rows without a gradient that programs call: every layout and dtype, also in a region --- */

static void test_comparisons(void)
{
    static lks_tensor *(*const compare[])(lks_tensor *, lks_tensor *) = {lks_eq, lks_ne, lks_lt,
                                                                         lks_le, lks_gt, lks_ge};
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "argmax"};
    static const lks_dtype dtypes[] = {LKS_F64, LKS_F32, LKS_F16, LKS_BF16, LKS_I64, LKS_I32, LKS_U8};
    static const sample pair = {.row = "compare", .what = "",
                                .in = {{IN_INDEX, 3, {2, 3, 4}, 3}, {IN_INDEX, 2, {3, 1}, 3}}, .nin = 2};
    for (int c = 0; c < 7; c++) {
        int good = 1;
        for (int k = 0; k < 7 * LAYOUTS * 2; k++) {
            lks_context *ctx = k % 2 ? far : on(2);
            lks_scope_begin(ctx);
            lks_tensor *a = lks_to(sample_tensor(ctx, &pair, 0, LKS_F32, k / 14), dtypes[k / 2 % 7]);
            lks_tensor *b = lks_to(sample_tensor(ctx, &pair, 1, LKS_F32, k / 14), dtypes[k / 2 % 7]);
            double *x = values_of(ctx, a), *y = values_of(ctx, b);
            lks_autocast_begin(ctx, LKS_BF16, k % 3 > 0, 1);
            lks_tensor *t = c < 6 ? compare[c](a, b) : lks_argmax(a, 1, 0);
            lks_autocast_end(ctx);
            double *z = values_of(ctx, t);
            good &= t && lks_dtype_of(t) == (c < 6 ? LKS_BOOL : LKS_I64) && !lks_requires_grad(t);
            for (int i = 0; i < 24 && c < 6 && good; i++) {
                double p = x[i], q = y[i / 4 % 3];
                int want[6] = {p == q, p != q, p < q, p <= q, p > q, p >= q};
                good = z[i] == want[c];
            }
            for (int i = 0; i < 8 && c == 6 && good; i++) {
                int at = 0, base = i / 4 * 12 + i % 4;
                for (int d = 1; d < 3; d++)
                    if (x[base + 4 * d] > x[base + 4 * at]) at = d;
                good = z[i] == at;
            }
            free(x), free(y), free(z);
            lks_scope_end(ctx);
        }
        ok(good, "%s: every layout and dtype, on both devices, in regions", names[c]);
    }
}

/* --- calls that must be refused --- */

static lks_tensor *made(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape)
{
    return lks_zeros(ctx, dtype, ndim, shape);
}
#define D(type, ...)                                                                                           \
    made(ctx, type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define F(...) D(LKS_F32, __VA_ARGS__)
#define S(type) made(ctx, type, 0, NULL)

static int refused(lks_context *ctx, const void *tensor, lks_status want, const char *where, const char *a,
                   const char *b)
{
    const char *text = lks_error(ctx);
    int good = !tensor && lks_error_code(ctx) == want && strstr(text, where) && strstr(text, a) && strstr(text, b);
    if (!good) diag("%s: %s: %s", tensor ? "a result" : "none", lks_status_name(lks_error_code(ctx)), text);
    lks_error_clear(ctx);
    return good;
}

static void test_refusals(lks_context *ctx, lks_context *other)
{
    lks_tensor *out[8], *x[3];
    int64_t two[2] = {2, 2}, none[2] = {0, 0};
    counts before = count(ctx);
    lks_scope_begin(ctx);
    lks_scope_begin(other);
#define NO(call, status, where, a, b) ok(refused(ctx, call, status, where, a, b), "%s", #call)
    NO(lks_add(F(2, 3), F(4)), LKS_ERR_SHAPE, "lks_add", "[2,3]", "[4]");
    NO(lks_where(D(LKS_BOOL, 2), F(3), F(3)), LKS_ERR_SHAPE, "lks_where", "[2]", "[3]");
    NO(lks_where(F(2), F(2), F(2)), LKS_ERR_DTYPE, "lks_where", "float32", "bool");
    NO(lks_sub(D(LKS_BOOL, 2), D(LKS_BOOL, 2)), LKS_ERR_DTYPE, "lks_sub", "bool", "");
    NO(lks_affine(D(LKS_I64, 2), 2.5, 0), LKS_ERR_ARGUMENT, "lks_affine", "2.5", "int64");
    NO(lks_matmul(F(2, 3), F(4, 5)), LKS_ERR_SHAPE, "lks_matmul", "[2,3]", "[4,5]");
    NO(lks_matmul(F(2, 2, 3), F(3, 3, 2)), LKS_ERR_SHAPE, "lks_matmul", "[2,2,3]", "[3,3,2]");
    NO(lks_matmul(F(2, 3), D(LKS_F64, 3, 2)), LKS_ERR_DTYPE, "lks_matmul", "float32", "float64");
    NO(lks_matmul(D(LKS_I64, 2, 3), D(LKS_I64, 3, 2)), LKS_ERR_DTYPE, "lks_matmul", "int64", "");
    NO(lks_matmul(S(LKS_F32), F(3)), LKS_ERR_SHAPE, "lks_matmul", "[]", "[3]");
    NO(lks_linear(F(2, 3), F(4, 5), LKS_NONE), LKS_ERR_SHAPE, "lks_linear", "[2,3]", "[4,5]");
    NO(lks_linear(F(2, 3), F(4, 3), F(3)), LKS_ERR_SHAPE, "lks_linear", "[4]", "[3]");
    NO(lks_conv2d(F(1, 3, 4, 4), F(2, 2, 3, 3), LKS_NONE, NULL, NULL, NULL, 1), LKS_ERR_SHAPE, "lks_conv2d",
       "[1,3,4,4]", "[2,2,3,3]");
    NO(lks_conv2d(F(1, 2, 2, 2), F(2, 2, 3, 3), LKS_NONE, NULL, NULL, NULL, 1), LKS_ERR_SHAPE, "lks_conv2d", "3", "2");
    NO(lks_conv2d(F(1, 2, 4, 4), F(2, 2, 3, 3), LKS_NONE, none, NULL, NULL, 1), LKS_ERR_ARGUMENT, "lks_conv2d",
       "stride 0", "");
    NO(lks_conv2d(F(1, 2, 4, 4), F(2, 2, 3, 3), LKS_NONE, NULL, NULL, NULL, 0), LKS_ERR_SHAPE, "lks_conv2d", "0 groups",
       "");
    NO(lks_max_pool2d(F(2, 4, 4), two, NULL, NULL), LKS_ERR_SHAPE, "lks_max_pool2d", "[2,4,4]", "");
    NO(lks_max_pool2d(F(1, 2, 4, 4), two, NULL, two), LKS_ERR_ARGUMENT, "lks_max_pool2d", "padding 2", "");
    NO(lks_layer_norm(F(2, 3), 1, F(4), LKS_NONE, 1e-5), LKS_ERR_SHAPE, "lks_layer_norm", "[4]", "[2,3]");
    NO(lks_layer_norm(F(2, 3), 3, LKS_NONE, LKS_NONE, 1e-5), LKS_ERR_SHAPE, "lks_layer_norm", "3", "[2,3]");
    NO(lks_batch_norm(F(2, 3), LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 0, 0.1, 1e-5),
       LKS_ERR_ARGUMENT, "lks_batch_norm", "running_mean", "");
    NO(lks_batch_norm(F(2, 3), F(2), F(2), LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-5), LKS_ERR_SHAPE,
       "lks_batch_norm", "[2]", "[2,3]");
    NO(lks_softmax(F(2, 3), 2), LKS_ERR_ARGUMENT, "lks_softmax", "dim 2", "");
    NO(lks_softmax(D(LKS_I64, 3), 0), LKS_ERR_DTYPE, "lks_softmax", "int64", "");
    NO(lks_cross_entropy(F(2, 3), D(LKS_I64, 3), -100, 0, LKS_REDUCTION_MEAN), LKS_ERR_SHAPE, "lks_cross_entropy",
       "[3]", "[2,3]");
    NO(lks_cross_entropy(F(2, 3), F(2), -100, 0, LKS_REDUCTION_MEAN), LKS_ERR_DTYPE, "lks_cross_entropy", "float32",
       "int64");
    NO(lks_cross_entropy(F(2, 3), D(LKS_I64, 2), -100, 0, 3), LKS_ERR_ARGUMENT, "lks_cross_entropy", "3", "");
    NO(lks_embedding(F(2, 3), F(2)), LKS_ERR_DTYPE, "lks_embedding", "float32", "int64");
    NO(lks_embedding(F(2), D(LKS_I64, 2)), LKS_ERR_SHAPE, "lks_embedding", "[2]", "");
    x[0] = F(2, 3), x[1] = F(3, 3), x[2] = S(LKS_F32);
    NO(lks_cat(2, x, 1), LKS_ERR_SHAPE, "lks_cat", "[2,3]", "[3,3]");
    NO(lks_cat(2, x, 2), LKS_ERR_ARGUMENT, "lks_cat", "dim 2", "");
    NO(lks_cat(3, x, 0), LKS_ERR_SHAPE, "lks_cat", "input 2", "");
    NO(lks_sum(F(2, 3), 1, (int[]){2}, 0, LKS_DTYPE_NONE), LKS_ERR_ARGUMENT, "lks_sum", "dim 2", "");
    NO(lks_sum(F(2, 3), 2, (int[]){1, -1}, 0, LKS_DTYPE_NONE), LKS_ERR_ARGUMENT, "lks_sum", "twice", "1");
    NO(lks_sum(F(2, 3), 0, NULL, 0, 77), LKS_ERR_DTYPE, "lks_sum", "77", "");
    NO(lks_mean(D(LKS_I64, 3), 0, NULL, 0, LKS_DTYPE_NONE), LKS_ERR_DTYPE, "lks_mean", "int64", "");
    NO(lks_argmax(F(2, 0), 1, 0), LKS_ERR_SHAPE, "lks_argmax", "[2,0]", "empty");
    NO(lks_max_all(F(0)), LKS_ERR_SHAPE, "lks_max", "[0]", "empty");
    NO(lks_scaled_dot_product_attention(F(1, 2, 3, 4), F(1, 2, 3, 5), F(1, 2, 3, 5), LKS_NONE, 0, 0, 0), LKS_ERR_SHAPE,
       "lks_scaled_dot_product_attention", "[1,2,3,4]", "[1,2,3,5]");
    NO(lks_scaled_dot_product_attention(F(1, 2, 3, 4), F(1, 2, 3, 4), F(1, 2, 3, 4), F(2, 3), 0, 0, 0), LKS_ERR_SHAPE,
       "lks_scaled_dot_product_attention", "[2,3]", "[1,2,3,3]");
    NO(lks_dropout(F(2), 1), LKS_ERR_ARGUMENT, "lks_dropout", "p is 1", "");
    NO(lks_dropout(D(LKS_I32, 2), 0.5), LKS_ERR_DTYPE, "lks_dropout", "int32", "");
    NO(lks_reshape(F(2, 3), 1, (int64_t[]){5}), LKS_ERR_SHAPE, "lks_reshape", "[2,3]", "[5]");
    NO(lks_reshape(F(2, 3), 2, (int64_t[]){-1, -1}), LKS_ERR_SHAPE, "lks_reshape", "[-1,-1]", "");
    NO(lks_reshape(F(2, 3), 2, (int64_t[]){4, -1}), LKS_ERR_SHAPE, "lks_reshape", "[2,3]", "");
    NO(lks_reshape(F(0, 3), 2, (int64_t[]){0, -1}), LKS_ERR_SHAPE, "lks_reshape", "[0,3]", "");
    NO(lks_reshape(F(2), 9, (int64_t[]){2, 1, 1, 1, 1, 1, 1, 1, 1}), LKS_ERR_SHAPE, "lks_reshape", "9", "");
    NO(lks_expand(F(2, 3), 2, (int64_t[]){4, 3}), LKS_ERR_SHAPE, "lks_expand", "[2,3]", "[4,3]");
    NO(lks_expand(F(2, 3), 1, (int64_t[]){3}), LKS_ERR_SHAPE, "lks_expand", "[2,3]", "[3]");
    NO(lks_expand(F(1), 2, (int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}), LKS_ERR_SHAPE, "lks_expand", "64-bit", "");
    NO(lks_permute(F(2, 3), 2, (int[]){0, 0}), LKS_ERR_ARGUMENT, "lks_permute", "permutation", "");
    NO(lks_permute(F(2, 3), 3, (int[]){0, 1, 2}), LKS_ERR_ARGUMENT, "lks_permute", "3", "2");
    NO(lks_transpose(F(2, 3), 0, 2), LKS_ERR_ARGUMENT, "lks_transpose", "dim 2", "");
    NO(lks_slice(F(2, 3), 0, 0, 2, 0), LKS_ERR_ARGUMENT, "lks_slice", "step is 0", "");
    NO(lks_slice(S(LKS_F32), 0, 0, 1, 1), LKS_ERR_ARGUMENT, "lks_slice", "dim 0", "");
    NO(lks_narrow(F(3), 0, 2, 2), LKS_ERR_SHAPE, "lks_narrow", "start 2", "size 3");
    NO(lks_select(F(3), 0, 3), LKS_ERR_SHAPE, "lks_select", "index 3", "size 3");
    NO(lks_unsqueeze(F(3), 3), LKS_ERR_ARGUMENT, "lks_unsqueeze", "dim 3", "");
    NO(lks_flatten(F(2, 3), 1, 0), LKS_ERR_ARGUMENT, "lks_flatten", "1", "0");
    NO(lks_to(F(2), 99), LKS_ERR_DTYPE, "lks_to", "99", "");
    ok(lks_split(F(5), 0, 0, 8, out) == LKS_ERR_ARGUMENT && refused(ctx, NULL, LKS_ERR_ARGUMENT, "lks_split", "0", ""),
       "pieces of 0");
    ok(lks_split(F(5), 1, 0, 4, out) == LKS_ERR_ARGUMENT && refused(ctx, NULL, LKS_ERR_ARGUMENT, "lks_split", "5", "4"),
       "more pieces than room");
    NO(lks_add(F(2), lks_zeros(other, LKS_F32, 0, NULL)), LKS_ERR_ARGUMENT, "lks_add", "context", "");
    /* Absent where something is needed. */
    NO(lks_add(LKS_NONE, F(2)), LKS_ERR_ARGUMENT, "lks_add", "input 0", "LKS_NONE");
    NO(lks_eq(LKS_NONE, F(2)), LKS_ERR_ARGUMENT, "lks_eq", "input 0", "LKS_NONE");
    NO(lks_gt(F(2), LKS_NONE), LKS_ERR_ARGUMENT, "lks_gt", "input 1", "LKS_NONE");
    NO(lks_matmul(F(2), LKS_NONE), LKS_ERR_ARGUMENT, "lks_matmul", "input 1", "LKS_NONE");
    NO(lks_embedding(F(2, 2), LKS_NONE), LKS_ERR_ARGUMENT, "lks_embedding", "input 1", "LKS_NONE");
    x[1] = LKS_NONE;
    NO(lks_cat(2, x, 0), LKS_ERR_ARGUMENT, "lks_cat", "1", "");
    ok(!lks_relu(LKS_NONE) && !lks_argmax(LKS_NONE, 0, 0) && !lks_sum(LKS_NONE, 0, NULL, 0, LKS_DTYPE_NONE) &&
           !lks_clone(LKS_NONE) && lks_fill_(LKS_NONE, 1) == LKS_ERR_ARGUMENT &&
               lks_copy_(LKS_NONE, x[0]) == LKS_ERR_ARGUMENT,
       "LKS_NONE alone has no context and gives a plain failure");
    lks_error_clear(ctx);
    /* NULL passes through and records nothing. */
    lks_tensor *y;
    x[0] = NULL, x[1] = F(2);
    ok(!lks_add(NULL, x[1]) && !lks_add(x[1], NULL) && !lks_matmul(x[1], NULL) && !lks_relu(NULL) &&
       !lks_where(NULL, x[1], x[1]) &&
           !lks_linear(x[1], NULL, LKS_NONE) && !lks_cat(2, x, 0) && !lks_softmax(NULL, 0) &&
               !lks_reshape(NULL, 0, NULL) &&
           !lks_permute(NULL, 0, NULL) && !lks_slice(NULL, 0, 0, 0, 1) && !lks_sum(NULL, 0, NULL, 0, LKS_DTYPE_NONE) &&
           !lks_to(NULL, LKS_F32) && !lks_dropout(NULL, 0.5) && !lks_embedding(NULL, x[1]) && !lks_max_all(NULL) &&
           !lks_conv2d(NULL, x[1], LKS_NONE, NULL, NULL, NULL, 1) && !lks_detach(NULL) && !lks_contiguous(NULL) &&
           !lks_cross_entropy(NULL, x[1], 0, 0, 0) && !lks_layer_norm(NULL, 1, LKS_NONE, LKS_NONE, 1) &&
           lks_max(NULL, 0, 0, &y, NULL) == LKS_ERR_ARGUMENT && lks_copy_(NULL, x[1]) == LKS_ERR_ARGUMENT &&
           lks_backward(NULL, LKS_NONE, 0) == LKS_ERR_ARGUMENT && lks_error_code(ctx) == LKS_OK,
       "NULL passes through every call without an error of its own");
    /* In-place forms. */
    lks_tensor *leaf = F(2);
    lks_set_requires_grad(leaf, 1);
    ok(lks_fill_(leaf, 1) == LKS_ERR_STATE && refused(ctx, NULL, LKS_ERR_STATE, "lks_fill_", "no_grad", ""),
       "a leaf is not filled while ops are recorded");
    ok(lks_copy_(F(2), F(3)) == LKS_ERR_SHAPE && refused(ctx, NULL, LKS_ERR_SHAPE, "lks_copy_", "[3]", "[2]"),
       "copy of a shape that does not broadcast");
    ok(lks_fill_(lks_expand(F(1), 1, (int64_t[]){3}), 1) == LKS_ERR_ARGUMENT &&
           refused(ctx, NULL, LKS_ERR_ARGUMENT, "lks_fill_", "[3]", "expanded"), "an expanded view is not written");
    ok(lks_uniform_(D(LKS_I64, 2), 0, 1) == LKS_ERR_DTYPE &&
       refused(ctx, NULL, LKS_ERR_DTYPE, "lks_uniform_", "int64", ""),
       "integers are not filled with random numbers");
    /* Indices that the host can see. */
    NO(lks_embedding(F(2, 2), lks_affine(D(LKS_I64, 3), 1, 7)), LKS_ERR_ARGUMENT, "embedding", "7", "");
    NO(lks_cross_entropy(F(2, 3), lks_affine(D(LKS_I64, 2), 1, 3), -100, 0, 1), LKS_ERR_ARGUMENT, "cross_entropy", "3",
       "");
    lks_scope_end(other);
    lks_scope_end(ctx);
    counts after = count(ctx);
    before.blocks = after.blocks;
    ok(same_counts(&samples[0], before, after), "refusals leave nothing behind");
}

/* The first error stays until it is cleared, and ops go on working meanwhile. */
static void test_first_error(lks_context *ctx)
{
    lks_scope_begin(ctx);
    lks_tensor *a = F(2, 3);
    lks_add(a, F(4));
    lks_matmul(a, a);
    ok(strstr(lks_error(ctx), "lks_add") && !strstr(lks_error(ctx), "lks_matmul"), "the first of two errors is kept");
    ok(lks_add(a, a) != NULL, "an op works while an error is kept");
    lks_error_clear(ctx);
    is_int(lks_error_code(ctx), LKS_OK, "cleared");
    is_str(lks_error(ctx), "", "and without text");
    ctx->base.fail_at = 1;
    ok(!lks_add(a, a) && lks_error_code(ctx) == LKS_ERR_MEMORY, "an allocation fails");
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    ok(lks_matmul(a, F(3, 2)) != NULL, "casts work while that error is kept");
    lks_autocast_end(ctx);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
}

/* --- instruction sets --- */

static lks_context *level[3]; /* base, avx2, avx512; NULL: not on this processor or not built */
static const char *const level_names[3] = {"base", "avx2", "avx512"};
static double farthest; /* that two levels were apart, in units of the dtype's rounding */

/* doc/performance.md, "Between instruction sets": the same bits where a formula has no fused multiply-add, else within
 * 64 roundings of the largest element. */
static int exact(const char *row)
{
    static const char *const rows[] = {"sub",     "mul",         "div",       "affine",     "relu",     "where",
                                       "sqrt",    "maximum",     "clamp",     "leaky_relu", "sum",      "mean",
                                       "cumsum",  "gather",      "index_put", "embedding",  "dropout",  "cat",
                                       "permute", "scatter_add", "mse_loss",  "l1_loss",    "avg_pool2d"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(row, rows[i])) return 1;
    return 0;
}

static int check_levels(const sample *s)
{
    static const lks_dtype dtypes[] = {LKS_F32, LKS_F64, LKS_BF16};
    static const double unit[] = {0x1p-24, 0x1p-53, 0x1p-9};
    int good = 1;
    for (int i = 0; i < 3; i++) {
        result want, got;
        if (!run(level[0], s, dtypes[i], PLAIN, 0, 1, &want)) return 0;
        for (int l = 1; l < 3 && good; l++) {
            if (!level[l]) continue;
            good = run(level[l], s, dtypes[i], PLAIN, 0, 1, &got);
            for (int k = 0; k < want.n && good; k++) {
                const double *a = got.data[k], *b = want.data[k];
                double top = 0, worst = 0;
                for (int64_t n = 0; n < want.numel[k]; n++) top = fmax(top, fabs(b[n]));
                for (int64_t n = 0; n < want.numel[k]; n++)
                    if (a[n] != b[n] && !(isnan(a[n]) && isnan(b[n]))) worst = fmax(worst, fabs(a[n] - b[n]));
                worst = worst == 0 ? 0 : worst / top / unit[i];
                farthest = fmax(farthest, worst);
                good = worst <= (exact(s->row) ? 0 : 64);
                if (!good)
                    diag("%s, %s, %s, %s: %s %d is %g roundings from base", s->row, s->what, level_names[l],
                         lks_dtype_name(dtypes[i]), k ? "gradient" : "result", k - 1, worst);
            }
            drop_result(&got);
        }
        drop_result(&want);
    }
    return good;
}

/* A product of random numbers: within 2 k u |A| |B| of base, which any order of its k additions keeps. */
static void test_level_products(void)
{
    enum { M = 37, K = 1000, N = 45 };
    static const int64_t am[2] = {M, K}, bm[2] = {K, N};
    static float y[3][M * N], size[M * N];
    double *p = noise(M * K, 1, 1), *q = noise(K * N, 1, 2);
    for (int l = 0; l < 3; l++) {
        lks_context *ctx = level[l];
        if (!ctx) continue;
        lks_scope_begin(ctx);
        lks_tensor *a = tensor_of(ctx, LKS_F32, 2, am, p), *b = tensor_of(ctx, LKS_F32, 2, bm, q);
        lks_tensor *c = lks_matmul(a, b), *d = lks_matmul(lks_abs(a), lks_abs(b));
        int good = c && d && lks_to_host(c, y[l], sizeof y[l]) == LKS_OK;
        good = good && (l || lks_to_host(d, size, sizeof size) == LKS_OK);
        double worst = 0;
        for (int i = 0; i < M * N && good; i++)
            worst = fmax(worst, fabs((double)y[l][i] - (double)y[0][i]) / (2.0 * K * 0x1p-24 * (double)size[i]));
        ok(good && worst <= 1, "%s: a product within the bound of base (%.4f of it)", level_names[l], worst);
        lks_scope_end(ctx);
    }
    free(p);
    free(q);
}

static void test_levels(void)
{
    for (int l = 0; l < 3; l++) level[l] = context_on("cpu", level_names[l], 1);
    if (!level[0] || (!level[1] && !level[2])) {
        skip(1, "only one instruction set here");
    } else {
        each_row("instruction sets", check_levels, 1);
        test_level_products();
        diag("farthest: %.1f roundings of the largest element", farthest);
    }
    for (int l = 0; l < 3; l++) lks_context_destroy(&level[l]);
}

/* All loops that make sense there. */
static int on_device(const char *name)
{
    if (!(device = context_on(name, NULL, 1))) bail("no context on %s", name);
    diag("%s", lks_device_description(device));
    each_row("the CPU's values", check_device, 1);
    each_row("recorded, layouts agree", check_layouts, 0);
    each_row("numeric gradients", check_gradients, 0);
    each_row("second order", check_second, 0);
    each_row("reduced floats", check_dtypes, 0);
    each_row("autocast", check_autocast, 0);
    each_row("failing memory", check_failures_device, 0);
    int64_t left = lks_live_tensors(device) + lks_live_nodes(device);
    is_int(left, 0, "nothing is left");
    is_int(lks_context_destroy(&device), LKS_OK, "destroyed");
    diag("%d samples had no kernel", lacks);
    for (int t = 1; t <= THREADS; t++) lks_context_destroy(&cpu[t]);
    lks_finalize();
    return done();
}

int main(void)
{
    char isa[32]; /* LKS_ISA of the caller; context_on sets it anew */
    snprintf(isa, sizeof isa, "%s", getenv("LKS_ISA") ? getenv("LKS_ISA") : "");
    for (int t = 1; t <= THREADS; t++)
        if (!(cpu[t] = context_on("cpu", *isa ? isa : NULL, t))) bail("no context");
    const char *under_test = getenv("LKS_TEST_DEVICE");
    if (under_test && *under_test && strcmp(under_test, "cpu")) return on_device(under_test);
    if (!(far = context_on("far", *isa ? isa : NULL, 2))) bail("no far context");
    int bare = 0;
    for (int i = 0; i < sample_count; i++) {
        int op = lks_op_lookup(samples[i].row);
        int policy = op < 0 ? LKS_POLICY_NONE : lks_autocast_policy(samples[i].row, LKS_TABLE_CPU);
        if (op < 0 || (!lks_op_differentiable(op) && policy == LKS_POLICY_NONE))
            bare += !complain(&samples[i], "no such differentiable row");
    }
    is_int(bare, 0, "every sample is of a differentiable row, or one with a policy");
    each_row("recorded, layouts agree", check_layouts, 0);
    each_row("numeric gradients", check_gradients, 0);
    each_row("second order", check_second, 0);
    each_row("reduced floats", check_dtypes, 0);
    each_row("same bits", check_bits, 1);
    each_row("far device", check_far, 1);
    each_row("autocast", check_autocast, 0);
    each_row("failing memory", check_failures, 0);
    each_row("failing memory on far", check_failures_far, 0);
    ok(failures > 5000, "%lld allocations were made to fail", (long long)failures);
    test_levels();
    test_mixed();
    test_comparisons();
    test_refusals(cpu[2], cpu[1]);
    test_first_error(cpu[2]);
    for (int t = 1; t <= THREADS; t++) {
        is_int(lks_live_tensors(cpu[t]) + lks_live_nodes(cpu[t]), 0, "nothing is left with %d threads", t);
        is_int(lks_context_destroy(&cpu[t]), LKS_OK, "destroyed");
    }
    is_int(lks_live_tensors(far) + lks_live_nodes(far), 0, "nothing is left on far");
    is_int(lks_context_destroy(&far), LKS_OK, "destroyed");
    lks_finalize();
    return done();
}
