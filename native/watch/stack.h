/* Where the threads of the front end are, which only the front end can say. */
#ifndef MPIXLA_NATIVE_STACK_H
#define MPIXLA_NATIVE_STACK_H

#include <stddef.h>

/* Asks, and waits for the answer for at most so long. Returns whether there was one: its lines are in `text` then,
 * which has this size, and else "". One thread asks. */
int stack_ask(char *text, size_t bytes, int milliseconds);

/* Nobody will ask again, so the front end need not wait for it. */
void stack_close(void);

#endif
