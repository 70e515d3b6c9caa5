/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forecast.c - an LSTM or a Fourier neural operator learns to forecast a flow: sequences of states of Burgers' equation
 * u_t + u u_x = nu u_xx, made by the solver below as training goes, each state to be predicted, by the LSTM from those
 * before it, by the operator from the last one. Runs on any number of ranks:
 *
 *   mpirun -n 2 jobs/forecast [STEPS [cpu|cuda [lstm|operator]]]
 *
 * Prints the error of the forecast beside that of assuming that nothing changes, on sequences never trained on.
 */
#include <lockstep.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 32, STATES = 17, BATCH = 8, HIDDEN = 96, SUBSTEPS = 10, HELD_OUT = 64,
       CHANNELS = 16, MODES = 12, LAYERS = 2 };
static const double pi = 3.14159265358979324, nu = 0.1, dt = 0.01;

/* A scattered number in [0, 1) for each k. */
static double scattered(uint64_t k)
{
    k = (k + 1) * 0x9e3779b97f4a7c15u;
    k = (k ^ k >> 31) * 0xbf58476d1ce4e5b9u;
    return (double)((k ^ k >> 29) >> 11) * 0x1p-53;
}

/* STATES states of one flow, 0.1 time units apart, on a ring of POINTS points; it starts from three waves. */
static void solve(uint64_t seed, float (*states)[POINTS])
{
    double u[POINTS], v[POINTS], dx = 2 * pi / POINTS;
    for (int i = 0; i < POINTS; i++) u[i] = 0;
    for (int k = 1; k <= 3; k++)
        for (int i = 0; i < POINTS; i++)
            u[i] += (0.3 + 0.5 * scattered(8 * seed + (uint64_t)k)) / k *
                    sin(k * i * dx + 2 * pi * scattered(8 * seed + 3 + (uint64_t)k));
    for (int s = 0; s < STATES; s++) {
        for (int i = 0; i < POINTS; i++) states[s][i] = (float)u[i];
        for (int n = 0; n < SUBSTEPS; n++) {
            for (int i = 0; i < POINTS; i++) {
                double l = u[(i + POINTS - 1) % POINTS], r = u[(i + 1) % POINTS];
                v[i] = u[i] + dt * (nu * (l - 2 * u[i] + r) / (dx * dx) - (r * r - l * l) / (4 * dx));
            }
            for (int i = 0; i < POINTS; i++) u[i] = v[i];
        }
    }
}

/* lstm: and head. Otherwise lift, layers of spectral weights and a linear path, head. */
typedef struct net {
    lks_module *lstm, *lift, *path[LAYERS], *head;
    lks_tensor *spectral[LAYERS]; /* [MODES, CHANNELS, CHANNELS, 2]: complex numbers; the set's */
} net;

static lks_status build(lks_params *ps, int operator, net *f)
{
    int64_t shape[4] = {MODES, CHANNELS, CHANNELS, 2};
    lks_status s;
    char name[32];
    if (!operator) {
        s = lks_lstm_create(ps, "lstm", POINTS, HIDDEN, 1, 0, 0, &f->lstm);
        return s == LKS_OK ? lks_linear_create(ps, "head", HIDDEN, POINTS, 1, &f->head) : s;
    }
    s = lks_linear_create(ps, "lift", 2, CHANNELS, 1, &f->lift);
    for (int l = 0; l < LAYERS && s == LKS_OK; l++) {
        snprintf(name, sizeof name, "spectral.%d", l);
        s = lks_params_add(ps, name, LKS_F32, 4, shape, &f->spectral[l]);
        if (s == LKS_OK) s = lks_init_normal(f->spectral[l], 0.5 / CHANNELS);
        snprintf(name, sizeof name, "path.%d", l);
        if (s == LKS_OK) s = lks_linear_create(ps, name, CHANNELS, CHANNELS, 1, &f->path[l]);
    }
    return s == LKS_OK ? lks_linear_create(ps, "head", CHANNELS, 1, 1, &f->head) : s;
}

/* h [B, POINTS, CHANNELS]: its lowest frequencies, each times a matrix of its own (Li et al., 2021). */
static lks_tensor *spectral(lks_tensor *h, lks_tensor *w)
{
    static const int to[3] = {1, 0, 2};
    lks_tensor *low = lks_narrow(lks_fft_rfft(h, POINTS, 1, LKS_FFT_ORTHO), 1, 0, MODES);
    lks_tensor *y = lks_matmul(lks_permute(low, 3, to), lks_view_as_complex(w));
    return lks_fft_irfft(lks_permute(y, 3, to), POINTS, 1, LKS_FFT_ORTHO);
}

/* The change to the state that follows each of x [N, T, POINTS]. */
static lks_tensor *change(const net *f, lks_tensor *x)
{
    if (f->lstm) return lks_module_forward(f->head, lks_module_forward(f->lstm, x));
    int64_t flat[3] = {lks_dim(x, 0) * lks_dim(x, 1), POINTS, 1};
    lks_tensor *u = lks_reshape(x, 3, flat), *both[2] = {u, lks_mul(u, u)};
    lks_tensor *h = lks_module_forward(f->lift, lks_cat(2, both, 2));
    for (int l = 0; l < LAYERS; l++)
        h = lks_gelu(lks_add(spectral(h, f->spectral[l]), lks_module_forward(f->path[l], h)), 1);
    return lks_reshape(lks_module_forward(f->head, h), 3, lks_shape(x));
}

/* n flows from seed on: x all states but the last, d the changes after them. */
static int flows(lks_context *ctx, uint64_t seed, int n, lks_tensor **x, lks_tensor **d)
{
    float(*states)[STATES][POINTS] = malloc((size_t)n * sizeof *states);
    int64_t shape[3] = {n, STATES, POINTS};
    if (!states) return 0;
    for (int i = 0; i < n; i++) solve(seed + (uint64_t)i, states[i]);
    lks_tensor *all = lks_from_host(ctx, LKS_F32, 3, shape, states);
    free(states);
    *x = lks_narrow(all, 1, 0, STATES - 1);
    *d = lks_sub(lks_narrow(all, 1, 1, STATES - 1), *x);
    return *d != NULL;
}

/* Squared error of the forecast over that of no change. */
static lks_status judge(lks_context *ctx, const net *f, double *ratio)
{
    lks_tensor *x, *d;
    float error = 0, size = 1;
    lks_status s = lks_scope_begin(ctx);
    if (s != LKS_OK) return s;
    lks_no_grad_begin(ctx);
    if (flows(ctx, 1 << 30, HELD_OUT, &x, &d)) {
        s = lks_to_host(lks_mse_loss(change(f, x), d, LKS_REDUCTION_MEAN), &error, sizeof error);
        if (s == LKS_OK) s = lks_to_host(lks_mean(lks_mul(d, d), 0, NULL, 0, LKS_DTYPE_NONE), &size, sizeof size);
    } else {
        s = LKS_ERR_MEMORY;
    }
    lks_no_grad_end(ctx);
    lks_scope_end(ctx);
    *ratio = error / size;
    return s;
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 600, failed = 1;
    lks_config *config = lks_config_new();
    lks_context *ctx = NULL;
    lks_params *ps = NULL;
    lks_optim *opt = NULL;
    lks_dp *dp = NULL;
    net f = {0};
    double ratio = 0;
    lks_status s;

    lks_config_set_device(config, argc > 2 ? argv[2] : "cpu");
    LKS_TRY(s, out, lks_context_create(MPI_COMM_NULL, config, &ctx));
    LKS_TRY(s, out, lks_params_create(ctx, &ps));
    LKS_TRY(s, out, build(ps, argc > 3 && !strcmp(argv[3], "operator"), &f));
    LKS_TRY(s, out, lks_optim_create(ps, LKS_ADAM, &opt));
    LKS_TRY(s, out, lks_optim_set_lr(opt, -1, 0.01));
    LKS_TRY(s, out, lks_optim_set_schedule(opt, LKS_SCHEDULE_COSINE, steps / 20, steps, 0.01, 0, 1));
    LKS_TRY(s, out, lks_optim_set_clip_norm(opt, 1));
    LKS_TRY(s, out, lks_dp_create(ps, 0, &dp));
    int64_t numbers = (int64_t)BATCH * (STATES - 1) * POINTS; /* that this rank's loss is the sum of */
    LKS_TRY(s, out, lks_dp_set_nominal(dp, (double)numbers * lks_size(ctx)));
    for (int step = 0; step < steps; step++) {
        lks_tensor *x, *d;
        uint64_t seed = ((uint64_t)step * (uint64_t)lks_size(ctx) + (uint64_t)lks_rank(ctx)) * BATCH;
        LKS_TRY(s, out, lks_scope_begin(ctx));
        LKS_TRY(s, out, lks_params_zero_grad(ps));
        LKS_TRY(s, out, flows(ctx, seed, BATCH, &x, &d) ? LKS_OK : LKS_ERR_MEMORY);
        lks_tensor *loss = lks_mse_loss(change(&f, x), d, LKS_REDUCTION_SUM);
        LKS_TRY(s, out, lks_dp_backward(dp, NULL, loss, (double)numbers, LKS_NONE, 1));
        LKS_TRY(s, out, lks_optim_step(opt, NULL));
        LKS_TRY(s, out, lks_scope_end(ctx));
        if ((step + 1) % (steps / 6 > 0 ? steps / 6 : 1)) continue;
        LKS_TRY(s, out, judge(ctx, &f, &ratio));
        if (lks_rank(ctx) == 0) printf("step %d: squared error %.4f of no change's\n", step + 1, ratio);
    }
    LKS_TRY(s, out, judge(ctx, &f, &ratio));
    if (lks_rank(ctx) == 0) printf("forecast %.5f\n", ratio);
    failed = 0;
out:
    if (failed) fprintf(stderr, "%s\n", ctx ? lks_error(ctx) : lks_config_message(config));
    lks_config_free(config);
    lks_dp_destroy(&dp);
    lks_optim_destroy(&opt);
    lks_module_destroy(&f.head);
    lks_module_destroy(&f.lstm);
    lks_module_destroy(&f.lift);
    for (int l = 0; l < LAYERS; l++) lks_module_destroy(&f.path[l]);
    lks_params_destroy(&ps);
    lks_context_destroy(&ctx);
    lks_finalize();
    return failed;
}
