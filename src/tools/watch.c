/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch.c - lockstep watch: follows metrics.jsonl of a run in the terminal until the run ends. Reads files only, so it
 * works from any machine that sees the folder, also on a run that was resumed or has not begun. A terminal gets one
 * line that is drawn anew and cut to its width, a pipe a line for each of the file.
 */
#include "tools/tools.h"

#include <errno.h>
#include <jansson.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAST 24  /* losses in the curve */
#define POLL 300 /* ms */

typedef struct watch {
    char dir[3000], path[3072], state[16];
    FILE *f;
    dev_t device;
    ino_t file;
    int64_t steps, step, began; /* asked for; seen; first seen by this watch */
    double loss[PAST], valid, seconds, began_seconds, rate;
    int losses, has_valid, terminal, utf8, live, alive; /* alive: 1 the process is there, 0 it is not, -1 not known */
} watch;

/* Eighths of a block, or signs of plain ASCII, from the lowest to the highest of the last losses. */
static void curve(const watch *w, char *text)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, *const plain[] = {"_", ".", ",", "-",
                                                                                                    "~", "=", "*", "#"};
    double low = w->loss[0], high = low;
    text[0] = 0;
    for (int i = 1; i < w->losses; i++) {
        if (w->loss[i] < low) low = w->loss[i];
        if (w->loss[i] > high) high = w->loss[i];
    }
    for (int i = 0; i < w->losses && w->losses > 1; i++) {
        int k = high > low ? (int)(7.99 * (w->loss[i] - low) / (high - low)) : 0;
        strcat(text, w->utf8 ? blocks[k] : plain[k]);
    }
}

/* The first `columns` characters; a character of UTF-8 may have several bytes. */
static int cut(const char *text, int columns)
{
    int n = 0;
    for (; text[n]; n++)
        if (((unsigned char)text[n] & 0xc0) != 0x80 && columns-- == 0) break;
    return n;
}

static void draw(watch *w)
{
    char line[600], past[PAST * 4 + 1];
    int n = 0, room = (int)sizeof line;
    if (w->steps > 0)
        n += snprintf(line + n, (size_t)(room - n), "%3.0f %%  ", 100.0 * (double)w->step / (double)w->steps);
    n += snprintf(line + n, (size_t)(room - n), "step %lld", (long long)w->step);
    if (w->steps > 0) n += snprintf(line + n, (size_t)(room - n), "/%lld", (long long)w->steps);
    if (w->losses) n += snprintf(line + n, (size_t)(room - n), "  loss %.4f", w->loss[w->losses - 1]);
    if (w->has_valid) n += snprintf(line + n, (size_t)(room - n), "  valid %.4f", w->valid);
    double each = w->step > w->began ? (w->seconds - w->began_seconds) / (double)(w->step - w->began) : 0;
    if (each > 0 && w->steps > w->step) {
        double left = each * (double)(w->steps - w->step);
        if (left < 3600) n += snprintf(line + n, (size_t)(room - n), "  %d:%02d left", (int)left / 60, (int)left % 60);
        else n += snprintf(line + n, (size_t)(room - n), "  %.1f h left", left / 3600);
    }
    curve(w, past);
    if (past[0]) n += snprintf(line + n, (size_t)(room - n), "  %s", past);
    if (w->rate > 0) snprintf(line + n, (size_t)(room - n), "  %.0f samples/s", w->rate);
    if (w->terminal) printf("\r%.*s\033[K", cut(line, run_width() - 1), line);
    else printf("%s\n", line);
    fflush(stdout);
    w->live = w->terminal;
}

static void end_line(watch *w)
{
    if (w->live) printf("\n");
    w->live = 0;
}

static int take(watch *w, const char *text)
{
    json_t *o = json_loads(text, 0, NULL), *step = json_object_get(o, "step"), *v;
    if (!json_is_integer(step)) {
        json_decref(o);
        return 0;
    }
    w->step = json_integer_value(step);
    if (json_is_number(v = json_object_get(o, "loss"))) {
        if (w->losses == PAST) memmove(w->loss, w->loss + 1, (PAST - 1) * sizeof *w->loss);
        else w->losses++;
        w->loss[w->losses - 1] = json_number_value(v);
    }
    if (json_is_number(v = json_object_get(o, "valid_loss"))) w->has_valid = 1, w->valid = json_number_value(v);
    if (json_is_number(v = json_object_get(o, "samples_per_s"))) w->rate = json_number_value(v);
    w->seconds = json_number_value(json_object_get(o, "seconds"));
    if (w->began < 0) w->began = w->step, w->began_seconds = w->seconds;
    json_decref(o);
    return 1;
}

/* The file may be cut and replaced when a run is resumed. */
static void reopen(watch *w)
{
    struct stat st;
    if (stat(w->path, &st)) return;
    if (w->f && st.st_ino == w->file && st.st_dev == w->device && st.st_size >= ftell(w->f)) return;
    if (w->f) fclose(w->f);
    w->losses = w->has_valid = 0;
    w->began = -1;
    w->device = st.st_dev, w->file = st.st_ino;
    w->f = fopen(w->path, "r");
}

/* Lines that are there whole; returns their number. */
static int follow(watch *w)
{
    static char *line;
    static size_t room;
    int rows = 0;
    reopen(w);
    for (;;) {
        long at = w->f ? ftell(w->f) : -1;
        if (at < 0) return rows;
        clearerr(w->f);
        ssize_t n = getline(&line, &room, w->f);
        if (n <= 0 || line[n - 1] != '\n') { /* half a line: next time */
            fseek(w->f, at, SEEK_SET);
            return rows;
        }
        if (!take(w, line)) continue;
        rows++;
        if (!w->terminal) draw(w);
    }
}

static void read_run(watch *w)
{
    char path[3072], host[256] = "";
    snprintf(path, sizeof path, "%s/run.json", w->dir);
    json_t *o = json_load_file(path, 0, NULL);
    const char *state = json_string_value(json_object_get(o, "state"));
    const char *where = json_string_value(json_object_get(o, "host"));
    int64_t pid = json_integer_value(json_object_get(o, "pid"));
    snprintf(w->state, sizeof w->state, "%.15s", state ? state : "");
    w->steps = json_integer_value(json_object_get(o, "steps"));
    gethostname(host, sizeof host - 1);
    w->alive = !where || strcmp(where, host) || pid < 1 ? -1 : !kill((pid_t)pid, 0) || errno == EPERM;
    json_decref(o);
}

int cmd_watch(int argc, const char **argv)
{
    static options o;
    static watch w = {.began = -1};
    struct stat st;
    int code = options_parse(&o, WATCH, "lockstep watch RUN [--once]", argc, argv, 2);
    if (code) return code;
    if (o.operands != 1) return usage_error("watch needs one run folder");
    if (stat(o.operand[0], &st) || !S_ISDIR(st.st_mode)) return usage_error("%s: no such folder", o.operand[0]);
    if (strlen(o.operand[0]) >= sizeof w.dir) return usage_error("the folder's name is too long");
    if (!speaks()) return 0;
    snprintf(w.dir, sizeof w.dir, "%s", o.operand[0]);
    snprintf(w.path, sizeof w.path, "%s/metrics.jsonl", w.dir);
    setlocale(LC_CTYPE, "");
    w.utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
    w.terminal = isatty(STDOUT_FILENO);
    signals_install();
    for (int waiting = 0, gone = 0; !signals_stop();) {
        read_run(&w); /* before the lines: what was written before the end is seen */
        int rows = follow(&w);
        if (rows && w.terminal) draw(&w);
        if (o.v[OPT_once].whole) break;
        if (!rows && (!strcmp(w.state, "done") || !strcmp(w.state, "stopped") || !strcmp(w.state, "failed"))) break;
        if (!rows && w.alive == 0 && gone++ > 2) break; /* its last words may be on their way */
        if (!w.f && !waiting++ && w.terminal) {
            printf("waiting for %s", w.path);
            fflush(stdout);
            w.live = 1;
        }
        struct timespec t = {0, POLL * 1000000};
        nanosleep(&t, NULL);
    }
    end_line(&w);
    if (o.v[OPT_once].whole) return w.step || w.f ? 0 : usage_error("%s has no metrics yet", w.dir);
    if (signals_stop()) return 0;
    int failed = !strcmp(w.state, "failed");
    if (!strcmp(w.state, "running"))
        printf("the run has ended without a word: it was killed at or after step %lld\n", (long long)w.step);
    else printf("%s at step %lld\n", w.state, (long long)w.step);
    return failed || !strcmp(w.state, "running") ? EXIT_FAILED : 0;
}
