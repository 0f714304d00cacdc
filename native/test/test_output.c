#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/output.h"
#include "check.h"
#include "mpixla.h"
#include "run.h"

enum { BYTES = 1 << 20 };

static char sent[BYTES + 1], came[BYTES + 1];
static int ends[2];

static void pipe_open(void) {
    CHECK(pipe(ends) == 0);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    mpixla_output_set(ends[1]);
}

static void pipe_close(void) {
    mpixla_output_set(STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
}

static void *read_slowly(void *nothing) {
    size_t used = 0;
    for (ssize_t n; used < BYTES && (n = read(ends[0], came + used, used == 0 ? 1 : BYTES - used)) > 0;) {
        used += (size_t)n;
        clock_sleep(1);
    }
    return nothing;
}

/* More than a pipe holds, to a reader that is slow: the write waits for room. */
static void says_all_of_it(void) {
    for (int i = 0; i < BYTES; i++) sent[i] = (char)('a' + i % 26);
    pipe_open();
    const run_threads reader = threads_start(1, read_slowly);
    output_say(sent);
    threads_join(&reader);
    CHECK(strcmp(came, sent) == 0);
    pipe_close();
}

static void gives_up(void) {
    pipe_open();
    output_say(sent);
    pipe_close();
    mpixla_output_set(-1);
    output_say(sent);
    mpixla_output_set(STDERR_FILENO);
}

/* The front end's thread */

static atomic_int asked, periods, over;

static void *flush_as_wanted(void *period) {
    mpixla_output_wish wish;
    while ((wish = mpixla_output_wanted((int)(intptr_t)period)) != MPIXLA_OUTPUT_OVER)
        atomic_fetch_add(wish == MPIXLA_OUTPUT_ASKED ? &asked : &periods, 1);
    atomic_store(&over, 1);
    return NULL;
}

static void flushes_when_asked(void) {
    pthread_t thread;
    output_flush(100000); /* there is no thread to wait for */
    CHECK_INT(mpixla_output_open(), 0);
    CHECK(pthread_create(&thread, NULL, flush_as_wanted, (void *)0) == 0);
    for (int i = 1; i <= 100; i++) {
        output_flush(100000);
        CHECK_INT(atomic_load(&asked), i);
    }
    CHECK_INT(atomic_load(&periods), 0);
    mpixla_output_close();
    pthread_join(thread, NULL);
    output_flush(100000);
}

static void flushes_now_and_then(void) {
    pthread_t thread;
    int before = atomic_load(&asked);
    CHECK_INT(mpixla_output_open(), 0);
    CHECK(pthread_create(&thread, NULL, flush_as_wanted, (void *)1) == 0);
    while (atomic_load(&periods) < 5) clock_sleep(1);
    CHECK_INT(atomic_load(&asked), before);
    mpixla_output_close();
    pthread_join(thread, NULL);
    CHECK_INT(atomic_load(&over), 1);
}

/* One that never comes back: its buffer has a lock that another thread holds. */
static void waits_for_so_long(void) {
    CHECK_INT(mpixla_output_open(), 0);
    output_flush(10);
    mpixla_output_close();
}

int main(void) {
    says_all_of_it();
    gives_up();
    flushes_when_asked();
    flushes_now_and_then();
    waits_for_so_long();
    return check_failures();
}
