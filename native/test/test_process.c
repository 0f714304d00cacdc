/* The state of a process, by its number and its start. */
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"
#include "run.h"

/* A child that waits for a signal; its id as it sees itself. */
static pid_t child_start(process_id *id) {
    int ends[2];
    CHECK_INT(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        const process_id self = process_self();
        ssize_t written = write(ends[1], &self, sizeof self);
        if (written == (ssize_t)sizeof self)
            for (;;) pause();
        _exit(1);
    }
    CHECK_INT(read(ends[0], id, sizeof *id), sizeof *id);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void await(const process_id *id, process_state state) {
    while (process_state_read(id) != state) clock_sleep(1);
}

static void tells_states_apart(void) {
    process_id id;
    const pid_t child = child_start(&id);
    CHECK_INT(id.number, child);
    CHECK_INT(process_state_read(&id), PROCESS_THERE);
    CHECK_INT(process_state_read(&(process_id){.number = child}), PROCESS_THERE);
    kill(child, SIGSTOP);
    await(&id, PROCESS_STOPPED);
    kill(child, SIGKILL);
    await(&id, PROCESS_GONE); /* a zombie */
    CHECK_INT(process_end(child), -SIGKILL);
    CHECK_INT(process_state_read(&id), PROCESS_GONE);
}

static void knows_by_its_start_who_has_the_number(void) {
    process_id id = process_self();
    CHECK_INT(id.started, process_started(getpid()));
    CHECK_INT(process_state_read(&id), PROCESS_THERE);
    if (id.started == 0) return; /* this system does not say */
    id.started++;
    CHECK_INT(process_state_read(&id), PROCESS_GONE);
    id.space++; /* its number means another process here */
    CHECK_INT(process_state_read(&id), PROCESS_THERE);
    id.number = INT32_MAX; /* or none */
    CHECK_INT(process_state_read(&id), PROCESS_THERE);
    id.space = 0;
    CHECK_INT(process_state_read(&id), PROCESS_GONE);
}

int main(void) {
    tells_states_apart();
    knows_by_its_start_who_has_the_number();
    return check_failures();
}
