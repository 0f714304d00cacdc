#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "mpixla.h"

static _Thread_local char sentence[ERROR_BYTES];

/* Sets the thread's sentence about a failure, by printf's format; returns REFUSED. */
int error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    text_clean(sentence);
    return REFUSED;
}

const char *error_get(void) {
    return sentence;
}

const char *mpixla_last_error(void) {
    return error_get();
}
