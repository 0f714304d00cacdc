/* The types in the tables of the driver's and NCCL's functions, as the real ones have them, and what every file of the
 * fakes needs.
 */
#ifndef MPIXLA_TEST_GPU_TYPES_H
#define MPIXLA_TEST_GPU_TYPES_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

typedef void *driver_stream;
typedef void *driver_event;
typedef void *driver_context;

typedef struct driver_uuid {
    char bytes[16];
} driver_uuid;

enum { DRIVER_COPY_HOST = 1, DRIVER_COPY_DEVICE = 2 };

/* CUDA_MEMCPY2D, and hip_Memcpy2D. */
typedef struct driver_copy_2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    void *src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    void *dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} driver_copy_2d;

typedef void *nccl_comm;

typedef struct nccl_id {
    char internal[128];
} nccl_id;

/* The driver's codes that the fake gives. */
enum {
    FAKE_SUCCESS = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NOT_INITIALIZED = 3,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_READY = 600,
    FAKE_ILLEGAL_ADDRESS = 700
};

#endif
