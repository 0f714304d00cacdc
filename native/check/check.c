#include "check/check.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "check/agree.h"
#include "check/message.h"
#include "check/tally.h"
#include "mpixla.h"

/* Nanoseconds: how long a process that ends waits for others that have yet to make a collective call which it has
 * started. Once it is gone nobody can tell them that it is not theirs; those that have ended never make it. */
#define AGREE_PATIENCE INT64_C(30000000000)

static void let_go(check_state *s) {
    agree_forget(s->entry);
    message_free(s);
}

void check_start(void (*tell)(const char *sentence)) {
    message_late_told_to(tell);
    check_state_freed_by(let_go);
}

int mpixla_check_set(const char *mode, mpixla_handle comm) {
    static const char *const names[] = {
        [CHECK_OFF] = "off", [CHECK_FIRST] = "first", [CHECK_CALLS] = "calls", [CHECK_LINES] = "lines"};
    for (int i = CHECK_OFF; i <= CHECK_LINES; i++)
        if (strcmp(mode, names[i]) == 0) {
            agree_channel_set(comm);
            check_mode_set((check_mode)i);
            return 0;
        }
    return error_set("the mode of checks is '%s', but must be off, first, calls or lines", mode);
}

int mpixla_check_join(int64_t comm) {
    comm_entry *entry = comm_find(comm);
    check_state *s = entry ? check_state_of(entry) : NULL;
    int code = s ? message_join(s) : MPI_REFUSED;
    if (code > 0) return error_set("MPI_Comm_dup or MPI_Alltoall failed on communicator '%s'", entry->name);
    return code == 0 ? 0 : -1;
}

void mpixla_check_end(void) {
    enum { LOOK_MILLISECONDS = 1 };
    if (check_mode_get() == CHECK_OFF || !mpi_get()) return;
    const int64_t began = clock_now(), patience = message_patience();
    for (;;) {
        int64_t waited = clock_now() - began;
        int unanswered = check_states_each(message_finish), unknown = agree_end();
        if (!(unanswered && waited < patience) && !(unknown && waited < AGREE_PATIENCE)) return;
        clock_sleep(LOOK_MILLISECONDS);
    }
}

/* Messages are compared, and for that a communicator of its own is made of each, where all is. */
static int are_messages_compared(void) {
    return check_mode_get() >= CHECK_CALLS;
}

static int is_message(const frame *f) {
    return frame_has(f, ATTRIBUTE_DEST) || frame_has(f, ATTRIBUTE_SOURCE);
}

static int collective_begin(frame *f) {
    check_state *s = are_messages_compared() ? check_state_of(f->communicator) : NULL;
    int code = 0;
    if (are_messages_compared() && !s) return MPI_REFUSED;
    if (s) message_poll(s);
    if (f->shape->request == FRAME_STARTS) {
        if (f->size > 1) f->checks[0] = agree_start(f->communicator, f, &code);
        return f->size > 1 && !f->checks[0] && code == 0 ? MPI_REFUSED : code;
    }
    code = agree_now(f->communicator, f);
    if (code == 0 && f->size > 1 && tally_is_needed(f)) code = tally_compare(f);
    return code == 0 && s ? message_join(s) : code;
}

int check_begin(frame *f) {
    if (f->shape->request == FRAME_WAITS) return 0;
    if (!is_message(f)) return collective_begin(f);
    check_state *s = check_state_of(f->communicator);
    return s ? message_begin(s, f) : MPI_REFUSED;
}

int check_wait(const frame *f) {
    return f->started && facts_are_collective(f->started) && f->checks[0] ? agree_wait(f->checks[0]) : 0;
}

int check_end(frame *f, int made, int code) {
    const int waits = f->shape->request == FRAME_WAITS;
    const call_facts *call = waits ? f->started : &f->facts;
    if (!are_messages_compared() || !call || !facts_are_of_message(call) || (waits && !f->request)) return code;
    check_state *s = check_state_of(call->communicator);
    if (!s) return MPI_REFUSED;
    if (!waits && (!made || (f->shape->request == FRAME_STARTS && code != 0))) message_forget(s, f);
    if (!made || f->shape->request == FRAME_STARTS) return code;
    int has_status = frame_has(f, ATTRIBUTE_STATUS);
    int accepts_short = has_status && f->attributes[ATTRIBUTE_STATUS] != MPIXLA_NO_STATUS;
    return message_end(s, f, has_status || waits ? f->status : f->scratch, accepts_short, code);
}
