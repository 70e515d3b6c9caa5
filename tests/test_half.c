/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_half.c - conversions of binary16 and bfloat16: all 65536 patterns, all midpoints between neighbours, double
 * rounding, NaNs, denormals with FTZ and DAZ set, saturation. The reference decodes by ldexp and rounds by comparing
 * distances in long double.
 */
#include "base/half.h"
#include "tap.h"
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

typedef struct format { const char *name; int exponent, mantissa; } format; /* bits */
static const format f16 = {"float16", 5, 10}, bf16 = {"bfloat16", 8, 7};

static int is_nan(const format *f, uint16_t h) { return (h & 0x7fff) > (((1 << f->exponent) - 1) << f->mantissa); }

static double decode(const format *f, uint16_t h)
{
    int e = (h & 0x7fff) >> f->mantissa, m = h & ((1 << f->mantissa) - 1), bias = (1 << (f->exponent - 1)) - 1;
    double v = e == (1 << f->exponent) - 1 ? (m ? NAN : INFINITY)
               : e                         ? ldexp(m + (1 << f->mantissa), e - bias - f->mantissa)
                                           : ldexp(m, 1 - bias - f->mantissa);
    return h & 0x8000 ? -v : v;
}

/* Nearest pattern, ties to even, by search over the positive patterns. */
static uint16_t encode(const format *f, long double v)
{
    int top = ((1 << f->exponent) - 1) << f->mantissa, lo = 0, hi = top;
    int negative = signbit(v);
    if (negative) v = -v;
    while (hi - lo > 1) { /* decode(lo) <= v < decode(hi); infinity stands for the next power of two */
        int mid = (lo + hi) / 2;
        if (decode(f, (uint16_t)mid) <= v) lo = mid;
        else hi = mid;
    }
    long double a = decode(f, (uint16_t)lo);
    long double b = hi == top ? ldexpl(1, 1 << (f->exponent - 1)) : (long double)decode(f, (uint16_t)hi);
    int h = v >= b ? hi : v - a < b - v ? lo : v - a > b - v ? hi : lo % 2 ? hi : lo;
    return (uint16_t)(h | (negative ? 0x8000 : 0));
}

static float to_float(const format *f, uint16_t h) { return f == &f16 ? lksi_f16_to_f32(h) : lksi_bf16_to_f32(h); }
static uint16_t from_float(const format *f, float x) { return f == &f16 ? lksi_f32_to_f16(x) : lksi_f32_to_bf16(x); }
static uint16_t from_double(const format *f, double x) { return f == &f16 ? lksi_f64_to_f16(x) : lksi_f64_to_bf16(x); }
static uint16_t from_int(const format *f, int64_t x) { return f == &f16 ? lksi_i64_to_f16(x) : lksi_i64_to_bf16(x); }

static uint64_t state = 88172645463325252u;
static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void all_patterns(const format *f, const char *how)
{
    int wrong = 0, back = 0, nans = 0, finite = 0;
    for (int i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float x = to_float(f, h);
        if (is_nan(f, h)) {
            uint32_t want = (uint32_t)(h & 0x8000) << 16 | 0x7fc00000u |
                            (uint32_t)(h & ((1 << f->mantissa) - 1)) << (23 - f->mantissa);
            nans += lksi_bits_f32(x) != want;
            nans += from_float(f, x) != (h | 1 << (f->mantissa - 1));
            nans += from_double(f, x) != (h | 1 << (f->mantissa - 1));
        } else {
            float want = (float)decode(f, h);
            wrong += lksi_bits_f32(x) != lksi_bits_f32(want);
            back += from_float(f, x) != h || from_double(f, x) != h;
        }
        int is = f == &f16 ? lksi_is_finite_f16(h) : lksi_is_finite_bf16(h);
        finite += is != (((h & 0x7fff) >> f->mantissa) != (1 << f->exponent) - 1) || is != lksi_is_finite_f32(x);
    }
    is_int(wrong, 0, "%s%s: all patterns to float", f->name, how);
    is_int(back, 0, "%s%s: and back, from float and double", f->name, how);
    is_int(nans, 0, "%s%s: NaNs stay, quiet, with sign and payload", f->name, how);
    is_int(finite, 0, "%s%s: finite test", f->name, how);
}

static void midpoints(const format *f, const char *how)
{
    int tie = 0, near = 0, once = 0, top = ((1 << f->exponent) - 1) << f->mantissa;
    for (int i = 0; i < top; i++) {
        double a = decode(f, (uint16_t)i);
        double b = i + 1 == top ? ldexp(1, 1 << (f->exponent - 1)) : decode(f, (uint16_t)(i + 1));
        double m = a + (b - a) / 2; /* exact in float too */
        uint16_t even = (uint16_t)(i % 2 ? i + 1 : i), low = (uint16_t)i, high = (uint16_t)(i + 1);
        uint32_t bits = lksi_bits_f32((float)m);
        tie += from_float(f, (float)m) != even || from_float(f, (float)-m) != (even | 0x8000)
            || from_double(f, m) != even;
        near += from_float(f, lksi_float_f32(bits - 1)) != low || from_float(f, lksi_float_f32(bits + 1)) != high;
        /* So close to the midpoint that float would round it to the midpoint. */
        once += from_double(f, nextafter(m, INFINITY)) != high || from_double(f, nextafter(m, 0)) != low ||
                from_double(f, -nextafter(m, INFINITY)) != (high | 0x8000);
    }
    is_int(tie, 0, "%s%s: midpoints go to even", f->name, how);
    is_int(near, 0, "%s%s: the floats beside them to the nearer", f->name, how);
    is_int(once, 0, "%s%s: double is rounded once", f->name, how);
}

static void random_numbers(const format *f)
{
    int wrong = 0, wide = 0, whole = 0;
    for (int i = 0; i < 200000; i++) {
        float x = lksi_float_f32((uint32_t)next());
        if (!lksi_is_nan_f32(x)) wrong += from_float(f, x) != encode(f, x);
        double d = lksi_float_f64((next() & 0x800fffffffffffffu) | (uint64_t)(1023 - 160 + next() % 320) << 52);
        wide += from_double(f, d) != encode(f, d);
        int64_t n = (int64_t)next() >> next() % 64;
        whole += from_int(f, n) != encode(f, (long double)n);
    }
    is_int(wrong, 0, "%s: random floats", f->name);
    is_int(wide, 0, "%s: random doubles", f->name);
    is_int(whole, 0, "%s: random int64", f->name);
    is_int(from_int(f, INT64_MIN), encode(f, -0x1p63L), "%s: the least int64", f->name);
    is_int(from_double(f, 0x1p-1074), 0, "%s: the least double", f->name);
    is_int(from_double(f, -INFINITY), encode(f, -INFINITY), "%s: infinity", f->name);
}

static void listed(void)
{
    static const struct { float x; int bits; } list[] = {
        {65504, 0x7bff}, {65519.99f, 0x7bff}, {65520, 0x7c00}, {2049, 0x6800}, {2051, 0x6802}, {0x1p-14f, 0x0400},
        {0x1p-24f, 1},   {0x1p-25f, 0},       {0x1.004p-25f, 1}, {-0.0f, 0x8000}, {0x1.8p-24f, 2}, {-INFINITY, 0xfc00},
    };
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++)
        is_int(lksi_f32_to_f16(list[i].x), list[i].bits, "%a to float16", (double)list[i].x);
    is_int(lksi_f32_to_bf16(lksi_float_f32(0x007fffff)), 0x0080, "the largest denormal float to bfloat16");
    is_int(lksi_bits_f32(lksi_bf16_to_f32(1)), 0x00010000, "the least bfloat16");
    is_int(lksi_f32_to_f16(lksi_float_f32(0xff800001)), 0xfe00, "a signalling NaN to float16");
    is_int(lksi_f32_to_bf16(lksi_float_f32(0x7fffffff)), 0x7fff, "a NaN full of ones to bfloat16");
}

static void arrays(void)
{
    enum { N = 65536 };
    static uint16_t h[N], back[N];
    static float x[N];
    int wrong = 0;
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    lksi_f16_to_f32_n(x, h, N - 3);
    for (int i = 0; i < N - 3; i++) wrong += lksi_bits_f32(x[i]) != lksi_bits_f32(lksi_f16_to_f32(h[i]));
    lksi_bf16_to_f32_n(x, h, N - 5);
    for (int i = 0; i < N - 5; i++) wrong += lksi_bits_f32(x[i]) != lksi_bits_f32(lksi_bf16_to_f32(h[i]));
    for (int i = 0; i < N; i++) x[i] = lksi_float_f32((uint32_t)next());
    lksi_f32_to_f16_n(back, x, N - 1);
    for (int i = 0; i < N - 1; i++) wrong += back[i] != lksi_f32_to_f16(x[i]);
    lksi_f32_to_bf16_n(back, x, N - 1);
    for (int i = 0; i < N - 1; i++) wrong += back[i] != lksi_f32_to_bf16(x[i]);
    is_int(wrong, 0, "arrays agree with single numbers");
}

static void integers(void)
{
    is_int(lksi_f64_to_i64(NAN), 0, "NaN to int64");
    is_int(lksi_f64_to_i64(1e30), INT64_MAX, "too large");
    is_int(lksi_f64_to_i64(-INFINITY), INT64_MIN, "too small");
    is_int(lksi_f64_to_i64(-2.9), -2, "toward zero");
    is_int(lksi_f64_to_i32(NAN), 0, "NaN to int32");
    is_int(lksi_f64_to_i32(2147483648.0), INT32_MAX, "too large for int32");
    is_int(lksi_f64_to_i32(-1e20), INT32_MIN, "too small for int32");
    is_int(lksi_f64_to_i32(-1.5), -1, "toward zero in int32");
    is_int(lksi_f64_to_u8(NAN), 0, "NaN to uint8");
    is_int(lksi_f64_to_u8(-1), 0, "negative to uint8");
    is_int(lksi_f64_to_u8(300), 255, "too large for uint8");
    is_int(lksi_f64_to_u8(254.99), 254, "toward zero in uint8");
    is_int(lksi_is_finite_f32(INFINITY) + lksi_is_finite_f32(-NAN) + lksi_is_finite_f64(NAN)
           + lksi_is_finite_f64(INFINITY),
           0, "infinite and NaN are not finite");
    is_int(lksi_is_finite_f32(3.4028234e38f) + lksi_is_finite_f32(1e-45f) + lksi_is_finite_f64(1.7e308), 3,
           "others are");
}

int main(void)
{
    const format *all[2] = {&f16, &bf16};
    for (int i = 0; i < 2; i++) {
        all_patterns(all[i], "");
        midpoints(all[i], "");
        random_numbers(all[i]);
    }
    listed();
    arrays();
    integers();
#ifdef __SSE2__
    /* The reference for denormals is not to be had under FTZ and DAZ, so patterns are compared with stored ones. */
    static float plain[2][65536];
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 65536; h++) plain[i][h] = to_float(all[i], (uint16_t)h);
    unsigned csr = _mm_getcsr();
    _mm_setcsr(csr | 0x8040);
    int wrong = 0, back = 0, low = 0;
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 65536; h++) {
            wrong += lksi_bits_f32(to_float(all[i], (uint16_t)h)) != lksi_bits_f32(plain[i][h]);
            if (is_nan(all[i], (uint16_t)h)) continue;
            back += from_float(all[i], plain[i][h]) != h;
            uint64_t d = (uint64_t)(h & 0x7f) << 45; /* denormal double: far below every denormal of the formats */
            low += from_double(all[i], lksi_float_f64(d)) != 0;
        }
    low += lksi_f64_to_bf16(lksi_float_f64(0x3790000000000000u)) != 0;
         /* 2^-134, half the least bfloat16: to even */
    low += lksi_f64_to_bf16(lksi_float_f64(0x3790000000000001u)) != 1;
    low += lksi_f32_to_bf16(lksi_float_f32(0x007fffff)) != 0x80;
    _mm_setcsr(csr);
    is_int(wrong, 0, "FTZ and DAZ: all patterns to float");
    is_int(back, 0, "FTZ and DAZ: and back");
    is_int(low, 0, "FTZ and DAZ: denormal results");
#endif
    return done();
}
