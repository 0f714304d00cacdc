/* The handlers that XLA calls on the CPU: one for each target of the tables, with the device handler behind it. */
#ifndef MPIXLA_TEST_SEAM_ROWS_H
#define MPIXLA_TEST_SEAM_ROWS_H

#include "test/gpu/seam.h"

/* The handler for this target ("mpixla_allreduce"), or NULL if the tables have none. */
FAKE_API ffi_handler *seam_wrapper(const char *target);

/* The device handler that it calls. Returns 0, or -1 if the tables have no such target. */
FAKE_API int seam_handler_set(const char *target, ffi_handler *device_handler);

#endif
