/* SPDX-License-Identifier: BSD-3-Clause
 *
 * samples.c - the table of samples, see samples.h.
 */
#include "samples.h"
#include "table/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CALL(name) static lks_tensor *name(lks_context *ctx, lks_tensor *const *in)
#define NOT_USED (void)ctx

static lks_tensor *row(lks_context *ctx, int op, int nin, lks_tensor *const *in, lksi_attr attr)
{
    return lksi_call1(ctx, lksi_rows[op].name, op, nin, in, &attr);
}

/* --- views and copies --- */

CALL(view_6_4) { NOT_USED; return lks_reshape(in[0], 2, (int64_t[]){6, -1}); }
CALL(view_1_1) { NOT_USED; return lks_reshape(in[0], 2, (int64_t[]){1, 1}); }
CALL(view_empty) { NOT_USED; return lks_reshape(in[0], 3, (int64_t[]){3, 0, 2}); }
CALL(expand_2_3_4) { NOT_USED; return lks_expand(in[0], 3, (int64_t[]){2, -1, 4}); }
CALL(expand_2_2) { NOT_USED; return lks_expand(in[0], 2, (int64_t[]){2, 2}); }
CALL(expand_3_0) { NOT_USED; return lks_expand(in[0], 2, (int64_t[]){3, 0}); }
CALL(permute_201) { NOT_USED; return lks_permute(in[0], 3, (int[]){2, 0, 1}); }
CALL(permute_none) { NOT_USED; return lks_permute(in[0], 0, NULL); }
CALL(slice_2) { NOT_USED; return lks_slice(in[0], 0, 1, 6, 2); }
CALL(slice_none) { NOT_USED; return lks_slice(in[0], -1, 2, 2, 1); }
CALL(slice_backward_7)
{
    return row(ctx, LKSI_OP_slice_backward, 1, in,
               (lksi_attr){.slice = {.dim = 0, .start = 1, .stop = 6, .step = 2, .size = 7}});
}
/* Parts of one tensor that is not a leaf, as attention takes them from a packed product; the whole is used as well. */
CALL(packed)
{
    NOT_USED;
    lks_tensor *h = lks_mul_scalar(in[0], 2), *part[3];
    if (lks_split(h, 2, 1, 3, part) != 3) return NULL;
    return lks_add(lks_add(lks_mul(part[0], part[1]), part[2]),
                   lks_mul(lks_sum(h, 0, NULL, 0, LKS_DTYPE_NONE), part[1]));
}
CALL(overlapping)
{
    NOT_USED;
    lks_tensor *h = lks_mul_scalar(in[0], -1);
    return lks_mul(lks_slice(h, 0, 0, 4, 1), lks_slice(h, 0, 2, 6, 1));
}
CALL(do_clone) { NOT_USED; return lks_clone(in[0]); }
CALL(do_cast) { return row(ctx, LKSI_OP_cast, 1, in, (lksi_attr){.cast = {.dtype = LKS_F64}}); }

/* --- elementwise --- */

#define BINARY(name) CALL(do_##name) { NOT_USED; return lks_##name(in[0], in[1]); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
CALL(add_self) { NOT_USED; return lks_add(in[0], in[0]); }
CALL(mul_self) { NOT_USED; return lks_mul(in[0], in[0]); }
/* One gradient handed to two places that go on differently. */
CALL(diamond)
{
    NOT_USED;
    lks_tensor *a = lks_clone(in[0]), *s = lks_add(a, lks_mul_scalar(in[0], 3));
    return lks_add(lks_mul(s, s), lks_add(a, a));
}
CALL(do_where) { NOT_USED; return lks_where(in[0], in[1], in[2]); }
CALL(do_affine) { NOT_USED; return lks_affine(in[0], 2.5, -1); }
CALL(do_neg) { NOT_USED; return lks_neg(in[0]); }
#define UNARY(name) CALL(do_##name) { NOT_USED; return lks_##name(in[0]); }
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(relu)
CALL(do_gelu) { NOT_USED; return lks_gelu(in[0], 0); }
CALL(do_gelu_tanh) { NOT_USED; return lks_gelu(in[0], 1); }
#define BACKWARD(name) CALL(do_##name) { return row(ctx, LKSI_OP_##name, 2, in, (lksi_attr){0}); }
BACKWARD(sqrt_backward)
BACKWARD(tanh_backward)
BACKWARD(sigmoid_backward)
BACKWARD(relu_backward)
BACKWARD(gelu_backward)
CALL(do_gelu_tanh_backward) { return row(ctx, LKSI_OP_gelu_backward, 2, in, (lksi_attr){.gelu = {.tanh_form = 1}}); }
CALL(do_dropout)
{
    lks_random_rows(ctx, 0, 0); /* the same numbers at each call */
    return lks_dropout(in[0], 0.25);
}

/* --- complex: real inputs of float32 at least, real results --- */

/* In a region whose policy casts it is left to that. */
static lks_tensor *wide(lks_tensor *x)
{
    if (x && lks_autocast_enabled(lks_context_of(x)) &&
        lks_autocast_policy_in_force(lks_context_of(x), "linalg_svd") == LKS_POLICY_FP32)
        return x;
    return x && (lks_dtype_of(x) == LKS_F16 || lks_dtype_of(x) == LKS_BF16) ? lks_to(x, LKS_F32) : x;
}
static lks_tensor *pairs(lks_tensor *z) { return lks_view_as_real(z); }
CALL(do_complex) { NOT_USED; return pairs(lks_complex(in[0], in[1])); }
CALL(do_polar) { NOT_USED; return pairs(lks_polar(in[0], in[1])); }
CALL(do_conj) { NOT_USED; return pairs(lks_mul(lks_conj(lks_complex(in[0], in[1])), lks_complex(in[1], in[0]))); }
CALL(do_complex_abs) { NOT_USED; return lks_abs(lks_complex(in[0], in[1])); }
CALL(do_angle) { NOT_USED; return lks_angle(lks_complex(in[0], in[1])); }
CALL(do_as_complex)
{
    NOT_USED;
    lks_tensor *z = lks_view_as_complex(lks_contiguous(wide(in[0])));
    return pairs(lks_div(z, lks_exp(z)));
}
CALL(complex_product)
{
    NOT_USED;
    lks_tensor *a = lks_complex(in[0], in[1]), *b = lks_complex(in[2], in[3]);
    return pairs(lks_matmul(a, lks_transpose(b, -1, -2)));
}

/* --- Fourier transforms, linear algebra --- */

static lks_tensor *complex_of(lks_tensor *const *in) { return lks_complex(in[0], in[1]); }
CALL(fft_2) { NOT_USED; return pairs(lks_fft_fft2(complex_of(in), NULL, NULL, LKS_FFT_ORTHO)); }
CALL(ifft_first) { NOT_USED; return pairs(lks_fft_ifft(complex_of(in), 6, 0, LKS_FFT_BACKWARD)); }
CALL(rfft_last) { NOT_USED; return pairs(lks_fft_rfft(wide(in[0]), -1, -1, LKS_FFT_ORTHO)); }
CALL(rfft_2) { NOT_USED; return pairs(lks_fft_rfft2(wide(in[0]), NULL, (int[]){1, 0}, LKS_FFT_FORWARD)); }
CALL(irfft_last) { NOT_USED; return lks_fft_irfft(complex_of(in), -1, -1, LKS_FFT_ORTHO); }
CALL(irfft_2) { NOT_USED; return lks_fft_irfft2(complex_of(in), (int64_t[]){4, 5}, NULL, LKS_FFT_ORTHO); }
CALL(hfft_first) { NOT_USED; return lks_fft_hfft(complex_of(in), 5, 0, LKS_FFT_ORTHO); }
CALL(do_stft) { NOT_USED; return pairs(lks_stft(wide(in[0]), 4, 2, 4, wide(in[1]), LKS_STFT_CENTER)); }

/* Far enough from singular. */
static lks_tensor *well(lks_tensor *x)
{
    x = wide(x);
    if (!x) return NULL;
    int64_t n = lks_dim(x, -1);
    return lks_add(lks_mul_scalar(x, 0.25), lks_diag(lks_full(lks_context_of(x), lks_dtype_of(x), 1, &n, 2), 0));
}
CALL(do_cholesky)
{
    NOT_USED;
    lks_tensor *x = well(in[0]);
    return lks_linalg_cholesky(lks_add(x, lks_transpose(x, -1, -2)), 0);
}
CALL(do_triangular_solve) { NOT_USED; return lks_triangular_solve(wide(in[1]), well(in[0]), 1, 1, 0); }
CALL(do_cholesky_solve) { NOT_USED; return lks_cholesky_solve(wide(in[1]), well(in[0]), 0); }
CALL(do_solve) { NOT_USED; return lks_linalg_solve(well(in[0]), wide(in[1])); }
CALL(do_inv) { NOT_USED; return lks_linalg_inv(well(in[0])); }
CALL(do_lu)
{
    NOT_USED;
    lks_tensor *lu = NULL;
    lks_linalg_lu_factor(well(in[0]), &lu, NULL);
    return lu;
}
CALL(do_lu_rectangle) /* far enough from an exchange of rows */
{
    NOT_USED;
    lks_tensor *lu = NULL, *x = lks_mul_scalar(wide(in[0]), 0.25);
    if (!x) return NULL;
    int64_t n = lks_dim(x, -2), m = lks_dim(x, -1), k = n < m ? n : m;
    lks_tensor *one = lks_diag(lks_full(ctx, lks_dtype_of(x), 1, &k, 2), 0);
    lks_tensor *part[2] = {one, lks_zeros(ctx, lks_dtype_of(x), 2, (int64_t[]){n > m ? n - k : k, n > m ? k : m - k})};
    if (!part[0] || !part[1]) return NULL;
    lks_linalg_lu_factor(lks_add(x, lks_cat(2, part, n > m ? 0 : 1)), &lu, NULL);
    return lu;
}
CALL(do_lu_solve)
{
    NOT_USED;
    lks_tensor *lu, *pivots;
    return lks_linalg_lu_factor(well(in[0]), &lu, &pivots) == LKS_OK ? lks_lu_solve(wide(in[1]), lu, pivots) : NULL;
}
CALL(do_qr)
{
    NOT_USED;
    lks_tensor *q, *r;
    if (lks_linalg_qr(wide(in[0]), LKS_QR_REDUCED, &q, &r) != LKS_OK) return NULL;
    lks_tensor *squares[2] = {lks_mul(q, q), lks_mul(r, r)}; /* whatever their signs */
    return squares[0] && squares[1] ? lks_cat(2, squares, -2) : NULL;
}
CALL(do_det) { NOT_USED; return lks_linalg_det(well(in[0])); }
CALL(do_slogdet)
{
    NOT_USED;
    lks_tensor *y = NULL;
    lks_linalg_slogdet(well(in[0]), NULL, &y);
    return y;
}
CALL(do_geqrf)
{
    NOT_USED;
    lks_tensor *a = NULL;
    lks_geqrf(wide(in[0]), &a, NULL);
    return a;
}
CALL(do_orgqr) { NOT_USED; return lks_orgqr(wide(in[0]), wide(in[1])); }
CALL(do_ormqr) { NOT_USED; return lks_ormqr(wide(in[0]), wide(in[1]), wide(in[2]), 1, 0); }
CALL(do_ormqr_right) { NOT_USED; return lks_ormqr(wide(in[0]), wide(in[1]), wide(in[2]), 0, 1); }
CALL(do_svdvals) { NOT_USED; return lks_linalg_svdvals(wide(in[0])); }
CALL(do_eigvalsh) {
    NOT_USED;
    lks_tensor *x = well(in[0]);
    return lks_linalg_eigvalsh(lks_add(x, lks_transpose(x, -1, -2)), 0);
}
CALL(do_eigvals) /* the sum of their squares, whatever their order */
{
    NOT_USED;
    lks_tensor *x = wide(in[0]), *apart = x ? lks_diag(lks_arange(lks_context_of(x), lks_dtype_of(x), 3), 0) : NULL;
    lks_tensor *w = lks_linalg_eigvals(lks_add(lks_mul_scalar(x, 0.125), apart));
    return pairs(lks_sum(lks_mul(w, w), 1, (int[]){-1}, 0, LKS_DTYPE_NONE));
}
CALL(do_lstsq)
{
    NOT_USED;
    lks_tensor *y = NULL;
    lks_linalg_lstsq(wide(in[0]), wide(in[1]), -1, &y, NULL, NULL);
    return y;
}
CALL(do_pinverse) { NOT_USED; return lks_pinverse(wide(in[0]), -1); }

/* --- formulas --- */

UNARY(expm1)
UNARY(log1p)
UNARY(log2)
UNARY(log10)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(abs)
UNARY(sign)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(sinh)
UNARY(cosh)
UNARY(erf)
UNARY(erfinv)
UNARY(silu)
UNARY(hardswish)
CALL(do_leaky_relu) { NOT_USED; return lks_leaky_relu(in[0], 0.125); }
CALL(do_elu) { NOT_USED; return lks_elu(in[0], 0.75); }
CALL(do_softplus) { NOT_USED; return lks_softplus(in[0], 1.5, 2); }
CALL(do_clamp) { NOT_USED; return lks_clamp(in[0], -0.7, 1.1); }
CALL(pow_cube) { NOT_USED; return lks_pow_scalar(in[0], 3); }
CALL(pow_square) { NOT_USED; return lks_pow_scalar(in[0], 2); }
CALL(pow_root) { NOT_USED; return lks_pow_scalar(in[0], -0.5); }
CALL(do_rpow) { NOT_USED; return lks_rpow(in[0], 1.75); }
CALL(do_rdiv) { NOT_USED; return lks_rdiv(in[0], 1.5); }
/* Steps so small that differences see none: what is left is the clamp, to between 1 and 1 + 1/32. */
#define LEVELS ((1LL << 48) + (1LL << 41))
CALL(do_fake_quantize) { NOT_USED; return lks_fake_quantize_per_tensor_affine(in[0], 0x1p-48, 0, -LEVELS, LEVELS); }
CALL(do_fake_quantize_backward)
{
    return row(ctx, LKSI_OP_fake_quantize_backward, 2, in,
               (lksi_attr){.quantize = {.scale = 0x1p-48, .min = -(double)LEVELS, .max = (double)LEVELS}});
}
BINARY(pow)
/* Shifted: in a tie the gradient is not differentiable. */
CALL(do_maximum) { NOT_USED; return lks_maximum(in[0], lks_add_scalar(in[1], 0.015625)); }
CALL(do_minimum) { NOT_USED; return lks_minimum(in[0], lks_add_scalar(in[1], 0.015625)); }
BINARY(atan2)
BINARY(prelu)
CALL(do_addcmul) { NOT_USED; return lks_addcmul(in[0], in[1], in[2], 0.5); }
CALL(do_addcdiv) { NOT_USED; return lks_addcdiv(in[0], in[1], in[2], -2); }
BACKWARD(silu_backward)
BACKWARD(hardswish_backward)
BACKWARD(prelu_weight_backward)
#define NUMBERS(name, p, q)                                                                                    \
    CALL(do_##name) { return row(ctx, LKSI_OP_##name, 2, in, (lksi_attr){.scalar = {.a = p, .b = q}}); }
NUMBERS(leaky_relu_backward, 0.125, 0)
NUMBERS(elu_backward, 0.75, 0)
NUMBERS(softplus_backward, 1.5, 2)
NUMBERS(clamp_backward, -0.7, 1.1)
CALL(do_larger_backward) { return row(ctx, LKSI_OP_larger_backward, 3, in, (lksi_attr){0}); }
CALL(do_prelu_backward) { return row(ctx, LKSI_OP_prelu_backward, 3, in, (lksi_attr){0}); }

/* --- reductions --- */

CALL(sum_all) { NOT_USED; return lks_sum(in[0], 0, NULL, 0, LKS_DTYPE_NONE); }
CALL(sum_1_keep) { NOT_USED; return lks_sum(in[0], 1, (int[]){1}, 1, LKS_DTYPE_NONE); }
CALL(sum_0) { NOT_USED; return lks_sum(in[0], 1, (int[]){0}, 0, LKS_DTYPE_NONE); }
CALL(sum_02) { NOT_USED; return lks_sum(in[0], 2, (int[]){0, -1}, 0, LKS_DTYPE_NONE); }
CALL(sum_wide) { NOT_USED; return lks_sum(in[0], 1, (int[]){0}, 0, LKS_F64); }
CALL(mean_all) { NOT_USED; return lks_mean(in[0], 0, NULL, 0, LKS_DTYPE_NONE); }
CALL(mean_1_keep) { NOT_USED; return lks_mean(in[0], 1, (int[]){1}, 1, LKS_DTYPE_NONE); }
CALL(mean_02) { NOT_USED; return lks_mean(in[0], 2, (int[]){2, 0}, 0, LKS_DTYPE_NONE); }
static lks_tensor *max_of(lks_tensor *x, int dim, int keep)
{
    lks_tensor *y;
    return lks_max(x, dim, keep, &y, NULL) == LKS_OK ? y : NULL;
}
CALL(max_1) { NOT_USED; return max_of(in[0], 1, 0); }
CALL(max_last_keep) { NOT_USED; return max_of(in[0], -1, 1); }
CALL(max_0) { NOT_USED; return max_of(in[0], 0, 0); }
CALL(max_every) { NOT_USED; return lks_max_all(in[0]); }
static lks_tensor *min_of(lks_tensor *x, int dim, int keep)
{
    lks_tensor *y;
    return lks_min(x, dim, keep, &y, NULL) == LKS_OK ? y : NULL;
}
CALL(min_1) { NOT_USED; return min_of(in[0], 1, 0); }
CALL(min_last_keep) { NOT_USED; return min_of(in[0], -1, 1); }
CALL(min_every) { NOT_USED; return lks_min_all(in[0]); }
#define OVER(name, ...)                                                                                        \
    CALL(name##_all) { NOT_USED; return lks_##name(in[0], 0, NULL, 0 __VA_ARGS__); }                           \
    CALL(name##_1_keep) { NOT_USED; return lks_##name(in[0], 1, (int[]){1}, 1 __VA_ARGS__); }                  \
    CALL(name##_02) { NOT_USED; return lks_##name(in[0], 2, (int[]){2, 0}, 0 __VA_ARGS__); }
OVER(var, , 1)
OVER(std, , 0)
OVER(prod, , LKS_DTYPE_NONE)
OVER(amax)
OVER(amin)
OVER(logsumexp)
CALL(prod_0) { NOT_USED; return lks_prod(in[0], 1, (int[]){0}, 0, LKS_DTYPE_NONE); }
CALL(var_0) { NOT_USED; return lks_var(in[0], 1, (int[]){0}, 0, 1); }
CALL(norm_2) { NOT_USED; return lks_norm(in[0], 2, 0, NULL, 0); }
CALL(norm_2_0) { NOT_USED; return lks_norm(in[0], 2, 1, (int[]){0}, 0); }
CALL(norm_1) { NOT_USED; return lks_norm(in[0], 1, 1, (int[]){1}, 1); }
CALL(norm_3) { NOT_USED; return lks_norm(in[0], 3, 2, (int[]){0, 2}, 0); }
CALL(norm_half) { NOT_USED; return lks_norm(in[0], 0.5, 1, (int[]){1}, 0); }
CALL(norm_0) { NOT_USED; return lks_norm(in[0], 0, 1, (int[]){1}, 0); }
CALL(norm_top) { NOT_USED; return lks_norm(in[0], INFINITY, 1, (int[]){1}, 0); }
CALL(norm_least) { NOT_USED; return lks_norm(in[0], -INFINITY, 1, (int[]){1}, 0); }
CALL(do_dist) { NOT_USED; return lks_dist(in[0], in[1], 2); }
CALL(do_renorm) { NOT_USED; return lks_renorm(in[0], 2, 0, 1.5); }
CALL(normalize_1) { NOT_USED; return lks_normalize(in[0], 2, 1, 1e-12); }
CALL(cosine_1) { NOT_USED; return lks_cosine_similarity(in[0], in[1], 1, 1e-8); }
CALL(cumsum_1) { NOT_USED; return lks_cumsum(in[0], 1, LKS_DTYPE_NONE); }
CALL(cumsum_last) { NOT_USED; return lks_cumsum(in[0], -1, LKS_DTYPE_NONE); }
CALL(cumprod_1) { NOT_USED; return lks_cumprod(in[0], 1, LKS_DTYPE_NONE); }
CALL(cumprod_last) { NOT_USED; return lks_cumprod(in[0], -1, LKS_DTYPE_NONE); }
CALL(cumprod_back_to_front)
{
    return row(ctx, LKSI_OP_cumprod, 1, in, (lksi_attr){.scan = {.dim = 0, .reverse = 1, .dtype = LKS_DTYPE_NONE}});
}
CALL(recur_1) { NOT_USED; return lks_recurrence(in[0], in[1], 1, 0); }
CALL(recur_last) { NOT_USED; return lks_recurrence(in[0], in[1], -1, 1); }
CALL(index_fill_5)
{
    return row(ctx, LKSI_OP_index_fill_backward, 2, in, (lksi_attr){.slice = {.dim = 1, .size = 5}});
}

/* --- products --- */

BINARY(matmul)
CALL(matmul_self) { NOT_USED; return lks_matmul(in[0], in[0]); }
CALL(do_linear) { NOT_USED; return lks_linear(in[0], in[1], in[2]); }
CALL(linear_plain) { NOT_USED; return lks_linear(in[0], in[1], LKS_NONE); }

BINARY(mv)
BINARY(dot)
CALL(do_addmm) { NOT_USED; return lks_addmm(in[2], in[0], in[1], 0.5, -2); }
CALL(addmm_plain) { NOT_USED; return lks_addmm(in[2], in[0], in[1], 1, 1); }
CALL(addmm_alone) { NOT_USED; return lks_addmm(LKS_NONE, in[0], in[1], 1, 3); }
CALL(do_baddbmm) { NOT_USED; return lks_baddbmm(in[2], in[0], in[1], -1, 0.5); }
CALL(do_addbmm) { NOT_USED; return lks_addbmm(in[2], in[0], in[1], 2, 0.5); }
CALL(do_addmv) { NOT_USED; return lks_addmv(in[2], in[0], in[1], 0.5, 2); }
CALL(do_addr) { NOT_USED; return lks_addr(in[2], in[0], in[1], 0.5, 2); }
CALL(vecdot_1) { NOT_USED; return lks_linalg_vecdot(in[0], in[1], 1); }
CALL(vecdot_last) { NOT_USED; return lks_linalg_vecdot(in[0], in[1], -1); }
CALL(do_bilinear) { NOT_USED; return lks_bilinear(in[0], in[1], in[2], in[3]); }
CALL(bilinear_plain) { NOT_USED; return lks_bilinear(in[0], in[1], in[2], LKS_NONE); }
CALL(contract) { NOT_USED; return lks_tensordot(in[0], in[1], 2, (int[]){2, 0}, (int[]){0, 1}); }
CALL(chain_of_4) { NOT_USED; return lks_multi_dot(4, in); }

/* --- convolution, pooling --- */

CALL(conv_plain) { NOT_USED; return lks_conv2d(in[0], in[1], LKS_NONE, NULL, NULL, NULL, 1); }
CALL(conv_groups)
{
    NOT_USED;
    return lks_conv2d(in[0], in[1], in[2], (int64_t[]){2, 1}, (int64_t[]){1, 2}, NULL, 2);
}
CALL(conv_dilated)
{
    NOT_USED;
    return lks_conv2d(in[0], in[1], in[2], NULL, (int64_t[]){1, 1}, (int64_t[]){1, 2}, 1);
}
CALL(conv_depthwise) { NOT_USED; return lks_conv2d(in[0], in[1], in[2], NULL, (int64_t[]){1, 1}, NULL, 3); }
static const lksi_attr conv_attr = {
    .conv = {.stride = {1, 2, 1}, .padding = {0, 1, 0}, .dilation = {1, 1, 1}, .groups = 1}};
CALL(conv_back_input)
{
    lksi_attr a = conv_attr;
    memcpy(a.conv.size, (int64_t[]){2, 2, 4, 4}, 4 * sizeof *a.conv.size);
    return row(ctx, LKSI_OP_conv_backward_input, 2, in, a);
}
CALL(conv_back_weight)
{
    lksi_attr a = conv_attr;
    memcpy(a.conv.size, (int64_t[]){3, 2, 3, 2}, 4 * sizeof *a.conv.size);
    return row(ctx, LKSI_OP_conv_backward_weight, 2, in, a);
}
#define PAIR(a, b) (int64_t[]){a, b}
#define TRIPLE(a, b, c) (int64_t[]){a, b, c}
CALL(conv1_same) { NOT_USED; return lks_conv1d(in[0], in[1], in[2], NULL, PAIR(LKS_SAME, 0), PAIR(3, 0), 1); }
CALL(conv1_groups) { NOT_USED; return lks_conv1d(in[0], in[1], LKS_NONE, PAIR(2, 0), PAIR(1, 0), NULL, 2); }
CALL(conv3_plain) { NOT_USED; return lks_conv3d(in[0], in[1], in[2], NULL, TRIPLE(1, 1, 0), NULL, 1); }
CALL(conv3_groups)
{
    NOT_USED;
    return lks_conv3d(in[0], in[1], in[2], TRIPLE(2, 1, 2), TRIPLE(2, 0, 1), TRIPLE(1, 2, 1), 2);
}
CALL(transposed1)
{
    NOT_USED;
    return lks_conv_transpose1d(in[0], in[1], in[2], PAIR(3, 0), PAIR(1, 0), PAIR(2, 0), 1, PAIR(2, 0));
}
CALL(transposed2) { NOT_USED; return lks_conv_transpose2d(in[0], in[1], in[2], NULL, NULL, NULL, 2, NULL); }
CALL(transposed2_wide)
{
    NOT_USED;
    return lks_conv_transpose2d(in[0], in[1], LKS_NONE, PAIR(2, 1), PAIR(1, 1), PAIR(1, 1), 1, PAIR(1, 2));
}
CALL(transposed3)
{
    NOT_USED;
    return lks_conv_transpose3d(in[0], in[1], in[2], TRIPLE(2, 1, 2), TRIPLE(1, 0, 0), TRIPLE(1, 0, 0), 1, NULL);
}
CALL(tbc) { NOT_USED; return lks_conv_tbc(in[0], in[1], in[2], 1); }
static lksi_attr conv3_attr(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e)
{
    return (lksi_attr){.conv = {.stride = {1, 2, 1}, .padding = {1, 1, 0}, .dilation = {1, 1, 1}, .groups = 1,
                                .size = {a, b, c, d, e}}};
}
CALL(conv3_back_input) { return row(ctx, LKSI_OP_conv_backward_input, 2, in, conv3_attr(1, 2, 2, 4, 3)); }
CALL(conv3_back_weight) { return row(ctx, LKSI_OP_conv_backward_weight, 2, in, conv3_attr(3, 2, 2, 3, 2)); }

/* --- pooling --- */

static lks_tensor *max_windows(lks_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                               const int64_t *dilation, int ceil)
{
    lks_tensor *y;
    return lks_max_pool(x, kernel, stride, padding, dilation, ceil, &y, NULL) == LKS_OK ? y : NULL;
}
CALL(max1) { NOT_USED; return max_windows(in[0], PAIR(3, 0), PAIR(2, 0), PAIR(1, 0), PAIR(2, 0), 0); }
CALL(max3) { NOT_USED; return max_windows(in[0], TRIPLE(2, 2, 3), TRIPLE(1, 2, 2), TRIPLE(1, 0, 1), NULL, 1); }
CALL(max_adaptive)
{
    lks_tensor *y;
    NOT_USED;
    return lks_adaptive_max_pool(in[0], TRIPLE(2, 3, 2), &y, NULL) == LKS_OK ? y : NULL;
}
CALL(max_fractional)
{
    lks_tensor *y;
    NOT_USED;
    return lks_fractional_max_pool(in[0], TRIPLE(2, 2, 2), TRIPLE(2, 3, 2), in[1], &y, NULL) == LKS_OK ? y : NULL;
}
CALL(avg_plain) { NOT_USED; return lks_avg_pool(in[0], TRIPLE(2, 3, 2), NULL, NULL, 0, 1, 0); }
CALL(avg_padded) { NOT_USED; return lks_avg_pool(in[0], TRIPLE(3, 2, 3), TRIPLE(2, 2, 2), TRIPLE(1, 1, 1), 1, 0, 0); }
CALL(avg_counted) { NOT_USED; return lks_avg_pool(in[0], TRIPLE(3, 2, 3), TRIPLE(2, 2, 2), TRIPLE(1, 1, 1), 1, 1, 0); }
CALL(avg_divided) { NOT_USED; return lks_avg_pool(in[0], TRIPLE(2, 2, 2), TRIPLE(1, 2, 1), NULL, 0, 1, 3); }
CALL(avg_adaptive) { NOT_USED; return lks_adaptive_avg_pool(in[0], TRIPLE(2, 3, 2)); }
CALL(avg_whole) { NOT_USED; return lks_adaptive_avg_pool(in[0], TRIPLE(1, 1, 1)); }
static lksi_attr plane_attr(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (lksi_attr){.pool = {.kernel = {1, 2, 2}, .stride = {1, 2, 1}, .dilation = {1, 1, 1}, .size = {a, b, c, d}}};
}
CALL(pool_back) { return row(ctx, LKSI_OP_max_pool_backward, 2, in, plane_attr(2, 2, 3, 4)); }
CALL(pool_gather) { return row(ctx, LKSI_OP_max_pool_gather, 2, in, plane_attr(2, 2, 3, 4)); }
CALL(avg_back) { return row(ctx, LKSI_OP_avg_pool_backward, 1, in, plane_attr(2, 2, 5, 4)); }
/* Places that a pooling of another tensor chose: no two alike. */
static lks_tensor *unpooled(lks_tensor *x, lks_tensor *from, const int64_t *size)
{
    lks_tensor *y, *at;
    if (lks_max_pool(from, TRIPLE(2, 2, 2), NULL, NULL, NULL, 0, &y, &at) != LKS_OK) return NULL;
    return lks_max_unpool(x, at, size);
}
CALL(unpool) { NOT_USED; return unpooled(in[0], in[1], TRIPLE(4, 4, 4)); }
CALL(unpool_larger) { NOT_USED; return unpooled(in[0], in[1], TRIPLE(5, 6, 4)); }
CALL(reflected) { NOT_USED; return lks_reflection_pad(in[0], TRIPLE(1, 2, 1), TRIPLE(2, 1, 0)); }
CALL(replicated) { NOT_USED; return lks_replication_pad(in[0], TRIPLE(3, 0, 1), TRIPLE(1, 4, 2)); }
CALL(edge_back)
{
    return row(ctx, LKSI_OP_edge_pad_backward, 1, in,
               (lksi_attr){.edge = {.before = {0, 1, 2}, .after = {0, 1, 0}, .size = {2, 2, 3, 3}, .reflect = 1}});
}
/* Odd sizes without align_corners: no place of IN_AWAY lies where a bilinear mean has a corner. */
static lks_tensor *sampled(lks_tensor *const *in, int mode, int padding, int align)
{
    return lks_grid_sample(in[0], in[1], mode, padding, align);
}
CALL(grid_zeros) { NOT_USED; return sampled(in, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_ZEROS, 0); }
CALL(grid_border) { NOT_USED; return sampled(in, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_BORDER, 0); }
CALL(grid_mirror) { NOT_USED; return sampled(in, LKS_SAMPLE_BILINEAR, LKS_SAMPLE_REFLECTION, 0); }
CALL(grid_nearest) { NOT_USED; return sampled(in, LKS_SAMPLE_NEAREST, LKS_SAMPLE_BORDER, 0); }
CALL(grid_cubic) { NOT_USED; return sampled(in, LKS_SAMPLE_BICUBIC, LKS_SAMPLE_ZEROS, 1); }
CALL(grid_cubic_mirror) { NOT_USED; return sampled(in, LKS_SAMPLE_BICUBIC, LKS_SAMPLE_REFLECTION, 0); }
CALL(pool_2) { NOT_USED; return lks_max_pool2d(in[0], (int64_t[]){2, 2}, NULL, NULL); }
CALL(pool_3)
{
    NOT_USED;
    return lks_max_pool2d(in[0], (int64_t[]){3, 2}, (int64_t[]){2, 1}, (int64_t[]){1, 1});
}

/* --- normalisation --- */

CALL(layer_norm_1) { NOT_USED; return lks_layer_norm(in[0], 1, in[1], in[2], 1e-3); }
CALL(layer_norm_2) { NOT_USED; return lks_layer_norm(in[0], 2, in[1], in[2], 1e-3); }
CALL(layer_norm_bare) { NOT_USED; return lks_layer_norm(in[0], 1, LKS_NONE, LKS_NONE, 1e-3); }
CALL(layer_norm_bias) { NOT_USED; return lks_layer_norm(in[0], 1, LKS_NONE, in[1], 1e-3); }
CALL(layer_norm_weight) { NOT_USED; return lks_layer_norm(in[0], 1, in[1], LKS_NONE, 1e-3); }
CALL(rms_norm_1) { NOT_USED; return lks_rms_norm(in[0], 1, in[1], 1e-3); }
CALL(rms_norm_2) { NOT_USED; return lks_rms_norm(in[0], 2, in[1], 1e-3); }
CALL(rms_norm_bare) { NOT_USED; return lks_rms_norm(in[0], 1, LKS_NONE, 1e-3); }
CALL(group_norm_2) { NOT_USED; return lks_group_norm(in[0], 2, in[1], in[2], 1e-3); }
CALL(group_norm_bare) { NOT_USED; return lks_group_norm(in[0], 1, LKS_NONE, LKS_NONE, 1e-3); }
CALL(group_norm_each) { NOT_USED; return lks_group_norm(in[0], 3, in[1], LKS_NONE, 1e-3); }
CALL(batch_norm_sync)
{
    NOT_USED;
    return lks_sync_batch_norm(in[0], in[1], in[2], LKS_NONE, LKS_NONE, 0.1, 1e-3);
}
CALL(batch_norm_train)
{
    NOT_USED;
    return lks_batch_norm(in[0], in[1], in[2], LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-3);
}
CALL(batch_norm_bare)
{
    NOT_USED;
    return lks_batch_norm(in[0], LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, LKS_NONE, 1, 0.1, 1e-3);
}
CALL(batch_norm_eval)
{
    NOT_USED;
    return lks_batch_norm(in[0], in[1], in[2], in[3], in[4], LKS_NONE, LKS_NONE, 0, 0.1, 1e-3);
}

/* --- softmax, losses --- */

CALL(softmax_last) { NOT_USED; return lks_softmax(in[0], -1); }
CALL(softmax_1) { NOT_USED; return lks_softmax(in[0], 1); }
CALL(log_softmax_last) { NOT_USED; return lks_log_softmax(in[0], -1); }
CALL(log_softmax_1) { NOT_USED; return lks_log_softmax(in[0], 1); }
CALL(softmax_back) { return row(ctx, LKSI_OP_softmax_backward, 2, in, (lksi_attr){.dim = {.dim = 1}}); }
CALL(log_softmax_back) { return row(ctx, LKSI_OP_log_softmax_backward, 2, in, (lksi_attr){.dim = {.dim = 1}}); }
CALL(loss_mean) { NOT_USED; return lks_cross_entropy(in[0], in[1], LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN); }
CALL(loss_sum) { NOT_USED; return lks_cross_entropy(in[0], in[1], LKS_IGNORE_INDEX, 0.125, LKS_REDUCTION_SUM); }
CALL(loss_none) { NOT_USED; return lks_cross_entropy(in[0], in[1], LKS_IGNORE_INDEX, 0.25, LKS_REDUCTION_NONE); }

CALL(loss_weighted) { NOT_USED; return lks_cross_entropy_weighted(in[0], in[1], in[2], LKS_IGNORE_INDEX, 0.125, 1); }
CALL(soft_mean) { NOT_USED; return lks_cross_entropy(in[0], in[1], LKS_IGNORE_INDEX, 0, LKS_REDUCTION_MEAN); }
CALL(soft_weighted) { NOT_USED; return lks_cross_entropy_weighted(in[0], in[1], in[2], LKS_IGNORE_INDEX, 0.125, 0); }
CALL(nll_mean) { NOT_USED; return lks_nll_loss(in[0], in[1], LKS_NONE, LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN); }
CALL(nll_weighted) { NOT_USED; return lks_nll_loss(in[0], in[1], in[2], LKS_IGNORE_INDEX, LKS_REDUCTION_MEAN); }
CALL(nll_none) { NOT_USED; return lks_nll_loss(in[0], in[1], in[2], LKS_IGNORE_INDEX, LKS_REDUCTION_NONE); }
CALL(nll_back)
{
    return row(ctx, LKSI_OP_nll_loss_backward, 4, (lks_tensor *[]){in[0], in[1], in[2], LKS_NONE},
               (lksi_attr){.loss = {.ignore_index = LKS_IGNORE_INDEX, .classes = 5, .dtype = LKS_DTYPE_NONE}});
}
/* Each pointwise loss with every reduction: NAME_0 none, NAME_1 mean, NAME_2 sum. */
#define POINT(name, ...)                                                                                       \
    CALL(name##_0) { NOT_USED; enum { R = 0 }; return lks_##name(__VA_ARGS__); }                               \
    CALL(name##_1) { NOT_USED; enum { R = 1 }; return lks_##name(__VA_ARGS__); }                               \
    CALL(name##_2) { NOT_USED; enum { R = 2 }; return lks_##name(__VA_ARGS__); }
POINT(mse_loss, in[0], in[1], R)
POINT(l1_loss, in[0], in[1], R)
POINT(smooth_l1_loss, in[0], in[1], 0.8125, R)
POINT(huber_loss, in[0], in[1], 0.8125, R)
POINT(binary_cross_entropy, in[0], in[1], LKS_NONE, R)
POINT(binary_cross_entropy_with_logits, in[0], in[1], LKS_NONE, LKS_NONE, R)
POINT(kl_div, in[0], in[1], 0, R)
POINT(poisson_nll_loss, in[0], in[1], 0, 0, 0.125, R)
POINT(hinge_embedding_loss, in[0], in[1], 0.7, R)
POINT(margin_ranking_loss, in[0], in[1], in[2], 0.7, R)
POINT(soft_margin_loss, in[0], in[1], R)
CALL(bce_weighted) { NOT_USED; return lks_binary_cross_entropy(in[0], in[1], in[2], 1); }
CALL(logits_weighted) { NOT_USED; return lks_binary_cross_entropy_with_logits(in[0], in[1], in[2], in[3], 1); }
CALL(kl_log) { NOT_USED; return lks_kl_div(in[0], in[1], 1, LKS_REDUCTION_BATCHMEAN); }
CALL(poisson_log_full) { NOT_USED; return lks_poisson_nll_loss(in[0], in[1], 1, 1, 0, 1); }
CALL(poisson_full) { NOT_USED; return lks_poisson_nll_loss(in[0], in[1], 0, 1, 0, 0); }
CALL(cosine_row) { return row(ctx, LKSI_OP_cosine_margin, 2, in, (lksi_attr){.loss = {.a = 0.19, .reduction = 1}}); }
CALL(slope_of)
{
    return row(ctx, LKSI_OP_loss_slope, 3, in,
               (lksi_attr){.loss = {.kind = LKSI_LOSS_mse_loss, .order = LKSI_LOSS_X, .divisor = 3, .dtype = -1}});
}
CALL(cosine_mean) { NOT_USED; return lks_cosine_embedding_loss(in[0], in[1], in[2], 0.1, LKS_REDUCTION_MEAN); }
CALL(triplet_2) { NOT_USED; return lks_triplet_margin_loss(in[0], in[1], in[2], 1.5, 2, 1e-6, 0, LKS_REDUCTION_MEAN); }
CALL(triplet_3) { NOT_USED; return lks_triplet_margin_loss(in[0], in[1], in[2], 1.5, 3, 1e-6, 1, LKS_REDUCTION_NONE); }
CALL(margin_1) { NOT_USED; return lks_multi_margin_loss(in[0], in[1], LKS_NONE, 1, 0.9, LKS_REDUCTION_MEAN); }
CALL(margin_2) { NOT_USED; return lks_multi_margin_loss(in[0], in[1], in[2], 2, 0.9, LKS_REDUCTION_NONE); }
static lks_tensor *with_end(lks_tensor *index) /* a list of classes that ends after the first two */
{
    int64_t n = lks_shape(index)[1];
    lks_context *ctx = lks_context_of(index);
    lks_tensor *late = lks_gt(lks_arange(ctx, LKS_I64, n), lks_full(ctx, LKS_I64, 0, NULL, 1));
    return lks_where(late, lks_full(ctx, LKS_I64, 0, NULL, -1), index);
}
CALL(labels_mean) { NOT_USED; return lks_multilabel_margin_loss(in[0], with_end(in[1]), LKS_REDUCTION_MEAN); }
CALL(labels_none) { NOT_USED; return lks_multilabel_margin_loss(in[0], in[1], LKS_REDUCTION_NONE); }
/* log_probs [T, N, C] need not be normalised; labels 1 to 4, lengths that vary. */
static lks_tensor *ctc_of(lks_context *ctx, lks_tensor *const *in, int reduction)
{
    lks_tensor *sample = lks_arange(ctx, LKS_I64, lks_shape(in[0])[1]);
    lks_tensor *il = lks_affine(sample, -1, (double)lks_shape(in[0])[0]);
    lks_tensor *tl = lks_affine(sample, -1, (double)lks_shape(in[1])[1]);
    return lks_ctc_loss(in[0], lks_affine(in[1], 1, 1), il, tl, 0, 0, reduction);
}
CALL(ctc_mean) { return ctc_of(ctx, in, LKS_REDUCTION_MEAN); }
CALL(ctc_none) { return ctc_of(ctx, in, LKS_REDUCTION_NONE); }

/* --- indexing, joining --- */

CALL(do_embedding) { NOT_USED; return lks_embedding(in[0], in[1]); }
CALL(embedding_back)
{
    return row(ctx, LKSI_OP_embedding_backward, 2, in, (lksi_attr){.embedding = {.rows = 5}});
}
CALL(cat_1) { NOT_USED; return lks_cat(3, in, 1); }
CALL(cat_0) { NOT_USED; return lks_cat(2, in, 0); }
CALL(cat_many)
{
    NOT_USED;
    lks_tensor *x[20];
    for (int i = 0; i < 20; i++) x[i] = in[i % 2];
    return lks_cat(20, x, -1);
}

CALL(stack_1) { NOT_USED; return lks_stack(2, in, 1); }
CALL(gather_0) { NOT_USED; return lks_gather(in[0], 0, in[1]); }
CALL(gather_last) { NOT_USED; return lks_gather(in[0], -1, in[1]); }
CALL(select_0) { NOT_USED; return lks_index_select(in[0], 0, in[1]); }
CALL(select_last) { NOT_USED; return lks_index_select(in[0], -1, in[1]); }
CALL(scatter_0) { NOT_USED; return lks_scatter(in[0], 0, in[1], in[2]); }
CALL(scatter_last) { NOT_USED; return lks_scatter(in[0], -1, in[1], in[2]); }
CALL(scatter_number) { NOT_USED; return lks_scatter_value(in[0], 0, in[1], 3); }
CALL(index_copy_0) { NOT_USED; return lks_index_copy(in[0], 0, in[1], in[2]); }
CALL(scatter_add_0) { NOT_USED; return lks_scatter_add(in[0], 0, in[1], in[2]); }
CALL(scatter_add_last) { NOT_USED; return lks_scatter_add(in[0], -1, in[1], in[2]); }
CALL(index_add_0) { NOT_USED; return lks_index_add(in[0], 0, in[1], in[2], 2); }
CALL(index_1) { NOT_USED; return lks_index(in[0], 1, in + 1); }
CALL(index_2) { NOT_USED; return lks_index(in[0], 2, in + 1); }
CALL(index_apart) { NOT_USED; return lks_index(in[0], 3, (lks_tensor *[]){in[1], LKS_NONE, in[2]}); }
CALL(index_behind) { NOT_USED; return lks_index(in[0], 3, (lks_tensor *[]){LKS_NONE, in[1], in[2]}); }
CALL(index_put_2) { NOT_USED; return lks_index_put(in[0], 2, in + 2, in[1], 0); }
CALL(index_put_add) { NOT_USED; return lks_index_put(in[0], 2, in + 2, in[1], 1); }
CALL(index_put_row) { NOT_USED; return lks_index_put(in[0], 1, in + 2, in[1], 1); }
CALL(index_put_behind) { NOT_USED; return lks_index_put(in[0], 2, (lks_tensor *[]){LKS_NONE, in[2]}, in[1], 0); }
CALL(do_pad) { NOT_USED; return lks_pad(in[0], 4, (int64_t[]){1, 2, -1, 1}, 0.5); }
CALL(pad_cut) { NOT_USED; return lks_pad(in[0], 2, (int64_t[]){-1, -1}, 0); }
CALL(do_triu) { NOT_USED; return lks_triu(in[0], 1); }
CALL(do_tril) { NOT_USED; return lks_tril(in[0], -1); }
CALL(flip_all)
{
    NOT_USED;
    int dims[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    return lks_flip(in[0], lks_ndim(in[0]), dims);
}
CALL(flip_0) { NOT_USED; return lks_flip(in[0], 1, (int[]){0}); }
CALL(roll_2) { NOT_USED; return lks_roll(in[0], 2, (int64_t[]){1, -2}, (int[]){0, 1}); }
CALL(repeat_2) { NOT_USED; return lks_repeat(in[0], 3, (int64_t[]){2, 1, 3}); }
CALL(diagonal_1) { NOT_USED; return lks_diagonal(in[0], 1, 0, -1); }
CALL(diagonal_back) { NOT_USED; return lks_diagonal(in[0], -1, 0, 1); }
CALL(embed_1) { NOT_USED; return lks_diag_embed(in[0], 1, 0, -1); }
CALL(do_trace) { NOT_USED; return lks_trace(in[0]); }
CALL(cross_1) { NOT_USED; return lks_cross(in[0], in[1], 1); }
CALL(cross_last) { NOT_USED; return lks_cross(in[0], in[1], -1); }
static lks_tensor *sorted(lks_tensor *x, int64_t k, int dim, int falling)
{
    lks_tensor *y;
    lks_status s = k < 0 ? lks_sort(x, dim, falling, &y, NULL) : lks_topk(x, k, dim, falling, &y, NULL);
    return s == LKS_OK ? y : NULL;
}
CALL(sort_last) { NOT_USED; return sorted(in[0], -1, -1, 0); }
CALL(sort_0) { NOT_USED; return sorted(in[0], -1, 0, 1); }
CALL(top_2) { NOT_USED; return sorted(in[0], 2, 1, 1); }
CALL(quantile_1) { NOT_USED; return lks_quantile(in[0], 1, (double[]){0.3}, 1, 1, LKS_QUANTILE_LINEAR); }
CALL(quantiles_0) { NOT_USED; return lks_quantile(in[0], 3, (double[]){0, 0.4, 1}, 0, 0, LKS_QUANTILE_LINEAR); }
CALL(nanquantile_all)
{
    NOT_USED;
    return lks_nanquantile(in[0], 1, (double[]){0.6}, LKS_DIM_ALL, 0, LKS_QUANTILE_MIDPOINT);
}
CALL(cdist_2) { NOT_USED; return lks_cdist(in[0], in[1], 2); }
CALL(cdist_1) { NOT_USED; return lks_cdist(in[0], in[1], 1); }
CALL(cdist_3) { NOT_USED; return lks_cdist(in[0], in[1], 3.5); }
CALL(cdist_inf) { NOT_USED; return lks_cdist(in[0], in[1], INFINITY); }
CALL(cdist_0) { NOT_USED; return lks_cdist(in[0], in[1], 0); }
CALL(pdist_2) { NOT_USED; return lks_pdist(in[0], 2); }
CALL(pdist_1) { NOT_USED; return lks_pdist(in[0], 1.5); }

/* --- attention --- */

CALL(attend) { NOT_USED; return lks_scaled_dot_product_attention(in[0], in[1], in[2], LKS_NONE, 0, 0, 0); }
CALL(attend_causal) { NOT_USED; return lks_scaled_dot_product_attention(in[0], in[1], in[2], LKS_NONE, 0, 1, 0.75); }
CALL(attend_masked) { NOT_USED; return lks_scaled_dot_product_attention(in[0], in[1], in[2], in[3], 0, 0, 0); }
CALL(attend_dropout)
{
    lks_random_rows(ctx, 0, 0);
    return lks_scaled_dot_product_attention(in[0], in[1], in[2], LKS_NONE, 0.25, 1, 0);
}

#define T(kind, ...) {kind, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}, 5}
#define SCALAR(kind) {kind, 0, {0}, 5}
#define N(...) {__VA_ARGS__}, (int)(sizeof((sample_input[]){__VA_ARGS__}) / sizeof(sample_input))
#define ALL_SHAPES(row, call, kind, flags)                                                                     \
    {row, "4-D", call, flags, N(T(kind, 2, 3, 2, 2))}, {row, "0-dim", call, flags, N(SCALAR(kind))},           \
        {row, "empty", call, flags, N(T(kind, 3, 0))}, {row, "large", call, flags | LARGE, N(T(kind, 65, 1025))}
#define BOTH_SHAPES(row, call, one, two)                                                                       \
    {row, "alike", call, ROUGH, N(T(one, 2, 3, 2, 2), T(two, 2, 3, 2, 2))},                                    \
        {row, "row", call, ROUGH, N(T(one, 3, 4), T(two, 4))},                                                 \
        {row, "outer", call, ROUGH, N(T(one, 2, 1, 4), T(two, 3, 1))},                                         \
        {row, "channels", call, ROUGH, N(T(one, 2, 3, 2, 2), T(two, 1, 3, 1, 1))},                             \
        {row, "0-dim first", call, ROUGH, N(SCALAR(one), T(two, 3, 2))},                                       \
        {row, "0-dim both", call, ROUGH, N(SCALAR(one), SCALAR(two))},                                         \
        {row, "empty", call, ROUGH, N(T(one, 4, 0), T(two, 4, 1))},                                            \
        {row, "large", call, ROUGH | LARGE, N(T(one, 130, 1025), T(two, 130, 1))}

CALL(mha_self)
{
    lks_tensor *y[2] = {NULL, NULL}, *mask = lks_tril(lks_full(ctx, LKS_BOOL, 2, (int64_t[]){3, 3}, 1), 0);
    if (lks_multi_head_attention(in[0], in[0], in[0], 2, in[1], in[2], in[3], in[4], mask, 0, 0, &y[0], &y[1]))
        return NULL;
    return lks_cat(2, (lks_tensor *[]){lks_flatten(y[0], 0, -1), lks_flatten(y[1], 0, -1)}, 0);
}
CALL(mha_cross)
{
    NOT_USED;
    lks_tensor *y = NULL;
    lks_status s = lks_multi_head_attention(in[0], in[1], in[2], 1, in[3], LKS_NONE, in[4], LKS_NONE, in[5], 1, 0, &y,
                                            NULL);
    return s == LKS_OK ? y : NULL;
}

/* --- recurrent layers --- */

/* in: gates, w_hh, b_hh, h0, c0 (lstm), then lengths if there is one more. */
static lks_tensor *states_of(lks_context *ctx, lks_tensor *const *in, int kind, int reverse, lks_tensor *lengths)
{
    lks_tensor *all[6] = {in[0], in[1], in[2], in[3], kind == LKSI_RNN_LSTM ? in[4] : LKS_NONE, lengths};
    lks_tensor *out[2] = {NULL, NULL};
    lksi_attr attr = {.rnn = {.kind = kind, .reverse = reverse, .save = 1}};
    return lksi_call(ctx, "rnn_steps", LKSI_OP_rnn_steps, 6, all, &attr, 2, out) == LKS_OK ? out[0] : NULL;
}
CALL(steps_tanh) { return states_of(ctx, in, LKSI_RNN_TANH, 0, LKS_NONE); }
CALL(steps_relu) { return states_of(ctx, in, LKSI_RNN_RELU, 1, LKS_NONE); }
CALL(steps_gru) { return states_of(ctx, in, LKSI_RNN_GRU, 0, in[4]); }
CALL(steps_gru_back) { return states_of(ctx, in, LKSI_RNN_GRU, 1, LKS_NONE); }
CALL(steps_lstm) { return states_of(ctx, in, LKSI_RNN_LSTM, 0, LKS_NONE); }
CALL(steps_lstm_lengths) { return states_of(ctx, in, LKSI_RNN_LSTM, 0, in[5]); }
CALL(steps_lstm_back) { return states_of(ctx, in, LKSI_RNN_LSTM, 1, in[5]); }
CALL(steps_batch_first)
{
    lks_tensor *swapped[5] = {lks_transpose(in[0], 0, 1), in[1], in[2], in[3], in[4]};
    return states_of(ctx, swapped, LKSI_RNN_LSTM, 0, LKS_NONE);
}
static lks_tensor *all_of(int n, lks_tensor *const *y)
{
    lks_tensor *flat[3];
    for (int i = 0; i < n; i++) flat[i] = lks_flatten(y[i], 0, -1);
    return lks_cat(n, flat, 0);
}
/* Both directions with the same weights; h0 [2, N, H]. */
static lks_tensor *both_ways(lks_tensor *const *in, int relu, int gru)
{
    lks_tensor *w[8] = {in[2], in[3], in[4], in[5], in[2], in[3], in[4], in[5]}, *y[2] = {NULL, NULL};
    lks_status s = gru ? lks_gru(in[0], in[1], LKS_NONE, 8, w, 1, 1, 0, &y[0], &y[1])
                       : lks_rnn(in[0], in[1], LKS_NONE, 8, w, relu, 1, 1, 0, &y[0], &y[1]);
    return s == LKS_OK ? all_of(2, y) : NULL;
}
CALL(rnn_both) { NOT_USED; return both_ways(in, 0, 0); }
CALL(gru_both) { NOT_USED; return both_ways(in, 0, 1); }
CALL(lstm_one)
{
    NOT_USED;
    lks_tensor *y[3] = {NULL, NULL, NULL};
    return lks_lstm(in[0], in[1], in[2], LKS_NONE, 4, in + 3, 0, 0, 0, &y[0], &y[1], &y[2]) == LKS_OK ? all_of(3, y)
                                                                                                      : NULL;
}
/* Two layers with dropout, lengths, no biases; the second layer's weights are the first's. */
CALL(lstm_deep)
{
    lks_tensor *w[8] = {in[2], in[3], LKS_NONE, LKS_NONE, in[2], in[3], LKS_NONE, LKS_NONE}, *y[3] = {NULL, NULL, NULL};
    lks_tensor *lengths = lks_from_host(ctx, LKS_I64, 1, (int64_t[]){2}, (int64_t[]){2, 4});
    lks_random_rows(ctx, 0, 0);
    return lks_lstm(in[0], in[1], LKS_NONE, lengths, 8, w, 0, 0, 0.25, &y[0], &y[1], &y[2]) == LKS_OK ? all_of(3, y)
                                                                                                      : NULL;
}
CALL(do_rnn_cell) { NOT_USED; return lks_rnn_cell(in[0], in[1], in[2], in[3], in[4], in[5], 0); }
CALL(do_gru_cell) { NOT_USED; return lks_gru_cell(in[0], in[1], in[2], in[3], in[4], in[5]); }
CALL(do_lstm_cell)
{
    NOT_USED;
    lks_tensor *y[2];
    return lks_lstm_cell(in[0], in[1], in[2], in[3], in[4], in[5], in[6], &y[0], &y[1]) == LKS_OK ? all_of(2, y) : NULL;
}
#define PARTS(row, call, one, two)                                                                             \
    {row, "[3,4]", call, COMPOSITE | ROUGH, N(T(one, 3, 4), T(two, 3, 4))},                                    \
        {row, "outer", call, COMPOSITE | ROUGH, N(T(one, 2, 1, 3), T(two, 2, 1))},                             \
        {row, "channels", call, COMPOSITE | ROUGH, N(T(one, 2, 3, 2, 2), T(two, 2, 3, 2, 2))},                 \
        {row, "0-dim", call, COMPOSITE | ROUGH, N(SCALAR(one), SCALAR(two))},                                  \
        {row, "empty", call, COMPOSITE, N(T(one, 3, 0), T(two, 3, 0))},                                        \
        {row, "large", call, COMPOSITE | ROUGH | LARGE, N(T(one, 130, 1025), T(two, 130, 1))}

const sample samples[] = {
    {"view", "[2,3,4] as [6,4]", view_6_4, 0, N(T(IN_REAL, 2, 3, 4))},
    {"view", "0-dim as [1,1]", view_1_1, 0, N(SCALAR(IN_REAL))},
    {"view", "empty", view_empty, 0, N(T(IN_REAL, 0, 4))},
    {"expand", "[3,1] to [2,3,4]", expand_2_3_4, ROUGH, N(T(IN_REAL, 3, 1))},
    {"expand", "0-dim to [2,2]", expand_2_2, ROUGH, N(SCALAR(IN_REAL))},
    {"expand", "[1,0] to [3,0]", expand_3_0, 0, N(T(IN_REAL, 1, 0))},
    {"permute", "[2,3,4]", permute_201, 0, N(T(IN_REAL, 2, 3, 4))},
    {"permute", "0-dim", permute_none, 0, N(SCALAR(IN_REAL))},
    {"slice", "[7,4]", slice_2, 0, N(T(IN_REAL, 7, 4))},
    {"slice", "to nothing", slice_none, 0, N(T(IN_REAL, 2, 4))},
    {"slice", "parts of one tensor", packed, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 6))},
    {"slice", "overlapping parts", overlapping, COMPOSITE, N(T(IN_REAL, 6, 2))},
    {"slice_backward", "[3,4] into [7,4]", slice_backward_7, 0, N(T(IN_REAL, 3, 4))},
    {"slice_backward", "large", slice_backward_7, LARGE, N(T(IN_REAL, 3, 70000))},
    ALL_SHAPES("clone", do_clone, IN_REAL, 0),
    ALL_SHAPES("cast", do_cast, IN_REAL, 0),
    BOTH_SHAPES("add", do_add, IN_REAL, IN_REAL),
    BOTH_SHAPES("sub", do_sub, IN_REAL, IN_REAL),
    BOTH_SHAPES("mul", do_mul, IN_REAL, IN_REAL),
    BOTH_SHAPES("div", do_div, IN_REAL, IN_AWAY),
    {"add", "x + x", add_self, 0, N(T(IN_REAL, 3, 2))},
    {"mul", "x x", mul_self, 0, N(T(IN_REAL, 3, 2))},
    {"add", "diamond", diamond, ROUGH, N(T(IN_REAL, 3, 2))},
    {"where", "broadcast", do_where, 0, N(T(IN_BOOL, 3, 4), T(IN_REAL, 3, 1), T(IN_REAL, 4))},
    {"where", "4-D", do_where, 0, N(T(IN_BOOL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 1, 3, 1, 1))},
    {"where", "0-dim", do_where, 0, N(SCALAR(IN_BOOL), SCALAR(IN_REAL), SCALAR(IN_REAL))},
    {"where", "empty", do_where, 0, N(T(IN_BOOL, 0, 1), T(IN_REAL, 4), SCALAR(IN_REAL))},
    {"where", "large", do_where, LARGE, N(T(IN_BOOL, 130, 1025), T(IN_REAL, 130, 1), T(IN_REAL, 1025))},
    ALL_SHAPES("affine", do_affine, IN_REAL, 0),
    {"affine", "negation", do_neg, 0, N(T(IN_REAL, 3))},
    ALL_SHAPES("exp", do_exp, IN_REAL, 0),
    ALL_SHAPES("log", do_log, IN_POSITIVE, 0),
    ALL_SHAPES("sqrt", do_sqrt, IN_POSITIVE, 0),
    ALL_SHAPES("tanh", do_tanh, IN_REAL, ROUGH),
    ALL_SHAPES("sigmoid", do_sigmoid, IN_REAL, ROUGH),
    ALL_SHAPES("relu", do_relu, IN_AWAY, 0),
    ALL_SHAPES("gelu", do_gelu, IN_REAL, 0),
    ALL_SHAPES("gelu", do_gelu_tanh, IN_REAL, 0),
    BOTH_SHAPES("sqrt_backward", do_sqrt_backward, IN_REAL, IN_POSITIVE),
    BOTH_SHAPES("tanh_backward", do_tanh_backward, IN_REAL, IN_UNIT),
    BOTH_SHAPES("sigmoid_backward", do_sigmoid_backward, IN_REAL, IN_UNIT),
    BOTH_SHAPES("relu_backward", do_relu_backward, IN_REAL, IN_AWAY),
    BOTH_SHAPES("gelu_backward", do_gelu_backward, IN_REAL, IN_REAL),
    BOTH_SHAPES("gelu_backward", do_gelu_tanh_backward, IN_REAL, IN_REAL),
    ALL_SHAPES("dropout", do_dropout, IN_REAL, 0),
    ALL_SHAPES("expm1", do_expm1, IN_REAL, ROUGH),
    ALL_SHAPES("log1p", do_log1p, IN_POSITIVE, 0),
    ALL_SHAPES("log2", do_log2, IN_POSITIVE, ROUGH),
    ALL_SHAPES("log10", do_log10, IN_POSITIVE, ROUGH),
    ALL_SHAPES("rsqrt", do_rsqrt, IN_POSITIVE, ROUGH),
    ALL_SHAPES("reciprocal", do_reciprocal, IN_AWAY, ROUGH),
    ALL_SHAPES("abs", do_abs, IN_AWAY, 0),
    ALL_SHAPES("sign", do_sign, IN_AWAY, 0),
    ALL_SHAPES("sin", do_sin, IN_REAL, 0),
    ALL_SHAPES("cos", do_cos, IN_REAL, 0),
    ALL_SHAPES("tan", do_tan, IN_UNIT, ROUGH),
    ALL_SHAPES("asin", do_asin, IN_UNIT, ROUGH),
    ALL_SHAPES("acos", do_acos, IN_UNIT, ROUGH),
    ALL_SHAPES("sinh", do_sinh, IN_REAL, ROUGH),
    ALL_SHAPES("cosh", do_cosh, IN_REAL, ROUGH),
    ALL_SHAPES("erf", do_erf, IN_REAL, ROUGH),
    ALL_SHAPES("erfinv", do_erfinv, IN_UNIT, ROUGH),
    ALL_SHAPES("silu", do_silu, IN_REAL, ROUGH),
    ALL_SHAPES("hardswish", do_hardswish, IN_REAL, ROUGH),
    ALL_SHAPES("leaky_relu", do_leaky_relu, IN_AWAY, 0),
    ALL_SHAPES("elu", do_elu, IN_AWAY, ROUGH),
    ALL_SHAPES("softplus", do_softplus, IN_REAL, ROUGH),
    ALL_SHAPES("clamp", do_clamp, IN_REAL, 0),
    ALL_SHAPES("fake_quantize_per_tensor_affine", do_fake_quantize, IN_REAL, 0),
    BOTH_SHAPES("fake_quantize_backward", do_fake_quantize_backward, IN_REAL, IN_MASK),
    ALL_SHAPES("pow_scalar", pow_cube, IN_REAL, ROUGH),
    ALL_SHAPES("pow_scalar", pow_square, IN_REAL, ROUGH),
    ALL_SHAPES("pow_scalar", pow_root, IN_POSITIVE, ROUGH),
    ALL_SHAPES("rpow", do_rpow, IN_REAL, ROUGH),
    ALL_SHAPES("rdiv", do_rdiv, IN_AWAY, ROUGH),
    BOTH_SHAPES("pow", do_pow, IN_POSITIVE, IN_REAL),
    BOTH_SHAPES("maximum", do_maximum, IN_REAL, IN_REAL),
    BOTH_SHAPES("minimum", do_minimum, IN_REAL, IN_REAL),
    BOTH_SHAPES("atan2", do_atan2, IN_AWAY, IN_AWAY),
    {"prelu", "one weight", do_prelu, ROUGH, N(T(IN_AWAY, 2, 3, 2, 2), T(IN_REAL, 1))},
    {"prelu", "channels", do_prelu, ROUGH, N(T(IN_AWAY, 2, 3, 2, 2), T(IN_REAL, 3))},
    {"prelu", "0-dim", do_prelu, ROUGH, N(SCALAR(IN_AWAY), SCALAR(IN_REAL))},
    {"prelu", "empty", do_prelu, 0, N(T(IN_AWAY, 0, 3), T(IN_REAL, 3))},
    {"prelu", "large", do_prelu, LARGE, N(T(IN_AWAY, 60, 30, 70), T(IN_REAL, 30))},
    {"addcmul", "alike", do_addcmul, ROUGH, N(T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2))},
    {"addcmul", "broadcast", do_addcmul, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4), T(IN_REAL, 3, 1))},
    {"addcmul", "empty", do_addcmul, 0, N(T(IN_REAL, 0, 4), T(IN_REAL, 4), SCALAR(IN_REAL))},
    {"addcmul", "large", do_addcmul, LARGE, N(T(IN_REAL, 130, 1025), T(IN_REAL, 1025), T(IN_REAL, 130, 1))},
    {"addcdiv", "alike", do_addcdiv, ROUGH, N(T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2), T(IN_AWAY, 2, 3, 2, 2))},
    {"addcdiv", "broadcast", do_addcdiv, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 3, 4), T(IN_AWAY, 3, 1))},
    {"addcdiv", "0-dim", do_addcdiv, ROUGH, N(SCALAR(IN_REAL), SCALAR(IN_REAL), SCALAR(IN_AWAY))},
    BOTH_SHAPES("silu_backward", do_silu_backward, IN_REAL, IN_REAL),
    BOTH_SHAPES("hardswish_backward", do_hardswish_backward, IN_REAL, IN_REAL),
    BOTH_SHAPES("leaky_relu_backward", do_leaky_relu_backward, IN_REAL, IN_MASK),
    BOTH_SHAPES("elu_backward", do_elu_backward, IN_REAL, IN_AWAY),
    BOTH_SHAPES("softplus_backward", do_softplus_backward, IN_REAL, IN_REAL),
    BOTH_SHAPES("clamp_backward", do_clamp_backward, IN_REAL, IN_MASK),
    BOTH_SHAPES("prelu_weight_backward", do_prelu_weight_backward, IN_REAL, IN_AWAY),
    {"prelu_backward", "alike", do_prelu_backward, ROUGH, N(T(IN_REAL, 3, 4), T(IN_MASK, 3, 4), T(IN_REAL, 3, 4))},
    {"prelu_backward", "row", do_prelu_backward, ROUGH, N(T(IN_REAL, 3, 4), T(IN_MASK, 3, 4), T(IN_REAL, 4))},
    {"larger_backward", "alike", do_larger_backward, 0, N(T(IN_REAL, 3, 4), T(IN_MASK, 3, 4), T(IN_MASK, 3, 4))},
    {"larger_backward", "column", do_larger_backward, 0, N(T(IN_REAL, 3, 4), T(IN_MASK, 3, 1), T(IN_MASK, 4))},
    ALL_SHAPES("sum", sum_all, IN_REAL, ROUGH),
    PARTS("complex", do_complex, IN_REAL, IN_REAL),
    PARTS("polar", do_polar, IN_REAL, IN_REAL),
    PARTS("conj", do_conj, IN_REAL, IN_AWAY),
    PARTS("complex_abs", do_complex_abs, IN_REAL, IN_AWAY),
    PARTS("angle", do_angle, IN_AWAY, IN_POSITIVE),
    {"view_as_real", "[3,4]", do_complex, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4))},
    {"as_complex", "[3,4,2]", do_as_complex, COMPOSITE | ROUGH, N(T(IN_AWAY, 3, 4, 2))},
    {"as_complex", "empty", do_as_complex, COMPOSITE, N(T(IN_AWAY, 0, 4, 2))},
    {"view_as_complex", "[2,2]", do_as_complex, COMPOSITE | ROUGH, N(T(IN_AWAY, 2, 2))},
    {"matmul", "complex", complex_product, COMPOSITE | ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4), T(IN_REAL, 2, 4), T(IN_REAL, 2, 4))},
    {"matmul", "complex, large", complex_product, COMPOSITE | ROUGH | LARGE,
     N(T(IN_REAL, 3, 40, 90), T(IN_REAL, 3, 40, 90), T(IN_REAL, 1, 50, 90), T(IN_REAL, 1, 50, 90))},
    {"fft_c2c", "two dims", fft_2, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 3, 4))},
    {"fft_c2c", "padded", ifft_first, COMPOSITE | ROUGH, N(T(IN_REAL, 4, 3), T(IN_REAL, 4, 3))},
    {"fft_c2c", "no batch", fft_2, COMPOSITE, N(T(IN_REAL, 0, 3, 4), T(IN_REAL, 0, 3, 4))},
    {"fft_c2c", "large", fft_2, COMPOSITE | ROUGH | LARGE, N(T(IN_REAL, 9, 33, 70), T(IN_REAL, 9, 33, 70))},
    {"fft_r2c", "last", rfft_last, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 7))},
    {"fft_r2c", "two dims", rfft_2, COMPOSITE | ROUGH, N(T(IN_REAL, 6, 5))},
    {"fft_r2c", "large", rfft_last, COMPOSITE | ROUGH | LARGE, N(T(IN_REAL, 700, 150))},
    {"fft_c2r", "last", irfft_last, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4))},
    {"fft_c2r", "two dims", irfft_2, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3), T(IN_REAL, 2, 4, 3))},
    {"fft_c2r", "hermitian", hfft_first, COMPOSITE | ROUGH, N(T(IN_REAL, 4, 3), T(IN_REAL, 4, 3))},
    {"fft_fft", "rfft", rfft_last, COMPOSITE | ROUGH, N(T(IN_REAL, 6))},
    {"stft", "[2,9]", do_stft, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 9), T(IN_REAL, 4))},
    {"linalg_cholesky_ex", "[2,3,3]", do_cholesky, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3))},
    {"triangular_solve", "[2,3,3]", do_triangular_solve, COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 3, 3), T(IN_REAL, 2, 3, 2))},
    {"triangular_solve", "cholesky", do_cholesky_solve, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 3), T(IN_REAL, 2, 3, 2))},
    {"linalg_solve", "[2,3,3]", do_solve, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3), T(IN_REAL, 2, 3, 2))},
    {"linalg_solve", "vectors", do_solve, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3), T(IN_REAL, 2, 3))},
    {"linalg_solve", "inv", do_inv, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3))},
    {"linalg_solve", "inv, no rows", do_inv, COMPOSITE, N(T(IN_REAL, 2, 0, 0))},
    {"linalg_solve", "large", do_solve, COMPOSITE | ROUGH | LARGE, N(T(IN_REAL, 90, 12, 12), T(IN_REAL, 90, 12, 5))},
    {"linalg_lu_factor", "[3,3]", do_lu, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 3))},
    {"linalg_lu_factor", "lu_solve", do_lu_solve, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 2, 2), T(IN_REAL, 2, 2, 1))},
    {"linalg_lu_factor", "tall", do_lu_rectangle, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 2))},
    {"linalg_lu_factor", "wide", do_lu_rectangle, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3))},
    {"linalg_lu_factor", "det", do_det, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 2))},
    {"linalg_lu_factor", "slogdet", do_slogdet, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 2))},
    {"geqrf", "[2,4,3]", do_geqrf, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3))},
    {"orgqr", "[2,3,2]", do_orgqr, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_UNIT, 2, 2))},
    {"orgqr", "one of two", do_orgqr, ROUGH, N(T(IN_REAL, 3, 2), T(IN_UNIT, 1))},
    {"ormqr", "left", do_ormqr, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_UNIT, 2, 2), T(IN_REAL, 2, 3, 1))},
    {"ormqr", "right", do_ormqr_right, ROUGH, N(T(IN_REAL, 3, 2), T(IN_UNIT, 1), T(IN_REAL, 2, 3))},
    {"linalg_qr", "[2,4,3]", do_qr, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3))},
    {"linalg_svd", "values", do_svdvals, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3))},
    {"linalg_eigh", "values", do_eigvalsh, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3))},
    {"linalg_eig", "values", do_eigvals, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 3))},
    {"linalg_lstsq", "[4,3]", do_lstsq, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3), T(IN_REAL, 2, 4, 2))},
    {"pinverse", "[4,3]", do_pinverse, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 4, 3))},
    {"sum", "dim 1 kept", sum_1_keep, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"sum", "dims 0 and 2", sum_02, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"sum", "to float64", sum_wide, 0, N(T(IN_REAL, 2, 3))},
    {"sum", "of empty dim", sum_0, 0, N(T(IN_REAL, 0, 3))},
    {"sum", "large columns", sum_0, LARGE, N(T(IN_REAL, 1030, 130))},
    {"sum", "large rows", sum_1_keep, LARGE, N(T(IN_REAL, 70, 3000))},
    {"mean", "all", mean_all, ROUGH, N(T(IN_REAL, 3, 4))},
    {"mean", "0-dim", mean_all, 0, N(SCALAR(IN_REAL))},
    {"mean", "dim 1 kept", mean_1_keep, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"mean", "dims 2 and 0", mean_02, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"mean", "no rows", mean_1_keep, 0, N(T(IN_REAL, 0, 3))},
    {"mean", "large", mean_02, LARGE, N(T(IN_REAL, 60, 70, 33))},
    {"max", "dim 1", max_1, 0, N(T(IN_APART, 2, 4, 3))},
    {"max", "last kept", max_last_keep, 0, N(T(IN_APART, 2, 3, 4))},
    {"max", "dim 0", max_0, 0, N(T(IN_APART, 5))},
    {"max", "0-dim", max_0, 0, N(SCALAR(IN_APART))},
    {"max", "all", max_every, 0, N(T(IN_APART, 3, 3))},
    {"max", "no rows", max_last_keep, 0, N(T(IN_APART, 0, 3))},
    {"max", "large", max_1, LARGE, N(T(IN_REAL, 70, 40, 50))},
    {"min", "dim 1", min_1, 0, N(T(IN_APART, 2, 4, 3))},
    {"min", "last kept", min_last_keep, 0, N(T(IN_APART, 2, 3, 4))},
    {"min", "0-dim", min_last_keep, 0, N(SCALAR(IN_APART))},
    {"min", "all", min_every, 0, N(T(IN_APART, 3, 3))},
    {"min", "no rows", min_last_keep, 0, N(T(IN_APART, 0, 3))},
    {"min", "large", min_1, LARGE, N(T(IN_REAL, 70, 40, 50))},
    {"var", "all", var_all, ROUGH, N(T(IN_REAL, 3, 4))},
    {"var", "dim 1 kept", var_1_keep, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"var", "dims 2 and 0", var_02, ROUGH, N(T(IN_REAL, 2, 3, 2, 2))},
    {"var", "no rows", var_1_keep, 0, N(T(IN_REAL, 0, 3))},
    {"var", "large columns", var_0, LARGE | ROUGH, N(T(IN_REAL, 3030, 70))},
    {"var", "large", var_all, LARGE | ROUGH, N(T(IN_REAL, 200, 1025))},
    {"std", "all", std_all, ROUGH, N(T(IN_REAL, 3, 4))},
    {"std", "dim 1 kept", std_1_keep, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"std", "dims 2 and 0", std_02, ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"prod", "all", prod_all, ROUGH, N(T(IN_AWAY, 2, 3))},
    {"prod", "dim 1 kept", prod_1_keep, ROUGH, N(T(IN_AWAY, 2, 3, 2, 2))},
    {"prod", "dims 2 and 0", prod_02, ROUGH, N(T(IN_AWAY, 2, 2, 2))},
    {"prod", "0-dim", prod_all, 0, N(SCALAR(IN_REAL))},
    {"prod", "of nothing", prod_0, 0, N(T(IN_REAL, 0, 3))},
    {"prod", "large", prod_0, LARGE | ROUGH, N(T(IN_UNIT, 60, 3000))},
    {"norm", "2, all", norm_2, ROUGH, N(T(IN_AWAY, 2, 3, 2, 2))},
    {"norm", "2, columns", norm_2_0, ROUGH, N(T(IN_REAL, 4, 3))},
    {"norm", "1", norm_1, ROUGH, N(T(IN_AWAY, 2, 3, 2))},
    {"norm", "3", norm_3, ROUGH, N(T(IN_AWAY, 2, 3, 2))},
    {"norm", "1/2", norm_half, ROUGH, N(T(IN_AWAY, 2, 3))},
    {"norm", "0", norm_0, ROUGH, N(T(IN_AWAY, 2, 3))},
    {"norm", "inf", norm_top, ROUGH, N(T(IN_AWAY, 2, 3))},
    {"norm", "-inf", norm_least, ROUGH, N(T(IN_AWAY, 2, 3))},
    {"norm", "0-dim", norm_2, ROUGH, N(SCALAR(IN_AWAY))},
    {"norm", "large", norm_2, LARGE | ROUGH, N(T(IN_REAL, 200, 1025))},
    {"norm", "large columns", norm_2_0, LARGE | ROUGH, N(T(IN_REAL, 2030, 70))},
    {"amax", "all", amax_all, 0, N(T(IN_APART, 3, 4))},
    {"amax", "dim 1 kept", amax_1_keep, 0, N(T(IN_APART, 2, 3, 4))},
    {"amax", "dims 2 and 0", amax_02, 0, N(T(IN_APART, 2, 3, 4))},
    {"amin", "all", amin_all, 0, N(T(IN_APART, 3, 4))},
    {"amin", "dim 1 kept", amin_1_keep, 0, N(T(IN_APART, 2, 3, 4))},
    {"amin", "dims 2 and 0", amin_02, 0, N(T(IN_APART, 2, 3, 4))},
    {"add", "logsumexp, all", logsumexp_all, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 4))},
    {"add", "logsumexp, dim 1 kept", logsumexp_1_keep, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"add", "logsumexp, dims 2 and 0", logsumexp_02, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 4))},
    {"dist", "row", do_dist, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4))},
    {"renorm", "2-D", do_renorm, COMPOSITE | ROUGH, N(T(IN_AWAY, 3, 4))},
    {"normalize", "4-D", normalize_1, COMPOSITE | ROUGH, N(T(IN_AWAY, 2, 3, 2, 2))},
    {"cosine_similarity", "row", cosine_1, COMPOSITE | ROUGH, N(T(IN_AWAY, 3, 4), T(IN_AWAY, 4))},
    {"cumsum", "dim 1", cumsum_1, ROUGH, N(T(IN_REAL, 2, 3, 2, 2))},
    {"cumsum", "last", cumsum_last, ROUGH, N(T(IN_REAL, 2, 5))},
    {"cumsum", "0-dim", cumsum_last, 0, N(SCALAR(IN_REAL))},
    {"cumsum", "empty", cumsum_last, 0, N(T(IN_REAL, 3, 0))},
    {"cumsum", "long", cumsum_last, LARGE | ROUGH, N(T(IN_REAL, 2, 150000))},
    {"cumsum", "large columns", cumsum_1, LARGE | ROUGH, N(T(IN_REAL, 3, 700, 70))},
    {"cumprod", "dim 1", cumprod_1, ROUGH, N(T(IN_AWAY, 2, 3, 2, 2))},
    {"cumprod", "last, zeros among them", cumprod_last, ROUGH, N(T(IN_REAL, 2, 5))},
    {"cumprod", "from the end", cumprod_back_to_front, ROUGH, N(T(IN_REAL, 4, 2))},
    {"cumprod", "0-dim", cumprod_last, 0, N(SCALAR(IN_REAL))},
    {"cumprod", "empty", cumprod_1, 0, N(T(IN_REAL, 3, 0))},
    {"cumprod", "large", cumprod_last, LARGE | ROUGH, N(T(IN_UNIT, 3000, 60))},
    {"recurrence", "dim 1", recur_1, ROUGH, N(T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2))},
    {"recurrence", "from the end", recur_last, ROUGH, N(T(IN_REAL, 2, 4), T(IN_REAL, 2, 4))},
    {"recurrence", "0-dim", recur_last, 0, N(SCALAR(IN_REAL), SCALAR(IN_REAL))},
    {"recurrence", "empty", recur_1, 0, N(T(IN_REAL, 2, 0), T(IN_REAL, 2, 0))},
    {"index_fill_backward", "[3,1]", index_fill_5, 0, N(T(IN_REAL, 3, 1), T(IN_INDEX, 3, 1))},
    {"index_fill_backward", "empty", index_fill_5, 0, N(T(IN_REAL, 0, 1), T(IN_INDEX, 0, 1))},
    {"matmul", "[3,4] [4,2]", do_matmul, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2))},
    {"matmul", "[4] [4]", do_matmul, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 4))},
    {"matmul", "[4] [4,3]", do_matmul, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 4, 3))},
    {"matmul", "[3,4] [4]", do_matmul, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4))},
    {"matmul", "[2,3,4] [4,2]", do_matmul, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 4, 2))},
    {"matmul", "[3,4] [2,4,2]", do_matmul, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 2, 4, 2))},
    {"matmul", "[2,3,4] [2,4,2]", do_matmul, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 4, 2))},
    {"matmul", "[2,1,3,4] [3,4,2]", do_matmul, ROUGH, N(T(IN_REAL, 2, 1, 3, 4), T(IN_REAL, 3, 4, 2))},
    {"matmul", "[4] [2,4,3]", do_matmul, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 2, 4, 3))},
    {"matmul", "[2,3,4] [4]", do_matmul, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 4))},
    {"matmul", "[1,1] [1,1]", do_matmul, ROUGH, N(T(IN_REAL, 1, 1), T(IN_REAL, 1, 1))},
    {"matmul", "no rows", do_matmul, 0, N(T(IN_REAL, 0, 3), T(IN_REAL, 3, 2))},
    {"matmul", "nothing between", do_matmul, 0, N(T(IN_REAL, 2, 0), T(IN_REAL, 0, 3))},
    {"matmul", "no batch", do_matmul, 0, N(T(IN_REAL, 0, 2, 3), T(IN_REAL, 3, 2))},
    {"matmul", "W W", matmul_self, ROUGH, N(T(IN_REAL, 3, 3))},
    {"matmul", "large", do_matmul, LARGE, N(T(IN_REAL, 130, 300), T(IN_REAL, 300, 90))},
    {"matmul", "large batch", do_matmul, LARGE, N(T(IN_REAL, 7, 40, 33), T(IN_REAL, 7, 33, 50))},
    {"linear", "[3,4]", do_linear, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 2, 4), T(IN_REAL, 2))},
    {"linear", "[2,3,4], no bias", linear_plain, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 4))},
    {"linear", "[4]", do_linear, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 2, 4), T(IN_REAL, 2))},
    {"linear", "no rows", do_linear, 0, N(T(IN_REAL, 0, 4), T(IN_REAL, 2, 4), T(IN_REAL, 2))},
    {"linear", "no inputs", do_linear, ROUGH, N(T(IN_REAL, 3, 0), T(IN_REAL, 2, 0), T(IN_REAL, 2))},
    {"linear", "no rows, 3-D", do_linear, 0, N(T(IN_REAL, 2, 0, 3), T(IN_REAL, 2, 3), T(IN_REAL, 2))},
    {"linear", "large", do_linear, LARGE, N(T(IN_REAL, 3, 90, 96), T(IN_REAL, 120, 96), T(IN_REAL, 120))},
    {"mv", "[3,4] [4]", do_mv, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4))},
    {"mv", "no rows", do_mv, 0, N(T(IN_REAL, 0, 4), T(IN_REAL, 4))},
    {"mv", "large", do_mv, LARGE, N(T(IN_REAL, 600, 300), T(IN_REAL, 300))},
    {"dot", "[4] [4]", do_dot, ROUGH, N(T(IN_REAL, 4), T(IN_REAL, 4))},
    {"dot", "of nothing", do_dot, 0, N(T(IN_REAL, 0), T(IN_REAL, 0))},
    {"dot", "dims 2, 0 with 0, 1", contract, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 4, 2, 3))},
    {"matmul", "chain of 4", chain_of_4, ROUGH | COMPOSITE,
     N(T(IN_UNIT, 2), T(IN_UNIT, 2, 5), T(IN_UNIT, 5, 3), T(IN_UNIT, 3))},
    {"addmm", "[3,4] [4,2]", do_addmm, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2), T(IN_REAL, 3, 2))},
    {"addmm", "a row", do_addmm, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2), T(IN_REAL, 2))},
    {"addmm", "a column, not scaled", addmm_plain, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2), T(IN_REAL, 3, 1))},
    {"addmm", "a number", do_addmm, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2), SCALAR(IN_REAL))},
    {"addmm", "nothing added", addmm_alone, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4, 2))},
    {"addmm", "batch", do_baddbmm, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 4, 2), T(IN_REAL, 2, 1, 2))},
    {"addmm", "batch added up", do_addbmm, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 4, 2), T(IN_REAL, 3, 2))},
    {"addmm", "no rows", do_addmm, 0, N(T(IN_REAL, 0, 4), T(IN_REAL, 4, 2), T(IN_REAL, 2))},
    {"addmm", "nothing between", do_addmm, 0, N(T(IN_REAL, 3, 0), T(IN_REAL, 0, 2), T(IN_REAL, 3, 2))},
    {"addmm", "large", do_addmm, LARGE, N(T(IN_REAL, 130, 800), T(IN_REAL, 800, 90), T(IN_REAL, 130, 90))},
    {"addmv", "[3,4] [4]", do_addmv, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 4), T(IN_REAL, 3))},
    {"addmv", "outer product", do_addr, ROUGH, N(T(IN_REAL, 3), T(IN_REAL, 2), T(IN_REAL, 3, 2))},
    {"linalg_vecdot", "dim 1", vecdot_1, ROUGH, N(T(IN_REAL, 2, 4, 3), T(IN_REAL, 4, 1))},
    {"linalg_vecdot", "last", vecdot_last, ROUGH, N(T(IN_REAL, 5), T(IN_REAL, 5))},
    {"linalg_vecdot", "of nothing", vecdot_last, 0, N(T(IN_REAL, 3, 0), T(IN_REAL, 3, 0))},
    {"linalg_vecdot", "large", vecdot_last, LARGE, N(T(IN_REAL, 3, 70000), T(IN_REAL, 3, 70000))},
    {"bilinear", "[3,2] [3,4]", do_bilinear, ROUGH,
     N(T(IN_REAL, 3, 2), T(IN_REAL, 3, 4), T(IN_REAL, 5, 2, 4), T(IN_REAL, 5))},
    {"bilinear", "3-D, no bias", bilinear_plain, ROUGH,
     N(T(IN_UNIT, 2, 2, 3), T(IN_UNIT, 2, 2, 2), T(IN_UNIT, 3, 3, 2))},
    {"bilinear", "no rows", do_bilinear, 0, N(T(IN_REAL, 0, 2), T(IN_REAL, 0, 4), T(IN_REAL, 5, 2, 4), T(IN_REAL, 5))},
    {"bilinear", "large", do_bilinear, LARGE,
     N(T(IN_REAL, 700, 20), T(IN_REAL, 700, 30), T(IN_REAL, 15, 20, 30), T(IN_REAL, 15))},
    {"conv2d", "plain", conv_plain, ROUGH, N(T(IN_REAL, 2, 2, 4, 3), T(IN_REAL, 3, 2, 2, 2))},
    {"conv2d", "groups, stride, padding", conv_groups, ROUGH,
     N(T(IN_REAL, 1, 4, 4, 3), T(IN_REAL, 4, 2, 3, 2), T(IN_REAL, 4))},
    {"conv2d", "dilated", conv_dilated, ROUGH, N(T(IN_REAL, 1, 2, 4, 5), T(IN_REAL, 2, 2, 2, 2), T(IN_REAL, 2))},
    {"conv2d", "depthwise", conv_depthwise, ROUGH, N(T(IN_REAL, 1, 3, 3, 3), T(IN_REAL, 3, 1, 3, 3), T(IN_REAL, 3))},
    {"conv2d", "empty", conv_depthwise, 0, N(T(IN_REAL, 0, 3, 3, 3), T(IN_REAL, 3, 1, 3, 3), T(IN_REAL, 3))},
    {"conv2d", "large", conv_groups, LARGE, N(T(IN_REAL, 4, 8, 17, 16), T(IN_REAL, 16, 4, 3, 3), T(IN_REAL, 16))},
    {"conv_backward_input", "4-D", conv_back_input, ROUGH, N(T(IN_REAL, 2, 3, 2, 3), T(IN_REAL, 3, 2, 3, 2))},
    {"conv_backward_weight", "4-D", conv_back_weight, ROUGH, N(T(IN_REAL, 2, 3, 2, 3), T(IN_REAL, 2, 2, 4, 4))},
    {"conv1d", "same, dilated", conv1_same, ROUGH, N(T(IN_REAL, 2, 2, 7), T(IN_REAL, 3, 2, 2), T(IN_REAL, 3))},
    {"conv1d", "groups, stride", conv1_groups, ROUGH, N(T(IN_REAL, 2, 4, 6), T(IN_REAL, 2, 2, 3))},
    {"conv1d", "empty", conv1_same, 0, N(T(IN_REAL, 0, 2, 7), T(IN_REAL, 3, 2, 2), T(IN_REAL, 3))},
    {"conv1d", "large", conv1_same, LARGE, N(T(IN_REAL, 3, 17, 400), T(IN_REAL, 20, 17, 5), T(IN_REAL, 20))},
    {"conv3d", "padded", conv3_plain, ROUGH, N(T(IN_REAL, 1, 2, 3, 2, 3), T(IN_REAL, 2, 2, 3, 2, 2), T(IN_REAL, 2))},
    {"conv3d", "groups, stride, dilation", conv3_groups, ROUGH,
     N(T(IN_REAL, 1, 2, 3, 3, 2), T(IN_REAL, 2, 1, 2, 2, 2), T(IN_REAL, 2))},
    {"conv3d", "empty", conv3_plain, 0, N(T(IN_REAL, 0, 2, 3, 2, 3), T(IN_REAL, 2, 2, 3, 2, 2), T(IN_REAL, 2))},
    {"conv3d", "large", conv3_groups, LARGE, N(T(IN_REAL, 2, 8, 9, 12, 10), T(IN_REAL, 6, 4, 3, 3, 3), T(IN_REAL, 6))},
    {"conv_transpose1d", "stride, dilation", transposed1, ROUGH,
     N(T(IN_REAL, 2, 2, 3), T(IN_REAL, 2, 2, 3), T(IN_REAL, 2))},
    {"conv_transpose1d", "large", transposed1, LARGE, N(T(IN_REAL, 3, 16, 100), T(IN_REAL, 16, 9, 5), T(IN_REAL, 9))},
    {"conv_transpose2d", "groups", transposed2, ROUGH,
     N(T(IN_REAL, 2, 2, 2, 3), T(IN_REAL, 2, 2, 2, 2), T(IN_REAL, 4))},
    {"conv_transpose2d", "stride, output padding", transposed2_wide, ROUGH,
     N(T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 2, 2, 3, 2))},
    {"conv_transpose2d", "empty", transposed2, 0, N(T(IN_REAL, 0, 2, 2, 3), T(IN_REAL, 2, 2, 2, 2), T(IN_REAL, 4))},
    {"conv_transpose2d", "large", transposed2_wide, LARGE, N(T(IN_REAL, 3, 16, 12, 13), T(IN_REAL, 16, 9, 3, 3))},
    {"conv_transpose3d", "stride", transposed3, ROUGH,
     N(T(IN_REAL, 1, 2, 2, 2, 2), T(IN_REAL, 2, 1, 2, 2, 2), T(IN_REAL, 1))},
    {"conv_transpose3d", "large", transposed3, LARGE,
     N(T(IN_REAL, 2, 8, 4, 7, 6), T(IN_REAL, 8, 5, 2, 3, 2), T(IN_REAL, 5))},
    {"conv_tbc", "[4,2,3]", tbc, ROUGH, N(T(IN_REAL, 4, 2, 3), T(IN_REAL, 3, 3, 2), T(IN_REAL, 2))},
    {"conv_tbc", "empty", tbc, 0, N(T(IN_REAL, 4, 0, 3), T(IN_REAL, 3, 3, 2), T(IN_REAL, 2))},
    {"conv_backward_input", "5-D", conv3_back_input, ROUGH, N(T(IN_REAL, 1, 3, 3, 2, 2), T(IN_REAL, 3, 2, 2, 3, 2))},
    {"conv_backward_weight", "5-D", conv3_back_weight, ROUGH, N(T(IN_REAL, 1, 3, 3, 2, 2), T(IN_REAL, 1, 2, 2, 4, 3))},
    {"max_pool1d", "dilated", max1, ROUGH, N(T(IN_APART, 2, 2, 9))},
    {"max_pool3d", "ceil, padding", max3, ROUGH, N(T(IN_APART, 1, 2, 3, 3, 4))},
    {"max_pool3d", "large", max3, LARGE, N(T(IN_REAL, 2, 5, 9, 20, 21))},
    {"adaptive_max_pool1d", "[2,2,5]", max_adaptive, ROUGH, N(T(IN_APART, 2, 2, 5))},
    {"adaptive_max_pool2d", "[2,2,5,4]", max_adaptive, ROUGH, N(T(IN_APART, 2, 2, 5, 4))},
    {"adaptive_max_pool3d", "[1,2,3,4,3]", max_adaptive, ROUGH, N(T(IN_APART, 1, 2, 3, 4, 3))},
    {"fractional_max_pool2d", "[2,2,5,6]", max_fractional, ROUGH, N(T(IN_APART, 2, 2, 5, 6), T(IN_STAT, 2, 2, 2))},
    {"fractional_max_pool3d", "[1,2,3,5,4]", max_fractional, ROUGH, N(T(IN_APART, 1, 2, 3, 5, 4), T(IN_STAT, 1, 2, 3))},
    {"max_pool_backward", "places that coincide", pool_back, ROUGH,
     N(T(IN_REAL, 2, 2, 2, 3), T(IN_INDEX32, 2, 2, 2, 3))},
    {"max_pool_gather", "places that coincide", pool_gather, ROUGH,
     N(T(IN_REAL, 2, 2, 3, 4), T(IN_INDEX32, 2, 2, 2, 3))},
    {"max_unpool1d", "[2,2,2]", unpool, 0, N(T(IN_REAL, 2, 2, 2), T(IN_MASK, 2, 2, 4))},
    {"max_unpool2d", "[2,3,2,2]", unpool, 0, N(T(IN_REAL, 2, 3, 2, 2), T(IN_MASK, 2, 3, 4, 4))},
    {"max_unpool2d", "into more", unpool_larger, 0, N(T(IN_REAL, 2, 3, 2, 2), T(IN_MASK, 2, 3, 4, 4))},
    {"max_unpool2d", "empty", unpool, 0, N(T(IN_REAL, 0, 3, 2, 2), T(IN_MASK, 0, 3, 4, 4))},
    {"max_unpool3d", "[1,2,2,2,2]", unpool, 0, N(T(IN_REAL, 1, 2, 2, 2, 2), T(IN_MASK, 1, 2, 4, 4, 4))},
    {"avg_pool1d", "plain", avg_plain, ROUGH, N(T(IN_REAL, 2, 2, 7))},
    {"avg_pool1d", "ceil, padding", avg_counted, ROUGH, N(T(IN_REAL, 2, 2, 6))},
    {"avg_pool2d", "plain", avg_plain, ROUGH, N(T(IN_REAL, 2, 2, 4, 6))},
    {"avg_pool2d", "padding not counted", avg_padded, ROUGH, N(T(IN_REAL, 2, 2, 4, 4))},
    {"avg_pool2d", "divisor", avg_divided, ROUGH, N(T(IN_REAL, 2, 2, 4, 4))},
    {"avg_pool2d", "empty", avg_plain, 0, N(T(IN_REAL, 0, 2, 4, 6))},
    {"avg_pool2d", "large", avg_padded, LARGE, N(T(IN_REAL, 4, 8, 33, 30))},
    {"avg_pool3d", "padding counted", avg_counted, ROUGH, N(T(IN_REAL, 1, 2, 4, 3, 4))},
    {"avg_pool3d", "padding not counted", avg_padded, ROUGH, N(T(IN_REAL, 1, 2, 4, 3, 4))},
    {"adaptive_avg_pool1d", "[2,2,5]", avg_adaptive, ROUGH, N(T(IN_REAL, 2, 2, 5))},
    {"adaptive_avg_pool2d", "[2,2,5,4]", avg_adaptive, ROUGH, N(T(IN_REAL, 2, 2, 5, 4))},
    {"adaptive_avg_pool2d", "to one", avg_whole, ROUGH, N(T(IN_REAL, 2, 3, 3, 4))},
    {"adaptive_avg_pool2d", "large", avg_adaptive, LARGE, N(T(IN_REAL, 4, 8, 33, 30))},
    {"adaptive_avg_pool3d", "[1,2,3,4,3]", avg_adaptive, ROUGH, N(T(IN_REAL, 1, 2, 3, 4, 3))},
    {"avg_pool_backward", "[2,2,2,3]", avg_back, ROUGH, N(T(IN_REAL, 2, 2, 2, 3))},
    {"reflection_pad1d", "[2,2,4]", reflected, ROUGH, N(T(IN_REAL, 2, 2, 4))},
    {"reflection_pad2d", "[2,3,3,4]", reflected, ROUGH, N(T(IN_REAL, 2, 3, 3, 4))},
    {"reflection_pad2d", "empty", reflected, 0, N(T(IN_REAL, 0, 3, 3, 4))},
    {"reflection_pad2d", "large", reflected, LARGE, N(T(IN_REAL, 4, 8, 33, 30))},
    {"reflection_pad3d", "[1,2,3,3,2]", reflected, ROUGH, N(T(IN_REAL, 1, 2, 3, 3, 2))},
    {"replication_pad1d", "[2,2,3]", replicated, ROUGH, N(T(IN_REAL, 2, 2, 3))},
    {"replication_pad2d", "[2,3,3,2]", replicated, ROUGH, N(T(IN_REAL, 2, 3, 3, 2))},
    {"replication_pad3d", "[1,2,1,2,3]", replicated, ROUGH, N(T(IN_REAL, 1, 2, 1, 2, 3))},
    {"edge_pad_backward", "[2,2,5,5]", edge_back, ROUGH, N(T(IN_REAL, 2, 2, 5, 5))},
    {"grid_sampler_2d", "zeros", grid_zeros, ONCE | ROUGH, N(T(IN_REAL, 2, 2, 3, 5), T(IN_AWAY, 2, 2, 3, 2))},
    {"grid_sampler_2d", "border", grid_border, ONCE | ROUGH, N(T(IN_REAL, 2, 2, 3, 5), T(IN_AWAY, 2, 2, 3, 2))},
    {"grid_sampler_2d", "reflection", grid_mirror, ONCE | ROUGH, N(T(IN_REAL, 2, 2, 3, 5), T(IN_AWAY, 2, 2, 3, 2))},
    {"grid_sampler_2d", "nearest", grid_nearest, ONCE | ROUGH, N(T(IN_REAL, 2, 2, 3, 5), T(IN_AWAY, 2, 2, 3, 2))},
    {"grid_sampler_2d", "bicubic", grid_cubic, ONCE | ROUGH, N(T(IN_REAL, 1, 2, 4, 4), T(IN_UNIT, 1, 2, 3, 2))},
    {"grid_sampler_2d", "bicubic, reflection", grid_cubic_mirror, ONCE | ROUGH,
     N(T(IN_REAL, 1, 2, 3, 5), T(IN_AWAY, 1, 2, 3, 2))},
    {"grid_sampler_2d", "empty", grid_zeros, ONCE, N(T(IN_REAL, 0, 2, 3, 5), T(IN_AWAY, 0, 2, 3, 2))},
    {"grid_sampler_2d", "large", grid_zeros, ONCE | LARGE, N(T(IN_REAL, 3, 20, 19, 21), T(IN_AWAY, 3, 30, 31, 2))},
    {"grid_sampler_3d", "zeros", grid_zeros, ONCE | ROUGH, N(T(IN_REAL, 1, 2, 3, 3, 3), T(IN_AWAY, 1, 2, 2, 2, 3))},
    {"grid_sampler_3d", "reflection", grid_mirror, ONCE | ROUGH,
     N(T(IN_REAL, 1, 2, 3, 3, 5), T(IN_AWAY, 1, 2, 2, 2, 3))},
    {"grid_sampler_3d", "nearest", grid_nearest, ONCE | ROUGH, N(T(IN_REAL, 1, 2, 3, 3, 3), T(IN_AWAY, 1, 2, 2, 2, 3))},
    {"max_pool2d", "2 x 2", pool_2, 0, N(T(IN_APART, 2, 2, 4, 4))},
    {"max_pool2d", "3 x 2, stride, padding", pool_3, ROUGH, N(T(IN_APART, 1, 2, 5, 4))},
    {"max_pool2d", "empty", pool_2, 0, N(T(IN_APART, 0, 2, 4, 4))},
    {"max_pool2d", "large", pool_3, LARGE, N(T(IN_REAL, 4, 8, 33, 30))},
    {"layer_norm", "[3,6]", layer_norm_1, ROUGH, N(T(IN_REAL, 3, 6), T(IN_REAL, 6), T(IN_REAL, 6))},
    {"layer_norm", "2 dims", layer_norm_2, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_REAL, 3, 2), T(IN_REAL, 3, 2))},
    {"layer_norm", "bare", layer_norm_bare, ROUGH, N(T(IN_REAL, 2, 2, 5))},
    {"layer_norm", "bias alone", layer_norm_bias, ROUGH, N(T(IN_REAL, 3, 5), T(IN_REAL, 5))},
    {"layer_norm", "weight alone", layer_norm_weight, ROUGH, N(T(IN_REAL, 3, 5), T(IN_REAL, 5))},
    {"layer_norm", "no rows", layer_norm_1, 0, N(T(IN_REAL, 0, 6), T(IN_REAL, 6), T(IN_REAL, 6))},
    {"layer_norm", "large", layer_norm_1, LARGE, N(T(IN_REAL, 1030, 64), T(IN_REAL, 64), T(IN_REAL, 64))},
    {"layer_norm", "longer rows", layer_norm_1, LARGE, N(T(IN_REAL, 40, 516), T(IN_REAL, 516), T(IN_REAL, 516))},
    {"layer_norm", "wide", layer_norm_1, LARGE, N(T(IN_REAL, 5, 4100), T(IN_REAL, 4100), T(IN_REAL, 4100))},
    {"layer_norm", "long rows", layer_norm_1, LARGE, N(T(IN_REAL, 2, 9004), T(IN_REAL, 9004), T(IN_REAL, 9004))},
    {"rms_norm", "[3,6]", rms_norm_1, ROUGH, N(T(IN_REAL, 3, 6), T(IN_REAL, 6))},
    {"rms_norm", "2 dims", rms_norm_2, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_REAL, 3, 2))},
    {"rms_norm", "bare", rms_norm_bare, ROUGH, N(T(IN_REAL, 2, 2, 5))},
    {"rms_norm", "no rows", rms_norm_1, 0, N(T(IN_REAL, 0, 6), T(IN_REAL, 6))},
    {"rms_norm", "large", rms_norm_1, LARGE, N(T(IN_REAL, 1030, 64), T(IN_REAL, 64))},
    {"rms_norm", "longer rows", rms_norm_1, LARGE, N(T(IN_REAL, 40, 516), T(IN_REAL, 516))},
    {"rms_norm", "wide", rms_norm_1, LARGE, N(T(IN_REAL, 5, 4100), T(IN_REAL, 4100))},
    {"rms_norm", "long rows", rms_norm_1, LARGE, N(T(IN_REAL, 2, 9004), T(IN_REAL, 9004))},
    {"group_norm", "two groups", group_norm_2, ROUGH, N(T(IN_REAL, 2, 4, 2, 4), T(IN_REAL, 4), T(IN_REAL, 4))},
    {"group_norm", "bare, 3-D", group_norm_bare, ROUGH, N(T(IN_REAL, 2, 3, 3))},
    {"group_norm", "2-D", group_norm_2, ROUGH, N(T(IN_REAL, 3, 6), T(IN_REAL, 6), T(IN_REAL, 6))},
    {"group_norm", "each channel", group_norm_each, ROUGH, N(T(IN_REAL, 2, 3, 2, 4), T(IN_REAL, 3))},
    {"group_norm", "no rows", group_norm_2, 0, N(T(IN_REAL, 0, 4, 2, 2), T(IN_REAL, 4), T(IN_REAL, 4))},
    {"group_norm", "large", group_norm_2, LARGE, N(T(IN_REAL, 6, 8, 31, 33), T(IN_REAL, 8), T(IN_REAL, 8))},
    {"group_norm", "large, groups that are read once", group_norm_2, LARGE,
     N(T(IN_REAL, 3, 16, 16, 24), T(IN_REAL, 16), T(IN_REAL, 16))},
    {"batch_norm", "4-D", batch_norm_train, ROUGH, N(T(IN_REAL, 3, 2, 2, 2), T(IN_REAL, 2), T(IN_REAL, 2))},
    {"batch_norm", "of all ranks", batch_norm_sync, ONCE | ROUGH,
     N(T(IN_REAL, 3, 2, 2, 2), T(IN_REAL, 2), T(IN_REAL, 2))},
    {"batch_norm", "2-D", batch_norm_train, ROUGH, N(T(IN_REAL, 5, 3), T(IN_REAL, 3), T(IN_REAL, 3))},
    {"batch_norm", "bare", batch_norm_bare, ROUGH, N(T(IN_REAL, 3, 2, 3))},
    {"batch_norm", "evaluation", batch_norm_eval, ROUGH,
     N(T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 3), T(IN_REAL, 3), T(IN_STAT, 3), T(IN_STAT, 3))},
    {"batch_norm", "large", batch_norm_train, LARGE, N(T(IN_REAL, 16, 8, 19, 19), T(IN_REAL, 8), T(IN_REAL, 8))},
    {"batch_norm", "larger planes", batch_norm_train, LARGE,
     N(T(IN_REAL, 3, 3, 64, 64), T(IN_REAL, 3), T(IN_REAL, 3))},
    {"batch_norm", "many rows", batch_norm_train, LARGE, N(T(IN_REAL, 700, 5), T(IN_REAL, 5), T(IN_REAL, 5))},
    {"softmax", "last", softmax_last, ROUGH, N(T(IN_REAL, 3, 4))},
    {"softmax", "dim 1", softmax_1, ROUGH, N(T(IN_REAL, 2, 3, 2))},
    {"softmax", "0-dim", softmax_last, ROUGH, N(SCALAR(IN_REAL))},
    {"softmax", "no rows", softmax_last, 0, N(T(IN_REAL, 0, 3))},
    {"softmax", "of nothing", softmax_last, 0, N(T(IN_REAL, 3, 0))},
    {"softmax", "large", softmax_last, LARGE, N(T(IN_REAL, 200, 300))},
    {"softmax", "longer rows", softmax_last, LARGE, N(T(IN_REAL, 5, 2052))},
    {"softmax", "long rows", softmax_last, LARGE, N(T(IN_REAL, 2, 9004))},
    {"softmax_backward", "dim 1", softmax_back, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_UNIT, 2, 3, 2))},
    {"softmax_backward", "longer rows", softmax_back, LARGE, N(T(IN_REAL, 5, 2052), T(IN_UNIT, 5, 2052))},
    {"softmax_backward", "long rows", softmax_back, LARGE, N(T(IN_REAL, 2, 9004), T(IN_UNIT, 2, 9004))},
    {"log_softmax", "last", log_softmax_last, ROUGH, N(T(IN_REAL, 3, 4))},
    {"log_softmax", "dim 1", log_softmax_1, ROUGH, N(T(IN_REAL, 2, 3, 2))},
    {"log_softmax", "0-dim", log_softmax_last, ROUGH, N(SCALAR(IN_REAL))},
    {"log_softmax", "no rows", log_softmax_last, 0, N(T(IN_REAL, 0, 3))},
    {"log_softmax", "large", log_softmax_1, LARGE, N(T(IN_REAL, 100, 30, 40))},
    {"log_softmax", "longer rows", log_softmax_last, LARGE, N(T(IN_REAL, 5, 2052))},
    {"log_softmax", "long rows", log_softmax_last, LARGE, N(T(IN_REAL, 2, 9004))},
    {"log_softmax_backward", "dim 1", log_softmax_back, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_REAL, 2, 3, 2))},
    {"log_softmax_backward", "longer rows", log_softmax_back, LARGE, N(T(IN_REAL, 5, 2052), T(IN_REAL, 5, 2052))},
    {"log_softmax_backward", "long rows", log_softmax_back, LARGE, N(T(IN_REAL, 2, 9004), T(IN_REAL, 2, 9004))},
    {"cross_entropy", "mean", loss_mean, ROUGH, N(T(IN_REAL, 4, 5), T(IN_IGNORE, 4))},
    {"cross_entropy", "sum, smoothed", loss_sum, ROUGH, N(T(IN_REAL, 2, 5, 3), T(IN_IGNORE, 2, 3))},
    {"cross_entropy", "each, smoothed", loss_none, ROUGH, N(T(IN_REAL, 4, 5), T(IN_INDEX, 4))},
    {"cross_entropy", "no rows", loss_mean, 0, N(T(IN_REAL, 0, 5), T(IN_INDEX, 0))},
    {"cross_entropy", "large", loss_mean, LARGE, N(T(IN_REAL, 1030, 150), T(IN_IGNORE, 1030))},
    {"cross_entropy", "weighted, smoothed", loss_weighted, ROUGH,
     N(T(IN_REAL, 2, 5, 3), T(IN_IGNORE, 2, 3), T(IN_WEIGHT, 5))},
    {"cross_entropy_soft", "mean", soft_mean, ROUGH, N(T(IN_REAL, 4, 5), T(IN_UNIT, 4, 5))},
    {"cross_entropy_soft", "each, weighted, smoothed", soft_weighted, ROUGH,
     N(T(IN_REAL, 2, 5, 3), T(IN_UNIT, 2, 5, 3), T(IN_WEIGHT, 5))},
    {"cross_entropy_soft", "4-D", soft_weighted, ROUGH,
     N(T(IN_REAL, 2, 3, 2, 2), T(IN_UNIT, 2, 3, 2, 2), T(IN_WEIGHT, 3))},
    {"cross_entropy_soft", "large", soft_mean, LARGE, N(T(IN_REAL, 700, 150), T(IN_UNIT, 700, 150))},
    {"nll_loss", "mean", nll_mean, ROUGH, N(T(IN_REAL, 4, 5), T(IN_IGNORE, 4))},
    {"nll_loss", "[C]", nll_mean, ROUGH, N(T(IN_REAL, 5), SCALAR(IN_INDEX))},
    {"nll_loss", "weighted", nll_weighted, ROUGH, N(T(IN_REAL, 2, 5, 3), T(IN_IGNORE, 2, 3), T(IN_WEIGHT, 5))},
    {"nll_loss", "each, 4-D", nll_none, ROUGH, N(T(IN_REAL, 2, 5, 2, 2), T(IN_IGNORE, 2, 2, 2), T(IN_WEIGHT, 5))},
    {"nll_loss", "no rows", nll_mean, 0, N(T(IN_REAL, 0, 5), T(IN_INDEX, 0))},
    {"nll_loss", "large", nll_weighted, LARGE, N(T(IN_REAL, 9000, 5), T(IN_IGNORE, 9000), T(IN_WEIGHT, 5))},
    {"nll_loss_backward", "each", nll_back, 0, N(T(IN_REAL, 4), T(IN_IGNORE, 4), SCALAR(IN_WEIGHT))},
#define POINT_SHAPES(name, one, two)                                                                           \
    {#name, "4-D", name##_0, ROUGH, N(T(one, 2, 3, 2, 2), T(two, 2, 3, 2, 2))},                                \
        {#name, "mean", name##_1, ROUGH, N(T(one, 3, 4), T(two, 3, 4))},                                       \
        {#name, "sum, 4-D", name##_2, ROUGH, N(T(one, 2, 3, 2, 2), T(two, 2, 3, 2, 2))},                       \
        {#name, "0-dim", name##_1, ROUGH, N(SCALAR(one), SCALAR(two))},                                        \
        {#name, "empty", name##_2, ROUGH, N(T(one, 3, 0), T(two, 3, 0))},                                      \
        {#name, "large", name##_1, LARGE, N(T(one, 130, 1025), T(two, 130, 1025))},                            \
        {#name, "large, each", name##_0, LARGE, N(T(one, 130, 1025), T(two, 130, 1025))}
#define POINT_BROADCAST(name, one, two)                                                                        \
    POINT_SHAPES(name, one, two), {#name, "row", name##_1, ROUGH, N(T(one, 3, 4), T(two, 4))},                 \
        {#name, "outer", name##_0, ROUGH, N(T(one, 2, 1, 4), T(two, 3, 1))}
    POINT_BROADCAST(mse_loss, IN_REAL, IN_REAL),
    POINT_BROADCAST(l1_loss, IN_POSITIVE, IN_NEGATIVE),
    POINT_BROADCAST(smooth_l1_loss, IN_REAL, IN_ODD),
    POINT_BROADCAST(huber_loss, IN_REAL, IN_ODD),
    POINT_SHAPES(binary_cross_entropy, IN_UNIT, IN_UNIT),
    {"binary_cross_entropy", "weighted", bce_weighted, ROUGH, N(T(IN_UNIT, 3, 4), T(IN_UNIT, 3, 4), T(IN_MASK, 4))},
    POINT_SHAPES(binary_cross_entropy_with_logits, IN_REAL, IN_UNIT),
    {"binary_cross_entropy_with_logits", "weighted", logits_weighted, ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_UNIT, 3, 4), T(IN_MASK, 3, 1), T(IN_WEIGHT, 4))},
    POINT_BROADCAST(kl_div, IN_REAL, IN_UNIT),
    {"kl_div", "logarithms, batch", kl_log, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4))},
    POINT_BROADCAST(poisson_nll_loss, IN_POSITIVE, IN_POSITIVE),
    {"poisson_nll_loss", "logarithm, full", poisson_log_full, ROUGH, N(T(IN_REAL, 3, 4), T(IN_ODD, 3, 4))},
    {"poisson_nll_loss", "full", poisson_full, ROUGH, N(T(IN_POSITIVE, 3, 4), T(IN_ODD, 4))},
    POINT_SHAPES(hinge_embedding_loss, IN_REAL, IN_SIGN),
    {"margin_ranking_loss", "mean", margin_ranking_loss_1, ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4), T(IN_SIGN, 3, 4))},
    {"margin_ranking_loss", "each, row of targets", margin_ranking_loss_0, ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_REAL, 4), T(IN_SIGN, 4))},
    {"margin_ranking_loss", "sum, 4-D", margin_ranking_loss_2, ROUGH,
     N(T(IN_REAL, 2, 3, 2, 2), T(IN_REAL, 2, 3, 2, 2), T(IN_SIGN, 2, 3, 2, 2))},
    {"margin_ranking_loss", "large", margin_ranking_loss_1, LARGE,
     N(T(IN_REAL, 130, 1025), T(IN_REAL, 130, 1025), T(IN_SIGN, 130, 1025))},
    POINT_BROADCAST(soft_margin_loss, IN_REAL, IN_REAL),
    {"cosine_margin", "mean", cosine_row, ROUGH, N(T(IN_UNIT, 3, 4), T(IN_SIGN, 3, 4))},
    {"loss_slope", "alike", slope_of, ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4), T(IN_REAL, 3, 4))},
    {"loss_slope", "one dy", slope_of, ROUGH, N(SCALAR(IN_REAL), T(IN_REAL, 3, 4), T(IN_REAL, 4))},
    {"cosine_embedding_loss", "[3,4]", cosine_mean, COMPOSITE | ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_REAL, 3, 4), T(IN_SIGN, 3))},
    {"triplet_margin_loss", "p = 2", triplet_2, COMPOSITE | ROUGH,
     N(T(IN_REAL, 3, 4), T(IN_POSITIVE, 3, 4), T(IN_NEGATIVE, 3, 4))},
    {"triplet_margin_loss", "p = 3, swapped", triplet_3, COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 3), T(IN_POSITIVE, 2, 3), T(IN_NEGATIVE, 2, 3))},
    {"multi_margin_loss", "mean", margin_1, ONCE | ROUGH, N(T(IN_REAL, 4, 5), T(IN_INDEX, 4))},
    {"multi_margin_loss", "[C]", margin_1, ONCE | ROUGH, N(T(IN_REAL, 5), SCALAR(IN_INDEX))},
    {"multi_margin_loss", "squares, weighted, each", margin_2, ONCE | ROUGH,
     N(T(IN_REAL, 4, 5), T(IN_INDEX32, 4), T(IN_WEIGHT, 5))},
    {"multi_margin_loss", "large", margin_1, ONCE | LARGE, N(T(IN_REAL, 3000, 5), T(IN_INDEX, 3000))},
    {"multilabel_margin_loss", "mean", labels_mean, ONCE | ROUGH, N(T(IN_ODD, 4, 5), T(IN_INDEX, 4, 5))},
    {"multilabel_margin_loss", "each", labels_none, ONCE | ROUGH, N(T(IN_ODD, 4, 5), T(IN_INDEX, 4, 5))},
    {"ctc_loss", "mean", ctc_mean, ONCE | ROUGH, N(T(IN_REAL, 6, 3, 6), T(IN_INDEX, 3, 2))},
    {"ctc_loss", "each", ctc_none, ONCE | ROUGH, N(T(IN_REAL, 7, 2, 6), T(IN_INDEX32, 2, 3))},
    {"ctc_loss", "large", ctc_none, ONCE | LARGE, N(T(IN_REAL, 60, 5, 6), T(IN_INDEX, 5, 20))},
    {"embedding", "[2,3]", do_embedding, ROUGH, N(T(IN_REAL, 5, 3), T(IN_INDEX, 2, 3))},
    {"embedding", "int32", do_embedding, ROUGH, N(T(IN_REAL, 5, 2), T(IN_INDEX32, 4))},
    {"embedding", "0-dim", do_embedding, 0, N(T(IN_REAL, 5, 3), SCALAR(IN_INDEX))},
    {"embedding", "empty", do_embedding, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 0))},
    {"embedding", "large", do_embedding, LARGE, N(T(IN_REAL, 5, 128), T(IN_INDEX, 40, 50))},
    {"embedding_backward", "[2,3]", embedding_back, ROUGH, N(T(IN_REAL, 2, 3, 4), T(IN_INDEX, 2, 3))},
    {"cat", "dim 1", cat_1, 0, N(T(IN_REAL, 2, 1), T(IN_REAL, 2, 3), T(IN_REAL, 2, 2))},
    {"cat", "with an empty one", cat_1, 0, N(T(IN_REAL, 2, 1), T(IN_REAL, 2, 0), T(IN_REAL, 2, 2))},
    {"cat", "with an empty 1-D one", cat_0, 0, N(T(IN_REAL, 0), T(IN_REAL, 2, 2))},
    {"cat", "20 of two", cat_many, ROUGH, N(T(IN_REAL, 2, 1, 2), T(IN_REAL, 2, 1, 1))},
    {"cat", "large", cat_1, LARGE, N(T(IN_REAL, 300, 70), T(IN_REAL, 300, 130), T(IN_REAL, 300, 1))},
    {"cat", "stacked", stack_1, 0, N(T(IN_REAL, 2, 3), T(IN_REAL, 2, 3))},
    {"gather", "dim 0", gather_0, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 4, 2))},
    {"gather", "last", gather_last, ROUGH, N(T(IN_REAL, 2, 3, 5), T(IN_INDEX32, 2, 3, 7))},
    {"gather", "0-dim", gather_0, 0, N(SCALAR(IN_REAL), {IN_INDEX, 0, {0}, 1})},
    {"gather", "empty", gather_0, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 0, 3))},
    {"gather", "slices of dim 0", select_0, ROUGH, N(T(IN_REAL, 5, 3, 4), T(IN_INDEX, 6))},
    {"gather", "slices of the last", select_last, ROUGH, N(T(IN_REAL, 4, 5), T(IN_INDEX, 6))},
    {"gather", "large", gather_0, ROUGH | LARGE, N(T(IN_REAL, 5, 3000), T(IN_INDEX, 70, 3000))},
    {"gather", "large slices", select_0, ROUGH | LARGE, N(T(IN_REAL, 5, 3000), T(IN_INDEX, 70))},
    {"scatter", "dim 0", scatter_0, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 4, 2), T(IN_REAL, 4, 3))},
    {"scatter", "last", scatter_last, 0, N(T(IN_REAL, 2, 5), T(IN_INDEX, 2, 3), T(IN_REAL, 2, 3))},
    {"scatter", "a number", scatter_number, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 2, 3))},
    {"scatter", "0-dim", scatter_0, 0, N(SCALAR(IN_REAL), {IN_INDEX, 0, {0}, 1}, SCALAR(IN_REAL))},
    {"scatter", "nothing", scatter_0, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 0, 3), T(IN_REAL, 0, 3))},
    {"scatter", "large", scatter_0, LARGE, N(T(IN_REAL, 5, 9000), T(IN_INDEX, 20, 9000), T(IN_REAL, 20, 9000))},
    {"index_copy", "dim 0", index_copy_0, 0, N(T(IN_REAL, 5, 3, 3), T(IN_INDEX, 4), T(IN_REAL, 4, 3, 3))},
    {"index_copy", "large", index_copy_0, LARGE, N(T(IN_REAL, 5, 9000), T(IN_INDEX, 20), T(IN_REAL, 20, 9000))},
    {"scatter_add", "dim 0", scatter_add_0, ROUGH, N(T(IN_REAL, 5, 3), T(IN_INDEX, 7, 2), T(IN_REAL, 7, 2))},
    {"scatter_add", "last", scatter_add_last, ROUGH, N(T(IN_REAL, 2, 5), T(IN_INDEX, 2, 7), T(IN_REAL, 2, 7))},
    {"scatter_add", "slices", index_add_0, ROUGH, N(T(IN_REAL, 5, 3, 4), T(IN_INDEX, 7), T(IN_REAL, 7, 3, 4))},
    {"scatter_add", "0-dim", scatter_add_0, ROUGH, N(SCALAR(IN_REAL), {IN_INDEX, 0, {0}, 1}, SCALAR(IN_REAL))},
    {"scatter_add", "large", scatter_add_0, LARGE, N(T(IN_REAL, 5, 9000), T(IN_INDEX, 20, 9000), T(IN_REAL, 20, 9000))},
    {"scatter_add", "large lines", scatter_add_last, LARGE,
     N(T(IN_REAL, 9, 5), T(IN_INDEX, 9, 9000), T(IN_REAL, 9, 9000))},
    {"scatter_add", "large slices", index_add_0, LARGE, N(T(IN_REAL, 5, 3000), T(IN_INDEX, 70), T(IN_REAL, 70, 3000))},
    {"index", "one", index_1, ROUGH, N(T(IN_REAL, 5, 3), T(IN_INDEX, 2, 4))},
    {"index", "two", index_2, ROUGH, N(T(IN_REAL, 5, 5, 2), T(IN_INDEX, 3, 1), T(IN_INDEX32, 4))},
    {"index", "two apart", index_apart, ROUGH, N(T(IN_REAL, 5, 2, 5), T(IN_INDEX, 3, 1), T(IN_INDEX, 2))},
    {"index", "two behind", index_behind, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 5, 5), T(IN_INDEX, 3), T(IN_INDEX, 3))},
    {"index", "none", index_1, 0, N(T(IN_REAL, 5, 3), T(IN_INDEX, 0))},
    {"index", "large", index_1, LARGE, N(T(IN_REAL, 5, 900), T(IN_INDEX, 200))},
    {"index_put", "two", index_put_2, 0, N(T(IN_REAL, 5, 5), T(IN_REAL, 3, 2), T(IN_INDEX, 3, 1), T(IN_INDEX, 2))},
    {"index_put", "two, added", index_put_add, ROUGH,
     N(T(IN_REAL, 5, 5, 2), T(IN_REAL, 7, 1), T(IN_INDEX, 7), T(IN_INDEX, 7))},
    {"index_put", "one row to many", index_put_row, ROUGH, N(T(IN_REAL, 5, 3), T(IN_REAL, 3), T(IN_INDEX, 6))},
    {"index_put", "behind", index_put_behind, COMPOSITE | ROUGH, N(T(IN_REAL, 2, 5), T(IN_REAL, 2, 4), T(IN_INDEX, 4))},
    {"index_put", "nothing", index_put_row, 0, N(T(IN_REAL, 5, 3), T(IN_REAL, 3), T(IN_INDEX, 0))},
    {"index_put", "large", index_put_row, LARGE, N(T(IN_REAL, 5, 900), T(IN_REAL, 200, 900), T(IN_INDEX, 200))},
    {"pad", "2 dims", do_pad, 0, N(T(IN_REAL, 2, 3, 2))},
    {"pad", "cut", pad_cut, 0, N(T(IN_REAL, 2, 4))},
    {"pad", "to nothing", pad_cut, 0, N(T(IN_REAL, 2, 2))},
    {"pad", "large", do_pad, LARGE, N(T(IN_REAL, 90, 900))},
    {"triu", "upper", do_triu, 0, N(T(IN_REAL, 2, 3, 4))},
    {"triu", "lower", do_tril, 0, N(T(IN_REAL, 4, 3))},
    {"triu", "empty", do_tril, 0, N(T(IN_REAL, 0, 3))},
    {"triu", "large", do_tril, LARGE, N(T(IN_REAL, 300, 300))},
    ALL_SHAPES("flip", flip_all, IN_REAL, 0),
    {"flip", "dim 0", flip_0, 0, N(T(IN_REAL, 3, 4))},
    {"flip", "rolled", roll_2, COMPOSITE, N(T(IN_REAL, 3, 4))},
    {"expand", "repeated", repeat_2, COMPOSITE | ROUGH, N(T(IN_REAL, 3, 2))},
    {"diagonal", "[3,2,4]", diagonal_1, 0, N(T(IN_REAL, 3, 2, 4))},
    {"diagonal", "below", diagonal_back, 0, N(T(IN_REAL, 3, 3, 2))},
    {"diagonal", "none", diagonal_1, 0, N(T(IN_REAL, 2, 1))},
    {"diag_embed", "[2,3]", embed_1, 0, N(T(IN_REAL, 2, 3))},
    {"diag_embed", "of nothing", embed_1, 0, N(T(IN_REAL, 2, 0))},
    {"trace", "[3,4]", do_trace, ROUGH, N(T(IN_REAL, 3, 4))},
    {"trace", "of nothing", do_trace, 0, N(T(IN_REAL, 0, 2))},
    {"cross", "last", cross_last, ROUGH, N(T(IN_REAL, 2, 3), T(IN_REAL, 3))},
    {"cross", "dim 1", cross_1, ROUGH, N(T(IN_REAL, 2, 3, 2), T(IN_REAL, 2, 3, 1))},
    {"cross", "none", cross_last, 0, N(T(IN_REAL, 0, 3), T(IN_REAL, 0, 3))},
    {"cross", "large", cross_1, LARGE, N(T(IN_REAL, 3, 3, 40000), T(IN_REAL, 3, 3, 1))},
    {"sort", "last", sort_last, 0, N(T(IN_APART, 3, 4))},
    {"sort", "dim 0, falling", sort_0, 0, N(T(IN_APART, 5, 3))},
    {"sort", "first 2", top_2, 0, N(T(IN_APART, 3, 5, 2))},
    {"sort", "0-dim", sort_0, 0, N(SCALAR(IN_APART))},
    {"sort", "of nothing", sort_last, 0, N(T(IN_APART, 3, 0))},
    {"sort", "large", sort_last, LARGE, N(T(IN_REAL, 60, 3000))},
    {"sort", "large, first 2", top_2, LARGE, N(T(IN_REAL, 60, 900))},
    {"quantile", "kept", quantile_1, COMPOSITE | ROUGH, N(T(IN_APART, 2, 4, 3))},
    {"quantile", "three", quantiles_0, COMPOSITE | ROUGH, N(T(IN_APART, 5, 3))},
    {"quantile", "all, no NaN", nanquantile_all, COMPOSITE | ROUGH, N(T(IN_APART, 5, 3))},
    {"quantile", "0-dim", nanquantile_all, COMPOSITE | ROUGH, N(SCALAR(IN_APART))},
    {"cdist", "p 2", cdist_2, ONCE | ROUGH, N(T(IN_REAL, 3, 4), T(IN_REAL, 2, 4))},
    {"cdist", "p 1", cdist_1, ONCE | ROUGH, N(T(IN_AWAY, 2, 3, 3), T(IN_POSITIVE, 2, 3))},
    {"cdist", "p 3.5", cdist_3, ONCE | ROUGH, N(T(IN_REAL, 3, 3), T(IN_REAL, 2, 4, 3))},
    {"cdist", "p inf", cdist_inf, ONCE | ROUGH, N(T(IN_APART, 3, 4), T(IN_UNIT, 2, 4))},
    {"cdist", "p 0", cdist_0, ONCE, N(T(IN_AWAY, 2, 3), T(IN_POSITIVE, 2, 3))},
    {"cdist", "no columns", cdist_2, ONCE, N(T(IN_REAL, 3, 0), T(IN_REAL, 2, 0))},
    {"cdist", "large", cdist_2, ONCE | LARGE, N(T(IN_REAL, 2, 70, 40), T(IN_REAL, 2, 150, 40))},
    {"pdist", "p 2", pdist_2, ONCE | ROUGH, N(T(IN_REAL, 4, 3))},
    {"pdist", "p 1.5", pdist_1, ONCE | ROUGH, N(T(IN_APART, 4, 3))},
    {"pdist", "large", pdist_2, ONCE | LARGE, N(T(IN_REAL, 150, 9))},
    {"attention", "plain", attend, ROUGH,
     N(T(IN_REAL, 1, 2, 3, 4), T(IN_REAL, 1, 2, 5, 4), T(IN_REAL, 1, 2, 5, 3))},
    {"attention", "causal", attend_causal, ROUGH,
     N(T(IN_REAL, 2, 1, 3, 2), T(IN_REAL, 2, 1, 4, 2), T(IN_REAL, 2, 1, 4, 2))},
    {"attention", "bool mask", attend_masked, ROUGH,
     N(T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 4, 2), T(IN_REAL, 1, 2, 4, 2), T(IN_BOOL, 3, 4))},
    {"attention", "added mask", attend_masked, ROUGH,
     N(T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 4, 2), T(IN_REAL, 1, 2, 4, 2), T(IN_MASK, 1, 1, 3, 4))},
    {"attention", "dropout", attend_dropout, ONCE | ROUGH,
     N(T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 3, 2))},
    {"attention", "rows of 16 bytes", attend_causal, ROUGH,
     N(T(IN_REAL, 1, 1, 3, 8), T(IN_REAL, 1, 1, 4, 8), T(IN_REAL, 1, 1, 4, 8))},
    {"attention", "no queries", attend, 0,
     N(T(IN_REAL, 1, 2, 0, 2), T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 3, 2))},
    {"attention", "no keys", attend, 0, N(T(IN_REAL, 1, 2, 3, 2), T(IN_REAL, 1, 2, 0, 2), T(IN_REAL, 1, 2, 0, 2))},
    {"attention", "large", attend_causal, LARGE,
     N(T(IN_REAL, 2, 4, 65, 16), T(IN_REAL, 2, 4, 65, 16), T(IN_REAL, 2, 4, 65, 16))},
    {"multi_head_attention", "self, weights", mha_self, COMPOSITE | ROUGH | CHAIN,
     N(T(IN_UNIT, 2, 3, 4), T(IN_UNIT, 12, 4), T(IN_REAL, 12), T(IN_UNIT, 4, 4), T(IN_REAL, 4))},
    {"multi_head_attention", "cross, mask", mha_cross, COMPOSITE | ROUGH | CHAIN,
     N(T(IN_UNIT, 2, 2, 3), T(IN_UNIT, 2, 4, 3), T(IN_UNIT, 2, 4, 3), T(IN_UNIT, 9, 3), T(IN_UNIT, 3, 3),
       T(IN_MASK, 2, 4))},
    {"rnn_steps", "tanh", steps_tanh, ONCE | ROUGH,
     N(T(IN_REAL, 3, 2, 4), T(IN_UNIT, 4, 4), T(IN_REAL, 4), T(IN_REAL, 2, 4))},
    {"rnn_steps", "relu, reverse", steps_relu, ONCE | ROUGH,
     N(T(IN_ODD, 3, 2, 5), T(IN_UNIT, 5, 5), T(IN_REAL, 5), T(IN_REAL, 2, 5))},
    {"rnn_steps", "gru, lengths", steps_gru, ONCE | ROUGH,
     N(T(IN_REAL, 4, 3, 6), T(IN_REAL, 6, 2), T(IN_REAL, 6), T(IN_REAL, 3, 2), T(IN_INDEX, 3))},
    {"rnn_steps", "gru, reverse", steps_gru_back, ONCE | ROUGH,
     N(T(IN_REAL, 3, 2, 9), T(IN_REAL, 9, 3), T(IN_REAL, 9), T(IN_REAL, 2, 3))},
    {"rnn_steps", "lstm", steps_lstm, ONCE | ROUGH,
     N(T(IN_REAL, 3, 2, 12), T(IN_REAL, 12, 3), T(IN_REAL, 12), T(IN_REAL, 2, 3), T(IN_REAL, 2, 3))},
    {"rnn_steps", "lstm, reverse, lengths", steps_lstm_back, ONCE | ROUGH,
     N(T(IN_REAL, 4, 3, 8), T(IN_REAL, 8, 2), T(IN_REAL, 8), T(IN_REAL, 3, 2), T(IN_REAL, 3, 2), T(IN_INDEX, 3))},
    {"rnn_steps", "lstm, lengths", steps_lstm_lengths, ONCE | ROUGH,
     N(T(IN_REAL, 4, 3, 8), T(IN_REAL, 8, 2), T(IN_REAL, 8), T(IN_REAL, 3, 2), T(IN_REAL, 3, 2), T(IN_INDEX, 3))},
    {"rnn_steps", "lstm, batch first", steps_batch_first, ONCE | ROUGH,
     N(T(IN_REAL, 2, 3, 8), T(IN_REAL, 8, 2), T(IN_REAL, 8), T(IN_REAL, 2, 2), T(IN_REAL, 2, 2))},
    {"rnn_steps", "no steps", steps_lstm, ONCE | ROUGH,
     N(T(IN_REAL, 0, 2, 12), T(IN_REAL, 12, 3), T(IN_REAL, 12), T(IN_REAL, 2, 3), T(IN_REAL, 2, 3))},
    {"rnn_steps", "no sequences", steps_gru_back, ONCE | ROUGH,
     N(T(IN_REAL, 3, 0, 9), T(IN_REAL, 9, 3), T(IN_REAL, 9), T(IN_REAL, 0, 3))},
    {"rnn_steps", "large", steps_lstm, ONCE | ROUGH | LARGE,
     N(T(IN_REAL, 5, 50, 160), T(IN_REAL, 160, 40), T(IN_REAL, 160), T(IN_REAL, 50, 40), T(IN_REAL, 50, 40))},
    {"rnn", "both directions", rnn_both, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 2, 3), T(IN_UNIT, 3, 4), T(IN_UNIT, 3, 3), T(IN_REAL, 3), T(IN_REAL, 3))},
    {"gru", "both directions", gru_both, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 3, 4), T(IN_REAL, 2, 2, 2), T(IN_UNIT, 6, 4), T(IN_UNIT, 6, 2), T(IN_REAL, 6), T(IN_REAL, 6))},
    {"lstm", "one layer", lstm_one, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 3, 2, 4), T(IN_REAL, 1, 2, 2), T(IN_REAL, 1, 2, 2), T(IN_UNIT, 8, 4), T(IN_UNIT, 8, 2),
       T(IN_REAL, 8), T(IN_REAL, 8))},
    {"lstm", "deep", lstm_deep, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 4, 2, 3), T(IN_REAL, 2, 2, 3), T(IN_UNIT, 12, 3), T(IN_UNIT, 12, 3))},
    {"rnn_cell", "plain", do_rnn_cell, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 4), T(IN_REAL, 2, 3), T(IN_UNIT, 3, 4), T(IN_UNIT, 3, 3), T(IN_REAL, 3), T(IN_REAL, 3))},
    {"gru_cell", "plain", do_gru_cell, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 4), T(IN_REAL, 2, 3), T(IN_UNIT, 9, 4), T(IN_UNIT, 9, 3), T(IN_REAL, 9), T(IN_REAL, 9))},
    {"lstm_cell", "plain", do_lstm_cell, ONCE | COMPOSITE | ROUGH,
     N(T(IN_REAL, 2, 4), T(IN_REAL, 2, 2), T(IN_REAL, 2, 2), T(IN_UNIT, 8, 4), T(IN_UNIT, 8, 2), T(IN_REAL, 8),
       T(IN_REAL, 8))},
};
const int sample_count = (int)(sizeof samples / sizeof *samples);
const char *const layout_names[LAYOUTS] = {"row-major", "reversed", "sliced", "channels-last"};

int sample_differentiable(const sample *s, int i) { return i < s->nin && s->in[i].kind <= IN_LAST_FLOAT; }

static uint32_t mix(uint64_t i, uint64_t seed)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xd1b54a32d192ed03u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 40);
}

static double value_of(int kind, int64_t i, int64_t n, uint64_t seed, int64_t limit)
{
    uint32_t u = mix((uint64_t)i, seed);
    switch (kind) {
    case IN_REAL: return ((double)(u % 129) - 64) / 32;
    case IN_POSITIVE:
    case IN_STAT:
    case IN_WEIGHT: return 0.25 + (double)(u % 65) / 32;
    case IN_UNIT: return 0.125 + (double)(u % 97) / 128;
    case IN_AWAY: return (u & 1024 ? 1 : -1) * (0.25 + (double)(u % 57) / 32);
    case IN_APART: /* 37 has no common factor with any n here: a permutation */
        return ((double)(i * 37 % (n % 37 ? n : n + 1)) - (double)(n / 2)) / 8;
    case IN_NEGATIVE: return -0.125 - (double)(u % 65) / 32;
    case IN_ODD: return ((double)(u % 97) - 48.5) / 32;
    case IN_SIGN: return u & 1024 ? 1 : -1;
    case IN_MASK: return ((double)(u % 65) - 32) / 16;
    case IN_IGNORE: return i % 3 == 2 ? LKS_IGNORE_INDEX : (double)(u % (uint32_t)limit);
    case IN_BOOL: return u % 3 != 0 || i == 0;
    default: return (double)(u % (uint32_t)limit);
    }
}

int sample_has_layout(const sample *s, int layout)
{
    for (int i = 0; i < s->nin; i++)
        if (layout == CHANNELS_LAST ? s->in[i].ndim == 4 : s->in[i].ndim > 0) return 1;
    return layout == PLAIN;
}

static lks_tensor *plain(lks_context *ctx, const sample_input *in, lks_dtype dtype, uint64_t seed, int ndim,
                         const int64_t *shape, const int *order, const int64_t *start, int64_t step)
{
    int64_t n = 1, wanted = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    for (int d = 0; d < in->ndim; d++) wanted *= in->shape[d];
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    /* Where each element of the input lies in this memory; others are filled with what must not be read. */
    for (int64_t i = 0; i < n; i++) v[i] = in->kind >= IN_INDEX ? 1 : 99;
    for (int64_t i = 0; i < wanted; i++) {
        int64_t index[8], at = 0, rest = i;
        for (int d = in->ndim - 1; d >= 0; d--) {
            index[d] = rest % in->shape[d];
            rest /= in->shape[d];
        }
        for (int d = 0; d < ndim; d++) {
            int64_t k = index[order ? order[d] : d];
            at = at * shape[d] + (start ? start[d] + k * (d == ndim - 1 ? step : 1) : k);
        }
        v[at] = value_of(in->kind, i, wanted, seed, in->limit);
    }
    lks_tensor *t = lks_from_host(ctx, LKS_F64, ndim, shape, v);
    free(v);
    return lks_to(t, dtype);
}

lks_tensor *sample_tensor(lks_context *ctx, const sample *s, int i, lks_dtype dtype, int layout)
{
    const sample_input *in = &s->in[i];
    uint64_t seed = (uint64_t)i + 10;
    int order[8], back[8], n = in->ndim;
    int64_t shape[8] = {0}, start[8] = {0};
    if (in->kind == IN_STAT) dtype = LKS_F32;
    if (in->kind == IN_INDEX || in->kind == IN_IGNORE) dtype = LKS_I64;
    if (in->kind == IN_INDEX32) dtype = LKS_I32;
    if (in->kind == IN_BOOL) dtype = LKS_BOOL;
    if (n == 0 || layout == PLAIN || (layout == CHANNELS_LAST && n != 4))
        return plain(ctx, in, dtype, seed, n, in->shape, NULL, NULL, 1);
    if (layout == SLICED) {
        for (int d = 0; d < n; d++) {
            start[d] = 1;
            shape[d] = d == n - 1 ? 2 * in->shape[d] + 1 : in->shape[d] + 2;
        }
        lks_tensor *t = plain(ctx, in, dtype, seed, n, shape, NULL, start, 2);
        for (int d = 0; d < n; d++)
            t = d == n - 1 ? lks_slice(t, d, 1, 1 + 2 * in->shape[d], 2) : lks_slice(t, d, 1, 1 + in->shape[d], 1);
        return t;
    }
    static const int nhwc[4] = {0, 2, 3, 1};
    for (int d = 0; d < n; d++) {
        order[d] = layout == CHANNELS_LAST ? nhwc[d] : n - 1 - d;
        back[order[d]] = d;
        shape[d] = in->shape[order[d]];
    }
    return lks_permute(plain(ctx, in, dtype, seed, n, shape, order, NULL, 1), n, back);
}
