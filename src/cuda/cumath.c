/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cumath.c - the module liblockstep_cumath.so: its table, and the functions of cuda.h, which the backend lends. Rows by
 * cuFFT are in fft.c, those by cuSOLVER in solver.c.
 */
#include "cuda/cumath.h"
#include <stdio.h>
#ifdef HAVE_CUFFT
#include <cufft.h>
#endif
#ifdef HAVE_CUSOLVER
#include <cusolverDn.h>
#endif

static const lksi_cuda_services *lent; /* set once, before any row */

/* --- cuda.h --- */

lks_status lksi_cuda_launched(const lksi_args *a) { return lent->launched(a); }

lks_status lksi_cuda_scratch(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int64_t bytes,
                             void **p)
{
    return lent->scratch(cuda, stream, a, slot, bytes, p);
}

lks_status lksi_cuda_copy_view(cudaStream_t stream, const lksi_args *a, const lksi_view *dst, const lksi_view *src)
{
    return lent->copy_view(stream, a, dst, src);
}

lks_status lksi_cuda_product(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *x,
                             const lksi_view *y, const lksi_view *z)
{
    return lent->product(cuda, stream, a, x, y, z);
}

int lksi_cuda_sms(const lksi_cuda *cuda) { return lent->sms(cuda); }
int lksi_cuda_sm(const lksi_cuda *cuda) { return lent->sm(cuda); }
int lksi_cuda_keeps(const lksi_cuda *cuda) { return lent->keeps(cuda); }

void **lksi_cuda_state(lksi_cuda *cuda, int slot, void (*destroy)(lksi_cuda *cuda, void *state))
{
    return lent->state(cuda, slot, destroy);
}

int lksi_cuda_stream_index(const lksi_cuda *cuda, cudaStream_t stream) { return lent->stream_index(cuda, stream); }
void *lksi_cuda_alloc(lksi_cuda *cuda, int64_t bytes) { return lent->alloc(cuda, bytes); }
void lksi_cuda_free(lksi_cuda *cuda, void *p) { lent->free(cuda, p); }
lksi_fault lksi_cuda_fault(const lksi_cuda *cuda) { return lent->fault(cuda); }
lks_status lksi_cuda_eager(lksi_cuda *cuda, const lksi_args *a) { return lent->eager(cuda, a); }

lks_status lksi_cumath_backend(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int op)
{
    if (!lent->kernels[op]) return lksi_why(a, LKS_ERR_UNSUPPORTED, "the CUDA backend lacks a part of it");
    return lent->kernels[op](cuda, stream, a);
}

/* --- the table --- */

#ifdef HAVE_CUFFT
#define FFT(name) CUMATH(name);
#endif
#ifdef HAVE_CUSOLVER
#define SOLVER(name) CUMATH(name);
#endif
#include "cuda/cumath.def"

static void lend(const lksi_cuda_services *services) { lent = services; }

static const lksi_cumath table = {
    .abi = LKSI_CUMATH_ABI,
    .size = (int)sizeof(lksi_cumath),
    .lend = lend,
    .row = {
#ifdef HAVE_CUFFT
#define FFT(name) [LKSI_OP_##name] = lksi_cumath_##name,
#endif
#ifdef HAVE_CUSOLVER
#define SOLVER(name) [LKSI_OP_##name] = lksi_cumath_##name,
#endif
#include "cuda/cumath.def"
    },
};

/* What it is made of, for people; the number of libraries. */
static int probe(char *text, int bytes)
{
    int n = 0, at = 0, version;
    text[0] = 0;
#ifdef HAVE_CUFFT
    if (cufftGetVersion(&version) == CUFFT_SUCCESS) {
        at += snprintf(text, (size_t)bytes, "cuFFT %d.%d", version / 1000, version / 100 % 10);
        n++;
    }
#endif
#ifdef HAVE_CUSOLVER
    if (at < bytes && cusolverGetVersion(&version) == CUSOLVER_STATUS_SUCCESS) {
        at += snprintf(text + at, (size_t)(bytes - at), "%scuSOLVER %d.%d", n ? ", " : "", version / 1000,
                       version / 100 % 10);
        n++;
    }
#endif
    (void)version;
    return n;
}

static void attach(const lksi_host *host) { (void)host; }

/* The one name that the module shows. */
extern const lksi_plugin lksi_plugin_cumath;
__attribute__((visibility("default"))) const lksi_plugin lksi_plugin_cumath = {
    LKSI_PLUGIN_FACTS,
    .attach = attach,
    .probe = probe,
    .service = &table,
};
