/* A write may block although poll says that the file takes something: a pipe has room for PIPE_BUF bytes then, so no
 * more is written at once.
 */
#include "base/output.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/front_end.h"
#include "mpixla.h"

enum { WRITE_MILLISECONDS = 3000, LINE_BYTES = 2 * ERROR_BYTES, NANOSECONDS = 1000000 /* in a millisecond */ };

static int file_for_people = STDERR_FILENO;

void mpixla_output_set(int file) {
    file_for_people = file;
}

/* Returns the time until `end` (of clock_now) in milliseconds; 0 if it has passed. */
static int output_milliseconds_until(int64_t end) {
    const int64_t left = (end - clock_now()) / NANOSECONDS;
    return left > 0 ? (int)left : 0;
}

/* Writes the text to a file descriptor, and gives up after WRITE_MILLISECONDS or at an error. */
static void output_write_file(int file, const char *text, size_t bytes) {
    const int64_t end = clock_now() + (int64_t)WRITE_MILLISECONDS * NANOSECONDS;
    while (bytes > 0) {
        struct pollfd room = {.fd = file, .events = POLLOUT};
        const int ready = poll(&room, 1, output_milliseconds_until(end));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return;
        const ssize_t written = write(file, text, bytes < PIPE_BUF ? bytes : PIPE_BUF);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return;
        /* A non-blocking pipe with less room than that refuses all of it. */
        if (written < 0 && errno == EAGAIN) {
            if (output_milliseconds_until(end) == 0) return;
            clock_sleep(1);
        }
        if (written < 0) continue;
        text += written;
        bytes -= (size_t)written;
    }
}

void output_write(const char *text) {
    output_write_file(file_for_people, text, strlen(text));
}

void mpixla_output_write(const char *text) {
    output_write(text);
}

void output_print(const char *format, ...) {
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    output_write_file(STDERR_FILENO, line, strlen(line));
}

/* Flushes C's standard output, unless another thread is printing. */
static void output_flush_c(void) {
    if (ftrylockfile(stdout) != 0) return;
    (void)fflush(stdout);
    funlockfile(stdout);
}

void output_flush(int milliseconds) {
    if (front_end_is_set(MPIXLA_WISH_FLUSH))
        (void)front_end_request_and_wait(MPIXLA_WISH_FLUSH, milliseconds);
    else
        output_flush_c();
}

void output_flush_request(void) {
    front_end_request(MPIXLA_WISH_FLUSH_OWN);
}

int output_is_stuck(void) {
    struct pollfd room = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&room, 1, 0) == 0;
}
