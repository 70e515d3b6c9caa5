/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_overflow.c - a float16 training on several ranks in which gradients overflow on purpose at every 37th step, on
 * one rank at a time: every rank skips the same steps and knows whose fault it was, counters and scale are right,
 * parameters stay the same bit for bit. Started by overflow.test; argument: the device.
 */
#include "tap_mpi.h"
#include <lockstep.h>
#include <stdlib.h>

enum { STEPS = 200, EVERY = 37, ROWS = 8, IN = 6, HIDDEN = 16 };

static lks_context *ctx;
static int rank, size;

static uint64_t state = 11;
static float noise(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int64_t)(state >> 40) / (float)(1 << 24) * 2 - 1;
}

static lks_tensor *batch(int64_t columns)
{
    float v[ROWS * IN];
    for (int i = 0; i < ROWS * columns; i++) v[i] = noise();
    return lks_from_host(ctx, LKS_F32, 2, (int64_t[]){ROWS, columns}, v);
}

/* FNV-1a over all parameters. */
static uint64_t hash_of(lks_params *ps)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < lks_params_count(ps); i++) {
        lks_tensor *t = lks_params_tensor(ps, i);
        int64_t bytes = lks_numel(t) * lks_dtype_size(lks_dtype_of(t));
        unsigned char *v = malloc((size_t)bytes + 1);
        if (lks_to_host(t, v, bytes) != LKS_OK) h = 0;
        for (int64_t k = 0; k < bytes; k++) h = (h ^ v[k]) * 1099511628211u;
        free(v);
    }
    return h;
}

static int everywhere(int64_t x)
{
    int64_t least, most;
    MPI_Allreduce(&x, &least, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&x, &most, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    return least == most;
}

static void run(int micro)
{
    lks_params *ps;
    lks_module *first, *second;
    lks_dp *dp;
    lks_optim *opt;
    lks_scaler *s;
    int right = 1, skipped = 0, blamed = 1;
    state = 11 + (uint64_t)rank; /* each rank its own samples */
    lks_scope_begin(ctx);
    int good = lks_params_create(ctx, &ps) == LKS_OK &&
               lks_linear_create(ps, "first", IN, HIDDEN, 1, &first) == LKS_OK &&
               lks_linear_create(ps, "second", HIDDEN, 1, 1, &second) == LKS_OK;
    good = good && lks_dp_create(ps, 256, &dp) == LKS_OK && lks_dp_set_nominal(dp, ROWS * size * micro) == LKS_OK &&
           lks_optim_create(ps, LKS_ADAM, &opt) == LKS_OK && lks_scaler_create(ctx, 1, &s) == LKS_OK &&
           lks_scaler_set_scale(s, 4096) == LKS_OK;
    if (!good) bail("cannot set up: %s", lks_error(ctx));
    int expect = 0, here = 0;
    for (int k = 1; k <= STEPS; k++) {
        int bad = k % EVERY == 0, guilty = k / EVERY % size, outcome = 0, param, bucket, who;
        int64_t infs, nans, applied, all;
        double scale;
        lks_params_zero_grad(ps);
        for (int m = 0; m < micro; m++) {
            lks_scope_begin(ctx);
            lks_tensor *x = batch(IN);
            lks_autocast_begin(ctx, LKS_F16, 1, 1);
            lks_tensor *y = lks_module_forward(second, lks_gelu(lks_module_forward(first, x), 0));
            lks_tensor *d = lks_sub(lks_to(y, LKS_F32), batch(1));
            lks_tensor *loss = lks_sum(lks_mul(d, d), 0, NULL, 0, LKS_DTYPE_NONE);
            lks_autocast_end(ctx);
            if (bad && rank == guilty && m == 0) loss = lks_mul_scalar(loss, 1e30);
            good &= lks_dp_backward(dp, s, loss, ROWS, LKS_NONE, m == micro - 1) == LKS_OK;
            lks_scope_end(ctx);
        }
        good &= lks_optim_step(opt, s) == LKS_OK && lks_scaler_update(s) == LKS_OK;
        good &= lks_optim_report(opt, k, &outcome, NULL, &scale, NULL, &applied, &all) == LKS_OK;
        int want = !bad ? LKS_STEPPED : rank == guilty ? LKS_SKIPPED_HERE : LKS_SKIPPED_ELSEWHERE;
        if (outcome != want) diag("step %d: outcome %d, want %d", k, outcome, want);
        right &= outcome == want && everywhere(applied) && everywhere(all) && scale == 4096 / (double)(1 << expect);
        expect += bad;
        skipped += outcome != LKS_STEPPED;
        here += outcome == LKS_SKIPPED_HERE;
        good &= lks_optim_blame(opt, k, &param, &bucket, &who, &infs, &nans) == LKS_OK;
        blamed &=
            bad ? param >= 0 && bucket >= 0 && bucket < lks_dp_bucket_count(dp) && who == guilty && infs + nans > 0
                : param == -1 && bucket == -1 && who == -1 && infs + nans == 0;
        if (bad && who != guilty) diag("step %d: rank %d is blamed for what %d did", k, who, guilty);
    }
    if (!good) diag("%s", lks_error(ctx));
    int64_t n[4], g, b;
    double scale;
    good &= lks_optim_outcomes(opt, STEPS, n, n + 1, n + 2, n + 3) == LKS_OK &&
            lks_scaler_counts(s, &g, &b) == LKS_OK && lks_scaler_get(s, &scale, NULL) == LKS_OK;
    ok(good && right && skipped == STEPS / EVERY, "%d micro-batches: all ranks skip every %dth step and no other",
       micro, EVERY);
    ok(blamed, "the rank at fault, a parameter and its bucket are named each time");
    ok(n[0] == STEPS - skipped && n[1] == here && n[2] == skipped - here && n[3] == 0 && g == STEPS - skipped &&
           b == skipped && scale == 4096 / (double)(1 << skipped),
       "counters and scale are right: %d stepped, %d here, %d elsewhere", (int)n[0], (int)n[1], (int)n[2]);
    ok(everywhere((int64_t)hash_of(ps)), "the parameters have the same bits on every rank");
    lks_scaler_destroy(&s);
    lks_optim_destroy(&opt);
    lks_dp_destroy(&dp);
    lks_module_destroy(&second);
    lks_module_destroy(&first);
    lks_params_destroy(&ps);
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), 0, "no tensor is left");
}

/* Every rank's gradient is finite, the sum is not. */
static void sums(void)
{
    lks_params *ps;
    lks_tensor *w[2];
    lks_dp *dp;
    lks_optim *opt;
    int outcome = 0, param = 7, bucket = 7, who = 7;
    int64_t infs = 0, nans = 7, here = 7, elsewhere = 7;
    lks_scope_begin(ctx);
    int good = lks_params_create(ctx, &ps) == LKS_OK && lks_params_add(ps, "a", LKS_F32, 0, NULL, &w[0]) == LKS_OK &&
               lks_params_add(ps, "b", LKS_F32, 0, NULL, &w[1]) == LKS_OK && lks_dp_create(ps, 0, &dp) == LKS_OK &&
               lks_dp_set_nominal(dp, 1) == LKS_OK && lks_optim_create(ps, LKS_SGD, &opt) == LKS_OK;
    if (!good) bail("cannot set up: %s", lks_error(ctx));
    lks_tensor *loss = lks_add(w[0], lks_mul_scalar(w[1], 3e38));
    good &= lks_dp_backward(dp, NULL, loss, 1, LKS_NONE, 1) == LKS_OK && lks_optim_step(opt, NULL) == LKS_OK &&
            lks_optim_report(opt, 1, &outcome, NULL, NULL, NULL, NULL, NULL) == LKS_OK &&
            lks_optim_blame(opt, 1, &param, &bucket, &who, &infs, &nans) == LKS_OK &&
            lks_optim_outcomes(opt, 1, NULL, &here, &elsewhere, NULL) == LKS_OK;
    ok(good && outcome == LKS_SKIPPED_ELSEWHERE && param == 1 && bucket == 0 && who == -1 && infs == 1 && nans == 0 &&
           here == 0 && elsewhere == 1,
       "a sum over ranks that is infinite is no rank's fault (%d %d %d %d)", outcome, param, bucket, who);
    lks_optim_destroy(&opt);
    lks_dp_destroy(&dp);
    lks_params_destroy(&ps);
    lks_scope_end(ctx);
}

typedef struct attempt {
    lks_params *ps;
    lks_dp *dp;
    lks_scaler *s;
    lks_tensor *w;
    int calls;
    lks_status give;
} attempt;

static lks_status attempt_batch(void *user)
{
    attempt *a = user;
    a->calls++;
    lks_params_zero_grad(a->ps);
    lks_status st = lks_dp_backward(a->dp, a->s, lks_mul_scalar(a->w, 2), 1, LKS_NONE, 1);
    return st == LKS_OK ? a->give : st;
}

/* lks_optim_step_retry where the batch fails on the last rank after its gradients were reduced. */
static void failing_batch(void)
{
    attempt a = {.give = rank == size - 1 ? LKS_ERR_INTERRUPTED : LKS_OK};
    lks_optim *opt;
    int outcome = 0;
    lks_scope_begin(ctx);
    int good = lks_params_create(ctx, &a.ps) == LKS_OK && lks_params_add(a.ps, "w", LKS_F32, 0, NULL, &a.w) == LKS_OK &&
               lks_dp_create(a.ps, 0, &a.dp) == LKS_OK && lks_dp_set_nominal(a.dp, size) == LKS_OK &&
               lks_scaler_create(ctx, 1, &a.s) == LKS_OK && lks_optim_create(a.ps, LKS_SGD, &opt) == LKS_OK;
    if (!good) bail("cannot set up: %s", lks_error(ctx));
    double before = 0, after = 1, then = 0, scale = 0;
    lks_item(a.w, &before);
    lks_status st = lks_optim_step_retry(opt, a.s, 3, attempt_batch, &a, &outcome);
    lks_item(a.w, &after);
    good = lks_scaler_get(a.s, &scale, NULL) == LKS_OK;
    ok(good && st == a.give && a.calls == 1 && after == before && everywhere((int64_t)scale) &&
           (st != LKS_OK || outcome == LKS_SKIPPED_ELSEWHERE),
       "a batch that fails on one rank is stepped on none and tried once (%s, %d calls, scale %g)", lks_status_name(st),
       a.calls, scale);
    lks_error_clear(ctx);
    a.give = LKS_OK;
    st = lks_optim_step_retry(opt, a.s, 3, attempt_batch, &a, &outcome);
    lks_item(a.w, &then);
    ok(st == LKS_OK && outcome == LKS_STEPPED && then < after && everywhere((int64_t)(then * 1e6)),
       "the next is stepped by all (%s)", lks_error(ctx));
    lks_optim_destroy(&opt);
    lks_scaler_destroy(&a.s);
    lks_dp_destroy(&a.dp);
    lks_params_destroy(&a.ps);
    lks_scope_end(ctx);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tap_mpi(MPI_COMM_WORLD);
    lks_config *config = lks_config_new();
    lks_config_set_device(config, argc > 1 ? argv[1] : "cpu");
    lks_config_set_threads(config, 1);
    lks_config_set_deadline(config, 60);
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
    run(1);
    run(3);
    sums();
    failing_batch();
    lks_context_destroy(&ctx);
    int status = done();
    MPI_Finalize();
    return status;
}
