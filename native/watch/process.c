#include "watch/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "base/clock.h"

/* The letter by which Linux tells the state of a process; 0 where it does not. It is in a line "12 (name) S ...", whose
 * name may have anything in it. */
static int state_letter(int64_t number) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)number);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t bytes = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[bytes] = '\0';
    const char *end = strrchr(line, ')');
    return end && end[1] == ' ' ? (unsigned char)end[2] : 0;
}

state_presence process_look(int64_t number) {
    if (kill((pid_t)number, 0) != 0 && errno == ESRCH) return STATE_DEAD;
    switch (state_letter(number)) {
        case 'T':
        case 't':
            return STATE_STOPPED;
        case 'Z':
        case 'X':
            return STATE_DEAD;
        default:
            return STATE_SILENT;
    }
}

/* Two measurements, so that the older one is never too new to say anything. */
static struct {
    int64_t when, used; /* nanoseconds */
} before, newest;

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
