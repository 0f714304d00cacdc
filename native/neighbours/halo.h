/* Halo exchange: the ghost zones of blocks on a Cartesian grid of ranks. Both work on the pairs of a frame of MANY, in
 * place where operand and result are one buffer.
 *
 * For each dimension of the communicator, which says who the neighbours are, the attributes say how many items wide the
 * ghost zones are (`width`), and, array by array, which axis it is (`axes`).
 *
 * Both return as messages_run (messages.h). What fails on this rank alone, memory or the GPU's driver, ends the job
 * (job.h), since the neighbours wait for its lines.
 */
#ifndef MPIXLA_NATIVE_HALO_H
#define MPIXLA_NATIVE_HALO_H

#include "call/frame.h"

/* Fills the ghost zones from the neighbours; at a wall they stay as they are. */
int halo_exchange(frame *f);

/* The transpose: adds the ghost zones to the neighbours' items that they were filled from, and clears them; at a wall
 * they stay as they are. Arrays of types that cannot be added are refused. */
int halo_transpose(frame *f);

#endif
