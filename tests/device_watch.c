/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device_watch.c - preloaded into a rank by nccl.test: on which devices does it make a context? The runtime makes one
 * in cudaSetDevice (since CUDA 12) and in the calls below, on the device that is current in the calling thread. A bit a
 * device is written to the file LKS_DEVICE_WATCH.RANK at the end. Where the runtime cannot say whether a device has a
 * context (the simulator), this answers in the driver's place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dim3 {
    unsigned x, y, z;
} dim3;

static unsigned made; /* a bit a device; also set by threads of the library */

static void *real(const char *name)
{
    void *so = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD), *f = so ? dlsym(so, name) : NULL;
    if (!f) {
        fprintf(stderr, "device_watch: no %s\n", name);
        abort();
    }
    return f;
}

static void makes(int device)
{
    if (device >= 0 && device < 32) __atomic_fetch_or(&made, 1u << device, __ATOMIC_RELAXED);
}

static void uses_current(void)
{
    static int (*get)(int *);
    int device = -1;
    if (!get) *(void **)&get = real("cudaGetDevice");
    if (get(&device) == 0) makes(device);
}

/* A call with the current device. */
#define WATCH(name, parameters, arguments)                                                                     \
    int name parameters;                                                                                       \
    int name parameters                                                                                        \
    {                                                                                                          \
        static int(*next) parameters;                                                                          \
        if (!next) *(void **)&next = real(#name);                                                              \
        uses_current();                                                                                        \
        return next arguments;                                                                                 \
    }
WATCH(cudaMalloc, (void **p, size_t n), (p, n))
WATCH(cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))
WATCH(cudaMemcpyAsync, (void *to, const void *from, size_t n, int kind, void *s), (to, from, n, kind, s))
WATCH(cudaMemset, (void *p, int v, size_t n), (p, v, n))
WATCH(cudaMemsetAsync, (void *p, int v, size_t n, void *s), (p, v, n, s))
WATCH(cudaStreamCreateWithPriority, (void **s, unsigned flags, int priority), (s, flags, priority))
WATCH(cudaStreamSynchronize, (void *s), (s))
WATCH(cudaStreamWaitEvent, (void *s, void *e, unsigned flags), (s, e, flags))
WATCH(cudaEventCreateWithFlags, (void **e, unsigned flags), (e, flags))
WATCH(cudaEventRecord, (void *e, void *s), (e, s))
WATCH(cudaEventQuery, (void *e), (e))
WATCH(cudaEventSynchronize, (void *e), (e))
WATCH(cudaDeviceSynchronize, (void), ())
WATCH(cudaLaunchKernel, (const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *s),
      (f, grid, block, args, shared, s))

int cudaSetDevice(int device);
int cudaSetDevice(int device)
{
    static int (*next)(int);
    if (!next) *(void **)&next = real("cudaSetDevice");
    makes(device);
    return next(device);
}

static int context_state(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = (int)(__atomic_load_n(&made, __ATOMIC_RELAXED) >> device & 1);
    return 0;
}

int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                     int *found);
int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                     int *found)
{
    static int (*next)(const char *, void **, unsigned, unsigned long long, int *);
    if (!next) *(void **)&next = real("cudaGetDriverEntryPointByVersion");
    int code = next(name, f, version, flags, found);
    if (code == 0 && *found != 0 && !strcmp(name, "cuDevicePrimaryCtxGetState")) {
        int (*answer)(int, unsigned *, int *) = context_state;
        memcpy(f, &answer, sizeof answer);
        *found = 0;
    }
    return code;
}

__attribute__((destructor)) static void tell(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    const char *file = getenv("LKS_DEVICE_WATCH"), *rank = NULL;
    for (int i = 0; i < 3 && !rank; i++) rank = getenv(names[i]);
    if (!file || !rank || !made) return;
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", file, rank);
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f, "%u\n", made);
    fclose(f);
}
