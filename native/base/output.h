/* Prints the library's sentences, and has buffered output of the program flushed. A write returns after a time limit: a
 * terminal may be stopped (Ctrl-S), and a pipe may be full and have no reader.
 */
#ifndef MPIXLA_NATIVE_OUTPUT_H
#define MPIXLA_NATIVE_OUTPUT_H

/* Writes a sentence for people to the file of mpixla_output_set: why the job ends, or why it waits. */
void output_say(const char *text);

/* Writes a line to standard error, in one piece where the system lets it (printf's format). */
__attribute__((format(printf, 1, 2))) void output_print(const char *format, ...);

/* Flushes C's standard output and, by its function for MPIXLA_WISH_FLUSH, the front end's. Returns when both are
 * flushed, or after so many milliseconds. Without that function, C's alone, as long as that takes. */
void output_flush(int milliseconds);

/* Has both flushed, the front end's by its function for MPIXLA_WISH_FLUSH_OWN, and does not wait for it. */
void output_flush_soon(void);

/* Returns whether standard output takes nothing now: it is a pipe that nobody reads, for example. Then a flush waits.
 */
int output_is_stuck(void);

#endif
