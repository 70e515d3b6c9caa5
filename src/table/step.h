/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.h - the optimizer step as kernels see it: the tables the host writes, the state that stays on the device, and
 * the arithmetic of both, shared by C and CUDA. Compile without contraction (CUDA: -fmad=false). No loop over elements
 * here.
 *
 * Order of the rows in one step (ops_step.def):
 *   grad_check    with data parallel, per bucket before its reduction: whether this rank's values are finite
 *   grad_stats    per arena: reads gradients once; per chunk of LKSI_STEP_CHUNK elements the sum of squares of the
 *                 unscaled values, whether one was not finite, and what -> parts[first part of the arena + chunk]
 *   step_begin    adds the parts in order, builds the vector that is reduced with MAX over ranks
 *   step_decide   after the reduction: drift, outcome, counters, learning rate, clip factor, what each segment does
 *   trust_stats, trust_decide   LAMB and LARS only, as the clip factor is in their norms: per arena, sums of squares of
 *                 weights and of the direction by piece (a chunk's part of a segment), then each segment's ratio
 *   sgd_step, adam_step, rmsprop_step, adagrad_step   per arena: the update, by selection per segment
 *   ema_step      per arena, if asked for: the moving average of the weights
 *   buffers_commit        staged running statistics become the running ones, or are taken back
 *   scaler_update         at the end of the iteration, from all flags recorded in between
 *
 * attr.raw of the rows:
 *   grad_stats    i[0] segments, i[1] unscaled already, i[2] first part, i[3] first segment, i[4] 1: count underflow,
 *                 f[0] nominal weight (0: none)
 *   step_begin    i[0] segments of all arenas, i[1] parts, i[2] unscaled already, i[3] 2 if this rank failed, else 0,
 *                 i[4] rank
 *   step_decide   i[0] segments of all arenas, i[1] groups, i[2] unscaled already, i[3] 1: this is an explicit unscale,
 *                 not a step, f[0] nominal weight
 *   the updates   i[0] segments
 *   trust_stats, trust_decide   i[0] segments, i[1] kind, i[2] first piece of the arena
 *   scaler_update i[0] enum LKSI_SCALER_..., f[0] the new scale for LKSI_SCALER_SET without a tensor
 */
#ifndef LKSI_STEP_H
#define LKSI_STEP_H

#include "base/half.h"
#include "table/view.h"

#include <math.h>

#define LKSI_STEP_CHUNK 16384 /* elements of an arena per part */
#define LKSI_STEP_RING 8      /* steps that can be asked about */

/* --- tables: written by the host when something changed --- */

enum { LKSI_STEP_SGD, LKSI_STEP_ADAM, LKSI_STEP_ADAMW, LKSI_STEP_RMSPROP, LKSI_STEP_ADAGRAD, LKSI_STEP_LAMB,
       LKSI_STEP_LARS }; /* = enum lks_optim_kind */
enum {
    LKSI_LR_CONSTANT,
    LKSI_LR_LINEAR,
    LKSI_LR_COSINE,
    LKSI_LR_STEP,
    LKSI_LR_WSD,
    LKSI_LR_TABLE
};                                                                              /* = lks_schedule */
enum { LKSI_RAN = 1, LKSI_SKIPPED_HERE, LKSI_SKIPPED_ELSEWHERE, LKSI_NOTHING }; /* = enum lks_outcome */

/* A parameter's place in its arena; sorted by offset, the arenas of a set one after the other. */
typedef struct lksi_segment {
    int64_t offset, numel; /* elements */
    int32_t group, trainable;
} lksi_segment;

typedef struct lksi_group {
    double lr, weight_decay;
    double momentum, dampening;
    double beta1, beta2, eps; /* RMSprop: beta2 is alpha */
    double lr_decay;          /* Adagrad */
    double trust;             /* LARS: the coefficient */
    int64_t nesterov, decoupled;
} lksi_group;

typedef struct lksi_settings {
    int32_t kind, check_finite;
    int32_t schedule, ema_warmup;
    int64_t warmup, total, period;
    int64_t entries; /* of the schedule's table */
    double final_factor, gamma;
    double clip_norm, clip_value; /* 0: off */
    double ema_decay;
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
    int32_t bad, first;        /* one was not finite; the first such segment (of all arenas), if bad */
    int64_t infs, nans;        /* of the unscaled values */
    int64_t zeros, tiny, seen; /* if underflow is counted: 0, below the smallest normal number, all; as in memory */
} lksi_part;

/* Sums over a piece: the part of segment s (of its arena) in chunk c is pieces[first piece + c + s]. */
typedef struct lksi_piece { double weight, direction; } lksi_piece;

/* Entries of the int32 vector that is reduced with MAX; presence, one per segment, follows. */
enum {
    LKSI_VEC_FLAG,     /* 0 finite, 1 not, 2 this rank failed */
    LKSI_VEC_HASH,     /* drift: max(h) must be */
    LKSI_VEC_NOT_HASH, /* ~max(~h) = min(h) */
    LKSI_VEC_NORM_HIGH, /* sum of squares as ordered bits: every rank goes by the same norm */
    LKSI_VEC_NORM_LOW,
    LKSI_VEC_WHO, /* INT32_MAX - rank of one whose own gradients were not finite, 0: none */
    LKSI_VEC_PRESENT = 8
};

/* Values of presence: */
enum { LKSI_ABSENT, LKSI_PRESENT, LKSI_PRESENT_BAD };

typedef struct lksi_record {
    int64_t attempt, applied, skipped;
    int64_t here, elsewhere; /* of the skipped ones */
    int32_t outcome, drift, floor, flag;
    int32_t first, who; /* segment and rank of what was not finite, -1: none */
    int64_t infs, nans, zeros, tiny, seen;
    double grad_norm, scale, lr;
} lksi_record;

typedef struct lksi_step {
    int64_t attempted, applied, skipped;
    int32_t local_flag;   /* this rank's, before the reduction */
    int32_t unscale_flag; /* all ranks', found by an explicit unscale */
    int32_t drift;        /* latched: no step runs until the state is written anew */
    int32_t ran;          /* the last attempt was applied */
    int32_t first, who;   /* as in the record, of the pass under way */
    int64_t here, elsewhere;
    int64_t infs, nans, zeros, tiny, seen; /* this rank's, of the pass under way */
    double ema_add;       /* of the difference between weight and average */
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
    double unbias;   /* LAMB: 1 / (1 - beta1^t) */
    double decay;    /* LAMB: lr weight_decay, before the ratio */
    double trust;    /* LARS: the ratio, else 1; before trust_decide the coefficient */
} lksi_segment_step;

enum { LKSI_PENDING_GOOD = 1, LKSI_PENDING_BAD = 2 };

typedef struct lksi_scaler_state {
    float scale;     /* first: the loss is multiplied by a tensor over it */
    int32_t pending; /* what optimizers recorded since the last update */
    int64_t tracker;
    int64_t good, bad;   /* updates */
    int64_t floor_skips; /* consecutive bad updates at the floor */
    int64_t credit;      /* good ones since the scale was last looked at (update_n) */
    int64_t sticky;      /* there was a bad one since then */
    int64_t strikes;     /* looks with a bad one since the last growth */
    double growth, backoff, floor, ceiling;
    int64_t interval, floor_limit;
    int64_t hysteresis; /* strikes from which the scale backs off */
    int64_t fixed;      /* 1: the scale stays */
} lksi_scaler_state;

/* What scaler_update does besides counting the iteration. */
enum {
    LKSI_SCALER_STEP,   /* look at once: the scale of the next iteration */
    LKSI_SCALER_HOLD,   /* inside a window: nothing */
    LKSI_SCALER_WINDOW, /* the window ends */
    LKSI_SCALER_SET     /* take the scale that is given; the tracker stays */
};

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

/* Factor of the base learning rate at applied step k = 0, 1, ...; table: o->entries factors, the last one goes on. */
LKSI_HD double lksi_lr_factor(const lksi_settings *o, const double *table, int64_t k)
{
    if (o->schedule == LKSI_LR_TABLE) return table ? table[k < o->entries ? k : o->entries - 1] : 1;
    if (k < o->warmup) return (double)(k + 1) / (double)o->warmup;
    int64_t past = k - o->warmup, span = o->total - o->warmup > 1 ? o->total - o->warmup : 1;
    double t = past >= span ? 1 : (double)past / (double)span;
    switch (o->schedule) {
    case LKSI_LR_LINEAR: return 1 - t * (1 - o->final_factor);
    case LKSI_LR_COSINE: return o->final_factor + (1 - o->final_factor) * (1 + lksi_cos_pi(t)) / 2;
    case LKSI_LR_STEP: return o->period > 0 ? lksi_power(o->gamma, past / o->period) : 1;
    case LKSI_LR_WSD: /* down over the last `period` steps */
        if (k < o->total - o->period) return 1;
        t = k >= o->total ? 1 : (double)(k - (o->total - o->period)) / (double)o->period;
        return 1 - t * (1 - o->final_factor);
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
    if (s) {
        h = lksi_mix(lksi_mix(h, lksi_bits_f32(s->scale)), (uint64_t)s->tracker);
        h = lksi_mix(h, (uint64_t)s->credit << 32 ^ (uint64_t)s->strikes << 1 ^ (uint64_t)s->sticky);
    }
    return (int32_t)h;
}

/* Counts an unscaled value that is not finite. */
LKSI_HD void lksi_part_note(lksi_part *p, double x)
{
    uint64_t u = lksi_bits_f64(x);
    if ((u >> 52 & 0x7ff) != 0x7ff) return;
    if (u << 12) p->nans += 1;
    else p->infs += 1;
}

/* Smallest magnitude that does not count as underflow: the smallest normal number of the arena's dtype; float32
 * gradients are measured by what float16 would lose. 0: not measured. */
LKSI_HD double lksi_underflow_limit(int dtype)
{
    if (dtype == LKS_F32 || dtype == LKS_F16) return 0x1p-14;
    return dtype == LKS_BF16 ? 0x1p-126 : 0;
}

/* sum += p, in the order of the parts. */
LKSI_HD void lksi_part_add(lksi_part *sum, const lksi_part *p)
{
    sum->squares += p->squares;
    sum->bad |= p->bad;
    sum->infs += p->infs;
    sum->nans += p->nans;
    sum->zeros += p->zeros;
    sum->tiny += p->tiny;
    sum->seen += p->seen;
}

/* All but presence of the vector. sum: of this rank's parts (first is not read). here: with data parallel, whether this
 * rank's gradients were not finite before their reduction; NULL: as the parts say. */
LKSI_HD void lksi_step_begin(lksi_step *st, int32_t *vec, const lksi_scaler_state *s, const double *weight,
                               const lksi_part *sum, const int32_t *here, int unscaled, int failed, int rank)
{
    double squares = sum->squares;
    int flag = sum->bad != 0, mine = here ? *here != 0 : flag;
    if (weight && (!lksi_is_finite_f64(*weight) || *weight < 0)) flag = mine = 1;
    if (unscaled) { /* what the unscale found goes on counting */
        if (st->unscale_flag > flag) flag = st->unscale_flag;
        if (st->unscale_flag && st->local_flag > mine) mine = st->local_flag;
    }
    if (failed > flag) flag = failed;
    if (failed > mine) mine = failed;
    if (!lksi_is_finite_f64(squares)) squares = lksi_infinity();
    uint64_t u = lksi_bits_f64(squares);
    st->local_flag = mine;
    st->squares = squares;
    if (!unscaled || sum->bad) {
        st->infs = sum->infs;
        st->nans = sum->nans;
    }
    if (!unscaled) {
        st->zeros = sum->zeros;
        st->tiny = sum->tiny;
        st->seen = sum->seen;
    }
    int32_t h = lksi_step_hash(st, s);
    vec[LKSI_VEC_FLAG] = flag;
    vec[LKSI_VEC_HASH] = h;
    vec[LKSI_VEC_NOT_HASH] = ~h;
    vec[LKSI_VEC_NORM_HIGH] = (int32_t)(u >> 32);
    vec[LKSI_VEC_NORM_LOW] = (int32_t)((uint32_t)u ^ 0x80000000u);
    vec[LKSI_VEC_WHO] = mine ? 0x7fffffff - rank : 0;
    for (int i = LKSI_VEC_WHO + 1; i < LKSI_VEC_PRESENT; i++) vec[i] = 0;
}

/* Sum of squares that all ranks go by. */
LKSI_HD double lksi_step_squares(const int32_t *vec)
{
    uint64_t u = (uint64_t)(uint32_t)vec[LKSI_VEC_NORM_HIGH] << 32 | ((uint32_t)vec[LKSI_VEC_NORM_LOW] ^ 0x80000000u);
    return (u >> 52 & 0x7ff) == 0x7ff ? lksi_infinity() : lksi_float_f64(u);
}

/* The explicit unscale after its reduction: remembers the flag and tells the scaler. */
LKSI_HD void lksi_step_unscaled(lksi_step *st, const int32_t *vec, int any, int first, lksi_scaler_state *s,
                                  const double *weight)
{
    int flag = vec[LKSI_VEC_FLAG];
    st->first = first;
    st->who = vec[LKSI_VEC_WHO] ? 0x7fffffff - vec[LKSI_VEC_WHO] : -1;
    if (vec[LKSI_VEC_HASH] != ~vec[LKSI_VEC_NOT_HASH]) st->drift = 1;
    st->unscale_flag = flag;
    if (!s || st->drift || flag == 2 || !any || (weight && *weight == 0)) return;
    s->pending |= flag ? LKSI_PENDING_BAD : LKSI_PENDING_GOOD;
}

/* The decision, the same on every rank. any: some trainable segment has a gradient on some rank; first: the first one
 * with LKSI_PRESENT_BAD, -1: none. Returns the factor of the learning rates. */
LKSI_HD double lksi_step_decide(lksi_step *st, const int32_t *vec, int any, int first, const lksi_settings *o,
                                  const double *table, double lr0, lksi_scaler_state *s, const double *weight,
                                  double nominal, int unscaled)
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
    double lr = lksi_lr_factor(o, table, st->applied);
    if (!unscaled || first >= 0) {
        st->first = first;
        st->who = vec[LKSI_VEC_WHO] ? 0x7fffffff - vec[LKSI_VEC_WHO] : -1;
    }
    st->ema_add = 1 - o->ema_decay;
    if (o->ema_warmup && (1 + (double)st->applied) / (10 + (double)st->applied) < o->ema_decay)
        st->ema_add = 9 / (10 + (double)st->applied);
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
    st->here += outcome == LKSI_SKIPPED_HERE;
    st->elsewhere += outcome == LKSI_SKIPPED_ELSEWHERE;
    st->skipped += outcome == LKSI_SKIPPED_HERE || outcome == LKSI_SKIPPED_ELSEWHERE;

    lksi_record *r = &st->ring[st->attempted % LKSI_STEP_RING];
    r->attempt = st->attempted;
    r->applied = st->applied;
    r->skipped = st->skipped;
    r->here = st->here;
    r->elsewhere = st->elsewhere;
    r->first = st->first;
    r->who = flag ? st->who : -1;
    r->infs = st->infs;
    r->nans = st->nans;
    r->zeros = st->zeros;
    r->tiny = st->tiny;
    r->seen = st->seen;
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
    x->decay = lr * g->weight_decay;
    x->keep = g->decoupled ? 1 - x->decay : 1;
    x->l2 = g->decoupled ? 0 : g->weight_decay;
    x->eps = g->eps;
    x->trust = 1;
    x->root = 1;
    x->step = lr;
    switch (kind) {
    case LKSI_STEP_LARS: x->trust = g->trust; /* fall through */
    case LKSI_STEP_SGD:
        x->m_keep = g->momentum;
        x->m_add = 1 - g->dampening;
        x->v_keep = x->v_add = x->root = 0;
        break;
    case LKSI_STEP_RMSPROP:
        x->m_keep = g->momentum;
        x->m_add = 1;
        x->v_keep = g->beta2;
        x->v_add = 1 - g->beta2;
        break;
    case LKSI_STEP_ADAGRAD:
        x->step = lr / (1 + (double)(t - 1) * g->lr_decay);
        x->m_keep = x->m_add = 0;
        x->v_keep = x->v_add = 1;
        break;
    default:
        if (kind == LKSI_STEP_LAMB) {
            x->keep = 1;
            x->l2 = g->weight_decay;
        }
        x->unbias = 1 / (1 - lksi_power(g->beta1, t));
        x->step = lr / (1 - lksi_power(g->beta1, t));
        x->m_keep = g->beta1;
        x->m_add = 1 - g->beta1;
        x->v_keep = g->beta2;
        x->v_add = 1 - g->beta2;
        x->root = 1 / sqrt(1 - lksi_power(g->beta2, t));
    }
}

/* The ratio of a segment, from its sums of squares; 1 where a norm is 0. LAMB: |w| / |direction|, where the direction
 * is the Adam step and weight decay; LARS: trust |w| / (|g| + weight_decay |w| + eps). */
LKSI_HD void lksi_trust_decide(lksi_segment_step *x, double weight, double direction, int kind)
{
    if (!x->act) return;
    double w = sqrt(weight), d = sqrt(direction), ratio = 1;
    if (kind == LKSI_STEP_LARS) {
        if (w > 0 && d > 0) ratio = x->trust * w / (d + x->l2 * w + x->eps);
        x->trust = ratio;
        return;
    }
    if (w > 0 && d > 0) ratio = w / d;
    x->keep = 1 - ratio * x->decay;
    x->step = x->step * ratio;
    x->l2 = 0;
}

/* Counts the iteration from its flags. 0: nothing was recorded but steps that had nothing to do. */
LKSI_HD int lksi_scaler_count(lksi_scaler_state *s)
{
    int pending = s->pending;
    s->pending = 0;
    if (!pending) return 0;
    if (pending & LKSI_PENDING_BAD) {
        s->bad += 1;
        s->floor_skips = (double)s->scale <= s->floor ? s->floor_skips + 1 : 0;
        s->sticky = 1;
    } else {
        s->good += 1;
        s->floor_skips = 0;
        s->credit += 1;
    }
    return 1;
}

/* The new scale from what was counted since the last look. whole_intervals: one growth for each full interval, the
 * remainder of the tracker is kept. */
LKSI_HD void lksi_scaler_look(lksi_scaler_state *s, int whole_intervals)
{
    int64_t bad = s->sticky, credit = s->credit;
    double next;
    s->sticky = s->credit = 0;
    if (s->fixed || (!bad && !credit)) return;
    if (bad) {
        s->tracker = 0;
        s->strikes += 1;
        if (s->strikes < s->hysteresis) return;
        next = (double)s->scale * s->backoff;
        s->scale = (float)(next < s->floor ? s->floor : next > s->ceiling ? s->ceiling : next);
        return;
    }
    s->tracker += credit;
    while (s->tracker >= s->interval) {
        s->tracker = whole_intervals ? s->tracker - s->interval : 0;
        s->strikes = 0;
        next = (double)s->scale * s->growth;
        if (next <= s->ceiling && lksi_is_finite_f32((float)next)) s->scale = (float)next;
        else s->tracker = s->tracker % s->interval;
    }
}

/* The end of an iteration. given: the new scale of LKSI_SCALER_SET; one that cannot be is not taken. */
LKSI_HD void lksi_scaler_advance(lksi_scaler_state *s, int what, double given)
{
    int some = lksi_scaler_count(s);
    if (what == LKSI_SCALER_SET) {
        s->sticky = s->credit = 0;
        if (!lksi_is_finite_f64(given) || !(given > 0)) return;
        given = given < s->floor ? s->floor : given > s->ceiling ? s->ceiling : given;
        if (lksi_is_finite_f32((float)given) && (float)given > 0) s->scale = (float)given;
    } else if (what == LKSI_SCALER_WINDOW) {
        lksi_scaler_look(s, 1);
    } else if (what == LKSI_SCALER_STEP && some) {
        lksi_scaler_look(s, 0);
    }
    /* bounds that were set after it */
    if (what != LKSI_SCALER_HOLD && !s->fixed && (double)s->scale < s->floor) s->scale = (float)s->floor;
    if (what != LKSI_SCALER_HOLD && !s->fixed && (double)s->scale > s->ceiling) s->scale = (float)s->ceiling;
}

#endif
