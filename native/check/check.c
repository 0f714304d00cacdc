#include "check/check.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/feature.h"
#include "check/agree.h"
#include "check/message.h"
#include "check/signature.h"
#include "check/tally.h"
#include "mpixla.h"

/* Time that an ending process waits for ranks that have yet to make a collective call which it has started: once the
 * process is gone, it cannot send them the description of its call. Ranks that have ended never make the call, so the
 * time is limited. */
#define AGREE_PATIENCE_NS INT64_C(30000000000)

atomic_int check_mode_now = CHECK_OFF;

/* Sets the mode of checks, off, first, calls or lines, and the communicator for their messages. Returns 0; REFUSED for
 * another mode, without memory, or if MPI fails. */
int mpixla_check_set(const char *mode, mpixla_handle comm) {
    static const char *const names[] = {
        [CHECK_OFF] = "off", [CHECK_FIRST] = "first", [CHECK_CALLS] = "calls", [CHECK_LINES] = "lines"};
    int i = CHECK_LINES;
    while (i >= 0 && strcmp(mode, names[i]) != 0) i--;
    if (i < 0) return error_set("the mode of checks is '%s', but must be off, first, calls or lines", mode);
    agree_channel_set(comm);
    if ((i >= CHECK_CALLS || (i == CHECK_FIRST && comm)) && message_channel_set(comm)) return REFUSED;
    atomic_store(&check_mode_now, i);
    (void)feature_set(FEATURE_CHECKS, i != CHECK_OFF);
    return 0;
}

/* Sets the library's own communicator for the checks. Returns 0 or REFUSED. */
int mpixla_check_own_set(int64_t comm) {
    const comm_entry *own = comm_find(comm);
    if (!own) return REFUSED;
    message_own_comm_set(own);
    return 0;
}

int mpixla_check_first_calls(void) {
    return CHECK_FIRST_CALLS;
}

/* Prints the differences of all calls that were started and not waited for, at the end of the process; waits for other
 * ranks until they are known, for AGREE_PATIENCE_NS at most. */
void mpixla_check_end(void) {
    if (check_mode_get() == CHECK_OFF || !mpi_get()) return;
    const int64_t until = clock_now() + AGREE_PATIENCE_NS;
    while (agree_unfinished_report() > 0 && clock_now() < until) clock_sleep(1);
}

/* Returns which messages the mode compares. */
static messages_compared check_messages_compared(void) {
    const check_mode mode = check_mode_get();
    return mode == CHECK_OFF ? MESSAGES_NONE : mode == CHECK_FIRST ? MESSAGES_FIRST : MESSAGES_ALL;
}

int check_message_is_due(const call_facts *f) {
    return message_is_on_own_comm(f);
}

/* Returns the details that the mode compares (signature.h). */
static unsigned check_details(void) {
    const check_mode mode = check_mode_get();
    return mode == CHECK_LINES ? SIGNATURE_LINES | SIGNATURE_SHAPES : mode == CHECK_CALLS ? SIGNATURE_SHAPES : 0;
}

/* Returns whether the call receives a message from a rank. */
static int check_call_receives(const call_facts *call) {
    return facts_have(call, ATTRIBUTE_SOURCE) && call->source != MPIXLA_PROC_NULL;
}

/* Sets the status's source to none, as MPI may not write the status if the receive fails. For a status that is a result
 * in a GPU's memory, routes/gpu.c does that. */
static void check_status_clear(const frame *f) {
    const int no_source = -1;
    if (frame_has(f, ATTRIBUTE_STATUS) && !(f->gpu && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_RESULT))
        memcpy((char *)f->status + mpi_get()->facts.status_source, &no_source, sizeof no_source);
}

int check_begin(frame *f) {
    const unsigned details = check_details();
    if (f->facts.row->request == MPIXLA_WAITS) return 0;
    if (!facts_are_collective(&f->facts)) {
        check_status_clear(f);
        return 0;
    }
    /* With one rank the calls agree, but its messages to itself may differ from those that it expects. */
    const int is_alone = f->size == 1;
    if (f->facts.row->request == MPIXLA_STARTS) return is_alone ? 0 : agree_compare_start(f, details, &f->agreement);
    int code = is_alone ? 0 : agree_compare(f, details);
    return code == 0 && tally_is_needed(f) ? tally_compare(f) : code;
}

int check_run(const frame *f) {
    if (facts_are_message(&f->facts)) message_note_send(f, check_messages_compared());
    return f->started && f->agreement ? agree_compare_wait(f->agreement) : 0;
}

int check_end(frame *f, int made, int code) {
    const int waits = f->facts.row->request == MPIXLA_WAITS;
    const call_facts *call = waits && f->request ? f->started : waits ? NULL : &f->facts;
    if (!made || !call || f->facts.row->request == MPIXLA_STARTS || !check_call_receives(call)) return code;
    int has_status = frame_has(f, ATTRIBUTE_STATUS);
    int accepts_short = has_status && f->attributes[ATTRIBUTE_STATUS] != MPIXLA_NO_STATUS;
    return message_compare(f, call, has_status || waits ? f->status : f->scratch, accepts_short,
                           check_messages_compared(), code);
}
