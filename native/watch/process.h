/* Processes of this host, as its kernel knows them. */
#ifndef MPIXLA_NATIVE_PROCESS_H
#define MPIXLA_NATIVE_PROCESS_H

#include <stdint.h>

#include "watch/state.h"

/* Whether the process with this number (getpid) is stopped or gone; else STATE_SILENT. */
state_presence process_look(int64_t number);

/* The processor time of this process so far, nanoseconds. */
int64_t process_time(void);

#endif
