/* Messages that nobody received, told when MPI_Finalize begins: some MPIs end the job for one, or hang, and do not say
 * why. */
#ifndef MPIXLA_NATIVE_LEFTOVER_H
#define MPIXLA_NATIVE_LEFTOVER_H

/* Called by mpixla_start, after comm_start. From then on MPI_Finalize begins with taking what has come for this process
 * on MPI_COMM_WORLD and on the communicators that are registered, and with a line on standard error for each kind of
 * message. */
void leftover_start(void);

#endif
