#include <unistd.h>

#include "base/error.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "mpi/job.h"
#include "scarce.h"

static void fail_in_a_child(void) {
    (void)error_set("out of memory for a test");
    (void)job_fail(comm_look(FIXTURE_RANK2));
}

static void ends_the_job_of_others(void) {
    const scarce_end end = scarce_run(fail_in_a_child);
    CHECK_INT(end.status, 1);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for a test\n");
    CHECK_IN(end.told, "communicator 'rank2' wait for this one");
}

static void is_an_error_of_one_alone(void) {
    (void)error_set("out of memory for a test");
    CHECK_INT(job_fail(comm_look(FIXTURE_SELF)), REFUSED);
    CHECK_STR(error_get(), "out of memory for a test");
}

static FILE *elsewhere;

static void fail_elsewhere(void) {
    mpixla_output_set(fileno(elsewhere));
    fail_in_a_child();
}

static void says_it_where_people_read(void) {
    char told[256] = "";
    elsewhere = tmpfile();
    CHECK(elsewhere != NULL);
    CHECK_STR(scarce_run(fail_elsewhere).told, "");
    CHECK(pread(fileno(elsewhere), told, sizeof told - 1, 0) > 0);
    CHECK_IN(told, "communicator 'rank2' wait for this one");
    fclose(elsewhere);
}

static call c;

static void call_in_a_crowd(void) {
    (void)call_run(&c);
}

/* What the ranks of a communicator agree on before a GPU's memory comes: the others wait for what this one says. */
static void ends_it_without_memory_to_agree(void) {
    call_make(&c, "barrier", mpixla_comm_register(fake->handle(fake->comm_new(0, INT32_MAX, 0)), "crowd"), 0);
    mpixla_gpus_expect(1, 0);
    const scarce_end end = scarce_run(call_in_a_crowd);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for what the ranks of a communicator agree on\n");
    CHECK_INT(end.status, 1);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    ends_the_job_of_others();
    says_it_where_people_read();
    is_an_error_of_one_alone();
    ends_it_without_memory_to_agree();
    return check_failures();
}
