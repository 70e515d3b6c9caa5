/* SPDX-License-Identifier: BSD-3-Clause
 *
 * elementwise.c - ops that treat each element alone. A row is one loop per compute type over contiguous arrays
 * (`loops`); one driver brings any dtype, stride and broadcast to these loops in blocks. Small contiguous tensors of
 * one dtype go straight to the loop. Compiled once per ISA.
 */
#include "cpu/block.h"
#include "table/complex.h"
#include "table/scalar.h"
#undef complex
#include <math.h>

/* y, a, b, c: n contiguous elements of the compute type. y may be one of the inputs, never overlaps otherwise. */
typedef void (*loop)(void *y, const void *a, const void *b, const void *c, int64_t n, const lksi_attr *attr);
typedef struct loops {
    loop of[LKSI_CLASSES]; /* by class; no int64 loop: integers are computed as float */
    int raw_in;     /* input 0 is a condition */
    int compare;    /* result is bool; operands are brought to the promoted dtype first */
    int parts;      /* complex operands, a real result: loops by the class of the operands */
    int pairs;      /* real operands, a complex result: loops by the class of the result */
} loops;

#define LOOP(NAME, Y, T, EXPR)                                                                                 \
    static void NAME(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr) \
    {                                                                                                          \
        (void)b_, (void)c_, (void)attr;                                                                        \
        Y *y = y_;                                                                                             \
        const T *p = a_, *q = b_;                                                                              \
        (void)q;                                                                                               \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                   \
        {                                                                                                      \
            EXPR;                                                                                              \
        }                                                                                                      \
    }

/* x: input a; z: input b */
#define UNARY(NAME, T, EXPR) LOOP(NAME, T, T, T x = p[i]; y[i] = (EXPR))
#define BINARY(NAME, Y, T, EXPR) LOOP(NAME, Y, T, T x = p[i]; T z = q[i]; y[i] = (Y)(EXPR))

BINARY(add_f32, float, float, x + z)
BINARY(add_f64, double, double, x + z)
BINARY(add_i64, uint64_t, uint64_t, x + z)
BINARY(sub_f32, float, float, x - z)
BINARY(sub_f64, double, double, x - z)
BINARY(sub_i64, uint64_t, uint64_t, x - z)
BINARY(mul_f32, float, float, x * z)
BINARY(mul_f64, double, double, x * z)
BINARY(mul_i64, uint64_t, uint64_t, x * z)
BINARY(div_f32, float, float, x / z)
BINARY(div_f64, double, double, x / z)

#define COMPARE(name, op)                                                                                      \
    BINARY(name##_f32, uint8_t, float, x op z)                                                                 \
    BINARY(name##_f64, uint8_t, double, x op z)                                                                \
    BINARY(name##_i64, uint8_t, int64_t, x op z)
COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)

#define WHERE(NAME, T)                                                                                         \
    static void NAME(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr) \
    {                                                                                                          \
        (void)attr;                                                                                            \
        T *y = y_;                                                                                             \
        const uint8_t *p = a_;                                                                                 \
        const T *q = b_, *r = c_;                                                                              \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                   \
        {                                                                                                      \
            T u = q[i], v = r[i];                                                                              \
            y[i] = p[i] ? u : v;                                                                               \
        }                                                                                                      \
    }
/* Bits are chosen, so NaNs pass unchanged. */
WHERE(where_32, uint32_t)
WHERE(where_64, uint64_t)

/* scale 1 adds, shift 0 multiplies: so that -0 and infinities come out as from one operation. */
#define AFFINE(NAME, T)                                                                                        \
    static void NAME(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr) \
    {                                                                                                          \
        (void)b_, (void)c_;                                                                                    \
        T *y = y_, scale = (T)attr->affine.scale, shift = (T)attr->affine.shift;                               \
        const T *p = a_;                                                                                       \
        if (attr->affine.shift == 0.0) {                                                                       \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = scale * p[i];                           \
        } else if (attr->affine.scale == 1.0) {                                                                \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = p[i] + shift;                           \
        } else {                                                                                               \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = scale * p[i] + shift;                   \
        }                                                                                                      \
    }
AFFINE(affine_f32, float)
AFFINE(affine_f64, double)
static void affine_i64(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr)
{
    (void)b_, (void)c_;
    uint64_t *y = y_, scale = (uint64_t)(int64_t)attr->affine.scale, shift = (uint64_t)(int64_t)attr->affine.shift;
    const uint64_t *p = a_;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) y[i] = scale * p[i] + shift;
}

UNARY(exp_f32, float, lksi_expf(x))
UNARY(exp_f64, double, exp(x))
UNARY(log_f32, float, lksi_logf(x))
UNARY(log_f64, double, log(x))
UNARY(sqrt_f32, float, __builtin_sqrtf(x))
UNARY(sqrt_f64, double, __builtin_sqrt(x))
UNARY(tanh_f32, float, lksi_tanhf(x))
UNARY(tanh_f64, double, tanh(x))
UNARY(sigmoid_f32, float, lksi_sigmoidf(x))
UNARY(sigmoid_f64, double, lksi_sigmoid(x))
UNARY(relu_f32, float, x <= 0.0f ? 0.0f : x) /* NaN is not <= 0 */
UNARY(relu_f64, double, x <= 0.0 ? 0.0 : x)
UNARY(relu_i64, int64_t, x < 0 ? 0 : x)
UNARY(gelu_erf_f32, float, lksi_geluf(x))
UNARY(gelu_erf_f64, double, lksi_gelu(x))
UNARY(gelu_tanh_f32, float, lksi_gelu_tanhf(x))
UNARY(gelu_tanh_f64, double, lksi_gelu_tanh(x))

BINARY(sqrt_backward_f32, float, float, x == 0.0f ? 0.0f : x / (z + z))
BINARY(sqrt_backward_f64, double, double, x == 0.0 ? 0.0 : x / (z + z))
BINARY(tanh_backward_f32, float, float, x * (1.0f - z * z))
BINARY(tanh_backward_f64, double, double, x * (1.0 - z * z))
BINARY(sigmoid_backward_f32, float, float, x * (z * (1.0f - z)))
BINARY(sigmoid_backward_f64, double, double, x * (z * (1.0 - z)))
BINARY(relu_backward_f32, float, float, z <= 0.0f ? 0.0f : x)
BINARY(relu_backward_f64, double, double, z <= 0.0 ? 0.0 : x)
BINARY(gelu_erf_backward_f32, float, float, x * lksi_gelu_slopef(z))
BINARY(gelu_erf_backward_f64, double, double, x * lksi_gelu_slope(z))
BINARY(gelu_tanh_backward_f32, float, float, x * lksi_gelu_tanh_slopef(z))
BINARY(gelu_tanh_backward_f64, double, double, x * lksi_gelu_tanh_slope(z))

/* Halves are rounded to even; a NaN stays one. level: as a whole number, before it is clamped. */
#define QUANTIZE(T, SUFFIX, RINT)                                                                              \
    static inline T level_##SUFFIX(T x, const lksi_attr *attr)                                                 \
    {                                                                                                          \
        return RINT(x * ((T)1 / (T)attr->quantize.scale)) + (T)attr->quantize.zero;                            \
    }                                                                                                          \
    static void fake_quantize_##SUFFIX(void *y_, const void *a_, const void *b_, const void *c_, int64_t n,    \
                                       const lksi_attr *attr)                                                  \
    {                                                                                                          \
        T *y = y_, low = (T)attr->quantize.min, high = (T)attr->quantize.max;                                  \
        const T *p = a_, zero = (T)attr->quantize.zero, scale = (T)attr->quantize.scale;                       \
        (void)b_, (void)c_;                                                                                    \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                   \
        {                                                                                                      \
            T v = level_##SUFFIX(p[i], attr);                                                                  \
            v = v < low ? low : v;                                                                             \
            y[i] = ((v > high ? high : v) - zero) * scale;                                                     \
        }                                                                                                      \
    }                                                                                                          \
    static void fake_quantize_backward_##SUFFIX(void *y_, const void *a_, const void *b_, const void *c_,      \
                                                int64_t n, const lksi_attr *attr)                              \
    {                                                                                                          \
        T *y = y_, low = (T)attr->quantize.min, high = (T)attr->quantize.max;                                  \
        const T *dy = a_, *p = b_;                                                                             \
        (void)c_;                                                                                              \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                   \
        {                                                                                                      \
            T v = level_##SUFFIX(p[i], attr);                                                                  \
            y[i] = v >= low && v <= high ? dy[i] : 0;                                                          \
        }                                                                                                      \
    }
QUANTIZE(float, f32, __builtin_rintf)
QUANTIZE(double, f64, __builtin_rint)

/* Formulas of scalar.def: by the number of inputs, with numbers or without. */
#define SCALAR_LOOP(NAME, T, CALL)                                                                             \
    static void NAME(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr) \
    {                                                                                                          \
        T *y = y_;                                                                                             \
        const T *p = a_, *q = b_, *r = c_;                                                                     \
        const T a = number_##T(attr->scalar.a), b = number_##T(attr->scalar.b);                                \
        (void)q, (void)r, (void)a, (void)b;                                                                    \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = CALL;                                      \
    }
static float number_float(double v) { return (float)v; }
static double number_double(double v) { return v; }
static int64_t number_int64_t(double v)
{
    return v >= 0x1p63 ? INT64_MAX : v <= -0x1p63 ? INT64_MIN : (int64_t)v;
}
#define SCALAR_10(f) f(p[i])
#define SCALAR_11(f) f(p[i], a, b)
#define SCALAR_20(f) f(p[i], q[i])
#define SCALAR_21(f) f(p[i], q[i], a, b)
#define SCALAR_30(f) f(p[i], q[i], r[i])
#define SCALAR_31(f) f(p[i], q[i], r[i], a, b)
#define SCALAR_INT_0(name, CALL)
#define SCALAR_INT_1(name, CALL) SCALAR_LOOP(name##_i64, int64_t, CALL(lksi_##name##i))
#define SCALAR(inputs, numbers, integers, name)                                                                \
    SCALAR_LOOP(name##_f32, float, SCALAR_##inputs##numbers(lksi_##name##f))                                   \
    SCALAR_LOOP(name##_f64, double, SCALAR_##inputs##numbers(lksi_##name))                                     \
    SCALAR_INT_##integers(name, SCALAR_##inputs##numbers)
#include "table/scalar.def"

/* Arguments of many turns are rare: a block with one is left to libm. */
#define TURN(name)                                                                                             \
    static void name##_f32(void *y_, const void *a_, const void *b_, const void *c_, int64_t n, const lksi_attr *attr) \
    {                                                                                                          \
        (void)b_, (void)c_, (void)attr;                                                                        \
        float *y = y_;                                                                                         \
        const float *p = a_;                                                                                   \
        int far = 0;                                                                                           \
        for (int64_t i = 0; i < n; i++) far |= lksi_absf(p[i]) > LKSI_TURN_LIMIT;                              \
        if (far) {                                                                                             \
            for (int64_t i = 0; i < n; i++) y[i] = (float)name((double)p[i]);                                  \
        } else {                                                                                               \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = lksi_##name##f(p[i]);                  \
        }                                                                                                      \
    }
TURN(sin)
TURN(cos)
TURN(tan)
UNARY(sin_f64, double, sin(x))
UNARY(cos_f64, double, cos(x))
UNARY(tan_f64, double, tan(x))

/* --- complex: p, q, y are pairs --- */

#define PAIRS(name, EXPR)                                                                                      \
    LOOP(name##_c64, lksi_c64, lksi_c64, typedef float real; lksi_c64 x = p[i]; EXPR)                           \
    LOOP(name##_c128, lksi_c128, lksi_c128, typedef double real; lksi_c128 x = p[i]; EXPR)
PAIRS(add, y[i].re = x.re + q[i].re; y[i].im = x.im + q[i].im; (void)(real)0)
PAIRS(sub, y[i].re = x.re - q[i].re; y[i].im = x.im - q[i].im; (void)(real)0)
PAIRS(mul, real c = q[i].re; real d = q[i].im; y[i].re = x.re * c - x.im * d; y[i].im = x.re * d + x.im * c)
PAIRS(conj, y[i].re = x.re; y[i].im = -x.im; (void)(real)0)
#define PAIRS_COMPARE(name, op, join)                                                                          \
    LOOP(name##_c64, uint8_t, lksi_c64, y[i] = (p[i].re op q[i].re) join (p[i].im op q[i].im))                       \
    LOOP(name##_c128, uint8_t, lksi_c128, y[i] = (p[i].re op q[i].re) join (p[i].im op q[i].im))
PAIRS_COMPARE(eq, ==, &)
PAIRS_COMPARE(ne, !=, |)
WHERE(where_128, lksi_c128)

LOOP(div_c64, lksi_c64, lksi_c64, lksi_complex_divf(p[i].re, p[i].im, q[i].re, q[i].im, &y[i].re, &y[i].im))
LOOP(div_c128, lksi_c128, lksi_c128, lksi_complex_div(p[i].re, p[i].im, q[i].re, q[i].im, &y[i].re, &y[i].im))

#define PAIRS_AFFINE(NAME, C, T)                                                                               \
    LOOP(NAME, C, C, C x = p[i]; T s = (T)attr->affine.scale; T t = (T)attr->affine.shift;                       \
         y[i].re = t == 0 ? s * x.re : s == 1 ? x.re + t : s * x.re + t; y[i].im = s * x.im)
PAIRS_AFFINE(affine_c64, lksi_c64, float)
PAIRS_AFFINE(affine_c128, lksi_c128, double)
LOOP(exp_c64, lksi_c64, lksi_c64, double re; double im; lksi_complex_exp(p[i].re, p[i].im, &re, &im);
     y[i].re = (float)re; y[i].im = (float)im)
LOOP(exp_c128, lksi_c128, lksi_c128, lksi_complex_exp(p[i].re, p[i].im, &y[i].re, &y[i].im))
LOOP(complex_abs_c64, float, lksi_c64, y[i] = hypotf(p[i].re, p[i].im))
LOOP(complex_abs_c128, double, lksi_c128, y[i] = hypot(p[i].re, p[i].im))
LOOP(angle_c64, float, lksi_c64, y[i] = atan2f(p[i].im, p[i].re))
LOOP(angle_c128, double, lksi_c128, y[i] = atan2(p[i].im, p[i].re))
#define ANGLE(x, T) (x < 0 ? (T)3.14159265358979323846 : x == 0 || x > 0 ? 0 : x)
UNARY(angle_f32, float, ANGLE(x, float))
UNARY(angle_f64, double, ANGLE(x, double))
LOOP(complex_f32, lksi_c64, float, y[i].re = p[i]; y[i].im = q[i])
LOOP(complex_f64, lksi_c128, double, y[i].re = p[i]; y[i].im = q[i])
LOOP(polar_f32, lksi_c64, float, double r = p[i]; double w = q[i];
     y[i].re = (float)(r * cos(w)); y[i].im = (float)(r * sin(w)))
LOOP(polar_f64, lksi_c128, double, y[i].re = p[i] * cos(q[i]); y[i].im = p[i] * sin(q[i]))

/* --- driver ------------------------------------------------------------------------------------------------------- */

#define MAX_OPERANDS 3

typedef struct walk {
    lksi_operand out, in[MAX_OPERANDS];
    int nin;
    int fixed[MAX_OPERANDS];   /* the same values in every block: loaded once */
    int round_to[MAX_OPERANDS]; /* comparisons: dtype to round the loaded values to, or -1 */
    int64_t count, length;     /* elements; of one block */
    loop fn;
    const lksi_attr *attr;
} walk;

static const void *walk_load(const walk *w, int i, int64_t at, int64_t n, void *buf)
{
    const void *x = lksi_operand_load(&w->in[i], at, n, buf);
    if (w->round_to[i] >= 0) {
        lksi_block half;
        int cls = w->in[i].cls, dtype = w->round_to[i];
        LKSI_LOCAL(store)[cls][dtype](half.bytes, 1, x, n);
        LKSI_LOCAL(load)[cls][dtype](buf, half.bytes, 1, n);
        x = buf;
    }
    return x;
}

static void walk_blocks(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const walk *w = arg;
    lksi_block buf[MAX_OPERANDS], result;
    const void *x[MAX_OPERANDS] = {NULL, NULL, NULL};
    for (int i = 0; i < w->nin; i++)
        if (w->fixed[i]) x[i] = walk_load(w, i, 0, w->length < w->count ? w->length : w->count, buf[i].bytes);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * w->length, n = w->count - at < w->length ? w->count - at : w->length;
        for (int i = 0; i < w->nin; i++)
            if (!w->fixed[i]) x[i] = walk_load(w, i, at, n, buf[i].bytes);
        void *direct = lksi_operand_direct(&w->out, at);
        w->fn(direct ? direct : result.bytes, x[0], x[1], x[2], n, w->attr);
        if (!direct) lksi_operand_store(&w->out, at, n, result.bytes);
    }
}

/* float64 wins over float32 wins over integers. */
static int wider(int a, int b)
{
    static const uint8_t rank[LKSI_CLASSES] = {[LKSI_CLASS_I64] = 0, [LKSI_CLASS_F32] = 1, [LKSI_CLASS_F64] = 2,
                                               [LKSI_CLASS_C64] = 3, [LKSI_CLASS_C128] = 4};
    return rank[a] < rank[b] ? b : a;
}

/* 1 if the walk goes across v's rows: then a copy in the walk's order, made by tiles, is read instead. */
static int across(const lksi_operand *o, int64_t count)
{
    if (count < 4096 || o->ndim < 2 || o->stride[o->ndim - 1] < 16) return 0;
    for (int d = 0; d < o->ndim - 1; d++)
        if (o->stride[d] == 1 && o->shape[d] >= 8) return 1;
    return 0;
}

static int straighten(lksi_cpu *cpu, int i, lksi_view *copy, const lksi_view *v, const lksi_view *out)
{
    *copy = *out;
    copy->dtype = v->dtype;
    copy->data = lksi_scratch(cpu, -1, i, lksi_count(out) * lksi_size_of[v->dtype]);
    if (!copy->data) return 0;
    lksi_contiguous_strides(copy);
    if (lksi_is_channels_last(out)) lksi_channels_last_strides(copy);
    LKSI_LOCAL(copy)(cpu, copy, v);
    return 1;
}

static void walk_all(lksi_cpu *cpu, const lksi_args *a, const loops *l)
{
    walk w;
    int order[LKS_MAX_DIMS], first = l->raw_in, cls;
    const lksi_view *out = &a->out[0];
    w.count = lksi_count(out);
    if (w.count == 0) return;
    int dtype = a->nin - first == 1 ? a->in[first].dtype : lksi_promote_views(&a->in[first], &a->in[first + 1]);
    cls = lksi_class_of[dtype];
    if (l->pairs) cls = out->dtype == LKS_C128 ? LKSI_CLASS_F64 : LKSI_CLASS_F32;
    else if (!l->compare && !(l->parts && lks_dtype_is_complex(dtype))) cls = wider(cls, lksi_class_of[out->dtype]);
    if (!l->of[cls]) cls = LKSI_CLASS_F32;
    w.nin = a->nin;
    w.fn = l->of[cls];
    w.attr = &a->attr;
    lksi_walk_order(out, order);
    int result = l->compare ? LKSI_CLASS_RAW8 : l->parts || l->pairs ? lksi_class_of[out->dtype] : cls;
    lksi_operand_init(&w.out, out, out, order, result);
    w.length = LKSI_BLOCK;
    int64_t period = 0;
    for (int i = 0; i < a->nin; i++) {
        lksi_operand_init(&w.in[i], &a->in[i], out, order, i < first ? LKSI_CLASS_RAW8 : cls);
        lksi_view copy;
        if (across(&w.in[i], w.count) && straighten(cpu, i, &copy, &a->in[i], out))
            lksi_operand_init(&w.in[i], &copy, out, order, w.in[i].cls);
        w.fixed[i] = w.in[i].constant;
        w.round_to[i] = l->compare && a->in[i].dtype != dtype && (dtype == LKS_F16 || dtype == LKS_BF16) ? dtype : -1;
        if (!period) period = w.in[i].period;
    }
    /* Blocks in step with a repeated operand (a bias): loaded once if it fits, else cut so that few blocks cross its
     * end. */
    if (period > 1 && period <= LKSI_BLOCK) {
        w.length = LKSI_BLOCK / period * period;
        for (int i = 0; i < a->nin; i++)
            if (w.in[i].period && w.length % w.in[i].period == 0) w.fixed[i] = 1;
    } else if (period > LKSI_BLOCK) {
        int64_t pieces = (period + LKSI_BLOCK - 1) / LKSI_BLOCK;
        w.length = (period + pieces - 1) / pieces;
    }
    int64_t blocks = (w.count + w.length - 1) / w.length, grain = LKSI_GRAIN / w.length;
    if (blocks == 1)
        walk_blocks(&w, 0, 1, 0);
    else
        lksi_parallel(cpu, blocks, grain < 1 ? 1 : grain, walk_blocks, &w);
}

/* Few elements, one natural dtype, all alike and row-major: nothing to prepare. */
static int direct(const lksi_args *a, const loops *l)
{
    const lksi_view *y = &a->out[0], *x = &a->in[0];
    int cls = y->dtype == LKS_F32 ? LKSI_CLASS_F32 : y->dtype == LKS_F64 ? LKSI_CLASS_F64 : -1;
    if (cls < 0 || l->raw_in || l->compare || l->parts) return 0;
    int64_t n = 1;
    for (int d = y->ndim - 1; d >= 0; d--) {
        if (y->stride[d] != n || n > LKSI_GRAIN) return 0;
        n *= y->shape[d];
    }
    if (n > LKSI_GRAIN) return 0;
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *v = &a->in[i];
        if (v->dtype != y->dtype || v->ndim != y->ndim) return 0;
        for (int d = 0; d < v->ndim; d++)
            if (v->shape[d] != y->shape[d] || v->stride[d] != y->stride[d]) return 0;
    }
    if (n > 0) l->of[cls](y->data, x->data, a->nin > 1 ? a->in[1].data : NULL,
                        a->nin > 2 ? a->in[2].data : NULL, n, &a->attr);
    return 1;
}

static lks_status run(lksi_cpu *cpu, const lksi_args *a, const loops *l)
{
    if (!direct(a, l)) walk_all(cpu, a, l);
    return LKS_OK;
}

/* --- relu of 16-bit floats ---
 * Nothing is computed, so nothing is converted: the sign says what passes, and a NaN is made quiet as a conversion
 * would. */

typedef int16_t bits16 __attribute__((vector_size(16))); /* what every instruction set has: wider is done one by one */
typedef int16_t bits16_u __attribute__((vector_size(16), aligned(2)));
enum { BITS = 8 };

typedef struct halves {
    int16_t *y;
    const int16_t *x, *z; /* z: of relu_backward, else x */
    int16_t inf, quiet;
} halves;

static inline bits16 pass_halves(bits16 x, bits16 z, int16_t inf, int16_t quiet)
{
    bits16 pass = ((z & 0x7fff) > inf) | (z > 0), nan = (x & 0x7fff) > inf;
    return pass & (x | (nan & quiet));
}

static void relu_halves(void *arg, int64_t begin, int64_t end, int worker)
{
    const halves *h = arg;
    (void)worker;
    int64_t i = begin;
    for (; i + BITS <= end; i += BITS)
        *(bits16_u *)(h->y + i) =
            pass_halves(*(const bits16_u *)(h->x + i), *(const bits16_u *)(h->z + i), h->inf, h->quiet);
    if (i < end) {
        bits16 x = {0}, z = {0}, y;
        memcpy(&x, h->x + i, (size_t)(end - i) * 2);
        memcpy(&z, h->z + i, (size_t)(end - i) * 2);
        y = pass_halves(x, z, h->inf, h->quiet);
        memcpy(h->y + i, &y, (size_t)(end - i) * 2);
    }
}

/* 1 if this was such a case. */
static int on_halves(lksi_cpu *cpu, const lksi_args *a)
{
    const lksi_view *y = &a->out[0];
    if ((y->dtype != LKS_F16 && y->dtype != LKS_BF16) || !lksi_is_contiguous(y)) return 0;
    for (int i = 0; i < a->nin; i++) {
        const lksi_view *v = &a->in[i];
        if (v->dtype != y->dtype || v->ndim != y->ndim || !lksi_is_contiguous(v) ||
            memcmp(v->shape, y->shape, (size_t)y->ndim * sizeof(int64_t)))
            return 0;
    }
    halves h = {y->data, a->in[0].data, a->in[a->nin - 1].data, y->dtype == LKS_F16 ? 0x7c00 : 0x7f80,
                y->dtype == LKS_F16 ? 0x200 : 0x40};
    int64_t n = lksi_count(y);
    if (n > 0) lksi_parallel(cpu, n, 2 * LKSI_GRAIN, relu_halves, &h);
    return 1;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

#define FLOATS(name) [LKSI_CLASS_F32] = name##_f32, [LKSI_CLASS_F64] = name##_f64
#define ALL(name) FLOATS(name), [LKSI_CLASS_I64] = name##_i64
#define COMPLEX(name) [LKSI_CLASS_C64] = name##_c64, [LKSI_CLASS_C128] = name##_c128

#define KERNEL(name, ...)                                                                                      \
    LKSI_KERNEL(name)                                                                                          \
    {                                                                                                          \
        static const loops l = {.of = {__VA_ARGS__}};                                                          \
        return run(cpu, a, &l);                                                                                \
    }
KERNEL(add, ALL(add), COMPLEX(add))
KERNEL(sub, ALL(sub), COMPLEX(sub))
KERNEL(mul, ALL(mul), COMPLEX(mul))
KERNEL(div, FLOATS(div), COMPLEX(div))
KERNEL(affine, ALL(affine), COMPLEX(affine))
KERNEL(exp, FLOATS(exp), COMPLEX(exp))
KERNEL(log, FLOATS(log))
KERNEL(sqrt, FLOATS(sqrt))
KERNEL(tanh, FLOATS(tanh))
KERNEL(sigmoid, FLOATS(sigmoid))
LKSI_KERNEL(relu)
{
    static const loops l = {.of = {ALL(relu)}};
    return on_halves(cpu, a) ? LKS_OK : run(cpu, a, &l);
}
LKSI_KERNEL(relu_backward)
{
    static const loops l = {.of = {FLOATS(relu_backward)}};
    return on_halves(cpu, a) ? LKS_OK : run(cpu, a, &l);
}
KERNEL(sin, FLOATS(sin))
KERNEL(cos, FLOATS(cos))
KERNEL(tan, FLOATS(tan))
KERNEL(sqrt_backward, FLOATS(sqrt_backward))
KERNEL(tanh_backward, FLOATS(tanh_backward))
KERNEL(sigmoid_backward, FLOATS(sigmoid_backward))
KERNEL(fake_quantize_per_tensor_affine, FLOATS(fake_quantize))
KERNEL(fake_quantize_backward, FLOATS(fake_quantize_backward))

#define SCALAR_TYPES_0 FLOATS
#define SCALAR_TYPES_1 ALL
#define SCALAR(inputs, numbers, integers, name) KERNEL(name, SCALAR_TYPES_##integers(name))
#include "table/scalar.def"

#define COMPARISON(name)                                                                                       \
    LKSI_KERNEL(name)                                                                                          \
    {                                                                                                          \
        static const loops l = {.of = {ALL(name)}, .compare = 1};                                              \
        return run(cpu, a, &l);                                                                                \
    }
COMPARISON(lt)
COMPARISON(le)
COMPARISON(gt)
COMPARISON(ge)
LKSI_KERNEL(eq)
{
    static const loops l = {.of = {ALL(eq), COMPLEX(eq)}, .compare = 1};
    return run(cpu, a, &l);
}
LKSI_KERNEL(ne)
{
    static const loops l = {.of = {ALL(ne), COMPLEX(ne)}, .compare = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(conj)
{
    static const loops l = {.of = {COMPLEX(conj)}};
    if (lks_dtype_is_complex(a->in[0].dtype)) return run(cpu, a, &l);
    LKSI_LOCAL(copy)(cpu, &a->out[0], &a->in[0]);
    return LKS_OK;
}

LKSI_KERNEL(complex_abs)
{
    static const loops l = {.of = {COMPLEX(complex_abs)}, .parts = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(angle)
{
    static const loops l = {.of = {FLOATS(angle), COMPLEX(angle)}, .parts = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(complex)
{
    static const loops l = {.of = {FLOATS(complex)}, .pairs = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(polar)
{
    static const loops l = {.of = {FLOATS(polar)}, .pairs = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(where)
{
    static const loops l = {
        .of = {[LKSI_CLASS_F32] = where_32, [LKSI_CLASS_F64] = where_64, [LKSI_CLASS_I64] = where_64,
               [LKSI_CLASS_C64] = where_64, [LKSI_CLASS_C128] = where_128}, .raw_in = 1};
    return run(cpu, a, &l);
}

LKSI_KERNEL(gelu)
{
    static const loops erf_form = {.of = {FLOATS(gelu_erf)}}, tanh_form = {.of = {FLOATS(gelu_tanh)}};
    return run(cpu, a, a->attr.gelu.tanh_form ? &tanh_form : &erf_form);
}

LKSI_KERNEL(gelu_backward)
{
    static const loops erf_form = {.of = {FLOATS(gelu_erf_backward)}};
    static const loops tanh_form = {.of = {FLOATS(gelu_tanh_backward)}};
    return run(cpu, a, a->attr.gelu.tanh_form ? &tanh_form : &erf_form);
}
