#include <regex.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/feature.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "watch/log.h"

enum { LINE = 1024, THREADS = 4, EACH = 25 };

static int before, ends[2];

/* Standard error becomes a socket that keeps apart what is written apart: a line in two pieces would show. */
static void capture_start(void) {
    fflush(stderr);
    before = dup(STDERR_FILENO);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    dup2(ends[0], STDERR_FILENO);
}

static void capture_end(void) {
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
}

/* The next piece that was written, "" if there is none. */
static const char *capture_next(void) {
    static char piece[LINE];
    ssize_t length = recv(ends[1], piece, sizeof piece - 1, MSG_DONTWAIT);
    piece[length > 0 ? length : 0] = '\0';
    return piece;
}

static void check_matches(const char *text, const char *pattern) {
    regex_t compiled;
    CHECK(regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) == 0);
    if (regexec(&compiled, text, 0, NULL, 0) != 0) CHECK_STR(text, pattern);
    regfree(&compiled);
}

#define SECONDS "\\([0-9]\\.[0-9]e[-+][0-9]+s\\)\n$"

static void is_off_until_asked_for(void) {
    static call c;
    CHECK(!(features_get() & FEATURE_LOG));
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    capture_start();
    call_run(&c);
    CHECK_STR(capture_next(), "");
    CHECK_INT(mpixla_logging_set(5), 0);
    CHECK(features_get() & FEATURE_LOG);
    CHECK_INT(mpixla_logging_set(0), 1);
    CHECK(!(features_get() & FEATURE_LOG));
    call_run(&c);
    CHECK_STR(capture_next(), "");
    capture_end();
}

static void writes_two_lines_for_a_call(void) {
    static call c;
    mpixla_logging_set(1);
    capture_start();
    call_make(&c, "allreduce", FIXTURE_RANK0, 0);
    call_run(&c);
    CHECK_STR(capture_next(), "r0 | 9e37 | MPI_Allreduce with 3 items\n");
    check_matches(capture_next(), "^r0 \\| 9e37 \\| MPI_Allreduce done with code 0 " SECONDS);
    CHECK_STR(capture_next(), "");

    call_make(&c, "send", FIXTURE_RANK0, 0);
    fixture_fail("MPI_Send", 0x10006);
    call_run(&c);
    fixture_fail(NULL, 0);
    CHECK_STR(capture_next(), "r0 | 3c6e | MPI_Send -> 1 with tag 7 and 3 items\n");
    check_matches(capture_next(), "^r0 \\| 3c6e \\| MPI_Send done with code 6 " SECONDS);

    call_attribute_set(&c, "dest", 99); /* refused: it never starts */
    call_run(&c);
    CHECK_STR(capture_next(), "");
    capture_end();
    mpixla_logging_set(0);
}

static void cuts_a_long_line(void) {
    static call c;
    static char name[LINE];
    memset(name, 'x', sizeof name - 1);
    frame_shape shape = *call_shape("barrier");
    shape.mpi_name = name;
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    frame f;
    log_call line;
    CHECK_INT(frame_read(&f, &shape, &c.frame, NULL), 0);
    capture_start();
    log_start(&line, &f.facts, NULL);
    log_end(&line, &f.facts, 0);
    for (int i = 0; i < 2; i++) {
        const char *piece = capture_next();
        CHECK_INT(strlen(piece), 512);
        CHECK(strchr(piece, '\n') == piece + 511);
    }
    capture_end();
}

static void *run_many(void *unused) {
    static _Thread_local call c;
    call_make(&c, "barrier", FIXTURE_RANK0, 0);
    for (int i = 0; i < EACH; i++) call_run(&c);
    return unused;
}

static int lines_read;

static void *read_many(void *unused) {
    char piece[LINE];
    for (lines_read = 0; lines_read < 2 * THREADS * EACH; lines_read++) {
        ssize_t length = recv(ends[1], piece, sizeof piece - 1, 0);
        if (length <= 0) break;
        piece[length] = '\0';
        check_matches(piece, "^r0 \\| [0-9a-f]{4} \\| MPI_Barrier( done with code 0 \\([^)]*\\))?\n$");
    }
    return unused;
}

static void keeps_lines_of_threads_apart(void) {
    mpixla_logging_set(1);
    capture_start();
    const run_threads reader = threads_start(1, read_many);
    threads_run(THREADS, run_many);
    /* A reader that waits for a line which never comes is woken. */
    shutdown(ends[1], SHUT_RD);
    threads_join(&reader);
    CHECK_INT(lines_read, 2 * THREADS * EACH);
    capture_end();
    mpixla_logging_set(0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    is_off_until_asked_for();
    writes_two_lines_for_a_call();
    cuts_a_long_line();
    keeps_lines_of_threads_apart();
    return check_failures();
}
