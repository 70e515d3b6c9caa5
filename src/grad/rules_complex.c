/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rules_complex.c - gradients around complex tensors. The gradient of a real loss L in z = x + iy is dL/dx + i dL/dy
 * (the conjugate Wirtinger derivative times 2): down it L falls fastest, and for a holomorphic f it is g conj(f').
 * Where it goes to a real tensor the walk keeps its real part.
 */
#include "grad/rules.h"

RULE(view_as_real)
{
    GIVE(0, lks_view_as_complex(lks_contiguous(b->g)));
    return LKS_OK;
}

RULE(as_complex)
{
    lks_tensor *g = b->g;
    if (!lks_dtype_is_complex(g->v.dtype)) g = lks_to(g, b->node->out[0].dtype);
    GIVE(0, lks_view_as_real(g));
    return LKS_OK;
}

RULE(conj)
{
    GIVE(0, lks_conj(b->g));
    return LKS_OK;
}

RULE(complex)
{
    GIVE(0, lks_real(b->g));
    GIVE(1, lks_imag(b->g));
    return LKS_OK;
}

RULE(polar) /* y = r e^(i a) */
{
    lks_tensor *r = lksi_back_in(b, 0), *a = lksi_back_in(b, 1);
    lks_tensor *turn = lks_conj(lks_polar(lks_ones(b->ctx, r->v.dtype, 0, NULL), a));
    lks_tensor *g = lks_mul(b->g, turn);
    GIVE(0, lks_real(g));
    GIVE(1, lks_mul(lks_imag(g), r));
    return LKS_OK;
}

/* d, with 1 where it is 0: what is divided by it there is 0, too. */
static lks_tensor *not_zero(lks_tensor *d)
{
    if (!d) return NULL;
    lks_tensor *zero = lks_zeros(d->ctx, d->v.dtype, 0, NULL), *one = lks_ones(d->ctx, d->v.dtype, 0, NULL);
    return lks_where(lks_eq(d, zero), one, d);
}

RULE(complex_abs) /* x / |x|, 0 at 0 */
{
    lks_tensor *x = lksi_back_in(b, 0);
    GIVE(0, lks_mul(b->g, lks_div(x, not_zero(lks_abs(x)))));
    return LKS_OK;
}

RULE(angle) /* i x / |x|^2, 0 at 0 */
{
    lks_tensor *x = lksi_back_in(b, 0);
    if (!lks_dtype_is_complex(x->v.dtype)) {
        GIVE(0, lks_zeros(b->ctx, x->v.dtype, x->v.ndim, x->v.shape));
        return LKS_OK;
    }
    lks_tensor *a = not_zero(lks_abs(x)), *turned = lks_complex(lks_neg(lks_imag(x)), lks_real(x));
    GIVE(0, lks_mul(b->g, lks_div(lks_div(turned, a), a)));
    return LKS_OK;
}
