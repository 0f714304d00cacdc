/* The watchdog: a thread that watches how long calls wait. Calls do not know of it.
 *
 * Once a call has waited for longer than the limit (MPIXLA_TIMEOUT), or, without one, than the time for a warning, this
 * rank tells all others that it is about to report (it claims the report), and asks each for its state. If the answers
 * show that the call waits for another rank, it writes a report, and with a limit it ends the job. Of two ranks that
 * claim at once the lower one reports, and the other holds back.
 *
 * A call also waits in vain if it needs a rank that has left, which makes no more calls, as in MPI_Finalize. A rank
 * that leaves tells rank 0. A rank that waits asks rank 0 from time to time which ranks have left (it scouts), and then
 * these alone for their states: so a job in which all wait for one slow rank sends few messages. A call that waits in
 * vain is reported and ends the job.
 *
 * The rank that has written a warning inquires again each time when as much time has passed. If two inquiries in a row
 * give the same proof that the job can never end (report_deadlock_hash), it reports that and ends the job.
 *
 * Time counts while this thread runs, so a process that was stopped as a whole has not waited. The thread itself never
 * waits for another process, which may be stopped or gone: each has ANSWER_MS to answer.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"
#include "base/process.h"
#include "base/stack.h"
#include "base/system.h"
#include "base/thread.h"
#include "mpi/comm.h"
#include "mpi/job.h"
#include "mpi/mpi.h"
#include "routes/nccl_calls.h"
#include "routes/plan.h"
#include "watch/flight.h"
#include "watch/post.h"
#include "watch/report.h"

enum { EXIT_TIMED_OUT = 124 /* as of the command timeout */, EXIT_IN_VAIN = 1, EXIT_NCCL = 1 };
enum { STACK_BYTES = 1 << 20, PYTHON_BYTES = 4096, LOCK_MS = 2000 };
/* Milliseconds that others have: to answer, their Python to say where its threads are, and to claim a report; and for
 * which a rank holds back if it hears nothing more of the rank that has claimed. */
enum { ANSWER_MS = 2000, PYTHON_MS = 1000, CLAIM_MS = 200, HOLD_BACK_MS = 5000 };
/* Nanoseconds between two questions which ranks have left; and the delay of each rank after the one before it, and of
 * the last rank at most, so that a lower rank acts for all. */
#define SCOUT_PERIOD_NS INT64_C(2500000000)
#define RANK_DELAY_NS INT64_C(100000000)
#define LAST_RANK_DELAY_NS INT64_C(2500000000)
/* Nanoseconds that MPI_Finalize waits for letters to be received, and after a process of this host has gone. */
#define LETTERS_NS INT64_C(5000000000)
#define GONE_NS INT64_C(5000000000)
/* Nanoseconds between two flushes: with LONGEST_POLL_MS less than a rank that ends the job leaves the others (job.c).
 */
#define FLUSH_PERIOD_NS INT64_C(200000000)
/* Milliseconds between two steps: POLLS_IN_LIMIT in the limit, within these bounds; and during an inquiry, or while the
 * process leaves. */
enum { SHORTEST_POLL_MS = 10, LONGEST_POLL_MS = 250, BUSY_POLL_MS = 2, POLLS_IN_LIMIT = 20 };
/* A call that lacks no rank moves data, and is reported only when it has waited for so many limits. */
enum { LIMITS_WITH_DATA = 10 };

typedef struct process {
    char *host;              /* as in mpixla_process */
    char *where;             /* "process 12 on node1" */
    int64_t number, started; /* of this host: as in process_id */
} process;

static struct {
    int64_t rank, ranks;
    double limit;     /* seconds, for reports: the limit, or the time for a warning */
    int64_t limit_ns; /* the same */
    int ends_job;     /* `limit` is a limit, not the time for a warning */
    int64_t poll_ns;  /* between two steps */
    int64_t delay_ns; /* see RANK_DELAY_NS */
    process *processes;
    int talks;            /* this rank can ask the others: MPI has MPI_THREAD_MULTIPLE */
    pthread_mutex_t lock; /* held by the thread that does the watchdog's work */
    pthread_cond_t changed;
    atomic_int ended;   /* the program has come to its end */
    atomic_int stopped; /* MPI_Finalize begins, and does the thread's work */
} deadline = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The caller of all functions that follow holds the lock. */

/* The phases of an inquiry: this rank asks others for their states, about one of its calls. */
typedef enum phase {
    IDLE,
    ASKING_WHO_LEFT, /* rank 0: which ranks have left */
    ASKING_LEFT,     /* ranks that have left: their states, as the call may wait for them in vain */
    ASKING_ALL,      /* all ranks: their states, for a report, which it has claimed from here on */
    CLAIMING         /* there is something to report: it reports if no lower rank claims within CLAIM_MS */
} phase;

static struct {
    phase phase;
    report_reason reason;
    int64_t number;    /* of this inquiry, which answers have as well */
    int64_t until_ns;  /* when this phase ends in any case */
    int64_t thread;    /* whose call it is about */
    flight_clock call; /* the thread's clock when the inquiry began */
    int questions, answers;
    char **memory; /* by rank: its answer, which `all` points into; NULL: it has not answered */
    state *all;
    report_ranks ranks; /* of `all` */
} inquiry;

static int64_t next_report_ns; /* that a call must have waited to be reported */
static int64_t held_back_until_ns;
static int held_back_by; /* the rank that is about to report */

/* In place of a thread's number: no thread, or the process, which waits at its end for processes that cannot come. */
enum { NONE = -1, AT_END = -2 };
static flight_clock at_end;

/* The last warning that this rank has written, and about which it inquires again. */
static struct {
    int64_t thread;    /* whose call it is about; NONE: there is none */
    flight_clock call; /* the thread's clock then */
    int64_t next_ns;   /* that it must have waited for the next inquiry */
    uint64_t deadlock; /* what report_deadlock_hash has returned then */
} warning;

static int64_t *lost_facts; /* as deadline_lost_find has set them: the members of each state_lost */
static int64_t *left_ranks; /* rank 0 alone: the ranks that have left */
static int64_t left_count;
static int64_t left_ns; /* when this rank has left; 0: it has not */
static int has_joined;  /* it has told all others that it has no more questions */

/* Returns the time in so many milliseconds, in nanoseconds. */
static int64_t deadline_after_ms(int64_t ms) {
    return clock_now() + ms * 1000000;
}

/* Measuring */

/* Returns the clock of a thread, or of AT_END. */
static flight_clock *deadline_clock_of(int64_t thread) {
    return thread == AT_END ? &at_end : flight_clock_of(thread);
}

/* Adds the time since the last poll to the clock of each thread that has been in one call, and in no pause, since then;
 * sets the other clocks to zero. The end of the script counts as well. */
static void deadline_waits_measure(void) {
    static int64_t looked;
    int64_t now = clock_now(), passed = looked ? now - looked : 0;
    looked = now;
    if (passed > 4 * deadline.poll_ns) passed = deadline.poll_ns; /* this process was stopped, or had no processor */
    for (int64_t i = 0; i < flight_threads(); i++) {
        flight_moment m = flight_moment_read(i);
        flight_clock *c = flight_clock_of(i);
        int goes_on = m.in_call && !(m.pauses & 1) && c->entered == m.entered && c->pauses == m.pauses;
        if (!goes_on) *c = (flight_clock){.entered = m.entered, .pauses = m.pauses};
        if (goes_on) c->waited_ns += passed;
    }
    if (has_joined) at_end.waited_ns += passed;
}

/* Returns the thread whose call has waited longest among those without a report; else AT_END, if there is a limit and
 * this process waits at the end of its script; else NONE. */
static int64_t deadline_longest_wait_find(void) {
    int64_t found = NONE;
    for (int64_t i = 0; i < flight_threads(); i++) {
        const flight_clock *c = flight_clock_of(i);
        if (c->waited_ns > 0 && !c->reported && (found < 0 || c->waited_ns > flight_clock_of(found)->waited_ns))
            found = i;
    }
    return found < 0 && at_end.waited_ns > 0 && deadline.ends_job ? AT_END : found;
}

/* Returns a thread whose call has waited so long since the last time that this rank is to ask again which ranks have
 * left, or NONE. */
static int64_t deadline_scout_due_find(void) {
    for (int64_t i = 0; deadline.talks && i < flight_threads(); i++)
        if (flight_clock_of(i)->waited_ns >= flight_clock_of(i)->scouted_ns + SCOUT_PERIOD_NS + deadline.delay_ns)
            return i;
    return NONE;
}

/* Marks all waits as reported, after a warning of this rank or another. */
static void deadline_waits_mark_reported(void) {
    for (int64_t i = 0; i < flight_threads(); i++) flight_clock_of(i)->reported = flight_clock_of(i)->waited_ns > 0;
}

/* Returns the time that a call must have waited for its first report, in nanoseconds: longer on higher ranks, so that
 * the lowest rank that waits asks for all. */
static int64_t deadline_first_report_ns(void) {
    return deadline.limit_ns + deadline.delay_ns;
}

/* Answering */

/* Fills lost_facts with the processes of this host that are stopped or gone: a rank and its state each. Returns the
 * number of items, two for each process. */
static int64_t deadline_lost_find(void) {
    int64_t n = 0;
    for (int64_t i = 0; i < deadline.ranks; i++) {
        if (i == deadline.rank || strcmp(deadline.processes[i].host, deadline.processes[deadline.rank].host) != 0)
            continue;
        const process_state found = process_state_read(
            &(process_id){.number = deadline.processes[i].number, .started = deadline.processes[i].started});
        if (found == PROCESS_THERE) continue;
        lost_facts[n++] = i;
        lost_facts[n++] = found == PROCESS_GONE ? STATE_DEAD : STATE_STOPPED;
    }
    return n;
}

/* Returns the likely reason why Python does not answer, a line. The thread that would answer also flushes Python's
 * output. */
static const char *deadline_python_silence_reason(void) {
    return output_is_stuck()
               ? "Python does not answer: the program prints, and nothing reads its standard output\n"
               : "Python does not answer for a long time: code in C holds its lock, or a file that the program prints "
                 "to "
                 "takes nothing\n";
}

/* Writes this rank's state to `w`, and asks Python for its stacks, for PYTHON_MS at most. Returns whether there was
 * memory. */
static int deadline_self_describe(wire_writer *w) {
    char python[PYTHON_BYTES] = "";
    int ended = atomic_load(&deadline.ended);
    int64_t threads = -1;
    if (!stack_ask(python, sizeof python, &threads, PYTHON_MS))
        snprintf(python, sizeof python, "%s", deadline_python_silence_reason());
    const state_facts facts = {.rank = deadline.rank,
                               .ended = ended,
                               .left_ms = left_ns ? (clock_now() - left_ns) / 1000000 : -1,
                               .percent = process_percent(),
                               .where = deadline.processes[deadline.rank].where,
                               .threads = threads,
                               .python = ended ? "" : python,
                               .lost = lost_facts,
                               .lost_count = deadline_lost_find()};
    state_write(w, &facts);
    return !w->failed;
}

/* Sends this rank's state to the sender of a question; nothing without memory. */
static void deadline_answer(const post_letter *letter) {
    wire_writer w = {.data = NULL};
    if (deadline_self_describe(&w)) post_send(letter->from, POST_ANSWER, letter->number, w.data, w.bytes);
    free(w.data);
}

/* Asking */

/* Sends a letter without data to all other ranks. */
static void deadline_post_to_others(post_kind kind) {
    for (int i = 0; deadline.talks && i < deadline.ranks; i++)
        if (i != deadline.rank) post_send(i, kind, inquiry.number, NULL, 0);
}

/* Begins an inquiry about the call of a thread, and forgets the answers of the inquiry before. */
static void deadline_inquiry_begin(phase first, int64_t thread) {
    inquiry.phase = first;
    inquiry.number++;
    inquiry.until_ns = deadline_after_ms(ANSWER_MS);
    inquiry.thread = thread;
    inquiry.call = *deadline_clock_of(thread);
    inquiry.questions = inquiry.answers = 0;
    for (int64_t i = 0; i < deadline.ranks; i++) {
        free(inquiry.memory[i]);
        inquiry.memory[i] = NULL;
        inquiry.all[i] = (state){.rank = i,
                                 .presence = STATE_SILENT,
                                 .left_ms = -1,
                                 .where = deadline.processes[i].where,
                                 .python = "",
                                 .last = ""};
    }
}

/* Ends the inquiry without a report, and tells the other ranks if this one has claimed a report: another rank may
 * report. */
static void deadline_inquiry_drop(void) {
    if (inquiry.phase >= ASKING_ALL) deadline_post_to_others(POST_DROP);
    inquiry.phase = IDLE;
}

/* Claims a report about the call of a thread, and asks all ranks for their states; both by letters. */
static void deadline_report_begin(int64_t thread, report_reason reason) {
    deadline_inquiry_begin(ASKING_ALL, thread);
    inquiry.reason = reason;
    inquiry.questions = deadline.talks ? (int)deadline.ranks - 1 : 0;
    deadline_post_to_others(POST_CLAIM);
    deadline_post_to_others(POST_ASK);
}

/* Asks the ranks that have left for their states, by letters; ends the inquiry if there are none. */
static void deadline_left_ask(const int64_t *ranks, int64_t n) {
    inquiry.phase = ASKING_LEFT;
    for (int64_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= deadline.ranks || ranks[i] == deadline.rank) continue;
        post_send((int)ranks[i], POST_ASK, inquiry.number, NULL, 0);
        inquiry.questions++;
    }
    if (inquiry.questions == 0) inquiry.phase = IDLE;
}

/* Begins to find out whether the call of a thread waits for ranks that have left: asks rank 0 for their numbers. */
static void deadline_scout_begin(int64_t thread) {
    deadline_clock_of(thread)->scouted_ns = deadline_clock_of(thread)->waited_ns;
    deadline_inquiry_begin(ASKING_WHO_LEFT, thread);
    if (deadline.rank == 0)
        deadline_left_ask(left_ranks, left_count);
    else
        post_send(0, POST_WHO_LEFT, inquiry.number, NULL, 0);
}

/* Letters */

/* Returns whether the letter belongs to the current inquiry. */
static int deadline_letter_is_current(const post_letter *letter) {
    return letter->number == inquiry.number;
}

/* Keeps a letter, and counts it, if it is the answer to an open question. Returns whether it has: then letter->memory
 * belongs to the inquiry. */
static int deadline_answer_keep(const post_letter *letter) {
    int from = letter->from;
    if ((inquiry.phase != ASKING_LEFT && inquiry.phase != ASKING_ALL) || !deadline_letter_is_current(letter)) return 0;
    if (from < 0 || from >= deadline.ranks || inquiry.memory[from]) return 0;
    wire_reader r = {.data = letter->data, .bytes = letter->bytes};
    state s;
    if (!state_read(&s, &r) || s.rank != from) return 0;
    inquiry.all[from] = s;
    inquiry.memory[from] = letter->memory;
    inquiry.answers++;
    return 1;
}

/* Ends this rank's inquiry, as another rank has claimed a report, and allows none for HOLD_BACK_MS; of two ranks that
 * have claimed, the lower one goes on. */
static void deadline_hold_back(const post_letter *letter) {
    if (inquiry.phase >= ASKING_ALL && letter->from > deadline.rank) return; /* that one holds back */
    held_back_until_ns = deadline_after_ms(HOLD_BACK_MS);
    held_back_by = letter->from;
    inquiry.phase = IDLE;
}

/* Adds a rank to left_ranks. */
static void deadline_left_add(int64_t rank) {
    if (left_count < deadline.ranks) left_ranks[left_count++] = rank;
}

/* Receives and handles all letters that have arrived. A question for this rank's state, or for the ranks that have
 * left, is answered. An answer to this rank's inquiry is kept, with its memory; all other letters are freed. A claim
 * stops this rank's inquiry, and its reports for some time (deadline_hold_back), until the claim is dropped. A letter
 * that a report was printed marks this rank's waits as reported, and one that its sender has left adds the sender to
 * left_ranks. */
static void deadline_letters_read(void) {
    post_letter letter;
    while (deadline.talks && post_receive(&letter)) {
        int is_kept = 0;
        switch (letter.kind) {
            case POST_ASK:
                deadline_answer(&letter);
                break;
            case POST_ANSWER:
                is_kept = deadline_answer_keep(&letter);
                break;
            case POST_CLAIM:
                deadline_hold_back(&letter);
                break;
            case POST_DROP:
                if (letter.from == held_back_by) held_back_until_ns = 0;
                break;
            case POST_REPORTED:
                deadline_waits_mark_reported();
                break;
            case POST_LEFT:
                deadline_left_add(letter.from);
                break;
            case POST_WHO_LEFT:
                post_send(letter.from, POST_THESE_LEFT, letter.number, left_ranks,
                          (size_t)left_count * sizeof *left_ranks);
                break;
            case POST_THESE_LEFT:
                if (inquiry.phase == ASKING_WHO_LEFT && deadline_letter_is_current(&letter))
                    deadline_left_ask((const int64_t *)(const void *)letter.data,
                                      (int64_t)(letter.bytes / sizeof *left_ranks));
                break;
        }
        if (!is_kept) free(letter.memory);
    }
}

/* Deciding */

/* Sets this rank's own state among the answers. */
static void deadline_self_add(void) {
    wire_writer w = {.data = NULL};
    state s;
    if (deadline_self_describe(&w)) {
        wire_reader r = {.data = w.data, .bytes = w.bytes};
        if (state_read(&s, &r)) inquiry.all[deadline.rank] = s;
    }
    free(inquiry.memory[deadline.rank]);
    inquiry.memory[deadline.rank] = w.data;
}

/* Begins a report if the answers of the ranks that have left show that the call waits in vain; else ends the inquiry.
 */
static void deadline_scout_decide(void) {
    deadline_self_add();
    inquiry.phase = IDLE;
    if (report_is_in_vain(&inquiry.ranks, deadline.rank) && clock_now() >= held_back_until_ns)
        deadline_report_begin(inquiry.thread, REPORT_IN_VAIN);
}

/* Sets the presence of ranks that have not answered to the state that ranks of their hosts have reported of their
 * processes. */
static void deadline_lost_apply(void) {
    for (int64_t i = 0; i < deadline.ranks; i++)
        for (int64_t j = 0; j < inquiry.all[i].lost_count; j++) {
            const state_lost *l = &inquiry.all[i].lost[j];
            if (l->rank < 0 || l->rank >= deadline.ranks || inquiry.all[l->rank].presence == STATE_HERE) continue;
            inquiry.all[l->rank].presence = l->presence;
        }
}

/* Returns whether a thread is still in the wait that was measured `then`. */
static int deadline_wait_is_same(int64_t thread, const flight_clock *then) {
    const flight_clock *c = deadline_clock_of(thread);
    return c->waited_ns > 0 && c->entered == then->entered && c->pauses == then->pauses;
}

/* Returns whether the last warning is about a call that still waits; forgets the warning if not. */
static int deadline_warning_is_current(void) {
    if (warning.thread != NONE && !deadline_wait_is_same(warning.thread, &warning.call)) warning.thread = NONE;
    return warning.thread != NONE;
}

/* Returns whether the inquiry is about the call of the last warning. */
static int deadline_inquiry_repeats_warning(void) {
    return inquiry.reason == REPORT_WARNING && deadline_warning_is_current() && warning.thread == inquiry.thread;
}

/* Keeps the proof of a deadlock for the next inquiry about this call; if the inquiry before gave the same proof, sets
 * the reason to REPORT_DEADLOCK, which ends the job. */
static void deadline_warning_update(void) {
    const uint64_t deadlock = report_deadlock_hash(&inquiry.ranks, deadline.rank), before = warning.deadlock;
    const int is_old = deadline_inquiry_repeats_warning();
    warning.deadlock = deadlock;
    if (!is_old) return;
    warning.next_ns = deadline_clock_of(warning.thread)->waited_ns + deadline.limit_ns;
    if (deadlock && deadlock == before) inquiry.reason = REPORT_DEADLOCK;
}

/* Returns whether the answers give a reason to report: a call that waits in vain, a deadlock, a lost process, a rank
 * that has not come, or data that takes ten limits; not for a warning that was given already. */
static int deadline_inquiry_needs_report(void) {
    if (inquiry.reason == REPORT_IN_VAIN) return report_is_in_vain(&inquiry.ranks, deadline.rank);
    if (inquiry.reason == REPORT_DEADLOCK) return 1;
    if (deadline_inquiry_repeats_warning()) return 0;
    if (inquiry.thread == AT_END) return report_has_lost(&inquiry.ranks); /* it waits for as long as the others run */
    /* A rank that cannot ask does not know whether they have come. */
    return !deadline.talks || report_is_stuck(&inquiry.ranks, deadline.rank) ||
           deadline_clock_of(inquiry.thread)->waited_ns / LIMITS_WITH_DATA >= deadline.limit_ns;
}

/* Goes on to CLAIMING if the answers give a reason to report, else drops the inquiry; called once all ranks have
 * answered or are too late. */
static void deadline_report_decide(void) {
    deadline_self_add();
    deadline_lost_apply();
    if (inquiry.reason == REPORT_WARNING) deadline_warning_update();
    if (deadline_inquiry_needs_report()) {
        inquiry.phase = CLAIMING;
        inquiry.until_ns = deadline_after_ms(deadline.talks && deadline.ranks > 1 ? CLAIM_MS : 0);
        return;
    }
    if (inquiry.reason != REPORT_IN_VAIN && !deadline_inquiry_repeats_warning())
        next_report_ns = deadline_clock_of(inquiry.thread)->waited_ns + deadline.limit_ns;
    deadline_inquiry_drop();
}

/* Reporting */

/* Prints the report, and ends the job unless it is a warning; a warning is kept for the next inquiry, and the other
 * ranks are told of it. */
static void deadline_report_end(void) {
    int64_t rank = deadline.rank;
    /* Ranks begin to wait at nearly the same time, and each warning is to be about the same rank. */
    if (inquiry.reason == REPORT_WARNING)
        rank = report_lowest_waiting_find(&inquiry.ranks, rank, deadline.limit_ns / 1000000 * 9 / 10);
    char *text = report_write(&inquiry.ranks, rank, inquiry.reason, deadline.limit);
    const char *words =
        text ? text : "mpixla: a call has waited for too long, and there is no memory for the report.\n";
    if (inquiry.reason != REPORT_WARNING)
        job_end(words, inquiry.reason == REPORT_LIMIT ? EXIT_TIMED_OUT : EXIT_IN_VAIN, deadline.talks);
    output_write(words);
    free(text);
    warning.thread = inquiry.thread;
    warning.call = inquiry.call;
    warning.next_ns = deadline_clock_of(inquiry.thread)->waited_ns + deadline.limit_ns;
    deadline_waits_mark_reported();
    deadline_post_to_others(POST_REPORTED);
    inquiry.phase = IDLE;
    next_report_ns = deadline_first_report_ns();
}

/* From one phase to the next */

/* Begins an inquiry if one is due: again about the last warning, about the longest wait, or which ranks have left. */
static void deadline_inquiry_choose(void) {
    int64_t waiting = deadline_longest_wait_find(), to_scout = deadline_scout_due_find();
    if (waiting == NONE || deadline_clock_of(waiting)->waited_ns < deadline_first_report_ns())
        next_report_ns = deadline_first_report_ns();
    if (clock_now() < held_back_until_ns) return;
    if (deadline_warning_is_current() && deadline_clock_of(warning.thread)->waited_ns >= warning.next_ns)
        deadline_report_begin(warning.thread, REPORT_WARNING);
    else if (waiting != NONE && deadline_clock_of(waiting)->waited_ns >= next_report_ns)
        deadline_report_begin(waiting, deadline.ends_job ? REPORT_LIMIT : REPORT_WARNING);
    else if (to_scout != NONE)
        deadline_scout_begin(to_scout);
}

/* Returns whether the call that the inquiry is about still waits. */
static int deadline_inquiry_is_current(void) {
    return deadline_wait_is_same(inquiry.thread, &inquiry.call);
}

/* Moves the inquiry to its next phase if it is time; drops it if its call no longer waits. May print a report, and end
 * the job. */
static void deadline_inquiry_advance(void) {
    int is_late = clock_now() >= inquiry.until_ns, all_answered = inquiry.answers >= inquiry.questions;
    if (inquiry.phase != IDLE && !deadline_inquiry_is_current()) {
        deadline_inquiry_drop();
        next_report_ns = deadline_first_report_ns();
    }
    switch (inquiry.phase) {
        case IDLE:
            deadline_inquiry_choose();
            break;
        case ASKING_WHO_LEFT:
            if (is_late) inquiry.phase = IDLE;
            break;
        case ASKING_LEFT:
            if (is_late || all_answered) deadline_scout_decide();
            break;
        case ASKING_ALL:
            if (is_late || all_answered) deadline_report_decide();
            break;
        case CLAIMING:
            if (is_late) deadline_report_end();
            break;
    }
}

/* Tells rank 0, once, that this rank makes no more calls, and sets left_ns. */
static void deadline_leave_announce(void) {
    if (left_ns) return;
    left_ns = clock_now();
    if (deadline.rank == 0)
        deadline_left_add(0);
    else if (deadline.talks)
        post_send(0, POST_LEFT, 0, NULL, 0);
}

/* Returns whether some process of this host has been gone for GONE_NS, so that it cannot be in MPI_Finalize: a process
 * that has been there may end a moment before this rank sees that all have come. */
static int deadline_process_is_gone(void) {
    static int64_t looked, since;
    int64_t now = clock_now();
    if (now - looked < INT64_C(1000000) * CLAIM_MS) return since && now - since >= GONE_NS;
    looked = now;
    int gone = 0;
    for (int64_t i = 0, n = deadline_lost_find(); i < n; i += 2) gone |= lost_facts[i + 1] == STATE_DEAD;
    if (!gone) since = 0;
    if (gone && !since) since = now;
    return since && now - since >= GONE_NS;
}

/* Returns whether MPI_Finalize may go on: no inquiry is open, and all other ranks have come to it, as a barrier tells,
 * which this starts. Does not wait for a letter that its receiver does not take, nor for the others once the process of
 * one is gone: MPI handles that, or hangs. */
static int deadline_can_finalize(void) {
    if (inquiry.phase != IDLE) return 0;
    if (!deadline.talks) return 1;
    if (post_is_sending() && clock_now() - left_ns < LETTERS_NS) return 0;
    if (!has_joined) post_barrier_start();
    has_joined = 1;
    if (!post_barrier_is_done() && !deadline_process_is_gone()) return 0;
    deadline_letters_read();
    return 1;
}

/* The thread */

/* Makes one poll of the watchdog: measures waits, handles letters, and moves the inquiry on, which may print a report
 * and end the job. */
static void deadline_step(void) {
    deadline_waits_measure();
    process_measure();
    deadline_letters_read();
    deadline_inquiry_advance();
}

/* Ends the job, with a sentence, if NCCL reports the failure of a call that had returned: its stream may wait for ever,
 * and results that wait for it would be wrong. */
static void deadline_nccl_check(void) {
    char text[2 * ERROR_BYTES];
    if (plan_nccl_poll() == 0) return;
    snprintf(text, sizeof text, "mpixla: r%lld | %s. No result that depends on that call is right, so the job ends.\n",
             (long long)deadline.rank, error_get());
    job_end(text, EXIT_NCCL, deadline.talks);
}

/* Asks the front end every FLUSH_PERIOD_NS to flush its output: the launcher may kill this process without a signal
 * that it could handle, when another rank dies or ends the job. */
static void deadline_output_flush(void) {
    static int64_t next;
    if (deadline.ranks == 1 || clock_now() < next) return;
    next = clock_now() + FLUSH_PERIOD_NS;
    output_flush_request();
}

/* Runs the watchdog's thread until MPI_Finalize begins: one poll, with NCCL's errors and a flush of output, after
 * another. Holds the lock except between them. */
static void *deadline_thread_run(void *nothing) {
    pthread_mutex_lock(&deadline.lock);
    while (!atomic_load(&deadline.stopped)) {
        deadline_step();
        deadline_nccl_check();
        deadline_output_flush();
        int64_t pause = inquiry.phase != IDLE ? INT64_C(1000000) * BUSY_POLL_MS : deadline.poll_ns;
        (void)system_condition_wait(&deadline.changed, &deadline.lock, clock_now() + pause);
    }
    pthread_mutex_unlock(&deadline.lock);
    return nothing;
}

/* Stops the watchdog's thread when MPI_Finalize begins, and does its work until deadline_can_finalize, which is when
 * all ranks have come to MPI_Finalize, or one cannot: ranks that wait still get answers, and a report may still end the
 * job. Takes the lock; does no such work if the thread does not release it within LOCK_MS, as it hangs in MPI then. */
static void deadline_finalize(void *nothing) {
    (void)nothing;
    atomic_store(&deadline.ended, 1);
    atomic_store(&deadline.stopped, 1);
    stack_close();
    if (!system_lock(&deadline.lock, LOCK_MS)) return;
    pthread_cond_broadcast(&deadline.changed);
    deadline_leave_announce();
    for (deadline_step(); !deadline_can_finalize(); deadline_step()) clock_sleep(BUSY_POLL_MS);
    pthread_mutex_unlock(&deadline.lock);
}

/* Setup */

void mpixla_timeout_ended(void) {
    atomic_store(&deadline.ended, 1);
}

/* Stops the watchdog's thread, and returns when it has left MPI, or after LOCK_MS. */
void mpixla_timeout_stop(void) {
    if (deadline.ranks == 0) return;
    atomic_store(&deadline.stopped, 1);
    if (!system_lock(&deadline.lock, LOCK_MS)) return;
    pthread_cond_broadcast(&deadline.changed);
    pthread_mutex_unlock(&deadline.lock);
}

/* Tells rank 0, for the watchdogs of the other ranks, that this rank makes no more calls. Gives up if the lock is not
 * released within LOCK_MS. */
void mpixla_timeout_left(void) {
    mpixla_timeout_ended();
    if (deadline.ranks == 0 || !system_lock(&deadline.lock, LOCK_MS)) return;
    deadline_leave_announce();
    pthread_mutex_unlock(&deadline.lock);
}

/* Copies the list of processes, with the start times of those on this host, and allocates the arrays by rank. Returns
 * whether there was memory. */
static int deadline_processes_copy(const mpixla_process *processes, int64_t count) {
    char where[256];
    deadline.processes = calloc((size_t)count, sizeof *deadline.processes);
    inquiry.memory = calloc((size_t)count, sizeof *inquiry.memory);
    inquiry.all = calloc((size_t)count, sizeof *inquiry.all);
    left_ranks = calloc((size_t)count, sizeof *left_ranks);
    lost_facts = calloc((size_t)count, 2 * sizeof *lost_facts);
    inquiry.ranks =
        (report_ranks){.all = inquiry.all, .n = count, .room = calloc((size_t)count, sizeof *inquiry.ranks.room)};
    if (!deadline.processes || !inquiry.memory || !inquiry.all || !left_ranks || !lost_facts || !inquiry.ranks.room)
        return 0;
    for (int64_t i = 0; i < count; i++) {
        process *p = &deadline.processes[i];
        snprintf(where, sizeof where, "process %lld on %s", (long long)processes[i].number, processes[i].name);
        *p = (process){.host = strdup(processes[i].host), .where = strdup(where), .number = processes[i].number};
        if (!p->host || !p->where) return 0;
        p->started = strcmp(p->host, processes[deadline.rank].host) == 0 ? process_started(p->number) : 0;
    }
    return 1;
}

/* Starts the watchdog with a time limit, or, if that is 0, a time for warnings, in seconds. `processes` has one entry
 * for each of the `count` ranks (copied); `comm` is for its letters. From then on MPI_Finalize waits for all ranks, and
 * with a limit calls through NCCL are synchronous. Returns 0 or REFUSED. */
int mpixla_timeout_set(double limit, double warn_after, mpixla_handle comm, const mpixla_process *processes,
                       int64_t count) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (deadline.ranks > 0) return error_set("the time limit was set twice");
    const int64_t rank = mpi_get()->world_rank;
    const double seconds = limit == 0 ? warn_after : limit;
    if (!(seconds > 0 && seconds < 1e9) || count <= rank)
        return error_set(
            "a time limit is a number of seconds greater than 0 and less than 1e9, and comes with all processes of "
            "MPI_COMM_WORLD, but was %g with %lld processes",
            seconds, (long long)count);
    deadline.rank = rank;
    if (!deadline_processes_copy(processes, count)) return error_set("out of memory for the time limit");
    const int64_t poll = (int64_t)(seconds * 1e3 / POLLS_IN_LIMIT);
    deadline.limit = seconds;
    deadline.limit_ns = (int64_t)(seconds * 1e9);
    deadline.ends_job = limit != 0;
    deadline.poll_ns = (poll < SHORTEST_POLL_MS  ? SHORTEST_POLL_MS
                        : poll > LONGEST_POLL_MS ? LONGEST_POLL_MS
                                                 : poll) *
                       1000000;
    deadline.delay_ns =
        rank * (RANK_DELAY_NS < LAST_RANK_DELAY_NS / count ? RANK_DELAY_NS : LAST_RANK_DELAY_NS / count);
    deadline.talks = comm != 0;
    deadline.ranks = count;
    warning.thread = NONE;
    next_report_ns = deadline_first_report_ns();
    if (deadline.talks) post_channel_set(comm, (int)count);
    /* Before the thread, as the others wait for this rank to leave even if it cannot have one. */
    comm_slot_destructor_set(COMM_SLOT_END, deadline_finalize);
    comm_attach(comm_find_any(0), COMM_SLOT_END, &deadline);
    if (deadline.ends_job) nccl_calls_synchronous_set();
    int code = system_condition_make(&deadline.changed);
    return code == 0 ? thread_start(deadline_thread_run, STACK_BYTES, "for the time limit") : code;
}
