/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blas.c - matmul, linear, addmm and their kin by cublasLt: float32 accumulation (float64 for float64), never TF32,
 * bias added in the epilogue, algorithms by the library's heuristic, asked once a shape. Operands that lie in neither
 * order are copied first; batches of one stride are one call. Complex products are cublas's own.
 */
#include "cuda/inside.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <string.h>

#define WORKSPACE ((int64_t)32 << 20)

/* Scratch slots of a stream. */
enum { COPY_X, COPY_Y, COPY_BIAS, WORK, RESULT };
_Static_assert(RESULT < LKSI_CUDA_PRODUCT_SLOTS, "slots");

#define ROW(name) lks_status lksi_cuda_##name(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a)
ROW(affine); /* kernels/elementwise.cu */
ROW(sum);    /* kernels/reduce.cu */

/* A product of column-major matrices D[m, n] = op(A)[m, k] op(B)[k, n] (+ bias[m]) or + D, dtype that of A and B, to
 * that of D; or (SUMS) with the sums of B over k, [n], beside it. No padding: compared as bytes. */
enum { PLAIN, BIAS, SUMS };
typedef struct key {
    int64_t m, n, k, lda, ldb, batch, step_a, step_b, step_d;
    int32_t dtype, to, trans_a, trans_b, more, align_a, align_b, align_d;
} key;

typedef struct entry {
    key k;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    int refused; /* there is no algorithm for it */
} entry;

typedef struct blas {
    cublasLtHandle_t lt;
    cublasHandle_t complex; /* made by the first complex product */
    lksi_remembered known;
} blas;

static void drop(lksi_cuda *cuda, void *remembered)
{
    entry *e = remembered;
    if (!e) return;
    if (e->desc) cublasLtMatmulDescDestroy(e->desc);
    if (e->a) cublasLtMatrixLayoutDestroy(e->a);
    if (e->b) cublasLtMatrixLayoutDestroy(e->b);
    if (e->d) cublasLtMatrixLayoutDestroy(e->d);
    lksi_cuda_free(cuda, e);
}

static void destroy(lksi_cuda *cuda, void *state)
{
    blas *s = state;
    for (int i = 0; i < LKSI_REMEMBERED; i++) drop(cuda, s->known.entry[i]);
    if (s->lt) cublasLtDestroy(s->lt);
    if (s->complex) cublasDestroy(s->complex);
    lksi_cuda_free(cuda, s);
}

static lks_status failed(const lksi_args *a, const char *what, cublasStatus_t s)
{
    return lksi_why(a, s == CUBLAS_STATUS_ALLOC_FAILED ? LKS_ERR_MEMORY : LKS_ERR_DEVICE, "%s: %s", what,
                    cublasLtGetStatusString(s));
}

static lks_status open_blas(lksi_cuda *cuda, const lksi_args *a, blas **out)
{
    void **state = lksi_cuda_state(cuda, LKSI_CUDA_BLAS, destroy);
    *out = *state;
    if (*out) return LKS_OK;
    blas *s = lksi_cuda_alloc(cuda, sizeof *s);
    if (!s) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    cublasStatus_t code = cublasLtCreate(&s->lt);
    if (code != CUBLAS_STATUS_SUCCESS) {
        lksi_cuda_free(cuda, s);
        return failed(a, "cublasLt cannot be opened", code);
    }
    *state = *out = s;
    return LKS_OK;
}

static cudaDataType_t type_of(int dtype)
{
    return dtype == LKS_F64 ? CUDA_R_64F : dtype == LKS_F32 ? CUDA_R_32F : dtype == LKS_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static int is_complex(int dtype) { return dtype == LKS_C64 || dtype == LKS_C128; }

static int bytes_of(int dtype)
{
    return dtype == LKS_C128 ? 16 : dtype == LKS_F64 || dtype == LKS_C64 ? 8 : dtype == LKS_F32 ? 4 : 2;
}

static cublasStatus_t layout(cublasLtMatrixLayout_t *l, int dtype, int64_t rows, int64_t cols, int64_t ld,
                             int64_t batch, int64_t step)
{
    cublasStatus_t s = cublasLtMatrixLayoutCreate(l, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld);
    int32_t n = (int32_t)batch;
    if (s != CUBLAS_STATUS_SUCCESS || batch == 1) return s;
    s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    return cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static cublasStatus_t describe(blas *s, entry *e)
{
    const key *k = &e->k;
    cublasComputeType_t compute = k->dtype == LKS_F64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    uint64_t room = WORKSPACE;
    uint32_t align[3] = {(uint32_t)k->align_a, (uint32_t)k->align_b, (uint32_t)k->align_d};
#define GO(call)                                                                                               \
    if (c == CUBLAS_STATUS_SUCCESS) c = (call)
    cublasStatus_t c = cublasLtMatmulDescCreate(&e->desc, compute, k->dtype == LKS_F64 ? CUDA_R_64F : CUDA_R_32F);
    GO(cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    GO(cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    if (k->more) {
        cublasLtEpilogue_t epilogue = k->more == BIAS ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB;
        GO(cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    }
    GO(layout(&e->a, k->dtype, k->trans_a ? k->k : k->m, k->trans_a ? k->m : k->k, k->lda, k->batch, k->step_a));
    GO(layout(&e->b, k->dtype, k->trans_b ? k->n : k->k, k->trans_b ? k->k : k->n, k->ldb, k->batch, k->step_b));
    GO(layout(&e->d, k->to, k->m, k->n, k->m, k->batch, k->step_d));
    GO(cublasLtMatmulPreferenceCreate(&wish));
    GO(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    GO(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0],
                                            sizeof align[0]));
    GO(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1],
                                            sizeof align[1]));
    GO(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2],
                                            sizeof align[2]));
    GO(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2],
                                            sizeof align[2]));
    GO(cublasLtMatmulAlgoGetHeuristic(s->lt, e->desc, e->a, e->b, e->d, e->d, wish, 1, &found, &n));
    if (c == CUBLAS_STATUS_SUCCESS && n == 0) c = CUBLAS_STATUS_NOT_SUPPORTED;
    if (c == CUBLAS_STATUS_SUCCESS) e->algo = found.algo;
    if (wish) cublasLtMatmulPreferenceDestroy(wish);
    return c;
}

/* The remembered product, or a new one. One with sums may be refused: (*out)->refused. */
static lks_status lookup(lksi_cuda *cuda, const lksi_args *a, blas *s, const key *k, entry **out)
{
    void **at = lksi_remembered_at(cuda, &s->known, k, sizeof *k, drop);
    if ((*out = *at)) return LKS_OK;
    entry *e = lksi_cuda_alloc(cuda, sizeof *e);
    if (!e) return lksi_why(a, LKS_ERR_MEMORY, "no host memory");
    e->k = *k;
    cublasStatus_t c = describe(s, e);
    e->refused = c != CUBLAS_STATUS_SUCCESS && k->more == SUMS;
    if (c != CUBLAS_STATUS_SUCCESS && !e->refused) {
        drop(cuda, e);
        return failed(a, "cublasLt has no algorithm for this product", c);
    }
    *at = e;
    s->known.count++;
    *out = e;
    return LKS_OK;
}

/* The product q of complex matrices, with the workspace of this file so that nothing is allocated behind our back. */
static lks_status complex_product(blas *s, const lksi_args *a, cudaStream_t stream, const key *q, const void *x,
                                  const void *y, void *z, void *work)
{
    const cublasOperation_t tx = q->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, ty = q->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t c = s->complex ? CUBLAS_STATUS_SUCCESS : cublasCreate(&s->complex);
    GO(cublasSetStream(s->complex, stream)); /* takes the workspace away */
    GO(cublasSetWorkspace(s->complex, work, (size_t)WORKSPACE));
    if (q->dtype == LKS_C64) {
        const cuComplex one = {1, 0}, zero = {0, 0};
        GO(cublasCgemmStridedBatched_64(s->complex, tx, ty, q->m, q->n, q->k, &one, x, q->lda, q->step_a, y, q->ldb,
                                        q->step_b, &zero, z, q->m, q->step_d, q->batch));
    } else {
        const cuDoubleComplex one = {1, 0}, zero = {0, 0};
        GO(cublasZgemmStridedBatched_64(s->complex, tx, ty, q->m, q->n, q->k, &one, x, q->lda, q->step_a, y, q->ldb,
                                        q->step_b, &zero, z, q->m, q->step_d, q->batch));
    }
    return c == CUBLAS_STATUS_SUCCESS ? LKS_OK : failed(a, "the complex product failed", c);
}

/* --- operands --- */

/* Rows by columns; 1 if it can be handed over as it lies: *trans 0: row-major, 1: column-major. */
typedef struct matrix {
    char *data;
    int64_t rows, cols, sr, sc;
} matrix;

static int plain(const matrix *x, int *trans, int64_t *ld)
{
    if ((x->sc == 1 || x->cols == 1) && (x->rows == 1 || x->sr >= x->cols)) {
        *trans = 0;
        *ld = x->rows == 1 ? x->cols : x->sr;
        return 1;
    }
    if ((x->sr == 1 || x->rows == 1) && (x->cols == 1 || x->sc >= x->rows)) {
        *trans = 1;
        *ld = x->cols == 1 ? x->rows : x->sc;
        return 1;
    }
    return 0;
}

static int alignment(const void *p, int64_t step)
{
    uint64_t bits = (uint64_t)(uintptr_t)p | (uint64_t)step | 16;
    return (int)(bits & -bits);
}

/* Batch dims of all three, merged. */
typedef struct batches {
    int ndim;
    int64_t shape[LKS_MAX_DIMS], x[LKS_MAX_DIMS], y[LKS_MAX_DIMS], z[LKS_MAX_DIMS];
} batches;

/* v, which has its matrix in the last two dims, as a dense copy; repeated batches stay repeated. */
static lks_status straighten(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, int slot, lksi_view *v)
{
    lksi_view to = *v, from = *v;
    int64_t n = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (d < v->ndim - 2 && v->stride[d] == 0) from.shape[d] = 1;
        to.shape[d] = from.shape[d];
        to.stride[d] = n;
        n *= to.shape[d];
    }
    TRY(lksi_cuda_scratch(cuda, stream, a, slot, n * bytes_of(v->dtype), &to.data));
    TRY(lksi_cuda_copy_view(stream, a, &to, &from));
    for (int d = 0; d < v->ndim; d++) v->stride[d] = from.shape[d] == v->shape[d] ? to.stride[d] : 0;
    v->data = to.data;
    return LKS_OK;
}

/* What addmm adds: alpha x y + beta c, c broadcasts to the row's output. */
typedef struct added {
    double alpha, beta;
    const lksi_view *c; /* or NULL */
} added;

/* beta c where there is nothing to multiply */
static lks_status scaled(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *c, double beta)
{
    lksi_args b = *a;
    b.in = c, b.nin = 1;
    b.attr.affine.scale = beta, b.attr.affine.shift = 0;
    return lksi_cuda_affine(cuda, stream, &b);
}

static int alike(const lksi_view *c, const lksi_view *z)
{
    int same = c->dtype == z->dtype && c->ndim == z->ndim;
    for (int d = 0; same && d < z->ndim; d++)
        same = c->shape[d] == z->shape[d] && (c->shape[d] == 1 || c->stride[d] == z->stride[d]);
    return same;
}

static lks_status product(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, lksi_view x, lksi_view y,
                          const lksi_view *z, const lksi_view *bias, const added *plus, lksi_view *sums);

/* A result of another dtype than the library writes from these operands: made in theirs, then converted. */
static lks_status product_elsewhere(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, lksi_view x, lksi_view y,
                                    const lksi_view *z, const lksi_view *bias, const added *plus)
{
    lksi_args b = *a;
    lksi_view to = *z, whole = a->out[0];
    int64_t count = 1;
    for (int d = 0; d < z->ndim; d++) count *= z->shape[d];
    to.dtype = whole.dtype = x.dtype;
    TRY(lksi_cuda_scratch(cuda, stream, a, RESULT, count * bytes_of(to.dtype) + 16, &to.data));
    whole.data = to.data;
    b.out = &whole;
    TRY(product(cuda, stream, &b, x, y, &to, bias, plus, NULL));
    return lksi_cuda_copy_view(stream, a, z, &to);
}

/* z[..., m, n] = x[..., m, k] y[..., k, n] (+ bias[n]); all have two dims at least, z is dense. plus: or NULL. sums: or
 * NULL; sums of x over k, [m]: made here, or data becomes NULL. */
static lks_status product(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, lksi_view x, lksi_view y,
                          const lksi_view *z, const lksi_view *bias, const added *plus, lksi_view *sums)
{
    const int64_t m = x.shape[x.ndim - 2], k = x.shape[x.ndim - 1], n = y.shape[y.ndim - 1];
    const int size = bytes_of(z->dtype), in = bytes_of(x.dtype), batch_dims = z->ndim - 2;
    const lksi_view *c_view = plus && plus->beta != 0 ? plus->c : NULL;
    void *sum_data = sums ? sums->data : NULL;
    if (sums) sums->data = NULL;
    if (z->dtype != x.dtype && !(in == 2 && z->dtype == LKS_F32))
        return product_elsewhere(cuda, stream, a, x, y, z, bias, plus);
    double alpha = plus ? plus->alpha : 1, beta = c_view ? plus->beta : 0;
    blas *s;
    if (k == 0 && c_view) return scaled(cuda, stream, a, c_view, beta);
    if (k == 0) {
        if (bias) return lksi_cuda_copy_view(stream, a, z, bias);
        int64_t count = 1;
        for (int d = 0; d < z->ndim; d++) count *= z->shape[d];
        cudaMemsetAsync(z->data, 0, (size_t)(count * size), stream);
        return lksi_cuda_launched(a);
    }
    TRY(open_blas(cuda, a, &s));

    int trans_x, trans_y;
    int64_t ldx, ldy;
    matrix mx = {x.data, m, k, x.stride[x.ndim - 2], x.stride[x.ndim - 1]};
    if (!plain(&mx, &trans_x, &ldx) || (uintptr_t)x.data % bytes_of(x.dtype)) {
        TRY(straighten(cuda, stream, a, COPY_X, &x));
        trans_x = 0, ldx = k;
    }
    matrix my = {y.data, k, n, y.stride[y.ndim - 2], y.stride[y.ndim - 1]};
    if (!plain(&my, &trans_y, &ldy) || (uintptr_t)y.data % bytes_of(y.dtype)) {
        TRY(straighten(cuda, stream, a, COPY_Y, &y));
        trans_y = 0, ldy = n;
    }

    batches b = {0};
    for (int d = 0; d < batch_dims; d++) {
        int dx = d - (z->ndim - x.ndim), dy = d - (z->ndim - y.ndim);
        int64_t count = z->shape[d];
        int64_t sx = dx < 0 || x.shape[dx] == 1 ? 0 : x.stride[dx], sy = dy < 0 || y.shape[dy] == 1 ? 0 : y.stride[dy];
        if (count == 1) continue;
        int to = b.ndim - 1;
        if (to >= 0 && b.x[to] == sx * count && b.y[to] == sy * count && b.z[to] == z->stride[d] * count)
            b.shape[to] *= count;
        else b.shape[to = b.ndim++] = count;
        b.x[to] = sx, b.y[to] = sy, b.z[to] = z->stride[d];
    }
    int64_t rows = m;
    /* One matrix for all batches: their rows are rows of one product. */
    if (b.ndim > 0 && b.y[b.ndim - 1] == 0 && !trans_x &&
        (b.x[b.ndim - 1] == m * ldx || (m == 1 && b.x[b.ndim - 1] >= k))) {
        if (m == 1) ldx = b.x[b.ndim - 1];
        rows = m * b.shape[--b.ndim];
    }

    const char *c_data = z->data;
    if (c_view && alike(c_view, &a->out[0])) c_data = c_view->data;
    else if (c_view) TRY(lksi_cuda_copy_view(stream, a, &a->out[0], c_view));
    const void *bias_data = NULL;
    if (bias && z->dtype == LKS_F64) { /* the epilogue has no float64 */
        TRY(lksi_cuda_copy_view(stream, a, z, bias));
        beta = 1;
    } else if (bias) {
        bias_data = bias->data;
        if (bias->dtype != z->dtype || (bias->stride[0] != 1 && n > 1) || (uintptr_t)bias_data % 16) {
            lksi_view to = *bias;
            to.dtype = z->dtype, to.stride[0] = 1;
            TRY(lksi_cuda_scratch(cuda, stream, a, COPY_BIAS, n * size, &to.data));
            TRY(lksi_cuda_copy_view(stream, a, &to, bias));
            bias_data = to.data;
        }
    }

    void *work;
    TRY(lksi_cuda_scratch(cuda, stream, a, WORK, WORKSPACE, &work));
    int inner = b.ndim - 1;
    int64_t outer = 1;
    for (int d = 0; d < inner; d++) outer *= b.shape[d];
    for (int64_t o = 0; o < outer; o++) {
        char *px = x.data, *py = y.data, *pz = z->data;
        int64_t at = o;
        for (int d = inner - 1; d >= 0; d--) {
            int64_t i = at % b.shape[d];
            at /= b.shape[d];
            px += i * b.x[d] * in, py += i * b.y[d] * in, pz += i * b.z[d] * size;
        }
        /* Row-major z is column-major z', of y' x'. */
        key q;
        memset(&q, 0, sizeof q);
        q.m = n, q.n = rows, q.k = k;
        q.lda = ldy, q.ldb = ldx;
        q.batch = inner >= 0 ? b.shape[inner] : 1;
        if (inner >= 0) q.step_a = b.y[inner], q.step_b = b.x[inner], q.step_d = b.z[inner];
        q.dtype = x.dtype, q.to = z->dtype, q.trans_a = trans_y, q.trans_b = trans_x;
        q.more = bias_data ? BIAS : PLAIN;
        q.align_a = alignment(py, q.step_a * in), q.align_b = alignment(px, q.step_b * in);
        q.align_d = alignment(pz, q.step_d * size);
        const char *pc = c_data + (pz - (char *)z->data);
        if (alignment(pc, q.step_d * size) < q.align_d) q.align_d = alignment(pc, q.step_d * size);
        if (is_complex(z->dtype)) {
            TRY(complex_product(s, a, stream, &q, py, px, pz, work));
            continue;
        }
        entry *e = NULL;
        if (sum_data && !plus && !bias && outer == 1 && q.batch == 1 && z->dtype != LKS_F64 &&
            (uintptr_t)sum_data % 16 == 0) {
            q.more = SUMS;
            TRY(lookup(cuda, a, s, &q, &e));
            if (e->refused) q.more = PLAIN;
        }
        if (q.more != SUMS) TRY(lookup(cuda, a, s, &q, &e));
        const void *more = q.more == SUMS ? sum_data : bias_data;
        cublasStatus_t c = CUBLAS_STATUS_SUCCESS;
        if (more) GO(cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &more, sizeof more));
        if (q.more == SUMS) sums->data = sum_data;
        const int dbl = z->dtype == LKS_F64;
        const float alpha32 = (float)alpha, beta32 = (float)beta;
        GO(cublasLtMatmul(s->lt, e->desc, dbl ? (const void *)&alpha : &alpha32, py, e->a, px, e->b,
                          dbl ? (const void *)&beta : &beta32, pc, e->d, pz, e->d, &e->algo, work, (size_t)WORKSPACE,
                          stream));
        if (c != CUBLAS_STATUS_SUCCESS) return failed(a, "the product failed", c);
    }
    return lksi_cuda_launched(a);
}

/* --- rows --- */

/* Puts a dim of size 1 before (at 0) or behind (at 1) the one of a vector. */
static void as_matrix(lksi_view *v, int at)
{
    v->shape[1] = v->shape[0], v->stride[1] = v->stride[0];
    v->shape[at] = 1, v->stride[at] = 1;
    if (at == 0) v->stride[0] = v->shape[1];
    v->ndim = 2;
}

static void dense(lksi_view *v)
{
    int64_t n = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        v->stride[d] = n;
        n *= v->shape[d];
    }
}

static lks_status matmul(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const added *plus)
{
    lksi_view x = a->in[0], y = a->in[1], z = a->out[0];
    int column = y.ndim == 1;
    if (column) { /* z's last dim */
        as_matrix(&y, 1);
        z.shape[z.ndim++] = 1;
    }
    if (x.ndim == 1) {
        as_matrix(&x, 0);
        z.shape[z.ndim] = z.shape[z.ndim - 1];
        z.shape[z.ndim++ - 1] = 1;
    }
    dense(&z);
    return product(cuda, stream, a, x, y, &z, NULL, plus, NULL);
}

ROW(matmul) { return matmul(cuda, stream, a, NULL); }
ROW(mv) { return matmul(cuda, stream, a, NULL); }
ROW(dot) { return matmul(cuda, stream, a, NULL); }

ROW(addmm)
{
    added plus = {a->attr.product.alpha, a->attr.product.beta, a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL};
    return matmul(cuda, stream, a, &plus);
}
ROW(addmv) { return lksi_cuda_addmm(cuda, stream, a); }

lks_status lksi_cuda_product(lksi_cuda *cuda, cudaStream_t stream, const lksi_args *a, const lksi_view *x,
                             const lksi_view *y, const lksi_view *z)
{
    return product(cuda, stream, a, *x, *y, z, NULL, NULL, NULL);
}

ROW(linear)
{
    lksi_view x = a->in[0], y = a->in[1], z = a->out[0];
    const lksi_view *bias = a->nin > 2 && a->in[2].ndim >= 0 ? &a->in[2] : NULL;
    int64_t out = y.shape[0], stride = y.stride[0];
    y.shape[0] = y.shape[1], y.stride[0] = y.stride[1];
    y.shape[1] = out, y.stride[1] = stride;
    if (x.ndim == 1) {
        as_matrix(&x, 0);
        z.shape[1] = z.shape[0], z.shape[0] = 1;
        z.ndim = 2;
    }
    dense(&z);
    return product(cuda, stream, a, x, y, &z, bias, NULL, NULL);
}

/* dweight = dy^T x, dbias = sums of dy over rows: in the product's epilogue, or where it cannot be in a kernel. */
ROW(linear_weight_backward)
{
    lksi_view x = a->in[0], z = a->out[0], sums = a->out[1];
    const int64_t rows = x.shape[0], row = x.stride[0];
    x.shape[0] = x.shape[1], x.stride[0] = x.stride[1];
    x.shape[1] = rows, x.stride[1] = row;
    dense(&z);
    const int empty = z.shape[0] == 0 || z.shape[1] == 0;
    if (empty || rows == 0 || sums.dtype != z.dtype || sums.stride[0] != 1) sums.data = NULL;
    if (!empty) TRY(product(cuda, stream, a, x, a->in[1], &z, NULL, NULL, &sums));
    if (sums.data || a->out[1].shape[0] == 0) return LKS_OK;
    lksi_args b = *a;
    b.nin = b.nout = 1, b.out = &a->out[1];
    b.attr.reduce.mask = 1, b.attr.reduce.keepdim = 0, b.attr.reduce.dtype = a->out[1].dtype;
    return lksi_cuda_sum(cuda, stream, &b);
}
