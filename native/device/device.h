/* The GPU of one call: the stream that XLA passes to it, and copies on that stream. */
#ifndef MPIXLA_NATIVE_DEVICE_H
#define MPIXLA_NATIVE_DEVICE_H

#include <stdint.h>

#include "device/driver.h"
#include "xla/xla_ffi.h"

typedef struct device {
    const driver *driver;
    driver_stream stream;
    int number;   /* as the driver counts */
    int previous; /* HIP: the thread's device before, which device_leave makes its own again */
} device;

/* Around a call: finds the stream, and makes its device the thread's own. 0 or REFUSED; device_leave is not
 * to be called then. */
int device_enter(device *d, const ffi_call_frame *call);
void device_leave(const device *d);

/* Waits until all is done that the stream was given. This, and the copies, return 0 or REFUSED. */
int device_wait(const device *d);
/* The same, up to where the event was recorded. */
int device_wait_for(const device *d, driver_event event);

/* Each gives the stream a copy and returns. Memory of the host is pinned (pool.h), and is left alone until the copy is
 * done. Nothing happens for 0 bytes. Without a device (NULL) device_copy_out, device_copy_within and device_clear work
 * on the host's memory, at once. */
int device_copy_in(const device *d, void *to, const void *from_host, int64_t bytes);
int device_copy_out(const device *d, void *to_host, const void *from, int64_t bytes);
int device_copy_within(const device *d, void *to, const void *from, int64_t bytes);

/* Lines of memory: `number` of them, `size` bytes each, `distance` bytes from one to the next. */
typedef struct device_lines {
    void *first;
    int64_t distance;
    int on_host; /* pinned */
} device_lines;
/* One of the two at least is in the GPU's memory. */
int device_copy_lines(const device *d, device_lines to, device_lines from, int64_t number, int64_t size);

/* Zeros. */
int device_clear_lines(const device *d, device_lines lines, int64_t number, int64_t size);
int device_clear(const device *d, void *memory, int64_t bytes);

#endif
