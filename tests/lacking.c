/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lacking.c - run by cuda.test where a part of the CUDA backend is missing: what does a call say that needs it, and is
 * the context as good as before? Arguments: the call (conv, fft, solve, eig), then words that its text must hold.
 */
#include "arrays.h"
#include "errors.h"

static lks_context *ctx;

static int fails(const char *call)
{
    int64_t image[4] = {1, 2, 5, 5}, kernel[4] = {3, 2, 3, 3}, square[2] = {3, 3};
    lks_tensor *x = lks_ones(ctx, LKS_F32, 2, square), *w = NULL, *v = NULL;
    if (!strcmp(call, "conv"))
        return !lks_conv2d(lks_ones(ctx, LKS_F32, 4, image), lks_ones(ctx, LKS_F32, 4, kernel), LKS_NONE, NULL, NULL,
                           NULL, 1);
    if (!strcmp(call, "fft")) return !lks_fft_fft(lks_ones(ctx, LKS_C64, 2, square), -1, 1, LKS_FFT_BACKWARD);
    if (!strcmp(call, "solve")) return !lks_linalg_solve(x, x);
    return lks_linalg_eig(x, &w, &v) != LKS_OK && !w && !v;
}

/* A product and its gradient: y = x x, x = 2 everywhere in [3, 3], so y = 12 and dx = 12 for the sum. */
static int computes(void)
{
    int64_t square[2] = {3, 3};
    lks_tensor *x = lks_full(ctx, LKS_F32, 2, square, 2);
    lks_set_requires_grad(x, 1);
    lks_tensor *y = lks_matmul(x, x);
    if (lks_backward(lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0) != LKS_OK) return 0;
    double want[9];
    for (int i = 0; i < 9; i++) want[i] = 12;
    return close_to(ctx, y, want, 9, 0) && close_to(ctx, lks_grad(x), want, 9, 0) && lks_error_code(ctx) == LKS_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2) bail("no call is named");
    ctx = context_on("far", NULL, 1);
    if (!ctx) bail("no context");
    int64_t before = lks_live_tensors(ctx);
    lks_scope_begin(ctx);
    for (int k = 0; k < 2; k++) {
        int failed = fails(argv[1]);
        diag("%s", lks_error(ctx));
        for (int i = 2; i < argc; i++)
            ok(failed && lks_error_code(ctx) == LKS_ERR_UNSUPPORTED && strstr(lks_error(ctx), argv[i]),
               "%s is refused, and says \"%s\"", argv[1], argv[i]);
        lks_error_clear(ctx);
        ok(computes(), "the context computes as before");
    }
    /* While work is gathered for a graph. */
    if (lks_graph_begin(ctx) == LKS_OK) {
        int failed = fails(argv[1]);
        lks_error_clear(ctx);
        lks_tensor *y = lks_full(ctx, LKS_F32, 1, (int64_t[]){2}, 3);
        ok(failed && lks_graph_end(ctx) == LKS_OK && close_to(ctx, y, (double[]){3, 3}, 2, 0) && computes(),
           "refused inside a graph, which is launched all the same: %s", lks_error(ctx));
    }
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), before, "nothing is left");
    ok(lks_context_destroy(&ctx) == LKS_OK, "destroyed");
    return done();
}
