/* The end of the job from the C library: because something fails on one rank alone while the others count on it, or
 * because a call will never end. */
#ifndef MPIXLA_NATIVE_JOB_H
#define MPIXLA_NATIVE_JOB_H

#include "mpi/comm.h"

/* Writes for people, to the file of mpixla_output_set. */
void job_say(const char *text);

/* For a failure of this rank's own (memory, a GPU's driver), in the words of error_get, in the middle of a call of
 * which the other ranks of the communicator have made their part: they wait, and cannot be told. Prints the sentence
 * and ends the job. Where there is no other rank it returns REFUSED, and error_get stays as it is. */
int job_fail(const comm_entry *entry);

/* Ends this process with a status, after what it has printed, and all others through MPI_Abort if `ends_others`. */
_Noreturn void job_end(int status, int ends_others);

#endif
