/* The communicators of XLA's collectives, one for each clique of devices: offered by the front end until XLA takes
 * them. Any thread may call these functions. */
#ifndef MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H
#define MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H

#include "mpixla.h"

/* Offers XLA a communicator, by its number of mpixla_comm_register, for the next clique of devices that has this first
 * device (`color`) and this process at this place (`key`). Returns 0, or -1 if too many offers are open. */
MPIXLA_API int mpixla_trampoline_offer(int64_t comm, int color, int key);

/* Returns the number of communicators that were offered to XLA, and that XLA has not asked for yet. */
MPIXLA_API int mpixla_trampoline_offers(void);

/* Removes the offer of a communicator for this clique, and returns the communicator's number; -1 if there is none. The
 * newest offer is taken: cliques with the same first device and the same place in it look alike, and the front end
 * opens one at a time. */
int64_t clique_offer_take(int color, int key);

#endif
