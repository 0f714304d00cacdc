/* Keeps failures of calls until the program has seen them, and prints the others.
 *
 * XLA raises a failure at once if the program runs on the thread that dispatched it (mpixla_failures_raised_on). Else
 * the failure is raised when the program looks at the result. The front end reports each exception that it sees
 * (mpixla_failures_seen). Failures that were not seen are printed on standard error when the next call is made, and at
 * the end of the process (mpixla_failures_end), which then exits with a status that is not 0. Equal sentences are one
 * failure. At most 1,024 unseen failures are kept; the others are counted, and the count is printed at the end. Any
 * thread may call these functions.
 */
#ifndef MPIXLA_NATIVE_FAILURE_H
#define MPIXLA_NATIVE_FAILURE_H

#include "mpi/comm.h"

/* Adds the failure of a call, by its sentence, to those that the program has not seen; not on a thread where XLA raises
 * it at once. `lost` is NULL, or the communicator a process of which has died: all later calls on that communicator
 * fail for the same reason, so once the program has seen one of these failures, all others of that communicator count
 * as seen, later ones too. */
void failure_add(const char *sentence, comm_entry *lost);

/* Prints the failures that are unseen and not printed yet. While there are such, FEATURE_UNPRINTED is on
 * (base/feature.h). */
void failure_unseen_print(void);

#endif
