/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nn.c - public functions of products, normalisation, softmax, embedding, cat; and the table as the API shows it.
 */
#include "ops/ops.h"
#include "autocast/autocast.h"
#include "base/guard.h"
#include <lockstep/comm.h>

#include <string.h>

lks_tensor *lksi_matmul_into(lks_tensor *a, lks_tensor *b, lks_tensor *into)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx) return NULL;
    return lksi_call(ctx, "lks_matmul", LKSI_OP_matmul, 2, in, NULL, 1, &into) == LKS_OK ? into : NULL;
}

lks_tensor *lks_matmul(lks_tensor *a, lks_tensor *b) { return lksi_matmul_into(a, b, NULL); }

lks_tensor *lks_linear(lks_tensor *x, lks_tensor *weight, lks_tensor *bias)
{
    lks_tensor *in[3] = {x, weight, bias};
    lks_context *ctx = lksi_ctx(3, in);
    return ctx ? lksi_call1(ctx, "lks_linear", LKSI_OP_linear, 3, in, NULL) : NULL;
}

lks_tensor *lks_layer_norm(lks_tensor *x, int ndims, lks_tensor *weight, lks_tensor *bias, double eps)
{
    return lksi_layer_norm(x, ndims, weight, bias, eps, 0);
}

/* The dtype of y in which a product would ask for it, plus 1; 0: y's own. */
static int asked_by_products(lks_context *ctx, lks_tensor *x)
{
    lksi_attr none = {{0}};
    lks_dtype to;
    if (lksi_autocast_decide(ctx, "lks_layer_norm", LKSI_OP_linear, 1, &x, &none, &to) != LKS_OK) return 0;
    return to == LKS_DTYPE_NONE || x->v.dtype == LKS_F64 ? 0 : to + 1;
}

lks_tensor *lksi_layer_norm(lks_tensor *x, int ndims, lks_tensor *weight, lks_tensor *bias, double eps,
                            int for_products)
{
    lks_tensor *in[3] = {x, weight, bias}, *out[3] = {NULL, NULL, NULL};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.norm = {.ndims = ndims, .eps = eps}};
    if (for_products && x != lks_none) attr.norm.to = asked_by_products(ctx, x);
    return lksi_call(ctx, "lks_layer_norm", LKSI_OP_layer_norm, 3, in, &attr, 3, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_batch_norm(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, lks_tensor *running_mean,
                           lks_tensor *running_var, lks_tensor *staged_mean, lks_tensor *staged_var, int training,
                           double momentum, double eps)
{
    lks_tensor *in[8] = {x, weight, bias, running_mean, running_var, staged_mean, staged_var, lks_none};
    lks_tensor *out[3] = {NULL, NULL, NULL};
    lks_context *ctx = lksi_ctx(8, in);
    if (!ctx) return NULL;
    if (ctx->staged_off) in[5] = in[6] = lks_none;
    lksi_attr attr = {.batch_norm = {.training = training != 0, .momentum = momentum, .eps = eps}};
    return lksi_call(ctx, "lks_batch_norm", LKSI_OP_batch_norm, 8, in, &attr, 3, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_sync_batch_norm(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, lks_tensor *staged_mean,
                                lks_tensor *staged_var, double momentum, double eps)
{
    lks_tensor *in[8] = {x, weight, bias, lks_none, lks_none, staged_mean, staged_var, lks_none};
    lks_tensor *out[3] = {NULL, NULL, NULL};
    lks_context *ctx = lksi_ctx(8, in);
    if (!ctx || x == lks_none) return NULL;
    if (ctx->staged_off) in[5] = in[6] = lks_none;
    ctx->no_grad++; /* the gradient through what was measured is part of the row's */
    lks_tensor *mine = lksi_call1(ctx, "lks_sync_batch_norm", LKSI_OP_batch_norm_stats, 1, &x, NULL);
    in[7] = mine ? lks_all_gather(lks_unsqueeze(mine, 0)) : NULL;
    ctx->no_grad--;
    if (!in[7]) return NULL;
    lksi_attr attr = {.batch_norm = {.training = 1, .momentum = momentum, .eps = eps}};
    return lksi_call(ctx, "lks_sync_batch_norm", LKSI_OP_batch_norm, 8, in, &attr, 3, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_rms_norm(lks_tensor *x, int ndims, lks_tensor *weight, double eps)
{
    LKSI_GUARD;
    static const double epsilon[] = {
        [LKS_F64] = 0x1p-52, [LKS_F32] = 0x1p-23, [LKS_F16] = 0x1p-10, [LKS_BF16] = 0x1p-7};
    lks_tensor *in[2] = {x, weight}, *out[2] = {NULL, NULL};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx || x == lks_none) return NULL;
    if (eps < 0 && lks_dtype_is_float(x->v.dtype)) eps = epsilon[x->v.dtype];
    lksi_attr attr = {.norm = {.ndims = ndims, .eps = eps}};
    return lksi_call(ctx, "lks_rms_norm", LKSI_OP_rms_norm, 2, in, &attr, 2, out) == LKS_OK ? out[0] : NULL;
}

lks_tensor *lks_group_norm(lks_tensor *x, int64_t groups, lks_tensor *weight, lks_tensor *bias, double eps)
{
    lks_tensor *in[3] = {x, weight, bias}, *out[3] = {NULL, NULL, NULL};
    lks_context *ctx = lksi_ctx(3, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.norm = {.groups = groups, .eps = eps}};
    return lksi_call(ctx, "lks_group_norm", LKSI_OP_group_norm, 3, in, &attr, 3, out) == LKS_OK ? out[0] : NULL;
}

static lks_tensor *along(const char *where, int op, lks_tensor *x, int dim)
{
    if (!x || (x->v.ndim && lksi_dim(x->ctx, where, x->v.ndim, &dim))) return NULL;
    lksi_attr attr = {.dim = {.dim = x->v.ndim ? dim : 0}};
    return lksi_call1(x->ctx, where, op, 1, &x, &attr);
}

lks_tensor *lks_softmax(lks_tensor *x, int dim) { return along("lks_softmax", LKSI_OP_softmax, x, dim); }
lks_tensor *lks_log_softmax(lks_tensor *x, int dim) { return along("lks_log_softmax", LKSI_OP_log_softmax, x, dim); }
lks_tensor *lks_softmin(lks_tensor *x, int dim) { return along("lks_softmin", LKSI_OP_softmax, lks_neg(x), dim); }

lks_tensor *lks_embedding(lks_tensor *weight, lks_tensor *index)
{
    lks_tensor *in[2] = {weight, index};
    lks_context *ctx = lksi_ctx(2, in);
    if (!ctx) return NULL;
    lksi_attr attr = {.embedding = {.rows = weight->v.ndim ? weight->v.shape[0] : 0}};
    return lksi_call1(ctx, "lks_embedding", LKSI_OP_embedding, 2, in, &attr);
}

lks_tensor *lks_cat(int n, lks_tensor *const *x, int dim)
{
    lks_context *ctx = lksi_ctx(n, x);
    if (!ctx) return NULL;
    int ndim = 1; /* of the first that is not a legacy empty */
    for (int i = 0; i < n; i++) {
        ndim = x[i]->v.ndim;
        if (x[i]->v.ndim != 1 || x[i]->numel) break;
    }
    if (lksi_dim(ctx, "lks_cat", ndim, &dim)) return NULL;
    lksi_attr attr = {.dim = {.dim = dim}};
    return lksi_call1(ctx, "lks_cat", LKSI_OP_cat, n, x, &attr);
}

/* --- the table --- */

static int valid(int i) { return i >= 0 && i < LKSI_OP_COUNT; }
int lks_op_count(void) { return LKSI_OP_COUNT; }
const char *lks_op_name(int i) { return valid(i) ? lksi_rows[i].name : ""; }
const char *lks_op_schema(int i) { return valid(i) ? lksi_rows[i].schema : ""; }

int lks_op_lookup(const char *name)
{
    int i = lksi_row_named(name);
    return i < 0 ? LKS_ERR_NOT_FOUND : i;
}

int lks_op_differentiable(int i)
{
    if (!valid(i)) return 0;
    int kind = lksi_rows[i].kind;
    return kind == LKSI_KIND_OP || kind == LKSI_KIND_VIEW || kind == LKSI_KIND_COMPOSITE;
}

static int listed(const int *list, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (list[k] == i) return 1;
    return 0;
}
#define LISTED(list, i) listed(list, (int)(sizeof(list) / sizeof *(list)), i)

/* Fused: by the row NAME_backward, which has no rule; or one of these, whose gradient has another name. */
int lks_op_order(int i)
{
    static const int once[] = {LKSI_OP_grid_sampler_2d, LKSI_OP_grid_sampler_3d, LKSI_OP_rnn, LKSI_OP_gru, LKSI_OP_lstm,
                               LKSI_OP_rnn_cell, LKSI_OP_gru_cell, LKSI_OP_lstm_cell};
    /* Their rules do without the fused row while backward is recorded. */
    static const int without[] = {LKSI_OP_prod,       LKSI_OP_cumprod,       LKSI_OP_layer_norm,
                                  LKSI_OP_rms_norm,   LKSI_OP_group_norm,    LKSI_OP_batch_norm,
                                  LKSI_OP_attention,  LKSI_OP_cross_entropy, LKSI_OP_cross_entropy_soft};
    if (!lks_op_differentiable(i)) return 0;
    if (LISTED(without, i)) return 2;
    size_t n = strlen(lksi_rows[i].name);
    for (int k = 0; k < LKSI_OP_COUNT; k++)
        if (lksi_rows[k].kind == LKSI_KIND_NOGRAD && !strncmp(lksi_rows[k].name, lksi_rows[i].name, n) &&
            !strcmp(lksi_rows[k].name + n, "_backward"))
            return 1;
    return LISTED(once, i) ? 1 : 2;
}

int lks_op_integers(int i)
{
    static const int all[] = {
        LKSI_OP_view, LKSI_OP_expand, LKSI_OP_permute, LKSI_OP_slice, LKSI_OP_slice_backward, LKSI_OP_clone,
        LKSI_OP_cast, LKSI_OP_copy, LKSI_OP_accumulate, LKSI_OP_fill, LKSI_OP_arange, LKSI_OP_add, LKSI_OP_sub,
        LKSI_OP_mul, LKSI_OP_div, LKSI_OP_eq, LKSI_OP_ne, LKSI_OP_lt, LKSI_OP_le, LKSI_OP_gt, LKSI_OP_ge,
        LKSI_OP_where, LKSI_OP_affine, LKSI_OP_exp, LKSI_OP_log, LKSI_OP_sqrt, LKSI_OP_tanh, LKSI_OP_sigmoid,
        LKSI_OP_relu, LKSI_OP_gelu, LKSI_OP_sqrt_backward, LKSI_OP_tanh_backward, LKSI_OP_sigmoid_backward,
        LKSI_OP_relu_backward, LKSI_OP_gelu_backward, LKSI_OP_expm1, LKSI_OP_log1p, LKSI_OP_log2, LKSI_OP_log10,
        LKSI_OP_rsqrt, LKSI_OP_reciprocal, LKSI_OP_abs, LKSI_OP_sign, LKSI_OP_sin, LKSI_OP_cos, LKSI_OP_tan,
        LKSI_OP_asin, LKSI_OP_acos, LKSI_OP_sinh, LKSI_OP_cosh, LKSI_OP_erf, LKSI_OP_erfinv, LKSI_OP_silu,
        LKSI_OP_hardswish, LKSI_OP_hardswish_backward, LKSI_OP_leaky_relu, LKSI_OP_elu, LKSI_OP_softplus,
        LKSI_OP_clamp, LKSI_OP_pow, LKSI_OP_pow_scalar, LKSI_OP_rpow, LKSI_OP_rdiv, LKSI_OP_maximum, LKSI_OP_minimum,
        LKSI_OP_atan2, LKSI_OP_addcmul, LKSI_OP_addcdiv, LKSI_OP_prelu, LKSI_OP_silu_backward,
        LKSI_OP_leaky_relu_backward, LKSI_OP_elu_backward, LKSI_OP_softplus_backward, LKSI_OP_clamp_backward,
        LKSI_OP_larger_backward, LKSI_OP_prelu_backward, LKSI_OP_prelu_weight_backward, LKSI_OP_fake_quantize_backward,
        LKSI_OP_sum, LKSI_OP_max, LKSI_OP_min, LKSI_OP_index_fill_backward, LKSI_OP_argmax, LKSI_OP_prod, LKSI_OP_amax,
        LKSI_OP_amin, LKSI_OP_all, LKSI_OP_any, LKSI_OP_cumsum, LKSI_OP_cumprod, LKSI_OP_mse_loss, LKSI_OP_l1_loss,
        LKSI_OP_smooth_l1_loss, LKSI_OP_huber_loss, LKSI_OP_binary_cross_entropy,
        LKSI_OP_binary_cross_entropy_with_logits, LKSI_OP_kl_div, LKSI_OP_poisson_nll_loss,
        LKSI_OP_hinge_embedding_loss, LKSI_OP_margin_ranking_loss, LKSI_OP_soft_margin_loss, LKSI_OP_cosine_margin,
        LKSI_OP_cat, LKSI_OP_gather, LKSI_OP_scatter, LKSI_OP_index_copy, LKSI_OP_scatter_add, LKSI_OP_index,
        LKSI_OP_index_put, LKSI_OP_pad, LKSI_OP_triu, LKSI_OP_flip, LKSI_OP_diagonal, LKSI_OP_diag_embed,
        LKSI_OP_trace, LKSI_OP_cross, LKSI_OP_one_hot, LKSI_OP_sort,
    };
    return LISTED(all, i);
}
