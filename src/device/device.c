/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.c - the layer over a backend: opening, copies, waits that are counted, launches whose failures get a name. Not
 * here: the pool (pool.c), and anything that knows what a device is made of.
 */
#include "device/device.h"
#include "device/pool.h"
#include <inttypes.h>
#include <stdio.h>

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
    lks_status code = d->be->upload(d->self, LKSI_STREAM_COMPUTE, dst, host, bytes);
    if (code != LKS_OK) return failed(d, code, "copy to the device");
    if (bytes <= SMALL_UPLOAD) return LKS_OK;
    return wait_copy(d);
}

lks_status lksi_device_copy(lksi_device *d, void *dst, const void *src, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    lks_status code = d->be->copy(d->self, LKSI_STREAM_COMPUTE, dst, src, bytes);
    return code == LKS_OK ? code : failed(d, code, "copy on the device");
}

lks_status lksi_device_zero(lksi_device *d, void *dst, int64_t bytes)
{
    if (bytes == 0) return LKS_OK;
    lks_status code = d->be->fill(d->self, LKSI_STREAM_COMPUTE, dst, 0, bytes);
    return code == LKS_OK ? code : failed(d, code, "fill on the device");
}

lks_status lksi_device_launch(lksi_device *d, lksi_args *a)
{
    if (!a->why) a->why = ((struct device *)d)->why;
    a->why[0] = 0;
    d->launches++;
    lks_status code = d->be->launch(d->self, LKSI_STREAM_COMPUTE, a);
    if (__builtin_expect(code == LKS_OK, 1)) return LKS_OK;
    const char *why = a->why[0] ? a->why : lks_status_text(code);
    if (code == LKS_ERR_MEMORY)
        return lksi_fail(d->base, code, lksi_rows[a->op].name,
                         "%s: %" PRId64 " bytes in use (peak %" PRId64 "), %" PRId64 " held", why, d->used, d->peak,
                         d->held);
    return lksi_fail(d->base, code, lksi_rows[a->op].name, "%s", why);
}
