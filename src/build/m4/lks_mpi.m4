# SPDX-License-Identifier: BSD-3-Clause
#
# lks_mpi.m4 - which C compiler, which MPI.

# LKS_MPI_CHOOSE - before AC_PROG_CC and everything that pulls it in: the MPI compiler becomes CC unless CC is given.
AC_DEFUN([LKS_MPI_CHOOSE], [
AC_ARG_VAR([MPICC], [MPI C compiler, used as CC unless CC is set])
AC_ARG_VAR([MPIEXEC], [MPI launcher for the tests])
AC_ARG_VAR([MPI_CFLAGS], [compile flags of MPI, when CC is not an MPI compiler])
AC_ARG_VAR([MPI_LIBS], [link flags of MPI, when CC is not an MPI compiler])
AS_IF([test "x$CC" = x], [
  AC_CHECK_PROGS([MPICC], [mpicc mpicc.openmpi mpicc.mpich mpiicx mpiicc mpcc cc], [no])
  AS_IF([test "x$MPICC" = xno],
    [AC_MSG_ERROR([no MPI C compiler found. Debian: apt-get install libopenmpi-dev openmpi-bin; on a cluster: load an MPI module; else set CC or MPICC])])
  CC=$MPICC])
])

# LKS_MPI - checks that CC (with MPI_CFLAGS, MPI_LIBS; found through pkg-config for a plain CC) links MPI 3.1 or later,
# and which one it is: lks_mpi = openmpi, mpich or other; mpi_version; MPI_PC, the pkg-config module of the same MPI.
AC_DEFUN([LKS_MPI], [
m4_define([lks_mpi_program], [AC_LANG_PROGRAM([[#include <mpi.h>
#if MPI_VERSION * 100 + MPI_SUBVERSION < 301
#error MPI older than 3.1
#endif]], [[int n; return MPI_Init_thread(0, 0, MPI_THREAD_FUNNELED, &n);]])])
sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
have_mpi=no
AC_MSG_CHECKING([whether $CC links MPI])
CPPFLAGS="$sv_CPPFLAGS $MPI_CFLAGS" LIBS="$MPI_LIBS $sv_LIBS"
AC_LINK_IFELSE([lks_mpi_program], [have_mpi=yes])
AC_MSG_RESULT([$have_mpi])
for pc in ompi-c mpich mpi-c mpi; do
  AS_IF([test $have_mpi = no && $PKG_CONFIG --exists $pc], [
    AC_MSG_CHECKING([whether $CC links MPI with the flags of pkg-config $pc])
    MPI_CFLAGS=`$PKG_CONFIG --cflags $pc` MPI_LIBS=`$PKG_CONFIG --libs $pc`
    CPPFLAGS="$sv_CPPFLAGS $MPI_CFLAGS" LIBS="$MPI_LIBS $sv_LIBS"
    AC_LINK_IFELSE([lks_mpi_program], [have_mpi=yes])
    AC_MSG_RESULT([$have_mpi])])
done
AS_IF([test $have_mpi = no],
  [AC_MSG_ERROR([CC=$CC does not link MPI 3.1 or later; unset CC, or set MPI_CFLAGS and MPI_LIBS])])
lks_mpi=other
AC_COMPUTE_INT([lks_mpi_major], [OMPI_MAJOR_VERSION], [[#include <mpi.h>]], [lks_mpi_major=no])
AS_IF([test "x$lks_mpi_major" != xno], [
  lks_mpi=openmpi
  AC_COMPUTE_INT([lks_mpi_minor], [OMPI_MINOR_VERSION], [[#include <mpi.h>]])
  AC_COMPUTE_INT([lks_mpi_patch], [OMPI_RELEASE_VERSION], [[#include <mpi.h>]])
  mpi_version="Open MPI $lks_mpi_major.$lks_mpi_minor.$lks_mpi_patch"
], [
  AC_COMPUTE_INT([lks_mpi_major], [MPICH_NUMVERSION], [[#include <mpi.h>]], [lks_mpi_major=no])
  AS_IF([test "x$lks_mpi_major" != xno], [
    lks_mpi=mpich
    mpi_version="MPICH `expr $lks_mpi_major / 10000000`.`expr $lks_mpi_major / 100000 % 100`.`expr $lks_mpi_major / 1000 % 100`"
  ], [mpi_version="unknown MPI"])])
CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS
AC_SUBST([MPI_PC])
AS_CASE([$lks_mpi], [openmpi], [lks_try="ompi-c ompi"], [mpich], [lks_try="mpich"], [lks_try=])
for pc in $lks_try; do
  AS_IF([test "x$MPI_PC" = x && $PKG_CONFIG --exists $pc], [MPI_PC=$pc])
done
# The launcher beside the compiler, under the compiler's own suffix (mpicc.mpich, mpiexec.mpich), or by its usual names.
AS_CASE([$CC], [*.mpich], [lks_suffix=.mpich], [*.openmpi], [lks_suffix=.openmpi], [lks_suffix=.$lks_mpi])
AC_PATH_PROGS([MPIEXEC], [mpiexec$lks_suffix mpirun$lks_suffix mpirun mpiexec], [no])
AC_SUBST([LKS_MPI], [$lks_mpi])
AC_DEFINE_UNQUOTED([LKSI_BUILT_MPI], ["$mpi_version"], [MPI of this build])
LKS_REPORT([MPI], [$mpi_version], [])
LKS_REPORT([launcher], [$MPIEXEC], [tests with more than one rank cannot run])
])
