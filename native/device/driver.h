/* The driver of this process's GPUs, CUDA's, HIP's or SYCL's, loaded when it is first needed. Building needs none. */
#ifndef MPIXLA_NATIVE_DRIVER_H
#define MPIXLA_NATIVE_DRIVER_H

#include "device/driver_types.h"

/* Returns the driver, and loads its library if necessary; prefers the platform whose library is in the process already.
 * Does not initialize the driver. Returns NULL with error_set, which lists the files tried, if there is none or it
 * lacks a function. */
const driver *driver_get(void);

/* Returns 0 if `code`, the result of a function (DRIVER_FUNCTION_...), is 0; else REFUSED, with the driver's name and
 * text of the error. */
int driver_check(const driver *d, int function, int code);

/* Calls a function of the driver. Returns 0 or REFUSED. */
#define DRIVER_CALL(d, name, ...) driver_check(d, DRIVER_FUNCTION_##name, (d)->name(__VA_ARGS__))

#endif
