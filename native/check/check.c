#include "check/check.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/feature.h"
#include "check/agree.h"
#include "check/message.h"
#include "check/tally.h"
#include "mpixla.h"

/* Nanoseconds: how long a process that ends waits for others that have yet to make a collective call which it has
 * started. Once it is gone nobody can tell them that it is not theirs; those that have ended never make it. */
#define AGREE_PATIENCE INT64_C(30000000000)

atomic_int check_mode_now = CHECK_OFF;

int mpixla_check_set(const char *mode, mpixla_handle comm) {
    static const char *const names[] = {
        [CHECK_OFF] = "off", [CHECK_FIRST] = "first", [CHECK_CALLS] = "calls", [CHECK_LINES] = "lines"};
    int i = CHECK_LINES;
    while (i >= 0 && strcmp(mode, names[i]) != 0) i--;
    if (i < 0) return error_set("the mode of checks is '%s', but must be off, first, calls or lines", mode);
    agree_channel_set(comm);
    if (i >= CHECK_CALLS && message_channel_set(comm)) return REFUSED;
    atomic_store(&check_mode_now, i);
    (void)feature_set(FEATURE_CHECKS, i != CHECK_OFF);
    return 0;
}

int mpixla_check_first_calls(void) {
    return CHECK_FIRST_CALLS;
}

void mpixla_check_end(void) {
    if (check_mode_get() == CHECK_OFF || !mpi_get()) return;
    const int64_t until = clock_now() + AGREE_PATIENCE;
    while (agree_end() > 0 && clock_now() < until) clock_sleep(1);
}

static int are_messages_compared(void) {
    return check_mode_get() >= CHECK_CALLS;
}

static int receives(const call_facts *call) {
    return facts_have(call, ATTRIBUTE_SOURCE) && call->source != MPIXLA_PROC_NULL;
}

static void message_begin(frame *f) {
    const int nobody = -1;
    if (frame_has(f, ATTRIBUTE_DEST)) message_announce(&f->facts);
    /* Where the receive fails, MPI may not write its status. One that is a result in a GPU's memory gets a mirror
     * later, which says the same (transport.c). */
    if (frame_has(f, ATTRIBUTE_STATUS) && !(f->is_on_gpu && f->attributes[ATTRIBUTE_STATUS] == MPIXLA_STATUS_RESULT))
        memcpy((char *)f->status + mpi_get()->facts.status_source, &nobody, sizeof nobody);
}

int check_begin(frame *f) {
    const int lines = check_mode_get() == CHECK_LINES;
    if (f->facts.row->request == MPIXLA_WAITS) return 0;
    if (!facts_are_collective(&f->facts)) {
        if (are_messages_compared()) message_begin(f);
        return 0;
    }
    /* A rank alone agrees with itself, but what it sends itself may not be what it expects. */
    const int is_alone = f->size == 1;
    if (f->facts.row->request == MPIXLA_STARTS) return is_alone ? 0 : agree_start(f, lines, &f->agreement);
    int code = is_alone ? 0 : agree_now(f, lines);
    return code == 0 && tally_is_needed(f) ? tally_compare(f) : code;
}

int check_wait(const frame *f) {
    return f->started && f->agreement ? agree_wait(f->agreement) : 0;
}

int check_end(frame *f, int made, int code) {
    const int waits = f->facts.row->request == MPIXLA_WAITS;
    const call_facts *call = waits && f->request ? f->started : waits ? NULL : &f->facts;
    if (!made || !call || f->facts.row->request == MPIXLA_STARTS || !are_messages_compared() || !receives(call))
        return code;
    int has_status = frame_has(f, ATTRIBUTE_STATUS);
    int accepts_short = has_status && f->attributes[ATTRIBUTE_STATUS] != MPIXLA_NO_STATUS;
    return message_compare(call, has_status || waits ? f->status : f->scratch, accepts_short, code);
}
