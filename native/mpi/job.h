/* Ends the job from the C library: after a failure on one rank alone that the others cannot know of, or because a call
 * can never end. */
#ifndef MPIXLA_NATIVE_JOB_H
#define MPIXLA_NATIVE_JOB_H

#include "mpi/comm.h"

/* Prints error_get() and ends the job, after a local failure (memory, a GPU's driver) in a collective call: the other
 * ranks wait in the call, and cannot be told. On a communicator of one rank, returns REFUSED instead. */
int job_fail(const comm_entry *entry);

/* Prints `why` (NULL: nothing), flushes standard output, and ends this process with a status, and with `ends_others`
 * all others through MPI_Abort. If printing or MPI_Abort blocks, this process exits some seconds later, and the
 * launcher ends the others. */
_Noreturn void job_end(const char *why, int status, int ends_others);

#endif
