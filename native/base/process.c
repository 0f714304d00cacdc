#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

/* A process as Linux describes it in /proc/.../stat. */
typedef struct process_line {
    int letter;      /* of its state; 0: unknown */
    int64_t started; /* 0: unknown */
} process_line;

/* Returns the state and the start time of a process from /proc; zeros if it is gone, or not on Linux. The line is "12
 * (name) S ...", whose name may have anything in it; the state is field 3, the start field 22. */
static process_line process_line_read(int64_t number) {
    enum { STATE_FIELD = 3, START_FIELD = 22 };
    char path[64], line[1024];
    process_line found = {0};
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)number);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return found;
    const ssize_t bytes = read(file, line, sizeof line - 1);
    (void)close(file);
    line[bytes > 0 ? bytes : 0] = '\0';
    const char *at = strrchr(line, ')');
    if (!at || at[1] != ' ') return found;
    found.letter = (unsigned char)at[2];
    for (int field = STATE_FIELD - 1; at && field < START_FIELD; field++) at = strchr(at + 1, ' ');
    if (at) found.started = strtoll(at, NULL, 10);
    return found;
}

int64_t process_started(int64_t number) {
    return process_line_read(number).started;
}

/* Returns a hash of the namespaces of process numbers and of times in which this process lives; 0: unknown. */
static int64_t process_space(void) {
    struct stat numbers, times;
    if (stat("/proc/self/ns/pid", &numbers) != 0) return 0;
    if (stat("/proc/self/ns/time", &times) != 0) times.st_ino = 0; /* before Linux 5.6 */
    return (int64_t)(hash_combine(numbers.st_ino, times.st_ino) | 1);
}

process_id process_self(void) {
    const int64_t number = getpid();
    return (process_id){.number = number, .started = process_started(number), .space = process_space()};
}

process_state process_state_read(const process_id *id) {
    static _Thread_local int64_t here; /* the space of this process */
    if (id->space != 0) {
        if (here == 0) here = process_space();
        if (here != id->space) return PROCESS_THERE;
    }
    if (kill((pid_t)id->number, 0) != 0 && errno == ESRCH) return PROCESS_GONE;
    const process_line line = process_line_read(id->number);
    if (id->started != 0 && line.started != 0 && line.started != id->started) return PROCESS_GONE;
    switch (line.letter) {
        case 'T':
        case 't':
            return PROCESS_STOPPED;
        case 'Z':
        case 'X':
            return PROCESS_GONE;
        default:
            return PROCESS_THERE;
    }
}

/* Two measurements, so that the older one is never too new to say anything. */
static struct {
    int64_t when, used; /* nanoseconds */
} before, newest;

/* Records the processor time that this process has used, for process_percent, at most once a second. */
void process_measure(void) {
    int64_t now = clock_now();
    if (now - newest.when < 1000000000) return;
    before = newest;
    newest.when = now;
    newest.used = clock_read(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t process_percent(void) {
    return before.when == 0 ? -1
                            : (clock_read(CLOCK_PROCESS_CPUTIME_ID) - before.used) * 100 / (clock_now() - before.when);
}
