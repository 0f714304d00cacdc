/* The fake driver: what it refuses, and what it does when it is told. That it does what it is to do, and late, is seen
 * where the library uses it: test_gpu_device.c has what copies give, and test_gpu_overlap.c what is too early. */
#include <stdlib.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_event.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"
#include "test/run.h"

enum { BYTES = 64 };

static fake_stream *stream;
static char *pinned, *device;

static unsigned char *engine(void) {
    return fake_memory_engine(device);
}

static void nothing_works_before_init(void) {
    int count = 0;
    CHECK_REFUSED(cuDeviceGetCount(&count), FAKE_NOT_INITIALIZED, "before cuInit");
    CHECK_INT(cuInit(1), FAKE_INVALID_VALUE);
    CHECK_INT(cuInit(0), FAKE_SUCCESS);
    CHECK_INT(cuDeviceGetCount(&count), FAKE_SUCCESS);
    CHECK_INT(count, 2);
}

static void devices_differ(void) {
    driver_uuid one, other;
    CHECK_INT(cuDeviceGetUuid_v2(&one, 0), FAKE_SUCCESS);
    CHECK_INT(cuDeviceGetUuid_v2(&other, 1), FAKE_SUCCESS);
    CHECK(memcmp(&one, &other, sizeof one) != 0);
    CHECK_INT(cuDeviceGetUuid_v2(&other, 2), FAKE_INVALID_DEVICE);
}

static void a_context_must_be_current(void) {
    driver_context context, popped;
    void *memory;
    int device_;
    CHECK_REFUSED(cuMemHostAlloc(&memory, BYTES, 0), FAKE_INVALID_CONTEXT, "no current context");
    CHECK_REFUSED(cuMemAlloc_v2(&memory, BYTES), FAKE_INVALID_CONTEXT, "no current context");
    CHECK_REFUSED(cuMemcpyHtoDAsync_v2(NULL, NULL, 1, stream), FAKE_INVALID_CONTEXT, "no current context");
    CHECK_REFUSED(cuStreamSynchronize(stream), FAKE_INVALID_CONTEXT, "no current context");
    CHECK_REFUSED(cuCtxGetDevice(&device_), FAKE_INVALID_CONTEXT, "no current context");
    CHECK_REFUSED(cuCtxPopCurrent_v2(&popped), FAKE_INVALID_CONTEXT, "that has none");
    CHECK_INT(cuCtxPushCurrent_v2(&memory), FAKE_INVALID_CONTEXT);
    CHECK_INT(cuStreamGetCtx(stream, &context), FAKE_SUCCESS);
    CHECK_REFUSED(cuStreamGetCtx(&memory, &context), FAKE_INVALID_HANDLE, "no stream");
    CHECK_INT(cuCtxPushCurrent_v2(fake_context_get(1)), FAKE_SUCCESS);
    CHECK_REFUSED(cuStreamSynchronize(stream), FAKE_INVALID_HANDLE, "a context of device 1 is current");
    CHECK_INT(cuCtxPopCurrent_v2(&popped), FAKE_SUCCESS);
    CHECK(popped == fake_context_get(1));
    CHECK_INT(cuCtxPushCurrent_v2(context), FAKE_SUCCESS);
    CHECK_INT(cuCtxGetDevice(&device_), FAKE_SUCCESS);
    CHECK_INT(device_, 0);
}

static void wrong_fills_are_refused(void) {
    CHECK_REFUSED(cuMemsetD2D8Async(device, 8, 3, 9, 3, stream), FAKE_INVALID_VALUE, "target pitch of 8 bytes");
    CHECK_REFUSED(cuMemsetD2D8Async(device, 8, 3, 8, 9, stream), FAKE_INVALID_VALUE, "not within one live allocation");
    CHECK_REFUSED(cuMemsetD2D8Async(pinned, 8, 3, 8, 1, stream), FAKE_INVALID_VALUE, "is not device memory");
}

static void wrong_copies_of_rows_are_refused(void) {
    const driver_copy_2d in = {.from = {.kind = DRIVER_HOST, .host = pinned, .x = 1, .y = 1, .pitch = 4},
                               .to = {.kind = DRIVER_DEVICE, .device = device, .pitch = 8},
                               .width = 2,
                               .height = 3};
    driver_copy_2d bad = in;
    bad.from.pitch = 2;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "source pitch of 2 bytes");
    bad = in;
    bad.to.pitch = (size_t)1 << 31;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "destination pitch");
    bad = in;
    bad.to.y = 6;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "destination of a copy, 18 bytes");
    bad = in;
    bad.from.y = 14;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "not pinned");
    bad = in;
    bad.from.kind = 3;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "memory kind 3");
    bad = in;
    bad.from.host = device;
    CHECK_REFUSED(cuMemcpy2DAsync_v2(&bad, stream), FAKE_INVALID_VALUE, "is device memory, not the host's");
    CHECK(fake_stream_is_idle(stream));
}

static void wrong_memory_is_refused(void) {
    char host[8] = {0};
    CHECK_REFUSED(cuMemcpyHtoDAsync_v2(device, host, 8, stream), FAKE_INVALID_VALUE, "not pinned");
    CHECK_REFUSED(cuMemcpyDtoHAsync_v2(pinned + BYTES - 4, device, 8, stream), FAKE_INVALID_VALUE, "not pinned");
    CHECK_REFUSED(cuMemcpyHtoDAsync_v2(device + BYTES - 4, pinned, 8, stream), FAKE_INVALID_VALUE,
                  "one live allocation");
    CHECK_REFUSED(cuMemcpyHtoDAsync_v2(pinned, pinned, 8, stream), FAKE_INVALID_VALUE, "is not device memory");
    CHECK_REFUSED(cuMemcpyDtoHAsync_v2(device, device, 8, stream), FAKE_INVALID_VALUE,
                  "is device memory, not the host's");
    CHECK_REFUSED(cuMemcpyDtoDAsync_v2(device, pinned, 8, stream), FAKE_INVALID_VALUE, "is not device memory");
    CHECK_REFUSED(cuMemsetD8Async(pinned, 0, 8, stream), FAKE_INVALID_VALUE, "is not device memory");
    CHECK_REFUSED(cuMemFree_v2(device + 1), FAKE_INVALID_VALUE, "not the start of live device memory");
    CHECK_REFUSED(cuMemFreeHost(host), FAKE_INVALID_VALUE, "cuMemHostAlloc did not give");
    CHECK_REFUSED(cuMemcpyHtoDAsync_v2(device, pinned, 8, NULL), FAKE_INVALID_HANDLE, "no stream");
    CHECK(fake_stream_is_idle(stream));
    CHECK_INT(cuMemcpyHtoDAsync_v2(device, pinned, 0, stream), FAKE_SUCCESS);
    CHECK_INT(cuStreamSynchronize(stream), FAKE_SUCCESS);
    CHECK_STR(complaint(), "");
}

static void memory_that_is_freed_too_early_is_seen(void) {
    void *memory, *buffer;
    CHECK_INT(cuMemAlloc_v2(&memory, 8), FAKE_SUCCESS);
    CHECK_INT(cuMemHostAlloc(&buffer, 8, 0), FAKE_SUCCESS);
    CHECK_INT(cuMemcpyHtoDAsync_v2(memory, pinned, 8, stream), FAKE_SUCCESS);
    CHECK_INT(cuMemFree_v2(memory), FAKE_SUCCESS);
    CHECK_REFUSED(cuStreamSynchronize(stream), FAKE_ILLEGAL_ADDRESS, "when the stream came to it, the destination");
    CHECK_INT(cuMemcpyHtoDAsync_v2(device, buffer, 8, stream), FAKE_SUCCESS);
    CHECK_INT(cuMemFreeHost(buffer), FAKE_SUCCESS);
    CHECK_REFUSED(cuStreamSynchronize(stream), FAKE_ILLEGAL_ADDRESS, "not pinned, or no longer");
    CHECK_INT(cuStreamSynchronize(stream), FAKE_SUCCESS);
}

static void events_are_places_in_a_stream(void) {
    driver_event first, second;
    int64_t before = fake_events_live();
    CHECK_INT(cuEventCreate(&first, 0), FAKE_SUCCESS);
    CHECK_INT(cuEventCreate(&second, 0), FAKE_SUCCESS);
    CHECK_INT(cuEventQuery(first), FAKE_SUCCESS); /* never recorded */
    memset(engine(), 0, BYTES);
    CHECK_INT(cuMemsetD8Async(device, 1, 1, stream), FAKE_SUCCESS);
    CHECK_INT(cuEventRecord(first, stream), FAKE_SUCCESS);
    CHECK_INT(cuMemsetD8Async(device + 1, 2, 1, stream), FAKE_SUCCESS);
    CHECK_INT(cuEventRecord(second, stream), FAKE_SUCCESS);
    CHECK_INT(cuEventQuery(first), FAKE_NOT_READY);
    CHECK_INT(cuEventSynchronize(first), FAKE_SUCCESS);
    CHECK_INT(cuEventQuery(first), FAKE_SUCCESS);
    CHECK_INT(engine()[0], 1);
    CHECK_INT(engine()[1], 0);
    CHECK_INT(cuEventQuery(second), FAKE_NOT_READY);
    int asked = 1;
    while (asked < 1000 && cuEventQuery(second) == FAKE_NOT_READY) asked++;
    CHECK_INT(asked, FAKE_EVENT_PATIENCE);
    CHECK_INT(engine()[1], 2);
    CHECK_INT(cuEventDestroy_v2(first), FAKE_SUCCESS);
    CHECK_INT(cuEventDestroy_v2(second), FAKE_SUCCESS);
    CHECK_REFUSED(cuEventQuery(first), FAKE_INVALID_HANDLE, "no event");
    CHECK_REFUSED(cuEventDestroy_v2(second), FAKE_INVALID_HANDLE, "no event");
    CHECK_INT(fake_events_live(), before);
}

static void calls_are_noted(void) {
    fake_noted noted;
    fake_calls_forget();
    cuMemcpyHtoDAsync_v2(device, pinned, 16, stream);
    cuStreamSynchronize(stream);
    CHECK_INT(fake_calls_count(NULL), 2);
    CHECK_INT(fake_calls_count("cuStreamSynchronize"), 1);
    CHECK_INT(fake_calls_count("cuNothing"), -1);
    CHECK_INT(fake_calls_read(0, &noted), 0);
    CHECK_STR(noted.function, "cuMemcpyHtoDAsync_v2");
    CHECK_INT(noted.bytes, 16);
    CHECK_INT(fake_calls_read(1, &noted), 0);
    CHECK_STR(noted.function, "cuStreamSynchronize");
    CHECK_INT(fake_calls_read(2, &noted), -1);
    for (int i = 0; i < FAKE_CALLS_KEPT; i++) fake_call(FAKE_cuInit, 0);
    CHECK_INT(fake_calls_read(1, &noted), -1);
    CHECK_INT(fake_calls_read(2, &noted), 0);
}

static void calls_fail_as_asked(void) {
    const char *text;
    /* From the environment, the second of these. */
    CHECK_INT(cuGetErrorName(700, &text), FAKE_SUCCESS);
    CHECK_STR(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK_INT(cuCtxGetDevice(&(int){0}), FAKE_SUCCESS);
    CHECK_REFUSED(cuCtxGetDevice(&(int){0}), 999, "cuCtxGetDevice failed with code 999, as it was asked to");
    CHECK_INT(cuCtxGetDevice(&(int){0}), FAKE_SUCCESS);

    CHECK_INT(fake_fail("cuMemsetD8Async", 2, 719), 0);
    CHECK_INT(fake_fail("cuNothing", 1, 719), -1);
    CHECK_INT(cuMemsetD8Async(device, 0, 1, stream), FAKE_SUCCESS);
    CHECK_INT(cuMemsetD8Async(device, 0, 1, stream), 719);
    CHECK_INT(cuMemsetD8Async(device, 0, 1, stream), FAKE_SUCCESS);
    CHECK_IN(complaint(), "nobody minded");
    CHECK_INT(fake_fail_may_pass(1), 0);
    CHECK_INT(fake_fail("cuMemsetD8Async", 0, 719), 0);
    CHECK_INT(cuMemsetD8Async(device, 0, 1, stream), 719);
    CHECK_INT(cuMemsetD8Async(device, 0, 1, stream), 719);
    fake_fail_nothing();
    CHECK_INT(fake_fail_may_pass(0), 1);
    CHECK_INT(cuStreamSynchronize(stream), FAKE_SUCCESS);
    CHECK_STR(complaint(), "");
    CHECK_INT(cuGetErrorString(12345, &text), FAKE_INVALID_VALUE);
    CHECK(text == NULL);
}

static void *complain_in_a_thread(void *unused) {
    (void)unused;
    fake_complaints_start();
    fake_complain("mine");
    CHECK_STR(complaint(), "mine");
    fake_complaints_end();
    fake_complain("nobody's");
    return NULL;
}

static void complaints_find_their_thread(void) {
    fake_complaints_start();
    threads_run(1, complain_in_a_thread);
    fake_complain("first");
    fake_complain("second");
    CHECK_STR(complaint(), "first");
    CHECK_STR(complaint(), "nobody's");
    CHECK_STR(complaint(), "");
    fake_complaints_end();
}

int main(void) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    setenv("MPIXLA_FAKE_DEVICE_FAIL", "cuCtxGetDevice:4:999,cuEventCreate:99:1", 1);
    stream = fake_stream_take(0);
    nothing_works_before_init();
    devices_differ();
    a_context_must_be_current();
    void *memory;
    CHECK_INT(cuMemHostAlloc(&memory, BYTES, 0), FAKE_SUCCESS);
    pinned = memory;
    CHECK_INT(cuMemAlloc_v2(&memory, BYTES), FAKE_SUCCESS);
    device = memory;
    CHECK_INT(fake_pinned_bytes(), BYTES);
    wrong_copies_of_rows_are_refused();
    wrong_fills_are_refused();
    wrong_memory_is_refused();
    memory_that_is_freed_too_early_is_seen();
    events_are_places_in_a_stream();
    calls_are_noted();
    calls_fail_as_asked();
    complaints_find_their_thread();
    CHECK_INT(cuMemFree_v2(device), FAKE_SUCCESS);
    CHECK_INT(cuMemFreeHost(pinned), FAKE_SUCCESS);
    CHECK_INT(fake_pinned_live(), 0);
    CHECK_INT(fake_memory_live(), 0);
    return check_failures();
}
