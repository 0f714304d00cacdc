/* Recognizes the errors of an MPI with fault tolerance (ULFM) after a process has died: calls of the other processes
 * fail with these error classes, and the program revokes the communicator and makes one of the remaining processes.
 */
#ifndef MPIXLA_NATIVE_LOSS_H
#define MPIXLA_NATIVE_LOSS_H

#include "mpi/comm.h"

/* Returns whether an error class means that a process has died, or that a rank has revoked the communicator after that.
 */
int loss_is_error(int error_class);

/* Returns the error class for a process that has died; 0 if this MPI has none. */
int loss_error_class(void);

/* Returns whether an error class means that a receive from any source may need a process that has died. The request of
 * such a receive is still active. */
int loss_is_pending(int error_class);

/* Revokes the communicators that are derived from this one, which the program cannot reach: ranks that wait there for a
 * dead process return. Does nothing if this MPI cannot revoke. */
void loss_derived_revoke(comm_entry *entry);

#endif
