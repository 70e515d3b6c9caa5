# SPDX-License-Identifier: BSD-3-Clause
#
# cuda.sh - sourced after mpi.sh by the tests of the CUDA backend, which it ends where the build has none. Gives
#
#   LKS_PLUGIN_DIR       where the backend is
#   cuda_offered N       good if N devices were offered: LKS_TEST_GPU=N, the machine's own, or LKS_CUDASIM=FOLDER, a
#                        simulator of CUDA whose libraries are in FOLDER/lib. Then simulated is empty or "yes", the
#                        programs find the libraries, and the simulator shows N devices and checks every access.
#   cuda_not_offered     the reason where it failed

: "${LKS_PLUGIN_DIR:=$LKS_BUILDDIR/.libs}"
export LKS_PLUGIN_DIR
test -f "$LKS_PLUGIN_DIR/liblockstep_cuda.so" || tap_skip_all "this build has no CUDA backend"
simulated=

cuda_offered()
{
    cuda_not_offered="no GPU was offered (LKS_TEST_GPU=$1) and no simulator (LKS_CUDASIM=FOLDER)"
    if test -n "${LKS_TEST_GPU:-}"; then
        test "$LKS_TEST_GPU" -ge "$1"
    else
        test -f "${LKS_CUDASIM:-/nowhere}/lib/libcudart.so.13" || return 1
        simulated=yes
        LD_LIBRARY_PATH=$LKS_CUDASIM/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        CUDASIM_DEVICES=$1 CUDASIM_CHECK=1
        export LD_LIBRARY_PATH CUDASIM_DEVICES CUDASIM_CHECK
    fi
}
