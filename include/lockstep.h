/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep.h - the whole public API. Read the headers in this order: each is the manual of its part.
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
