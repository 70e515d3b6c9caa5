/* SPDX-License-Identifier: BSD-3-Clause
 *
 * onednn.c - the one door to oneDNN: products of bfloat16 on processors with bfloat16 instructions, which the kernels
 * written here do not use. Nothing else is sent here: the blocked product of matmul.c is as fast. The workers are
 * Lockstep's: oneDNN runs single-threaded on each, with primitives kept per shape and scratchpads handed in (by default
 * primitives share one of the library's, which two threads must not).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "cpu/gemm.h"
#include "cpu/infra.h"
#include <string.h>

#ifdef HAVE_ONEDNN
#include <dnnl.h>

/* OpenMP's thread count is one per calling thread. Weak: an oneDNN that threads otherwise is not used. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));

enum { SLOTS = 1024, PROBES = 16, MEMORIES = 4 };

/* What a primitive was made for. */
typedef struct shape {
    int64_t dtype[4], size[8];
} shape;

typedef struct entry {
    shape key;
    dnnl_primitive_t primitive; /* NULL: oneDNN has none that is worth it */
    int used;
    int64_t stamp, scratch;
    dnnl_memory_desc_t md[MEMORIES], scratch_md;
} entry;

typedef struct state {
    lksi_base *base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int bfloat16; /* fast ones: 1 yes, 0 no, -1 not known */
    int64_t clock;
    entry entries[SLOTS];
} state;

#if DNNL_VERSION_MAJOR >= 3
static int describe(dnnl_memory_desc_t *md, int n, const int64_t *dims, dnnl_data_type_t type, const int64_t *strides)
{
    return dnnl_memory_desc_create_with_strides(md, n, dims, type, strides) == dnnl_success;
}

static void forget(dnnl_memory_desc_t *md)
{
    if (*md) dnnl_memory_desc_destroy(*md);
    *md = NULL;
}

static int copy_of(dnnl_memory_desc_t *to, const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, what, 0);
    return md && dnnl_memory_desc_clone(to, md) == dnnl_success;
}
#define MD(x) (x)
#define MD_SIZE(x) dnnl_memory_desc_get_size(x)
#else
static int describe(dnnl_memory_desc_t *md, int n, const int64_t *dims, dnnl_data_type_t type, const int64_t *strides)
{
    dnnl_dims_t d = {0}, s = {0};
    memcpy(d, dims, (size_t)n * sizeof *d);
    memcpy(s, strides, (size_t)n * sizeof *s);
    return dnnl_memory_desc_init_by_strides(md, n, d, type, s) == dnnl_success;
}

static void forget(dnnl_memory_desc_t *md)
{
    memset(md, 0, sizeof *md);
}

static int copy_of(dnnl_memory_desc_t *to, const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, what, 0);
    if (md) *to = *md;
    return md != NULL;
}
#define MD(x) (&(x))
#define MD_SIZE(x) dnnl_memory_desc_get_size(&(x))
#endif

static void clear_entry(entry *e)
{
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    for (int i = 0; i < MEMORIES; i++) forget(&e->md[i]);
    forget(&e->scratch_md);
    memset(e, 0, sizeof *e);
}

static void destroy(void *p)
{
    state *s = p;
    for (int i = 0; i < SLOTS; i++)
        if (s->entries[i].used) clear_entry(&s->entries[i]);
    if (s->stream) dnnl_stream_destroy(s->stream);
    if (s->engine) dnnl_engine_destroy(s->engine);
    lksi_free(s->base, s);
}

static state *state_of(lksi_cpu *cpu)
{
    if (!omp_get_max_threads || !omp_set_num_threads) return NULL;
    void **slot = lksi_cpu_state(cpu, LKSI_STATE_ONEDNN, destroy);
    if (*slot) return *slot;
    state *s = lksi_alloc(cpu->base, sizeof *s);
    if (!s) return NULL;
    s->base = cpu->base;
    s->bfloat16 = -1;
    if (dnnl_engine_create(&s->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags) != dnnl_success) {
        destroy(s);
        return NULL;
    }
    *slot = s;
    return s;
}

static dnnl_data_type_t type_of(int64_t dtype)
{
    return dtype == LKS_BF16 ? dnnl_bf16 : dtype == LKS_F32 ? dnnl_f32 : dnnl_data_type_undef;
}

/* The slot of key, or the oldest of those it may take. Does not change anything. */
static entry *find(state *s, const shape *key)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const int64_t *word = (const int64_t *)key;
    for (size_t i = 0; i < sizeof *key / 8; i++) hash = (hash ^ (uint64_t)word[i]) * 0x100000001b3u, hash ^= hash >> 29;
    entry *oldest = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        entry *e = &s->entries[(hash + i) % SLOTS];
        if (e->used && memcmp(&e->key, key, sizeof *key) == 0) return e;
        if (!oldest || (oldest->used && (!e->used || e->stamp < oldest->stamp))) oldest = e;
    }
    return oldest;
}

static int is_hit(const entry *e, const shape *key)
{
    return e->used && memcmp(&e->key, key, sizeof *key) == 0;
}

/* Takes over pd. A reference implementation counts as none. */
static void finish_entry(state *s, entry *e, const shape *key, dnnl_primitive_desc_t pd)
{
    const char *name = "";
    e->key = *key;
    e->used = 1;
    e->stamp = ++s->clock;
    if (!pd) return;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    if (!strstr(name, "ref") && copy_of(&e->scratch_md, pd, dnnl_query_scratchpad_md) &&
        dnnl_primitive_create(&e->primitive, pd) == dnnl_success)
        e->scratch = (int64_t)MD_SIZE(e->scratch_md);
    dnnl_primitive_desc_destroy(pd);
}

static dnnl_primitive_attr_t user_scratchpad(void)
{
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success) return NULL;
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    return attr;
}

typedef struct operand { int arg, md; const void *data; } operand;

/* One execution on the calling thread; memory: the entry's scratch bytes, 64-byte aligned. */
static int execute(state *s, entry *e, const operand *given, int n, void *memory)
{
    dnnl_exec_arg_t args[MEMORIES + 1];
    int made = 0, good = 1;
    for (; good && made < n; made++) {
        args[made].arg = given[made].arg;
        good = dnnl_memory_create(&args[made].memory, MD(e->md[given[made].md]), s->engine, (void *)given[made].data) ==
               dnnl_success;
        if (!good) break;
    }
    if (good && e->scratch > 0) {
        args[made].arg = DNNL_ARG_SCRATCHPAD;
        good = dnnl_memory_create(&args[made].memory, MD(e->scratch_md), s->engine, memory) == dnnl_success;
        made += good;
    }
    int host = omp_get_max_threads();
    omp_set_num_threads(1);
    good = good && dnnl_primitive_execute(e->primitive, s->stream, made, args) == dnnl_success;
    omp_set_num_threads(host);
    while (made > 0) dnnl_memory_destroy(args[--made].memory);
    return good;
}

static shape product_shape(const lksi_gemm *g)
{
    shape key;
    memset(&key, 0, sizeof key);
    key.dtype[0] = g->a_dtype, key.dtype[1] = g->b_dtype, key.dtype[2] = g->c_dtype;
    key.dtype[3] = g->bias ? g->bias_dtype : LKS_DTYPE_NONE;
    const int64_t size[8] = {g->m, g->n, g->k, g->a_rs, g->a_cs, g->b_rs, g->b_cs, g->c_rs};
    memcpy(key.size, size, sizeof size);
    return key;
}

static int prepare_product(state *s, const lksi_gemm *g, int64_t *bytes)
{
    shape key = product_shape(g);
    entry *e = find(s, &key);
    if (!is_hit(e, &key)) {
        if (e->used) clear_entry(e);
        const int64_t am[2] = {g->m, g->k}, bm[2] = {g->k, g->n}, cm[2] = {g->m, g->n}, dm[2] = {1, g->n};
        const int64_t as[2] = {g->a_rs, g->a_cs}, bs[2] = {g->b_rs, g->b_cs}, cs[2] = {g->c_rs, 1}, ds[2] = {g->n, 1};
        dnnl_primitive_desc_t pd = NULL;
        dnnl_primitive_attr_t attr = user_scratchpad();
        int host = omp_get_max_threads(), good = attr != NULL;
        omp_set_num_threads(1); /* a primitive is made for a number of threads */
        good = good && describe(&e->md[0], 2, am, type_of(g->a_dtype), as) &&
               describe(&e->md[1], 2, bm, type_of(g->b_dtype), bs) && describe(&e->md[2], 2, cm, type_of(g->c_dtype),
                                                                               cs) &&
               (!g->bias || describe(&e->md[3], 2, dm, type_of(g->bias_dtype), ds));
        if (good) {
#if DNNL_VERSION_MAJOR >= 3
            if (dnnl_matmul_primitive_desc_create(&pd, s->engine, e->md[0], e->md[1], g->bias ? e->md[3] : NULL,
                                                  e->md[2],
                                                  attr) != dnnl_success)
                pd = NULL;
#else
            dnnl_matmul_desc_t d;
            if (dnnl_matmul_desc_init(&d, &e->md[0], &e->md[1], g->bias ? &e->md[3] : NULL,
                                      &e->md[2]) != dnnl_success ||
                dnnl_primitive_desc_create(&pd, &d, attr, s->engine, NULL) != dnnl_success)
                pd = NULL;
#endif
        }
        finish_entry(s, e, &key, pd);
        if (attr) dnnl_primitive_attr_destroy(attr);
        omp_set_num_threads(host);
    }
    e->stamp = ++s->clock;
    if (e->scratch > *bytes) *bytes = e->scratch;
    return e->primitive != NULL;
}

int lksi_onednn_bf16(lksi_cpu *cpu)
{
#if defined __x86_64__
    if (!__builtin_cpu_supports("avx512bf16") || strcmp(cpu->isa, "avx512") != 0) return 0;
    state *s = state_of(cpu);
    if (!s) return 0;
    if (s->bfloat16 < 0) {
        int64_t bytes = 0;
        lksi_gemm g = {.m = 64, .n = 64, .k = 64, .a_dtype = LKS_BF16, .b_dtype = LKS_BF16, .c_dtype = LKS_F32,
                       .a_rs = 64, .a_cs = 1, .b_rs = 64, .b_cs = 1, .c_rs = 64, .c_cs = 1};
        s->bfloat16 = prepare_product(s, &g, &bytes);
    }
    return s->bfloat16;
#else
    (void)cpu;
    return 0;
#endif
}

int lksi_onednn_prepare(lksi_cpu *cpu, const lksi_gemm *g, int64_t rows, int64_t columns, int64_t *bytes)
{
    state *s = state_of(cpu);
    if (!s || g->add || g->scaled || g->k == 0 || g->c_cs != 1 || type_of(g->a_dtype) == dnnl_data_type_undef ||
        type_of(g->b_dtype) == dnnl_data_type_undef || type_of(g->c_dtype) == dnnl_data_type_undef)
        return 0;
    if (g->bias && (g->bias_rs != 0 || g->bias_cs != 1 || type_of(g->bias_dtype) == dnnl_data_type_undef)) return 0;
    /* rows or columns side by side and not overlapping */
    if (!((g->a_cs == 1 && g->a_rs >= g->k) || (g->a_rs == 1 && g->a_cs >= g->m))) return 0;
    if (!((g->b_cs == 1 && g->b_rs >= g->n) || (g->b_rs == 1 && g->b_cs >= g->k)) || g->c_rs < g->n) return 0;
    lksi_gemm piece = *g;
    *bytes = 0;
    for (int i = 0; i < 4; i++) {
        piece.m = i & 1 ? g->m % rows : g->m < rows ? g->m : rows;
        piece.n = i & 2 ? g->n % columns : g->n < columns ? g->n : columns;
        if (piece.m > 0 && piece.n > 0 && !prepare_product(s, &piece, bytes)) return 0;
    }
    *bytes += 64;
    return 1;
}

int lksi_onednn_run(lksi_cpu *cpu, const lksi_gemm *g, void *memory)
{
    state *s = cpu->state[LKSI_STATE_ONEDNN].p;
    shape key = product_shape(g);
    entry *e = find(s, &key);
    if (!is_hit(e, &key) || !e->primitive) return 0;
    const operand given[4] = {{DNNL_ARG_SRC, 0, g->a}, {DNNL_ARG_WEIGHTS, 1, g->b}, {DNNL_ARG_DST, 2, g->c},
                              {DNNL_ARG_BIAS, 3, g->bias}};
    return execute(s, e, given, g->bias ? 4 : 3, memory);
}

#else /* without oneDNN */

int lksi_onednn_bf16(lksi_cpu *cpu)
{
    (void)cpu;
    return 0;
}

int lksi_onednn_prepare(lksi_cpu *cpu, const lksi_gemm *g, int64_t rows, int64_t columns, int64_t *bytes)
{
    (void)cpu, (void)g, (void)rows, (void)columns, (void)bytes;
    return 0;
}

int lksi_onednn_run(lksi_cpu *cpu, const lksi_gemm *g, void *memory)
{
    (void)cpu, (void)g, (void)memory;
    return 0;
}

#endif
