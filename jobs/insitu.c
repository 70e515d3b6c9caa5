/* SPDX-License-Identifier: BSD-3-Clause
 *
 * insitu.c - a simulation that trains a surrogate of itself while it runs, with no files between. The host is a solver
 * of its own: advection and diffusion, or Burgers' equation, in two dims, periodic, explicit differences on strips of
 * rows with halo exchange. Every K of its steps ("a coupling") the fields before and after go to a small convolutional
 * network, on all ranks or on ranks set aside that train while the others step on. Solver and network are saved at one
 * step and go on bit for bit. At the end the network replaces solver steps on states it has not seen, and errors, costs
 * and a picture are reported. doc/insitu.md tells the story; insitu.F90 is its twin.
 */
#define _GNU_SOURCE /* feenableexcept */
#include <lockstep.h>

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define R \
    6 /* rows and columns that the network sees around a cell: three convolutions of kernel 5, or one of kernel 13 */
#define LAYERS 3

typedef struct settings {
    int burgers, nx, ny, members, every, couplings, width, train_steps, life, train_ranks, checkpoint_every, resume,
        stop_after;
    int test, sets, shift, replace, threads, trap, seed;
    double lr, viscosity, cfl;
    const char *out, *picture, *device;
} settings;

/* A rank's strip: rows [first, first + rows) of ny, arrays [member][component][rows + 2 R][nx + 2 R]. */
typedef struct strip {
    MPI_Comm comm;
    int rank, size, rows, first, components;
    int64_t plane, numel; /* of one field, of all */
    double dx, dy, dt;
    double *u, *next, *before; /* state, room for a step, state before the coupling */
} strip;

typedef struct network {
    lks_context *ctx;
    lks_params *ps;
    lks_module *layer[LAYERS], *linear;
    lks_optim *opt;
    lks_dp *dp;
    lks_checkpoint *ckpt;
    double in_scale, out_scale;
} network;

typedef struct costs {
    double solver, halo, handover, training, surrogate;
    int64_t couplings, applied;
} costs;

static settings o = {.nx = 64,
                     .ny = 64,
                     .members = 4,
                     .every = 8,
                     .couplings = 400,
                     .width = 12,
                     .train_steps = 3,
                     .life = 20,
                     .checkpoint_every = 100,
                     .test = 20,
                     .sets = 1,
                     .replace = 2,
                     .seed = 1,
                     .lr = 0.006,
                     .viscosity = 0.005,
                     .cfl = 0.4,
                     .out = "insitu",
                     .picture = "insitu.png",
                     .device = "cpu"};
static costs cost;

static void die(const char *what, lks_context *ctx)
{
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "insitu: rank %d: %s%s%s\n", rank, what, ctx ? ": " : "", ctx ? lks_error(ctx) : "");
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* --- the solver: knows nothing of networks --- */

static int64_t at(int k, int j, int i, const strip *s)
{
    return k * s->plane + (int64_t)(j + R) * (o.nx + 2 * R) + i + R;
}

static void share(int n, int parts, int i, int *first, int *rows)
{
    int q = n / parts, r = n % parts;
    *first = i * q + (i < r ? i : r);
    *rows = q + (i < r);
}

static void strip_open(strip *s, MPI_Comm comm)
{
    s->comm = comm;
    MPI_Comm_rank(comm, &s->rank);
    MPI_Comm_size(comm, &s->size);
    share(o.ny, s->size, s->rank, &s->first, &s->rows);
    if (o.ny / s->size < R) die("a strip is thinner than the halo: take more rows (--ny) or fewer ranks", NULL);
    s->components = o.burgers ? 2 : 1;
    s->plane = (int64_t)(s->rows + 2 * R) * (o.nx + 2 * R);
    s->numel = s->plane * s->components * o.members;
    s->dx = 1.0 / o.nx, s->dy = 1.0 / o.ny;
    /* |u| and |v| are at most 1, and stay so. */
    s->dt = o.cfl / (1 / s->dx + 1 / s->dy + 2 * o.viscosity * (1 / (s->dx * s->dx) + 1 / (s->dy * s->dy)));
    s->u = calloc((size_t)s->numel, sizeof *s->u);
    s->next = calloc((size_t)s->numel, sizeof *s->next);
    s->before = calloc((size_t)s->numel, sizeof *s->before);
    if (!s->u || !s->next || !s->before) die("out of memory", NULL);
}

static void strip_close(strip *s) { free(s->u), free(s->next), free(s->before); }

/* Fills `width` rows and columns around the strip from the neighbours, all fields in one message each way. */
static void halo(strip *s, int width)
{
    double t = MPI_Wtime();
    int fields = s->components * o.members, up = (s->rank + 1) % s->size, down = (s->rank + s->size - 1) % s->size;
    int n = fields * width * o.nx;
    double *buffer = malloc((size_t)n * 4 * sizeof *buffer), *send[2] = {buffer, buffer + n},
           *get[2] = {buffer + 2 * n, buffer + 3 * n};
    if (!buffer) die("out of memory", NULL);
    for (int k = 0, p = 0; k < fields; k++)
        for (int j = 0; j < width; j++)
            for (int i = 0; i < o.nx; i++, p++) {
                send[0][p] = s->u[at(k, j, i, s)];
                send[1][p] = s->u[at(k, s->rows - width + j, i, s)];
            }
    MPI_Sendrecv(send[0], n, MPI_DOUBLE, down, 1, get[1], n, MPI_DOUBLE, up, 1, s->comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(send[1], n, MPI_DOUBLE, up, 2, get[0], n, MPI_DOUBLE, down, 2, s->comm, MPI_STATUS_IGNORE);
    for (int k = 0, p = 0; k < fields; k++)
        for (int j = 0; j < width; j++)
            for (int i = 0; i < o.nx; i++, p++) {
                s->u[at(k, j - width, i, s)] = get[0][p];
                s->u[at(k, s->rows + j, i, s)] = get[1][p];
            }
    for (int k = 0; k < fields; k++)
        for (int j = -width; j < s->rows + width; j++)
            for (int i = 0; i < width; i++) {
                s->u[at(k, j, i - width, s)] = s->u[at(k, j, o.nx - width + i, s)];
                s->u[at(k, j, o.nx + i, s)] = s->u[at(k, j, i, s)];
            }
    free(buffer);
    cost.halo += MPI_Wtime() - t;
}

/* One explicit step: upwind differences, central diffusion; no value leaves the range of its neighbours. */
static void solver_step(strip *s)
{
    halo(s, 1);
    double cx = s->dt / s->dx, cy = s->dt / s->dy;
    double mx = o.viscosity * s->dt / (s->dx * s->dx), my = o.viscosity * s->dt / (s->dy * s->dy);
    int row = o.nx + 2 * R;
    for (int m = 0; m < o.members; m++)
        for (int c = 0; c < s->components; c++)
            for (int j = 0; j < s->rows; j++)
                for (int i = 0; i < o.nx; i++) {
                    const double *q = s->u + at(m * s->components + c, j, i, s);
                    double wx = 1, wy = 0.5; /* carried by (1, 1/2), or by the field itself */
                    if (o.burgers) wx = s->u[at(m * 2, j, i, s)], wy = s->u[at(m * 2 + 1, j, i, s)];
                    double ax = wx * (wx > 0 ? q[0] - q[-1] : q[1] - q[0]);
                    double ay = wy * (wy > 0 ? q[0] - q[-row] : q[row] - q[0]);
                    s->next[q - s->u] =
                        q[0] - cx * ax - cy * ay + mx * (q[-1] - 2 * q[0] + q[1]) + my * (q[-row] - 2 * q[0] + q[row]);
                }
    double *swap = s->u;
    s->u = s->next;
    s->next = swap;
}

static double draw(int64_t *state) /* Park & Miller, 1988: the same numbers in both languages */
{
    *state = *state * 16807 % 2147483647;
    return (double)*state / 2147483647.0;
}

/* A state of few waves, |u| <= 1, chosen by (seed, number, member); shift is added to their wave numbers. */
static void start(strip *s, int member, int number, int shift)
{
    double pi2 = 2 * acos(-1), a[16], phase[16], sum;
    for (int c = 0; c < s->components; c++) {
        int64_t state = 1 + (o.seed * 7919 + number * 104729 + member * 1299709 + c * 15485863) % 2147483646;
        for (int w = 0; w < 20; w++) draw(&state);
        sum = 0;
        for (int w = 0; w < 16; w++) {
            int kx = w % 4, ky = w / 4 - 1;
            a[w] = draw(&state) / (1 + kx * kx + ky * ky);
            phase[w] = pi2 * draw(&state);
            sum += a[w];
        }
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++) {
                double v = 0;
                for (int w = 0; w < 16; w++) {
                    int kx = w % 4 + shift, ky = w / 4 - 1 + shift;
                    v += a[w] * sin(pi2 * (kx * (i + 0.5) * s->dx + ky * (s->first + j + 0.5) * s->dy) + phase[w]);
                }
                s->u[at(member * s->components + c, j, i, s)] = v / sum;
            }
    }
}

/* Largest speed against the one that the step was chosen for. */
static void check_cfl(strip *s)
{
    double most = 0;
    for (int k = 0; k < s->components * o.members; k++)
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++) most = fmax(most, fabs(s->u[at(k, j, i, s)]));
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, s->comm);
    if (!(most <= 1.5)) die("the field has grown beyond what the time step allows", NULL);
}

/* --- the network: cells and their neighbourhood in, change over a coupling out --- */

static void network_open(network *n, MPI_Comm comm, int training)
{
    int components = o.burgers ? 2 : 1, size;
    char name[16];
    lks_config *config = lks_config_new();
    lks_config_set_device(config, o.device);
    lks_config_set_threads(config, o.threads);
    lks_config_set_seed(config, o.seed);
    if (lks_context_create(comm, config, &n->ctx)) {
        fprintf(stderr, "insitu: %s\n", lks_config_message(config));
        die("no context", NULL);
    }
    lks_config_free(config);
    lks_status s = lks_params_create(n->ctx, &n->ps);
    for (int i = 0; i < LAYERS && s == LKS_OK; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        s = lks_conv2d_create(n->ps, name, i ? o.width : components, i < LAYERS - 1 ? o.width : components, 5, 1, 0, 1,
                              &n->layer[i]);
    }
    if (s == LKS_OK) s = lks_conv2d_create(n->ps, "linear", components, components, 2 * R + 1, 1, 0, 0, &n->linear);
    if (s == LKS_OK && training) {
        MPI_Comm_size(comm, &size);
        s = lks_optim_create(n->ps, LKS_ADAM, &n->opt);
        if (s == LKS_OK) s = lks_optim_set_lr(n->opt, -1, o.lr);
        if (s == LKS_OK)
            s = lks_optim_set_schedule(n->opt, LKS_SCHEDULE_COSINE, 10, (int64_t)o.couplings * o.train_steps, 0.02, 0,
                                       1);
        if (s == LKS_OK) s = lks_dp_create(n->ps, 0, &n->dp);
        if (s == LKS_OK) s = lks_dp_set_nominal(n->dp, (double)o.members * o.nx * o.ny);
    }
    if (s == LKS_OK) s = lks_checkpoint_create(n->ctx, &n->ckpt);
    if (s == LKS_OK) s = lks_checkpoint_set_params(n->ckpt, n->ps);
    if (s == LKS_OK && training) s = lks_checkpoint_set_optim(n->ckpt, n->opt);
    if (s != LKS_OK) die("building the network", n->ctx);
}

static void network_close(network *n)
{
    lks_checkpoint_destroy(&n->ckpt);
    lks_dp_destroy(&n->dp);
    lks_optim_destroy(&n->opt);
    for (int i = 0; i < LAYERS; i++) lks_module_destroy(&n->layer[i]);
    lks_module_destroy(&n->linear);
    lks_params_destroy(&n->ps);
    lks_context_destroy(&n->ctx);
}

/* x [M, C, rows + 2 R, nx + 2 R], scaled -> [M, C, rows, nx]: one linear stencil, and what it cannot say. */
static lks_tensor *network_forward(network *n, lks_tensor *x)
{
    lks_tensor *straight = lks_module_forward(n->linear, x);
    for (int i = 0; i < LAYERS; i++) {
        x = lks_module_forward(n->layer[i], x);
        if (i < LAYERS - 1) x = lks_gelu(x, 1);
    }
    return lks_add(straight, x);
}

/* One optimizer step on the strips that this rank has: pairs of arrays. */
static void network_train(network *n, int pairs, const int *rows, float *const *in, float *const *target)
{
    double t = MPI_Wtime();
    int64_t c = o.burgers ? 2 : 1;
    for (int step = 0; step < o.train_steps; step++) {
        lks_status s = lks_scope_begin(n->ctx);
        if (s == LKS_OK) s = lks_params_zero_grad(n->ps);
        for (int p = 0; p < pairs && s == LKS_OK; p++) {
            int64_t xs[4] = {o.members, c, rows[p] + 2 * R, o.nx + 2 * R}, ys[4] = {o.members, c, rows[p], o.nx};
            lks_tensor *y = network_forward(n, lks_from_host(n->ctx, LKS_F32, 4, xs, in[p]));
            lks_tensor *loss = lks_mse_loss(y, lks_from_host(n->ctx, LKS_F32, 4, ys, target[p]), LKS_REDUCTION_SUM);
            /* the library divides by the cells of all ranks */
            s = lks_dp_backward(n->dp, NULL, loss, (double)o.members * rows[p] * o.nx, LKS_NONE, p == pairs - 1);
        }
        if (s == LKS_OK) s = lks_optim_step(n->opt, NULL);
        if (s == LKS_OK) s = lks_scope_end(n->ctx);
        if (s != LKS_OK) die("training", n->ctx);
    }
    cost.training += MPI_Wtime() - t;
}

/* Cells with their neighbourhood, scaled, in single precision; the halo must be filled. */
static void pack(const strip *s, double scale, float *x)
{
    for (int64_t i = 0; i < s->numel; i++) x[i] = (float)(s->u[i] / scale);
}

/* The network in place of K solver steps. */
static void surrogate_step(network *n, strip *s, float *x)
{
    double t = MPI_Wtime();
    int64_t shape[4] = {o.members, s->components, s->rows + 2 * R, o.nx + 2 * R};
    int64_t cells = (int64_t)s->rows * o.nx * o.members * s->components;
    float *y = malloc((size_t)cells * sizeof *y);
    halo(s, R);
    pack(s, n->in_scale, x);
    lks_status status = y ? lks_scope_begin(n->ctx) : LKS_ERR_MEMORY;
    if (status == LKS_OK) status = lks_no_grad_begin(n->ctx);
    lks_tensor *out = network_forward(n, lks_from_host(n->ctx, LKS_F32, 4, shape, x));
    if (status == LKS_OK) status = lks_to_host(out, y, cells * (int64_t)sizeof *y);
    lks_no_grad_end(n->ctx);
    lks_scope_end(n->ctx);
    if (status != LKS_OK) die("the surrogate", n->ctx);
    for (int k = 0, p = 0; k < s->components * o.members; k++)
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++, p++) s->u[at(k, j, i, s)] += n->out_scale * (double)y[p];
    free(y);
    cost.surrogate += MPI_Wtime() - t;
    cost.applied++;
}

/* --- solver and network at one step --- */

static void solver_path(char *path, int bytes, int coupling)
{
    snprintf(path, (size_t)bytes, "%s/solver-%08d.h5", o.out, coupling);
}

/* Rows [row][member][component][column]: each rank's are neighbours. */
static void solver_save(lks_context *ctx, strip *s, int coupling)
{
    char path[4096];
    int fields = s->components * o.members;
    int64_t shape[4] = {o.ny, o.members, s->components, o.nx};
    double *v = malloc((size_t)s->rows * (size_t)(fields * o.nx) * sizeof *v);
    lks_output *out = NULL;
    if (!v) die("out of memory", NULL);
    for (int j = 0, p = 0; j < s->rows; j++)
        for (int k = 0; k < fields; k++)
            for (int i = 0; i < o.nx; i++, p++) v[p] = s->u[at(k, j, i, s)];
    solver_path(path, sizeof path, coupling);
    lks_status status = lks_output_create(ctx, path, "u", LKS_F64, 4, shape, &out);
    if (status == LKS_OK) status = lks_output_write(out, s->first, s->rows, v);
    status = lks_agree(ctx, status);
    if (status == LKS_OK) status = lks_output_finish(out);
    if (status != LKS_OK) die("saving the field", ctx);
    lks_output_destroy(&out);
    free(v);
    /* The network's file is what makes a pair; the two before it are kept. */
    solver_path(path, sizeof path, coupling - 3 * o.checkpoint_every);
    if (s->rank == 0) unlink(path);
}

static void solver_load(lks_context *ctx, strip *s, int coupling)
{
    char path[4096];
    const char *p = path;
    int fields = s->components * o.members;
    int64_t rows, first, bytes = (int64_t)s->rows * fields * o.nx * 8;
    double *v = malloc((size_t)bytes);
    lks_loader *l = NULL;
    lks_tensor *in, *none;
    if (!v) die("out of memory", NULL);
    solver_path(path, sizeof path, coupling);
    lks_status status = lks_loader_hdf5(ctx, 1, &p, "u", NULL, 0, &l);
    if (status == LKS_OK) status = lks_loader_set_wide(l, 1); /* double as double */
    if (status == LKS_OK) status = lks_scope_begin(ctx);
    if (status == LKS_OK)
        status = lks_loader_rows(l, 0, o.ny, &in, &none, &rows, &first); /* shared out as strips are */
    if (status == LKS_OK && (rows != s->rows || first != s->first || lks_loader_train_count(l) != o.ny))
        die("the field in the checkpoint has another size", NULL);
    if (status == LKS_OK) status = lks_to_host(in, v, bytes);
    lks_scope_end(ctx);
    if (status != LKS_OK) die("reading the field", ctx);
    for (int j = 0, i = 0; j < s->rows; j++)
        for (int k = 0; k < fields; k++)
            for (int x = 0; x < o.nx; x++, i++) s->u[at(k, j, x, s)] = v[i];
    lks_loader_destroy(&l);
    free(v);
}

static const struct {
    const char *key;
    int *value;
} kept[] = {{"burgers", &o.burgers}, {"nx", &o.nx},       {"ny", &o.ny},
            {"members", &o.members}, {"every", &o.every}, {"width", &o.width},
            {"life", &o.life},       {"seed", &o.seed},   {"couplings", &o.couplings}};
enum { KEPT = sizeof kept / sizeof *kept };

static void network_save(network *n, int coupling)
{
    lks_status s = LKS_OK;
    for (int i = 0; i < KEPT && s == LKS_OK; i++) s = lks_checkpoint_set_i64(n->ckpt, kept[i].key, *kept[i].value);
    if (s == LKS_OK) s = lks_checkpoint_set_f64(n->ckpt, "in_scale", n->in_scale);
    if (s == LKS_OK) s = lks_checkpoint_set_f64(n->ckpt, "out_scale", n->out_scale);
    if (s == LKS_OK) s = lks_checkpoint_save_step(n->ckpt, o.out, coupling, 2);
    if (s != LKS_OK) die("saving the network", n->ctx);
}

/* Coupling that the newest pair is of; 0: there is none. */
static int network_load(network *n)
{
    char path[4096];
    int64_t step = 0, value;
    lks_status s = lks_checkpoint_latest(n->ctx, o.out, path, sizeof path, &step);
    if (s == LKS_ERR_NOT_FOUND) {
        lks_error_clear(n->ctx);
        return 0;
    }
    if (s == LKS_OK) s = lks_checkpoint_peek(n->ckpt, path);
    for (int i = 0; i < KEPT && s == LKS_OK; i++) {
        s = lks_checkpoint_get_i64(n->ckpt, kept[i].key, &value);
        if (s == LKS_OK && value != *kept[i].value) {
            fprintf(stderr, "insitu: --%s was %d\n", kept[i].key, (int)value);
            die("the checkpoint is of another problem", NULL);
        }
    }
    if (s == LKS_OK) s = lks_checkpoint_load(n->ckpt, path, NULL, NULL);
    if (s == LKS_OK) s = lks_checkpoint_get_f64(n->ckpt, "in_scale", &n->in_scale);
    if (s == LKS_OK) s = lks_checkpoint_get_f64(n->ckpt, "out_scale", &n->out_scale);
    if (s != LKS_OK) die("resuming", n->ctx);
    return (int)step;
}

/* --- a coupling --- */

typedef struct pair {
    float *in, *target;
    int rows;
} pair;

static pair pair_new(int rows)
{
    int64_t fields = (int64_t)(o.burgers ? 2 : 1) * o.members;
    pair p = {malloc((size_t)(fields * (rows + 2 * R) * (o.nx + 2 * R)) * sizeof(float)),
              malloc((size_t)(fields * rows * o.nx) * sizeof(float)), rows};
    if (!p.in || !p.target) die("out of memory", NULL);
    return p;
}

static void pair_free(pair *p) { free(p->in), free(p->target); }

static double mean_square(strip *s, const double *u, const double *minus)
{
    double sum[2] = {0, 0};
    for (int k = 0; k < s->components * o.members; k++)
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++) {
                double d = u[at(k, j, i, s)] - (minus ? minus[at(k, j, i, s)] : 0);
                sum[0] += d * d;
                sum[1] += 1;
            }
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_DOUBLE, MPI_SUM, s->comm);
    return sum[0] / sum[1];
}

/* K solver steps; the fields before and after, scaled, into p. scale: of fields and of changes; 0: not known yet. */
static void couple(strip *s, pair *p, double scale[2])
{
    halo(s, R);
    memcpy(s->before, s->u, (size_t)s->numel * sizeof *s->u);
    double t = MPI_Wtime(), exchanged = cost.halo;
    for (int k = 0; k < o.every; k++) solver_step(s);
    check_cfl(s);
    cost.solver += MPI_Wtime() - t - (cost.halo - exchanged);
    t = MPI_Wtime();
    if (scale[0] == 0) { /* of the first coupling, for good */
        scale[0] = sqrt(mean_square(s, s->before, NULL));
        scale[1] = sqrt(mean_square(s, s->u, s->before));
    }
    for (int64_t i = 0; i < s->numel; i++) p->in[i] = (float)(s->before[i] / scale[0]);
    for (int k = 0, q = 0; k < s->components * o.members; k++)
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++, q++)
                p->target[q] = (float)((s->u[at(k, j, i, s)] - s->before[at(k, j, i, s)]) / scale[1]);
    cost.handover += MPI_Wtime() - t;
    cost.couplings++;
}

/* Members begin anew in turn, so that the network sees young and old fields at any time. */
static void renew(strip *s, int coupling)
{
    for (int m = 0; m < o.members; m++)
        if ((coupling + m * o.life / o.members) % o.life == 0) start(s, m, coupling, 0);
}

static int due(int coupling) { return coupling % o.checkpoint_every == 0 || coupling == o.couplings; }
static int last(int coupling) { return coupling == o.couplings || (o.stop_after && coupling == o.stop_after); }

/* Solver and training take turns on every rank. */
static void run_together(strip *s, network *n, int from)
{
    pair p = pair_new(s->rows);
    double scale[2] = {n->in_scale, n->out_scale};
    for (int c = from + 1; c <= o.couplings; c++) {
        couple(s, &p, scale);
        n->in_scale = scale[0], n->out_scale = scale[1];
        renew(s, c);
        network_train(n, 1, &p.rows, &p.in, &p.target);
        if (due(c)) {
            solver_save(n->ctx, s, c);
            network_save(n, c);
        }
        if (last(c)) break;
    }
    pair_free(&p);
}

/* Ranks that step: strip i goes to trainer i mod trainers while the next coupling is computed. */
static void run_solver(strip *s, lks_context *ctx, int from, int first_trainer, double scale[2])
{
    pair p[2] = {pair_new(s->rows), pair_new(s->rows)};
    MPI_Request rq[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int fields = s->components * o.members, trainer = first_trainer + s->rank % o.train_ranks;
    double sent[2];
    MPI_Status done[3]; /* not MPI_STATUSES_IGNORE: a pointer that gcc warns of where it is a small number */
    for (int c = from + 1; c <= o.couplings; c++) {
        pair *now = &p[c & 1];
        couple(s, now, scale);
        renew(s, c);
        if (due(c)) solver_save(ctx, s, c); /* before the network of this coupling can be saved */
        double t = MPI_Wtime();
        MPI_Waitall(3, rq, done); /* the trainers are one coupling behind at most */
        memcpy(sent, scale, sizeof sent);
        MPI_Isend(sent, 2, MPI_DOUBLE, trainer, 10, MPI_COMM_WORLD, &rq[0]);
        MPI_Isend(now->in, fields * (s->rows + 2 * R) * (o.nx + 2 * R), MPI_FLOAT, trainer, 11, MPI_COMM_WORLD, &rq[1]);
        MPI_Isend(now->target, fields * s->rows * o.nx, MPI_FLOAT, trainer, 12, MPI_COMM_WORLD, &rq[2]);
        cost.handover += MPI_Wtime() - t;
        if (last(c)) break;
    }
    MPI_Waitall(3, rq, done);
    pair_free(&p[0]), pair_free(&p[1]);
}

/* Ranks set aside: the strips of some solver ranks are the micro-batches of a step. */
static void run_trainer(network *n, int from, int solvers, int rank)
{
    int count = 0, first, fields = (o.burgers ? 2 : 1) * o.members, *rows = calloc((size_t)solvers, sizeof *rows);
    pair *p = calloc((size_t)solvers, sizeof *p);
    float **in = calloc((size_t)solvers, sizeof *in), **target = calloc((size_t)solvers, sizeof *target);
    if (!rows || !p || !in || !target) die("out of memory", NULL);
    for (int i = rank; i < solvers; i += o.train_ranks, count++) {
        share(o.ny, solvers, i, &first, &rows[count]);
        p[count] = pair_new(rows[count]);
        in[count] = p[count].in, target[count] = p[count].target;
    }
    for (int c = from + 1; c <= o.couplings; c++) {
        for (int k = 0, i = rank; k < count; k++, i += o.train_ranks) {
            double scale[2];
            MPI_Recv(scale, 2, MPI_DOUBLE, i, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Recv(in[k], fields * (rows[k] + 2 * R) * (o.nx + 2 * R), MPI_FLOAT, i, 11, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            MPI_Recv(target[k], fields * rows[k] * o.nx, MPI_FLOAT, i, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            n->in_scale = scale[0], n->out_scale = scale[1];
        }
        network_train(n, count, rows, in, target);
        if (due(c)) network_save(n, c);
        if (last(c)) break;
    }
    for (int k = 0; k < count; k++) pair_free(&p[k]);
    free(p), free(in), free(target), free(rows);
}

/* The trainers' weights and scales to every rank, from `root` of the world. */
static void share_weights(network *n, int root)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < lks_params_count(n->ps); i++) {
        lks_tensor *t = lks_params_tensor(n->ps, i);
        int64_t count = lks_numel(t);
        float *v = malloc((size_t)count * sizeof *v);
        if (!v || (rank == root && lks_to_host(t, v, count * 4))) die("sending weights", n->ctx);
        MPI_Bcast(v, (int)count, MPI_FLOAT, root, MPI_COMM_WORLD);
        lks_no_grad_begin(n->ctx); /* not a part of any graph */
        if (lks_set_from_host(t, v, count * 4)) die("taking weights", n->ctx);
        lks_no_grad_end(n->ctx);
        free(v);
    }
    double scale[2] = {n->in_scale, n->out_scale};
    MPI_Bcast(scale, 2, MPI_DOUBLE, root, MPI_COMM_WORLD);
    n->in_scale = scale[0], n->out_scale = scale[1];
}

/* --- what came of it --- */

/* Member 0, component 0 on rank 0 (else NULL). */
static double *gather(strip *s, const double *u)
{
    int *count = malloc((size_t)s->size * sizeof *count), *from = malloc((size_t)s->size * sizeof *from), rows;
    double *mine = malloc((size_t)(s->rows * o.nx) * sizeof *mine), *all = NULL;
    if (s->rank == 0) all = malloc((size_t)(o.nx * o.ny) * sizeof *all);
    if (!count || !from || !mine || (s->rank == 0 && !all)) die("out of memory", NULL);
    for (int r = 0; r < s->size; r++) {
        share(o.ny, s->size, r, &from[r], &rows);
        count[r] = rows * o.nx, from[r] *= o.nx;
    }
    for (int j = 0, p = 0; j < s->rows; j++)
        for (int i = 0; i < o.nx; i++, p++) mine[p] = u[at(0, j, i, s)];
    MPI_Gatherv(mine, s->rows * o.nx, MPI_DOUBLE, all, count, from, MPI_DOUBLE, 0, s->comm);
    free(count), free(from), free(mine);
    return all;
}

/* Of the solver's range, or of their own where something is taken off. */
static void panel(FILE *f, const char *title, const double *v, const double *minus, const double *range,
                  const char *palette)
{
    double most = 1e-12;
    for (int i = 0; i < o.nx * o.ny; i++) most = fmax(most, fabs(minus ? v[i] - minus[i] : range[i]));
    fprintf(f, "set title '%s'\nset cbrange [%.4g:%.4g]\n%s\nplot '-' matrix with image notitle\n", title, -most, most,
            palette);
    for (int j = 0; j < o.ny; j++)
        for (int i = 0; i < o.nx; i++)
            fprintf(f, "%.4g%c", v[j * o.nx + i] - (minus ? minus[j * o.nx + i] : 0), i < o.nx - 1 ? ' ' : '\n');
    fprintf(f, "e\n");
}

static void picture(const double *truth, const double *guess)
{
    if (access(o.out, W_OK)) return;
    signal(SIGPIPE, SIG_IGN); /* no gnuplot, no picture */
    FILE *f = popen("gnuplot 2>/dev/null", "w");
    if (!f) return;
    fprintf(f,
            "set terminal png truecolor size 1200,380 font 'sans,10'\nset output '%s'\nset multiplot layout 1,3\n"
            "set size ratio -1\nunset tics\nset cbtics\nset xrange [-0.5:%d-0.5]\nset yrange [-0.5:%d-0.5]\n",
            o.picture, o.nx, o.ny);
    panel(f, "solver", truth, NULL, truth, "set palette rgbformulae 33,13,10");
    panel(f, "solver and surrogate", guess, NULL, truth, "set palette rgbformulae 33,13,10");
    panel(f, "difference", guess, truth, NULL, "set palette defined (-1 'blue', 0 'white', 1 'red')");
    fprintf(f, "unset multiplot\n");
    int failed = pclose(f);
    signal(SIGPIPE, SIG_DFL);
    printf(failed ? "no picture: gnuplot is not installed\n" : "picture: %s\n", o.picture);
}

/* Relative to the deviation of the truth around its mean. */
static double error(strip *s, const double *guess, const double *truth)
{
    double mean = 0, cells = (double)o.nx * o.ny * o.members * s->components, variance;
    for (int k = 0; k < s->components * o.members; k++)
        for (int j = 0; j < s->rows; j++)
            for (int i = 0; i < o.nx; i++) mean += truth[at(k, j, i, s)] / cells;
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, s->comm);
    variance = mean_square(s, truth, NULL) - mean * mean;
    return sqrt(mean_square(s, guess, truth) / variance);
}

/* Of a set of states that training has not seen: solver alone, surrogate alone, and both in turn. The surrogate's is
 * left in s->u. Returns the number of couplings that it took. */
static int unseen(strip *s, network *n, int set, double *first, double *truth, double *alone, float *x)
{
    size_t bytes = (size_t)s->numel * sizeof *s->u;
    int replaced = 0;
    for (int m = 0; m < o.members; m++) start(s, m, -1 - m - set * o.members, o.shift);
    memcpy(first, s->u, bytes);
    for (int c = 0; c < o.test; c++)
        for (int k = 0; k < o.every; k++) solver_step(s);
    memcpy(truth, s->u, bytes);
    memcpy(s->u, first, bytes);
    for (int c = 0; c < o.test; c++) surrogate_step(n, s, x);
    memcpy(alone, s->u, bytes);
    memcpy(s->u, first, bytes);
    for (int c = 0; c < o.test; c++) {
        if (c % o.replace == o.replace - 1) {
            surrogate_step(n, s, x);
            replaced++;
        } else {
            for (int k = 0; k < o.every; k++) solver_step(s);
        }
    }
    return replaced;
}

static void report(strip *s, network *n)
{
    size_t bytes = (size_t)s->numel * sizeof *s->u;
    float *x = malloc((size_t)s->numel * sizeof *x);
    double *first = malloc(bytes), *truth = malloc(bytes), *alone = malloc(bytes);
    if (!x || !first || !truth || !alone) die("out of memory", NULL);
    for (int set = 0; set < o.sets; set++) {
        int replaced = unseen(s, n, set, first, truth, alone, x);
        double e[3] = {error(s, alone, truth), error(s, s->u, truth), error(s, first, truth)};
        if (s->rank == 0)
            printf("unseen states, %d couplings of %d steps: error of the surrogate alone %.2f %%, of %d couplings "
                   "replaced %.2f %% (of doing nothing %.0f %%)\n",
                   o.test, o.every, 100 * e[0], replaced, 100 * e[1], 100 * e[2]);
    }
    double *a = gather(s, truth), *b = gather(s, s->u);
    if (s->rank == 0) {
        double per = 1e3 / (double)(cost.couplings ? cost.couplings : 1);
        printf("ms a coupling: solver %.3f, halos %.3f, hand-over %.3f", cost.solver * per, cost.halo * per,
               cost.handover * per);
        if (!o.train_ranks) printf(", training %.3f", cost.training * per);
        printf("; the surrogate instead %.3f\n", cost.applied ? 1e3 * cost.surrogate / (double)cost.applied : 0);
        picture(a, b);
    }
    free(a), free(b), free(x), free(first), free(truth), free(alone);
}

/* --- the host is a guest's host: what is its own stays its own --- */

static void on_error(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }
static void on_signal(int number) { (void)number; }
static MPI_Errhandler handler;

static void host_begin(void)
{
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    signal(SIGUSR1, on_signal);
    signal(SIGTERM, on_signal);
    if (o.trap) feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
}

static void host_check(void)
{
    MPI_Errhandler now;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
    int kept_all = now == handler && signal(SIGUSR1, SIG_DFL) == on_signal && signal(SIGTERM, SIG_DFL) == on_signal &&
                   fegetround() == FE_TONEAREST &&
                   fegetexcept() == (o.trap ? FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW : 0),
        all;
    MPI_Errhandler_free(&now);
    MPI_Errhandler_free(&handler);
    MPI_Allreduce(&kept_all, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all) die("the host's handlers or floating-point environment were changed", NULL);
}

/* --- options --- */

static const struct {
    const char *name;
    int *whole;
    double *real;
    const char **text;
    const char *help;
} table[] = {
    {"burgers", &o.burgers, 0, 0, "1: Burgers' equation for (u, v); 0: advection and diffusion of u [0]"},
    {"nx", &o.nx, 0, 0, "cells in x [64]"},
    {"ny", &o.ny, 0, 0, "cells in y, at least 6 a solver rank [64]"},
    {"members", &o.members, 0, 0, "fields that are stepped at once [4]"},
    {"viscosity", 0, &o.viscosity, 0, "[0.005]"},
    {"cfl", 0, &o.cfl, 0, "Courant number, below 1 [0.4]"},
    {"every", &o.every, 0, 0, "solver steps a coupling [8]"},
    {"couplings", &o.couplings, 0, 0, "couplings to run [400]"},
    {"life", &o.life, 0, 0, "couplings until a member begins anew [20]"},
    {"width", &o.width, 0, 0, "channels of the network [12]"},
    {"train-steps", &o.train_steps, 0, 0, "optimizer steps a coupling [3]"},
    {"lr", 0, &o.lr, 0, "learning rate of Adam [0.006]"},
    {"train-ranks", &o.train_ranks, 0, 0, "ranks set aside for training, the last ones; 0: all ranks do both [0]"},
    {"out", 0, 0, &o.out, "folder of checkpoints [insitu]"},
    {"checkpoint-every", &o.checkpoint_every, 0, 0, "couplings between checkpoints [100]"},
    {"resume", &o.resume, 0, 0, "1: go on from the newest checkpoint in the folder [0]"},
    {"stop-after", &o.stop_after, 0, 0, "end after this coupling, as if killed; 0: no [0]"},
    {"test", &o.test, 0, 0, "couplings of the test on unseen states [20]"},
    {"sets", &o.sets, 0, 0, "sets of unseen states, each of as many fields as there are members [1]"},
    {"shift", &o.shift, 0, 0, "added to the wave numbers of unseen states; 0: as those of training [0]"},
    {"replace", &o.replace, 0, 0, "of so many couplings of the test one is the surrogate's [2]"},
    {"picture", 0, 0, &o.picture, "field, prediction, difference [insitu.png]"},
    {"seed", &o.seed, 0, 0, "[1]"},
    {"device", 0, 0, &o.device, "of the network: cpu, cuda or auto; the solver has the CPU [cpu]"},
    {"threads", &o.threads, 0, 0, "threads a rank; 0: as the library chooses [0]"},
    {"trap", &o.trap, 0, 0, "1: the host traps invalid, divide by zero, overflow [0]"}};
enum { OPTIONS = sizeof table / sizeof *table };

static int usage(const char *bad)
{
    FILE *f = bad ? stderr : stdout;
    if (bad) fprintf(f, "insitu: what is %s?\n", bad);
    fprintf(f, "usage: insitu [--OPTION VALUE]...\n");
    for (int i = 0; i < OPTIONS; i++)
        fprintf(f, "  --%-18s %s %s\n", table[i].name,
                table[i].text   ? "TEXT"
                : table[i].real ? "R   "
                                : "N   ",
                table[i].help);
    return bad ? 2 : 0;
}

static int parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int k = 0;
        char *end = "";
        if (!strcmp(argv[i], "--help")) exit(usage(NULL));
        while (k < OPTIONS && (strncmp(argv[i], "--", 2) || strcmp(argv[i] + 2, table[k].name))) k++;
        if (k == OPTIONS || i + 1 == argc) return usage(argv[i]);
        i++;
        if (table[k].text) *table[k].text = argv[i];
        else if (table[k].real) *table[k].real = strtod(argv[i], &end);
        else *table[k].whole = (int)strtol(argv[i], &end, 10);
        if (*end) return usage(argv[i]);
    }
    int good = o.nx >= R && o.ny >= R && o.members > 0 && o.every > 0 && o.couplings > 0 && o.width > 0 && o.life > 0 &&
               o.train_steps > 0 && o.checkpoint_every > 0 && o.test > 0 && o.sets > 0 && o.replace > 0 &&
               o.train_ranks >= 0 &&
               o.cfl > 0 && o.cfl < 1 && o.viscosity >= 0 && o.seed >= 0 && o.threads >= 0 && o.life % o.members == 0;
    return good ? 0 : usage("one of the values (life must be a multiple of members, cfl below 1)");
}

int main(int argc, char **argv)
{
    int rank, size, code = parse(argc, argv), from = 0;
    if (code) return code;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (o.train_ranks > size / 2) die("--train-ranks takes more than half of the ranks", NULL);
    host_begin();
    if (rank == 0) mkdir(o.out, 0777);
    MPI_Barrier(MPI_COMM_WORLD);

    int solvers = size - o.train_ranks, training = o.train_ranks ? rank >= solvers : 1, stepping = rank < solvers;
    int root = o.train_ranks ? solvers : 0; /* world rank of the first trainer */
    MPI_Comm mine;
    MPI_Comm_split(MPI_COMM_WORLD, o.train_ranks ? training : 0, rank, &mine);
    network n = {0};
    strip s = {0};
    network_open(&n, mine, training);
    if (o.resume && training) from = network_load(&n);
    MPI_Bcast(&from, 1, MPI_INT, root, MPI_COMM_WORLD);
    if (o.resume && from) share_weights(&n, root); /* for the scales */
    if (stepping) {
        strip_open(&s, mine);
        if (from) solver_load(n.ctx, &s, from);
        else
            for (int m = 0; m < o.members; m++) start(&s, m, 0, 0);
    }
    if (rank == 0 && from) printf("going on after coupling %d\n", from);
    if (!o.train_ranks) {
        run_together(&s, &n, from);
    } else if (training) {
        run_trainer(&n, from, solvers, rank - solvers);
    } else {
        double scale[2] = {n.in_scale, n.out_scale};
        run_solver(&s, n.ctx, from, solvers, scale);
    }
    if (o.stop_after && o.stop_after < o.couplings) {
        if (rank == 0) printf("stopped after coupling %d\n", o.stop_after);
    } else {
        if (o.train_ranks) share_weights(&n, root);
        if (stepping) report(&s, &n);
    }
    if (stepping) strip_close(&s);
    network_close(&n);
    MPI_Comm_free(&mine);
    host_check();
    MPI_Finalize();
    return 0;
}
