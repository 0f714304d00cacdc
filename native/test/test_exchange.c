#include <limits.h>

#include "call.h"
#include "check.h"
#include "fixture.h"
#include "neighbours/exchange.h"
#include "run.h"
#include "scarce.h"

#define NOBODY MPIXLA_PROC_NULL
#define LIST(...) (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)

enum { BIG_TYPE = 300 }; /* the fake's, of several items */

static call c;

/* Two of each side. */
static void edges_set(int sending, const int64_t ranks[2], const int64_t tags[2]) {
    call_edges_set(FIXTURE_RANK0, sending, 2, ranks, tags);
}

static void check_message(int place, const char *function, const void *buffer, int64_t n, int peer, int tag) {
    const fake_message *m = &fake->messages[place];
    CHECK_STR(m->function, function);
    CHECK(m->buffer == buffer);
    const int in_bytes = m->type == FFI_U8; /* as what is received, while MPI can count it */
    CHECK_INT(m->n, in_bytes ? 4 * n : n);
    CHECK_INT(m->type, in_bytes ? FFI_U8 : m->items == n ? FFI_F32 : BIG_TYPE);
    CHECK_INT(m->peer, peer);
    CHECK_INT(m->tag, tag);
    CHECK_INT(m->waited, 1);
}

/* Receives are posted before sends, so that nothing has to be kept by MPI. */
static void posts_and_waits(void) {
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->posted, 4);
    check_message(0, "MPI_Irecv", c.recv, 2, 2, 5);
    check_message(1, "MPI_Irecv", c.recv + 2 * sizeof(float), 1, 1, 6);
    check_message(2, "MPI_Isend", c.send, 1, 1, 3);
    check_message(3, "MPI_Isend", c.send + sizeof(float), 2, 2, 4);
    /* On a communicator of its own, always the same. */
    int private = fake->messages[0].comm;
    CHECK(private != FIXTURE_RANK0 + 1);
    for (int i = 0; i < 4; i++) CHECK_INT(fake->messages[i].comm, private);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->messages[3].comm, private);
    call_make(&c, "exchange", FIXTURE_RANK2, 0);
    CHECK_STR(call_run(&c), "");
    CHECK(fake->messages[0].comm != private && fake->messages[0].comm != FIXTURE_RANK2 + 1);
}

static void sends_the_same_items_to_several(void) {
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_list_set(&c, "sendcounts", LIST(3, 3));
    call_list_set(&c, "sendoffsets", LIST(0, 0));
    CHECK_STR(call_run(&c), "");
    check_message(2, "MPI_Isend", c.send, 3, 1, 3);
    check_message(3, "MPI_Isend", c.send, 3, 2, 4);
}

/* Counts and offsets are of rows, here of two items. */
static void moves_rows(void) {
    static int64_t dims[] = {3, 2};
    frame f;
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    for (int side = 0; side < 2; side++) {
        c.sides[side].buffers[0].rank = 2;
        c.sides[side].buffers[0].dims = dims;
    }
    CHECK_STR(call_run(&c), "");
    check_message(0, "MPI_Irecv", c.recv, 4, 2, 5);
    check_message(1, "MPI_Irecv", c.recv + 4 * sizeof(float), 2, 1, 6);
    check_message(2, "MPI_Isend", c.send, 2, 1, 3);
    check_message(3, "MPI_Isend", c.send + 2 * sizeof(float), 4, 2, 4);
    CHECK_INT(frame_read(&f, call_shape("exchange"), &c.frame, NULL), 0);
    CHECK_INT(f.facts.sent, 6);
    CHECK_INT(f.facts.received, 6);
}

/* A neighbour that is not there: nothing is sent, zeros are received, and the rest is left to MPI. */
static void fills_with_zeros(void) {
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    edges_set(1, (const int64_t[]){NOBODY, 2}, (const int64_t[]){3, 4});
    edges_set(0, (const int64_t[]){2, NOBODY}, (const int64_t[]){5, 6});
    memset(c.recv, 0x55, sizeof c.recv);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->posted, 2);
    check_message(0, "MPI_Irecv", c.recv, 2, 2, 5);
    check_message(1, "MPI_Isend", c.send + sizeof(float), 2, 2, 4);
    for (size_t i = 0; i < sizeof c.recv; i++) CHECK_INT(c.recv[i], i / sizeof(float) == 2 ? 0 : 0x55);
    frame f;
    char text[128];
    CHECK_INT(frame_read(&f, call_shape("exchange"), &c.frame, NULL), 0);
    facts_describe(&f.facts, NULL, 0, text, sizeof text);
    CHECK_STR(text, "MPI_Isend -> 1 neighbours with 2 items <- 1 neighbours with 2 items");
}

/* Without neighbours, and with buffers that XLA gives no memory. */
static void works_without_items(void) {
    static const int64_t none[1];
    static const char *const lists[] = {"recvcounts", "sendcounts", "sendoffsets"};
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_list_set(&c, "sendcounts", LIST(0, 0));
    call_list_set(&c, "recvcounts", LIST(0, 0));
    call_list_set(&c, "sendoffsets", LIST(0, 0));
    edges_set(0, (const int64_t[]){NOBODY, 3}, (const int64_t[]){5, 6});
    for (int side = 0; side < 2; side++) {
        call_count_set(&c, side, 0, 0);
        c.sides[side].buffers[0].data = NULL;
    }
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->posted, 3);
    check_message(0, "MPI_Irecv", NULL, 0, 3, 6);
    int before = fake->calls;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) call_list_set(&c, lists[i], none, 0);
    for (int sending = 0; sending < 2; sending++) call_edges_set(FIXTURE_RANK0, sending, 0, none, none);
    CHECK_STR(call_run(&c), "");
    CHECK_INT(fake->calls, before);
}

/* More messages than this thread ever had at once, and then fewer. */
static void *have_many(void *argument) {
    enum { MANY = FAKE_MESSAGES / 2 };
    static const int64_t zeros[MANY];
    static _Thread_local call many;
    (void)argument;
    call_make(&many, "exchange", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&many), "");
    call_count_set(&many, CALL_RESULTS, 0, 0);
    for (int sending = 0; sending < 2; sending++) call_edges_set(FIXTURE_RANK0, sending, MANY, zeros, zeros);
    call_list_set(&many, "sendcounts", zeros, MANY);
    call_list_set(&many, "recvcounts", zeros, MANY);
    call_list_set(&many, "sendoffsets", zeros, MANY);
    CHECK_STR(call_run(&many), "");
    CHECK_INT(fake->posted, FAKE_MESSAGES);
    for (int i = 0; i < FAKE_MESSAGES; i++) CHECK_INT(fake->messages[i].waited, 1);
    call_make(&many, "exchange", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&many), "");
    CHECK_INT(fake->posted, 4);
    return NULL;
}

static void keeps_requests_for_each_thread(void) {
    threads_run(1, have_many);
    have_many(NULL);
}

/* Every function that fails is named, with the slot and its partner, and nothing stays posted. */
static void tells_which_message_failed(void) {
    static const struct {
        const char *function;
        int spared;
        const char *where;
        int posted;
    } rows[] = {
        {"MPI_Irecv", 0, ", in source slot 0 <- 2 with tag 5 and 2 items", 3},
        {"MPI_Irecv", 1, ", in source slot 1 <- 1 with tag 6 and 1 items", 3},
        {"MPI_Isend", 0, ", in destination slot 0 -> 1 with tag 3 and 1 items", 3},
        {"MPI_Isend", 1, ", in destination slot 1 -> 2 with tag 4 and 2 items", 3},
        {"MPI_Wait", 0, ", in source slot 0 <- 2 with tag 5 and 2 items", 4},
        {"MPI_Wait", 1, ", in source slot 1 <- 1 with tag 6 and 1 items", 4},
        {"MPI_Wait", 3, ", in destination slot 1 -> 2 with tag 4 and 2 items", 4},
        {"MPI_Get_elements_x", 1, ", in source slot 1 <- 1 with tag 6 and 1 items", 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char start[80];
        call_make(&c, "exchange", FIXTURE_RANK0, 0);
        fixture_fail(rows[i].function, 6);
        fake->spared = rows[i].spared;
        snprintf(start, sizeof start, "r0 | %s returned error code 6: ", rows[i].function);
        CHECK(strncmp(call_run(&c), start, strlen(start)) == 0);
        CHECK_IN(c.message,
                 "(MPI_Isend -> 2 neighbours with 3 items <- 2 neighbours with 3 items of float32, on rank 0 of 4");
        CHECK_IN(c.message, rows[i].where);
        CHECK_INT(c.code, FFI_INTERNAL);
        /* Where the first one is to fail, all of its kind do. */
        if (rows[i].spared > 0) CHECK_INT(fake->posted, rows[i].posted);
        for (int m = 0; m < fake->posted; m++) CHECK_INT(fake->messages[m].waited, 1);
        fixture_fail(NULL, 0);
        CHECK_STR(call_run(&c), "");
    }
    int number = fake->comm_new(0, FIXTURE_SIZE, 0);
    call_make(&c, "exchange", mpixla_comm_register(fake->handle(number), "new"), 0);
    fixture_fail("MPI_Comm_dup", 16);
    CHECK_IN(call_run(&c), "r0 | MPI_Comm_dup returned error code 16: ");
    CHECK(strstr(c.message, "slot") == NULL);
    fixture_fail(NULL, 0);
    CHECK_STR(call_run(&c), "");
}

static void tells_of_short_messages(void) {
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    fake->missing = 4;
    CHECK_STR(call_run(&c),
              "r0 | a message of 4 bytes came from rank 2, but source slot 0 was to receive 8: the two ranks disagree "
              "on the messages between them (MPI_Isend -> 2 neighbours with 3 items <- 2 neighbours with 3 items of "
              "float32, on rank 0 of 4 of communicator 'rank0')");
    CHECK_INT(c.code, FFI_ABORTED);
    for (int m = 0; m < 4; m++) CHECK_INT(fake->messages[m].waited, 1);
    fake->missing = 0;
    CHECK_STR(call_run(&c), "");
}

/* Without memory for its list of messages a rank cannot make its part, for which its neighbours wait. */

static int run_without_memory(int64_t comm) {
    static const topology many = {.dests = {.number = INT64_C(1) << 52}, .dimensions = -1};
    frame f;
    call_make(&c, "exchange", comm, 0);
    CHECK_INT(frame_read(&f, call_shape("exchange"), &c.frame, NULL), 0);
    f.facts.communicator->topology = &many;
    return exchange(&f);
}

static void run_in_a_child(void) {
    (void)run_without_memory(FIXTURE_RANK0);
}

static void ends_the_job_without_memory(void) {
    const scarce_end end = scarce_run(run_in_a_child);
    CHECK_INT(end.status, 1);
    CHECK_IN(end.told, "mpixla: r0 | out of memory for ");
    CHECK_IN(end.told, "communicator 'rank0' wait for this one");
    /* Alone it is an error. */
    CHECK_INT(run_without_memory(FIXTURE_SELF), REFUSED);
    CHECK_IN(mpixla_last_error(), "out of memory for ");
}

/* Back along the same edges: what were sources are destinations. */
static void goes_back(void) {
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    call_attribute_set(&c, "back", 1);
    call_list_set(&c, "sendcounts", LIST(2, 1));
    call_list_set(&c, "sendoffsets", LIST(0, 2));
    call_list_set(&c, "recvcounts", LIST(1, 2));
    CHECK_STR(call_run(&c), "");
    check_message(0, "MPI_Irecv", c.recv, 1, 1, 3);
    check_message(1, "MPI_Irecv", c.recv + sizeof(float), 2, 2, 4);
    check_message(2, "MPI_Isend", c.send, 2, 2, 5);
    check_message(3, "MPI_Isend", c.send + 2 * sizeof(float), 1, 1, 6);
}

/* Each message by its own count: its other end has the same one. */
static void uses_large_counts(void) {
    CHECK_INT(mpixla_count_limit_set(1), INT_MAX);
    fake->item_bytes = fixture_item_bytes;
    call_make(&c, "exchange", FIXTURE_RANK0, 0);
    CHECK_STR(call_run(&c), "");
    if (fake->has_large) {
        check_message(0, "MPI_Irecv_c", c.recv, 2, 2, 5);
        check_message(1, "MPI_Irecv", c.recv + 2 * sizeof(float), 1, 1, 6);
        check_message(2, "MPI_Isend", c.send, 1, 1, 3);
        check_message(3, "MPI_Isend_c", c.send + sizeof(float), 2, 2, 4);
    } else {
        check_message(0, "MPI_Irecv", c.recv, 1, 2, 5);
        check_message(1, "MPI_Irecv", c.recv + 2 * sizeof(float), 1, 1, 6);
        check_message(2, "MPI_Isend", c.send, 1, 1, 3);
        check_message(3, "MPI_Isend", c.send + sizeof(float), 1, 2, 4);
    }
    fake->item_bytes = NULL;
    CHECK_INT(mpixla_count_limit_set(INT_MAX), 1);
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    posts_and_waits();
    sends_the_same_items_to_several();
    moves_rows();
    fills_with_zeros();
    works_without_items();
    keeps_requests_for_each_thread();
    tells_which_message_failed();
    tells_of_short_messages();
    goes_back();
    uses_large_counts();
    ends_the_job_without_memory();
    return check_failures();
}
