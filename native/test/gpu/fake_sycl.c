/* A function here notes its call, checks its arguments, and does on a stream of the fake GPU what dpctl does on a
 * queue. One that returns an object returns NULL where it fails; the others cannot fail, as in dpctl. FAKE_SKIP is as
 * in fake_calls.h: no wait, no copy, an event that is reached at once.
 */
#include "test/gpu/fake_sycl.h"

#include <stdlib.h>
#include <string.h>

#include "test/gpu/fake_access.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_event.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/fake_stream.h"

/* Notes a call, as each function does first. Returns 0, FAKE_SKIP or the code of a failure. */
static int sycl_note(fake_function function, uint64_t bytes) {
    int code = fake_call(function, bytes);
    fake_access_release();
    return code;
}

static fake_stream *stream_of(const char *function, sycl_queue queue) {
    fake_stream *stream = fake_stream_find(queue);
    if (!stream) fake_complain("%s was given %p, which is no queue", function, queue);
    return stream;
}

size_t DPCTLDeviceMgr_GetNumDevices(int kinds) {
    int code = sycl_note(FAKE_DPCTLDeviceMgr_GetNumDevices, 0);
    if (kinds != (SYCL_GPU | SYCL_LEVEL_ZERO)) fake_complain("devices of kinds %d were counted", kinds);
    return code == 0 ? (size_t)fake_devices() : 0;
}

/* Returns a new object that stands for a device, or for its context; NULL on failure. */
static int *device_object_make(const char *function, int code, sycl_queue queue) {
    const fake_stream *stream = code == 0 || code == FAKE_SKIP ? stream_of(function, queue) : NULL;
    int *made = stream ? malloc(sizeof *made) : NULL;
    if (made) *made = fake_stream_device(stream);
    return made;
}

sycl_device DPCTLQueue_GetDevice(sycl_queue queue) {
    return device_object_make("DPCTLQueue_GetDevice", sycl_note(FAKE_DPCTLQueue_GetDevice, 0), queue);
}

sycl_context DPCTLQueue_GetContext(sycl_queue queue) {
    return device_object_make("DPCTLQueue_GetContext", sycl_note(FAKE_DPCTLQueue_GetContext, 0), queue);
}

size_t DPCTLDevice_Hash(sycl_device device) {
    (void)sycl_note(FAKE_DPCTLDevice_Hash, 0);
    return (size_t)*(int *)device;
}

size_t DPCTLContext_Hash(sycl_context context) {
    (void)sycl_note(FAKE_DPCTLContext_Hash, 0);
    (void)context;
    return 7; /* all devices are of one context, as in XLA */
}

void DPCTLDevice_Delete(sycl_device device) {
    (void)sycl_note(FAKE_DPCTLDevice_Delete, 0);
    free(device);
}

void DPCTLContext_Delete(sycl_context context) {
    (void)sycl_note(FAKE_DPCTLContext_Delete, 0);
    free(context);
}

sycl_memory DPCTLmalloc_host(size_t bytes, sycl_queue queue) {
    int code = sycl_note(FAKE_DPCTLmalloc_host, bytes);
    return code == 0 && stream_of("DPCTLmalloc_host", queue) ? fake_pinned_alloc(bytes) : NULL;
}

sycl_memory DPCTLmalloc_device(size_t bytes, sycl_queue queue) {
    int code = sycl_note(FAKE_DPCTLmalloc_device, bytes);
    return code == 0 && stream_of("DPCTLmalloc_device", queue) ? fake_memory_alloc(bytes) : NULL;
}

void DPCTLfree_with_queue(sycl_memory memory, sycl_queue queue) {
    (void)sycl_note(FAKE_DPCTLfree_with_queue, 0);
    if (!stream_of("DPCTLfree_with_queue", queue)) return;
    if (fake_pinned_free(memory) != 0 && fake_memory_free(memory) != 0)
        fake_complain("DPCTLfree_with_queue was given %p, which is not the start of live memory", memory);
}

/* Returns a new event that is reached when the stream has done what it has to do now; NULL if there is no memory. With
 * FAKE_SKIP it is reached at once. */
static sycl_event event_make(fake_stream *stream, int code) {
    driver_event event = NULL;
    if (fake_event_create(&event, fake_stream_device(stream)) != 0) return NULL;
    if (code != FAKE_SKIP) (void)fake_event_record(event, stream);
    return event;
}

/* Gives a queue work, and returns its event; NULL on failure, with a complaint if the work is wrong. */
static sycl_event work_add(const char *function, int code, sycl_queue queue, const fake_work *work) {
    char text[256];
    fake_stream *stream = code == 0 || code == FAKE_SKIP ? stream_of(function, queue) : NULL;
    if (!stream) return NULL;
    if (code == 0 && fake_work_is_wrong(work, text, sizeof text)) {
        fake_complain("%s: %s", function, text);
        return NULL;
    }
    return code == 0 && fake_stream_add(stream, work) != 0 ? NULL : event_make(stream, code);
}

sycl_event DPCTLQueue_Memcpy(sycl_queue queue, void *to, const void *from, size_t bytes) {
    const fake_work work = {.to = to, .from = from, .width = bytes, .height = 1};
    return work_add("DPCTLQueue_Memcpy", sycl_note(FAKE_DPCTLQueue_Memcpy, bytes), queue, &work);
}

sycl_event DPCTLQueue_Memset(sycl_queue queue, void *memory, uint8_t value, size_t bytes) {
    const fake_work work = {.to = memory, .is_fill = 1, .value = value, .width = bytes, .height = 1};
    return work_add("DPCTLQueue_Memset", sycl_note(FAKE_DPCTLQueue_Memset, bytes), queue, &work);
}

sycl_event DPCTLQueue_SubmitBarrier(sycl_queue queue) {
    int code = sycl_note(FAKE_DPCTLQueue_SubmitBarrier, 0);
    fake_stream *stream = code == 0 || code == FAKE_SKIP ? stream_of("DPCTLQueue_SubmitBarrier", queue) : NULL;
    return stream ? event_make(stream, code) : NULL;
}

void DPCTLQueue_Wait(sycl_queue queue) {
    int code = sycl_note(FAKE_DPCTLQueue_Wait, 0);
    fake_stream *stream = stream_of("DPCTLQueue_Wait", queue);
    if (!stream || code == FAKE_SKIP) return;
    code = fake_stream_run(stream, fake_stream_added(stream));
    if (code != 0) fake_complain("DPCTLQueue_Wait: the queue's work failed with code %d", code);
}

sycl_status DPCTLEvent_GetCommandExecutionStatus(sycl_event event) {
    enum { SUBMITTED = 1 };
    int code = sycl_note(FAKE_DPCTLEvent_GetCommandExecutionStatus, 0);
    if (code == 0) code = fake_event_query(event);
    return code == 0 || code == FAKE_SKIP ? SYCL_COMPLETE : code == FAKE_NOT_READY ? SUBMITTED : 0;
}

void DPCTLEvent_Wait(sycl_event event) {
    int code = sycl_note(FAKE_DPCTLEvent_Wait, 0);
    if (code != FAKE_SKIP && fake_event_synchronize(event) != 0)
        fake_complain("DPCTLEvent_Wait was given no event, or its work failed");
}

void DPCTLEvent_Delete(sycl_event event) {
    (void)sycl_note(FAKE_DPCTLEvent_Delete, 0);
    if (fake_event_destroy(event) != 0) fake_complain("DPCTLEvent_Delete was given no event");
}
