/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inside.h - what the files of this room share besides cuda.h. Kernels see cuda.h only.
 */
#ifndef LKSI_CUDA_INSIDE_H
#define LKSI_CUDA_INSIDE_H

#include "cuda/cuda.h"
#include "device/plugin.h"

#include <string.h>

/* dst[0, bytes) = src, which is read at once; bytes <= 4096. In kernels/copy.cu. */
cudaError_t lksi_cuda_write(cudaStream_t stream, void *dst, const void *src, int64_t bytes);

/* The open device: number, stream of LKSI_STREAM_..., base. */
int lksi_cuda_device(const lksi_cuda *cuda);
cudaStream_t lksi_cuda_stream(const lksi_cuda *cuda, int stream);
lksi_base *lksi_cuda_base(const lksi_cuda *cuda);
/* Makes the device current, returns what was; puts it back. */
int lksi_cuda_enter(const lksi_cuda *cuda);
void lksi_cuda_leave(const lksi_cuda *cuda, int was);
/* Graphs that may be launched again: what their kernels use of a library must stay. */
int lksi_cuda_keeps(const lksi_cuda *cuda);
/* Keeps the text of a failure; returns code. */
lks_status lksi_cuda_failed(lksi_cuda *cuda, lks_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Slots of lksi_cuda_state for what is no kernel's business. */
enum { LKSI_CUDA_SECOND = LKSI_CUDA_STATES, LKSI_CUDA_FFT, LKSI_CUDA_SOLVER, LKSI_CUDA_ALL_STATES };

/* Kernels by row; NULL for the rows of lacks.h. */
extern const lksi_cuda_kernel lksi_cuda_kernels[LKSI_OP_COUNT];
/* What the module liblockstep_NAME.so provides, loaded now if it was not; NULL, with a text of LKSI_WHY bytes. */
const void *lksi_cuda_module(const lksi_cuda *cuda, const char *name, char *why);

const char *lksi_cuda_failure(const lksi_cuda *cuda); /* that text */

/* For a row whose library waits for the device: what is being gathered for a graph is launched, and the gathering ends,
 * as at a wait of the program. Fails with a text. */
lks_status lksi_cuda_eager(lksi_cuda *cuda, const lksi_args *a);

/* What a library described, to be found again: entries begin with their key, `bytes` long, without padding. */
#define LKSI_REMEMBERED 512
typedef struct lksi_remembered {
    void *entry[LKSI_REMEMBERED];
    int count;
} lksi_remembered;

/* Where the entry with this key is, or NULL that it may take the place of. When half of the places are taken, as by
 * shapes that change all the time, all are dropped first. */
static inline void **lksi_remembered_at(lksi_cuda *cuda, lksi_remembered *r, const void *key, size_t bytes,
                                        void (*drop)(lksi_cuda *, void *))
{
    const unsigned char *p = (const unsigned char *)key;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    unsigned first = (unsigned)(h >> 32) % LKSI_REMEMBERED, at = first;
    for (; r->entry[at]; at = (at + 1) % LKSI_REMEMBERED)
        if (!memcmp(r->entry[at], key, bytes)) return &r->entry[at];
    if (r->count < LKSI_REMEMBERED / 2) return &r->entry[at];
    for (int i = 0; i < LKSI_REMEMBERED; i++) {
        drop(cuda, r->entry[i]);
        r->entry[i] = NULL;
    }
    r->count = 0;
    return &r->entry[first];
}

extern const lksi_collectives lksi_cuda_collectives; /* nccl.c */

#endif
