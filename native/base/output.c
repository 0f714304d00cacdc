/* A write may block although poll says that the file takes something: a pipe has room for PIPE_BUF bytes then, so no
 * more is written at once.
 */
#include "base/output.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system.h"
#include "mpixla.h"

enum { WRITE_MILLISECONDS = 3000, LINE_BYTES = 2 * ERROR_BYTES, NANOSECONDS = 1000000 /* in a millisecond */ };

static int file_for_people = STDERR_FILENO;

void mpixla_output_set(int file) {
    file_for_people = file;
}

static int output_milliseconds_until(int64_t end) {
    const int64_t left = (end - clock_now()) / NANOSECONDS;
    return left > 0 ? (int)left : 0;
}

static void output_write(int file, const char *text, size_t bytes) {
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

void output_say(const char *text) {
    output_write(file_for_people, text, strlen(text));
}

void output_print(const char *format, ...) {
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    output_write(STDERR_FILENO, line, strlen(line));
}

/* The thread of the front end that flushes */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_open;       /* the thread is there */
    uint64_t asked;    /* flushes that were asked for: they are numbered from 1 */
    uint64_t begun;    /* the number of the one that the thread makes, */
    uint64_t answered; /* and of the one that it has made last */
} flusher = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock. Waits until the thread is to flush: it is asked to, or the period is over. */
static mpixla_output_wish flusher_wait(int period) {
    const int64_t end = clock_now() + (int64_t)period * NANOSECONDS;
    while (flusher.is_open && flusher.asked == flusher.begun)
        if (period <= 0)
            (void)pthread_cond_wait(&flusher.changed, &flusher.lock);
        else if (system_condition_wait(&flusher.changed, &flusher.lock, end))
            return flusher.is_open ? MPIXLA_OUTPUT_PERIOD : MPIXLA_OUTPUT_OVER;
    flusher.begun = flusher.asked;
    return flusher.is_open ? MPIXLA_OUTPUT_ASKED : MPIXLA_OUTPUT_OVER;
}

int mpixla_output_open(void) {
    const int code = system_condition_make(&flusher.changed);
    flusher.is_open = code == 0;
    return code;
}

mpixla_output_wish mpixla_output_wanted(int period) {
    pthread_mutex_lock(&flusher.lock);
    flusher.answered = flusher.begun;
    (void)pthread_cond_broadcast(&flusher.changed);
    const mpixla_output_wish wish = flusher_wait(period);
    pthread_mutex_unlock(&flusher.lock);
    if (wish != MPIXLA_OUTPUT_OVER) (void)fflush(stdout);
    return wish;
}

void mpixla_output_close(void) {
    pthread_mutex_lock(&flusher.lock);
    const int was_open = flusher.is_open;
    flusher.is_open = 0;
    if (was_open) (void)pthread_cond_broadcast(&flusher.changed);
    pthread_mutex_unlock(&flusher.lock);
}

/* Without waiting for a thread that prints. */
static void output_flush_c(void) {
    if (ftrylockfile(stdout) != 0) return;
    (void)fflush(stdout);
    funlockfile(stdout);
}

void output_flush(int milliseconds) {
    const int64_t end = clock_now() + (int64_t)milliseconds * NANOSECONDS;
    pthread_mutex_lock(&flusher.lock);
    const int is_open = flusher.is_open;
    if (is_open) {
        const uint64_t mine = ++flusher.asked;
        (void)pthread_cond_broadcast(&flusher.changed);
        while (flusher.is_open && flusher.answered < mine &&
               !system_condition_wait(&flusher.changed, &flusher.lock, end)) {
        }
    }
    pthread_mutex_unlock(&flusher.lock);
    if (!is_open) output_flush_c();
}
