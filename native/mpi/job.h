/* What fails on one rank alone while the others count on it. */
#ifndef MPIXLA_NATIVE_JOB_H
#define MPIXLA_NATIVE_JOB_H

#include "mpi/comm.h"

/* For a failure of this rank's own (memory, a GPU's driver), in the words of error_get, in the middle of a call of
 * which the other ranks of the communicator have made their part: they wait, and cannot be told. Prints the sentence
 * and ends the job. Where there is no other rank it returns MPI_REFUSED, and error_get stays as it is. */
int job_fail(const comm_entry *entry);

#endif
