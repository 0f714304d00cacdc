/* Halo exchange: the ghost zones of blocks on a Cartesian grid of ranks. Both work on the pairs of a frame of MANY, in
 * place where operand and result are one buffer, and return MPI's error code, or MPI_REFUSED with error_set.
 *
 * For each dimension of the communicator, which says who the neighbours are, the attributes say how many items wide the
 * ghost zones are (`width`), and, array by array, which axis it is (`axes`).
 */
#ifndef MPIXLA_NATIVE_HALO_H
#define MPIXLA_NATIVE_HALO_H

#include "call/frame.h"

/* Fills the ghost zones from the neighbours; at a wall they stay as they are. */
int halo_exchange(const frame *c);

/* The transpose: adds the ghost zones to the neighbours' items that they were filled from, and clears them; at a wall
 * they stay as they are. */
int halo_transpose(const frame *c);

#endif
