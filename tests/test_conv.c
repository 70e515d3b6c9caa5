/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_conv.c - convolution, its gradients and max pooling on the CPU against plain loops in double: strides, padding,
 * dilation, groups, layouts, dtypes, empty sizes, thread counts, and the texts of what does not fit.
 */
#include "products.h"

typedef struct window { int64_t n, c, h, w, k, r, s, groups, sh, sw, ph, pw, dh, dw; } window;

static lksi_attr attr_of(const window *v, const int64_t *size)
{
    lksi_attr a;
    memset(&a, 0, sizeof a);
    a.conv.stride[0] = a.conv.dilation[0] = 1;
    a.conv.stride[1] = v->sh, a.conv.stride[2] = v->sw;
    a.conv.padding[1] = v->ph, a.conv.padding[2] = v->pw;
    a.conv.dilation[1] = v->dh, a.conv.dilation[2] = v->dw;
    a.conv.groups = v->groups;
    if (size) memcpy(a.conv.size, size, 4 * sizeof *size);
    return a;
}

static double *values(const lksi_view *v)
{
    int64_t n = lksi_numel(v);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = element(v, i);
    return x;
}

/* which: 0 y from x, w; 1 dx from dy, w; 2 dw from dy, x. size: the same with magnitudes. */
static void reference(const window *v, int64_t p, int64_t q, int which, const double *x, const double *w, double *y,
                      double *size)
{
    int64_t cg = v->c / v->groups, kg = v->k / v->groups;
    for (int64_t n = 0; n < v->n; n++)
        for (int64_t k = 0; k < v->k; k++)
            for (int64_t i = 0; i < p; i++)
                for (int64_t j = 0; j < q; j++)
                    for (int64_t c = 0; c < cg; c++)
                        for (int64_t r = 0; r < v->r; r++)
                            for (int64_t s = 0; s < v->s; s++) {
                                int64_t h = i * v->sh - v->ph + r * v->dh, e = j * v->sw - v->pw + s * v->dw;
                                if (h < 0 || h >= v->h || e < 0 || e >= v->w) continue;
                                int64_t xa = ((n * v->c + k / kg * cg + c) * v->h + h) * v->w + e;
                                int64_t wa = ((k * cg + c) * v->r + r) * v->s + s;
                                int64_t ya = ((n * v->k + k) * p + i) * q + j;
                                int64_t to = which == 0 ? ya : which == 1 ? xa : wa;
                                double term = which == 0   ? x[xa] * w[wa]
                                              : which == 1 ? x[ya] * w[wa]
                                                           : x[ya] * w[xa];
                                y[to] += term, size[to] += fabs(term);
                            }
}

static int64_t compare(const lksi_view *got, const double *want, const double *size, double depth)
{
    int64_t wrong = 0;
    for (int64_t i = 0, n = lksi_numel(got); i < n; i++)
        if (!near_sum(element(got, i), want[i], size[i], got->dtype, depth) && wrong++ == 0)
            diag("element %lld: got %.9g, want %.9g", (long long)i, element(got, i), want[i]);
    return wrong;
}

static int one_convolution(const window *v, int dtype, int layout, int with_bias)
{
    int64_t cg = v->c / v->groups;
    lksi_view in[3] = {make(dtype, layout, SHAPE(v->n, v->c, v->h, v->w)),
                       make(dtype, layout == LAST ? LAST : ROWS, SHAPE(v->k, cg, v->r, v->s)), absent};
    lksi_view y = {0}, dy, dx = {0}, dw = {0}, back[2];
    lksi_attr attr = attr_of(v, NULL);
    if (with_bias) in[2] = make(dtype == LKS_F64 ? LKS_F64 : with_bias == 2 ? LKS_F32 : dtype, ROWS, SHAPE(v->k));
    int64_t wrong = 1;
    if (call(LKSI_OP_conv2d, 3, in, 1, &y, &attr, NULL, LKS_DTYPE_NONE) != LKS_OK) goto end;
    int64_t p = y.shape[2], q = y.shape[3], ny = lksi_numel(&y), nx = lksi_numel(&in[0]), nw = lksi_numel(&in[1]);
    int64_t most = ny > nx ? ny : nx;
    most = most > nw ? most : nw;
    double *xv = values(&in[0]), *wv = values(&in[1]), *want = calloc((size_t)most + 1, 8);
    double *size = calloc((size_t)most + 1, 8);
    double depth = (double)(cg * v->r * v->s);
    for (int64_t i = 0; with_bias && i < ny; i++) {
        want[i] = element(&in[2], i / (p * q) % v->k);
        size[i] = fabs(want[i]);
    }
    reference(v, p, q, 0, xv, wv, want, size);
    wrong = compare(&y, want, size, depth);
    if (layout == LAST && y.stride[1] != 1 && v->n > 0 && v->c > 1 && v->h * v->w > 1)
        wrong++, diag("channels-last was lost");
    dy = make(dtype, layout, SHAPE(v->n, v->k, p, q));
    double *gv = values(&dy);
    back[0] = dy, back[1] = in[1];
    attr = attr_of(v, in[0].shape);
    if (call(LKSI_OP_conv_backward_input, 2, back, 1, &dx, &attr, NULL, LKS_DTYPE_NONE) == LKS_OK) {
        memset(want, 0, (size_t)most * 8), memset(size, 0, (size_t)most * 8);
        reference(v, p, q, 1, gv, wv, want, size);
        wrong += compare(&dx, want, size, (double)(v->k * v->r * v->s));
    } else {
        wrong++;
    }
    back[1] = in[0];
    attr = attr_of(v, in[1].shape);
    int wide = dtype == LKS_BF16 && with_bias == 2 ? LKS_F32 : LKS_DTYPE_NONE;
    if (call(LKSI_OP_conv_backward_weight, 2, back, 1, &dw, &attr, NULL, wide) == LKS_OK) {
        memset(want, 0, (size_t)most * 8), memset(size, 0, (size_t)most * 8);
        reference(v, p, q, 2, gv, xv, want, size);
        wrong += compare(&dw, want, size, (double)(v->n * p * q));
    } else {
        wrong++;
    }
    free(xv), free(wv), free(gv), free(want), free(size);
    drop(&dy);
end:
    if (wrong)
        diag("%s layout %d: n%lld c%lld %lldx%lld k%lld %lldx%lld groups %lld: %s", lks_dtype_name(dtype), layout,
             (long long)v->n, (long long)v->c, (long long)v->h, (long long)v->w, (long long)v->k, (long long)v->r,
             (long long)v->s, (long long)v->groups, why);
    drop(&y), drop(&dx), drop(&dw);
    for (int i = 0; i < 3; i++) drop(&in[i]);
    return wrong == 0;
}

static const window windows[] = {
    {2, 3, 7, 8, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},   {1, 1, 5, 5, 1, 3, 3, 1, 1, 1, 0, 0, 1, 1},
    {2, 8, 6, 5, 16, 1, 1, 1, 1, 1, 0, 0, 1, 1},  {3, 4, 9, 10, 6, 3, 2, 2, 2, 1, 1, 0, 1, 1},
    {2, 6, 11, 9, 9, 3, 3, 3, 2, 3, 2, 1, 1, 1},  {1, 4, 12, 13, 8, 3, 3, 1, 1, 1, 2, 2, 2, 2},
    {2, 4, 8, 8, 4, 3, 3, 4, 1, 1, 1, 1, 1, 1},   {2, 17, 10, 12, 33, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {1, 3, 20, 21, 18, 7, 7, 1, 2, 2, 3, 3, 1, 1}, {2, 5, 6, 7, 3, 1, 1, 1, 1, 1, 1, 2, 1, 1},
    {1, 2, 3, 3, 4, 5, 5, 1, 1, 1, 3, 3, 1, 1},   {4, 16, 14, 14, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {0, 3, 7, 8, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},   {2, 0, 7, 8, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {2, 6, 9, 9, 4, 2, 3, 2, 3, 2, 0, 1, 2, 1},   {1, 70, 16, 16, 20, 1, 1, 1, 2, 2, 0, 0, 1, 1},
};

static void convolutions(const char *isa)
{
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (unsigned i = 0; i < sizeof windows / sizeof *windows; i++)
            for (int l = 0; l < LAYOUTS; l++)
                good &= one_convolution(&windows[i], floats[t], l, (int)(i + (unsigned)l) % 3);
        ok(good, "%s %s: convolution and both gradients", isa, lks_dtype_name(floats[t]));
    }
}

/* A gradient that repeats one number, as the backward of a sum makes. */
static void expanded(const char *isa)
{
    window v = windows[0];
    lksi_view x = make(LKS_F32, ROWS, SHAPE(2, 3, 7, 8)), w = make(LKS_F32, ROWS, SHAPE(5, 3, 3, 3));
    lksi_view one = make(LKS_F32, ROWS, SHAPE(1)), full = make(LKS_F32, ROWS, SHAPE(2, 5, 7, 8)), out[4];
    lksi_view dy = full;
    for (int64_t i = 0; i < lksi_numel(&full); i++) set_element(&full, i, element(&one, 0));
    dy.data = one.data;
    memset(dy.stride, 0, sizeof dy.stride);
    int good = 1;
    for (int stride = 1; stride <= 2; stride++) {
        lksi_attr ax, aw;
        v.sh = v.sw = stride;
        if (stride == 2) {
            dy.shape[2] = full.shape[2] = dy.shape[3] = full.shape[3] = 4;
            lksi_contiguous_strides(&full);
        }
        ax = attr_of(&v, x.shape), aw = attr_of(&v, w.shape);
        good &= call(LKSI_OP_conv_backward_input, 2, (lksi_view[]){dy, w}, 1, &out[0], &ax, NULL, -1) == LKS_OK;
        good &= call(LKSI_OP_conv_backward_input, 2, (lksi_view[]){full, w}, 1, &out[1], &ax, NULL, -1) == LKS_OK;
        good &= call(LKSI_OP_conv_backward_weight, 2, (lksi_view[]){dy, x}, 1, &out[2], &aw, NULL, -1) == LKS_OK;
        good &= call(LKSI_OP_conv_backward_weight, 2, (lksi_view[]){full, x}, 1, &out[3], &aw, NULL, -1) == LKS_OK;
        for (int i = 0; good && i < 4; i += 2)
            for (int64_t e = 0; e < lksi_numel(&out[i]); e++)
                good &= fabs(element(&out[i], e) - element(&out[i + 1], e)) < 1e-4;
        for (int i = 0; i < 4; i++) drop(&out[i]);
    }
    ok(good, "%s: an expanded gradient", isa);
    drop(&x), drop(&w), drop(&one), drop(&full);
}

static void threads(const char *isa)
{
    window v = {5, 16, 20, 20, 24, 3, 3, 1, 1, 1, 1, 1, 1, 1};
    lksi_view x = make(LKS_F32, LAST, SHAPE(5, 16, 20, 20)), w = make(LKS_F32, ROWS, SHAPE(24, 16, 3, 3));
    lksi_view dy = make(LKS_F32, LAST, SHAPE(5, 24, 20, 20)), out[2][3];
    lksi_attr ay = attr_of(&v, NULL), ax = attr_of(&v, x.shape), aw = attr_of(&v, w.shape);
    int good = 1;
    for (int i = 0; i < 2; i++) {
        if (!open_cpu(isa, i ? 3 : 1)) return;
        good &= call(LKSI_OP_conv2d, 2, (lksi_view[]){x, w}, 1, &out[i][0], &ay, NULL, -1) == LKS_OK;
        good &= call(LKSI_OP_conv_backward_input, 2, (lksi_view[]){dy, w}, 1, &out[i][1], &ax, NULL, -1) == LKS_OK;
        good &= call(LKSI_OP_conv_backward_weight, 2, (lksi_view[]){dy, x}, 1, &out[i][2], &aw, NULL, -1) == LKS_OK;
        close_cpu();
    }
    for (int k = 0; k < 3; k++) good = good && same_bits(&out[0][k], &out[1][k]);
    ok(good, "%s: convolution on 1 and 3 threads gives the same bits", isa);
    for (int k = 0; k < 3; k++) drop(&out[0][k]), drop(&out[1][k]);
    drop(&x), drop(&w), drop(&dy);
}

static lksi_attr pool_attr(int64_t k, int64_t s, int64_t p, const int64_t *size)
{
    lksi_attr a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 3; i++) a.pool.kernel[i] = a.pool.stride[i] = a.pool.dilation[i] = 1;
    a.pool.kernel[1] = k, a.pool.kernel[2] = k + 1;
    a.pool.stride[1] = s, a.pool.stride[2] = s;
    a.pool.padding[1] = p, a.pool.padding[2] = p;
    if (size) memcpy(a.pool.size, size, 4 * sizeof *size);
    return a;
}

static int one_pooling(int dtype, int layout, int64_t k, int64_t s, int64_t p, int64_t c, int64_t h, int64_t w)
{
    lksi_view x = make(dtype, layout, SHAPE(2, c, h, w)), out[2] = {{0}}, dx = {0}, dy;
    lksi_attr attr = pool_attr(k, s, p, NULL);
    int64_t wrong = 0, n = lksi_numel(&x);
    for (int64_t i = 0; i < n; i += 3) set_element(&x, i, floor(element(&x, i) * 4) / 4); /* ties */
    if (n > 20) set_element(&x, 7, NAN), set_element(&x, 8, NAN), set_element(&x, 20, -INFINITY);
    if (call(LKSI_OP_max_pool2d, 1, &x, 2, out, &attr, NULL, -1) != LKS_OK) {
        drop(&x);
        return 0;
    }
    int64_t oh = out[0].shape[2], ow = out[0].shape[3];
    if (layout == LAST && c > 1 && h * w > 1) wrong += out[0].stride[1] != 1 || out[1].stride[1] != 1;
    dy = make(dtype, layout, SHAPE(2, c, oh, ow));
    double *grad = calloc((size_t)n + 1, 8), *size = calloc((size_t)n + 1, 8);
    for (int64_t e = 0; e < lksi_numel(&out[0]); e++) {
        int64_t plane = e / (oh * ow), i = e / ow % oh, j = e % ow, at = -1;
        for (int64_t y = i * s - p; y < i * s - p + k; y++)
            for (int64_t z = j * s - p; z < j * s - p + k + 1; z++) {
                if (y < 0 || y >= h || z < 0 || z >= w) continue;
                double v = element(&x, plane * h * w + y * w + z);
                double best = at < 0 ? 0 : element(&x, plane * h * w + at);
                if (at < 0 || v > best || (isnan(v) && !isnan(best))) at = y * w + z;
            }
        double got = element(&out[0], e), want = element(&x, plane * h * w + at);
        wrong += element(&out[1], e) != (double)at || !(got == want || (isnan(got) && isnan(want)));
        grad[plane * h * w + at] += element(&dy, e);
        size[plane * h * w + at] += fabs(element(&dy, e));
    }
    attr = pool_attr(k, s, p, x.shape);
    if (call(LKSI_OP_max_pool_backward, 2, (lksi_view[]){dy, out[1]}, 1, &dx, &attr, NULL, -1) == LKS_OK)
        wrong += compare(&dx, grad, size, (double)(k * k));
    else
        wrong++;
    if (wrong) diag("%s layout %d kernel %lld stride %lld padding %lld: %s", lks_dtype_name(dtype), layout,
                    (long long)k,
                    (long long)s, (long long)p, why);
    free(grad), free(size);
    drop(&x), drop(&out[0]), drop(&out[1]), drop(&dx), drop(&dy);
    return wrong == 0;
}

static void poolings(const char *isa)
{
    for (int t = 0; t < 4; t++) {
        int good = 1;
        for (int l = 0; l < LAYOUTS; l++) {
            good &= one_pooling(floats[t], l, 2, 2, 0, 5, 8, 8);
            good &= one_pooling(floats[t], l, 3, 2, 1, 4, 9, 11);
            good &= one_pooling(floats[t], l, 3, 1, 1, 33, 7, 6);
            good &= one_pooling(floats[t], l, 2, 3, 1, 1, 7, 6);
            good &= one_pooling(floats[t], l, 2, 1, 0, 0, 7, 6);
            good &= one_pooling(floats[t], l, 1, 1, 0, 3, 1, 2);
        }
        ok(good, "%s %s: max pooling, NaN, ties, overlapping windows", isa, lks_dtype_name(floats[t]));
    }
}

static void refusals(void)
{
    window v = windows[0];
    lksi_attr attr = attr_of(&v, NULL);
    lksi_view x = make(LKS_F32, ROWS, SHAPE(2, 3, 7, 8)), w = make(LKS_F32, ROWS, SHAPE(5, 3, 3, 3)), y[2];
    lksi_view w4 = make(LKS_F32, ROWS, SHAPE(5, 4, 3, 3)), wb = make(LKS_BF16, ROWS, SHAPE(5, 3, 3, 3));
    lksi_view wide = make(LKS_F32, ROWS, SHAPE(5, 3, 10, 3)), b = make(LKS_F32, ROWS, SHAPE(4));
    is_int(call(LKSI_OP_conv2d, 2, (lksi_view[]){x, w4}, 1, y, &attr, NULL, -1), LKS_ERR_SHAPE,
           "channels that do not fit");
    ok(strstr(why, "[2,3,7,8]") && strstr(why, "[5,4,3,3]"), "... name both shapes: %s", why);
    is_int(call(LKSI_OP_conv2d, 2, (lksi_view[]){x, wb}, 1, y, &attr, NULL, -1), LKS_ERR_DTYPE, "unlike dtypes");
    is_int(call(LKSI_OP_conv2d, 2, (lksi_view[]){x, wide}, 1, y, &attr, NULL, -1), LKS_ERR_SHAPE,
           "a window larger than the image");
    is_int(call(LKSI_OP_conv2d, 3, (lksi_view[]){x, w, b}, 1, y, &attr, NULL, -1), LKS_ERR_SHAPE,
           "bias of a wrong size");
    attr.conv.stride[2] = 0;
    is_int(call(LKSI_OP_conv2d, 2, (lksi_view[]){x, w}, 1, y, &attr, NULL, -1), LKS_ERR_ARGUMENT, "stride 0");
    attr = attr_of(&v, w.shape);
    attr.conv.groups = 2;
    is_int(call(LKSI_OP_conv2d, 2, (lksi_view[]){x, w}, 1, y, &attr, NULL, -1), LKS_ERR_SHAPE,
           "groups that do not divide");
    attr = attr_of(&v, x.shape);
    is_int(call(LKSI_OP_conv_backward_input, 2, (lksi_view[]){x, w}, 1, y, &attr, NULL, -1), LKS_ERR_SHAPE,
           "dy of a wrong shape");
    attr = pool_attr(2, 2, 2, NULL);
    is_int(call(LKSI_OP_max_pool2d, 1, &x, 2, y, &attr, NULL, -1), LKS_ERR_ARGUMENT, "padding above half the kernel");
    attr = pool_attr(9, 2, 0, NULL);
    is_int(call(LKSI_OP_max_pool2d, 1, &x, 2, y, &attr, NULL, -1), LKS_ERR_SHAPE, "a window larger than the image");
    drop(&x), drop(&w), drop(&w4), drop(&wb), drop(&wide), drop(&b);
}

int main(void)
{
    for (unsigned i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!open_cpu(isas[i], 2)) continue;
        convolutions(isas[i]);
        expanded(isas[i]);
        poolings(isas[i]);
        close_cpu();
        threads(isas[i]);
    }
    window v = {2, 4, 9, 9, 4, 3, 3, 1, 2, 2, 1, 1, 1, 1};
    lksi_view x = make(LKS_BF16, ROWS, SHAPE(2, 4, 9, 9)), w = make(LKS_BF16, ROWS, SHAPE(4, 4, 3, 3));
    lksi_view dy = make(LKS_BF16, ROWS, SHAPE(2, 4, 5, 5));
    lksi_attr ay = attr_of(&v, NULL), ax = attr_of(&v, x.shape), aw = attr_of(&v, w.shape);
    ok(fails_cleanly(LKSI_OP_conv2d, 2, (lksi_view[]){x, w}, 1, &ay), "no memory for a convolution");
    ok(fails_cleanly(LKSI_OP_conv_backward_input, 2, (lksi_view[]){dy, w}, 1, &ax), "... the gradient of x");
    ok(fails_cleanly(LKSI_OP_conv_backward_weight, 2, (lksi_view[]){dy, x}, 1, &aw), "... the gradient of weights");
    drop(&x), drop(&w), drop(&dy);
    ok(open_cpu(NULL, 1), "a CPU");
    refusals();
    close_cpu();
    return done();
}
