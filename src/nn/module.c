/* SPDX-License-Identifier: BSD-3-Clause
 *
 * module.c - what all modules have in common: making, destroying, train and eval, running forward in a scope.
 */
#include "nn/module.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void list(void *self, lksi_moves *m)
{
    const lks_module *module = self;
    lksi_fact(m, module->train | module->recompute << 1);
}

void *lksi_module_new(lks_params *ps, const lksi_module_ops *ops, int64_t bytes, int children)
{
    lks_module *m = lksi_alloc(&ps->ctx->base, bytes);
    if (!m) return NULL;
    m->ops = ops;
    m->ps = ps;
    m->ctx = ps->ctx;
    m->train = 1;
    if (children > 0) {
        m->child = lksi_alloc(&ps->ctx->base, children * (int64_t)sizeof *m->child);
        if (!m->child) {
            lksi_free(&ps->ctx->base, m);
            return NULL;
        }
        m->children = children;
    }
    lksi_mover_add(m->ctx, &m->mover, m, list);
    return m;
}

void lks_module_destroy(lks_module **pm)
{
    if (!pm || !*pm) return;
    lks_module *m = *pm;
    lksi_base *b = &m->ctx->base;
    lksi_mover_remove(&m->mover);
    for (int i = 0; i < m->children; i++) lks_module_destroy(&m->child[i]);
    lksi_free(b, m->child);
    lksi_free(b, m);
    *pm = NULL;
}

lks_status lksi_module_finish(lks_params *ps, int count, lks_status s, lks_module *m, lks_module **out)
{
    *out = s == LKS_OK ? m : NULL;
    if (s == LKS_OK) return s;
    lks_module_destroy(&m);
    while (ps->n > count && !ps->sealed) { /* so that the names are free again */
        lksi_entry *e = &ps->e[--ps->n];
        lks_release(e->staged);
        lks_release(e->t);
        lksi_free(&ps->ctx->base, e->name);
    }
    return s;
}

const char *lksi_name(char *buffer, const char *prefix, const char *name)
{
    if (prefix && *prefix) snprintf(buffer, LKSI_NAME, "%s.%s", prefix, name);
    else snprintf(buffer, LKSI_NAME, "%s", name);
    return buffer;
}

lks_status lksi_module_refuse(lks_params *ps, const char *where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    lks_status s = lksi_vfail(&ps->ctx->base, LKS_ERR_ARGUMENT, where, format, args);
    va_end(args);
    return s;
}

static lks_status forward_again(void *user, int nin, lks_tensor *const *in, int nout, lks_tensor **out)
{
    lks_module *m = user;
    (void)nin, (void)nout;
    out[0] = m->ops->forward(m, in[0]);
    return out[0] ? LKS_OK : m->ctx->base.code ? m->ctx->base.code : LKS_ERR_ARGUMENT;
}

lks_tensor *lks_module_forward(lks_module *m, lks_tensor *x)
{
    if (!m || !x) return NULL;
    if (m->recompute && m->train) {
        lks_tensor *y = NULL;
        return lks_recompute(m->ctx, forward_again, m, 1, &x, 1, &y) == LKS_OK ? y : NULL;
    }
    if (lks_scope_begin(m->ctx) != LKS_OK) return NULL;
    return lks_scope_leave(m->ctx, m->ops->forward(m, x));
}

void lks_module_train(lks_module *m, int train)
{
    if (!m) return;
    m->train = train != 0;
    for (int i = 0; i < m->children; i++) lks_module_train(m->child[i], train);
}

void lks_module_recompute(lks_module *m, int on)
{
    for (int i = 0; m && i < m->children; i++)
        if (m->child[i]) m->child[i]->recompute = on != 0;
}
