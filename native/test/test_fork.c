/* Forked processes, while another thread holds one of the library's locks: it is held for ever in them. */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "watch/failure.h"

enum { SECONDS = 20 };
static call c;
static char *page; /* a text that the library reads with a lock */
static size_t page_bytes;
static int stops[2], goes_on[2]; /* pipes */

/* The thread that reads the page is in the middle of it, until it may go on. */
static void on_fault(int signal) {
    char byte = 0;
    (void)signal;
    if (write(stops[1], &byte, 1) != 1 || read(goes_on[0], &byte, 1) != 1) _exit(2);
    mprotect(page, page_bytes, PROT_READ);
}

static void *hears_of_failures(void *nothing) {
    mpixla_failures_seen(page);
    return nothing;
}

static void *names_a_site(void *nothing) {
    (void)mpixla_site_name(77, page);
    return nothing;
}

static int is_refused(void) {
    static const char expected[] =
        "this process was forked from one that runs MPI, which cannot be used in both, so no communicator can be used "
        "any more. Start processes with multiprocessing's start method 'spawn' (docs/sharp_bits.md, Do not fork)";
    alarm(SECONDS); /* a lock would be waited for for ever */
    mpixla_forked();
    int before = fake->calls;
    for (int i = 0; i < 2; i++) {
        if (strcmp(call_run_unseen(&c), expected) != 0) return 3;
        mpixla_failures_seen(c.message);
        if (mpixla_site_name(78 + i, "a line") != 0) return 4;
    }
    return fake->calls == before ? 0 : 5;
}

static void refuses_at_once(void *(*reads)(void *nothing)) {
    char byte = 0;
    failure_add("a failure that nobody has looked at", NULL);
    CHECK_INT(mprotect(page, page_bytes, PROT_NONE), 0);
    const run_threads thread = threads_start(1, reads);
    CHECK_INT(read(stops[0], &byte, 1), 1);
    pid_t child = fork();
    if (child == 0) _exit(is_refused());
    CHECK_INT(process_end(child), 0);
    CHECK_INT(write(goes_on[1], &byte, 1), 1);
    threads_join(&thread);
    mpixla_failures_seen("a failure that nobody has looked at");
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_fault};
    fixture_start(argc, argv);
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || pipe(stops) != 0 || pipe(goes_on) != 0) return 2;
    strcpy(page, "a text");
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL); /* what macOS makes of it */
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    refuses_at_once(hears_of_failures);
    refuses_at_once(names_a_site);
    return check_failures();
}
