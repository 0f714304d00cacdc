/* Halo exchange: the ghost zones of blocks on a Cartesian grid of ranks. Both functions work on the pairs of a frame of
 * MANY, in place if XLA has given operand and result one buffer.
 *
 * The communicator has the neighbours in each dimension. The attributes have, for each dimension, the width of the
 * ghost zones in items (`width`) and, for each array, its axis (`axes`).
 *
 * Both return as messages_run (messages.h). A local failure (memory, a GPU's driver) is handled as by job_fail (job.h),
 * since the neighbours wait for this rank's messages.
 */
#ifndef MPIXLA_NATIVE_HALO_H
#define MPIXLA_NATIVE_HALO_H

#include "call/frame.h"

/* Fills the ghost zones from the neighbours. A ghost zone at a wall is left unchanged. */
int halo_exchange(frame *f);

/* Adds each ghost zone to the neighbour's items that it was filled from, and clears it: the transpose of halo_exchange.
 * A ghost zone at a wall is left unchanged. Returns REFUSED for arrays of types that cannot be added. */
int halo_transpose(frame *f);

#endif
