# SPDX-License-Identifier: BSD-3-Clause
#
# lks_report.m4 - the table that configure prints at its end, and the shape of every optional part.

# LKS_REPORT(PART, FOUND, COST) - one line of the table. FOUND is "no" or what was found (shell words are expanded);
# COST says what a missing part costs and is shown only then.
AC_DEFUN([LKS_REPORT], [
lks_line="$2" lks_cost=
AS_CASE([$lks_line], [no|no\ *], [lks_cost="$3"])
lks_line=`printf '  %-12s %-34s %s' "$1" "$lks_line" "$lks_cost" | sed 's/ *$//'`
lks_report="$lks_report$lks_line
"
])

# LKS_REPORT_PRINT - after AC_OUTPUT.
AC_DEFUN([LKS_REPORT_PRINT], [
printf '\n%s %s\n%s\n' "$PACKAGE_NAME" "$PACKAGE_VERSION" "$lks_report"
])

# LKS_OPTIONAL_PKG(VAR, PART, MODULE, WITH-NAME, COST) - an optional library known to pkg-config: --without-WITH-NAME,
# VAR_CFLAGS, VAR_LIBS, HAVE_VAR, a line of the table. --with-WITH-NAME makes it required.
AC_DEFUN([LKS_OPTIONAL_PKG], [
AC_ARG_WITH([$4], [AS_HELP_STRING([--without-$4], [do not use $2])], [], [with_$4=auto])
lks_found=no
AS_IF([test "x$with_$4" != xno], [
  PKG_CHECK_MODULES([$1], [$3], [lks_found=`$PKG_CONFIG --modversion $3`], [lks_found=no])
  AS_IF([test "x$with_$4" = xyes && test "x$lks_found" = xno],
    [AC_MSG_ERROR([$2 was asked for and pkg-config does not know $3])])])
AS_IF([test "x$lks_found" != xno], [AC_DEFINE([HAVE_$1], [1], [$2 is there])])
AM_CONDITIONAL([HAVE_$1], [test "x$lks_found" != xno])
LKS_REPORT([$2], [$lks_found], [$5])
])
