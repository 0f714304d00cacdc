/* Communicators by number. */
#ifndef MPIXLA_NATIVE_COMM_H
#define MPIXLA_NATIVE_COMM_H

#include <stdatomic.h>

#include "mpi.h"

enum { COMM_NAME_BYTES = 64 };

typedef struct comm_entry {
    mpixla_handle handle;
    atomic_int alive; /* set to 0 by MPI when the communicator is freed */
    int rank;
    int size;
    char name[COMM_NAME_BYTES];
} comm_entry;

/* Called by mpixla_start. MPI_COMM_SELF becomes number 0. Returns 0, or -1 with error_set. */
int comm_start(mpi_library *library);

/* The communicator with this number; it lives as long as the library. NULL with error_set if there is none, if
 * it was freed, or once MPI is finalized. Takes no lock. */
const comm_entry *comm_find(int64_t id);

#endif
