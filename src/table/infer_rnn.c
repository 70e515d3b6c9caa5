/* SPDX-License-Identifier: BSD-3-Clause
 *
 * infer_rnn.c - shape rules of a recurrent layer's steps and their gradient. States lie in order of time, with the one
 * before all steps (forward: in front, reverse: behind), so that what each step began from is a view of them.
 */
#include "base/base.h"
#include "table/table.h"

static int64_t gates_of(int kind) { return kind == LKSI_RNN_LSTM ? 4 : kind == LKSI_RNN_GRU ? 3 : 1; }

static int matrix(const lksi_view *v, int64_t rows, int64_t columns)
{
    return v->ndim == 2 && v->shape[0] == rows && v->shape[1] == columns;
}

static void shaped(lksi_view *v, int dtype, int ndim, int64_t a, int64_t b, int64_t c)
{
    v->dtype = dtype;
    v->ndim = ndim;
    v->shape[0] = a;
    if (ndim > 1) v->shape[1] = b;
    if (ndim > 2) v->shape[2] = c;
    lksi_contiguous_strides(v);
}

lks_status lksi_infer_rnn_steps(lksi_args *a)
{
    static const char *const name[] = {"gates", "w_hh", "b_hh", "h0", "c0", "lengths"};
    const lksi_view *x = &a->in[0], *w = &a->in[1];
    int lstm = a->attr.rnn.kind == LKSI_RNN_LSTM;
    char s[128], t[128];
    if (a->attr.rnn.kind < 0 || a->attr.rnn.kind > LKSI_RNN_LSTM)
        return lksi_why(a, LKS_ERR_ARGUMENT, "there is no kind %d of recurrent layer", a->attr.rnn.kind);
    int64_t G = gates_of(a->attr.rnn.kind), H = w->ndim == 2 ? w->shape[1] : 0, N = x->ndim == 3 ? x->shape[1] : 0;
    if (x->ndim != 3 || w->ndim != 2 || w->shape[0] != G * H || x->shape[2] != G * H)
        return lksi_why(a, LKS_ERR_SHAPE, "gates %s and w_hh %s must be [T,N,%lld H] and [%lld H,H]",
                        lksi_shape_text(x, s, sizeof s), lksi_shape_text(w, t, sizeof t), (long long)G, (long long)G);
    if (!lks_dtype_is_float(x->dtype))
        return lksi_why(a, LKS_ERR_DTYPE, "gates are %s, a floating dtype is needed", lks_dtype_name(x->dtype));
    for (int i = 1; i < a->nin; i++) {
        const lksi_view *v = &a->in[i];
        if (v->ndim < 0) continue;
        int fits = i == 1 || (i == 2 ? v->ndim == 1 && v->shape[0] == G * H
                              : i < 5 ? matrix(v, N, H) : v->ndim == 1 && v->shape[0] == N);
        if (!fits || (i == 4 && !lstm))
            return lksi_why(a, LKS_ERR_SHAPE, "%s %s does not belong to gates %s and w_hh %s", name[i],
                            lksi_shape_text(v, s, sizeof s), lksi_shape_text(x, t, sizeof t),
                            lksi_shape_text(w, (char[128]){0}, 128));
        int good = i == 5 ? v->dtype == LKS_I64 : i == 2 ? lks_dtype_is_float(v->dtype) : v->dtype == x->dtype;
        if (!good)
            return lksi_why(a, LKS_ERR_DTYPE, "gates are %s, but %s is %s%s", lks_dtype_name(x->dtype), name[i],
                            lks_dtype_name(v->dtype), i == 5 ? ", not int64" : "");
    }
    /* Gradients of the gates lie as the gates do. */
    a->attr.rnn.batch_major = x->shape[0] > 1 && N > 1 && x->stride[1] > x->stride[0];
    shaped(&a->out[0], x->dtype, 3, x->shape[0] + 1 + lstm, N, H);
    int64_t kept = !a->attr.rnn.save || G == 1 ? 0 : x->shape[0] * N * (G + 1) * H;
    shaped(&a->out[1], x->dtype == LKS_F64 ? LKS_F64 : LKS_F32, 1, kept, 0, 0);
    return LKS_OK;
}

lks_status lksi_infer_rnn_steps_backward(lksi_args *a)
{
    const lksi_view *dy = &a->in[0], *states = &a->in[1], *kept = &a->in[2], *w = &a->in[3];
    int kind = a->attr.rnn.kind, lstm = kind == LKSI_RNN_LSTM, fits = dy->ndim == 3 && states->ndim == 3;
    int64_t G = gates_of(kind);
    char s[128], t[128];
    for (int d = 0; fits && d < 3; d++) fits = dy->shape[d] == states->shape[d];
    fits = fits && states->shape[0] > lstm && matrix(w, G * states->shape[2], states->shape[2]);
    int64_t T = fits ? states->shape[0] - 1 - lstm : 0, N = fits ? states->shape[1] : 0;
    int64_t H = fits ? states->shape[2] : 0;
    if (!fits || (G > 1 && (kept->ndim != 1 || kept->shape[0] != T * N * (G + 1) * H)))
        return lksi_why(a, LKS_ERR_SHAPE, "dy %s and states %s do not belong together, to what was kept, or to w_hh",
                        lksi_shape_text(dy, s, sizeof s), lksi_shape_text(states, t, sizeof t));
    if (dy->dtype != states->dtype || w->dtype != states->dtype)
        return lksi_why(a, LKS_ERR_DTYPE, "states are %s, but dy %s and w_hh %s", lks_dtype_name(states->dtype),
                        lks_dtype_name(dy->dtype), lks_dtype_name(w->dtype));
    shaped(&a->out[0], states->dtype, 3, T, N, G * H);
    if (kind == LKSI_RNN_GRU) shaped(&a->out[1], states->dtype, 3, T, N, G * H);
    else shaped(&a->out[1], states->dtype, 1, 0, 0, 0);
    for (int i = 0; i < 1 + (kind == LKSI_RNN_GRU) && a->attr.rnn.batch_major; i++) {
        lksi_view *v = &a->out[i];
        v->stride[0] = G * H > 0 ? G * H : 1;
        v->stride[1] = v->stride[0] * T;
    }
    shaped(&a->out[2], states->dtype, 2, N, H, 0);
    if (lstm) shaped(&a->out[3], states->dtype, 2, N, H, 0);
    else shaped(&a->out[3], states->dtype, 1, 0, 0, 0);
    return LKS_OK;
}
