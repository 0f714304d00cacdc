/* Reports messages that were never received, when MPI_Finalize begins: some MPIs abort the job for such a message, or
 * hang, and do not say why. */
#ifndef MPIXLA_NATIVE_LEFTOVER_H
#define MPIXLA_NATIVE_LEFTOVER_H

/* Registers the search for messages that were never received, which runs when MPI_Finalize begins: it receives all
 * messages that have arrived for this process on MPI_COMM_WORLD and on the registered communicators, and prints a line
 * on standard error for each kind of message. mpixla_start calls this after comm_start. */
void leftover_start(void);

#endif
