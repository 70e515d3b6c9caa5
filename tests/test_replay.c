/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_replay.c - lks_graph: a training step that is captured once and replayed has the bits of the calls, whatever is
 * done between steps; what cannot be replayed is not. On the device LKS_TEST_DEVICE=cuda (tests/cuda.test), alone or on
 * several ranks with a device each; what is said elsewhere. Training by the command: tests/graph.test.
 */
#include "tap_mpi.h"
#include <lockstep.h>

#define ROWS 8
#define IN 12
#define HIDDEN 16
#define OUT 4
#define MOST 40

static lks_context *ctx;

/* What may happen before step k, k steps in all. */
typedef struct course {
    const char *what;
    lks_dtype cast; /* LKS_DTYPE_NONE: none */
    int kind, steps, overflow; /* overflow: the scale is so high that some steps are skipped */
    int lr_at, freeze_at, trim_at, evaluate, small_at, rows_at, short_at, save, ema;
    int fft; /* transforms there and back in the forward */
    int item, fresh, outside; /* in each step: lks_item_later inside; a new input tensor; gradients cleared before it */
} course;

typedef struct net {
    const course *p;
    lks_params *ps;
    lks_module *m;
    lks_optim *opt;
    lks_scaler *scaler;
    lks_dp *dp;
    lks_tensor *in, *target, *loss;
    int64_t rows;
    int clear; /* gradients in the step */
} net;

typedef struct result {
    float w[HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT];
    int64_t numel, eager, captured, replayed, held, skipped, attempts;
    double loss[MOST], norm[MOST], scale[MOST], peak;
    char why[256];
} result;

static lks_status calls(void *user)
{
    net *n = user;
    lks_status s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    int cast = n->p->cast != LKS_DTYPE_NONE;
    if (n->clear) lks_params_zero_grad(n->ps);
    if (cast) lks_autocast_begin(ctx, n->p->cast, 1, 1);
    lks_tensor *y = lks_module_forward(n->m, n->in);
    if (n->p->fft)
        y = lks_transpose(lks_fft_irfft(lks_fft_rfft(lks_transpose(y, 0, 1), -1, 0, 0), OUT, 0, 0), 0, 1);
    lks_tensor *loss = lks_mse_loss(y, n->target, LKS_REDUCTION_SUM);
    if (cast) lks_autocast_end(ctx);
    if (n->p->item) lks_item_later(loss);
    lks_release(n->loss);
    n->loss = loss ? lks_keep(lks_detach(loss)) : NULL;
    s = lks_dp_backward(n->dp, n->scaler, loss, (double)n->rows, LKS_NONE, 1);
    if (s == LKS_OK) s = lks_optim_step(n->opt, n->scaler);
    if (s == LKS_OK && n->scaler) s = lks_scaler_update(n->scaler);
    lks_scope_end(ctx);
    return s;
}

static void open_net(net *n, const course *p)
{
    int64_t sizes[3] = {IN, HIDDEN, OUT};
    *n = (net){.p = p, .rows = ROWS, .clear = !p->outside};
    lks_random_set(ctx, 7, 0);
    lks_random_rows(ctx, 0, 0);
    lks_params_create(ctx, &n->ps);
    lks_mlp_create(n->ps, "", 3, sizes, 0.2, &n->m);
    lks_optim_create(n->ps, p->kind, &n->opt);
    lks_optim_set_clip_norm(n->opt, 5);
    lks_optim_set_schedule(n->opt, LKS_SCHEDULE_COSINE, 3, p->steps, 0.1, 0, 1);
    if (p->ema) lks_optim_set_ema(n->opt, 0.9, 0);
    if (p->cast == LKS_F16) {
        lks_scaler_create(ctx, 1, &n->scaler);
        lks_scaler_set_scale(n->scaler, p->overflow ? 4096 : 64);
        lks_scaler_set_growth_interval(n->scaler, 2);
        lks_scaler_set_growth_factor(n->scaler, p->overflow ? 16 : 2);
    }
    lks_dp_create(n->ps, 0, &n->dp);
    lks_dp_set_nominal(n->dp, ROWS * lks_size(ctx));
}

static void close_net(net *n)
{
    lks_release(n->in);
    lks_release(n->target);
    lks_release(n->loss);
    lks_dp_destroy(&n->dp);
    lks_scaler_destroy(&n->scaler);
    lks_optim_destroy(&n->opt);
    lks_module_destroy(&n->m);
    lks_params_destroy(&n->ps);
}

static void feed(net *n, int k)
{
    float x[ROWS * IN], y[ROWS * OUT];
    int64_t in[2] = {n->rows, IN}, out[2] = {n->rows, OUT};
    int me = lks_rank(ctx);
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)((i * 7 + k * 3 + me * 5) % 11) / 4 - 1;
    for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)((i * 5 + k + me) % 7) / 2 - 1;
    if (n->p->fresh || !n->in || lks_dim(n->in, 0) != n->rows) {
        lks_release(n->in);
        lks_release(n->target);
        n->in = lks_keep(lks_from_host(ctx, LKS_F32, 2, in, x));
        n->target = lks_keep(lks_from_host(ctx, LKS_F32, 2, out, y));
        return;
    }
    lks_set_from_host(n->in, x, n->rows * IN * 4);
    lks_set_from_host(n->target, y, n->rows * OUT * 4);
}

static double evaluate(net *n)
{
    double v = 0;
    lks_scope_begin(ctx);
    lks_module_train(n->m, 0);
    lks_no_grad_begin(ctx);
    lks_tensor *t = lks_mse_loss(lks_module_forward(n->m, n->in), n->target, LKS_REDUCTION_SUM);
    if (!t || lks_item(t, &v) != LKS_OK) v = NAN;
    lks_no_grad_end(ctx);
    lks_module_train(n->m, 1);
    lks_scope_end(ctx);
    return v;
}

/* Saves scaler state and averages; both must be those of the calls. */
static double saved(net *n)
{
    double sum = 0;
    char text[1024];
    if (n->scaler && lks_scaler_save_text(n->scaler, text, sizeof text) == LKS_OK)
        for (const char *c = text; *c; c++) sum = sum * 1.001 + *c;
    if (n->p->ema) {
        lks_optim_ema_swap(n->opt, 1);
        sum += evaluate(n);
        lks_optim_ema_swap(n->opt, 0);
    }
    return sum;
}

static int train(const course *p, int graph, result *r)
{
    net n;
    lks_graph *g = NULL;
    int64_t first_held = 0;
    lks_status s = LKS_OK;
    *r = (result){.held = 0};
    lks_scope_begin(ctx);
    open_net(&n, p);
    if (graph && lks_graph_create(ctx, &g) != LKS_OK) s = lks_error_code(ctx);
    for (int k = 0; k < p->steps && s == LKS_OK; k++) {
        lks_scope_begin(ctx);
        n.rows = p->small_at && k == p->small_at ? ROWS / 2 : ROWS;
        if (p->lr_at && k >= p->lr_at) lks_optim_set_lr(n.opt, -1, 0.01 / k);
        if (p->freeze_at && k == p->freeze_at) lks_params_set_trainable(n.ps, 0, 0);
        if (p->freeze_at && k == p->freeze_at + 4) lks_params_set_trainable(n.ps, 0, 1);
        if (p->trim_at && k == p->trim_at) { /* the input lies elsewhere from now on */
            lks_release(n.in);
            n.in = NULL;
        }
        if (p->short_at && k == p->short_at) {
            int64_t size = INT64_C(1) << 44;
            if (lks_empty(ctx, LKS_F32, 1, &size)) s = LKS_ERR_INTERNAL;
            lks_error_clear(ctx);
        }
        feed(&n, k);
        lks_random_rows(ctx, p->rows_at && k >= p->rows_at ? 100 : ROWS * lks_rank(ctx), n.rows);
        if (p->outside) lks_params_zero_grad(n.ps);
        s = g ? lks_graph_step(g, n.rows, calls, &n) : calls(&n);
        int64_t ticket = s == LKS_OK ? lks_item_later(n.loss) : 0;
        if (s == LKS_OK) s = lks_item_take(ctx, ticket, &r->loss[k]);
        if (s == LKS_OK)
            s = lks_optim_report(n.opt, lks_optim_attempts(n.opt), NULL, &r->norm[k], &r->scale[k], NULL, NULL,
                                 &r->skipped);
        if (p->evaluate && k % p->evaluate == 1) r->loss[k] += evaluate(&n);
        if (p->save && k % p->save == 1) r->loss[k] += saved(&n);
        lks_scope_end(ctx);
        if (k == 4) first_held = lks_memory_held(ctx), lks_memory_peak_reset(ctx);
    }
    for (int i = 0; i < lks_params_count(n.ps) && s == LKS_OK; i++) {
        lks_tensor *t = lks_params_tensor(n.ps, i);
        s = lks_to_host(t, r->w + r->numel, lks_numel(t) * 4);
        r->numel += lks_numel(t);
    }
    r->held = lks_memory_held(ctx) - first_held;
    r->peak = (double)lks_memory_peak(ctx);
    r->attempts = lks_optim_attempts(n.opt) + 1000 * lks_random_attempt(ctx);
    lks_graph_counts(g, &r->eager, &r->captured, &r->replayed);
    snprintf(r->why, sizeof r->why, "%s", lks_graph_why(g));
    if (s != LKS_OK) diag("%s: %s: %s", p->what, lks_status_text(s), lks_error(ctx));
    lks_graph_destroy(&g);
    close_net(&n);
    lks_scope_end(ctx);
    return s == LKS_OK;
}

/* Both ways; captured < 0: in all steps but two. */
static void alike(const course *p, int captured, const char *why)
{
    static result eager, graph;
    int64_t tensors = lks_live_tensors(ctx), used = lks_memory_used(ctx);
    int good = train(p, 0, &eager) && train(p, 1, &graph);
    int same = memcmp(eager.w, graph.w, sizeof eager.w) == 0;
    for (int k = 0; k < p->steps && good; k++)
        if (memcmp(&eager.loss[k], &graph.loss[k], 8) || memcmp(&eager.norm[k], &graph.norm[k], 8) ||
            memcmp(&eager.scale[k], &graph.scale[k], 8)) {
            diag("step %d: loss %.17g %.17g, norm %.17g %.17g, scale %g %g", k, eager.loss[k], graph.loss[k],
                 eager.norm[k], graph.norm[k], eager.scale[k], graph.scale[k]);
            same = 0;
            break;
        }
    ok(good && same && eager.skipped == graph.skipped && eager.attempts == graph.attempts,
       "%s: the bits of the calls (%lld skipped)", p->what, (long long)graph.skipped);
    if (p->overflow) ok(eager.skipped > 0 && eager.skipped < p->steps - 4, "and some steps were skipped");
    if (captured >= 0) {
        int64_t made = graph.eager + graph.captured + graph.replayed;
        ok(graph.captured == captured && made == p->steps && graph.replayed > 0,
           "%s: %lld by calls, %lld captured, %lld replayed", p->what, (long long)graph.eager,
           (long long)graph.captured, (long long)graph.replayed);
    } else {
        ok(graph.captured == p->steps - 2 && graph.replayed == 0 && strstr(graph.why, why),
           "%s: never replayed, since %s", p->what, graph.why);
    }
    if (captured == 1) {
        ok(graph.held == 0, "%s: no memory is taken after the first steps (%lld)", p->what, (long long)graph.held);
        ok(graph.peak >= 0.9 * eager.peak && eager.peak > 0, "and the peak is that of the calls (%g, %g bytes)",
           eager.peak, graph.peak);
    }
    ok(lks_live_tensors(ctx) == tensors && lks_memory_used(ctx) == used, "%s: nothing is left", p->what);
}

static void plans(void)
{
    static const course f32 = {"float32", LKS_DTYPE_NONE, LKS_ADAMW, .steps = 10, .lr_at = 5, .evaluate = 3},
                      bf16 = {"bfloat16", LKS_BF16, LKS_SGD, .steps = 7, .evaluate = 3},
                      ema = {"averages, swapped once", LKS_BF16, LKS_ADAMW, .steps = 9, .ema = 1, .save = 20},
                      f16 = {"float16 with overflows", LKS_F16, LKS_ADAMW, .steps = 20, .overflow = 1, .evaluate = 6,
                             .save = 5},
                      lamb = {"lamb", LKS_DTYPE_NONE, LKS_LAMB, .steps = 6},
                      freeze = {"a frozen parameter", LKS_BF16, LKS_ADAMW, .steps = 14, .freeze_at = 4},
                      moved = {"an input that moves", LKS_DTYPE_NONE, LKS_ADAM, .steps = 9, .trim_at = 5},
                      small = {"a small batch in between", LKS_DTYPE_NONE, LKS_ADAM, .steps = 9, .small_at = 5},
                      rows = {"other rows", LKS_DTYPE_NONE, LKS_ADAM, .steps = 9, .rows_at = 5},
                      room = {"memory that was short", LKS_DTYPE_NONE, LKS_ADAM, .steps = 9, .short_at = 5},
                      fft = {"Fourier transforms", LKS_DTYPE_NONE, LKS_ADAM, .steps = 7, .fft = 1},
                      item = {"lks_item_later inside", LKS_DTYPE_NONE, LKS_ADAM, .steps = 6, .item = 1},
                      fresh = {"a new input each time", LKS_DTYPE_NONE, LKS_ADAM, .steps = 6, .fresh = 1},
                      outside = {"gradients cleared before it", LKS_DTYPE_NONE, LKS_ADAM, .steps = 6, .outside = 1};
    int ranks = lks_size(ctx);
    alike(&f32, 1, "");
    alike(&f16, 1, "");
    if (ranks > 1) return;
    alike(&bf16, 1, "");
    alike(&ema, 3, "");
    alike(&lamb, 1, "");
    alike(&freeze, 7, "");
    alike(&moved, 2, "");
    alike(&small, 2, "");
    alike(&rows, 3, "");
    alike(&room, 2, "");
    int64_t four = 4;
    if (lks_fft_fft(lks_ones(ctx, LKS_C64, 1, &four), -1, 0, 0)) alike(&fft, 1, "");
    else skip(5, "no library of Fourier transforms");
    lks_error_clear(ctx);
    alike(&item, -1, "lks_item_later");
    alike(&fresh, -1, "freed");
    alike(&outside, -1, "state");
}

/* --- two networks in turn, each with a graph, an optimizer and a scaler of its own --- */

static void two(void)
{
    static const course c = {"two networks in turn", LKS_F16, LKS_ADAMW, .steps = 14, .overflow = 1};
    static float w[2][2][HIDDEN * IN];
    int64_t replayed[2] = {0, 0};
    lks_status s = LKS_OK;
    for (int graph = 0; graph < 2; graph++) {
        net n[2];
        lks_graph *g[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++) {
            open_net(&n[i], &c);
            if (graph && s == LKS_OK) s = lks_graph_create(ctx, &g[i]);
        }
        for (int k = 0; k < 2 * c.steps && s == LKS_OK; k++) {
            int i = k % 3 == 2; /* the first one twice as often */
            lks_scope_begin(ctx);
            feed(&n[i], k);
            lks_random_rows(ctx, 0, ROWS);
            s = lks_graph_step(g[i], 0, calls, &n[i]);
            lks_scope_end(ctx);
        }
        for (int i = 0; i < 2; i++) {
            if (s == LKS_OK) s = lks_to_host(lks_params_tensor(n[i].ps, 0), w[graph][i], sizeof w[graph][i]);
            lks_graph_counts(g[i], NULL, NULL, &replayed[i]);
            lks_graph_destroy(&g[i]);
        }
        for (int i = 0; i < 2; i++) close_net(&n[i]);
    }
    ok(s == LKS_OK && memcmp(w[0], w[1], sizeof w[0]) == 0, "%s: the bits of the calls %s", c.what, lks_error(ctx));
    ok(replayed[0] > 10 && replayed[1] > 4, "and both are replayed (%lld, %lld)", (long long)replayed[0],
       (long long)replayed[1]);
}

/* --- what is refused --- */

static lks_graph *outer;

static lks_status nothing(void *user)
{
    (void)user;
    return LKS_OK;
}

static lks_status inside(void *user)
{
    lks_status *s = user;
    s[0] = lks_graph_step(outer, 0, nothing, NULL);
    s[1] = lks_graph_begin(ctx);
    lks_error_clear(ctx);
    return LKS_OK;
}

static lks_status fails(void *user)
{
    int *times = user;
    return ++*times % 3 == 1 ? lks_error_raise(ctx, LKS_ERR_ARGUMENT, "the test", "as planned") : LKS_OK;
}

static void refused(void)
{
    lks_status s[2] = {LKS_OK, LKS_OK};
    int times = 0;
    ok(lks_graph_create(ctx, &outer) == LKS_OK && lks_graph_step(outer, 0, NULL, NULL) == LKS_ERR_ARGUMENT,
       "no step is an error");
    ok(lks_graph_step(outer, 0, inside, s) == LKS_OK && s[0] == LKS_ERR_STATE && s[1] == LKS_ERR_STATE,
       "so is one inside another");
    lks_graph_destroy(&outer);
    lks_graph_create(ctx, &outer);
    lks_status first = lks_graph_step(outer, 0, fails, &times);
    lks_error_clear(ctx);
    ok(first == LKS_ERR_ARGUMENT && lks_graph_step(outer, 0, fails, &times) == LKS_OK, "a failure is handed on");
    ok(lks_graph_step(outer, 0, fails, &times) == LKS_OK &&
           lks_graph_step(outer, 0, fails, &times) == LKS_ERR_ARGUMENT && strstr(lks_error(ctx), "as planned"),
       "also while the step is captured");
    lks_error_clear(ctx);
    for (int i = 0; i < 6 && lks_graph_step(outer, 0, nothing, NULL) == LKS_OK; i++) continue;
    int64_t replayed = 0;
    lks_graph_counts(outer, NULL, NULL, &replayed);
    ok(replayed > 0, "a step without work is replayed, too (%lld)", (long long)replayed);
    lks_graph_destroy(&outer);
    lks_graph_destroy(&outer);
}

static void open_context(MPI_Comm comm, const char *device)
{
    lks_config *config = lks_config_new();
    lks_config_set_device(config, device);
    lks_config_set_threads(config, 1);
    if (lks_context_create(comm, config, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
}

int main(int argc, char **argv)
{
    const char *device = tap_device("far");
    if (argc > 1) { /* on several ranks */
        MPI_Init(&argc, &argv);
        tap_mpi(MPI_COMM_WORLD);
    }
    if (!strcmp(device, "far")) {
        lks_graph *g = NULL;
        int times = 1;
        open_context(MPI_COMM_NULL, device);
        ok(lks_graph_create(ctx, &g) == LKS_ERR_UNSUPPORTED && strstr(lks_error(ctx), device) && !g, "far: no graphs");
        lks_error_clear(ctx);
        ok(lks_graph_step(NULL, 0, fails, &times) == LKS_OK && times == 2 && !*lks_graph_why(NULL),
           "without a graph the step is called");
        lks_context_destroy(&ctx);
        skip(1, "no device with graphs (LKS_TEST_DEVICE=cuda)");
    } else {
        open_context(argc > 1 ? MPI_COMM_WORLD : MPI_COMM_NULL, device);
        diag("%s", lks_transport(ctx));
        plans();
        if (argc == 1) two();
        if (argc == 1) refused();
        ok(lks_error_code(ctx) == LKS_OK, "no error is left: %s", lks_error(ctx));
        lks_context_destroy(&ctx);
    }
    int status = done();
    if (argc > 1) MPI_Finalize();
    else lks_finalize();
    return status;
}
