/* The fake GPU as HIP sees it: the same functions, and a current device where CUDA has contexts. */
#include <pthread.h>
#include <stdlib.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"

enum { BYTES = 64 };

static void the_first_device_is_current(void) {
    int device = -1;
    CHECK_INT(hipGetDevice(&device), FAKE_SUCCESS); /* without hipInit */
    CHECK_INT(device, 0);
}

static void *device_of_a_new_thread(void *data) {
    CHECK_INT(hipGetDevice(data), FAKE_SUCCESS);
    return NULL;
}

static void each_thread_has_a_device(void) {
    int device = -1;
    pthread_t thread;
    CHECK_INT(hipSetDevice(1), FAKE_SUCCESS);
    CHECK_INT(hipSetDevice(2), FAKE_INVALID_DEVICE);
    CHECK_INT(hipGetDevice(&device), FAKE_SUCCESS);
    CHECK_INT(device, 1);
    pthread_create(&thread, NULL, device_of_a_new_thread, &device);
    pthread_join(thread, NULL);
    CHECK_INT(device, 0);
    CHECK_INT(hipSetDevice(0), FAKE_SUCCESS);
}

static void a_stream_has_a_device(void) {
    int device = -1;
    fake_stream *stream = fake_stream_take(1);
    CHECK_INT(hipStreamGetDevice(stream, &device), FAKE_SUCCESS);
    CHECK_INT(device, 1);
    CHECK_REFUSED(hipStreamGetDevice(&device, &device), FAKE_INVALID_HANDLE, "no stream");
    CHECK_REFUSED(hipStreamSynchronize(stream), FAKE_INVALID_HANDLE, "device 0 is current");
    CHECK_INT(hipSetDevice(1), FAKE_SUCCESS);
    CHECK_INT(hipStreamSynchronize(stream), FAKE_SUCCESS);
    CHECK_INT(hipSetDevice(0), FAKE_SUCCESS);
    fake_stream_give(stream);
}

static void copies_are_those_of_the_fake(void) {
    fake_stream *stream = fake_stream_take(0);
    void *pinned = NULL, *device = NULL;
    CHECK_INT(hipHostMalloc(&pinned, BYTES, DRIVER_HOST_PORTABLE), FAKE_SUCCESS);
    CHECK_INT(hipMalloc(&device, BYTES), FAKE_SUCCESS);
    fake_calls_forget();
    memset(pinned, 7, BYTES);
    CHECK_INT(hipMemcpyHtoDAsync(device, pinned, BYTES, stream), FAKE_SUCCESS);
    CHECK_INT(((unsigned char *)fake_memory_engine(device))[0], FAKE_FRESH);
    CHECK_INT(hipStreamSynchronize(stream), FAKE_SUCCESS);
    CHECK_INT(((unsigned char *)fake_memory_engine(device))[BYTES - 1], 7);
    CHECK_INT(fake_calls_count("cuMemcpyHtoDAsync_v2"), 1); /* noted by CUDA's name */
    CHECK_INT(hipFree(device), FAKE_SUCCESS);
    CHECK_INT(hipHostFree(pinned), FAKE_SUCCESS);
    fake_stream_give(stream);
}

static void errors_have_hips_names(void) {
    const char *name = NULL;
    CHECK_INT(hipDrvGetErrorName(FAKE_NOT_READY, &name), FAKE_SUCCESS);
    CHECK_STR(name, "hipErrorNotReady");
    CHECK_INT(hipDrvGetErrorName(12345, &name), FAKE_INVALID_VALUE);
}

int main(void) {
    setenv("MPIXLA_FAKE_DEVICE_PLATFORM", "ROCM", 1);
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    the_first_device_is_current();
    each_thread_has_a_device();
    a_stream_has_a_device();
    copies_are_those_of_the_fake();
    errors_have_hips_names();
    CHECK_STR(complaint(), "");
    return check_failures();
}
