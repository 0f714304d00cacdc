/* Failures that nobody has heard of yet.
 *
 * XLA raises a failure at once where the program runs on the thread that called it (mpixla_failures_raised_on). Else it
 * hands it to whoever looks at the result. A front end that sees one says so (mpixla_failures_seen). What nobody has
 * looked at is written on standard error when the next call is made, and at the end of the process
 * (mpixla_failures_end), which then ends badly. Sentences that are equal count as one. Any thread may call these.
 */
#ifndef MPIXLA_NATIVE_FAILURE_H
#define MPIXLA_NATIVE_FAILURE_H

#include "mpi/comm.h"

/* A call has failed with this sentence. With `lost`, its cause is that a process of this communicator has died, which
 * lasts and fails every call after it: as soon as one such failure is seen, all are, those to come too. */
void failure_note(const char *sentence, comm_entry *lost);

/* Writes on standard error those that are not there yet: while there are any, FEATURE_UNTOLD is on (base/feature.h). */
void failure_tell(void);

#endif
