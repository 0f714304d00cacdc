/* Processes of this host, as its kernel knows them. */
#ifndef MPIXLA_NATIVE_PROCESS_H
#define MPIXLA_NATIVE_PROCESS_H

#include <stdint.h>

#include "watch/state.h"

/* Whether the process with this number (getpid) is stopped or gone; else STATE_SILENT. */
state_presence process_look(int64_t number);

/* How much of a processor this process has used lately, in per cent: since a process_measure that was one to two
 * seconds ago, if that is called again and again; -1 if it never was. One thread uses both. */
int64_t process_percent(void);
void process_measure(void);

#endif
