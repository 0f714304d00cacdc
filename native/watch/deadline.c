/* A thread that looks at the calls of this process from time to time, answers the other ranks, and asks them when a
 * call has waited for too long: to end the job where there is a limit (MPIXLA_TIMEOUT), or to say a word. A call that
 * waits for a rank which has left waits in vain, and ends the job. The calls themselves know nothing of it.
 *
 * Who waits asks rank 0, now and then, which ranks have left; and only these whether they were needed. All ranks are
 * asked by one that is about to report, and says so first: of two that do, the lower one goes on.
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

enum { EXIT_TIMED_OUT = 124 /* as of the command timeout */, EXIT_IN_VAIN = 1 };
enum { STACK_BYTES = 1 << 20, PYTHON_BYTES = 4096, FORWARDING_MILLISECONDS = 300 };
/* Milliseconds. */
enum {
    PATIENCE = 2000,
    PATIENCE_WITH_PYTHON = 1000,
    PATIENCE_TO_LOOK = 500,
    PATIENCE_TO_CLAIM = 200,
    HELD_BACK = 5000
};
/* Nanoseconds: between two questions who has left, and how much later the last rank asks than the first. */
#define SCOUT_EACH INT64_C(2500000000)
#define RANK_LATER INT64_C(100000000)
#define LAST_LATER INT64_C(2500000000)
enum { SHORTEST_POLL = 10, LONGEST_POLL = 250, LEAVING_POLL = 2, POLLS = 20, ALL_THERE = 10 /* limits */ };

/* What is under way at another rank. */
typedef struct inquiry {
    enum { IDLE, SCOUTING, ASKING, LOOKING, CLAIMING } phase;
    enum { FOR_SCOUT, FOR_REPORT } purpose; /* whether those who have left are asked, or all */
    report_reason reason;
    int64_t number, until;
    int64_t thread;
    flight_clock call; /* of that thread */
    int questions, answers, looks;
    char **memory; /* of each rank's answer */
    state *all;
} inquiry;

static struct {
    double limit;              /* seconds, for people; of a word where there is no limit */
    int64_t limit_ns, word_ns; /* one of them is 0: there is none */
    int64_t poll, later;       /* `later`: than rank 0, in what all ranks do at one time */
    mpixla_process *processes;
    int64_t ranks;
    int output;           /* where reports go */
    int talks;            /* to other ranks */
    pthread_mutex_t lock; /* held while the thread works */
    pthread_cond_t changed;
    int has_left;
    int64_t leaving; /* since when; 0: not yet */
    atomic_int ended, stopped;
} our = {.output = STDERR_FILENO, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Of the thread alone. */
enum { NONE = -1, AT_END = -2 }; /* beside the threads: this process, which has ended, for those that have not */
static flight_clock at_end;
static int64_t next_inquiry; /* what a call must have waited for a report */
static int64_t *left;        /* on rank 0, the ranks that have left */
static int64_t in_left;
static int64_t held_back_until;
static int held_back_by; /* the rank that is about to report */
static int has_joined;
static inquiry asked;
static int64_t cpu_time[2], cpu_when[2];

static int64_t in_milliseconds(int64_t ms) {
    return clock_now() + ms * 1000000;
}

/* Measuring */

static flight_clock *clock_of(int64_t thread) {
    return thread == AT_END ? &at_end : flight_clock_of(thread);
}

static void measure(int64_t passed) {
    if (passed > 4 * our.poll) passed = our.poll; /* this process was stopped, or had no processor */
    for (int64_t i = 0; i < flight_threads(); i++) {
        flight_moment m = flight_of(i);
        flight_clock *c = flight_clock_of(i);
        int goes_on = m.in_call && !(m.pauses & 1) && c->entered == m.entered && c->pauses == m.pauses;
        if (!goes_on) *c = (flight_clock){.entered = m.entered, .pauses = m.pauses};
        if (goes_on) c->waited += passed;
    }
    if (has_joined) at_end.waited += passed;
}

/* The thread that has waited longest, of those of which no word was said. */
static int64_t longest(void) {
    int64_t found = NONE;
    for (int64_t i = 0; i < flight_threads(); i++) {
        const flight_clock *c = flight_clock_of(i);
        if (c->waited > 0 && !c->told && (found < 0 || c->waited > flight_clock_of(found)->waited)) found = i;
    }
    return found < 0 && at_end.waited > 0 && our.limit_ns ? AT_END : found;
}

/* One that is to ask again who has left. */
static int64_t unscouted(void) {
    for (int64_t i = 0; our.talks && i < flight_threads(); i++)
        if (flight_clock_of(i)->waited >= flight_clock_of(i)->scouted + SCOUT_EACH + our.later) return i;
    return -1;
}

static void tell_all(void) {
    for (int64_t i = 0; i < flight_threads(); i++) flight_clock_of(i)->told = flight_clock_of(i)->waited > 0;
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

static int describe_self(wire_writer *w, int with_python) {
    char python[PYTHON_BYTES] = "", where[256];
    int64_t rank = mpi_get()->world_rank;
    int ended = atomic_load(&our.ended);
    const mpixla_process *p = &our.processes[rank];
    if (with_python && !ended && stack_ask(python, sizeof python, PATIENCE_WITH_PYTHON) != 0)
        snprintf(python, sizeof python,
                 "Python's lock is held for a long time: by code in C that does not give it back\n");
    snprintf(where, sizeof where, "process %lld on %s", (long long)p->number, p->name);
    const state_facts facts = {.rank = rank,
                               .ended = ended,
                               .left = our.leaving ? (clock_now() - our.leaving) / 1000000 : -1,
                               .percent = percent(),
                               .where = where,
                               .python = python};
    state_write(w, &facts);
    return w->failed ? -1 : 0;
}

static void answer(const post_letter *letter) {
    wire_writer w = {.data = NULL};
    if (describe_self(&w, 1) == 0) post_send(letter->from, POST_ANSWER, letter->number, w.data, w.bytes);
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
    asked.phase = IDLE;
    next_inquiry = next;
}

static void post_to_all(post_kind kind) {
    for (int i = 0; our.talks && i < our.ranks; i++)
        if (i != mpi_get()->world_rank) post_send(i, kind, asked.number, NULL, 0);
}

/* There is nothing to report: others may have something. */
static void inquiry_drop(int64_t next) {
    if (asked.phase >= ASKING && asked.purpose == FOR_REPORT) post_to_all(POST_DROP);
    inquiry_end(next);
}

static void inquiry_number(int64_t thread) {
    asked.number++;
    asked.until = in_milliseconds(PATIENCE);
    asked.thread = thread;
    asked.call = *clock_of(thread);
    asked.questions = asked.answers = asked.looks = 0;
}

static void ask(int64_t rank) {
    asked.questions++;
    post_send((int)rank, POST_ASK, asked.number, NULL, 0);
}

static void forget_answers(void) {
    for (int64_t i = 0; i < our.ranks; i++) {
        free(asked.memory[i]);
        asked.memory[i] = NULL;
        asked.all[i] = (state){.rank = i, .presence = STATE_SILENT, .left = -1, .where = "", .python = "", .last = ""};
    }
}

static void report_begin(int64_t thread, report_reason reason) {
    inquiry_number(thread);
    forget_answers();
    asked.phase = ASKING;
    asked.purpose = FOR_REPORT;
    asked.reason = reason;
    post_to_all(POST_CLAIM);
    for (int64_t i = 0; our.talks && i < our.ranks; i++)
        if (i != mpi_get()->world_rank) ask(i);
}

/* Those who have left. */
static void scout(const int64_t *ranks, int64_t n) {
    forget_answers();
    asked.phase = ASKING;
    asked.purpose = FOR_SCOUT;
    for (int64_t i = 0; i < n; i++)
        if (ranks[i] >= 0 && ranks[i] < our.ranks && ranks[i] != mpi_get()->world_rank) ask(ranks[i]);
    if (asked.questions == 0) inquiry_end(next_inquiry);
}

static void scout_begin(int64_t thread) {
    clock_of(thread)->scouted = clock_of(thread)->waited;
    inquiry_number(thread);
    asked.phase = SCOUTING;
    if (mpi_get()->world_rank == 0)
        scout(left, in_left);
    else
        post_send(0, POST_WHO_LEFT, asked.number, NULL, 0);
}

/* Rank 0 keeps who has left. */
static void keep_left(int64_t rank) {
    if (in_left < our.ranks) left[in_left++] = rank;
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

/* Somebody else is about to report. Where two are about to at once, the lower rank does. */
static void hold_back(const post_letter *letter) {
    if (asked.phase >= ASKING && asked.purpose == FOR_REPORT && letter->from > mpi_get()->world_rank) return;
    held_back_until = in_milliseconds(HELD_BACK);
    held_back_by = letter->from;
    if (asked.phase != IDLE) inquiry_end(next_inquiry);
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
            case POST_DROP:
                if (letter.from == held_back_by) held_back_until = 0;
                break;
            case POST_TOLD:
                tell_all();
                break;
            case POST_LEFT:
                keep_left(letter.from);
                break;
            case POST_WHO_LEFT:
                post_send(letter.from, POST_THESE_LEFT, letter.number, left, (size_t)in_left * sizeof *left);
                break;
            case POST_THESE_LEFT:
                if (asked.phase == SCOUTING && letter.number == asked.number)
                    scout((const int64_t *)(const void *)letter.data, (int64_t)(letter.bytes / sizeof *left));
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
    if (describe_self(&w, asked.purpose == FOR_REPORT) == 0) {
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
        ssize_t written = write(our.output, text, bytes);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return;
        if (written < 0) continue;
        text += written;
        bytes -= (size_t)written;
    }
}

static void write_report(void) {
    const report_ranks ranks = {.all = asked.all, .n = our.ranks};
    int64_t rank = mpi_get()->world_rank;
    char *places = calloc((size_t)our.ranks, PLACE);
    if (places) name_silent(places);
    /* Ranks begin to wait at one time, but for a little, and the same one is to say so each time. */
    if (asked.reason == REPORT_WORD) rank = report_lowest(&ranks, rank, our.word_ns / 1000000 * 9 / 10);
    char *text = report_write(&ranks, rank, asked.reason, our.limit);
    write_all(text ? text : "mpixla: a call has waited for too long, and there is no memory to say more.\n");
    free(text);
    free(places);
}

static void end_job(void) {
    const int status = asked.reason == REPORT_IN_VAIN ? EXIT_IN_VAIN : EXIT_TIMED_OUT;
    clock_sleep(FORWARDING_MILLISECONDS); /* mpirun drops what it has not forwarded when a job aborts */
    if (our.talks) (void)mpi_get()->abort(mpi_get()->facts.comm_world, status);
    _exit(status);
}

static void conclude(void) {
    write_report();
    if (asked.reason != REPORT_WORD) end_job();
    tell_all();
    post_to_all(POST_TOLD);
    inquiry_end(our.word_ns);
}

static int still_waits(void) {
    const flight_clock *c = clock_of(asked.thread);
    return c->waited > 0 && c->entered == asked.call.entered && c->pauses == asked.call.pauses;
}

/* What a call must have waited for each report of it. */
static int64_t period(void) {
    return our.limit_ns ? our.limit_ns : our.word_ns;
}

/* Of a report whether there is something to report. */
static int is_stuck(const report_ranks *ranks) {
    int64_t self = mpi_get()->world_rank;
    if (asked.reason == REPORT_IN_VAIN) return report_is_in_vain(ranks, self);
    if (asked.thread == AT_END) return report_has_lost(ranks); /* it waits for as long as the others run */
    /* Without talks nobody could say that they are there. */
    return !our.talks || report_is_stuck(ranks, self) || clock_of(asked.thread)->waited / ALL_THERE >= period();
}

/* With all answers: to report, or to go on waiting. */
static void decide(void) {
    const report_ranks ranks = {.all = asked.all, .n = our.ranks};
    int64_t thread = asked.thread;
    add_self();
    if (asked.purpose == FOR_SCOUT) {
        int in_vain = report_is_in_vain(&ranks, mpi_get()->world_rank);
        inquiry_end(next_inquiry);
        if (in_vain && clock_now() >= held_back_until) report_begin(thread, REPORT_IN_VAIN);
    } else if (is_stuck(&ranks)) {
        asked.phase = CLAIMING;
        asked.until = in_milliseconds(our.talks && our.ranks > 1 ? PATIENCE_TO_CLAIM : 0);
    } else {
        inquiry_drop(asked.reason == REPORT_IN_VAIN ? next_inquiry : clock_of(thread)->waited + period());
    }
}

/* What a call must have waited for a report of it, at first: longer on higher ranks, so that of all that wait the
 * lowest asks the others, and they need not. */
static int64_t first_inquiry(void) {
    return period() + our.later;
}

static void look_around(void) {
    int64_t thread = longest(), unasked = unscouted();
    if (thread == NONE || clock_of(thread)->waited < first_inquiry()) next_inquiry = first_inquiry();
    if (clock_now() < held_back_until) return;
    if (thread != NONE && clock_of(thread)->waited >= next_inquiry)
        report_begin(thread, our.limit_ns ? REPORT_LIMIT : REPORT_WORD);
    else if (unasked >= 0)
        scout_begin(unasked);
}

static void inquire(void) {
    int late = clock_now() >= asked.until;
    if (asked.phase != IDLE && !still_waits()) inquiry_drop(first_inquiry());
    switch (asked.phase) {
        case IDLE:
            look_around();
            break;
        case SCOUTING:
            if (late) inquiry_end(next_inquiry);
            break;
        case ASKING:
            if (!late && asked.answers < asked.questions) break;
            if (asked.purpose == FOR_SCOUT)
                decide();
            else
                look_for_silent();
            break;
        case LOOKING:
            if (late || asked.looks == 0) decide();
            break;
        case CLAIMING:
            if (late) conclude();
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

static int64_t looked; /* when the thread did last */

static void look(void) {
    int64_t t = clock_now();
    measure(t - looked);
    looked = t;
    measure_processor();
    letters_read();
    inquire();
    leave();
}

static int64_t until_next_look(void) {
    return asked.phase != IDLE || our.leaving ? INT64_C(1000000) * LEAVING_POLL : our.poll;
}

static void *watch(void *nothing) {
    pthread_mutex_lock(&our.lock);
    looked = clock_now();
    while (!atomic_load(&our.stopped)) {
        (void)system_condition_wait(&our.changed, &our.lock, clock_now() + until_next_look());
        if (!atomic_load(&our.stopped)) look();
    }
    pthread_mutex_unlock(&our.lock);
    return nothing;
}

/* MPI_Finalize begins, which waits for all processes: so does this, in the place of the thread, and answers them. The
 * thread has the lock while it calls MPI; should it hang there, nothing is won by waiting. */
static void stop(void *nothing) {
    (void)nothing;
    enum { MOMENT = 2000 };
    atomic_store(&our.ended, 1);
    atomic_store(&our.stopped, 1);
    stack_close();
    if (system_lock(&our.lock, MOMENT) != 0) return;
    pthread_cond_broadcast(&our.changed);
    our.leaving = clock_now();
    if (mpi_get()->world_rank == 0)
        keep_left(0);
    else if (our.talks)
        post_send(0, POST_LEFT, 0, NULL, 0);
    for (look(); !our.has_left; look()) clock_sleep(LEAVING_POLL);
    pthread_mutex_unlock(&our.lock);
}

void mpixla_timeout_ended(void) {
    atomic_store(&our.ended, 1);
}

static int processes_keep(const mpixla_process *processes, int64_t count) {
    our.processes = calloc((size_t)count, sizeof *our.processes);
    asked.memory = calloc((size_t)count, sizeof *asked.memory);
    asked.all = calloc((size_t)count, sizeof *asked.all);
    left = calloc((size_t)count, sizeof *left);
    if (!our.processes || !asked.memory || !asked.all || !left) return -1;
    for (int64_t i = 0; i < count; i++) {
        our.processes[i].number = processes[i].number;
        our.processes[i].host = strdup(processes[i].host);
        our.processes[i].name = strdup(processes[i].name);
        if (!our.processes[i].host || !our.processes[i].name) return -1;
    }
    return 0;
}

void mpixla_timeout_output_set(int file) {
    our.output = file;
}

int mpixla_timeout_set(double limit, double word, mpixla_handle comm, const mpixla_process *processes, int64_t count) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (our.ranks > 0) return error_set("the time limit was set twice");
    const double seconds = limit == 0 ? word : limit;
    if (!(seconds > 0 && seconds < 1e9) || count <= mpi_get()->world_rank)
        return error_set(
            "a time limit is a number of seconds greater than 0 and less than 1e9, and comes with all processes of "
            "MPI_COMM_WORLD, but was %g with %lld processes",
            seconds, (long long)count);
    const int64_t poll = (int64_t)(seconds * 1e3 / POLLS), later = RANK_LATER * mpi_get()->world_rank;
    if (processes_keep(processes, count)) return error_set("out of memory for the time limit");
    our.limit = seconds;
    *(limit == 0 ? &our.word_ns : &our.limit_ns) = (int64_t)(seconds * 1e9);
    our.poll = (poll < SHORTEST_POLL ? SHORTEST_POLL : poll > LONGEST_POLL ? LONGEST_POLL : poll) * 1000000;
    our.later = later * count < LAST_LATER * mpi_get()->world_rank ? later : LAST_LATER * mpi_get()->world_rank / count;
    our.talks = comm != 0;
    our.ranks = count;
    next_inquiry = first_inquiry();
    if (our.talks) post_open(comm, (int)count);
    comm_slot_freed_by(COMM_SLOT_END, stop);
    comm_attach(comm_look(0), COMM_SLOT_END, &our);
    if (our.limit_ns) transport_wait_for_nccl();
    return system_condition_make(&our.changed) == 0 && thread_start(watch, STACK_BYTES) == 0
               ? 0
               : error_set("no thread can be started for the time limit");
}
