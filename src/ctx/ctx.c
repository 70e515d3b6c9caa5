/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ctx.c - making and ending a context; the only file that names every backend.
 */
#include "autocast/autocast.h"
#include "base/guard.h"
#include "comm/comm.h"
#include "ctx/graph.h"
#include "ctx/plugin.h"
#include "ops/ops.h"
#include "tape/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lks_config {
    char device[16];
    int threads, transport;
    int64_t seed;
    double deadline;
    lks_log_fn log;
    void *log_user;
    char message[LKSI_TEXT];
};

lks_config *lks_config_new(void)
{
    lks_config *c = lksi_alloc(NULL, sizeof *c);
    if (!c) return NULL;
    snprintf(c->device, sizeof c->device, "cpu");
    c->deadline = 600;
    return c;
}

void lks_config_free(lks_config *config) { lksi_free(NULL, config); }
const char *lks_config_message(const lks_config *config) { return config ? config->message : ""; }

static lks_status refuse(lks_config *c, const char *text)
{
    snprintf(c->message, sizeof c->message, "%s", text);
    return LKS_ERR_ARGUMENT;
}

lks_status lks_config_set_device(lks_config *c, const char *device)
{
    static const char *const known[] = {"cpu", "cuda", "auto", "far"};
    for (int i = 0; i < 4 && device; i++)
        if (!strcmp(device, known[i])) {
            snprintf(c->device, sizeof c->device, "%s", device);
            return LKS_OK;
        }
    return refuse(c, "lks_config_set_device: the device is one of cpu, cuda, auto, far");
}

lks_status lks_config_set_transport(lks_config *c, const char *transport)
{
    static const char *const known[] = {"auto", "mpi", "nccl"}; /* by number of LKSI_TRANSPORT */
    for (int i = 0; i < 3 && transport; i++)
        if (!strcmp(transport, known[i])) {
            c->transport = i;
            return LKS_OK;
        }
    return refuse(c, "lks_config_set_transport: the transport is one of auto, mpi, nccl");
}

lks_status lks_config_set_threads(lks_config *c, int threads)
{
    if (threads < 0 || threads > 4096) return refuse(c, "lks_config_set_threads: threads must be 0 (default) to 4096");
    c->threads = threads;
    return LKS_OK;
}

lks_status lks_config_set_seed(lks_config *c, int64_t seed)
{
    c->seed = seed;
    return LKS_OK;
}

lks_status lks_config_set_deadline(lks_config *c, double seconds)
{
    LKSI_GUARD;
    if (!(seconds > 0 && seconds < 1e9)) return refuse(c, "lks_config_set_deadline: seconds must be above 0");
    c->deadline = seconds;
    return LKS_OK;
}

lks_status lks_config_set_log(lks_config *c, lks_log_fn fn, void *user)
{
    c->log = fn;
    c->log_user = user;
    return LKS_OK;
}

/* --- MPI ---
 * Whether MPI was initialised by us is a fact of the process, not of a context: it is kept with MPI itself, as an
 * attribute of MPI_COMM_SELF whose key is the one thing remembered here. */
static int ours_key = MPI_KEYVAL_INVALID;

static int mpi_state(void)
{
    int up = 0, down = 0;
    MPI_Initialized(&up);
    MPI_Finalized(&down);
    return down ? 2 : up;
}

static lks_status start_mpi(lksi_base *b)
{
    int state = mpi_state(), level;
    if (state == 2) return lksi_fail(b, LKS_ERR_STATE, "lks_context_create", "MPI was finalised before");
    if (state == 1) return LKS_OK;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return lksi_fail(b, LKS_ERR_MPI, "lks_context_create", "MPI_Init_thread failed");
    if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &ours_key, NULL) == MPI_SUCCESS)
        MPI_Comm_set_attr(MPI_COMM_SELF, ours_key, &ours_key);
    return LKS_OK;
}

lks_status lks_finalize(void)
{
    if (ours_key == MPI_KEYVAL_INVALID || mpi_state() != 1) return LKS_OK;
    ours_key = MPI_KEYVAL_INVALID;
    return MPI_Finalize() == MPI_SUCCESS ? LKS_OK : LKS_ERR_MPI;
}

/* srun or mpirun started several processes, but each sees a world of one: the launcher speaks another PMI. */
static lks_status check_launch(lksi_base *b)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE"};
    int world = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world > 1) return LKS_OK;
    for (int i = 0; i < 4; i++) {
        const char *v = getenv(names[i]);
        if (v && atoi(v) > 1)
            return lksi_fail(
                b, LKS_ERR_STATE, "lks_context_create",
                "%s=%s processes were started, but MPI_COMM_WORLD has 1: the launcher and this MPI do not speak the "
                "same PMI. Start with `srun --mpi=pmix` (`srun --mpi=list` shows what there is) or with the mpirun "
                "that belongs to the MPI library",
                names[i], v);
    }
    return LKS_OK;
}

/* --- device --- */

enum { ON_CPU, ON_FAR, ON_CUDA };

int lks_device_probe(const char *device, char *text, int bytes)
{
    char path[LKSI_TEXT], why[LKSI_TEXT];
    if (!device || (strcmp(device, "cpu") && strcmp(device, "far") && strcmp(device, "cuda"))) {
        if (text) snprintf(text, (size_t)bytes, "no such device");
        return 0;
    }
    if (strcmp(device, "cuda")) {
        if (text) snprintf(text, (size_t)bytes, "built in");
        return 1;
    }
#ifndef HAVE_CUDA
    (void)path, (void)why;
    if (text) snprintf(text, (size_t)bytes, "this build has no CUDA backend");
    return 0;
#else
    const lksi_plugin *plugin = lksi_plugin_load("cuda", path, why);
    int n = plugin ? plugin->probe(why, LKSI_TEXT) : 0;
    if (!text) return n;
    int at = snprintf(text, (size_t)bytes, plugin ? "%s (module %s)" : "%s", why, path);
    if (!plugin || at >= bytes) return n;
    plugin = lksi_plugin_load("cumath", path, why);
    if (plugin) plugin->probe(why, LKSI_TEXT);
    snprintf(text + at, (size_t)(bytes - at),
             plugin ? "; %s (module %s)" : "; no Fourier transforms and linear algebra: %s", why, path);
    return n;
#endif
}

/* What "auto" means: cuda if every rank has a device. */
static lks_status resolve(lks_context *ctx, const char *name, int *kind)
{
    *kind = !strcmp(name, "far") ? ON_FAR : !strcmp(name, "cuda") ? ON_CUDA : ON_CPU;
    if (strcmp(name, "auto")) return LKS_OK;
    int have = lks_device_probe("cuda", NULL, 0) > 0;
    int64_t v[2] = {have, !have};
    TRY(lksi_host_reduce(ctx->comm, "context device", v, 2, LKS_I64, LKS_MAX));
    if (v[0] && v[1])
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_context_create",
                         "some ranks have a CUDA device and some have none: ask for cpu, or give every rank a device");
    *kind = v[0] ? ON_CUDA : ON_CPU;
    return LKS_OK;
}

static lks_status pick_backend(lks_context *ctx, int kind, const lksi_backend **be)
{
    *be = kind == ON_FAR ? &lksi_backend_far : &lksi_backend_cpu;
    if (kind != ON_CUDA) return LKS_OK;
#ifdef HAVE_CUDA
    char path[LKSI_TEXT], why[LKSI_TEXT];
    const lksi_plugin *plugin = lksi_plugin_load("cuda", path, why);
    if (!plugin) return lksi_fail(&ctx->base, LKS_ERR_DEVICE, "lks_context_create", "device cuda: %s", why);
    *be = plugin->backend;
    return LKS_OK;
#else
    return lksi_fail(&ctx->base, LKS_ERR_DEVICE, "lks_context_create",
                     "device cuda was asked for, and this build has no CUDA backend (device cpu works everywhere)");
#endif
}

static lks_status write_rng(lks_context *ctx)
{
    lksi_rng r = {ctx->seed, ctx->attempt};
    return lksi_device_write(ctx->dev, ctx->rng, &r, sizeof r);
}

static lks_status open_device(lks_context *ctx, const lks_config *config, int kind)
{
    const lksi_backend *be;
    TRY(pick_backend(ctx, kind, &be));
    lksi_device_options o = {.threads = config ? config->threads : 0, .local_rank = ctx->local_rank,
                             .local_size = ctx->local_size, .module = lksi_plugin_load};
    TRY(lksi_device_open(&ctx->base, be, &o, &ctx->dev));
    ctx->threads = be->threads(ctx->dev->self);
    void *p;
    TRY(lksi_device_alloc(ctx->dev, sizeof(lksi_rng), &p));
    ctx->rng = p;
    TRY(write_rng(ctx));
    return (ctx->autocast = lksi_autocast_create(ctx)) ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status same_everywhere(lks_context *ctx, int kind, int transport)
{
    int64_t v[6] = {ctx->seed, ~ctx->seed, kind, ~(int64_t)kind, transport, ~(int64_t)transport};
    TRY(lksi_host_reduce(ctx->comm, "context settings", v, 6, LKS_I64, LKS_MAX));
    if (v[0] != ~v[1])
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_context_create", "ranks were given different seeds");
    if (v[2] != ~v[3])
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_context_create", "ranks were given different devices");
    if (v[4] != ~v[5])
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_context_create", "ranks were given different transports");
    return LKS_OK;
}

static void undo(lks_context *ctx)
{
    lksi_graphs_close(ctx);
    lksi_control_close(ctx);
    if (ctx->dev) {
        lksi_later_close(ctx);
        while (ctx->scope_count) lks_scope_end(ctx);
        while (ctx->born_count > 0) lks_release(ctx->born[--ctx->born_count]);
        lksi_autocast_destroy(ctx);
        if (ctx->rng) lksi_device_free(ctx->dev, ctx->rng);
    }
    lksi_free(&ctx->base, ctx->born);
    lksi_free(&ctx->base, ctx->scope_start);
    lksi_comm_close(ctx->comm);
    lksi_device_close(ctx->dev);
    lksi_cells_clear(&ctx->base);
    lksi_free(NULL, ctx);
}

lks_status lks_context_create(MPI_Comm comm, const lks_config *config, lks_context **out)
{
    *out = NULL;
    if (config) ((lks_config *)config)->message[0] = 0;
    lks_context *ctx = lksi_alloc(NULL, sizeof *ctx);
    if (!ctx) return LKS_ERR_MEMORY;
    lksi_base *b = &ctx->base;
    b->size = 1;
    b->deadline = config ? config->deadline : 600;
    b->log = config ? config->log : NULL;
    b->log_user = config ? config->log_user : NULL;
    ctx->seed = config ? config->seed : 0;
    const char *device = config ? config->device : "cpu";
    int kind = ON_CPU;
    int hosted = mpi_state() == 1 && ours_key == MPI_KEYVAL_INVALID;
    lks_status s = start_mpi(b);
    if (s == LKS_OK) s = check_launch(b);
    /* In a program that runs MPI itself, MPI_COMM_NULL is a rank left out by MPI_Comm_split, not a wish for all. */
    if (s == LKS_OK && comm == MPI_COMM_NULL && !hosted) comm = MPI_COMM_WORLD;
    if (s == LKS_OK) s = lksi_comm_open(b, comm, &ctx->comm);
    if (s == LKS_OK) {
        b->rank = ctx->comm->rank;
        b->size = ctx->comm->size;
        ctx->local_rank = ctx->comm->local_rank;
        ctx->local_size = ctx->comm->local_size;
        s = resolve(ctx, device, &kind);
        if (s == LKS_OK) s = lksi_agree(ctx->comm, "lks_context_create", open_device(ctx, config, kind));
        int transport = config ? config->transport : LKSI_TRANSPORT_AUTO;
        if (s == LKS_OK) s = same_everywhere(ctx, kind, transport);
        if (s == LKS_OK) s = lksi_comm_attach(ctx->comm, ctx->dev, transport);
    }
    if (s != LKS_OK) {
        if (config)
            snprintf(((lks_config *)config)->message, LKSI_TEXT, "%s", b->text[0] ? b->text : lks_status_text(s));
        undo(ctx);
        return s;
    }
    if (b->size > 1) ctx->poll = lksi_comm_poll;
    *out = ctx;
    return LKS_OK;
}

lks_status lks_context_create_f(int comm, const lks_config *config, lks_context **ctx)
{
    return lks_context_create(mpi_state() == 1 ? MPI_Comm_f2c((MPI_Fint)comm) : MPI_COMM_NULL, config, ctx);
}

lks_status lks_context_destroy(lks_context **pctx)
{
    lks_context *ctx = *pctx;
    *pctx = NULL;
    if (!ctx) return LKS_OK;
    int state = mpi_state();
    while (ctx->scope_count) lks_scope_end(ctx);
    while (ctx->born_count > 0) lks_release(ctx->born[--ctx->born_count]);
    if (ctx->live_tensors > 0)
        lksi_log(&ctx->base, LKS_LOG_WARNING,
                 "lks_context_destroy: %lld tensors are still kept by the program and now invalid",
                 (long long)ctx->live_tensors);
    undo(ctx);
    return state == 2 ? LKS_ERR_STATE : LKS_OK;
}

/* --- description --- */

int lks_rank(const lks_context *ctx) { return ctx->base.rank; }
int lks_size(const lks_context *ctx) { return ctx->base.size; }
int lks_local_rank(const lks_context *ctx) { return ctx->local_rank; }
int lks_local_size(const lks_context *ctx) { return ctx->local_size; }
const char *lks_device_name(const lks_context *ctx) { return ctx->dev->be->name; }
const char *lks_device_description(const lks_context *ctx) { return ctx->dev->be->describe(ctx->dev->self); }
const char *lks_transport(const lks_context *ctx) { return ctx->comm->transport_text; }
int lks_threads(const lks_context *ctx) { return ctx->threads; }

lks_status lks_synchronize(lks_context *ctx) { return lksi_device_synchronize(ctx->dev); }

/* --- streams of the program, graphs --- */

static lks_status told(lks_context *ctx, lks_status code, const char *where)
{
    if (code == LKS_OK) return code;
    const char *text = ctx->dev->be->failure(ctx->dev->self);
    return lksi_fail(&ctx->base, code, where, "%s", text && *text ? text : lks_status_text(code));
}

lks_status lks_after_stream(lks_context *ctx, void *stream)
{
    const lksi_backend *be = ctx->dev->be;
    if (be->after) return told(ctx, be->after(ctx->dev->self, stream), "lks_after_stream");
    if (!stream) return LKS_OK;
    return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_after_stream", "device %s has no streams: pass NULL", be->name);
}

void *lks_event(lks_context *ctx)
{
    const lksi_backend *be = ctx->dev->be;
    void *event = NULL;
    if (!be->event_for) (void)lksi_device_synchronize(ctx->dev);
    else if (told(ctx, be->event_for(ctx->dev->self, &event), "lks_event") != LKS_OK) return NULL;
    return event;
}

lks_status lks_graph_begin(lks_context *ctx)
{
    const lksi_backend *be = ctx->dev->be;
    if (ctx->dev->trace)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_graph_begin", "this is inside the step of lks_graph_step");
    if (!be->graph_begin)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, "lks_graph_begin", "device %s has no graphs", be->name);
    return told(ctx, be->graph_begin(ctx->dev->self), "lks_graph_begin");
}

lks_status lks_graph_end(lks_context *ctx)
{
    const lksi_backend *be = ctx->dev->be;
    if (ctx->dev->trace)
        return lksi_fail(&ctx->base, LKS_ERR_STATE, "lks_graph_end", "this is inside the step of lks_graph_step");
    if (!be->graph_end)
        return lksi_fail(&ctx->base, LKS_ERR_UNSUPPORTED, "lks_graph_end", "device %s has no graphs", be->name);
    return told(ctx, be->graph_end(ctx->dev->self), "lks_graph_end");
}

/* --- random state --- */

lks_status lks_random_set(lks_context *ctx, int64_t seed, int64_t attempt)
{
    if (attempt < 0)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_random_set", "attempt is %lld; it cannot be negative",
                         (long long)attempt);
    ctx->seed = seed;
    ctx->attempt = attempt;
    ctx->call = 0;
    return write_rng(ctx);
}

int64_t lks_random_seed(const lks_context *ctx) { return ctx->seed; }
int64_t lks_random_attempt(const lks_context *ctx) { return ctx->attempt; }

lks_status lks_random_rows(lks_context *ctx, int64_t first, int64_t rows)
{
    if (first < 0 || rows < 0)
        return lksi_fail(&ctx->base, LKS_ERR_ARGUMENT, "lks_random_rows",
                         "first %lld, rows %lld: neither can be negative", (long long)first, (long long)rows);
    ctx->row_first = first;
    ctx->row_count = rows;
    ctx->call = 0;
    return LKS_OK;
}

void lks_random_rows_now(const lks_context *ctx, int64_t *first, int64_t *rows)
{
    if (first) *first = ctx->row_first;
    if (rows) *rows = ctx->row_count;
}
