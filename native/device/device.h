/* The GPU of one call: the stream that XLA passes to the call, and copies on that stream. */
#ifndef MPIXLA_NATIVE_DEVICE_H
#define MPIXLA_NATIVE_DEVICE_H

#include <stdint.h>

#include "device/driver.h"
#include "xla/xla_ffi.h"

typedef struct device {
    const driver *driver;
    driver_stream stream;
    int number;   /* as the driver counts; SYCL: of its device and context (sycl.c) */
    int previous; /* HIP: the thread's current device before device_enter */
} device;

/* Fills `d` with the stream of the call, and makes its device, or SYCL's queue, current in this thread. Returns 0; or
 * REFUSED, and then device_leave must not be called. */
int device_enter(device *d, const ffi_call_frame *call);

/* Makes the device or context current again that was so before device_enter. */
void device_leave(const device *d);

/* Waits until the stream has done all its work, and marks the wait as a pause (base/pause.h). Returns 0 or REFUSED. */
int device_wait(const device *d);

/* Waits until the stream has reached the event, and marks the wait as a pause (base/pause.h). Returns 0 or REFUSED. */
int device_wait_for(const device *d, driver_event event);

/* Put a copy on the stream, and do not wait for it. Return 0 or REFUSED. Memory of the host must be pinned (pool.h),
 * and unchanged until the copy is done. 0 bytes are no error. Without a device (NULL) device_copy_out,
 * device_copy_within and device_clear work on the host's memory, at once. */
int device_copy_in(const device *d, void *to, const void *from_host, int64_t bytes);
int device_copy_out(const device *d, void *to_host, const void *from, int64_t bytes);
int device_copy_within(const device *d, void *to, const void *from, int64_t bytes);

/* Lines of memory: `number` of them, `size` bytes each, `distance` bytes from one to the next. */
typedef struct device_lines {
    void *first;
    int64_t distance;
    int on_host; /* pinned */
} device_lines;

/* Puts a copy of lines on the stream. At least one of the two is in the GPU's memory. Returns 0 or REFUSED. */
int device_copy_lines(const device *d, device_lines to, device_lines from, int64_t number, int64_t size);

/* Puts a fill of lines with zeros on the stream. Returns 0 or REFUSED. */
int device_clear_lines(const device *d, device_lines lines, int64_t number, int64_t size);
int device_clear(const device *d, void *memory, int64_t bytes);

#endif
