/* Calls that last, in processes of their own; what several ranks say of each other is tested with a real MPI. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pause.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "run.h"
#include "scarce.h"
#include "watch/flight.h"
#include "watch/post.h"

enum { RANKS = 4, STAYS = 79, MILLISECONDS = 200, OUTPUT = 1 << 16 };

static call c;
static char text[OUTPUT];

/* The watcher's messages are calls of the fake MPI, too. */
static _Thread_local int calls_here;

static void stay(void) {
    if (calls_here) clock_sleep(60000);
}

/* For several limits, in pieces that are each shorter. */
static void compute(void) {
    for (int i = 0; i < 8 && calls_here; i++) {
        pause_begin();
        clock_sleep(MILLISECONDS);
        pause_end();
    }
}

static int many;

static void be_short(void) {
    if (calls_here) clock_sleep(MILLISECONDS / 4);
}

/* Threads that have made calls before, and are still there. */
static int older_threads;

static void *take_a_place(void *taken) {
    CHECK(flight_of_thread());
    atomic_fetch_add((atomic_int *)taken, 1);
    for (;;) clock_sleep(60000);
    return NULL;
}

static void older_threads_start(void) {
    static atomic_int taken;
    for (int i = 0; i < older_threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, take_a_place, &taken) == 0) pthread_detach(thread);
    }
    while (atomic_load(&taken) < older_threads) clock_sleep(1);
}

static int is_warning; /* there is no limit, but a warning */
static pid_t victim;   /* rank 1, and then rank 3 is gone from the beginning */

static int start(int ranks, int talks) {
    mpixla_process processes[RANKS];
    for (int i = 0; i < ranks; i++)
        processes[i] = (mpixla_process){.host = "here", .name = "a host", .number = (int64_t)getpid()};
    if (victim) processes[1].number = victim;
    if (ranks > 1) processes[victim ? 3 : 1].number = 1 << 30; /* there is none */
    return mpixla_timeout_set(is_warning ? 0 : 1e-3 * MILLISECONDS, 1e-3 * MILLISECONDS,
                              talks ? fake->handle(FAKE_WORLD) : 0, processes, ranks);
}

static void tell_stacks(void) {
    mpixla_timeout_stack_give("the line of a script", 1);
}

/* How the process ends that makes this call, and what it writes: in `text`. */
static int ended(void (*during)(void), int ranks, int talks, int stacks) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        older_threads_start();
        if (start(ranks, talks) != 0) _exit(77);
        if (stacks) mpixla_front_end_set(MPIXLA_WISH_STACKS, tell_stacks);
        call_make(&c, "allreduce", FIXTURE_RANK0, 0);
        fake->during = during;
        calls_here = 1;
        for (int i = 0; i < (many ? 12 : 1); i++)
            if (*call_run(&c)) _exit(78);
        fake->during = NULL;
        fake->done = 1;
        mpixla_timeout_ended();
        fake->finalize();
        _exit(STAYS);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; used < sizeof text - 1 && (n = read(ends[0], text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(ends[0]);
    return process_end(child);
}

static void ends_what_lasts(void) {
    CHECK_INT(ended(stay, 1, 0, 1), 124);
    CHECK_IN(text, "mpixla: rank 0 has waited for ");
    CHECK_IN(text, "longer than MPIXLA_TIMEOUT=0.2 allows");
    CHECK_IN(text, "MPI_Allreduce with 3 items of float32");
}

/* However many have made calls before it. */
static void watches_the_newest_thread(void) {
    older_threads = 70;
    CHECK_INT(ended(stay, 1, 0, 1), 124);
    CHECK_IN(text, "MPI_Allreduce with 3 items of float32");
    older_threads = 0;
}

static void stay_a_while(void) {
    if (calls_here) clock_sleep(5 * MILLISECONDS);
}

/* Once for one wait, however long it is. */
static void says_a_word(void) {
    is_warning = 1;
    CHECK_INT(ended(stay_a_while, 1, 0, 1), STAYS);
    CHECK_IN(text, "mpixla: rank 0 has waited for ");
    CHECK_IN(text, ", and goes on waiting; MPIXLA_TIMEOUT=seconds");
    CHECK(!strstr(strstr(text, "and goes on waiting") + 1, "and goes on waiting"));
    is_warning = 0;
}

/* Three ranks that do not answer, one of which is gone. */
static void names_who_does_not_answer(void) {
    CHECK_INT(ended(stay, RANKS, 1, 0), 124);
    CHECK_IN(text, "  Rank 1 has not come: its process is gone: process 1073741824 on a host.\n");
    CHECK_IN(text, "  Rank 2 has not come: it does not answer: process ");
    CHECK_IN(text, "rank 0 (process ");
}

static int *asked; /* how often others were asked what they do, in all processes of this test */

/* Rank 1 dies after the first warning. */
static void stay_while_it_dies(void) {
    static const int members[RANKS] = {0, 1, 2, 3};
    int64_t kind;
    if (calls_here) CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    stay();
    if (!fixture_is("MPI_Isend")) return;
    memcpy(&kind, fake->send, sizeof kind);
    *asked += kind == POST_ASK;
    if (kind == POST_REPORTED) kill(victim, SIGKILL);
}

/* The job ends when two looks say the same. The second one sees another death, so it takes a third. */
static void looks_again(void) {
    asked = mmap(NULL, sizeof *asked, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    victim = fork();
    if (victim == 0) {
        clock_sleep(60000);
        _exit(0);
    }
    is_warning = 1;
    CHECK_INT(ended(stay_while_it_dies, RANKS, 1, 1), 1);
    CHECK_IN(text, "It can never end, as it seems: if that is still so in 0.2 s, the job ends.");
    CHECK_IN(text, "in a call that can never end, so the whole job ends.");
    CHECK_INT(*asked, 3 * (RANKS - 1));
    CHECK_INT(process_end(victim), -SIGKILL);
    is_warning = victim = 0;
}

static void leaves_others_alone(void) {
    CHECK_INT(ended(compute, RANKS, 1, 1), STAYS);
    CHECK_STR(text, "");
    many = 1; /* together longer than the limit */
    CHECK_INT(ended(be_short, RANKS, 1, 1), STAYS);
    CHECK_STR(text, "");
    many = 0;
}

static void refuses_what_is_no_limit(void) {
    const mpixla_process self = {.host = "", .name = "", .number = 1};
    CHECK(mpixla_timeout_set(0, 0, 0, &self, 1) < 0);
    CHECK_IN(mpixla_last_error(), "a time limit is a number of seconds greater than 0");
    CHECK(mpixla_timeout_set(-1, 1, 0, &self, 1) < 0);
    CHECK(mpixla_timeout_set(1, 0, 0, &self, 0) < 0);
}

static void stops_before_mpi_ends(void) {
    pid_t child = fork();
    if (child == 0) {
        if (start(RANKS, 1) != 0) _exit(77);
        int before = fake->calls;
        for (int look = 0; fake->calls == before && look < 1000; look++) clock_sleep(10);
        if (fake->calls == before) _exit(77); /* the thread calls MPI */
        mpixla_timeout_stop();
        int calls = fake->calls;
        clock_sleep(MILLISECONDS);
        _exit(fake->calls == calls ? STAYS : 1);
    }
    CHECK_INT(process_end(child), STAYS);
}

/* MPI_Finalize stops it, and answers in its place even if the thread was stopped before. */
static void ends_with_mpi(void) {
    pid_t child = fork();
    if (child == 0) {
        mpixla_timeout_left(); /* nobody watches yet */
        mpixla_timeout_stop(); /* nor is there a thread to stop */
        if (start(RANKS, 1) != 0 || start(RANKS, 1) == 0) _exit(77);
        mpixla_timeout_left();
        mpixla_timeout_stop();
        fake->done = 1;
        fake->finalize();
        int calls = fake->calls;
        clock_sleep(MILLISECONDS);
        _exit(fake->calls == calls ? STAYS : 1);
    }
    CHECK_INT(process_end(child), STAYS);
}

/* Also where one of the others is gone and never comes there, and a message is never taken. */
static void ends_after_a_death(void) {
    is_warning = 1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        fake->done = 0;
        post_channel_set(fake->handle(FAKE_WORLD), RANKS);
        post_send(1, POST_REPORTED, 0, NULL, 0);
        if (!post_is_sending() || start(RANKS, 1) != 0) _exit(77);
        mpixla_timeout_left();
        fake->finalize();
        _exit(STAYS);
    }
    CHECK_INT(process_end(child), STAYS);
    is_warning = 0;
}

/* Where its thread cannot be started the process still ends, and answers the others when it does. */
static void ends_without_its_thread(void) {
    if (!scarce_is_real()) return;
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit least = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
        setrlimit(RLIMIT_AS, &least);
        if (start(1, 1) == 0) _exit(77);
        fake->done = 1;
        fake->finalize();
        _exit(STAYS);
    }
    CHECK_INT(process_end(child), STAYS);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    refuses_what_is_no_limit();
    ends_what_lasts();
    watches_the_newest_thread();
    says_a_word();
    names_who_does_not_answer();
    looks_again();
    leaves_others_alone();
    stops_before_mpi_ends();
    ends_with_mpi();
    ends_without_its_thread();
    ends_after_a_death();
    return check_failures();
}
