/* Where the threads of the front end are, which only the front end can say. */
#ifndef MPIXLA_NATIVE_STACK_H
#define MPIXLA_NATIVE_STACK_H

#include <stddef.h>

/* Asks, and waits for the answer for at most so long. Returns 0 with lines in `text`, of this size, or -1 with "" if
 * there was none. One thread asks. */
int stack_ask(char *text, size_t bytes, int milliseconds);

/* Nobody asks again. */
void stack_close(void);

#endif
