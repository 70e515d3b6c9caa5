/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.h - the optimizer step as kernels see it: the tables the host writes, the state that stays on the device, and
 * the arithmetic of both, shared by C and CUDA. Compile without contraction (CUDA: -fmad=false). No loop over elements
 * here.
 *
 * Order of the rows in one step (ops_step.def):
 *   grad_stats    per arena: reads gradients once; per chunk of LKSI_STEP_CHUNK elements the sum of squares of the
 *                 unscaled values and whether one was not finite -> parts[first part of the arena + chunk]
 *   step_begin    adds the parts in order, builds the vector that is reduced with MAX over ranks
 *   step_decide   after the reduction: drift, outcome, counters, learning rate, clip factor, what each segment does
 *   sgd_step, adam_step   per arena: the update, by selection per segment
 *   buffers_commit        staged running statistics become the running ones, or are taken back
 *   scaler_update         at the end of the iteration, from all flags recorded in between
 *
 * attr.raw of the rows:
 *   grad_stats    i[0] segments, i[1] unscaled already, i[2] first part, f[0] nominal weight (0: none)
 *   step_begin    i[0] segments of all arenas, i[1] parts, i[2] unscaled already, i[3] 2 if this rank failed, else 0
 *   step_decide   i[0] segments of all arenas, i[1] groups, i[2] unscaled already, i[3] 1: this is an explicit unscale,
 *                 not a step, f[0] nominal weight
 *   sgd_step, adam_step   i[0] segments
 */
#ifndef LKSI_STEP_H
#define LKSI_STEP_H

#include "base/half.h"
#include "table/view.h"

#include <math.h>

#define LKSI_STEP_CHUNK 16384 /* elements of an arena per part */
#define LKSI_STEP_RING 8      /* steps that can be asked about */

/* --- tables: written by the host when something changed --- */

enum { LKSI_STEP_SGD, LKSI_STEP_ADAM, LKSI_STEP_ADAMW };                        /* = enum lks_optim_kind */
enum { LKSI_LR_CONSTANT, LKSI_LR_LINEAR, LKSI_LR_COSINE, LKSI_LR_STEP };        /* = enum lks_schedule */
enum { LKSI_RAN = 1, LKSI_SKIPPED_HERE, LKSI_SKIPPED_ELSEWHERE, LKSI_NOTHING }; /* = enum lks_outcome */

/* A parameter's place in its arena; sorted by offset, the arenas of a set one after the other. */
typedef struct lksi_segment {
    int64_t offset, numel; /* elements */
    int32_t group, trainable;
} lksi_segment;

typedef struct lksi_group {
    double lr, weight_decay;
    double momentum, dampening;
    double beta1, beta2, eps;
    int64_t nesterov;
} lksi_group;

typedef struct lksi_settings {
    int32_t kind, check_finite;
    int32_t schedule, pad;
    int64_t warmup, total, period;
    double final_factor, gamma;
    double clip_norm, clip_value; /* 0: off */
} lksi_settings;

/* One int32 per segment, beside the segments: */
enum {
    LKSI_HAS_GRAD = 1, /* this rank has a gradient for it */
    LKSI_READ_GRAD = 2 /* gradient memory holds a gradient; else it is taken as zero, whatever is there */
};

/* --- state: written by kernels --- */

/* What grad_stats found in one chunk. */
typedef struct lksi_part {
    double squares;
    int64_t bad;
} lksi_part;

/* Entries of the int32 vector that is reduced with MAX; presence, one per segment, follows. */
enum {
    LKSI_VEC_FLAG,     /* 0 finite, 1 not, 2 this rank failed */
    LKSI_VEC_HASH,     /* drift: max(h) must be */
    LKSI_VEC_NOT_HASH, /* ~max(~h) = min(h) */
    LKSI_VEC_NORM_HIGH, /* sum of squares as ordered bits: every rank goes by the same norm */
    LKSI_VEC_NORM_LOW,
    LKSI_VEC_PRESENT = 8
};

typedef struct lksi_record {
    int64_t attempt, applied, skipped;
    int32_t outcome, drift, floor, flag;
    double grad_norm, scale, lr;
} lksi_record;

typedef struct lksi_step {
    int64_t attempted, applied, skipped;
    int32_t local_flag;   /* this rank's, before the reduction */
    int32_t unscale_flag; /* all ranks', found by an explicit unscale */
    int32_t drift;        /* latched: no step runs until the state is written anew */
    int32_t ran;          /* the last attempt was applied */
    double squares;       /* this rank's sum of squares of the unscaled gradients */
    double factor;        /* of gradients as they are in memory */
    double clip;          /* factor of the global norm clip, 1 = none */
    double clip_value;    /* infinite = none */
    lksi_record ring[LKSI_STEP_RING]; /* attempt a in [a % LKSI_STEP_RING] */
} lksi_step;

/* What the update does to one segment; `applied` stays, the rest is made anew by each decide. */
typedef struct lksi_segment_step {
    int64_t applied;
    int32_t act;   /* 0: leave it alone */
    int32_t zero;  /* its gradient is zero, whatever memory holds */
    int32_t first; /* momentum starts: buffer = gradient */
    int32_t nesterov;
    double step;     /* learning rate; Adam: over 1 - beta1^t */
    double keep;     /* AdamW: 1 - lr weight_decay, else 1 */
    double l2;       /* weight decay added to the gradient, else 0 */
    double m_keep, m_add; /* momentum, 1 - dampening / beta1, 1 - beta1 */
    double v_keep, v_add; /* beta2, 1 - beta2 */
    double root;     /* 1 / sqrt(1 - beta2^t) */
    double eps;
} lksi_segment_step;

enum { LKSI_PENDING_GOOD = 1, LKSI_PENDING_BAD = 2 };

typedef struct lksi_scaler_state {
    float scale;     /* first: the loss is multiplied by a tensor over it */
    int32_t pending; /* what optimizers recorded since the last update */
    int64_t tracker;
    int64_t good, bad;   /* updates */
    int64_t floor_skips; /* consecutive bad updates at the floor */
    double growth, backoff, floor, ceiling;
    int64_t interval, floor_limit;
} lksi_scaler_state;

/* --- arithmetic --- */

LKSI_HD double lksi_infinity(void) { return lksi_float_f64(0x7ff0000000000000u); }

/* x^n by squaring: the same bits whether reached step by step or after a load. */
LKSI_HD double lksi_power(double x, int64_t n)
{
    double r = 1;
    for (; n > 0; n >>= 1) {
        if (n & 1) r = r * x;
        x = x * x;
    }
    return r;
}

/* cos(pi t) for 0 <= t <= 1: Taylor polynomial on [0, 1/2], mirrored. */
LKSI_HD double lksi_cos_pi(double t)
{
    double sign = 1;
    if (t > 0.5) {
        t = 1 - t;
        sign = -1;
    }
    double x = t * 3.14159265358979323846;
    double z = x * x, r = 0;
    for (int k = 22; k >= 2; k -= 2) r = (1 + r) * (-z / (double)(k * (k - 1))); /* Horner: 1 - z/2 (1 - z/12 (...)) */
    return sign * (1 + r);
}

/* Factor of the base learning rate at applied step k = 0, 1, ... */
LKSI_HD double lksi_lr_factor(const lksi_settings *o, int64_t k)
{
    if (k < o->warmup) return (double)(k + 1) / (double)o->warmup;
    int64_t past = k - o->warmup, span = o->total - o->warmup > 1 ? o->total - o->warmup : 1;
    double t = past >= span ? 1 : (double)past / (double)span;
    switch (o->schedule) {
    case LKSI_LR_LINEAR: return 1 - t * (1 - o->final_factor);
    case LKSI_LR_COSINE: return o->final_factor + (1 - o->final_factor) * (1 + lksi_cos_pi(t)) / 2;
    case LKSI_LR_STEP: return o->period > 0 ? lksi_power(o->gamma, past / o->period) : 1;
    default: return 1;
    }
}

/* What gradients in memory are multiplied by: inverse scale, and nominal over true weight. */
LKSI_HD double lksi_grad_factor(const lksi_scaler_state *s, const double *weight, double nominal, int unscaled)
{
    double f = 1;
    if (unscaled) return 1;
    if (s) f = (double)(float)(1.0 / (double)s->scale);
    if (weight && nominal > 0 && *weight > 0 && lksi_is_finite_f64(*weight)) f = f * (nominal / *weight);
    return f;
}

LKSI_HD uint32_t lksi_mix(uint32_t h, uint64_t v)
{
    for (int i = 0; i < 2; i++, v >>= 32) { /* murmur3's round and finaliser */
        h = (h ^ (uint32_t)v) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        h ^= h >> 16;
    }
    return h;
}

/* Ranks whose hashes differ hold different state before this step. */
LKSI_HD int32_t lksi_step_hash(const lksi_step *st, const lksi_scaler_state *s)
{
    uint32_t h = lksi_mix(lksi_mix(1, (uint64_t)st->attempted), (uint64_t)st->applied);
    if (s) h = lksi_mix(lksi_mix(h, lksi_bits_f32(s->scale)), (uint64_t)s->tracker);
    return (int32_t)h;
}

/* All but presence of the vector. squares, bad: this rank's sums over all parts. */
LKSI_HD void lksi_step_begin(lksi_step *st, int32_t *vec, const lksi_scaler_state *s, const double *weight,
                               double squares, int bad, int unscaled, int failed)
{
    int flag = bad != 0;
    if (weight && (!lksi_is_finite_f64(*weight) || *weight < 0)) flag = 1;
    if (unscaled && st->unscale_flag > flag) flag = st->unscale_flag;
    if (failed > flag) flag = failed;
    if (!lksi_is_finite_f64(squares)) squares = lksi_infinity();
    uint64_t u = lksi_bits_f64(squares);
    st->local_flag = flag;
    st->squares = squares;
    int32_t h = lksi_step_hash(st, s);
    vec[LKSI_VEC_FLAG] = flag;
    vec[LKSI_VEC_HASH] = h;
    vec[LKSI_VEC_NOT_HASH] = ~h;
    vec[LKSI_VEC_NORM_HIGH] = (int32_t)(u >> 32);
    vec[LKSI_VEC_NORM_LOW] = (int32_t)((uint32_t)u ^ 0x80000000u);
    for (int i = LKSI_VEC_NORM_LOW + 1; i < LKSI_VEC_PRESENT; i++) vec[i] = 0;
}

/* Sum of squares that all ranks go by. */
LKSI_HD double lksi_step_squares(const int32_t *vec)
{
    uint64_t u = (uint64_t)(uint32_t)vec[LKSI_VEC_NORM_HIGH] << 32 | ((uint32_t)vec[LKSI_VEC_NORM_LOW] ^ 0x80000000u);
    return (u >> 52 & 0x7ff) == 0x7ff ? lksi_infinity() : lksi_float_f64(u);
}

/* The explicit unscale after its reduction: remembers the flag and tells the scaler. */
LKSI_HD void lksi_step_unscaled(lksi_step *st, const int32_t *vec, int any, lksi_scaler_state *s, const double *weight)
{
    int flag = vec[LKSI_VEC_FLAG];
    if (vec[LKSI_VEC_HASH] != ~vec[LKSI_VEC_NOT_HASH]) st->drift = 1;
    st->unscale_flag = flag;
    if (!s || st->drift || flag == 2 || !any || (weight && *weight == 0)) return;
    s->pending |= flag ? LKSI_PENDING_BAD : LKSI_PENDING_GOOD;
}

/* The decision, the same on every rank. any: some trainable segment has a gradient on some rank. Returns the factor of
 * the learning rates. */
LKSI_HD double lksi_step_decide(lksi_step *st, const int32_t *vec, int any, const lksi_settings *o, double lr0,
                                  lksi_scaler_state *s, const double *weight, double nominal, int unscaled)
{
    int flag = vec[LKSI_VEC_FLAG], outcome;
    int here = st->local_flag ? LKSI_SKIPPED_HERE : LKSI_SKIPPED_ELSEWHERE;
    int pending = 0;
    double norm = sqrt(lksi_step_squares(vec));
    if (vec[LKSI_VEC_HASH] != ~vec[LKSI_VEC_NOT_HASH]) st->drift = 1;
    if (st->drift) {
        outcome = LKSI_SKIPPED_ELSEWHERE;
    } else if (flag == 2) {
        outcome = here; /* a failure is no overflow: the scale stays */
    } else if (!any || (weight && *weight == 0)) {
        outcome = LKSI_NOTHING;
    } else if (flag && (s || o->check_finite)) {
        outcome = here;
        pending = LKSI_PENDING_BAD;
    } else {
        outcome = LKSI_RAN;
        pending = LKSI_PENDING_GOOD;
    }
    double lr = lksi_lr_factor(o, st->applied);
    st->ran = outcome == LKSI_RAN;
    st->factor = lksi_grad_factor(s, weight, nominal, unscaled);
    st->clip = 1;
    if (o->clip_norm > 0 && lksi_is_finite_f64(norm)) {
        double c = o->clip_norm / (norm + 1e-6);
        if (c < 1) st->clip = c;
    }
    st->clip_value = o->clip_value > 0 ? o->clip_value : lksi_infinity();
    st->unscale_flag = 0;
    st->attempted += 1;
    st->applied += st->ran;
    st->skipped += outcome == LKSI_SKIPPED_HERE || outcome == LKSI_SKIPPED_ELSEWHERE;

    lksi_record *r = &st->ring[st->attempted % LKSI_STEP_RING];
    r->attempt = st->attempted;
    r->applied = st->applied;
    r->skipped = st->skipped;
    r->outcome = outcome;
    r->drift = st->drift;
    r->flag = flag;
    r->floor = s && pending == LKSI_PENDING_BAD && (double)s->scale <= s->floor && s->floor_skips == s->floor_limit;
    r->grad_norm = norm;
    r->scale = s ? (double)s->scale : 1;
    r->lr = lr0 * lr;
    if (s) s->pending |= pending;
    return lr;
}

/* What segment g does in this step. present: reduced; has: enum above. */
LKSI_HD void lksi_segment_decide(lksi_segment_step *x, const lksi_step *st, const lksi_segment *seg, int present,
                                   int has, const lksi_group *g, int kind, double lr_factor)
{
    x->act = st->ran && seg->trainable && present;
    x->zero = !(has & LKSI_READ_GRAD);
    if (!x->act) return;
    int64_t t = ++x->applied;
    double lr = g->lr * lr_factor;
    x->first = t == 1;
    x->nesterov = g->nesterov != 0;
    x->keep = kind == LKSI_STEP_ADAMW ? 1 - lr * g->weight_decay : 1;
    x->l2 = kind == LKSI_STEP_ADAMW ? 0 : g->weight_decay;
    x->eps = g->eps;
    if (kind == LKSI_STEP_SGD) {
        x->step = lr;
        x->m_keep = g->momentum;
        x->m_add = 1 - g->dampening;
        x->v_keep = x->v_add = x->root = 0;
    } else {
        x->step = lr / (1 - lksi_power(g->beta1, t));
        x->m_keep = g->beta1;
        x->m_add = 1 - g->beta1;
        x->v_keep = g->beta2;
        x->v_add = 1 - g->beta2;
        x->root = 1 / sqrt(1 - lksi_power(g->beta2, t));
    }
}

/* The new scale. Nothing recorded but steps that had nothing to do: nothing changes. */
LKSI_HD void lksi_scaler_advance(lksi_scaler_state *s)
{
    int pending = s->pending;
    double next;
    s->pending = 0;
    if (!pending) return;
    if (pending & LKSI_PENDING_BAD) {
        s->bad += 1;
        s->tracker = 0;
        s->floor_skips = (double)s->scale <= s->floor ? s->floor_skips + 1 : 0;
        next = (double)s->scale * s->backoff;
        s->scale = (float)(next < s->floor ? s->floor : next > s->ceiling ? s->ceiling : next);
        return;
    }
    s->good += 1;
    s->floor_skips = 0;
    s->tracker += 1;
    if (s->tracker < s->interval) return;
    s->tracker = 0;
    next = (double)s->scale * s->growth;
    if (next <= s->ceiling && lksi_is_finite_f32((float)next)) s->scale = (float)next;
}

#endif
