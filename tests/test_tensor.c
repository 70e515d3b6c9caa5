/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_tensor.c - tensors as a program sees them: views and what they share, wrapped memory, host round trips, every
 * cast, sizes that overflow, nothing and one element everywhere, who owns what. On both CPU devices.
 */
#include "arrays.h"
#include "kernels.h"
#include "tensor/tensor.h"

static lks_context *ctx;
static const char *device;

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define F(...) lks_zeros(ctx, LKS_F32, SHAPE(__VA_ARGS__))

/* The last call failed with this status and a text with these words; clears the error. */
static int failed(lks_status want, const char *a, const char *b)
{
    int good = lks_error_code(ctx) == want && strstr(lks_error(ctx), a) && strstr(lks_error(ctx), b);
    if (!good) diag("%s: %s", lks_status_name(lks_error_code(ctx)), lks_error(ctx));
    lks_error_clear(ctx);
    return good;
}

/* 0, 1, 2, ... in this shape. */
static lks_tensor *counted(lks_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    return lks_reshape(lks_arange(ctx, dtype, n), ndim, shape);
}

static int holds(lks_tensor *t, int64_t n, const double *want)
{
    double *v = values_of(ctx, t);
    int same = v && lks_numel(t) == n;
    for (int64_t i = 0; i < n && same; i++)
        if (!(same = v[i] == want[i] || (isnan(v[i]) && isnan(want[i])))) 
            diag("element %lld: %g, not %g", (long long)i, v[i], want[i]);
    free(v);
    return same;
}
#define HOLDS(t, ...) holds(t, (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static int shaped(const lks_tensor *t, int ndim, const int64_t *shape)
{
    return t && lks_ndim(t) == ndim && (!ndim || !memcmp(lks_shape(t), shape, (size_t)ndim * sizeof *shape));
}
#define SHAPED(t, ...) shaped(t, SHAPE(__VA_ARGS__))

static int shares(const lks_tensor *a, const lks_tensor *b) { return a && b && a->st == b->st; }

/* --- views --- */

static void test_views(void)
{
    lks_tensor *x = counted(LKS_F32, SHAPE(2, 3, 4)), *y, *z, *out[8];
    y = lks_reshape(x, SHAPE(6, -1));
    ok(SHAPED(y, 6, 4) && shares(x, y) && lks_data(x) == lks_data(y), "reshape of row-major memory is a view");
    y = lks_reshape(lks_transpose(x, 0, 2), SHAPE(24));
    ok(!shares(x, y) && HOLDS(lks_slice(y, 0, 0, 5, 1), 0, 12, 4, 16, 8), "reshape of transposed memory is a copy");
    y = lks_reshape(lks_transpose(x, 0, 1), SHAPE(3, 2, 2, 2));
    ok(shares(x, y) && lks_stride(y)[2] == 2 && lks_stride(y)[1] == 12, "a dim is split without moving data");
    y = lks_reshape(lks_slice(x, 2, 0, 4, 2), SHAPE(6, 2));
    ok(shares(x, y) && lks_stride(y)[0] == 4 && lks_stride(y)[1] == 2, "evenly strided dims fold without moving data");
    ok(HOLDS(y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22), "and hold every second element");
    y = lks_reshape(lks_expand(counted(LKS_F32, SHAPE(3, 1)), SHAPE(3, 2)), SHAPE(6));
    ok(HOLDS(y, 0, 0, 1, 1, 2, 2), "a repeated dim is not folded into its neighbour");
    ok(lks_stride(lks_reshape(lks_expand(F(1), SHAPE(4)), SHAPE(2, 2)))[0] == 0, "repeated memory alone stays a view");
    ok(SHAPED(lks_flatten(x, 1, 2), 2, 12) && SHAPED(lks_flatten(x, 0, -1), 24) && SHAPED(lks_flatten(F(), 0, -1), 1),
       "flatten");
    ok(SHAPED(lks_unsqueeze(x, -1), 2, 3, 4, 1) && SHAPED(lks_unsqueeze(x, 0), 1, 2, 3, 4), "unsqueeze");
    ok(SHAPED(lks_squeeze(lks_unsqueeze(x, 1), 1), 2, 3, 4) && SHAPED(lks_squeeze(x, 1), 2, 3, 4), "squeeze");
    y = lks_select(x, -1, -1);
    ok(SHAPED(y, 2, 3) && shares(x, y) && HOLDS(y, 3, 7, 11, 15, 19, 23), "select from the end");
    ok(HOLDS(lks_slice(lks_select(lks_select(x, 0, 0), 0, 0), 0, -3, 100, 2), 1, 3), "slice with Python's rules");
    ok(lks_numel(lks_slice(x, 0, 2, 1, 1)) == 0 && lks_numel(lks_slice(x, 0, 5, 9, 1)) == 0, "an empty slice");
    ok(HOLDS(lks_slice(lks_arange(ctx, LKS_I64, 5), 0, 1, 5, INT64_MAX), 1), "a step beyond the end");
    ok(HOLDS(lks_slice(lks_arange(ctx, LKS_I64, 5), 0, INT64_MIN, INT64_MAX, 4), 0, 4), "bounds beyond the ends");
    ok(HOLDS(lks_narrow(lks_arange(ctx, LKS_I64, 5), 0, -2, 2), 3, 4), "narrow from the end");
    is_int(lks_split(lks_arange(ctx, LKS_I64, 5), 2, 0, 8, out), 3, "pieces of 2 of 5");
    ok(HOLDS(out[2], 4), "the last is shorter");
    is_int(lks_split(lks_arange(ctx, LKS_I64, 5), INT64_MAX, 0, 8, out), 1, "one piece larger than all");
    is_int(lks_split(lks_arange(ctx, LKS_I64, 0), 2, 0, 8, out), 1, "one empty piece of nothing");
    is_int(lks_chunk(lks_arange(ctx, LKS_I64, 10), 4, 0, out), 4, "10 in 4 chunks");
    ok(lks_numel(out[0]) == 3 && lks_numel(out[3]) == 1, "3 3 3 1");
    is_int(lks_chunk(lks_arange(ctx, LKS_I64, 5), 4, 0, out), 3, "5 in 4 chunks are 3 (as in PyTorch)");
    y = lks_transpose(x, 1, 2);
    ok(!lks_is_contiguous(y) && lks_contiguous(x) == x && lks_is_contiguous(lks_contiguous(y)) && lks_clone(x) != x,
       "contiguous gives the tensor itself where it is");
    lks_fill_(lks_select(x, 0, 1), -1);
    ok(HOLDS(lks_slice(lks_flatten(x, 0, -1), 0, 10, 14, 1), 10, 11, -1, -1), "a write through a view is seen");
    z = lks_detach(x);
    ok(shares(x, z) && z != x, "detach shares the memory");
    ok(lks_dim(x, -1) == 4 && lks_dim(x, 0) == 2 && lks_dim(x, 3) == -1, "dim by number");
    ok(lks_transpose(F(), 0, -1) && lks_permute(F(), 0, NULL) && lks_expand(F(), SHAPE(2, 0)),
       "views of 0-dim tensors");
}

/* A chain of random views against the same on a host array. */
typedef struct model { int ndim; int64_t shape[LKS_MAX_DIMS], n; double *v; } model;

static model permuted(const model *m, const int *dims)
{
    model r = {.ndim = m->ndim, .n = m->n, .v = malloc((size_t)(m->n + 1) * sizeof(double))};
    for (int d = 0; d < m->ndim; d++) r.shape[d] = m->shape[dims[d]];
    for (int64_t i = 0; i < r.n; i++) {
        int64_t index[LKS_MAX_DIMS], rest = i, at = 0;
        for (int d = r.ndim - 1; d >= 0; d--) {
            index[dims[d]] = rest % r.shape[d];
            rest /= r.shape[d];
        }
        for (int d = 0; d < m->ndim; d++) at = at * m->shape[d] + index[d];
        r.v[i] = m->v[at];
    }
    return r;
}

/* Element i along dim d of the result is element from + i step of m's; step 0 repeats. */
static model taken(const model *m, int d, int64_t from, int64_t step, int64_t size)
{
    model r = *m;
    r.shape[d] = size;
    r.n = 1;
    for (int k = 0; k < r.ndim; k++) r.n *= r.shape[k];
    r.v = malloc((size_t)(r.n + 1) * sizeof(double));
    for (int64_t i = 0; i < r.n; i++) {
        int64_t index[LKS_MAX_DIMS], rest = i, at = 0;
        for (int k = r.ndim - 1; k >= 0; k--) {
            index[k] = rest % r.shape[k];
            rest /= r.shape[k];
        }
        index[d] = from + index[d] * step;
        for (int k = 0; k < m->ndim; k++) at = at * m->shape[k] + index[k];
        r.v[i] = m->v[at];
    }
    return r;
}

static void test_chains(void)
{
    int bad = 0;
    for (int round = 0; round < 400 && !bad; round++) {
        lks_scope_begin(ctx);
        model m = {.ndim = 1 + (int)dice(4), .n = 1};
        for (int d = 0; d < m.ndim; d++) m.n *= m.shape[d] = 1 + (int64_t)dice(4);
        m.v = malloc((size_t)(m.n + 1) * sizeof(double));
        for (int64_t i = 0; i < m.n; i++) m.v[i] = (double)i;
        lks_tensor *t = counted(LKS_F32, m.ndim, m.shape);
        char done[200] = "";
        for (int step = 0; step < 5; step++) {
            model next = m;
            int d = m.ndim ? (int)dice((uint64_t)m.ndim) : 0, dims[LKS_MAX_DIMS];
            int64_t shape[LKS_MAX_DIMS];
            int kind = (int)dice(4);
            if (kind == 0 && m.ndim) {
                for (int k = 0; k < m.ndim; k++) dims[k] = (k + 1 + d) % m.ndim;
                if (dice(2)) dims[0] = (1 + d) % m.ndim;
                next = permuted(&m, dims);
                t = lks_permute(t, m.ndim, dims);
            } else if (kind == 1 && m.ndim) {
                int64_t by = 1 + (int64_t)dice(2), from = (int64_t)dice((uint64_t)m.shape[d] + 1);
                next = taken(&m, d, from, by, (m.shape[d] - from + by - 1) / by);
                t = lks_slice(t, d, from, m.shape[d], by);
            } else if (kind == 2 && m.ndim && m.shape[d] == 1 && m.n < 500) {
                memcpy(shape, m.shape, sizeof shape);
                shape[d] = 3;
                next = taken(&m, d, 0, 0, 3);
                t = lks_expand(t, m.ndim, shape);
            } else if (m.n > 0) { /* another shape: divisors of n, a 1 somewhere, one entry left open */
                int64_t rest = m.n;
                next.ndim = 0;
                next.v = malloc((size_t)(m.n + 1) * sizeof(double));
                memcpy(next.v, m.v, (size_t)m.n * sizeof(double));
                for (int64_t f = 2; f <= 5 && next.ndim < 5; f++)
                    if (rest % f == 0 && dice(2)) {
                        next.shape[next.ndim++] = f;
                        rest /= f;
                    }
                next.shape[next.ndim++] = rest;
                if (dice(2)) next.shape[next.ndim++] = 1;
                memcpy(shape, next.shape, sizeof shape);
                if (dice(2)) shape[dice((uint64_t)next.ndim)] = -1;
                t = lks_reshape(t, next.ndim, shape);
            }
            snprintf(done + strlen(done), sizeof done - strlen(done), "%d ", kind);
            if (next.v != m.v) free(m.v);
            m = next;
            if (!shaped(t, m.ndim, m.shape) || !holds(t, m.n, m.v)) {
                diag("round %d, steps %s: %s", round, done, lks_error(ctx));
                bad = 1;
                break;
            }
            if (!lks_is_contiguous(t) && !holds(lks_clone(t), m.n, m.v)) bad = 1;
            if (m.n && m.ndim && !holds(lks_reshape(t, SHAPE(-1)), m.n, m.v)) bad = 1;
        }
        free(m.v);
        lks_scope_end(ctx);
    }
    ok(!bad, "400 chains of random views agree with arrays on the host");
}

/* --- foreign memory --- */

static void test_wrap(void)
{
    /* Device memory that is not Lockstep's: on far, that of another tensor stands in. */
    lks_tensor *owner = counted(LKS_F32, SHAPE(24));
    void *memory = lks_data(owner);
    lks_tensor *t = lks_wrap(ctx, memory, LKS_F32, SHAPE(2, 3, 4), NULL);
    ok(SHAPED(t, 2, 3, 4) && lks_is_contiguous(t) && lks_data(t) == memory, "wrapped row-major");
    int64_t fortran[3] = {1, 4, 12};
    t = lks_wrap(ctx, memory, LKS_F32, SHAPE(4, 3, 2), fortran);
    ok(HOLDS(lks_select(lks_select(t, 2, 0), 1, 0), 0, 1, 2, 3) && HOLDS(lks_select(lks_select(t, 0, 1), 0, 2), 9, 21),
       "a Fortran array a(4,3,2)");
    double want[24];
    for (int i = 0; i < 24; i++) want[i] = i;
    ok(holds(lks_contiguous(lks_permute(t, 3, (int[]){2, 1, 0})), 24, want), "its transpose is the C array");
    lks_fill_(lks_select(t, 0, 0), -1);
    ok(HOLDS(lks_slice(owner, 0, 0, 6, 1), -1, 1, 2, 3, -1, 5), "a write goes to the caller's memory");
    int64_t before = lks_memory_used(ctx);
    lks_scope_begin(ctx);
    t = lks_wrap(ctx, memory, LKS_F32, SHAPE(24), NULL);
    lks_tensor *part = lks_keep(lks_slice(t, 0, 2, 4, 1));
    lks_scope_end(ctx);
    ok(HOLDS(part, 2, 3), "a view outlives the wrapping tensor");
    lks_release(part);
    is_int(lks_memory_used(ctx), before, "wrapped memory is neither taken nor freed");
    ok(!lks_wrap(ctx, memory, LKS_F32, SHAPE(2), (int64_t[]){-1}) && failed(LKS_ERR_ARGUMENT, "lks_wrap", "-1"),
       "negative strides are refused");
    ok(!lks_wrap(ctx, memory, LKS_F32, SHAPE(3, 3), (int64_t[]){INT64_MAX, 1}) &&
       failed(LKS_ERR_SHAPE, "lks_wrap", "64-bit"),
       "strides that overflow are refused");
    ok(!lks_wrap(ctx, memory, LKS_F64, SHAPE(2), (int64_t[]){(int64_t)1 << 61}) &&
       failed(LKS_ERR_SHAPE, "lks_wrap", "64-bit"),
       "so are bytes that overflow");
    ok(!lks_wrap(ctx, NULL, LKS_F32, SHAPE(2), NULL) && failed(LKS_ERR_ARGUMENT, "lks_wrap", "NULL"),
       "NULL is refused");
    ok(lks_wrap(ctx, NULL, LKS_F32, SHAPE(0), NULL) != NULL, "but not for nothing");
    ok(!lks_wrap(ctx, memory, 77, SHAPE(2), NULL) && failed(LKS_ERR_DTYPE, "lks_wrap", "77"),
       "an unknown dtype is refused");
    t = lks_wrap(ctx, memory, LKS_F32, SHAPE(3, 2), (int64_t[]){0, 1});
    ok(HOLDS(t, -1, 1, -1, 1, -1, 1) && !lks_is_contiguous(t), "stride 0 repeats");
    /* Sizes of 1 with strides that mean nothing (B60). */
    t = lks_wrap(ctx, memory, LKS_F32, SHAPE(1, 24, 1, 1), (int64_t[]){7, 1, 999, 5});
    ok(lks_is_contiguous(t) && lks_contiguous(t) == t, "strides of size-1 dims do not count");
    lks_tensor *u = lks_wrap(ctx, memory, LKS_F32, SHAPE(1, 24, 1, 1), NULL);
    lks_copy_(owner, lks_arange(ctx, LKS_F32, 24));
    ok(holds(t, 24, want) && holds(lks_to(lks_to(t, LKS_F16), LKS_F32), 24, want) &&
           holds(lks_add(t, lks_mul_scalar(u, 0)), 24, want) &&
               holds(lks_sum(t, 3, (int[]){0, 2, 3}, 0, LKS_DTYPE_NONE), 24, want) &&
           holds(lks_permute(t, 4, (int[]){3, 2, 1, 0}), 24, want),
       "nor do they change results");
}

static void test_contiguity(void)
{
    lks_tensor *c = lks_to(lks_reshape(lks_arange(ctx, LKS_F32, 13), SHAPE(13, 1)), LKS_F32);
    lks_tensor *e = lks_expand(c, SHAPE(1, 1, 13, 13));
    double want[169];
    for (int i = 0; i < 169; i++) want[i] = i / 13;
    ok(lks_stride(e)[3] == 0 && !lks_is_contiguous(e), "B60: a repeated dim is not contiguous");
    ok(holds(lks_to(e, LKS_F16), 169, want), "B60: an expanded column, cast, keeps its rows");
    ok(holds(lks_contiguous(e), 169, want) && holds(lks_relu(e), 169, want), "copied and computed with, too");
}

/* --- host --- */

static void test_host(void)
{
    for (lks_dtype t = 0; t < LKS_C64; t++) {
        unsigned char in[64], out[64];
        int size = lks_dtype_size(t);
        for (int i = 0; i < 64; i++) in[i] = (unsigned char)(t == LKS_BOOL ? i % 2 : 7 * i + 1);
        lks_tensor *x = lks_from_host(ctx, t, SHAPE(2, 3), in);
        memset(out, 0, sizeof out);
        ok(lks_to_host(x, out, 6 * size) == LKS_OK && !memcmp(in, out, 6u * (unsigned)size), "%s there and back",
           lks_dtype_name(t));
        lks_tensor *y = lks_transpose(lks_zeros(ctx, t, SHAPE(3, 2)), 0, 1);
        memset(out, 0, sizeof out);
        ok(lks_set_from_host(y, in, 6 * size) == LKS_OK && lks_to_host(y, out, 6 * size) == LKS_OK &&
               !memcmp(in, out, 6u * (unsigned)size), "%s into a transposed view", lks_dtype_name(t));
        double v = -7;
        x = lks_full(ctx, t, 0, NULL, 1);
        ok(lks_item(x, &v) == LKS_OK && v == 1, "%s item", lks_dtype_name(t));
    }
    char byte;
    lks_tensor *x = F(3), *none = F(3, 0);
    ok(lks_to_host(x, &byte, 11) == LKS_ERR_SHAPE && failed(LKS_ERR_SHAPE, "12", "11"), "a buffer of another size");
    ok(lks_set_from_host(x, &byte, 13) == LKS_ERR_SHAPE && failed(LKS_ERR_SHAPE, "12", "13"),
       "or data of another size");
    ok(lks_to_host(none, NULL, 0) == LKS_OK && lks_set_from_host(none, NULL, 0) == LKS_OK &&
           lks_from_host(ctx, LKS_F32, SHAPE(0), NULL), "nothing to copy");
    ok(!lks_from_host(ctx, LKS_F32, SHAPE(1), NULL) && failed(LKS_ERR_ARGUMENT, "lks_from_host", "NULL"), "no data");
    double v;
    ok(lks_item(x, &v) == LKS_ERR_SHAPE && failed(LKS_ERR_SHAPE, "lks_item", "3 elements"), "item of 3 elements");
    ok(lks_item(none, &v) == LKS_ERR_SHAPE && failed(LKS_ERR_SHAPE, "lks_item", "0 elements"), "item of none");
    int64_t before = x->st->version;
    float three[3] = {1, 2, 3};
    lks_set_from_host(x, three, sizeof three);
    ok(x->st->version > before, "set_from_host counts as a write");
    /* Large enough to leave the path for small uploads. */
    int64_t n = 100000;
    float *big = malloc((size_t)n * sizeof *big), *back = malloc((size_t)n * sizeof *back);
    for (int64_t i = 0; i < n; i++) big[i] = (float)i;
    lks_tensor *y = lks_from_host(ctx, LKS_F32, 1, &n, big);
    memset(big, 0, (size_t)n * sizeof *big);
    lks_to_host(y, back, n * (int64_t)sizeof *back);
    int good = 1;
    for (int64_t i = 0; i < n; i++) good &= back[i] == (float)i;
    ok(good, "host memory may be reused when from_host returns");
    free(big);
    free(back);
}

static void test_later(void)
{
    lks_tensor *x = lks_zeros(ctx, LKS_F32, 0, NULL);
    int64_t ticket[70];
    double v = -1;
    int good = 1;
    for (int i = 0; i < 70; i++) {
        lks_fill_(x, i);
        ticket[i] = lks_item_later(x);
        good &= ticket[i] > 0;
    }
    ok(good, "70 readings are queued");
    for (int i = 69; i >= 6; i--) good &= lks_item_take(ctx, ticket[i], &v) == LKS_OK && v == i;
    ok(good, "the last 64 are kept, each with the value of its time, in any order");
    ok(lks_item_take(ctx, ticket[5], &v) == LKS_ERR_ARGUMENT && failed(LKS_ERR_ARGUMENT, "lks_item_take", "ticket"),
       "older ones are not");
    ok(lks_item_take(ctx, ticket[69] + 1, &v) == LKS_ERR_ARGUMENT &&
       failed(LKS_ERR_ARGUMENT, "lks_item_take", "ticket"),
       "nor is one that was never given");
    ok(lks_item_take(ctx, 0, &v) == LKS_ERR_ARGUMENT && failed(LKS_ERR_ARGUMENT, "ticket", "0"), "nor 0");
    ok(lks_item_later(F(2)) == LKS_ERR_SHAPE && failed(LKS_ERR_SHAPE, "lks_item_later", "2 elements"), "two elements");
    ok(lks_item_take(ctx, ticket[69], &v) == LKS_OK && v == 69, "a value may be taken twice");
    lks_tensor *b = lks_full(ctx, LKS_BF16, SHAPE(1, 1), 2.5);
    ok(lks_item_take(ctx, lks_item_later(b), &v) == LKS_OK && v == 2.5, "a bfloat16 value of shape [1,1]");
}

/* --- casts --- */

static double truncated(double v, double low, double high)
{
    if (isnan(v)) return 0;
    v = trunc(v);
    return v <= low ? low : v >= high ? high : v;
}

static double cast_of(lks_dtype from, lks_dtype to, double v)
{
    int integer = !lks_dtype_is_float(from);
    switch (to) {
    case LKS_BOOL: return v != 0; /* NaN, too */
    case LKS_U8: return integer ? (double)(uint8_t)(int64_t)v : truncated(v, 0, 255);
    case LKS_I32: return integer ? (double)(int32_t)(int64_t)v : truncated(v, -0x1p31, 0x1p31 - 1);
    case LKS_I64: return integer ? v : truncated(v, -0x1p63, 0x1p63);
    default: return rounded_to(to, v);
    }
}

static void test_casts(void)
{
    static const double values[] = {
        0, 1, -1, 2.5, -2.5, 0.49999, -0.5, 3.5, 100, 127, 128, 200, 255, 255.9, 256, 257, 300, -128, 2049, 2051, 65504,
        65519, 65520, 65536, -65520, 16777217, 2147483647, 2147483648.0, -2147483648.0, -2147483649.0, 4294967296.0,
        1e10, -1e10, 9.2e18, 0x1p40 + 0x1p32 + 1, 0x1p30 + 0x1p22 + 1, 1e30, -1e30, 0x1p-14, 0x1p-24, 0x1p-25,
        0x1.004p-25, 0x1p-126, 0x1p-133, 1e-300, 1.00390625, 1.01171875, 0x1.01p0, 0x1.00ffp0, 0x1.0100000001p0,
        0x1.002000001p0, INFINITY, -INFINITY, NAN};
    enum { N = (int)(sizeof values / sizeof *values) };
    for (lks_dtype from = 0; from < LKS_C64; from++)
        for (lks_dtype to = 0; to < LKS_C64; to++) {
            char in[8 * N], out[8 * N];
            double have[N];
            int64_t n = 0, shape[1];
            for (int i = 0; i < N; i++) { /* what `from` can hold */
                double v = values[i];
                if (!lks_dtype_is_float(from)) {
                    if (isnan(v) || isinf(v) || fabs(v) > 9.2e18) continue;
                    v = trunc(v);
                    if (from == LKS_I32) v = truncated(v, -0x1p31, 0x1p31 - 1);
                    if (from == LKS_U8) v = truncated(v, 0, 255);
                    if (from == LKS_BOOL) v = v != 0;
                }
                have[n] = rounded_to(from, v);
                set_value(from, in, n, v);
                n++;
            }
            shape[0] = n;
            int wrong = 0;
            lks_scope_begin(ctx);
            lks_tensor *x = lks_from_host(ctx, from, 1, shape, in), *y = lks_to(x, to);
            wrong |= (from == to) != (x == y);
            lks_to_host(y, out, n * lks_dtype_size(to));
            for (int64_t i = 0; i < n; i++) {
                double want = cast_of(from, to, have[i]), got = value_at(to, out, i);
                if (got == want || (isnan(got) && isnan(want))) continue;
                diag("%.17g: %.17g, not %.17g", have[i], got, want);
                wrong++;
            }
            /* A strided source, and a copy into another dtype, convert alike. */
            char again[8 * N];
            lks_tensor *pair = lks_zeros(ctx, from, SHAPE(n, 2)), *into = lks_zeros(ctx, to, SHAPE(n, 2));
            lks_copy_(lks_select(pair, 1, 1), x);
            lks_copy_(lks_select(into, 1, 0), lks_select(pair, 1, 1));
            lks_to_host(lks_select(into, 1, 0), again, n * lks_dtype_size(to));
            wrong |= memcmp(out, again, (size_t)(n * lks_dtype_size(to))) != 0 && from != to;
            lks_scope_end(ctx);
            ok(!wrong, "%s to %s", lks_dtype_name(from), lks_dtype_name(to));
        }
    /* A sign survives. */
    float minus = -0.0f;
    uint16_t bits = 0;
    lks_tensor *z = lks_from_host(ctx, LKS_F32, 0, NULL, &minus);
    lks_to_host(lks_to(z, LKS_F16), &bits, 2);
    is_int(bits, 0x8000, "-0 as float16");
    lks_to_host(lks_to(z, LKS_BF16), &bits, 2);
    is_int(bits, 0x8000, "-0 as bfloat16");
}

static void test_making(void)
{
    ok(HOLDS(lks_full(ctx, LKS_I64, SHAPE(2), 2.7), 2, 2) && HOLDS(lks_full(ctx, LKS_BOOL, SHAPE(2), 0.3), 1, 1) &&
           HOLDS(lks_full(ctx, LKS_U8, SHAPE(1), 300), 255) && HOLDS(lks_full(ctx, LKS_F16, SHAPE(1), 65520), INFINITY),
       "full converts its value");
    for (lks_dtype t = 0; t < LKS_C64; t++)
        if (t != LKS_BOOL) ok(HOLDS(lks_arange(ctx, t, 4), 0, 1, 2, 3), "arange of %s", lks_dtype_name(t));
    ok(HOLDS(lks_ones(ctx, LKS_BF16, SHAPE(2)), 1, 1) && HOLDS(lks_zeros(ctx, LKS_BOOL, SHAPE(2)), 0, 0),
       "ones, zeros");
    ok(!lks_empty(ctx, LKS_F32, SHAPE(2, -1)) && failed(LKS_ERR_SHAPE, "lks_empty", "-1"), "a negative size");
    ok(!lks_empty(ctx, LKS_F32, 9, NULL) && failed(LKS_ERR_SHAPE, "lks_empty", "9"), "9 dims");
    ok(!lks_empty(ctx, LKS_F32, 1, NULL) && failed(LKS_ERR_SHAPE, "lks_empty", ""), "no shape");
    ok(!lks_empty(ctx, -1, SHAPE(2)) && failed(LKS_ERR_DTYPE, "lks_empty", "-1"), "no dtype");
    ok(!lks_arange(ctx, LKS_F32, -1) && failed(LKS_ERR_SHAPE, "-1", ""), "arange of a negative count");
}

static void test_copy(void)
{
    lks_tensor *x = lks_arange(ctx, LKS_F32, 6);
    lks_copy_(lks_narrow(x, 0, 1, 5), lks_narrow(x, 0, 0, 5));
    ok(HOLDS(x, 0, 0, 1, 2, 3, 4), "a copy onto itself, one further");
    x = lks_arange(ctx, LKS_F32, 6);
    lks_copy_(lks_narrow(x, 0, 0, 5), lks_narrow(x, 0, 1, 5));
    ok(HOLDS(x, 1, 2, 3, 4, 5, 5), "one back");
    x = counted(LKS_F32, SHAPE(2, 2));
    lks_copy_(x, lks_transpose(x, 0, 1));
    ok(HOLDS(x, 0, 2, 1, 3), "transposed onto itself");
    lks_copy_(x, x);
    ok(HOLDS(x, 0, 2, 1, 3), "onto itself as it is");
    lks_copy_(x, counted(LKS_I64, SHAPE(2)));
    ok(HOLDS(x, 0, 1, 0, 1), "broadcast and converted");
    lks_copy_(lks_transpose(x, 0, 1), lks_arange(ctx, LKS_BF16, 2));
    ok(HOLDS(x, 0, 0, 1, 1), "into a transposed view");
    int64_t version = x->st->version;
    lks_copy_(lks_select(x, 0, 0), F(2));
    ok(x->st->version == version + 1, "a write through a view counts");
    lks_copy_(F(0, 3), F(3));
    is_int(lks_error_code(ctx), LKS_OK, "into nothing");
}

/* --- sizes --- */

static void test_overflow(void)
{
    const int64_t big = (int64_t)1 << 61, half = (int64_t)1 << 40;
    int64_t used = lks_memory_used(ctx), held = lks_memory_held(ctx), blocks = lksi_blocks_in_use(&ctx->base);
    ok(!lks_empty(ctx, LKS_U8, SHAPE(2, 2, 1, big)) && failed(LKS_ERR_SHAPE, "lks_empty", "64-bit"),
       "B61: 2^63 elements");
    ok(!lks_zeros(ctx, LKS_U8, SHAPE((int64_t)1 << 31, (int64_t)1 << 33)) && failed(LKS_ERR_SHAPE, "64-bit", ""),
       "B61: 2^64");
    ok(!lks_empty(ctx, LKS_F64, SHAPE(big)) && failed(LKS_ERR_SHAPE, "64-bit", "float64"), "2^64 bytes");
    ok(!lks_full(ctx, LKS_F32, SHAPE(big, 2), 1) && failed(LKS_ERR_SHAPE, "64-bit", ""), "full");
    ok(!lks_from_host(ctx, LKS_F32, SHAPE(big, 2), &big) && failed(LKS_ERR_SHAPE, "64-bit", ""), "from_host");
    ok(!lks_wrap(ctx, (void *)(intptr_t)&big, LKS_F32, SHAPE(big, 2), NULL) && failed(LKS_ERR_SHAPE, "64-bit", ""),
       "wrap");
    is_int(lks_memory_used(ctx), used, "nothing was allocated");
    is_int(lks_memory_held(ctx), held, "nor taken from the device");
    is_int(lksi_blocks_in_use(&ctx->base), blocks, "nor on the host");
    ok(!lks_empty(ctx, LKS_F32, SHAPE(half, 64)) && failed(LKS_ERR_MEMORY, "", ""),
       "2^48 bytes are too many, not an overflow");
    lks_tensor *none = lks_empty(ctx, LKS_F32, SHAPE(0, (int64_t)1 << 62, 4));
    ok(none && lks_numel(none) == 0 && lks_is_contiguous(none), "[0, 2^62, 4] is an empty tensor");
    ok(lks_numel(lks_add(none, none)) == 0 && lks_numel(lks_relu(none)) == 0 && lks_numel(lks_clone(none)) == 0 &&
           lks_numel(lks_to(none, LKS_F16)) == 0 && lks_to_host(none, NULL, 0) == LKS_OK &&
               lks_fill_(none, 1) == LKS_OK,
       "that can be computed with");
    ok(lks_numel(lks_permute(none, 3, (int[]){1, 2, 0})) == 0 &&
       lks_numel(lks_clone(lks_permute(none, 3, (int[]){1, 2, 0}))) == 0,
       "and permuted, the large sizes first");
    double v = -1;
    ok(lks_item(lks_sum(none, 0, NULL, 0, LKS_DTYPE_NONE), &v) == LKS_OK && v == 0, "its sum is 0");
    ok(!lks_sum(none, 1, (int[]){0}, 0, LKS_DTYPE_NONE) && failed(LKS_ERR_SHAPE, "64-bit", ""),
       "a sum of 2^64 zeros is refused");
    ok(!lks_flatten(none, 1, 2) && failed(LKS_ERR_SHAPE, "lks_flatten", "64-bit"),
       "2^64 folded into one dim is refused");
    lks_tensor *wide = lks_expand(F(1), SHAPE(half));
    ok(wide && lks_numel(wide) == half, "2^40 elements of one");
    ok(!lks_add(wide, lks_unsqueeze(wide, 1)) && failed(LKS_ERR_SHAPE, "lks_add", "64-bit"),
       "a broadcast that overflows");
    ok(!lks_matmul(F(1, 0), lks_empty(ctx, LKS_F32, SHAPE(0, half, 2))) && failed(LKS_ERR_SHAPE, "", ""),
       "unlike sizes");
    lks_tensor *tall = lks_empty(ctx, LKS_F32, SHAPE(half, 0));
    ok(!lks_matmul(tall, lks_transpose(tall, 0, 1)) && failed(LKS_ERR_SHAPE, "lks_matmul", "64-bit"),
       "a product of nothing");
    ok(!lks_expand(wide, SHAPE(half, half)) && failed(LKS_ERR_SHAPE, "lks_expand", "64-bit"),
       "an expanded view that overflows");
}

/* A request that cannot be met says what it was, what is alive and how much was, and spoils nothing. */
static void test_out_of_memory(void)
{
    double v = 0;
    lks_tensor *x = lks_ones(ctx, LKS_F32, SHAPE(5, 77)), *most = lks_ones(ctx, LKS_F64, SHAPE(999, 3));
    for (int i = 0; i < 2; i++) lks_zeros(ctx, LKS_F32, SHAPE(5, 77));
    lks_narrow(x, 1, 0, 7);
    lks_tensor *wide = lks_expand(x, SHAPE((int64_t)1 << 42, 5, 77));
    ok(most && !lks_exp(wide), "a result of 2^50 bytes");
    const char *text = lks_error(ctx);
    const char *first = strstr(text, "1 float64[999,3]"), *then = strstr(text, "3 float32[5,77]");
    ok(lks_error_code(ctx) == LKS_ERR_MEMORY && strstr(text, "for float32[4398046511104,5,77]") &&
           strstr(text, "wanted by lks_exp") && strstr(text, "peak") && first && then && first < then &&
           !strstr(text, "[5,7]"),
       "%s", text);
    lks_error_clear(ctx);
    ok(lks_item(lks_sum(lks_add(x, x), 0, NULL, 0, LKS_DTYPE_NONE), &v) == LKS_OK && v == 770, "then all goes on");
}

static void test_nothing(void)
{
    lks_tensor *n = F(0), *r = F(0, 3), *s = lks_full(ctx, LKS_F32, 0, NULL, 4), *y, *i;
    double v = -1;
    ok(lks_numel(n) == 0 && lks_numel(s) == 1 && lks_ndim(s) == 0 && lks_shape(s) && lks_dim(s, 0) == -1,
       "0-dim and empty");
    ok(HOLDS(lks_add(s, s), 8) && lks_numel(lks_add(n, s)) == 0 && HOLDS(lks_sqrt(s), 2), "elementwise");
    ok(HOLDS(lks_sum(s, 0, NULL, 0, LKS_DTYPE_NONE), 4) && HOLDS(lks_mean(s, 0, NULL, 0, LKS_DTYPE_NONE), 4) &&
           HOLDS(lks_sum(r, 1, (int[]){0}, 0, LKS_DTYPE_NONE), 0, 0, 0), "sums");
    ok(lks_item(lks_mean(n, 0, NULL, 0, LKS_DTYPE_NONE), &v) == LKS_OK && isnan(v), "the mean of nothing is NaN");
    ok(lks_max(s, 0, 0, &y, &i) == LKS_OK && HOLDS(y, 4) && HOLDS(i, 0) && HOLDS(lks_max_all(s), 4), "max of one");
    ok(HOLDS(lks_softmax(s, 0), 1) && HOLDS(lks_log_softmax(s, -1), 0) && lks_numel(lks_softmax(r, 1)) == 0, "softmax");
    ok(HOLDS(lks_cat(2, (lks_tensor *[]){n, lks_ones(ctx, LKS_F32, SHAPE(2))}, 0), 1, 1), "cat with an empty one");
    ok(HOLDS(lks_matmul(F(2, 0), F(0, 2)), 0, 0, 0, 0) && lks_numel(lks_matmul(r, F(3, 2))) == 0,
       "products of nothing");
    ok(lks_numel(lks_embedding(F(4, 0), lks_arange(ctx, LKS_I64, 3))) == 0 &&
           lks_numel(lks_embedding(F(4, 2), lks_arange(ctx, LKS_I64, 0))) == 0, "embedding");
    ok(HOLDS(lks_cross_entropy(r, lks_zeros(ctx, LKS_I64, SHAPE(0)), -100, 0, LKS_REDUCTION_MEAN), 0),
       "loss of no rows");
    ok(lks_numel(lks_reshape(r, SHAPE(-1))) == 0 && lks_numel(lks_reshape(r, SHAPE(5, 0, 7))) == 0, "reshape");
    ok(lks_uniform_(n, 0, 1) == LKS_OK && lks_normal_(s, 0, 1) == LKS_OK && lks_dropout(n, 0.5), "random");
    ok(lks_item(lks_to(lks_full(ctx, LKS_I64, 0, NULL, 3), LKS_F16), &v) == LKS_OK && v == 3, "a 0-dim cast");
    ok(lks_numel(lks_where(lks_zeros(ctx, LKS_BOOL, SHAPE(0)), s, s)) == 0 && lks_numel(lks_eq(r, s)) == 0,
       "where, eq");
    is_int(lks_error_code(ctx), LKS_OK, "none of this is an error");
}

/* --- who owns what --- */

static void test_scopes(void)
{
    int64_t live = lks_live_tensors(ctx), used = lks_memory_used(ctx);
    lks_scope_begin(ctx);
    lks_tensor *a = F(10);
    lks_scope_begin(ctx);
    lks_tensor *b = F(20), *view = lks_slice(b, 0, 3, 5, 1), *kept = lks_keep(F(30));
    lks_fill_(b, 7);
    lks_keep(view);
    is_int(lks_live_tensors(ctx) - live, 4, "four tensors");
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx) - live, 3, "the kept ones live on");
    ok(HOLDS(view, 7, 7), "a kept view holds the memory of its base");
    lks_release(view);
    lks_release(kept);
    lks_release(NULL);
    lks_release(LKS_NONE);
    ok(lks_keep(LKS_NONE) == LKS_NONE && lks_keep(NULL) == NULL, "keep of nothing");
    is_int(lks_live_tensors(ctx) - live, 1, "released");
    lks_scope_begin(ctx);
    lks_tensor *left = lks_scope_leave(ctx, lks_full(ctx, LKS_F32, SHAPE(1), 5));
    ok(left && HOLDS(left, 5), "handed to the scope outside");
    lks_scope_begin(ctx);
    ok(lks_scope_leave(ctx, a) == a && a->shares == 2, "a tensor of the scope outside may be handed on");
    lks_scope_begin(ctx);
    ok(lks_scope_leave(ctx, NULL) == NULL, "NULL passes");
    lks_scope_begin(ctx);
    ok(lks_scope_leave(ctx, LKS_NONE) == LKS_NONE, "so does LKS_NONE");
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), live, "nothing is left");
    is_int(lks_memory_used(ctx), used, "and no memory");
    int open = ctx->scope_count;
    while (ctx->scope_count) lks_scope_end(ctx);
    ok(lks_scope_end(ctx) == LKS_ERR_STATE && failed(LKS_ERR_STATE, "lks_scope_end", "no scope"), "no scope is open");
    ok(!lks_scope_leave(ctx, NULL) && failed(LKS_ERR_STATE, "lks_scope_end", "no scope"), "none to leave");
    for (int i = 0; i < open; i++) lks_scope_begin(ctx);
    /* Deep nesting, and many tensors in one scope. */
    for (int i = 0; i < 100; i++) {
        lks_scope_begin(ctx);
        F(1);
    }
    is_int(lks_live_tensors(ctx) - live, 100, "100 scopes");
    for (int i = 0; i < 100; i++) lks_scope_end(ctx);
    lks_scope_begin(ctx);
    for (int i = 0; i < 5000; i++) F(1);
    lks_scope_end(ctx);
    is_int(lks_live_tensors(ctx), live, "5000 tensors");
    is_int(lks_memory_used(ctx), used, "all given back");
    lks_memory_peak_reset(ctx);
    lks_scope_begin(ctx);
    F(1000);
    lks_scope_end(ctx);
    ok(lks_memory_peak(ctx) >= used + 4000, "the peak is kept");
    /* Freed memory is used again: what the pool holds does not grow. */
    lks_scope_begin(ctx);
    F(1000);
    lks_scope_end(ctx);
    int64_t held = lks_memory_held(ctx);
    for (int i = 0; i < 1000; i++) {
        lks_scope_begin(ctx);
        F(1000);
        lks_scope_end(ctx);
    }
    is_int(lks_memory_held(ctx), held, "a loop takes no new memory");
    lks_scope_begin(ctx);
    F(4 << 20);
    lks_scope_end(ctx);
    held = lks_memory_held(ctx);
    lks_memory_trim(ctx);
    ok(lks_memory_held(ctx) <= held - (16 << 20) && lks_memory_held(ctx) >= lks_memory_used(ctx),
       "what no tensor uses is given back");
}

static void test_failures(void)
{
    /* Making, viewing and reading with each allocation failing in turn. */
    int bad = 0, tried = 0;
    for (int64_t n = 1; n < 200; n++) {
        int64_t live = lks_live_tensors(ctx), used = lks_memory_used(ctx), blocks = lksi_blocks_in_use(&ctx->base);
        double host[6] = {1, 2, 3, 4, 5, 6}, back[6], v = 0;
        ctx->base.fail_at = n;
        int scope = lks_scope_begin(ctx) == LKS_OK;
        lks_tensor *x = lks_from_host(ctx, LKS_F64, SHAPE(2, 3), host);
        lks_tensor *y = lks_reshape(lks_transpose(x, 0, 1), SHAPE(6));
        lks_tensor *w = lks_wrap(ctx, host, LKS_F64, SHAPE(0), NULL);
        lks_status s = y && w ? lks_to_host(lks_transpose(x, 0, 1), back, sizeof back) : LKS_ERR_MEMORY;
        if (s == LKS_OK) s = lks_set_from_host(lks_transpose(x, 0, 1), back, sizeof back);
        if (s == LKS_OK) s = lks_item(lks_sum(x, 0, NULL, 0, LKS_DTYPE_NONE), &v);
        if (s == LKS_OK) s = lks_copy_(lks_narrow(y, 0, 0, 3), lks_narrow(y, 0, 1, 3));
        int64_t left = ctx->base.fail_at;
        ctx->base.fail_at = 0;
        if (scope) lks_scope_end(ctx);
        lks_synchronize(ctx);
        bad |= (left <= 0) != (s != LKS_OK) || (s != LKS_OK && lks_error_code(ctx) != LKS_ERR_MEMORY);
        bad |= lks_live_tensors(ctx) != live || lks_memory_used(ctx) != used ||
               lksi_blocks_in_use(&ctx->base) != blocks;
        if (bad) diag("allocation %lld: %s: %s", (long long)n, lks_status_name(s), lks_error(ctx));
        lks_error_clear(ctx);
        if (bad || left > 0) break;
        tried++;
    }
    ok(!bad && tried > 10, "%d allocations fail without a trace", tried);
    /* The ring of values on their way is made at its first use. */
    lks_context *fresh = context_on(device, NULL, 1);
    int64_t ticket = -1;
    for (int64_t n = 1; n < 300 && ticket < 0 && !bad; n++) {
        lks_scope_begin(fresh);
        lks_tensor *x = lks_ones(fresh, LKS_F32, 0, NULL);
        fresh->base.fail_at = n;
        ticket = lks_item_later(x);
        fresh->base.fail_at = 0;
        bad |= ticket < 0 && ticket != LKS_ERR_MEMORY;
        if (ticket < 0) lks_error_clear(fresh);
        double v = 0;
        if (ticket > 0) bad |= lks_item_take(fresh, ticket, &v) != LKS_OK || v != 1;
        lks_scope_end(fresh);
    }
    ok(!bad && ticket > 0, "so do those of the first lks_item_later");
    lks_context_destroy(&fresh);
}

int main(void)
{
    static const char *const devices[] = {"cpu", "far"};
    for (int i = 0; i < 2; i++) {
        device = devices[i];
        diag("device %s", device);
        ctx = context_on(device, NULL, 2);
        if (!ctx) bail("no context on %s", device);
        static void (*const tests[])(void) = {
            test_views, test_chains, test_wrap, test_contiguity, test_host, test_later, test_casts, test_making,
            test_copy, test_overflow, test_out_of_memory, test_nothing, test_failures};
        for (int k = 0; k < (int)(sizeof tests / sizeof *tests); k++) {
            lks_scope_begin(ctx);
            tests[k]();
            if (lks_error_code(ctx)) {
                ok(0, "an error is left: %s", lks_error(ctx));
                lks_error_clear(ctx);
            }
            lks_scope_end(ctx);
            is_int(lks_live_tensors(ctx), 0, "no tensor is left");
        }
        test_scopes();
        is_int(lks_live_tensors(ctx) + lks_live_nodes(ctx), 0, "nothing lives at the end");
        is_int(lks_context_destroy(&ctx), LKS_OK, "destroyed");
    }
    lks_finalize();
    return done();
}
