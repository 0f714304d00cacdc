#include "device/device.h"

#include <string.h>

#include "base/copy.h"
#include "base/error.h"
#include "base/pause.h"

/* Sets `*stream` to the stream that XLA has for the call. Returns 0 or REFUSED. */
static int device_stream_get(const ffi_call_frame *call, driver_stream *stream) {
    /* In an older XLA the table of functions ends before it. */
    if (call->api->struct_size < offsetof(ffi_api, stream_get) + sizeof call->api->stream_get || !call->api->stream_get)
        return error_set("this XLA does not tell its stream to custom calls; install a newer jaxlib");
    ffi_stream_get_args args = {.struct_size = sizeof args, .context = call->context};
    ffi_error *error = call->api->stream_get(&args);
    if (error) {
        ffi_error_destroy_args destroyed = {.struct_size = sizeof destroyed, .error = error};
        call->api->error_destroy(&destroyed);
        return error_set("XLA gave no stream for this call, so it does not run on a GPU");
    }
    *stream = args.stream;
    return 0;
}

/* Pushes the context of the stream on the thread's stack, since XLA does not promise that it is current, and sets
 * d->number. Returns 0 or REFUSED. */
static int device_enter_cuda(device *d) {
    driver_context context = NULL;
    if (DRIVER_CALL(d->driver, stream_context, d->stream, &context)) return REFUSED;
    if (DRIVER_CALL(d->driver, context_push, context)) return REFUSED;
    if (DRIVER_CALL(d->driver, context_device, &d->number) == 0) return 0;
    (void)d->driver->context_pop(&context);
    return REFUSED;
}

/* Makes the device of the stream current in this thread, and sets d->number and d->previous. Returns 0 or REFUSED. */
static int device_enter_hip(device *d) {
    if (DRIVER_CALL(d->driver, stream_device, d->stream, &d->number)) return REFUSED;
    if (DRIVER_CALL(d->driver, current_device, &d->previous)) return REFUSED;
    return d->previous == d->number ? 0 : DRIVER_CALL(d->driver, make_current, d->number);
}

int device_enter(device *d, const ffi_call_frame *call) {
    *d = (device){.driver = driver_get()};
    if (!d->driver || device_stream_get(call, &d->stream)) return REFUSED;
    if (d->driver->platform == DRIVER_SYCL) return DRIVER_CALL(d->driver, queue_enter, d->stream, &d->number);
    return d->driver->platform == DRIVER_CUDA ? device_enter_cuda(d) : device_enter_hip(d);
}

void device_leave(const device *d) {
    driver_context context;
    if (d->driver->platform == DRIVER_CUDA)
        (void)d->driver->context_pop(&context);
    else if (d->driver->platform == DRIVER_SYCL)
        (void)d->driver->queue_leave();
    else if (d->previous != d->number)
        (void)d->driver->make_current(d->previous);
}

int device_wait(const device *d) {
    pause_begin();
    int failed = DRIVER_CALL(d->driver, stream_synchronize, d->stream);
    pause_end();
    return failed;
}

int device_wait_for(const device *d, driver_event event) {
    pause_begin();
    int failed = DRIVER_CALL(d->driver, event_synchronize, event);
    pause_end();
    return failed;
}

/* Copies in the host's memory. Returns 0. */
static int device_host_copy(void *to, const void *from, int64_t bytes) {
    copy_bytes(to, from, bytes);
    return 0;
}

int device_copy_in(const device *d, void *to, const void *from_host, int64_t bytes) {
    return bytes > 0 ? DRIVER_CALL(d->driver, copy_in, to, from_host, (size_t)bytes, d->stream) : 0;
}

int device_copy_out(const device *d, void *to_host, const void *from, int64_t bytes) {
    if (!d) return device_host_copy(to_host, from, bytes);
    return bytes > 0 ? DRIVER_CALL(d->driver, copy_out, to_host, from, (size_t)bytes, d->stream) : 0;
}

int device_copy_within(const device *d, void *to, const void *from, int64_t bytes) {
    if (!d) return device_host_copy(to, from, bytes);
    return bytes > 0 ? DRIVER_CALL(d->driver, copy_within, to, from, (size_t)bytes, d->stream) : 0;
}

/* Returns whether the distance is greater than the drivers take. Such lines, of which a GPU's memory has few, are
 * copied one by one. */
static int device_lines_are_far(const device_lines *lines) {
    return lines->distance > INT32_MAX;
}

/* Returns line i alone. */
static device_lines device_line_at(const device_lines *lines, int64_t i) {
    return (device_lines){.first = (char *)lines->first + i * lines->distance, .on_host = lines->on_host};
}

/* Returns lines as one side of the driver's copy of lines. */
static driver_side device_side_of(const device_lines *lines) {
    driver_side side = {.kind = lines->on_host ? DRIVER_HOST : DRIVER_DEVICE, .pitch = (size_t)lines->distance};
    if (lines->on_host)
        side.host = lines->first;
    else
        side.device = lines->first;
    return side;
}

/* Copies one block between two places, by the kind of memory of each. Returns 0 or REFUSED. */
static int device_copy_bytes(const device *d, device_lines to, device_lines from, int64_t bytes) {
    if (to.on_host) return device_copy_out(d, to.first, from.first, bytes);
    return from.on_host ? device_copy_in(d, to.first, from.first, bytes)
                        : device_copy_within(d, to.first, from.first, bytes);
}

int device_copy_lines(const device *d, device_lines to, device_lines from, int64_t number, int64_t size) {
    if (number == 0 || size == 0) return 0;
    if (number == 1 || (to.distance == size && from.distance == size))
        return device_copy_bytes(d, to, from, number * size);
    if (device_lines_are_far(&to) || device_lines_are_far(&from)) {
        int failed = 0;
        for (int64_t i = 0; i < number && !failed; i++)
            failed = device_copy_bytes(d, device_line_at(&to, i), device_line_at(&from, i), size);
        return failed;
    }
    const driver_copy_2d copy = {
        .from = device_side_of(&from), .to = device_side_of(&to), .width = (size_t)size, .height = (size_t)number};
    return DRIVER_CALL(d->driver, copy_2d, &copy, d->stream);
}

int device_clear(const device *d, void *memory, int64_t bytes) {
    if (!d && bytes > 0) memset(memory, 0, (size_t)bytes);
    return d && bytes > 0 ? DRIVER_CALL(d->driver, fill, memory, 0, (size_t)bytes, d->stream) : 0;
}

int device_clear_lines(const device *d, device_lines lines, int64_t number, int64_t size) {
    if (number == 0 || size == 0) return 0;
    if (number == 1) return device_clear(d, lines.first, size);
    if (device_lines_are_far(&lines)) {
        int failed = 0;
        for (int64_t i = 0; i < number && !failed; i++) failed = device_clear(d, device_line_at(&lines, i).first, size);
        return failed;
    }
    return DRIVER_CALL(d->driver, fill_lines, lines.first, (size_t)lines.distance, 0, (size_t)size, (size_t)number,
                       d->stream);
}
