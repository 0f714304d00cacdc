/* The communicators of XLA's collectives, one for each clique of devices. */
#ifndef MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H
#define MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H

#include <stdint.h>

/* Removes the offer of a communicator for this clique, and returns the communicator's number; -1 if there is none. The
 * newest offer is taken: cliques with the same first device and the same place in it look alike, and the front end
 * opens one at a time. */
int64_t clique_offer_take(int color, int key);

#endif
