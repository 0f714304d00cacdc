/* Small memory that calls need while they run: each thread keeps what it has needed so far, so that a call allocates
 * nothing. It is freed when the thread ends.
 */
#ifndef MPIXLA_NATIVE_SCRATCH_H
#define MPIXLA_NATIVE_SCRATCH_H

#include <stddef.h>

typedef enum scratch_use {
    SCRATCH_SENT,     /* counts and displacements (parts.h) */
    SCRATCH_RECEIVED, /* likewise */
    SCRATCH_VALUES,   /* numbers at run time (call/values.h) */
    SCRATCH_MESSAGES, /* the messages of a call (neighbours/messages.h) */
    SCRATCH_TALLIES,  /* what goes between two ranks (check/tally.c) */
    SCRATCH_STARTED,  /* messages that XLA has started (trampoline/calls.c) */
    SCRATCH_USES
} scratch_use;

/* At least `bytes` bytes, aligned for anything; the contents are lost when this thread asks for the same use again. On
 * failure NULL, with error_set. */
void *scratch_get(scratch_use use, size_t bytes);

#endif
