/* Calls functions of the front end (mpixla_front_end_set), such as Python's flush, on a thread of the library. The
 * thread is started by the first request (a "wish"). */
#ifndef MPIXLA_NATIVE_FRONT_END_H
#define MPIXLA_NATIVE_FRONT_END_H

#include "mpixla.h"

/* Returns whether the front end has registered a function for this wish. */
int front_end_is_set(mpixla_wish wish);

/* Requests a call of the front end's function for this wish, and does not wait for it. Does nothing without a function,
 * or where no thread can be started. */
void front_end_request(mpixla_wish wish);

/* Requests a call of the front end's function for this wish, and waits at most so many milliseconds. Returns whether
 * the function has returned by then. */
int front_end_request_and_wait(mpixla_wish wish, int milliseconds);

/* Unregisters the function of this wish, and wakes all threads that wait for it. A call under way goes on. */
void front_end_unset(mpixla_wish wish);

#endif
