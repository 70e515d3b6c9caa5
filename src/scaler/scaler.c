/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scaler.c - the loss scaler: settings, state in device memory, save and load. The schedule itself is
 * lksi_scaler_advance in table/step.h; the finite test and the reduction of flags belong to the optimizer.
 */
#include "scaler/scaler.h"

#include "autocast/autocast.h"
#include "base/guard.h"
#include "dispatch/dispatch.h"
#include "table/step.h"
#include "tape/tape.h"

#include <errno.h>
#include <lockstep/ops.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lks_scaler {
    lks_context *ctx;
    int enabled;
    lksi_scaler_state set; /* growth to floor_limit are in force; the rest is how it began */
    lksi_scaler_state *dev;
    lks_tensor *scale; /* float32 [] over dev->scale; its version counts changes */
    int64_t round;
    int recorded; /* optimizers have stepped or unscaled in this round */
    int scaled;   /* a loss was scaled in this round */
    int64_t number;    /* of the present scale in the context: a new one whenever it may have changed */
    int64_t window, at; /* of lks_scaler_update_n: its length, iterations in it so far (0: none is open) */
    lksi_mover mover;
};

/* What steps move. */
static void list(void *self, lksi_moves *m)
{
    lks_scaler *s = self;
    lksi_fact(m, s->enabled | s->recorded << 1 | s->scaled << 2 | (s->set.fixed != 0) << 3);
    lksi_fact_at(m, s->dev);
    lksi_fact(m, s->at);
    lksi_fact(m, s->window);
    lksi_counter(m, &s->round);
    lksi_counter(m, &s->number);
    if (s->scale) lksi_counter(m, &s->scale->st->version);
}

/* The settings as they lie in the struct, from `growth` on. */
#define SETTINGS offsetof(lksi_scaler_state, growth)

static lks_status upload_settings(lks_scaler *s)
{
    if (!s->enabled) return LKS_OK;
    return lksi_device_write(s->ctx->dev, (char *)s->dev + SETTINGS, (char *)&s->set + SETTINGS,
                             sizeof s->set - SETTINGS);
}

/* Everything that refers to the old scale or round is out of date. */
static void new_round(lks_scaler *s)
{
    s->round++;
    s->recorded = 0;
    s->scaled = 0;
    if (s->scale) s->scale->st->version++;
}

/* The scale may be another one from here on. */
static void new_scale(lks_scaler *s)
{
    new_round(s);
    s->number = ++s->ctx->scales;
}

lks_status lks_scaler_create(lks_context *ctx, int enabled, lks_scaler **out)
{
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_scaler *s = lksi_alloc(&ctx->base, sizeof *s);
    if (!s) return LKS_ERR_MEMORY;
    s->ctx = ctx;
    lksi_mover_add(ctx, &s->mover, s, list);
    s->number = ++ctx->scales;
    s->enabled = enabled != 0;
    s->round = (int64_t)(lksi_now() * 1e9); /* no other scaler's, should it take the place of one in memory */
    s->set = (lksi_scaler_state){
        .scale = 65536, .growth = 2, .backoff = 0.5, .floor = 0x1p-126, .ceiling = 0x1p126, .interval = 2000,
        .floor_limit = 50, .hysteresis = 1};
    lks_status code = LKS_OK;
    if (s->enabled) {
        void *p = NULL;
        code = lksi_device_alloc(ctx->dev, sizeof *s->dev, &p);
        s->dev = p;
        if (code == LKS_OK) code = lksi_device_write(ctx->dev, s->dev, &s->set, sizeof s->set);
        if (code == LKS_OK) {
            s->scale = lksi_tensor_unscoped(lks_wrap(ctx, s->dev, LKS_F32, 0, NULL, NULL));
            if (!s->scale) code = ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
        }
    }
    if (code != LKS_OK) {
        lks_scaler_destroy(&s);
        return code;
    }
    *out = s;
    return LKS_OK;
}

void lks_scaler_destroy(lks_scaler **ps)
{
    if (!ps || !*ps) return;
    lks_scaler *s = *ps;
    lksi_mover_remove(&s->mover);
    if (s->scale) { /* a graph may still hold the tensor, but not use it */
        s->scale->st->version++;
        lks_release(s->scale);
    }
    if (s->dev) lksi_device_free(s->ctx->dev, s->dev);
    lksi_free(&s->ctx->base, s);
    *ps = NULL;
}

int lks_scaler_enabled(const lks_scaler *s) { return s && s->enabled; }
double lks_scaler_growth_factor(const lks_scaler *s) { return s ? s->set.growth : 0; }
double lks_scaler_backoff_factor(const lks_scaler *s) { return s ? s->set.backoff : 0; }
int64_t lks_scaler_growth_interval(const lks_scaler *s) { return s ? s->set.interval : 0; }
void *lksi_scaler_device(lks_scaler *s) { return s && s->enabled ? s->dev : NULL; }
lks_context *lksi_scaler_context(const lks_scaler *s) { return s->ctx; }
int64_t lksi_scaler_round(const lks_scaler *s) { return s->round; }
double lks_scaler_floor(const lks_scaler *s) { return s ? s->set.floor : 0; }
double lks_scaler_ceiling(const lks_scaler *s) { return s ? s->set.ceiling : 0; }
int64_t lks_scaler_floor_limit(const lks_scaler *s) { return s ? s->set.floor_limit : 0; }
int64_t lks_scaler_hysteresis(const lks_scaler *s) { return s ? s->set.hysteresis : 0; }
int lks_scaler_dynamic(const lks_scaler *s) { return s && !s->set.fixed; }
void lksi_scaler_recorded(lks_scaler *s) { s->recorded = 1; }
int64_t lksi_scaler_number(const lks_scaler *s) { return s->number; }

/* --- settings --- */

/* Cause of a bad value in `text`, or NULL. */
static const char *bad_scale(double scale, double floor, double ceiling, char *text, int bytes)
{
    float f = (float)scale, inverse = (float)(1.0 / (double)f);
    if (!lksi_is_finite_f64(scale) || !(scale > 0) || !lksi_is_finite_f32(f) || !(f > 0) || inverse < 0x1p-126f ||
        !lksi_is_finite_f32(inverse))
        snprintf(text, (size_t)bytes, "scale is %g; it must be above 0 and finite in float32, with a normal reciprocal",
                 scale);
    else if (f < floor || f > ceiling)
        snprintf(text, (size_t)bytes, "scale %g is not within the bounds [%g, %g] (lks_scaler_set_bounds)", scale,
                 floor, ceiling);
    else return NULL;
    return text;
}

static const char *bad_settings(const lksi_scaler_state *x, char *text, int bytes)
{
    if (!(x->growth > 1) || !lksi_is_finite_f64(x->growth))
        snprintf(text, (size_t)bytes, "growth factor is %g; it must be above 1 and finite", x->growth);
    else if (!(x->backoff > 0 && x->backoff < 1))
        snprintf(text, (size_t)bytes, "backoff factor is %g; it must be above 0 and below 1", x->backoff);
    else if (x->interval < 1)
        snprintf(text, (size_t)bytes, "growth interval is %lld; it must be at least 1", (long long)x->interval);
    else if (!(x->floor > 0) || !(x->floor <= x->ceiling) || !lksi_is_finite_f64(x->floor) || (float)x->floor == 0)
        snprintf(text, (size_t)bytes, "bounds are [%g, %g]; needed is 0 < floor <= ceiling", x->floor, x->ceiling);
    else if (x->floor_limit < 0)
        snprintf(text, (size_t)bytes, "floor limit is %lld; it must be at least 0", (long long)x->floor_limit);
    else if (x->hysteresis < 1)
        snprintf(text, (size_t)bytes, "hysteresis is %lld; it must be at least 1", (long long)x->hysteresis);
    else return NULL;
    return text;
}

/* Takes over `next` if it is valid. */
static lks_status change(lks_scaler *s, const char *where, const lksi_scaler_state *next)
{
    LKSI_GUARD;
    char text[200];
    if (bad_settings(next, text, sizeof text)) return lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, where, "%s", text);
    lksi_scaler_state before = s->set;
    s->set = *next;
    lks_status code = upload_settings(s);
    if (code != LKS_OK) s->set = before;
    return code;
}

lks_status lks_scaler_set_growth_factor(lks_scaler *s, double growth)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.growth = growth;
    return change(s, "lks_scaler_set_growth_factor", &next);
}

lks_status lks_scaler_set_backoff_factor(lks_scaler *s, double backoff)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.backoff = backoff;
    return change(s, "lks_scaler_set_backoff_factor", &next);
}

lks_status lks_scaler_set_growth_interval(lks_scaler *s, int64_t interval)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.interval = interval;
    return change(s, "lks_scaler_set_growth_interval", &next);
}

lks_status lks_scaler_set_bounds(lks_scaler *s, double floor, double ceiling)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.floor = floor;
    next.ceiling = ceiling;
    return change(s, "lks_scaler_set_bounds", &next);
}

lks_status lks_scaler_set_floor_limit(lks_scaler *s, int64_t skips)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.floor_limit = skips;
    return change(s, "lks_scaler_set_floor_limit", &next);
}

lks_status lks_scaler_set_hysteresis(lks_scaler *s, int64_t skips)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.hysteresis = skips;
    return change(s, "lks_scaler_set_hysteresis", &next);
}

lks_status lks_scaler_set_dynamic(lks_scaler *s, int on)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state next = s->set;
    next.fixed = !on;
    return change(s, "lks_scaler_set_dynamic", &next);
}

/* Scaled gradients that no step has used yet would be taken for those of another scale. */
static lks_status pending(lks_scaler *s, const char *where)
{
    if (!s->enabled || (!s->scaled && !s->recorded)) return LKS_OK;
    return lksi_fail(
        &s->ctx->base, LKS_ERR_STATE, where,
        "gradients scaled by the present scale are pending (%s was called): call lks_scaler_update first",
        s->recorded ? "lks_optim_step or lks_optim_unscale" : "lks_scaler_scale");
}

lks_status lks_scaler_set_scale(lks_scaler *s, double scale)
{
    LKSI_GUARD;
    static const char where[] = "lks_scaler_set_scale";
    if (!s) return LKS_ERR_ARGUMENT;
    char text[200];
    if (bad_scale(scale, s->set.floor, s->set.ceiling, text, sizeof text))
        return lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, where, "%s", text);
    TRY(pending(s, where));
    float f = (float)scale;
    if (s->enabled) TRY(lksi_device_write(s->ctx->dev, &s->dev->scale, &f, sizeof f));
    s->set.scale = f;
    new_scale(s);
    return LKS_OK;
}

/* --- the iteration --- */

lks_tensor *lks_scaler_scale(lks_scaler *s, lks_tensor *loss)
{
    if (!s || !s->enabled || !loss || loss == lks_none) return loss;
    if (loss->ctx != s->ctx) {
        lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, "lks_scaler_scale",
                  "loss belongs to another context than the scaler");
        return NULL;
    }
    if (!lks_dtype_is_float(loss->v.dtype)) {
        lksi_fail(&s->ctx->base, LKS_ERR_DTYPE, "lks_scaler_scale", "loss is %s; it must be floating",
                  lks_dtype_name(loss->v.dtype));
        return NULL;
    }
    int reduced = loss->v.dtype == LKS_F16 || loss->v.dtype == LKS_BF16;
    lksi_autocast_suspend(s->ctx); /* the product is made in float32 whatever the policy of mul is */
    lks_tensor *y = lks_mul(reduced ? lks_to(loss, LKS_F32) : loss, s->scale);
    lksi_autocast_resume(s->ctx);
    if (y && y->node) { /* no gradient will come of it under no_grad */
        y->node->scale = s->number;
        s->scaled = 1;
    }
    return y;
}

lks_status lks_scaler_scale_n(lks_scaler *s, int n, lks_tensor *const *loss, lks_tensor **scaled)
{
    if (!s || n < 0 || (n && (!loss || !scaled))) return LKS_ERR_ARGUMENT;
    for (int i = 0; i < n; i++) {
        scaled[i] = loss[i] ? lks_scaler_scale(s, loss[i]) : NULL;
        if (scaled[i]) continue;
        for (int k = i; k < n; k++) scaled[k] = NULL;
        return s->ctx->base.code ? s->ctx->base.code : LKS_ERR_ARGUMENT;
    }
    return LKS_OK;
}

/* The row that ends an iteration. given: absent, or the new scale. */
static lks_status advance(lks_scaler *s, const char *where, int what, lks_tensor *given, double value)
{
    int64_t bytes = sizeof *s->dev;
    lksi_view out;
    lksi_view_init(&out, LKS_U8, 1, &bytes);
    out.data = s->dev;
    lksi_attr attr = {.raw = {.i = {what}, .f = {value}}};
    TRY(lksi_call_raw(s->ctx, where, LKSI_OP_scaler_update, given ? 1 : 0, given ? &given->v : NULL, &attr, 1, &out));
    if (what == LKSI_SCALER_HOLD || (s->set.fixed && what != LKSI_SCALER_SET)) new_round(s);
    else new_scale(s);
    return LKS_OK;
}

static lks_status something(lks_scaler *s, const char *where)
{
    if (s->recorded) return LKS_OK;
    return lksi_fail(&s->ctx->base, LKS_ERR_STATE, where,
                     "no lks_optim_step or lks_optim_unscale with this scaler since the last %s",
                     s->at ? "lks_scaler_update_n" : "lks_scaler_update");
}

static lks_status outside_window(lks_scaler *s, const char *where)
{
    if (!s->at) return LKS_OK;
    return lksi_fail(&s->ctx->base, LKS_ERR_STATE, where,
                     "a window of lks_scaler_update_n is open (%lld of %lld iterations): go on with that until it ends",
                     (long long)s->at, (long long)s->window);
}

lks_status lks_scaler_update(lks_scaler *s)
{
    static const char where[] = "lks_scaler_update";
    if (!s) return LKS_ERR_ARGUMENT;
    if (!s->enabled) return LKS_OK;
    TRY(something(s, where));
    TRY(outside_window(s, where));
    return advance(s, where, LKSI_SCALER_STEP, NULL, 0);
}

lks_status lks_scaler_update_n(lks_scaler *s, int64_t n)
{
    static const char where[] = "lks_scaler_update_n";
    if (!s) return LKS_ERR_ARGUMENT;
    if (n < 1)
        return lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, where, "the window is %lld; it must be >= 1", (long long)n);
    if (!s->enabled) return LKS_OK;
    TRY(something(s, where));
    if (s->at && !s->window) s->window = n; /* loaded */
    if (s->at && s->window != n)
        return lksi_fail(&s->ctx->base, LKS_ERR_STATE, where,
                         "the window is %lld, but one of %lld is open (%lld iterations so far)", (long long)n,
                         (long long)s->window, (long long)s->at);
    int ends = s->at + 1 >= n;
    TRY(advance(s, where, ends ? LKSI_SCALER_WINDOW : LKSI_SCALER_HOLD, NULL, 0));
    s->window = n;
    s->at = ends ? 0 : s->at + 1;
    return LKS_OK;
}

/* A new scale ends the iteration; one that begins with scaled gradients and no step would lose its contract. */
static lks_status may_set(lks_scaler *s, const char *where)
{
    if (s->scaled && !s->recorded) return pending(s, where);
    return LKS_OK;
}

lks_status lks_scaler_update_to(lks_scaler *s, double scale)
{
    LKSI_GUARD;
    static const char where[] = "lks_scaler_update_to";
    if (!s) return LKS_ERR_ARGUMENT;
    char text[200];
    if (bad_scale(scale, s->set.floor, s->set.ceiling, text, sizeof text))
        return lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, where, "%s", text);
    if (!s->enabled) return LKS_OK;
    TRY(may_set(s, where));
    TRY(advance(s, where, LKSI_SCALER_SET, NULL, scale));
    s->at = 0;
    return LKS_OK;
}

lks_status lks_scaler_update_from(lks_scaler *s, lks_tensor *scale)
{
    static const char where[] = "lks_scaler_update_from";
    if (!s || !scale || scale == lks_none) return LKS_ERR_ARGUMENT;
    lksi_base *b = &s->ctx->base;
    char text[256];
    if (scale->ctx != s->ctx)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the tensor belongs to another context than the scaler");
    if (scale->numel != 1 || (scale->v.dtype != LKS_F32 && scale->v.dtype != LKS_F64))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the scale is %s; needed is one float32 or float64",
                         lksi_tensor_text(scale, text, sizeof text));
    if (scale->requires_grad)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the scale requires a gradient; pass lks_detach of it");
    if (!s->enabled) return LKS_OK;
    TRY(may_set(s, where));
    TRY(advance(s, where, LKSI_SCALER_SET, scale, 0));
    s->at = 0;
    return LKS_OK;
}

static lks_status read_state(lks_scaler *s, lksi_scaler_state *x)
{
    return lksi_device_read(s->ctx->dev, x, s->dev, sizeof *x);
}

lks_status lks_scaler_get(lks_scaler *s, double *scale, int64_t *tracker)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state x = {.scale = 1};
    if (s->enabled) TRY(read_state(s, &x));
    if (scale) *scale = (double)x.scale;
    if (tracker) *tracker = x.tracker;
    return LKS_OK;
}

lks_status lks_scaler_counts(lks_scaler *s, int64_t *good, int64_t *bad)
{
    if (!s) return LKS_ERR_ARGUMENT;
    lksi_scaler_state x = {0};
    if (s->enabled) TRY(read_state(s, &x));
    if (good) *good = x.good;
    if (bad) *bad = x.bad;
    return LKS_OK;
}

/* --- save and load --- */

static lks_status at_rest(lks_scaler *s, const char *where)
{
    if (!s->recorded) return LKS_OK;
    return lksi_fail(
        &s->ctx->base, LKS_ERR_STATE, where,
        "lks_optim_step or lks_optim_unscale was called since the last lks_scaler_update: call that first");
}

static lks_status read_saved(lks_scaler *s, const char *where, lksi_scaler_saved *saved)
{
    *saved = (lksi_scaler_saved){0};
    if (!s->enabled) return LKS_OK;
    TRY(at_rest(s, where));
    lksi_scaler_state x;
    TRY(read_state(s, &x));
    *saved = (lksi_scaler_saved){.credit = x.credit,
                                 .sticky = x.sticky,
                                 .strikes = x.strikes,
                                 .hysteresis = x.hysteresis,
                                 .fixed = x.fixed,
                                 .window_at = s->at,
                                 .enabled = 1,
                                 .scale_bits = lksi_bits_f32(x.scale),
                                 .tracker = x.tracker,
                                 .good = x.good,
                                 .bad = x.bad,
                                 .floor_skips = x.floor_skips,
                                 .growth = x.growth,
                                 .backoff = x.backoff,
                                 .floor = x.floor,
                                 .ceiling = x.ceiling,
                                 .interval = x.interval,
                                 .floor_limit = x.floor_limit};
    return LKS_OK;
}

lks_status lksi_scaler_read(lks_scaler *s, lksi_scaler_saved *saved)
{
    return read_saved(s, "lks_scaler_save", saved);
}

static lksi_scaler_state settings_of(const lksi_scaler_saved *saved)
{
    return (lksi_scaler_state){
        .growth = saved->growth, .backoff = saved->backoff, .floor = saved->floor, .ceiling = saved->ceiling,
        .interval = saved->interval, .floor_limit = saved->floor_limit, .hysteresis = saved->hysteresis,
        .fixed = saved->fixed};
}

#define COUNT_MAX (INT64_C(1) << 62) /* none counts so far */

static lks_status check(lks_scaler *s, const char *where, const lksi_scaler_saved *saved, int policy)
{
    LKSI_GUARD;
    lksi_base *b = &s->ctx->base;
    if (policy != LKS_STATE_REFUSE && policy != LKS_STATE_ADOPT && policy != LKS_STATE_KEEP)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "policy %d is not one of enum lks_state_policy", policy);
    if (!s->enabled) return LKS_OK;
    if (!saved->enabled)
        return lksi_fail(b, LKS_ERR_MISMATCH, where,
                         "there is no scaler state: it was saved by a disabled scaler, and this one is enabled");
    lksi_scaler_state file = settings_of(saved), *mine = &s->set;
    char text[200];
    float scale = lksi_float_f32(saved->scale_bits);
    if (bad_settings(&file, text, sizeof text)) return lksi_fail(b, LKS_ERR_CORRUPT, where, "saved %s", text);
    if (!lksi_is_finite_f32(scale) || !(scale > 0))
        return lksi_fail(b, LKS_ERR_CORRUPT, where, "saved scale is %g", (double)scale);
    double floor = policy == LKS_STATE_KEEP ? mine->floor : file.floor;
    double ceiling = policy == LKS_STATE_KEEP ? mine->ceiling : file.ceiling;
    double taken = (double)scale < floor ? floor : (double)scale > ceiling ? ceiling : (double)scale;
    if (bad_scale(taken, 0, INFINITY, text, sizeof text))
        return lksi_fail(b, LKS_ERR_CORRUPT, where, "saved %s", text);
    if (saved->credit < 0 || saved->strikes < 0 || saved->window_at < 0 || saved->sticky < 0 || saved->sticky > 1 ||
        saved->fixed < 0 || saved->fixed > 1)
        return lksi_fail(b, LKS_ERR_CORRUPT, where, "the saved window is impossible");
    if (saved->tracker < 0 || saved->good < 0 || saved->bad < 0 || saved->floor_skips < 0)
        return lksi_fail(b, LKS_ERR_CORRUPT, where, "a saved counter is negative (tracker %lld)",
                         (long long)saved->tracker);
    if (saved->tracker > COUNT_MAX || saved->good > COUNT_MAX || saved->bad > COUNT_MAX ||
        saved->floor_skips > COUNT_MAX || saved->credit > COUNT_MAX || saved->strikes > COUNT_MAX ||
        saved->window_at > COUNT_MAX)
        return lksi_fail(b, LKS_ERR_CORRUPT, where, "a saved counter is beyond 2^62 (tracker %lld)",
                         (long long)saved->tracker);
    if (policy != LKS_STATE_REFUSE) return LKS_OK;
    const struct { const char *name; double file, program; } number[] = {
        {"growth factor", file.growth, mine->growth},
        {"backoff factor", file.backoff, mine->backoff},
        {"growth interval", (double)file.interval, (double)mine->interval},
        {"floor", file.floor, mine->floor},
        {"ceiling", file.ceiling, mine->ceiling},
        {"floor limit", (double)file.floor_limit, (double)mine->floor_limit},
        {"hysteresis", (double)file.hysteresis, (double)mine->hysteresis},
        {"static scale", (double)file.fixed, (double)mine->fixed},
    };
    for (int i = 0; i < (int)(sizeof number / sizeof number[0]); i++)
        if (number[i].file != number[i].program)
            return lksi_fail(
                b, LKS_ERR_MISMATCH, where,
                "%s: saved %.17g, program %.17g (LKS_STATE_ADOPT takes the saved schedule, LKS_STATE_KEEP the "
                "program's)",
                number[i].name, number[i].file, number[i].program);
    return LKS_OK;
}

static lks_status write_saved(lks_scaler *s, const char *where, const lksi_scaler_saved *saved, int policy)
{
    LKSI_GUARD;
    TRY(check(s, where, saved, policy));
    if (!s->enabled) return LKS_OK;
    TRY(pending(s, where));
    lksi_scaler_state x = policy == LKS_STATE_KEEP ? s->set : settings_of(saved);
    x.scale = lksi_float_f32(saved->scale_bits);
    if (x.scale < x.floor) x.scale = (float)x.floor;
    if (x.scale > x.ceiling) x.scale = (float)x.ceiling;
    x.pending = 0;
    x.tracker = saved->tracker;
    x.good = saved->good;
    x.bad = saved->bad;
    x.floor_skips = saved->floor_skips;
    x.credit = saved->credit;
    x.sticky = saved->sticky;
    x.strikes = saved->strikes;
    TRY(lksi_device_write(s->ctx->dev, s->dev, &x, sizeof x));
    s->set = x;
    new_scale(s);
    s->at = saved->window_at;
    s->window = 0;
    return LKS_OK;
}

lks_status lksi_scaler_check(lks_scaler *s, const lksi_scaler_saved *saved, int policy)
{
    return check(s, "lks_scaler_load", saved, policy);
}

lks_status lksi_scaler_write(lks_scaler *s, const lksi_scaler_saved *saved, int policy)
{
    return write_saved(s, "lks_scaler_load", saved, policy);
}

void lksi_hex_float(char *text, int bytes, double x)
{
    LKSI_GUARD;
    int e = 0;
    if (isinf(x)) { /* a ceiling that was lifted */
        snprintf(text, (size_t)bytes, "inf");
        return;
    }
    long long m = (long long)ldexp(frexp(x < 0 ? -x : x, &e), 53);
    for (e -= 53; m && m % 2 == 0; m /= 2) e++;
    snprintf(text, (size_t)bytes, "%s0x%llxp%d", x < 0 ? "-" : "", m, m ? e : 0);
}

/* After "KEY=" in the line; moves nothing when the key is not next. */
static int key(const char **at, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(*at, name, n) || (*at)[n] != '=') return 0;
    *at += n + 1;
    return 1;
}

static int end_of_value(const char **at, const char *end)
{
    if (end == *at || (*end != ' ' && *end != 0)) return 0;
    *at = *end ? end + 1 : end;
    return 1;
}

static int get_float(const char **at, const char *name, double *x)
{
    if (!key(at, name)) return 0;
    if (!strncmp(*at, "inf", 3)) {
        *x = INFINITY;
        return end_of_value(at, *at + 3);
    }
    if (strncmp(*at, "0x", 2)) return 0;
    char *p, *end;
    unsigned long long m = strtoull(*at, &p, 16);
    if (p == *at + 2 || *p != 'p' || m > 1ull << 53 || (p[1] != '-' && (p[1] < '0' || p[1] > '9'))) return 0;
    long e = strtol(p + 1, &end, 10);
    if (end == p + 1 || e < -2000 || e > 2000) return 0;
    *x = ldexp((double)m, (int)e);
    return end_of_value(at, end);
}

static int get_int(const char **at, const char *name, int64_t *x)
{
    if (!key(at, name)) return 0;
    char *end;
    errno = 0;
    if (**at != '-' && (**at < '0' || **at > '9')) return 0;
    *x = strtoll(*at, &end, 10);
    if (errno) return 0;
    return end_of_value(at, end);
}

#define TAG "lockstep-scaler-2 "

lks_status lks_scaler_save_text(lks_scaler *s, char *text, int bytes)
{
    LKSI_GUARD;
    static const char where[] = "lks_scaler_save_text";
    if (!s) return LKS_ERR_ARGUMENT;
    if (!text || bytes < 1024)
        return lksi_fail(&s->ctx->base, LKS_ERR_ARGUMENT, where, "the text needs 1024 bytes, there are %d", bytes);
    lksi_scaler_saved x;
    TRY(read_saved(s, where, &x));
    if (!x.enabled) {
        snprintf(text, (size_t)bytes, TAG "disabled");
        return LKS_OK;
    }
    char scale[32], growth[32], backoff[32], floor[32], ceiling[32];
    lksi_hex_float(scale, sizeof scale, (double)lksi_float_f32(x.scale_bits));
    lksi_hex_float(growth, sizeof growth, x.growth);
    lksi_hex_float(backoff, sizeof backoff, x.backoff);
    lksi_hex_float(floor, sizeof floor, x.floor);
    lksi_hex_float(ceiling, sizeof ceiling, x.ceiling);
    snprintf(text, (size_t)bytes,
             TAG
             "scale=%s tracker=%lld growth=%s backoff=%s interval=%lld floor=%s ceiling=%s floor_limit=%lld good=%lld "
             "bad=%lld floor_skips=%lld hysteresis=%lld fixed=%lld credit=%lld sticky=%lld strikes=%lld window_at=%lld",
             scale, (long long)x.tracker, growth, backoff, (long long)x.interval, floor, ceiling,
             (long long)x.floor_limit, (long long)x.good, (long long)x.bad, (long long)x.floor_skips,
             (long long)x.hysteresis, (long long)x.fixed, (long long)x.credit, (long long)x.sticky,
             (long long)x.strikes, (long long)x.window_at);
    return LKS_OK;
}

lks_status lks_scaler_load_text(lks_scaler *s, const char *text, int policy)
{
    LKSI_GUARD;
    static const char where[] = "lks_scaler_load_text";
    if (!s) return LKS_ERR_ARGUMENT;
    if (!text || strncmp(text, TAG, strlen(TAG)))
        return lksi_fail(&s->ctx->base, LKS_ERR_CORRUPT, where, "this is no scaler state: \"%.60s\"", text ? text : "");
    lksi_scaler_saved x = {0};
    const char *at = text + strlen(TAG);
    if (strcmp(at, "disabled")) {
        double scale = 0;
        x.enabled = 1;
        int good = get_float(&at, "scale", &scale) && get_int(&at, "tracker", &x.tracker) &&
                   get_float(&at, "growth", &x.growth) && get_float(&at, "backoff", &x.backoff) &&
                   get_int(&at, "interval", &x.interval) && get_float(&at, "floor", &x.floor) &&
                   get_float(&at, "ceiling", &x.ceiling) && get_int(&at, "floor_limit", &x.floor_limit) &&
                   get_int(&at, "good", &x.good) && get_int(&at, "bad", &x.bad) &&
                   get_int(&at, "floor_skips", &x.floor_skips) && get_int(&at, "hysteresis", &x.hysteresis) &&
                   get_int(&at, "fixed", &x.fixed) && get_int(&at, "credit", &x.credit) &&
                   get_int(&at, "sticky", &x.sticky) && get_int(&at, "strikes", &x.strikes) &&
                   get_int(&at, "window_at", &x.window_at) && *at == 0;
        if (!good || (double)(float)scale != scale)
            return lksi_fail(&s->ctx->base, LKS_ERR_CORRUPT, where, "damaged scaler state: \"%.200s\"", text);
        x.scale_bits = lksi_bits_f32((float)scale);
    }
    return write_saved(s, where, &x, policy);
}
