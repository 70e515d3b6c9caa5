/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_golden_train.c - training beside PyTorch, by tests/golden/train.h5 and scaler.h5 (make.py writes them): 20
 * steps of each optimizer, learning-rate schedules, 50 steps of GPT and CNN, batch norm over 5 steps, 500 steps of the
 * scaler.
 *
 *   optimizers  after each step, the largest |parameter - reference| in ulps of the largest |reference| is at most
 *               twice that of torch's float32 + 4; the reference is torch's float64.
 *   models      the loss of every step within 1e-5 of torch's float32 loss, relatively.
 *   scaler      scale, tracker and parameters (that is, which optimizer stepped) have the same bits after every step,
 *               but where Lockstep differs by choice: floor and ceiling; growth as soon as tracker >= interval, also
 *               when the interval was lowered.
 */
#include "golden.h"
#include "grads.h"

#define MODEL_BOUND 1e-5

static lks_context *ctx;
static golden file;

static char names[64][GOLDEN_PATH];
static int name_count;
static lks_status collect(void *user, const char *name)
{
    (void)user;
    if (name_count == 64) return LKS_ERR_ARGUMENT;
    snprintf(names[name_count++], GOLDEN_PATH, "%s", name);
    return LKS_OK;
}

static void list(const char *group)
{
    name_count = 0;
    if (lksi_h5_list(file.f, group, collect, NULL) != LKS_OK) bail("%s", file.base.text);
}

static double *values(const char *group, const char *name, int64_t *n)
{
    return golden_values(&file, pathf("%s/%s", group, name), n);
}

/* --- optimizers --- */

enum { STEPS = 20, MAX_PARAMS = 8 };

static double arg_or(const char *args, const char *name, double otherwise)
{
    return arg_at(args, name) ? arg(args, name) : otherwise;
}

/* Kind by the first word of the case's name, settings by its arguments. */
static lks_optim *optimizer_of(lks_params *ps, const char *name, const char *a)
{
    char kind[64];
    lks_optim *opt = NULL;
    int k = lks_optim_kind_from_name(word(name, 0, kind, sizeof kind));
    if (k < 0 || !good(ctx, lks_optim_create(ps, k, &opt))) return NULL;
    int done = good(ctx, lks_optim_set_lr(opt, -1, arg(a, "lr"))) &&
               good(ctx, lks_optim_set_weight_decay(opt, -1, arg_or(a, "weight_decay", k == LKS_ADAMW ? 0.01 : 0)));
    if (arg_at(a, "momentum"))
        done &= good(ctx, lks_optim_set_momentum(opt, -1, arg(a, "momentum"), arg_or(a, "dampening", 0),
                                                 arg_or(a, "nesterov", 0) != 0));
    if (arg_at(a, "eps")) done &= good(ctx, lks_optim_set_eps(opt, -1, arg(a, "eps")));
    if (arg_at(a, "betas")) {
        const char *p = arg_at(a, "betas");
        done &= good(ctx, lks_optim_set_betas(opt, -1, strtod(p, NULL), strtod(strchr(p, ',') + 1, NULL)));
    }
    if (arg_at(a, "alpha")) done &= good(ctx, lks_optim_set_alpha(opt, -1, arg(a, "alpha")));
    if (arg_at(a, "lr_decay")) done &= good(ctx, lks_optim_set_lr_decay(opt, -1, arg(a, "lr_decay")));
    if (arg_or(a, "centered", 0) != 0) done &= good(ctx, lks_optim_set_centered(opt, 1));
    if (arg_or(a, "amsgrad", 0) != 0) done &= good(ctx, lks_optim_set_amsgrad(opt, 1));
    if (arg_at(a, "initial_accumulator_value"))
        done &= good(ctx, lks_optim_set_initial_accumulator(opt, arg(a, "initial_accumulator_value")));
    if (arg_at(a, "ema")) done &= good(ctx, lks_optim_set_ema(opt, arg(a, "ema"), 0));
    if (arg_at(a, "clip_norm")) done &= good(ctx, lks_optim_set_clip_norm(opt, arg(a, "clip_norm")));
    if (arg_at(a, "clip_value")) done &= good(ctx, lks_optim_set_clip_value(opt, arg(a, "clip_value")));
    if (arg_at(a, "first_lr")) {
        int first = 0, group = lks_optim_add_group(opt, 1, &first);
        done &= group > 0 && good(ctx, lks_optim_set_lr(opt, group, arg(a, "first_lr")));
    }
    if (!done) lks_optim_destroy(&opt);
    return opt;
}

static void optimizer(const char *name, const double *start, const double *grads, const int *size, int n, int total)
{
    char group[2 * GOLDEN_PATH], args[GOLDEN_TEXT], pname[8] = "p0";
    int64_t k;
    snprintf(group, sizeof group, "%s", pathf("/optimizers/%s", name));
    golden_text(&file, group, "args", args);
    double *want = values(group, "f64", &k), *torch = values(group, "f32", &k);
    double *now = malloc((size_t)total * sizeof *now), worst = 0, worst_torch = 0, each;
    lks_params *ps = NULL;
    lks_tensor *w[MAX_PARAMS];
    lks_params_create(ctx, &ps);
    for (int i = 0, at = 0; i < n; at += size[i++], pname[1]++) {
        int64_t s = size[i];
        if (!good(ctx, lks_params_add(ps, pname, LKS_F32, 1, &s, &w[i]))) bail("no parameter");
        put(w[i], start + at);
    }
    lks_optim *opt = optimizer_of(ps, name, args);
    int steps = 0, within = 1;
    for (; opt && steps < STEPS; steps++) {
        double top, torch_top;
        for (int i = 0, at = 0; i < n; at += size[i++]) put_grad(w[i], grads + steps * total + at);
        if (arg_at(args, "absent") && steps % 3 == 1 && !good(ctx, lks_zero_grad(w[1]))) break;
        if (!good(ctx, lks_optim_step(opt, NULL))) break;
        for (int i = 0, at = 0; i < n; at += size[i++]) get(w[i], now + at);
        distances(now, want + steps * total, total, LKS_F32, &top, &each);
        distances(torch + steps * total, want + steps * total, total, LKS_F32, &torch_top, &each);
        within &= top <= 2 * torch_top + 4;
        worst = fmax(worst, top), worst_torch = fmax(worst_torch, torch_top);
    }
    ok(steps == STEPS && k == STEPS * total && within, "%s: %d steps (error %.3f ulp, PyTorch's %.3f)", name, steps,
       worst, worst_torch);
    if (arg_at(args, "ema") && opt) {
        double top, torch_top;
        free(want), free(torch);
        want = values(group, "average_f64", &k), torch = values(group, "average_f32", &k);
        int done = good(ctx, lks_optim_ema_swap(opt, 1));
        for (int i = 0, at = 0; i < n; at += size[i++]) get(w[i], now + at);
        done &= good(ctx, lks_optim_ema_swap(opt, 0));
        distances(now, want, total, LKS_F32, &top, &each);
        distances(torch, want, total, LKS_F32, &torch_top, &each);
        ok(done && k == total && top <= 2 * torch_top + 4, "%s: the averages (error %.3f ulp, PyTorch's %.3f)", name,
           top, torch_top);
    }
    lks_optim_destroy(&opt);
    lks_params_destroy(&ps);
    free(want), free(torch), free(now);
}

static void optimizers(void)
{
    char sizes[GOLDEN_TEXT], w[32];
    int size[MAX_PARAMS], n = 0, total = 0;
    int64_t k;
    double *start = values("/optimizers", "start", &k), *grads = values("/optimizers", "grads", &k);
    golden_text(&file, "/optimizers", "sizes", sizes);
    for (; n < MAX_PARAMS && *word(sizes, n, w, sizeof w); n++) total += size[n] = atoi(w);
    if (k != STEPS * total) bail("%lld gradients", (long long)k);
    list("/optimizers");
    int tried = 0;
    for (int i = 0; i < name_count; i++) {
        if (!strcmp(names[i], "start") || !strcmp(names[i], "grads")) continue;
        optimizer(names[i], start, grads, size, n, total);
        tried++;
    }
    ok(tried >= 23, "%d optimizers", tried);
    free(start), free(grads);
}

/* --- schedules --- */

static void schedules(void)
{
    list("/schedules");
    ok(name_count >= 7, "%d schedules", name_count);
    for (int i = 0; i < name_count; i++) {
        char a[GOLDEN_TEXT];
        int64_t n, one = 1;
        golden_text(&file, pathf("/schedules/%s", names[i]), "args", a);
        double *want = values("/schedules", names[i], &n), worst = 0, lr;
        lks_params *ps = NULL;
        lks_optim *opt = NULL;
        lks_tensor *w;
        lks_params_create(ctx, &ps);
        lks_params_add(ps, "w", LKS_F32, 1, &one, &w);
        int done = good(ctx, lks_optim_create(ps, LKS_SGD, &opt)) &&
                   good(ctx, lks_optim_set_lr(opt, -1, arg(a, "lr"))) &&
                   good(ctx, lks_optim_set_schedule(opt, arg_int(a, "kind"), arg_int(a, "warmup"), arg_int(a, "total"),
                                                    arg(a, "final"), arg(a, "gamma"), arg_int(a, "period")));
        for (int64_t k = 0; done && k < n; k++) {
            put_grad1(w, 1);
            done = good(ctx, lks_optim_step(opt, NULL)) &&
                   good(ctx, lks_optim_report(opt, k + 1, NULL, NULL, NULL, &lr, NULL, NULL));
            worst = fmax(worst, fabs(lr - want[k]));
        }
        ok(done && n == 40 && worst <= 1e-12, "schedule %s: 40 rates, off by %.2g", names[i], worst);
        lks_optim_destroy(&opt);
        lks_params_destroy(&ps);
        free(want);
    }
}

/* --- models --- */

/* The start of every parameter and buffer by its name; all must be there. */
static int load_start(lks_params *ps, const char *group)
{
    for (int i = 0; i < lks_params_count(ps); i++) {
        const char *path = pathf("%s/start/%s", group, lks_params_name(ps, i));
        int64_t n;
        if (!lksi_h5_has(file.f, path)) {
            diag("no %s", path);
            return 0;
        }
        double *v = golden_values(&file, path, &n);
        int fits = n == lks_numel(lks_params_tensor(ps, i));
        if (fits) put(lks_params_tensor(ps, i), v);
        free(v);
        if (!fits) {
            diag("%s has %lld elements", path, (long long)n);
            return 0;
        }
    }
    list(pathf("%s/start", group));
    int n = lks_params_count(ps);
    if (name_count != n) diag("%d names, %d parameters and buffers", name_count, n);
    return name_count == n;
}

/* One step; the loss. NULL x or target: it failed. */
static double model_step(lks_params *ps, lks_optim *opt, lks_module *m, lks_tensor *x, lks_tensor *target,
                         int64_t classes)
{
    double loss = NAN;
    lks_params_zero_grad(ps);
    lks_tensor *y = lks_reshape(lks_module_forward(m, x), 2, (int64_t[]){-1, classes});
    y = lks_cross_entropy(y, lks_flatten(target, 0, -1), LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN);
    if (!y || lks_backward(y, LKS_NONE, 0) != LKS_OK || lks_optim_step(opt, NULL) != LKS_OK ||
        lks_item(y, &loss) != LKS_OK)
        diag("%s", lks_error(ctx));
    return loss;
}

typedef struct trained {
    int steps;
    double off, torch_off; /* worst relative distance to torch's float32; torch's float32 to its float64 */
} trained;

static void judge_loss(trained *t, double loss, const double *f32, const double *f64)
{
    double d = fabs(loss - f32[t->steps]) / fabs(f32[t->steps]);
    if (!(d <= t->off)) t->off = isnan(d) ? INFINITY : d;
    t->torch_off = fmax(t->torch_off, fabs(f32[t->steps] - f64[t->steps]) / fabs(f64[t->steps]));
    t->steps++;
}

static void gpt(void)
{
    char a[GOLDEN_TEXT];
    int64_t n, steps;
    golden_text(&file, "/gpt", "args", a);
    int64_t vocab = arg_int(a, "vocab"), context = arg_int(a, "context");
    double *f32 = values("/gpt", "loss_f32", &steps), *f64 = values("/gpt", "loss_f64", &steps);
    double *tokens = values("/gpt", "tokens", &n);
    int64_t row = context + 1, batch = n / steps / row, shape[2] = {batch, row};
    lks_params *ps = NULL;
    lks_module *m = NULL;
    lks_optim *opt = NULL;
    trained t = {0};
    lks_params_create(ctx, &ps);
    int begun = good(ctx, lks_gpt_create(ps, "", vocab, context, arg_int(a, "layers"), arg_int(a, "dim"),
                                         arg_int(a, "heads"), 0, &m)) &&
                load_start(ps, "/gpt") && good(ctx, lks_optim_create(ps, LKS_ADAMW, &opt)) &&
                good(ctx, lks_optim_set_lr(opt, -1, arg(a, "lr"))) &&
                good(ctx, lks_optim_set_weight_decay(opt, -1, arg(a, "decay")));
    while (begun && t.steps < steps) {
        lks_scope_begin(ctx);
        lks_tensor *all = lks_to(lks_from_host(ctx, LKS_F64, 2, shape, tokens + t.steps * batch * row), LKS_I64);
        judge_loss(&t, model_step(ps, opt, m, lks_contiguous(lks_narrow(all, 1, 0, context)),
                                  lks_contiguous(lks_narrow(all, 1, 1, context)), vocab), f32, f64);
        lks_scope_end(ctx);
    }
    ok(t.steps == 50 && t.off <= MODEL_BOUND,
       "GPT: loss of %d steps off by %.2g relatively (torch's own float32: %.2g)", t.steps, t.off, t.torch_off);
    lks_optim_destroy(&opt);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
    free(f32), free(f64), free(tokens);
}

/* Running statistics at the end, by the rule of test_golden.c. */
static void statistics(lks_params *ps, const char *group)
{
    int tried = 0, failed = 0;
    double worst = 0, worst_torch = 0;
    for (int i = 0; i < lks_params_count(ps); i++) {
        if (!lks_params_is_buffer(ps, i)) continue;
        const char *name = lks_params_name(ps, i);
        int64_t n;
        double top, torch_top, each, now[256];
        double *want = golden_values(&file, pathf("%s/end_f64/%s", group, name), &n);
        double *torch = golden_values(&file, pathf("%s/end_f32/%s", group, name), &n);
        if (n != lks_numel(lks_params_tensor(ps, i)) || n > 256) bail("%s has %lld elements", name, (long long)n);
        get(lks_params_tensor(ps, i), now);
        distances(now, want, n, LKS_F32, &top, &each);
        distances(torch, want, n, LKS_F32, &torch_top, &each);
        failed += !(top <= 2 * torch_top + 4);
        worst = fmax(worst, top), worst_torch = fmax(worst_torch, torch_top);
        tried++;
        free(want), free(torch);
    }
    ok(tried == 4 && !failed, "%s: %d running statistics (error %.3f ulp, PyTorch's %.3f)", group + 1, tried, worst,
       worst_torch);
}

static void cnn(const char *group, int want_steps)
{
    char a[GOLDEN_TEXT];
    int64_t n, k, steps;
    golden_text(&file, group, "args", a);
    int64_t c = arg_int(a, "channels"), size = arg_int(a, "size"), classes = arg_int(a, "classes");
    int norm = arg_int(a, "norm");
    double *f32 = values(group, "loss_f32", &steps), *f64 = values(group, "loss_f64", &steps);
    double *images = values(group, "images", &n), *labels = values(group, "labels", &k);
    int64_t batch = 8, count = k / batch, shape[4] = {batch, c, size, size}, pixels = n / count;
    for (int64_t i = 0; i < n; i++) images[i] = (double)((float)images[i] / 255);
    lks_params *ps = NULL;
    lks_module *m = NULL;
    lks_optim *opt = NULL;
    trained t = {0};
    lks_params_create(ctx, &ps);
    int begun = good(ctx, lks_cnn_create(ps, "", c, size, size, classes, arg_int(a, "width"), arg_int(a, "stages"),
                                         norm, 0, &m)) &&
                load_start(ps, group) && good(ctx, lks_optim_create(ps, LKS_SGD, &opt)) &&
                good(ctx, lks_optim_set_lr(opt, -1, arg(a, "lr"))) &&
                good(ctx, lks_optim_set_momentum(opt, -1, arg(a, "momentum"), 0, 0));
    while (begun && t.steps < steps) {
        int64_t b = t.steps % count;
        lks_scope_begin(ctx);
        lks_tensor *x = lks_to(lks_from_host(ctx, LKS_F64, 4, shape, images + b * pixels), LKS_F32);
        lks_tensor *y = lks_to(lks_from_host(ctx, LKS_F64, 1, &batch, labels + b * batch), LKS_I64);
        judge_loss(&t, model_step(ps, opt, m, x, y, classes), f32, f64);
        lks_scope_end(ctx);
    }
    ok(t.steps == want_steps && t.off <= MODEL_BOUND,
       "CNN %s batch norm: loss of %d steps off by %.2g relatively (torch's own float32: %.2g)",
       norm ? "with" : "without", t.steps, t.off, t.torch_off);
    if (norm) statistics(ps, group);
    lks_optim_destroy(&opt);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
    free(f32), free(f64), free(images), free(labels);
}

/* --- scaler --- */

typedef struct pair {
    lks_params *ps[2];
    lks_optim *opt[2];
    lks_tensor *w[2];
    lks_scaler *s;
} pair;

static pair pair_new(const char *a)
{
    pair p = {0};
    int64_t one = 1;
    int done = good(ctx, lks_scaler_create(ctx, 1, &p.s)) && good(ctx, lks_scaler_set_scale(p.s, arg(a, "init"))) &&
               good(ctx, lks_scaler_set_growth_factor(p.s, arg(a, "growth"))) &&
               good(ctx, lks_scaler_set_backoff_factor(p.s, arg(a, "backoff"))) &&
               good(ctx, lks_scaler_set_growth_interval(p.s, arg_int(a, "interval")));
    for (int i = 0; i < 2; i++)
        done &= good(ctx, lks_params_create(ctx, &p.ps[i])) &&
                good(ctx, lks_params_add(p.ps[i], "w", LKS_F32, 1, &one, &p.w[i])) &&
                good(ctx, lks_optim_create(p.ps[i], LKS_SGD, &p.opt[i])) &&
                good(ctx, lks_optim_set_lr(p.opt[i], -1, 0x1p-4));
    if (!done) bail("no scaler and optimizers");
    return p;
}

static void pair_drop(pair *p)
{
    for (int i = 0; i < 2; i++) {
        lks_optim_destroy(&p->opt[i]);
        lks_params_destroy(&p->ps[i]);
    }
    lks_scaler_destroy(&p->s);
}

enum { A, B, UNSCALE, NEW_SCALE, THEN_SCALE, INTERVAL, COLUMNS };

/* What a row of the script does up to update; *outcomes: of A and B, LKS_NOTHING for the one that takes no part. */
static int row_step(pair *p, const double *row, int outcome[2])
{
    static const double kinds[] = {0.5, INFINITY, NAN, -INFINITY};
    double scale;
    if (!good(ctx, lks_scaler_get(p->s, &scale, NULL))) return 0;
    for (int i = 0; i < 2; i++) {
        outcome[i] = LKS_NOTHING;
        if (row[i] < 0) continue;
        put_grad1(p->w[i], kinds[(int)row[i]] * scale);
        if ((int)row[UNSCALE] >> i & 1 && !good(ctx, lks_optim_unscale(p->opt[i], p->s))) return 0;
        if (!good(ctx, lks_optim_step(p->opt[i], p->s)) ||
            !good(ctx, lks_optim_report(p->opt[i], lks_optim_attempts(p->opt[i]), &outcome[i], NULL, NULL, NULL, NULL,
                                        NULL)))
            return 0;
    }
    return good(ctx, row[NEW_SCALE] > 0 ? lks_scaler_update_to(p->s, row[NEW_SCALE]) : lks_scaler_update(p->s));
}

typedef struct played {
    int rows, alike, decisions, new_scales;
} played;

/* Plays a script and counts the rows that end as torch's; scales within [least, most]. */
static played play(const char *group, double least, double most)
{
    char a[GOLDEN_TEXT];
    int64_t n, m;
    golden_text(&file, group, "args", a);
    double *script = values(group, "script", &n), *want = values(group, "expected", &m), before[2] = {0};
    pair p = pair_new(a);
    played r = {0};
    for (r.rows = 0; r.rows < n / COLUMNS; r.rows++) {
        const double *row = script + r.rows * COLUMNS, *w = want + r.rows * 4;
        double scale;
        int64_t tracker;
        int outcome[2], alike = 1;
        if (!row_step(&p, row, outcome)) break;
        lks_scaler_get(p.s, &scale, &tracker);
        r.new_scales += row[NEW_SCALE] > 0;
        if (row[THEN_SCALE] > 0 && !good(ctx, lks_scaler_set_scale(p.s, row[THEN_SCALE]))) break;
        if (row[INTERVAL] > 0 && !good(ctx, lks_scaler_set_growth_interval(p.s, (int64_t)row[INTERVAL]))) break;
        lks_scaler_get(p.s, &scale, &tracker);
        alike &= scale == fmin(fmax(w[0], least), most) && (double)tracker == w[1];
        int same = 1;
        for (int i = 0; i < 2; i++) {
            int stepped = w[2 + i] != before[i];
            same &= get1(p.w[i]) == w[2 + i] && (row[i] < 0 || (outcome[i] == LKS_STEPPED) == stepped);
            before[i] = w[2 + i];
        }
        if (!alike || !same)
            diag("%s, row %d: scale %.9g tracker %lld A %.9g B %.9g; torch %.9g %g %.9g %.9g", group, r.rows, scale,
                 (long long)tracker, get1(p.w[0]), get1(p.w[1]), w[0], w[1], w[2], w[3]);
        r.alike += alike;
        r.decisions += same;
        if (!alike) break;
    }
    pair_drop(&p);
    free(script), free(want);
    return r;
}

static void lowered(void)
{
    char a[GOLDEN_TEXT];
    int64_t n, tracker;
    double scale;
    golden_text(&file, "/lowered interval", "args", a);
    double *script = values("/lowered interval", "script", &n), *want = values("/lowered interval", "expected", &n);
    pair p = pair_new(a);
    int outcome[2], good_rows = 1;
    for (int i = 0; i < 8 && good_rows; i++) {
        good_rows = row_step(&p, script + i * COLUMNS, outcome);
        if (i == 4) good_rows &= good(ctx, lks_scaler_set_growth_interval(p.s, 3));
        lks_scaler_get(p.s, &scale, &tracker);
        if (i < 5) good_rows &= scale == want[i * 4] && (double)tracker == want[i * 4 + 1];
        if (i == 5) good_rows &= scale == 2 * 65536 && tracker == 0;
    }
    ok(good_rows && scale == 2 * 65536 && tracker == 2,
       "lowered interval: grows at the next good step (torch's tracker is past it: %g, scale %g)", want[29], want[28]);
    pair_drop(&p);
    free(script), free(want);
}

static void scaler(void)
{
    played r = play("/script", 0, INFINITY);
    ok(r.rows == 500 && r.alike == 500, "scaler script: scale and tracker of %d of 500 steps", r.alike);
    ok(r.decisions == 500, "scaler script: decisions and parameters of %d of 500 steps", r.decisions);
    ok(r.new_scales >= 5, "with a new scale in the place of an update %d times", r.new_scales);
    r = play("/odd factors", 0, INFINITY);
    ok(r.alike == 200 && r.decisions == 200, "factors 1.3 and 0.7: %d of 200 steps", r.alike);
    r = play("/oracle", 0, INFINITY);
    ok(r.alike == 7 && r.decisions == 7, "interval 3: skip, step, step, step, skip, step, step");
    r = play("/ceiling", 0x1p-126, 0x1p126);
    ok(r.alike == 4 && r.decisions == 4, "ceiling: as torch, but not above 2^126");
    r = play("/floor", 0x1p-126, 0x1p126);
    ok(r.alike == 4 && r.decisions == 4, "floor: as torch, but not below 2^-126");
    lowered();
}

int main(void)
{
    ctx = context_on("cpu");
    golden_open(&file, "train.h5");
    optimizers();
    schedules();
    gpt();
    cnn("/cnn", 50);
    cnn("/cnn norm", 5);
    lksi_h5_close(file.f);
    golden_open(&file, "scaler.h5");
    scaler();
    lksi_h5_close(file.f);
    lks_context_destroy(&ctx);
    lks_finalize();
    return done();
}
