#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/feature.h"
#include "call.h"
#include "check.h"
#include "check/check.h"
#include "fixture.h"
#include "records.h"
#include "run.h"
#include "watch/trace.h"

enum { THREADS = 4, EACH = 500, RESTARTS = 200 };

static char directory[] = "/tmp/mpixla-trace-XXXXXX", path[256];
static call c;

static int start(int64_t limit) {
    mpixla_trace_facts facts = {.struct_size = sizeof facts,
                                .directory = directory,
                                .limit = limit,
                                .ranks = 4,
                                .job = "a \"job\"",
                                .clock = "here"};
    return mpixla_trace_start(&facts);
}

static const char *run(const char *op, int64_t comm, int64_t root) {
    call_make(&c, op, comm, root);
    return call_run(&c);
}

static records now;

static const char *text(uint32_t number) {
    return records_text(&now, number);
}

static int calls(void) {
    now = records_read(path);
    return records_count(&now, TIMELINE_CALL);
}

/* The last one in the file. */
static timeline_call last_call(void) {
    timeline_call found;
    (void)calls();
    memcpy(&found, &records_last(&now, TIMELINE_CALL, -1)->of.call, sizeof found);
    return found;
}

static const timeline_communicator *communicator_read(void) {
    (void)calls();
    uint32_t number = records_last(&now, TIMELINE_CALL, -1)->number;
    return &records_last(&now, TIMELINE_COMMUNICATOR, number)->of.communicator;
}

/* A list of the communicator of the last call, in words. */
static const char *list(uint32_t kind) {
    static char words[512];
    size_t bytes, used = 0;
    (void)calls();
    const char *parts = records_parts(&now, kind, records_last(&now, TIMELINE_CALL, -1)->number, &bytes);
    words[0] = '\0';
    for (size_t i = 0; i + sizeof(int32_t) <= bytes && used < sizeof words; i += sizeof(int32_t)) {
        int32_t item;
        memcpy(&item, parts + i, sizeof item);
        used += (size_t)snprintf(words + used, sizeof words - used, "%d ", item);
    }
    return words;
}

static void during(void) {
    timeline_call open = last_call();
    CHECK_STR(text(open.mpi), "MPI_Allreduce");
    CHECK_INT(open.state, TIMELINE_OPEN);
    CHECK_INT(open.took, 0);
    CHECK(open.began > 0 && open.began <= mpixla_trace_now());
}

static void writes_a_call_when_it_starts_and_when_it_ends(void) {
    static const int members[FIXTURE_SIZE] = {4, 6, 8, 11};
    CHECK(!(features_get() & FEATURE_TRACE));
    CHECK_INT(start(1 << 20), 0);
    CHECK(features_get() & FEATURE_TRACE);
    CHECK_INT(start(1 << 20), -1);
    CHECK_IN(mpixla_last_error(), "traced already");
    CHECK(!records_read(path).header);
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    CHECK_INT(mpixla_site_name(77, "model.py:3 in step"), 0);

    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_insert(&c, 2, "site", 77);
    fake->during = during;
    int64_t before = mpixla_trace_now();
    CHECK_STR(call_run(&c), "");
    int64_t after = mpixla_trace_now();
    fake->during = NULL;
    timeline_call e = last_call();
    CHECK_STR(now.header->magic, "mpixla");
    CHECK_INT(now.header->version, 4);
    CHECK_INT(now.header->record_bytes, 128);
    CHECK_INT(now.header->rank, 0);
    CHECK_INT(now.header->ranks, 4);
    CHECK_INT(now.header->process, getpid());
    CHECK(*now.header->host);
    CHECK_STR(now.header->job, "a \"job\"");
    CHECK_STR(now.header->clock, "here");
    const timeline_communicator *of = communicator_read();
    CHECK_STR(of->name, "rank0");
    CHECK_INT(of->in_process, FIXTURE_RANK0);
    CHECK_INT(of->rank, 0);
    CHECK_INT(of->size, 4);
    CHECK_STR(list(TIMELINE_MEMBERS), "4 3 2 11 1 1 ");
    CHECK_STR(text(e.op), "allreduce");
    CHECK_STR(text(e.mpi), "MPI_Allreduce");
    CHECK_STR(text(e.site), "model.py:3 in step");
    CHECK_STR(text(e.dtype), "float32");
    CHECK_STR(text(e.reduction), "MPI_SUM");
    CHECK_INT(e.category, TIMELINE_COLLECTIVE);
    CHECK_INT(e.state, TIMELINE_OVER);
    CHECK(e.began >= before && e.took > 0 && e.began + e.took <= after);
    CHECK_INT(e.gpu, -1);
    CHECK_INT(e.transport, 0);
    CHECK_INT(e.sequence, 0);
    CHECK_INT(e.sends, 12);
    CHECK_INT(e.receives, 12);
    CHECK_INT(e.items, 3);
    CHECK_INT(e.thread, 1);
    CHECK_INT(e.request, -1);
    CHECK_INT(e.root, TIMELINE_NONE);
    CHECK_INT(e.to, TIMELINE_NONE);
    CHECK_INT(e.from, TIMELINE_NONE);

    CHECK_STR(run("sendrecv", FIXTURE_RANK0, 0), "");
    e = last_call();
    CHECK_INT(calls(), 2);
    CHECK_INT(records_count(&now, TIMELINE_COMMUNICATOR), 1); /* which was described before */
    CHECK_STR(text(e.op), "sendrecv");
    CHECK_INT(e.category, TIMELINE_MESSAGE);
    CHECK_INT(e.sequence, -1);
    CHECK_INT(e.to, 6);
    CHECK_INT(e.sendtag, 7);
    CHECK_INT(e.from, 8);
    CHECK_INT(e.recvtag, 8);
    CHECK_INT(e.reduction, 0);
    CHECK_INT(e.site, 0);

    call_make(&c, "recv", FIXTURE_RANK2, 0); /* nobody has said which ranks it has */
    call_attribute_set(&c, "source", MPIXLA_ANY_SOURCE);
    call_attribute_set(&c, "recvtag", MPIXLA_ANY_TAG);
    CHECK_STR(call_run(&c), "");
    e = last_call();
    CHECK_INT(communicator_read()->rank, 2);
    CHECK_STR(list(TIMELINE_MEMBERS), "");
    CHECK_INT(e.from, TIMELINE_ANY);
    CHECK_INT(e.recvtag, TIMELINE_ANY);
    CHECK_INT(e.sends, 0);
    CHECK_INT(e.receives, 12);

    fixture_fail("MPI_Send", 0x10006);
    call_make(&c, "send", FIXTURE_RANK2, 0);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    CHECK_IN(call_run(&c), "error code 6");
    fixture_fail(NULL, 0);
    e = last_call();
    CHECK_INT(e.state, TIMELINE_FAILED);
    CHECK_STR(text(e.mpi), "MPI_Send");
    CHECK_INT(e.to, TIMELINE_NOBODY);

    CHECK_STR(run("bcast", FIXTURE_RANK0, 3), "");
    e = last_call();
    CHECK_INT(e.root, 11);
    CHECK_INT(e.sends, 0);
    CHECK_INT(e.receives, 12);

    call_make(&c, "send", FIXTURE_RANK2, 0); /* refused: it never starts */
    call_attribute_set(&c, "dest", 99);
    CHECK(*call_run(&c));
    CHECK_INT(calls(), 5);
    CHECK_INT(mpixla_trace_clock(5, -6, 7), 0);
    now = records_read(path);
    const timeline_clock *clock = &records_last(&now, TIMELINE_CLOCK, -1)->of.clock;
    CHECK_INT(clock->when, 5);
    CHECK_INT(clock->ahead, -6);
    CHECK_INT(clock->round_trip, 7);
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK(!(features_get() & FEATURE_TRACE));
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    CHECK_INT(calls(), 5);
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK_INT(mpixla_trace_clock(5, -6, 7), -1);
}

static void says_whose_neighbours(void) {
    CHECK_INT(start(1 << 20), 0);
    CHECK_STR(run("exchange", FIXTURE_RANK0, 0), "");
    CHECK_INT(last_call().neighbours, TIMELINE_SOURCES);
    CHECK_STR(list(TIMELINE_SOURCES), "8 6 ");
    CHECK_STR(list(TIMELINE_DESTS), "6 8 ");
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "back", 1);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(last_call().neighbours, TIMELINE_DESTS);
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    CHECK_INT(last_call().neighbours, 0);
    CHECK_INT(mpixla_trace_end(), 0);
}

static void says_which_windows(void) {
    static const int64_t begin[] = {1}, size[] = {2};
    CHECK_INT(start(1 << 20), 0);
    CHECK_STR(run("send", FIXTURE_RANK0, 0), "");
    CHECK_INT(last_call().windows, 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_list_insert(&c, ATTRIBUTE_SENDBEGIN, begin, 1);
    call_list_insert(&c, ATTRIBUTE_SENDSIZE, size, 1);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(last_call().windows, 1);
    CHECK_INT(last_call().sends, 8);
    CHECK_INT(mpixla_trace_end(), 0);
}

static void says_who_waits_for_whom(void) {
    static const struct {
        const char *op;
        int meeting;
    } rows[] = {
        {"allgather", TIMELINE_EACH_FOR_ALL},       {"assert_replicated", TIMELINE_EACH_FOR_ALL},
        {"barrier", TIMELINE_EACH_FOR_ALL},         {"reduce_scatter", TIMELINE_EACH_FOR_ALL},
        {"bcast", TIMELINE_EACH_FOR_ROOT},          {"scatter", TIMELINE_EACH_FOR_ROOT},
        {"gather", TIMELINE_ROOT_FOR_ALL},          {"reduce", TIMELINE_ROOT_FOR_ALL},
        {"exscan", TIMELINE_EACH_FOR_THOSE_BEFORE}, {"scan", TIMELINE_EACH_FOR_THOSE_BEFORE},
        {"exchange", TIMELINE_EACH_FOR_NEIGHBOURS}, {"halo_exchange", TIMELINE_EACH_FOR_NEIGHBOURS},
    };
    CHECK_INT(start(1 << 20), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_STR(run(rows[i].op, FIXTURE_RANK0, 0), "");
        CHECK_INT(last_call().meeting, rows[i].meeting);
    }
    CHECK_INT(mpixla_trace_end(), 0);
}

/* The other ranks want what this one does. */
static void agree(void) {
    if (fixture_is("MPI_Iallreduce")) memcpy(fake->recv, fake->send, 3 * sizeof(uint64_t));
}

/* Those who compare a call have waited for each other, whatever the call is. */
static void says_who_waits_to_compare(void) {
    static const char *const ops[] = {"bcast", "reduce", "scan", "halo_exchange"};
    CHECK_INT(mpixla_check_set("first", 0), 0);
    CHECK_INT(start(1 << 20), 0);
    fake->during = agree;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        CHECK_STR(run(ops[i], FIXTURE_RANK0, 0), "");
        CHECK_INT(last_call().meeting, TIMELINE_EACH_FOR_ALL);
    }
    comm_find_any(FIXTURE_RANK0)->collectives = CHECK_FIRST_CALLS; /* the next ones are not compared */
    CHECK_STR(run("bcast", FIXTURE_RANK0, 0), "");
    CHECK_INT(last_call().meeting, TIMELINE_EACH_FOR_ROOT);
    fake->during = NULL;
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK_INT(mpixla_check_set("off", 0), 0);
}

static void says_which_request(void) {
    static float id[2];
    CHECK_INT(start(1 << 20), 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    c.handler = call_handler("isend");
    call_attribute_insert(&c, 3, "site", 77);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
    timeline_call e = last_call();
    CHECK_STR(communicator_read()->name, "rank0"); /* in each file */
    CHECK_STR(text(e.op), "isend");
    CHECK_INT(e.category, TIMELINE_START);
    CHECK_INT(e.request, 0);
    CHECK_INT(e.generation, 1);
    CHECK_INT(e.to, 6);
    CHECK_INT(e.sends, 12);
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_handler("wait_send");
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
    e = last_call();
    CHECK_STR(text(e.op), "wait_send");
    CHECK_STR(text(e.waits_for), "isend");
    CHECK_STR(text(e.started_at), "model.py:3 in step");
    CHECK_INT(e.category, TIMELINE_WAIT);
    CHECK_INT(e.request, 0);
    CHECK_INT(e.generation, 1);
    CHECK_INT(e.sends, 0);
    CHECK(*call_run(&c)); /* no request any more: it is not made */
    CHECK_INT(calls(), 2);
    CHECK_INT(mpixla_trace_end(), 0);
}

static void *run_many(void *unused) {
    static _Thread_local call mine;
    call_make(&mine, "barrier", FIXTURE_RANK0, 0);
    for (int i = 0; i < EACH; i++) CHECK_STR(call_run(&mine), "");
    return unused;
}

/* Every call of every thread. */
static void takes_calls_of_threads(void) {
    CHECK_INT(start(64 << 20), 0);
    threads_run(THREADS, run_many);
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK_INT(calls(), THREADS * EACH);
    int of_thread[64] = {0};
    for (size_t i = 0; i < now.number; i++) {
        const timeline_call *e = &now.all[i].of.call;
        if (now.all[i].kind != TIMELINE_CALL) continue;
        CHECK_INT(e->state, TIMELINE_OVER);
        if (e->thread >= 0 && e->thread < 64) of_thread[e->thread]++;
    }
    int whole = 0;
    for (int i = 0; i < 64; i++) whole += of_thread[i] == EACH;
    CHECK_INT(whole, THREADS);
}

static atomic_int is_over;

static void *run_until_over(void *unused) {
    static _Thread_local call mine;
    call_make(&mine, "barrier", FIXTURE_RANK0, 0);
    while (!atomic_load(&is_over)) CHECK_STR(call_run(&mine), "");
    return unused;
}

/* No call of one file comes into the next, nor does one that began in the first and ends after all. */
static void starts_again_while_calls_go_on(void) {
    const struct timespec pause = {.tv_nsec = 300000};
    const run_threads threads = threads_start(THREADS, run_until_over);
    for (int i = 0; i < RESTARTS; i++) {
        unlink(path);
        int64_t before = mpixla_trace_now();
        CHECK_INT(start(1 << 20), 0);
        nanosleep(&pause, NULL);
        (void)mpixla_trace_end(); /* which fails if the file was full */
        (void)calls();
        for (size_t r = 0; r < now.number; r++) {
            const timeline_call *e = &now.all[r].of.call;
            if (now.all[r].kind != TIMELINE_CALL) continue;
            CHECK(e->began >= before && e->category == TIMELINE_COLLECTIVE);
            CHECK_INT(records_count(&now, TIMELINE_COMMUNICATOR), 1);
            CHECK_STR(text(e->op), "barrier");
            r += 50;
        }
    }
    atomic_store(&is_over, 1);
    threads_join(&threads);
}

static void restart(void) {
    CHECK_INT(mpixla_trace_end(), 0);
    (void)calls();
    CHECK_INT(start(1 << 20), 0);
}

/* A call that began before a restart is in the file in which it began, which does not know its end. */
static void leaves_a_call_open_that_lasts_longer_than_its_file(void) {
    CHECK_INT(start(1 << 20), 0);
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    fake->during = restart;
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    fake->during = NULL;
    CHECK_INT(calls(), 2);
    timeline_call last = last_call();
    CHECK_INT(last.state, TIMELINE_OPEN);
    CHECK_INT(mpixla_trace_end(), 0); /* of a file that had nothing to tell */
    CHECK_INT(calls(), 2);
}

static void fill(void) {
    for (int i = 0; i < 3000; i++) CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
}

static void goes_on_without_a_file_that_is_full(void) {
    CHECK_INT(start(200000), 0);
    CHECK_IN(fixture_stderr_of(fill), "and the program goes on: the file has reached its limit");
    CHECK(calls() > 1000);
    CHECK_IN(now.header->stopped, "the file has reached its limit");
    CHECK_INT(mpixla_trace_end(), -1);
    CHECK_IN(mpixla_last_error(), "is not complete");
}

int main(int argc, char **argv) {
    if (!mkdtemp(directory)) return 2;
    snprintf(path, sizeof path, "%s/rank-0000.trace", directory);
    fixture_start(argc, argv);
    writes_a_call_when_it_starts_and_when_it_ends();
    says_whose_neighbours();
    says_which_windows();
    says_who_waits_for_whom();
    says_who_waits_to_compare();
    says_which_request();
    takes_calls_of_threads();
    starts_again_while_calls_go_on();
    leaves_a_call_open_that_lasts_longer_than_its_file();
    goes_on_without_a_file_that_is_full();
    unlink(path);
    rmdir(directory);
    return check_failures();
}
