/* Ownership of the memory that a communicator's ranks share: one slot of the communicator for each kind of memory, and
 * one call at a time that owns the memory in the slot. The memory is made in the first call that takes it. It is freed
 * with the communicator; if a call owns it at that moment, that call frees it. */
#ifndef MPIXLA_NATIVE_HOLD_H
#define MPIXLA_NATIVE_HOLD_H

#include "local/memory.h"

/* One kind of memory. */
typedef struct hold {
    comm_slot slot;
    /* Makes the memory: a collective call. `*made` is NULL if there is none to be had. Returns 0 or an error code; with
     * a code `*made` is NULL or broken. */
    int (*make)(const comm_entry *c, void **made);
    void (*free)(void *value);
    memory_state *(*state)(const void *value); /* broken by this rank if two of its threads make calls at a time */
    int (*check)(const void *value);           /* returns 0, or an error code if a rank has broken the memory */
} hold;

/* Takes the shared memory for a call, and makes it if this is the first one. The caller gives `*taken` back with
 * hold_release; if it is NULL, the ranks share no memory of this kind, and the call goes through MPI. Returns 0 or an
 * error code; REFUSED if a call of another thread owns the memory. */
int hold_acquire(const hold *h, comm_entry *c, void **taken);

/* Gives back the shared memory that hold_acquire gave: breaks it if a call of another thread was refused meanwhile, and
 * frees it if the communicator was freed. */
void hold_release(const hold *h, comm_entry *c, void *given);

/* Returns 0, or an error code if the shared memory is there and broken, for a call that does not take it; 0 as well
 * while a call owns it. */
int hold_check(const hold *h, comm_entry *c);

/* Frees the shared memory of a slot, unless the slot has a sentinel: for comm_slot_destructor_set. */
void hold_free(const hold *h, void *value);

#endif
