/* SPDX-License-Identifier: BSD-3-Clause
 *
 * run.c - the folder of a run as rank 0 writes it: run.json, metrics.jsonl, the progress line.
 */
#include "tools/tools.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    FILE *metrics;
    int terminal, live; /* live: a progress line is on the screen */
    json_t *last;       /* line of the step that was resumed from, if it lacks a validation */
    double before;      /* seconds of training before the resume */
} run;

int run_used(const char *dir)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!stat(path, &st)) return 1;
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    return !stat(path, &st);
}

static int make_dirs(const char *path)
{
    char p[4096];
    if (snprintf(p, sizeof p, "%s", path) >= (int)sizeof p) return ENAMETOOLONG;
    for (char *c = p + 1;; c++)
        if (*c == '/' || !*c) {
            char was = *c;
            *c = 0;
            if (mkdir(p, 0777) && errno != EEXIST) return errno;
            if (!(*c = was)) break;
        }
    struct stat st;
    if (stat(path, &st)) return errno;
    return S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
}

static json_t *setting(const options *o, int id)
{
    const option_value *v = &o->v[id];
    char text[8192];
    json_t *list;
    if (v->from < 0) return json_null();
    switch (option_kind(id)) {
    case LIST:
        list = json_array();
        for (int k = 0; k < v->count; k++) json_array_append_new(list, json_string(v->list[k]));
        return list;
    case WHOLE: return json_integer(v->whole);
    case REAL: return json_real(v->real);
    case FLAG: return json_boolean(v->whole);
    default: return json_string(option_text(o, id, text, sizeof text));
    }
}

/* Takes root. */
static int write_run(json_t *root, const char *dir)
{
    char path[4096], temporary[4200];
    snprintf(path, sizeof path, "%s/run.json", dir);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    errno = 0;
    int bad = json_dump_file(root, temporary, JSON_INDENT(2)) || rename(temporary, path);
    json_decref(root);
    return bad ? errno ? errno : EIO : 0;
}

static int write_settings(job *j, const char *dir, int64_t steps)
{
    char host[256] = "";
    json_t *root = json_object(), *set = json_object(), *built = json_object();
    for (int i = 0; i < OPT_COUNT; i++)
        if (option_applies(i, j->task)) json_object_set_new(set, option_name(i), setting(j->o, i));
    for (int i = 0; i < lks_build_count(); i++)
        json_object_set_new(built, lks_build_name(i), json_string(lks_build_value(i)));
    json_object_set_new(root, "task", json_string(job_task_name(j->task)));
    json_object_set_new(root, "ranks", json_integer(lks_size(j->ctx)));
    json_object_set_new(root, "device", json_string(lks_device_description(j->ctx)));
    json_object_set_new(root, "parameters", json_integer(lks_params_numel(j->ps)));
    json_object_set_new(root, "options", set);
    json_object_set_new(root, "build", built);
    /* For lockstep watch. */
    gethostname(host, sizeof host - 1);
    json_object_set_new(root, "steps", json_integer(steps));
    json_object_set_new(root, "state", json_string("running"));
    json_object_set_new(root, "host", json_string(host));
    json_object_set_new(root, "pid", json_integer(getpid()));
    return write_run(root, dir);
}

void run_ended(const char *dir, const char *state)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/run.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root) return;
    json_object_set_new(root, "state", json_string(state));
    int error = write_run(root, dir);
    if (error) fprintf(stderr, "lockstep: run.json: %s\n", strerror(error));
}

/* Keeps the lines of steps up to `step`: what came after belongs to a future that was lost. */
static int cut_metrics(const char *path, int64_t step)
{
    char temporary[4200];
    FILE *in = fopen(path, "r");
    if (!in) return errno == ENOENT ? 0 : errno;
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *out = fopen(temporary, "w");
    int error = out ? 0 : errno;
    char *line = NULL;
    size_t room = 0;
    while (out && getline(&line, &room, in) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        json_t *s = json_object_get(o, "step");
        if (json_is_integer(s) && json_integer_value(s) <= step) {
            if (fputs(line, out) < 0) error = errno;
            run.before = json_number_value(json_object_get(o, "seconds"));
        }
        if (json_is_integer(s) && json_integer_value(s) == step && !json_object_get(o, "valid_loss") && !run.last)
            run.last = json_incref(o);
        json_decref(o);
    }
    free(line);
    fclose(in);
    if (out && (fflush(out) || fsync(fileno(out)) || fclose(out))) error = errno;
    if (!error && rename(temporary, path)) error = errno;
    return error;
}

/* Open MPI gives ranks a terminal of their own: what counts is where the launcher, our parent, writes to. */
static int on_terminal(void)
{
    char link[64], target[256];
    if (!isatty(STDOUT_FILENO)) return 0;
    if (!getenv("OMPI_COMM_WORLD_RANK")) return 1;
    snprintf(link, sizeof link, "/proc/%ld/fd/1", (long)getppid());
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < 0) return 1;
    target[n] = 0;
    return !strncmp(target, "/dev/pts/", 9) || !strncmp(target, "/dev/tty", 8) || !strncmp(target, "/dev/console", 12);
}

/* Columns of the terminal: its own word, that of the launcher's, COLUMNS, else 80. */
int run_width(void)
{
    struct winsize w = {0, 0, 0, 0};
    char path[64];
    const char *columns = getenv("COLUMNS");
    if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col > 1) return w.ws_col;
    snprintf(path, sizeof path, "/proc/%ld/fd/1", (long)getppid());
    int fd = getenv("OMPI_COMM_WORLD_RANK") ? open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC) : -1;
    int known = fd >= 0 && !ioctl(fd, TIOCGWINSZ, &w) && w.ws_col > 1;
    if (fd >= 0) close(fd);
    return known ? w.ws_col : columns && atoi(columns) > 1 ? atoi(columns) : 80;
}

int run_open(job *j, const char *dir, int fresh, int64_t from_step, int64_t steps)
{
    char path[4096];
    int error = make_dirs(dir);
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    if (!error) error = make_dirs(path);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!error && !fresh) error = cut_metrics(path, from_step);
    if (!error) error = write_settings(j, dir, steps);
    if (!error && !(run.metrics = fopen(path, fresh ? "w" : "a"))) error = errno;
    run.terminal = on_terminal();
    if (error) fprintf(stderr, "lockstep: --out %s: %s\n", dir, strerror(error));
    return error ? EXIT_FAILED : 0;
}

static json_t *number(double v)
{
    return v - v == 0 ? json_real(v) : json_null();
}

/* Takes o. */
static int write_line(json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_PRESERVE_ORDER);
    int bad = !text || fprintf(run.metrics, "%s\n", text) < 0 || fflush(run.metrics);
    free(text);
    json_decref(o);
    if (bad) fprintf(stderr, "lockstep: metrics.jsonl: %s\n", strerror(errno));
    return bad ? EXIT_FAILED : 0;
}

int run_log(const metrics *m)
{
    json_t *o = json_object();
    json_object_set_new(o, "step", json_integer(m->step));
    json_object_set_new(o, "loss", number(m->loss));
    if (m->has_valid) json_object_set_new(o, "valid_loss", number(m->valid_loss));
    if (m->has_valid && m->score) json_object_set_new(o, m->score, number(m->valid_score));
    json_object_set_new(o, "lr", number(m->lr));
    json_object_set_new(o, "scale", number(m->scale));
    json_object_set_new(o, "skipped", json_integer(m->skipped));
    json_object_set_new(o, "grad_norm", number(m->grad_norm));
    json_object_set_new(o, "samples_per_s", number(m->samples_per_s));
    if (m->has_tokens) json_object_set_new(o, "tokens_per_s", number(m->tokens_per_s));
    json_object_set_new(o, "seconds", number(run.before + m->seconds));
    return write_line(o);
}

int run_lacks_valid(int64_t step)
{
    return run.last && json_integer_value(json_object_get(run.last, "step")) == step;
}

int run_add_valid(const char *dir, int64_t step, double loss, double score, const char *name)
{
    char path[4096];
    json_object_set_new(run.last, "valid_loss", number(loss));
    if (name) json_object_set_new(run.last, name, number(score));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    fclose(run.metrics);
    int error = cut_metrics(path, step - 1);
    run.metrics = fopen(path, "a");
    if (!error && !run.metrics) error = errno;
    if (error) fprintf(stderr, "lockstep: metrics.jsonl: %s\n", strerror(error));
    json_t *o = run.last;
    run.last = NULL;
    if (!error) return write_line(o);
    json_decref(o);
    return EXIT_FAILED;
}

void run_progress(const metrics *m, int64_t total, double left, int validated)
{
    char line[256];
    int n = snprintf(line, sizeof line, "step %lld/%lld  loss %.4f", (long long)m->step, (long long)total, m->loss);
    if (validated) n += snprintf(line + n, sizeof line - (size_t)n, "  valid %.4f", m->valid_loss);
    if (validated && m->score)
        n += snprintf(line + n, sizeof line - (size_t)n, " (%s%.2f %%)",
                      !strcmp(m->score, "valid_error") ? "error " : "", 100 * m->valid_score);
    if (m->has_tokens) n += snprintf(line + n, sizeof line - (size_t)n, "  %.0f tokens/s", m->tokens_per_s);
    else n += snprintf(line + n, sizeof line - (size_t)n, "  %.0f samples/s", m->samples_per_s);
    if (m->scale != 1) n += snprintf(line + n, sizeof line - (size_t)n, "  scale %g", m->scale);
    if (m->skipped) n += snprintf(line + n, sizeof line - (size_t)n, "  skipped %lld", (long long)m->skipped);
    snprintf(line + n, sizeof line - (size_t)n, "  %d:%02d left", (int)(left / 60), (int)left % 60);
    if (run.terminal) {
        printf("\r%.*s\033[K", run_width() - 1, line);
        run.live = 1;
        if (validated) {
            printf("\n");
            run.live = 0;
        }
    } else {
        printf("%s\n", line);
    }
    fflush(stdout);
}

void run_close(void)
{
    if (run.live) printf("\n");
    if (run.metrics) fclose(run.metrics);
    json_decref(run.last);
    run.metrics = NULL;
    run.last = NULL;
    run.live = 0;
}
