/* SPDX-License-Identifier: BSD-3-Clause
 *
 * init.c - initialisers: in place, not recorded, the same numbers on every rank.
 */
#include "nn/module.h"
#include "base/guard.h"

#include <lockstep/ops.h>
#include <math.h>

/* Uniform on [-bound, bound), or normal with deviation `bound`. Rows of the global batch play no part here. */
static lks_status fill(lks_tensor *w, int normal, double bound)
{
    lks_context *ctx = w->ctx;
    int64_t first = ctx->row_first, count = ctx->row_count;
    TRY(lks_no_grad_begin(ctx));
    ctx->row_first = ctx->row_count = 0;
    lks_status s = normal ? lks_normal_(w, 0, bound) : lks_uniform_(w, -bound, bound);
    ctx->row_first = first;
    ctx->row_count = count;
    lks_no_grad_end(ctx);
    return s;
}

static lks_status fan(lks_tensor *w, const char *where, int64_t fan)
{
    if (!w || w == lks_none) return LKS_ERR_ARGUMENT;
    if (fan < 1) return lksi_fail(&w->ctx->base, LKS_ERR_ARGUMENT, where, "a fan of %lld", (long long)fan);
    return LKS_OK;
}

lks_status lks_init_kaiming_uniform(lks_tensor *w, int64_t fan_in)
{
    LKSI_GUARD;
    TRY(fan(w, "lks_init_kaiming_uniform", fan_in));
    return fill(w, 0, 1 / sqrt((double)fan_in));
}

lks_status lks_init_normal(lks_tensor *w, double std)
{
    LKSI_GUARD;
    TRY(fan(w, "lks_init_normal", 1));
    if (!(std >= 0)) return lksi_fail(&w->ctx->base, LKS_ERR_ARGUMENT, "lks_init_normal", "a deviation of %g", std);
    return fill(w, 1, std);
}

lks_status lks_init_xavier_uniform(lks_tensor *w, int64_t fan_in, int64_t fan_out)
{
    LKSI_GUARD;
    TRY(fan(w, "lks_init_xavier_uniform", fan_in));
    TRY(fan(w, "lks_init_xavier_uniform", fan_out));
    return fill(w, 0, sqrt(6 / ((double)fan_in + (double)fan_out)));
}

lks_status lks_init_kaiming_normal(lks_tensor *w, int64_t fan_in)
{
    LKSI_GUARD;
    TRY(fan(w, "lks_init_kaiming_normal", fan_in));
    return fill(w, 1, sqrt(2 / (double)fan_in));
}
