/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fpenv.c - the floating-point environment of a guest: computes under round-to-nearest, no traps, denormals kept, and
 * gives the host back exactly what it had, sticky flags included. The usual case costs reads of one register.
 */
#include "base/base.h"

#if defined __x86_64__

#define CSR_DEFAULT 0x1F80u /* all exceptions masked, nearest, no FTZ, no DAZ */
#define CSR_FLAGS 0x003Fu   /* sticky: they say what happened, not how to compute */

void lksi_fpenv_enter(lksi_fpenv *saved)
{
    saved->csr = __builtin_ia32_stmxcsr();
    saved->flags = 0;
    saved->changed = (saved->csr & ~CSR_FLAGS) != CSR_DEFAULT;
    if (saved->changed) __builtin_ia32_ldmxcsr(CSR_DEFAULT);
}

void lksi_fpenv_leave(const lksi_fpenv *saved)
{
    if (__builtin_ia32_stmxcsr() != saved->csr) __builtin_ia32_ldmxcsr(saved->csr);
}

#elif defined __aarch64__

void lksi_fpenv_enter(lksi_fpenv *saved)
{
    saved->csr = __builtin_aarch64_get_fpcr();
    saved->flags = __builtin_aarch64_get_fpsr();
    saved->changed = saved->csr != 0;
    if (saved->changed) __builtin_aarch64_set_fpcr(0);
}

void lksi_fpenv_leave(const lksi_fpenv *saved)
{
    if (__builtin_aarch64_get_fpsr() != saved->flags) __builtin_aarch64_set_fpsr(saved->flags);
    if (saved->changed) __builtin_aarch64_set_fpcr(saved->csr);
}

#else

void lksi_fpenv_enter(lksi_fpenv *saved)
{
    saved->csr = saved->flags = 0;
    saved->changed = 1;
    fegetenv(&saved->env);
    fesetenv(FE_DFL_ENV);
}

void lksi_fpenv_leave(const lksi_fpenv *saved)
{
    fesetenv(&saved->env);
}

#endif
