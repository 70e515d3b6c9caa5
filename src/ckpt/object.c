/* SPDX-License-Identifier: BSD-3-Clause
 *
 * object.c - making a checkpoint object, what it borrows, the program's keys. No file is touched here.
 */
#include "ckpt/ckpt.h"
#include <string.h>

/* First key whose name is not less. */
static int64_t place(const lksi_keys *keys, const char *name)
{
    int64_t lo = 0, hi = keys->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (strcmp(keys->k[mid].name, name) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

lksi_key *lksi_keys_find(const lksi_keys *keys, const char *name)
{
    int64_t i = place(keys, name);
    return i < keys->n && !strcmp(keys->k[i].name, name) ? &keys->k[i] : NULL;
}

lksi_key *lksi_keys_put(lksi_base *b, lksi_keys *keys, const char *name)
{
    lksi_key *k = lksi_keys_find(keys, name);
    if (k) {
        lksi_free(b, k->text);
        k->text = NULL;
        return k;
    }
    if (keys->n == keys->room) {
        int64_t room = keys->room ? 2 * keys->room : 16;
        lksi_key *grown = lksi_realloc(b, keys->k, keys->room * (int64_t)sizeof *grown, room * (int64_t)sizeof *grown);
        if (!grown) return NULL;
        keys->k = grown;
        keys->room = room;
    }
    char *copy = lksi_strdup(b, name);
    if (!copy) return NULL;
    int64_t i = place(keys, name);
    memmove(keys->k + i + 1, keys->k + i, (size_t)(keys->n - i) * sizeof *keys->k);
    keys->n++;
    keys->k[i] = (lksi_key){.name = copy};
    return &keys->k[i];
}

void lksi_keys_free(lksi_base *b, lksi_keys *keys)
{
    for (int64_t i = 0; i < keys->n; i++) {
        lksi_free(b, keys->k[i].name);
        lksi_free(b, keys->k[i].text);
    }
    lksi_free(b, keys->k);
    memset(keys, 0, sizeof *keys);
}

lks_status lks_checkpoint_create(lks_context *ctx, lks_checkpoint **out)
{
    if (!ctx || !out) return LKS_ERR_ARGUMENT;
    *out = NULL;
    lks_checkpoint *c = lksi_alloc(&ctx->base, sizeof *c);
    if (!c) return LKS_ERR_MEMORY;
    c->ctx = ctx;
    c->strict = 1;
    *out = c;
    return LKS_OK;
}

void lks_checkpoint_destroy(lks_checkpoint **pc)
{
    if (!pc || !*pc) return;
    lksi_base *b = &(*pc)->ctx->base;
    lksi_keys_free(b, &(*pc)->keys);
    lksi_free(b, *pc);
    *pc = NULL;
}

lks_params *lksi_ckpt_params(const lks_checkpoint *c)
{
    return c->ps ? c->ps : c->opt ? lksi_optim_params(c->opt) : NULL;
}

int lksi_ckpt_kind_length(const char *text)
{
    return (int)strcspn(text, "; ");
}

static lks_status fits(const lks_checkpoint *c, const char *where, const lks_params *ps, const lks_optim *opt)
{
    if (ps && opt && lksi_optim_params(opt) != ps)
        return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, where, "the optimizer is not of these parameters");
    return LKS_OK;
}

lks_status lks_checkpoint_set_params(lks_checkpoint *c, lks_params *ps)
{
    if (!c) return LKS_ERR_ARGUMENT;
    TRY(fits(c, "lks_checkpoint_set_params", ps, c->opt));
    c->ps = ps;
    return LKS_OK;
}

lks_status lks_checkpoint_set_optim(lks_checkpoint *c, lks_optim *opt)
{
    if (!c) return LKS_ERR_ARGUMENT;
    TRY(fits(c, "lks_checkpoint_set_optim", c->ps, opt));
    c->opt = opt;
    return LKS_OK;
}

lks_status lks_checkpoint_set_scaler(lks_checkpoint *c, lks_scaler *s, int policy)
{
    if (!c) return LKS_ERR_ARGUMENT;
    if (policy < LKS_STATE_REFUSE || policy > LKS_STATE_KEEP)
        return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, "lks_checkpoint_set_scaler", "policy %d is unknown", policy);
    c->scaler = s;
    c->policy = policy;
    return LKS_OK;
}

lks_status lks_checkpoint_set_strict(lks_checkpoint *c, int strict)
{
    if (!c) return LKS_ERR_ARGUMENT;
    c->strict = strict != 0;
    return LKS_OK;
}

static lks_status put(lks_checkpoint *c, const char *where, const char *name, lksi_key **k)
{
    if (!c) return LKS_ERR_ARGUMENT;
    if (!name || !*name || strlen(name) > 1024)
        return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, where, "a key has 1 to 1024 bytes");
    *k = lksi_keys_put(&c->ctx->base, &c->keys, name);
    return *k ? LKS_OK : LKS_ERR_MEMORY;
}

lks_status lks_checkpoint_set_i64(lks_checkpoint *c, const char *key, int64_t value)
{
    lksi_key *k = NULL;
    TRY(put(c, "lks_checkpoint_set_i64", key, &k));
    k->kind = LKSI_KEY_I64;
    k->i64 = value;
    return LKS_OK;
}

lks_status lks_checkpoint_set_f64(lks_checkpoint *c, const char *key, double value)
{
    lksi_key *k = NULL;
    TRY(put(c, "lks_checkpoint_set_f64", key, &k));
    k->kind = LKSI_KEY_F64;
    k->f64 = value;
    return LKS_OK;
}

lks_status lks_checkpoint_set_text(lks_checkpoint *c, const char *key, const char *text)
{
    lksi_key *k = NULL;
    if (!c) return LKS_ERR_ARGUMENT;
    if (!text)
        return lksi_fail(&c->ctx->base, LKS_ERR_ARGUMENT, "lks_checkpoint_set_text", "text of \"%s\" is NULL", key);
    char *copy = lksi_strdup(&c->ctx->base, text); /* first: text may be the old value */
    if (!copy) return LKS_ERR_MEMORY;
    lks_status status = put(c, "lks_checkpoint_set_text", key, &k);
    if (status) {
        lksi_free(&c->ctx->base, copy);
        return status;
    }
    k->kind = LKSI_KEY_TEXT;
    k->text = copy;
    return LKS_OK;
}

static lks_status get(lks_checkpoint *c, const char *where, const char *name, int kind, lksi_key **k)
{
    static const char *const kinds[] = {"an int64", "a float64", "a text"};
    if (!c || !name) return LKS_ERR_ARGUMENT;
    *k = lksi_keys_find(&c->keys, name);
    if (!*k) return lksi_fail(&c->ctx->base, LKS_ERR_NOT_FOUND, where, "there is no key \"%s\"", name);
    if ((*k)->kind != kind)
        return lksi_fail(&c->ctx->base, LKS_ERR_DTYPE, where, "\"%s\" is %s, not %s", name, kinds[(*k)->kind],
                         kinds[kind]);
    return LKS_OK;
}

lks_status lks_checkpoint_get_i64(lks_checkpoint *c, const char *key, int64_t *value)
{
    lksi_key *k = NULL;
    TRY(get(c, "lks_checkpoint_get_i64", key, LKSI_KEY_I64, &k));
    *value = k->i64;
    return LKS_OK;
}

lks_status lks_checkpoint_get_f64(lks_checkpoint *c, const char *key, double *value)
{
    lksi_key *k = NULL;
    TRY(get(c, "lks_checkpoint_get_f64", key, LKSI_KEY_F64, &k));
    *value = k->f64;
    return LKS_OK;
}

lks_status lks_checkpoint_get_text(lks_checkpoint *c, const char *key, const char **text)
{
    lksi_key *k = NULL;
    TRY(get(c, "lks_checkpoint_get_text", key, LKSI_KEY_TEXT, &k));
    *text = k->text;
    return LKS_OK;
}
