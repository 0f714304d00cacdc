/* The types of a GPU's driver, and its functions. */
#ifndef MPIXLA_NATIVE_DRIVER_TYPES_H
#define MPIXLA_NATIVE_DRIVER_TYPES_H

#include <stddef.h>

#include "base/loader.h"

/* The types of the drivers, in their binary layout. */
typedef void *driver_stream;
typedef void *driver_event;
typedef void *driver_context;
typedef int driver_code;
typedef void *driver_memory; /* of the device */
typedef const void *driver_const_memory;
typedef int driver_byte; /* 0 to 255: CUDA takes an unsigned char, HIP an int; both are passed in the same way */
typedef struct driver_uuid {
    char bytes[16];
} driver_uuid;

/* Kinds of memory in a driver_copy_2d. ROCm has these numbers since 6.0; before, 1 was the device's. */
enum { DRIVER_HOST = 1, DRIVER_DEVICE = 2 };

/* One side of a copy of lines: `host` or `device`, as `kind` says. */
typedef struct driver_side {
    size_t x, y; /* bytes, lines: where it starts */
    int kind;
    const void *host;
    const void *device;
    void *array;
    size_t pitch; /* bytes from line to line */
} driver_side;

/* CUDA_MEMCPY2D, hip_Memcpy2D */
typedef struct driver_copy_2d {
    driver_side from, to;
    size_t width, height; /* bytes, lines */
} driver_copy_2d;

/* Codes that are no failures. */
enum { DRIVER_NOT_READY = 600 };

/* Flags. */
enum { DRIVER_HOST_PORTABLE = 1, DRIVER_EVENT_NO_TIMING = 2 };

/* The functions by number, for messages: DRIVER_FUNCTION_copy_in. */
enum {
#define MPIXLA_DRIVER(name, ...) DRIVER_FUNCTION_##name,
#define MPIXLA_DRIVER_CUDA(name, ...) DRIVER_FUNCTION_##name,
#define MPIXLA_DRIVER_HIP(name, ...) DRIVER_FUNCTION_##name,
#define MPIXLA_DRIVER_SYCL(name, ...) DRIVER_FUNCTION_##name,
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP
#undef MPIXLA_DRIVER_SYCL
    DRIVER_FUNCTIONS
};

typedef enum driver_platform { DRIVER_CUDA, DRIVER_ROCM, DRIVER_SYCL, DRIVER_PLATFORMS } driver_platform;

typedef struct driver {
    driver_platform platform;
    const char *platform_name;   /* "CUDA" */
    const char *file;            /* the name by which it was opened */
    const loader_row *functions; /* their names, by number; NULL for those of another platform */
#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) driver_code(*name) prototype;
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) driver_code(*name) prototype;
#define MPIXLA_DRIVER_HIP(name, hip, prototype) driver_code(*name) prototype;
#define MPIXLA_DRIVER_SYCL(name, sycl, prototype) driver_code(*name) prototype;
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP
#undef MPIXLA_DRIVER_SYCL
} driver;

#endif
