/* Asks the front end for the stacks of its threads, as lines of text. */
#ifndef MPIXLA_NATIVE_STACK_H
#define MPIXLA_NATIVE_STACK_H

#include <stddef.h>
#include <stdint.h>

/* Returns whether the front end has registered a function that gives its stacks. */
int stack_is_available(void);

/* Asks for the stacks, and waits at most so many milliseconds for the answer. Returns whether it came. Then `text`, of
 * `bytes` bytes, has the lines, and `*threads` is the number of threads that may still make a call, as
 * mpixla_timeout_stack_give counts them; else they are "" and -1. Any thread may call this. */
int stack_ask(char *text, size_t bytes, int64_t *threads, int milliseconds);

/* Wakes all threads in stack_ask, which return without an answer from then on. */
void stack_close(void);

#endif
