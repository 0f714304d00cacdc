/* Debug lines (MPIXLA_DEBUG, mpixla_logging_set). */
#ifndef MPIXLA_NATIVE_LOG_H
#define MPIXLA_NATIVE_LOG_H

#include "call/facts.h"

typedef struct log_call {
    unsigned id;     /* tells the calls of a process apart */
    int64_t started; /* clock_now then */
} log_call;

/* The line for a call that begins, with `started` as call_describe has it, and the one for its end, with MPI's error
 * class. Each is written to standard error in one piece, so that lines of several ranks and threads do not mix. */
void log_start(log_call *l, const call_facts *f, const call_facts *started);
void log_end(const log_call *l, const call_facts *f, int code);

#endif
