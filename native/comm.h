/* Communicators by number. */
#ifndef MPIXLA_NATIVE_COMM_H
#define MPIXLA_NATIVE_COMM_H

#include <stdatomic.h>

#include "mpi.h"

enum { COMM_NAME_BYTES = 64 };

typedef struct comm_entry {
    mpixla_handle handle;
    atomic_int alive;               /* set to 0 by MPI when the communicator is freed */
    _Atomic mpixla_handle reversed; /* see comm_reversed */
    atomic_int has_reversed;
    _Atomic mpixla_handle private; /* see comm_private */
    atomic_int has_private;
    int rank;
    int size;
    char name[COMM_NAME_BYTES];
} comm_entry;

/* Called by mpixla_start. MPI_COMM_SELF becomes number 0. Returns 0, or -1 with error_set. */
int comm_start(mpi_library *library);

/* The communicator with this number; it lives as long as the library. NULL with error_set if there is none, if
 * it was freed, or once MPI is finalized. Takes no lock. */
comm_entry *comm_find(int64_t id);

/* The same processes with their ranks in reverse order: a communicator that is made on first use, for which all of
 * them must call this at the same place of the program, and freed with this one. Returns MPI's error code. */
int comm_reversed(comm_entry *entry, mpixla_handle *reversed);

/* A duplicate whose messages do not meet those that the program sends itself: made, and freed, as the reversed one. */
int comm_private(comm_entry *entry, mpixla_handle *private);

#endif
