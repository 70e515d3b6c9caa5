/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.c - the layer over a backend: opening, copies, waits that are counted, launches whose failures get a name. Not
 * here: the pool (pool.c), and anything that knows what a device is made of.
 */
#include "device/device.h"
#include "device/pool.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SMALL_UPLOAD 4096 /* a backend copies these at once */

/* What is private to this layer, behind the public part. */
struct device {
    lksi_device d;
    lksi_event *event; /* for host-blocking copies */
    char why[LKSI_WHY];
};

static lks_status failed(lksi_device *d, lks_status code, const char *what)
{
    const char *text = d->be->failure ? d->be->failure(d->self) : "";
    return lksi_fail(d->base, code, what, "%s: %s", d->be->name, text && *text ? text : lks_status_text(code));
}

lks_status lksi_device_open(lksi_base *b, const lksi_backend *be, const lksi_device_options *o, lksi_device **out)
{
    *out = NULL;
    if (be->abi != LKSI_ABI || be->size != (int)sizeof *be)
        return lksi_fail(b, LKS_ERR_DEVICE, "device", "this backend was built for another version of Lockstep");
    struct device *s = lksi_alloc(b, sizeof *s);
    if (!s) return LKS_ERR_MEMORY;
    lksi_device *d = &s->d;
    d->be = be, d->base = b;
    lks_status code = be->open(b, o, &d->self);
    if (code != LKS_OK) {
        lksi_fail(b, code, "device", "%s cannot be opened: %s", be->name, lks_status_text(code));
        lksi_free(b, s);
        return code;
    }
    code = lksi_pool_open(d);
    if (code == LKS_OK && (code = be->event_create(d->self, &s->event)) != LKS_OK) failed(d, code, "device");
    if (code != LKS_OK) {
        lksi_device_close(d);
        return code;
    }
    *out = d;
    return LKS_OK;
}

void lksi_device_close(lksi_device *d)
{
    struct device *s = (struct device *)d;
    if (!d) return;
    if (s->event) d->be->event_destroy(d->self, s->event);
    lksi_pool_close(d);
    d->be->close(d->self);
    lksi_free(d->base, s);
}

/* --- traces --- */

lks_status lksi_trace_begin(lksi_device *d, lksi_trace *t, lksi_heap *heap)
{
    *t = (lksi_trace){.hash = 1, .heap = heap, .used = d->used, .peak = d->peak, .drops = d->drops};
    t->outside = lksi_pool_ranges(d, &t->ranges);
    if (!t->outside) return LKS_ERR_MEMORY;
    d->peak = d->used;
    d->trace = t;
    lksi_pool_enter(d, heap);
    return LKS_OK;
}

void lksi_trace_end(lksi_device *d)
{
    lksi_trace *t = d->trace;
    lksi_pool_enter(d, NULL);
    d->trace = NULL;
    t->high = d->peak - t->used;
    if (d->peak < t->peak) d->peak = t->peak;
    lksi_free(d->base, t->outside);
    t->outside = NULL;
    t->ranges = 0;
}

void lksi_trace_once(lksi_device *d, const char *why)
{
    if (d->trace && !d->trace->once) d->trace->once = why;
}

lks_status lksi_trace_cut(lksi_device *d, const char *why)
{
    lksi_trace_once(d, why);
    if (!d->trace || !d->trace->capturing) return LKS_OK;
    d->trace->capturing = 0;
    lks_status code = d->be->graph_end(d->self);
    return code == LKS_OK ? code : failed(d, code, "the graph of a step");
}

void lksi_trace_number(lksi_device *d, int64_t x)
{
    if (!d->trace) return;
    uint64_t h = (d->trace->hash ^ (uint64_t)x) * 0x9E3779B97F4A7C15u;
    d->trace->hash = h ^ h >> 29;
}

/* The range that holds p, or NULL. */
static lksi_range *range_of(const lksi_trace *t, const char *p)
{
    int64_t low = 0, high = t->ranges;
    while (low < high) { /* the first that begins behind p */
        int64_t mid = (low + high) / 2;
        if (t->outside[mid].addr > p) high = mid;
        else low = mid + 1;
    }
    lksi_range *r = low ? &t->outside[low - 1] : NULL;
    return r && p < r->addr + r->bytes ? r : NULL;
}

void lksi_trace_address(lksi_device *d, const void *p)
{
    lksi_trace *t = d->trace;
    if (!t) return;
    lksi_range *r = range_of(t, p);
    if (r && !r->gone) lksi_pool_mark(r);
    else if (!p || lksi_pool_inside(d, t->heap, p)) p = NULL; /* made in the step */
    lksi_trace_number(d, (int64_t)(intptr_t)p);
}

void lksi_trace_freed(lksi_device *d, const char *addr)
{
    lksi_range *r = range_of(d->trace, addr);
    if (r) r->gone = 1;
}

static void trace_bytes(lksi_device *d, const void *p, int64_t bytes)
{
    const char *from = p;
    for (int64_t at = 0, x = 0; at < bytes; at += 8, x = 0) {
        memcpy(&x, from + at, (size_t)(bytes - at < 8 ? bytes - at : 8));
        lksi_trace_number(d, x);
    }
}

/* host: what is written, if it travels with the call. */
static void trace_copy(lksi_device *d, int what, const void *dst, const void *host, int64_t bytes)
{
    lksi_trace_number(d, what);
    lksi_trace_number(d, bytes);
    lksi_trace_address(d, dst);
    if (host && bytes <= SMALL_UPLOAD) trace_bytes(d, host, bytes);
}

static void trace_launch(lksi_device *d, const lksi_args *a)
{
    lksi_trace_number(d, a->op);
    lksi_trace_number(d, a->nin);
    for (int i = 0; i < a->nin + a->nout; i++) {
        const lksi_view *v = i < a->nin ? &a->in[i] : &a->out[i - a->nin];
        lksi_trace_number(d, v->ndim * 64 + v->dtype);
        if (v->ndim < 0) continue;
        trace_bytes(d, v->shape, v->ndim * (int64_t)sizeof *v->shape);
        trace_bytes(d, v->stride, v->ndim * (int64_t)sizeof *v->stride);
        lksi_trace_address(d, v->data);
    }
    trace_bytes(d, &a->attr, sizeof a->attr);
}

/* Waits for e; meanwhile whoever stands behind d->idle is asked whether it makes sense. */
static lks_status wait_event(lksi_device *d, lksi_event *e)
{
    const lksi_backend *be = d->be;
    lks_status code;
    if (!d->idle || !be->event_wait_for) {
        code = be->event_wait(d->self, e);
    } else {
        double start = lksi_now(), rest = 0.0002;
        int done;
        while ((done = be->event_wait_for(d->self, e, rest)) == 0) {
            if ((code = d->idle(d->idle_user, lksi_now() - start)) != LKS_OK) return code;
            if (rest < 0.005) rest *= 2;
        }
        code = done < 0 ? done : LKS_OK;
    }
    return code == LKS_OK ? code : failed(d, code, "wait for the device");
}

lks_status lksi_device_event_wait(lksi_device *d, lksi_event *e)
{
    lksi_trace_once(d, "it waits for the device");
    d->waits++;
    return wait_event(d, e);
}

/* Waits for all that was queued on stream before. */
static lks_status wait_stream(lksi_device *d, int stream)
{
    lksi_event *e = ((struct device *)d)->event;
    lks_status code = d->be->event_record(d->self, e, stream);
    return code == LKS_OK ? wait_event(d, e) : failed(d, code, "wait for the device");
}

lks_status lksi_device_synchronize(lksi_device *d)
{
    lks_status first = LKS_OK;
    lksi_trace_once(d, "it waits for the device");
    d->waits++;
    for (int i = 0; i < LKSI_STREAMS; i++) {
        lks_status code = wait_stream(d, i);
        if (first == LKS_OK) first = code;
    }
    return first;
}

/* After a host-blocking copy was queued: the host's memory is the device's until it is done, so that a wait that could
 * not be made is made again before the caller may free it. */
static lks_status wait_copy(lksi_device *d)
{
    lksi_trace_once(d, "it waits for a copy between host and device");
    d->waits++;
    lks_status code = wait_stream(d, LKSI_STREAM_COMPUTE);
    if (code != LKS_OK) wait_stream(d, LKSI_STREAM_COMPUTE);
    return code;
}

lks_status lksi_device_read(lksi_device *d, void *host, const void *src, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    lks_status code = d->be->download(d->self, LKSI_STREAM_COMPUTE, host, src, bytes);
    if (code != LKS_OK) return failed(d, code, "copy from the device");
    return wait_copy(d);
}

lks_status lksi_device_write(lksi_device *d, void *dst, const void *host, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    if (__builtin_expect(d->trace != NULL, 0)) trace_copy(d, -1, dst, host, bytes);
    lks_status code = d->be->upload(d->self, LKSI_STREAM_COMPUTE, dst, host, bytes);
    if (code != LKS_OK) return failed(d, code, "copy to the device");
    if (bytes <= SMALL_UPLOAD) return LKS_OK;
    return wait_copy(d);
}

lks_status lksi_device_copy(lksi_device *d, void *dst, const void *src, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    if (__builtin_expect(d->trace != NULL, 0)) {
        trace_copy(d, -2, dst, NULL, bytes);
        lksi_trace_address(d, src);
    }
    lks_status code = d->be->copy(d->self, LKSI_STREAM_COMPUTE, dst, src, bytes);
    return code == LKS_OK ? code : failed(d, code, "copy on the device");
}

lks_status lksi_device_zero(lksi_device *d, void *dst, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    if (__builtin_expect(d->trace != NULL, 0)) trace_copy(d, -3, dst, NULL, bytes);
    lks_status code = d->be->fill(d->self, LKSI_STREAM_COMPUTE, dst, 0, bytes);
    return code == LKS_OK ? code : failed(d, code, "fill on the device");
}

lks_status lksi_device_launch(lksi_device *d, lksi_args *a)
{
    if (!a->why) a->why = ((struct device *)d)->why;
    a->why[0] = 0;
    d->launches++;
    if (__builtin_expect(d->trace != NULL, 0)) trace_launch(d, a);
    lks_status code = d->be->launch(d->self, LKSI_STREAM_COMPUTE, a);
    if (__builtin_expect(code == LKS_OK, 1)) return LKS_OK;
    const char *why = a->why[0] ? a->why : lks_status_text(code);
    if (code == LKS_ERR_MEMORY)
        return lksi_fail(d->base, code, lksi_rows[a->op].name,
                         "%s: %" PRId64 " bytes in use (peak %" PRId64 "), %" PRId64 " held", why, d->used, d->peak,
                         d->held);
    return lksi_fail(d->base, code, lksi_rows[a->op].name, "%s", why);
}
