#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "mpi/job.h"

enum { CAME_BACK = 3 };
static int status;

static void fail_in_a_child(void) {
    pid_t child = fork();
    if (child == 0) {
        (void)error_set("out of memory for a test");
        (void)job_fail(comm_look(FIXTURE_RANK2));
        _exit(CAME_BACK);
    }
    waitpid(child, &status, 0);
}

static void ends_the_job_of_others(void) {
    const char *told = fixture_stderr_of(fail_in_a_child);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 1);
    CHECK_IN(told, "mpixla: r0 | out of memory for a test\n");
    CHECK_IN(told, "communicator 'rank2' wait for this one");
}

static void is_an_error_of_one_alone(void) {
    (void)error_set("out of memory for a test");
    CHECK_INT(job_fail(comm_look(FIXTURE_SELF)), MPI_REFUSED);
    CHECK_STR(error_get(), "out of memory for a test");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    ends_the_job_of_others();
    is_an_error_of_one_alone();
    return check_failures();
}
