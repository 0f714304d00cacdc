/* The end of the job from the C library: because something fails on one rank alone while the others count on it, or
 * because a call will never end. */
#ifndef MPIXLA_NATIVE_JOB_H
#define MPIXLA_NATIVE_JOB_H

#include "mpi/comm.h"

/* For a failure of this rank's own (memory, a GPU's driver), in the words of error_get, in the middle of a call of
 * which the other ranks of the communicator have made their part: they wait, and cannot be told. Prints the sentence
 * and ends the job. Where there is no other rank it returns REFUSED, and error_get stays as it is. */
int job_fail(const comm_entry *entry);

/* Says why (NULL: it was said), flushes what this process has printed, and ends the process with a status, and all
 * others through MPI_Abort if `ends_others`. Where one of these blocks, the process alone ends, some seconds later: its
 * launcher then ends the others. */
_Noreturn void job_end(const char *why, int status, int ends_others);

#endif
