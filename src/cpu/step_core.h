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
    const REAL add = x->first ? 1 : (REAL)x->m_add, ahead = (REAL)x->m_keep;
    if (!buffer || x->m_keep == 0) {
        for (int64_t i = 0; i < n; i++) p[i] -= lr * (NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i]);
    } else if (x->nesterov) {
        for (int64_t i = 0; i < n; i++) {
            REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
            REAL b = keep * buffer[i] + add * d;
            buffer[i] = b;
            p[i] -= lr * (d + ahead * b);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
            REAL b = keep * buffer[i] + add * d;
            buffer[i] = b;
            p[i] -= lr * b;
        }
    }
}

/* Kingma & Ba, 2015; decoupled decay in `keep` (Loshchilov & Hutter, 2019). (1 - beta2) g comes before the second g, so
 * that a large gradient does not overflow in its square. */
static void NAME(adam)(REAL *restrict p, const REAL *restrict g, REAL *restrict m, REAL *restrict v, int64_t n,
                       const lksi_segment_step *x, const lksi_step *st)
{
    const REAL factor = (REAL)st->factor, clip = (REAL)st->clip, bound = (REAL)st->clip_value;
    const REAL step = (REAL)x->step, keep = (REAL)x->keep, l2 = (REAL)x->l2, eps = (REAL)x->eps, root = (REAL)x->root;
    const REAL m_keep = (REAL)x->m_keep, m_add = (REAL)x->m_add, v_keep = (REAL)x->v_keep, v_add = (REAL)x->v_add;
    for (int64_t i = 0; i < n; i++) {
        REAL d = NAME(gradient)(g[i], factor, clip, bound) + l2 * p[i];
        REAL mi = m_keep * m[i] + m_add * d;
        REAL vi = v_keep * v[i] + v_add * d * d;
        m[i] = mi;
        v[i] = vi;
        p[i] = keep * p[i] - step * mi / (ROOT(vi) * root + eps);
    }
}
