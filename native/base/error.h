/* The sentence for the last failure, one for each thread.
 *
 * What functions return, in all of native/:
 *
 *   0 or -1        the second after error_set; a function that gives a pointer gives NULL then, and one that gives a
 *                  number that is not negative gives -1
 *   a code of MPI  0; what MPI returned, which is positive and has no sentence yet, as MPI's text is fetched where the
 *                  call ends (life.c); or MPI_REFUSED (mpi/mpi.h), after error_set
 *   yes or no      not 0, or 0: is_..., has_..., and what its header calls "whether"
 */
#ifndef MPIXLA_NATIVE_ERROR_H
#define MPIXLA_NATIVE_ERROR_H

enum { ERROR_BYTES = 2048 };

/* Words the failure (printf's format) and returns -1, so that a caller can `return error_set(...)`. What error_get
 * returns is overwritten, so it must not be among the arguments: copy it first. */
__attribute__((format(printf, 1, 2))) int error_set(const char *format, ...);

/* The last sentence of this thread; "" if there was none. */
const char *error_get(void);

#endif
