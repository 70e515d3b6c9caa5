/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu.c - the CPU backend: choice of instruction set and thread count, memory on huge pages, copies, the launch. Every
 * stream is the calling thread, so all is done when a call returns and events are nothing. Not here: kernels, workers.
 */
#define _GNU_SOURCE
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "cpu/infra.h"
#include "device/plugin.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined __x86_64__ || defined __i386__
#include <cpuid.h>
#endif

#define HUGE (2 << 20)
#define WHOLE_PAGES (8 << 20) /* from here a block is whole huge pages */
#define COPY_GRAIN (512 << 10)
#define MAX_THREADS 1024

extern const lksi_cpu_kernel lksi_cpu_table_base[LKSI_OP_COUNT];
#ifdef HAVE_ISA_AVX2
extern const lksi_cpu_kernel lksi_cpu_table_avx2[LKSI_OP_COUNT];
#endif
#ifdef HAVE_ISA_AVX512
extern const lksi_cpu_kernel lksi_cpu_table_avx512[LKSI_OP_COUNT];
#endif

static int64_t mapped_bytes(int64_t bytes)
{
    int64_t page = bytes >= WHOLE_PAGES ? HUGE : 4096;
    return (bytes + page - 1) / page * page;
}

void *lksi_cpu_memory(int64_t bytes)
{
    if (bytes < HUGE) {
        void *p;
        return posix_memalign(&p, 64, bytes > 0 ? (size_t)bytes : 64) ? NULL : p;
    }
    size_t size = (size_t)mapped_bytes(bytes), room = size + HUGE;
    char *map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    char *p = (char *)(((uintptr_t)map + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    if (p > map) munmap(map, (size_t)(p - map));
    size_t tail = (size_t)(map + room - (p + size));
    if (tail) munmap(p + size, tail);
    madvise(p, size, MADV_HUGEPAGE); /* a wish */
    return p;
}

void lksi_cpu_memory_free(void *p, int64_t bytes)
{
    if (bytes < HUGE) free(p);
    else munmap(p, (size_t)mapped_bytes(bytes));
}

/* The instruction sets compiled in, best first. */
struct isa { const char *name; const lksi_cpu_kernel *table; int usable; };

#if defined HAVE_ISA_AVX512 || defined HAVE_ISA_AVX2
/* Not every compiler's __builtin_cpu_supports knows f16c. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
#endif

static int list_isas(struct isa *isa)
{
    int n = 0;
#ifdef HAVE_ISA_AVX512
    isa[n++] = (struct isa){"avx512", lksi_cpu_table_avx512,
                            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                                __builtin_cpu_supports("fma") && has_f16c()};
#endif
#ifdef HAVE_ISA_AVX2
    isa[n++] = (struct isa){"avx2", lksi_cpu_table_avx2,
                            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                has_f16c()};
#endif
    isa[n++] = (struct isa){"base", lksi_cpu_table_base, 1};
    return n;
}

static lks_status choose_isa(lksi_cpu *cpu)
{
    struct isa isa[3];
    int n = list_isas(isa);
    const char *forced = getenv("LKS_ISA");
    for (int i = 0; i < n; i++) {
        if (forced && *forced && strcmp(forced, isa[i].name)) continue;
        if (isa[i].usable) {
            cpu->isa = isa[i].name, cpu->table = isa[i].table;
            return LKS_OK;
        }
        if (forced && *forced)
            return lksi_fail(cpu->base, LKS_ERR_DEVICE, "cpu", "LKS_ISA=%s: this processor does not have it", forced);
    }
    char names[64] = "";
    for (int i = n - 1; i >= 0; i--)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "", isa[i].name);
    return lksi_fail(cpu->base, LKS_ERR_DEVICE, "cpu", "LKS_ISA=%s is not one of those built in: %s", forced, names);
}

static int cores_allowed(void)
{
    int cores = 0;
    for (int n = 1024; n <= 1 << 18 && cores == 0; n *= 4) { /* the kernel's set may be wider than 1024 */
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set) break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(n), set) == 0) cores = CPU_COUNT_S(CPU_ALLOC_SIZE(n), set);
        else if (errno != EINVAL) n = 1 << 18;
        CPU_FREE(set);
    }
    if (cores == 0) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? cores : 1;
}

static int choose_threads(const lksi_device_options *o, int cores, int local)
{
    const char *omp = getenv("OMP_NUM_THREADS");
    long n = o && o->threads > 0 ? o->threads : 0;
    if (n == 0 && omp) {
        char *end;
        n = strtol(omp, &end, 10); /* a list "4,2" is one number per level */
        if (end == omp || (*end && *end != ',' && *end != ' ') || n < 1) n = 0;
    }
    if (n == 0) n = cores / local;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

static void describe(lksi_cpu *cpu)
{
    char model[64] = "";
#if defined __x86_64__ || defined __i386__
    unsigned r[12], max = __get_cpuid_max(0x80000000, NULL);
    if (max >= 0x80000004) {
        for (unsigned i = 0; i < 3; i++) __cpuid(0x80000002 + i, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
        memcpy(model, r, 48);
    }
#elif defined __aarch64__
    strcpy(model, "AArch64 processor");
#endif
    char *from = model + strspn(model, " ");
    for (size_t n = strlen(from); n > 0 && from[n - 1] == ' ';) from[--n] = 0;
    snprintf(cpu->text, sizeof cpu->text, "%s, %s kernels, %d thread%s", *from ? from : "CPU", cpu->isa, cpu->threads,
             cpu->threads == 1 ? "" : "s");
}

lks_status lksi_cpu_open(lksi_base *b, const lksi_device_options *o, lksi_cpu **out)
{
    *out = NULL;
    lksi_cpu *cpu = lksi_alloc(b, sizeof *cpu);
    if (!cpu) return LKS_ERR_MEMORY;
    int local = o && o->local_size > 0 ? o->local_size : 1, cores = cores_allowed();
    cpu->base = b;
    cpu->threads = choose_threads(o, cores, local);
    cpu->module = o ? o->module : NULL;
    lks_status code = choose_isa(cpu);
    if (code == LKS_OK) {
        describe(cpu);
        int64_t blocks = (cpu->threads + 1) * LKSI_SCRATCH_SLOTS;
        cpu->scratch = lksi_alloc(b, blocks * (int64_t)sizeof *cpu->scratch);
        if (!cpu->scratch) code = LKS_ERR_MEMORY;
    }
    /* A rank that is bound to cores is taken to have them for itself. */
    int64_t sharing = cores >= (int)sysconf(_SC_NPROCESSORS_ONLN) ? local : 1;
    if (code == LKS_OK) code = lksi_team_open(cpu, cpu->threads * sharing > cores);
    if (code != LKS_OK) {
        lksi_cpu_close(cpu);
        return code;
    }
    *out = cpu;
    return LKS_OK;
}

void lksi_cpu_close(lksi_cpu *cpu)
{
    if (!cpu) return;
    for (int i = 0; i < LKSI_STATES; i++)
        if (cpu->state[i].p && cpu->state[i].destroy) cpu->state[i].destroy(cpu->state[i].p);
    lksi_team_close(cpu);
    for (int i = 0; cpu->scratch && i < (cpu->threads + 1) * LKSI_SCRATCH_SLOTS; i++)
        if (cpu->scratch[i].p) lksi_cpu_memory_free(cpu->scratch[i].p, cpu->scratch[i].bytes);
    lksi_free(cpu->base, cpu->scratch);
    lksi_free(cpu->base, cpu);
}

const void *lksi_cpu_module(lksi_cpu *cpu, const char *name, char *why)
{
    char path[LKSI_TEXT], text[LKSI_TEXT] = "nothing here loads modules";
    const lksi_plugin *p = cpu->module ? cpu->module(name, path, text) : NULL;
    snprintf(why, LKSI_WHY, "%.*s", LKSI_WHY - 1, text);
    return p ? p->service : NULL;
}

void **lksi_cpu_state(lksi_cpu *cpu, int slot, void (*destroy)(void *state))
{
    cpu->state[slot].destroy = destroy;
    return &cpu->state[slot].p;
}

const char *lksi_cpu_isa(const lksi_cpu *cpu)
{
    return cpu->isa;
}

/* The backend's entries; self is the lksi_cpu. */

static lks_status be_open(lksi_base *b, const lksi_device_options *o, void **self)
{
    lksi_cpu *cpu;
    lks_status code = lksi_cpu_open(b, o, &cpu);
    *self = cpu;
    return code;
}

static void be_close(void *self)
{
    lksi_cpu_close(self);
}

static const char *be_describe(void *self)
{
    return ((lksi_cpu *)self)->text;
}

static int be_threads(void *self)
{
    return ((lksi_cpu *)self)->threads;
}

static lks_status be_alloc(void *self, int64_t bytes, void **p)
{
    (void)self;
    *p = lksi_cpu_memory(bytes);
    return *p ? LKS_OK : LKS_ERR_MEMORY;
}

static void be_free(void *self, void *p, int64_t bytes)
{
    (void)self;
    if (p) lksi_cpu_memory_free(p, bytes);
}

struct copy { char *dst; const char *src; int byte; };

static void copy_range(void *arg, int64_t begin, int64_t end, int worker)
{
    struct copy *c = arg;
    (void)worker;
    if (c->src) memcpy(c->dst + begin, c->src + begin, (size_t)(end - begin));
    else memset(c->dst + begin, c->byte, (size_t)(end - begin));
}

static lks_status be_upload(void *self, int stream, void *dst, const void *src, int64_t bytes)
{
    struct copy c = {dst, src, 0};
    (void)stream;
    if (bytes > 0) lksi_parallel(self, bytes, COPY_GRAIN, copy_range, &c);
    return LKS_OK;
}

static lks_status be_fill(void *self, int stream, void *dst, int byte, int64_t bytes)
{
    struct copy c = {dst, NULL, byte};
    (void)stream;
    if (bytes > 0) lksi_parallel(self, bytes, COPY_GRAIN, copy_range, &c);
    return LKS_OK;
}

static lks_status be_event_create(void *self, lksi_event **e)
{
    *e = self; /* some address: nothing is kept in it */
    return LKS_OK;
}

static void be_event_destroy(void *self, lksi_event *e)
{
    (void)self, (void)e;
}

static lks_status be_event_record(void *self, lksi_event *e, int stream)
{
    (void)self, (void)e, (void)stream;
    return LKS_OK;
}

static lks_status be_stream_wait(void *self, int stream, lksi_event *e)
{
    (void)self, (void)e, (void)stream;
    return LKS_OK;
}

static int be_event_done(void *self, lksi_event *e)
{
    (void)self, (void)e;
    return 1;
}

static lks_status be_event_wait(void *self, lksi_event *e)
{
    (void)self, (void)e;
    return LKS_OK;
}

static void *be_host_view(void *self, void *p)
{
    (void)self;
    return p;
}

static int be_has(void *self, int op)
{
    return op >= 0 && op < LKSI_OP_COUNT && ((lksi_cpu *)self)->table[op] != NULL;
}

static lks_status be_launch(void *self, int stream, const lksi_args *a)
{
    lksi_cpu *cpu = self;
    (void)stream;
    lksi_cpu_kernel kernel = cpu->table[a->op];
    if (__builtin_expect(!kernel, 0)) return lksi_why(a, LKS_ERR_UNSUPPORTED, "there is no kernel for it");
    return kernel(cpu, a);
}

static const char *be_failure(void *self)
{
    (void)self;
    return "";
}

const lksi_backend lksi_backend_cpu = {
    .abi = LKSI_ABI,
    .size = sizeof(lksi_backend),
    .name = "cpu",
    .open = be_open,
    .close = be_close,
    .describe = be_describe,
    .threads = be_threads,
    .alloc = be_alloc,
    .free = be_free,
    .host_alloc = be_alloc,
    .host_free = be_free,
    .upload = be_upload,
    .download = be_upload,
    .copy = be_upload,
    .fill = be_fill,
    .event_create = be_event_create,
    .event_destroy = be_event_destroy,
    .event_record = be_event_record,
    .stream_wait = be_stream_wait,
    .event_done = be_event_done,
    .event_wait = be_event_wait,
    .host_view = be_host_view,
    .has = be_has,
    .launch = be_launch,
    .failure = be_failure,
};
