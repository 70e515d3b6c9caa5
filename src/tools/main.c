/* SPDX-License-Identifier: BSD-3-Clause
 *
 * main.c - the command's words.
 */
#include "tools/tools.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; int (*run)(int, const char **); const char *about; } commands[] = {
    {"train", cmd_train, "train lm|classify|regress: train a model on text, images, fields"},
    {"sample", cmd_sample, "make text with a trained language model"},
    {"evaluate", cmd_evaluate, "validation loss (and accuracy or error) of a checkpoint"},
    {"predict", cmd_predict, "what a trained regression says of new data, as HDF5"},
    {"checkpoint", cmd_checkpoint, "checkpoint list|verify|diff: look at checkpoints"},
    {"watch", cmd_watch, "follow a run in the terminal"},
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

/* Descriptors 0 to 2 that the caller closed would go to the next files that are opened, and texts into those. */
static int hold_descriptors(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    return fd < 0 ? -1 : close(fd);
}

int main(int argc, char **argv)
{
    if (hold_descriptors()) return EXIT_FAILED;
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
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
            if (rc < 0) rc = EXIT_DONE;
            /* What was asked for is the output; a training run has its files. */
            if (rc == EXIT_DONE && commands[i].run != cmd_train && (fflush(stdout) || ferror(stdout))) {
                fprintf(stderr, "lockstep: standard output: %s\n", strerror(errno));
                rc = EXIT_FAILED;
            }
            return rc;
        }
    return usage_error("unknown command \"%s\"; lockstep --help lists them", argv[1]);
}
