# SPDX-License-Identifier: BSD-3-Clause
#
# lks_fortran.m4 - the Fortran module: a compiler that reads array descriptors of C (Fortran 2018), its module flags, and
# whether the mpi_f08 module of this MPI can be read by it.

# LKS_FORTRAN, after AC_PROG_FC - FORTRAN (conditional), FC, LKS_MPI_F08, MPI_FCFLAGS. AC_FC_MODULE_FLAG only once a compile has worked:
# without a compiler it leaves configure in a removed folder.
AC_DEFUN([LKS_FORTRAN], [
AC_ARG_ENABLE([fortran], [AS_HELP_STRING([--disable-fortran], [no Fortran module])], [], [enable_fortran=auto])
AC_ARG_VAR([MPI_FCFLAGS], [where Fortran finds the modules of MPI])
AC_ARG_VAR([MPI_FCLIBS], [link flags of MPI for Fortran programs])
have_fc=no lks_f08=
AS_IF([test "x$enable_fortran" != xno && test "x$FC" != x], [
  AC_LANG_PUSH([Fortran])
  AC_FC_SRCEXT([F90])
  AC_MSG_CHECKING([whether $FC hands arrays of any rank to C])
  AC_COMPILE_IFELSE([AC_LANG_SOURCE([
      subroutine s(a) bind(c)
      use, intrinsic :: iso_c_binding
      type(*), intent(in) :: a(..)
      end subroutine])], [have_fc=yes])
  AC_MSG_RESULT([$have_fc])
  AC_LANG_POP([Fortran])])
AS_IF([test $have_fc = yes], [
  AC_CHECK_HEADER([ISO_Fortran_binding.h], [], [have_fc=no])])
AS_IF([test $have_fc = yes], [
  AC_LANG_PUSH([Fortran])
  AC_FC_MODULE_FLAG([], [have_fc=no])
  AC_FC_MODULE_OUTPUT_FLAG([], [have_fc=no])
  AC_LANG_POP([Fortran])])
AS_IF([test "x$enable_fortran$have_fc" = xyesno],
  [AC_MSG_ERROR([the Fortran module was asked for; it needs a compiler of Fortran 2018 (Debian: gfortran)])])
AS_IF([test $have_fc = yes], [
  AS_IF([test "x$MPI_FCFLAGS" = x], [
    for lks_mpifc in mpifort.$lks_mpi mpifort; do
      AS_IF([test "x$MPI_FCFLAGS" = x], [
        lks_shown=`$lks_mpifc -show 2>/dev/null`
        for lks_word in $lks_shown; do
          AS_CASE([$lks_word], [-I*], [MPI_FCFLAGS="$MPI_FCFLAGS $lks_word"],
            [-L*|-l*|-Wl,*], [MPI_FCLIBS="$MPI_FCLIBS $lks_word"])
        done])
    done])
  AC_LANG_PUSH([Fortran])
  sv_FCFLAGS=$FCFLAGS
  FCFLAGS="$FCFLAGS $MPI_FCFLAGS"
  dnl an MPI without interfaces for buffers: each call declares MPI_Send anew, of another type
  AC_MSG_CHECKING([what $FC needs to hand buffers of two types to MPI])
  lks_choice=failed
  for lks_word in "" -fallow-argument-mismatch; do
    AS_IF([test "x$lks_choice" = xfailed], [
      FCFLAGS="$sv_FCFLAGS $MPI_FCFLAGS $lks_word"
      AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [
      use mpi
      integer :: i(1), ierr
      real :: r(1)
      call MPI_Send(i, 1, MPI_INTEGER, 0, 0, MPI_COMM_WORLD, ierr)
      call MPI_Send(r, 1, MPI_REAL, 0, 0, MPI_COMM_WORLD, ierr)])], [lks_choice=$lks_word])])
  done
  AS_CASE([$lks_choice], [""], [AC_MSG_RESULT([nothing])], [failed], [AC_MSG_RESULT([no mpi module])],
    [AC_MSG_RESULT([$lks_choice]); MPI_FCFLAGS="$MPI_FCFLAGS $lks_choice"])
  FCFLAGS="$sv_FCFLAGS $MPI_FCFLAGS"
  AC_MSG_CHECKING([whether $FC reads the mpi_f08 module])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [
      use mpi_f08, only: MPI_Comm
      type(MPI_Comm) :: c
      print *, c%MPI_VAL])], [lks_f08=-DLKS_MPI_F08])
  AS_IF([test "x$lks_f08" = x], [AC_MSG_RESULT([no])], [AC_MSG_RESULT([yes])])
  FCFLAGS=$sv_FCFLAGS
  AC_LANG_POP([Fortran])
  AS_IF([test "x$lks_f08" = x], [have_fc="$FC, integer communicators only"], [have_fc=$FC])])
AC_SUBST([LKS_MPI_F08], [$lks_f08])
AM_CONDITIONAL([FORTRAN], [test "x$have_fc" != xno])
LKS_REPORT([Fortran], [$have_fc], [no Fortran module (gfortran)])
])
