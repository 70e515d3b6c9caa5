/* SPDX-License-Identifier: BSD-3-Clause
 *
 * regress.c - the part of train, evaluate and predict that is about regressions: shapes of inputs and targets and the
 * model that fits them, normalisation (buffers inputs.mean, inputs.scale, targets.mean, targets.scale beside the
 * parameters, so that a checkpoint has it), loss, predictions in the units of the targets.
 */
#include "tools/tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *shape_text(int ndim, const int64_t *shape, char *text, int bytes)
{
    int n = snprintf(text, (size_t)bytes, "[N");
    for (int d = 0; d < ndim && n < bytes; d++)
        n += snprintf(text + n, (size_t)(bytes - n), ", %lld", (long long)shape[d]);
    if (n < bytes) snprintf(text + n, (size_t)(bytes - n), "]");
    return text;
}

static int is_model(const job *j, const char *name) { return !strcmp(opt_text(j->o, model), name); }

/* Channels of a sample over `dims` spatial dims; 0: it has no such shape. */
static int64_t channels(const fields *f, int column)
{
    int ndim = f->ndim[column];
    return ndim == f->dims ? 1 : ndim == f->dims + 1 ? f->shape[column][0] : 0;
}

static int same_sizes(const fields *f)
{
    for (int d = 1; d <= f->dims; d++)
        if (f->shape[0][f->ndim[0] - d] != f->shape[1][f->ndim[1] - d]) return 0;
    return 1;
}

/* Numbers with a mean and a scale of their own: the channels of a field, the elements of a vector. */
static int64_t groups(const job *j, int column)
{
    const fields *f = &j->f;
    int ndim = f->ndim[column];
    int vector = is_model(j, "mlp") || (column == 1 && !is_model(j, "unet"));
    if (ndim == 0) return 1;
    if (vector && ndim == 1) return f->shape[column][0];
    int64_t c = channels(f, column);
    return c ? c : f->shape[column][0];
}

/* What the options leave open, from the shapes. */
static int choose_model(job *j)
{
    fields *f = &j->f;
    options *o = j->o;
    char text[32];
    int ndim = f->ndim[0], code = 0;
    f->dims = opt_given(o, dims) || o->v[OPT_dims].from == 0 ? (int)opt_whole(o, dims)
              : ndim <= 1                                    ? 1
              : ndim <= 3                                    ? 2
                                                             : 3;
    snprintf(text, sizeof text, "%d", f->dims);
    if (o->v[OPT_dims].from < 0) code = options_set(o, OPT_dims, text, 0);
    if (!code && o->v[OPT_model].from < 0) {
        int to_field = ndim > 0 && channels(f, 0) && channels(f, 1) && same_sizes(f);
        code = options_set(o, OPT_model,
                           ndim == 0                    ? "mlp"
                           : to_field                   ? "unet"
                           : ndim > 1 && channels(f, 0) ? "cnn"
                                                        : "mlp",
                           0);
    }
    if (!code && o->v[OPT_layers].from < 0) code = options_set(o, OPT_layers, is_model(j, "unet") ? "3" : "2", 0);
    if (!code && o->v[OPT_dim].from < 0)
        code = options_set(o, OPT_dim, is_model(j, "unet") ? "16" : is_model(j, "cnn") ? "32" : "256", 0);
    return code;
}

/* Against what the checkpoint was trained on; targets that are not there are taken from it. */
static int compare_stored(job *j)
{
    fields *f = &j->f;
    char text[2][200];
    int any_size = is_model(j, "unet");
    for (int c = 0; c < 2; c++) {
        int good = f->ndim[c] == f->stored_ndim[c];
        if (f->ndim[c] < 0) { /* as trained, with the sizes of the inputs */
            f->ndim[c] = f->stored_ndim[c];
            memcpy(f->shape[c], f->stored[c], sizeof f->shape[c]);
            for (int d = 1; any_size && d <= f->dims; d++) f->shape[c][f->ndim[c] - d] = f->shape[0][f->ndim[0] - d];
            continue;
        }
        for (int d = 0; good && d < f->ndim[c] - (any_size ? f->dims : 0); d++)
            good = f->shape[c][d] == f->stored[c][d];
        if (!good)
            return usage_error("the model was trained on %s %s, but --%s %s is %s", c ? "targets" : "inputs",
                               shape_text(f->stored_ndim[c], f->stored[c], text[0], 200), c ? "targets" : "inputs",
                               c ? opt_text(j->o, targets) : opt_text(j->o, inputs),
                               shape_text(f->ndim[c], f->shape[c], text[1], 200));
    }
    return 0;
}

int regress_shapes(job *j)
{
    fields *f = &j->f;
    char text[2][200];
    int code = 0;
    if (lks_loader_set_wide(j->loader, 1) != LKS_OK) return job_fail(j, "reading the data");
    f->ndim[0] = lks_loader_input_ndim(j->loader);
    f->ndim[1] = lks_loader_target_ndim(j->loader);
    for (int d = 0; d < f->ndim[0]; d++) f->shape[0][d] = lks_loader_input_shape(j->loader)[d];
    for (int d = 0; d < f->ndim[1]; d++) f->shape[1][d] = lks_loader_target_dim(j->loader, d);
    if (!f->stored_known) f->target_dtype = lks_loader_dtype(j->loader, 1) == LKS_F64 ? LKS_F64 : LKS_F32;
    if (f->stored_known) {
        f->dims = (int)opt_whole(j->o, dims);
        code = compare_stored(j);
    } else {
        code = choose_model(j);
    }
    if (code) return code;
    shape_text(f->ndim[0], f->shape[0], text[0], 200);
    shape_text(f->ndim[1], f->shape[1], text[1], 200);
    if (!is_model(j, "mlp") && !channels(f, 0))
        return usage_error(
            "--model %s with --dims %d takes inputs [N, sizes] or [N, channels, sizes]; --inputs %s is %s",
            opt_text(j->o, model), f->dims, opt_text(j->o, inputs), text[0]);
    if (is_model(j, "unet") && (!channels(f, 1) || !same_sizes(f)))
        return usage_error("--model unet gives targets of the inputs' sizes; --inputs %s is %s, --targets %s is %s "
                           "(--model cnn or mlp gives any)",
                           opt_text(j->o, inputs), text[0], opt_text(j->o, targets), text[1]);
    for (int c = 0; c < 2; c++) {
        f->numel[c] = 1;
        for (int d = 0; d < f->ndim[c]; d++) f->numel[c] *= f->shape[c][d];
        f->groups[c] = groups(j, c);
    }
    return 0;
}

int regress_model(job *j)
{
    options *o = j->o;
    fields *f = &j->f;
    int64_t dim = opt_whole(o, dim), layers = opt_whole(o, layers);
    int norm = !strcmp(opt_text(o, norm), "group");
    int padding = !strcmp(opt_text(o, padding), "periodic") ? LKS_PADDING_PERIODIC : LKS_PADDING_ZEROS;
    static const char *const names[2][2] = {{"inputs.mean", "inputs.scale"}, {"targets.mean", "targets.scale"}};
    lks_status s = LKS_OK;
    for (int c = 0; c < 2 && s == LKS_OK; c++) {
        s = lks_params_add_buffer(j->ps, names[c][0], LKS_F64, 1, &f->groups[c], &f->mean[c]);
        if (s == LKS_OK) s = lks_params_add_buffer(j->ps, names[c][1], LKS_F64, 1, &f->groups[c], &f->scale[c]);
    }
    if (s != LKS_OK) return job_fail(j, "building the model");
    if (is_model(j, "mlp")) {
        int64_t *sizes = malloc((size_t)(layers + 2) * sizeof *sizes);
        if (!sizes) return usage_error("out of memory");
        for (int64_t i = 0; i <= layers + 1; i++) sizes[i] = i == 0 ? f->numel[0] : i <= layers ? dim : f->numel[1];
        s = lks_mlp_create(j->ps, "", (int)layers + 2, sizes, opt_real(o, dropout), &j->model);
        free(sizes);
    } else if (is_model(j, "cnn")) {
        s = lks_field_net_create(j->ps, "", f->dims, channels(f, 0), f->shape[0] + f->ndim[0] - f->dims, f->numel[1],
                                 dim, layers, norm, padding, opt_real(o, dropout), &j->model);
    } else {
        s = lks_unet_create(j->ps, "", f->dims, channels(f, 0), channels(f, 1), dim, layers, norm, padding,
                            opt_real(o, dropout), &j->model);
    }
    return s == LKS_OK ? 0 : job_fail(j, "building the model");
}

int regress_normalize(job *j)
{
    fields *f = &j->f;
    int none = !strcmp(opt_text(j->o, normalize), "none");
    for (int c = 0; c < 2; c++) {
        int64_t g = f->groups[c];
        double *m = malloc((size_t)(2 * g) * sizeof *m);
        if (!m || g > INT32_MAX / 2) {
            free(m);
            return usage_error("out of memory for %lld means", (long long)g);
        }
        lks_status s = lks_loader_statistics(j->loader, c, (int)(2 * g), m);
        for (int64_t i = 0; i < g && s == LKS_OK; i++) {
            double *mean = &m[i], *scale = &m[g + i];
            /* What is constant but for rounding is not blown up. */
            if (!(*scale > 1e-30) || *scale <= 1e-13 * fabs(*mean)) *scale = 1;
            if (none) *mean = 0, *scale = 1;
        }
        if (s == LKS_OK) s = lks_set_from_host(f->mean[c], m, g * (int64_t)sizeof *m);
        if (s == LKS_OK) s = lks_set_from_host(f->scale[c], m + g, g * (int64_t)sizeof *m);
        free(m);
        if (s != LKS_OK) return job_fail(j, "looking at the data");
    }
    return 0;
}

/* [n, ...] of a column as [n, groups, rest], mean and scale as [groups, 1] of x's dtype. */
static lks_tensor *grouped(job *j, int column, lks_tensor *x, lks_tensor **mean, lks_tensor **scale)
{
    fields *f = &j->f;
    int64_t shape[3] = {x ? lks_dim(x, 0) : 0, f->groups[column], f->numel[column] / f->groups[column]};
    *mean = x ? lks_to(lks_unsqueeze(f->mean[column], 1), lks_dtype_of(x)) : NULL;
    *scale = x ? lks_to(lks_unsqueeze(f->scale[column], 1), lks_dtype_of(x)) : NULL;
    return lks_reshape(x, 3, shape);
}

/* In double where the data is; float32 for the model. */
static lks_tensor *normalized(job *j, int column, lks_tensor *x)
{
    lks_tensor *mean, *scale;
    x = grouped(j, column, x, &mean, &scale);
    return lks_to(lks_div(lks_sub(x, mean), scale), LKS_F32);
}

static lks_tensor *forward(job *j, lks_tensor *input)
{
    fields *f = &j->f;
    int64_t shape[LKS_MAX_DIMS + 2] = {input ? lks_dim(input, 0) : 0, f->numel[0]};
    int mlp = is_model(j, "mlp"), cast = j->cast != LKS_DTYPE_NONE;
    lks_tensor *x = normalized(j, 0, input);
    if (!mlp) {
        shape[1] = channels(f, 0);
        for (int d = 0; d < f->dims; d++) shape[2 + d] = f->shape[0][f->ndim[0] - f->dims + d];
    }
    if (cast && lks_autocast_begin(j->ctx, j->cast, 1, 1) != LKS_OK) return NULL;
    lks_tensor *y = lks_module_forward(j->model, lks_reshape(x, mlp ? 2 : f->dims + 2, shape));
    if (cast) lks_autocast_end(j->ctx);
    return lks_to(y, LKS_F32);
}

lks_tensor *regress_loss(job *j, lks_tensor *input, lks_tensor *target, lks_tensor **score)
{
    lks_context *ctx = j->ctx;
    const char *kind = opt_text(j->o, loss);
    if (lks_scope_begin(ctx) != LKS_OK) return NULL;
    lks_tensor *y = forward(j, input), *t = y ? normalized(j, 1, target) : NULL;
    if (t) t = lks_reshape(t, lks_ndim(y), lks_shape(y));
    lks_tensor *loss = !strcmp(kind, "mse")  ? lks_mse_loss(y, t, LKS_REDUCTION_SUM)
                       : !strcmp(kind, "l1") ? lks_l1_loss(y, t, LKS_REDUCTION_SUM)
                                             : lks_smooth_l1_loss(y, t, 1, LKS_REDUCTION_SUM);
    loss = lks_mul_scalar(loss, 1 / (double)j->f.numel[1]);
    if (score) {
        lks_tensor *d = lks_sub(y, t), *part[2];
        part[0] = lks_sum(lks_mul(d, d), 0, NULL, 0, LKS_F64);
        part[1] = lks_sum(lks_mul(t, t), 0, NULL, 0, LKS_F64);
        *score = lks_keep(part[0] && part[1] ? lks_stack(2, part, 0) : NULL);
    }
    return lks_scope_leave(ctx, loss);
}

lks_tensor *regress_predict(job *j, lks_tensor *input)
{
    fields *f = &j->f;
    int64_t shape[LKS_MAX_DIMS] = {lks_dim(input, 0)};
    for (int d = 0; d < f->ndim[1]; d++) shape[d + 1] = f->shape[1][d];
    if (lks_scope_begin(j->ctx) != LKS_OK) return NULL;
    lks_tensor *y = lks_to(lks_contiguous(forward(j, input)), f->target_dtype), *mean, *scale;
    y = grouped(j, 1, y, &mean, &scale);
    y = lks_reshape(lks_add(lks_mul(y, scale), mean), f->ndim[1] + 1, shape);
    return lks_scope_leave(j->ctx, y);
}

/* --- what a checkpoint remembers: "8,64,64" --- */

static const char *const keys[2] = {"input_shape", "target_shape"};

int regress_remember(job *j)
{
    fields *f = &j->f;
    lks_status s = LKS_OK;
    for (int c = 0; c < 2 && s == LKS_OK; c++) {
        char text[200] = "";
        int n = 0;
        for (int d = 0; d < f->ndim[c]; d++)
            n += snprintf(text + n, sizeof text - (size_t)n, d ? ",%lld" : "%lld", (long long)f->shape[c][d]);
        s = lks_checkpoint_set_text(j->ckpt, keys[c], text);
    }
    if (s == LKS_OK) s = lks_checkpoint_set_text(j->ckpt, "target_dtype", lks_dtype_name(f->target_dtype));
    return s == LKS_OK ? 0 : job_fail(j, "describing the checkpoint");
}

int regress_recall(job *j, lks_checkpoint *c)
{
    fields *f = &j->f;
    const char *text;
    for (int k = 0; k < 2; k++) {
        if (lks_checkpoint_get_text(c, keys[k], &text) != LKS_OK)
            return job_fail(j, "reading the checkpoint's options");
        int n = 0;
        for (const char *t = text; *t && n < LKS_MAX_DIMS;) {
            char *end;
            f->stored[k][n++] = strtoll(t, &end, 10);
            if (end == t || f->stored[k][n - 1] < 1) return usage_error("the checkpoint's %s is \"%s\"", keys[k], text);
            t = *end == ',' ? end + 1 : end;
        }
        f->stored_ndim[k] = n;
    }
    if (lks_checkpoint_get_text(c, "target_dtype", &text) != LKS_OK)
        return job_fail(j, "reading the checkpoint's options");
    f->target_dtype = lks_dtype_from_name(text) == LKS_F64 ? LKS_F64 : LKS_F32;
    f->stored_known = 1;
    return 0;
}
