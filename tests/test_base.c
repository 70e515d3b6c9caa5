/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_base.c - errors, log, checked memory, dtypes, fault points and the floating-point guard. One process, no MPI.
 */
#define _GNU_SOURCE
#include "base/base.h"
#include "tap.h"
#include <fenv.h>
#include <signal.h>
#include <sys/wait.h>

/* One test asks for more than there is; AddressSanitizer shall say no as malloc does. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void errors(void)
{
    lksi_base b = {.rank = 3};
    is_int(lksi_fail(&b, LKS_ERR_SHAPE, "lks_matmul", "inner sizes differ: [%d,%d] @ [%d,%d]", 2, 3, 4, 5),
           LKS_ERR_SHAPE, "fail returns its code");
    is_int(b.code, LKS_ERR_SHAPE, "the code is kept");
    is_str(b.text, "rank 3: lks_matmul: inner sizes differ: [2,3] @ [4,5]", "the text names rank, call, cause");
    is_int(lksi_fail(&b, LKS_ERR_IO, "lks_save", "second"), LKS_ERR_IO, "a second failure returns its own code");
    is_int(b.code, LKS_ERR_SHAPE, "but the first is kept");
    is_str(b.text, "rank 3: lks_matmul: inner sizes differ: [2,3] @ [4,5]", "with its text");
    b.code = LKS_OK;
    lksi_fail(&b, LKS_ERR_IO, "again", "%s", b.text);
    is_str(b.text, "rank 3: again: rank 3: lks_matmul: inner sizes differ: [2,3] @ [4,5]", "old text as an argument");
    static char wide[3 * LKSI_TEXT];
    memset(wide, 'x', sizeof wide - 1);
    b.code = LKS_OK;
    lksi_fail(&b, LKS_ERR_IO, "long", "%s", wide);
    is_int((int64_t)strlen(b.text), LKSI_TEXT - 1, "a long text is cut");
    b.code = LKS_OK;
    is_int(lksi_fail(&b, LKS_OK, "odd", "no code"), LKS_ERR_INTERNAL, "failing with OK is a fault of ours");
    is_int(lksi_fail(NULL, LKS_ERR_IO, "none", "no base"), LKS_ERR_IO, "no base: the code passes through");

    is_str(lks_status_name(LKS_OK), "LKS_OK", "name of 0");
    is_str(lks_status_name(LKS_ERR_NO_SPACE), "LKS_ERR_NO_SPACE", "name of -9");
    is_str(lks_status_text(LKS_ERR_SHAPE), "shapes do not fit", "sentence of -2");
    ok(lks_status_name(7) && lks_status_text(-1000), "unknown codes have names and texts too");
    int distinct = 1;
    for (int i = LKS_ERR_INTERNAL; i < 0; i++)
        for (int j = i + 1; j <= 0; j++)
            distinct &= strcmp(lks_status_name(i), lks_status_name(j)) &&
                        strcmp(lks_status_text(i), lks_status_text(j));
    ok(distinct, "all names and sentences differ");
}

/* B102: both macros as the branch of an if without braces. */
static int calls;
static lks_status call(lks_status code)
{
    calls++;
    return code;
}

static lks_status tried(int c, lks_status code)
{
    if (c) TRY(call(code));
    else calls = 100;
    return LKS_OK;
}

static void macros(void)
{
    lks_status s = LKS_OK;
    for (int c = 0; c < 2; c++) {
        calls = 0;
        if (c) LKS_TRY(s, failed, call(LKS_OK));
        else calls = 100;
        is_int(calls, c ? 1 : 100, "B102: LKS_TRY in if/else: the else is the if's (%d)", c);
        calls = 0;
        is_int(tried(c, LKS_ERR_IO), c ? LKS_ERR_IO : LKS_OK, "B102: TRY in if/else returns the code (%d)", c);
        is_int(calls, c ? 1 : 100, "B102: and the else is the if's (%d)", c);
    }
    if (!calls) ok(0, "never here");
    else LKS_TRY(s, failed, call(LKS_ERR_MPI));
    ok(0, "B102: a failed call goes to the label");
    return;
failed:
    is_int(s, LKS_ERR_MPI, "B102: a failed call goes to the label, with its code");
}

static char logged[LKSI_TEXT];
static int logged_level;
static void sink(void *user, int level, const char *line)
{
    ++*(int *)user;
    logged_level = level;
    snprintf(logged, sizeof logged, "%s", line);
}

static void logs(void)
{
    int count = 0;
    lksi_base b = {0};
    lksi_log(&b, LKS_LOG_ERROR, "nobody hears this");
    b.log = sink, b.log_user = &count;
    lksi_log(&b, LKS_LOG_WARNING, "loss is %d\n", 7);
    is_int(count, 1, "one line reaches the sink");
    is_int(logged_level, LKS_LOG_WARNING, "with its level");
    is_str(logged, "loss is 7", "without newline");
}

static void memory(void)
{
    lksi_base b = {0};
    unsigned char *p = lksi_alloc(&b, 1000), *z = lksi_alloc(&b, 0);
    int zero = 1;
    for (int i = 0; i < 1000; i++) zero &= p[i] == 0;
    ok(zero, "memory is zeroed");
    ok(z != NULL, "0 bytes give a block");
    memset(p, 1, 1000);
    p = lksi_realloc(&b, p, 1000, 5000);
    int good = 1;
    for (int i = 0; i < 5000; i++) good &= p[i] == (i < 1000);
    ok(good, "realloc keeps the old and zeroes the new");
    char *s = lksi_strdup(&b, "weight");
    is_str(s, "weight", "strdup");
    is_int(b.live_blocks, 3, "three blocks live");
    lksi_free(&b, p), lksi_free(&b, z), lksi_free(&b, s), lksi_free(&b, NULL);
    is_int(b.live_blocks, 0, "none live");
    is_int(b.code, LKS_OK, "no error so far");

    ok(!lksi_alloc(&b, -1) && b.code == LKS_ERR_MEMORY, "negative sizes fail");
    b.code = LKS_OK;
    ok(!lksi_alloc(&b, INT64_MAX) && b.code == LKS_ERR_MEMORY, "impossible sizes fail");
    ok(strstr(b.text, "9223372036854775807") != NULL, "and the text says how much it was");
    b.code = LKS_OK;

    for (int n = 1; n <= 4; n++) {
        b.fail_at = n;
        void *q[4];
        int right = 1;
        for (int i = 0; i < 4; i++) {
            q[i] = lksi_alloc(&b, 16);
            right &= (q[i] == NULL) == (i + 1 == n);
        }
        ok(right && b.code == LKS_ERR_MEMORY, "allocation %d of 4 fails, and no other", n);
        for (int i = 0; i < 4; i++) lksi_free(&b, q[i]);
        b.code = LKS_OK;
    }
    is_int(b.live_blocks, 0, "a failed allocation is not counted");
    char *kept = lksi_strdup(&b, "kept");
    b.fail_at = 1;
    ok(!lksi_realloc(&b, kept, 5, 100), "realloc can be told to fail");
    is_str(kept, "kept", "and leaves the block");
    lksi_free(&b, kept);
    b.fail_at = 0;
    int never = 0;
    for (int i = 0; i < 100; i++) never |= lksi_alloc_must_fail(&b);
    ok(!never, "0: nothing fails");

    int64_t r;
    ok(lksi_mul_fits(3037000499, 3037000499, &r) && r == INT64_C(9223372030926249001), "a product that fits");
    ok(!lksi_mul_fits(3037000500, 3037000500, &r), "one that does not");
    ok(!lksi_mul_fits(INT64_MIN, -1, &r), "INT64_MIN * -1");
    ok(lksi_add_fits(INT64_MAX, 0, &r) && r == INT64_MAX, "a sum that fits");
    ok(!lksi_add_fits(INT64_MAX, 1, &r), "one that does not");
    double t = lksi_now();
    ok(t > 0 && lksi_now() >= t, "the clock does not go back");
}

/* What PyTorch gives for tensors with dimensions: rows and columns in this order. */
#define ORDER {LKS_BOOL, LKS_U8, LKS_I32, LKS_I64, LKS_F16, LKS_BF16, LKS_F32, LKS_F64}
static const char *const promotion[8][8] = {
    {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"uint8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"int32", "int32", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"int64", "int64", "int64", "int64", "float16", "bfloat16", "float32", "float64"},
    {"float16", "float16", "float16", "float16", "float16", "float32", "float32", "float64"},
    {"bfloat16", "bfloat16", "bfloat16", "bfloat16", "float32", "bfloat16", "float32", "float64"},
    {"float32", "float32", "float32", "float32", "float32", "float32", "float32", "float64"},
    {"float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64"},
};

static void dtypes(void)
{
    static const int order[8] = ORDER, size[8] = {1, 1, 4, 8, 2, 2, 4, 8};
    for (int i = 0; i < 8; i++) {
        int right = 1;
        for (int j = 0; j < 8; j++)
            right &= !strcmp(lks_dtype_name(lks_promote(order[i], order[j])), promotion[i][j]);
        ok(right, "promotion of %s", promotion[i][i]);
        is_int(lks_dtype_size(order[i]), size[i], "size of %s", promotion[i][i]);
        is_int(lks_dtype_is_float(order[i]), i >= 4, "%s is %sa float", promotion[i][i], i >= 4 ? "" : "not ");
        is_int(lks_dtype_from_name(promotion[i][i]), order[i], "%s by name", promotion[i][i]);
    }
    is_int(LKS_C64, 8, "the table above has all real dtypes");
    is_int(lks_promote(LKS_F32, LKS_DTYPE_NONE), LKS_DTYPE_NONE, "promotion with none is none");
    is_int(lks_dtype_from_name("bf16"), LKS_BF16, "bf16");
    is_int(lks_dtype_from_name("f32"), LKS_F32, "f32");
    is_int(lks_dtype_from_name("i64"), LKS_I64, "i64");
    is_int(lks_dtype_from_name("float8"), LKS_DTYPE_NONE, "float8 is none");
    is_int(lks_dtype_from_name(""), LKS_DTYPE_NONE, "the empty name is none");
    is_int(lks_dtype_from_name(NULL), LKS_DTYPE_NONE, "no name is none");
    is_str(lks_dtype_name(LKS_DTYPE_NONE), "none", "name of none");
    is_int(lks_dtype_size(99), 0, "size of an invalid dtype");
}

/* Passages of POINT until the child is killed, out of `passages`; -1: it lived. */
static int killed_after(const char *setting, const char *rank, int my_rank, int passages)
{
    int report[2];
    if (pipe(report)) bail("pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (setting) setenv("LKS_FAULT", setting, 1);
        else unsetenv("LKS_FAULT");
        if (rank) setenv("LKS_FAULT_RANK", rank, 1);
        else unsetenv("LKS_FAULT_RANK");
        lksi_base b = {.rank = my_rank};
        int warned = 0;
        b.log = sink, b.log_user = &warned;
        for (int i = 0; i < passages; i++) {
            char one = 1;
            if (write(report[1], &one, 1) != 1) _exit(9);
            lksi_fault_point(&b, "prune");
            lksi_fault_point(&b, "mid-write");
        }
        _exit(warned ? 2 : 0);
    }
    close(report[1]);
    int status, n = 0;
    char one;
    while (read(report[0], &one, 1) == 1) n++;
    close(report[0]);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL ? n : -100;
    return WEXITSTATUS(status) == 2 ? -2 : -1;
}

static void faults(void)
{
    is_int(killed_after(NULL, NULL, 0, 5), -1, "no LKS_FAULT, no kill");
    is_int(killed_after("", NULL, 0, 5), -1, "an empty one, no kill");
    is_int(killed_after("kill:prune@1", NULL, 0, 5), 1, "killed at the first passage");
    is_int(killed_after("kill:mid-write@3", NULL, 0, 5), 3, "killed at the third passage");
    is_int(killed_after("kill:mid-write@6", NULL, 0, 5), -1, "never comes to the sixth");
    is_int(killed_after("kill:evaluation@1", NULL, 0, 5), -1, "another point");
    is_int(killed_after("kill:mid-write@2", NULL, 1, 5), -1, "rank 1 is not the victim by default");
    is_int(killed_after("kill:mid-write@2", "1", 1, 5), 2, "but by LKS_FAULT_RANK");
    is_int(killed_after("kill:mid-write@2", "1", 0, 5), -1, "and then rank 0 is not");
    is_int(killed_after("kill:mid-wrte@2", NULL, 0, 5), -2, "an unknown point is said");
    is_int(killed_after("kill:mid-write", NULL, 0, 5), -2, "a missing number is said");
    is_int(killed_after("kill:mid-write@2x", NULL, 0, 5), -2, "a bad number is said");
    is_int(killed_after("kill:mid-write@0", NULL, 0, 5), -2, "0 is said");
    is_int(killed_after("kill:mid-write@2", "zero", 0, 5), -2, "a bad rank is said");
}

#if defined __x86_64__ || defined __aarch64__
#define FE_IS_DEFAULT(saved) (!(saved).changed)
#else
#define FE_IS_DEFAULT(saved) 1 /* always set anew */
#endif

static void divide(void)
{
    volatile double zero = 0, one = 1;
    volatile double r = one / zero;
    (void)r;
}

static void environment(void)
{
    lksi_fpenv saved;
    if (emulated()) {
        skip(1, "valgrind has no floating-point environment");
        return;
    }
    fesetenv(FE_DFL_ENV);
    lksi_fpenv_enter(&saved);
    ok(FE_IS_DEFAULT(saved), "the default environment is left as it is");
    divide();
    lksi_fpenv_leave(&saved);
    is_int(fetestexcept(FE_ALL_EXCEPT), 0, "flags raised inside are taken back");

    feraiseexcept(FE_INEXACT);
    lksi_fpenv_enter(&saved);
    divide();
    lksi_fpenv_leave(&saved);
    is_int(fetestexcept(FE_ALL_EXCEPT), FE_INEXACT, "flags of the host stay");

    fesetenv(FE_DFL_ENV);
    fesetround(FE_DOWNWARD);
    volatile double third = 3, one = 1;
    volatile double down = one / third;
    lksi_fpenv_enter(&saved);
    volatile double inside = one / third;
    lksi_fpenv_leave(&saved);
    volatile double seven = 7;
    volatile double back = one / seven; /* not moved past the call that changes the rounding */
    fesetround(FE_UPWARD);
    volatile double up = one / seven;
    fesetenv(FE_DFL_ENV);
    ok(saved.changed, "another rounding is noticed");
    ok(inside == 1.0 / 3.0 && down <= inside, "rounds to nearest inside");
    ok(back < up, "the host rounds its own way after");

    if (feenableexcept(FE_DIVBYZERO) == -1) {
        skip(2, "this processor cannot trap");
        return;
    }
    lksi_fpenv_enter(&saved);
    divide();
    lksi_fpenv_leave(&saved);
    ok(fegetexcept() == FE_DIVBYZERO, "no trap inside, and the host's trap is on again");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGFPE, SIG_DFL);
        divide();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGFPE, "a division by zero of the host traps after");
    fedisableexcept(FE_ALL_EXCEPT);

#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(0x9FC0); /* FTZ and DAZ, as -ffast-math programs run */
    volatile float tiny = 1e-39f;
    lksi_fpenv_enter(&saved);
    volatile float kept = tiny * 2.0f;
    int lives = kept != 0;
    lksi_fpenv_leave(&saved);
    volatile float lost = tiny * 2.0f;
    int dies = lost == 0;
    unsigned csr = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1F80);
    ok(lives, "denormals live inside");
    ok(dies && (csr & 0xFFC0) == 0x9FC0, "and are flushed again after");
#endif
}

int main(void)
{
    errors();
    macros();
    logs();
    memory();
    dtypes();
    faults();
    environment();
    return done();
}
