/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plot.c - lockstep plot: metrics.jsonl of one or many runs as a PNG. jansson reads, gnuplot draws.
 */
#include "tools/tools.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOSS, VALID, LR, SCALE, SPEED, SKIPPED, COLUMNS };
static const char *const keys[COLUMNS] = {"loss", "valid_loss", "lr", "scale", "samples_per_s", "skipped"};

/* One gnuplot data block: step and the columns, "?" where a line has none. */
static int data_block(FILE *f, const char *dir, int index, int *has)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *in = fopen(path, "r");
    if (!in) return usage_error("%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    int rows = 0;
    fprintf(f, "$run%d << EOD\n", index);
    while (getline(&line, &room, in) > 0) {
        json_t *o = json_loads(line, 0, NULL), *s = json_object_get(o, "step");
        if (json_is_integer(s)) {
            fprintf(f, "%lld", (long long)json_integer_value(s));
            for (int c = 0; c < COLUMNS; c++) {
                json_t *v = json_object_get(o, keys[c]);
                if (json_is_number(v)) {
                    fprintf(f, " %.9g", json_number_value(v));
                    has[c] = has[c] || c != SCALE || json_number_value(v) != 1;
                } else {
                    fprintf(f, " ?"); /* lines go on over what a row does not have */
                }
            }
            fprintf(f, "\n");
            rows++;
        }
        json_decref(o);
    }
    fprintf(f, "EOD\n");
    free(line);
    fclose(in);
    return rows ? 0 : usage_error("%s has no lines of metrics", path);
}

/* Text between double quotes for gnuplot. */
static void quoted(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (strchr("\"\\`$", *text)) fputc('\\', f);
        if ((unsigned char)*text >= 32) fputc(*text, f);
    }
    fputc('"', f);
}

static void panel(FILE *f, int n, const char **dirs, const char *title, const char *extra, int first, int second)
{
    fprintf(f, "set title \"%s\" font \",11\" offset 0,-0.5\n%s\nplot ", title, extra);
    for (int i = 0; i < n; i++) {
        fprintf(f, "%s$run%d using 1:%d with lines lw %s lc %d title ", i ? ", " : "", i, first + 2,
                second >= 0 ? "1" : "2", i + 1);
        char text[300];
        snprintf(text, sizeof text, n > 1 ? "%s" : "%s", n > 1 ? dirs[i] : second >= 0 ? "training" : "");
        quoted(f, text);
        if (second >= 0) {
            fprintf(f, ", $run%d using 1:%d with linespoints lw 2 pt 7 ps 0.6 lc %d title ", i, second + 2,
                    n > 1 ? i + 1 : 2);
            quoted(f, n > 1 ? "" : "validation");
        }
    }
    fprintf(f, "\nunset logscale y\n");
}

int plot_runs(int n, const char **dirs, const char *image)
{
    char script[4096];
    const char *folder = getenv("TMPDIR");
    int probe = open(image, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (probe < 0) {
        fprintf(stderr, "lockstep: no plot: %s: %s\n", image, strerror(errno));
        return EXIT_FAILED;
    }
    close(probe);
    snprintf(script, sizeof script, "%.4000s/lockstep-plot-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkstemp(script), has[COLUMNS] = {0}, code = 0;
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) return usage_error("%s: %s", script, strerror(errno));
    for (int i = 0; i < n && !code; i++) code = data_block(f, dirs[i], i, has);
    int panels = 2 + (has[SCALE] != 0) + (has[SPEED] != 0);
    fprintf(f, "set terminal png size 1000,%d font \"sans,10\" noenhanced\nset output ", panels > 2 ? 760 : 420);
    quoted(f, image);
    fprintf(f,
            "\nset datafile missing \"?\"\nset multiplot layout %d,2\nset grid lc rgb \"#dddddd\"\nset key top "
            "right\nset xlabel \"step\" offset 0,0.5\n"
            "set border 3\nset tics nomirror\n",
            panels > 2 ? 2 : 1);
    panel(f, n, dirs, "loss", "set format y \"%g\"", LOSS, VALID);
    panel(f, n, dirs, "learning rate", "", LR, -1);
    if (has[SPEED]) panel(f, n, dirs, "samples per second", "set yrange [0:*]", SPEED, -1);
    if (has[SCALE]) panel(f, n, dirs, "loss scale", "set yrange [*:*]\nset logscale y 2", SCALE, -1);
    fprintf(f, "unset multiplot\n");
    if (fclose(f)) code = usage_error("%s: %s", script, strerror(errno));
    if (!code) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stderr)) _exit(126);
            execlp("gnuplot", "gnuplot", script, (char *)NULL);
            _exit(127);
        }
        int status = 0;
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
            fprintf(stderr, pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 127
                                ? "lockstep: no plot: gnuplot is not installed (Debian: gnuplot-nox)\n"
                                : "lockstep: no plot: gnuplot failed\n");
            code = EXIT_FAILED;
        }
    }
    unlink(script);
    struct stat st;
    if (code && !stat(image, &st) && S_ISREG(st.st_mode) && !st.st_size) unlink(image);
    return code;
}

int cmd_plot(int argc, const char **argv)
{
    static options o;
    int code = options_parse(&o, PLOT, "lockstep plot RUN... [--image FILE]", argc, argv, 2);
    if (code) return code;
    if (!o.operands) return usage_error("plot needs at least one run folder");
    if (!speaks()) return 0; /* one rank draws */
    char image[4096];
    if (opt_given(&o, image)) snprintf(image, sizeof image, "%s", opt_text(&o, image));
    else snprintf(image, sizeof image, "%s/loss.png", o.operand[0]);
    if ((code = plot_runs(o.operands, o.operand, image))) return code;
    printf("%s\n", image);
    return 0;
}
