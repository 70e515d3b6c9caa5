# SPDX-License-Identifier: BSD-3-Clause
#
# lks_math.m4 - what the CPU backend is built on: the compiler's arithmetic, instruction sets, oneDNN, CBLAS.

# LKS_STRICT_MATH - refuses flags that change what floating-point code means. Kernels, conversions and the finite test
# rely on NaN, infinities, signed zeros, denormals and the order of additions.
AC_DEFUN([LKS_STRICT_MATH], [
AC_MSG_CHECKING([whether $CC keeps IEEE arithmetic with the flags given])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__) || defined __ASSOCIATIVE_MATH__ \
    || defined __RECIPROCAL_MATH__ || defined __NO_SIGNED_ZEROS__
#error not IEEE
#endif]], [])], [lks_ieee=yes], [lks_ieee=no])
AS_CASE([" $CPPFLAGS $CFLAGS $LDFLAGS "],
  [*-ffast-math*|*-Ofast*|*-funsafe-math-optimizations*|*-ffinite-math-only*|*-fassociative-math*|*-fp-model=fast*],
  [lks_ieee=no])
AC_MSG_RESULT([$lks_ieee])
AS_IF([test $lks_ieee = no],
  [AC_MSG_ERROR([CFLAGS, CPPFLAGS or LDFLAGS hold -ffast-math or a part of it. Lockstep's finite test, loss scaling and reproducible sums need IEEE arithmetic: remove the flag (the kernels are built with -O3 and for several instruction sets anyway)])])
])

# LKS_ISA - instruction sets for which the kernels are compiled besides the baseline.
AC_DEFUN([LKS_ISA], [
AC_REQUIRE([AC_CANONICAL_HOST])
AVX2_CFLAGS="-mavx2 -mfma -mf16c"
AVX512_CFLAGS="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c"
AC_SUBST([AVX2_CFLAGS])
AC_SUBST([AVX512_CFLAGS])
AC_ARG_ENABLE([isa], [AS_HELP_STRING([--disable-isa], [compile the CPU kernels for the baseline only])], [],
  [enable_isa=yes])
have_avx2=no have_avx512=no lks_isa=base
AS_CASE([$enable_isa:$host_cpu], [yes:x86_64], [
  sv_CFLAGS=$CFLAGS
  AC_MSG_CHECKING([whether $CC compiles for AVX2])
  CFLAGS="$sv_CFLAGS $AVX2_CFLAGS"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]], [[__m256 x = _mm256_setzero_ps();
    x = _mm256_fmadd_ps(x, x, x); return _mm_cvtsi128_si32(_mm256_cvtps_ph(x, 0));]])], [have_avx2=yes])
  AC_MSG_RESULT([$have_avx2])
  AC_MSG_CHECKING([whether $CC compiles for AVX-512])
  CFLAGS="$sv_CFLAGS $AVX512_CFLAGS"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]], [[__m512 x = _mm512_setzero_ps();
    x = _mm512_fmadd_ps(x, x, x); return (int)_mm512_cmp_ps_mask(x, x, 0);]])], [have_avx512=yes])
  AC_MSG_RESULT([$have_avx512])
  CFLAGS=$sv_CFLAGS])
AS_IF([test $have_avx2 = yes], [lks_isa="$lks_isa avx2"
  AC_DEFINE([HAVE_ISA_AVX2], [1], [kernels are compiled for AVX2])])
AS_IF([test $have_avx512 = yes], [lks_isa="$lks_isa avx512"
  AC_DEFINE([HAVE_ISA_AVX512], [1], [kernels are compiled for AVX-512])])
AM_CONDITIONAL([ISA_AVX2], [test $have_avx2 = yes])
AM_CONDITIONAL([ISA_AVX512], [test $have_avx512 = yes])
LKS_REPORT([CPU kernels], [$lks_isa], [])
])

# LKS_ONEDNN - oneDNN 2 or 3: ONEDNN_CFLAGS, ONEDNN_LIBS, HAVE_ONEDNN.
AC_DEFUN([LKS_ONEDNN], [
AC_ARG_VAR([ONEDNN_CFLAGS], [compile flags of oneDNN])
AC_ARG_VAR([ONEDNN_LIBS], [link flags of oneDNN, default -ldnnl])
AC_ARG_WITH([onednn], [AS_HELP_STRING([--without-onednn], [do not use oneDNN])], [], [with_onednn=auto])
onednn_version=no
AS_IF([test "x$with_onednn" != xno], [
  AS_IF([test "x$ONEDNN_LIBS" = x], [AS_IF([$PKG_CONFIG --exists dnnl],
    [ONEDNN_CFLAGS=`$PKG_CONFIG --cflags dnnl` ONEDNN_LIBS=`$PKG_CONFIG --libs dnnl`], [ONEDNN_LIBS=-ldnnl])])
  sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $ONEDNN_CFLAGS" LIBS="$ONEDNN_LIBS $LIBS"
  AC_MSG_CHECKING([for oneDNN])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>
#if DNNL_VERSION_MAJOR < 2
#error too old
#endif]], [[return dnnl_version()->major;]])], [onednn_version=yes])
  AS_IF([test $onednn_version = yes], [
    AC_COMPUTE_INT([lks_dnnl_major], [DNNL_VERSION_MAJOR], [[#include <dnnl.h>]])
    AC_COMPUTE_INT([lks_dnnl_minor], [DNNL_VERSION_MINOR], [[#include <dnnl.h>]])
    AC_COMPUTE_INT([lks_dnnl_patch], [DNNL_VERSION_PATCH], [[#include <dnnl.h>]])
    onednn_version=$lks_dnnl_major.$lks_dnnl_minor.$lks_dnnl_patch
    AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN is there])
    AC_DEFINE_UNQUOTED([LKSI_BUILT_ONEDNN], ["$onednn_version"], [oneDNN of this build])])
  AC_MSG_RESULT([$onednn_version])
  CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS])
AS_IF([test $onednn_version = no], [
  AS_IF([test "x$with_onednn" = xyes], [AC_MSG_ERROR([oneDNN was asked for and not found (Debian: libdnnl-dev)])])
  ONEDNN_CFLAGS= ONEDNN_LIBS=])
AM_CONDITIONAL([HAVE_ONEDNN], [test $onednn_version != no])
LKS_REPORT([oneDNN], [$onednn_version], [slower convolutions and bfloat16 products (libdnnl-dev)])
])

# LKS_CBLAS - any CBLAS with 32-bit integers: CBLAS_CFLAGS, CBLAS_LIBS, HAVE_CBLAS.
AC_DEFUN([LKS_CBLAS], [
AC_ARG_VAR([CBLAS_CFLAGS], [compile flags of CBLAS])
AC_ARG_VAR([CBLAS_LIBS], [link flags of CBLAS, overriding the search])
AC_ARG_WITH([cblas], [AS_HELP_STRING([--without-cblas], [do not use CBLAS])], [], [with_cblas=auto])
have_cblas=no
AS_IF([test "x$with_cblas" != xno], [
  sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
  AS_IF([test "x$CBLAS_LIBS" != x], [lks_try=given], [lks_try="openblas blis flexiblas cblas -lopenblas -lcblas"])
  for pc in $lks_try; do
    AS_IF([test "$have_cblas" = no], [
      AS_CASE([$pc],
        [given], [lks_c=$CBLAS_CFLAGS lks_l=$CBLAS_LIBS],
        [-l*], [lks_c= lks_l=$pc],
        [lks_c=`$PKG_CONFIG --cflags $pc 2>/dev/null` lks_l=`$PKG_CONFIG --libs $pc 2>/dev/null`])
      AS_IF([test "x$lks_l" != x], [
        AC_MSG_CHECKING([for CBLAS in $pc])
        CPPFLAGS="$sv_CPPFLAGS $lks_c" LIBS="$lks_l $sv_LIBS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cblas.h>]], [[float x = 1;
          cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, x, &x, 1, &x, 1, 0, &x, 1);]])],
          [have_cblas=$pc CBLAS_CFLAGS=$lks_c CBLAS_LIBS=$lks_l])
        AC_MSG_RESULT([`test "$have_cblas" = no && echo no || echo yes`])])])
  done
  CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS])
AS_IF([test "$have_cblas" = no], [
  AS_IF([test "x$with_cblas" = xyes], [AC_MSG_ERROR([CBLAS was asked for and not found (Debian: libopenblas-dev)])])
  CBLAS_CFLAGS= CBLAS_LIBS=
], [AC_DEFINE([HAVE_CBLAS], [1], [a CBLAS is there])
  AS_IF([$PKG_CONFIG --exists $have_cblas 2>/dev/null], [have_cblas="$have_cblas `$PKG_CONFIG --modversion $have_cblas`"])
  AC_DEFINE_UNQUOTED([LKSI_BUILT_CBLAS], ["$have_cblas"], [CBLAS of this build])])
AM_CONDITIONAL([HAVE_CBLAS], [test "$have_cblas" != no])
LKS_REPORT([CBLAS], [$have_cblas], [slower float64 products (libopenblas-dev)])
])

# LKS_LAPACKE - LAPACK by its C interface: LAPACKE_CFLAGS, LAPACKE_LIBS, HAVE_LAPACKE.
AC_DEFUN([LKS_LAPACKE], [
AC_ARG_VAR([LAPACKE_CFLAGS], [compile flags of LAPACKE])
AC_ARG_VAR([LAPACKE_LIBS], [link flags of LAPACKE, overriding the search])
AC_ARG_WITH([lapacke], [AS_HELP_STRING([--without-lapacke], [no linear algebra])], [], [with_lapacke=auto])
have_lapacke=no
AS_IF([test "x$with_lapacke" != xno], [
  sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
  AS_IF([test "x$LAPACKE_LIBS" != x], [lks_try=given], [lks_try="cblas lapacke -llapacke"])
  for pc in $lks_try; do
    AS_IF([test "$have_lapacke" = no], [
      AS_CASE([$pc],
        [given], [lks_c=$LAPACKE_CFLAGS lks_l=$LAPACKE_LIBS],
        [cblas], [lks_c=$CBLAS_CFLAGS lks_l=$CBLAS_LIBS],
        [-l*], [lks_c= lks_l=$pc],
        [lks_c=`$PKG_CONFIG --cflags $pc 2>/dev/null` lks_l=`$PKG_CONFIG --libs $pc 2>/dev/null`])
      AS_IF([test "x$lks_l" != x], [
        AC_MSG_CHECKING([for LAPACKE in $pc])
        CPPFLAGS="$sv_CPPFLAGS $lks_c" LIBS="$lks_l $CBLAS_LIBS $sv_LIBS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <lapacke.h>
#if defined LAPACK_ILP64
#error 64-bit integers
#endif]], [[double x = 1;
          return LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'L', 1, &x, 1);]])],
          [have_lapacke=$pc LAPACKE_CFLAGS=$lks_c LAPACKE_LIBS=$lks_l])
        AC_MSG_RESULT([`test "$have_lapacke" = no && echo no || echo yes`])])])
  done
  CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS])
AS_IF([test "$have_lapacke" = no], [
  AS_IF([test "x$with_lapacke" = xyes], [AC_MSG_ERROR([LAPACKE was asked for and not found (Debian: liblapacke-dev)])])
  LAPACKE_CFLAGS= LAPACKE_LIBS=
], [AC_DEFINE([HAVE_LAPACKE], [1], [LAPACKE is there])
  AS_IF([test "$have_lapacke" = cblas], [have_lapacke="with CBLAS"])])
LKS_REPORT([LAPACKE], [$have_lapacke], [no linear algebra (liblapacke-dev)])
])

# LKS_FFTW - FFTW 3 in both precisions, for the module alone: FFTW_CFLAGS, FFTW_LIBS, HAVE_FFTW.
AC_DEFUN([LKS_FFTW], [
AC_ARG_VAR([FFTW_CFLAGS], [compile flags of FFTW])
AC_ARG_VAR([FFTW_LIBS], [link flags of FFTW (both precisions), default -lfftw3 -lfftw3f])
AC_ARG_WITH([fftw], [AS_HELP_STRING([--without-fftw], [no Fourier transforms])], [], [with_fftw=auto])
have_fftw=no
AS_IF([test "x$with_fftw" != xno && test "x$enable_shared" != xno], [
  AS_IF([test "x$FFTW_LIBS" = x], [AS_IF([$PKG_CONFIG --exists fftw3 fftw3f],
    [FFTW_CFLAGS=`$PKG_CONFIG --cflags fftw3` FFTW_LIBS=`$PKG_CONFIG --libs fftw3 fftw3f`],
    [FFTW_LIBS="-lfftw3 -lfftw3f"])])
  sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $FFTW_CFLAGS" LIBS="$FFTW_LIBS -lm $LIBS"
  AC_MSG_CHECKING([for FFTW 3])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <fftw3.h>]], [[fftw_destroy_plan(0); fftwf_destroy_plan(0);]])],
    [have_fftw=yes])
  AC_MSG_RESULT([$have_fftw])
  CPPFLAGS=$sv_CPPFLAGS LIBS=$sv_LIBS])
AS_IF([test $have_fftw = no], [
  AS_IF([test "x$with_fftw" = xyes], [AC_MSG_ERROR([FFTW was asked for and not found, or there are no shared libraries (Debian: libfftw3-dev)])])])
AM_CONDITIONAL([HAVE_FFTW], [test $have_fftw = yes])
AC_SUBST([FFTW_CFLAGS])
AC_SUBST([FFTW_LIBS])
LKS_REPORT([FFTW], [$have_fftw], [no Fourier transforms (libfftw3-dev); its module is under FFTW's licence, the GPL])
])
