/* A function here notes its call, checks what it is given more strictly than the real one, and hands it on. Those that
 * HIP has by another name are under both, and complain by CUDA's.
 */
#include "test/gpu/fake_driver.h"

#include <stdatomic.h>

#include "test/gpu/fake_access.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_event.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_pinned.h"
#include "test/gpu/fake_stream.h"

/* CU_DEVICE_ATTRIBUTE_MAX_PITCH of the GPUs of today. */
static const size_t longest_pitch = 0x7fffffff;

static atomic_int is_initialized;

/* How every function begins. */
#define ENTER(function, bytes)                                                                \
    do {                                                                                      \
        int code_ = fake_call(FAKE_##function, bytes);                                        \
        fake_access_release();                                                                \
        if (code_ == FAKE_SKIP) return FAKE_SUCCESS;                                          \
        if (code_ != FAKE_SUCCESS) return code_;                                              \
        if (!atomic_load(&is_initialized) && !fake_is_hip()) return uninitialized(#function); \
    } while (0)

static int uninitialized(const char *function) {
    fake_complain("%s was called before cuInit", function);
    return FAKE_NOT_INITIALIZED;
}

/* CUDA's driver needs a current context for most of what it does. */
#define ENTER_CONTEXT(function, bytes)                                     \
    do {                                                                   \
        ENTER(function, bytes);                                            \
        if (fake_context_current() < 0) return without_context(#function); \
    } while (0)

static int without_context(const char *function) {
    fake_complain("%s was called in a thread that has no current context", function);
    return FAKE_INVALID_CONTEXT;
}

static fake_stream *stream_any(const char *function, driver_stream handle) {
    fake_stream *stream = fake_stream_find(handle);
    if (!stream) fake_complain("%s was given %p, which is no stream", function, handle);
    return stream;
}

/* Finds a stream, of the current context's device. */
static fake_stream *stream_of(const char *function, driver_stream handle) {
    fake_stream *stream = stream_any(function, handle);
    if (!stream || fake_stream_device(stream) == fake_context_current()) return stream;
    fake_complain("%s was given a stream of device %d while a context of device %d is current", function,
                  fake_stream_device(stream), fake_context_current());
    return NULL;
}

void fake_driver_ready(void) {
    atomic_store(&is_initialized, 1);
}

int cuInit(unsigned flags) {
    int code = fake_call(FAKE_cuInit, 0);
    if (code != FAKE_SUCCESS) return code;
    if (flags != 0) return FAKE_INVALID_VALUE;
    fake_driver_ready();
    return FAKE_SUCCESS;
}

static const struct {
    int code;
    const char *name, *hip_name, *text;
} codes[] = {
    {FAKE_SUCCESS, "CUDA_SUCCESS", "hipSuccess", "no error"},
    {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue", "invalid argument"},
    {FAKE_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", "out of memory"},
    {FAKE_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "hipErrorDeinitialized", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice", "no capable device is detected"},
    {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice", "invalid device ordinal"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext", "invalid device context"},
    {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle", "invalid resource handle"},
    {FAKE_NOT_READY, "CUDA_ERROR_NOT_READY", "hipErrorNotReady", "device not ready"},
    {FAKE_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure", "unspecified launch failure"},
    {999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown", "unknown error"},
};

int cuGetErrorName(int code, const char **name) {
    fake_call(FAKE_cuGetErrorName, 0);
    *name = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == code) *name = fake_is_hip() ? codes[i].hip_name : codes[i].name;
    return *name ? FAKE_SUCCESS : FAKE_INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) {
    fake_call(FAKE_cuGetErrorString, 0);
    *text = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == code) *text = codes[i].text;
    return *text ? FAKE_SUCCESS : FAKE_INVALID_VALUE;
}

int cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount, 0);
    *count = fake_devices();
    return FAKE_SUCCESS;
}

int cuDeviceGetUuid_v2(driver_uuid *uuid, int device) {
    ENTER(cuDeviceGetUuid_v2, 0);
    if (device < 0 || device >= fake_devices()) return FAKE_INVALID_DEVICE;
    *uuid = fake_device_uuid(device);
    return FAKE_SUCCESS;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT(cuMemHostAlloc, bytes);
    if (bytes == 0) return FAKE_INVALID_VALUE;
    *memory = fake_pinned_alloc(bytes);
    return *memory ? FAKE_SUCCESS : FAKE_OUT_OF_MEMORY;
}

int cuMemFreeHost(void *memory) {
    ENTER_CONTEXT(cuMemFreeHost, 0);
    if (fake_pinned_free(memory) == 0) return FAKE_SUCCESS;
    fake_complain("cuMemFreeHost was given %p, which cuMemHostAlloc did not give, or which was freed", memory);
    return FAKE_INVALID_VALUE;
}

int cuMemAlloc_v2(void **memory, size_t bytes) {
    ENTER_CONTEXT(cuMemAlloc_v2, bytes);
    if (bytes == 0) return FAKE_INVALID_VALUE;
    *memory = fake_memory_alloc(bytes);
    return *memory ? FAKE_SUCCESS : FAKE_OUT_OF_MEMORY;
}

int cuMemFree_v2(void *memory) {
    ENTER_CONTEXT(cuMemFree_v2, 0);
    if (!memory || fake_memory_free(memory) == 0) return FAKE_SUCCESS;
    fake_complain("cuMemFree was given %p, which is not the start of live device memory", memory);
    return FAKE_INVALID_VALUE;
}

/* Queues what is right; what is not is refused in a sentence. */
static int add(const char *function, const fake_work *work, driver_stream handle) {
    char text[256];
    fake_stream *stream = stream_of(function, handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    if (fake_work_is_wrong(work, text, sizeof text)) {
        fake_complain("%s: %s", function, text);
        return FAKE_INVALID_VALUE;
    }
    return fake_stream_add(stream, work);
}

/* One side of a copy, by its name, must be on the device, or must not be. */
static int side_is_wrong(const char *function, const char *side, const void *memory, size_t bytes, int on_device) {
    if (bytes == 0 || (fake_memory_engine(memory) != memory) == on_device) return 0;
    fake_complain("%s: the %s of a copy, %zu bytes at %p, %s", function, side, bytes, memory,
                  on_device ? "is not device memory" : "is device memory, not the host's");
    return 1;
}

static int copy(const char *function, void *to, int to_device, const void *from, int from_device, size_t bytes,
                driver_stream stream) {
    const fake_work work = {.to = to, .from = from, .width = bytes, .height = 1};
    if (side_is_wrong(function, "destination", to, bytes, to_device) ||
        side_is_wrong(function, "source", from, bytes, from_device))
        return FAKE_INVALID_VALUE;
    return add(function, &work, stream);
}

int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, driver_stream stream) {
    ENTER_CONTEXT(cuMemcpyHtoDAsync_v2, bytes);
    return copy("cuMemcpyHtoDAsync", to, 1, from, 0, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, driver_stream stream) {
    ENTER_CONTEXT(cuMemcpyDtoHAsync_v2, bytes);
    return copy("cuMemcpyDtoHAsync", to, 0, from, 1, bytes, stream);
}

int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, driver_stream stream) {
    ENTER_CONTEXT(cuMemcpyDtoDAsync_v2, bytes);
    return copy("cuMemcpyDtoDAsync", to, 1, from, 1, bytes, stream);
}

static int pitch_is_wrong(const char *side, size_t pitch, size_t x, size_t width) {
    if (pitch >= x + width && pitch <= longest_pitch) return 0;
    fake_complain("cuMemcpy2DAsync: rows of %zu bytes from %zu on do not go with a %s pitch of %zu bytes", width, x,
                  side, pitch);
    return 1;
}

/* The memory of one side of a copy of lines; NULL with a complaint. */
static const char *side_of(const driver_copy_2d *c, const driver_side *side, const char *name) {
    const char *memory = side->kind == DRIVER_DEVICE ? side->device : side->host;
    if (side->kind != DRIVER_HOST && side->kind != DRIVER_DEVICE) {
        fake_complain("cuMemcpy2DAsync: the %s is of memory kind %d, which is neither the host's nor the device's",
                      name, side->kind);
        return NULL;
    }
    if (pitch_is_wrong(name, side->pitch, side->x, c->width) ||
        side_is_wrong("cuMemcpy2DAsync", name, memory, c->width, side->kind == DRIVER_DEVICE))
        return NULL;
    return memory + side->y * side->pitch + side->x;
}

int cuMemcpy2DAsync_v2(const driver_copy_2d *c, driver_stream stream) {
    ENTER_CONTEXT(cuMemcpy2DAsync_v2, c->width * c->height);
    if (c->width == 0 || c->height == 0) return FAKE_SUCCESS;
    const char *from = side_of(c, &c->from, "source"), *to = side_of(c, &c->to, "destination");
    if (!from || !to) return FAKE_INVALID_VALUE;
    const fake_work work = {.to = (void *)(uintptr_t)to,
                            .from = from,
                            .to_pitch = c->to.pitch,
                            .from_pitch = c->from.pitch,
                            .width = c->width,
                            .height = c->height};
    return add("cuMemcpy2DAsync", &work, stream);
}

int cuMemsetD8Async(void *memory, unsigned char value, size_t bytes, driver_stream stream) {
    ENTER_CONTEXT(cuMemsetD8Async, bytes);
    const fake_work work = {.to = memory, .is_fill = 1, .value = value, .width = bytes, .height = 1};
    if (side_is_wrong("cuMemsetD8Async", "target", memory, bytes, 1)) return FAKE_INVALID_VALUE;
    return add("cuMemsetD8Async", &work, stream);
}

int cuMemsetD2D8Async(void *memory, size_t pitch, driver_byte value, size_t width, size_t height,
                      driver_stream stream) {
    ENTER_CONTEXT(cuMemsetD2D8Async, width * height);
    const fake_work work = {
        .to = memory, .to_pitch = pitch, .is_fill = 1, .value = value, .width = width, .height = height};
    if (pitch_is_wrong("target", pitch, 0, width) || side_is_wrong("cuMemsetD2D8Async", "target", memory, width, 1))
        return FAKE_INVALID_VALUE;
    return add("cuMemsetD2D8Async", &work, stream);
}

static int event_result(const char *function, int code) {
    if (code == FAKE_INVALID_HANDLE) fake_complain("%s was given no event, or one of another device", function);
    return code;
}

int cuEventCreate(driver_event *event, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT(cuEventCreate, 0);
    return fake_event_create(event, fake_context_current());
}

int cuEventRecord(driver_event event, driver_stream handle) {
    ENTER_CONTEXT(cuEventRecord, 0);
    fake_stream *stream = stream_of("cuEventRecord", handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    return event_result("cuEventRecord", fake_event_record(event, stream));
}

int cuEventQuery(driver_event event) {
    ENTER(cuEventQuery, 0);
    return event_result("cuEventQuery", fake_event_query(event));
}

int cuEventSynchronize(driver_event event) {
    ENTER_CONTEXT(cuEventSynchronize, 0);
    return event_result("cuEventSynchronize", fake_event_synchronize(event));
}

int cuEventDestroy_v2(driver_event event) {
    ENTER_CONTEXT(cuEventDestroy_v2, 0);
    return event_result("cuEventDestroy", fake_event_destroy(event));
}

int cuStreamSynchronize(driver_stream handle) {
    ENTER_CONTEXT(cuStreamSynchronize, 0);
    fake_stream *stream = stream_of("cuStreamSynchronize", handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    return fake_stream_run(stream, fake_stream_added(stream));
}

int cuStreamGetCtx(driver_stream handle, driver_context *context) {
    ENTER(cuStreamGetCtx, 0);
    const fake_stream *stream = stream_any("cuStreamGetCtx", handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    *context = fake_context_get(fake_stream_device(stream));
    return FAKE_SUCCESS;
}

int cuCtxPushCurrent_v2(driver_context context) {
    ENTER(cuCtxPushCurrent_v2, 0);
    return fake_context_push(context);
}

int cuCtxPopCurrent_v2(driver_context *context) {
    ENTER(cuCtxPopCurrent_v2, 0);
    return fake_context_pop(context);
}

int cuCtxGetDevice(int *device) {
    ENTER_CONTEXT(cuCtxGetDevice, 0);
    *device = fake_context_current();
    return FAKE_SUCCESS;
}

/* HIP's own. */
int hipStreamGetDevice(driver_stream handle, int *device) {
    ENTER(hipStreamGetDevice, 0);
    const fake_stream *stream = stream_any("hipStreamGetDevice", handle);
    if (!stream) return FAKE_INVALID_HANDLE;
    *device = fake_stream_device(stream);
    return FAKE_SUCCESS;
}

int hipGetDevice(int *device) {
    ENTER(hipGetDevice, 0);
    *device = fake_context_current();
    return FAKE_SUCCESS;
}

int hipSetDevice(int device) {
    ENTER(hipSetDevice, 0);
    return fake_context_set(device);
}

/* HIP's names for what is above. */
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) driver_code hip prototype __attribute__((alias(#cuda)));
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
