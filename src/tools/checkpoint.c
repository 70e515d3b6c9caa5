/* SPDX-License-Identifier: BSD-3-Clause
 *
 * checkpoint.c - lockstep checkpoint list|verify|diff.
 */
#include "tools/restore.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static int is_checkpoint(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 3 && !strcmp(d->d_name + n - 3, ".h5");
}

static int list(job *j, const char *name)
{
    char dir[4000], path[4300];
    struct stat st;
    struct dirent **e;
    snprintf(dir, sizeof dir, "%s/checkpoints", name);
    if (stat(dir, &st)) snprintf(dir, sizeof dir, "%s", name);
    int n = scandir(dir, &e, is_checkpoint, by_name), code = 0;
    if (n < 0) return usage_error("%s: no such folder", dir);
    for (int i = 0; i < n; i++) {
        int64_t step = -1;
        const char *task = "?";
        lks_checkpoint *c = NULL;
        snprintf(path, sizeof path, "%s/%s", dir, e[i]->d_name);
        lks_status s = lks_checkpoint_create(j->ctx, &c);
        if (s == LKS_OK) s = lks_checkpoint_peek(c, path);
        if (s == LKS_OK) s = lks_checkpoint_get_i64(c, "step", &step);
        if (s == LKS_OK) s = lks_checkpoint_get_text(c, "task", &task);
        long long bytes = stat(path, &st) ? 0 : (long long)st.st_size;
        if (s == LKS_OK) {
            printf("%s  step %lld  %s  %lld bytes\n", path, (long long)step, task, bytes);
        } else {
            printf("%s  %s\n", path, lks_error(j->ctx));
            lks_error_clear(j->ctx);
            code = EXIT_FAILED;
        }
        lks_checkpoint_destroy(&c);
        free(e[i]);
    }
    free(e);
    if (!n) printf("%s holds no checkpoint\n", dir);
    return code;
}

static int verify(job *j, const char *name)
{
    char path[4096];
    struct stat st;
    if (!stat(name, &st) && S_ISDIR(st.st_mode)) {
        int code = restore_path(j, name, path, sizeof path);
        if (code) return code;
        name = path;
    }
    if (lks_checkpoint_verify(j->ctx, name) != LKS_OK) return job_fail(j, name);
    printf("%s: every checksum agrees\n", name);
    return 0;
}

static int compare_texts(lks_checkpoint *a, lks_checkpoint *b, int *differ)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        char key[64];
        const char *x = "", *y = "";
        snprintf(key, sizeof key, "option.%s", option_name(i));
        lks_checkpoint_get_text(a, key, &x);
        lks_checkpoint_get_text(b, key, &y);
        if (strcmp(x, y)) {
            printf("--%s: %s | %s\n", option_name(i), x, y);
            *differ = 1;
        }
    }
    return 0;
}

static void print_line(void *user, const char *line)
{
    (void)user;
    printf("%s\n", line);
}

static int diff(job *j, const char *first, const char *second)
{
    const char *names[2] = {first, second};
    char path[2][4096];
    lks_checkpoint *c[2] = {NULL, NULL};
    int code = 0, differ = 0;
    for (int i = 0; i < 2 && !code; i++) {
        code = restore_path(j, names[i], path[i], sizeof path[i]);
        if (!code && (lks_checkpoint_create(j->ctx, &c[i]) || lks_checkpoint_peek(c[i], path[i])))
            code = job_fail(j, names[i]);
    }
    if (!code) {
        int64_t step[2] = {-1, -1};
        for (int i = 0; i < 2; i++) lks_checkpoint_get_i64(c[i], "step", &step[i]);
        if (step[0] != step[1]) {
            printf("step: %lld | %lld\n", (long long)step[0], (long long)step[1]);
            differ = 1;
        }
        compare_texts(c[0], c[1], &differ);
        lks_error_clear(j->ctx);
        int64_t n = lks_checkpoint_compare(j->ctx, path[0], path[1], print_line, NULL);
        if (n < 0) code = job_fail(j, "comparing");
        else differ |= n > 0;
    }
    for (int i = 0; i < 2; i++) lks_checkpoint_destroy(&c[i]);
    if (!code && !differ) printf("the same contents\n");
    return code ? code : differ ? EXIT_FAILED : 0;
}

int cmd_checkpoint(int argc, const char **argv)
{
    static options o;
    static job j;
    const char *usage = "lockstep checkpoint list RUN | verify FILE|RUN | diff FILE FILE";
    int code = options_parse(&o, CHECKPOINT, usage, argc, argv, 2);
    if (code) return code;
    const char *what = o.operands ? o.operand[0] : "";
    int want = !strcmp(what, "diff") ? 3 : 2;
    if ((strcmp(what, "list") && strcmp(what, "verify") && strcmp(what, "diff")) || o.operands != want)
        return usage_error("usage: %s", usage);
    if ((code = job_open(&j, &o))) return code;
    if (lks_rank(j.ctx) && !freopen("/dev/null", "w", stdout)) code = EXIT_FAILED; /* one rank speaks */
    if (!strcmp(what, "list")) code = list(&j, o.operand[1]);
    else if (!strcmp(what, "verify")) code = verify(&j, o.operand[1]);
    else code = diff(&j, o.operand[1], o.operand[2]);
    job_close(&j);
    return code;
}
