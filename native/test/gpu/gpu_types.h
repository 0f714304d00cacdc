/* What every file of the fakes needs: the types in the tables of the driver's and NCCL's functions, and the driver's
 * codes.
 */
#ifndef MPIXLA_TEST_GPU_TYPES_H
#define MPIXLA_TEST_GPU_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "device/driver.h"
#include "device/nccl.h"

#define FAKE_API __attribute__((visibility("default")))

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
