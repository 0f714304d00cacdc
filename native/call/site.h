/* Registers sites: source lines of the user's program that calls come from, by number.
 *
 * A program carries the number, which the front end derives from the line and names (mpixla_site_name); an exported one
 * carries the name as well, for a process that has not traced it. 0 is "unknown". A program that is called from many
 * lines carries MPIXLA_SITE_OF_THREAD: the line is the one that the calling thread has set (mpixla_site_call).
 */
#ifndef MPIXLA_NATIVE_SITE_H
#define MPIXLA_NATIVE_SITE_H

#include <stddef.h>
#include <stdint.h>

enum { SITE_TEXT_BYTES = 256 };

/* Returns the site that the calling thread has set last (mpixla_site_call). */
int64_t site_of_thread(void);

/* Returns the text of a site, "model.py:42 in step"; "" if it has none. The text is never freed. Takes a lock. */
const char *site_text(int64_t site);

/* Returns whether this is the first call of the function for the site. Takes a lock. */
int site_mark_new(int64_t site);

/* Parses the site of an exported program, 16 hexadecimal digits, a blank, and the text, and registers it. Returns its
 * number; 0 if the text is not a site, or without memory. Takes a lock. */
int64_t site_parse(const char *text, size_t bytes);

#endif
