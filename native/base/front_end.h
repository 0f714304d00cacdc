/* Calls functions of the front end (mpixla_front_end_set), on a thread that starts with the first wish. */
#ifndef MPIXLA_NATIVE_FRONT_END_H
#define MPIXLA_NATIVE_FRONT_END_H

#include "mpixla.h"

/* Returns whether the front end has a function for it. */
int front_end_has(mpixla_wish wish);

/* Has the function called soon, if there is one and a thread can be started. Does not wait. */
void front_end_want(mpixla_wish wish);

/* Has the function called, and waits at most so many milliseconds for it to return. Returns whether it has. */
int front_end_ask(mpixla_wish wish, int milliseconds);

/* Forgets the function, and has all return that wait for it. One that is being called goes on. */
void front_end_forget(mpixla_wish wish);

#endif
