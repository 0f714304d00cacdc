/* Processes that have died. An MPI with fault tolerance (ULFM) lets the others go on: their calls fail, with error
 * classes of their own, and the program revokes the communicator and makes one of those that are left.
 */
#ifndef MPIXLA_NATIVE_LOSS_H
#define MPIXLA_NATIVE_LOSS_H

#include "mpi/comm.h"

/* Whether an error class says that a process has died, or that somebody has revoked the communicator because of that.
 */
int loss_is(int error_class);

/* The error class of a process that has died; 0 where this MPI has none. */
int loss_class(void);

/* Whether it says that a receive from any process may be for one that has died: such a request still is under way. */
int loss_is_pending(int error_class);

/* Revokes what the library has made of the communicator, which no program could do: who waits in it for a process that
 * has failed in its call, and does not come, waits no longer. Does nothing where the MPI cannot revoke. */
void loss_spread(comm_entry *entry);

#endif
