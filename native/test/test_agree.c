/* Checked mode, collective calls: this process is rank 0 of four, and the test says what the others want. */
#include <stdlib.h>

#include "call.h"
#include "check.h"
#include "check/check.h"
#include "check/signature.h"
#include "fixture.h"
#include "scarce.h"

static call c;

/* What MPI brings from the others. */
static signature other, ours;                    /* of rank 2, and what this rank wants, as the rest do */
static int others_differ;                        /* whether the numbers differ */
static int comparisons, reports;                 /* made so far */
static char made[sizeof(((fake_mpi *)0)->call)]; /* the last call that is none of checked mode's */

/* MPI_Iallreduce of 64-bit numbers, which no program's here is. */
static int is_comparison(void) {
    return fixture_is("MPI_Iallreduce") && strstr(fake->call, " t9 ") != NULL;
}

static void bring(void) {
    char *to = fake->recv;
    if (is_comparison()) {
        uint64_t words[3];
        CHECK_INT(fixture_count(), 3);
        memcpy(words, fake->send, sizeof words);
        if (others_differ) words[0] = UINT64_MAX;
        memcpy(to, words, sizeof words);
        comparisons++;
    } else if (fixture_is("MPI_Irecv") && fixture_count() == (int64_t)sizeof(signature)) {
        const char *from = strstr(fake->call, "<- ");
        memcpy(to, from && from[3] == '2' ? &other : &ours, sizeof other);
        reports++;
    } else if (fixture_is("MPI_Isend") && fixture_count() == (int64_t)sizeof(signature)) {
        memcpy(&ours, fake->send, sizeof ours);
    } else if (fixture_is("MPI_Alltoall") && fixture_count() == 3) {
        int64_t tally[3 * FIXTURE_SIZE];
        memcpy(tally, (const char *)fake->send + sizeof tally, sizeof tally); /* what this rank expects lies behind */
        memcpy(to, tally, sizeof tally);
    } else if (fixture_is("MPI_Allgather")) {
        for (int i = 0; i < FIXTURE_SIZE; i++) memcpy(to + i * fixture_count(), fake->send, (size_t)fixture_count());
    } else if (!fixture_is("MPI_Alltoall")) {
        snprintf(made, sizeof made, "%s", fake->call);
    }
}

static const char *run(void) {
    made[0] = '\0';
    comparisons = reports = 0;
    return call_run(&c);
}

/* Rank 2 wants this call, at that line. */
static void want(call *of, int64_t site) {
    frame f;
    CHECK_INT(frame_read(&f, call_shape("bcast"), &of->frame, NULL), 0);
    f.facts.site = site;
    signature_fill(&other, &f, SIGNATURE_LINES | SIGNATURE_SHAPES);
    others_differ = 1;
}

static void calls_that_fit_are_made(void) {
    static const char *const ops[] = {"allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier",
                                      "bcast",     "exchange",   "gather",    "gatherv",  "reduce",    "scan"};
    others_differ = 0;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        call_make(&c, ops[i], FIXTURE_RANK0, 0);
        CHECK_STR(run(), "");
        CHECK_INT(comparisons, 1);
        CHECK_INT(reports, 0);
    }
    CHECK(comm_key(comm_find_any(FIXTURE_RANK0)) !=
          comm_find_any(FIXTURE_RANK0)->key); /* they have one number for it */
}

static void a_call_that_differs_is_not_made(void) {
    static call theirs;
    CHECK_INT(mpixla_site_name(77, "model.py:42 in step"), 0);
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    const char *message = run();
    CHECK_STR(made, "");
    CHECK_INT(reports, FIXTURE_SIZE - 1);
    CHECK_IN(message,
             "r0 | MPIXLA_CHECK: the ranks of communicator 'rank0' do not agree on their collective call number");
    CHECK_IN(message,
             "\n  ranks 0, 1 and 3: MPI_Allreduce of 3 items of float32 of shape (3,) with op MPI_SUM, at an unknown "
             "line\n");
    CHECK_IN(message,
             "\n  rank 2: MPI_Bcast of 3 items of float32 of shape (3,) with root 0, at model.py:42 in step\n");
    CHECK_IN(message, "They differ in the operation and the line.");
    others_differ = 0;
    CHECK_STR(run(), "");
    CHECK_IN(made, "MPI_Allreduce 3");
}

/* Where the line is all that differs, it says how to allow that. */
static void lines(void) {
    static call theirs;
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    call_make(&c, "bcast", FIXTURE_RANK0, 0);
    CHECK_IN(
        run(),
        "They differ in the line. If ranks are meant to make one call in different lines, set MPIXLA_CHECK=calls.");
    others_differ = 0;
}

static call waiting;

/* A call that starts, in `c`, and the one that waits for it. */
static void start_make(void) {
    static float id[2];
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_make(&waiting, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_handler("iallreduce");
    waiting.handler = call_handler("wait");
    call_remove(&c, CALL_RESULTS, 0);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 2, id);
    call_insert(&waiting, CALL_OPERANDS, 0, FFI_F32, 2, id);
    call_insert(&waiting, CALL_RESULTS, 0, FFI_F32, CALL_COUNT, waiting.recv);
}

/* Rank 2 does not start a call, this one does, and so its request is never complete. */
static void a_start_is_refused_when_it_is_waited_for(void) {
    static call theirs;
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    start_make();
    CHECK_STR(run(), "");
    CHECK_INT(comparisons, 1);
    CHECK_IN(made, "MPI_Iallreduce 3");
    CHECK_IN(call_run(&waiting),
             "\n  ranks 0, 1 and 3: MPI_Iallreduce of 3 items of float32 of shape (3,) with op MPI_SUM");
    CHECK_IN(call_run(&waiting), "was already waited for"); /* its memory is MPI's */
    others_differ = 0;
    CHECK_STR(run(), "");
    CHECK_STR(call_run(&waiting), "");
}

/* Rank 2 has started a call, which this one has not: so it starts what takes its place, and nothing moves by that. */
static void a_call_that_only_others_started_is_replaced(void) {
    static call theirs;
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    other.starts = 1;
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    CHECK_IN(run(), "No rank gets a result of this call.");
    CHECK_STR(made, "MPI_Ialltoallv (0 0 0 0 @ 0 0 0 0) t6 to (0 0 0 0 @ 0 0 0 0) t6 c2");
    others_differ = 0;
}

/* Ranks of another MPI_COMM_WORLD, as Spawn and Merge give them, tell nothing: whatever they have made or started, all
 * suppose that it was a start, and so all are in step. */
static void some_are_of_another_world(void) {
    static const int members[] = {0, -32766, 2, -32766};
    static call theirs;
    int number = fake->comm_new(0, FIXTURE_SIZE, 0);
    int64_t comm = mpixla_comm_register(fake->handle(number), "merged");
    CHECK_INT(mpixla_comm_members_set(comm, members), 0);
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    call_make(&c, "allreduce", comm, 0);
    const char *message = run();
    CHECK_INT(reports, 1);
    CHECK_IN(message, "\n  rank 0: MPI_Allreduce of 3 items of float32");
    CHECK_IN(message, "\n  ranks 1 and 3: a call in another MPI_COMM_WORLD, which cannot be known here\n");
    CHECK_IN(message, "\n  rank 2: MPI_Bcast");
    CHECK_IN(message, "No rank gets a result of this call.");
    CHECK_IN(made, "MPI_Ialltoallv (0 0 0 0 @ 0 0 0 0)");
    others_differ = 0;
}

/* A communicator may be freed while something on it is under way, and the wait may name another one. */
static void a_start_outlives_its_communicator(void) {
    static const int members[] = {0, 1, 2, 3};
    static call theirs;
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    for (int differ = 0; differ < 2; differ++) {
        int freed = fake->comm_new(0, FIXTURE_SIZE, 0);
        int64_t comm = mpixla_comm_register(fake->handle(freed), "short-lived");
        CHECK_INT(mpixla_comm_members_set(comm, members), 0);
        others_differ = differ;
        start_make();
        call_attribute_set(&c, "comm", comm);
        CHECK_STR(run(), "");
        CHECK_INT(fake->comm_free(freed), 0);
        if (differ)
            CHECK_IN(call_run(&waiting), "the ranks of communicator 'short-lived' do not agree");
        else
            CHECK_STR(call_run(&waiting), "");
    }
    others_differ = 0;
}

/* Where MPI fails in the comparison, its error is that of the call that waits. */
static void an_error_of_the_comparison_is_told(void) {
    start_make();
    CHECK_STR(run(), "");
    fake->failing[0] = "MPI_Test";
    fake->code = 9;
    CHECK_IN(call_run(&waiting), "MPI_Wait returned error code 9: ");
    fake->failing[0] = NULL;
    CHECK_IN(call_run(&waiting), "was already waited for");
}

/* Memory: this many callocs still succeed, and no more after them; negative: all do. */
static int callocs_left = -1;

void *calloc(size_t n, size_t bytes) {
    if (callocs_left >= 0 && callocs_left-- == 0) return NULL;
    char *volatile memory = malloc(n * bytes); /* or a compiler makes a calloc of it */
    if (memory) memset(memory, 0, n * bytes);
    return memory;
}

static int callocs;

static void run_with_few_callocs(void) {
    callocs_left = callocs;
    (void)run();
}

/* The others wait for what this rank wants, or for its part of what they have started: the job ends. */
static void no_memory_to_say_what_differs(void) {
    static call theirs;
    /* For the comparison; for what the others want, and a message to each; for a call in the place of theirs. */
    enum { MESSAGES = FIXTURE_SIZE - 1, LAST = 2 + MESSAGES };
    static const char first[] = "out of memory for the check of MPI_Allreduce",
                      in_the_middle[] =
                          "out of memory for the report of the differences between the ranks of communicator 'rank0'",
                      last[] = "out of memory to stay in step with the ranks of communicator 'rank0'";
    call_make(&theirs, "bcast", FIXTURE_RANK0, 0);
    want(&theirs, 77);
    other.starts = 1;
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    for (callocs = 0; callocs <= LAST; callocs++) {
        const scarce_end end = scarce_run(run_with_few_callocs);
        CHECK_INT(end.status, 1);
        CHECK_IN(end.told, callocs == 0 ? first : callocs < LAST ? in_the_middle : last);
        CHECK_IN(end.told, "so the job ends");
    }
    others_differ = 0;
}

/* Each field counts, and by itself. */
static void facts(void) {
    const signature_facts same = {{1, 2, 3, 4, 5, 6, 7, 0, 8}};
    signature_facts one[SIGNATURE_FACTS];
    char text[128];
    for (int i = 0; i < SIGNATURE_FACTS; i++) {
        one[i] = same;
        one[i].of[i]++;
        CHECK_INT(signature_differences(&same, &one[i]), 1 << i);
        CHECK(signature_hash(&same) != signature_hash(&one[i]));
        for (int j = 0; j < i; j++) CHECK(signature_hash(&one[i]) != signature_hash(&one[j]));
    }
    signature_differences_describe(1 << SIGNATURE_ROOT, text, sizeof text);
    CHECK_STR(text, "the root");
    signature_differences_describe(1 << SIGNATURE_ROOT | 1 << SIGNATURE_ITEMS | 1 << SIGNATURE_LINE, text, sizeof text);
    CHECK_STR(text, "the count, the root and the line");
    signature_differences_describe(1 << SIGNATURE_OPERATION | 1 << SIGNATURE_ITEMS, text, sizeof text);
    CHECK_STR(text, "the operation");
    signature_differences_describe(0, text, sizeof text);
    CHECK_STR(text, "");
}

/* Off, nothing is compared. */
static void off(void) {
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    CHECK_STR(run(), "");
    CHECK_INT(comparisons, 0);
    CHECK_IN(made, "MPI_Allreduce");
}

/* The first calls of a communicator, and those whose number is a power of two. */
static void first_calls(void) {
    int64_t compared = 0;
    CHECK_INT(mpixla_check_set("first", fake->handle(FAKE_WORLD)), 0);
    int64_t before = comm_find_any(FIXTURE_RANK0)->collectives;
    for (int64_t number = before + 1; number <= 1024; number++) {
        call_make(&c, "allreduce", FIXTURE_RANK0, 0);
        CHECK_STR(run(), "");
        CHECK_INT(comparisons, number <= 64 || number == 128 || number == 256 || number == 512 || number == 1024);
        compared += comparisons;
    }
    CHECK_INT(compared, 64 - before + 4);
    CHECK_INT(mpixla_check_first_calls(), 64);
    call_make(&c, "send", FIXTURE_RANK0, 0); /* messages are not, and get no note */
    CHECK_STR(run(), "");
    CHECK_IN(made, "MPI_Send");
    CHECK_INT(mpixla_check_set("off", fake->handle(FAKE_WORLD)), 0);
}

/* A call that is refused before it is made is none, and the others' numbers stay this rank's. */
static void a_refused_call_is_not_counted(void) {
    int64_t before = comm_find_any(FIXTURE_RANK0)->collectives;
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    c.frame.args.size = 0;
    CHECK_IN(run(), "MPI_Allreduce was called with 0 operands");
    CHECK_INT(comm_find_any(FIXTURE_RANK0)->collectives, before);
}

static void modes(void) {
    CHECK_INT(mpixla_check_set("much", fake->handle(FAKE_WORLD)), -1);
    CHECK_IN(mpixla_last_error(), "the mode of checks is 'much'");
    CHECK_INT(mpixla_check_set("calls", fake->handle(FAKE_WORLD)), 0);
    CHECK_INT(mpixla_check_set("lines", fake->handle(FAKE_WORLD)), 0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    facts();
    static const int members[] = {0, 1, 2, 3};
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    fake->during = bring;
    fake->done = 1;
    off();
    a_refused_call_is_not_counted();
    first_calls();
    modes();
    calls_that_fit_are_made();
    a_call_that_differs_is_not_made();
    lines();
    a_start_is_refused_when_it_is_waited_for();
    a_call_that_only_others_started_is_replaced();
    some_are_of_another_world();
    an_error_of_the_comparison_is_told();
    a_start_outlives_its_communicator();
    no_memory_to_say_what_differs();
    return check_failures();
}
