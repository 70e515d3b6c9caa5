/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fail_rank.c - a training job in which rank 1 leaves before step 3; run by fail.test.
 *
 *   fail_rank exit|kill|stop|sleep|zero DEADLINE FILE
 *
 * zero: it is rank 0, stopped in lks_rank_zero_call. A rank that gets an error writes its status, the seconds it took
 * and the text to FILE.RANK, waits for the others to do the same, and ends the job as it should: MPI_Abort.
 */
#include <lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void leave(const char *how)
{
    if (!strcmp(how, "exit")) _exit(9);
    raise(!strcmp(how, "kill") ? SIGKILL : SIGSTOP);
}

static lks_status stop_here(void *user)
{
    (void)user;
    raise(SIGSTOP);
    return LKS_OK;
}

static int give_up(lks_context *ctx, const char *file, lks_status st, double seconds)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", file, lks_rank(ctx));
    FILE *f = fopen(name, "w");
    if (f) {
        fprintf(f, "%s %.1f %s\n", lks_status_name(st), seconds, lks_error(ctx));
        fclose(f);
    }
    sleep(2);
    MPI_Abort(MPI_COMM_WORLD, 7);
    return 7;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    MPI_Init(&argc, &argv);
    lks_config *config = lks_config_new();
    lks_context *ctx;
    lks_params *ps;
    lks_tensor *w;
    lks_dp *dp;
    lks_optim *opt;
    lks_config_set_threads(config, 1);
    lks_config_set_deadline(config, atof(argv[2]));
    int64_t size = 600000;
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx) != LKS_OK || lks_params_create(ctx, &ps) != LKS_OK ||
        lks_params_add(ps, "w", LKS_F32, 1, &size, &w) != LKS_OK || lks_dp_create(ps, 0, &dp) != LKS_OK ||
        lks_dp_set_nominal(dp, 1) != LKS_OK || lks_optim_create(ps, LKS_SGD, &opt) != LKS_OK)
        return 3;
    for (int step = 1; step <= 5; step++) {
        if (step == 3 && lks_rank(ctx) == 1 && strcmp(argv[1], "zero")) {
            if (!strcmp(argv[1], "sleep")) sleep((unsigned)atof(argv[2]) + 4);
            else leave(argv[1]);
        }
        double start = MPI_Wtime();
        lks_scope_begin(ctx);
        lks_status st = LKS_OK;
        if (step == 3 && !strcmp(argv[1], "zero")) st = lks_rank_zero_call(ctx, stop_here, NULL);
        if (st == LKS_OK)
            st = lks_dp_backward(dp, NULL, lks_sum(w, 0, NULL, 0, LKS_DTYPE_NONE), 1, LKS_NONE, 1);
        if (st == LKS_OK) st = lks_optim_step(opt, NULL);
        lks_scope_end(ctx);
        if (st != LKS_OK) return give_up(ctx, argv[3], st, MPI_Wtime() - start);
        lks_params_zero_grad(ps);
    }
    lks_optim_destroy(&opt);
    lks_dp_destroy(&dp);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
    lks_config_free(config);
    MPI_Finalize();
    return 0;
}
