/* SPDX-License-Identifier: BSD-3-Clause
 *
 * evaluate.c - lockstep evaluate: a checkpoint on the validation part of data.
 */
#include "tools/restore.h"

int cmd_evaluate(int argc, const char **argv)
{
    static options o;
    static job j;
    int code = options_parse(&o, EVALUATE, "lockstep evaluate RUN|CHECKPOINT --data FILE... [options]", argc, argv, 2),
        stop = 0;
    if (code) return code;
    if (o.operands != 1) return usage_error("evaluate needs one run folder or checkpoint file");
    double loss, score;
    if (!(code = job_open(&j, &o)) && !(code = restore_model(&j, &o, o.operand[0], 1)) &&
        lks_loader_valid_count(j.loader) < 1)
        code = usage_error("no sample of --data is set aside for validation (--valid-fraction is %g)",
                           opt_real(&o, valid_fraction));
    if (!code && !(code = job_validate(&j, opt_whole(&o, batch), &loss, &score, &stop)) && lks_rank(j.ctx) == 0) {
        printf("validation loss %.6f over %lld samples", loss, (long long)lks_loader_valid_count(j.loader));
        if (j.task != LM) printf(", %s %.2f %%", j.task == REGRESS ? "error" : "accuracy", 100 * score);
        printf("\n");
    }
    job_close(&j);
    return code;
}
