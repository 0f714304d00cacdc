/* Text for people, which Python must be able to have. */
#ifndef MPIXLA_NATIVE_TEXT_H
#define MPIXLA_NATIVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes behind the first `used` characters of a text of this size, as printf does, and returns how many there are
 * then: also beyond the size, where what does not fit is left out. */
__attribute__((format(printf, 4, 5))) size_t text_add(char *text, size_t bytes, size_t used, const char *format, ...);

/* Writes "0, 2 and 5 to 9" in the same way: those of so many ranks that are chosen. After TEXT_RANGES ranges it says
 * how many more there are. */
enum { TEXT_RANGES = 12 };
size_t text_add_ranks(char *text, size_t bytes, size_t used, const bool *chosen, int64_t ranks);

/* Makes the text valid UTF-8 without control characters but ends of lines: whatever else is in it, such as half a
 * character where it was cut, becomes question marks. In place. */
void text_clean(char *text);

#endif
