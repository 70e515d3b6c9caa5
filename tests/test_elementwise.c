/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_elementwise.c - elementwise rows, casts, copies, fills, dropout on the CPU, each ISA that runs here: random
 * shapes, strides, broadcasts and dtypes against double arithmetic; every half pattern through cast; special values;
 * accuracy of the float functions; integers that wrap; what must be refused.
 */
#include "base/half.h"
#include "kernels.h"

static kernels k;

/* --- random cases ------------------------------------------------------------------------------------------------- */

static double small_fill(int dtype) /* positive and negative, some zeros; integers small */
{
    if (dtype == LKS_BOOL) return (double)dice(2);
    if (!lks_dtype_is_float(dtype)) return (double)dice(20) - (dtype == LKS_U8 ? 0 : 9);
    return dice(12) == 0 ? 0.0 : rounded_to(dtype, dice_real(-4, 4));
}

static int random_shape(int64_t *shape)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 16, 33, 70};
    int n = (int)dice(6);
    if (dice(12) == 0) {
        shape[0] = 30000 + (int64_t)dice(80000);
        return 1;
    }
    if (dice(12) == 0) {
        shape[0] = 1 + (int64_t)dice(60);
        shape[1] = 700 + (int64_t)dice(3000);
        return 2;
    }
    for (int64_t d = 0, total = 1; d < n; d++) {
        do shape[d] = sizes[dice(8)];
        while (shape[d] * total > 50000);
        total *= shape[d];
    }
    if (n && dice(15) == 0) shape[dice((uint64_t)n)] = 0;
    return n;
}

/* A part of shape that broadcasts to it. */
static int narrowed(const int64_t *shape, int n, int64_t *out)
{
    int drop = dice(3) ? 0 : (int)dice((uint64_t)n + 1), m = n - drop;
    for (int d = 0; d < m; d++) out[d] = dice(5) ? shape[d + drop] : 1;
    return m;
}

typedef struct ref {
    const char *name;
    int op;
    double (*of)(double x, double z, double c);
    double tolerance;
    int attr;
} ref;

#define REF(name, expr)                                                                                        \
    static double ref_##name(double x, double z, double c)                                                     \
    {                                                                                                          \
        (void)z, (void)c;                                                                                      \
        return expr;                                                                                           \
    }
REF(add, x + z)
REF(sub, x - z)
REF(mul, x *z)
REF(div, x / z)
REF(eq, x == z)
REF(ne, x != z)
REF(lt, x < z)
REF(le, x <= z)
REF(gt, x > z)
REF(ge, x >= z)
REF(where, x ? z : c)
REF(affine, 3 * x - 2)
REF(exp, exp(x))
REF(log, log(x))
REF(sqrt, sqrt(x))
REF(tanh, tanh(x))
REF(sigmoid, 1 / (1 + exp(-x)))
REF(relu, x < 0 ? 0 : x)
REF(gelu, x * 0.5 * erfc(-x / sqrt(2)))
static double tanh_inner(double x) { return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
REF(gelu_tanh, 0.5 * x * (1 + tanh(tanh_inner(x))))
REF(sqrt_backward, x == 0 ? 0 : x / (2 * z))
REF(tanh_backward, x * (1 - z * z))
REF(sigmoid_backward, x *z *(1 - z))
REF(relu_backward, z <= 0 ? 0 : x)
REF(gelu_backward, x *(0.5 * erfc(-z / sqrt(2)) + z * exp(-z * z / 2) / sqrt(2 * M_PI)))
REF(gelu_tanh_backward, x *(0.5 * (1 + tanh(tanh_inner(z))) + 0.5 * z / pow(cosh(tanh_inner(z)), 2) * sqrt(2 / M_PI) *
                                                                   (1 + 3 * 0.044715 * z * z)))

static const ref refs[] = {
    {"add", LKSI_OP_add, ref_add, 0, 0},
    {"sub", LKSI_OP_sub, ref_sub, 0, 0},
    {"mul", LKSI_OP_mul, ref_mul, 0, 0},
    {"div", LKSI_OP_div, ref_div, 0, 0},
    {"eq", LKSI_OP_eq, ref_eq, 0, 0},
    {"ne", LKSI_OP_ne, ref_ne, 0, 0},
    {"lt", LKSI_OP_lt, ref_lt, 0, 0},
    {"le", LKSI_OP_le, ref_le, 0, 0},
    {"gt", LKSI_OP_gt, ref_gt, 0, 0},
    {"ge", LKSI_OP_ge, ref_ge, 0, 0},
    {"where", LKSI_OP_where, ref_where, 0, 0},
    {"affine", LKSI_OP_affine, ref_affine, 2e-6, 1},
    {"exp", LKSI_OP_exp, ref_exp, 2e-7, 0},
    {"log", LKSI_OP_log, ref_log, 2e-7, 0},
    {"sqrt", LKSI_OP_sqrt, ref_sqrt, 0, 0},
    {"tanh", LKSI_OP_tanh, ref_tanh, 4e-7, 0},
    {"sigmoid", LKSI_OP_sigmoid, ref_sigmoid, 4e-7, 0},
    {"relu", LKSI_OP_relu, ref_relu, 0, 0},
    {"gelu", LKSI_OP_gelu, ref_gelu, 1e-6, 0},
    {"gelu tanh form", LKSI_OP_gelu, ref_gelu_tanh, 3e-6, 2},
    {"sqrt_backward", LKSI_OP_sqrt_backward, ref_sqrt_backward, 2e-7, 0},
    {"tanh_backward", LKSI_OP_tanh_backward, ref_tanh_backward, 3e-6, 0},
    {"sigmoid_backward", LKSI_OP_sigmoid_backward, ref_sigmoid_backward, 3e-6, 0},
    {"relu_backward", LKSI_OP_relu_backward, ref_relu_backward, 0, 0},
    {"gelu_backward", LKSI_OP_gelu_backward, ref_gelu_backward, 3e-6, 0},
    {"gelu_backward tanh form", LKSI_OP_gelu_backward, ref_gelu_tanh_backward, 3e-6, 2},
};

/* How far a result of dtype may be from `want`, given the float error of the row relative to the size of its terms. */
static int fits(int dtype, double got, double want, double tolerance)
{
    if (dtype != LKS_F64) {
        double exact = rounded_to(dtype, rounded_to(LKS_F32, want));
        if (got == exact || (isnan(got) && isnan(exact))) return 1;
    }
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    double unit = dtype == LKS_F16 ? 0x1p-10 : dtype == LKS_BF16 ? 0x1p-7 : 0;
    if (dtype == LKS_F64) tolerance = 1e-13;
    else if (tolerance == 0) return 0;
    return fabs(got - want) <= tolerance * (fabs(want) + 1) + unit * fabs(want) + (unit > 0 ? 0x1p-24 : 0);
}

static void one_case(const ref *r, int nin, int *wrong)
{
    int64_t shape[LKS_MAX_DIMS], part[LKS_MAX_DIMS];
    lksi_view in[3], out[1] = {{0}};
    void *memory[3];
    lksi_attr attr = {.affine = {0}};
    int n = random_shape(shape), where = r->op == LKSI_OP_where, whole = (int)dice((uint64_t)nin);
    int like = dice(3) == 0, layout = (int)dice(4), first = (int)dice(LKS_C64);
    if (r->attr == 1) attr.affine.scale = 3, attr.affine.shift = -2;
    if (r->attr == 2) attr.gelu.tanh_form = 1;
    for (int i = 0; i < nin; i++) {
        int dtype = where && i == 0 ? LKS_BOOL : dice(2) ? first : (int)dice(LKS_C64);
        if (like && !(where && i == 0)) dtype = first;
        if (r->op == LKSI_OP_affine && dtype == LKS_BOOL) dtype = LKS_F32;
        if (r->op == LKSI_OP_sub && dtype == LKS_BOOL) dtype = LKS_U8;
        int m = i == whole || like ? n : narrowed(shape, n, part);
        in[i] = random_view(dtype, m, i == whole || like ? shape : part, like ? 0 : layout ? (int)dice(3) : 0,
                            small_fill,
                            &memory[i]);
    }
    lks_status s = kernels_run(&k, r->op, nin, in, &attr, 1, out);
    int bad = s != LKS_OK;
    if (bad) diag("%s: %s", r->name, k.why);
    int64_t count = bad ? 0 : lksi_numel(out);
    lks_dtype promoted = nin - where == 1 ? in[0].dtype : lksi_promote_views(&in[where], &in[where + 1]);
    for (int64_t i = 0; i < count && !bad; i++) {
        double v[3] = {0};
        for (int j = 0; j < nin; j++) v[j] = element(&in[j], out, i);
        if (r->op >= LKSI_OP_eq && r->op <= LKSI_OP_ge)
            for (int j = 0; j < 2; j++) v[j] = rounded_to(promoted, v[j]);
        else if (lks_dtype_is_float(out->dtype) && out->dtype != LKS_F64) /* the type computed in */
            for (int j = 0; j < nin; j++) v[j] = rounded_to(LKS_F32, v[j]);
        double got = element(out, out, i), want = r->of(v[0], v[1], v[2]);
        if (out->dtype == LKS_BOOL) want = want != 0;
        if (out->dtype == LKS_U8) want = (uint8_t)(int64_t)want;
        if (!fits(out->dtype, got, want, r->tolerance)) {
            char t[100];
            diag("%s: element %lld of %s %s: got %.9g, want %.9g; from %s %.9g, %s %.9g", r->name, (long long)i,
                 lks_dtype_name(out->dtype), lksi_shape_text(out, t, sizeof t), got, want, lks_dtype_name(in[0].dtype),
                     v[0],
                 nin > 1 ? lks_dtype_name(in[1].dtype) : "", v[1]);
            bad = 1;
        }
    }
    *wrong += bad;
    for (int i = 0; i < nin; i++) free(memory[i]);
    if (s == LKS_OK) free(out->data);
}

static void random_cases(const char *isa)
{
    for (unsigned i = 0; i < sizeof refs / sizeof *refs; i++) {
        int wrong = 0, nin = lksi_rows[refs[i].op].min_in;
        for (int j = 0; j < 60 && wrong < 3; j++) one_case(&refs[i], nin, &wrong);
        is_int(wrong, 0, "%s: %s, random cases", isa, refs[i].name);
    }
}

/* --- copies and casts --------------------------------------------------------------------------------------------- */

static double wide_fill(int dtype)
{
    if (dtype == LKS_BOOL) return (double)dice(2);
    if (dtype == LKS_U8) return (double)dice(256);
    if (!lks_dtype_is_float(dtype)) return (double)dice(1u << 31) - (1u << 30);
    return rounded_to(dtype, dice(9) == 0 ? ldexp(dice_real(-1, 1), (int)dice(60) - 30) : dice_real(-300, 300));
}

/* What v becomes in dtype. */
static double converted(int from, int to, double v)
{
    if (to == LKS_BOOL) return v != 0;
    if (lks_dtype_is_float(to)) return rounded_to(to, v);
    if (!lks_dtype_is_float(from)) return to == LKS_U8 ? (uint8_t)(int64_t)v : to == LKS_I32 ? (int32_t)(int64_t)v : v;
    double lo = to == LKS_U8 ? 0 : to == LKS_I32 ? INT32_MIN : -0x1p63,
        hi = to == LKS_U8 ? 255 : to == LKS_I32 ? INT32_MAX : 0x1p63;
    return isnan(v) ? 0 : trunc(v < lo ? lo : v > hi ? hi : v);
}

static void copies(const char *isa)
{
    int wrong[4] = {0};
    for (int j = 0; j < 500; j++) {
        int64_t shape[LKS_MAX_DIMS], part[LKS_MAX_DIMS];
        int n = random_shape(shape), what = (int)dice(4), to = (int)dice(LKS_C64);
        int from = what == 0 || dice(2) ? to : (int)dice(LKS_C64);
        void *memory, *target = NULL;
        int m = what >= 2 ? narrowed(shape, n, part) : n;
        lksi_view x = random_view(from, m, what >= 2 ? part : shape, (int)dice(3), what == 3 ? small_fill : wide_fill,
                                  &memory), y = {0}, before = {0};
        lksi_attr attr = {.cast = {.dtype = to}};
        static const int op[4] = {LKSI_OP_clone, LKSI_OP_cast, LKSI_OP_copy, LKSI_OP_accumulate};
        void *old = NULL;
        if (what >= 2) {
            y = random_view(to, n, shape, (int)dice(2), what == 3 ? small_fill : wide_fill, &target);
            int64_t bytes = span_of(&y);
            old = malloc(bytes ? (size_t)bytes : 1);
            memcpy(old, target, (size_t)bytes);
            before = y;
            before.data = old;
        }
        int bad = kernels_run(&k, op[what], 1, &x, &attr, 1, &y) != LKS_OK;
        for (int64_t i = 0, count = bad ? 0 : lksi_numel(&y); i < count && !bad; i++) {
            double v = element(&x, &y, i), got = element(&y, &y, i), want = converted(from, to, v);
            if (what == 3) {
                double b = element(&before, &before, i); /* v is rounded to the computing type first */
                double c = to == LKS_F64 ? v : lks_dtype_is_float(to) ? rounded_to(LKS_F32, v)
                    : converted(from, LKS_I64, v);
                want = to == LKS_F64            ? b + c
                       : lks_dtype_is_float(to) ? rounded_to(to, rounded_to(LKS_F32, b + c))
                                                : converted(LKS_I64, to, b + c);
            }
            bad = !(got == want || (isnan(got) && isnan(want)));
            if (bad) diag("%s %s to %s: element %lld: got %.17g, want %.17g from %.17g", lksi_rows[op[what]].name,
                          lks_dtype_name(from), lks_dtype_name(to), (long long)i, got, want, v);
        }
        /* Nothing beside the elements was touched: put the old ones back and compare memory. */
        if (what >= 2 && !bad) {
            for (int64_t i = 0; i < lksi_numel(&y); i++) {
                int64_t at = offset_of(&y, &y, i) * lks_dtype_size(to);
                memcpy((char *)target + at, (char *)old + at, (size_t)lks_dtype_size(to));
            }
            bad = memcmp(target, old, (size_t)span_of(&y)) != 0;
            if (bad) diag("%s wrote beside its target", lksi_rows[op[what]].name);
        }
        wrong[what] += bad;
        free(memory);
        free(old);
        free(what >= 2 ? target : y.data);
    }
    is_int(wrong[0], 0, "%s: clone, random cases", isa);
    is_int(wrong[1], 0, "%s: cast, random cases", isa);
    is_int(wrong[2], 0, "%s: copy, random cases", isa);
    is_int(wrong[3], 0, "%s: accumulate, random cases", isa);
}

static void halves(const char *isa)
{
    static uint16_t h[65536], back[65536];
    static float x[65536];
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    int64_t shape[1] = {65536};
    for (int dtype = LKS_F16; dtype <= LKS_BF16; dtype++) {
        lksi_view a = view_of(h, dtype, 1, shape), b = view_of(x, LKS_F32, 1, shape),
            c = view_of(back, dtype, 1, shape);
        int wrong = 0, round = 0, nan = 0;
        kernels_run(&k, LKSI_OP_copy, 1, &a, NULL, 1, &b);
        kernels_run(&k, LKSI_OP_copy, 1, &b, NULL, 1, &c);
        for (int i = 0; i < 65536; i++) {
            double v = value_at(dtype, h, i);
            uint16_t quiet = dtype == LKS_F16 ? 0x200 : 0x40;
            wrong += isnan(v) ? !isnan(x[i]) : memcmp(&x[i], &(float){(float)v}, 4) != 0;
            nan += isnan(v) && back[i] != (h[i] | quiet);
            round += !isnan(v) && back[i] != h[i];
        }
        is_int(wrong, 0, "%s: every %s to float32", isa, lks_dtype_name(dtype));
        is_int(round, 0, "%s: every %s to float32 and back", isa, lks_dtype_name(dtype));
        is_int(nan, 0, "%s: NaNs of %s keep sign and payload", isa, lks_dtype_name(dtype));
        /* The same through strided memory. */
        a.shape[0] = b.shape[0] = 32768;
        a.stride[0] = b.stride[0] = 2;
        memset(x, 0, sizeof x);
        kernels_run(&k, LKSI_OP_copy, 1, &a, NULL, 1, &b);
        for (wrong = 0, shape[0] = 65536; shape[0] > 0; shape[0] -= 2) {
            double v = value_at(dtype, h, shape[0] - 2);
            wrong += isnan(v) ? !isnan(x[shape[0] - 2]) : x[shape[0] - 2] != v;
        }
        shape[0] = 65536;
        is_int(wrong, 0, "%s: every second %s, strided", isa, lks_dtype_name(dtype));
    }
}

/* --- accuracy, special values ------------------------------------------------------------------------------------- */

static double unary(int op, int tanh_form, double x)
{
    float in = (float)x, y = 0;
    lksi_view a = view_of(&in, LKS_F32, 0, NULL), b = view_of(&y, LKS_F32, 0, NULL);
    lksi_attr attr = {.gelu = {.tanh_form = tanh_form}};
    kernels_run(&k, op, 1, &a, &attr, 1, &b);
    return y;
}

static void accuracy(const char *isa)
{
    enum { N = 1 << 18 };
    static float x[N], y[N];
    static const struct {
        const char *name;
        int op, form;
        double (*of)(double, double, double);
        double units, least;
    } f[] = {
        {"exp", LKSI_OP_exp, 0, ref_exp, 1.1, -200},        {"log", LKSI_OP_log, 0, ref_log, 1.1, 0},
        {"tanh", LKSI_OP_tanh, 0, ref_tanh, 2.7, -200},     {"sigmoid", LKSI_OP_sigmoid, 0, ref_sigmoid, 2.5, -200},
        {"gelu", LKSI_OP_gelu, 0, ref_gelu, 8, -5},         {"gelu tanh form", LKSI_OP_gelu, 1, ref_gelu_tanh, 25, -3},
        {"gelu tail", LKSI_OP_gelu, 0, ref_gelu, 12, -13},
    };
    int64_t shape[1] = {N};
    for (unsigned i = 0; i < sizeof f / sizeof *f; i++) {
        double worst = 0, at = 0;
        lksi_view a = view_of(x, LKS_F32, 1, shape), b = view_of(y, LKS_F32, 1, shape);
        lksi_attr attr = {.gelu = {.tanh_form = f[i].form}};
        for (int j = 0; j < N; j++) {
            double v = j % 2 ? ldexp(dice_real(0.5, 1), (int)dice(278) - 149) * (dice(2) ? 1 : -1)
                : dice_real(-110, 110);
            x[j] = (float)(j % 4 < 2 ? v : v / 16);
            if (!(x[j] >= f[i].least)) x[j] = -x[j];
        }
        kernels_run(&k, f[i].op, 1, &a, &attr, 1, &b);
        for (int j = 0; j < N; j++) {
            double want = f[i].of(x[j], 0, 0);
            int e;
            frexp(want, &e);
            double unit = ldexp(1, (e < -125 ? -125 : e) - 24), error = fabs(y[j] - want) / unit;
            if (rounded_to(LKS_F32, want) == y[j]) error = 0; /* infinities too */
            if (!(error <= worst)) worst = error, at = x[j];
        }
        ok(worst <= f[i].units, "%s: %s within %g units in the last place (%.2f at %a)", isa, f[i].name, f[i].units,
           worst, at);
    }
}

/* relu of 16-bit floats looks at bits alone: the same as by way of float32, for every pattern. */
static void relu_of_halves(const char *isa)
{
    enum { ALL = 65536 };
    static uint16_t x[ALL + 7], z[ALL + 7], y[ALL + 7], dx[ALL + 7];
    int64_t n[1] = {ALL + 7}; /* not whole vectors */
    for (int t = 0; t < 2; t++) {
        int dtype = t ? LKS_F16 : LKS_BF16, wrong = 0;
        for (int i = 0; i < ALL + 7; i++) x[i] = (uint16_t)i, z[i] = (uint16_t)(i * 40503u + 977);
        lksi_view in[2] = {view_of(x, dtype, 1, n), view_of(z, dtype, 1, n)};
        lksi_view out = view_of(y, dtype, 1, n), back = view_of(dx, dtype, 1, n);
        kernels_run(&k, LKSI_OP_relu, 1, in, NULL, 1, &out);
        kernels_run(&k, LKSI_OP_relu_backward, 2, in, NULL, 1, &back);
        for (int i = 0; i < ALL + 7; i++) {
            float v = t ? lksi_f16_to_f32(x[i]) : lksi_bf16_to_f32(x[i]);
            float w = t ? lksi_f16_to_f32(z[i]) : lksi_bf16_to_f32(z[i]);
            float r = v <= 0 ? 0 : v, d = w <= 0 ? 0 : v;
            wrong += y[i] != (t ? lksi_f32_to_f16(r) : lksi_f32_to_bf16(r));
            wrong += dx[i] != (t ? lksi_f32_to_f16(d) : lksi_f32_to_bf16(d));
        }
        is_int(wrong, 0, "%s: relu and its gradient of every %s", isa, lks_dtype_name(dtype));
    }
}

static void specials(const char *isa)
{
    double inf = INFINITY;
    is_double(unary(LKSI_OP_exp, 0, inf), inf, 0, "%s: exp(inf)", isa);
    is_double(unary(LKSI_OP_exp, 0, -inf), 0, 0, "%s: exp(-inf)", isa);
    is_double(unary(LKSI_OP_exp, 0, NAN), NAN, 0, "%s: exp(NaN)", isa);
    is_double(unary(LKSI_OP_exp, 0, 88.8), inf, 0, "%s: exp overflows to inf", isa);
    is_double(unary(LKSI_OP_log, 0, 0), -inf, 0, "%s: log(0)", isa);
    is_double(unary(LKSI_OP_log, 0, -1), NAN, 0, "%s: log(-1)", isa);
    is_double(unary(LKSI_OP_log, 0, inf), inf, 0, "%s: log(inf)", isa);
    is_double(unary(LKSI_OP_log, 0, NAN), NAN, 0, "%s: log(NaN)", isa);
    is_double(unary(LKSI_OP_tanh, 0, inf), 1, 0, "%s: tanh(inf)", isa);
    is_double(unary(LKSI_OP_tanh, 0, -inf), -1, 0, "%s: tanh(-inf)", isa);
    is_double(unary(LKSI_OP_tanh, 0, NAN), NAN, 0, "%s: tanh(NaN)", isa);
    ok(signbit(unary(LKSI_OP_tanh, 0, -0.0)), "%s: tanh(-0) is -0", isa);
    is_double(unary(LKSI_OP_sigmoid, 0, -inf), 0, 0, "%s: sigmoid(-inf)", isa);
    is_double(unary(LKSI_OP_sigmoid, 0, inf), 1, 0, "%s: sigmoid(inf)", isa);
    is_double(unary(LKSI_OP_sigmoid, 0, NAN), NAN, 0, "%s: sigmoid(NaN)", isa);
    is_double(unary(LKSI_OP_relu, 0, NAN), NAN, 0, "%s: relu(NaN) stays NaN", isa);
    is_double(unary(LKSI_OP_relu, 0, -inf), 0, 0, "%s: relu(-inf)", isa);
    for (int form = 0; form < 2; form++) {
        is_double(unary(LKSI_OP_gelu, form, inf), inf, 0, "%s: gelu(inf), form %d", isa, form);
        is_double(unary(LKSI_OP_gelu, form, NAN), NAN, 0, "%s: gelu(NaN), form %d", isa, form);
        is_double(unary(LKSI_OP_gelu, form, 1e20), (float)1e20, 0, "%s: gelu(1e20), form %d", isa, form);
        is_double(unary(LKSI_OP_gelu, form, -1e20), 0, 0, "%s: gelu(-1e20), form %d", isa, form);
        float one = 1, xs[3] = {1e20f, -1e20f, NAN}, want[3] = {1, 0, NAN}, y;
        for (int i = 0; i < 3; i++) {
            lksi_view in[2] = {view_of(&one, LKS_F32, 0, NULL), view_of(&xs[i], LKS_F32, 0, NULL)};
            lksi_view out = view_of(&y, LKS_F32, 0, NULL);
            lksi_attr attr = {.gelu = {.tanh_form = form}};
            kernels_run(&k, LKSI_OP_gelu_backward, 2, in, &attr, 1, &out);
            is_double(y, want[i], 0, "%s: slope of gelu at %g, form %d", isa, (double)xs[i], form);
        }
    }
    float dy[3] = {0, 1, -0.0f}, y[3] = {0, 0, 0}, dx[3];
    int64_t three[1] = {3};
    lksi_view in[2] = {view_of(dy, LKS_F32, 1, three), view_of(y, LKS_F32, 1, three)},
        out = view_of(dx, LKS_F32, 1, three);
    kernels_run(&k, LKSI_OP_sqrt_backward, 2, in, NULL, 1, &out);
    ok(dx[0] == 0 && isinf(dx[1]) && dx[2] == 0, "%s: sqrt at 0: gradient 0 where none comes in, else infinite", isa);
    float zero[2] = {-0.0f, 0.0f};
    int64_t two[1] = {2};
    lksi_view z = view_of(zero, LKS_F32, 1, two);
    lksi_attr negate = {.affine = {-1, 0}};
    lksi_view r = view_of(zero, LKS_F32, 1, two);
    kernels_run(&k, LKSI_OP_affine, 1, &z, &negate, 1, &r);
    ok(!signbit(zero[0]) && signbit(zero[1]), "%s: negation flips the sign of zeros", isa);
}

/* --- integers, bool, promotion ------------------------------------------------------------------------------------ */

static void integers(const char *isa)
{
    int64_t shape[1] = {2};
    int64_t a[2] = {INT64_MAX, INT64_MIN}, b[2] = {1, -1}, c[2];
    lksi_view in[2] = {view_of(a, LKS_I64, 1, shape), view_of(b, LKS_I64, 1, shape)},
        out = view_of(c, LKS_I64, 1, shape);
    kernels_run(&k, LKSI_OP_add, 2, in, NULL, 1, &out);
    ok(c[0] == INT64_MIN && c[1] == INT64_MAX, "%s: int64 addition wraps", isa);
    kernels_run(&k, LKSI_OP_mul, 2, in, NULL, 1, &out);
    ok(c[1] == INT64_MIN, "%s: int64 multiplication wraps", isa);
    a[0] = (1LL << 53) + 1, b[0] = 1LL << 53;
    lksi_view flag = {0};
    kernels_run(&k, LKSI_OP_gt, 2, in, NULL, 1, &flag);
    ok(flag.dtype == LKS_BOOL && ((uint8_t *)flag.data)[0] == 1, "%s: int64 is compared exactly", isa);
    free(flag.data);
    uint8_t u[2] = {200, 3}, v[2] = {100, 5}, w[2];
    lksi_view in8[2] = {view_of(u, LKS_U8, 1, shape), view_of(v, LKS_U8, 1, shape)},
        out8 = view_of(w, LKS_U8, 1, shape);
    kernels_run(&k, LKSI_OP_add, 2, in8, NULL, 1, &out8);
    ok(w[0] == 44 && w[1] == 8, "%s: uint8 addition wraps", isa);
    kernels_run(&k, LKSI_OP_sub, 2, in8, NULL, 1, &out8);
    ok(w[0] == 100 && w[1] == 254, "%s: uint8 subtraction wraps", isa);
    lksi_view q = {0};
    kernels_run(&k, LKSI_OP_div, 2, in8, NULL, 1, &q);
    ok(q.dtype == LKS_F32 && ((float *)q.data)[0] == 2.0f && ((float *)q.data)[1] == 0.6f,
       "%s: integer / integer is float32",
       isa);
    free(q.data);
    uint8_t s[2] = {1, 0}, t[2] = {1, 1}, r[2];
    lksi_view inb[2] = {view_of(s, LKS_BOOL, 1, shape), view_of(t, LKS_BOOL, 1, shape)},
        outb = view_of(r, LKS_BOOL, 1, shape);
    kernels_run(&k, LKSI_OP_add, 2, inb, NULL, 1, &outb);
    ok(r[0] == 1 && r[1] == 1, "%s: bool + bool is or", isa);
    kernels_run(&k, LKSI_OP_mul, 2, inb, NULL, 1, &outb);
    ok(r[0] == 1 && r[1] == 0, "%s: bool * bool is and", isa);
    /* Comparison in the promoted dtype: 2049 is 2048 in float16. */
    uint16_t h[2] = {0x6800, 0x6801};
    int32_t n[2] = {2049, 2049};
    lksi_view mixed[2] = {view_of(h, LKS_F16, 1, shape), view_of(n, LKS_I32, 1, shape)};
    flag = (lksi_view){0};
    kernels_run(&k, LKSI_OP_eq, 2, mixed, NULL, 1, &flag);
    ok(((uint8_t *)flag.data)[0] == 1 && ((uint8_t *)flag.data)[1] == 0, "%s: float16 == int32 compares in float16",
       isa);
    free(flag.data);
    float big = 1e-3f;
    lksi_view half[2] = {view_of(h, LKS_F16, 1, shape), view_of(&big, LKS_F32, 0, NULL)}, keep = {0};
    kernels_run(&k, LKSI_OP_mul, 2, half, NULL, 1, &keep);
    is_int(keep.dtype, LKS_F16, "%s: a 0-dim float32 does not widen float16", isa);
    free(keep.data);
}

static void refusals(void)
{
    int64_t three[1] = {3}, four[1] = {4}, grid[2] = {2, 3};
    float f[6] = {0};
    int64_t n[3] = {0};
    uint8_t b[3] = {0};
    lksi_view x = view_of(f, LKS_F32, 1, three), y = view_of(f, LKS_F32, 1, four), out = {0};
    lksi_view in[3] = {x, y, y};
    is_int(kernels_run(&k, LKSI_OP_add, 2, in, NULL, 1, &out), LKS_ERR_SHAPE, "shapes that do not broadcast");
    ok(strstr(k.why, "[3]") && strstr(k.why, "[4]"), "the text has both shapes: %s", k.why);
    in[1] = in[2] = x;
    is_int(kernels_run(&k, LKSI_OP_where, 3, in, NULL, 1, &out), LKS_ERR_DTYPE, "a condition that is not bool: %s",
           k.why);
    lksi_view i = view_of(n, LKS_I64, 1, three), bool2[2] = {view_of(b, LKS_BOOL, 1, three),
                                                             view_of(b, LKS_BOOL, 1, three)};
    lksi_attr half = {.affine = {0.5, 0}}, nan = {.affine = {1, NAN}}, p = {.random = {.a = 1.0}};
    is_int(kernels_run(&k, LKSI_OP_affine, 1, &i, &half, 1, &out), LKS_ERR_ARGUMENT, "half an integer: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_affine, 1, &i, &nan, 1, &out), LKS_ERR_ARGUMENT, "an integer plus NaN");
    is_int(kernels_run(&k, LKSI_OP_sub, 2, bool2, NULL, 1, &out), LKS_ERR_DTYPE, "bool - bool: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_dropout, 1, &x, &p, 1, &out), LKS_ERR_ARGUMENT, "dropout of everything: %s", k.why);
    lksi_attr dtype = {.cast = {.dtype = 99}};
    is_int(kernels_run(&k, LKSI_OP_cast, 1, &x, &dtype, 1, &out), LKS_ERR_DTYPE, "cast to dtype 99");
    lksi_view wide = view_of(f, LKS_F32, 2, grid), narrow = view_of(f, LKS_F32, 1, three);
    is_int(kernels_run(&k, LKSI_OP_copy, 1, &wide, NULL, 1, &narrow), LKS_ERR_SHAPE, "a copy to fewer elements: %s",
           k.why);
    wide.stride[0] = 0;
    is_int(kernels_run(&k, LKSI_OP_copy, 1, &x, NULL, 1, &wide), LKS_ERR_ARGUMENT, "a copy into an expanded view: %s",
           k.why);
    is_int(kernels_run(&k, LKSI_OP_uniform, 0, NULL, &(lksi_attr){.random = {.a = 1, .b = 1}}, 1, &x), LKS_ERR_ARGUMENT,
           "an empty interval: %s", k.why);
    is_int(kernels_run(&k, LKSI_OP_normal, 0, NULL, &(lksi_attr){.random = {.a = 0, .b = 1}}, 1, &i), LKS_ERR_DTYPE,
           "random integers: %s", k.why);
}

/* --- memory order ------------------------------------------------------------------------------------------------- */

static void channels_last(void)
{
    int64_t shape[4] = {2, 3, 4, 5}, column[1] = {5}, channel[3] = {3, 1, 1};
    float a[120], b[120], c[5] = {0};
    for (int i = 0; i < 120; i++) a[i] = (float)i, b[i] = (float)(2 * i);
    lksi_view x = view_of(a, LKS_F32, 4, shape), y = view_of(b, LKS_F32, 4, shape),
        bias = view_of(c, LKS_F32, 3, channel);
    lksi_view last = x, in[2], out = {0};
    lksi_channels_last_strides(&last);
    in[0] = last, in[1] = bias;
    kernels_run(&k, LKSI_OP_add, 2, in, NULL, 1, &out);
    ok(lksi_is_channels_last(&out), "channels-last + bias stays channels-last");
    free(out.data);
    out = (lksi_view){0};
    in[1] = y;
    kernels_run(&k, LKSI_OP_add, 2, in, NULL, 1, &out);
    ok(lksi_is_contiguous(&out), "channels-last + row-major is row-major");
    int wrong = 0;
    for (int i = 0; i < 120; i++) wrong += element(&out, &out, i) != element(&last, &out, i) + b[i];
    is_int(wrong, 0, "and right");
    free(out.data);
    out = (lksi_view){0};
    kernels_run(&k, LKSI_OP_clone, 1, &last, NULL, 1, &out);
    ok(lksi_is_contiguous(&out), "a clone is row-major");
    free(out.data);
    out = (lksi_view){0};
    kernels_run(&k, LKSI_OP_cast, 1, &last, &(lksi_attr){.cast = {.dtype = LKS_BF16}}, 1, &out);
    ok(lksi_is_channels_last(&out), "a cast keeps channels-last");
    free(out.data);
    /* Strides of size-1 dims mean nothing; a repeated dim is not contiguous. */
    lksi_view col = view_of(c, LKS_F32, 1, column), odd = x;
    for (int i = 0; i < 5; i++) c[i] = (float)i;
    int64_t square[4] = {1, 1, 5, 5};
    odd = view_of(c, LKS_F32, 4, square);
    odd.stride[0] = 77, odd.stride[1] = 0, odd.stride[2] = 1, odd.stride[3] = 0;
    out = (lksi_view){0};
    kernels_run(&k, LKSI_OP_cast, 1, &odd, &(lksi_attr){.cast = {.dtype = LKS_F16}}, 1, &out);
    wrong = 0;
    for (int i = 0; i < 25; i++) wrong += element(&out, &out, i) != c[i / 5];
    is_int(wrong, 0, "an expanded column cast to float16");
    free(out.data);
    (void)col;
}

/* --- fills, arange, slices ---------------------------------------------------------------------------------------- */

static void fills(const char *isa)
{
    int wrong = 0;
    for (int dtype = 0; dtype < LKS_C64; dtype++) {
        static const double values[] = {0, 1, -1.5, 300, 65519.99, 1e300};
        for (unsigned i = 0; i < 6; i++) {
            int64_t shape[3] = {3, 40, 7};
            void *memory;
            lksi_view y = random_view(dtype, 3, shape, 1, small_fill, &memory);
            wrong += kernels_run(&k, LKSI_OP_fill, 0, NULL, &(lksi_attr){.fill = {values[i]}}, 1, &y) != LKS_OK;
            double want = converted(LKS_F64, dtype, values[i]);
            if (dtype == LKS_I64 && want >= 0x1p63) want = (double)INT64_MAX;
            for (int j = 0; j < 840; j++) wrong += element(&y, &y, j) != want;
            free(memory);
        }
    }
    is_int(wrong, 0, "%s: fill in every dtype", isa);
    wrong = 0;
    for (int dtype = 0; dtype < LKS_BOOL; dtype++) {
        int64_t shape[1] = {70000};
        void *memory;
        lksi_view y = random_view(dtype, 1, shape, 0, small_fill, &memory);
        wrong += kernels_run(&k, LKSI_OP_arange, 0, NULL, NULL, 1, &y) != LKS_OK;
        for (int j = 0; j < 70000; j++) {
            double want = converted(LKS_I64, dtype, j);
            wrong += element(&y, &y, j) != want;
        }
        free(memory);
    }
    is_int(wrong, 0, "%s: arange in every dtype", isa);
    wrong = 0;
    for (int j = 0; j < 100; j++) {
        int64_t shape[3] = {1 + (int64_t)dice(5), 1 + (int64_t)dice(9), (int64_t)dice(6)};
        int d = (int)dice(3), step = 1 + (int)dice(3);
        int64_t start = (int64_t)dice(4), size = shape[d] ? start + (shape[d] - 1) * step + 1 + (int64_t)dice(4) : 5;
        void *memory;
        lksi_view dy = random_view(dice(2) ? LKS_F32 : LKS_BF16, 3, shape, 1, small_fill, &memory), dx = {0};
        lksi_attr attr = {.slice = {.dim = d, .start = start, .stop = size, .step = step, .size = size}};
        if (kernels_run(&k, LKSI_OP_slice_backward, 1, &dy, &attr, 1, &dx) != LKS_OK) {
            wrong++;
            diag("%s", k.why);
        } else {
            double sum = 0, total = 0;
            for (int64_t i = 0; i < lksi_numel(&dx); i++) total += fabs(element(&dx, &dx, i));
            lksi_view window = dx;
            window.data = (char *)dx.data + start * dx.stride[d] * lks_dtype_size(dx.dtype);
            window.shape[d] = shape[d];
            window.stride[d] *= step;
            for (int64_t i = 0; i < lksi_numel(&dy); i++) {
                wrong += element(&window, &dy, i) != element(&dy, &dy, i);
                sum += fabs(element(&dy, &dy, i));
            }
            wrong += fabs(total - sum) > 1e-9 * sum; /* the rest is 0 */
            free(dx.data);
        }
        free(memory);
    }
    is_int(wrong, 0, "%s: slice_backward, random cases", isa);
    float f[5] = {0};
    int64_t five[1] = {5};
    lksi_view dy = view_of(f, LKS_F32, 1, five), dx = {0};
    is_int(kernels_run(&k, LKSI_OP_slice_backward, 1, &dy, &(lksi_attr){.slice = {.start = 2, .step = 2, .size = 10}},
                       1, &dx),
           LKS_ERR_SHAPE, "%s: a slice that does not fit: %s", isa, k.why);
}

/* --- random rows -------------------------------------------------------------------------------------------------- */

static void random_rows(const char *isa)
{
    enum { N = 70001 };
    static float x[N], y[N], z[N], whole[N];
    int64_t shape[1] = {N};
    for (int i = 0; i < N; i++) x[i] = 1;
    lksi_view in = view_of(x, LKS_F32, 1, shape), out = view_of(y, LKS_F32, 1, shape);
    lksi_attr attr = {.random = {.a = 0.3, .offset = 5, .call = 9}};
    k.rng = (lksi_rng){.seed = 11, .attempt = 4};
    kernels_run(&k, LKSI_OP_dropout, 1, &in, &attr, 1, &out);
    int kept = 0, other = 0;
    for (int i = 0; i < N; i++) {
        kept += y[i] != 0;
        other += y[i] != 0 && y[i] != (float)(1 / 0.7);
    }
    is_int(other, 0, "%s: dropout gives 0 or x / (1 - p)", isa);
    ok(fabs(kept / (double)N - 0.7) < 0.01, "%s: it keeps 1 - p (%.4f)", isa, kept / (double)N);
    /* In pieces, by strides, in other dtypes: the same mask. */
    int wrong = 0;
    for (int at = 0; at < N; at += 9973) {
        int64_t n[1] = {N - at < 9973 ? N - at : 9973};
        lksi_view a = view_of(x, LKS_F32, 1, n), b = view_of(z, LKS_F32, 1, n);
        lksi_attr piece = attr;
        piece.random.offset += at;
        kernels_run(&k, LKSI_OP_dropout, 1, &a, &piece, 1, &b);
        wrong += memcmp(z, y + at, (size_t)n[0] * 4) != 0;
    }
    is_int(wrong, 0, "%s: the mask does not depend on the split", isa);
    for (int dtype = LKS_F64; dtype <= LKS_BF16; dtype++) {
        int64_t grid[4] = {7, 10, 10, 100};
        void *memory;
        lksi_view a = random_view(dtype, 4, grid, 0, small_fill, &memory), b = {0};
        for (int i = 0; i < N - 1; i++) set_value(dtype, memory, i, 1);
        lksi_channels_last_strides(&a);
        kernels_run(&k, LKSI_OP_dropout, 1, &a, &attr, 1, &b);
        wrong = !lksi_is_channels_last(&b);
        for (int i = 0; i < N - 1; i++) wrong += (element(&b, &b, i) != 0) != (y[i] != 0);
        is_int(wrong, 0, "%s: %s, channels-last: the same mask", isa, lks_dtype_name(dtype));
        free(memory);
        free(b.data);
    }
    attr.random.a = 0;
    for (int i = 0; i < N; i++) x[i] = (float)i;
    kernels_run(&k, LKSI_OP_dropout, 1, &in, &attr, 1, &out);
    ok(!memcmp(x, y, sizeof x), "%s: p = 0 copies", isa);
    for (int normal = 0; normal < 2; normal++) {
        int op = normal ? LKSI_OP_normal : LKSI_OP_uniform;
        attr = (lksi_attr){.random = {.a = 0.1, .b = 0.3, .offset = 3, .call = 1}};
        lksi_view w = view_of(whole, LKS_F32, 1, shape);
        kernels_run(&k, op, 0, NULL, &attr, 1, &w);
        double sum = 0, square = 0, low = 1, high = 0;
        for (int i = 0; i < N; i++) {
            sum += whole[i];
            square += (double)whole[i] * whole[i];
            low = fmin(low, whole[i]);
            high = fmax(high, whole[i]);
        }
        double mean = sum / N, deviation = sqrt(square / N - mean * mean);
        ok(fabs(mean - (normal ? 0.1 : 0.2)) < 0.005, "%s: %s: mean %.4f", isa, lksi_rows[op].name, mean);
        ok(fabs(deviation - (normal ? 0.3 : 0.2 / sqrt(12))) < 0.005, "%s: deviation %.4f", isa, deviation);
        if (!normal) ok(low >= 0.1f && high < 0.3, "%s: uniform stays in [a, b): %.9g to %.9g", isa, low, high);
        wrong = 0;
        for (int at = 0; at < N; at += 7777) {
            int64_t n[1] = {N - at < 7777 ? N - at : 7777};
            lksi_view b = view_of(z, LKS_F32, 1, n);
            lksi_attr piece = attr;
            piece.random.offset += at;
            kernels_run(&k, op, 0, NULL, &piece, 1, &b);
            wrong += memcmp(z, whole + at, (size_t)n[0] * 4) != 0;
        }
        is_int(wrong, 0, "%s: %s does not depend on the split", isa, lksi_rows[op].name);
        for (int dtype = LKS_F64; dtype <= LKS_BF16; dtype++) {
            int64_t n[1] = {5001};
            void *memory;
            lksi_view b = random_view(dtype, 1, n, 1, small_fill, &memory);
            kernels_run(&k, op, 0, NULL, &attr, 1, &b);
            wrong = 0;
            sum = 0;
            for (int i = 0; i < n[0]; i++) {
                double v = element(&b, &b, i);
                sum += v;
                if (!normal) wrong += !(v >= 0.1 && v < 0.3);
                if (dtype != LKS_F64) wrong += !(fabs(v - whole[i]) <= fabs(whole[i]) * (dtype == LKS_F16 ? 0x1p-10
                                                                                         : 0x1p-7));
            }
            ok(wrong == 0 && fabs(sum / 5001 - (normal ? 0.1 : 0.2)) < 0.02, "%s: %s in %s", isa, lksi_rows[op].name,
               lks_dtype_name(dtype));
            free(memory);
        }
    }
}

int main(void)
{
    static const char *const isas[] = {"base", "avx2", "avx512"};
    static float first[1000];
    for (int i = 0; i < 3; i++) {
        if (!kernels_open(&k, isas[i], 2)) {
            skip(1, "%s: not on this processor or not built", isas[i]);
            continue;
        }
        random_cases(isas[i]);
        copies(isas[i]);
        halves(isas[i]);
        accuracy(isas[i]);
        specials(isas[i]);
        relu_of_halves(isas[i]);
        integers(isas[i]);
        fills(isas[i]);
        random_rows(isas[i]);
        float y[1000];
        int64_t n[1] = {1000};
        lksi_view v = view_of(y, LKS_F32, 1, n);
        k.rng = (lksi_rng){.seed = 1};
        kernels_run(&k, LKSI_OP_normal, 0, NULL, &(lksi_attr){.random = {.b = 1}}, 1, &v);
        if (i == 0) memcpy(first, y, sizeof y);
        else ok(!memcmp(first, y, sizeof y), "%s: normal numbers have the bits of the base build", isas[i]);
        kernels_close(&k);
    }
    if (!kernels_open(&k, NULL, 1)) bail("no CPU backend");
    refusals();
    channels_last();
    kernels_close(&k);
    return done();
}
