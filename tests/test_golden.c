/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_golden.c - each op of ops.h beside PyTorch, by the files of tests/golden (make.py writes them; neither torch nor
 * Python is needed here). Per op and precision, for the results and for the gradients of the inputs:
 *
 *   error          the largest |value - reference| of a tensor, in ulps of its largest |reference|; the reference is
 *                  made by torch in float64 on the very same inputs. PyTorch's error is the same of its own result.
 *   bound          error <= 2 x PyTorch's error + 4. For ops that work on each element alone (EACH) also with both
 *                  errors in ulps of the element they are of.
 *   overflow       where torch's float32 is not finite, the value must be the same.
 *   the unit       the ulp of the result's dtype; of a gradient, the ulp of the narrower of the input's dtype and the
 *                  dtype that autocast computed in. Integers and bools must be equal; so must what is not finite.
 *   under autocast dtypes of results must be torch's; leaves, gradients and inputs are rounded as the policy rounds.
 *                  f32@cpu, f32@cuda: float32 inputs in a bfloat16 region stay what they are unless the policy lowers.
 *
 * The table at the end is sorted by error over bound, worst first. Optimizers, models, scaler: test_golden_train.c.
 */
#include "arrays.h"
#include "golden.h"

#define MAX_IN 20
#define MAX_OUT 8
enum { EACH = 1 };

typedef struct op {
    const char *name;
    int (*call)(const char *a, int n, lks_tensor *const *x, lks_tensor **y); /* number of results, 0 = failed */
    int flags;
} op;

static int one(lks_tensor **y, lks_tensor *t)
{
    y[0] = t;
    return t != NULL;
}

#define CALL(name) static int name(const char *a, int n, lks_tensor *const *x, lks_tensor **y)
#define NOT_USED (void)a, (void)n
#define UNARY(name)                                                                                            \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        NOT_USED;                                                                                              \
        return one(y, lks_##name(x[0]));                                                                       \
    }
#define BINARY(name)                                                                                           \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        NOT_USED;                                                                                              \
        return one(y, lks_##name(x[0], x[1]));                                                                 \
    }
#define INT(name) arg_int(a, #name)
#define NUM(name) arg(a, #name)

/* Lists as the API takes them. */
static int dims_of(const char *a, const char *name, int *dims)
{
    int64_t list[LKS_MAX_DIMS];
    int n = arg_list(a, name, list);
    for (int i = 0; i < n; i++) dims[i] = (int)list[i];
    return n;
}

/* --- views, copies --- */

CALL(do_reshape)
{
    int64_t s[LKS_MAX_DIMS];
    (void)n;
    int k = arg_list(a, "shape", s);
    return one(y, lks_reshape(x[0], k, s));
}
CALL(do_expand)
{
    int64_t s[LKS_MAX_DIMS];
    (void)n;
    int k = arg_list(a, "shape", s);
    return one(y, lks_expand(x[0], k, s));
}
CALL(do_permute)
{
    int d[LKS_MAX_DIMS];
    (void)n;
    int k = dims_of(a, "dims", d);
    return one(y, lks_permute(x[0], k, d));
}
CALL(do_flatten) { NOT_USED; return one(y, lks_flatten(x[0], INT(d), INT(e))); }
CALL(do_transpose) { NOT_USED; return one(y, lks_transpose(x[0], INT(d0), INT(d1))); }
CALL(do_slice) { NOT_USED; return one(y, lks_slice(x[0], INT(dim), INT(start), INT(end), INT(step))); }
CALL(do_narrow) { NOT_USED; return one(y, lks_narrow(x[0], INT(dim), INT(start), INT(length))); }
CALL(do_select) { NOT_USED; return one(y, lks_select(x[0], INT(dim), INT(index))); }
CALL(do_squeeze) { NOT_USED; return one(y, lks_squeeze(x[0], INT(dim))); }
CALL(do_unsqueeze) { NOT_USED; return one(y, lks_unsqueeze(x[0], INT(dim))); }
CALL(do_split) { NOT_USED; return lks_split(x[0], INT(size), INT(dim), MAX_OUT, y); }
CALL(do_chunk) { NOT_USED; return lks_chunk(x[0], INT(n), INT(dim), y); }
UNARY(contiguous)
UNARY(clone)
CALL(do_to) { NOT_USED; return one(y, lks_to(x[0], INT(f64) ? LKS_F64 : LKS_F16)); }
CALL(do_copy_)
{
    NOT_USED;
    lks_tensor *d = lks_clone(x[0]);
    return d && lks_copy_(d, x[1]) == LKS_OK ? one(y, d) : 0;
}
CALL(do_fill_)
{
    NOT_USED;
    lks_tensor *d = lks_clone(x[0]);
    return d && lks_fill_(d, NUM(value)) == LKS_OK ? one(y, d) : 0;
}

/* --- elementwise --- */

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(eq)
BINARY(ne)
BINARY(lt)
BINARY(le)
BINARY(gt)
BINARY(ge)
UNARY(neg)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(relu)
CALL(do_affine) { NOT_USED; return one(y, lks_affine(x[0], NUM(scale), NUM(shift))); }
CALL(do_add_scalar) { NOT_USED; return one(y, lks_add_scalar(x[0], NUM(v))); }
CALL(do_mul_scalar) { NOT_USED; return one(y, lks_mul_scalar(x[0], NUM(v))); }
CALL(do_gelu) { NOT_USED; return one(y, lks_gelu(x[0], INT(tanh_form))); }
CALL(do_where) { NOT_USED; return one(y, lks_where(x[0], x[1], x[2])); }

UNARY(expm1)
UNARY(log1p)
UNARY(log2)
UNARY(log10)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(sinh)
UNARY(cosh)
UNARY(erf)
UNARY(erfinv)
UNARY(abs)
UNARY(sign)
UNARY(silu)
UNARY(hardswish)
BINARY(pow)
BINARY(prelu)
BINARY(maximum)
BINARY(minimum)
BINARY(atan2)
CALL(do_leaky_relu) { NOT_USED; return one(y, lks_leaky_relu(x[0], NUM(slope))); }
CALL(do_elu) { NOT_USED; return one(y, lks_elu(x[0], NUM(alpha))); }
CALL(do_softplus) { NOT_USED; return one(y, lks_softplus(x[0], NUM(beta), NUM(threshold))); }
CALL(do_clamp) { NOT_USED; return one(y, lks_clamp(x[0], NUM(min), NUM(max))); }
CALL(do_pow_scalar) { NOT_USED; return one(y, lks_pow_scalar(x[0], NUM(exponent))); }
CALL(do_rpow) { NOT_USED; return one(y, lks_rpow(x[0], NUM(base))); }
CALL(do_rdiv) { NOT_USED; return one(y, lks_rdiv(x[0], NUM(v))); }
CALL(do_addcmul) { NOT_USED; return one(y, lks_addcmul(x[0], x[1], x[2], NUM(value))); }
CALL(do_addcdiv) { NOT_USED; return one(y, lks_addcdiv(x[0], x[1], x[2], NUM(value))); }

/* --- reductions --- */

#define OVER(name, ...)                                                                                        \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        int d[LKS_MAX_DIMS];                                                                                   \
        (void)n;                                                                                               \
        int k = dims_of(a, "dims", d);                                                                         \
        return one(y, lks_##name(__VA_ARGS__));                                                                \
    }
OVER(sum, x[0], k, d, INT(keepdim), LKS_DTYPE_NONE)
OVER(mean, x[0], k, d, INT(keepdim), LKS_DTYPE_NONE)
OVER(prod, x[0], k, d, INT(keepdim), LKS_DTYPE_NONE)
OVER(amax, x[0], k, d, INT(keepdim))
OVER(amin, x[0], k, d, INT(keepdim))
OVER(logsumexp, x[0], k, d, INT(keepdim))
OVER(var, x[0], k, d, INT(keepdim), NUM(correction))
OVER(std, x[0], k, d, INT(keepdim), NUM(correction))
OVER(norm, x[0], NUM(p), k, d, INT(keepdim))
OVER(all, x[0], k, d, INT(keepdim))
OVER(any, x[0], k, d, INT(keepdim))
CALL(do_max) { NOT_USED; return lks_max(x[0], INT(dim), INT(keepdim), &y[0], &y[1]) == LKS_OK ? 2 : 0; }
CALL(do_min) { NOT_USED; return lks_min(x[0], INT(dim), INT(keepdim), &y[0], &y[1]) == LKS_OK ? 2 : 0; }
UNARY(max_all)
UNARY(min_all)
CALL(do_argmax) { NOT_USED; return one(y, lks_argmax(x[0], INT(dim), INT(keepdim))); }
CALL(do_argmin) { NOT_USED; return one(y, lks_argmin(x[0], INT(dim), INT(keepdim))); }
CALL(do_dist) { NOT_USED; return one(y, lks_dist(x[0], x[1], NUM(p))); }
CALL(do_normalize) { NOT_USED; return one(y, lks_normalize(x[0], NUM(p), INT(dim), NUM(eps))); }
CALL(do_cosine_similarity) { NOT_USED; return one(y, lks_cosine_similarity(x[0], x[1], INT(dim), NUM(eps))); }
CALL(do_renorm) { NOT_USED; return one(y, lks_renorm(x[0], NUM(p), INT(dim), NUM(max))); }
CALL(do_cumsum) { NOT_USED; return one(y, lks_cumsum(x[0], INT(dim), LKS_DTYPE_NONE)); }
CALL(do_cumprod) { NOT_USED; return one(y, lks_cumprod(x[0], INT(dim), LKS_DTYPE_NONE)); }
CALL(do_recurrence) { NOT_USED; return one(y, lks_recurrence(x[0], x[1], INT(dim), INT(reverse))); }

/* --- products, convolution, pooling --- */

BINARY(matmul)
CALL(do_linear) { NOT_USED; return one(y, lks_linear(x[0], x[1], n > 2 ? x[2] : LKS_NONE)); }
/* Lists of the dims that a window slides along. */
typedef struct window {
    int64_t kernel[LKS_MAX_DIMS], stride[LKS_MAX_DIMS], padding[LKS_MAX_DIMS], dilation[LKS_MAX_DIMS],
        output_padding[LKS_MAX_DIMS], size[LKS_MAX_DIMS];
} window;
static window window_of(const char *a)
{
    window w;
    const struct { const char *name; int64_t *list; } lists[] = {
        {"kernel", w.kernel}, {"stride", w.stride}, {"padding", w.padding}, {"dilation", w.dilation},
        {"output_padding", w.output_padding}, {"size", w.size}};
    for (int i = 0; i < 6; i++)
        if (arg_at(a, lists[i].name)) arg_list(a, lists[i].name, lists[i].list);
    return w;
}
#define CONVOLUTION(name)                                                                                      \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        window w = window_of(a);                                                                               \
        return one(y, lks_##name(x[0], x[1], n > 2 ? x[2] : LKS_NONE, w.stride, w.padding, w.dilation,         \
                                 INT(groups)));                                                                \
    }
#define TRANSPOSED(name)                                                                                       \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        window w = window_of(a);                                                                               \
        return one(y, lks_##name(x[0], x[1], n > 2 ? x[2] : LKS_NONE, w.stride, w.padding, w.output_padding,   \
                                 INT(groups), w.dilation));                                                    \
    }
CONVOLUTION(conv1d)
CONVOLUTION(conv2d)
CONVOLUTION(conv3d)
TRANSPOSED(conv_transpose1d)
TRANSPOSED(conv_transpose2d)
TRANSPOSED(conv_transpose3d)
CALL(do_conv_tbc) { NOT_USED; return one(y, lks_conv_tbc(x[0], x[1], x[2], INT(padding))); }
CALL(do_max_pool2d)
{
    NOT_USED;
    window w = window_of(a);
    return one(y, lks_max_pool2d(x[0], w.kernel, w.stride, w.padding));
}
CALL(do_max_pool)
{
    NOT_USED;
    window w = window_of(a);
    lks_status s = lks_max_pool(x[0], w.kernel, w.stride, w.padding, w.dilation, INT(ceil_mode), &y[0], &y[1]);
    return s == LKS_OK ? 2 : 0;
}
CALL(do_avg_pool)
{
    NOT_USED;
    window w = window_of(a);
    return one(y, lks_avg_pool(x[0], w.kernel, w.stride, w.padding, INT(ceil_mode), INT(count_include_pad), 0));
}
CALL(do_adaptive_avg_pool)
{
    NOT_USED;
    window w = window_of(a);
    return one(y, lks_adaptive_avg_pool(x[0], w.size));
}
CALL(do_adaptive_max_pool)
{
    NOT_USED;
    window w = window_of(a);
    return lks_adaptive_max_pool(x[0], w.size, &y[0], &y[1]) == LKS_OK ? 2 : 0;
}
CALL(do_fractional_max_pool)
{
    NOT_USED;
    window w = window_of(a);
    return lks_fractional_max_pool(x[0], w.kernel, w.size, x[1], &y[0], &y[1]) == LKS_OK ? 2 : 0;
}
CALL(do_max_unpool)
{
    NOT_USED;
    window w = window_of(a);
    return one(y, lks_max_unpool(x[0], x[1], w.size));
}

BINARY(mm)
BINARY(bmm)
BINARY(mv)
BINARY(dot)
BINARY(outer)
#define SCALED(name)                                                                                           \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        NOT_USED;                                                                                              \
        return one(y, lks_##name(x[0], x[1], x[2], NUM(beta), NUM(alpha)));                                    \
    }
SCALED(addmm)
SCALED(baddbmm)
SCALED(addbmm)
SCALED(addmv)
SCALED(addr)
CALL(do_linalg_vecdot) { NOT_USED; return one(y, lks_linalg_vecdot(x[0], x[1], INT(dim))); }
CALL(do_bilinear) { NOT_USED; return one(y, lks_bilinear(x[0], x[1], x[2], x[3])); }
CALL(do_multi_dot) { NOT_USED; return one(y, lks_multi_dot(n, x)); }
CALL(do_chain_matmul) { NOT_USED; return one(y, lks_chain_matmul(n, x)); }
CALL(do_tensordot)
{
    int d[LKS_MAX_DIMS], e[LKS_MAX_DIMS];
    (void)n;
    int k = dims_of(a, "dims_a", d);
    dims_of(a, "dims_b", e);
    return one(y, lks_tensordot(x[0], x[1], k, d, e));
}

/* --- norms, softmax, losses --- */

CALL(do_layer_norm)
{
    return one(y, lks_layer_norm(x[0], INT(ndims), n > 1 ? x[1] : LKS_NONE, n > 2 ? x[2] : LKS_NONE, NUM(eps)));
}
CALL(do_batch_norm)
{
    NOT_USED;
    int training = INT(training);
    lks_tensor *mean = training ? lks_clone(x[3]) : LKS_NONE, *var = training ? lks_clone(x[4]) : LKS_NONE;
    y[0] = lks_batch_norm(x[0], x[1], x[2], x[3], x[4], mean, var, training, NUM(momentum), NUM(eps));
    y[1] = mean, y[2] = var;
    return y[0] ? training ? 3 : 1 : 0;
}
CALL(do_softmax) { NOT_USED; return one(y, lks_softmax(x[0], INT(dim))); }
CALL(do_softmin) { NOT_USED; return one(y, lks_softmin(x[0], INT(dim))); }
CALL(do_log_softmax) { NOT_USED; return one(y, lks_log_softmax(x[0], INT(dim))); }
CALL(do_cross_entropy)
{
    NOT_USED;
    return one(y, lks_cross_entropy(x[0], x[1], INT(ignore), NUM(smoothing), INT(reduction)));
}

CALL(do_reflection_pad)
{
    NOT_USED;
    int64_t before[LKS_MAX_DIMS], after[LKS_MAX_DIMS];
    arg_list(a, "before", before), arg_list(a, "after", after);
    return one(y, lks_reflection_pad(x[0], before, after));
}
CALL(do_replication_pad)
{
    NOT_USED;
    int64_t before[LKS_MAX_DIMS], after[LKS_MAX_DIMS];
    arg_list(a, "before", before), arg_list(a, "after", after);
    return one(y, lks_replication_pad(x[0], before, after));
}
CALL(do_grid_sample)
{
    NOT_USED;
    return one(y, lks_grid_sample(x[0], x[1], INT(mode), INT(padding), INT(align_corners)));
}
CALL(do_rms_norm) { return one(y, lks_rms_norm(x[0], INT(ndims), n > 1 ? x[1] : LKS_NONE, NUM(eps))); }
CALL(do_group_norm)
{
    return one(y, lks_group_norm(x[0], INT(groups), n > 1 ? x[1] : LKS_NONE, n > 2 ? x[2] : LKS_NONE, NUM(eps)));
}
CALL(do_sync_batch_norm)
{
    NOT_USED;
    y[1] = lks_clone(x[3]), y[2] = lks_clone(x[4]);
    y[0] = lks_sync_batch_norm(x[0], x[1], x[2], y[1], y[2], NUM(momentum), NUM(eps));
    return y[0] ? 3 : 0;
}

CALL(do_cross_entropy_weighted)
{
    lks_tensor *weight = n > 2 ? x[2] : LKS_NONE;
    return one(y, lks_cross_entropy_weighted(x[0], x[1], weight, INT(ignore), NUM(smoothing), INT(reduction)));
}
CALL(do_nll_loss)
{
    return one(y, lks_nll_loss(x[0], x[1], n > 2 ? x[2] : LKS_NONE, INT(ignore), INT(reduction)));
}
#define LOSS(name, ...)                                                                                        \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        NOT_USED;                                                                                              \
        return one(y, lks_##name(__VA_ARGS__, INT(reduction)));                                                \
    }
LOSS(mse_loss, x[0], x[1])
LOSS(l1_loss, x[0], x[1])
LOSS(smooth_l1_loss, x[0], x[1], NUM(beta))
LOSS(huber_loss, x[0], x[1], NUM(delta))
LOSS(binary_cross_entropy, x[0], x[1], x[2])
LOSS(binary_cross_entropy_with_logits, x[0], x[1], x[2], x[3])
LOSS(kl_div, x[0], x[1], INT(log_target))
LOSS(poisson_nll_loss, x[0], x[1], INT(log_input), INT(full), NUM(eps))
LOSS(hinge_embedding_loss, x[0], x[1], NUM(margin))
LOSS(margin_ranking_loss, x[0], x[1], x[2], NUM(margin))
LOSS(soft_margin_loss, x[0], x[1])
LOSS(multi_margin_loss, x[0], x[1], x[2], INT(p), NUM(margin))
LOSS(multilabel_margin_loss, x[0], x[1])
LOSS(cosine_embedding_loss, x[0], x[1], x[2], NUM(margin))
LOSS(triplet_margin_loss, x[0], x[1], x[2], NUM(margin), NUM(norm), NUM(eps), INT(swap))
LOSS(ctc_loss, lks_log_softmax(x[0], 2), x[1], x[2], x[3], INT(blank), INT(zero_infinity))

/* --- indexing, attention --- */

BINARY(embedding)
CALL(do_cat) { return one(y, lks_cat(n, x, INT(dim))); }
CALL(do_scaled_dot_product_attention)
{
    lks_tensor *mask = n > 3 ? x[3] : LKS_NONE;
    return one(y, lks_scaled_dot_product_attention(x[0], x[1], x[2], mask, 0, INT(causal), NUM(scale)));
}

CALL(do_stack) { return one(y, lks_stack(n, x, INT(dim))); }
CALL(do_split_sizes)
{
    int64_t s[LKS_MAX_DIMS];
    (void)n;
    int k = arg_list(a, "sizes", s);
    return lks_split_sizes(x[0], k, s, INT(dim), y);
}
CALL(do_gather) { NOT_USED; return one(y, lks_gather(x[0], INT(dim), x[1])); }
CALL(do_take_along_dim) { NOT_USED; return one(y, lks_take_along_dim(x[0], x[1], INT(dim))); }
CALL(do_scatter) { NOT_USED; return one(y, lks_scatter(x[0], INT(dim), x[1], x[2])); }
CALL(do_scatter_value) { NOT_USED; return one(y, lks_scatter_value(x[0], INT(dim), x[1], NUM(value))); }
CALL(do_scatter_add) { NOT_USED; return one(y, lks_scatter_add(x[0], INT(dim), x[1], x[2])); }
CALL(do_index_select) { NOT_USED; return one(y, lks_index_select(x[0], INT(dim), x[1])); }
CALL(do_index_add) { NOT_USED; return one(y, lks_index_add(x[0], INT(dim), x[1], x[2], NUM(alpha))); }
CALL(do_index_copy) { NOT_USED; return one(y, lks_index_copy(x[0], INT(dim), x[1], x[2])); }
CALL(do_index)
{
    lks_tensor *places[3] = {LKS_NONE, x[1], x[2]};
    (void)n;
    return one(y, INT(skip) ? lks_index(x[0], 3, places) : lks_index(x[0], 2, places + 1));
}
CALL(do_index_put) { NOT_USED; return one(y, lks_index_put(x[0], 2, x + 1, x[3], INT(accumulate))); }
CALL(do_one_hot) { NOT_USED; return one(y, lks_one_hot(x[0], INT(classes))); }
CALL(do_masked_fill) { NOT_USED; return one(y, lks_masked_fill(x[0], x[1], NUM(value))); }
CALL(do_where_scalar) { NOT_USED; return one(y, lks_where_scalar(x[0], x[1], NUM(b))); }
CALL(do_pad)
{
    int64_t pads[LKS_MAX_DIMS];
    (void)n;
    int k = arg_list(a, "pads", pads);
    return one(y, lks_pad(x[0], k, pads, NUM(value)));
}
CALL(do_triu) { NOT_USED; return one(y, lks_triu(x[0], INT(diagonal))); }
CALL(do_tril) { NOT_USED; return one(y, lks_tril(x[0], INT(diagonal))); }
CALL(do_diagonal) { NOT_USED; return one(y, lks_diagonal(x[0], INT(offset), INT(d0), INT(d1))); }
CALL(do_diag_embed) { NOT_USED; return one(y, lks_diag_embed(x[0], INT(offset), INT(d0), INT(d1))); }
CALL(do_diag) { NOT_USED; return one(y, lks_diag(x[0], INT(offset))); }
UNARY(trace)
CALL(do_cross) { NOT_USED; return one(y, lks_cross(x[0], x[1], INT(dim))); }
CALL(do_flip)
{
    int d[LKS_MAX_DIMS];
    (void)n;
    int k = dims_of(a, "dims", d);
    return one(y, lks_flip(x[0], k, d));
}
CALL(do_roll)
{
    int d[LKS_MAX_DIMS];
    int64_t shifts[LKS_MAX_DIMS];
    (void)n;
    int k = dims_of(a, "dims", d);
    arg_list(a, "shifts", shifts);
    return one(y, lks_roll(x[0], k, shifts, d));
}
CALL(do_repeat)
{
    int64_t times[LKS_MAX_DIMS];
    (void)n;
    int k = arg_list(a, "times", times);
    return one(y, lks_repeat(x[0], k, times));
}
CALL(do_sort) { NOT_USED; return lks_sort(x[0], INT(dim), INT(descending), &y[0], &y[1]) == LKS_OK ? 2 : 0; }
CALL(do_argsort) { NOT_USED; return one(y, lks_argsort(x[0], INT(dim), INT(descending))); }
CALL(do_topk) { NOT_USED; return lks_topk(x[0], INT(k), INT(dim), INT(largest), &y[0], &y[1]) == LKS_OK ? 2 : 0; }
static int numbers_of(const char *a, const char *name, double q[LKS_MAX_DIMS])
{
    const char *p = arg_at(a, name);
    int n = 0;
    for (char *end; p && *p && *p != ' ' && n < LKS_MAX_DIMS; p = *end == ',' ? end + 1 : end) q[n++] = strtod(p, &end);
    return n;
}
#define QUANTILE(name)                                                                                         \
    CALL(do_##name)                                                                                            \
    {                                                                                                          \
        double q[LKS_MAX_DIMS];                                                                                \
        (void)n;                                                                                               \
        int k = numbers_of(a, "q", q);                                                                         \
        return one(y, lks_##name(x[0], k, q, INT(dim), INT(keepdim), INT(interpolation)));                     \
    }
QUANTILE(quantile)
QUANTILE(nanquantile)
CALL(do_cdist) { NOT_USED; return one(y, lks_cdist(x[0], x[1], NUM(p))); }
CALL(do_pdist) { NOT_USED; return one(y, lks_pdist(x[0], NUM(p))); }

CALL(do_einsum)
{
    static const char *const equations[] = {"bij,bjk->bik", "iij->j", "ab,cb,db", "...i,ji->...j", "i,j->ji"};
    return one(y, lks_einsum(equations[INT(equation)], n, x));
}
CALL(do_fake_quantize_per_tensor_affine)
{
    NOT_USED;
    return one(y, lks_fake_quantize_per_tensor_affine(x[0], NUM(scale), INT(zero), INT(min), INT(max)));
}
CALL(do_multi_head_attention)
{
    int weights = INT(weights);
    lks_status s = lks_multi_head_attention(x[0], x[1], x[2], INT(heads), x[3], x[4], x[5], x[6],
                                            n > 7 ? x[7] : LKS_NONE, INT(causal), 0, &y[0], weights ? &y[1] : NULL);
    return s == LKS_OK ? 1 + weights : 0;
}
/* x: input, states, weights, lengths if args say so. */
CALL(do_rnn)
{
    lks_tensor *lengths = INT(lengths) ? x[--n] : LKS_NONE;
    lks_status s = lks_rnn(x[0], x[1], lengths, n - 2, x + 2, INT(relu), INT(bidirectional), INT(batch_first), 0, &y[0],
                           &y[1]);
    return s == LKS_OK ? 2 : 0;
}
CALL(do_gru)
{
    lks_tensor *lengths = INT(lengths) ? x[--n] : LKS_NONE;
    lks_status s = lks_gru(x[0], x[1], lengths, n - 2, x + 2, INT(bidirectional), INT(batch_first), 0, &y[0], &y[1]);
    return s == LKS_OK ? 2 : 0;
}
CALL(do_lstm)
{
    lks_tensor *lengths = INT(lengths) ? x[--n] : LKS_NONE;
    lks_status s = lks_lstm(x[0], x[1], x[2], lengths, n - 3, x + 3, INT(bidirectional), INT(batch_first), 0, &y[0],
                            &y[1], &y[2]);
    return s == LKS_OK ? 3 : 0;
}
CALL(do_rnn_cell) { NOT_USED; return one(y, lks_rnn_cell(x[0], x[1], x[2], x[3], x[4], x[5], INT(relu))); }
CALL(do_gru_cell) { NOT_USED; return one(y, lks_gru_cell(x[0], x[1], x[2], x[3], x[4], x[5])); }
CALL(do_lstm_cell)
{
    NOT_USED;
    return lks_lstm_cell(x[0], x[1], x[2], x[3], x[4], x[5], x[6], &y[0], &y[1]) == LKS_OK ? 2 : 0;
}

/* --- complex tensors, Fourier transforms, linear algebra: fft.h5. Complex ones go in and out as real ones. --- */

static lks_tensor *pair_of(lks_tensor *const *x) { return lks_complex(x[0], x[1]); }
static int parts(lks_tensor **y, lks_tensor *z) { return one(y, lks_view_as_real(z)); }
CALL(do_complex) { NOT_USED; return parts(y, pair_of(x)); }
CALL(do_view_as_real) { NOT_USED; return parts(y, lks_mul(pair_of(x), pair_of(x))); }
CALL(do_view_as_complex)
{
    NOT_USED;
    lks_tensor *z = lks_view_as_complex(x[0]), *zero = lks_zeros(lks_context_of(x[0]), lks_dtype_of(x[0]), 0, NULL);
    return parts(y, lks_div(lks_complex(zero, lks_add_scalar(zero, 1)), z));
}
CALL(do_real) { NOT_USED; return one(y, lks_real(lks_matmul(pair_of(x), pair_of(x + 2)))); }
CALL(do_imag) { NOT_USED; return one(y, lks_imag(lks_div(pair_of(x), lks_complex(x[1], x[0])))); }
CALL(do_conj) { NOT_USED; return parts(y, lks_mul(lks_conj(pair_of(x)), lks_exp(pair_of(x)))); }
CALL(do_polar) { NOT_USED; return parts(y, lks_polar(x[0], x[1])); }
CALL(do_angle) { NOT_USED; return one(y, lks_angle(pair_of(x))); }

/* give: what becomes of the result; make: what goes in. */
#define TRANSFORM(name, give, make)                                                                            \
    CALL(do_fft_##name)                                                                                        \
    {                                                                                                          \
        NOT_USED;                                                                                              \
        return give(y, lks_fft_##name(make, INT(n), INT(dim), INT(norm)));                                     \
    }                                                                                                          \
    CALL(do_fft_##name##2)                                                                                     \
    {                                                                                                          \
        int d[LKS_MAX_DIMS];                                                                                   \
        int64_t s[LKS_MAX_DIMS];                                                                               \
        NOT_USED;                                                                                              \
        arg_list(a, "sizes", s), dims_of(a, "dims", d);                                                        \
        return give(y, lks_fft_##name##2(make, s, d, INT(norm)));                                              \
    }                                                                                                          \
    CALL(do_fft_##name##n)                                                                                     \
    {                                                                                                          \
        int d[LKS_MAX_DIMS];                                                                                   \
        int64_t s[LKS_MAX_DIMS];                                                                               \
        (void)n;                                                                                               \
        arg_list(a, "sizes", s);                                                                               \
        return give(y, lks_fft_##name##n(make, dims_of(a, "dims", d), s, d, INT(norm)));                       \
    }
TRANSFORM(fft, parts, pair_of(x))
TRANSFORM(ifft, parts, pair_of(x))
TRANSFORM(rfft, parts, x[0])
TRANSFORM(irfft, one, pair_of(x))
TRANSFORM(hfft, one, pair_of(x))
TRANSFORM(ihfft, parts, x[0])
CALL(do_fft_fftshift) { int d[LKS_MAX_DIMS]; (void)n; return one(y, lks_fft_fftshift(x[0], dims_of(a, "dims", d), d)); }
CALL(do_fft_ifftshift)
{
    int d[LKS_MAX_DIMS];
    (void)n;
    return one(y, lks_fft_ifftshift(x[0], dims_of(a, "dims", d), d));
}
CALL(do_fft_fftfreq) {
    NOT_USED;
    return one(y, lks_fft_fftfreq(lks_context_of(x[0]), lks_dtype_of(x[0]), INT(n), NUM(d)));
}
CALL(do_fft_rfftfreq)
{
    NOT_USED;
    return one(y, lks_fft_rfftfreq(lks_context_of(x[0]), lks_dtype_of(x[0]), INT(n), NUM(d)));
}
static lks_tensor *short_time(const char *a, lks_tensor *const *x)
{
    return lks_stft(x[0], INT(n), INT(hop), INT(length), x[1],
                    LKS_STFT_CENTER | (INT(normalized) ? LKS_STFT_NORMALIZED : 0));
}
CALL(do_stft) { (void)n; return parts(y, short_time(a, x)); }
CALL(do_istft)
{
    (void)n;
    lks_tensor *z = short_time(a, x);
    return one(y, lks_istft(lks_mul(z, lks_abs(z)), INT(n), INT(hop), INT(length), x[1], LKS_STFT_CENTER, -1));
}

static lks_tensor *mT(lks_tensor *x) { return lks_transpose(x, -2, -1); }
static lks_tensor *plus_one(lks_tensor *x, double v)
{
    int64_t n = lks_dim(x, -1);
    return lks_add(x, lks_diag(lks_full(lks_context_of(x), lks_dtype_of(x), 1, &n, v), 0));
}
static lks_tensor *well(lks_tensor *x) { return plus_one(x, 3); }
static lks_tensor *definite(lks_tensor *x) /* the same in a region */
{
    lks_context *ctx = lks_context_of(x);
    lks_autocast_begin(ctx, LKS_BF16, 0, 0);
    x = plus_one(lks_matmul(x, mT(x)), 1);
    lks_autocast_end(ctx);
    return x;
}
static lks_tensor *square(lks_tensor *x) { return lks_mul(x, x); }
CALL(do_linalg_cholesky) { NOT_USED; return one(y, lks_linalg_cholesky(definite(x[0]), INT(upper))); }
CALL(do_linalg_cholesky_ex) { NOT_USED; return lks_linalg_cholesky_ex(definite(x[0]), 0, &y[0], &y[1]) ? 0 : 2; }
CALL(do_cholesky_inverse) { NOT_USED; return one(y, lks_cholesky_inverse(lks_tril(well(x[0]), 0), 0)); }
CALL(do_cholesky_solve) { NOT_USED; return one(y, lks_cholesky_solve(x[0], lks_triu(well(x[1]), 0), 1)); }
CALL(do_triangular_solve) { NOT_USED; return one(y, lks_triangular_solve(x[0], well(x[1]), 1, 1, 0)); }
CALL(do_linalg_inv) { NOT_USED; return one(y, lks_linalg_inv(well(x[0]))); }
CALL(do_inverse) { NOT_USED; return one(y, lks_inverse(well(x[0]))); }
CALL(do_linalg_inv_ex) { NOT_USED; return lks_linalg_inv_ex(well(x[0]), &y[0], &y[1]) ? 0 : 2; }
CALL(do_linalg_solve) { NOT_USED; return one(y, lks_linalg_solve(well(x[0]), x[1])); }
CALL(do_linalg_tensorinv) { NOT_USED; return one(y, lks_linalg_tensorinv(x[0], INT(ind))); }
CALL(do_linalg_tensorsolve)
{
    int d[LKS_MAX_DIMS];
    (void)n;
    int k = dims_of(a, "dims", d);
    return one(y, lks_linalg_tensorsolve(x[0], x[1], k, d));
}
CALL(do_linalg_lu_factor) { NOT_USED; return lks_linalg_lu_factor(x[0], &y[0], &y[1]) ? 0 : 2; }
CALL(do_linalg_lu_factor_ex) { NOT_USED; return lks_linalg_lu_factor_ex(x[0], &y[0], &y[1], &y[2]) ? 0 : 3; }
CALL(do_linalg_det) { NOT_USED; return one(y, lks_linalg_det(x[0])); }
CALL(do_linalg_slogdet) { NOT_USED; return lks_linalg_slogdet(well(x[0]), &y[0], &y[1]) ? 0 : 2; }
CALL(do_lu_solve)
{
    NOT_USED;
    lks_tensor *lu, *pivots;
    return lks_linalg_lu_factor(x[1], &lu, &pivots) ? 0 : one(y, lks_lu_solve(x[0], lu, pivots));
}
CALL(do_linalg_qr) { NOT_USED; return lks_linalg_qr(x[0], INT(mode), &y[0], &y[1]) ? 0 : 2; }
CALL(do_geqrf) { NOT_USED; return lks_geqrf(x[0], &y[0], &y[1]) ? 0 : 2; }
/* Of a matrix, by geqrf first; or of vectors and scalars given. */
static int reflections(int n, lks_tensor *const *x, int given, lks_tensor **a, lks_tensor **tau)
{
    if (n < given) return lks_geqrf(x[0], a, tau) == LKS_OK;
    *a = x[0], *tau = x[1];
    return 1;
}
CALL(do_orgqr)
{
    NOT_USED;
    lks_tensor *q, *tau;
    return reflections(n, x, 2, &q, &tau) ? one(y, lks_orgqr(q, tau)) : 0;
}
CALL(do_linalg_householder_product)
{
    NOT_USED;
    lks_tensor *q, *tau;
    return reflections(n, x, 2, &q, &tau) ? one(y, lks_linalg_householder_product(q, tau)) : 0;
}
CALL(do_ormqr)
{
    lks_tensor *q, *tau;
    if (!reflections(n, x, 3, &q, &tau)) return 0;
    return n < 3 ? one(y, lks_ormqr(q, tau, x[1], 1, 1)) : one(y, lks_ormqr(q, tau, x[2], INT(left), INT(transposed)));
}
CALL(do_linalg_svd)
{
    NOT_USED;
    if (lks_linalg_svd(x[0], INT(full), &y[0], &y[1], &y[2])) return 0;
    y[0] = square(y[0]), y[2] = square(y[2]);
    return 3;
}
CALL(do_svd)
{
    NOT_USED;
    if (lks_svd(x[0], 0, &y[0], &y[1], &y[2])) return 0;
    y[0] = square(y[0]), y[2] = square(y[2]);
    return 3;
}
CALL(do_linalg_svdvals) { NOT_USED; return one(y, lks_linalg_svdvals(x[0])); }
static lks_tensor *sum_last(lks_tensor *x) { return lks_sum(x, 1, (int[]){-1}, 0, LKS_DTYPE_NONE); }
CALL(do_linalg_eig)
{
    NOT_USED;
    lks_tensor *w, *v;
    if (lks_linalg_eig(x[0], &w, &v)) return 0;
    y[0] = lks_view_as_real(sum_last(lks_mul(w, square(w))));
    y[1] = sum_last(lks_mul(square(lks_abs(v)), lks_unsqueeze(lks_abs(w), -2)));
    return 2;
}
CALL(do_linalg_eigvals) { NOT_USED; return parts(y, sum_last(square(lks_linalg_eigvals(well(x[0]))))); }
CALL(do_linalg_eigh)
{
    NOT_USED;
    if (lks_linalg_eigh(lks_add(x[0], mT(x[0])), INT(upper), &y[0], &y[1])) return 0;
    y[1] = square(y[1]);
    return 2;
}
CALL(do_linalg_eigvalsh) { NOT_USED; return one(y, lks_linalg_eigvalsh(lks_add(x[0], mT(x[0])), INT(upper))); }
CALL(do_linalg_lstsq) { NOT_USED; return lks_linalg_lstsq(x[0], x[1], -1, &y[0], NULL, NULL) ? 0 : 1; }
CALL(do_pinverse) { NOT_USED; return one(y, lks_pinverse(x[0], 1e-15)); }
CALL(do_linalg_matrix_rank) { NOT_USED; return one(y, lks_linalg_matrix_rank(x[0], -1)); }
CALL(do_linalg_cond) { NOT_USED; return one(y, lks_linalg_cond(well(x[0]), NUM(p))); }

#define OP(name, flags) {#name, do_##name, flags}
static const op ops[] = {
    OP(complex, 0),
    OP(view_as_real, 0),
    OP(view_as_complex, 0),
    OP(real, 0),
    OP(imag, 0),
    OP(conj, 0),
    OP(polar, 0),
    OP(angle, 0),
    OP(fft_fft, 0),
    OP(fft_fft2, 0),
    OP(fft_fftn, 0),
    OP(fft_ifft, 0),
    OP(fft_ifft2, 0),
    OP(fft_ifftn, 0),
    OP(fft_rfft, 0),
    OP(fft_rfft2, 0),
    OP(fft_rfftn, 0),
    OP(fft_irfft, 0),
    OP(fft_irfft2, 0),
    OP(fft_irfftn, 0),
    OP(fft_hfft, 0),
    OP(fft_hfft2, 0),
    OP(fft_hfftn, 0),
    OP(fft_ihfft, 0),
    OP(fft_ihfft2, 0),
    OP(fft_ihfftn, 0),
    OP(fft_fftshift, 0),
    OP(fft_ifftshift, 0),
    OP(fft_fftfreq, 0),
    OP(fft_rfftfreq, 0),
    OP(stft, 0),
    OP(istft, 0),
    OP(linalg_cholesky, 0),
    OP(linalg_cholesky_ex, 0),
    OP(cholesky_inverse, 0),
    OP(cholesky_solve, 0),
    OP(triangular_solve, 0),
    OP(linalg_inv, 0),
    OP(inverse, 0),
    OP(linalg_inv_ex, 0),
    OP(linalg_solve, 0),
    OP(linalg_tensorinv, 0),
    OP(linalg_tensorsolve, 0),
    OP(linalg_lu_factor, 0),
    OP(linalg_lu_factor_ex, 0),
    OP(linalg_det, 0),
    OP(linalg_slogdet, 0),
    OP(lu_solve, 0),
    OP(linalg_qr, 0),
    OP(geqrf, 0),
    OP(orgqr, 0),
    OP(linalg_householder_product, 0),
    OP(ormqr, 0),
    OP(linalg_svd, 0),
    OP(svd, 0),
    OP(linalg_svdvals, 0),
    OP(linalg_eig, 0),
    OP(linalg_eigvals, 0),
    OP(linalg_eigh, 0),
    OP(linalg_eigvalsh, 0),
    OP(linalg_lstsq, 0),
    OP(pinverse, 0),
    OP(linalg_matrix_rank, 0),
    OP(linalg_cond, 0),
    OP(reshape, EACH),
    OP(flatten, EACH),
    OP(permute, EACH),
    OP(transpose, EACH),
    OP(slice, EACH),
    OP(narrow, EACH),
    OP(select, EACH),
    OP(expand, 0),
    OP(squeeze, EACH),
    OP(unsqueeze, EACH),
    OP(split, EACH),
    OP(chunk, EACH),
    OP(contiguous, EACH),
    OP(clone, EACH),
    OP(to, EACH),
    OP(copy_, EACH),
    OP(fill_, EACH),
    OP(add, 0),
    OP(sub, 0),
    OP(mul, 0),
    OP(div, 0),
    OP(affine, EACH),
    OP(add_scalar, EACH),
    OP(mul_scalar, EACH),
    OP(neg, EACH),
    OP(exp, EACH),
    OP(log, EACH),
    OP(sqrt, EACH),
    OP(tanh, EACH),
    OP(sigmoid, EACH),
    OP(relu, EACH),
    OP(gelu, EACH),
    OP(where, 0),
    OP(eq, EACH),
    OP(ne, EACH),
    OP(lt, EACH),
    OP(le, EACH),
    OP(gt, EACH),
    OP(ge, EACH),
    OP(sum, 0),
    OP(mean, 0),
    OP(max, EACH),
    OP(max_all, EACH),
    OP(argmax, EACH),
    OP(matmul, 0),
    OP(linear, 0),
    OP(conv2d, 0),
    OP(max_pool2d, 0),
    OP(conv1d, 0),
    OP(conv3d, 0),
    OP(conv_transpose1d, 0),
    OP(conv_transpose2d, 0),
    OP(conv_transpose3d, 0),
    OP(conv_tbc, 0),
    OP(max_pool, 0),
    OP(avg_pool, 0),
    OP(adaptive_avg_pool, 0),
    OP(adaptive_max_pool, 0),
    OP(fractional_max_pool, 0),
    OP(max_unpool, EACH),
    OP(layer_norm, 0),
    OP(batch_norm, 0),
    OP(softmax, 0),
    OP(log_softmax, 0),
    OP(cross_entropy, 0),
    OP(sync_batch_norm, 0),
    OP(rms_norm, 0),
    OP(group_norm, 0),
    OP(reflection_pad, 0),
    OP(replication_pad, 0),
    OP(grid_sample, 0),
    OP(cross_entropy_weighted, 0),
    OP(nll_loss, 0),
    OP(mse_loss, 0),
    OP(l1_loss, 0),
    OP(smooth_l1_loss, 0),
    OP(huber_loss, 0),
    OP(binary_cross_entropy, 0),
    OP(binary_cross_entropy_with_logits, 0),
    OP(kl_div, 0),
    OP(poisson_nll_loss, 0),
    OP(hinge_embedding_loss, 0),
    OP(margin_ranking_loss, 0),
    OP(soft_margin_loss, 0),
    OP(multi_margin_loss, 0),
    OP(multilabel_margin_loss, 0),
    OP(cosine_embedding_loss, 0),
    OP(triplet_margin_loss, 0),
    OP(ctc_loss, 0),
    OP(mm, 0),
    OP(bmm, 0),
    OP(mv, 0),
    OP(dot, 0),
    OP(outer, 0),
    OP(addmm, 0),
    OP(baddbmm, 0),
    OP(addbmm, 0),
    OP(addmv, 0),
    OP(addr, 0),
    OP(linalg_vecdot, 0),
    OP(bilinear, 0),
    OP(multi_dot, 0),
    OP(chain_matmul, 0),
    OP(tensordot, 0),
    OP(stack, EACH),
    OP(split_sizes, EACH),
    OP(gather, 0),
    OP(take_along_dim, 0),
    OP(scatter, EACH),
    OP(scatter_value, EACH),
    OP(scatter_add, 0),
    OP(index_select, 0),
    OP(index_add, 0),
    OP(index_copy, EACH),
    OP(index, 0),
    OP(index_put, 0),
    OP(one_hot, EACH),
    OP(masked_fill, EACH),
    OP(where_scalar, 0),
    OP(pad, EACH),
    OP(triu, EACH),
    OP(tril, EACH),
    OP(diagonal, EACH),
    OP(diag_embed, EACH),
    OP(diag, EACH),
    OP(trace, 0),
    OP(cross, 0),
    OP(flip, EACH),
    OP(roll, EACH),
    OP(repeat, 0),
    OP(sort, EACH),
    OP(argsort, EACH),
    OP(topk, EACH),
    OP(quantile, 0),
    OP(nanquantile, 0),
    OP(cdist, 0),
    OP(pdist, 0),
    OP(expm1, EACH),
    OP(log1p, EACH),
    OP(log2, EACH),
    OP(log10, EACH),
    OP(rsqrt, EACH),
    OP(reciprocal, EACH),
    OP(sin, EACH),
    OP(cos, EACH),
    OP(tan, EACH),
    OP(asin, EACH),
    OP(acos, EACH),
    OP(sinh, EACH),
    OP(cosh, EACH),
    OP(erf, EACH),
    OP(erfinv, EACH),
    OP(abs, EACH),
    OP(sign, EACH),
    OP(silu, EACH),
    OP(hardswish, EACH),
    OP(leaky_relu, EACH),
    OP(elu, EACH),
    OP(softplus, EACH),
    OP(prelu, 0),
    OP(clamp, EACH),
    OP(pow, 0),
    OP(pow_scalar, EACH),
    OP(rpow, EACH),
    OP(rdiv, EACH),
    OP(maximum, 0),
    OP(minimum, 0),
    OP(atan2, EACH),
    OP(addcmul, 0),
    OP(addcdiv, 0),
    OP(prod, 0),
    OP(amax, 0),
    OP(amin, 0),
    OP(logsumexp, 0),
    OP(var, 0),
    OP(std, 0),
    OP(norm, 0),
    OP(all, EACH),
    OP(any, EACH),
    OP(min, EACH),
    OP(min_all, EACH),
    OP(argmin, EACH),
    OP(dist, 0),
    OP(normalize, 0),
    OP(cosine_similarity, 0),
    OP(renorm, 0),
    OP(cumsum, 0),
    OP(cumprod, 0),
    OP(recurrence, 0),
    OP(embedding, 0),
    OP(cat, EACH),
    OP(scaled_dot_product_attention, 0),
    OP(softmin, 0),
    OP(einsum, 0),
    OP(fake_quantize_per_tensor_affine, EACH),
    OP(multi_head_attention, 0),
    OP(rnn, 0),
    OP(gru, 0),
    OP(lstm, 0),
    OP(rnn_cell, 0),
    OP(gru_cell, 0),
    OP(lstm_cell, 0),
};
enum { OPS = sizeof ops / sizeof ops[0] };

/* Functions of ops.h that draw numbers: torch's are others. */
static const char *const random_ops[] = {"dropout", "uniform_", "normal_", "bernoulli", "bernoulli_"};

/* --- one tensor, one case --- */

/* Worst of all cases of an op in one precision, forward or gradient. */
typedef struct line {
    const char *op, *mode;
    char what[GOLDEN_PATH]; /* the worst case, or the first that failed otherwise */
    int gradient, tried, failed;
    double error, torch, ratio;
} line;

static void judge(line *l, const char *what, double error, double torch)
{
    double ratio = error / (2 * torch + 4);
    if (!(error <= 2 * torch + 4)) l->failed = 1;
    if (l->tried++ && !(ratio > l->ratio)) return;
    l->error = error, l->torch = torch, l->ratio = ratio;
    snprintf(l->what, sizeof l->what, "%s", what);
}

__attribute__((format(printf, 3, 4))) static void broken(line *l, const char *what, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diag("%s %s %s, %s: %s", l->op, l->mode, l->gradient ? "gradient" : "forward", what, text);
    l->failed = 1;
    l->tried++;
    l->ratio = l->error = INFINITY;
    snprintf(l->what, sizeof l->what, "%s", what);
}

/* How a case is run: by the float32 numbers, or by a dataset of the case that is autocast's. The float32 numbers hold
 * inside a region, too, for all that its policy does not lower. */
typedef struct mode {
    const char *label;   /* as the table prints it */
    const char *data[2]; /* names of datasets, the first that exists */
    lks_dtype dtype;     /* LKS_DTYPE_NONE: no autocast */
    int table;
} mode;
static const mode modes[] = {
    {"f32", {"f64", NULL}, LKS_DTYPE_NONE, 0},
    {"f32@cpu", {"f64", NULL}, LKS_BF16, LKS_TABLE_CPU},
    {"f32@cuda", {"f64", NULL}, LKS_BF16, LKS_TABLE_CUDA},
    {"bf16/cpu", {"bf16", "bf16.cpu"}, LKS_BF16, LKS_TABLE_CPU},
    {"bf16/cuda", {"bf16", "bf16.cuda"}, LKS_BF16, LKS_TABLE_CUDA},
    {"f16/cpu", {"f16", "f16.cpu"}, LKS_F16, LKS_TABLE_CPU},
    {"f16/cuda", {"f16", "f16.cuda"}, LKS_F16, LKS_TABLE_CUDA},
};
enum { MODES = sizeof modes / sizeof modes[0] };

/* What the case's file says for this mode. */
typedef struct record {
    char args[GOLDEN_TEXT], needs[GOLDEN_TEXT], out[GOLDEN_TEXT];
    char leaf[GOLDEN_TEXT], unit[GOLDEN_TEXT], err[GOLDEN_TEXT], err_each[GOLDEN_TEXT]; /* autocast only */
    double *want, *torch; /* torch: float32 only */
    int64_t n, at;        /* at: how much is used up */
} record;

/* The k-th tensor of the reference against t. */
static void compare(lks_context *ctx, line *l, const op *o, const char *what, record *r, int k, lks_tensor *t,
                    lks_dtype unit)
{
    char w[64];
    int64_t n = lks_numel(t);
    if (r->at + n > r->n) {
        broken(l, what, "tensor %d has %lld elements, %lld are left of the reference", k, (long long)n,
               (long long)(r->n - r->at));
        return;
    }
    double *v = values_of(ctx, t), top, each, torch_top, torch_each;
    if (!v) {
        broken(l, what, "tensor %d cannot be read", k);
        return;
    }
    if (r->torch) { /* where torch's float32 overflows, so must this */
        for (int64_t i = r->at; i < r->at + n; i++)
            if (!isfinite(r->torch[i])) r->want[i] = r->torch[i];
        distances(r->torch + r->at, r->want + r->at, n, unit, &torch_top, &torch_each);
    } else {
        lks_dtype u = lks_dtype_from_name(word(r->unit, k, w, sizeof w));
        unit = u;
        torch_top = strtod(word(r->err, k, w, sizeof w), NULL);
        torch_each = strtod(word(r->err_each, k, w, sizeof w), NULL);
    }
    distances(v, r->want + r->at, n, unit, &top, &each);
    free(v);
    r->at += n;
    judge(l, what, top, torch_top);
    if (o->flags & EACH) judge(l, what, each, torch_each);
}

/* "float32[2,3]" of t; without the shape when `what` is. */
static int described(lks_tensor *t, const char *want, char *text, int bytes)
{
    int k = snprintf(text, (size_t)bytes, "%s", lks_dtype_name(lks_dtype_of(t)));
    if (strchr(want, '[')) {
        text[k++] = '[';
        for (int d = 0; d < lks_ndim(t); d++)
            k += snprintf(text + k, (size_t)(bytes - k), "%s%lld", d ? "," : "", (long long)lks_dim(t, d));
        snprintf(text + k, (size_t)(bytes - k), "]");
    }
    return !strcmp(text, want);
}

static void run_leaves(lks_context *ctx, golden *g, const char *path, const op *o, const char *what, const mode *m,
                       record *r, int nin, lks_tensor **in, line *forward, line *gradient)
{
    lks_tensor *y[MAX_OUT] = {0};
    char want[100], have[200];
    if (m->dtype != LKS_DTYPE_NONE) {
        lks_autocast_set_table(ctx, m->table);
        lks_autocast_begin(ctx, m->dtype, 1, 1);
    }
    int ny = o->call(r->args, nin, in, y);
    if (m->dtype != LKS_DTYPE_NONE) lks_autocast_end(ctx);
    if (ny <= 0 && strstr(lks_error(ctx), "build Lockstep again")) { /* what is behind the op is not there */
        lks_error_clear(ctx);
        return;
    }
    if (ny <= 0 || lks_error_code(ctx) != LKS_OK) {
        broken(forward, what, "%s", lks_error(ctx));
        lks_error_clear(ctx);
        return;
    }
    for (int i = 0; i < ny; i++) {
        word(r->out, i, want, sizeof want);
        if (!described(y[i], want, have, sizeof have)) broken(forward, what, "result %d is %s, want %s", i, have, want);
        compare(ctx, forward, o, what, r, i, y[i], lks_dtype_is_float(lks_dtype_of(y[i])) ? lks_dtype_of(y[i])
                                                                                          : LKS_DTYPE_NONE);
    }
    if (!strchr(r->needs, '1')) return;
    int k = 0;
    for (int i = 0; i < ny; i++) {
        if (!lks_requires_grad(y[i])) continue;
        lks_tensor *dy = golden_tensor(g, ctx, pathf("%s/dy%d", path, k++), lks_dtype_of(y[i]));
        if (lks_backward(y[i], dy, 1) != LKS_OK) {
            broken(gradient, what, "%s", lks_error(ctx));
            lks_error_clear(ctx);
            return;
        }
    }
    for (int i = 0, j = ny; i < nin; i++) {
        if (r->needs[i] != '1') continue;
        lks_tensor *d = lks_grad(in[i]);
        if (!d || lks_dtype_of(d) != lks_dtype_of(in[i])) {
            broken(gradient, what, "input %d has %s", i, d ? "a gradient of another dtype" : "no gradient");
            return;
        }
        compare(ctx, gradient, o, what, r, j++, d, lks_dtype_of(d));
    }
    if (r->at != r->n) broken(gradient, what, "%lld of %lld numbers compared", (long long)r->at, (long long)r->n);
}

static void run_case(lks_context *ctx, golden *g, const op *o, const char *what, const mode *m, line *forward,
                     line *gradient)
{
    char path[2 * GOLDEN_PATH], w[64];
    record r = {0};
    lks_tensor *in[MAX_IN];
    int nin = 0;
    snprintf(path, sizeof path, "/%s/%s", o->name, what);
    const char *at = pathf("%s/%s", path, m->data[0]);
    if (!lksi_h5_has(g->f, at)) {
        if (!m->data[1]) bail("no %s", at);
        at = pathf("%s/%s", path, m->data[1]);
        if (!lksi_h5_has(g->f, at)) return; /* refused under this policy, or a case of float32 alone */
    }
    golden_text(g, path, "args", r.args);
    golden_text(g, path, "needs", r.needs);
    golden_text(g, path, "policy", r.out);
    int plain = !m->data[1];
    if (plain && m->dtype != LKS_DTYPE_NONE) {
        word(r.out, m->table == LKS_TABLE_CUDA, w, sizeof w);
        if (!strcmp(w, "lower") || !strcmp(w, "error")) return;
    }
    r.want = golden_values(g, at, &r.n);
    if (plain) {
        int64_t n;
        golden_text(g, path, "out", r.out);
        r.torch = golden_values(g, pathf("%s/f32", path), &n);
        if (n != r.n) bail("%s: %lld and %lld numbers", path, (long long)n, (long long)r.n);
    } else {
        golden_text(g, at, "out", r.out), golden_text(g, at, "leaf", r.leaf), golden_text(g, at, "unit", r.unit);
        golden_text(g, at, "err", r.err), golden_text(g, at, "err_each", r.err_each);
    }
    lks_scope_begin(ctx);
    for (; nin < MAX_IN; nin++) {
        at = pathf("%s/in%d", path, nin);
        if (!lksi_h5_has(g->f, at)) break;
        in[nin] = golden_tensor(g, ctx, at, *r.leaf ? lks_dtype_from_name(word(r.leaf, nin, w, sizeof w))
                                                    : LKS_DTYPE_NONE);
        if (!in[nin]) bail("%s: %s", at, lks_error(ctx));
        if (r.needs[nin] == '1') lks_set_requires_grad(in[nin], 1);
    }
    run_leaves(ctx, g, path, o, what, m, &r, nin, in, forward, gradient);
    lks_scope_end(ctx);
    free(r.want);
    free(r.torch);
}

/* --- all --- */

enum { NAMES = 400 };
static char names[NAMES][GOLDEN_PATH];
static int name_count;
static lks_status collect(void *user, const char *name)
{
    (void)user;
    if (name_count == NAMES) return LKS_ERR_ARGUMENT;
    snprintf(names[name_count++], GOLDEN_PATH, "%s", name);
    return LKS_OK;
}

static int worst_first(const void *a, const void *b)
{
    double x = ((const line *)a)->ratio, y = ((const line *)b)->ratio;
    return x < y ? 1 : x > y ? -1 : 0;
}

static line lines[OPS * MODES * 2];
static int line_count;

static golden *file_of(golden *g, const char *name)
{
    return lksi_h5_has(g[0].f, pathf("/%s", name)) ? &g[0] : &g[1];
}

static void run_all(lks_context *ctx, golden *files)
{
    line_count = 0;
    for (int i = 0; i < OPS; i++) {
        golden *g = file_of(files, ops[i].name);
        const char *path = pathf("/%s", ops[i].name);
        name_count = 0;
        if (!lksi_h5_has(g->f, path)) continue;
        if (lksi_h5_list(g->f, path, collect, NULL) != LKS_OK) bail("%s", g->base.text);
        for (int m = 0; m < MODES; m++) {
            line *l = &lines[line_count];
            memset(l, 0, 2 * sizeof *l);
            for (int k = 0; k < 2; k++) l[k].op = ops[i].name, l[k].mode = modes[m].label, l[k].gradient = k;
            for (int c = 0; c < name_count; c++) run_case(ctx, g, &ops[i], names[c], &modes[m], &l[0], &l[1]);
            if (l[0].tried) line_count++;
            if (l[1].tried) lines[line_count++] = l[1];
        }
    }
}

static int listed(const char *const *list, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], name)) return 1;
    return 0;
}

/* Functions of the header that have no case, apart from the table's own (lks_op_...). */
static void gaps(golden *g)
{
    char text[300], token[100];
    int functions = 0, missing = 0, stray = 0;
    static const char *const headers[] = {"ops.h", "fft.h", "linalg.h"};
    for (int h = 0; h < 3; h++) {
        FILE *f = fopen(source_file(pathf("include/lockstep/%s", headers[h])), "r");
        if (!f) bail("no %s", headers[h]);
        while (fgets(text, sizeof text, f)) {
            char *end = strchr(text, '('), *start;
            if (strncmp(text, "LKS_API ", 8) || !end) continue;
            for (start = end; start > text && (start[-1] == '_' || (start[-1] >= 'a' && start[-1] <= 'z') ||
                                               (start[-1] >= '0' && start[-1] <= '9')); start--) continue;
            if (strncmp(start, "lks_", 4) || !strncmp(start, "lks_op_", 7)) continue;
            snprintf(token, sizeof token, "%.*s", (int)(end - start - 4), start + 4);
            functions++;
            int here = 0;
            for (int i = 0; i < OPS; i++) here |= !strcmp(ops[i].name, token);
            if ((here && lksi_h5_has(file_of(g, token)->f, pathf("/%s", token))) ||
                listed(random_ops, sizeof random_ops / sizeof random_ops[0], token)) continue;
            diag("no golden case: lks_%s", token);
            missing++;
        }
        fclose(f);
    }
    for (int i = 0; i < OPS; i++) {
        if (!lksi_h5_has(file_of(g, ops[i].name)->f, pathf("/%s", ops[i].name))) {
            diag("not in the file: %s", ops[i].name);
            stray++;
        }
    }
    name_count = 0;
    for (int k = 0; k < 2; k++)
        if (lksi_h5_list(g[k].f, "/", collect, NULL) != LKS_OK) bail("%s", g[k].base.text);
    for (int i = 0; i < name_count; i++) {
        int here = 0;
        for (int k = 0; k < OPS; k++) here |= !strcmp(ops[k].name, names[i]);
        if (!here) diag("no call for the cases of %s", names[i]);
    }
    ok(functions > 50 && !stray, "%d functions of ops, %d without a golden case (%d random)", functions, missing,
       (int)(sizeof random_ops / sizeof random_ops[0]));
}

int main(void)
{
    golden g[2];
    golden_open(&g[0], "ops.h5");
    golden_open(&g[1], "fft.h5");
    lks_context *ctx = context_on("cpu", NULL, 2);
    if (!ctx) bail("no context");
    diag("%s", lks_device_description(ctx));
    run_all(ctx, g);
    for (int i = 0; i < line_count; i++) {
        const line *l = &lines[i];
        ok(!l->failed && l->tried, "%s %s %s", l->op, l->mode, l->gradient ? "gradient" : "forward");
        if (l->failed) diag("%s: error %.4g, PyTorch's %.4g", l->what, l->error, l->torch);
    }
    gaps(g);
    lks_context_destroy(&ctx);
    qsort(lines, (size_t)line_count, sizeof lines[0], worst_first);
    diag("errors in ulps, worst first by error / (2 x PyTorch's + 4)");
    diag("%-30s %-10s %-9s %9s %9s %6s  %s", "op", "dtype", "", "error", "PyTorch", "ratio", "case");
    for (int i = 0; i < line_count; i++)
        diag("%-30s %-10s %-9s %9.3f %9.3f %6.3f  %s", lines[i].op, lines[i].mode,
             lines[i].gradient ? "gradient" : "forward", lines[i].error, lines[i].torch, lines[i].ratio,
             lines[i].what);

    /* The kernels of lesser machines, too. */
    static const char *const isa[] = {"base", "avx2"};
    for (int k = 0; k < 2; k++) {
        if (!(ctx = context_on("cpu", isa[k], 1))) continue;
        int failed = 0;
        run_all(ctx, g);
        for (int i = 0; i < line_count; i++) {
            failed += lines[i].failed;
            if (lines[i].failed)
                diag("%s %s %s: error %.4g, PyTorch's %.4g (%s)", lines[i].op, lines[i].mode,
                     lines[i].gradient ? "gradient" : "forward", lines[i].error, lines[i].torch, lines[i].what);
        }
        ok(!failed && line_count, "kernels of LKS_ISA=%s: %d lines, %d failed", isa[k], line_count, failed);
        lks_context_destroy(&ctx);
    }
    for (int k = 0; k < 2; k++) lksi_h5_close(g[k].f);
    lks_finalize();
    return done();
}
