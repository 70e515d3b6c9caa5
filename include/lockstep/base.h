/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/base.h - what every other header needs: status codes, dtypes, the opaque types.
 *
 * Rules of the whole API
 *   - Actions return an int status: LKS_OK (0) or a negative LKS_ERR_... code. Ops return a tensor, or NULL on failure,
 *     and pass NULL inputs through, so calls nest and one check at the end is enough. The context keeps the first
 *     error with its text until lks_error_clear.
 *   - The library never exits, aborts or prints unasked; a log sink is set by the program (lks_config_set_log).
 *   - Lifetime: (1) a tensor belongs to the innermost open scope (lks_scope_begin/_end) and dies with it;
 *     (2) lks_keep takes a share, lks_release drops it, NULL is fine; (3) a failed create leaves nothing to undo;
 *     (4) wrapped memory is never freed.
 *   - Every function is marked `Local` (may be called by any rank alone) or `Collective` (every rank of the context's
 *     communicator must call it, in the same order).
 *   - One context is used by one thread at a time. Several contexts may live in one process.
 *   - No varargs, no unsigned, no struct by value: every function can be called from Fortran.
 */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#define LKS_API __attribute__((visibility("default")))
#else
#define LKS_API
#endif

#define LKS_VERSION_MAJOR 0
#define LKS_VERSION_MINOR 1
#define LKS_VERSION_PATCH 0

/* Largest number of dimensions of a tensor. */
#define LKS_MAX_DIMS 8

/* Status codes: name, value, sentence. The one list; names and texts are expansions of it. */
#define LKS_STATUS_LIST(X)                                                                                     \
    X(OK, 0, "success")                                                                                        \
    X(ERR_ARGUMENT, -1, "an argument has a value that is not allowed")                                         \
    X(ERR_SHAPE, -2, "shapes do not fit")                                                                      \
    X(ERR_DTYPE, -3, "dtypes do not fit")                                                                      \
    X(ERR_MEMORY, -4, "out of memory")                                                                         \
    X(ERR_STATE, -5, "calls in the wrong order")                                                               \
    X(ERR_UNSUPPORTED, -6, "not supported")                                                                    \
    X(ERR_DEVICE, -7, "the device is missing or failed")                                                       \
    X(ERR_IO, -8, "a file could not be read or written")                                                       \
    X(ERR_NO_SPACE, -9, "no space left where the file is written")                                             \
    X(ERR_CORRUPT, -10, "a file is damaged, truncated or not ours")                                            \
    X(ERR_MISMATCH, -11, "what was saved does not fit what the program built")                                 \
    X(ERR_MPI, -12, "an MPI call failed")                                                                      \
    X(ERR_TIMEOUT, -13, "the deadline passed while waiting for other ranks")                                   \
    X(ERR_PEER_FAILED, -14, "another rank failed in this collective call")                                     \
    X(ERR_DRIFT, -15, "ranks hold different scaler or step state")                                             \
    X(ERR_FLOOR, -16, "the loss scale stayed at its floor for too many skipped steps")                         \
    X(ERR_MODIFIED, -17, "a tensor saved for backward was changed in place, or its graph was freed")           \
    X(ERR_NO_GRADIENTS, -18, "no parameter of this optimizer has a gradient on this rank")                     \
    X(ERR_NOT_FOUND, -19, "no such name or file")                                                              \
    X(ERR_INTERRUPTED, -20, "stopped on request")                                                              \
    X(ERR_INTERNAL, -21, "a fault in Lockstep itself")                                                         \
    X(ERR_NAN, -22, "an op made a NaN (anomaly mode)")

enum lks_status_code {
#define X(name, value, text) LKS_##name = value,
    LKS_STATUS_LIST(X)
#undef X
};
typedef int lks_status;

/* Name ("LKS_ERR_SHAPE") and sentence of a code; never NULL. Local. */
LKS_API const char *lks_status_name(lks_status code);
LKS_API const char *lks_status_text(lks_status code);

/* Element types: NAME, short name, bytes. F16 is IEEE binary16, BF16 the upper half of binary32; BOOL is one byte, 0 or
 * 1. Conversions round to nearest, ties to even; NaN stays NaN, denormals are kept. Float to integer truncates toward
 * zero and saturates (NaN gives 0). Anything to BOOL is `!= 0`. C64 and C128 are pairs (real, imaginary) of F32 and
 * F64, as in C and Fortran; a conversion from complex to real keeps the real part. */
#define LKS_DTYPE_LIST(X)                                                                                      \
    X(F32, "float32", 4)                                                                                       \
    X(F64, "float64", 8)                                                                                       \
    X(F16, "float16", 2)                                                                                       \
    X(BF16, "bfloat16", 2)                                                                                     \
    X(I64, "int64", 8)                                                                                         \
    X(I32, "int32", 4)                                                                                         \
    X(U8, "uint8", 1)                                                                                          \
    X(BOOL, "bool", 1)                                                                                         \
    X(C64, "complex64", 8)                                                                                     \
    X(C128, "complex128", 16)

enum lks_dtype_code {
    LKS_DTYPE_NONE = -1, /* "not given": the default of the call */
#define X(NAME, name, bytes) LKS_##NAME,
    LKS_DTYPE_LIST(X)
#undef X
    LKS_DTYPE_COUNT
};
typedef int lks_dtype;

/* "float32" for LKS_F32, ...; "none" for anything else. Local. */
LKS_API const char *lks_dtype_name(lks_dtype dtype);
/* Bytes of one element; 0 for an invalid dtype. Local. */
LKS_API int lks_dtype_size(lks_dtype dtype);
/* 1 for F16, BF16, F32, F64. Local. */
LKS_API int lks_dtype_is_float(lks_dtype dtype);
/* 1 for C64, C128. Local. */
LKS_API int lks_dtype_is_complex(lks_dtype dtype);
/* dtype called `name` ("float32", "f32", "bf16", ...), LKS_DTYPE_NONE if there is none. Local. */
LKS_API lks_dtype lks_dtype_from_name(const char *name);
/* Result dtype of an op on tensors of a and b, both with dimensions: PyTorch's ordinary promotion. Local. */
LKS_API lks_dtype lks_promote(lks_dtype a, lks_dtype b);

typedef struct lks_config lks_config;       /* options of a context           context.h  */
typedef struct lks_context lks_context;     /* communicator + device + state  context.h  */
typedef struct lks_tensor lks_tensor;       /* n-dimensional array            tensor.h   */
typedef struct lks_params lks_params;       /* named parameters and buffers   nn.h       */
typedef struct lks_module lks_module;       /* a layer or model               nn.h       */
typedef struct lks_scaler lks_scaler;       /* loss scaler                    scaler.h   */
typedef struct lks_optim lks_optim;         /* optimizer                      optim.h    */
typedef struct lks_dp lks_dp;               /* data parallel                  dp.h       */
typedef struct lks_loader lks_loader;       /* batches of data                data.h     */
typedef struct lks_output lks_output;       /* an array being written        data.h     */
typedef struct lks_checkpoint lks_checkpoint; /* what a checkpoint holds      ckpt.h     */

/* Stands for an absent optional tensor (NULL always means a failed call). */
LKS_API extern lks_tensor *const lks_none;
#define LKS_NONE lks_none

/* For programs: run `call`; if it fails, set `status` (an lks_status variable of the caller) and goto `label`. Safe in
 * if/else without braces. */
#define LKS_TRY(status, label, call)                                                                           \
    do {                                                                                                       \
        if (((status) = (call)) != LKS_OK) goto label;                                                         \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
