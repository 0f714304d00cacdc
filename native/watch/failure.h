/* Failures that nobody has heard of yet.
 *
 * XLA raises a failure at once where the program runs on the thread that called it (mpixla_failures_raised_on). Else it
 * hands it to whoever looks at the result. A front end that sees one says so (mpixla_failures_seen). What nobody has
 * looked at is written on standard error when the next call is made, and at the end of the process
 * (mpixla_failures_end), which then ends badly. Sentences that are equal count as one. Of
 * those that nobody has looked at 1,024 are kept; the rest are counted, and that is told at the end. Any thread may
 * call these.
 */
#ifndef MPIXLA_NATIVE_FAILURE_H
#define MPIXLA_NATIVE_FAILURE_H

#include "mpi/comm.h"

/* A call has failed with this sentence. `lost` is NULL, or the communicator of which a process has died, which is why
 * it has failed, and why all later calls on it will: as soon as one such failure is seen all count as seen, also later
 * ones. */
void failure_note(const char *sentence, comm_entry *lost);

/* Writes those on standard error that are not there yet. While there are any, FEATURE_UNTOLD is on (base/feature.h). */
void failure_tell(void);

#endif
