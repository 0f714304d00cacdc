/* Prints the library's sentences, and flushes buffered output of the program. A write gives up after a time limit: a
 * terminal may be stopped (Ctrl-S), and a pipe may be full and have no reader.
 */
#ifndef MPIXLA_NATIVE_OUTPUT_H
#define MPIXLA_NATIVE_OUTPUT_H

/* Writes a sentence to the file of mpixla_output_set: why the job ends, or why it waits. */
void output_say(const char *text);

/* Writes a line to standard error, in one piece where the system lets it (printf's format). */
__attribute__((format(printf, 1, 2))) void output_print(const char *format, ...);

/* Flushes standard output of C and, through MPIXLA_WISH_FLUSH, of the front end. Returns when both are flushed, or
 * after so many milliseconds. Without a function of the front end, flushes C's without a time limit. */
void output_flush(int milliseconds);

/* Flushes C's, requests MPIXLA_WISH_FLUSH_OWN of the front end, and does not wait for it. */
void output_flush_soon(void);

/* Returns whether a write to standard output would block now, as to a full pipe without a reader. */
int output_is_stuck(void);

#endif
