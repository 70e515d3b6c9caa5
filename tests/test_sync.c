/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_sync.c - batch norm with the statistics of all ranks: results, staged statistics and gradients on 1 to 4 ranks
 * against one batch norm of the whole batch, with batches of different sizes and empty ones. tests/dp.test starts it
 * with several rank counts; argument: the device.
 */
#include "nn/params.h"
#include "tap_mpi.h"
#include "arrays.h"

enum { C = 5, H = 3, W = 4, PLANE = H * W };
static const char *device = "cpu";
static lks_context *ctx, *alone; /* of all ranks; of this one */

static lks_context *open_context(MPI_Comm comm)
{
    lks_config *config = lks_config_new();
    lks_context *c = NULL;
    lks_config_set_device(config, device);
    lks_config_set_threads(config, 1);
    lks_config_set_deadline(config, 60);
    if (lks_context_create(comm, config, &c) != LKS_OK) bail("no context: %s", lks_config_message(config));
    lks_config_free(config);
    return c;
}

/* Rows of rank r: by plan. */
static int64_t rows_of(int plan, int r, int ranks)
{
    if (plan == 0) return 3;                         /* alike */
    if (plan == 1) return 1 + 2 * r;                 /* uneven */
    if (plan == 2) return r == ranks - 1 ? 0 : 2 + r; /* the last has none (nor anyone, alone) */
    return r == 0 ? 4 : 0;                           /* only the first has some */
}

static lks_tensor *part(lks_context *c, lks_dtype dtype, const double *all, int64_t first, int64_t rows, int last)
{
    lks_tensor *t = tensor_of(c, dtype, 4, (int64_t[]){rows, C, H, W}, all + first * C * PLANE);
    return last ? channels_last(t) : t;
}

static int one_case(lks_dtype dtype, int plan, int last, int affine)
{
    int me = lks_rank(ctx), ranks = lks_size(ctx), good = 1;
    int64_t first = 0, all = 0, mine = rows_of(plan, me, ranks), channels = C;
    for (int r = 0; r < ranks; r++) {
        if (r < me) first += rows_of(plan, r, ranks);
        all += rows_of(plan, r, ranks);
    }
    if (all == 0) return 1;
    double *x = noise(all * C * PLANE, 2, 1), *g = noise(all * C * PLANE, 1, 2);
    for (int64_t i = 0; i < all * C * PLANE; i++) x[i] += 3;
    lks_dtype wide = dtype == LKS_F64 ? LKS_F64 : LKS_F32;
    double *got[6] = {0}, *want[6] = {0};
    for (int whole = 0; whole < 2; whole++) {
        lks_context *c = whole ? alone : ctx;
        double **out = whole ? want : got;
        lks_scope_begin(c);
        lks_tensor *xt = part(c, dtype, x, whole ? 0 : first, whole ? all : mine, last);
        lks_tensor *dy = part(c, dtype, g, whole ? 0 : first, whole ? all : mine, last);
        lks_tensor *w = affine ? noise_of(c, wide, 1, &channels, 1, 3) : LKS_NONE;
        lks_tensor *b = affine ? noise_of(c, wide, 1, &channels, 1, 4) : LKS_NONE;
        lks_tensor *sm = lks_zeros(c, wide, 1, &channels), *sv = lks_ones(c, wide, 1, &channels);
        lks_set_requires_grad(xt, 1);
        if (affine) lks_set_requires_grad(w, 1), lks_set_requires_grad(b, 1);
        lks_tensor *y = whole ? lks_batch_norm(xt, w, b, LKS_NONE, LKS_NONE, sm, sv, 1, 0.25, 1e-5)
                              : lks_sync_batch_norm(xt, w, b, sm, sv, 0.25, 1e-5);
        good &= y && lks_backward(y, dy, 0) == LKS_OK;
        if (!good) diag("rank %d: %s", me, lks_error(c));
        if (good) {
            out[0] = values_of(c, y), out[1] = values_of(c, lks_grad(xt)), out[2] = values_of(c, sm);
            out[3] = values_of(c, sv);
            if (affine) {
                lks_tensor *dw = lks_to(lks_grad(w), LKS_F64), *db = lks_to(lks_grad(b), LKS_F64);
                if (!whole) /* as data parallel training adds them */
                    good &= lks_all_reduce(dw, LKS_SUM) == LKS_OK && lks_all_reduce(db, LKS_SUM) == LKS_OK;
                out[4] = values_of(c, dw), out[5] = values_of(c, db);
            }
        }
        lks_scope_end(c);
    }
    double tol = tolerance_of(dtype);
    for (int i = 0; i < (affine ? 6 : 4) && good; i++) {
        int64_t n = i < 2 ? mine * C * PLANE : C, from = i < 2 ? first * C * PLANE : 0;
        double d = distance(got[i], want[i] + from, n);
        good &= d <= (i == 0 ? 2 : 10) * (i > 1 ? tolerance_of(wide) : tol);
        if (!good) diag("rank %d, plan %d, result %d: %g", me, plan, i, d);
    }
    for (int i = 0; i < 6; i++) free(got[i]), free(want[i]);
    free(x), free(g);
    return good;
}

/* Two ranks that get the same staged statistics, whatever their rows: the same bits. */
static int same_on_all(void)
{
    int64_t channels = C, mine = rows_of(1, lks_rank(ctx), lks_size(ctx));
    lks_scope_begin(ctx);
    double *x = noise(mine * C * PLANE, 5, (uint64_t)lks_rank(ctx) + 1);
    lks_tensor *sm = lks_zeros(ctx, LKS_F32, 1, &channels), *sv = lks_zeros(ctx, LKS_F32, 1, &channels);
    lks_tensor *y = lks_sync_batch_norm(part(ctx, LKS_F32, x, 0, mine, 0), LKS_NONE, LKS_NONE, sm, sv, 1, 1e-5);
    lks_tensor *low = lks_cat(2, (lks_tensor *[]){sm, sv}, 0), *high = lks_clone(low);
    int good = y && lks_all_reduce(low, LKS_MIN) == LKS_OK && lks_all_reduce(high, LKS_MAX) == LKS_OK;
    double *a = values_of(ctx, low), *b = values_of(ctx, high);
    for (int i = 0; good && i < 2 * C; i++) good = a[i] == b[i] && isfinite(a[i]);
    free(a), free(b), free(x);
    lks_scope_end(ctx);
    return good;
}

/* The module: on in train mode, off in eval mode; off as made. */
static void modules(void)
{
    lks_params *ps = NULL;
    lks_module *m = NULL;
    int ranks = lks_size(ctx), me = lks_rank(ctx);
    ok(lks_params_create(ctx, &ps) == LKS_OK && lks_batch_norm2d_create(ps, "n", 1, 0.1, 0, &m) == LKS_OK, "a module");
    lks_scope_begin(ctx);
    double pair[2] = {me, me + 1};
    lks_tensor *x = tensor_of(ctx, LKS_F32, 4, (int64_t[]){2, 1, 1, 1}, pair);
    double *own = values_of(ctx, lks_module_forward(m, x));
    lks_module_sync_batch_norm(m, 1);
    double *all = values_of(ctx, lks_module_forward(m, x));
    double mean = 0, var = 0;
    for (int r = 0; r < ranks; r++) mean += (r + 0.5) / ranks;
    for (int r = 0; r < ranks; r++) var += (pow(r - mean, 2) + pow(r + 1 - mean, 2)) / (2 * ranks);
    ok(own && fabs(own[0] + 1) < 1e-5 && fabs(own[1] - 1) < 1e-5, "this rank's statistics as made");
    ok(all && fabs(all[0] - (me - mean) / sqrt(var)) < 1e-5, "statistics of all ranks");
    lks_module_train(m, 0);
    double *eval = values_of(ctx, lks_module_forward(m, x));
    ok(eval && fabs(eval[0] - me) < 1e-5, "running statistics in eval mode, without communication");
    free(own), free(all), free(eval);
    lks_scope_end(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    tap_mpi(MPI_COMM_WORLD);
    if (argc > 1) device = argv[1];
    ctx = open_context(MPI_COMM_WORLD);
    alone = open_context(MPI_COMM_SELF);
    static const char *const plans[] = {"alike", "uneven", "one empty", "all but one empty"};
    for (int t = 0; t < 4; t++)
        for (int plan = 0; plan < 4; plan++) {
            int good = 1;
            for (int how = 0; how < 4; how++) good &= one_case(array_floats[t], plan, how & 1, how >> 1);
            ok(good, "%s, %s: as one batch", lks_dtype_name(array_floats[t]), plans[plan]);
        }
    ok(same_on_all(), "staged statistics have the same bits on every rank");
    modules();
    lks_context_destroy(&alone);
    lks_context_destroy(&ctx);
    int status = done();
    MPI_Finalize();
    return status;
}
