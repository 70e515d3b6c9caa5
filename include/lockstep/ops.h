/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/ops.h - what is computed from tensors. Names and meanings are PyTorch's.
 *
 * Common to all: inputs may be strided, broadcast, 0-dim or empty; results are new tensors in the innermost scope;
 * NULL in gives NULL out, any failure gives NULL and an error in the context; dim may be negative (from the end).
 * Reduced floats (f16, bf16) are computed in float32 and rounded once. Recorded for backward when grad mode is on and
 * an input requires a gradient; differentiable any number of times where nothing else is said (norms, cross entropy and
 * attention then by way of elementary ops, with their memory). All functions are Local and return when the work is
 * queued on the device.
 */
#ifndef LOCKSTEP_OPS_H
#define LOCKSTEP_OPS_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- views: share the storage; no data moves ------------------------------------------------------------------- */

/* Same elements in row-major order under another shape; one entry may be -1 (inferred). A view where strides allow,
 * else a copy. */
LKS_API lks_tensor *lks_reshape(lks_tensor *x, int ndim, const int64_t *shape);
/* Dims d..e (inclusive) folded into one. */
LKS_API lks_tensor *lks_flatten(lks_tensor *x, int d, int e);
/* Dims in another order: dim i of the result is dim dims[i] of x, each once. Two dims exchanged. */
LKS_API lks_tensor *lks_permute(lks_tensor *x, int ndim, const int *dims);
LKS_API lks_tensor *lks_transpose(lks_tensor *x, int d0, int d1);
/* x[start:end:step] along dim, Python's rules (negative from the end, clamped), step >= 1. */
LKS_API lks_tensor *lks_slice(lks_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
/* `length` elements from start along dim; out of range is LKS_ERR_SHAPE. */
LKS_API lks_tensor *lks_narrow(lks_tensor *x, int dim, int64_t start, int64_t length);
/* Element `index` along dim, that dim removed. */
LKS_API lks_tensor *lks_select(lks_tensor *x, int dim, int64_t index);
/* Dims of size 1 repeated without copying (stride 0); -1 keeps a size; leading dims may be added. */
LKS_API lks_tensor *lks_expand(lks_tensor *x, int ndim, const int64_t *shape);
/* Removes dim if its size is 1 (otherwise x's shape is kept). Inserts a dim of size 1. */
LKS_API lks_tensor *lks_squeeze(lks_tensor *x, int dim);
LKS_API lks_tensor *lks_unsqueeze(lks_tensor *x, int dim);
/* Pieces of `size` (last may be smaller) / n pieces (PyTorch's chunk). out has room for `max` pieces; returns how many
 * there are, or a negative status. */
LKS_API int lks_split(lks_tensor *x, int64_t size, int dim, int max, lks_tensor **out);
LKS_API int lks_chunk(lks_tensor *x, int n, int dim, lks_tensor **out);

/* --- copies and casts ------------------------------------------------------------------------------------------ */

/* x itself if row-major contiguous, else a contiguous copy. A copy always (contiguous). */
LKS_API lks_tensor *lks_contiguous(lks_tensor *x);
LKS_API lks_tensor *lks_clone(lks_tensor *x);
/* x as dtype; x itself if it is already. Differentiable between floats. */
LKS_API lks_tensor *lks_to(lks_tensor *x, lks_dtype dtype);
/* dst[...] = src, converted and broadcast; dst changes in place. Not recorded: fails with LKS_ERR_STATE when dst
 * requires a gradient and grad mode is on. */
LKS_API lks_status lks_copy_(lks_tensor *dst, lks_tensor *src);
LKS_API lks_status lks_fill_(lks_tensor *dst, double value);

/* --- elementwise ------------------------------------------------------------------------------------------------ */

/* a + b, a - b, a * b, a / b with broadcasting and ordinary promotion (integer / integer gives float32). */
LKS_API lks_tensor *lks_add(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_sub(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_mul(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_div(lks_tensor *a, lks_tensor *b);
/* scale * x + shift with numbers; keeps x's dtype (integers need integral numbers). The four below are this. */
LKS_API lks_tensor *lks_affine(lks_tensor *x, double scale, double shift);
LKS_API lks_tensor *lks_add_scalar(lks_tensor *x, double v);
LKS_API lks_tensor *lks_mul_scalar(lks_tensor *x, double v);
LKS_API lks_tensor *lks_neg(lks_tensor *x);
/* Of each element; x's dtype, of integers float32. */
LKS_API lks_tensor *lks_exp(lks_tensor *x);
LKS_API lks_tensor *lks_log(lks_tensor *x);
/* Gradient at 0 is 0 where the incoming gradient is exactly 0, else inf. */
LKS_API lks_tensor *lks_sqrt(lks_tensor *x);
LKS_API lks_tensor *lks_tanh(lks_tensor *x);
LKS_API lks_tensor *lks_sigmoid(lks_tensor *x);
/* max(x, 0); gradient at 0 is 0. NaN stays NaN and passes the gradient. */
LKS_API lks_tensor *lks_relu(lks_tensor *x);
/* x Phi(x) (Hendrycks & Gimpel, 2016); tanh_form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
LKS_API lks_tensor *lks_gelu(lks_tensor *x, int tanh_form);
/* Formulas; integers are computed as float32 unless it says otherwise. expm1 is exp(x) - 1, log1p is log(1 + x), rsqrt
 * is 1 / sqrt(x). */
LKS_API lks_tensor *lks_expm1(lks_tensor *x);
LKS_API lks_tensor *lks_log1p(lks_tensor *x);
LKS_API lks_tensor *lks_log2(lks_tensor *x);
LKS_API lks_tensor *lks_log10(lks_tensor *x);
LKS_API lks_tensor *lks_rsqrt(lks_tensor *x);
LKS_API lks_tensor *lks_reciprocal(lks_tensor *x);
LKS_API lks_tensor *lks_sin(lks_tensor *x);
LKS_API lks_tensor *lks_cos(lks_tensor *x);
LKS_API lks_tensor *lks_tan(lks_tensor *x);
LKS_API lks_tensor *lks_asin(lks_tensor *x);
LKS_API lks_tensor *lks_acos(lks_tensor *x);
LKS_API lks_tensor *lks_sinh(lks_tensor *x);
LKS_API lks_tensor *lks_cosh(lks_tensor *x);
LKS_API lks_tensor *lks_erf(lks_tensor *x);
/* erf(y) = x; +-inf at +-1, NaN beyond. */
LKS_API lks_tensor *lks_erfinv(lks_tensor *x);
/* |x| (complex: the real modulus), and -1, 0 or 1 (NaN gives 0); x's dtype. The gradient of abs at 0 is 0, that of
 * sign is 0. */
LKS_API lks_tensor *lks_abs(lks_tensor *x);
LKS_API lks_tensor *lks_sign(lks_tensor *x);
/* x sigmoid(x). */
LKS_API lks_tensor *lks_silu(lks_tensor *x);
/* x min(max(x + 3, 0), 6) / 6 (Howard et al., 2019); the gradient is 0 at -3 and 1 at 3. */
LKS_API lks_tensor *lks_hardswish(lks_tensor *x);
/* x > 0 ? x : slope x; the gradient at 0 is slope. */
LKS_API lks_tensor *lks_leaky_relu(lks_tensor *x, double slope);
/* x > 0 ? x : alpha (exp(x) - 1). */
LKS_API lks_tensor *lks_elu(lks_tensor *x, double alpha);
/* log(1 + exp(beta x)) / beta, x where beta x > threshold (PyTorch: beta 1, threshold 20). beta > 0. */
LKS_API lks_tensor *lks_softplus(lks_tensor *x, double beta, double threshold);
/* x > 0 ? x : weight x; weight has one element or one per channel (dim 1 of x). */
LKS_API lks_tensor *lks_prelu(lks_tensor *x, lks_tensor *weight);
/* min(max(x, min), max); -INFINITY or INFINITY where there is no bound; NaN stays NaN, and is refused as a bound. Keeps
 * x's dtype (integers need whole bounds). Gradient 1 from min to max inclusive, else 0. */
LKS_API lks_tensor *lks_clamp(lks_tensor *x, double min, double max);
/* (clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) scale: what x would be from integers;
 * halves are rounded to even. Gradient 1 where nothing was clamped, else 0 (straight through). Floats; scale > 0,
 * zero_point in [quant_min, quant_max]. */
LKS_API lks_tensor *lks_fake_quantize_per_tensor_affine(lks_tensor *x, double scale, int64_t zero_point,
                                                        int64_t quant_min, int64_t quant_max);
/* x^exponent. With two tensors promoted as ever; integers stay integers (they wrap; a negative power is truncated).
 * With numbers: x^exponent (integers: whole, not negative), base^x, v / x. The gradient of x^e is 0 where e is 0; that
 * of 0^e with e >= 0 in e is 0. */
LKS_API lks_tensor *lks_pow(lks_tensor *x, lks_tensor *exponent);
LKS_API lks_tensor *lks_pow_scalar(lks_tensor *x, double exponent);
LKS_API lks_tensor *lks_rpow(lks_tensor *x, double base);
LKS_API lks_tensor *lks_rdiv(lks_tensor *x, double v);
/* The larger, the smaller of two; NaN wins. Integers too. A tie gives each half of the gradient. */
LKS_API lks_tensor *lks_maximum(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_minimum(lks_tensor *a, lks_tensor *b);
/* The angle of (x, y), in [-pi, pi]; zeros and infinities as in C. The gradient at the origin is 0. */
LKS_API lks_tensor *lks_atan2(lks_tensor *y, lks_tensor *x);
/* x + value a b (integers too, with a whole value); x + value a / b. */
LKS_API lks_tensor *lks_addcmul(lks_tensor *x, lks_tensor *a, lks_tensor *b, double value);
LKS_API lks_tensor *lks_addcdiv(lks_tensor *x, lks_tensor *a, lks_tensor *b, double value);
/* condition (BOOL) ? a : b, broadcast and promoted. */
LKS_API lks_tensor *lks_where(lks_tensor *condition, lks_tensor *a, lks_tensor *b);
/* Comparisons give BOOL; NaN compares as IEEE says. */
LKS_API lks_tensor *lks_eq(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_ne(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_lt(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_le(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_gt(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_ge(lks_tensor *a, lks_tensor *b);

/* --- reductions -------------------------------------------------------------------------------------------------
 * dims: ndims entries, NULL/0 = all. keepdim keeps reduced dims as 1. Sums accumulate in float32 or wider by fixed
 * blocks: same bits on any thread count. */

/* Integers and bool sum to int64. dtype: result dtype, x is converted first; LKS_DTYPE_NONE = x's. Empty sum is 0. */
LKS_API lks_tensor *lks_sum(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype);
/* Floats only (or give a float dtype). The mean of nothing is NaN. */
LKS_API lks_tensor *lks_mean(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype);
/* Largest element along dim and its int64 index (first of ties; NaN wins). indices may be NULL. Gradient goes to the
 * index. An empty dim is LKS_ERR_SHAPE. */
LKS_API lks_status lks_max(lks_tensor *x, int dim, int keepdim, lks_tensor **values, lks_tensor **indices);
/* Largest element of all (0-dim). Its place along dim, int64. */
LKS_API lks_tensor *lks_max_all(lks_tensor *x);
LKS_API lks_tensor *lks_argmax(lks_tensor *x, int dim, int keepdim);
/* The same for the smallest. */
LKS_API lks_status lks_min(lks_tensor *x, int dim, int keepdim, lks_tensor **values, lks_tensor **indices);
LKS_API lks_tensor *lks_min_all(lks_tensor *x);
LKS_API lks_tensor *lks_argmin(lks_tensor *x, int dim, int keepdim);
/* Largest, smallest over several dims; NaN wins; ties share the gradient equally. Nothing to reduce: LKS_ERR_SHAPE. */
LKS_API lks_tensor *lks_amax(lks_tensor *x, int ndims, const int *dims, int keepdim);
LKS_API lks_tensor *lks_amin(lks_tensor *x, int ndims, const int *dims, int keepdim);
/* Sum of squared distances from the mean over (n - correction), and its root: correction 1 is the sample variance. In
 * float64 inside, in pieces, so that a large mean does not cancel. NaN where n - correction is not positive (infinite
 * if the sum is not 0). Gradient of std at 0 is 0. Floats. */
LKS_API lks_tensor *lks_var(lks_tensor *x, int ndims, const int *dims, int keepdim, double correction);
LKS_API lks_tensor *lks_std(lks_tensor *x, int ndims, const int *dims, int keepdim, double correction);
/* Integers and bool multiply to int64. The product of nothing is 1. The gradient is right where elements are 0. */
LKS_API lks_tensor *lks_prod(lks_tensor *x, int ndims, const int *dims, int keepdim, lks_dtype dtype);
/* (sum |x|^p)^(1/p); p 0: how many are not 0; INFINITY, -INFINITY: largest, smallest |x| (over nothing LKS_ERR_SHAPE,
 * as for p < 0; otherwise the norm of nothing is 0). Gradient of the norm 0 is 0. Floats. */
LKS_API lks_tensor *lks_norm(lks_tensor *x, double p, int ndims, const int *dims, int keepdim);
/* BOOL; NaN counts as true. all of nothing is true, any of nothing false. */
LKS_API lks_tensor *lks_all(lks_tensor *x, int ndims, const int *dims, int keepdim);
LKS_API lks_tensor *lks_any(lks_tensor *x, int ndims, const int *dims, int keepdim);
/* log sum exp(x), without overflow. Slices of -inf alone, or of nothing, give -inf and a zero gradient. */
LKS_API lks_tensor *lks_logsumexp(lks_tensor *x, int ndims, const int *dims, int keepdim);
/* Norm of order p of a - b (broadcast), 0-dim. */
LKS_API lks_tensor *lks_dist(lks_tensor *a, lks_tensor *b, double p);
/* x / max(norm of order p along dim, eps). */
LKS_API lks_tensor *lks_normalize(lks_tensor *x, double p, int dim, double eps);
/* a . b / (max(|a|, eps) max(|b|, eps)) along dim of the broadcast shape, that dim removed. */
LKS_API lks_tensor *lks_cosine_similarity(lks_tensor *a, lks_tensor *b, int dim, double eps);
/* Each slice of x at an index of dim whose norm of order p > 0 exceeds max is scaled down to max. At least 2 dims. */
LKS_API lks_tensor *lks_renorm(lks_tensor *x, double p, int dim, double max);

/* Sums, products of all elements up to and with each along dim. Integers and bool give int64 (wrapping); dtype as in
 * lks_sum. Carried in float64. The gradient of cumprod is right where elements are 0. */
LKS_API lks_tensor *lks_cumsum(lks_tensor *x, int dim, lks_dtype dtype);
LKS_API lks_tensor *lks_cumprod(lks_tensor *x, int dim, lks_dtype dtype);
/* y_k = b_k + a_k y_{k-1} along dim, y before the first 0 (reverse: from the end). a and b of one shape, floats. */
LKS_API lks_tensor *lks_recurrence(lks_tensor *a, lks_tensor *b, int dim, int reverse);

/* --- products ----------------------------------------------------------------------------------------------------*/

/* PyTorch's matmul in all ranks: 1-D @ 1-D is a dot product, 2-D @ 2-D a product, 1-D operands get a dim that is
 * removed again, leading dims are a broadcast batch. Inputs of one floating dtype, float32 accumulation or wider. */
LKS_API lks_tensor *lks_matmul(lks_tensor *a, lks_tensor *b);
/* x [..., in], weight [out, in], bias [out] or LKS_NONE: x weight^T + bias, [..., out]. bias may be wider than x. */
LKS_API lks_tensor *lks_linear(lks_tensor *x, lks_tensor *weight, lks_tensor *bias);
/* Forms of matmul that take exactly these dims: mm [n, k] [k, m], bmm [B, n, k] [B, k, m] (batches do not broadcast),
 * mv [n, k] [k], dot [k] [k]. Inside a CUDA region mv runs in the region's dtype and dot in its widest input's. */
LKS_API lks_tensor *lks_mm(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_bmm(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_mv(lks_tensor *a, lks_tensor *b);
LKS_API lks_tensor *lks_dot(lks_tensor *a, lks_tensor *b);
/* beta c + alpha a b, scaled and added in float32 or wider before the one rounding. c broadcasts to the product, may be
 * wider than it, and LKS_NONE adds nothing; with beta 0 it is not read (its NaN and infinities do not spread). a b is
 * mm, bmm, mv; for addr the outer product of two vectors; for addbmm the sum of the batch's products. */
LKS_API lks_tensor *lks_addmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha);
LKS_API lks_tensor *lks_baddbmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha);
LKS_API lks_tensor *lks_addbmm(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha);
LKS_API lks_tensor *lks_addmv(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha);
LKS_API lks_tensor *lks_addr(lks_tensor *c, lks_tensor *a, lks_tensor *b, double beta, double alpha);
/* a [n], b [m]: a_i b_j, [n, m]. */
LKS_API lks_tensor *lks_outer(lks_tensor *a, lks_tensor *b);
/* Sum of a b along dim (of the broadcast shape), that dim removed. One floating dtype. */
LKS_API lks_tensor *lks_linalg_vecdot(lks_tensor *a, lks_tensor *b, int dim);
/* x1 [..., I], x2 [..., J], weight [O, I, J], bias [O] or LKS_NONE: y_o = x1 W_o x2 + bias_o, [..., O]. */
LKS_API lks_tensor *lks_bilinear(lks_tensor *x1, lks_tensor *x2, lks_tensor *weight, lks_tensor *bias);
/* Sum of products by Einstein's convention, as "bij,bjk->bik": a letter for each dim of each of the n tensors; letters
 * that the result lacks are summed. A letter twice in one tensor takes its diagonal; "..." stands for dims that are
 * broadcast; without "->" the result has the letters that occur once, in alphabetical order. Pairs are multiplied from
 * the left as batched matrix products. */
LKS_API lks_tensor *lks_einsum(const char *equation, int n, lks_tensor *const *x);
/* Product of n matrices in the order that needs fewest multiplications (dynamic programming). multi_dot takes a vector
 * as the first (a row) or last (a column), whose dim the result lacks. n = 1 gives x[0] itself. */
LKS_API lks_tensor *lks_multi_dot(int n, lks_tensor *const *x);
LKS_API lks_tensor *lks_chain_matmul(int n, lks_tensor *const *x);
/* Sum over n pairs of dims, dims_a[i] of a with dims_b[i] of b; NULL: the last n of a, the first n of b. The result has
 * the other dims of a, then those of b. */
LKS_API lks_tensor *lks_tensordot(lks_tensor *a, lks_tensor *b, int n, const int *dims_a, const int *dims_b);

/* --- convolution and pooling ------------------------------------------------------------------------------------
 * Over 1, 2 or 3 dims: x [N, C, L], [N, C, H, W] or [N, C, D, H, W]. Arrays have one entry for each of these dims, the
 * first for the first. Results are stored channels-last where x is. Sums go in an order of their own: same bits on any
 * number of threads. */

/* Cross-correlation. weight [K, C/groups, kernel...], bias [K] or LKS_NONE (may be wider than x); stride, padding,
 * dilation: NULL = 1, 0, 1. Result [N, K, ...] with sizes (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
 * Padding LKS_SAME (for any of the dims; stride 1) keeps the size: dilation (kernel - 1) zeros in all, one more behind
 * than before if that is odd. */
#define LKS_SAME (-1)
LKS_API lks_tensor *lks_conv1d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                               const int64_t *padding, const int64_t *dilation, int64_t groups);
LKS_API lks_tensor *lks_conv2d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                               const int64_t *padding, const int64_t *dilation, int64_t groups);
LKS_API lks_tensor *lks_conv3d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                               const int64_t *padding, const int64_t *dilation, int64_t groups);
/* The gradient of a convolution with respect to its input, as an op: x [N, C, ...], weight [C, K/groups, kernel...],
 * bias [K] or LKS_NONE; result [N, K, ...] with sizes (L - 1) stride - 2 padding + dilation (kernel - 1) +
 * output_padding + 1. output_padding (NULL = 0) must be smaller than stride or dilation. */
LKS_API lks_tensor *lks_conv_transpose1d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                                         const int64_t *padding, const int64_t *output_padding, int64_t groups,
                                         const int64_t *dilation);
LKS_API lks_tensor *lks_conv_transpose2d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                                         const int64_t *padding, const int64_t *output_padding, int64_t groups,
                                         const int64_t *dilation);
LKS_API lks_tensor *lks_conv_transpose3d(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, const int64_t *stride,
                                         const int64_t *padding, const int64_t *output_padding, int64_t groups,
                                         const int64_t *dilation);
/* conv1d on x [T, B, C] with weight [kernel, C, K] and bias [K] or LKS_NONE: [T + 2 padding - kernel + 1, B, K]. */
LKS_API lks_tensor *lks_conv_tbc(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, int64_t padding);

/* Largest element of each window and its place in the plane of x, (d H + h) W + w, int64 (first of ties; NaN wins);
 * indices may be NULL. kernel is needed; stride NULL = kernel; padding NULL = 0 (at most kernel / 2, never chosen);
 * dilation NULL = 1. ceil_mode: the number of windows is rounded up; none begins behind x and its padding. A window
 * that sees no element of x is -inf with index -1. Planes hold at most 2^31 - 1 elements (LKS_ERR_SHAPE). */
LKS_API lks_status lks_max_pool(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                                const int64_t *dilation, int ceil_mode, lks_tensor **y, lks_tensor **indices);
/* The values alone, in two dims. */
LKS_API lks_tensor *lks_max_pool2d(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding);
/* Mean of each window. Padding counts as zeros, or not at all where count_include_pad is 0; what a window in ceil_mode
 * has beyond x and its padding never counts. divisor_override, if not 0, divides every sum. */
LKS_API lks_tensor *lks_avg_pool(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                                 int ceil_mode, int count_include_pad, int64_t divisor_override);
/* Results of a given size (-1: that of x): window i of n covers floor(i L / n) to ceil((i + 1) L / n). */
LKS_API lks_tensor *lks_adaptive_avg_pool(lks_tensor *x, const int64_t *size);
LKS_API lks_status lks_adaptive_max_pool(lks_tensor *x, const int64_t *size, lks_tensor **y, lks_tensor **indices);
/* Windows of `kernel` at pseudo-random steps, `size` of them (Graham, 2014), in 2 or 3 dims. samples: numbers of
 * [0, 1), [N, C, 2] for (w, h) or [N, C, 3] for (d, h, w), as PyTorch has them; LKS_NONE draws them. They get no
 * gradient. */
LKS_API lks_status lks_fractional_max_pool(lks_tensor *x, const int64_t *kernel, const int64_t *size,
                                           lks_tensor *samples, lks_tensor **y, lks_tensor **indices);
/* Zeros of `size` (the dims after N and C) with the elements of x at indices (int64 or int32, shape of x): what undoes
 * lks_max_pool. Of several at one place the last counts. An index outside the plane is LKS_ERR_ARGUMENT. */
LKS_API lks_tensor *lks_max_unpool(lks_tensor *x, lks_tensor *indices, const int64_t *size);

/* x with elements before and after in each of its 1 to 3 dims (NULL = 0): mirrored at the outermost element, which is
 * not repeated (padding smaller than the dim), or the outermost element again. */
LKS_API lks_tensor *lks_reflection_pad(lks_tensor *x, const int64_t *before, const int64_t *after);
LKS_API lks_tensor *lks_replication_pad(lks_tensor *x, const int64_t *before, const int64_t *after);

enum lks_sample_mode { LKS_SAMPLE_BILINEAR, LKS_SAMPLE_NEAREST, LKS_SAMPLE_BICUBIC };
enum lks_sample_padding { LKS_SAMPLE_ZEROS, LKS_SAMPLE_BORDER, LKS_SAMPLE_REFLECTION };
/* x [N, C, H, W] at the places of grid [N, P, Q, 2] (x along W, y along H): [N, C, P, Q]; or x [N, C, D, H, W] and grid
 * [N, O, P, Q, 3] (x, y, z): [N, C, O, P, Q]. -1 and 1 are the centres of the outermost elements with align_corners,
 * else their outer edges. Outside: zeros, the nearest element, or mirrored (at centres or edges). Bilinear (trilinear),
 * nearest (ties to even) or bicubic (2-D; Keys, 1981, a = -0.75). NaN in the grid is read as -1; what lies at infinity
 * gives zeros unless padding is the border. dtypes must be alike. The gradient of x is added up per plane; that of the
 * grid is 0 for nearest and where the border or NaN decided. Not twice differentiable. */
LKS_API lks_tensor *lks_grid_sample(lks_tensor *x, lks_tensor *grid, int mode, int padding, int align_corners);

/* --- normalisation ----------------------------------------------------------------------------------------------- */

/* Over the last `ndims` dims (Ba et al., 2016); weight, bias of that shape or LKS_NONE. Two-pass variance, so a large
 * mean does not cancel. A row of one element gives bias, gradient 0. */
LKS_API lks_tensor *lks_layer_norm(lks_tensor *x, int ndims, lks_tensor *weight, lks_tensor *bias, double eps);
/* Over all dims but 1 (Ioffe & Szegedy, 2015). weight, bias [C] or LKS_NONE. training: batch statistics; else
 * running_mean/running_var [C], float32. In training, staged_mean/staged_var [C] (LKS_NONE: nothing is kept) get
 * (1 - momentum) staged + momentum * batch statistic (unbiased variance); they become the running ones when the step
 * is applied. */
LKS_API lks_tensor *lks_batch_norm(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, lks_tensor *running_mean,
                                   lks_tensor *running_var, lks_tensor *staged_mean, lks_tensor *staged_var,
                                   int training, double momentum, double eps);

/* The same in training with the statistics of all ranks together, as if their rows were one batch: counts, means and
 * squared deviations are gathered and joined in rank order, so every rank has the same bits; ranks may have different
 * numbers of rows, or none (x [0, C, ...]). In backward the sums that dx needs are reduced over the ranks; gradients of
 * weight and bias are this rank's own. C must agree. One rank: batch norm itself. Collective, and so is its backward:
 * every rank runs it, with the same layers in the same order. Not twice differentiable on several ranks. */
LKS_API lks_tensor *lks_sync_batch_norm(lks_tensor *x, lks_tensor *weight, lks_tensor *bias, lks_tensor *staged_mean,
                                        lks_tensor *staged_var, double momentum, double eps);
/* x / sqrt(mean x^2 + eps) * weight over the last `ndims` dims (Zhang & Sennrich, 2019); weight of that shape or
 * LKS_NONE; eps < 0: the distance from 1 to the next number of x's dtype. Squares do not overflow: rows are scaled
 * where they would. */
LKS_API lks_tensor *lks_rms_norm(lks_tensor *x, int ndims, lks_tensor *weight, double eps);
/* x [N, C, ...]: over C / groups channels and all dims behind them (Wu & He, 2018); weight, bias [C] or LKS_NONE.
 * groups C is instance norm, 1 layer norm of an image. Channels-last stays. */
LKS_API lks_tensor *lks_group_norm(lks_tensor *x, int64_t groups, lks_tensor *weight, lks_tensor *bias, double eps);

/* --- softmax and losses ------------------------------------------------------------------------------------------ */

/* exp(x) / sum exp(x) along dim, and its logarithm, x - log sum exp(x), both without overflow. x's shape and floating
 * dtype. A slice whose entries are all -inf gives zeros (-inf) and a zero gradient. */
LKS_API lks_tensor *lks_softmax(lks_tensor *x, int dim);
LKS_API lks_tensor *lks_log_softmax(lks_tensor *x, int dim);
/* softmax(-x). */
LKS_API lks_tensor *lks_softmin(lks_tensor *x, int dim);

/* What a loss gives: one per element or row, their mean, their sum. BATCHMEAN (kl_div alone): the sum over the size
 * of dim 0. MEAN_NAN: as MEAN, but NaN where nothing counts (cross_entropy and nll_loss with every target ignored),
 * as PyTorch does it; MEAN gives 0 there, so that one empty batch spoils no average. A mean over no elements is NaN
 * for all others by both. */
enum lks_reduction {
    LKS_REDUCTION_NONE,
    LKS_REDUCTION_MEAN,
    LKS_REDUCTION_SUM,
    LKS_REDUCTION_BATCHMEAN,
    LKS_REDUCTION_MEAN_NAN
};
#define LKS_IGNORE_INDEX (-100)
/* logits [N, C] or [N, C, d...], target int64 [N] or [N, d...] (or logits [C], target []). Loss of a row is log sum
 * exp(x) - x[target], with label_smoothing s: (1 - s) times that + s times the mean over classes. Rows whose target
 * is ignore_index count nothing. NONE: target's shape; MEAN: over rows that count (0 if none); SUM. Result is float32
 * for reduced logits. A target outside [0, C) that is not ignore_index is an error naming row and value when the host
 * can know it, else the loss is NaN at that row. A floating target of the logits' shape holds probabilities: sum over
 * c of -q[c] log softmax(x)[c] with q = (1 - s) target + s / C; MEAN is over all rows, ignore_index means nothing. A
 * class with q = 0 adds 0 whatever its logit. It has a gradient, too. */
LKS_API lks_tensor *lks_cross_entropy(lks_tensor *logits, lks_tensor *target, int64_t ignore_index,
                                      double label_smoothing, int reduction);
/* The same with weight [C] (floating, or LKS_NONE): the term of class c is multiplied by weight[c], MEAN divides by
 * the sum of the weights of the targets (probabilities: by the number of rows). weight has no gradient. */
LKS_API lks_tensor *lks_cross_entropy_weighted(lks_tensor *logits, lks_tensor *target, lks_tensor *weight,
                                               int64_t ignore_index, double label_smoothing, int reduction);
/* -weight[target] x[target] for log-probabilities x [N, C], [N, C, d...] or [C]; target, weight, ignore_index, MEAN and
 * errors as above. Result has x's dtype, as have those below. */
LKS_API lks_tensor *lks_nll_loss(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int64_t ignore_index,
                                 int reduction);

/* Pointwise losses. x and target are broadcast to each other and promoted; reduction none gives that shape. All are
 * differentiable twice with respect to both; weights, and targets that are signs (t = 1, -1), have no gradient of their
 * own. Means and sums are fused: no tensor of single losses is made. */

/* (x - t)^2; |x - t| (gradient 0 at 0). */
LKS_API lks_tensor *lks_mse_loss(lks_tensor *x, lks_tensor *target, int reduction);
LKS_API lks_tensor *lks_l1_loss(lks_tensor *x, lks_tensor *target, int reduction);
/* d = |x - t|. smooth l1: d^2 / (2 beta) where d < beta, else d - beta / 2; beta >= 0 (0: l1). Huber: d^2 / 2 where
 * d < delta, else delta (d - delta / 2); delta > 0. */
LKS_API lks_tensor *lks_smooth_l1_loss(lks_tensor *x, lks_tensor *target, double beta, int reduction);
LKS_API lks_tensor *lks_huber_loss(lks_tensor *x, lks_tensor *target, double delta, int reduction);
/* -(t log x + (1 - t) log(1 - x)) for probabilities x, target of x's shape, times weight (broadcast to x, or LKS_NONE).
 * Logarithms are no lower than -100, the gradient divides by no less than 1e-12; x outside [0, 1] gives NaN. Refused
 * inside a region by the CUDA table: its gradient does not fit reduced floats. */
LKS_API lks_tensor *lks_binary_cross_entropy(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int reduction);
/* The same of sigmoid(x), without its loss of digits: (1 - t) log(1 + e^x) + p t log(1 + e^-x), times weight; p:
 * pos_weight (broadcast to x, or LKS_NONE = 1). An infinite logit of the right sign gives 0. */
LKS_API lks_tensor *lks_binary_cross_entropy_with_logits(lks_tensor *x, lks_tensor *target, lks_tensor *weight,
                                                         lks_tensor *pos_weight, int reduction);
/* t (log t - x) for log-probabilities x; log_target: target is a logarithm, too. 0 where the target's probability is 0,
 * and so is its gradient there. */
LKS_API lks_tensor *lks_kl_div(lks_tensor *x, lks_tensor *target, int log_target, int reduction);
/* e^x - t x (log_input), or x - t log(x + eps); full adds t log t - t + log(2 pi t) / 2 where t > 1. */
LKS_API lks_tensor *lks_poisson_nll_loss(lks_tensor *x, lks_tensor *target, int log_input, int full, double eps,
                                         int reduction);
/* t = 1: x; t = -1: max(0, margin - x); any other t: their sum. target of any dtype. */
LKS_API lks_tensor *lks_hinge_embedding_loss(lks_tensor *x, lks_tensor *target, double margin, int reduction);
/* max(0, -t (x1 - x2) + margin); target of any dtype, broadcast to the inputs. */
LKS_API lks_tensor *lks_margin_ranking_loss(lks_tensor *x1, lks_tensor *x2, lks_tensor *target, double margin,
                                            int reduction);
/* log(1 + e^(-t x)), for any size of t x. */
LKS_API lks_tensor *lks_soft_margin_loss(lks_tensor *x, lks_tensor *target, int reduction);

/* Over classes: x [N, C] or [C]. Not differentiable twice. */

/* sum over c other than target of weight[target] max(0, margin - x[target] + x[c])^p / C; p: 1 or 2; target [N] or [];
 * out of range as in cross_entropy. */
LKS_API lks_tensor *lks_multi_margin_loss(lks_tensor *x, lks_tensor *target, lks_tensor *weight, int p, double margin,
                                          int reduction);
/* target int64 of x's shape: a row lists its classes, up to the first -1. Sum over listed k and unlisted c of
 * max(0, 1 - x[k] + x[c]) / C. */
LKS_API lks_tensor *lks_multilabel_margin_loss(lks_tensor *x, lks_tensor *target, int reduction);

/* Over the last dim of embeddings. Differentiable twice. */

/* c = cosine of x1 and x2, [N, D] or [D]; target [N] or []: 1: 1 - c; -1: max(0, c - margin); any other: 0. */
LKS_API lks_tensor *lks_cosine_embedding_loss(lks_tensor *x1, lks_tensor *x2, lks_tensor *target, double margin,
                                              int reduction);
/* max(0, margin + |a - p| - |a - n|), |d| = (sum |d + eps|^p)^(1/p), p > 0 (INFINITY: largest); swap: |p - n| is taken
 * for |a - n| where it is smaller. */
LKS_API lks_tensor *lks_triplet_margin_loss(lks_tensor *anchor, lks_tensor *positive, lks_tensor *negative,
                                            double margin, double p, double eps, int swap, int reduction);

/* Connectionist temporal classification (Graves et al., 2006). log_probs [T, N, C] (log_softmax over C), targets [N,
 * S] int64 or int32 (padded; entries past a target's length are not read), lengths [N] int64; or [T, C], [S], [], [].
 * NONE: minus the log of the probability of each target, [N]; MEAN: over samples, each over its target's length (at
 * least 1). A target that cannot fit its input gives an infinite loss and a gradient of NaN, zero_infinity: 0 and 0.
 * Labels outside [0, C), or the blank, and lengths out of range are errors, or NaN, as in cross_entropy. The gradient
 * is that of log_probs as given, which with log_softmax comes to softmax minus posterior; not differentiable twice.
 * The same bits at every run. */
LKS_API lks_tensor *lks_ctc_loss(lks_tensor *log_probs, lks_tensor *targets, lks_tensor *input_lengths,
                                 lks_tensor *target_lengths, int64_t blank, int zero_infinity, int reduction);

/* --- indexing, joining ------------------------------------------------------------------------------------------- */

/* weight [V, D], index int64 or int32 of any shape: [..., D]. Out of range: as the target of cross_entropy. */
LKS_API lks_tensor *lks_embedding(lks_tensor *weight, lks_tensor *index);
/* n tensors joined along dim, in which alone their shapes may differ ([0] goes with any); promoted. */
LKS_API lks_tensor *lks_cat(int n, lks_tensor *const *x, int dim);
/* Tensors of one shape joined along a new dim. */
LKS_API lks_tensor *lks_stack(int n, lks_tensor *const *x, int dim);
/* n pieces of these sizes, which add up to dim's; returns n or a negative status. */
LKS_API int lks_split_sizes(lks_tensor *x, int n, const int64_t *sizes, int dim, lks_tensor **out);

/* In what follows index is int64 or int32, and a number out of range is met as the target of cross_entropy is. Where
 * one place is written several times the last in row-major order of index wins (and alone has a gradient); sums are
 * added in that order, in float32 or wider. So results do not depend on threads. src and values have x's dtype. x
 * itself is left as it is. */

/* index has x's number of dims and is nowhere larger but along dim. gather: y[i][j][k] = x[i][index[i][j][k]][k] for
 * dim 1. scatter: y = x, y[i][index[i][j][k]][k] = src[i][j][k]; src at least as large as index; or a number. */
LKS_API lks_tensor *lks_gather(lks_tensor *x, int dim, lks_tensor *index);
LKS_API lks_tensor *lks_scatter(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src);
LKS_API lks_tensor *lks_scatter_value(lks_tensor *x, int dim, lks_tensor *index, double value);
LKS_API lks_tensor *lks_scatter_add(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src);
/* gather whose x and index broadcast outside dim. */
LKS_API lks_tensor *lks_take_along_dim(lks_tensor *x, lks_tensor *index, int dim);
/* index [n] names whole slices of x along dim: picked; added to by alpha src; overwritten by src (x's shape, n along
 * dim). */
LKS_API lks_tensor *lks_index_select(lks_tensor *x, int dim, lks_tensor *index);
LKS_API lks_tensor *lks_index_add(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src, double alpha);
LKS_API lks_tensor *lks_index_copy(lks_tensor *x, int dim, lks_tensor *index, lks_tensor *src);
/* x[index[0], index[1], ...] for the first n dims of x; LKS_NONE takes a dim whole. Indices broadcast to one shape B
 * and may be negative (from the end). The result has B where the named dims were if they are side by side, else in
 * front, and the other dims of x. index_put: y = x with values (broadcast to that result) in these places, or
 * added to them. */
LKS_API lks_tensor *lks_index(lks_tensor *x, int n, lks_tensor *const *index);
LKS_API lks_tensor *lks_index_put(lks_tensor *x, int n, lks_tensor *const *index, lks_tensor *values, int accumulate);
/* [..., classes] int64: 1 at index, else 0. */
LKS_API lks_tensor *lks_one_hot(lks_tensor *index, int64_t classes);
/* mask (BOOL) ? value : x; condition ? a : b. The number takes the tensor's dtype. */
LKS_API lks_tensor *lks_masked_fill(lks_tensor *x, lks_tensor *mask, double value);
LKS_API lks_tensor *lks_where_scalar(lks_tensor *condition, lks_tensor *a, double b);

/* value around the last n / 2 dims of x: pads[0], pads[1] before and after in the last dim, pads[2], pads[3] in the one
 * before, and so on; negative ones cut off. */
LKS_API lks_tensor *lks_pad(lks_tensor *x, int n, const int64_t *pads, double value);
/* x [..., n, m] with 0 below (triu) or above (tril) the diagonal, number `diagonal` to the right of the main one. */
LKS_API lks_tensor *lks_triu(lks_tensor *x, int64_t diagonal);
LKS_API lks_tensor *lks_tril(lks_tensor *x, int64_t diagonal);
/* View of the diagonal over dims d0 and d1, as the last dim. diag_embed: the reverse, 0 elsewhere, with the matrix in
 * dims d0 and d1 of the result. diag: diagonal (a copy) of a matrix, or the matrix of a vector. trace [n, m]: its
 * sum. */
LKS_API lks_tensor *lks_diagonal(lks_tensor *x, int64_t offset, int d0, int d1);
LKS_API lks_tensor *lks_diag_embed(lks_tensor *x, int64_t offset, int d0, int d1);
LKS_API lks_tensor *lks_diag(lks_tensor *x, int64_t offset);
LKS_API lks_tensor *lks_trace(lks_tensor *x);
/* Product of vectors in space; dim (of the broadcast shape) has size 3. */
LKS_API lks_tensor *lks_cross(lks_tensor *a, lks_tensor *b, int dim);
/* Reversed along n dims; shifted along n dims, what leaves at the end comes in at the start; times[d] copies along each
 * of n dims (x may get leading ones). */
LKS_API lks_tensor *lks_flip(lks_tensor *x, int n, const int *dims);
LKS_API lks_tensor *lks_roll(lks_tensor *x, int n, const int64_t *shifts, const int *dims);
LKS_API lks_tensor *lks_repeat(lks_tensor *x, int n, const int64_t *times);

/* In rising order along dim, or falling, with int64 indices. Stable both ways; NaN counts as the largest, -0 and 0
 * alike. topk: the first k of that. values or indices may be NULL. */
LKS_API lks_status lks_sort(lks_tensor *x, int dim, int descending, lks_tensor **values, lks_tensor **indices);
LKS_API lks_tensor *lks_argsort(lks_tensor *x, int dim, int descending);
LKS_API lks_status lks_topk(lks_tensor *x, int64_t k, int dim, int largest, lks_tensor **values, lks_tensor **indices);

enum lks_quantile_mode {
    LKS_QUANTILE_LINEAR,
    LKS_QUANTILE_LOWER,
    LKS_QUANTILE_HIGHER,
    LKS_QUANTILE_MIDPOINT,
    LKS_QUANTILE_NEAREST
};
#define LKS_DIM_ALL 1000 /* of a dim: x as one line */
/* Quantiles of the nq numbers q in [0, 1] along dim: the place q (n - 1) of the sorted line, between two elements as
 * interpolation says (NEAREST: halves to the even place). nq > 1 gives a leading dim. A line with a NaN gives NaN;
 * nanquantile leaves NaN out, and gives NaN if there is nothing else. Floats; an empty line is LKS_ERR_SHAPE. */
LKS_API lks_tensor *lks_quantile(lks_tensor *x, int nq, const double *q, int dim, int keepdim, int interpolation);
LKS_API lks_tensor *lks_nanquantile(lks_tensor *x, int nq, const double *q, int dim, int keepdim, int interpolation);

/* Distances (sum |a - b|^p)^(1/p) of rows, a [..., P, M], b [..., R, M]: [..., P, R], batches broadcast. pdist: of the
 * pairs i < j of x [N, M], [N (N - 1) / 2]. p = INFINITY: the largest difference, 0: how many differ. Differences are
 * taken directly, so near rows do not cancel. The gradient at distance 0 is 0. Not twice differentiable. */
LKS_API lks_tensor *lks_cdist(lks_tensor *a, lks_tensor *b, double p);
LKS_API lks_tensor *lks_pdist(lks_tensor *x, double p);

/* --- random -------------------------------------------------------------------------------------------------------*/

/* Training form: zero with probability p (0 <= p < 1), the rest times 1/(1-p). No mask is stored: backward draws the
 * same numbers again, so it must run before the optimizer step that follows. */
LKS_API lks_tensor *lks_dropout(lks_tensor *x, double p);
/* In place: uniform on [lo, hi), normal(mean, std) (Box & Muller, 1958). Floats only. */
LKS_API lks_status lks_uniform_(lks_tensor *x, double lo, double hi);
LKS_API lks_status lks_normal_(lks_tensor *x, double mean, double std);
/* 1 with probability p, else 0, to 2^-24: of p's shape and dtype (floats; a constant); in place for one p, any dtype. p
 * outside [0, 1] is LKS_ERR_ARGUMENT where the host can know it. */
LKS_API lks_tensor *lks_bernoulli(lks_tensor *p);
LKS_API lks_status lks_bernoulli_(lks_tensor *x, double p);

/* --- attention --------------------------------------------------------------------------------------------------- */

/* softmax(scale q k^T + mask) v. q [B, H, T, D], k [B, H, S, D], v [B, H, S, Dv]; mask broadcastable to [B, H, T, S],
 * BOOL (true = take part) or floating (added; no gradient), or LKS_NONE; causal: query t sees keys <= t + S - T.
 * scale 0 = 1/sqrt(D). dropout_p acts on the probabilities. No T x S matrix is kept for backward: rows are recomputed
 * from their log-sum (Dao et al., 2022). A row that sees no key gives zeros. With dropout it is not twice
 * differentiable. */
LKS_API lks_tensor *lks_scaled_dot_product_attention(lks_tensor *q, lks_tensor *k, lks_tensor *v, lks_tensor *mask,
                                                     double dropout_p, int causal, double scale);

/* Several heads (Vaswani et al., 2017), batch first: query [N, T, E], key and value [N, S, E] are projected by the
 * three [E, E] parts of w_in [3 E, E] (query, key, value) and b_in [3 E], attend in `heads` parts of E / heads, and are
 * projected by w_out [E, E], b_out [E]; biases may be LKS_NONE. mask as above, broadcastable to [N, heads, T, S];
 * dropout_p acts on the probabilities. One product projects all three where query, key and value are one tensor.
 * weights (NULL: not wanted): the probabilities, before dropout, mean of the heads, [N, T, S]. */
LKS_API lks_status lks_multi_head_attention(lks_tensor *query, lks_tensor *key, lks_tensor *value, int64_t heads,
                                            lks_tensor *w_in, lks_tensor *b_in, lks_tensor *w_out, lks_tensor *b_out,
                                            lks_tensor *mask, int causal, double dropout_p, lks_tensor **y,
                                            lks_tensor **weights);

/* --- recurrent layers -------------------------------------------------------------------------------------------
 * Gates are in PyTorch's order, s the logistic function, * elementwise; x and h stand for W_ih x + b_ih, W_hh h + b_hh:
 *   rnn    h' = tanh(x + h), or relu
 *   gru    r = s(xr + hr), z = s(xz + hz), n = tanh(xn + r * hn), h' = n + z * (h - n)      (Cho et al., 2014)
 *   lstm   i, f, o = s(x + h), g = tanh(xg + hg), c' = f * c + i * g, h' = o * tanh(c')      (Hochreiter and
 *          Schmidhuber, 1997)
 * W_ih [G H, I], W_hh [G H, H], b_ih and b_hh [G H] or LKS_NONE; G: 1, 3 (r z n), 4 (i f g o). Reduced floats are
 * carried in float32 from step to step. Not twice differentiable. */

/* One step: x [N, I], h and c [N, H], or [I] and [H]; LKS_NONE: zeros. Results as h. h_next and c_next may be NULL. */
LKS_API lks_tensor *lks_rnn_cell(lks_tensor *x, lks_tensor *h, lks_tensor *w_ih, lks_tensor *w_hh, lks_tensor *b_ih,
                                 lks_tensor *b_hh, int relu);
LKS_API lks_tensor *lks_gru_cell(lks_tensor *x, lks_tensor *h, lks_tensor *w_ih, lks_tensor *w_hh, lks_tensor *b_ih,
                                 lks_tensor *b_hh);
LKS_API lks_status lks_lstm_cell(lks_tensor *x, lks_tensor *h, lks_tensor *c, lks_tensor *w_ih, lks_tensor *w_hh,
                                 lks_tensor *b_ih, lks_tensor *b_hh, lks_tensor **h_next, lks_tensor **c_next);
/* Whole sequences. x [T, N, I] (batch_first: [N, T, I]; one sequence: [T, I]). weights: w_ih, w_hh, b_ih, b_hh of layer
 * 0, of layer 0's reverse direction (bidirectional), of layer 1, ...: n = 4 layers directions; layer l > 0 reads the y
 * of the one below, after dropout with probability `dropout` in [0, 1) (give 0 outside training). h0, c0 [layers
 * directions, N, H] or LKS_NONE (zeros). lengths int64 [N] in [0, T] or LKS_NONE: sequence n ends after lengths[n]
 * steps; what x holds beyond has no effect, y is 0 there, hn and cn are the states at the end, the reverse direction
 * begins there. y [T, N, directions H], the forward direction first (laid out as x is); hn, cn as h0. Each of y, hn, cn
 * may be NULL. */
LKS_API lks_status lks_rnn(lks_tensor *x, lks_tensor *h0, lks_tensor *lengths, int n, lks_tensor *const *weights,
                           int relu, int bidirectional, int batch_first, double dropout, lks_tensor **y,
                           lks_tensor **hn);
LKS_API lks_status lks_gru(lks_tensor *x, lks_tensor *h0, lks_tensor *lengths, int n, lks_tensor *const *weights,
                           int bidirectional, int batch_first, double dropout, lks_tensor **y, lks_tensor **hn);
LKS_API lks_status lks_lstm(lks_tensor *x, lks_tensor *h0, lks_tensor *c0, lks_tensor *lengths, int n,
                            lks_tensor *const *weights, int bidirectional, int batch_first, double dropout,
                            lks_tensor **y, lks_tensor **hn, lks_tensor **cn);

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Number of rows; the i-th row's name, schema text; index of a name, or of an alias as __matmul__, or
 * LKS_ERR_NOT_FOUND. Local. */
LKS_API int lks_op_count(void);
LKS_API const char *lks_op_name(int i);
LKS_API const char *lks_op_schema(int i);
LKS_API int lks_op_lookup(const char *name);
/* 1 if the row has a gradient (a rule, or that of the rows it is made of). Local. */
LKS_API int lks_op_differentiable(int i);
/* How often it can be differentiated: 0, 1 ("is not differentiable twice"), or 2: any number of times. Local. */
LKS_API int lks_op_order(int i);
/* 1 if its main inputs may be integers and bool, 0: floats only (float64, float32, float16, bfloat16). Local. */
LKS_API int lks_op_integers(int i);

#ifdef __cplusplus
}
#endif
#endif
