/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hello.c - least squares on every rank of a job: the smallest complete use of the library. Build and run:
 *
 *   mpicc hello.c $(pkg-config --cflags --libs lockstep) -o hello && mpirun -n 2 ./hello
 */
#include <lockstep.h>

#include <stdio.h>

int main(void)
{
    lks_context *ctx = NULL;
    lks_params *ps = NULL;
    lks_module *model = NULL;
    lks_optim *opt = NULL;
    lks_dp *dp = NULL;
    lks_status s;
    int failed = 1;

    LKS_TRY(s, out, lks_context_create(MPI_COMM_NULL, NULL, &ctx)); /* initialises MPI, as we did not */
    LKS_TRY(s, out, lks_params_create(ctx, &ps));
    LKS_TRY(s, out, lks_linear_create(ps, "", 3, 1, 1, &model));
    LKS_TRY(s, out, lks_optim_create(ps, LKS_ADAM, &opt));
    LKS_TRY(s, out, lks_optim_set_lr(opt, -1, 0.05));
    LKS_TRY(s, out, lks_dp_create(ps, 0, &dp)); /* every rank starts from rank 0's weights */
    LKS_TRY(s, out, lks_dp_set_nominal(dp, 8 * lks_size(ctx)));

    for (int step = 0; step < 1500; step++) {
        float x[8][3], y[8][1]; /* this rank's 8 samples of y = 1 x0 - 2 x1 + 3 x2 + 4 */
        for (int i = 0; i < 8; i++) {
            for (int k = 0; k < 3; k++) { /* any scattered numbers in [0, 1) */
                uint32_t n = (uint32_t)(((step * lks_size(ctx) + lks_rank(ctx)) * 8 + i) * 3 + k);
                x[i][k] = (float)(n * 2654435761u >> 8) / (1 << 24);
            }
            y[i][0] = x[i][0] - 2 * x[i][1] + 3 * x[i][2] + 4;
        }
        int64_t xs[2] = {8, 3}, ys[2] = {8, 1};
        LKS_TRY(s, out, lks_scope_begin(ctx)); /* what is made from here to lks_scope_end dies there */
        LKS_TRY(s, out, lks_params_zero_grad(ps));
        lks_tensor *error = lks_sub(lks_module_forward(model, lks_from_host(ctx, LKS_F32, 2, xs, x)),
                                    lks_from_host(ctx, LKS_F32, 2, ys, y));
        lks_tensor *loss = lks_sum(lks_mul(error, error), 0, NULL, 0, LKS_DTYPE_NONE);
        LKS_TRY(s, out, lks_dp_backward(dp, NULL, loss, 8, LKS_NONE, 1)); /* sums the gradients of all ranks */
        LKS_TRY(s, out, lks_optim_step(opt, NULL));
        LKS_TRY(s, out, lks_scope_end(ctx));
    }
    float w[3], b[1];
    LKS_TRY(s, out, lks_to_host(lks_params_tensor(ps, lks_params_find(ps, "weight")), w, sizeof w));
    LKS_TRY(s, out, lks_to_host(lks_params_tensor(ps, lks_params_find(ps, "bias")), b, sizeof b));
    if (lks_rank(ctx) == 0) printf("y = %.2f x0 %+.2f x1 %+.2f x2 %+.2f\n", w[0], w[1], w[2], b[0]);
    failed = 0;
out:
    if (failed) fprintf(stderr, "%s\n", ctx ? lks_error(ctx) : lks_status_text(s));
    lks_dp_destroy(&dp);
    lks_optim_destroy(&opt);
    lks_module_destroy(&model);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
    lks_finalize();
    return failed;
}
