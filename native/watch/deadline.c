/* The thread that watches how long calls wait. The calls themselves know nothing of it.
 *
 * Once a call has waited for longer than the limit (MPIXLA_TIMEOUT), or, without one, than the time for a word, this
 * rank tells all others that it is about to report, and asks each what it does. If the answers show that the call waits
 * for somebody, it writes a report, and where there is a limit it ends the job. Of two ranks that are about to report
 * at once the lower one does, and the other holds back.
 *
 * A call also waits in vain if it takes a rank that has left: it makes no call any more, as in MPI_Finalize. Who leaves
 * tells rank 0. Who waits asks rank 0 from time to time who has left, and then these ranks alone what they have done:
 * so a job in which all wait for one slow rank sends few messages. A call that waits in vain is reported and ends the
 * job.
 *
 * The rank that has said a word looks again each time when as much time has passed. If all ranks then say what they
 * have said the time before, and by that the job can never end (report_deadlock), it reports that and ends the job.
 *
 * Time counts while this thread runs, so a process that was stopped as a whole has not waited. The thread itself never
 * waits for another process, which may be stopped or gone: each has some patience's time to answer.
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
enum { STACK_BYTES = 1 << 20, PYTHON_BYTES = 4096, LOCK_MILLISECONDS = 2000 };
/* Milliseconds that others have: to answer, their Python to say where its threads are, and to claim a report; and for
 * how long a rank holds back that hears nothing more of the one that reports. */
enum { PATIENCE = 2000, PATIENCE_WITH_PYTHON = 1000, PATIENCE_TO_CLAIM = 200, HELD_BACK = 5000 };
/* Nanoseconds: between two questions who has left; and how much later than rank 0 the others do what all would do at
 * one time, so that few need to: each rank than the one before it, and the last one at most. */
#define SCOUT_EACH INT64_C(2500000000)
#define RANK_LATER INT64_C(100000000)
#define LAST_LATER INT64_C(2500000000)
/* Nanoseconds that MPI_Finalize waits for messages of this file to be taken, and after a process of this host is gone.
 */
#define LETTERS_WAIT INT64_C(5000000000)
#define GONE_FOR INT64_C(5000000000)
/* Nanoseconds between two flushes: with LONGEST_POLL less than a rank that ends the job leaves the others (job.c). */
#define FLUSH_EACH INT64_C(200000000)
/* Milliseconds between two looks: POLLS in the time of the limit, within these bounds; and while something is asked, or
 * the process leaves. */
enum { SHORTEST_POLL = 10, LONGEST_POLL = 250, BUSY_POLL = 2, POLLS = 20 };
/* A call that nobody lacks moves data, and is reported only when it has waited for so many limits. */
enum { LIMITS_TO_MOVE_DATA = 10 };

typedef struct process {
    char *host;              /* as in mpixla_process */
    char *where;             /* "process 12 on node1" */
    int64_t number, started; /* of this host: as in process_id */
} process;

static struct {
    int64_t rank, ranks;
    double limit;   /* seconds, as people are told: the limit, or the time for a word */
    int64_t period; /* the same in nanoseconds */
    int ends_job;   /* it is a limit */
    int64_t poll;   /* nanoseconds between two looks */
    int64_t later;  /* nanoseconds: see RANK_LATER */
    process *processes;
    int talks;            /* this rank can ask the others: MPI has MPI_THREAD_MULTIPLE */
    pthread_mutex_t lock; /* held by who does the thread's work */
    pthread_cond_t changed;
    atomic_int ended;   /* the program has come to its end */
    atomic_int stopped; /* MPI_Finalize begins, and does the thread's work */
} our = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* All that follows is for who holds the lock. */

/* What this rank is finding out from others, about one of its calls. */
typedef enum phase {
    IDLE,
    ASKING_WHO_LEFT, /* it asks rank 0 */
    ASKING_LEFT,     /* those that have left, whether the call waits for them in vain */
    ASKING_ALL,      /* all ranks, for a report: it has claimed it from here on */
    CLAIMING         /* there is something to report: it does so if no lower rank claims the same in a moment */
} phase;

static struct {
    phase phase;
    report_reason reason;
    int64_t number;    /* of this inquiry, which answers have as well */
    int64_t until;     /* when this phase ends in any case, nanoseconds */
    int64_t thread;    /* whose call it is about */
    flight_clock call; /* what was measured of that thread when the inquiry began */
    int questions, answers;
    char **memory; /* by rank: its answer, which `all` points into; NULL: it has not answered */
    state *all;
    report_ranks ranks; /* the same */
} asked;

static int64_t next_report; /* nanoseconds that a call must have waited to be reported */
static int64_t held_back_until;
static int held_back_by; /* the rank that is about to report */

/* In place of a thread's number: none, or this process as one that waits at its end for processes that cannot come. */
enum { NONE = -1, AT_END = -2 };
static flight_clock at_end;

/* The word that this rank has said last, and that it looks at again. */
static struct {
    int64_t thread;    /* whose call it is about; NONE: there is none */
    flight_clock call; /* what was measured of it then */
    int64_t next;      /* nanoseconds that it must have waited to be looked at */
    uint64_t deadlock; /* what report_deadlock has said then */
} said;

static int64_t *lost; /* room for lost_find */
static int64_t *left; /* rank 0 alone: the ranks that have left */
static int64_t in_left;
static int64_t leaving; /* since when this rank leaves; 0: it does not */
static int has_joined;  /* it has told all others that it has nothing more to ask */

static int64_t in_milliseconds(int64_t ms) {
    return clock_now() + ms * 1000000;
}

/* Measuring */

static flight_clock *clock_of(int64_t thread) {
    return thread == AT_END ? &at_end : flight_clock_of(thread);
}

/* Adds the time since the last look to what those calls have waited that were there then, too. */
static void waits_measure(void) {
    static int64_t looked;
    int64_t now = clock_now(), passed = looked ? now - looked : 0;
    looked = now;
    if (passed > 4 * our.poll) passed = our.poll; /* this process was stopped, or had no processor */
    for (int64_t i = 0; i < flight_threads(); i++) {
        flight_moment m = flight_moment_of(i);
        flight_clock *c = flight_clock_of(i);
        int goes_on = m.in_call && !(m.pauses & 1) && c->entered == m.entered && c->pauses == m.pauses;
        if (!goes_on) *c = (flight_clock){.entered = m.entered, .pauses = m.pauses};
        if (goes_on) c->waited += passed;
    }
    if (has_joined) at_end.waited += passed;
}

/* The thread that has waited longest, of those whose wait has not been reported. */
static int64_t longest_unreported(void) {
    int64_t found = NONE;
    for (int64_t i = 0; i < flight_threads(); i++) {
        const flight_clock *c = flight_clock_of(i);
        if (c->waited > 0 && !c->reported && (found < 0 || c->waited > flight_clock_of(found)->waited)) found = i;
    }
    return found < 0 && at_end.waited > 0 && our.ends_job ? AT_END : found;
}

/* A thread for which it is time to ask again who has left. */
static int64_t unscouted(void) {
    for (int64_t i = 0; our.talks && i < flight_threads(); i++)
        if (flight_clock_of(i)->waited >= flight_clock_of(i)->scouted + SCOUT_EACH + our.later) return i;
    return NONE;
}

/* All that wait now: a word was said, here or by another rank. */
static void note_all_reported(void) {
    for (int64_t i = 0; i < flight_threads(); i++) flight_clock_of(i)->reported = flight_clock_of(i)->waited > 0;
}

/* What a call must have waited for its first report: longer on higher ranks, so that of all that wait the lowest asks
 * the others, and they need not. */
static int64_t first_report(void) {
    return our.period + our.later;
}

/* Answering */

/* Lists the processes of this host that cannot answer for themselves, as state_facts has them. Returns how long the
 * list is. */
static int64_t lost_find(void) {
    int64_t n = 0;
    for (int64_t i = 0; i < our.ranks; i++) {
        if (i == our.rank || strcmp(our.processes[i].host, our.processes[our.rank].host) != 0) continue;
        const process_state found =
            process_look(&(process_id){.number = our.processes[i].number, .started = our.processes[i].started});
        if (found == PROCESS_THERE) continue;
        lost[n++] = i;
        lost[n++] = found == PROCESS_GONE ? STATE_DEAD : STATE_STOPPED;
    }
    return n;
}

/* Returns why Python does not say where it is: it is called by one thread, which also flushes what was printed. */
static const char *python_silence(void) {
    return output_is_stuck()
               ? "Python does not answer: what the program prints waits for somebody to read standard output\n"
               : "Python does not answer for a long time: code in C holds its lock, or a file that the program prints "
                 "to "
                 "takes nothing\n";
}

/* Writes what this rank does. Returns whether there was memory for it. */
static int self_describe(wire_writer *w) {
    char python[PYTHON_BYTES] = "";
    int ended = atomic_load(&our.ended);
    int64_t threads = -1;
    if (!stack_ask(python, sizeof python, &threads, PATIENCE_WITH_PYTHON))
        snprintf(python, sizeof python, "%s", python_silence());
    const state_facts facts = {.rank = our.rank,
                               .ended = ended,
                               .left = leaving ? (clock_now() - leaving) / 1000000 : -1,
                               .percent = process_percent(),
                               .where = our.processes[our.rank].where,
                               .threads = threads,
                               .python = ended ? "" : python,
                               .lost = lost,
                               .in_lost = lost_find()};
    state_write(w, &facts);
    return !w->failed;
}

static void answer(const post_letter *letter) {
    wire_writer w = {.data = NULL};
    if (self_describe(&w)) post_send(letter->from, POST_ANSWER, letter->number, w.data, w.bytes);
    free(w.data);
}

/* Asking */

static void post_to_others(post_kind kind) {
    for (int i = 0; our.talks && i < our.ranks; i++)
        if (i != our.rank) post_send(i, kind, asked.number, NULL, 0);
}

static void inquiry_begin(phase first, int64_t thread) {
    asked.phase = first;
    asked.number++;
    asked.until = in_milliseconds(PATIENCE);
    asked.thread = thread;
    asked.call = *clock_of(thread);
    asked.questions = asked.answers = 0;
    for (int64_t i = 0; i < our.ranks; i++) {
        free(asked.memory[i]);
        asked.memory[i] = NULL;
        asked.all[i] = (state){
            .rank = i, .presence = STATE_SILENT, .left = -1, .where = our.processes[i].where, .python = "", .last = ""};
    }
}

/* There is nothing to report: another rank may have something. */
static void inquiry_drop(void) {
    if (asked.phase >= ASKING_ALL) post_to_others(POST_DROP);
    asked.phase = IDLE;
}

static void report_begin(int64_t thread, report_reason reason) {
    inquiry_begin(ASKING_ALL, thread);
    asked.reason = reason;
    asked.questions = our.talks ? (int)our.ranks - 1 : 0;
    post_to_others(POST_CLAIM);
    post_to_others(POST_ASK);
}

static void ask_left(const int64_t *ranks, int64_t n) {
    asked.phase = ASKING_LEFT;
    for (int64_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= our.ranks || ranks[i] == our.rank) continue;
        post_send((int)ranks[i], POST_ASK, asked.number, NULL, 0);
        asked.questions++;
    }
    if (asked.questions == 0) asked.phase = IDLE;
}

static void scout_begin(int64_t thread) {
    clock_of(thread)->scouted = clock_of(thread)->waited;
    inquiry_begin(ASKING_WHO_LEFT, thread);
    if (our.rank == 0)
        ask_left(left, in_left);
    else
        post_send(0, POST_WHO_LEFT, asked.number, NULL, 0);
}

/* Letters */

static int is_of_now(const post_letter *letter) {
    return letter->number == asked.number;
}

/* Returns whether the letter is the answer to a question, whose memory is kept then. */
static int answer_keep(const post_letter *letter) {
    int from = letter->from;
    if ((asked.phase != ASKING_LEFT && asked.phase != ASKING_ALL) || !is_of_now(letter)) return 0;
    if (from < 0 || from >= our.ranks || asked.memory[from]) return 0;
    wire_reader r = {.data = letter->data, .bytes = letter->bytes};
    state s;
    if (!state_read(&s, &r) || s.rank != from) return 0;
    asked.all[from] = s;
    asked.memory[from] = letter->memory;
    asked.answers++;
    return 1;
}

/* Another rank is about to report. */
static void hold_back(const post_letter *letter) {
    if (asked.phase >= ASKING_ALL && letter->from > our.rank) return; /* that one holds back */
    held_back_until = in_milliseconds(HELD_BACK);
    held_back_by = letter->from;
    asked.phase = IDLE;
}

static void left_keep(int64_t rank) {
    if (in_left < our.ranks) left[in_left++] = rank;
}

static void letters_read(void) {
    post_letter letter;
    while (our.talks && post_take(&letter)) {
        int is_kept = 0;
        switch (letter.kind) {
            case POST_ASK:
                answer(&letter);
                break;
            case POST_ANSWER:
                is_kept = answer_keep(&letter);
                break;
            case POST_CLAIM:
                hold_back(&letter);
                break;
            case POST_DROP:
                if (letter.from == held_back_by) held_back_until = 0;
                break;
            case POST_TOLD:
                note_all_reported();
                break;
            case POST_LEFT:
                left_keep(letter.from);
                break;
            case POST_WHO_LEFT:
                post_send(letter.from, POST_THESE_LEFT, letter.number, left, (size_t)in_left * sizeof *left);
                break;
            case POST_THESE_LEFT:
                if (asked.phase == ASKING_WHO_LEFT && is_of_now(&letter))
                    ask_left((const int64_t *)(const void *)letter.data, (int64_t)(letter.bytes / sizeof *left));
                break;
        }
        if (!is_kept) free(letter.memory);
    }
}

/* Deciding */

/* What this rank does itself, as if it had answered. */
static void self_add(void) {
    wire_writer w = {.data = NULL};
    state s;
    if (self_describe(&w)) {
        wire_reader r = {.data = w.data, .bytes = w.bytes};
        if (state_read(&s, &r)) asked.all[our.rank] = s;
    }
    free(asked.memory[our.rank]);
    asked.memory[our.rank] = w.data;
}

/* Those that have left have answered. */
static void scout_decide(void) {
    self_add();
    asked.phase = IDLE;
    if (report_is_in_vain(&asked.ranks, our.rank) && clock_now() >= held_back_until)
        report_begin(asked.thread, REPORT_IN_VAIN);
}

/* What those that have answered know of the processes of their hosts that have not. */
static void lost_take(void) {
    for (int64_t i = 0; i < our.ranks; i++)
        for (int64_t j = 0; j < asked.all[i].in_lost; j++) {
            const state_lost *l = &asked.all[i].lost[j];
            if (l->rank < 0 || l->rank >= our.ranks || asked.all[l->rank].presence == STATE_HERE) continue;
            asked.all[l->rank].presence = l->presence;
        }
}

static int clock_is_same(int64_t thread, const flight_clock *then) {
    const flight_clock *c = clock_of(thread);
    return c->waited > 0 && c->entered == then->entered && c->pauses == then->pauses;
}

/* Whether the word that this rank has said last is about a call that still waits. */
static int word_holds(void) {
    if (said.thread != NONE && !clock_is_same(said.thread, &said.call)) said.thread = NONE;
    return said.thread != NONE;
}

/* Whether the inquiry is a second look at a call of which a word was said. */
static int word_is_old(void) {
    return asked.reason == REPORT_WORD && word_holds() && said.thread == asked.thread;
}

/* Keeps what a word rests on, for the next look at it. Where it was the same the time before the job ends. */
static void word_look(void) {
    const uint64_t deadlock = report_deadlock(&asked.ranks, our.rank), before = said.deadlock;
    const int is_old = word_is_old();
    said.deadlock = deadlock;
    if (!is_old) return;
    said.next = clock_of(said.thread)->waited + our.period;
    if (deadlock && deadlock == before) asked.reason = REPORT_DEADLOCK;
}

static int is_to_be_reported(void) {
    if (asked.reason == REPORT_IN_VAIN) return report_is_in_vain(&asked.ranks, our.rank);
    if (asked.reason == REPORT_DEADLOCK) return 1;
    if (word_is_old()) return 0;
    if (asked.thread == AT_END) return report_has_lost(&asked.ranks); /* it waits for as long as the others run */
    /* A rank that cannot ask does not know whether they have come. */
    return !our.talks || report_is_stuck(&asked.ranks, our.rank) ||
           clock_of(asked.thread)->waited / LIMITS_TO_MOVE_DATA >= our.period;
}

/* All have answered, or will not. */
static void report_decide(void) {
    self_add();
    lost_take();
    if (asked.reason == REPORT_WORD) word_look();
    if (is_to_be_reported()) {
        asked.phase = CLAIMING;
        asked.until = in_milliseconds(our.talks && our.ranks > 1 ? PATIENCE_TO_CLAIM : 0);
        return;
    }
    if (asked.reason != REPORT_IN_VAIN && !word_is_old()) next_report = clock_of(asked.thread)->waited + our.period;
    inquiry_drop();
}

/* Reporting */

static void report_end(void) {
    int64_t rank = our.rank;
    /* Ranks begin to wait at one time, but for a little, and a word is to be about the same one each time. */
    if (asked.reason == REPORT_WORD) rank = report_lowest(&asked.ranks, rank, our.period / 1000000 * 9 / 10);
    char *text = report_write(&asked.ranks, rank, asked.reason, our.limit);
    const char *words = text ? text : "mpixla: a call has waited for too long, and there is no memory to say more.\n";
    if (asked.reason != REPORT_WORD)
        job_end(words, asked.reason == REPORT_LIMIT ? EXIT_TIMED_OUT : EXIT_IN_VAIN, our.talks);
    output_say(words);
    free(text);
    said.thread = asked.thread;
    said.call = asked.call;
    said.next = clock_of(asked.thread)->waited + our.period;
    note_all_reported();
    post_to_others(POST_TOLD);
    asked.phase = IDLE;
    next_report = first_report();
}

/* From one phase to the next */

/* Whether a wait is to be asked about. */
static void inquiry_choose(void) {
    int64_t waiting = longest_unreported(), to_scout = unscouted();
    if (waiting == NONE || clock_of(waiting)->waited < first_report()) next_report = first_report();
    if (clock_now() < held_back_until) return;
    if (word_holds() && clock_of(said.thread)->waited >= said.next)
        report_begin(said.thread, REPORT_WORD);
    else if (waiting != NONE && clock_of(waiting)->waited >= next_report)
        report_begin(waiting, our.ends_job ? REPORT_LIMIT : REPORT_WORD);
    else if (to_scout != NONE)
        scout_begin(to_scout);
}

static int still_waits(void) {
    return clock_is_same(asked.thread, &asked.call);
}

static void inquiry_move(void) {
    int is_late = clock_now() >= asked.until, all_answered = asked.answers >= asked.questions;
    if (asked.phase != IDLE && !still_waits()) {
        inquiry_drop();
        next_report = first_report();
    }
    switch (asked.phase) {
        case IDLE:
            inquiry_choose();
            break;
        case ASKING_WHO_LEFT:
            if (is_late) asked.phase = IDLE;
            break;
        case ASKING_LEFT:
            if (is_late || all_answered) scout_decide();
            break;
        case ASKING_ALL:
            if (is_late || all_answered) report_decide();
            break;
        case CLAIMING:
            if (is_late) report_end();
            break;
    }
}

static void leave(void) {
    if (leaving) return;
    leaving = clock_now();
    if (our.rank == 0)
        left_keep(0);
    else if (our.talks)
        post_send(0, POST_LEFT, 0, NULL, 0);
}

/* Returns whether a process of this host has been gone for so long that it has no part in MPI_Finalize any more: one
 * that has come there may go a moment before this rank sees that all have. */
static int is_one_gone(void) {
    static int64_t looked, since;
    int64_t now = clock_now();
    if (now - looked < INT64_C(1000000) * PATIENCE_TO_CLAIM) return since && now - since >= GONE_FOR;
    looked = now;
    int gone = 0;
    for (int64_t i = 0, n = lost_find(); i < n; i += 2) gone |= lost[i + 1] == STATE_DEAD;
    if (!gone) since = 0;
    if (gone && !since) since = now;
    return since && now - since >= GONE_FOR;
}

/* Returns whether all that was asked is answered, and all others have come to MPI_Finalize, too. It does not wait for a
 * message that its receiver does not take, nor for the others once one of them is gone: MPI knows what to do, or hangs.
 */
static int can_finalize(void) {
    if (asked.phase != IDLE) return 0;
    if (!our.talks) return 1;
    if (post_unsent() && clock_now() - leaving < LETTERS_WAIT) return 0;
    if (!has_joined) post_join();
    has_joined = 1;
    if (!post_all_joined() && !is_one_gone()) return 0;
    letters_read();
    return 1;
}

/* The thread */

static void look_once(void) {
    waits_measure();
    process_measure();
    letters_read();
    inquiry_move();
}

/* Ends the job if NCCL says that a call has failed which had returned: its stream may wait for ever, and results that
 * wait for it would be wrong. */
static void nccl_watch(void) {
    char text[2 * ERROR_BYTES];
    if (plan_nccl_poll() == 0) return;
    snprintf(text, sizeof text, "mpixla: r%lld | %s. No result that depends on that call is right, so the job ends.\n",
             (long long)our.rank, error_get());
    job_end(text, EXIT_NCCL, our.talks);
}

/* Has the program's output flushed now and then: another rank may be killed, or end the job, and this one hears nothing
 * of it, where the launcher kills it in turn. */
static void output_keep(void) {
    static int64_t next;
    if (our.ranks == 1 || clock_now() < next) return;
    next = clock_now() + FLUSH_EACH;
    output_flush_soon();
}

static void *calls_watch(void *nothing) {
    pthread_mutex_lock(&our.lock);
    while (!atomic_load(&our.stopped)) {
        look_once();
        nccl_watch();
        output_keep();
        int64_t pause = asked.phase != IDLE ? INT64_C(1000000) * BUSY_POLL : our.poll;
        (void)system_condition_wait(&our.changed, &our.lock, clock_now() + pause);
    }
    pthread_mutex_unlock(&our.lock);
    return nothing;
}

/* MPI_Finalize begins, which waits for all processes: so does this, in the place of the thread, and answers them. If
 * the thread does not give the lock back it hangs in MPI, and nothing is won by waiting. */
static void finalize(void *nothing) {
    (void)nothing;
    atomic_store(&our.ended, 1);
    atomic_store(&our.stopped, 1);
    stack_close();
    if (!system_lock(&our.lock, LOCK_MILLISECONDS)) return;
    pthread_cond_broadcast(&our.changed);
    leave();
    for (look_once(); !can_finalize(); look_once()) clock_sleep(BUSY_POLL);
    pthread_mutex_unlock(&our.lock);
}

/* Setting it up */

void mpixla_timeout_ended(void) {
    atomic_store(&our.ended, 1);
}

void mpixla_timeout_stop(void) {
    if (our.ranks == 0) return;
    atomic_store(&our.stopped, 1);
    if (!system_lock(&our.lock, LOCK_MILLISECONDS)) return;
    pthread_cond_broadcast(&our.changed);
    pthread_mutex_unlock(&our.lock);
}

void mpixla_timeout_left(void) {
    mpixla_timeout_ended();
    if (our.ranks == 0 || !system_lock(&our.lock, LOCK_MILLISECONDS)) return;
    leave();
    pthread_mutex_unlock(&our.lock);
}

/* Returns whether there was memory. */
static int processes_keep(const mpixla_process *processes, int64_t count) {
    char where[256];
    our.processes = calloc((size_t)count, sizeof *our.processes);
    asked.memory = calloc((size_t)count, sizeof *asked.memory);
    asked.all = calloc((size_t)count, sizeof *asked.all);
    left = calloc((size_t)count, sizeof *left);
    lost = calloc((size_t)count, 2 * sizeof *lost);
    asked.ranks = (report_ranks){.all = asked.all, .n = count, .room = calloc((size_t)count, sizeof *asked.ranks.room)};
    if (!our.processes || !asked.memory || !asked.all || !left || !lost || !asked.ranks.room) return 0;
    for (int64_t i = 0; i < count; i++) {
        process *p = &our.processes[i];
        snprintf(where, sizeof where, "process %lld on %s", (long long)processes[i].number, processes[i].name);
        *p = (process){.host = strdup(processes[i].host), .where = strdup(where), .number = processes[i].number};
        if (!p->host || !p->where) return 0;
        p->started = strcmp(p->host, processes[our.rank].host) == 0 ? process_started(p->number) : 0;
    }
    return 1;
}

int mpixla_timeout_set(double limit, double word, mpixla_handle comm, const mpixla_process *processes, int64_t count) {
    if (!mpi_get()) return error_set("mpixla_start has not been called");
    if (our.ranks > 0) return error_set("the time limit was set twice");
    const int64_t rank = mpi_get()->world_rank;
    const double seconds = limit == 0 ? word : limit;
    if (!(seconds > 0 && seconds < 1e9) || count <= rank)
        return error_set(
            "a time limit is a number of seconds greater than 0 and less than 1e9, and comes with all processes of "
            "MPI_COMM_WORLD, but was %g with %lld processes",
            seconds, (long long)count);
    our.rank = rank;
    if (!processes_keep(processes, count)) return error_set("out of memory for the time limit");
    const int64_t poll = (int64_t)(seconds * 1e3 / POLLS);
    our.limit = seconds;
    our.period = (int64_t)(seconds * 1e9);
    our.ends_job = limit != 0;
    our.poll = (poll < SHORTEST_POLL ? SHORTEST_POLL : poll > LONGEST_POLL ? LONGEST_POLL : poll) * 1000000;
    our.later = rank * (RANK_LATER < LAST_LATER / count ? RANK_LATER : LAST_LATER / count);
    our.talks = comm != 0;
    our.ranks = count;
    said.thread = NONE;
    next_report = first_report();
    if (our.talks) post_open(comm, (int)count);
    /* Before the thread, as the others wait for this rank to leave even if it cannot have one. */
    comm_slot_freed_by(COMM_SLOT_END, finalize);
    comm_attach(comm_look(0), COMM_SLOT_END, &our);
    if (our.ends_job) nccl_calls_wait();
    int code = system_condition_make(&our.changed);
    return code == 0 ? thread_start(calls_watch, STACK_BYTES, "for the time limit") : code;
}
