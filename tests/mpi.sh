# SPDX-License-Identifier: BSD-3-Clause
#
# mpi.sh - sourced by the test scripts (". "${0%/*}/mpi.sh""): TAP for shell, and the launcher. Gives
#
#   LKS_SRCDIR, LKS_BUILDDIR   top of the sources and of the build (set by make check; found otherwise)
#   tmp                        an empty folder of this test, removed at the end
#   cxx                        prints the C++ compiler beside CC, nothing if there is none (a wrapper may lack its own)
#   sibling NAME MPICC         prints the compiler NAME of the MPI whose C compiler is MPICC (mpicc.mpich: NAME.mpich)
#   mpi N PROGRAM ARGS...      runs it on N ranks, with a limit of time
#   tap_ok STATUS TEXT         a result: good if STATUS is 0
#   tap_run TEXT COMMAND...    a result: good if the command succeeds; its output goes to the log
#   tap_not TEXT COMMAND...    a result: good if the command fails (a status under 126, not a signal)
#   tap_same TEXT A B          a result: are the two texts equal?
#   tap_empty TEXT FILE        a result: is the file empty? Its first lines are what is wrong
#   tap_skip TEXT REASON       a result that cannot be had here
#   tap_skip_all REASON        nothing of this test can be had here; ends it
#   tap_done                   prints the plan, exits

LC_ALL=C.UTF-8
export LC_ALL
: "${LKS_SRCDIR:=$(cd "${0%/*}/.." && pwd)}"
if test -z "${LKS_BUILDDIR:-}"; then
    LKS_BUILDDIR=.
    test -f config.status || LKS_BUILDDIR=$LKS_SRCDIR/build
    LKS_BUILDDIR=$(cd "$LKS_BUILDDIR" && pwd) || exit 99
fi
: "${MPIEXEC:=$(sed -n 's/^S\["MPIEXEC"\]="\(.*\)"$/\1/p' "$LKS_BUILDDIR/config.status")}"
: "${CC:=$(sed -n 's/^S\["CC"\]="\(.*\)"$/\1/p' "$LKS_BUILDDIR/config.status")}"
: "${NM:=nm}" "${AWK:=awk}"
sibling() { echo "$2" | sed "s/mpicc\\([^/]*\\)\$/$1\\1/"; }
cxx()
(
    case $CC in *mpicc*) c=$(sibling mpicxx "${CC%% *}") ;; *) c=c++ ;; esac
    ! echo 'int main() { return 0; }' | "$c" -x c++ -fsyntax-only - >/dev/null 2>&1 || echo "$c"
)
# Open MPI refuses root and more ranks than cores, and binds ranks to cores; a hung job is ended by the launcher.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
: "${MPIEXEC_TIMEOUT:=180}"
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe \
    OMPI_MCA_hwloc_base_binding_policy PRTE_MCA_rmaps_default_mapping_policy PRTE_MCA_hwloc_default_binding_policy \
    MPIEXEC_TIMEOUT MPIEXEC CC LKS_SRCDIR LKS_BUILDDIR
# Each rank wants 4 MiB of /dev/shm; containers often have less.
if test "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')" -lt 65536 2>/dev/null; then
    OMPI_MCA_btl_vader_backing_directory=${TMPDIR:-/tmp}
    export OMPI_MCA_btl_vader_backing_directory
fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/lks-test.XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

tap_count=0
tap_failed=0

mpi()
{
    mpi_ranks=$1
    shift
    "$MPIEXEC" -n "$mpi_ranks" "$@"
}

tap_ok()
{
    tap_count=$((tap_count + 1))
    if test "$1" -eq 0; then
        echo "ok $tap_count - $2"
    else
        tap_failed=$((tap_failed + 1))
        echo "not ok $tap_count - $2"
    fi
}

tap_diag()
{
    printf '%s\n' "$*" | sed 's/^/# /'
}

tap_run()
{
    tap_text=$1
    shift
    "$@" >"$tmp/tap.out" 2>&1 </dev/null
    tap_status=$?
    tap_ok $tap_status "$tap_text"
    sed 's/^/# /' "$tmp/tap.out"
    test $tap_status -eq 0 || echo "# status $tap_status"
    return $tap_status
}

tap_not()
{
    tap_text=$1
    shift
    "$@" >"$tmp/tap.out" 2>&1 </dev/null
    tap_status=$?
    test $tap_status -ne 0 && test $tap_status -lt 126
    tap_ok $? "$tap_text"
    sed 's/^/# /' "$tmp/tap.out"
    echo "# status $tap_status"
}

tap_same()
{
    test "$2" = "$3"
    tap_ok $? "$1"
    test "$2" = "$3" || { tap_diag "one:   $2"; tap_diag "other: $3"; }
}

tap_empty()
{
    test ! -s "$2"
    tap_ok $? "$1"
    sed -n -e 's/^/# /' -e '1,40p' -e '41s/.*/# .../p' "$2"
}

tap_skip()
{
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1 # SKIP $2"
}

tap_skip_all()
{
    echo "1..0 # SKIP $1"
    exit 0
}

tap_done()
{
    echo "1..$tap_count"
    test $tap_failed -eq 0 && test $tap_count -gt 0
    exit $?
}
