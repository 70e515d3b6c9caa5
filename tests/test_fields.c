/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_fields.c - networks on fields, parts of datasets, statistics, results written by all ranks. regress.test runs it
 * on several ranks (`test_fields check FOLDER`: the text it leaves in FOLDER/moments must not change with them), has it
 * make data (`make KIND FILE`) and compare datasets (`error A NAME B NAME`: relative to the deviation of B).
 */
#include "tap_mpi.h"
#include "tensor/tensor.h"
#include <hdf5.h>
#include <lockstep.h>
#include <math.h>

static lks_context *ctx;

static double *host(lks_tensor *t)
{
    lks_tensor *d = lks_contiguous(lks_to(t, LKS_F64));
    double *v = d ? calloc((size_t)lks_numel(d) + 1, sizeof *v) : NULL;
    if (!d || lks_to_host(d, v, lks_numel(d) * 8)) bail("%s", lks_error(ctx));
    return v;
}

static int refused(lks_status got, lks_status want, const char *part)
{
    int good = got == want && strstr(lks_error(ctx), part);
    if (!good) diag("got %s (%s)", lks_status_name(got), lks_error(ctx));
    lks_error_clear(ctx);
    return good;
}

/* --- files --- */

static void put(hid_t file, const char *name, hid_t type, int ndim, const hsize_t *dims, const double *x, int chunked)
{
    hid_t space = H5Screate_simple(ndim, dims, NULL), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[4];
    for (int i = 0; i < ndim; i++) chunk[i] = i == 0 ? 3 : dims[i];
    if (chunked) H5Pset_chunk(dcpl, ndim, chunk), H5Pset_deflate(dcpl, 1);
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    if (d < 0 || H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) < 0) bail("%s", name);
    H5Dclose(d), H5Pclose(dcpl), H5Sclose(space);
}

static void attribute(hid_t file, const char *object, const char *name, hid_t type, hsize_t n, const void *value)
{
    hid_t o = H5Oopen(file, object, H5P_DEFAULT), space = n ? H5Screate_simple(1, &n, NULL) : H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(o, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, type, value) < 0) bail("attribute %s", name);
    H5Aclose(a), H5Sclose(space), H5Oclose(o);
}

/* u [n, h, w]: a field that drifts and spreads, periodic, one explicit step a row. */
static double *series(int n, int h, int w, double phase)
{
    double *u = calloc((size_t)n * (size_t)(h * w), sizeof *u), pi2 = 2 * acos(-1);
    for (int i = 0; i < h; i++)
        for (int k = 0; k < w; k++)
            u[i * w + k] = sin(pi2 * (i / (double)h + 2 * k / (double)w) + phase) + 0.5 * cos(pi2 * 2 * i / h - phase);
    for (int t = 1; t < n; t++)
        for (int i = 0; i < h; i++)
            for (int k = 0; k < w; k++) {
                double *a = u + (t - 1) * h * w;
                double here = a[i * w + k], up = a[(i + h - 1) % h * w + k], left = a[i * w + (k + w - 1) % w];
                double down = a[(i + 1) % h * w + k], right = a[i * w + (k + 1) % w];
                u[t * h * w + i * w + k] = here - 0.3 * (here - left) - 0.2 * (here - up) +
                                           0.05 * (up + down + left + right - 4 * here) + 0.01 * sin(0.2 * t);
            }
    return u;
}

static int make(const char *kind, const char *path)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (!strncmp(kind, "series", 6)) { /* series, series2 (another start), narrow (other sizes), hole (a NaN) */
        hsize_t dims[3] = {81, 13, 10};
        double *u = series(81, 13, 10, !strcmp(kind, "series2"));
        for (int i = 0; i < 81 * 130; i++) u[i] = 300 + 3 * u[i];
        if (!strcmp(kind, "series-hole")) u[37 * 130 + 5] = NAN;
        hid_t g = H5Gcreate2(file, "run", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        put(g, "u", H5T_IEEE_F64LE, 3, dims, u, 0);
        dims[2] = 5;
        put(g, "half", H5T_IEEE_F32LE, 3, dims, u, 0);
        H5Gclose(g);
        double dt = 0.5;
        float range[2] = {290, 310};
        hid_t text = H5Tcopy(H5T_C_S1);
        H5Tset_size(text, H5T_VARIABLE);
        const char *title = "a run", *unit = "K";
        hobj_ref_t ref;
        H5Rcreate(&ref, file, "/run", H5R_OBJECT, -1);
        attribute(file, "/", "title", text, 0, &title);
        attribute(file, "/", "dt", H5T_NATIVE_DOUBLE, 0, &dt);
        attribute(file, "/run/u", "units", text, 0, &unit);
        attribute(file, "/run/u", "valid_range", H5T_NATIVE_FLOAT, 2, range);
        attribute(file, "/run/u", "reference", H5T_STD_REF_OBJ, 0, &ref);
        H5Tclose(text);
        free(u);
    } else { /* table: x [n, 4] far from zero, y [n, 2] and s [n] of it; integers, bytes, words, classes [n], [n, 1] */
        int n = 600;
        hsize_t dims[3] = {(hsize_t)n, 4, 1};
        double *x = calloc((size_t)n * 4, sizeof *x), *y = calloc((size_t)n * 2, sizeof *y);
        uint32_t r = 12345;
        for (int i = 0; i < n; i++) {
            double v[4];
            for (int k = 0; k < 4; k++) {
                r = r * 1664525u + 1013904223u;
                v[k] = (double)(r >> 8) / (1 << 24);
                x[i * 4 + k] = k == 3 ? 7 : 1e6 + v[k] * 1e-2; /* float32 does not hold it; column 3 is constant */
            }
            y[2 * i] = sin(3 * v[0]) + v[1] * v[2];
            y[2 * i + 1] = 1e4 * (v[0] - v[1]);
        }
        put(file, "x", H5T_IEEE_F64LE, 2, dims, x, 0);
        dims[1] = 2;
        put(file, "y", H5T_IEEE_F32BE, 2, dims, y, 1);
        for (int i = 0; i < n; i++) y[i] = floor(100 * y[2 * i]);
        put(file, "whole", H5T_STD_I32LE, 1, dims, y, 0);
        for (int i = 0; i < n * 4; i++) x[i] = (i * 37) % 200;
        dims[1] = 4;
        put(file, "bytes", H5T_STD_U8LE, 2, dims, x, 0);
        for (int i = 0; i < n; i++) y[i] = i * 7 % 3;
        put(file, "class", H5T_STD_I32LE, 1, dims, y, 0);
        dims[1] = 1;
        put(file, "column", H5T_STD_I32LE, 2, dims, y, 0);
        dims[0] = (hsize_t)n - 1;
        put(file, "short", H5T_IEEE_F32LE, 1, dims, x, 0);
        hid_t text = H5Tcopy(H5T_C_S1);
        H5Tset_size(text, 4);
        dims[0] = (hsize_t)n;
        hid_t space = H5Screate_simple(1, dims, NULL);
        hid_t d = H5Dcreate2(file, "words", text, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Dclose(d), H5Sclose(space), H5Tclose(text);
        free(x), free(y);
    }
    H5Fclose(file);
    return 0;
}

static double *load(const char *path, const char *name, int64_t *n)
{
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), d = H5Dopen2(f, name, H5P_DEFAULT), s = H5Dget_space(d);
    *n = H5Sget_simple_extent_npoints(s);
    double *v = calloc((size_t)*n + 1, sizeof *v);
    if (H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) < 0) bail("%s", path);
    H5Sclose(s), H5Dclose(d), H5Fclose(f);
    return v;
}

/* B may be longer in front: the last elements are compared. */
static int print_error(const char *a, const char *name_a, const char *b, const char *name_b)
{
    int64_t n, m;
    double *x = load(a, name_a, &n), *all = load(b, name_b, &m), *y = all + (m - n), mean = 0, e = 0, v = 0;
    for (int64_t i = 0; i < n; i++) mean += y[i] / (double)n;
    for (int64_t i = 0; i < n; i++) e += (x[i] - y[i]) * (x[i] - y[i]), v += (y[i] - mean) * (y[i] - mean);
    printf("%.6f\n", sqrt(e / v));
    free(x), free(all);
    return 0;
}

/* --- networks --- */

static lks_tensor *noise(int ndim, const int64_t *shape)
{
    lks_tensor *x = lks_empty(ctx, LKS_F32, ndim, shape);
    lks_random_rows(ctx, 0, 0);
    lks_normal_(x, 0, 1);
    return x;
}

static void shapes(void)
{
    static const int64_t sizes[][5] = {{2, 3, 9},    {2, 3, 1},       {2, 3, 7, 10},
                                       {1, 3, 1, 5}, {2, 3, 5, 4, 3}, {0, 3, 8, 8}};
    static const int dims[] = {1, 1, 2, 2, 3, 2};
    for (int k = 0; k < 6; k++)
        for (int norm = 0; norm < 2; norm++) {
            int d = dims[k], good = 1;
            lks_params *ps;
            lks_module *u = NULL, *f = NULL;
            lks_scope_begin(ctx);
            if (lks_params_create(ctx, &ps) ||
                lks_unet_create(ps, "u", d, 3, 2, 8, 2, norm, norm ? LKS_PADDING_ZEROS : LKS_PADDING_PERIODIC, 0, &u) ||
                lks_field_net_create(ps, "f", d, 3, sizes[k] + 2, 5, 8, 2, norm, LKS_PADDING_ZEROS, 0, &f))
                bail("%s", lks_error(ctx));
            lks_tensor *x = noise(d + 2, sizes[k]), *y = lks_module_forward(u, x), *z = lks_module_forward(f, x);
            good = y && z && lks_ndim(y) == d + 2 && lks_dim(y, 0) == sizes[k][0] && lks_dim(y, 1) == 2;
            for (int i = 2; good && i < d + 2; i++) good = lks_dim(y, i) == sizes[k][i];
            good = good && lks_ndim(z) == 2 && lks_dim(z, 0) == sizes[k][0] && lks_dim(z, 1) == 5;
            if (good && sizes[k][0])
                good = lks_backward(
                           lks_add(lks_sum(y, 0, NULL, 0, LKS_DTYPE_NONE), lks_sum(z, 0, NULL, 0, LKS_DTYPE_NONE)),
                           LKS_NONE, 0) == LKS_OK;
            for (int i = 0; good && sizes[k][0] && i < lks_params_count(ps); i++)
                good = lks_grad(lks_params_tensor(ps, i)) != NULL;
            ok(good, "%d dims, case %d, norm %d: sizes come back, every parameter has a gradient%s%s", d, k, norm,
               lks_error_code(ctx) ? ": " : "", lks_error(ctx));
            lks_error_clear(ctx);
            lks_scope_end(ctx);
            lks_module_destroy(&u);
            lks_module_destroy(&f);
            lks_params_destroy(&ps);
        }
}

/* A periodic network over sizes that halve: the shifted field gives the shifted result; one sample's result does not
 * hang on the others; the second forward of recompute has the same bits. */
static void equivariance(void)
{
    lks_params *ps;
    lks_module *u = NULL;
    int64_t shape[4] = {2, 2, 8, 16}, four = 4;
    int dim = 3;
    lks_scope_begin(ctx);
    if (lks_params_create(ctx, &ps) || lks_unet_create(ps, "", 2, 2, 1, 8, 2, 1, LKS_PADDING_PERIODIC, 0, &u))
        bail("%s", lks_error(ctx));
    lks_tensor *x = noise(4, shape);
    double *a = host(lks_roll(lks_module_forward(u, x), 1, &four, &dim)),
           *b = host(lks_module_forward(u, lks_roll(x, 1, &four, &dim)));
    double *c = host(lks_module_forward(u, lks_narrow(x, 0, 1, 1))), *d = host(lks_module_forward(u, x)), worst = 0,
           other = 0;
    for (int i = 0; i < 256; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    for (int i = 0; i < 128; i++) other = fmax(other, fabs(c[i] - d[128 + i]));
    ok(worst < 1e-5, "periodic: shifted in, shifted out (%g)", worst);
    ok(other < 1e-5, "a sample alone has the result that it has in a batch (%g)", other);
    lks_tensor *w = lks_params_tensor(ps, lks_params_find(ps, "down.0.conv1.weight"));
    double *g[2];
    for (int again = 0; again < 2; again++) {
        lks_module_recompute(u, again);
        lks_zero_grad(w);
        if (lks_backward(lks_sum(lks_module_forward(u, x), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0))
            bail("%s", lks_error(ctx));
        g[again] = host(lks_grad(w));
    }
    ok(!memcmp(g[0], g[1], (size_t)lks_numel(w) * 8), "blocks run once more give the same gradient");
    free(a), free(b), free(c), free(d), free(g[0]), free(g[1]);
    lks_scope_end(ctx);
    lks_module_destroy(&u);
    lks_params_destroy(&ps);
}

/* d sum(y^2) / d w against differences in float64 parameters is not to be had (modules are float32): large steps. */
static void gradient(void)
{
    lks_params *ps;
    lks_module *u = NULL;
    int64_t shape[4] = {1, 1, 5, 6};
    if (lks_params_create(ctx, &ps) || lks_unet_create(ps, "", 2, 1, 1, 4, 1, 1, LKS_PADDING_ZEROS, 0, &u))
        bail("%s", lks_error(ctx));
    const char *names[] = {"down.0.conv1.weight", "down.1.conv2.weight", "up.0.conv.weight", "up.0.norm2.weight",
                           "head.weight"};
    lks_scope_begin(ctx);
    lks_tensor *x = noise(4, shape);
    for (int k = 0; k < 5; k++) {
        lks_tensor *w = lks_params_tensor(ps, lks_params_find(ps, names[k]));
        int64_t n = lks_numel(w);
        float *v = calloc((size_t)n, sizeof *v);
        double value[2], h = 1e-2;
        lks_zero_grad(w);
        lks_tensor *y = lks_module_forward(u, x);
        if (lks_backward(lks_sum(lks_mul(y, y), 0, NULL, 0, LKS_DTYPE_NONE), LKS_NONE, 0)) bail("%s", lks_error(ctx));
        double *g = host(lks_grad(w));
        lks_to_host(w, v, n * 4);
        lks_no_grad_begin(ctx);
        for (int side = 0; side < 2; side++) {
            v[n / 2] += (float)(side ? -2 * h : h);
            lks_set_from_host(w, v, n * 4);
            y = lks_module_forward(u, x);
            lks_item(lks_sum(lks_mul(y, y), 0, NULL, 0, LKS_F64), &value[side]);
        }
        v[n / 2] += (float)h;
        lks_set_from_host(w, v, n * 4);
        lks_no_grad_end(ctx);
        double d = (value[0] - value[1]) / (2 * h);
        ok(fabs(d - g[n / 2]) < 0.02 * (fabs(d) + 0.2), "gradient of %s: %g, by differences %g", names[k], g[n / 2], d);
        free(v), free(g);
    }
    lks_scope_end(ctx);
    lks_module_destroy(&u);
    lks_params_destroy(&ps);
}

static void refusals(void)
{
    lks_params *ps;
    lks_module *m = NULL;
    int64_t size[2] = {4, 0}, shape[4] = {1, 2, 4, 4};
    if (lks_params_create(ctx, &ps)) bail("%s", lks_error(ctx));
    ok(refused(lks_unet_create(ps, "", 4, 1, 1, 8, 2, 0, 0, 0, &m), LKS_ERR_ARGUMENT, "spatial dims") && !m, "4 dims");
    ok(refused(lks_unet_create(ps, "", 2, 0, 1, 8, 2, 0, 0, 0, &m), LKS_ERR_ARGUMENT, "channels") && !m, "no channels");
    ok(refused(lks_unet_create(ps, "", 2, 1, 1, 8, 99, 0, 0, 0, &m), LKS_ERR_ARGUMENT, "stages") && !m, "99 stages");
    ok(refused(lks_unet_create(ps, "", 2, 1, 1, 8, 2, 0, 7, 0, &m), LKS_ERR_ARGUMENT, "padding") && !m, "padding 7");
    ok(refused(lks_unet_create(ps, "", 2, 1, 1, 8, 2, 0, 0, 1, &m), LKS_ERR_ARGUMENT, "dropout") && !m, "dropout 1");
    ok(refused(lks_field_net_create(ps, "", 2, 1, size, 1, 8, 2, 0, 0, 0, &m), LKS_ERR_ARGUMENT, "size") && !m,
       "a size of 0");
    ok(lks_params_count(ps) == 0, "nothing is left of them");
    if (lks_unet_create(ps, "", 2, 1, 1, 8, 2, 0, 0, 0, &m)) bail("%s", lks_error(ctx));
    lks_scope_begin(ctx);
    ok(!lks_module_forward(m, noise(4, shape)) && refused(lks_error_code(ctx), LKS_ERR_SHAPE, "unet"),
       "2 channels into 1");
    lks_scope_end(ctx);
    lks_module_destroy(&m);
    lks_params_destroy(&ps);
}

/* --- parts, statistics, results --- */

static void parts(const char *dir)
{
    char path[400];
    const char *p = path;
    lks_loader *l = NULL;
    lks_tensor *in, *target;
    int64_t rows, begin;
    snprintf(path, sizeof path, "%s/series.h5", dir);
    if (lks_loader_hdf5(ctx, 1, &p, "run/u[2:-4:3, ::2, -1]", "run/u[3:78:3]", 0, &l)) bail("%s", lks_error(ctx));
    lks_loader_set_wide(l, 1);
    ok(lks_loader_train_count(l) == 25 && lks_loader_input_ndim(l) == 1 && lks_loader_input_shape(l)[0] == 7 &&
           lks_loader_target_ndim(l) == 2 && lks_loader_target_dim(l, 1) == 10 && lks_loader_dtype(l, 0) == LKS_F64,
       "a part has its shape");
    double *u = series(81, 13, 10, 0);
    int good = 1;
    lks_scope_begin(ctx);
    if (lks_loader_rows(l, 3, 20, &in, &target, &rows, &begin)) bail("%s", lks_error(ctx));
    for (int64_t i = 0; i < rows; i++) {
        double *x = host(lks_select(in, 0, i)), *y = host(lks_select(target, 0, i));
        for (int k = 0; k < 7; k++) good &= fabs(x[k] - (300 + 3 * u[(2 + 3 * (begin + i)) * 130 + 20 * k + 9])) < 1e-9;
        for (int k = 0; k < 130; k++) good &= fabs(y[k] - (300 + 3 * u[(3 + 3 * (begin + i)) * 130 + k])) < 1e-9;
        free(x), free(y);
    }
    lks_scope_end(ctx);
    ok(good, "and its numbers");
    lks_loader_destroy(&l);
    static const char *const bad[] = {"run/u[0]",   "run/u[0:82]",  "run/u[:,5:5]", "run/u[:,:,:,0]", "run/u[a]",
                                      "run/u[::0]", "run/u[:,-14]", "run/u[3:2]",   "run/u[1:2:3:4]"};
    for (int i = 0; i < 9; i++) {
        lks_status s = lks_loader_hdf5(ctx, 1, &p, bad[i], "run/u", 0, &l);
        ok((s == LKS_ERR_ARGUMENT || s == LKS_ERR_SHAPE || s == LKS_ERR_PEER_FAILED) && !l, "%s is refused: %s", bad[i],
           lks_error(ctx));
        lks_error_clear(ctx);
    }
    if (lks_loader_hdf5(ctx, 1, &p, "run/u", NULL, 0, &l)) bail("%s", lks_error(ctx));
    lks_scope_begin(ctx);
    ok(lks_loader_rows(l, 0, 5, &in, &target, &rows, &begin) == LKS_OK && target == LKS_NONE &&
           lks_loader_target_ndim(l) == -1 && lks_loader_classes(l) == 0,
       "no targets");
    lks_scope_end(ctx);
    lks_loader_destroy(&l);
    free(u);
}

static void statistics(const char *dir)
{
    char path[2][400];
    const char *p[2] = {path[0], path[1]};
    lks_loader *l = NULL;
    double m[40], worst = 0;
    snprintf(path[0], sizeof path[0], "%s/series.h5", dir);
    snprintf(path[1], sizeof path[1], "%s/series2.h5", dir);
    if (lks_loader_hdf5(ctx, 2, p, "run/u", "run/half", 0.25, &l)) bail("%s", lks_error(ctx));
    lks_loader_set_wide(l, 1);
    if (lks_loader_statistics(l, 0, 26, m)) bail("%s", lks_error(ctx));
    /* By row of the field, over the training samples, in a plain way. */
    double *u[2] = {series(81, 13, 10, 0), series(81, 13, 10, 1)};
    int64_t n = lks_loader_train_count(l);
    for (int g = 0; g < 13; g++) {
        long double mean = 0, square = 0;
        for (int again = 0; again < 2; again++)
            for (int64_t k = 0; k < n; k++) {
                int64_t s = lks_loader_index(l, 0, k);
                for (int i = 0; i < 10; i++) {
                    long double v = 300 + 3 * u[s / 81][s % 81 * 130 + g * 10 + i];
                    if (again) square += (v - mean) * (v - mean);
                    else mean += v / (long double)(n * 10);
                }
            }
        worst = fmax(worst,
                     fmax(fabs(m[g] - (double)mean), fabs(m[13 + g] - (double)sqrtl(square / (long double)(n * 10)))));
    }
    ok(worst < 1e-11, "means and deviations of the training part by row (%g)", worst);
    if (lks_rank(ctx) == 0) {
        char name[400];
        snprintf(name, sizeof name, "%s/moments", dir);
        FILE *f = fopen(name, "w");
        for (int i = 0; i < 26; i++) fprintf(f, "%a\n", m[i]);
        fclose(f);
    }
    ok(refused(lks_loader_statistics(l, 0, 6, m), LKS_ERR_ARGUMENT, "groups"), "130 numbers in 3 groups");
    ok(refused(lks_loader_statistics(l, 2, 2, m), LKS_ERR_ARGUMENT, "array"), "no such array");
    lks_loader_destroy(&l);
    snprintf(path[0], sizeof path[0], "%s/series-hole.h5", dir);
    if (lks_loader_hdf5(ctx, 2, p, "run/u", "run/u", 0, &l)) bail("%s", lks_error(ctx));
    lks_status s = lks_loader_statistics(l, 0, 2, m);
    ok(s != LKS_OK && strstr(lks_error(ctx), "sample 37 of inputs \"run/u\" holds NaN (element 5"), "NaN is named: %s",
       lks_error(ctx));
    lks_error_clear(ctx);
    lks_loader_destroy(&l);
    free(u[0]), free(u[1]);
}

static void results(const char *dir)
{
    char path[400], from[400], file[400];
    lks_output *o = NULL;
    int64_t shape[3] = {37, 3, 2}, first = lks_rank(ctx) * 37 / lks_size(ctx),
            end = (lks_rank(ctx) + 1) * 37 / lks_size(ctx);
    int64_t zero[1] = {0};
    snprintf(path, sizeof path, "%s/out.h5", dir);
    snprintf(from, sizeof from, "%s/series.h5", dir);
    if (lks_rank(ctx) == 0) unlink(path);
    lks_barrier(ctx);
    lks_scope_begin(ctx);
    if (lks_output_create(ctx, path, "a/b/y", LKS_F32, 3, shape, &o)) bail("%s", lks_error(ctx));
    float *v = calloc(37 * 6, sizeof *v);
    for (int i = 0; i < 37 * 6; i++) v[i] = (float)(i + first * 6);
    ok(lks_output_write(o, first, end - first, v) == LKS_OK, "rows: %s", lks_error(ctx));
    ok(refused(lks_output_write(o, 37, 1, v), LKS_ERR_ARGUMENT, "37"), "behind the end");
    ok(refused(lks_output_write(o, -1, 1, v), LKS_ERR_ARGUMENT, "rows"), "before the beginning");
    ok(lks_output_copy_attributes(o, from, "run/u[1:]") == LKS_OK &&
           lks_output_copy_attributes(o, from, "none") == LKS_OK,
       "attributes");
    ok(lks_output_set_text(o, "note", "twice") == LKS_OK && lks_output_set_text(o, "note", "TWICE") == LKS_OK,
       "a text");
    lks_barrier(ctx);
    ok(access(path, F_OK) != 0, "nothing has its name before the end");
    ok(lks_output_finish(o) == LKS_OK, "finish: %s", lks_error(ctx));
    lks_output_destroy(&o);
    lks_barrier(ctx);
    int64_t n;
    double *back = load(path, "a/b/y", &n);
    int good = n == 37 * 6;
    for (int i = 0; good && i < n; i++) good = back[i] == i;
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), d = H5Dopen2(f, "a/b/y", H5P_DEFAULT);
    ok(good, "all rows are there");
    ok(H5Aexists(f, "title") > 0 && H5Aexists(f, "dt") > 0 && H5Aexists(d, "units") > 0 &&
           H5Aexists(d, "valid_range") > 0 && H5Aexists(d, "note") > 0 && H5Aexists(d, "reference") <= 0,
       "and the attributes, but for references");
    H5Dclose(d), H5Fclose(f);
    free(back), free(v);
    snprintf(file, sizeof file, "%s/none/out.h5", dir);
    lks_status s = lks_output_create(ctx, file, "y", LKS_F32, 3, shape, &o);
    ok(s != LKS_OK && !o && strstr(lks_error(ctx), "cannot be written"), "no such folder: %s", lks_error(ctx));
    lks_error_clear(ctx);
    ok(refused(lks_output_create(ctx, path, "", LKS_F32, 3, shape, &o), LKS_ERR_ARGUMENT, "names") && !o, "no name");
    ok(refused(lks_output_create(ctx, path, "y", LKS_F32, 0, shape, &o), LKS_ERR_ARGUMENT, "dims") && !o, "no dims");
    snprintf(file, sizeof file, "%s/empty.h5", dir);
    ok(lks_output_create(ctx, file, "y", LKS_F64, 1, zero, &o) == LKS_OK && lks_output_finish(o) == LKS_OK,
       "no rows: %s", lks_error(ctx));
    lks_output_destroy(&o);
    if (lks_output_create(ctx, file, "y", LKS_F64, 1, (int64_t[]){5}, &o)) bail("%s", lks_error(ctx));
    lks_output_destroy(&o);
    lks_barrier(ctx);
    snprintf(file, sizeof file, "%s/empty.h5.tmp", dir);
    ok(access(file, F_OK) != 0, "given up: nothing remains");
    lks_scope_end(ctx);
}

/* Names of parts at random: a loader or an error, never a crash or a wrong size. */
static void random_parts(const char *dir)
{
    static const char alphabet[] = "0123456789:::--,,,  +[].9223372036854775807";
    char path[400], name[80];
    const char *p = path;
    uint32_t r = 99;
    int made = 0, good = 1;
    snprintf(path, sizeof path, "%s/series.h5", dir);
    for (int k = 0; k < 1000; k++) {
        int n = snprintf(name, sizeof name, "run/u[");
        for (int i = 0; i < 1 + k % 24; i++) {
            r = r * 1664525u + 1013904223u;
            name[n++] = alphabet[(r >> 16) % (sizeof alphabet - 1)];
        }
        if (k % 3)
            n = snprintf(name, sizeof name, "run/u[%d:%d:%d,%d", (int)(r >> 8) % 90 - 85, (int)(r >> 16) % 90 - 4,
                         (int)(r >> 24) % 5, (int)(r >> 12) % 15 - 1);
        name[n++] = ']', name[n] = 0;
        lks_loader *l = NULL;
        lks_status s = lks_loader_hdf5(ctx, 1, &p, name, NULL, 0, &l);
        if ((s == LKS_OK) != (l != NULL)) good = 0;
        if (s == LKS_OK) {
            int64_t rows = lks_loader_train_count(l), of, begin;
            lks_tensor *in, *none;
            lks_scope_begin(ctx);
            good &= rows > 0 && rows <= 81 && lks_loader_rows(l, 0, 100, &in, &none, &of, &begin) == LKS_OK;
            lks_scope_end(ctx);
            made++;
        } else {
            good &= lks_error(ctx)[0] != 0;
        }
        if (!good) diag("%s: %s", name, lks_error(ctx));
        lks_error_clear(ctx);
        lks_loader_destroy(&l);
        if (!good) break;
    }
    ok(good && made > 50, "1000 random parts: an error or a loader (%d)", made);
}

/* Every allocation of these calls fails once; nothing remains. */
static int without_memory(const char *dir, int what)
{
    char path[400], file[400];
    const char *p = path;
    double m[2];
    int64_t shape[4] = {2, 1, 5, 6}, live = lksi_blocks_in_use(&ctx->base);
    snprintf(path, sizeof path, "%s/series.h5", dir);
    snprintf(file, sizeof file, "%s/memory.h5", dir);
    for (int n = 1; n < 2000; n++) {
        lks_params *ps = NULL;
        lks_module *u = NULL;
        lks_loader *l = NULL;
        lks_output *o = NULL;
        lks_status s;
        ctx->base.fail_at = n;
        lks_scope_begin(ctx);
        if (what == 0) {
            s = lks_params_create(ctx, &ps);
            if (s == LKS_OK) s = lks_unet_create(ps, "", 2, 1, 1, 4, 1, 1, LKS_PADDING_PERIODIC, 0, &u);
            if (s == LKS_OK && !lks_module_forward(u, lks_ones(ctx, LKS_F32, 4, shape))) s = lks_error_code(ctx);
        } else if (what == 1) {
            s = lks_loader_hdf5(ctx, 1, &p, "run/u[1:, 2:5]", "run/half[:-1]", 0.2, &l);
            if (s == LKS_OK) s = lks_loader_statistics(l, 0, 2, m);
            if (s == LKS_OK) s = lks_loader_statistics(l, 1, 2, m);
        } else {
            s = lks_output_create(ctx, file, "g/y", LKS_F64, 2, shape, &o);
            if (s == LKS_OK) s = lks_output_copy_attributes(o, path, "run/u");
            if (s == LKS_OK) s = lks_output_finish(o);
        }
        int over = ctx->base.fail_at > 0;
        ctx->base.fail_at = 0;
        if (!over && s == LKS_OK && what == 0 && lks_error_code(ctx)) s = lks_error_code(ctx);
        lks_scope_end(ctx);
        lks_output_destroy(&o);
        lks_loader_destroy(&l);
        lks_module_destroy(&u);
        lks_params_destroy(&ps);
        lks_error_clear(ctx);
        if (over) return s == LKS_OK && n > 5;
        if (lksi_blocks_in_use(&ctx->base) > live + 8) {
            diag("%d: allocation %d: %lld blocks remain", what, n, (long long)(lksi_blocks_in_use(&ctx->base) - live));
            return 0;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "make")) return make(argv[2], argv[3]);
    if (argc == 6 && !strcmp(argv[1], "error")) return print_error(argv[2], argv[3], argv[4], argv[5]);
    if (argc < 3) {
        printf("1..0 # SKIP run by regress.test\n");
        return 0;
    }
    const char *dir = argv[2];
    MPI_Init(&argc, &argv);
    tap_mpi(MPI_COMM_WORLD);
    lks_config *config = lks_config_new();
    lks_config_set_threads(config, 1);
    if (getenv("LKS_TEST_DEVICE")) lks_config_set_device(config, getenv("LKS_TEST_DEVICE"));
    if (lks_context_create(MPI_COMM_WORLD, config, &ctx)) bail("%s", lks_config_message(config));
    lks_config_free(config);
    shapes();
    equivariance();
    gradient();
    refusals();
    parts(dir);
    statistics(dir);
    results(dir);
    random_parts(dir);
    if (lks_size(ctx) == 1) /* what fails on one rank alone ends the others' calls, too: other tests */
        for (int k = 0; k < 3; k++) ok(without_memory(dir, k), "every allocation fails once, %d", k);
    ok(lks_live_tensors(ctx) == 0 && lks_live_nodes(ctx) == 0, "nothing lives on");
    lks_context_destroy(&ctx);
    int status = done();
    MPI_Finalize();
    return status;
}
