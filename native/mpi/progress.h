/* Runs a thread that calls MPI while requests are under way: between hosts most MPIs move messages only inside calls of
 * MPI, which a program that computes does not make. Off until mpixla_progress_set (mpixla.h).
 */
#ifndef MPIXLA_NATIVE_PROGRESS_H
#define MPIXLA_NATIVE_PROGRESS_H

/* Count one more, or one less, request that is under way and not waited for. */
void progress_more(void);
void progress_less(void);

/* Ends the calls of the thread, and returns once it has left MPI. MPI_Finalize calls this, through the attribute of
 * MPI_COMM_SELF. */
void progress_end(void);

#endif
