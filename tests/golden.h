/* SPDX-License-Identifier: BSD-3-Clause
 *
 * golden.h - reads the golden files of tests/golden (make.py says what is in them) and measures distances to them.
 */
#ifndef LKS_GOLDEN_H
#define LKS_GOLDEN_H

#include "h5/h5.h"
#include "tap.h"
#include <lockstep.h>

#define GOLDEN_UNUSED __attribute__((unused))
#define GOLDEN_PATH 200
#define GOLDEN_TEXT 600

typedef struct golden {
    lksi_base base;
    lksi_h5 *f;
    char file[1024];
} golden;

/* A path, in one of four places that take turns. */
__attribute__((format(printf, 1, 2))) GOLDEN_UNUSED static const char *pathf(const char *format, ...)
{
    static char place[4][1024];
    static int turn;
    va_list args;
    va_start(args, format);
    vsnprintf(place[turn = (turn + 1) % 4], sizeof place[0], format, args);
    va_end(args);
    return place[turn];
}

/* A file of the source tree: make check says where that is; by hand, the build folder lies in it. */
GOLDEN_UNUSED static const char *source_file(const char *name)
{
    const char *dir = getenv("LKS_SRCDIR");
    return pathf("%s/%s", dir && *dir ? dir : "..", name);
}

GOLDEN_UNUSED static void golden_open(golden *g, const char *name)
{
    char made[200];
    memset(g, 0, sizeof *g);
    snprintf(g->file, sizeof g->file, "%s", source_file(pathf("tests/golden/%s", name)));
    if (lksi_h5_open(&g->base, "golden", g->file, &g->f) != LKS_OK) bail("%s", g->base.text);
    if (lksi_h5_get_text(g->f, "/", "made_with", made, sizeof made) == LKS_OK) diag("%s: made with %s", name, made);
}

GOLDEN_UNUSED static void golden_text(golden *g, const char *path, const char *name, char text[GOLDEN_TEXT])
{
    if (lksi_h5_get_text(g->f, path, name, text, GOLDEN_TEXT) != LKS_OK) bail("%s", g->base.text);
}

/* All elements as double, to be freed; *n of them. Integers come exactly. */
GOLDEN_UNUSED static double *golden_values(golden *g, const char *path, int64_t *n)
{
    lksi_h5_info info;
    if (lksi_h5_describe(g->f, path, &info) != LKS_OK) bail("%s", g->base.text);
    double *v = malloc((size_t)(info.numel + 1) * sizeof *v);
    int64_t rows = info.ndim ? info.shape[0] : 1;
    if (info.numel && lksi_h5_read_rows(g->f, path, 0, rows, LKS_F64, v) != LKS_OK) bail("%s", g->base.text);
    *n = info.numel;
    return v;
}

/* The numbers of a dataset as a tensor of dtype, or of the file's own (bytes are BOOL) for LKS_DTYPE_NONE. */
GOLDEN_UNUSED static lks_tensor *golden_tensor(golden *g, lks_context *ctx, const char *path, lks_dtype dtype)
{
    lksi_h5_info info;
    int64_t n;
    if (lksi_h5_describe(g->f, path, &info) != LKS_OK) bail("%s", g->base.text);
    double *v = golden_values(g, path, &n);
    if (dtype == LKS_DTYPE_NONE)
        dtype = info.kind == LKSI_H5_FLOAT ? LKS_F32 : info.size == 1 ? LKS_BOOL : info.size == 4 ? LKS_I32 : LKS_I64;
    lks_tensor *t = lks_to(lks_from_host(ctx, LKS_F64, info.ndim, info.shape, v), dtype);
    free(v);
    return t;
}

/* --- "name=1 other=2.5 list=3,4" --- */

GOLDEN_UNUSED static const char *arg_at(const char *args, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = args; (p = strstr(p, name)); p += n)
        if ((p == args || p[-1] == ' ') && p[n] == '=') return p + n + 1;
    return NULL;
}

GOLDEN_UNUSED static double arg(const char *args, const char *name)
{
    const char *p = arg_at(args, name);
    if (!p) bail("\"%s\" has no %s", args, name);
    return strtod(p, NULL);
}

GOLDEN_UNUSED static int arg_int(const char *args, const char *name)
{
    return (int)arg(args, name);
}

/* How many numbers the list has. */
GOLDEN_UNUSED static int arg_list(const char *args, const char *name, int64_t list[LKS_MAX_DIMS])
{
    const char *p = arg_at(args, name);
    int n = 0;
    if (!p) bail("\"%s\" has no %s", args, name);
    while (*p && *p != ' ' && n < LKS_MAX_DIMS) {
        char *end;
        list[n++] = strtoll(p, &end, 10);
        p = *end == ',' ? end + 1 : end;
    }
    return n;
}

/* The i-th word of a text, as a string of its own. */
GOLDEN_UNUSED static const char *word(const char *text, int i, char *out, int bytes)
{
    while (*text == ' ') text++;
    for (; i > 0 && *text; i--) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    snprintf(out, (size_t)bytes, "%.*s", (int)strcspn(text, " "), text);
    return out;
}

/* --- distances --- */

/* Distance of neighbours of dtype at |x|; that of denormals for 0. */
GOLDEN_UNUSED static double ulp_at(double x, lks_dtype dtype)
{
    static const struct { lks_dtype dtype; int digits, least; } kind[] = {
        {LKS_F64, 53, -1074}, {LKS_F32, 24, -149}, {LKS_F16, 11, -24}, {LKS_BF16, 8, -133}};
    int e;
    frexp(fabs(x), &e);
    for (int i = 0; i < 4; i++)
        if (kind[i].dtype == dtype) {
            int p = e - kind[i].digits;
            return ldexp(1, x == 0 || p < kind[i].least ? kind[i].least : p);
        }
    return 0;
}

/* Largest |got - want| in ulps of the largest |want| (*top) and of the element itself (*each). unit LKS_DTYPE_NONE:
 * exact or infinite. What is not finite must be the same. */
GOLDEN_UNUSED static void distances(const double *got, const double *want, int64_t n, lks_dtype unit, double *top,
                                    double *each)
{
    double largest = 0;
    *top = *each = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > largest) largest = fabs(want[i]);
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        if (unit == LKS_DTYPE_NONE || !isfinite(got[i]) || !isfinite(want[i])) {
            *top = *each = INFINITY;
            return;
        }
        double d = fabs(got[i] - want[i]);
        *top = fmax(*top, d / ulp_at(largest, unit));
        *each = fmax(*each, d / ulp_at(want[i], unit));
    }
}

#endif
