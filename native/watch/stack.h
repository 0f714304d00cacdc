/* Where the threads of the front end are, which only the front end can say. */
#ifndef MPIXLA_NATIVE_STACK_H
#define MPIXLA_NATIVE_STACK_H

#include <stddef.h>

/* Asks, and waits for the answer for at most so long. Returns 0, or -1 if there was none. */
int stack_ask(char *text, size_t bytes, int milliseconds);

/* Nobody asks again. */
void stack_close(void);

#endif
