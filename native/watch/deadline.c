/* MPIXLA_TIMEOUT: a thread that looks at the calls of this process from time to time, answers the other ranks, and asks
 * them when a call has waited for too long. The calls themselves know nothing of it.
 *
 * Time counts while this thread runs: a process that was stopped as a whole has not waited. The thread never waits for
 * another process: whom it asks may be stopped or gone, and has PATIENCE to answer.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"
#include "transport/transport.h"
#include "watch/flight.h"
#include "watch/post.h"
#include "watch/process.h"
#include "watch/report.h"
#include "watch/stack.h"

enum { EXIT_TIMED_OUT = 124 /* as of the command timeout */ };
enum { STACK_BYTES = 1 << 20, MOST_THREADS = 64, PYTHON_BYTES = 4096, FORWARDING_MILLISECONDS = 300 };
/* Milliseconds. */
enum {
    PATIENCE = 2000,
    PATIENCE_WITH_PYTHON = 1000,
    PATIENCE_TO_LOOK = 500,
    PATIENCE_TO_CLAIM = 200,
    HELD_BACK = 5000
};
enum { SHORTEST_POLL = 10, LONGEST_POLL = 250, LEAVING_POLL = 2, POLLS = 20, ALL_THERE = 10 /* limits */ };

/* What a call that waits has waited; it is told from the next by the number of calls, and of pauses. */
typedef struct waiting {
    int64_t entered, waited;
    int pauses;
} waiting;

/* What is under way at another rank. */
typedef struct inquiry {
    enum { IDLE, ASKING, LOOKING, CLAIMING } phase;
    int64_t number, until;
    int64_t thread;
    waiting call; /* of that thread */
    int answers, looks;
    char **memory; /* of each rank's answer */
    state *all;
} inquiry;

static struct {
    double limit;
    int64_t limit_ns, poll;
    mpixla_process *processes;
    int64_t ranks;
    int talks;            /* to other ranks */
    pthread_mutex_t lock; /* held while the thread works */
    pthread_cond_t changed;
    int leaving, has_left;
    atomic_int ended, stopped;
} our = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of the thread alone. */
enum { AT_END = MOST_THREADS }; /* beside the threads: this process, which has ended, for those that have not */
static waiting waits[MOST_THREADS + 1];
static int64_t next_inquiry; /* what a call must have waited */
static int64_t held_back_until;
static int has_joined;
static inquiry asked;
static int64_t cpu_time[2], cpu_when[2];

static int64_t in_milliseconds(int64_t ms) {
    return clock_now() + ms * 1000000;
}

/* Measuring */

static int64_t threads_watched(void) {
    int64_t threads = flight_threads();
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

static void measure(int64_t passed) {
    if (passed > 4 * our.poll) passed = our.poll; /* this process was stopped, or had no processor */
    for (int64_t i = 0; i < threads_watched(); i++) {
        flight_moment m = flight_of(i);
        waiting *w = &waits[i];
        int goes_on = m.in_call && !(m.pauses & 1) && w->entered == m.entered && w->pauses == m.pauses;
        *w = (waiting){.entered = m.entered, .pauses = m.pauses, .waited = goes_on ? w->waited + passed : 0};
    }
    if (has_joined) waits[AT_END].waited += passed;
}

static int64_t longest(void) {
    int64_t found = -1;
    for (int64_t i = 0; i < threads_watched(); i++)
        if (waits[i].waited > 0 && (found < 0 || waits[i].waited > waits[found].waited)) found = i;
    if (found < 0 && waits[AT_END].waited > 0) found = AT_END;
    return found;
}

static void measure_processor(void) {
    int64_t t = clock_now();
    if (t - cpu_when[1] < 1000000000) return;
    cpu_when[0] = cpu_when[1];
    cpu_time[0] = cpu_time[1];
    cpu_when[1] = t;
    cpu_time[1] = process_time();
}

static int64_t percent(void) {
    int64_t passed = clock_now() - cpu_when[0];
    return cpu_when[0] == 0 ? -1 : (process_time() - cpu_time[0]) * 100 / passed;
}

/* Answering */

static int describe_self(wire_writer *w) {
    char python[PYTHON_BYTES] = "", where[256];
    int64_t waited[MOST_THREADS], rank = mpi_get()->world_rank;
    int ended = atomic_load(&our.ended);
    const mpixla_process *p = &our.processes[rank];
    if (!ended && stack_ask(python, sizeof python, PATIENCE_WITH_PYTHON) != 0)
        snprintf(python, sizeof python,
                 "Python's lock is held for a long time: by code in C that does not give it back\n");
    for (int64_t i = 0; i < MOST_THREADS; i++) waited[i] = waits[i].waited;
    snprintf(where, sizeof where, "process %lld on %s", (long long)p->number, p->name);
    const state_facts facts = {.rank = rank,
                               .ended = ended,
                               .percent = percent(),
                               .where = where,
                               .python = python,
                               .waited = waited,
                               .threads = MOST_THREADS};
    state_write(w, &facts);
    return w->failed ? -1 : 0;
}

static void answer(const post_letter *letter) {
    wire_writer w = {.data = NULL};
    if (describe_self(&w) == 0) post_send(letter->from, POST_ANSWER, letter->number, w.data, w.bytes);
    free(w.data);
}

static void answer_look(const post_letter *letter) {
    int64_t seen[2];
    if (letter->bytes < sizeof seen) return;
    memcpy(seen, letter->data, sizeof seen);
    seen[1] = process_look(seen[1]);
    post_send(letter->from, POST_SEEN, letter->number, seen, sizeof seen);
}

/* Asking */

static void inquiry_end(int64_t next) {
    for (int64_t i = 0; i < our.ranks; i++) {
        free(asked.memory[i]);
        asked.memory[i] = NULL;
    }
    asked.phase = IDLE;
    next_inquiry = next;
}

static void inquiry_begin(int64_t thread) {
    int self = mpi_get()->world_rank;
    asked.phase = ASKING;
    asked.number++;
    asked.until = in_milliseconds(PATIENCE);
    asked.thread = thread;
    asked.call = waits[thread];
    asked.answers = asked.looks = 0;
    for (int64_t i = 0; i < our.ranks; i++) {
        asked.all[i] = (state){.rank = i, .presence = STATE_SILENT, .where = "", .python = "", .last = ""};
        if (i != self && our.talks) post_send((int)i, POST_ASK, asked.number, NULL, 0);
    }
}

/* Keeps the letter if it is the answer that was asked for. Returns whether it does. */
static int keep_answer(const post_letter *letter) {
    int from = letter->from;
    if (asked.phase != ASKING || letter->number != asked.number || from < 0 || from >= our.ranks) return 0;
    if (asked.memory[from]) return 0;
    wire_reader r = {.data = letter->data, .bytes = letter->bytes};
    state s;
    if (state_read(&s, &r) != 0 || s.rank != from) return 0;
    asked.all[from] = s;
    asked.memory[from] = letter->memory;
    asked.answers++;
    return 1;
}

static void keep_seen(const post_letter *letter) {
    int64_t seen[2];
    if (asked.phase != LOOKING || letter->number != asked.number || letter->bytes < sizeof seen) return;
    memcpy(seen, letter->data, sizeof seen);
    if (seen[0] < 0 || seen[0] >= our.ranks || asked.all[seen[0]].presence == STATE_HERE) return;
    if (seen[1] > STATE_HERE && seen[1] < STATE_PRESENCES) asked.all[seen[0]].presence = seen[1];
    asked.looks--;
}

/* Somebody else is about to report, and to end the job. Where two are about to at once, the lower rank does. */
static void hold_back(const post_letter *letter) {
    if (asked.phase == CLAIMING && letter->from > mpi_get()->world_rank) return;
    held_back_until = in_milliseconds(HELD_BACK);
    if (asked.phase != IDLE) inquiry_end(our.limit_ns);
}

static void letters_read(void) {
    post_letter letter;
    while (our.talks && post_take(&letter)) {
        int kept = 0;
        switch (letter.kind) {
            case POST_ASK:
                answer(&letter);
                break;
            case POST_ANSWER:
                kept = keep_answer(&letter);
                break;
            case POST_LOOK:
                answer_look(&letter);
                break;
            case POST_SEEN:
                keep_seen(&letter);
                break;
            case POST_CLAIM:
                hold_back(&letter);
                break;
        }
        if (!kept) free(letter.memory);
    }
}

/* Somebody who has answered, on the host of a rank that has not; -1. */
static int64_t neighbour_of(int64_t rank) {
    for (int64_t i = 0; i < our.ranks; i++)
        if (asked.all[i].presence == STATE_HERE && strcmp(our.processes[i].host, our.processes[rank].host) == 0)
            return i;
    return -1;
}

static void look_for_silent(void) {
    int64_t self = mpi_get()->world_rank;
    asked.phase = LOOKING;
    asked.until = in_milliseconds(PATIENCE_TO_LOOK);
    for (int64_t i = 0; i < our.ranks; i++) {
        if (i == self || asked.memory[i]) continue;
        int64_t look[2] = {i, our.processes[i].number}, by = neighbour_of(i);
        if (strcmp(our.processes[i].host, our.processes[self].host) == 0) {
            asked.all[i].presence = process_look(look[1]);
        } else if (by >= 0) {
            post_send((int)by, POST_LOOK, asked.number, look, sizeof look);
            asked.looks++;
        }
    }
}

static void add_self(void) {
    wire_writer w = {.data = NULL};
    int64_t self = mpi_get()->world_rank;
    state s;
    if (describe_self(&w) == 0) {
        wire_reader r = {.data = w.data, .bytes = w.bytes};
        if (state_read(&s, &r) == 0) asked.all[self] = s;
    }
    free(asked.memory[self]);
    asked.memory[self] = w.data;
}

enum { PLACE = 128 }; /* bytes of where a silent rank is */

/* What never answered is on this side a process by its number. */
static void name_silent(char *places) {
    for (int64_t i = 0; i < our.ranks; i++) {
        if (asked.all[i].presence == STATE_HERE) continue;
        char *place = places + i * PLACE;
        snprintf(place, PLACE, "process %lld on %s", (long long)our.processes[i].number, our.processes[i].name);
        asked.all[i].where = place;
    }
}

static void write_all(const char *text) {
    size_t bytes = strlen(text);
    while (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, text, bytes);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return;
        if (written < 0) continue;
        text += written;
        bytes -= (size_t)written;
    }
}

/* Does not return. */
static void end_job(void) {
    const report_ranks ranks = {.all = asked.all, .n = our.ranks};
    char *places = calloc((size_t)our.ranks, PLACE);
    if (places) name_silent(places);
    const char *text = report_write(&ranks, mpi_get()->world_rank, our.limit);
    write_all(text ? text
                   : "mpixla: a call has waited for longer than MPIXLA_TIMEOUT allows, so the whole job ends.\n");
    free(places);
    clock_sleep(FORWARDING_MILLISECONDS); /* mpirun drops what it has not forwarded when a job aborts */
    if (our.talks) (void)mpi_get()->abort(mpi_get()->facts.comm_world, EXIT_TIMED_OUT);
    _exit(EXIT_TIMED_OUT);
}

static int still_waits(void) {
    const waiting *w = &waits[asked.thread];
    return w->waited > 0 && w->entered == asked.call.entered && w->pauses == asked.call.pauses;
}

/* With all answers: to end the job, or to go on waiting. */
static void decide(void) {
    const report_ranks ranks = {.all = asked.all, .n = our.ranks};
    int64_t waited = waits[asked.thread].waited;
    add_self();
    int all_alone = !our.talks;          /* nobody could say that they are there */
    int at_end = asked.thread == AT_END; /* it waits for as long as the others run */
    int stuck = at_end ? report_has_lost(&ranks) : all_alone || report_is_stuck(&ranks, mpi_get()->world_rank);
    if (!stuck && (at_end || waited < ALL_THERE * our.limit_ns)) {
        inquiry_end(waited + our.limit_ns);
        return;
    }
    for (int i = 0; our.talks && i < our.ranks; i++)
        if (i != mpi_get()->world_rank) post_send(i, POST_CLAIM, asked.number, NULL, 0);
    asked.phase = CLAIMING;
    asked.until = in_milliseconds(our.talks && our.ranks > 1 ? PATIENCE_TO_CLAIM : 0);
}

static void inquire(void) {
    int64_t t = clock_now(), thread = longest();
    int late = t >= asked.until;
    if (asked.phase != IDLE && !still_waits()) inquiry_end(our.limit_ns);
    switch (asked.phase) {
        case IDLE:
            if (thread < 0 || waits[thread].waited < our.limit_ns) next_inquiry = our.limit_ns;
            if (thread >= 0 && waits[thread].waited >= next_inquiry && t >= held_back_until) inquiry_begin(thread);
            break;
        case ASKING:
            if (late || asked.answers == our.ranks - 1) look_for_silent();
            break;
        case LOOKING:
            if (late || asked.looks == 0) decide();
            break;
        case CLAIMING:
            if (late) end_job();
            break;
    }
}

/* Leaving: when all that was asked is answered, and all others want to leave. */

static void leave(void) {
    if (!our.leaving || asked.phase != IDLE) return;
    if (our.talks) {
        if (post_unsent() > 0) return;
        if (!has_joined) post_join();
        has_joined = 1;
        if (!post_all_joined()) return;
        letters_read();
    }
    our.has_left = 1;
}

/* With the lock. */
static void sleep_until(int64_t t) {
    (void)system_condition_wait(&our.changed, &our.lock, t);
}

static void *watch(void *nothing) {
    int64_t before = clock_now();
    pthread_mutex_lock(&our.lock);
    while (!our.has_left && !atomic_load(&our.stopped)) {
        int busy = asked.phase != IDLE || our.leaving;
        sleep_until(clock_now() + (busy ? INT64_C(1000000) * LEAVING_POLL : our.poll));
        if (atomic_load(&our.stopped)) break;
        int64_t t = clock_now();
        measure(t - before);
        before = t;
        measure_processor();
        letters_read();
        inquire();
        leave();
    }
    our.has_left = 1;
    pthread_cond_broadcast(&our.changed);
    pthread_mutex_unlock(&our.lock);
    stack_close();
    return nothing;
}

/* MPI_Finalize begins. The thread has the lock while it calls MPI; should it hang there, nothing is won by waiting. */
static void stop(void) {
    enum { MOMENT = 2000 };
    atomic_store(&our.stopped, 1);
    if (system_lock(&our.lock, MOMENT) != 0) return;
    pthread_cond_broadcast(&our.changed);
    pthread_mutex_unlock(&our.lock);
}

void mpixla_timeout_ended(void) {
    atomic_store(&our.ended, 1);
}

int mpixla_timeout_leave(void) {
    enum { MOMENT = 50 };
    if (our.ranks == 0) return 1;
    pthread_mutex_lock(&our.lock);
    our.leaving = 1;
    pthread_cond_broadcast(&our.changed);
    if (!our.has_left) sleep_until(in_milliseconds(MOMENT));
    int left = our.has_left;
    pthread_mutex_unlock(&our.lock);
    return left;
}

static int processes_keep(const mpixla_process *processes, int64_t count) {
    our.processes = calloc((size_t)count, sizeof *our.processes);
    asked.memory = calloc((size_t)count, sizeof *asked.memory);
    asked.all = calloc((size_t)count, sizeof *asked.all);
    if (!our.processes || !asked.memory || !asked.all) return -1;
    for (int64_t i = 0; i < count; i++) {
        our.processes[i].number = processes[i].number;
        our.processes[i].host = strdup(processes[i].host);
        our.processes[i].name = strdup(processes[i].name);
        if (!our.processes[i].host || !our.processes[i].name) return -1;
    }
    return 0;
}

int mpixla_timeout_set(double seconds, mpixla_handle comm, const mpixla_process *processes, int64_t count) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (our.ranks > 0) return error_set("the time limit was set twice");
    if (!(seconds > 0 && seconds < 1e9) || count <= mpi_get()->world_rank)
        return error_set(
            "a time limit is a number of seconds greater than 0 and less than 1e9, and comes with all processes of "
            "MPI_COMM_WORLD, but was %g with %lld processes",
            seconds, (long long)count);
    const int64_t poll = (int64_t)(seconds * 1e3 / POLLS);
    if (processes_keep(processes, count)) return error_set("out of memory for the time limit");
    our.limit = seconds;
    our.limit_ns = next_inquiry = (int64_t)(seconds * 1e9);
    our.poll = (poll < SHORTEST_POLL ? SHORTEST_POLL : poll > LONGEST_POLL ? LONGEST_POLL : poll) * 1000000;
    our.talks = comm != 0;
    our.ranks = count;
    if (our.talks) post_open(comm, (int)count);
    comm_finalize_tells(stop);
    transport_wait_for_nccl();
    return system_condition_make(&our.changed) == 0 && thread_start(watch, STACK_BYTES) == 0
               ? 0
               : error_set("no thread can be started for the time limit");
}
