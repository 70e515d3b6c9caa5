/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arrays.h - what the tests of kernels share: a context on a given device, ISA and thread count, tensors from arrays of
 * double and back, seeded noise, distances. References are computed in double from what the tensor really holds.
 */
#ifndef LKS_TEST_ARRAYS_H
#define LKS_TEST_ARRAYS_H

#include "tap.h"
#include <lockstep.h>

static const lks_dtype array_floats[4] = {LKS_F64, LKS_F32, LKS_F16, LKS_BF16};

/* isa NULL: the best. NULL if it cannot be had (an ISA that this machine lacks). */
__attribute__((unused)) static lks_context *context_on(const char *device, const char *isa, int threads)
{
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    if (isa) setenv("LKS_ISA", isa, 1);
    else unsetenv("LKS_ISA");
    lks_config_set_device(config, tap_device(device));
    lks_config_set_threads(config, threads);
    if (lks_context_create(MPI_COMM_SELF, config, &ctx) != LKS_OK) diag("no context: %s", lks_config_message(config));
    lks_config_free(config);
    return ctx;
}

/* body with *ctx on the CPU with one thread, then in far memory with two; nothing may be left of it. lacks, or NULL, is
 * asked in a scope of its own what the build lacks for it: NULL, or a reason to skip. */
__attribute__((unused)) static void on_both_devices(lks_context **ctx, const char *(*lacks)(void), void (*body)(void))
{
    for (int device = 0; device < 2; device++) {
        if (!(*ctx = context_on(device ? "far" : "cpu", NULL, 1 + device))) bail("no context");
        diag("%s", lks_device_name(*ctx));
        lks_scope_begin(*ctx);
        const char *why = lacks ? lacks() : NULL;
        lks_scope_end(*ctx);
        if (why) {
            skip(1, "%s", why);
            lks_error_clear(*ctx);
        } else {
            body();
        }
        is_int(lks_live_tensors(*ctx), 0, "nothing is left");
        lks_context_destroy(ctx);
    }
}

/* Uniform on [-1, 1), times scale. */
__attribute__((unused)) static double *noise(int64_t n, double scale, uint64_t seed)
{
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    for (int64_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        v[i] = ((double)(s >> 11) * 0x1p-52 - 1) * scale;
    }
    return v;
}

/* A tensor with these values, rounded to dtype. */
__attribute__((unused)) static lks_tensor *tensor_of(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape,
                                                     const double *v)
{
    return lks_to(lks_from_host(ctx, LKS_F64, ndim, shape, v), dtype);
}

__attribute__((unused)) static lks_tensor *noise_of(lks_context *ctx, lks_dtype dtype, int ndim, const int64_t *shape,
                                                    double scale, uint64_t seed)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    double *v = noise(n, scale, seed);
    lks_tensor *t = tensor_of(ctx, dtype, ndim, shape, v);
    free(v);
    return t;
}

/* The same shape and values, in memory with the dims in reverse order. */
__attribute__((unused)) static lks_tensor *reversed(lks_tensor *t)
{
    int dims[8], n = lks_ndim(t);
    for (int d = 0; d < n; d++) dims[d] = n - 1 - d;
    return lks_permute(lks_contiguous(lks_permute(t, n, dims)), n, dims);
}

/* [N, C, H, W] in memory as [N, H, W, C]. */
__attribute__((unused)) static lks_tensor *channels_last(lks_tensor *t)
{
    static const int to[4] = {0, 2, 3, 1}, from[4] = {0, 3, 1, 2};
    return lks_permute(lks_contiguous(lks_permute(t, 4, to)), 4, from);
}

/* Values in row-major order, to be freed; NULL (and a note) if t is. */
__attribute__((unused)) static double *values_of(lks_context *ctx, lks_tensor *t)
{
    if (!t) {
        diag("no tensor: %s", lks_error(ctx));
        lks_error_clear(ctx);
        return NULL;
    }
    int64_t n = lks_numel(t);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    lks_scope_begin(ctx);
    lks_no_grad_begin(ctx);
    if (lks_to_host(lks_to(t, LKS_F64), v, n * (int64_t)sizeof *v) != LKS_OK) {
        diag("not read: %s", lks_error(ctx));
        free(v);
        v = NULL;
    }
    lks_no_grad_end(ctx);
    lks_scope_end(ctx);
    return v;
}

/* Largest |a - b| / (1 + |b|); infinite if either is missing or they are not finite alike. */
__attribute__((unused)) static double distance(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    if (!a || !b) return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(a[i]) != isfinite(b[i])) return INFINITY;
        if (!isfinite(b[i])) {
            if (isnan(a[i]) != isnan(b[i]) || (!isnan(a[i]) && a[i] != b[i])) return INFINITY;
            continue;
        }
        double d = fabs(a[i] - b[i]) / (1 + fabs(b[i]));
        if (d > worst) worst = d;
    }
    return worst;
}

/* What a result of dtype may differ by after a few operations in float32 or wider and one rounding. */
__attribute__((unused)) static double tolerance_of(lks_dtype dtype)
{
    return dtype == LKS_F64 ? 1e-11 : dtype == LKS_F32 ? 1e-5 : dtype == LKS_F16 ? 6e-4 : 5e-3;
}

/* t against n reference values; frees neither. */
__attribute__((unused)) static int close_to(lks_context *ctx, lks_tensor *t, const double *want, int64_t n, double tol)
{
    double *v = values_of(ctx, t), d = t && lks_numel(t) == n ? distance(v, want, n) : INFINITY;
    if (!(d <= tol)) diag("off by %g (tolerance %g)", d, tol);
    free(v);
    return d <= tol;
}

#endif
