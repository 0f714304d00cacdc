/* Whether arrays are the same on all ranks. */
#ifndef MPIXLA_NATIVE_REPLICATED_H
#define MPIXLA_NATIVE_REPLICATED_H

#include "call/frame.h"

/* Compares all arrays of the call bit by bit, and gives them back. `leaves` has a number for each, which is the same on
 * ranks that mean the same array, and whose text (site_text) names it. `checked` says that checked mode asks.
 *
 * All ranks of the communicator must call it. All return 0, or all REFUSED with a sentence that names the first
 * array that is not the same, and says which ranks have another one, and where it differs; or a code of MPI's. */
int assert_replicated(const frame *f);

#endif
