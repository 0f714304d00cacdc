/* Runs a thread that calls MPI while requests are under way: between hosts most MPIs move messages only inside calls of
 * MPI, which a program that computes does not make. Off until mpixla_progress_set (mpixla.h).
 */
#ifndef MPIXLA_NATIVE_PROGRESS_H
#define MPIXLA_NATIVE_PROGRESS_H

/* Count one more, or one less, request that is under way and not waited for. */
void progress_request_started(void);
void progress_request_ended(void);

/* Ends the thread's calls of MPI; returns once it has left MPI. MPI_Finalize calls this, through the attribute of
 * MPI_COMM_SELF. */
void progress_end(void);

#endif
