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
    print "* Every row has a kernel on the CPU or is made of rows that have one; on a GPU a row without a kernel says so."
    print ""
    print "| op | signature: inputs; attributes -> outputs | dtypes | cpu | cuda | gradient |"
    print "|---|---|---|---|---|---|"
    next
}
{
    text = substr($0, at)
    gsub(/[|]/, "\\|", text)
    print "| " $1 " | `" text "` | " $5 " | " $2 " | " $3 " | " $4 " |"
}
