/* What a thread waits for that is no other rank, such as the stream of a GPU: it says so, for those who watch it. */
#ifndef MPIXLA_NATIVE_PAUSE_H
#define MPIXLA_NATIVE_PAUSE_H

#include <stdatomic.h>
#include <stdint.h>

/* Where the calling thread counts: odd while it waits. NULL: nobody watches. */
void pause_count_in(atomic_int *place);

/* Around such a wait. */
void pause_begin(void);
void pause_end(void);

/* How long the calling thread has waited in this way so far, in nanoseconds. */
int64_t pause_total(void);

#endif
