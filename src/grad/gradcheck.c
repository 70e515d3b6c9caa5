/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradcheck.c - analytic gradients against central differences. The output is weighted with fixed numbers of its own,
 * so that no op under test (mul, sum) is needed to make a scalar: the weights are the gradient given to backward.
 */
#include "grad/grad.h"
#include "base/guard.h"

#include <math.h>

/* Weight of output element i: fixed, irregular, of both signs. */
static double weight(int64_t i)
{
    return 0.5 + fmod(0.6180339887498949 * (double)(i + 1), 1.0) - (i % 3 == 1 ? 1.5 : 0);
}

/* Recorded each time, as f may ask for gradients itself. */
static lks_tensor *run(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs)
{
    int no_grad = ctx->no_grad;
    ctx->no_grad = 0;
    lks_tensor *y = f(user, inputs, n);
    ctx->no_grad = no_grad;
    if (!y) lksi_said(&ctx->base, LKS_ERR_ARGUMENT, "lks_gradcheck", "the function");
    return y;
}

/* sum of weight * f, on the host. */
static lks_status value(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs, double *sum)
{
    TRY(lks_scope_begin(ctx));
    lks_tensor *y = lks_to(run(ctx, f, user, n, inputs), LKS_F64);
    lks_status s = y ? LKS_OK : ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
    double *host = NULL;
    if (y && !(host = lksi_alloc(&ctx->base, y->numel * 8 + 8))) s = LKS_ERR_MEMORY;
    if (s == LKS_OK) s = lks_to_host(y, host, y->numel * 8);
    *sum = 0;
    for (int64_t i = 0; s == LKS_OK && i < y->numel; i++) *sum += weight(i) * host[i];
    lksi_free(&ctx->base, host);
    lks_scope_end(ctx);
    return s;
}

static lks_status analytic(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs,
                           double **grads)
{
    lks_tensor *y = run(ctx, f, user, n, inputs);
    if (!y) return ctx->base.code ? ctx->base.code : LKS_ERR_ARGUMENT;
    double *w = lksi_alloc(&ctx->base, y->numel * 8 + 8);
    lks_tensor **g = lksi_alloc(&ctx->base, (n + 1) * (int64_t)sizeof *g);
    if (!w || !g) {
        lksi_free(&ctx->base, w);
        lksi_free(&ctx->base, g);
        return LKS_ERR_MEMORY;
    }
    for (int64_t i = 0; i < y->numel; i++) w[i] = weight(i);
    lks_status s = LKS_OK;
    lks_tensor *seed = lks_to(lks_from_host(ctx, LKS_F64, y->v.ndim, y->v.shape, w), y->v.dtype);
    if (!seed) s = ctx->base.code;
    if (s == LKS_OK && y->requires_grad) s = lks_gradients(y, seed, n, inputs, 0, 0, g);
    for (int i = 0; i < n && s == LKS_OK; i++)
        if (g[i]) s = lks_to_host(g[i], grads[i], inputs[i]->numel * 8);
    lksi_free(&ctx->base, w);
    lksi_free(&ctx->base, g);
    return s;
}

lks_status lks_gradcheck(lks_context *ctx, lks_gradcheck_fn f, void *user, int n, lks_tensor *const *inputs,
                         double eps, double tolerance, double *worst)
{
    LKSI_GUARD;
    if (worst) *worst = 0;
    if (!f || n < 0 || lksi_any_null(n, inputs)) return LKS_ERR_ARGUMENT;
    for (int i = 0; i < n; i++) {
        if (inputs[i]->v.dtype != LKS_F64)
            return lksi_fail(&ctx->base, LKS_ERR_DTYPE, "lks_gradcheck", "input %d is %s; float64 is needed", i,
                             lks_dtype_name(inputs[i]->v.dtype));
        TRY(lks_set_requires_grad(inputs[i], 1));
    }
    double **grads = lksi_alloc(&ctx->base, 2 * (n + 1) * (int64_t)sizeof *grads), **host = grads + n + 1;
    if (!grads) return LKS_ERR_MEMORY;
    lks_status s = LKS_OK;
    for (int i = 0; i < n && s == LKS_OK; i++) {
        grads[i] = lksi_alloc(&ctx->base, inputs[i]->numel * 8 + 8);
        host[i] = lksi_alloc(&ctx->base, inputs[i]->numel * 8 + 8);
        s = grads[i] && host[i] ? lks_to_host(inputs[i], host[i], inputs[i]->numel * 8) : LKS_ERR_MEMORY;
    }
    if (s == LKS_OK && (s = lks_scope_begin(ctx)) == LKS_OK) {
        s = analytic(ctx, f, user, n, inputs, grads);
        lks_scope_end(ctx);
    }
    double bad = 0, bad_a = 0, bad_n = 0;
    int bad_input = 0;
    int64_t bad_element = 0;
    ctx->no_grad++;
    for (int i = 0; i < n && s == LKS_OK; i++)
        for (int64_t k = 0; k < inputs[i]->numel && s == LKS_OK; k++) {
            double x = host[i][k], up = 0, down = 0;
            int64_t bytes = inputs[i]->numel * 8;
            host[i][k] = x + eps;
            if ((s = lks_set_from_host(inputs[i], host[i], bytes)) == LKS_OK) s = value(ctx, f, user, n, inputs, &up);
            host[i][k] = x - eps;
            if (s == LKS_OK && (s = lks_set_from_host(inputs[i], host[i], bytes)) == LKS_OK)
                s = value(ctx, f, user, n, inputs, &down);
            host[i][k] = x;
            if (s != LKS_OK) break;
            s = lks_set_from_host(inputs[i], host[i], bytes);
            double numeric = (up - down) / (2 * eps), error = fabs(grads[i][k] - numeric) / (1 + fabs(numeric));
            if (!(error <= bad) && bad == bad) { /* NaN is worst */
                bad = error;
                bad_input = i;
                bad_element = k;
                bad_a = grads[i][k];
                bad_n = numeric;
            }
        }
    ctx->no_grad--;
    for (int i = 0; i < n; i++) {
        lksi_free(&ctx->base, grads[i]);
        lksi_free(&ctx->base, host[i]);
    }
    lksi_free(&ctx->base, grads);
    if (worst) *worst = bad;
    if (s == LKS_OK && !(bad <= tolerance))
        return lksi_fail(&ctx->base, LKS_ERR_MISMATCH, "lks_gradcheck",
                         "input %d, element %lld: analytic %.12g, numeric %.12g, error %.3g above %.3g", bad_input,
                         (long long)bad_element, bad_a, bad_n, bad, tolerance);
    return s;
}
