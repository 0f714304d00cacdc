/* The sentence for the last failure, one for each thread. */
#ifndef MPIXLA_NATIVE_ERROR_H
#define MPIXLA_NATIVE_ERROR_H

enum { ERROR_BYTES = 2048 };

/* Words the failure (printf's format) and returns -1, so that a caller can `return error_set(...)`. What error_get
 * returns is overwritten, so it must not be among the arguments: copy it first. */
__attribute__((format(printf, 1, 2))) int error_set(const char *format, ...);

/* The last sentence of this thread; "" if there was none. */
const char *error_get(void);

#endif
