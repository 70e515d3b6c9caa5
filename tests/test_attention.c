/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_attention.c - attention and its gradient on the CPU against plain loops in double, and the gradient against
 * finite differences: causality, bool and added masks, dropout, rows that see nothing, views of one packed
 * tensor, every dtype.
 */
#include "base/philox.h"
#include "products.h"

typedef struct heads { int64_t b, h, t, s, d, e; int causal, mask; double p; } heads;
enum { NO_MASK, BOOL_MASK, ADDED_MASK, BLIND_MASK }; /* BLIND_MASK: bool, and the second query sees nothing */

static const lksi_rng rng = {.seed = 77, .attempt = 3};
static const int64_t offset = 1001, call_number = 5;

static lksi_attr attr_of(const heads *a, double scale)
{
    lksi_attr t;
    memset(&t, 0, sizeof t);
    t.attention.offset = offset, t.attention.call = call_number;
    t.attention.p = a->p, t.attention.scale = scale, t.attention.causal = a->causal;
    return t;
}

/* Plain attention in double. prob: probabilities of one head [t, s], factor: dropout's. */
static void head(const heads *a, const lksi_view *q, const lksi_view *k, const lksi_view *mask, double scale, int64_t b,
                 int64_t h, double *prob, double *factor, double *lse)
{
    lksi_philox stream = lksi_philox_stream(rng.seed, rng.attempt, call_number);
    int64_t bh = b * a->h + h;
    for (int64_t t = 0; t < a->t; t++) {
        double top = -INFINITY, sum = 0, *x = prob + t * a->s;
        for (int64_t s = 0; s < a->s; s++) {
            x[s] = 0;
            for (int64_t d = 0; d < a->d; d++)
                x[s] += element(q, (bh * a->t + t) * a->d + d) * element(k, (bh * a->s + s) * a->d + d);
            x[s] *= scale;
            if (mask->ndim >= 0) {
                int64_t at = 0, index[4] = {b, h, t, s};
                for (int d = 0; d < mask->ndim; d++)
                    if (mask->shape[d] > 1) at += index[4 - mask->ndim + d] * mask->stride[d];
                double m = get_element(mask->data, mask->dtype, at);
                if (mask->dtype != LKS_BOOL) x[s] += m;
                else if (m == 0) x[s] = -INFINITY;
            }
            if (a->causal && s > t + a->s - a->t) x[s] = -INFINITY;
            if (x[s] > top) top = x[s];
            uint32_t word = lksi_philox_word(&stream, (uint64_t)(offset + (bh * a->t + t) * a->s + s));
            factor[t * a->s + s] = a->p == 0 ? 1 : (double)lksi_uniform_f32(word) >= a->p ? 1 / (1 - a->p) : 0;
        }
        for (int64_t s = 0; s < a->s; s++) sum += x[s] = top == -INFINITY ? 0 : exp(x[s] - top);
        for (int64_t s = 0; s < a->s; s++) x[s] = top == -INFINITY ? 0 : x[s] / sum;
        lse[t] = top == -INFINITY ? -INFINITY : top + log(sum);
    }
}

static int64_t off(double got, double want, int dtype, int64_t *shown)
{
    double tolerance = (dtype == LKS_F64 ? 2e-12 : 3e-5) * (1 + fabs(want)) + fabs(want) * rounding(dtype) +
                       (dtype == LKS_F16 ? 0x1p-24 : 0);
    if (got == want || fabs(got - want) <= tolerance) return 0;
    if ((*shown)++ == 0) diag("got %.9g, want %.9g", got, want);
    return 1;
}

static lksi_view make_mask(const heads *a, int dtype)
{
    if (a->mask == NO_MASK) return absent;
    lksi_view m = a->mask == ADDED_MASK ? make(dtype == LKS_F64 ? LKS_F64 : LKS_F32, ROWS, SHAPE(a->t, a->s))
                                        : make(LKS_BOOL, ROWS, SHAPE(a->b, 1, a->t, a->s));
    for (int64_t i = 0; i < lksi_numel(&m); i++) {
        int seen = random_word() % 3 != 0;
        if (a->mask == BLIND_MASK && i / a->s % a->t == 1) seen = 0;
        if (m.dtype == LKS_BOOL) set_element(&m, i, seen);
        else if (!seen && i % 2) set_element(&m, i, -INFINITY);
    }
    return m;
}

/* packed: q, k, v are views [B, H, T, D] of one [B, T, 3, H, D]. */
static int one_attention(const heads *a, int dtype, int packed, double scale)
{
    lksi_view q, k, v, whole = {0}, mask = make_mask(a, dtype), out[2] = {{0}}, back[3] = {{0}}, dy = {0};
    if (packed) {
        whole = make(dtype, ROWS, SHAPE(a->b, a->t, 3, a->h, a->d));
        lksi_view part = {.dtype = dtype, .ndim = 4};
        int64_t c = a->h * a->d;
        part.shape[0] = a->b, part.shape[1] = a->h, part.shape[2] = a->t, part.shape[3] = a->d;
        part.stride[0] = a->t * 3 * c, part.stride[1] = a->d, part.stride[2] = 3 * c, part.stride[3] = 1;
        q = k = v = part;
        q.data = whole.data;
        k.data = (char *)whole.data + c * lks_dtype_size(dtype);
        v.data = (char *)whole.data + 2 * c * lks_dtype_size(dtype);
    } else {
        q = make(dtype, ROWS, SHAPE(a->b, a->h, a->t, a->d));
        k = make(dtype, SWAPPED, SHAPE(a->b, a->h, a->s, a->d));
        v = make(dtype, SPREAD, SHAPE(a->b, a->h, a->s, a->e));
    }
    lksi_attr attr = attr_of(a, scale);
    int64_t wrong = 1, shown = 0;
    if (scale == 0) scale = 1 / sqrt((double)a->d);
    if (call(LKSI_OP_attention, 4, (lksi_view[]){q, k, v, mask}, 2, out, &attr, &rng, -1) != LKS_OK) goto end;
    dy = make(dtype, packed ? ROWS : GAPS, SHAPE(a->b, a->h, a->t, a->e));
    if (call(LKSI_OP_attention_backward, 7, (lksi_view[]){dy, q, k, v, mask, out[0], out[1]}, 3, back, &attr, &rng, -1))
        goto end;
    wrong = out[0].stride[2] != a->h * a->e && a->t > 1;
    size_t ts = (size_t)(a->t * a->s) + 1;
    double *prob = malloc(ts * 8), *factor = malloc(ts * 8), *grad = malloc(ts * 8);
    double *lse = malloc((size_t)(a->t + 1) * 8);
    for (int64_t bh = 0; bh < a->b * a->h; bh++) {
        head(a, &q, &k, &mask, scale, bh / a->h, bh % a->h, prob, factor, lse);
        for (int64_t t = 0; t < a->t; t++) {
            double got = element(&out[1], bh * a->t + t), sum = 0;
            wrong += off(got, lse[t], LKS_F32, &shown);
            for (int64_t e = 0; e < a->e; e++) {
                double y = 0;
                for (int64_t s = 0; s < a->s; s++)
                    y += prob[t * a->s + s] * factor[t * a->s + s] * element(&v, (bh * a->s + s) * a->e + e);
                wrong += off(element(&out[0], (bh * a->t + t) * a->e + e), y, dtype, &shown);
            }
            for (int64_t s = 0; s < a->s; s++) {
                double g = 0;
                for (int64_t e = 0; e < a->e; e++)
                    g += element(&dy, (bh * a->t + t) * a->e + e) * element(&v, (bh * a->s + s) * a->e + e);
                grad[t * a->s + s] = g * factor[t * a->s + s];
                sum += prob[t * a->s + s] * grad[t * a->s + s];
            }
            for (int64_t s = 0; s < a->s;
            s++) grad[t * a->s + s] = prob[t * a->s + s] * (grad[t * a->s + s] - sum) * scale;
            for (int64_t d = 0; d < a->d; d++) {
                double dq = 0;
                for (int64_t s = 0; s < a->s; s++) dq += grad[t * a->s + s] * element(&k, (bh * a->s + s) * a->d + d);
                wrong += off(element(&back[0], (bh * a->t + t) * a->d + d), dq, dtype, &shown);
            }
        }
        for (int64_t s = 0; s < a->s; s++) {
            for (int64_t d = 0; d < a->d; d++) {
                double dk = 0;
                for (int64_t t = 0; t < a->t; t++) dk += grad[t * a->s + s] * element(&q, (bh * a->t + t) * a->d + d);
                wrong += off(element(&back[1], (bh * a->s + s) * a->d + d), dk, dtype, &shown);
            }
            for (int64_t e = 0; e < a->e; e++) {
                double dv = 0;
                for (int64_t t = 0; t < a->t; t++)
                    dv += prob[t * a->s + s] * factor[t * a->s + s] * element(&dy, (bh * a->t + t) * a->e + e);
                wrong += off(element(&back[2], (bh * a->s + s) * a->e + e), dv, dtype, &shown);
            }
        }
    }
    free(prob), free(factor), free(lse), free(grad);
end:
    if (wrong)
        diag("%s b%lld h%lld t%lld s%lld d%lld e%lld causal %d mask %d p %g packed %d: %lld wrong %s",
             lks_dtype_name(dtype),
             (long long)a->b, (long long)a->h, (long long)a->t, (long long)a->s, (long long)a->d, (long long)a->e,
             a->causal,
             a->mask, a->p, packed, (long long)wrong, why);
    if (packed) drop(&whole);
    else drop(&q), drop(&k), drop(&v);
    if (mask.data) drop(&mask);
    for (int i = 0; i < 3; i++) drop(&back[i]);
    drop(&out[0]), drop(&out[1]), drop(&dy);
    return wrong == 0;
}

static const heads cases[] = {
    {2, 3, 5, 7, 4, 6, 0, NO_MASK, 0},      {1, 2, 1, 1, 1, 1, 1, NO_MASK, 0},     {2, 2, 50, 50, 32, 32, 1, NO_MASK,
                                                                                    0},
    {1, 2, 100, 130, 16, 40, 0, NO_MASK, 0}, {1, 1, 130, 61, 8, 8, 1, NO_MASK, 0},  {1, 2, 20, 33, 64, 17, 1, NO_MASK,
                                                                                     0.3},
    {2, 1, 9, 12, 5, 5, 0, BOOL_MASK, 0},   {2, 2, 9, 12, 5, 5, 1, ADDED_MASK, 0}, {2, 2, 9, 12, 5, 5, 0, BLIND_MASK,
                                                                                    0.2},
    {1, 1, 64, 200, 24, 24, 1, BOOL_MASK, 0.5}, {0, 2, 5, 5, 4, 4, 0, NO_MASK, 0}, {1, 2, 5, 0, 4, 4, 0, NO_MASK, 0},
    {1, 2, 0, 5, 4, 4, 1, NO_MASK, 0},      {1, 1, 3, 1500, 8, 8, 0, ADDED_MASK, 0},
};

static void against_loops(const char *isa)
{
    static const heads self[] = {{2, 3, 40, 40, 8, 8, 1, NO_MASK, 0}, {2, 2, 97, 97, 33, 33, 1, NO_MASK, 0.1}};
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) good &= one_attention(&cases[i], floats[t], 0,
                                                                                          i % 2 ? 0 : 0.7);
        for (unsigned i = 0; i < sizeof self / sizeof *self; i++) good &= one_attention(&self[i], floats[t], 1, 0);
        ok(good, "%s %s: attention and its gradient", isa, lks_dtype_name(floats[t]));
    }
}

/* The gradient in float64 by central differences of sum(dy y). */
static void differences(const char *isa)
{
    const heads a = {1, 2, 7, 9, 4, 5, 1, ADDED_MASK, 0.25};
    lksi_view in[4] = {make(LKS_F64, ROWS, SHAPE(a.b, a.h, a.t, a.d)), make(LKS_F64, ROWS, SHAPE(a.b, a.h, a.s, a.d)),
                       make(LKS_F64, ROWS, SHAPE(a.b, a.h, a.s, a.e)), make_mask(&a, LKS_F64)};
    lksi_view out[2], back[3], dy = make(LKS_F64, ROWS, SHAPE(a.b, a.h, a.t, a.e));
    lksi_attr attr = attr_of(&a, 0);
    int good = call(LKSI_OP_attention, 4, in, 2, out, &attr, &rng, -1) == LKS_OK;
    good &= call(LKSI_OP_attention_backward, 7, (lksi_view[]){dy, in[0], in[1], in[2], in[3], out[0], out[1]}, 3, back,
                 &attr,
                 &rng, -1) == LKS_OK;
    int64_t shown = 0, wrong = 0;
    for (int which = 0; good && which < 3; which++)
        for (int64_t i = 0; i < lksi_numel(&in[which]); i++) {
            double x = element(&in[which], i), loss[2] = {0, 0}, step = 1e-5;
            for (int side = 0; side < 2; side++) {
                lksi_view o[2];
                set_element(&in[which], i, side ? x + step : x - step);
                good &= call(LKSI_OP_attention, 4, in, 2, o, &attr, &rng, -1) == LKS_OK;
                for (int64_t e = 0; e < lksi_numel(&o[0]); e++) loss[side] += element(&dy, e) * element(&o[0], e);
                drop(&o[0]), drop(&o[1]);
            }
            set_element(&in[which], i, x);
            double want = (loss[1] - loss[0]) / (2 * step), got = element(&back[which], i);
            if (fabs(got - want) > 1e-8 * (1 + fabs(want)) && shown++ == 0) diag("input %d: got %.12g, want %.12g",
                                                                                 which, got, want);
            wrong = shown;
        }
    ok(good && wrong == 0, "%s: the gradient is that of finite differences", isa);
    for (int i = 0; i < 4; i++) drop(&in[i]);
    for (int i = 0; i < 3; i++) drop(&back[i]);
    drop(&out[0]), drop(&out[1]), drop(&dy);
}

static void threads(const char *isa)
{
    heads a = {2, 3, 150, 150, 32, 32, 1, NO_MASK, 0.1};
    lksi_view q = make(LKS_F32, ROWS, SHAPE(a.b, a.h, a.t, a.d)), k = make(LKS_F32, ROWS, SHAPE(a.b, a.h, a.s, a.d));
    lksi_view v = make(LKS_F32, ROWS, SHAPE(a.b, a.h, a.s, a.e)), out[2][2], back[2][3];
    lksi_attr attr = attr_of(&a, 0);
    int good = 1;
    for (int i = 0; i < 2; i++) {
        if (!open_cpu(isa, i ? 3 : 1)) return;
        good &= call(LKSI_OP_attention, 4, (lksi_view[]){q, k, v, absent}, 2, out[i], &attr, &rng, -1) == LKS_OK;
        good &= call(LKSI_OP_attention_backward, 7, (lksi_view[]){v, q, k, v, absent, out[i][0], out[i][1]}, 3, back[i],
                     &attr, &rng, -1) == LKS_OK;
        close_cpu();
    }
    for (int i = 0; i < 2; i++) good = good && same_bits(&out[0][i], &out[1][i]);
    for (int i = 0; i < 3; i++) good = good && same_bits(&back[0][i], &back[1][i]);
    ok(good, "%s: attention on 1 and 3 threads gives the same bits", isa);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) drop(&out[i][j]);
        for (int j = 0; j < 3; j++) drop(&back[i][j]);
    }
    drop(&q), drop(&k), drop(&v);
}

static void refusals(void)
{
    heads a = {1, 2, 3, 4, 5, 5, 0, NO_MASK, 0};
    lksi_view q = make(LKS_F32, ROWS, SHAPE(1, 2, 3, 5)), k = make(LKS_F32, ROWS, SHAPE(1, 2, 4, 5)), out[2];
    lksi_view k6 = make(LKS_F32, ROWS, SHAPE(1, 2, 4, 6)), kb = make(LKS_BF16, ROWS, SHAPE(1, 2, 4, 5));
    lksi_view mask = make(LKS_F32, ROWS, SHAPE(3, 3)), integers = make(LKS_I32, ROWS, SHAPE(3, 4));
    lksi_attr attr = attr_of(&a, 0);
    is_int(call(LKSI_OP_attention, 4, (lksi_view[]){q, k6, k, absent}, 2, out, &attr, &rng, -1), LKS_ERR_SHAPE,
           "depths differ");
    ok(strstr(why, "[1,2,4,6]") != NULL, "... and are named: %s", why);
    is_int(call(LKSI_OP_attention, 4, (lksi_view[]){q, kb, k, absent}, 2, out, &attr, &rng, -1), LKS_ERR_DTYPE,
           "dtypes differ");
    is_int(call(LKSI_OP_attention, 4, (lksi_view[]){q, k, k, mask}, 2, out, &attr, &rng, -1), LKS_ERR_SHAPE,
           "mask does not broadcast");
    is_int(call(LKSI_OP_attention, 4, (lksi_view[]){q, k, k, integers}, 2, out, &attr, &rng, -1), LKS_ERR_DTYPE,
           "mask of integers");
    attr.attention.p = 1;
    is_int(call(LKSI_OP_attention, 4, (lksi_view[]){q, k, k, absent}, 2, out, &attr, &rng, -1), LKS_ERR_ARGUMENT,
           "dropout of all");
    drop(&q), drop(&k), drop(&k6), drop(&kb), drop(&mask), drop(&integers);
}

int main(void)
{
    for (unsigned i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!open_cpu(isas[i], 2)) continue;
        against_loops(isas[i]);
        differences(isas[i]);
        close_cpu();
        threads(isas[i]);
    }
    heads a = {1, 2, 30, 30, 8, 8, 1, NO_MASK, 0};
    lksi_view q = make(LKS_F32, ROWS, SHAPE(1, 2, 30, 8)), lse = make(LKS_F32, ROWS, SHAPE(1, 2, 30));
    lksi_attr attr = attr_of(&a, 0);
    ok(fails_cleanly(LKSI_OP_attention, 4, (lksi_view[]){q, q, q, absent}, 2, &attr), "no memory for attention");
    ok(fails_cleanly(LKSI_OP_attention_backward, 7, (lksi_view[]){q, q, q, q, absent, q, lse}, 3, &attr),
       "... its gradient");
    drop(&q), drop(&lse);
    ok(open_cpu(NULL, 1), "a CPU");
    refusals();
    close_cpu();
    return done();
}
