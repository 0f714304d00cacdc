/* Debug lines (MPIXLA_DEBUG, mpixla_logging_set). */
#ifndef MPIXLA_NATIVE_LOG_H
#define MPIXLA_NATIVE_LOG_H

#include "call/frame.h"

typedef struct log_call {
    unsigned id;    /* tells the calls of a process apart */
    double started; /* seconds, of a clock that only goes forward */
} log_call;

/* Whether lines are wanted. */
int log_is_on(void);

/* The line for a call that starts, and the one for its end with MPI's error class. Each is written to standard
 * error in one piece, so that lines of several ranks and threads do not mix. */
void log_start(log_call *l, const frame *f);
void log_end(const log_call *l, const frame *f, int code);

#endif
