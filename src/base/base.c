/* SPDX-License-Identifier: BSD-3-Clause
 *
 * base.c - the first error, the log, the clock, and points where a test kills the process. Nothing here prints by
 * itself or ends the process unless LKS_FAULT asks for it.
 */
#include "base/base.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

lks_status lksi_vfail(lksi_base *b, lks_status code, const char *where, const char *format, va_list args)
{
    if (code == LKS_OK) code = LKS_ERR_INTERNAL;
    if (!b || b->code != LKS_OK) return code;
    /* By way of a buffer: the arguments may point into the text of an error that was cleared. */
    char text[LKSI_TEXT];
    int n = snprintf(text, sizeof text, "rank %d: %s%s", b->rank, where ? where : "", where ? ": " : "");
    if (n >= 0 && n < LKSI_TEXT) vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    memcpy(b->text, text, sizeof text);
    b->text[LKSI_TEXT - 1] = 0;
    b->code = code;
    return code;
}

lks_status lksi_fail(lksi_base *b, lks_status code, const char *where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    code = lksi_vfail(b, code, where, format, args);
    va_end(args);
    return code;
}

lks_status lksi_said(lksi_base *b, lks_status s, const char *where, const char *who)
{
    if (s == LKS_OK) return s;
    return lksi_fail(b, s, where, "%s ended with status %d (%s) and no text: lks_error_raise gives one", who, (int)s,
                     lks_status_name(s));
}

void lksi_log(lksi_base *b, int level, const char *format, ...)
{
    if (!b || !b->log) return;
    char line[LKSI_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    line[strcspn(line, "\n")] = 0;
    b->log(b->log_user, level, line);
}

double lksi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *const fault_points[] = {"after-reduce",  "before-rename", "before-update", "mid-write",
                                           "before-fsync", "after-rename",  "prune",         "evaluation"};

/* Reads LKS_FAULT and LKS_FAULT_RANK; returns the state. A setting that means nothing is said, so that no test passes
 * by killing nobody. */
static int fault_read(lksi_base *b)
{
    const char *setting = getenv("LKS_FAULT"), *rank = getenv("LKS_FAULT_RANK");
    if (!setting || !*setting) return 1;
    int stop = !strncmp(setting, "stop:", 5);
    const char *point = !stop && strncmp(setting, "kill:", 5) ? NULL : setting + 5,
               *at = point ? strchr(point, '@') : NULL;
    char *end = NULL;
    long long n = at ? strtoll(at + 1, &end, 10) : 0;
    size_t length = at ? (size_t)(at - point) : 0;
    int known = 0;
    for (size_t i = 0; at && i < sizeof fault_points / sizeof *fault_points; i++)
        known |= strlen(fault_points[i]) == length && !memcmp(fault_points[i], point, length);
    if (!known || n < 1 || *end || length >= sizeof b->fault_point) {
        lksi_log(b, LKS_LOG_WARNING, "LKS_FAULT=%s is not kill:POINT@N or stop:POINT@N with a known POINT: ignored",
                 setting);
        return 1;
    }
    long victim = 0;
    if (rank && *rank) {
        victim = strtol(rank, &end, 10);
        if (*end || victim < 0) {
            lksi_log(b, LKS_LOG_WARNING, "LKS_FAULT_RANK=%s is not a rank: LKS_FAULT is ignored", rank);
            return 1;
        }
    }
    if (victim != b->rank) return 1;
    memcpy(b->fault_point, point, length);
    b->fault_point[length] = 0;
    b->fault_left = n;
    return stop ? 3 : 2;
}

void lksi_fault_point(lksi_base *b, const char *point)
{
    if (b->fault_state == 1) return;
    if (b->fault_state == 0) b->fault_state = fault_read(b);
    if (b->fault_state < 2 || strcmp(point, b->fault_point)) return;
    if (--b->fault_left == 0) kill(getpid(), b->fault_state == 3 ? SIGUSR1 : SIGKILL);
}
