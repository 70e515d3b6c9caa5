# SPDX-License-Identifier: BSD-3-Clause
#
# lks_hdf5.m4 - HDF5 with or without MPI-IO, from pkg-config, a folder, or HDF5_CFLAGS and HDF5_LIBS.

# LKS_HDF5 - sets HDF5_CFLAGS, HDF5_LIBS; defines HAVE_PARALLEL_HDF5. The parallel flavour must belong to the MPI in use:
# one that was built for another MPI links and then crashes.
AC_DEFUN([LKS_HDF5], [
AC_REQUIRE([LKS_MPI])
AC_ARG_VAR([HDF5_CFLAGS], [compile flags of HDF5, overriding pkg-config])
AC_ARG_VAR([HDF5_LIBS], [link flags of HDF5, overriding pkg-config])
AC_ARG_WITH([hdf5], [AS_HELP_STRING([--with-hdf5=WHICH],
  [serial, a pkg-config module, or the folder of an installation (default: a parallel one, else serial)])],
  [], [with_hdf5=auto])
AS_CASE([$lks_mpi],
  [openmpi], [lks_parallel="hdf5-openmpi hdf5-mpi hdf5" lks_foreign=mpich],
  [mpich], [lks_parallel="hdf5-mpich hdf5-mpi hdf5" lks_foreign=openmpi],
  [lks_parallel="hdf5-mpi hdf5" lks_foreign=none])
AS_CASE([$with_hdf5],
  [no], [AC_MSG_ERROR([HDF5 is required])],
  [auto|yes|parallel], [lks_try="$lks_parallel"],
  [serial], [lks_try=],
  [*/*], [lks_try=
    HDF5_CFLAGS="-I$with_hdf5/include" HDF5_LIBS="-L$with_hdf5/lib -R$with_hdf5/lib -lhdf5"],
  [lks_try="$with_hdf5"])
have_hdf5=no
sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
AS_IF([test "x$HDF5_LIBS" != x], [lks_try=given])
for pc in $lks_try; do
  AS_IF([test "$have_hdf5" = no], [
    AS_IF([test $pc = given], [lks_c=$HDF5_CFLAGS lks_l=$HDF5_LIBS],
      [lks_c=`$PKG_CONFIG --cflags $pc 2>/dev/null` lks_l=`$PKG_CONFIG --libs $pc 2>/dev/null`])
    AC_MSG_CHECKING([for parallel HDF5 in $pc])
    lks_answer=no
    AS_CASE(["$lks_l"], [''], [lks_answer="no (not installed)"], [*$lks_foreign*], [lks_answer="no (of another MPI)"], [
      CPPFLAGS="$sv_CPPFLAGS $MPI_CFLAGS $lks_c"
      LIBS="`AS_ECHO(["$lks_l"]) | sed 's/-R\([[^ ]]*\)/-Wl,-rpath,\1/g'` $MPI_LIBS $sv_LIBS"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>
#include <hdf5.h>
#ifndef H5_HAVE_PARALLEL
#error serial HDF5
#endif]], [[return H5Pset_fapl_mpio(H5P_DEFAULT, MPI_COMM_WORLD, MPI_INFO_NULL) < 0;]])],
        [have_hdf5=parallel lks_answer=yes HDF5_CFLAGS=$lks_c HDF5_LIBS=$lks_l])])
    AC_MSG_RESULT([$lks_answer])])
done
AS_CASE([$with_hdf5], [parallel], [lks_try=], [auto|yes|serial],
  [AS_IF([test "x$HDF5_LIBS" = x], [lks_try="hdf5-serial hdf5"])])
for pc in $lks_try; do
  AS_IF([test "$have_hdf5" = no], [
    AS_IF([test $pc = given], [lks_c=$HDF5_CFLAGS lks_l=$HDF5_LIBS],
      [lks_c=`$PKG_CONFIG --cflags $pc 2>/dev/null` lks_l=`$PKG_CONFIG --libs $pc 2>/dev/null`])
    AC_MSG_CHECKING([for serial HDF5 in $pc])
    CPPFLAGS="$sv_CPPFLAGS $MPI_CFLAGS $lks_c"
    LIBS="`AS_ECHO(["$lks_l"]) | sed 's/-R\([[^ ]]*\)/-Wl,-rpath,\1/g'` $MPI_LIBS $sv_LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <hdf5.h>
#ifdef H5_HAVE_PARALLEL
#error parallel HDF5, and not one that works with this MPI
#endif]], [[return H5open() < 0;]])],
      [have_hdf5=serial HDF5_CFLAGS=$lks_c HDF5_LIBS=$lks_l])
    AC_MSG_RESULT([$have_hdf5])])
done
AS_IF([test "$have_hdf5" = no],
  [AC_MSG_ERROR([no HDF5 found that fits $mpi_version. Debian: apt-get install libhdf5-$lks_mpi-dev (or libhdf5-dev, serial); on a cluster: load an HDF5 module; else --with-hdf5=FOLDER, or HDF5_CFLAGS and HDF5_LIBS])])
CPPFLAGS="$sv_CPPFLAGS $MPI_CFLAGS $HDF5_CFLAGS"
AC_COMPUTE_INT([lks_h5_major], [H5_VERS_MAJOR], [[#include <hdf5.h>]])
AC_COMPUTE_INT([lks_h5_minor], [H5_VERS_MINOR], [[#include <hdf5.h>]])
AC_COMPUTE_INT([lks_h5_patch], [H5_VERS_RELEASE], [[#include <hdf5.h>]])
CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS
hdf5_version="$lks_h5_major.$lks_h5_minor.$lks_h5_patch $have_hdf5"
AS_IF([test $have_hdf5 = parallel], [AC_DEFINE([HAVE_PARALLEL_HDF5], [1], [HDF5 has MPI-IO])])
AC_DEFINE_UNQUOTED([LKSI_BUILT_HDF5], ["$hdf5_version"], [HDF5 of this build])
LKS_REPORT([HDF5], [$hdf5_version], [])
LKS_REPORT([MPI-IO], [`test $have_hdf5 = parallel && echo yes || echo no`], [HDF5 has no part in parallel file access])
])
