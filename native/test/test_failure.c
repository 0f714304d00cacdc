#include <stdlib.h>
#include <unistd.h>

#include "base/feature.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "watch/failure.h"

static call c;

static int64_t ended;

static void run_end(void) {
    ended = mpixla_failures_end();
}

static void run_barrier(void) {
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&c), "");
}

static const char *fail_to_send(int tag) {
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "sendtag", tag);
    fixture_fail("MPI_Send", 0x10006);
    call_run_unseen(&c);
    fixture_fail(NULL, 0);
    return c.message;
}

static void forgets_what_was_seen(void) {
    CHECK_IN(fail_to_send(1), "error code 6");
    CHECK(features_get() & FEATURE_UNPRINTED);
    char text[2 * CALL_MESSAGE];
    snprintf(text, sizeof text, "INTERNAL: %s and more", c.message);
    mpixla_failures_seen(text);
    CHECK(!(features_get() & FEATURE_UNPRINTED));
    CHECK_STR(fixture_stderr_of(run_end), "");
    CHECK_INT(ended, 0);
}

static void tells_at_the_next_call_and_at_the_end(void) {
    fail_to_send(2);
    const char *told = fixture_stderr_of(run_barrier);
    CHECK_IN(told, "mpixla: rank 0: a call failed, and nobody has looked at its result: r0 | MPI_Send returned error");
    CHECK_IN(told, "-> 1 with tag 2");
    CHECK_STR(fixture_stderr_of(run_barrier), "");
    CHECK_IN(fixture_stderr_of(run_end), "-> 1 with tag 2"); /* again: it is why the process ends badly */
    CHECK_INT(ended, 1);
    mpixla_failures_seen("something else");
    CHECK_INT(mpixla_failures_end(), 1);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", 99);
    CHECK_IN(call_run_unseen(&c), "got dest = 99");
    CHECK_IN(fixture_stderr_of(run_end), "MPI_Send got dest = 99");
    CHECK_INT(ended, 2);
    mpixla_failures_seen(c.message);
    CHECK_INT(mpixla_failures_end(), 1);
    mpixla_failures_seen(fail_to_send(2)); /* equal sentences are one */
    CHECK_INT(mpixla_failures_end(), 0);
}

/* A process died: every call after that fails, and the program need not look at each of them. */
static void knows_a_loss_once_it_was_seen(void) {
    enum { DIED = 0x1004b, CLASS = 0x4b, OTHER = 0x4d };
    mpixla_loss_classes_set(CLASS, 0x4c, OTHER);
    static char first[CALL_MESSAGE];
    for (int tag = 1; tag <= 3; tag++) {
        call_make(&c, "send", FIXTURE_RANK0, 0);
        call_attribute_set(&c, "sendtag", tag);
        fixture_fail("MPI_Send", DIED);
        call_run_unseen(&c);
        if (tag == 1) snprintf(first, sizeof first, "%s", c.message);
    }
    fixture_fail(NULL, 0);
    CHECK_IN(first, "error code 75");
    CHECK_IN(first, "with tag 1");
    CHECK_IN(first, "A process of this communicator has died");
    CHECK(features_get() & FEATURE_UNPRINTED);
    CHECK_IN(fail_to_send(4), "with tag 4"); /* of another cause */
    mpixla_failures_seen(first);
    CHECK_INT(mpixla_failures_end(), 1);
    mpixla_failures_seen(c.message);
    CHECK(!(features_get() & FEATURE_UNPRINTED));
    call_make(&c, "send", FIXTURE_RANK0, 0);
    fixture_fail("MPI_Send", OTHER);
    call_run_unseen(&c);
    CHECK(!(features_get() & FEATURE_UNPRINTED));
    call_make(&c, "send", FIXTURE_RANK2, 0); /* another communicator */
    fixture_fail("MPI_Send", OTHER);
    call_run_unseen(&c);
    fixture_fail(NULL, 0);
    CHECK(features_get() & FEATURE_UNPRINTED);
    mpixla_failures_seen(c.message);
    CHECK_INT(mpixla_failures_end(), 0);
    mpixla_loss_classes_set(0, 0, 0);
}

static int is_caller;

static void *thread_of_caller(void) {
    return is_caller ? &is_caller : NULL;
}

static void leaves_out_what_is_raised_at_once(void) {
    mpixla_failures_raised_on(thread_of_caller);
    is_caller = 1;
    fail_to_send(4);
    CHECK_INT(mpixla_failures_end(), 0);
    is_caller = 0;
    fail_to_send(4);
    CHECK_IN(fixture_stderr_of(run_end), "with tag 4");
    CHECK_INT(ended, 1);
    mpixla_failures_seen(c.message);
    mpixla_loss_classes_set(75, 76, 77);
    for (int raised = 1; raised >= 0; raised--) { /* what is raised at once was seen, and all that follows */
        is_caller = raised;
        call_make(&c, "barrier", mpixla_comm_register(fake->handle(FAKE_SELF), NULL), 0);
        fixture_fail("MPI_Barrier", 75);
        call_run_unseen(&c);
        fixture_fail(NULL, 0);
        CHECK_INT(mpixla_failures_end(), 0);
    }
    mpixla_loss_classes_set(0, 0, 0);
    mpixla_failures_raised_on(NULL);
}

/* Those beyond what is kept are counted, and nobody can say that they were seen. */
enum { KEPT = 1024, MORE = 10 };

static void run_many(void) {
    for (int tag = 1; tag <= KEPT + MORE; tag++) fail_to_send(1000 + tag);
    for (int tag = 1; tag <= KEPT; tag++) mpixla_failures_seen(fail_to_send(1000 + tag));
}

static void keeps_so_many(void) {
    (void)fixture_stderr_of(run_many);
    CHECK_STR(fixture_stderr_of(run_end), "mpixla: rank 0: 10 more calls failed, of which no sentence was kept\n");
    CHECK_INT(ended, MORE);
}

static void ends_badly(void) {
    for (int status = 0; status < 2; status++) {
        pid_t child = fork();
        if (child == 0) {
            if (mpixla_end_last(1) != 0) _exit(77);
            exit(status ? 3 : 0);
        }
        CHECK_INT(process_end(child), 1);
    }
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    forgets_what_was_seen();
    tells_at_the_next_call_and_at_the_end();
    knows_a_loss_once_it_was_seen();
    leaves_out_what_is_raised_at_once();
    ends_badly();
    keeps_so_many();
    return check_failures();
}
