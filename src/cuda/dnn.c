/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dnn.c - convolution over 1 to 3 dims, plain and transposed, and its gradients by cuDNN: sums in float32 (float64 for
 * float64), never TF32, deterministic algorithms by the library's heuristic, asked once a shape. Reduced types are
 * worked on channels-last, others as the image lies; what lies otherwise is copied first. A line is an image of height
 * 1.
 */
#include "cuda/inside.h"
#include <cudnn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define WORKSPACE ((int64_t)512 << 20) /* algorithms that want more are left aside */

/* Scratch slots of a stream. */
enum { COPY_X, COPY_W, COPY_Y, WORK };

enum kind { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT };

/* x: the image, y: the result of the plain convolution; dims is 4 or 5. No padding: compared as bytes. */
typedef struct key {
    int32_t kind, dtype, last, dims, groups, bias;
    int32_t x[5], w[5], y[5], stride[3], padding[3], dilation[3];
} key;

typedef struct entry {
    key k;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    int algo, fused; /* fused: bias is added by the convolution itself */
    cudnnStatus_t code; /* of the library when it was asked */
    size_t work;
} entry;

typedef struct dnn {
    cudnnHandle_t handle;
    cudnnActivationDescriptor_t identity;
    lksi_remembered known;
} dnn;

#define GO(call)                                                                                               \
    if (c == CUDNN_STATUS_SUCCESS) c = (call)

static void drop(lksi_cuda *cuda, void *remembered)
{
    entry *e = remembered;
    if (!e) return;
    if (e->x) cudnnDestroyTensorDescriptor(e->x);
    if (e->y) cudnnDestroyTensorDescriptor(e->y);
    if (e->bias) cudnnDestroyTensorDescriptor(e->bias);
    if (e->w) cudnnDestroyFilterDescriptor(e->w);
    if (e->conv) cudnnDestroyConvolutionDescriptor(e->conv);
    lksi_cuda_free(cuda, e);
}

static void destroy(lksi_cuda *cuda, void *state)
{
    dnn *s = state;
    for (int i = 0; i < LKSI_REMEMBERED; i++) drop(cuda, s->known.entry[i]);
    if (s->identity) cudnnDestroyActivationDescriptor(s->identity);
    if (s->handle) cudnnDestroy(s->handle);
    lksi_cuda_free(cuda, s);
}

static lks_status status_of(cudnnStatus_t s)
{
    if (s == CUDNN_STATUS_ALLOC_FAILED) return LKS_ERR_MEMORY;
    return CUDNN_STATUS_CATEGORY(s) == CUDNN_STATUS_NOT_SUPPORTED ? LKS_ERR_UNSUPPORTED : LKS_ERR_DEVICE;
}

static lks_status open_dnn(lksi_cuda *cuda, const lksi_args *a, dnn **out)
{
    void **state = lksi_cuda_state(cuda, LKSI_CUDA_CUDNN, destroy);
    *out = *state;
    if (*out) return LKS_OK;
    dnn *s = lksi_cuda_alloc(cuda, sizeof *s);
    if (!s) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    cudnnStatus_t c = cudnnCreate(&s->handle);
    GO(cudnnCreateActivationDescriptor(&s->identity));
    GO(cudnnSetActivationDescriptor(s->identity, CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0));
    if (c != CUDNN_STATUS_SUCCESS) {
        destroy(cuda, s);
        return lksi_why(a, status_of(c), "cuDNN cannot be opened: %s", cudnnGetErrorString(c));
    }
    *state = *out = s;
    return LKS_OK;
}

/* --- what the library is told and answers, once a shape ----------------------------------------------------------- */

static cudnnDataType_t type_of(int dtype)
{
    return dtype == LKS_F64   ? CUDNN_DATA_DOUBLE
           : dtype == LKS_F32 ? CUDNN_DATA_FLOAT
           : dtype == LKS_F16 ? CUDNN_DATA_HALF
                              : CUDNN_DATA_BFLOAT16;
}

static int bytes_of(int dtype)
{
    return dtype == LKS_F64 ? 8 : dtype == LKS_F32 ? 4 : 2;
}

static cudnnTensorFormat_t order_of(const key *k)
{
    return k->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}

static cudnnStatus_t tensor(cudnnTensorDescriptor_t *t, const key *k, const int32_t *shape)
{
    cudnnStatus_t c = cudnnCreateTensorDescriptor(t);
    GO(cudnnSetTensorNdDescriptorEx(*t, order_of(k), type_of(k->dtype), k->dims, shape));
    return c;
}

/* The first that may be used; its kind of arithmetic goes into the description. */
#define CHOOSE(KIND, PERF, ...)                                                                                \
    PERF found[16];                                                                                            \
    int n = 0;                                                                                                 \
    GO(cudnnGetConvolution##KIND##Algorithm_v7(s->handle, __VA_ARGS__, 16, &n, found));                         \
    int i = 0;                                                                                                 \
    while (c == CUDNN_STATUS_SUCCESS && i < n &&                                                               \
           (found[i].status != CUDNN_STATUS_SUCCESS || found[i].determinism != CUDNN_DETERMINISTIC ||          \
            found[i].memory > (size_t)WORKSPACE))                                                              \
        i++;                                                                                                   \
    if (c == CUDNN_STATUS_SUCCESS && i >= n) c = CUDNN_STATUS_NOT_SUPPORTED;                                   \
    if (c == CUDNN_STATUS_SUCCESS && bytes_of(k->dtype) == 2)                                                  \
        c = cudnnSetConvolutionMathType(e->conv, found[i].mathType);                                           \
    if (c == CUDNN_STATUS_SUCCESS) e->algo = (int)found[i].algo;                                               \
    GO(cudnnGetConvolution##KIND##WorkspaceSize(s->handle, __VA_ARGS__, found[i].algo, &e->work))

static cudnnStatus_t describe(dnn *s, entry *e)
{
    const key *k = &e->k;
    cudnnStatus_t c = tensor(&e->x, k, k->x);
    GO(tensor(&e->y, k, k->y));
    GO(cudnnCreateFilterDescriptor(&e->w));
    GO(cudnnSetFilterNdDescriptor(e->w, type_of(k->dtype), order_of(k), k->dims, k->w));
    GO(cudnnCreateConvolutionDescriptor(&e->conv));
    GO(cudnnSetConvolutionNdDescriptor(e->conv, k->dims - 2, k->padding, k->stride, k->dilation,
                                       CUDNN_CROSS_CORRELATION,
                                       k->dtype == LKS_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    GO(cudnnSetConvolutionGroupCount(e->conv, k->groups));
    GO(cudnnSetConvolutionMathType(e->conv, k->dtype == LKS_F32   ? CUDNN_FMA_MATH
                                            : k->dtype == LKS_F64 ? CUDNN_DEFAULT_MATH
                                                                  : CUDNN_TENSOR_OP_MATH));
    if (k->kind == FORWARD) {
        CHOOSE(Forward, cudnnConvolutionFwdAlgoPerf_t, e->x, e->w, e->conv, e->y);
        if (k->bias) {
            int32_t shape[5] = {1, k->w[0], 1, 1, 1};
            GO(tensor(&e->bias, k, shape));
        }
        e->fused = k->bias && e->algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM; /* none other can */
    } else if (k->kind == BACKWARD_INPUT) {
        CHOOSE(BackwardData, cudnnConvolutionBwdDataAlgoPerf_t, e->w, e->y, e->conv, e->x);
    } else {
        CHOOSE(BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t, e->x, e->y, e->conv, e->w);
    }
    return c;
}

static const char *text(const key *k, char *to, size_t bytes)
{
    const int32_t *const part[3] = {k->x, k->w, k->y};
    static const char *const name[3] = {"x [", "], weight [", "], y ["};
    size_t at = 0;
    for (int p = 0; p < 3; p++)
        for (int d = 0; d < k->dims && at < bytes; d++)
            at += (size_t)snprintf(to + at, bytes - at, "%s%d", d ? "," : name[p], part[p][d]);
    if (at < bytes)
        snprintf(to + at, bytes - at, "], %d groups, channels %s", k->groups, k->last ? "last" : "first");
    return to;
}

/* The remembered convolution, or a new one. One that the library does not take is remembered too, as its code. */
static lks_status lookup(lksi_cuda *cuda, const lksi_args *a, dnn *s, const key *k, entry **out)
{
    void **at = lksi_remembered_at(cuda, &s->known, k, sizeof *k, drop);
    if ((*out = *at)) return LKS_OK;
    entry *e = lksi_cuda_alloc(cuda, sizeof *e);
    if (!e) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    e->k = *k;
    e->code = describe(s, e);
    if (e->code == CUDNN_STATUS_ALLOC_FAILED) {
        drop(cuda, e);
        return lksi_why(a, LKS_ERR_MEMORY, "cuDNN has no memory");
    }
    *at = e;
    s->known.count++;
    *out = e;
    return LKS_OK;
}

/* --- operands ----------------------------------------------------------------------------------------------------- */

static int64_t count(const lksi_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->ndim; d++) n *= v->shape[d];
    return n;
}

/* [N, C, L] as [N, C, 1, L] */
static lksi_view lift(const lksi_view *v)
{
    lksi_view y = *v;
    if (v->ndim != 3) return y;
    y.ndim = 4;
    y.shape[3] = v->shape[2], y.stride[3] = v->stride[2];
    y.shape[2] = 1, y.stride[2] = v->stride[2];
    return y;
}

/* Strides of memory without gaps in either order. */
static void pack(lksi_view *v, int last)
{
    int64_t n = 1;
    if (last) v->stride[1] = 1, n = v->shape[1];
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (last && d == 1) continue;
        v->stride[d] = n;
        n *= v->shape[d];
    }
}

static int packed(const lksi_view *v, int last)
{
    lksi_view p = *v;
    pack(&p, last);
    for (int d = 0; d < v->ndim; d++)
        if (v->shape[d] > 1 && v->stride[d] != p.stride[d]) return 0;
    return (uintptr_t)v->data % 16 == 0;
}

static lks_status room(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int last, lksi_view *v)
{
    pack(v, last);
    return lksi_cuda_scratch(cuda, stream, a, slot, count(v) * bytes_of(v->dtype), &v->data);
}

/* v as memory without gaps. */
static lks_status straighten(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, int last, lksi_view *v)
{
    lksi_view from = *v;
    if (packed(v, last)) return LKS_OK;
    TRY(room(cuda, stream, a, slot, last, v));
    return lksi_cuda_copy_view(stream, a, v, &from);
}

/* All of v = bias [C], or 0. v has no gaps. */
static lks_status preset(cudaStream_t stream, const lksi_args *a, const lksi_view *v, const lksi_view *bias)
{
    if (!bias) {
        (void)cudaMemsetAsync(v->data, 0, (size_t)(count(v) * bytes_of(v->dtype)), stream);
        return lksi_cuda_launched(a);
    }
    lksi_view b = *bias;
    b.ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        b.shape[d] = d == 1 ? v->shape[1] : 1;
        b.stride[d] = d == 1 ? bias->stride[0] : 0;
    }
    return lksi_cuda_copy_view(stream, a, v, &b);
}

/* --- the convolution ---------------------------------------------------------------------------------------------- */

typedef struct work {
    lksi_cuda *cuda;
    cudaStream_t stream;
    const lksi_args *a;
    enum kind kind;
    lksi_view x, w, y; /* lifted */
    int64_t stride[3], padding[3], dilation[3], groups;
    const lksi_view *bias;
    lksi_view part, frame; /* framed: frame is worked on in x's place, part is what x has of it */
    int framed, empty;     /* empty: x has nothing of it */
} work;

/* Where both sides are padded alike the library does it. Else x is put into a frame, which has what the windows see. */
static void frame(work *s)
{
    const int spatial = s->x.ndim - 2;
    int64_t need[3];
    for (int i = 0; i < spatial; i++) {
        int64_t kernel = s->w.shape[2 + i], out = s->y.shape[2 + i];
        if (kernel == 1) s->dilation[i] = 1;
        int64_t reach = s->dilation[i] * (kernel - 1), left = s->x.shape[2 + i] + 2 * s->padding[i] - reach - 1;
        if (out == 1 && s->stride[i] > left) s->stride[i] = left < 0 ? 1 : left + 1; /* any that is large enough */
        need[i] = (out - 1) * s->stride[i] + reach + 1;
        if (left < 0 || left / s->stride[i] + 1 != out) s->framed = 1;
    }
    if (!s->framed) return;
    s->frame = s->part = s->x;
    for (int i = 0; i < spatial; i++) {
        int64_t there = need[i] - s->padding[i], in = s->x.shape[2 + i];
        s->frame.shape[2 + i] = need[i];
        s->part.shape[2 + i] = there < 0 ? 0 : there < in ? there : in;
        if (s->part.shape[2 + i] == 0) s->empty = 1;
    }
}

/* What part is in the frame. */
static lksi_view inside(const work *s, const lksi_view *frame)
{
    lksi_view v = *frame;
    int64_t at = 0;
    for (int i = 0; i < v.ndim - 2; i++) {
        at += s->padding[i] * v.stride[2 + i];
        v.shape[2 + i] = s->part.shape[2 + i];
    }
    v.data = (char *)v.data + at * bytes_of(v.dtype);
    return v;
}

static int narrow(int32_t *to, const int64_t *from, int n)
{
    for (int i = 0; i < n; i++) {
        if (from[i] > INT_MAX) return 0;
        to[i] = (int32_t)from[i];
    }
    return 1;
}

static cudnnStatus_t convolve(const work *s, dnn *d, entry *e, void *x, void *w, void *y, const void *bias, int add,
                              void *memory)
{
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const int dbl = e->k.dtype == LKS_F64;
    const void *one = dbl ? (const void *)&one64 : &one32, *zero = dbl ? (const void *)&zero64 : &zero32;
    const void *beta = add ? one : zero;
    const cudnnConvolutionFwdAlgo_t algo = (cudnnConvolutionFwdAlgo_t)e->algo;
    switch (s->kind) {
    case FORWARD:
        if (bias)
            return cudnnConvolutionBiasActivationForward(d->handle, one, e->x, x, e->w, w, e->conv, algo, memory,
                                                         e->work, zero, e->y, y, e->bias, bias, d->identity, e->y, y);
        return cudnnConvolutionForward(d->handle, one, e->x, x, e->w, w, e->conv, algo, memory, e->work, beta, e->y, y);
    case BACKWARD_INPUT:
        return cudnnConvolutionBackwardData(d->handle, one, e->w, w, e->y, y, e->conv,
                                            (cudnnConvolutionBwdDataAlgo_t)e->algo, memory, e->work, beta, e->x, x);
    default:
        return cudnnConvolutionBackwardFilter(d->handle, one, e->x, x, e->y, y, e->conv,
                                              (cudnnConvolutionBwdFilterAlgo_t)e->algo, memory, e->work, beta, e->w, w);
    }
}

/* The batch in parts that the library can count. All operands lie in one order, without gaps. */
static lks_status run(work *s, dnn *d, key *k, lksi_view *x, lksi_view *w, lksi_view *y)
{
    const int size = bytes_of(k->dtype);
    int64_t per_x = count(x) / x->shape[0], per_y = count(y) / x->shape[0], per = per_x > per_y ? per_x : per_y;
    int64_t batch = x->shape[0], most = INT_MAX / per;
    for (int64_t n = 0; n < batch; n += most) {
        k->x[0] = k->y[0] = (int32_t)(batch - n < most ? batch - n : most);
        entry *e = NULL;
        TRY(lookup(s->cuda, s->a, d, k, &e));
        cudnnStatus_t c = e->code;
        void *memory = NULL, *bias = NULL;
        int64_t before = s->bias && k->kind == FORWARD ? (count(s->bias) * size + 255) / 256 * 256 : 0;
        TRY(lksi_cuda_scratch(s->cuda, s->stream, s->a, WORK, before + (int64_t)e->work + 256, &memory));
        char *px = (char *)x->data + n * per_x * size, *py = (char *)y->data + n * per_y * size;
        lksi_view part = k->kind == FORWARD ? *y : *x;
        part.shape[0] = k->x[0];
        part.data = k->kind == FORWARD ? py : px;
        if (c == CUDNN_STATUS_SUCCESS && e->fused) {
            lksi_view b = *s->bias;
            bias = memory;
            b.data = bias, b.dtype = k->dtype, b.stride[0] = 1;
            TRY(lksi_cuda_copy_view(s->stream, s->a, &b, s->bias));
            c = convolve(s, d, e, px, w->data, py, bias, 0, (char *)memory + before);
            if (c != CUDNN_STATUS_SUCCESS && status_of(c) == LKS_ERR_UNSUPPORTED) {
                e->fused = 0;
                c = CUDNN_STATUS_SUCCESS;
            }
        }
        if (c == CUDNN_STATUS_SUCCESS && !e->fused) {
            if (s->bias) TRY(preset(s->stream, s->a, &part, s->bias));
            int add = s->bias || (k->kind == BACKWARD_WEIGHT && n > 0);
            c = convolve(s, d, e, px, w->data, py, NULL, add, (char *)memory + before);
        }
        if (c != CUDNN_STATUS_SUCCESS) {
            char t[320];
            return lksi_why(s->a, status_of(c), "cuDNN, %s: %s", text(k, t, sizeof t), cudnnGetErrorString(c));
        }
    }
    return lksi_cuda_launched(s->a);
}

static lks_status go(work *s)
{
    const lksi_view *out = s->kind == FORWARD ? &s->y : s->kind == BACKWARD_INPUT ? &s->x : &s->w;
    char t[320];
    dnn *d;
    if (count(out) == 0) return LKS_OK;
    if (count(&s->x) == 0 || count(&s->w) == 0 || count(&s->y) == 0) return preset(s->stream, s->a, out, s->bias);
    frame(s);
    if (s->empty) return preset(s->stream, s->a, out, s->bias);
    TRY(open_dnn(s->cuda, s->a, &d));
    cudnnStatus_t c = cudnnSetStream(d->handle, s->stream);
    if (c != CUDNN_STATUS_SUCCESS)
        return lksi_why(s->a, LKS_ERR_DEVICE, "cudnnSetStream: %s", cudnnGetErrorString(c));

    key k;
    memset(&k, 0, sizeof k);
    const int64_t none[3] = {0, 0, 0};
    const lksi_view *image = s->framed ? &s->frame : &s->x;
    int ok = narrow(k.x, image->shape, image->ndim) && narrow(k.w, s->w.shape, s->w.ndim) &&
             narrow(k.y, s->y.shape, s->y.ndim) && narrow(k.stride, s->stride, image->ndim - 2) &&
             narrow(k.padding, s->framed ? none : s->padding, image->ndim - 2) &&
             narrow(k.dilation, s->dilation, image->ndim - 2) && narrow(&k.groups, &s->groups, 1);
    k.dtype = s->kind == BACKWARD_INPUT ? s->w.dtype : s->x.dtype;
    k.kind = s->kind, k.dims = image->ndim, k.bias = s->bias != NULL && s->kind == FORWARD;
    int64_t per = count(image) / image->shape[0], per_y = count(&s->y) / s->y.shape[0];
    if (!ok || per > INT_MAX || per_y > INT_MAX || count(&s->w) > INT_MAX)
        return lksi_why(s->a, LKS_ERR_UNSUPPORTED,
                        "%s: an image, its result or the weight has more than the 2^31 elements that cuDNN counts",
                        text(&k, t, sizeof t));

    /* Which order: one that the library has an algorithm for. */
    const lksi_view *lies = s->kind == BACKWARD_INPUT ? &s->y : &s->x;
    k.last = k.dtype != LKS_F64 && (bytes_of(k.dtype) == 2 || (packed(lies, 1) && !packed(lies, 0)));
    int64_t most = INT_MAX / (per > per_y ? per : per_y);
    for (int again = 0;; again++) {
        key probe = k;
        entry *e = NULL;
        if (image->shape[0] > most) probe.x[0] = probe.y[0] = (int32_t)most;
        TRY(lookup(s->cuda, s->a, d, &probe, &e));
        if (e->code == CUDNN_STATUS_SUCCESS) break;
        if (again)
            return lksi_why(s->a, status_of(e->code), "cuDNN has no deterministic algorithm for %s: %s",
                            text(&k, t, sizeof t), cudnnGetErrorString(e->code));
        k.last = !k.last;
    }

    /* A result of another dtype (a float32 gradient of a 16-bit weight) is made in theirs and converted. */
    lksi_view x = s->x, w = s->w, y = s->y;
    const int alike = out->dtype == k.dtype;
    x.dtype = w.dtype = y.dtype = k.dtype;
    if (s->framed) {
        x = s->frame;
        x.dtype = k.dtype;
        TRY(room(s->cuda, s->stream, s->a, COPY_X, k.last, &x));
        if (s->kind != BACKWARD_INPUT) {
            lksi_view hole = inside(s, &x);
            TRY(preset(s->stream, s->a, &x, NULL));
            TRY(lksi_cuda_copy_view(s->stream, s->a, &hole, &s->part));
        }
    } else if (s->kind != BACKWARD_INPUT) {
        TRY(straighten(s->cuda, s->stream, s->a, COPY_X, k.last, &x));
    } else if (!alike || !packed(&x, k.last)) {
        TRY(room(s->cuda, s->stream, s->a, COPY_X, k.last, &x));
    }
    if (s->kind != BACKWARD_WEIGHT) TRY(straighten(s->cuda, s->stream, s->a, COPY_W, k.last, &w));
    else if (!alike || !packed(&w, k.last)) TRY(room(s->cuda, s->stream, s->a, COPY_W, k.last, &w));
    if (s->kind != FORWARD) TRY(straighten(s->cuda, s->stream, s->a, COPY_Y, k.last, &y));
    else if (!alike || !packed(&y, k.last)) TRY(room(s->cuda, s->stream, s->a, COPY_Y, k.last, &y));

    TRY(run(s, d, &k, &x, &w, &y));
    if (s->kind == FORWARD) return y.data == s->y.data ? LKS_OK : lksi_cuda_copy_view(s->stream, s->a, &s->y, &y);
    if (s->kind == BACKWARD_WEIGHT)
        return w.data == s->w.data ? LKS_OK : lksi_cuda_copy_view(s->stream, s->a, &s->w, &w);
    if (!s->framed) return x.data == s->x.data ? LKS_OK : lksi_cuda_copy_view(s->stream, s->a, &s->x, &x);
    lksi_view hole = inside(s, &x);
    if (count(&s->part) < count(&s->x)) TRY(preset(s->stream, s->a, &s->x, s->bias));
    return lksi_cuda_copy_view(s->stream, s->a, &s->part, &hole);
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static lks_status start(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, enum kind kind, const lksi_view *x,
                        const lksi_view *w, const lksi_view *y, int with_bias)
{
    work s = {.cuda = cuda, .stream = stream, .a = a, .kind = kind, .x = lift(x), .w = lift(w), .y = lift(y),
              .groups = a->attr.conv.groups};
    const int spatial = s.x.ndim - 2;
    for (int i = 0; i < spatial; i++) {
        int from = 3 - spatial + i, there = x->ndim - 2 + i >= spatial; /* the height of a line is not there */
        s.stride[i] = there ? a->attr.conv.stride[from] : 1;
        s.padding[i] = there ? a->attr.conv.padding[from] : 0;
        s.dilation[i] = there ? a->attr.conv.dilation[from] : 1;
    }
    if (with_bias && a->nin > 2 && a->in[2].ndim >= 0) s.bias = &a->in[2];
    return go(&s);
}

#define ROW(name) lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
#define PLAIN(name) ROW(name) { return start(cuda, stream, a, FORWARD, &a->in[0], &a->in[1], &a->out[0], 1); }
#define TURNED(name, bias)                                                                                     \
    ROW(name) { return start(cuda, stream, a, BACKWARD_INPUT, &a->out[0], &a->in[1], &a->in[0], bias); }

PLAIN(conv1d)
PLAIN(conv2d)
PLAIN(conv3d)
TURNED(conv_transpose1d, 1)
TURNED(conv_transpose2d, 1)
TURNED(conv_transpose3d, 1)
TURNED(conv_backward_input, 0)

ROW(conv_backward_weight)
{
    return start(cuda, stream, a, BACKWARD_WEIGHT, &a->in[1], &a->out[0], &a->in[0], 0);
}

/* [T, B, C] is one image [1, C, T, B] with its channels last, the weight [R, C, K] one [K, C, R, 1]. */
ROW(conv_tbc)
{
    const lksi_view *part[3] = {&a->in[0], &a->in[1], &a->out[0]};
    lksi_view v[3];
    for (int i = 0; i < 3; i++) {
        const lksi_view *p = part[i];
        int64_t unused = p->shape[0] * p->stride[0];
        v[i] = *p;
        v[i].ndim = 4;
        v[i].shape[0] = i == 1 ? p->shape[2] : 1, v[i].stride[0] = i == 1 ? p->stride[2] : unused;
        v[i].shape[1] = p->shape[i == 1 ? 1 : 2], v[i].stride[1] = p->stride[i == 1 ? 1 : 2];
        v[i].shape[2] = p->shape[0], v[i].stride[2] = p->stride[0];
        v[i].shape[3] = i == 1 ? 1 : p->shape[1], v[i].stride[3] = i == 1 ? unused : p->stride[1];
    }
    work s = {.cuda = cuda, .stream = stream, .a = a, .kind = FORWARD, .x = v[0], .w = v[1], .y = v[2], .groups = 1,
              .stride = {1, 1, 1}, .padding = {a->attr.conv.padding[2], 0, 0}, .dilation = {1, 1, 1}};
    if (a->nin > 2 && a->in[2].ndim >= 0) s.bias = &a->in[2];
    return go(&s);
}
