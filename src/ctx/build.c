/* SPDX-License-Identifier: BSD-3-Clause
 *
 * build.c - what this library was built with, for `lockstep info` and bug reports. Facts come from configure.
 */
#include <lockstep/context.h>

#include <hdf5.h>
#ifdef HAVE_ONEDNN
#include <dnnl_version.h>
#endif

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#ifdef H5_HAVE_PARALLEL
#define HDF5_KIND ", parallel"
#else
#define HDF5_KIND ", serial"
#endif
#if defined OPEN_MPI
#define MPI_KIND "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION)
#elif defined MPICH_VERSION
#define MPI_KIND "MPICH " MPICH_VERSION
#else
#define MPI_KIND "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION)
#endif
#ifdef HAVE_ONEDNN
#define ONEDNN_KIND TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(DNNL_VERSION_PATCH)
#else
#define ONEDNN_KIND "none (own kernels)"
#endif
#ifdef HAVE_CBLAS
#define CBLAS_KIND "yes"
#else
#define CBLAS_KIND "none (own kernels)"
#endif
#if defined HAVE_ISA_AVX512
#define ISA_KIND "base, avx2, avx512"
#elif defined HAVE_ISA_AVX2
#define ISA_KIND "base, avx2"
#else
#define ISA_KIND "base"
#endif
#ifdef HAVE_CUDA
#define CUDA_KIND LKSI_BUILT_CUDA
#else
#define CUDA_KIND "none in this build"
#endif
#ifdef LKSI_BUILT_CC
#define CC_KIND LKSI_BUILT_CC
#else
#define CC_KIND __VERSION__
#endif

static const struct { const char *name, *value; } facts[] = {
    {"Lockstep", TEXT(LKS_VERSION_MAJOR) "." TEXT(LKS_VERSION_MINOR) "." TEXT(LKS_VERSION_PATCH)},
    {"compiler", CC_KIND},
    {"MPI", MPI_KIND},
    {"HDF5", H5_VERS_INFO HDF5_KIND},
    {"oneDNN", ONEDNN_KIND},
    {"CBLAS", CBLAS_KIND},
    {"CPU kernels", ISA_KIND},
    {"CUDA backend", CUDA_KIND},
};

int lks_build_count(void) { return (int)(sizeof facts / sizeof *facts); }
const char *lks_build_name(int i) { return i >= 0 && i < lks_build_count() ? facts[i].name : ""; }
const char *lks_build_value(int i) { return i >= 0 && i < lks_build_count() ? facts[i].value : ""; }
