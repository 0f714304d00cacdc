/* Memory that processes share, by its number. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/shared.h"
#include "run.h"

enum { BYTES = 3 * 4096, PART = 4096 };

static void two_processes_share_it(void) {
    const uint64_t number = shared_random_number();
    char *here = shared_open(number, 1, BYTES, 0, PART);
    CHECK(here != NULL);
    if (!here) return;
    for (int i = 0; i < BYTES; i++) CHECK(here[i] == 0);
    pid_t child = fork();
    if (child == 0) {
        char *there = shared_open(number, 0, BYTES, PART, PART);
        if (there) strcpy(there + PART, "from the child");
        _exit(there == NULL);
    }
    CHECK_INT(process_end(child), 0);
    CHECK_STR(here + PART, "from the child");
    shared_unlink(number);
    CHECK(shared_open(number, 0, BYTES, 0, PART) == NULL); /* but who has it keeps it */
    CHECK_STR(here + PART, "from the child");
    shared_close(here, BYTES);
}

static void not_others(void) {
    const uint64_t number = shared_random_number(), other = shared_random_number();
    CHECK(number != other);
    void *here = shared_open(number, 1, BYTES, 0, PART);
    CHECK(here != NULL);
    CHECK(shared_open(number, 1, BYTES, 0, PART) == NULL);     /* nobody else can make it */
    CHECK(shared_open(other, 0, BYTES, 0, PART) == NULL);      /* nor find one that is not there, */
    CHECK(shared_open(number, 0, 2 * BYTES, 0, PART) == NULL); /* or is smaller */
    shared_unlink(number);
    shared_close(here, BYTES);
}

/* Only root can make such memory. */
static void not_of_another_user(void) {
    const uint64_t number = shared_random_number();
    char name[32];
    snprintf(name, sizeof name, "/mpixla-%016llx", (unsigned long long)number);
    if (geteuid() != 0) return;
    void *here = shared_open(number, 1, BYTES, 0, PART);
    CHECK(here != NULL);
    const int file = shm_open(name, O_RDWR, 0);
    CHECK(file >= 0);
    CHECK_INT(fchown(file, 1, (gid_t)-1), 0);
    close(file);
    CHECK(shared_open(number, 0, BYTES, 0, PART) == NULL);
    shared_unlink(number);
    shared_close(here, BYTES);
}

int main(void) {
    two_processes_share_it();
    not_others();
    not_of_another_user();
    return check_failures();
}
