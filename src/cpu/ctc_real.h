/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ctc_real.h - the recursions of ctc for one type of arithmetic. Included by ctc.c for float and double, with REAL,
 * F(name), EXP and LOG defined. All is in logarithms. A row of states has two entries of -inf before and after it, so
 * that neighbours need no test. After each step the largest state is set to 0 and what was taken off is added up in
 * double: long sequences lose no digits.
 */
#define PAD 2

/* log(e^a + e^b + e^c) */
static inline REAL F(log_add)(REAL a, REAL b, REAL c)
{
    REAL m = a > b ? a : b;
    m = m > c ? m : c;
    m = m == (REAL)-INFINITY ? 0 : m;
    return m + LOG(EXP(a - m) + EXP(b - m) + EXP(c - m));
}

static void F(bare)(REAL *row, int64_t states)
{
    for (int64_t i = 0; i < states + 2 * PAD; i++) row[i] = (REAL)-INFINITY;
}

/* Largest of row set to 0; returns what was taken off. -inf alone is left as it is. */
static double F(level)(REAL *x, int64_t states)
{
    REAL m = F(max)(x, states);
    if (!(m > (REAL)-INFINITY)) return 0;
    for (int64_t i = 0; i < states; i++) x[i] -= m;
    return (double)m;
}

typedef struct F(sample) {
    int64_t n, steps, labels, states;
    REAL *skip, *emit, *one, *two, *gamma; /* rows of states, PAD entries in */
    REAL *alpha;                           /* [steps] rows, or two */
    int64_t row;
    REAL *dx; /* [C] */
} F(sample);

static F(sample) F(sample_of)(const job *s, int64_t n, int worker)
{
    F(sample) p = {.n = n, .steps = index_of(&s->input_length, n), .labels = index_of(&s->target_length, n)};
    REAL *at = (REAL *)(void *)(s->scratch + worker * s->scratch_each);
    p.states = 2 * p.labels + 1;
    p.row = s->states + 2 * PAD;
    p.skip = at + PAD;
    p.emit = p.skip + p.row;
    p.one = p.emit + p.row;
    p.two = p.one + p.row;
    p.gamma = p.two + p.row;
    p.dx = p.gamma + p.row;
    p.alpha = p.dx + s->x->shape[2] + PAD;
    /* 0 where a state may be reached over the blank before it: labels unlike the one before. */
    F(bare)(p.skip - PAD, p.states);
    for (int64_t i = 3; i < p.states; i += 2)
        if (label_at(s, n, i / 2) != label_at(s, n, i / 2 - 1)) p.skip[i] = 0;
    return p;
}

static void F(emissions)(const job *s, const F(sample) *p, int64_t t)
{
    const lksi_view *x = s->x;
    int64_t at = t * x->stride[0] + p->n * x->stride[1];
    for (int64_t i = 0; i < p->states; i++)
        p->emit[i] = (REAL)lksi_get(x->data, x->dtype, at + state_label(s, p->n, i) * x->stride[2]);
}

/* Rows of alpha (levelled), each over the one `stride` before it; returns -log of the probability. */
static double F(forward)(const job *s, const F(sample) *p, int keep)
{
    if (p->steps == 0) return p->labels == 0 ? 0 : INFINITY;
    double off = 0;
    REAL *now = keep ? p->alpha : p->one;
    int64_t states = p->states;
    F(bare)(now - PAD, states);
    F(emissions)(s, p, 0);
    now[0] = p->emit[0];
    if (states > 1) now[1] = p->emit[1];
    off += F(level)(now, states);
    for (int64_t t = 1; t < p->steps; t++) {
        const REAL *before = now, *emit = p->emit, *skip = p->skip;
        now = keep ? p->alpha + t * p->row : before == p->one ? p->two : p->one;
        F(bare)(now - PAD, states);
        F(emissions)(s, p, t);
#pragma GCC ivdep
        for (int64_t i = 0; i < states; i++)
            now[i] = F(log_add)(before[i], before[i - 1], before[i - 2] + skip[i]) + emit[i];
        off += F(level)(now, states);
    }
    REAL last = now[states - 1], other = states > 1 ? now[states - 2] : (REAL)-INFINITY;
    return -(off + (double)F(log_add)(last, other, (REAL)-INFINITY));
}

static void F(losses)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    for (int64_t n = begin; n < end; n++) {
        F(sample) p = F(sample_of)(s, n, worker);
        s->loss[n] = F(forward)(s, &p, 0);
    }
}

static void F(put_row)(const job *s, int64_t t, int64_t n, REAL *dx)
{
    const lksi_view *y = s->dx;
    char *at = (char *)y->data + (t * y->stride[0] + n * y->stride[1]) * lks_dtype_size(y->dtype);
    F(store_run)(y->dtype, at, y->stride[2], dx, y->shape[2]);
}

/* The gradient of log_probs[t] is minus the probability of each label at t given the target. */
static void F(losses_back)(void *arg, int64_t begin, int64_t end, int worker)
{
    const job *s = arg;
    int64_t classes = s->x->shape[2];
    int reduction = s->a->attr.loss.reduction, mean = reduction == 1 || reduction == 4;
    for (int64_t n = begin; n < end; n++) {
        F(sample) p = F(sample_of)(s, n, worker);
        int64_t states = p.states;
        double nll = F(forward)(s, &p, 1);
        REAL g =
            (REAL)(given_at(s->a, &s->dy, n, (double)s->x->shape[1]) / (mean && p.labels > 0 ? (double)p.labels : 1));
        int none = nll == INFINITY;
        for (int64_t c = 0; c < classes; c++) p.dx[c] = 0;
        for (int64_t t = p.steps; t < s->x->shape[0]; t++) F(put_row)(s, t, n, p.dx);
        if (none) { /* no path: nothing, or no number */
            for (int64_t c = 0; c < classes && !(s->a->attr.loss.flags & 1); c++) p.dx[c] = (REAL)NAN;
            for (int64_t t = 0; t < p.steps; t++) F(put_row)(s, t, n, p.dx);
            continue;
        }
        REAL *beta = p.one, *next = p.two, *gamma = p.gamma;
        F(bare)(beta - PAD, states);
        F(bare)(next - PAD, states);
        beta[states - 1] = 0;
        if (states > 1) beta[states - 2] = 0;
        for (int64_t t = p.steps - 1; t >= 0; t--) {
            const REAL *alpha = p.alpha + t * p.row, *skip = p.skip;
            for (int64_t i = 0; i < states; i++) gamma[i] = alpha[i] + beta[i];
            REAL top = F(max)(gamma, states);
#pragma GCC ivdep
            for (int64_t i = 0; i < states; i++) gamma[i] = EXP(gamma[i] - top);
            REAL scale = -g / F(sum)(gamma, states);
            for (int64_t c = 0; c < classes; c++) p.dx[c] = 0;
            for (int64_t i = 0; i < states; i++) p.dx[state_label(s, n, i)] += gamma[i];
            for (int64_t c = 0; c < classes; c++) p.dx[c] = p.dx[c] == 0 ? 0 : p.dx[c] * scale;
            F(put_row)(s, t, n, p.dx);
            if (t == 0) break;
            F(emissions)(s, &p, t);
            for (int64_t i = 0; i < states; i++) gamma[i] = beta[i] + p.emit[i];
            gamma[states] = gamma[states + 1] = (REAL)-INFINITY;
#pragma GCC ivdep
            for (int64_t i = 0; i < states; i++)
                next[i] = F(log_add)(gamma[i], gamma[i + 1], gamma[i + 2] + skip[i + 2]);
            F(level)(next, states);
            REAL *swap = beta;
            beta = next;
            next = swap;
        }
    }
}

#undef PAD
