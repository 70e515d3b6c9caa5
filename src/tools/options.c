/* SPDX-License-Identifier: BSD-3-Clause
 *
 * options.c - options.def as a popt table (command line) and a libconfuse table (configuration file). Both hand over
 * text; one function checks and stores it, so an error reads the same wherever the value came from.
 */
#include "tools/tools.h"

#include <confuse.h>
#include <ctype.h>
#include <errno.h>
#include <popt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES (1 << 20)

typedef struct row {
    const char *name;
    int kind, commands;
    const char *preset;
    double min, max;
    const char *arg, *help;
} row;

static const row rows[OPT_COUNT] = {
#define OPTION(id, name, kind, commands, preset, min, max, arg, help)                                                  \
    {name, kind, commands, preset, min, max, arg, help},
#include "tools/options.def"
#undef OPTION
};

const char *option_name(int id) { return rows[id].name; }
int option_kind(int id) { return rows[id].kind; }
int option_is_shape(int id) { return (rows[id].commands & SHAPE) != 0; }
int option_applies(int id, int command) { return (rows[id].commands & command) != 0; }

int speaks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (int i = 0; i < 4; i++) {
        const char *v = getenv(names[i]);
        if (v) return atoi(v) == 0;
    }
    return 1;
}

int usage_error(const char *format, ...)
{
    if (speaks()) {
        va_list args;
        va_start(args, format);
        fputs("lockstep: ", stderr);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
    }
    return EXIT_USAGE;
}

/* --- values --- */

static int is_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (const char *w = words; w && *w; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL)
        if (n && !strncmp(w, text, n) && (w[n] == '|' || !w[n])) return 1;
    return 0;
}

int options_set(options *o, int id, const char *text, int from)
{
    const row *r = &rows[id];
    option_value *v = &o->v[id];
    char *end;
    if (!*text && id != OPT_prompt && (r->kind == TEXT || r->kind == LIST))
        return usage_error("--%s is empty", r->name);
    switch (r->kind) {
    case LIST:
        if (v->from != from) v->count = 0;
        {
            const char **list = realloc(v->list, (size_t)(v->count + 1) * sizeof *list);
            if (!list) return usage_error("out of memory");
            v->list = list;
            v->list[v->count++] = strdup(text);
        }
        break;
    case CHOICE:
        if (!is_word(r->arg, text)) return usage_error("--%s is \"%s\"; it is one of %s", r->name, text, r->arg);
        v->text = strdup(text);
        break;
    case TEXT: v->text = strdup(text); break;
    case FLAG: v->whole = 1; break;
    case WHOLE:
        errno = 0;
        v->whole = strtoll(text, &end, 10);
        if (end == text || *end || errno) return usage_error("--%s is \"%s\"; a whole number is needed", r->name, text);
        if ((double)v->whole < r->min || (double)v->whole > r->max)
            return usage_error("--%s is %s; it must be from %.15g to %.15g", r->name, text, r->min, r->max);
        break;
    case REAL:
        errno = 0;
        v->real = strtod(text, &end);
        if (end == text || *end || !(v->real - v->real == 0))
            return usage_error("--%s is \"%s\"; a number is needed", r->name, text);
        if (v->real < r->min || v->real > r->max)
            return usage_error("--%s is %s; it must be from %g to %g", r->name, text, r->min, r->max);
        break;
    }
    v->from = from;
    return 0;
}

const char *option_text(const options *o, int id, char *buffer, int bytes)
{
    const option_value *v = &o->v[id];
    int at = 0;
    buffer[0] = 0;
    if (v->from < 0) return buffer;
    switch (rows[id].kind) {
    case LIST:
        for (int i = 0; i < v->count && at < bytes; i++)
            at += snprintf(buffer + at, (size_t)(bytes - at), i ? "\n%s" : "%s", v->list[i]);
        break;
    case WHOLE: snprintf(buffer, (size_t)bytes, "%lld", (long long)v->whole); break;
    case REAL: /* the shortest text that reads back as the same number */
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(buffer, (size_t)bytes, "%.*g", digits, v->real);
            if (strtod(buffer, NULL) == v->real) break;
        }
        break;
    case FLAG: snprintf(buffer, (size_t)bytes, "%d", (int)v->whole); break;
    default: snprintf(buffer, (size_t)bytes, "%s", v->text ? v->text : "");
    }
    return buffer;
}

/* --- the nearest name --- */

static int distance(const char *a, const char *b)
{
    int n = (int)strlen(b), before[64], now[64];
    if (n > 62) return 99;
    for (int j = 0; j <= n; j++) before[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            now[j] = best;
        }
        memcpy(before, now, sizeof before);
    }
    return before[n];
}

/* except: an option that is none here. */
static const char *nearest(const char *name, int command, int except)
{
    const char *best = "help";
    int least = 1000;
    for (int i = 0; i < OPT_COUNT; i++)
        if (i != except && option_applies(i, command) && distance(name, rows[i].name) < least) {
            least = distance(name, rows[i].name);
            best = rows[i].name;
        }
    return best;
}

static int unknown_option(const char *bad, int command)
{
    static const struct { int command; const char *name;
    } names[] = {{LM, "train lm"},     {CLASSIFY, "train classify"}, {REGRESS, "train regress"},
                 {SAMPLE, "sample"},   {EVALUATE, "evaluate"},       {PREDICT, "predict"},
                 {WATCH, "watch"},     {PLOT, "plot"},       {INFO, "info"}};
    char name[64] = "", of[128] = "";
    while (*bad == '-') bad++;
    size_t len = strcspn(bad, "=");
    snprintf(name, sizeof name, "%.*s", (int)(len < 63 ? len : 63), bad);
    for (int i = 0; i < OPT_COUNT; i++)
        for (int k = 0; k < (int)(sizeof names / sizeof *names) && !strcmp(name, rows[i].name); k++)
            if (option_applies(i, names[k].command))
                snprintf(of + strlen(of), sizeof of - strlen(of), "%s%s", of[0] ? ", " : "", names[k].name);
    if (of[0]) return usage_error("unknown option --%s here; it goes with %s", name, of);
    return usage_error("unknown option --%s; did you mean --%s?", name, nearest(name, command, -1));
}

/* --- configuration file --- */

static char config_complaint[512];

static void config_error(cfg_t *cfg, const char *format, va_list args)
{
    int at = 0;
    if (cfg && cfg->filename)
        at = snprintf(config_complaint, sizeof config_complaint, "%.200s:%d: ", cfg->filename, cfg->line);
    vsnprintf(config_complaint + at, sizeof config_complaint - (size_t)at, format, args);
}

static int read_config(options *o, const char *path)
{
    cfg_opt_t table[OPT_COUNT + 1];
    int id_of[OPT_COUNT], n = 0;
    struct stat st;
    /* The parser library ends the process on a folder, and reads a device for ever. */
    if (stat(path, &st)) return usage_error("--config %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode)) return usage_error("--config %s is no ordinary file", path);
    if (st.st_size > CONFIG_BYTES) return usage_error("--config %s has more than %d bytes", path, CONFIG_BYTES);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (!option_applies(i, o->command) || i == OPT_config) continue;
        id_of[n] = i;
        table[n++] = rows[i].kind == LIST ? (cfg_opt_t)CFG_STR_LIST(rows[i].name, NULL, CFGF_NONE)
                                          : (cfg_opt_t)CFG_STR(rows[i].name, NULL, CFGF_NONE);
    }
    table[n] = (cfg_opt_t)CFG_END();
    cfg_t *cfg = cfg_init(table, CFGF_NONE);
    if (!cfg) return usage_error("out of memory");
    cfg_set_error_function(cfg, config_error);
    config_complaint[0] = 0;
    int rc = cfg_parse(cfg, path), code = 0;
    if (rc == CFG_FILE_ERROR) {
        code = usage_error("--config %s: %s", path, strerror(errno));
    } else if (rc != CFG_SUCCESS) {
        const char *quote = strchr(config_complaint, '\'');
        char name[64] = "";
        if (quote && strstr(config_complaint, "no such option")) {
            size_t len = strcspn(quote + 1, "'");
            if (len < sizeof name) memcpy(name, quote + 1, len), name[len] = 0;
        }
        code = name[0] ? usage_error("--config: %s; did you mean \"%s\"?", config_complaint,
                                     nearest(name, o->command, OPT_config))
                       : usage_error("--config: %s (lines read: name = value)", config_complaint);
    }
    for (int k = 0; k < n && !code; k++)
        for (unsigned i = 0; i < cfg_size(cfg, table[k].name) && !code; i++) {
            const char *text = cfg_getnstr(cfg, table[k].name, i);
            if (text) code = options_set(o, id_of[k], text, 1);
        }
    cfg_free(cfg);
    return code;
}

/* --- command line --- */

static void print_help(int command, const char *usage)
{
    printf("usage: %s\n\noptions:\n", usage);
    for (int i = 0; i < OPT_COUNT; i++) {
        const row *r = &rows[i];
        if (!option_applies(i, command)) continue;
        char left[80];
        snprintf(left, sizeof left, "--%s %s", r->name, r->arg);
        printf("  %-34s %s", left, r->help);
        if (r->preset[0]) printf(" [%s]", r->preset);
        printf("\n");
    }
    printf("  %-34s this text\n\nThe manual page, lockstep(1), has examples.\n", "--help");
}

int options_parse(options *o, int command, const char *usage, int argc, const char **argv, int first)
{
    memset(o, 0, sizeof *o);
    o->command = command;
    for (int i = 0; i < OPT_COUNT; i++) {
        o->v[i].from = -1;
        if (rows[i].preset[0] && rows[i].kind != LIST) options_set(o, i, rows[i].preset, 0);
    }
    struct poptOption table[OPT_COUNT + 2];
    int n = 0;
    memset(table, 0, sizeof table);
    for (int i = 0; i < OPT_COUNT; i++)
        if (option_applies(i, command)) {
            table[n].longName = rows[i].name;
            table[n].argInfo = rows[i].kind == FLAG ? POPT_ARG_NONE : POPT_ARG_STRING;
            table[n++].val = i + 2;
        }
    table[n].longName = "help";
    table[n].shortName = 'h';
    table[n].argInfo = POPT_ARG_NONE;
    table[n].val = 1;
    /* popt takes argv[0] for a name. */
    poptContext pc = poptGetContext("lockstep", argc - first + 1, argv + first - 1, table, 0);
    int rc, code = 0;
    options given = *o; /* values from the command line, laid over the file's afterwards */
    while ((rc = poptGetNextOpt(pc)) > 0 && !code) {
        if (rc == 1) {
            if (speaks()) print_help(command, usage);
            poptFreeContext(pc);
            return -1;
        }
        char *text = poptGetOptArg(pc);
        code = options_set(&given, rc - 2, text ? text : "", 2);
        free(text);
    }
    if (!code && rc < -1) {
        const char *bad = poptBadOption(pc, POPT_BADOPTION_NOALIAS);
        code = rc == POPT_ERROR_BADOPT
                   ? unknown_option(bad, command)
                   : usage_error("%s: %s", bad, poptStrerror(rc));
    }
    const char **rest = code ? NULL : poptGetArgs(pc);
    for (; rest && rest[o->operands]; o->operands++) {
        const char **p = realloc(o->operand, (size_t)(o->operands + 1) * sizeof *p);
        if (!p) return usage_error("out of memory");
        o->operand = p;
        o->operand[o->operands] = strdup(rest[o->operands]);
    }
    poptFreeContext(pc);
    if (!code && given.v[OPT_config].from > 0 && given.v[OPT_config].text[0])
        code = read_config(o, given.v[OPT_config].text);
    for (int i = 0; i < OPT_COUNT; i++)
        if (given.v[i].from == 2) o->v[i] = given.v[i];
    return code;
}
