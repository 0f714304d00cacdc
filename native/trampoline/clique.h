/* The communicators of XLA's collectives, one for each clique of devices. */
#ifndef MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H
#define MPIXLA_NATIVE_TRAMPOLINE_CLIQUE_H

#include <stdint.h>

/* The number of the communicator that was offered to XLA for this clique, which nobody else gets from then on; -1 if
 * there is none. */
int64_t clique_take(int color, int key);

#endif
