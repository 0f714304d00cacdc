/* Memory that processes of one host share, by a number that they know. */
#ifndef MPIXLA_NATIVE_SHARED_H
#define MPIXLA_NATIVE_SHARED_H

#include <stdint.h>

/* A number that nobody else has, on any host, and that nobody can guess where the system has random bytes. */
uint64_t shared_number(void);

/* Maps memory of so many bytes, page by page of zeros, which this call makes or, if it does not, must find: who has no
 * memory in common with its maker finds none, and memory of another user's is none. The part of `mine` bytes at `from`,
 * the start of a page, is reserved, near the processor that calls: there may be less memory than a name can be had for.
 * A quarter of what the system has for such memory is left to others. NULL if there is none; then no name is left. */
void *shared_open(uint64_t number, int makes, int64_t bytes, int64_t from, int64_t mine);

/* Lets go of it. */
void shared_close(void *memory, int64_t bytes);

/* Nobody can find it from now on, and it goes with the last process that has it. */
void shared_forget(uint64_t number);

#endif
