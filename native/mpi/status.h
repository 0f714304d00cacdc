/* Status objects (MPI_Status) by number. */
#ifndef MPIXLA_NATIVE_STATUS_H
#define MPIXLA_NATIVE_STATUS_H

#include <stdint.h>

/* The address of the status object with this number, or NULL with error_set. Takes no lock. */
void *status_find(int64_t id);

#endif
