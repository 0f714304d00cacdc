#include <stdlib.h>

#include "base/hash.h"
#include "call.h"
#include "check.h"
#include "check/check.h"
#include "fixture.h"
#include "run.h"
#include "watch/flight.h"
#include "watch/state.h"

enum { SITE_NUMBER = 41 };

static const int members[] = {5, 6, 7, 8};

static call c;
static wire_writer w;
static state s;

/* What it knows of two other processes of its host. */
enum { LOST = 2 };
static int64_t lost[2 * LOST] = {1, STATE_DEAD, 3, STATE_STOPPED};

static void write_down(void) {
    const state_facts facts = {.rank = 2,
                               .ended = 1,
                               .left_ms = 12,
                               .percent = 7,
                               .threads = 5,
                               .where = "process 3 on a host",
                               .python = "a line",
                               .lost = lost,
                               .lost_count = 2 * LOST};
    if (flight_threads() > 0) flight_clock_of(0)->waited_ns = 2500000000;
    free(w.data);
    w = (wire_writer){.data = NULL};
    state_write(&w, &facts);
}

static int read_back(void) {
    wire_reader r = {.data = w.data, .bytes = w.bytes};
    return state_read(&s, &r);
}

static const state_call *seen_in(const char *op, int64_t comm) {
    call_make(&c, op, comm, 2);
    call_site_set(&c, SITE_NUMBER, NULL);
    fake->during = write_down;
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    CHECK(read_back());
    CHECK_INT(s.call_count, 1);
    return &s.calls[0];
}

static void tells_of_itself(void) {
    write_down();
    CHECK(read_back());
    CHECK_INT(s.rank, 2);
    CHECK_INT(s.presence, STATE_HERE);
    CHECK_INT(s.ended, 1);
    CHECK_INT(s.left_ms, 12);
    CHECK_INT(s.percent, 7);
    CHECK_INT(s.threads, 5);
    CHECK_INT(s.requests, 0);
    CHECK_STR(s.where, "process 3 on a host");
    CHECK_STR(s.python, "a line");
    CHECK_INT(s.lost_count, LOST);
    CHECK(s.lost[0].rank == 1 && s.lost[0].presence == STATE_DEAD);
    CHECK(s.lost[1].rank == 3 && s.lost[1].presence == STATE_STOPPED);
    CHECK_STR(s.last, "");
    CHECK_INT(s.call_count, 0);
    CHECK_INT(s.comm_count, 3);    /* SELF and the two of the fixture, */
    CHECK_INT(s.has_all_comms, 0); /* of which nobody has said who is in them */
}

static void tells_of_collective_calls(void) {
    CHECK(!seen_in("barrier", FIXTURE_RANK0)->has_members);
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK2, members), 0);
    const state_call *k = seen_in("reduce", FIXTURE_RANK2);
    CHECK(k->has_members && s.has_all_comms);
    CHECK_INT(k->thread, 0);
    CHECK_INT(k->number, flight_moment_read(0).entered);
    CHECK_INT(k->milliseconds, 2500);
    CHECK(k->collective && !k->pauses);
    CHECK_STR(k->op, "MPI_Reduce");
    CHECK_IN(k->description, "MPI_Reduce with 3 items and root 2 of float32, op MPI_SUM");
    CHECK_STR(k->site, "step.py:7");
    CHECK_STR(k->comm_name, "rank2");
    CHECK_INT(k->root, 7); /* in MPI_COMM_WORLD */
    CHECK_INT(k->items, CALL_COUNT);
    CHECK_INT(k->bytes, CALL_COUNT * 4);
    CHECK_INT(k->needs, 3);
    CHECK(k->needed[0] == 5 && k->needed[1] == 6 && k->needed[2] == 8);
    CHECK_INT(k->messages, 0);
    int64_t sequence = k->sequence;
    CHECK_INT(s.comms[FIXTURE_RANK2].comm, k->comm);
    CHECK_INT(s.comms[FIXTURE_RANK2].calls, sequence + 1);
    CHECK(s.comms[FIXTURE_RANK0].comm != k->comm);
    CHECK_INT(seen_in("barrier", FIXTURE_RANK2)->sequence, sequence + 1);
    CHECK(s.in_newest);
    CHECK_INT(s.past_count, 3);
    CHECK_INT(s.past[1].op, (int64_t)hash_text("MPI_Reduce"));
    CHECK_INT(s.past[1].sequence, sequence);
    CHECK_INT(s.past[1].line, 1);
    CHECK_IN(
        s.last,
        "s ago: MPI_Reduce with 3 items and root 2 of float32, op MPI_SUM, on rank 2 of 4 of communicator 'rank2', "
        "at step.py:7 (collective call 1)\n");
}

static void tells_of_messages(void) {
    const state_call *k = seen_in("sendrecv", FIXTURE_RANK2);
    CHECK(!k->collective);
    CHECK_INT(k->messages, 2);
    CHECK(k->peers[0].rank == 6 && k->peers[0].tag == 7 && !k->peers[0].receives);
    CHECK(k->peers[1].rank == 7 && k->peers[1].tag == 8 && k->peers[1].receives);
    k = seen_in("exchange", FIXTURE_RANK0);
    CHECK(k->collective);
    CHECK_INT(k->needs, 2); /* its neighbours */
    CHECK(k->needed[0] == 6 && k->needed[1] == 7);
    CHECK_INT(k->items, -1);
    atomic_store(&check_mode_now, CHECK_FIRST); /* with which it waits for all */
    k = seen_in("exchange", FIXTURE_RANK0);
    CHECK_INT(k->needs, FIXTURE_SIZE - 1);
    atomic_store(&check_mode_now, CHECK_OFF);
}

/* Several that follow each other are one line. */
static void tells_last_calls_that_are_alike_once(void) {
    for (int i = 0; i < 3; i++) (void)seen_in("allreduce", FIXTURE_RANK2);
    const int64_t sequence = seen_in("barrier", FIXTURE_RANK2)->sequence;
    CHECK_INT(s.past[0].line, 0);
    for (int i = 1; i < 4; i++) {
        CHECK_INT(s.past[i].line, 1);
        CHECK_INT(s.past[i].sequence, sequence - i);
    }
    CHECK_INT(s.past[4].line, 2);
    char part[64];
    snprintf(part, sizeof part, "(collective calls %lld to %lld)\n", (long long)sequence - 2, (long long)sequence);
    CHECK_IN(s.last, part);
    CHECK_IN(s.last, "\n3 times, the first one ");
    (void)seen_in("barrier", FIXTURE_RANK2); /* one that has not ended is not one of them */
    CHECK_INT(s.past[0].line, 0);
    CHECK_INT(s.past[1].line, 1);
    CHECK_INT(s.past[2].line, 2);
}

/* Two threads of the front end, in turns. */
static void *as_front_end(void) {
    return &c;
}

static void *make_a_call(void *nothing) {
    static call own;
    call_make(&own, "barrier", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&own), "");
    return nothing;
}

static void tells_of_threads(void) {
    (void)make_a_call(NULL);
    threads_run(1, make_a_call);
    CHECK(!seen_in("barrier", FIXTURE_RANK0)->is_shared); /* they are XLA's */
    mpixla_failures_raised_on(as_front_end);
    (void)make_a_call(NULL);
    CHECK(!seen_in("barrier", FIXTURE_RANK0)->is_shared);
    threads_run(1, make_a_call);
    CHECK(seen_in("barrier", FIXTURE_RANK0)->is_shared);
    mpixla_failures_raised_on(NULL);
}

/* Communicators of one name and the same members are told apart. */
static void tells_twins_apart(void) {
    int twin = fake->comm_new(2, FIXTURE_SIZE, 0);
    CHECK_INT(mpixla_comm_register(fake->handle(twin), "rank2"), FIXTURE_RANK2 + 1);
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK2 + 1, members), 0);
    write_down();
    CHECK(read_back());
    CHECK_INT(s.comm_count, 4);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) CHECK(s.comms[i].comm != s.comms[j].comm);
    CHECK(s.has_all_comms);
}

/* However many there are; that the list has not all of them is said. */
static void tells_many_communicators_apart(void) {
    enum { MANY = 1100 };
    int64_t last = 0;
    for (int i = 0; i < MANY; i++) {
        int number = fake->comm_new(0, FIXTURE_SIZE, 0);
        last = mpixla_comm_register(fake->handle(number), "one of many");
        CHECK(last > 0);
        CHECK_INT(mpixla_comm_members_set(last, members), 0);
        if (i < MANY - 1) fake->comm_free(number);
    }
    for (int64_t i = 0; i < last; i++) CHECK(comm_find_any(i)->key != comm_find_any(last)->key);
    const state_call *k = seen_in("barrier", last);
    CHECK_INT(k->comm, comm_find_any(last)->key);
    int found = 0, is_first = 0;
    for (int64_t i = 0; i < s.comm_count; i++) {
        found |= s.comms[i].comm == k->comm;
        is_first |= s.comms[i].comm == comm_find_any(0)->key;
    }
    CHECK(found && is_first);
    CHECK(!s.has_all_comms);
}

static void refuses_what_is_cut_off(void) {
    (void)seen_in("allreduce", FIXTURE_RANK0);
    for (size_t bytes = 0; bytes < w.bytes; bytes += 8) {
        char *part = malloc(bytes + 1);
        memcpy(part, w.data, bytes);
        wire_reader r = {.data = part, .bytes = bytes};
        CHECK(!state_read(&s, &r));
        free(part);
    }
    lost[1] = STATE_HERE; /* what can answer is not lost */
    write_down();
    CHECK(!read_back());
    free(w.data);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    CHECK_INT(mpixla_site_name(SITE_NUMBER, "step.py:7"), 0);
    tells_of_itself();
    tells_of_collective_calls();
    tells_of_messages();
    tells_last_calls_that_are_alike_once();
    tells_of_threads();
    tells_twins_apart();
    tells_many_communicators_apart();
    refuses_what_is_cut_off();
    return check_failures();
}
