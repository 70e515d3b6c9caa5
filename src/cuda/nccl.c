/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nccl.c - NCCL behind the table lksi_collectives. The library is loaded when ranks with GPUs meet, so that a machine
 * without it still has the rest of the module. Communicators are non-blocking: no call waits for another rank. When to
 * give up is decided above (comm/nccl.c).
 */
#include "cuda/inside.h"
#include <lockstep/comm.h>
#include <stdio.h>
#include <string.h>

#ifdef HAVE_NCCL
#include <dlfcn.h>
#include <nccl.h>
#include <time.h>

/* The calls that are used, by name. */
#define CALLS(X)                                                                                               \
    X(ncclGetVersion)                                                                                          \
    X(ncclGetUniqueId)                                                                                         \
    X(ncclCommInitRankConfig)                                                                                  \
    X(ncclCommGetAsyncError)                                                                                   \
    X(ncclCommFinalize)                                                                                        \
    X(ncclCommDestroy)                                                                                         \
    X(ncclCommAbort)                                                                                           \
    X(ncclAllReduce)                                                                                           \
    X(ncclBroadcast)                                                                                           \
    X(ncclAllGather)                                                                                           \
    X(ncclGetErrorString)                                                                                      \
    X(ncclGetLastError)

typedef struct library {
#define X(name) __typeof__(&name) name;
    CALLS(X)
#undef X
} library;

typedef struct group {
    lksi_cuda *cuda;
    library lib;
    ncclComm_t comm;
} group;

_Static_assert(sizeof(ncclUniqueId) <= LKSI_GROUP_ID, "the id of NCCL has grown");

/* Loaded for good; dlopen counts, and the table is small: each group has its own. */
static lks_status load(library *lib, char *why)
{
    void *so = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so) {
        const char *text = dlerror();
        snprintf(why, LKSI_WHY, "%s", text ? text : "libnccl.so.2 cannot be loaded");
        return LKS_ERR_DEVICE;
    }
#define X(name)                                                                                                \
    *(void **)&lib->name = dlsym(so, #name);                                                                   \
    if (!lib->name) {                                                                                          \
        snprintf(why, LKSI_WHY, "libnccl.so.2 is too old: it has no %s", #name);                               \
        return LKS_ERR_DEVICE;                                                                                 \
    }
    CALLS(X)
#undef X
    return LKS_OK;
}

static lks_status probe(void *device, char *text)
{
    library lib;
    int v = 0;
    (void)device;
    TRY(load(&lib, text));
    if (lib.ncclGetVersion(&v) != ncclSuccess || v < 21400) {
        snprintf(text, LKSI_WHY, "NCCL %d.%d is too old; 2.14 is needed", v / 10000, v / 100 % 100);
        return LKS_ERR_DEVICE;
    }
    snprintf(text, LKSI_WHY, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return LKS_OK;
}

static lks_status unique_id(void *device, char *id)
{
    library lib;
    char why[LKSI_WHY];
    ncclUniqueId u;
    if (load(&lib, why) != LKS_OK) return lksi_cuda_failed(device, LKS_ERR_DEVICE, "%s", why);
    int was = lksi_cuda_enter(device);
    ncclResult_t r = lib.ncclGetUniqueId(&u);
    lksi_cuda_leave(device, was);
    if (r != ncclSuccess)
        return lksi_cuda_failed(device, LKS_ERR_DEVICE, "ncclGetUniqueId: %s", lib.ncclGetErrorString(r));
    memcpy(id, &u, sizeof u);
    return LKS_OK;
}

/* In progress counts as success: state() tells the rest. */
static lks_status check(group *g, ncclResult_t r, const char *what)
{
    if (r == ncclSuccess || r == ncclInProgress) return LKS_OK;
    const char *more = g->lib.ncclGetLastError(g->comm);
    return lksi_cuda_failed(g->cuda, LKS_ERR_DEVICE, "%s: %s%s%.300s", what, g->lib.ncclGetErrorString(r),
                            more && *more ? ": " : "", more ? more : "");
}

static lks_status group_open(void *device, const char *id, int size, int rank, void **out)
{
    char why[LKSI_WHY];
    *out = NULL;
    group *g = lksi_cuda_alloc(device, sizeof *g);
    if (!g) return lksi_cuda_failed(device, LKS_ERR_MEMORY, "no host memory");
    g->cuda = device;
    if (load(&g->lib, why) != LKS_OK) {
        lksi_cuda_free(device, g);
        return lksi_cuda_failed(device, LKS_ERR_DEVICE, "%s", why);
    }
    ncclUniqueId u;
    memcpy(&u, id, sizeof u);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int was = lksi_cuda_enter(device);
    ncclResult_t r = g->lib.ncclCommInitRankConfig(&g->comm, size, u, rank, &config);
    lksi_cuda_leave(device, was);
    lks_status st = check(g, r, "ncclCommInitRankConfig");
    if (st != LKS_OK) {
        lksi_cuda_free(device, g);
        return st;
    }
    *out = g;
    return LKS_OK;
}

static int state(void *self)
{
    group *g = self;
    ncclResult_t now = ncclSuccess;
    int was = lksi_cuda_enter(g->cuda);
    ncclResult_t r = g->lib.ncclCommGetAsyncError(g->comm, &now);
    lksi_cuda_leave(g->cuda, was);
    if (r == ncclSuccess && now == ncclInProgress) return 0;
    lks_status st = check(g, r != ncclSuccess ? r : now, "an operation in the stream");
    return st == LKS_OK ? 1 : st;
}

static ncclDataType_t type_of(lks_dtype dtype)
{
    switch (dtype) {
    case LKS_F32: return ncclFloat32;
    case LKS_F64: return ncclFloat64;
    case LKS_F16: return ncclFloat16;
    case LKS_BF16: return ncclBfloat16;
    case LKS_I64: return ncclInt64;
    case LKS_I32: return ncclInt32;
    default: return ncclUint8; /* uint8, bool */
    }
}

static lks_status all_reduce(void *self, void *buf, int64_t count, lks_dtype dtype, int op)
{
    group *g = self;
    if (dtype == LKS_C64 || dtype == LKS_C128) { /* sums: parts by themselves */
        dtype = dtype == LKS_C64 ? LKS_F32 : LKS_F64;
        count *= 2;
    }
    ncclRedOp_t how = op == LKS_MIN ? ncclMin : op == LKS_MAX ? ncclMax : op == LKS_PRODUCT ? ncclProd : ncclSum;
    int was = lksi_cuda_enter(g->cuda);
    ncclResult_t r = g->lib.ncclAllReduce(buf, buf, (size_t)count, type_of(dtype), how, g->comm,
                                          lksi_cuda_stream(g->cuda, LKSI_STREAM_COMM));
    lksi_cuda_leave(g->cuda, was);
    return check(g, r, "ncclAllReduce");
}

static lks_status broadcast(void *self, void *buf, int64_t bytes, int root)
{
    group *g = self;
    int was = lksi_cuda_enter(g->cuda);
    ncclResult_t r = g->lib.ncclBroadcast(buf, buf, (size_t)bytes, ncclUint8, root, g->comm,
                                          lksi_cuda_stream(g->cuda, LKSI_STREAM_COMM));
    lksi_cuda_leave(g->cuda, was);
    return check(g, r, "ncclBroadcast");
}

static lks_status all_gather(void *self, const void *in, void *out, int64_t bytes)
{
    group *g = self;
    int was = lksi_cuda_enter(g->cuda);
    ncclResult_t r = g->lib.ncclAllGather(in, out, (size_t)bytes, ncclUint8, g->comm,
                                          lksi_cuda_stream(g->cuda, LKSI_STREAM_COMM));
    lksi_cuda_leave(g->cuda, was);
    return check(g, r, "ncclAllGather");
}

static void abort_group(void *self)
{
    group *g = self;
    int was = lksi_cuda_enter(g->cuda);
    (void)g->lib.ncclCommAbort(g->comm);
    lksi_cuda_leave(g->cuda, was);
    lksi_cuda_free(g->cuda, g);
}

static void group_close(void *self, double seconds)
{
    group *g = self;
    if (!g) return;
    int was = lksi_cuda_enter(g->cuda);
    (void)cudaStreamSynchronize(lksi_cuda_stream(g->cuda, LKSI_STREAM_COMM));
    ncclResult_t r = g->lib.ncclCommFinalize(g->comm);
    struct timespec start, now, moment = {0, 200000};
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (r == ncclSuccess || r == ncclInProgress) {
        if (g->lib.ncclCommGetAsyncError(g->comm, &r) != ncclSuccess || r != ncclInProgress) break;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) > seconds) break;
        nanosleep(&moment, NULL);
    }
    (void)(r == ncclSuccess ? g->lib.ncclCommDestroy(g->comm) : g->lib.ncclCommAbort(g->comm));
    lksi_cuda_leave(g->cuda, was);
    lksi_cuda_free(g->cuda, g);
}

#else

static lks_status probe(void *device, char *text)
{
    (void)device;
    snprintf(text, LKSI_WHY, "this build has none: nccl.h was not found");
    return LKS_ERR_UNSUPPORTED;
}

#endif

static void identity(void *device, char *key)
{
    struct cudaDeviceProp p;
    memset(key, 0, LKSI_GROUP_KEY);
    if (cudaGetDeviceProperties(&p, lksi_cuda_device(device)) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    memcpy(key, p.uuid.bytes, sizeof p.uuid.bytes);
    snprintf(key + sizeof p.uuid.bytes, LKSI_GROUP_KEY - sizeof p.uuid.bytes, "%04x:%02x:%02x", (unsigned)p.pciDomainID,
             (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
}

static const char *failure(void *device)
{
    return lksi_cuda_failure(device);
}

const lksi_collectives lksi_cuda_collectives = {
    .size = sizeof(lksi_collectives),
    .probe = probe,
    .identity = identity,
    .failure = failure,
#ifdef HAVE_NCCL
    .unique_id = unique_id,
    .open = group_open,
    .state = state,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .abort = abort_group,
    .close = group_close,
#endif
};
