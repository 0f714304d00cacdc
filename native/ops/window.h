/* Messages that are boxes of arrays in the host's memory: the box is sent from where it lies, and received where it
 * belongs; one that is not contiguous is packed, and unpacked.
 */
#ifndef MPIXLA_NATIVE_WINDOW_H
#define MPIXLA_NATIVE_WINDOW_H

#include "call/frame.h"

/* Sets the data of the buffers of a call with windows, and packs the message to send. Returns 0, or as facts_fail. */
int window_begin(frame *f);

/* After a call that received a window: unpacks the message, and fills the rest of the box if the program says with
 * what; else the rest stays as it was. Returns 0 or MPI's code. */
int window_received(frame *f);

/* Gives back the memory of window_begin, whatever has failed since. */
void window_end(frame *f);

#endif
