/* Builds text for people, as valid UTF-8: Python must be able to decode it. */
#ifndef MPIXLA_NATIVE_TEXT_H
#define MPIXLA_NATIVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Appends to a text of `used` characters in a buffer of `bytes`, by printf's format. Returns the length of the whole
 * text, which is greater than `bytes` if the text was cut. */
__attribute__((format(printf, 4, 5))) size_t text_add(char *text, size_t bytes, size_t used, const char *format, ...);

/* Appends the list of the chosen ranks, as in "0, 2 and 5 to 9". After TEXT_RANGES ranges the list ends with the number
 * of ranks that are left out. Returns as text_add. */
enum { TEXT_RANGES = 12 };
size_t text_add_ranks(char *text, size_t bytes, size_t used, const bool *chosen, int64_t ranks);

/* Replaces invalid UTF-8, such as half a character at a cut, and control characters except line feeds by question
 * marks, in place. */
void text_clean(char *text);

#endif
