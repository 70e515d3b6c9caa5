/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fftw.c - the module liblockstep_fftw.so: Fourier transforms by FFTW 3 in single and double precision. Loaded at the
 * first transform (src/ctx/plugin.c). This file is the only one that sees FFTW; who distributes the module built from
 * it is bound by FFTW's licence (GPL), the library is not.
 */
#include "device/fft.h"
#include "device/plugin.h"

#include <fftw3.h>
#include <pthread.h>

/* FFTW's planner is one for the whole process and not made for threads. */
static pthread_mutex_t planner = PTHREAD_MUTEX_INITIALIZER;

#define DIMS(P)                                                                                                \
    P##_iodim64 dim[LKS_MAX_DIMS], many = {s->many, s->many_in, s->many_out};                                  \
    for (int d = 0; d < s->rank; d++) dim[d] = (P##_iodim64){s->n[d], s->in[d], s->out[d]}

/* Estimated plans depend on the shape alone. The planner does not touch these addresses. */
#define MAKE(P, REAL)                                                                                          \
    static void *make_##P(const lksi_fft_shape *s)                                                             \
    {                                                                                                          \
        DIMS(P);                                                                                               \
        unsigned flags = FFTW_ESTIMATE | (s->aligned ? 0 : FFTW_UNALIGNED);                                    \
        char *in = (char *)64, *out = s->in_place ? in : (char *)4096;                                         \
        if (s->kind == LKSI_FFT_C2C)                                                                           \
            return P##_plan_guru64_dft(s->rank, dim, 1, &many, (P##_complex *)in, (P##_complex *)out,          \
                                       s->inverse ? FFTW_BACKWARD : FFTW_FORWARD,                              \
                                       flags | (s->in_place ? 0 : FFTW_PRESERVE_INPUT));                       \
        if (s->kind == LKSI_FFT_R2C)                                                                           \
            return P##_plan_guru64_dft_r2c(s->rank, dim, 1, &many, (REAL *)in, (P##_complex *)out,             \
                                           flags | FFTW_PRESERVE_INPUT);                                       \
        return P##_plan_guru64_dft_c2r(s->rank, dim, 1, &many, (P##_complex *)in, (REAL *)out, flags);         \
    }                                                                                                          \
    static void run_##P(const lksi_fft_shape *s, void *plan, void *in, void *out)                              \
    {                                                                                                          \
        if (s->kind == LKSI_FFT_C2C) P##_execute_dft(plan, in, out);                                           \
        else if (s->kind == LKSI_FFT_R2C) P##_execute_dft_r2c(plan, in, out);                                  \
        else P##_execute_dft_c2r(plan, in, out);                                                               \
    }
MAKE(fftw, double)
MAKE(fftwf, float)

static void *plan(const lksi_fft_shape *s)
{
    pthread_mutex_lock(&planner);
    void *p = s->dbl ? make_fftw(s) : make_fftwf(s);
    pthread_mutex_unlock(&planner);
    return p;
}

static void run(const lksi_fft_shape *s, void *p, void *in, void *out)
{
    if (s->dbl) run_fftw(s, p, in, out);
    else run_fftwf(s, p, in, out);
}

static void destroy(const lksi_fft_shape *s, void *p)
{
    pthread_mutex_lock(&planner);
    if (s->dbl) fftw_destroy_plan(p);
    else fftwf_destroy_plan(p);
    pthread_mutex_unlock(&planner);
}

static void attach(const lksi_host *host) { (void)host; }

static const lksi_fft_module module = {sizeof module, plan, run, destroy};

__attribute__((visibility("default"))) const lksi_plugin lksi_plugin_fftw = {
    LKSI_PLUGIN_FACTS,
    .attach = attach,
    .service = &module,
};
