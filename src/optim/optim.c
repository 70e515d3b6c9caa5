/* SPDX-License-Identifier: BSD-3-Clause
 *
 * optim.c - optimizers: settings, the order of a step, what happened, state for checkpoints. The arithmetic is in
 * table/step.h and in the kernels of ops_step.def; after creation nothing here reads the device in a step.
 */
#include "optim/optim.h"
#include "base/guard.h"

#include "comm/comm.h"
#include "dispatch/dispatch.h"
#include "scaler/scaler.h"
#include "table/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)LKSI_STEP_SGD == (int)LKS_SGD && (int)LKSI_STEP_ADAM == (int)LKS_ADAM &&
                   (int)LKSI_STEP_ADAMW == (int)LKS_ADAMW && (int)LKSI_STEP_RMSPROP == (int)LKS_RMSPROP &&
                   (int)LKSI_STEP_ADAGRAD == (int)LKS_ADAGRAD && (int)LKSI_STEP_LAMB == (int)LKS_LAMB &&
                   (int)LKSI_STEP_LARS == (int)LKS_LARS,
               "kinds");
_Static_assert((int)LKSI_LR_CONSTANT == (int)LKS_SCHEDULE_CONSTANT && (int)LKSI_LR_LINEAR == (int)LKS_SCHEDULE_LINEAR &&
                   (int)LKSI_LR_COSINE == (int)LKS_SCHEDULE_COSINE && (int)LKSI_LR_STEP == (int)LKS_SCHEDULE_STEP &&
                   (int)LKSI_LR_WSD == (int)LKS_SCHEDULE_WSD && (int)LKSI_LR_TABLE == (int)LKS_SCHEDULE_TABLE,
               "schedules");
_Static_assert((int)LKSI_RAN == (int)LKS_STEPPED && (int)LKSI_SKIPPED_HERE == (int)LKS_SKIPPED_HERE &&
                   (int)LKSI_SKIPPED_ELSEWHERE == (int)LKS_SKIPPED_ELSEWHERE && (int)LKSI_NOTHING == (int)LKS_NOTHING,
               "outcomes");

enum state { READY, UNSCALED, STEPPED };

#define STATES 3 /* per-element state of a kind, in the order of its row's outputs */
#define MASTER 3
#define AVERAGE 4
#define BLOCKS 5 /* of one arena */
#define UPLOAD 4096 /* an upload of at most this is queued without a wait */

struct lks_optim {
    lks_context *ctx;
    lks_params *ps;
    lksi_settings set;
    lksi_group *group;
    int groups;
    int *group_of;  /* per entry of the set */
    int dirty;      /* settings or groups are newer than the device's */
    int layout;     /* ps->layout_version of the segments on the device; -1: none yet */
    /* Segments: the parameters, arena by arena in the order of their slices. */
    int segments;
    lksi_segment *seg;
    int *entry;               /* per segment: index in the set */
    int first[LKSI_ARENAS + 1];       /* first segment of an arena */
    int64_t part[LKSI_ARENAS + 1];    /* first part (chunk) of an arena */
    int32_t *has;             /* as on the device */
    int has_valid;
    int64_t *master_version;  /* per segment: of the value that its master belongs to */
    /* device */
    lksi_settings *dev_set;
    lksi_group *dev_group;
    lksi_segment *dev_seg;
    int32_t *dev_has, *dev_vec;
    lksi_part *dev_part;
    lksi_step *dev_step;
    lksi_segment_step *dev_segment_step;
    lksi_piece *dev_piece; /* LAMB, LARS */
    double *dev_table;     /* the program's schedule */
    int amsgrad, centered, underflow;
    char *block[LKSI_ARENAS][BLOCKS];
    /* order of calls */
    char *aside[LKSI_ARENAS]; /* the values while the averages stand in their place */
    int swapped;
    int state;
    const lks_scaler *with; /* the scaler of that state, and its round */
    int64_t round, window;
    int64_t attempts, before; /* attempts made; those before the last load or creation cannot be asked about */
    int64_t told;             /* the last attempt whose record was queued; later ones are in a graph being captured */
    lksi_record *ring;        /* host memory of the backend: written by queued copies */
    lksi_event *event[LKSI_STEP_RING];
    char *text;
    int64_t text_bytes;
    lksi_mover mover;
};

/* --- views --- */

static const lksi_view none = {.data = NULL, .dtype = LKS_DTYPE_NONE, .ndim = -1};

/* NULL data: absent. */
static lksi_view flat(const void *data, lks_dtype dtype, int64_t n)
{
    lksi_view v = none;
    if (!data) return v;
    lksi_view_init(&v, dtype, 1, &n);
    v.data = (void *)(uintptr_t)data;
    return v;
}

static lksi_view bytes_of(const void *data, int64_t n)
{
    return flat(data, LKS_U8, n);
}

static lks_dtype state_dtype(int arena)
{
    return arena == LKS_F64 ? LKS_F64 : LKS_F32;
}

static int reduced(int arena)
{
    return arena == LKS_F16 || arena == LKS_BF16;
}

/* --- creation --- */

/* Zeroed device memory; *where (a pointer of any type) is set when all went well. */
static lks_status device_new(lks_context *ctx, int64_t bytes, void *where)
{
    void *p = NULL;
    TRY(lksi_device_alloc(ctx->dev, bytes, &p));
    lks_status s = lksi_device_zero(ctx->dev, p, bytes);
    if (s == LKS_OK) memcpy(where, &p, sizeof p);
    else lksi_device_free(ctx->dev, p);
    return s;
}

static lks_status block_new(lks_optim *opt, int arena, int which)
{
    if (opt->block[arena][which]) return LKS_OK;
    return device_new(opt->ctx, opt->ps->arena[arena]->count * lks_dtype_size(state_dtype(arena)),
                      &opt->block[arena][which]);
}

static lks_status blocks_new(lks_optim *opt, int which)
{
    for (int k = 0; k < LKSI_ARENAS; k++)
        if (opt->ps->arena[k]) TRY(block_new(opt, k, which));
    return LKS_OK;
}

/* Renews the masters of segments whose value was written by somebody else. */
static lks_status masters_follow(lks_optim *opt, const char *where)
{
    for (int k = 0; k < LKSI_ARENAS; k++) {
        if (!reduced(k) || !opt->ps->arena[k]) continue;
        const lksi_arena *a = opt->ps->arena[k];
        for (int i = 0; i < a->slices; i++) {
            const lksi_slice *s = &a->slice[i];
            int64_t *seen = &opt->master_version[opt->first[k] + i];
            if (*seen == s->value->st->version) continue;
            lksi_view src = flat(a->value + s->offset * 2, k, s->numel);
            lksi_view dst = flat(opt->block[k][MASTER] + s->offset * (int64_t)sizeof(float), LKS_F32, s->numel);
            if (s->numel) TRY(lksi_call_raw(opt->ctx, where, LKSI_OP_copy, 1, &src, NULL, 1, &dst));
            *seen = s->value->st->version;
        }
    }
    return LKS_OK;
}

static void masters_agree(lks_optim *opt)
{
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = opt->first[k]; i < opt->first[k + 1]; i++)
            opt->master_version[i] = opt->ps->arena[k]->slice[i - opt->first[k]].value->st->version;
}

/* State blocks that a kind always has. */
static int states_of(int kind)
{
    switch (kind) {
    case LKSI_STEP_SGD:
    case LKSI_STEP_LARS: return 0;
    case LKSI_STEP_RMSPROP:
    case LKSI_STEP_ADAGRAD: return 1;
    default: return 2;
    }
}

static int layerwise(const lks_optim *opt)
{
    return opt->set.kind == LKSI_STEP_LAMB || opt->set.kind == LKSI_STEP_LARS;
}

/* SGD and LARS. */
static int with_momentum(const lks_optim *opt)
{
    return opt->set.kind == LKSI_STEP_SGD || opt->set.kind == LKSI_STEP_LARS;
}

/* Adam, AdamW, LAMB. */
static int with_betas(const lks_optim *opt)
{
    return states_of(opt->set.kind) == 2;
}

static lks_status lay_out(lks_optim *opt)
{
    lks_context *ctx = opt->ctx;
    lks_params *ps = opt->ps;
    lksi_base *b = &ctx->base;
    int n = 0;
    int64_t parts = 0;
    for (int k = 0; k < LKSI_ARENAS; k++) {
        const lksi_arena *a = ps->arena[k];
        opt->first[k] = n;
        opt->part[k] = parts;
        if (!a) continue;
        n += a->slices;
        parts += (a->count + LKSI_STEP_CHUNK - 1) / LKSI_STEP_CHUNK;
    }
    opt->first[LKSI_ARENAS] = opt->segments = n;
    opt->part[LKSI_ARENAS] = parts;
    opt->seg = lksi_alloc(b, n * (int64_t)sizeof *opt->seg);
    opt->entry = lksi_alloc(b, n * (int64_t)sizeof *opt->entry);
    opt->has = lksi_alloc(b, n * (int64_t)sizeof *opt->has);
    opt->master_version = lksi_alloc(b, n * (int64_t)sizeof *opt->master_version);
    opt->group_of = lksi_alloc(b, ps->n * (int64_t)sizeof *opt->group_of);
    opt->group = lksi_alloc(b, sizeof *opt->group);
    if (!opt->seg || !opt->entry || !opt->has || !opt->master_version || !opt->group_of || !opt->group)
        return LKS_ERR_MEMORY;
    for (int i = 0; i < ps->n; i++) {
        const lksi_entry *e = &ps->e[i];
        if (!e->is_buffer) opt->entry[opt->first[e->arena] + e->slice] = i;
    }
    for (int i = 0; i < n; i++) opt->master_version[i] = -1;
    TRY(device_new(ctx, sizeof *opt->dev_set, &opt->dev_set));
    TRY(device_new(ctx, sizeof *opt->dev_group, &opt->dev_group));
    TRY(device_new(ctx, n * (int64_t)sizeof *opt->dev_seg, &opt->dev_seg));
    TRY(device_new(ctx, n * (int64_t)sizeof *opt->dev_has, &opt->dev_has));
    TRY(device_new(ctx, (LKSI_VEC_PRESENT + n) * (int64_t)sizeof *opt->dev_vec, &opt->dev_vec));
    TRY(device_new(ctx, parts * (int64_t)sizeof *opt->dev_part, &opt->dev_part));
    TRY(device_new(ctx, sizeof *opt->dev_step, &opt->dev_step));
    TRY(device_new(ctx, n * (int64_t)sizeof *opt->dev_segment_step, &opt->dev_segment_step));
    for (int i = 0; i < states_of(opt->set.kind); i++) TRY(blocks_new(opt, i));
    if (layerwise(opt))
        TRY(device_new(ctx, (parts + n) * (int64_t)sizeof *opt->dev_piece, &opt->dev_piece));
    for (int k = 0; k < LKSI_ARENAS; k++)
        if (ps->arena[k] && reduced(k)) TRY(block_new(opt, k, MASTER));
    TRY(masters_follow(opt, "lks_optim_create"));
    void *ring = NULL;
    lks_status s = ctx->dev->be->host_alloc(ctx->dev->self, LKSI_STEP_RING * (int64_t)sizeof *opt->ring, &ring);
    if (s != LKS_OK) return lksi_fail(b, s, "lks_optim_create", "no host memory for the reports");
    opt->ring = ring;
    for (int i = 0; i < LKSI_STEP_RING; i++)
        if ((s = ctx->dev->be->event_create(ctx->dev->self, &opt->event[i])) != LKS_OK)
            return lksi_fail(b, s, "lks_optim_create", "no event");
    return LKS_OK;
}

/* What steps move. */
static void list(void *self, lksi_moves *m)
{
    lks_optim *opt = self;
    lksi_fact(m, opt->groups);
    lksi_fact(m, opt->layout - opt->ps->layout_version);
    lksi_fact(m, opt->dirty | opt->has_valid << 1 | opt->amsgrad << 2 | opt->centered << 3 | opt->underflow << 4 |
                     opt->swapped << 5 | opt->state << 8);
    lksi_fact_at(m, opt->with);
    lksi_fact_at(m, opt->dev_table);
    lksi_fact_at(m, opt->dev_group);
    lksi_fact(m, opt->set.entries);
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = 0; i < BLOCKS; i++) lksi_fact_at(m, opt->block[k][i]);
    lksi_counter(m, &opt->attempts);
    lksi_counter(m, &opt->round);
    lksi_stamp(m, &opt->window, opt->ps->window);
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = 0; opt->ps->arena[k] && i < opt->ps->arena[k]->slices; i++)
            lksi_stamp(m, &opt->master_version[opt->first[k] + i], opt->ps->arena[k]->slice[i].value->st->version);
}

static lks_status settings(lks_optim *opt);
static lks_status remember(lks_optim *opt, const char *where);

static lks_status before_step(void *self)
{
    return settings(self);
}

static lks_status after_step(void *self)
{
    return remember(self, "lks_graph_step");
}

lks_status lks_optim_create(lks_params *ps, int kind, lks_optim **out)
{
    static const char where[] = "lks_optim_create";
    if (!ps || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_context *ctx = ps->ctx;
    if (kind < LKS_SGD || kind > LKS_LARS)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "kind %d is not one of enum lks_optim_kind", kind);
    int parameters = 0;
    for (int i = 0; i < ps->n; i++) parameters += !ps->e[i].is_buffer;
    if (!parameters) return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "the set has no parameters");
    TRY(lks_params_seal(ps));
    lks_optim *opt = lksi_alloc(&ctx->base, sizeof *opt);
    if (!opt) return LKS_ERR_MEMORY;
    opt->ctx = ctx;
    opt->ps = ps;
    opt->layout = -1;
    opt->dirty = 1;
    opt->groups = 1;
    opt->set = (lksi_settings){.kind = kind, .check_finite = 1, .period = 1, .gamma = 1};
    lks_status s = lay_out(opt);
    if (s != LKS_OK) {
        lks_optim_destroy(&opt);
        return s;
    }
    opt->group[0] = (lksi_group){
        .lr = with_betas(opt) ? 0.001 : kind == LKS_LARS ? 0.1 : 0.01,
        .weight_decay = kind == LKS_ADAMW || kind == LKS_LAMB ? 0.01 : 0,
        .beta1 = 0.9,
        .beta2 = kind == LKS_RMSPROP ? 0.99 : 0.999,
        .eps = kind == LKS_ADAGRAD ? 1e-10 : kind == LKS_LAMB ? 1e-6 : 1e-8,
        .trust = 0.001,
        .decoupled = kind == LKS_ADAMW,
    };
    lksi_mover_add(ctx, &opt->mover, opt, list);
    opt->mover.before = before_step;
    opt->mover.after = after_step;
    *out = opt;
    return LKS_OK;
}

void lks_optim_destroy(lks_optim **popt)
{
    if (!popt || !*popt) return;
    lks_optim *opt = *popt;
    lksi_base *b = &opt->ctx->base;
    lksi_device *d = opt->ctx->dev;
    lksi_mover_remove(&opt->mover);
    for (int i = 0; i < LKSI_STEP_RING; i++) {
        if (!opt->event[i]) continue;
        (void)lksi_device_event_wait(d, opt->event[i]); /* the copy into the ring may be under way */
        d->be->event_destroy(d->self, opt->event[i]);
    }
    if (opt->ring) d->be->host_free(d->self, opt->ring, LKSI_STEP_RING * (int64_t)sizeof *opt->ring);
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = 0; i < BLOCKS; i++)
            if (opt->block[k][i]) lksi_device_free(d, opt->block[k][i]);
    for (int k = 0; k < LKSI_ARENAS; k++)
        if (opt->aside[k]) lksi_device_free(d, opt->aside[k]);
    void *device[] = {opt->dev_piece, opt->dev_table, opt->dev_set, opt->dev_group, opt->dev_seg,  opt->dev_has,
                      opt->dev_vec, opt->dev_part,  opt->dev_step, opt->dev_segment_step};
    for (int i = 0; i < (int)(sizeof device / sizeof device[0]); i++)
        if (device[i]) lksi_device_free(d, device[i]);
    void *host[] = {opt->seg, opt->entry, opt->has, opt->master_version, opt->group_of, opt->group, opt->text};
    for (int i = 0; i < (int)(sizeof host / sizeof host[0]); i++) lksi_free(b, host[i]);
    lksi_free(b, opt);
    *popt = NULL;
}

#define KINDS 7
static const char *const kind_name[KINDS] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars"};

int lks_optim_kind_from_name(const char *name)
{
    for (int i = 0; name && i < KINDS; i++)
        if (!strcmp(name, kind_name[i])) return i;
    return LKS_ERR_NOT_FOUND;
}

/* --- settings --- */

int lks_optim_add_group(lks_optim *opt, int n, const int *index)
{
    static const char where[] = "lks_optim_add_group";
    if (!opt) return LKS_ERR_ARGUMENT;
    lksi_base *b = &opt->ctx->base;
    if (opt->attempts)
        return lksi_fail(b, LKS_ERR_STATE, where, "lks_optim_step was called: groups are made before it");
    if (n < 1 || !index) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "a group of %d parameters", n);
    for (int i = 0; i < n; i++) {
        if (index[i] < 0 || index[i] >= opt->ps->n || opt->ps->e[index[i]].is_buffer)
            return lksi_fail(b, LKS_ERR_ARGUMENT, where, "%d is no parameter of the set", index[i]);
        for (int j = 0; j < i; j++)
            if (index[j] == index[i])
                return lksi_fail(b, LKS_ERR_ARGUMENT, where, "parameter %d (\"%s\") is listed twice", index[i],
                                 opt->ps->e[index[i]].name);
    }
    int64_t bytes = opt->groups * (int64_t)sizeof *opt->group;
    lksi_group *more = NULL;
    TRY(device_new(opt->ctx, bytes + (int64_t)sizeof *opt->group, &more));
    lksi_group *g = lksi_realloc(b, opt->group, bytes, bytes + (int64_t)sizeof *g);
    if (!g) {
        lksi_device_free(opt->ctx->dev, more);
        return LKS_ERR_MEMORY;
    }
    lksi_device_free(opt->ctx->dev, opt->dev_group);
    opt->dev_group = more;
    opt->group = g;
    g[opt->groups] = g[0];
    for (int i = 0; i < n; i++) opt->group_of[index[i]] = opt->groups;
    opt->dirty = 1;
    opt->layout = -1;
    return opt->groups++;
}

/* Range of groups that `group` means. */
static lks_status range(lks_optim *opt, const char *where, int group, int *from, int *to)
{
    *from = *to = 0;
    if (!opt) return LKS_ERR_ARGUMENT;
    if (group < -1 || group >= opt->groups)
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "there is no group %d (0 to %d, or -1 for all)",
                         group, opt->groups - 1);
    *from = group < 0 ? 0 : group;
    *to = group < 0 ? opt->groups : group + 1;
    opt->dirty = 1;
    return LKS_OK;
}

static int not_negative(double x)
{
    return x >= 0 && lksi_is_finite_f64(x);
}

lks_status lks_optim_set_lr(lks_optim *opt, int group, double lr)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_lr";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    if (!not_negative(lr)) return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "lr is %g; it must be >= 0", lr);
    for (int g = from; g < to; g++) opt->group[g].lr = lr;
    return LKS_OK;
}

lks_status lks_optim_set_weight_decay(lks_optim *opt, int group, double weight_decay)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_weight_decay";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    if (!not_negative(weight_decay))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "weight decay is %g; it must be >= 0", weight_decay);
    for (int g = from; g < to; g++) opt->group[g].weight_decay = weight_decay;
    return LKS_OK;
}

lks_status lks_optim_set_momentum(lks_optim *opt, int group, double momentum, double dampening, int nesterov)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_momentum";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    lksi_base *b = &opt->ctx->base;
    if (with_betas(opt))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "%s has betas, not momentum", kind_name[opt->set.kind]);
    if (opt->set.kind == LKSI_STEP_ADAGRAD)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "adagrad has no momentum");
    if (opt->set.kind == LKSI_STEP_RMSPROP && (dampening != 0 || nesterov))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "rmsprop has neither dampening nor nesterov");
    if (!not_negative(momentum))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "momentum is %g; it must be >= 0", momentum);
    if (!lksi_is_finite_f64(dampening)) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "dampening is %g", dampening);
    if (nesterov && (momentum == 0 || dampening != 0))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "nesterov needs momentum and no dampening; they are %g and %g",
                         momentum, dampening);
    if (momentum > 0) TRY(blocks_new(opt, opt->set.kind == LKSI_STEP_RMSPROP ? 1 : 0));
    for (int g = from; g < to; g++) {
        opt->group[g].momentum = momentum;
        opt->group[g].dampening = dampening;
        opt->group[g].nesterov = nesterov != 0;
    }
    return LKS_OK;
}

lks_status lks_optim_set_betas(lks_optim *opt, int group, double beta1, double beta2)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_betas";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "betas are %g and %g; both must be in [0, 1)", beta1,
                         beta2);
    for (int g = from; g < to; g++) {
        opt->group[g].beta1 = beta1;
        opt->group[g].beta2 = beta2;
    }
    return LKS_OK;
}

/* range for a setting that one kind of optimizer has. */
static lks_status range_of_kind(lks_optim *opt, const char *where, int group, int kind, const char *what, int *from,
                                int *to)
{
    TRY(range(opt, where, group, from, to));
    if (opt->set.kind == kind) return LKS_OK;
    return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "%s has no %s: it is %s's", kind_name[opt->set.kind],
                     what, kind_name[kind]);
}

lks_status lks_optim_set_alpha(lks_optim *opt, int group, double alpha)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_alpha";
    int from, to;
    TRY(range_of_kind(opt, where, group, LKSI_STEP_RMSPROP, "alpha", &from, &to));
    if (!(alpha >= 0 && alpha < 1))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "alpha is %g; it must be in [0, 1)", alpha);
    for (int g = from; g < to; g++) opt->group[g].beta2 = alpha;
    return LKS_OK;
}

lks_status lks_optim_set_lr_decay(lks_optim *opt, int group, double lr_decay)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_lr_decay";
    int from, to;
    TRY(range_of_kind(opt, where, group, LKSI_STEP_ADAGRAD, "lr_decay", &from, &to));
    if (!not_negative(lr_decay))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "lr_decay is %g; it must be >= 0", lr_decay);
    for (int g = from; g < to; g++) opt->group[g].lr_decay = lr_decay;
    return LKS_OK;
}

lks_status lks_optim_set_trust(lks_optim *opt, int group, double coefficient)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_trust";
    int from, to;
    TRY(range_of_kind(opt, where, group, LKSI_STEP_LARS, "trust coefficient", &from, &to));
    if (!not_negative(coefficient) || coefficient == 0)
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "the trust coefficient is %g; it must be > 0",
                         coefficient);
    for (int g = from; g < to; g++) opt->group[g].trust = coefficient;
    return LKS_OK;
}

lks_status lks_optim_set_decoupled(lks_optim *opt, int group, int on)
{
    static const char where[] = "lks_optim_set_decoupled";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    if (layerwise(opt))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "the weight decay of %s is inside its ratio",
                         kind_name[opt->set.kind]);
    for (int g = from; g < to; g++) opt->group[g].decoupled = on != 0;
    return LKS_OK;
}

/* State that a setting adds: before the first step only, as it would start in the middle otherwise. */
static lks_status more_state(lks_optim *opt, const char *where, int fits, const char *kinds)
{
    if (!opt) return LKS_ERR_ARGUMENT;
    if (!fits)
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "%s does not have it: it goes with %s",
                         kind_name[opt->set.kind], kinds);
    if (opt->attempts)
        return lksi_fail(&opt->ctx->base, LKS_ERR_STATE, where, "lks_optim_step was called: this is set before it");
    return LKS_OK;
}

lks_status lks_optim_set_amsgrad(lks_optim *opt, int on)
{
    TRY(more_state(opt, "lks_optim_set_amsgrad", opt && with_betas(opt), "adam, adamw and lamb"));
    if (on) TRY(blocks_new(opt, 2));
    opt->amsgrad = on != 0;
    return LKS_OK;
}

lks_status lks_optim_set_centered(lks_optim *opt, int on)
{
    TRY(more_state(opt, "lks_optim_set_centered", opt && opt->set.kind == LKSI_STEP_RMSPROP, "rmsprop"));
    if (on) TRY(blocks_new(opt, 2));
    opt->centered = on != 0;
    return LKS_OK;
}

lks_status lks_optim_set_initial_accumulator(lks_optim *opt, double value)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_initial_accumulator";
    TRY(more_state(opt, where, opt && opt->set.kind == LKSI_STEP_ADAGRAD, "adagrad"));
    if (!not_negative(value))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "the accumulator starts at %g; it must be >= 0",
                         value);
    for (int k = 0; k < LKSI_ARENAS; k++) {
        const lksi_arena *a = opt->ps->arena[k];
        if (!a || !a->count) continue;
        lksi_view out = flat(opt->block[k][0], state_dtype(k), a->count);
        lksi_attr attr = {.fill = {value}};
        TRY(lksi_call_raw(opt->ctx, where, LKSI_OP_fill, 0, NULL, &attr, 1, &out));
    }
    return LKS_OK;
}

lks_status lks_optim_set_eps(lks_optim *opt, int group, double eps)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_eps";
    int from, to;
    TRY(range(opt, where, group, &from, &to));
    if (!not_negative(eps))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "eps is %g; it must be >= 0", eps);
    for (int g = from; g < to; g++) opt->group[g].eps = eps;
    return LKS_OK;
}

static lks_status set_clip(lks_optim *opt, const char *where, double value, double *to)
{
    LKSI_GUARD;
    if (!not_negative(value))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "the limit is %g; it must be > 0, or 0 for none",
                         value);
    *to = value;
    opt->dirty = 1;
    return LKS_OK;
}

lks_status lks_optim_set_clip_norm(lks_optim *opt, double max_norm)
{
    return opt ? set_clip(opt, "lks_optim_set_clip_norm", max_norm, &opt->set.clip_norm) : LKS_ERR_ARGUMENT;
}

lks_status lks_optim_set_clip_value(lks_optim *opt, double max_value)
{
    return opt ? set_clip(opt, "lks_optim_set_clip_value", max_value, &opt->set.clip_value) : LKS_ERR_ARGUMENT;
}

lks_status lks_optim_set_check_finite(lks_optim *opt, int on)
{
    if (!opt) return LKS_ERR_ARGUMENT;
    opt->set.check_finite = on != 0;
    opt->dirty = 1;
    return LKS_OK;
}

lks_status lks_optim_set_schedule(lks_optim *opt, int kind, int64_t warmup, int64_t total, double final_factor,
                                  double gamma, int64_t period)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_schedule";
    if (!opt) return LKS_ERR_ARGUMENT;
    lksi_base *b = &opt->ctx->base;
    if (kind < LKS_SCHEDULE_CONSTANT || kind > LKS_SCHEDULE_WSD)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "kind %d is not one of enum lks_schedule%s", kind,
                         kind == LKS_SCHEDULE_TABLE ? " that this call sets (lks_optim_set_schedule_table)" : "");
    if (warmup < 0 || total < 0)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "warmup is %lld, total %lld; both must be >= 0", (long long)warmup,
                         (long long)total);
    if ((kind == LKS_SCHEDULE_LINEAR || kind == LKS_SCHEDULE_COSINE || kind == LKS_SCHEDULE_WSD) &&
        !not_negative(final_factor))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "final factor is %g; it must be >= 0", final_factor);
    if (kind == LKS_SCHEDULE_STEP && (!not_negative(gamma) || period < 1))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "gamma is %g, period %lld; needed are gamma >= 0, period >= 1",
                         gamma, (long long)period);
    if (kind == LKS_SCHEDULE_WSD && (period < 1 || warmup > total - period))
        return lksi_fail(b, LKS_ERR_ARGUMENT, where,
                         "warmup %lld and period %lld (the decay) do not fit into total %lld; needed is period >= 1",
                         (long long)warmup, (long long)period, (long long)total);
    opt->set.schedule = kind;
    opt->set.warmup = warmup;
    opt->set.total = total;
    opt->set.final_factor = final_factor;
    opt->set.gamma = gamma;
    opt->set.period = period;
    opt->dirty = 1;
    return LKS_OK;
}

static lks_status upload(lks_optim *opt, void *to, const void *from, int64_t bytes);

lks_status lks_optim_set_schedule_table(lks_optim *opt, int64_t n, const double *factor)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_schedule_table";
    if (!opt) return LKS_ERR_ARGUMENT;
    lksi_device *d = opt->ctx->dev;
    if (n < 1 || !factor) return lksi_fail(d->base, LKS_ERR_ARGUMENT, where, "a table of %lld factors", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (!not_negative(factor[i]))
            return lksi_fail(d->base, LKS_ERR_ARGUMENT, where, "factor %lld is %g; it must be >= 0", (long long)i,
                             factor[i]);
    double *table = NULL;
    TRY(device_new(opt->ctx, n * (int64_t)sizeof *table, &table));
    lks_status s = upload(opt, table, factor, n * (int64_t)sizeof *table);
    if (s != LKS_OK) {
        lksi_device_free(d, table);
        return s;
    }
    if (opt->dev_table) lksi_device_free(d, opt->dev_table);
    opt->dev_table = table;
    opt->set.schedule = LKSI_LR_TABLE;
    opt->set.entries = n;
    opt->dirty = 1;
    return LKS_OK;
}

lks_status lks_optim_set_underflow_report(lks_optim *opt, int on)
{
    if (!opt) return LKS_ERR_ARGUMENT;
    opt->underflow = on != 0;
    return LKS_OK;
}

/* --- the step --- */

/* Queued, without a wait at any size. */
static lks_status upload(lks_optim *opt, void *to, const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += UPLOAD) {
        int64_t n = bytes - at < UPLOAD ? bytes - at : UPLOAD;
        TRY(lksi_device_write(opt->ctx->dev, (char *)to + at, (const char *)from + at, n));
    }
    return LKS_OK;
}

static lks_status settings(lks_optim *opt)
{
    if (!opt->dirty) return LKS_OK;
    TRY(upload(opt, opt->dev_set, &opt->set, sizeof opt->set));
    TRY(upload(opt, opt->dev_group, opt->group, opt->groups * (int64_t)sizeof *opt->group));
    opt->dirty = 0;
    return LKS_OK;
}

/* Tables that changed since the last step; presence of gradients. *some: this rank has one. */
static lks_status tables(lks_optim *opt, int *some)
{
    const lks_params *ps = opt->ps;
    if (opt->layout != ps->layout_version) {
        for (int k = 0; k < LKSI_ARENAS; k++)
            for (int i = opt->first[k]; i < opt->first[k + 1]; i++) {
                const lksi_slice *s = &ps->arena[k]->slice[i - opt->first[k]];
                opt->seg[i] = (lksi_segment){.offset = s->offset, .numel = s->numel,
                                             .group = opt->group_of[opt->entry[i]],
                                             .trainable = ps->e[opt->entry[i]].trainable};
            }
        TRY(upload(opt, opt->dev_seg, opt->seg, opt->segments * (int64_t)sizeof *opt->seg));
        opt->layout = ps->layout_version;
    }
    TRY(settings(opt));
    int changed = !opt->has_valid;
    *some = 0;
    for (int i = 0; i < opt->segments; i++) {
        int here = lksi_params_present(ps, opt->entry[i]);
        int32_t has = (here ? LKSI_HAS_GRAD : 0) | (here || ps->reducer ? LKSI_READ_GRAD : 0);
        *some |= here;
        changed |= opt->has[i] != has;
        opt->has[i] = has;
    }
    if (changed) {
        opt->has_valid = 0;
        TRY(upload(opt, opt->dev_has, opt->has, opt->segments * (int64_t)sizeof *opt->has));
        opt->has_valid = 1;
    }
    return LKS_OK;
}

/* What the rows need besides the optimizer's own memory. */
typedef struct lksi_pass {
    const char *where;
    lksi_view scaler, weight, here;
    double nominal;
    int unscaled;
} pass;

static lksi_view segment_view(const lks_optim *opt, int first, int n)
{
    return bytes_of(opt->dev_seg + first, n * (int64_t)sizeof *opt->dev_seg);
}

static lksi_view has_view(const lks_optim *opt, int first, int n)
{
    return bytes_of(opt->dev_has + first, n * (int64_t)sizeof *opt->dev_has);
}

static lksi_view step_view(const lks_optim *opt)
{
    return bytes_of(opt->dev_step, sizeof *opt->dev_step);
}

static lksi_view vector_view(const lks_optim *opt)
{
    return bytes_of(opt->dev_vec, (LKSI_VEC_PRESENT + opt->segments) * (int64_t)sizeof *opt->dev_vec);
}

static lksi_view parts_view(const lks_optim *opt)
{
    return bytes_of(opt->dev_part, opt->part[LKSI_ARENAS] * (int64_t)sizeof *opt->dev_part);
}

/* Pass 1 over every arena; write: gradients become unscaled in memory. */
static lks_status stats(lks_optim *opt, const pass *p, int write)
{
    for (int k = 0; k < LKSI_ARENAS; k++) {
        const lksi_arena *a = opt->ps->arena[k];
        if (!a || !a->count) continue;
        int first = opt->first[k], n = opt->first[k + 1] - first;
        lksi_view grad = flat(a->grad, k, a->count);
        lksi_view in[5] = {grad, segment_view(opt, first, n), has_view(opt, first, n), p->scaler, p->weight};
        lksi_view out[2] = {parts_view(opt), write ? grad : none};
        lksi_attr attr = {
            .raw = {.i = {n, p->unscaled, opt->part[k], first, opt->underflow && !p->unscaled}, .f = {p->nominal}}};
        TRY(lksi_call_raw(opt->ctx, p->where, LKSI_OP_grad_stats, 5, in, &attr, 2, out));
    }
    return LKS_OK;
}

/* Builds the vector and reduces it over ranks. failed: 2 puts that in the flag. */
static lks_status agree(lks_optim *opt, const pass *p, int failed)
{
    lks_context *ctx = opt->ctx;
    int n = opt->segments;
    lksi_view in[6] = {parts_view(opt), segment_view(opt, 0, n), has_view(opt, 0, n), p->scaler, p->weight, p->here};
    lksi_view out[2] = {step_view(opt), vector_view(opt)};
    lksi_attr attr = {.raw = {.i = {n, opt->part[LKSI_ARENAS], p->unscaled, failed, ctx->base.rank}}};
    TRY(lksi_call_raw(ctx, p->where, LKSI_OP_step_begin, 6, in, &attr, 2, out));
    if (ctx->base.size > 1) {
        lksi_request *rq = NULL;
        TRY(lksi_comm_all_reduce(ctx->comm, "optimizer flag", opt->dev_vec, LKSI_VEC_PRESENT + n, LKS_I32, LKS_MAX,
                                 &rq));
        TRY(lksi_comm_wait(ctx->comm, &rq));
    }
    lksi_fault_point(&ctx->base, "after-reduce");
    return LKS_OK;
}

static lks_status decide(lks_optim *opt, const pass *p, int only_unscale)
{
    int n = opt->segments;
    lksi_view in[7] = {vector_view(opt), bytes_of(opt->dev_set, sizeof *opt->dev_set),
                       bytes_of(opt->dev_group, opt->groups * (int64_t)sizeof *opt->dev_group), segment_view(opt, 0, n),
                       has_view(opt, 0, n), p->weight, flat(opt->dev_table, LKS_F64, opt->set.entries)};
    lksi_view out[4] = {step_view(opt), bytes_of(opt->dev_segment_step, n * (int64_t)sizeof *opt->dev_segment_step),
                        p->scaler, bytes_of(opt->ctx->rng, sizeof *opt->ctx->rng)};
    lksi_attr attr = {.raw = {.i = {n, opt->groups, p->unscaled, only_unscale}, .f = {p->nominal}}};
    return lksi_call_raw(opt->ctx, p->where, LKSI_OP_step_decide, 7, in, &attr, 4, out);
}

/* Counts the write of an arena's values; masters that belonged to them still do. */
static void touched(lks_optim *opt, int arena)
{
    lksi_arena *a = opt->ps->arena[arena];
    int64_t *seen = opt->master_version + opt->first[arena];
    for (int i = 0; i < a->slices; i++) seen[i] -= a->slice[i].value->st->version;
    lksi_arena_touched(a, 1);
    for (int i = 0; i < a->slices; i++) seen[i] += a->slice[i].value->st->version;
}

/* What per-element state belongs to: the value, or its master. */
static lksi_view full_value(const lks_optim *opt, int k)
{
    const lksi_arena *a = opt->ps->arena[k];
    return reduced(k) ? flat(opt->block[k][MASTER], LKS_F32, a->count) : flat(a->value, k, a->count);
}

static lksi_view segment_steps(const lks_optim *opt, int first, int n)
{
    return bytes_of(opt->dev_segment_step + first, n * (int64_t)sizeof *opt->dev_segment_step);
}

/* Ratios of LAMB and LARS. */
static lks_status trust(lks_optim *opt, const pass *p)
{
    int64_t pieces = (opt->part[LKSI_ARENAS] + opt->segments) * (int64_t)sizeof *opt->dev_piece;
    for (int k = 0; k < LKSI_ARENAS; k++) {
        const lksi_arena *a = opt->ps->arena[k];
        if (!a || !a->count) continue;
        int first = opt->first[k], n = opt->first[k + 1] - first;
        lksi_view in[8] = {flat(a->grad, k, a->count), segment_view(opt, first, n), segment_steps(opt, first, n),
                           step_view(opt), full_value(opt, k)};
        for (int i = 0; i < STATES; i++) in[5 + i] = flat(opt->block[k][i], state_dtype(k), a->count);
        lksi_view piece = bytes_of(opt->dev_piece, pieces), out = segment_steps(opt, first, n);
        lksi_view then[3] = {piece, segment_view(opt, first, n), step_view(opt)};
        lksi_attr attr = {.raw = {.i = {n, opt->set.kind, opt->part[k] + first}}};
        TRY(lksi_call_raw(opt->ctx, p->where, LKSI_OP_trust_stats, 8, in, &attr, 1, &piece));
        TRY(lksi_call_raw(opt->ctx, p->where, LKSI_OP_trust_decide, 3, then, &attr, 1, &out));
    }
    return LKS_OK;
}

/* Pass 2 over every arena. */
static lks_status update(lks_optim *opt, const pass *p)
{
    static const int row[KINDS] = {LKSI_OP_sgd_step,     LKSI_OP_adam_step, LKSI_OP_adam_step, LKSI_OP_rmsprop_step,
                                   LKSI_OP_adagrad_step, LKSI_OP_adam_step, LKSI_OP_sgd_step};
    if (layerwise(opt)) TRY(trust(opt, p));
    for (int k = 0; k < LKSI_ARENAS; k++) {
        lksi_arena *a = opt->ps->arena[k];
        if (!a || !a->count) continue;
        int first = opt->first[k], n = opt->first[k + 1] - first;
        lksi_view in[4] = {flat(a->grad, k, a->count), segment_view(opt, first, n), segment_steps(opt, first, n),
                           step_view(opt)};
        lksi_view out[7] = {flat(a->value, k, a->count)};
        for (int i = 0; i < STATES; i++) out[1 + i] = flat(opt->block[k][i], state_dtype(k), a->count);
        out[4] = flat(opt->block[k][MASTER], LKS_F32, a->count);
        out[5] = flat(a->twin[0], LKS_BF16, a->count);
        out[6] = flat(a->twin[1], LKS_F16, a->count);
        lksi_attr attr = {.raw = {.i = {n}}};
        TRY(lksi_call_raw(opt->ctx, p->where, row[opt->set.kind], 4, in, &attr, 7, out));
        touched(opt, k);
        if (!opt->block[k][AVERAGE]) continue;
        lksi_view from[2] = {step_view(opt), full_value(opt, k)};
        lksi_view average = flat(opt->block[k][AVERAGE], state_dtype(k), a->count);
        TRY(lksi_call_raw(opt->ctx, p->where, LKSI_OP_ema_step, 2, from, NULL, 1, &average));
    }
    return LKS_OK;
}

/* Queues the copy of the records of the last attempts and marks their places. A graph being captured leaves that for
 * afterwards, since the place is another one in each step. */
static lks_status remember(lks_optim *opt, const char *where)
{
    lksi_device *d = opt->ctx->dev;
    if (d->trace && d->trace->capturing) return LKS_OK;
    if (opt->told < opt->attempts - LKSI_STEP_RING) opt->told = opt->attempts - LKSI_STEP_RING;
    while (opt->told < opt->attempts) {
        int slot = (int)(++opt->told % LKSI_STEP_RING);
        lks_status s = d->be->download(d->self, LKSI_STREAM_COMPUTE, &opt->ring[slot], &opt->dev_step->ring[slot],
                                       sizeof opt->ring[slot]);
        if (s == LKS_OK) s = d->be->event_record(d->self, opt->event[slot], LKSI_STREAM_COMPUTE);
        if (s != LKS_OK)
            return lksi_fail(d->base, s, where, "the report of attempt %lld could not be queued",
                             (long long)opt->told);
    }
    return LKS_OK;
}

/* State of the optimizer as scaler s (NULL: none) sees it. */
static int state_of(const lks_optim *opt, const lks_scaler *s)
{
    if (opt->with != s || (s && opt->round != lksi_scaler_round(s))) return READY;
    if (opt->state == UNSCALED && opt->window != opt->ps->window) return READY; /* those gradients are gone */
    return opt->state;
}

static void enter_state(lks_optim *opt, lks_scaler *s, int state)
{
    opt->state = state;
    opt->with = s;
    opt->window = opt->ps->window;
    if (!s) return;
    opt->round = lksi_scaler_round(s);
    lksi_scaler_recorded(s);
}

static lks_status record_of(lks_optim *opt, const char *where, int64_t attempt, const lksi_record **r);

/* A failure after which other ranks cannot be reached. */
static int unreachable(lks_status s)
{
    return s == LKS_ERR_TIMEOUT || s == LKS_ERR_MPI || s == LKS_ERR_PEER_FAILED;
}

/* Everything up to the reduced vector, for step and unscale. *mine: this rank's failure so far, which it still takes
 * part with. *some: a gradient is here. */
static lks_status first_half(lks_optim *opt, lks_scaler *s, pass *p, int write, lks_status *mine, int *some)
{
    lksi_reducer *r = opt->ps->reducer;
    int failed = *mine != LKS_OK;
    lks_status reduced = LKS_OK;
    *some = 0;
    p->scaler = bytes_of(lksi_scaler_device(s), sizeof(lksi_scaler_state));
    p->weight = p->here = none;
    p->nominal = 0;
    opt->ctx->comm->step = opt->attempts + 1;
    if (r) {
        if (!p->unscaled) reduced = r->finish(r->self);
        if (unreachable(reduced) || reduced == LKS_ERR_STATE) return reduced; /* calls out of order: nothing begun */
        if (*mine == LKS_OK) *mine = reduced;
        failed |= r->failed(r->self);
        p->weight = flat(r->weight(r->self), LKS_F64, 1);
        p->nominal = r->nominal(r->self);
        p->here = flat(r->here ? r->here(r->self) : NULL, LKS_I32, 1);
    }
    if (*mine == LKS_OK) *mine = tables(opt, some);
    if (*mine == LKS_OK) *mine = masters_follow(opt, p->where);
    if (*mine == LKS_OK) *mine = stats(opt, p, write);
    return agree(opt, p, failed || *mine != LKS_OK ? 2 : 0);
}

static lks_status averages_in(lks_optim *opt, const char *where)
{
    return lksi_fail(&opt->ctx->base, LKS_ERR_STATE, where,
                     "the averages stand in the place of the weights: lks_optim_ema_swap takes them out first");
}

/* What is wrong with a gradient that was multiplied by `scale` (tensor.grad_scale) for scaler s in `state`; NULL:
 * nothing. Gradients written by hand are the program's business. */
static const char *wrong_scale(int64_t scale, const lks_scaler *s, int state)
{
    if (scale == LKSI_GRAD_BY_HAND) return NULL;
    if (scale == LKSI_GRAD_MIXED && state == UNSCALED)
        return "had been divided by lks_optim_unscale when a backward of lks_scaler_scale added scaled ones: unscale "
               "after the last backward";
    if (scale == LKSI_GRAD_MIXED)
        return "is a sum of gradients with different scales (of scaled losses and plain ones, of two scalers, of "
               "before and after an update, also of a skipped step), or of a loss that was scaled twice";
    if (!s) return scale > 0 ? "was scaled by a loss scaler that this call was not given" : NULL;
    if (state == UNSCALED) return scale > 0 ? "is scaled: unscale after the last backward of lks_scaler_scale" : NULL;
    if (scale == LKSI_GRAD_DIVIDED) return "was divided by lks_optim_unscale before";
    if (scale == LKSI_GRAD_PLAIN) return "came of a loss that was not scaled (lks_scaler_scale, lks_dp_backward)";
    if (scale == lksi_scaler_number(s)) return NULL;
    return "was scaled by another scale: before the last lks_scaler_update, or by another scaler";
}

static lks_status one_scale(lks_optim *opt, lks_scaler *s, const char *where, int state)
{
    for (int i = 0; i < opt->segments; i++) {
        const lksi_entry *e = &opt->ps->e[opt->entry[i]];
        const char *what = e->trainable ? wrong_scale(lksi_grad_scale(e->t), s, state) : NULL;
        if (what)
            return lksi_fail(&opt->ctx->base, LKS_ERR_STATE, where,
                             "the gradient of parameter %s %s; lks_params_zero_grad after each update begins anew",
                             e->name, what);
    }
    return LKS_OK;
}

/* batch: how computing the gradients ended here. */
static lks_status step(lks_optim *opt, lks_scaler *s, lks_status batch)
{
    pass p = {.where = "lks_optim_step"};
    lks_context *ctx = opt->ctx;
    lks_params *ps = opt->ps;
    lks_status mine = batch;
    int some, state = state_of(opt, s);
    if (state == STEPPED)
        return lksi_fail(
            &ctx->base, LKS_ERR_STATE, p.where,
            "lks_optim_step was already called for this optimizer since the last lks_scaler_update: call that first");
    p.unscaled = state == UNSCALED;
    if (opt->swapped) return averages_in(opt, p.where);
    if (mine == LKS_OK) mine = one_scale(opt, s, p.where, state);
    if (mine != LKS_OK && ctx->base.size == 1) return mine;
    TRY(first_half(opt, s, &p, 0, &mine, &some));
    TRY(decide(opt, &p, 0));
    ctx->attempt++;
    opt->attempts++;
    enter_state(opt, s, s ? STEPPED : READY);
    lksi_fault_point(&ctx->base, "before-update");
    lksi_view st = step_view(opt);
    lks_status code = update(opt, &p);
    if (code == LKS_OK) code = lksi_params_commit(ps, p.where, &st);
    lks_status told = remember(opt, p.where);
    if (ps->reducer) ps->reducer->stepped(ps->reducer->self);
    if (mine != LKS_OK) return mine;
    if (code != LKS_OK) return code;
    if (told != LKS_OK) return told;
    if (!some && !ps->reducer)
        return lksi_fail(&ctx->base, LKS_ERR_NO_GRADIENTS, p.where,
                         "no parameter of this optimizer has a gradient on this rank (attempt %lld)",
                         (long long)opt->attempts);
    return LKS_OK;
}

static lks_status unscale(lks_optim *opt, lks_scaler *s)
{
    pass p = {.where = "lks_optim_unscale"};
    lks_status mine;
    int some, state = state_of(opt, s);
    if (state != READY)
        return lksi_fail(&opt->ctx->base, LKS_ERR_STATE, p.where,
                         "%s was already called for this optimizer since the last %s: call that first",
                         state == STEPPED ? "lks_optim_step" : "lks_optim_unscale",
                         s ? "lks_scaler_update" : "lks_optim_step");
    if (opt->swapped) return averages_in(opt, p.where);
    mine = one_scale(opt, s, p.where, state);
    if (mine != LKS_OK && opt->ctx->base.size == 1) return mine;
    TRY(first_half(opt, s, &p, 1, &mine, &some));
    TRY(decide(opt, &p, 1));
    enter_state(opt, s, UNSCALED);
    for (int i = 0; i < opt->segments && mine == LKS_OK; i++) { /* after a failure none was divided */
        lks_tensor *t = opt->ps->e[opt->entry[i]].t;
        if (!opt->seg[i].trainable || !(opt->has[i] & LKSI_READ_GRAD)) continue;
        t->grad_slot->st->version++;
        lksi_grad_set_scale(t, LKSI_GRAD_DIVIDED);
    }
    return mine;
}

/* The scaler that counts: an enabled one. */
static lks_status usable(lks_optim *opt, const char *where, lks_scaler **s)
{
    if (!lks_scaler_enabled(*s)) *s = NULL;
    if (*s && lksi_scaler_context(*s) != opt->ctx)
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where,
                         "the scaler belongs to another context than the optimizer");
    return LKS_OK;
}

static lks_status step_after(lks_optim *opt, lks_scaler *s, lks_status batch)
{
    TRY(usable(opt, "lks_optim_step", &s));
    lksi_fpenv env;
    lksi_fpenv_enter(&env);
    lks_status code = step(opt, s, batch);
    lksi_fpenv_leave(&env);
    return code;
}

lks_status lks_optim_step(lks_optim *opt, lks_scaler *s)
{
    return opt ? step_after(opt, s, LKS_OK) : LKS_ERR_ARGUMENT;
}

lks_status lks_optim_unscale(lks_optim *opt, lks_scaler *s)
{
    if (!opt) return LKS_ERR_ARGUMENT;
    TRY(usable(opt, "lks_optim_unscale", &s));
    lksi_fpenv env;
    lksi_fpenv_enter(&env);
    lks_status code = unscale(opt, s);
    lksi_fpenv_leave(&env);
    return code;
}

lks_status lks_optim_step_retry(lks_optim *opt, lks_scaler *s, int retries, lks_batch_fn batch, void *user,
                                int *outcome)
{
    static const char where[] = "lks_optim_step_retry";
    if (!opt || !batch) return LKS_ERR_ARGUMENT;
    lks_context *ctx = opt->ctx;
    if (retries < 0) return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "retries is %d; it must be >= 0", retries);
    int64_t attempt = ctx->attempt, call = ctx->call, first = ctx->row_first, rows = ctx->row_count;
    for (int left = retries;; left--) {
        const lksi_record *r;
        lks_status held = ctx->base.code;
        lks_status mine = lksi_said(&ctx->base, batch(user), where, "the function of the batch");
        int64_t before = opt->attempts;
        lks_status code = step_after(opt, s, mine), updated = LKS_OK;
        /* Also when it failed here: the other ranks have made that attempt, too, and update. */
        if (s && opt->attempts > before) updated = lks_scaler_update(s);
        if (code == LKS_OK) code = updated;
        if (code != LKS_ERR_NO_GRADIENTS || updated != LKS_OK) TRY(code); /* others may have gradients, and go on */
        TRY(record_of(opt, where, opt->attempts, &r));
        if (outcome) *outcome = r->outcome;
        int again =
            (r->outcome == LKSI_SKIPPED_HERE || r->outcome == LKSI_SKIPPED_ELSEWHERE) && r->flag == 1 && !r->drift;
        if (!again || !left) return code;
        if (held == LKS_OK && code != LKS_OK) lks_error_clear(ctx); /* of an attempt that counts no more */
        lksi_rng again_from = {ctx->seed, attempt};
        TRY(lksi_device_write(ctx->dev, ctx->rng, &again_from, sizeof again_from));
        ctx->attempt = attempt;
        ctx->call = call;
        ctx->row_first = first;
        ctx->row_count = rows;
    }
}

/* --- what happened --- */

/* The record of an attempt that is kept; waits for its event. */
static lks_status record_of(lks_optim *opt, const char *where, int64_t attempt, const lksi_record **r)
{
    lksi_device *d = opt->ctx->dev;
    lksi_trace_once(d, "the report of a step is asked for in it");
    if (opt->told < opt->attempts) {
        TRY(lksi_trace_cut(d, NULL));
        TRY(remember(opt, where));
    }
    int64_t oldest = opt->attempts - LKSI_STEP_RING + 1;
    if (oldest <= opt->before) oldest = opt->before + 1;
    if (attempt < oldest || attempt > opt->attempts)
        return lksi_fail(d->base, LKS_ERR_ARGUMENT, where, "attempt %lld is not among those kept (%lld to %lld)",
                         (long long)attempt, (long long)oldest, (long long)opt->attempts);
    int slot = (int)(attempt % LKSI_STEP_RING);
    int done = d->be->event_done(d->self, opt->event[slot]);
    if (done != 1) TRY(lksi_device_event_wait(d, opt->event[slot]));
    *r = &opt->ring[slot];
    if ((*r)->attempt != attempt)
        return lksi_fail(d->base, LKS_ERR_INTERNAL, where, "the report of attempt %lld is of %lld", (long long)attempt,
                         (long long)(*r)->attempt);
    return LKS_OK;
}

lks_status lks_optim_report(lks_optim *opt, int64_t attempt, int *outcome, double *grad_norm, double *scale, double *lr,
                            int64_t *applied, int64_t *skipped)
{
    static const char where[] = "lks_optim_report";
    const lksi_record *r;
    if (!opt) return LKS_ERR_ARGUMENT;
    lksi_device *d = opt->ctx->dev;
    TRY(record_of(opt, where, attempt, &r));
    if (outcome) *outcome = r->outcome;
    if (grad_norm) *grad_norm = r->grad_norm;
    if (scale) *scale = r->scale;
    if (lr) *lr = r->lr;
    if (applied) *applied = r->applied;
    if (skipped) *skipped = r->skipped;
    if (r->drift)
        return lksi_fail(
            d->base, LKS_ERR_DRIFT, where,
            "ranks held different scaler or step state at attempt %lld: every step is skipped until the state "
            "is loaded anew",
            (long long)attempt);
    if (r->floor)
        return lksi_fail(d->base, LKS_ERR_FLOOR, where,
                         "at attempt %lld the scale was at its floor %g and gradients were not finite, as in all steps "
                         "before within the limit (lks_scaler_set_floor_limit): look for bad data or a diverged model",
                         (long long)attempt, r->scale);
    return LKS_OK;
}

lks_status lks_optim_outcomes(lks_optim *opt, int64_t attempt, int64_t *stepped, int64_t *here, int64_t *elsewhere,
                              int64_t *nothing)
{
    const lksi_record *r;
    if (!opt) return LKS_ERR_ARGUMENT;
    TRY(record_of(opt, "lks_optim_outcomes", attempt, &r));
    if (stepped) *stepped = r->applied;
    if (here) *here = r->here;
    if (elsewhere) *elsewhere = r->skipped - r->here;
    if (nothing) *nothing = r->attempt - r->applied - r->skipped;
    return LKS_OK;
}

lks_status lks_optim_blame(lks_optim *opt, int64_t attempt, int *param, int *bucket, int *rank, int64_t *infs,
                           int64_t *nans)
{
    const lksi_record *r;
    if (!opt) return LKS_ERR_ARGUMENT;
    TRY(record_of(opt, "lks_optim_blame", attempt, &r));
    const lksi_reducer *red = opt->ps->reducer;
    int entry = r->first >= 0 && r->first < opt->segments ? opt->entry[r->first] : -1;
    if (param) *param = entry;
    if (bucket) *bucket = entry >= 0 && red && red->bucket ? red->bucket(red->self, entry) : -1;
    if (rank) *rank = r->who;
    if (infs) *infs = r->infs;
    if (nans) *nans = r->nans;
    return LKS_OK;
}

lks_status lks_optim_underflow(lks_optim *opt, int64_t attempt, int64_t *zeros, int64_t *tiny, int64_t *seen)
{
    const lksi_record *r;
    if (!opt) return LKS_ERR_ARGUMENT;
    TRY(record_of(opt, "lks_optim_underflow", attempt, &r));
    if (zeros) *zeros = r->zeros;
    if (tiny) *tiny = r->tiny;
    if (seen) *seen = r->seen;
    return LKS_OK;
}

int64_t lks_optim_attempts(const lks_optim *opt)
{
    return opt ? opt->attempts : 0;
}

lks_status lks_optim_applied(lks_optim *opt, int64_t *applied)
{
    if (!opt || !applied) return LKS_ERR_ARGUMENT;
    return lksi_device_read(opt->ctx->dev, applied, &opt->dev_step->applied, sizeof *applied);
}

/* --- the moving average of the weights --- */

lks_status lks_optim_set_ema(lks_optim *opt, double decay, int warmup)
{
    LKSI_GUARD;
    static const char where[] = "lks_optim_set_ema";
    if (!opt) return LKS_ERR_ARGUMENT;
    if (!(decay >= 0 && decay < 1))
        return lksi_fail(&opt->ctx->base, LKS_ERR_ARGUMENT, where, "decay is %g; it must be in [0, 1)", decay);
    if (opt->swapped) return averages_in(opt, where);
    for (int k = 0; k < LKSI_ARENAS; k++) {
        if (!opt->ps->arena[k] || opt->block[k][AVERAGE]) continue;
        TRY(masters_follow(opt, where));
        TRY(block_new(opt, k, AVERAGE));
        lksi_view from = full_value(opt, k);
        lks_status s = lksi_device_copy(opt->ctx->dev, opt->block[k][AVERAGE], from.data,
                                        from.shape[0] * lks_dtype_size(state_dtype(k)));
        if (s != LKS_OK) {
            lksi_device_free(opt->ctx->dev, opt->block[k][AVERAGE]);
            opt->block[k][AVERAGE] = NULL;
            return s;
        }
    }
    opt->set.ema_decay = decay;
    opt->set.ema_warmup = warmup != 0;
    opt->dirty = 1;
    return LKS_OK;
}

/* Arena k's values from a block; masters stay those of the weights. */
static lks_status put_values(lks_optim *opt, const char *where, int k, const void *data, lks_dtype dtype)
{
    lksi_arena *a = opt->ps->arena[k];
    int64_t *seen = opt->master_version + opt->first[k];
    lksi_view src = flat(data, dtype, a->count), dst = flat(a->value, k, a->count);
    TRY(lksi_call_raw(opt->ctx, where, LKSI_OP_copy, 1, &src, NULL, 1, &dst));
    for (int i = 0; i < a->slices; i++) seen[i] -= a->slice[i].value->st->version;
    lksi_arena_touched(a, 0);
    for (int i = 0; i < a->slices; i++) seen[i] += a->slice[i].value->st->version;
    return LKS_OK;
}

lks_status lks_optim_ema_swap(lks_optim *opt, int in)
{
    static const char where[] = "lks_optim_ema_swap";
    if (!opt) return LKS_ERR_ARGUMENT;
    lks_context *ctx = opt->ctx;
    int some = 0;
    for (int k = 0; k < LKSI_ARENAS; k++) some |= opt->block[k][AVERAGE] != NULL;
    if (!some)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, where, "there are no averages (lks_optim_set_ema makes them)");
    if ((in != 0) == opt->swapped)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, where, "the %s in place already",
                         in ? "averages are" : "weights are");
    if (in) TRY(masters_follow(opt, where));
    for (int k = 0; k < LKSI_ARENAS && in; k++) { /* all that can fail for want of memory first */
        lksi_arena *a = opt->ps->arena[k];
        void *p = NULL;
        if (!a || !a->count) continue;
        lks_status s = lksi_device_alloc(ctx->dev, a->count * lks_dtype_size(k), &p);
        if (s == LKS_OK) {
            opt->aside[k] = p;
            s = lksi_device_copy(ctx->dev, p, a->value, a->count * lks_dtype_size(k));
        }
        if (s == LKS_OK) continue;
        for (int i = 0; i <= k; i++) {
            if (opt->aside[i]) lksi_device_free(ctx->dev, opt->aside[i]);
            opt->aside[i] = NULL;
        }
        return s;
    }
    for (int k = 0; k < LKSI_ARENAS; k++) {
        if (!opt->aside[k]) continue;
        TRY(put_values(opt, where, k, in ? opt->block[k][AVERAGE] : opt->aside[k], in ? state_dtype(k) : k));
        if (in) continue;
        lksi_device_free(ctx->dev, opt->aside[k]);
        opt->aside[k] = NULL;
    }
    opt->swapped = in != 0;
    return LKS_OK;
}

/* --- for checkpoints --- */

static const char *block_name(const lks_optim *opt, int which)
{
    static const char *const names[KINDS][STATES] = {
        {"momentum"}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
        {"square_avg", "momentum", "grad_avg"}, {"sum"}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, {"momentum"}};
    if (which == MASTER) return "master";
    if (which == AVERAGE) return "average";
    return names[opt->set.kind][which];
}

int lksi_optim_block_count(const lks_optim *opt)
{
    int n = 0;
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = 0; i < BLOCKS; i++) n += opt->block[k][i] != NULL;
    return n;
}

void lksi_optim_block(const lks_optim *opt, int index, lksi_state_block *block)
{
    for (int k = 0; k < LKSI_ARENAS; k++)
        for (int i = 0; i < BLOCKS; i++)
            if (opt->block[k][i] && index-- == 0) {
                *block = (lksi_state_block){
                    .name = block_name(opt, i), .arena = k, .data = opt->block[k][i], .dtype = state_dtype(k)};
                return;
            }
}

lks_status lksi_optim_read(lks_optim *opt, lksi_optim_saved *saved)
{
    lks_context *ctx = opt->ctx;
    if (opt->swapped) return averages_in(opt, "lks_checkpoint_save");
    int64_t bytes = opt->segments * (int64_t)sizeof(lksi_segment_step);
    lksi_segment_step *x = lksi_alloc(&ctx->base, bytes);
    lksi_step *st = lksi_alloc(&ctx->base, sizeof *st);
    lks_status s = x && st ? LKS_OK : LKS_ERR_MEMORY;
    if (s == LKS_OK) s = lksi_device_read(ctx->dev, x, opt->dev_segment_step, bytes);
    if (s == LKS_OK) s = lksi_device_read(ctx->dev, st, opt->dev_step, sizeof *st);
    if (s == LKS_OK) {
        saved->attempts = st->attempted;
        saved->applied = st->applied;
        saved->skipped = st->skipped;
        for (int i = 0; i < opt->ps->n; i++) saved->param_applied[i] = 0;
        for (int i = 0; i < opt->segments; i++) saved->param_applied[opt->entry[i]] = x[i].applied;
    }
    lksi_free(&ctx->base, st);
    lksi_free(&ctx->base, x);
    return s;
}

lks_status lksi_optim_write(lks_optim *opt, const lksi_optim_saved *saved)
{
    lks_context *ctx = opt->ctx;
    int64_t bytes = opt->segments * (int64_t)sizeof(lksi_segment_step);
    lksi_segment_step *x = lksi_alloc(&ctx->base, bytes);
    lksi_step *st = lksi_alloc(&ctx->base, sizeof *st);
    lks_status s = x && st ? LKS_OK : LKS_ERR_MEMORY;
    if (s == LKS_OK) {
        st->attempted = saved->attempts;
        st->applied = saved->applied;
        st->skipped = saved->skipped;
        for (int i = 0; i < opt->segments; i++) x[i].applied = saved->param_applied[opt->entry[i]];
        s = lksi_device_write(ctx->dev, opt->dev_segment_step, x, bytes);
    }
    if (s == LKS_OK) s = lksi_device_write(ctx->dev, opt->dev_step, st, sizeof *st);
    if (s == LKS_OK) {
        opt->attempts = opt->before = opt->told = saved->attempts;
        opt->state = READY;
        opt->with = NULL;
        masters_agree(opt);
    }
    lksi_free(&ctx->base, st);
    lksi_free(&ctx->base, x);
    return s;
}

const char *lksi_optim_kind_name(const lks_optim *opt)
{
    lks_optim *o = (lks_optim *)(uintptr_t)opt; /* the text is a cache */
    int64_t need = 64 + opt->groups * 256LL;
    if (o->text_bytes < need) {
        lksi_free(&opt->ctx->base, o->text);
        o->text_bytes = 0;
        o->text = lksi_alloc(&opt->ctx->base, need);
        if (!o->text) return NULL;
        o->text_bytes = need;
    }
    int at = snprintf(o->text, (size_t)need, "%s", kind_name[opt->set.kind]);
    for (int g = 0; g < opt->groups; g++) {
        const lksi_group *x = &opt->group[g];
        uint64_t members = 14695981039346656037u; /* FNV-1a over the names' positions */
        char a[32], b[32];
        for (int i = 0; i < opt->ps->n; i++)
            if (!opt->ps->e[i].is_buffer && opt->group_of[i] == g) members = (members ^ (uint64_t)i) * 1099511628211u;
        int sgd = with_momentum(opt), betas = with_betas(opt);
        lksi_hex_float(a, sizeof a, betas ? x->beta1 : x->momentum);
        lksi_hex_float(b, sizeof b, sgd ? x->dampening : x->beta2);
        at += snprintf(o->text + at, (size_t)(need - at), "; group %d members %016llx", g, (unsigned long long)members);
        if (opt->set.kind == LKSI_STEP_ADAGRAD) continue;
        at += snprintf(o->text + at, (size_t)(need - at), " %s %s %s %s%s", betas ? "beta1" : "momentum", a,
                       sgd ? "dampening" : betas ? "beta2" : "alpha", b, x->nesterov ? " nesterov" : "");
    }
    return o->text;
}

lks_params *lksi_optim_params(const lks_optim *opt)
{
    return opt->ps;
}
