# SPDX-License-Identifier: BSD-3-Clause
#
# lks_cuda.m4 - the CUDA backend: is everything here that the plug-in needs, and which device code is made.

# LKS_CUDA - CUDA_CPPFLAGS, CUDA_LIBS, NVCC, NVCC_GENCODE, HAVE_CUDA (also for automake), report lines. Without nvcc, the
# headers or a library that the plug-in links, everything else is built. CUMATH_LIBS, HAVE_CUMATH: the second plug-in,
# with what there is of cuFFT and cuSOLVER.
AC_DEFUN([LKS_CUDA], [
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags for NVCC, default "-O3 -lineinfo"])
AC_ARG_VAR([CUDA_HOME], [folder of the CUDA toolkit, default /usr/local/cuda])
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
  [build the CUDA backend, with the toolkit in DIR (default: if there is one)])], [], [with_cuda=auto])
AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST],
  [device code to build, e.g. "sm_80 sm_90" (the default); "ptx": none but the PTX of compute_90, which is always there])],
  [], [with_cuda_arch="sm_80 sm_90"])
AC_ARG_WITH([cudnn], [AS_HELP_STRING([--without-cudnn],
  [no convolutions on a GPU (default: they are there if cuDNN is)])], [], [with_cudnn=auto])
AS_CASE([$with_cuda_arch], [yes], [with_cuda_arch="sm_80 sm_90"], [no|ptx], [with_cuda_arch=])
AS_CASE([$with_cuda], [auto|yes|no], [lks_cuda=${CUDA_HOME:-/usr/local/cuda}], [lks_cuda=$with_cuda])
cuda_version=no cudnn_version=no nccl_version=no have_cuda=no have_cudnn=no cuda_why=
cufft_version=no cusolver_version=no CUMATH_LIBS= CUDNN_LIBS=
AS_IF([test "x$with_cuda" != xno], [
  AS_IF([test "x$NVCC" = x], [
    AC_PATH_PROG([NVCC], [nvcc], [no], [$lks_cuda/bin$PATH_SEPARATOR$PATH])
    dnl a compiler cache that serves CC serves nvcc as well
    AS_CASE([$NVCC/$CC], [no/*], [], [*/*ccache\ *], [NVCC="ccache $NVCC"])])
  AS_IF([test "x$NVCC" != xno && test -f $lks_cuda/include/cuda_runtime_api.h], [
    cuda_version=`$NVCC --version 2>/dev/null | sed -n 's/.*release \([[0-9.]]*\),.*/\1/p'`
    test "x$cuda_version" != x || cuda_version=no
    CUDA_CPPFLAGS="-I$lks_cuda/include"
    lks_cuda_lib=$lks_cuda/lib64
    test -d $lks_cuda_lib || lks_cuda_lib=$lks_cuda/lib
    CUDA_LIBS="-L$lks_cuda_lib -R$lks_cuda_lib -lcublasLt -lcublas -lcudart"
    sv_CPPFLAGS=$CPPFLAGS sv_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
    LIBS="-L$lks_cuda_lib -Wl,-rpath-link,$lks_cuda_lib -lcublasLt -lcublas -lcudart $LIBS"
    AC_MSG_CHECKING([for cudart, cublas and cublasLt])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>
#include <cublasLt.h>
#include <cublas_v2.h>]], [[int n; cublasHandle_t h; cublasLtHandle_t l;
      return cudaGetDeviceCount(&n) + (int)cublasCreate(&h) + (int)cublasLtCreate(&l);]])],
      [have_cuda=yes], [cuda_why="its libraries do not link"])
    AC_MSG_RESULT([$have_cuda])
    LIBS=$sv_LIBS
    AC_MSG_CHECKING([whether $NVCC compiles (it needs a host C++ compiler)])
    echo '__global__ void k(int *x) { *x = 1; }' >conftest.cu
    AS_IF([AM_RUN_LOG([$NVCC -c -o conftest.o conftest.cu])], [AC_MSG_RESULT([yes])],
      [AC_MSG_RESULT([no]); have_cuda=no cuda_why="nvcc does not work (g++?)"])
    rm -f conftest.cu conftest.o
    lks_major=no
    AS_IF([test "x$with_cudnn" != xno],
      [AC_COMPUTE_INT([lks_major], [CUDNN_MAJOR * 1000 + CUDNN_MINOR], [[#include <cudnn_version.h>]], [lks_major=no])])
    AS_IF([test "x$lks_major" != xno],
      [cudnn_version="`expr $lks_major / 1000`.`expr $lks_major % 1000`"
       LIBS="-L$lks_cuda_lib -Wl,-rpath-link,$lks_cuda_lib -lcudnn -lcudart $LIBS"
       AC_MSG_CHECKING([whether cuDNN links])
       AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cudnn.h>]], [[cudnnHandle_t h; return (int)cudnnCreate(&h);]])],
         [have_cudnn=yes CUDNN_LIBS=-lcudnn])
       AC_MSG_RESULT([$have_cudnn])
       LIBS=$sv_LIBS
       test $have_cudnn = yes || cudnn_version="no (it does not link)"])
    AS_IF([test "x$with_cudnn" = xyes && test $have_cudnn = no],
      [AC_MSG_ERROR([cuDNN was asked for and is not beside CUDA in $lks_cuda])])
    LIBS="-L$lks_cuda_lib -Wl,-rpath-link,$lks_cuda_lib -lcufft -lcudart $LIBS"
    AC_MSG_CHECKING([for cufft])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cufft.h>]], [[cufftHandle p; return (int)cufftCreate(&p);]])],
      [cufft_version=yes CUMATH_LIBS="$CUMATH_LIBS -lcufft"])
    AC_MSG_RESULT([$cufft_version])
    LIBS="-L$lks_cuda_lib -Wl,-rpath-link,$lks_cuda_lib -lcusolver -lcublas -lcudart $sv_LIBS"
    AC_MSG_CHECKING([for cusolver])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cusolverDn.h>]],
      [[cusolverDnHandle_t h; return (int)cusolverDnCreate(&h);]])],
      [cusolver_version=yes CUMATH_LIBS="$CUMATH_LIBS -lcusolver -lcublas"])
    AC_MSG_RESULT([$cusolver_version])
    LIBS=$sv_LIBS
    AC_COMPUTE_INT([lks_major], [NCCL_MAJOR * 1000 + NCCL_MINOR], [[#include <nccl.h>]], [lks_major=no])
    AS_IF([test "x$lks_major" != xno],
      [nccl_version="`expr $lks_major / 1000`.`expr $lks_major % 1000`"
       AC_DEFINE([HAVE_NCCL], [1], [nccl.h is there; the library is looked for when ranks with GPUs meet])])
    CPPFLAGS=$sv_CPPFLAGS])])
AS_IF([test "x$enable_shared" = xno && test $have_cuda = yes], [have_cuda=no cuda_why="a module needs --enable-shared"])
AS_IF([test $have_cuda = no], [
  AS_CASE([$with_cuda], [auto|no], [],
    [AC_MSG_ERROR([CUDA was asked for and cannot be used from $lks_cuda: ${cuda_why:-no nvcc or headers there}])])
  AS_IF([test "x$cuda_why" != x], [cuda_version="no ($cuda_why)"])
  CUDA_CPPFLAGS= CUDA_LIBS= NVCC_GENCODE=
], [
  : ${NVCCFLAGS="-O3 -lineinfo"}
  NVCC_GENCODE= cuda_codes=
  for lks_arch in `echo "$with_cuda_arch" | tr ',' ' '`; do
    lks_arch=${lks_arch#sm_}
    NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$lks_arch,code=sm_$lks_arch"
    cuda_codes="$cuda_codes sm_$lks_arch"
  done
  NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_90,code=compute_90"
  AC_DEFINE([HAVE_CUDA], [1], [the CUDA backend is built])
  AC_DEFINE_UNQUOTED([LKSI_BUILT_CUDA], ["$cuda_version,$cuda_codes compute_90 PTX"], [toolkit and device code of this build])
  cuda_version="$cuda_version,$cuda_codes PTX"])
AS_IF([test $have_cuda = no], [cufft_version=no cusolver_version=no CUMATH_LIBS=],
  [CUMATH_LIBS="-L$lks_cuda_lib -R$lks_cuda_lib $CUMATH_LIBS -lcudart"])
AS_IF([test $cufft_version = yes], [AC_DEFINE([HAVE_CUFFT], [1], [cuFFT is there, for the second CUDA module])])
AS_IF([test $cusolver_version = yes], [AC_DEFINE([HAVE_CUSOLVER], [1], [cuSOLVER is there, for the second CUDA module])])
AC_SUBST([CUMATH_LIBS])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([CUDA_LIBS])
AC_SUBST([CUDNN_LIBS])
AC_SUBST([NVCC_GENCODE])
AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
AM_CONDITIONAL([HAVE_CUDNN], [test $have_cuda = yes && test $have_cudnn = yes])
LKS_REPORT([CUDA], [$cuda_version], [no GPU backend: --device cuda is an error])
LKS_REPORT([cuDNN], [$cudnn_version], [no convolution on a GPU])
AM_CONDITIONAL([HAVE_CUFFT], [test $cufft_version = yes])
AM_CONDITIONAL([HAVE_CUSOLVER], [test $cusolver_version = yes])
AM_CONDITIONAL([HAVE_CUMATH], [test $cufft_version = yes || test $cusolver_version = yes])
LKS_REPORT([cuFFT], [$cufft_version], [no Fourier transforms on a GPU])
LKS_REPORT([cuSOLVER], [$cusolver_version], [no linear algebra on a GPU])
LKS_REPORT([NCCL], [$nccl_version], [GPU ranks would talk through host memory])
])
