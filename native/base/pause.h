/* Marks waits for a resource of this process, such as a GPU's stream, which the time limit must not count as waiting
 * for other ranks. */
#ifndef MPIXLA_NATIVE_PAUSE_H
#define MPIXLA_NATIVE_PAUSE_H

#include <stdatomic.h>
#include <stdint.h>

/* Sets the counter of the calling thread, which is odd inside a marked wait. NULL: waits of this thread are not
 * counted. */
void pause_counter_set(atomic_int *place);

/* Begins and ends a marked wait. */
void pause_begin(void);
void pause_end(void);

/* Returns the time that the calling thread has spent in marked waits so far, in nanoseconds. */
int64_t pause_total(void);

#endif
