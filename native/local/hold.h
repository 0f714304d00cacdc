/* What is kept for a communicator, for one call at a time: memory that its ranks share, of one kind. It is made in the
 * first call that takes it, and freed with the communicator, also by a program that frees that under a call. */
#ifndef MPIXLA_NATIVE_HOLD_H
#define MPIXLA_NATIVE_HOLD_H

#include "local/memory.h"

/* What there is of one kind. */
typedef struct hold {
    comm_slot slot;
    /* Makes it, in a call of all ranks of the communicator. `*made` is NULL where there is none to be had. Returns 0 or
     * an error code, with which `*made` is broken, if it is not NULL. */
    int (*make)(const comm_entry *c, void **made);
    void (*free)(void *value);
    memory_state *(*state)(const void *value); /* which this rank breaks where two threads made calls at a time */
    int (*check)(const void *value);           /* 0, or an error code if some rank has broken it */
} hold;

/* Takes it for a call. `*taken` is to be given back, unless it is NULL: then the call goes through MPI. Returns 0 or an
 * error code. */
int hold_take(const hold *h, comm_entry *c, void **taken);
void hold_give(const hold *h, comm_entry *c, void *given);

/* Checks it, for a call that does not take it; 0 where there is none. */
int hold_check(const hold *h, comm_entry *c);

/* For comm_slot_freed_by. */
void hold_free(const hold *h, void *value);

#endif
