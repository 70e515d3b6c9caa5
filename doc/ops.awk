# SPDX-License-Identifier: BSD-3-Clause
#
# ops.awk - doc/ops.md from what `lockstep info --ops` prints; tests/ops.test compares:
#     lockstep info --ops | awk -f doc/ops.awk >doc/ops.md
NR == 1 {
    at = index($0, "inputs;")
    print "# Ops"
    print ""
    print "Printed from the table of ops (`src/table/ops.def`) by `lockstep info --ops | awk -f doc/ops.awk`. The public"
    print "functions are in `include/lockstep/ops.h`; `lks_op_lookup` finds a row by its name or by PyTorch's."
    print ""
    print "* **cpu**, **cuda**: the autocast policy in either table. lower: the region's dtype; fp32: float32; promote:"
    print "  the widest input's; error: refused in a region; -: the dtype of its inputs."
    print "* **gradient**: any: can be differentiated any number of times; once: its gradient is a fused row; -: none"
    print "  (integer results, ops in place, and those fused rows)."
    print "* **dtypes** of the main inputs. floats: float64, float32, float16, bfloat16; all: integers and bool, too."
    print "* **devices**: where it runs; in brackets the library without which a build refuses it there (lockstep info)."
    print ""
    print "| op | signature: inputs; attributes -> outputs | dtypes | cpu | cuda | gradient | devices |"
    print "|---|---|---|---|---|---|---|"
    next
}
# Families that stand on a library; tests/ops.test compares with src/cuda/lacks.h and src/cuda/cumath.def.
function devices(op)
{
    if (op ~ /^conv(_transpose)?[123]d$|^conv_(tbc|backward)/) return "cpu, cuda (cuDNN)"
    if (op ~ /^(fft_|stft$)/) return "cpu (FFTW), cuda (cuFFT)"
    if (op ~ /^(triangular_solve|lu_perm|geqrf|orgqr|ormqr|pinverse)$|^linalg_[^v]/)
        return "cpu (LAPACKE), cuda (cuSOLVER)"
    return "cpu, cuda"
}
{
    text = substr($0, at)
    gsub(/[|]/, "\\|", text)
    print "| " $1 " | `" text "` | " $5 " | " $2 " | " $3 " | " $4 " | " devices($1) " |"
}
