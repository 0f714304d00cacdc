/* Keeps the sentence about the last failure of each thread, and defines the error codes of all of native/.
 *
 * A function that can fail returns 0, or an error code, which is one of two kinds:
 *
 *   REFUSED    a failure that is not MPI's, or that has a sentence already: its finder has called error_set
 *   positive   the code that a function of MPI returned. There is no sentence yet: MPI's own text is fetched where the
 * call ends (execute.c). Only functions that call MPI for a call of the program return such a code.
 *
 * Headers say "0 or REFUSED" of functions that give no code of MPI's, and "0 or an error code" of the others. A caller
 * returns an error code unchanged. A function that returns a number >= 0 returns REFUSED on failure, and one that
 * returns a pointer returns NULL, both after error_set.
 *
 * A function that answers a question returns not 0 for yes, and 0 for no: it is named is_... or has_..., or its comment
 * says "whether".
 */
#ifndef MPIXLA_NATIVE_ERROR_H
#define MPIXLA_NATIVE_ERROR_H

#include <stddef.h>

/* No MPI has negative error codes. */
enum { REFUSED = -1 };

enum { ERROR_BYTES = 2048 };

/* Sets the sentence about a failure (printf's format). Returns REFUSED, so that a caller can `return error_set(...)`.
 * The text of error_get is overwritten: copy it before it is an argument. */
__attribute__((format(printf, 1, 2))) int error_set(const char *format, ...);

/* Sets the sentence as error_set does, in a function that returns a pointer: the value is NULL. */
#define error_null(...) ((void)error_set(__VA_ARGS__), NULL)

/* Returns the last sentence of this thread; "" if there was none. */
const char *error_get(void);

#endif
