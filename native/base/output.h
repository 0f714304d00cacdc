/* Prints the library's sentences, and flushes buffered output of the program. A write gives up after a time limit: a
 * terminal may be stopped (Ctrl-S), and a pipe may be full and have no reader.
 */
#ifndef MPIXLA_NATIVE_OUTPUT_H
#define MPIXLA_NATIVE_OUTPUT_H

/* Writes a sentence (why the job ends, or why it waits) to the file of mpixla_output_set, standard error by default.
 * Gives up after a time limit. */
void output_write(const char *text);

/* Writes a line to standard error (printf's format), in one piece where the system lets it. Cuts a line of more than
 * 4095 bytes; gives up after 3 seconds. */
__attribute__((format(printf, 1, 2))) void output_print(const char *format, ...);

/* Flushes standard output of C and, through MPIXLA_WISH_FLUSH, of the front end. Returns when both are flushed, or
 * after so many milliseconds. Without a function of the front end, flushes C's without a time limit. */
void output_flush(int milliseconds);

/* Requests that the front end flush its own output (MPIXLA_WISH_FLUSH_OWN), and does not wait for it. C's standard
 * output is flushed with it. */
void output_flush_request(void);

/* Returns whether a write to standard output would block now, as to a full pipe without a reader. */
int output_is_stuck(void);

#endif
