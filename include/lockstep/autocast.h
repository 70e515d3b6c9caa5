/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/autocast.h - regions in which ops choose their precision by a policy table. Put forward and loss inside;
 * backward uses the recorded choice wherever it is called. State is per context; regions nest in any mix.
 *
 * Who is cast: floating inputs except float64. Never: integers, bool, in-place forms, calls with an explicit dtype.
 * lower = the region's dtype; fp32 = float32; promote = widest of the eligible inputs (all alike keep it, else
 * float32; a float64 among them: nothing is cast); none = input dtype; error = refused, with advice.
 */
#ifndef LOCKSTEP_AUTOCAST_H
#define LOCKSTEP_AUTOCAST_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lks_policy { LKS_POLICY_NONE, LKS_POLICY_LOWER, LKS_POLICY_FP32, LKS_POLICY_PROMOTE, LKS_POLICY_ERROR };
enum lks_policy_table { LKS_TABLE_CPU, LKS_TABLE_CUDA };

/* Opens a region. dtype: LKS_BF16, LKS_F16 or LKS_DTYPE_NONE (bfloat16). enabled 0 opens a region without casts inside
 * an enabled one. cache: keep casts of leaves until the outermost region ends. Local. */
LKS_API lks_status lks_autocast_begin(lks_context *ctx, lks_dtype dtype, int enabled, int cache);
/* Closes the innermost region and restores the state before it, also after a failed op. Local. */
LKS_API lks_status lks_autocast_end(lks_context *ctx);
LKS_API int lks_autocast_enabled(const lks_context *ctx);
LKS_API lks_dtype lks_autocast_dtype(const lks_context *ctx);
LKS_API int lks_autocast_depth(const lks_context *ctx);
/* Which table is in force: by default the one of the context's device; any may be chosen on any backend. Local. */
LKS_API lks_status lks_autocast_set_table(lks_context *ctx, int table);
LKS_API int lks_autocast_table(const lks_context *ctx);
/* Policy of op `name` in a table: an lks_policy value, or LKS_ERR_NOT_FOUND. Local. */
LKS_API int lks_autocast_policy(const char *name, int table);
/* Casts made and casts answered from cache or twin since the context was made. Local. */
LKS_API int64_t lks_autocast_casts(const lks_context *ctx);
LKS_API int64_t lks_autocast_hits(const lks_context *ctx);

#ifdef __cplusplus
}
#endif
#endif
