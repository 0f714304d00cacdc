/* Prints debug lines at the begin and end of each call (MPIXLA_DEBUG, mpixla_logging_set). */
#ifndef MPIXLA_NATIVE_LOG_H
#define MPIXLA_NATIVE_LOG_H

#include "call/facts.h"

typedef struct log_call {
    unsigned id;     /* of the call in this process, printed in both lines */
    int64_t started; /* clock_now then */
} log_call;

/* Prints the debug line of a call that begins (`started` as in facts_describe). Each line is one write to standard
 * error, so that lines of several ranks and threads do not mix. */
void log_start(log_call *l, const call_facts *f, const call_facts *started);
void log_end(const log_call *l, const call_facts *f, int code);

#endif
