#include <pthread.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "watch/flight.h"

enum { THREADS = 4, CALLS = 2000 };

static call c;
static flight_seen seen[8];
static char text[512];
static int found, lasted;

static void look(void) {
    found = flight_look(seen, 8);
    lasted = found > 0 && flight_lasts(&seen[0], text, sizeof text);
    CHECK_INT(mpixla_calls_in_flight(), 1);
}

static void sees_a_call_and_its_end(void) {
    CHECK_INT(mpixla_calls_in_flight(), 0);
    CHECK_INT(flight_look(seen, 8), 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    fake->during = look;
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    CHECK_INT(found, 1);
    CHECK(lasted);
    CHECK_IN(text, "MPI_Send -> 1 with tag 7 and 3 items of float32");
    CHECK_INT(mpixla_calls_in_flight(), 0);
    CHECK(!flight_lasts(&seen[0], text, sizeof text));
    flight_seen first = seen[0];
    fake->during = look; /* the same thread in the same call, again */
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    CHECK(seen[0].thread == first.thread && seen[0].entered != first.entered);
}

static atomic_int running;

static void *run_many(void *unused) {
    static _Thread_local call mine;
    call_make(&mine, "barrier", FIXTURE_RANK0, 0);
    for (int i = 0; i < CALLS; i++) CHECK_STR(call_run(&mine), "");
    atomic_fetch_sub(&running, 1);
    return unused;
}

/* Who looks never sees a call that has ended: its frame is gone. Sanitizers say so. */
static void looks_while_others_call(void) {
    pthread_t threads[THREADS];
    atomic_store(&running, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run_many, NULL);
    while (atomic_load(&running) > 0) {
        int n = flight_look(seen, 8);
        CHECK(n <= THREADS);
        for (int i = 0; i < n; i++)
            if (flight_lasts(&seen[i], text, sizeof text)) CHECK_IN(text, "MPI_Barrier, on rank 0 of 4");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

static void *run_one(void *place) {
    *(flight **)place = flight_mine();
    return NULL;
}

static void gives_places_of_ended_threads_again(void) {
    flight *first = NULL, *second = NULL;
    pthread_t thread;
    pthread_create(&thread, NULL, run_one, &first);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, run_one, &second);
    pthread_join(thread, NULL);
    CHECK(first && first == second && first != flight_mine());
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    sees_a_call_and_its_end();
    looks_while_others_call();
    gives_places_of_ended_threads_again();
    return check_failures();
}
