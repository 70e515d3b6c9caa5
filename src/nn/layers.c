/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layers.c - linear, embedding, convolution, norms, dropout, attention as modules.
 */
#include "nn/module.h"
#include "base/guard.h"
#include "ops/ops.h"

#include <lockstep/ops.h>

/* --- linear --- */

typedef struct linear {
    lks_module m;
    lks_tensor *weight, *bias; /* [out, in], [out] or LKS_NONE; the set's */
} linear;

static lks_tensor *linear_forward(lks_module *m, lks_tensor *x)
{
    linear *l = (linear *)m;
    return lks_linear(x, l->weight, l->bias);
}

static const lksi_module_ops linear_ops = {"linear", linear_forward};

static lks_status start_weight(lks_tensor *w, lksi_start start, int64_t in, int64_t out)
{
    if (start.kind == LKSI_INIT_KAIMING) return lks_init_kaiming_uniform(w, in);
    if (start.kind == LKSI_INIT_XAVIER) return lks_init_xavier_uniform(w, in, out);
    return lks_init_normal(w, start.std);
}

/* Declares weight, and bias unless it is left out (*b is then LKS_NONE), and sets their start. */
static lks_status weight_and_bias(lks_params *ps, const char *prefix, int ndim, const int64_t *shape, int bias,
                                  lksi_start start, int64_t in, lks_tensor **w, lks_tensor **b)
{
    char name[LKSI_NAME];
    *b = lks_none;
    TRY(lks_params_add(ps, lksi_name(name, prefix, "weight"), LKS_F32, ndim, shape, w));
    TRY(start_weight(*w, start, in, shape[0]));
    if (!bias) return LKS_OK;
    TRY(lks_params_add(ps, lksi_name(name, prefix, "bias"), LKS_F32, 1, shape, b));
    return start.kind == LKSI_INIT_KAIMING ? lks_init_kaiming_uniform(*b, in) : LKS_OK;
}

lks_status lksi_linear_new(lks_params *ps, const char *prefix, int64_t in, int64_t out, int bias, lksi_start start,
                           lks_module **m)
{
    int count = ps->n;
    int64_t shape[2] = {out, in};
    *m = NULL;
    if (in < 1 || out < 1)
        return lksi_module_refuse(ps, "lks_linear_create", "sizes %lld -> %lld", (long long)in, (long long)out);
    linear *l = lksi_module_new(ps, &linear_ops, sizeof *l, 0);
    if (!l) return LKS_ERR_MEMORY;
    lks_status s = weight_and_bias(ps, prefix, 2, shape, bias, start, in, &l->weight, &l->bias);
    return lksi_module_finish(ps, count, s, &l->m, m);
}

lks_status lks_linear_create(lks_params *ps, const char *prefix, int64_t in, int64_t out, int bias, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    return lksi_linear_new(ps, prefix, in, out, bias, (lksi_start){LKSI_INIT_KAIMING, 0}, m);
}

/* --- embedding --- */

typedef struct embedding {
    lks_module m;
    lks_tensor *weight; /* [count, dim] */
} embedding;

static lks_tensor *embedding_forward(lks_module *m, lks_tensor *x)
{
    return lks_embedding(((embedding *)m)->weight, x);
}

static const lksi_module_ops embedding_ops = {"embedding", embedding_forward};

lks_tensor *lksi_embedding_weight(const lks_module *m)
{
    return ((const embedding *)m)->weight;
}

lks_status lksi_embedding_new(lks_params *ps, const char *prefix, int64_t count, int64_t dim, double std,
                              lks_module **m)
{
    int before = ps->n;
    int64_t shape[2] = {count, dim};
    char name[LKSI_NAME];
    *m = NULL;
    if (count < 1 || dim < 1)
        return lksi_module_refuse(ps, "lks_embedding_create", "a table of %lld x %lld", (long long)count,
                                  (long long)dim);
    embedding *e = lksi_module_new(ps, &embedding_ops, sizeof *e, 0);
    if (!e) return LKS_ERR_MEMORY;
    lks_status s = lks_params_add(ps, lksi_name(name, prefix, "weight"), LKS_F32, 2, shape, &e->weight);
    if (s == LKS_OK) s = lks_init_normal(e->weight, std);
    return lksi_module_finish(ps, before, s, &e->m, m);
}

lks_status lks_embedding_create(lks_params *ps, const char *prefix, int64_t count, int64_t dim, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    return lksi_embedding_new(ps, prefix, count, dim, 1, m);
}

/* --- convolution --- */

typedef struct conv2d {
    lks_module m;
    lks_tensor *weight, *bias; /* [out, in, kernel, kernel] */
    int64_t stride[2], padding[2];
} conv2d;

static lks_tensor *conv2d_forward(lks_module *m, lks_tensor *x)
{
    conv2d *c = (conv2d *)m;
    return lks_conv2d(x, c->weight, c->bias, c->stride, c->padding, NULL, 1);
}

static const lksi_module_ops conv2d_ops = {"conv2d", conv2d_forward};

lks_status lks_conv2d_create(lks_params *ps, const char *prefix, int64_t in, int64_t out, int64_t kernel,
                             int64_t stride, int64_t padding, int bias, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    int64_t shape[4] = {out, in, kernel, kernel};
    *m = NULL;
    if (in < 1 || out < 1 || kernel < 1 || stride < 1 || padding < 0)
        return lksi_module_refuse(ps, "lks_conv2d_create",
                                  "channels %lld -> %lld, kernel %lld, stride %lld, padding %lld", (long long)in,
                                  (long long)out, (long long)kernel, (long long)stride, (long long)padding);
    conv2d *c = lksi_module_new(ps, &conv2d_ops, sizeof *c, 0);
    if (!c) return LKS_ERR_MEMORY;
    c->stride[0] = c->stride[1] = stride;
    c->padding[0] = c->padding[1] = padding;
    lks_status s = weight_and_bias(ps, prefix, 4, shape, bias, (lksi_start){LKSI_INIT_KAIMING, 0},
                                   in * kernel * kernel, &c->weight, &c->bias);
    return lksi_module_finish(ps, count, s, &c->m, m);
}

/* --- norms --- */

typedef struct norm {
    lks_module m;
    lks_tensor *weight, *bias;              /* [dim] */
    lks_tensor *running_mean, *running_var; /* batch norm */
    int mean, var;                          /* their places in the set */
    double momentum, eps;
    int sync; /* batch norm: statistics of all ranks */
    int for_products; /* layer norm: its result goes to products alone, so it is made in the dtype that they ask for */
} norm;

static lks_tensor *layer_norm_forward(lks_module *m, lks_tensor *x)
{
    norm *n = (norm *)m;
    return lksi_layer_norm(x, 1, n->weight, n->bias, n->eps, n->for_products);
}

/* Statistics are staged where a step may follow: in training, and not under no_grad. */
static lks_tensor *batch_norm_forward(lks_module *m, lks_tensor *x)
{
    norm *n = (norm *)m;
    lks_tensor *mean = lks_none, *var = lks_none;
    if (m->train && lks_grad_enabled(m->ctx) && m->ctx->staged_off == 0) {
        mean = lksi_params_staged(m->ps, n->mean);
        var = lksi_params_staged(m->ps, n->var);
    }
    if (m->train && n->sync) return lks_sync_batch_norm(x, n->weight, n->bias, mean, var, n->momentum, n->eps);
    return lks_batch_norm(x, n->weight, n->bias, n->running_mean, n->running_var, mean, var, m->train, n->momentum,
                          n->eps);
}

static const lksi_module_ops layer_norm_ops = {"layer_norm", layer_norm_forward};
static const lksi_module_ops batch_norm_ops = {"batch_norm2d", batch_norm_forward};

void lks_module_sync_batch_norm(lks_module *m, int on)
{
    if (!m) return;
    if (m->ops == &batch_norm_ops) ((norm *)m)->sync = on != 0;
    for (int i = 0; i < m->children; i++) lks_module_sync_batch_norm(m->child[i], on);
}

static lks_status ones(lks_tensor *t)
{
    TRY(lks_no_grad_begin(t->ctx));
    lks_status s = lks_fill_(t, 1);
    lks_no_grad_end(t->ctx);
    return s;
}

static lks_status norm_parameters(lks_params *ps, const char *prefix, int64_t dim, norm *n)
{
    char name[LKSI_NAME];
    TRY(lks_params_add(ps, lksi_name(name, prefix, "weight"), LKS_F32, 1, &dim, &n->weight));
    TRY(lks_params_add(ps, lksi_name(name, prefix, "bias"), LKS_F32, 1, &dim, &n->bias));
    return ones(n->weight);
}

static lks_status norm_buffers(lks_params *ps, const char *prefix, int64_t dim, norm *n)
{
    char name[LKSI_NAME];
    TRY(lks_params_add_buffer(ps, lksi_name(name, prefix, "running_mean"), LKS_F32, 1, &dim, &n->running_mean));
    n->mean = lks_params_count(ps) - 1;
    TRY(lks_params_add_buffer(ps, lksi_name(name, prefix, "running_var"), LKS_F32, 1, &dim, &n->running_var));
    n->var = lks_params_count(ps) - 1;
    return ones(n->running_var);
}

static lks_status norm_new(lks_params *ps, const char *where, const lksi_module_ops *ops, const char *prefix,
                           int64_t dim, double momentum, double eps, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    *m = NULL;
    if (dim < 1 || !(eps >= 0) || !(momentum >= 0 && momentum <= 1))
        return lksi_module_refuse(ps, where, "size %lld, momentum %g, eps %g", (long long)dim, momentum, eps);
    norm *n = lksi_module_new(ps, ops, sizeof *n, 0);
    if (!n) return LKS_ERR_MEMORY;
    n->momentum = momentum;
    n->eps = eps;
    lks_status s = norm_parameters(ps, prefix, dim, n);
    if (s == LKS_OK && ops == &batch_norm_ops) s = norm_buffers(ps, prefix, dim, n);
    return lksi_module_finish(ps, count, s, &n->m, m);
}

lks_status lks_layer_norm_create(lks_params *ps, const char *prefix, int64_t dim, double eps, lks_module **m)
{
    return norm_new(ps, "lks_layer_norm_create", &layer_norm_ops, prefix, dim, 0, eps, m);
}

void lksi_layer_norm_for_products(lks_module *m) { ((norm *)m)->for_products = 1; }

lks_status lks_batch_norm2d_create(lks_params *ps, const char *prefix, int64_t channels, double momentum, double eps,
                                   lks_module **m)
{
    return norm_new(ps, "lks_batch_norm2d_create", &batch_norm_ops, prefix, channels, momentum, eps, m);
}

/* --- dropout --- */

typedef struct dropout {
    lks_module m;
    double p;
} dropout;

static lks_tensor *dropout_forward(lks_module *m, lks_tensor *x)
{
    double p = ((dropout *)m)->p;
    return m->train && p > 0 ? lks_dropout(x, p) : x;
}

static const lksi_module_ops dropout_ops = {"dropout", dropout_forward};

lks_status lks_dropout_create(lks_params *ps, double p, lks_module **m)
{
    LKSI_GUARD;
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    *m = NULL;
    if (!(p >= 0 && p < 1)) return lksi_module_refuse(ps, "lks_dropout_create", "p is %g; it must be in [0, 1)", p);
    dropout *d = lksi_module_new(ps, &dropout_ops, sizeof *d, 0);
    if (!d) return LKS_ERR_MEMORY;
    d->p = p;
    *m = &d->m;
    return LKS_OK;
}

/* --- attention --- */

typedef struct attention {
    lks_module m; /* children: qkv, proj */
    int64_t dim, heads;
    int causal;
    double dropout;
} attention;

/* Columns [which dim, (which + 1) dim) of qkv [B, T, 3 dim] as [B, H, T, D]; views all the way. */
static lks_tensor *heads_of(const attention *a, lks_tensor *qkv, int which, int64_t b, int64_t t)
{
    int64_t shape[4] = {b, t, a->heads, a->dim / a->heads};
    return lks_transpose(lks_reshape(lks_narrow(qkv, 2, which * a->dim, a->dim), 4, shape), 1, 2);
}

static lks_tensor *attention_forward(lks_module *m, lks_tensor *x)
{
    attention *a = (attention *)m;
    char text[200];
    if (lks_ndim(x) != 3 || lks_dim(x, 2) != a->dim) {
        lksi_fail(&m->ctx->base, LKS_ERR_SHAPE, "attention", "x %s must be [B, T, %lld]",
                  lksi_tensor_text(x, text, sizeof text), (long long)a->dim);
        return NULL;
    }
    int64_t b = lks_dim(x, 0), t = lks_dim(x, 1), shape[3] = {b, t, a->dim};
    double p = m->train ? a->dropout : 0;
    lks_tensor *qkv = lks_module_forward(m->child[0], x);
    lks_tensor *q = heads_of(a, qkv, 0, b, t), *k = heads_of(a, qkv, 1, b, t), *v = heads_of(a, qkv, 2, b, t);
    lks_tensor *y = lks_scaled_dot_product_attention(q, k, v, lks_none, p, a->causal, 0);
    y = lks_module_forward(m->child[1], lks_reshape(lks_transpose(y, 1, 2), 3, shape));
    return p > 0 ? lks_dropout(y, p) : y;
}

static const lksi_module_ops attention_ops = {"attention", attention_forward};

lks_status lksi_attention_new(lks_params *ps, const char *prefix, int64_t dim, int64_t heads, int causal,
                              double dropout, lksi_start qkv, lksi_start proj, lks_module **m)
{
    int count = ps->n;
    char name[LKSI_NAME];
    *m = NULL;
    if (dim < 1 || heads < 1 || dim % heads)
        return lksi_module_refuse(ps, "lks_attention_create", "%lld heads do not divide dim %lld", (long long)heads,
                                  (long long)dim);
    if (!(dropout >= 0 && dropout < 1))
        return lksi_module_refuse(ps, "lks_attention_create", "dropout is %g; it must be in [0, 1)", dropout);
    attention *a = lksi_module_new(ps, &attention_ops, sizeof *a, 2);
    if (!a) return LKS_ERR_MEMORY;
    a->dim = dim;
    a->heads = heads;
    a->causal = causal != 0;
    a->dropout = dropout;
    lks_status s = lksi_linear_new(ps, lksi_name(name, prefix, "qkv"), dim, 3 * dim, 1, qkv, &a->m.child[0]);
    if (s == LKS_OK) s = lksi_linear_new(ps, lksi_name(name, prefix, "proj"), dim, dim, 1, proj, &a->m.child[1]);
    return lksi_module_finish(ps, count, s, &a->m, m);
}

/* As PyTorch's MultiheadAttention: the joint projection by Xavier, biases 0, the output projection as a linear
 * layer. */
lks_status lks_attention_create(lks_params *ps, const char *prefix, int64_t dim, int64_t heads, int causal,
                                double dropout, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    lks_status s = lksi_attention_new(ps, prefix, dim, heads, causal, dropout, (lksi_start){LKSI_INIT_XAVIER, 0},
                                      (lksi_start){LKSI_INIT_NORMAL, 0}, m);
    if (s != LKS_OK) return s;
    linear *proj = (linear *)(*m)->child[1];
    s = lks_init_kaiming_uniform(proj->weight, dim);
    return lksi_module_finish(ps, count, s, *m, m);
}
