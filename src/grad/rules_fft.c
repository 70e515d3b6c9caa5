/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_fft.c - gradients of Fourier transforms, which are linear: the other direction with the same scale. Where only
 * half of a spectrum is kept, an inner frequency stands for itself and its mirror image: a factor of 2 one way, of 1/2
 * the other; the frequencies 0 and n/2 have no mirror image.
 */
#include "grad/rules.h"

RULE(fft_c2c)
{
    lksi_attr attr = *b->attr;
    attr.fft.inverse = !attr.fft.inverse;
    GIVE(0, lksi_call1(b->ctx, "fft_c2c", LKSI_OP_fft_c2c, 1, &b->g, &attr));
    return LKS_OK;
}

/* z times `inside` at the frequencies of its dim that have a mirror image; n: size of the real side. */
static lks_tensor *weighted(lks_tensor *z, int dim, int64_t n, double inside)
{
    if (!z) return NULL;
    int64_t shape[LKS_MAX_DIMS], half = z->v.shape[dim];
    for (int d = 0; d < z->v.ndim; d++) shape[d] = d == dim ? half : 1;
    lks_context *ctx = z->ctx;
    ctx->no_grad++;
    lks_tensor *w = lks_full(ctx, z->v.dtype == LKS_C64 ? LKS_F32 : LKS_F64, z->v.ndim, shape, inside);
    lks_status s = w ? lks_fill_(lks_slice(w, dim, 0, 1, 1), 1) : LKS_ERR_MEMORY;
    if (s == LKS_OK && n % 2 == 0) s = lks_fill_(lks_slice(w, dim, half - 1, half, 1), 1);
    ctx->no_grad--;
    return s == LKS_OK ? lks_mul(z, w) : NULL;
}

RULE(fft_r2c)
{
    lksi_meta m = lksi_back_meta(b, 0);
    lksi_attr attr = *b->attr;
    int dim = attr.fft.dims[attr.fft.n - 1];
    attr.fft.last = m.shape[dim];
    lks_tensor *g = weighted(b->g, dim, m.shape[dim], 0.5);
    GIVE(0, g ? lksi_call1(b->ctx, "fft_r2c", LKSI_OP_fft_c2r, 1, &g, &attr) : NULL);
    return LKS_OK;
}

RULE(fft_c2r)
{
    int dim = b->attr->fft.dims[b->attr->fft.n - 1];
    lks_tensor *g = lksi_call1(b->ctx, "fft_c2r", LKSI_OP_fft_r2c, 1, &b->g, b->attr);
    GIVE(0, weighted(g, dim, b->attr->fft.last, 2));
    return LKS_OK;
}
