/* SPDX-License-Identifier: BSD-3-Clause
 *
 * info.c - lockstep info: what a bug report needs; with --ops the table of ops.
 */
#include "tools/tools.h"

#include <stdlib.h>
#include <sys/utsname.h>

static void print_ops(void)
{
    static const char *const policy[] = {"-", "lower", "fp32", "promote", "error"};
    static const char *const order[] = {"-", "once", "any"};
    printf("%-31s %-8s %-8s %-5s %-7s %s\n", "op", "cpu", "cuda", "grad", "dtypes", "inputs; attributes -> outputs");
    for (int i = 0; i < lks_op_count(); i++)
        printf("%-31s %-8s %-8s %-5s %-7s %s\n", lks_op_name(i),
               policy[lks_autocast_policy(lks_op_name(i), LKS_TABLE_CPU)],
               policy[lks_autocast_policy(lks_op_name(i), LKS_TABLE_CUDA)], order[lks_op_order(i)],
               lks_op_integers(i) ? "all" : "floats", lks_op_schema(i));
}

int cmd_info(int argc, const char **argv)
{
    static options o;
    static job j;
    int code = options_parse(&o, INFO, "lockstep info [--ops]", argc, argv, 2);
    if (code) return code;
    if (o.operands) return usage_error("unexpected word \"%s\"", o.operand[0]);
    if (o.v[OPT_ops].whole) {
        if (speaks()) print_ops();
        return 0;
    }
    code = job_open(&j, &o);
    /* What a bug report needs is wanted all the more when the device fails. */
    if (code && !opt_given(&o, device) && !options_set(&o, OPT_device, "cpu", 0)) code = job_open(&j, &o);
    if (code) return code;
    if (lks_rank(j.ctx) == 0) {
        struct utsname u;
        for (int i = 0; i < lks_build_count(); i++) printf("%-14s %s\n", lks_build_name(i), lks_build_value(i));
        char library[MPI_MAX_LIBRARY_VERSION_STRING];
        int n;
        MPI_Get_library_version(library, &n);
        printf("%-14s %.60s\n", "MPI at run", library);
        if (!uname(&u)) printf("%-14s %s %s %s\n", "system", u.sysname, u.release, u.machine);
        printf("device %-7s %s\n", lks_device_name(j.ctx), lks_device_description(j.ctx));
        char cuda[2048];
        printf("%-14s %s%s\n", "device cuda", lks_device_probe("cuda", cuda, sizeof cuda) ? "" : "none: ", cuda);
        printf("%-14s %d, on this node %d\n", "ranks", lks_size(j.ctx), lks_local_size(j.ctx));
        printf("%-14s %s\n", "transport", lks_transport(j.ctx));
    }
    job_close(&j);
    return 0;
}
