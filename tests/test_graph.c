/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_graph.c - what programs build on the graph: functions with a backward of their own, activations made again,
 * anomaly mode, gradients of gradients in a training, frozen parts; and what autocast tells: observer, policies of the
 * program, statistics.
 */
#include "tap.h"
#include "errors.h"
#include "autocast/autocast.h"
#include <lockstep.h>
#include <math.h>

static lks_context *ctx;

#define ALL 0, NULL, 0, LKS_DTYPE_NONE
#define VEC(n) 1, (int64_t[]){n}
#define MAT(r, c) 2, (int64_t[]){r, c}

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

static double item(lks_tensor *t)
{
    double v = NAN;
    if (!t || lks_item(t, &v) != LKS_OK) {
        diag("%s", lks_error(ctx));
        lks_error_clear(ctx);
    }
    return v;
}

static lks_tensor *leaf(lks_tensor *t)
{
    lks_set_requires_grad(t, 1);
    return t;
}

static lks_tensor *total(lks_tensor *x) { return lks_sum(x, ALL); }

static uint64_t state = 7;
static double noise(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) / (double)(INT64_C(1) << 52) - 1;
}

static lks_tensor *random_tensor(lks_dtype dtype, int ndim, const int64_t *shape)
{
    double v[4096];
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    for (int64_t i = 0; i < n; i++) v[i] = noise();
    return lks_to(lks_from_host(ctx, LKS_F64, ndim, shape, v), dtype);
}

static int same_bits(lks_tensor *a, lks_tensor *b)
{
    if (!a || !b || lks_numel(a) != lks_numel(b) || lks_dtype_of(a) != lks_dtype_of(b)) return 0;
    int64_t n = lks_numel(a) * lks_dtype_size(lks_dtype_of(a));
    char *x = calloc(2, (size_t)n + 1), *y = x + n;
    int same = lks_to_host(a, x, n) == LKS_OK && lks_to_host(b, y, n) == LKS_OK && !memcmp(x, y, (size_t)n);
    free(x);
    return same;
}

/* --- custom functions --- */

typedef struct seen {
    lks_dtype in_forward, in_backward, op_backward;
    int on_forward, on_backward, calls;
} seen;

static lks_status cube(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    seen *s = user;
    (void)nin, (void)nout;
    if (s) {
        s->in_forward = lks_dtype_of(in[0]);
        s->on_forward = lks_autocast_enabled(ctx);
        s->calls++;
    }
    lks_status status = lks_custom_save(call, in[0]);
    out[0] = lks_mul(lks_mul(in[0], in[0]), in[0]);
    return status;
}

static lks_status cube_back(lks_custom *call, void *user, int nout, lks_tensor *const *dout, int nin, lks_tensor **din)
{
    seen *s = user;
    lks_tensor *x = lks_custom_saved(call, 0);
    (void)nin, (void)nout;
    if (!x) return lks_error_code(ctx);
    if (s) {
        s->in_backward = lks_dtype_of(dout[0]);
        s->on_backward = lks_autocast_enabled(ctx);
        lks_tensor *m = lks_ones(ctx, LKS_F32, MAT(1, 1));
        s->op_backward = lks_dtype_of(lks_matmul(m, m));
    }
    if (lks_custom_needs(call, 0)) din[0] = lks_mul(lks_mul_scalar(lks_mul(x, x), 3), dout[0]);
    return LKS_OK;
}

static lks_tensor *cubed(lks_tensor *x, seen *s, lks_dtype cast)
{
    lks_tensor *y = NULL;
    return lks_custom_call(ctx, "cube", cube, cube_back, s, cast, 1, &x, 1, &y) == LKS_OK ? y : NULL;
}

/* exp, saving its output; a second output that is an integer. */
static lks_status grow(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)user, (void)nin, (void)nout;
    out[0] = lks_exp(in[0]);
    out[1] = lks_arange(ctx, LKS_I64, 3);
    return out[0] && out[1] ? lks_custom_save(call, out[0]) : lks_error_code(ctx);
}

static lks_status grow_back(lks_custom *call, void *user, int nout, lks_tensor *const *dout, int nin, lks_tensor **din)
{
    (void)user, (void)nout, (void)nin;
    lks_tensor *y = lks_custom_saved(call, 0);
    if (!y || dout[1] != LKS_NONE) return LKS_ERR_INTERNAL;
    din[0] = lks_mul(dout[0], y);
    return din[0] ? LKS_OK : lks_error_code(ctx);
}

static lks_status straight(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)call, (void)user, (void)nin, (void)nout;
    out[0] = in[0]; /* straight-through: the input itself */
    return LKS_OK;
}

static lks_status twice_back(lks_custom *call, void *user, int nout, lks_tensor *const *dout, int nin, lks_tensor **din)
{
    (void)call, (void)nout, (void)nin;
    din[0] = user ? lks_reshape(dout[0], VEC(1)) : lks_mul_scalar(dout[0], 2);
    return LKS_OK;
}

static lks_status broken(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)call, (void)user, (void)nin, (void)nout;
    lks_autocast_begin(ctx, LKS_F16, 1, 1); /* and no end */
    out[0] = lks_reshape(in[0], VEC(77));
    return out[0] ? LKS_OK : lks_error_code(ctx);
}

static lks_tensor *check_cube(void *user, lks_tensor *const *in, int n)
{
    (void)n;
    return cubed(lks_mul(in[0], in[1]), user, LKS_DTYPE_NONE);
}

/* Functions that leave a region and no_grad open, and fail. */
static lks_status careless(lks_custom *call, void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)call, (void)user, (void)nin, (void)nout;
    lks_autocast_begin(ctx, LKS_F16, 1, 1);
    lks_no_grad_begin(ctx);
    out[0] = lks_exp(in[0]);
    return LKS_ERR_ARGUMENT;
}

static lks_status careless_block(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    return careless(NULL, user, nin, in, nout, out);
}

static void left_open(void)
{
    lks_tensor *x = leaf(random_tensor(LKS_F32, MAT(2, 2))), *y = NULL;
    for (int inside = 0; inside < 2; inside++) {
        if (inside) lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        for (int k = 0; k < 2; k++) {
            lks_status s = k ? lks_recompute(ctx, careless_block, NULL, 1, &x, 1, &y)
                             : lks_custom_call(ctx, "careless", careless, NULL, NULL, LKS_DTYPE_NONE, 1, &x, 1, &y);
            lks_error_clear(ctx);
            ok(s != LKS_OK && lks_autocast_depth(ctx) == inside && lks_grad_enabled(ctx) &&
                   lks_autocast_enabled(ctx) == inside,
               "what a function that fails leaves open is closed: %s, depth %d", k ? "recompute" : "custom", inside);
        }
        if (inside) lks_autocast_end(ctx);
    }
}

static void custom(void)
{
    lks_tensor *x = leaf(lks_full(ctx, LKS_F32, 0, NULL, 2)), *g[1], *h[1];
    lks_tensor *y = cubed(x, NULL, LKS_DTYPE_NONE);
    ok(item(y) == 8 && fine(lks_backward(y, LKS_NONE, 0)) && item(lks_grad(x)) == 12, "x^3 at 2: 8 and 12");
    ok(fine(lks_gradients(cubed(x, NULL, LKS_DTYPE_NONE), LKS_NONE, 1, &x, 0, 1, g)) && item(g[0]) == 12 &&
           fine(lks_gradients(g[0], LKS_NONE, 1, &x, 0, 1, h)) && item(h[0]) == 12,
       "second order through its recorded backward: 6 x = 12");
    lks_tensor *third[1];
    ok(fine(lks_gradients(h[0], LKS_NONE, 1, &x, 0, 0, third)) && item(third[0]) == 6, "and third: 6");
    double worst = 0;
    lks_tensor *in[2] = {random_tensor(LKS_F64, MAT(2, 3)), random_tensor(LKS_F64, VEC(3))};
    int close = fine(lks_gradcheck(ctx, check_cube, NULL, 2, in, 1e-6, 1e-6, &worst));
    ok(close, "against differences: %.1e", worst);
    /* a saved output */
    lks_tensor *out[2];
    x = leaf(lks_full(ctx, LKS_F64, VEC(1), 1.5));
    ok(fine(lks_custom_call(ctx, "grow", grow, grow_back, NULL, LKS_DTYPE_NONE, 1, &x, 2, out)) &&
           lks_requires_grad(out[0]) && !lks_requires_grad(out[1]),
       "two outputs, an integer one is not differentiable");
    ok(fine(lks_gradients(out[0], LKS_NONE, 1, &x, 0, 1, g)) && fine(lks_gradients(g[0], LKS_NONE, 1, &x, 0, 0, h)) &&
           fabs(item(g[0]) - exp(1.5)) < 1e-14 && fabs(item(h[0]) - exp(1.5)) < 1e-14,
       "a saved output, and second order through it");
    /* the input handed on */
    lks_tensor *z = NULL;
    x = leaf(lks_full(ctx, LKS_F32, 0, NULL, 5));
    ok(fine(lks_custom_call(ctx, "straight", straight, twice_back, NULL, LKS_DTYPE_NONE, 1, &x, 1, &z)) && z != x &&
           item(z) == 5 && fine(lks_backward(z, LKS_NONE, 0)) && item(lks_grad(x)) == 2,
       "an input as output");
    lks_tensor *wrong = lks_mul_scalar(x, 1);
    ok(fine(lks_custom_call(ctx, "straight", straight, twice_back, &state, LKS_DTYPE_NONE, 1, &wrong, 1, &z)) &&
           fails(lks_backward(z, LKS_NONE, 0), LKS_ERR_SHAPE, "straight", "input 0"),
       "a gradient of the wrong shape is refused");
    ok(fine(lks_custom_call(ctx, "straight", straight, NULL, NULL, LKS_DTYPE_NONE, 1, &wrong, 1, &z)) &&
           fails(lks_backward(z, LKS_NONE, 0), LKS_ERR_UNSUPPORTED, "straight", "no backward"),
       "no backward, no gradient");
    z = lks_mul_scalar(x, 1);
    y = cubed(z, NULL, LKS_DTYPE_NONE);
    lks_no_grad_begin(ctx);
    lks_fill_(z, 3);
    lks_no_grad_end(ctx);
    ok(fails(lks_backward(y, LKS_NONE, 0), LKS_ERR_MODIFIED, "cube", "changed"), "a saved tensor changed in place");
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    ok(lks_custom_call(ctx, "broken", broken, NULL, NULL, LKS_F32, 1, &x, 1, &z) != LKS_OK && !z &&
           lks_autocast_depth(ctx) == 1 && lks_autocast_enabled(ctx) && lks_autocast_dtype(ctx) == LKS_BF16,
       "a forward that fails inside its own region leaves the state as it was");
    lks_error_clear(ctx);
    lks_autocast_end(ctx);
}

static void custom_precision(void)
{
    seen s = {0};
    lks_tensor *x = leaf(lks_full(ctx, LKS_F32, 0, NULL, 3)), *y;
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    y = cubed(x, &s, LKS_DTYPE_NONE);
    lks_autocast_end(ctx);
    fine(lks_backward(y, LKS_NONE, 0));
    ok(s.in_forward == LKS_F32 && s.on_forward && s.on_backward && s.op_backward == LKS_BF16,
       "without a cast backward, called outside, has the region of the forward");
    s = (seen){0};
    y = cubed(x, &s, LKS_DTYPE_NONE);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    fine(lks_backward(y, LKS_NONE, 0));
    lks_autocast_end(ctx);
    ok(!s.on_forward && !s.on_backward && s.op_backward == LKS_F32,
       "and none, called inside one, if the forward had none");
    s = (seen){0};
    lks_zero_grad(x);
    lks_autocast_begin(ctx, LKS_F16, 1, 1);
    y = cubed(x, &s, LKS_BF16);
    lks_autocast_end(ctx);
    fine(lks_backward(y, LKS_NONE, 0));
    ok(s.in_forward == LKS_BF16 && !s.on_forward && !s.on_backward && s.op_backward == LKS_F32 &&
           lks_dtype_of(y) == LKS_BF16 && lks_dtype_of(lks_grad(x)) == LKS_F32 && item(lks_grad(x)) == 27,
       "with a cast both run without autocast, the leaf's gradient is float32");
    s = (seen){0};
    y = cubed(x, &s, LKS_BF16);
    ok(s.in_forward == LKS_F32 && lks_dtype_of(y) == LKS_F32, "outside a region nothing is cast");
    lks_tensor *d = lks_full(ctx, LKS_F64, 0, NULL, 3);
    lks_autocast_begin(ctx, LKS_F16, 1, 1);
    s = (seen){0};
    cubed(d, &s, LKS_BF16);
    lks_autocast_end(ctx);
    ok(s.in_forward == LKS_F64, "float64 never");
    /* a policy of its own */
    ok(fine(lks_autocast_register(ctx, "cube", LKS_POLICY_LOWER, LKS_POLICY_FP32)) &&
           lks_autocast_policy_in_force(ctx, "cube") == LKS_POLICY_LOWER,
       "registered");
    lks_tensor *half = lks_full(ctx, LKS_F16, 0, NULL, 3);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    cubed(x, &s, LKS_DTYPE_NONE);
    lks_dtype cpu = s.in_forward;
    lks_autocast_set_table(ctx, LKS_TABLE_CUDA);
    cubed(half, &s, LKS_DTYPE_NONE);
    lks_dtype cuda = s.in_forward;
    lks_autocast_register(ctx, "cube", LKS_POLICY_LOWER, LKS_POLICY_ERROR);
    lks_tensor *none = cubed(half, &s, LKS_DTYPE_NONE);
    ok(cpu == LKS_BF16 && cuda == LKS_F32 && !none &&
           fails(LKS_ERR_UNSUPPORTED, LKS_ERR_UNSUPPORTED, "cube", "refused"),
       "lower in one table, float32 in the other, refused at last");
    lks_autocast_set_table(ctx, LKS_TABLE_CPU);
    lks_autocast_end(ctx);
    lks_autocast_register(ctx, "cube", LKS_POLICY_NONE, LKS_POLICY_NONE);
    ok(fails(lks_autocast_register(ctx, "matmul", 1, 1), LKS_ERR_ARGUMENT, "matmul", "lks_autocast_set_policy") &&
           fails(lks_autocast_register(ctx, "f", 1, 9), LKS_ERR_ARGUMENT, "9", "policy"),
       "names and policies that are refused");
}

/* --- made again --- */

typedef struct net {
    lks_params *ps;
    lks_tensor *w[8];
    int layers, runs;
    double dropout;
} net;

static net net_new(lks_dtype dtype, int layers, int64_t width, double dropout)
{
    net m = {.layers = layers, .dropout = dropout};
    char name[8] = "w0";
    lks_params_create(ctx, &m.ps);
    state = 99;
    for (int i = 0; i < layers; i++, name[1]++) {
        lks_params_add(m.ps, name, dtype, MAT(width, width), &m.w[i]);
        lks_no_grad_begin(ctx);
        lks_copy_(m.w[i], random_tensor(LKS_F64, MAT(width, width)));
        lks_no_grad_end(ctx);
    }
    return m;
}

typedef struct block { net *m; int layer; } block;

static lks_status run_block(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    block *b = user;
    (void)nin, (void)nout;
    b->m->runs++;
    lks_tensor *h = lks_matmul(in[0], b->m->w[b->layer]);
    h = lks_gelu(lks_add_scalar(h, 0.1), 0);
    h = lks_mul(lks_tanh(h), lks_sigmoid(h));
    if (b->m->dropout > 0) h = lks_dropout(h, b->m->dropout);
    out[0] = lks_add(h, in[0]);
    return out[0] ? LKS_OK : lks_error_code(ctx);
}

static lks_tensor *forward(net *m, block *b, lks_tensor *x, int again)
{
    for (int i = 0; i < m->layers && x; i++) {
        b[i] = (block){m, i};
        lks_tensor *y = NULL;
        lks_status s;
        if (again) s = lks_recompute(ctx, run_block, &b[i], 1, &x, 1, &y);
        else {
            lks_scope_begin(ctx);
            s = run_block(&b[i], 1, &x, 1, &y);
            y = lks_scope_leave(ctx, y);
        }
        x = s == LKS_OK ? y : NULL;
    }
    return x;
}

/* A run of steps; *peak: device memory of the last, above what is there between steps. */
static net train(int steps, int again, lks_dtype dtype, double dropout, int64_t *peak)
{
    net m = net_new(LKS_F32, 4, 32, dropout);
    lks_optim *opt;
    block b[8];
    lks_random_set(ctx, 5, 0);
    lks_scope_begin(ctx);
    lks_tensor *x = random_tensor(LKS_F32, MAT(64, 32));
    fine(lks_optim_create(m.ps, LKS_ADAM, &opt));
    for (int i = 0; i < steps; i++) {
        lks_scope_begin(ctx);
        lks_params_zero_grad(m.ps);
        lks_random_rows(ctx, 0, 64);
        lks_synchronize(ctx);
        int64_t used = lks_memory_used(ctx);
        lks_memory_peak_reset(ctx);
        if (dtype != LKS_DTYPE_NONE) lks_autocast_begin(ctx, dtype, 1, 1);
        lks_tensor *y = forward(&m, b, x, again);
        lks_tensor *loss = lks_mean(lks_mul(y, y), ALL);
        if (dtype != LKS_DTYPE_NONE) lks_autocast_end(ctx);
        fine(lks_backward(loss, LKS_NONE, 0));
        *peak = lks_memory_peak(ctx) - used;
        fine(lks_optim_step(opt, NULL));
        lks_scope_end(ctx);
    }
    lks_scope_end(ctx);
    lks_optim_destroy(&opt);
    return m;
}

static lks_status forgetful(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    int *calls = user;
    (void)nin, (void)nout;
    out[0] = lks_tanh(in[0]);
    if (++*calls > 1) out[0] = lks_sigmoid(out[0]);
    else out[0] = lks_exp(out[0]);
    return LKS_OK;
}

static lks_status pair_of(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)user, (void)nin, (void)nout;
    lks_tensor *h = lks_mul(in[0], in[0]);
    out[0] = lks_tanh(lks_mul(h, in[1] == LKS_NONE ? in[0] : in[1]));
    out[1] = in[0];
    return LKS_OK;
}

static lks_status nest(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    lks_tensor *two[2] = {lks_sigmoid(in[0]), LKS_NONE}, *made[2];
    (void)nin, (void)nout;
    lks_status s = lks_recompute(ctx, pair_of, user, 2, two, 2, made);
    out[0] = s == LKS_OK ? lks_mul(made[0], made[1]) : NULL;
    return s;
}

static lks_status constant(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)user, (void)nin, (void)nout;
    lks_tensor *m = lks_ones(ctx, LKS_F32, MAT(1, 1));
    out[0] = lks_mul(lks_matmul(lks_reshape(in[0], MAT(1, 1)), m), lks_matmul(lks_reshape(in[0], MAT(1, 1)), m));
    return LKS_OK;
}

static int fired;
static lks_status count_hook(void *user, lks_tensor *t, lks_tensor *g)
{
    (void)user, (void)t, (void)g;
    fired++;
    return LKS_OK;
}

static void recompute(void)
{
    static const lks_dtype region[] = {LKS_DTYPE_NONE, LKS_BF16, LKS_F16};
    for (int k = 0; k < 3; k++)
        for (int drop = 0; drop < 2; drop++) {
            int64_t p0, p1;
            net plain = train(5, 0, region[k], drop ? 0.3 : 0, &p0),
                again = train(5, 1, region[k], drop ? 0.3 : 0, &p1);
            int same = again.runs == 2 * plain.runs;
            for (int i = 0; i < 4; i++) same &= same_bits(plain.w[i], again.w[i]);
            ok(same, "5 steps made again: bit for bit those of the plain graph (%s%s)", lks_dtype_name(region[k]),
               drop ? ", dropout" : "");
            ok(p1 < p0 * 3 / 4, "with less memory: %lld bytes, plain %lld", (long long)p1, (long long)p0);
            lks_params_destroy(&plain.ps);
            lks_params_destroy(&again.ps);
        }
    /* B26 */
    lks_tensor *x = leaf(lks_full(ctx, LKS_F32, VEC(1), 1e5)), *y = NULL;
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    fine(lks_recompute(ctx, constant, NULL, 1, &x, 1, &y));
    ok(lks_dtype_of(y) == LKS_BF16, "B26: the first run is bfloat16");
    lks_autocast_end(ctx);
    lks_autocast_begin(ctx, LKS_F16, 1, 1);
    ok(fine(lks_backward(y, LKS_NONE, 0)) && item(lks_grad(x)) == 2 * 99840.0,
       "B26: the run in backward, outside its region and inside a float16 one, is too: 99840, not infinite (%g)",
       item(lks_grad(x)) / 2);
    ok(lks_autocast_dtype(ctx) == LKS_F16 && lks_autocast_depth(ctx) == 1, "B26: and the region around is as it was");
    lks_autocast_end(ctx);
    /* higher order, hooks, several outputs, nesting */
    lks_tensor *a = leaf(random_tensor(LKS_F64, VEC(5))), *b = leaf(random_tensor(LKS_F64, VEC(5)));
    lks_tensor *in[2] = {NULL, b}, *out[2], *g[2][2], *h[2][2], *leaves[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        in[0] = lks_mul_scalar(a, 1);
        if (i) fine(lks_recompute(ctx, pair_of, NULL, 2, in, 2, out));
        else pair_of(NULL, 2, in, 2, out);
        fine(lks_gradients(total(lks_mul(out[0], out[1])), LKS_NONE, 2, leaves, 0, 1, g[i]));
        fine(lks_gradients(total(lks_add(lks_mul(g[i][0], g[i][0]), g[i][1])), LKS_NONE, 2, leaves, 0, 0, h[i]));
    }
    ok(same_bits(g[0][0], g[1][0]) && same_bits(g[0][1], g[1][1]) && same_bits(h[0][0], h[1][0]) &&
           same_bits(h[0][1], h[1][1]),
       "second order is the same, too");
    int64_t id;
    lks_hook_add(a, count_hook, NULL, &id);
    for (int i = 0; i < 2; i++) {
        lks_zero_grad(a);
        fired = 0;
        if (i) fine(lks_recompute(ctx, nest, NULL, 1, &a, 1, &y));
        else nest(NULL, 1, &a, 1, &y);
        ok(fine(lks_backward(total(lks_mul(y, a)), LKS_NONE, 0)) && fired == 1, "one hook call");
        if (!i) g[0][0] = lks_clone(lks_grad(a));
    }
    ok(same_bits(g[0][0], lks_grad(a)), "one inside another is the same");
    lks_hook_remove(a, id);
    /* kept graphs, and errors */
    fine(lks_recompute(ctx, nest, NULL, 1, &a, 1, &y));
    y = total(y);
    ok(fine(lks_backward(y, LKS_NONE, 1)) && fine(lks_backward(y, LKS_NONE, 0)) &&
           fails(lks_backward(y, LKS_NONE, 0), LKS_ERR_MODIFIED, "freed", "retain"),
       "a kept graph runs twice, a freed one does not");
    int calls = 0;
    fine(lks_recompute(ctx, forgetful, &calls, 1, &a, 1, &y));
    ok(fails(lks_backward(total(y), LKS_NONE, 0), LKS_ERR_STATE, "sigmoid where exp", "lks_recompute"),
       "a function that does something else the second time");
    fine(lks_recompute(ctx, nest, NULL, 1, &a, 1, &y));
    y = total(y);
    lks_no_grad_begin(ctx);
    lks_fill_(a, 1);
    lks_no_grad_end(ctx);
    ok(fails(lks_backward(y, LKS_NONE, 0), LKS_ERR_MODIFIED, "lks_recompute", "changed"), "an input changed in place");
    lks_no_grad_begin(ctx);
    calls = 0;
    ok(fine(lks_recompute(ctx, forgetful, &calls, 1, &a, 1, &y)) && !lks_requires_grad(y),
       "without recording it is a call");
    lks_no_grad_end(ctx);
}

static lks_status cube_inside(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    (void)nin, (void)nout;
    out[0] = cubed(lks_tanh(cubed(in[0], user, LKS_DTYPE_NONE)), user, LKS_DTYPE_NONE);
    return out[0] ? LKS_OK : lks_error_code(ctx);
}

static void custom_again(void)
{
    lks_tensor *a = leaf(random_tensor(LKS_F64, VEC(5))), *y, *g = NULL;
    for (int i = 0; i < 2; i++) {
        seen s = {0};
        lks_zero_grad(a);
        if (i) fine(lks_recompute(ctx, cube_inside, &s, 1, &a, 1, &y));
        else cube_inside(&s, 1, &a, 1, &y);
        fine(lks_backward(total(y), LKS_NONE, 0));
        ok(s.calls == 2 + 2 * i, "forwards of a custom function: %d", s.calls);
        if (!i) g = lks_clone(lks_grad(a));
    }
    ok(same_bits(g, lks_grad(a)), "a custom function made again has the same gradient");
}

/* --- anomaly mode --- */

static void anomaly(void)
{
    lks_tensor *x = leaf(lks_zeros(ctx, LKS_F32, VEC(3))), *one = lks_ones(ctx, LKS_F32, VEC(3));
    ok(fails(lks_anomaly_end(ctx), LKS_ERR_STATE, "lks_anomaly_end", "lks_anomaly_begin"), "end without begin");
    lks_anomaly_begin(ctx);
    ok(lks_add(one, one) && lks_exp(one), "clean ops pass");
    ok(!lks_div(x, x) && fails(LKS_ERR_NAN, LKS_ERR_NAN, "lks_div: div made a NaN in output 0", "float32[3]"),
       "0 / 0 is named");
    lks_tensor *y = total(lks_sqrt(lks_mul(x, x)));
    ok(y && fails(lks_backward(y, LKS_NONE, 0), LKS_ERR_NAN, "gradient of mul", "mul"), "so is the op in backward");
    lks_tensor *bad = lks_from_host(ctx, LKS_F32, VEC(2), (float[]){1, NAN});
    ok(!lks_mul_scalar(bad, 2) && fails(LKS_ERR_NAN, LKS_ERR_NAN, "affine", "input 0 was given with one"),
       "a NaN of the program's own is told apart");
    ok(lks_div(one, x) != NULL, "an infinity is none");
    lks_anomaly_end(ctx);
    ok(lks_div(x, x) != NULL && lks_error_code(ctx) == LKS_OK, "off again");
}

/* --- gradient penalty --- */

/* D(x) = tanh(x A) b; penalty: mean over rows of (|dD/dx| - 1)^2. */
static lks_tensor *penalty(lks_tensor *x, lks_tensor *a, lks_tensor *b, int plain)
{
    lks_tensor *t = lks_tanh(lks_matmul(x, a)), *g;
    if (plain) { /* dD/dx = ((1 - t^2) * b^T) A^T */
        lks_tensor *inner = lks_mul(lks_affine(lks_mul(t, t), -1, 1), lks_transpose(b, 0, 1));
        g = lks_matmul(inner, lks_transpose(a, 0, 1));
    } else {
        if (!fine(lks_gradients(total(lks_matmul(t, b)), LKS_NONE, 1, &x, 0, 1, &g))) return NULL;
    }
    lks_tensor *norm = lks_sqrt(lks_sum(lks_mul(g, g), 1, (int[]){1}, 0, LKS_DTYPE_NONE));
    lks_tensor *d = lks_add_scalar(norm, -1);
    return lks_mean(lks_mul(d, d), ALL);
}

static void gradient_penalty(void)
{
    double first = 0, last = 0, trace[2][200], worst = 0;
    for (int plain = 0; plain < 2; plain++) {
        lks_params *ps;
        lks_optim *opt;
        lks_tensor *a, *b;
        state = 3;
        lks_scope_begin(ctx);
        lks_params_create(ctx, &ps);
        lks_params_add(ps, "a", LKS_F64, MAT(4, 8), &a);
        lks_params_add(ps, "b", LKS_F64, MAT(8, 1), &b);
        lks_no_grad_begin(ctx);
        lks_copy_(a, random_tensor(LKS_F64, MAT(4, 8)));
        lks_copy_(b, random_tensor(LKS_F64, MAT(8, 1)));
        lks_no_grad_end(ctx);
        lks_tensor *x = random_tensor(LKS_F64, MAT(16, 4));
        fine(lks_optim_create(ps, LKS_ADAM, &opt));
        lks_optim_set_lr(opt, -1, 0.02);
        int64_t nodes = lks_live_nodes(ctx);
        for (int i = 0; i < 200; i++) {
            lks_scope_begin(ctx);
            lks_params_zero_grad(ps);
            lks_tensor *in = lks_detach(x);
            if (!plain) leaf(in);
            lks_tensor *loss = penalty(in, a, b, plain);
            fine(lks_backward(loss, LKS_NONE, 0));
            fine(lks_optim_step(opt, NULL));
            trace[plain][i] = item(loss);
            lks_scope_end(ctx);
        }
        ok(lks_live_nodes(ctx) == nodes, "no node is left after 200 steps");
        first = trace[0][0];
        last = trace[0][199];
        lks_optim_destroy(&opt);
        lks_params_destroy(&ps);
        lks_scope_end(ctx);
    }
    worst = 0;
    for (int i = 0; i < 200; i++) worst = fmax(worst, fabs(trace[0][i] - trace[1][i]));
    ok(worst < 1e-9 && last < first / 20, "200 steps of a gradient penalty: %g to %g, %.1e from the plain formula",
       first, last, worst);
}

/* --- frozen parts --- */

static void frozen(void)
{
    net m = net_new(LKS_F32, 2, 4, 0);
    lks_optim *opt;
    block b[8];
    fine(lks_optim_create(m.ps, LKS_ADAMW, &opt));
    lks_optim_set_weight_decay(opt, -1, 0.5);
    lks_tensor *x = random_tensor(LKS_F32, MAT(3, 4)), *before[2];
    for (int phase = 0; phase < 3; phase++) {
        if (phase < 2) lks_set_requires_grad(m.w[0], phase == 1);
        if (phase == 2) lks_params_set_trainable(m.ps, 0, 0);
        lks_params_zero_grad(m.ps);
        ok(lks_params_numel(m.ps) == (phase == 1 ? 32 : 16), "trainable elements");
        for (int i = 0; i < 2; i++) before[i] = lks_clone(lks_detach(m.w[i]));
        lks_tensor *y = forward(&m, b, x, 0);
        fine(lks_backward(total(lks_mul(y, y)), LKS_NONE, 0));
        fine(lks_optim_step(opt, NULL));
        ok(same_bits(before[0], lks_detach(m.w[0])) == (phase != 1) && !same_bits(before[1], lks_detach(m.w[1])) &&
               !lks_grad(m.w[0]) == (phase != 1),
           "%s: the frozen one keeps its bits, without decay", phase == 0   ? "lks_set_requires_grad 0"
                                                               : phase == 1 ? "1 again"
                                                                            : "lks_params_set_trainable");
    }
    lks_optim_destroy(&opt);
    lks_params_destroy(&m.ps);
}

/* --- what autocast tells --- */

typedef struct trace {
    int begins, ends, failed, casts;
    lks_dtype in[2], out, to;
    int policy;
    char why[80], op[40], where[40], backward[40];
    const char *want;
    int seen;
} trace;

static void watch(void *user, const lks_op_event *e)
{
    trace *t = user;
    t->begins += !e->end;
    t->ends += e->end;
    t->failed += e->end && e->status != LKS_OK;
    t->casts += !strcmp(e->op, "cast") && e->end;
    if (strcmp(e->op, t->want) || !e->end) return;
    t->seen++;
    t->in[0] = e->in[0];
    t->in[1] = e->nin > 1 ? e->in[1] : LKS_DTYPE_NONE;
    t->out = e->out[0];
    t->to = e->dtype;
    t->policy = e->policy;
    snprintf(t->why, sizeof t->why, "%s", e->why);
    snprintf(t->where, sizeof t->where, "%s", e->where);
    snprintf(t->backward, sizeof t->backward, "%s", e->backward ? e->backward : "");
}

static void introspection(void)
{
    trace t = {.want = "matmul"};
    lks_tensor *a = leaf(random_tensor(LKS_F32, MAT(2, 2))), *b = random_tensor(LKS_F32, MAT(2, 2)), *y;
    lks_observe(ctx, watch, &t);
    y = lks_matmul(a, b);
    ok(t.seen == 1 && t.policy == LKS_POLICY_NONE && strstr(t.why, "no region") && t.out == LKS_F32 && t.begins == 1 &&
           t.ends == 1,
       "outside: %s", t.why);
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    y = lks_matmul(a, b);
    ok(t.seen == 2 && t.policy == LKS_POLICY_LOWER && t.to == LKS_BF16 && t.in[0] == LKS_BF16 && t.in[1] == LKS_BF16 &&
           t.out == LKS_BF16 && strstr(t.why, "cpu table") && t.casts == 2 && !strcmp(t.where, "lks_matmul"),
       "inside: %s, two casts", t.why);
    ok(fine(lks_autocast_set_policy(ctx, "matmul", LKS_POLICY_FP32)) &&
           lks_autocast_policy_in_force(ctx, "matmul") == LKS_POLICY_FP32 &&
           lks_autocast_policy("matmul", LKS_TABLE_CPU) == LKS_POLICY_LOWER,
       "a policy of the program's");
    ok(lks_dtype_of(lks_matmul(a, b)) == LKS_F32 && t.policy == LKS_POLICY_FP32 &&
           strstr(t.why, "lks_autocast_set_policy"),
       "is followed: %s", t.why);
    lks_tensor *h = lks_to(b, LKS_BF16);
    ok(lks_dtype_of(lks_matmul(h, h)) == LKS_F32, "and widens reduced inputs");
    ok(fine(lks_autocast_set_policy(ctx, "__matmul__", LKS_POLICY_PROMOTE)) &&
           lks_dtype_of(lks_matmul(a, h)) == LKS_F32 && lks_dtype_of(lks_matmul(h, h)) == LKS_BF16,
       "promote, by an alias");
    fine(lks_autocast_set_policy(ctx, "matmul", LKS_POLICY_ERROR));
    ok(!lks_matmul(a, b) && fails(LKS_ERR_UNSUPPORTED, LKS_ERR_UNSUPPORTED, "matmul", "refused") && t.failed == 1,
       "refused");
    fine(lks_autocast_set_policy(ctx, "matmul", LKS_POLICY_NONE));
    ok(lks_dtype_of(lks_matmul(a, b)) == LKS_F32 && t.policy == LKS_POLICY_NONE, "left alone");
    fine(lks_autocast_set_policy(ctx, "matmul", LKS_POLICY_DEFAULT));
    y = lks_matmul(a, b);
    ok(lks_dtype_of(y) == LKS_BF16, "the table's again");
    lks_autocast_end(ctx);
    t.seen = 0;
    fine(lks_backward(total(y), LKS_NONE, 0));
    ok(t.seen >= 1 && !strcmp(t.backward, "matmul") && strstr(t.why, "backward") && t.out == LKS_BF16,
       "in backward the op it works for is named: %s, %s", t.backward, t.why);
    lks_observe(ctx, NULL, NULL);
    int seen = t.ends;
    lks_matmul(a, b);
    ok(t.ends == seen, "nobody watches any more");
    ok(fails(lks_autocast_set_policy(ctx, "matmull", 1), LKS_ERR_NOT_FOUND, "matmull", "lks_autocast_register") &&
           fails(lks_autocast_set_policy(ctx, "matmul", 17), LKS_ERR_ARGUMENT, "17", "policy") &&
           fails(lks_autocast_set_policy(ctx, "view", 1), LKS_ERR_UNSUPPORTED, "view", "never") &&
           fails(lks_autocast_set_policy(ctx, "copy", 1), LKS_ERR_UNSUPPORTED, "in place", "never"),
       "policies that are refused");
    ok(lks_autocast_policy("fft_ihfft", LKS_TABLE_CPU) == LKS_POLICY_FP32 &&
           lks_autocast_policy("fft_ihfft", LKS_TABLE_CUDA) == LKS_POLICY_NONE &&
           lks_autocast_policy("GRUCell", LKS_TABLE_CUDA) == LKS_POLICY_LOWER &&
           lks_autocast_policy("binary_cross_entropy", LKS_TABLE_CUDA) == LKS_POLICY_ERROR &&
           lks_autocast_policy("nonsense", LKS_TABLE_CUDA) == LKS_ERR_NOT_FOUND,
       "names of ops that are not built have their policies");

    lks_tensor *p = lks_full(ctx, LKS_F32, MAT(2, 3), 0.5), *logits = random_tensor(LKS_F32, MAT(2, 3));
    for (int table = 0; table < 2; table++) {
        fine(lks_autocast_set_table(ctx, table ? LKS_TABLE_CUDA : LKS_TABLE_CPU));
        lks_autocast_begin(ctx, LKS_F16, 1, 1);
        lks_tensor *loss = lks_binary_cross_entropy(p, p, LKS_NONE, LKS_REDUCTION_MEAN);
        if (table)
            ok(!loss && fails(lks_error_code(ctx), LKS_ERR_UNSUPPORTED, "binary_cross_entropy_with_logits", "autocast"),
               "binary_cross_entropy is refused by the cuda table, with the advice");
        else ok(loss && lks_dtype_of(loss) == LKS_F32, "binary_cross_entropy with the cpu table runs in float32");
        loss = lks_binary_cross_entropy_with_logits(logits, p, LKS_NONE, LKS_NONE, LKS_REDUCTION_MEAN);
        ok(loss && lks_dtype_of(loss) == LKS_F32, "with logits it runs with either");
        lks_autocast_end(ctx);
        loss = lks_binary_cross_entropy(p, p, LKS_NONE, LKS_REDUCTION_MEAN);
        ok(loss != NULL, "and outside of a region");
    }
    fine(lks_autocast_set_table(ctx, LKS_TABLE_CPU));
    lks_scaler *scaler = NULL;
    fine(lks_scaler_create(ctx, 1, &scaler));
    fine(lks_autocast_set_policy(ctx, "mul", LKS_POLICY_LOWER));
    lks_autocast_begin(ctx, LKS_F16, 1, 1);
    lks_tensor *scaled = lks_scaler_scale(scaler, lks_full(ctx, LKS_F32, 0, NULL, 3));
    lks_autocast_end(ctx);
    fine(lks_autocast_set_policy(ctx, "mul", LKS_POLICY_DEFAULT));
    ok(scaled && lks_dtype_of(scaled) == LKS_F32, "a scaled loss is float32 whatever the policy of mul");
    lks_scaler_destroy(&scaler);
}

/* Rows against the published lists, whichever rows there are. */
static void published(void)
{
    static const struct { const char *name; int cuda, cpu; } list[] = {
#define POLICY(name, cuda, cpu) {#name, LKS_POLICY_##cuda, LKS_POLICY_##cpu},
#include "autocast/policies.def"
#undef POLICY
    };
    int rows = 0, same = 1, n = sizeof list / sizeof *list, fp32[2] = {0}, lower[2] = {0}, promote[2] = {0};
    for (int i = 0; i < n; i++) {
        int op = lksi_row_named(list[i].name);
        fp32[0] += list[i].cuda == LKS_POLICY_FP32;
        fp32[1] += list[i].cpu == LKS_POLICY_FP32;
        lower[0] += list[i].cuda == LKS_POLICY_LOWER;
        lower[1] += list[i].cpu == LKS_POLICY_LOWER;
        promote[0] += list[i].cuda == LKS_POLICY_PROMOTE;
        promote[1] += list[i].cpu == LKS_POLICY_PROMOTE;
        if (op < 0) continue;
        rows++;
        int cuda = lksi_rows[op].policy[LKS_TABLE_CUDA], cpu = lksi_rows[op].policy[LKS_TABLE_CPU];
        /* an alias may stand for one of the names on either list */
        int agrees = (list[i].cuda == LKS_POLICY_NONE || cuda == list[i].cuda) &&
                     (list[i].cpu == LKS_POLICY_NONE || cpu == list[i].cpu);
        if (!agrees) diag("%s: row %d %d, list %d %d", list[i].name, cuda, cpu, list[i].cuda, list[i].cpu);
        same &= agrees;
    }
    ok(n == 166 && lower[0] == 23 && fp32[0] == 51 && promote[0] == 10 && lower[1] == 20 && fp32[1] == 88 &&
           promote[1] == 3,
       "the lists are whole");
    ok(same && rows > 5, "%d rows agree with the lists", rows);
}

static void cache(void)
{
    int64_t c0, b0, h0, c, b, h, n, bytes, refused;
    lks_tensor *w[3], *x = random_tensor(LKS_F32, MAT(2, 16));
    for (int i = 0; i < 3; i++) w[i] = leaf(random_tensor(LKS_F32, MAT(16, 16)));
    fine(lks_autocast_statistics(ctx, &c0, &b0, &h0, NULL, NULL, NULL));
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 3; i++) lks_matmul(x, w[i]);
    fine(lks_autocast_statistics(ctx, &c, &b, &h, &n, &bytes, &refused));
    ok(c - c0 == 3 + 9 && h - h0 == 6 && b - b0 == 3 * 512 + 9 * 64 && n == 3 && bytes == 3 * 512 && refused == 0,
       "weights are cast once, inputs each time (%d %d %d)", (int)(c - c0), (int)(h - h0), (int)(b - b0));
    lks_autocast_end(ctx);
    fine(lks_autocast_statistics(ctx, NULL, NULL, NULL, &n, &bytes, NULL));
    ok(n == 0 && bytes == 0, "the cache is empty after the region");
    ok(fails(lks_autocast_set_cache_limit(ctx, -1), LKS_ERR_ARGUMENT, "-1", "limit") &&
           fine(lks_autocast_set_cache_limit(ctx, 2 * 512 + 100)),
       "a limit");
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    fine(lks_autocast_statistics(ctx, &c0, NULL, &h0, NULL, NULL, NULL));
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) lks_matmul(x, w[i]);
    fine(lks_autocast_statistics(ctx, &c, NULL, &h, &n, &bytes, &refused));
    ok(n == 2 && bytes == 2 * 512 && refused == 2 && h - h0 == 2 && c - c0 == 4 + 6,
       "two weights fit, one is cast each time");
    lks_autocast_end(ctx);
    lks_autocast_set_cache_limit(ctx, 0);
    /* a failed op inside nested regions */
    lks_autocast_begin(ctx, LKS_BF16, 1, 1);
    lks_autocast_begin(ctx, LKS_F16, 0, 0);
    ok(!lks_matmul(x, x) && lks_error_code(ctx) == LKS_ERR_SHAPE, "an op fails");
    lks_error_clear(ctx);
    lks_autocast_end(ctx);
    ok(lks_autocast_enabled(ctx) && lks_autocast_dtype(ctx) == LKS_BF16, "the outer region is in force again");
    lks_autocast_end(ctx);
    ok(!lks_autocast_enabled(ctx) && lks_autocast_depth(ctx) == 0, "and none at the end");
}

/* --- memory of graphs that nobody differentiates --- */

static void kept_alive(void)
{
    lks_tensor *w = leaf(lks_ones(ctx, LKS_F32, VEC(4)));
    int64_t nodes = lks_live_nodes(ctx), used = 0;
    double sum = 0;
    for (int i = 0; i < 2000; i++) {
        lks_scope_begin(ctx);
        lks_tensor *loss = total(lks_mul(w, w));
        double x;
        lks_item(loss, &x);
        sum += x;
        lks_scope_end(ctx);
        if (i == 10) used = lks_memory_used(ctx);
    }
    ok(sum == 8000 && lks_live_nodes(ctx) == nodes && lks_memory_used(ctx) == used,
       "B43: with the value read out nodes and memory stay as they are");
    lks_tensor *all = lks_zeros(ctx, LKS_F32, 0, NULL);
    for (int i = 0; i < 100; i++) {
        lks_scope_begin(ctx);
        all = lks_scope_leave(ctx, lks_add(all, total(lks_mul(w, w))));
    }
    ok(lks_live_nodes(ctx) == nodes + 300, "B43: a sum of losses keeps every graph, and the counter tells");
    ok(fine(lks_backward(all, LKS_NONE, 0)) &&
           fails(lks_backward(all, LKS_NONE, 0), LKS_ERR_MODIFIED, "freed", "retain"),
       "B43: a second backward over it is an error");
}

int main(void)
{
    static const char *const device[] = {"cpu", "far"};
    for (int i = 0; i < 2; i++) {
        lks_config *c = lks_config_new();
        lks_config_set_device(c, device[i]);
        lks_config_set_threads(c, 2);
        if (lks_context_create(MPI_COMM_NULL, c, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(c));
        lks_config_free(c);
        diag("device %s", device[i]);
        lks_scope_begin(ctx);
        custom();
        left_open();
        custom_precision();
        recompute();
        custom_again();
        anomaly();
        gradient_penalty();
        frozen();
        introspection();
        published();
        cache();
        kept_alive();
        lks_scope_end(ctx);
        is_int(lks_live_tensors(ctx), 0, "no tensor is left");
        is_int(lks_live_nodes(ctx), 0, "no node is left");
        lks_context_destroy(&ctx);
    }
    int status = done();
    lks_finalize();
    return status;
}
