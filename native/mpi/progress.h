/* A thread inside MPI while requests are under way. Between hosts, most MPIs move messages only while somebody calls
 * them, and nobody does while a program computes. Off until mpixla_progress_set (mpixla.h), and then free.
 */
#ifndef MPIXLA_NATIVE_PROGRESS_H
#define MPIXLA_NATIVE_PROGRESS_H

/* One request more is under way that nobody waits for, or one less. */
void progress_more(void);
void progress_less(void);

/* Returns when the thread is in MPI no more, nor will be. MPI_Finalize calls it, through MPI_COMM_SELF's attribute. */
void progress_end(void);

#endif
