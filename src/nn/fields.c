/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fields.c - networks on fields of 1, 2 or 3 spatial dims: U-Net (Ronneberger et al., 2015), field to field, and a
 * convolutional network from a field to a vector. Both take any size: what does not halve is rounded up on the way down
 * and cropped on the way up. No batch statistics: a sample's result does not hang on its batch or rank.
 */
#include "nn/module.h"

#include <lockstep/ops.h>
#include <stdio.h>

#define TOP 4096 /* widths beyond this are a mistake */

/* --- convolution that keeps the size --- */

typedef struct conv {
    lks_module m;
    lks_tensor *weight, *bias; /* [out, in, kernel...] (up: [in, out, 2...]), [out] */
    int dims, periodic, up;    /* up: transposed, kernel and stride 2 */
    int64_t kernel;
} conv;

/* x with one more element on each side of each spatial dim, taken from the other side. */
static lks_tensor *wrapped(lks_tensor *x, int dims)
{
    for (int d = 2; x && d < 2 + dims; d++) {
        int64_t n = lks_dim(x, d);
        lks_tensor *part[3] = {lks_narrow(x, d, n - 1, 1), x, lks_narrow(x, d, 0, 1)};
        x = part[0] && part[2] ? lks_cat(3, part, d) : NULL;
    }
    return x;
}

static lks_tensor *conv_forward(lks_module *m, lks_tensor *x)
{
    conv *c = (conv *)m;
    static const int64_t two[3] = {2, 2, 2};
    int64_t same[3] = {c->kernel / 2, c->kernel / 2, c->kernel / 2};
    const int64_t *padding = c->periodic ? NULL : same;
    if (c->up)
        return c->dims == 1   ? lks_conv_transpose1d(x, c->weight, c->bias, two, NULL, NULL, 1, NULL)
               : c->dims == 2 ? lks_conv_transpose2d(x, c->weight, c->bias, two, NULL, NULL, 1, NULL)
                              : lks_conv_transpose3d(x, c->weight, c->bias, two, NULL, NULL, 1, NULL);
    if (c->periodic && c->kernel > 1) x = wrapped(x, c->dims);
    return c->dims == 1   ? lks_conv1d(x, c->weight, c->bias, NULL, padding, NULL, 1)
           : c->dims == 2 ? lks_conv2d(x, c->weight, c->bias, NULL, padding, NULL, 1)
                          : lks_conv3d(x, c->weight, c->bias, NULL, padding, NULL, 1);
}

static const lksi_module_ops conv_ops = {"conv", conv_forward};

static lks_status conv_new(lks_params *ps, const char *prefix, int dims, int64_t in, int64_t out, int64_t kernel,
                           int up, int periodic, lks_module **m)
{
    int count = ps->n;
    char name[LKSI_NAME];
    int64_t shape[5] = {up ? in : out, up ? out : in, kernel, kernel, kernel}, fan = up ? out : in;
    for (int d = 0; d < dims; d++) fan *= kernel;
    conv *c = lksi_module_new(ps, &conv_ops, sizeof *c, 0);
    if (!c) return LKS_ERR_MEMORY;
    c->dims = dims, c->up = up, c->periodic = periodic, c->kernel = kernel;
    lks_status s = lks_params_add(ps, lksi_name(name, prefix, "weight"), LKS_F32, dims + 2, shape, &c->weight);
    if (s == LKS_OK) s = lks_init_kaiming_uniform(c->weight, fan);
    if (s == LKS_OK) s = lks_params_add(ps, lksi_name(name, prefix, "bias"), LKS_F32, 1, &out, &c->bias);
    if (s == LKS_OK) s = lks_init_kaiming_uniform(c->bias, fan);
    return lksi_module_finish(ps, count, s, &c->m, m);
}

/* --- group norm --- */

typedef struct group {
    lks_module m;
    lks_tensor *weight, *bias; /* [channels] */
    int64_t groups;
} group;

static lks_tensor *group_forward(lks_module *m, lks_tensor *x)
{
    group *g = (group *)m;
    return lks_group_norm(x, g->groups, g->weight, g->bias, 1e-5);
}

static const lksi_module_ops group_ops = {"group_norm", group_forward};

/* Up to 8 groups of at least 4 channels. */
static lks_status group_new(lks_params *ps, const char *prefix, int64_t channels, lks_module **m)
{
    int count = ps->n;
    char name[LKSI_NAME];
    group *g = lksi_module_new(ps, &group_ops, sizeof *g, 0);
    if (!g) return LKS_ERR_MEMORY;
    for (g->groups = 8; g->groups > 1 && (channels % g->groups || channels / g->groups < 4);) g->groups /= 2;
    lks_status s = lks_params_add(ps, lksi_name(name, prefix, "weight"), LKS_F32, 1, &channels, &g->weight);
    if (s == LKS_OK) s = lks_params_add(ps, lksi_name(name, prefix, "bias"), LKS_F32, 1, &channels, &g->bias);
    if (s == LKS_OK && (s = lks_no_grad_begin(ps->ctx)) == LKS_OK) {
        s = lks_fill_(g->weight, 1);
        lks_no_grad_end(ps->ctx);
    }
    return lksi_module_finish(ps, count, s, &g->m, m);
}

/* --- a block: convolution, norm, gelu, `parts` times --- */

typedef struct block {
    lks_module m; /* children: convolution and norm (NULL without), in turn */
    double dropout;
} block;

static lks_tensor *block_forward(lks_module *m, lks_tensor *x)
{
    for (int i = 0; i < m->children; i += 2) {
        x = lks_module_forward(m->child[i], x);
        if (m->child[i + 1]) x = lks_module_forward(m->child[i + 1], x);
        x = lks_gelu(x, 1);
    }
    double p = m->train ? ((block *)m)->dropout : 0;
    return p > 0 ? lks_dropout(x, p) : x;
}

static const lksi_module_ops block_ops = {"block", block_forward};

static lks_status block_new(lks_params *ps, const char *prefix, int dims, int64_t in, int64_t out, int parts, int norm,
                            int periodic, double dropout, lks_module **m)
{
    int count = ps->n;
    char name[LKSI_NAME], part[32];
    block *b = lksi_module_new(ps, &block_ops, sizeof *b, 2 * parts);
    if (!b) return LKS_ERR_MEMORY;
    b->dropout = dropout;
    lks_status s = LKS_OK;
    for (int i = 0; i < parts && s == LKS_OK; i++) {
        snprintf(part, sizeof part, "conv%d", i + 1);
        s = conv_new(ps, lksi_name(name, prefix, part), dims, i ? out : in, out, 3, 0, periodic, &b->m.child[2 * i]);
        snprintf(part, sizeof part, "norm%d", i + 1);
        if (s == LKS_OK && norm) s = group_new(ps, lksi_name(name, prefix, part), out, &b->m.child[2 * i + 1]);
    }
    return lksi_module_finish(ps, count, s, &b->m, m);
}

/* Half the size, rounded up. */
static lks_tensor *halved(lks_tensor *x)
{
    static const int64_t two[3] = {2, 2, 2};
    lks_tensor *y = NULL;
    return lks_max_pool(x, two, NULL, NULL, NULL, 1, &y, NULL) == LKS_OK ? y : NULL;
}

/* Channels last in memory, which convolutions work in; what follows keeps it. */
static lks_tensor *channels_last(lks_tensor *x, int dims)
{
    int to[5] = {0, 2, 3, 4, 1}, from[5] = {0, dims + 1, 1, 2, 3};
    to[dims + 1] = 1;
    return lks_permute(lks_contiguous(lks_permute(x, dims + 2, to)), dims + 2, from);
}

static lks_status check(lks_params *ps, const char *where, int dims, int64_t channels, int64_t out, int64_t width,
                        int64_t stages, int padding, double dropout)
{
    if (dims < 1 || dims > 3) return lksi_module_refuse(ps, where, "%d spatial dims; 1, 2 or 3 are supported", dims);
    if (channels < 1 || out < 1 || width < 1 || stages < 1 || stages > 12 || width > TOP ||
        width > (INT64_C(1) << 31) >> stages)
        return lksi_module_refuse(ps, where, "channels %lld -> %lld, width %lld (1 to %d), stages %lld (1 to 12)",
                                  (long long)channels, (long long)out, (long long)width, TOP, (long long)stages);
    if (padding != LKS_PADDING_ZEROS && padding != LKS_PADDING_PERIODIC)
        return lksi_module_refuse(ps, where, "padding %d", padding);
    if (!(dropout >= 0 && dropout < 1))
        return lksi_module_refuse(ps, where, "dropout is %g; it must be in [0, 1)", dropout);
    return LKS_OK;
}

static int fits(lks_module *m, const char *where, lks_tensor *x, int dims, int64_t channels)
{
    char text[200];
    int good = lks_ndim(x) == dims + 2 && lks_dim(x, 1) == channels;
    for (int d = 2; good && d < dims + 2; d++) good = lks_dim(x, d) > 0;
    if (!good)
        lksi_fail(&m->ctx->base, LKS_ERR_SHAPE, where,
                  "x %s must be [N, %lld, and %d spatial dims, none of them empty]",
                  lksi_tensor_text(x, text, sizeof text), (long long)channels, dims);
    return good;
}

/* --- U-Net --- */

/* Children: stages + 1 blocks down, then for each stage from the lowest a convolution up and a block, head. */
typedef struct unet {
    lks_module m;
    int dims;
    int64_t channels, stages;
} unet;

static lks_tensor *unet_forward(lks_module *m, lks_tensor *x)
{
    unet *u = (unet *)m;
    int n = (int)u->stages;
    lks_tensor *skip[16], *part[2];
    if (!fits(m, "unet", x, u->dims, u->channels)) return NULL;
    lks_tensor *first = x, *h = channels_last(x, u->dims);
    for (int i = 0; i <= n; i++) {
        h = skip[i] = lks_module_forward(m->child[i], h);
        if (i < n) h = halved(h);
    }
    for (int i = n - 1; i >= 0; i--) {
        int at = n + 1 + 2 * (n - 1 - i);
        h = lks_module_forward(m->child[at], h);
        for (int d = 2; h && d < u->dims + 2; d++)
            if (lks_dim(h, d) > lks_dim(skip[i], d)) h = lks_narrow(h, d, 0, lks_dim(skip[i], d));
        part[0] = skip[i], part[1] = h;
        h = h ? lks_module_forward(m->child[at + 1], lks_cat(2, part, 1)) : NULL;
    }
    part[0] = h, part[1] = first;
    return h ? lks_module_forward(m->child[3 * n + 1], lks_cat(2, part, 1)) : NULL;
}

static const lksi_module_ops unet_ops = {"unet", unet_forward};

lks_status lks_unet_create(lks_params *ps, const char *prefix, int dims, int64_t channels, int64_t out, int64_t width,
                           int64_t stages, int norm, int padding, double dropout, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n, periodic = padding == LKS_PADDING_PERIODIC;
    char name[LKSI_NAME], part[32];
    *m = NULL;
    TRY(check(ps, "lks_unet_create", dims, channels, out, width, stages, padding, dropout));
    int n = (int)stages;
    unet *u = lksi_module_new(ps, &unet_ops, sizeof *u, 3 * n + 2);
    if (!u) return LKS_ERR_MEMORY;
    u->dims = dims, u->channels = channels, u->stages = stages;
    lks_module **c = u->m.child;
    lks_status s = LKS_OK;
    for (int i = 0; i <= n && s == LKS_OK; i++) {
        snprintf(part, sizeof part, "down.%d", i);
        s = block_new(ps, lksi_name(name, prefix, part), dims, i ? width << (i - 1) : channels, width << i, 2, norm,
                      periodic, i == n ? dropout : 0, &c[i]);
    }
    for (int i = n - 1; i >= 0 && s == LKS_OK; i--) {
        int at = n + 1 + 2 * (n - 1 - i);
        snprintf(part, sizeof part, "up.%d.conv", i);
        s = conv_new(ps, lksi_name(name, prefix, part), dims, width << (i + 1), width << i, 2, 1, 0, &c[at]);
        snprintf(part, sizeof part, "up.%d", i);
        if (s == LKS_OK)
            s = block_new(ps, lksi_name(name, prefix, part), dims, width << (i + 1), width << i, 2, norm, periodic, 0,
                          &c[at + 1]);
    }
    if (s == LKS_OK)
        s = conv_new(ps, lksi_name(name, prefix, "head"), dims, width + channels, out, 1, 0, 0, &c[3 * n + 1]);
    return lksi_module_finish(ps, count, s, &u->m, m);
}

/* --- from a field to a vector --- */

/* Children: a block for each stage, head. */
typedef struct field {
    lks_module m;
    int dims;
    int64_t channels, size[3];
    double dropout;
} field;

static lks_tensor *field_forward(lks_module *m, lks_tensor *x)
{
    field *f = (field *)m;
    char text[200];
    if (!fits(m, "field_net", x, f->dims, f->channels)) return NULL;
    for (int d = 0; d < f->dims; d++)
        if (lks_dim(x, d + 2) != f->size[d]) {
            lksi_fail(&m->ctx->base, LKS_ERR_SHAPE, "field_net", "x %s has size %lld in dim %d; %lld is needed",
                      lksi_tensor_text(x, text, sizeof text), (long long)lks_dim(x, d + 2), d + 2,
                      (long long)f->size[d]);
            return NULL;
        }
    x = channels_last(x, f->dims);
    for (int i = 0; i + 1 < m->children; i++) x = halved(lks_module_forward(m->child[i], x));
    x = lks_flatten(x, 1, -1);
    if (m->train && f->dropout > 0) x = lks_dropout(x, f->dropout);
    return lks_module_forward(m->child[m->children - 1], x);
}

static const lksi_module_ops field_ops = {"field_net", field_forward};

lks_status lks_field_net_create(lks_params *ps, const char *prefix, int dims, int64_t channels, const int64_t *size,
                                int64_t out, int64_t width, int64_t stages, int norm, int padding, double dropout,
                                lks_module **m)
{
    static const char where[] = "lks_field_net_create";
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int count = ps->n;
    char name[LKSI_NAME], part[32];
    *m = NULL;
    TRY(check(ps, where, dims, channels, out, width, stages, padding, dropout));
    int64_t flat = width << (stages - 1);
    for (int d = 0; d < dims; d++) {
        if (!size || size[d] < 1) return lksi_module_refuse(ps, where, "a size is missing or smaller than 1");
        int64_t left = (size[d] - 1) / (INT64_C(1) << stages) + 1;
        if (!lksi_mul_fits(flat, left, &flat)) return lksi_module_refuse(ps, where, "the sizes are too large");
    }
    field *f = lksi_module_new(ps, &field_ops, sizeof *f, (int)stages + 1);
    if (!f) return LKS_ERR_MEMORY;
    f->dims = dims, f->channels = channels, f->dropout = dropout;
    for (int d = 0; d < dims; d++) f->size[d] = size[d];
    lks_status s = LKS_OK;
    for (int i = 0; i < (int)stages && s == LKS_OK; i++) {
        snprintf(part, sizeof part, "stages.%d", i);
        s = block_new(ps, lksi_name(name, prefix, part), dims, i ? width << (i - 1) : channels, width << i, 1, norm,
                      padding == LKS_PADDING_PERIODIC, 0, &f->m.child[i]);
    }
    if (s == LKS_OK) s = lks_linear_create(ps, lksi_name(name, prefix, "head"), flat, out, 1, &f->m.child[stages]);
    return lksi_module_finish(ps, count, s, &f->m, m);
}
