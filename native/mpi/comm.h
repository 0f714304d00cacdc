/* Communicators by number. */
#ifndef MPIXLA_NATIVE_COMM_H
#define MPIXLA_NATIVE_COMM_H

#include <stdatomic.h>

#include "mpi/mpi.h"
#include "mpi/topology.h"

enum { COMM_NAME_BYTES = 64 };

/* Communicators that the library makes of another: see comm_reversed, comm_private and comm_checking. */
enum { COMM_REVERSED, COMM_PRIVATE, COMM_CHECKING, COMM_DERIVED };

typedef struct comm_entry {
    mpixla_handle handle;
    atomic_int alive; /* set to 0 by MPI when the communicator is freed */
    struct {
        _Atomic mpixla_handle handle;
        atomic_int made;
    } derived[COMM_DERIVED];          /* made of this one, and freed with it */
    _Atomic(void *) plan;             /* of the transports for GPUs (transport/plan.h), NULL if there is none */
    _Atomic(void *) checks;           /* of checked mode (check/state.h), NULL if there are none */
    atomic_int_least64_t collectives; /* calls of all ranks so far */
    atomic_int loss_is_known;         /* the program has heard that a process of it died (watch/failure.h) */
    _Atomic(const int *) members;     /* the ranks in MPI_COMM_WORLD of its processes; NULL: nobody has said */
    atomic_int traced;                /* the timeline that watch/trace.c has described it in, as it counts them */
    int64_t number;                   /* its own in this process */
    int rank;
    int size;
    const topology *topology; /* NULL: it has none */
    char name[COMM_NAME_BYTES];
} comm_entry;

/* From now on `freed` is called with the plan of each communicator that is freed, while MPI can be used. */
void comm_plans_freed_by(void (*freed)(void *plan));

/* The same for its checks, before the communicators that were made of it go. */
void comm_checks_freed_by(void (*freed)(void *checks));

/* From now on `stop` is called when MPI_Finalize begins: MPI can still be used. */
void comm_finalize_tells(void (*stop)(void));

/* Called by mpixla_start. MPI_COMM_SELF becomes number 0. Returns 0, or -1 with error_set. */
int comm_start(mpi_library *library);

/* The communicator with this number; it lives as long as the library. NULL with error_set if there is none, if
 * it was freed, or once MPI is finalized. Takes no lock. */
comm_entry *comm_find(int64_t id);

/* The same for those who only look: also one that was freed. NULL if there is none. */
comm_entry *comm_look(int64_t id);

/* Counts a collective call: how many there were before. One thread at a time uses a communicator. */
static inline int64_t comm_count(comm_entry *entry) {
    int64_t so_far = atomic_load_explicit(&entry->collectives, memory_order_relaxed);
    atomic_store_explicit(&entry->collectives, so_far + 1, memory_order_relaxed);
    return so_far;
}

/* Whether this process was forked from one that runs MPI (mpixla_forked). */
int comm_is_forked(void);

/* Whether a shift can have so many numbers: pairs of them, one for each dimension at most. */
enum { COMM_SHIFT_NUMBERS = 64 };
static inline int comm_is_shift(int64_t size) {
    return size >= 0 && size <= COMM_SHIFT_NUMBERS && size % 2 == 0;
}

/* mpixla_comm_shift, of a communicator that was found, and a size that comm_is_shift. */
int comm_shift(const comm_entry *entry, const int64_t *steps, int64_t size, int64_t *rank);

/* The same processes with their ranks in reverse order: a communicator that is made on first use, for which all of
 * them must call this at the same place of the program, and freed with this one. Returns MPI's error code. */
int comm_reversed(comm_entry *entry, mpixla_handle *reversed);

/* A duplicate, on which the library's messages do not meet those of the program: made and freed in the same way. */
int comm_private(comm_entry *entry, mpixla_handle *private);

/* Another one, for the messages of checked mode. */
int comm_checking(comm_entry *entry, mpixla_handle *checking);

#endif
