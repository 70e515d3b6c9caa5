/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep.h - the whole public API. Read the headers in this order: each is the manual of its part. For all of them:
 *
 *   - Errors. A value outside what its text allows is LKS_ERR_ARGUMENT, a shape that does not fit LKS_ERR_SHAPE, a
 *     dtype LKS_ERR_DTYPE, a call in the wrong order LKS_ERR_STATE; whatever makes or computes something may end with
 *     LKS_ERR_MEMORY or LKS_ERR_DEVICE, whatever is collective with LKS_ERR_MPI, _TIMEOUT or _PEER_FAILED (comm.h).
 *     Texts name what else there is, and what surprises.
 *   - Ownership. What a ..._create or lks_loader_... call gives belongs to the caller, who ends it with ..._destroy:
 *     that sets the pointer to NULL, and NULL is fine. Where a call fails the pointer is NULL. What was made of another
 *     thing (an optimizer of a parameter set, all of a context) is ended before it. Texts and arrays returned as const
 *     belong to the object that was asked. Tensors: the rules of lifetime in base.h.
 *   - The program's traps, rounding and flushing to zero have no part in any result, and are as before after each call.
 */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <lockstep/base.h>
#include <lockstep/context.h>
#include <lockstep/tensor.h>
#include <lockstep/ops.h>
#include <lockstep/autograd.h>
#include <lockstep/autocast.h>
#include <lockstep/comm.h>
#include <lockstep/fft.h>
#include <lockstep/linalg.h>
#include <lockstep/nn.h>
#include <lockstep/scaler.h>
#include <lockstep/optim.h>
#include <lockstep/dp.h>
#include <lockstep/data.h>
#include <lockstep/ckpt.h>

#endif
