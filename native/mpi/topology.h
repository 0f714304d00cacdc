/* Who is whose neighbour on a communicator: read from MPI when the communicator is registered, and never changed. */
#ifndef MPIXLA_NATIVE_TOPOLOGY_H
#define MPIXLA_NATIVE_TOPOLOGY_H

#include "mpi/mpi.h"

/* One side of the edges of this rank: their other ends, MPIXLA_PROC_NULL beyond a wall, and the tags of the messages
 * along them. */
typedef struct topology_slots {
    int64_t number;
    const int64_t *ranks, *tags;
} topology_slots;

/* A Cartesian topology has two slots for each dimension, the rank below and the one above, in both lists. What goes
 * down arrives from above, so a message has the tag of the slot that it is sent from; this tells the two apart where
 * one rank is both. In a graph several edges between the same two ranks have one tag, and match in order. */
typedef struct topology {
    topology_slots sources, dests;
    int dimensions; /* of a Cartesian one; -1: a graph */
    /* Of each dimension: its ranks, whether it is periodic, and where this rank is. */
    const int *sizes, *periods, *place;
} topology;

/* Finds the topology of a communicator in which this process has this rank; it is kept for good. `*made` is NULL where
 * there is none. Returns 0 or REFUSED. */
int topology_read(const mpi_library *mpi, mpixla_handle comm, int rank, const topology **made);

/* The rank that is `disp` steps further in this direction, MPIXLA_PROC_NULL beyond a wall, into `*there`. Where there
 * is no Cartesian topology (`t` may be NULL) the `size` ranks are one periodic dimension. Returns whether there is
 * such a direction. */
int topology_shift(const topology *t, int rank, int size, int64_t direction, int64_t disp, int64_t *there);

#endif
