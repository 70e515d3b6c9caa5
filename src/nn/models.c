/* SPDX-License-Identifier: BSD-3-Clause
 *
 * models.c - MLP, GPT (Radford et al., 2019) and CNN, built from layers.
 */
#include "nn/module.h"

#include <lockstep/ops.h>
#include <math.h>
#include <stdio.h>

/* "PREFIX.NAME.i" */
static const char *numbered(char *buffer, const char *prefix, const char *name, int64_t i)
{
    char tail[64];
    if (*name) snprintf(tail, sizeof tail, "%s.%lld", name, (long long)i);
    else snprintf(tail, sizeof tail, "%lld", (long long)i);
    return lksi_name(buffer, prefix, tail);
}

static lks_status check_dropout(lks_params *ps, const char *where, double p)
{
    return p >= 0 && p < 1 ? LKS_OK : lksi_module_refuse(ps, where, "dropout is %g; it must be in [0, 1)", p);
}

/* --- MLP --- */

typedef struct mlp {
    lks_module m; /* children: the linear layers */
    double dropout;
} mlp;

static lks_tensor *mlp_forward(lks_module *m, lks_tensor *x)
{
    double p = m->train ? ((mlp *)m)->dropout : 0;
    for (int i = 0; i < m->children; i++) {
        x = lks_module_forward(m->child[i], x);
        if (i + 1 == m->children) break;
        x = lks_relu(x);
        if (p > 0) x = lks_dropout(x, p);
    }
    return x;
}

static const lksi_module_ops mlp_ops = {"mlp", mlp_forward};

lks_status lks_mlp_create(lks_params *ps, const char *prefix, int n, const int64_t *sizes, double dropout,
                          lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    char name[LKSI_NAME];
    *m = NULL;
    if (n < 2 || !sizes) return lksi_module_refuse(ps, "lks_mlp_create", "%d sizes; 2 or more are needed", n);
    TRY(check_dropout(ps, "lks_mlp_create", dropout));
    mlp *l = lksi_module_new(ps, &mlp_ops, sizeof *l, n - 1);
    if (!l) return LKS_ERR_MEMORY;
    l->dropout = dropout;
    lks_status s = LKS_OK;
    for (int i = 0; i < n - 1 && s == LKS_OK; i++)
        s = lks_linear_create(ps, numbered(name, prefix, "", i), sizes[i], sizes[i + 1], 1, &l->m.child[i]);
    return lksi_module_finish(ps, count, s, &l->m, m);
}

/* --- GPT --- */

/* x + attention(norm(x)), then x + mlp(norm(x)). */
enum { NORM1, ATTENTION, NORM2, FC, PROJ, BLOCK_PARTS };
typedef struct block {
    lks_module m;
    double dropout;
} block;

static lks_tensor *block_attend(lks_module *m, lks_tensor *x)
{
    if (lks_scope_begin(m->ctx) != LKS_OK) return NULL;
    lks_tensor *a = lks_module_forward(m->child[ATTENTION], lks_module_forward(m->child[NORM1], x));
    return lks_scope_leave(m->ctx, lks_add(x, a));
}

static lks_tensor *block_forward(lks_module *m, lks_tensor *x)
{
    double p = m->train ? ((block *)m)->dropout : 0;
    x = block_attend(m, x);
    lks_tensor *h = lks_module_forward(m->child[FC], lks_module_forward(m->child[NORM2], x));
    h = lks_module_forward(m->child[PROJ], lks_gelu(h, 1));
    if (p > 0) h = lks_dropout(h, p);
    return lks_add(x, h);
}

static const lksi_module_ops block_ops = {"block", block_forward};

/* residual: deviation of the weights that write into the residual stream. */
static lks_status block_new(lks_params *ps, const char *prefix, int64_t dim, int64_t heads, double dropout,
                            double residual, lks_module **m)
{
    int count = ps->n;
    char name[LKSI_NAME];
    lksi_start in = {LKSI_INIT_NORMAL, 0.02}, out = {LKSI_INIT_NORMAL, residual};
    block *b = lksi_module_new(ps, &block_ops, sizeof *b, BLOCK_PARTS);
    if (!b) return LKS_ERR_MEMORY;
    b->dropout = dropout;
    lks_module **c = b->m.child;
    lks_status s = lks_layer_norm_create(ps, lksi_name(name, prefix, "norm1"), dim, 1e-5, &c[NORM1]);
    if (s == LKS_OK)
        s = lksi_attention_new(ps, lksi_name(name, prefix, "attention"), dim, heads, 1, dropout, in, out,
                               &c[ATTENTION]);
    if (s == LKS_OK) s = lks_layer_norm_create(ps, lksi_name(name, prefix, "norm2"), dim, 1e-5, &c[NORM2]);
    if (s == LKS_OK) s = lksi_linear_new(ps, lksi_name(name, prefix, "fc"), dim, 4 * dim, 1, in, &c[FC]);
    if (s == LKS_OK) s = lksi_linear_new(ps, lksi_name(name, prefix, "proj"), 4 * dim, dim, 1, out, &c[PROJ]);
    if (s == LKS_OK) lksi_layer_norm_for_products(c[NORM1]), lksi_layer_norm_for_products(c[NORM2]);
    return lksi_module_finish(ps, count, s, &b->m, m);
}

/* Children: token, position, blocks, final norm. */
typedef struct gpt {
    lks_module m;
    int64_t context, layers;
    double dropout;
} gpt;

static lks_tensor *gpt_forward(lks_module *m, lks_tensor *x)
{
    gpt *g = (gpt *)m;
    char text[200];
    if (lks_ndim(x) != 2 || lks_dim(x, 1) > g->context) {
        lksi_fail(&m->ctx->base, LKS_ERR_SHAPE, "gpt", "x %s must be [B, T] with T at most %lld",
                  lksi_tensor_text(x, text, sizeof text), (long long)g->context);
        return NULL;
    }
    lks_module **c = m->child;
    lks_tensor *token = lksi_embedding_weight(c[0]), *position = lksi_embedding_weight(c[1]);
    lks_tensor *h = lks_add(lks_embedding(token, x), lks_narrow(position, 0, 0, lks_dim(x, 1)));
    if (m->train && g->dropout > 0) h = lks_dropout(h, g->dropout);
    for (int64_t i = 0; i < g->layers; i++) h = lks_module_forward(c[2 + i], h);
    return lks_linear(lks_module_forward(c[2 + g->layers], h), token, lks_none);
}

static const lksi_module_ops gpt_ops = {"gpt", gpt_forward};

lks_status lks_gpt_create(lks_params *ps, const char *prefix, int64_t vocab, int64_t context, int64_t layers,
                          int64_t dim, int64_t heads, double dropout, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    char name[LKSI_NAME];
    *m = NULL;
    if (vocab < 1 || context < 1 || layers < 1 || layers > 100000 || dim < 1 || heads < 1 || dim % heads)
        return lksi_module_refuse(ps, "lks_gpt_create",
                                  "vocab %lld, context %lld, layers %lld, dim %lld, heads %lld: all at least 1, and "
                                  "heads must divide dim",
                                  (long long)vocab, (long long)context, (long long)layers, (long long)dim,
                                  (long long)heads);
    TRY(check_dropout(ps, "lks_gpt_create", dropout));
    gpt *g = lksi_module_new(ps, &gpt_ops, sizeof *g, (int)layers + 3);
    if (!g) return LKS_ERR_MEMORY;
    g->context = context;
    g->layers = layers;
    g->dropout = dropout;
    lks_module **c = g->m.child;
    lks_status s = lksi_embedding_new(ps, lksi_name(name, prefix, "token"), vocab, dim, 0.02, &c[0]);
    if (s == LKS_OK) s = lksi_embedding_new(ps, lksi_name(name, prefix, "position"), context, dim, 0.02, &c[1]);
    for (int64_t i = 0; i < layers && s == LKS_OK; i++)
        s = block_new(ps, numbered(name, prefix, "blocks", i), dim, heads, dropout,
                      0.02 / sqrt(2 * (double)layers), &c[2 + i]);
    if (s == LKS_OK) s = lks_layer_norm_create(ps, lksi_name(name, prefix, "norm"), dim, 1e-5, &c[2 + layers]);
    if (s == LKS_OK) lksi_layer_norm_for_products(c[2 + layers]);
    return lksi_module_finish(ps, count, s, &g->m, m);
}

/* --- CNN --- */

/* Children: convolution and norm (NULL without) of each stage, head. */
typedef struct cnn {
    lks_module m;
    int64_t channels, h, w, stages;
    double dropout;
} cnn;

/* [N, C, H, W] in memory as [N, H, W, C], x itself if it is so. What follows keeps the layout, except that one channel
 * does not tell it. */
static lks_tensor *channels_last(lks_tensor *x)
{
    static const int to[4] = {0, 2, 3, 1}, from[4] = {0, 3, 1, 2};
    return lks_permute(lks_contiguous(lks_permute(x, 4, to)), 4, from);
}

static lks_tensor *cnn_stage(lks_module *m, int64_t i, lks_tensor *x)
{
    static const int64_t two[2] = {2, 2};
    if (lks_scope_begin(m->ctx) != LKS_OK) return NULL;
    x = lks_module_forward(m->child[2 * i], channels_last(x));
    if (m->child[2 * i + 1]) x = lks_module_forward(m->child[2 * i + 1], x);
    return lks_scope_leave(m->ctx, lks_max_pool2d(lks_relu(x), two, NULL, NULL));
}

static lks_tensor *cnn_forward(lks_module *m, lks_tensor *x)
{
    cnn *c = (cnn *)m;
    char text[200];
    if (lks_ndim(x) != 4 || lks_dim(x, 1) != c->channels || lks_dim(x, 2) != c->h || lks_dim(x, 3) != c->w) {
        lksi_fail(&m->ctx->base, LKS_ERR_SHAPE, "cnn", "x %s must be [N, %lld, %lld, %lld]",
                  lksi_tensor_text(x, text, sizeof text), (long long)c->channels, (long long)c->h, (long long)c->w);
        return NULL;
    }
    for (int64_t i = 0; i < c->stages; i++) x = cnn_stage(m, i, x);
    x = lks_flatten(x, 1, 3);
    if (m->train && c->dropout > 0) x = lks_dropout(x, c->dropout);
    return lks_module_forward(m->child[2 * c->stages], x);
}

static const lksi_module_ops cnn_ops = {"cnn", cnn_forward};

lks_status lks_cnn_create(lks_params *ps, const char *prefix, int64_t channels, int64_t h, int64_t w, int64_t classes,
                          int64_t width, int64_t stages, int norm, double dropout, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    char name[LKSI_NAME], part[LKSI_NAME];
    *m = NULL;
    if (channels < 1 || h < 1 || w < 1 || classes < 1 || width < 1 || stages < 1 || stages > 30 ||
        width > (INT64_C(1) << 31) >> stages)
        return lksi_module_refuse(ps, "lks_cnn_create",
                                  "channels %lld, image %lld x %lld, classes %lld, width %lld, stages %lld",
                                  (long long)channels, (long long)h, (long long)w, (long long)classes,
                                  (long long)width, (long long)stages);
    if (h >> stages < 1 || w >> stages < 1)
        return lksi_module_refuse(ps, "lks_cnn_create", "%lld stages halve an image of %lld x %lld to nothing",
                                  (long long)stages, (long long)h, (long long)w);
    TRY(check_dropout(ps, "lks_cnn_create", dropout));
    cnn *c = lksi_module_new(ps, &cnn_ops, sizeof *c, 2 * (int)stages + 1);
    if (!c) return LKS_ERR_MEMORY;
    c->channels = channels;
    c->h = h;
    c->w = w;
    c->stages = stages;
    c->dropout = dropout;
    lks_module **child = c->m.child;
    lks_status s = LKS_OK;
    int64_t in = channels, out = width;
    for (int64_t i = 0; i < stages && s == LKS_OK; i++, in = out, out *= 2) {
        numbered(part, prefix, "stages", i);
        s = lks_conv2d_create(ps, lksi_name(name, part, "conv"), in, out, 3, 1, 1, !norm, &child[2 * i]);
        if (s == LKS_OK && norm)
            s = lks_batch_norm2d_create(ps, lksi_name(name, part, "norm"), out, 0.1, 1e-5, &child[2 * i + 1]);
    }
    if (s == LKS_OK)
        s = lks_linear_create(ps, lksi_name(name, prefix, "head"), in * (h >> stages) * (w >> stages), classes, 1,
                              &child[2 * stages]);
    return lksi_module_finish(ps, count, s, &c->m, m);
}
