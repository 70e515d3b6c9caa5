/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_philox.c - the generator against its published known answers, the mapping of elements to blocks, and the normal
 * numbers against libm in double.
 */
#include "table/math.h"
#include "tap.h"

static void known(const uint32_t c[4], const uint32_t k[2], const uint32_t want[4], const char *name)
{
    uint32_t r[4];
    lksi_philox4x32(c[0], c[1], c[2], c[3], k[0], k[1], r, r + 1, r + 2, r + 3);
    ok(!memcmp(r, want, sizeof r), "known answer: %s", name);
    if (memcmp(r, want, sizeof r)) diag("got %08x %08x %08x %08x", r[0], r[1], r[2], r[3]);
}

static void answers(void)
{
    known((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0},
          (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, "zeros");
    known((uint32_t[]){0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, (uint32_t[]){0xffffffff, 0xffffffff},
          (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}, "ones");
    known((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, (uint32_t[]){0xa4093822, 0x299f31d0},
          (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}, "digits of pi");
}

static void mapping(void)
{
    /* Key and counter by hand: the answers above reached through seed, attempt and call. */
    lksi_philox s = lksi_philox_stream((int64_t)0x299f31d0a4093822u, 0x03707344, 0x13198a2e);
    uint32_t w[4], many[4 * 70];
    lksi_philox_block(&s, 0x85a308d3243f6a88u, w);
    is_int(w[0], 0xd16cfe09, "block number, call, attempt and seed are the counter and key words documented");
    int wrong = 0;
    s = lksi_philox_stream(7, 3, 2);
    uint64_t first = 0xffffffd0u; /* the low word overflows within the range */
    lksi_philox_fill(&s, first, 70, many);
    for (int b = 0; b < 70; b++) {
        lksi_philox_block(&s, first + (uint64_t)b, w);
        for (int i = 0; i < 4; i++) {
            wrong += many[4 * b + i] != w[i];
            wrong += lksi_philox_word(&s, 4 * (first + (uint64_t)b) + (uint64_t)i) != w[i];
        }
    }
    is_int(wrong, 0, "many blocks, one block and one word agree");
    int64_t streams[][3] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1LL << 32, 0, 0}, {0, 1LL << 32, 0},
                            {0, 0, 1LL << 32},
                            {-1, 0, 0}};
    int same = 0, n = sizeof streams / sizeof *streams;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            lksi_philox a = lksi_philox_stream(streams[i][0], streams[i][1], streams[i][2]);
            lksi_philox b = lksi_philox_stream(streams[j][0], streams[j][1], streams[j][2]);
            same += lksi_philox_word(&a, 5) == lksi_philox_word(&b, 5);
        }
    is_int(same, 0, "seed, attempt and call all matter, high halves too");
}

static void uniform(void)
{
    is_double(lksi_uniform_f32(0), 0, 0, "uniform: the least");
    is_double(lksi_uniform_f32(0xffffffff), 1 - 0x1p-24, 0, "uniform: the largest is below 1");
    is_double(lksi_uniform_f64(0, 0), 0, 0, "uniform in double: the least");
    is_double(lksi_uniform_f64(0xffffffff, 0xffffffff), 1 - 0x1p-53, 0, "uniform in double: the largest");
    is_double(lksi_uniform_f64(0x80000000, 0), 0.5, 0, "uniform in double: the first word is the upper one");
}

static void normal(void)
{
    enum { N = 1 << 20 };
    double worst = 0, sum = 0, square = 0, fourth = 0, cross = 0;
    int far = 0, not_finite = 0;
    lksi_philox s = lksi_philox_stream(1, 2, 3);
    for (int i = 0; i < N; i += 4) {
        uint32_t w[4];
        lksi_philox_block(&s, (uint64_t)i / 4, w);
        if (i == 0) w[0] = 0, w[1] = 0; /* ends of the range */
        if (i == 4) w[0] = 0xffffffff, w[1] = 0xffffffff;
        for (int j = 0; j < 4; j += 2) {
            float a, b;
            lksi_normal_f32(w[j], w[j + 1], &a, &b);
            double u = ((w[j] >> 1) + 0.5) * 0x1p-31, r = sqrt(-2 * log((double)(float)u));
            double t = 2 * M_PI * (w[j + 1] >> 8) * 0x1p-24;
            double ea = fabs(a - r * cos(t)), eb = fabs(b - r * sin(t));
            worst = fmax(worst, fmax(ea, eb));
            not_finite += !lksi_is_finite_f32(a) + !lksi_is_finite_f32(b);
            sum += a + b;
            square += (double)a * a + (double)b * b;
            fourth += pow(a, 4) + pow(b, 4);
            cross += (double)a * b;
            far += (fabs(a) > 3) + (fabs(b) > 3);
        }
    }
    is_int(not_finite, 0, "normal: all finite");
    ok(worst < 3e-6, "normal: as libm's (worst %.2g)", worst);
    ok(fabs(sum / N) < 0.005, "mean 0 (%.4f)", sum / N);
    ok(fabs(square / N - 1) < 0.01, "variance 1 (%.4f)", square / N);
    ok(fabs(fourth / N - 3) < 0.06, "fourth moment 3 (%.3f)", fourth / N);
    ok(fabs(cross / (N / 2)) < 0.01, "pairs are not correlated (%.4f)", cross / (N / 2));
    ok(fabs(far / (double)N - 0.0026998) < 0.0004, "beyond 3: %.5f", far / (double)N);
    float a, b;
    lksi_normal_f32(0x12345678, 0x9abcdef0, &a, &b);
    is_int(lksi_bits_f32(a), 0xbfe92f3c, "bits of one number, the same on every machine");
    uint32_t w[4] = {0x12345678, 0x11111111, 0x9abcdef0, 0x22222222};
    double c, d;
    lksi_normal_f64(w, &c, &d);
    ok(fabs(c - a) < 1e-5 && fabs(d - b) < 1e-5, "double agrees where the words do");
    if (fabs(c - a) >= 1e-5) diag("%g %g, %g %g", c, (double)a, d, (double)b);
}

int main(void)
{
    answers();
    mapping();
    uniform();
    normal();
    return done();
}
