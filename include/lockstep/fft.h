/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/fft.h - complex tensors and Fourier transforms. Names and meanings are PyTorch's; what ops.h says is
 * common to all ops holds here.
 */
#ifndef LOCKSTEP_FFT_H
#define LOCKSTEP_FFT_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- complex ----------------------------------------------------------------------------------------------------
 * Complex tensors go through the functions that say so here, and through: views, copies and casts, add, sub, mul, div,
 * affine, exp, eq, ne, where, sum, mean, matmul, mm, bmm, mv, dot (no conjugate is taken), cat, stack, pad, flip, roll,
 * triu, tril, diagonal, diag_embed; a real operand counts as one with imaginary part 0. Any other function fails with
 * LKS_ERR_DTYPE. Parameters are real: view_as_complex of a real one [..., 2] is a complex parameter. Gradients follow
 * PyTorch: of a real loss in z = x + iy it is dL/dx + i dL/dy; autocast leaves complex tensors alone. */

/* x as pairs (real, imaginary) [..., 2], and back: views. For the way back the last dim has size 2 and stride 1, the
 * others even strides (lks_contiguous), float32 or float64. */
LKS_API lks_tensor *lks_view_as_real(lks_tensor *x);
LKS_API lks_tensor *lks_view_as_complex(lks_tensor *x);
/* Views of the parts. lks_real of a real tensor is that tensor; lks_imag needs a complex one. */
LKS_API lks_tensor *lks_real(lks_tensor *x);
LKS_API lks_tensor *lks_imag(lks_tensor *x);
/* re + i im; abs (cos angle + i sin angle): of two real tensors, broadcast. complex128 of float64, else complex64. */
LKS_API lks_tensor *lks_complex(lks_tensor *re, lks_tensor *im);
LKS_API lks_tensor *lks_polar(lks_tensor *abs, lks_tensor *angle);
/* Conjugate; a real tensor itself. */
LKS_API lks_tensor *lks_conj(lks_tensor *x);
/* Angle of x in [-pi, pi]; of real x 0, or pi where it is negative. Gradient at 0 is 0. */
LKS_API lks_tensor *lks_angle(lks_tensor *x);

/* --- Fourier transforms ------------------------------------------------------------------------------------------
 * By FFTW 3, on a GPU by cuFFT, in a module that is loaded at the first transform (without it the call is
 * LKS_ERR_UNSUPPORTED and says what is missing). X_k = sum x_j exp(-2 pi i j k / n), the inverse with +, over one dim,
 * the last two (...2), or any (...n). complex64 or complex128; real tensors count as complex, integers as float32;
 * float16 and bfloat16 are LKS_ERR_DTYPE outside a region. All are differentiable any number of times.
 *   n, sizes   points of the transform: the input is cut, or padded with zeros at its end; -1 or NULL: as it is
 *   dims       NULL: the last two; of ...n: the last ndims if sizes are given, else all
 *   norm       which direction is divided by the number of points: */
enum lks_fft_norm {
    LKS_FFT_BACKWARD, /* the inverse */
    LKS_FFT_ORTHO,    /* both, by the root of it */
    LKS_FFT_FORWARD   /* the forward one */
};
LKS_API lks_tensor *lks_fft_fft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_fft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_fftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_ifft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_ifft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_ifftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
/* Of real x: the frequencies 0 to n / 2 along the last dim named; the others are their conjugates. */
LKS_API lks_tensor *lks_fft_rfft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_rfft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_rfftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
/* Back to a real tensor of n points, -1: 2 (m - 1) for m frequencies. Imaginary parts at frequency 0 and, for even n,
 * n / 2 along the last dim named are not read. */
LKS_API lks_tensor *lks_fft_irfft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_irfft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_irfftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
/* Of x that is symmetric (half of it given, as the result of rfft is): the real spectrum; and the way back. */
LKS_API lks_tensor *lks_fft_hfft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_hfft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_hfftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_ihfft(lks_tensor *x, int64_t n, int dim, int norm);
LKS_API lks_tensor *lks_fft_ihfft2(lks_tensor *x, const int64_t *sizes, const int *dims, int norm);
LKS_API lks_tensor *lks_fft_ihfftn(lks_tensor *x, int ndims, const int64_t *sizes, const int *dims, int norm);
/* Frequency 0 to the middle along ndims dims (NULL: all), and back. */
LKS_API lks_tensor *lks_fft_fftshift(lks_tensor *x, int ndims, const int *dims);
LKS_API lks_tensor *lks_fft_ifftshift(lks_tensor *x, int ndims, const int *dims);
/* Frequencies of fft and rfft of n points that are d apart: k / (n d), in the order of the results. */
LKS_API lks_tensor *lks_fft_fftfreq(lks_context *ctx, lks_dtype dtype, int64_t n, double d);
LKS_API lks_tensor *lks_fft_rfftfreq(lks_context *ctx, lks_dtype dtype, int64_t n, double d);

enum lks_stft_flags {
    LKS_STFT_CENTER = 1,     /* frame t is around point t hop: n / 2 points are reflected at both ends */
    LKS_STFT_ZEROS = 2,      /* with CENTER: zeros there instead */
    LKS_STFT_NORMALIZED = 4, /* divided by sqrt(n) */
    LKS_STFT_TWOSIDED = 8    /* all n frequencies of a real signal; always for a complex one */
};
/* Short-time transform of x [L] or [B, L] in frames of n points, hop apart, each times window ([length], in the
 * middle of the frame; LKS_NONE: ones): [B, frequencies, frames]. flags: a sum of lks_stft_flags (PyTorch: CENTER).
 * istft: the signal whose frames these are (Griffin & Lim, 1984), cut or padded to `points` (-1: what there is); NaN
 * or infinite where all windows are 0. */
LKS_API lks_tensor *lks_stft(lks_tensor *x, int64_t n, int64_t hop, int64_t length, lks_tensor *window, int flags);
LKS_API lks_tensor *lks_istft(lks_tensor *z, int64_t n, int64_t hop, int64_t length, lks_tensor *window, int flags,
                              int64_t points);

#ifdef __cplusplus
}
#endif
#endif
