/* Text for people, which Python must be able to have. */
#ifndef MPIXLA_NATIVE_TEXT_H
#define MPIXLA_NATIVE_TEXT_H

/* Makes the text valid UTF-8 without control characters but ends of lines: whatever else is in it, such as half a
 * character where it was cut, becomes question marks. In place. */
void text_clean(char *text);

#endif
