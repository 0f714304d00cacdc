/* Registers status objects (MPI_Status) of the program by number. */
#ifndef MPIXLA_NATIVE_STATUS_H
#define MPIXLA_NATIVE_STATUS_H

#include <stdint.h>

/* Returns the address of the status object with this number; NULL with error_set. Takes no lock. */
void *status_find(int64_t id);

#endif
