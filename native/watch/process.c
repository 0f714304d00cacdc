#include "watch/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/* Linux: "12 (name) S ...", where the name may have anything in it. */
static int letter_of(int64_t number) {
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
    switch (letter_of(number)) {
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

int64_t process_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
