/* Scratch buffers of each thread, kept between calls so that a call allocates nothing, and freed when the thread ends.
 */
#ifndef MPIXLA_NATIVE_SCRATCH_H
#define MPIXLA_NATIVE_SCRATCH_H

#include <stddef.h>

typedef enum scratch_use {
    SCRATCH_SENT,     /* counts and displacements (parts.h) */
    SCRATCH_RECEIVED, /* likewise */
    SCRATCH_VALUES,   /* numbers at run time (call/values.h) */
    SCRATCH_MESSAGES, /* the messages of a call (neighbours/messages.h) */
    SCRATCH_TALLIES,  /* counts of the messages between two ranks (check/tally.c) */
    SCRATCH_USES
} scratch_use;

/* Returns a buffer of at least `bytes` bytes, aligned for any type; NULL with error_set without memory. The next call
 * of this thread for the same use invalidates the buffer. */
void *scratch_get(scratch_use use, size_t bytes);

#endif
