/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.c - parameter sets: declaration, sealing into arenas, presence of gradients, staged buffers. Knows nothing of
 * layers, of optimizers or of other ranks.
 */
#include "nn/params.h"

#include "dispatch/dispatch.h"
#include "table/step.h"

#include <string.h>

#define NAME_BYTES 1024

/* --- what steps move --- */

static void list_parameter(lks_tensor *t, lksi_moves *m)
{
    lksi_fact(m, (t->grad != NULL) | (t->grad == t->grad_slot) << 1 | (t->hooks != NULL) << 2);
    if (t->grad_slot) lksi_counter(m, &t->grad_slot->st->version);
    if (!t->grad) return;
    if (t->grad != t->grad_slot) lksi_counter(m, &t->grad->st->version);
    lksi_stamp(m, &t->grad_version, t->grad->st->version);
    lksi_fact(m, t->grad_scale > 0 ? 1 : t->grad_scale);
    if (t->grad_scale > 0) lksi_counter(m, &t->grad_scale);
}

static void list_arena(lksi_arena *a, lksi_moves *m)
{
    lksi_fact_at(m, a);
    if (!a) return;
    lksi_fact_at(m, a->twin[0]);
    lksi_fact_at(m, a->twin[1]);
    for (int i = 0; i < a->slices; i++)
        for (int w = 0; w < 2; w++) {
            lksi_slice *s = &a->slice[i];
            lksi_fact_at(m, s->twin[w]);
            if (!s->twin[w]) continue;
            lksi_counter(m, &s->twin[w]->st->version);
            lksi_stamp(m, &s->twin_version[w], s->value->st->version);
        }
}

static void list(void *self, lksi_moves *m)
{
    lks_params *ps = self;
    lksi_fact(m, ps->n);
    lksi_fact(m, ps->sealed | ps->buffers_dirty << 1);
    lksi_fact(m, ps->layout_version);
    lksi_fact_at(m, ps->reducer);
    lksi_counter(m, &ps->window);
    for (int i = 0; i < ps->n; i++) {
        lksi_entry *e = &ps->e[i];
        lksi_fact(m, e->trainable | e->want_trainable << 1 | e->t->requires_grad << 2 | e->staged_dirty << 3);
        lksi_fact_at(m, e->t->v.data);
        lksi_fact_at(m, e->staged);
        lksi_counter(m, &e->t->st->version);
        if (!e->is_buffer) list_parameter(e->t, m);
        if (!e->staged) continue;
        lksi_counter(m, &e->staged->st->version);
        lksi_stamp(m, &e->staged_version, e->staged->st->version);
        lksi_stamp(m, &e->running_version, e->t->st->version);
    }
    for (int k = 0; k < LKSI_ARENAS; k++) list_arena(ps->arena[k], m);
}

/* --- declaration --- */

lks_status lks_params_create(lks_context *ctx, lks_params **out)
{
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_params *ps = lksi_alloc(&ctx->base, sizeof *ps);
    if (!ps) return LKS_ERR_MEMORY;
    ps->ctx = ctx;
    lksi_mover_add(ctx, &ps->mover, ps, list);
    *out = ps;
    return LKS_OK;
}

void lks_params_destroy(lks_params **pps)
{
    if (!pps || !*pps) return;
    lks_params *ps = *pps;
    lksi_base *b = &ps->ctx->base;
    lksi_mover_remove(&ps->mover);
    for (int k = 0; k < LKSI_ARENAS; k++) lksi_arena_destroy(ps->arena[k]);
    lksi_arena_destroy(ps->buffers);
    lksi_arena_destroy(ps->staged);
    for (int i = 0; i < ps->n; i++) {
        lks_release(ps->e[i].staged);
        lks_release(ps->e[i].t);
        lksi_free(b, ps->e[i].name);
    }
    lksi_free(b, ps->e);
    lksi_free(b, ps);
    *pps = NULL;
}

/* 1 if s is well-formed UTF-8: shortest forms, no surrogates, at most U+10FFFF. */
static int utf8(const char *s)
{
    const unsigned char *p = (const void *)s;
    while (*p) {
        static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
        int len = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
        if (!len) return 0;
        uint32_t u = len == 1 ? *p : *p & (0x7fu >> len);
        for (int i = 1; i < len; i++) {
            if (p[i] >> 6 != 2) return 0;
            u = u << 6 | (p[i] & 0x3f);
        }
        if (u < least[len] || u > 0x10ffff || (u >= 0xd800 && u < 0xe000)) return 0;
        p += len;
    }
    return 1;
}

static lks_status add(lks_params *ps, const char *where, const char *name, lks_dtype dtype, int ndim,
                      const int64_t *shape, int is_buffer, lks_tensor **out)
{
    if (out) *out = NULL;
    if (!ps) return LKS_ERR_ARGUMENT;
    lksi_base *b = &ps->ctx->base;
    if (ps->sealed)
        return lksi_fail(
            b, LKS_ERR_STATE, where,
            "the set is sealed (by lks_params_seal, an optimizer, lks_dp_create or a load): declare \"%s\" before",
            name ? name : "");
    if (!name || !*name) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "a name of 1 to %d bytes is needed", NAME_BYTES);
    if (strlen(name) > NAME_BYTES)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the name \"%.40s...\" has %lld bytes; %d are allowed", name,
                         (long long)strlen(name), NAME_BYTES);
    if (!utf8(name)) return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the name is not UTF-8");
    if (lks_params_find(ps, name) >= 0)
        return lksi_fail(b, LKS_ERR_ARGUMENT, where, "the name \"%s\" is taken", name);
    if (!is_buffer && !lks_dtype_is_float(dtype))
        return lksi_fail(b, LKS_ERR_DTYPE, where, "parameter \"%s\" is %s; parameters are floating", name,
                         lks_dtype_name(dtype));
    if (ps->n == ps->room) {
        int room = ps->room ? 2 * ps->room : 32;
        lksi_entry *e = lksi_realloc(b, ps->e, ps->room * (int64_t)sizeof *e, room * (int64_t)sizeof *e);
        if (!e) return LKS_ERR_MEMORY;
        ps->e = e;
        ps->room = room;
    }
    lks_tensor *t = lksi_tensor_unscoped(lks_empty(ps->ctx, dtype, ndim, shape));
    if (!t) return b->code ? b->code : LKS_ERR_MEMORY;
    lks_status s = lksi_device_zero(ps->ctx->dev, t->v.data, t->numel * lks_dtype_size(dtype));
    if (s == LKS_OK && !is_buffer) s = lks_set_requires_grad(t, 1);
    char *copy = s == LKS_OK ? lksi_strdup(b, name) : NULL;
    if (!copy) {
        lks_release(t);
        return s == LKS_OK ? LKS_ERR_MEMORY : s;
    }
    ps->e[ps->n++] = (lksi_entry){
        .name = copy, .t = t, .is_buffer = is_buffer, .trainable = !is_buffer, .want_trainable = !is_buffer,
        .arena = -1, .slice = -1};
    if (out) *out = t;
    return LKS_OK;
}

lks_status lks_params_add(lks_params *ps, const char *name, lks_dtype dtype, int ndim, const int64_t *shape,
                          lks_tensor **t)
{
    return add(ps, "lks_params_add", name, dtype, ndim, shape, 0, t);
}

lks_status lks_params_add_buffer(lks_params *ps, const char *name, lks_dtype dtype, int ndim, const int64_t *shape,
                                 lks_tensor **t)
{
    return add(ps, "lks_params_add_buffer", name, dtype, ndim, shape, 1, t);
}

/* --- sealing --- */

/* Which block entry i belongs to: 0..LKSI_ARENAS-1 parameters, LKSI_ARENAS float32 buffers, -1 none. */
static int block_of(const lksi_entry *e)
{
    if (!e->is_buffer) return e->t->v.dtype; /* the floating dtypes are numbered first */
    return e->t->v.dtype == LKS_F32 ? LKSI_ARENAS : -1;
}

_Static_assert(LKS_F32 < LKSI_ARENAS && LKS_F64 < LKSI_ARENAS && LKS_F16 < LKSI_ARENAS && LKS_BF16 < LKSI_ARENAS,
               "a parameter's dtype is the number of its arena");

/* Gradients from before sealing move into the arena. */
static lks_status seal_parameters(lks_params *ps, int block, int n, lks_tensor **list)
{
    lks_tensor **old = list + n;
    for (int i = 0; i < n; i++) {
        old[i] = lks_keep(list[i]->grad);
        if (old[i]) lks_zero_grad(list[i]);
    }
    lks_status s = lksi_arena_create(ps->ctx, block, n, list, 1, &ps->arena[block]);
    for (int i = 0; i < n; i++) {
        if (!old[i]) continue;
        if (s == LKS_OK) {
            s = lksi_call(ps->ctx, "lks_params_seal", LKSI_OP_copy, 1, &old[i], NULL, 1, &list[i]->grad_slot);
            if (s == LKS_OK) list[i]->grad = lks_keep(list[i]->grad_slot);
        } else if (!list[i]->grad) {
            list[i]->grad = lks_keep(old[i]);
        }
        lks_release(old[i]);
    }
    return s;
}

static lks_status stage(lks_params *ps, lksi_entry *e);

static lks_status seal_buffers(lks_params *ps, int n, lks_tensor **list)
{
    lks_tensor **staged = list + n;
    int k = 0;
    for (int i = 0; i < ps->n; i++) {
        if (block_of(&ps->e[i]) != LKSI_ARENAS) continue;
        TRY(stage(ps, &ps->e[i]));
        staged[k++] = ps->e[i].staged;
    }
    if (!ps->buffers) TRY(lksi_arena_create(ps->ctx, LKS_F32, n, list, 0, &ps->buffers));
    TRY(lksi_arena_create(ps->ctx, LKS_F32, n, staged, 0, &ps->staged));
    for (int i = 0; i < ps->n; i++) { /* moving is no write */
        lksi_entry *e = &ps->e[i];
        if (block_of(e) != LKSI_ARENAS) continue;
        e->running_version++;
        e->staged_version++;
    }
    return LKS_OK;
}

lks_status lks_params_seal(lks_params *ps)
{
    if (!ps) return LKS_ERR_ARGUMENT;
    if (ps->sealed) return LKS_OK;
    lksi_base *b = &ps->ctx->base;
    lks_tensor **list = lksi_alloc(b, (2 * (int64_t)ps->n + 1) * (int64_t)sizeof *list);
    if (!list) return LKS_ERR_MEMORY;
    lks_status s = LKS_OK;
    /* What a failed attempt has laid out stays laid out; the next one does the rest. */
    for (int block = 0; block <= LKSI_ARENAS && s == LKS_OK; block++) {
        int n = 0;
        for (int i = 0; i < ps->n; i++)
            if (block_of(&ps->e[i]) == block) {
                list[n] = ps->e[i].t;
                ps->e[i].arena = block < LKSI_ARENAS ? block : -1;
                ps->e[i].slice = n++;
            }
        if (!n || (block < LKSI_ARENAS ? ps->arena[block] : ps->staged)) continue;
        s = block < LKSI_ARENAS ? seal_parameters(ps, block, n, list) : seal_buffers(ps, n, list);
    }
    lksi_free(b, list);
    if (s == LKS_OK) ps->sealed = 1;
    return s;
}

/* --- description --- */

static int valid(const lks_params *ps, int i)
{
    return ps && i >= 0 && i < ps->n;
}

int lks_params_count(const lks_params *ps)
{
    return ps ? ps->n : 0;
}

const char *lks_params_name(const lks_params *ps, int i)
{
    return valid(ps, i) ? ps->e[i].name : NULL;
}

lks_tensor *lks_params_tensor(const lks_params *ps, int i)
{
    return valid(ps, i) ? ps->e[i].t : NULL;
}

int lks_params_is_buffer(const lks_params *ps, int i)
{
    return valid(ps, i) && ps->e[i].is_buffer;
}

int lks_params_find(const lks_params *ps, const char *name)
{
    if (!ps || !name) return LKS_ERR_NOT_FOUND;
    for (int i = 0; i < ps->n; i++)
        if (!strcmp(ps->e[i].name, name)) return i;
    return LKS_ERR_NOT_FOUND;
}

int64_t lks_params_numel(const lks_params *ps)
{
    int64_t n = 0;
    for (int i = 0; ps && i < ps->n; i++)
        if (ps->e[i].trainable) n += ps->e[i].t->numel;
    return n;
}

int lksi_params_present(const lks_params *ps, int i)
{
    const lksi_entry *e = &ps->e[i];
    return e->trainable && e->t->grad;
}

/* --- freezing, gradients --- */

lks_status lks_params_set_trainable(lks_params *ps, int i, int on)
{
    if (!ps) return LKS_ERR_ARGUMENT;
    if (!valid(ps, i) || ps->e[i].is_buffer)
        return lksi_fail(&ps->ctx->base, LKS_ERR_ARGUMENT, "lks_params_set_trainable", "%d is no parameter of this set",
                         i);
    ps->e[i].want_trainable = on != 0;
    return LKS_OK;
}

lks_status lks_params_zero_grad(lks_params *ps)
{
    if (!ps) return LKS_ERR_ARGUMENT;
    int changed = 0;
    if (ps->reducer && ps->reducer->dropped) TRY(ps->reducer->dropped(ps->reducer->self));
    for (int i = 0; i < ps->n; i++) {
        lksi_entry *e = &ps->e[i];
        if (e->is_buffer) continue;
        if (e->t->grad) TRY(lks_zero_grad(e->t));
        if (e->want_trainable == e->trainable && e->t->requires_grad != e->trainable)
            e->want_trainable = e->t->requires_grad; /* lks_set_requires_grad on the parameter itself */
        if (e->trainable == e->want_trainable) continue;
        TRY(lks_set_requires_grad(e->t, e->want_trainable));
        e->trainable = e->want_trainable;
        changed = 1;
    }
    ps->layout_version += changed;
    if (!ps->reducer) ps->window++;
    return LKS_OK;
}

/* --- staged buffers --- */

static void equal_now(lksi_entry *e)
{
    e->staged_dirty = 0;
    e->staged_version = e->staged->st->version;
    e->running_version = e->t->st->version;
}

static lks_status restage(lks_params *ps, lksi_entry *e)
{
    TRY(lksi_device_copy(ps->ctx->dev, e->staged->v.data, e->t->v.data, e->t->numel * (int64_t)sizeof(float)));
    e->staged->st->version++;
    equal_now(e);
    return LKS_OK;
}

/* Makes sure that the staged twin exists and follows what others wrote to the running value. */
static lks_status stage(lks_params *ps, lksi_entry *e)
{
    if (e->staged) return e->running_version == e->t->st->version ? LKS_OK : restage(ps, e);
    e->staged = lksi_tensor_unscoped(lks_empty(ps->ctx, LKS_F32, e->t->v.ndim, e->t->v.shape));
    if (!e->staged) return ps->ctx->base.code ? ps->ctx->base.code : LKS_ERR_MEMORY;
    lks_status s = restage(ps, e);
    if (s != LKS_OK) {
        lks_release(e->staged);
        e->staged = NULL;
    }
    return s;
}

lks_tensor *lksi_params_staged(lks_params *ps, int i)
{
    lksi_entry *e = &ps->e[i];
    if (!e->is_buffer || e->t->v.dtype != LKS_F32 || stage(ps, e) != LKS_OK) return NULL;
    e->staged_dirty = 1;
    ps->buffers_dirty = 1;
    return e->staged;
}

/* One launch for slices `first` to `last`, which lie side by side. */
static lks_status commit(lks_params *ps, const char *where, const lksi_view *step, const lksi_slice *first,
                         const lksi_slice *last)
{
    int64_t n = last->offset + last->numel - first->offset;
    lksi_view out[2];
    if (!n) return LKS_OK;
    lksi_view_init(&out[0], LKS_F32, 1, &n);
    out[1] = out[0];
    out[0].data = ps->buffers->value + first->offset * (int64_t)sizeof(float);
    out[1].data = ps->staged->value + first->offset * (int64_t)sizeof(float);
    return lksi_call_raw(ps->ctx, where, LKSI_OP_buffers_commit, 1, step, NULL, 2, out);
}

lks_status lksi_params_commit(lks_params *ps, const char *where, const lksi_view *step)
{
    if (!ps->buffers_dirty || !ps->staged) return LKS_OK;
    const lksi_slice *first = NULL, *last = NULL;
    int marked = 0;
    for (int i = 0; i < ps->n; i++) marked |= ps->e[i].staged_dirty;
    for (int i = 0; i < ps->n; i++) {
        lksi_entry *e = &ps->e[i];
        if (!e->staged) continue;
        const lksi_slice *s = &ps->staged->slice[e->slice];
        int mine = e->staged_dirty || e->staged_version != e->staged->st->version || !marked;
        if (e->running_version != e->t->st->version) { /* written by others meanwhile: that stands */
            TRY(restage(ps, e));
            mine = 0;
        }
        if (mine) {
            if (!first) first = s;
            last = s;
        } else if (first) {
            TRY(commit(ps, where, step, first, last));
            first = NULL;
        }
    }
    if (first) TRY(commit(ps, where, step, first, last));
    for (int i = 0; i < ps->n; i++) {
        lksi_entry *e = &ps->e[i];
        if (!e->staged) continue;
        if (e->staged_dirty || !marked) {
            e->t->st->version++;
            e->staged->st->version++;
        }
        equal_now(e);
    }
    ps->buffers_dirty = 0;
    return LKS_OK;
}
