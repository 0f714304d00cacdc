/* Messages that are boxes of arrays in the host's memory: the box is sent from where it lies, and received where it
 * belongs; one that is not contiguous is packed, and unpacked.
 */
#ifndef MPIXLA_NATIVE_WINDOW_H
#define MPIXLA_NATIVE_WINDOW_H

#include "call/frame.h"

/* Sets the data of the buffers of a call with windows, and packs the message to send; memory that it takes for that is
 * f->packed. Copies the template to the result if XLA gave them different memory. Returns 0. Without memory it ends the
 * job if the call is collective, else it returns REFUSED (facts_fail). */
int window_begin(frame *f);

/* Completes a call that received its message into a window, a box of the result's array: sets f->arrived, the bytes of
 * the message, from f->status, unpacks the message from f->packed unless it was received in place, and fills the items
 * of the box behind a shorter message with the item of the attribute "fill", if there is one. Returns 0 or MPI's error
 * code. */
int window_received(frame *f);

/* Gives back the memory of window_begin, whatever has failed since. */
void window_end(frame *f);

#endif
