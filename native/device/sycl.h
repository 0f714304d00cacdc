/* SYCL, for Intel's GPUs, with the functions of a driver (driver_types.h): each calls dpctl's C interface to SYCL.
 *
 * SYCL allocates and frees memory for a queue, where CUDA and HIP do so for the thread's current device. So each thread
 * has a current queue: between queue_enter and queue_leave, the queue of the call.
 */
#ifndef MPIXLA_NATIVE_SYCL_H
#define MPIXLA_NATIVE_SYCL_H

#include <stdint.h>

#include "device/driver_types.h"

/* Pointers to SYCL's objects, and to memory that SYCL has allocated. */
typedef driver_stream sycl_queue;
typedef void *sycl_device, *sycl_context, *sycl_event, *sycl_memory;
typedef int sycl_status;

/* dpctl's numbers: the state of an event, and the kinds of devices that XLA uses. */
enum { SYCL_COMPLETE = 3, SYCL_GPU = 1 << 4, SYCL_LEVEL_ZERO = 1 << 17 };

/* The codes that the functions return. */
enum { SYCL_FAILED = 1, SYCL_LIBRARIES_DIFFER = 2 };

/* Sets the platform and the functions of `d`, which call dpctl's interface in `library`. Returns the name of a function
 * that the library lacks, or NULL. Called once in a process. */
const char *sycl_bind(driver *d, void *library);

#endif
