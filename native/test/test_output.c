#include <fcntl.h>
#include <stdatomic.h>
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
    output_write(sent);
    threads_join(&reader);
    CHECK(strcmp(came, sent) == 0);
    pipe_close();
}

static void gives_up(void) {
    pipe_open();
    const int own_output = dup(STDOUT_FILENO);
    CHECK(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
    CHECK(!output_is_stuck());
    output_write(sent);
    CHECK(output_is_stuck());
    CHECK(dup2(own_output, STDOUT_FILENO) == STDOUT_FILENO);
    close(own_output);
    pipe_close();
    mpixla_output_set(-1);
    output_write(sent);
    mpixla_output_set(STDERR_FILENO);
}

/* The front end */

static atomic_int asked, own, stuck;

static void flush_all(void) {
    atomic_fetch_add(&asked, 1);
}

static void flush_own(void) {
    atomic_fetch_add(&own, 1);
}

static void flush_never(void) {
    while (atomic_load(&stuck)) clock_sleep(1);
}

static void flushes_when_asked(void) {
    output_flush(100000); /* there is nothing to wait for */
    mpixla_front_end_set(MPIXLA_WISH_FLUSH, flush_all);
    for (int i = 1; i <= 100; i++) {
        output_flush(100000);
        CHECK_INT(atomic_load(&asked), i);
    }
    CHECK_INT(atomic_load(&own), 0);
}

static void flushes_soon(void) {
    output_flush_request();
    mpixla_front_end_set(MPIXLA_WISH_FLUSH_OWN, flush_own);
    output_flush_request();
    while (atomic_load(&own) < 1) clock_sleep(1);
    CHECK_INT(atomic_load(&asked), 100);
}

/* One that does not come back: its buffer has a lock that another thread holds. */
static void waits_for_so_long(void) {
    atomic_store(&stuck, 1);
    mpixla_front_end_set(MPIXLA_WISH_FLUSH, flush_never);
    output_flush(10);
    atomic_store(&stuck, 0);
}

static void calls_nothing_after_the_end(void) {
    mpixla_front_end_end();
    const int before = atomic_load(&asked) + atomic_load(&own);
    output_flush(100000);
    output_flush_request();
    mpixla_front_end_end();
    CHECK_INT(atomic_load(&asked) + atomic_load(&own), before);
}

int main(void) {
    says_all_of_it();
    gives_up();
    flushes_when_asked();
    flushes_soon();
    waits_for_so_long();
    calls_nothing_after_the_end();
    return check_failures();
}
