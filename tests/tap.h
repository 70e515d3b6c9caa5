/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tap.h - the vocabulary of the test programs, in TAP. Header only: several files of one program share the count. A
 * program ends itself after LKS_TEST_TIMEOUT seconds (120; 0 = never). Programs of several ranks add tap_mpi.h.
 *
 *   int main(void)
 *   {
 *       plan(2);                                  (or none: done() then prints it)
 *       ok(1 + 1 == 2, "one and %s", "one");
 *       is_int(f(), 3, "f");
 *       return done();
 *   }
 */
#ifndef LKS_TAP_H
#define LKS_TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct tap_state {
    int planned, count, failed;
    int rank;            /* only 0 prints results */
    int (*agree)(int);   /* AND over all ranks; NULL: one process */
    void (*leave)(void); /* before an early exit; NULL: nothing */
} tap_state;
__attribute__((weak)) tap_state tap_ = {-1, 0, 0, 0, 0, 0};

__attribute__((constructor, unused)) static void tap_start_(void)
{
    const char *limit = getenv("LKS_TEST_TIMEOUT");
    long seconds = limit && *limit ? strtol(limit, NULL, 10) : 120;
    if (seconds > 0) alarm((unsigned)seconds); /* SIGALRM ends the program; the driver reports it */
    setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Lines that belong to the last result; other ranks speak on stderr, under their number. */
__attribute__((format(printf, 1, 0), unused)) static inline void tap_vdiag_(const char *format, va_list args)
{
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    for (char *line = text, *end; line; line = end) {
        end = strchr(line, '\n');
        if (end) *end++ = '\0';
        if (tap_.rank == 0) printf("# %s\n", line);
        else fprintf(stderr, "# rank %d: %s\n", tap_.rank, line);
        if (end && !*end) break;
    }
}

__attribute__((format(printf, 1, 2), unused)) static inline void diag(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tap_vdiag_(format, args);
    va_end(args);
}

__attribute__((format(printf, 2, 0), unused)) static inline int tap_vok_(int good, const char *format, va_list args)
{
    int mine = !!good, all = tap_.agree ? tap_.agree(mine) : mine;
    tap_.count++;
    if (!all) tap_.failed++;
    if (tap_.rank == 0) {
        printf("%sok %d - ", all ? "" : "not ", tap_.count);
        vprintf(format, args);
        putchar('\n');
    }
    if (tap_.agree && !mine) diag("result %d failed on this rank", tap_.count);
    return all;
}

/* A result; gives it back (over all ranks). */
__attribute__((format(printf, 2, 3), unused)) static inline int ok(int good, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int all = tap_vok_(good, format, args);
    va_end(args);
    return all;
}

__attribute__((format(printf, 3, 4), unused)) static inline int is_int(int64_t got, int64_t want, const char *format,
                                                                       ...)
{
    va_list args;
    va_start(args, format);
    int all = tap_vok_(got == want, format, args);
    va_end(args);
    if (got != want) diag("got %lld, want %lld", (long long)got, (long long)want);
    return all;
}

__attribute__((format(printf, 3, 4), unused)) static inline int is_str(const char *got, const char *want,
                                                                       const char *format, ...)
{
    int same = got && want ? strcmp(got, want) == 0 : got == want;
    va_list args;
    va_start(args, format);
    int all = tap_vok_(same, format, args);
    va_end(args);
    if (!same) diag("got  \"%s\"\nwant \"%s\"", got ? got : "(null)", want ? want : "(null)");
    return all;
}

/* |got - want| <= tolerance; tolerance 0 compares the values, equal infinities and two NaNs are equal. */
__attribute__((format(printf, 4, 5), unused)) static inline int is_double(double got, double want, double tolerance,
                                                                          const char *format, ...)
{
    int same = got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tolerance;
    va_list args;
    va_start(args, format);
    int all = tap_vok_(same, format, args);
    va_end(args);
    if (!same) diag("got %.17g, want %.17g, tolerance %g", got, want, tolerance);
    return all;
}

/* Says how many results will come; at the start or not at all. */
/* What runs on the test device "far" runs on LKS_TEST_DEVICE in its place, if that is set. */
__attribute__((unused)) static inline const char *tap_device(const char *device)
{
    const char *other = getenv("LKS_TEST_DEVICE");
    return other && *other && !strcmp(device, "far") ? other : device;
}

__attribute__((unused)) static inline void plan(int n)
{
    tap_.planned = n;
    if (tap_.rank == 0) printf("1..%d\n", n);
}

/* Valgrind computes with its own idea of rounding modes, traps and flags: what looks at them cannot be asked there. */
__attribute__((unused)) static inline int emulated(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "vgpreload");
}

/* n results are not tried, for this reason. */
__attribute__((format(printf, 2, 3), unused)) static inline void skip(int n, const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    for (int i = 0; i < n; i++) {
        tap_.count++;
        if (tap_.rank == 0) printf("ok %d # SKIP %s\n", tap_.count, why);
    }
}

/* Nothing of this program can be tried; ends it. Before any result, on every rank. */
__attribute__((format(printf, 1, 2), noreturn, unused)) static inline void skip_all(const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (tap_.rank == 0) printf("1..0 # SKIP %s\n", why);
    fflush(stdout);
    if (tap_.leave) tap_.leave();
    exit(0);
}

/* Going on makes no sense; ends the program, as a failure. */
__attribute__((format(printf, 1, 2), noreturn, unused)) static inline void bail(const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (tap_.rank == 0) printf("Bail out! %s\n", why);
    else fprintf(stderr, "# rank %d: %s\n", tap_.rank, why);
    fflush(NULL);
    exit(1);
}

/* Last call; its value is the exit status. A program without results has failed. */
__attribute__((unused)) static inline int done(void)
{
    if (tap_.planned < 0) plan(tap_.count);
    if (tap_.planned != tap_.count) diag("planned %d results, had %d", tap_.planned, tap_.count);
    if (tap_.failed) diag("%d of %d failed", tap_.failed, tap_.count);
    fflush(stdout);
    return tap_.failed || tap_.planned != tap_.count || tap_.count == 0;
}

#endif
