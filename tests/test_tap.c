/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_tap.c - does the vocabulary of the tests notice failures? With an argument it is the program that tap.test looks
 * at from outside: fail, short, none, hang, bail, skip, all.
 */
#include "tap.h"

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "fail")) {
        ok(1, "good");
        is_int(3, 4, "numbers");
        is_str("a", NULL, "texts");
        is_double(1, 1.5, 0.25, "doubles");
        is_double(NAN, 0, 1e300, "NaN is no number");
        return done();
    }
    if (!strcmp(what, "short")) {
        plan(2);
        ok(1, "good");
        return done();
    }
    if (!strcmp(what, "none")) return done();
    if (!strcmp(what, "hang")) {
        plan(1);
        for (;;) pause();
    }
    if (!strcmp(what, "bail")) bail("no %s", "reason");
    if (!strcmp(what, "skip")) {
        plan(3);
        skip(2, "%d of them", 2);
        ok(1, "good");
        return done();
    }
    if (!strcmp(what, "all")) skip_all("no %s", "reason");

    plan(7);
    ok(1, "a result");
    is_int(INT64_MIN, INT64_MIN, "int64");
    is_str("text", "text", "texts");
    is_str(NULL, NULL, "no texts");
    is_double(1, 1.25, 0.25, "within the tolerance");
    is_double(NAN, NAN, 0, "two NaNs");
    is_double(INFINITY, INFINITY, 0, "infinities");
    return done();
}
