/* The communicators of XLA's collectives, one for each clique of devices, by number; and who has left.
 *
 * A rank that comes to its end tells the others how many calls it has made (mpixla_trampoline_left). From that they
 * know whether a call of theirs waits for one that will never be made.
 */
#ifndef MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H
#define MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H

#include <stdatomic.h>

#include "mpi/comm.h"

/* Another member. */
typedef struct clique_peer {
    atomic_int_least64_t sent, received; /* messages to and from it so far */
    atomic_int has_left;
    int64_t collectives, sent_here, received_here; /* once it has left: what it had done */
} clique_peer;

typedef struct clique {
    comm_entry *entry;
    int64_t comm;                          /* the communicator's number */
    clique_peer *peers;                    /* as many as the communicator has ranks */
    atomic_int_least64_t in_collective;    /* the number of the one that this rank is in, from 1; 0: none */
    atomic_int sending_to, receiving_from; /* the peers, from 1, that a call waits for; 0: none */
} clique;

/* The clique with this number, or NULL with error_set. */
clique *clique_find(int64_t number);

/* The number of the clique that was offered to XLA as this one, which nobody else gets from then on; -1 if
 * there is none. */
int64_t clique_take(int color, int key);

#endif
