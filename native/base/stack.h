/* Where the threads of the front end are, which only the front end can say. */
#ifndef MPIXLA_NATIVE_STACK_H
#define MPIXLA_NATIVE_STACK_H

#include <stddef.h>
#include <stdint.h>

/* Returns whether the front end answers stack_ask. */
int stack_is_answered(void);

/* Asks the front end, and waits at most so many milliseconds for its answer. Returns whether it answered: then `text`,
 * of this size, has the lines of its threads, and `*threads` is how many of them may still make a call, as
 * mpixla_timeout_stack_give counts them; else they are "" and -1. Any thread may call it. */
int stack_ask(char *text, size_t bytes, int64_t *threads, int milliseconds);

/* Ends all questions. */
void stack_close(void);

#endif
