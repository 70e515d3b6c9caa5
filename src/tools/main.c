/* SPDX-License-Identifier: BSD-3-Clause
 *
 * main.c - the command's words.
 */
#include "tools/tools.h"

#include <string.h>

static const struct { const char *name; int (*run)(int, const char **); const char *about; } commands[] = {
    {"train", cmd_train, "train lm|classify: train a model on text or images"},
    {"sample", cmd_sample, "make text with a trained language model"},
    {"evaluate", cmd_evaluate, "validation loss (and accuracy) of a checkpoint"},
    {"checkpoint", cmd_checkpoint, "checkpoint list|verify|diff: look at checkpoints"},
    {"plot", cmd_plot, "draw the metrics of runs into a PNG"},
    {"info", cmd_info, "what was built, devices, the table of ops"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *f)
{
    fputs("usage: lockstep COMMAND [options]\n\ncommands:\n", f);
    for (int i = 0; i < COMMANDS; i++) fprintf(f, "  %-12s %s\n", commands[i].name, commands[i].about);
    fputs("\nlockstep COMMAND --help tells the options. Start several ranks with mpirun or srun:\n"
          "  mpirun -n 2 lockstep train lm --data text.txt --out run\n", f);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return EXIT_DONE;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("lockstep %s\n", lks_build_value(0));
        return EXIT_DONE;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name)) {
            int rc = commands[i].run(argc, (const char **)argv);
            return rc < 0 ? EXIT_DONE : rc;
        }
    return usage_error("unknown command \"%s\"; lockstep --help lists them", argv[1]);
}
