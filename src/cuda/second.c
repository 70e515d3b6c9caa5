/* SPDX-License-Identifier: BSD-3-Clause
 *
 * second.c - rows of the second module (cumath.h): loads it when the first of them is launched, and says which part is
 * missing where that fails. Everything here is the backend's side.
 */
#include "cuda/cumath.h"

static const lksi_cuda_services services = {
    .abi = LKSI_CUMATH_ABI,
    .size = (int)sizeof(lksi_cuda_services),
    .kernels = lksi_cuda_kernels,
    .launched = lksi_cuda_launched,
    .scratch = lksi_cuda_scratch,
    .copy_view = lksi_cuda_copy_view,
    .product = lksi_cuda_product,
    .sms = lksi_cuda_sms,
    .sm = lksi_cuda_sm,
    .keeps = lksi_cuda_keeps,
    .state = lksi_cuda_state,
    .stream_index = lksi_cuda_stream_index,
    .alloc = lksi_cuda_alloc,
    .free = lksi_cuda_free,
    .fault = lksi_cuda_fault,
    .eager = lksi_cuda_eager,
};

static lks_status row(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const char *library)
{
    void **kept = lksi_cuda_state(cuda, LKSI_CUDA_SECOND, NULL);
    const lksi_cumath *m = *kept;
    if (__builtin_expect(!m, 0)) {
        char why[LKSI_WHY];
        m = lksi_cuda_module(cuda, "cumath", why);
        if (!m) return lksi_why(a, LKS_ERR_UNSUPPORTED, "on a GPU it needs %s: %.380s", library, why);
        if (m->abi != LKSI_CUMATH_ABI || m->size != (int)sizeof *m)
            return lksi_why(a, LKS_ERR_UNSUPPORTED,
                            "liblockstep_cumath.so is of another build of Lockstep (table %d of %d bytes, here %d "
                            "of %d)", m->abi, m->size, LKSI_CUMATH_ABI, (int)sizeof *m);
        m->lend(&services);
        *kept = (void *)m;
    }
    if (!m->row[a->op])
        return lksi_why(a, LKS_ERR_UNSUPPORTED,
                        "on a GPU it needs %s, and liblockstep_cumath.so was built without it", library);
    return m->row[a->op](cuda, stream, a);
}

#define BY(name, library)                                                                                      \
    lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a);                     \
    lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)                      \
    {                                                                                                          \
        return row(cuda, stream, a, library);                                                                  \
    }
#define FFT(name) BY(name, "cuFFT")
#define SOLVER(name) BY(name, "cuSOLVER")
#include "cuda/cumath.def"
