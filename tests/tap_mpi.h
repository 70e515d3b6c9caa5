/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tap_mpi.h - tap.h for programs of several ranks: a result is good if it is good on every rank, rank 0 prints it, a
 * rank on which it failed says so. After tap_mpi every ok, is_... and skip is collective: all ranks call the same ones.
 *
 *   MPI_Init(&argc, &argv);
 *   tap_mpi(MPI_COMM_WORLD);
 *   ok(...);
 *   int status = done();
 *   MPI_Finalize();
 *   return status;
 */
#ifndef LKS_TAP_MPI_H
#define LKS_TAP_MPI_H

#include "tap.h"
#include <mpi.h>

__attribute__((weak)) MPI_Comm tap_comm_;

__attribute__((unused)) static int tap_mpi_agree_(int mine)
{
    int all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, tap_comm_);
    return all;
}

__attribute__((unused)) static void tap_mpi_leave_(void)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Finalize();
}

/* MPI must be initialised. comm is duplicated (and left to MPI_Finalize), so results never meet the traffic under test.
 */
__attribute__((unused)) static void tap_mpi(MPI_Comm comm)
{
    MPI_Comm_dup(comm, &tap_comm_);
    MPI_Comm_rank(tap_comm_, &tap_.rank);
    tap_.agree = tap_mpi_agree_;
    tap_.leave = tap_mpi_leave_;
}

#endif
