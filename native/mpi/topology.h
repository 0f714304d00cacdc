/* The neighbours of this rank on a communicator with a topology, read from MPI when the communicator is registered. */
#ifndef MPIXLA_NATIVE_TOPOLOGY_H
#define MPIXLA_NATIVE_TOPOLOGY_H

#include "mpi/mpi.h"

/* The edges of this rank in one direction: the ranks at their other ends (MPIXLA_PROC_NULL beyond a wall), and the tags
 * of messages along them. */
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
    /* For each dimension: its number of ranks, whether it is periodic, and this rank's coordinate. */
    const int *sizes, *periods, *place;
} topology;

/* Reads the topology of a communicator, in which this process has this rank, into `*made`, which is never freed; NULL
 * if the communicator has none. Returns 0 or REFUSED. */
int topology_read(const mpi_library *mpi, mpixla_handle comm, int rank, const topology **made);

/* Sets `*rank_found` to the rank `disp` steps further in this direction, MPIXLA_PROC_NULL beyond a wall. MPI counts the
 * ranks of a Cartesian communicator row by row; without one (`t` may be NULL) the `size` ranks are one periodic
 * dimension. Returns whether the direction exists. */
int topology_shift(const topology *t, int rank, int size, int64_t direction, int64_t disp, int64_t *rank_found);

#endif
