/* Failures that nobody has heard of yet.
 *
 * XLA raises a failure at once where the program runs on the thread that called it (mpixla_failures_raised_on). Else it
 * hands it to whoever looks at the result. A front end that sees one says so (mpixla_failures_seen). What nobody has
 * looked at is written on standard error when the next call is made, and at the end of the process
 * (mpixla_failures_end), which then ends badly. Sentences that are equal count as one. Any thread may call these.
 */
#ifndef MPIXLA_NATIVE_FAILURE_H
#define MPIXLA_NATIVE_FAILURE_H

#include <stdatomic.h>

/* A call has failed with this sentence. With `is_known`, its cause is one that lasts and fails every call after it (a
 * process that died): as soon as one such failure is seen, all are, those to come too, and `*is_known` becomes 1. It
 * must last as long as the library. */
void failure_note(const char *sentence, atomic_int *is_known);

/* A call that had ended well turns out to have failed: nobody will hear of it, whichever thread this is. */
void failure_keep(const char *sentence);

/* Whether there is one that is not on standard error yet: for the start of each call. */
int failure_is_untold(void);

/* Writes those on standard error. */
void failure_tell(void);

#endif
