/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_policies.c - every name of the published autocast lists (tests/policies.tsv) is an op here: lks_op_lookup finds
 * it, its sample (samples.c) runs, a region gives the policy's dtype by either table, PyTorch's values of it lie in
 * tests/golden, and its gradient is that of differences.
 */
#include "golden.h"
#include "samples.h"

/* Names whose function here, and so whose golden cases, are called otherwise. */
static const struct { const char *name, *golden; } functions[] = {
    {"GRUCell", "gru_cell"},
    {"LSTMCell", "lstm_cell"},
    {"RNNCell", "rnn_cell"},
    {"__matmul__", "matmul"},
    {"__pow__", "pow"},
    {"__rdiv__", "rdiv"},
    {"__rpow__", "rpow"},
    {"__rtruediv__", "rdiv"},
    {"_convolution", "conv2d"},
    {"_grid_sampler_2d_cpu_fallback", "grid_sample"},
    {"_lu_with_info", "linalg_lu_factor_ex"},
    {"_native_multi_head_attention", "multi_head_attention"},
    {"adaptive_avg_pool3d", "adaptive_avg_pool"},
    {"adaptive_max_pool3d", "adaptive_max_pool"},
    {"avg_pool3d", "avg_pool"},
    {"cross_entropy_loss", "cross_entropy"},
    {"fractional_max_pool2d", "fractional_max_pool"},
    {"fractional_max_pool3d", "fractional_max_pool"},
    {"grid_sampler", "grid_sample"},
    {"grid_sampler_2d", "grid_sample"},
    {"grid_sampler_3d", "grid_sample"},
    {"max_pool3d", "max_pool"},
    {"max_unpool2d", "max_unpool"},
    {"max_unpool3d", "max_unpool"},
    {"mkldnn_rnn_layer", "lstm"},
    {"multilabel_margin_loss_forward", "multilabel_margin_loss"},
    {"nll_loss2d", "nll_loss"},
    {"reflection_pad1d", "reflection_pad"},
    {"reflection_pad2d", "reflection_pad"},
    {"replication_pad1d", "replication_pad"},
    {"replication_pad2d", "replication_pad"},
    {"replication_pad3d", "replication_pad"},
};

static lks_context *ctx;

/* The first sample of a row that has elements and is not large; of several rows only if there is no other. */
static const sample *sample_of(const char *row)
{
    const sample *composite = NULL;
    for (int i = 0; i < sample_count; i++) {
        const sample *s = &samples[i];
        int64_t n = 1;
        for (int k = 0; k < s->nin; k++)
            for (int d = 0; d < s->in[k].ndim; d++) n *= s->in[k].shape[d];
        if (strcmp(s->row, row) || s->flags & LARGE || !n) continue;
        if (!(s->flags & COMPOSITE)) return s;
        if (!composite) composite = s;
    }
    return composite;
}

/* Inputs in dtype; the second and later floating ones in `rest`. */
static int inputs(const sample *s, lks_dtype dtype, lks_dtype rest, lks_tensor **in)
{
    for (int i = 0, seen = 0; i < s->nin; i++) {
        if (!(in[i] = sample_tensor(ctx, s, i, seen ? rest : dtype, PLAIN))) return 0;
        seen |= s->in[i].kind <= IN_MASK;
    }
    return 1;
}

/* 1 if this build is without the library behind a sample. */
static int library_is_missing(void) { return strstr(lks_error(ctx), "build Lockstep again") != NULL; }

/* What the sample gives in a bfloat16 region by the table: 1 if it is as the policy says, -1 if it cannot be
 * run. */
static int gives(const sample *s, int table, const char *policy)
{
    lks_tensor *in[SAMPLE_INPUTS];
    int promote = !strcmp(policy, "promote"), lower = !strcmp(policy, "lower"), good = 0;
    lks_dtype dtype = lower ? LKS_F32 : LKS_BF16, want = lower ? LKS_BF16 : LKS_F32;
    lks_scope_begin(ctx);
    if (inputs(s, dtype, promote ? LKS_F32 : dtype, in)) {
        lks_autocast_set_table(ctx, table);
        lks_autocast_begin(ctx, LKS_BF16, 1, 1);
        lks_tensor *y = s->call(ctx, in);
        lks_autocast_end(ctx);
        lks_autocast_set_table(ctx, LKS_TABLE_CPU);
        if (!strcmp(policy, "error")) good = !y && lks_error_code(ctx) == LKS_ERR_UNSUPPORTED;
        else good = y && (lks_dtype_of(y) == want || !lks_dtype_is_float(lks_dtype_of(y)));
        const char *what = y ? lks_dtype_name(lks_dtype_of(y)) : lks_error(ctx);
        if (!y && library_is_missing()) good = -1;
        if (!good) diag("%s, %s: %s gives %s", s->row, s->what, policy, what);
    }
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

typedef struct call {
    const sample *s;
    lks_tensor *in[SAMPLE_INPUTS];
    int which[SAMPLE_INPUTS];
} call;

static lks_tensor *forward(void *user, lks_tensor *const *leaf, int n)
{
    call *c = user;
    lks_tensor *in[SAMPLE_INPUTS];
    memcpy(in, c->in, sizeof in);
    for (int k = 0; k < n; k++) in[c->which[k]] = leaf[k];
    return c->s->call(ctx, in);
}

static int gradient_is_right(const sample *s)
{
    call c = {.s = s};
    lks_tensor *leaf[SAMPLE_INPUTS];
    double worst = 0;
    int n = 0, good = 0;
    lks_scope_begin(ctx);
    if (inputs(s, LKS_F64, LKS_F64, c.in)) {
        for (int i = 0; i < s->nin; i++) {
            if (!sample_differentiable(s, i)) continue;
            c.which[n] = i;
            leaf[n] = c.in[i];
            lks_set_requires_grad(leaf[n++], 1);
        }
        good = n > 0 && lks_gradcheck(ctx, forward, &c, n, leaf, 1e-6, 2e-8, &worst) == LKS_OK;
        if (!good) diag("%s, %s: %s", s->row, s->what, n ? lks_error(ctx) : "nothing to differentiate");
    }
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

/* g: two files */
static int has_golden(golden *g, const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) name = functions[i].golden;
    if (lksi_h5_has(g[0].f, pathf("/%s", name)) || lksi_h5_has(g[1].f, pathf("/%s", name))) return 1;
    diag("no golden case: %s", name);
    return 0;
}

/* Runs the sample with integers in place of floats. */
static int takes_integers(const sample *s)
{
    lks_tensor *in[SAMPLE_INPUTS];
    lks_scope_begin(ctx);
    lks_no_grad_begin(ctx);
    int good = inputs(s, LKS_I64, LKS_I64, in) && s->call(ctx, in) != NULL;
    lks_no_grad_end(ctx);
    lks_error_clear(ctx);
    lks_scope_end(ctx);
    return good;
}

/* What lks_op_order and lks_op_integers say, and so the table of ops in print, against the samples. */
static void table_is_right(void)
{
    int orders = 1, integers = 1;
    for (int op = 0; op < lks_op_count(); op++) {
        const char *name = lks_op_name(op);
        const sample *s = sample_of(name);
        if (!lks_op_differentiable(op)) orders &= lks_op_order(op) == 0;
        if (!lks_op_differentiable(op) || !s) continue;
        if ((lks_op_order(op) == 1) != ((s->flags & ONCE) != 0)) {
            diag("%s: order %d", name, lks_op_order(op));
            orders = 0;
        }
        /* Samples of several rows, or with broken numbers, do not tell. */
        int tells = !(s->flags & COMPOSITE) && !strstr(" affine clamp maximum minimum addcmul ", pathf(" %s ", name));
        if (tells && takes_integers(s) != lks_op_integers(op)) {
            diag("%s: %s", name, lks_op_integers(op) ? "no integers" : "integers, too");
            integers = 0;
        }
    }
    ok(orders, "how often each row can be differentiated");
    ok(integers, "which rows take integers");
}

int main(void)
{
    golden g[2];
    char line[512];
    int names = 0;
    golden_open(&g[0], "ops.h5");
    golden_open(&g[1], "fft.h5");
    FILE *f = fopen(source_file("tests/policies.tsv"), "r");
    lks_config *config = lks_config_new();
    lks_config_set_device(config, "cpu");
    lks_config_set_threads(config, 1);
    if (!f || lks_context_create(MPI_COMM_SELF, config, &ctx) != LKS_OK) bail("no list, or no context");
    lks_config_free(config);
    while (fgets(line, sizeof line, f)) {
        char device[16], policy[16], name[256];
        if (line[0] == '#' || sscanf(line, "%15s %15s %255s", device, policy, name) != 3) continue;
        int op = lks_op_lookup(name);
        names++;
        const sample *s = op < 0 ? NULL : sample_of(lks_op_name(op));
        if (op < 0) diag("%s is not found", name);
        else if (!s) diag("%s: no sample of %s", name, lks_op_name(op));
        int good = s ? gives(s, strcmp(device, "cuda") ? LKS_TABLE_CPU : LKS_TABLE_CUDA, policy) : 0;
        if (good > 0) good = has_golden(g, name);
        if (good > 0 && lks_op_differentiable(op)) good = gradient_is_right(s);
        if (good < 0) skip(1, "%s: this build is without its library", name);
        else ok(good, "%s by the table of %s: %s", name, device, policy);
    }
    fclose(f);
    table_is_right();
    is_int(names, 196, "entries");
    lks_context_destroy(&ctx);
    for (int i = 0; i < 2; i++) lksi_h5_close(g[i].f);
    lks_finalize();
    return done();
}
