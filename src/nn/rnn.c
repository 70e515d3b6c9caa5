/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rnn.c - recurrent layers as modules: parameters in PyTorch's names and order, started as there.
 */
#include "nn/module.h"

#include <lockstep/ops.h>
#include <stdio.h>

enum { TANH, RELU, GRU, LSTM };

typedef struct recurrent {
    lks_module m;
    int kind, layers, bidirectional, count;
    double dropout;
    lks_tensor **weight; /* count = 4 layers directions; the set's */
} recurrent;

static lks_status run(recurrent *r, lks_tensor *x, lks_tensor *h0, lks_tensor *c0, lks_tensor *lengths, lks_tensor **y,
                      lks_tensor **hn, lks_tensor **cn)
{
    double p = r->m.train ? r->dropout : 0;
    if (r->kind == LSTM) return lks_lstm(x, h0, c0, lengths, r->count, r->weight, r->bidirectional, 1, p, y, hn, cn);
    if (cn) *cn = NULL;
    if (r->kind == GRU) return lks_gru(x, h0, lengths, r->count, r->weight, r->bidirectional, 1, p, y, hn);
    return lks_rnn(x, h0, lengths, r->count, r->weight, r->kind == RELU, r->bidirectional, 1, p, y, hn);
}

static lks_tensor *recurrent_forward(lks_module *m, lks_tensor *x)
{
    lks_tensor *y = NULL;
    return run((recurrent *)m, x, LKS_NONE, LKS_NONE, LKS_NONE, &y, NULL, NULL) == LKS_OK ? y : NULL;
}

static const lksi_module_ops recurrent_ops[] = {
    {"rnn", recurrent_forward}, {"rnn", recurrent_forward}, {"gru", recurrent_forward}, {"lstm", recurrent_forward}};

lks_status lks_recurrent_forward(lks_module *m, lks_tensor *x, lks_tensor *h0, lks_tensor *c0, lks_tensor *lengths,
                                 lks_tensor **y, lks_tensor **hn, lks_tensor **cn)
{
    if (y) *y = NULL;
    if (hn) *hn = NULL;
    if (cn) *cn = NULL;
    if (!m || !x || !h0 || !c0 || !lengths) return LKS_ERR_ARGUMENT;
    if (m->ops->forward != recurrent_forward)
        return lksi_fail(&m->ctx->base, LKS_ERR_ARGUMENT, "lks_recurrent_forward", "a module %s has no states",
                         m->ops->name);
    return run((recurrent *)m, x, h0, c0, lengths, y, hn, cn);
}

/* U(-1 / sqrt(H), 1 / sqrt(H)) for all. */
static lks_status declare(recurrent *r, lks_params *ps, const char *prefix, int64_t in, int64_t hidden)
{
    static const char *const part[4] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    int D = 1 + r->bidirectional;
    int64_t gates = (r->kind == LSTM ? 4 : r->kind == GRU ? 3 : 1) * hidden;
    char name[LKSI_NAME], last[64];
    for (int i = 0; i < r->count; i++) {
        int layer = i / (4 * D), reverse = i / 4 % D;
        int64_t shape[2] = {gates, i % 4 == 1 ? hidden : layer ? D * hidden : in};
        snprintf(last, sizeof last, "%s_l%d%s", part[i % 4], layer, reverse ? "_reverse" : "");
        TRY(lks_params_add(ps, lksi_name(name, prefix, last), LKS_F32, i % 4 < 2 ? 2 : 1, shape, &r->weight[i]));
        TRY(lks_init_kaiming_uniform(r->weight[i], hidden));
    }
    return LKS_OK;
}

static lks_status create(const char *where, lks_params *ps, const char *prefix, int kind, int64_t in, int64_t hidden,
                         int64_t layers, int bidirectional, double dropout, lks_module **m)
{
    if (!ps || !m) return LKS_ERR_ARGUMENT;
    int before = ps->n;
    *m = NULL;
    if (in < 1 || hidden < 1 || layers < 1 || layers > 1024 || !(dropout >= 0 && dropout < 1))
        return lksi_module_refuse(ps, where, "sizes %lld -> %lld, %lld layers, dropout %g", (long long)in,
                                  (long long)hidden, (long long)layers, dropout);
    int count = 4 * (int)layers * (1 + (bidirectional != 0));
    recurrent *r = lksi_module_new(ps, &recurrent_ops[kind],
                                   (int64_t)sizeof *r + count * (int64_t)sizeof(lks_tensor *), 0);
    if (!r) return LKS_ERR_MEMORY;
    r->kind = kind;
    r->layers = (int)layers;
    r->bidirectional = bidirectional != 0;
    r->dropout = dropout;
    r->count = count;
    r->weight = (lks_tensor **)(r + 1);
    return lksi_module_finish(ps, before, declare(r, ps, prefix, in, hidden), &r->m, m);
}

lks_status lks_rnn_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers, int relu,
                          int bidirectional, double dropout, lks_module **m)
{
    return create("lks_rnn_create", ps, prefix, relu ? RELU : TANH, in, hidden, layers, bidirectional, dropout, m);
}

lks_status lks_gru_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers,
                          int bidirectional, double dropout, lks_module **m)
{
    return create("lks_gru_create", ps, prefix, GRU, in, hidden, layers, bidirectional, dropout, m);
}

lks_status lks_lstm_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers,
                           int bidirectional, double dropout, lks_module **m)
{
    return create("lks_lstm_create", ps, prefix, LSTM, in, hidden, layers, bidirectional, dropout, m);
}
