/* The fake GPUs of this process, and which of them is current in a thread.
 *
 *   MPIXLA_FAKE_DEVICE_COUNT    how many there are, by default one
 *   MPIXLA_FAKE_DEVICE_SHARED   1: all processes have the same ones; by default each process has GPUs of its own
 *   MPIXLA_FAKE_DEVICE_PLATFORM ROCM: they are HIP's. Then each thread has a current device from the start, the first;
 *                               ONEAPI: they are SYCL's, which has neither contexts nor current devices
 */
#ifndef MPIXLA_TEST_FAKE_CONTEXT_H
#define MPIXLA_TEST_FAKE_CONTEXT_H

#include "test/gpu/gpu_types.h"

enum { FAKE_DEVICES = 16 };

int fake_devices(void);
int fake_is_hip(void);
driver_uuid fake_device_uuid(int device);

/* The context of a device. */
FAKE_API driver_context fake_context_get(int device);
/* The device of a context, or -1 if this is none. */
int fake_context_device(driver_context context);

/* The contexts of this thread, one on top of the other. Each returns 0, or the driver's code. */
FAKE_API int fake_context_push(driver_context context);
FAKE_API int fake_context_pop(driver_context *context);
/* The device of the one on top, or -1; HIP's current device. */
FAKE_API int fake_context_current(void);
/* HIP: makes a device current. Returns 0, or the driver's code. */
FAKE_API int fake_context_set(int device);
/* How many there are. */
FAKE_API int fake_context_depth(void);

#endif
