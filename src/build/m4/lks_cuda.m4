# SPDX-License-Identifier: BSD-3-Clause
#
# lks_cuda.m4 - says what of CUDA is on this machine. Nothing is built from it yet.

# LKS_CUDA - report lines for nvcc, cuBLAS, cuDNN and NCCL.
AC_DEFUN([LKS_CUDA], [
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([CUDA_HOME], [folder of the CUDA toolkit, default /usr/local/cuda])
AC_ARG_WITH([cuda], [AS_HELP_STRING([--without-cuda], [do not look for CUDA])], [], [with_cuda=auto])
AS_CASE([$with_cuda], [auto|yes|no], [lks_cuda=${CUDA_HOME:-/usr/local/cuda}], [lks_cuda=$with_cuda])
cuda_version=no cudnn_version=no nccl_version=no
AS_IF([test "x$with_cuda" != xno], [
  AC_PATH_PROG([NVCC], [nvcc], [no], [$lks_cuda/bin$PATH_SEPARATOR$PATH])
  AS_IF([test "x$NVCC" != xno && test -f $lks_cuda/include/cuda_runtime_api.h], [
    cuda_version=`$NVCC --version 2>/dev/null | sed -n 's/.*release \([[0-9.]]*\),.*/\1/p'`
    test "x$cuda_version" != x || cuda_version=no
    sv_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS -I$lks_cuda/include"
    AC_COMPUTE_INT([lks_major], [CUDNN_MAJOR * 1000 + CUDNN_MINOR], [[#include <cudnn_version.h>]], [lks_major=no])
    AS_IF([test "x$lks_major" != xno],
      [cudnn_version="`expr $lks_major / 1000`.`expr $lks_major % 1000`"])
    AC_COMPUTE_INT([lks_major], [NCCL_MAJOR * 1000 + NCCL_MINOR], [[#include <nccl.h>]], [lks_major=no])
    AS_IF([test "x$lks_major" != xno],
      [nccl_version="`expr $lks_major / 1000`.`expr $lks_major % 1000`"])
    CPPFLAGS=$sv_CPPFLAGS])])
AS_IF([test "$cuda_version" = no], [
  AS_CASE([$with_cuda], [auto|no], [],
    [AC_MSG_ERROR([CUDA was asked for and not found in $lks_cuda])])])
LKS_REPORT([CUDA], [$cuda_version], [no GPU backend: --device cuda is an error])
LKS_REPORT([cuDNN], [$cudnn_version], [no GPU backend])
LKS_REPORT([NCCL], [$nccl_version], [GPU ranks would talk through host memory])
])
