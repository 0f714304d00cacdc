/* A word while MPI starts, in processes of their own: each starts MPI once. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "mpixla.h"
#include "run.h"

enum { TEXT_BYTES = 64, AWHILE = 400, FOR_EVER = 60000 /* milliseconds */, TOO_LONG = 20 /* seconds */ };
#define SECONDS 0.1

static void start_mpi(int file, int is_done) {
    mpixla_output_set(file);
    if (mpixla_init_watch(SECONDS, "It waits.\n") != 0) _exit(1);
    if (is_done) mpixla_init_done();
    clock_sleep(is_done ? AWHILE : FOR_EVER);
    _exit(0);
}

/* Checks what a process has said first. */
static void says(int is_done, const char *expected) {
    int ends[2];
    char text[TEXT_BYTES] = "";
    CHECK(pipe(ends) == 0);
    const pid_t process = fork();
    if (process == 0) start_mpi(ends[1], is_done);
    close(ends[1]);
    CHECK(read(ends[0], text, sizeof text - 1) >= 0);
    CHECK_STR(text, expected);
    close(ends[0]);
    if (!is_done) kill(process, SIGKILL);
    CHECK_INT(process_end(process), is_done ? 0 : -SIGKILL);
}

int main(void) {
    alarm(TOO_LONG);
    says(0, "It waits.\n");
    says(1, "");
    return check_failures();
}
