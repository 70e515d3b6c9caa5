# SPDX-License-Identifier: BSD-3-Clause
#
# package.py - Spack recipe. In a repository of your own: REPO/packages/lockstep/package.py, then `spack install lockstep`
# from a checkout with `spack develop` or `spack dev-build lockstep@main`.
from spack.package import *


class Lockstep(AutotoolsPackage):
    """MPI-native training framework in C: autocast, loss scaling, data parallel training and HDF5 checkpoints."""

    license("BSD-3-Clause")
    version("main", branch="main")

    variant("cuda", default=False, description="CUDA backend (plug-in module)")
    variant("fortran", default=True, description="Fortran module")
    variant("onednn", default=True, description="bfloat16 products by oneDNN where the processor has them")
    variant("tools", default=True, description="the lockstep command")

    depends_on("c", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("autoconf@2.71:", type="build")
    depends_on("automake@1.16:", type="build")
    depends_on("libtool", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("xxhash")
    depends_on("blas")
    depends_on("onednn@2.6:", when="+onednn")
    depends_on("popt", when="+tools")
    depends_on("libconfuse", when="+tools")
    depends_on("jansson", when="+tools")
    depends_on("gnuplot", type="run", when="+tools")
    depends_on("cuda@12:", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    depends_on("nccl", when="+cuda")

    def autoreconf(self, spec, prefix):
        autoreconf("--install", "--force")

    def configure_args(self):
        args = ["MPICC=" + self.spec["mpi"].mpicc]
        args += self.enable_or_disable("fortran")
        args += self.with_or_without("onednn")
        args += self.with_or_without("cuda")
        return args
