#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

size_t text_add(char *text, size_t bytes, size_t used, const char *format, ...) {
    va_list arguments;
    if (used >= bytes) return used;
    va_start(arguments, format);
    int length = vsnprintf(text + used, bytes - used, format, arguments);
    va_end(arguments);
    return length < 0 ? used : used + (size_t)length;
}

/* Appends the chosen ranks as a list of ranges, "0, 2 and 5 to 9", of which it shows TEXT_RANGES. Returns the new
 * length. */
size_t text_add_ranks(char *text, size_t bytes, size_t used, const bool *chosen, int64_t ranks) {
    int64_t left = 0;
    int ranges = 0;
    for (int64_t i = 0; i < ranks; i++) left += chosen[i];
    for (int64_t i = 0; i < ranks && left > 0; i++) {
        if (!chosen[i]) continue;
        if (ranges++ == TEXT_RANGES) return text_add(text, bytes, used, " and %lld more", (long long)left);
        int64_t end = i;
        while (end + 1 < ranks && chosen[end + 1]) end++;
        if (end == i + 1) end = i; /* two are named one by one */
        left -= end - i + 1;
        used = text_add(text, bytes, used, "%s%lld", ranges == 1 ? "" : left > 0 ? ", " : " and ", (long long)i);
        if (end > i) used = text_add(text, bytes, used, " to %lld", (long long)end);
        i = end;
    }
    return used;
}

/* Returns the length in bytes of the UTF-8 character at `at`; 0 if the bytes there are no printable character. */
static int text_character_bytes(const unsigned char *at) {
    unsigned char first = *at;
    if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\n';
    int bytes = first >= 0xc2 && first <= 0xdf   ? 2
                : first >= 0xe0 && first <= 0xef ? 3
                : first >= 0xf0 && first <= 0xf4 ? 4
                                                 : 0;
    for (int i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    /* Longer than need be, half of a pair of UTF-16, and beyond the last character. */
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) || (first == 0xf0 && at[1] < 0x90) ||
        (first == 0xf4 && at[1] > 0x8f))
        return 0;
    return bytes;
}

/* Replaces bytes that are no printable UTF-8 by question marks, in place. */
void text_clean(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at;) {
        int bytes = text_character_bytes(at);
        if (bytes == 0) *at = '?';
        at += bytes > 0 ? bytes : 1;
    }
}
