/* SPDX-License-Identifier: BSD-3-Clause
 *
 * grads.h - for tests of parameter sets, scaler and optimizers: contexts on both CPU devices, gradients written by hand
 * (no model, no backward), values read back. Every helper goes through the device, so it works on `far` too.
 */
#ifndef LKS_GRADS_H
#define LKS_GRADS_H

#include "base/half.h"
#include "nn/params.h"
#include "optim/optim.h"
#include "scaler/scaler.h"
#include "tap.h"
#include <lockstep.h>

#define UNUSED __attribute__((unused))

UNUSED static lks_context *context_on(const char *device)
{
    lks_config *c = lks_config_new();
    lks_context *ctx = NULL;
    int initialized = 0;
    MPI_Initialized(&initialized);
    MPI_Comm comm = initialized ? MPI_COMM_WORLD : MPI_COMM_NULL;
    lks_config_set_device(c, tap_device(device));
    lks_config_set_threads(c, 2);
    if (lks_context_create(comm, c, &ctx) != LKS_OK) bail("no context on %s: %s", device, lks_config_message(c));
    lks_config_free(c);
    return ctx;
}

/* The call must succeed; says why not. */
UNUSED static int good(lks_context *ctx, lks_status s)
{
    if (s == LKS_OK) return 1;
    diag("%s: %s", lks_status_name(s), lks_error(ctx));
    lks_error_clear(ctx);
    return 0;
}

/* The call must fail with `want` and a text that holds each of the words; clears the error. */
UNUSED static int fails(lks_context *ctx, lks_status s, lks_status want, const char *a, const char *b)
{
    int yes = s == want && lks_error_code(ctx) == want && (!a || strstr(lks_error(ctx), a)) &&
              (!b || strstr(lks_error(ctx), b));
    if (!yes) diag("got %s, want %s; text: %s", lks_status_name(s), lks_status_name(want), lks_error(ctx));
    lks_error_clear(ctx);
    return yes;
}

/* n float32 numbers as a parameter of its dtype. */
UNUSED static void put(lks_tensor *t, const double *x)
{
    int64_t n = lks_numel(t);
    char *raw = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++)
        switch (lks_dtype_of(t)) {
        case LKS_F32: ((float *)(void *)raw)[i] = (float)x[i]; break;
        case LKS_F64: ((double *)(void *)raw)[i] = x[i]; break;
        case LKS_F16: ((uint16_t *)(void *)raw)[i] = lksi_f64_to_f16(x[i]); break;
        default: ((uint16_t *)(void *)raw)[i] = lksi_f64_to_bf16(x[i]); break;
        }
    lks_no_grad_begin(lks_context_of(t));
    lks_status s = lks_set_from_host(t, raw, n * lks_dtype_size(lks_dtype_of(t)));
    lks_no_grad_end(lks_context_of(t));
    if (s != LKS_OK) bail("set_from_host: %s", lks_error(lks_context_of(t)));
    free(raw);
}

UNUSED static void get(lks_tensor *t, double *x)
{
    int64_t n = lks_numel(t);
    char *raw = calloc((size_t)n + 1, 8);
    if (lks_to_host(t, raw, n * lks_dtype_size(lks_dtype_of(t))) != LKS_OK)
        bail("to_host: %s", lks_error(lks_context_of(t)));
    for (int64_t i = 0; i < n; i++)
        switch (lks_dtype_of(t)) {
        case LKS_F32: x[i] = (double)((float *)(void *)raw)[i]; break;
        case LKS_F64: x[i] = ((double *)(void *)raw)[i]; break;
        case LKS_F16: x[i] = (double)lksi_f16_to_f32(((uint16_t *)(void *)raw)[i]); break;
        default: x[i] = (double)lksi_bf16_to_f32(((uint16_t *)(void *)raw)[i]); break;
        }
    free(raw);
}

UNUSED static double get1(lks_tensor *t)
{
    double x[64];
    get(t, x);
    return x[0];
}

/* Gives parameter t of a sealed set a gradient, as backward would. */
UNUSED static void put_grad(lks_tensor *t, const double *x)
{
    put(t->grad_slot, x);
    if (!t->grad) t->grad = lks_keep(t->grad_slot);
    lksi_grad_set_scale(t, LKSI_GRAD_BY_HAND);
}

UNUSED static void put_grad1(lks_tensor *t, double x)
{
    put_grad(t, &x);
}

/* All device memory of a sealed set and its optimizer's state blocks, as bytes; free it. */
UNUSED static char *snapshot(lks_params *ps, lks_optim *opt, int with_grad, int64_t *bytes)
{
    lksi_device *d = ps->ctx->dev;
    int64_t n = 0;
    char *all = NULL;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (int k = 0; k < LKSI_ARENAS; k++) {
            lksi_arena *a = ps->arena[k];
            if (!a) continue;
            int64_t b = a->count * lks_dtype_size(k);
            if (pass) lksi_device_read(d, all + n, a->value, b);
            n += b;
            if (with_grad) {
                if (pass) lksi_device_read(d, all + n, a->grad, b);
                n += b;
            }
        }
        for (int i = 0; opt && i < lksi_optim_block_count(opt); i++) {
            lksi_state_block s;
            lksi_optim_block(opt, i, &s);
            int64_t b = ps->arena[s.arena]->count * lks_dtype_size(s.dtype);
            if (pass) lksi_device_read(d, all + n, s.data, b);
            n += b;
        }
        if (!pass) all = calloc((size_t)n + 1, 1);
    }
    *bytes = n;
    return all;
}

#endif
