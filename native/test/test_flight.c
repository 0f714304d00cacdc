
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "watch/flight.h"

enum { THREADS = 4, CALLS = 2000, LOOKS = 100 };

static call c;
static flight_view seen;
static char text[512];
static int found;

/* The first thread that is in a call, the calls of how many are seen. */
static int look_for_calls(void) {
    flight_view view;
    int calls = 0;
    for (int64_t i = 0; i < flight_threads(); i++) {
        if (!flight_view_read(i, &view)) continue;
        if (calls++ == 0) seen = view;
    }
    return calls;
}

static void look(void) {
    found = look_for_calls();
    CHECK_INT(mpixla_calls_in_flight(), 1);
}

static void sees_a_call_and_its_end(void) {
    CHECK_INT(mpixla_calls_in_flight(), 0);
    CHECK_INT(look_for_calls(), 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    fake->during = look;
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    CHECK_INT(found, 1);
    flight_describe(&seen, text, sizeof text); /* a copy: the call has ended */
    CHECK_IN(text, "MPI_Send -> 1 with tag 7 and 3 items of float32");
    CHECK_INT(mpixla_calls_in_flight(), 0);
    CHECK_INT(look_for_calls(), 0);
    int64_t first = seen.entered;
    fake->during = look; /* the same thread in the same call, again */
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    CHECK(seen.entered > first);
}

/* The threads call until who looks has seen enough: a system may let it look late. */
static atomic_int looks;

static void *run_many(void *unused) {
    static _Thread_local call mine;
    call_make(&mine, "barrier", FIXTURE_RANK0, 0);
    for (int i = 0; i < CALLS || atomic_load(&looks) < LOOKS; i++) CHECK_STR(call_run(&mine), "");
    return unused;
}

/* Who looks never sees a call that has ended: its frame is gone. Sanitizers say so. */
static void looks_while_others_call(void) {
    atomic_store(&looks, 0);
    const run_threads threads = threads_start(THREADS, run_many);
    while (atomic_load(&looks) < LOOKS) {
        int n = look_for_calls();
        CHECK(n <= THREADS);
        if (n == 0) continue;
        flight_describe(&seen, text, sizeof text);
        CHECK_IN(text, "MPI_Barrier, on rank 0 of 4");
        atomic_fetch_add(&looks, 1);
    }
    threads_join(&threads);
    CHECK_INT(mpixla_calls_in_flight(), 0);
}

/* The thread's number, whose last calls are looked at. */
static int64_t number_of_mine(void) {
    flight_record last[FLIGHT_KEPT];
    for (int64_t i = 0; i < 64; i++)
        if (flight_records_read(i, last) > 0 && last[0].facts.site == 4711) return i;
    return -1;
}

static void keeps_the_last_calls(void) {
    flight_record last[FLIGHT_KEPT];
    static const char *const names[] = {"allreduce", "send", "recv", "bcast", "sendrecv", "barrier"};
    enum { MADE = 3 * FLIGHT_KEPT, NAMES = 6 };
    for (int i = 0; i < MADE; i++) {
        call_make(&c, names[i % NAMES], FIXTURE_RANK2, 2);
        call_site_set(&c, i == MADE - 1 ? 4711 : 100 + i, NULL);
        CHECK_STR(call_run(&c), "");
    }
    int64_t mine = number_of_mine();
    CHECK(mine >= 0);
    CHECK_INT(flight_records_read(mine, last),
              FLIGHT_KEPT - 1); /* the place of the oldest is the one to be written next */
    for (int n = 0; n < FLIGHT_KEPT - 1; n++) {
        int i = MADE - 1 - n;
        const char *name = names[i % NAMES];
        const call_facts *r = &last[n].facts;
        CHECK_STR(r->row->mpi_name, call_shape(name)->mpi_name);
        CHECK_STR(r->communicator->name, "rank2");
        CHECK_INT(r->site, n == 0 ? 4711 : 100 + i);
        CHECK_INT(facts_count(r), strcmp(name, "barrier") == 0 ? 0 : CALL_COUNT);
        CHECK_STR(facts_type(r) ? facts_type(r)->row->name : "none", facts_count(r) ? "float32" : "none");
        if (strcmp(name, "bcast") == 0) CHECK_INT(r->root, 2);
        if (strcmp(name, "send") == 0 || strcmp(name, "sendrecv") == 0) CHECK(r->dest == 1 && r->sendtag == 7);
        if (strcmp(name, "recv") == 0) CHECK(r->source == 2 && r->recvtag == 8);
        if (strcmp(name, "sendrecv") == 0) CHECK_INT(r->source, 2);
        if (n > 0) CHECK(last[n].when <= last[n - 1].when);
        for (int m = 0; m < n; m++)
            if (last[m].facts.sequence > 0 && r->sequence > 0) CHECK(r->sequence < last[m].facts.sequence);
    }
    CHECK(last[0].when > 0 && last[0].when <= flight_now());
}

static void keeps_negative_numbers(void) {
    flight_record last[FLIGHT_KEPT];
    call_make(&c, "sendrecv", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    call_attribute_set(&c, "source", MPIXLA_ANY_SOURCE);
    call_attribute_set(&c, "sendtag", FAKE_TAG_UB);
    call_site_set(&c, 4711, NULL);
    CHECK_STR(call_run(&c), "");
    CHECK(flight_records_read(number_of_mine(), last) > 0);
    CHECK_INT(last[0].facts.dest, MPIXLA_PROC_NULL);
    CHECK_INT(last[0].facts.source, MPIXLA_ANY_SOURCE);
    CHECK_INT(last[0].facts.sendtag, FAKE_TAG_UB);
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "recvtag", MPIXLA_ANY_TAG);
    call_site_set(&c, 4711, NULL);
    CHECK_STR(call_run(&c), "");
    CHECK(flight_records_read(number_of_mine(), last) > 0);
    CHECK_INT(last[0].facts.recvtag, MPIXLA_ANY_TAG);
}

/* A call that is refused was never made. */
static void keeps_no_call_that_does_not_fit(void) {
    flight_record last[FLIGHT_KEPT];
    int64_t mine = number_of_mine();
    call_make(&c, "bcast", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "root", 9);
    CHECK(*call_run(&c));
    CHECK(flight_records_read(mine, last) > 0);
    CHECK_STR(last[0].facts.row->mpi_name, "MPI_Recv");
}

static void *run_alike(void *number_) {
    static _Thread_local call mine;
    const int number = 1 + (int)(intptr_t)number_;
    for (int i = 0; i < CALLS || atomic_load(&looks) < LOOKS; i++) {
        call_make(&mine, "send", FIXTURE_RANK0, 0);
        call_attribute_set(&mine, "sendtag", number);
        call_site_set(&mine, 1000 + number, NULL);
        CHECK_STR(call_run(&mine), "");
    }
    return NULL;
}

/* Who reads meanwhile gets whole records: their words belong together. */
static void reads_last_calls_while_others_call(void) {
    flight_record last[FLIGHT_KEPT];
    atomic_store(&looks, 0);
    const run_threads threads = threads_start(THREADS, run_alike);
    while (atomic_load(&looks) < LOOKS)
        for (int64_t thread = 0; thread < THREADS + 1; thread++) {
            int n = flight_records_read(thread, last);
            for (int i = 0; i < n; i++) {
                if (last[i].facts.site <= 1000 || last[i].facts.site > 1000 + THREADS) continue;
                CHECK_INT(last[i].facts.sendtag, last[i].facts.site - 1000);
                CHECK_STR(last[i].facts.row->mpi_name, "MPI_Send");
                atomic_fetch_add(&looks, 1);
            }
        }
    threads_join(&threads);
}

static flight *place;

static void *run_one(void *unused) {
    place = flight_of_thread();
    return unused;
}

static void gives_places_of_ended_threads_again(void) {
    threads_run(1, run_one);
    const flight *first = place;
    threads_run(1, run_one);
    CHECK(first && first == place && first != flight_of_thread());
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    sees_a_call_and_its_end();
    looks_while_others_call();
    keeps_the_last_calls();
    keeps_negative_numbers();
    keeps_no_call_that_does_not_fit();
    reads_last_calls_while_others_call();
    gives_places_of_ended_threads_again();
    return check_failures();
}
