/* Checked mode, messages: this process is rank 0 of four and rank 2 of other four. What it sends leaves notes, which
 * the test brings back as those of the ranks that it receives from. Lengths of messages are bytes here.
 */
#include <stdlib.h>

#include "call.h"
#include "check.h"
#include "check/message.h"
#include "fixture.h"

enum { TAG = 8, NOTE_BYTES = 512, NOTES = 8, BYTES = CALL_COUNT * 4, TRUNCATED = 14 };

static call c;

/* The notes that were sent, and those that have come and are not taken: of the rank that the test receives from. */
static struct {
    char bytes[NOTE_BYTES];
    int64_t size;
    int from;
} sent[NOTES], coming[NOTES];
static int sends, come, taken;
static int is_truncated; /* the program's receives fail */

/* What the messages of the program have, and another one has. */
static const char ones[CALL_BYTES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, zeros[CALL_BYTES], twos[CALL_BYTES] = {2};
static const char *sent_data = ones, *received_data = ones;

static int is_on_channel(void) {
    const char *comm = strrchr(fake->call, ' ');
    return comm && strcmp(comm, " c0") == 0;
}

static void carry(void) {
    int64_t count = fixture_count();
    const int receives = strncmp(fake->call, "MPI_Recv", 8) == 0;
    if (is_truncated) fake->failing[0] = receives && !is_on_channel() ? "MPI_Recv" : NULL;
    if (!is_on_channel() && (receives || strncmp(fake->call, "MPI_Irecv", 9) == 0))
        memcpy(fake->recv, received_data, BYTES);
    if (!is_on_channel()) return;
    if (strncmp(fake->call, "MPI_Isend", 9) == 0 && sends < NOTES) {
        memcpy(sent[sends].bytes, fake->send, (size_t)count);
        sent[sends++].size = count;
    } else if (receives && come > 0) {
        memcpy(fake->recv, coming[0].bytes, (size_t)coming[0].size);
        memmove(coming, coming + 1, (size_t)--come * sizeof coming[0]);
        taken++;
    }
}

static int is_there(int source, int tag, int comm) {
    return comm == FAKE_WORLD && tag == 0 && come > 0 && coming[0].from == source;
}

/* The note of a message of so many items comes from this rank. */
static void bring(int from, int dtype, int64_t items) {
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "sendtag", TAG);
    call_dtype_set(&c, CALL_OPERANDS, 0, dtype);
    call_count_set(&c, CALL_OPERANDS, 0, items);
    call_site_set(&c, 0, "00000000000000aa their.py:7 in give");
    memcpy(c.send, sent_data, sizeof c.send);
    sends = 0;
    CHECK_STR(call_run(&c), "");
    CHECK_INT(sends, 1);
    coming[come] = sent[0];
    coming[come++].from = from;
}

/* Receives from this rank, with a template of CALL_COUNT items of float32, a message of so many bytes. */
static const char *receive(int from, int64_t bytes) {
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "source", from);
    call_site_set(&c, 0, "00000000000000bb ours.py:9 in take");
    fake->arrived = bytes;
    return call_run(&c);
}

static void a_message_that_fits_is_received(void) {
    bring(2, FFI_F32, CALL_COUNT);
    CHECK_STR(receive(2, BYTES), "");
    CHECK_INT(taken, 1);
    CHECK_INT(come, 0);
}

static void another_type_is_refused(void) {
    bring(2, FFI_S32, CALL_COUNT);
    const char *message = receive(2, BYTES);
    CHECK_IN(message,
             "r0 | MPIXLA_CHECK: a message from rank 2 to rank 0 of communicator 'rank0' with tag 8 is not what "
             "its receiver expects:\n");
    CHECK_IN(message, "\n  rank 2 sends 3 items of int32, at their.py:7 in give\n");
    CHECK_IN(message, "\n  rank 0 receives 3 items of float32, at ours.py:9 in take\n");
    CHECK_IN(message, "They differ in the data type. ");
    CHECK_INT(come, 0);
}

static void another_size_is_refused(void) {
    bring(2, FFI_F32, 1);
    CHECK_IN(receive(2, 4), "rank 2 sends 1 item of float32, at their.py:7");
    CHECK_IN(c.message, "They differ in the count. ");
    bring(2, FFI_F64, 1);
    CHECK_IN(receive(2, 8), "rank 2 sends 1 item of float64, at their.py:7");
    CHECK_IN(c.message, "They differ in the data type and the count. ");
}

/* MPI knows only that it has not had room. The note is its own where the communicator is certain to be the same. */
static void a_longer_one_is_explained(void) {
    comm_find_any(FIXTURE_RANK0)->agreed = 5;
    bring(2, FFI_F32, CALL_COUNT); /* not its own */
    bring(2, FFI_F32, 5);
    is_truncated = 1;
    fake->code = TRUNCATED;
    CHECK_IN(receive(2, 0), "rank 2 sends 5 items of float32, at their.py:7");
    is_truncated = 0;
    fixture_fail(NULL, 0);
    CHECK_STR(receive(2, BYTES), "");
    CHECK_INT(come, 0);
    comm_find_any(FIXTURE_RANK0)->agreed = 0;
}

static const char *receive_type(int from, int dtype) {
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "source", from);
    call_dtype_set(&c, CALL_OPERANDS, 0, dtype);
    call_dtype_set(&c, CALL_RESULTS, 0, dtype);
    fake->arrived = BYTES;
    return call_run(&c);
}

/* Which program may be right: the message's own note need not be there. */
static void receive_what_may_have_no_note(void) {
    CHECK_STR(receive_type(2, FFI_U32), "");
}

static void a_note_that_may_be_of_another_message(void) {
    bring(2, FFI_S32, CALL_COUNT); /* the bits of both integers are alike */
    CHECK_STR(fixture_stderr_of(receive_what_may_have_no_note), "");
    CHECK_STR(receive_type(2, FFI_S32), "");
    sent_data = twos;
    bring(2, FFI_S32, CALL_COUNT); /* other data */
    CHECK_STR(receive(2, BYTES), "");
    received_data = twos;
    CHECK_STR(receive_type(2, FFI_S32), "");
    sent_data = received_data = zeros;
    bring(2, FFI_S32, CALL_COUNT); /* zeros of any type */
    CHECK_STR(receive(2, BYTES), "");
    CHECK_STR(receive_type(2, FFI_S32), "");
    sent_data = received_data = ones;
    comm_find_any(FIXTURE_RANK0)->agreed = 5;
    bring(2, FFI_S32, CALL_COUNT); /* of another communicator */
    comm_find_any(FIXTURE_RANK0)->agreed = 6;
    CHECK_STR(receive(2, BYTES), "");
    comm_find_any(FIXTURE_RANK0)->agreed = 5;
    CHECK_IN(receive(2, BYTES), "They differ in the data type. ");
    comm_find_any(FIXTURE_RANK0)->agreed = 0;
    CHECK_INT(come, 0);
}

static void no_order_of_waiting_is_wrong(void) {
    bring(2, FFI_S32, CALL_COUNT);
    bring(2, FFI_F32, CALL_COUNT);
    CHECK_STR(receive(2, BYTES), "");
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_dtype_set(&c, CALL_OPERANDS, 0, FFI_S32);
    call_dtype_set(&c, CALL_RESULTS, 0, FFI_S32);
    fake->arrived = BYTES;
    CHECK_STR(call_run(&c), "");
    CHECK_INT(come, 0);
}

static void from_anybody(void) {
    bring(3, FFI_S32, CALL_COUNT);
    fake->sender = 3;
    CHECK_IN(receive(MPIXLA_ANY_SOURCE, BYTES), "a message from rank 3 to rank 0");
}

static void a_status_allows_less(void) {
    static _Alignas(16) char status[MPI_STATUS_BYTES];
    int64_t number = mpixla_status_register(status);
    for (int is_right = 0; is_right < 2; is_right++) {
        bring(2, is_right ? FFI_F32 : FFI_S32, 1);
        call_make(&c, "recv", FIXTURE_RANK0, 0);
        call_attribute_set(&c, "status", number);
        fake->arrived = 4;
        CHECK_IN(call_run(&c), is_right ? "" : "They differ in the data type and the count.");
        CHECK_INT(strlen(c.message) == 0, is_right);
    }
}

static call waiting;

static void what_was_started_is_compared_when_it_is_waited_for(void) {
    static float id[2];
    call_make(&c, "recv", FIXTURE_RANK0, 0);
    call_make(&waiting, "barrier", FIXTURE_RANK0, 0);
    c.handler = call_handler("irecv");
    waiting.handler = call_handler("wait_recv");
    call_attribute_remove(&c, 3); /* the status */
    call_remove(&c, CALL_RESULTS, 0);
    call_insert(&c, CALL_RESULTS, 0, FFI_F32, 2, id);
    call_insert(&waiting, CALL_OPERANDS, 0, FFI_F32, 2, id);
    call_insert(&waiting, CALL_OPERANDS, 1, FFI_F32, CALL_COUNT, waiting.template_);
    call_insert(&waiting, CALL_RESULTS, 0, FFI_F32, CALL_COUNT, waiting.recv);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(sends, 1); /* of the test before */
    bring(2, FFI_S32, CALL_COUNT);
    CHECK_IN(call_run(&waiting), "They differ in the data type. ");
}

/* What goes to nobody, or cannot be told, stops no message. */
static void a_note_that_cannot_be_sent(void) {
    sends = 0;
    call_make(&c, "send", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "dest", MPIXLA_PROC_NULL);
    CHECK_STR(call_run(&c), "");
    call_make(&c, "send", FIXTURE_RANK2, 0); /* nobody has said who is in it */
    CHECK_STR(call_run(&c), "");
    CHECK_INT(sends, 0);
    call_make(&c, "send", FIXTURE_RANK0, 0);
    fixture_fail("MPI_Isend", 9);
    CHECK_STR(call_run(&c), "");
    fixture_fail(NULL, 0);
}

/* Its bytes are known all the same. */
static void where_ranks_are_not_known(void) {
    call_make(&c, "recv", FIXTURE_RANK2, 0);
    fake->arrived = BYTES;
    CHECK_STR(call_run(&c), "");
    call_make(&c, "recv", FIXTURE_RANK2, 0);
    fake->arrived = 8;
    CHECK_IN(call_run(&c), "rank 2 sends 8 bytes, at an unknown line");
}

static void receive_what_has_no_note(void) {
    CHECK_STR(receive(1, BYTES), "");
}

/* From then on nobody waits for a note. One that tells something is used all the same. */
static void a_message_without_a_note(void) {
    static const char said[] = "a message from rank 1 of communicator 'rank0' was not sent with mpixla";
    CHECK_IN(fixture_stderr_of(receive_what_has_no_note), said);
    CHECK_STR(fixture_stderr_of(receive_what_has_no_note), "");
    CHECK_IN(receive(1, 8), "rank 1 sends 8 bytes, at an unknown line");
    bring(1, FFI_S32, CALL_COUNT);
    CHECK_IN(receive(1, BYTES), "They differ in the data type. ");
    CHECK_INT(come, 0);
}

/* There each message has a note. */
static void on_the_library_s_own_communicator(void) {
    bring(2, FFI_S32, CALL_COUNT);
    CHECK_INT(mpixla_check_own_set(FIXTURE_RANK0), 0);
    bring(2, FFI_F32, CALL_COUNT);
    CHECK_STR(receive(2, BYTES), ""); /* the first note is of another communicator */
    bring(2, FFI_S32, CALL_COUNT);
    CHECK_IN(receive_type(2, FFI_U32), "They differ in the data type. ");
    sent_data = received_data = zeros;
    bring(2, FFI_S32, CALL_COUNT);
    CHECK_IN(receive(2, BYTES), "They differ in the data type. ");
    sent_data = received_data = twos;
    bring(2, FFI_S32, CALL_COUNT);
    received_data = ones;
    CHECK_STR(receive(2, BYTES), ""); /* the note is of other data */
    received_data = twos;
    CHECK_STR(receive_type(2, FFI_S32), "");
    sent_data = received_data = ones;
    CHECK_INT(come, 0);
}

static void the_first_messages(void) {
    CHECK_INT(mpixla_check_set("first", fake->handle(FAKE_WORLD)), 0);
    CHECK_STR(receive(1, BYTES), ""); /* nobody waits for a note, or says that there is none */
    for (int i = 0; i < 64; i++) {
        bring(1, i % 2 ? FFI_S32 : FFI_F32, CALL_COUNT);
        const int is_compared = i < 63; /* with the one above */
        CHECK_IN(receive(1, BYTES), is_compared && i % 2 ? "They differ in the data type. " : "");
        CHECK_INT(strlen(c.message) > 0, is_compared && i % 2);
    }
    sends = 0;
    call_make(&c, "send", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(sends, 0);
    call_make(&c, "send", FIXTURE_RANK2, 0);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(sends, 0);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    static const int members[] = {0, 1, 2, 3};
    CHECK_INT(mpixla_comm_members_set(FIXTURE_RANK0, members), 0);
    CHECK_INT(mpixla_check_set("calls", fake->handle(FAKE_WORLD)), 0);
    fake->during = carry;
    fake->is_there = is_there;
    fake->done = 1;
    a_message_that_fits_is_received();
    another_type_is_refused();
    another_size_is_refused();
    a_longer_one_is_explained();
    no_order_of_waiting_is_wrong();
    from_anybody();
    a_status_allows_less();
    what_was_started_is_compared_when_it_is_waited_for();
    a_note_that_cannot_be_sent();
    where_ranks_are_not_known();
    a_note_that_may_be_of_another_message();
    a_message_without_a_note();
    on_the_library_s_own_communicator();
    the_first_messages();
    return check_failures();
}
