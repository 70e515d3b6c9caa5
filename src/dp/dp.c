/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dp.c - the training window: from one step to the next, micro-batches accumulate, the last backward reduces. How
 * buckets are laid out is in buckets.c, comparisons over ranks in same.c.
 *
 * Every rank posts the same collectives in the same order, whatever happened to it: true weight, control, buckets 0, 1,
 * ..., presence; then, in finish, staged buffers if any rank has some. A rank that failed posts them all, too, and says
 * so in the optimizer's flag.
 */
#include "base/guard.h"
#include "dispatch/dispatch.h"
#include "dp/inside.h"
#include "grad/grad.h"
#include "scaler/scaler.h"
#include <lockstep/ops.h>
#include <stdio.h>
#include <string.h>

#define BUCKET_BYTES (4 << 20)

static const char backward_name[] = "lks_dp_backward";

/* --- buckets on their way ----------------------------------------------------------------------------------------- */

static lks_status start_bucket(lks_dp *dp, int k)
{
    lksi_bucket *q = &dp->bucket[k];
    int size = lks_dtype_size(q->arena);
    if (dp->here && q->end > q->begin) { /* whose fault it is can be seen only before the sum */
        int64_t n = q->end - q->begin, one = 1;
        lksi_view in, out;
        lksi_view_init(&in, q->arena, 1, &n);
        lksi_view_init(&out, LKS_I32, 1, &one);
        in.data = dp->ps->arena[q->arena]->grad + q->begin * size;
        out.data = dp->here;
        if (lksi_call_raw(dp->ctx, backward_name, LKSI_OP_grad_check, 1, &in, NULL, 1, &out) != LKS_OK)
            dp->failed = 1; /* the reduction is joined all the same */
    }
    dp->collectives++;
    return lksi_comm_all_reduce(dp->ctx->comm, q->what, dp->ps->arena[q->arena]->grad + q->begin * size,
                                q->end - q->begin, q->arena, LKS_SUM, &q->rq);
}

static lks_status start_ready(lks_dp *dp)
{
    while (dp->next < dp->buckets && dp->bucket[dp->next].ready == dp->bucket[dp->next].members) {
        TRY(start_bucket(dp, dp->next)); /* counted as started only when it was */
        dp->next++;
    }
    return LKS_OK;
}

static lks_status on_gradient(void *user, lks_tensor *leaf, lks_tensor *grad)
{
    (void)leaf;
    (void)grad;
    lksi_dp_hook *h = user;
    lks_dp *dp = h->dp;
    int k = dp->bucket_of[h->entry];
    if (!dp->syncing || k < 0 || dp->seen[h->entry]) return LKS_OK;
    dp->seen[h->entry] = 1;
    dp->bucket[k].ready++;
    TRY(start_ready(dp));
    if (dp->ctx->base.size > 1) lksi_comm_poll(dp->ctx->comm);
    return LKS_OK;
}

/* --- which gradients there are ------------------------------------------------------------------------------------ */

/* Asked of all by all, but a rank that lacks no gradient needs no answer: it takes it when it asks anew. */
static lks_status post_present(lks_dp *dp)
{
    const lks_params *ps = dp->ps;
    if (dp->ctx->base.size == 1 || !dp->buckets) return LKS_OK;
    TRY(lksi_host_reduce_finish(dp->ctx->comm, &dp->present_rq));
    dp->absent = 0;
    for (int i = 0; i < ps->n; i++) {
        int wanted = dp->bucket_of[i] >= 0;
        dp->present[i] = wanted && ps->e[i].t->grad;
        dp->absent |= wanted && !ps->e[i].t->grad;
    }
    /* A step that is replayed has the gradients that it had, on every rank: nothing is asked again. */
    lksi_device *d = dp->ctx->dev;
    lksi_trace *trace = d->trace;
    d->trace = NULL;
    lks_status st = lksi_host_reduce_start(dp->ctx->comm, "gradients that are present", dp->present, ps->n, LKS_MAX,
                                           &dp->present_rq);
    d->trace = trace;
    return st;
}

/* A gradient that another rank has is there on this one, too: 0 was added to it. */
static lks_status take_present(lks_dp *dp)
{
    if (!dp->absent) return LKS_OK;
    dp->absent = 0;
    TRY(lksi_host_reduce_finish(dp->ctx->comm, &dp->present_rq));
    for (int i = 0; i < dp->ps->n; i++) {
        lks_tensor *t = dp->ps->e[i].t;
        if (!dp->present[i] || t->grad) continue;
        t->grad = lks_keep(t->grad_slot);
        lksi_grad_set_scale(t, dp->scale);
    }
    return LKS_OK;
}

/* What backward did not reach: accumulated earlier, or absent and then zero. */
static lks_status start_rest(lks_dp *dp)
{
    lks_params *ps = dp->ps;
    lks_status mine = LKS_OK;
    for (int i = 0; i < ps->n; i++) {
        if (dp->bucket_of[i] < dp->next || dp->seen[i] || ps->e[i].t->grad) continue;
        const lksi_arena *a = ps->arena[ps->e[i].arena];
        const lksi_slice *s = &a->slice[ps->e[i].slice];
        int size = lks_dtype_size(a->dtype);
        lks_status st = s->numel ? lksi_device_zero(dp->ctx->dev, a->grad + s->offset * size, s->numel * size) : LKS_OK;
        if (mine == LKS_OK) mine = st;
    }
    for (; dp->next < dp->buckets; dp->next++) TRY(start_bucket(dp, dp->next));
    TRY(post_present(dp));
    return mine;
}

/* --- true weight -------------------------------------------------------------------------------------------------- */

static lksi_view one(void *data, lks_dtype dtype)
{
    lksi_view v;
    lksi_view_init(&v, dtype, 0, NULL);
    v.data = data;
    return v;
}

static lks_status add_weight(lks_dp *dp, double weight, lks_tensor *t)
{
    lks_context *ctx = dp->ctx;
    if (t == LKS_NONE) {
        if (!(weight >= 0 && weight <= 0x1p1000))
            return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, backward_name, "weight is %g; it must be >= 0 and finite",
                             weight);
        dp->host_weight += weight;
        return LKS_OK;
    }
    if (!t) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
    if (t->numel != 1)
        return lksi_fail(&ctx->base, LKS_ERR_SHAPE, backward_name, "the weight tensor has %lld elements, not one",
                         (long long)t->numel);
    if (!dp->device_weight) TRY(lksi_device_zero(ctx->dev, dp->weight, sizeof(double)));
    dp->device_weight = 1;
    lksi_view in = one(t->v.data, t->v.dtype), out = one(dp->weight, LKS_F64);
    return lksi_call_raw(ctx, backward_name, LKSI_OP_accumulate, 1, &in, NULL, 1, &out);
}

static lks_status post_weight(lks_dp *dp)
{
    lks_context *ctx = dp->ctx;
    lks_status mine = LKS_OK;
    if (!dp->device_weight) {
        mine = lksi_device_write(ctx->dev, dp->weight, &dp->host_weight, sizeof(double));
    } else if (dp->host_weight != 0) {
        mine = lksi_device_write(ctx->dev, dp->weight + 1, &dp->host_weight, sizeof(double));
        lksi_view in = one(dp->weight + 1, LKS_F64), out = one(dp->weight, LKS_F64);
        if (mine == LKS_OK) mine = lksi_call_raw(ctx, backward_name, LKSI_OP_accumulate, 1, &in, NULL, 1, &out);
    }
    TRY(lksi_comm_all_reduce(ctx->comm, "true weight of the step", dp->weight, 1, LKS_F64, LKS_SUM, &dp->weight_rq));
    return mine;
}

/* --- staged buffers ----------------------------------------------------------------------------------------------- */

static lks_status post_control(lks_dp *dp)
{
    if (!dp->ps->buffers || dp->ctx->base.size == 1) return LKS_OK;
    dp->staged_here = dp->ps->buffers_dirty;
    dp->staged_ranks = dp->staged_here ? 1 : 0;
    return lksi_host_reduce_start(dp->ctx->comm, "ranks with staged buffers", &dp->staged_ranks, 1, LKS_SUM,
                                  &dp->control_rq);
}

/* Mean over the ranks whose forward staged something; afterwards every rank has it staged. */
static lks_status average_staged(lks_dp *dp)
{
    lks_params *ps = dp->ps;
    lks_context *ctx = dp->ctx;
    TRY(lksi_host_reduce_finish(ctx->comm, &dp->control_rq));
    if (ctx->base.size == 1 || !ps->buffers || dp->staged_ranks == 0) return LKS_OK;
    lks_status mine = LKS_OK;
    for (int i = 0; i < ps->n; i++)
        if (ps->e[i].is_buffer && ps->e[i].t->v.dtype == LKS_F32 && !lksi_params_staged(ps, i) && mine == LKS_OK)
            mine = ctx->base.code ? ctx->base.code : LKS_ERR_MEMORY;
    lksi_arena *a = ps->staged;
    if (!dp->staged_here) {
        lks_status st = lksi_device_zero(ctx->dev, a->value, a->count * (int64_t)sizeof(float));
        if (mine == LKS_OK) mine = st;
    }
    lksi_request *rq = NULL;
    TRY(lksi_comm_all_reduce(ctx->comm, "staged buffers", a->value, a->count, LKS_F32, LKS_SUM, &rq));
    TRY(lksi_comm_wait(ctx->comm, &rq));
    if (dp->staged_ranks > 1) {
        void *sum = NULL;
        lks_status st = lksi_device_alloc(ctx->dev, a->count * (int64_t)sizeof(float), &sum);
        if (st == LKS_OK) st = lksi_device_copy(ctx->dev, sum, a->value, a->count * (int64_t)sizeof(float));
        if (st == LKS_OK) {
            lksi_view in, out;
            lksi_view_init(&in, LKS_F32, 1, &a->count);
            out = in;
            in.data = sum;
            out.data = a->value;
            lksi_attr attr = {.affine = {1.0 / (double)dp->staged_ranks, 0}};
            st = lksi_call_raw(ctx, backward_name, LKSI_OP_affine, 1, &in, &attr, 1, &out);
        }
        lksi_device_free(ctx->dev, sum);
        if (mine == LKS_OK) mine = st;
    }
    lksi_arena_touched(a, 0);
    return mine;
}

/* --- the reducer, as the optimizer sees it ------------------------------------------------------------------------ */

static lks_status finish(void *self)
{
    lks_dp *dp = self;
    lks_context *ctx = dp->ctx;
    if (dp->finished) return LKS_OK;
    if (!dp->synced)
        return lksi_fail(
            &ctx->base, LKS_ERR_STATE, "lks_optim_step",
            "the gradients were not reduced: %s with last = 1 comes before the step (%lld calls so far, none "
            "the last)",
            backward_name, (long long)dp->micro);
    TRY(lksi_comm_wait(ctx->comm, &dp->weight_rq));
    for (int k = 0; k < dp->buckets; k++) TRY(lksi_comm_wait(ctx->comm, &dp->bucket[k].rq));
    TRY(take_present(dp));
    lks_status mine = average_staged(dp);
    for (int i = 0; i < dp->ps->n; i++)
        if (dp->bucket_of[i] >= 0) {
            lks_tensor *t = dp->ps->e[i].t;
            int64_t scale = lksi_grad_scale(t);
            t->grad_slot->st->version++;
            lksi_grad_set_scale(t, scale);
        }
    dp->finished = 1;
    if (mine != LKS_OK) dp->failed = 1;
    return mine;
}

static int failed(void *self)
{
    return ((lks_dp *)self)->failed;
}

static const double *weight(void *self)
{
    return ((lks_dp *)self)->weight;
}

static double nominal(void *self)
{
    return ((lks_dp *)self)->nominal;
}

static const int32_t *here(void *self)
{
    return ((lks_dp *)self)->here;
}

static int bucket_of(void *self, int entry)
{
    const lks_dp *dp = self;
    return entry >= 0 && entry < dp->ps->n ? dp->bucket_of[entry] : -1;
}

static void new_window(lks_dp *dp)
{
    dp->micro = 0;
    dp->failed = dp->synced = dp->finished = 0;
    dp->host_weight = 0;
    dp->device_weight = 0;
}

static void stepped(void *self)
{
    lks_dp *dp = self;
    for (int i = 0; i < dp->hooks; i++) {
        const lks_tensor *t = dp->ps->e[i].t;
        dp->hook[i].stepped = t->grad && dp->bucket_of[i] >= 0 ? t->grad->st->version : -1;
    }
    new_window(dp);
}

/* A gradient that was reduced holds the sum over ranks: reduced again it would count once for each of them. */
static lks_status begin_window(lks_dp *dp)
{
    dp->ps->window++;
    for (int i = 0; i < dp->hooks; i++) {
        const lks_tensor *t = dp->ps->e[i].t;
        if (dp->bucket_of[i] < 0 || !t->grad || t->grad->st->version != dp->hook[i].stepped) continue;
        return lksi_fail(&dp->ctx->base, LKS_ERR_STATE, backward_name,
                         "the gradient of parameter %s is still that of the last step, summed over the ranks: "
                         "lks_params_zero_grad comes before the next backward",
                         dp->ps->e[i].name);
    }
    return LKS_OK;
}

/* Reductions that are under way end first: their buffers will be used again. */
static lks_status dropped(void *self)
{
    lks_dp *dp = self;
    lks_status s = dp->synced ? finish(dp) : LKS_OK;
    new_window(dp);
    return s;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static lks_status run_backward(lks_dp *dp, lks_scaler *s, lks_tensor *loss)
{
    lks_context *ctx = dp->ctx;
    if (loss == LKS_NONE) return LKS_OK;
    if (!loss) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT; /* forward failed and said why */
    TRY(lks_scope_begin(ctx));
    lks_status st = LKS_OK;
    lks_tensor *scaled = lks_scaler_scale(s, loss);
    lks_tensor *seed = NULL;
    if (scaled)
        seed = lks_full(ctx, scaled->v.dtype == LKS_F64 ? LKS_F64 : LKS_F32, scaled->v.ndim, scaled->v.shape,
                        1.0 / dp->nominal);
    if (!seed) st = ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
    else if (loss->numel != 1)
        st =
            lksi_fail(&ctx->base, LKS_ERR_SHAPE, backward_name,
                      "the loss has %lld elements: pass the sum over the samples, one element", (long long)loss->numel);
    else st = lksi_backward_plain(scaled, seed);
    lks_scope_end(ctx);
    return st;
}

/* Trainable flags changed (at a zero_grad, which ended what was accumulated): lay out anew. */
static lks_status follow_layout(lks_dp *dp)
{
    if (dp->layout == dp->ps->layout_version) return LKS_OK;
    new_window(dp);
    dp->unchecked = 1;
    return lksi_buckets_build(dp);
}

lks_status lks_dp_backward(lks_dp *dp, lks_scaler *s, lks_tensor *loss, double samples, lks_tensor *weight_tensor,
                           int last)
{
    if (!dp) return LKS_ERR_ARGUMENT;
    lks_context *ctx = dp->ctx;
    lksi_comm *c = ctx->comm;
    if (!(dp->nominal > 0))
        return lksi_fail(&ctx->base, LKS_ERR_STATE, backward_name, "lks_dp_set_nominal comes first");
    if (dp->synced)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, backward_name,
                         "the gradients of this step are reduced already (last = 1): lks_optim_step comes next");
    c->step = ctx->attempt + 1;
    lks_status mine = follow_layout(dp);
    if (mine != LKS_OK) return mine; /* no buckets, nothing to join with: the others will miss this rank */
    if (dp->micro++ == 0) mine = begin_window(dp);
    if (mine == LKS_OK) mine = add_weight(dp, samples, weight_tensor);
    lks_status st = LKS_OK;
    if (last) {
        if (dp->unchecked) {
            TRY(lksi_dp_same_entries(dp, backward_name));
            dp->unchecked = 0;
        }
        dp->next = 0;
        for (int k = 0; k < dp->buckets; k++) dp->bucket[k].ready = 0;
        memset(dp->seen, 0, (size_t)dp->ps->n);
        st = post_weight(dp);
        if (mine == LKS_OK) mine = st;
        if (dp->here && (st = lksi_device_zero(ctx->dev, dp->here, sizeof *dp->here)) != LKS_OK && mine == LKS_OK)
            mine = st;
        TRY(post_control(dp));
        dp->scale = s && lks_scaler_enabled(s) ? lksi_scaler_number(s) : LKSI_GRAD_PLAIN;
        dp->syncing = 1;
    }
    if (mine == LKS_OK) mine = run_backward(dp, s, loss);
    if (last) {
        dp->syncing = 0;
        st = start_rest(dp);
        dp->synced = 1;
        if (mine == LKS_OK) mine = st;
    }
    if (mine != LKS_OK) dp->failed = 1;
    return mine;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* What steps move. */
static void list(void *self, lksi_moves *m)
{
    lks_dp *dp = self;
    int64_t nominal = 0;
    memcpy(&nominal, &dp->nominal, sizeof nominal);
    lksi_fact(m, nominal);
    lksi_fact(m, dp->micro);
    lksi_fact(m, dp->failed | dp->syncing << 1 | dp->synced << 2 | dp->finished << 3 | dp->unchecked << 4 |
                     dp->device_weight << 5);
    lksi_fact(m, dp->host_weight != 0);
    lksi_fact(m, dp->layout - dp->ps->layout_version);
    lksi_fact(m, dp->buckets);
    lksi_counter(m, &dp->collectives);
    for (int i = 0; i < dp->hooks; i++) {
        const lks_tensor *t = dp->ps->e[i].t;
        if (t->grad && dp->hook[i].stepped >= 0) lksi_stamp(m, &dp->hook[i].stepped, t->grad->st->version);
        else lksi_fact(m, dp->hook[i].stepped >= 0);
    }
}

static lks_status send_from_zero(lks_dp *dp)
{
    static const char where[] = "lks_dp_create";
    lks_params *ps = dp->ps;
    lksi_comm *c = dp->ctx->comm;
    lksi_request *rq = NULL;
    if (c->size == 1) return LKS_OK;
    for (int k = 0; k <= LKSI_ARENAS; k++) {
        lksi_arena *a = k < LKSI_ARENAS ? ps->arena[k] : ps->buffers;
        if (!a || !a->count) continue;
        TRY(lksi_comm_broadcast(c, where, a->value, a->count * lks_dtype_size(a->dtype), 0, &rq));
        TRY(lksi_comm_wait(c, &rq));
        lksi_arena_touched(a, 0);
    }
    for (int i = 0; i < ps->n; i++) { /* buffers that are in no block */
        lks_tensor *t = ps->e[i].t;
        if (!ps->e[i].is_buffer || t->v.dtype == LKS_F32) continue;
        TRY(lksi_comm_broadcast(c, where, t->v.data, t->numel * lks_dtype_size(t->v.dtype), 0, &rq));
        TRY(lksi_comm_wait(c, &rq));
        t->st->version++;
    }
    return LKS_OK;
}

static lks_status add_hooks(lks_dp *dp)
{
    lks_params *ps = dp->ps;
    for (int i = 0; i < ps->n; i++) {
        lksi_dp_hook *h = &dp->hook[i];
        lks_tensor *t = ps->e[i].t;
        h->dp = dp;
        h->entry = i;
        h->stepped = -1;
        if (ps->e[i].is_buffer) continue;
        /* A frozen parameter may be freed later: its hook is in place, and never called till then. */
        int was = t->requires_grad;
        t->requires_grad = 1;
        lks_status st = lks_hook_add(t, on_gradient, h, &h->id);
        t->requires_grad = (uint8_t)was;
        TRY(st);
    }
    return LKS_OK;
}

static lks_status set_up(lks_dp *dp)
{
    lks_params *ps = dp->ps;
    lksi_base *b = &dp->ctx->base;
    TRY(lks_params_seal(ps));
    dp->bucket_of = lksi_alloc(b, (ps->n + 1) * (int64_t)sizeof *dp->bucket_of);
    dp->seen = lksi_alloc(b, ps->n + 1);
    dp->hook = lksi_alloc(b, (ps->n + 1) * (int64_t)sizeof *dp->hook);
    dp->present = lksi_alloc(b, (ps->n + 1) * (int64_t)sizeof *dp->present);
    if (!dp->bucket_of || !dp->seen || !dp->hook || !dp->present) return LKS_ERR_MEMORY;
    dp->hooks = ps->n;
    void *p = NULL;
    TRY(lksi_device_alloc(dp->ctx->dev, 2 * sizeof(double), &p));
    dp->weight = p;
    TRY(lksi_device_zero(dp->ctx->dev, dp->weight, 2 * sizeof(double)));
    if (dp->ctx->base.size > 1) {
        TRY(lksi_device_alloc(dp->ctx->dev, sizeof *dp->here, &p));
        dp->here = p;
        TRY(lksi_device_zero(dp->ctx->dev, dp->here, sizeof *dp->here));
    }
    TRY(lksi_buckets_build(dp));
    return add_hooks(dp);
}

lks_status lks_dp_create(lks_params *ps, int64_t bucket_bytes, lks_dp **out)
{
    static const char where[] = "lks_dp_create";
    if (!ps || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_context *ctx = ps->ctx;
    lks_dp *dp = lksi_alloc(&ctx->base, sizeof *dp);
    lks_status st = dp ? LKS_OK : LKS_ERR_MEMORY;
    if (st == LKS_OK && bucket_bytes < 0)
        st = lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, where, "bucket_bytes is %lld; it must be >= 0",
                       (long long)bucket_bytes);
    if (st == LKS_OK && ps->reducer)
        st = lksi_fail(&ctx->base, LKS_ERR_STATE, where, "this parameter set already has an lks_dp");
    if (st == LKS_OK) {
        dp->ctx = ctx;
        dp->ps = ps;
        dp->bucket_bytes = bucket_bytes ? bucket_bytes : BUCKET_BYTES;
        dp->reducer = (lksi_reducer){dp, finish, failed, weight, nominal, stepped, here, bucket_of, dropped};
        st = set_up(dp);
    }
    st = lksi_agree(ctx->comm, where, st);
    if (st == LKS_OK) st = lksi_dp_same_entries(dp, where);
    if (st == LKS_OK) st = send_from_zero(dp);
    if (st != LKS_OK) {
        if (dp && dp->ctx) lks_dp_destroy(&dp);
        else lksi_free(&ctx->base, dp);
        return st;
    }
    ps->reducer = &dp->reducer;
    lksi_mover_add(ctx, &dp->mover, dp, list);
    *out = dp;
    return LKS_OK;
}

void lks_dp_destroy(lks_dp **pdp)
{
    if (!pdp || !*pdp) return;
    lks_dp *dp = *pdp;
    lks_context *ctx = dp->ctx;
    lksi_base *b = &ctx->base;
    lksi_mover_remove(&dp->mover);
    /* What is on its way uses memory of ours: it has to arrive (or the communicator is broken). */
    (void)lksi_comm_wait(ctx->comm, &dp->weight_rq);
    for (int k = 0; k < dp->buckets; k++) (void)lksi_comm_wait(ctx->comm, &dp->bucket[k].rq);
    (void)lksi_host_reduce_finish(ctx->comm, &dp->control_rq);
    (void)lksi_host_reduce_finish(ctx->comm, &dp->present_rq);
    for (int i = 0; dp->hook && i < dp->hooks; i++)
        if (dp->hook[i].id) (void)lks_hook_remove(dp->ps->e[i].t, dp->hook[i].id);
    if (dp->ps->reducer == &dp->reducer) dp->ps->reducer = NULL;
    lksi_buckets_free(dp);
    lksi_free(b, dp->bucket_of);
    lksi_free(b, dp->seen);
    lksi_free(b, dp->hook);
    lksi_free(b, dp->present);
    if (dp->weight) lksi_device_free(ctx->dev, dp->weight);
    if (dp->here) lksi_device_free(ctx->dev, dp->here);
    lksi_free(b, dp);
    *pdp = NULL;
}

lks_status lks_dp_set_nominal(lks_dp *dp, double value)
{
    LKSI_GUARD;
    if (!dp) return LKS_ERR_ARGUMENT;
    if (!(value > 0 && value <= 0x1p1000))
        return lksi_fail(&dp->ctx->base, LKS_ERR_ARGUMENT, "lks_dp_set_nominal", "weight is %g; it must be > 0", value);
    if (dp->micro)
        return lksi_fail(&dp->ctx->base, LKS_ERR_STATE, "lks_dp_set_nominal",
                         "%s was called for this step already: set it after lks_optim_step", backward_name);
    dp->nominal = value;
    return LKS_OK;
}

int lks_dp_bucket_count(const lks_dp *dp)
{
    return dp ? dp->buckets : 0;
}

int64_t lks_dp_bucket_numel(const lks_dp *dp, int i)
{
    return dp && i >= 0 && i < dp->buckets ? dp->bucket[i].numel : 0;
}

int64_t lks_dp_collectives(const lks_dp *dp)
{
    return dp ? dp->collectives : 0;
}
