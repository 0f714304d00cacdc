/* The thread that lets messages move: it calls MPI while requests are under way, and at no other time. */

#include <unistd.h>

#include "base/clock.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "handler.h"
#include "run.h"

enum { PERIOD = 1000000 }; /* nanoseconds: a millisecond */

static call c;
static float id[2];

static void start(void) {
    call_make(&c, "send", FIXTURE_RANK0, 0);
    c.handler = call_handler("isend");
    while (c.frame.rets.size > 0) call_remove(&c, CALL_RESULTS, 0);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
}

static void wait_for_it(void) {
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_handler("wait_send");
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
}

/* How many calls are made in some time, but for those that it may be about to make. */
static int calls_in_a_while(void) {
    clock_sleep(2);
    int before = atomic_load(&fake->probes);
    clock_sleep(30);
    return atomic_load(&fake->probes) - before;
}

/* It may be kept from its last ones for a while, where others have the processor. */
static int becomes_quiet(void) {
    for (int tries = 0; tries < 100; tries++)
        if (calls_in_a_while() == 0) return 1;
    return 0;
}

static void off(void) {
    start();
    CHECK_INT(calls_in_a_while(), 0);
    wait_for_it();
}

static void on(void) {
    CHECK_INT(mpixla_progress_set(0), -1);
    CHECK_IN(mpixla_last_error(), "the time between two calls of MPI must be more than 0 ns, but is 0 ns");
    CHECK_INT(mpixla_progress_set(PERIOD), 0);
    CHECK_INT(calls_in_a_while(), 0);
    for (int i = 0; i < 3; i++) {
        int before = atomic_load(&fake->probes);
        start();
        while (atomic_load(&fake->probes) < before + 5) clock_sleep(1);
        wait_for_it();
        CHECK(becomes_quiet());
    }
}

static void finalize_with_a_request(void) {
    CHECK_INT(mpixla_progress_set(PERIOD), 0);
    int before = atomic_load(&fake->probes);
    start();
    while (atomic_load(&fake->probes) < before + 5) clock_sleep(1);
    fake->finalize();
    before = atomic_load(&fake->probes);
    clock_sleep(30);
    _exit(atomic_load(&fake->probes) == before ? 0 : 1);
}

/* Also where nobody has said that the program ends: it calls MPI_Finalize itself. */
static void ends_with_mpi(void) {
    pid_t child = fork();
    if (child == 0) finalize_with_a_request();
    CHECK_INT(process_end(child), 0);
}

/* Nothing may be in MPI when it is finalized. */
static void the_end(void) {
    start();
    CHECK_INT(mpixla_requests_end(), 1);
    int before = atomic_load(&fake->probes);
    start();
    clock_sleep(30);
    CHECK_INT(atomic_load(&fake->probes), before);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    off();
    ends_with_mpi();
    on();
    the_end();
    return check_failures();
}
