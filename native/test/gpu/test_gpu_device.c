/* The GPU of a call: its stream, the context of the thread around the call, and which copies the driver is given. */
#include <stdlib.h>

#include "base/error.h"
#include "device/device.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/gpu_check.h"
#include "test/gpu/gpu_scene.h"

static ffi_api api;
static ffi_call_frame given = {.struct_size = sizeof given, .api = &api, .context = &given};
static fake_stream *stream_of_call;
static int asked, destroyed;

struct ffi_error {
    int unused;
};
static ffi_error an_error;

static ffi_error *stream_get(ffi_stream_get_args *args) {
    asked++;
    CHECK(args->context == &given);
    CHECK_INT(args->struct_size, sizeof *args);
    args->stream = stream_of_call;
    return NULL;
}

static ffi_error *stream_refuse(ffi_stream_get_args *args) {
    (void)args;
    return &an_error;
}

static void error_destroy(ffi_error_destroy_args *args) {
    CHECK(args->error == &an_error);
    CHECK_INT(args->struct_size, sizeof *args);
    destroyed++;
}

static void api_make(void) {
    api = (ffi_api){.struct_size = sizeof api, .stream_get = stream_get, .error_destroy = error_destroy};
    asked = destroyed = 0;
}

/* The stream's context is the thread's, on top of whichever it had, and no longer. */
static void the_context_is_the_streams(void) {
    device d;
    api_make();
    for (int before = -1; before < 2; before++) {
        if (before >= 0) CHECK_INT(fake_context_push(fake_context_get(before)), 0);
        for (int number = 0; number < 2; number++) {
            int current = fake_context_current(), depth = fake_context_depth();
            fake_stream *stream = fake_stream_take(number);
            stream_of_call = stream;
            CHECK_INT(device_enter(&d, &given), 0);
            CHECK_INT(d.number, number);
            CHECK(d.stream == stream);
            CHECK(d.driver == driver_get());
            CHECK_INT(fake_context_current(), number);
            CHECK_INT(device_wait(&d), 0);
            device_leave(&d);
            CHECK_INT(fake_context_current(), current);
            CHECK_INT(fake_context_depth(), depth);
            fake_stream_give(stream);
        }
        if (before >= 0) CHECK_INT(fake_context_pop(NULL), 0);
    }
    CHECK_INT(asked, 6);
    CHECK_INT(destroyed, 0);
    CHECK_STR(complaint(), "");
}

static void a_stream_that_is_not_given_is_a_sentence(void) {
    static const char none[] = "this XLA does not tell its stream to custom calls; install a newer jaxlib";
    device d;
    api_make();
    api.stream_get = NULL;
    CHECK_INT(device_enter(&d, &given), -1);
    CHECK_STR(error_get(), none);
    api_make();
    api.struct_size = offsetof(ffi_api, stream_get); /* what is there is something else */
    CHECK_INT(device_enter(&d, &given), -1);
    CHECK_STR(error_get(), none);
    CHECK_INT(asked, 0);
    api_make();
    api.stream_get = stream_refuse;
    CHECK_INT(device_enter(&d, &given), -1);
    CHECK_STR(error_get(), "XLA gave no stream for this call, so it does not run on a GPU");
    CHECK_INT(destroyed, 1);
    CHECK_INT(fake_context_depth(), 0);
}

/* Copies */

enum { BYTES = 64 };
static device gpu;
static unsigned char *pinned, *memory, *other; /* of the host; of the GPU */

static const char *only_call(void) {
    static fake_noted noted;
    CHECK_INT(fake_calls_count(NULL), 1);
    return fake_calls_read(0, &noted) == 0 ? noted.function : "none";
}

static uint64_t bytes_of_call(void) {
    fake_noted noted = {.bytes = 0};
    (void)fake_calls_read(0, &noted);
    return noted.bytes;
}

static void fill(void) {
    unsigned char *m = fake_memory_engine(memory), *o = fake_memory_engine(other);
    for (int i = 0; i < BYTES; i++) {
        pinned[i] = (unsigned char)i;
        m[i] = (unsigned char)(100 + i);
        o[i] = 255;
    }
    fake_calls_forget();
}

/* Lines that lie one behind another on both sides are one copy; others are one copy of lines. */
static void lines_are_copied(void) {
    static const struct {
        int64_t number, size, to_distance, from_distance;
        int is_one;
    } rows[] = {
        {4, 8, 8, 8, 1},  {1, 8, 16, 32, 1}, {1, 8, 0, 0, 1},  {4, 8, 16, 8, 0},
        {4, 8, 8, 16, 0}, {3, 8, 16, 16, 0}, {2, 1, 17, 3, 0}, {8, 8, 8, 8, 1},
    };
    static const char *const names[] = {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int kind = 0; kind < 3; kind++) { /* to the GPU, to the host, within the GPU */
            fill();
            unsigned char *to = kind == 1 ? pinned : other, *from = kind == 0 ? pinned : memory;
            if (kind == 1) memset(pinned, 255, BYTES);
            CHECK_INT(
                device_copy_lines(&gpu, (device_lines){to, rows[i].to_distance, kind == 1},
                                  (device_lines){from, rows[i].from_distance, kind == 0}, rows[i].number, rows[i].size),
                0);
            CHECK_STR(only_call(), rows[i].is_one ? names[kind] : "cuMemcpy2DAsync_v2");
            CHECK_INT(bytes_of_call(), rows[i].number * rows[i].size);
            CHECK_INT(gpu_drain(), 0);
            unsigned char expected[BYTES];
            memset(expected, 255, sizeof expected);
            for (int64_t k = 0; k < rows[i].number; k++)
                for (int64_t b = 0; b < rows[i].size; b++)
                    expected[k * rows[i].to_distance + b] =
                        (unsigned char)((kind == 0 ? 0 : 100) + k * rows[i].from_distance + b);
            CHECK(memcmp(fake_memory_engine(to), expected, sizeof expected) == 0);
        }
    CHECK_STR(complaint(), "");
}

static void nothing_is_no_call(void) {
    const device_lines lines = {memory, 8, 0}, none = {NULL, 0, 0};
    fake_calls_forget();
    CHECK_INT(device_copy_in(&gpu, NULL, NULL, 0), 0);
    CHECK_INT(device_copy_out(&gpu, NULL, NULL, 0), 0);
    CHECK_INT(device_copy_within(&gpu, NULL, NULL, 0), 0);
    CHECK_INT(device_clear(&gpu, NULL, 0), 0);
    CHECK_INT(device_copy_lines(&gpu, lines, none, 0, 8), 0);
    CHECK_INT(device_copy_lines(&gpu, lines, none, 4, 0), 0);
    CHECK_INT(device_clear_lines(&gpu, none, 0, 8), 0);
    CHECK_INT(device_clear_lines(&gpu, none, 4, 0), 0);
    CHECK_INT(fake_calls_count(NULL), 0);
}

static void lines_are_cleared(void) {
    static const struct {
        int64_t number, size, distance;
        const char *function;
    } rows[] = {{1, 8, 16, "cuMemsetD8Async"}, {3, 8, 16, "cuMemsetD2D8Async"}, {4, 8, 8, "cuMemsetD2D8Async"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fill();
        CHECK_INT(device_clear_lines(&gpu, (device_lines){memory, rows[i].distance, 0}, rows[i].number, rows[i].size),
                  0);
        CHECK_STR(only_call(), rows[i].function);
        CHECK_INT(gpu_drain(), 0);
        const unsigned char *m = fake_memory_engine(memory);
        for (int64_t b = 0; b < BYTES; b++) {
            int64_t line = b / rows[i].distance;
            int is_cleared = line < rows[i].number && b % rows[i].distance < rows[i].size;
            CHECK_INT(m[b], is_cleared ? 0 : 100 + b);
        }
    }
}

/* A driver that writes down what it is given. */
static struct {
    const void *to, *from;
    size_t bytes;
} written[8];
static int writes;

static int w_copy(driver_memory to, driver_const_memory from, size_t bytes, driver_stream stream) {
    CHECK(stream == gpu.stream);
    written[writes].to = to;
    written[writes].from = from;
    written[writes++].bytes = bytes;
    return 0;
}

static int w_fill(driver_memory to, unsigned char value, size_t bytes, driver_stream stream) {
    CHECK_INT(value, 0);
    return w_copy(to, NULL, bytes, stream);
}

/* CUDA takes distances of less than 2 GiB. */
static void far_lines_are_given_one_by_one(void) {
    enum { LINES = 3, LINE = 8 };
    const int64_t far = INT64_C(1) << 31;
    const driver writer = {.copy_within = w_copy, .fill = w_fill}; /* of nothing else */
    const device d = {.driver = &writer, .stream = gpu.stream};
    for (int kind = 0; kind < 3; kind++) { /* far at the one side, at the other, and zeros */
        device_lines to = {other, kind == 0 ? LINE : far, 0}, from = {memory, kind == 1 ? LINE : far, 0};
        writes = 0;
        CHECK_INT(kind == 2 ? device_clear_lines(&d, to, LINES, LINE) : device_copy_lines(&d, to, from, LINES, LINE),
                  0);
        CHECK_INT(writes, LINES);
        for (int i = 0; i < LINES; i++) {
            CHECK_INT((intptr_t)written[i].to, (intptr_t)other + i * to.distance);
            CHECK_INT((intptr_t)written[i].from, kind == 2 ? 0 : (intptr_t)memory + i * from.distance);
            CHECK_INT(written[i].bytes, LINE);
        }
    }
}

/* What the driver refuses is a sentence, with its own name of the function. */
static void failures_are_told(int is_rocm) {
    static const char *const functions[] = {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2",
                                            "cuMemcpy2DAsync_v2",   "cuMemsetD8Async",      "cuMemsetD2D8Async",
                                            "cuStreamSynchronize"};
    static const char *const of_hip[] = {"hipMemcpyHtoDAsync",    "hipMemcpyDtoHAsync", "hipMemcpyDtoDAsync",
                                         "hipMemcpyParam2DAsync", "hipMemsetD8Async",   "hipMemset2DAsync",
                                         "hipStreamSynchronize"};
    const device_lines sparse = {memory, 16, 0}, into = {other, 8, 0};
    fake_fail_may_pass(1);
    for (int i = 0; i < 7; i++) {
        CHECK_INT(fake_fail(functions[i], 1, 700), 0);
        int code = i == 0   ? device_copy_in(&gpu, memory, pinned, 8)
                   : i == 1 ? device_copy_out(&gpu, pinned, memory, 8)
                   : i == 2 ? device_copy_within(&gpu, memory, other, 8)
                   : i == 3 ? device_copy_lines(&gpu, into, sparse, 2, 8)
                   : i == 4 ? device_clear(&gpu, memory, 8)
                   : i == 5 ? device_clear_lines(&gpu, sparse, 2, 8)
                            : device_wait(&gpu);
        CHECK_INT(code, -1);
        CHECK(strstr(error_get(), is_rocm ? of_hip[i] : functions[i]) == error_get());
        CHECK_IN(error_get(), is_rocm ? " of the ROCm driver returned error code 700, hipErrorIllegalAddress: "
                                      : " of the CUDA driver returned error code 700, CUDA_ERROR_ILLEGAL_ADDRESS: ");
    }
    fake_fail_may_pass(0);
}

int main(int argc, char **argv) {
    setenv("MPIXLA_FAKE_DEVICE_COUNT", "2", 1);
    gpu_start(argc, argv);
    int is_rocm = driver_get()->platform == DRIVER_ROCM;
    the_context_is_the_streams();
    a_stream_that_is_not_given_is_a_sentence();
    api_make();
    stream_of_call = gpu_stream;
    CHECK_INT(device_enter(&gpu, &given), 0);
    void *host = NULL;
    CHECK_INT(gpu.driver->host_alloc(&host, BYTES, DRIVER_HOST_PORTABLE), 0);
    pinned = host;
    memory = fake_memory_alloc(BYTES);
    other = fake_memory_alloc(BYTES);
    lines_are_copied();
    nothing_is_no_call();
    lines_are_cleared();
    far_lines_are_given_one_by_one();
    failures_are_told(is_rocm);
    CHECK_INT(gpu_drain(), 0);
    CHECK_INT(gpu.driver->host_free(host), 0);
    fake_memory_free(memory);
    fake_memory_free(other);
    device_leave(&gpu);
    CHECK_INT(fake_context_depth(), 0);
    return check_failures();
}
