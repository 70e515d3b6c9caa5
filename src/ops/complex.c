/* SPDX-License-Identifier: BSD-3-Clause
 *
 * complex.c - public functions of complex tensors: making them of real ones and taking them apart.
 */
#include "ops/ops.h"

static lks_tensor *unary(const char *where, int op, lks_tensor *x)
{
    return x ? lksi_call1(x->ctx, where, op, 1, &x, NULL) : NULL;
}

static lks_tensor *binary(const char *where, int op, lks_tensor *a, lks_tensor *b)
{
    lks_tensor *in[2] = {a, b};
    lks_context *ctx = lksi_ctx(2, in);
    return ctx ? lksi_call1(ctx, where, op, 2, in, NULL) : NULL;
}

static int is_complex(const lks_tensor *x) { return x && lks_dtype_is_complex(x->v.dtype); }

lks_tensor *lksi_conj(lks_tensor *x)
{
    return is_complex(x) ? unary("lks_conj", LKSI_OP_conj, x) : x;
}

lks_tensor *lks_conj(lks_tensor *x) { return lksi_conj(x); }

lks_tensor *lks_abs(lks_tensor *x)
{
    return unary("lks_abs", is_complex(x) ? LKSI_OP_complex_abs : LKSI_OP_abs, x);
}

lks_tensor *lks_angle(lks_tensor *x) { return unary("lks_angle", LKSI_OP_angle, x); }
lks_tensor *lks_complex(lks_tensor *re, lks_tensor *im) { return binary("lks_complex", LKSI_OP_complex, re, im); }
lks_tensor *lks_polar(lks_tensor *abs, lks_tensor *angle) { return binary("lks_polar", LKSI_OP_polar, abs, angle); }
lks_tensor *lks_view_as_real(lks_tensor *x) { return unary("lks_view_as_real", LKSI_OP_view_as_real, x); }

lks_tensor *lks_view_as_complex(lks_tensor *x)
{
    lks_tensor *w;
    if (!x || lksi_composite_begin(x->ctx, "lks_view_as_complex", LKSI_OP_view_as_complex, 1, &x, &w)) return NULL;
    lks_tensor *y = unary("lks_view_as_complex", LKSI_OP_as_complex, w);
    lksi_composite_end(x->ctx, LKSI_OP_view_as_complex);
    return y;
}

/* A view: one column of the pairs. */
static lks_tensor *part(const char *where, lks_tensor *x, int64_t which)
{
    lks_tensor *pairs = unary(where, LKSI_OP_view_as_real, x);
    return pairs ? lks_select(pairs, -1, which) : NULL;
}

lks_tensor *lks_real(lks_tensor *x) { return is_complex(x) ? part("lks_real", x, 0) : x; }
lks_tensor *lks_imag(lks_tensor *x) { return x ? part("lks_imag", x, 1) : NULL; }
