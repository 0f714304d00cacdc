/* The fake GPU as HIP sees it: a current device where CUDA has contexts. That all else is the same, the tests of the
 * library show, which are run on both. */
#include <stdlib.h>

#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_stream.h"
#include "test/gpu/gpu_check.h"
#include "test/run.h"

static void the_first_device_is_current(void) {
    int device = -1;
    CHECK_INT(hipGetDevice(&device), FAKE_SUCCESS); /* without hipInit */
    CHECK_INT(device, 0);
}

static int device_there = -1;

static void *look_in_a_thread(void *unused) {
    CHECK_INT(hipGetDevice(&device_there), FAKE_SUCCESS);
    return unused;
}

static void each_thread_has_a_device(void) {
    int device = -1;
    CHECK_INT(hipSetDevice(1), FAKE_SUCCESS);
    CHECK_INT(hipSetDevice(2), FAKE_INVALID_DEVICE);
    CHECK_INT(hipGetDevice(&device), FAKE_SUCCESS);
    CHECK_INT(device, 1);
    threads_run(1, look_in_a_thread);
    CHECK_INT(device_there, 0);
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

int main(void) {
    setenv("MPIXLA_FAKE_DEVICE_PLATFORM", "ROCM", 1);
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    the_first_device_is_current();
    each_thread_has_a_device();
    a_stream_has_a_device();
    CHECK_STR(complaint(), "");
    return check_failures();
}
