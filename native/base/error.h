/* The sentence for the last failure, one for each thread; and what functions return, in all of native/.
 *
 * A function that can fail returns 0, or an error code, which is one of two kinds:
 *
 *   REFUSED    a failure that is not MPI's, or that has a sentence already: whoever found it has called error_set
 *   positive   what a function of MPI returned. It has no sentence yet: MPI's own text is fetched where the call ends
 *              (life.c). Only functions that call MPI for a call of the program return such a code.
 *
 * Headers say "0 or REFUSED" of those that give no code of MPI's, and "0 or an error code" of the others. Whoever gets
 * an error code returns it as it is. A function that gives a number which is not negative gives REFUSED in its place,
 * and one that gives a pointer gives NULL, after error_set.
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

/* Words the failure (printf's format) and returns REFUSED, so that a caller can `return error_set(...)`. What error_get
 * returns is overwritten, so it must not be among the arguments: copy it first. */
__attribute__((format(printf, 1, 2))) int error_set(const char *format, ...);

/* The same for a function that gives a pointer. */
#define error_null(...) ((void)error_set(__VA_ARGS__), NULL)

/* The last sentence of this thread; "" if there was none. */
const char *error_get(void);

#endif
