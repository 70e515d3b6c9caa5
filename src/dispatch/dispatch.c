/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dispatch.c - the one door: decide dtype, cast, infer, allocate, launch, record. There is no second path for
 * gradients, optimizers or casts.
 */
#include "dispatch/dispatch.h"

#include "autocast/autocast.h"
#include "tape/tape.h"

#include <stdio.h>
#include <string.h>

#define POLL_EVERY 16 /* calls between two looks at communication */
#define ON_STACK 16   /* inputs handled without allocation; cat may have more */

static const lksi_view absent = {.data = NULL, .dtype = LKS_DTYPE_NONE, .ndim = -1};

/* A cast of t that keeps t's place in the graph: the gradient of whoever uses it goes where t's goes, and is converted
 * there. So casts need no nodes of their own. */
static lks_tensor *cast_for(lks_context *ctx, const char *where, lks_tensor *t, lks_dtype to)
{
    lks_tensor *c, *fill;
    if (lksi_autocast_find(ctx, t, to, &c, &fill) != LKS_OK) return NULL;
    if (c) {
        lksi_autocast_count(ctx, 1, 0);
        return c;
    }
    lksi_autocast_count(ctx, 0, t->numel * lks_dtype_size(to));
    lksi_attr attr = {.cast = {.dtype = to}};
    ctx->no_grad++;
    lks_status s;
    if (fill) {
        c = fill;
        s = lksi_call(ctx, where, LKSI_OP_copy, 1, &t, NULL, 1, &c);
    } else {
        s = lksi_call(ctx, where, LKSI_OP_cast, 1, &t, &attr, 1, &c);
    }
    ctx->no_grad--;
    if (s != LKS_OK) return NULL;
    if (fill) {
        lksi_autocast_filled(ctx, t, c);
        return c;
    }
    if (t->requires_grad && !ctx->no_grad) {
        lksi_edge e = lksi_edge_of(t);
        c->requires_grad = 1;
        c->out = e.out;
        if ((c->node = e.node)) e.node->own.refs++;
        c->leaf = lks_keep(e.leaf);
    }
    lksi_autocast_remember(ctx, t, c);
    return c;
}

lks_tensor *lksi_cast_for(lks_context *ctx, const char *where, lks_tensor *t, lks_dtype to)
{
    return lksi_autocast_eligible(t, to) ? cast_for(ctx, where, t, to) : t;
}

/* --- who watches --- */

/* What was decided for a call. */
typedef struct decision {
    int policy, casts;
    const char *why;
    lks_dtype to;
} decision;

static void tell(lks_context *ctx, const char *where, int op, const decision *d, int nin, const lksi_view *vin,
                 int nout, lks_tensor *const *out, int end, lks_status status)
{
    lks_observer_fn fn = ctx->observer;
    lks_dtype in_dtype[ON_STACK], out_dtype[LKSI_MAX_OUT];
    lks_op_event e = {.op = lksi_rows[op].name,
                      .where = where,
                      .backward = ctx->visiting,
                      .end = end,
                      .status = status,
                      .policy = d->policy,
                      .why = d->why,
                      .dtype = d->to,
                      .casts = d->casts,
                      .nin = nin,
                      .nout = nout,
                      .in = in_dtype,
                      .out = end ? out_dtype : NULL};
    if (!fn || ctx->looking) return;
    for (int i = 0; i < nin && i < ON_STACK; i++) in_dtype[i] = vin[i].ndim < 0 ? LKS_DTYPE_NONE : vin[i].dtype;
    for (int i = 0; i < nout; i++) out_dtype[i] = out[i] ? out[i]->v.dtype : LKS_DTYPE_NONE;
    ctx->observer = NULL;
    fn(ctx->observer_user, &e);
    if (!ctx->observer) ctx->observer = fn;
}

lks_status lks_observe(lks_context *ctx, lks_observer_fn fn, void *user)
{
    if (!ctx) return LKS_ERR_ARGUMENT;
    ctx->observer = fn;
    ctx->observer_user = user;
    return LKS_OK;
}

lks_status lks_anomaly_begin(lks_context *ctx)
{
    if (!ctx) return LKS_ERR_ARGUMENT;
    ctx->anomaly++;
    return LKS_OK;
}

lks_status lks_anomaly_end(lks_context *ctx)
{
    if (!ctx) return LKS_ERR_ARGUMENT;
    if (!ctx->anomaly)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_anomaly_end", "anomaly mode is not on (lks_anomaly_begin)");
    ctx->anomaly--;
    return LKS_OK;
}

/* *has: t holds a NaN. Waits for the device. */
static lks_status has_nan(lks_context *ctx, lks_tensor *t, int *has)
{
    *has = 0;
    if (t == lks_none || !lksi_has_gradient(t->v.dtype) || !t->numel) return LKS_OK;
    lks_status s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    lks_tensor *two[2] = {t, t};
    lksi_attr cast = {.cast = {.dtype = LKS_F32}}, all = {.reduce = {.mask = (1 << t->v.ndim) - 1, .dtype = LKS_F32}};
    float count = 0;
    lks_tensor *x = lksi_call1(ctx, "anomaly mode", LKSI_OP_ne, 2, two, NULL);
    if (x) x = lksi_call1(ctx, "anomaly mode", LKSI_OP_cast, 1, &x, &cast);
    if (x) x = lksi_call1(ctx, "anomaly mode", LKSI_OP_sum, 1, &x, &all);
    s = x ? lksi_device_read(ctx->dev, &count, x->v.data, sizeof count) : ctx->base.code;
    *has = count > 0;
    lks_scope_end(ctx);
    return s;
}

/* Fails for the first op that makes a NaN. */
static lks_status look(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in, int nout,
                       lks_tensor *const *out)
{
    lks_status s = LKS_OK;
    int bad = 0, from = 0, k = 0, i = 0;
    char text[256], given[64] = "";
    ctx->looking++;
    ctx->no_grad++;
    lksi_recompute *rc = ctx->recompute;
    ctx->recompute = NULL;
    lksi_autocast_suspend(ctx);
    for (k = 0; k < nout && s == LKS_OK; k++)
        if ((s = has_nan(ctx, out[k], &bad)) != LKS_OK || bad) break;
    for (i = 0; i < nin && bad && s == LKS_OK; i++)
        if ((s = has_nan(ctx, in[i], &from)) != LKS_OK || from) break;
    lksi_autocast_resume(ctx);
    ctx->recompute = rc;
    ctx->no_grad--;
    ctx->looking--;
    if (s != LKS_OK || !bad) return s;
    if (from) snprintf(given, sizeof given, "; input %d was given with one", i);
    return lksi_fail(&ctx->base, LKS_ERR_NAN, where, "%s%s%s made a NaN in output %d, %s%s", lksi_rows[op].name,
                     ctx->visiting ? ", called for the gradient of " : "", ctx->visiting ? ctx->visiting : "", k,
                     lksi_tensor_text(out[k], text, sizeof text), given);
}

static const lksi_attr no_attr;

static inline void args_init(lksi_args *a, lks_context *ctx, int op, int nin, const lksi_view *in, int nout,
                             lksi_view *out, const lksi_attr *attr, char *why)
{
    why[0] = 0;
    a->op = op, a->nin = nin, a->nout = nout, a->in = in, a->out = out, a->rng = ctx->rng, a->why = why;
    a->attr = *(attr ? attr : &no_attr);
}

static inline lks_status run(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                      const lksi_attr *attr, int nout, lks_tensor **out, lks_tensor **work, lksi_view *vin, decision *d)
{
    const lksi_row *row = &lksi_rows[op];
    lksi_base *b = &ctx->base;
    char why[LKSI_WHY];
    lksi_view vout[LKSI_MAX_OUT];
    lksi_args a;
    args_init(&a, ctx, op, nin, vin, nout, vout, attr, why);

    if (row->kind == LKSI_KIND_OP || row->kind == LKSI_KIND_NOGRAD) {
        lks_dtype to;
        TRY(lksi_autocast_decide(ctx, where, op, nin, in, &a.attr, &to));
        if (ctx->observer) lksi_autocast_last(ctx, &d->policy, &d->why);
        d->to = to;
        if (to != LKS_DTYPE_NONE) {
            for (int i = 0; i < nin; i++) {
                work[i] = in[i];
                d->casts += lksi_autocast_eligible(in[i], to);
                if (lksi_autocast_eligible(in[i], to) && !(work[i] = cast_for(ctx, where, in[i], to)))
                    return b->code ? b->code : LKS_ERR_MEMORY;
            }
            in = work;
        }
    }
    int is_complex = 0;
    for (int i = 0; i < nin; i++) {
        vin[i] = in[i] == lks_none ? absent : in[i]->v;
        is_complex |= vin[i].dtype == LKS_C64 || vin[i].dtype == LKS_C128;
    }
    for (int i = 0; i < nout; i++)
        is_complex |= out[i] && (out[i]->v.dtype == LKS_C64 || out[i]->v.dtype == LKS_C128);
    if (is_complex && !lksi_takes_complex(op))
        for (int i = 0; i < nin + nout; i++) {
            lks_dtype t = i < nin ? vin[i].dtype : out[i - nin] ? out[i - nin]->v.dtype : LKS_DTYPE_NONE;
            if (lks_dtype_is_complex(t))
                return lksi_fail(b, LKS_ERR_DTYPE, where,
                                 "%s is not there for %s (%s %d); lks_view_as_real, lks_real, lks_imag and lks_abs "
                                 "give real tensors",
                                 row->name, lks_dtype_name(t), i < nin ? "input" : "output", i < nin ? i : i - nin);
        }
    for (int i = 0; i < nout; i++) {
        if (out[i]) {
            vout[i] = out[i]->v;
        } else {
            vout[i].data = NULL;
            vout[i].dtype = LKS_DTYPE_NONE;
            vout[i].ndim = -1;
        }
    }
    lks_status s = row->infer(&a);
    if (s != LKS_OK) return lksi_fail(b, s, where, "%s", why);

    int given = 0;
    for (int i = 0; i < nout; i++) {
        if (out[i]) {
            given |= 1 << i;
            if (row->kind != LKSI_KIND_INPLACE) { /* an out form: shape must agree, a float may be wider */
                const lksi_view *o = &out[i]->v;
                int same =
                    o->ndim == vout[i].ndim && !memcmp(o->shape, vout[i].shape, (size_t)o->ndim * sizeof(int64_t)) &&
                    (o->dtype == vout[i].dtype || (lks_dtype_is_float(o->dtype) && lks_dtype_is_float(vout[i].dtype)));
                if (!same) {
                    char have[200], want[200];
                    return lksi_fail(b, LKS_ERR_SHAPE, where, "output is %s%s, needed is %s%s",
                                     lks_dtype_name(o->dtype), lksi_shape_text(o, have, sizeof have),
                                     lks_dtype_name(vout[i].dtype), lksi_shape_text(&vout[i], want, sizeof want));
                }
            }
            vout[i] = out[i]->v;
        } else if (row->kind == LKSI_KIND_VIEW) {
            int64_t numel; /* an expanded view may have more elements than int64 holds */
            TRY(lksi_check_shape(ctx, where, vout[i].dtype, vout[i].ndim, vout[i].shape, &numel));
            if (!(out[i] = lksi_tensor_on(in[0]->st, &vout[i]))) return LKS_ERR_MEMORY;
            out[i]->is_view = 1;
        } else {
            if (!(out[i] = lksi_tensor_new(ctx, &vout[i], where))) return b->code ? b->code : LKS_ERR_MEMORY;
            vout[i].data = out[i]->v.data;
        }
    }
    if (ctx->observer) tell(ctx, where, op, d, nin, vin, nout, out, 0, LKS_OK);
    if (row->kind != LKSI_KIND_VIEW) {
        int work_to_do = 0;
        for (int i = 0; i < nout; i++) work_to_do |= out[i]->numel > 0;
        lks_status before = b->code;
        if (work_to_do && (s = lksi_device_launch(ctx->dev, &a)) != LKS_OK) {
            if (s == LKS_ERR_MEMORY && before == LKS_OK) lksi_tensors_alive(ctx, &vout[0], where);
            lksi_fail(b, s, where, "%s", why[0] ? why : "the kernel failed");
            return s;
        }
    }
    for (int i = 0; i < nout; i++)
        if (given >> i & 1) out[i]->st->version++;
    if (op == LKSI_OP_batch_norm) /* staged statistics are inputs that it writes */
        for (int i = 5; i < nin && i < 7; i++)
            if (in[i] != lks_none) in[i]->st->version++;
    if ((row->kind == LKSI_KIND_OP || row->kind == LKSI_KIND_VIEW || row->kind == LKSI_KIND_NOGRAD) && !given &&
        lksi_tape_wants(ctx, nin, in) && lksi_has_gradient(out[0]->v.dtype))
        return lksi_tape_record(ctx, op, nin, in, &a.attr, nout, out);
    return LKS_OK;
}

lks_status lksi_call(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in, const lksi_attr *attr,
                     int nout, lks_tensor **out)
{
    const lksi_row *row = &lksi_rows[op];
    if (!ctx) return LKS_ERR_ARGUMENT; /* LKS_NONE alone */
    if (nin < row->min_in || nin > row->max_in || nout != row->nout)
        return lksi_fail(&ctx->base, LKS_ERR_INTERNAL, where, "row %s called with %d inputs and %d outputs", row->name,
                         nin, nout);
    for (int i = 0; i < nin; i++) {
        if (!in[i]) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
        if (in[i] == lks_none) {
            if (i < row->min_in &&
                !(row->kind == LKSI_KIND_NOGRAD && row->min_in > 2)) /* but for fused backward rows */
                return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "input %d of %s cannot be LKS_NONE", i,
                                 row->name);
        } else if (in[i]->ctx != ctx) {
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "input %d belongs to another context", i);
        }
    }
    lksi_fpenv env;
    lksi_fpenv_enter(&env);
    lks_status s;
    decision d = {LKS_POLICY_NONE, 0, "an op in place or a view: never cast", LKS_DTYPE_NONE};
    lksi_view few_vin[ON_STACK], *vin = few_vin;
    lks_tensor *few_work[ON_STACK], **work = few_work;
    if (__builtin_expect(nin > ON_STACK, 0)) {
        vin = lksi_alloc(&ctx->base, nin * (int64_t)(sizeof *vin + sizeof(lks_tensor *)));
        work = (lks_tensor **)(vin + nin);
    }
    if (vin) {
        for (int i = 0; i < nin && ctx->observer; i++) vin[i] = in[i] == lks_none ? absent : in[i]->v;
        s = run(ctx, where, op, nin, in, attr, nout, out, work, vin, &d);
        if (ctx->observer) tell(ctx, where, op, &d, nin, vin, nout, out, 1, s);
        if (vin != few_vin) lksi_free(&ctx->base, vin);
    } else {
        s = LKS_ERR_MEMORY;
    }
    if (s == LKS_OK && ctx->anomaly && !ctx->looking && row->kind != LKSI_KIND_VIEW)
        s = look(ctx, where, op, nin, in, nout, out);
    lksi_fpenv_leave(&env);
    if (ctx->poll && ++ctx->door_count % POLL_EVERY == 0) ctx->poll(ctx->comm);
    return s;
}

lks_tensor *lksi_call1(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                       const lksi_attr *attr)
{
    lks_tensor *out = NULL;
    return lksi_call(ctx, where, op, nin, in, attr, 1, &out) == LKS_OK ? out : NULL;
}

lks_status lksi_call_raw(lks_context *ctx, const char *where, int op, int nin, const lksi_view *in,
                         const lksi_attr *attr, int nout, lksi_view *out)
{
    char why[LKSI_WHY];
    lksi_args a;
    args_init(&a, ctx, op, nin, in, nout, out, attr, why);
    lks_status s = lksi_rows[op].infer(&a);
    lksi_fpenv env;
    lksi_fpenv_enter(&env);
    if (s == LKS_OK) s = lksi_device_launch(ctx->dev, &a);
    lksi_fpenv_leave(&env);
    return s == LKS_OK ? s : lksi_fail(&ctx->base, s, where, "%s", why[0] ? why : "the kernel failed");
}

lks_status lksi_composite_begin(lks_context *ctx, const char *where, int op, int nin, lks_tensor *const *in,
                                lks_tensor **work)
{
    const lksi_row *row = &lksi_rows[op];
    lks_dtype to;
    lksi_attr none = {{0}};
    if (!ctx) return LKS_ERR_ARGUMENT;
    for (int i = 0; i < nin; i++) {
        if (!in[i]) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
        if (in[i] == lks_none && i < row->min_in)
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "input %d of %s cannot be LKS_NONE", i, row->name);
        if (in[i] != lks_none && in[i]->ctx != ctx)
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "input %d belongs to another context", i);
        work[i] = in[i];
    }
    TRY(lksi_autocast_decide(ctx, where, op, nin, in, &none, &to));
    if (ctx->observer) { /* no end: its ops follow */
        decision d = {.to = to};
        lksi_view vin[ON_STACK];
        lksi_autocast_last(ctx, &d.policy, &d.why);
        for (int i = 0; i < nin && i < ON_STACK; i++) {
            vin[i] = in[i] == lks_none ? absent : in[i]->v;
            if (lksi_autocast_eligible(in[i], to) && to != LKS_DTYPE_NONE) {
                vin[i].dtype = to;
                d.casts++;
            }
        }
        tell(ctx, where, op, &d, nin, vin, 0, NULL, 0, LKS_OK);
    }
    for (int i = 0; i < nin && to != LKS_DTYPE_NONE; i++)
        if (lksi_autocast_eligible(in[i], to) && !(work[i] = cast_for(ctx, where, in[i], to)))
            return ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
    if (lksi_autocast_policy(ctx, op) != LKS_POLICY_NONE) lksi_autocast_suspend(ctx);
    return LKS_OK;
}

void lksi_composite_end(lks_context *ctx, int op)
{
    if (lksi_autocast_policy(ctx, op) != LKS_POLICY_NONE) lksi_autocast_resume(ctx);
}
