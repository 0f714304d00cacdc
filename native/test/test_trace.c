#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/feature.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "json.h"
#include "watch/trace.h"

enum { THREADS = 4, EACH = 500, TIMED = 5000, ROUNDS = 10 };

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

static const char *whole(int events) {
    const char *text = json_file(path);
    CHECK_INT(json_count(text), events);
    return text;
}

static const char *run(const char *op, int64_t comm, int64_t root) {
    call_make(&c, op, comm, root);
    return call_run(&c);
}

static void during(void) {
    const char *text = json_file(path);
    CHECK(json_count(text) > 0);
    CHECK_IN(text, "{\"ph\":\"B\",\"dur\":999999999999.999,\"args\":{\"failed\":0,\"mpi\":\"MPI_Allreduce\"");
}

static void writes_a_call_when_it_starts_and_when_it_ends(void) {
    static const int members[FIXTURE_SIZE] = {4, 6, 8, 11};
    CHECK(!(features_get() & FEATURE_TRACE));
    CHECK_INT(start(1 << 20), 0);
    CHECK(features_get() & FEATURE_TRACE);
    CHECK_INT(start(1 << 20), -1);
    CHECK_IN(mpixla_last_error(), "traced already");
    CHECK_STR(json_file(path), "");
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    CHECK_INT(mpixla_site_name(77, "a \"b\".py:3 in \\ \x01 caf\xc3\xa9 \xc3"), 0);

    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_insert(&c, 2, "site", 77);
    fake->during = during;
    CHECK_STR(call_run(&c), "");
    fake->during = NULL;
    const char *text = whole(4);
    CHECK_IN(text, "{\"name\":\"rank 0 on ");
    CHECK_IN(text, ",\"rank\":0,\"ranks\":4,\"host\":\"");
    CHECK_IN(text, ",\"job\":\"a \\\"job\\\"\",\"clock\":\"here\",");
    CHECK_IN(text, "{\"number\":1,\"name\":\"rank0\",\"rank\":0,\"size\":4,\"members\":[[4,3,2],[11,1,1]]}}");
    CHECK_IN(text,
             ",\"mpi\":\"MPI_Allreduce\",\"site\":\"a \\\"b\\\".py:3 in \\\\ ? caf\xc3\xa9 ?\",\"comm\":\"rank0\","
             "\"number\":1,\"sequence\":0,\"sends\":12,\"receives\":12,\"items\":3,\"dtype\":\"float32\","
             "\"op\":\"MPI_SUM\",\"thread\":1},\"ts\":");
    CHECK_IN(text, ",\"pid\":0,\"tid\":0,\"name\":\"allreduce\",\"cat\":\"collective\"}");
    CHECK_IN(text, "{\"ph\":\"X\",\"dur\":  ");
    CHECK(!strstr(text, "\"ph\":\"B\""));

    CHECK_STR(run("sendrecv", FIXTURE_RANK0, 0), "");
    text = whole(5); /* the communicator was described before */
    CHECK_IN(text, "\"number\":1,\"to\":6,\"sendtag\":7,\"from\":8,\"recvtag\":8,\"sends\":12,");
    CHECK_IN(text, "\"name\":\"sendrecv\",\"cat\":\"message\"");

    call_make(&c, "recv", FIXTURE_RANK2, 0); /* nobody has said which ranks it has */
    call_attribute_set(&c, "source", MPIXLA_ANY_SOURCE);
    call_attribute_set(&c, "recvtag", MPIXLA_ANY_TAG);
    CHECK_STR(call_run(&c), "");
    text = whole(7);
    CHECK_IN(text, "\"rank\":2,\"size\":4}}");
    CHECK_IN(text, "\"from\":\"any\",\"recvtag\":\"any\",\"sends\":0,\"receives\":12,");

    fixture_fail("MPI_Send", 0x10006);
    call_make(&c, "send", FIXTURE_RANK2, 0);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    CHECK_IN(call_run(&c), "error code 6");
    fixture_fail(NULL, 0);
    text = whole(8);
    CHECK_IN(text, "{\"failed\":1,\"mpi\":\"MPI_Send\"");
    CHECK_IN(text, "\"to\":null,");

    CHECK_STR(run("exchange", FIXTURE_RANK0, 0), "");
    CHECK_IN(whole(9), "\"sources\":[8,6]}");
    CHECK_STR(run("bcast", FIXTURE_RANK0, 3), "");
    CHECK_IN(whole(10), "\"root\":11,\"sends\":0,\"receives\":12,");

    call_make(&c, "send", FIXTURE_RANK2, 0); /* refused: it never starts */
    call_attribute_set(&c, "dest", 99);
    CHECK(*call_run(&c));
    whole(10);
    CHECK_INT(mpixla_trace_clock(5, -6, 7), 0);
    CHECK_IN(whole(11), "{\"when\":5,\"ahead\":-6,\"round_trip\":7}}");
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK(!(features_get() & FEATURE_TRACE));
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    whole(11);
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK_INT(mpixla_trace_clock(5, -6, 7), -1);
}

static void says_which_request(void) {
    static float id[2];
    CHECK_INT(start(1 << 20), 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    c.handler = call_request_handler("isend");
    call_attribute_insert(&c, 3, "site", 77);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
    const char *text = json_file(path);
    CHECK_IN(text, "\"args\":{\"number\":1,\"name\":\"rank0\",\"rank\":0,"); /* in each file */
    CHECK_IN(text, "\"request\":\"0.1\",\"to\":6,\"sendtag\":7,\"sends\":12,");
    CHECK_IN(text, "\"name\":\"isend\",\"cat\":\"start\"");
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_request_handler("wait_send");
    call_insert(&c, CALL_OPERANDS, 0, FFI_F32, 2, id);
    CHECK_STR(call_run(&c), "");
    text = json_file(path);
    CHECK(json_count(text) > 0);
    CHECK_IN(text, "\"request\":\"0.1\",\"waits_for\":\"isend\",\"started_at\":\"a \\\"b\\\".py");
    CHECK_IN(text, "\"name\":\"wait_send\",\"cat\":\"wait\"");
    CHECK(*call_run(&c)); /* no request any more: no event, and its row is free again */
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    CHECK_IN(json_file(path), "\"tid\":0,\"name\":\"barrier\"");
    CHECK_INT(mpixla_trace_end(), 0);
}

static void *run_many(void *unused) {
    static _Thread_local call mine;
    call_make(&mine, "barrier", FIXTURE_RANK0, 0);
    for (int i = 0; i < EACH; i++) CHECK_STR(call_run(&mine), "");
    return unused;
}

/* Every call of every thread; the rows of two calls at once differ. */
static void takes_calls_of_threads(void) {
    pthread_t threads[THREADS];
    CHECK_INT(start(64 << 20), 0);
    CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
    int before = json_count(json_file(path));
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run_many, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_INT(mpixla_trace_end(), 0);
    CHECK_INT(json_count(json_file(path)), before + THREADS * EACH);
    CHECK(!strstr(json_file(path), "\"ph\":\"B\""));
}

static void nested(void) {
    static call inner;
    fake->during = NULL;
    call_make(&inner, "send", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&inner), "");
}

static void gives_a_call_within_a_call_a_row_of_its_own(void) {
    CHECK_INT(start(1 << 20), 0);
    fake->during = nested;
    CHECK_STR(run("allreduce", FIXTURE_RANK0, 0), "");
    fake->during = NULL;
    const char *text = json_file(path);
    CHECK_IN(text, "\"tid\":0,\"name\":\"allreduce\"");
    CHECK_IN(text, "\"tid\":1,\"name\":\"send\"");
    CHECK_INT(mpixla_trace_end(), 0);
}

static void fill(void) {
    int events = json_count(json_file(path));
    CHECK_INT(events, -1);
    for (int i = 0; i < 3000; i++) CHECK_STR(run("barrier", FIXTURE_RANK0, 0), "");
}

static void goes_on_without_a_file_that_is_full(void) {
    CHECK_INT(start(300000), 0);
    CHECK_IN(fixture_stderr_of(fill), "and the program goes on: the file has reached its limit");
    CHECK_IN(json_file(path), "mpixla_stopped");
    CHECK(json_count(json_file(path)) > 0);
    CHECK_INT(mpixla_trace_end(), -1);
    CHECK_IN(mpixla_last_error(), "is not complete");
}

/* The processor's time for a call, in the best of several rounds. */
static double nanoseconds_of_a_call(void) {
    double best = 1e9;
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_attribute_insert(&c, 2, "site", 77);
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        for (int i = 0; i < TIMED; i++) (void)c.handler(&c.frame);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        double each = ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / TIMED;
        if (each < best) best = each;
    }
    return best;
}

/* Not a check, as machines differ: what a traced call costs more, for whoever reads the output. */
static void tells_its_cost(void) {
    double without = nanoseconds_of_a_call();
    CHECK_INT(start(64 << 20), 0);
    double with = nanoseconds_of_a_call();
    CHECK_INT(mpixla_trace_end(), 0);
    printf("a call takes %.0f ns, and %.0f ns more if it is traced\n", without, with - without);
}

int main(int argc, char **argv) {
    if (!mkdtemp(directory)) return 2;
    snprintf(path, sizeof path, "%s/rank-0000.json", directory);
    fixture_start(argc, argv);
    writes_a_call_when_it_starts_and_when_it_ends();
    says_which_request();
    takes_calls_of_threads();
    gives_a_call_within_a_call_a_row_of_its_own();
    unlink(path);
    goes_on_without_a_file_that_is_full();
    tells_its_cost();
    unlink(path);
    rmdir(directory);
    return check_failures();
}
