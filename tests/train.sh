# SPDX-License-Identifier: BSD-3-Clause
#
# train.sh - sourced after mpi.sh by the tests of the command: a text and a way to read metrics.
lockstep=$LKS_BUILDDIR/lockstep
test -x "$lockstep" || tap_skip_all "the command was not built (popt, libconfuse or jansson missing)"
digits=$LKS_SRCDIR/jobs/data/digits.h5
# Real text that is always there: the manual in the headers.
cat "$LKS_SRCDIR"/include/lockstep/*.h >"$tmp/text.txt"
OPENBLAS_NUM_THREADS=1
export OPENBLAS_NUM_THREADS

# Last value of a key in a run's metrics.
metric()
{
    sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p" "$1/metrics.jsonl" | tail -n 1
}

# near TEXT A B BOUND: is |A - B| <= BOUND |B|?
near()
{
    $AWK -v a="$2" -v b="$3" -v r="$4" 'BEGIN { d = a - b; if (d < 0) d = -d; m = b < 0 ? -b : b; exit !(a != "" && b != "" && d <= r * m) }'
    tap_ok $? "$1"
    echo "# $2 and $3, bound $4"
}
