/* Sites: the lines of the user's source that calls come from, by number.
 *
 * A program carries the number, which whoever traced it made of the line and named (mpixla_site_name); an exported one
 * carries the name as well, for a process that has not traced it. 0 is "unknown". A program that is called from many
 * lines carries MPIXLA_SITE_OF_THREAD: the line is that which the thread that calls it has told (mpixla_site_call).
 */
#ifndef MPIXLA_NATIVE_SITE_H
#define MPIXLA_NATIVE_SITE_H

#include <stddef.h>
#include <stdint.h>

enum { SITE_TEXT_BYTES = 256 };

/* The site that this thread has told last. */
int64_t site_of_thread(void);

/* "model.py:42 in step"; "" for a site that nobody has named. It lives as long as the library. Takes a lock. */
const char *site_text(int64_t site);

/* Whether this is called for the site for the first time. Takes a lock. */
int site_is_new(int64_t site);

/* The site of an exported program, which writes it as 16 hexadecimal digits, a blank, and the text. 0 if it is none. */
int64_t site_read(const char *text, size_t bytes);

#endif
