/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step_core.h - the update of n elements for float and for double. Included by step.c twice, with REAL, NAME(name) and
 * ROOT (the square root) defined. Plain loops without branches, which the compiler vectorises.
 */

/* A bound that is absent is infinite: the comparisons change nothing. A NaN passes. */
static inline REAL NAME(gradient)(REAL g, REAL factor, REAL clip, REAL bound)
{
    REAL x = g * factor * clip;
    x = x > bound ? bound : x;
    return x < -bound ? -bound : x;
}

/* buffer NULL: no momentum. */
static void NAME(sgd)(REAL *restrict p, const REAL *restrict g, REAL *restrict buffer, int64_t n,
                      const lksi_segment_step *x, const lksi_step *st)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL lr = (REAL)x->step, l2 = (REAL)x->l2, keep = x->first ? 0 : (REAL)x->m_keep;
    const REAL stay = (REAL)x->keep, trust = (REAL)x->trust;
    const REAL add = x->first ? 1 : (REAL)x->m_add, ahead = (REAL)x->m_keep;
    if (!buffer || x->m_keep == 0) {
        for (int64_t i = 0; i < n; i++)
            p[i] = stay * p[i] - lr * (trust * (NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i]));
    } else if (x->nesterov) {
        for (int64_t i = 0; i < n; i++) {
            REAL d = trust * (NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i]);
            REAL b = keep * buffer[i] + add * d;
            buffer[i] = b;
            p[i] = stay * p[i] - lr * (d + ahead * b);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            REAL d = trust * (NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i]);
            REAL b = keep * buffer[i] + add * d;
            buffer[i] = b;
            p[i] = stay * p[i] - lr * b;
        }
    }
}

/* Kingma & Ba, 2015; decoupled decay in `keep` (Loshchilov & Hutter, 2019); with `most` AMSGrad (Reddi et al., 2018).
 * (1 - beta2) g comes before the second g, so that a large gradient does not overflow in its square. */
static void NAME(adam)(REAL *restrict p, const REAL *restrict g, REAL *restrict m, REAL *restrict v,
                       REAL *restrict most, int64_t n, const lksi_segment_step *x, const lksi_step *st)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL step = (REAL)x->step, keep = (REAL)x->keep, l2 = (REAL)x->l2, eps = (REAL)x->eps, root = (REAL)x->root;
    const REAL m_keep = (REAL)x->m_keep, m_add = (REAL)x->m_add, v_keep = (REAL)x->v_keep, v_add = (REAL)x->v_add;
    if (!most) {
        for (int64_t i = 0; i < n; i++) {
            REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
            REAL mi = m_keep * m[i] + m_add * d;
            REAL vi = v_keep * v[i] + v_add * d * d;
            m[i] = mi;
            v[i] = vi;
            p[i] = keep * p[i] - step * mi / (ROOT(vi) * root + eps);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
        REAL mi = m_keep * m[i] + m_add * d;
        REAL vi = v_keep * v[i] + v_add * d * d;
        REAL top = vi > most[i] ? vi : most[i];
        m[i] = mi;
        v[i] = vi;
        most[i] = top;
        p[i] = keep * p[i] - step * mi / (ROOT(top) * root + eps);
    }
}

/* Hinton's RMSprop; buffer: with momentum, mean: centered (Graves, 2013). */
static void NAME(rmsprop)(REAL *restrict p, const REAL *restrict g, REAL *restrict v, REAL *restrict buffer,
                          REAL *restrict mean, int64_t n, const lksi_segment_step *x, const lksi_step *st)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL lr = (REAL)x->step, keep = (REAL)x->keep, l2 = (REAL)x->l2, eps = (REAL)x->eps;
    const REAL m_keep = (REAL)x->m_keep, v_keep = (REAL)x->v_keep, v_add = (REAL)x->v_add;
    for (int64_t i = 0; i < n; i++) {
        REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
        REAL vi = v_keep * v[i] + v_add * d * d, about = vi;
        v[i] = vi;
        if (mean) {
            REAL e = v_keep * mean[i] + v_add * d;
            mean[i] = e;
            about = vi - e * e;
            about = about > 0 ? about : 0; /* rounding may make a variance of zero negative */
        }
        d = d / (ROOT(about) + eps);
        if (buffer) {
            d = m_keep * buffer[i] + d;
            buffer[i] = d;
        }
        p[i] = keep * p[i] - lr * d;
    }
}

/* Duchi et al., 2011. */
static void NAME(adagrad)(REAL *restrict p, const REAL *restrict g, REAL *restrict sum, int64_t n,
                          const lksi_segment_step *x, const lksi_step *st)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL lr = (REAL)x->step, keep = (REAL)x->keep, l2 = (REAL)x->l2, eps = (REAL)x->eps;
    for (int64_t i = 0; i < n; i++) {
        REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
        REAL s = sum[i] + d * d;
        sum[i] = s;
        p[i] = keep * p[i] - lr * d / (ROOT(s) + eps);
    }
}

/* Sums of squares of weights and direction, read only: the gradient for LARS (You et al., 2017); for LAMB (You et al.,
 * 2020) what adam is about to do with these moments, over lr, and weight decay. */
static void NAME(trust)(int kind, const REAL *p, const REAL *g, const REAL *const *b, int64_t n,
                        const lksi_segment_step *x, const lksi_step *st, lksi_piece *sum)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL l2 = (REAL)x->l2, eps = (REAL)x->eps, root = (REAL)x->root;
    const REAL m_keep = (REAL)x->m_keep, m_add = (REAL)x->m_add, v_keep = (REAL)x->v_keep, v_add = (REAL)x->v_add;
    const REAL unbias = (REAL)x->unbias;
    double w = 0, d = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL u = NAME(gradient)(g[i], factor, clip, bound);
        if (kind == LKSI_STEP_LAMB) {
            REAL mi = m_keep * b[0][i] + m_add * u;
            REAL vi = v_keep * b[1][i] + v_add * u * u;
            if (b[2] && b[2][i] > vi) vi = b[2][i];
            u = unbias * mi / (ROOT(vi) * root + eps) + l2 * p[i];
        }
        w += (double)p[i] * (double)p[i];
        d += (double)u * (double)u;
    }
    sum->weight += w;
    sum->direction += d;
}
